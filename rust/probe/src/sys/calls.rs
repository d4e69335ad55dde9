//! The system calls of the workloads, as bare as the C library allows.
//!
//! File calls go through `syscall(2)`, as library functions of the same name may make another call
//! (glibc's `fstat` is `newfstatat` with an empty path, which is measurably slower).

use super::checked;
use super::process::Pid;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(target_pointer_width = "64")]
const SYS_STAT_AT: libc::c_long = libc::SYS_newfstatat;
#[cfg(target_pointer_width = "32")]
const SYS_STAT_AT: libc::c_long = libc::SYS_fstatat64;
#[cfg(target_pointer_width = "64")]
const SYS_STAT_FD: libc::c_long = libc::SYS_fstat;
#[cfg(target_pointer_width = "32")]
const SYS_STAT_FD: libc::c_long = libc::SYS_fstat64;

/// Room for what the stat calls write: `struct stat` or `struct stat64`, at most 144 bytes.
#[repr(C, align(8))]
pub struct StatBuffer([u8; 256]);

impl StatBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self([0; 256])
    }
}

/// `getppid`.
#[inline]
pub fn getppid() {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// `newfstatat` on a path.
#[inline]
pub fn stat(path: &CStr, buffer: &mut StatBuffer) -> io::Result<()> {
    // SAFETY: the path ends in NUL; the buffer is larger than any kernel's stat.
    checked(unsafe {
        libc::syscall(
            SYS_STAT_AT,
            libc::AT_FDCWD,
            path.as_ptr(),
            buffer.0.as_mut_ptr(),
            0,
        )
    })?;
    Ok(())
}

/// `fstat`.
#[inline]
pub fn fstat(file: BorrowedFd<'_>, buffer: &mut StatBuffer) -> io::Result<()> {
    // SAFETY: the buffer is larger than any kernel's stat.
    checked(unsafe { libc::syscall(SYS_STAT_FD, file.as_raw_fd(), buffer.0.as_mut_ptr()) })?;
    Ok(())
}

/// `openat` in the current directory; the caller closes with `close`.
#[inline]
pub fn open(path: &CStr, flags: libc::c_int) -> io::Result<RawFd> {
    // SAFETY: the path ends in NUL.
    let fd = checked(unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            0o600,
        )
    })?;
    Ok(fd as RawFd)
}

/// `close`.
#[inline]
pub fn close(fd: RawFd) -> io::Result<()> {
    // SAFETY: only called on what `open` has returned.
    checked(unsafe { libc::syscall(libc::SYS_close, fd) })?;
    Ok(())
}

/// `unlinkat` in the current directory.
#[inline]
pub fn unlink(path: &CStr) -> io::Result<()> {
    // SAFETY: the path ends in NUL.
    checked(unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) })?;
    Ok(())
}

fn whole(count: libc::c_long, wanted: usize) -> io::Result<()> {
    if checked(count)? as usize == wanted {
        return Ok(());
    }
    Err(io::Error::from(io::ErrorKind::UnexpectedEof))
}

/// `read` of the whole buffer.
#[inline]
pub fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<()> {
    // SAFETY: the buffer is valid for writes of its length.
    let count = unsafe { libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()) };
    whole(count, buffer.len())
}

/// `write` of the whole buffer.
#[inline]
pub fn write(fd: RawFd, buffer: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is valid for reads of its length.
    let count = unsafe { libc::syscall(libc::SYS_write, fd, buffer.as_ptr(), buffer.len()) };
    whole(count, buffer.len())
}

/// A pipe: its end to read and its end to write.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: `ends` has room for two descriptors, which are then ours alone.
    unsafe {
        checked(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Which side of a fork we are on.
pub enum Fork {
    /// The new process.
    Child,
    /// The old one, with the new one's id.
    Parent(Pid),
}

/// `fork`.
#[inline]
pub fn fork() -> io::Result<Fork> {
    // SAFETY: the program has one thread, so the child may do whatever the parent could.
    match checked(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

/// End this process at once, without any clean-up.
#[inline]
pub fn exit_now(code: libc::c_int) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Wait for a child; its exit code, or 128 and the signal's number.
#[inline]
pub fn wait(pid: Pid) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is valid to write to.
    checked(unsafe { libc::waitpid(pid, &mut status, 0) })?;
    if libc::WIFEXITED(status) {
        return Ok(libc::WEXITSTATUS(status));
    }
    Ok(128 + libc::WTERMSIG(status))
}

/// Have the kernel kill this process when its parent ends.
pub fn die_with_parent() {
    // SAFETY: prctl with numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Map fresh private memory, write one byte to each page, unmap it.
#[inline]
pub fn map_touch_unmap(length: usize, page: usize) -> io::Result<()> {
    // SAFETY: a fresh mapping that only this function knows; every write is inside of it, and it
    // is gone at the end.
    unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let bytes = base.cast::<u8>();
        let mut offset = 0;
        while offset < length {
            bytes.add(offset).write_volatile(1);
            offset += page;
        }
        checked(libc::munmap(base, length))?;
    }
    Ok(())
}

/// Size of a page, in bytes.
pub fn page_size() -> usize {
    // SAFETY: takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Processors that are online.
pub fn online_cpus() -> usize {
    // SAFETY: takes a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1)
}

/// The machine's name of its architecture, as `uname -m` gives it.
pub fn machine() -> String {
    // SAFETY: `utsname` is plain old data, valid to write to; the kernel ends the text in NUL.
    unsafe {
        let mut names: libc::utsname = std::mem::zeroed();
        libc::uname(&mut names);
        CStr::from_ptr(names.machine.as_ptr())
            .to_string_lossy()
            .into_owned()
    }
}

/// Address of a unix socket.
pub struct UnixAddress {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
}

impl UnixAddress {
    /// An address by path; `None` if the path is too long for one.
    pub fn new(path: &CStr) -> Option<Self> {
        // SAFETY: `sockaddr_un` is plain old data.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.to_bytes_with_nul();
        let place = address.sun_path.get_mut(..bytes.len())?;
        for (to, from) in place.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let header = std::mem::offset_of!(libc::sockaddr_un, sun_path);
        let length = libc::socklen_t::try_from(header + bytes.len()).ok()?;
        Some(Self { address, length })
    }

    /// `socket` and `connect`; the caller closes with `close`.
    #[inline]
    pub fn connect(&self) -> io::Result<RawFd> {
        // SAFETY: `address` is valid for reads of `length` bytes.
        unsafe {
            let fd = checked(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0))?;
            checked(libc::connect(
                fd,
                (&raw const self.address).cast(),
                self.length,
            ))?;
            Ok(fd)
        }
    }

    /// `socket`, `bind` and `listen`.
    pub fn listen(&self, backlog: libc::c_int) -> io::Result<OwnedFd> {
        // SAFETY: `address` is valid for reads of `length` bytes; the new socket is ours alone.
        unsafe {
            let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            let fd = checked(libc::socket(libc::AF_UNIX, flags, 0))?;
            let socket = OwnedFd::from_raw_fd(fd);
            checked(libc::bind(
                fd,
                (&raw const self.address).cast(),
                self.length,
            ))?;
            checked(libc::listen(fd, backlog))?;
            Ok(socket)
        }
    }
}

/// `accept`; the caller closes with `close`.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<RawFd> {
    // SAFETY: the peer's address is not asked for.
    checked(unsafe {
        libc::accept(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    })
}

static CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
}

/// Install the handler that counts SIGUSR1, and let the signal through.
pub fn catch_signal() -> io::Result<()> {
    // SAFETY: zeroed is a valid start for both; the handler only touches an atomic.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        checked(libc::sigaction(
            libc::SIGUSR1,
            &action,
            std::ptr::null_mut(),
        ))?;
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR1);
        checked(libc::sigprocmask(
            libc::SIG_UNBLOCK,
            &set,
            std::ptr::null_mut(),
        ))?;
    }
    Ok(())
}

/// `kill` with SIGUSR1.
#[inline]
pub fn send_signal(pid: Pid) -> io::Result<()> {
    // SAFETY: takes numbers.
    checked(unsafe { libc::syscall(libc::SYS_kill, pid, libc::SIGUSR1) })?;
    Ok(())
}

/// How often the handler has run.
pub fn signals_caught() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}
