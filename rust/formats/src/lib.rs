//! Pure readers of security logs: bytes in, typed rows out, with what was lost.
#![forbid(unsafe_code)]
pub mod ftrace;
pub mod ima;
pub mod journal;
pub mod policy;
