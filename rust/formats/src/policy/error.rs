//! Why reference digests could not be read.
use std::fmt;

/// A fault in a source of reference digests, with its place as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// What is wrong, in one clause.
    pub reason: String,
    /// Line of text, from 1.
    pub line: Option<u64>,
    /// Byte offset in a compiled policy.
    pub offset: Option<u64>,
    /// The field being read.
    pub field: &'static str,
}

impl PolicyError {
    /// A fault in a line of text.
    #[must_use]
    pub fn in_line(line: u64, field: &'static str, reason: impl Into<String>) -> Self {
        PolicyError {
            reason: reason.into(),
            line: Some(line),
            offset: None,
            field,
        }
    }

    /// A fault at an offset.
    #[must_use]
    pub fn at(offset: u64, field: &'static str, reason: impl Into<String>) -> Self {
        PolicyError {
            reason: reason.into(),
            line: None,
            offset: Some(offset),
            field,
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for PolicyError {}
