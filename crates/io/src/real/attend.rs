//! Threads that each wait for one busy connection alone.
//!
//! A server's workers share one epoll instance: right for many connections, but a client that asks and waits, asks and
//! waits, makes a worker go through it for each request, and the worker that has waited longest wakes, on any core. A
//! TCP connection with requests at such a pace gets a thread of its own for as long as it goes on ([`Pace`]): that
//! thread blocks in recv(2), answers, and blocks again, two system calls for each request, and the scheduler keeps it
//! beside its client. This file alone knows how many there are and what they do while no connection needs them. It does
//! not know how a connection is read.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use crate::sync::{Condvar, Mutex};

use super::conn::Conn;
use super::reactor::{AbortOnPanic, Driving, Reactor};
use super::sys;
use crate::Connection;

/// Attendants for each core: enough for the processes of a node that work at the same time. Where there
/// are more connections, a worker that takes several requests at once is the cheaper one.
const ATTENDANTS_PER_CORE: usize = 4;

/// Attendants that one server's runtime has at most.
const ATTENDANTS_MAX: usize = 64;

/// Requests in a row after which the pace is looked at.
const PACE_TURNS: u32 = 32;

/// How long those may have taken for a connection to be busy.
const PACE_NS: u64 = PACE_TURNS as u64 * 250_000;

/// After so many milliseconds without a request a connection has no thread of its own any more.
pub(super) const ATTENDED_IDLE_MS: u32 = 100;

/// How fast requests come over a connection.
#[derive(Default)]
pub(super) struct Pace {
    turns: u32,
    since_ns: u64,
}

impl Pace {
    /// Notes that something has come; whether so much has in so short a time that a thread of its own is
    /// worth it.
    pub(super) fn is_busy(&mut self) -> bool {
        self.turns += 1;
        if self.turns < PACE_TURNS {
            return false;
        }
        self.turns = 0;
        let now_ns = sys::clock_ns(libc::CLOCK_MONOTONIC);
        let took_ns = now_ns.saturating_sub(std::mem::replace(&mut self.since_ns, now_ns));
        took_ns < PACE_NS
    }
}

/// The attendants of one runtime; threads are started when first needed and kept.
pub(super) struct Attendants {
    most: usize,
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    /// Connections that have one, or wait for the thread that was woken for them.
    attended: Vec<Weak<Conn>>,
    waiting: VecDeque<Arc<Conn>>,
    /// Threads with nothing to do.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopped: bool,
}

impl Attendants {
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = (cores * ATTENDANTS_PER_CORE).min(ATTENDANTS_MAX);
        Attendants { most, state: Mutex::default(), came: Condvar::new() }
    }

    /// Gives a connection, whose read claim the caller holds, a thread of its own; the claim passes on to it.
    /// `false` if there is none: the caller keeps the claim.
    pub(super) fn take(&self, reactor: &Arc<Reactor>, conn: &Arc<Conn>) -> bool {
        let mut state = self.state.lock();
        if state.stopped || state.attended.len() >= self.most {
            return false;
        }
        if state.idle <= state.waiting.len() {
            let of_thread = reactor.clone();
            let life = move || of_thread.attendants.work(&of_thread);
            match std::thread::Builder::new().name("aze-attend".into()).spawn(life) {
                Ok(thread) => state.threads.push(thread),
                // The workers go on reading it.
                Err(_) => return false,
            }
        }
        state.attended.push(Arc::downgrade(conn));
        state.waiting.push_back(conn.clone());
        self.came.notify_one();
        true
    }

    /// The life of one attendant.
    fn work(&self, reactor: &Arc<Reactor>) {
        let _driving = Driving::begin(reactor);
        let _guard = AbortOnPanic;
        let mut state = self.state.lock();
        loop {
            let Some(conn) = state.waiting.pop_front() else {
                if state.stopped {
                    return;
                }
                state.idle += 1;
                state = self.came.wait(state);
                state.idle -= 1;
                continue;
            };
            drop(state);
            conn.attend();
            state = self.state.lock();
            // One entry only: it may have been given to another attendant already.
            let at = state.attended.iter().position(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(&conn)));
            at.map(|at| state.attended.swap_remove(at));
            // Its end may run anything.
            drop(state);
            drop(conn);
            state = self.state.lock();
        }
    }

    /// Ends the attendants, with the connections that they attend, and waits for them. Called by one of
    /// them it does not wait for that one.
    pub(super) fn stop(&self) {
        let (attended, threads) = {
            let mut state = self.state.lock();
            state.stopped = true;
            (std::mem::take(&mut state.attended), std::mem::take(&mut state.threads))
        };
        self.came.notify_all();
        attended.iter().filter_map(Weak::upgrade).for_each(|conn| conn.close());
        let here = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != here) {
            // A panic of such a thread has aborted the process before.
            thread.join().expect("an attendant does not panic");
        }
    }
}
