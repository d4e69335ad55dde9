//! One child from start to end: the clock, the wait, the interruptions.

use super::prepare::Prepared;
use crate::sys::clock::Clock;
use crate::sys::fd;
use crate::sys::process::{self, Ending, Pid, Usage};
use crate::sys::signal::{Asked, SignalFile};
use crate::sys::spawn::{self, Child, Stack};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What became of one command.
pub enum Outcome {
    /// It ran and ended.
    Ran(Measured),
    /// Its program could not be executed.
    NotExecuted {
        /// The step that failed.
        step: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

/// What was measured of a child that ran.
pub struct Measured {
    /// Just before it was started, on CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// From then until its end was seen.
    pub wall_ns: u64,
    /// How it ended.
    pub ending: Ending,
    /// What the kernel counted.
    pub usage: Usage,
    /// Whether it was killed for taking too long.
    pub timed_out: bool,
    /// Whether processes of its group outlived it.
    pub left_processes: bool,
}

/// Why the launcher must end at once, without a line for the run in progress.
#[derive(Debug)]
pub enum Halt {
    /// The parent is gone.
    ParentGone,
    /// Asked to stop twice.
    StoppedTwice,
    /// A system call of the launcher's own failed.
    Broken(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Watches what may interrupt the launcher: signals, and the parent's death.
pub struct Watch {
    signals: SignalFile,
    parent: Option<OwnedFd>,
    parent_id: Pid,
    /// Whether we were asked to stop after the run in progress.
    pub stopping: bool,
}

impl Watch {
    /// Begin to watch. Blocks all signals in this process.
    pub fn new() -> io::Result<Self> {
        let signals = SignalFile::block_all()?;
        crate::sys::signal::notify_of_parent_death()?;
        let parent_id = process::parent();
        // 0: the parent lives in another pid namespace; then the kernel's signal must do.
        let parent = match parent_id {
            0 => None,
            id => Some(process::open_pidfd(id)?),
        };
        Ok(Self {
            signals,
            parent,
            parent_id,
            stopping: false,
        })
    }

    /// Wait for a descriptor; whether it is ready (otherwise the time ran out or a signal came).
    ///
    /// The clock is read before any interruption is looked at, so that the end of a child is timed
    /// as early as it can be.
    pub fn wait_for(
        &mut self,
        wanted: Option<BorrowedFd<'_>>,
        timeout_ns: Option<u64>,
    ) -> Result<Awaited, Halt> {
        let parent = self.parent.as_ref().map(AsFd::as_fd);
        let [ready, signalled, orphaned] =
            fd::poll([wanted, Some(self.signals.as_fd()), parent], timeout_ns)?;
        let now_ns = Clock::Monotonic.now_ns();
        if orphaned {
            return Err(Halt::ParentGone);
        }
        if signalled {
            self.act_on_signals()?;
        }
        Ok(Awaited {
            ready,
            now_ns,
            timed_out: !ready && !signalled,
        })
    }

    fn act_on_signals(&mut self) -> Result<(), Halt> {
        while let Some(asked) = self.signals.next()? {
            match asked {
                // The thread that started us may end before its process does.
                Asked::CheckParent
                    if self.parent.is_some() && process::parent() == self.parent_id => {}
                Asked::CheckParent => return Err(Halt::ParentGone),
                Asked::Stop if self.stopping => return Err(Halt::StoppedTwice),
                Asked::Stop => self.stopping = true,
            }
        }
        Ok(())
    }
}

/// How a wait ended.
pub struct Awaited {
    /// The descriptor is readable.
    pub ready: bool,
    /// When the wait was over.
    pub now_ns: u64,
    /// Neither it nor a signal came in time.
    pub timed_out: bool,
}

/// Start a command, wait for its end, and collect what the kernel counted.
///
/// On a halt the child's whole group has been killed and reaped.
pub fn run(
    prepared: &Prepared,
    standard: [BorrowedFd<'_>; 3],
    timeout_ns: Option<u64>,
    stack: &Stack,
    watch: &mut Watch,
) -> Result<Outcome, Halt> {
    let command = spawn::Command {
        program: &prepared.program,
        arguments: &prepared.arguments,
        environment: &prepared.environment,
        directory: prepared.directory.as_deref(),
        standard,
    };
    let start_ns = Clock::Monotonic.now_ns();
    let child = match spawn::spawn(&command, stack) {
        Ok(child) => child,
        Err(failure) => {
            return Ok(Outcome::NotExecuted {
                step: failure.step,
                error: failure.error,
            })
        }
    };
    let deadline_ns = timeout_ns.map(|timeout| start_ns.saturating_add(timeout));
    match wait_for_end(&child, deadline_ns, watch) {
        Ok((end_ns, timed_out)) => {
            let (ending, usage) = process::wait(child.pid)?;
            Ok(Outcome::Ran(Measured {
                start_ns,
                wall_ns: end_ns.saturating_sub(start_ns),
                ending,
                usage,
                timed_out,
                left_processes: process::group_exists(child.pid),
            }))
        }
        Err(halt) => {
            process::kill_group(child.pid);
            let _ = process::wait(child.pid); // nobody is left to tell
            Err(halt)
        }
    }
}

/// When the child ended, and whether it had to be killed for that.
fn wait_for_end(
    child: &Child,
    deadline_ns: Option<u64>,
    watch: &mut Watch,
) -> Result<(u64, bool), Halt> {
    let mut left_ns =
        deadline_ns.map(|deadline| deadline.saturating_sub(Clock::Monotonic.now_ns()));
    let mut killed = false;
    loop {
        let awaited = watch.wait_for(Some(child.pidfd.as_fd()), left_ns)?;
        if awaited.ready {
            return Ok((awaited.now_ns, killed));
        }
        if let (Some(deadline), false) = (deadline_ns, killed) {
            if awaited.timed_out || awaited.now_ns >= deadline {
                process::kill_group(child.pid);
                killed = true;
                left_ns = None;
            } else {
                left_ns = Some(deadline.saturating_sub(awaited.now_ns));
            }
        }
    }
}
