//! Persistence: what a server writes down so that the volume comes back.
//!
//! This part alone knows when a change is safe, and how a volume is made again from what its servers wrote down. Every
//! change of a shard is a record of this server's one journal, added under the lock of the shard (`shards/logged.rs`), so
//! that its order is the order of the changes. Two rules make it a promise:
//!
//! - An answer goes out when the records of everything that it rests on are written (`gate`).
//! - A record that another server is told of and builds upon is durable first: so even if each of
//!   them loses the end of its journal in a power cut, no entry is left that leads nowhere, no
//!   file without the name that it had, and no synced change is missing.
//!
//! A volume comes back as a whole: all servers read their storage (`state/image.rs`), join as at the first
//! start, and resolve interrupted operations between them (`resolve`) before the first client is served.

mod again;
pub(crate) mod check;
mod checkpoint;
mod gate;
pub(crate) mod opening;
mod promises;
pub(crate) mod resolve;
mod room;
mod settle;
mod starts;
pub(crate) mod state;
pub(crate) mod storage;
mod without;
