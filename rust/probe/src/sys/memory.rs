//! This process's own resident memory, kept small.
//!
//! A child that shares our memory until its exec leaves our peak as a floor under its own
//! `ru_maxrss` (`setmax_mm_hiwater_rss` in the kernel's `exec_mmap`). A static Rust program touches
//! more than /bin/true does, nearly all of it pages of its own file, and most of those only because
//! the kernel maps up to 64 KiB around each page that is touched ("fault-around").

use super::checked;
use super::process::status_field;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Give back the pages of the program file, have them return one by one, begin a new peak.
///
/// The pages are clean and come back from the page cache when they are touched again. Fault-around
/// stops at the end of a mapping, so every second page gets advice that its neighbours lack, which
/// makes each page a mapping of its own. Where the kernel has no `smaps` or no `clear_refs` the old
/// peak stays, which only raises the floor.
pub fn shrink() -> io::Result<()> {
    let program = std::fs::read_link("/proc/self/exe")?;
    if let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") {
        for (start, end) in unmodified_mappings(&maps, &program.to_string_lossy()) {
            give_back(start, end);
        }
    }
    let _ = std::fs::write("/proc/self/clear_refs", "5"); // CONFIG_PROC_PAGE_MONITOR
    Ok(())
}

fn give_back(start: usize, end: usize) {
    let page = super::calls::page_size();
    let advise = |address: usize, length: usize, advice: libc::c_int| {
        // SAFETY: the range is a private mapping of the program file that cannot be written to and
        // has no page of its own: its content is the file's and is read back at the next touch.
        unsafe { libc::madvise(address as *mut libc::c_void, length, advice) };
    };
    for address in (start..end).step_by(2 * page) {
        advise(address, page, libc::MADV_RANDOM);
    }
    advise(start, end - start, libc::MADV_DONTNEED);
}

/// Ranges of the mappings of a file that are not writable and never were written to.
///
/// Relocated read-only data (RELRO) was: its pages are anonymous, and must not be dropped.
fn unmodified_mappings(maps: &str, file: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in maps.lines() {
        if let Some(anonymous) = line.strip_prefix("Anonymous:") {
            let untouched = anonymous.split_whitespace().next() == Some("0");
            found.extend(candidate.take().filter(|_| untouched));
        } else if line.ends_with(file) {
            candidate = unwritable_range(line);
        }
    }
    found
}

fn unwritable_range(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    if words.next()?.contains('w') {
        return None;
    }
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}

/// Where the kernel tells this process's own peak.
pub struct Peak(OwnedFd);

impl Peak {
    /// Open it once; its content is made anew at each reading.
    pub fn open() -> io::Result<Self> {
        let file = super::fd::open(c"/proc/self/status", libc::O_RDONLY, 0)?;
        Ok(Self(file))
    }

    /// `VmHWM`, in bytes: the peak since the start, or since `shrink`.
    ///
    /// Unlike `ru_maxrss` of RUSAGE_SELF it does not hold the peak of whoever started us.
    pub fn bytes(&self) -> Option<u64> {
        let mut text = [0_u8; 2048];
        // SAFETY: `text` is valid for writes of its own length.
        let count = checked(unsafe {
            libc::pread(self.0.as_raw_fd(), text.as_mut_ptr().cast(), text.len(), 0) as i64
        })
        .ok()?;
        let kibibytes = status_field(text.get(..count as usize)?, "VmHWM")?;
        Some(kibibytes * 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_untouched_read_only_mappings_of_the_file_are_given_back() {
        let maps = "\
00200000-00247000 r--p 00000000 fe:00 5399017    /opt/probe
Rss:                 256 kB
Anonymous:             0 kB
00247000-00336000 r-xp 00046000 fe:00 5399017    /opt/probe
Anonymous:             0 kB
00336000-0033b000 r--p 00134000 fe:00 5399017    /opt/probe
Anonymous:            20 kB
0033b000-0033f000 rw-p 00138000 fe:00 5399017    /opt/probe
Anonymous:             0 kB
7f989e171000-7f989e173000 r-xp 00000000 00:00 0  [vdso]
Anonymous:             0 kB
";
        let ranges = unmodified_mappings(maps, "/opt/probe");
        assert_eq!(ranges, [(0x20_0000, 0x24_7000), (0x24_7000, 0x33_6000)]);
    }

    #[test]
    fn a_process_has_a_peak_of_some_pages() {
        assert!(Peak::open().unwrap().bytes().unwrap() > 4096);
    }
}
