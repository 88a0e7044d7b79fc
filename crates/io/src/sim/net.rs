//! The network: connection attempts, ends of connections, and what befalls the
//! frames between them.
//!
//! It behaves as TCP would where the interface leaves room: an attempt takes a
//! round trip, the news of a connection's end travels behind the frames sent
//! before, and a frame for a connection that is gone is answered with a reset.

mod conn;
mod connect;
mod frames;
mod posted;

use std::sync::Arc;
use std::task::Waker;

use super::receive_buffer::Arriving;
use super::shared_payload::SharedPayloads;
use super::state::{Core, Event, Life, State};
use super::trace::Kind;
use crate::claims::Claims;
use crate::published::SharedWords;
use crate::{Addr, Connection, Frame, FrameLimits, Handler, NetError, TimerId};

pub(super) use connect::{connect, listen};
pub(super) use posted::{LongHeads, Posted};

/// A place to listen on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Door {
    pub(super) node: u32,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Port(u16),
    /// Each node has its own paths.
    Path(String),
}

/// A connect under way; it lives until the future that waits for it has gone.
pub(super) struct Attempt {
    pub(super) life: Life,
    addr: Addr,
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub(super) timeout: TimerId,
    pub(super) result: Option<Result<Arc<dyn Connection>, NetError>>,
    pub(super) waker: Option<Waker>,
    /// The dialer's end, once the other side has accepted.
    end: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Accepted by the other side; this one has not heard of it.
    Opening,
    Open,
    /// Closed; the handler is about to be told.
    Closing,
}

/// One end of a connection.
pub(super) struct End {
    pub(super) node: u32,
    peer_node: u32,
    conn: Arc<dyn Connection>,
    /// Absent only while the acceptor thinks about it.
    handler: Option<Arc<dyn Handler>>,
    limits: FrameLimits,
    phase: Phase,
    /// Nothing sent by this end arrives up to then: the other one is not open yet.
    closed_until_ns: u64,
    /// When the last frame that keeps the order arrives.
    last_arrival_ns: u64,
    /// Bytes on the way to the peer.
    queued_bytes: usize,
    /// What the peer may read, as if the two nodes were one.
    offer: Option<SharedWords>,
    shared: SharedPayloads,
    /// What the peer notes for this end, likewise.
    claims: Option<Claims>,
    /// A frame that is not complete.
    pub(super) arriving: Option<Arriving>,
}

impl End {
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn handler(&self) -> Arc<dyn Handler> {
        self.handler.clone().expect("an end that frames reach has a handler")
    }

    pub(super) fn conn(&self) -> Arc<dyn Connection> {
        self.conn.clone()
    }

    fn limit_broken_by(&self, frame: &Frame) -> Option<String> {
        let over = |what: &str, len: usize, max: u32| {
            (len > max as usize).then(|| format!("the peer sent a {what} of {len} bytes, {max} are allowed"))
        };
        over("head", frame.head.len(), self.limits.head_bytes_max)
            .or_else(|| over("payload", frame.payload_bytes(), self.limits.payload_bytes_max))
    }
}

impl State {
    fn delay_ns(&mut self) -> u64 {
        self.net_rng.between(self.faults.delay_ns_min, self.faults.delay_ns_max)
    }
}

impl Core {
    /// Lets an event happen.
    pub(super) fn handle(self: &Arc<Self>, event: Event) {
        match event {
            Event::Timer { life, waker } => {
                let mut state = self.state.lock();
                state.note(Kind::Timer, life.node, 0, 0);
                drop(state);
                waker.wake();
            }
            Event::Dial { attempt, door } => self.dial_arrives(attempt, &door),
            Event::Accepted { attempt, end } => self.accepted_arrives(attempt, end),
            Event::Refused { attempt, by, why } => self.refused_arrives(attempt, by, why),
            Event::ConnectTimeout { attempt } => self.connect_times_out(attempt),
            Event::Reaches(flying) => self.state.lock().reaches_port(flying),
            Event::Came(flying) => self.state.lock().has_come(flying),
            Event::Frame { to, from_node, to_node, frame } => {
                self.state.lock().work_on_next(to);
                self.frame_arrives(to, from_node, to_node, frame.whole());
            }
            Event::Rest { to, serial } => self.rest_arrives(to, serial),
            Event::Fin { to, from_node, to_node, why } => {
                let link_is_up = self.state.lock().link_is_up(from_node, to_node);
                if link_is_up {
                    self.end_connection(to, Phase::Open, NetError::Closed(why.into()));
                }
            }
            Event::LocalClose { end, why } => self.end_connection(end, Phase::Closing, why),
        }
    }
}
