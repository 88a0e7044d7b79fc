//! The keeper's part: it proposes what the shard map is to be, raises the namespace epoch and hands out the token for moving directories.
//! The first server, of those that have slots the one with the lowest number, makes the first map, when all servers are there.

use crate::membership::peers::without_map;
use crate::membership::state::keeper::{Living, Taken};
use crate::membership::takeover::end_in;
use crate::persistence::state::persistence::Persistence;
use crate::persistence::state::promises::placement;
use crate::persistence::state::starts::Told;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::{Attempt, Stop};
use crate::work::{Output, then};
use aze_proto::place::{Agreed, KeeperGroup, ServerInfo};
use aze_proto::slots::SlotTable;
use aze_proto::{
    Code, Failure, Identity, Incarnation, MapEpoch, Reply, Request, ServerIndex, SessionId, ShardMap, TxId,
};
use aze_rpc::Target;
use aze_store::disk::placement::Placement;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a server may take that has joined a start to say to which map it has agreed.
const AGREED_TIME_MAX: Duration = Duration::from_secs(20);

fn no_such_place(slot: ServerIndex, places: usize) -> Failure {
    Failure::new(Code::Invalid, format!("the volume has {places} servers, so there is no server {slot}"))
}

impl Server {
    /// A server starts. The first time all are there, the map is made; later a server that comes
    /// back empty gets a new incarnation, and everybody a new map.
    pub(crate) fn join(self: &Arc<Self>, slot: ServerIndex, info: &ServerInfo) -> Attempt<Output> {
        let known = self.map();
        if known.epoch > MapEpoch(0) {
            return self.join_again_here(&known, slot, info);
        }
        if self.config.without.contains(&slot) {
            let detail = format!(
                "server {slot} is left out of this start of the volume: it takes part in the next one of all servers"
            );
            return Err(Failure::new(Code::Invalid, detail).into());
        }
        let mut joined = self.keeper.joined();
        if joined.has_left(slot) {
            let detail =
                format!("server {slot} has left the volume: what is in its directory is no part of it any more");
            return Err(Failure::new(Code::Invalid, detail).into());
        }
        if joined.put(slot, info).is_none() {
            return Err(no_such_place(slot, joined.places()).into());
        }
        let Some(servers) = joined.all() else {
            let complete = joined.wait();
            let server = self.clone();
            return then(async move {
                complete
                    .await
                    .map_err(|_| Failure::new(Code::Stopping, "the volume stops before all its servers were there"))?;
                Ok(Reply::Map { map: server.map() })
            });
        };
        if self.persistence.is_some() {
            let server = self.clone();
            return then(async move { server.begin_again(servers).await });
        }
        let map = Arc::new(self.first_map(servers, None)?);
        self.install_map(map.clone());
        joined.wake();
        Ok(Reply::Map { map }.into())
    }

    /// All servers of a volume in directories are there: it goes on with the newest map to which any of them has agreed.
    async fn begin_again(self: &Arc<Self>, servers: Vec<ServerInfo>) -> Result<Reply, Failure> {
        let _turn = self.keeper.beginning().await;
        if self.map_epoch_now() == MapEpoch(0) {
            let agreed = self.newest_agreed(&servers).await?;
            let map = self.first_map(servers, agreed.as_ref())?;
            self.take_kept(&map)?;
            self.install_map(Arc::new(map));
        }
        self.keeper.joined().wake();
        Ok(Reply::Map { map: self.map() })
    }

    /// The newest map to which the members of a group of the earlier start have agreed. Since all servers say theirs, it is at least as new as
    /// every decision. If some servers are left out, a majority of those is to be there that have decided last.
    async fn newest_agreed(self: &Arc<Self>, servers: &[ServerInfo]) -> Result<Option<Agreed>, Failure> {
        let Some(persistence) = &self.persistence else { return Ok(None) };
        let own = persistence.promises.agreed().cloned();
        if self.config.switches.is(Sabotage::StartByFirst) {
            return Ok(own);
        }
        let is_asked = |at: usize, info: &ServerInfo| at != usize::from(self.slot().0) && !info.left && !info.ended;
        let others = servers.iter().enumerate().filter(|(at, info)| is_asked(*at, info));
        let answers = join_all(others.map(|(at, info)| self.ask_agreed(ServerIndex(at as u16), info))).await;
        let mut all: Vec<(Agreed, ServerIndex)> = own.clone().map(|agreed| (agreed, self.slot())).into_iter().collect();
        let mut starts = Vec::new();
        for answer in answers {
            let Some((agreed, told)) = answer? else { continue };
            all.extend(agreed.map(|agreed| (agreed, told.server)));
            starts.push(told);
        }
        let newest = all.iter().max_by_key(|(agreed, _)| agreed.order()).cloned();
        if !self.config.without.is_empty() && !self.config.switches.is(Sabotage::StartWithoutMajority) {
            self.check_majority(newest.as_ref().map(|(agreed, _)| agreed), &all)?;
        }
        self.catch_up_starts(&starts)?;
        let Some((agreed, told_by)) = newest else { return Ok(None) };
        let (known, now) = (self.parts_by(own.as_ref()), self.parts_by(Some(&agreed)));
        if known != now {
            self.take_over_agreed(&agreed).await?;
            let named = |servers: &BTreeSet<ServerIndex>| {
                servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            let detail = format!(
                "by the directory of server {0} the volume consists of servers {1}, and by that of server {told_by}, which is newer, of servers {2}: \
                 server {0} has written that down: start the volume once more",
                self.slot(),
                named(&known),
                named(&now)
            );
            return Err(Failure::new(Code::Invalid, detail));
        }
        Ok(Some(agreed))
    }

    /// The servers of a volume in directories: those that have slots, by a map.
    pub(super) fn parts_by(&self, agreed: Option<&Agreed>) -> BTreeSet<ServerIndex> {
        let file = self.persistence.as_ref().and_then(|persistence| persistence.placement.as_ref());
        let made_with = || (0..self.config.servers).map(ServerIndex).collect();
        placement(agreed, file, self.config.servers).map_or_else(made_with, |placement| placement.members())
    }

    /// Whether a start may go on without some servers: a majority of the group that has decided last is there, so that no others start, or
    /// have started since, without these.
    ///
    /// # Errors
    /// Which servers decided last, and which of them are missing.
    fn check_majority(&self, newest: Option<&Agreed>, all: &[(Agreed, ServerIndex)]) -> Result<(), Failure> {
        let named = |servers: &[ServerIndex]| servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let without = named(&self.config.without);
        let Some(newest) = newest else {
            let detail = format!(
                "the volume does not start without servers {without}: its directories do not say who decides about it, since all servers \
                 have not started together under this version"
            );
            return Err(Failure::new(Code::Invalid, detail));
        };
        let (group, start) = (&newest.map.group, newest.start);
        // A file of an earlier start is that of a server which was left out of the last one.
        let is_there = |server: ServerIndex| all.iter().any(|(agreed, by)| *by == server && agreed.start == start);
        let members: Vec<ServerIndex> = group.members.iter().map(|member| member.server).collect();
        let (there, missing): (Vec<ServerIndex>, Vec<ServerIndex>) =
            members.iter().copied().partition(|server| is_there(*server));
        if !members.is_empty() && there.len() >= group.majority() {
            return Ok(());
        }
        let detail = format!(
            "the volume does not start without servers {without}: servers {} decided about it when it ran last, and {} of them have to be \
             there, of which servers {} are missing; those could have started it without these",
            named(&members),
            group.majority(),
            named(&missing)
        );
        Err(Failure::new(Code::Invalid, detail))
    }

    /// Asks a server that is about to be in the first map to which map it has agreed, and which starts it knows; `None` if its directory is of
    /// another volume, or empty.
    async fn ask_agreed(
        &self,
        server: ServerIndex,
        info: &ServerInfo,
    ) -> Result<Option<(Option<Agreed>, Told)>, Failure> {
        let addresses = info.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        // By the words that the map will have: for other ones the connection would be given up.
        let life = (MapEpoch::first_of(self.config.starts), Incarnation(0));
        let to = Target { index: server, host: info.host.clone(), addresses, life };
        let identity = Identity::default();
        let asked = self.peers.ask(without_map(&to, &identity, &Request::GroupKept, AGREED_TIME_MAX)).await;
        let during = |failure: Failure| failure.during("asking every server which map was decided last");
        let Reply::GroupKeptIs { volume, agreed, begun, complete, away } = asked.map_err(during)?.reply else {
            return Err(Failure::new(Code::Malformed, "GroupKept was answered with something else"));
        };
        let own = self.persistence.as_ref().filter(|persistence| !persistence.is_new).map(Persistence::volume);
        // One whose directory is of another volume says so itself, with its path, when it looks at the number of this one.
        let is_foreign = own.zip(volume).is_some_and(|(own, theirs)| own != theirs);
        if own.is_some() && volume.is_none() {
            // Before anything is written of this start: else it would have to be completed by the servers of it.
            let detail = format!(
                "the directory of server {server} is empty, and that of server {} has a part of a volume that was used: give the directory that \
                 server {server} had, or, if that is lost, start the others: aze restart --without {server}; or begin with empty ones everywhere",
                self.slot()
            );
            return Err(Failure::new(Code::Lost, detail));
        }
        Ok(volume
            .filter(|_| !is_foreign)
            .map(|_| (agreed.map(|agreed| *agreed), Told { server, begun, complete, away })))
    }

    /// The same when the volume is in use.
    fn join_again_here(self: &Arc<Self>, map: &Arc<ShardMap>, slot: ServerIndex, info: &ServerInfo) -> Attempt<Output> {
        let Some(before) = map.server(slot) else {
            return Err(no_such_place(slot, map.servers.len()).into());
        };
        if info.life > 0 {
            return self.admit_life(slot, info.clone());
        }
        match before.session == info.session {
            true => Ok(Reply::Map { map: map.clone() }.into()),
            false => self.readmit(slot, info.clone()),
        }
    }

    fn first_map(&self, mut servers: Vec<ServerInfo>, agreed: Option<&Agreed>) -> Result<ShardMap, Failure> {
        let epoch = MapEpoch::first_of(self.config.starts);
        for info in &mut servers {
            // Nothing was lost since the volume was made.
            (info.incarnation, info.since) = (Incarnation(0), MapEpoch::first_of(0));
            (info.life, info.began) = (0, epoch);
        }
        let file = self.persistence.as_ref().and_then(|persistence| persistence.placement.as_ref());
        let slots = match placement(agreed, file, self.config.servers) {
            Some(Placement { servers: numbers, slots }) => {
                // One was about to join, and has nothing.
                servers.resize_with(servers.len().max(usize::from(numbers)), ServerInfo::of_none);
                SlotTable::recorded(self.config.shards, &slots)
            }
            None if self.persistence.is_some() => {
                SlotTable::begun(self.config.shards, self.config.servers, self.slots())
            }
            None => SlotTable::placed(self.config.placement, self.config.shards, self.config.servers),
        };
        let slots = slots.map_err(|why| Failure::new(Code::Invalid, why))?;
        let mut map = ShardMap {
            epoch,
            keeper: self.slot(),
            group: KeeperGroup::default(),
            chunk_bits: self.config.chunk_bits,
            owner_uid: self.config.owner_uid,
            owner_gid: self.config.owner_gid,
            volume: self.config.volume.clone(),
            servers,
            slots,
        };
        map.form_group(self.persistence.is_some());
        Ok(map)
    }

    /// A server that had been in the map starts again, empty.
    fn readmit(self: &Arc<Self>, slot: ServerIndex, info: ServerInfo) -> Attempt<Output> {
        if self.map().has_left(slot) {
            let detail = format!("server {slot} has left the volume: its place stays empty");
            return Err(Failure::new(Code::Invalid, detail).into());
        }
        if self.persistence.is_some() {
            let detail = format!(
                "server {slot} was started as if the volume were, which is in use: bring it back with 'aze restart --server {slot}'"
            );
            return Err(Failure::new(Code::Invalid, detail).into());
        }
        let server = self.clone();
        then(async move {
            let map = server.change_map(Some(slot), |map| {
                let epoch = map.epoch;
                let Some(before) = map.server(slot).filter(|before| before.session != info.session) else {
                    // A copy of a request that was answered, or is about to be.
                    return Ok(false);
                };
                let incarnation = Incarnation(before.incarnation.0 + 1);
                map.slots.begin_lives(slot).map_err(|why| {
                    let detail = format!(
                        "server {slot} cannot come back empty to this volume once more: {why}; copy out what the other servers \
                         have, and start a new volume"
                    );
                    Failure::new(Code::Limit, detail)
                })?;
                map.servers[usize::from(slot.0)] = ServerInfo { incarnation, since: epoch, began: epoch, ..info.clone() };
                Ok(true)
            });
            Ok(Reply::Map { map: map.await? })
        })
    }

    /// The process of a server has ended, as another process of its machine has seen: servers no longer wait for it
    /// where its answer would only say that it has heard of something.
    pub(crate) fn server_ended(
        self: &Arc<Self>,
        server: ServerIndex,
        began: MapEpoch,
        incarnation: Incarnation,
    ) -> Attempt<Output> {
        let is_meant = move |map: &ShardMap| {
            map.server(server)
                .is_some_and(|info| info.began == began && info.incarnation == incarnation && !info.ended && !info.left)
        };
        if !is_meant(&self.map()) {
            return Ok(Reply::Done.into());
        }
        let this = self.clone();
        then(async move {
            let noted = this.change_map(Some(server), |map| {
                let is_meant = is_meant(map);
                if is_meant {
                    end_in(map, server);
                }
                Ok(is_meant)
            });
            noted.await.map(|_| Reply::Done)
        })
    }

    pub(crate) fn take_token(self: &Arc<Self>, tx: TxId, sender: SessionId) -> Attempt<Output> {
        if let Some(away) = self.left_out().first().filter(|_| !self.config.switches.is(Sabotage::MoveWithout)) {
            let detail = format!(
                "directories do not move into others as long as server {away} is left out: it may have been moving one when it ended"
            );
            return Err(Failure::new(Code::Unreachable, detail).into());
        }
        if !self.keeper.has_heard() {
            let server = self.clone();
            return then(async move {
                server.hear_all().await?;
                match server.take_token(tx, sender) {
                    Ok(Output::Reply(reply)) => Ok(reply),
                    Ok(Output::Then(rest)) => rest.await,
                    Ok(Output::Sent | Output::Contents(_)) | Err(Stop::Wait(_)) => Err(Failure::from(Code::Internal)),
                    Err(Stop::Fail(failure)) => Err(failure),
                }
            });
        }
        let over = || Failure::new(Code::Replayed, "the transaction is over");
        let by = self.server_in_life(sender);
        let mine = match self.keeper.take_token(tx, by, self.io.mono_ns(), self.awaits()) {
            Taken::Now => return Ok(Reply::Done.into()),
            Taken::After(mine) => mine,
            Taken::Over => return Err(over().into()),
        };
        let server = self.clone();
        then(async move {
            let mut mine = mine;
            let until = server.io.mono_ns() + server.config.deadline.as_nanos() as u64;
            loop {
                let patience = Duration::from_nanos(until.saturating_sub(server.io.mono_ns()));
                let waited = server.io.timeout(patience, mine).await;
                if server.map().keeper != server.slot() {
                    return Err(server.no_keeper());
                }
                let Some(Ok(())) = waited else {
                    return Err(Failure::new(Code::Busy, "another directory is being moved; try again"));
                };
                match server.keeper.take_token(tx, by, server.io.mono_ns(), server.awaits()) {
                    Taken::Now => return Ok(Reply::Done),
                    Taken::After(again) => mine = again,
                    Taken::Over => return Err(over()),
                }
            }
        })
    }

    /// Whether, by the map as it is now, the process of a server has ended, and the next one brings its unfinished work
    /// to an end.
    fn awaits(&self) -> impl Fn(Living) -> bool {
        // Looked at in advance: who puts a map into use locks it, and then the token.
        let (map, is_persistent) = (self.map(), self.persistence.is_some());
        move |holder| {
            let is_another = |info: &ServerInfo| !info.left && (info.ended || info.session != holder.session);
            is_persistent && map.server(holder.server).is_some_and(is_another)
        }
    }

    /// A transaction has no use for the token any more. [`TxId`] 0: none of an earlier life of the sender has.
    pub(crate) fn drop_token(&self, tx: TxId, sender: SessionId) -> Reply {
        match self.server_in_life(sender).filter(|_| tx == TxId(0)) {
            Some(now) => self.keeper.drop_token_of_earlier_life(now, self.io.mono_ns()),
            None => self.keeper.drop_token(tx, self.io.mono_ns()),
        }
        Reply::Done
    }

    /// The server of a session.
    pub(crate) fn server_of_session(&self, session: SessionId) -> Option<ServerIndex> {
        self.server_in_life(session).map(|living| living.server)
    }

    fn server_in_life(&self, session: SessionId) -> Option<Living> {
        let map = self.map();
        let server = map.indexes().find(|index| map.server(*index).is_some_and(|info| info.session == session))?;
        Some(Living { server, session })
    }
}
