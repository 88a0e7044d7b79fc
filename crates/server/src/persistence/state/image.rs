//! What a server had, made again from its records.

use super::record::{Changed, Seen, Step, Unit};
use crate::membership::state::progress::{Stage, Tell};
use crate::sabotage::{Sabotage, Switches};
use crate::shards::ShardCell;
use aze_io::Boxed;
use aze_io::disk::{Dir, DiskError, DiskResult};
use aze_meta::op::INO_BLOCK;
use aze_meta::{EntryKey, Lock, Op, Role, SessionRow, Shard, Stamp};
use aze_proto::ids::{Ino, ServerIndex, ShardId, SlotIndex, Time, TxId};
use aze_proto::slots::{SlotTable, shards_of_slot, slot_of};
use aze_proto::wire::Wire;
use aze_proto::{Failure, Reply};
use aze_store::disk::checkpoint::Writer;
use aze_store::disk::recover::{Found, Record, Taker};
use aze_store::disk::slots::SlotLogs;
use aze_store::{ChunkShard, Cold, Dirty, Placed, Row, Store, StoreError, Warmed};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What to do about a directory that is not the one that the volume had.
const ADVICE: &str = "put the directories of the last end back";

/// Rows in one record of a shard's tables.
const ROWS_MAX: usize = 4096;

/// After how many records it is told how many there were.
const RECORDS_TOLD: u64 = 256;

/// Units that are written to segments together.
pub(in crate::persistence) const UNITS_AT_ONCE: usize = 64;

/// A shard, being made again.
struct Part {
    names: Shard,
    data: ChunkShard,
    /// The place in the journal up to which the checkpoint includes it.
    position: u64,
    /// The checkpoint has it.
    is_in_checkpoint: bool,
}

impl Part {
    fn new(id: ShardId, shards: u32, store: &Arc<Store>) -> Part {
        let (names, data) = (Shard::new(id, shards), ChunkShard::new(store.clone()));
        Part { names, data, position: 0, is_in_checkpoint: false }
    }

    fn decide(&mut self, stamp: &Stamp, outcome: Result<Reply, Failure>) {
        self.data.record(stamp.session, stamp.sequence, stamp.floor, outcome);
    }
}

/// Everything that a server had.
pub(crate) struct Image {
    /// Number of slots of the volume.
    slots: u32,
    /// Number of shards of the volume.
    shards: u32,
    /// Those of slots with which the server began, and those that its records are of: it may have taken others, and given some.
    parts: BTreeMap<ShardId, Part>,
    /// There is a checkpoint.
    has_checkpoint: bool,
    /// How far the logs of slots had come.
    logs: SlotLogs,
    pub(crate) finished: Vec<TxId>,
    pub(crate) changed: BTreeMap<Ino, Time>,
    pub(crate) time: Time,
    /// Names that renames had locked and that led to directories, which may have been removed for it.
    pub(crate) doubtful: Vec<(ShardId, EntryKey)>,
    store: Arc<Store>,
    /// What must be done before the record can be taken that is due.
    needs: Option<Need>,
    /// Memory was looked for before this record.
    has_made_room: bool,
    switches: Switches,
    /// The server comes back alone.
    is_alone: bool,
    records: u64,
    tell: Option<Tell>,
}

/// Changes in doubt that are to be resolved when the server is made from its image.
#[derive(Default)]
pub(crate) struct Leftovers {
    pub(in crate::persistence) changed: BTreeMap<Ino, Time>,
    pub(in crate::persistence) doubtful: Vec<(ShardId, EntryKey)>,
}

impl Leftovers {
    pub(crate) fn of(image: &mut Image) -> Leftovers {
        Leftovers { changed: std::mem::take(&mut image.changed), doubtful: std::mem::take(&mut image.doubtful) }
    }

    /// When entries here of each directory last came or went.
    pub(in crate::persistence) fn changed(&self) -> &BTreeMap<Ino, Time> {
        &self.changed
    }
}

enum Need {
    /// These units of a chunk are wanted in memory.
    Units(ShardId, Vec<Cold>),
    /// Memory is scarce.
    Room,
}

impl Image {
    /// A server without anything, of those that a volume has.
    pub(crate) fn empty(slot: ServerIndex, servers: u16, shards: u32, store: &Arc<Store>) -> Result<Image, String> {
        let slots = SlotTable::modular(shards, servers)?;
        let parts = slots.shards_of(slot).into_iter().map(|id| (id, Part::new(id, shards, store))).collect();
        Ok(Image {
            slots: slots.len(),
            shards,
            parts,
            has_checkpoint: false,
            logs: SlotLogs::default(),
            finished: Vec::new(),
            changed: BTreeMap::new(),
            time: Time(0),
            doubtful: Vec::new(),
            store: store.clone(),
            needs: None,
            has_made_room: false,
            switches: Switches::default(),
            is_alone: false,
            records: 0,
            tell: None,
        })
    }

    /// Of a volume of so many slots; before anything is read.
    pub(in crate::persistence) fn has_slots(&mut self, slots: u32) {
        self.slots = slots;
    }

    /// Without the protections that are switched off.
    pub(crate) fn with(self, switches: Switches) -> Image {
        Image { switches, ..self }
    }

    /// For a server that comes back alone, if `is_alone`: the others go on with the work between them.
    pub(crate) fn alone(self, is_alone: bool) -> Image {
        Image { is_alone, ..self }
    }

    /// Has `tell` told how much is read.
    pub(crate) fn telling(self, tell: Tell) -> Image {
        Image { tell: Some(tell), ..self }
    }

    /// Does again what a record says.
    fn take_step(&mut self, record: &Record<'_>) -> Result<(), String> {
        let step = Step::from_bytes(record.head).map_err(|why| why.to_string())?;
        let slot = step.shard().map(|shard| slot_of(shard, self.slots));
        if record.slot != slot {
            let told = |slot: Option<SlotIndex>| slot.map_or("no slot".into(), |slot| format!("slot {slot}"));
            return Err(format!("a record of {} among those of {}", told(slot), told(record.slot)));
        }
        let Some(shard) = step.shard() else {
            if let Step::Server { time, finished, changed } = step {
                self.time = self.time.max(time);
                self.finished.extend(finished);
                for Changed { dir, time } in changed {
                    self.note_change(dir, time);
                }
            }
            return Ok(());
        };
        let is_names = matches!(step, Step::Names { .. });
        self.has_checkpoint |= record.in_checkpoint;
        let shards = self.shards;
        if shard.0 >= shards {
            return Err(format!("a record of shard {shard}, of which the volume has {shards}"));
        }
        let part = self.parts.entry(shard).or_insert_with(|| Part::new(shard, shards, &self.store));
        if record.in_checkpoint {
            part.is_in_checkpoint = true;
        } else if self.has_checkpoint && !part.is_in_checkpoint {
            // The checkpoint was made when the server had given the slot to another one, and has none of it.
            return Ok(());
        }
        let is_known = record.position < part.position && !self.switches.is(Sabotage::ReplayAll);
        if !record.in_checkpoint && is_known {
            return Ok(());
        }
        if is_names {
            return self.take_names(shard, step);
        }
        match step {
            Step::Data { stamp, ino, generation, chunk, offset, sums, .. } => {
                let restored = part.data.restore(ino, generation, chunk, offset, record.payload, &sums);
                if restored.is_ok() {
                    part.decide(&stamp, Ok(Reply::Written { attr: None }));
                }
                self.restored(shard, (ino, chunk), restored)?;
            }
            Step::Fill { ino, generation, chunk, sums, .. } => {
                let restored = part.data.restore(ino, generation, chunk, 0, record.payload, &sums);
                if restored.is_ok() {
                    part.data.note_copy(ino, chunk);
                }
                self.restored(shard, (ino, chunk), restored)?;
            }
            Step::Keep { .. } if self.switches.is(Sabotage::ForgetKept) => {}
            Step::Keep { ino, chunk, .. } => drop(part.data.keep(ino, chunk)),
            Step::Copies { ino, length, chunk_bits, .. } => {
                part.data.note_copies(ino, length, chunk_bits);
            }
            Step::Evict { ino, chunk, .. } => drop(part.data.drop_copy((ino, chunk))),
            Step::Units { units, .. } => {
                for unit in units {
                    part.data.restore_row(&unit.into())?;
                }
            }
            Step::TruncateData { .. } if self.switches.is(Sabotage::ForgetTruncations) => {}
            Step::TruncateData { ino, generation, length, chunk_bits, .. } => {
                part.data.truncate(ino, generation, length, chunk_bits)
            }
            Step::Drop { ino, .. } => part.data.delete(ino),
            Step::Trim { ino, length, chunk_bits, .. } => part.data.trim(ino, length, chunk_bits),
            Step::Punch { stamp, ino, start, end, chunk_bits, .. } => {
                part.decide(&stamp, Ok(Reply::Done));
                if let Some(generation) = part.data.generation_of(ino) {
                    match part.data.punch(ino, generation, start..end, chunk_bits) {
                        Err(StoreError::Cold { ino, chunk, units }) => {
                            self.needs = Some(Need::Units(shard, part.data.cold(ino, chunk, &units)));
                        }
                        Err(StoreError::NoSpace { .. }) if !self.has_made_room => self.needs = Some(Need::Room),
                        // Only damaged blocks are in the way, which stay known for that.
                        Ok(()) | Err(_) => {}
                    }
                }
            }
            Step::Tables { position, part: rows, .. } => {
                part.position = position;
                part.names.absorb(rows);
            }
            Step::Generations { seen, .. } => {
                for Seen { ino, generation } in seen {
                    part.data.set_generation(ino, generation);
                }
            }
            Step::Outcome { stamp, outcome, .. } => part.decide(&stamp, outcome.into()),
            Step::EndSession { session, .. } => part.data.end_session(session),
            Step::ExpireOutcomes { .. } => part.data.expire_outcomes(),
            Step::Outcomes { sessions, .. } => {
                sessions.into_iter().for_each(|row| part.data.put_back(row.into()));
            }
            Step::Names { .. } | Step::Server { .. } => {}
        }
        Ok(())
    }

    /// Data were restored, or something must be done before.
    fn restored(
        &mut self,
        shard: ShardId,
        (ino, chunk): (Ino, u64),
        restored: Result<(), StoreError>,
    ) -> Result<(), String> {
        match restored {
            Ok(()) => {}
            Err(StoreError::Cold { ino, chunk, units }) => {
                let part = self.parts.get(&shard);
                let cold = part.map(|part| part.data.cold(ino, chunk, &units)).unwrap_or_default();
                self.needs = Some(Need::Units(shard, cold));
            }
            Err(StoreError::NoSpace { .. } | StoreError::DiskFull { .. }) if !self.has_made_room => {
                self.needs = Some(Need::Room);
            }
            Err(why) => return Err(format!("chunk {chunk} of inode {ino}: {why}")),
        }
        Ok(())
    }

    fn take_names(&mut self, shard: ShardId, step: Step) -> Result<(), String> {
        let (Step::Names { stamp, op, .. }, Some(part)) = (step, self.parts.get_mut(&shard)) else {
            return Ok(());
        };
        let time = stamp.time;
        let stamp = if self.switches.is(Sabotage::ForgetOutcomes) { Stamp::at(time) } else { stamp };
        let applied = part.names.apply(&op, &stamp);
        if !matches!(op, Op::Record { .. }) {
            applied.reply.map_err(|why| format!("{op:?} does not happen again: {why}"))?;
        }
        self.time = self.time.max(time);
        if let Op::Insert { under: Some(tx), .. } | Op::Exchange { under: tx, .. } = op {
            self.finished.push(tx);
        }
        if let Some(delta) = applied.effects.delta {
            self.note_change(delta.dir, time);
        }
        Ok(())
    }

    fn note_change(&mut self, dir: Ino, time: Time) {
        let known = self.changed.entry(dir).or_default();
        *known = time.max(*known);
    }

    /// Its shards: names, and data.
    pub(in crate::persistence) fn shards(&mut self) -> impl Iterator<Item = (&mut Shard, &mut ChunkShard)> {
        self.parts.values_mut().map(|part| (&mut part.names, &mut part.data))
    }

    /// Drops the shards of slots that this table gives to other servers, and makes sure that those of this server's slots are here, in the
    /// configurations of the table.
    ///
    /// # Errors
    /// Why the directory, or that of the server which keeps the map, is not the one that the volume had.
    pub(crate) fn keep(&mut self, table: &SlotTable, me: ServerIndex, is_new: bool) -> Result<(), String> {
        for (number, slot) in table.iter() {
            let (log, is_mine) = (self.logs.get(number), slot.primary == me);
            if is_mine && !is_new && log.configuration != slot.configuration {
                return Err(format!(
                    "it has slot {number} as of configuration {}, and by the map this server has it as of {}: one of the two \
                     directories is older: {ADVICE}",
                    log.configuration, slot.configuration
                ));
            }
            if !is_mine && log.serial > 0 && log.configuration >= slot.configuration {
                return Err(format!(
                    "it served slot {number} in configuration {}, and the map knows of {} only, and of {} as its server: the \
                     directory of the server that keeps the map is older: {ADVICE}",
                    log.configuration, slot.configuration, slot.primary
                ));
            }
            for shard in shards_of_slot(number, self.slots, self.shards) {
                let part = self.parts.get(&shard);
                if !is_mine {
                    self.parts.remove(&shard);
                } else if self.has_checkpoint && part.is_none_or(|part| !part.is_in_checkpoint) {
                    return Err(format!(
                        "it has no shard {shard}, of slot {number}, which this server has by the map: {ADVICE}"
                    ));
                } else if part.is_none() {
                    return Err(format!("it has nothing of shard {shard}, of slot {number}"));
                }
            }
        }
        Ok(())
    }

    /// Notes how far the logs of slots had come.
    pub(in crate::persistence) fn note_logs(&mut self, logs: &SlotLogs) {
        self.logs = logs.clone();
    }

    /// The server starts again. No number that was issued in a part of the journal that is lost is
    /// issued again. If all servers start, new names that renames had locked are unlocked: their coordinator is gone.
    pub(crate) fn begin_new_life(&mut self) {
        for part in self.parts.values_mut() {
            // Twice: a lost record may have begun a block of its own.
            for _ in 0..if self.switches.is(Sabotage::ReuseInos) { 0 } else { 2 } {
                let _ = part.names.apply(&Op::ReserveInos { count: INO_BLOCK }, &Stamp::at(self.time)).reply;
            }
            if self.is_alone {
                continue;
            }
            part.names.forget_links();
            let is_new = |lock: &Lock| matches!(lock.role, Role::Destination | Role::ExchangeDestination);
            let locks = part.names.locks().filter(|(_, lock)| is_new(lock));
            let locked: Vec<(EntryKey, TxId)> = locks.map(|(key, lock)| (key.clone(), lock.tx)).collect();
            for (key, tx) in locked {
                // It is held by this transaction: so its hold ends.
                let _ = part.names.apply(&Op::Unlock { key: key.clone(), tx }, &Stamp::at(self.time)).reply;
                if part.names.entry(&key).is_some_and(|entry| entry.kind == aze_proto::FileKind::Directory) {
                    self.doubtful.push((part.names.id(), key));
                }
            }
        }
    }

    /// Writes everything down as a checkpoint, after the files found.
    pub(crate) async fn write_down(&mut self, dir: &Arc<dyn Dir>, found: &Found) -> DiskResult<u64> {
        let &Found { next, position, order, .. } = found;
        let writer = Writer::begin(dir.clone(), next, position, order).await?;
        let mut writer = writer.with_slots(found.slots.clone());
        let slots = self.slots;
        let changed = self.changed.iter().map(|(dir, time)| Changed { dir: *dir, time: *time });
        add_server(&mut writer, self.time, &self.finished, changed).await?;
        let begun = self.store.begin_checkpoint();
        let mut left = Vec::new();
        for part in self.parts.values_mut() {
            let shard = Snapshot::of(&part.names, &part.data, position, slots);
            left.extend(
                shard
                    .add_to(&mut writer, &self.store, |dirty, place| {
                        part.data.settle(dirty, place, true);
                    })
                    .await?,
            );
        }
        add_left(&mut writer, slots, left).await?;
        if let Some(disk) = self.store.disk() {
            disk.segments().sync().await?;
        }
        let bytes = writer.finish().await?;
        self.store.checkpoint_durable(begun);
        Ok(bytes)
    }

    /// The shards, ready for work.
    pub(crate) fn into_cells(self) -> Vec<ShardCell> {
        self.parts.into_values().map(|part| ShardCell::restored(part.names, part.data)).collect()
    }
}

/// Adds what the server knows besides its shards.
pub(in crate::persistence) async fn add_server(
    writer: &mut Writer,
    time: Time,
    finished: &[TxId],
    changed: impl Iterator<Item = Changed>,
) -> DiskResult<()> {
    let all: Vec<Changed> = changed.collect();
    for changed in all.chunks(ROWS_MAX) {
        let step = Step::Server { time, finished: Vec::new(), changed: changed.to_vec() };
        writer.add(&step.to_bytes(), &[]).await?;
    }
    let step = Step::Server { time, finished: finished.to_vec(), changed: Vec::new() };
    writer.add(&step.to_bytes(), &[]).await
}

/// A shard as it was at one moment.
pub(in crate::persistence) struct Snapshot {
    steps: Vec<Step>,
    shard: ShardId,
    slot: SlotIndex,
    data: aze_store::Snapshot,
}

impl Snapshot {
    /// To be called under the shard's locks, with the journal's end and the number of slots.
    pub(in crate::persistence) fn of(names: &Shard, data: &ChunkShard, position: u64, slots: u32) -> Snapshot {
        let shard = names.id();
        let mut steps: Vec<Step> =
            names.dump(ROWS_MAX).into_iter().map(|part| Step::Tables { shard, position, part }).collect();
        let seen: Vec<Seen> = data.generations().map(|(ino, generation)| Seen { ino, generation }).collect();
        steps.extend(seen.chunks(ROWS_MAX).map(|seen| Step::Generations { shard, seen: seen.to_vec() }));
        let sessions: Vec<SessionRow> = data.outcomes().all().map(SessionRow::from).collect();
        steps.extend(sessions.chunks(ROWS_MAX).map(|rows| Step::Outcomes { shard, sessions: rows.to_vec() }));
        Snapshot { steps, shard, slot: slot_of(shard, slots), data: data.snapshot() }
    }

    /// Writes data to segments and the rest to the checkpoint. Units that got a place are given to
    /// `settle`; those for which there was none are given back, for [`add_left`].
    pub(in crate::persistence) async fn add_to(
        self,
        writer: &mut Writer,
        store: &Store,
        mut settle: impl FnMut(Dirty, Placed) + Send,
    ) -> DiskResult<Vec<(ShardId, Dirty)>> {
        let (shard, slot) = (self.shard, Some(self.slot));
        for step in self.steps {
            writer.add_of(slot, &step.to_bytes(), &[]).await?;
        }
        let mut rows = self.data.rows;
        let mut left = Vec::new();
        let mut dirty = self.data.dirty.into_iter().peekable();
        while dirty.peek().is_some() {
            let (placed, without) = store.write_out(dirty.by_ref().take(UNITS_AT_ONCE).collect()).await?;
            left.extend(without.into_iter().map(|dirty| (shard, dirty)));
            for (unit, place) in placed {
                rows.push(Row { slot: place.number(), ..unit.row() });
                settle(unit, place);
            }
        }
        let mut rows = rows.into_iter().map(Unit::from).peekable();
        while rows.peek().is_some() {
            let units: Vec<Unit> = rows.by_ref().take(ROWS_MAX).collect();
            writer.add_of(slot, &Step::Units { shard, units }.to_bytes(), &[]).await?;
        }
        Ok(left)
    }
}

/// Adds units that have no place, with their data: after everything that has one, so that no place is
/// given out at the next start before all that are used are known.
pub(in crate::persistence) async fn add_left(
    writer: &mut Writer,
    slots: u32,
    left: Vec<(ShardId, Dirty)>,
) -> DiskResult<()> {
    for (shard, dirty) in left {
        let Row { ino, generation, chunk, sums, .. } = dirty.row();
        let (offset, data) = dirty.data();
        let step = Step::Data { shard, stamp: Stamp::default(), ino, generation, chunk, offset, sums };
        writer.add_of(Some(slot_of(shard, slots)), &step.to_bytes(), data).await?;
    }
    Ok(())
}

impl Taker for Image {
    fn take(&mut self, record: &Record<'_>) -> Result<bool, String> {
        // What a checkpoint names is in no memory, and places are given out only when all are known.
        if !record.in_checkpoint && !self.has_made_room && self.store.is_memory_scarce() {
            self.needs = Some(Need::Room);
        } else {
            self.take_step(record)?;
        }
        if self.needs.is_none() {
            self.has_made_room = false;
            self.records += 1;
            if self.records.is_multiple_of(RECORDS_TOLD)
                && let Some(tell) = &self.tell
            {
                tell(Stage::Read { records: self.records });
            }
        }
        Ok(self.needs.is_none())
    }

    fn prepare(&mut self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(async move {
            match self.needs.take() {
                None => Ok(()),
                Some(Need::Room) => {
                    self.has_made_room = true;
                    self.make_room().await
                }
                Some(Need::Units(shard, units)) => self.bring_back(shard, units).await,
            }
        })
    }
}

impl Image {
    async fn make_room(&mut self) -> DiskResult<()> {
        for all in [false, true] {
            for part in self.parts.values_mut() {
                let mut from = Some((Ino(0), 0));
                while let Some(start) = from
                    && self.store.room_wanted_bytes() > 0
                {
                    let swept = part.data.sweep(start, UNITS_AT_ONCE, self.store.room_wanted_bytes(), all);
                    from = swept.next;
                    let (placed, _) = self.store.write_out(swept.dirty).await?;
                    for (unit, place) in placed {
                        part.data.settle(unit, place, false);
                    }
                }
            }
        }
        Ok(())
    }

    async fn bring_back(&mut self, shard: ShardId, units: Vec<Cold>) -> DiskResult<()> {
        for unit in units {
            let bytes = self.store.fetch(&unit).await?;
            let Some(part) = self.parts.get_mut(&shard) else { return Ok(()) };
            // What does not match stays known for that.
            if part.data.warm(&unit, &bytes, true) == Warmed::NoRoom {
                self.make_room().await?;
                let Some(part) = self.parts.get_mut(&shard) else { return Ok(()) };
                if part.data.warm(&unit, &bytes, true) == Warmed::NoRoom {
                    return Err(DiskError::Full("the server's memory is too small for its journal".into()));
                }
            }
        }
        Ok(())
    }
}
