//! Who calls the hooks: direct calls and jumps in a kernel's text, by the symbol that each is in.
//!
//! The text is the running kernel's (`/proc/kcore`, named by `/proc/kallsyms`), or that of a
//! `vmlinux`. Calls by pointers are none of these, nor is code that was freed after the boot.

use super::elf::{Elf, Symbol};
use crate::error::describe;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Most of a kernel's or a module's text that is read.
const MOST_BYTES: u64 = 256 << 20;
/// Read at once; a call that is cut lies whole in the next piece, too.
const PIECE_BYTES: usize = 1 << 20;
const LONGEST_CALL: usize = 6;
/// Text after a module's last symbol, whose size is not told.
const LAST_BYTES: u64 = 8 << 10;

/// A function that calls another, and from how many places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caller {
    /// Its name; with the module in brackets where it is in one.
    pub function: String,
    /// Calls and jumps in its text.
    pub sites: u32,
}

/// Callers by called function; or why they are not known.
pub type Found = Result<BTreeMap<String, Vec<Caller>>, String>;

/// Machines whose calls are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    X86,
    Arm64,
}

/// The running kernel's callers of functions.
pub fn of_running(functions: &[&str]) -> Found {
    let names = fs::read_to_string("/proc/kallsyms")
        .map_err(|error| format!("/proc/kallsyms: {}", describe(&error)))?;
    let symbols = kallsyms(&names);
    if symbols.iter().all(|symbol| symbol.address == 0) {
        return Err(
            "/proc/kallsyms hides addresses (kernel.kptr_restrict, or not root)".to_owned(),
        );
    }
    let core = Elf::open(Path::new("/proc/kcore")).map_err(|reason| {
        format!("{reason} (needs root, CONFIG_PROC_KCORE, and a kernel that is not locked down)")
    })?;
    search(&core, symbols, functions)
}

/// The callers of functions in a kernel's file.
pub fn of_file(kernel: &Elf, functions: &[&str]) -> Found {
    search(kernel, kernel.symbols()?, functions)
}

/// Text symbols of `/proc/kallsyms`.
fn kallsyms(text: &str) -> Vec<Symbol> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            if !matches!(words.next()?, "t" | "T" | "w" | "W") {
                return None;
            }
            let name = words.next()?.to_owned();
            let module = words.next().map(str::to_owned);
            Some(Symbol {
                address,
                name,
                module,
            })
        })
        .collect()
}

fn search(image: &Elf, mut symbols: Vec<Symbol>, functions: &[&str]) -> Found {
    let machine = match image.machine() {
        62 => Machine::X86,
        183 => Machine::Arm64,
        other => return Err(format!("calls of ELF machine {other} are not known")),
    };
    // Of several names of one place the shortest comes last, which is the one that is used.
    symbols.sort_by(|a, b| {
        (a.address, std::cmp::Reverse(a.name.len()), &a.name).cmp(&(
            b.address,
            std::cmp::Reverse(b.name.len()),
            &b.name,
        ))
    });
    let targets: BTreeMap<u64, &str> = symbols
        .iter()
        .filter(|symbol| symbol.module.is_none())
        .filter_map(|symbol| {
            let name = functions.iter().find(|name| **name == symbol.name)?;
            Some((symbol.address, *name))
        })
        .collect();
    let mut counts: BTreeMap<&str, BTreeMap<String, u32>> = BTreeMap::new();
    for (from, to) in regions(&symbols) {
        let mut at = from;
        while at < to {
            let length = usize::try_from(to - at)
                .unwrap_or(PIECE_BYTES)
                .min(PIECE_BYTES);
            let text = match image.read(at, length.saturating_add(LONGEST_CALL)) {
                Err(_) if at > from => break, // behind a module's text
                text => text?,
            };
            for (site, target) in calls(machine, &text, at, length) {
                let Some(function) = targets.get(&target) else {
                    continue;
                };
                let Some(caller) = holder(&symbols, site).filter(|name| name != function) else {
                    continue;
                };
                let callers = counts.entry(function).or_default();
                let count = callers.entry(caller).or_default();
                *count = count.saturating_add(1);
            }
            at = at.saturating_add(length as u64);
        }
    }
    Ok(counts
        .into_iter()
        .map(|(function, callers)| {
            let callers = callers.into_iter();
            let listed = callers.map(|(function, sites)| Caller { function, sites });
            (function.to_owned(), listed.collect())
        })
        .collect())
}

/// From where to where text lies: the kernel's, then each module's.
fn regions(symbols: &[Symbol]) -> Vec<(u64, u64)> {
    let named = |name: &str| {
        let mut all = symbols.iter();
        all.find(|symbol| symbol.module.is_none() && symbol.name == name)
            .map(|symbol| symbol.address)
    };
    let own = symbols.iter().filter(|symbol| symbol.module.is_none());
    let first = named("_stext").or_else(|| own.clone().map(|symbol| symbol.address).min());
    let last = named("_etext").or_else(|| {
        let last = own.map(|symbol| symbol.address).max();
        last.map(|address| address.saturating_add(LAST_BYTES))
    });
    let mut modules: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for symbol in symbols {
        if let Some(module) = &symbol.module {
            let (from, to) = modules.entry(module).or_insert((u64::MAX, 0));
            *from = symbol.address.min(*from);
            *to = symbol.address.saturating_add(LAST_BYTES).max(*to);
        }
    }
    first
        .zip(last)
        .into_iter()
        .chain(modules.into_values())
        .filter(|(from, to)| from < to && to - from <= MOST_BYTES)
        .collect()
}

/// The function that an address is in, as people name it.
fn holder(symbols: &[Symbol], address: u64) -> Option<String> {
    let after = symbols.partition_point(|symbol| symbol.address <= address);
    let symbol = symbols.get(after.checked_sub(1)?)?;
    // The compiler puts unlikely parts of a function elsewhere.
    let name = symbol.name.split(".cold").next().unwrap_or_default();
    Some(match &symbol.module {
        Some(module) => format!("{name} {module}"),
        None => name.to_owned(),
    })
}

/// Calls and jumps that begin in the first `length` bytes of a text, as (place, target).
fn calls(
    machine: Machine,
    text: &[u8],
    base: u64,
    length: usize,
) -> impl Iterator<Item = (u64, u64)> + '_ {
    let step = match machine {
        Machine::X86 => 1,
        Machine::Arm64 => 4,
    };
    (0..length).step_by(step).filter_map(move |at| {
        let place = base.checked_add(at as u64)?;
        let rest = text.get(at..)?;
        let target = match machine {
            Machine::X86 => x86_target(rest, place)?,
            Machine::Arm64 => arm64_target(rest, place)?,
        };
        Some((place, target))
    })
}

/// `call rel32`, `jmp rel32` and `jcc rel32`.
fn x86_target(text: &[u8], place: u64) -> Option<u64> {
    let opcode = match text {
        [0xe8 | 0xe9, ..] => 1,
        [0x0f, 0x80..=0x8f, ..] => 2,
        _ => return None,
    };
    let bytes = text.get(opcode..opcode + 4)?.try_into().ok()?;
    let offset = i64::from(i32::from_le_bytes(bytes));
    place
        .checked_add(opcode as u64 + 4)?
        .checked_add_signed(offset)
}

/// `bl` and `b`, whose 26 bits count words.
fn arm64_target(text: &[u8], place: u64) -> Option<u64> {
    let word = u32::from_le_bytes(text.get(..4)?.try_into().ok()?);
    if !matches!(word >> 26, 0b10_0101 | 0b00_0101) {
        return None;
    }
    let words = ((word << 6) as i32) >> 6;
    place.checked_add_signed(i64::from(words) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_calls_and_jumps() {
        let call = [0xe8, 0xfb, 0xff, 0xff, 0xff]; // to itself
        assert_eq!(x86_target(&call, 0x1000), Some(0x1000));
        assert_eq!(x86_target(&[0xe9, 1, 0, 0, 0], 0x1000), Some(0x1006));
        assert_eq!(x86_target(&[0x0f, 0x84, 1, 0, 0, 0], 0x1000), Some(0x1007));
        assert_eq!(x86_target(&[0xe8, 1, 0, 0], 0x1000), None);
        assert_eq!(x86_target(&[0x90; 6], 0x1000), None);
        assert_eq!(
            arm64_target(&0x97ff_ffff_u32.to_le_bytes(), 0x1000),
            Some(0xffc)
        );
        assert_eq!(
            arm64_target(&0x1400_0002_u32.to_le_bytes(), 0x1000),
            Some(0x1008)
        );
        assert_eq!(arm64_target(&0xd503_201f_u32.to_le_bytes(), 0x1000), None);
    }

    #[test]
    fn a_place_is_in_the_symbol_before_it_and_cold_parts_are_their_functions() {
        let text = "0000000000001000 T _stext\n0000000000001010 t do_open\n\
                    0000000000001050 t do_open.cold\n0000000000001100 T _etext\n\
                    0000000000009000 t ovl_open\t[overlay]\n0000000000001020 d data\n";
        let symbols = kallsyms(text);
        assert_eq!(holder(&symbols, 0x104f).as_deref(), Some("do_open"));
        assert_eq!(holder(&symbols, 0x1051).as_deref(), Some("do_open"));
        assert_eq!(
            holder(&symbols, 0x900f).as_deref(),
            Some("ovl_open [overlay]")
        );
        assert_eq!(holder(&symbols, 0xfff), None);
        assert_eq!(regions(&symbols), [(0x1000, 0x1100), (0x9000, 0xb000)]);
    }

    #[test]
    fn a_kernel_that_hides_its_text_says_so() {
        if let Err(reason) = of_running(&["security_file_open"]) {
            assert!(reason.contains("/proc/k"), "{reason}");
        }
    }
}
