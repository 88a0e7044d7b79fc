//! The state of one server, put together from the state of its parts, and its configuration.

use crate::chunks::state::backed::{BackedFiles, Flights};
use crate::chunks::state::evictions::Evictions;
use crate::clock::HybridClock;
use crate::coherence::state::leases::Leases;
use crate::coherence::state::published::PublishedIndex;
use crate::coherence::state::through::{Contact, Opened};
use crate::counters::Counters;
use crate::membership::state::activity::Activity;
use crate::membership::state::group::Grouped;
use crate::membership::state::keeper::Keeper;
use crate::membership::state::moving::Moving;
use crate::membership::state::sessions::Sessions;
use crate::names::state::directories::Directories;
use crate::names::state::directories::RootTold;
use crate::names::state::namespace::Namespace;
use crate::names::state::transactions::Transactions;
use crate::names::state::unresolved::Unresolved;
use crate::persistence::state::persistence::{Persistence, Storage};
use crate::sabotage::Switches;
use crate::shards::ShardSet;
use aze_io::backing::Backing;
use aze_io::logical::LogicalClock;
use aze_io::sync::{Mutex, RwLock};
use aze_io::{Addr, Io, Listener, Transport};
use aze_proto::handshake::Secret;
use aze_proto::slots::Placement;
use aze_proto::{
    BackingIdentity, Incarnation, Ino, MapEpoch, NamespaceEpoch, Order, ServerIndex, SessionId, ShardId, ShardMap,
};
use aze_rpc::{Caller, ReplyContext};
use aze_store::Store;
use futures_channel::oneshot;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a server is started with.
#[derive(Clone)]
pub struct Config {
    /// The volume's name.
    pub volume: String,
    /// What both ends of every connection must know.
    pub secret: Secret,
    /// This server's place, counted from 0.
    pub slot: ServerIndex,
    /// When all servers start: the one that makes the first map, and on a volume in directories counts the starts. Of those that have slots it
    /// is the one with the lowest number.
    pub first: ServerIndex,
    /// How many servers the volume was started with, when it was made.
    pub servers: u16,
    /// When all servers start but for some: those that are left out. For the first one; others hear of it from that.
    pub without: Vec<ServerIndex>,
    /// The server joins a volume in use.
    pub joins_later: bool,
    /// Where the first server listens, or the keeper, for one that joins; empty for the first one itself.
    pub keeper: Vec<Addr>,
    /// Where to listen.
    pub listen: Vec<Addr>,
    /// The node's name: local sockets are used by askers on a node of the same name only.
    pub host: String,
    /// This process, for people and `aze down`.
    pub pid: u32,
    /// Bytes of file data that it may hold.
    pub capacity_bytes: u64,
    /// Bytes of memory that are kept faulted in ahead of their use.
    pub fault_ahead_bytes: u64,
    /// Bytes of what clients that share memory with it may read without a request; 0 for nothing. A
    /// server with persistent storage has nothing for them.
    pub published_bytes: u64,
    /// Base-2 logarithm of the chunk size of new files.
    pub chunk_bits: u8,
    /// Number of shards of the volume, a power of two.
    pub shards: u32,
    /// Which server gets which slot.
    pub placement: Placement,
    /// The user who owns the volume.
    pub owner_uid: u32,
    /// The owner's group.
    pub owner_gid: u32,
    /// Tells how much memory this process takes, in bytes.
    pub memory_bytes: fn() -> u64,
    /// What may be used to other servers on the same node.
    pub transport: Transport,
    /// Time within which another server must answer.
    pub deadline: Duration,
    /// The directory over which the volume lies, if it lies over one.
    pub backing: Option<Over>,
    /// Where it keeps its part so that it lasts; `None`: in memory only.
    pub storage: Option<Storage>,
    /// How often the volume was started again under its mounts.
    pub starts: u32,
    /// The server comes back alone to a volume whose other servers go on; `None`: all servers start.
    pub comeback: Option<Comeback>,
    /// A number of the system that this process runs on, which is another one after each boot; 0 if that is not known.
    pub boot: u64,
    /// Opens files for clients of this node; `None`: they ask the homes themselves.
    pub contact: Option<Arc<dyn Contact>>,
    /// Protections removed, in the simulation only.
    pub switches: Switches,
}

/// The directory over which a volume lies.
#[derive(Clone)]
pub struct Over {
    /// The directory.
    pub tree: Arc<dyn Backing>,
    /// What its root was when the server started.
    pub root: BackingIdentity,
    /// Takes a line for the log.
    pub report: fn(&str),
}

/// What a server that comes back alone is told of the others by its starter.
#[derive(Clone, Debug, Default)]
pub struct Comeback {
    /// The other servers.
    pub others: Vec<OtherServer>,
}

/// Another server, as a starter knows it.
#[derive(Clone, Debug)]
pub struct OtherServer {
    /// Its place.
    pub slot: ServerIndex,
    /// The name of its node.
    pub host: String,
    /// Where it listens.
    pub addresses: Vec<Addr>,
    /// Its process.
    pub pid: u32,
    /// The starter has seen that this process has ended.
    pub has_ended: bool,
}

/// One server.
pub struct Server {
    pub(crate) me: Weak<Server>,
    pub(crate) io: Io,
    pub(crate) config: Config,
    pub(crate) clock: HybridClock,
    /// Orders the records of the journal by cause; requests and replies carry it.
    pub(crate) order: Arc<LogicalClock>,
    pub(crate) counters: Counters,

    // The shards, where names and chunks are.
    pub(crate) shards: Arc<ShardSet>,
    pub(crate) store: Arc<Store>,
    pub(crate) backed: BackedFiles,
    pub(crate) evictions: Evictions,

    // Persistence.
    pub(crate) persistence: Option<Persistence>,

    // Names.
    pub(crate) directories: Directories,
    pub(crate) namespace: Namespace,
    pub(crate) transactions: Transactions,
    /// Directories that are being imported from the backing.
    pub(crate) imports: Flights<Ino>,
    pub(crate) unresolved: Unresolved,
    /// Inodes of whose move or end another server is yet to be told, once for each such server.
    pub(crate) untold: Mutex<Vec<Ino>>,
    pub(crate) root_told: RootTold,
    /// How many words this server owes others.
    pub(crate) owed: Arc<AtomicUsize>,

    // Coherence.
    pub(crate) published: PublishedIndex,
    pub(crate) leases: Arc<Leases>,
    /// Files that clients of this node have opened through this server.
    pub(crate) opened: Opened,

    // Membership.
    pub(crate) map: RwLock<Arc<ShardMap>>,
    /// Sessions of earlier lives of other servers, whose requests are refused.
    pub(crate) retired: Mutex<Vec<SessionId>>,
    /// The newest map that another server's answer was given under.
    pub(crate) map_epoch_heard: AtomicU32,
    pub(crate) keeper: Keeper,
    pub(crate) group: Arc<Grouped>,
    pub(crate) moving: Arc<Moving>,
    /// Servers that this one has seen to end, in these lives.
    pub(crate) seen_to_end: Mutex<BTreeSet<(ServerIndex, MapEpoch, Incarnation)>>,
    pub(crate) sessions: Sessions,
    pub(crate) activity: Arc<Activity>,
    pub(crate) peers: Arc<Caller>,
    pub(crate) started_ns: u64,
    pub(crate) listeners: Mutex<Vec<Box<dyn Listener>>>,
    pub(crate) stop: Mutex<Option<oneshot::Sender<()>>>,
    pub(crate) stopped: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Server {
    /// Resolves once a client has asked the server to shut down and has got the answer; at once if
    /// it was awaited before.
    pub async fn stopped(&self) {
        let stopped = self.stopped.lock().take();
        if let Some(stopped) = stopped {
            // An error means that the sender is gone, which is a stop as well.
            let _ = stopped.await;
        }
    }

    /// Has [`stopped`](Self::stopped) resolve, as after a request to shut down.
    pub fn stop(&self) {
        self.published.close();
        if let Some(stop) = self.stop.lock().take() {
            // For a simulated server no task waits.
            let _ = stop.send(());
        }
    }

    /// Stops listening, closes all connections and forgets the addresses.
    pub fn close(&self) {
        self.published.close();
        self.listeners.lock().clear();
        self.peers.close();
    }

    /// Bytes of file data that the server can hold.
    pub fn capacity_bytes(&self) -> u64 {
        self.store.capacity_bytes()
    }

    /// The addresses that the server listens on.
    pub fn addresses(&self) -> Vec<Addr> {
        self.listeners.lock().iter().map(|listener| listener.addr().clone()).collect()
    }

    /// The shard that keeps an inode.
    pub(crate) fn home(&self, ino: Ino) -> ShardId {
        ino.home(self.config.shards)
    }

    /// The map as this server knows it.
    pub fn map(&self) -> Arc<ShardMap> {
        self.map.read().clone()
    }

    /// Flips one bit of stored data, as rot would: for tests of the errors that readers get. Gives whether
    /// the chunk was there.
    pub fn flip_bit(&self, ino: Ino, chunk: u64, bit: u64) -> bool {
        self.shards.iter().any(|cell| cell.data.lock().flip_bit(ino, chunk, bit))
    }

    pub(crate) fn slot(&self) -> ServerIndex {
        self.config.slot
    }

    pub(crate) fn session(&self) -> SessionId {
        self.peers.session()
    }

    /// Map epoch at which this server started empty.
    pub(crate) fn since(&self) -> MapEpoch {
        self.map.read().server(self.slot()).map_or(MapEpoch(0), |info| info.since)
    }

    /// How many times a server of this place has started empty before this one.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.map.read().server(self.slot()).map_or(Incarnation(0), |info| info.incarnation)
    }

    pub(crate) fn map_epoch_now(&self) -> MapEpoch {
        self.map.read().epoch
    }

    pub(crate) fn namespace_epoch(&self) -> NamespaceEpoch {
        self.namespace.epoch()
    }

    pub(crate) fn reply_context(&self) -> ReplyContext {
        ReplyContext {
            map_epoch: self.map_epoch_now(),
            namespace_epoch: self.namespace_epoch(),
            time: self.clock.latest(),
            order: Order(self.order.now()),
            lease_ms: 0,
        }
    }

    /// For messages: which server is speaking.
    pub(crate) fn who(&self) -> String {
        format!("server {} on {}", self.config.slot, self.config.host)
    }
}
