//! File data: reads, writes, appends, truncations, reserved and punched room.
//!
//! This part alone knows which chunks a request for data concerns, how data wait for memory and readers, and how a cut
//! reaches all servers that have data of the file, and which data are still in the volume's backing. How a chunk is stored it
//! leaves to `store`. Chunks are in the shards (`shards`), and their frames in the store.

mod append;
pub(crate) mod backing;
mod data;
mod drain;
mod evict;
mod space;
pub(crate) mod state;
mod truncate;
