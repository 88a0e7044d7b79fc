//! The keeper's part: the first server decides on the shard map, raises the namespace epoch and
//! hands out the token for moving directories.

use crate::membership::state::keeper::{Living, Taken};
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_proto::place::ServerInfo;
use aze_proto::slots::SlotTable;
use aze_proto::{
    Code, Failure, Incarnation, Ino, MapEpoch, NamespaceEpoch, Reply, Request, ServerIndex, SessionId, ShardMap, TxId,
};
use std::sync::Arc;
use std::time::Duration;

/// How long one server may take to confirm a new namespace epoch. Shorter than the time that servers give the keeper, so
/// that the refusal names the silent server and not the keeper.
const CONFIRM_TIME_MAX: Duration = Duration::from_secs(2);

impl Server {
    /// A server starts. The first time all are there, the map is made; later a server that comes
    /// back empty gets a new incarnation, and everybody a new map.
    pub(crate) fn join(self: &Arc<Self>, slot: ServerIndex, info: &ServerInfo) -> Attempt<Output> {
        let known = self.map();
        let mut joined = self.keeper.joined();
        if joined.has_left(slot) && known.epoch == MapEpoch(0) {
            let detail =
                format!("server {slot} has left the volume: what is in its directory is no part of it any more");
            return Err(Failure::new(Code::Invalid, detail).into());
        }
        let Some(before) = joined.put(slot, info) else {
            return Err(Failure::new(
                Code::Invalid,
                format!("the volume has {} servers, so there is no server {slot}", joined.places()),
            )
            .into());
        };
        let same = before.is_some_and(|before| before.pid == info.pid && before.addresses == info.addresses);
        if known.epoch > MapEpoch(0) {
            drop(joined);
            if info.life > 0 {
                return self.admit_life(slot, info.clone());
            }
            return if same {
                Ok(Reply::Map { map: (*known).clone() }.into())
            } else {
                self.readmit(slot, info.clone())
            };
        }
        let Some(servers) = joined.all() else {
            let complete = joined.wait();
            let server = self.clone();
            return then(async move {
                complete
                    .await
                    .map_err(|_| Failure::new(Code::Stopping, "the volume stops before all its servers were there"))?;
                Ok(Reply::Map { map: (*server.map()).clone() })
            });
        };
        let map = self.first_map(servers)?;
        self.take_kept(&map)?;
        self.install_map(Arc::new(map.clone()));
        joined.wake();
        Ok(Reply::Map { map }.into())
    }

    fn first_map(&self, mut servers: Vec<ServerInfo>) -> Result<ShardMap, Failure> {
        let epoch = MapEpoch::first_of(self.config.starts);
        for info in &mut servers {
            // Nothing was lost since the volume was made.
            (info.incarnation, info.since) = (Incarnation(0), MapEpoch::first_of(0));
            (info.life, info.began) = (0, epoch);
        }
        let placement = self.persistence.as_ref().and_then(|persistence| persistence.placement.as_ref());
        let slots = match placement {
            Some(placement) => SlotTable::recorded(self.config.shards, &placement.slots),
            None => SlotTable::placed(self.config.placement, self.config.shards, self.config.servers),
        };
        let slots = slots.map_err(|why| Failure::new(Code::Invalid, why))?;
        Ok(ShardMap {
            epoch,
            keeper: self.slot(),
            chunk_bits: self.config.chunk_bits,
            owner_uid: self.config.owner_uid,
            owner_gid: self.config.owner_gid,
            volume: self.config.volume.clone(),
            servers,
            slots,
        })
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
        // One change of the map at a time.
        let _joined = self.keeper.joined();
        let mut map = (*self.map()).clone();
        let before = &map.servers[usize::from(slot.0)];
        let incarnation = Incarnation(before.incarnation.0 + 1);
        map.slots.begin_lives(slot).map_err(|why| {
            let detail = format!(
                "server {slot} cannot come back empty to this volume once more: {why}; copy out what the other servers \
                 have, and start a new volume"
            );
            Failure::new(Code::Limit, detail)
        })?;
        map.epoch = MapEpoch(map.epoch.0 + 1);
        map.servers[usize::from(slot.0)] = ServerInfo { incarnation, since: map.epoch, began: map.epoch, ..info };
        self.spread_map(&map, slot);
        Ok(Reply::Map { map }.into())
    }

    /// The process of a server has ended, as another process of its machine has seen: servers no longer wait for it
    /// where its answer would only say that it has heard of something.
    pub(crate) fn server_ended(
        self: &Arc<Self>,
        server: ServerIndex,
        began: MapEpoch,
        incarnation: Incarnation,
    ) -> Attempt<Output> {
        // One change of the map at a time.
        let _joined = self.keeper.joined();
        let mut map = (*self.map()).clone();
        let epoch = MapEpoch(map.epoch.0 + 1);
        let is_meant = |info: &&mut ServerInfo| {
            info.began == began && info.incarnation == incarnation && !info.ended && !info.left
        };
        if let Some(info) = map.servers.get_mut(usize::from(server.0)).filter(is_meant) {
            // One that has just joined and has nothing takes nothing along.
            match info.joining && map.slots.served_by(server).next().is_none() {
                true => info.left = true,
                false => info.ended = true,
            }
            map.epoch = epoch;
            self.spread_map(&map, server);
        }
        Ok(Reply::Done.into())
    }

    /// Takes a new map into use, and tells all servers but one.
    pub(super) fn spread_map(self: &Arc<Self>, map: &ShardMap, but: ServerIndex) {
        let before = self.map();
        self.install_map(Arc::new(map.clone()));
        // One that leaves by this map is told so; those that have left before are told nothing.
        for other in map.indexes().filter(|other| *other != but && *other != self.slot() && !before.has_left(*other)) {
            self.persist(other, aze_proto::ShardId(0), Request::MapPush { map: map.clone() });
        }
    }

    /// A directory is about to be renamed or to lose rights: every server must know before it is. When one does not
    /// confirm it the request is refused, since that server may still be serving clients by the old path.
    pub(crate) fn raise_epoch(self: &Arc<Self>, dir: Ino) -> Attempt<Output> {
        let server = self.clone();
        let refused_before = self.keeper.refusals();
        then(async move {
            let mut last = server.keeper.raising().await;
            // A raise that waited while another one was refused is refused, too: if each waited for the silent server
            // anew, the later ones would take longer than their servers wait for the keeper.
            if let Some(failure) = server.keeper.refused_since(refused_before) {
                return Err(failure);
            }
            *last = NamespaceEpoch(last.0 + 1);
            let epoch = *last;
            let servers = server.living();
            let push = Request::EpochPush { epoch, dir };
            let time = CONFIRM_TIME_MAX.min(server.config.deadline);
            for (other, answer) in server.ask_each_within(&servers, &push, time).await {
                if let Err(failure) = answer {
                    if server.map().is_gone(other) {
                        continue;
                    }
                    let failure = failure.during(format!(
                        "nothing is changed, since server {other} has not confirmed that paths through a directory change"
                    ));
                    server.keeper.refuse(&failure);
                    return Err(failure);
                }
            }
            Ok(Reply::EpochIs { epoch })
        })
    }

    pub(crate) fn take_token(self: &Arc<Self>, tx: TxId, sender: SessionId) -> Attempt<Output> {
        let over = || Failure::new(Code::Replayed, "the transaction is over");
        let by = self.server_in_life(sender);
        let mine = match self.keeper.take_token(tx, by, self.io.mono_ns()) {
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
                let Some(Ok(())) = server.io.timeout(patience, mine).await else {
                    return Err(Failure::new(Code::Busy, "another directory is being moved; try again"));
                };
                match server.keeper.take_token(tx, by, server.io.mono_ns()) {
                    Taken::Now => return Ok(Reply::Done),
                    Taken::After(again) => mine = again,
                    Taken::Over => return Err(over()),
                }
            }
        })
    }

    /// A transaction has no use for the token any more. [`TxId`] 0: none of an earlier life of the sender has.
    pub(crate) fn drop_token(&self, tx: TxId, sender: SessionId) -> Reply {
        match self.server_in_life(sender).filter(|_| tx == TxId(0)) {
            Some(now) => self.keeper.drop_token_of_earlier_life(now),
            None => self.keeper.drop_token(tx),
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
