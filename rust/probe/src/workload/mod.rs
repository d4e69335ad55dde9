//! The workloads: one operation each, with the meaning that LMbench gave to its name.

mod calls;
mod files;
mod process;
mod socket;

use crate::error::{describe, ProbeError};
use std::ffi::CString;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// Something that can be done many times in a row and timed.
pub trait Workload {
    /// Whatever `operations` operations need beforehand; not timed.
    fn prepare(&mut self, operations: u64) -> Result<(), ProbeError> {
        let _ = operations;
        Ok(())
    }

    /// The timed loop.
    fn operate(&mut self, operations: u64) -> Result<(), ProbeError>;

    /// Check that all were done and put things back; not timed.
    fn finish(&mut self, operations: u64) -> Result<(), ProbeError> {
        let _ = operations;
        Ok(())
    }
}

/// What one workload is called, and what one operation of it is.
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// One operation.
    pub operation: &'static str,
}

/// All workloads, in the order of the help.
pub const ALL: &[Description] = &[
    describe_as("null", "getppid by a raw system call"),
    describe_as("read", "read 1 byte of /dev/zero"),
    describe_as("write", "write 1 byte to /dev/null"),
    describe_as("stat", "stat a file by its absolute path"),
    describe_as("fstat", "fstat an open file"),
    describe_as(
        "open_close",
        "open a file by its absolute path and close it",
    ),
    describe_as("create_0k", "create an empty file and close it"),
    describe_as("delete_0k", "delete an empty file"),
    describe_as(
        "create_10k",
        "create a file, write 10,240 bytes at once, close it",
    ),
    describe_as("delete_10k", "delete a file of 10,240 bytes"),
    describe_as(
        "pipe",
        "1 byte to another process and back, through two pipes",
    ),
    describe_as("fork_exit", "fork a child that exits at once, wait for it"),
    describe_as(
        "fork_execve",
        "fork a child that executes a static program that exits at once, wait for it",
    ),
    describe_as(
        "mmap_fault",
        "map 1 MiB of private memory, write to each page, unmap",
    ),
    describe_as(
        "unix_connect",
        "socket, connect to a listening unix socket, close",
    ),
    describe_as("signal", "send SIGUSR1 to itself; the handler runs"),
];

const fn describe_as(name: &'static str, operation: &'static str) -> Description {
    Description { name, operation }
}

/// Bytes that `mmap_fault` maps.
pub const MAPPED_BYTES: usize = 1 << 20;

/// A folder of our own beneath the work directory; gone when dropped.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Make it; a folder that a killed run has left under the same process id is left alone.
    fn new(directory: &Path) -> Result<Self, ProbeError> {
        let own = crate::sys::process::id();
        let mut name = format!("excise-probe-{own}");
        for attempt in 1..=1_000 {
            let path = directory.join(&name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    name = format!("excise-probe-{own}-{attempt}");
                }
                Err(error) => return Err(failed("mkdir", &path.to_string_lossy(), &error)),
            }
        }
        Err(ProbeError::Failed("mkdir: no name is free".to_owned()))
    }

    /// Make it the current directory.
    fn enter(&self) -> Result<(), ProbeError> {
        std::env::set_current_dir(&self.path)
            .map_err(|error| failed("chdir", &self.path.to_string_lossy(), &error))
    }

    /// Absolute path of a file in it.
    fn file(&self, name: &str) -> Result<CString, ProbeError> {
        c_path(&self.path.join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing of value is in it; a message beside a result would be taken for a failure.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A path for the kernel.
pub fn c_path(path: &Path) -> Result<CString, ProbeError> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| ProbeError::Usage(format!("{}: holds a NUL character", path.display())))
}

/// A workload that is known by name but not set up: mechanisms come between the two.
pub struct Planned {
    /// Its name.
    pub name: &'static str,
    /// Absolute work directory.
    pub directory: PathBuf,
    /// This program's own file, for `fork_execve`.
    pub program: PathBuf,
}

impl Planned {
    /// Look a workload up; the error lists all names.
    pub fn new(name: &str, directory: &Path) -> Result<Self, ProbeError> {
        let Some(known) = ALL.iter().find(|known| known.name == name) else {
            let mut names = String::new();
            for known in ALL {
                let _ = write!(names, " {}", known.name);
            }
            return Err(ProbeError::Usage(format!(
                "--workload {name}: unknown; known are:{names}"
            )));
        };
        let directory = std::fs::canonicalize(directory).map_err(|error| {
            ProbeError::Usage(format!(
                "--directory {}: {}",
                directory.display(),
                describe(&error)
            ))
        })?;
        let program = std::env::current_exe()
            .map_err(|error| ProbeError::step("readlink /proc/self/exe", &error))?;
        Ok(Self {
            name: known.name,
            directory,
            program,
        })
    }

    /// Set it up. Makes a folder in the work directory where the workload needs files.
    pub fn set_up(&self) -> Result<Box<dyn Workload>, ProbeError> {
        let folder = || Folder::new(&self.directory);
        Ok(match self.name {
            "null" => Box::new(calls::Null),
            "read" => Box::new(calls::Read::new()?),
            "write" => Box::new(calls::Write::new()?),
            "stat" => Box::new(calls::Stat::new(folder()?)?),
            "fstat" => Box::new(calls::Fstat::new(folder()?)?),
            "open_close" => Box::new(calls::OpenClose::new(folder()?)?),
            "create_0k" => Box::new(files::Create::new(folder()?, 0)?),
            "delete_0k" => Box::new(files::Delete::new(folder()?, 0)?),
            "create_10k" => Box::new(files::Create::new(folder()?, files::TEN_K)?),
            "delete_10k" => Box::new(files::Delete::new(folder()?, files::TEN_K)?),
            "pipe" => Box::new(process::RoundTrip::new()?),
            "fork_exit" => Box::new(process::ForkExit),
            "fork_execve" => Box::new(process::ForkExecve::new(&self.program)?),
            "mmap_fault" => Box::new(calls::MapFault::new()),
            "unix_connect" => Box::new(socket::Connect::new(folder()?)?),
            _ => Box::new(calls::Signal::new()?),
        })
    }

    /// Absolute path of a file in the work directory's folder has so many components.
    pub fn path_components(&self) -> Option<usize> {
        matches!(self.name, "stat" | "open_close").then(|| self.directory.components().count() + 1)
    }
}

/// A failed call, named by the workload it belongs to, with what it was done to.
fn failed(call: &str, object: &str, error: &io::Error) -> ProbeError {
    let place = if object.is_empty() { "" } else { " " };
    ProbeError::Failed(format!("{call}{place}{object}: {}", describe(error)))
}
