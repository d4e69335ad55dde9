//! Hosts from their old state and their folder to their new state.
use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::folder::{read_from, Names, Pieces};
use crate::follow::{follow, Followed};
use crate::pcrs::ima_values;
use crate::policy::Judge;
use crate::state::{HostState, NewRow, NewState, Outcome, Said};

/// Longest new part of a list that is followed: many thousands of entries.
const MOST_TAIL_BYTES: u64 = 1 << 20;
/// Longest text of PCR values: all banks of all registers take 16 KiB.
const MOST_PCRS_BYTES: usize = 1 << 16;
/// Names told of files that are no evidence.
const MOST_UNUSED: usize = 20;

/// A host to look at.
#[derive(Clone, Debug)]
pub struct Job<S> {
    /// Its name.
    pub host: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Its encoded state.
    pub state: S,
}

/// How hosts are judged.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which file is what.
    pub names: Names,
    /// Name of what a state was judged by.
    pub name: String,
    /// The evidence that every host must have, in words.
    pub wanted: String,
    /// Longest list.
    pub most_list_bytes: u64,
    /// The policy, if there is one.
    pub judge: Option<Judge>,
}

/// The encoded new state of each host whose list merely grew; the others have to go the long way.
pub fn follow_hosts<S: AsRef<[u8]> + Sync>(
    jobs: &[Job<S>],
    settings: &Settings,
    threads: usize,
) -> Vec<Option<Vec<u8>>> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![None; jobs.len()]);
    let work = || {
        while let Some((at, job)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(at).map(|job| (at, job))
        } {
            // Nothing is known to panic; one host would not be worth a fleet.
            let state = catch_unwind(AssertUnwindSafe(|| follow_host(job, settings)));
            if let (Ok(Some(state)), Ok(mut found)) = (state, found.lock()) {
                if let Some(to) = found.get_mut(at) {
                    *to = Some(state);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(jobs.len()) {
            scope.spawn(work);
        }
        work();
    });
    found.into_inner().unwrap_or_default()
}

fn follow_host<S: AsRef<[u8]>>(job: &Job<S>, settings: &Settings) -> Option<Vec<u8>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let now_ns = i64::try_from(now.as_nanos()).ok()?;
    let before = HostState::decode(job.state.as_ref())?;
    if before.host != job.host
        || before.quote.is_some()
        || before.key_sha256.is_some()
        || !before.captures.is_empty()
    {
        return None;
    }
    let checkpoint = before.checkpoint.as_ref()?;
    let pieces = settings.names.pieces(&job.folder)?;
    let size = pieces.list_bytes;
    let start = checkpoint.last_record_offset()?;
    if size > settings.most_list_bytes || size < checkpoint.offset {
        return None;
    }
    if size.checked_sub(start)? > MOST_TAIL_BYTES {
        return None;
    }
    let targets = ima_values(&read_from(
        &job.folder.join(pieces.pcrs),
        0,
        MOST_PCRS_BYTES,
    )?)?;
    let most = usize::try_from(MOST_TAIL_BYTES).ok()?;
    let tail = read_from(&job.folder.join(pieces.list), start, most)?;
    let found = follow(
        &tail,
        checkpoint,
        before.policy.as_ref(),
        &targets,
        settings.judge.as_ref(),
        &settings.name,
    )?;
    encode(&found, &before, &pieces, settings, now_ns)
}

fn encode(
    found: &Followed<'_>,
    before: &HostState<'_>,
    pieces: &Pieces<'_>,
    settings: &Settings,
    now_ns: i64,
) -> Option<Vec<u8>> {
    let passed = Outcome::Passed.name();
    let verdict = found.policy_verdict.unwrap_or(passed);
    let mut fleet = vec![Said(
        "fleet",
        "fleet.evidence".into(),
        passed,
        settings.wanted.clone(),
        "ima".to_owned(),
        String::new(),
    )];
    if !pieces.unused.is_empty() {
        let named = pieces.unused.get(..MOST_UNUSED).unwrap_or(&pieces.unused);
        fleet.push(Said(
            "fleet",
            "fleet.files".into(),
            Outcome::NotCovered.name(),
            "evidence".to_owned(),
            format!("not looked at: {}", named.join(", ")),
            String::new(),
        ));
    }
    let policy = found.policy.as_deref().unwrap_or(&[]);
    let said = found.ima.iter().chain(policy).chain(&fleet);
    let checks = said
        .map(|row| {
            let Said(subject, check, outcome, expected, got, detail) = row;
            let passed_ns = if *outcome == passed {
                Some(now_ns)
            } else {
                before.passed_ns(subject, check)
            };
            NewRow(subject, check, outcome, expected, got, detail, passed_ns)
        })
        .collect();
    let state = NewState {
        host: &before.host,
        verdict,
        attempted_ns: now_ns,
        schema: NewState::SCHEMA,
        verified_ns: if verdict == passed {
            Some(now_ns)
        } else {
            before.verified_ns
        },
        evidence_ns: Some(pieces.modified_ns),
        entries: found.checkpoint.count,
        new_entries: found.new_entries,
        settings: &settings.name,
        checks,
        findings: &before.findings,
        findings_left_out: 0,
        checkpoint: &found.checkpoint,
        policy: found.policy_state.as_ref(),
        quote: None,
        key_sha256: None,
        captures: BTreeMap::new(),
    };
    serde_json::to_vec(&state).ok()
}
