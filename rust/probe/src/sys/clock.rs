//! Clocks: one reading, and the smallest step that a program can see.

/// A clock of `clock_gettime(2)`, by its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Slewed by NTP; what `start_ns` and `wall_ns` of the launcher are in.
    Monotonic,
    /// Not slewed; what the workloads are timed with.
    MonotonicRaw,
    /// Counts time in suspend too.
    Boottime,
}

impl Clock {
    /// All clocks, in the order in which `info` lists them.
    pub const ALL: [Clock; 3] = [Clock::Monotonic, Clock::MonotonicRaw, Clock::Boottime];

    /// The kernel's name of the clock.
    pub fn name(self) -> &'static str {
        match self {
            Clock::Monotonic => "CLOCK_MONOTONIC",
            Clock::MonotonicRaw => "CLOCK_MONOTONIC_RAW",
            Clock::Boottime => "CLOCK_BOOTTIME",
        }
    }

    fn id(self) -> libc::clockid_t {
        match self {
            Clock::Monotonic => libc::CLOCK_MONOTONIC,
            Clock::MonotonicRaw => libc::CLOCK_MONOTONIC_RAW,
            Clock::Boottime => libc::CLOCK_BOOTTIME,
        }
    }

    /// The time now, in nanoseconds.
    #[inline]
    pub fn now_ns(self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a valid timespec to write to; the ids above exist since Linux 2.6.39.
        unsafe { libc::clock_gettime(self.id(), &mut time) };
        // Both parts are non-negative for these clocks, and 2^64 ns are 584 years.
        (time.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(time.tv_nsec as u64)
    }

    /// What the kernel declares as this clock's resolution, in nanoseconds.
    pub fn declared_resolution_ns(self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: as in `now_ns`.
        unsafe { libc::clock_getres(self.id(), &mut time) };
        (time.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(time.tv_nsec as u64)
    }

    /// The smallest step seen between two successive different readings, in nanoseconds.
    ///
    /// It includes the cost of a reading, so it bounds from above what one reading can be wrong by.
    pub fn measured_resolution_ns(self) -> u64 {
        const STEPS: u32 = 2_000;
        let mut smallest = u64::MAX;
        for _ in 0..STEPS {
            let before = self.now_ns();
            let mut after = self.now_ns();
            while after == before {
                after = self.now_ns();
            }
            smallest = smallest.min(after.wrapping_sub(before));
        }
        smallest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_goes_back_and_has_a_positive_step() {
        for clock in Clock::ALL {
            let before = clock.now_ns();
            assert!(clock.now_ns() >= before, "{}", clock.name());
            let step = clock.measured_resolution_ns();
            assert!((1..100_000_000).contains(&step), "{} {step}", clock.name());
            assert!(clock.declared_resolution_ns() >= 1);
        }
    }
}
