//! Reference digests: sources in, one immutable table out; reading leaves the interpreter free.
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use excise_formats::policy::{
    read_keylime, ChecksumReader, DigestTable as Table, DigestTableBuilder as Builder, PolicyError,
    Screen, Verdict,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::ima::Source;

/// Turn a fault into `excise.errors.FormatError`.
fn format_error(py: Python<'_>, error: &PolicyError) -> PyErr {
    let build = || {
        let kwargs = PyDict::new(py);
        kwargs.set_item("line", error.line)?;
        kwargs.set_item("offset", error.offset)?;
        kwargs.set_item("field", error.field)?;
        let class = py.import("excise.errors")?.getattr("FormatError")?;
        class.call((error.reason.as_str(),), Some(&kwargs))
    };
    match build() {
        Ok(value) => PyErr::from_value(value),
        Err(other) => other,
    }
}

fn with_reader<T>(source: &Source, read: impl FnOnce(&mut dyn Read) -> T) -> std::io::Result<T> {
    match source {
        Source::Bytes(bytes) => Ok(read(&mut &bytes[..])),
        Source::Path(path) => Ok(read(&mut BufReader::with_capacity(
            256 << 10,
            File::open(path)?,
        ))),
    }
}

/// Pairs of path and digest under way.
#[pyclass(module = "excise._core")]
pub struct DigestTableBuilder {
    inner: Option<Builder>,
}

impl DigestTableBuilder {
    fn open(&mut self) -> PyResult<&mut Builder> {
        let finished = || PyRuntimeError::new_err("the table is finished");
        self.inner.as_mut().ok_or_else(finished)
    }
}

#[pymethods]
impl DigestTableBuilder {
    #[new]
    fn new() -> Self {
        DigestTableBuilder {
            inner: Some(Builder::default()),
        }
    }

    /// Add one pair.
    fn add(&mut self, py: Python<'_>, name: &[u8], algorithm: &str, digest: &[u8]) -> PyResult<()> {
        self.open()?
            .push(name, algorithm, digest)
            .map_err(|reason| {
                let error = PolicyError {
                    reason,
                    line: None,
                    offset: None,
                    field: "digest",
                };
                format_error(py, &error)
            })
    }

    /// Read a checksum list: `(digests, blank lines, comments, relative names)`.
    #[pyo3(signature = (source, *, root=None))]
    fn read_checksums(
        &mut self,
        py: Python<'_>,
        source: Source,
        root: Option<PyBackedBytes>,
    ) -> PyResult<(u64, u64, u64, u64)> {
        let root = root.map(|root| root.to_vec());
        let builder = self.open()?;
        let read = py.detach(|| {
            let mut reader = ChecksumReader::new(builder, root);
            source.drive(0, None, |piece, last| reader.process(piece, last))?;
            Ok::<_, PyErr>(reader.finish())
        })?;
        match read {
            Ok(counts) => Ok((
                counts.digests,
                counts.blank,
                counts.comments,
                counts.relative,
            )),
            Err(error) => Err(format_error(py, &error)),
        }
    }

    /// Read a keylime policy: `(the other members as JSON, digests)`.
    fn read_keylime(&mut self, py: Python<'_>, source: Source) -> PyResult<(String, u64)> {
        let builder = self.open()?;
        let read = py.detach(|| with_reader(&source, |reader| read_keylime(reader, builder)))?;
        match read {
            Ok((rest, digests)) => Ok((serde_json::Value::Object(rest).to_string(), digests)),
            Err(error) => Err(format_error(py, &error)),
        }
    }

    /// Sort the pairs into a table; nothing can be added after.
    fn finish(&mut self, py: Python<'_>) -> PyResult<DigestTable> {
        let finished = || PyRuntimeError::new_err("the table is finished");
        let builder = self.inner.take().ok_or_else(finished)?;
        Ok(DigestTable {
            inner: Arc::new(py.detach(|| builder.finish())),
        })
    }
}

/// Pairs of path and digest, sorted; nothing changes them.
#[pyclass(module = "excise._core", frozen)]
pub struct DigestTable {
    inner: Arc<Table>,
}

const fn code(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Allowed => 0,
        Verdict::Differs => 1,
        Verdict::OtherAlgorithm => 2,
        Verdict::Unknown => 3,
    }
}

#[pymethods]
impl DigestTable {
    /// What the table says: 0 allowed, 1 digest differs, 2 other algorithms only, 3 unknown path.
    fn lookup(&self, name: &[u8], algorithm: &str, digest: &[u8]) -> u8 {
        code(self.inner.lookup(name, algorithm, digest))
    }

    /// Digests listed for a path.
    fn expected<'py>(
        &self,
        py: Python<'py>,
        name: &[u8],
        algorithm: &str,
    ) -> Vec<Bound<'py, PyBytes>> {
        let listed = self.inner.expected(name, algorithm);
        listed.into_iter().map(|d| PyBytes::new(py, d)).collect()
    }

    /// Whether any path has this digest; reads the whole table.
    fn holds_digest(&self, py: Python<'_>, algorithm: &str, digest: &[u8]) -> bool {
        py.detach(|| self.inner.holds_digest(algorithm, digest))
    }

    /// Each algorithm with its number of pairs and of paths.
    fn counts(&self) -> Vec<(&str, usize, usize)> {
        self.inner.counts()
    }

    /// Bytes of memory the table takes.
    #[getter]
    fn memory_bytes(&self) -> usize {
        self.inner.memory_bytes()
    }

    /// Number of pairs.
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    /// SHA-256 of the table with a description.
    fn digest<'py>(&self, py: Python<'py>, meta: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let digest = py.detach(|| self.inner.write_to(meta, &mut std::io::sink()))?;
        Ok(PyBytes::new(py, &digest))
    }

    /// Write the table with a description to a file; returns the digest of both.
    fn save<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        meta: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let digest = py.detach(|| {
            let mut file = BufWriter::new(File::create(path)?);
            let digest = self.inner.write_to(meta, &mut file)?;
            file.flush()?;
            file.get_ref().sync_all()?;
            Ok::<_, std::io::Error>(digest)
        })?;
        Ok(PyBytes::new(py, &digest))
    }

    /// Read a compiled file: the table, its description, the digest of both.
    #[staticmethod]
    fn load(
        py: Python<'_>,
        source: Source,
    ) -> PyResult<(DigestTable, Bound<'_, PyBytes>, Bound<'_, PyBytes>)> {
        let read =
            py.detach(|| with_reader(&source, |mut reader| Table::read_from(&mut reader)))?;
        match read {
            Ok((table, meta, digest)) => {
                let table = DigestTable {
                    inner: Arc::new(table),
                };
                Ok((table, PyBytes::new(py, &meta), PyBytes::new(py, &digest)))
            }
            Err(error) => Err(format_error(py, &error)),
        }
    }
}

/// What of a list needs no judgement by a policy; see `ImaRows`.
#[pyclass(module = "excise._core", frozen)]
pub struct PolicyScreen {
    inner: Screen,
}

impl PolicyScreen {
    pub fn screen(&self) -> Screen {
        self.inner.clone()
    }
}

#[pymethods]
impl PolicyScreen {
    #[new]
    #[pyo3(signature = (table, *, prefixes=Vec::new(), digest_suffices=false, verifies_signatures=false, signature_hashes=Vec::new()))]
    fn new(
        table: Option<PyRef<'_, DigestTable>>,
        prefixes: Vec<PyBackedBytes>,
        digest_suffices: bool,
        verifies_signatures: bool,
        signature_hashes: Vec<u8>,
    ) -> Self {
        PolicyScreen {
            inner: Screen {
                table: table.map(|table| Arc::clone(&table.inner)),
                prefixes: prefixes.iter().map(|prefix| prefix.to_vec()).collect(),
                digest_suffices,
                verifies_signatures,
                signature_hashes,
            },
        }
    }
}
