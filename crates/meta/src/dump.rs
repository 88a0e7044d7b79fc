//! All of a shard that outlives its server, to be kept in a checkpoint, and a shard made from it again.

use crate::links::LinkInDoubt;
use crate::op::Outcome;
use crate::shard::{HardState, Shard};
use crate::tables::{EntryKey, EntryValue, Inode, Lock, PlainTables, Tables};
use aze_proto::ids::{Life, Sequence, SessionId, TxId};
use aze_proto::retry::Remembered;
use aze_proto::{Failure, Gone, Reply, wire_struct};

wire_struct! {
    /// One entry.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct EntryRow {
        /// Its place.
        pub key: EntryKey,
        /// Its inode.
        pub value: EntryValue,
    }
}

wire_struct! {
    /// One lock.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LockRow {
        /// The entry held.
        pub key: EntryKey,
        /// By whom.
        pub lock: Lock,
    }
}

wire_struct! {
    /// A change of a name that the home of its inode does not know yet.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LinkInDoubtRow {
        /// Which.
        pub tx: TxId,
        /// What.
        pub in_doubt: LinkInDoubt,
    }
}

wire_struct! {
    /// How a request of a session ended.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OutcomeRow {
        /// The request's number.
        pub sequence: Sequence,
        /// How it ended.
        pub outcome: Outcome,
    }
}

wire_struct! {
    /// The outcomes that a shard remembers for one session.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SessionRow {
        /// The session.
        pub session: SessionId,
        /// The lowest sequence that it still wants.
        pub floor: Sequence,
        /// Whether it asked for a change since outcomes were last expired.
        pub is_recent: bool,
        /// Its outcomes, by their sequence.
        pub outcomes: Vec<OutcomeRow>,
    }
}

impl From<Remembered<Result<Reply, Failure>>> for SessionRow {
    fn from(known: Remembered<Result<Reply, Failure>>) -> SessionRow {
        let Remembered { session, floor, is_recent, done } = known;
        let row = |(sequence, outcome): (_, Result<Reply, Failure>)| OutcomeRow { sequence, outcome: outcome.into() };
        SessionRow { session, floor, is_recent, outcomes: done.into_iter().map(row).collect() }
    }
}

impl From<SessionRow> for Remembered<Result<Reply, Failure>> {
    fn from(row: SessionRow) -> Self {
        let SessionRow { session, floor, is_recent, outcomes } = row;
        let done = outcomes.into_iter().map(|OutcomeRow { sequence, outcome }| (sequence, outcome.into())).collect();
        Remembered { session, floor, is_recent, done }
    }
}

wire_struct! {
    /// A part of a shard: some of its rows, and in each part what inode numbers it may issue.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct ShardPart {
        /// The life of its slot.
        pub life: Life,
        /// Counter of the next inode number.
        pub counter_next: u64,
        /// End of the block of numbers reserved.
        pub counter_end: u64,
        /// Counter of the next transaction that the shard names itself.
        pub tx_next: u64,
        /// Entries.
        pub entries: Vec<EntryRow>,
        /// Inodes.
        pub inodes: Vec<Inode>,
        /// Locks.
        pub locks: Vec<LockRow>,
        /// Changes of names here that the homes of their inodes do not know yet.
        pub in_doubt: Vec<LinkInDoubtRow>,
        /// Names of the backing that went.
        pub gone: Vec<Gone>,
        /// Outcomes of requests, by session.
        pub sessions: Vec<SessionRow>,
    }
}

impl Shard<PlainTables> {
    /// Everything, in parts of at most `rows_max` rows; at least one part.
    pub fn dump(&self, rows_max: usize) -> Vec<ShardPart> {
        let HardState { tables, in_doubt, retries, gone, counters, life } = self.hard_state();
        let [counter_next, counter_end, tx_next] = counters;
        let sessions: Vec<SessionRow> = retries.all().map(SessionRow::from).collect();
        // A new table has to be added here, too.
        let PlainTables { entries, inodes, rare_bytes: _, locks } = tables;
        let empty = || ShardPart { life, counter_next, counter_end, tx_next, ..ShardPart::default() };
        let rows = entries.len() + inodes.len() + locks.len() + in_doubt.len() + gone.count() + sessions.len();
        let mut parts: Vec<ShardPart> = (0..rows.div_ceil(rows_max).max(1)).map(|_| empty()).collect();
        let mut places = (0..rows).map(|row| row / rows_max);
        let mut next = || places.next().expect("a place for every row");
        for (key, value) in entries {
            parts[next()].entries.push(EntryRow { key: key.clone(), value: *value });
        }
        for inode in inodes.iter() {
            parts[next()].inodes.push(inode.clone());
        }
        for (key, lock) in locks {
            parts[next()].locks.push(LockRow { key: key.clone(), lock: lock.clone() });
        }
        for (tx, in_doubt) in in_doubt {
            parts[next()].in_doubt.push(LinkInDoubtRow { tx: *tx, in_doubt: *in_doubt });
        }
        for (_, gone) in gone.behind(None) {
            parts[next()].gone.push(gone.clone());
        }
        for session in sessions {
            parts[next()].sessions.push(session);
        }
        parts
    }

    /// Adds the rows of a part.
    pub fn absorb(&mut self, part: ShardPart) {
        let ShardPart { life, counter_next, counter_end, tx_next, entries, inodes, locks, in_doubt, gone, sessions } =
            part;
        self.set_counters(life, [counter_next, counter_end, tx_next]);
        for EntryRow { key, value } in entries {
            self.tables.insert_entry(&key, value);
        }
        for inode in inodes {
            self.tables.insert_inode(inode);
        }
        for LockRow { key, lock } in locks {
            self.tables.insert_lock(&key, lock);
        }
        self.in_doubt.extend(in_doubt.into_iter().map(|LinkInDoubtRow { tx, in_doubt }| (tx, in_doubt)));
        gone.into_iter().for_each(|gone| self.gone.put(gone));
        sessions.into_iter().for_each(|row| self.put_back(row.into()));
    }

    /// All entries, in the order of their keys.
    pub fn all_entries(&self) -> impl Iterator<Item = (&EntryKey, EntryValue)> {
        self.tables.entries()
    }
}
