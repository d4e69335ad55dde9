//! Hosts whose measurement list merely grew, as those of nearly all hosts in nearly all rounds.
//!
//! The evidence is asked everything that the long way, in Python, asks: every entry is replayed and
//! looked up, and the same checks are written, word for word. What is left out is the work of telling
//! what went wrong. A host of which anything is out of the common has no answer here: only the long
//! way, `excise.fleet.host`, fails a host.
pub mod folder;
pub mod follow;
pub mod host;
pub mod pcrs;
pub mod policy;
pub mod state;

pub use folder::Names;
pub use follow::{follow, Followed};
pub use host::{follow_hosts, Job, Settings};
pub use policy::{Judge, Treatment};
pub use state::HostState;
