//! The program's only unsafe code: one safe wrapper a system call.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_OBJ_PIN: libc::c_int = 6;
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_LSM: u32 = 29;
const BPF_LSM_MAC: u32 = 27;
/// The keyring of the session, as `add_key` takes it.
const KEY_SPEC_SESSION_KEYRING: i32 = -3;

fn checked(answer: libc::c_long) -> io::Result<libc::c_long> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` is a live, fully initialised repr(C) struct of the size given, and every
    // address in it points to memory that outlives the call.
    checked(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            std::mem::size_of::<T>(),
        )
    })
}

fn bpf_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the kernel has just handed out `fd`.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

fn number_of(fd: &OwnedFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// Make an array of one counter of 64 bits.
pub fn counter_map() -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    }
    let mut attributes = Attributes {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
    };
    bpf_fd(BPF_MAP_CREATE, &mut attributes)
}

/// Read the counter of such an array.
pub fn counter_value(map: &OwnedFd) -> io::Result<u64> {
    #[repr(C)]
    struct Attributes {
        map_fd: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let key = 0_u32;
    let mut value = 0_u64;
    let mut attributes = Attributes {
        map_fd: number_of(map),
        padding: 0,
        key: &raw const key as u64,
        value: &raw mut value as u64,
        flags: 0,
    };
    bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes)?;
    Ok(value)
}

/// One instruction of BPF.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A program that adds one to the counter and allows.
///
/// Source: Documentation/bpf/standardization/instruction-set.rst.
fn counting_program(map: &OwnedFd) -> Vec<Instruction> {
    let make = |code, destination: u8, source: u8, offset, immediate| Instruction {
        code,
        registers: destination | source << 4,
        offset,
        immediate,
    };
    vec![
        make(0x62, 10, 0, -4, 0),                   // *(u32 *)(r10 - 4) = 0
        make(0xbf, 2, 10, 0, 0),                    // r2 = r10
        make(0x07, 2, 0, 0, -4),                    // r2 -= 4
        make(0x18, 1, 1, 0, number_of(map) as i32), // r1 = the map
        make(0x00, 0, 0, 0, 0),
        make(0x85, 0, 0, 0, 1), // r0 = bpf_map_lookup_elem(r1, r2)
        make(0x15, 0, 0, 2, 0), // if r0 == 0 skip two
        make(0xb7, 1, 0, 0, 1), // r1 = 1
        make(0xdb, 0, 1, 0, 0), // lock *(u64 *)r0 += r1
        make(0xb7, 0, 0, 0, 0), // r0 = 0: allow
        make(0x95, 0, 0, 0, 0), // exit
    ]
}

/// Load the counting program for the hook whose `bpf_lsm_` function has this BTF id.
pub fn load_lsm_program(map: &OwnedFd, function_id: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program_type: u32,
        instructions: u32,
        instructions_at: u64,
        license_at: u64,
        log_level: u32,
        log_size: u32,
        log_at: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        expected_attach_type: u32,
        btf_fd: u32,
        function_record_size: u32,
        functions_at: u64,
        functions: u32,
        line_record_size: u32,
        lines_at: u64,
        lines: u32,
        attach_btf_id: u32,
    }
    let program = counting_program(map);
    let mut attributes = Attributes {
        program_type: BPF_PROG_TYPE_LSM,
        instructions: program.len() as u32,
        instructions_at: program.as_ptr() as u64,
        license_at: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_at: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"excise_count\0\0\0\0",
        interface: 0,
        expected_attach_type: BPF_LSM_MAC,
        btf_fd: 0,
        function_record_size: 0,
        functions_at: 0,
        functions: 0,
        line_record_size: 0,
        lines_at: 0,
        lines: 0,
        attach_btf_id: function_id,
    };
    bpf_fd(BPF_PROG_LOAD, &mut attributes)
}

/// Attach a loaded program to its hook, for as long as the link exists.
pub fn attach_lsm(program: &OwnedFd) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        name: u64,
        program_fd: u32,
        padding: u32,
    }
    let mut attributes = Attributes {
        name: 0,
        program_fd: number_of(program),
        padding: 0,
    };
    bpf_fd(BPF_RAW_TRACEPOINT_OPEN, &mut attributes)
}

#[repr(C)]
struct PathAttributes {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Give a map or link a name in a BPF file system, so that it outlives this process.
pub fn pin(object: &OwnedFd, path: &CStr) -> io::Result<()> {
    let mut attributes = PathAttributes {
        path: path.as_ptr() as u64,
        fd: number_of(object),
        flags: 0,
    };
    bpf(BPF_OBJ_PIN, &mut attributes).map(|_| ())
}

/// Open what was pinned.
pub fn open_pinned(path: &CStr) -> io::Result<OwnedFd> {
    let mut attributes = PathAttributes {
        path: path.as_ptr() as u64,
        fd: 0,
        flags: 0,
    };
    bpf_fd(BPF_OBJ_GET, &mut attributes)
}

/// Add a key to the session's keyring.
pub fn add_key(kind: &CStr, description: &CStr, payload: &[u8]) -> io::Result<()> {
    // SAFETY: both strings end with NUL, and the payload is as long as stated.
    checked(unsafe {
        libc::syscall(
            libc::SYS_add_key,
            kind.as_ptr(),
            description.as_ptr(),
            payload.as_ptr(),
            payload.len(),
            KEY_SPEC_SESSION_KEYRING,
        )
    })
    .map(|_| ())
}

/// Read an extended attribute.
pub fn attribute(path: &CStr, name: &CStr) -> io::Result<Vec<u8>> {
    let mut value = vec![0_u8; 65536];
    // SAFETY: both strings end with NUL, and the buffer is as long as stated.
    let size = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    if size < 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(size as usize);
    Ok(value)
}
