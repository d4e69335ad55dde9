//! What was changed, written down before it is changed, so that it can be undone by anyone.
//!
//! The state file names its owner by process id and start time. While it exists something may be
//! left in tracefs; undoing is the same work at a regular end, at a signal, and by `--restore`.

use super::tracefs::{self, Folder};
use crate::error::{describe, ProbeError};
use crate::sys::{hold, process};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where state files are unless said otherwise: gone after a reboot, as is all of tracefs.
pub const USUAL_PLACE: &str = "/run/excise";
/// An instance is busy for a moment after who read from it was killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// One setting of the top folder as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Name of the file.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// Everything that has to be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Process id of who traces.
    pub pid: process::Pid,
    /// Its start time in clock ticks, as an id may be used again.
    pub start_ticks: u64,
    /// The boot that it belongs to.
    pub boot_id: String,
    /// Top of tracefs.
    pub tracefs: PathBuf,
    /// Whether we have mounted it.
    pub mounted: bool,
    /// Our instance, if we work in one.
    pub instance: Option<String>,
    /// Group of our dynamic events.
    pub group: String,
    /// Settings of the top folder that were changed, in the order in which they go back.
    pub settings: Vec<Setting>,
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Start time of a process, in clock ticks since boot.
fn start_ticks(pid: process::Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything.
    let rest = text.get(text.rfind(')')?.checked_add(1)?..)?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

impl State {
    /// The state of a trace by this process that has changed nothing yet.
    pub fn new(found: &tracefs::Found, instance: bool) -> Self {
        let pid = process::id();
        Self {
            pid,
            start_ticks: start_ticks(pid).unwrap_or_default(),
            boot_id: boot_id(),
            tracefs: found.top.path().to_owned(),
            mounted: found.mounted,
            instance: instance.then(|| format!("excise-{pid}")),
            group: format!("excise_{pid}"),
            settings: Vec::new(),
        }
    }

    /// The folder that we work in.
    pub fn folder(&self) -> Folder {
        let top = Folder::new(&self.tracefs);
        match &self.instance {
            Some(name) => top.join("instances").join(name),
            None => top,
        }
    }

    /// Whether the buffer's size cannot be put back: one that was never used grows for good at its
    /// first use, whoever uses it, and says so (`7 (expanded: 1408)`).
    pub fn keeps_buffer_size(&self) -> bool {
        self.settings
            .iter()
            .any(|setting| setting.file == "buffer_size_kb" && setting.text.contains("expanded"))
    }

    /// Whether who wrote it still runs.
    pub fn is_alive(&self) -> bool {
        self.boot_id == boot_id()
            && hold::exists(self.pid)
            && start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Put everything back. May be called again, and after any part of the work.
    pub fn undo(&self) -> Result<(), ProbeError> {
        if self.boot_id != boot_id() {
            return Ok(()); // that tracefs is gone
        }
        let top = Folder::new(&self.tracefs);
        let mut problems = Vec::new();
        if let Some(name) = &self.instance {
            let folder = top.join("instances").join(name);
            if folder.path().exists() {
                quieten(&folder);
                note(&mut problems, folder.path(), remove(&folder));
            }
        } else if !self.settings.is_empty() {
            quieten(&top);
        }
        for file in ["dynamic_events", "kprobe_events"] {
            if top.has(file) {
                remove_events(&top, file, &self.group, &mut problems);
                break;
            }
        }
        for setting in &self.settings {
            let name = &setting.file;
            note(
                &mut problems,
                &top.path().join(name),
                put_back(&top, setting),
            );
        }
        if self.mounted {
            note(&mut problems, top.path(), tracefs::unmount(top.path()));
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(ProbeError::Failed(format!(
                "not all was restored: {}",
                problems.join("; ")
            ))),
        }
    }
}

fn note(problems: &mut Vec<String>, path: &Path, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        problems.push(format!("{}: {}", path.display(), describe(&error)));
    }
}

/// Stop everything that a folder records; what it does not have is not there to be stopped.
fn quieten(folder: &Folder) {
    for (file, text) in [
        ("tracing_on", "0"),
        ("events/enable", "0"),
        ("current_tracer", "nop"),
    ] {
        let _ = folder.try_write(file, text);
    }
}

/// Remove an instance, once nobody has a file of it open any more.
fn remove(folder: &Folder) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match fs::remove_dir(folder.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// Remove the dynamic events of our group.
fn remove_events(top: &Folder, file: &str, group: &str, problems: &mut Vec<String>) {
    let Ok(text) = top.read(file) else { return };
    let ours: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_whitespace().next())
        .filter(|name| name.split('/').next() == Some(group))
        .map(|name| format!("-:{name}"))
        .collect();
    if ours.is_empty() {
        return;
    }
    match top.write_words(file, ours.iter().rev().map(String::as_str), true) {
        Ok(wrong) if wrong.is_empty() => {}
        Ok(wrong) => problems.push(format!("{file}: {} events are left", wrong.len())),
        Err(error) => problems.push(error.to_string()),
    }
}

fn put_back(top: &Folder, setting: &Setting) -> io::Result<()> {
    if setting.text.contains("expanded") {
        return Ok(());
    }
    // Filters that are empty say so in words.
    let text = match setting.text.starts_with('#') || setting.text.starts_with("no pid") {
        true => "",
        false => setting.text.as_str(),
    };
    top.try_write(&setting.file, text)
}

/// A state file on disk; removed when all is undone.
pub struct StateFile {
    path: PathBuf,
    /// What it says.
    pub state: State,
}

impl StateFile {
    /// Write a state down before anything is changed.
    pub fn create(folder: &Path, state: State) -> Result<Self, ProbeError> {
        fs::create_dir_all(folder).map_err(|error| ProbeError::file(folder, &error))?;
        let path = folder.join(format!("trace-{}.json", state.pid));
        let text = serde_json::to_string(&state)
            .map_err(|error| ProbeError::Failed(format!("cannot write the state: {error}")))?;
        // By a rename, so that nobody ever reads half a state.
        let new = path.with_extension("new");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            fs::rename(&new, &path)
        };
        write().map_err(|error| ProbeError::file(&path, &error))?;
        Ok(Self { path, state })
    }

    /// Undo, and forget about it if that worked.
    pub fn undo(&self) -> Result<(), ProbeError> {
        self.state
            .undo()
            .map_err(|error| ProbeError::Failed(format!("{error} ({})", self.path.display())))?;
        fs::remove_file(&self.path).map_err(|error| ProbeError::file(&self.path, &error))
    }
}

/// All state files in a folder; one that cannot be read is an error that names it.
pub fn all(folder: &Path) -> Result<Vec<StateFile>, ProbeError> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("trace-") || !name.ends_with(".json") {
            continue;
        }
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            // Its trace came to its end at this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(ProbeError::file(&path, &error)),
        };
        let state = serde_json::from_str(&text).map_err(|error| {
            ProbeError::Failed(format!("{}: is no state file: {error}", path.display()))
        })?;
        found.push(StateFile { path, state });
    }
    Ok(found)
}

/// Refuse to begin beside another trace of ours, or on top of what a killed one has left.
pub fn refuse_beside_others(folder: &Path) -> Result<(), ProbeError> {
    let Some(file) = all(folder)?.pop() else {
        return Ok(());
    };
    let pid = file.state.pid;
    Err(ProbeError::Unsupported(match file.state.is_alive() {
        true => {
            format!("another trace runs, as process {pid}: two of them would measure each other")
        }
        false => format!(
            "the trace of process {pid}, which was killed, is still set up: \
             restore it with `trace --restore`"
        ),
    }))
}

/// Undo what killed traces have left; how many there were.
pub fn restore(folder: &Path) -> Result<usize, ProbeError> {
    let mut restored = 0;
    for file in all(folder)? {
        if !file.state.is_alive() {
            file.undo()?;
            restored += 1;
        }
    }
    Ok(restored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(folder: &Path) -> State {
        let found = tracefs::Found {
            top: Folder::new(folder),
            mounted: false,
        };
        State::new(&found, true)
    }

    fn temporary(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("excise-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_state_is_read_back_and_its_owner_is_alive() {
        let folder = temporary("state");
        let file = StateFile::create(&folder, state(&folder)).unwrap();
        let found = all(&folder).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].state, file.state);
        assert!(file.state.is_alive());
        assert!(refuse_beside_others(&folder)
            .unwrap_err()
            .to_string()
            .contains("another trace"));
        assert_eq!(restore(&folder).unwrap(), 0);
        file.undo().unwrap();
        assert!(all(&folder).unwrap().is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_a_dead_owner_left_is_restored_and_refused_before() {
        let folder = temporary("dead");
        let mut dead = state(&folder);
        dead.start_ticks += 1; // the id is another process's now
        dead.instance = None;
        dead.settings = vec![
            Setting {
                file: "trace_clock".into(),
                text: "local\n".into(),
            },
            Setting {
                file: "filter".into(),
                text: "#### all functions enabled ####\n".into(),
            },
        ];
        for name in ["trace_clock", "filter"] {
            fs::write(folder.join(name), "changed\n").unwrap();
        }
        StateFile::create(&folder, dead).unwrap();
        assert!(refuse_beside_others(&folder)
            .unwrap_err()
            .to_string()
            .contains("--restore"));
        assert_eq!(restore(&folder).unwrap(), 1);
        assert_eq!(
            fs::read_to_string(folder.join("trace_clock")).unwrap(),
            "local\n"
        );
        assert_eq!(fs::read_to_string(folder.join("filter")).unwrap(), "");
        assert_eq!(restore(&folder).unwrap(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_trace_that_has_just_ended_is_not_in_the_way() {
        let folder = temporary("ended");
        // In the list still, and no longer there when it is read.
        std::os::unix::fs::symlink(folder.join("gone"), folder.join("trace-1.json")).unwrap();
        assert!(all(&folder).unwrap().is_empty());
        refuse_beside_others(&folder).unwrap();
        assert_eq!(restore(&folder).unwrap(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_state_that_is_no_state_is_named() {
        let folder = temporary("bad");
        fs::write(folder.join("trace-1.json"), "{").unwrap();
        let Err(error) = all(&folder) else {
            panic!("accepted")
        };
        assert!(error.to_string().contains("trace-1.json"));
        fs::remove_dir_all(folder).unwrap();
    }
}
