//! Leases: a session may use attributes and names of a file from its cache for a moment, because the server answers a
//! change of them only after the session has dropped them from its cache, or after the moment.
//!
//! Only sessions that listen (`Listen`) get leases; a mount is one. A lease is of an inode. The shard that answered
//! keeps it: the home for attributes, the shards of the entries for names. A change recalls the leases of all other
//! sessions in the same step, and its answer waits until they have confirmed the recall, at most for [`HELD`]. When
//! the table is full a session gets no lease, and asks the server every time.

mod lease_table;
mod listener;

pub(crate) use lease_table::{LeaseTable, loses_name, recall_changed, recall_names};
pub(crate) use listener::Listener;

use crate::coherence::state::claims::Claimants;
use aze_io::claims::Claims;
use aze_io::sync::{Mutex, RwLock};
use aze_proto::limits::LEASE_MS;
use aze_proto::message::Recall;
use aze_proto::{Code, Failure, SessionId, ShardId};
use aze_rpc::Proven;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a lease is honoured here. Its holder counts [`LEASE_MS`] from before it asked; the rest is for
/// clocks of different speed and for programs that are slow to take an answer in.
pub(crate) const HELD: Duration = Duration::from_millis(LEASE_MS as u64 * 3 / 2);
const HELD_NS: u64 = HELD.as_nanos() as u64;

/// Leases of all sessions together, and of one: about 120 bytes each.
const LEASES_MAX: usize = 1 << 19;
const LEASES_OF_SESSION_MAX: usize = 1 << 17;

/// Recalls that are told at once. A session that has more to confirm is given no lease.
const RECALLS_MAX: usize = 4096;

/// Sessions that listen at one time.
const LISTENERS_MAX: usize = 1 << 14;

/// How long after its last question a session is given leases: it asks again at once.
const LISTENS_NS: u64 = 1_200_000_000;

/// What all shards of a server share.
pub(crate) struct Leases {
    /// The session of this server, told apart from its earlier lives by that.
    life: u64,
    /// Before this moment leases of an earlier life may still hold.
    settled_ns: AtomicU64,
    listeners: RwLock<BTreeMap<SessionId, Arc<Listener>>>,
    /// Leases that there are.
    given: AtomicUsize,
    /// Recalls that have not ended; zero in nearly every moment.
    open: AtomicUsize,
    recalls: Mutex<Recalls>,
    /// A task removes expired leases.
    is_swept: AtomicBool,
    /// Sessions that may claim names and attributes which they read of this server's published index.
    claims: Option<Claimants>,
}

#[derive(Default)]
struct Recalls {
    last: u64,
    /// The shard and the end of each.
    open: BTreeMap<u64, (ShardId, u64)>,
    waiters: Vec<oneshot::Sender<()>>,
}

impl Leases {
    pub(crate) fn new(life: SessionId, claims: Option<Claimants>) -> Arc<Leases> {
        Arc::new(Leases {
            life: life.0,
            settled_ns: AtomicU64::new(0),
            listeners: RwLock::default(),
            given: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            recalls: Mutex::default(),
            is_swept: AtomicBool::new(false),
            claims,
        })
    }

    /// This server had an earlier life, whose leases may still hold.
    pub(crate) fn inherit(&self, now_ns: u64) {
        self.settled_ns.store(now_ns + HELD_NS, SeqCst);
    }

    /// How long leases of an earlier life may still hold.
    pub(crate) fn inherited_for(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.settled_ns.load(SeqCst).saturating_sub(now_ns))
    }

    /// Which life of the server this is.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Whether this is the life that a session was told.
    pub(crate) fn is_life(&self, life: u64) -> bool {
        life == self.life
    }

    /// The session, if it listens.
    pub(crate) fn listener(&self, session: SessionId, now_ns: u64) -> Option<Arc<Listener>> {
        self.listeners.read().get(&session).filter(|listener| listener.listens(now_ns)).cloned()
    }

    /// The session listens from now on.
    pub(crate) fn listens(self: &Arc<Self>, session: SessionId, now_ns: u64) -> Result<Arc<Listener>, Failure> {
        let mut listeners = self.listeners.write();
        if listeners.len() >= LISTENERS_MAX && !listeners.contains_key(&session) {
            return Err(Failure::new(Code::Limit, format!("{LISTENERS_MAX} sessions listen already")));
        }
        let listener = listeners.entry(session).or_insert_with(|| Arc::new(Listener::new(self, session)));
        listener.heard_ns.fetch_max(now_ns, SeqCst);
        Ok(listener.clone())
    }

    /// Recalls the claims of an inode, but for those of the session `by`.
    fn recall_claims(self: &Arc<Self>, shard: ShardId, recall: Recall, by: Option<SessionId>) {
        let Some(claims) = &self.claims else { return };
        for session in claims.take(shard, recall, by) {
            let until_ns = claims.now_ns() + HELD_NS;
            let known = self.listeners.read().get(&session).cloned();
            // Its next Listen finds the recall.
            match known.map_or_else(|| self.listens(session, 0), Ok) {
                Ok(listener) => listener.recall(shard, recall, until_ns),
                Err(_) => drop(self.begin(shard, until_ns)),
            }
        }
    }

    /// A connection over which something may be claimed from now on.
    pub(crate) fn enter(&self, who: &Arc<Proven>, claims: Claims) {
        if let Some(claimants) = &self.claims {
            claimants.enter(who, claims);
        }
    }

    /// A connection has ended; the claims that came over it last no longer than leases do. Returns whether there may be
    /// any.
    pub(crate) fn leave(&self, who: &Arc<Proven>) -> bool {
        self.claims.as_ref().is_some_and(|claims| claims.leave(who, claims.now_ns() + HELD_NS))
    }

    /// The session is away or has ended: it gets no recall any more, and its leases expire.
    pub(crate) fn forget(&self, session: SessionId) {
        let listener = self.listeners.write().remove(&session);
        if let Some(listener) = listener {
            listener.mail.lock().wakeup = None;
        }
    }

    /// The session says itself that it has ended: it holds nothing.
    pub(crate) fn left(&self, session: SessionId) {
        let listener = self.listeners.read().get(&session).cloned();
        if let Some(listener) = listener {
            listener.is_gone.store(true, SeqCst);
            listener.confirmed(u64::MAX);
        }
        if let Some(claims) = &self.claims {
            claims.end(session);
        }
    }

    fn begin(&self, shard: ShardId, until_ns: u64) -> u64 {
        let mut recalls = self.recalls.lock();
        recalls.last += 1;
        let number = recalls.last;
        recalls.open.insert(number, (shard, until_ns));
        self.open.store(recalls.open.len(), SeqCst);
        number
    }

    fn end(&self, numbers: impl Iterator<Item = u64>) {
        let mut recalls = self.recalls.lock();
        for number in numbers {
            recalls.open.remove(&number);
        }
        self.open.store(recalls.open.len(), SeqCst);
        let waiters = std::mem::take(&mut recalls.waiters);
        drop(recalls);
        for waiter in waiters {
            // A task that has given up does not receive.
            let _ = waiter.send(());
        }
    }

    /// Whether any answer may have to wait: for a recall, or for leases of an earlier life.
    pub(crate) fn may_hold_answers(&self, now_ns: impl FnOnce() -> u64) -> bool {
        let settled_ns = self.settled_ns.load(SeqCst);
        self.open.load(SeqCst) > 0 || (settled_ns > 0 && now_ns() < settled_ns)
    }

    /// The number of the last recall.
    pub(crate) fn last_recall(&self) -> u64 {
        self.recalls.lock().last
    }

    /// What to wait for so that no recall of the shard up to `mark` is open any more, and for how long at
    /// most; `None` if there is none.
    pub(crate) fn open_of(&self, shard: ShardId, mark: u64, now_ns: u64) -> Option<(oneshot::Receiver<()>, Duration)> {
        let mut recalls = self.recalls.lock();
        recalls.open.retain(|_, (_, until_ns)| *until_ns > now_ns);
        self.open.store(recalls.open.len(), SeqCst);
        let of_shard = recalls.open.range(..=mark).filter(|(_, (of, _))| *of == shard);
        let until_ns = of_shard.map(|(_, (_, until_ns))| *until_ns).max()?;
        let (sender, receiver) = oneshot::channel();
        recalls.waiters.push(sender);
        Some((receiver, Duration::from_nanos(until_ns - now_ns)))
    }

    /// Forgets sessions that do not listen any more, and recalls that are over; gives whether anything is left.
    pub(crate) fn sweep(&self, now_ns: u64) -> bool {
        let mut listeners = self.listeners.write();
        listeners.retain(|_, listener| {
            let mut mail = listener.mail.lock();
            mail.recalls.retain(|_, (_, until_ns)| *until_ns > now_ns);
            listener.waiting.store(mail.recalls.len(), SeqCst);
            !mail.recalls.is_empty() || listener.listens(now_ns) || listener.given.load(SeqCst) > 0
        });
        let mut recalls = self.recalls.lock();
        recalls.open.retain(|_, (_, until_ns)| *until_ns > now_ns);
        self.open.store(recalls.open.len(), SeqCst);
        recalls.waiters.retain(|waiter| !waiter.is_canceled());
        !listeners.is_empty() || self.given.load(SeqCst) > 0
    }

    /// Notes that a task removes expired leases; `false` if one does already.
    pub(crate) fn begin_sweeping(&self) -> bool {
        !self.is_swept.swap(true, SeqCst)
    }

    /// That task ends.
    pub(crate) fn end_sweeping(&self) {
        self.is_swept.store(false, SeqCst);
    }

    /// Begins a new period of claims, if there are any.
    pub(crate) fn turn_claims(&self, now_ns: u64) {
        if let Some(claims) = &self.claims {
            claims.turn(now_ns);
        }
    }

    /// Leases and sessions that listen.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.given.load(SeqCst), self.listeners.read().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::{Ino, Reply};

    const SHARD: ShardId = ShardId(3);
    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);
    const CHANGED: Recall = Recall { ino: Ino(5), names: false };

    fn recalls_of(listener: &Listener, now_ns: u64) -> (u64, usize) {
        match listener.news(now_ns) {
            Reply::Recalled { last, recalls, .. } => (last, recalls.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_change_waits_for_others_until_they_confirm_or_their_time_is_over() {
        let leases = Leases::new(SessionId(9), None);
        let (one, two) = (leases.listens(ONE, 0).expect("room"), leases.listens(TWO, 0).expect("room"));
        let mut lease_table = LeaseTable::default();
        assert!(
            lease_table.give(Ino(5), &one, 0) && lease_table.give(Ino(5), &two, 0) && lease_table.give(Ino(6), &two, 0)
        );
        lease_table.recall(SHARD, CHANGED, Some(ONE));
        assert!(leases.open_of(SHARD, 1, 1).is_some() && leases.open_of(ShardId(4), 1, 1).is_none());
        assert_eq!(recalls_of(&one, 1), (0, 0), "its own change");
        let (last, count) = recalls_of(&two, 1);
        assert_eq!(count, 1);
        assert_eq!(recalls_of(&two, 1), (last, 1), "the answer may have been lost");
        two.confirmed(last);
        assert!(leases.open_of(SHARD, 9, 1).is_none());
        lease_table.recall(SHARD, CHANGED, Some(ONE));
        assert!(leases.open_of(SHARD, 9, 1).is_none(), "it has been recalled");
        lease_table.recall(SHARD, Recall { ino: Ino(5), names: true }, Some(ONE));
        let (last, count) = recalls_of(&two, 1);
        assert_eq!(count, 1, "but not its name");
        two.confirmed(last);
        assert!(lease_table.give(Ino(5), &two, 2));
        lease_table.recall(SHARD, CHANGED, Some(ONE));
        assert!(leases.open_of(SHARD, 9, HELD_NS + 1).is_some());
        assert!(leases.open_of(SHARD, 9, HELD_NS + 2).is_none(), "nobody believes it any more");
        lease_table.give(Ino(6), &two, 3);
        leases.left(TWO);
        lease_table.recall(SHARD, Recall { ino: Ino(6), names: true }, Some(ONE));
        assert!(leases.open_of(SHARD, 9, 4).is_none(), "it has ended");
        lease_table.sweep(3 * HELD_NS);
        assert!(lease_table.is_empty() && lease_table.order.is_empty());
        assert!(!leases.sweep(3 * HELD_NS));
        assert_eq!(leases.counts(), (0, 0));
    }

    #[test]
    fn where_there_is_no_room_no_lease_is_given() {
        let leases = Leases::new(SessionId(9), None);
        let (one, two) = (leases.listens(ONE, 0).expect("room"), leases.listens(TWO, 0).expect("room"));
        let mut lease_table = LeaseTable::default();
        let given = (0..2 * LEASES_OF_SESSION_MAX as u64).filter(|ino| lease_table.give(Ino(*ino), &one, 0)).count();
        assert_eq!((given, leases.counts().0), (LEASES_OF_SESSION_MAX, LEASES_OF_SESSION_MAX));
        assert!(lease_table.order.len() <= LEASES_OF_SESSION_MAX && lease_table.leases.len() <= LEASES_OF_SESSION_MAX);
        assert!(lease_table.give(Ino(1), &one, 1), "one that it has lasts anew");
        // A session that never confirms gets no lease any more.
        let mut asked = 0;
        while lease_table.give(Ino(7), &two, 1) {
            lease_table.recall(SHARD, Recall { ino: Ino(7), names: false }, Some(ONE));
            asked += 1;
        }
        assert_eq!(asked, RECALLS_MAX);
        assert_eq!(recalls_of(&two, 2).1, RECALLS_MAX);
    }
}
