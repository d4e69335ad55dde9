//! PyO3 glue between the pure crates and Python: bytes in, columns or plain values out.
use pyo3::prelude::*;

/// Native readers and replay; private, wrapped by `excise.formats` and `excise.evidence`.
#[pymodule]
mod _core {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
