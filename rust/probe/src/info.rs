//! `excise-probe info`: what this kernel and machine offer to the probe, each by trying it.

use crate::error::{errno_name, ProbeError};
use crate::sys::clock::Clock;
use crate::sys::perf::{Begin, Counter, Event, Scope};
use crate::sys::{calls, landlock, seccomp};
use serde::Serialize;
use std::hint::black_box;

#[derive(Serialize)]
struct Info {
    version: &'static str,
    kernel_release: String,
    machine: String,
    cpus_online: usize,
    page_size_bytes: usize,
    landlock_abi: u32,
    seccomp_filter: bool,
    seccomp_max_rules: u32,
    bpf_jit: Option<u32>,
    clocks: Vec<ClockFacts>,
    counters: Counters,
}

#[derive(Serialize)]
struct ClockFacts {
    name: &'static str,
    declared_resolution_ns: u64,
    measured_resolution_ns: u64,
}

#[derive(Serialize)]
struct Counters {
    perf_event_paranoid: Option<i32>,
    /// Which counts the launcher reports: `user+kernel`, `user`, or null for none.
    instructions_scope: Option<&'static str>,
    cycles_scope: Option<&'static str>,
    attempts: Vec<Attempt>,
}

#[derive(Serialize)]
struct Attempt {
    event: &'static str,
    scope: &'static str,
    works: bool,
    errno: Option<String>,
}

/// One JSON line.
pub fn main() -> Result<String, ProbeError> {
    let attempts = attempt_all();
    let scope_of = |event: &str| {
        attempts
            .iter()
            .find(|attempt| attempt.event == event && attempt.works)
            .map(|attempt| attempt.scope)
    };
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        kernel_release: text_of("/proc/sys/kernel/osrelease").unwrap_or_default(),
        machine: calls::machine(),
        cpus_online: calls::online_cpus(),
        page_size_bytes: calls::page_size(),
        landlock_abi: landlock::abi(),
        seccomp_filter: seccomp::available(),
        seccomp_max_rules: seccomp::MAX_RULES,
        bpf_jit: number_of("/proc/sys/net/core/bpf_jit_enable"),
        clocks: Clock::ALL
            .into_iter()
            .map(|clock| ClockFacts {
                name: clock.name(),
                declared_resolution_ns: clock.declared_resolution_ns(),
                measured_resolution_ns: clock.measured_resolution_ns(),
            })
            .collect(),
        counters: Counters {
            perf_event_paranoid: number_of("/proc/sys/kernel/perf_event_paranoid"),
            instructions_scope: scope_of("instructions"),
            cycles_scope: scope_of("cycles"),
            attempts,
        },
    };
    serde_json::to_string(&info)
        .map_err(|error| ProbeError::Failed(format!("cannot write the facts: {error}")))
}

fn attempt_all() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for (event, name) in [
        (Event::Instructions, "instructions"),
        (Event::Cycles, "cycles"),
    ] {
        for (scope, scope_name) in [(Scope::UserAndKernel, "user+kernel"), (Scope::User, "user")] {
            let errno = attempt(event, scope).err();
            attempts.push(Attempt {
                event: name,
                scope: scope_name,
                works: errno.is_none(),
                errno,
            });
        }
    }
    attempts
}

/// Count some work; a counter that opens but stays at zero does not work.
fn attempt(event: Event, scope: Scope) -> Result<(), String> {
    let name = |error: std::io::Error| error.raw_os_error().map_or(error.to_string(), errno_name);
    let counter = Counter::open(event, scope, Begin::Now).map_err(name)?;
    let mut sum = 0_u64;
    for number in 0..100_000_u64 {
        sum = black_box(sum.wrapping_add(number));
    }
    match counter.read().map_err(name)?.value {
        0 => Err("counts nothing".to_owned()),
        _ => Ok(()),
    }
}

fn text_of(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn number_of<T: std::str::FromStr>(path: &str) -> Option<T> {
    text_of(path)?.parse().ok()
}
