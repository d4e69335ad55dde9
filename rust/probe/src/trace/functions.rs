//! Which functions to trace: hooks by the kernel's own list, a module's functions, any by pattern.
//!
//! The hooks are the members of `union security_list_options` in the kernel's BTF. The function
//! that calls hook `x` is `security_x`, but for the names below (security/security.c of 6.12).

use super::tracefs::Folder;
use crate::error::ProbeError;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Hooks that their caller names otherwise than by leaving out `_security`.
const IRREGULAR: &[(&str, &str)] = &[
    ("settime", "security_settime64"),
    ("vm_enough_memory", "security_vm_enough_memory_mm"),
    ("cred_prepare", "security_prepare_creds"),
    ("cred_transfer", "security_transfer_creds"),
    ("sb_free_mnt_opts", "security_free_mnt_opts"),
    ("sk_getsecid", "security_sk_classify_flow"),
    ("task_getsecid", "security_task_getsecid"),
    ("inode_free_security_rcu", "inode_free_by_rcu"),
];

/// Functions of each module; `@` stands for the names of the kernel's hooks.
pub const MODULES: &[(&str, &[&str])] = &[
    ("capability", &["cap_@"]),
    (
        "selinux",
        &[
            "selinux_*",
            "avc_*",
            "security_*",
            "sel_*",
            "context_struct_*",
            "sidtab_*",
            "inode_doinit_*",
            "inode_has_perm*",
            "file_has_perm*",
            "may_create*",
            "may_link*",
        ],
    ),
    (
        "apparmor",
        &[
            "apparmor_*",
            "aa_*",
            "profile_path_*",
            "profile_transition*",
            "profile_onexec*",
            "common_perm*",
            "common_file_perm*",
            "common_mmap*",
        ],
    ),
    ("tomoyo", &["tomoyo_*"]),
    ("smack", &["smack_*", "smk_*"]),
    ("landlock", &["hook_@", "landlock_*"]),
    ("yama", &["yama_*"]),
    ("lockdown", &["lockdown_*"]),
    ("loadpin", &["loadpin_*"]),
    ("safesetid", &["safesetid_*"]),
    ("bpf", &["bpf_lsm_*"]),
    ("ima", &["ima_*", "process_measurement*", "integrity_*"]),
    ("evm", &["evm_*", "integrity_*"]),
];

/// Functions of a TPM extend, for the preset `--tpm`.
pub const TPM: &[&str] = &[
    "ima_add_template_entry",
    "ima_pcr_extend*",
    "tpm_*",
    "tpm1_*",
    "tpm2_*",
    "crb_*",
    "tis_*",
];
/// Functions of IMA and EVM, for the preset `--ima`.
pub const IMA: &[&str] = &["ima_*", "evm_*", "integrity_*", "process_measurement*"];

/// What to trace.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Patterns over hooks and their callers.
    pub hooks: Vec<String>,
    /// Modules by name.
    pub modules: Vec<String>,
    /// Patterns over any function.
    pub functions: Vec<String>,
}

/// One hook of this kernel.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Hook {
    /// Its name in `lsm_hook_defs.h`.
    pub hook: String,
    /// The function that calls the modules, if it can be traced.
    pub function: Option<String>,
}

/// What a pattern found.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Matched {
    /// The pattern or module.
    pub pattern: String,
    /// How many functions it chose.
    pub functions: usize,
}

/// The functions that were chosen, sorted, and by which pattern.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// Their names.
    pub names: Vec<String>,
    /// What each pattern found.
    pub matched: Vec<Matched>,
}

/// Whether a name is of a pattern of `*` and `?`.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut position) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while position < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, position));
                at += 1;
            }
            Some(&byte) if byte == b'?' || name.get(position) == Some(&byte) => {
                at += 1;
                position += 1;
            }
            _ => match star {
                Some((start, taken)) => {
                    star = Some((start, taken + 1));
                    at = start + 1;
                    position = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern
        .get(at..)
        .is_some_and(|rest| rest.iter().all(|&byte| byte == b'*'))
}

/// The functions that can be traced.
#[derive(Clone, Debug, Default)]
pub struct Available {
    /// Places of each name in the kernel's list, from 1; static functions may share a name.
    places: BTreeMap<String, Vec<usize>>,
}

impl Available {
    /// Read `available_filter_functions`.
    pub fn read(top: &Folder) -> Result<Self, ProbeError> {
        Ok(Self::of(&top.read("available_filter_functions")?))
    }

    /// From the list's text; a module in brackets after a name is left out.
    pub fn of(text: &str) -> Self {
        let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (place, line) in (1..).zip(text.lines()) {
            let name = line.split_whitespace().next().unwrap_or_default();
            places.entry(name.to_owned()).or_default().push(place);
        }
        Self { places }
    }

    /// Whether a function can be traced.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.places.keys()
    }

    /// Places of a name in the kernel's list, which the kernel looks up far faster than names.
    pub fn places(&self, name: &str) -> &[usize] {
        self.places.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Every hook with the function that calls it. `names` are the hooks, from BTF.
pub fn catalogue(names: &[String], available: &Available) -> Vec<Hook> {
    names
        .iter()
        .map(|hook| Hook {
            hook: hook.clone(),
            function: callers(hook).find(|function| available.contains(function)),
        })
        .collect()
}

/// Names that the caller of a hook may have, the likeliest first.
fn callers(hook: &str) -> impl Iterator<Item = String> + '_ {
    let irregular = IRREGULAR
        .iter()
        .filter(move |(name, _)| *name == hook)
        .map(|(_, function)| (*function).to_owned());
    let shortened = hook
        .contains("_security")
        .then(|| format!("security_{}", hook.replacen("_security", "", 1)));
    irregular
        .chain(std::iter::once(format!("security_{hook}")))
        .chain(shortened)
}

/// A hook and its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// What it is about.
    pub group: &'static str,
    /// The hook.
    #[serde(flatten)]
    pub hook: Hook,
}

/// The hooks by group; without BTF the functions that are named like callers of hooks.
pub fn entries(hooks: Vec<Hook>, available: &Available) -> Vec<Entry> {
    let entry = |hook: Hook| Entry {
        group: group(&hook.hook),
        hook,
    };
    if !hooks.is_empty() {
        return hooks.into_iter().map(entry).collect();
    }
    let named = available.names().filter_map(|name| {
        Some(Hook {
            hook: name.strip_prefix("security_")?.to_owned(),
            function: Some(name.clone()),
        })
    });
    named.map(entry).collect()
}

/// Functions that serve interrupts or give the processor away, which tell what a call waited for.
pub fn interrupting(available: &Available) -> Vec<String> {
    const NAMES: &[&str] = &[
        "irq_enter_rcu",
        "irq_exit_rcu",
        "irq_enter",
        "irq_exit",
        "do_IRQ",
        "__common_interrupt",
        "common_interrupt",
        "gic_handle_irq",
        "generic_handle_arch_irq",
        "schedule",
        "preempt_schedule_common",
        "preempt_schedule_irq",
        "schedule_preempt_disabled",
    ];
    let system = |name: &str| name.starts_with("__sysvec_");
    available
        .names()
        .filter(|name| NAMES.contains(&name.as_str()) || system(name))
        .cloned()
        .collect()
}

/// Choose functions. Hooks and `@` patterns mean what the catalogue has, where there is one.
pub fn choose(
    wanted: &Wanted,
    hooks: &[Hook],
    available: &Available,
) -> Result<Chosen, ProbeError> {
    let mut names = BTreeSet::new();
    let mut matched = Vec::new();
    let mut take = |pattern: &String, found: Vec<String>| {
        matched.push(Matched {
            pattern: pattern.clone(),
            functions: found.len(),
        });
        names.extend(found);
    };
    for pattern in &wanted.hooks {
        take(pattern, hook_functions(pattern, hooks, available));
    }
    for module in &wanted.modules {
        take(module, module_functions(module, hooks, available)?);
    }
    for pattern in &wanted.functions {
        take(pattern, of_pattern(pattern, available).collect());
    }
    if names.is_empty() {
        let tried: Vec<_> = matched.iter().map(|each| each.pattern.as_str()).collect();
        return Err(ProbeError::Usage(format!(
            "no traceable function of this kernel is called {}",
            tried.join(" or ")
        )));
    }
    Ok(Chosen {
        names: names.into_iter().collect(),
        matched,
    })
}

fn of_pattern<'a>(pattern: &'a str, available: &'a Available) -> impl Iterator<Item = String> + 'a {
    available
        .names()
        .filter(move |name| matches(pattern, name))
        .cloned()
}

fn hook_functions(pattern: &str, hooks: &[Hook], available: &Available) -> Vec<String> {
    if hooks.is_empty() {
        return of_pattern(pattern, available)
            .filter(|name| name.starts_with("security_"))
            .collect();
    }
    hooks
        .iter()
        .filter_map(|hook| {
            let function = hook.function.as_ref()?;
            (matches(pattern, &hook.hook) || matches(pattern, function)).then(|| function.clone())
        })
        .collect()
}

pub fn module_functions(
    module: &str,
    hooks: &[Hook],
    available: &Available,
) -> Result<Vec<String>, ProbeError> {
    let Some((_, patterns)) = MODULES.iter().find(|(name, _)| *name == module) else {
        let known: Vec<_> = MODULES.iter().map(|(name, _)| *name).collect();
        return Err(ProbeError::Usage(format!(
            "--lsm {module}: unknown; known are {}",
            known.join(", ")
        )));
    };
    let wrappers: BTreeSet<_> = hooks
        .iter()
        .filter_map(|hook| hook.function.as_ref())
        .collect();
    let mut found = BTreeSet::new();
    for pattern in *patterns {
        if let Some(prefix) = pattern.strip_suffix('@') {
            let own = hooks.iter().map(|hook| format!("{prefix}{}", hook.hook));
            found.extend(own.filter(|name| available.contains(name)));
        } else {
            // SELinux calls functions of its own security_*, too; those are no callers of hooks.
            found.extend(of_pattern(pattern, available).filter(|name| !wrappers.contains(name)));
        }
    }
    Ok(found.into_iter().collect())
}

/// Group the hooks as `lsm_hook_defs.h` does, by what they are about.
pub fn group(hook: &str) -> &'static str {
    const GROUPS: &[(&str, &[&str])] = &[
        ("binder", &["binder_"]),
        ("program execution", &["bprm_"]),
        ("file system context", &["fs_context_"]),
        ("superblock", &["sb_", "move_mount", "quota"]),
        ("dentry", &["dentry_", "d_instantiate"]),
        ("path", &["path_"]),
        ("inode", &["inode_"]),
        ("kernfs", &["kernfs_"]),
        ("file", &["file_", "mmap_"]),
        (
            "credential",
            &[
                "cred_",
                "getprocattr",
                "setprocattr",
                "getselfattr",
                "setselfattr",
            ],
        ),
        ("task", &["task_", "current_get", "userns_", "ptrace_"]),
        (
            "kernel",
            &[
                "kernel_",
                "lockdown",
                "locked_down",
                "vm_",
                "settime",
                "syslog",
                "cap",
                "uring_",
            ],
        ),
        ("IPC", &["ipc_", "msg_", "shm_", "sem_"]),
        ("netlink", &["netlink_"]),
        (
            "socket",
            &[
                "socket_", "unix_", "sk_", "inet_", "req_", "secmark_", "tun_", "sctp_", "mptcp_",
                "ib_",
            ],
        ),
        ("XFRM", &["xfrm_"]),
        ("key", &["key_"]),
        ("audit", &["audit_"]),
        ("BPF", &["bpf"]),
        ("perf event", &["perf_"]),
        ("block device", &["bdev_"]),
        (
            "security context",
            &[
                "secid_",
                "secctx_",
                "release_secctx",
                "ismaclabel",
                "lsmprop_",
                "initramfs_",
            ],
        ),
        ("watch", &["post_notification", "watch_"]),
    ];
    GROUPS
        .iter()
        .find(|(_, prefixes)| prefixes.iter().any(|prefix| hook.starts_with(prefix)))
        .map_or("other", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> Available {
        Available::of(&names.join("\n"))
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn patterns_match_as_a_shell_does() {
        assert!(matches("security_*", "security_file_open"));
        assert!(matches("*_open", "security_file_open"));
        assert!(matches("s*_f?le_*n", "security_file_open"));
        assert!(matches("file_open", "file_open"));
        assert!(!matches("file_open", "file_open2"));
        assert!(!matches("security_?", "security_"));
        assert!(matches("*", ""));
        assert!(!matches("a*b*c", "aXbX"));
    }

    #[test]
    fn a_hook_is_found_under_its_callers_name() {
        let functions = set(&[
            "security_file_open",
            "security_file_alloc",
            "security_prepare_creds",
            "security_compute_sid",
        ]);
        let hooks = texts(&[
            "file_open",
            "file_alloc_security",
            "cred_prepare",
            "file_lock",
        ]);
        let found: Vec<_> = catalogue(&hooks, &functions)
            .into_iter()
            .map(|hook| hook.function)
            .collect();
        assert_eq!(
            found,
            [
                Some("security_file_open".to_owned()),
                Some("security_file_alloc".to_owned()),
                Some("security_prepare_creds".to_owned()),
                None
            ]
        );
    }

    #[test]
    fn a_module_s_own_function_of_a_hook_like_name_is_not_taken_for_a_hook() {
        let functions = set(&[
            "security_file_open",
            "security_compute_sid",
            "hook_file_open",
            "hook_other",
        ]);
        let hooks = catalogue(&texts(&["file_open"]), &functions);
        let wanted = Wanted {
            hooks: texts(&["security_*"]),
            ..Wanted::default()
        };
        let chosen = choose(&wanted, &hooks, &functions).unwrap();
        assert_eq!(chosen.names, ["security_file_open"]);
        let wanted = Wanted {
            modules: texts(&["selinux", "landlock"]),
            ..Wanted::default()
        };
        let chosen = choose(&wanted, &hooks, &functions).unwrap();
        assert_eq!(chosen.names, ["hook_file_open", "security_compute_sid"]);
    }

    #[test]
    fn what_matches_nothing_is_an_error_that_names_it() {
        let wanted = Wanted {
            functions: texts(&["no_such_*"]),
            ..Wanted::default()
        };
        let error = choose(&wanted, &[], &set(&["a"])).unwrap_err();
        assert!(error.to_string().contains("no_such_*"));
        let wanted = Wanted {
            modules: texts(&["magic"]),
            ..Wanted::default()
        };
        assert!(choose(&wanted, &[], &set(&["a"]))
            .unwrap_err()
            .to_string()
            .contains("apparmor"));
    }

    #[test]
    fn a_name_has_all_its_places_and_a_module_is_no_part_of_it() {
        let found = Available::of("first\nsecond [loop]\nfirst\n");
        assert_eq!(found.places("first"), [1, 3]);
        assert_eq!(found.places("second"), [2]);
        assert!(found.places("third").is_empty());
    }

    #[test]
    fn hooks_are_grouped_by_their_subject() {
        assert_eq!(group("inode_permission"), "inode");
        assert_eq!(group("path_mknod"), "path");
        assert_eq!(group("mmap_file"), "file");
        assert_eq!(group("bprm_check_security"), "program execution");
        assert_eq!(group("something_new"), "other");
    }
}
