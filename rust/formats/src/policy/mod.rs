//! Reference digests of files: read from checksum lists and keylime policies, kept compactly.
pub mod checksums;
mod column;
mod compiled;
pub mod error;
pub mod keylime;
pub mod screen;
pub mod table;

pub use checksums::{ChecksumReader, Counts};
pub use error::PolicyError;
pub use keylime::read_keylime;
pub use screen::{Screen, Settled};
pub use table::{DigestTable, DigestTableBuilder, Verdict};
