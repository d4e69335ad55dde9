//! File descriptors: memory files, polling, whole writes, reading the end of a file.

use super::checked;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Take a descriptor that a system call has just returned.
fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = checked(fd)?;
    // SAFETY: the kernel has just handed out `fd`, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new file in memory whose writers append, closed on exec.
///
/// Appending keeps writers right that open `/dev/stderr` anew, and makes truncation enough to
/// begin again.
pub fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: `name` ends in NUL; the call takes no other pointer.
    let file = owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: plain fcntl on a descriptor that lives.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND) })?;
    Ok(file)
}

/// Open a path, closed on exec.
pub fn open(path: &CStr, flags: libc::c_int, mode: libc::mode_t) -> io::Result<OwnedFd> {
    // SAFETY: `path` ends in NUL; `mode` has the width that the varargs convention asks for.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, mode) })
}

/// Length of an open file, in bytes.
pub fn length(file: &OwnedFd) -> io::Result<u64> {
    // SAFETY: `stat` is plain old data, for which all zeroes is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid to write to.
    checked(unsafe { libc::fstat(file.as_raw_fd(), &mut stat) })?;
    Ok(stat.st_size as u64)
}

/// Cut an open file to nothing.
pub fn truncate(file: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain call on a descriptor that lives.
    checked(unsafe { libc::ftruncate(file.as_raw_fd(), 0) })?;
    Ok(())
}

/// The last bytes of an open file, at most `limit` of them.
pub fn tail(file: &OwnedFd, limit: usize) -> io::Result<Vec<u8>> {
    let size = length(file)?;
    let start = size.saturating_sub(limit as u64);
    let mut bytes = vec![0_u8; (size - start) as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        let Some(rest) = bytes.get_mut(filled..) else {
            break;
        };
        let offset = (start + filled as u64) as libc::off_t;
        // SAFETY: `rest` is valid for writes of its own length.
        let count = checked(unsafe {
            libc::pread(
                file.as_raw_fd(),
                rest.as_mut_ptr().cast(),
                rest.len(),
                offset,
            ) as i64
        })?;
        if count == 0 {
            break;
        }
        filled += count as usize;
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// One `read(2)` into a buffer; the count, 0 at the end of input.
pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `buffer` is valid for writes of its own length.
    let count = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    Ok(checked(count as i64)? as usize)
}

/// One `write(2)` of the whole buffer; a short write is an error, as a line must not be torn.
pub fn write_once(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: `bytes` is valid for reads of its own length.
    let count = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    if checked(count as i64)? as usize != bytes.len() {
        return Err(io::Error::new(
            io::ErrorKind::WriteZero,
            format!("only {count} of {} bytes were written", bytes.len()),
        ));
    }
    Ok(())
}

/// Write the whole buffer, in as many calls as it takes.
pub fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: `bytes` is valid for reads of its own length.
        let count = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        match checked(count as i64) {
            Ok(count) => bytes = bytes.get(count as usize..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Wait until the data of a file are on disk.
pub fn sync_data(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain call on a borrowed descriptor.
    checked(unsafe { libc::fdatasync(fd.as_raw_fd()) })?;
    Ok(())
}

/// Take over a descriptor that was inherited by number, if it is open.
///
/// The answer is the descriptor and its status flags (`O_APPEND`, `O_ACCMODE`, ...).
pub fn adopt(fd: RawFd) -> io::Result<(OwnedFd, libc::c_int)> {
    // SAFETY: fcntl takes any number; a closed one answers EBADF.
    let flags = checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    // SAFETY: it is open, was inherited, and is adopted only once: by the launcher, at its start.
    Ok((unsafe { OwnedFd::from_raw_fd(fd) }, flags))
}

/// Mark every descriptor above the standard ones as closed on exec.
pub fn close_inherited_on_exec() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: close_range with CLOEXEC closes nothing; it only sets a flag.
    let answer =
        unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, CLOSE_RANGE_CLOEXEC) };
    if answer == 0 {
        return;
    }
    // Before Linux 5.11: one by one over those that exist.
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    for entry in entries.flatten() {
        if let Some(fd) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            let fd: RawFd = fd;
            if fd > 2 {
                // SAFETY: sets a flag on a descriptor; one that is gone answers EBADF.
                unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
            }
        }
    }
}

/// Wait until one of the descriptors can be read, or the time is over.
///
/// The answer says for each descriptor, in order, whether it is ready (readable, hung up or in
/// error); all `false` when the time ran out. `None` waits for ever.
pub fn poll<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    timeout_ns: Option<u64>,
) -> io::Result<[bool; N]> {
    let mut entries = fds.map(|fd| libc::pollfd {
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()), // poll(2) skips negative ones
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    let pointer = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `entries` has N elements; `pointer` is null or points to a timespec that lives.
    checked(unsafe {
        libc::ppoll(
            entries.as_mut_ptr(),
            N as libc::nfds_t,
            pointer,
            std::ptr::null(),
        )
    })?;
    Ok(entries.map(|entry| entry.revents != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_tail_of_a_memory_file_is_its_last_bytes_and_truncation_begins_again() {
        let file = memory_file(c"test").unwrap();
        write_all(file.as_fd(), b"0123456789").unwrap();
        assert_eq!(tail(&file, 4).unwrap(), b"6789");
        assert_eq!(tail(&file, 100).unwrap(), b"0123456789");
        truncate(&file).unwrap();
        write_all(file.as_fd(), b"ab").unwrap();
        assert_eq!(tail(&file, 100).unwrap(), b"ab");
    }

    #[test]
    fn poll_times_out_with_nothing_ready() {
        let before = std::time::Instant::now();
        let ready = poll([None, None], Some(5_000_000)).unwrap();
        assert_eq!(ready, [false, false]);
        assert!(before.elapsed().as_millis() >= 5);
    }

    #[test]
    fn a_closed_number_is_not_adopted() {
        assert_eq!(adopt(987).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
