//! Connecting: who listens where, attempts on their way, and their answers.

use std::collections::btree_map::Entry;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::super::CONNECT_TIMEOUT_NS;
use super::super::shared_payload::SharedPayloads;
use super::super::state::{Core, EPHEMERAL_PORT_MIN, Event, Life, ListenerSlot, State};
use super::super::trace::Kind;
use super::conn::SimConnection;
use super::{Attempt, Door, End, Phase, Place};
use crate::{Acceptor, Addr, Connection, Handler, LIMITS_BEFORE_HANDSHAKE, Listener, NetError, Peer, TimerId};

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
pub(in super::super) fn listen(
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
pub(in super::super) fn connect(core: &Arc<Core>, life: Life, addr: &Addr, handler: Arc<dyn Handler>) -> Connecting {
    let attempt = core.state.lock().dial(life, addr, handler);
    Connecting { core: core.clone(), attempt }
}

/// Resolves when the connection stands; dropping it before gives it up.
pub(in super::super) struct Connecting {
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

    /// An attempt that still waits for its answer.
    fn open_attempt(&mut self, id: u64) -> Option<&mut Attempt> {
        self.attempts.get_mut(&id).filter(|attempt| attempt.result.is_none())
    }

    /// What the lock must not be held for when it is dropped or woken.
    fn fail_attempt(&mut self, id: u64, why: String) -> (Option<Arc<dyn Handler>>, Option<Waker>) {
        let Some(attempt) = self.open_attempt(id) else { return (None, None) };
        attempt.result = Some(Err(NetError::Unreachable(why)));
        let (node, remains) = (attempt.life.node, (attempt.handler.take(), attempt.waker.take()));
        self.note(Kind::ConnectFailed, node, id, 0);
        remains
    }
}

impl Core {
    pub(super) fn dial_arrives(self: &Arc<Self>, attempt_id: u64, door: &Door) {
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
            shared: SharedPayloads::default(),
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

    pub(super) fn accepted_arrives(&self, attempt_id: u64, end_id: u64) {
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

    pub(super) fn refused_arrives(&self, attempt_id: u64, by: Option<u32>, why: String) {
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

    pub(super) fn connect_times_out(&self, attempt_id: u64) {
        let (_opening, (_handler, waker)) = {
            let mut state = self.state.lock();
            let Some(attempt) = state.open_attempt(attempt_id) else { return };
            let (end, why) = (attempt.end, format!("{}: connection timed out", attempt.addr));
            (end.and_then(|end| state.ends.remove(&end)), state.fail_attempt(attempt_id, why))
        };
        waker.into_iter().for_each(Waker::wake);
    }
}
