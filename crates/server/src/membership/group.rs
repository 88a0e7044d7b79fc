//! Decisions about the map: a majority of the keeper group agrees to each.
//!
//! The keeper proposes; `aze-keeper` has the group agree. The members of a group never change: a decision that wants other members
//! forms another group, with the map that it decides as its first, and is the last one of the group before. When the keeper is gone,
//! another member makes itself the keeper by a decision like any other ([`takeover`](super::takeover)).

use crate::membership::state::group::{Member, id_of, server_of};
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_io::sync::Mutex;
use aze_keeper::{ANSWER_TIME_MAX, Driver, Group, MemberId, Outside, Undecided};
use aze_proto::wire::{Blob, Wire};
use aze_proto::{Code, Failure, MapEpoch, Refusal, Reply, Request, ServerIndex, ShardId, ShardMap};
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

/// Why a change is not proposed.
enum Unwanted {
    /// The group has decided on another one.
    OtherGroup(Box<ShardMap>),
    /// This server is not the keeper.
    OtherKeeper(Box<ShardMap>),
    Refused(Failure),
}

/// What a member needs of its server.
struct Door {
    server: Weak<Server>,
    /// The map by which its group was formed.
    first: ShardMap,
}

impl Outside for Door {
    fn send(&self, to: MemberId, message: Vec<u8>) -> BoxFuture<'static, bool> {
        let (Some(server), Some(to)) = (self.server.upgrade(), server_of(&self.first, to)) else {
            return std::future::ready(false).boxed();
        };
        let message = Request::Group { formed: self.first.group.formed, bytes: Blob(message) };
        async move {
            match server.ask_once(to, ShardId(0), &message, MESSAGE_TIME_MAX).await {
                Ok(_) => true,
                // The group has decided on another one.
                Err(Failure { refusal: Some(Refusal::MapStale { .. }), .. }) => {
                    drop(server.refresh_map_from(to).await);
                    false
                }
                Err(failure) if failure.code == Code::Busy => {
                    // The keeper that has decided on this group has died before it could tell.
                    let map = Request::MapPush { map: (*server.map()).clone() };
                    drop(server.ask_once(to, ShardId(0), &map, MESSAGE_TIME_MAX).await);
                    false
                }
                Err(_) => false,
            }
        }
        .boxed()
    }

    fn store(&self, _stored: Vec<u8>) -> BoxFuture<'static, bool> {
        // A process that has ended is no member any more: nothing outlives it.
        std::future::ready(true).boxed()
    }

    fn decided(&self, value: Vec<u8>) {
        if let (Some(server), Ok(map)) = (self.server.upgrade(), ShardMap::from_bytes(&value)) {
            server.install_map(Arc::new(map));
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
                    ShardMap::from_bytes(value).map_err(|_| Unwanted::Refused(Failure::from(Code::Internal)))?;
                if known.group.formed != formed {
                    return Err(Unwanted::OtherGroup(Box::new(known)));
                }
                if decider == As::Keeper && known.keeper != self.slot() {
                    return Err(Unwanted::OtherKeeper(Box::new(known)));
                }
                let mut map = ShardMap { epoch: MapEpoch(known.epoch.0 + 1), ..known.clone() };
                let has_changed = change(&mut map).map_err(Unwanted::Refused)?;
                *before.lock() = Some(known);
                if !has_changed {
                    *before.lock() = None;
                    return Ok(None);
                }
                map.form_group(self.persistence.is_some());
                Ok(Some(map.to_bytes()))
            };
            let decided = if self.config.switches.is(Sabotage::DecideAlone) {
                make(&driver.value()).map(|made| made.unwrap_or_else(|| driver.value())).map_err(Undecided::Unwanted)
            } else {
                driver.decide(make).await
            };
            match decided {
                Ok(value) => {
                    let map = ShardMap::from_bytes(&value).map_err(|_| Failure::from(Code::Internal))?;
                    return Ok(self.spread_map(before.into_inner(), map, but));
                }
                Err(Undecided::Unwanted(Unwanted::OtherGroup(map))) => self.install_map(Arc::from(map)),
                Err(Undecided::Unwanted(Unwanted::OtherKeeper(map))) => {
                    self.install_map(Arc::from(map));
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
        map: ShardMap,
        but: Option<ServerIndex>,
    ) -> Arc<ShardMap> {
        self.install_map(Arc::new(map.clone()));
        // One that leaves by this map is told so; those that have left before are told nothing, and one that has ended when it comes back.
        let is_told = |other: &ServerIndex| {
            let has_ended = map.server(*other).is_some_and(|info| info.ended);
            let had_left = before.as_ref().is_none_or(|before| before.has_left(*other));
            Some(*other) != but && *other != self.slot() && !had_left && !has_ended
        };
        for other in map.indexes().filter(is_told) {
            self.persist(other, ShardId(0), Request::MapPush { map: map.clone() });
        }
        Arc::new(map)
    }

    /// A message of another member.
    pub(crate) fn group_message(self: &Arc<Self>, formed: MapEpoch, bytes: &Blob) -> Attempt<Output> {
        let map = self.map();
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
    pub(super) fn take_part(&self, map: &ShardMap) {
        let me = self.session();
        self.group.take_part(map.group.formed, || {
            let ids: Vec<MemberId> = map.group.members.iter().map(|member| id_of(member.session)).collect();
            map.group.members.iter().find(|member| member.session == me)?;
            let outside: Arc<dyn Outside> = Arc::new(Door { server: self.me.clone(), first: map.clone() });
            let group = Group::found(id_of(me), &ids, map.to_bytes());
            let driver = Driver::new(self.io.clone(), group, Arc::downgrade(&outside));
            Some(Member { formed: map.group.formed, driver, _outside: outside })
        });
    }

    /// The refusal of one that is not the keeper, or is not any more.
    pub(super) fn no_keeper(&self) -> Failure {
        let failure = Failure::refused(Refusal::MapStale { epoch: self.map_epoch_now() });
        failure.during(format!("{} does not keep the map", self.who()))
    }

    /// The error when too few members answer.
    pub(super) fn no_majority(&self, code: Code) -> Failure {
        let map = self.map();
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
