//! The only room that knows what bytes on a device mean: chunks, checksums, journal.
//!
//! A [`ChunkShard`] keeps the chunks that fall into one shard, in frames of a slab that all
//! shards of a server share ([`Store`]), each block beside the checksum that its writer gave.
//! Which shard a chunk belongs to, how large files are and who may read them it deliberately
//! does not know: those are the secrets of `proto`, `meta` and the server.

mod chunk;
pub mod disk;
pub mod error;
mod fence;
pub mod shard;
mod staged;

pub use error::StoreError;
pub use shard::{ChunkShard, Held, Kept, ReadOut, SeekFrom};
pub use staged::Staged;

use aze_io::slab::Slab;
use fence::Fences;
use parking_lot::Mutex;
use std::sync::Arc;

/// What the shards of one server share: the memory, and the memory of files that are gone.
pub struct Store {
    slab: Arc<Slab>,
    fences: Mutex<Fences>,
}

impl Store {
    /// A store that keeps its data in the slab given.
    pub fn new(slab: Arc<Slab>) -> Arc<Store> {
        Arc::new(Store { slab, fences: Mutex::default() })
    }

    /// Bytes that it can hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.slab.capacity_bytes()
    }

    /// Bytes of frames in use; more than the bytes stored, since frames have three sizes only.
    pub fn used_bytes(&self) -> u64 {
        self.slab.used_bytes()
    }

    /// Bytes of memory that the system has given so far.
    pub fn touched_bytes(&self) -> u64 {
        self.slab.touched_bytes()
    }
}
