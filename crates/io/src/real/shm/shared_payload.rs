//! File data that are not sent but shared: where they lie in the server's memory, for a client of
//! the same node to copy them from there itself.
//!
//! It alone knows how a shared payload comes back. The server names a slot, keeps the frames for it, and lets them go
//! when the client has set the slot's bit in shared memory. Which bits clients set in vain, or never, is their own
//! affair: a slot that is out stays out until its connection ends, and there are few of them. The client may only read.
//! It knows after each copy whether the server still kept the copied bytes ([`returns`]), and believes nothing of them
//! until their checksums have been compared.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

use super::{ENDED, RETURNED, Shm, returns};
use crate::slab::{Frame, Slab};

/// Shared payloads of one connection that may be out at one time: a bit for each in one word.
const SLOTS: usize = 64;

/// Bytes that may be shared with one connection at one time: a client that stands still keeps no more
/// from being freed.
pub(super) const SHARED_BYTES_MAX: usize = 32 << 20;

/// Less is copied: it stays in the processor's cache on its way, and the first look at a shared page costs more.
pub(in super::super) const SHARE_BYTES_MIN: usize = 128 << 10;

/// Bytes of one piece as it is told: offset and length.
const PIECE_BYTES: usize = 16;

/// What a server shares.
pub(in super::super) struct SharedSlab {
    slab: Weak<Slab>,
    /// By which others may read the slab, and no more than that.
    file: OwnedFd,
}

impl SharedSlab {
    pub(in super::super) fn new(slab: &Arc<Slab>) -> Result<Arc<Self>> {
        Ok(Arc::new(SharedSlab { slab: Arc::downgrade(slab), file: slab.reader()? }))
    }
}

/// The frames that are shared with one connection.
pub(super) struct SharedFrames {
    shared_slab: Arc<SharedSlab>,
    out: Mutex<Out>,
}

struct Out {
    slots: [Option<(Vec<Arc<Frame>>, usize)>; SLOTS],
    free: VecDeque<usize>,
    bytes: usize,
}

impl SharedFrames {
    pub(super) fn new(shared_slab: Arc<SharedSlab>) -> Self {
        let out = Out { slots: std::array::from_fn(|_| None), free: (0..SLOTS).collect(), bytes: 0 };
        SharedFrames { shared_slab, out: Mutex::new(out) }
    }

    /// Keeps frames for the client; gives the slot, and what to tell: the slot and then each piece's
    /// place and length. `None` if they cannot be shared.
    pub(super) fn share_frames(&self, parts: &[(Arc<Frame>, std::ops::Range<usize>)]) -> Option<(usize, Vec<u8>)> {
        if parts.iter().any(|(frame, _)| !frame.is_of(&self.shared_slab.slab)) {
            return None;
        }
        let bytes = parts.iter().map(|(_, range)| range.len()).sum();
        let mut out = self.out.lock();
        if out.bytes + bytes > SHARED_BYTES_MAX {
            return None;
        }
        let slot = out.free.pop_front()?;
        out.bytes += bytes;
        out.slots[slot] = Some((parts.iter().map(|(frame, _)| frame.clone()).collect(), bytes));
        drop(out);
        let mut pieces: Vec<(u64, u64)> = Vec::with_capacity(parts.len());
        for (frame, range) in parts {
            let (start, len) = (frame.offset() + range.start as u64, range.len() as u64);
            match pieces.last_mut() {
                Some((from, so_far)) if *from + *so_far == start => *so_far += len,
                _ => pieces.push((start, len)),
            }
        }
        let words = std::iter::once(slot as u64).chain(pieces.into_iter().flat_map(|(start, len)| [start, len]));
        Some((slot, words.flat_map(u64::to_le_bytes).collect()))
    }

    /// Takes back slots, a bit for each; those that are not out are ignored.
    pub(super) fn take_back(&self, mut bits: u64) {
        if bits == 0 {
            return;
        }
        let mut back = Vec::new();
        let mut out = self.out.lock();
        while bits != 0 {
            let slot = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Some((frames, bytes)) = out.slots[slot].take() {
                out.bytes -= bytes;
                out.free.push_back(slot);
                back.push(frames);
            }
        }
        drop(out);
        // Freed without the lock.
        drop(back);
    }
}

impl Shm {
    /// The server's: the file from which the client reads its shared payloads.
    pub(super) fn shared_file(&self) -> Option<&OwnedFd> {
        self.shared_frames.as_ref().map(|shared_frames| &shared_frames.shared_slab.file)
    }

    /// Lets go of the frames that the client has given back.
    pub(in super::super) fn reclaim(&self) {
        if let Some(shared_frames) = &self.shared_frames {
            shared_frames.take_back(returns::take_back(self.word64(RETURNED)));
        }
    }

    /// The connection has ended: lets go of everything, and tells readers.
    pub(in super::super) fn reclaim_all(&self) {
        if let Some(shared_frames) = &self.shared_frames {
            returns::end(self.word64(ENDED));
            shared_frames.take_back(u64::MAX);
        }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        // However it came to this: nothing is let go of without a word.
        self.reclaim_all();
    }
}

/// A payload that is shared with this client: bytes that lie in the server's memory. They are given back when dropped.
pub(crate) struct ShmPayload {
    pub(super) shm: Arc<Shm>,
    pub(super) slot: u64,
    pieces: Vec<(u64, u64)>,
    len: usize,
}

impl ShmPayload {
    /// From what the server tells; an error if that cannot be.
    pub(super) fn new(shm: Arc<Shm>, told: &[u8], len: usize) -> Result<ShmPayload> {
        let nonsense = |what: &str| Error::new(ErrorKind::InvalidData, format!("the server shares {what}"));
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let Some((slot, pieces)) = told.split_first_chunk::<8>() else { return Err(nonsense("nothing")) };
        let slot = u64::from_le_bytes(*slot);
        if shm.shared.is_none() || slot >= SLOTS as u64 || !pieces.len().is_multiple_of(PIECE_BYTES) {
            return Err(nonsense("what it cannot share"));
        }
        let pieces: Vec<_> =
            pieces.chunks_exact(PIECE_BYTES).map(|piece| (word(&piece[..8]), word(&piece[8..]))).collect();
        let sum = pieces.iter().try_fold(0u64, |sum, (_, len)| sum.checked_add(*len));
        if sum != Some(len as u64) {
            return Err(nonsense("another number of bytes than it announced"));
        }
        Ok(ShmPayload { shm, slot, pieces, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// See [`crate::SharedPayload::copy_to`].
    pub(crate) fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        self.copy_pieces(at, to) && returns::was_kept(self.shm.word64(ENDED))
    }

    fn copy_pieces(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(memory) = &self.shm.shared else { return false };
        let (mut skip, mut rest) = (at as u64, to);
        for (start, len) in &self.pieces {
            if rest.is_empty() {
                return true;
            }
            if skip >= *len {
                skip -= len;
                continue;
            }
            let now = usize::try_from(len - skip).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = rest.split_at_mut(now);
            let from = usize::try_from(start.saturating_add(skip)).unwrap_or(usize::MAX);
            if from.checked_add(now).is_none_or(|end| end > memory.bytes()) {
                return false;
            }
            memory.copy_to(from, part);
            (skip, rest) = (0, after);
        }
        rest.is_empty()
    }
}

impl std::fmt::Debug for ShmPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmPayload").field("slot", &self.slot).field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

impl Drop for ShmPayload {
    fn drop(&mut self) {
        returns::give_back(self.shm.word64(RETURNED), self.slot);
    }
}
