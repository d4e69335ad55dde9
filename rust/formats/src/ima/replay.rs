//! Replay a list: every bank, register and rule asked for in one pass over the input.
use super::bank::{Bank, BankSet, Digest, MAX_DIGEST_BYTES};
use super::chain::{Chain, Offer, Rule};
use super::detect::Detected;
use super::findings::{BadHash, DigestMemo, Findings, Place};
use super::frame::{Found, Framer, Layout, Options, Step};
use super::hash::Digests;
use super::record::{Fault, Record};
use super::registers::{Register, Registers};

/// A chain to carry along the list.
#[derive(Clone, Debug)]
pub struct ChainSpec {
    /// The register.
    pub pcr: u32,
    /// The bank.
    pub bank: Bank,
    /// The rule.
    pub rule: Rule,
    /// Value before the first entry.
    pub start: Digest,
    /// Value looked for.
    pub target: Option<Digest>,
}

/// A replay in progress.
#[derive(Debug)]
pub struct Replay {
    framer: Framer,
    ended: bool,
    trailing_bytes: u64,
    padding_bytes: u64,
    core: Core,
    carry: Vec<u8>,
}

/// The part of a replay that takes records.
#[derive(Debug)]
struct Core {
    registers: Registers,
    wanted: BankSet,
    layout: Option<Layout>,
    digests: Digests,
    findings: Findings,
    memo: DigestMemo,
}

impl Replay {
    /// A replay of the chains given, and of `banks` × `rules` in any other register met.
    #[must_use]
    pub fn new(options: Options, chains: &[ChainSpec], others: &[(Bank, Rule)]) -> Self {
        let mut core = Core {
            registers: Registers::new(others),
            wanted: BankSet::default(),
            layout: None,
            digests: Digests::default(),
            findings: Findings::default(),
            memo: DigestMemo::default(),
        };
        for (bank, rule) in others {
            core.wanted.insert(rule.digest_bank(*bank));
        }
        for spec in chains {
            core.wanted.insert(spec.rule.digest_bank(spec.bank));
            let chain = Chain::new(spec.bank, spec.rule, spec.start, spec.target);
            core.registers.add(spec.pcr, chain);
        }
        Replay {
            framer: Framer::new(options),
            ended: false,
            trailing_bytes: 0,
            padding_bytes: 0,
            core,
            carry: Vec::new(),
        }
    }

    /// Replay the whole records in `input`; how many bytes are done with.
    ///
    /// The rest has to come again, with more behind it; `last` says that nothing follows.
    pub fn process(&mut self, input: &[u8], last: bool) -> usize {
        let mut pos = 0;
        if self.core.layout.is_none() && !self.ended {
            match self.framer.find_layout(input, &mut pos, last) {
                Found::Layout(layout) => self.core.begin(layout),
                Found::More => return pos,
                Found::Nothing => self.ended = true,
            }
        }
        while !self.ended {
            match self.framer.step(input, &mut pos, last) {
                Step::Record(record) => self.core.entry(&record),
                Step::More => return pos,
                Step::End => self.ended = true,
            }
        }
        let rest = input.get(pos..).unwrap_or(&[]);
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        let padding = self.framer.fault().is_none() && self.trailing_bytes == 0;
        let padding_bytes = if padding { zeros } else { 0 };
        self.padding_bytes = self.padding_bytes.saturating_add(padding_bytes as u64);
        let trailing = rest.len().saturating_sub(padding_bytes);
        self.trailing_bytes = self.trailing_bytes.saturating_add(trailing as u64);
        input.len()
    }

    /// Replay a piece of the input, of any size; what is cut off waits for the next piece.
    pub fn feed(&mut self, piece: &[u8]) {
        if self.carry.is_empty() {
            let done = self.process(piece, false);
            self.carry
                .extend_from_slice(piece.get(done..).unwrap_or(&[]));
            return;
        }
        let mut carry = std::mem::take(&mut self.carry);
        carry.extend_from_slice(piece);
        let done = self.process(&carry, false);
        carry.drain(..done.min(carry.len()));
        self.carry = carry;
    }

    /// End the input, and take the result.
    #[must_use]
    pub fn finish(mut self) -> Report {
        let carry = std::mem::take(&mut self.carry);
        self.process(&carry, true);
        Report {
            detected: self.framer.detected().copied(),
            fault: self.framer.fault().copied(),
            trailing_bytes: self.trailing_bytes,
            padding_bytes: self.padding_bytes,
            end_offset: self.framer.offset(),
            next_index: self.framer.index(),
            next_line: self.framer.line(),
            templates: self
                .core
                .findings
                .templates
                .iter()
                .enumerate()
                .map(|(slot, count)| {
                    (
                        self.framer.template_name(slot).unwrap_or(&[]).to_vec(),
                        *count,
                    )
                })
                .collect(),
            findings: self.core.findings,
            registers: self.core.registers.into_list(),
        }
    }
}

/// What a replay gave.
#[derive(Clone, Debug)]
pub struct Report {
    /// The layout, and what it rests on; `None` when nothing could be read.
    pub detected: Option<Detected>,
    /// Why reading stopped before the end of the input, if it did.
    pub fault: Option<Fault>,
    /// Bytes after the last whole entry, other than padding.
    pub trailing_bytes: u64,
    /// Zero bytes after the end that a kexec header announces.
    pub padding_bytes: u64,
    /// Offset after the last whole entry.
    pub end_offset: u64,
    /// Position of the entry that would come next.
    pub next_index: u64,
    /// Its line (ascii lists).
    pub next_line: u64,
    /// Entries for each template name.
    pub templates: Vec<(Vec<u8>, u64)>,
    /// Findings.
    pub findings: Findings,
    /// Registers with their chains.
    pub registers: Vec<Register>,
}

impl Core {
    fn begin(&mut self, layout: Layout) {
        self.wanted.insert(layout.header_bank);
        self.layout = Some(layout);
    }

    #[inline]
    fn entry(&mut self, record: &Record<'_>) {
        let Some(layout) = self.layout else { return };
        let violation = record.is_violation();
        if let Some(data) = record.data {
            if let Some(extend) = self.registers.beside() {
                self.digests.compute_beside(data, extend);
                self.digests.compute_wide(self.wanted, data);
                self.registers.extended();
            } else {
                self.digests.compute(self.wanted, data);
            }
        }
        let mut recorded = [0u8; MAX_DIGEST_BYTES];
        if let Some(to) = recorded.get_mut(..record.template_hash.len()) {
            to.copy_from_slice(record.template_hash);
        }
        let offer = Offer {
            digests: record.data.map(|_| &self.digests),
            recorded: &recorded,
            header_bank: layout.header_bank,
            violation,
        };
        self.registers.extend(record, &offer);
        if violation {
            self.findings.violations.push(|| Place::of(record));
        } else if record.data.is_none() {
            self.findings.opaque.push(|| Place::of(record));
        } else if self.digests.get(layout.header_bank) != record.template_hash {
            self.findings.bad_hashes.push(|| BadHash {
                place: Place::of(record),
                expected: self.digests.get(layout.header_bank).to_vec(),
                got: record.template_hash.to_vec(),
            });
        }
        self.findings.note(record, layout.order, &mut self.memo);
    }
}
