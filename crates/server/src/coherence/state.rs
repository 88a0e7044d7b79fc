//! The state of coherence: leases, claims, files opened for clients, the published index and watches, each with its own methods.

pub(crate) mod claims;
pub(crate) mod leases;
pub(crate) mod published;
pub(crate) mod through;
pub(crate) mod watch;
