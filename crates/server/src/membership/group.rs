//! Decisions about the map: a majority of the keeper group agrees to each.
//!
//! The keeper proposes; `aze-keeper` has the group agree. The members of a group never change: a decision that wants other members
//! forms another group, with the map that it decides as its first, and is the last one of the group before. When the keeper is gone,
//! another member makes itself the keeper by a decision like any other ([`takeover`](super::takeover)).
//!
//! On a volume in directories a member writes its promises down before it answers (`persistence/promises.rs`), so that the next
//! process of its server is the same member until the group has taken that in.

use crate::membership::peers::without_map;
use crate::membership::state::group::{Member, id_of, server_of};
use crate::persistence::state::persistence::Persistence;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_io::sync::Mutex;
use aze_keeper::{ANSWER_TIME_MAX, Driver, Group, MemberId, Outside, Undecided};
use aze_proto::place::{GroupMember, KeeperGroup};
use aze_proto::wire::Blob;
use aze_proto::{Code, Failure, Identity, MapEpoch, Refusal, Reply, Request, ServerIndex, ShardId, ShardMap};
use aze_rpc::Target;
use futures_util::future::{BoxFuture, FutureExt};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long another member may take to take note of a message.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a server tries to propose while others stand for election.
const PROPOSE_TIME_MAX: Duration = ANSWER_TIME_MAX;

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum As {
    /// The keeper.
    Keeper,
    /// A member that makes itself the keeper.
    Successor,
}

/// A decision: the map, and the one before it if the decision has changed it.
pub(super) struct Decided {
    pub(super) before: Option<ShardMap>,
    pub(super) map: Arc<ShardMap>,
}

/// Why a change is not proposed.
enum Unwanted {
    /// The group has decided on another one.
    OtherGroup(Arc<ShardMap>),
    /// This server is not the keeper.
    OtherKeeper(Arc<ShardMap>),
    Refused(Failure),
}

/// What a member needs of its server.
struct Door {
    server: Weak<Server>,
    /// Its group.
    group: KeeperGroup,
}

impl Outside for Door {
    fn send(&self, to: MemberId, message: Vec<u8>) -> BoxFuture<'static, bool> {
        let (Some(server), Some(to)) = (self.server.upgrade(), server_of(&self.group.members, to)) else {
            return std::future::ready(false).boxed();
        };
        let message = Request::Group { formed: self.group.formed, bytes: Blob(message) };
        async move {
            if server.comes_back() {
                return server.send_as_heard(to, &message).await;
            }
            match server.ask_once(to, ShardId(0), &message, MESSAGE_TIME_MAX).await {
                Ok(_) => true,
                // The group has decided on another one.
                Err(Failure { refusal: Some(Refusal::MapStale { .. }), .. }) => {
                    drop(server.refresh_map_from(to).await);
                    false
                }
                Err(failure) if failure.code == Code::Busy => {
                    // The keeper that has decided on this group has died before it could tell.
                    let map = Request::MapPush { map: server.map() };
                    drop(server.ask_once(to, ShardId(0), &map, MESSAGE_TIME_MAX).await);
                    false
                }
                Err(_) => false,
            }
        }
        .boxed()
    }

    fn store(&self, stored: Vec<u8>) -> BoxFuture<'static, bool> {
        match self.server.upgrade().filter(|server| server.persistence.is_some()) {
            Some(server) => {
                let formed = self.group.formed;
                async move { server.keep_promise(formed, stored).await.is_ok_and(|is_kept| is_kept) }.boxed()
            }
            // A process that has ended is no member any more: nothing outlives it.
            None => std::future::ready(true).boxed(),
        }
    }

    fn decided(&self, value: Vec<u8>) {
        if let (Some(server), Ok(map)) = (self.server.upgrade(), ShardMap::from_stored(&value)) {
            server.learn(Arc::new(map));
        }
    }

    fn leads(&self) {}
}

impl Server {
    /// Changes the map: `change` gets the newest map, under the next epoch, and says whether it has changed anything. Resolves when the
    /// group has agreed and this server has the new map; all others are told, but for `but`, which gets it as an answer.
    ///
    /// # Errors
    /// What `change` says; a refusal as of an old map if this server is not the keeper any more; [`Code::TimedOut`] if no majority of the
    /// group answers, and [`Code::UnknownOutcome`] if it stops answering in between: then it may still be decided.
    pub(crate) async fn change_map(
        self: &Arc<Self>,
        but: Option<ServerIndex>,
        change: impl Fn(&mut ShardMap) -> Result<bool, Failure>,
    ) -> Result<Arc<ShardMap>, Failure> {
        self.change_map_as(As::Keeper, but, change).await
    }

    pub(super) async fn change_map_as(
        self: &Arc<Self>,
        decider: As,
        but: Option<ServerIndex>,
        change: impl Fn(&mut ShardMap) -> Result<bool, Failure>,
    ) -> Result<Arc<ShardMap>, Failure> {
        let Decided { before, map } = self.decide_map(decider, change).await?;
        Ok(self.spread_map(before, map, but))
    }

    /// As [`Self::change_map`], of a server that takes the map into use itself.
    pub(super) async fn decide_map(
        self: &Arc<Self>,
        decider: As,
        change: impl Fn(&mut ShardMap) -> Result<bool, Failure>,
    ) -> Result<Decided, Failure> {
        let give_up_ns = self.io.mono_ns() + PROPOSE_TIME_MAX.as_nanos() as u64;
        loop {
            let Some(Member { formed, driver, .. }) = self.group.member() else { return Err(self.no_keeper()) };
            if !driver.leads() && !driver.stand().await {
                // Another one may stand, or lead.
                if self.io.mono_ns() >= give_up_ns || driver.leader().is_none() {
                    return Err(self.no_majority(Code::TimedOut));
                }
                continue;
            }
            let before = Mutex::new(None);
            let make = |value: &[u8]| {
                let known =
                    ShardMap::from_stored(value).map_err(|_| Unwanted::Refused(Failure::from(Code::Internal)))?;
                if known.group.formed != formed {
                    return Err(Unwanted::OtherGroup(Arc::new(known)));
                }
                if decider == As::Keeper && known.keeper != self.slot() {
                    return Err(Unwanted::OtherKeeper(Arc::new(known)));
                }
                let mut map = ShardMap { epoch: MapEpoch(known.epoch.0 + 1), ..known.clone() };
                let has_changed = change(&mut map).map_err(Unwanted::Refused)?;
                *before.lock() = Some(known);
                if !has_changed {
                    *before.lock() = None;
                    return Ok(None);
                }
                map.form_group(self.persistence.is_some());
                Ok(Some(map.stored()))
            };
            let decided = if self.config.switches.is(Sabotage::DecideAlone) {
                make(&driver.value()).map(|made| made.unwrap_or_else(|| driver.value())).map_err(Undecided::Unwanted)
            } else {
                driver.decide(make).await
            };
            match decided {
                Ok(value) => {
                    let map = ShardMap::from_stored(&value).map_err(|_| Failure::from(Code::Internal))?;
                    let before = before.into_inner();
                    if let Some(before) = before.as_ref().filter(|_| decider == As::Keeper) {
                        self.keeper.note_decided(before.epoch, map.epoch);
                    }
                    return Ok(Decided { before, map: Arc::new(map) });
                }
                Err(Undecided::Unwanted(Unwanted::OtherGroup(map))) => {
                    self.learn(map);
                    if self.comes_back() {
                        return Err(self.no_keeper());
                    }
                    self.take_part_durably().await?;
                }
                Err(Undecided::Unwanted(Unwanted::OtherKeeper(map))) => {
                    self.learn(map);
                    return Err(self.no_keeper());
                }
                Err(Undecided::Unwanted(Unwanted::Refused(failure))) => return Err(failure),
                Err(Undecided::NotLeading(_)) if self.io.mono_ns() < give_up_ns => {}
                Err(Undecided::NotLeading(_)) => return Err(self.no_majority(Code::TimedOut)),
                Err(Undecided::Silence | Undecided::NotStored) => return Err(self.no_majority(Code::UnknownOutcome)),
            }
        }
    }

    /// Takes a decided map into use, and tells all servers but one, if it is not the one `before`.
    fn spread_map(
        self: &Arc<Self>,
        before: Option<ShardMap>,
        map: Arc<ShardMap>,
        but: Option<ServerIndex>,
    ) -> Arc<ShardMap> {
        self.install_map(map.clone());
        // One that leaves by this map is told so; those that have left before are told nothing, but by a new keeper, since the one
        // before may have ended before it told them. One that has ended is told when it comes back.
        let is_told = |other: &ServerIndex| {
            let has_ended = map.server(*other).is_some_and(|info| info.ended);
            let had_left = before.as_ref().is_none_or(|before| before.has_left(*other) && before.keeper == map.keeper);
            Some(*other) != but && *other != self.slot() && !had_left && !has_ended
        };
        for other in map.indexes().filter(is_told) {
            self.persist(other, ShardId(0), Request::MapPush { map: map.clone() });
        }
        map
    }

    /// A map that was decided: to be taken into use, or noted by a server that comes back and is in none yet.
    pub(super) fn learn(self: &Arc<Self>, map: Arc<ShardMap>) {
        match self.comes_back() {
            true => self.group.hear(map),
            false => self.install_map(map),
        }
    }

    /// Whether this server comes back, and is in no map yet.
    pub(super) fn comes_back(&self) -> bool {
        self.config.comeback.is_some() && self.map_epoch_now() == MapEpoch(0)
    }

    /// The newest map that this server knows.
    fn known_map(&self) -> Arc<ShardMap> {
        self.group.heard().filter(|_| self.comes_back()).unwrap_or_else(|| self.map())
    }

    /// Sends a message of its member, of a server that comes back. Whether it has arrived.
    async fn send_as_heard(self: &Arc<Self>, to: ServerIndex, message: &Request) -> bool {
        match self.ask_as_heard(to, message, MESSAGE_TIME_MAX).await {
            Ok(_) => true,
            Err(Failure { refusal: Some(Refusal::MapStale { .. }), .. }) => {
                if let Ok(Reply::Map { map }) = self.ask_as_heard(to, &Request::GetMap, MESSAGE_TIME_MAX).await {
                    self.learn(map);
                }
                false
            }
            Err(failure) if failure.code == Code::Busy => {
                // It has not heard of this group: who has decided on it has died before it could tell.
                let map = Request::MapPush { map: self.known_map() };
                drop(self.ask_as_heard(to, &map, MESSAGE_TIME_MAX).await);
                false
            }
            Err(_) => false,
        }
    }

    /// Asks a server by the map that this one has heard of.
    async fn ask_as_heard(&self, server: ServerIndex, request: &Request, deadline: Duration) -> Result<Reply, Failure> {
        let map = self.known_map();
        let to = Target::of(&map, server).ok_or(Code::Internal)?;
        let identity = Identity::default();
        self.peers.ask(without_map(&to, &identity, request, deadline)).await.map(|answer| answer.reply)
    }

    /// A message of another member.
    pub(crate) fn group_message(self: &Arc<Self>, formed: MapEpoch, bytes: &Blob) -> Attempt<Output> {
        let map = self.known_map();
        if map.group.formed > formed {
            return Err(Failure::refused(Refusal::MapStale { epoch: map.epoch }).into());
        }
        let Some(member) = self.group.member().filter(|member| member.formed == formed) else {
            // It is sent again until the map has come.
            return Err(
                Failure::new(Code::Busy, format!("{} does not know of this keeper group yet", self.who())).into()
            );
        };
        let bytes = bytes.clone();
        then(async move {
            member.driver.receive(&bytes.0).await;
            Ok(Reply::Done)
        })
    }

    /// A newer map is in use: if it has formed another group, this server is a member of that or of none.
    pub(super) fn take_part(self: &Arc<Self>) {
        if self.persistence.is_some() {
            let server = self.clone();
            // Who decides something waits for it.
            self.io.spawn(async move { drop(server.take_part_durably().await) });
            return;
        }
        // Not the one that the thread has put into use: there may be a newer one by now, and another group.
        let (map, me) = (self.map(), self.session());
        self.group.take_part(map.group.formed, || {
            map.group.members.iter().find(|member| member.session == me)?;
            Some(self.member(&map.group, id_of(me), map.stored()))
        });
    }

    /// A founder of a group.
    fn member(&self, group: &KeeperGroup, me: MemberId, value: Vec<u8>) -> Member {
        let ids: Vec<MemberId> = group.members.iter().map(|member| id_of(member.session)).collect();
        self.member_with(group, Group::found(me, &ids, value))
    }

    fn member_with(&self, group: &KeeperGroup, member: Group) -> Member {
        let outside: Arc<dyn Outside> = Arc::new(Door { server: self.me.clone(), group: group.clone() });
        let driver = Driver::new(self.io.clone(), member, Arc::downgrade(&outside));
        Member { formed: group.formed, driver, _outside: outside }
    }

    /// The same on a volume in directories, when this server has begun its start or its life: resolves when it is written down that this
    /// server is a member of the newest group. Until then it answers no other member. Nothing on a volume in memory.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn take_part_durably(self: &Arc<Self>) -> Result<(), Failure> {
        if !self.persistence.as_ref().is_some_and(Persistence::has_begun) {
            return Ok(());
        }
        let _turn = self.group.changing().await;
        let map = self.map();
        let life = map.server(self.slot()).map_or(0, |info| info.life);
        let me = GroupMember::lasting(self.slot(), life);
        if self.group.member().is_some_and(|member| member.formed >= map.group.formed) {
            return Ok(());
        }
        if !map.group.members.contains(&me) {
            self.group.is_now(None);
            return self.keep_no_promise(&map).await;
        }
        let id = id_of(me.session);
        let ids: Vec<MemberId> = map.group.members.iter().map(|member| id_of(member.session)).collect();
        let group = Group::found(id, &ids, map.stored());
        if self.keep_promise(map.group.formed, group.stored()).await? {
            self.group.is_now(Some(self.member_with(&map.group, group)));
        }
        Ok(())
    }

    /// A server that comes back is the member of its earlier life, with the promises of that, in the newest group that it has heard of, until it
    /// is in the map. `false`: it is none.
    ///
    /// # Errors
    /// The disk's.
    pub(super) async fn be_earlier_member(self: &Arc<Self>) -> Result<bool, Failure> {
        let Some((persistence, map)) = self.persistence.as_ref().zip(self.group.heard()) else { return Ok(false) };
        let _turn = self.group.changing().await;
        let (group, formed) = (&map.group, map.group.formed);
        if self.group.member().is_some_and(|member| member.formed == formed) {
            return Ok(true);
        }
        // Without the file it may have promised anything.
        let (Some(member), Some(file)) = (group.member(self.slot()), persistence.promises_of_this_start()) else {
            self.group.is_now(None);
            return Ok(false);
        };
        let forgets = self.config.switches.is(Sabotage::ForgetPromises);
        let is_newer = file.formed < formed;
        let found = if is_newer || forgets {
            // It had not heard of this group when it died, and has promised nothing as a member of it.
            let ids: Vec<MemberId> = group.members.iter().map(|member| id_of(member.session)).collect();
            let found = Group::found(id_of(member.session), &ids, map.stored());
            if !self.keep_promise(formed, found.stored()).await? {
                return Ok(false);
            }
            found
        } else {
            Group::restored(&file.log).map_err(|why| Failure::new(Code::Lost, why.to_string()))?
        };
        self.group.is_now(Some(self.member_with(group, found)));
        Ok(true)
    }

    /// The refusal of one that is not the keeper, or is not any more.
    pub(super) fn no_keeper(&self) -> Failure {
        let failure = Failure::refused(Refusal::MapStale { epoch: self.map_epoch_now() });
        failure.during(format!("{} does not keep the map", self.who()))
    }

    /// The error when too few members answer.
    pub(super) fn no_majority(&self, code: Code) -> Failure {
        let map = self.known_map();
        let member = |server: ServerIndex| {
            let is_gone = map.is_gone(server) || self.has_seen_end(server);
            format!("{server}{}", if is_gone { " (ended)" } else { "" })
        };
        let members: Vec<String> = map.group.members.iter().map(|found| member(found.server)).collect();
        let detail = format!(
            "the keeper group has not agreed within {} s: {} of its {} members (servers {}) have to answer; until then the map stays as it \
             is: no directory is renamed if the keeper is gone, and no server comes, goes, or is noted as ended",
            ANSWER_TIME_MAX.as_secs(),
            map.group.majority(),
            members.len(),
            members.join(", ")
        );
        Failure::new(code, detail)
    }
}
