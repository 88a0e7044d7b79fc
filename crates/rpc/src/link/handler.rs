//! The frames of one connection at the asking side: steps of the handshake first, then replies.

use super::Core;
use super::open::Unopened;
use crate::caller::Answer;
use crate::handshake::{Greeting, Keys, Next, open_step, seal_step};
use crate::{LIMITS_AFTER_HANDSHAKE, Target};
use aze_io::sync::Mutex;
use aze_io::{Connection, Frame, Handler, NetError};
use aze_proto::frame::{self, FrameKey, Kind};
use aze_proto::handshake::Step;
use aze_proto::wire::Wire;
use aze_proto::{Code, Failure, MapEpoch, Reply};
use futures_channel::oneshot;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Handles the frames of one connection.
pub(super) struct LinkHandler {
    pub(super) core: Weak<Core>,
    pub(super) target: Target,
    /// Present until requests may be sent.
    pub(super) phase: Mutex<Option<Phase>>,
    /// Set when requests may be sent.
    pub(super) open: OnceLock<Open>,
    /// When the server's life began, as its welcome says; 0: it is starting.
    pub(super) began: OnceLock<MapEpoch>,
    pub(super) ended: AtomicBool,
    pub(super) frames_heard: AtomicU64,
}

/// What the handshake has come to.
#[derive(Clone, Copy)]
pub(super) struct Open {
    /// Of all frames but those of the handshake.
    pub(super) version: u8,
    /// The key of incoming frames; none on local sockets, whose ends the kernel vouches for.
    key_in: Option<FrameKey>,
}

pub(super) struct Phase {
    pub(super) greeting: Greeting,
    /// Receives the key of outgoing frames.
    pub(super) done: oneshot::Sender<Result<Option<FrameKey>, Unopened>>,
}

impl Handler for LinkHandler {
    fn on_frame(&self, conn: &Arc<dyn Connection>, frame: Frame) {
        self.frames_heard.fetch_add(1, Ordering::Relaxed);
        let Some(open) = self.open.get() else {
            return self.take_step(conn, &frame);
        };
        // A malformed reply ends the connection: its calls are sent again over a new one.
        if self.take_reply(open, frame).is_err() {
            conn.close();
        }
    }

    fn on_close(&self, conn: &Arc<dyn Connection>, why: NetError) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(Phase { greeting, done }) = self.phase.lock().take() {
            let hint = "it did not answer the greeting: check that both ends have the same secret and run the same version of aze";
            let why = if greeting.keys().is_none() { format!("{why}; {hint}") } else { why.to_string() };
            // An attempt that was dropped does not receive.
            let _ = done.send(Err(Unopened::Again(why)));
        } else if let Some(core) = self.core.upgrade() {
            core.lost(self.target.index, conn.id());
        }
    }
}

impl LinkHandler {
    fn take_reply(&self, open: &Open, frame: Frame) -> Result<(), Failure> {
        let (header, body) = match frame::open(&frame.head, frame.payload_bytes(), open.key_in.as_ref()) {
            Ok(opened) => opened,
            // A step of the handshake that the network delivers late or twice is no harm.
            Err(malformed) => {
                return open_step(&frame.head, frame.payload_bytes(), None).map(|_| ()).map_err(|_| malformed.into());
            }
        };
        let call = header.call;
        let (time, order) = (header.time, header.order);
        let answer = match header.kind {
            Kind::Reply | Kind::Failure if header.version != open.version => {
                return Err(Failure::new(Code::Malformed, "a reply of another version than the handshake's"));
            }
            Kind::Reply => {
                Ok(Answer { reply: Reply::from_bytes(body)?, header, payload: frame.payload, shared: frame.shared })
            }
            Kind::Failure => Err(Failure::from_bytes(body)?),
            Kind::Handshake => {
                if let Step::Welcome { map_epoch } = Step::from_bytes(body)? {
                    self.welcomed(map_epoch);
                }
                return Ok(());
            }
            Kind::Request => {
                return Err(Failure::new(Code::Malformed, "a server sent a request over a client's connection"));
            }
        };
        if let Some(core) = self.core.upgrade() {
            core.whole.config.order.witness(order.0);
            core.whole.observe_time(time);
            core.calls.answer(call, self.target.index, answer);
        }
        Ok(())
    }

    fn take_step(&self, conn: &Arc<dyn Connection>, frame: &Frame) {
        let mut phase = self.phase.lock();
        let Some(Phase { greeting, .. }) = &mut *phase else { return };
        let local = conn.peer().credentials.is_some();
        let outcome = match next_step(greeting, local, frame) {
            Ok(Next::Nothing) => return,
            Ok(Next::Send(step)) => {
                // If it cannot be sent the connection has ended, and `on_close` tells.
                drop(conn.send(&seal_step(&step, None), &[]));
                if local {
                    // What the server lends is there with its welcome, which takes no time worth saving.
                    return;
                }
                // The server is proven, and takes requests right behind this proof: nothing waits for its welcome.
                Ok(self.ready(conn, greeting.keys(), local))
            }
            Ok(Next::Done(map_epoch)) => {
                self.welcomed(map_epoch);
                Ok(self.ready(conn, greeting.keys(), local))
            }
            Err(failure) => Err(self.judge(failure)),
        };
        if let Some(Phase { done, .. }) = phase.take() {
            // An attempt that was dropped does not receive.
            let _ = done.send(outcome);
        }
    }

    /// Requests may be sent from now on; gives their key.
    fn ready(&self, conn: &Arc<dyn Connection>, keys: Option<&Keys>, local: bool) -> Option<FrameKey> {
        conn.set_limits(LIMITS_AFTER_HANDSHAKE);
        let keys = keys.expect("both ends are proven");
        let open = Open { version: keys.version, key_in: (!local).then_some(keys.server) };
        assert!(self.open.set(open).is_ok(), "this happens once: the phase is taken after it");
        (!local).then_some(keys.client)
    }

    fn welcomed(&self, map_epoch: MapEpoch) {
        // The network may deliver it twice.
        let _ = self.began.set(map_epoch);
    }

    /// Whether to try again after the handshake has failed.
    fn judge(&self, failure: Failure) -> Unopened {
        let target = &self.target;
        match failure.code {
            Code::Malformed => Unopened::Again(failure.to_string()),
            Code::NotAuthentic => {
                let advice = "check that the volume is the one you mean and that nobody else listens at this address";
                Unopened::ForGood(Failure::new(Code::NotAuthentic, format!("{target}: {}; {advice}", failure.detail)))
            }
            _ => Unopened::ForGood(failure.during(target)),
        }
    }
}

/// What a frame means during the handshake.
fn next_step(greeting: &mut Greeting, local: bool, frame: &Frame) -> Result<Next, Failure> {
    let key = greeting.keys().filter(|_| !local).map(|keys| keys.server);
    let malformed = match open_step(&frame.head, frame.payload_bytes(), key.as_ref()) {
        Ok(step) => return greeting.take(&step),
        Err(malformed) => malformed,
    };
    if let Ok((header, body)) = frame::open(&frame.head, frame.payload_bytes(), Some(&greeting.refusal_key()))
        && header.kind == Kind::Failure
    {
        return Err(Failure::from_bytes(body)?);
    }
    // The challenge a second time: it has no key, unlike what follows it.
    match open_step(&frame.head, frame.payload_bytes(), None) {
        Ok(Step::Challenge { .. }) => Ok(Next::Nothing),
        _ => Err(malformed.into()),
    }
}
