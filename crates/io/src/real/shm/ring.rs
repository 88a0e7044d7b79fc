//! A ring of bytes between two processes.
//!
//! It alone knows how bytes lie in it: in *records*, each a word that tells its length, and then
//! its bytes, never around the ring's end. Positions only grow; each end keeps its own and trusts
//! nothing that it reads of the other's: a position or a length that cannot be ends the
//! connection. A stream of bytes goes in and comes out; what they mean it does not know. In their
//! stead a record may tell where bytes are shared ([`super::shared_payload`]).

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::super::sys::Room;
use super::shared_payload::ShmPayload;
use super::{RING_BYTES, Shm, wake};
use crate::slab::Frame;

/// An empty ring that was used beyond this begins again at its start, so that small frames go
/// through memory that is in the cache, and further pages are never touched.
pub(super) const HOT_BYTES: usize = 64 << 10;

const WORD_BYTES: usize = 8;

/// The upper half of a record's word; the lower is its length.
pub(super) const DATA: u64 = 0x6174_6164;
/// In place of the stream's next bytes: where they are shared.
pub(super) const SHARED: u64 = 0x746e_656c;
/// Longest record of the kind, and longest data before it in the same step.
const SHARED_RECORD_BYTES_MAX: usize = 16 << 10;
/// No data: the next record is at the ring's start.
pub(super) const SKIP: u64 = 0x7069_6b73;

/// Where one direction lies in the memory file.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    /// Word: up to where it is filled.
    pub(super) head: usize,
    /// Word: up to where it was taken.
    pub(super) tail: usize,
    /// Word: not zero if the end that fills it waits for room.
    pub(super) room: usize,
    /// The ring itself.
    pub(super) data: usize,
}

fn nonsense(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the other end wrote nonsense into the shared memory: {what}"))
}

/// Bytes of a record with `len` bytes in it.
fn record_bytes(len: usize) -> usize {
    WORD_BYTES + len.next_multiple_of(WORD_BYTES)
}

fn offset(position: u64) -> usize {
    (position % RING_BYTES as u64) as usize
}

/// The end that fills a ring.
pub(in super::super) struct Producer {
    shm: Arc<Shm>,
    lane: Lane,
    head: u64,
}

impl Producer {
    pub(super) fn new(shm: Arc<Shm>, lane: Lane) -> Self {
        Producer { shm, lane, head: 0 }
    }

    /// Puts as much of `slices` into the ring as has room, tells the other end, and says how
    /// many bytes that were.
    pub(in super::super) fn write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let before = self.head;
        let taken = self.put(slices)?;
        self.publish(before);
        Ok(taken)
    }

    /// Puts all of `head` into the ring, and behind it where the bytes `parts` are shared; `false`, and nothing
    /// was done, if there is too little room or they cannot be shared.
    pub(in super::super) fn write_shared(
        &mut self,
        head: &[IoSlice<'_>],
        parts: &[(Arc<Frame>, Range<usize>)],
    ) -> Result<bool> {
        let Some(shared_frames) = &self.shm.shared_frames else { return Ok(false) };
        self.shm.reclaim();
        let head_bytes: usize = head.iter().map(|slice| slice.len()).sum();
        if head_bytes > SHARED_RECORD_BYTES_MAX || self.used()? > RING_BYTES / 2 {
            return Ok(false);
        }
        let Some((slot, told)) = shared_frames.share_frames(parts) else { return Ok(false) };
        if told.len() > SHARED_RECORD_BYTES_MAX {
            shared_frames.take_back(1 << slot);
            return Ok(false);
        }
        let before = self.head;
        let taken = self.put(head)?;
        assert!(taken == head_bytes, "half of the ring has room for it");
        let record = record_bytes(told.len());
        let straight = RING_BYTES - offset(self.head);
        if straight < record {
            self.put_word(offset(self.head), SKIP, 0);
            self.head += straight as u64;
        }
        let at = offset(self.head);
        self.put_word(at, SHARED, told.len());
        self.shm.region.copy_in(self.lane.data + at + WORD_BYTES, &told);
        self.head += record as u64;
        self.publish(before);
        Ok(true)
    }

    /// Makes the records put since `before` visible to the other end.
    fn publish(&self, before: u64) {
        if self.head != before {
            wake::publish(self.shm.word64(self.lane.head), self.head);
            self.shm.tell_data();
        }
    }

    /// Puts as much of `slices` into the ring as has room.
    fn put(&mut self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut left = wanted;
        let mut slices = slices.iter().map(|slice| &slice[..]);
        let mut slice: &[u8] = &[];
        while left > 0 {
            let used = self.used()?;
            let (at, free) = (offset(self.head), RING_BYTES - used);
            let straight = RING_BYTES - at;
            let rewind = used == 0 && at > HOT_BYTES && record_bytes(left) <= at;
            if (rewind || straight <= WORD_BYTES) && free >= straight {
                self.put_word(at, SKIP, 0);
                self.head += straight as u64;
                continue;
            }
            let room = straight.min(free).saturating_sub(WORD_BYTES) / WORD_BYTES * WORD_BYTES;
            let len = left.min(room);
            if len == 0 {
                break;
            }
            let mut to = self.lane.data + at + WORD_BYTES;
            let end = to + len;
            while to < end {
                if slice.is_empty() {
                    slice = slices.next().expect("there are as many bytes as were counted");
                }
                let (now, later) = slice.split_at(slice.len().min(end - to));
                self.shm.region.copy_in(to, now);
                to += now.len();
                slice = later;
            }
            self.put_word(at, DATA, len);
            self.head += record_bytes(len) as u64;
            left -= len;
        }
        Ok(wanted - left)
    }

    /// After a write that found no room: asks to be told of some. `true` if there is room now.
    pub(in super::super) fn want_room(&self) -> Result<bool> {
        wake::announce(self.shm.word32(self.lane.room));
        Ok(self.used()? <= RING_BYTES / 2)
    }

    fn put_word(&self, at: usize, kind: u64, len: usize) {
        // A later `publish` makes it visible.
        self.shm.word64(self.lane.data + at).store(kind << 32 | len as u64, Relaxed);
    }

    /// Bytes that the other end has not taken yet.
    fn used(&self) -> Result<usize> {
        let tail = self.shm.word64(self.lane.tail).load(SeqCst);
        let used = self.head.wrapping_sub(tail);
        if used > RING_BYTES as u64 || !tail.is_multiple_of(WORD_BYTES as u64) {
            return Err(nonsense("it took what was never there"));
        }
        Ok(used as usize)
    }
}

/// The end that empties a ring.
pub(in super::super) struct Consumer {
    shm: Arc<Shm>,
    lane: Lane,
    tail: u64,
    /// The record at `tail`, if it was begun.
    record: Option<Record>,
}

#[derive(Clone, Copy)]
struct Record {
    len: usize,
    taken: usize,
    is_shared: bool,
}

impl Consumer {
    pub(super) fn new(shm: Arc<Shm>, lane: Lane) -> Self {
        Consumer { shm, lane, tail: 0, record: None }
    }

    /// Takes the bytes at hand into `first`, then `second`, then `rest`; returns how many they were. `WouldBlock` if
    /// there is nothing.
    #[inline]
    pub(in super::super) fn read(
        &mut self,
        mut first: Room<'_>,
        mut second: Room<'_>,
        rest: &mut [u8],
    ) -> Result<usize> {
        let before = self.tail;
        let mut rest_filled = 0;
        let mut bytes = 0;
        while first.bytes_max + second.bytes_max + rest.len() > rest_filled {
            let Some(record) = self.record()? else { break };
            if record.is_shared {
                if bytes == 0 {
                    return Err(nonsense("something shared where none can be"));
                }
                break;
            }
            let at = self.lane.data + offset(self.tail) + WORD_BYTES + record.taken;
            let there = record.len - record.taken;
            let taken = if first.bytes_max > 0 {
                take_into(&self.shm, at, there, &mut first)
            } else if second.bytes_max > 0 {
                take_into(&self.shm, at, there, &mut second)
            } else {
                let room = &mut rest[rest_filled..];
                let len = there.min(room.len());
                self.shm.region.copy_to(at, &mut room[..len]);
                rest_filled += len;
                len
            };
            bytes += taken;
            self.advance(record, taken);
        }
        self.publish(before);
        if bytes == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(bytes) }
    }

    /// Takes the bytes at hand into `slices`, one after the other; returns how many they were. `WouldBlock` if there is
    /// nothing.
    pub(in super::super) fn read_slices(&mut self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let before = self.tail;
        let mut bytes = 0;
        'slices: for slice in slices {
            let mut room = &mut slice[..];
            while !room.is_empty() {
                let Some(record) = self.record()? else { break 'slices };
                if record.is_shared {
                    return Err(nonsense("something shared where none can be"));
                }
                let at = self.lane.data + offset(self.tail) + WORD_BYTES + record.taken;
                let (now, later) = room.split_at_mut(room.len().min(record.len - record.taken));
                self.shm.region.copy_to(at, now);
                let taken = now.len();
                room = later;
                bytes += taken;
                self.advance(record, taken);
            }
        }
        self.publish(before);
        if bytes == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(bytes) }
    }

    /// Gives the shared payload that replaces the next `len` bytes, if a shared payload comes next.
    pub(in super::super) fn take_shared(&mut self, len: usize) -> Result<Option<ShmPayload>> {
        let before = self.tail;
        let Some(record) = self.record()?.filter(|record| record.is_shared) else { return Ok(None) };
        let mut told = Vec::with_capacity(record.len);
        self.shm.region.copy_out(self.lane.data + offset(self.tail) + WORD_BYTES, &mut told, record.len);
        let shared = ShmPayload::new(self.shm.clone(), &told, len)?;
        self.advance(record, record.len);
        self.publish(before);
        Ok(Some(shared))
    }

    /// Tells the other end of the bytes taken since `before`.
    fn publish(&self, before: u64) {
        if self.tail != before {
            self.shm.taken.store(self.tail, SeqCst);
            wake::publish(self.shm.word64(self.lane.tail), self.tail);
            self.shm.tell_room();
        }
    }

    fn advance(&mut self, record: Record, taken: usize) {
        let taken = record.taken + taken;
        if taken == record.len {
            self.tail += record_bytes(record.len) as u64;
            self.record = None;
        } else {
            self.record = Some(Record { taken, ..record });
        }
    }

    /// The record to take from, if there is one. Its word is read once, and then checked.
    fn record(&mut self) -> Result<Option<Record>> {
        loop {
            if self.record.is_some() {
                return Ok(self.record);
            }
            let head = self.shm.word64(self.lane.head).load(Acquire);
            let there = head.wrapping_sub(self.tail);
            if there == 0 {
                return Ok(None);
            }
            if there > RING_BYTES as u64 || !head.is_multiple_of(WORD_BYTES as u64) {
                return Err(nonsense("more than fits into the ring"));
            }
            let at = offset(self.tail);
            let (straight, there) = (RING_BYTES - at, there as usize);
            let word = self.shm.word64(self.lane.data + at).load(Relaxed);
            let len = (word & u64::from(u32::MAX)) as usize;
            match word >> 32 {
                SKIP if straight <= there => self.tail += straight as u64,
                kind @ (DATA | SHARED) if len > 0 && record_bytes(len) <= straight.min(there) => {
                    self.record = Some(Record { len, taken: 0, is_shared: kind == SHARED });
                }
                _ => return Err(nonsense("a record that cannot be")),
            }
        }
    }
}

fn take_into(shm: &Shm, at: usize, there: usize, room: &mut Room<'_>) -> usize {
    let len = there.min(room.bytes_max);
    shm.region.copy_out(at, room.vec, len);
    room.bytes_max -= len;
    len
}
