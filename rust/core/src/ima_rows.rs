//! Rows of a measurement list, in batches of columns.
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use excise_formats::ima::hash::Digests;
use excise_formats::ima::{fields_of, Format, Found, Framer, Layout, Record, Row, Step};
use excise_formats::policy::{Screen, Settled};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::ima::{options_of, Known, Source};
use crate::policy::PolicyScreen;

const BUFFER_BYTES: usize = 256 << 10;
/// Entries looked at in one call, however few of them become rows: between calls, Ctrl-C is heard.
const ENTRIES_A_CALL: usize = 1 << 20;

/// Format, byte order, header bank, and the kexec header's bytes and count.
type LayoutTuple = (&'static str, &'static str, &'static str, Option<(u64, u64)>);
/// Place of the record (its offset, the fault's, line), field, reason, truncated.
type FaultTuple = ((u64, u64, u64), &'static str, &'static str, bool);

/// Input that is read as rows are asked for.
enum Input {
    Bytes(PyBackedBytes),
    File {
        file: File,
        left: u64,
        buffer: Vec<u8>,
        filled: usize,
        eof: bool,
    },
}

impl Input {
    fn data(&self, end: Option<u64>) -> (&[u8], bool) {
        match self {
            Input::Bytes(bytes) => {
                let to = end
                    .and_then(|end| usize::try_from(end).ok())
                    .unwrap_or(usize::MAX);
                (bytes.get(..to.min(bytes.len())).unwrap_or(&[]), true)
            }
            Input::File {
                buffer,
                filled,
                eof,
                ..
            } => (buffer.get(..*filled).unwrap_or(&[]), *eof),
        }
    }

    /// Drop the first `used` bytes, and read more.
    fn refill(&mut self, used: usize) -> std::io::Result<()> {
        let Input::File {
            file,
            left,
            buffer,
            filled,
            eof,
        } = self
        else {
            return Ok(());
        };
        buffer.copy_within(used..*filled, 0);
        *filled = filled.saturating_sub(used);
        if *filled == buffer.len() {
            buffer.resize(buffer.len().saturating_mul(2), 0);
        }
        let room = buffer.get_mut(*filled..).unwrap_or(&mut []);
        let want = room.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
        let got = loop {
            match file.read(room.get_mut(..want).unwrap_or(&mut [])) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        *filled = filled.saturating_add(got);
        *left = left.saturating_sub(got as u64);
        *eof = got == 0;
        Ok(())
    }
}

/// Columns of a batch, in the order in which Python takes them.
struct Columns<'py> {
    lists: Vec<Bound<'py, PyList>>,
}

/// Number of columns.
const COLUMNS: usize = 17;

impl<'py> Columns<'py> {
    fn new(py: Python<'py>) -> Self {
        Columns {
            lists: (0..COLUMNS).map(|_| PyList::empty(py)).collect(),
        }
    }

    fn push(&self, py: Python<'py>, record: &Record<'_>, row: &Row<'_>) -> PyResult<()> {
        let bytes = |value: &[u8]| PyBytes::new(py, value).into_any();
        let optional = |value: Option<&[u8]>| match value {
            Some(value) => bytes(value),
            None => py.None().into_bound(py),
        };
        let text = |value: &[u8]| PyString::new(py, &String::from_utf8_lossy(value)).into_any();
        let others = if row.others.is_empty() {
            py.None().into_bound(py)
        } else {
            let dict = PyDict::new(py);
            for (field, value) in &row.others {
                dict.set_item(field.id(), bytes(value))?;
            }
            dict.into_any()
        };
        let number = |value: u64| value.into_pyobject(py).map(Bound::into_any);
        let fault = row
            .fault
            .map(|fault| format!("{}: {}", fault.field, fault.reason));
        let values: [Bound<'py, PyAny>; COLUMNS] = [
            number(record.index)?,
            number(record.offset)?,
            number(record.end)?,
            number(record.line)?,
            number(u64::from(record.pcr))?,
            text(record.template_name),
            bytes(record.template_hash),
            text(row.digest.kind),
            text(row.digest.algorithm),
            bytes(row.digest.digest),
            optional(row.name),
            optional(row.signature),
            optional(row.buf),
            others,
            record
                .is_violation()
                .into_pyobject(py)?
                .to_owned()
                .into_any(),
            row.hash_matches.into_pyobject(py)?.into_any(),
            fault.into_pyobject(py)?.into_any(),
        ];
        for (list, value) in self.lists.iter().zip(values) {
            list.append(value)?;
        }
        Ok(())
    }
}

/// Rows of a list, read as they are asked for.
#[pyclass(module = "excise._core")]
pub struct ImaRows {
    input: Input,
    end: Option<u64>,
    pos: usize,
    framer: Framer,
    layout: Option<Layout>,
    digests: Digests,
    ended: bool,
    pcr: Option<u32>,
    screen: Option<Screen>,
    settled: Settled,
}

#[pymethods]
impl ImaRows {
    /// Open a list at an offset; entries of other PCRs than `pcr`, and those that `screen` settles,
    /// do not become rows.
    #[new]
    #[pyo3(signature = (source, *, known=(None, None, None), start=(0, 0, 1), end=None, pcr=None, screen=None))]
    fn new(
        source: Source,
        known: Known,
        start: (u64, u64, u64),
        end: Option<u64>,
        pcr: Option<u32>,
        screen: Option<PyRef<'_, PolicyScreen>>,
    ) -> PyResult<Self> {
        let framer = Framer::new(options_of(&known, start)?);
        let (input, pos) = match source {
            Source::Bytes(bytes) => {
                let pos = usize::try_from(start.0)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                (Input::Bytes(bytes), pos)
            }
            Source::Path(path) => {
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(start.0))?;
                let left = end.map_or(u64::MAX, |end| end.saturating_sub(start.0));
                let buffer = vec![0; BUFFER_BYTES];
                (
                    Input::File {
                        file,
                        left,
                        buffer,
                        filled: 0,
                        eof: false,
                    },
                    0,
                )
            }
        };
        let digests = Digests::default();
        Ok(ImaRows {
            input,
            end,
            pos,
            framer,
            layout: None,
            digests,
            ended: false,
            pcr,
            screen: screen.map(|screen| screen.screen()),
            settled: Settled::default(),
        })
    }

    /// The next rows, at most `count`, as columns; fewer or none also where entries are left out.
    fn next_batch<'py>(
        &mut self,
        py: Python<'py>,
        count: usize,
    ) -> PyResult<Vec<Bound<'py, PyList>>> {
        let columns = Columns::new(py);
        let (mut rows, mut entries) = (0usize, 0usize);
        while rows < count && entries < ENTRIES_A_CALL && !self.ended {
            let (data, last) = self.input.data(self.end);
            let layout = match self.layout {
                Some(layout) => layout,
                None => match self.framer.find_layout(data, &mut self.pos, last) {
                    Found::Layout(layout) => *self.layout.insert(layout),
                    Found::Nothing => {
                        self.ended = true;
                        continue;
                    }
                    Found::More => {
                        self.refill()?;
                        continue;
                    }
                },
            };
            match self.framer.step(data, &mut self.pos, last) {
                Step::Record(record) => {
                    entries = entries.saturating_add(1);
                    if self.pcr.is_some_and(|pcr| pcr != record.pcr) {
                        continue;
                    }
                    let mut row = fields_of(&record, &layout);
                    if let Some(screen) = &self.screen {
                        if screen.settles(&record, &row, &mut self.settled) {
                            continue;
                        }
                    }
                    row.compare_hash(&record, &layout, &mut self.digests);
                    columns.push(py, &record, &row)?;
                    rows = rows.saturating_add(1);
                }
                Step::End => self.ended = true,
                Step::More => self.refill()?,
            }
        }
        Ok(columns.lists)
    }

    /// Whether there are no more rows.
    #[getter]
    const fn ended(&self) -> bool {
        self.ended
    }

    /// Entries that the screen settled: `(allowed, excluded, without signature, unknown key, files)`.
    #[getter]
    const fn settled(&self) -> (u64, u64, u64, u64, u64) {
        let Settled {
            allowed,
            excluded,
            without_signature,
            unknown_key,
            files,
        } = self.settled;
        (allowed, excluded, without_signature, unknown_key, files)
    }

    /// `(format, byte order, header bank, kexec header)`, once a batch was read.
    #[getter]
    fn layout(&self) -> Option<LayoutTuple> {
        self.layout.map(|layout| {
            let kexec = layout
                .kexec
                .map(|header| (header.buffer_bytes, header.count));
            (
                layout.format.name(),
                layout.order.name(),
                layout.header_bank.name(),
                kexec,
            )
        })
    }

    /// Offset after the last row that was read.
    #[getter]
    fn offset(&self) -> u64 {
        self.framer.offset()
    }

    /// Why reading stopped: `((record offset, offset, line), field, reason, truncated)`.
    #[getter]
    fn fault(&self) -> Option<FaultTuple> {
        self.framer.fault().map(|fault| {
            let place = (fault.record_offset, fault.offset, fault.line);
            (place, fault.field, fault.reason, fault.truncated)
        })
    }

    /// Whether names are ambiguous: the list is text, which the kernel does not escape.
    #[getter]
    fn names_ambiguous(&self) -> bool {
        self.layout
            .is_some_and(|layout| layout.format == Format::Ascii)
    }
}

impl ImaRows {
    fn refill(&mut self) -> std::io::Result<()> {
        let used = std::mem::take(&mut self.pos);
        self.input.refill(used)
    }
}
