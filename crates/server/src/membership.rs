//! Membership: which servers make up the volume, and which processes use it.
//!
//! This part alone knows how a server starts, joins and stops, how the keeper decides on the shard map and the
//! namespace epoch, how another server is asked, when a session begins and ends, and what each job asks for.

mod activity;
mod comeback;
mod enter;
mod give;
mod group;
mod keeper;
mod leave;
pub(crate) mod members;
mod moves;
mod paths;
mod peers;
mod sessions;
pub(crate) mod state;
mod take;
mod takeover;
