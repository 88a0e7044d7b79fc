//! Coherence: what clients may believe without a request, and how they hear that it has changed.
//!
//! This part alone knows who has a lease or a claim of an inode, what clients of this
//! node have opened through this server, what stands in the published index that clients of this
//! node read, and who watches inodes for changes. A change of a shard tells it (`shards/logged.rs`), before any client
//! is answered.

mod leases;
pub(crate) mod state;
pub(crate) mod through;
