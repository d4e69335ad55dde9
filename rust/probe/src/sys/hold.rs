//! A child that stops itself before it becomes its program, so that tracing can begin in between;
//! and the few calls that only tracing needs.

use super::checked;
use super::process::{Ending, Pid};
use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Stop until somebody resumes us; die with the parent as long as we are stopped.
pub fn stop_self() -> io::Result<()> {
    // SAFETY: prctl and kill take numbers only.
    unsafe {
        checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        checked(libc::kill(libc::getpid(), libc::SIGSTOP))?;
        checked(libc::prctl(libc::PR_SET_PDEATHSIG, 0))?;
    }
    Ok(())
}

/// Wait until a child has stopped itself; its ending if it ended in place of that.
pub fn wait_stopped(pid: Pid) -> io::Result<Option<Ending>> {
    let mut status = 0;
    // SAFETY: `status` is valid to write to.
    checked(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) })?;
    if libc::WIFSTOPPED(status) {
        return Ok(None);
    }
    Ok(Some(Ending::from_status(status)))
}

/// Let a stopped child go on.
pub fn resume(pid: Pid) -> io::Result<()> {
    // SAFETY: kill takes numbers only.
    checked(unsafe { libc::kill(pid, libc::SIGCONT) })?;
    Ok(())
}

/// Ask a child to end.
pub fn terminate(pid: Pid) {
    // SAFETY: kill takes numbers only; a child that is gone answers ESRCH.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// Interrupt a child, as ^C does.
pub fn interrupt(pid: Pid) {
    // SAFETY: kill takes numbers only; a child that is gone answers ESRCH.
    unsafe { libc::kill(pid, libc::SIGINT) };
}

/// Start a child that the kernel kills when we die, in a process group of its own, so that the
/// terminal's ^C reaches us only. No signal is blocked in it, whatever is in us.
pub fn spawn_bound(command: &mut Command) -> io::Result<Child> {
    command.process_group(0);
    // SAFETY: between fork and exec there are only system calls, with numbers and with a set of
    // signals that sigemptyset initialises.
    unsafe {
        command.pre_exec(|| {
            checked(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            let old = std::ptr::null_mut();
            checked(libc::sigprocmask(libc::SIG_SETMASK, &none, old))?;
            Ok(())
        });
    }
    command.spawn()
}

/// Whether a process exists, as far as we can tell.
pub fn exists(pid: Pid) -> bool {
    // SAFETY: signal 0 only asks. EPERM means that it exists.
    let answer = unsafe { libc::kill(pid, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Mount the kernel's tracing file system.
pub fn mount_tracefs(target: &CStr) -> io::Result<()> {
    // SAFETY: all strings end in NUL; no data is passed.
    checked(unsafe {
        libc::mount(
            c"tracefs".as_ptr(),
            target.as_ptr(),
            c"tracefs".as_ptr(),
            0,
            std::ptr::null(),
        )
    })?;
    Ok(())
}

/// Unmount a file system.
pub fn unmount(target: &CStr) -> io::Result<()> {
    // SAFETY: the string ends in NUL.
    checked(unsafe { libc::umount2(target.as_ptr(), 0) })?;
    Ok(())
}

/// A mark in a trace that records system calls: `getppid` ignores the arguments that the trace shows.
pub fn mark(kind: u64, value: u64) {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::syscall(libc::SYS_getppid, MARK, kind, value) };
}

/// First argument of a mark: "EXCISE".
pub const MARK: u64 = 0x4558_4349_5345;

/// The processor's time stamp counter; `None` where there is none that user space may read.
pub fn cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: rdtsc is part of every x86-64 processor; the kernel allows it unless prctl forbade.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::signal::SignalFile;

    #[test]
    fn a_bound_child_can_be_interrupted_though_we_block_every_signal() {
        let ended = std::thread::spawn(|| {
            // The mask is the thread's own.
            let _signals = SignalFile::block_all().unwrap();
            let mut child = spawn_bound(Command::new("sleep").arg("60")).unwrap();
            interrupt(Pid::try_from(child.id()).unwrap());
            child.wait().unwrap()
        });
        assert!(!ended.join().unwrap().success());
    }
}
