//! Leases: a session may use attributes and names of a file from its cache for a moment, because the server answers a
//! change of them only after the session has dropped them from its cache, or after the moment.
//!
//! Only sessions that listen (`Listen`) get leases; a mount is one. A lease is of an inode. The shard that answered
//! keeps it: the home for attributes, the shards of the entries for names. A change recalls the leases of all other
//! sessions in the same step, and its answer waits until they have confirmed the recall, at most for [`HELD`]. When
//! the table is full a session gets no lease, and asks the server every time.

use crate::claims::Claimants;
use crate::dispatch::{Output, Work, then};
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use crate::wait::Attempt;
use aze_io::claims::Claims;
use aze_meta::{Op, Shard};
use aze_proto::limits::LEASE_MS;
use aze_proto::message::Recall;
use aze_proto::{Code, Failure, FileKind, Ino, Reply, Request, SessionId, ShardId};
use aze_rpc::Proven;
use futures_channel::oneshot;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long a lease is honoured here. Its holder counts [`LEASE_MS`] from before it asked; the rest is for
/// clocks of different speed and for programs that are slow to take an answer in.
const HELD: Duration = Duration::from_millis(LEASE_MS as u64 * 3 / 2);
const HELD_NS: u64 = HELD.as_nanos() as u64;

/// Leases of all sessions together, and of one: about 120 bytes each.
const LEASES_MAX: usize = 1 << 19;
const LEASES_OF_SESSION_MAX: usize = 1 << 17;

/// Recalls that are told at once. A session that has more to confirm is given no lease.
const RECALLS_MAX: usize = 4096;

/// Sessions that listen at one time.
const LISTENERS_MAX: usize = 1 << 14;

/// How long a question waits for a recall: less than the silence after which it would be sent again.
const ANSWER_TIME: Duration = Duration::from_millis(900);

/// After so many sweeps that find no expired lease the task that sweeps ends: then no claim counts any more.
const QUIET_SWEEPS: usize = 3;

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
    /// Sessions that may claim names and attributes which they read of this server's slate.
    claims: Option<Claimants>,
}

#[derive(Default)]
struct Recalls {
    last: u64,
    /// The shard and the end of each.
    open: BTreeMap<u64, (ShardId, u64)>,
    waiters: Vec<oneshot::Sender<()>>,
}

/// A session that listens.
pub(crate) struct Listener {
    session: SessionId,
    home: Arc<Leases>,
    given: AtomicUsize,
    heard_ns: AtomicU64,
    /// It has ended in good order, and its cache with it.
    is_gone: AtomicBool,
    /// Recalls to confirm, as in the mail.
    waiting: AtomicUsize,
    mail: Mutex<Mail>,
}

#[derive(Default)]
struct Mail {
    /// Recalls that it has not confirmed, and until when they matter.
    recalls: BTreeMap<u64, (Recall, u64)>,
    bell: Option<oneshot::Sender<()>>,
}

struct Lease {
    holder: Arc<Listener>,
    until_ns: u64,
    /// It covers attributes, or names, no longer; it counts until its time is over.
    lost_attrs: bool,
    lost_names: bool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.holder.given.fetch_sub(1, SeqCst);
        self.holder.home.given.fetch_sub(1, SeqCst);
    }
}

impl Listener {
    fn new(home: &Arc<Leases>, session: SessionId) -> Listener {
        Listener {
            session,
            home: home.clone(),
            given: AtomicUsize::new(0),
            heard_ns: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            mail: Mutex::default(),
        }
    }

    fn listens(&self, now_ns: u64) -> bool {
        now_ns < self.heard_ns.load(SeqCst) + LISTENS_NS
    }

    /// A lease that is counted, if there is room for one more.
    fn lease(self: &Arc<Self>, until_ns: u64) -> Option<Lease> {
        let (mine, all) = (self.given.fetch_add(1, SeqCst), self.home.given.fetch_add(1, SeqCst));
        let lease = Lease { holder: self.clone(), until_ns, lost_attrs: false, lost_names: false };
        (mine < LEASES_OF_SESSION_MAX && all < LEASES_MAX).then_some(lease)
    }

    fn recall(&self, shard: ShardId, recall: Recall, until_ns: u64) {
        if self.is_gone.load(SeqCst) {
            return;
        }
        let mut mail = self.mail.lock();
        let number = self.home.begin(shard, until_ns);
        mail.recalls.insert(number, (recall, until_ns));
        self.waiting.store(mail.recalls.len(), SeqCst);
        // Without a waiting question of the session, its next question finds the recall.
        mail.bell.take().map(|bell| bell.send(()));
    }

    /// Recalls to send to it.
    fn news(&self, now_ns: u64) -> Reply {
        let mut mail = self.mail.lock();
        mail.recalls.retain(|_, (_, until_ns)| *until_ns > now_ns);
        self.waiting.store(mail.recalls.len(), SeqCst);
        let told = || mail.recalls.iter().take(RECALLS_MAX);
        let last = told().next_back().map_or(0, |(number, _)| *number);
        let recalls = told().map(|(_, (recall, _))| *recall).collect();
        Reply::Recalled { life: self.home.life, last, recalls }
    }

    /// It has let go of everything up to this number.
    fn confirmed(&self, last: u64) {
        let mut mail = self.mail.lock();
        let left = mail.recalls.split_off(&last.saturating_add(1));
        let done = std::mem::replace(&mut mail.recalls, left);
        self.waiting.store(mail.recalls.len(), SeqCst);
        drop(mail);
        self.home.end(done.into_keys());
    }
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

    /// The session, if it listens.
    pub(crate) fn listener(&self, session: SessionId, now_ns: u64) -> Option<Arc<Listener>> {
        self.listeners.read().get(&session).filter(|listener| listener.listens(now_ns)).cloned()
    }

    /// The session listens from now on.
    fn listens(self: &Arc<Self>, session: SessionId, now_ns: u64) -> Result<Arc<Listener>, Failure> {
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
            listener.mail.lock().bell = None;
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

    /// What to wait for so that no recall of the shard up to `mark` is open any more, and for how long at
    /// most; `None` if there is none.
    fn open_of(&self, shard: ShardId, mark: u64, now_ns: u64) -> Option<(oneshot::Receiver<()>, Duration)> {
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
    fn sweep(&self, now_ns: u64) -> bool {
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

    /// Leases and sessions that listen.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.given.load(SeqCst), self.listeners.read().len())
    }
}

/// The leases of one shard.
#[derive(Default)]
pub(crate) struct Told {
    leases: BTreeMap<Ino, Vec<Lease>>,
    /// When to look whether a lease is over, one for each.
    order: VecDeque<(u64, Ino, SessionId)>,
    /// All leases of the server, for those that are claimed.
    home: Option<Arc<Leases>>,
}

impl Told {
    /// Of a shard of this server.
    pub(crate) fn of(home: &Arc<Leases>) -> Told {
        Told { home: Some(home.clone()), ..Told::default() }
    }

    /// Gives a lease of an inode, or makes it last anew.
    pub(crate) fn give(&mut self, ino: Ino, listener: &Arc<Listener>, now_ns: u64) -> bool {
        self.sweep(now_ns);
        if listener.waiting.load(SeqCst) >= RECALLS_MAX {
            return false;
        }
        let until_ns = now_ns + HELD_NS;
        let leases = self.leases.entry(ino).or_default();
        if let Some(known) = leases.iter_mut().find(|lease| lease.holder.session == listener.session) {
            known.until_ns = until_ns;
            (known.lost_attrs, known.lost_names) = (false, false);
            return true;
        }
        let lease = listener.lease(until_ns);
        let is_given = lease.is_some();
        leases.extend(lease);
        if leases.is_empty() {
            self.leases.remove(&ino);
        }
        if is_given {
            self.order.push_back((until_ns, ino, listener.session));
        }
        is_given
    }

    /// Removes expired leases.
    fn sweep(&mut self, now_ns: u64) {
        while let Some((_, ino, session)) = self.order.pop_front_if(|(until_ns, ..)| *until_ns <= now_ns) {
            let Some(leases) = self.leases.get_mut(&ino) else { continue };
            if let Some(place) = leases.iter().position(|lease| lease.holder.session == session) {
                match leases[place].until_ns {
                    later if later > now_ns => self.order.push_back((later, ino, session)),
                    _ => drop(leases.swap_remove(place)),
                }
            }
            if leases.is_empty() {
                self.leases.remove(&ino);
            }
        }
    }

    /// Whether no session has a lease here, nor can have claimed one.
    pub(crate) fn is_empty(&self) -> bool {
        let claims = self.home.as_ref().and_then(|home| home.claims.as_ref());
        self.leases.is_empty() && claims.is_none_or(Claimants::is_empty)
    }

    /// Recalls the leases of an inode, but for those of the session `by`.
    fn recall(&mut self, shard: ShardId, recall: Recall, by: Option<SessionId>) {
        if let Some(home) = &self.home {
            home.recall_claims(shard, recall, by);
        }
        let Some(leases) = self.leases.get_mut(&recall.ino) else { return };
        for lease in leases.iter_mut().filter(|lease| Some(lease.holder.session) != by) {
            // A session that has dropped the attributes may still use the name.
            let is_known = lease.lost_names || (lease.lost_attrs && !recall.names);
            if is_known {
                continue;
            }
            lease.lost_attrs = true;
            lease.lost_names = recall.names;
            lease.holder.recall(shard, recall, lease.until_ns);
        }
    }
}

/// What an operation is about to take a name from, or to give another meaning.
pub(crate) fn loses_name(shard: &Shard, op: &Op) -> Option<Ino> {
    match op {
        Op::Remove { key, .. } | Op::Insert { key, .. } | Op::Exchange { key, .. } => {
            shard.entry(key).map(|entry| entry.ino)
        }
        _ => None,
    }
}

/// Recalls what an operation that has been applied has changed; `lost` is what [`loses_name`] gave before.
pub(crate) fn recall_changed(told: &mut Told, shard: ShardId, op: &Op, lost: Option<Ino>, by: SessionId) {
    if let Some(ino) = lost {
        // The session that makes the change gets no recall. One that renames learns the moved inodes from the answer
        // (`Moved`), and drops them: its kernel goes on using the new name, for which it has no lease.
        told.recall(shard, Recall { ino, names: true }, Some(by));
    }
    // The sessions that knew a deleted file had their recall when its last name was removed.
    let changed = match op {
        Op::SetAttr { ino, .. }
        | Op::Report { ino, .. }
        | Op::Wrote { ino, .. }
        | Op::Appended { ino, .. }
        | Op::Truncate { ino, .. }
        | Op::LinkBegin { ino, .. }
        | Op::LinkEnd { ino, .. }
        | Op::LinkDrop { ino, .. }
        | Op::SetXattr { ino, .. }
        | Op::SetLinks { ino, .. } => *ino,
        Op::MakeRoot { .. }
        | Op::Create { .. }
        | Op::CreateWith { .. }
        | Op::Remove { .. }
        | Op::Insert { .. }
        | Op::LinkInsert { .. }
        | Op::Exchange { .. }
        | Op::Lock { .. }
        | Op::Unlock { .. }
        | Op::CutDone { .. }
        | Op::SetParent { .. }
        | Op::Delete { .. }
        | Op::Record { .. }
        | Op::ReserveInos { .. }
        | Op::LinkForget { .. }
        | Op::LooseEnd { .. }
        | Op::EndSession { .. }
        | Op::ExpireOutcomes => return,
    };
    told.recall(shard, Recall { ino: changed, names: false }, Some(by));
}

impl Server {
    /// The session that asks, if it gets leases.
    pub(crate) fn listener_of(self: &Arc<Self>, work: &Work) -> Option<Arc<Listener>> {
        work.responder.as_ref()?;
        self.leases.listener(work.session, self.io.mono_ns())
    }

    /// Gives the session that asks a lease of an inode in its answer, if it listens. Directories have none: their
    /// times and counts change in many places.
    pub(crate) fn lease(self: &Arc<Self>, work: &Work, names: &mut Names, ino: Ino, kind: FileKind) -> bool {
        let listener = if kind == FileKind::Directory { None } else { self.listener_of(work) };
        listener.is_some_and(|listener| names.shard.told.give(ino, &listener, self.io.mono_ns()))
    }

    /// Answers when a lease of the session is recalled, or soon in any case.
    pub(crate) fn await_recall(self: &Arc<Self>, work: &Work, life: u64, confirmed: u64) -> Attempt<Output> {
        let now_ns = self.io.mono_ns();
        let listener = self.leases.listens(work.session, now_ns)?;
        if self.sessions.is_ended(work.session) {
            // It has ended since this request was admitted; ending it removes its leases after that.
            self.leases.forget(work.session);
            return Err(Failure::new(Code::Expired, format!("{}: the session was ended", self.who())).into());
        }
        self.sweep_leases();
        if life == self.leases.life {
            listener.confirmed(confirmed);
        }
        let rung = {
            let mut mail = listener.mail.lock();
            if mail.recalls.values().any(|(_, until_ns)| *until_ns > now_ns) {
                drop(mail);
                return Ok(listener.news(now_ns).into());
            }
            let (bell, rung) = oneshot::channel();
            // An older question is answered by this: it has been given up, or will be asked again.
            mail.bell = Some(bell);
            rung
        };
        let server = self.clone();
        then(async move {
            // Also if a newer question has taken its place.
            let _ = server.io.timeout(ANSWER_TIME, rung).await;
            Ok(listener.news(server.io.mono_ns()))
        })
    }

    /// As [`Self::sweep_leases`].
    pub(crate) fn sweep_leases_soon(&self) {
        if let Some(server) = self.me.upgrade() {
            server.sweep_leases();
        }
    }

    /// Has a task remove expired leases, for as long as there are leases.
    pub(crate) fn sweep_leases(self: &Arc<Self>) {
        if self.leases.is_swept.swap(true, SeqCst) {
            return;
        }
        let server = self.clone();
        self.io.spawn(async move {
            let mut quiet = 0;
            loop {
                server.io.sleep(HELD).await;
                let now_ns = server.io.mono_ns();
                if let Some(claims) = &server.leases.claims {
                    claims.turn(now_ns);
                }
                for cell in server.shards.iter() {
                    cell.names.lock().shard.told.sweep(now_ns);
                }
                // The last claim expires only after two more periods.
                quiet = if server.leases.sweep(now_ns) { 0 } else { quiet + 1 };
                let mut goes_on = quiet < QUIET_SWEEPS;
                if !goes_on {
                    server.leases.is_swept.store(false, SeqCst);
                    // Another task may have given a lease in between, and have relied on this one.
                    goes_on = server.leases.sweep(now_ns) && !server.leases.is_swept.swap(true, SeqCst);
                }
                if !goes_on || server.is_stopping() {
                    return;
                }
            }
        });
    }

    /// Whether the answer to a request may have to wait for recalls: those that change nothing need not.
    pub(crate) fn waits_for_recalls(&self, request: &Request) -> bool {
        let may_change = request.is_change() || matches!(request, Request::Commit { .. });
        if !may_change || self.config.switches.is(Sabotage::SkipRecallWait) {
            return false;
        }
        let settled_ns = self.leases.settled_ns.load(SeqCst);
        self.leases.open.load(SeqCst) > 0 || (settled_ns > 0 && self.io.mono_ns() < settled_ns)
    }

    /// Waits until no session has a lease that is older than the last change of a shard.
    pub(crate) async fn recalled(&self, shard: ShardId) {
        let settled_ns = self.leases.settled_ns.load(SeqCst);
        let unsettled = Duration::from_nanos(settled_ns.saturating_sub(self.io.mono_ns()));
        if !unsettled.is_zero() {
            self.io.sleep(unsettled).await;
        }
        let mark = self.leases.recalls.lock().last;
        while let Some((changed, left)) = self.leases.open_of(shard, mark, self.io.mono_ns()) {
            // Whichever it was: look again.
            let _ = self.io.timeout(left, changed).await;
        }
    }

    /// How many leases there are, and sessions that listen.
    pub fn lease_counts(&self) -> (usize, usize) {
        self.leases.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut told = Told::default();
        assert!(told.give(Ino(5), &one, 0) && told.give(Ino(5), &two, 0) && told.give(Ino(6), &two, 0));
        told.recall(SHARD, CHANGED, Some(ONE));
        assert!(leases.open_of(SHARD, 1, 1).is_some() && leases.open_of(ShardId(4), 1, 1).is_none());
        assert_eq!(recalls_of(&one, 1), (0, 0), "its own change");
        let (last, count) = recalls_of(&two, 1);
        assert_eq!(count, 1);
        assert_eq!(recalls_of(&two, 1), (last, 1), "the answer may have been lost");
        two.confirmed(last);
        assert!(leases.open_of(SHARD, 9, 1).is_none());
        told.recall(SHARD, CHANGED, Some(ONE));
        assert!(leases.open_of(SHARD, 9, 1).is_none(), "it has been recalled");
        told.recall(SHARD, Recall { ino: Ino(5), names: true }, Some(ONE));
        let (last, count) = recalls_of(&two, 1);
        assert_eq!(count, 1, "but not its name");
        two.confirmed(last);
        assert!(told.give(Ino(5), &two, 2));
        told.recall(SHARD, CHANGED, Some(ONE));
        assert!(leases.open_of(SHARD, 9, HELD_NS + 1).is_some());
        assert!(leases.open_of(SHARD, 9, HELD_NS + 2).is_none(), "nobody believes it any more");
        told.give(Ino(6), &two, 3);
        leases.left(TWO);
        told.recall(SHARD, Recall { ino: Ino(6), names: true }, Some(ONE));
        assert!(leases.open_of(SHARD, 9, 4).is_none(), "it has ended");
        told.sweep(3 * HELD_NS);
        assert!(told.is_empty() && told.order.is_empty());
        assert!(!leases.sweep(3 * HELD_NS));
        assert_eq!(leases.counts(), (0, 0));
    }

    #[test]
    fn where_there_is_no_room_no_lease_is_given() {
        let leases = Leases::new(SessionId(9), None);
        let (one, two) = (leases.listens(ONE, 0).expect("room"), leases.listens(TWO, 0).expect("room"));
        let mut told = Told::default();
        let given = (0..2 * LEASES_OF_SESSION_MAX as u64).filter(|ino| told.give(Ino(*ino), &one, 0)).count();
        assert_eq!((given, leases.counts().0), (LEASES_OF_SESSION_MAX, LEASES_OF_SESSION_MAX));
        assert!(told.order.len() <= LEASES_OF_SESSION_MAX && told.leases.len() <= LEASES_OF_SESSION_MAX);
        assert!(told.give(Ino(1), &one, 1), "one that it has lasts anew");
        // A session that never confirms gets no lease any more.
        let mut asked = 0;
        while told.give(Ino(7), &two, 1) {
            told.recall(SHARD, Recall { ino: Ino(7), names: false }, Some(ONE));
            asked += 1;
        }
        assert_eq!(asked, RECALLS_MAX);
        assert_eq!(recalls_of(&two, 2).1, RECALLS_MAX);
    }
}
