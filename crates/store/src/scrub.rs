//! Verifies data that no client reads: compares each unit in memory and on disks with its checksums.
//!
//! A look holds the frames in memory as they are at one moment, and releases the lock before it compares.
//! It brings nothing into memory, and its units do not count as used.

use crate::chunk::Sums;
use crate::disk::places::Slot;
use crate::{ChunkShard, Store};
use aze_io::disk::DiskResult;
use aze_io::slab::{BASE_BYTES, Frame};
use aze_proto::ids::Ino;
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::block_sum;
use std::sync::Arc;

/// Where in the data of a shard: file, chunk, unit.
pub type Spot = (Ino, u64, usize);

/// A unit as it was when it was looked at.
pub struct Looked {
    /// Where it is.
    pub spot: Spot,
    sums: Sums,
    frame: Option<Arc<Frame>>,
    /// Bytes of it before the chunk's end.
    len: usize,
    slot: Option<Slot>,
}

/// Some units of a shard.
#[derive(Default)]
pub struct Look {
    /// They themselves.
    pub units: Vec<Looked>,
    /// All files that were come across, also those whose chunks have no units.
    pub files: Vec<(Ino, u64)>,
    /// Bytes that the units have.
    pub bytes: u64,
    /// Where to go on; `None` at the end of the shard.
    pub next: Option<Spot>,
}

impl Looked {
    /// Bytes that are compared.
    pub fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// Whether a disk has it.
    pub fn is_on_disk(&self) -> bool {
        self.slot.is_some()
    }

    /// The first byte in the chunk of the first block in memory that does not match its checksum.
    pub fn rotten_in_memory(&self) -> Option<u64> {
        let frame = self.frame.as_ref()?;
        self.rotten(&frame.bytes()[..self.len])
    }

    /// Lets go of the memory, so that writers need not copy it.
    pub fn let_go(&mut self) {
        self.frame = None;
    }

    fn rotten(&self, bytes: &[u8]) -> Option<u64> {
        let mut blocks = bytes.chunks(BLOCK_BYTES).zip(self.sums.known());
        let index = blocks.position(|(block, sum)| block_sum(block) != *sum)?;
        Some((self.spot.2 * BASE_BYTES + index * BLOCK_BYTES) as u64)
    }
}

impl ChunkShard {
    /// Looks at units from a place on: at most `chunks_max` chunks and about `bytes_max` bytes.
    pub fn look(&self, from: Spot, chunks_max: usize, bytes_max: u64) -> Look {
        let mut look = Look::default();
        for (seen, ((ino, number), chunk)) in self.chunks.range((from.0, from.1)..).enumerate() {
            let first = if (*ino, *number) == (from.0, from.1) { from.2 } else { 0 };
            if seen >= chunks_max || look.bytes >= bytes_max {
                look.next = Some((*ino, *number, first));
                return look;
            }
            if look.files.last().is_none_or(|(last, _)| last != ino) {
                look.files.push((*ino, *number));
            }
            for (index, unit) in chunk.units.iter().enumerate().skip(first) {
                let Some(unit) = unit else { continue };
                if look.bytes >= bytes_max {
                    look.next = Some((*ino, *number, index));
                    return look;
                }
                let len = chunk.end.saturating_sub(index * BASE_BYTES).min(unit.sums.count * BLOCK_BYTES);
                let slot = unit.place.as_ref().map(|place| place.slot());
                look.bytes += len as u64;
                let (sums, frame) = (unit.sums.clone(), unit.frame.clone());
                look.units.push(Looked { spot: (*ino, *number, index), sums, frame, len, slot });
            }
        }
        look
    }

    /// Whether a unit has the same checksums and place as when it was looked at.
    pub fn is_as_looked(&self, looked: &Looked) -> bool {
        let (ino, number, index) = looked.spot;
        let unit = self.chunks.get(&(ino, number)).and_then(|chunk| chunk.units.get(index)?.as_ref());
        unit.is_some_and(|unit| {
            unit.sums == looked.sums && unit.place.as_ref().map(|place| place.slot()) == looked.slot
        })
    }
}

impl Store {
    /// Reads what a disk has of a unit, and compares: as [`Looked::rotten_in_memory`].
    ///
    /// # Errors
    /// What the disk says.
    pub async fn rotten_on_disk(&self, looked: &Looked) -> DiskResult<Option<u64>> {
        let (Some(disk), Some(slot)) = (self.disk(), looked.slot) else { return Ok(None) };
        let bytes = disk.segments().read_disk(slot, looked.sums.count * BLOCK_BYTES).await?;
        Ok(looked.rotten(&bytes))
    }

    /// For people: where a unit is kept.
    pub fn describe_looked(&self, looked: &Looked) -> String {
        match (self.disk(), looked.slot) {
            (Some(disk), Some(slot)) => disk.segments().describe(slot),
            _ => "memory".into(),
        }
    }
}
