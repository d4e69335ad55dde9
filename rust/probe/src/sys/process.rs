//! Processes: identity, sessions, waiting with resource usage, killing groups.

use super::checked;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// A process id.
pub type Pid = libc::pid_t;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It returned this code.
    Exited(i32),
    /// This signal ended it.
    Signalled(i32),
}

impl Ending {
    /// From the status that the kernel gives to who waits.
    pub fn from_status(status: libc::c_int) -> Self {
        if libc::WIFSIGNALED(status) {
            return Self::Signalled(libc::WTERMSIG(status));
        }
        Self::Exited(libc::WEXITSTATUS(status))
    }
}

/// What the kernel counted for one child and the descendants it waited for.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Time in user mode.
    pub user_ns: u64,
    /// Time in the kernel.
    pub system_ns: u64,
    /// Peak resident set.
    pub max_rss_bytes: u64,
    /// Page faults served without reading a device.
    pub minor_faults: u64,
    /// Page faults that had to read.
    pub major_faults: u64,
    /// Context switches because the child waited.
    pub voluntary_switches: u64,
    /// Context switches because its time was over.
    pub involuntary_switches: u64,
}

fn timeval_ns(time: libc::timeval) -> u64 {
    (time.tv_sec as u64) * 1_000_000_000 + (time.tv_usec as u64) * 1_000
}

impl Usage {
    /// In this program's units.
    pub fn from_rusage(usage: &libc::rusage) -> Self {
        Self {
            user_ns: timeval_ns(usage.ru_utime),
            system_ns: timeval_ns(usage.ru_stime),
            max_rss_bytes: (usage.ru_maxrss as u64) * 1024, // Linux counts it in KiB
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
        }
    }
}

/// Wait for one child, with its resource usage.
pub fn wait(pid: Pid) -> io::Result<(Ending, Usage)> {
    // SAFETY: `rusage` is plain old data.
    let (mut status, mut usage) = (0, unsafe { std::mem::zeroed() });
    // SAFETY: both pointers are valid to write to. Signals are blocked or end us: no EINTR.
    checked(unsafe { libc::wait4(pid, &mut status, 0, &mut usage) })?;
    Ok((Ending::from_status(status), Usage::from_rusage(&usage)))
}

/// Kill every process of a child's group.
pub fn kill_group(leader: Pid) {
    // SAFETY: kill takes no pointer; a group that is gone answers ESRCH, which is what we want.
    unsafe { libc::kill(-leader, libc::SIGKILL) };
}

/// Kill one child that we have not waited for yet.
pub fn kill(pid: Pid) {
    // SAFETY: kill takes no pointer, and an unreaped child's id is not reused.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Whether any process is left in a child's group.
pub fn group_exists(leader: Pid) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::kill(-leader, 0) == 0 }
}

/// This process's parent; 0 if it lives in another pid namespace.
pub fn parent() -> Pid {
    // SAFETY: cannot fail.
    unsafe { libc::getppid() }
}

/// This process's id.
pub fn id() -> Pid {
    // SAFETY: cannot fail.
    unsafe { libc::getpid() }
}

/// A descriptor that becomes readable when the process ends (Linux 5.3).
pub fn open_pidfd(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers.
    let fd = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just handed out `fd`, and descriptors fit an int.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Move this process to a session of its own, away from any terminal.
///
/// A group leader may not do so; one that is not a session leader first joins its parent's group.
pub fn own_session() -> io::Result<()> {
    // SAFETY: these calls take and give numbers only.
    unsafe {
        if libc::setsid() >= 0 || libc::getsid(0) == libc::getpid() {
            return Ok(());
        }
        let parents_group = checked(libc::getpgid(libc::getppid()))?;
        checked(libc::setpgid(0, parents_group))?;
        checked(libc::setsid())?;
    }
    Ok(())
}

/// The number in one line of `/proc/PID/status`.
pub fn status_field(status: &[u8], name: &str) -> Option<u64> {
    let value = status
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":"))?;
    let text = std::str::from_utf8(value).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_a_status_file_is_read_by_its_whole_name() {
        let text = b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\nVmHWM:\t  812 kB\n";
        assert_eq!(status_field(text, "Seccomp"), Some(2));
        assert_eq!(status_field(text, "Seccomp_filters"), Some(3));
        assert_eq!(status_field(text, "VmHWM"), Some(812));
        assert_eq!(status_field(text, "Absent"), None);
    }
}
