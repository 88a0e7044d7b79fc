//! Taking a slot that another server gives.
//!
//! Pieces that arrive are not served. When all of it is here the homes of directories are told that this server has entries of
//! them; then it waits for the map, and takes the slot into use, or drops it.

use crate::membership::give::count_entries;
use crate::membership::leave::GOING_TIME_MAX;
use crate::membership::state::moving::{Arriving, Brought, Pending, Phase, Refused, Sending};
use crate::membership::state::pieces::Piece;
use crate::persistence::state::persistence::{Persistence, disk_failure};
use crate::persistence::state::record::Step;
use crate::sabotage::Sabotage;
use crate::shards::{Holders, ShardCell};
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_proto::limits::SESSION_GRACE_MS;
use aze_proto::sum::piece_sums;
use aze_proto::wire::{Blob, Wire};
use aze_proto::{
    Code, Configuration, Failure, FileKind, Incarnation, Ino, MapEpoch, Refusal, Reply, Request, ServerIndex,
    SessionId, ShardId, ShardMap, SlotIndex,
};
use aze_store::ChunkShard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Refused {
    fn failure(&self, moving: u64) -> Failure {
        match self {
            Refused::Over => Failure::new(Code::Replayed, format!("move {moving} of a slot is over")),
            Refused::Other => Failure::new(Code::Busy, "another slot is moved here"),
        }
    }
}

impl Pending {
    fn part(&mut self, shard: ShardId, server: &Server) -> &mut Arriving {
        self.parts.entry(shard).or_insert_with(|| Arriving {
            names: aze_meta::Shard::new(shard, server.config.shards),
            data: ChunkShard::new(server.store.clone()),
            opens: Vec::new(),
            locks: BTreeMap::new(),
            holders: BTreeMap::new(),
            unnamed: BTreeSet::new(),
        })
    }

    fn take(&mut self, piece: Piece, payload: &[u8], server: &Server) -> Result<(), Failure> {
        match piece {
            Piece::Anew {} => {
                for (shard, part) in &mut self.parts {
                    part.names = aze_meta::Shard::new(*shard, server.config.shards);
                    let sessions: Vec<SessionId> = part.data.outcomes().sessions().collect();
                    sessions.into_iter().for_each(|session| part.data.end_session(session));
                    (part.opens, part.locks, part.holders) = Default::default();
                    part.unnamed.clear();
                }
                self.changed.clear();
                self.finished.clear();
            }
            Piece::Forget { shard, ino } => self.part(shard, server).data.forget(ino),
            Piece::Step { step } => self.take_step(step, payload, server)?,
            Piece::Opens { shard, opens } => self.part(shard, server).opens.extend(opens),
            Piece::Locks { shard, locks } => {
                let part = self.part(shard, server);
                locks.iter().for_each(|row| part.locks.entry(row.ino).or_default().put_back(row));
            }
            Piece::Holders { shard, holders } => {
                let part = self.part(shard, server);
                for row in holders {
                    let of_dir = part.holders.entry(row.dir).or_default();
                    of_dir.0 = row.version;
                    of_dir.1.insert(row.server, row.incarnation);
                }
            }
            Piece::Unnamed { shard, inos } => self.part(shard, server).unnamed.extend(inos),
            Piece::Changed { dirs } => self.changed.extend(dirs.into_iter().map(|row| (row.dir, row.changed))),
            Piece::Dropped { gone, since } => {
                gone.into_iter().for_each(|ino| server.store.take_dropped(ino, None));
                since.into_iter().for_each(|seen| server.store.take_dropped(seen.ino, Some(seen.generation)));
            }
        }
        Ok(())
    }

    fn take_step(&mut self, step: Step, payload: &[u8], server: &Server) -> Result<(), Failure> {
        if let Step::Server { finished, .. } = step {
            self.finished.extend(finished);
            return Ok(());
        }
        let unknown = || Failure::new(Code::Malformed, "a piece of a slot that is none");
        let part = self.part(step.shard().ok_or_else(unknown)?, server);
        match step {
            Step::Data { ino, generation, chunk, offset, sums, .. } => part
                .data
                .bring(ino, generation, chunk, offset, payload, &sums)
                .map_err(|why| Failure::from(why).during(format!("{} takes inode {ino}", server.who())))?,
            Step::Tables { part: rows, .. } => part.names.absorb(rows),
            Step::Generations { seen, .. } => {
                for seen in seen {
                    if part.data.generation_of(seen.ino) != Some(seen.generation) {
                        part.data.set_generation(seen.ino, seen.generation);
                    }
                }
            }
            Step::Outcomes { sessions, .. } => {
                sessions.into_iter().for_each(|row| part.data.put_back(row.into()));
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

impl Server {
    /// A piece of a slot arrives.
    pub(crate) fn take_piece(
        self: &Arc<Self>,
        work: &mut Work,
        moving: u64,
        slot: SlotIndex,
        number: u64,
        piece: &Blob,
        sums: &[u32],
    ) -> Attempt<Output> {
        let from = self.giver(work)?;
        self.is_founded()?;
        let payload = std::mem::take(&mut work.payload).into_bytes();
        if piece_sums(0, &payload) != sums {
            return Err(Failure::new(Code::Corrupt, format!("piece {number} of slot {slot} came damaged")).into());
        }
        let (piece, payload) = match piece.0.is_empty() {
            true => (Piece::from_bytes(&payload), &[][..]),
            false => (Piece::from_bytes(&piece.0), &payload[..]),
        };
        let piece = piece.map_err(|why| Failure::new(Code::Malformed, format!("a piece of slot {slot}: {why}")))?;
        let begins_anew = matches!(piece, Piece::Anew {});
        let taken = self.moving.arriving((moving, from), |pending| {
            let is_new = pending.seen.insert(number);
            if is_new { pending.take(piece, payload, self) } else { Ok(()) }.map(|()| is_new)
        });
        if taken.map_err(|refused| refused.failure(moving))?? && begins_anew {
            let _ending = self.moving.ends();
            let directories = self.moving.begins_anew(moving);
            directories.iter().for_each(|(dir, brought)| self.directories.given(*dir, brought));
            self.resume_reading();
        }
        if self.persistence.is_none() || !self.store.is_memory_scarce() {
            return Ok(Reply::Done.into());
        }
        // What arrives is let go of before more of it is asked for; the rest makes room as after every request.
        let server = self.clone();
        then(async move {
            server.keep_room();
            if let Some(persistence) = &server.persistence {
                let made = server.let_go_of_arriving(persistence).await;
                made.map_err(|error| disk_failure(&persistence.storage.place(), &error))?;
            }
            Ok(Reply::Done)
        })
    }

    /// Refuses to give or take a slot as long as this server's directories do not say whose they are, or the others have not said which of
    /// their entries are in directories that have their homes here.
    pub(super) fn is_founded(&self) -> Result<(), Failure> {
        let is_open = |persistence: &Persistence| persistence.is_open.load(Ordering::SeqCst);
        if self.persistence.as_ref().is_none_or(is_open) {
            return Ok(());
        }
        Err(Failure::new(Code::Busy, format!("{} is still starting", self.who())))
    }

    /// The configuration that a slot will have here, by a map that is as new as the giver's.
    async fn configuration_here(
        self: &Arc<Self>,
        slot: SlotIndex,
        from: ServerIndex,
        known: MapEpoch,
    ) -> Result<Configuration, Failure> {
        if self.map_epoch_now() < known {
            self.refresh_map_from(from).await?;
        }
        let map = self.map();
        match map.slots.get(slot) {
            Some(slot) if slot.primary == from => Ok(Configuration(slot.configuration.0 + 1)),
            _ => Err(Failure::new(
                Code::Busy,
                format!("{}: by its map server {from} does not have slot {slot}", self.who()),
            )),
        }
    }

    fn giver(&self, work: &Work) -> Result<ServerIndex, Failure> {
        let known = self.server_of_session(work.session);
        known.ok_or_else(|| Failure::new(Code::Invalid, "a slot is taken from servers of the volume only"))
    }

    /// All pieces of a slot have arrived.
    pub(crate) fn take_all(
        self: &Arc<Self>,
        work: &Work,
        moving: u64,
        slot: SlotIndex,
        pieces: u64,
        leased: bool,
    ) -> Attempt<Output> {
        let from = self.giver(work)?;
        // Of what the giver was told as the home of directories or a server of entries this one knows nothing.
        if work.header.namespace_epoch > self.namespace_epoch() && !self.config.switches.is(Sabotage::TellBeforeMoves) {
            self.namespace.adopt(work.header.namespace_epoch);
        }
        let sending = Sending { moving, pieces };
        if self.moving.is_taken(sending, leased) {
            // Nothing of it may be refused any more: the giver would go on with the slot.
            return Ok(Reply::Done.into());
        }
        let counted = self.moving.arriving((moving, from), |pending| {
            pending.leased |= leased;
            pending.process = work.session;
            pending.is_all(pieces).then(|| {
                // Renames that are over here may not be so on the disk of the other side.
                self.transactions.remember_committed(&pending.finished);
                self.count_directories(pending)
            })
        });
        let Some(directories) = counted.map_err(|refused| refused.failure(moving))? else {
            return Err(Failure::new(Code::Busy, format!("not all of slot {slot} has arrived")).into());
        };
        self.begin_to_take((moving, slot, from), &directories)?;
        let (server, known) = (self.clone(), work.header.map_epoch);
        then(async move {
            let taken = async {
                let as_of = server.configuration_here(slot, from, known).await.map_err(Err)?;
                server.note_holders_of(directories.into_keys().collect(), slot).await.map_err(Err)?;
                server.keep_arriving(sending, slot, as_of).await
            };
            match taken.await {
                Ok(()) => Ok(Reply::Done),
                Err(Ok(refused)) => Err(refused.failure(moving)),
                Err(Err(failure)) => {
                    // The giver may send it once more.
                    let _ending = server.moving.ends();
                    let directories = server.moving.put_off(sending);
                    directories.iter().for_each(|(dir, brought)| server.directories.given(*dir, brought));
                    server.resume_reading();
                    Err(Failure::new(Code::Busy, failure.detail))
                }
            }
        })
    }

    /// Counts what comes of each directory, until the move ends otherwise.
    fn begin_to_take(
        self: &Arc<Self>,
        (moving, slot, from): (u64, SlotIndex, ServerIndex),
        directories: &BTreeMap<Ino, Brought>,
    ) -> Result<(), Failure> {
        // The word that the move was given up may come at the same moment.
        let _ending = self.moving.ends();
        let begun = self.moving.begin_to_take((moving, slot, from), directories);
        if begun.map_err(|refused| refused.failure(moving))? {
            directories.iter().for_each(|(dir, brought)| self.directories.brought(*dir, brought));
            if !self.config.switches.is(Sabotage::PublishWhileTaking) {
                // A client may hear that the slot is here before this server does: of its names, which it would not find here, nothing
                // is to be said until then.
                self.published.pause();
            }
            self.watch_outcome(moving);
        }
        Ok(())
    }

    /// Clients read again without a request, if no slot is given or taken any more. The callers end a move.
    fn resume_reading(&self) {
        if self.moving.phase() == Phase::Rests {
            self.published.resume(self.map_epoch_now());
        }
    }

    /// What of each directory comes; those whose homes come, too, get this server as a holder.
    fn count_directories(&self, pending: &mut Pending) -> BTreeMap<Ino, Brought> {
        let mut directories = BTreeMap::new();
        pending.parts.values().for_each(|part| count_entries(&mut directories, &part.names));
        for (dir, brought) in &mut directories {
            brought.changed = pending.changed.get(dir).copied().unwrap_or_default();
            if let Some(part) = pending.parts.get_mut(&self.home(*dir)) {
                let of_dir = part.holders.entry(*dir).or_default();
                of_dir.1.insert(self.slot(), self.incarnation());
            }
        }
        directories
    }

    /// Tells the homes of directories elsewhere that this server has entries of them.
    async fn note_holders_of(self: &Arc<Self>, dirs: Vec<Ino>, slot: SlotIndex) -> Result<(), Failure> {
        if self.config.switches.is(Sabotage::ForgetNewHolder) {
            return Ok(());
        }
        let map = self.map();
        let mut by_home: BTreeMap<ServerIndex, Vec<Ino>> = BTreeMap::new();
        for dir in dirs.into_iter().filter(|dir| map.slots.slot_of(self.home(*dir)) != slot) {
            by_home.entry(map.home_of(dir).ok_or(Code::Internal)?).or_default().push(dir);
        }
        let (holder, incarnation) = (self.slot(), self.incarnation());
        for (home, dirs) in by_home {
            for some in dirs.chunks(4096) {
                let note = Request::NoteHolders { holder, incarnation, dirs: some.to_vec() };
                self.ask(home, ShardId(0), note).await?;
            }
        }
        Ok(())
    }

    /// At the home of directories: another server has entries of them.
    pub(crate) fn note_holders(&self, holder: ServerIndex, incarnation: Incarnation, dirs: &[Ino]) -> Attempt<Output> {
        for dir in dirs {
            let Some(cell) = self.shards.home(*dir) else {
                return Err(Failure::refused(Refusal::MapStale { epoch: self.map_epoch_now() }).into());
            };
            let mut names = cell.names.lock();
            if names.shard.inode(*dir).is_none_or(|inode| inode.attr.kind != FileKind::Directory) {
                continue;
            }
            let holders = names.holders.entry(*dir).or_default();
            if holders.closing {
                return Err(Failure::new(Code::Busy, format!("directory {dir} is being removed")).into());
            }
            holders.servers.insert(holder, incarnation);
            holders.parts.changes(holder);
        }
        Ok(Reply::Done.into())
    }

    /// The move was given up.
    pub(super) fn drop_slot(&self, moving: u64) {
        let _ending = self.moving.ends();
        if let Some(pending) = self.moving.give_up(moving) {
            pending.directories.iter().for_each(|(dir, brought)| self.directories.given(*dir, brought));
        }
        self.resume_reading();
    }

    /// The giver asks, since the keeper has ended: a slot that was not taken into use never will be.
    pub(crate) fn take_undo(self: &Arc<Self>, moving: u64) -> Attempt<Output> {
        self.settle_by_map();
        self.drop_slot(moving);
        Ok(Reply::Map { map: self.map() }.into())
    }

    /// A new map is in use: a slot that it gives to this server is served from now on. See [`Server::settle_by_map`].
    pub(super) fn take_by(self: &Arc<Self>, map: &ShardMap) {
        // No slot is given before the sessions are known that came with this one.
        let _under_way = self.moving.begin();
        let is_mine = |slot| map.slots.get(slot).is_some_and(|slot| slot.primary == self.slot());
        let _taking = self.persistence.as_ref().map(|persistence| persistence.taking.lock());
        let Some(pending) = self.moving.take_up(is_mine) else { return };
        let Pending { from, process, parts, leased, directories, .. } = pending;
        if leased {
            self.leases.inherit(self.io.mono_ns());
        }
        self.published.note_removed(self.clock.latest());
        let (mut sessions, log) = (BTreeSet::new(), self.log());
        for (shard, mut part) in parts {
            if self.config.switches.is(Sabotage::ForgetBroughtOutcomes) {
                part.forget_outcomes();
            }
            sessions.extend(part.sessions());
            self.moving.forget_given(shard);
            self.shards.put(made(part, map), &log, &self.published, &self.leases);
        }
        // Who has just seen that a name is not here looks at its directory last.
        directories.keys().for_each(|dir| self.directories.unpublish(*dir));
        self.published.resume(map.epoch);
        self.moving.rest();
        for session in sessions {
            if self.has_locks(session) {
                self.watch_session(session);
            }
            if self.sessions.is_ended(session) {
                // It has ended while its opens were on their way.
                self.end_session(session);
            } else if !self.sessions.is_connected(session) {
                self.moving.vouch(session, from, process);
            }
        }
        self.suspect_sessions(from);
    }

    /// Sessions whose end a server would have told that has ended itself: those that do not come here have left.
    pub(super) fn suspect_sessions(self: &Arc<Self>, by: ServerIndex) {
        let map = self.map();
        let has_left = map.has_left(by);
        let is_gone = has_left || map.server(by).is_none_or(|info| info.ended || info.incarnation > Incarnation(0));
        // One that has come back does not know any more whom to tell.
        let runs = map.server(by).map(|info| info.session).filter(|_| !is_gone);
        let vouched = self.moving.vouched_by(by).into_iter();
        let sessions: Vec<_> = vouched.filter(|(_, process)| runs != Some(*process)).collect();
        if sessions.is_empty() {
            return;
        }
        // One that has left tells of them for a while.
        let told = if has_left { GOING_TIME_MAX } else { Duration::ZERO };
        let server = self.clone();
        self.io.spawn(async move {
            server.io.sleep(told + Duration::from_millis(SESSION_GRACE_MS)).await;
            let _settled = server.until_settled().await;
            for (session, process) in sessions {
                server.session_gone(session, (by, Some(process)), false);
            }
        });
    }

    /// A server that has given a slot says that a session has left, whose opens and locks came with it; or its process that would have said so
    /// has ended.
    pub(crate) fn session_gone(
        self: &Arc<Self>,
        session: SessionId,
        (by, process): (ServerIndex, Option<SessionId>),
        is_over: bool,
    ) {
        let others = self.moving.end_vouching(session, by, process);
        if self.sessions.is_connected(session) {
            return;
        }
        if others.is_empty() {
            return self.session_is_gone(session, is_over);
        }
        // They may know it from this server only, which has given them slots in turn.
        let server = self.clone();
        self.io.spawn(async move {
            for other in others {
                let request = Request::KnowsSession { session };
                let said = server.ask(other, ShardId(0), request).await;
                let _settled = server.until_settled().await;
                if said.is_err_and(|failure| failure.code == Code::Expired)
                    && server.moving.end_vouching(session, other, None).is_empty()
                    && !server.sessions.is_connected(session)
                {
                    server.session_is_gone(session, is_over);
                }
            }
        });
    }

    fn session_is_gone(self: &Arc<Self>, session: SessionId, is_over: bool) {
        if is_over || self.has_locks(session) {
            self.end_session(session);
        } else {
            self.session_left(session);
            self.forget_session_later(session);
        }
    }

    /// Whether a session is connected here, or may come back.
    pub(crate) fn knows_session(&self, session: SessionId) -> Attempt<Output> {
        if self.sessions.is_alive(session) && !self.sessions.is_ended(session) {
            return Ok(Reply::Done.into());
        }
        Err(Failure::new(Code::Expired, format!("{}: the session is not connected", self.who())).into())
    }

    /// The map epoch of an answer that a new map makes void.
    pub(crate) fn stale(&self) -> Failure {
        Failure::refused(Refusal::MapStale { epoch: self.map_epoch_now().max(MapEpoch(1)) })
    }
}

/// The shard, ready for work.
fn made(part: Arriving, map: &ShardMap) -> ShardCell {
    let opens = part.opens();
    let Arriving { names, data, locks, holders, unnamed, .. } = part;
    let cell = ShardCell::restored(names, data);
    {
        let mut names = cell.names.lock();
        names.opens = opens;
        names.unnamed = unnamed;
        names.locks = locks;
        for (dir, (version, mut servers)) in holders {
            servers.retain(|server, _| !map.has_left(*server));
            names.holders.insert(dir, Holders { servers, version, ..Holders::default() });
        }
    }
    cell
}
