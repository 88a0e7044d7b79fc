//! A whole cluster in one thread and from one seed.
//!
//! It alone knows that there is no real network, clock or scheduler below a
//! simulated node: tasks run one step at a time in an order drawn from the
//! seed, frames take a drawn time and suffer drawn faults, and virtual time
//! jumps ahead whenever nothing can run. The same seed therefore gives the same
//! run to the last event, which [`Sim::trace_hash`] lets a test prove. What the
//! frames mean, and which guarantees are to survive the faults, it deliberately
//! does not know. The approach is that of FoundationDB (Zhou et al., SIGMOD 2021, §4).
//!
//! Rules that a workload has to keep: one thread; no clock, randomness or
//! iteration order from elsewhere; all that is awaited comes from an [`Io`] of
//! this world or from channels that its tasks fill. User code (handlers,
//! wakers, destructors of tasks) always runs without a lock held, so it may
//! call back into the world, [`Sim::kill`] included.

mod disk;
mod exec;
mod net;
mod node;
mod receive_buffer;
mod rng;
mod shared_payload;
mod state;
pub(crate) mod threads;
mod timing;
mod trace;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::{Io, Sleep};

pub use disk::{DiskFault, DiskTrouble};
pub use node::Node;
pub use receive_buffer::SlowPayloads;
pub use rng::SimRng;
pub(crate) use shared_payload::SimPayload;
use state::Core;
pub use threads::Process;
use timing::Timed;
pub use timing::{Network, Timing, Work};
use trace::Kind;

/// How long a connect waits for an answer that never comes, in virtual nanoseconds.
pub const CONNECT_TIMEOUT_NS: u64 = 1_000_000_000;

/// Largest initial error of a node's wall clock in either direction: what a badly kept NTP leaves.
pub const CLOCK_SKEW_NS_MAX: i64 = 50_000_000;

/// What every wall clock shows at virtual time zero, before skew: 2026-01-01 00:00:00 UTC.
pub const WALL_BASE_NS: i64 = 1_767_225_600 * 1_000_000_000;

/// Events that [`Sim::trace_on`] keeps; older ones are forgotten.
pub const TRACE_EVENTS_MAX: usize = 10_000;

/// Steps that may happen without virtual time moving; more means that a task spins, and the run panics.
pub const STEPS_PER_INSTANT_MAX: u64 = 1_000_000;

/// Virtual time at which a run panics unless [`Sim::set_time_limit`] says otherwise.
pub const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(3600);

/// [`Sim::block_on`] runs its future as a task of this node.
pub const DRIVER: &str = "driver";

/// What happens to frames between any two nodes. Chances are in parts per million, per frame.
///
/// The default has no faults, only a delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Shortest time on the way.
    pub delay_ns_min: u64,
    /// Longest time on the way.
    pub delay_ns_max: u64,
    /// Chance of a frame to vanish.
    pub loss_ppm: u32,
    /// Chance of a frame to arrive twice.
    pub duplicate_ppm: u32,
    /// Chance of a frame to be held up, so that later ones may overtake it.
    /// At 0 the frames of one connection keep their order.
    pub reorder_ppm: u32,
    /// Longest time for which such a frame is held up, on top of the ordinary delay.
    pub reorder_delay_ns_max: u64,
    /// Chance that one random bit of head or payload is inverted.
    pub flip_ppm: u32,
    /// Chance that the connection is cut instead of the frame being sent.
    pub connection_cut_ppm: u32,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            delay_ns_min: 20_000,
            delay_ns_max: 200_000,
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            reorder_delay_ns_max: 5_000_000,
            flip_ppm: 0,
            connection_cut_ppm: 0,
        }
    }
}

/// State of the way from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Everything sent arrives, [`Faults`] permitting.
    Up,
    /// Everything vanishes: frames, connection attempts, and the news that a connection ended.
    Down,
}

/// What happened so far, so that a test can prove that its faults did happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames accepted by `send`, including those that then were lost.
    pub frames_sent: u64,
    /// Frames handed to a handler.
    pub frames_delivered: u64,
    /// Frames lost by [`Faults::loss_ppm`].
    pub frames_lost: u64,
    /// Frames that vanished on a link that was down.
    pub frames_vanished: u64,
    /// Frames sent twice by [`Faults::duplicate_ppm`].
    pub frames_duplicated: u64,
    /// Frames held up by [`Faults::reorder_ppm`].
    pub frames_reordered: u64,
    /// Frames with a bit inverted by [`Faults::flip_ppm`].
    pub frames_flipped: u64,
    /// Connections cut by [`Faults::connection_cut_ppm`].
    pub connections_cut: u64,
    /// Payloads that were shared instead of sent.
    pub payloads_shared: u64,
    /// Payloads that went to frames of a slab.
    pub payloads_in_frames: u64,
    /// Those that stopped for a while in the middle.
    pub payloads_paused: u64,
    /// Connections that were accepted.
    pub connections_opened: u64,
    /// Task steps, timers, and arrivals altogether.
    pub steps: u64,
}

/// A simulated world. Clones are handles on the same one.
///
/// When the last handle goes, all nodes are killed and their tasks dropped. A task that holds a
/// handle and never ends keeps the world in memory; [`Sim::shutdown`] ends it.
#[derive(Clone)]
pub struct Sim(Arc<Handle>);

struct Handle(Arc<Core>);

impl Drop for Handle {
    fn drop(&mut self) {
        // A second panic in some destructor would abort and hide the first one.
        if !std::thread::panicking() {
            self.0.shutdown();
        }
    }
}

impl Sim {
    /// Makes a world in which nothing runs yet, at virtual time 0.
    pub fn new(seed: u64, faults: Faults) -> Sim {
        // One thread does the work of all: it never waits, and would not show that real ones do.
        crate::sync::watch_order();
        check(&faults);
        Sim(Arc::new(Handle(Core::new(seed, faults))))
    }

    /// The seed it was made from.
    pub fn seed(&self) -> u64 {
        self.core().seed
    }

    /// The world as one node sees it. The first call for a name, or the first after the node
    /// was killed, starts a new incarnation of it; others give handles on the living one.
    pub fn node(&self, name: &str) -> Io {
        let life = self.core().state.lock().start(name);
        Io::new(Arc::new(Node::new(self.core().clone(), life)))
    }

    /// Runs everything until `future` resolves, which runs as a task of the node [`DRIVER`].
    /// All other tasks stay where they are and go on with the next call.
    ///
    /// # Panics
    /// When nothing can ever happen again ("deadlock"), when virtual time would pass the limit, when
    /// a task spins without end, when called from inside itself, and when a task or handler panics;
    /// the seed is named in each case.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        exec::block_on(self.core(), future)
    }

    /// Makes [`Sim::block_on`] panic once virtual time, counted from the world's beginning, would pass `limit`.
    pub fn set_time_limit(&self, limit: Duration) {
        self.core().state.lock().time_limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Shares payloads from this size on with their receivers, as if the two nodes were one, where the sender has them
    /// in frames; `None`: all are sent.
    pub fn set_sharing(&self, bytes_min: Option<usize>) {
        self.core().state.lock().share_bytes_min = bytes_min;
    }

    /// From now on payloads that go to frames of a slab stop for a while in the middle, some of them; `None`: they come
    /// at once.
    pub fn set_slow_payloads(&self, slow: Option<SlowPayloads>) {
        self.core().state.lock().set_slow_payloads(slow);
    }

    /// From now on frames take the time of a modelled network, and of the work that they are, instead of a drawn delay;
    /// `None`: a drawn delay. It is meant for worlds whose frames come all and in order.
    ///
    /// # Panics
    /// Without processors, or ports that take nothing.
    pub fn set_timing(&self, timing: Option<Timing>) {
        self.core().state.lock().timed = timing.map(Timed::new);
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.core().state.lock().now_ns
    }

    /// Resolves after `delay` of virtual time; for workloads run by [`Sim::block_on`].
    pub fn sleep(&self, delay: Duration) -> Sleep {
        self.node(DRIVER).sleep(delay)
    }

    /// A stream of random numbers that depends on the seed and `label` only; the same label
    /// gives the same stream again.
    pub fn rng(&self, label: &str) -> SimRng {
        SimRng::new(self.seed(), &format!("workload/{label}"))
    }

    /// Replaces the faults for frames sent from now on.
    pub fn set_faults(&self, faults: Faults) {
        check(&faults);
        self.core().state.lock().faults = faults;
    }

    /// Opens or cuts the way from one node to another; the way back is another link.
    pub fn set_link(&self, from: &str, to: &str, link: Link) {
        self.core().state.lock().set_link(from, to, link);
    }

    /// Opens all links.
    pub fn heal(&self) {
        self.core().state.lock().heal();
    }

    /// Ends a node as a crash of its process does: tasks, timers and listeners vanish, and the system resets its
    /// connections; peers hear of that after a delay unless the link to them is down.
    /// All `Io` handles given out for it are dead for good. Killing a dead node does nothing.
    pub fn kill(&self, node: &str) {
        self.core().kill(node, false);
    }

    /// Ends a node as a power cut does: like [`Sim::kill`], but peers hear nothing, and attempts to
    /// connect get no answer until the node runs again. Frames sent to its old connections are
    /// answered with a reset once it does. What its disks had not synced may be lost, or torn.
    pub fn kill_silently(&self, node: &str) {
        self.core().kill(node, true);
    }

    /// Kills all nodes, the driver's included, and forgets everything under way.
    pub fn shutdown(&self) {
        self.core().shutdown();
    }

    /// Sets the fault of a node's disks from now on.
    pub fn set_disk_fault(&self, node: &str, fault: DiskFault) {
        let mut state = self.core().state.lock();
        let node = state.node_index(node);
        state.disks.set_fault(node, fault);
    }

    /// The room of a directory, in bytes: no file of a fixed length is made that does not fit.
    pub fn set_disk_room(&self, node: &str, path: &str, bytes: u64) {
        let mut state = self.core().state.lock();
        let node = state.node_index(node);
        state.disks.set_room(node, path, bytes);
    }

    /// The fault of a node's disks now: none, once the single call of [`DiskFault::Once`] has failed.
    pub fn disk_fault(&self, node: &str) -> DiskFault {
        let mut state = self.core().state.lock();
        let node = state.node_index(node);
        state.disks.fault(node)
    }

    /// Flips one bit of a file on a node's disk, as rot would; `false` if the file has no such bit.
    pub fn flip_disk_bit(&self, node: &str, dir: &str, file: &str, bit: u64) -> bool {
        let mut state = self.core().state.lock();
        let node = state.node_index(node);
        state.disks.flip_bit(node, dir, file, bit)
    }

    /// The files of a directory on a node's disk, with their lengths in bytes.
    pub fn disk_files(&self, node: &str, dir: &str) -> Vec<(String, u64)> {
        let mut state = self.core().state.lock();
        let node = state.node_index(node);
        state.disks.list(node, dir)
    }

    /// Sets a node's wall clock forward or back. Clocks outlive their node's incarnations.
    pub fn step_clock(&self, node: &str, delta_ns: i64) {
        self.core().state.lock().step_clock(node, delta_ns);
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.core().state.lock().counters
    }

    /// A hash over every event so far with its time, node and size, and over the head of every
    /// frame sent. Equal for two runs of the same program with the same seed.
    pub fn trace_hash(&self) -> u64 {
        self.core().state.lock().trace.hash()
    }

    /// Starts to keep the last [`TRACE_EVENTS_MAX`] events. It does not change the run or its hash.
    /// If a run panics, the last of them are printed.
    pub fn trace_on(&self) {
        self.core().state.lock().trace.keep();
    }

    /// The events kept, oldest first, one line each.
    pub fn trace_dump(&self) -> Vec<String> {
        self.core().state.lock().trace_dump()
    }

    /// Adds a line to the trace. The text takes part in the hash.
    pub fn log(&self, node: &str, text: impl Into<String>) {
        let text = text.into();
        let mut state = self.core().state.lock();
        let node = state.node_index(node);
        let now_ns = state.now_ns;
        state.trace.note_text(now_ns, Kind::Log, node, text);
    }

    fn core(&self) -> &Arc<Core> {
        &self.0.0
    }
}

impl Core {
    /// Ends one node; see [`Sim::kill`].
    fn kill(&self, name: &str, silent: bool) {
        let debris = self.state.lock().kill(name, silent);
        debris.clear();
    }

    /// Ends all nodes; see [`Sim::shutdown`].
    fn shutdown(&self) {
        let debris = self.state.lock().kill_all();
        debris.clear();
    }
}

fn check(faults: &Faults) {
    assert!(faults.delay_ns_min <= faults.delay_ns_max, "the shortest delay exceeds the longest: {faults:?}");
}
