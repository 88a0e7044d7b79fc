//! Frames that are filled while the data for them arrive.
//!
//! It alone knows how much of a slab may be in the hands of peers that are still sending, and how an allocation that
//! needs it takes it back: the bytes that have come move to a buffer, and the rest follows them there. So a full slab
//! refuses nothing on account of data that are still on their way. It does not know what the data mean.

use std::collections::BTreeMap;
use std::io::{IoSliceMut, Result};
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

use super::{BASE_BYTES, Frame, FrameClass, Slab};

/// Most bytes of a slab that are filled at one time by data on their way; what comes beyond goes to buffers. It also
/// limits the bytes to be copied when memory runs out.
pub const RECEIVE_BUFFERS_BYTES_MAX: u64 = 64 << 20;

/// Of a small slab it is at most this part.
const RECEIVE_BUFFERS_SHARE: u64 = 8;

/// No receive buffer is given while less than this part of the slab is free: it would soon have to move.
const FREE_SHARE: u64 = 16;

/// Bulk data as they have come: in a buffer, or in frames of a slab.
#[derive(Debug)]
pub enum Payload {
    /// In a buffer.
    Bytes(Vec<u8>),
    /// In frames.
    Frames(ReceivedFrames),
}

/// Data in frames, all but the ends; no other owner can reach those frames.
#[derive(Debug)]
pub struct ReceivedFrames {
    /// What comes before the first frame: less than one is large.
    pub first: Vec<u8>,
    /// Frames of 64 KiB, full.
    pub whole: Vec<Frame>,
    /// What comes after the last frame: less than one is large.
    pub last: Vec<u8>,
}

impl Default for Payload {
    fn default() -> Self {
        Payload::Bytes(Vec::new())
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Payload::Bytes(bytes)
    }
}

impl Payload {
    /// Bytes altogether.
    pub fn len(&self) -> usize {
        match self {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Frames(in_frames) => in_frames.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them in one piece; frames are given back.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Payload::Bytes(bytes) => bytes,
            Payload::Frames(in_frames) => in_frames.into_bytes(),
        }
    }
}

#[expect(clippy::len_without_is_empty, reason = "a receive buffer has a frame at least")]
impl ReceivedFrames {
    /// Bytes altogether.
    pub fn len(&self) -> usize {
        self.first.len() + self.whole.len() * BASE_BYTES + self.last.len()
    }

    /// All of them in one piece; frames are given back.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend_from_slice(&self.first);
        self.whole.iter().for_each(|frame| bytes.extend_from_slice(frame.bytes()));
        bytes.extend_from_slice(&self.last);
        bytes
    }
}

/// Room for data on their way, of a length that is known, for their receiver. Dropped before it is full, it gives back
/// its frames.
pub struct ReceiveBuffer {
    slab: Arc<Slab>,
    serial: u64,
    bytes: usize,
    filled: usize,
    room: Arc<Mutex<Room>>,
}

/// Locked for as long as something is copied into it, never for as long as something is waited for.
#[derive(Default)]
struct Room {
    first: Vec<u8>,
    whole: Vec<Frame>,
    last: Vec<u8>,
    /// In place of these, if the frames were wanted elsewhere: room for everything.
    moved: Option<Vec<u8>>,
    filled: usize,
}

/// Everything of a slab that is being filled.
#[derive(Default)]
pub(super) struct ReceiveBuffers(Mutex<Open>);

#[derive(Default)]
struct Open {
    /// In frames.
    bytes: u64,
    last_serial: u64,
    rooms: BTreeMap<u64, (Weak<Mutex<Room>>, u64)>,
}

impl ReceiveBuffers {
    /// Bytes in frames that are being filled.
    pub(super) fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }

    /// Takes all frames back that are being filled.
    pub(super) fn move_out(&self) {
        let rooms = {
            let mut open = self.0.lock();
            open.bytes = 0;
            std::mem::take(&mut open.rooms)
        };
        for (room, _) in rooms.into_values() {
            if let Some(room) = room.upgrade() {
                room.lock().move_out();
            }
        }
    }
}

impl Room {
    fn bytes(&self) -> usize {
        self.first.len() + self.whole.len() * BASE_BYTES + self.last.len()
    }

    fn move_out(&mut self) {
        if self.whole.is_empty() {
            return;
        }
        let mut moved = vec![0; self.bytes()];
        let mut to = &mut moved[..self.filled];
        let (whole, first, last) = (&self.whole, &self.first[..], &self.last[..]);
        for part in std::iter::once(first).chain(whole.iter().map(Frame::bytes)).chain([last]) {
            let (now, later) = to.split_at_mut(to.len().min(part.len()));
            now.copy_from_slice(&part[..now.len()]);
            to = later;
        }
        *self = Room { moved: Some(moved), filled: self.filled, ..Room::default() };
    }

    /// The next `bytes_max` bytes to be filled.
    fn slices(&mut self, bytes_max: usize) -> Vec<IoSliceMut<'_>> {
        let (mut skip, mut left) = (self.filled, bytes_max);
        let parts: Box<dyn Iterator<Item = &mut [u8]>> = match &mut self.moved {
            Some(moved) => Box::new(std::iter::once(&mut moved[..])),
            None => Box::new(
                std::iter::once(&mut self.first[..])
                    .chain(self.whole.iter_mut().map(Frame::bytes_mut))
                    .chain([&mut self.last[..]]),
            ),
        };
        let mut slices = Vec::new();
        for part in parts {
            let start = skip.min(part.len());
            skip -= start;
            let len = left.min(part.len() - start);
            if len > 0 {
                slices.push(IoSliceMut::new(&mut part[start..start + len]));
                left -= len;
            }
        }
        slices
    }
}

impl Slab {
    /// Room for `first` bytes, then `units` frames of 64 KiB, then `last` bytes; `None` if the slab has too little to
    /// spare, and the data go to a buffer.
    ///
    /// # Panics
    /// If there is no frame in it, or an end is as large as one.
    pub fn receive_buffer(self: &Arc<Self>, first: usize, units: usize, last: usize) -> Option<ReceiveBuffer> {
        assert!(
            units > 0 && first < BASE_BYTES && last < BASE_BYTES,
            "a receive buffer fills frames, but for its ends"
        );
        let (bytes, capacity) = ((units * BASE_BYTES) as u64, self.capacity_bytes());
        if self.pool.used_bytes() + bytes > capacity - capacity / FREE_SHARE {
            return None;
        }
        let room = Arc::new(Mutex::new(Room::default()));
        // From here on a thread that is short of memory waits until the frames are in the room, and has them then.
        let mut filling = room.lock();
        let serial = {
            let mut open = self.receive_buffers.0.lock();
            if open.bytes + bytes > RECEIVE_BUFFERS_BYTES_MAX.min(capacity / RECEIVE_BUFFERS_SHARE) {
                return None;
            }
            open.bytes += bytes;
            open.last_serial += 1;
            let serial = open.last_serial;
            open.rooms.insert(serial, (Arc::downgrade(&room), bytes));
            serial
        };
        let (slab, bytes) = (self.clone(), first + units * BASE_BYTES + last);
        // From here on dropped as a whole.
        let receiving = ReceiveBuffer { slab, serial, bytes, filled: 0, room: room.clone() };
        for _ in 0..units {
            // Only free memory: no other receive buffer is moved out for it.
            filling.whole.push(self.allocate_spare(FrameClass::K64)?);
        }
        (filling.first, filling.last) = (vec![0; first], vec![0; last]);
        drop(filling);
        Some(receiving)
    }
}

#[expect(clippy::len_without_is_empty, reason = "a receive buffer has a frame at least")]
impl ReceiveBuffer {
    /// Bytes that it has room for altogether.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes still to come.
    pub fn left(&self) -> usize {
        self.bytes - self.filled
    }

    /// Has `read` fill the next `bytes_max` bytes, or all that are left, and then `rest`; it must not wait. Gives how
    /// many bytes came altogether, the first of them here.
    ///
    /// # Errors
    /// What `read` says.
    pub(crate) fn fill(
        &mut self,
        bytes_max: usize,
        rest: &mut [u8],
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize>,
    ) -> Result<usize> {
        let bytes_max = bytes_max.min(self.left());
        let mut room = self.room.lock();
        let mut slices = room.slices(bytes_max);
        if !rest.is_empty() {
            slices.push(IoSliceMut::new(rest));
        }
        let bytes = read(&mut slices)?;
        room.filled += bytes.min(bytes_max);
        self.filled = room.filled;
        Ok(bytes)
    }

    /// Copies as many bytes as there is room for; gives their number.
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        let copied = self.fill(bytes.len(), &mut [], |slices| {
            let mut from = bytes;
            for slice in slices {
                let (now, later) = from.split_at(slice.len());
                slice.copy_from_slice(now);
                from = later;
            }
            Ok(bytes.len() - from.len())
        });
        copied.expect("copying does not fail")
    }

    /// The payload, complete.
    ///
    /// # Panics
    /// If something is missing.
    pub fn finish(self) -> Payload {
        assert!(self.left() == 0, "the payload is complete");
        let Room { first, whole, last, moved, .. } = std::mem::take(&mut *self.room.lock());
        match moved {
            Some(bytes) => Payload::Bytes(bytes),
            None => Payload::Frames(ReceivedFrames { first, whole, last }),
        }
    }
}

impl Drop for ReceiveBuffer {
    fn drop(&mut self) {
        let mut open = self.slab.receive_buffers.0.lock();
        if let Some((_, bytes)) = open.rooms.remove(&self.serial) {
            open.bytes -= bytes;
        }
    }
}

impl std::fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBuffer")
            .field("bytes", &self.bytes)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}
