//! `excise-probe trace`: kernel functions, traced through tracefs, which is left as it was found.

mod backend;
mod bpf;
mod bpf_session;
#[allow(dead_code)] // The program inside lab guests asks for a function's id.
mod btf;
mod call_sites;
mod elf;
mod functions;
mod options;
mod report;
mod session;
mod state;
mod subject;
mod tracefs;

use options::HELP;
pub use options::{parse, Asked};

use crate::error::ProbeError;
use crate::sys::hold;
use call_sites::Caller;
use functions::{Available, Hook};
use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;
use tracefs::Folder;

/// What to print, and the exit code.
pub type Answer = (Option<String>, u8);

/// Do what is asked for.
pub fn main(asked: Asked) -> Result<Answer, ProbeError> {
    match asked {
        Asked::Help => Ok((Some(HELP.to_owned()), 0)),
        Asked::Catalogue { kernel: None } => Ok((Some(catalogue()?), 0)),
        Asked::Catalogue { kernel: Some(path) } => Ok((Some(catalogue_of(&path)?), 0)),
        Asked::Held(command) => held(&command),
        Asked::Restore { states } => {
            let restored = state::restore(&states)?;
            Ok((Some(format!("{{\"restored\":{restored}}}\n")), 0))
        }
        Asked::Trace(options) => match (session::run(&options), &options.messages) {
            (Err(error), Some(path)) => std::fs::write(path, format!("{error}\n"))
                .map(|()| (None, error.exit_code()))
                .map_err(|_| error),
            (outcome, _) => outcome,
        },
    }
}

/// This kernel's hooks, from its BTF; none where it has no BTF.
fn kernel_hooks(available: &Available) -> Vec<Hook> {
    let names = std::fs::read("/sys/kernel/btf/vmlinux")
        .ok()
        .and_then(|data| btf::hooks(&data))
        .unwrap_or_default();
    functions::catalogue(&names, available)
}

#[derive(Serialize)]
struct Catalogue {
    kernel_release: String,
    source: &'static str,
    /// Whose text names the callers, or why they are not known.
    call_sites: String,
    hooks: Vec<Listed>,
    module_functions: Vec<functions::Matched>,
}

/// A hook, and who calls it.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    entry: functions::Entry,
    /// None where that is not known.
    callers: Option<Vec<Caller>>,
}

fn listed(
    hooks: Vec<functions::Entry>,
    text: &str,
    search: impl Fn(&[&str]) -> call_sites::Found,
) -> (Vec<Listed>, String) {
    let names = hooks
        .iter()
        .filter_map(|entry| entry.hook.function.as_deref());
    let found = search(&names.collect::<Vec<_>>());
    let callers = |entry: &functions::Entry| {
        let callers = found.as_ref().ok()?;
        let function = entry.hook.function.as_ref()?;
        Some(callers.get(function).cloned().unwrap_or_default())
    };
    let rows = hooks
        .into_iter()
        .map(|entry| Listed {
            callers: callers(&entry),
            entry,
        })
        .collect();
    match found {
        Ok(_) => (rows, text.to_owned()),
        Err(reason) => (rows, format!("not known: {reason}")),
    }
}

/// The catalogue of a kernel's file.
fn catalogue_of(path: &Path) -> Result<String, ProbeError> {
    let failed = |reason: String| ProbeError::Usage(format!("--kernel {reason}"));
    let kernel = elf::Elf::open(path).map_err(failed)?;
    let symbols = kernel.symbols().map_err(failed)?;
    let names: Vec<_> = symbols.iter().map(|symbol| symbol.name.as_str()).collect();
    let available = Available::of(&names.join("\n"));
    let btf = kernel.contents(".BTF").map_err(failed)?;
    let names = btf.and_then(|data| btf::hooks(&data)).unwrap_or_default();
    let entries = functions::entries(functions::catalogue(&names, &available), &available);
    let (hooks, call_sites) = listed(entries, "the kernel's file", |functions| {
        call_sites::of_file(&kernel, functions)
    });
    report::line(&Catalogue {
        kernel_release: path.display().to_string(),
        source: match names.is_empty() {
            true => "its symbols (it has no BTF)",
            false => "its BTF and symbols",
        },
        call_sites,
        hooks,
        module_functions: Vec::new(),
    })
}

/// The catalogue as one JSON line.
fn catalogue() -> Result<String, ProbeError> {
    let found = tracefs::find()?;
    tracefs::mount(&found)?;
    let available = Available::read(&found.top);
    if found.mounted {
        let _ = tracefs::unmount(found.top.path());
    }
    let available = available?;
    let hooks = kernel_hooks(&available);
    let module_functions = functions::MODULES
        .iter()
        .map(|(name, _)| functions::Matched {
            pattern: (*name).to_owned(),
            functions: functions::module_functions(name, &hooks, &available)
                .map_or(0, |names| names.len()),
        })
        .collect();
    let source = match hooks.is_empty() {
        true => "available_filter_functions (this kernel has no BTF)",
        false => "BTF, available_filter_functions",
    };
    let entries = functions::entries(hooks, &available);
    let (hooks, call_sites) = listed(entries, "/proc/kcore", call_sites::of_running);
    report::line(&Catalogue {
        kernel_release: report::kernel_release(),
        source,
        call_sites,
        hooks,
        module_functions,
    })
}

/// Stop until resumed, then become the command.
fn held(command: &[OsString]) -> Result<Answer, ProbeError> {
    hold::stop_self().map_err(|error| ProbeError::step("SIGSTOP", &error))?;
    let options = crate::exec::Options {
        directory: None,
        wanted: crate::mechanism::Wanted::default(),
        command: command.to_vec(),
    };
    match crate::exec::main(&options)? {}
}

/// The folder of an instance, made.
fn make_instance(folder: &Folder) -> Result<(), ProbeError> {
    std::fs::create_dir(folder.path()).map_err(|error| tracefs::refused(folder.path(), &error))
}
