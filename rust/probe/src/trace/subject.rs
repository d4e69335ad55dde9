//! Who is traced: a command that is held until tracing is on, processes that run, or all.

use super::options::Subject;
use super::tracefs::Folder;
use crate::error::{describe, ProbeError};
use crate::launch::find_program;
use crate::sys::process::{self, Ending, Pid, Usage};
use crate::sys::{fd, hold};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A command that has been started, and stopped itself before it became its program.
pub struct Held {
    /// Its process.
    pub pid: Pid,
    /// Becomes readable at its end.
    pub pidfd: OwnedFd,
}

/// What a command prints, kept until it is wanted.
pub struct Printed {
    output: File,
    errors: File,
}

impl Printed {
    fn new() -> io::Result<Self> {
        Ok(Self {
            output: fd::memory_file(c"output")?.into(),
            errors: fd::memory_file(c"errors")?.into(),
        })
    }

    /// Print it where the command would have.
    pub fn print(mut self) -> io::Result<()> {
        self.output.rewind()?;
        io::copy(&mut self.output, &mut io::stdout())?;
        self.errors.rewind()?;
        io::copy(&mut self.errors, &mut io::stderr())?;
        Ok(())
    }
}

impl Held {
    /// Start a command and wait until it has stopped itself; what it prints is kept.
    pub fn start_kept(command: &[OsString]) -> Result<(Self, Printed), ProbeError> {
        let failed = |error| ProbeError::step("memfd_create", &error);
        let printed = Printed::new().map_err(failed)?;
        let output = printed.output.try_clone().map_err(failed)?;
        let errors = printed.errors.try_clone().map_err(failed)?;
        let held = Self::begin(command, Stdio::from(output), Stdio::from(errors))?;
        Ok((held, printed))
    }

    /// Start a command and wait until it has stopped itself.
    pub fn start(command: &[OsString]) -> Result<Self, ProbeError> {
        Self::begin(command, Stdio::inherit(), Stdio::inherit())
    }

    fn begin(command: &[OsString], output: Stdio, errors: Stdio) -> Result<Self, ProbeError> {
        let own = std::env::current_exe()
            .map_err(|error| ProbeError::step("readlink /proc/self/exe", &error))?;
        let failed = |error: io::Error| ProbeError::step("start of the command", &error);
        let (name, arguments) = command
            .split_first()
            .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        // Here, so that the search is no part of what is traced.
        let path = std::env::var("PATH").unwrap_or_else(|_| DEFAULT_PATH.to_owned());
        let program = find_program(&name.to_string_lossy(), &path, None).map_err(|error| {
            ProbeError::Usage(format!("{}: {}", name.to_string_lossy(), describe(&error)))
        })?;
        // Its signal mask is emptied by std.
        let child = Command::new(own)
            .arg("held")
            .arg("--")
            .arg(OsStr::from_bytes(program.to_bytes()))
            .args(arguments)
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        let pid =
            Pid::try_from(child.id()).map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let pidfd = process::open_pidfd(pid).map_err(failed)?;
        match hold::wait_stopped(pid).map_err(failed)? {
            None => Ok(Self { pid, pidfd }),
            Some(ending) => Err(ProbeError::Failed(format!(
                "the command ended before it was traced: {ending:?}"
            ))),
        }
    }

    /// Let it become its program.
    pub fn resume(&self) -> Result<(), ProbeError> {
        hold::resume(self.pid).map_err(|error| ProbeError::step("SIGCONT", &error))
    }

    /// Wait for its end, with its use of the processor.
    pub fn wait(&self) -> Result<(Ending, Usage), ProbeError> {
        process::wait(self.pid).map_err(|error| ProbeError::step("wait4", &error))
    }
}

/// Exit code of an ending, as shells count it.
pub fn exit_code(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(code) => (code & 0xff) as u8,
        Ending::Signalled(signal) => 128_u8.saturating_add(signal as u8),
    }
}

/// Choose whose functions and events are recorded, in a folder of tracefs.
pub fn set_processes(folder: &Folder, threads: &[Pid]) -> Result<(), ProbeError> {
    let words: Vec<String> = threads.iter().map(Pid::to_string).collect();
    for file in ["set_ftrace_pid", "set_event_pid"] {
        if folder.has(file) {
            folder.write_words(file, words.iter().map(String::as_str), false)?;
        }
    }
    Ok(())
}

/// Record everybody but this process.
pub fn set_all_but_us(folder: &Folder) -> Result<(), ProbeError> {
    let us = process::id().to_string();
    for file in ["set_ftrace_pid", "set_event_pid"] {
        if folder.has(file) {
            folder.write(file, "")?;
        }
    }
    for file in ["set_ftrace_notrace_pid", "set_event_notrace_pid"] {
        if folder.has(file) {
            folder.write(file, &us)?;
        }
    }
    Ok(())
}

/// Threads of the processes to be traced; those that are gone are an error.
pub fn threads(subject: &Subject, held: Option<&Held>) -> Result<Vec<Pid>, ProbeError> {
    let Subject::Processes(wanted) = subject else {
        return Ok(held.iter().map(|held| held.pid).collect());
    };
    let mut found = Vec::new();
    for id in wanted {
        let path = format!("/proc/{id}/task");
        let entries = fs::read_dir(&path)
            .map_err(|error| ProbeError::Usage(format!("--pid {id}: {}", describe(&error))))?;
        found.extend(
            entries
                .flatten()
                .filter_map(|entry| entry.file_name().to_str()?.parse::<Pid>().ok()),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_counted_as_shells_do() {
        assert_eq!(exit_code(Ending::Exited(3)), 3);
        assert_eq!(exit_code(Ending::Signalled(15)), 143);
    }

    #[test]
    fn all_threads_of_a_process_are_found_and_one_that_is_gone_is_named() {
        let own = process::id() as u32;
        let found = threads(&Subject::Processes(vec![own]), None).unwrap();
        assert!(found.contains(&process::id()));
        let gone = threads(&Subject::Processes(vec![u32::MAX]), None).unwrap_err();
        assert!(gone.to_string().contains("--pid 4294967295"));
    }
}
