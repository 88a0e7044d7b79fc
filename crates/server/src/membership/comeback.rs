//! A server that died comes back alone, from its directory, while the others go on.
//!
//! It says to the keeper which life of it begins. The keeper writes that into the map, and every other server confirms
//! that it has the new map and that it serves no request of the earlier life any more. Only then the server learns what
//! the others know of its part (`persistence/settle.rs`), and serves clients. The keeper of the map comes back in the
//! same way: the newest map of the others is the volume's.

use crate::membership::members::{JOIN_PAUSE, caller_config};
use crate::membership::peers::without_map;
use crate::sabotage::Sabotage;
use crate::state::{Comeback, OtherServer, Server};
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_io::sync::Mutex;
use aze_proto::place::ServerInfo;
use aze_proto::slots::SlotTable;
use aze_proto::{
    Code, Configuration, Failure, Identity, Incarnation, MapEpoch, NamespaceEpoch, Reply, Request, ServerIndex,
    SessionId, ShardId, ShardMap,
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

/// What the other servers say of the volume.
struct Volume {
    map: ShardMap,
    namespace: NamespaceEpoch,
    /// The server that has told the map.
    told_by: Target,
    /// Servers that have ended, and whose next lives are not in the map.
    ended: Vec<ServerIndex>,
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
        let life = self.begin_life(number, start, known.life).await?;
        let info = ServerInfo { life, since: known.since, incarnation: known.incarnation, ..self.info() };
        self.namespace.adopt(volume.namespace);
        if volume.map.keeper == self.slot() {
            self.keep_again(volume, info).await.map_err(during)
        } else {
            self.join_again(outside, comeback, volume, info).await.map_err(during)
        }
    }

    /// Asks the others for the map until the newest is sure: from the keeper, or, if this is the keeper, from all that
    /// have not ended.
    async fn ask_for_volume(&self, outside: &Outside, comeback: &Comeback) -> Result<Volume, Failure> {
        let give_up_ns = self.io.mono_ns() + COMEBACK_TIME_MAX.as_nanos() as u64;
        loop {
            let has_ended = |other: &OtherServer| other.has_ended || outside.has_ended(other.slot);
            let asked = comeback.others.iter().filter(|other| !has_ended(other)).collect::<Vec<_>>();
            if asked.is_empty() {
                let text = "none of the other servers runs: start all of them: aze restart --force";
                return Err(Failure::new(Code::Unreachable, text));
            }
            let answers = join_all(asked.iter().map(|other| async move {
                let to = target(other);
                let answer = outside.ask(&to, &Request::GetMap, ANSWER_TIME_MAX).await;
                (*other, to, answer)
            }))
            .await;
            match self.newest_of(comeback, answers, has_ended) {
                Err(failure) if failure.is_silence() && self.io.mono_ns() < give_up_ns => {
                    self.io.sleep(JOIN_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    fn newest_of(
        &self,
        comeback: &Comeback,
        answers: Vec<(&OtherServer, Target, Result<Answer, Failure>)>,
        has_ended: impl Fn(&OtherServer) -> bool,
    ) -> Result<Volume, Failure> {
        let mut newest: Option<(ShardMap, Target)> = None;
        let (mut namespace, mut starting, mut silent) = (NamespaceEpoch(0), Vec::new(), Vec::new());
        for (other, target, answer) in answers {
            let answer = match answer {
                Ok(answer) => answer,
                // It is reading its storage: its earlier life has ended.
                Err(failure) if failure.code == Code::Busy => {
                    starting.push(other.slot);
                    continue;
                }
                Err(failure) => {
                    silent.push((other.slot, failure));
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
            let why = silent.into_iter().next().map_or_else(String::new, |(_, failure)| format!(": {failure}"));
            return Err(Failure::new(Code::Unreachable, format!("no other server has a map of the volume{why}")));
        };
        let is_same = |other: &&OtherServer| map.server(other.slot).is_some_and(|info| info.pid == other.pid);
        let seen = comeback.others.iter().filter(|other| has_ended(other)).filter(is_same).map(|other| other.slot);
        let ended: Vec<ServerIndex> = seen.chain(starting).collect();
        if map.keeper == self.slot()
            && let Some((slot, failure)) =
                silent.into_iter().find(|(slot, _)| !map.is_gone(*slot) && !ended.contains(slot))
        {
            return Err(failure.during(format!(
                "server {slot} may know a newer map: if it has died, bring it back together with this one (aze restart)"
            )));
        }
        Ok(Volume { map, namespace, told_by, ended })
    }

    /// Has the keeper put this life into the map.
    async fn join_again(
        self: &Arc<Self>,
        outside: &Outside,
        comeback: &Comeback,
        volume: Volume,
        info: ServerInfo,
    ) -> Result<Arc<ShardMap>, Failure> {
        let give_up_ns = self.io.mono_ns() + COMEBACK_TIME_MAX.as_nanos() as u64;
        // By the same words as before: for other ones the caller would let go of the process that it watches.
        let keeper = match comeback.others.iter().find(|other| other.slot == volume.map.keeper) {
            Some(other) => target(other),
            None => Target::of(&volume.map, volume.map.keeper).ok_or_else(|| Failure::from(Code::Internal))?,
        };
        for slot in volume.ended.into_iter().filter(|slot| *slot != volume.map.keeper) {
            let Some(ServerInfo { began, incarnation, .. }) = volume.map.server(slot).cloned() else { continue };
            let word = Request::ServerEnded { server: slot, began, incarnation };
            outside.ask(&keeper, &word, COMEBACK_TIME_MAX).await?;
        }
        let join = Request::Join { slot: self.slot(), info };
        let answer = loop {
            match outside.ask(&keeper, &join, COMEBACK_TIME_MAX).await {
                Err(failure) if outside.has_ended(keeper.index) => {
                    let slot = keeper.index;
                    return Err(failure.during(format!(
                        "server {slot}, which keeps the map, has died meanwhile: bring it back together with this one (aze restart)"
                    )));
                }
                Err(failure) if failure.code == Code::Busy && self.io.mono_ns() < give_up_ns => {
                    self.io.sleep(JOIN_PAUSE).await;
                }
                other => break other?,
            }
        };
        self.namespace.adopt(answer.header.namespace_epoch);
        match answer.reply {
            Reply::Map { map } => Ok(Arc::new(map)),
            _ => Err(Failure::new(Code::Malformed, "Join was answered with something else")),
        }
    }

    /// The keeper comes back: the newest map that the others have goes on with this life in it.
    async fn keep_again(self: &Arc<Self>, volume: Volume, info: ServerInfo) -> Result<Arc<ShardMap>, Failure> {
        let Volume { mut map, namespace, ended, .. } = volume;
        *self.keeper.raising().await = namespace;
        self.decided_before(&mut map)?;
        self.keeper.goes_on(self.io.mono_ns());
        for slot in ended {
            if let Some(server) = map.servers.get_mut(usize::from(slot.0)) {
                server.ended = true;
            }
        }
        map.epoch = MapEpoch(map.epoch.0 + 1);
        self.begin_in(&mut map, self.slot(), info);
        map.form_group(true);
        self.take_kept(&map)?;
        self.install_map(Arc::new(map));
        self.confirmed_by_all(self.slot()).await?;
        Ok(self.map())
    }

    /// Adds the moves to the map that the keeper's earlier life has decided on its disk, and that no other server knows.
    fn decided_before(&self, map: &mut ShardMap) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let Some(placement) = &persistence.placement else { return Ok(()) };
        let mut slots: Vec<(ServerIndex, Configuration)> =
            map.slots.iter().map(|(_, slot)| (slot.primary, slot.configuration)).collect();
        for (slot, (known, decided)) in slots.iter_mut().zip(&placement.slots).enumerate() {
            if decided.1 < known.1 {
                let detail = format!(
                    "storage {}: it says that slot {slot} is in configuration {}, and the other servers know of {}: it is older: put the \
                     directory of the last end back",
                    persistence.storage.place(),
                    decided.1,
                    known.1
                );
                return Err(Failure::new(Code::Lost, detail));
            }
            *known = *decided;
        }
        map.slots = SlotTable::recorded(map.shards(), &slots).map_err(|why| Failure::new(Code::Invalid, why))?;
        while map.servers.len() < usize::from(placement.servers) {
            // It was about to join, and has nothing.
            map.servers.push(ServerInfo::of_none());
        }
        Ok(())
    }

    /// At the keeper: a server comes back, whose process is another one than that in the map.
    pub(super) fn admit_life(self: &Arc<Self>, slot: ServerIndex, info: ServerInfo) -> Attempt<Output> {
        let server = self.clone();
        then(async move {
            // The namespace epoch of the answer is then not older than any that other servers know.
            server.hear_all().await?;
            let raising = server.keeper.raising().await;
            let placing = server.keeper.placing().await;
            server.put_life(slot, info).await?;
            drop((raising, placing));
            server.confirmed_by_all(slot).await?;
            Ok(Reply::Map { map: (*server.map()).clone() })
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
    }

    /// Waits until every server that has not ended has the newest map, and serves no request of earlier lives; all but
    /// this one and `but`, which comes back.
    async fn confirmed_by_all(self: &Arc<Self>, but: ServerIndex) -> Result<(), Failure> {
        let give_up_ns = self.io.mono_ns() + COMEBACK_TIME_MAX.as_nanos() as u64;
        let others = self.living().into_iter().filter(|other| *other != but && *other != self.slot());
        let confirmed = others.map(|other| async move {
            loop {
                let push = Request::MapPush { map: (*self.map()).clone() };
                let failure = match self.ask_once(other, ShardId(0), &push, ANSWER_TIME_MAX).await {
                    Ok(_) => return Ok(()),
                    Err(failure) => failure,
                };
                if self.map().is_gone(other) || self.is_stopping() {
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

    /// Refuses what an earlier life of another server has sent, from now on.
    pub(super) fn retire(self: &Arc<Self>, session: SessionId) {
        if self.config.switches.is(Sabotage::SkipLifeFence) {
            return;
        }
        self.end_session(session);
        self.retired.lock().push(session);
    }

    /// Waits until no change that an earlier life of another server has asked for is under way here.
    pub(super) async fn until_retired(&self) {
        let retired = self.retired.lock().clone();
        self.until_quiet(&retired).await;
    }
}
