//! PyO3 glue between the pure crates and Python: bytes in, columns or plain values out.
use pyo3::prelude::*;

mod fleet;
mod ftrace;
mod ima;
mod ima_rows;
mod journal;
mod policy;

/// Native readers and replay; private, wrapped by `excise.formats` and `excise.evidence`.
#[pymodule]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::fleet::FleetFollower;
    #[pymodule_export]
    use crate::ftrace::canonical_syscall;
    #[pymodule_export]
    use crate::ftrace::function_graph_read;
    #[pymodule_export]
    use crate::ima::ima_digest;
    #[pymodule_export]
    use crate::ima::ima_replay;
    #[pymodule_export]
    use crate::ima::ima_search;
    #[pymodule_export]
    use crate::ima_rows::ImaRows;
    #[pymodule_export]
    use crate::journal::journal_read;
    #[pymodule_export]
    use crate::policy::DigestTable;
    #[pymodule_export]
    use crate::policy::DigestTableBuilder;
    #[pymodule_export]
    use crate::policy::PolicyScreen;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
