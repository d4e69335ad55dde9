//! How a list is laid out, and what is known of it beforehand.
use super::bank::Bank;
use super::template::ByteOrder;

/// Binary or text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `binary_runtime_measurements*`.
    Binary,
    /// `ascii_runtime_measurements*`.
    Ascii,
}

impl Format {
    /// `binary` or `ascii`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Binary => "binary",
            Format::Ascii => "ascii",
        }
    }
}

/// Header of a list handed from one kernel to the next (`struct ima_kexec_hdr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KexecHeader {
    /// Bytes of the buffer, this header included.
    pub buffer_bytes: u64,
    /// Entries in the buffer.
    pub count: u64,
}

/// Bytes of a kexec header.
pub const KEXEC_HEADER_BYTES: usize = 24;

/// How a list is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Binary or text.
    pub format: Format,
    /// Byte order of the integers (in a text list: of the lengths that were hashed).
    pub order: ByteOrder,
    /// Bank of the template hashes that the list shows.
    pub header_bank: Bank,
    /// The header before the entries, in a list taken from a kexec buffer.
    pub kexec: Option<KexecHeader>,
}

/// What is known of a list beforehand; `None` is found out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Binary or text.
    pub format: Option<Format>,
    /// Byte order.
    pub order: Option<ByteOrder>,
    /// Bank of the template hashes that the list shows.
    pub header_bank: Option<Bank>,
    /// Offset, in the whole input, of the first byte handed over.
    pub start_offset: u64,
    /// Position, in the whole list, of the first entry handed over.
    pub start_index: u64,
    /// Line of the first entry handed over, from 1 (text lists).
    pub start_line: u64,
}
