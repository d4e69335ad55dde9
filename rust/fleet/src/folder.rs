//! A host's folder on this machine, if it holds a measurement list, PCR values, and no other evidence.
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Which file is what, as `excise.fleet.layout` says.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Names of lists; the first that is there is verified.
    pub lists: Vec<String>,
    /// Names of files of PCR values; the first that is there is read.
    pub pcrs: Vec<String>,
    /// Names of all other evidence.
    pub others: Vec<String>,
    /// How names of captures end.
    pub capture_endings: Vec<String>,
}

/// What is in a folder.
#[derive(Debug)]
pub struct Pieces<'a> {
    /// Name of the list.
    pub list: &'a str,
    /// Its length.
    pub list_bytes: u64,
    /// Name of the PCR values.
    pub pcrs: &'a str,
    /// When the newest piece of evidence was written, in ns since the epoch.
    pub modified_ns: i64,
    /// Names of what is no evidence, or a second form of it, sorted.
    pub unused: Vec<String>,
}

impl Names {
    /// List a folder; `None` if it holds more or less than a list and PCR values, or cannot be read.
    #[must_use]
    pub fn pieces(&self, folder: &Path) -> Option<Pieces<'_>> {
        let mut held: Vec<(&str, u64)> = Vec::with_capacity(self.lists.len());
        let mut modified_ns = None;
        let mut unused = Vec::new();
        for entry in fs::read_dir(folder).ok()? {
            let name = entry.ok()?.file_name().into_string().ok()?;
            if self.others.contains(&name)
                || self.capture_endings.iter().any(|end| name.ends_with(end))
            {
                return None;
            }
            let known = self.lists.iter().chain(&self.pcrs).find(|n| **n == name);
            let Some(known) = known else {
                unused.push(name);
                continue;
            };
            // As `stat` has it: a link is what it leads to.
            let state = fs::metadata(folder.join(&name)).ok()?;
            if !state.is_file() {
                unused.push(name);
                continue;
            }
            let seconds = state.mtime().checked_mul(1_000_000_000)?;
            modified_ns = modified_ns.max(Some(seconds.checked_add(state.mtime_nsec())?));
            held.push((known, state.len()));
        }
        let first = |names: &[String]| {
            let mut found = names
                .iter()
                .filter_map(|n| held.iter().find(|(h, _)| h == n));
            found.next().copied()
        };
        let (list, list_bytes) = first(&self.lists)?;
        let (pcrs, _) = first(&self.pcrs)?;
        let second = held
            .iter()
            .filter(|(name, _)| *name != list && *name != pcrs);
        unused.extend(second.map(|(name, _)| (*name).to_owned()));
        unused.sort_unstable();
        Some(Pieces {
            list,
            list_bytes,
            pcrs,
            modified_ns: modified_ns?,
            unused,
        })
    }
}

/// Read a file from an offset on; `None` if it is longer than `most_bytes`, or cannot be read.
#[must_use]
pub fn read_from(path: &Path, offset: u64, most_bytes: usize) -> Option<Vec<u8>> {
    // What was a file when it was listed may be a pipe by now, which would be waited for.
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let state = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let rest = usize::try_from(state.len().saturating_sub(offset)).ok()?;
    if rest > most_bytes {
        return None;
    }
    // One byte more, to see the end in the same call.
    let mut data = vec![0; rest.saturating_add(1)];
    let got = loop {
        match file.read_at(&mut data, offset) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other.ok()?,
        }
    };
    // It changes while it is read, or its size is not what `stat` says.
    if got != rest {
        return None;
    }
    data.truncate(got);
    Some(data)
}
