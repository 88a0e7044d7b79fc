//! Threads that were given an answer for which others wait until the kernel has processed it.
//!
//! The kernel processes an answer in the call of the thread that asked. So it has done that when the same thread asks for
//! something else, whose answer it waits for as well.

use crate::abi::op;
use aze_io::sync::Mutex;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The threads of one mount that were given such an answer and have not asked since.
#[derive(Default)]
pub struct PickUps {
    given: Mutex<BTreeMap<u32, Given>>,
    /// As many.
    count: AtomicUsize,
}

/// An answer with attributes.
struct Given {
    /// The inode that they are of.
    node: u64,
    /// Ends the wait when it is dropped.
    end: oneshot::Sender<()>,
}

/// Whether the thread waits for the answer, so that it has the answers to all its requests before. The kernel reads ahead, and closes
/// files, on behalf of threads that do not wait.
fn is_waited_for(opcode: u32) -> bool {
    !matches!(
        opcode,
        op::FORGET
            | op::BATCH_FORGET
            | op::READ
            | op::WRITE
            | op::RELEASE
            | op::RELEASEDIR
            | op::INTERRUPT
            | op::NOTIFY_REPLY
            | op::INIT
            | op::DESTROY
    )
}

impl PickUps {
    /// A thread gets an answer with the attributes of an inode. What is returned ends when the thread asks for something else. `None` for
    /// thread 0: it stands for all those of other namespaces.
    pub fn give(&self, thread: u32, node: u64) -> Option<oneshot::Receiver<()>> {
        if thread == 0 {
            return None;
        }
        let (end, ended) = oneshot::channel();
        let before = {
            let mut given = self.given.lock();
            let before = given.insert(thread, Given { node, end });
            self.count.store(given.len(), SeqCst);
            before
        };
        // It wakes whoever waits.
        drop(before);
        Some(ended)
    }

    /// A thread asks. If it asks once more for the attributes that it was given, [`crate::kernel_cache`] recognises it.
    pub fn asks(&self, thread: u32, opcode: u32, node: u64) {
        if self.count.load(SeqCst) > 0 && is_waited_for(opcode) {
            self.end(thread, |given| opcode != op::GETATTR || given.node != node);
        }
    }

    /// Nobody waits any more for what [`PickUps::give`] has returned for this thread; a later answer to the thread stays.
    pub fn is_over(&self, thread: u32) {
        self.end(thread, |given| given.end.is_canceled());
    }

    fn end(&self, thread: u32, is_over: impl FnOnce(&Given) -> bool) {
        let ended = {
            let mut given = self.given.lock();
            let ended = if given.get(&thread).is_some_and(is_over) { given.remove(&thread) } else { None };
            self.count.store(given.len(), SeqCst);
            ended
        };
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// A thread that had replaced a file and went on kept another one that opened the file waiting for 100 ms.
    #[test]
    fn a_thread_that_asks_for_something_else_has_its_answer() {
        let pick_ups = PickUps::default();
        let mut ended = pick_ups.give(7, 2).expect("it has a number");
        pick_ups.asks(8, op::LOOKUP, 1);
        [op::READ, op::WRITE, op::RELEASE, op::FORGET].into_iter().for_each(|opcode| pick_ups.asks(7, opcode, 1));
        pick_ups.asks(7, op::GETATTR, 2);
        assert_eq!(
            (&mut ended).now_or_never(),
            None,
            "another thread, what no thread waits for, and the same question"
        );
        pick_ups.asks(7, op::GETATTR, 3);
        assert!(ended.now_or_never().is_some());
        let ended = pick_ups.give(7, 2).expect("it has a number");
        pick_ups.asks(7, op::LOOKUP, 2);
        assert!(ended.now_or_never().is_some());
    }

    #[test]
    fn an_answer_that_is_over_leaves_nothing() {
        let pick_ups = PickUps::default();
        assert!(pick_ups.give(0, 2).is_none());
        let first = pick_ups.give(7, 2);
        let later = pick_ups.give(7, 3).expect("it has a number");
        drop(first);
        pick_ups.is_over(7);
        assert_eq!(pick_ups.count.load(SeqCst), 1, "the later one");
        drop(later);
        pick_ups.is_over(7);
        assert_eq!(pick_ups.count.load(SeqCst), 0);
    }
}
