//! `excise-probe run`: one workload under the mechanisms that were asked for, as one JSON line.

use crate::error::ProbeError;
use crate::mechanism::{self, Allowance, Forbidden, InForce, Wanted};
use crate::sys::clock::Clock;
use crate::sys::{hold, landlock};
use crate::workload::{c_path, Planned, Workload, MAPPED_BYTES};
use serde::Serialize;
use std::path::PathBuf;

const CLOCK: Clock = Clock::MonotonicRaw;
/// Second argument of a mark, before and after a batch.
const MARK_BEGIN: u64 = 1;
const MARK_END: u64 = 2;
/// Largest part of a batch that the clock's resolution may be.
const MAX_RESOLUTION_RATIO: f64 = 0.001;
/// A batch that calibration aims at is at least so long.
const SHORTEST_BATCH_NS: u64 = 1_000_000;
/// Room above the two limits, so that a batch that happens to be faster still keeps them.
const MARGIN: u64 = 2;
/// Attempts per count: the fastest counts, as noise only ever makes a batch longer.
const ATTEMPTS: u32 = 3;
/// More operations than this mean that the workload does nothing.
const MOST_OPERATIONS: u64 = 1 << 40;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the workload.
    pub workload: String,
    /// Operations of a batch; calibrated if not given.
    pub operations: Option<u64>,
    /// Batches.
    pub batches: u32,
    /// Work directory.
    pub directory: PathBuf,
    /// Print the number of operations that calibration found, and nothing else.
    pub calibrate: bool,
    /// Mark each batch for a trace.
    pub mark: bool,
    /// Mechanisms to put on first.
    pub wanted: Wanted,
}

#[derive(Serialize)]
struct Line<'a> {
    workload: &'a str,
    operations: u64,
    op_ns: Vec<Rounded>,
    first_op_ns: u64,
    clock: &'a str,
    clock_resolution_ns: u64,
    resolution_ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
    calibrated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mapped_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_components: Option<usize>,
    mechanism: InForce,
}

/// A number of nanoseconds that is written with three decimals.
struct Rounded(f64);

impl Serialize for Rounded {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((self.0 * 1000.0).round() / 1000.0)
    }
}

/// Run it; the answer is what to print, and whether the result is fit for use.
pub fn main(options: &Options) -> Result<(String, bool), ProbeError> {
    let planned = Planned::new(&options.workload, &options.directory)?;
    let mechanism = mechanism::apply(
        &options.wanted,
        &allowances(&planned, &options.wanted)?,
        &outside(&planned, &options.wanted)?,
    )?;
    let resolution_ns = CLOCK.measured_resolution_ns();
    let mut workload = planned.set_up()?;
    let first_op_ns = time_batch(workload.as_mut(), 1, options.mark)?;
    let shortest_ns = shortest_batch_ns(resolution_ns);
    let operations = match options.operations {
        Some(operations) => operations,
        None => calibrate(workload.as_mut(), shortest_ns)?,
    };
    if options.calibrate {
        return Ok((operations.to_string(), true));
    }
    let mut times_ns = Vec::with_capacity(options.batches as usize);
    for _ in 0..options.batches {
        times_ns.push(time_batch(workload.as_mut(), operations, options.mark)?);
    }
    drop(workload);
    let fastest_ns = times_ns.iter().copied().min().unwrap_or_default().max(1);
    let ratio = resolution_ns as f64 / fastest_ns as f64;
    let fit = ratio <= MAX_RESOLUTION_RATIO;
    let line = Line {
        workload: planned.name,
        operations,
        op_ns: times_ns
            .iter()
            .map(|&time_ns| Rounded(time_ns as f64 / operations as f64))
            .collect(),
        first_op_ns,
        clock: CLOCK.name(),
        clock_resolution_ns: resolution_ns,
        resolution_ratio: ratio,
        warning: (!fit).then(|| too_coarse(ratio, operations)),
        calibrated: options.operations.is_none(),
        mapped_bytes: (planned.name == "mmap_fault").then_some(MAPPED_BYTES),
        path_components: planned.path_components(),
        mechanism,
    };
    let text = serde_json::to_string(&line)
        .map_err(|error| ProbeError::Failed(format!("cannot write the result: {error}")))?;
    Ok((text, fit))
}

fn too_coarse(ratio: f64, operations: u64) -> String {
    format!(
        "the clock's resolution is {:.3} % of the shortest batch, above 0.1 %: \
         {operations} operations are too few",
        ratio * 100.0
    )
}

/// Time one batch, in nanoseconds.
///
/// The marks are outside of what is timed.
fn time_batch(workload: &mut dyn Workload, operations: u64, mark: bool) -> Result<u64, ProbeError> {
    workload.prepare(operations)?;
    if mark {
        hold::mark(MARK_BEGIN, operations);
    }
    let start_ns = CLOCK.now_ns();
    let outcome = workload.operate(operations);
    let end_ns = CLOCK.now_ns();
    if mark {
        hold::mark(MARK_END, operations);
    }
    outcome?;
    workload.finish(operations)?;
    Ok(end_ns.saturating_sub(start_ns))
}

fn shortest_batch_ns(resolution_ns: u64) -> u64 {
    let for_resolution = (resolution_ns as f64 / MAX_RESOLUTION_RATIO) as u64;
    SHORTEST_BATCH_NS.max(for_resolution)
}

/// Operations that make even a fast batch long enough.
fn calibrate(workload: &mut dyn Workload, shortest_ns: u64) -> Result<u64, ProbeError> {
    let wanted_ns = shortest_ns.saturating_mul(MARGIN);
    let mut operations = 1_u64;
    while operations < MOST_OPERATIONS {
        let mut fastest_ns = u64::MAX;
        for _ in 0..ATTEMPTS {
            fastest_ns = fastest_ns.min(time_batch(workload, operations, false)?);
            if fastest_ns < wanted_ns {
                break; // too few already: no need to try again
            }
        }
        if fastest_ns >= wanted_ns {
            return Ok(operations);
        }
        operations = next_count(operations, fastest_ns, wanted_ns);
    }
    Err(ProbeError::Failed(format!(
        "calibration: {MOST_OPERATIONS} operations took less than {wanted_ns} ns"
    )))
}

/// A larger count: by proportion, but at most tenfold at once, as short batches mislead.
fn next_count(operations: u64, took_ns: u64, wanted_ns: u64) -> u64 {
    let by_proportion = (operations as f64 * wanted_ns as f64 / took_ns.max(1) as f64 * 1.1) as u64;
    by_proportion.clamp(operations + 1, operations.saturating_mul(10))
}

/// What the workload needs under Landlock: the work directory, and little else.
fn allowances(planned: &Planned, wanted: &Wanted) -> Result<Vec<Allowance>, ProbeError> {
    if !wanted.landlock {
        return Ok(Vec::new());
    }
    let mut list = vec![Allowance {
        path: c_path(&planned.directory)?,
        rights: u64::MAX,
    }];
    match planned.name {
        "read" => list.push(Allowance {
            path: c"/dev/zero".to_owned(),
            rights: landlock::READ_FILE,
        }),
        "write" => list.push(Allowance {
            path: c"/dev/null".to_owned(),
            rights: landlock::WRITE_FILE,
        }),
        "fork_execve" => {
            list.push(Allowance {
                path: c_path(&planned.program)?,
                rights: landlock::EXECUTE | landlock::READ_FILE,
            });
            // The new program's start reads /proc/self/maps: where that is refused it does less, and
            // confinement would seem to save time.
            let there = std::path::Path::new("/proc/self").try_exists();
            let proc_self = |error| ProbeError::step("/proc/self", &error);
            if there.map_err(proc_self)? {
                list.push(Allowance {
                    path: c"/proc".to_owned(),
                    rights: landlock::READ_FILE,
                });
            }
        }
        _ => {}
    }
    Ok(list)
}

/// The root directory's list must not be readable, unless all of it is the work directory.
fn outside(planned: &Planned, wanted: &Wanted) -> Result<Forbidden, ProbeError> {
    if wanted.landlock && planned.directory.parent().is_none() {
        return Err(ProbeError::Usage(
            "--directory /: nothing is left outside for --landlock to deny".to_owned(),
        ));
    }
    Ok(Forbidden {
        path: c"/",
        flags: libc::O_RDONLY | libc::O_DIRECTORY,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workload whose operation waits for the clock.
    struct Spin(u64);

    impl Workload for Spin {
        fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
            let end_ns = CLOCK.now_ns() + self.0 * operations;
            while CLOCK.now_ns() < end_ns {}
            Ok(())
        }
    }

    #[test]
    fn calibration_finds_a_count_whose_batch_is_long_enough() {
        let operations = calibrate(&mut Spin(1_000), 200_000).unwrap();
        assert!((400..=4_000).contains(&operations), "{operations}");
    }

    #[test]
    fn one_slow_operation_is_enough() {
        assert_eq!(calibrate(&mut Spin(3_000_000), 1_000_000).unwrap(), 1);
    }

    #[test]
    fn a_coarse_clock_asks_for_longer_batches() {
        assert_eq!(shortest_batch_ns(50), SHORTEST_BATCH_NS);
        assert_eq!(shortest_batch_ns(4_000_000), 4_000_000_000);
    }

    #[test]
    fn counts_grow_by_proportion_but_not_without_bound() {
        assert_eq!(next_count(100, 1_000, 2_000), 220);
        assert_eq!(next_count(1, 10, 1_000_000), 10);
        assert_eq!(next_count(5, 1_000_000, 1), 6);
    }

    #[test]
    fn nanoseconds_are_written_with_three_decimals() {
        let text = serde_json::to_string(&[Rounded(12.345_678), Rounded(3.0)]).unwrap();
        assert_eq!(text, "[12.346,3.0]");
    }
}
