//! A slot on its way: whether this server gives or takes one, which requests wait meanwhile, and what a giver remembers of
//! slots that it has given.

use crate::membership::state::pieces::OpenRow;
use crate::names::state::held::Opens;
use crate::names::state::lock_table::FileLocks;
use aze_io::sync::{Mutex, MutexGuard};
use aze_meta::Shard;
use aze_proto::ids::{Configuration, Incarnation, Ino, ServerIndex, SessionId, ShardId, SlotIndex, Time, TxId};
use aze_proto::retry::{RetryTable, Verdict};
use aze_proto::rules::{Changes, Pace, To, When};
use aze_proto::slots::slot_of;
use aze_proto::{Failure, Reply, Request, Sequence};
use aze_store::{ChangeCount, ChunkShard};
use futures_channel::oneshot;
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncGuard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

type Outcome = Result<Reply, Failure>;

/// A server's part in a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing.
    #[default]
    Rests,
    /// It finishes the requests that it works on, so as to give the slot.
    Drains,
    /// The slot does not change here any more until the map names its server.
    Gives { moving: u64, slot: SlotIndex, to: ServerIndex },
    /// All of the slot is here, and not served until the map says so.
    Takes { moving: u64, slot: SlotIndex, from: ServerIndex },
}

/// A slot on its way to or from this server.
pub(crate) struct Moving {
    /// How many slots the volume has.
    slots: u32,
    table: Mutex<Table>,
    /// Whether the phase is another one than [`Phase::Rests`].
    is_busy: AtomicBool,
    /// Requests that are being worked on, but for those that only wait for something to happen.
    under_way: AtomicUsize,
    giving: AsyncMutex<Giving>,
    /// Held by the thread that ends a move here: a new map and the word that the move is over may come at the same moment.
    ending: Mutex<()>,
}

#[derive(Default)]
struct Table {
    phase: Phase,
    /// Up to this move nothing is taken any more.
    over: u64,
    pending: Option<Pending>,
    waiters: Vec<oneshot::Sender<()>>,
    /// How requests ended in the shards of slots that were given: their senders may not know.
    given: BTreeMap<ShardId, Given>,
    /// Sessions that had something open or locked in slots that were given, and who has these slots.
    heirs: BTreeMap<SessionId, BTreeSet<ServerIndex>>,
    /// Sessions that have something open or locked in slots that were taken, and perhaps no connection here: who tells of
    /// their end, in which process.
    vouched: BTreeMap<SessionId, BTreeMap<ServerIndex, SessionId>>,
}

struct Given {
    names: RetryTable<Outcome>,
    data: RetryTable<Outcome>,
}

/// The pieces that a giver has sent so far.
#[derive(Default)]
pub(crate) struct Giving {
    pub(crate) moving: u64,
    /// The number of the next piece.
    pub(crate) pieces: u64,
    /// Files that the taker has, as they were when they were sent.
    pub(crate) sent: BTreeMap<(ShardId, Ino), ChangeCount>,
    /// Files that the giver has still to send in advance.
    pub(crate) plan: VecDeque<(ShardId, Ino)>,
    /// How often that was made up.
    pub(crate) plans: u32,
}

/// A slot that is arriving.
pub(crate) struct Pending {
    pub(crate) moving: u64,
    pub(crate) from: ServerIndex,
    /// The giver's process.
    pub(crate) process: SessionId,
    /// Numbers of the pieces that were taken in.
    pub(crate) seen: BTreeSet<u64>,
    pub(crate) parts: BTreeMap<ShardId, Arriving>,
    pub(crate) changed: BTreeMap<Ino, Time>,
    /// The part of each directory that comes with the slot, once it is counted.
    pub(crate) directories: BTreeMap<Ino, Brought>,
    /// Clients may believe answers of the giver.
    pub(crate) leased: bool,
    /// The giver was told, or may have been, that all of it is here: only the end of the move changes that.
    pub(crate) is_ready: bool,
    /// Checkpoints have it, in the configuration that the slot will have here. On a volume in memory: never.
    pub(crate) kept: Option<Configuration>,
    /// Renames that were committed at the giver.
    pub(crate) finished: Vec<TxId>,
}

/// All that a giver has sent of a slot when it says so. A giver that goes on serving the slot then sends more pieces;
/// the first of them says that the others begin anew.
#[derive(Clone, Copy)]
pub(crate) struct Sending {
    pub(crate) moving: u64,
    pub(crate) pieces: u64,
}

impl Pending {
    /// Whether these pieces have been taken in, and no others.
    pub(crate) fn is_all(&self, pieces: u64) -> bool {
        self.seen.len() as u64 == pieces && self.seen.last().is_none_or(|last| *last < pieces)
    }

    fn put_off(&mut self) -> BTreeMap<Ino, Brought> {
        (self.is_ready, self.kept) = (false, None);
        std::mem::take(&mut self.directories)
    }
}

impl Table {
    /// What arrives, if this server takes it, and the giver has sent nothing since.
    fn taken(&mut self, sending: Sending) -> Option<&mut Pending> {
        let Sending { moving, pieces } = sending;
        let takes = matches!(self.phase, Phase::Takes { moving: current, .. } if current == moving);
        self.pending.as_mut().filter(|pending| takes && pending.moving == moving && pending.is_all(pieces))
    }
}

/// One shard of it.
pub(crate) struct Arriving {
    pub(crate) names: Shard,
    pub(crate) data: ChunkShard,
    pub(crate) opens: Vec<OpenRow>,
    pub(crate) locks: BTreeMap<Ino, FileLocks>,
    pub(crate) holders: BTreeMap<Ino, (u64, BTreeMap<ServerIndex, Incarnation>)>,
    pub(crate) unnamed: BTreeSet<Ino>,
}

/// The part of a directory that comes or goes with a slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Brought {
    pub(crate) entries: u64,
    pub(crate) subdirs: u64,
    pub(crate) changed: Time,
    pub(crate) shards: BTreeSet<ShardId>,
}

/// A request that is being worked on, until this is dropped.
pub(crate) struct UnderWay(Arc<Moving>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

/// Why a slot is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The move is over, and was given up.
    Over,
    /// Another one is not over yet.
    Other,
}

impl Moving {
    pub(crate) fn new(slots: u32) -> Arc<Moving> {
        Arc::new(Moving {
            slots,
            table: Mutex::default(),
            is_busy: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            giving: AsyncMutex::default(),
            ending: Mutex::default(),
        })
    }

    /// Held while a move is ended here.
    pub(crate) fn ends(&self) -> MutexGuard<'_, ()> {
        self.ending.lock()
    }

    /// The move that a map decides, in which the slot is the taker's; `is_mine` says whether a slot is this server's by that map.
    pub(crate) fn decided(&self, is_mine: impl Fn(SlotIndex) -> bool) -> Option<u64> {
        match self.phase() {
            Phase::Gives { moving, slot, .. } => (!is_mine(slot)).then_some(moving),
            Phase::Takes { moving, slot, .. } => is_mine(slot).then_some(moving),
            Phase::Drains | Phase::Rests => None,
        }
    }

    /// Begins to work on something, in any phase.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, SeqCst);
        UnderWay(self.clone())
    }

    /// Begins to work on something that must not happen while a slot is given or taken; `None` in another phase than
    /// [`Phase::Rests`], and then it is to be tried again when that has [changed](Self::changed).
    pub(crate) fn begin_at_rest(self: &Arc<Self>) -> Option<UnderWay> {
        // Counted before it looks, as in [`Self::enter`].
        let begun = self.begin();
        Some(begun).filter(|_| !self.is_busy.load(SeqCst))
    }

    /// Begins to work on a request that a client or a server has sent, this one too.
    ///
    /// # Errors
    /// It has to wait ([`Self::changed`]), and then to be tried again.
    pub(crate) fn enter(
        self: &Arc<Self>,
        request: &Request,
        shard: ShardId,
        by_server: bool,
    ) -> Result<Option<UnderWay>, ()> {
        let rules = request.rules();
        if request.moves_a_slot() || rules.to == To::Keeper || rules.when != When::Mapped {
            return Ok(None);
        }
        // Counted before it looks: a giver that begins to drain looks afterwards.
        let counted = self.begin();
        if self.is_busy.load(SeqCst) && self.holds(request, shard, by_server) {
            return Err(());
        }
        Ok(Some(counted).filter(|_| rules.pace != Pace::Waits))
    }

    /// Whether a request has to wait.
    fn holds(&self, request: &Request, shard: ShardId, by_server: bool) -> bool {
        match self.table.lock().phase {
            Phase::Rests => false,
            Phase::Drains => !by_server && request.rules().pace != Pace::Waits,
            Phase::Gives { slot, .. } | Phase::Takes { slot, .. } => match request.rules().to {
                To::Entry | To::Home | To::Chunk => slot_of(shard, self.slots) == slot,
                To::Slots => true,
                To::Server => matches!(
                    request,
                    Request::EndSession
                        | Request::FenceSession { .. }
                        | Request::StubClose { .. }
                        | Request::SessionGone { .. }
                ),
                To::Keeper => false,
            },
        }
    }

    /// Whether the phase is one in which sessions do not end.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_busy.load(SeqCst)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.table.lock().phase
    }

    /// How many requests are being worked on.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(SeqCst)
    }

    /// Resolves when the phase changes.
    pub(crate) fn changed(&self) -> Option<oneshot::Receiver<()>> {
        let mut table = self.table.lock();
        if table.phase == Phase::Rests {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        table.waiters.retain(|waiter| !waiter.is_canceled());
        table.waiters.push(sender);
        Some(receiver)
    }

    fn set(&self, table: &mut Table, phase: Phase) {
        table.phase = phase;
        self.is_busy.store(phase != Phase::Rests, SeqCst);
        for waiter in table.waiters.drain(..) {
            // A request that has given up does not receive.
            let _ = waiter.send(());
        }
    }

    /// Goes from one phase to another; `false` if it is in a third one.
    pub(crate) fn turn(&self, from: Phase, to: Phase) -> bool {
        let mut table = self.table.lock();
        let is_from = table.phase == from;
        if is_from {
            self.set(&mut table, to);
        }
        is_from
    }

    /// Goes from draining to giving, from which on requests that concern the slot wait, unless something is in the way;
    /// `look` says what, once nothing that has begun before can put it there.
    ///
    /// # Errors
    /// The obstacle; the phase is as before.
    pub(crate) fn try_to_give(&self, gives: Phase, look: impl FnOnce() -> Option<String>) -> Result<(), String> {
        let busy = || match self.under_way() {
            0 => None,
            under_way => Some(format!("{under_way} requests are being worked on")),
        };
        if let Some(why) = busy() {
            return Err(why);
        }
        if !self.turn(Phase::Drains, gives) {
            return Err("it does not drain any more".into());
        }
        // A request of another server may have begun before the turn, and has to end before the look.
        match busy().or_else(look) {
            None => Ok(()),
            Some(why) => {
                self.turn(gives, Phase::Drains);
                Err(why)
            }
        }
    }

    /// What this server has sent of the slot that it gives; one question at a time.
    pub(crate) fn try_giving(&self) -> Option<AsyncGuard<'_, Giving>> {
        self.giving.try_lock()
    }

    /// Remembers how requests in a shard ended that is given, for those who ask again.
    pub(crate) fn remember_given(&self, shard: ShardId, names: RetryTable<Outcome>, data: RetryTable<Outcome>) {
        self.table.lock().given.insert(shard, Given { names, data });
    }

    /// The shard is served here again.
    pub(crate) fn forget_given(&self, shard: ShardId) {
        self.table.lock().given.remove(&shard);
    }

    /// How a request in a shard ended that was given since.
    pub(crate) fn given_outcome(
        &self,
        request: &Request,
        shard: ShardId,
        (session, sequence, floor): (SessionId, Sequence, Sequence),
    ) -> Verdict<Outcome> {
        let table = self.table.lock();
        let Some(given) = table.given.get(&shard) else { return Verdict::New };
        if request.remembered_with() == Changes::Data
            && let known @ (Verdict::Done(_) | Verdict::TooOld) = given.data.check(session, sequence, floor)
        {
            return known;
        }
        given.names.check(session, sequence, floor)
    }

    /// Forgets outcomes that no client asks for any more.
    pub(crate) fn expire_given(&self) {
        self.table.lock().given.retain(|_, given| {
            given.names.expire();
            given.data.expire();
            !given.names.is_empty() || !given.data.is_empty()
        });
    }

    /// Sessions have something in a slot that another server has now.
    pub(crate) fn bequeath(&self, sessions: &BTreeSet<SessionId>, to: ServerIndex) {
        let mut table = self.table.lock();
        for session in sessions {
            table.heirs.entry(*session).or_default().insert(to);
        }
    }

    /// Who has to hear that a session has left. Each is told once: slots may have gone in a circle.
    pub(crate) fn take_heirs(&self, session: SessionId) -> BTreeSet<ServerIndex> {
        self.table.lock().heirs.remove(&session).unwrap_or_default()
    }

    /// Another server tells when a session ends, as long as its process runs.
    pub(crate) fn vouch(&self, session: SessionId, by: ServerIndex, process: SessionId) {
        self.table.lock().vouched.entry(session).or_default().insert(by, process);
    }

    /// It has told so, or knows nothing of the session, or the process that would have told, if that is said, has ended; gives the others that know
    /// that the session goes on.
    pub(crate) fn end_vouching(
        &self,
        session: SessionId,
        by: ServerIndex,
        process: Option<SessionId>,
    ) -> Vec<ServerIndex> {
        let mut table = self.table.lock();
        let Some(known) = table.vouched.get_mut(&session) else { return Vec::new() };
        if process.is_none_or(|process| known.get(&by) == Some(&process)) {
            known.remove(&by);
        }
        let others: Vec<ServerIndex> = known.keys().copied().collect();
        if others.is_empty() {
            table.vouched.remove(&session);
        }
        others
    }

    /// The sessions whose end a server would have told, and which process of it.
    pub(crate) fn vouched_by(&self, by: ServerIndex) -> Vec<(SessionId, SessionId)> {
        let table = self.table.lock();
        table.vouched.iter().filter_map(|(session, known)| Some((*session, *known.get(&by)?))).collect()
    }

    /// The session has ended.
    pub(crate) fn forget_session(&self, session: SessionId) {
        self.table.lock().vouched.remove(&session);
    }

    /// Takes a piece in, with what `make` begins if it is the first.
    pub(crate) fn arriving<R>(
        &self,
        (moving, from): (u64, ServerIndex),
        take: impl FnOnce(&mut Pending) -> R,
    ) -> Result<R, Refused> {
        let mut table = self.table.lock();
        if moving <= table.over {
            return Err(Refused::Over);
        }
        let is_other = |phase: Phase| match phase {
            Phase::Takes { moving: current, .. } => current != moving,
            Phase::Gives { .. } | Phase::Drains => true,
            Phase::Rests => false,
        };
        if is_other(table.phase) || table.pending.as_ref().is_some_and(|pending| pending.moving > moving) {
            return Err(Refused::Other);
        }
        let pending = table.pending.take().filter(|pending| pending.moving == moving);
        let mut pending = pending.unwrap_or_else(|| Pending {
            moving,
            from,
            process: SessionId(0),
            seen: BTreeSet::new(),
            parts: BTreeMap::new(),
            changed: BTreeMap::new(),
            directories: BTreeMap::new(),
            leased: false,
            is_ready: false,
            kept: None,
            finished: Vec::new(),
        });
        let result = take(&mut pending);
        table.pending = Some(pending);
        Ok(result)
    }

    /// All of the slot is here, with these parts of directories: requests that concern it wait from now on. `false` if that was so already.
    ///
    /// # Errors
    /// The move is over, or another one is not.
    pub(crate) fn begin_to_take(
        &self,
        (moving, slot, from): (u64, SlotIndex, ServerIndex),
        directories: &BTreeMap<Ino, Brought>,
    ) -> Result<bool, Refused> {
        let mut table = self.table.lock();
        let takes = Phase::Takes { moving, slot, from };
        if moving <= table.over {
            return Err(Refused::Over);
        }
        if table.phase == takes {
            return Ok(false);
        }
        let is_at_rest = table.phase == Phase::Rests;
        let Some(pending) = table.pending.as_mut().filter(|pending| is_at_rest && pending.moving == moving) else {
            return Err(Refused::Other);
        };
        pending.directories = directories.clone();
        self.set(&mut table, takes);
        Ok(true)
    }

    /// All of the slot is here, and the giver is told so: from now on only the end of the move changes that, or a giver that begins
    /// anew. `false` if the slot was put off meanwhile.
    pub(crate) fn is_ready(&self, sending: Sending) -> bool {
        let mut table = self.table.lock();
        table.taken(sending).map(|pending| pending.is_ready = true).is_some()
    }

    /// Whether the giver was told before that all of it is here; `leased`: clients may believe answers of the giver.
    pub(crate) fn is_taken(&self, sending: Sending, leased: bool) -> bool {
        let mut table = self.table.lock();
        let Some(pending) = table.taken(sending).filter(|pending| pending.is_ready) else { return false };
        pending.leased |= leased;
        true
    }

    /// From now on checkpoints have what arrives, in this configuration; nothing if all of it is there, and that is promised.
    ///
    /// # Errors
    /// The slot was put off meanwhile, or the move is over.
    pub(crate) fn begin_to_keep(&self, sending: Sending, as_of: Configuration) -> Result<bool, Refused> {
        let mut table = self.table.lock();
        if sending.moving <= table.over {
            return Err(Refused::Over);
        }
        let pending = table.taken(sending).ok_or(Refused::Other)?;
        if pending.is_ready {
            return Ok(false);
        }
        pending.kept = Some(as_of);
        Ok(true)
    }

    /// The shards that arrive and that checkpoints have.
    pub(crate) fn kept_shards(&self) -> Vec<ShardId> {
        let table = self.table.lock();
        let kept = table.pending.iter().filter(|pending| pending.kept.is_some());
        kept.flat_map(|pending| pending.parts.keys().copied()).collect()
    }

    /// The shards that arrive.
    pub(crate) fn arriving_shards(&self) -> Vec<ShardId> {
        self.table.lock().pending.iter().flat_map(|pending| pending.parts.keys().copied()).collect()
    }

    /// A shard that arrives.
    pub(crate) fn with_arriving<R>(&self, shard: ShardId, look: impl FnOnce(&mut Arriving) -> R) -> Option<R> {
        self.table.lock().pending.as_mut()?.parts.get_mut(&shard).map(look)
    }

    /// The slot is not taken now, and may be sent again, unless the giver was told that all of it is here. Gives what of
    /// directories came with it.
    pub(crate) fn put_off(&self, sending: Sending) -> BTreeMap<Ino, Brought> {
        let mut table = self.table.lock();
        match table.taken(sending).filter(|pending| !pending.is_ready).map(Pending::put_off) {
            Some(directories) => {
                self.set(&mut table, Phase::Rests);
                directories
            }
            None => BTreeMap::new(),
        }
    }

    /// The giver serves the slot still, or did so again, and sends it once more: its words about an earlier sending do
    /// not count for this one. Gives what of directories came with that.
    pub(crate) fn begins_anew(&self, moving: u64) -> BTreeMap<Ino, Brought> {
        let mut table = self.table.lock();
        let takes = matches!(table.phase, Phase::Takes { moving: current, .. } if current == moving);
        let pending = table.pending.as_mut().filter(|pending| pending.moving == moving);
        let directories = pending.map(Pending::put_off).unwrap_or_default();
        if takes {
            self.set(&mut table, Phase::Rests);
        }
        directories
    }

    /// The slot is here, if the map gives it to this server; `is_it` says whether that is so. Ends the phase by
    /// [`Self::rest`].
    pub(crate) fn take_up(&self, slot_is_mine: impl Fn(SlotIndex) -> bool) -> Option<Pending> {
        let mut table = self.table.lock();
        let Phase::Takes { slot, .. } = table.phase else { return None };
        if !slot_is_mine(slot) {
            return None;
        }
        table.pending.take()
    }

    /// The move is over, one way or the other: no piece of it is taken any more. Gives the pieces that had come.
    pub(crate) fn give_up(&self, moving: u64) -> Option<Pending> {
        let mut table = self.table.lock();
        table.over = table.over.max(moving);
        let pending = table.pending.take_if(|pending| pending.moving <= moving);
        if matches!(table.phase, Phase::Takes { moving: current, .. } if current <= moving) {
            self.set(&mut table, Phase::Rests);
        }
        pending
    }

    /// Ends the phase, whichever it is.
    pub(crate) fn rest(&self) {
        let mut table = self.table.lock();
        if let Phase::Takes { moving, .. } = table.phase {
            table.over = table.over.max(moving);
        }
        self.set(&mut table, Phase::Rests);
    }
}

impl Arriving {
    /// The opens, ready for work.
    pub(crate) fn opens(&self) -> Opens {
        let mut opens = Opens::default();
        self.opens.iter().for_each(|row| opens.put_back(row));
        opens
    }

    /// Forgets how requests ended.
    pub(crate) fn forget_outcomes(&mut self) {
        let in_data: Vec<SessionId> = self.data.outcomes().sessions().collect();
        in_data.into_iter().for_each(|session| self.data.end_session(session));
        let in_names: Vec<SessionId> = self.names.outcomes().sessions().collect();
        in_names.into_iter().for_each(|session| self.names.end_session(session));
    }

    /// The sessions that have something open or locked in it.
    pub(crate) fn sessions(&self) -> BTreeSet<SessionId> {
        let locking = self.locks.values().flat_map(FileLocks::sessions);
        self.opens.iter().map(|row| row.session).chain(locking).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::task::{ArcWake, Context, waker};

    const GIVES: Phase = Phase::Gives { moving: 1, slot: SlotIndex(3), to: ServerIndex(1) };

    fn draining() -> Arc<Moving> {
        let moving = Moving::new(64);
        assert!(moving.turn(Phase::Rests, Phase::Drains));
        moving
    }

    #[test]
    fn what_is_in_the_way_is_looked_for_when_nothing_can_put_it_there() {
        let moving = draining();
        let request = moving.begin();
        assert!(moving.try_to_give(GIVES, || panic!("the request may put something in the way")).is_err());
        assert_eq!(moving.phase(), Phase::Drains);
        drop(request);
        assert_eq!(moving.try_to_give(GIVES, || Some("a lock".into())), Err("a lock".into()));
        assert_eq!(moving.phase(), Phase::Drains);
        // Requests that begin during the look have nothing to do with the slot, or wait.
        assert_eq!(
            moving.try_to_give(GIVES, || {
                drop(moving.begin());
                None
            }),
            Ok(())
        );
        assert_eq!(moving.phase(), GIVES);
    }

    /// A request that begins at the very moment of the turn: who waits for the phase is woken then.
    struct BeginsAtTurn {
        moving: Arc<Moving>,
        begun: Mutex<Option<UnderWay>>,
    }

    impl ArcWake for BeginsAtTurn {
        fn wake_by_ref(this: &Arc<Self>) {
            *this.begun.lock() = Some(this.moving.begin());
        }
    }

    #[test]
    fn a_request_that_has_begun_by_the_turn_ends_before_the_look() {
        let moving = draining();
        let mut changed = moving.changed().expect("it does not rest");
        let beginner = Arc::new(BeginsAtTurn { moving: moving.clone(), begun: Mutex::default() });
        let waker = waker(beginner.clone());
        assert!(changed.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        let given = moving.try_to_give(GIVES, || panic!("the request may put something in the way"));
        assert!(given.is_err() && moving.phase() == Phase::Drains);
        assert!(beginner.begun.lock().take().is_some(), "the request has begun");
        assert_eq!(moving.try_to_give(GIVES, || None), Ok(()));
    }

    #[test]
    fn no_slot_is_given_while_a_session_ends() {
        let moving = Moving::new(64);
        let ending = moving.begin_at_rest().expect("it rests");
        assert!(moving.turn(Phase::Rests, Phase::Drains));
        assert!(moving.try_to_give(GIVES, || None).is_err());
        assert!(moving.begin_at_rest().is_none(), "another session waits");
        drop(ending);
        assert!(moving.try_to_give(GIVES, || None).is_ok());
        assert_eq!(moving.under_way(), 0);
    }

    #[test]
    fn parts_of_directories_are_counted_once_and_not_after_the_end() {
        let moving = Moving::new(64);
        let (from, slot) = (ServerIndex(1), SlotIndex(3));
        let directories = BTreeMap::from([(Ino(7), Brought { entries: 2, ..Brought::default() })]);
        assert_eq!(moving.arriving((1, from), |_| ()), Ok(()));
        assert_eq!(moving.begin_to_take((1, slot, from), &directories), Ok(true));
        assert_eq!(moving.begin_to_take((1, slot, from), &directories), Ok(false), "a copy of the word");
        let given_up = moving.give_up(1).expect("pieces have come");
        assert_eq!(given_up.directories.len(), 1, "what was counted is taken off");
        assert_eq!(moving.begin_to_take((1, slot, from), &directories), Err(Refused::Over));
        assert_eq!(moving.begin_to_take((2, slot, from), &directories), Err(Refused::Other), "nothing of it has come");
        assert_eq!(moving.phase(), Phase::Rests);
    }
}
