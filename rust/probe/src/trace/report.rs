//! The summary: what was traced, by what, why by that, and what was lost.

use super::backend::{Backend, Offer};
use super::functions::{Entry, Matched};
use super::tracefs::Folder;
use crate::error::ProbeError;
use serde::Serialize;
use std::fs;

/// Loss and use of one processor's buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its number.
    pub cpu: u32,
    /// Events that were overwritten before they were read.
    pub overrun: u64,
    /// Events that did not find room.
    pub dropped: u64,
    /// Events lost as an interrupt came while another was written.
    pub commit_overrun: u64,
    /// Events that were read.
    pub read: u64,
}

/// One run of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Whether the tracer was on.
    pub traced: bool,
    /// Nanoseconds that it took.
    pub wall_ns: u64,
    /// Processor time of it, and of what it started and waited for.
    pub cpu_ns: u64,
}

/// Everything about one trace.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Of this program.
    pub version: &'static str,
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -m`, whose numbers of system calls these are.
    pub machine: String,
    /// Modules that are on, as the kernel lists them.
    pub lsm: String,
    /// What was used.
    pub backend: Backend,
    /// Why that.
    pub reason: String,
    /// What this kernel offers.
    pub offers: Vec<Offer>,
    /// Name of the instance; none for the top folder.
    pub instance: Option<String>,
    /// What each pattern chose.
    pub matched: Vec<Matched>,
    /// Every hook of this kernel, whether it is traced or not.
    pub hooks: Vec<Entry>,
    /// Functions that are traced.
    pub functions: Vec<String>,
    /// Functions that the kernel did not take.
    pub refused: Vec<String>,
    /// The trace's clock.
    pub clock: String,
    /// Cycles of the time stamp counter in a second, where it is the clock.
    pub cycles_per_s: Option<f64>,
    /// Whether system calls are recorded.
    pub syscalls: bool,
    /// Whether interruptions are recorded.
    pub interruptions: bool,
    /// Events of the kernel that tell of them.
    pub interruption_events: Vec<String>,
    /// Calls of each function of the calibration.
    pub calibration_calls: u32,
    /// Each processor's buffer.
    pub cpus: Vec<Cpu>,
    /// Size of a buffer's parts, where the kernel says it.
    pub subbuffer_kib: Option<u64>,
    /// Returns that had no room (kretprobes).
    pub missed: u64,
    /// Bytes of the trace.
    pub trace_bytes: u64,
    /// Nanoseconds of the command while traced; of the whole trace without one.
    pub wall_ns: u64,
    /// Its runs in pairs, without the tracer and with it, as they came.
    pub runs: Vec<Run>,
    /// Exit code of the command.
    pub exit_code: Option<u8>,
    /// Whether it ended early as it was as long as it may be.
    pub full: bool,
    /// Whether a signal ended the trace early.
    pub stopped: bool,
}

/// A value as one JSON line.
pub fn line(value: &impl Serialize) -> Result<String, ProbeError> {
    let mut text = serde_json::to_string(value)
        .map_err(|error| ProbeError::Failed(format!("cannot write the summary: {error}")))?;
    text.push('\n');
    Ok(text)
}

/// `uname -r`.
pub fn kernel_release() -> String {
    one_line("/proc/sys/kernel/osrelease")
}

/// Security modules that are on; empty where securityfs is not mounted.
pub fn lsm() -> String {
    one_line("/sys/kernel/security/lsm")
}

fn one_line(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// The use of every processor's buffer in a folder.
pub fn cpus(folder: &Folder) -> Vec<Cpu> {
    let per_cpu = folder.join("per_cpu");
    let mut found: Vec<_> = fs::read_dir(per_cpu.path())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let cpu = entry
                .file_name()
                .to_str()?
                .strip_prefix("cpu")?
                .parse()
                .ok()?;
            let text = Folder::new(entry.path()).read("stats").ok()?;
            Some(Cpu {
                cpu,
                ..stats(&text)
            })
        })
        .collect();
    found.sort_by_key(|each| each.cpu);
    found
}

fn stats(text: &str) -> Cpu {
    let value = |name: &str| {
        text.lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .strip_prefix(": ")?
                    .trim()
                    .parse()
                    .ok()
            })
            .unwrap_or_default()
    };
    Cpu {
        cpu: 0,
        overrun: value("overrun"),
        dropped: value("dropped events"),
        commit_overrun: value("commit overrun"),
        read: value("read events"),
    }
}

/// Returns that kretprobes missed, over all our events.
pub fn missed(top: &Folder) -> u64 {
    let text = top.read("kprobe_profile").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            // The name of an event without its group; ours end in `__in` and `__out`.
            let ours = words.next()?.ends_with("__out");
            ours.then(|| words.last()?.parse::<u64>().ok())?
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_from_a_buffer_s_statistics() {
        let text = "entries: 129\noverrun: 7\ncommit overrun: 1\nbytes: 6480\n\
                    oldest event ts:  2.1\nnow ts:  2.5\ndropped events: 3\nread events: 129\n";
        assert_eq!(
            stats(text),
            Cpu {
                cpu: 0,
                overrun: 7,
                dropped: 3,
                commit_overrun: 1,
                read: 129
            }
        );
        assert_eq!(stats(""), Cpu::default());
    }
}
