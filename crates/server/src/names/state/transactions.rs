//! The transactions that a server coordinates, and those that are over at its side of the new name.

use super::moves::{Move, Moved};
use aze_io::sync::Mutex;
use aze_meta::{EntryKey, Lock, Role};
use aze_proto::{Ino, SessionId, ShardId, TxId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Longest time from the word to a directory's home that it gets another parent, to the end of the move. Longer than a request may take.
const MOVE_NS_MAX: u64 = 60_000_000_000;

/// Finished transactions of other coordinators that are remembered, so that a late copy of a message
/// does not lock a name for one that is over. Older ones are caught by asking for the decision.
const FINISHED_KEPT: usize = 65_536;

/// A decided rename.
type Decided = (Arc<Move>, Moved);

/// Transactions that concern this server.
pub(crate) struct Transactions {
    /// Transactions that this server coordinates and that are not yet over; with the decision, once it is taken.
    active: Mutex<BTreeMap<TxId, Option<Decided>>>,
    /// Those that are over at the side of the new name, and whether they were committed.
    finished: Mutex<Finished>,
    /// Of those that were committed, the ones about which a server that was left out may ask when it comes back, however late.
    asked_later: Mutex<BTreeSet<TxId>>,
    /// Those that an earlier life of this server coordinated, and that are not known to be over: the names that they hold.
    in_doubt: Mutex<BTreeMap<TxId, InDoubt>>,
    /// Those that have the token for moving directories: one, and those that have not given it back yet.
    tokens: Mutex<BTreeSet<TxId>>,
    /// When the process of each server last told this one, as the home of a directory, of another parent.
    told: Mutex<BTreeMap<SessionId, u64>>,
    /// Those processes that have ended shortly after they did so.
    ended_in_a_move: Mutex<BTreeSet<SessionId>>,
}

/// The old name of a rename, or the name of a directory that is removed, as an earlier life left it.
#[derive(Clone)]
pub(crate) struct InDoubt {
    pub(crate) shard: ShardId,
    pub(crate) key: EntryKey,
    pub(crate) lock: Lock,
}

#[derive(Default)]
struct Finished {
    committed: BTreeMap<TxId, bool>,
    order: VecDeque<TxId>,
}

impl Transactions {
    pub(crate) fn new() -> Transactions {
        let (active, finished) = (Mutex::default(), Mutex::default());
        let (told, ended_in_a_move) = (Mutex::default(), Mutex::default());
        Transactions {
            active,
            finished,
            asked_later: Mutex::default(),
            in_doubt: Mutex::default(),
            tokens: Mutex::default(),
            told,
            ended_in_a_move,
        }
    }

    /// A transaction has got the token.
    pub(crate) fn takes_token(&self, tx: TxId) {
        self.tokens.lock().insert(tx);
    }

    /// It has given it back, or has not got it.
    pub(crate) fn drops_token(&self, tx: TxId) {
        self.tokens.lock().remove(&tx);
    }

    /// Whether one has it.
    pub(crate) fn has_token(&self, tx: TxId) -> bool {
        self.tokens.lock().contains(&tx)
    }

    /// Those that have it.
    pub(crate) fn with_token(&self) -> Vec<TxId> {
        self.tokens.lock().iter().copied().collect()
    }

    /// The process of a server says that a directory, whose home is here, gets another parent.
    pub(crate) fn parent_told(&self, by: SessionId, now_ns: u64) {
        self.told.lock().insert(by, now_ns);
    }

    /// The process of a server has ended.
    pub(crate) fn process_ended(&self, ended: SessionId, now_ns: u64) {
        if self.told.lock().remove(&ended).is_some_and(|told_ns| now_ns < told_ns + MOVE_NS_MAX) {
            self.ended_in_a_move.lock().insert(ended);
        }
    }

    /// Whether it may have ended in the middle of a move of a directory, as far as this server was told of parents.
    pub(crate) fn has_ended_in_a_move(&self, ended: SessionId) -> bool {
        self.ended_in_a_move.lock().contains(&ended)
    }

    /// Whether an earlier life of this server was moving a directory, and that is not known to be over.
    pub(crate) fn is_move_in_doubt(&self, dir: Ino) -> bool {
        let moves = |left: &InDoubt| match left.lock.role {
            Role::ExchangeSource { ino, .. } => left.lock.ino == dir || ino == dir,
            _ => left.lock.ino == dir,
        };
        self.in_doubt.lock().values().any(moves)
    }

    /// An earlier life has left this undecided.
    pub(crate) fn left_in_doubt(&self, tx: TxId, left: InDoubt) {
        self.begin(tx);
        self.in_doubt.lock().insert(tx, left);
    }

    /// What an earlier life has left undecided.
    pub(crate) fn all_in_doubt(&self) -> Vec<TxId> {
        self.in_doubt.lock().keys().copied().collect()
    }

    /// One of these.
    pub(crate) fn in_doubt(&self, tx: TxId) -> Option<InDoubt> {
        self.in_doubt.lock().get(&tx).cloned()
    }

    /// It is over.
    pub(crate) fn settled(&self, tx: TxId) {
        self.in_doubt.lock().remove(&tx);
        self.end(tx);
    }

    /// At the side of the new name: the transaction was not committed, and will not be. `false`: it was.
    pub(crate) fn give_up(&self, tx: TxId) -> bool {
        if self.asked_later.lock().contains(&tx) {
            return false;
        }
        let mut finished = self.finished.lock();
        match finished.committed.get(&tx) {
            Some(committed) => !committed,
            None => {
                finished.note(tx, false);
                true
            }
        }
    }

    /// What became of a transaction: `None` while it is undecided. One that is not known was given
    /// up, since a committed one is kept until the other side has acknowledged.
    pub(crate) fn outcome(&self, tx: TxId) -> Option<bool> {
        match self.active.lock().get(&tx) {
            Some(None) => None,
            Some(Some(_)) => Some(true),
            None => Some(false),
        }
    }

    /// One that is decided and not yet over.
    pub(crate) fn decided(&self, tx: TxId) -> Option<Decided> {
        self.active.lock().get(&tx).cloned().flatten()
    }

    pub(crate) fn begin(&self, tx: TxId) {
        self.active.lock().insert(tx, None);
    }

    pub(crate) fn decide(&self, plan: &Arc<Move>, moved: Moved) {
        self.active.lock().insert(plan.tx, Some((plan.clone(), moved)));
    }

    pub(crate) fn end(&self, tx: TxId) {
        self.active.lock().remove(&tx);
    }

    pub(crate) fn finish(&self, tx: TxId, committed: bool) {
        self.finished.lock().note(tx, committed);
    }

    /// Those that were committed here, as far as they are remembered.
    pub(crate) fn committed(&self) -> Vec<TxId> {
        let mut all = self.asked_later.lock().clone();
        all.extend(self.finished.lock().committed.iter().filter(|(_, committed)| **committed).map(|(tx, _)| *tx));
        all.into_iter().collect()
    }

    /// The last of these, in the order in which they ended.
    pub(crate) fn last_committed(&self, count_max: usize) -> Vec<TxId> {
        let finished = self.finished.lock();
        let committed = finished.order.iter().rev().filter(|tx| finished.committed.get(tx) == Some(&true));
        let mut last: Vec<TxId> = committed.take(count_max).copied().collect();
        last.reverse();
        last
    }

    /// Whether one is over here, one way or the other.
    pub(crate) fn is_finished(&self, tx: TxId) -> bool {
        self.finished(tx).is_some()
    }

    /// Whether one was committed here.
    pub(crate) fn is_committed(&self, tx: TxId) -> bool {
        self.finished(tx) == Some(true)
    }

    /// Remembers those that were committed before the server started again.
    pub(crate) fn remember_committed(&self, committed: &[TxId]) {
        committed.iter().for_each(|tx| self.finish(*tx, true));
    }

    /// The same, until all servers have asked: none of them is forgotten for later ones.
    pub(crate) fn remember_committed_for_long(&self, committed: &[TxId]) {
        self.asked_later.lock().extend(committed);
    }

    /// All servers have started, and have asked about what they coordinated.
    pub(crate) fn all_have_asked(&self) {
        let asked = std::mem::take(&mut *self.asked_later.lock());
        asked.into_iter().for_each(|tx| self.finish(tx, true));
    }

    pub(crate) fn finished(&self, tx: TxId) -> Option<bool> {
        if self.asked_later.lock().contains(&tx) {
            return Some(true);
        }
        self.finished.lock().committed.get(&tx).copied()
    }
}

impl Finished {
    fn note(&mut self, tx: TxId, committed: bool) {
        if self.committed.insert(tx, committed).is_none() {
            self.order.push_back(tx);
        }
        if self.order.len() > FINISHED_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.committed.remove(&oldest);
        }
    }
}
