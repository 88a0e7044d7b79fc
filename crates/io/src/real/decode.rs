//! From bytes off a stream to whole frames.
//!
//! It alone knows how a frame lies on the wire: an eight-byte prefix, two little-endian
//! 32-bit lengths, the head's then the payload's; then the head; then the payload. What head
//! and payload mean it does not know, nor when to read.

use std::cell::Cell;
use std::io::{IoSliceMut, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::shm::ring::Consumer;
use super::sys::{self, Room};
use crate::shared_payload::{SharedPayload, Source};
use crate::slab::ReceiveBuffer;
use crate::{FRAMES_PAYLOAD_BYTES_MIN, Frame, FrameLimits, NetError};

/// Length of the prefix of each frame, in bytes.
pub(super) const PREFIX_BYTES: usize = 8;

/// Size of a connection's read buffer, in bytes: many small frames come with one read. What of
/// a frame is not in it yet is read straight into the frame.
const BUFFER_BYTES: usize = 64 << 10;

/// Most bytes of one frame that one read takes, so that others get their turn.
const READ_BYTES_MAX: usize = 4 << 20;

/// The prefix of a frame, or an error that names the length that does not fit in 32 bits.
pub(super) fn prefix(head_bytes: usize, payload_bytes: usize) -> std::result::Result<[u8; PREFIX_BYTES], NetError> {
    let length = |bytes: usize| {
        u32::try_from(bytes).map_err(|_| NetError::Limit(format!("a frame cannot carry {bytes} bytes in one part")))
    };
    if head_bytes == 0 {
        return Err(NetError::Limit("a frame without a head cannot be sent".into()));
    }
    let (head, payload) = (length(head_bytes)?, length(payload_bytes)?);
    Ok((u64::from(payload) << 32 | u64::from(head)).to_le_bytes())
}

/// How one read ended.
pub(super) struct Filled {
    /// Bytes read; 0 is the end of the stream.
    pub(super) bytes: usize,
    /// There was room for more, so that the socket was empty.
    pub(super) drained: bool,
}

thread_local! {
    /// The buffer that a decoder has laid down here last, for the next one: most connections have nothing to read at most times.
    static SPARE: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

/// The state of one stream between reads.
pub(super) struct Decoder {
    /// Empty between reads of a socket, unless bytes are left in it.
    buffer: Box<[u8]>,
    /// Bytes of `buffer` read from the socket but not yet taken: `start..end`.
    start: usize,
    end: usize,
    partial: Option<Partial>,
}

/// A frame whose lengths are known.
#[derive(Default)]
struct Partial {
    frame: Frame,
    head_bytes_left: usize,
    payload_bytes_left: usize,
    /// The handler has not yet said where the payload shall go: it can once the head is there.
    is_open: bool,
    /// The payload goes here, or else to the frame's own buffer.
    receiving: Option<ReceiveBuffer>,
}

/// Says where a payload shall go, from the head and its length; see [`crate::Handler::receive_buffer`].
pub(super) type ChooseBuffer<'a> = &'a dyn Fn(&[u8], usize) -> Option<ReceiveBuffer>;

impl Decoder {
    pub(super) fn new() -> Self {
        Self::with_buffer(0)
    }

    /// For a ring, where reading costs no system call: a buffer for the prefix alone, so that
    /// everything else is copied once.
    pub(super) fn for_ring() -> Self {
        Self::with_buffer(PREFIX_BYTES)
    }

    fn with_buffer(bytes: usize) -> Self {
        Decoder { buffer: vec![0; bytes].into(), start: 0, end: 0, partial: None }
    }

    /// Takes a buffer up for reads of a socket.
    #[inline]
    fn take_up(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = SPARE.take().unwrap_or_else(|| vec![0; BUFFER_BYTES].into());
        }
    }

    /// Nothing is read for a while: lays the buffer down if nothing is left in it.
    pub(super) fn lay_down(&mut self) {
        if self.start == self.end && self.buffer.len() == BUFFER_BYTES {
            (self.start, self.end) = (0, 0);
            SPARE.set(Some(std::mem::take(&mut self.buffer)));
        }
    }

    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the stream may not end here.
    pub(super) fn is_inside_frame(&self) -> bool {
        self.partial.is_some() || self.start < self.end
    }

    /// Whether a frame is at hand that needs no further read.
    pub(super) fn has_whole_frame(&self) -> bool {
        let there = &self.buffer[self.start..self.end];
        let Some((prefix, rest)) = there.split_first_chunk::<PREFIX_BYTES>() else { return false };
        let lengths = u64::from_le_bytes(*prefix);
        self.partial.is_none() && (lengths & u64::from(u32::MAX)) + (lengths >> 32) <= rest.len() as u64
    }

    /// The next whole frame in the bytes read, if any. An error ends the stream.
    #[inline]
    pub(super) fn next(
        &mut self,
        limits: FrameLimits,
        receive_buffer: ChooseBuffer<'_>,
    ) -> std::result::Result<Option<Frame>, NetError> {
        if self.partial.is_none() {
            let Some((prefix, _)) = self.buffer[self.start..self.end].split_first_chunk::<PREFIX_BYTES>() else {
                return Ok(None);
            };
            self.partial = Some(Partial::new(*prefix, limits)?);
            self.start += PREFIX_BYTES;
        }
        if let Some(partial) = &mut self.partial {
            self.start += partial.take_head(&self.buffer[self.start..self.end]);
            if partial.head_bytes_left == 0 {
                partial.settle(receive_buffer)?;
                self.start += partial.take_payload(&self.buffer[self.start..self.end]);
            }
        }
        let whole = self.partial.take_if(|partial| partial.head_bytes_left + partial.payload_bytes_left == 0);
        Ok(whole.map(Partial::finish))
    }

    /// Reads once from `fd`, after `next` has returned `None`; waits for bytes if `wait` says so.
    pub(super) fn fill(&mut self, fd: &OwnedFd, wait: bool) -> Result<Filled> {
        self.take_up();
        if self.is_receiving() {
            if wait {
                // The frames may be wanted elsewhere meanwhile, and must not be in the kernel's hands.
                sys::await_bytes(fd)?;
            }
            return self.fill_receiving(|slices| sys::receive_slices(fd, slices));
        }
        self.fill_with(|head, payload, rest| sys::receive(fd, head, payload, rest, wait))
    }

    /// Takes bytes or a shared payload from a ring, after `next` has returned `None`.
    #[inline]
    pub(super) fn fill_from(&mut self, ring: &mut Consumer) -> Result<Filled> {
        if self.is_receiving() {
            return self.fill_receiving(|slices| ring.read_slices(slices));
        }
        if let Some(partial) = &mut self.partial
            && partial.head_bytes_left == 0
            && partial.payload_bytes_left > 0
            && partial.frame.payload.is_empty()
            && let Some(shared) = ring.take_shared(partial.payload_bytes_left)?
        {
            partial.frame.shared = Some(Arc::new(SharedPayload(Source::Shm(shared))));
            let bytes = std::mem::take(&mut partial.payload_bytes_left);
            return Ok(Filled { bytes, drained: false });
        }
        self.fill_with(|head, payload, rest| ring.read(head, payload, rest))
    }

    fn is_receiving(&self) -> bool {
        self.partial.as_ref().is_some_and(|partial| partial.receiving.is_some())
    }

    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Reads into the frames that the payload goes to, and if they have room for all of it, on into the buffer.
    fn fill_receiving(&mut self, read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize>) -> Result<Filled> {
        self.make_room();
        let Some(Partial { payload_bytes_left: left, receiving: Some(receiving), .. }) = &mut self.partial else {
            unreachable!("only called for a payload that goes to frames")
        };
        let bytes_max = (*left).min(READ_BYTES_MAX);
        let buffer = if bytes_max == *left { &mut self.buffer[self.end..] } else { &mut [][..] };
        let room = bytes_max + buffer.len();
        let bytes = receiving.fill(bytes_max, buffer, read)?;
        let payload_bytes = bytes.min(bytes_max);
        *left -= payload_bytes;
        self.end += bytes - payload_bytes;
        Ok(Filled { bytes, drained: bytes < room })
    }

    fn fill_with(&mut self, read: impl FnOnce(Room<'_>, Room<'_>, &mut [u8]) -> Result<usize>) -> Result<Filled> {
        self.make_room();
        let mut none = Partial::default();
        let partial = self.partial.as_mut().unwrap_or(&mut none);
        let head_bytes_max = partial.head_bytes_left.min(READ_BYTES_MAX);
        let is_head_only = partial.is_open || head_bytes_max < partial.head_bytes_left;
        let payload_bytes_max = if is_head_only { 0 } else { partial.payload_bytes_left.min(READ_BYTES_MAX) };
        let direct_bytes_max = head_bytes_max + payload_bytes_max;
        let direct_bytes_left = partial.head_bytes_left + if partial.is_open { 0 } else { partial.payload_bytes_left };
        let is_rest = direct_bytes_max == direct_bytes_left;
        let buffer = if is_rest { &mut self.buffer[self.end..] } else { &mut [][..] };
        let room = direct_bytes_max + buffer.len();
        let head = Room { vec: &mut partial.frame.head, bytes_max: head_bytes_max };
        let payload = Room { vec: &mut partial.frame.payload, bytes_max: payload_bytes_max };
        let bytes = read(head, payload, buffer)?;
        let head_bytes = bytes.min(head_bytes_max);
        let payload_bytes = (bytes - head_bytes).min(payload_bytes_max);
        partial.head_bytes_left -= head_bytes;
        partial.payload_bytes_left -= payload_bytes;
        self.end += bytes - head_bytes - payload_bytes;
        Ok(Filled { bytes, drained: bytes < room })
    }
}

impl Partial {
    fn new(prefix: [u8; PREFIX_BYTES], limits: FrameLimits) -> std::result::Result<Self, NetError> {
        let lengths = u64::from_le_bytes(prefix);
        let head_bytes = (lengths & u64::from(u32::MAX)) as u32;
        let payload_bytes = (lengths >> 32) as u32;
        if head_bytes == 0 {
            return Err(NetError::Limit(
                "the peer sent a frame without a head: it does not speak this protocol".into(),
            ));
        }
        let checks =
            [("head", head_bytes, limits.head_bytes_max), ("payload", payload_bytes, limits.payload_bytes_max)];
        for (part, bytes, bytes_max) in checks {
            if bytes > bytes_max {
                let why =
                    format!("the peer announced a frame {part} of {bytes} bytes; at most {bytes_max} are accepted");
                return Err(NetError::Limit(why));
            }
        }
        let is_open = payload_bytes as usize >= FRAMES_PAYLOAD_BYTES_MIN;
        let payload = if is_open { Vec::new() } else { reserve(payload_bytes as usize)? };
        let frame = Frame { head: reserve(head_bytes as usize)?, payload, ..Frame::default() };
        let (head_bytes_left, payload_bytes_left) = (head_bytes as usize, payload_bytes as usize);
        Ok(Partial { frame, head_bytes_left, payload_bytes_left, is_open, receiving: None })
    }

    /// Finds out where the payload goes, once the head is there.
    fn settle(&mut self, receive_buffer: ChooseBuffer<'_>) -> std::result::Result<(), NetError> {
        if std::mem::take(&mut self.is_open) {
            self.receiving = receive_buffer(&self.frame.head, self.payload_bytes_left);
            if self.receiving.is_none() {
                self.frame.payload = reserve(self.payload_bytes_left)?;
            }
        }
        Ok(())
    }

    /// Takes what belongs to the head from `bytes`; returns how many that are.
    fn take_head(&mut self, bytes: &[u8]) -> usize {
        let head = &bytes[..bytes.len().min(self.head_bytes_left)];
        self.frame.head.extend_from_slice(head);
        self.head_bytes_left -= head.len();
        head.len()
    }

    /// The same for the payload, once it is settled where that goes.
    fn take_payload(&mut self, bytes: &[u8]) -> usize {
        let payload = &bytes[..bytes.len().min(self.payload_bytes_left)];
        match &mut self.receiving {
            Some(receiving) => assert!(receiving.put(payload) == payload.len(), "there is room for all of it"),
            None => self.frame.payload.extend_from_slice(payload),
        }
        self.payload_bytes_left -= payload.len();
        payload.len()
    }

    fn finish(mut self) -> Frame {
        if let Some(receiving) = self.receiving.take() {
            self.frame.set_payload(receiving.finish());
        }
        self.frame
    }
}

/// An empty vector with room for exactly `bytes`.
fn reserve(bytes: usize) -> std::result::Result<Vec<u8>, NetError> {
    let mut vec = Vec::new();
    match vec.try_reserve_exact(bytes) {
        Ok(()) => Ok(vec),
        Err(error) => Err(NetError::Limit(format!("no memory for a frame of {bytes} bytes: {error}"))),
    }
}
