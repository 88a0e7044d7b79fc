//! What people write and read: failures, exit codes, sizes and durations.
//!
//! It alone knows which exit code a failure gives, which sentence tells it, how a size is written, and what happens when
//! standard output cannot be written. Rooms that do work for a user return a [`exit::Trouble`]; only the command line
//! prints one.

pub mod exit;
pub mod hex;
pub mod out;
pub mod size;
