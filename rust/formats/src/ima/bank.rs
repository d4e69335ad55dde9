//! PCR banks: one per hash algorithm a TPM keeps its registers in.

/// A hash algorithm with a PCR bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Bank {
    /// SHA-1, 20 bytes.
    Sha1 = 0,
    /// SHA-256, 32 bytes.
    Sha256 = 1,
    /// SHA-384, 48 bytes.
    Sha384 = 2,
    /// SHA-512, 64 bytes.
    Sha512 = 3,
    /// SM3 (TPM name `sm3_256`), 32 bytes.
    Sm3 = 4,
}

/// Bytes of the widest digest.
pub const MAX_DIGEST_BYTES: usize = 64;

/// A digest of any bank, left-aligned; bytes past the bank's size are zero.
pub type Digest = [u8; MAX_DIGEST_BYTES];

impl Bank {
    /// Every bank, in the order of its number.
    pub const ALL: [Bank; 5] = [
        Bank::Sha1,
        Bank::Sha256,
        Bank::Sha384,
        Bank::Sha512,
        Bank::Sm3,
    ];

    /// Size of the bank's digests in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Bank::Sha1 => 20,
            Bank::Sha256 | Bank::Sm3 => 32,
            Bank::Sha384 => 48,
            Bank::Sha512 => 64,
        }
    }

    /// The bank's name as tpm2-tools and the kernel spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Bank::Sha1 => "sha1",
            Bank::Sha256 => "sha256",
            Bank::Sha384 => "sha384",
            Bank::Sha512 => "sha512",
            Bank::Sm3 => "sm3_256",
        }
    }

    /// The bank of that name (`sm3` and `sm3-256` are read as well), if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Bank> {
        match name {
            "sha1" => Some(Bank::Sha1),
            "sha256" => Some(Bank::Sha256),
            "sha384" => Some(Bank::Sha384),
            "sha512" => Some(Bank::Sha512),
            "sm3" | "sm3_256" | "sm3-256" => Some(Bank::Sm3),
            _ => None,
        }
    }
}

/// A set of banks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BankSet(u8);

impl BankSet {
    /// Add a bank.
    pub fn insert(&mut self, bank: Bank) {
        self.0 |= 1 << bank as u8;
    }

    /// Whether the bank is in the set.
    #[must_use]
    pub const fn contains(self, bank: Bank) -> bool {
        self.0 & (1 << bank as u8) != 0
    }
}
