//! Workloads of one process and one or two system calls.

use super::{failed, Folder, Workload, MAPPED_BYTES};
use crate::error::ProbeError;
use crate::sys::calls::{self, StatBuffer};
use crate::sys::{fd, process};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// `null`: the cheapest call that enters the kernel and is never answered by the C library.
pub struct Null;

impl Workload for Null {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        for _ in 0..operations {
            calls::getppid();
        }
        Ok(())
    }
}

fn device(path: &CStr, flags: libc::c_int) -> Result<OwnedFd, ProbeError> {
    fd::open(path, flags, 0).map_err(|error| failed("open", &path.to_string_lossy(), &error))
}

/// `read`
pub struct Read(OwnedFd);

impl Read {
    pub fn new() -> Result<Self, ProbeError> {
        Ok(Self(device(c"/dev/zero", libc::O_RDONLY)?))
    }
}

impl Workload for Read {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        let (fd, mut byte) = (self.0.as_raw_fd(), [0_u8; 1]);
        for _ in 0..operations {
            calls::read(fd, &mut byte).map_err(|error| failed("read", "/dev/zero", &error))?;
        }
        Ok(())
    }
}

/// `write`
pub struct Write(OwnedFd);

impl Write {
    pub fn new() -> Result<Self, ProbeError> {
        Ok(Self(device(c"/dev/null", libc::O_WRONLY)?))
    }
}

impl Workload for Write {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        let (fd, byte) = (self.0.as_raw_fd(), [0_u8; 1]);
        for _ in 0..operations {
            calls::write(fd, &byte).map_err(|error| failed("write", "/dev/null", &error))?;
        }
        Ok(())
    }
}

/// A file in a folder of our own.
struct Target {
    path: CString,
    _folder: Folder,
}

impl Target {
    fn new(folder: Folder) -> Result<Self, ProbeError> {
        let path = folder.file("file")?;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        // Closed at once: while a file is open for writing, IMA takes each reading open for a
        // violation, and what would be measured is the logging of those.
        drop(
            fd::open(&path, flags, 0o600)
                .map_err(|error| failed("create", &path.to_string_lossy(), &error))?,
        );
        Ok(Self {
            path,
            _folder: folder,
        })
    }

    fn failed(&self, call: &str, error: &std::io::Error) -> ProbeError {
        failed(call, &self.path.to_string_lossy(), error)
    }
}

/// `stat`
pub struct Stat(Target);

impl Stat {
    pub fn new(folder: Folder) -> Result<Self, ProbeError> {
        Ok(Self(Target::new(folder)?))
    }
}

impl Workload for Stat {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        let mut buffer = StatBuffer::new();
        for _ in 0..operations {
            calls::stat(&self.0.path, &mut buffer)
                .map_err(|error| self.0.failed("stat", &error))?;
        }
        Ok(())
    }
}

/// `fstat`
pub struct Fstat {
    target: Target,
    file: OwnedFd,
}

impl Fstat {
    pub fn new(folder: Folder) -> Result<Self, ProbeError> {
        let target = Target::new(folder)?;
        let file = fd::open(&target.path, libc::O_RDONLY, 0)
            .map_err(|error| target.failed("open", &error))?;
        Ok(Self { target, file })
    }
}

impl Workload for Fstat {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        let mut buffer = StatBuffer::new();
        let file = self.file.as_fd();
        for _ in 0..operations {
            calls::fstat(file, &mut buffer).map_err(|error| self.target.failed("fstat", &error))?;
        }
        Ok(())
    }
}

/// `open_close`
pub struct OpenClose(Target);

impl OpenClose {
    pub fn new(folder: Folder) -> Result<Self, ProbeError> {
        Ok(Self(Target::new(folder)?))
    }
}

impl Workload for OpenClose {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        for _ in 0..operations {
            let fd = calls::open(&self.0.path, libc::O_RDONLY)
                .map_err(|error| self.0.failed("open", &error))?;
            calls::close(fd).map_err(|error| self.0.failed("close", &error))?;
        }
        Ok(())
    }
}

/// `mmap_fault`
pub struct MapFault {
    page: usize,
}

impl MapFault {
    pub fn new() -> Self {
        Self {
            page: calls::page_size(),
        }
    }
}

impl Workload for MapFault {
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        for _ in 0..operations {
            calls::map_touch_unmap(MAPPED_BYTES, self.page)
                .map_err(|error| failed("mmap", "of private memory", &error))?;
        }
        Ok(())
    }
}

/// `signal`: LMbench's "signal catch".
pub struct Signal {
    own: process::Pid,
    caught_before: u64,
}

impl Signal {
    pub fn new() -> Result<Self, ProbeError> {
        calls::catch_signal().map_err(|error| failed("sigaction", "SIGUSR1", &error))?;
        Ok(Self {
            own: process::id(),
            caught_before: 0,
        })
    }
}

impl Workload for Signal {
    fn prepare(&mut self, _: u64) -> Result<(), ProbeError> {
        self.caught_before = calls::signals_caught();
        Ok(())
    }

    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        for _ in 0..operations {
            calls::send_signal(self.own).map_err(|error| failed("kill", "(itself)", &error))?;
        }
        Ok(())
    }

    fn finish(&mut self, operations: u64) -> Result<(), ProbeError> {
        let caught = calls::signals_caught() - self.caught_before;
        if caught == operations {
            return Ok(());
        }
        Err(ProbeError::Failed(format!(
            "signal: the handler ran {caught} times for {operations} signals"
        )))
    }
}
