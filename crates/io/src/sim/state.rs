//! Everything a world consists of, behind one lock that is never held while
//! user code runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;

use crate::sync::Mutex;

use super::disk::Disks;
use super::exec::{Ready, TaskSlot};
use super::net::{Attempt, Door, End, LongHeads, Posted};
use super::receive_buffer::SlowPayloads;
use super::rng::SimRng;
use super::timing::{Flying, Timed};
use super::trace::{Kind, Trace};
use super::{CLOCK_SKEW_NS_MAX, Counters, Faults, Link, TIME_LIMIT_DEFAULT, WALL_BASE_NS};
use crate::once::Once;
use crate::{Acceptor, Connection, Handler, NetError, TimerId};

/// One world.
pub(super) struct Core {
    pub(super) seed: u64,
    pub(super) ready: Arc<Ready>,
    pub(super) once: Once,
    pub(super) state: Mutex<State>,
}

/// One incarnation of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) node: u32,
    pub(super) incarnation: u32,
}

/// Something that will happen at a set time.
pub(super) enum Event {
    /// A task asked to be woken.
    Timer { life: Life, waker: Waker },
    /// An attempt to connect reaches the node that it is meant for.
    Dial { attempt: u64, door: Door },
    /// The answer that a connection was accepted comes back; `end` is the dialer's.
    Accepted { attempt: u64, end: u64 },
    /// The answer that it was not; from a node, or from the system itself.
    Refused { attempt: u64, by: Option<u32>, why: String },
    /// No answer came.
    ConnectTimeout { attempt: u64 },
    /// The first byte of a frame reaches the port of its receiver's machine.
    Reaches(Flying),
    /// All of it has come there.
    Came(Flying),
    /// A frame arrives at an end.
    Frame { to: u64, from_node: u32, to_node: u32, frame: Posted },
    /// The rest of a payload arrives at an end.
    Rest { to: u64, serial: u64 },
    /// The news that the connection ended arrives at an end.
    Fin { to: u64, from_node: u32, to_node: u32, why: &'static str },
    /// An end that was closed on its own side says so to its handler.
    LocalClose { end: u64, why: NetError },
}

/// A listening address with its owner.
pub(super) struct ListenerSlot {
    pub(super) serial: u64,
    pub(super) acceptor: Arc<dyn Acceptor>,
}

pub(super) struct NodeState {
    pub(super) name: String,
    pub(super) incarnation: u32,
    pub(super) alive: bool,
    /// Whether the machine answers, with a refusal or a reset if need be.
    pub(super) host_up: bool,
    /// Skew and steps of its wall clock.
    clock_error_ns: i64,
    pub(super) random: SimRng,
    /// Last port given out for port 0.
    pub(super) last_port: u16,
}

/// Ports below this one are not given out for port 0; it is where Linux begins.
pub(super) const EPHEMERAL_PORT_MIN: u16 = 32768;

pub(super) struct State {
    seed: u64,
    pub(super) now_ns: u64,
    pub(super) time_limit_ns: u64,
    pub(super) steps_this_instant: u64,
    pub(super) running: bool,
    last_serial: u64,
    last_task: u64,
    /// In boxes: events are large, and a map moves its values about.
    pub(super) events: BTreeMap<TimerId, Box<Event>>,
    pub(super) tasks: BTreeMap<u64, TaskSlot>,
    pub(super) attempts: BTreeMap<u64, Attempt>,
    /// By number; the two ends of a connection differ in the lowest bit.
    pub(super) ends: BTreeMap<u64, End>,
    pub(super) listeners: BTreeMap<Door, ListenerSlot>,
    pub(super) nodes: Vec<NodeState>,
    names: BTreeMap<String, u32>,
    links_down: BTreeSet<(u32, u32)>,
    pub(super) faults: Faults,
    pub(super) net_rng: SimRng,
    tie_rng: SimRng,
    pub(super) disks: Disks,
    pub(super) trace: Trace,
    pub(super) counters: Counters,
    /// Payloads from this size on are shared, where the sender has them in frames.
    pub(super) share_bytes_min: Option<usize>,
    pub(super) slow_payloads: Option<(SlowPayloads, SimRng)>,
    pub(super) long_heads: LongHeads,
    /// What frames take instead of a drawn delay.
    pub(super) timed: Option<Timed>,
}

impl Core {
    pub(super) fn new(seed: u64, faults: Faults) -> Arc<Core> {
        let state = State {
            seed,
            now_ns: 0,
            time_limit_ns: TIME_LIMIT_DEFAULT.as_nanos() as u64,
            steps_this_instant: 0,
            running: false,
            last_serial: 0,
            last_task: 0,
            events: BTreeMap::new(),
            tasks: BTreeMap::new(),
            attempts: BTreeMap::new(),
            ends: BTreeMap::new(),
            listeners: BTreeMap::new(),
            nodes: Vec::new(),
            names: BTreeMap::new(),
            links_down: BTreeSet::new(),
            faults,
            net_rng: SimRng::new(seed, "network"),
            tie_rng: SimRng::new(seed, "ties"),
            disks: Disks::new(seed),
            trace: Trace::default(),
            counters: Counters::default(),
            share_bytes_min: None,
            slow_payloads: None,
            long_heads: LongHeads::default(),
            timed: None,
        };
        Arc::new(Core { seed, ready: Ready::new(seed), once: Once::default(), state: Mutex::new(state) })
    }
}

impl State {
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The living incarnation of a node, started if there is none.
    pub(super) fn start(&mut self, name: &str) -> Life {
        let node = self.node_index(name);
        let state = &mut self.nodes[node as usize];
        if !state.alive {
            state.alive = true;
            state.host_up = true;
            state.incarnation += 1;
            state.random = SimRng::new(self.seed, &format!("random/{name}/{}", state.incarnation));
            state.last_port = EPHEMERAL_PORT_MIN;
            let incarnation = state.incarnation;
            self.note(Kind::Start, node, u64::from(incarnation), 0);
        }
        Life { node, incarnation: self.nodes[node as usize].incarnation }
    }

    /// The number of a node, which need not run.
    pub(super) fn node_index(&mut self, name: &str) -> u32 {
        if let Some(&node) = self.names.get(name) {
            return node;
        }
        let skew_range_ns = 2 * CLOCK_SKEW_NS_MAX.unsigned_abs() + 1;
        let skew_ns = SimRng::new(self.seed, &format!("clock/{name}")).below(skew_range_ns) as i64 - CLOCK_SKEW_NS_MAX;
        let node = self.nodes.len() as u32;
        self.names.insert(name.into(), node);
        self.nodes.push(NodeState {
            name: name.into(),
            incarnation: 0,
            alive: false,
            host_up: true,
            clock_error_ns: skew_ns,
            random: SimRng::new(self.seed, name),
            last_port: EPHEMERAL_PORT_MIN,
        });
        node
    }

    /// The number of a node that was named before.
    pub(super) fn known_node(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub(super) fn name(&self, node: u32) -> &str {
        &self.nodes[node as usize].name
    }

    pub(super) fn is_alive(&self, life: Life) -> bool {
        let node = &self.nodes[life.node as usize];
        node.alive && node.incarnation == life.incarnation
    }

    pub(super) fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    pub(super) fn next_task(&mut self) -> u64 {
        self.last_task += 1;
        self.last_task
    }

    /// Adds an event. Events of the same nanosecond come in a random order.
    pub(super) fn schedule(&mut self, deadline_ns: u64, event: Event) -> TimerId {
        let tie = self.tie_rng.u64() >> 48 << 48;
        let key = TimerId { deadline_ns, serial: tie | self.next_serial() };
        self.events.insert(key, Box::new(event));
        key
    }

    pub(super) fn note(&mut self, kind: Kind, node: u32, subject: u64, size: u64) {
        self.trace.note(self.now_ns, kind, node, subject, size);
    }

    pub(super) fn trace_dump(&self) -> Vec<String> {
        self.trace.lines(|node| self.name(node))
    }

    pub(super) fn wall_ns(&self, node: u32) -> u64 {
        let error_ns = self.nodes[node as usize].clock_error_ns;
        u64::try_from(i128::from(WALL_BASE_NS) + i128::from(self.now_ns) + i128::from(error_ns)).unwrap_or(0)
    }

    pub(super) fn step_clock(&mut self, name: &str, delta_ns: i64) {
        let node = self.node_index(name);
        let error_ns = &mut self.nodes[node as usize].clock_error_ns;
        *error_ns = error_ns.saturating_add(delta_ns);
        self.note(Kind::Clock, node, delta_ns as u64, 0);
    }

    pub(super) fn set_link(&mut self, from: &str, to: &str, link: Link) {
        let (from, to) = (self.node_index(from), self.node_index(to));
        match link {
            Link::Up => self.links_down.remove(&(from, to)),
            Link::Down => self.links_down.insert((from, to)),
        };
        self.note(Kind::Link, from, u64::from(to), u64::from(link == Link::Up));
    }

    pub(super) fn heal(&mut self) {
        let links: Vec<(u32, u32)> = std::mem::take(&mut self.links_down).into_iter().collect();
        for (from, to) in links {
            self.note(Kind::Link, from, u64::from(to), 1);
        }
    }

    pub(super) fn link_is_up(&self, from: u32, to: u32) -> bool {
        self.links_down.is_empty() || !self.links_down.contains(&(from, to))
    }

    /// For messages: how many tasks each node has.
    pub(super) fn tasks_by_node(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for task in self.tasks.values() {
            *counts.entry(self.name(task.life.node)).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(node, count)| format!("{node} {count}")).collect();
        if counts.is_empty() { "none".into() } else { counts.join(", ") }
    }
}

/// The remains of a killed node. Its parts run user code when dropped, so that must wait until the lock is free.
#[derive(Default)]
pub(super) struct Debris {
    tasks: Vec<TaskSlot>,
    timers: Vec<Event>,
    listeners: Vec<ListenerSlot>,
    ends: Vec<End>,
    dialers: Vec<Arc<dyn Handler>>,
    untaken: Vec<Result<Arc<dyn Connection>, NetError>>,
    wakers: Vec<Waker>,
}

impl Debris {
    /// Drops everything, tasks first, and tells the tasks that waited for a connection of the dead node.
    pub(super) fn clear(self) {
        drop(self.tasks);
        drop((self.timers, self.listeners, self.ends, self.dialers, self.untaken));
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Takes a node out of the world; scans everything, which is fine for so rare an event.
    pub(super) fn kill(&mut self, name: &str, silent: bool) -> Debris {
        let Some(node) = self.known_node(name) else { return Debris::default() };
        let state = &mut self.nodes[node as usize];
        // A power cut of a machine whose process died before is still a power cut.
        state.host_up &= !silent;
        let was_alive = std::mem::replace(&mut state.alive, false);
        if silent {
            self.disks.cut_power(node);
        }
        if !was_alive {
            return Debris::default();
        }
        self.note(Kind::Kill, node, u64::from(silent), 0);
        let mut debris = Debris {
            tasks: self.tasks.extract_if(.., |_, task| task.life.node == node).map(|(_, task)| task).collect(),
            timers: self
                .events
                .extract_if(.., |_, event| matches!(**event, Event::Timer { life, .. } if life.node == node))
                .map(|(_, event)| *event)
                .collect(),
            listeners: self.listeners.extract_if(.., |door, _| door.node == node).map(|(_, slot)| slot).collect(),
            ..Debris::default()
        };
        self.abort_attempts(|other| other == node, &mut debris);
        let ends: Vec<(u64, End)> = self.ends.extract_if(.., |_, end| end.node == node).collect();
        for (id, end) in ends {
            if !silent {
                self.send_fin(id, &end, "reset by the peer: its process died");
            }
            debris.ends.push(end);
        }
        debris
    }

    /// Kills every node as a power cut does, and takes out all pending events: at once, since a world of a thousand nodes has a
    /// hundred thousand connections.
    pub(super) fn kill_all(&mut self) -> Debris {
        let mut debris = Debris::default();
        self.abort_attempts(|_| true, &mut debris);
        for node in 0..self.nodes.len() as u32 {
            let state = &mut self.nodes[node as usize];
            state.host_up = false;
            let was_alive = std::mem::replace(&mut state.alive, false);
            self.disks.cut_power(node);
            if was_alive {
                self.note(Kind::Kill, node, 1, 0);
            }
        }
        debris.tasks = std::mem::take(&mut self.tasks).into_values().collect();
        debris.timers = std::mem::take(&mut self.events).into_values().map(|event| *event).collect();
        debris.listeners = std::mem::take(&mut self.listeners).into_values().collect();
        debris.ends = std::mem::take(&mut self.ends).into_values().collect();
        debris
    }

    /// Fails the connection attempts of dead nodes. Their futures may live in another node's task.
    fn abort_attempts(&mut self, is_dead: impl Fn(u32) -> bool, debris: &mut Debris) {
        for attempt in self.attempts.values_mut().filter(|attempt| is_dead(attempt.life.node)) {
            self.events.remove(&attempt.timeout);
            debris.dialers.extend(attempt.handler.take());
            debris.wakers.extend(attempt.waker.take());
            let failed = Err(NetError::Unreachable("the node that connects was killed".into()));
            debris.untaken.extend(attempt.result.replace(failed));
        }
    }
}
