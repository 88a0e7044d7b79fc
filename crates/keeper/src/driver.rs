//! Drives a member: sends its messages, stores its log, and lets time pass for it while an election or a proposal is under way.

use crate::group::{Fate, Group, Proposal, Refused};
use crate::{MemberId, Work};
use aze_io::Io;
use aze_io::sync::Mutex;
use futures_channel::oneshot;
use futures_util::future::BoxFuture;
use futures_util::lock::Mutex as AsyncMutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a message may take before it is sent again; somewhat more, by lot, so that two members that stand for election do not go on
/// taking votes from each other.
const TICK: Duration = Duration::from_millis(50);

/// How long a decision or an election is waited for.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// What a member needs of the process that it is in.
pub trait Outside: Send + Sync {
    /// Sends a message to a member. Whether it has arrived.
    fn send(&self, to: MemberId, message: Vec<u8>) -> BoxFuture<'static, bool>;

    /// Stores this durably in place of the earlier log; at once where nothing outlives the process. `false`: that failed, and the member
    /// says nothing any more.
    fn store(&self, stored: Vec<u8>) -> BoxFuture<'static, bool>;

    /// A newer value is decided. Called in order.
    fn decided(&self, value: Vec<u8>);

    /// This member has become the leader.
    fn leads(&self);
}

/// Why something is not decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecided<E> {
    /// Who wanted it decided does not want it any more, now that it has seen the newest value.
    Unwanted(E),
    /// Nothing is proposed: another member may lead. Which, as far as this one knows.
    NotLeading(Option<MemberId>),
    /// It was proposed, and no majority has answered within [`ANSWER_TIME_MAX`]. It may still be decided.
    Silence,
    /// This member could not store it. It may still be decided when the member is started again.
    NotStored,
}

impl<E: fmt::Display> fmt::Display for Undecided<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undecided::Unwanted(why) => why.fmt(f),
            Undecided::NotLeading(_) => f.write_str("this member does not lead the keeper group"),
            Undecided::Silence => {
                write!(f, "no majority of the keeper group has answered within {} s", ANSWER_TIME_MAX.as_secs())
            }
            Undecided::NotStored => f.write_str("the disk of this member of the keeper group has failed"),
        }
    }
}

/// A member, and the callers that wait for it.
struct State {
    group: Group,
    proposals: BTreeMap<Proposal, oneshot::Sender<Fate>>,
    elections: Vec<oneshot::Sender<()>>,
    /// Time passes until then, if something is under way.
    awake_until_ns: u64,
    is_ticking: bool,
    has_led: bool,
    has_failed: bool,
}

/// A member that runs.
pub struct Driver {
    io: Io,
    outside: Weak<dyn Outside>,
    state: Mutex<State>,
    /// Work is done in the order in which it arises.
    working: AsyncMutex<()>,
    /// One proposal at a time.
    deciding: AsyncMutex<()>,
}

impl Driver {
    /// Runs a member. The process is held weakly: without it, the member stands still.
    #[must_use]
    pub fn new(io: Io, group: Group, outside: Weak<dyn Outside>) -> Arc<Driver> {
        let state = State {
            group,
            proposals: BTreeMap::new(),
            elections: Vec::new(),
            awake_until_ns: 0,
            is_ticking: false,
            has_led: false,
            has_failed: false,
        };
        let (working, deciding) = (AsyncMutex::new(()), AsyncMutex::new(()));
        Arc::new(Driver { io, outside, state: Mutex::new(state), working, deciding })
    }

    /// This member.
    #[must_use]
    pub fn me(&self) -> MemberId {
        self.state.lock().group.me()
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> Vec<MemberId> {
        self.state.lock().group.members()
    }

    /// Who leads, as far as this member knows.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        self.state.lock().group.leader()
    }

    /// Whether this member leads, as far as it knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.state.lock().group.leads()
    }

    /// The newest value that this member knows to be decided.
    #[must_use]
    pub fn value(&self) -> Vec<u8> {
        self.state.lock().group.value().to_vec()
    }

    /// A message of another member has come. Resolves when what follows from it is stored and under way.
    pub async fn receive(self: &Arc<Self>, message: &[u8]) {
        let begins = {
            let mut state = self.state.lock();
            let was_busy = state.group.is_busy();
            state.group.receive(message);
            !was_busy && state.group.is_busy()
        };
        if begins {
            // It stands for election, since the one that wanted its vote is behind.
            self.stay_awake();
        }
        self.work().await;
    }

    /// Has the group decide on what `change` makes of the newest value, and gives that; the newest value as it is, if `change` makes nothing
    /// of it. `change` may be called more than once.
    ///
    /// # Errors
    /// [`Undecided`], at the latest after twice [`ANSWER_TIME_MAX`] and what earlier callers take.
    pub async fn decide<E>(
        self: &Arc<Self>,
        change: impl Fn(&[u8]) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Vec<u8>, Undecided<E>> {
        let _turn = self.deciding.lock().await;
        let give_up_ns = self.give_up_ns();
        loop {
            let decided = self.value();
            let Some(value) = change(&decided).map_err(Undecided::Unwanted)? else { return Ok(decided) };
            match self.propose(value.clone()).await? {
                Some(Fate::Decided) => return Ok(value),
                Some(Fate::Lost) => return Err(Undecided::NotLeading(self.leader())),
                // The newest value shows whether it was decided.
                Some(Fate::Unknown) => {}
                None => self.let_time_pass(give_up_ns).await?,
            }
        }
    }

    /// Proposes a value, and waits for its fate; `None` if something else is under way.
    async fn propose<E>(self: &Arc<Self>, value: Vec<u8>) -> Result<Option<Fate>, Undecided<E>> {
        let (proposal, fate) = {
            let mut state = self.state.lock();
            if state.has_failed {
                return Err(Undecided::NotStored);
            }
            let proposal = match state.group.propose(value) {
                Ok(proposal) => proposal,
                Err(Refused::Busy) => return Ok(None),
                Err(Refused::NotLeading(leader)) => return Err(Undecided::NotLeading(leader)),
            };
            let (sender, fate) = oneshot::channel();
            state.proposals.insert(proposal, sender);
            (proposal, fate)
        };
        self.stay_awake();
        self.work().await;
        let fate = self.io.timeout(ANSWER_TIME_MAX, fate).await;
        self.state.lock().proposals.remove(&proposal);
        match fate {
            Some(Ok(fate)) => Ok(Some(fate)),
            Some(Err(_)) => Err(Undecided::NotStored),
            None => Err(Undecided::Silence),
        }
    }

    fn give_up_ns(&self) -> u64 {
        self.io.mono_ns() + ANSWER_TIME_MAX.as_nanos() as u64
    }

    /// Waits a moment, in which the member goes on.
    async fn let_time_pass<E>(self: &Arc<Self>, give_up_ns: u64) -> Result<(), Undecided<E>> {
        if self.io.mono_ns() >= give_up_ns {
            return Err(Undecided::Silence);
        }
        self.stay_awake();
        self.work().await;
        self.io.sleep(TICK).await;
        Ok(())
    }

    /// Stands for election; whether this member leads then. The caller has found out before that the leader is gone.
    pub async fn stand(self: &Arc<Self>) -> bool {
        let elected = {
            let mut state = self.state.lock();
            if state.group.leads() {
                return true;
            }
            state.group.campaign();
            let (sender, elected) = oneshot::channel();
            state.elections.push(sender);
            elected
        };
        self.stay_awake();
        self.work().await;
        matches!(self.io.timeout(ANSWER_TIME_MAX, elected).await, Some(Ok(()))) && self.leads()
    }

    fn stay_awake(&self) {
        self.state.lock().awake_until_ns = self.give_up_ns();
    }

    /// Does what the member wants done.
    async fn work(self: &Arc<Self>) {
        {
            let _turn = self.working.lock().await;
            loop {
                let Some(outside) = self.outside.upgrade() else { return };
                let work = {
                    let mut state = self.state.lock();
                    if state.has_failed { None } else { state.group.work() }
                };
                let Some(work) = work else { break };
                if !self.has_effect(&*outside, work).await {
                    return;
                }
            }
        }
        self.tick_while_busy();
    }

    /// Stores, sends and tells; `false` if it could not be stored.
    async fn has_effect(self: &Arc<Self>, outside: &dyn Outside, work: Work) -> bool {
        let Work { stored, messages, decided, outcomes } = work;
        if let Some(stored) = stored
            && !outside.store(stored).await
        {
            let mut state = self.state.lock();
            state.has_failed = true;
            // Who waits is told by the end of the channel.
            state.proposals = BTreeMap::new();
            state.elections.clear();
            return false;
        }
        for (to, message) in messages {
            let (driver, sent) = (self.clone(), outside.send(to, message));
            self.io.spawn(async move {
                if !sent.await {
                    driver.state.lock().group.unreachable(to);
                }
            });
        }
        if let Some(value) = decided {
            outside.decided(value);
        }
        let has_begun_to_lead = {
            let mut state = self.state.lock();
            for outcome in outcomes {
                if let Some(waiter) = state.proposals.remove(&outcome.proposal) {
                    // One that has given up does not receive.
                    let _ = waiter.send(outcome.fate);
                }
            }
            let (leads, knows_leader) = (state.group.leads(), state.group.leader().is_some());
            if leads || knows_leader && !state.group.is_busy() {
                state.elections.drain(..).for_each(|waiter| {
                    let _ = waiter.send(());
                });
            }
            leads && !std::mem::replace(&mut state.has_led, leads)
        };
        if has_begun_to_lead {
            outside.leads();
        } else if !self.leads() {
            self.state.lock().has_led = false;
        }
        true
    }

    /// Lets time pass for the member while a caller waits for it.
    fn tick_while_busy(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.is_ticking || !self.is_awake(&state) {
                return;
            }
            state.is_ticking = true;
        }
        let driver = Arc::downgrade(self);
        let io = self.io.clone();
        self.io.spawn(async move {
            loop {
                let lot = io.random_u64() % TICK.as_nanos() as u64;
                io.sleep(TICK + Duration::from_nanos(lot)).await;
                let Some(driver) = driver.upgrade() else { return };
                {
                    let mut state = driver.state.lock();
                    if !driver.is_awake(&state) {
                        state.is_ticking = false;
                        return;
                    }
                    state.group.tick();
                }
                driver.work().await;
            }
        });
    }

    fn is_awake(&self, state: &State) -> bool {
        state.group.is_busy() && !state.has_failed && self.io.mono_ns() < state.awake_until_ns
    }
}
