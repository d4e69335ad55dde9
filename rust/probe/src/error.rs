//! The program's one error: what went wrong, and the exit code that says of which kind it was.

use std::fmt;
use std::io;
use std::path::Path;

/// Why the program stops.
#[derive(Debug)]
pub enum ProbeError {
    /// A step that should have worked did not (exit code 1).
    Failed(String),
    /// The command line or a request makes no sense (exit code 2).
    Usage(String),
    /// The kernel lacks what was asked for, or refuses it (exit code 4).
    Unsupported(String),
}

impl ProbeError {
    /// A failed step named by what was done and to what, with its errno.
    pub fn step(what: &str, error: &io::Error) -> Self {
        Self::Failed(format!("{what}: {}", describe(error)))
    }

    /// A failed step on a file, named by its path.
    pub fn file(path: &Path, error: &io::Error) -> Self {
        Self::step(&path.display().to_string(), error)
    }

    /// The process's exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Unsupported(_) => 4,
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) | Self::Usage(text) | Self::Unsupported(text) => {
                formatter.write_str(text)
            }
        }
    }
}

/// Text of an error with its errno's symbolic name first: `ENOENT: No such file or directory`.
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => {
            let plain = text.split(" (os error").next().unwrap_or(&text);
            format!("{}: {plain}", errno_name(code))
        }
        None => text,
    }
}

/// The symbolic name of an errno, or its number where the name is not one of the usual.
pub fn errno_name(code: i32) -> String {
    let name = match code {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::ESRCH => "ESRCH",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::E2BIG => "E2BIG",
        libc::ENOEXEC => "ENOEXEC",
        libc::EBADF => "EBADF",
        libc::ECHILD => "ECHILD",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::ENOTDIR => "ENOTDIR",
        libc::EISDIR => "EISDIR",
        libc::EINVAL => "EINVAL",
        libc::ENFILE => "ENFILE",
        libc::EMFILE => "EMFILE",
        libc::ETXTBSY => "ETXTBSY",
        libc::EFBIG => "EFBIG",
        libc::ENOSPC => "ENOSPC",
        libc::EROFS => "EROFS",
        libc::EMLINK => "EMLINK",
        libc::EPIPE => "EPIPE",
        libc::ENAMETOOLONG => "ENAMETOOLONG",
        libc::ENOSYS => "ENOSYS",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::ELOOP => "ELOOP",
        libc::EOVERFLOW => "EOVERFLOW",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EDQUOT => "EDQUOT",
        libc::ELIBBAD => "ELIBBAD",
        libc::ENOMSG => "ENOMSG",
        _ => return format!("errno {code}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_described_by_name_then_text() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(describe(&error), "ENOENT: No such file or directory");
    }

    #[test]
    fn an_unusual_errno_keeps_its_number() {
        assert_eq!(errno_name(9999), "errno 9999");
    }

    #[test]
    fn each_kind_has_its_exit_code() {
        assert_eq!(ProbeError::Failed(String::new()).exit_code(), 1);
        assert_eq!(ProbeError::Usage(String::new()).exit_code(), 2);
        assert_eq!(ProbeError::Unsupported(String::new()).exit_code(), 4);
    }
}
