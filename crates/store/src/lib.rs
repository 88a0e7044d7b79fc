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
pub mod scrub;
pub mod shard;
mod spill;
mod staged;

pub use error::StoreError;
pub use scrub::{Look, Looked};
pub use shard::{ChangeCount, ChunkShard, Evicted, Held, InChunk, ReadOut, SeekFrom};
pub use spill::{Cold, Dirty, Disk, Found, Placed, Row, Snapshot, Swept, Warmed};
pub use staged::{Data, Staged};

use aze_io::slab::Slab;
use aze_io::sync::Mutex;
use aze_proto::ids::{Generation, Ino};
use fence::Fences;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// What the shards of one server share: the memory, and the memory of files that are gone.
pub struct Store {
    slab: Arc<Slab>,
    fences: Mutex<Fences>,
    disk: OnceLock<Arc<Disk>>,
    /// Bytes of chunks that are copies of what lies elsewhere. Each change adds its difference.
    copies_bytes: AtomicU64,
}

impl Store {
    /// A store that keeps its data in the slab given.
    pub fn new(slab: Arc<Slab>) -> Arc<Store> {
        Arc::new(Store { slab, fences: Mutex::default(), disk: OnceLock::new(), copies_bytes: AtomicU64::new(0) })
    }

    /// Keeps data on disks, too, from now on.
    ///
    /// # Panics
    /// When it is called again.
    pub fn use_disk(&self, disk: Arc<Disk>) {
        assert!(self.disk.set(disk).is_ok(), "a store has its disks from its beginning");
    }

    /// Where else than in memory data are kept, if anywhere.
    pub fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.get()
    }

    /// Bytes that it can hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.disk().map_or(self.slab.capacity_bytes(), |disk| disk.capacity_bytes())
    }

    /// Bytes that are taken from that; more than the bytes stored, since frames and places on disks
    /// have three sizes only.
    pub fn used_bytes(&self) -> u64 {
        match self.disk() {
            Some(disk) => disk.used_bytes() + self.slab.used_bytes().saturating_sub(disk.in_both_bytes()),
            None => self.slab.used_bytes(),
        }
    }

    /// Bytes of memory for data.
    pub fn memory_bytes(&self) -> u64 {
        self.slab.capacity_bytes()
    }

    /// Bytes of that in use.
    pub fn memory_used_bytes(&self) -> u64 {
        self.slab.used_bytes()
    }

    /// Has them counted exactly: without what readers have given back just now.
    pub fn settle(&self) {
        self.slab.reclaim();
    }

    /// Bytes of memory that the system has given so far.
    pub fn touched_bytes(&self) -> u64 {
        self.slab.touched_bytes()
    }

    /// The fences of files whose data were dropped: those that are gone (`None`), and generations before which nothing
    /// is taken of the others.
    pub fn dropped(&self) -> Vec<(Ino, Option<Generation>)> {
        self.fences.lock().all().collect()
    }

    /// Remembers the same of another store.
    pub fn take_dropped(&self, ino: Ino, since: Option<Generation>) {
        let mut fences = self.fences.lock();
        match since {
            Some(generation) => fences.truncate(ino, generation),
            None => fences.deleted(ino),
        }
    }

    /// Whether a chunk may become longer.
    fn room_to_grow(&self) -> Result<(), StoreError> {
        if self.disk().is_none_or(|disk| !disk.is_limited()) {
            return Ok(());
        }
        let (used_bytes, capacity_bytes) = (self.used_bytes(), self.capacity_bytes());
        if used_bytes < capacity_bytes { Ok(()) } else { Err(StoreError::DiskFull { used_bytes, capacity_bytes }) }
    }
}
