//! Frames through shared memory in place of the socket: how a connection comes to it, and how it takes them when it is
//! woken.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::super::attend::Pace;
use super::super::decode::Decoder;
use super::super::reactor::Source;
use super::super::shm::Shm;
use super::super::shm::upgrade::{self, Knock, Opened};
use super::super::shm::wakeups::Wakeups;
use super::read::{Pause, Reader};
use super::{Conn, IDLE, closed, events};
use crate::{Handler, Peer};

/// Shared memory in place of the socket.
pub(super) struct Ring {
    pub(super) shm: Arc<Shm>,
    pub(super) peer: Peer,
    pub(super) place: Place,
}

/// The thread that looks at the ring when it is woken.
pub(super) enum Place {
    /// A client: the eventfd by which it is woken, and its token.
    Client(OwnedFd, u64),
    /// A server: its workers, and the slot there.
    Server(Arc<Wakeups>, usize),
}

impl Conn {
    /// Starts giving frames to `handler` that come through shared memory.
    pub(in super::super) fn start_ring(
        self: &Arc<Self>,
        handler: Arc<dyn Handler>,
        opened: Opened,
    ) -> std::io::Result<()> {
        let Opened { shm, eventfd, published } = opened;
        if let Some(published) = published {
            // Set nowhere else at this end.
            let _ = self.published.set(published);
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
        let published = self.published.get().and_then(|published| published.0.file());
        match upgrade::answer(&self.reactor, &self.socket, who, published)? {
            Ok(granted) => {
                let (producer, consumer) = granted.shm.ends();
                reader.decoder = Decoder::for_ring();
                reader.ring = Some(consumer);
                self.writer.lock().ring = Some(producer);
                let place = Place::Server(granted.wakeups.clone(), granted.slot);
                let name = self.peer.name.replacen("unix:", "shm:", 1);
                let peer = Peer { name, ..self.peer.clone() };
                let set = self.ring.set(Ring { shm: granted.shm, peer, place });
                assert!(set.is_ok(), "a connection is upgraded once");
                granted.wakeups.enter(granted.slot, self.clone());
            }
            Err(reason) => eprintln!("azekura: {}: no shared memory: {reason}", self.peer.name),
        }
        Ok(())
    }

    /// The other end of the shared memory has sent a wakeup, or it is time to look.
    pub(in super::super) fn on_wakeup(self: &Arc<Self>) {
        let Some(ring) = self.ring.get() else { return };
        ring.shm.reclaim();
        if self.waiting_bytes.load(SeqCst) > 0 {
            self.flush();
        }
        if ring.shm.has_news() && self.take_claim() {
            self.read();
        }
    }

    /// Takes back the shared payloads that the client has given back.
    pub(in super::super) fn reclaim(&self) {
        if let Some(ring) = self.ring.get() {
            ring.shm.reclaim();
        }
    }

    /// Whether [`Conn::on_wakeup`] might find something to do.
    pub(in super::super) fn is_due(&self) -> bool {
        self.waiting_bytes.load(SeqCst) > 0 || self.ring.get().is_some_and(|ring| ring.shm.has_news())
    }

    /// Says that this client's thread is about to sleep; `false` if there is something to read and no thread reads it.
    pub(in super::super) fn may_sleep(&self) -> bool {
        let Some(ring) = self.ring.get() else { return true };
        ring.shm.announce_sleep();
        !ring.shm.has_news() || self.claim.load(SeqCst) != IDLE
    }

    /// Looks whether the first bytes over the socket ask for shared memory, and if so answers.
    pub(super) fn look_for_upgrade(self: &Arc<Self>, reader: &mut Reader) -> Result<(), Pause> {
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
}
