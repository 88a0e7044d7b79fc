//! Where a panic ends the process, also in one that catches panics.
//!
//! The agent of intercepted programs lets a panic end one call (docs/decisions/0090-a-panic-ends-one-call.md). That is
//! right only where no other call relies on what the panic broke off. A room marks its work as *vital* when others wait
//! for its end, as for the sending of a request, and a lock whose holder has panicked may hold half a change. This file
//! knows both for the process; it does not know the calls, nor who catches.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

thread_local! {
    /// How many vital works this thread is in the middle of.
    static VITAL: Cell<u32> = const { Cell::new(0) };
}

/// Whether a lock whose holder has panicked ends the process.
static LOCKS_END: AtomicBool = AtomicBool::new(false);

/// Vital work, until it is dropped.
struct Vital(());

impl Vital {
    #[inline]
    fn begin() -> Vital {
        VITAL.set(VITAL.get() + 1);
        Vital(())
    }
}

impl Drop for Vital {
    #[inline]
    fn drop(&mut self) {
        VITAL.set(VITAL.get() - 1);
    }
}

/// Does vital work on this thread.
#[inline]
pub fn vital<T>(work: impl FnOnce() -> T) -> T {
    let _vital = Vital::begin();
    work()
}

/// Waits for vital work.
#[inline]
pub fn vitally<F: Future>(work: Pin<&mut F>) -> Vitally<'_, F> {
    Vitally(work)
}

/// The future of [`vitally`]. Its output, which may be large, is not moved on the way.
pub struct Vitally<'a, F>(Pin<&'a mut F>);

impl<F: Future> Future for Vitally<'_, F> {
    type Output = F::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _vital = Vital::begin();
        self.0.as_mut().poll(context)
    }
}

/// Whether this thread is in the middle of vital work: for a process's panic hook.
pub fn is_vital() -> bool {
    VITAL.get() > 0
}

/// From now on the process ends as soon as a thread meets a lock whose holder has panicked.
pub fn end_at_locks_after_a_panic() {
    LOCKS_END.store(true, Relaxed);
}

/// A thread has met a lock whose holder has panicked.
#[cold]
pub(crate) fn lock_after_a_panic() {
    if LOCKS_END.load(Relaxed) {
        eprintln!("azekura: a thread has panicked with a lock held; what the lock guards cannot be trusted: aborting");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn work_is_vital_until_it_has_ended_also_by_a_panic() {
        assert!(!is_vital());
        assert!(vital(|| vital(is_vital) && is_vital()));
        assert!(catch_unwind(|| vital(|| panic!("planted"))).is_err());
        assert!(!is_vital());
    }
}
