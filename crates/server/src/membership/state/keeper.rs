//! What the keeper keeps: the servers that have joined, the token for moving directories, and the last namespace epoch.

use aze_proto::place::ServerInfo;
use aze_proto::{Failure, NamespaceEpoch, ServerIndex, TxId};
use futures_channel::oneshot;
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncGuard};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, VecDeque};

/// How long a token may be kept: longer than any request may take, so that one whose holder died
/// comes back and one in use does not.
const TOKEN_NS_MAX: u64 = 20_000_000_000;

/// Finished transactions that are remembered, so that a late copy of a request for the token does
/// not take it for a server that is gone.
const TOKENS_FINISHED_KEPT: usize = 1024;

pub(crate) struct Keeper {
    joined: Mutex<Joined>,
    token: Mutex<Token>,
    /// One raise of the namespace epoch at a time, so that every server sees them in order.
    raising: AsyncMutex<NamespaceEpoch>,
    refused: Mutex<Refused>,
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

#[derive(Default)]
struct Token {
    holder: Option<(TxId, u64)>,
    queue: VecDeque<(TxId, oneshot::Sender<()>)>,
    finished: BTreeSet<TxId>,
    finished_order: VecDeque<TxId>,
}

impl Keeper {
    pub(crate) fn new(servers: u16, epoch: NamespaceEpoch) -> Keeper {
        Keeper {
            joined: Mutex::new(Joined { slots: vec![None; usize::from(servers)], waiting: Vec::new() }),
            token: Mutex::new(Token::default()),
            raising: AsyncMutex::new(epoch),
            refused: Mutex::default(),
        }
    }

    /// The servers that have joined. While this is held no other change of the map begins.
    pub(crate) fn joined(&self) -> MutexGuard<'_, Joined> {
        self.joined.lock()
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

    /// Gives the token to a transaction, or puts it into the queue.
    pub(crate) fn take_token(&self, tx: TxId, now_ns: u64) -> Taken {
        let mut token = self.token.lock();
        if token.finished.contains(&tx) {
            return Taken::Over;
        }
        let free =
            token.holder.is_none_or(|(holder, since)| holder == tx || now_ns.saturating_sub(since) > TOKEN_NS_MAX);
        if free {
            token.holder = Some((tx, now_ns));
            return Taken::Now;
        }
        let (sender, mine) = oneshot::channel();
        token.queue.push_back((tx, sender));
        Taken::After(mine)
    }

    pub(crate) fn drop_token(&self, tx: TxId) {
        let mut token = self.token.lock();
        token.queue.retain(|(waiting, _)| *waiting != tx);
        if token.finished.insert(tx) {
            token.finished_order.push_back(tx);
        }
        if token.finished_order.len() > TOKENS_FINISHED_KEPT
            && let Some(oldest) = token.finished_order.pop_front()
        {
            token.finished.remove(&oldest);
        }
        if token.holder.is_some_and(|(holder, _)| holder == tx) {
            token.holder = None;
            token.wake_first();
        }
    }
}

impl Joined {
    /// How many places the volume has.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// A server takes its place; gives the one that had it before, and `None` if there is no such place.
    pub(crate) fn put(&mut self, slot: ServerIndex, info: &ServerInfo) -> Option<Option<ServerInfo>> {
        self.slots.get_mut(usize::from(slot.0)).map(|place| place.replace(info.clone()))
    }

    /// All servers, once they are there.
    pub(crate) fn all(&self) -> Option<Vec<ServerInfo>> {
        self.slots.iter().cloned().collect()
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
    fn wake_first(&mut self) {
        while let Some((_, waiter)) = self.queue.pop_front() {
            if waiter.send(()).is_ok() {
                return;
            }
        }
    }
}
