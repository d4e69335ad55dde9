//! `excise-probe appraise`: what IMA does about a file without a label, found by trying.

use crate::error::{describe, ProbeError};
use crate::sys::attributes;
use crate::workload::c_path;
use serde::Serialize;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const LABEL: &CStr = c"security.ima";

/// Where to try.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder on a file system that the policy appraises.
    pub directory: PathBuf,
}

/// What happened, and the mode that only this fits.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Found {
    ima_appraise: &'static str,
    labelled_when_written: bool,
    opened_without_label: bool,
    labelled_when_opened: bool,
}

impl Found {
    fn new(written: bool, opened: bool, again: bool) -> Self {
        Self {
            ima_appraise: match (written, opened, again) {
                (true, false, _) => "enforce",
                (true, true, true) => "fix",
                (true, true, false) => "log",
                (false, ..) => "off",
            },
            labelled_when_written: written,
            opened_without_label: opened,
            labelled_when_opened: again,
        }
    }
}

/// A file that is removed in any case.
struct Tried(PathBuf);

impl Drop for Tried {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Write a file, take its label away, open it; one JSON line.
pub fn main(options: &Options) -> Result<String, ProbeError> {
    let name = format!("excise-probe-appraise-{}", std::process::id());
    let file = Tried(options.directory.join(name));
    let found = attempt(&file.0)?;
    serde_json::to_string(&found)
        .map_err(|error| ProbeError::Failed(format!("cannot write what was found: {error}")))
}

fn attempt(path: &Path) -> Result<Found, ProbeError> {
    let failed = |error: io::Error| ProbeError::file(path, &error);
    // IMA labels a file when its last writer closes it.
    let mut stream = File::create_new(path).map_err(failed)?;
    stream.write_all(b"excise\n").map_err(failed)?;
    drop(stream);
    let place = c_path(path)?;
    let written = attributes::is_set(&place, LABEL).map_err(failed)?;
    if written {
        attributes::remove(&place, LABEL).map_err(|error| {
            ProbeError::Unsupported(format!(
                "security.ima cannot be removed, which takes CAP_SYS_ADMIN: {}",
                describe(&error)
            ))
        })?;
    }
    let opened = match File::open(path) {
        Ok(_) => true,
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => false,
        Err(error) => return Err(failed(error)),
    };
    let again = attributes::is_set(&place, LABEL).map_err(failed)?;
    Ok(Found::new(written, opened, again))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_shows_in_what_happens_to_a_file_without_a_label() {
        for (happened, mode) in [
            ((true, false, false), "enforce"),
            ((true, true, true), "fix"),
            ((true, true, false), "log"),
            ((false, true, false), "off"),
        ] {
            let (written, opened, again) = happened;
            assert_eq!(Found::new(written, opened, again).ima_appraise, mode);
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_and_nothing_is_left() {
        let folder = std::env::temp_dir().join(format!("excise-appraise-{}", std::process::id()));
        let options = Options {
            directory: folder.clone(),
        };
        let error = main(&options).unwrap_err();
        assert!(error
            .to_string()
            .contains(&format!("{}/", folder.display())));
        std::fs::create_dir(&folder).unwrap();
        assert!(main(&options).unwrap().starts_with("{\"ima_appraise\":\""));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir(&folder).unwrap();
    }
}
