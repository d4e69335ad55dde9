//! Signals: blocked for good and read from a descriptor, so that no handler ever runs.

use super::checked;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signals that the launcher acts on, as a readable descriptor.
pub struct SignalFile(OwnedFd);

/// What one signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SIGTERM, SIGINT, SIGHUP or SIGQUIT.
    Stop,
    /// The kernel's notice that the parent's thread ended (see `notify_of_parent_death`).
    CheckParent,
}

/// The signal by which the kernel tells of the parent's death.
const PARENT_DEATH: libc::c_int = libc::SIGUSR1;

impl SignalFile {
    /// Block every signal in this process and give those that matter through a descriptor.
    ///
    /// Signals that were ignored by whoever started the program go back to their default, so that a
    /// measured child never inherits an ignored SIGPIPE or SIGINT.
    pub fn block_all() -> io::Result<Self> {
        for number in 1..=64 {
            // SAFETY: `sigaction` is plain old data; a zeroed one has SIG_DFL, no flags, no mask.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: setting a default disposition; refused (and left) for SIGKILL and SIGSTOP.
            unsafe { libc::sigaction(number, &default, std::ptr::null_mut()) };
        }
        // SAFETY: `sigset_t` is plain old data, initialised by sigfillset and sigemptyset.
        let (mut all, mut some): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both sets are valid to write to, and the signal numbers exist.
        unsafe {
            libc::sigfillset(&mut all);
            libc::sigemptyset(&mut some);
            for number in [
                libc::SIGTERM,
                libc::SIGINT,
                libc::SIGHUP,
                libc::SIGQUIT,
                PARENT_DEATH,
            ] {
                libc::sigaddset(&mut some, number);
            }
        }
        // SAFETY: `all` is initialised; the old mask is not asked for.
        checked(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) })?;
        // SAFETY: `some` is initialised; -1 asks for a new descriptor.
        let fd =
            checked(unsafe { libc::signalfd(-1, &some, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
        // SAFETY: the kernel has just handed out `fd`.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that has arrived, if any.
    pub fn next(&self) -> io::Result<Option<Asked>> {
        // SAFETY: `signalfd_siginfo` is plain old data.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` is valid for writes of `size` bytes.
        let count = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size) };
        match checked(count as i64) {
            Ok(_) if info.ssi_signo as libc::c_int == PARENT_DEATH => Ok(Some(Asked::CheckParent)),
            Ok(_) => Ok(Some(Asked::Stop)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for SignalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Have the kernel signal this process when its parent dies.
///
/// The kernel means the parent's *thread* that started us, so the receiver must check the parent.
pub fn notify_of_parent_death() -> io::Result<()> {
    // SAFETY: prctl with a signal number.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, PARENT_DEATH) })?;
    Ok(())
}
