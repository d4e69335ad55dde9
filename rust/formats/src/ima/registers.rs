//! The registers that a list extends, each with its chains.
use excise_paired_sha::Pair;

use super::bank::{Bank, Digest, MAX_DIGEST_BYTES};
use super::chain::{Chain, Hit, Offer, Rule};
use super::findings::Place;
use super::hash::PairedExtend;
use super::limits::MAX_PCR_INDEX;
use super::record::Record;

/// One register of the list.
#[derive(Clone, Debug)]
pub struct Register {
    /// PCR index.
    pub pcr: u32,
    /// Entries that were extended into it.
    pub entries: u64,
    /// Its first entry.
    pub first: Option<Place>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

const NO_SLOT: u8 = u8::MAX;

/// An entry whose extend is still to be done, beside the digests of the next.
#[derive(Clone, Copy, Debug)]
struct Pending {
    index: u64,
    offset: u64,
    end: u64,
    line: u64,
    register_entries: u64,
}

/// The register whose SHA-1 and SHA-256 banks are extended together, one entry behind.
#[derive(Debug)]
struct Paired {
    slot: usize,
    extend: PairedExtend,
    /// First words of the values looked for.
    targets: [Option<u32>; 2],
    pending: Option<Pending>,
}

/// All registers met or asked for.
#[derive(Debug)]
pub(super) struct Registers {
    others: Vec<(Bank, Rule)>,
    list: Vec<Register>,
    slots: [u8; MAX_PCR_INDEX as usize + 1],
    paired: Option<Paired>,
    pairing_decided: bool,
}

fn first_word(digest: &Digest) -> u32 {
    digest
        .first_chunk()
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

impl Registers {
    /// No registers yet; one that is met gets the chains of `others`, from zero.
    pub fn new(others: &[(Bank, Rule)]) -> Self {
        Registers {
            others: others.to_vec(),
            list: Vec::new(),
            slots: [NO_SLOT; MAX_PCR_INDEX as usize + 1],
            paired: None,
            pairing_decided: false,
        }
    }

    /// Add a chain that was asked for.
    pub fn add(&mut self, pcr: u32, chain: Chain) {
        if let Some(slot) = self.slot(pcr, false) {
            if let Some(register) = self.list.get_mut(slot) {
                register.chains.push(chain);
            }
        }
    }

    /// The registers.
    pub fn into_list(mut self) -> Vec<Register> {
        self.settle();
        self.list
    }

    #[inline]
    fn slot(&mut self, pcr: u32, fill: bool) -> Option<usize> {
        let slot = self.slots.get_mut(pcr as usize)?;
        if *slot == NO_SLOT {
            let others = if fill { self.others.as_slice() } else { &[] };
            let zero = [0; MAX_DIGEST_BYTES];
            let chains = others
                .iter()
                .map(|(bank, rule)| Chain::new(*bank, *rule, zero, None))
                .collect();
            *slot = u8::try_from(self.list.len()).ok()?;
            self.list.push(Register {
                pcr,
                entries: 0,
                first: None,
                chains,
            });
        }
        Some(*slot as usize)
    }

    /// The extend that the digests of the next entry may be computed beside.
    #[inline]
    pub fn beside(&mut self) -> Option<&mut PairedExtend> {
        match &mut self.paired {
            Some(paired) if paired.pending.is_some() => Some(&mut paired.extend),
            _ => None,
        }
    }

    /// Take note that the extend of [`Registers::beside`] was done.
    #[inline]
    pub fn extended(&mut self) {
        let Some(paired) = &mut self.paired else {
            return;
        };
        let Some(pending) = paired.pending.take() else {
            return;
        };
        let [small, large] = paired.targets;
        let register = paired.extend.register();
        if small == Some(register.sha1[0]) || large == Some(register.sha256[0]) {
            let slot = paired.slot;
            self.write_back();
            self.record_hits(slot, &pending);
        }
    }

    /// Do what is pending, and bring the chains up to date.
    fn settle(&mut self) {
        if let Some(paired) = &mut self.paired {
            if paired.pending.is_some() {
                paired.extend.step();
                self.extended();
            }
        }
        self.write_back();
    }

    fn write_back(&mut self) {
        let Some(paired) = &self.paired else { return };
        let Some(register) = self.list.get_mut(paired.slot) else {
            return;
        };
        let pair = paired.extend.register();
        for chain in &mut register.chains {
            match chain.bank {
                Bank::Sha1 => chain.state[..20].copy_from_slice(&pair.sha1_digest()),
                _ => chain.state[..32].copy_from_slice(&pair.sha256_digest()),
            }
        }
    }

    /// Whether a register is the paired one, which takes the digests as words.
    #[inline]
    pub fn is_paired(&self, pcr: u32) -> bool {
        let slot = self.slots.get(pcr as usize);
        self.paired
            .as_ref()
            .is_some_and(|paired| slot.is_some_and(|s| *s as usize == paired.slot))
    }

    /// Extend the record's register by what it offers.
    #[inline]
    pub fn extend(&mut self, record: &Record<'_>, offer: &Offer<'_>) {
        let Some(slot) = self.slot(record.pcr, true) else {
            return;
        };
        if self.beside().is_some() {
            // The entry has no data to compute digests of, so nothing was done beside them.
            self.settle();
        }
        if !self.pairing_decided {
            self.pairing_decided = true;
            self.pair(slot);
        }
        let Some(register) = self.list.get_mut(slot) else {
            return;
        };
        register.entries = register.entries.saturating_add(1);
        if register.first.is_none() {
            register.first = Some(Place::of(record));
        }
        let pending = Pending {
            index: record.index,
            offset: record.offset,
            end: record.end,
            line: record.line,
            register_entries: register.entries,
        };
        match &mut self.paired {
            Some(paired) if paired.slot == slot => {
                let value = match offer.digests {
                    _ if offer.violation => Some(&Pair::ONES),
                    Some(digests) => Some(digests.pair()),
                    None => None,
                };
                if let Some(value) = value {
                    paired.extend.set(value);
                    paired.pending = Some(pending);
                    return;
                }
                self.unpair();
            }
            _ => {}
        }
        let Some(register) = self.list.get_mut(slot) else {
            return;
        };
        let mut reached = false;
        for chain in &mut register.chains {
            reached |= chain.step(offer, record.index);
        }
        if reached {
            self.record_hits(slot, &pending);
        }
    }

    /// Pair the banks of the first register met, if it has just the two chains that can be.
    fn pair(&mut self, slot: usize) {
        let Some(register) = self.list.get(slot) else {
            return;
        };
        let [first, second] = register.chains.as_slice() else {
            return;
        };
        let (small, large) = match (first.bank, second.bank) {
            (Bank::Sha1, Bank::Sha256) => (first, second),
            (Bank::Sha256, Bank::Sha1) => (second, first),
            _ => return,
        };
        if small.rule == Rule::Own && large.rule == Rule::Own {
            self.paired = Some(Paired {
                slot,
                extend: PairedExtend::new(&small.state, &large.state),
                targets: [small, large].map(|chain| chain.target.as_ref().map(first_word)),
                pending: None,
            });
        }
    }

    /// Go on without pairing: an entry's value is not known in both banks.
    #[cold]
    fn unpair(&mut self) {
        self.settle();
        self.paired = None;
    }

    #[cold]
    fn record_hits(&mut self, slot: usize, at: &Pending) {
        let mut snapshot = Vec::new();
        for register in &self.list {
            for chain in register
                .chains
                .iter()
                .filter(|chain| chain.broken_at.is_none())
            {
                snapshot.push((register.pcr, chain.bank, chain.rule, chain.state));
            }
        }
        let Some(register) = self.list.get_mut(slot) else {
            return;
        };
        for chain in &mut register.chains {
            if chain.hit.is_none() && chain.target == Some(chain.state) {
                chain.hit = Some(Hit {
                    index: at.index,
                    offset: at.offset,
                    end: at.end,
                    line: at.line,
                    register_entries: at.register_entries,
                    snapshot: snapshot.clone(),
                });
            }
        }
    }
}
