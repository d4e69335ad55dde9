//! Seccomp filters and the promise of no new privileges.

use super::checked;
use std::io;

/// The most instructions of one filter (`BPF_MAXINSNS`).
pub const MAX_INSTRUCTIONS: usize = 4096;
const INSTRUCTIONS_BESIDE_RULES: usize = 3;
/// The most rules that fit a filter, at two instructions each.
pub const MAX_RULES: u32 = ((MAX_INSTRUCTIONS - INSTRUCTIONS_BESIDE_RULES) / 2) as u32;
/// Rules compare with numbers from here on: past every system call of every architecture, short
/// of the private ones of 32-bit Arm (0x0f0000) and of x32 (bit 30).
const FIRST_NUMBER: u32 = 0x8000;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const OFFSET_OF_NUMBER: u32 = 0;
const OFFSET_OF_FIRST_ARGUMENT: u32 = 16;

fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A filter of `rules` comparisons of the call's number, none of which ever holds; all is allowed.
///
/// Since Linux 5.11 the kernel runs a filter once per call number in advance and skips it for good
/// where the answer cannot depend on the arguments. To be evaluated at every call, as a filter
/// that looks at arguments is, this one loads an argument first (kernel/seccomp.c,
/// `seccomp_is_const_allow`).
pub fn program(rules: u32) -> Option<Vec<libc::sock_filter>> {
    if rules > MAX_RULES {
        return None;
    }
    let mut filter = vec![
        instruction(LOAD_WORD, OFFSET_OF_FIRST_ARGUMENT, 0, 0),
        instruction(LOAD_WORD, OFFSET_OF_NUMBER, 0, 0),
    ];
    for rule in 0..rules {
        filter.push(instruction(JUMP_IF_EQUAL, FIRST_NUMBER + rule, 0, 1));
        filter.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    }
    filter.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    Some(filter)
}

/// Put a filter in force for this process and all its children to come.
pub fn install(filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `program` points to `len` instructions that live; the kernel copies and checks them.
    checked(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    })?;
    Ok(())
}

/// Whether this kernel has seccomp filters.
pub fn available() -> bool {
    let action: u32 = libc::SECCOMP_RET_ALLOW;
    // SAFETY: the call reads one u32 (Linux 4.14).
    unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        ) == 0
    }
}

/// Promise that no exec will give this process more rights.
pub fn set_no_new_privileges() -> io::Result<()> {
    // SAFETY: prctl with numbers; the unused arguments must be zero.
    checked(unsafe {
        libc::prctl(
            libc::PR_SET_NO_NEW_PRIVS,
            1_usize,
            0_usize,
            0_usize,
            0_usize,
        )
    })?;
    Ok(())
}

/// Whether that promise is in force.
pub fn no_new_privileges() -> bool {
    // SAFETY: as above.
    unsafe {
        libc::prctl(
            libc::PR_GET_NO_NEW_PRIVS,
            0_usize,
            0_usize,
            0_usize,
            0_usize,
        ) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_filter_fits_the_kernels_limit_and_one_more_rule_is_refused() {
        let largest = program(MAX_RULES).unwrap();
        assert!(largest.len() <= MAX_INSTRUCTIONS);
        assert!(largest.len() + 2 > MAX_INSTRUCTIONS);
        assert!(program(MAX_RULES + 1).is_none());
    }

    #[test]
    fn a_filter_loads_an_argument_so_that_the_kernel_cannot_skip_it() {
        let filter = program(3).unwrap();
        assert_eq!(filter[0].k, OFFSET_OF_FIRST_ARGUMENT);
        assert_eq!(filter.len(), 3 + 2 * 3);
        let numbers: Vec<u32> = filter
            .iter()
            .filter(|line| line.code == JUMP_IF_EQUAL)
            .map(|line| line.k)
            .collect();
        assert_eq!(numbers, [0x8000, 0x8001, 0x8002]);
    }
}
