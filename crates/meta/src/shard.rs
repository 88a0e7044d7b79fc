//! One shard: its tables, the inode numbers it may issue, the outcomes it remembers, and the
//! step that changes them. What single operations do is in `entries` (names) and `inodes`.

use crate::backing::{GoneNames, Place};
use crate::links::{LinkInDoubt, LostLink};
use crate::op::{INO_BLOCK, Op, Outcome, Stamp};
use crate::tables::{EntryKey, EntryValue, Inode, Lock, PlainTables, Tables};
use crate::xattr::XattrSet;
use aze_proto::ids::{Ino, Life, MapEpoch, Prefix, Sequence, SessionId, ShardId, Time, TxId};
use aze_proto::message::Victim;
use aze_proto::retry::{Remembered, RetryTable, Verdict};
use aze_proto::wire::Wire;
use aze_proto::{Attr, Code, Failure, Name, NameHash, Reply, Spread};
use std::collections::BTreeMap;

/// Least counter of a number that a shard issues: 1 is the root's.
const COUNTER_MIN: u64 = 2;

/// By how much the counts of a directory change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirDelta {
    /// The directory.
    pub dir: Ino,
    /// Entries more (or fewer).
    pub entries: i64,
    /// Subdirectories more (or fewer).
    pub subdirs: i64,
}

/// What else follows from an operation: for the server to carry on with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// An entry of a directory was made, removed or replaced: its counts, which may be zero,
    /// and that its modification time is now.
    pub delta: Option<DirDelta>,
    /// What the entry removed or replaced led to.
    pub removed: Option<Victim>,
    /// The inode that the operation was about, as it is now, if it is here; after `Delete` as it
    /// was last.
    pub attr: Option<Attr>,
    /// An inode elsewhere has lost this name: its home must lower its link count.
    pub drop_link: Option<LostLink>,
    /// An inode here has no links left: to be deleted when it is open nowhere.
    pub orphan: Option<Ino>,
}

/// The outcome of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer. An error means that nothing has changed.
    pub reply: Result<Reply, Failure>,
    /// Empty after an error.
    pub effects: Effects,
    /// Whether the operation contradicts the shard: it was meant for another one, or one of the two is damaged.
    /// The shard must serve nothing more until it has been read again from its records.
    pub is_poison: bool,
}

impl Applied {
    /// Whether the request that asked for the operation ends with it.
    pub fn decides(&self) -> bool {
        let is_put_off = matches!(&self.reply, Err(failure) if matches!(failure.code, Code::Busy | Code::Refused));
        !is_put_off && !self.is_poison
    }
}

/// What an operation gives when it succeeds.
pub(crate) type Step = Result<(Reply, Effects), Failure>;

/// All of a shard that outlives its server.
pub(crate) struct HardState<'a, T> {
    pub(crate) tables: &'a T,
    pub(crate) in_doubt: &'a BTreeMap<TxId, LinkInDoubt>,
    pub(crate) retries: &'a RetryTable<Result<Reply, Failure>>,
    pub(crate) gone: &'a GoneNames,
    pub(crate) counters: [u64; 3],
    pub(crate) life: Life,
}

/// A part of the namespace; the unit of order.
#[derive(Clone, Debug)]
pub struct Shard<T: Tables = PlainTables> {
    pub(crate) id: ShardId,
    pub(crate) tables: T,
    /// Of its slot: part of the numbers that it issues.
    life: Life,
    pub(crate) shards: u32,
    retries: RetryTable<Result<Reply, Failure>>,
    /// The counter of the next inode number, and the end of the block reserved.
    counter_next: u64,
    counter_end: u64,
    /// Changes of names here that the homes of their inodes do not know yet.
    pub(crate) in_doubt: BTreeMap<TxId, LinkInDoubt>,
    /// The counter of the next transaction that the shard names itself.
    tx_next: u64,
    /// Names of the backing that went.
    pub(crate) gone: GoneNames,
}

impl Shard<PlainTables> {
    /// An empty shard on the heap, of a volume of `shards` shards, in its first life.
    pub fn new(id: ShardId, shards: u32) -> Self {
        Shard::with_tables(id, shards, PlainTables::default())
    }
}

impl<T: Tables> Shard<T> {
    /// An empty shard on the tables given.
    pub fn with_tables(id: ShardId, shards: u32, tables: T) -> Self {
        assert!(shards.is_power_of_two() && id.0 < shards, "shard {id} of {shards}");
        let counter_end = COUNTER_MIN + INO_BLOCK;
        Shard {
            id,
            tables,
            life: Life(0),
            shards,
            retries: RetryTable::default(),
            counter_next: COUNTER_MIN,
            counter_end,
            in_doubt: BTreeMap::new(),
            tx_next: 0,
            gone: GoneNames::default(),
        }
    }

    /// Makes the root directory; only in shard 0, only once.
    ///
    /// # Errors
    /// `Invalid` in any other shard, `Exists` if there is one.
    pub fn make_root(
        &mut self,
        uid: u32,
        gid: u32,
        mode: u32,
        born: MapEpoch,
        chunk_bits: u8,
        time: Time,
    ) -> Result<Attr, Failure> {
        let applied = self.apply(&Op::MakeRoot { uid, gid, mode, born, chunk_bits }, &Stamp::at(time));
        applied.reply.map(|_| applied.effects.attr.expect("a root directory just made is here"))
    }

    /// Whether a change is new, and if not, how it ended.
    pub fn check(&self, session: SessionId, sequence: Sequence, floor: Sequence) -> Verdict<Result<Reply, Failure>> {
        self.retries.check(session, sequence, floor)
    }

    /// Remembers the outcome of a request that changes nothing here but what its session holds: opens and
    /// locks, which no operation carries, since the server keeps them in memory.
    pub fn remember(&mut self, stamp: &Stamp, outcome: Result<Reply, Failure>) {
        self.retries.record(stamp.session, stamp.sequence, stamp.floor, outcome);
    }

    /// Applies one operation. With a sequence in the stamp the outcome, be it an error, is
    /// recorded in the same step; except for `Code::Busy` and `Code::Refused`, after which the
    /// request is done later or not at all, and for poison ([`Applied::is_poison`]).
    pub fn apply(&mut self, op: &Op, stamp: &Stamp) -> Applied {
        let (reply, effects) = match self.step(op, stamp.time) {
            Ok((reply, effects)) => (Ok(reply), effects),
            Err(failure) => (Err(failure), Effects::default()),
        };
        // An outcome that is only recorded may be `Internal`: a defect that a request met elsewhere.
        let is_poison =
            matches!(&reply, Err(failure) if failure.code == Code::Internal) && !matches!(op, Op::Record { .. });
        let applied = Applied { reply, effects, is_poison };
        if stamp.sequence != Sequence(0) && applied.decides() {
            self.retries.record(stamp.session, stamp.sequence, stamp.floor, applied.reply.clone());
        }
        applied
    }

    fn step(&mut self, op: &Op, time: Time) -> Step {
        match op {
            Op::MakeRoot { uid, gid, mode, born, chunk_bits } => self.root(*uid, *gid, *mode, *born, *chunk_bits, time),
            Op::Create { key, new, exclusive } => self.create(key, new, *exclusive, &[], time),
            Op::CreateWith { key, new, exclusive, xattrs } => self.create(key, new, *exclusive, xattrs, time),
            Op::Remove { key, only, moved, under } => self.remove(key, *only, *moved, *under, time),
            Op::Insert { key, ino, kind, replace, under, attr } => {
                let value = EntryValue { ino: *ino, kind: *kind };
                self.insert(key, value, *replace, *under, attr.as_ref(), time)
            }
            Op::Exchange { key, ino, kind, under } => {
                self.exchange(key, EntryValue { ino: *ino, kind: *kind }, *under, time)
            }
            Op::SetAttr { ino, set } => self.set_attr(*ino, set, time),
            Op::Report { ino, generation, end, spread } => self.report(*ino, *generation, *end, *spread, time),
            Op::Truncate { ino, size } => self.truncate(*ino, *size, time),
            Op::TruncateDone { ino, generation } => self.truncate_done(*ino, *generation),
            Op::SetParent { ino, parent } => self.set_parent(*ino, *parent, time),
            Op::Delete { ino } => self.delete(*ino, time),
            Op::Lock { key, lock } => self.lock(key, lock),
            Op::Unlock { key, tx } => self.unlock(key, *tx),
            Op::Record { outcome: Outcome::Success { reply } } => Ok((reply.clone(), Effects::default())),
            Op::Record { outcome: Outcome::Failed { failure } } => Err(failure.clone()),
            Op::ReserveInos { count } => self.reserve(*count),
            Op::BeginLife { life } => self.begin_life(*life),
            Op::LinkBegin { ino, tx, shard } => self.link_begin(*ino, *tx, *shard, time),
            Op::LinkEnd { ino, tx, kept } => self.link_end(*ino, *tx, *kept, time),
            Op::LinkInsert { key, ino, kind, tx } => {
                self.link_insert(key, EntryValue { ino: *ino, kind: *kind }, *tx, time)
            }
            Op::LinkDrop { ino, tx } => self.link_drop(*ino, *tx, time),
            Op::LinkForget { ino, tx } => self.link_forget(*ino, *tx),
            Op::LinkResolved { tx } => self.link_resolved(*tx),
            Op::SetXattr { ino, name, value, mode, if_any, how } => {
                let set = XattrSet { value: value.clone(), mode: *mode, if_any: *if_any };
                self.set_xattr(*ino, name, &set, *how, time)
            }
            Op::Import { key, file, born, chunk_bits, layout, spread } => {
                let place = Place { born: *born, chunk_bits: *chunk_bits, layout: *layout, spread: *spread };
                self.import(key, file, &place, time)
            }
            Op::ImportedAll { dir } => self.imported_all(*dir),
            Op::LieOver { ino, backing } => self.lie_over(*ino, backing),
            Op::WillChange { ino } => self.will_change(*ino),
            Op::LeaveBacking { ino } => self.leave_backing(*ino),
            Op::Adopt { ino, backing } => self.lie_over(*ino, backing),
            Op::Settled { ino, origin } => self.settled(*ino, *origin),
            Op::ForgetGone { key, since } => self.forget_gone(key, *since),
            Op::SetLinks { ino, links } => self.set_links(*ino, *links),
            Op::Wrote { ino, generation, end, spread } => {
                let (_, effects) = self.report(*ino, *generation, *end, *spread, time)?;
                Ok((Reply::Written { attr: effects.attr.clone() }, effects))
            }
            Op::Appended { ino, generation, offset, end } => {
                let (reply, effects) = self.report(*ino, *generation, *end, Spread::default(), time)?;
                match reply {
                    Reply::Attributes { attr } => Ok((Reply::Appended { attr, offset: *offset }, effects)),
                    other => Ok((other, effects)),
                }
            }
            Op::EndSession { session } => {
                self.end_session(*session);
                Ok((Reply::Done, Effects::default()))
            }
            Op::ExpireOutcomes => {
                self.expire_outcomes();
                Ok((Reply::Done, Effects::default()))
            }
        }
    }

    /// Tables, the counters of inode numbers and the outcomes remembered: all that a checkpoint has to keep.
    pub(crate) fn hard_state(&self) -> HardState<'_, T> {
        // New state has to be added to `dump`, too.
        let Shard { id: _, tables, life, shards: _, retries, counter_next, counter_end, in_doubt, tx_next, gone } =
            self;
        HardState { tables, in_doubt, retries, gone, counters: [*counter_next, *counter_end, *tx_next], life: *life }
    }

    pub(crate) fn put_back(&mut self, known: Remembered<Result<Reply, Failure>>) {
        self.retries.restore(known);
    }

    pub(crate) fn set_counters(&mut self, life: Life, [counter_next, counter_end, tx_next]: [u64; 3]) {
        self.life = life;
        (self.counter_next, self.counter_end, self.tx_next) = (counter_next, counter_end, tx_next);
    }

    fn reserve(&mut self, count: u64) -> Step {
        self.counter_next = self.counter_end;
        // Numbers beyond the last one are never issued, see `issue`: there is no harm in saturation.
        self.counter_end = self.counter_end.saturating_add(count);
        Ok((Reply::Done, Effects::default()))
    }

    /// Numbers of an earlier life were issued by a server that has lost the shard: how many is not known.
    fn begin_life(&mut self, life: Life) -> Step {
        if life <= self.life || life > Life::MAX {
            let detail = format!("shard {} is in its life {}, and cannot begin life {life}", self.id, self.life);
            return Err(Failure::new(Code::Invalid, detail));
        }
        self.set_counters(life, [COUNTER_MIN, COUNTER_MIN + INO_BLOCK, 0]);
        Ok((Reply::Done, Effects::default()))
    }

    /// The next inode number, for a name at this place.
    pub(crate) fn issue(&mut self, prefix: Prefix) -> Result<Ino, Failure> {
        let ino = Ino::new(prefix, self.life, self.counter_next).ok_or_else(|| {
            let detail = format!(
                "shard {} has issued all 2^{} inode numbers of its life {}: no file can be made in it any more",
                self.id,
                Ino::COUNTER_BITS,
                self.life
            );
            Failure::new(Code::NoSpace, detail)
        })?;
        if self.counter_next == self.counter_end {
            self.counter_end += INO_BLOCK;
        }
        self.counter_next += 1;
        Ok(ino)
    }

    /// A name for a transaction that no shard gives twice: made as inode numbers are.
    pub(crate) fn new_tx(&mut self) -> TxId {
        self.tx_next += 1;
        let counter = self.tx_next % (1 << Ino::COUNTER_BITS);
        TxId(Ino::new(Prefix::first_of(self.id, self.shards), self.life, counter).map_or(counter, |ino| ino.0))
    }

    /// Inode numbers left in the block reserved, see [`Op::ReserveInos`].
    pub fn inos_left(&self) -> u64 {
        self.counter_end - self.counter_next
    }

    /// The life of its slot.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The shard's number.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Whether this shard is the home of an inode number.
    pub fn is_home(&self, ino: Ino) -> bool {
        ino.home(self.shards) == self.id
    }

    /// What a name leads to. The caller has made sure that no transaction holds it.
    pub fn entry(&self, key: &EntryKey) -> Option<EntryValue> {
        self.tables.entry(key)
    }

    /// Which transaction holds a name.
    pub fn lock_of(&self, key: &EntryKey) -> Option<&Lock> {
        self.tables.lock(key)
    }

    /// All names held by transactions.
    pub fn locks(&self) -> impl Iterator<Item = (&EntryKey, &Lock)> {
        self.tables.locks()
    }

    /// An inode that lives here.
    pub fn inode(&self, ino: Ino) -> Option<&Inode> {
        self.tables.inode(ino)
    }

    /// All inodes that live here, in the order in which their numbers were issued ([`Ino::issue`]).
    pub fn all_inodes(&self) -> impl Iterator<Item = &Inode> {
        self.tables.inodes()
    }

    /// Those whose numbers were issued from this one on.
    pub fn inodes_from(&self, from: Ino) -> impl Iterator<Item = &Inode> {
        self.tables.inodes_from(from)
    }

    /// All entries here in the order of their keys, from the one behind `after` on.
    pub fn entries_behind(&self, after: Option<&EntryKey>) -> impl Iterator<Item = (&EntryKey, EntryValue)> {
        let all = after.is_none().then(|| self.tables.entries());
        let rest = after.map(|key| self.tables.entries_behind(key));
        all.into_iter().flatten().chain(rest.into_iter().flatten())
    }

    /// Entries of a directory in the order of their cookies ([`NameHash::cookie`]), from the
    /// first whose cookie is greater than `after`. Entries of equal cookie must go in one page.
    pub fn entries_after(&self, dir: Ino, after: u64) -> impl Iterator<Item = (NameHash, &Name, EntryValue)> {
        NameHash::after_cookie(after).into_iter().flat_map(move |hash| self.tables.entries_of(dir, hash))
    }

    /// Whether any entry of a directory is here.
    pub fn has_entries(&self, dir: Ino) -> bool {
        self.tables.entries_of(dir, NameHash::default()).next().is_some()
    }

    /// Number of inodes here.
    pub fn inodes(&self) -> u64 {
        self.tables.inode_count()
    }

    /// Bytes of what few inodes have, see [`Inode::rare_bytes`], and of the names of the backing that went.
    pub fn rare_bytes(&self) -> u64 {
        self.tables.rare_bytes() + self.gone.bytes()
    }

    /// Number of entries here.
    pub fn entries(&self) -> u64 {
        self.tables.entry_count()
    }

    /// As `Op::EndSession`.
    pub fn end_session(&mut self, session: SessionId) {
        self.retries.forget(session);
    }

    /// As `Op::ExpireOutcomes`.
    pub fn expire_outcomes(&mut self) {
        self.retries.expire();
    }

    /// Outcomes remembered, session by session.
    pub fn outcomes(&self) -> &RetryTable<Result<Reply, Failure>> {
        &self.retries
    }

    /// An entry's place must be this shard: the caller has checked it.
    ///
    /// # Errors
    /// `Internal`, which is poison, if it is not.
    pub(crate) fn check_mine(&self, key: &EntryKey) -> Result<(), Failure> {
        let place = key.hash.shard(self.shards);
        if place == self.id {
            return Ok(());
        }
        let detail = format!("an operation on an entry of shard {place} was given to shard {}", self.id);
        Err(Failure::new(Code::Internal, detail))
    }

    /// A hash of the tables and of the inode numbers issued: equal after equal operations, on any
    /// implementation of the tables. Outcomes remembered are not part of it, since some are remembered
    /// without an operation. It visits every row.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        let counters = [u64::from(self.life.0), self.counter_next, self.counter_end, self.tx_next];
        let mut digest = fnv(FNV_BASIS, &counters.map(u64::to_le_bytes).concat());
        for (key, value) in self.tables.entries() {
            digest = absorb(digest, &mut bytes, key, &value);
        }
        for inode in self.tables.inodes() {
            digest = absorb(digest, &mut bytes, &inode.attr.ino, inode);
        }
        for (tx, in_doubt) in &self.in_doubt {
            digest = absorb(digest, &mut bytes, tx, in_doubt);
        }
        for (key, lock) in self.tables.locks() {
            digest = absorb(digest, &mut bytes, key, lock);
        }
        for (key, gone) in self.gone.behind(None) {
            digest = absorb(digest, &mut bytes, key, gone);
        }
        digest
    }
}

/// Start of the hash FNV-1a with 64 bits (Fowler, Noll, Vo): it need not be fast or strong here.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn absorb(digest: u64, bytes: &mut Vec<u8>, key: &impl Wire, value: &impl Wire) -> u64 {
    bytes.clear();
    key.put(bytes);
    value.put(bytes);
    fnv(digest, bytes)
}
