//! Asking other servers, or this one, on behalf of a request in progress.

use crate::state::Server;
use crate::work::Work;
use aze_proto::rules::To;
use aze_proto::{
    Attr, Code, Failure, Identity, Ino, MapEpoch, NamespaceEpoch, Refusal, Reply, Request, ServerIndex, ShardId,
};
use aze_rpc::{Ask, Target};
use futures_channel::oneshot;
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a question is put again after a newer shard map was fetched. More would mean that the
/// map changes faster than it can be read.
const MAP_REFRESHES_MAX: u32 = 4;

/// Pause before something that must reach a server in the end is sent again.
const PERSIST_PAUSE: Duration = Duration::from_secs(1);

/// How long a server that starts waits until it is connected to those that keep the map, on its machine.
const WATCH_TIME_MAX: Duration = Duration::from_secs(1);

/// A question of a server that has no map yet, or to one that is in no map.
pub(super) fn without_map<'a>(
    to: &'a Target,
    identity: &'a Identity,
    request: &'a Request,
    deadline: Duration,
) -> Ask<'a> {
    let (map_epoch, namespace_epoch) = (MapEpoch(0), NamespaceEpoch(0));
    Ask { to, shard: ShardId(0), map_epoch, namespace_epoch, identity, request, payload: &[], deadline }
}

impl Server {
    /// Asks whichever server holds `shard`, also if that moves meanwhile.
    pub(crate) async fn ask_shard(self: &Arc<Self>, shard: ShardId, request: Request) -> Result<Reply, Failure> {
        self.ask_shard_with(shard, request, &[], self.config.deadline).await
    }

    /// The same, with a payload if the shard is not here.
    pub(crate) async fn ask_shard_with(
        self: &Arc<Self>,
        shard: ShardId,
        request: Request,
        payload: &[u8],
        deadline: Duration,
    ) -> Result<Reply, Failure> {
        self.ask_shard_noting(shard, request, payload, deadline, &mut false).await
    }

    /// As [`Self::ask_shard_with`]; sets `was_refused` if a server has refused the request for the asker's map: that may be
    /// the next life of a server that has done it and could not say so any more.
    pub(crate) async fn ask_shard_noting(
        self: &Arc<Self>,
        shard: ShardId,
        request: Request,
        payload: &[u8],
        deadline: Duration,
        was_refused: &mut bool,
    ) -> Result<Reply, Failure> {
        for _ in 0..MAP_REFRESHES_MAX {
            let server = self.server_of(shard)?;
            let answer = match server == self.slot() {
                true => {
                    let work = Work { payload: payload.to_vec().into(), ..Work::local(self, shard) };
                    Box::pin(self.run_local(&request, work)).await
                }
                false => self.ask_with(server, shard, &request, payload, deadline).await,
            };
            match answer {
                Err(Failure { refusal: Some(Refusal::MapStale { .. }), .. }) if server != self.slot() => {
                    *was_refused = true;
                    self.refresh_map_from(server).await?;
                }
                // The shard has just gone: the map says where to.
                Err(Failure { refusal: Some(Refusal::MapStale { .. }), .. }) => {}
                other => return other,
            }
        }
        Err(self.kept_changing(&request))
    }

    /// The server of a shard.
    pub(crate) fn server_of(&self, shard: ShardId) -> Result<ServerIndex, Failure> {
        let server = self.map().server_of(shard);
        server.ok_or_else(|| Failure::new(Code::Internal, format!("shard {shard} is on no server")))
    }

    fn kept_changing(&self, request: &Request) -> Failure {
        let detail = format!(
            "{}: {} asked {MAP_REFRESHES_MAX} times, and the shard map kept changing",
            request.name(),
            self.who()
        );
        Failure::new(Code::Unreachable, detail)
    }

    /// Asks one server. A question to this very server takes no detour over the network.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        server: ServerIndex,
        shard: ShardId,
        request: Request,
    ) -> Result<Reply, Failure> {
        if server == self.slot() {
            return Box::pin(self.run_local(&request, Work::local(self, shard))).await;
        }
        self.ask_other(server, shard, request, &[], self.config.deadline).await
    }

    /// Asks another server, with a payload.
    pub(crate) async fn ask_other(
        self: &Arc<Self>,
        server: ServerIndex,
        shard: ShardId,
        request: Request,
        payload: &[u8],
        deadline: Duration,
    ) -> Result<Reply, Failure> {
        for _ in 0..MAP_REFRESHES_MAX {
            match self.ask_with(server, shard, &request, payload, deadline).await {
                Err(failure @ Failure { refusal: Some(Refusal::MapStale { .. }), .. }) => {
                    self.refresh_map_from(server).await?;
                    if request.rules().to == To::Slots {
                        // Who is to be asked depends on the map: the asker begins anew.
                        return Err(failure);
                    }
                }
                other => return other,
            }
        }
        Err(self.kept_changing(&request))
    }

    pub(crate) async fn ask_once(
        &self,
        server: ServerIndex,
        shard: ShardId,
        request: &Request,
        deadline: Duration,
    ) -> Result<Reply, Failure> {
        self.ask_with(server, shard, request, &[], deadline).await
    }

    async fn ask_with(
        &self,
        server: ServerIndex,
        shard: ShardId,
        request: &Request,
        payload: &[u8],
        deadline: Duration,
    ) -> Result<Reply, Failure> {
        self.sync_before(request).await?;
        let map = self.map();
        let to = Target::of(&map, server)
            .ok_or_else(|| Failure::new(Code::Internal, format!("the map has no server {server}")))?;
        // One that has left is yet to hear it.
        let is_word_of_it = map.has_left(server) && request.brings_a_map();
        if map.has_left(server) && request.names_shard() {
            // It was chosen by an older map: another one has the shard.
            return Err(Failure::refused(Refusal::MapStale { epoch: map.epoch }));
        }
        if map.is_gone(server) && !is_word_of_it {
            let why = if map.has_left(server) { "it has left the volume" } else { "its process has ended" };
            return Err(Failure::new(Code::Unreachable, format!("{to}: {why}")));
        }
        let identity = Identity::default();
        let ask = Ask {
            to: &to,
            shard,
            map_epoch: map.epoch,
            namespace_epoch: self.namespace_epoch(),
            identity: &identity,
            request,
            payload,
            deadline,
        };
        let answer = self.peers.ask(ask).await?;
        self.map_epoch_heard.fetch_max(answer.header.map_epoch.0, Ordering::Relaxed);
        Ok(answer.reply)
    }

    /// Asks several servers at once; the answers come in the order of `servers`.
    pub(crate) async fn ask_each(
        self: &Arc<Self>,
        servers: &[ServerIndex],
        request: &Request,
    ) -> Vec<(ServerIndex, Result<Reply, Failure>)> {
        self.ask_each_within(servers, request, self.config.deadline).await
    }

    /// The servers of the map, but for those whose processes are known to have ended.
    pub(crate) fn living(&self) -> Vec<ServerIndex> {
        let map = self.map();
        map.indexes().filter(|server| !map.is_gone(*server)).collect()
    }

    /// Has the keeper told of servers of this machine whose processes have ended.
    pub(crate) fn tell_of_ends(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.peers.on_end(Box::new(move |target| {
            let Some(server) = this.upgrade() else { return };
            server.end_seen(target.index, target.life.0, target.life.1);
        }));
    }

    /// Whether the system of this machine has told that the process of a server has ended.
    pub(crate) fn has_seen_end(&self, server: ServerIndex) -> bool {
        let map = self.map();
        let life = map.server(server).map(|info| (server, info.began, info.incarnation));
        life.is_some_and(|life| self.seen_to_end.lock().contains(&life))
    }

    /// Connects to the servers of this machine that live, since only who was connected to a process can be certain of its
    /// end. The future resolves when those that keep the map are connected to, or do not answer in time.
    pub(crate) fn watch_neighbours(self: &Arc<Self>) -> impl Future<Output = ()> + use<> {
        let map = self.map();
        let is_near = |index: &ServerIndex| map.server(*index).is_some_and(|info| info.host == self.config.host);
        let mut keepers = Vec::new();
        for near in map.members().filter(|index| *index != self.slot()).filter(is_near) {
            let server = self.clone();
            let (connected, is_connected) = oneshot::channel::<()>();
            if map.group.members.iter().any(|member| member.server == near) {
                keepers.push(is_connected);
            }
            self.io.spawn(async move {
                // One that cannot be asked now is connected to when it first is.
                drop(server.ask_once(near, ShardId(0), &Request::GetMap, server.config.deadline).await);
                drop(connected);
            });
        }
        let io = self.io.clone();
        async move {
            io.timeout(WATCH_TIME_MAX, join_all(keepers)).await;
        }
    }

    /// The same, with a deadline of its own.
    pub(crate) async fn ask_each_within(
        self: &Arc<Self>,
        servers: &[ServerIndex],
        request: &Request,
        deadline: Duration,
    ) -> Vec<(ServerIndex, Result<Reply, Failure>)> {
        let ask = |server: ServerIndex| async move {
            let answer = if server == self.slot() {
                self.ask(server, ShardId(0), request.clone()).await
            } else {
                self.ask_other(server, ShardId(0), request.clone(), &[], deadline).await
            };
            (server, answer)
        };
        join_all(servers.iter().map(|server| ask(*server))).await
    }

    /// Goes on asking until the server answers, has restarted empty or left (then it has nothing left to be
    /// told about) or this server stops. For what must happen in the end, in the background.
    pub(crate) fn persist(self: &Arc<Self>, server: ServerIndex, shard: ShardId, request: Request) {
        let (this, note, owed) = (self.clone(), self.note_untold(&request), self.owes());
        self.io.spawn(async move {
            let _owed = owed;
            // Done, or refused for a reason that will not go away.
            drop(this.persisting(server, shard, request).await);
            this.has_told(note);
        });
    }

    /// Inodes of whose move or end another server is yet to be told.
    pub(crate) fn untold(&self) -> Vec<Ino> {
        self.untold.lock().clone()
    }

    async fn persisting(
        self: &Arc<Self>,
        server: ServerIndex,
        shard: ShardId,
        request: Request,
    ) -> Result<Reply, Failure> {
        let incarnation = || self.map().server(server).map(|info| info.incarnation);
        let before = incarnation();
        loop {
            let answer = self.ask(server, shard, request.clone()).await;
            // One that is starting is busy.
            let silent = answer.as_ref().is_err_and(|failure| failure.is_silence() || failure.code == Code::Busy);
            if !silent || incarnation() != before || self.map().has_left(server) || self.is_stopping() {
                return answer;
            }
            self.io.sleep(PERSIST_PAUSE).await;
        }
    }

    /// As [`Self::persist_shard`], for callers that have to know when that is over.
    pub(crate) async fn until_answered(self: &Arc<Self>, shard: ShardId, request: Request) -> Result<Reply, Failure> {
        loop {
            let server = self.server_of(shard)?;
            let incarnation = || self.map().server(server).map(|info| info.incarnation);
            let before = incarnation();
            let answer = self.ask_shard(shard, request.clone()).await;
            // One that is starting is busy.
            let silent = answer.as_ref().is_err_and(|failure| failure.is_silence() || failure.code == Code::Busy);
            if !silent || incarnation() != before || self.is_stopping() {
                return answer;
            }
            self.io.sleep(PERSIST_PAUSE).await;
        }
    }

    /// Asks until the server, in this life or the next, has done it, or has left, or this server stops.
    pub(crate) async fn ask_in_the_end(self: &Arc<Self>, server: ServerIndex, request: Request) {
        let _owed = self.owes();
        while self.ask(server, ShardId(0), request.clone()).await.is_err()
            && !self.map().has_left(server)
            && !self.is_stopping()
        {
            self.io.sleep(PERSIST_PAUSE).await;
        }
    }

    /// As [`Self::persist`], to whichever server has a shard.
    pub(crate) fn persist_shard(self: &Arc<Self>, shard: ShardId, request: Request) {
        let (this, note, owed) = (self.clone(), self.note_untold(&request), self.owes());
        self.io.spawn(async move {
            let _owed = owed;
            drop(this.until_answered(shard, request).await);
            this.has_told(note);
        });
    }

    /// Tells all servers with data of a file, by the map of that moment; in the background, until they have answered. Then
    /// `done` is called, unless one has refused it.
    pub(crate) fn persist_to_data(
        self: &Arc<Self>,
        attr: Attr,
        request: Request,
        done: impl FnOnce(&Arc<Server>) + Send + 'static,
    ) {
        let (this, note, owed) = (self.clone(), self.note_untold(&request), self.owes());
        self.io.spawn(async move {
            let _owed = owed;
            loop {
                let map = this.map_epoch_now();
                let servers = this.data_servers(&attr);
                let told = servers.into_iter().map(|server| this.persisting(server, ShardId(0), request.clone()));
                let told = join_all(told).await;
                let is_stale = |answer: &Result<Reply, Failure>| {
                    matches!(answer, Err(Failure { refusal: Some(Refusal::MapStale { .. }), .. }))
                };
                if told.iter().any(is_stale) && !this.is_stopping() {
                    if this.map_epoch_now() == map {
                        // One that is coming back has no map yet.
                        this.io.sleep(PERSIST_PAUSE).await;
                    }
                } else if this.map_epoch_now() == map || this.is_stopping() {
                    if told.iter().all(Result::is_ok) {
                        done(&this);
                    }
                    break;
                }
            }
            this.has_told(note);
        });
    }

    fn note_untold(&self, request: &Request) -> Option<Ino> {
        let ino = match request {
            Request::SetParent { ino, .. } | Request::DeleteData { ino } => Some(*ino),
            _ => None,
        };
        self.untold.lock().extend(ino);
        ino
    }

    fn has_told(&self, ino: Option<Ino>) {
        if let Some(ino) = ino {
            let mut untold = self.untold.lock();
            let at = untold.iter().position(|other| *other == ino);
            at.map(|at| untold.swap_remove(at));
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.lock().is_none()
    }
}
