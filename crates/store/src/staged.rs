//! Data on their way in: checked, and where they fill whole units, copied into frames of their
//! own already. All of it without any lock, so that the shard's lock is held only to put the
//! frames in their places.

use aze_io::slab::{BASE_BYTES, Frame, FrameClass, Slab};
use aze_proto::sum::{first_mismatch, pieces};
use std::ops::Range;
use std::sync::Arc;

/// A write to one chunk that [`crate::Store::stage`] has checked.
pub struct Staged<'a> {
    pub(crate) offset: usize,
    pub(crate) data: &'a [u8],
    pub(crate) sums: &'a [u32],
    /// The first of the units that the data fill, as frames; fewer than there are where no more
    /// could be had.
    pub(crate) whole: Vec<Arc<Frame>>,
}

impl<'a> Staged<'a> {
    /// Where in the chunk the data go.
    pub fn offset(&self) -> u32 {
        self.offset as u32
    }

    /// The data.
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// Their checksums.
    pub fn sums(&self) -> &'a [u32] {
        self.sums
    }

    /// Compares `data`, to be written at `offset`, with `sums`; an error names the first piece
    /// that does not match.
    pub(crate) fn new(slab: &Arc<Slab>, offset: usize, data: &'a [u8], sums: &'a [u32]) -> Result<Staged<'a>, usize> {
        let count = pieces(offset as u64, data.len()).count();
        if count != sums.len() {
            return Err(count.min(sums.len()));
        }
        let mut staged = Staged { offset, data, sums, whole: Vec::new() };
        let units = offset.div_ceil(BASE_BYTES)..(offset + data.len()) / BASE_BYTES;
        let head = (units.start * BASE_BYTES - offset).min(data.len());
        let mut checked = staged.check(0, 0..head)?;
        let mut from = head;
        if !units.is_empty() {
            staged.whole.reserve_exact(units.len());
        }
        for _ in units {
            let Some(mut frame) = slab.allocate(FrameClass::K64) else { break };
            let part = &data[from..from + BASE_BYTES];
            for ((start, end), sum) in pieces(0, BASE_BYTES).zip(&sums[checked..]) {
                // Checked where it will stay, while it is in the processor's cache.
                let block = &mut frame.bytes_mut()[start..end];
                block.copy_from_slice(&part[start..end]);
                if first_mismatch(0, block, &[*sum]).is_some() {
                    return Err(checked);
                }
                checked += 1;
            }
            staged.whole.push(Arc::new(frame));
            from += BASE_BYTES;
        }
        staged.check(checked, from..data.len())?;
        Ok(staged)
    }

    /// Checks some of the data, whose first piece has the number given; gives the number of the
    /// first piece after them.
    fn check(&self, piece: usize, part: Range<usize>) -> Result<usize, usize> {
        let offset = (self.offset + part.start) as u64;
        let count = pieces(offset, part.len()).count();
        match first_mismatch(offset, &self.data[part], &self.sums[piece..piece + count]) {
            Some(wrong) => Err(piece + wrong),
            None => Ok(piece + count),
        }
    }

    /// Where in the chunk it will be.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.data.len()
    }
}
