//! One record of a list, and the framing of the binary form.
//!
//! A binary record is: PCR index (u32), template hash (as wide as the header's bank), length and
//! text of the template name, then the length and bytes of the template data; the old `ima`
//! template has no data length: a 20-byte digest, a length and the name follow. Source: Linux,
//! `security/integrity/ima/ima_fs.c`, `ima_measurements_show`.
use super::limits::{
    MAX_EVENT_NAME_BYTES, MAX_PCR_INDEX, MAX_TEMPLATE_DATA_BYTES, MAX_TEMPLATE_NAME_BYTES,
};
use super::template::{ByteOrder, Template, IMA_DIGEST_BYTES, IMA_NAME_BYTES};

/// One entry of a measurement list.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Position in the list, from 0.
    pub index: u64,
    /// Byte offset of its first byte in the input.
    pub offset: u64,
    /// Byte offset after its last byte.
    pub end: u64,
    /// Line of an ascii list, from 1; 0 in a binary list.
    pub line: u64,
    /// PCR it was extended into.
    pub pcr: u32,
    /// Template hash as recorded, in the header's bank.
    pub template_hash: &'a [u8],
    /// Template name, or format string, as recorded.
    pub template_name: &'a [u8],
    /// What the name says about the fields.
    pub template: &'a Template,
    /// Slot of the name among the different names seen, for counting.
    pub template_slot: usize,
    /// Template data as it is hashed; `None` where an ascii line does not determine it.
    pub data: Option<&'a [u8]>,
}

impl Record<'_> {
    /// Whether the record reports a violation: its template hash is all zero.
    #[inline]
    #[must_use]
    pub fn is_violation(&self) -> bool {
        is_zero(self.template_hash)
    }
}

/// Whether all bytes are zero.
#[inline]
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0) && bytes.iter().all(|byte| *byte == 0)
}

/// Whether two short texts are the same, without a call.
#[inline]
pub(super) fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(a, b)| a == b)
}

/// Why reading stopped before the end of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset of the record that could not be read.
    pub record_offset: u64,
    /// Offset of the field at fault.
    pub offset: u64,
    /// Line of an ascii list, from 1; 0 in a binary list.
    pub line: u64,
    /// The field at fault.
    pub field: &'static str,
    /// What is wrong.
    pub reason: &'static str,
    /// Whether the input merely ends inside the record.
    pub truncated: bool,
}

/// What stands at a position of a binary list, relative to that position.
#[derive(Debug)]
pub(super) enum Parsed<'a> {
    /// A whole record.
    Whole(Raw<'a>),
    /// The input ends inside `field`, which begins at the given distance.
    More(&'static str, usize),
    /// Not a record: distance of the field, its name, and why.
    Bad(usize, &'static str, &'static str),
}

/// A framed binary record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'a> {
    pub pcr: u32,
    pub template_hash: &'a [u8],
    pub template_name: &'a [u8],
    /// Whether the name is the one that was known.
    pub name_known: bool,
    pub body: Body<'a>,
    /// Bytes of the whole record.
    pub size: usize,
}

/// Data of a framed binary record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body<'a> {
    /// Template data, hashed as it stands.
    Data(&'a [u8]),
    /// Digest and name of the old `ima` template.
    Ima(&'a [u8], &'a [u8]),
}

impl<'a> Body<'a> {
    /// The bytes the template hash is computed over.
    #[inline]
    pub fn hashed(self, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        match self {
            Body::Data(data) => data,
            Body::Ima(digest, name) => {
                ima_data(digest, name, scratch);
                scratch
            }
        }
    }
}

/// Compose the hashed data of the old template: digest, and name padded with zeros.
pub(super) fn ima_data(digest: &[u8], name: &[u8], scratch: &mut Vec<u8>) {
    scratch.clear();
    scratch.extend_from_slice(digest);
    scratch.extend_from_slice(name);
    scratch.resize(digest.len().saturating_add(IMA_NAME_BYTES), 0);
}

/// Frame the record at the start of `input`; a template name equal to `known` is not checked again.
#[inline]
pub(super) fn frame<'a>(
    input: &'a [u8],
    order: ByteOrder,
    hash_bytes: usize,
    known: &[u8],
) -> Parsed<'a> {
    let Some(pcr) = order.u32_at(input, 0) else {
        return Parsed::More("pcr", 0);
    };
    if pcr > MAX_PCR_INDEX {
        return Parsed::Bad(0, "pcr", "it is not a PCR index");
    }
    let name_at = 4 + hash_bytes;
    let Some(template_hash) = input.get(4..name_at) else {
        return Parsed::More("template-hash", 4);
    };
    let Some(name_bytes) = order.u32_at(input, name_at) else {
        return Parsed::More("template-name length", name_at);
    };
    let name_bytes = name_bytes as usize;
    if name_bytes == 0 || name_bytes > MAX_TEMPLATE_NAME_BYTES {
        return Parsed::Bad(
            name_at,
            "template-name length",
            "no template has such a name length",
        );
    }
    let data_at = name_at + 4 + name_bytes;
    let Some(template_name) = input.get(name_at + 4..data_at) else {
        return Parsed::More("template-name", name_at + 4);
    };
    let name_known = same(template_name, known);
    if !name_known && template_name.iter().any(|byte| !byte.is_ascii_graphic()) {
        return Parsed::Bad(name_at + 4, "template-name", "it is not printable text");
    }
    let head = Raw {
        pcr,
        template_hash,
        template_name,
        name_known,
        body: Body::Data(&[]),
        size: 0,
    };
    if template_name == b"ima" {
        return frame_ima(input, order, data_at, head);
    }
    frame_data(input, order, data_at, head)
}

#[inline]
fn frame_data<'a>(input: &'a [u8], order: ByteOrder, at: usize, head: Raw<'a>) -> Parsed<'a> {
    let Some(data_bytes) = order.u32_at(input, at) else {
        return Parsed::More("template-data length", at);
    };
    let data_bytes = data_bytes as usize;
    if data_bytes > MAX_TEMPLATE_DATA_BYTES {
        return Parsed::Bad(
            at,
            "template-data length",
            "it is beyond the limit of 16 MiB",
        );
    }
    let size = at + 4 + data_bytes;
    match input.get(at + 4..size) {
        Some(data) => Parsed::Whole(Raw {
            body: Body::Data(data),
            size,
            ..head
        }),
        None => Parsed::More("template-data", at + 4),
    }
}

fn frame_ima<'a>(input: &'a [u8], order: ByteOrder, at: usize, head: Raw<'a>) -> Parsed<'a> {
    let length_at = at + IMA_DIGEST_BYTES;
    let Some(digest) = input.get(at..length_at) else {
        return Parsed::More("d", at);
    };
    let Some(name_bytes) = order.u32_at(input, length_at) else {
        return Parsed::More("n length", length_at);
    };
    let name_bytes = name_bytes as usize;
    if name_bytes > MAX_EVENT_NAME_BYTES {
        return Parsed::Bad(length_at, "n length", "an event name has at most 255 bytes");
    }
    let size = length_at + 4 + name_bytes;
    match input.get(length_at + 4..size) {
        Some(name) => Parsed::Whole(Raw {
            body: Body::Ima(digest, name),
            size,
            ..head
        }),
        None => Parsed::More("n", length_at + 4),
    }
}
