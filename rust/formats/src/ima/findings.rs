//! What a replay finds on its way: places, counts and faults of entries.
use super::limits::MAX_LISTED;
use super::record::Record;
use super::template::{digest_bytes, ByteOrder, Field, FieldFault, FileDigest};

/// Place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position in the list, from 0.
    pub index: u64,
    /// Byte offset.
    pub offset: u64,
    /// Line; 0 in a binary list.
    pub line: u64,
}

impl Place {
    pub(super) fn of(record: &Record<'_>) -> Self {
        Place {
            index: record.index,
            offset: record.offset,
            line: record.line,
        }
    }
}

/// Findings of one kind: all are counted, the first thousand are listed.
#[derive(Clone, Debug)]
pub struct Listed<T> {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub items: Vec<T>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Listed {
            count: 0,
            items: Vec::new(),
        }
    }
}

impl<T> Listed<T> {
    pub(super) fn push(&mut self, make: impl FnOnce() -> T) {
        self.count = self.count.saturating_add(1);
        if self.items.len() < MAX_LISTED {
            self.items.push(make());
        }
    }
}

/// An entry whose template hash is not that of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHash {
    /// The entry.
    pub place: Place,
    /// Hash of its data.
    pub expected: Vec<u8>,
    /// Hash as recorded.
    pub got: Vec<u8>,
}

/// An entry whose fields do not fit its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The entry.
    pub place: Place,
    /// The field.
    pub field: &'static str,
    /// What is wrong.
    pub reason: &'static str,
}

/// An entry named `boot_aggregate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootAggregate {
    /// The entry.
    pub place: Place,
    /// The register it was extended into.
    pub pcr: u32,
    /// Algorithm as named in the entry; empty in the old template.
    pub algorithm: Vec<u8>,
    /// The digest.
    pub digest: Vec<u8>,
}

/// What was found on the way; the chains are in the registers.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Entries read.
    pub entries: u64,
    /// Byte ranges of the first and the last entry read.
    pub first: Option<(u64, u64)>,
    /// Byte range of the last entry read.
    pub last: Option<(u64, u64)>,
    /// Violations.
    pub violations: Listed<Place>,
    /// Wrong template hashes.
    pub bad_hashes: Listed<BadHash>,
    /// Entries whose fields contradict their template.
    pub malformed: Listed<Malformed>,
    /// Entries of an ascii list whose template data cannot be rebuilt.
    pub opaque: Listed<Place>,
    /// `boot_aggregate` entries.
    pub boot_aggregates: Listed<BootAggregate>,
    /// Entries for each template slot.
    pub templates: Vec<u64>,
}

impl Findings {
    /// Note what is worth showing of an entry, and faults of its fields.
    #[inline]
    pub(super) fn note(&mut self, record: &Record<'_>, order: ByteOrder, memo: &mut DigestMemo) {
        self.entries = self.entries.saturating_add(1);
        let range = (record.offset, record.end);
        self.first.get_or_insert(range);
        self.last = Some(range);
        if self.templates.len() <= record.template_slot {
            self.templates
                .resize(record.template_slot.saturating_add(1), 0);
        }
        if let Some(count) = self.templates.get_mut(record.template_slot) {
            *count = count.saturating_add(1);
        }
        let Some(data) = record.data else { return };
        let (mut digest, mut name) = (None, None);
        let walked = record.template.walk(order, data, |field, value| {
            if field.is_digest() {
                digest = Some((field, value));
            } else if field.is_name() {
                name = Some((field, value));
            }
        });
        let digest_fault = digest.and_then(|(field, value)| memo.fault(field, value));
        let name_fault = name.and_then(|(field, value)| name_fault(field, value));
        if let Some(fault) = walked.err().or(digest_fault).or(name_fault) {
            let (field, reason) = (fault.field, fault.reason);
            self.malformed.push(|| Malformed {
                place: Place::of(record),
                field,
                reason,
            });
        }
        if let (Some((field, digest)), Some((_, name))) = (digest, name) {
            if name.strip_suffix(b"\0").unwrap_or(name) == b"boot_aggregate" {
                self.boot_aggregate(record, field, digest);
            }
        }
    }

    #[cold]
    fn boot_aggregate(&mut self, record: &Record<'_>, field: Field, value: &[u8]) {
        let parsed = FileDigest::parse(field, value).unwrap_or_default();
        self.boot_aggregates.push(|| BootAggregate {
            place: Place::of(record),
            pcr: record.pcr,
            algorithm: parsed.algorithm.to_vec(),
            digest: parsed.digest.to_vec(),
        });
    }
}

/// A name has exactly one NUL, at its end; in the old template it has none left.
#[inline]
fn name_fault(field: Field, value: &[u8]) -> Option<FieldFault> {
    let reason = match memchr::memchr(0, value) {
        Some(nul) if nul + 1 == value.len() => return None,
        Some(_) => "a NUL stands inside it",
        None if field == Field::N => return None,
        None => "no NUL at its end",
    };
    Some(FieldFault {
        field: field.id(),
        reason,
    })
}

/// The head of the last well-formed digest field, so that its like is recognised at once.
#[derive(Debug)]
pub(super) struct DigestMemo {
    /// Up to eight bytes, as they stand in memory, and the mask that picks them.
    head: u64,
    mask: u64,
    /// Bytes of head and digest.
    value_bytes: usize,
}

impl Default for DigestMemo {
    fn default() -> Self {
        DigestMemo {
            head: 0,
            mask: 0,
            value_bytes: usize::MAX,
        }
    }
}

impl DigestMemo {
    #[inline]
    fn fault(&mut self, field: Field, value: &[u8]) -> Option<FieldFault> {
        let first = value
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if field == Field::D || (value.len() == self.value_bytes && first & self.mask == self.head)
        {
            return None;
        }
        self.check(field, value)
    }

    fn check(&mut self, field: Field, value: &[u8]) -> Option<FieldFault> {
        let digest = match FileDigest::parse(field, value) {
            Ok(digest) => digest,
            Err(fault) => return Some(fault),
        };
        let head_bytes = value.len().saturating_sub(digest.digest.len());
        let whole = digest_bytes(digest.algorithm) == Some(digest.digest.len());
        if whole && field == Field::DNg && head_bytes <= 8 && value.len() >= 8 {
            let first = value
                .first_chunk()
                .map_or(0, |bytes| u64::from_le_bytes(*bytes));
            self.mask = u64::MAX >> (64 - 8 * head_bytes.clamp(1, 8));
            self.head = first & self.mask;
            self.value_bytes = value.len();
        }
        None
    }
}
