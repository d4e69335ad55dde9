//! One trace from the state file to the last setting put back.

use super::backend::{self, Backend, Beside, Offer};
use super::bpf::Attached;
use super::functions::{self, Available};
use super::options::{Options, Subject};
use super::report::{self, Run, Summary};
use super::state::{self, State, StateFile};
use super::subject::{self, Held, Printed};
use super::tracefs::{self, Folder};
use super::{kernel_hooks, make_instance, Answer};
use crate::error::ProbeError;
use crate::sys::clock::Clock;
use crate::sys::process::{self, Ending};
use crate::sys::signal::SignalFile;
use crate::sys::{fd, hold};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// Time between two looks at the buffers.
const TICK_NS: u64 = 20_000_000;
/// Time that a command has after a signal to us before it gets one, and then before it is killed.
const PATIENCE_NS: u64 = 1_000_000_000;
const EXIT_STOPPED: u8 = 130;
/// Functions of the calibration: `read_null` returns 0 at once, and `vfs_read` calls it when
/// `/dev/null` is read.
pub(super) const EMPTY: &str = "read_null";
pub(super) const OUTER: &str = "vfs_read";
/// What reading `/dev/null` calls, the outermost first: its entry is one of two machines'. Four deep,
/// with calls side by side.
const TREE: &[&str] = &[
    "__x64_sys_read",
    "__arm64_sys_read",
    "ksys_read",
    OUTER,
    "rw_verify_area",
    "security_file_permission",
    EMPTY,
];
/// The file with the size of a buffer's parts, since Linux 6.8.
const SUBBUFFER: &str = "buffer_subbuf_size_kb";

/// Trace; the answer is the summary (if it goes to standard output) and the exit code.
pub fn run(options: &Options) -> Result<Answer, ProbeError> {
    // Before anything is changed: whatever can be wrong with the call.
    let mut output = create(&options.output)?;
    let mut calibration = create(&options.calibration_output)?;
    let mut summary_file = options.summary.as_deref().map(create).transpose()?;
    state::refuse_beside_others(&options.states)?;
    let signals = SignalFile::block_all().map_err(|e| ProbeError::step("signalfd", &e))?;
    let found = tracefs::find()?;
    let file = StateFile::create(&options.states, State::new(&found, true))?;
    let mut work = Work {
        options,
        file,
        signals,
        stopped: false,
        pipe: None,
        written: 0,
        full: false,
        printed: None,
        calibrated: None,
    };
    let outcome = tracefs::mount(&found).and_then(|()| work.trace(&mut output, &mut calibration));
    work.pipe = None; // an instance that is read from cannot be removed
    let undone = work.file.undo();
    if let Some(printed) = work.printed.take() {
        printed
            .print()
            .map_err(|error| ProbeError::step("the command's output", &error))?;
    }
    let summary = outcome?;
    undone?;
    let code = match summary.stopped && matches!(options.subject, Subject::Command(_)) {
        true => EXIT_STOPPED,
        false => summary.exit_code.unwrap_or_default(),
    };
    let text = report::line(&summary)?;
    match (&mut summary_file, &options.summary) {
        (Some(file), Some(path)) => {
            empty(file, path)?;
            file.write_all(text.as_bytes())
                .map_err(|error| ProbeError::file(path, &error))?;
            Ok((None, code))
        }
        _ => Ok((Some(text), code)),
    }
}

/// Open a file to write to; what it holds stays until there is something to write.
fn create(path: &Path) -> Result<File, ProbeError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| ProbeError::file(path, &error))
}

/// Empty a file that is about to be written from its beginning.
pub(super) fn empty(mut file: &File, path: &Path) -> Result<(), ProbeError> {
    file.set_len(0)
        .and_then(|()| file.rewind())
        .map_err(|error| ProbeError::file(path, &error))
}

pub(super) struct Work<'a> {
    pub(super) options: &'a Options,
    file: StateFile,
    pub(super) signals: SignalFile,
    pub(super) stopped: bool,
    pipe: Option<File>,
    pub(super) written: u64,
    /// Whether the trace is as long as it may be.
    full: bool,
    /// What the last of several runs printed.
    printed: Option<Printed>,
    /// What bpftrace's own cost was measured with.
    pub(super) calibrated: Option<Attached>,
}

/// What a back-end says of its trace.
#[derive(Default)]
pub(super) struct Traced {
    /// How it was done, where there is more than one way.
    pub how: Option<String>,
    /// The clock of the durations.
    pub clock: String,
    /// Functions that the kernel did not take.
    pub refused: Vec<String>,
    /// Cycles of the time stamp counter in a second.
    pub cycles_per_s: Option<f64>,
    /// Each processor's buffer.
    pub cpus: Vec<report::Cpu>,
    /// Size of a buffer's parts.
    pub subbuffer_kib: Option<u64>,
    /// Returns that had no room.
    pub missed: u64,
    /// The run that the trace is of.
    pub ended: Ended,
    /// Runs in pairs.
    pub runs: Vec<Run>,
}

/// What the wait for the subject's end gave.
#[derive(Clone, Copy, Default)]
pub(super) struct Ended {
    /// How the command ended.
    pub ending: Option<Ending>,
    /// Nanoseconds from the subject's start to its end.
    pub wall_ns: u64,
    /// Processor time of the command.
    pub cpu_ns: u64,
}

impl Ended {
    fn run(self, traced: bool) -> Run {
        Run {
            traced,
            wall_ns: self.wall_ns,
            cpu_ns: self.cpu_ns,
        }
    }
}

impl Work<'_> {
    fn trace(&mut self, output: &mut File, calibration: &mut File) -> Result<Summary, ProbeError> {
        let options = self.options;
        let top = Folder::new(&self.file.state.tracefs);
        let available = Available::read(&top)?;
        let hooks = kernel_hooks(&available);
        let chosen = functions::choose(&options.wanted, &hooks, &available)?;
        self.note_settings(&top)?;
        make_instance(&self.file.state.folder())?;
        let offers = backend::offers(&top, &self.file.state.folder());
        let (offer, reason) = backend::choose(&offers, options.backend)?;
        let traced = match offer.backend {
            Backend::Bpftrace => self.trace_by_bpf(&chosen.names, output, calibration)?,
            _ => self.trace_by_tracefs(&offer, &available, &chosen.names, output, calibration)?,
        };
        output
            .flush()
            .map_err(|error| ProbeError::file(&options.output, &error))?;
        let in_instance = self.file.state.instance.clone();
        let told = options.interruptions && offer.backend != Backend::Bpftrace;
        Ok(Summary {
            version: env!("CARGO_PKG_VERSION"),
            kernel_release: report::kernel_release(),
            machine: crate::sys::calls::machine(),
            lsm: report::lsm(),
            backend: offer.backend,
            reason: [reason]
                .into_iter()
                .chain(traced.how)
                .collect::<Vec<_>>()
                .join("; "),
            offers,
            instance: in_instance.filter(|_| offer.backend != Backend::Bpftrace),
            matched: chosen.matched,
            hooks: functions::entries(hooks, &available),
            functions: chosen.names,
            refused: traced.refused,
            cycles_per_s: traced.cycles_per_s.filter(|_| traced.clock == "x86-tsc"),
            clock: traced.clock,
            syscalls: options.syscalls,
            interruptions: told,
            interruption_events: match told {
                true => backend::interruption_events(&top),
                false => Vec::new(),
            },
            calibration_calls: options.calibration,
            cpus: traced.cpus,
            subbuffer_kib: traced.subbuffer_kib,
            missed: traced.missed,
            trace_bytes: self.written,
            wall_ns: traced.ended.wall_ns,
            runs: traced.runs,
            exit_code: traced.ended.ending.map(subject::exit_code),
            full: self.full,
            stopped: self.stopped,
        })
    }

    /// Trace functions by what tracefs has: a tracer, or events.
    fn trace_by_tracefs(
        &mut self,
        offer: &Offer,
        available: &Available,
        functions: &[String],
        output: &mut File,
        calibration: &mut File,
    ) -> Result<Traced, ProbeError> {
        let options = self.options;
        let top = Folder::new(&self.file.state.tracefs);
        if !offer.instance {
            self.move_to_the_top(&top)?;
        }
        empty(output, &options.output)?;
        empty(calibration, &options.calibration_output)?;
        let folder = self.file.state.folder();
        let beside = Beside {
            syscalls: options.syscalls,
            interruptions: options.interruptions,
            timed: options.interruptions_timed,
        };
        if let (true, Some(kib)) = (offer.instance, options.subbuffer_kib) {
            // Contiguous memory, which may be short: then the parts stay as they are.
            let _ = folder.try_write(SUBBUFFER, &kib.to_string());
        }
        if !self.file.state.keeps_buffer_size() {
            folder.write("buffer_size_kb", &options.buffer_kib.to_string())?;
        }
        let clock = backend::prepare(&folder, offer.backend, beside)?;
        let mut functions = functions.to_vec();
        if options.interruptions_timed && offer.backend == Backend::FunctionGraph {
            functions.extend(functions::interrupting(available));
        }
        let refused = self.calibrate(offer, available, &functions, calibration)?;
        let cycles = (hold::cycles(), Clock::Monotonic.now_ns());
        let (ended, runs) = self.in_pairs(|work, traced| {
            if !traced {
                work.pipe = None; // a tracer cannot be set while it is open
                backend::switch(&work.file.state, offer.backend, beside, false)?;
                let ended = work.run_untraced();
                if offer.backend == Backend::Fprobe {
                    let state = work.file.state.clone();
                    backend::set_functions(&state, offer.backend, available, &functions)?;
                }
                backend::switch(&work.file.state, offer.backend, beside, true)?;
                return ended;
            }
            // The trace, and what is said of the buffers, are of one run.
            folder.write("trace", "")?;
            empty(output, &options.output)?;
            (work.written, work.full) = (0, false);
            work.follow(&folder, output)
        })?;
        Ok(Traced {
            how: None,
            clock,
            refused,
            cycles_per_s: per_second(cycles),
            cpus: report::cpus(&folder),
            subbuffer_kib: folder
                .setting(SUBBUFFER)
                .ok()
                .and_then(|size| size.parse().ok()),
            missed: report::missed(&top),
            ended,
            runs,
        })
    }

    /// Run the subject traced; before, if asked for, in pairs without the tracer and with it. Which
    /// of the two comes first alternates, so that drift falls out.
    pub(super) fn in_pairs(
        &mut self,
        mut once: impl FnMut(&mut Self, bool) -> Result<Ended, ProbeError>,
    ) -> Result<(Ended, Vec<Run>), ProbeError> {
        let options = self.options;
        if options.pairs == 0 {
            return Ok((once(self, true)?, Vec::new()));
        }
        once(self, false)?; // finds caches cold, and does not count
        let start_ns = Clock::Monotonic.now_ns();
        let limit_ns = options.pairs_within.map(|limit| limit.as_nanos() as u64);
        let (mut runs, mut last) = (Vec::new(), Ended::default());
        for pair in 0..options.pairs {
            let passed_ns = Clock::Monotonic.now_ns().saturating_sub(start_ns);
            if pair > 0 && limit_ns.is_some_and(|limit| passed_ns > limit) {
                break;
            }
            for traced in [pair % 2 == 1, pair % 2 == 0] {
                let ended = once(self, traced)?;
                if self.stopped && traced {
                    // It was ended early: its trace is kept, its time says nothing.
                    return Ok((ended, runs));
                }
                if traced {
                    last = ended;
                }
                runs.push(ended.run(traced));
            }
        }
        Ok((last, runs))
    }

    /// Run the command to its end without the tracer.
    pub(super) fn run_untraced(&mut self) -> Result<Ended, ProbeError> {
        let Some(held) = self.start_held()? else {
            return Err(ProbeError::Usage("--pairs needs a command".to_owned()));
        };
        let ended = self.run_held(&held)?;
        match self.stopped {
            false => Ok(ended),
            true => Err(ProbeError::Failed(
                "a signal ended a run without the tracer: there is no trace".to_owned(),
            )),
        }
    }

    /// Start the command, if there is one, held. Of several runs the output is printed once.
    pub(super) fn start_held(&mut self) -> Result<Option<Held>, ProbeError> {
        let Subject::Command(command) = &self.options.subject else {
            return Ok(None);
        };
        if self.options.pairs == 0 {
            return Held::start(command).map(Some);
        }
        let (held, printed) = Held::start_kept(command)?;
        self.printed = Some(printed);
        Ok(Some(held))
    }

    /// Let a held command run to its end.
    fn run_held(&mut self, held: &Held) -> Result<Ended, ProbeError> {
        let start_ns = Clock::Monotonic.now_ns();
        held.resume()?;
        self.wait(Some(held), start_ns, None)
    }

    /// Work in the top folder, after all that it says has been written down.
    fn move_to_the_top(&mut self, top: &Folder) -> Result<(), ProbeError> {
        let untouched = State {
            settings: Vec::new(),
            mounted: false,
            ..self.file.state.clone()
        };
        untouched.undo()?;
        self.file.state.instance = None;
        self.note_settings(top)
    }

    /// Refuse if somebody traces; write down the settings that will be changed.
    fn note_settings(&mut self, top: &Folder) -> Result<(), ProbeError> {
        let mut state = self.file.state.clone();
        backend::refuse_tracers_in_use(top, &mut state)?;
        self.file = StateFile::create(&self.options.states, state)?;
        Ok(())
    }

    /// Trace functions of known work, then choose the wanted ones; those that the kernel refused.
    ///
    /// The marks in the trace tell the reader which calls are which: first the outer function alone,
    /// then with the empty one in it traced too; then the outermost alone, and with all inside it.
    fn calibrate(
        &mut self,
        offer: &Offer,
        available: &Available,
        wanted: &[String],
        output: &mut File,
    ) -> Result<Vec<String>, ProbeError> {
        let folder = self.file.state.folder();
        let state = self.file.state.clone();
        let names = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let mut null = File::open("/dev/null").map_err(|e| ProbeError::step("/dev/null", &e))?;
        subject::set_processes(&folder, &[process::id()])?;
        let tree: Vec<_> = TREE
            .iter()
            .copied()
            .filter(|name| available.contains(name))
            .collect();
        let mut parts = vec![
            ("calibration alone", names(&[OUTER])),
            ("calibration nested", names(&[OUTER, EMPTY])),
        ];
        // Events of fprobe take long to make.
        let timed = matches!(offer.backend, Backend::FunctionGraph | Backend::Kprobe);
        if timed && tree.len() > 2 {
            parts.push(("calibration root", names(tree.get(..1).unwrap_or_default())));
            parts.push(("calibration tree", names(&tree)));
        }
        for (mark, list) in parts {
            if self.options.calibration == 0 {
                break;
            }
            backend::set_functions(&state, offer.backend, available, &list)?;
            folder.write("tracing_on", "1")?;
            folder.write("trace_marker", &format!("excise: {mark}"))?;
            for _ in 0..self.options.calibration {
                null.read(&mut [0])
                    .map_err(|e| ProbeError::step("/dev/null", &e))?;
            }
            folder.write("tracing_on", "0")?;
            // Records of an event that is gone cannot be printed any more.
            self.drain(&folder, output)?;
            backend::clear_functions(&state, offer.backend)?;
        }
        backend::set_functions(&state, offer.backend, available, wanted)
    }

    /// Trace the subject until its end, the end of the time, or a signal.
    fn follow(&mut self, folder: &Folder, output: &mut File) -> Result<Ended, ProbeError> {
        let held = self.start_held()?;
        match &self.options.subject {
            Subject::All => subject::set_all_but_us(folder)?,
            other => subject::set_processes(folder, &subject::threads(other, held.as_ref())?)?,
        }
        folder.write("tracing_on", "1")?;
        // A mark is recorded only while tracing is on.
        folder.write("trace_marker", "excise: begin")?;
        let start_ns = Clock::Monotonic.now_ns();
        if let Some(held) = &held {
            held.resume()?;
        }
        let ended = self.wait(held.as_ref(), start_ns, Some((folder, output)))?;
        if !self.full {
            folder.write("trace_marker", "excise: end")?;
            folder.write("tracing_on", "0")?;
        }
        self.drain(folder, output)?;
        Ok(ended)
    }

    /// Wait for the subject's end; copy the buffers out meanwhile if it is traced.
    pub(super) fn wait(
        &mut self,
        held: Option<&Held>,
        start_ns: u64,
        mut traced: Option<(&Folder, &mut File)>,
    ) -> Result<Ended, ProbeError> {
        let limit_ns = self.options.duration.map(|limit| limit.as_nanos() as u64);
        let mut stop_ns: Option<u64> = None;
        loop {
            let fds = [
                Some(self.signals.as_fd()),
                held.map(|held| held.pidfd.as_fd()),
            ];
            let [signalled, ended] = fd::poll(fds, Some(self.tick_ns()))
                .map_err(|error| ProbeError::step("ppoll", &error))?;
            let now_ns = Clock::Monotonic.now_ns();
            if let (true, Some(held)) = (ended, held) {
                let (ending, usage) = held.wait()?;
                return Ok(Ended {
                    ending: Some(ending),
                    wall_ns: Clock::Monotonic.now_ns().saturating_sub(start_ns),
                    cpu_ns: usage.user_ns.saturating_add(usage.system_ns),
                });
            }
            if signalled {
                let _ = self.signals.next();
                self.stopped = true;
            }
            let over = limit_ns.is_some_and(|limit| now_ns.saturating_sub(start_ns) >= limit);
            let over = over || (self.full && held.is_none());
            if over || self.stopped {
                let Some(held) = held else {
                    return Ok(Ended {
                        wall_ns: now_ns.saturating_sub(start_ns),
                        ..Ended::default()
                    });
                };
                // In a terminal the command has had the signal, too; else it gets one.
                let since_ns = now_ns.saturating_sub(*stop_ns.get_or_insert(now_ns));
                match since_ns / PATIENCE_NS {
                    0 if !over => {}
                    0 | 1 => hold::terminate(held.pid),
                    _ => process::kill(held.pid),
                }
            }
            if let (Some((folder, output)), false) = (&mut traced, self.options.drain_at_end) {
                self.drain(folder, output)?;
            }
        }
    }

    /// A whole second where nothing is copied meanwhile, so that the subject is not disturbed.
    fn tick_ns(&self) -> u64 {
        match self.options.drain_at_end && !self.stopped {
            true => 50 * TICK_NS,
            false => TICK_NS,
        }
    }

    /// Copy what the buffers hold.
    ///
    /// The pipe is opened at the first use: a tracer cannot be set while it is open.
    fn drain(&mut self, folder: &Folder, output: &mut File) -> Result<(), ProbeError> {
        if self.full {
            return Ok(());
        }
        let pipe = match &mut self.pipe {
            Some(pipe) => pipe,
            None => self.pipe.insert(folder.open_pipe()?),
        };
        let mut buffer = vec![0_u8; 1 << 16];
        loop {
            let count = match pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ProbeError::step("trace_pipe", &error)),
            };
            let bytes = buffer.get(..count).unwrap_or_default();
            output
                .write_all(bytes)
                .map_err(|error| ProbeError::file(&self.options.output, &error))?;
            self.written = self.written.saturating_add(count as u64);
            let most = self.options.most_bytes.unwrap_or(u64::MAX);
            if self.written >= most {
                self.full = true;
                return folder.write("tracing_on", "0");
            }
        }
    }
}

/// Cycles in a second since a reading of both clocks; `None` in less than a millisecond.
fn per_second((cycles, at_ns): (Option<u64>, u64)) -> Option<f64> {
    let passed = hold::cycles()?.checked_sub(cycles?)?;
    let passed_ns = Clock::Monotonic.now_ns().checked_sub(at_ns)?;
    (passed_ns > 1_000_000).then(|| passed as f64 * 1e9 / passed_ns as f64)
}
