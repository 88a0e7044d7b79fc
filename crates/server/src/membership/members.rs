//! Becoming a member: start, join, keep the map, stop.

use crate::chunks::state::backed::{BackedFiles, Flights};
use crate::chunks::state::evictions::Evictions;
use crate::clock::HybridClock;
use crate::coherence::state::claims::Claimants;
use crate::coherence::state::leases::Leases;
use crate::coherence::state::published::PublishedIndex;
use crate::coherence::state::through::Opened;
use crate::counters::Counters;
use crate::membership::peers::without_map;
use crate::membership::state::activity::Activity;
use crate::membership::state::group::Grouped;
use crate::membership::state::keeper::{Joined, Keeper};
use crate::membership::state::moving::Moving;
use crate::membership::state::progress::{Stage, Tell};
use crate::membership::state::sessions::Sessions;
use crate::names::state::directories::Directories;
use crate::names::state::directories::RootTold;
use crate::names::state::namespace::Namespace;
use crate::names::state::transactions::Transactions;
use crate::names::state::unresolved::Unresolved;
use crate::persistence::opening::Opening;
use crate::persistence::state::image::{Image, Leftovers};
use crate::persistence::state::persistence::Persistence;
use crate::persistence::state::promises::placement;
use crate::sabotage::Sabotage;
use crate::shards::ShardSet;
use crate::shards::logged::Log;
use crate::state::{Config, Server};
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_io::logical::LogicalClock;
use aze_io::published::Writer;
use aze_io::slab::Slab;
use aze_io::sync::{Mutex, RwLock};
use aze_io::{Addr, Io, Listener};
use aze_meta::{Op, Stamp};
use aze_proto::limits::{RETRY_SECONDS_MAX, START_SECONDS_MAX, WIRE_VERSIONS};
use aze_proto::place::{KeeperGroup, ServerInfo};
use aze_proto::slots::{Placement, SlotTable, slots_of};
use aze_proto::{
    Backing, Code, Failure, Identity, Incarnation, Ino, MapEpoch, NamespaceEpoch, Reply, Request, ServerIndex,
    SessionId, ShardId, ShardMap, Time,
};
use aze_rpc::{Caller, CallerConfig, ServeConfig, Service, Target};
use aze_store::Store;
use futures_channel::oneshot;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a server waits for the others when the volume starts. Its starter usually gives up before.
const JOIN_TIME_MAX: Duration = Duration::from_secs(START_SECONDS_MAX);

/// Pause before this server asks the first one again, which is still reading its storage.
pub(super) const JOIN_PAUSE: Duration = Duration::from_millis(50);

/// How often records of requests that no client repeats any more are dropped. Only a server that has
/// had requests since is woken for it.
const EXPIRE_PERIOD: Duration = Duration::from_secs(RETRY_SECONDS_MAX);

/// Permission bits of the root directory of a new volume.
const ROOT_MODE: u32 = 0o755;

/// Starts a server and resolves once the volume is complete and this server has its shards.
///
/// # Errors
/// Addresses that cannot be listened on, memory that cannot be had, a keeper that does not answer.
pub async fn start(io: Io, config: Config, tell: Tell) -> Result<Arc<Server>, Failure> {
    start_when(io, config, tell, std::future::ready(())).await
}

/// The same, of a server that listens and then waits for `may_join` before it joins the volume.
///
/// # Errors
/// Those of [`start`].
pub async fn start_when(
    io: Io,
    config: Config,
    tell: Tell,
    may_join: impl Future<Output = ()>,
) -> Result<Arc<Server>, Failure> {
    SlotTable::check(config.shards, config.servers).map_err(|why| Failure::new(Code::Invalid, why))?;
    if config.storage.is_some() && config.placement != Placement::Modular {
        let why = "a volume in directories is placed modular, and not on a ring";
        return Err(Failure::new(Code::Unsupported, why));
    }
    // A journal's data once fitted, in another order.
    let set_aside = if config.storage.is_some() { Slab::with_excess } else { Slab::new };
    let slab = set_aside(config.capacity_bytes).map_err(|why| {
        Failure::new(Code::NoSpace, format!("setting aside {} bytes of memory: {why}", config.capacity_bytes))
    })?;
    if config.fault_ahead_bytes > 0 {
        slab.fault_ahead(config.fault_ahead_bytes)
            .map_err(|why| Failure::new(Code::NoSpace, format!("faulting in memory ahead of its use: {why}")))?;
    }
    io.share_slab(&slab);
    let store = Store::new(slab.clone());
    let order = Arc::new(LogicalClock::default());
    let (mut opening, mut listeners) = (None, Vec::new());
    let persistence = match &config.storage {
        None => None,
        Some(storage) => {
            let door = Opening::new(config.slot);
            listeners = listen(&io, &config, None, door.clone())?;
            tell(Stage::Listening(&addresses(&listeners)));
            opening = Some(door);
            let mut image = Image::empty(config.slot, config.servers, config.shards, &store)
                .map_err(|why| Failure::new(Code::Invalid, why))?
                .with(config.switches)
                .alone(config.comeback.is_some())
                .telling(tell.clone());
            let expected = Server::manifest(&config, io.random_u64());
            let persistence = Persistence::open(&io, storage, expected, &mut image, &store, &order).await?;
            slab.end_excess();
            *persistence.kept.lock() = Some(image);
            Some(persistence)
        }
    };
    let server = Arc::new_cyclic(|me| new_server(io.clone(), config, store, persistence, order, me.clone()));
    match opening {
        Some(door) => {
            *server.listeners.lock() = listeners;
            door.open(&server);
        }
        None => {
            *server.listeners.lock() = listen(&io, &server.config, server.published.writer(), server.clone())?;
            tell(Stage::Listening(&server.addresses()));
        }
    }
    server.tell_of_ends();
    server.tell_of_parts();
    may_join.await;
    let map = match &server.config.comeback {
        Some(comeback) => server.come_back(comeback).await?,
        None if server.config.joins_later => server.enter_volume().await?,
        None => server.join_volume().await?,
    };
    server.take_kept(&map)?;
    // Earlier answers of a server in memory concern lost inodes, which no request can change.
    if server.persistence.as_ref().is_some_and(|persistence| !persistence.is_new)
        && !server.config.switches.is(Sabotage::SkipComebackWait)
    {
        server.leases.inherit(server.io.mono_ns());
    }
    server.install_map(map);
    if let Some(newer) = server.group.heard() {
        // A keeper may have been answered by it just before.
        server.install_map(newer);
    }
    if server.persistence.is_some() {
        if server.config.comeback.is_some() {
            server.take_part_durably().await?;
            server.settle().await?;
        } else if server.config.joins_later {
            server.found_part().await?;
        } else {
            server.found_volume().await?;
            server.resolve().await?;
            server.open_together().await?;
        }
    }
    server.begin_telling_root_rights();
    // A keeper that dies as soon as the volume is there is seen to have ended.
    server.watch_neighbours().await;
    server.forget_sessions_that_stay_away();
    server.clone().expire_now_and_then();
    Ok(server)
}

fn new_server(
    io: Io,
    config: Config,
    store: Arc<Store>,
    persistence: Option<Persistence>,
    order: Arc<LogicalClock>,
    me: Weak<Server>,
) -> Server {
    let caller = caller_config(&io, &config, &order);
    let published_bytes = if config.storage.is_some() { 0 } else { config.published_bytes };
    let published = PublishedIndex::new(&io, published_bytes, &config.switches);
    let claims = (published_bytes > 0).then(|| Claimants::new(io.clone(), published.clone(), &config.switches));
    let (stop, stopped) = oneshot::channel();
    // Clients have to forget paths that they cached before the volume was started again.
    let (namespace, epoch) = (Namespace::new(published.clone()), NamespaceEpoch(u64::from(config.starts) << 32));
    namespace.adopt(epoch);
    let mut places = places_of(&config, persistence.as_ref());
    for server in &config.without {
        let known = persistence.as_ref().and_then(|persistence| persistence.promises.agreed()?.map.server(*server));
        let (host, bytes) = known.map_or_else(Default::default, |info| (info.host.clone(), info.capacity_bytes));
        // The first server says which of them there are, before it takes this into use.
        places.put(*server, &ServerInfo::of_left_out(host, bytes, SessionId(io.random_u64())));
    }
    let slots = persistence.as_ref().map_or_else(|| slots_of(config.servers), |persistence| persistence.slots);
    Server {
        me,
        clock: HybridClock::new(),
        order,
        map: RwLock::new(Arc::new(empty_map(&config))),
        shards: Arc::new(ShardSet::new()),
        store,
        backed: BackedFiles::default(),
        evictions: Evictions::default(),
        imports: Flights::default(),
        persistence,
        directories: Directories::new(published.clone()),
        namespace,
        published,
        sessions: Sessions::new(),
        leases: Leases::new(caller.session, claims),
        opened: Opened::default(),
        transactions: Transactions::new(),
        unresolved: Unresolved::default(),
        keeper: Keeper::new(places, epoch),
        group: Arc::new(Grouped::new()),
        moving: Moving::new(slots),
        seen_to_end: Mutex::default(),
        peers: Caller::new(io.clone(), caller),
        untold: Mutex::default(),
        root_told: RootTold::default(),
        owed: Arc::default(),
        counters: Counters::new(),
        activity: Arc::new(Activity::new()),
        started_ns: io.mono_ns(),
        retired: Mutex::default(),
        map_epoch_heard: AtomicU32::new(0),
        listeners: Mutex::new(Vec::new()),
        stop: Mutex::new(Some(stop)),
        stopped: Mutex::new(Some(stopped)),
        io,
        config,
    }
}

/// The places of the servers that start together: of a volume in directories that has grown or shrunk, of those that have slots.
fn places_of(config: &Config, persistence: Option<&Persistence>) -> Joined {
    let known = |persistence: &Persistence| {
        placement(persistence.promises.agreed(), persistence.placement.as_ref(), config.servers)
    };
    let Some(placement) = persistence.and_then(known) else {
        return Joined::empty(usize::from(config.servers));
    };
    let members = placement.members();
    let place = |server| (!members.contains(&ServerIndex(server))).then(ServerInfo::of_none);
    Joined::of((0..placement.servers).map(place).collect())
}

/// What this server is to those that it asks.
pub(super) fn caller_config(io: &Io, config: &Config, order: &Arc<LogicalClock>) -> CallerConfig {
    CallerConfig {
        secret: config.secret.clone(),
        volume: config.volume.clone(),
        versions: WIRE_VERSIONS,
        session: SessionId(io.random_u64()),
        server: true,
        job: format!("server {}", config.slot),
        host: config.host.clone(),
        transport: config.transport,
        // One that comes back alone is waited for as long as for any answer.
        start_time_max: config.deadline,
        order: order.clone(),
    }
}

/// The map before there is one: epoch 0, without servers.
fn empty_map(config: &Config) -> ShardMap {
    ShardMap {
        epoch: MapEpoch(0),
        keeper: config.first,
        group: KeeperGroup::default(),
        chunk_bits: config.chunk_bits,
        owner_uid: config.owner_uid,
        owner_gid: config.owner_gid,
        volume: config.volume.clone(),
        servers: Vec::new(),
        slots: SlotTable::modular(config.shards, 1).expect("the number of shards was checked at the start"),
    }
}

/// Listens where the server is to listen, for `service`.
fn listen(
    io: &Io,
    config: &Config,
    published: Option<Arc<Writer>>,
    service: Arc<dyn Service>,
) -> Result<Vec<Box<dyn Listener>>, Failure> {
    let serving = ServeConfig {
        secret: config.secret.clone(),
        volume: config.volume.clone(),
        versions: WIRE_VERSIONS,
        uid: config.owner_uid,
        published,
    };
    let listen_at = |addr: &Addr| {
        aze_rpc::serve(io, addr, &serving, service.clone())
            .map_err(|why| Failure::new(Code::Unreachable, format!("listening on {addr}: {why}")))
    };
    config.listen.iter().map(listen_at).collect()
}

fn addresses(listeners: &[Box<dyn Listener>]) -> Vec<Addr> {
    listeners.iter().map(|listener| listener.addr().clone()).collect()
}

impl Server {
    pub(super) fn info(&self) -> ServerInfo {
        ServerInfo {
            addresses: self.addresses().iter().map(ToString::to_string).collect(),
            host: self.config.host.clone(),
            incarnation: Incarnation(0),
            since: MapEpoch(0),
            pid: self.config.pid,
            capacity_bytes: self.store.capacity_bytes(),
            ended: false,
            left: false,
            joining: false,
            life: 0,
            began: MapEpoch(0),
            session: self.session(),
        }
    }

    /// The keeper at the addresses that this server was started with, for one that has no map.
    pub(super) fn keeper_as_ordered(&self) -> Target {
        let (host, addresses) = (self.config.host.clone(), self.config.keeper.clone());
        Target { index: self.config.first, host, addresses, life: (MapEpoch(0), Incarnation(0)) }
    }

    /// Whether this server makes the first map when all servers start.
    pub(crate) fn is_first(&self) -> bool {
        self.slot() == self.config.first
    }

    /// Whether this server is the first one by its own directory, too.
    ///
    /// # Errors
    /// Which one is, and that the volume has to be started by that.
    fn check_first(&self) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        if persistence.is_new {
            return match self.slot() {
                ServerIndex(0) if !self.config.without.is_empty() => Err(self.has_no_part(persistence)),
                ServerIndex(0) => Ok(()),
                _ => Err(self.has_no_part(persistence)),
            };
        }
        let parts = self.parts_by(persistence.promises.agreed());
        if let Some(unknown) = self.config.without.iter().find(|server| !parts.contains(server)) {
            let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
            let detail = format!(
                "there is no server {unknown} to be left out: the volume consists of servers {}",
                parts.join(", ")
            );
            return Err(Failure::new(Code::Invalid, detail));
        }
        let is_there = |server: &&ServerIndex| !self.config.without.contains(server);
        let first = parts.iter().find(is_there).copied().unwrap_or_default();
        if first == self.slot() {
            return Ok(());
        }
        let detail = format!(
            "storage {}: by what is there, server {first} counts the starts of the volume, and not {}: start it on the nodes of \
             its servers, in the order of their numbers",
            persistence.storage.place(),
            self.who()
        );
        Err(Failure::new(Code::Invalid, detail))
    }

    /// The directories of a server that counts the starts of a volume that is there are empty.
    fn has_no_part(&self, persistence: &Persistence) -> Failure {
        let detail = format!(
            "storage {}: it is empty, and {} counts the starts of a volume that was used: give the directory that it had",
            persistence.storage.place(),
            self.who()
        );
        Failure::new(Code::Lost, detail)
    }

    /// Closes the connection by which this server has got its first map. It was opened to whichever life of the keeper listened there;
    /// of a later one it is known whose end it tells.
    pub(super) fn part_from_starter(&self, keeper: &Target) {
        self.peers.leave(keeper.index, MapEpoch(0));
    }

    /// Announces this server to the keeper and waits for the map that it is in.
    async fn join_volume(self: &Arc<Self>) -> Result<Arc<ShardMap>, Failure> {
        let join = Request::Join { slot: self.slot(), info: self.info() };
        if self.is_first() {
            self.check_first()?;
            return match self.run_local(&join, Work::local(self, ShardId(0))).await? {
                Reply::Map { map } => Ok(map),
                _ => Err(Failure::from(Code::Internal)),
            };
        }
        let (to, identity) = (self.keeper_as_ordered(), Identity::default());
        let ask = without_map(&to, &identity, &join, JOIN_TIME_MAX);
        let give_up_ns = self.io.mono_ns() + JOIN_TIME_MAX.as_nanos() as u64;
        let answer = loop {
            match self.peers.ask(ask.clone()).await {
                Err(failure) if failure.code == Code::Busy && self.io.mono_ns() < give_up_ns => {
                    self.io.sleep(JOIN_PAUSE).await;
                }
                other => break other.map_err(|failure| failure.during("joining the volume"))?,
            }
        };
        self.part_from_starter(&to);
        self.namespace.adopt(answer.header.namespace_epoch);
        match answer.reply {
            Reply::Map { map } => Ok(map),
            _ => Err(Failure::new(Code::Malformed, "Join was answered with something else")),
        }
    }

    /// Puts the server's earlier state in its places, without the slots that the first map gives to others. The caller does this before it
    /// takes that map into use; a second call changes nothing.
    ///
    /// # Errors
    /// Why the directory is not the one that the volume had.
    pub(super) fn take_kept(&self, map: &ShardMap) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let mut kept = persistence.kept.lock();
        let Some(mut image) = kept.take() else { return Ok(()) };
        if !self.config.switches.is(Sabotage::ServeOld) {
            image
                .keep(&map.slots, self.slot(), persistence.is_new)
                .map_err(|why| Failure::new(Code::Lost, format!("storage {}: {why}", persistence.storage.place())))?;
        }
        let leftovers = Leftovers::of(&mut image);
        let is_without_some = map.servers.iter().any(ServerInfo::is_left_out);
        if self.config.comeback.is_some() || is_without_some {
            self.remember_doubts(&mut image, &leftovers);
        }
        *persistence.leftovers.lock() = leftovers;
        self.clock.begin_after(image.time);
        match self.config.comeback.is_some() && !is_without_some {
            true => self.transactions.remember_committed(&image.finished),
            false => self.transactions.remember_committed_for_long(&image.finished),
        }
        self.shards.take(map.shards(), image.into_cells(), &self.log());
        Ok(())
    }

    /// How many slots the volume has.
    pub(super) fn slots(&self) -> u32 {
        self.persistence.as_ref().map_or_else(|| slots_of(self.config.servers), |persistence| persistence.slots)
    }

    /// Where changes of shards are written down.
    pub(crate) fn log(&self) -> Log {
        let journal = self.persistence.as_ref().map(|persistence| persistence.journal.clone());
        Log { journal, slots: self.slots() }
    }

    /// Takes a newer map into use; an older one is ignored.
    pub(crate) fn install_map(self: &Arc<Self>, map: Arc<ShardMap>) {
        let mut current = self.map.write();
        if map.epoch <= current.epoch || current.epoch == MapEpoch(0) && self.is_of_earlier_life(&map) {
            return;
        }
        let map = self.io.only_once(map);
        let switches = self.config.switches;
        self.shards.make(&map, self.slot(), &self.store, &self.published, &self.leases, switches);
        self.published.set_map_epoch(map.epoch);
        let (mut retired, mut returned) = (Vec::new(), Vec::new());
        for (index, (before, now)) in map.indexes().zip(current.servers.iter().zip(&map.servers)) {
            if before.session != now.session || now.ended && !before.ended {
                self.transactions.process_ended(before.session, self.io.mono_ns());
            }
            if now.ended
                && self.persistence.is_none()
                && let Some(target) = Target::of(&map, index)
            {
                // In memory it comes back with nothing.
                self.peers.ended(&target, "its process has ended", false);
            }
            if before.session != now.session {
                self.peers.disconnect(index);
                if now.life > 0 && index != self.slot() {
                    // Before anybody sees the map: who has it is taken to refuse them.
                    self.refuse_life(before.session);
                    retired.push(before.session);
                    returned.push(index);
                }
            }
        }
        let left: Vec<ServerIndex> =
            map.indexes().filter(|server| map.has_left(*server) && !current.has_left(*server)).collect();
        let kept_by = |map: &ShardMap| (map.keeper, map.server(map.keeper).map(|info| info.session));
        let (kept_before, kept_now) = (kept_by(&current), kept_by(&map));
        let is_first = current.servers.is_empty();
        let is_joined = !current.servers.is_empty() && current.servers.len() < map.servers.len();
        let begins_to_keep = kept_now.0 == self.slot() && kept_before.0 != self.slot() && !is_first;
        if begins_to_keep {
            // Before anybody sees the map: no token is given by it that others may have.
            self.keeper.begins(self.io.mono_ns());
        }
        if kept_before.0 == self.slot() && kept_now.0 != self.slot() {
            self.keeper.ends();
        }
        *current = map.clone();
        drop(current);
        self.take_part();
        if kept_before != kept_now {
            self.group.keeper_has_changed();
        }
        if begins_to_keep {
            self.begin_keeping();
        }
        if is_joined {
            drop(self.watch_neighbours());
        }
        if switches.is(Sabotage::HearEndFirst)
            && let Some(moving) =
                self.moving.decided(|slot| map.slots.get(slot).is_some_and(|slot| slot.primary == self.slot()))
        {
            self.move_ended(moving, map.clone());
        }
        self.settle_by_map();
        self.leave_by(&map, &left);
        map.indexes().for_each(|server| self.suspect_sessions(server));
        self.make_root(&map);
        self.tell_root_rights();
        retired.into_iter().for_each(|session| self.retire(session));
        returned.into_iter().for_each(|server| self.has_come_back(server));
    }

    /// Whether a map has an earlier life of this server in this one's place. Others send it to a server that has no map yet: by it,
    /// names and data that went with that life would be here, and would only be missing.
    fn is_of_earlier_life(&self, map: &ShardMap) -> bool {
        map.server(self.slot()).is_some_and(|info| info.session != self.session())
            && !self.config.switches.is(Sabotage::TakeMapOfEarlierLife)
    }

    /// Whether this server has never restarted empty.
    pub(crate) fn is_first_life(&self) -> bool {
        self.map().server(self.slot()).is_some_and(|info| info.incarnation == Incarnation(0))
    }

    /// The root directory is made once, by the first life of the server of shard 0.
    fn make_root(&self, map: &ShardMap) {
        let Some(cell) = self.shards.home(Ino::ROOT) else { return };
        let mut names = cell.names.lock();
        if self.is_first_life() && names.shard.inode(Ino::ROOT).is_none() {
            let time = self.clock.next(&self.io, Time(0));
            let made = names.shard.make_root(map.owner_uid, map.owner_gid, ROOT_MODE, map.epoch, map.chunk_bits, time);
            made.expect("a new volume has no root yet");
            if let Some(over) = &self.config.backing {
                let backing = Backing { identity: over.root, ..Backing::default() };
                let lies = names.shard.apply(&Op::LieOver { ino: Ino::ROOT, backing }, &Stamp::at(time));
                lies.reply.expect("the root was just made");
            }
        }
    }

    /// Answered when no change that an earlier life of a server has asked for is under way here.
    pub(crate) fn map_pushed(self: &Arc<Self>, map: &Arc<ShardMap>) -> Attempt<Output> {
        let takes_first_map = self.config.joins_later || self.persistence.is_some();
        if takes_first_map && self.map_epoch_now() == MapEpoch(0) {
            // It serves no request before the keeper's answer has told it which sessions are fenced, and keeps the slots of its directory that
            // the map of that answer gives to it.
            return Err(Failure::new(Code::Busy, format!("{} is joining the volume", self.who())).into());
        }
        self.install_map(map.clone());
        if self.retired.lock().is_empty() {
            return Ok(Reply::Done.into());
        }
        let server = self.clone();
        then(async move {
            server.until_retired().await;
            Ok(Reply::Done)
        })
    }

    /// Fetches a map that is as new as every answer of other servers.
    pub(crate) async fn keep_up_with_map(self: &Arc<Self>) -> Result<(), Failure> {
        let heard = MapEpoch(self.map_epoch_heard.load(Ordering::Relaxed));
        if heard > self.map_epoch_now() { self.refresh_map().await } else { Ok(()) }
    }

    /// The same, however long the keeper is silent, while this server runs.
    pub(crate) async fn until_map_is_new(self: &Arc<Self>) {
        while self.keep_up_with_map().await.is_err() && !self.is_stopping() {
            self.io.sleep(JOIN_PAUSE).await;
        }
    }

    /// Fetches the map from the keeper; from another server if that does not answer.
    pub(crate) async fn refresh_map(self: &Arc<Self>) -> Result<(), Failure> {
        let map = self.map();
        if map.keeper == self.slot() {
            return Ok(());
        }
        let Err(failure) = self.refresh_map_from(map.keeper).await else { return Ok(()) };
        for member in map.group.members.iter().map(|member| member.server) {
            if member != map.keeper && member != self.slot() && self.refresh_map_from(member).await.is_ok() {
                return Ok(());
            }
        }
        Err(failure)
    }

    /// Fetches the map from a server that has refused the one known here, or that may have a newer one.
    pub(crate) async fn refresh_map_from(self: &Arc<Self>, server: ServerIndex) -> Result<(), Failure> {
        if self.map().has_left(server) {
            // The map that says so is newer than the one that was refused.
            return Ok(());
        }
        match self.ask_once(server, ShardId(0), &Request::GetMap, self.config.deadline).await {
            Ok(Reply::Map { map }) => {
                self.install_map(map);
                Ok(())
            }
            // It has left meanwhile.
            Err(Failure { refusal: Some(aze_proto::Refusal::MapStale { .. }), .. }) => Ok(()),
            Err(failure) => Err(failure),
            _ => Err(Failure::new(Code::Malformed, "GetMap was answered with something else")),
        }
    }

    pub(crate) fn shutdown(&self, work: &mut Work) -> Attempt<Output> {
        self.published.close();
        if let Some(responder) = work.responder.take() {
            responder.send(self.reply_context(), Ok(Reply::Done), &[]);
        }
        self.stop();
        Ok(Output::Sent)
    }

    /// Drops, from time to time, records of answers that no client asks for again.
    fn expire_now_and_then(self: Arc<Self>) {
        let server = Arc::downgrade(&self);
        let io = self.io.clone();
        self.io.spawn(async move {
            loop {
                io.sleep(EXPIRE_PERIOD).await;
                let Some(server) = server.upgrade().filter(|server| !server.is_stopping()) else { return };
                let time = server.clock.next(&server.io, Time(0));
                for cell in server.shards.iter() {
                    cell.data.lock().expire_outcomes();
                    cell.names.lock().shard.expire_outcomes(time);
                }
                server.moving.expire_given();
                if server.map().slots.served_by(server.slot()).next().is_none() {
                    // It may have left, and the keeper's word got lost.
                    drop(server.refresh_map().await);
                }
            }
        });
    }
}
