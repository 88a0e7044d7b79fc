//! Reading: one thread at a time takes the bytes that have come and gives their frames to the handler.
//!
//! It alone knows how threads claim the reading, and when a thread stops: nothing more has come, others shall have
//! their turn, or the connection is over.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::super::attend::Pace;
use super::super::decode::Decoder;
use super::super::reactor::Work;
use super::super::shm::ring::Consumer;
use super::{AGAIN, Conn, IDLE, READ_PAUSE_BYTES, READING, Side, closed, events};
use crate::{Connection, Handler, NetError};

/// Frames read from one connection before others get their turn.
const FRAMES_PER_TURN: usize = 64;

/// Bytes read from one connection before others get their turn.
const BYTES_PER_TURN: usize = 4 << 20;

pub(super) struct Reader {
    pub(super) decoder: Decoder,
    pub(super) handler: Arc<dyn Handler>,
    /// Frames come from here, or from the socket.
    pub(super) ring: Option<Consumer>,
    /// The first bytes over the socket may ask for shared memory.
    pub(super) may_upgrade: bool,
    pub(super) pace: Pace,
}

/// Why a thread stopped reading.
pub(super) enum Pause {
    /// Nothing more has come.
    Drained,
    /// Others shall have their turn.
    Turn,
    /// Nothing has come for a while, or it is not to be read now.
    Idle,
    /// The connection is over.
    End(NetError),
}

impl Conn {
    /// Takes the read claim, or has its holder look again.
    pub(super) fn take_claim(&self) -> bool {
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

    pub(super) fn release(self: &Arc<Self>) {
        if !self.give_claim() {
            self.reactor.enqueue(Work::Read(self.clone()));
        }
    }

    /// Has a driving thread read, unless one does.
    pub(super) fn read_soon(self: &Arc<Self>) {
        if self.take_claim() {
            self.reactor.enqueue(Work::Read(self.clone()));
        }
    }

    /// Reads the bytes that have come and gives their frames to the handler. The caller holds the read claim, which
    /// this gives back, passes on, or keeps for good if the connection ended.
    pub(in super::super) fn read(self: &Arc<Self>) {
        let conn: Arc<dyn Connection> = self.clone();
        loop {
            let Some(mut reader) = self.reader.lock().take() else {
                panic!("the claim's holder finds the reader in its place");
            };
            match self.read_with(&mut reader, &conn, false) {
                Pause::Drained | Pause::Idle => {
                    let busy = self.side == Side::Accepted && self.is_tcp() && reader.pace.is_busy();
                    reader.decoder.lay_down();
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
    pub(in super::super) fn attend(self: &Arc<Self>) {
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
    pub(in super::super) fn read_alone(self: &Arc<Self>, limit_ms: u32) -> bool {
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
    pub(in super::super) fn may_read_alone(&self) -> bool {
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

    #[inline]
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
                let receive_buffer = |head: &[u8], bytes| reader.handler.receive_buffer(conn, head, bytes);
                match reader.decoder.next(self.limits(), &receive_buffer) {
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

    /// Whether too much waits to be sent; if so [`Conn::flush`] has it read later.
    fn must_pause(&self) -> bool {
        if self.side == Side::Opened || self.waiting_bytes.load(SeqCst) <= READ_PAUSE_BYTES {
            return false;
        }
        let mut writer = self.writer.lock();
        writer.read_paused = writer.ended.is_none() && writer.bytes > READ_PAUSE_BYTES;
        writer.read_paused
    }
}

fn end_of_stream(decoder: &Decoder) -> NetError {
    closed(if decoder.is_inside_frame() { "the peer closed it in the middle of a frame" } else { "the peer closed it" })
}
