//! A server that died comes back alone, from its directory, while the others go on.
//!
//! It says to the keeper which life of it begins. The keeper has the group write that into the map, and every other server confirms
//! that it has the new map and that it serves no request of the earlier life any more. Only then the server learns what
//! the others know of its part (`persistence/settle.rs`), and serves clients. If there is no keeper, members of the group that live take
//! its place, for which they may need the vote of the one that comes back; or that one does so itself.

use crate::membership::group::As;
use crate::membership::members::{JOIN_PAUSE, caller_config};
use crate::membership::peers::without_map;
use crate::membership::takeover::end_in;
use crate::persistence::resolve::AGAIN_PAUSE;
use crate::persistence::state::persistence::Persistence;
use crate::sabotage::Sabotage;
use crate::state::{Comeback, OtherServer, Server};
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_io::sync::Mutex;
use aze_keeper::Group;
use aze_proto::place::ServerInfo;
use aze_proto::{
    Code, Failure, Identity, Incarnation, MapEpoch, NamespaceEpoch, Refusal, Reply, Request, ServerIndex, SessionId,
    ShardId, ShardMap,
};
use aze_rpc::{Answer, Caller, CallerConfig, Target};
use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a server that comes back may take to be heard by the others.
const COMEBACK_TIME_MAX: Duration = Duration::from_secs(100);

/// How long it waits for one answer before it asks again.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// How long other members have to take the keeper's place, before this server tries to.
const TAKEOVER_TIME_MAX: Duration = Duration::from_secs(2);

/// How long another keeper is waited for, if the one that has ended is not being started.
const KEEPER_TIME_MAX: Duration = Duration::from_secs(10);

/// What the other servers say of the volume.
struct Volume {
    map: Arc<ShardMap>,
    namespace: NamespaceEpoch,
    /// The server that has told the map.
    told_by: Target,
    /// Servers that are being started.
    starting: Vec<ServerIndex>,
}

/// Asks servers before this one is in the map, over connections of its own: a later one to the same server knows which
/// life of it is meant.
struct Outside {
    caller: Arc<Caller>,
    ends: Arc<Mutex<Ends>>,
}

/// Servers whose processes the system has seen to end since this one began to come back, and who waits for such ends.
#[derive(Default)]
struct Ends {
    seen: BTreeSet<ServerIndex>,
    waiters: Vec<(ServerIndex, oneshot::Sender<()>)>,
}

impl Outside {
    fn new(caller: Arc<Caller>) -> Outside {
        let ends = Arc::new(Mutex::new(Ends::default()));
        let noted = ends.clone();
        caller.on_end(Box::new(move |target| {
            let mut ends = noted.lock();
            ends.seen.insert(target.index);
            // A waiter that is dropped has its sender removed here, too.
            ends.waiters.retain(|(server, _)| *server != target.index);
        }));
        Outside { caller, ends }
    }

    fn has_ended(&self, server: ServerIndex) -> bool {
        self.ends.lock().seen.contains(&server)
    }

    /// Whether it was seen to end since this was asked last: from now on its next process is asked.
    fn take_end(&self, server: ServerIndex) -> bool {
        self.ends.lock().seen.remove(&server)
    }

    /// Resolves when the process of a server is seen to have ended.
    async fn end_of(&self, server: ServerIndex) {
        let ended = {
            let mut ends = self.ends.lock();
            if ends.seen.contains(&server) {
                return;
            }
            ends.waiters.retain(|(_, waiter)| !waiter.is_canceled());
            let (sender, ended) = oneshot::channel();
            ends.waiters.push((server, sender));
            ended
        };
        // The end drops the sender.
        let _ = ended.await;
    }

    /// Asks, and gives up at once if the server's process ends.
    async fn ask(&self, to: &Target, request: &Request, deadline: Duration) -> Result<Answer, Failure> {
        let asked = pin!(self.ask_while_it_runs(to, request, deadline));
        match select(asked, pin!(self.end_of(to.index))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Failure::new(Code::Unreachable, format!("{to}: its process has ended"))),
        }
    }

    async fn ask_while_it_runs(&self, to: &Target, request: &Request, deadline: Duration) -> Result<Answer, Failure> {
        let identity = Identity::default();
        let ask = without_map(to, &identity, request, deadline);
        self.caller.ask(ask).await
    }
}

/// Whether something is to be tried again: the keeper may be another one by then, or not be busy any more.
fn is_passing(failure: &Failure) -> bool {
    failure.is_silence() || failure.code == Code::Busy || matches!(failure.refusal, Some(Refusal::MapStale { .. }))
}

/// The newest map of those that answer.
fn newest_of(answers: Vec<(&OtherServer, Target, Result<Answer, Failure>)>) -> Result<Volume, Failure> {
    let mut newest: Option<(Arc<ShardMap>, Target)> = None;
    let (mut namespace, mut starting, mut silent) = (NamespaceEpoch(0), Vec::new(), None);
    for (other, target, answer) in answers {
        let answer = match answer {
            Ok(answer) => answer,
            // It is reading its storage: its earlier life has ended.
            Err(failure) if failure.code == Code::Busy => {
                starting.push(other.slot);
                continue;
            }
            Err(failure) => {
                silent.get_or_insert(failure);
                continue;
            }
        };
        namespace = namespace.max(answer.header.namespace_epoch);
        match answer.reply {
            Reply::Map { map } if map.epoch == MapEpoch(0) => starting.push(other.slot),
            Reply::Map { map } => {
                if newest.as_ref().is_none_or(|(known, _)| known.epoch < map.epoch) {
                    newest = Some((map, target));
                }
            }
            _ => return Err(Failure::new(Code::Malformed, "GetMap was answered with something else")),
        }
    }
    let Some((map, told_by)) = newest else {
        let why = silent.map_or_else(String::new, |failure| format!(": {failure}"));
        return Err(Failure::new(Code::Unreachable, format!("no other server has a map of the volume{why}")));
    };
    Ok(Volume { map, namespace, told_by, starting })
}

/// A server, whichever life of it listens there.
fn target(other: &OtherServer) -> Target {
    let life = (MapEpoch(0), Incarnation(0));
    Target { index: other.slot, host: other.host.clone(), addresses: other.addresses.clone(), life }
}

impl Server {
    /// Comes back: gives the map with this life of the server in it, which all others know by then.
    pub(crate) async fn come_back(self: &Arc<Self>, comeback: &Comeback) -> Result<Arc<ShardMap>, Failure> {
        let during = |failure: Failure| failure.during("coming back to the volume");
        let caller = caller_config(&self.io, &self.config, &self.order);
        let caller = CallerConfig { start_time_max: Duration::ZERO, ..caller };
        let outside = &Outside::new(Caller::new(self.io.clone(), caller));
        let volume = self.ask_for_volume(outside, comeback).await.map_err(during)?;
        let asked = outside.ask(&volume.told_by, &Request::PersistentId, COMEBACK_TIME_MAX).await.map_err(during)?;
        let Reply::PersistentIs { volume: number, start, .. } = asked.reply else {
            return Err(Failure::new(Code::Malformed, "PersistentId was answered with something else"));
        };
        let known = volume
            .map
            .server(self.slot())
            .cloned()
            .ok_or_else(|| Failure::new(Code::Invalid, format!("the volume has no server {}", self.slot())))?;
        if known.is_left_out() {
            let text = format!(
                "{} was left out when the volume was last started: it takes part in the next start of all servers: aze restart --force",
                self.who()
            );
            return Err(Failure::new(Code::Invalid, text));
        }
        let life = self.begin_life(number, start, known.life).await?;
        let info = ServerInfo { life, since: known.since, incarnation: known.incarnation, ..self.info() };
        self.hear_own()?;
        self.enter_again(outside, comeback, volume, info).await.map_err(during)
    }

    /// The newest map that this server knew to be decided when it ended.
    fn hear_own(&self) -> Result<(), Failure> {
        let forgets = self.config.switches.is(Sabotage::ForgetPromises);
        let file = self.persistence.as_ref().filter(|_| !forgets).and_then(Persistence::promises_of_this_start);
        let Some(file) = file else { return Ok(()) };
        let group = Group::restored(&file.log).map_err(|why| Failure::new(Code::Lost, why.to_string()))?;
        let map = ShardMap::from_stored(group.value()).map_err(|why| Failure::new(Code::Lost, why.to_string()))?;
        self.group.hear(Arc::new(map));
        Ok(())
    }

    /// Gets into the map: by the keeper, or as the keeper.
    async fn enter_again(
        self: &Arc<Self>,
        outside: &Outside,
        comeback: &Comeback,
        mut volume: Volume,
        info: ServerInfo,
    ) -> Result<Arc<ShardMap>, Failure> {
        let give_up_ns = self.io.mono_ns() + COMEBACK_TIME_MAX.as_nanos() as u64;
        // Since when no keeper is there, and none is being started; and since when others may take its place.
        let (mut alone_since, mut told_since) = (None, None);
        let mut dead = BTreeSet::new();
        loop {
            self.namespace.adopt(volume.namespace);
            self.group.hear(volume.map.clone());
            let is_member = self.be_earlier_member().await?;
            let map = self.group.heard().ok_or(Code::Internal)?;
            if map.epoch > volume.map.epoch {
                self.tell_newer(outside, comeback, &map).await;
            }
            // The processes that the starter knows; the map may have later ones.
            let is_meant = |other: &OtherServer| map.server(other.slot).is_some_and(|info| info.pid == other.pid);
            for other in &comeback.others {
                let has_ended =
                    outside.take_end(other.slot) || other.has_ended || volume.starting.contains(&other.slot);
                if has_ended && is_meant(other) {
                    dead.insert(other.slot);
                }
            }
            let ended = comeback.others.iter().filter(|other| dead.contains(&other.slot) && is_meant(other));
            let ended: Vec<ServerIndex> = ended.map(|other| other.slot).filter(|slot| !map.is_gone(*slot)).collect();
            let is_away = |server: ServerIndex| server == self.slot() || map.is_gone(server) || ended.contains(&server);
            let keeper = map.keeper;
            let failure = if !is_away(keeper) {
                (alone_since, told_since) = (None, None);
                match self.join_again(outside, comeback, &map, &ended, &info).await {
                    Ok(map) if self.group.heard().is_none_or(|heard| heard.epoch <= map.epoch) => return Ok(map),
                    // It has said to the next keeper that it takes no older map.
                    Ok(map) => Failure::refused(Refusal::MapStale { epoch: map.epoch })
                        .during(format!("another server keeps the map than server {keeper}, which has answered")),
                    Err(failure) if is_passing(&failure) || outside.has_ended(keeper) => failure,
                    Err(failure) => return Err(failure),
                }
            } else {
                let members = map.group.members.iter().map(|member| member.server);
                let others: Vec<ServerIndex> = members.filter(|server| !is_away(*server)).collect();
                if others.is_empty() && keeper == self.slot() && !is_member {
                    let text = format!(
                        "{} decided alone about the map, and the file 'group' of its directory does not say what: restart the whole \
                         volume: aze restart --force",
                        self.who()
                    );
                    return Err(Failure::new(Code::Lost, text));
                }
                let now_ns = self.io.mono_ns();
                match volume.starting.contains(&keeper) || keeper == self.slot() {
                    true => alone_since = None,
                    false => drop(alone_since.get_or_insert(now_ns)),
                }
                let told_ns = *told_since.get_or_insert(now_ns);
                let may_try = now_ns - told_ns >= TAKEOVER_TIME_MAX.as_nanos() as u64;
                if is_member && (others.is_empty() || may_try) {
                    told_since = None;
                    match self.keep_again(&ended, &info).await {
                        Ok(map) => return Ok(map),
                        Err(failure) if is_passing(&failure) => failure,
                        Err(failure) => return Err(failure),
                    }
                } else {
                    self.tell_gone(outside, comeback, &map, &others).await;
                    let text = format!(
                        "server {keeper}, which keeps the map, has died: bring it back together with this one (aze restart)"
                    );
                    Failure::new(Code::Unreachable, text)
                }
            };
            let now_ns = self.io.mono_ns();
            let is_hopeless = alone_since.is_some_and(|since| now_ns - since >= KEEPER_TIME_MAX.as_nanos() as u64);
            if is_hopeless || now_ns >= give_up_ns || self.is_stopping() {
                return Err(failure);
            }
            self.io.sleep(AGAIN_PAUSE).await;
            // If no server answers, the map known so far holds.
            if let Ok(newer) = self.ask_once_for_volume(outside, comeback).await {
                volume = newer;
            }
        }
    }

    /// Tells the others of a decided map: the servers that have heard of it have died.
    async fn tell_newer(&self, outside: &Outside, comeback: &Comeback, map: &Arc<ShardMap>) {
        let push = Request::MapPush { map: map.clone() };
        let living = comeback.others.iter().filter(|other| !other.has_ended && !outside.has_ended(other.slot));
        // One that does not hear it is told again.
        join_all(living.map(|other| {
            let (to, push) = (target(other), &push);
            async move { drop(outside.ask(&to, push, ANSWER_TIME_MAX).await) }
        }))
        .await;
    }

    /// Tells members of the group that the keeper has ended: they take its place.
    async fn tell_gone(&self, outside: &Outside, comeback: &Comeback, map: &ShardMap, members: &[ServerIndex]) {
        let Some(ServerInfo { began, incarnation, .. }) = map.server(map.keeper).cloned() else { return };
        let word = Request::KeeperGone { keeper: map.keeper, began, incarnation, has_ended: true };
        let members = comeback.others.iter().filter(|other| members.contains(&other.slot));
        // One that does not hear it is told again.
        join_all(members.map(|other| {
            let (to, word) = (target(other), word.clone());
            async move { drop(outside.ask(&to, &word, ANSWER_TIME_MAX).await) }
        }))
        .await;
    }

    /// Asks the others for the map until one of them says it.
    async fn ask_for_volume(&self, outside: &Outside, comeback: &Comeback) -> Result<Volume, Failure> {
        let give_up_ns = self.io.mono_ns() + COMEBACK_TIME_MAX.as_nanos() as u64;
        loop {
            match self.ask_once_for_volume(outside, comeback).await {
                Err(failure) if failure.is_silence() && self.io.mono_ns() < give_up_ns => {
                    self.io.sleep(JOIN_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    async fn ask_once_for_volume(&self, outside: &Outside, comeback: &Comeback) -> Result<Volume, Failure> {
        if comeback.others.iter().all(|other| other.has_ended || outside.has_ended(other.slot)) {
            let text = "none of the other servers runs: start all of them: aze restart --force";
            return Err(Failure::new(Code::Unreachable, text));
        }
        let answers = join_all(comeback.others.iter().map(|other| async move {
            let to = target(other);
            let answer = outside.ask(&to, &Request::GetMap, ANSWER_TIME_MAX).await;
            (other, to, answer)
        }))
        .await;
        newest_of(answers)
    }

    /// Has the keeper put this life into the map.
    async fn join_again(
        self: &Arc<Self>,
        outside: &Outside,
        comeback: &Comeback,
        map: &ShardMap,
        ended: &[ServerIndex],
        info: &ServerInfo,
    ) -> Result<Arc<ShardMap>, Failure> {
        // By the same words as before: for other ones the caller would let go of the process that it watches.
        let keeper = match comeback.others.iter().find(|other| other.slot == map.keeper) {
            Some(other) => target(other),
            None => Target::of(map, map.keeper).ok_or_else(|| Failure::from(Code::Internal))?,
        };
        // Its own earlier life, too: until the map says that it has ended the keeper asks it about the keeper before.
        let ended = ended.iter().chain([&self.config.slot]);
        for slot in ended.filter(|slot| **slot != map.keeper && !map.is_gone(**slot)) {
            let Some(ServerInfo { began, incarnation, session, .. }) = map.server(*slot).cloned() else { continue };
            if session == info.session {
                continue;
            }
            let word = Request::ServerEnded { server: *slot, began, incarnation };
            outside.ask(&keeper, &word, COMEBACK_TIME_MAX).await?;
        }
        let join = Request::Join { slot: self.slot(), info: info.clone() };
        let answer = outside.ask(&keeper, &join, COMEBACK_TIME_MAX).await.map_err(|failure| {
            match outside.has_ended(keeper.index) {
                true => failure.during(format!(
                    "server {}, which keeps the map, has died meanwhile: bring it back together with this one (aze restart)",
                    keeper.index
                )),
                false => failure,
            }
        })?;
        self.namespace.adopt(answer.header.namespace_epoch);
        match answer.reply {
            Reply::Map { map } => Ok(map),
            _ => Err(Failure::new(Code::Malformed, "Join was answered with something else")),
        }
    }

    /// Becomes the keeper, in this life, by a decision of the group.
    async fn keep_again(self: &Arc<Self>, ended: &[ServerIndex], info: &ServerInfo) -> Result<Arc<ShardMap>, Failure> {
        let before = self.group.heard().map(|map| (map.keeper, map.server(map.keeper).map(|info| info.session)));
        let decided = self.decide_map(As::Successor, |map| {
            if Some((map.keeper, map.server(map.keeper).map(|info| info.session))) != before {
                return Err(self.no_keeper());
            }
            if map.keeper != self.slot() {
                end_in(map, map.keeper);
                map.keeper = self.slot();
            }
            ended.iter().for_each(|slot| end_in(map, *slot));
            self.begin_life_in(map, self.slot(), info)
        });
        let map = decided.await?.map;
        self.take_kept(&map)?;
        // Before it gives a token or raises the epoch it asks the others what the keeper before knew.
        self.keeper.begins(self.io.mono_ns());
        self.install_map(map);
        self.begin_keeping();
        self.confirmed_by_all(self.slot()).await?;
        Ok(self.map())
    }

    /// At the keeper: a server comes back, whose process is another one than that in the map.
    pub(super) fn admit_life(self: &Arc<Self>, slot: ServerIndex, info: ServerInfo) -> Attempt<Output> {
        let server = self.clone();
        then(async move {
            let coming = server.keeper.begins_to_admit(info.session);
            // The namespace epoch of the answer is then not older than any that other servers know.
            server.hear_all().await?;
            let raising = server.keeper.raising().await;
            server.put_life(slot, info).await?;
            drop(raising);
            server.confirmed_by_all(slot).await?;
            // Who finds it coming from here on has no newer map than that of the answer.
            drop(coming);
            Ok(Reply::Map { map: server.map() })
        })
    }

    async fn put_life(self: &Arc<Self>, slot: ServerIndex, info: ServerInfo) -> Result<(), Failure> {
        self.change_map(Some(slot), |map| self.begin_life_in(map, slot, &info)).await.map(drop)
    }

    fn begin_life_in(&self, map: &mut ShardMap, slot: ServerIndex, info: &ServerInfo) -> Result<bool, Failure> {
        let known = &map.servers[usize::from(slot.0)];
        if known.session == info.session {
            // A copy of a request that was answered, or is about to be.
            return Ok(false);
        }
        if info.life <= known.life {
            let detail = format!(
                "server {slot} comes back as life {}, and its last life was number {}: this directory is an older copy, or another process uses one",
                info.life, known.life
            );
            return Err(Failure::new(Code::Lost, detail));
        }
        self.begin_in(map, slot, info.clone());
        Ok(true)
    }

    /// A life of a server begins with this map.
    fn begin_in(&self, map: &mut ShardMap, slot: ServerIndex, info: ServerInfo) {
        let known = &mut map.servers[usize::from(slot.0)];
        let goes_on = self.config.switches.is(Sabotage::KeepOldLife);
        *known = ServerInfo { began: if goes_on { known.began } else { map.epoch }, ..info };
        map.slots.forget_since(slot);
    }

    /// Waits until every server that has not ended has the newest map, and serves no request of earlier lives; all but
    /// this one and `but`, which comes back. Another one that comes back serves nothing before it has the map of its answer, which this one
    /// is yet to give.
    async fn confirmed_by_all(self: &Arc<Self>, but: ServerIndex) -> Result<(), Failure> {
        let give_up_ns = self.io.mono_ns() + COMEBACK_TIME_MAX.as_nanos() as u64;
        let others = self.living().into_iter().filter(|other| *other != but && *other != self.slot());
        let confirmed = others.map(|other| async move {
            loop {
                let push = Request::MapPush { map: self.map() };
                let failure = match self.ask_once(other, ShardId(0), &push, ANSWER_TIME_MAX).await {
                    Ok(_) => return Ok(()),
                    Err(failure) => failure,
                };
                if self.map().is_gone(other) || self.is_coming(other) || self.is_stopping() {
                    return Ok(());
                }
                if self.io.mono_ns() >= give_up_ns {
                    return Err(failure.during(format!(
                        "server {other} has not confirmed that server {but} is back: if it has died, bring it back, too (aze restart)"
                    )));
                }
                self.io.sleep(JOIN_PAUSE).await;
            }
        });
        join_all(confirmed).await.into_iter().collect::<Result<(), Failure>>()?;
        self.until_retired().await;
        Ok(())
    }

    /// Whether a server comes back in the life that the map has, and waits here for its answer.
    fn is_coming(&self, server: ServerIndex) -> bool {
        let session = self.map().server(server).map(|info| info.session);
        !self.config.switches.is(Sabotage::AwaitComing) && session.is_some_and(|session| self.keeper.admits(session))
    }

    /// Refuses what an earlier life of another server has sent, from now on.
    pub(super) fn refuse_life(&self, session: SessionId) {
        if !self.config.switches.is(Sabotage::SkipLifeFence) {
            self.sessions.end(session);
            self.retired.lock().push(session);
        }
    }

    /// Drops what an earlier life of another server held here, which is refused by now.
    pub(super) fn retire(self: &Arc<Self>, session: SessionId) {
        if !self.config.switches.is(Sabotage::SkipLifeFence) {
            self.end_session(session);
        }
    }

    /// Waits until no change that an earlier life of another server has asked for is under way here.
    pub(super) async fn until_retired(&self) {
        let retired = self.retired.lock().clone();
        self.until_quiet(&retired).await;
    }
}
