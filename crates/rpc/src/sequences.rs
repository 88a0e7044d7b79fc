//! Sequence numbers of changes, counted for each shard.
//!
//! It alone knows which number comes next and below which none is wanted any more (the floor). A
//! server keeps the replies from the floor on, at most [`RETRIES_PER_SESSION_AND_SHARD`] of them;
//! so numbers are handed out in a window of that width, and a number that is slow to finish holds
//! up those that would leave the window, and no other ones.

use aze_io::sync::Mutex;
use aze_proto::limits::RETRIES_PER_SESSION_AND_SHARD;
use aze_proto::{Sequence, ShardId};
use std::future::poll_fn;
use std::task::{Poll, Waker};

const WINDOW: u64 = RETRIES_PER_SESSION_AND_SHARD as u64;
// One bit of `Window::finished` for each number of the window.
const _: () = assert!(WINDOW == u64::BITS as u64);

/// The windows of all shards that were asked for a change.
#[derive(Default)]
pub(crate) struct Sequences {
    shards: Mutex<Windows>,
}

/// Windows of a page: a client asks a few shards or most of them.
const PAGE: usize = 64;

/// By the shard's number, found without a search. Pages without a shard that was asked are not there.
#[derive(Default)]
struct Windows(Vec<Option<Box<[Window; PAGE]>>>);

impl Windows {
    #[inline]
    fn of(&mut self, shard: ShardId) -> &mut Window {
        let (page, at) = (shard.0 as usize / PAGE, shard.0 as usize % PAGE);
        if page >= self.0.len() {
            self.0.resize_with(page + 1, || None);
        }
        let page = self.0[page].get_or_insert_with(|| Box::new(std::array::from_fn(|_| Window::default())));
        &mut page[at]
    }
}

struct Window {
    /// Lowest number not finished.
    floor: u64,
    /// Number of the next change.
    next: u64,
    /// Bit i: number `floor + i` is finished. Bit 0 is never set between calls.
    finished: u64,
    /// Who waits for the window to move.
    waiting: Vec<Waker>,
}

impl Default for Window {
    fn default() -> Self {
        Window { floor: 1, next: 1, finished: 0, waiting: Vec::new() }
    }
}

impl Window {
    fn take(&mut self) -> Option<u64> {
        (self.next - self.floor < WINDOW).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Marks a number as no longer wanted; gives those to wake if the window moved.
    fn finish(&mut self, number: u64) -> Vec<Waker> {
        self.finished |= 1 << (number - self.floor);
        let moved = self.finished.trailing_ones();
        // A shift by the whole width is no shift at all on this machine.
        self.finished = self.finished.checked_shr(moved).unwrap_or(0);
        self.floor += u64::from(moved);
        if moved > 0 { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }
}

/// One number, in use until dropped: then the floor may pass it.
pub(crate) struct Ticket<'a> {
    sequences: &'a Sequences,
    shard: ShardId,
    sequence: Sequence,
}

impl Sequences {
    /// The next number of a shard, if the window is not full.
    pub(crate) fn try_take(&self, shard: ShardId) -> Option<Ticket<'_>> {
        let number = self.shards.lock().of(shard).take()?;
        Some(Ticket { sequences: self, shard, sequence: Sequence(number) })
    }

    /// The next number of a shard; waits while the window is full.
    pub(crate) async fn take(&self, shard: ShardId) -> Ticket<'_> {
        let sequence = poll_fn(|cx| {
            let mut shards = self.shards.lock();
            let window = shards.of(shard);
            if let Some(number) = window.take() {
                return Poll::Ready(Sequence(number));
            }
            if !window.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                window.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
        Ticket { sequences: self, shard, sequence }
    }
}

impl Ticket<'_> {
    /// The number and the floor as it is now, for a header.
    pub(crate) fn number_and_floor(&self) -> (Sequence, Sequence) {
        let mut shards = self.sequences.shards.lock();
        (self.sequence, Sequence(shards.of(self.shard).floor))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut shards = self.sequences.shards.lock();
        let waiting = shards.of(self.shard).finish(self.sequence.0);
        drop(shards);
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const SHARD: ShardId = ShardId(7);

    fn take(sequences: &Sequences) -> Option<Ticket<'_>> {
        sequences.try_take(SHARD)
    }

    #[test]
    fn each_shard_counts_from_one() {
        let sequences = Sequences::default();
        let first = take(&sequences).unwrap();
        assert_eq!(first.number_and_floor(), (Sequence(1), Sequence(1)));
        assert_eq!(take(&sequences).unwrap().number_and_floor(), (Sequence(2), Sequence(1)));
        let other = sequences.take(ShardId(8)).now_or_never().unwrap();
        assert_eq!(other.number_and_floor(), (Sequence(1), Sequence(1)));
    }

    #[test]
    fn the_floor_is_the_lowest_number_in_use() {
        let sequences = Sequences::default();
        let (one, two, three) = (take(&sequences).unwrap(), take(&sequences).unwrap(), take(&sequences).unwrap());
        drop(two);
        assert_eq!(three.number_and_floor(), (Sequence(3), Sequence(1)));
        drop(one);
        assert_eq!(three.number_and_floor(), (Sequence(3), Sequence(3)));
        drop(three);
        assert_eq!(take(&sequences).unwrap().number_and_floor(), (Sequence(4), Sequence(4)));
    }

    #[test]
    fn a_full_window_waits_for_its_lowest_number() {
        let sequences = Sequences::default();
        let mut tickets: Vec<_> = (0..WINDOW).map(|_| take(&sequences).unwrap()).collect();
        assert!(take(&sequences).is_none());
        tickets.remove(5);
        assert!(take(&sequences).is_none(), "the server keeps replies from the floor on, not only those in use");
        tickets.remove(0);
        assert_eq!(take(&sequences).unwrap().number_and_floor(), (Sequence(65), Sequence(2)));
        tickets.clear();
        assert_eq!(take(&sequences).unwrap().number_and_floor(), (Sequence(66), Sequence(66)));
    }

    #[test]
    fn whoever_waits_is_woken_and_may_give_up() {
        let sequences = Sequences::default();
        let mut tickets: Vec<_> = (0..WINDOW).map(|_| take(&sequences).unwrap()).collect();
        let given_up = sequences.take(SHARD);
        drop(given_up);
        let (waker, woken) = futures_test_waker();
        let mut waiting = Box::pin(sequences.take(SHARD));
        assert!(waiting.poll_unpin(&mut std::task::Context::from_waker(&waker)).is_pending());
        tickets.remove(0);
        assert!(woken.load(std::sync::atomic::Ordering::SeqCst));
        assert!(waiting.now_or_never().is_some());
    }

    fn futures_test_waker() -> (Waker, std::sync::Arc<std::sync::atomic::AtomicBool>) {
        struct Flag(std::sync::Arc<std::sync::atomic::AtomicBool>);
        impl std::task::Wake for Flag {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let woken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        (Waker::from(std::sync::Arc::new(Flag(woken.clone()))), woken)
    }
}
