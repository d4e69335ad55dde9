//! Hardware and software counters through `perf_event_open(2)`.

use super::checked;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Instructions retired.
    Instructions,
    /// Core cycles.
    Cycles,
    /// Page faults: a software event, there on every kernel with perf.
    PageFaults,
    /// Time on a CPU in ns: likewise.
    TaskClock,
}

impl Event {
    fn type_and_config(self) -> (u32, u64) {
        const HARDWARE: u32 = 0;
        const SOFTWARE: u32 = 1;
        match self {
            Event::Cycles => (HARDWARE, 0),
            Event::Instructions => (HARDWARE, 1),
            Event::TaskClock => (SOFTWARE, 1),
            Event::PageFaults => (SOFTWARE, 2),
        }
    }
}

/// In which modes of the processor it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// User mode and the kernel.
    UserAndKernel,
    /// User mode only, all that an unprivileged process gets at `perf_event_paranoid` 2.
    User,
}

/// When it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At once, for this process.
    Now,
    /// In each child from its exec on; this process itself never executes, so never counts.
    OnChildExec,
}

/// `struct perf_event_attr` up to its first published size (PERF_ATTR_SIZE_VER0).
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const ATTRIBUTES_SIZE: u32 = 64;
const _: () = assert!(std::mem::size_of::<Attributes>() == ATTRIBUTES_SIZE as usize);
const TIME_ENABLED_AND_RUNNING: u64 = 1 | 2;
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const ENABLE_ON_EXEC: u64 = 1 << 12;
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// One open counter.
pub struct Counter {
    file: OwnedFd,
    _anchor: Option<OwnedFd>,
}

/// A counter's reading, the sum over all children that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The count.
    pub value: u64,
    /// How long it was wanted, in ns.
    pub enabled_ns: u64,
    /// How long it really counted; less when counters are shared out by time.
    pub running_ns: u64,
}

impl Counter {
    /// Open a counter.
    pub fn open(event: Event, scope: Scope, begin: Begin) -> io::Result<Self> {
        let base = match scope {
            Scope::UserAndKernel => EXCLUDE_HYPERVISOR,
            Scope::User => EXCLUDE_HYPERVISOR | EXCLUDE_KERNEL,
        };
        if begin == Begin::Now {
            return Ok(Self {
                file: open(event, base)?,
                _anchor: None,
            });
        }
        // A switch from parent to child may exchange their contexts where all events were
        // inherited, as both then count alike (`context_equiv` in kernel/events/core.c). Before the
        // child's exec ours are not alike: the exec would enable the parent's event and use up its
        // enable_on_exec, and no later child would be counted. One event that is not inherited, and
        // never counts, keeps the contexts apart.
        Ok(Self {
            _anchor: Some(open(event, base | DISABLED)?),
            file: open(event, base | DISABLED | INHERIT | ENABLE_ON_EXEC)?,
        })
    }

    /// Read it.
    pub fn read(&self) -> io::Result<Reading> {
        let mut values = [0_u64; 3];
        let size = std::mem::size_of_val(&values);
        // SAFETY: `values` is valid for writes of `size` bytes.
        let count = unsafe { libc::read(self.file.as_raw_fd(), values.as_mut_ptr().cast(), size) };
        if checked(count as i64)? as usize != size {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let [value, enabled_ns, running_ns] = values;
        Ok(Reading {
            value,
            enabled_ns,
            running_ns,
        })
    }
}

/// One call, for this process on any processor.
fn open(event: Event, flags: u64) -> io::Result<OwnedFd> {
    let (kind, config) = event.type_and_config();
    let attributes = Attributes {
        kind,
        size: ATTRIBUTES_SIZE,
        config,
        sample_period: 0,
        sample_type: 0,
        read_format: TIME_ENABLED_AND_RUNNING,
        flags,
        wakeup_events: 0,
        breakpoint_type: 0,
        config1: 0,
    };
    // SAFETY: `attributes` is laid out as the kernel wants and says its own size; the other
    // arguments mean: this process, any CPU, no group.
    let fd = checked(unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            0,
            -1,
            -1,
            CLOSE_ON_EXEC,
        )
    })?;
    // SAFETY: the kernel has just handed out `fd`.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
