//! From a request to what the kernel needs: program path, arguments, environment, descriptors.
//!
//! All of it happens before the clock starts.

use super::request::{c_string, Command};
use crate::sys::spawn::{is_executable, StringArray};
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io;

/// Where programs are looked for when the child's environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A command ready to be started.
pub struct Prepared {
    /// The program's path.
    pub program: CString,
    /// Its arguments.
    pub arguments: StringArray,
    /// Its whole environment.
    pub environment: StringArray,
    /// Where it starts.
    pub directory: Option<CString>,
}

/// Programs found so far: a search of a long PATH takes as long as all else between two runs.
#[derive(Default)]
pub struct Programs {
    found: HashMap<Sought, CString>,
}

/// What a search depends on: name, PATH and directory.
type Sought = (String, String, Option<String>);

/// Programs kept; more than any campaign has.
const KEPT_PROGRAMS: usize = 256;

impl Programs {
    /// Where a program is; looked up anew when it is no longer where it was.
    fn find(&mut self, name: &str, path: &str, directory: Option<&str>) -> io::Result<CString> {
        let sought = (
            name.to_owned(),
            path.to_owned(),
            directory.map(str::to_owned),
        );
        if let Some(known) = self.found.get(&sought).filter(|known| is_executable(known)) {
            return Ok(known.clone());
        }
        let program = find_program(name, path, directory)?;
        if self.found.len() >= KEPT_PROGRAMS {
            self.found.clear();
        }
        self.found.insert(sought, program.clone());
        Ok(program)
    }
}

/// Find the program and lay out arguments and environment.
///
/// A program that is not on the PATH is an `ENOENT` error, as it would be from the kernel.
pub fn prepare(
    command: &Command,
    base: &BTreeMap<String, String>,
    programs: &mut Programs,
) -> io::Result<Prepared> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    let directory = command
        .cwd
        .as_deref()
        .map(|directory| c_string(directory, "cwd").map_err(invalid))
        .transpose()?;
    let name = command.argv.first().map_or("", String::as_str);
    let path = command
        .env
        .get("PATH")
        .or_else(|| {
            let kept = !command.unset.iter().any(|name| name == "PATH");
            base.get("PATH").filter(|_| kept)
        })
        .map_or(DEFAULT_PATH, String::as_str);
    let program = programs.find(name, path, command.cwd.as_deref())?;
    let arguments = command
        .argv
        .iter()
        .map(|argument| c_string(argument, "argv").map_err(invalid))
        .collect::<io::Result<Vec<_>>>()?;
    let environment = variables(command, base)
        .map(|(name, value)| c_string(&format!("{name}={value}"), "env").map_err(invalid))
        .collect::<io::Result<Vec<_>>>()?;
    Ok(Prepared {
        program,
        arguments: StringArray::new(arguments),
        environment: StringArray::new(environment),
        directory,
    })
}

fn variables<'a>(
    command: &'a Command,
    base: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    base.iter()
        .filter(|(name, _)| !command.env.contains_key(*name) && !command.unset.contains(name))
        .chain(command.env.iter())
}

/// Look a program up as a shell does; a name with a slash is taken as it is.
pub fn find_program(name: &str, path: &str, directory: Option<&str>) -> io::Result<CString> {
    let missing = || io::Error::from_raw_os_error(libc::ENOENT);
    if name.contains('/') {
        return CString::new(name).map_err(|_| missing());
    }
    for folder in path.split(':') {
        // An empty element of PATH means the current directory, which is the child's to be.
        let folder = if folder.is_empty() { "." } else { folder };
        let candidate = match directory {
            Some(directory) if !folder.starts_with('/') => format!("{directory}/{folder}/{name}"),
            _ => format!("{folder}/{name}"),
        };
        let candidate = CString::new(candidate).map_err(|_| missing())?;
        if is_executable(&candidate) {
            return Ok(candidate);
        }
    }
    Err(missing())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(argv: &[&str]) -> Command {
        Command {
            argv: argv.iter().map(|text| (*text).to_owned()).collect(),
            env: BTreeMap::new(),
            unset: Vec::new(),
            cwd: None,
            timeout_ns: None,
            expect: vec![0],
        }
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn environment(prepared: &Prepared) -> Vec<String> {
        let strings = prepared.environment.strings().iter();
        strings
            .map(|string| string.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn added_variables_win_and_unset_ones_go() {
        let mut wanted = command(&["/bin/true"]);
        wanted.env = map(&[("B", "new"), ("D", "4")]);
        wanted.unset = vec!["C".to_owned(), "D".to_owned()];
        let base = map(&[("A", "1"), ("B", "old"), ("C", "3")]);
        let prepared = prepare(&wanted, &base, &mut Programs::default()).unwrap();
        assert_eq!(environment(&prepared), ["A=1", "B=new", "D=4"]);
    }

    #[test]
    fn the_childs_own_path_is_searched() {
        let mut wanted = command(&["true"]);
        let nowhere = map(&[("PATH", "/nowhere")]);
        let mut programs = Programs::default();
        let error = prepare(&wanted, &nowhere, &mut programs).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        wanted.env = map(&[("PATH", "/nowhere:/bin")]);
        let prepared = prepare(&wanted, &nowhere, &mut programs).unwrap();
        assert_eq!(prepared.program.to_str().unwrap(), "/bin/true");
    }

    #[test]
    fn a_program_that_goes_away_is_looked_for_again() {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("excise-programs-{}", std::process::id()));
        let place = |name: &str| {
            let program = folder.join(name).join("tool");
            std::fs::create_dir_all(program.parent().unwrap()).unwrap();
            std::fs::write(&program, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
            program
        };
        let (first, second) = (place("a"), place("b"));
        let path = format!("{0}/a:{0}/b", folder.display());
        let mut programs = Programs::default();
        let mut found = || {
            programs
                .find("tool", &path, None)
                .map(|found| found.into_string())
        };
        assert_eq!(found().unwrap().unwrap(), first.to_str().unwrap());
        assert_eq!(found().unwrap().unwrap(), first.to_str().unwrap());
        std::fs::remove_file(&first).unwrap();
        assert_eq!(found().unwrap().unwrap(), second.to_str().unwrap());
        std::fs::remove_file(&second).unwrap();
        assert_eq!(found().unwrap_err().raw_os_error(), Some(libc::ENOENT));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_directory_is_no_program() {
        let error = find_program("bin", "/usr:/", None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
