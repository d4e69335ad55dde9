//! Creating and deleting files, each timed apart from the other.

use super::{c_path, failed, Folder, Workload};
use crate::error::ProbeError;
use crate::sys::calls;
use std::ffi::CString;

/// Size of the larger files, in bytes.
pub const TEN_K: usize = 10 * 1024;

/// The files of one batch, by names relative to the current directory, laid out beforehand.
struct Batch {
    names: Vec<CString>,
    content: Vec<u8>,
    _folder: Folder,
}

impl Batch {
    /// Enter the folder, so that a name is one component as it is in LMbench.
    fn new(folder: Folder, size: usize) -> Result<Self, ProbeError> {
        folder.enter()?;
        Ok(Self {
            names: Vec::new(),
            content: vec![0x5a; size],
            _folder: folder,
        })
    }

    fn lay_out(&mut self, count: u64) -> Result<(), ProbeError> {
        for number in self.names.len() as u64..count {
            self.names.push(c_path(format!("{number:08x}").as_ref())?);
        }
        Ok(())
    }

    fn names(&self, count: u64) -> impl Iterator<Item = &CString> {
        self.names.iter().take(count as usize)
    }

    fn create(&self, count: u64) -> Result<(), ProbeError> {
        const FLAGS: libc::c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC; // as creat(2)
        for name in self.names(count) {
            let text = || name.to_string_lossy();
            let fd = calls::open(name, FLAGS).map_err(|error| failed("create", &text(), &error))?;
            if !self.content.is_empty() {
                calls::write(fd, &self.content)
                    .map_err(|error| failed("write", &text(), &error))?;
            }
            calls::close(fd).map_err(|error| failed("close", &text(), &error))?;
        }
        Ok(())
    }

    fn delete(&self, count: u64) -> Result<(), ProbeError> {
        for name in self.names(count) {
            calls::unlink(name)
                .map_err(|error| failed("unlink", &name.to_string_lossy(), &error))?;
        }
        Ok(())
    }
}

/// `create_0k`, `create_10k`
pub struct Create(Batch);

impl Create {
    pub fn new(folder: Folder, size: usize) -> Result<Self, ProbeError> {
        Ok(Self(Batch::new(folder, size)?))
    }
}

impl Workload for Create {
    fn prepare(&mut self, operations: u64) -> Result<(), ProbeError> {
        self.0.lay_out(operations)
    }

    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        self.0.create(operations)
    }

    fn finish(&mut self, operations: u64) -> Result<(), ProbeError> {
        self.0.delete(operations)
    }
}

/// `delete_0k`, `delete_10k`
pub struct Delete(Batch);

impl Delete {
    pub fn new(folder: Folder, size: usize) -> Result<Self, ProbeError> {
        Ok(Self(Batch::new(folder, size)?))
    }
}

impl Workload for Delete {
    fn prepare(&mut self, operations: u64) -> Result<(), ProbeError> {
        self.0.lay_out(operations)?;
        self.0.create(operations)
    }

    fn operate(&mut self, operations: u64) -> Result<(), ProbeError> {
        self.0.delete(operations)
    }
}
