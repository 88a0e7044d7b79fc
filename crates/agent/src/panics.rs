//! What a panic ends: one call, or the agent.
//!
//! Programs go on after a defect in one of their calls: it fails with EIO. Released programs do not unwind
//! (docs/decisions/0090-a-panic-ends-one-call.md), so that the thread stays where it is, with all that it holds. That is
//! allowed only where it holds nothing that another call waits for: not while it drives the client's runtime, and not with a
//! description's position or the copies of a mapped file locked. Then the agent ends, and all calls fail with EIO at once.

use aze_calls::Reply;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::sys;

/// Calls that may end this way: each keeps a thread and its memory. The next one ends the agent.
const PANICS_MAX: usize = 16;

/// How many have.
static PANICS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The channel whose call this thread does.
    static CALL: RefCell<Option<Arc<OwnedFd>>> = const { RefCell::new(None) };
    /// What this thread holds that others wait for.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Something that other calls wait for is held.
pub struct Held(());

impl Held {
    /// From now on, until this is dropped.
    pub fn begin() -> Held {
        HELD.set(HELD.get() + 1);
        Held(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

/// Does the calls of a channel on this thread.
pub fn calling<T>(channel: &Arc<OwnedFd>, call: impl FnOnce() -> T) -> T {
    CALL.set(Some(channel.clone()));
    let done = call();
    CALL.take();
    done
}

/// True if a call has ended by a panic: what it held of descriptions stays held.
pub fn has_been() -> bool {
    PANICS.load(SeqCst) > 0
}

/// For the process's panic hook: ends the call that this thread does, with EIO, and returns never; returns at once if the thread
/// does none, or holds what others wait for, so that the process has to end.
pub fn end_call_after_panic() {
    let channel = CALL.try_with(|call| call.try_borrow().ok().and_then(|call| call.clone())).ok().flatten();
    let Some(channel) = channel.filter(|_| HELD.get() == 0) else { return };
    if PANICS.fetch_add(1, SeqCst) >= PANICS_MAX {
        return;
    }
    let reply = Reply { result: -i64::from(libc::EIO), ..Reply::default() };
    // The program may have gone.
    let _ = sys::send(&channel, [sys::bytes_of(&reply), &[]], None);
    sys::shut(&channel);
    loop {
        std::thread::park();
    }
}
