//! IMA measurement lists: reading them, and replaying them into PCR values.
//!
//! All of it is pure: bytes in, records, findings and PCR values out. Input is taken in pieces; what is
//! kept does not grow with the length of a list. No input makes it panic.
pub mod bank;
pub mod chain;
pub mod explain;
pub mod findings;
pub mod frame;
pub mod hash;
pub mod layout;
pub mod limits;
pub mod record;
pub mod registers;
pub mod replay;
pub mod rows;
pub mod template;

mod ascii;
mod detect;

pub use bank::{Bank, BankSet, Digest, MAX_DIGEST_BYTES};
pub use chain::{Chain, Hit, Rule};
pub use detect::Detected;
pub use explain::{Explanation, Outcome, Search, Supposition, MAX_SEARCH_ENTRIES};
pub use findings::{BadHash, BootAggregate, Findings, Listed, Malformed, Place};
pub use frame::{Found, Framer, Step};
pub use layout::{Format, KexecHeader, Layout, Options};
pub use record::{Fault, Record};
pub use registers::Register;
pub use replay::{ChainSpec, Replay, Report};
pub use rows::{fields_of, row_of, Row};
pub use template::{ByteOrder, Field, FileDigest, Template};
