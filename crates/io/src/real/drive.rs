//! Who drives a runtime: leader and followers.
//!
//! Of the threads inside `block_on` one leads: it waits for events and handles them, its own
//! among them, so that a lone caller reads its reply from the socket without any other thread.
//! The others sleep until their future is woken or the lead falls to them. This file alone
//! knows how the lead is passed on. What an event is it does not know.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

use super::reactor::{Driving, Guard, Reactor, Sleeper};
use super::sys;

/// How long the background thread leaves a runtime undriven after a caller has left it, in
/// case the next call follows at once: taking the lead back from a thread asleep in the kernel
/// costs a caller about 15 µs, and this bounds how late a timer or a frame may be served.
const BACKGROUND_GRACE: Duration = Duration::from_millis(1);

/// How long a caller that leads waits for its only connection alone, in milliseconds: it saves a system call
/// for each reply, and this bounds how late a timer, a task or a connection of another thread may be served.
pub(super) const ALONE_MS: u32 = 4;

const EMPTY: u8 = 0;
const NOTIFIED: u8 = 1;
const PARKED: u8 = 2;
const WAITING: u8 = 3;

/// How one thread inside `block_on` sleeps and is woken.
pub(super) struct Parker {
    /// `EMPTY`: awake; `NOTIFIED`: has to look at its future; `PARKED`: asleep as a follower;
    /// `WAITING`: asleep, or about to be, as the leader in the reactor.
    state: AtomicU8,
    thread: Thread,
    reactor: Arc<Reactor>,
}

impl Parker {
    fn new(reactor: Arc<Reactor>) -> Arc<Self> {
        Arc::new(Parker { state: AtomicU8::new(EMPTY), thread: std::thread::current(), reactor })
    }

    fn notify(&self) {
        match self.state.swap(NOTIFIED, SeqCst) {
            PARKED => self.thread.unpark(),
            // The thread that waits drives a client's runtime.
            WAITING if !self.reactor.is_driven_here() => self.reactor.wake(),
            _ => {}
        }
    }

    fn take_notified(&self) -> bool {
        self.state.compare_exchange(NOTIFIED, EMPTY, SeqCst, SeqCst).is_ok()
    }

    /// Sleeps until notified, or until `until` is over.
    fn park(&self, until: Until) {
        if self.state.compare_exchange(EMPTY, PARKED, SeqCst, SeqCst).is_ok() {
            while self.state.load(SeqCst) == PARKED {
                match until.left() {
                    None => std::thread::park(),
                    Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                    Some(_) if self.state.compare_exchange(PARKED, EMPTY, SeqCst, SeqCst).is_ok() => return,
                    Some(_) => {}
                }
            }
        }
        let before = self.state.swap(EMPTY, SeqCst);
        assert!(before == NOTIFIED, "only a notification ends a sleep");
    }
}

/// When a wait ends at the latest, if it does.
#[derive(Clone, Copy)]
struct Until(Option<u64>);

impl Until {
    fn left(self) -> Option<Duration> {
        let until_ns = self.0?;
        Some(Duration::from_nanos(until_ns.saturating_sub(sys::clock_ns(libc::CLOCK_MONOTONIC))))
    }
}

/// A thread that leads, with the end of its patience.
struct Leader<'a> {
    parker: &'a Parker,
    until: Until,
}

impl Sleeper for Leader<'_> {
    const MAY_BE_ALONE: bool = true;

    fn before_wait(&self) -> bool {
        self.parker.state.compare_exchange(EMPTY, WAITING, SeqCst, SeqCst).is_ok()
    }

    fn after_wait(&self) {
        // Fails if notified meanwhile, which is then found by `take_notified`.
        let _ = self.parker.state.compare_exchange(WAITING, EMPTY, SeqCst, SeqCst);
    }

    fn limit_ms(&self) -> Option<u32> {
        let left = self.until.left()?;
        Some(u32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX))
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

/// Who leads and who waits for the lead, for one reactor.
pub(super) struct Lead {
    reactor: Arc<Reactor>,
    state: Mutex<State>,
    /// A thread inside `block_on` leads: a hint for who may choose another runtime.
    is_busy: AtomicBool,
    /// Wakes the background thread.
    background: Condvar,
}

struct State {
    taken: bool,
    /// Followers, the latest last. At most one entry for each thread inside `block_on`.
    followers: Vec<Arc<Parker>>,
    /// Counts how often a caller gave the lead up.
    terms: u64,
    /// The background thread sleeps until a caller gives the lead up.
    background_waits: bool,
    /// A caller had to follow since the background thread took the lead.
    caller_came: bool,
}

impl State {
    /// If no thread leads, picks the follower to be told; it may have been woken for its own
    /// sake and leave, and then picks the next.
    fn successor(&mut self) -> Option<Arc<Parker>> {
        if self.taken { None } else { self.followers.pop() }
    }
}

impl Lead {
    /// The lead of a runtime; `taken` forever if it has workers.
    pub(super) fn new(reactor: Arc<Reactor>, taken: bool) -> Self {
        let state = State { taken, followers: Vec::new(), terms: 0, background_waits: false, caller_came: false };
        Lead { reactor, state: Mutex::new(state), is_busy: AtomicBool::new(false), background: Condvar::new() }
    }

    /// See [`super::Runtime::is_busy`].
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.load(SeqCst)
    }

    /// See [`super::Runtime::block_on`] and [`super::Runtime::block_on_patiently`]: `late` is called once if it
    /// takes longer than that.
    pub(super) fn block_on<F: Future>(&self, future: F, mut late: Option<(Duration, impl FnOnce())>) -> F::Output {
        assert!(!self.reactor.is_driven_here(), "block_on inside a task or handler would wait for itself");
        self.reactor.check_sound();
        // In a program of others the caller's own future ends the runtime, too: it is the library's.
        let _guard = self.reactor.is_guest().then(|| Guard::new(&self.reactor));
        let mut future = pin!(future);
        let parker = Parker::new(self.reactor.clone());
        let waker = Waker::from(parker.clone());
        let mut seat = Seat { lead: self, parker, leads: None };
        let mut until = Until(None);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            if let (None, Some((patience, _))) = (until.0, &late) {
                let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
                until = Until(Some(sys::clock_ns(libc::CLOCK_MONOTONIC).saturating_add(patience_ns)));
            }
            seat.wait(until);
            if late.is_some()
                && until.left().is_some_and(|left| left.is_zero())
                && let Some((_, late)) = late.take()
            {
                until = Until(None);
                late();
            }
        }
    }

    /// The life of a server's worker: drives until the runtime stops.
    pub(super) fn work(&self) {
        let _driving = Driving::begin(&self.reactor);
        while !self.reactor.stopping.load(SeqCst) {
            self.reactor.turn(&());
        }
        self.reactor.ring_stop();
    }

    /// The life of a client's background thread: drives while no caller does.
    pub(super) fn work_in_background(&self) {
        let mut terms_seen = None;
        while !self.reactor.stopping.load(SeqCst) && !self.reactor.is_broken() {
            let mut state = self.state.lock();
            let quiet = terms_seen.replace(state.terms) == Some(state.terms);
            if !state.taken && quiet {
                state.taken = true;
                state.caller_came = !state.followers.is_empty();
                drop(state);
                self.drive_until_followed();
            } else if state.taken && quiet {
                // One caller has led for a while: wait for it, however long it takes.
                state.background_waits = true;
                state = self.background.wait(state);
                state.background_waits = false;
            } else {
                drop(self.background.wait_for(state, BACKGROUND_GRACE));
            }
        }
    }

    /// Leads until a caller came, who may lead next time, or the runtime stops.
    fn drive_until_followed(&self) {
        let _term = Term { lead: self, driving: Some(Driving::begin(&self.reactor)) };
        loop {
            self.reactor.turn(&());
            if self.reactor.stopping.load(SeqCst) || self.state.lock().caller_came {
                return;
            }
        }
    }

    /// Lets the background thread see that the runtime stops.
    pub(super) fn wake_background(&self) {
        let _state = self.state.lock();
        self.background.notify_one();
    }
}

/// The background thread's time as the leader; over when dropped, even by a panic.
struct Term<'a> {
    lead: &'a Lead,
    driving: Option<Driving>,
}

impl Drop for Term<'_> {
    fn drop(&mut self) {
        let mut state = self.lead.state.lock();
        state.taken = false;
        state.terms += 1;
        let successor = state.successor();
        drop(state);
        self.driving = None;
        if let Some(successor) = successor {
            successor.notify();
        }
    }
}

/// The place of one thread inside `block_on`; given up when dropped, even by a panic.
struct Seat<'a> {
    lead: &'a Lead,
    parker: Arc<Parker>,
    /// Present while this thread leads.
    leads: Option<Driving>,
}

impl Seat<'_> {
    /// Returns when the future has to be polled again or `until` is over, having led meanwhile if no other thread did.
    fn wait(&mut self, until: Until) {
        self.lead.reactor.check_sound();
        if self.leads.is_some() || self.take_lead() {
            let leader = Leader { parker: &self.parker, until };
            while !self.parker.take_notified() && leader.limit_ms() != Some(0) {
                self.lead.reactor.turn(&leader);
                self.lead.reactor.check_sound();
            }
        } else {
            self.parker.park(until);
            self.unlist(&mut self.lead.state.lock());
        }
    }

    /// Takes the lead, or else becomes a follower.
    fn take_lead(&mut self) -> bool {
        let mut state = self.lead.state.lock();
        if state.taken {
            state.followers.push(self.parker.clone());
            state.caller_came = true;
            return false;
        }
        state.taken = true;
        drop(state);
        self.lead.is_busy.store(true, SeqCst);
        self.leads = Some(Driving::begin(&self.lead.reactor));
        true
    }

    fn unlist(&self, state: &mut State) {
        state.followers.retain(|parker| !Arc::ptr_eq(parker, &self.parker));
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let led = self.leads.take().is_some();
        if led {
            self.lead.is_busy.store(false, SeqCst);
        }
        let mut state = self.lead.state.lock();
        self.unlist(&mut state);
        if led {
            state.taken = false;
            state.terms += 1;
            if state.background_waits {
                self.lead.background.notify_one();
            }
        }
        let successor = state.successor();
        drop(state);
        if let Some(successor) = successor {
            successor.notify();
        }
    }
}
