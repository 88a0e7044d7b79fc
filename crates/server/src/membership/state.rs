//! The state of membership: what the files here keep, they change by their own methods, without the server.

pub(crate) mod activity;
pub(crate) mod group;
pub(crate) mod keeper;
pub(crate) mod moving;
pub(crate) mod pieces;
pub(crate) mod progress;
pub(crate) mod recent;
pub(crate) mod sessions;
