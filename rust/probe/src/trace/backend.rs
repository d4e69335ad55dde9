//! Ways to trace functions: which of them this kernel has, and how each is set up.

use super::bpf;
use super::functions::Available;
use super::state::{Setting, State};
use super::tracefs::Folder;
use crate::error::ProbeError;
use serde::Serialize;
use std::collections::BTreeSet;

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The tracer `function_graph`: durations and nesting.
    FunctionGraph,
    /// Events at entry and return through fprobe.
    Fprobe,
    /// Events at entry and return through kprobe and kretprobe.
    Kprobe,
    /// The program bpftrace: durations, summed up in the kernel.
    Bpftrace,
    /// The tracer `function`: counts and callers, no durations.
    Function,
}

impl Backend {
    /// All of them, in the order in which they are preferred.
    pub const ALL: [Backend; 5] = [
        Backend::FunctionGraph,
        Backend::Fprobe,
        Backend::Kprobe,
        Backend::Bpftrace,
        Backend::Function,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Backend::FunctionGraph => "function_graph",
            Backend::Fprobe => "fprobe",
            Backend::Kprobe => "kprobe",
            Backend::Bpftrace => "bpftrace",
            Backend::Function => "function",
        }
    }

    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// Whether it is a tracer; else it is made of events.
    pub fn is_tracer(self) -> bool {
        matches!(self, Backend::FunctionGraph | Backend::Function)
    }
}

/// Whether a back-end can be used, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// Which.
    pub backend: Backend,
    /// Whether it can be used at all.
    pub offered: bool,
    /// Whether it works in an instance of our own.
    pub instance: bool,
    /// What the kernel has or lacks for it.
    pub why: String,
}

/// What this kernel offers, asked of its top and of an instance.
pub fn offers(top: &Folder, instance: &Folder) -> Vec<Offer> {
    let has = |file: &str| top.has(file);
    let readme = top.read("README").unwrap_or_default();
    let word = |folder: &Folder, name: &str| {
        let tracers = folder.setting("available_tracers").unwrap_or_default();
        tracers.split_whitespace().any(|tracer| tracer == name)
    };
    let graph_instance = word(instance, "function_graph"); // since Linux 6.11
    Backend::ALL
        .into_iter()
        .map(|backend| {
            let (offered, instance, why) = match backend {
                Backend::FunctionGraph if !word(top, "function_graph") => {
                    (false, false, "the kernel has no tracer function_graph")
                }
                Backend::FunctionGraph if graph_instance => (
                    true,
                    true,
                    "the kernel has the tracer function_graph, in instances too",
                ),
                Backend::FunctionGraph => (
                    true,
                    false,
                    "the kernel has the tracer function_graph at the top only",
                ),
                Backend::Fprobe if has("dynamic_events") && readme.contains("f[:[<group>/]") => {
                    (true, true, "the kernel has fprobe events")
                }
                Backend::Fprobe => (false, false, "the kernel has no fprobe events"),
                Backend::Kprobe if has("kprobe_events") => {
                    (true, true, "the kernel has kprobe events")
                }
                Backend::Kprobe => (false, false, "the kernel has no kprobe events"),
                Backend::Bpftrace => {
                    let (offered, why) = bpf::offered();
                    // BPF programs are nobody's instance, and end with who attached them.
                    (offered, offered, why)
                }
                Backend::Function if word(top, "function") => (
                    true,
                    true,
                    "the kernel has the tracer function, which counts only",
                ),
                Backend::Function => (false, false, "the kernel has no tracer function"),
            };
            Offer {
                backend,
                offered,
                instance,
                why: why.to_owned(),
            }
        })
        .collect()
}

/// Choose: the forced one, or the first that works in an instance of our own and gives durations.
pub fn choose(offers: &[Offer], forced: Option<Backend>) -> Result<(Offer, String), ProbeError> {
    if let Some(backend) = forced {
        return match offers.iter().find(|offer| offer.backend == backend) {
            Some(offer) if offer.offered => {
                Ok((offer.clone(), format!("asked for; {}", offer.why)))
            }
            Some(offer) => Err(ProbeError::Unsupported(format!(
                "--backend {}: {}",
                backend.name(),
                offer.why
            ))),
            None => Err(ProbeError::Usage(backend.name().to_owned())),
        };
    }
    let passed: Vec<_> = offers
        .iter()
        .take_while(|offer| !(offer.offered && offer.instance))
        .map(|offer| offer.why.as_str())
        .collect();
    match offers.get(passed.len()) {
        Some(offer) => {
            let why = [offer.why.as_str()].into_iter().chain(passed.iter().copied());
            let reason = why.collect::<Vec<_>>().join("; ");
            Ok((offer.clone(), reason))
        }
        None => Err(ProbeError::Unsupported(
            "this kernel has no way to trace functions: no tracer function_graph or function, no kprobe events"
                .to_owned(),
        )),
    }
}

/// Files of the top folder that `function_graph` at the top changes, beside `INTERRUPTIONS`.
const TOP_SETTINGS: &[&str] = &[
    "tracing_on",
    "trace_clock",
    "set_ftrace_filter",
    "set_ftrace_pid",
    "set_event_pid",
    "options/funcgraph-proc",
    "options/funcgraph-tail",
    "options/funcgraph-abstime",
    "options/function-fork",
    "options/event-fork",
    "events/raw_syscalls/sys_enter/enable",
    "events/raw_syscalls/sys_exit/enable",
    "buffer_size_kb",
    "current_tracer",
];

/// Options of `function_graph` are the tracer's, whichever instance they are set in.
const SHARED_SETTINGS: &[&str] = &[
    "options/funcgraph-proc",
    "options/funcgraph-tail",
    "options/funcgraph-abstime",
];

/// Refuse where a tracer is in use, anywhere; note down what will be changed at the top.
pub fn refuse_tracers_in_use(top: &Folder, state: &mut State) -> Result<(), ProbeError> {
    for (name, folder) in folders(top) {
        let tracer = folder.setting("current_tracer").unwrap_or_default();
        if tracer != "nop" && !tracer.is_empty() {
            return Err(in_use(&format!("the tracer {tracer} is on in {name}")));
        }
    }
    let files = match state.instance {
        Some(_) => [SHARED_SETTINGS, &[]],
        None => [INTERRUPTIONS, TOP_SETTINGS],
    };
    state.settings.clear();
    for file in files.into_iter().flatten().filter(|file| top.has(file)) {
        let text = match *file {
            "trace_clock" => selected(&top.read(file)?),
            _ => top.read(file)?,
        };
        state.settings.push(Setting {
            file: (*file).to_owned(),
            text,
        });
    }
    if state.instance.is_some() {
        return Ok(());
    }
    for file in [
        "set_event",
        "set_ftrace_notrace",
        "set_graph_function",
        "set_graph_notrace",
    ] {
        let text = top.setting(file).unwrap_or_default();
        if !text.is_empty() && !text.starts_with('#') {
            return Err(in_use(&format!("{file} of tracefs is set")));
        }
    }
    // Records of somebody else would be lost among ours.
    let kept = top.read("trace")?;
    if kept
        .lines()
        .any(|line| !line.starts_with('#') && !line.trim().is_empty())
    {
        return Err(in_use("the top buffer of tracefs holds records"));
    }
    Ok(())
}

fn in_use(what: &str) -> ProbeError {
    ProbeError::Unsupported(format!(
        "{what}: somebody traces, and is left undisturbed. Trace when that has ended"
    ))
}

/// The word in brackets, as `trace_clock` marks the one that is chosen.
fn selected(text: &str) -> String {
    text.split(['[', ']']).nth(1).unwrap_or_default().to_owned()
}

fn folders(top: &Folder) -> Vec<(String, Folder)> {
    let mut found = vec![("the top of tracefs".to_owned(), top.clone())];
    let instances = top.join("instances");
    for entry in std::fs::read_dir(instances.path())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = format!("the instance {}", entry.file_name().to_string_lossy());
        found.push((name, Folder::new(entry.path())));
    }
    found
}

/// Events that tell of what comes between a function's start and its end.
const INTERRUPTIONS: &[&str] = &[
    "events/sched/sched_switch/enable",
    "events/irq/irq_handler_entry/enable",
    "events/irq/irq_handler_exit/enable",
    "events/irq/softirq_entry/enable",
    "events/irq/softirq_exit/enable",
    "events/irq_vectors/local_timer_entry/enable",
    "events/irq_vectors/local_timer_exit/enable",
    "events/irq_vectors/reschedule_entry/enable",
    "events/irq_vectors/reschedule_exit/enable",
    "events/irq_vectors/call_function_entry/enable",
    "events/irq_vectors/call_function_exit/enable",
    "events/irq_vectors/call_function_single_entry/enable",
    "events/irq_vectors/call_function_single_exit/enable",
    "events/irq_vectors/irq_work_entry/enable",
    "events/irq_vectors/irq_work_exit/enable",
    "events/ipi/ipi_entry/enable", // of arm64
    "events/ipi/ipi_exit/enable",
];

/// What else is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Enter and exit of system calls.
    pub syscalls: bool,
    /// Interrupts and switches to other tasks.
    pub interruptions: bool,
    /// When those were.
    pub timed: bool,
}

/// Set a folder up for a back-end: clock, options and events, but no functions and no processes yet.
pub fn prepare(folder: &Folder, backend: Backend, beside: Beside) -> Result<String, ProbeError> {
    folder.write("tracing_on", "0")?;
    for option in ["options/function-fork", "options/event-fork"] {
        folder.switch(option, true)?;
    }
    if backend == Backend::FunctionGraph {
        folder.switch("options/funcgraph-proc", true)?;
        folder.switch("options/funcgraph-tail", true)?;
        // Without it events among the functions have no time.
        folder.switch("options/funcgraph-abstime", beside.timed)?;
    }
    let mut clock = selected(&folder.read("trace_clock")?);
    if !backend.is_tracer() && crate::sys::hold::cycles().is_some() {
        // The text of other clocks ends at microseconds; this one is printed as a whole number.
        folder.write("trace_clock", "x86-tsc")?;
        clock = "x86-tsc".to_owned();
    }
    switch_beside(folder, beside, true)?;
    Ok(clock)
}

/// Switch the events that are recorded beside the functions.
fn switch_beside(folder: &Folder, beside: Beside, on: bool) -> Result<(), ProbeError> {
    if beside.syscalls {
        for event in ["sys_enter", "sys_exit"] {
            folder.switch(&format!("events/raw_syscalls/{event}/enable"), on)?;
        }
    }
    if beside.interruptions {
        for event in INTERRUPTIONS {
            folder.switch(event, on)?;
        }
    }
    Ok(())
}

/// The events of a kernel that tell of interruptions, by their names.
pub fn interruption_events(top: &Folder) -> Vec<String> {
    let names = INTERRUPTIONS.iter().filter(|file| top.has(file));
    names
        .filter_map(|file| file.split('/').nth(2))
        .map(str::to_owned)
        .collect()
}

/// Take everything off the functions that a back-end was set up for, or put it on again: a run
/// meanwhile costs what it costs without a tracer.
pub fn switch(state: &State, backend: Backend, beside: Beside, on: bool) -> Result<(), ProbeError> {
    let folder = state.folder();
    if backend.is_tracer() {
        folder.write("current_tracer", if on { backend.name() } else { "nop" })?;
    } else {
        let enable = format!("events/{}/enable", state.group);
        folder.write(&enable, if on { "1" } else { "0" })?;
    }
    if !on && backend == Backend::Fprobe {
        // An fprobe that is disabled is still called; its events are made anew afterwards.
        clear_functions(state, backend)?;
    }
    switch_beside(&folder, beside, on)
}

/// Choose what a tracer traces, or make events for it; names that the kernel refused.
pub fn set_functions(
    state: &State,
    backend: Backend,
    available: &Available,
    names: &[String],
) -> Result<Vec<String>, ProbeError> {
    let folder = state.folder();
    if backend.is_tracer() {
        let refused = set_filter(&folder, available, names)?;
        if folder.setting("current_tracer")? != backend.name() {
            folder.write("current_tracer", backend.name())?;
        }
        return Ok(refused);
    }
    let top = Folder::new(&state.tracefs);
    let (file, kind) = match backend {
        Backend::Fprobe => ("dynamic_events", ["f", "f"]),
        _ => ("kprobe_events", ["p", "r"]),
    };
    let suffix = match backend {
        Backend::Fprobe => "%return",
        _ => "",
    };
    let mut refused = Vec::new();
    for name in names {
        let event = event_name(name);
        let group = &state.group;
        let entry = format!("{}:{group}/{event}__in {name}", kind[0]);
        let exit = format!("{}:{group}/{event}__out {name}{suffix}", kind[1]);
        let wrong = top.write_words(file, [entry.as_str(), exit.as_str()], true)?;
        if !wrong.is_empty() {
            refused.push(name.clone());
        }
    }
    if refused.len() == names.len() {
        return Err(ProbeError::Unsupported(format!(
            "the kernel took none of the {} functions as {} events",
            names.len(),
            backend.name()
        )));
    }
    folder.write(&format!("events/{}/enable", state.group), "1")?;
    Ok(refused)
}

/// Set a tracer's filter by places, and by names where that did not choose the same (before 5.0).
fn set_filter(
    folder: &Folder,
    available: &Available,
    names: &[String],
) -> Result<Vec<String>, ProbeError> {
    let file = "set_ftrace_filter";
    let wanted: BTreeSet<_> = names.iter().map(String::as_str).collect();
    let places: Vec<String> = names
        .iter()
        .flat_map(|name| available.places(name))
        .map(usize::to_string)
        .collect();
    let refused = folder.write_words(file, places.iter().map(String::as_str), false)?;
    let text = folder.read(file)?;
    let chosen: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    if refused.is_empty() && chosen == wanted {
        return Ok(Vec::new());
    }
    folder.write_words(file, wanted, false)
}

/// Take events away again, so that others can be made; a tracer's filter is just replaced.
pub fn clear_functions(state: &State, backend: Backend) -> Result<(), ProbeError> {
    let folder = state.folder();
    if backend.is_tracer() {
        return Ok(());
    }
    let enable = format!("events/{}/enable", state.group);
    if folder.has(&enable) {
        folder.write(&enable, "0")?;
    }
    let events_only = State {
        instance: None,
        settings: Vec::new(),
        mounted: false,
        ..state.clone()
    };
    events_only.undo()
}

/// A name that an event may have.
fn event_name(function: &str) -> String {
    let mut name: String = function
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '_'
            }
        })
        .collect();
    name.truncate(56); // MAX_EVENT_NAME_LEN is 64
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(backend: Backend, offered: bool, instance: bool) -> Offer {
        Offer {
            backend,
            offered,
            instance,
            why: format!("why {}", backend.name()),
        }
    }

    #[test]
    fn the_first_that_works_in_an_instance_is_chosen_and_the_others_say_why_not() {
        let offers = [
            offer(Backend::FunctionGraph, true, false),
            offer(Backend::Fprobe, false, false),
            offer(Backend::Kprobe, true, true),
            offer(Backend::Function, true, true),
        ];
        let (chosen, reason) = choose(&offers, None).unwrap();
        assert_eq!(chosen.backend, Backend::Kprobe);
        assert_eq!(reason, "why kprobe; why function_graph; why fprobe");
        let (chosen, _) = choose(&offers, Some(Backend::FunctionGraph)).unwrap();
        assert!(!chosen.instance);
        assert!(choose(&offers, Some(Backend::Fprobe))
            .unwrap_err()
            .to_string()
            .contains("why fprobe"));
    }

    #[test]
    fn a_kernel_without_any_is_an_error() {
        let none = Backend::ALL.map(|backend| offer(backend, false, false));
        assert_eq!(choose(&none, None).unwrap_err().exit_code(), 4);
    }

    #[test]
    fn an_event_s_name_has_letters_digits_and_lines_only() {
        assert_eq!(event_name("avc_has_perm.part.0"), "avc_has_perm_part_0");
        assert_eq!(event_name(&"x".repeat(90)).len(), 56);
    }

    #[test]
    fn the_chosen_clock_is_in_brackets() {
        assert_eq!(selected("local [global] counter\n"), "global");
    }
}
