//! Sending: frames go to the socket or the ring at once, and what these do not take waits in a queue.
//!
//! It alone knows how the queue is kept, that small frames sent while the reader has more at hand leave with one call,
//! and when epoll is asked to tell of room.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::super::shm::ring::Producer;
use super::super::sys;
use super::{Conn, READ_PAUSE_BYTES, closed, events};
use crate::slab;
use crate::{NetError, SEND_QUEUE_BYTES_MAX};

/// Small frames are appended to the last chunk of a send queue up to this size, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Frames of up to this size, in bytes, that are sent while several frames that came together are handled wait for the
/// last of them: they leave with one call. Larger frames are worth a call of their own, and not a copy.
const CORKED_FRAME_BYTES: usize = 16 << 10;

/// Chunks given to the kernel in one call.
const CHUNKS_PER_SEND: usize = 64;

/// The bytes still to be sent.
#[derive(Default)]
pub(super) struct Writer {
    /// Frames go here, or into the socket.
    pub(super) ring: Option<Producer>,
    pub(super) chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that the socket has taken.
    first_taken: usize,
    /// Bytes that wait altogether.
    pub(super) bytes: usize,
    pub(super) registered: bool,
    /// A thread of its own waits for what comes, and the epoll instance does not tell of it.
    pub(super) attended: bool,
    /// The epoll instance tells when there is room.
    pub(super) armed: bool,
    /// The reader has more frames at hand: small answers wait for them.
    pub(super) corked: bool,
    /// The reader stopped because of the bytes that wait here.
    pub(super) read_paused: bool,
    pub(super) ended: Option<NetError>,
}

impl Conn {
    /// Sends what waits, as far as the socket takes it.
    pub(super) fn flush(self: &Arc<Self>) {
        let mut writer = self.writer.lock();
        if let Err(error) = writer.send_chunks(&self.socket) {
            writer.end(closed(error));
        }
        self.waiting_bytes.store(writer.bytes, SeqCst);
        if writer.bytes == 0 && writer.armed && writer.registered {
            writer.armed = false;
            self.reactor.reregister(self.id, &self.socket, events(false, writer.attended));
        }
        let ended = writer.ended.is_some();
        let resume = writer.read_paused && (ended || writer.bytes < READ_PAUSE_BYTES / 2);
        writer.read_paused &= !resume;
        drop(writer);
        if ended {
            sys::shutdown(&self.socket);
        }
        if resume || ended {
            self.read_soon();
        }
    }

    /// Sends `slices`, or as much as the socket takes, and queues the rest.
    pub(super) fn send_slices(&self, slices: &mut [IoSlice<'_>]) -> Result<(), NetError> {
        let mut writer = self.writer.lock();
        if let Some(why) = &writer.ended {
            return Err(why.clone());
        }
        let mut rest = slices;
        if writer.corked {
            let bytes: usize = rest.iter().map(|slice| slice.len()).sum();
            if bytes <= CORKED_FRAME_BYTES && writer.bytes + bytes <= CHUNK_BYTES {
                writer.queue(rest, bytes);
                self.waiting_bytes.store(writer.bytes, SeqCst);
                return Ok(());
            }
            if !writer.armed {
                writer.send_chunks(&self.socket).map_err(|error| writer.end(closed(error)))?;
            }
        }
        if writer.bytes == 0 {
            send_until_full(&self.socket, writer.ring.as_mut(), &mut rest)
                .map_err(|error| writer.end(closed(error)))?;
        }
        let rest_bytes: usize = rest.iter().map(|slice| slice.len()).sum();
        if rest_bytes == 0 {
            return Ok(());
        }
        if writer.bytes + rest_bytes > SEND_QUEUE_BYTES_MAX {
            let why = format!("the peer leaves more than {SEND_QUEUE_BYTES_MAX} bytes untaken: it is cut off");
            self.stopped.store(true, SeqCst);
            return Err(writer.end(NetError::Limit(why)));
        }
        writer.queue(rest, rest_bytes);
        // Known to the thread that is told of room, before it is asked for.
        self.waiting_bytes.store(writer.bytes, SeqCst);
        if writer.ring.is_some() {
            writer.send_chunks(&self.socket).map_err(|error| writer.end(closed(error)))?;
            self.waiting_bytes.store(writer.bytes, SeqCst);
        } else {
            self.arm(&mut writer);
        }
        Ok(())
    }

    /// Tells where `held` are instead of sending them; `false` if that cannot be now.
    pub(super) fn send_shared(
        &self,
        head: &[IoSlice<'_>],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) -> Result<bool, NetError> {
        let mut writer = self.writer.lock();
        if let Some(why) = &writer.ended {
            return Err(why.clone());
        }
        if writer.bytes > 0 {
            return Ok(false);
        }
        let Some(ring) = &mut writer.ring else { return Ok(false) };
        ring.write_shared(head, held).map_err(|error| writer.end(closed(error)))
    }

    pub(super) fn after_send(&self, sent: Result<(), NetError>) -> Result<(), NetError> {
        if sent.is_err() {
            // What came before is still given to the handler, and then the end.
            sys::shutdown(&self.socket);
            if let Some(this) = self.this.upgrade() {
                this.read_soon();
            }
        }
        sent
    }

    /// Sends the small frames that were held back until the last frame of a batch.
    pub(super) fn uncork(&self, corked: &mut bool) {
        if !std::mem::take(corked) {
            return;
        }
        let mut writer = self.writer.lock();
        writer.corked = false;
        if writer.armed {
            return;
        }
        match writer.send_chunks(&self.socket) {
            Ok(()) => self.arm(&mut writer),
            Err(error) => {
                writer.end(closed(error));
                drop(writer);
                // The reader, which is the caller, finds the end.
                sys::shutdown(&self.socket);
            }
        }
    }

    /// Has epoll tell of room if something is left to be sent.
    fn arm(&self, writer: &mut Writer) {
        self.waiting_bytes.store(writer.bytes, SeqCst);
        if writer.bytes > 0 && writer.registered && !writer.armed {
            writer.armed = true;
            self.reactor.reregister(self.id, &self.socket, events(true, writer.attended));
        }
    }
}

/// Sends from `slices` until they or the room in the socket or ring are used up; leaves the unsent rest there.
fn send_until_full(
    socket: &OwnedFd,
    mut ring: Option<&mut Producer>,
    slices: &mut &mut [IoSlice<'_>],
) -> std::io::Result<()> {
    // Drops empty slices at the front.
    IoSlice::advance_slices(slices, 0);
    while !slices.is_empty() {
        let offered = &slices[..slices.len().min(sys::SLICES_MAX)];
        let offered_bytes: usize = offered.iter().map(|slice| slice.len()).sum();
        let sent = match &mut ring {
            Some(ring) => ring.write(offered),
            None => sys::send(socket, offered),
        };
        match sent {
            Ok(bytes) => {
                IoSlice::advance_slices(slices, bytes);
                if bytes < offered_bytes {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Writer {
    /// Ends sending; returns why, which is the first reason given.
    pub(super) fn end(&mut self, why: NetError) -> NetError {
        self.chunks = VecDeque::new();
        self.first_taken = 0;
        self.bytes = 0;
        self.ended.get_or_insert(why).clone()
    }

    /// Copies `slices`, `bytes` long altogether, behind what waits.
    fn queue(&mut self, slices: &[IoSlice<'_>], bytes: usize) {
        match self.chunks.back_mut() {
            Some(last) if last.len() + bytes <= CHUNK_BYTES => {
                slices.iter().for_each(|slice| last.extend_from_slice(slice))
            }
            _ => {
                let mut chunk = Vec::with_capacity(bytes);
                slices.iter().for_each(|slice| chunk.extend_from_slice(slice));
                self.chunks.push_back(chunk);
            }
        }
        self.bytes += bytes;
    }

    fn send_chunks(&mut self, socket: &OwnedFd) -> std::io::Result<()> {
        while !self.chunks.is_empty() {
            let mut slices: Vec<IoSlice<'_>> =
                self.chunks.iter().take(CHUNKS_PER_SEND).map(|c| IoSlice::new(c)).collect();
            slices[0] = IoSlice::new(&self.chunks[0][self.first_taken..]);
            let count = slices.len();
            let mut rest = &mut slices[..];
            send_until_full(socket, self.ring.as_mut(), &mut rest)?;
            let is_full = !rest.is_empty();
            let first_left = rest.first().map_or(0, |slice| slice.len());
            let whole = count - rest.len();
            self.chunks.drain(..whole);
            self.first_taken = if is_full { self.chunks[0].len() - first_left } else { 0 };
            self.bytes = self.chunks.iter().map(Vec::len).sum::<usize>() - self.first_taken;
            // The socket's room epoll tells of; that of a ring has to be asked for each time.
            let has_room = |ring: &Producer| ring.want_room();
            if is_full && !self.ring.as_ref().map_or(Ok(false), has_room)? {
                return Ok(());
            }
        }
        Ok(())
    }
}
