//! One chunk: its bytes in frames, and a checksum for each block.
//!
//! A chunk is cut into units of 64 KiB. A unit with data has one frame of 4, 16 or 64 KiB, the
//! least that holds its blocks; as data arrive beyond it, they move to a larger one. So small
//! files cost little, and a large file's units are whole frames that were never copied.
//!
//! Invariants: a unit's blocks up to `sums.len()` are defined, each with the checksum that its
//! bytes had when they were written; the frame beyond is whatever was there before. Defined
//! bytes at and after the chunk's end are zeros. Blocks before the end that are not defined are
//! holes, and read as zeros.

use aze_io::slab::{BASE_BYTES, Frame, FrameClass, Slab};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::{ZERO_BLOCK_SUM, block_sum, pieces};
use std::ops::Range;
use std::sync::Arc;

/// What holes are read from.
static ZEROS: [u8; BASE_BYTES] = [0; BASE_BYTES];

/// Why a chunk was not changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No frame was left.
    NoSpace,
    /// A stored block that was to be changed in part does not match its checksum.
    Rotten { block: usize },
}

#[derive(Default)]
pub(crate) struct Chunk {
    /// Bytes up to the end of what was written last.
    end: usize,
    units: Vec<Option<Unit>>,
}

struct Unit {
    frame: Frame,
    sums: Vec<u32>,
}

/// What a read gives: its start, the bytes and the blocks' checksums.
pub(crate) type Found<'a> = (usize, Vec<&'a [u8]>, Vec<u32>);

impl Chunk {
    /// Where the stored bytes end.
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Writes `data`, which is not empty and matches `sums`, at `offset`.
    pub(crate) fn write(&mut self, slab: &Arc<Slab>, offset: usize, data: &[u8], sums: &[u32]) -> Result<(), Trouble> {
        let range = offset..offset + data.len();
        self.verify_partial(&range)?;
        let mut frames = self.allocate(slab, &range)?.into_iter();
        let units = units_of(&range);
        if self.units.len() < units.end {
            self.units.resize_with(units.end, || None);
        }
        let mut sums = sums;
        for index in units {
            let base = index * BASE_BYTES;
            let part = range.start.max(base)..range.end.min(base + BASE_BYTES);
            let unit = adopt(&mut self.units[index], frames.next().flatten());
            let count = (part.end - 1) / BLOCK_BYTES - part.start / BLOCK_BYTES + 1;
            let (mine, rest) = sums.split_at(count);
            sums = rest;
            unit.write(
                part.start - base,
                &data[part.start - offset..part.end - offset],
                mine,
                self.end.saturating_sub(base),
            );
        }
        self.end = self.end.max(range.end);
        Ok(())
    }

    /// Checks the blocks of which the range replaces only a part: a new checksum over a block
    /// that has changed by itself would hide the damage for ever.
    fn verify_partial(&self, range: &Range<usize>) -> Result<(), Trouble> {
        for (start, end) in pieces(range.start as u64, range.len()) {
            let (start, end) = (range.start + start, range.start + end);
            let (index, block) = (start / BASE_BYTES, start % BASE_BYTES / BLOCK_BYTES);
            if let Some(Some(unit)) = self.units.get(index)
                && block < unit.sums.len()
                && !replaces_all(start, end, self.end)
                && !unit.is_sound(block)
            {
                return Err(Trouble::Rotten { block: start / BLOCK_BYTES });
            }
        }
        Ok(())
    }

    /// The frames that a write to `range` needs, one place for each unit: all or none.
    fn allocate(&self, slab: &Arc<Slab>, range: &Range<usize>) -> Result<Vec<Option<Frame>>, Trouble> {
        let need = |index: usize| {
            let bytes = (range.end - index * BASE_BYTES).min(BASE_BYTES);
            let class = FrameClass::for_bytes(bytes).expect("a unit is no larger than the largest frame");
            let have = self.units.get(index).and_then(Option::as_ref).map(|unit| unit.frame.class());
            (have < Some(class)).then_some(class)
        };
        units_of(range)
            .map(|index| need(index).map(|class| slab.allocate(class).ok_or(Trouble::NoSpace)).transpose())
            .collect()
    }

    /// The stored bytes of `[offset, offset + len)` widened to whole blocks.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Found<'_> {
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let stop = (offset + len).next_multiple_of(BLOCK_BYTES).min(self.end);
        let (mut parts, mut sums) = (Vec::new(), Vec::new());
        if len == 0 || start >= stop {
            return (start, parts, sums);
        }
        for index in units_of(&(start..stop)) {
            let base = index * BASE_BYTES;
            let part = start.max(base) - base..stop.min(base + BASE_BYTES) - base;
            read_unit(self.units.get(index).and_then(Option::as_ref), part, &mut parts, &mut sums);
        }
        (start, parts, sums)
    }

    /// What a read gives where there is no chunk.
    pub(crate) fn read_nothing<'a>(offset: usize) -> Found<'a> {
        (offset / BLOCK_BYTES * BLOCK_BYTES, Vec::new(), Vec::new())
    }

    /// Drops the bytes from `length` on. Units keep their frames even where a smaller one would
    /// do: a file that was cut is mostly about to be written again.
    pub(crate) fn cut(&mut self, length: usize) {
        if length >= self.end {
            return;
        }
        self.end = length;
        self.units.truncate(length.div_ceil(BASE_BYTES));
        let base = length / BASE_BYTES * BASE_BYTES;
        if let Some(Some(unit)) = self.units.get_mut(length / BASE_BYTES) {
            unit.cut(length - base);
        }
    }

    /// Flips a bit; `false` if no block with it is defined.
    pub(crate) fn flip_bit(&mut self, bit: u64) -> bool {
        let (byte, bit) = ((bit / 8) as usize, (bit % 8) as usize);
        match self.units.get_mut(byte / BASE_BYTES) {
            Some(Some(unit)) if byte % BASE_BYTES < unit.sums.len() * BLOCK_BYTES => {
                unit.frame.flip_bit(byte % BASE_BYTES * 8 + bit);
                true
            }
            _ => false,
        }
    }
}

/// The units that a range touches.
fn units_of(range: &Range<usize>) -> Range<usize> {
    range.start / BASE_BYTES..range.end.div_ceil(BASE_BYTES)
}

/// Whether writing `[start, end)`, within one block, leaves nothing of what was stored of the
/// block in a chunk that ends at `stored_end`. Then the writer's checksum is the block's.
fn replaces_all(start: usize, end: usize, stored_end: usize) -> bool {
    start.is_multiple_of(BLOCK_BYTES) && (end.is_multiple_of(BLOCK_BYTES) || end >= stored_end)
}

/// Gives a unit the larger frame that a write needs, if it needs one.
fn adopt(place: &mut Option<Unit>, frame: Option<Frame>) -> &mut Unit {
    if let Some(mut frame) = frame {
        let mut sums = Vec::new();
        if let Some(old) = place.take() {
            let defined = old.sums.len() * BLOCK_BYTES;
            frame.bytes_mut()[..defined].copy_from_slice(&old.frame.bytes()[..defined]);
            sums = old.sums;
        }
        sums.reserve_exact(frame.len() / BLOCK_BYTES - sums.len());
        *place = Some(Unit { frame, sums });
    }
    place.as_mut().expect("a unit without a frame was given one")
}

impl Unit {
    fn block(&self, block: usize) -> &[u8] {
        &self.frame.bytes()[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES]
    }

    fn is_sound(&self, block: usize) -> bool {
        block_sum(self.block(block)) == self.sums[block]
    }

    /// Writes at `offset` of the unit; the chunk's stored bytes end at `stored_end` of the unit.
    fn write(&mut self, offset: usize, data: &[u8], sums: &[u32], stored_end: usize) {
        self.define_zeros(offset / BLOCK_BYTES);
        for ((start, end), sum) in pieces(offset as u64, data.len()).zip(sums) {
            let block = (offset + start) / BLOCK_BYTES;
            let keeps_sum = block == self.sums.len() && (offset + start).is_multiple_of(BLOCK_BYTES)
                || block < self.sums.len() && replaces_all(offset + start, offset + end, stored_end);
            if block == self.sums.len() {
                self.define_around(offset + start..offset + end);
            }
            self.frame.bytes_mut()[offset + start..offset + end].copy_from_slice(&data[start..end]);
            self.sums[block] = if keeps_sum { *sum } else { block_sum(self.block(block)) };
        }
    }

    /// Makes the blocks before `block` defined, as holes.
    fn define_zeros(&mut self, block: usize) {
        let defined = self.sums.len();
        if defined < block {
            self.frame.bytes_mut()[defined * BLOCK_BYTES..block * BLOCK_BYTES].fill(0);
            self.sums.resize(block, ZERO_BLOCK_SUM);
        }
    }

    /// Makes the next block defined but for `written`, which is about to be written; its
    /// checksum, too.
    fn define_around(&mut self, written: Range<usize>) {
        let base = self.sums.len() * BLOCK_BYTES;
        let bytes = self.frame.bytes_mut();
        bytes[base..written.start].fill(0);
        bytes[written.end..base + BLOCK_BYTES].fill(0);
        self.sums.push(ZERO_BLOCK_SUM);
    }

    /// Keeps the first `length` bytes.
    fn cut(&mut self, length: usize) {
        self.sums.truncate(length.div_ceil(BLOCK_BYTES));
        let (block, within) = (length / BLOCK_BYTES, length % BLOCK_BYTES);
        if within == 0 || block >= self.sums.len() {
            return;
        }
        let was_sound = self.is_sound(block);
        self.frame.bytes_mut()[length..(block + 1) * BLOCK_BYTES].fill(0);
        let sum = block_sum(self.block(block));
        // What had changed by itself before must be found by the next reader, not blessed.
        self.sums[block] = if was_sound { sum } else { !sum };
    }
}

/// Adds the bytes `part` of a unit, whose start is a block border, and its blocks' checksums.
fn read_unit<'a>(unit: Option<&'a Unit>, part: Range<usize>, parts: &mut Vec<&'a [u8]>, sums: &mut Vec<u32>) {
    let blocks = part.start / BLOCK_BYTES..part.end.div_ceil(BLOCK_BYTES);
    let known = unit.map_or(&[][..], |unit| &unit.sums);
    let defined = part.end.min(known.len() * BLOCK_BYTES);
    if let Some(unit) = unit
        && part.start < defined
    {
        parts.push(&unit.frame.bytes()[part.start..defined]);
    }
    let hole = part.start.max(defined)..part.end;
    if !hole.is_empty() {
        parts.push(&ZEROS[hole]);
    }
    sums.extend(blocks.map(|block| known.get(block).copied().unwrap_or(ZERO_BLOCK_SUM)));
}
