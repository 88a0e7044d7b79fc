//! One established stream socket as a [`Connection`].
//!
//! It alone knows how several threads share a connection: which one reads ([`read`]), who sends while
//! others do and when a peer that does not read is left unread itself ([`send`]), how shared memory
//! takes the socket's place ([`ring`]), and that the end is told once. The wire format it leaves to
//! [`super::decode`].

mod read;
mod ring;
mod send;

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

use crate::sync::Mutex;

use super::attend::Pace;
use super::decode::{Decoder, PREFIX_BYTES, prefix};
use super::reactor::{Reactor, Source, Work};
use super::shm;
use super::shm::shared_payload::SHARE_BYTES_MIN;
use super::sys;
use crate::claims::Claims;
use crate::published::{self, SharedWords};
use crate::slab;
use crate::{Connection, FrameLimits, Handler, LIMITS_BEFORE_HANDSHAKE, NetError, Peer, Process};
use read::Reader;
use ring::{Place, Ring};
use send::Writer;

/// An accepted connection with more than this waiting in its send queue is not read from, so
/// that a peer that does not take its answers cannot go on asking. It is read again once less
/// than half of this waits. Connections that we opened are always read: if both ends stopped
/// reading, neither queue could ever drain.
pub const READ_PAUSE_BYTES: usize = 16 << 20;

/// No thread reads.
const IDLE: u8 = 0;
/// A thread reads, or a queued `Work::Read` will.
const READING: u8 = 1;
/// The same, and something happened since that it may have missed.
const AGAIN: u8 = 2;

/// Which end of a connection this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Opened,
    Accepted,
}

/// A connection; see [`Connection`].
pub(super) struct Conn {
    id: u64,
    /// Carries the frames, or only tells the end, if `ring` is set.
    socket: OwnedFd,
    /// Set at most once, before the first frame in either direction.
    ring: OnceLock<Ring>,
    /// The published index of this end that a client is let read, or that of the other end.
    published: OnceLock<SharedWords>,
    peer: Peer,
    side: Side,
    reactor: Arc<Reactor>,
    this: Weak<Conn>,
    /// Head limit in the low, payload limit in the high half.
    limits: AtomicU64,
    /// The read claim: `IDLE`, `READING` or `AGAIN`. It stays taken once the connection ended.
    claim: AtomicU8,
    /// Absent while a thread reads, so that no lock is held while the handler is called, and
    /// for good once the connection ended.
    reader: Mutex<Option<Box<Reader>>>,
    /// The peer will send no more: what came has to be read to its end now, for no further
    /// event tells of it.
    hung_up: AtomicBool,
    /// Closed at this end: nothing more is given to the handler but the end.
    stopped: AtomicBool,
    writer: Mutex<Writer>,
    /// `writer.bytes`, to be looked at without the lock.
    waiting_bytes: AtomicUsize,
}

/// A process, by a descriptor that stands for no other one even if its number is used again.
struct Watched(OwnedFd);

impl Process for Watched {
    fn has_ended(&self) -> bool {
        sys::has_ended(&self.0)
    }

    fn descriptor(&self) -> Option<&OwnedFd> {
        Some(&self.0)
    }
}

/// Makes a connection of a connected nonblocking socket, without a handler yet.
pub(super) fn new(reactor: &Arc<Reactor>, socket: OwnedFd, peer: Peer, side: Side) -> Arc<Conn> {
    Arc::new_cyclic(|this| Conn {
        id: reactor.new_token(),
        socket,
        ring: OnceLock::new(),
        published: OnceLock::new(),
        peer,
        side,
        reactor: reactor.clone(),
        this: this.clone(),
        limits: AtomicU64::new(pack(LIMITS_BEFORE_HANDSHAKE)),
        claim: AtomicU8::new(READING),
        reader: Mutex::new(None),
        hung_up: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        writer: Mutex::default(),
        waiting_bytes: AtomicUsize::new(0),
    })
}

fn pack(limits: FrameLimits) -> u64 {
    u64::from(limits.payload_bytes_max) << 32 | u64::from(limits.head_bytes_max)
}

fn closed(why: impl std::fmt::Display) -> NetError {
    NetError::Closed(format!("the connection ended: {why}"))
}

impl Conn {
    /// Starts giving frames to `handler`.
    pub(super) fn start(self: &Arc<Self>, handler: Arc<dyn Handler>) {
        let may_upgrade = self.side == Side::Accepted && self.peer.credentials.is_some();
        *self.reader.lock() =
            Some(Box::new(Reader { decoder: Decoder::new(), handler, ring: None, may_upgrade, pace: Pace::default() }));
        let mut writer = self.writer.lock();
        let source = Source::Conn(self.clone());
        match self.reactor.register(self.id, &self.socket, events(!writer.chunks.is_empty(), false), source) {
            Ok(()) => {
                writer.registered = true;
                writer.armed = !writer.chunks.is_empty();
                drop(writer);
                self.release();
            }
            Err(error) => {
                writer.end(closed(format_args!("it cannot be polled: {error}")));
                drop(writer);
                self.stopped.store(true, SeqCst);
                // The claim is still held from `new` and passes to the queue.
                self.reactor.enqueue(Work::Read(self.clone()));
            }
        }
    }

    /// Handles what epoll told.
    pub(super) fn on_event(self: &Arc<Self>, events: u32) {
        let has = |flags: i32| events & flags.cast_unsigned() != 0;
        if has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) {
            self.hung_up.store(true, SeqCst);
        }
        if has(libc::EPOLLOUT) {
            self.flush();
        }
        if has(libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) && self.take_claim() {
            self.read();
        }
    }

    fn finish(&self, reader: Reader, conn: &Arc<dyn Connection>, why: NetError) {
        let why = {
            let mut writer = self.writer.lock();
            writer.registered = false;
            writer.end(why)
        };
        self.waiting_bytes.store(0, SeqCst);
        sys::shutdown(&self.socket);
        self.reactor.deregister(self.id, &self.socket);
        match self.ring.get().map(|ring| &ring.place) {
            Some(Place::Client(eventfd, token)) => {
                self.reactor.deregister(*token, eventfd);
                self.reactor.remove_ring(self);
            }
            Some(Place::Server(wakeups, slot)) => wakeups.leave(*slot),
            None => {}
        }
        if let Some(ring) = self.ring.get() {
            ring.shm.reclaim_all();
        }
        reader.handler.on_close(conn, why);
    }

    fn limits(&self) -> FrameLimits {
        let limits = self.limits.load(SeqCst);
        FrameLimits { head_bytes_max: (limits & u64::from(u32::MAX)) as u32, payload_bytes_max: (limits >> 32) as u32 }
    }

    /// Closes and tells the handler before it returns, unless another thread reads right now
    /// or the connection is over: then that thread does or has done so.
    pub(super) fn close_now(self: &Arc<Self>) {
        self.stop();
        if self.take_claim() {
            self.read();
        }
    }

    fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.writer.lock().end(closed("it was closed at this end"));
        sys::shutdown(&self.socket);
    }
}

/// What a connection is polled for. Room to send is asked for only while something waits:
/// a local socket would otherwise tell of each frame that the peer took.
/// What comes is not asked for while a thread waits for it.
fn events(wants_room: bool, attended: bool) -> i32 {
    let comes = if attended { 0 } else { libc::EPOLLIN | libc::EPOLLRDHUP };
    if wants_room { comes | libc::EPOLLOUT } else { comes }
}

impl Connection for Conn {
    fn send(&self, head: &[u8], payload: &[&[u8]]) -> Result<(), NetError> {
        let prefix: [u8; PREFIX_BYTES] = prefix(head.len(), payload.iter().map(|part| part.len()).sum())?;
        let mut slices = Vec::with_capacity(2 + payload.len());
        slices.extend([IoSlice::new(&prefix), IoSlice::new(head)]);
        slices.extend(payload.iter().map(|part| IoSlice::new(part)));
        let sent = self.send_slices(&mut slices);
        self.after_send(sent)
    }

    fn send_held(
        &self,
        head: &[u8],
        payload: &[&[u8]],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) -> Result<(), NetError> {
        let bytes = payload.iter().map(|part| part.len()).sum();
        let held_bytes: usize = held.iter().map(|(_, range)| range.len()).sum();
        if self.ring.get().is_none() || held_bytes != bytes || bytes < SHARE_BYTES_MIN {
            return self.send(head, payload);
        }
        let prefix = prefix(head.len(), bytes)?;
        match self.send_shared(&[IoSlice::new(&prefix), IoSlice::new(head)], held) {
            Ok(false) => self.send(head, payload),
            sent => self.after_send(sent.map(drop)),
        }
    }

    fn close(&self) {
        self.stop();
        if let Some(this) = self.this.upgrade() {
            this.read_soon();
        }
    }

    fn peer(&self) -> &Peer {
        self.ring.get().map_or(&self.peer, |ring| &ring.peer)
    }

    fn set_limits(&self, limits: FrameLimits) {
        self.limits.store(pack(limits), SeqCst);
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn offer(&self, published: &Arc<published::Writer>) {
        // The first one counts.
        let _ = self.published.set(published.memory().clone());
    }

    fn offered(&self) -> Option<SharedWords> {
        self.published.get().filter(|_| self.side == Side::Opened).cloned()
    }

    fn claims(&self) -> Option<Claims> {
        self.published.get().and(self.ring.get())?.shm.claims()
    }

    fn is_held(&self) -> bool {
        !self.stopped.load(SeqCst) && self.ring.get().is_some() && shm::is_held(&self.socket)
    }

    fn process(&self) -> Option<Arc<dyn Process>> {
        // Zero stands for a process of another PID namespace (pid_namespaces(7)).
        let who = self.peer.credentials.filter(|who| self.side == Side::Opened && who.pid > 0)?;
        Some(Arc::new(Watched(sys::open_process(who.pid.cast_unsigned()).ok()?)))
    }
}
