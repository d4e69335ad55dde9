//! Text of the kernel's function_graph tracer: what each function took, by task, CPU, system call
//! and path, with what was lost; one pass, and memory that follows the number of functions.

mod body;
mod calls;
mod columns;
mod event_line;
mod events;
mod fields;
mod graph;
mod histogram;
mod index;
mod line;
mod rows;
mod syscalls;
mod tasks;

pub use fields::{Body, Extra, Fields, Line};
pub use graph::{Fault, Graph, Losses, Options, Report, MAX_LINE_BYTES};
pub use histogram::{bucket, lower, Histogram};
pub use index::Names;
pub use line::parse;
pub use rows::{
    Call, CallRow, Class, Context, Path, Row, Sums, Tables, IN_INTERRUPT, MAX_ROWS, NAMED_SYSCALL,
    NONE, NO_SYSCALL, OTHER,
};

pub use syscalls::canonical as canonical_syscall;

#[cfg(test)]
mod tests;
