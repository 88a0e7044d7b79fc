//! Data on their way in: checked, and where they fill whole units, in frames of their own already. All of it
//! without any lock, so that the shard's lock is held only to put the frames in their places.
//!
//! Data that have come in frames ([`Store::receive_buffer`]) stay where they are: they are compared there, where no
//! other thread can reach them, and the frames of whole units are kept. Other data are copied.

use crate::Store;
use aze_io::slab::{BASE_BYTES, Frame, FrameClass, Payload, ReceiveBuffer, ReceivedFrames, Slab};
use aze_proto::limits::CHUNK_BITS_MAX;
use aze_proto::sum::{first_mismatch, pieces};
use std::ops::Range;
use std::sync::Arc;

/// A write to one chunk that [`crate::Store::stage`] has checked.
pub struct Staged<'a> {
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) sums: &'a [u32],
    data: Data<'a>,
    /// The first of the units that the data fill, as frames; fewer than there are where no more
    /// could be had.
    pub(crate) whole: Vec<Arc<Frame>>,
}

/// Data to be staged: in frames, in an owned buffer, or in a borrowed one.
pub enum Data<'a> {
    /// All of them.
    Borrowed(&'a [u8]),
    /// All of them.
    Own(Vec<u8>),
    /// What comes before and after the whole units, and these as frames.
    Frames(ReceivedFrames),
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Data::Borrowed(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Data<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Data::Borrowed(bytes)
    }
}

impl From<Payload> for Data<'_> {
    fn from(payload: Payload) -> Self {
        match payload {
            Payload::Bytes(bytes) => Data::Own(bytes),
            Payload::Frames(in_frames) => Data::Frames(in_frames),
        }
    }
}

#[expect(clippy::len_without_is_empty, reason = "nobody asks")]
impl Data<'_> {
    /// Bytes altogether.
    pub fn len(&self) -> usize {
        match self {
            Data::Borrowed(bytes) => bytes.len(),
            Data::Own(bytes) => bytes.len(),
            Data::Frames(in_frames) => in_frames.len(),
        }
    }
}

/// How a write lies in a chunk: bytes before the first whole unit, the units, and bytes after them.
fn shape(offset: usize, len: usize) -> (usize, Range<usize>, usize) {
    let units = offset.div_ceil(BASE_BYTES)..(offset + len) / BASE_BYTES;
    if units.is_empty() {
        return (len, 0..0, 0);
    }
    (units.start * BASE_BYTES - offset, units.clone(), offset + len - units.end * BASE_BYTES)
}

impl Store {
    /// Frames for data that are on their way to `offset` of a chunk; `None` where a buffer serves better: most of
    /// them would be copied in any case, or there is too little room.
    pub fn receive_buffer(&self, offset: u32, len: usize) -> Option<ReceiveBuffer> {
        if u64::from(offset) + len as u64 > 1 << CHUNK_BITS_MAX {
            return None;
        }
        let (first, units, last) = shape(offset as usize, len);
        let fits = !units.is_empty() && first + last <= units.len() * BASE_BYTES;
        if fits { self.slab.receive_buffer(first, units.len(), last) } else { None }
    }
}

impl<'a> Staged<'a> {
    /// Where in the chunk the data go.
    pub fn offset(&self) -> u32 {
        self.offset as u32
    }

    /// The data.
    pub fn data(&self) -> Vec<&[u8]> {
        match &self.data {
            Data::Borrowed(bytes) => vec![bytes],
            Data::Own(bytes) => vec![bytes],
            Data::Frames(ends) => {
                let whole = self.whole.iter().map(|frame| frame.bytes());
                std::iter::once(&ends.first[..]).chain(whole).chain([&ends.last[..]]).collect()
            }
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Their checksums.
    pub fn sums(&self) -> &'a [u32] {
        self.sums
    }

    /// The data, to be staged once more later; frames are given back.
    pub fn into_payload(mut self) -> Payload {
        self.give_up_frames();
        match self.data {
            Data::Borrowed(bytes) => Payload::Bytes(bytes.to_vec()),
            Data::Own(bytes) => Payload::Bytes(bytes),
            Data::Frames(in_frames) => Payload::Frames(in_frames),
        }
    }

    /// After it was put: the frames are the chunk's alone.
    pub fn let_go(&mut self) {
        self.whole = Vec::new();
    }

    /// Compares `data`, to be written at `offset`, with `sums`; an error names the first piece
    /// that does not match.
    pub(crate) fn new(slab: &Arc<Slab>, offset: usize, data: Data<'a>, sums: &'a [u32]) -> Result<Staged<'a>, usize> {
        match data {
            Data::Borrowed(bytes) => {
                let whole = copy_units(slab, offset, bytes, sums)?;
                Ok(Staged { offset, len: bytes.len(), sums, data, whole })
            }
            Data::Own(bytes) => {
                let whole = copy_units(slab, offset, &bytes, sums)?;
                Ok(Staged { offset, len: bytes.len(), sums, data: Data::Own(bytes), whole })
            }
            Data::Frames(in_frames) => {
                let (first, units, _) = shape(offset, in_frames.len());
                if (first, units.len()) != (in_frames.first.len(), in_frames.whole.len()) {
                    // They came for another place.
                    return Staged::new(slab, offset, Data::Own(in_frames.into_bytes()), sums);
                }
                Staged::in_place(offset, in_frames, sums)
            }
        }
    }

    /// Data in frames, compared where they are.
    fn in_place(offset: usize, in_frames: ReceivedFrames, sums: &'a [u32]) -> Result<Staged<'a>, usize> {
        let len = in_frames.len();
        check_count(offset, len, sums)?;
        let mut checked = check(offset, &in_frames.first, sums, 0)?;
        for frame in &in_frames.whole {
            checked = check(0, frame.bytes(), sums, checked)?;
        }
        check(0, &in_frames.last, sums, checked)?;
        let ReceivedFrames { first, whole, last } = in_frames;
        let whole = whole.into_iter().map(Arc::new).collect();
        Ok(Staged { offset, len, sums, data: Data::Frames(ReceivedFrames { first, whole: Vec::new(), last }), whole })
    }

    /// Data that need no check.
    pub(crate) fn unchecked(offset: usize, data: &'a [u8], sums: &'a [u32]) -> Staged<'a> {
        Staged { offset, len: data.len(), sums, data: Data::Borrowed(data), whole: Vec::new() }
    }

    /// Gives the frames back, and keeps their bytes.
    pub(crate) fn give_up_frames(&mut self) {
        if matches!(self.data, Data::Frames(_)) {
            self.data = Data::Own(self.data().concat());
        }
        self.whole = Vec::new();
    }

    /// A part of data that are not in frames.
    pub(crate) fn part(&self, range: Range<usize>) -> &[u8] {
        match &self.data {
            Data::Borrowed(bytes) => &bytes[range],
            Data::Own(bytes) => &bytes[range],
            Data::Frames(ends) if range.end <= ends.first.len() => &ends.first[range],
            Data::Frames(ends) => {
                let before = self.len - ends.last.len();
                &ends.last[range.start - before..range.end - before]
            }
        }
    }

    /// Where in the chunk it will be.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// Copies what fills whole units into frames, as far as some can be had, and checks everything.
fn copy_units(slab: &Arc<Slab>, offset: usize, data: &[u8], sums: &[u32]) -> Result<Vec<Arc<Frame>>, usize> {
    check_count(offset, data.len(), sums)?;
    let (first, units, _) = shape(offset, data.len());
    let mut checked = check(offset, &data[..first], sums, 0)?;
    let mut whole = Vec::with_capacity(units.len());
    let mut from = first;
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
        whole.push(Arc::new(frame));
        from += BASE_BYTES;
    }
    check(offset + from, &data[from..], sums, checked)?;
    Ok(whole)
}

/// An error names the first piece without a checksum, or the first checksum without a piece.
fn check_count(offset: usize, len: usize, sums: &[u32]) -> Result<(), usize> {
    let count = pieces(offset as u64, len).count();
    if count == sums.len() { Ok(()) } else { Err(count.min(sums.len())) }
}

/// Checks some of the data, which go to `offset` and whose first piece has the number given; gives the number of the
/// first piece after them.
fn check(offset: usize, part: &[u8], sums: &[u32], piece: usize) -> Result<usize, usize> {
    let offset = offset as u64;
    let count = pieces(offset, part.len()).count();
    match first_mismatch(offset, part, &sums[piece..piece + count]) {
        Some(wrong) => Err(piece + wrong),
        None => Ok(piece + count),
    }
}
