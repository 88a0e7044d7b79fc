//! How long frames take on a modelled network, and how long processors need for them.
//!
//! It alone knows that the machines below simulated nodes have ports and processors. A frame to another machine waits for
//! the port of its sender, takes its time on the way and waits for the port of its receiver, each first come, first served.
//! Then the receiver works on it: frames of one connection in turn, and as many at once as the machine has
//! processors. Only when that work is done is the frame delivered, and what the real code does with it takes no virtual time.
//! What a frame means, and so how much work it is, the [`Work`] says.
//!
//! The news that a connection ended does not wait for frames that still wait for a processor.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::state::{Event, State};
use crate::Frame;

/// The network between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Time on the way from one machine to another.
    pub latency_ns: u64,
    /// The same between two nodes of one machine, where no port is used.
    pub local_latency_ns: u64,
    /// Bytes a second that the port of a machine takes, in each direction.
    pub port_bytes_per_s: u64,
    /// Bytes that a port is busy with for each frame besides the frame's own.
    pub frame_bytes: u64,
}

/// What processors do for frames, in nanoseconds.
pub trait Work: Send + Sync {
    /// Before this node's frame leaves.
    fn to_send(&self, node: &str, head: &[u8], payload_bytes: usize) -> u64;
    /// Before it is delivered to this node.
    fn to_receive(&self, node: &str, head: &[u8], payload_bytes: usize) -> u64;
}

/// Machines, the network between them, and their work for each frame.
#[derive(Clone)]
pub struct Timing {
    /// The network.
    pub network: Network,
    /// Processors of each machine.
    pub cores: usize,
    /// The machine on which a node is, by its name.
    pub machine_of: fn(&str) -> u32,
    /// The work.
    pub work: Arc<dyn Work>,
}

/// A frame on its way.
pub(super) struct Flying {
    pub(super) to: u64,
    pub(super) from_node: u32,
    pub(super) to_node: u32,
    pub(super) frame: Frame,
}

impl Flying {
    fn bytes(&self) -> u64 {
        (self.frame.head.len() + self.frame.payload_bytes()) as u64
    }
}

/// When the parts of a machine are free.
struct Machine {
    out_ns: u64,
    in_ns: u64,
    /// When the last frame has left for a node of the same machine.
    within_ns: u64,
    cores_ns: Vec<u64>,
}

impl Machine {
    /// Has the processor that is free first work for so long; says when it has done so.
    fn works(&mut self, now_ns: u64, work_ns: u64) -> u64 {
        let core = self.cores_ns.iter_mut().min().expect("a machine has a processor");
        *core = now_ns.max(*core) + work_ns;
        *core
    }
}

pub(super) struct Timed {
    timing: Timing,
    machines: BTreeMap<u32, Machine>,
    /// Frames that wait for the one of the same connection that is worked on.
    behind: BTreeMap<u64, VecDeque<Flying>>,
}

impl Timed {
    pub(super) fn new(timing: Timing) -> Timed {
        assert!(timing.cores > 0 && timing.network.port_bytes_per_s > 0, "a machine has a processor and a port");
        Timed { timing, machines: BTreeMap::new(), behind: BTreeMap::new() }
    }

    fn machine(&mut self, number: u32) -> &mut Machine {
        let cores_ns = || vec![0; self.timing.cores];
        self.machines.entry(number).or_insert_with(|| Machine {
            out_ns: 0,
            in_ns: 0,
            within_ns: 0,
            cores_ns: cores_ns(),
        })
    }

    /// For how long a port is busy with so many bytes of a frame.
    fn port_ns(&self, bytes: u64) -> u64 {
        let (bytes, rate) = (bytes + self.timing.network.frame_bytes, self.timing.network.port_bytes_per_s);
        (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate)) as u64
    }
}

impl State {
    /// Sends a frame on its way over the modelled network; gives it back where there is none.
    pub(super) fn fly(&mut self, flying: Flying) -> Option<Flying> {
        let (from, to) = (&self.nodes[flying.from_node as usize].name, &self.nodes[flying.to_node as usize].name);
        let Some(timed) = &mut self.timed else { return Some(flying) };
        let machine_of = timed.timing.machine_of;
        let (machine, to_machine) = (machine_of(from), machine_of(to));
        let work_ns = timed.timing.work.to_send(from, &flying.frame.head, flying.frame.payload_bytes());
        let (network, port_ns) = (timed.timing.network, timed.port_ns(flying.bytes()));
        let now_ns = self.now_ns;
        let sender = timed.machine(machine);
        let ready_ns = if work_ns == 0 { now_ns } else { sender.works(now_ns, work_ns) };
        if machine == to_machine {
            // In order, as through a port.
            sender.within_ns = ready_ns.max(sender.within_ns + 1);
            let came_ns = sender.within_ns + network.local_latency_ns;
            self.schedule(came_ns, Event::Came(flying));
        } else {
            let begins_ns = ready_ns.max(sender.out_ns);
            sender.out_ns = begins_ns + port_ns;
            self.schedule(begins_ns + network.latency_ns, Event::Reaches(flying));
        }
        None
    }

    /// The first byte of a frame is at its receiver's port.
    pub(super) fn reaches_port(&mut self, flying: Flying) {
        let machine = self.timed.as_ref().map(|timed| (timed.timing.machine_of)(self.name(flying.to_node)));
        let came_ns = match (&mut self.timed, machine) {
            (Some(timed), Some(machine)) => {
                let (port_ns, now_ns) = (timed.port_ns(flying.bytes()), self.now_ns);
                let receiver = timed.machine(machine);
                receiver.in_ns = receiver.in_ns.max(now_ns) + port_ns;
                receiver.in_ns
            }
            _ => self.now_ns,
        };
        self.schedule(came_ns, Event::Came(flying));
    }

    /// All of a frame is there.
    pub(super) fn has_come(&mut self, flying: Flying) {
        if let Some(timed) = &mut self.timed {
            if let Some(behind) = timed.behind.get_mut(&flying.to) {
                return behind.push_back(flying);
            }
            timed.behind.insert(flying.to, VecDeque::new());
        }
        self.work_on(flying);
    }

    fn work_on(&mut self, flying: Flying) {
        let Flying { to, from_node, to_node, frame } = flying;
        let mut done_ns = self.now_ns;
        if let Some(timed) = &mut self.timed {
            let name = &self.nodes[to_node as usize].name;
            let work_ns = timed.timing.work.to_receive(name, &frame.head, frame.payload_bytes());
            let machine = (timed.timing.machine_of)(name);
            if work_ns > 0 {
                done_ns = timed.machine(machine).works(self.now_ns, work_ns);
            }
        }
        let frame = self.long_heads.post(frame);
        self.schedule(done_ns, Event::Frame { to, from_node, to_node, frame });
    }

    /// A frame of a connection is about to be delivered: the next one's turn has come.
    pub(super) fn work_on_next(&mut self, to: u64) {
        let Some(timed) = &mut self.timed else { return };
        let Some(behind) = timed.behind.get_mut(&to) else { return };
        match behind.pop_front() {
            Some(next) => self.work_on(next),
            None => drop(timed.behind.remove(&to)),
        }
    }
}
