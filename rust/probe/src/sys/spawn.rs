//! Starting a child as cheaply as the kernel allows: memory shared until exec, parent suspended.
//!
//! `posix_spawn` does the same, but cannot ask for the child's death when the launcher dies, nor
//! give a pidfd without a race; so this is its careful twin (glibc's `spawni.c` is the model for
//! *what* must hold: all signals blocked, own stack, nothing in the child but system calls).

use super::process::{self, Pid};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Strings as exec wants them: an array of pointers that ends in null, and what they point to.
pub struct StringArray {
    #[cfg_attr(not(test), allow(dead_code))] // it owns what the pointers point to
    strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl StringArray {
    /// Build the array; the strings stay owned by it, so the pointers stay valid.
    pub fn new(strings: Vec<CString>) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(ptr::null());
        Self { strings, pointers }
    }

    /// The strings themselves.
    #[cfg(test)]
    pub fn strings(&self) -> &[CString] {
        &self.strings
    }

    fn as_ptr(&self) -> *const *const libc::c_char {
        self.pointers.as_ptr()
    }
}

/// Everything a child is started with.
pub struct Command<'a> {
    /// The program's path; no search is done.
    pub program: &'a CStr,
    /// Its arguments, the first being its name.
    pub arguments: &'a StringArray,
    /// Its whole environment.
    pub environment: &'a StringArray,
    /// Where it starts, if not where we are.
    pub directory: Option<&'a CStr>,
    /// Standard input, output and error.
    pub standard: [BorrowedFd<'a>; 3],
}

/// Why no child came to be, or why it could not execute its program.
#[derive(Debug)]
pub struct SpawnError {
    /// The step that failed: `clone`, `chdir`, `execve`, ...
    pub step: &'static str,
    /// What the kernel said.
    pub error: io::Error,
}

/// A child that runs its program.
pub struct Child {
    /// Its process id, which is its process group too.
    pub pid: Pid,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
}

/// A stack for the child to run on until it executes its program.
pub struct Stack {
    base: *mut libc::c_void,
}

const STACK_SIZE: usize = 64 * 1024;
const GUARD_SIZE: usize = 16 * 1024; // at least one page wherever pages are at most 16 KiB

impl Stack {
    /// Map the stack, with a guard below it.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping; nothing else is touched.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                STACK_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self { base };
        // SAFETY: the first pages of our own mapping lose their access rights. Where pages are
        // larger than the guard the call fails with EINVAL or covers more; 64 KiB pages then leave
        // no stack, so a failure to protect is accepted but a page of the whole size is not made.
        unsafe {
            if libc::sysconf(libc::_SC_PAGESIZE) as usize <= GUARD_SIZE {
                libc::mprotect(base, GUARD_SIZE, libc::PROT_NONE);
            }
        }
        Ok(stack)
    }

    fn top(&self) -> *mut libc::c_void {
        // SAFETY: one past the end of the mapping; page-aligned, so aligned for any ABI.
        unsafe { self.base.add(STACK_SIZE) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no child runs on it any more (vfork semantics).
        unsafe { libc::munmap(self.base, STACK_SIZE) };
    }
}

const STEPS: [&str; 6] = ["clone", "prctl", "chdir", "dup2", "sigprocmask", "execve"];
const PRCTL: i32 = 1;
const CHDIR: i32 = 2;
const DUP2: i32 = 3;
const MASK: i32 = 4;
const EXECVE: i32 = 5;

/// What the child reads, and where it leaves word of a failure, in the memory it shares with us.
struct Shared<'a, 'b> {
    command: &'b Command<'a>,
    launcher: Pid,
    no_signals: libc::sigset_t,
    failed_step: AtomicI32,
    errno: AtomicI32,
}

/// Start a child. Every signal must be blocked in the caller (see `signal::SignalFile`).
///
/// The child is leader of its own process group, is killed by the kernel if the launcher dies, and
/// has no signal blocked. The call returns once the program has been executed.
pub fn spawn(command: &Command<'_>, stack: &Stack) -> Result<Child, SpawnError> {
    let shared = Shared {
        command,
        launcher: process::id(),
        // SAFETY: `sigset_t` is plain old data; zero is the empty set on Linux.
        no_signals: unsafe { std::mem::zeroed() },
        failed_step: AtomicI32::new(0),
        errno: AtomicI32::new(0),
    };
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: the child runs `run_child` on its own stack while we are suspended (CLONE_VFORK), so
    // `shared` outlives its use; it shares memory but not descriptors; `pidfd` receives the
    // descriptor through the parent_tid argument as CLONE_PIDFD demands (Linux 5.2).
    let pid = unsafe {
        libc::clone(
            run_child,
            stack.top(),
            flags,
            (&raw const shared).cast_mut().cast(),
            &raw mut pidfd,
        )
    };
    if pid < 0 {
        return Err(SpawnError {
            step: "clone",
            error: io::Error::last_os_error(),
        });
    }
    // SAFETY: the kernel has just handed out `pidfd`.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let step = shared.failed_step.load(Ordering::Acquire);
    if step != 0 {
        let errno = shared.errno.load(Ordering::Acquire);
        let _ = process::wait(pid); // it has called _exit; nothing is lost
        return Err(SpawnError {
            step: STEPS.get(step as usize).copied().unwrap_or("clone"),
            error: io::Error::from_raw_os_error(errno),
        });
    }
    Ok(Child { pid, pidfd })
}

/// The child's life before exec: system calls only, no allocation, no return on success.
extern "C" fn run_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `argument` is the `Shared` of `spawn`, which is suspended until we exec or exit.
    let shared = unsafe { &*argument.cast::<Shared<'_, '_>>() };
    let step = prepare_and_execute(shared);
    // SAFETY: this thread's errno always lives; the failed call was the last to set it.
    let errno = unsafe { *libc::__errno_location() };
    shared.errno.store(errno, Ordering::Release);
    shared.failed_step.store(step, Ordering::Release);
    // SAFETY: ends the child without running the launcher's exit handlers.
    unsafe { libc::_exit(127) }
}

/// Make the calls in order; the answer is the step that failed.
fn prepare_and_execute(shared: &Shared<'_, '_>) -> i32 {
    let command = shared.command;
    // SAFETY: system calls with numbers and with pointers that live in `shared`, which outlives us.
    unsafe {
        libc::setpgid(0, 0); // cannot fail for a new child that has not executed
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return PRCTL;
        }
        if libc::getppid() != shared.launcher {
            libc::_exit(127); // the launcher died before the kernel knew of our wish
        }
        if let Some(directory) = command.directory {
            if libc::chdir(directory.as_ptr()) != 0 {
                return CHDIR;
            }
        }
        for (target, source) in (0..).zip(command.standard) {
            if libc::dup2(source.as_raw_fd(), target) < 0 {
                return DUP2;
            }
        }
        if libc::sigprocmask(libc::SIG_SETMASK, &shared.no_signals, ptr::null_mut()) != 0 {
            return MASK;
        }
        libc::execve(
            command.program.as_ptr(),
            command.arguments.as_ptr(),
            command.environment.as_ptr(),
        );
    }
    EXECVE
}

/// Replace this process by another program; returns only if that failed.
pub fn execute(program: &CStr, arguments: &StringArray, environment: &StringArray) -> io::Error {
    // SAFETY: both arrays end in null and live as long as the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Whether a path is a regular file that we may execute.
pub fn is_executable(path: &CStr) -> bool {
    // SAFETY: `stat` is plain old data.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL, `stat` is valid to write to.
    unsafe {
        libc::stat(path.as_ptr(), &mut stat) == 0
            && (stat.st_mode & libc::S_IFMT) == libc::S_IFREG
            && libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0
    }
}
