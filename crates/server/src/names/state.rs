//! The state of names and inodes: what the files here keep, they change by their own methods, without the server.

pub(crate) mod directories;
pub(crate) mod held;
pub(crate) mod lock_table;
pub(crate) mod moves;
pub(crate) mod namespace;
pub(crate) mod parts;
pub(crate) mod transactions;
pub(crate) mod turns;
pub(crate) mod unresolved;
pub(crate) mod untold;
