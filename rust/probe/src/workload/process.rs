//! Workloads that need a second process.

use super::{c_path, failed, Workload};
use crate::error::ProbeError;
use crate::sys::calls::{self, Fork};
use crate::sys::process::{self, Pid};
use crate::sys::spawn::{self, StringArray};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A child that answers us until it is killed.
pub struct Helper(Pid);

impl Helper {
    /// Fork a child that runs a function and exits; it dies with us too.
    pub fn start(work: impl FnOnce()) -> Result<Self, ProbeError> {
        match calls::fork().map_err(|error| failed("fork", "", &error))? {
            Fork::Child => {
                calls::die_with_parent();
                work();
                calls::exit_now(0)
            }
            Fork::Parent(pid) => Ok(Self(pid)),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        process::kill(self.0);
        let _ = process::wait(self.0); // its end is all that matters
    }
}

/// `pipe`: LMbench's pipe latency, there and back.
pub struct RoundTrip {
    to: OwnedFd,
    from: OwnedFd,
    _helper: Helper,
}

impl RoundTrip {
    pub fn new() -> Result<Self, ProbeError> {
        let pipe = || calls::pipe().map_err(|error| failed("pipe", "", &error));
        let ((there_end, there), (back, back_end)) = (pipe()?, pipe()?);
        let helper = Helper::start(|| {
            let mut byte = [0_u8; 1];
            let (from, to) = (there_end.as_raw_fd(), back_end.as_raw_fd());
            while calls::read(from, &mut byte).is_ok() && calls::write(to, &byte).is_ok() {}
        })?;
        Ok(Self {
            to: there,
            from: back,
            _helper: helper,
        })
    }
}

impl Workload for RoundTrip {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        let (to, from, mut byte) = (self.to.as_raw_fd(), self.from.as_raw_fd(), [0_u8; 1]);
        for _ in 0..operations {
            calls::write(to, &byte).map_err(|error| failed("write", "(pipe)", &error))?;
            calls::read(from, &mut byte).map_err(|error| failed("read", "(pipe)", &error))?;
        }
        Ok(())
    }
}

fn wait_for(pid: Pid, what: &str) -> Result<(), ProbeError> {
    match calls::wait(pid).map_err(|error| failed("waitpid", "", &error))? {
        0 => Ok(()),
        code => Err(ProbeError::Failed(format!(
            "{what}: the child ended with code {code}"
        ))),
    }
}

/// `fork_exit`: LMbench's "fork+exit".
pub struct ForkExit;

impl Workload for ForkExit {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        for _ in 0..operations {
            match calls::fork().map_err(|error| failed("fork", "", &error))? {
                Fork::Child => calls::exit_now(0),
                Fork::Parent(pid) => wait_for(pid, "fork_exit")?,
            }
        }
        Ok(())
    }
}

/// `fork_execve`: LMbench's "fork+execve", of this static program in place of its `hello`.
pub struct ForkExecve {
    program: CString,
    arguments: StringArray,
    environment: StringArray,
}

impl ForkExecve {
    pub fn new(program: &Path) -> Result<Self, ProbeError> {
        Ok(Self {
            program: c_path(program)?,
            arguments: StringArray::new(vec![c"excise-probe".to_owned(), c"true".to_owned()]),
            environment: StringArray::new(Vec::new()),
        })
    }
}

impl Workload for ForkExecve {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        for _ in 0..operations {
            match calls::fork().map_err(|error| failed("fork", "", &error))? {
                Fork::Child => {
                    let error = spawn::execute(&self.program, &self.arguments, &self.environment);
                    // Our own copy of standard error is all that the child can tell through.
                    eprintln!(
                        "excise-probe: {}",
                        failed("execve", &self.program.to_string_lossy(), &error)
                    );
                    calls::exit_now(127)
                }
                Fork::Parent(pid) => wait_for(pid, "fork_execve")?,
            }
        }
        Ok(())
    }
}
