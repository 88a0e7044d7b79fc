//! The bytes of a simulated file: writes, the bytes that a failed sync leaves behind, and the part of each write that a
//! power cut leaves.

use super::super::rng::SimRng;
use crate::disk::{DiskError, DiskResult};

/// What a disk writes whole, or not at all.
const SECTOR_BYTES: usize = 512;

/// A log has zeros up to the next multiple of this, in bytes.
const LOG_STEP_BYTES: usize = 4096;

#[derive(Default)]
pub(super) struct SimFile {
    pub(super) bytes: Vec<u8>,
    pub(super) synced: usize,
    /// Where each write since the last sync ends.
    pub(super) ends: Vec<usize>,
    /// Of a file of fixed length: the writes to places since the last sync, oldest first.
    pub(super) places: Vec<(usize, Vec<u8>)>,
    /// How many writes to places were synced.
    pub(super) settled: usize,
    /// Of a file of fixed length: its durable bytes.
    pub(super) under: Vec<u8>,
    /// Whether zeros follow that were never written.
    pub(super) is_log: bool,
    /// What a sync that failed has left behind: no later one brings it to the disk.
    pub(super) doomed: Vec<(usize, usize)>,
}

impl SimFile {
    /// Its length as it is seen.
    pub(super) fn len(&self) -> usize {
        if self.is_log { self.bytes.len().next_multiple_of(LOG_STEP_BYTES) } else { self.bytes.len() }
    }

    pub(super) fn tear(&mut self, rng: &mut SimRng) {
        if !self.under.is_empty() {
            return self.tear_places(rng);
        }
        let (mut start, mut kept_end) = (self.synced, self.synced);
        for end in std::mem::take(&mut self.ends) {
            let fate = rng.below(if self.is_log { 5 } else { 4 });
            let kept = match fate {
                0 | 1 | 4 => end,
                2 => start + rng.below((end - start) as u64 + 1) as usize,
                _ => start,
            };
            self.bytes[kept..end].fill(0);
            if fate == 4 {
                // The room was there before: any of its sectors may have been written.
                for sector in self.bytes[start..end].chunks_mut(SECTOR_BYTES) {
                    if rng.chance(300_000) {
                        sector.fill(0);
                    }
                }
            }
            if kept > start {
                kept_end = kept;
            }
            start = end;
        }
        self.bytes.truncate(kept_end);
        self.synced = kept_end;
        for (start, end) in std::mem::take(&mut self.doomed) {
            let end = end.min(kept_end);
            self.bytes[start.min(end)..end].fill(0);
        }
    }

    pub(super) fn append(&mut self, bytes: &[u8], trouble: Option<DiskError>) -> DiskResult<()> {
        // What fails may have got as far as this.
        let count = if trouble.is_some() { bytes.len() / 2 } else { bytes.len() };
        self.bytes.extend_from_slice(&bytes[..count]);
        self.ends.push(self.bytes.len());
        trouble.map_or(Ok(()), Err)
    }

    /// A sync has failed: the system takes for clean what the disk has not got.
    pub(super) fn doom(&mut self) {
        if self.under.is_empty() {
            self.doomed.push((self.synced, self.bytes.len()));
            self.synced = self.bytes.len();
            self.ends.clear();
        } else {
            self.settled += self.places.len();
            self.places.clear();
        }
    }

    /// Each write to a place is kept, lost, or kept in some of its sectors, in any order.
    fn tear_places(&mut self, rng: &mut SimRng) {
        let mut places = std::mem::take(&mut self.places);
        self.settled += places.len();
        while !places.is_empty() {
            let (offset, bytes) = places.swap_remove(rng.below(places.len() as u64) as usize);
            let fate = rng.below(4);
            for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                if fate <= 1 || fate == 2 && rng.chance(500_000) {
                    let at = offset + number * SECTOR_BYTES;
                    self.under[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        self.bytes = self.under.clone();
    }
}
