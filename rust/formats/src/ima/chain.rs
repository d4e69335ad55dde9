//! PCR values along a list: one chain for each register, bank and rule.
use super::bank::{Bank, Digest, MAX_DIGEST_BYTES};
use super::hash::{extend, Digests};

/// What a kernel extends a bank with for one entry.
///
/// Kernels before 5.8 extend every bank with the zero-padded SHA-1 template digest; later ones
/// give each bank its own digest, but keep the padded one for a bank whose hash they cannot
/// compute. The last three are no kernel's rule: they are tried to explain a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The bank's own digest of the template data; violations as 0xff over the bank's width.
    Own,
    /// The SHA-1 digest, zero-padded; violations as 20 bytes of 0xff, zero-padded.
    PaddedSha1,
    /// The SHA-1 digest, zero-padded; violations as 0xff over the bank's width.
    PaddedSha1WideViolations,
    /// As `Own`, but violations extended as the zeros that the list shows.
    OwnZeroViolations,
    /// As `PaddedSha1`, but violations extended as zeros.
    PaddedSha1ZeroViolations,
    /// The template hash that the list shows, whatever its data hashes to.
    Recorded,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 6] = [
        Rule::Own,
        Rule::PaddedSha1,
        Rule::PaddedSha1WideViolations,
        Rule::OwnZeroViolations,
        Rule::PaddedSha1ZeroViolations,
        Rule::Recorded,
    ];

    /// The rule's stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Own => "own",
            Rule::PaddedSha1 => "padded-sha1",
            Rule::PaddedSha1WideViolations => "padded-sha1-wide-violations",
            Rule::OwnZeroViolations => "own-zero-violations",
            Rule::PaddedSha1ZeroViolations => "padded-sha1-zero-violations",
            Rule::Recorded => "recorded",
        }
    }

    /// The rule of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Bank whose digest of the template data the rule needs for a bank.
    #[must_use]
    pub const fn digest_bank(self, bank: Bank) -> Bank {
        match self {
            Rule::Own | Rule::OwnZeroViolations | Rule::Recorded => bank,
            Rule::PaddedSha1 | Rule::PaddedSha1WideViolations | Rule::PaddedSha1ZeroViolations => {
                Bank::Sha1
            }
        }
    }
}

static ZEROS: Digest = [0; MAX_DIGEST_BYTES];
static ONES: Digest = [0xff; MAX_DIGEST_BYTES];
static ONES_20: Digest = {
    let mut digest = [0u8; MAX_DIGEST_BYTES];
    let mut at = 0;
    while at < 20 {
        digest[at] = 0xff;
        at += 1;
    }
    digest
};

/// What one entry offers to a chain.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Digests of the template data; `None` where an ascii line does not determine the data.
    pub digests: Option<&'a Digests>,
    /// The template hash as recorded, zero-padded.
    pub recorded: &'a Digest,
    /// Bank of the recorded hash.
    pub header_bank: Bank,
    /// Whether the entry is a violation.
    pub violation: bool,
}

impl<'a> Offer<'a> {
    /// The value a bank is extended with under a rule; `None` when it cannot be known.
    #[inline]
    #[must_use]
    pub fn value(&self, bank: Bank, rule: Rule) -> Option<&'a Digest> {
        if self.violation {
            return Some(match rule {
                Rule::Own | Rule::PaddedSha1WideViolations | Rule::Recorded => &ONES,
                Rule::PaddedSha1 => &ONES_20,
                Rule::OwnZeroViolations | Rule::PaddedSha1ZeroViolations => &ZEROS,
            });
        }
        let source = rule.digest_bank(bank);
        match self.digests {
            Some(digests) if rule != Rule::Recorded => Some(digests.padded(source)),
            _ if source == self.header_bank => Some(self.recorded),
            _ => None,
        }
    }
}

/// One PCR of one bank, extended along the list under one rule.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The bank.
    pub bank: Bank,
    /// The rule.
    pub rule: Rule,
    /// The register now.
    pub state: Digest,
    /// The value looked for.
    pub target: Option<Digest>,
    /// Where the value was first reached.
    pub hit: Option<Hit>,
    /// Position of the first entry whose value could not be known.
    pub broken_at: Option<u64>,
}

/// The point at which a chain reached the value looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Position in the list of the entry that led there.
    pub index: u64,
    /// Its byte offset.
    pub offset: u64,
    /// Byte offset after it.
    pub end: u64,
    /// Its line; 0 in a binary list.
    pub line: u64,
    /// Entries of the register up to it, those before a resumed offset not counted.
    pub register_entries: u64,
    /// Every chain's register at this point.
    pub snapshot: Vec<(u32, Bank, Rule, Digest)>,
}

impl Chain {
    /// A chain that starts at a value.
    #[must_use]
    pub fn new(bank: Bank, rule: Rule, start: Digest, target: Option<Digest>) -> Self {
        Chain {
            bank,
            rule,
            state: start,
            target,
            hit: None,
            broken_at: None,
        }
    }

    /// Extend by one entry; whether the value looked for is reached now, for the first time.
    #[inline]
    pub fn step(&mut self, offer: &Offer<'_>, index: u64) -> bool {
        let Some(value) = offer.value(self.bank, self.rule) else {
            self.broken_at.get_or_insert(index);
            return false;
        };
        if self.broken_at.is_some() {
            return false;
        }
        extend(self.bank, &mut self.state, value);
        match &self.target {
            Some(target) => self.hit.is_none() && self.state == *target,
            None => false,
        }
    }
}
