//! File data: reads, writes, appends, truncations, reserved and punched room.
//!
//! This part alone knows which chunks a request for data concerns, how data wait for memory and readers, and how a cut
//! reaches all servers that have data of the file. How a chunk is stored it leaves to `store`. It has no state of its own:
//! chunks are in the shards (`shards`), and their frames in the store.

mod append;
mod data;
mod space;
mod truncate;
