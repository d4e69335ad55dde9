//! What follows a checkpoint in a list, if all of it is covered, valid, and settled by the policy.
use std::borrow::Cow;

use excise_formats::ima::{
    fields_of, Bank, ChainSpec, Digest, Format, Found, Framer, Layout, Options, Replay, Report,
    Rule, Step, MAX_DIGEST_BYTES,
};
use excise_formats::policy::{Screen, Settled};
use serde::Serialize;

use crate::pcrs::IMA_PCR;
use crate::policy::{Judge, Judged};
use crate::state::{Checkpoint, Outcome, PolicyState, RecordMark, RegisterState, Said};

const SUBJECT: &str = "ima";
const TEMPLATES: [&[u8]; 8] = [
    b"ima",
    b"ima-ng",
    b"ima-sig",
    b"ima-buf",
    b"ima-modsig",
    b"evm-sig",
    b"ima-ngv2",
    b"ima-sigv2",
];

/// What follows a checkpoint.
#[derive(Serialize)]
pub struct Followed<'a> {
    /// Checks of the list, which passed.
    pub ima: Vec<Said>,
    /// Checks of the policy.
    pub policy: Option<Vec<Said>>,
    /// Its verdict.
    pub policy_verdict: Option<&'static str>,
    /// Where the next round goes on.
    pub checkpoint: Checkpoint<'a>,
    /// Counts there.
    pub policy_state: Option<PolicyState<'a>>,
    /// Entries that follow.
    pub new_entries: u64,
}

/// Follow a list from its last covered record on.
///
/// `None` where anything is out of the common: the long way has to tell what.
///
/// `targets` are the values of IMA's register to reach, `settings` names what a state was judged by.
#[must_use]
pub fn follow<'a>(
    tail: &[u8],
    checkpoint: &Checkpoint<'a>,
    before: Option<&PolicyState<'a>>,
    targets: &[(Bank, Digest)],
    judge: Option<&Judge>,
    settings: &str,
) -> Option<Followed<'a>> {
    let chains = chains_of(checkpoint, targets)?;
    let mark = &checkpoint.last_record;
    let mark_bytes = usize::try_from(mark.size_bytes).ok()?;
    let fits = checkpoint.list_format == Format::Binary.name()
        && checkpoint.policy_digest.as_deref() == Some(settings)
        && checkpoint.base_offset == 0
        && checkpoint.line == 1
        && checkpoint.offset > mark.size_bytes
        && RecordMark::of(tail.get(..mark_bytes)?) == *mark;
    if !fits {
        return None;
    }
    let options = Options {
        format: Some(Format::Binary),
        order: Some(checkpoint.order()?),
        header_bank: Some(checkpoint.bank()?),
        start_offset: mark.size_bytes,
        start_index: checkpoint.count,
        start_line: checkpoint.line,
    };
    let new = tail.get(mark_bytes..)?;
    let mut replay = Replay::new(options, &chains, &[]);
    replay.process(new, true);
    let report = replay.finish();
    if !is_common(&report, &options, &chains) {
        return None;
    }
    let new_entries = report.findings.entries;
    let mut judged: Option<(Judged, PolicyState<'a>)> = None;
    if let Some(judge) = judge {
        let mut state = before.cloned().unwrap_or_default();
        if new_entries > 0 {
            Judge::settle(&settled(new, options, &judge.screen)?, &mut state);
        }
        judged = Some((judge.judge(&state), state));
    }
    let (said, state) = judged.unzip();
    Some(Followed {
        ima: list_checks(checkpoint, &report, targets),
        policy_verdict: said.as_ref().map(|judged| judged.verdict.name()),
        policy: said.map(|judged| judged.said),
        checkpoint: successor(tail, checkpoint, &report, targets)?,
        policy_state: state,
        new_entries,
    })
}

fn chains_of(checkpoint: &Checkpoint<'_>, targets: &[(Bank, Digest)]) -> Option<Vec<ChainSpec>> {
    let held = &checkpoint.registers;
    if targets.is_empty() || held.len() != targets.len() {
        return None;
    }
    let own = held.iter().all(|each| each.pcr == IMA_PCR && each.is_own());
    let chain = |(bank, target): &(Bank, Digest)| {
        let register = held.iter().find(|each| each.bank == bank.name())?;
        let mut start = [0u8; MAX_DIGEST_BYTES];
        hex::decode_to_slice(&*register.value, start.get_mut(..bank.size())?).ok()?;
        Some(ChainSpec {
            pcr: IMA_PCR,
            bank: *bank,
            rule: Rule::Own,
            start,
            target: Some(*target),
        })
    };
    own.then(|| targets.iter().map(chain).collect()).flatten()
}

/// Whether the values are reached by the last entry, and nothing else is to be said.
fn is_common(report: &Report, options: &Options, chains: &[ChainSpec]) -> bool {
    let found = &report.findings;
    let layout = report.detected.map(|detected| detected.layout);
    let same = layout.is_some_and(|layout| {
        layout.kexec.is_none()
            && Some(layout.format) == options.format
            && Some(layout.order) == options.order
            && Some(layout.header_bank) == options.header_bank
    });
    let nothing_special = report.fault.is_none()
        && report.trailing_bytes == 0
        && report.padding_bytes == 0
        && found.violations.count == 0
        && found.opaque.count == 0
        && found.bad_hashes.count == 0
        && found.malformed.count == 0
        && found.boot_aggregates.count == 0;
    let known = report
        .templates
        .iter()
        .all(|(name, _)| TEMPLATES.contains(&name.as_slice()));
    let [register] = report.registers.as_slice() else {
        return false;
    };
    let whole = register.entries == found.entries && register.chains.len() == chains.len();
    same && nothing_special
        && known
        && whole
        && register.chains.iter().all(|chain| {
            let Some(spec) = chains.iter().find(|spec| spec.bank == chain.bank) else {
                return false;
            };
            let at_start = spec.target == Some(spec.start);
            // A value that is also the old one says nothing of what follows.
            let at_end = if found.entries == 0 {
                at_start
            } else {
                let hit = chain.hit.as_ref();
                !at_start && hit.is_some_and(|hit| hit.register_entries == found.entries)
            };
            at_end && chain.broken_at.is_none() && Some(chain.state) == spec.target
        })
}

/// Entries that the policy settles, if those are all.
fn settled(new: &[u8], options: Options, screen: &Screen) -> Option<Settled> {
    let mut framer = Framer::new(options);
    let mut pos = 0;
    let layout: Layout = match framer.find_layout(new, &mut pos, true) {
        Found::Layout(layout) => layout,
        Found::More | Found::Nothing => return None,
    };
    let mut found = Settled::default();
    loop {
        match framer.step(new, &mut pos, true) {
            Step::Record(record) => {
                let row = fields_of(&record, &layout);
                if !screen.settles(&record, &row, &mut found) {
                    return None;
                }
            }
            Step::End => break,
            Step::More => return None,
        }
    }
    framer.fault().is_none().then_some(found)
}

/// The checks of the list, word for word as `verify_list` makes them.
fn list_checks(
    checkpoint: &Checkpoint<'_>,
    report: &Report,
    targets: &[(Bank, Digest)],
) -> Vec<Said> {
    let new = report.findings.entries;
    let count = checkpoint.count.saturating_add(new);
    let last = report.findings.last.map(|(begin, _)| {
        let index = count.saturating_sub(1);
        format!("entry {index} at offset {begin}")
    });
    let asked = if new > 0 {
        Outcome::Passed
    } else {
        Outcome::NotCovered
    };
    let hashed = match new {
        0 => String::new(),
        _ => format!(
            "{new} entries with the {} hash of their data",
            checkpoint.header_bank
        ),
    };
    let layout = format!(
        "{}, {}-endian, template hashes of {} (as given).",
        checkpoint.list_format, checkpoint.byte_order, checkpoint.header_bank
    );
    let reached = match &last {
        Some(last) => format!("Reached at {last}."),
        None => "It is the checkpoint's own value: no new entry is covered.".to_owned(),
    };
    let covered = format!("{count} entries");
    let upto = last.map_or_else(String::new, |last| format!("Covered up to {last}."));
    let met = format!(
        "from entry {} at offset {}",
        checkpoint.count, checkpoint.offset
    );
    let before = format!(
        "The first {} bytes of the input were covered before.",
        checkpoint.last_record.size_bytes
    );
    let whole = "whole entries up to the end".to_owned();
    let read = format!("{new} entries, 0 trailing bytes");
    let passed = Outcome::Passed;
    let mut rows = vec![
        said("ima.format", passed, whole, read, layout),
        said(
            "ima.fields",
            asked,
            "0 malformed entries".into(),
            "0 malformed".into(),
            String::new(),
        ),
        said(
            "ima.template_hash",
            asked,
            hashed.clone(),
            hashed,
            String::new(),
        ),
        said(
            "ima.violations",
            asked,
            "0 violations".into(),
            "0 violations".into(),
            String::new(),
        ),
        said("ima.coverage", passed, covered.clone(), covered, upto),
        said("ima.checkpoint", passed, met, "overlap".into(), before),
    ];
    for (bank, value) in targets {
        let text = hex::encode(value.get(..bank.size()).unwrap_or(&[]));
        let name = format!("ima.pcr.{}", bank.name());
        rows.push(said(name, passed, text.clone(), text, reached.clone()));
    }
    rows.push(said(
        "ima.boot_aggregate",
        Outcome::NotCovered,
        String::new(),
        String::new(),
        "There is none among the new entries.".into(),
    ));
    rows
}

fn said(
    name: impl Into<Cow<'static, str>>,
    outcome: Outcome,
    expected: String,
    got: String,
    detail: String,
) -> Said {
    Said(SUBJECT, name.into(), outcome.name(), expected, got, detail)
}

fn successor<'a>(
    tail: &[u8],
    checkpoint: &Checkpoint<'a>,
    report: &Report,
    targets: &[(Bank, Digest)],
) -> Option<Checkpoint<'a>> {
    let Some((begin, end)) = report.findings.last else {
        return Some(checkpoint.clone());
    };
    let range = usize::try_from(begin).ok()?..usize::try_from(end).ok()?;
    let mut registers: Vec<RegisterState<'a>> = targets
        .iter()
        .map(|(bank, value)| RegisterState {
            pcr: IMA_PCR,
            bank: Cow::Borrowed(bank.name()),
            rule: Cow::Borrowed(Rule::Own.name()),
            value: Cow::Owned(hex::encode(value.get(..bank.size()).unwrap_or(&[]))),
        })
        .collect();
    registers.sort_by(|one, other| one.bank.cmp(&other.bank));
    Some(Checkpoint {
        offset: checkpoint.last_record_offset()?.checked_add(end)?,
        count: checkpoint.count.checked_add(report.findings.entries)?,
        last_record: RecordMark::of(tail.get(range)?),
        registers,
        ..checkpoint.clone()
    })
}
