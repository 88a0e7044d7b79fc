//! The state of persistence: what the files here keep, they change by their own methods, without the server.

pub(crate) mod record;
