//! Static on-target program: launches and measures children, runs system call workloads.
//!
//! It depends on nothing that the target must have. All unsafe code is in `sys`; parsing and
//! deciding are in the modules named after the commands.

#![deny(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod appraise;
mod cli;
mod error;
mod exec;
mod info;
mod landlock_rules;
mod launch;
mod mechanism;
mod run;
mod sys;
mod trace;
mod workload;

use cli::Command;
use error::ProbeError;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()).and_then(perform) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Standard error may be closed; the exit code tells the kind in any case.
            let _ = writeln!(std::io::stderr(), "excise-probe: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn perform(command: Command) -> Result<u8, ProbeError> {
    match command {
        Command::True => Ok(0),
        Command::Print(text) => print(&text).map(|()| 0),
        Command::Appraise(options) => print_line(appraise::main(&options)?).map(|()| 0),
        Command::Info => print_line(info::main()?).map(|()| 0),
        Command::Launch(options) => launch::main(options),
        Command::Trace(asked) => {
            let (text, code) = trace::main(asked)?;
            text.map_or(Ok(()), |text| print(&text)).map(|()| code)
        }
        Command::Exec(options) => match exec::main(&options)? {},
        Command::Run(options) => {
            let (line, fit) = run::main(&options)?;
            print_line(line)?;
            Ok(u8::from(!fit))
        }
    }
}

fn print_line(mut line: String) -> Result<(), ProbeError> {
    line.push('\n');
    print(&line)
}

fn print(text: &str) -> Result<(), ProbeError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| ProbeError::step("standard output", &error))
}
