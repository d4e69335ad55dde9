//! Measurement lists: a path or bytes in, plain values out; the interpreter runs on meanwhile.
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use excise_formats::ima::hash::Digests;
use excise_formats::ima::{
    Bank, BankSet, ByteOrder, Chain, ChainSpec, Digest, Findings, Format, Hit, Layout, Listed,
    Options, Place, Register, Replay, Report, Rule, Search, Supposition, MAX_DIGEST_BYTES,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};

/// Bytes read from a file at once: the buffer stays in the second-level cache.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes between two looks for signals: some milliseconds of work, and far more than a look costs.
const SIGNALS_EVERY_BYTES: usize = 4 << 20;

/// Where a list is.
#[derive(FromPyObject)]
pub enum Source {
    /// In memory.
    Bytes(PyBackedBytes),
    /// In a file.
    Path(PathBuf),
}

impl Source {
    /// Hand `[start, end)` to `take` piece by piece; `take` says how many bytes it is done with.
    /// Between pieces Ctrl-C is heard.
    pub fn drive(
        &self,
        start: u64,
        end: Option<u64>,
        take: impl FnMut(&[u8], bool) -> usize,
    ) -> PyResult<()> {
        match self {
            Source::Bytes(bytes) => {
                let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let to = end.map_or(bytes.len(), clamp);
                drive_bytes(bytes.get(clamp(start).min(to)..to).unwrap_or(&[]), take)
            }
            Source::Path(path) => {
                let mut file = File::open(path)?;
                if start > 0 {
                    file.seek(SeekFrom::Start(start))?;
                }
                let limit = end.map_or(u64::MAX, |end| end.saturating_sub(start));
                drive_reader(file.take(limit), take)
            }
        }
    }
}

/// Run Python's handlers of the signals that came meanwhile; an error is what one raised.
fn hear_signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

fn drive_bytes(bytes: &[u8], mut take: impl FnMut(&[u8], bool) -> usize) -> PyResult<()> {
    let (mut rest, mut size) = (bytes, SIGNALS_EVERY_BYTES);
    loop {
        let (piece, last) = match rest.get(..size) {
            Some(piece) => (piece, piece.len() == rest.len()),
            None => (rest, true),
        };
        let done = take(piece, last).min(piece.len());
        if last {
            return Ok(());
        }
        hear_signals()?;
        // A piece of which nothing could be used is too short for what stands in it.
        size = if done == 0 {
            size.saturating_mul(2)
        } else {
            SIGNALS_EVERY_BYTES
        };
        rest = rest.get(done..).unwrap_or(&[]);
    }
}

fn drive_reader(mut reader: impl Read, mut take: impl FnMut(&[u8], bool) -> usize) -> PyResult<()> {
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let (mut filled, mut unheard) = (0usize, 0usize);
    loop {
        if filled == buffer.len() {
            buffer.resize(buffer.len().saturating_mul(2), 0);
        }
        let got = match reader.read(buffer.get_mut(filled..).unwrap_or(&mut [])) {
            Ok(got) => got,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                hear_signals()?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        filled = filled.saturating_add(got);
        unheard = unheard.saturating_add(got);
        if unheard >= SIGNALS_EVERY_BYTES {
            hear_signals()?;
            unheard = 0;
        }
        let done = take(buffer.get(..filled).unwrap_or(&[]), got == 0).min(filled);
        if got == 0 {
            return Ok(());
        }
        buffer.copy_within(done..filled, 0);
        filled = filled.saturating_sub(done);
    }
}

fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("unknown {what}: {name}"))
}

pub fn bank_of(name: &str) -> PyResult<Bank> {
    Bank::from_name(name).ok_or_else(|| unknown("bank", name))
}

pub fn rule_of(name: &str) -> PyResult<Rule> {
    Rule::from_name(name).ok_or_else(|| unknown("rule", name))
}

pub fn digest_of(bank: Bank, bytes: &[u8]) -> PyResult<Digest> {
    let mut digest = [0u8; MAX_DIGEST_BYTES];
    match digest.get_mut(..bank.size()) {
        Some(to) if bytes.len() == bank.size() => to.copy_from_slice(bytes),
        _ => {
            return Err(PyValueError::new_err(
                "digest of the wrong length for its bank",
            ))
        }
    }
    Ok(digest)
}

/// What the caller knows of the list: `(format, byte order, header bank)`.
pub type Known = (Option<String>, Option<String>, Option<String>);

pub fn options_of(known: &Known, start: (u64, u64, u64)) -> PyResult<Options> {
    let format = match known.0.as_deref() {
        None => None,
        Some("binary") => Some(Format::Binary),
        Some("ascii") => Some(Format::Ascii),
        Some(name) => return Err(unknown("format", name)),
    };
    let order = match known.1.as_deref() {
        None => None,
        Some("little") => Some(ByteOrder::Little),
        Some("big") => Some(ByteOrder::Big),
        Some(name) => return Err(unknown("byte order", name)),
    };
    let header_bank = known.2.as_deref().map(bank_of).transpose()?;
    let (start_offset, start_index, start_line) = start;
    Ok(Options {
        format,
        order,
        header_bank,
        start_offset,
        start_index,
        start_line,
    })
}

/// One chain: `(pcr, bank, rule, start, target)`.
type ChainArg = (u32, String, String, PyBackedBytes, Option<PyBackedBytes>);

fn chain_of(argument: &ChainArg) -> PyResult<ChainSpec> {
    let (pcr, bank, rule, start, target) = argument;
    let bank = bank_of(bank)?;
    Ok(ChainSpec {
        pcr: *pcr,
        bank,
        rule: rule_of(rule)?,
        start: digest_of(bank, start)?,
        target: target
            .as_ref()
            .map(|target| digest_of(bank, target))
            .transpose()?,
    })
}

/// Replay `[start, end)` of a list; everything found, as plain values.
#[pyfunction]
#[pyo3(signature = (source, chains, others, *, known=(None, None, None), start=(0, 0, 1), end=None))]
pub fn ima_replay<'py>(
    py: Python<'py>,
    source: Source,
    chains: Vec<ChainArg>,
    others: Vec<(String, String)>,
    known: Known,
    start: (u64, u64, u64),
    end: Option<u64>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = options_of(&known, start)?;
    let chains = chains.iter().map(chain_of).collect::<PyResult<Vec<_>>>()?;
    let others = others
        .iter()
        .map(|(bank, rule)| Ok((bank_of(bank)?, rule_of(rule)?)))
        .collect::<PyResult<Vec<_>>>()?;
    let report = py.detach(|| {
        let mut replay = Replay::new(options, &chains, &others);
        source.drive(start.0, end, |piece, last| replay.process(piece, last))?;
        Ok::<_, PyErr>(replay.finish())
    })?;
    report_dict(py, &report)
}

fn report_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let layout = report.detected.map(|detected| detected.layout);
    out.set_item("format", layout.map(|layout| layout.format.name()))?;
    out.set_item("byte_order", layout.map(|layout| layout.order.name()))?;
    out.set_item(
        "header_bank",
        layout.map(|layout| layout.header_bank.name()),
    )?;
    out.set_item(
        "detect_records",
        report.detected.map_or(0, |detected| detected.records),
    )?;
    out.set_item(
        "detect_verified",
        report.detected.map_or(0, |detected| detected.verified),
    )?;
    out.set_item("kexec", layout.as_ref().and_then(kexec_tuple))?;
    out.set_item("entries", report.findings.entries)?;
    out.set_item("end_offset", report.end_offset)?;
    out.set_item("next_index", report.next_index)?;
    out.set_item("next_line", report.next_line)?;
    out.set_item("trailing_bytes", report.trailing_bytes)?;
    out.set_item("padding_bytes", report.padding_bytes)?;
    let fault = report.fault.map(|fault| {
        let place = (fault.record_offset, fault.offset, fault.line);
        (place, fault.field, fault.reason, fault.truncated)
    });
    out.set_item("fault", fault)?;
    let templates = PyDict::new(py);
    for (name, count) in &report.templates {
        templates.set_item(String::from_utf8_lossy(name), count)?;
    }
    out.set_item("templates", templates)?;
    findings_into(py, &report.findings, &out)?;
    let registers: Vec<_> = report
        .registers
        .iter()
        .map(|r| register_tuple(py, r))
        .collect::<PyResult<_>>()?;
    out.set_item("registers", registers)?;
    Ok(out)
}

fn kexec_tuple(layout: &Layout) -> Option<(u64, u64)> {
    layout
        .kexec
        .map(|header| (header.buffer_bytes, header.count))
}

fn place_tuple(place: &Place) -> (u64, u64, u64) {
    (place.index, place.offset, place.line)
}

fn listed<'py, T, R>(
    py: Python<'py>,
    list: &Listed<T>,
    row: impl Fn(&T) -> R,
) -> PyResult<(u64, Bound<'py, PyList>)>
where
    R: IntoPyObject<'py>,
{
    Ok((
        list.count,
        PyList::new(py, list.items.iter().map(row).collect::<Vec<_>>())?,
    ))
}

fn findings_into(py: Python<'_>, found: &Findings, out: &Bound<'_, PyDict>) -> PyResult<()> {
    out.set_item("first", found.first)?;
    out.set_item("last", found.last)?;
    out.set_item("violations", listed(py, &found.violations, place_tuple)?)?;
    out.set_item("opaque", listed(py, &found.opaque, place_tuple)?)?;
    let bad = listed(py, &found.bad_hashes, |bad| {
        let (expected, got) = (PyBytes::new(py, &bad.expected), PyBytes::new(py, &bad.got));
        (place_tuple(&bad.place), expected, got)
    })?;
    out.set_item("bad_hashes", bad)?;
    let malformed = listed(py, &found.malformed, |malformed| {
        (
            place_tuple(&malformed.place),
            malformed.field,
            malformed.reason,
        )
    })?;
    out.set_item("malformed", malformed)?;
    let aggregates = listed(py, &found.boot_aggregates, |aggregate| {
        let algorithm = String::from_utf8_lossy(&aggregate.algorithm).into_owned();
        let digest = PyBytes::new(py, &aggregate.digest);
        (
            place_tuple(&aggregate.place),
            aggregate.pcr,
            algorithm,
            digest,
        )
    })?;
    out.set_item("boot_aggregates", aggregates)
}

fn register_tuple<'py>(py: Python<'py>, register: &Register) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("pcr", register.pcr)?;
    out.set_item("entries", register.entries)?;
    out.set_item("first", register.first.as_ref().map(place_tuple))?;
    let chains: Vec<_> = register
        .chains
        .iter()
        .map(|chain| chain_dict(py, chain))
        .collect::<PyResult<_>>()?;
    out.set_item("chains", chains)?;
    Ok(out)
}

fn value<'py>(py: Python<'py>, bank: Bank, digest: &Digest) -> Bound<'py, PyBytes> {
    PyBytes::new(py, digest.get(..bank.size()).unwrap_or(&[]))
}

fn chain_dict<'py>(py: Python<'py>, chain: &Chain) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("bank", chain.bank.name())?;
    out.set_item("rule", chain.rule.name())?;
    out.set_item("value", value(py, chain.bank, &chain.state))?;
    out.set_item("broken_at", chain.broken_at)?;
    out.set_item(
        "hit",
        chain
            .hit
            .as_ref()
            .map(|hit| hit_dict(py, hit))
            .transpose()?,
    )?;
    Ok(out)
}

fn hit_dict<'py>(py: Python<'py>, hit: &Hit) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("index", hit.index)?;
    out.set_item("offset", hit.offset)?;
    out.set_item("end", hit.end)?;
    out.set_item("line", hit.line)?;
    out.set_item("register_entries", hit.register_entries)?;
    let snapshot: Vec<_> = hit
        .snapshot
        .iter()
        .map(|(pcr, bank, rule, state)| (*pcr, bank.name(), rule.name(), value(py, *bank, state)))
        .collect();
    out.set_item("snapshot", snapshot)?;
    Ok(out)
}

/// Result of a search: entries, entries tried, and `(supposition, place, reached index)`.
type SearchResult = (u64, u64, Option<(&'static str, (u64, u64, u64), u64)>);

/// Search for one lost or misplaced extend that leads a chain to its target.
#[pyfunction]
#[pyo3(signature = (source, chain, *, known=(None, None, None), start=(0, 0, 1), end=None, only=None))]
pub fn ima_search(
    py: Python<'_>,
    source: Source,
    chain: ChainArg,
    known: Known,
    start: (u64, u64, u64),
    end: Option<u64>,
    only: Option<(String, u64)>,
) -> PyResult<SearchResult> {
    let options = options_of(&known, start)?;
    let spec = chain_of(&chain)?;
    let only = match only {
        None => None,
        Some((name, index)) => match name.as_str() {
            "dropped" => Some((Supposition::Dropped, index)),
            "swapped" => Some((Supposition::Swapped, index)),
            _ => return Err(unknown("supposition", &name)),
        },
    };
    let outcome = py.detach(|| {
        let mut search = Search::new(options, spec, only);
        source.drive(start.0, end, |piece, last| search.process(piece, last))?;
        Ok::<_, PyErr>(search.finish())
    })?;
    let found = outcome.found.map(|found| {
        (
            found.supposition.name(),
            place_tuple(&found.place),
            found.reached_index,
        )
    });
    Ok((outcome.entries, outcome.tried, found))
}

/// The digest of a message in a bank.
#[pyfunction]
pub fn ima_digest<'py>(
    py: Python<'py>,
    bank: &str,
    message: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let bank = bank_of(bank)?;
    let mut wanted = BankSet::default();
    wanted.insert(bank);
    let mut digests = Digests::default();
    digests.compute(wanted, message);
    Ok(PyBytes::new(py, digests.get(bank)))
}
