//! Room in a chunk: zeros that are stored so that later writes need no frame, units that are given
//! back, and where data and holes begin.

use super::{Chunk, Trouble, UNIT_BLOCKS, Unit, ZEROS, units_of};
use crate::staged::Staged;
use aze_io::slab::{BASE_BYTES, Slab};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::{ZERO_BLOCK_SUM, piece_sums};
use std::ops::Range;
use std::sync::Arc;

impl Chunk {
    /// Stores zeros in the part of `range` where nothing is stored. If memory ends the frames that
    /// were taken by then stay.
    pub(crate) fn reserve(&mut self, slab: &Arc<Slab>, range: Range<usize>) -> Result<(), Trouble> {
        for index in units_of(&range) {
            let base = index * BASE_BYTES;
            let from = range.start.max(base + self.defined(index));
            let to = range.end.min(base + BASE_BYTES);
            if from < to {
                self.write_zeros(slab, from..to, &ZEROS[..to - from])?;
            }
        }
        Ok(())
    }

    /// Writes zeros: all of them or, with an error, nothing.
    pub(crate) fn zero(&mut self, slab: &Arc<Slab>, range: Range<usize>) -> Result<(), Trouble> {
        let zeros = vec![0; range.len()];
        if zeros.is_empty() { Ok(()) } else { self.write_zeros(slab, range, &zeros) }
    }

    fn write_zeros(&mut self, slab: &Arc<Slab>, range: Range<usize>, zeros: &[u8]) -> Result<(), Trouble> {
        let sums = piece_sums(range.start as u64, zeros);
        self.write(slab, &mut Staged::unchecked(range.start, zeros, &sums))
    }

    /// Makes a hole of `range`: units that lie in it give back their frames, and zeros are written to
    /// the range's part of other units. Does not move the end. With an error all is done that could be.
    /// Where the chunk must not become one that is not there (`stays`), zeros at its beginning are kept.
    pub(crate) fn punch(&mut self, slab: &Arc<Slab>, range: Range<usize>, stays: bool) -> Result<(), Trouble> {
        let range = range.start..range.end.min(self.end);
        if range.is_empty() {
            return Ok(());
        }
        let end = self.end;
        let whole = |index: usize| {
            let base = index * BASE_BYTES;
            range.start <= base && range.end >= (base + BASE_BYTES).min(end)
        };
        let (mut zeros, mut kept) = (Chunk::default(), None);
        if stays && (0..self.units.len()).all(|index| whole(index) || self.units[index].is_none()) {
            let len = end.min(BLOCK_BYTES);
            if let Err(trouble) = zeros.write_zeros(slab, 0..len, &ZEROS[..len]) {
                // No memory is left even for one block: one of the chunk's own units stays.
                kept = Some(self.units.iter().position(Option::is_some).ok_or(trouble)?);
            }
        }
        let goes = |index: &usize| whole(*index) && kept != Some(*index);
        let mut failed = None;
        for index in units_of(&range).filter(|index| !goes(index)) {
            let base = index * BASE_BYTES;
            let from = range.start.max(base);
            let to = range.end.min(base + self.defined(index));
            if from < to {
                let done = self.write_zeros(slab, from..to, &ZEROS[..to - from]);
                failed = failed.or(done.err());
            }
        }
        for index in units_of(&range).filter(goes) {
            if let Some(unit) = self.units.get_mut(index) {
                *unit = None;
            }
        }
        if let Some(unit) = zeros.units.pop() {
            self.units.resize_with(self.units.len().max(1), || None);
            self.units[0] = unit;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether there is nothing but a hole.
    pub(crate) fn is_hole(&self) -> bool {
        self.units.iter().all(Option::is_none)
    }

    /// The first stored byte from `from` on.
    pub(crate) fn next_data(&self, from: usize) -> Option<usize> {
        (from / BASE_BYTES..self.units.len()).find_map(|index| {
            let base = index * BASE_BYTES;
            let at = from.max(base);
            (at < (base + self.defined(index)).min(self.end)).then_some(at)
        })
    }

    /// The first byte from `from` on, before `end`, that is not stored.
    pub(crate) fn next_hole(&self, from: usize, end: usize) -> Option<usize> {
        let mut at = from;
        while at < end {
            let index = at / BASE_BYTES;
            let stored = (index * BASE_BYTES + self.defined(index)).min(self.end);
            if at >= stored {
                return Some(at);
            }
            at = stored;
            if !at.is_multiple_of(BASE_BYTES) {
                break;
            }
        }
        (at < end).then_some(at)
    }

    /// The first byte from `from` on that is stored and lies in no block of zeros. An error names units that are on the disk only and
    /// may be zeros.
    pub(crate) fn next_other_than_zeros(&self, from: usize) -> Result<Option<usize>, Range<usize>> {
        let mut at = from;
        while at < self.end.min(self.units.len() * BASE_BYTES) {
            if self.units[at / BASE_BYTES].is_none() {
                at = (at / BASE_BYTES + 1) * BASE_BYTES;
                continue;
            }
            if !self.is_zeros_at(at)? {
                return Ok(Some(at));
            }
            at = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
        }
        Ok(None)
    }

    /// The first byte from `from` on, before `end`, that is not stored or lies in a block of zeros; errors as above.
    pub(crate) fn next_zeros(&self, from: usize, end: usize) -> Result<Option<usize>, Range<usize>> {
        let mut at = from;
        while at < end {
            if self.is_zeros_at(at)? {
                return Ok(Some(at));
            }
            at = ((at / BLOCK_BYTES + 1) * BLOCK_BYTES).min(self.end.max(at + 1));
        }
        Ok(None)
    }

    /// Whether the block of a byte is known to be zeros: it is not stored, or its sum says so and its bytes, too.
    fn is_zeros_at(&self, at: usize) -> Result<bool, Range<usize>> {
        let (index, block) = (at / BASE_BYTES, at % BASE_BYTES / BLOCK_BYTES);
        let unit = self.units.get(index).and_then(Option::as_ref).filter(|unit| block < unit.sums.count);
        match unit.filter(|_| at < self.end) {
            None => Ok(true),
            Some(unit) if unit.sums.values[block] != ZERO_BLOCK_SUM => Ok(false),
            Some(unit) if unit.frame.is_none() => Err(index..index + 1),
            Some(unit) => Ok(unit.block(block, self.end - index * BASE_BYTES).iter().all(|byte| *byte == 0)),
        }
    }

    /// Length of the unit's beginning in which every byte is stored.
    fn defined(&self, index: usize) -> usize {
        let unit: Option<&Unit> = self.units.get(index).and_then(Option::as_ref);
        unit.map_or(0, |unit| unit.sums.count.min(UNIT_BLOCKS) * BLOCK_BYTES)
    }
}
