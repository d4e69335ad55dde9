//! What a policy says of entries that it settles: the checks of `excise.evidence.policy.appraise`.
use excise_formats::policy::{Screen, Settled};

use crate::state::EntryClass as Class;
use crate::state::SignatureResult as Signature;
use crate::state::{Outcome, PolicyState, Said};

const SUBJECT: &str = "policy";
const FILE_FAULTS: [Class; 5] = [
    Class::UnknownFile,
    Class::DigestDiffers,
    Class::OtherAlgorithm,
    Class::Unreadable,
    Class::PseudoFile,
];

/// What a violation does to the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It fails.
    Fail,
    /// It is counted and left open.
    Report,
    /// It is counted.
    Ignore,
}

impl Treatment {
    /// The treatment of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "fail" => Some(Treatment::Fail),
            "report" => Some(Treatment::Report),
            "ignore" => Some(Treatment::Ignore),
            _ => None,
        }
    }
}

/// A policy with default options, but for violations.
#[derive(Clone, Debug)]
pub struct Judge {
    /// What it settles.
    pub screen: Screen,
    /// Whether it lists measured buffers.
    pub lists_buffers: bool,
    /// What a violation does.
    pub violations: Treatment,
}

/// What a policy says of all covered entries.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Its checks.
    pub said: Vec<Said>,
    /// The verdict over them.
    pub verdict: Outcome,
}

impl Judge {
    /// Add entries that the screen settled to what was known.
    pub fn settle(settled: &Settled, state: &mut PolicyState<'_>) {
        state.counts.add(Class::Allowed, settled.allowed);
        state.counts.add(Class::Excluded, settled.excluded);
        let signatures = &mut state.signature_counts;
        signatures.add(Signature::NoSignature, settled.without_signature);
        signatures.add(Signature::UnknownKey, settled.unknown_key);
        state.files = state.files.saturating_add(settled.files);
    }

    /// The checks over everything known, and the verdict.
    #[must_use]
    pub fn judge(&self, state: &PolicyState<'_>) -> Judged {
        let mut rows = vec![
            digests(state),
            self.signatures(state),
            self.violations(state),
            self.buffers(state),
        ];
        let excluded = state.counts.get(Class::Excluded);
        if excluded > 0 {
            rows.push(Row {
                name: "policy.excludes",
                outcome: Outcome::NotCovered,
                expected: "",
                got: format!("{excluded} excluded entries"),
                detail: "Nothing was asked of these files.",
            });
        }
        let any = |outcome| rows.iter().any(|row| row.outcome == outcome);
        let compared = rows
            .iter()
            .take(2)
            .any(|row| row.outcome == Outcome::Passed);
        let verdict = if any(Outcome::Failed) {
            Outcome::Failed
        } else if compared && state.files > 0 {
            Outcome::Passed
        } else {
            Outcome::NotCovered
        };
        Judged {
            said: rows.into_iter().map(Row::said).collect(),
            verdict,
        }
    }

    fn signatures(&self, state: &PolicyState<'_>) -> Row {
        let seen = &state.signature_counts;
        let uses_keys = self.screen.verifies_signatures;
        let bad = seen.get(Signature::BadSignature) > 0 || seen.get(Signature::Malformed) > 0;
        let outcome = match uses_keys {
            false => Outcome::NotCovered,
            true if bad => Outcome::Failed,
            true if seen.get(Signature::Ok) > 0 => Outcome::Passed,
            true => Outcome::NotCovered,
        };
        let listed = seen.named().filter(|(_, _, count)| *count > 0);
        let listed: Vec<String> = listed.map(|(_, text, n)| format!("{n} × {text}")).collect();
        Row {
            name: "policy.signatures",
            outcome,
            expected: "no bad signature",
            got: listed.join(", "),
            detail: if uses_keys { "" } else { "No key was given." },
        }
    }

    fn violations(&self, state: &PolicyState<'_>) -> Row {
        let count = state.counts.get(Class::Violation);
        let outcome = match self.violations {
            Treatment::Fail if count > 0 => Outcome::Failed,
            Treatment::Report if count > 0 => Outcome::NotCovered,
            _ if state.counts.named().any(|(_, _, n)| n > 0) => Outcome::Passed,
            _ => Outcome::NotCovered,
        };
        let ignored = count > 0 && self.violations == Treatment::Ignore;
        let ignored = if ignored { " (ignored on request)" } else { "" };
        Row {
            name: "policy.violations",
            outcome,
            expected: "none",
            got: format!("{count} violation{ignored}"),
            detail: if count > 0 {
                "Files were written while measured, or read while open for writing; the \
                 content and even the name in such an entry are not authenticated."
            } else {
                ""
            },
        }
    }

    fn buffers(&self, state: &PolicyState<'_>) -> Row {
        let differ = state.counts.get(Class::BufferDiffers);
        let unknown = state.counts.get(Class::BufferUnknown);
        let allowed = state.counts.get(Class::BufferAllowed);
        let outcome = if differ > 0 || (unknown > 0 && self.lists_buffers) {
            Outcome::Failed
        } else if unknown > 0 || allowed == 0 {
            Outcome::NotCovered
        } else {
            Outcome::Passed
        };
        Row {
            name: "policy.buffers",
            outcome,
            expected: "keys and other buffers with digests of the policy",
            got: format!("{allowed} allowed, {differ} differ, {unknown} unknown"),
            detail: if self.lists_buffers {
                ""
            } else {
                "The policy lists no buffer."
            },
        }
    }
}

fn digests(state: &PolicyState<'_>) -> Row {
    let counts = &state.counts;
    let accepted = counts
        .get(Class::Allowed)
        .saturating_add(counts.get(Class::Signed));
    let mut got = format!("{accepted} accepted");
    let mut bad = false;
    for fault in FILE_FAULTS {
        for (_, text, count) in counts.named().filter(|(n, _, c)| *n == fault && *c > 0) {
            got.push_str(if bad { ", " } else { "; " });
            got.push_str(&format!("{count} × {text}"));
            bad = true;
        }
    }
    Row {
        name: "policy.digests",
        outcome: match (bad, accepted) {
            (true, _) => Outcome::Failed,
            (false, 0) => Outcome::NotCovered,
            (false, _) => Outcome::Passed,
        },
        expected: "every measured file with a digest of the policy",
        got,
        detail: if bad || accepted > 0 {
            ""
        } else {
            "No entry of a file was compared."
        },
    }
}

struct Row {
    name: &'static str,
    outcome: Outcome,
    expected: &'static str,
    got: String,
    detail: &'static str,
}

impl Row {
    fn said(self) -> Said {
        Said(
            SUBJECT,
            self.name.into(),
            self.outcome.name(),
            self.expected.into(),
            self.got,
            self.detail.into(),
        )
    }
}
