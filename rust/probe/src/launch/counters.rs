//! Instructions and cycles of each child, where the kernel and the machine have them.

use crate::sys::perf::{Begin, Counter, Event, Reading, Scope};
use std::io;

/// One event counted over successive children.
struct Running {
    counter: Counter,
    last: Reading,
}

impl Running {
    /// Open it, with the kernel's part if that is allowed.
    fn open(event: Event) -> io::Result<Self> {
        let begin = Begin::OnChildExec;
        let counter = Counter::open(event, Scope::UserAndKernel, begin)
            .or_else(|_| Counter::open(event, Scope::User, begin))?;
        let last = counter.read()?;
        Ok(Self { counter, last })
    }

    /// What the child that has just been reaped added.
    ///
    /// `None` where the counter was not on the processor for all of the child's time: a count that
    /// is scaled up is a guess, and a guess is not a measurement.
    fn difference(&mut self) -> Option<u64> {
        let now = self.counter.read().ok()?;
        let before = std::mem::replace(&mut self.last, now);
        let enabled_ns = now.enabled_ns.checked_sub(before.enabled_ns)?;
        let running_ns = now.running_ns.checked_sub(before.running_ns)?;
        if enabled_ns == 0 || running_ns != enabled_ns {
            return None;
        }
        now.value.checked_sub(before.value)
    }
}

/// The pair of events of every run that asks for counters.
///
/// They are opened on the launcher but begin to count in a child, at its exec, by inheritance; a
/// child's counts are added to its parent's before it can be waited for.
#[derive(Default)]
pub struct Counters {
    open: bool,
    running: [Option<Running>; 2],
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// Instructions and cycles.
    Hardware,
    /// Page faults and CPU time: to see the mechanism at work on a machine without the others.
    SelfTest,
}

impl Counters {
    /// Open the counters or close them, as the next run wants it.
    pub fn switch(&mut self, wanted: bool, pair: Pair) {
        if wanted == self.open {
            return;
        }
        self.open = wanted;
        let events = match pair {
            Pair::Hardware => [Event::Instructions, Event::Cycles],
            Pair::SelfTest => [Event::PageFaults, Event::TaskClock],
        };
        // A counter that cannot be opened gives null in every line; `info` says why.
        self.running = events.map(|event| wanted.then(|| Running::open(event).ok()).flatten());
    }

    /// The counts of the child that has just been reaped.
    pub fn differences(&mut self) -> [Option<u64>; 2] {
        self.running
            .each_mut()
            .map(|running| running.as_mut().and_then(Running::difference))
    }
}
