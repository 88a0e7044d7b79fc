//! One established stream socket as a [`Connection`].
//!
//! It alone knows how several threads share a connection: which one reads, who sends while
//! others do, when a peer that does not read is left unread itself, and that the end is told
//! once. The wire format it leaves to [`super::decode`].

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::attend::Pace;
use super::decode::{Decoder, PREFIX_BYTES, prefix};
use super::reactor::{Reactor, Source, Work};
use super::shm::bells::Bells;
use super::shm::loan::LEND_BYTES_MIN;
use super::shm::ring::{Consumer, Producer};
use super::shm::upgrade::{self, Knock, Opened};
use super::shm::{self, Shm};
use super::sys;
use crate::claims::Claims;
use crate::slab;
use crate::slate::{self, SharedWords};
use crate::{Connection, FrameLimits, Handler, LIMITS_BEFORE_HANDSHAKE, NetError, Peer, Process, SEND_QUEUE_BYTES_MAX};

/// An accepted connection with more than this waiting in its send queue is not read from, so
/// that a peer that does not take its answers cannot go on asking. It is read again once less
/// than half of this waits. Connections that we opened are always read: if both ends stopped
/// reading, neither queue could ever drain.
pub const READ_PAUSE_BYTES: usize = 16 << 20;

/// Frames read from one connection before others get their turn.
const FRAMES_PER_TURN: usize = 64;

/// Bytes read from one connection before others get their turn.
const BYTES_PER_TURN: usize = 4 << 20;

/// Small frames are appended to the last chunk of a send queue up to this size, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Frames of up to this size, in bytes, that are sent while several frames that came together are handled wait for the
/// last of them: they leave with one call. Larger frames are worth a call of their own, and not a copy.
const CORKED_FRAME_BYTES: usize = 16 << 10;

/// Chunks given to the kernel in one call.
const CHUNKS_PER_SEND: usize = 64;

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
    /// The slate of this end that a client is let read, or that of the other end.
    slate: OnceLock<SharedWords>,
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

/// Shared memory in place of the socket.
struct Ring {
    shm: Arc<Shm>,
    peer: Peer,
    place: Place,
}

/// The thread that looks at the ring when it rings.
enum Place {
    /// A client: the eventfd by which it is rung, and its token.
    Client(OwnedFd, u64),
    /// A server: its workers, and the slot there.
    Server(Arc<Bells>, usize),
}

struct Reader {
    decoder: Decoder,
    handler: Arc<dyn Handler>,
    /// Frames come from here, or from the socket.
    ring: Option<Consumer>,
    /// The first bytes over the socket may ask for shared memory.
    may_upgrade: bool,
    pace: Pace,
}

/// The bytes still to be sent.
#[derive(Default)]
struct Writer {
    /// Frames go here, or into the socket.
    ring: Option<Producer>,
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that the socket has taken.
    first_taken: usize,
    /// Bytes that wait altogether.
    bytes: usize,
    registered: bool,
    /// A thread of its own waits for what comes, and the epoll instance does not tell of it.
    attended: bool,
    /// The epoll instance tells when there is room.
    armed: bool,
    /// The reader has more frames at hand: small answers wait for them.
    corked: bool,
    /// The reader stopped because of the bytes that wait here.
    read_paused: bool,
    ended: Option<NetError>,
}

/// Why a thread stopped reading.
enum Pause {
    /// Nothing more has come.
    Drained,
    /// Others shall have their turn.
    Turn,
    /// Nothing has come for a while, or it is not to be read now.
    Idle,
    /// The connection is over.
    End(NetError),
}

/// A process, by a descriptor that stands for no other one even if its number is used again.
struct Watched(OwnedFd);

impl Process for Watched {
    fn has_ended(&self) -> bool {
        sys::has_ended(&self.0)
    }
}

/// Makes a connection of a connected nonblocking socket, without a handler yet.
pub(super) fn new(reactor: &Arc<Reactor>, socket: OwnedFd, peer: Peer, side: Side) -> Arc<Conn> {
    Arc::new_cyclic(|this| Conn {
        id: reactor.new_token(),
        socket,
        ring: OnceLock::new(),
        slate: OnceLock::new(),
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

    /// Starts giving frames to `handler` that come through shared memory.
    pub(super) fn start_ring(self: &Arc<Self>, handler: Arc<dyn Handler>, opened: Opened) -> std::io::Result<()> {
        let Opened { shm, eventfd, slate } = opened;
        if let Some(slate) = slate {
            // Set nowhere else at this end.
            let _ = self.slate.set(slate);
        }
        let (producer, consumer) = shm.ends();
        let token = self.reactor.new_token();
        self.reactor.register(token, &eventfd, libc::EPOLLIN, Source::Ring(self.clone()))?;
        let decoder = Decoder::for_ring();
        let ring = Some(consumer);
        *self.reader.lock() =
            Some(Box::new(Reader { decoder, handler, ring, may_upgrade: false, pace: Pace::default() }));
        let mut writer = self.writer.lock();
        writer.ring = Some(producer);
        let registered = self.reactor.register(self.id, &self.socket, events(false, false), Source::Conn(self.clone()));
        if let Err(error) = registered {
            self.reactor.deregister(token, &eventfd);
            return Err(error);
        }
        writer.registered = true;
        drop(writer);
        let set = self.ring.set(Ring { shm, peer: self.peer.clone(), place: Place::Client(eventfd, token) });
        assert!(set.is_ok(), "a connection is started once");
        self.reactor.add_ring(self.clone());
        self.release();
        Ok(())
    }

    /// Answers a client that asks for shared memory: frames come through it from now on, or, if
    /// it cannot be had, through the socket.
    fn upgrade(self: &Arc<Self>, reader: &mut Reader) -> std::io::Result<()> {
        let who = self.peer.credentials.expect("only local sockets are asked");
        let slate = self.slate.get().and_then(|slate| slate.0.file());
        match upgrade::answer(&self.reactor, &self.socket, who, slate)? {
            Ok(granted) => {
                let (producer, consumer) = granted.shm.ends();
                reader.decoder = Decoder::for_ring();
                reader.ring = Some(consumer);
                self.writer.lock().ring = Some(producer);
                let place = Place::Server(granted.bells.clone(), granted.slot);
                let name = self.peer.name.replacen("unix:", "shm:", 1);
                let peer = Peer { name, ..self.peer.clone() };
                let set = self.ring.set(Ring { shm: granted.shm, peer, place });
                assert!(set.is_ok(), "a connection is upgraded once");
                granted.bells.enter(granted.slot, self.clone());
            }
            Err(reason) => eprintln!("azekura: {}: no shared memory: {reason}", self.peer.name),
        }
        Ok(())
    }

    /// The other end of the shared memory has rung, or it is time to look.
    pub(super) fn on_bell(self: &Arc<Self>) {
        let Some(ring) = self.ring.get() else { return };
        ring.shm.reclaim();
        if self.waiting_bytes.load(SeqCst) > 0 {
            self.flush();
        }
        if ring.shm.has_news() && self.take_claim() {
            self.read();
        }
    }

    /// Takes back the loans that the client has given back.
    pub(super) fn reclaim(&self) {
        if let Some(ring) = self.ring.get() {
            ring.shm.reclaim();
        }
    }

    /// Whether [`Conn::on_bell`] might find something to do.
    pub(super) fn is_due(&self) -> bool {
        self.waiting_bytes.load(SeqCst) > 0 || self.ring.get().is_some_and(|ring| ring.shm.has_news())
    }

    /// Says that this client's thread is about to sleep; `false` if there is something to read and no thread reads it.
    pub(super) fn may_sleep(&self) -> bool {
        let Some(ring) = self.ring.get() else { return true };
        ring.shm.announce_sleep();
        !ring.shm.has_news() || self.claim.load(SeqCst) != IDLE
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

    /// Takes the read claim, or has its holder look again.
    fn take_claim(&self) -> bool {
        self.claim.swap(AGAIN, SeqCst) == IDLE && {
            // Between the two steps another event may have said AGAIN too; both are covered by
            // the look that follows.
            self.claim.store(READING, SeqCst);
            true
        }
    }

    /// Gives the read claim back; `false` if there is reason to read again, still claimed.
    fn give_claim(&self) -> bool {
        if self.claim.compare_exchange(READING, IDLE, SeqCst, SeqCst).is_ok() {
            return true;
        }
        self.claim.store(READING, SeqCst);
        false
    }

    fn release(self: &Arc<Self>) {
        if !self.give_claim() {
            self.reactor.enqueue(Work::Read(self.clone()));
        }
    }

    /// Has a driving thread read, unless one does.
    fn read_soon(self: &Arc<Self>) {
        if self.take_claim() {
            self.reactor.enqueue(Work::Read(self.clone()));
        }
    }

    /// Reads the bytes that have come and gives their frames to the handler. The caller holds the read claim, which
    /// this gives back, passes on, or keeps for good if the connection ended.
    pub(super) fn read(self: &Arc<Self>) {
        let conn: Arc<dyn Connection> = self.clone();
        loop {
            let Some(mut reader) = self.reader.lock().take() else {
                panic!("the claim's holder finds the reader in its place");
            };
            match self.read_with(&mut reader, &conn, false) {
                Pause::Drained | Pause::Idle => {
                    let busy = self.side == Side::Accepted && self.is_tcp() && reader.pace.is_busy();
                    *self.reader.lock() = Some(reader);
                    if busy && self.reactor.attendants.take(&self.reactor, self) {
                        return;
                    }
                    if self.give_claim() {
                        return;
                    }
                }
                Pause::Turn => {
                    *self.reader.lock() = Some(reader);
                    self.reactor.enqueue(Work::Read(self.clone()));
                    return;
                }
                Pause::End(why) => {
                    self.finish(*reader, &conn, why);
                    return;
                }
            }
        }
    }

    /// Reads as [`Conn::read`] does, but waits for what comes, until for a while nothing has or the connection
    /// has ended. The calling thread has nothing else to do; it holds the read claim.
    pub(super) fn attend(self: &Arc<Self>) {
        let conn: Arc<dyn Connection> = self.clone();
        self.set_attended(true);
        let Some(mut reader) = self.reader.lock().take() else {
            panic!("the claim's holder finds the reader in its place");
        };
        loop {
            match self.read_with(&mut reader, &conn, true) {
                // What the handler has made ready runs before this thread blocks again.
                Pause::Drained | Pause::Turn => self.reactor.run_queue(),
                Pause::Idle => break,
                Pause::End(why) => {
                    self.finish(*reader, &conn, why);
                    return self.reactor.run_queue();
                }
            }
        }
        *self.reader.lock() = Some(reader);
        self.set_attended(false);
        self.read();
        self.reactor.run_queue();
    }

    /// Waits for bytes, for as long as `limit_ms` (over a socket `ALONE_MS`), and reads them; `false` if none have
    /// come. For a client's thread that drives and has nothing else to wait for: it saves the epoll instance.
    pub(super) fn read_alone(self: &Arc<Self>, limit_ms: u32) -> bool {
        if self.ring.get().is_some_and(|ring| !ring.shm.sleep(limit_ms)) || !self.take_claim() {
            return false;
        }
        if self.ring.get().is_some() {
            self.read();
            return true;
        }
        let conn: Arc<dyn Connection> = self.clone();
        let Some(mut reader) = self.reader.lock().take() else {
            panic!("the claim's holder finds the reader in its place");
        };
        let pause = self.read_with(&mut reader, &conn, true);
        let came = !matches!(pause, Pause::Idle);
        match pause {
            Pause::End(why) => self.finish(*reader, &conn, why),
            Pause::Turn => {
                *self.reader.lock() = Some(reader);
                self.reactor.enqueue(Work::Read(self.clone()));
            }
            Pause::Drained | Pause::Idle => {
                *self.reader.lock() = Some(reader);
                if !self.give_claim() {
                    self.read();
                }
            }
        }
        came
    }

    /// Whether [`Conn::read_alone`] may be: it stands, and nothing waits to be sent.
    pub(super) fn may_read_alone(&self) -> bool {
        self.side == Side::Opened && self.waiting_bytes.load(SeqCst) == 0
    }

    /// Says which thread is told of what comes: the claim's holder, which waits for it, or the one that drives.
    fn set_attended(&self, attended: bool) {
        let mut writer = self.writer.lock();
        writer.attended = attended;
        if writer.registered {
            self.reactor.reregister(self.id, &self.socket, events(writer.armed, attended));
        }
    }

    fn is_tcp(&self) -> bool {
        self.peer.credentials.is_none()
    }

    fn read_with(self: &Arc<Self>, reader: &mut Reader, conn: &Arc<dyn Connection>, wait: bool) -> Pause {
        let mut corked = false;
        let pause = self.read_corked(reader, conn, &mut corked, wait);
        self.uncork(&mut corked);
        pause
    }

    /// Reads, and first waits for bytes if `wait` says so; `corked` says afterwards whether frames sent meanwhile still
    /// wait.
    fn read_corked(
        self: &Arc<Self>,
        reader: &mut Reader,
        conn: &Arc<dyn Connection>,
        corked: &mut bool,
        mut wait: bool,
    ) -> Pause {
        let (mut frames, mut bytes) = (0, 0);
        let mut drained = false;
        if reader.may_upgrade
            && let Err(pause) = self.look_for_upgrade(reader)
        {
            return pause;
        }
        loop {
            loop {
                if self.stopped.load(SeqCst) {
                    return Pause::End(closed("it was closed at this end"));
                }
                if self.must_pause() {
                    return Pause::Idle;
                }
                if frames == FRAMES_PER_TURN || bytes >= BYTES_PER_TURN {
                    return Pause::Turn;
                }
                let land = |head: &[u8], bytes| reader.handler.land(conn, head, bytes);
                match reader.decoder.next(self.limits(), &land) {
                    Ok(Some(frame)) => {
                        if !*corked && reader.ring.is_none() && reader.decoder.has_whole_frame() {
                            self.writer.lock().corked = true;
                            *corked = true;
                        }
                        reader.handler.on_frame(conn, frame);
                    }
                    Ok(None) => break,
                    Err(error) => return Pause::End(error),
                }
                frames += 1;
            }
            self.uncork(corked);
            if drained {
                return Pause::Drained;
            }
            let filled = match &mut reader.ring {
                Some(ring) => reader.decoder.fill_from(ring),
                None => reader.decoder.fill(&self.socket, wait),
            };
            let waited = std::mem::take(&mut wait);
            match filled {
                Ok(filled) if filled.bytes == 0 => {
                    let is_own = self.stopped.load(SeqCst);
                    let why = || closed("it was closed at this end");
                    return Pause::End(if is_own { why() } else { end_of_stream(&reader.decoder) });
                }
                Ok(filled) => {
                    bytes += filled.bytes;
                    // What comes after a read that found the socket empty is a new event, except
                    // the end of the stream if that was told already.
                    drained = filled.drained && !self.hung_up.load(SeqCst) && reader.ring.is_none();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && waited => return Pause::Idle,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_over = reader.ring.is_some() && self.hung_up.load(SeqCst);
                    return if is_over { Pause::End(end_of_stream(&reader.decoder)) } else { Pause::Drained };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => wait = waited,
                Err(error) => return Pause::End(closed(error)),
            }
        }
    }

    /// Sends the small frames that were held back until the last frame of a batch.
    fn uncork(&self, corked: &mut bool) {
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

    /// Looks whether the first bytes over the socket ask for shared memory, and if so answers.
    fn look_for_upgrade(self: &Arc<Self>, reader: &mut Reader) -> Result<(), Pause> {
        match upgrade::knock(&self.socket) {
            Ok(Knock::Frame) => {}
            Ok(Knock::Early) if !self.hung_up.load(SeqCst) => return Err(Pause::Drained),
            Ok(Knock::Early) => {}
            Ok(Knock::Ask) => self.upgrade(reader).map_err(|error| Pause::End(closed(error)))?,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return Err(Pause::Drained),
            Err(error) => return Err(Pause::End(closed(error))),
        }
        reader.may_upgrade = false;
        Ok(())
    }

    /// Whether too much waits to be sent; if so [`Conn::flush`] has it read later.
    fn must_pause(&self) -> bool {
        if self.side == Side::Opened || self.waiting_bytes.load(SeqCst) <= READ_PAUSE_BYTES {
            return false;
        }
        let mut writer = self.writer.lock();
        writer.read_paused = writer.ended.is_none() && writer.bytes > READ_PAUSE_BYTES;
        writer.read_paused
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
            Some(Place::Server(bells, slot)) => bells.leave(*slot),
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

    /// Sends what waits, as far as the socket takes it.
    fn flush(self: &Arc<Self>) {
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
    fn send_slices(&self, slices: &mut [IoSlice<'_>]) -> Result<(), NetError> {
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
    fn send_lent(&self, head: &[IoSlice<'_>], held: &[(Arc<slab::Frame>, Range<usize>)]) -> Result<bool, NetError> {
        let mut writer = self.writer.lock();
        if let Some(why) = &writer.ended {
            return Err(why.clone());
        }
        if writer.bytes > 0 {
            return Ok(false);
        }
        let Some(ring) = &mut writer.ring else { return Ok(false) };
        ring.write_lent(head, held).map_err(|error| writer.end(closed(error)))
    }

    fn after_send(&self, sent: Result<(), NetError>) -> Result<(), NetError> {
        if sent.is_err() {
            // What came before is still given to the handler, and then the end.
            sys::shutdown(&self.socket);
            if let Some(this) = self.this.upgrade() {
                this.read_soon();
            }
        }
        sent
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

fn end_of_stream(decoder: &Decoder) -> NetError {
    closed(if decoder.is_inside_frame() { "the peer closed it in the middle of a frame" } else { "the peer closed it" })
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
    fn end(&mut self, why: NetError) -> NetError {
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
        if self.ring.get().is_none() || held_bytes != bytes || bytes < LEND_BYTES_MIN {
            return self.send(head, payload);
        }
        let prefix = prefix(head.len(), bytes)?;
        match self.send_lent(&[IoSlice::new(&prefix), IoSlice::new(head)], held) {
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

    fn offer(&self, slate: &Arc<slate::Writer>) {
        // The first one counts.
        let _ = self.slate.set(slate.memory().clone());
    }

    fn offered(&self) -> Option<SharedWords> {
        self.slate.get().filter(|_| self.side == Side::Opened).cloned()
    }

    fn claims(&self) -> Option<Claims> {
        self.slate.get().and(self.ring.get())?.shm.claims()
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
