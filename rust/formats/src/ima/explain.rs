//! Look for a single lost or misplaced extend that would explain a PCR value.
//!
//! An entry that was logged but whose extend failed, or two that were extended in the other order,
//! leave a register that no prefix of the list reaches. The search tries each of the last entries
//! of the register, at a cost that grows with their square, so their number is bounded.
use std::collections::VecDeque;

use super::bank::{BankSet, Digest, MAX_DIGEST_BYTES};
use super::chain::Offer;
use super::findings::Place;
use super::frame::{Found, Framer, Step};
use super::hash::{extend, Digests};
use super::layout::Options;
use super::replay::ChainSpec;

/// Last entries of a register that are tried.
pub const MAX_SEARCH_ENTRIES: usize = 3000;

/// What a search supposes to have happened to the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supposition {
    /// The entry was listed, but not extended.
    Dropped,
    /// The entry and the next of its register were extended in the other order.
    Swapped,
}

impl Supposition {
    /// `dropped` or `swapped`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Supposition::Dropped => "dropped",
            Supposition::Swapped => "swapped",
        }
    }
}

/// A supposition under which the value is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What is supposed.
    pub supposition: Supposition,
    /// The entry it is supposed of.
    pub place: Place,
    /// Position of the entry at which the value is reached then.
    pub reached_index: u64,
}

/// What a search tried, and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Entries of the register.
    pub entries: u64,
    /// Of these, the last ones that were tried.
    pub tried: u64,
    /// The explanation, if there is one.
    pub found: Option<Explanation>,
}

/// A search over one register, bank and rule.
#[derive(Debug)]
pub struct Search {
    spec: ChainSpec,
    framer: Framer,
    ready: bool,
    ended: bool,
    digests: Digests,
    wanted: BankSet,
    /// The register before the first entry of the window.
    before: Digest,
    window: VecDeque<(Digest, Place)>,
    entries: u64,
    only: Option<(Supposition, u64)>,
}

impl Search {
    /// A search for `spec.target`; with `only`, of one supposition on one entry.
    #[must_use]
    pub fn new(options: Options, spec: ChainSpec, only: Option<(Supposition, u64)>) -> Self {
        let mut wanted = BankSet::default();
        wanted.insert(spec.rule.digest_bank(spec.bank));
        Search {
            before: spec.start,
            framer: Framer::new(options),
            ready: false,
            ended: false,
            digests: Digests::default(),
            wanted,
            window: VecDeque::new(),
            entries: 0,
            only,
            spec,
        }
    }

    /// Take the whole records in `input`; how many bytes are done with.
    pub fn process(&mut self, input: &[u8], last: bool) -> usize {
        let mut pos = 0;
        if !self.ready && !self.ended {
            match self.framer.find_layout(input, &mut pos, last) {
                Found::Layout(_) => self.ready = true,
                Found::More => return pos,
                Found::Nothing => self.ended = true,
            }
        }
        let header_bank = self
            .framer
            .detected()
            .map(|detected| detected.layout.header_bank);
        while let (false, Some(header_bank)) = (self.ended, header_bank) {
            match self.framer.step(input, &mut pos, last) {
                Step::More => return pos,
                Step::End => self.ended = true,
                Step::Record(record) if record.pcr != self.spec.pcr => {}
                Step::Record(record) => {
                    if let Some(data) = record.data {
                        self.digests.compute(self.wanted, data);
                    }
                    let mut recorded = [0u8; MAX_DIGEST_BYTES];
                    if let Some(to) = recorded.get_mut(..record.template_hash.len()) {
                        to.copy_from_slice(record.template_hash);
                    }
                    let offer = Offer {
                        digests: record.data.map(|_| &self.digests),
                        recorded: &recorded,
                        header_bank,
                        violation: record.is_violation(),
                    };
                    let Some(value) = offer.value(self.spec.bank, self.spec.rule) else {
                        self.ended = true;
                        continue;
                    };
                    self.entries = self.entries.saturating_add(1);
                    self.window.push_back((*value, Place::of(&record)));
                    if self.window.len() > MAX_SEARCH_ENTRIES {
                        if let Some((value, _)) = self.window.pop_front() {
                            extend(self.spec.bank, &mut self.before, &value);
                        }
                    }
                }
            }
        }
        input.len()
    }

    /// Search, and tell what was tried.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        self.process(&[], true);
        let window: Vec<(Digest, Place)> = std::mem::take(&mut self.window).into();
        let mut outcome = Outcome {
            entries: self.entries,
            tried: window.len() as u64,
            found: None,
        };
        let Some(target) = self.spec.target else {
            return outcome;
        };
        let mut prefix = self.before;
        for (at, (value, place)) in window.iter().enumerate() {
            for supposition in [Supposition::Dropped, Supposition::Swapped] {
                if self
                    .only
                    .is_some_and(|only| only != (supposition, place.index))
                {
                    continue;
                }
                if let Some(reached) = self.suppose(supposition, &window, at, prefix, &target) {
                    let place = *place;
                    outcome.found = Some(Explanation {
                        supposition,
                        place,
                        reached_index: reached,
                    });
                    return outcome;
                }
            }
            extend(self.spec.bank, &mut prefix, value);
        }
        outcome
    }

    fn suppose(
        &self,
        supposition: Supposition,
        window: &[(Digest, Place)],
        at: usize,
        mut state: Digest,
        target: &Digest,
    ) -> Option<u64> {
        let bank = self.spec.bank;
        let (this, rest) = window.get(at..)?.split_first()?;
        let rest = match supposition {
            Supposition::Dropped => rest,
            Supposition::Swapped => {
                let (next, rest) = rest.split_first()?;
                extend(bank, &mut state, &next.0);
                extend(bank, &mut state, &this.0);
                if state == *target {
                    return Some(next.1.index);
                }
                rest
            }
        };
        rest.iter().find_map(|(value, place)| {
            extend(bank, &mut state, value);
            (state == *target).then_some(place.index)
        })
    }
}
