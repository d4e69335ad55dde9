//! The back-end bpftrace: a script that sums up in the kernel, and the program that runs it.
//!
//! Its maps, which bpftrace prints as JSON when it ends: `@time` (count, average and total), `@least`,
//! `@most` and `@spread` (histogram) by function and system call + 1, `@entered` by system call,
//! `@again` (calls inside themselves) and `@lone` (returns without a beginning) by function, `@begin`
//! (calls that did not end) by thread and function, `@each` (single durations of the calibration).
//! Functions are numbers: their places in the list of the summary.

use super::tracefs;
use crate::error::ProbeError;
use crate::launch::find_program;
use crate::sys::process::Pid;
use crate::sys::{hold, process};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What it is installed as.
const PROGRAM: &str = "bpftrace";
/// What the script prints first; bpftrace prints nothing before everything is attached.
const READY: &[u8] = b"excise: ready";
/// Entries that a map has room for.
const MAP_KEYS: &str = "32768";
/// The first namespace of processes (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// How a script is attached to functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attached {
    /// By trampolines, which cost least; they need the kernel's BTF.
    Fentry,
    /// By kprobes and kretprobes.
    Kprobe,
}

impl Attached {
    /// Both, in the order in which they are tried.
    pub const ALL: [Self; 2] = [Self::Fentry, Self::Kprobe];

    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Fentry => ["kfunc", "kretfunc"],
            Self::Kprobe => ["kprobe", "kretprobe"],
        }
    }

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Fentry => "attached by trampolines (kfunc)",
            Self::Kprobe => "attached by kprobes",
        }
    }
}

/// Whom a script follows.
#[derive(Clone, Debug)]
pub enum Followed {
    /// Threads, with what they start.
    Threads(Vec<Pid>),
    /// All but us and bpftrace.
    All,
}

/// A function, and whose calls of it are kept one by one.
#[derive(Clone, Debug)]
pub struct Probed<'a> {
    /// Its name.
    pub name: &'a str,
    /// A thread.
    pub each_of: Option<Pid>,
}

/// Whether it can be used here, and why.
pub fn offered() -> (bool, &'static str) {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    match (program(), namespace.to_str() == Some(FIRST_NAMESPACE)) {
        (None, _) => (false, "bpftrace is not installed"),
        (Some(_), false) => (
            false,
            "bpftrace counts by the machine's process ids, and this is a container with its own",
        ),
        (Some(_), true) => (true, "bpftrace is installed"),
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let usual = format!("{path}:/usr/local/bin:/usr/bin:/usr/sbin");
    let found = find_program(PROGRAM, &usual, None).ok()?;
    Some(PathBuf::from(found.to_string_lossy().into_owned()))
}

/// The script that times functions.
pub fn script(
    functions: &[Probed],
    attached: Attached,
    followed: &Followed,
    syscalls: bool,
) -> String {
    let mut text = begin(followed);
    let filter = match followed {
        Followed::Threads(_) => "/@follow[tid]/".to_owned(),
        Followed::All => format!("/pid != {} && pid != @own/", process::id()),
    };
    if syscalls {
        let _ = write!(
            text,
            "tracepoint:raw_syscalls:sys_enter {filter} \
             {{ @nr[tid] = args->id + 1; @entered[args->id] = count(); }}\n\
             tracepoint:raw_syscalls:sys_exit /@nr[tid]/ {{ delete(@nr[tid]); }}\n"
        );
    }
    let syscall = if syscalls { "@nr[tid]" } else { "(int64)0" };
    let [enter, leave] = attached.names();
    for (number, function) in functions.iter().enumerate() {
        let name = function.name;
        let each = function.each_of.map_or_else(String::new, |thread| {
            format!("if (tid == {thread}) {{ @n{number}++; @each[{number}, @n{number}] = $d; }} ")
        });
        let _ = write!(
            text,
            "{enter}:{name} {filter} {{ \
               if (@begin[tid, {number}]) {{ @again[{number}] = count(); }} \
               @begin[tid, {number}] = nsecs; }}\n\
             {leave}:{name} {filter} {{ \
               $now = nsecs; $b = @begin[tid, {number}]; \
               if ($b) {{ $d = $now - $b; delete(@begin[tid, {number}]); $s = {syscall}; \
               @time[{number}, $s] = stats($d); @spread[{number}, $s] = hist($d); \
               @least[{number}, $s] = min($d); @most[{number}, $s] = max($d); {each}}} \
               else {{ @lone[{number}] = count(); }} }}\n"
        );
    }
    text.push_str("END { ");
    text.push_str(match followed {
        Followed::Threads(_) => "clear(@follow); ",
        Followed::All => "delete(@own); ",
    });
    text.push_str(if syscalls { "clear(@nr); }\n" } else { "}\n" });
    text
}

fn begin(followed: &Followed) -> String {
    let ready = "printf(\"excise: ready\\n\");";
    match followed {
        Followed::All => format!("BEGIN {{ @own = pid; {ready} }}\n"),
        Followed::Threads(threads) => {
            let set: String = threads
                .iter()
                .map(|thread| format!("@follow[(uint64){thread}] = 1; "))
                .collect();
            format!(
                "BEGIN {{ {set}{ready} }}\n\
                 tracepoint:sched:sched_process_fork /@follow[tid]/ \
                 {{ @follow[(uint64)args->child_pid] = 1; }}\n\
                 tracepoint:sched:sched_process_free {{ delete(@follow[(uint64)args->pid]); }}\n"
            )
        }
    }
}

/// A running bpftrace; it is killed when this is dropped, and by the kernel when we die.
pub struct Running {
    child: Child,
    output: PathBuf,
    errors: PathBuf,
    from: u64,
}

/// How far a start has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Not attached yet.
    Waits,
    /// Everything is attached.
    Ready,
    /// It has ended in place of that.
    Ended,
}

impl Running {
    /// Start a script, which is kept beside the output.
    ///
    /// The output is appended to.
    pub fn start(text: &str, output: &Path, file: &mut File) -> Result<Self, ProbeError> {
        let program =
            program().ok_or_else(|| ProbeError::Unsupported("bpftrace is gone".to_owned()))?;
        let script = beside(output, "bt");
        fs::write(&script, text).map_err(|error| ProbeError::file(&script, &error))?;
        let errors = beside(output, "bpftrace-errors");
        let errors_file =
            File::create(&errors).map_err(|error| ProbeError::file(&errors, &error))?;
        let from = file
            .seek(SeekFrom::End(0))
            .map_err(|error| ProbeError::file(output, &error))?;
        let stdout = file
            .try_clone()
            .map_err(|error| ProbeError::file(output, &error))?;
        let mut command = Command::new(&program);
        command
            .args(["-f", "json", "-B", "line"])
            .arg(&script)
            .env("BPFTRACE_MAP_KEYS_MAX", MAP_KEYS)
            .env("BPFTRACE_MAX_PROBES", "65536")
            .env("BPFTRACE_MAX_BPF_PROGS", "65536")
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(errors_file);
        let child =
            hold::spawn_bound(&mut command).map_err(|error| ProbeError::file(&program, &error))?;
        Ok(Self {
            child,
            output: output.to_owned(),
            errors,
            from,
        })
    }

    /// Look whether everything is attached.
    pub fn look(&mut self) -> Result<Start, ProbeError> {
        let ended = self.has_ended()?;
        let mut head = vec![0_u8; 4096];
        let count = File::open(&self.output)
            .and_then(|mut file| {
                file.seek(SeekFrom::Start(self.from))?;
                file.read(&mut head)
            })
            .map_err(|error| tracefs::refused(&self.output, &error))?;
        head.truncate(count);
        Ok(
            match (ended, head.windows(READY.len()).any(|at| at == READY)) {
                (true, _) => Start::Ended,
                (false, true) => Start::Ready,
                (false, false) => Start::Waits,
            },
        )
    }

    /// Ask it to print its maps and to end.
    pub fn interrupt(&self) {
        if let Ok(pid) = Pid::try_from(self.child.id()) {
            hold::interrupt(pid);
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool, ProbeError> {
        self.child
            .try_wait()
            .map(|ending| ending.is_some())
            .map_err(|error| ProbeError::step("wait for bpftrace", &error))
    }

    /// Whether it ended as it should; else its own words.
    pub fn outcome(&mut self) -> Result<(), ProbeError> {
        let status = self
            .child
            .wait()
            .map_err(|error| ProbeError::step("wait for bpftrace", &error))?;
        match status.success() {
            true => Ok(()),
            false => Err(ProbeError::Unsupported(format!(
                "bpftrace ended with {status}: {}",
                self.words()
            ))),
        }
    }

    /// What it said, shortened.
    pub fn words(&self) -> String {
        let text = fs::read(&self.errors).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        let shown = lines.join("; ").chars().take(600).collect::<String>();
        match shown.is_empty() {
            true => "it said nothing".to_owned(),
            false => shown,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if fs::metadata(&self.errors).is_ok_and(|found| found.len() == 0) {
            let _ = fs::remove_file(&self.errors);
        }
    }
}

/// The path of a file beside the output: its name with a further ending.
pub fn beside(output: &Path, ending: &str) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(names: &[&'static str]) -> Vec<Probed<'static>> {
        names
            .iter()
            .map(|name| Probed {
                name,
                each_of: None,
            })
            .collect()
    }

    #[test]
    fn a_script_times_every_function_in_its_system_call() {
        let functions = probed(&["security_file_open", "security_inode_permission"]);
        let text = script(
            &functions,
            Attached::Fentry,
            &Followed::Threads(vec![7, 8]),
            true,
        );
        for words in [
            "@follow[(uint64)7] = 1; @follow[(uint64)8] = 1;",
            "kfunc:security_file_open /@follow[tid]/",
            "kretfunc:security_inode_permission /@follow[tid]/",
            "@time[1, $s] = stats($d)",
            "$s = @nr[tid];",
            "raw_syscalls:sys_enter",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("@each"));
    }

    #[test]
    fn everybody_but_us_and_bpftrace_is_followed_by_kprobes_without_system_calls() {
        let text = script(
            &probed(&["vfs_read"]),
            Attached::Kprobe,
            &Followed::All,
            false,
        );
        assert!(text.contains(&format!("/pid != {} && pid != @own/", process::id())));
        assert!(text.contains("kretprobe:vfs_read"));
        assert!(!text.contains("raw_syscalls") && !text.contains("@nr"));
    }

    #[test]
    fn a_calibration_keeps_single_durations_of_one_thread() {
        let functions = [Probed {
            name: "vfs_read",
            each_of: Some(9),
        }];
        let text = script(
            &functions,
            Attached::Kprobe,
            &Followed::Threads(vec![9]),
            false,
        );
        assert!(text.contains("if (tid == 9) { @n0++; @each[0, @n0] = $d; }"));
    }
}
