//! Replay a list: every bank, register and rule asked for in one pass over the input.
use super::bank::{Bank, BankSet, Digest, MAX_DIGEST_BYTES};
use super::chain::{Chain, Offer, Rule};
use super::detect::Detected;
use super::findings::{BadHash, DigestMemo, Findings, Place};
use super::frame::{Found, Framer, Step};
use super::hash::Digests;
use super::layout::{Layout, Options};
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
    /// Bytes to wait for before the carry is looked at again.
    try_at_bytes: usize,
}

/// The part of a replay that takes records.
#[derive(Debug)]
struct Core {
    registers: Registers,
    wanted: BankSet,
    /// Whether a chain extends what the list shows.
    uses_recorded: bool,
    /// The template hash that the entry in hand shows, where it is needed.
    recorded: Digest,
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
            uses_recorded: false,
            recorded: [0; MAX_DIGEST_BYTES],
            layout: None,
            digests: Digests::default(),
            findings: Findings::default(),
            memo: DigestMemo::default(),
        };
        for (bank, rule) in others {
            core.wanted.insert(rule.digest_bank(*bank));
            core.uses_recorded |= *rule == Rule::Recorded;
        }
        for spec in chains {
            core.wanted.insert(spec.rule.digest_bank(spec.bank));
            core.uses_recorded |= spec.rule == Rule::Recorded;
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
            try_at_bytes: 0,
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
        let mut carry = std::mem::take(&mut self.carry);
        carry.extend_from_slice(piece);
        if carry.len() >= self.try_at_bytes {
            let done = self.process(&carry, false).min(carry.len());
            carry.drain(..done);
            // A long entry in small pieces is not tried anew at each of them.
            let more = if done == 0 { carry.len() / 4 } else { 0 };
            self.try_at_bytes = carry.len().saturating_add(more);
        }
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
                if !self.registers.is_paired(record.pcr) {
                    self.digests.refresh();
                }
            } else {
                self.digests.compute(self.wanted, data);
            }
        }
        if self.uses_recorded || record.data.is_none() {
            self.recorded = [0; MAX_DIGEST_BYTES];
            if let Some(to) = self.recorded.get_mut(..record.template_hash.len()) {
                to.copy_from_slice(record.template_hash);
            }
        }
        let offer = Offer {
            digests: record.data.map(|_| &self.digests),
            recorded: &self.recorded,
            header_bank: layout.header_bank,
            violation,
        };
        self.registers.extend(record, &offer);
        if violation {
            self.findings.violations.push(|| Place::of(record));
        } else if record.data.is_none() {
            self.findings.opaque.push(|| Place::of(record));
        } else if !self
            .digests
            .equals(layout.header_bank, record.template_hash)
        {
            self.digests.refresh();
            self.findings.bad_hashes.push(|| BadHash {
                place: Place::of(record),
                expected: self.digests.get(layout.header_bank).to_vec(),
                got: record.template_hash.to_vec(),
            });
        }
        self.findings.note(record, layout.order, &mut self.memo);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ima::template::ByteOrder;

    fn list(order: ByteOrder, bank: Bank, entries: u32) -> Vec<u8> {
        let mut out = Vec::new();
        for number in 0..entries {
            let mut data = Vec::new();
            let digest = [b"sha1:\0".as_slice(), &[number as u8; 20]].concat();
            let name = format!("/bin/{number}\0").into_bytes();
            for field in [digest, name] {
                data.extend_from_slice(&order.u32_bytes(field.len() as u32));
                data.extend_from_slice(&field);
            }
            let mut digests = Digests::default();
            let mut wanted = BankSet::default();
            wanted.insert(bank);
            digests.compute(wanted, &data);
            out.extend_from_slice(&order.u32_bytes(10 + number % 2));
            out.extend_from_slice(digests.get(bank));
            out.extend_from_slice(&order.u32_bytes(6));
            out.extend_from_slice(b"ima-ng");
            out.extend_from_slice(&order.u32_bytes(data.len() as u32));
            out.extend_from_slice(&data);
        }
        out
    }

    fn states(report: &Report) -> Vec<(u32, u64, Vec<Digest>)> {
        let chains = |r: &Register| r.chains.iter().map(|chain| chain.state).collect();
        report
            .registers
            .iter()
            .map(|r| (r.pcr, r.entries, chains(r)))
            .collect()
    }

    #[test]
    fn pieces_of_any_size_give_what_the_whole_gives() {
        let others = [(Bank::Sha1, Rule::Own), (Bank::Sha256, Rule::Own)];
        for order in [ByteOrder::Little, ByteOrder::Big] {
            for bank in Bank::ALL {
                let mut bytes = list(order, bank, 40);
                bytes.extend_from_slice(&[1, 2, 3]);
                let mut whole = Replay::new(Options::default(), &[], &others);
                assert_eq!(whole.process(&bytes, true), bytes.len());
                let whole = whole.finish();
                assert_eq!(whole.findings.entries, 40);
                assert_eq!(whole.findings.bad_hashes.count, 0);
                assert_eq!(whole.trailing_bytes, 3);
                for size in [1, 2, 7, 64, 1000] {
                    let mut replay = Replay::new(Options::default(), &[], &others);
                    bytes.chunks(size).for_each(|piece| replay.feed(piece));
                    let report = replay.finish();
                    assert_eq!(
                        report.detected.map(|d| d.layout),
                        whole.detected.map(|d| d.layout)
                    );
                    assert_eq!(report.fault, whole.fault);
                    assert_eq!(report.trailing_bytes, 3);
                    assert_eq!(states(&report), states(&whole));
                }
            }
        }
    }

    #[test]
    fn a_pending_extend_is_done_before_the_result_is_taken() {
        let bytes = list(ByteOrder::Little, Bank::Sha1, 1);
        let others = [(Bank::Sha1, Rule::Own), (Bank::Sha256, Rule::Own)];
        let mut replay = Replay::new(Options::default(), &[], &others);
        replay.process(&bytes, true);
        let zero = [0u8; MAX_DIGEST_BYTES];
        assert!(replay
            .finish()
            .registers
            .iter()
            .all(|r| r.chains.iter().all(|c| c.state != zero)));
    }
}
