//! Hosts of a fleet whose list merely grew; the interpreter runs on meanwhile.
use std::path::PathBuf;

use excise_fleet::{follow, follow_hosts, HostState, Job, Judge, Names, Settings, Treatment};
use excise_formats::ima::{Bank, Digest};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::ima::digest_of;
use crate::policy::PolicyScreen;

/// The short way of hosts under some settings.
#[pyclass(module = "excise._core", frozen)]
pub struct FleetFollower {
    settings: Settings,
}

#[pymethods]
impl FleetFollower {
    /// `screen` is that of the policy; `wanted` says in words what evidence a host must have.
    #[new]
    #[pyo3(signature = (*, settings, wanted, max_list_bytes, violations, lists, pcrs, others, capture_endings, screen=None, lists_buffers=false))]
    #[allow(clippy::too_many_arguments)] // named, all of them
    fn new(
        settings: String,
        wanted: String,
        max_list_bytes: u64,
        violations: &str,
        lists: Vec<String>,
        pcrs: Vec<String>,
        others: Vec<String>,
        capture_endings: Vec<String>,
        screen: Option<PyRef<'_, PolicyScreen>>,
        lists_buffers: bool,
    ) -> PyResult<Self> {
        let violations = Treatment::from_name(violations)
            .ok_or_else(|| PyValueError::new_err(format!("unknown treatment: {violations}")))?;
        let judge = screen.map(|screen| Judge {
            screen: screen.screen(),
            lists_buffers,
            violations,
        });
        let names = Names {
            lists,
            pcrs,
            others,
            capture_endings,
        };
        Ok(FleetFollower {
            settings: Settings {
                names,
                name: settings,
                wanted,
                most_list_bytes: max_list_bytes,
                judge,
            },
        })
    }

    /// New states of hosts, given as `(host, folder, state)`; None for each that has to go the
    /// long way.
    fn follow_hosts<'py>(
        &self,
        py: Python<'py>,
        jobs: Vec<(String, PathBuf, PyBackedBytes)>,
        threads: usize,
    ) -> Vec<Option<Bound<'py, PyBytes>>> {
        let jobs: Vec<_> = jobs
            .into_iter()
            .map(|(host, folder, state)| Job {
                host,
                folder,
                state,
            })
            .collect();
        let found = py.detach(|| follow_hosts(&jobs, &self.settings, threads));
        let bytes = |state: Vec<u8>| PyBytes::new(py, &state);
        found.into_iter().map(|state| state.map(bytes)).collect()
    }

    /// What follows the checkpoint of a state in a list read from its last record on, as JSON.
    fn follow<'py>(
        &self,
        py: Python<'py>,
        tail: PyBackedBytes,
        state: PyBackedBytes,
        targets: Vec<(String, PyBackedBytes)>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut values: Vec<(Bank, Digest)> = Vec::new();
        for (name, value) in &targets {
            // Banks that no replay computes, and values of no bank, are for the long way to tell.
            let bank = Bank::from_name(name).filter(|bank| bank.name() == name);
            let Some(bank) = bank.filter(|bank| bank.size() == value.len()) else {
                return Ok(None);
            };
            values.push((bank, digest_of(bank, value)?));
        }
        let found = py.detach(|| {
            let before = HostState::decode(&state)?;
            let found = follow(
                &tail,
                before.checkpoint.as_ref()?,
                before.policy.as_ref(),
                &values,
                self.settings.judge.as_ref(),
                &self.settings.name,
            )?;
            serde_json::to_vec(&found).ok()
        });
        Ok(found.map(|found| PyBytes::new(py, &found)))
    }
}
