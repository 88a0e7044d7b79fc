//! What a panic ends: one call, or the agent.
//!
//! Programs go on after a defect in one of their calls: it fails with EIO. Two kinds of panic are told apart
//! (docs/decisions/0090-a-panic-ends-one-call.md).
//!
//! *In an operation of the client*, which this thread alone waits for, the stack is unwound to the operation's beginning, and the
//! client drops its caches. The rest of the call goes on as after any other failure.
//!
//! *Elsewhere in a call* the thread stays where it is, with all that it holds. That is allowed only where it holds nothing that
//! another call waits for: not while it drives the client's runtime, and not with a description's position or the copies of a
//! mapped file locked.
//!
//! Everything else ends the agent, and all calls fail with EIO soon: tasks and frames that a thread does for all, vital work
//! ([`aze_io::defects`]), and a lock whose holder has panicked, as soon as another thread wants it.

use aze_calls::Reply;
use aze_handles::Error;
use aze_io::defects;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;

use crate::mailbox::Channel;
use crate::sys;

/// Calls that may end with their thread where it is: each keeps a thread and its memory. The next one ends the agent.
const PANICS_MAX: usize = 16;

/// Operations of the client that may panic: each makes the client slower for a while, and writes to the log. The next one ends the
/// agent.
const CAUGHT_MAX: usize = 1000;

/// How many calls have ended with their thread where it is.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// How many operations of the client have panicked.
static CAUGHT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The channel whose call this thread does.
    static CALL: RefCell<Option<Arc<Channel>>> = const { RefCell::new(None) };
    /// What this thread holds that others wait for.
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// This thread is in the middle of an operation that it alone waits for.
    static CATCHES: Cell<bool> = const { Cell::new(false) };
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
pub fn calling<T>(channel: &Arc<Channel>, call: impl FnOnce() -> T) -> T {
    CALL.set(Some(channel.clone()));
    let done = call();
    CALL.take();
    done
}

/// Waits for an operation of the client that nothing else waits for. If it panics, `forget` is called, and it has failed.
///
/// # Errors
/// EIO after a panic.
pub async fn catching<F: Future>(mut operation: Pin<&mut F>, forget: impl Fn()) -> Result<F::Output, Error> {
    poll_fn(|context| {
        CATCHES.set(true);
        // Shared state lies behind locks, and a lock whose holder has panicked ends the process.
        let polled = catch_unwind(AssertUnwindSafe(|| operation.as_mut().poll(context)));
        CATCHES.set(false);
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(_) => {
                forget();
                Poll::Ready(Err(Error::new(libc::EIO, "a defect of the client: the agent's log has its message")))
            }
        }
    })
    .await
}

/// True if a call has ended by a panic and its thread is where it was, and with it the descriptions that the call held.
pub fn has_been() -> bool {
    PANICS.load(SeqCst) > 0
}

/// For the process's panic hook: true if the panic fails an operation, so that the stack is to be unwound. In builds that do not
/// unwind the process ends all the same.
fn is_caught() -> bool {
    let catches = CATCHES.try_with(Cell::get).unwrap_or(false) && !defects::is_vital();
    catches && CAUGHT.fetch_add(1, SeqCst) < CAUGHT_MAX
}

/// For the process's panic hook. Returns true if the hook has to return, so that the stack is unwound to where the panic is caught;
/// false if the process has to end. Ends the call that this thread does, with EIO, and returns never, if the thread stays where it is.
#[must_use]
pub fn ends_one_call_only() -> bool {
    if is_caught() {
        return true;
    }
    let channel = CALL.try_with(|call| call.try_borrow().ok().and_then(|call| call.clone())).ok().flatten();
    let Some(channel) = channel.filter(|_| HELD.get() == 0) else { return false };
    if PANICS.fetch_add(1, SeqCst) >= PANICS_MAX {
        return false;
    }
    let reply = Reply { result: -i64::from(libc::EIO), ..Reply::default() };
    // The program may have gone.
    let _ = sys::send(&channel.socket, [sys::bytes_of(&reply), &[]], None);
    channel.end();
    loop {
        std::thread::park();
    }
}
