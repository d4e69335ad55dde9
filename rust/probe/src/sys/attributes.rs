//! Extended attributes of files.

use super::checked;
use std::ffi::CStr;
use std::io;

/// Whether a file has an attribute; a file system without attributes has none.
pub fn is_set(path: &CStr, name: &CStr) -> io::Result<bool> {
    // SAFETY: both strings end in NUL; no buffer is given, so only the size is told.
    let size = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    match checked(size as i64) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Remove an attribute.
pub fn remove(path: &CStr, name: &CStr) -> io::Result<()> {
    // SAFETY: both strings end in NUL.
    checked(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) }).map(|_| ())
}
