//! Journal lines as columns; reading leaves the interpreter free.
use excise_formats::journal::{read, Events, Fixed, Names, Runs, Tables, RUN_INTEGERS};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

/// Values, one byte a value that tells whether it is there (None: all are), and texts of names.
type Column<'py> = (
    Bound<'py, PyBytes>,
    Option<Bound<'py, PyBytes>>,
    Option<Vec<String>>,
);

fn column<'py>(py: Python<'py>, fixed: &Fixed) -> Column<'py> {
    let valid = (fixed.nulls > 0).then(|| PyBytes::new(py, &fixed.valid));
    (PyBytes::new(py, &fixed.values), valid, None)
}

fn names<'py>(py: Python<'py>, names: &Names) -> Column<'py> {
    let (codes, valid, _) = column(py, &names.codes);
    (codes, valid, Some(names.texts.clone()))
}

fn runs<'py>(py: Python<'py>, runs: &Runs) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, fixed) in RUN_INTEGERS.iter().zip(&runs.integers) {
        columns.set_item(name, column(py, fixed))?;
    }
    for (name, each) in ["task", "configuration", "phase"].iter().zip(&runs.names) {
        columns.set_item(name, names(py, each))?;
    }
    for (name, fixed) in ["timed_out", "ok"].iter().zip(&runs.booleans) {
        columns.set_item(name, column(py, fixed))?;
    }
    let floats = [
        "op_ns",
        "first_op_ns",
        "op_instructions",
        "first_op_instructions",
    ];
    for (name, fixed) in floats.iter().zip(&runs.floats) {
        columns.set_item(name, column(py, fixed))?;
    }
    Ok(columns)
}

fn events<'py>(py: Python<'py>, events: &Events) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for (name, fixed) in ["sequence", "start_ns"].iter().zip(&events.integers) {
        columns.set_item(name, column(py, fixed))?;
    }
    let texts = ["layer", "event", "parent", "labels", "unit"];
    for (name, each) in texts.iter().zip(&events.names) {
        columns.set_item(name, names(py, each))?;
    }
    columns.set_item("value", column(py, &events.value))?;
    Ok(columns)
}

fn dictionary<'py>(py: Python<'py>, tables: &Tables) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("lines", tables.lines)?;
    found.set_item("runs", runs(py, &tables.runs)?)?;
    found.set_item("events", events(py, &tables.events)?)?;
    found.set_item("op_ns", PyBytes::new(py, &tables.runs.op_ns.values))?;
    let others: Vec<_> = tables
        .others
        .iter()
        .map(|place| (place.index, place.start, place.end))
        .collect();
    found.set_item("others", others)?;
    Ok(found)
}

/// Read whole journal lines; `excise.errors.FormatError` names the first line that is none.
#[pyfunction]
pub fn journal_read<'py>(
    py: Python<'py>,
    lines: PyBackedBytes,
    with_batches: bool,
) -> PyResult<Bound<'py, PyDict>> {
    match py.detach(|| read(&lines, with_batches)) {
        Ok(tables) => dictionary(py, &tables),
        Err(fault) => {
            let kwargs = PyDict::new(py);
            kwargs.set_item("line", fault.index + 1)?;
            let reason = format!("is not a journal record: {}", fault.reason);
            let class = py.import("excise.errors")?.getattr("FormatError")?;
            Err(PyErr::from_value(class.call((reason,), Some(&kwargs))?))
        }
    }
}
