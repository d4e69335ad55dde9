//! The registers that a list extends, each with its chains.
use super::bank::{Bank, MAX_DIGEST_BYTES};
use super::chain::{Chain, Hit, Offer, Rule};
use super::findings::Place;
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

/// All registers met or asked for.
#[derive(Debug)]
pub(super) struct Registers {
    others: Vec<(Bank, Rule)>,
    list: Vec<Register>,
    slots: [u8; MAX_PCR_INDEX as usize + 1],
}

impl Registers {
    /// No registers yet; one that is met gets the chains of `others`, from zero.
    pub fn new(others: &[(Bank, Rule)]) -> Self {
        Registers {
            others: others.to_vec(),
            list: Vec::new(),
            slots: [NO_SLOT; MAX_PCR_INDEX as usize + 1],
        }
    }

    /// Add a chain that was asked for.
    pub fn add(&mut self, pcr: u32, chain: Chain) {
        if let Some(register) = self.get(pcr, false) {
            register.chains.push(chain);
        }
    }

    /// The registers.
    pub fn into_list(self) -> Vec<Register> {
        self.list
    }

    #[inline]
    fn get(&mut self, pcr: u32, fill: bool) -> Option<&mut Register> {
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
        self.list.get_mut(*slot as usize)
    }

    /// Extend the record's register by what it offers.
    #[inline]
    pub fn extend(&mut self, record: &Record<'_>, offer: &Offer<'_>) {
        let Some(register) = self.get(record.pcr, true) else {
            return;
        };
        register.entries = register.entries.saturating_add(1);
        if register.first.is_none() {
            register.first = Some(Place::of(record));
        }
        let mut reached = false;
        for chain in &mut register.chains {
            reached |= chain.step(offer, record.index);
        }
        if reached {
            self.record_hits(record);
        }
    }

    #[cold]
    fn record_hits(&mut self, record: &Record<'_>) {
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
        for register in self
            .list
            .iter_mut()
            .filter(|register| register.pcr == record.pcr)
        {
            let register_entries = register.entries;
            for chain in &mut register.chains {
                if chain.hit.is_none() && chain.target == Some(chain.state) {
                    chain.hit = Some(Hit {
                        index: record.index,
                        offset: record.offset,
                        end: record.end,
                        line: record.line,
                        register_entries,
                        snapshot: snapshot.clone(),
                    });
                }
            }
        }
    }
}
