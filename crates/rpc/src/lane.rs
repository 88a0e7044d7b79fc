//! Lanes: connections of one process to the same server that several threads use at the same time.
//!
//! Threads that share connections share the one thread that waits for what comes over them: it wakes the others, which costs
//! more than most answers. A lane has connections of its own, moved by a runtime of its own; session, numbers of changes and
//! clocks are those of the process, so that servers do not know of lanes. This file alone knows whose lane is meant.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Lanes of one caller at most: each takes a connection to every server that is asked through it, and within a node
/// memory for that.
pub const LANES_MAX: usize = 8;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The lane of the future that is polled by this thread; the first one outside of [`OnLane`].
pub(crate) fn current() -> usize {
    CURRENT.get()
}

/// What a future asks, it asks through one lane: that of this number, below [`LANES_MAX`].
pub struct OnLane<F> {
    lane: usize,
    future: F,
}

impl<F> OnLane<F> {
    /// `future`, on that lane. The runtime that moves the lane is to poll it.
    pub fn new(lane: usize, future: F) -> OnLane<F> {
        OnLane { lane, future }
    }
}

impl<F: Future + Unpin> Future for OnLane<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _back = Back(CURRENT.replace(self.lane));
        Pin::new(&mut self.future).poll(context)
    }
}

/// The lane from before, even after a panic.
struct Back(usize);

impl Drop for Back {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}
