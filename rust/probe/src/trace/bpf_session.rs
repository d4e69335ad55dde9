//! A trace by bpftrace: the calibration's two scripts, then the one of the subject.

use super::bpf::{self, Attached, Followed, Probed, Running, Start};
use super::options::Subject;
use super::session::{empty, Ended, Traced, Work, EMPTY, OUTER};
use super::subject;
use crate::error::ProbeError;
use crate::sys::clock::Clock;
use crate::sys::fd;
use crate::sys::process::{self, Pid};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

/// Time between two looks at bpftrace.
const LOOK_NS: u64 = 20_000_000;
/// Time that bpftrace has to print its maps and to detach.
const PATIENCE_NS: u64 = 300_000_000_000;
/// The clock of a BPF program's `nsecs`.
const CLOCK: &str = "bpf_ktime_get_ns";

impl Work<'_> {
    /// Trace functions by bpftrace: by trampolines, and by kprobes where those are refused.
    pub(super) fn trace_by_bpf(
        &mut self,
        functions: &[String],
        output: &mut File,
        calibration: &mut File,
    ) -> Result<Traced, ProbeError> {
        let mut refusals = Vec::new();
        let mut ways = Attached::ALL.iter().copied();
        let mut way = ways.next();
        let (ended, runs) = self.in_pairs(|work, traced| {
            if !traced {
                return work.run_untraced();
            }
            while let Some(attached) = way {
                match work.follow_by_bpf(functions, attached, output, calibration) {
                    Err(ProbeError::Unsupported(reason)) if !work.stopped => {
                        refusals.push(format!("not {}: {reason}", attached.words()));
                        way = ways.next();
                    }
                    outcome => return outcome,
                }
            }
            Err(ProbeError::Unsupported(refusals.join("; ")))
        })?;
        self.written = fs::metadata(&self.options.output).map_or(0, |found| found.len());
        let how = way.map(|attached| attached.words().to_owned());
        let how: Vec<_> = how.into_iter().chain(refusals).collect();
        Ok(Traced {
            how: Some(how.join("; ")),
            clock: CLOCK.to_owned(),
            ended,
            runs,
            ..Traced::default()
        })
    }

    /// Calibrate, attach to the functions, and trace the subject to its end.
    fn follow_by_bpf(
        &mut self,
        functions: &[String],
        attached: Attached,
        output: &mut File,
        calibration: &mut File,
    ) -> Result<Ended, ProbeError> {
        let held = self.start_held()?;
        let followed = match &self.options.subject {
            Subject::All => Followed::All,
            other => Followed::Threads(subject::threads(other, held.as_ref())?),
        };
        let mut running = self.attach(functions, attached, &followed, output, calibration)?;
        let start_ns = Clock::Monotonic.now_ns();
        if let Some(held) = &held {
            held.resume()?;
        }
        let ended = self.wait(held.as_ref(), start_ns, None)?;
        if running.has_ended()? {
            return Err(ProbeError::Failed(format!(
                "bpftrace ended while it traced: {}",
                running.words()
            )));
        }
        self.finish(running)?;
        Ok(ended)
    }

    /// Calibrate, unless that was done before, and attach to the functions.
    fn attach(
        &mut self,
        functions: &[String],
        attached: Attached,
        followed: &Followed,
        output: &mut File,
        calibration: &mut File,
    ) -> Result<Running, ProbeError> {
        let options = self.options;
        empty(output, &options.output)?;
        if options.calibration > 0 && self.calibrated != Some(attached) {
            empty(calibration, &options.calibration_output)?;
            self.calibrate_bpf(false, attached, calibration)?;
            calibration
                .write_all(b"\nexcise: calibration nested\n")
                .map_err(|error| ProbeError::file(&options.calibration_output, &error))?;
            self.calibrate_bpf(true, attached, calibration)?;
            self.calibrated = Some(attached);
        }
        let probed: Vec<_> = functions
            .iter()
            .map(|name| Probed {
                name,
                each_of: None,
            })
            .collect();
        let text = bpf::script(&probed, attached, followed, options.syscalls);
        self.started(&text, &options.output, output)
    }

    /// Read `/dev/null` with its outer function traced, alone or with the empty one in it.
    ///
    /// Single durations of the outer one are kept of this thread's calls, those of the empty one of
    /// another thread's: so that keeping them is no part of what is measured.
    fn calibrate_bpf(
        &mut self,
        nested: bool,
        attached: Attached,
        calibration: &mut File,
    ) -> Result<(), ProbeError> {
        let options = self.options;
        let (go, told) = mpsc::channel::<()>();
        let (tell, known) = mpsc::channel::<Option<Pid>>();
        let calls = options.calibration;
        let other = thread::spawn(move || {
            let _ = tell.send(own_thread());
            match told.recv() {
                Ok(()) => read_null(calls),
                Err(_) => Ok(()),
            }
        });
        let thread = known
            .recv()
            .ok()
            .flatten()
            .ok_or_else(|| ProbeError::Failed("/proc/thread-self cannot be read".to_owned()))?;
        let own = process::id();
        let outer = Probed {
            name: OUTER,
            each_of: Some(own),
        };
        let inner = Probed {
            name: EMPTY,
            each_of: Some(thread),
        };
        let mut probed = vec![outer];
        probed.extend(nested.then_some(inner));
        let followed = Followed::Threads(vec![own, thread]);
        // As in the trace: a script that also looks at system calls costs more.
        let text = bpf::script(&probed, attached, &followed, options.syscalls);
        let running = self.started(&text, &options.calibration_output, calibration)?;
        read_null(calls)?;
        if nested {
            let _ = go.send(());
        } else {
            drop(go);
        }
        other
            .join()
            .map_err(|_| ProbeError::Failed("the calibration's thread failed".to_owned()))??;
        self.finish(running)
    }

    /// Start a script and wait until it is attached.
    fn started(
        &mut self,
        text: &str,
        path: &Path,
        output: &mut File,
    ) -> Result<Running, ProbeError> {
        let mut running = Running::start(text, path, output)?;
        loop {
            match running.look()? {
                Start::Ready => return Ok(running),
                Start::Ended => {
                    running.outcome()?;
                    return Err(ProbeError::Unsupported(format!(
                        "bpftrace ended before it was attached: {}",
                        running.words()
                    )));
                }
                Start::Waits => self.pause()?,
            }
            if self.stopped {
                return Err(ProbeError::Failed(
                    "a signal ended it before tracing began".to_owned(),
                ));
            }
        }
    }

    /// Let bpftrace print its maps and end; a signal meanwhile kills it.
    fn finish(&mut self, mut running: Running) -> Result<(), ProbeError> {
        let stopped = std::mem::take(&mut self.stopped);
        running.interrupt();
        let start_ns = Clock::Monotonic.now_ns();
        while !running.has_ended()? {
            self.pause()?;
            if Clock::Monotonic.now_ns().saturating_sub(start_ns) > PATIENCE_NS {
                return Err(ProbeError::Failed(format!(
                    "bpftrace did not end within {} s",
                    PATIENCE_NS / 1_000_000_000
                )));
            }
            if self.stopped {
                return Err(ProbeError::Failed(
                    "a signal ended bpftrace before it printed its maps".to_owned(),
                ));
            }
        }
        self.stopped = stopped;
        running.outcome()
    }

    /// Wait for a signal, but not long.
    fn pause(&mut self) -> Result<(), ProbeError> {
        let [signalled] = fd::poll([Some(self.signals.as_fd())], Some(LOOK_NS))
            .map_err(|error| ProbeError::step("ppoll", &error))?;
        if signalled {
            let _ = self.signals.next();
            self.stopped = true;
        }
        Ok(())
    }
}

fn own_thread() -> Option<Pid> {
    let path = fs::read_link("/proc/thread-self").ok()?;
    path.file_name()?.to_str()?.parse().ok()
}

fn read_null(calls: u32) -> Result<(), ProbeError> {
    let failed = |error| ProbeError::step("/dev/null", &error);
    let mut null = File::open("/dev/null").map_err(failed)?;
    for _ in 0..calls {
        null.read(&mut [0]).map_err(failed)?;
    }
    Ok(())
}
