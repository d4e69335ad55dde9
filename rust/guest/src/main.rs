//! Static program inside a lab guest, for what a shell cannot do.
//!
//! `bpf-lsm FOLDER HOOK...` attaches a program that counts and allows to each hook, pinned below
//! FOLDER, a BPF file system; `bpf-count FOLDER` prints how often they ran; `evm-key` makes EVM's
//! HMAC key and hands it to the kernel; `attribute FILE NAME` prints an extended attribute in hex.

#![deny(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

/// The probe's reader: the kernel's type ids, of which this program wants the functions'.
#[allow(dead_code)]
#[path = "../../probe/src/trace/btf.rs"]
mod btf;
mod sys;

use std::ffi::CString;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

const BTF: &str = "/sys/kernel/btf/vmlinux";
const EVM: &str = "/sys/kernel/security/evm";
const MASTER_KEY_BYTES: usize = 32;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["bpf-lsm", folder, hooks @ ..] if !hooks.is_empty() => attach(folder, hooks),
        ["bpf-count", folder] => count(folder),
        ["evm-key"] => make_evm_key(),
        ["attribute", path, name] => print_attribute(path, name),
        _ => {
            let _ = writeln!(
                std::io::stderr(),
                "usage: excise-guest bpf-lsm FOLDER HOOK... | bpf-count FOLDER | evm-key | \
                 attribute FILE NAME"
            );
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            let _ = writeln!(std::io::stderr(), "excise-guest: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn failed(what: impl Display) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

fn text(word: &str) -> Result<CString, String> {
    CString::new(word).map_err(|_| format!("{word:?} holds a NUL"))
}

fn print(line: impl Display) -> Result<(), String> {
    writeln!(std::io::stdout(), "{line}").map_err(failed("standard output"))
}

/// Count every call of each hook in a map of its own, and allow it.
fn attach(folder: &str, hooks: &[&str]) -> Result<(), String> {
    let types = std::fs::read(BTF).map_err(failed(BTF))?;
    for hook in hooks {
        let function = format!("bpf_lsm_{hook}");
        let id = btf::function_id(&types, &function)
            .ok_or_else(|| format!("this kernel has no {function}"))?;
        let map = sys::counter_map().map_err(failed("counter"))?;
        let program = sys::load_lsm_program(&map, id).map_err(failed(&function))?;
        let link = sys::attach_lsm(&program).map_err(failed(&function))?;
        for (object, kind) in [(&map, "count"), (&link, "link")] {
            let path = format!("{folder}/{kind}_{hook}");
            sys::pin(object, &text(&path)?).map_err(failed(&path))?;
        }
    }
    Ok(())
}

/// Print `HOOK COUNT` of every pinned counter, and their sum.
fn count(folder: &str) -> Result<(), String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed(folder))? {
        let name = entry.map_err(failed(folder))?.file_name();
        if let Some(hook) = name.to_str().and_then(|name| name.strip_prefix("count_")) {
            names.push(hook.to_owned());
        }
    }
    names.sort();
    let mut sum = 0_u64;
    for hook in names {
        let path = format!("{folder}/count_{hook}");
        let map = sys::open_pinned(&text(&path)?).map_err(failed(&path))?;
        let value = sys::counter_value(&map).map_err(failed(&path))?;
        sum = sum.saturating_add(value);
        print(format_args!("{hook} {value}"))?;
    }
    print(format_args!("total {sum}"))
}

/// Make a master key and, wrapped by it, EVM's key; then let EVM take it.
///
/// The master key is a constant: it protects nothing in a guest that is thrown away, and a count
/// must repeat. Source: Documentation/security/keys/trusted-encrypted.rst.
fn make_evm_key() -> Result<(), String> {
    sys::add_key(c"user", c"kmk-user", &[0x5a; MASTER_KEY_BYTES]).map_err(failed("kmk-user"))?;
    sys::add_key(c"encrypted", c"evm-key", b"new default user:kmk-user 64")
        .map_err(failed("evm-key"))?;
    std::fs::write(EVM, "1").map_err(failed(EVM))
}

fn print_attribute(path: &str, name: &str) -> Result<(), String> {
    let value =
        sys::attribute(&text(path)?, &text(name)?).map_err(failed(format!("{name} of {path}")))?;
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    print(hex)
}
