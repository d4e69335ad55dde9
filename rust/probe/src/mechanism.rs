//! Mechanisms that a process can put itself under, and the proof from inside that they are on.

use crate::error::{describe, ProbeError};
use crate::landlock_rules;
use crate::sys::landlock::{self, Ruleset};
use crate::sys::process::status_field;
use crate::sys::{fd, seccomp};
use serde::Serialize;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Promise no new privileges (implied by the two others, as unprivileged users need it).
    pub no_new_privs: bool,
    /// Deny all file system rights but those of an allow list.
    pub landlock: bool,
    /// A file of further rules of that list.
    pub landlock_rules: Option<PathBuf>,
    /// A filter of so many rules.
    pub seccomp_rules: Option<u32>,
}

impl Wanted {
    /// Whether anything was asked for.
    pub fn any(&self) -> bool {
        self.no_new_privs || self.landlock || self.seccomp_rules.is_some()
    }
}

/// One line of a Landlock allow list.
pub struct Allowance {
    /// A file, or a directory with all beneath it.
    pub path: CString,
    /// The rights on it.
    pub rights: u64,
}

/// A path to try that the rules must deny, and how to try it.
pub struct Forbidden {
    /// The path.
    pub path: &'static CStr,
    /// Flags of open(2).
    pub flags: libc::c_int,
}

/// What is in force, as seen from inside the process: part of a result line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InForce {
    /// Read back from the kernel.
    pub no_new_privs: bool,
    /// ABI of the rules in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landlock_abi: Option<u32>,
    /// An open outside of the allowed places was denied (EACCES).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landlock_denies_outside: Option<bool>,
    /// Further rules that the kernel took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landlock_rules: Option<usize>,
    /// What the last of them that allows reading names could be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landlock_allows_by_rule: Option<bool>,
    /// Rules of the filter that we installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_rules: Option<u32>,
    /// `Seccomp:` of /proc/self/status; 2 is a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_mode: Option<u64>,
    /// `Seccomp_filters:` there, all filters of this process (Linux 5.9).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_filters: Option<u64>,
}

fn lacks(what: &str) -> ProbeError {
    ProbeError::Unsupported(what.to_owned())
}

/// Put this process under what is wanted, in the order no_new_privs, Landlock, seccomp; prove it.
///
/// Fails before anything is in force where the kernel lacks one of them.
pub fn apply(
    wanted: &Wanted,
    allowances: &[Allowance],
    forbidden: &Forbidden,
) -> Result<InForce, ProbeError> {
    // Opened now, as the rules may not allow it later; its content is made when it is read.
    let status = fd::open(c"/proc/self/status", libc::O_RDONLY, 0);
    let filter = wanted.seccomp_rules.map(filter_of).transpose()?;
    let further = wanted.landlock_rules.as_deref().map(landlock_rules::read);
    let further = further.transpose()?;
    let abi = if wanted.landlock { landlock::abi() } else { 0 };
    if wanted.landlock && abi == 0 {
        return Err(lacks(
            "this kernel has no Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK, and `landlock` in lsm=)",
        ));
    }
    if filter.is_some() && !seccomp::available() {
        return Err(lacks(
            "this kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)",
        ));
    }
    let mut in_force = InForce::default();
    if wanted.any() {
        seccomp::set_no_new_privileges().map_err(|error| refused("no_new_privs", &error))?;
    }
    in_force.no_new_privs = seccomp::no_new_privileges();
    if wanted.landlock {
        let rules = further.as_deref().unwrap_or_default();
        restrict(abi, allowances.iter().chain(rules))?;
        in_force.landlock_abi = Some(abi);
        in_force.landlock_denies_outside = Some(denies(forbidden)?);
        in_force.landlock_rules = further.as_ref().map(Vec::len);
        in_force.landlock_allows_by_rule =
            landlock_rules::provable(rules).map(allows).transpose()?;
    }
    if let Some(mut filter) = filter {
        seccomp::install(&mut filter).map_err(|error| refused("seccomp", &error))?;
        in_force.seccomp_rules = wanted.seccomp_rules;
        prove_seccomp(status, &mut in_force)?;
    }
    Ok(in_force)
}

fn refused(what: &str, error: &io::Error) -> ProbeError {
    ProbeError::Unsupported(format!("{what} was refused: {}", describe(error)))
}

fn filter_of(rules: u32) -> Result<Vec<libc::sock_filter>, ProbeError> {
    seccomp::program(rules).ok_or_else(|| {
        ProbeError::Usage(format!(
            "--seccomp {rules}: one filter holds at most {} rules (BPF_MAXINSNS is {})",
            seccomp::MAX_RULES,
            seccomp::MAX_INSTRUCTIONS
        ))
    })
}

fn restrict<'a>(
    abi: u32,
    allowances: impl Iterator<Item = &'a Allowance>,
) -> Result<(), ProbeError> {
    let refused = |error| refused("landlock", &error);
    let ruleset = Ruleset::new(landlock::all_rights(abi)).map_err(refused)?;
    for allowance in allowances {
        ruleset
            .allow(&allowance.path, allowance.rights)
            .map_err(|error| {
                ProbeError::Failed(format!(
                    "landlock: cannot allow {}: {}",
                    allowance.path.to_string_lossy(),
                    describe(&error)
                ))
            })?;
    }
    ruleset.enforce().map_err(refused)
}

fn denies(forbidden: &Forbidden) -> Result<bool, ProbeError> {
    let path = forbidden.path.to_string_lossy();
    match fd::open(forbidden.path, forbidden.flags, 0) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(true),
        Err(error) => Err(ProbeError::Unsupported(format!(
            "landlock is not proved: opening {path} gave {} in place of EACCES",
            describe(&error)
        ))),
        Ok(_) => Err(ProbeError::Unsupported(format!(
            "landlock is not proved: {path} could be opened under the rules"
        ))),
    }
}

/// Open what a rule lets be read.
fn allows(rule: &Allowance) -> Result<bool, ProbeError> {
    match fd::open(&rule.path, libc::O_RDONLY | libc::O_NONBLOCK, 0) {
        Ok(_) => Ok(true),
        Err(error) => Err(ProbeError::Unsupported(format!(
            "landlock is not proved: opening {}, which a rule allows, gave {}",
            rule.path.to_string_lossy(),
            describe(&error)
        ))),
    }
}

fn prove_seccomp(status: io::Result<OwnedFd>, in_force: &mut InForce) -> Result<(), ProbeError> {
    let unproved = |why: String| ProbeError::Unsupported(format!("seccomp is not proved: {why}"));
    let read = status.and_then(|file| {
        let mut text = vec![0; 8192];
        let mut filled = 0;
        while let Some(free) = text.get_mut(filled..).filter(|free| !free.is_empty()) {
            match fd::read(std::os::fd::AsFd::as_fd(&file), free)? {
                0 => break,
                count => filled += count,
            }
        }
        text.truncate(filled);
        Ok(text)
    });
    let text =
        read.map_err(|error| unproved(format!("/proc/self/status: {}", describe(&error))))?;
    in_force.seccomp_mode = status_field(&text, "Seccomp");
    in_force.seccomp_filters = status_field(&text, "Seccomp_filters");
    if in_force.seccomp_mode != Some(2) || in_force.seccomp_filters == Some(0) {
        return Err(unproved(format!(
            "/proc/self/status says Seccomp {:?}, Seccomp_filters {:?}",
            in_force.seccomp_mode, in_force.seccomp_filters
        )));
    }
    Ok(())
}
