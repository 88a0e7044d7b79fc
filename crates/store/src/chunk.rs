//! One chunk: its bytes in frames, and a checksum for each block.
//!
//! A chunk is cut into units of 64 KiB. A unit with data has one frame of 4, 16 or 64 KiB, the
//! least that holds its blocks; as data arrive beyond it, they move to a larger one. So small
//! files cost little, and a large file's units are whole frames that were never copied.
//!
//! Readers hold frames by reference, without any lock. A frame with readers is never written to: a
//! write takes another frame and copies the bytes that stay. So a reader has the chunk as it was at
//! one moment.
//!
//! On a server with disks a unit may also have a place there (`crate::spill`). Then its frame may go:
//! the unit is *cold*, and has to be brought back before it is read or changed in part. A unit with both
//! is the same in both; every change of it gives up the place.
//!
//! Invariants: a unit has a frame, or a place. A unit's blocks up to `sums.len()` are defined, each with the checksum
//! that its bytes had when they were written, those at and after the chunk's end counted as zeros; the frame's bytes
//! beyond are arbitrary. Blocks before the end that are not defined are holes, and read as zeros.

mod space;

use crate::spill::Placed;
use crate::staged::Staged;
use aze_io::slab::{BASE_BYTES, Frame, FrameClass, Slab};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::{ZERO_BLOCK_SUM, block_sum, pieces};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks of one unit.
pub(crate) const UNIT_BLOCKS: usize = BASE_BYTES / BLOCK_BYTES;

/// What holes are read from.
static ZEROS: [u8; BASE_BYTES] = [0; BASE_BYTES];

/// Why a chunk was not changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No frame was left.
    NoSpace,
    /// No frame was left for a copy of a frame that readers hold.
    BeingRead,
    /// A stored block that was to be changed in part does not match its checksum.
    Rotten { block: usize },
    /// These units have to be brought back from the disk first.
    Cold { units: Range<usize> },
}

#[derive(Default)]
pub(crate) struct Chunk {
    /// Its length in bytes: up to the highest byte that was written.
    pub(crate) end: usize,
    pub(crate) units: Vec<Option<Unit>>,
}

pub(crate) struct Unit {
    pub(crate) frame: Option<Arc<Frame>>,
    pub(crate) sums: Sums,
    /// Where the disk has the same.
    pub(crate) place: Option<Placed>,
    /// It was read or written since the last search for units that could leave memory.
    pub(crate) touched: AtomicBool,
}

/// The checksums of the defined blocks of a unit, in place: they are few.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) count: usize,
    pub(crate) values: [u32; UNIT_BLOCKS],
}

/// A part of a read's result.
pub(crate) enum Part {
    /// Bytes of a frame, which stays as it is for as long as this is held.
    Stored(Arc<Frame>, Range<usize>),
    /// So many zeros.
    Hole(usize),
}

impl Part {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Part::Stored(frame, range) => &frame.bytes()[range.clone()],
            Part::Hole(len) => &ZEROS[..*len],
        }
    }

    pub(crate) fn frame(&self) -> Option<(Arc<Frame>, Range<usize>)> {
        match self {
            Part::Stored(frame, range) => Some((frame.clone(), range.clone())),
            Part::Hole(_) => None,
        }
    }
}

/// What a read gives: its start, the bytes and the blocks' checksums.
pub(crate) type Found = (usize, Vec<Part>, Vec<u32>);

impl Chunk {
    /// Whether any of it was used since this was last asked.
    pub(crate) fn take_touched(&mut self) -> bool {
        let mut touched = false;
        for unit in self.units.iter_mut().flatten() {
            touched |= std::mem::take(unit.touched.get_mut());
        }
        touched
    }

    /// Whether readers hold any of it.
    pub(crate) fn is_held(&self) -> bool {
        let frames = self.units.iter().flatten().filter_map(|unit| unit.frame.as_ref());
        frames.into_iter().any(|frame| Arc::strong_count(frame) > 1)
    }

    /// Bytes of memory and of places on disks that it has.
    pub(crate) fn taken_bytes(&self) -> u64 {
        let taken = |unit: &Unit| match (&unit.place, &unit.frame) {
            (Some(place), _) => place.slot().class.bytes(),
            (None, frame) => frame.as_ref().map_or(0, |frame| frame.len()),
        };
        self.units.iter().flatten().map(|unit| taken(unit) as u64).sum()
    }

    /// Where the stored bytes end.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Writes the staged bytes, which are not empty, or, with an error, nothing. Whole units are shared with `staged`
    /// until it drops them.
    pub(crate) fn write(&mut self, slab: &Arc<Slab>, staged: &mut Staged<'_>) -> Result<(), Trouble> {
        let range = staged.range();
        self.warm_enough(&range)?;
        self.verify_partial(&range)?;
        self.clear_gap(slab, range.start)?;
        let frames = self.allocate_for(slab, staged)?;
        let (mut sums, mut ready) = (staged.sums, staged.whole.iter());
        let mut frames = frames.into_iter().peekable();
        let units = units_of(&range);
        if self.units.len() < units.end {
            self.units.resize_with(units.end, || None);
        }
        for index in units {
            let base = index * BASE_BYTES;
            let part = range.start.max(base)..range.end.min(base + BASE_BYTES);
            let count = (part.end - 1) / BLOCK_BYTES - part.start / BLOCK_BYTES + 1;
            let (mine, rest) = sums.split_at(count);
            sums = rest;
            let is_whole = part.len() == BASE_BYTES;
            if let Some(frame) = is_whole.then(|| ready.next()).flatten() {
                self.units[index] = Some(Unit::new(frame.clone(), Sums::of(mine)));
                continue;
            }
            if self.units[index].as_ref().is_some_and(|unit| unit.frame.is_none()) {
                // All of it is replaced: see `warm_enough`.
                self.units[index] = None;
            }
            let frame = frames.next_if(|(of, _)| *of == index).map(|(_, frame)| frame);
            let unit = adopt(&mut self.units[index], frame);
            unit.write(
                part.start - base,
                staged.part(part.start - range.start..part.end - range.start),
                mine,
                self.end.saturating_sub(base),
            );
        }
        self.end = self.end.max(range.end);
        Ok(())
    }

    /// Whether what a write to the range keeps of the units that it changes is in memory.
    fn warm_enough(&self, range: &Range<usize>) -> Result<(), Trouble> {
        let is_cold = |index: usize| matches!(self.units.get(index), Some(Some(unit)) if unit.frame.is_none());
        let keeps_some = |index: usize| {
            let base = index * BASE_BYTES;
            let count = self.units[index].as_ref().map_or(0, |unit| unit.sums.count);
            range.start > base || range.end < base + count * BLOCK_BYTES
        };
        let mut cold = units_of(range).filter(|index| is_cold(*index) && keeps_some(*index));
        if let Some(first) = cold.next() {
            return Err(Trouble::Cold { units: first..cold.next_back().unwrap_or(first) + 1 });
        }
        let gap = self.end / BASE_BYTES;
        if range.start > self.end && !self.end.is_multiple_of(BLOCK_BYTES) && is_cold(gap) {
            return Err(Trouble::Cold { units: gap..gap + 1 });
        }
        Ok(())
    }

    /// Checks the blocks that the range replaces in part only: a new checksum over a block
    /// that has changed by itself would hide the damage for ever.
    fn verify_partial(&self, range: &Range<usize>) -> Result<(), Trouble> {
        let ends = [range.start, range.end - 1].map(|at| at / BLOCK_BYTES * BLOCK_BYTES);
        for block in &ends[..if ends[0] == ends[1] { 1 } else { 2 }] {
            let (start, end) = (range.start.max(*block), range.end.min(block + BLOCK_BYTES));
            let (index, block) = (start / BASE_BYTES, start % BASE_BYTES / BLOCK_BYTES);
            if let Some(Some(unit)) = self.units.get(index)
                && block < unit.sums.count
                && unit.frame.is_some()
                && !replaces_all(start, end, self.end)
                && !unit.is_sound(block, self.end - index * BASE_BYTES)
            {
                return Err(Trouble::Rotten { block: start / BLOCK_BYTES });
            }
        }
        Ok(())
    }

    /// Before a write from `start` on: what follows the end in its block becomes zeros, since it
    /// is going to lie before the end.
    fn clear_gap(&mut self, slab: &Arc<Slab>, start: usize) -> Result<(), Trouble> {
        let index = self.end / BASE_BYTES;
        let within = self.end % BASE_BYTES;
        let Some(Some(unit)) = self.units.get_mut(index) else { return Ok(()) };
        if start <= self.end || within.is_multiple_of(BLOCK_BYTES) || within / BLOCK_BYTES >= unit.sums.count {
            return Ok(());
        }
        let Some(frame) = &mut unit.frame else { return Ok(()) };
        if Arc::get_mut(frame).is_none() {
            let frame = slab.allocate(frame.class()).ok_or(Trouble::BeingRead)?;
            unit.move_to(frame);
        }
        // The disk has zeros there.
        unit.bytes_mut()[within..within.next_multiple_of(BLOCK_BYTES)].fill(0);
        Ok(())
    }

    /// The frames that a write needs, each with its unit, besides those that came with it: all or none. Where there
    /// are too few, those that came are given up: the frames that they replace may be written in their place.
    fn allocate_for(&self, slab: &Arc<Slab>, staged: &mut Staged<'_>) -> Result<Vec<(usize, Frame)>, Trouble> {
        match self.allocate(slab, staged) {
            Err(_) if !staged.whole.is_empty() => {
                staged.give_up_frames();
                self.allocate(slab, staged)
            }
            frames => frames,
        }
    }

    fn allocate(&self, slab: &Arc<Slab>, staged: &Staged<'_>) -> Result<Vec<(usize, Frame)>, Trouble> {
        let (range, mut ready) = (staged.range(), staged.whole.len());
        let mut frames = Vec::new();
        for index in units_of(&range) {
            let is_whole = range.start <= index * BASE_BYTES && range.end >= (index + 1) * BASE_BYTES;
            if is_whole && ready > 0 {
                ready -= 1;
                continue;
            }
            let Some((class, without)) = self.need(index, &range) else { continue };
            frames.push((index, slab.allocate(class).ok_or(without)?));
        }
        Ok(frames)
    }

    /// The frame that a write to `range` needs in a unit, and the error if there is none.
    fn need(&self, index: usize, range: &Range<usize>) -> Option<(FrameClass, Trouble)> {
        let bytes = (range.end - index * BASE_BYTES).min(BASE_BYTES);
        let class = FrameClass::for_bytes(bytes).expect("a unit is no larger than the largest frame");
        match self.units.get(index).and_then(|unit| unit.as_ref()?.frame.as_ref()) {
            Some(frame) if frame.class() >= class => {
                // No reader can begin to hold it now: that takes the lock under which this runs.
                let is_held = Arc::strong_count(frame) > 1;
                is_held.then_some((frame.class(), Trouble::BeingRead))
            }
            _ => Some((class, Trouble::NoSpace)),
        }
    }

    /// The stored bytes of `[offset, offset + len)` widened to whole blocks.
    /// An error names units that are on the disk only.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Result<Found, Range<usize>> {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let stop = (offset + len).next_multiple_of(BLOCK_BYTES).min(self.end);
        if len == 0 || start >= stop {
            return Ok(Chunk::read_nothing(offset));
        }
        let is_cold = |index: &usize| matches!(self.units.get(*index), Some(Some(unit)) if unit.frame.is_none());
        let mut cold = units_of(&(start..stop)).filter(is_cold);
        if let Some(first) = cold.next() {
            return Err(first..cold.next_back().unwrap_or(first) + 1);
        }
        let mut parts = Vec::with_capacity(units_of(&(start..stop)).len() + 1);
        let mut sums = Vec::with_capacity((stop - start).div_ceil(BLOCK_BYTES));
        for index in units_of(&(start..stop)) {
            let base = index * BASE_BYTES;
            let part = start.max(base) - base..stop.min(base + BASE_BYTES) - base;
            read_unit(self.units.get(index).and_then(Option::as_ref), part, &mut parts, &mut sums);
        }
        Ok((start, parts, sums))
    }

    /// What a read gives where there is no chunk.
    pub(crate) fn read_nothing(offset: usize) -> Found {
        (offset / BLOCK_BYTES * BLOCK_BYTES, Vec::new(), Vec::new())
    }

    /// Drops the bytes from `length` on. Units keep their frames even where a smaller one would
    /// do: a file that was truncated is mostly about to be written again.
    pub(crate) fn truncate(&mut self, length: usize) {
        if length >= self.end {
            return;
        }
        self.units.truncate(length.div_ceil(BASE_BYTES));
        let base = length / BASE_BYTES * BASE_BYTES;
        if let Some(Some(unit)) = self.units.get_mut(length / BASE_BYTES) {
            unit.truncate(length - base, self.end - base);
        }
        self.end = length;
    }

    /// Flips a bit; `false` if no block with it is defined.
    pub(crate) fn flip_bit(&mut self, bit: u64) -> bool {
        let (byte, bit) = ((bit / 8) as usize, (bit % 8) as usize);
        match self.units.get_mut(byte / BASE_BYTES) {
            Some(Some(unit)) if byte % BASE_BYTES < unit.sums.count * BLOCK_BYTES => {
                let frame = unit.frame.as_mut().and_then(Arc::get_mut);
                frame.map(|frame| frame.flip_bit(byte % BASE_BYTES * 8 + bit)).is_some()
            }
            _ => false,
        }
    }
}

/// The units that a range touches.
fn units_of(range: &Range<usize>) -> Range<usize> {
    range.start / BASE_BYTES..range.end.div_ceil(BASE_BYTES)
}

/// Whether writing `[start, end)`, within one block, replaces all stored bytes of the block in a
/// chunk that ends at `stored_end`. Then the writer's checksum is the block's.
fn replaces_all(start: usize, end: usize, stored_end: usize) -> bool {
    start.is_multiple_of(BLOCK_BYTES) && (end.is_multiple_of(BLOCK_BYTES) || end >= stored_end)
}

/// Gives a unit the frame that a write needs, if it needs one.
fn adopt(place: &mut Option<Unit>, frame: Option<Frame>) -> &mut Unit {
    if let Some(frame) = frame {
        match place {
            Some(unit) => unit.move_to(frame),
            None => *place = Some(Unit::new(Arc::new(frame), Sums::of(&[]))),
        }
    }
    let unit = place.as_mut().expect("a unit without a frame was given one");
    // It is about to be changed.
    unit.place = None;
    *unit.touched.get_mut() = true;
    unit
}

impl Sums {
    pub(crate) fn of(sums: &[u32]) -> Sums {
        let mut values = [0; UNIT_BLOCKS];
        values[..sums.len()].copy_from_slice(sums);
        Sums { count: sums.len(), values }
    }

    pub(crate) fn known(&self) -> &[u32] {
        &self.values[..self.count]
    }

    /// Makes the blocks before `count` known, with the sum of zeros.
    fn grow(&mut self, count: usize) {
        self.values[self.count..count].fill(ZERO_BLOCK_SUM);
        self.count = count;
    }
}

impl Unit {
    fn new(frame: Arc<Frame>, sums: Sums) -> Unit {
        Unit { frame: Some(frame), sums, place: None, touched: AtomicBool::new(true) }
    }

    /// The frame of a unit that is not cold.
    fn frame(&self) -> &Arc<Frame> {
        self.frame.as_ref().expect("whoever needs the bytes has made sure that they are in memory")
    }

    /// The stored bytes of a block in a unit whose stored bytes end at `stored_end`.
    fn block(&self, block: usize, stored_end: usize) -> &[u8] {
        &self.frame().bytes()[block * BLOCK_BYTES..((block + 1) * BLOCK_BYTES).min(stored_end)]
    }

    pub(crate) fn is_sound(&self, block: usize, stored_end: usize) -> bool {
        block_sum(self.block(block, stored_end)) == self.sums.values[block]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let frame = self.frame.as_mut().and_then(Arc::get_mut);
        frame.expect("a frame that somebody holds was replaced before").bytes_mut()
    }

    /// Takes another frame, which is as large at least, and copies the defined blocks.
    fn move_to(&mut self, mut frame: Frame) {
        let defined = self.sums.count * BLOCK_BYTES;
        frame.bytes_mut()[..defined].copy_from_slice(&self.frame().bytes()[..defined]);
        self.frame = Some(Arc::new(frame));
    }

    /// Writes at `offset` of the unit; the chunk's stored bytes end at `stored_end` of the unit.
    fn write(&mut self, offset: usize, data: &[u8], sums: &[u32], stored_end: usize) {
        let new_end = stored_end.max(offset + data.len());
        let first = offset / BLOCK_BYTES;
        let was_defined = self.sums.count;
        let last = (offset + data.len()).div_ceil(BLOCK_BYTES);
        self.define(last, offset..offset + data.len());
        self.bytes_mut()[offset..offset + data.len()].copy_from_slice(data);
        for (block, ((start, end), sum)) in (first..).zip(pieces(offset as u64, data.len()).zip(sums)) {
            let (start, end) = (offset + start, offset + end);
            let keeps_sum = match block < was_defined {
                true => replaces_all(start, end, stored_end),
                false => start.is_multiple_of(BLOCK_BYTES),
            };
            self.sums.values[block] = if keeps_sum { *sum } else { block_sum(self.block(block, new_end)) };
        }
    }

    /// Makes the blocks before `count` defined: zeros, but for `written`, which is about to be
    /// written.
    fn define(&mut self, count: usize, written: Range<usize>) {
        if count <= self.sums.count {
            return;
        }
        let defined = self.sums.count * BLOCK_BYTES;
        let bytes = self.bytes_mut();
        if defined < written.start {
            bytes[defined..written.start].fill(0);
        }
        bytes[written.end..count * BLOCK_BYTES].fill(0);
        self.sums.grow(count);
    }

    /// Keeps the first `length` bytes of a unit whose stored bytes end at `stored_end`. Touches
    /// no byte: readers may hold them.
    pub(crate) fn truncate(&mut self, length: usize, stored_end: usize) {
        if self.frame.is_none() {
            // What follows within the last block is dropped when the unit is brought back.
            self.sums.count = self.sums.count.min(length.div_ceil(BLOCK_BYTES));
            return;
        }
        self.place = None;
        let (block, within) = (length / BLOCK_BYTES, length % BLOCK_BYTES);
        if within > 0 && block < self.sums.count {
            let sum = block_sum(self.block(block, length));
            // The next reader must find bytes that had changed by themselves before.
            self.sums.values[block] = if self.is_sound(block, stored_end) { sum } else { !sum };
        }
        self.sums.count = self.sums.count.min(length.div_ceil(BLOCK_BYTES));
    }
}

/// Adds the bytes `part` of a unit, whose start is a block border, and its blocks' checksums.
fn read_unit(unit: Option<&Unit>, part: Range<usize>, parts: &mut Vec<Part>, sums: &mut Vec<u32>) {
    let blocks = part.start / BLOCK_BYTES..part.end.div_ceil(BLOCK_BYTES);
    let known = unit.map_or(&[][..], |unit| unit.sums.known());
    let defined = part.end.min(known.len() * BLOCK_BYTES);
    if let Some(unit) = unit
        && part.start < defined
    {
        unit.touched.store(true, Ordering::Relaxed);
        parts.push(Part::Stored(unit.frame().clone(), part.start..defined));
    }
    let hole = part.start.max(defined)..part.end;
    if !hole.is_empty() {
        parts.push(Part::Hole(hole.len()));
    }
    sums.extend(blocks.map(|block| known.get(block).copied().unwrap_or(ZERO_BLOCK_SUM)));
}
