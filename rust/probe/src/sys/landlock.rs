//! Landlock: the kernel's own rights and calls.

use super::checked;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Execute a file.
pub const EXECUTE: u64 = 1;
/// Open a file for writing.
pub const WRITE_FILE: u64 = 1 << 1;
/// Open a file for reading.
pub const READ_FILE: u64 = 1 << 2;
/// List a directory.
pub const READ_DIR: u64 = 1 << 3;
/// Cut a file (from ABI 3 on).
pub const TRUNCATE: u64 = 1 << 14;
/// Make device ioctls (from ABI 5 on).
pub const IOCTL_DEV: u64 = 1 << 15;
/// The rights that mean something for a file, as opposed to a directory.
const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

/// Every file system right that a Landlock ABI knows (`LANDLOCK_ACCESS_FS_*`).
///
/// 13 rights in ABI 1 (Linux 5.13), REFER in 2 (5.19), TRUNCATE in 3 (6.2), IOCTL_DEV in 5 (6.10);
/// ABI 4, 6 and 7 added network rights, scopes and log flags, no file system right.
pub fn all_rights(abi: u32) -> u64 {
    match abi {
        0 => 0,
        1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    }
}

/// The running kernel's Landlock ABI; 0 where it has none or it is not enabled at boot.
pub fn abi() -> u32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no pointer.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u64>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(answer).unwrap_or(0)
}

/// A set of rules that is not in force yet.
pub struct Ruleset {
    handled: u64,
    fd: OwnedFd,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

impl Ruleset {
    /// A ruleset that denies all the given rights but where a rule allows them.
    pub fn new(handled: u64) -> io::Result<Self> {
        // SAFETY: `handled` is the first field of landlock_ruleset_attr, whose size is given.
        let fd = checked(unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                &raw const handled,
                std::mem::size_of::<u64>(),
                0_u32,
            )
        })?;
        // SAFETY: the kernel has just handed out `fd`.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
        Ok(Self { handled, fd })
    }

    /// Allow rights on a file, or on a directory and all beneath it.
    pub fn allow(&self, path: &CStr, rights: u64) -> io::Result<()> {
        let place = super::fd::open(path, libc::O_PATH, 0)?;
        // SAFETY: `stat` is plain old data.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid to write to.
        checked(unsafe { libc::fstat(place.as_raw_fd(), &mut stat) })?;
        let is_directory = (stat.st_mode & libc::S_IFMT) == libc::S_IFDIR;
        let meaningful = if is_directory { u64::MAX } else { FILE_RIGHTS };
        let rule = PathBeneath {
            allowed_access: rights & self.handled & meaningful,
            parent_fd: place.as_raw_fd(),
        };
        const PATH_BENEATH: u32 = 1;
        // SAFETY: `rule` is laid out (packed) as landlock_path_beneath_attr.
        checked(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.fd.as_raw_fd(),
                PATH_BENEATH,
                &raw const rule,
                0_u32,
            )
        })?;
        Ok(())
    }

    /// Put the rules in force for this process and all its children to come.
    pub fn enforce(self) -> io::Result<()> {
        // SAFETY: takes a descriptor and flags.
        checked(unsafe {
            libc::syscall(libc::SYS_landlock_restrict_self, self.fd.as_raw_fd(), 0_u32)
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_abi_knows_the_rights_of_the_one_before() {
        for abi in 1..10 {
            let (older, newer) = (all_rights(abi - 1), all_rights(abi));
            assert_eq!(older & newer, older);
        }
        assert_eq!(all_rights(2) & TRUNCATE, 0);
        assert_eq!(all_rights(3) & TRUNCATE, TRUNCATE);
        assert_eq!(all_rights(7).count_ones(), 16);
    }
}
