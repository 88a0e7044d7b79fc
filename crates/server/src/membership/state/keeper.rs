//! What the keeper keeps: the servers that have joined, the token for moving directories, and the last namespace epoch.

use aze_io::sync::{Mutex, MutexGuard};
use aze_proto::place::ServerInfo;
use aze_proto::{Failure, MapEpoch, NamespaceEpoch, ServerIndex, SessionId, TxId};
use futures_channel::oneshot;
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncGuard};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How long a token may be kept: longer than any request may take, so that one whose holder died
/// comes back and one in use does not.
const TOKEN_NS_MAX: u64 = 20_000_000_000;

/// Finished transactions that are remembered, so that a late copy of a request for the token does
/// not take it for a server that is gone.
const TOKENS_FINISHED_KEPT: usize = 1024;

/// How long a server gets no slot after the keeper was told that it leaves. Longer than a slot takes to move; one whose command was
/// ended gets slots again after that.
const LEAVING_NS_MAX: u64 = 60_000_000_000;

/// In place of a transaction that the keeper does not know.
const UNKNOWN: TxId = TxId(0);

pub(crate) struct Keeper {
    joined: Mutex<Joined>,
    token: Mutex<Token>,
    /// One raise of the namespace epoch at a time.
    raising: AsyncMutex<NamespaceEpoch>,
    refused: Mutex<Refused>,
    /// One slot moves at a time; the number of the last move.
    moving: AsyncMutex<u64>,
    /// The first map is made once.
    beginning: AsyncMutex<()>,
    /// The move that is not decided yet.
    undecided: Mutex<Option<u64>>,
    /// A move that the group may have decided, or not.
    open: Mutex<Option<u64>>,
    /// The newest maps that this server has decided with none of another keeper between them.
    decided: Mutex<Decided>,
    /// Ended moves that a server is still to be told of, in their order. One task tells each server.
    ended: Mutex<BTreeMap<ServerIndex, VecDeque<Ended>>>,
    /// Answers about the keeper before, until all servers have answered; `None`: there is nothing to hear.
    hearing: AsyncMutex<Option<HeardOf>>,
    /// Whether that is to begin anew.
    must_hear: Mutex<bool>,
    /// Servers that leave, and when the keeper was last told so.
    leaving: Mutex<BTreeMap<ServerIndex, u64>>,
    /// Processes of servers that come back and wait for their answers, each as often as it has asked.
    coming: Arc<Mutex<Vec<SessionId>>>,
}

/// All maps after one, up to another one.
#[derive(Default)]
struct Decided {
    after: MapEpoch,
    to: MapEpoch,
}

/// A move that has ended.
struct Ended {
    moving: u64,
    /// Dropped when the server has been told, or never will be.
    _told: oneshot::Sender<()>,
}

/// What only the keeper before knew, as far as servers have said it.
#[derive(Default)]
pub(crate) struct HeardOf {
    /// Those that have, in these lives.
    pub(crate) by: BTreeMap<ServerIndex, SessionId>,
    /// The highest namespace epoch.
    pub(crate) epoch: NamespaceEpoch,
    /// The transactions that have the token, and their servers.
    pub(crate) tokens: Vec<(TxId, Option<Living>)>,
}

/// A process that comes back and waits for its answer.
pub(crate) struct Coming {
    all: Arc<Mutex<Vec<SessionId>>>,
    session: SessionId,
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let at = all.iter().position(|other| *other == self.session);
        at.map(|at| all.swap_remove(at));
    }
}

/// Raises that failed because a server did not confirm them.
#[derive(Default)]
struct Refused {
    count: u64,
    last: Option<Failure>,
}

/// The servers that have joined, by their places.
#[derive(Default)]
pub(crate) struct Joined {
    places: usize,
    /// None before the first has joined: only the keeper's are ever taken.
    slots: Vec<Option<ServerInfo>>,
    waiting: Vec<oneshot::Sender<()>>,
}

/// Who gets the token.
pub(crate) enum Taken {
    /// The transaction that asks.
    Now,
    /// It does, after this.
    After(oneshot::Receiver<()>),
    /// The transaction is over.
    Over,
}

/// A server in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Living {
    pub(crate) server: ServerIndex,
    pub(crate) session: SessionId,
}

/// Who has the token.
struct Holder {
    tx: TxId,
    since_ns: u64,
    /// The server that asked, if it is known.
    by: Option<Living>,
}

/// Who waits for it.
struct Waiting {
    tx: TxId,
    by: Option<Living>,
    sender: oneshot::Sender<()>,
}

#[derive(Default)]
struct Token {
    holder: Option<Holder>,
    /// Others that had it when another server became the keeper: all but one were giving it back.
    also: BTreeMap<TxId, Option<Living>>,
    queue: VecDeque<Waiting>,
    finished: BTreeSet<TxId>,
    finished_order: VecDeque<TxId>,
}

impl Keeper {
    /// For a volume with these places.
    pub(crate) fn new(places: Joined, epoch: NamespaceEpoch) -> Keeper {
        Keeper {
            joined: Mutex::new(places),
            beginning: AsyncMutex::default(),
            token: Mutex::new(Token::default()),
            raising: AsyncMutex::new(epoch),
            refused: Mutex::default(),
            moving: AsyncMutex::default(),
            undecided: Mutex::default(),
            open: Mutex::default(),
            decided: Mutex::default(),
            ended: Mutex::default(),
            hearing: AsyncMutex::default(),
            must_hear: Mutex::default(),
            leaving: Mutex::default(),
            coming: Arc::default(),
        }
    }

    /// The keeper has come back: who has the token it is yet to hear.
    pub(crate) fn goes_on(&self, now_ns: u64) {
        self.token.lock().holder = Some(Holder { tx: UNKNOWN, since_ns: now_ns, by: None });
    }

    /// This server is the keeper from now on, and another one was before.
    pub(crate) fn begins(&self, now_ns: u64) {
        self.goes_on(now_ns);
        *self.must_hear.lock() = true;
    }

    /// Another server is the keeper: who waits here for the token asks there.
    pub(crate) fn ends(&self) {
        let mut token = self.token.lock();
        (token.holder, token.also) = (None, BTreeMap::new());
        token.queue.clear();
    }

    /// The turn to hear from all servers what only the keeper before knew.
    pub(crate) async fn hearing(&self) -> AsyncGuard<'_, Option<HeardOf>> {
        let mut hearing = self.hearing.lock().await;
        if std::mem::take(&mut *self.must_hear.lock()) {
            *hearing = Some(HeardOf::default());
        }
        hearing
    }

    /// Whether it knows all of that.
    pub(crate) fn has_heard(&self) -> bool {
        !*self.must_hear.lock() && self.hearing.try_lock().is_some_and(|hearing| hearing.is_none())
    }

    /// The keeper has heard of all transactions that have the token: of one, and others that are giving it back, which cannot be told from
    /// one another. It is free when all have.
    pub(crate) fn knows_tokens(&self, holders: &[(TxId, Option<Living>)], now_ns: u64) {
        let mut token = self.token.lock();
        let had: BTreeMap<TxId, Option<Living>> =
            holders.iter().copied().filter(|(tx, _)| !token.finished.contains(tx)).collect();
        token.also = had;
        if token.holder.as_ref().is_some_and(|holder| holder.tx == UNKNOWN) {
            token.holder = None;
            token.pass_on(now_ns);
        }
    }

    /// The servers that have joined, before there is a map.
    pub(crate) fn joined(&self) -> MutexGuard<'_, Joined> {
        self.joined.lock()
    }

    /// The turn to move a slot, if it is free: the number of the last move.
    pub(crate) fn try_moving(&self) -> Option<AsyncGuard<'_, u64>> {
        self.moving.try_lock()
    }

    /// The turn to make the first map.
    pub(crate) async fn beginning(&self) -> AsyncGuard<'_, ()> {
        self.beginning.lock().await
    }

    pub(crate) fn begins_move(&self, moving: u64) {
        *self.undecided.lock() = Some(moving);
    }

    /// The map says how the move ended.
    pub(crate) fn ends_move(&self) {
        (*self.undecided.lock(), *self.open.lock()) = (None, None);
    }

    /// Whether the group has decided the move is not known.
    pub(crate) fn leaves_open(&self, moving: u64) {
        *self.open.lock() = Some(moving);
    }

    /// Whether a move is left open; this one, if it is asked for one.
    pub(crate) fn is_open(&self, moving: Option<u64>) -> bool {
        let open = *self.open.lock();
        open.is_some() && (moving.is_none() || open == moving)
    }

    /// Whether it is not decided yet how this move ends.
    pub(crate) fn is_moving(&self, moving: u64) -> bool {
        *self.undecided.lock() == Some(moving)
    }

    /// This server has decided a map, which follows another one.
    pub(crate) fn note_decided(&self, before: MapEpoch, map: MapEpoch) {
        let mut decided = self.decided.lock();
        if decided.to == before {
            decided.to = map;
        } else if decided.to < map {
            *decided = Decided { after: before, to: map };
        }
    }

    /// Whether this server has decided all maps after one, up to another one: it may not know of its own last one yet.
    pub(crate) fn has_decided_all(&self, after: MapEpoch, to: MapEpoch) -> bool {
        let decided = self.decided.lock();
        after == to || decided.after <= after && decided.to == to
    }

    /// A server is to be told that a move has ended. What this gives ends when it has been told, or never will be; with it, whether the
    /// caller begins to tell that server.
    pub(crate) fn note_ended(&self, server: ServerIndex, moving: u64) -> (oneshot::Receiver<()>, bool) {
        let (told, end) = oneshot::channel();
        let mut ended = self.ended.lock();
        let is_first = !ended.contains_key(&server);
        ended.entry(server).or_default().push_back(Ended { moving, _told: told });
        (end, is_first)
    }

    /// The move that a server is to be told of next; if there is none, no task tells that server any more.
    pub(crate) fn next_ended(&self, server: ServerIndex) -> Option<u64> {
        let mut ended = self.ended.lock();
        let next = ended.get(&server).and_then(|ended| ended.front()).map(|end| end.moving);
        if next.is_none() {
            ended.remove(&server);
        }
        next
    }

    /// A server has been told that its next move has ended.
    pub(crate) fn told_ended(&self, server: ServerIndex) {
        if let Some(ended) = self.ended.lock().get_mut(&server) {
            ended.pop_front();
        }
    }

    /// A server will never ask again how a move has ended.
    pub(crate) fn forget_ended(&self, server: ServerIndex) {
        self.ended.lock().remove(&server);
    }

    /// These servers leave.
    pub(crate) fn note_leaving(&self, servers: &[ServerIndex], now_ns: u64) {
        self.leaving.lock().extend(servers.iter().map(|server| (*server, now_ns)));
    }

    /// Whether a server leaves, so that it gets no slot.
    pub(crate) fn is_leaving(&self, server: ServerIndex, now_ns: u64) -> bool {
        self.leaving.lock().get(&server).is_some_and(|told_ns| now_ns < told_ns + LEAVING_NS_MAX)
    }

    /// A process of a server comes back, and waits for its answer until what this gives is dropped.
    pub(crate) fn begins_to_admit(&self, session: SessionId) -> Coming {
        self.coming.lock().push(session);
        Coming { all: self.coming.clone(), session }
    }

    /// Whether this process comes back and waits for its answer.
    pub(crate) fn admits(&self, session: SessionId) -> bool {
        self.coming.lock().contains(&session)
    }

    /// Waits for the turn to raise the namespace epoch; gives the last one.
    pub(crate) async fn raising(&self) -> AsyncGuard<'_, NamespaceEpoch> {
        self.raising.lock().await
    }

    /// How many raises were refused so far.
    pub(crate) fn refusals(&self) -> u64 {
        self.refused.lock().count
    }

    /// Why a raise was refused, if one was since there were `before` refusals: the last of them.
    pub(crate) fn refused_since(&self, before: u64) -> Option<Failure> {
        let refused = self.refused.lock();
        refused.last.clone().filter(|_| refused.count > before)
    }

    /// A raise is refused.
    pub(crate) fn refuse(&self, failure: &Failure) {
        let mut refused = self.refused.lock();
        *refused = Refused { count: refused.count + 1, last: Some(failure.clone()) };
    }

    /// Gives the token to a transaction of a server, or puts it into the queue. A process of a server may have ended with the token, and the next
    /// one bring its move to an end: that one `is_awaited`, however long it takes.
    pub(crate) fn take_token(
        &self,
        tx: TxId,
        by: Option<Living>,
        now_ns: u64,
        is_awaited: impl Fn(Living) -> bool,
    ) -> Taken {
        let mut token = self.token.lock();
        if token.finished.contains(&tx) {
            return Taken::Over;
        }
        let is_over = |holder: &Holder| {
            now_ns.saturating_sub(holder.since_ns) > TOKEN_NS_MAX && !holder.by.is_some_and(&is_awaited)
        };
        if token.holder.as_ref().is_none_or(|holder| holder.tx == tx || is_over(holder)) {
            token.holder = Some(Holder { tx, since_ns: now_ns, by });
            return Taken::Now;
        }
        let (sender, mine) = oneshot::channel();
        token.queue.push_back(Waiting { tx, by, sender });
        Taken::After(mine)
    }

    pub(crate) fn drop_token(&self, tx: TxId, now_ns: u64) {
        let mut token = self.token.lock();
        token.also.remove(&tx);
        token.queue.retain(|waiting| waiting.tx != tx);
        if token.finished.insert(tx) {
            token.finished_order.push_back(tx);
        }
        if token.finished_order.len() > TOKENS_FINISHED_KEPT
            && let Some(oldest) = token.finished_order.pop_front()
        {
            token.finished.remove(&oldest);
        }
        if token.holder.as_ref().is_some_and(|holder| holder.tx == tx) {
            token.holder = None;
            token.pass_on(now_ns);
        }
    }

    /// A server that has come back has brought to an end what an earlier life of its began: that needs the token no longer,
    /// and does not wait for it.
    pub(crate) fn drop_token_of_earlier_life(&self, now: Living, now_ns: u64) {
        let is_earlier = |by: Option<Living>| by.is_some_and(|by| by.server == now.server && by.session != now.session);
        let token = self.token.lock();
        let waiting = token.queue.iter().filter(|waiting| is_earlier(waiting.by)).map(|waiting| waiting.tx);
        let also = token.also.iter().filter(|(_, by)| is_earlier(**by)).map(|(tx, _)| *tx);
        let holder = token.holder.iter().filter(|holder| is_earlier(holder.by)).map(|holder| holder.tx);
        // Those that wait first: none of them is to get it.
        let over: Vec<TxId> = waiting.chain(also).chain(holder).collect();
        drop(token);
        over.into_iter().for_each(|tx| self.drop_token(tx, now_ns));
    }
}

impl Joined {
    /// Of a volume with so many places.
    pub(crate) fn empty(places: usize) -> Joined {
        Joined { places, ..Joined::default() }
    }

    /// Of a volume with these places. In the place of a server that has left stands one that is marked so.
    pub(crate) fn of(slots: Vec<Option<ServerInfo>>) -> Joined {
        Joined { places: slots.len(), slots, waiting: Vec::new() }
    }

    /// How many places the volume has.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// Whether the place of a server stays empty.
    pub(crate) fn has_left(&self, slot: ServerIndex) -> bool {
        self.slots.get(usize::from(slot.0)).and_then(Option::as_ref).is_some_and(|info| info.left)
    }

    /// A server takes its place; gives the one that had it before, and `None` if there is no such place.
    pub(crate) fn put(&mut self, slot: ServerIndex, info: &ServerInfo) -> Option<Option<ServerInfo>> {
        self.slots.resize(self.places, None);
        self.slots.get_mut(usize::from(slot.0)).map(|place| place.replace(info.clone()))
    }

    /// All servers, once they are there.
    pub(crate) fn all(&self) -> Option<Vec<ServerInfo>> {
        (0..self.places).map(|place| self.slots.get(place).cloned().flatten()).collect()
    }

    /// Resolves when all servers are there.
    pub(crate) fn wait(&mut self) -> oneshot::Receiver<()> {
        let (sender, complete) = oneshot::channel();
        self.waiting.push(sender);
        complete
    }

    /// All servers are there.
    pub(crate) fn wake(&mut self) {
        for waiter in self.waiting.drain(..) {
            // A server that has given up does not receive.
            let _ = waiter.send(());
        }
    }
}

impl Token {
    /// It is free: a transaction that had it when this server became the keeper still does, or else the first that waits may have it.
    fn pass_on(&mut self, now_ns: u64) {
        if let Some((tx, by)) = self.also.pop_first() {
            self.holder = Some(Holder { tx, since_ns: now_ns, by });
            return;
        }
        while let Some(waiting) = self.queue.pop_front() {
            if waiting.sender.send(()).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::{Code, Incarnation};
    use futures_util::FutureExt;

    fn nobody(_: Living) -> bool {
        false
    }

    fn keeper() -> Keeper {
        Keeper::new(Joined::empty(2), NamespaceEpoch(0))
    }

    #[test]
    fn maps_of_another_keeper_between_its_own_are_noticed() {
        let keeper = keeper();
        let has_all = |after, to| keeper.has_decided_all(MapEpoch(after), MapEpoch(to));
        keeper.note_decided(MapEpoch(4), MapEpoch(5));
        keeper.note_decided(MapEpoch(5), MapEpoch(6));
        assert!(has_all(4, 6) && has_all(5, 6) && has_all(6, 6));
        assert!(!has_all(3, 6), "map 4 is another one's");
        assert!(!has_all(5, 7), "map 7 is, too, or it does not know yet");
        keeper.note_decided(MapEpoch(8), MapEpoch(9));
        assert!(has_all(8, 9) && has_all(9, 9) && !has_all(6, 9) && !has_all(7, 9));
        keeper.note_decided(MapEpoch(6), MapEpoch(7));
        assert!(has_all(8, 9) && !has_all(6, 9), "an answer that comes late");
    }

    #[test]
    fn a_server_is_told_one_end_of_a_move_after_the_other() {
        let (keeper, server) = (keeper(), ServerIndex(1));
        let (first, begins) = keeper.note_ended(server, 7);
        let (second, begins_again) = keeper.note_ended(server, 8);
        assert!(begins && !begins_again, "one task tells it");
        assert!(keeper.note_ended(ServerIndex(2), 8).1, "another one tells another server");
        assert_eq!(keeper.next_ended(server), Some(7));
        keeper.told_ended(server);
        assert!(first.now_or_never().is_some() && keeper.next_ended(server) == Some(8));
        keeper.forget_ended(server);
        assert!(second.now_or_never().is_some() && keeper.next_ended(server).is_none());
        assert!(keeper.note_ended(server, 9).1, "nobody tells it any more");
    }

    #[test]
    fn one_transaction_has_the_token_and_the_others_get_it_in_turn() {
        let keeper = keeper();
        assert!(matches!(keeper.take_token(TxId(1), None, 0, nobody), Taken::Now));
        assert!(matches!(keeper.take_token(TxId(1), None, 1, nobody), Taken::Now), "a repetition");
        let Taken::After(second) = keeper.take_token(TxId(2), None, 2, nobody) else { panic!("the token is taken") };
        let Taken::After(third) = keeper.take_token(TxId(3), None, 3, nobody) else { panic!("the token is taken") };
        // The second gives up: the third is next.
        drop(second);
        keeper.drop_token(TxId(1), 0);
        assert_eq!(third.now_or_never(), Some(Ok(())));
        assert!(matches!(keeper.take_token(TxId(3), None, 4, nobody), Taken::Now));
    }

    #[test]
    fn a_late_copy_of_a_transaction_that_is_over_gets_no_token() {
        let keeper = keeper();
        assert!(matches!(keeper.take_token(TxId(1), None, 0, nobody), Taken::Now));
        keeper.drop_token(TxId(1), 0);
        assert!(matches!(keeper.take_token(TxId(1), None, 1, nobody), Taken::Over));
        (0..TOKENS_FINISHED_KEPT as u64).for_each(|number| keeper.drop_token(TxId(100 + number), 0));
        assert!(
            matches!(keeper.take_token(TxId(1), None, 2, nobody), Taken::Now),
            "so many are remembered, and no more"
        );
    }

    #[test]
    fn a_token_whose_holder_died_comes_back() {
        let keeper = keeper();
        assert!(matches!(keeper.take_token(TxId(1), None, 5, nobody), Taken::Now));
        assert!(matches!(keeper.take_token(TxId(2), None, 5 + TOKEN_NS_MAX, nobody), Taken::After(_)));
        assert!(matches!(keeper.take_token(TxId(3), None, 6 + TOKEN_NS_MAX, nobody), Taken::Now));
        keeper.drop_token(TxId(1), 0);
        assert!(
            matches!(keeper.take_token(TxId(4), None, 7 + TOKEN_NS_MAX, nobody), Taken::After(_)),
            "it is not the first one's"
        );
    }

    #[test]
    fn a_token_of_a_server_that_is_awaited_stays() {
        let keeper = keeper();
        let by = Living { server: ServerIndex(1), session: SessionId(10) };
        assert!(matches!(keeper.take_token(TxId(1), Some(by), 5, nobody), Taken::Now));
        assert!(matches!(keeper.take_token(TxId(2), None, 6 + TOKEN_NS_MAX, |holder| holder == by), Taken::After(_)));
        keeper.drop_token_of_earlier_life(Living { session: SessionId(11), ..by }, 7 + TOKEN_NS_MAX);
        assert!(matches!(keeper.take_token(TxId(3), None, 8 + TOKEN_NS_MAX, |holder| holder == by), Taken::Now));
    }

    #[test]
    fn a_server_that_comes_back_frees_the_token_of_its_earlier_life_only() {
        let keeper = keeper();
        let of = |server, session| Living { server: ServerIndex(server), session: SessionId(session) };
        assert!(matches!(keeper.take_token(TxId(1), Some(of(1, 10)), 0, nobody), Taken::Now));
        let Taken::After(second) = keeper.take_token(TxId(2), Some(of(0, 5)), 0, nobody) else {
            panic!("the token is taken")
        };
        let Taken::After(third) = keeper.take_token(TxId(4), Some(of(1, 10)), 0, nobody) else {
            panic!("the token is taken")
        };
        keeper.drop_token_of_earlier_life(of(1, 10), 0);
        keeper.drop_token_of_earlier_life(of(2, 11), 0);
        assert!(
            matches!(keeper.take_token(TxId(3), None, 0, nobody), Taken::After(_)),
            "it belongs to a life that goes on"
        );
        keeper.drop_token_of_earlier_life(of(1, 11), 0);
        assert_eq!(second.now_or_never(), Some(Ok(())));
        assert!(third.now_or_never().is_some_and(|got| got.is_err()), "its server has died");
        for over in [1, 4] {
            assert!(matches!(keeper.take_token(TxId(over), Some(of(1, 10)), 0, nobody), Taken::Over));
        }
    }

    #[test]
    fn a_refused_raise_is_told_to_those_who_asked_before() {
        let keeper = keeper();
        let before = keeper.refusals();
        assert_eq!(keeper.refused_since(before), None);
        keeper.refuse(&Failure::new(Code::TimedOut, "server 1"));
        assert_eq!(keeper.refused_since(before).map(|failure| failure.code), Some(Code::TimedOut));
        assert_eq!(keeper.refused_since(keeper.refusals()), None);
    }

    #[test]
    fn servers_are_all_there_when_each_place_is_taken() {
        let keeper = keeper();
        let info = |pid| ServerInfo {
            addresses: Vec::new(),
            host: "node".into(),
            incarnation: Incarnation(0),
            since: MapEpoch(0),
            pid,
            capacity_bytes: 1,
            ended: false,
            left: false,
            joining: false,
            life: 0,
            began: MapEpoch(0),
            session: aze_proto::SessionId(0),
        };
        let mut joined = keeper.joined();
        let waiting = joined.wait();
        assert_eq!(joined.put(ServerIndex(0), &info(7)), Some(None));
        assert_eq!(joined.all(), None);
        assert_eq!(joined.put(ServerIndex(0), &info(8)), Some(Some(info(7))), "it was started again");
        assert_eq!(joined.put(ServerIndex(2), &info(9)), None, "there is no such place");
        assert_eq!(joined.put(ServerIndex(1), &info(9)), Some(None));
        assert_eq!(joined.all().map(|all| all.len()), Some(2));
        joined.wake();
        assert_eq!(waiting.now_or_never(), Some(Ok(())));
    }
}
