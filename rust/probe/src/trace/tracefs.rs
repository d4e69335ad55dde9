//! The kernel's tracing file system: where it is, and small reads and writes in it.

use crate::error::{describe, ProbeError};
use crate::sys::hold;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const USUAL_PLACE: &str = "/sys/kernel/tracing";

/// A folder of tracefs: its top, or one instance.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A folder by its path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder in it.
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        Self::new(self.path.join(name))
    }

    /// Whether it has a file or folder.
    pub fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// All of a file, as text.
    pub fn read(&self, name: &str) -> Result<String, ProbeError> {
        let path = self.path.join(name);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(|error| refused(&path, &error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// One setting, without the end of its line.
    pub fn setting(&self, name: &str) -> Result<String, ProbeError> {
        Ok(self.read(name)?.trim_end().to_owned())
    }

    /// Write a setting; what was there is gone.
    pub fn write(&self, name: &str, text: &str) -> Result<(), ProbeError> {
        self.try_write(name, text)
            .map_err(|error| refused(&self.path.join(name), &error))
    }

    /// As `write`, with the kernel's own error.
    pub fn try_write(&self, name: &str, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(self.path.join(name))?;
        if text.is_empty() {
            return Ok(());
        }
        file.write_all(text.as_bytes())
    }

    /// Write words one by one through one descriptor; the words that the kernel refused.
    ///
    /// A filter takes effect when the descriptor is closed, so all of them together.
    pub fn write_words<'a>(
        &self,
        name: &str,
        words: impl IntoIterator<Item = &'a str>,
        append: bool,
    ) -> Result<Vec<String>, ProbeError> {
        let path = self.path.join(name);
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(!append)
            .append(append)
            .open(&path)
            .map_err(|error| refused(&path, &error))?;
        let mut wrong = Vec::new();
        for word in words {
            if file.write_all(format!("{word}\n").as_bytes()).is_err() {
                wrong.push(word.to_owned());
            }
        }
        Ok(wrong)
    }

    /// Switch an option (a file with 0 or 1) on; whether the kernel has it.
    pub fn switch(&self, name: &str, on: bool) -> Result<bool, ProbeError> {
        if !self.has(name) {
            return Ok(false);
        }
        self.write(name, if on { "1" } else { "0" })?;
        Ok(true)
    }

    /// Open `trace_pipe`, which gives each line once, without waiting for lines.
    pub fn open_pipe(&self) -> Result<File, ProbeError> {
        let path = self.path.join("trace_pipe");
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(&path)
            .map_err(|error| refused(&path, &error))
    }
}

/// The error of a file of tracefs that cannot be read or written.
pub fn refused(path: &Path, error: &io::Error) -> ProbeError {
    let text = format!("{}: {}", path.display(), describe(error));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ProbeError::Unsupported(format!(
            "{text}. Tracing needs root, and a kernel that is not locked down"
        )),
        Some(libc::EBUSY) => ProbeError::Unsupported(format!("{text}. Another tracer uses it")),
        _ => ProbeError::Failed(text),
    }
}

/// Where tracefs is, or will be.
#[derive(Debug)]
pub struct Found {
    /// Its top folder.
    pub top: Folder,
    /// Whether we have to mount it, and to unmount it at the end.
    pub mounted: bool,
}

/// The mount points of tracefs in the text of `/proc/mounts`, the usual place first.
fn mount_points(mounts: &str) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let place = words.nth(1)?;
            (words.next()? == "tracefs").then(|| PathBuf::from(place))
        })
        .collect();
    places.sort_by_key(|place| place != Path::new(USUAL_PLACE));
    places
}

/// Find tracefs, or where to mount it.
pub fn find() -> Result<Found, ProbeError> {
    let mounts = fs::read("/proc/mounts").map_err(|e| ProbeError::step("/proc/mounts", &e))?;
    let places = mount_points(&String::from_utf8_lossy(&mounts));
    Ok(match places.into_iter().next() {
        Some(place) => Found {
            top: Folder::new(place),
            mounted: false,
        },
        None => Found {
            top: Folder::new(USUAL_PLACE),
            mounted: true,
        },
    })
}

/// Mount tracefs where it is not mounted yet.
pub fn mount(found: &Found) -> Result<(), ProbeError> {
    if !found.mounted {
        return Ok(());
    }
    let target = CString::new(USUAL_PLACE).unwrap_or_default();
    hold::mount_tracefs(&target).map_err(|error| {
        ProbeError::Unsupported(format!(
            "tracefs cannot be mounted at {USUAL_PLACE}: {}. The kernel needs CONFIG_FTRACE, and we root",
            describe(&error)
        ))
    })
}

/// Unmount what `mount` has mounted; what is not mounted is no error.
pub fn unmount(top: &Path) -> io::Result<()> {
    let target = CString::new(top.as_os_str().as_bytes())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match hold::unmount(&target) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_place_comes_first_and_other_file_systems_do_not_count() {
        let text = "tracefs /sys/kernel/debug/tracing tracefs rw 0 0\n\
                    debugfs /sys/kernel/debug debugfs rw 0 0\n\
                    tracefs /sys/kernel/tracing tracefs rw 0 0\nodd\n";
        assert_eq!(
            mount_points(text),
            [
                PathBuf::from("/sys/kernel/tracing"),
                PathBuf::from("/sys/kernel/debug/tracing")
            ]
        );
        assert!(mount_points("proc /proc proc rw 0 0\n").is_empty());
    }

    #[test]
    fn words_that_are_refused_are_named_and_settings_are_replaced() {
        let folder = Folder::new(std::env::temp_dir());
        let name = format!("excise-tracefs-{}", std::process::id());
        fs::write(folder.path().join(&name), "old text\n").unwrap();
        folder.write(&name, "new\n").unwrap();
        assert_eq!(folder.setting(&name).unwrap(), "new");
        assert!(folder
            .write_words(&name, ["a", "b"], true)
            .unwrap()
            .is_empty());
        assert_eq!(folder.read(&name).unwrap(), "new\na\nb\n");
        fs::remove_file(folder.path().join(&name)).unwrap();
        assert!(folder.read(&name).is_err());
    }
}
