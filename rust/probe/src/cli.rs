//! The command line: words in, options out; every help text with an example.

use crate::error::ProbeError;
use crate::mechanism::Wanted;
use crate::workload;
use crate::{appraise, exec, launch, run, trace};
use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What the command line asks for.
#[derive(Debug)]
pub enum Command {
    /// Print a text and be done.
    Print(String),
    /// Measure a workload.
    Run(run::Options),
    /// Become another program under mechanisms.
    Exec(exec::Options),
    /// Try what IMA does about a file without a label.
    Appraise(appraise::Options),
    /// Print facts.
    Info,
    /// Serve requests.
    Launch(launch::Options),
    /// Trace kernel functions.
    Trace(trace::Asked),
    /// Do nothing, as /bin/true does: what `fork_execve` executes.
    True,
}

const HELP: &str = "\
excise-probe: measures system calls and commands on a target, with nothing installed there.

Usage: excise-probe COMMAND [OPTIONS]

  run      measure one workload, under Landlock or seccomp if wanted; prints one JSON line
  exec     put itself under Landlock or seccomp, then become another program
  info     print what this kernel and machine offer, as one JSON line
  appraise print in which mode IMA appraises files, found by trying, as one JSON line
  launch   run commands one after the other, measured; requests on standard input
  trace    trace hooks of the security framework and other kernel functions

excise-probe COMMAND --help tells more. Exit codes: 0 done, 1 a step failed, 2 wrong usage,
4 the kernel lacks something.

Example: excise-probe run --workload stat --landlock
";

const MECHANISMS_HELP: &str = "\
  --landlock          deny all file system rights that the kernel's Landlock knows, but those named below
  --landlock-rules FILE
                      --landlock, and further rules: a line each, rights (r, w, x), a space, a path
  --seccomp N         install a filter of N rules, all compared at each call, that allows every call
  --no-new-privs      promise no new privileges (implied by the two others)
";

const INFO_HELP: &str = "\
Print what this kernel and machine offer, each found by trying, as one JSON line.

Usage: excise-probe info

Example: excise-probe info
";

const APPRAISE_HELP: &str = "\
Write a file, take its label (security.ima) away and open it again; print what happened as one JSON
line: refused means enforce, labelled anew fix, opened log, and never labelled off. Needs root.

Usage: excise-probe appraise [OPTIONS]

  --directory DIR     where it is tried, on a file system that the policy appraises (TMPDIR, or /tmp)

Example: excise-probe appraise --directory /var/tmp
";

const LAUNCH_HELP: &str = "\
Run commands one after the other and measure each. Requests come on standard input, one JSON object
a line: {\"op\":\"environment\",...}, {\"op\":\"run\",...}, {\"op\":\"exec\",...}. Answers go to standard output.

Usage: excise-probe launch [OPTIONS]

  --journal-fd N      write each measured line, by one write(2), to this inherited descriptor (O_APPEND) first
  --sync-interval-ms N
                      and wait for the disk (fdatasync) after the first line of each N ms, 0: after every line

SIGTERM or SIGINT: finish the run in progress, leave the rest, exit 0. A second one: kill it, exit 130.

Example: echo '{\"op\":\"run\",\"head\":\"{\\\"sequence\\\":1\",\"argv\":[\"/bin/true\"]}' | excise-probe launch
";

fn run_help() -> String {
    let mut text = String::from(
        "\
Measure one workload and print one JSON line: nanoseconds per operation of each batch.

Usage: excise-probe run --workload NAME [OPTIONS]

  --workload NAME     one of those below
  --operations N      operations in a batch; found by calibration if not given
  --batches B         batches (11)
  --directory DIR     where files are made, in a folder of their own (TMPDIR, or /tmp)
  --calibrate         print only the number of operations that calibration finds
  --mark              for traces: a getppid with a mark as its arguments before and after each batch
",
    );
    text.push_str(MECHANISMS_HELP);
    text.push_str(
        "\nLandlock allows everything beneath DIR, and what the workload itself opens or executes.\n\nWorkloads:\n",
    );
    for known in workload::ALL {
        text.push_str(&format!("  {:<14} {}\n", known.name, known.operation));
    }
    text.push_str(
        "\nExample: excise-probe run --workload open_close --directory /var/tmp --seccomp 100\n",
    );
    text
}

fn exec_help() -> String {
    format!(
        "\
Put this process under mechanisms, then become another program.

Usage: excise-probe exec [OPTIONS] -- COMMAND [ARGUMENT]...

  --directory DIR     the one place that may be written to under --landlock
{MECHANISMS_HELP}
Landlock allows reading and executing everywhere, writing beneath DIR and to /dev/null only.

Example: excise-probe exec --landlock --directory /var/tmp -- ls /
"
    )
}

fn usage(error: impl std::fmt::Display) -> ProbeError {
    ProbeError::Usage(error.to_string())
}

/// Read the words of a command line, the first being the program's name.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, ProbeError> {
    let mut parser = lexopt::Parser::from_iter(words);
    match parser.next().map_err(usage)? {
        None => Err(usage(
            "a command is missing: run, exec, info, appraise, launch or trace (see --help)",
        )),
        Some(Short('h') | Long("help")) => Ok(Command::Print(HELP.to_owned())),
        Some(Short('V') | Long("version")) => Ok(Command::Print(format!(
            "excise-probe {}\n",
            env!("CARGO_PKG_VERSION")
        ))),
        Some(Value(word)) => match word.to_str() {
            Some("run") => parse_run(&mut parser),
            Some("exec") => parse_exec(&mut parser),
            Some("info") => parse_info(&mut parser),
            Some("appraise") => parse_appraise(&mut parser),
            Some("launch") => parse_launch(&mut parser),
            Some("trace") => trace::parse(&mut parser).map(Command::Trace),
            Some("held") => parse_held(&mut parser),
            Some("true") => Ok(Command::True),
            _ => Err(usage(format!(
                "unknown command {}: expected run, exec, info, appraise, launch or trace",
                word.to_string_lossy()
            ))),
        },
        Some(other) => Err(usage(other.unexpected())),
    }
}

/// A number that must not be zero.
fn count<T: std::str::FromStr + PartialOrd + From<u8> + std::fmt::Display>(
    parser: &mut lexopt::Parser,
    option: &str,
) -> Result<T, ProbeError> {
    number(parser, option, T::from(1))
}

/// A whole number that is not below `least`.
fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    parser: &mut lexopt::Parser,
    option: &str,
    least: T,
) -> Result<T, ProbeError> {
    let word = parser.value().map_err(usage)?;
    match word.to_str().and_then(|text| text.parse::<T>().ok()) {
        Some(found) if found >= least => Ok(found),
        _ => Err(usage(format!(
            "{option} {}: expected a whole number from {least} on",
            word.to_string_lossy()
        ))),
    }
}

/// One of the options about mechanisms, if the word is one.
fn mechanism(
    word: &str,
    parser: &mut lexopt::Parser,
    wanted: &mut Wanted,
) -> Result<bool, ProbeError> {
    match word {
        "landlock" => wanted.landlock = true,
        "landlock-rules" => {
            wanted.landlock = true;
            wanted.landlock_rules = Some(PathBuf::from(parser.value().map_err(usage)?));
        }
        "no-new-privs" => wanted.no_new_privs = true,
        "seccomp" => wanted.seccomp_rules = Some(count(parser, "--seccomp")?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn parse_run(parser: &mut lexopt::Parser) -> Result<Command, ProbeError> {
    let mut options = run::Options {
        workload: String::new(),
        operations: None,
        batches: 11,
        directory: std::env::temp_dir(),
        calibrate: false,
        mark: false,
        wanted: Wanted::default(),
    };
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(run_help())),
            Long("workload") => {
                options.workload = parser.value().and_then(|v| v.string()).map_err(usage)?;
            }
            Long("operations") => options.operations = Some(count(parser, "--operations")?),
            Long("batches") => options.batches = count(parser, "--batches")?,
            Long("directory") => options.directory = PathBuf::from(parser.value().map_err(usage)?),
            Long("calibrate") => options.calibrate = true,
            Long("mark") => options.mark = true,
            Long(word) => {
                let word = word.to_owned();
                if !mechanism(&word, parser, &mut options.wanted)? {
                    return Err(usage(format!("run: unknown option --{word} (see --help)")));
                }
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    if options.workload.is_empty() {
        return Err(usage(
            "run: --workload is missing (see --help for the names)",
        ));
    }
    if options.calibrate && options.operations.is_some() {
        return Err(usage(
            "run: --calibrate finds what --operations gives: choose one",
        ));
    }
    Ok(Command::Run(options))
}

fn parse_exec(parser: &mut lexopt::Parser) -> Result<Command, ProbeError> {
    let mut options = exec::Options {
        directory: None,
        wanted: Wanted::default(),
        command: Vec::new(),
    };
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(exec_help())),
            Long("directory") => {
                options.directory = Some(PathBuf::from(parser.value().map_err(usage)?));
            }
            Long(word) => {
                let word = word.to_owned();
                if !mechanism(&word, parser, &mut options.wanted)? {
                    return Err(usage(format!("exec: unknown option --{word} (see --help)")));
                }
            }
            Value(word) => {
                // From here on all words are the command's, its options too.
                options.command.push(word);
                options.command.extend(parser.raw_args().map_err(usage)?);
            }
            other => return Err(usage(other.unexpected())),
        }
    }
    if options.command.is_empty() {
        return Err(usage("exec: a command is missing after --"));
    }
    if options.directory.is_some() && !options.wanted.landlock {
        return Err(usage("exec: --directory means nothing without --landlock"));
    }
    Ok(Command::Exec(options))
}

/// What `trace` starts its command by; not in the help.
fn parse_held(parser: &mut lexopt::Parser) -> Result<Command, ProbeError> {
    let words: Vec<_> = parser.raw_args().map_err(usage)?.collect();
    let command = words.into_iter().skip_while(|word| word == "--").collect();
    Ok(Command::Trace(trace::Asked::Held(command)))
}

fn parse_info(parser: &mut lexopt::Parser) -> Result<Command, ProbeError> {
    match parser.next().map_err(usage)? {
        None => Ok(Command::Info),
        Some(Short('h') | Long("help")) => Ok(Command::Print(INFO_HELP.to_owned())),
        Some(other) => Err(usage(other.unexpected())),
    }
}

fn parse_appraise(parser: &mut lexopt::Parser) -> Result<Command, ProbeError> {
    let mut directory = std::env::temp_dir();
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(APPRAISE_HELP.to_owned())),
            Long("directory") => directory = PathBuf::from(parser.value().map_err(usage)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    Ok(Command::Appraise(appraise::Options { directory }))
}

fn parse_launch(parser: &mut lexopt::Parser) -> Result<Command, ProbeError> {
    let mut options = launch::Options::default();
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Print(LAUNCH_HELP.to_owned())),
            Long("journal-fd") => options.journal = Some(count(parser, "--journal-fd")?),
            Long("sync-interval-ms") => {
                let milliseconds = number(parser, "--sync-interval-ms", 0_u64)?;
                options.sync_interval = Some(Duration::from_millis(milliseconds));
            }
            Long("counter-selftest") => options.counter_self_test = true,
            other => return Err(usage(other.unexpected())),
        }
    }
    Ok(Command::Launch(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Command, ProbeError> {
        parse(
            std::iter::once("excise-probe")
                .chain(words.iter().copied())
                .map(OsString::from),
        )
    }

    fn reason(words: &[&str]) -> String {
        let error = read(words).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn a_run_takes_all_its_options() {
        let words = [
            "run",
            "--workload",
            "stat",
            "--operations",
            "5",
            "--batches=3",
            "--directory",
            "/x",
            "--landlock",
            "--seccomp",
            "7",
            "--no-new-privs",
        ];
        let Command::Run(options) = read(&words).unwrap() else {
            panic!("not a run");
        };
        assert_eq!(options.workload, "stat");
        assert_eq!((options.operations, options.batches), (Some(5), 3));
        assert_eq!(options.directory, PathBuf::from("/x"));
        assert!(options.wanted.landlock && options.wanted.no_new_privs);
        assert_eq!(options.wanted.seccomp_rules, Some(7));
    }

    #[test]
    fn a_commands_own_options_are_left_alone() {
        for words in [
            &["exec", "--seccomp", "1", "--", "ls", "--help"][..],
            &["exec", "--seccomp", "1", "ls", "--help"],
        ] {
            let Command::Exec(options) = read(words).unwrap() else {
                panic!("not an exec");
            };
            assert_eq!(options.command, ["ls", "--help"]);
        }
    }

    #[test]
    fn each_command_has_a_help_with_an_example() {
        for words in [
            &["--help"][..],
            &["run", "--help"],
            &["exec", "--help"],
            &["info", "--help"],
            &["appraise", "--help"],
            &["launch", "--help"],
        ] {
            let Command::Print(text) = read(words).unwrap() else {
                panic!("no help for {words:?}");
            };
            assert!(text.contains("\nExample: "), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_command_line_is_named() {
        assert!(reason(&[]).contains("command is missing"));
        assert!(reason(&["dance"]).contains("dance"));
        assert!(reason(&["run"]).contains("--workload is missing"));
        assert!(reason(&["run", "--workload", "stat", "--colour"]).contains("--colour"));
        assert!(reason(&["run", "--workload", "stat", "--batches", "0"]).contains("--batches 0"));
        assert!(reason(&["exec", "--seccomp", "x", "--", "a"]).contains("--seccomp x"));
        assert!(reason(&["exec", "--landlock"]).contains("command is missing"));
        assert!(reason(&["launch", "--journal-fd"]).contains("journal-fd"));
        assert!(reason(&["info", "extra"]).contains("extra"));
        assert!(reason(&["appraise", "--colour"]).contains("colour"));
    }
}
