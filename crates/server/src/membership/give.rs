//! Giving a slot to another server.
//!
//! Data go in advance, while the slot is served. Then this server finishes the requests that it works on, which takes milliseconds, and
//! lets new requests wait; changed data follow, with names, inodes, opens, locks and outcomes. From then on
//! the slot does not change here until the map says whose it is. Nothing is given that another server is about to be told
//! of, or that a transaction holds: then the slot stays, and the keeper tries again.

use crate::membership::state::moving::{Brought, Giving, Phase};
use crate::membership::state::pieces::{ChangedRow, FileLockRow, HolderRow, Piece};
use crate::persistence::state::persistence::storage_failed;
use crate::persistence::state::record::{Seen, Step};
use crate::sabotage::Sabotage;
use crate::shards::{Names, ShardCell};
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_io::slab::BASE_BYTES;
use aze_meta::{SessionRow, ShardPart, Stamp};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::limits::{DAMAGED_TRIES_MAX, PAYLOAD_BYTES_MAX};
use aze_proto::slots::{shards_of_slot, slot_of};
use aze_proto::sum::block_sum;
use aze_proto::sum::piece_sums;
use aze_proto::wire::{Blob, Wire};
use aze_proto::{Code, Failure, FileKind, Ino, Reply, Request, ServerIndex, SessionId, ShardId, ShardMap, SlotIndex};
use aze_store::disk::journal::Stage;
use aze_store::{ChangeCount, Found, Row};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long new requests of clients wait at most for this server to finish the earlier ones.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(300);

/// Pause before it looks again whether they are finished.
const DRAIN_PAUSE: Duration = Duration::from_millis(2);

/// How long clients have to let go of what they were told of the slot; who has not makes changes wait at the taker.
const RECALL_TIME_MAX: Duration = Duration::from_millis(150);

/// Data that are sent in advance before the keeper is told how far that is, in bytes.
const COPIED_BYTES: usize = 64 << 20;

/// How often the giver looks for files that have changed since it sent them, while it serves the slot.
const PLANS_MAX: u32 = 3;

/// Pieces under way at the same time.
const PIECES_AT_ONCE: usize = 8;

/// Rows in one piece.
const ROWS_MAX: usize = 256;

/// Files in one piece of dropped data.
const DROPPED_MAX: usize = 4096;

/// How long the taker has for one answer.
const TAKER_TIME_MAX: Duration = Duration::from_secs(5);

/// The same to bring all of a slot to its disk.
const TAKER_DISK_TIME_MAX: Duration = Duration::from_secs(60);

/// How often a unit is read that does not match its checksums before that is believed.
const READS_MAX: usize = 3;

/// Finished renames that the taker hears of: more than a power cut takes from the journal of their other side.
const FINISHED_MAX: usize = 16_384;

/// A count of changes that no file has.
const NEVER: ChangeCount = ChangeCount { wraps: u64::MAX, changes: 0 };

/// Pause before a giver or a taker asks the keeper how the move has ended: the keeper's word may have got lost.
const OUTCOME_PAUSE: Duration = Duration::from_millis(500);

/// A move: its number, the slot and the taker.
#[derive(Clone, Copy)]
struct Gift {
    moving: u64,
    slot: SlotIndex,
    to: ServerIndex,
}

impl Gift {
    fn phase(self) -> Phase {
        Phase::Gives { moving: self.moving, slot: self.slot, to: self.to }
    }
}

fn busy(why: impl Into<String>) -> Failure {
    Failure::new(Code::Busy, why)
}

impl Server {
    /// Sends some of the data of a slot in advance.
    pub(crate) fn copy_slot(self: &Arc<Self>, moving: u64, slot: SlotIndex, to: ServerIndex) -> Attempt<Output> {
        let (server, gift) = (self.clone(), Gift { moving, slot, to });
        then(async move {
            if !server.config.switches.is(Sabotage::GiveUnsettled) {
                server.is_founded()?;
            }
            server.knows(to).await?;
            let giving = &mut *server.moving.try_giving().ok_or_else(|| busy("the slot is being given"))?;
            if giving.moving != moving {
                server.check_taker(gift).await?;
                *giving = Giving { moving, ..Giving::default() };
            }
            let more = server.copy_some(gift, giving).await?;
            Ok(Reply::CopiedIs { more })
        })
    }

    /// Gives a slot.
    pub(crate) fn give_slot(self: &Arc<Self>, moving: u64, slot: SlotIndex, to: ServerIndex) -> Attempt<Output> {
        let (server, gift) = (self.clone(), Gift { moving, slot, to });
        then(async move {
            let giving = &mut *server.moving.try_giving().ok_or_else(|| busy("the slot is being given"))?;
            if giving.moving != moving {
                return Err(busy("its data were not sent in advance"));
            }
            server.give(gift, giving).await?;
            Ok(Reply::Done)
        })
    }

    /// The shards of a slot that are served here.
    fn cells_of(&self, slot: SlotIndex) -> impl Iterator<Item = &ShardCell> {
        let slots = self.map().slots.len();
        self.shards.iter().filter(move |cell| slot_of(cell.id, slots) == slot)
    }

    /// The numbers of its shards.
    fn shards_of(&self, slot: SlotIndex) -> Vec<ShardId> {
        let map = self.map();
        shards_of_slot(slot, map.slots.len(), map.shards()).collect()
    }

    /// Those of a slot that is being given.
    fn sealed_of(&self, slot: SlotIndex) -> Vec<&ShardCell> {
        self.shards_of(slot).into_iter().filter_map(|shard| self.shards.sealed(shard)).collect()
    }

    /// Has the map in which the taker is, which may have joined just now.
    async fn knows(self: &Arc<Self>, taker: ServerIndex) -> Result<(), Failure> {
        let knows = || self.map().server(taker).is_some();
        if !knows() {
            self.refresh_map_from(self.map().keeper).await?;
        }
        let why = || busy(format!("{} has not heard yet that server {taker} has joined", self.who()));
        knows().then_some(()).ok_or_else(why)
    }

    /// Whether the taker has room for the slot, with a tenth to spare.
    async fn check_taker(self: &Arc<Self>, gift: Gift) -> Result<(), Failure> {
        let bytes: u64 = self.cells_of(gift.slot).map(|cell| cell.data.lock().bytes()).sum();
        match self.ask_other(gift.to, ShardId(0), Request::StatFs, &[], TAKER_TIME_MAX).await? {
            Reply::Space { capacity_bytes, used_bytes, .. } => {
                let free = capacity_bytes.saturating_sub(used_bytes);
                if bytes <= free - free / 10 {
                    return Ok(());
                }
                let detail =
                    format!("slot {} has {bytes} bytes, and server {} has room for {free}", gift.slot, gift.to);
                Err(Failure::new(Code::NoSpace, detail))
            }
            _ => Err(Failure::new(Code::Malformed, "StatFs was answered with something else")),
        }
    }

    /// Sends data while the slot is served; gives whether there are more.
    async fn copy_some(self: &Arc<Self>, gift: Gift, giving: &mut Giving) -> Result<bool, Failure> {
        let mut bytes = 0;
        while bytes < COPIED_BYTES {
            let Some((shard, ino)) = giving.plan.pop_front() else {
                if giving.plans >= PLANS_MAX {
                    return Ok(false);
                }
                giving.plans += 1;
                giving.plan = self.cells_of(gift.slot).flat_map(|cell| self.unsent(cell, giving)).collect();
                if giving.plan.is_empty() {
                    return Ok(false);
                }
                continue;
            };
            if self.shards.get(shard).is_some() {
                bytes += self.send_file(gift, giving, shard, ino).await?;
            }
        }
        Ok(true)
    }

    /// Files of a shard that have other data than were sent, or were not sent.
    fn unsent(&self, cell: &ShardCell, giving: &Giving) -> Vec<(ShardId, Ino)> {
        let data = cell.data.lock();
        let is_new = |ino: &Ino| giving.sent.get(&(cell.id, *ino)) != Some(&data.changes_of(*ino));
        let changed = data.generations().map(|(ino, _)| ino).filter(is_new).map(|ino| (cell.id, ino));
        let sent = giving.sent.range((cell.id, Ino(0))..=(cell.id, Ino(u64::MAX)));
        let gone = sent.map(|(key, _)| *key).filter(|(_, ino)| data.generation_of(*ino).is_none());
        changed.chain(gone).collect()
    }

    /// Sends the data of a file in one shard; gives how many bytes.
    async fn send_file(
        self: &Arc<Self>,
        gift: Gift,
        giving: &mut Giving,
        shard: ShardId,
        ino: Ino,
    ) -> Result<usize, Failure> {
        let key = (shard, ino);
        if giving.sent.contains_key(&key) {
            self.send(gift, giving, vec![(Piece::Forget { shard, ino }, Vec::new())]).await?;
            giving.sent.remove(&key);
        }
        let (changes, is_there, units) = {
            let Some(cell) = self.shards.get(shard).or_else(|| self.shards.sealed(shard)) else { return Ok(0) };
            let data = cell.data.lock();
            (data.changes_of(ino), data.generation_of(ino).is_some(), data.units_of(ino))
        };
        if !units.is_empty() {
            // The taker may have some of them, also if it does not get all.
            giving.sent.insert(key, NEVER);
        }
        let mut bytes = 0;
        for some in units.chunks(PIECES_AT_ONCE) {
            let read = join_all(some.iter().map(|unit| self.unit_to_send(shard, unit))).await;
            let mut pieces = Vec::new();
            for unit in read {
                let Some((Row { ino, generation, chunk, sums, .. }, offset, data)) = unit? else {
                    // It has changed: the file is sent once more.
                    giving.sent.insert(key, NEVER);
                    return Ok(bytes);
                };
                let stamp = Stamp::default();
                let step = Step::Data { shard, stamp, ino, generation, chunk, offset, sums };
                bytes += data.len();
                pieces.push((Piece::Step { step }, data));
            }
            self.send(gift, giving, pieces).await?;
        }
        if is_there {
            giving.sent.insert(key, changes);
        }
        Ok(bytes)
    }

    /// A unit with its data; `None` if it is on the disk only and has changed since.
    async fn unit_to_send(&self, shard: ShardId, unit: &Found) -> Result<Option<(Row, u32, Vec<u8>)>, Failure> {
        let (cold, row) = match unit {
            Found::InMemory(unit) => {
                let (offset, data) = unit.data();
                return Ok(Some((unit.row(), offset, data.to_vec())));
            }
            Found::OnDisk(cold, row) => (cold, row),
        };
        let offset = (usize::from(row.unit) * BASE_BYTES) as u32;
        for _ in 0..READS_MAX {
            let read = self.store.fetch(cold).await;
            let is_sound = |bytes: &[u8]| bytes.chunks(BLOCK_BYTES).map(block_sum).eq(row.sums.iter().copied());
            if let Some(mut bytes) = read.ok().filter(|bytes| is_sound(bytes)) {
                bytes.truncate(row.len as usize);
                // What follows its end in the last block is not sent.
                let sums = piece_sums(u64::from(offset), &bytes);
                return Ok(Some((Row { sums, ..row.clone() }, offset, bytes)));
            }
            let cell = self.shards.get(shard).or_else(|| self.shards.sealed(shard));
            let at = usize::from(row.unit);
            if cell.is_none_or(|cell| !cell.data.lock().cold(row.ino, row.chunk, &(at..at + 1)).contains(cold)) {
                return Ok(None);
            }
        }
        let place = self.store.describe(cold);
        let detail = format!(
            "chunk {} of inode {}, {place}, on {} does not match its checksums: 'aze check' names its file, which is to be removed",
            row.chunk,
            row.ino,
            self.who()
        );
        Err(Failure::new(Code::Corrupt, detail))
    }

    /// Sends pieces, which the taker may take in in any order.
    async fn send(
        self: &Arc<Self>,
        gift: Gift,
        giving: &mut Giving,
        pieces: Vec<(Piece, Vec<u8>)>,
    ) -> Result<(), Failure> {
        let Gift { moving, slot, to } = gift;
        let mut pieces = pieces.into_iter().peekable();
        while pieces.peek().is_some() {
            let some: Vec<_> = pieces.by_ref().take(PIECES_AT_ONCE).collect();
            let sent = some.into_iter().map(|(piece, data)| {
                let number = giving.pieces;
                giving.pieces += 1;
                // Tables may be longer than a request without its payload.
                let (piece, payload) = match data.is_empty() {
                    true => (Blob::default(), piece.to_bytes()),
                    false => (Blob(piece.to_bytes()), data),
                };
                let sums = piece_sums(0, &payload);
                let request = Request::TakePiece { moving, slot, number, piece, sums };
                async move { self.send_piece(to, &request, &payload).await }
            });
            let sent: Vec<_> = sent.collect();
            join_all(sent).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        Ok(())
    }

    /// Sends a piece, again if it is damaged on the way: then it has had no effect.
    async fn send_piece(
        self: &Arc<Self>,
        to: ServerIndex,
        request: &Request,
        payload: &[u8],
    ) -> Result<Reply, Failure> {
        let mut tries = 1;
        loop {
            match self.ask_other(to, ShardId(0), request.clone(), payload, TAKER_TIME_MAX).await {
                Err(failure) if failure.code == Code::Corrupt && tries < DAMAGED_TRIES_MAX => tries += 1,
                sent => return sent,
            }
        }
    }

    /// Gives a slot, or leaves everything as it was.
    async fn give(self: &Arc<Self>, gift: Gift, giving: &mut Giving) -> Result<(), Failure> {
        if self.moving.phase() == gift.phase() {
            // A copy of the question, or the taker was silent. It may have taken the slot into use by now, and then refuses: the
            // map says so.
            return self.ask_to_take(gift, giving, true).await;
        }
        self.drain(gift).await?;
        self.seal_slot(gift)?;
        self.sealed_of(gift.slot).into_iter().for_each(|cell| cell.names.lock().shard.recall_all());
        self.watch_outcome(gift.moving);
        if let Err(failure) = self.send_rest(gift, giving).await {
            self.keep_slot(gift.moving);
            return Err(busy(failure.during("sending the slot").detail));
        }
        // What the slot hangs together with here, and will not there, is durable before that is.
        if let Err(failure) = self.sync_rest().await {
            self.keep_slot(gift.moving);
            return Err(failure);
        }
        if self.config.switches.is(Sabotage::FreeUndecided) {
            self.free_undecided(gift.slot);
        }
        let leased = !self.all_recalled(gift.slot).await;
        match self.ask_to_take(gift, giving, leased).await {
            // The taker may have all of it: only the keeper can end this.
            Err(failure) if !failure.is_silence() => {
                self.keep_slot(gift.moving);
                Err(busy(failure.detail))
            }
            asked => asked,
        }
    }

    /// From now on the slot does not change here.
    fn seal_slot(&self, gift: Gift) -> Result<(), Failure> {
        // The word that the move was given up may have come since.
        let _ending = self.moving.ends();
        if self.moving.phase() != gift.phase() {
            return Err(busy("the move was given up"));
        }
        for shard in self.shards_of(gift.slot) {
            self.shards.seal(shard);
        }
        // What clients read without a request has to be asked for now, and then waits.
        self.published.pause();
        Ok(())
    }

    async fn sync_rest(&self) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let synced = persistence.journal.reach(persistence.journal.end(), Stage::Durable).await;
        synced.map_err(|why| storage_failed(&self.who(), &why))
    }

    /// For the simulation alone: the next checkpoint has nothing of the slot.
    fn free_undecided(&self, slot: SlotIndex) {
        for cell in self.sealed_of(slot) {
            let data = self.shards.forget_sealed(cell, self.config.shards, &self.store);
            drop(data);
        }
    }

    async fn ask_to_take(self: &Arc<Self>, gift: Gift, giving: &Giving, leased: bool) -> Result<(), Failure> {
        let Gift { moving, slot, to } = gift;
        let all = Request::TakeAll { moving, slot, pieces: giving.pieces, leased };
        let patience = if self.persistence.is_some() { TAKER_DISK_TIME_MAX } else { TAKER_TIME_MAX };
        self.ask_other(to, ShardId(0), all, &[], patience).await.map(drop)
    }

    /// Finishes the requests under way here and begins to hold those that concern the slot.
    async fn drain(self: &Arc<Self>, gift: Gift) -> Result<(), Failure> {
        if !self.moving.turn(Phase::Rests, Phase::Drains) {
            return Err(busy(format!("{} moves another slot", self.who())));
        }
        if self.config.switches.is(Sabotage::SkipDrain) {
            self.moving.turn(Phase::Drains, gift.phase());
            return Ok(());
        }
        self.tell_all_resolved();
        let until_ns = self.io.mono_ns() + DRAIN_TIME_MAX.as_nanos() as u64;
        loop {
            let Err(why) = self.moving.try_to_give(gift.phase(), || self.obstacle(gift.slot)) else { return Ok(()) };
            if self.io.mono_ns() >= until_ns {
                self.moving.turn(Phase::Drains, Phase::Rests);
                return Err(busy(format!("{}: {why}", self.who())));
            }
            self.io.sleep(DRAIN_PAUSE).await;
        }
    }

    /// What of a slot cannot be given at this moment.
    fn obstacle(&self, slot: SlotIndex) -> Option<String> {
        if self.sessions.is_freeing() {
            return Some("locks of a session that has ended are being freed".into());
        }
        for cell in self.cells_of(slot) {
            if let Some(why) = obstacle_in(&cell.names.lock()) {
                return Some(format!("shard {}: {why}", cell.id));
            }
        }
        let map = self.map();
        let made = self.unresolved.any(|key| map.slots.slot_of(key.hash.shard(map.shards())) == slot);
        made.then(|| "a rename is not known to be over".into())
    }

    /// Waits until no client has a lease of the slot; `false` if some may.
    async fn all_recalled(&self, slot: SlotIndex) -> bool {
        let recalled = async {
            for shard in self.shards_of(slot) {
                self.recalled(shard).await;
            }
        };
        self.io.timeout(RECALL_TIME_MAX, recalled).await.is_some()
    }

    /// Sends the rest of the slot.
    async fn send_rest(self: &Arc<Self>, gift: Gift, giving: &mut Giving) -> Result<(), Failure> {
        self.send(gift, giving, vec![(Piece::Anew {}, Vec::new())]).await?;
        let shards: Vec<ShardId> = self.sealed_of(gift.slot).iter().map(|cell| cell.id).collect();
        for shard in &shards {
            let unsent = self.shards.sealed(*shard).map(|cell| self.unsent(cell, giving)).unwrap_or_default();
            for (shard, ino) in unsent {
                self.send_file(gift, giving, shard, ino).await?;
            }
        }
        let mut pieces = Vec::new();
        if self.persistence.is_some() {
            let finished = self.transactions.last_committed(FINISHED_MAX);
            let step = Step::Server { time: self.clock.latest(), finished, changed: Vec::new() };
            pieces.push(Piece::Step { step });
        }
        let mut dirs = BTreeSet::new();
        for cell in shards.iter().filter_map(|shard| self.shards.sealed(*shard)) {
            dirs.extend(cell.names.lock().shard.all_entries().map(|(key, _)| key.parent));
            pieces.extend(self.pieces_of(cell));
        }
        let dirs: Vec<ChangedRow> =
            dirs.into_iter().map(|dir| ChangedRow { dir, changed: self.directories.changed(dir) }).collect();
        pieces.extend(dirs.chunks(DROPPED_MAX).map(|dirs| Piece::Changed { dirs: dirs.to_vec() }));
        for dropped in self.store.dropped().chunks(DROPPED_MAX) {
            let (mut gone, mut since) = (Vec::new(), Vec::new());
            for (ino, generation) in dropped {
                match generation {
                    Some(generation) => since.push(Seen { ino: *ino, generation: *generation }),
                    None => gone.push(*ino),
                }
            }
            pieces.push(Piece::Dropped { gone, since });
        }
        self.send(gift, giving, pieces.into_iter().map(|piece| (piece, Vec::new())).collect()).await
    }

    /// All of a shard but its data.
    fn pieces_of(&self, cell: &ShardCell) -> Vec<Piece> {
        let shard = cell.id;
        let (data, names) = (cell.data.lock(), cell.names.lock());
        let mut parts = names.shard.dump(ROWS_MAX);
        let is_long = |part: &ShardPart| part.to_bytes().len() > PAYLOAD_BYTES_MAX as usize / 2;
        if parts.iter().any(is_long) {
            parts = names.shard.dump(1);
        }
        let mut steps: Vec<Step> = parts.into_iter().map(|part| Step::Tables { shard, position: 0, part }).collect();
        let seen: Vec<Seen> = data.generations().map(|(ino, generation)| Seen { ino, generation }).collect();
        steps.extend(seen.chunks(DROPPED_MAX).map(|seen| Step::Generations { shard, seen: seen.to_vec() }));
        let sessions: Vec<SessionRow> = data.outcomes().all().map(SessionRow::from).collect();
        steps.extend(sessions.chunks(ROWS_MAX).map(|rows| Step::Outcomes { shard, sessions: rows.to_vec() }));
        let mut pieces: Vec<Piece> = steps.into_iter().map(|step| Piece::Step { step }).collect();
        let opens = if self.config.switches.is(Sabotage::KeepOpens) { Vec::new() } else { names.opens.rows() };
        pieces.extend(opens.chunks(DROPPED_MAX).map(|opens| Piece::Opens { shard, opens: opens.to_vec() }));
        let locks: Vec<FileLockRow> = names.locks.iter().flat_map(|(ino, locks)| locks.rows(*ino)).collect();
        pieces.extend(locks.chunks(DROPPED_MAX).map(|locks| Piece::Locks { shard, locks: locks.to_vec() }));
        let holders = names.holders.iter().flat_map(|(dir, holders)| {
            let row = |(server, incarnation): (&ServerIndex, &aze_proto::Incarnation)| HolderRow {
                dir: *dir,
                version: holders.version,
                server: *server,
                incarnation: *incarnation,
            };
            holders.servers.iter().map(row).collect::<Vec<_>>()
        });
        let holders: Vec<HolderRow> = holders.collect();
        pieces.extend(holders.chunks(DROPPED_MAX).map(|holders| Piece::Holders { shard, holders: holders.to_vec() }));
        let unnamed: Vec<Ino> = names.unnamed.iter().copied().collect();
        pieces.extend(unnamed.chunks(DROPPED_MAX).map(|inos| Piece::Unnamed { shard, inos: inos.to_vec() }));
        pieces
    }

    /// The move was given up: the slot is served here, as before.
    pub(super) fn keep_slot(&self, moving: u64) {
        let _ending = self.moving.ends();
        let Phase::Gives { moving: current, slot, .. } = self.moving.phase() else { return };
        let is_given = || self.map().slots.get(slot).is_some_and(|slot| slot.primary != self.slot());
        if current != moving || is_given() {
            return;
        }
        self.shards_of(slot).into_iter().for_each(|shard| self.shards.unseal(shard));
        self.published.resume(self.map_epoch_now());
        self.moving.rest();
    }

    /// A new map is in use: a slot that it gives to another server is that server's. See [`Server::settle_by_map`].
    pub(super) fn give_by(&self, map: &ShardMap) {
        let Phase::Gives { slot, to, .. } = self.moving.phase() else { return };
        if map.slots.get(slot).is_none_or(|slot| slot.primary == self.slot()) {
            return;
        }
        let mut sessions: BTreeSet<SessionId> = BTreeSet::new();
        let mut directories: BTreeMap<Ino, Brought> = BTreeMap::new();
        for shard in self.shards_of(slot) {
            if self.config.switches.is(Sabotage::KeepGivenSlot) {
                self.shards.unseal(shard);
                continue;
            }
            let Some((names, data)) = self.shards.free(shard, map.shards(), &self.store) else { continue };
            sessions.extend(names.opens.rows().into_iter().map(|row| row.session));
            sessions.extend(names.locks.values().flat_map(|locks| locks.sessions().collect::<Vec<_>>()));
            count_entries(&mut directories, &names.shard);
            if !self.config.switches.is(Sabotage::ForgetGivenOutcomes) {
                self.moving.remember_given(shard, names.shard.outcomes().clone(), data.outcomes().clone());
            }
        }
        directories.iter().for_each(|(dir, gone)| self.directories.given(*dir, gone));
        self.moving.bequeath(&sessions, to);
        self.published.resume(map.epoch);
        self.moving.rest();
    }

    /// Asks the keeper how a move has ended until this server knows: the keeper's word may have got lost.
    pub(super) fn watch_outcome(self: &Arc<Self>, moving: u64) {
        let server = self.clone();
        self.io.spawn(async move {
            let is_open = || match server.moving.phase() {
                Phase::Gives { moving: current, .. } | Phase::Takes { moving: current, .. } => current == moving,
                Phase::Drains | Phase::Rests => false,
            };
            loop {
                server.io.sleep(OUTCOME_PAUSE).await;
                if server.is_stopping() || !is_open() {
                    return;
                }
                let (keeper, decides_alone) = {
                    let map = server.map();
                    (map.keeper, map.group.members.len() <= 1)
                };
                let told = match server.moving.phase() {
                    // Only the keeper could have decided, and the taker decides nothing by itself. The keeper of a volume in directories
                    // may have done so on its disk: it is waited for. Of a group the next keeper knows.
                    Phase::Gives { to, .. }
                        if server.has_seen_end(keeper) && server.persistence.is_none() && decides_alone =>
                    {
                        server.ask_once(to, ShardId(0), &Request::TakeUndo { moving }, TAKER_TIME_MAX).await
                    }
                    _ => server.ask_keeper(Request::MoveOutcome { moving }).await,
                };
                if let Ok(Reply::Map { map }) = told {
                    server.move_ended(moving, map);
                }
            }
        });
    }
}

/// Counts the entries of each directory in a shard.
pub(super) fn count_entries(directories: &mut BTreeMap<Ino, Brought>, shard: &aze_meta::Shard) {
    for (key, entry) in shard.all_entries() {
        let brought = directories.entry(key.parent).or_default();
        brought.entries += 1;
        brought.subdirs += u64::from(entry.kind == FileKind::Directory);
        brought.shards.insert(shard.id());
    }
}

fn obstacle_in(names: &Names) -> Option<String> {
    if let Some((key, _)) = names.shard.locks().next() {
        return Some(format!("'{}' is being renamed or removed", key.name));
    }
    if names.shard.in_doubt().next().is_some() {
        return Some("the home of a linked file has not heard of a name".into());
    }
    if names.running.len() > 0 || !names.turns.is_empty() {
        return Some("changes are being worked on".into());
    }
    if names.holders.values().any(|holders| holders.closing) {
        return Some("a directory is being removed".into());
    }
    let waits = names.shard.all_inodes().find(|inode| {
        let rare = inode.rare.get();
        !rare.links.is_empty() || !rare.truncations.is_empty()
    });
    waits.map(|inode| format!("a link to or a truncation of inode {} is not over", inode.attr.ino))
}
