//! As much of ELF as a kernel's text and symbols need: 64 bits, little-endian.
//!
//! Source: elf(5).

use crate::error::describe;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const HEADER_BYTES: u64 = 64;
const LOAD: u32 = 1;
const SYMBOLS: u32 = 2;
const FUNCTION: u8 = 2;
/// No table of a kernel is larger; a damaged header may say anything.
const MOST_TABLE_BYTES: u64 = 1 << 30;

/// Where memory lies in the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Section {
    name: u32,
    kind: u32,
    address: u64,
    offset: u64,
    bytes: u64,
    link: u32,
    executable: bool,
}

/// One symbol of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Where it begins.
    pub address: u64,
    /// Its name.
    pub name: String,
    /// The module that it is in.
    pub module: Option<String>,
}

/// An open ELF file.
#[derive(Debug)]
pub struct Elf {
    path: PathBuf,
    file: File,
    machine: u16,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    names: usize,
}

fn unread(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => format!("{}: is cut off", path.display()),
        _ => format!("{}: {}", path.display(), describe(error)),
    }
}

fn bytes_at<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    bytes_at(data, at).map(u16::from_le_bytes)
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    bytes_at(data, at).map(u32::from_le_bytes)
}

fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    bytes_at(data, at).map(u64::from_le_bytes)
}

fn text_at(strings: &[u8], at: u32) -> Option<String> {
    let text = strings.get(at as usize..)?;
    let end = text.iter().position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(text.get(..end)?).into_owned())
}

impl Elf {
    /// Open a file and read its tables; what is wrong in words.
    pub fn open(path: &Path) -> Result<Self, String> {
        let failed = |error| unread(path, &error);
        let file = File::open(path).map_err(failed)?;
        let mut header = Vec::new();
        (&file)
            .take(HEADER_BYTES)
            .read_to_end(&mut header)
            .map_err(failed)?;
        let held = header.len() as u64;
        if held < HEADER_BYTES {
            let reason = match held {
                0 => "is empty".to_owned(),
                _ => format!(
                    "has {held} bytes, too few for an ELF file, whose header has {HEADER_BYTES}"
                ),
            };
            return Err(format!("{}: {reason}", path.display()));
        }
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return Err(format!(
                "{}: is no ELF file of 64 bits (a bzImage is compressed: give the vmlinux)",
                path.display()
            ));
        }
        let mut found = Self {
            path: path.to_owned(),
            file,
            machine: u16_at(&header, 18).unwrap_or_default(),
            segments: Vec::new(),
            sections: Vec::new(),
            names: u16_at(&header, 62).map_or(0, usize::from),
        };
        let table = |offset, bytes, count| {
            Some((
                u64_at(&header, offset)?,
                u64::from(u16_at(&header, bytes)?),
                u64::from(u16_at(&header, count)?),
            ))
        };
        found.segments = found
            .table(table(32, 54, 56))?
            .iter()
            .filter_map(|row| {
                (u32_at(row, 0)? == LOAD).then_some(Segment {
                    address: u64_at(row, 16)?,
                    offset: u64_at(row, 8)?,
                    bytes: u64_at(row, 32)?,
                })
            })
            .collect();
        found.sections = found
            .table(table(40, 58, 60))?
            .iter()
            .filter_map(|row| {
                Some(Section {
                    name: u32_at(row, 0)?,
                    kind: u32_at(row, 4)?,
                    executable: u64_at(row, 8)? & 4 != 0,
                    address: u64_at(row, 16)?,
                    offset: u64_at(row, 24)?,
                    bytes: u64_at(row, 32)?,
                    link: u32_at(row, 40)?,
                })
            })
            .collect();
        Ok(found)
    }

    /// `e_machine`.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// Rows of a table: where, bytes of a row, rows.
    fn table(&self, place: Option<(u64, u64, u64)>) -> Result<Vec<Vec<u8>>, String> {
        let Some((offset, bytes, count)) = place.filter(|(_, bytes, _)| *bytes > 0) else {
            return Ok(Vec::new());
        };
        let whole = self.at(offset, bytes.saturating_mul(count))?;
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(whole.chunks_exact(size).map(<[u8]>::to_vec).collect())
    }

    /// Bytes of the file, all of them.
    fn at(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, String> {
        let size = usize::try_from(bytes.min(MOST_TABLE_BYTES)).unwrap_or(0);
        let mut data = Vec::new();
        // Not all at once: a header that is damaged must not make us ask for memory in vain.
        while data.len() < size {
            let step = (size - data.len()).min(1 << 20);
            let start = data.len();
            data.resize(start + step, 0);
            let place = offset.saturating_add(start as u64);
            let piece = data.get_mut(start..).unwrap_or_default();
            self.file
                .read_exact_at(piece, place)
                .map_err(|error| unread(&self.path, &error))?;
        }
        Ok(data)
    }

    /// Memory from an address on; what no segment has is left out at the end.
    pub fn read(&self, address: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let segment = self.segments.iter().find(|segment| {
            segment.address <= address && address - segment.address < segment.bytes
        });
        let Some(segment) = segment else {
            return Err(format!(
                "{}: has no memory at {address:#x}",
                self.path.display()
            ));
        };
        let inside = address - segment.address;
        let bytes = (segment.bytes - inside).min(bytes as u64);
        self.at(segment.offset.saturating_add(inside), bytes)
    }

    fn section(&self, name: &str) -> Result<Option<Section>, String> {
        let Some(names) = self.sections.get(self.names) else {
            return Ok(None);
        };
        let strings = self.at(names.offset, names.bytes)?;
        let mut all = self.sections.iter();
        let found = all.find(|section| text_at(&strings, section.name).as_deref() == Some(name));
        Ok(found.copied())
    }

    /// A section by its name; `None` if there is none.
    pub fn contents(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        self.section(name)?
            .map(|section| self.at(section.offset, section.bytes))
            .transpose()
    }

    /// The functions in its table of symbols.
    pub fn symbols(&self) -> Result<Vec<Symbol>, String> {
        let table = self.sections.iter().find(|section| section.kind == SYMBOLS);
        let Some(table) = table else {
            return Err(format!("{}: has no symbols", self.path.display()));
        };
        let strings = match self.sections.get(table.link as usize) {
            Some(section) => self.at(section.offset, section.bytes)?,
            None => Vec::new(),
        };
        let data = self.at(table.offset, table.bytes)?;
        Ok(data
            .chunks_exact(24)
            .filter_map(|row| {
                let section = usize::from(u16_at(row, 6)?);
                let holds = self.sections.get(section)?;
                let named = row.get(4)? & 0xf == FUNCTION || holds.executable;
                (named && holds.address > 0).then_some(Symbol {
                    address: u64_at(row, 8)?,
                    name: text_at(&strings, u32_at(row, 0)?)?,
                    module: None,
                })
            })
            .filter(|symbol| !symbol.name.is_empty())
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_names_its_own_functions() {
        let own = Elf::open(Path::new("/proc/self/exe")).unwrap();
        let symbols = own.symbols().unwrap();
        assert!(symbols.len() > 100);
        let main = symbols.iter().find(|symbol| symbol.name == "main").unwrap();
        assert_eq!(own.read(main.address, 16).unwrap().len(), 16);
        assert!(own.read(u64::MAX, 1).is_err());
        assert!(own.contents(".text").unwrap().unwrap().len() > 1_000);
        assert!(own.contents(".none").unwrap().is_none());
    }

    #[test]
    fn what_is_no_elf_or_cut_is_an_error_in_words() {
        let path = std::env::temp_dir().join(format!("excise-elf-{}", std::process::id()));
        let own = std::fs::read("/proc/self/exe").unwrap();
        for (data, reason) in [
            (&b""[..], "is empty"),
            (b"MZ", "has 2 bytes, too few for an ELF file"),
            (own.get(..63).unwrap(), "has 63 bytes"),
            (&[b'x'; 64], "no ELF file"),
            (own.get(..80).unwrap(), "cut off"),
        ] {
            std::fs::write(&path, data).unwrap();
            let error = Elf::open(&path).map(|_| ()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        std::fs::remove_file(path).unwrap();
    }
}
