//! Units of chunks that are on disks, too, or only there.
//!
//! Writes go into memory and into the journal, as always. When memory gets scarce, and for every
//! checkpoint, units that no disk has are written to places of their own; their frames may then leave
//! memory. A unit's place is kept in memory and in checkpoints only: changes since a checkpoint are in
//! the journal, with their data. So a place need never be announced, and the places that a checkpoint
//! names are not touched before a later one is durable.

use crate::chunk::{Sums, Unit};
use crate::disk::places::Slot;
use crate::disk::segments::Segments;
use crate::shard::Seen;
use crate::{ChunkShard, Store};
use aze_io::disk::{DiskError, DiskResult};
use aze_io::slab::{BASE_BYTES, Frame, FrameClass};
use aze_proto::ids::{Generation, Ino};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::{ZERO_BLOCK_SUM, block_sum};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The disks of a store.
pub struct Disk {
    segments: Arc<Segments>,
    capacity_bytes: u64,
    /// Bytes of frames whose units are on the disk, too.
    in_both: AtomicU64,
    /// Whether the capacity is a limit: not for what comes back from a journal.
    is_limited: AtomicBool,
}

impl Disk {
    /// For these segments; at most so many bytes of them are used.
    pub fn new(segments: Arc<Segments>, capacity_bytes: u64) -> Arc<Disk> {
        Arc::new(Disk { segments, capacity_bytes, in_both: AtomicU64::new(0), is_limited: AtomicBool::new(false) })
    }

    /// The segments.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// From now on no more is kept than may be.
    pub fn begin_limit(&self) {
        self.is_limited.store(true, Ordering::Relaxed);
    }

    /// No checkpoint has begun yet: none names a new place that is written before, and the journal has its data.
    fn is_starting(&self) -> bool {
        !self.is_limited() && !self.segments.places().lock().has_begun()
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Bytes that may be kept.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes in places that are used, and not only wait for a checkpoint.
    pub(crate) fn used_bytes(&self) -> u64 {
        let places = self.segments.places().lock();
        places.used_bytes() - places.waiting_bytes()
    }

    /// Gives units places that `take` finds; also gives those for which there was none.
    fn place(
        self: &Arc<Self>,
        dirty: Vec<Dirty>,
        take: impl Fn(FrameClass) -> Option<Slot>,
    ) -> (Vec<(Dirty, Placed)>, Vec<Dirty>) {
        let (mut placed, mut left) = (Vec::new(), Vec::new());
        for dirty in dirty {
            match take(dirty.class()) {
                Some(slot) => {
                    let mut place = Placed::new(self, slot);
                    place.is_of_start = self.is_starting();
                    placed.push((dirty, place));
                }
                None => left.push(dirty),
            }
        }
        (placed, left)
    }

    pub(crate) fn in_both_bytes(&self) -> u64 {
        self.in_both.load(Ordering::Relaxed)
    }
}

/// A place that a unit has. It is given back when this is dropped.
pub struct Placed {
    disk: Arc<Disk>,
    slot: Slot,
    /// Bytes of the frame that has the same.
    in_memory: u32,
    /// No checkpoint can have named it.
    is_unknown: bool,
    /// It was new while a journal was read: until that has been read, no checkpoint names it either, and it is given
    /// back at once. None can be waited for, and there may be no other room.
    is_of_start: bool,
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(f)
    }
}

impl Placed {
    fn new(disk: &Arc<Disk>, slot: Slot) -> Placed {
        Placed { disk: disk.clone(), slot, in_memory: 0, is_unknown: false, is_of_start: false }
    }

    /// Gives it back at once: nothing refers to it yet.
    fn discard(mut self) {
        self.is_unknown = true;
    }

    /// The same of a unit that has none then.
    fn discard_of(self, dirty: Dirty) -> Dirty {
        self.discard();
        dirty
    }

    /// The number of the place, for a checkpoint.
    pub fn number(&self) -> u64 {
        self.slot.number()
    }

    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    fn set_memory(&mut self, bytes: usize) {
        self.disk.in_both.fetch_add(bytes as u64, Ordering::Relaxed);
        self.disk.in_both.fetch_sub(u64::from(self.in_memory), Ordering::Relaxed);
        self.in_memory = bytes as u32;
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.set_memory(0);
        let is_unknown = self.is_unknown || self.is_of_start && self.disk.is_starting();
        let mut places = self.disk.segments.places().lock();
        match is_unknown {
            true => places.put_back(self.slot),
            false => places.give_back(self.slot),
        }
    }
}

/// A unit that is on the disk only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cold {
    /// The file.
    pub ino: Ino,
    /// The chunk.
    pub chunk: u64,
    unit: usize,
    slot: Slot,
    blocks: usize,
}

/// A unit that no disk has, as it was at one moment.
pub struct Dirty {
    ino: Ino,
    generation: Generation,
    chunk: u64,
    unit: usize,
    frame: Arc<Frame>,
    sums: Sums,
    /// Bytes of it before the chunk's end.
    len: usize,
    /// The chunk is a copy of what lies elsewhere.
    is_copy: bool,
}

impl Dirty {
    fn class(&self) -> FrameClass {
        FrameClass::for_bytes(self.sums.count * BLOCK_BYTES).expect("a unit is no larger than the largest frame")
    }

    /// Whole blocks, with zeros after the chunk's end.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.frame.bytes()[..self.len].to_vec();
        bytes.resize(self.sums.count * BLOCK_BYTES, 0);
        bytes
    }

    /// Its data, to be written elsewhere, and where they begin in the chunk.
    pub fn data(&self) -> (u32, &[u8]) {
        ((self.unit * BASE_BYTES) as u32, &self.frame.bytes()[..self.len])
    }

    /// What a checkpoint says of it, without a place.
    pub fn row(&self) -> Row {
        let Dirty { ino, generation, chunk, unit, sums, len, is_copy, .. } = self;
        let (unit, len, sums) = (*unit as u16, *len as u32, sums.known().to_vec());
        Row { ino: *ino, generation: *generation, chunk: *chunk, unit, slot: 0, len, sums, is_copy: *is_copy }
    }
}

/// A unit, wherever it is.
pub enum Found {
    /// In memory.
    InMemory(Dirty),
    /// On the disk only, with what a checkpoint would say of it.
    OnDisk(Cold, Row),
}

/// What a checkpoint says of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The file.
    pub ino: Ino,
    /// The generation in which it was written last.
    pub generation: Generation,
    /// The chunk.
    pub chunk: u64,
    /// The unit of 64 KiB within the chunk.
    pub unit: u16,
    /// The place ([`Slot::number`]).
    pub slot: u64,
    /// Bytes of the unit that count.
    pub len: u32,
    /// The checksums of its blocks, as they are in the place.
    pub sums: Vec<u32>,
    /// The chunk is a copy of what lies elsewhere.
    pub is_copy: bool,
}

/// All data of a shard as they were at one moment; later writes do not change them.
#[derive(Default)]
pub struct Snapshot {
    /// What disks have.
    pub rows: Vec<Row>,
    /// Units that no disk has.
    pub dirty: Vec<Dirty>,
}

/// What [`ChunkShard::sweep`] found.
#[derive(Default)]
pub struct Swept {
    /// Bytes of memory that were let go of.
    pub freed_bytes: u64,
    /// Units that have to be written to a disk before their memory can go.
    pub dirty: Vec<Dirty>,
    /// Where to go on; `None` at the end of the shard.
    pub next: Option<(Ino, u64)>,
}

/// What became of a unit that was read from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// It is in memory, or has changed meanwhile.
    Done,
    /// No memory was left for it.
    NoRoom,
    /// The bytes do not match the checksums.
    Differs,
}

impl ChunkShard {
    /// Looks for memory that can go, from a chunk on, through `chunks_max` of them, until so many bytes
    /// have gone or could go after a write. Units that were used since the last look stay unless
    /// `all`.
    pub fn sweep(&mut self, from: (Ino, u64), chunks_max: usize, bytes_max: u64, all: bool) -> Swept {
        let mut swept = Swept::default();
        let mut dirty_bytes = 0;
        for (looked, ((ino, number), chunk)) in self.chunks.range_mut(from..).enumerate() {
            if looked >= chunks_max || swept.freed_bytes + dirty_bytes >= bytes_max {
                swept.next = Some((*ino, *number));
                return swept;
            }
            let Some(Seen { generation, .. }) = self.generations.get(ino) else { continue };
            for (index, unit) in chunk.units.iter_mut().enumerate() {
                let Some(unit) = unit else { continue };
                let was_touched = std::mem::take(unit.touched.get_mut());
                let Some(frame) = unit.frame.as_ref().filter(|frame| Arc::strong_count(frame) == 1) else { continue };
                if was_touched && !all {
                    continue;
                }
                let bytes = frame.len();
                match &mut unit.place {
                    Some(place) => {
                        place.set_memory(0);
                        unit.frame = None;
                        swept.freed_bytes += bytes as u64;
                    }
                    None => {
                        // Its place is all that is wanted.
                        swept.dirty.extend(dirty(unit, *ino, *generation, *number, index, chunk.end, false));
                        dirty_bytes += bytes as u64;
                    }
                }
            }
        }
        swept
    }

    /// Everything, for a checkpoint. Units that hold only zeros, and are nowhere on disks, are left out, but for files that may come from a
    /// backing: a chunk that is not there would be read from the backing again, and a copy may be kept after this checkpoint.
    pub fn snapshot(&self) -> Snapshot {
        let mut all = Snapshot::default();
        for ((ino, number), chunk) in &self.chunks {
            let Some(Seen { generation, .. }) = self.generations.get(ino) else { continue };
            let is_copy = self.is_copy(*ino, *number);
            let may_be_absent = !ino.is_backed();
            for (index, unit) in chunk.units.iter().enumerate() {
                let Some(unit) = unit else { continue };
                match &unit.place {
                    Some(place) => {
                        let (unit, sums) = (index as u16, unit.sums.known().to_vec());
                        let len = (chunk.end - index * BASE_BYTES).min(sums.len() * BLOCK_BYTES) as u32;
                        let (ino, generation, chunk, slot) = (*ino, *generation, *number, place.slot.number());
                        all.rows.push(Row { ino, generation, chunk, unit, slot, len, sums, is_copy });
                    }
                    None if may_be_absent && unit.sums.known().iter().all(|sum| *sum == ZERO_BLOCK_SUM) => {}
                    None => all.dirty.extend(dirty(unit, *ino, *generation, *number, index, chunk.end, is_copy)),
                }
            }
        }
        all
    }

    /// The units of a file, wherever they are, as [`Self::snapshot`] gives them.
    pub fn units_of(&self, ino: Ino) -> Vec<Found> {
        let Some(Seen { generation, .. }) = self.generations.get(&ino) else { return Vec::new() };
        let mut all = Vec::new();
        for ((_, number), chunk) in self.chunks.range((ino, 0)..=(ino, u64::MAX)) {
            for (index, unit) in chunk.units.iter().enumerate() {
                let Some(unit) = unit else { continue };
                if unit.sums.known().iter().all(|sum| *sum == ZERO_BLOCK_SUM) {
                    continue;
                }
                // A volume over a backing moves nothing between servers.
                let in_memory = dirty(unit, ino, *generation, *number, index, chunk.end, false);
                match (in_memory, &unit.place) {
                    (Some(dirty), _) => all.push(Found::InMemory(dirty)),
                    (None, Some(place)) if unit.frame.is_none() => {
                        let (slot, sums) = (place.slot, unit.sums.known().to_vec());
                        let len = (chunk.end - index * BASE_BYTES).min(sums.len() * BLOCK_BYTES) as u32;
                        let cold = Cold { ino, chunk: *number, unit: index, slot, blocks: sums.len() };
                        let (generation, chunk, unit, slot) = (*generation, *number, index as u16, slot.number());
                        let row = Row { ino, generation, chunk, unit, slot, len, sums, is_copy: false };
                        all.push(Found::OnDisk(cold, row));
                    }
                    (None, _) => {}
                }
            }
        }
        all
    }

    /// A unit that was dirty has been written to a place: it gets it, unless it has changed since, and
    /// lets go of its memory. What a checkpoint is going to name keeps its memory (`named`).
    pub fn settle(&mut self, dirty: Dirty, mut place: Placed, named: bool) {
        let unit = self.chunks.get_mut(&(dirty.ino, dirty.chunk)).and_then(|chunk| chunk.units.get_mut(dirty.unit));
        match unit {
            // A frame that is held is not written to: so it is the same.
            Some(Some(unit))
                if unit.place.is_none()
                    && unit.sums == dirty.sums
                    && unit.frame.as_ref().is_some_and(|frame| Arc::ptr_eq(frame, &dirty.frame)) =>
            {
                drop(dirty);
                match unit.frame.take_if(|frame| !named && Arc::strong_count(frame) == 1) {
                    Some(_) => {}
                    None => place.set_memory(unit.frame.as_ref().map_or(0, |frame| frame.len())),
                }
                unit.place = Some(place);
            }
            _ if named => drop(place),
            _ => place.discard(),
        }
    }

    /// A unit that a checkpoint says is on the disk.
    ///
    /// # Errors
    /// The error in the checkpoint.
    pub fn restore_row(&mut self, row: &Row) -> Result<(), String> {
        let disk = self.store.disk().ok_or("there is no disk")?.clone();
        let blocks = row.sums.len();
        let slot = Slot::of(row.slot).filter(|slot| blocks > 0 && blocks * BLOCK_BYTES <= slot.class.bytes());
        let slot = slot.ok_or_else(|| format!("place {:x} cannot have {blocks} blocks", row.slot))?;
        // A chunk is a copy only if all of its units say so.
        let is_copy = row.is_copy && (!self.has(row.ino, row.chunk) || self.is_copy(row.ino, row.chunk));
        self.keep(row.ino, row.chunk);
        let chunk = self.chunks.entry((row.ino, row.chunk)).or_default();
        let index = usize::from(row.unit);
        if row.len as usize > blocks * BLOCK_BYTES || row.len as usize + BLOCK_BYTES <= blocks * BLOCK_BYTES {
            return Err(format!("{} bytes in {blocks} blocks", row.len));
        }
        if matches!(chunk.units.get(index), Some(Some(_))) {
            return Err(format!("unit {index} of chunk {} of inode {} is there twice", row.chunk, row.ino));
        }
        disk.segments.places().lock().adopt(slot)?;
        if chunk.units.len() <= index {
            chunk.units.resize_with(index + 1, || None);
        }
        let place = Some(Placed::new(&disk, slot));
        chunk.units[index] =
            Some(Unit { frame: None, sums: Sums::of(&row.sums), place, touched: AtomicBool::new(false) });
        let end = index * BASE_BYTES + row.len as usize;
        self.bytes += end.saturating_sub(chunk.end) as u64;
        chunk.end = chunk.end.max(end);
        if is_copy {
            self.note_copy(row.ino, row.chunk);
        }
        self.seen(row.ino, row.generation);
        Ok(())
    }

    /// Those of the units that are on the disk only.
    pub fn cold(&self, ino: Ino, chunk: u64, units: &Range<usize>) -> Vec<Cold> {
        let Some(stored) = self.chunks.get(&(ino, chunk)) else { return Vec::new() };
        let cold = |index: usize| {
            let unit = stored.units.get(index)?.as_ref().filter(|unit| unit.frame.is_none())?;
            let slot = unit.place.as_ref()?.slot;
            Some(Cold { ino, chunk, unit: index, slot, blocks: unit.sums.count })
        };
        units.clone().filter_map(cold).collect()
    }

    /// Brings a unit back. Blocks that do not match stay known for that, if they are kept `anyway`:
    /// a reader compares once more.
    pub fn warm(&mut self, cold: &Cold, bytes: &[u8], anyway: bool) -> Warmed {
        let Some(chunk) = self.chunks.get_mut(&(cold.ino, cold.chunk)) else { return Warmed::Done };
        let len = chunk.end.saturating_sub(cold.unit * BASE_BYTES);
        let Some(Some(unit)) = chunk.units.get_mut(cold.unit) else { return Warmed::Done };
        let is_same = unit.frame.is_none() && unit.place.as_ref().is_some_and(|place| place.slot == cold.slot);
        let count = unit.sums.count;
        if !is_same || count > cold.blocks {
            return Warmed::Done;
        }
        let bytes = &bytes[..count * BLOCK_BYTES];
        let mut blocks = bytes.chunks(BLOCK_BYTES).zip(unit.sums.known());
        if !anyway && blocks.any(|(block, sum)| block_sum(block) != *sum) {
            return Warmed::Differs;
        }
        let class = FrameClass::for_bytes(bytes.len()).expect("a unit is no larger than the largest frame");
        let Some(mut frame) = self.store.slab.allocate(class) else { return Warmed::NoRoom };
        frame.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let is_truncated = len < bytes.len() && bytes[len..].iter().any(|byte| *byte != 0);
        if let Some(place) = &mut unit.place {
            place.set_memory(frame.len());
        }
        unit.frame = Some(Arc::new(frame));
        *unit.touched.get_mut() = true;
        if is_truncated {
            // Also drops the place, which has more than the unit.
            unit.truncate(len, bytes.len());
        }
        Warmed::Done
    }
}

fn dirty(
    unit: &Unit,
    ino: Ino,
    generation: Generation,
    chunk: u64,
    index: usize,
    end: usize,
    is_copy: bool,
) -> Option<Dirty> {
    let (frame, sums) = (unit.frame.as_ref()?.clone(), unit.sums.clone());
    let len = (end - index * BASE_BYTES).min(sums.count * BLOCK_BYTES);
    (len > 0).then_some(Dirty { ino, generation, chunk, unit: index, frame, sums, len, is_copy })
}

impl Store {
    /// Writes units to places on disks; gives those for which there was room, with their places, and
    /// those for which there was none.
    ///
    /// # Errors
    /// What the disk says, but for a full one.
    pub async fn write_out(&self, dirty: Vec<Dirty>) -> DiskResult<(Vec<(Dirty, Placed)>, Vec<Dirty>)> {
        let Some(disk) = self.disk() else { return Ok((Vec::new(), dirty)) };
        let segments = &disk.segments;
        let (mut placed, mut left, mut waiting) = (Vec::new(), Vec::new(), dirty);
        // Segments that cannot be made: those that are there, or can be, may have room.
        let mut full = BTreeSet::new();
        let mut done = loop {
            let (found, without) = disk.place(waiting, |class| segments.take(class, &full));
            left.extend(without);
            let prepared = segments.prepare(found.iter().map(|(_, place)| place.slot)).await;
            let numbers = match prepared {
                Ok(numbers) => numbers,
                Err(error) => {
                    placed.extend(found);
                    break Err(error);
                }
            };
            let (there, again): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|(_, place)| !numbers.contains(&segments.number(place.slot)));
            placed.extend(there);
            if again.is_empty() {
                break Ok(());
            }
            full.extend(numbers);
            waiting = again.into_iter().map(|(dirty, place)| place.discard_of(dirty)).collect();
        };
        if done.is_ok() {
            let units = placed.iter().map(|(dirty, place)| (place.slot, dirty.bytes())).collect();
            done = segments.write(units).await;
        }
        let Err(error) = done else { return Ok((placed, left)) };
        left.extend(placed.into_iter().map(|(dirty, place)| place.discard_of(dirty)));
        if matches!(error, DiskError::Full(_)) { Ok((Vec::new(), left)) } else { Err(error) }
    }

    /// A checkpoint begins; gives its number.
    pub fn begin_checkpoint(&self) -> u64 {
        self.disk().map_or(0, |disk| disk.segments.places().lock().begin())
    }

    /// The checkpoint of this number is durable: what only older ones name is free.
    pub fn checkpoint_durable(&self, number: u64) {
        if let Some(disk) = self.disk() {
            disk.segments.places().lock().durable(number);
        }
    }

    /// Whether places will be free after the next checkpoint.
    pub fn waits_for_checkpoint(&self) -> bool {
        self.disk().is_some_and(|disk| disk.segments.places().lock().waiting_bytes() > 0)
    }

    /// Whether some memory should be let go of.
    pub fn is_memory_scarce(&self) -> bool {
        self.disk().is_some() && self.memory_used_bytes() > self.memory_bytes() / 8 * 7
    }

    /// Bytes that should be let go of, once memory is scarce.
    pub fn room_wanted_bytes(&self) -> u64 {
        self.memory_used_bytes().saturating_sub(self.memory_bytes() / 4 * 3)
    }

    /// Reads a unit.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn fetch(&self, cold: &Cold) -> DiskResult<Vec<u8>> {
        match self.disk() {
            Some(disk) => disk.segments.read(cold.slot, cold.blocks * BLOCK_BYTES).await,
            None => Err(DiskError::NotFound("there is no disk".into())),
        }
    }

    /// Reads what a checkpoint says of a unit.
    ///
    /// # Errors
    /// What the disk says, or that there is no such place.
    pub async fn fetch_row(&self, row: &Row) -> DiskResult<Vec<u8>> {
        match (self.disk(), Slot::of(row.slot)) {
            (Some(disk), Some(slot)) => disk.segments.read(slot, row.sums.len() * BLOCK_BYTES).await,
            _ => Err(DiskError::NotFound(format!("there is no place {:x}", row.slot))),
        }
    }

    /// For people: where a unit is.
    pub fn describe(&self, cold: &Cold) -> String {
        self.disk().map_or_else(String::new, |disk| disk.segments.describe(cold.slot))
    }
}
