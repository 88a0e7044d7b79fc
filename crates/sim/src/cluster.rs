//! Servers and clients on simulated nodes, and how they are killed and started again.

use crate::backing::Below;
use aze_client::Client;
use aze_contact::Contact;
use aze_io::sim::Sim;
use aze_io::sync::Mutex;
use aze_io::{Addr, Io};
use aze_proto::handshake::Secret;
use aze_proto::limits::START_SECONDS_MAX;
use aze_proto::message::Durability;
use aze_proto::slots::Placement;
use aze_proto::{BackingIdentity, Failure, ServerIndex, ShardMap};
use aze_server::sabotage::Switches;
use aze_server::{Server, StorageDir};
use futures_util::future::try_join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

/// What the volume is called.
pub const VOLUME: &str = "sim";

/// What every process of the cluster knows.
pub const SECRET: Secret = Secret([7; 32]);

/// Where every server keeps its part of a persistent volume, or the first directory of that.
pub const STORAGE_DIR: &str = "/storage";

/// The directories of a server, in another order in each of its lives.
fn storage_dirs(count: u16, life: u32) -> Vec<StorageDir> {
    let path = |number: u16| if number == 0 { STORAGE_DIR.into() } else { format!("{STORAGE_DIR}-{number}") };
    let mut dirs: Vec<StorageDir> = (0..count).map(|number| StorageDir { path: path(number), shared_by: 1 }).collect();
    dirs.rotate_left(life as usize % usize::from(count));
    dirs
}

/// Where every server listens on its node.
const PORT: u16 = 7000;

/// Base-2 logarithm of the chunk size: the smallest, so that short files have many chunks.
pub const CHUNK_BITS: u8 = 16;

/// Memory of one server for file data, in bytes.
const CAPACITY_BYTES: u64 = 16 << 20;

/// Bytes that one server may keep on its disk.
const DISK_BYTES: u64 = 32 << 20;

/// Length of a segment on a simulated disk, in bytes.
const SEGMENT_BYTES: u64 = 1 << 20;

/// How often a start may be refused since the first server has heard of another one, or of others that have parts.
const STARTS_REFUSED_MAX: usize = 4;

/// How a cluster is laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Number of servers at the start.
    pub servers: u16,
    /// Number of shards, a power of two.
    pub shards: u32,
    /// Which server gets which slot.
    pub placement: Placement,
    /// Time within which a client, or a server that asks another, wants an answer.
    pub deadline: Duration,
    /// What the disks of the servers promise; `None`: the volume is in memory.
    pub durability: Option<Durability>,
    /// Directories of each server on its disks.
    pub storage_dirs: u16,
    /// Journal after which a server makes a checkpoint, in bytes.
    pub checkpoint_bytes: u64,
    /// Memory of each server that clients read without a request, as if they were on its node.
    pub published_bytes: u64,
    /// Memory of one server for file data, in bytes.
    pub memory_bytes: u64,
    /// Bytes that one server may keep on its disk.
    pub disk_bytes: u64,
    /// The directory over which the volume lies.
    pub backing: Option<Below>,
    /// Servers open files for clients of their nodes.
    pub contacts: bool,
    /// Protections that are removed from every server.
    pub switches: Switches,
}

impl Layout {
    /// A layout of `servers` servers with as few shards as the volume may have, but at least 256.
    pub fn of(servers: u16) -> Layout {
        let shards = (u32::from(servers) * 64).next_power_of_two().max(256);
        let (deadline, switches) = (Duration::from_secs(10), Switches::default());
        Layout {
            servers,
            shards,
            placement: Placement::Modular,
            deadline,
            durability: None,
            storage_dirs: 1,
            checkpoint_bytes: 256 << 10,
            published_bytes: 0,
            memory_bytes: CAPACITY_BYTES,
            disk_bytes: DISK_BYTES,
            backing: None,
            contacts: false,
            switches,
        }
    }
}

/// The backing as a server is told of it.
fn over(below: &Below) -> aze_server::Over {
    let root = BackingIdentity {
        inode: below.root.inode,
        size: below.root.size,
        mtime_ns: below.root.mtime_ns.cast_unsigned(),
        ctime_ns: below.root.ctime_ns.cast_unsigned(),
    };
    aze_server::Over { tree: below.tree.clone(), root, report: |_| {} }
}

fn pid(index: u16, life: u32) -> u32 {
    1000 * (u32::from(index) + 1) + life
}

/// A cluster in a simulated world.
pub struct Cluster {
    /// The world.
    pub sim: Sim,
    layout: Layout,
    servers: Mutex<Vec<Option<Arc<Server>>>>,
    lives: Mutex<Vec<u32>>,
    /// The life of each server that has ended, until the next one serves.
    ended: Mutex<Vec<Option<u32>>>,
    /// How often the node of each server has lost power.
    power_cuts: Mutex<Vec<u32>>,
    /// Servers that are being started to join a volume in use.
    joining: Mutex<BTreeSet<u16>>,
    starts: AtomicU32,
    /// The server that makes the first map at the next start.
    first: AtomicU16,
    /// Servers that are left out of it.
    without: Mutex<Vec<u16>>,
}

/// The node of a server.
pub fn server_node(index: u16) -> String {
    format!("s{index}")
}

/// The node of a client.
pub fn client_node(index: usize) -> String {
    format!("c{index}")
}

fn addr(index: u16) -> Addr {
    Addr::Tcp(server_node(index), PORT)
}

impl Cluster {
    /// A cluster without any running server or client.
    pub fn new(sim: Sim, layout: Layout) -> Arc<Cluster> {
        let count = usize::from(layout.servers);
        let (servers, lives) = (Mutex::new(vec![None; count]), Mutex::new(vec![0; count]));
        let (power_cuts, ended) = (Mutex::new(vec![0; count]), Mutex::new(vec![None; count]));
        let (joining, starts, first) = (Mutex::default(), AtomicU32::new(0), AtomicU16::new(0));
        let without = Mutex::default();
        Arc::new(Cluster { sim, layout, servers, lives, ended, power_cuts, joining, starts, first, without })
    }

    /// How it is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn config(&self, index: u16, life: u32) -> aze_server::Config {
        let first = self.first.load(Ordering::Relaxed);
        aze_server::Config {
            backing: self.layout.backing.as_ref().map(over),
            volume: VOLUME.into(),
            secret: SECRET,
            slot: ServerIndex(index),
            first: ServerIndex(first),
            servers: self.layout.servers,
            without: self.without.lock().iter().copied().map(ServerIndex).collect(),
            joins_later: false,
            keeper: if index == first { Vec::new() } else { vec![addr(first)] },
            listen: vec![addr(index)],
            host: server_node(index),
            // A new life is another process.
            pid: pid(index, life),
            capacity_bytes: self.layout.memory_bytes,
            fault_ahead_bytes: 0,
            published_bytes: self.layout.published_bytes,
            chunk_bits: CHUNK_BITS,
            shards: self.layout.shards,
            placement: self.layout.placement,
            owner_uid: 0,
            owner_gid: 0,
            transport: aze_io::Transport::Tcp,
            deadline: self.layout.deadline,
            storage: self.layout.durability.map(|durability| aze_server::Storage {
                dirs: storage_dirs(self.layout.storage_dirs, life),
                directories: self.layout.storage_dirs,
                durability,
                checkpoint_bytes: self.layout.checkpoint_bytes,
                segment_bytes: SEGMENT_BYTES,
                capacity_bytes: Some(self.layout.disk_bytes),
            }),
            memory_bytes: || 0,
            starts: self.starts.load(Ordering::Relaxed),
            comeback: None,
            boot: 1 + u64::from(self.power_cuts.lock()[usize::from(index)]),
            contact: self.layout.contacts.then(|| self.contact(index) as Arc<dyn aze_server::Contact>),
            switches: self.layout.switches,
        }
    }

    /// The client of a server, on its node.
    fn contact(&self, index: u16) -> Arc<Contact> {
        Contact::new(self.sim.node(&server_node(index)), self.client_config(server_node(index), Vec::new()))
    }

    /// From now on servers start the volume again under its clients.
    pub fn begin_another_start(&self) {
        self.starts.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts one server on its node and waits until it has joined.
    ///
    /// # Errors
    /// What [`aze_server::start`] says.
    pub async fn start_server(self: &Arc<Self>, index: u16) -> Result<(), Failure> {
        self.start_as(index, None, false).await
    }

    /// Starts one more server on its node, as number `index`, and waits until it has joined the volume, which is in use.
    ///
    /// # Errors
    /// `Busy` if it is being started already; what [`aze_server::start`] says.
    pub async fn add_server(self: &Arc<Self>, index: u16) -> Result<(), Failure> {
        // A second start would fail, and the first one be taken for that of an earlier process: no check would read the
        // server.
        if !self.joining.lock().insert(index) {
            return Err(Failure::new(aze_proto::Code::Busy, format!("server {index} is being started")));
        }
        let count = usize::from(index) + 1;
        if self.lives.lock().len() < count {
            self.lives.lock().resize(count, 0);
            self.power_cuts.lock().resize(count, 0);
            self.ended.lock().resize(count, None);
            self.servers.lock().resize(count, None);
        }
        let joined = self.start_as(index, None, true).await;
        self.joining.lock().remove(&index);
        joined
    }

    /// Starts a server whose process has ended on its node, to servers that go on, and waits until it serves clients.
    ///
    /// # Errors
    /// What [`aze_server::start`] says.
    pub async fn bring_back(self: &Arc<Self>, index: u16) -> Result<(), Failure> {
        let (lives, ended) = (self.lives.lock().clone(), self.ended.lock().clone());
        let other = |slot: u16| aze_server::OtherServer {
            slot: ServerIndex(slot),
            host: server_node(slot),
            addresses: vec![addr(slot)],
            pid: pid(slot, ended[usize::from(slot)].unwrap_or(lives[usize::from(slot)])),
            has_ended: ended[usize::from(slot)].is_some(),
        };
        let map = self.newest_map();
        let is_there = |slot: u16| match &map {
            Some(map) => map.server(ServerIndex(slot)).is_some_and(|info| !info.left),
            None => slot < self.layout.servers,
        };
        let others = (0..self.places()).filter(|slot| *slot != index && is_there(*slot)).map(other).collect();
        self.start_as(index, Some(aze_server::Comeback { others }), false).await
    }

    async fn start_as(
        self: &Arc<Self>,
        index: u16,
        comeback: Option<aze_server::Comeback>,
        joins_later: bool,
    ) -> Result<(), Failure> {
        let life = {
            let mut lives = self.lives.lock();
            lives[usize::from(index)] += 1;
            lives[usize::from(index)]
        };
        let io = self.sim.node(&server_node(index));
        let mut config = aze_server::Config { comeback, joins_later, ..self.config(index, life) };
        if let Some(map) = self.newest_map().filter(|map| joins_later && map.has_left(config.first)) {
            config.keeper = vec![addr(map.keeper.0)];
        }
        let (done, started) = futures_channel::oneshot::channel();
        io.clone().spawn(async move {
            let result = aze_server::start(io, config, Arc::new(|_| {})).await;
            // An error means that the run is over.
            let _ = done.send(result);
        });
        let server =
            started.await.map_err(|_| Failure::new(aze_proto::Code::Stopping, "killed while it started"))??;
        let current = self.lives.lock()[usize::from(index)] == life;
        if current {
            self.servers.lock()[usize::from(index)] = Some(server);
            self.ended.lock()[usize::from(index)] = None;
        }
        Ok(())
    }

    /// Starts all servers and waits until the volume is complete.
    ///
    /// # Errors
    /// What [`aze_server::start`] says.
    pub async fn start(self: &Arc<Self>) -> Result<(), Failure> {
        // The first server may have been another one before, and has to hear that, and the next one which others there are.
        for _ in 0..STARTS_REFUSED_MAX {
            let Err(failure) = self.start_those_there_are().await else { return Ok(()) };
            if !failure.detail.contains("start the volume once more") {
                return Err(failure);
            }
            // By the first server it consisted of other servers; now that knows.
            (0..self.places()).for_each(|index| self.kill_server(index, false));
        }
        self.start_those_there_are().await
    }

    /// Starts all servers but some, and waits until the volume is there.
    ///
    /// # Errors
    /// What [`aze_server::start`] says.
    pub async fn start_without(self: &Arc<Self>, without: &[u16]) -> Result<(), Failure> {
        *self.without.lock() = without.to_vec();
        let started = self.start().await;
        self.without.lock().clear();
        started
    }

    async fn start_those_there_are(self: &Arc<Self>) -> Result<(), Failure> {
        let mut members = self.members().await?;
        {
            let without = self.without.lock();
            members.retain(|server| !without.contains(server));
        }
        let first = members.first().ok_or_else(|| Failure::new(aze_proto::Code::Invalid, "no server is left"))?;
        self.first.store(*first, Ordering::Relaxed);
        try_join_all(members.iter().map(|index| self.start_server(*index))).await.map(drop)
    }

    /// The volume's servers, as the disk of the first one says.
    ///
    /// # Errors
    /// What the disk says; none says of its server that it is the first one.
    pub async fn members(&self) -> Result<Vec<u16>, Failure> {
        let as_made = (0..self.layout.servers).collect();
        if self.layout.durability.is_none() {
            return Ok(as_made);
        }
        let (mut first, mut others) = (None::<aze_server::Parts>, Vec::new());
        for index in 0..self.places() {
            let Some(parts) = self.parts_at(index).await? else { continue };
            if !parts.is_of_first() {
                others.push(format!("{index}: {:?}", parts.members));
            } else if first.as_ref().is_none_or(|first| first.order < parts.order) {
                // One that has left, and has not heard of it, may say so, too.
                first = Some(parts);
            }
        }
        match first {
            Some(parts) => Ok(parts.members.into_iter().map(|server| server.0).collect()),
            None if others.is_empty() => Ok(as_made),
            None => {
                let detail = format!("by no disk its server is the first one: {others:?}");
                Err(Failure::new(aze_proto::Code::Lost, detail))
            }
        }
    }

    /// The volume's servers, as far as the disk of this server names them.
    async fn parts_at(&self, index: u16) -> Result<Option<aze_server::Parts>, Failure> {
        let io = self.sim.node(&server_node(index));
        let dirs: Vec<String> = storage_dirs(self.layout.storage_dirs, 0).into_iter().map(|dir| dir.path).collect();
        let (done, read) = futures_channel::oneshot::channel();
        io.clone().spawn(async move {
            // An error means that the run is over.
            let _ = done.send(aze_server::parts_of(&io, &dirs).await);
        });
        read.await.map_err(|_| Failure::new(aze_proto::Code::Stopping, "killed while it started"))?
    }

    /// Ends a server as a crash does; `silent` as a power cut does.
    pub fn kill_server(&self, index: u16, silent: bool) {
        let node = server_node(index);
        let life = self.lives.lock()[usize::from(index)];
        self.ended.lock()[usize::from(index)].get_or_insert(life);
        if silent {
            self.power_cuts.lock()[usize::from(index)] += 1;
            self.sim.kill_silently(&node)
        } else {
            self.sim.kill(&node)
        }
        self.servers.lock()[usize::from(index)] = None;
    }

    /// Ends all servers and clients at once, as a power cut of the machine room does, or as
    /// `kill -9` of everything.
    pub fn kill_all(&self, clients: usize, power_cut: bool) {
        (0..self.places()).for_each(|index| self.kill_server(index, power_cut));
        (0..clients).for_each(|index| self.kill_client(index));
    }

    /// Ends a client as a crash does.
    pub fn kill_client(&self, index: usize) {
        self.sim.kill(&client_node(index));
    }

    /// How many servers there have been, by their numbers.
    pub fn places(&self) -> u16 {
        self.lives.lock().len() as u16
    }

    /// A server that runs.
    pub fn server(&self, index: u16) -> Option<Arc<Server>> {
        self.servers.lock().get(usize::from(index)).cloned().flatten()
    }

    /// All servers that run.
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.servers.lock().iter().flatten().cloned().collect()
    }

    /// The newest map that any of them has.
    pub fn newest_map(&self) -> Option<Arc<ShardMap>> {
        self.servers().into_iter().map(|server| server.map()).max_by_key(|map| map.epoch)
    }

    /// Runs something as a task of a server's node, with which it ends.
    pub async fn at_server<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        index: ServerIndex,
        work: impl FnOnce(Arc<Server>) -> F,
    ) -> Option<T> {
        let (done, result) = futures_channel::oneshot::channel();
        let work = work(self.server(index.0)?);
        self.sim.node(&server_node(index.0)).spawn(async move {
            // An error means that the run is over.
            let _ = done.send(work.await);
        });
        result.await.ok()
    }

    /// The world of a client's node.
    pub fn client_io(&self, index: usize) -> Io {
        self.sim.node(&client_node(index))
    }

    /// Connects a client on its own node.
    ///
    /// # Errors
    /// What [`Client::connect`] says.
    pub async fn connect(&self, index: usize) -> Result<Arc<Client>, Failure> {
        self.connect_saying(index, client_node(index)).await
    }

    /// The same of a client that says it runs on the node of a server.
    ///
    /// # Errors
    /// What [`Client::connect`] says.
    pub async fn connect_near(&self, index: usize, server: u16) -> Result<Arc<Client>, Failure> {
        self.connect_saying(index, server_node(server)).await
    }

    fn client_config(&self, host: String, seeds: Vec<(String, Vec<Addr>)>) -> aze_client::Config {
        aze_client::Config {
            volume: VOLUME.into(),
            secret: SECRET,
            seeds,
            host,
            job: "sim".into(),
            deadline: self.layout.deadline,
            start_time_max: Duration::from_secs(START_SECONDS_MAX),
            transport: aze_io::Transport::Tcp,
            durability: self.layout.durability.unwrap_or(Durability::None),
            lasts: self.layout.durability.is_some(),
        }
    }

    async fn connect_saying(&self, index: usize, host: String) -> Result<Arc<Client>, Failure> {
        let mut seeds: Vec<u16> = (0..self.layout.servers).collect();
        if let Some(map) = self.newest_map().filter(|map| seeds.iter().all(|server| map.has_left(ServerIndex(*server))))
        {
            seeds = map.members().map(|server| server.0).collect();
        }
        let seeds = seeds.into_iter().map(|server| (server_node(server), vec![addr(server)])).collect();
        let config = self.client_config(host, seeds);
        let io = self.client_io(index);
        let (done, connected) = futures_channel::oneshot::channel();
        io.clone().spawn(async move {
            // An error means that the run is over.
            let _ = done.send(Client::connect(io, config).await);
        });
        connected.await.map_err(|_| Failure::new(aze_proto::Code::Stopping, "killed while it connected"))?
    }

    /// Runs `work` as a task of a client's node: it ends with the node. The receiver gives its result.
    pub fn on_client<T: Send + 'static>(
        &self,
        index: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> futures_channel::oneshot::Receiver<T> {
        let (done, result) = futures_channel::oneshot::channel();
        self.client_io(index).spawn(async move {
            // An error means that the run is over.
            let _ = done.send(work.await);
        });
        result
    }

    /// Runs `work` as a task that no fault kills.
    pub fn on_driver<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> futures_channel::oneshot::Receiver<T> {
        let (done, result) = futures_channel::oneshot::channel();
        self.sim.node(aze_io::sim::DRIVER).spawn(async move {
            // An error means that the run is over.
            let _ = done.send(work.await);
        });
        result
    }

    /// Kills everything and breaks the cycles between world and tasks.
    pub fn end(&self) {
        self.servers.lock().clear();
        self.sim.shutdown();
    }
}
