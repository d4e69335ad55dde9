//! `excise-probe exec`: put this process under mechanisms, then become another program.

use crate::error::{describe, ProbeError};
use crate::launch::find_program;
use crate::mechanism::{self, Allowance, Forbidden, Wanted};
use crate::sys::landlock;
use crate::sys::spawn::{self, StringArray};
use crate::workload::c_path;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What to become, and under what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The one place that may be written to under Landlock.
    pub directory: Option<PathBuf>,
    /// Mechanisms to put on first.
    pub wanted: Wanted,
    /// Program and arguments.
    pub command: Vec<OsString>,
}

/// Become the program; returns only with the reason why that failed.
pub fn main(options: &Options) -> Result<std::convert::Infallible, ProbeError> {
    let name = options
        .command
        .first()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let arguments = strings(options.command.iter().cloned())?;
    let environment = strings(std::env::vars_os().map(|(mut variable, value)| {
        variable.push("=");
        variable.push(value);
        variable
    }))?;
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned());
    // Before the mechanisms are on, so that the search is not part of what they cost.
    let program = find_program(&name, &path, None)
        .map_err(|error| ProbeError::Usage(format!("{name}: {}", describe(&error))))?;
    let forbidden = Forbidden {
        path: c"/dev/zero",
        flags: libc::O_WRONLY,
    };
    mechanism::apply(&options.wanted, &allowances(options)?, &forbidden)?;
    let error = spawn::execute(&program, &arguments, &environment);
    Err(ProbeError::step(
        &format!("execve {}", program.to_string_lossy()),
        &error,
    ))
}

/// Read and execute everywhere, write beneath the directory and to /dev/null only.
fn allowances(options: &Options) -> Result<Vec<Allowance>, ProbeError> {
    if !options.wanted.landlock {
        return Ok(Vec::new());
    }
    let Some(directory) = &options.directory else {
        return Err(ProbeError::Usage(
            "--landlock: --directory is missing, the one place that may be written to".to_owned(),
        ));
    };
    let directory = std::fs::canonicalize(directory).map_err(|error| {
        ProbeError::Usage(format!(
            "--directory {}: {}",
            directory.display(),
            describe(&error)
        ))
    })?;
    if directory.parent().is_none() || directory.as_os_str() == "/dev" {
        return Err(ProbeError::Usage(format!(
            "--directory {}: leaves no place by which the rules can be proved",
            directory.display()
        )));
    }
    Ok(vec![
        Allowance {
            path: c"/".to_owned(),
            rights: landlock::EXECUTE | landlock::READ_FILE | landlock::READ_DIR,
        },
        Allowance {
            path: c"/dev/null".to_owned(),
            rights: landlock::WRITE_FILE | landlock::TRUNCATE,
        },
        Allowance {
            path: c_path(&directory)?,
            rights: u64::MAX,
        },
    ])
}

fn strings(values: impl Iterator<Item = OsString>) -> Result<StringArray, ProbeError> {
    values
        .map(|value| {
            let text = value.as_bytes().to_vec();
            CString::new(value.into_vec()).map_err(|_| {
                ProbeError::Usage(format!(
                    "{}: holds a NUL character",
                    String::from_utf8_lossy(&text)
                ))
            })
        })
        .collect::<Result<Vec<_>, _>>()
        .map(StringArray::new)
}
