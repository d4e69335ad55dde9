//! The command line of `excise-probe trace`.

use super::backend::Backend;
use super::bpf;
use super::functions::{self, Wanted};
use super::state;
use crate::error::ProbeError;
use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What is asked for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// Trace.
    Trace(Box<Options>),
    /// Put back what killed traces have left.
    Restore {
        /// Where their state files are.
        states: PathBuf,
    },
    /// Print this kernel's hooks.
    Catalogue {
        /// Those of this file of a kernel instead.
        kernel: Option<PathBuf>,
    },
    /// Stop oneself, then become a program.
    Held(Vec<OsString>),
    /// The help.
    Help,
}

/// Who is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A command, with what it starts.
    Command(Vec<OsString>),
    /// Processes that run, with what they start.
    Processes(Vec<u32>),
    /// Everything but ourselves.
    All,
}

/// How to trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who.
    pub subject: Subject,
    /// What.
    pub wanted: Wanted,
    /// With what; chosen if not given.
    pub backend: Option<Backend>,
    /// Where the trace's text goes.
    pub output: PathBuf,
    /// Where the calibration's text goes.
    pub calibration_output: PathBuf,
    /// Where the summary goes; standard output if not given.
    pub summary: Option<PathBuf>,
    /// Where an error's text goes; standard error if not given, which is the command's, too.
    pub messages: Option<PathBuf>,
    /// Where state files are.
    pub states: PathBuf,
    /// End after so long.
    pub duration: Option<Duration>,
    /// Record system calls.
    pub syscalls: bool,
    /// Record interrupts and switches to other tasks.
    pub interruptions: bool,
    /// Let function_graph also trace the functions of interruptions, so that they are timed.
    pub interruptions_timed: bool,
    /// Size of each processor's buffer.
    pub buffer_kib: u64,
    /// Size of a part of the buffer, where the kernel lets it be chosen; None: as it is.
    pub subbuffer_kib: Option<u64>,
    /// Bytes of a trace that end it.
    pub most_bytes: Option<u64>,
    /// Copy the trace out only when the command has ended.
    pub drain_at_end: bool,
    /// Pairs of runs of the command, without the tracer and with it.
    pub pairs: u32,
    /// Begin no pair after so long.
    pub pairs_within: Option<Duration>,
    /// Calls of the calibration.
    pub calibration: u32,
}

/// The help text.
pub const HELP: &str = "\
Trace hooks of the security framework, or other kernel functions; write the trace and a summary.

Usage: excise-probe trace [OPTIONS] -- COMMAND [ARGUMENT]...
       excise-probe trace [OPTIONS] --pid PID[,PID]... [--duration SECONDS]
       excise-probe trace [OPTIONS] --all --duration SECONDS
       excise-probe trace --restore | --catalogue [--kernel VMLINUX]

  --hooks PATTERNS    hooks or their callers by * and ? (security_* if nothing else is named)
  --lsm MODULES       all functions of these modules: selinux, apparmor, tomoyo, landlock, ima, ...
  --functions PATTERNS
                      any other functions
  --tpm, --ima        functions of TPM drivers and IMA's extend; of IMA and EVM
  --backend NAME      function_graph, fprobe, kprobe, bpftrace (sums only; where it is installed), or
                      function (counts only); chosen if not given
  --output FILE       where the trace's text goes (excise-trace.txt); the calibration's text goes to
                      FILE.calibration
  --summary FILE      where the summary, one JSON line, goes (standard output)
  --messages FILE     where an error's text goes (standard error, which is the command's, too)
  --no-syscalls       do not record which system call a hook is called in
  --no-interruptions  do not record interrupts and switches to other tasks
  --time-interruptions
                      let function_graph trace the functions of those, too, so that they are timed
  --duration SECONDS  end after so long
  --buffer-kb N       each processor's buffer (8192)
  --subbuffer-kb N    parts that the buffer has, up to 512, in an instance of Linux 6.8 or newer: each
                      begin of a part takes time of its own, in whatever function it falls
  --most-bytes N      end the trace when it is so long; a command goes on without it
  --drain WHEN        live: copy the trace out while the command runs; end: when it has ended (live)
  --pairs N           run the command N times untraced and N times traced, in turn, after a first run
                      that finds caches cold, to see what tracing costs it; the trace is that of
                      the last traced run (0: only one run, traced)
  --pairs-within SECONDS
                      begin no further pair after so long
  --calibration N     calls of an empty function, by which the tracer's own cost is known (200)
  --catalogue         print the kernel's hooks, with the functions that call them in its text
  --states DIR        where the file is that tells --restore what to put back (/run/excise)

It works in an instance of tracefs of its own wherever the kernel can, and puts back what it
changed, also at Ctrl-C and SIGTERM; after a kill -9, --restore does. A tracer that is in use is left alone.

Example: excise-probe trace --lsm apparmor --output t.txt -- ls /etc
";

fn usage(error: impl std::fmt::Display) -> ProbeError {
    ProbeError::Usage(format!("trace: {error}"))
}

fn value(parser: &mut lexopt::Parser) -> Result<String, ProbeError> {
    parser.value().and_then(|word| word.string()).map_err(usage)
}

fn listed(parser: &mut lexopt::Parser, into: &mut Vec<String>) -> Result<(), ProbeError> {
    let text = value(parser)?;
    into.extend(
        text.split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::to_owned),
    );
    Ok(())
}

fn number<T: std::str::FromStr>(parser: &mut lexopt::Parser, name: &str) -> Result<T, ProbeError> {
    let word = value(parser)?;
    word.parse()
        .map_err(|_| usage(format!("{name} {word}: expected a whole number")))
}

fn seconds(parser: &mut lexopt::Parser, name: &str) -> Result<Duration, ProbeError> {
    let word = value(parser)?;
    word.parse()
        .ok()
        .filter(|&seconds: &f64| seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| usage(format!("{name} {word}: expected seconds above 0")))
}

fn processes(parser: &mut lexopt::Parser) -> Result<Vec<u32>, ProbeError> {
    let word = value(parser)?;
    word.split(',')
        .map(|id| {
            id.trim().parse().map_err(|_| {
                usage(format!(
                    "--pid {word}: expected process ids joined by commas"
                ))
            })
        })
        .collect()
}

/// Words as they come, before they are looked at together.
struct Words {
    options: Options,
    processes: Vec<u32>,
    all: bool,
    command: Vec<OsString>,
}

/// Read the words after `trace`.
pub fn parse(parser: &mut lexopt::Parser) -> Result<Asked, ProbeError> {
    let mut words = Words {
        options: Options {
            subject: Subject::All,
            wanted: Wanted::default(),
            backend: None,
            output: PathBuf::from("excise-trace.txt"),
            calibration_output: PathBuf::new(),
            summary: None,
            messages: None,
            states: PathBuf::from(state::USUAL_PLACE),
            duration: None,
            syscalls: true,
            interruptions: true,
            interruptions_timed: false,
            buffer_kib: 8192,
            subbuffer_kib: None,
            most_bytes: None,
            drain_at_end: false,
            pairs: 0,
            pairs_within: None,
            calibration: 200,
        },
        processes: Vec::new(),
        all: false,
        command: Vec::new(),
    };
    let (mut restore, mut catalogue, mut kernel) = (false, false, None);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Short('h') | Long("help") => return Ok(Asked::Help),
            Long("restore") => restore = true,
            Long("catalogue") => catalogue = true,
            Long("kernel") => kernel = Some(PathBuf::from(parser.value().map_err(usage)?)),
            Long(word) => {
                let word = word.to_owned();
                option(&word, parser, &mut words)?;
            }
            Value(word) => {
                // From here on all words are the command's, its options too.
                words.command.push(word);
                words.command.extend(parser.raw_args().map_err(usage)?);
            }
            Short(_) => return Err(usage(argument.unexpected())),
        }
    }
    if catalogue {
        return Ok(Asked::Catalogue { kernel });
    }
    if kernel.is_some() {
        return Err(usage("--kernel needs --catalogue"));
    }
    if restore {
        let states = words.options.states;
        return Ok(Asked::Restore { states });
    }
    together(words).map(|options| Asked::Trace(Box::new(options)))
}

fn option(word: &str, parser: &mut lexopt::Parser, words: &mut Words) -> Result<(), ProbeError> {
    let options = &mut words.options;
    let wanted = &mut options.wanted;
    let owned = |patterns: &[&str]| {
        patterns
            .iter()
            .map(|&text| text.to_owned())
            .collect::<Vec<_>>()
    };
    match word {
        "hooks" => listed(parser, &mut wanted.hooks)?,
        "lsm" => listed(parser, &mut wanted.modules)?,
        "functions" => listed(parser, &mut wanted.functions)?,
        "tpm" => wanted.functions.extend(owned(functions::TPM)),
        "ima" => wanted.functions.extend(owned(functions::IMA)),
        "backend" => {
            let name = value(parser)?;
            let known = Backend::from_name(&name);
            options.backend = Some(known.ok_or_else(|| {
                usage(format!(
                    "--backend {name}: expected function_graph, fprobe, kprobe, bpftrace or function"
                ))
            })?);
        }
        "output" => options.output = PathBuf::from(parser.value().map_err(usage)?),
        "summary" => options.summary = Some(PathBuf::from(parser.value().map_err(usage)?)),
        "messages" => options.messages = Some(PathBuf::from(parser.value().map_err(usage)?)),
        "states" => options.states = PathBuf::from(parser.value().map_err(usage)?),
        "no-syscalls" => options.syscalls = false,
        "time-interruptions" => options.interruptions_timed = true,
        "no-interruptions" => options.interruptions = false,
        "duration" => options.duration = Some(seconds(parser, "--duration")?),
        "buffer-kb" => options.buffer_kib = number(parser, "--buffer-kb")?,
        "subbuffer-kb" => options.subbuffer_kib = Some(number(parser, "--subbuffer-kb")?),
        "most-bytes" => options.most_bytes = Some(number(parser, "--most-bytes")?),
        "pairs" => options.pairs = number(parser, "--pairs")?,
        "pairs-within" => options.pairs_within = Some(seconds(parser, "--pairs-within")?),
        "calibration" => options.calibration = number(parser, "--calibration")?,
        "drain" => match value(parser)?.as_str() {
            "live" => options.drain_at_end = false,
            "end" => options.drain_at_end = true,
            other => return Err(usage(format!("--drain {other}: expected live or end"))),
        },
        "pid" => words.processes = processes(parser)?,
        "all" => words.all = true,
        _ => return Err(usage(format!("unknown option --{word} (see --help)"))),
    }
    Ok(())
}

fn together(words: Words) -> Result<Options, ProbeError> {
    let mut options = words.options;
    let given = [
        !words.command.is_empty(),
        !words.processes.is_empty(),
        words.all,
    ];
    if given.into_iter().filter(|&each| each).count() != 1 {
        return Err(usage(
            "expected one of: a command after --, --pid, --all (see --help)",
        ));
    }
    options.calibration_output = bpf::beside(&options.output, "calibration");
    options.subject = if words.all {
        Subject::All
    } else if words.processes.is_empty() {
        Subject::Command(words.command)
    } else {
        Subject::Processes(words.processes)
    };
    if options.pairs > 0 && !matches!(options.subject, Subject::Command(_)) {
        return Err(usage("--pairs runs a command, and there is none"));
    }
    if options.buffer_kib == 0 {
        return Err(usage("--buffer-kb 0: expected at least 1"));
    }
    let wanted = &mut options.wanted;
    if wanted.hooks.is_empty() && wanted.functions.is_empty() {
        wanted.hooks.push("security_*".to_owned());
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Asked, ProbeError> {
        parse(&mut lexopt::Parser::from_args(words))
    }

    fn options(words: &[&str]) -> Options {
        match read(words) {
            Ok(Asked::Trace(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_command_is_traced_by_its_hooks_unless_said_otherwise() {
        let found = options(&["--lsm", "selinux,apparmor", "--", "ls", "--all"]);
        assert_eq!(found.wanted.hooks, ["security_*"]);
        assert_eq!(found.wanted.modules, ["selinux", "apparmor"]);
        assert_eq!(
            found.subject,
            Subject::Command(vec!["ls".into(), "--all".into()])
        );
        assert!(options(&["--functions", "vfs_*", "ls"])
            .wanted
            .hooks
            .is_empty());
        assert!(options(&["--tpm", "ls"])
            .wanted
            .functions
            .contains(&"tpm2_*".to_owned()));
    }

    #[test]
    fn processes_and_everything_take_a_duration() {
        let found = options(&["--pid", "1, 2", "--duration", "1.5"]);
        assert_eq!(found.subject, Subject::Processes(vec![1, 2]));
        assert_eq!(found.duration, Some(Duration::from_millis(1500)));
        assert_eq!(options(&["--all", "--duration", "1"]).subject, Subject::All);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, reason) in [
            (&[][..], "expected one of"),
            (&["--all", "ls"], "expected one of"),
            (&["--pid", "x"], "--pid x"),
            (&["--backend", "magic", "ls"], "--backend magic"),
            (&["--drain", "never", "ls"], "--drain never"),
            (&["--duration", "0", "ls"], "--duration 0"),
            (&["--buffer-kb", "0", "ls"], "--buffer-kb 0"),
            (&["--pairs", "1", "--all"], "--pairs"),
            (&["--pairs-within", "-1", "ls"], "--pairs-within -1"),
            (&["--kernel", "vmlinux"], "--kernel needs"),
            (&["--colour", "ls"], "--colour"),
        ] {
            let text = read(words).unwrap_err().to_string();
            assert!(text.contains(reason), "{words:?}: {text}");
        }
    }

    #[test]
    fn restoring_needs_no_command() {
        assert!(matches!(read(&["--restore"]), Ok(Asked::Restore { .. })));
        assert!(matches!(
            read(&["--catalogue"]),
            Ok(Asked::Catalogue { kernel: None })
        ));
    }
}
