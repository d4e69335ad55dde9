//! The program's only unsafe code: thin, safe wrappers around system calls, one file per subject.
//!
//! Nothing here decides anything; each function makes one call (or the few calls that belong
//! together) and turns a negative answer into the errno it stands for.

#![allow(unsafe_code)]

pub mod attributes;
pub mod calls;
pub mod clock;
pub mod fd;
pub mod hold;
pub mod landlock;
pub mod memory;
pub mod perf;
pub mod process;
pub mod seccomp;
pub mod signal;
pub mod spawn;

use std::io;

/// Turn the C convention (-1 and errno) into a `Result`.
#[inline]
fn checked<T: Into<i64> + Copy>(answer: T) -> io::Result<T> {
    if answer.into() < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}
