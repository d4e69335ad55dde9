//! What is kept of a host between rounds, as `excise.fleet.records` has it; texts are borrowed.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use excise_formats::ima::hash::Digests;
use excise_formats::ima::{Bank, BankSet, ByteOrder, Rule};
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const SCHEMA: u64 = 1;
const CHECKPOINT_KIND: &str = "excise.ima.checkpoint";
const CHECKPOINT_VERSION: u64 = 1;
/// Bytes of a record by which it is searched for.
const HEAD_BYTES: usize = 64;
/// Highest register that a checkpoint holds.
const MAX_PCR: u32 = 63;

/// What became of a check, or of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The evidence says so.
    Passed,
    /// The evidence says the contrary.
    Failed,
    /// The evidence cannot answer.
    NotCovered,
}

impl Outcome {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "PASSED",
            Outcome::Failed => "FAILED",
            Outcome::NotCovered => "NOT_COVERED",
        }
    }
}

/// A check: subject, name, outcome, expected, got, detail.
#[derive(Clone, Debug, Serialize)]
pub struct Said(
    pub &'static str,
    pub Cow<'static, str>,
    pub &'static str,
    pub String,
    pub String,
    pub String,
);

/// A check of an earlier round: as `Said`, and when it last passed, in ns since the epoch.
#[derive(Clone, Debug, Deserialize)]
pub struct CheckRow<'a>(
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    pub Option<i64>,
);

/// A file that the policy does not allow, or a violation: kind, name, algorithm, digest, entries.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Finding<'a>(
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    #[serde(borrow)] pub Cow<'a, str>,
    pub u64,
);

/// A register of one bank at a checkpoint.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct RegisterState<'a> {
    /// The register.
    pub pcr: u32,
    /// Its bank.
    #[serde(borrow)]
    pub bank: Cow<'a, str>,
    /// Rule of its replay.
    #[serde(borrow)]
    pub rule: Cow<'a, str>,
    /// Its value, in hexadecimal.
    #[serde(borrow)]
    pub value: Cow<'a, str>,
}

impl RegisterState<'_> {
    fn is_valid(&self) -> bool {
        let size = Bank::from_name(&self.bank)
            .filter(|bank| bank.name() == self.bank)
            .map(Bank::size);
        self.pcr <= MAX_PCR
            && matches!(
                &*self.rule,
                "own" | "padded-sha1" | "padded-sha1-wide-violations"
            )
            && size.is_some_and(|size| self.value.len() == size.saturating_mul(2))
            && is_hex(&self.value)
    }

    /// Whether it is replayed as `bank` alone extends it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.rule == Rule::Own.name()
    }
}

/// What identifies a record without keeping it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct RecordMark<'a> {
    /// Its length.
    pub size_bytes: u64,
    /// Digest of its bytes.
    #[serde(borrow)]
    pub sha256: Cow<'a, str>,
    /// Its first bytes.
    #[serde(borrow)]
    pub head: Cow<'a, str>,
}

impl RecordMark<'_> {
    /// The mark of a record's bytes.
    #[must_use]
    pub fn of(record: &[u8]) -> RecordMark<'static> {
        let mut wanted = BankSet::default();
        wanted.insert(Bank::Sha256);
        let mut digests = Digests::default();
        digests.compute(wanted, record);
        let head = record.get(..HEAD_BYTES).unwrap_or(record);
        RecordMark {
            size_bytes: record.len() as u64,
            sha256: Cow::Owned(hex::encode(digests.get(Bank::Sha256))),
            head: Cow::Owned(hex::encode(head)),
        }
    }

    fn is_valid(&self) -> bool {
        self.size_bytes >= 1 && is_hex(&self.sha256) && is_hex(&self.head)
    }
}

/// The verified state at a point of a list.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Checkpoint<'a> {
    /// `binary` or `ascii`.
    #[serde(borrow)]
    pub list_format: Cow<'a, str>,
    /// `little` or `big`.
    #[serde(borrow)]
    pub byte_order: Cow<'a, str>,
    /// Bank of the template hashes that the list shows.
    #[serde(borrow)]
    pub header_bank: Cow<'a, str>,
    /// Bytes of the whole list before the first byte of the input.
    pub base_offset: u64,
    /// Bytes of the whole list that are covered.
    pub offset: u64,
    /// Entries that are covered.
    pub count: u64,
    /// Line that comes next.
    pub line: u64,
    /// The first record that was ever read.
    #[serde(borrow)]
    pub first_record: RecordMark<'a>,
    /// The last covered record.
    #[serde(borrow)]
    pub last_record: RecordMark<'a>,
    /// Values at this point.
    #[serde(borrow)]
    pub registers: Vec<RegisterState<'a>>,
    /// What the covered entries were judged by.
    #[serde(borrow, default)]
    pub policy_digest: Option<Cow<'a, str>>,
    /// Kind of this document.
    #[serde(borrow, default = "checkpoint_kind")]
    pub kind: Cow<'a, str>,
    /// Its version.
    #[serde(default = "checkpoint_version")]
    pub version: u64,
}

fn checkpoint_kind<'a>() -> Cow<'a, str> {
    Cow::Borrowed(CHECKPOINT_KIND)
}

const fn checkpoint_version() -> u64 {
    CHECKPOINT_VERSION
}

impl Checkpoint<'_> {
    fn is_valid(&self) -> bool {
        self.kind == CHECKPOINT_KIND
            && self.version == CHECKPOINT_VERSION
            && matches!(&*self.list_format, "binary" | "ascii")
            && self.order().is_some()
            && self.bank().is_some()
            && self.base_offset <= self.offset
            && self.count >= 1
            && self.line >= 1
            && self.first_record.is_valid()
            && self.last_record.is_valid()
            && !self.registers.is_empty()
            && self.registers.iter().all(RegisterState::is_valid)
    }

    /// Byte order of the list.
    #[must_use]
    pub fn order(&self) -> Option<ByteOrder> {
        match &*self.byte_order {
            "little" => Some(ByteOrder::Little),
            "big" => Some(ByteOrder::Big),
            _ => None,
        }
    }

    /// Bank of the template hashes.
    #[must_use]
    pub fn bank(&self) -> Option<Bank> {
        Bank::from_name(&self.header_bank).filter(|bank| bank.name() == self.header_bank)
    }

    /// Where in the list its last record begins.
    #[must_use]
    pub fn last_record_offset(&self) -> Option<u64> {
        self.offset.checked_sub(self.last_record.size_bytes)
    }
}

/// Counts by name, of names that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally<N: Named>([u64; MOST_NAMES], std::marker::PhantomData<N>);

const MOST_NAMES: usize = 16;

/// Names that counts are kept of.
pub trait Named: Copy + PartialEq + Sized + 'static {
    /// All of them, with how they are written.
    const ALL: &'static [(Self, &'static str)];
}

impl<N: Named> Default for Tally<N> {
    fn default() -> Self {
        Tally([0; MOST_NAMES], std::marker::PhantomData)
    }
}

impl<N: Named> Tally<N> {
    /// How many of a name.
    #[must_use]
    pub fn get(&self, name: N) -> u64 {
        self.named()
            .find(|(each, _, _)| *each == name)
            .map_or(0, |(_, _, count)| count)
    }

    /// Count some more.
    pub fn add(&mut self, name: N, more: u64) {
        for (count, (each, _)) in self.0.iter_mut().zip(N::ALL) {
            if *each == name {
                *count = count.saturating_add(more);
            }
        }
    }

    /// Every name with its count.
    pub fn named(&self) -> impl Iterator<Item = (N, &'static str, u64)> + '_ {
        let names = N::ALL.iter().zip(self.0.iter());
        names.map(|((name, text), count)| (*name, *text, *count))
    }
}

impl<N: Named> Serialize for Tally<N> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        for (_, text, count) in self.named().filter(|(_, _, count)| *count > 0) {
            map.serialize_entry(text, &count)?;
        }
        map.end()
    }
}

impl<'de, N: Named> Deserialize<'de> for Tally<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Names<N>(std::marker::PhantomData<N>);
        impl<'de, N: Named> Visitor<'de> for Names<N> {
            type Value = Tally<N>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("counts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tally<N>, A::Error> {
                let mut found = Tally::default();
                while let Some((name, count)) = map.next_entry::<Cow<'de, str>, u64>()? {
                    let place = N::ALL.iter().position(|(_, text)| *text == name);
                    match place.and_then(|place| found.0.get_mut(place)) {
                        Some(to) => *to = count,
                        None => return Err(A::Error::custom("unknown name")),
                    }
                }
                Ok(found)
            }
        }
        from.deserialize_map(Names(std::marker::PhantomData))
    }
}

/// What a policy made of an entry; texts of `excise.evidence.policy.classes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum EntryClass {
    Allowed,
    Signed,
    UnknownFile,
    DigestDiffers,
    OtherAlgorithm,
    NotSigned,
    Excluded,
    Violation,
    PseudoFile,
    BootAggregate,
    BufferAllowed,
    BufferDiffers,
    BufferUnknown,
    Unreadable,
}

impl Named for EntryClass {
    const ALL: &'static [(Self, &'static str)] = &[
        (EntryClass::Allowed, "allowed"),
        (EntryClass::Signed, "allowed by signature"),
        (EntryClass::UnknownFile, "unknown file"),
        (EntryClass::DigestDiffers, "digest differs"),
        (EntryClass::OtherAlgorithm, "digest in another algorithm"),
        (EntryClass::NotSigned, "without a valid signature"),
        (EntryClass::Excluded, "excluded"),
        (EntryClass::Violation, "violation"),
        (EntryClass::PseudoFile, "pseudo file"),
        (EntryClass::BootAggregate, "boot_aggregate"),
        (EntryClass::BufferAllowed, "buffer allowed"),
        (EntryClass::BufferDiffers, "buffer differs"),
        (EntryClass::BufferUnknown, "buffer unknown"),
        (EntryClass::Unreadable, "without name or digest"),
    ];
}

/// What a signature said; texts of `excise.evidence.signature`, in the order of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SignatureResult {
    BadSignature,
    Malformed,
    NoSignature,
    Ok,
    UnknownKey,
}

impl Named for SignatureResult {
    const ALL: &'static [(Self, &'static str)] = &[
        (SignatureResult::BadSignature, "bad signature"),
        (SignatureResult::Malformed, "malformed signature"),
        (SignatureResult::NoSignature, "no signature"),
        (SignatureResult::Ok, "ok"),
        (SignatureResult::UnknownKey, "unknown key"),
    ];
}

/// What a policy's appraiser knows at a checkpoint.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PolicyState<'a> {
    /// Entries by class.
    pub counts: Tally<EntryClass>,
    /// Entries of files by signature result.
    pub signature_counts: Tally<SignatureResult>,
    /// Entries of files that were compared.
    pub files: u64,
    /// Entries without the signature that was required.
    pub unsigned_faults: u64,
    /// Algorithm and digest of the boot aggregate.
    #[serde(borrow)]
    pub boot_aggregate: Option<(Cow<'a, str>, Cow<'a, str>)>,
}

/// What is known of a host after a round.
#[derive(Clone, Debug, Deserialize)]
pub struct HostState<'a> {
    /// Its name.
    #[serde(borrow)]
    pub host: Cow<'a, str>,
    #[serde(rename = "verdict")]
    _verdict: IgnoredText,
    #[serde(rename = "attempted_ns")]
    _attempted_ns: i64,
    #[serde(default = "schema")]
    schema: u64,
    /// When it was last verified, in ns since the epoch.
    #[serde(default)]
    pub verified_ns: Option<i64>,
    #[serde(default, rename = "evidence_ns")]
    _evidence_ns: Option<i64>,
    #[serde(default, rename = "entries")]
    _entries: u64,
    #[serde(default, rename = "new_entries")]
    _new_entries: u64,
    #[serde(default, rename = "settings")]
    _settings: IgnoredText,
    /// Checks of the round.
    #[serde(borrow, default)]
    pub checks: Vec<CheckRow<'a>>,
    /// What was found in all of its list.
    #[serde(borrow, default)]
    pub findings: Vec<Finding<'a>>,
    #[serde(default, rename = "findings_left_out")]
    _findings_left_out: u64,
    /// Where to go on in its list.
    #[serde(borrow, default)]
    pub checkpoint: Option<Checkpoint<'a>>,
    /// Counts there.
    #[serde(borrow, default)]
    pub policy: Option<PolicyState<'a>>,
    /// Its last quote.
    #[serde(borrow, default)]
    pub quote: Option<Cow<'a, str>>,
    /// Digest of its key.
    #[serde(borrow, default)]
    pub key_sha256: Option<Cow<'a, str>>,
    /// What its captures hold.
    #[serde(default)]
    pub captures: BTreeMap<String, IgnoredAny>,
}

/// A text that is only asked to be one.
#[derive(Clone, Debug, Default)]
struct IgnoredText;

impl<'de> Deserialize<'de> for IgnoredText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(from).map(|_| IgnoredText)
    }
}

const fn schema() -> u64 {
    SCHEMA
}

impl<'a> HostState<'a> {
    /// The state of a host, if it is one that a round can go on from.
    #[must_use]
    pub fn decode(data: &'a [u8]) -> Option<Self> {
        let state: HostState<'a> = serde_json::from_slice(data).ok()?;
        let aggregate = state
            .policy
            .as_ref()
            .and_then(|p| p.boot_aggregate.as_ref());
        let sound = state.schema == SCHEMA
            && state.checkpoint.as_ref().is_none_or(Checkpoint::is_valid)
            && aggregate.is_none_or(|(_, digest)| digest.is_empty() || is_hex(digest));
        sound.then_some(state)
    }

    /// When a check last passed.
    #[must_use]
    pub fn passed_ns(&self, subject: &str, check: &str) -> Option<i64> {
        let mut rows = self.checks.iter().rev();
        rows.find(|row| row.0 == subject && row.1 == check)
            .and_then(|row| row.6)
    }
}

/// A host's state to be written; fields in the order in which Python writes them.
#[derive(Serialize)]
pub(crate) struct NewState<'a> {
    pub host: &'a str,
    pub verdict: &'static str,
    pub attempted_ns: i64,
    pub schema: u64,
    pub verified_ns: Option<i64>,
    pub evidence_ns: Option<i64>,
    pub entries: u64,
    pub new_entries: u64,
    pub settings: &'a str,
    pub checks: Vec<NewRow<'a>>,
    pub findings: &'a [Finding<'a>],
    pub findings_left_out: u64,
    pub checkpoint: &'a Checkpoint<'a>,
    pub policy: Option<&'a PolicyState<'a>>,
    pub quote: Option<&'a str>,
    pub key_sha256: Option<&'a str>,
    pub captures: BTreeMap<String, u8>,
}

impl NewState<'_> {
    pub(crate) const SCHEMA: u64 = SCHEMA;
}

/// A check of this round, and when it last passed.
#[derive(Serialize)]
pub(crate) struct NewRow<'a>(
    pub &'static str,
    pub &'a str,
    pub &'static str,
    pub &'a str,
    pub &'a str,
    pub &'a str,
    pub Option<i64>,
);

/// Whether a text is bytes in lower-case hexadecimal, one at least.
fn is_hex(text: &str) -> bool {
    let digits = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits && !text.is_empty() && text.len() % 2 == 0
}
