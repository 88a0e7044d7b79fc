//! Whole runs with faults, and servers that come and go, simulated (see `clients.rs`).

mod backing;
mod clocks;
mod determinism;
mod draining;
mod experiment;
mod joining;
mod keeper;
mod large_writes;
mod leaving;
mod many;
mod moving;
mod sabotage;
mod seeds;
mod senders;
mod staging;
mod support;
