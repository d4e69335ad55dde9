//! Static on-target program: launches and measures children, runs system call workloads.
fn main() {}
