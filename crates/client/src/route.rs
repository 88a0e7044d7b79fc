//! The way of a request: shard and server by arithmetic, and refusals handled here,
//! in one place, until the deadline.
//!
//! A refused request had no effect, so it is sent again under a new number.

use crate::client::{Core, unexpected};
#[cfg(debug_assertions)]
use crate::planted::Planted;
use aze_io::Io;
use aze_io::defects::vital;
use aze_io::sync::Mutex;
use aze_proto::rules::Generations;
use aze_proto::{
    Code, Failure, Generation, Identity, Incarnation, Ino, MapEpoch, Name, NameHash, NamespaceEpoch, Refusal, Reply,
    Request, ServerIndex, ShardId, ShardMap,
};
use aze_rpc::{Answer, Ask, Located, Target};
use futures_util::StreamExt;
use futures_util::future::select_ok;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause before a server is asked again that refuses this client's map and has no newer one: it
/// will have one as soon as the keeper's word has reached it.
const MAP_PAUSE: Duration = Duration::from_millis(50);

/// Servers that are asked at most whether another one has left or ended.
const ASKED_MAX: usize = 3;

/// Pauses before others are asked of a server that cannot be connected to: the first of them may be asked before anybody has seen the
/// end. Later, whenever connecting has failed again.
const GONE_PAUSES: [Duration; 2] = [Duration::ZERO, Duration::from_millis(200)];

/// The map, and the targets derived from it.
pub(crate) struct Routes {
    pub(crate) map: Arc<ShardMap>,
    servers: Vec<Server>,
}

pub(crate) struct Server {
    pub(crate) target: Target,
    /// It was sent something, and so knows the session.
    talked: AtomicBool,
}

/// A life of a server: its number, the map epoch at which the life began, its incarnation.
type Life = (ServerIndex, MapEpoch, Incarnation);

/// Lives of servers whose ends the system of this machine has told.
#[derive(Default)]
pub(crate) struct SeenToEnd {
    /// Whether there is one: each request asks, and on nearly all volumes there is none.
    is_some: AtomicBool,
    lives: Mutex<BTreeSet<Life>>,
}

impl SeenToEnd {
    fn note(&self, life: Life) {
        self.lives.lock().insert(life);
        self.is_some.store(true, Ordering::Release);
    }

    fn has(&self, life: Life) -> bool {
        self.is_some.load(Ordering::Acquire) && self.lives.lock().contains(&life)
    }
}

impl Routes {
    pub(crate) fn new(io: &Io, map: Arc<ShardMap>) -> Routes {
        let targets = map.indexes().filter_map(|index| Target::of(&map, index));
        let servers = targets.map(|target| Server { target, talked: AtomicBool::new(false) }).collect();
        Routes { map: io.only_once(map), servers }
    }

    /// All servers that have not left.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.servers.iter().map(|server| &server.target).filter(|target| !self.map.has_left(target.index))
    }

    /// The servers that know the session, and have not left.
    pub(crate) fn talked_to(&self) -> Vec<ServerIndex> {
        let talked = self.servers.iter().filter(|server| server.talked.load(Ordering::Relaxed));
        talked.map(|server| server.target.index).filter(|index| !self.map.has_left(*index)).collect()
    }

    pub(crate) fn locate(&self, place: Place<'_>) -> Result<(ShardId, &Server), Failure> {
        let shard = match place {
            Place::Entry(parent, name) => NameHash::of(parent, name).shard(self.map.shards()),
            Place::Home(ino) => ino.home(self.map.shards()),
            Place::Shard(shard) => shard,
            Place::Server(_) => ShardId(0),
        };
        let index = match place {
            Place::Server(index) => Some(index),
            _ => self.map.server_of(shard),
        };
        let server = index.and_then(|index| self.servers.get(usize::from(index.0)));
        match server {
            Some(server) => Ok((shard, server)),
            None => {
                Err(Failure::new(Code::Invalid, format!("{place:?}: volume '{}' has no such place", self.map.volume)))
            }
        }
    }
}

/// An operation has come by here; tasks that close files are none.
#[cfg(debug_assertions)]
fn planted(request: &Request, place: Planted) {
    if !matches!(request, Request::Close { .. } | Request::Listen { .. }) {
        place.reached();
    }
}

/// Where a request belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// To the entry of this name.
    Entry(Ino, &'a Name),
    /// To the inode's home.
    Home(Ino),
    /// To this shard: of a chunk.
    Shard(ShardId),
    /// To this server as a whole.
    Server(ServerIndex),
}

/// What the asker knows of renamed directories.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Knowing {
    /// The newest epoch that the client knows: the request means these inodes, wherever they are.
    Latest,
    /// The epoch when the numbers in the request were found by walking a path: if directories
    /// have been renamed since, the walk has to be repeated, and the refusal is the answer.
    Since(NamespaceEpoch),
}

/// All that makes a request.
pub(crate) struct Question<'a> {
    pub(crate) who: &'a Identity,
    pub(crate) place: Place<'a>,
    pub(crate) knowing: Knowing,
    pub(crate) request: &'a Request,
    pub(crate) payload: &'a [u8],
    /// A file, and the life of its home's server from which what is known of it is: in another one the request is not
    /// sent. `None`: in any.
    pub(crate) life: Option<(Ino, u32)>,
    /// The map by which the server was chosen as one of those that have something: with another one the request is not sent.
    pub(crate) planned: Option<MapEpoch>,
}

impl Core {
    /// Asks without a payload, and knowing the latest.
    pub(crate) async fn ask(&self, who: &Identity, place: Place<'_>, request: &Request) -> Result<Reply, Failure> {
        self.ask_knowing(who, place, Knowing::Latest, request).await
    }

    /// Asks without a payload.
    pub(crate) async fn ask_knowing(
        &self,
        who: &Identity,
        place: Place<'_>,
        knowing: Knowing,
        request: &Request,
    ) -> Result<Reply, Failure> {
        let question = Question { who, place, knowing, request, payload: &[], life: None, planned: None };
        Ok(self.ask_question(question).await?.reply)
    }

    /// Asks a server as a whole.
    pub(crate) async fn ask_server(
        &self,
        who: &Identity,
        server: ServerIndex,
        request: &Request,
    ) -> Result<Reply, Failure> {
        self.ask(who, Place::Server(server), request).await
    }

    /// Asks a server that was chosen by a map as one of those that have something. If that has changed the refusal is the
    /// answer, and the caller chooses anew: [`is_replanned`].
    pub(crate) async fn ask_planned(
        &self,
        who: &Identity,
        map: &ShardMap,
        server: ServerIndex,
        request: &Request,
    ) -> Result<Reply, Failure> {
        let (place, knowing, planned) = (Place::Server(server), Knowing::Latest, Some(map.epoch));
        let question = Question { who, place, knowing, request, payload: &[], life: None, planned };
        Ok(self.ask_question(question).await?.reply)
    }

    /// Asks the server that the map names until there is an answer other than a refusal that asking anew
    /// can cure, or the deadline has passed.
    pub(crate) async fn ask_question(&self, question: Question<'_>) -> Result<Answer, Failure> {
        let until = self.patience();
        let _changing = question.request.changes_contents_of().map(|ino| self.contents.change(ino));
        let _changing_again = self.again.change(&question);
        loop {
            let routes = self.routes.read().clone();
            if question.life.is_some_and(|(ino, life)| life != life_in(&routes.map, ino)) {
                // The file may have gone, which only its home knows, or locks of it.
                return Err(Failure::refused(Refusal::GenerationStale { generation: Generation(0) }));
            }
            if question.planned.is_some_and(|epoch| epoch != routes.map.epoch) {
                return Err(Failure::refused(Refusal::MapStale { epoch: routes.map.epoch }));
            }
            let (shard, server) = routes.locate(question.place)?;
            if routes.map.has_left(server.target.index) {
                let detail = format!("{}: {} has left the volume", question.request.name(), server.target);
                return Err(Failure::new(Code::Unreachable, detail));
            }
            if self.has_ended(&routes.map, server.target.index) {
                if !self.may_be_back(&routes, &server.target).await {
                    return Err(self.ended(&server.target).during(question.request.name()));
                }
                if self.routes.read().map.epoch != routes.map.epoch {
                    // It may have an address that it had not before.
                    continue;
                }
            }
            #[cfg(debug_assertions)]
            planted(question.request, Planted::Asking);
            server.talked.store(true, Ordering::Relaxed);
            self.listen_for(server.target.index, question.request);
            let namespace_epoch = match question.knowing {
                Knowing::Since(epoch) => epoch,
                Knowing::Latest => self.dirs.epoch(),
            };
            let asked = self.caller.ask(Ask {
                to: &server.target,
                shard,
                map_epoch: routes.map.epoch,
                namespace_epoch,
                identity: question.who,
                request: question.request,
                payload: question.payload,
                deadline: until.left(self),
            });
            #[cfg(debug_assertions)]
            aze_io::defects::vital(|| planted(question.request, Planted::Sending));
            let failure = match asked.await {
                Ok(answer) => {
                    #[cfg(debug_assertions)]
                    planted(question.request, Planted::Answered);
                    self.has_answered(question.request);
                    if question.request.needs_namespace_epoch() {
                        self.dirs.answered(namespace_epoch, answer.header.namespace_epoch);
                    }
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            match &failure.refusal {
                Some(Refusal::MapStale { .. }) => {
                    self.refresh_map(&routes, &server.target).await?;
                    if self.starts() > routes.map.epoch.starts()
                        && question.request.rules().generations == Generations::OneGen
                    {
                        // The cached attributes may be of a state that was lost with the power.
                        return Err(Failure::refused(Refusal::GenerationStale { generation: Generation(0) }));
                    }
                    if question.planned.is_some() {
                        until.check(self, &failure, question.request)?;
                        return Err(failure);
                    }
                }
                Some(Refusal::NamespaceStale { epoch, all, changed }) => {
                    self.dirs.adopt(*epoch, *all, changed);
                    self.subscribed.names_changed();
                    if matches!(question.knowing, Knowing::Since(_)) {
                        return Err(failure);
                    }
                }
                _ => return Err(failure),
            }
            until.check(self, &failure, question.request)?;
        }
    }

    /// Fetches the map from the first of some servers that answers.
    pub(crate) async fn look_for_map(&self) -> Result<(), Failure> {
        let routes = self.routes.read().clone();
        let asked: Vec<_> =
            routes.targets().take(ASKED_MAX).map(|to| Box::pin(self.refresh_map(&routes, to))).collect();
        if asked.is_empty() {
            return Err(Code::Internal.into());
        }
        select_ok(asked).await.map(drop)
    }

    /// Follows servers that leave or end: when one cannot be connected to, others say whether it has. Changes that were under
    /// way at one that has left go on at the servers that have its shards now; what waits for one that has ended fails.
    pub(crate) fn follow_servers(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.caller.locates(Box::new(move |shard, from, epoch| {
            let core = this.upgrade();
            Box::pin(async move { core?.locate_by(shard, &from, epoch).await })
        }));
        let this = Arc::downgrade(self);
        self.caller.on_unreachable(Box::new(move |target| {
            let Some(core) = this.upgrade() else { return };
            let target = target.clone();
            core.spawn(move |core| async move { core.look_who_is_gone(target).await });
        }));
        let this = Arc::downgrade(self);
        self.caller.on_back(Box::new(move |target| {
            let Some(core) = this.upgrade() else { return };
            let target = target.clone();
            core.spawn(move |core| async move {
                // A server that has left closes its connections: a client that asks nothing would not know where others are.
                let routes = core.routes.read().clone();
                drop(core.fetch_map(&routes, &target).await);
            });
        }));
    }

    /// The server that has a shard, by a map that is as new as that of a server which has refused the one known here, if anybody has it.
    async fn locate_by(&self, shard: ShardId, from: &Target, epoch: MapEpoch) -> Option<Located> {
        let mut routes = self.routes.read().clone();
        if routes.map.epoch < epoch {
            let asked = [from].into_iter().chain(self.others(&routes, from.index));
            let asked: Vec<_> = asked.map(|server| Box::pin(self.fetch_map(&routes, server))).collect();
            let _ = select_ok(asked).await;
            routes = self.routes.read().clone();
        }
        let (_, server) = routes.locate(Place::Shard(shard)).ok()?;
        let (since, epoch) = (routes.map.shard_since(shard), routes.map.epoch);
        Some(Located { server: server.target.clone(), since, epoch })
    }

    /// Asks others, who live if they answer, about one that cannot be connected to. Nothing is concluded without an answer: it may be that
    /// all servers are being started again.
    async fn look_who_is_gone(self: Arc<Self>, silent: Target) {
        for pause in GONE_PAUSES {
            self.io.sleep(pause).await;
            let routes = self.routes.read().clone();
            if routes.map.has_left(silent.index) {
                return self.caller.leave(silent.index, routes.map.epoch);
            }
            let asked = self.others(&routes, silent.index).into_iter().map(|other| self.fetch_map(&routes, other));
            let mut asked: FuturesUnordered<_> = asked.collect();
            while let Some(answer) = asked.next().await {
                if answer.is_ok() && self.tell_if_gone(&silent) {
                    return;
                }
            }
        }
    }

    /// Tells requests under way that their server has left or ended, or is in another life; `false` if it may be there.
    fn tell_if_gone(&self, silent: &Target) -> bool {
        let map = self.routes.read().map.clone();
        let Some(now) = Target::of(&map, silent.index) else { return false };
        if map.has_left(now.index) {
            self.caller.leave(now.index, map.epoch);
        } else if self.has_ended(&map, now.index) {
            self.caller.ended(&now, &self.why_ended(now.index), self.lasts);
        } else {
            return now.life != silent.life;
        }
        true
    }

    /// Some servers to ask whether another one has ended, the keeper first: it knows first.
    pub(crate) fn others<'a>(&self, routes: &'a Routes, silent: ServerIndex) -> Vec<&'a Target> {
        let keeper = routes.map.keeper;
        let is_asked = |target: &&Target| target.index != silent && !self.has_ended(&routes.map, target.index);
        let mut others: Vec<&Target> = routes.targets().filter(is_asked).collect();
        others.sort_by_key(|target| target.index != keeper);
        others.truncate(ASKED_MAX);
        others
    }

    /// Whether the process of a server has ended, as the map says or the system of this machine has told.
    pub(crate) fn has_ended(&self, map: &ShardMap, server: ServerIndex) -> bool {
        let Some(info) = map.server(server) else { return false };
        info.ended || self.seen_to_end.has((server, info.began, info.incarnation))
    }

    /// Whether to ask a server that has ended, as far as is known here, all the same: it is back, as another one says by one question, or there
    /// is no other one to ask.
    async fn may_be_back(&self, routes: &Arc<Routes>, gone: &Target) -> bool {
        let asked = self.others(routes, gone.index).into_iter().map(|other| Box::pin(self.fetch_map(routes, other)));
        let asked: Vec<_> = asked.collect();
        if asked.is_empty() {
            return true;
        }
        let is_answered = select_ok(asked).await.is_ok();
        is_answered && !self.has_ended(&self.routes.read().map.clone(), gone.index)
    }

    fn why_ended(&self, server: ServerIndex) -> String {
        match self.lasts {
            true => format!("its process has ended: bring it back with 'aze restart --server {server}'"),
            false => {
                "its process has ended, and what it held in memory is lost: copy out what is left, and start a new \
                      volume"
                    .to_owned()
            }
        }
    }

    fn ended(&self, target: &Target) -> Failure {
        Failure::new(Code::Unreachable, format!("{target}: {}", self.why_ended(target.index)))
    }

    /// Homes of open files have come to other servers: these are to know that the session lives, also if it asks nothing.
    fn greet_homes(&self) {
        let routes = self.routes.read().clone();
        let homes = self.inodes.all().into_iter().filter_map(|inode| routes.map.home_of(inode.attr().ino)).collect();
        self.greet(&routes, homes);
    }

    /// Asks those of these servers for the map that this client has not asked anything: they know its session then.
    fn greet(&self, routes: &Routes, homes: BTreeSet<ServerIndex>) {
        let is_new = |home: &ServerIndex| {
            let server = routes.servers.get(usize::from(home.0));
            server.is_some_and(|server| !server.talked.load(Ordering::Relaxed))
        };
        let Some(core) = self.me.upgrade() else { return };
        for home in homes.into_iter().filter(is_new) {
            core.spawn(move |core| async move {
                // One that does not answer hears it with the next request about the file.
                drop(core.ask_server(&Identity::default(), home, &Request::GetMap).await);
            });
        }
    }

    /// Fetches the map from a server that has refused the one known here.
    pub(crate) async fn refresh_map(&self, known: &Arc<Routes>, from: &Target) -> Result<(), Failure> {
        if self.routes.read().map.epoch <= known.map.epoch && !self.fetch_map(known, from).await? {
            self.io.sleep(MAP_PAUSE).await;
        }
        Ok(())
    }

    /// Fetches the map from a server; gives whether there is a newer one now.
    async fn fetch_map(&self, known: &Arc<Routes>, from: &Target) -> Result<bool, Failure> {
        let nobody = Identity::default();
        let (map_epoch, namespace_epoch) = (known.map.epoch, self.dirs.epoch());
        let request = &Request::GetMap;
        let (shard, deadline) = (ShardId(0), self.deadline);
        let ask =
            Ask { to: from, shard, map_epoch, namespace_epoch, identity: &nobody, request, payload: &[], deadline };
        let map = match self.caller.ask(ask).await {
            Ok(Answer { reply: Reply::Map { map }, .. }) => map,
            Ok(other) => return Err(unexpected(request, &other.reply)),
            // It has left meanwhile, as the newest map says.
            Err(Failure { refusal: Some(Refusal::MapStale { .. }), .. }) => return Ok(true),
            Err(failure) => return Err(failure),
        };
        self.adopt_map(map);
        Ok(self.routes.read().map.epoch > known.map.epoch)
    }

    /// Has the keeper told of servers of this machine whose processes have ended: with one server on a node, no other
    /// server sees that.
    pub(crate) fn watch_neighbours(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.caller.on_end(Box::new(move |target| {
            let Some(core) = this.upgrade() else { return };
            let (server, (began, incarnation)) = (target.index, target.life);
            core.seen_to_end.note((server, began, incarnation));
            core.leave_contacts();
            let ended = target.clone();
            core.spawn(move |core| async move { core.look_who_is_gone(ended).await });
            let routes = core.routes.read().clone();
            core.spawn(move |core| async move {
                // Another process of this machine may tell it as well.
                if routes.map.keeper == server {
                    core.tell_end_of_keeper((server, began, incarnation)).await;
                }
                let request = Request::ServerEnded { server, began, incarnation };
                if core.routes.read().map.keeper != server {
                    drop(core.ask_keeper(&Identity::default(), &request).await);
                }
            });
        }));
    }

    /// The life of the server of an inode's home, as far as is known here: grows with each.
    pub(crate) fn life_of(&self, ino: Ino) -> u32 {
        life_in(&self.routes.read().map, ino)
    }

    /// How often the volume has been started again, as far as is known here.
    pub(crate) fn starts(&self) -> u32 {
        self.routes.read().map.epoch.starts()
    }

    /// Whether all servers are on this client's node.
    pub(crate) fn is_all_near(&self) -> bool {
        let map = &self.routes.read().map;
        map.members().all(|server| map.server(server).is_some_and(|server| server.host == self.host))
    }

    /// How many servers the volume has.
    pub(crate) fn server_count(&self) -> usize {
        self.routes.read().map.indexes().count()
    }

    pub(crate) fn adopt_map(&self, map: Arc<ShardMap>) {
        // All requests go by the map, and its caller alone tells connections of it.
        vital(|| self.adopt_newer_map(map));
    }

    fn adopt_newer_map(&self, map: Arc<ShardMap>) {
        let mut routes = self.routes.write();
        if map.epoch <= routes.map.epoch {
            return;
        }
        let next = Routes::new(&self.io, map);
        let mut moved = Vec::new();
        for (index, (old, new)) in next.map.indexes().zip(routes.servers.iter().zip(&next.servers)) {
            new.talked.store(old.talked.load(Ordering::Relaxed), Ordering::Relaxed);
            if old.target != new.target {
                moved.push(index);
            }
        }
        if next.map.epoch.starts() > routes.map.epoch.starts() {
            // Changes that were not synced may be lost: sizes and generations may have gone back.
            self.inodes.forget_all();
        }
        let left: Vec<ServerIndex> =
            next.map.indexes().filter(|index| next.map.has_left(*index) && !routes.map.has_left(*index)).collect();
        let (epoch, slots_moved) = (next.map.epoch, next.map.slots != routes.map.slots);
        let has_left_all = !left.is_empty() && next.talked_to().is_empty();
        let now = Arc::new(next);
        *routes = now.clone();
        drop(routes);
        self.subscribed.servers_changed();
        moved.into_iter().for_each(|index| self.caller.disconnect(index));
        left.into_iter().for_each(|index| self.caller.leave(index, epoch));
        if slots_moved {
            self.greet_homes();
        }
        if has_left_all {
            // The keeper closes this client's connection when it leaves, and so tells it.
            self.greet(&now, BTreeSet::from([now.map.keeper]));
        }
        if let Some(core) = self.me.upgrade() {
            core.leave_contacts();
        }
    }

    /// The time that one operation has for being refused and asking again.
    pub(crate) fn patience(&self) -> Patience {
        let now_ns = self.io.mono_ns();
        let start_ns_max = u64::try_from(self.start_time_max.as_nanos()).unwrap_or(u64::MAX);
        Patience {
            until_ns: now_ns.saturating_add(self.deadline_ns()),
            last_ns: now_ns.saturating_add(self.deadline_ns().max(start_ns_max)),
        }
    }

    fn deadline_ns(&self) -> u64 {
        u64::try_from(self.deadline.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Whether slots have moved, so that the servers to be asked have to be chosen anew.
pub(crate) fn is_replanned(failure: &Failure) -> bool {
    matches!(failure.refusal, Some(Refusal::MapStale { .. }))
}

/// Since when what sessions have at an inode's home goes on.
fn life_in(map: &ShardMap, ino: Ino) -> u32 {
    map.home_since(ino).0
}

/// How long an operation goes on asking. It begins anew whenever a server says that it is starting.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    until_ns: u64,
    /// When it is over also if servers are starting.
    last_ns: u64,
}

impl Patience {
    fn until_ns(self, core: &Core) -> u64 {
        let start_seen_ns = core.caller.start_seen_ns();
        let since_start = Some(start_seen_ns.saturating_add(core.deadline_ns())).filter(|_| start_seen_ns > 0);
        self.until_ns.max(since_start.unwrap_or(0)).min(self.last_ns)
    }

    pub(crate) fn left(self, core: &Core) -> Duration {
        Duration::from_nanos(self.until_ns(core).saturating_sub(core.io.mono_ns()))
    }

    /// Whether the time is up.
    pub(crate) fn is_over(self, core: &Core) -> bool {
        core.io.mono_ns() >= self.until_ns(core)
    }

    /// Whether to go on after a refusal.
    ///
    /// # Errors
    /// [`Code::TimedOut`] when the time is up.
    pub(crate) fn check(self, core: &Core, refusal: &Failure, request: &Request) -> Result<(), Failure> {
        if !self.is_over(core) {
            return Ok(());
        }
        let detail =
            format!("{}: refused again and again for {:.1} s: {refusal}", request.name(), core.deadline.as_secs_f64());
        Err(Failure::new(Code::TimedOut, detail))
    }
}
