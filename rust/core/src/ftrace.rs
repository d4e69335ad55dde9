//! Function graphs: a path or bytes in, tables of columns out; the interpreter runs on meanwhile.
use excise_formats::ftrace::{
    lower, Graph, Losses, Options, Report, Row, Sums, Tables, NAMED_SYSCALL, NONE,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::ima::Source;

/// Read a function graph whole.
#[pyfunction]
#[pyo3(signature = (source, *, calls=0, paths=true))]
pub fn function_graph_read(
    py: Python<'_>,
    source: Source,
    calls: usize,
    paths: bool,
) -> PyResult<Bound<'_, PyDict>> {
    let report = py.detach(|| {
        let mut graph = Graph::new(Options { calls, paths });
        source.drive(0, None, |piece, last| graph.process(piece, last))?;
        Ok::<_, PyErr>(graph.finish())
    })?;
    report_dict(py, &report)
}

/// The one name of a system call, given by that of a function, an event or the call.
#[pyfunction]
pub fn canonical_syscall(name: &str) -> String {
    String::from_utf8_lossy(excise_formats::ftrace::canonical_syscall(name.as_bytes())).into_owned()
}

fn texts<'py, 'a>(
    py: Python<'py>,
    names: impl ExactSizeIterator<Item = &'a [u8]>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(
        py,
        names.map(|name| String::from_utf8_lossy(name).into_owned()),
    )
}

fn integers<'py>(py: Python<'py>, values: impl Iterator<Item = i64>) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = values.flat_map(i64::to_le_bytes).collect();
    PyBytes::new(py, &bytes)
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A number of a name, a CPU or a row; -1 for none.
fn number(value: u32) -> i64 {
    if value == NONE {
        -1
    } else {
        i64::from(value)
    }
}

fn optional(value: Option<u64>) -> i64 {
    value.map_or(-1, whole)
}

/// Columns of sums; a minimum of -1 says that there was no duration.
fn sums_into<'a, I>(py: Python<'_>, out: &Bound<'_, PyDict>, before: &str, sums: I) -> PyResult<()>
where
    I: Iterator<Item = &'a Sums> + Clone,
{
    type Field = (&'static str, fn(&Sums) -> u64);
    const FIELDS: [Field; 9] = [
        ("calls", |sums| sums.calls),
        ("timed", |sums| sums.timed),
        ("total_ns", |sums| sums.total_ns),
        ("self_ns", |sums| sums.self_ns),
        ("interrupt_ns", |sums| sums.interrupt_ns),
        ("off_cpu_ns", |sums| sums.off_cpu_ns),
        ("disturbed", |sums| sums.disturbed),
        ("lossy", |sums| sums.lossy),
        ("max_ns", |sums| sums.max_ns),
    ];
    for (name, field) in FIELDS {
        let values = sums.clone().map(|sums| whole(field(sums)));
        out.set_item(format!("{before}{name}"), integers(py, values))?;
    }
    let least = sums.map(|sums| {
        if sums.timed == 0 {
            -1
        } else {
            whole(sums.min_ns)
        }
    });
    out.set_item(format!("{before}min_ns"), integers(py, least))
}

fn report_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let names = &report.tables.names;
    let all: Vec<&[u8]> = names.iter().collect();
    out.set_item("names", texts(py, all.into_iter())?)?;
    out.set_item("named_syscall", NAMED_SYSCALL)?;
    out.set_item("functions", functions(py, &report.tables)?)?;
    out.set_item("histogram", histogram(py, &report.tables)?)?;
    out.set_item("contexts", contexts(py, &report.tables)?)?;
    out.set_item("paths", paths(py, &report.tables)?)?;
    out.set_item("calls", calls(py, &report.tables)?)?;
    out.set_item("calls_left_out", report.calls_left_out)?;
    out.set_item("lines", report.lines)?;
    out.set_item("bytes", report.bytes)?;
    out.set_item("function_lines", report.functions)?;
    out.set_item("begun", report.begun)?;
    out.set_item("times", report.times)?;
    out.set_item("raw_syscalls", report.raw_syscalls)?;
    out.set_item("event_lines", report.event_lines)?;
    out.set_item("ticks", report.ticks)?;
    out.set_item("called", report.called)?;
    out.set_item("with_task", report.with_task)?;
    out.set_item("with_cpu", report.with_cpu)?;
    let events = PyDict::new(py);
    for (name, count) in &report.events {
        events.set_item(String::from_utf8_lossy(name), count)?;
    }
    out.set_item("events", events)?;
    out.set_item("callers", callers(py, report)?)?;
    losses_into(&report.losses, &out)?;
    Ok(out)
}

fn callers<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let all = || report.callers.iter();
    out.set_item(
        "function",
        integers(py, all().map(|(key, _)| number(key.0))),
    )?;
    out.set_item("caller", integers(py, all().map(|(key, _)| number(key.1))))?;
    out.set_item("calls", integers(py, all().map(|(_, count)| whole(*count))))?;
    Ok(out)
}

fn used(tables: &Tables) -> impl Iterator<Item = &Row> + Clone {
    // A row that a search made and nothing was counted in says nothing.
    tables
        .rows
        .iter()
        .filter(|row| row.sums.calls > 0 || row.ends.calls > 0)
}

fn functions<'py>(py: Python<'py>, tables: &Tables) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item(
        "context",
        integers(py, used(tables).map(|row| number(row.context))),
    )?;
    out.set_item(
        "name",
        integers(py, used(tables).map(|row| number(row.name))),
    )?;
    sums_into(py, &out, "", used(tables).map(|row| &row.sums))?;
    sums_into(py, &out, "ends_", used(tables).map(|row| &row.ends))?;
    Ok(out)
}

/// Rows of `functions` by position, with the bounds of each bucket in use.
fn histogram<'py>(py: Python<'py>, tables: &Tables) -> PyResult<Bound<'py, PyDict>> {
    let cells: Vec<(i64, u16, u64)> = used(tables)
        .zip(0i64..)
        .flat_map(|(row, at)| {
            row.histogram
                .buckets()
                .map(move |(bucket, count)| (at, bucket, count))
        })
        .collect();
    let out = PyDict::new(py);
    out.set_item("row", integers(py, cells.iter().map(|cell| cell.0)))?;
    let from = cells.iter().map(|cell| whole(lower(cell.1)));
    out.set_item("from_ns", integers(py, from))?;
    let to = cells
        .iter()
        .map(|cell| whole(lower(cell.1.saturating_add(1))));
    out.set_item("to_ns", integers(py, to))?;
    out.set_item(
        "count",
        integers(py, cells.iter().map(|cell| whole(cell.2))),
    )?;
    Ok(out)
}

fn contexts<'py>(py: Python<'py>, tables: &Tables) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let all = || tables.contexts.iter();
    out.set_item("task", integers(py, all().map(|row| number(row.task))))?;
    out.set_item("cpu", integers(py, all().map(|row| number(row.cpu))))?;
    out.set_item(
        "syscall",
        integers(py, all().map(|row| i64::from(row.syscall))),
    )?;
    out.set_item("entered", integers(py, all().map(|row| whole(row.entered))))?;
    out.set_item("timed", integers(py, all().map(|row| whole(row.timed))))?;
    out.set_item(
        "total_ns",
        integers(py, all().map(|row| whole(row.total_ns))),
    )?;
    let least = all().map(|row| {
        if row.timed == 0 {
            -1
        } else {
            whole(row.min_ns)
        }
    });
    out.set_item("min_ns", integers(py, least))?;
    out.set_item("max_ns", integers(py, all().map(|row| whole(row.max_ns))))?;
    Ok(out)
}

fn paths<'py>(py: Python<'py>, tables: &Tables) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let all = || tables.paths.iter();
    out.set_item("parent", integers(py, all().map(|row| number(row.parent))))?;
    out.set_item("name", integers(py, all().map(|row| number(row.name))))?;
    out.set_item(
        "syscall",
        integers(py, all().map(|row| i64::from(row.syscall))),
    )?;
    sums_into(py, &out, "", all().map(|row| &row.sums))?;
    Ok(out)
}

fn calls<'py>(py: Python<'py>, tables: &Tables) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    let all = || tables.calls.iter();
    out.set_item("parent", integers(py, all().map(|row| number(row.parent))))?;
    out.set_item("depth", integers(py, all().map(|row| number(row.depth))))?;
    out.set_item("name", integers(py, all().map(|row| number(row.name))))?;
    out.set_item(
        "context",
        integers(py, all().map(|row| number(row.context))),
    )?;
    out.set_item("line", integers(py, all().map(|row| whole(row.line))))?;
    out.set_item(
        "time_ns",
        integers(py, all().map(|row| optional(row.time_ns))),
    )?;
    let durations = all().map(|row| optional(row.call.duration_ns));
    out.set_item("duration_ns", integers(py, durations))?;
    let own = all().map(|row| optional(row.call.duration_ns.map(|_| row.call.self_ns())));
    out.set_item("self_ns", integers(py, own))?;
    let interrupts = all().map(|row| whole(row.call.interrupt_ns));
    out.set_item("interrupt_ns", integers(py, interrupts))?;
    out.set_item(
        "off_cpu_ns",
        integers(py, all().map(|row| whole(row.call.off_cpu_ns))),
    )?;
    out.set_item(
        "switched",
        integers(py, all().map(|row| i64::from(row.call.switched))),
    )?;
    out.set_item(
        "lossy",
        integers(py, all().map(|row| i64::from(row.call.lossy))),
    )?;
    out.set_item("seen", integers(py, all().map(|row| i64::from(row.seen))))?;
    out.set_item("extra", integers(py, all().map(|row| number(row.extra))))?;
    Ok(out)
}

fn losses_into(losses: &Losses, out: &Bound<'_, PyDict>) -> PyResult<()> {
    let faults: Vec<(&str, u64)> = losses
        .faults
        .iter()
        .map(|(fault, count)| (fault.reason(), *count))
        .collect();
    out.set_item("faults", faults)?;
    let shown: Vec<(u64, &str, String)> = losses
        .shown
        .iter()
        .map(|(line, fault, text)| {
            let text = String::from_utf8_lossy(text).into_owned();
            (*line, fault.reason(), text)
        })
        .collect();
    out.set_item("shown", shown)?;
    let lost: Vec<(u32, u64, u64)> = losses
        .lost
        .iter()
        .map(|(cpu, (events, gaps))| (*cpu, *events, *gaps))
        .collect();
    out.set_item("lost", lost)?;
    out.set_item("overwritten", losses.overwritten)?;
    out.set_item("overruns", losses.overruns)?;
    out.set_item("unclosed", losses.unclosed)?;
    out.set_item("negative", losses.negative)?;
    out.set_item("lone_returns", losses.lone_returns)?;
    out.set_item("unparsed", losses.unparsed)?;
    out.set_item("no_room", losses.no_room)
}
