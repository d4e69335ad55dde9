//! One name for a system call, whatever calls it: a number, an event, or a function of the kernel.
//!
//! The name is that of the table by number. The kernel's functions have others: prefixes of machine
//! and layer, and older or wider variants of the call.
//!
//! Source: arch/x86/entry/syscalls/syscall_{32,64}.tbl, scripts/syscall.tbl,
//! include/linux/{syscalls,compat}.h of Linux 6.12.

/// Prefixes of functions that are the entry of a system call.
const ENTRIES: &[&[u8]] = &[
    b"__x64_sys_",
    b"__ia32_sys_",
    b"__ia32_compat_sys_",
    b"__x32_compat_sys_",
    b"__x64_compat_sys_",
    b"__arm64_sys_",
    b"__arm64_compat_sys_",
    b"__riscv_sys_",
    b"__riscv_compat_sys_",
    b"__s390x_sys_",
    b"__s390_sys_",
    b"__s390_compat_sys_",
    b"__powerpc_sys_",
    b"__se_sys_",
    b"__se_compat_sys_",
    b"__do_sys_",
    b"__do_compat_sys_",
    b"SyS_",
    b"compat_SyS_",
];
/// The prefix of what entries call, and other functions of the kernel too.
const SHARED: &[u8] = b"ksys_";
/// Functions with that prefix that are no system call.
const NO_CALLS: &[&[u8]] = &[b"sync_helper"];
/// Names of functions and of their system call, where they differ.
const NAMES: &[(&[u8], &[u8])] = &[
    (b"newstat", b"stat"),
    (b"newlstat", b"lstat"),
    (b"newfstat", b"fstat"),
    (b"newuname", b"uname"),
    (b"umount", b"umount2"),
    (b"sendfile64", b"sendfile"),
    (b"mmap_pgoff", b"mmap"),
    (b"fadvise64_64", b"fadvise64"),
];

/// The system call that a function such as `__x64_sys_newstat` is the entry of.
pub(super) fn entry(function: &[u8]) -> Option<&[u8]> {
    if !matches!(function.first(), Some(b'_' | b'S' | b'c')) {
        return None;
    }
    let call = ENTRIES
        .iter()
        .find_map(|prefix| function.strip_prefix(*prefix))?;
    Some(plain(call))
}

/// The system call that a function such as `ksys_read` does the work of; others may call it, too.
pub(super) fn shared(function: &[u8]) -> Option<&[u8]> {
    let call = function.strip_prefix(SHARED)?;
    (!NO_CALLS.contains(&call)).then(|| plain(call))
}

/// The name that the table by number has for a call's own name in the kernel.
pub(super) fn plain(call: &[u8]) -> &[u8] {
    let call = call.strip_prefix(b"ia32_").unwrap_or(call);
    let call = match call.strip_suffix(b"_time32") {
        Some(before) => before,
        // `clock_gettime32`, but not what is `_time32` alone.
        None if call.ends_with(b"time32") => call.strip_suffix(b"32").unwrap_or(call),
        None => call,
    };
    NAMES
        .iter()
        .find_map(|(function, name)| (*function == call).then_some(*name))
        .unwrap_or(call)
}

/// The one name of a system call, given by that of a function, an event (`sys_enter_newstat`,
/// `sys_newstat`) or the call.
pub fn canonical(name: &[u8]) -> &[u8] {
    if let Some(call) = entry(name).or_else(|| shared(name)) {
        return call;
    }
    let call = [&b"sys_enter_"[..], b"sys_exit_", b"sys_"]
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix));
    plain(call.unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_name_on_every_machine_and_layer() {
        for name in [
            "__x64_sys_newstat",
            "__ia32_sys_newstat",
            "__ia32_compat_sys_newstat",
            "__arm64_sys_newstat",
            "__se_sys_newstat",
            "__do_sys_newstat",
            "__do_compat_sys_newstat",
            "SyS_newstat",
            "ksys_newstat",
            "sys_enter_newstat",
            "sys_newstat",
            "newstat",
            "stat",
        ] {
            assert_eq!(canonical(name.as_bytes()), b"stat", "{name}");
        }
    }

    #[test]
    fn calls_of_32_bits_and_those_with_a_name_of_their_own_have_that_of_the_table() {
        for (function, name) in [
            ("__x64_sys_newfstatat", "newfstatat"),
            ("__x64_sys_pread64", "pread64"),
            ("ksys_pread64", "pread64"),
            ("ksys_mmap_pgoff", "mmap"),
            ("__x64_sys_umount", "umount2"),
            ("__ia32_sys_clock_gettime32", "clock_gettime"),
            ("__ia32_sys_futex_time32", "futex"),
            ("__ia32_sys_time32", "time"),
            ("__ia32_compat_sys_ia32_pread64", "pread64"),
            ("__arm64_sys_fadvise64_64", "fadvise64"),
            ("__x64_sys_sendfile64", "sendfile"),
        ] {
            assert_eq!(canonical(function.as_bytes()), name.as_bytes());
        }
    }

    #[test]
    fn other_functions_are_no_entry_of_a_call() {
        for name in ["ksys_sync_helper", "security_file_open", "__sys_bind", ""] {
            assert_eq!(entry(name.as_bytes()), None);
            assert_eq!(shared(name.as_bytes()), None);
        }
        assert_eq!(entry(b"ksys_read"), None);
    }
}
