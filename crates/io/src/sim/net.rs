//! The network: connection attempts, ends of connections, and what befalls the
//! frames between them.
//!
//! It behaves as TCP would where the interface leaves room: an attempt takes a
//! round trip, the news of a connection's end travels behind the frames sent
//! before, and a frame for a connection that is gone is answered with a reset.

use std::collections::btree_map::Entry;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::CONNECT_TIMEOUT_NS;
use super::landing::Arriving;
use super::loan::Lent;
use super::rng::hash_bytes;
use super::state::{Core, EPHEMERAL_PORT_MIN, Event, Life, ListenerSlot, State};
use super::trace::Kind;
use crate::claims::Claims;
use crate::loan::{Loan, Source};
use crate::slab;
use crate::slate::{self, SharedWords};
use crate::{
    Acceptor, Addr, Connection, Frame, FrameLimits, Handler, LIMITS_BEFORE_HANDSHAKE, Listener, NetError, Peer,
    Process, SEND_QUEUE_BYTES_MAX, TimerId,
};

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
    lent: Lent,
    /// What the peer notes for this end, likewise.
    claims: Option<Claims>,
    /// A frame that is not complete.
    pub(super) arriving: Option<Arriving>,
}

/// What users hold of an end.
struct SimConnection {
    core: Arc<Core>,
    id: u64,
    peer: Peer,
    /// For the end that dialled: the other one.
    listener: Option<Life>,
}

/// The life of a node, as if the node that asks were on the same machine.
struct Watched {
    core: Arc<Core>,
    life: Life,
}

impl Process for Watched {
    fn has_ended(&self) -> bool {
        let state = self.core.state.lock();
        // With its machine goes everybody who could see it.
        !state.is_alive(self.life) && state.nodes[self.life.node as usize].host_up
    }
}

impl Connection for SimConnection {
    fn send(&self, head: &[u8], payload: &[&[u8]]) -> Result<(), NetError> {
        self.core.state.lock().send(self.id, head, payload, &[])
    }

    fn send_held(
        &self,
        head: &[u8],
        payload: &[&[u8]],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) -> Result<(), NetError> {
        self.core.state.lock().send(self.id, head, payload, held)
    }

    fn close(&self) {
        let why = NetError::Closed("the connection was closed on this side".into());
        self.core.state.lock().close(self.id, why, "closed by the peer");
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn set_limits(&self, limits: FrameLimits) {
        if let Some(end) = self.core.state.lock().ends.get_mut(&self.id) {
            end.limits = limits;
        }
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn offer(&self, slate: &Arc<slate::Writer>) {
        if let Some(end) = self.core.state.lock().ends.get_mut(&self.id) {
            end.offer = Some(slate.memory().clone());
            end.claims = Some(Claims::own());
        }
    }

    fn offered(&self) -> Option<SharedWords> {
        self.core.state.lock().ends.get(&(self.id ^ 1))?.offer.clone()
    }

    fn claims(&self) -> Option<Claims> {
        let state = self.core.state.lock();
        let of = |id: u64| state.ends.get(&id).and_then(|end| end.claims.clone());
        of(self.id).or_else(|| of(self.id ^ 1))
    }

    fn is_held(&self) -> bool {
        let state = self.core.state.lock();
        let is_open = |id: u64| state.ends.get(&id).is_some_and(|end| end.phase == Phase::Open);
        is_open(self.id) && is_open(self.id ^ 1)
    }

    fn process(&self) -> Option<Arc<dyn Process>> {
        Some(Arc::new(Watched { core: self.core.clone(), life: self.listener? }))
    }
}

/// What users hold of a listening address.
struct SimListener {
    core: Arc<Core>,
    door: Door,
    serial: u64,
    addr: Addr,
}

impl Listener for SimListener {
    fn addr(&self) -> &Addr {
        &self.addr
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let removed = {
            let mut state = self.core.state.lock();
            match state.listeners.entry(self.door.clone()) {
                // A later incarnation of the node may listen there.
                Entry::Occupied(slot) if slot.get().serial == self.serial => Some(slot.remove()),
                _ => None,
            }
        };
        drop(removed);
    }
}

/// Listens on `addr`; see [`crate::World::listen`].
pub(super) fn listen(
    core: &Arc<Core>,
    life: Life,
    addr: &Addr,
    acceptor: Arc<dyn Acceptor>,
) -> Result<Box<dyn Listener>, NetError> {
    let mut state = core.state.lock();
    let (door, addr) = state.door_to_open(life, addr).map_err(|why| NetError::Listen(format!("{addr}: {why}")))?;
    let serial = state.next_serial();
    state.listeners.insert(door.clone(), ListenerSlot { serial, acceptor });
    Ok(Box::new(SimListener { core: core.clone(), door, serial, addr }))
}

/// Starts to connect; see [`crate::World::connect`].
pub(super) fn connect(core: &Arc<Core>, life: Life, addr: &Addr, handler: Arc<dyn Handler>) -> Connecting {
    let attempt = core.state.lock().dial(life, addr, handler);
    Connecting { core: core.clone(), attempt }
}

/// Resolves when the connection stands; dropping it before gives it up.
pub(super) struct Connecting {
    core: Arc<Core>,
    attempt: u64,
}

impl Future for Connecting {
    type Output = Result<Arc<dyn Connection>, NetError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Declared before the lock is taken, so that it is dropped after its release.
        let _old_waker;
        let mut state = self.core.state.lock();
        let attempt = state.attempts.get_mut(&self.attempt).expect("an attempt lives as long as its future");
        match attempt.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                _old_waker = attempt.waker.replace(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let _attempt;
        let _opening;
        {
            let mut state = self.core.state.lock();
            let Some(attempt) = state.attempts.remove(&self.attempt) else { return };
            state.events.remove(&attempt.timeout);
            let is_opening = |id: &u64| state.ends.get(id).is_some_and(|end| end.phase == Phase::Opening);
            _opening = attempt.end.filter(is_opening).map(|id| state.ends.remove(&id));
            if let Some(Ok(conn)) = &attempt.result {
                let why = NetError::Closed("nobody waited for the connection any more".into());
                state.close(conn.id(), why, "closed by the peer");
            }
            _attempt = attempt;
        }
    }
}

/// Asking, on the side of the dialer and of the listener.
impl State {
    fn is_own_host(&self, node: u32, host: &str) -> bool {
        host == self.name(node) || matches!(host, "localhost" | "127.0.0.1" | "::1")
    }

    /// Where `addr` is to be listened on, and the address under which others reach it.
    fn door_to_open(&mut self, life: Life, addr: &Addr) -> Result<(Door, Addr), &'static str> {
        if !self.is_alive(life) {
            return Err("the node was killed");
        }
        let (place, addr) = match addr {
            Addr::Unix(path) | Addr::Shm(path) => (Place::Path(path.clone()), addr.clone()),
            Addr::Tcp(host, port) => {
                if !self.is_own_host(life.node, host) && !matches!(host.as_str(), "0.0.0.0" | "::") {
                    return Err("this is the address of another node");
                }
                let port = if *port == 0 { self.free_port(life.node)? } else { *port };
                (Place::Port(port), Addr::Tcp(self.name(life.node).into(), port))
            }
        };
        let door = Door { node: life.node, place };
        if self.listeners.contains_key(&door) { Err("the address is in use") } else { Ok((door, addr)) }
    }

    fn free_port(&mut self, node: u32) -> Result<u16, &'static str> {
        for _ in EPHEMERAL_PORT_MIN..u16::MAX {
            let last_port = &mut self.nodes[node as usize].last_port;
            *last_port = last_port.checked_add(1).unwrap_or(EPHEMERAL_PORT_MIN);
            let port = *last_port;
            if !self.listeners.contains_key(&Door { node, place: Place::Port(port) }) {
                return Ok(port);
            }
        }
        Err("no port is free")
    }

    fn door_to_dial(&self, node: u32, addr: &Addr) -> Option<Door> {
        match addr {
            Addr::Unix(path) | Addr::Shm(path) => Some(Door { node, place: Place::Path(path.clone()) }),
            Addr::Tcp(host, port) if self.is_own_host(node, host) => Some(Door { node, place: Place::Port(*port) }),
            Addr::Tcp(host, port) => Some(Door { node: self.known_node(host)?, place: Place::Port(*port) }),
        }
    }

    /// Sends an attempt to connect on its way.
    fn dial(&mut self, life: Life, addr: &Addr, handler: Arc<dyn Handler>) -> u64 {
        let id = self.next_serial();
        let mut attempt = Attempt {
            life,
            addr: addr.clone(),
            handler: Some(handler),
            timeout: TimerId { deadline_ns: 0, serial: 0 },
            result: None,
            waker: None,
            end: None,
        };
        if self.is_alive(life) {
            self.note(Kind::Dial, life.node, id, 0);
            let deadline_ns = self.now_ns.saturating_add(CONNECT_TIMEOUT_NS);
            attempt.timeout = self.schedule(deadline_ns, Event::ConnectTimeout { attempt: id });
            self.send_dial(id, life.node, addr);
        } else {
            attempt.result = Some(Err(NetError::Unreachable(format!("{addr}: the node that connects was killed"))));
        }
        self.attempts.insert(id, attempt);
        id
    }

    fn send_dial(&mut self, attempt: u64, dialer: u32, addr: &Addr) {
        let arrival_ns = self.now_ns.saturating_add(self.delay_ns());
        match self.door_to_dial(dialer, addr) {
            None => {
                let why = format!("{addr}: no node has this name");
                self.schedule(arrival_ns, Event::Refused { attempt, by: None, why });
            }
            Some(door) if self.link_is_up(dialer, door.node) => {
                self.schedule(arrival_ns, Event::Dial { attempt, door });
            }
            // Nothing arrives, and the attempt times out.
            Some(_) => {}
        }
    }

    fn delay_ns(&mut self) -> u64 {
        self.net_rng.between(self.faults.delay_ns_min, self.faults.delay_ns_max)
    }

    /// An attempt that still waits for its answer.
    fn open_attempt(&mut self, id: u64) -> Option<&mut Attempt> {
        self.attempts.get_mut(&id).filter(|attempt| attempt.result.is_none())
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
            Event::Frame { to, from_node, to_node, frame } => self.frame_arrives(to, from_node, to_node, frame),
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

    fn dial_arrives(self: &Arc<Self>, attempt_id: u64, door: &Door) {
        let (acceptor, server_id, conn) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let Some(attempt) = state.open_attempt(attempt_id) else { return };
            let (dialer, addr) = (attempt.life.node, attempt.addr.clone());
            if !state.link_is_up(dialer, door.node) || !state.nodes[door.node as usize].host_up {
                return;
            }
            let answer_ns = state.now_ns.saturating_add(state.delay_ns());
            let Some(listener) = state.listeners.get(door) else {
                let why = format!("{addr}: connection refused: nobody listens there");
                state.schedule(answer_ns, Event::Refused { attempt: attempt_id, by: Some(door.node), why });
                return;
            };
            let acceptor = listener.acceptor.clone();
            let server_id = self.make_ends(state, attempt_id, dialer, door.node, &addr, answer_ns);
            (acceptor, server_id, state.ends[&server_id].conn.clone())
        };
        let handler = acceptor.accept(&conn);
        let _unused = {
            let mut state = self.state.lock();
            match state.ends.get_mut(&server_id) {
                Some(end) => end.handler.replace(handler),
                // The acceptor had its own node killed.
                None => Some(handler),
            }
        };
    }

    /// Makes both ends and gives the listener's; the dialer's opens when the dialer hears of it.
    fn make_ends(
        self: &Arc<Self>,
        state: &mut State,
        attempt_id: u64,
        dialer: u32,
        listener: u32,
        addr: &Addr,
        answer_ns: u64,
    ) -> u64 {
        let dialer_id = state.next_serial() << 1;
        let server_id = dialer_id | 1;
        let connection = |id, name, listener| -> Arc<dyn Connection> {
            Arc::new(SimConnection { core: self.clone(), id, peer: Peer { name, credentials: None }, listener })
        };
        let life = Life { node: listener, incarnation: state.nodes[listener as usize].incarnation };
        let end = |node, peer_node, conn, phase| End {
            node,
            peer_node,
            conn,
            handler: None,
            limits: LIMITS_BEFORE_HANDSHAKE,
            phase,
            closed_until_ns: answer_ns,
            last_arrival_ns: answer_ns,
            queued_bytes: 0,
            offer: None,
            lent: Lent::default(),
            claims: None,
            arriving: None,
        };
        let server_conn = connection(server_id, format!("node {}", state.name(dialer)), None);
        let dialer_conn = connection(dialer_id, addr.to_string(), Some(life));
        state.ends.insert(server_id, end(listener, dialer, server_conn, Phase::Open));
        state.ends.insert(dialer_id, end(dialer, listener, dialer_conn, Phase::Opening));
        if let Some(attempt) = state.attempts.get_mut(&attempt_id) {
            attempt.end = Some(dialer_id);
        }
        state.counters.connections_opened += 1;
        state.note(Kind::Accept, listener, server_id, 0);
        state.schedule(answer_ns, Event::Accepted { attempt: attempt_id, end: dialer_id });
        server_id
    }

    fn accepted_arrives(&self, attempt_id: u64, end_id: u64) {
        let waker = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let (dialer, listener) = match (state.ends.get(&end_id), state.ends.get(&(end_id ^ 1))) {
                (Some(end), _) => (end.node, end.peer_node),
                // Given up, or the dialer was killed: the other side holds half a connection.
                (None, Some(other)) => return state.reset(end_id ^ 1, other.peer_node, other.node),
                (None, None) => return,
            };
            if !state.link_is_up(listener, dialer) {
                return;
            }
            let Some(attempt) = state.attempts.get_mut(&attempt_id) else { return };
            let Some(end) = state.ends.get_mut(&end_id) else { return };
            end.phase = Phase::Open;
            end.handler = attempt.handler.take();
            attempt.result = Some(Ok(end.conn.clone()));
            let (timeout, waker) = (attempt.timeout, attempt.waker.take());
            state.events.remove(&timeout);
            state.note(Kind::Connected, dialer, end_id, 0);
            waker
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn refused_arrives(&self, attempt_id: u64, by: Option<u32>, why: String) {
        let (_handler, waker) = {
            let mut state = self.state.lock();
            let Some(attempt) = state.open_attempt(attempt_id) else { return };
            let (node, timeout) = (attempt.life.node, attempt.timeout);
            if by.is_some_and(|by| !state.link_is_up(by, node)) {
                return;
            }
            state.events.remove(&timeout);
            state.fail_attempt(attempt_id, why)
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn connect_times_out(&self, attempt_id: u64) {
        let (_opening, (_handler, waker)) = {
            let mut state = self.state.lock();
            let Some(attempt) = state.open_attempt(attempt_id) else { return };
            let (end, why) = (attempt.end, format!("{}: connection timed out", attempt.addr));
            (end.and_then(|end| state.ends.remove(&end)), state.fail_attempt(attempt_id, why))
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn frame_arrives(&self, to: u64, from_node: u32, to_node: u32, frame: Frame) {
        let ((handler, conn), frame) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let size = frame.head.len() + frame.payload_bytes();
            if let Some(sender) = state.ends.get_mut(&(to ^ 1)) {
                sender.queued_bytes -= size;
            }
            if !state.link_is_up(from_node, to_node) {
                state.counters.frames_vanished += 1;
                return state.note(Kind::Vanish, to_node, to, size as u64);
            }
            let Some(end) = state.ends.get_mut(&to) else { return state.reset(to ^ 1, to_node, from_node) };
            if end.phase != Phase::Open {
                return;
            }
            if let Some(why) = end.limit_broken_by(&frame) {
                return state.close(to, NetError::Limit(why), "closed by the peer: a frame was too large");
            }
            let found = (end.handler(), end.conn());
            let frame = end.keep_behind(frame);
            state.counters.frames_delivered += 1;
            state.note(Kind::Deliver, to_node, to, size as u64);
            let Some(frame) = frame else { return };
            (found, frame)
        };
        self.deliver(to, &handler, &conn, frame);
    }

    /// Takes an end out of the world if it is in `phase`, and tells its handler.
    fn end_connection(&self, id: u64, phase: Phase, why: NetError) {
        let mut end = {
            let mut state = self.state.lock();
            match state.ends.entry(id) {
                Entry::Occupied(end) if end.get().phase == phase => {
                    let mut end = end.remove();
                    end.lent.end();
                    state.note(Kind::Close, end.node, id, 0);
                    end
                }
                _ => return,
            }
        };
        drop(end.arriving.take());
        end.handler.expect("an end that can end has a handler").on_close(&end.conn, why);
    }
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

/// Sending and closing.
impl State {
    /// What the lock must not be held for when it is dropped or woken.
    fn fail_attempt(&mut self, id: u64, why: String) -> (Option<Arc<dyn Handler>>, Option<Waker>) {
        let Some(attempt) = self.open_attempt(id) else { return (None, None) };
        attempt.result = Some(Err(NetError::Unreachable(why)));
        let (node, remains) = (attempt.life.node, (attempt.handler.take(), attempt.waker.take()));
        self.note(Kind::ConnectFailed, node, id, 0);
        remains
    }

    fn send(
        &mut self,
        id: u64,
        head: &[u8],
        payload: &[&[u8]],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) -> Result<(), NetError> {
        let Some(end) = self.ends.get(&id).filter(|end| end.phase == Phase::Open) else {
            return Err(NetError::Closed("the connection has ended".into()));
        };
        let (node, peer_node, queued_bytes) = (end.node, end.peer_node, end.queued_bytes);
        let size = head.len() + payload.iter().map(|part| part.len()).sum::<usize>();
        self.note(Kind::Send, node, id, size as u64);
        self.trace.absorb(hash_bytes(head));
        if queued_bytes + size > SEND_QUEUE_BYTES_MAX {
            let why = NetError::Limit(format!("more than {SEND_QUEUE_BYTES_MAX} bytes wait to be taken by the peer"));
            self.close(id, why.clone(), "closed by the peer: it sent too much at once");
            return Err(why);
        }
        if self.net_rng.chance(self.faults.connection_cut_ppm) {
            return self.cut(node, id);
        }
        self.counters.frames_sent += 1;
        if !self.link_is_up(node, peer_node) {
            self.counters.frames_vanished += 1;
            self.note(Kind::Vanish, node, id, size as u64);
        } else if self.net_rng.chance(self.faults.loss_ppm) {
            self.counters.frames_lost += 1;
            self.note(Kind::Lose, node, id, size as u64);
        } else {
            let lent = self.lend(id, held, size - head.len()).map(Arc::new);
            let payload = if lent.is_some() { Vec::new() } else { payload.concat() };
            self.post_with_faults(id, Frame { head: head.to_vec(), payload, lent, landed: None });
        }
        Ok(())
    }

    /// Lends a payload of so many bytes instead of sending it, where that is done.
    fn lend(&mut self, id: u64, held: &[(Arc<slab::Frame>, Range<usize>)], payload_bytes: usize) -> Option<Loan> {
        let lends = self.lend_bytes_min.is_some_and(|min| payload_bytes >= min.max(1));
        let held_bytes: usize = held.iter().map(|(_, range)| range.len()).sum();
        if !lends || held_bytes != payload_bytes {
            return None;
        }
        let loan = self.ends.get_mut(&id)?.lent.lend(held)?;
        self.counters.payloads_lent += 1;
        Some(Loan(Source::Sim(loan)))
    }

    /// Ends a connection by a fault. A sender may learn it at once or only by `on_close`.
    fn cut(&mut self, node: u32, id: u64) -> Result<(), NetError> {
        self.counters.connections_cut += 1;
        self.note(Kind::Cut, node, id, 0);
        let why = NetError::Closed("the connection was cut on the way".into());
        self.close(id, why.clone(), "cut on the way");
        if self.net_rng.chance(500_000) { Err(why) } else { Ok(()) }
    }

    fn post_with_faults(&mut self, from: u64, mut frame: Frame) {
        let copy = self.net_rng.chance(self.faults.duplicate_ppm).then(|| Frame {
            head: frame.head.clone(),
            payload: frame.payload.clone(),
            lent: frame.lent.clone(),
            landed: None,
        });
        if self.net_rng.chance(self.faults.flip_ppm) {
            self.flip_one_bit(&mut frame);
        }
        self.post(from, frame);
        if let Some(copy) = copy {
            self.counters.frames_duplicated += 1;
            self.post(from, copy);
        }
    }

    fn flip_one_bit(&mut self, frame: &mut Frame) {
        let (head_len, len) = (frame.head.len(), frame.head.len() + frame.payload.len());
        if len == 0 {
            return;
        }
        self.counters.frames_flipped += 1;
        let (at, bit) = (self.net_rng.index(len), self.net_rng.below(8));
        let byte = if at < head_len { &mut frame.head[at] } else { &mut frame.payload[at - head_len] };
        *byte ^= 1 << bit;
    }

    /// Puts a frame on its way.
    fn post(&mut self, from: u64, frame: Frame) {
        let mut arrival_ns = self.now_ns.saturating_add(self.delay_ns());
        let is_held_up = self.net_rng.chance(self.faults.reorder_ppm);
        if is_held_up {
            self.counters.frames_reordered += 1;
            arrival_ns = arrival_ns.saturating_add(self.net_rng.between(0, self.faults.reorder_delay_ns_max));
        }
        let Some(end) = self.ends.get_mut(&from) else { return };
        if is_held_up {
            arrival_ns = arrival_ns.max(end.closed_until_ns + 1);
        } else {
            arrival_ns = arrival_ns.max(end.last_arrival_ns + 1);
            end.last_arrival_ns = arrival_ns;
        }
        end.queued_bytes += frame.head.len() + frame.payload_bytes();
        let (from_node, to_node) = (end.node, end.peer_node);
        self.schedule(arrival_ns, Event::Frame { to: from ^ 1, from_node, to_node, frame });
    }

    /// Closes an end from its own side: its handler and, if the link is up, its peer hear of it later.
    fn close(&mut self, id: u64, why_here: NetError, why_there: &'static str) {
        let Entry::Occupied(entry) = self.ends.entry(id) else { return };
        if entry.get().phase != Phase::Open {
            return;
        }
        let mut end = entry.remove();
        end.phase = Phase::Closing;
        self.send_fin(id, &end, why_there);
        self.ends.insert(id, end);
        self.schedule(self.now_ns, Event::LocalClose { end: id, why: why_here });
    }

    /// Sends the news that `end` is gone to its peer, behind the frames sent before.
    pub(super) fn send_fin(&mut self, id: u64, end: &End, why: &'static str) {
        if self.link_is_up(end.node, end.peer_node) {
            let arrival_ns = self.now_ns.saturating_add(self.delay_ns()).max(end.last_arrival_ns + 1);
            self.schedule(arrival_ns, Event::Fin { to: id ^ 1, from_node: end.node, to_node: end.peer_node, why });
        }
    }

    /// Answers the end `to`, which has sent over a connection that `from_node` does not know.
    fn reset(&mut self, to: u64, from_node: u32, to_node: u32) {
        let answers = self.nodes[from_node as usize].host_up && self.link_is_up(from_node, to_node);
        if answers && self.ends.contains_key(&to) {
            let arrival_ns = self.now_ns.saturating_add(self.delay_ns());
            self.schedule(
                arrival_ns,
                Event::Fin { to, from_node, to_node, why: "reset by the peer: it knows no such connection" },
            );
        }
    }
}
