//! `excise-probe launch`: run commands one after the other, measured, each journaled before the next.

mod counters;
mod input;
mod measure;
mod prepare;
mod report;
mod request;

pub use prepare::find_program;
use prepare::Programs;

use crate::error::{describe, ProbeError};
use crate::sys::fd;
use crate::sys::memory::{self, Peak};
use crate::sys::process;
use crate::sys::spawn::Stack;
use counters::{Counters, Pair};
use input::{Input, Line};
use measure::{Halt, Measured, Outcome, Watch};
use report::LineBuilder;
use request::{Exec, Output, Request, Run};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How the launcher is set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// An inherited descriptor, open for appending, that gets each measured line.
    pub journal: Option<RawFd>,
    /// Longest time between two waits for the journal to be on disk; zero: at every line.
    pub sync_interval: Option<Duration>,
    /// Count page faults and CPU time in place of instructions and cycles.
    pub counter_self_test: bool,
}

/// Most bytes of a probe's line.
const PROBE_BYTES: usize = 1 << 20;
const EXIT_STOPPED_TWICE: u8 = 130;

/// Serve requests until the input ends or something stops us; the answer is the exit code.
pub fn main(options: Options) -> Result<u8, ProbeError> {
    let own = |error: io::Error| ProbeError::step("launch", &error);
    let journal = options.journal.map(adopt_journal).transpose()?;
    fd::close_inherited_on_exec();
    process::own_session().map_err(own)?;
    let watch = Watch::new().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => ProbeError::Unsupported(
            "this kernel has no pidfd_open (Linux 5.3), by which children are waited for"
                .to_owned(),
        ),
        _ => own(error),
    })?;
    let mut launcher = Launcher::new(options, journal, watch).map_err(own)?;
    memory::shrink().map_err(own)?;
    match launcher.serve() {
        Ok(()) | Err(Stop::Halt(Halt::ParentGone)) => Ok(0),
        Err(Stop::Halt(Halt::StoppedTwice)) => Ok(EXIT_STOPPED_TWICE),
        Err(Stop::Halt(Halt::Broken(error))) => Err(own(error)),
        Err(Stop::Malformed(reason)) => {
            launcher.complain(&reason);
            Ok(2)
        }
        Err(Stop::Journal(error)) => {
            let reason = format!("journal: {}", describe(&error));
            launcher.complain(&reason);
            Ok(1)
        }
    }
}

fn adopt_journal(number: RawFd) -> Result<OwnedFd, ProbeError> {
    let wrong = |why: &str| ProbeError::Usage(format!("--journal-fd {number}: {why}"));
    if number <= 2 {
        return Err(wrong("expected a descriptor above the standard ones"));
    }
    let (journal, flags) = fd::adopt(number).map_err(|error| wrong(&describe(&error)))?;
    if flags & libc::O_APPEND == 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(wrong("is not open for appending (O_APPEND)"));
    }
    Ok(journal)
}

/// Why the service ends before the end of input.
enum Stop {
    Halt(Halt),
    Malformed(String),
    Journal(io::Error),
}

impl From<Halt> for Stop {
    fn from(halt: Halt) -> Self {
        Self::Halt(halt)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Halt(Halt::Broken(error))
    }
}

struct Launcher {
    options: Options,
    journal: Option<OwnedFd>,
    watch: Watch,
    stack: Stack,
    null: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    counters: Counters,
    environment: BTreeMap<String, String>,
    programs: Programs,
    line: LineBuilder,
    floor: Floor,
    synced: Instant,
}

const STDOUT_NAME: &CStr = c"excise-stdout";
const STDERR_NAME: &CStr = c"excise-stderr";

impl Launcher {
    fn new(options: Options, journal: Option<OwnedFd>, watch: Watch) -> io::Result<Self> {
        let null = fd::open(c"/dev/null", libc::O_RDWR, 0)?;
        Ok(Self {
            options,
            journal,
            watch,
            stack: Stack::new()?,
            stdout: fd::memory_file(STDOUT_NAME)?,
            stderr: fd::memory_file(STDERR_NAME)?,
            null,
            counters: Counters::default(),
            environment: BTreeMap::new(),
            programs: Programs::default(),
            line: LineBuilder::default(),
            floor: Floor::new()?,
            synced: Instant::now(),
        })
    }

    fn serve(&mut self) -> Result<(), Stop> {
        let mut input = Input::default();
        let stdin = io::stdin();
        // Asked to stop while a command ran: then nothing may be waited for any more.
        while !self.watch.stopping {
            let line = match input.next() {
                Line::Whole(line) => {
                    // Between two queued requests: has anything come up?
                    self.watch.wait_for(None, Some(0))?;
                    line
                }
                Line::End(Some(line)) => line,
                Line::End(None) => return Ok(()),
                Line::Incomplete => {
                    let awaited = self.watch.wait_for(Some(stdin.as_fd()), None)?;
                    if awaited.ready && !self.watch.stopping {
                        input.fill(&stdin).map_err(|error| match error.kind() {
                            io::ErrorKind::InvalidData => Stop::Malformed(error.to_string()),
                            _ => Stop::from(error),
                        })?;
                    }
                    Vec::new()
                }
            };
            if !self.watch.stopping && !line.trim_ascii().is_empty() {
                let request = Request::parse(&line).map_err(Stop::Malformed)?;
                self.answer(request)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, request: Request) -> Result<(), Stop> {
        match request {
            Request::Environment(environment) => {
                self.environment = environment.env;
                Ok(())
            }
            Request::Run(run) => self.run(&run),
            Request::Exec(exec) => self.exec(&exec),
        }
    }

    fn run(&mut self, run: &Run) -> Result<(), Stop> {
        let pair = match self.options.counter_self_test {
            true => Pair::SelfTest,
            false => Pair::Hardware,
        };
        self.counters.switch(run.counters, pair);
        let outcome = self.start(run)?;
        let counts = match outcome {
            Outcome::Ran(_) => self.counters.differences(),
            Outcome::NotExecuted { .. } => [None; 2],
        };
        self.line.begin(&run.head);
        match &outcome {
            Outcome::Ran(measured) => self.line.measured(measured),
            Outcome::NotExecuted { .. } => self.line.nothing_measured(),
        }
        if let Outcome::Ran(measured) = &outcome {
            let floor_bytes = self.floor.under(measured.usage.max_rss_bytes);
            self.line.optional("max_rss_floor_bytes", floor_bytes);
        }
        let names = match pair {
            Pair::Hardware => ["instructions", "cycles"],
            Pair::SelfTest => ["selftest_page_faults", "selftest_task_clock_ns"],
        };
        for (name, count) in names.into_iter().zip(counts) {
            self.line.optional(name, count);
        }
        self.finish_run(run, &outcome)?;
        let left = matches!(&outcome, Outcome::Ran(measured) if measured.left_processes);
        if left {
            self.line.boolean("left_processes", true);
        }
        self.publish()?;
        if left {
            // What outlived its run may still write: the next one gets files of its own.
            self.stdout = fd::memory_file(STDOUT_NAME)?;
            self.stderr = fd::memory_file(STDERR_NAME)?;
        }
        Ok(())
    }

    /// Start a measured command with its output where the request wants it.
    fn start(&mut self, run: &Run) -> Result<Outcome, Halt> {
        let prepared = match prepare::prepare(&run.command, &self.environment, &mut self.programs) {
            Ok(prepared) => prepared,
            Err(error) => {
                return Ok(Outcome::NotExecuted {
                    step: "execve",
                    error,
                })
            }
        };
        let file;
        let stdout = match &run.stdout {
            Output::Discard => self.null.as_fd(),
            Output::Probe => self.stdout.as_fd(),
            Output::File(path) => match create(path) {
                Ok(opened) => {
                    file = opened;
                    file.as_fd()
                }
                Err(error) => {
                    return Ok(Outcome::NotExecuted {
                        step: "stdout.file",
                        error,
                    })
                }
            },
        };
        let standard = [self.null.as_fd(), stdout, self.stderr.as_fd()];
        let timeout_ns = run.command.timeout_ns;
        measure::run(
            &prepared,
            standard,
            timeout_ns,
            &self.stack,
            &mut self.watch,
        )
    }

    /// Add the verdict and what the child wrote, and empty the memory files.
    fn finish_run(&mut self, run: &Run, outcome: &Outcome) -> io::Result<()> {
        let mut error = report::failure(outcome);
        let mut ok =
            matches!(outcome, Outcome::Ran(measured) if succeeded(measured, &run.command.expect));
        if run.stdout == Output::Probe {
            let bytes = fd::tail(&self.stdout, PROBE_BYTES)?;
            match report::one_object(&bytes) {
                Ok(object) => self.line.raw("probe", object.as_bytes()),
                Err(reason) => {
                    self.line.raw("probe", b"null");
                    if ok {
                        error = Some(format!("stdout: {reason}"));
                    }
                    ok = false;
                }
            }
            fd::truncate(&self.stdout)?;
        }
        self.line.boolean("ok", ok);
        if let Some(reason) = error {
            self.line.error(&reason);
        }
        if fd::length(&self.stderr)? > 0 {
            if !ok {
                let bytes = fd::tail(&self.stderr, report::STDERR_BYTES)?;
                self.line.text("stderr", &String::from_utf8_lossy(&bytes));
            }
            fd::truncate(&self.stderr)?;
        } else if !ok {
            self.line.text("stderr", "");
        }
        Ok(())
    }

    /// Journal the line, then echo it.
    fn publish(&mut self) -> Result<(), Stop> {
        let line = self.line.end();
        if let Some(journal) = &self.journal {
            fd::write_once(journal.as_fd(), line).map_err(Stop::Journal)?;
            if let Some(interval) = self.options.sync_interval {
                // Waiting for a disk cools caches: after short runs it would be most of what is
                // measured next, so it is done once for all lines of an interval.
                if self.synced.elapsed() >= interval {
                    fd::sync_data(journal.as_fd()).map_err(Stop::Journal)?;
                    self.synced = Instant::now();
                }
            }
        }
        fd::write_all(io::stdout().as_fd(), line)?;
        Ok(())
    }

    fn exec(&mut self, exec: &Exec) -> Result<(), Stop> {
        // Fresh files: what a set-up command leaves running may hold on to them.
        let stdout = fd::memory_file(STDOUT_NAME)?;
        let stderr = fd::memory_file(STDERR_NAME)?;
        let standard = [self.null.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let outcome = match prepare::prepare(&exec.command, &self.environment, &mut self.programs) {
            Err(error) => Outcome::NotExecuted {
                step: "execve",
                error,
            },
            Ok(prepared) => measure::run(
                &prepared,
                standard,
                exec.command.timeout_ns,
                &self.stack,
                &mut self.watch,
            )?,
        };
        let line = &mut self.line;
        line.begin("{\"kind\":\"exec\"");
        line.number("id", exec.id);
        match &outcome {
            Outcome::Ran(measured) => {
                line.boolean("ok", succeeded(measured, &exec.command.expect));
                line.ending(measured.ending);
                line.boolean("timed_out", measured.timed_out);
            }
            Outcome::NotExecuted { .. } => {
                line.boolean("ok", false);
                line.raw("exit_code", b"null");
                line.raw("signal", b"null");
                line.boolean("timed_out", false);
            }
        }
        let text = |file, limit| -> io::Result<String> {
            Ok(String::from_utf8_lossy(&fd::tail(file, limit)?).into_owned())
        };
        line.text("stdout", &text(&stdout, report::EXEC_STDOUT_BYTES)?);
        line.text("stderr", &text(&stderr, report::STDERR_BYTES)?);
        if let Some(reason) = report::failure(&outcome) {
            line.error(&reason);
        }
        fd::write_all(io::stdout().as_fd(), line.end())?;
        Ok(())
    }

    fn complain(&mut self, reason: &str) {
        self.line.begin("{\"kind\":\"error\"");
        self.line.text("reason", reason);
        // The exit code tells too, should nobody read any more.
        let _ = fd::write_all(io::stdout().as_fd(), self.line.end());
    }
}

fn succeeded(measured: &Measured, expect: &[i32]) -> bool {
    let expected = match measured.ending {
        process::Ending::Exited(code) => expect.contains(&code),
        process::Ending::Signalled(_) => false,
    };
    expected && !measured.timed_out
}

fn create(path: &str) -> io::Result<OwnedFd> {
    let path = request::c_string(path, "stdout.file")
        .map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))?;
    fd::open(&path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC, 0o666)
}

/// Our own peak, below which a child's cannot be seen (see `sys::memory`).
struct Floor {
    peak: Peak,
    known_bytes: Option<u64>,
    runs: u64,
}

impl Floor {
    /// Runs after which the peak is read again, whatever was measured.
    const KEPT_RUNS: u64 = 64;

    fn new() -> io::Result<Self> {
        let peak = Peak::open()?;
        Ok(Self {
            peak,
            known_bytes: None,
            runs: 0,
        })
    }

    /// The floor under a run that peaked at so many bytes.
    ///
    /// Reading it takes as long as all else between two runs, so it is done where it can matter.
    fn under(&mut self, max_rss_bytes: u64) -> Option<u64> {
        let is_close = |known: u64| max_rss_bytes < known.saturating_add(known / 2);
        if self.runs % Self::KEPT_RUNS == 0 || self.known_bytes.is_none_or(is_close) {
            self.known_bytes = self.peak.bytes();
        }
        self.runs += 1;
        self.known_bytes
    }
}
