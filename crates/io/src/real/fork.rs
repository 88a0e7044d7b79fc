//! What a forked process must not share with the one that it was forked from.
//!
//! fork(2) copies the memory of all threads and goes on with one of them. A runtime's sockets are then known to two
//! processes, and a lock that another thread held at that moment stays locked for ever in the new process. So a
//! library that may be loaded by any program notices a fork, and leaves all that came from before it alone: neither
//! used nor freed. It alone knows how a fork is noticed.

use super::sys;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};

/// A page of memory that the kernel fills with zeros in each new process (madvise(2), `MADV_WIPEONFORK`, Linux 4.14);
/// absent where the kernel cannot. Then the process's number is asked each time.
static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// Tokens given out in this process and, before they were forked, by those that it descends from.
static TOKENS: AtomicU64 = AtomicU64::new(0);

/// A number that this process shares with no process that it descends from or that descends from it. Takes a look at
/// memory.
pub fn process_token() -> u64 {
    // A fork while another thread is in here for the first time would leave this locked: it takes microseconds, and
    // happens before there is anything to share.
    let Some(page) = PAGE.get_or_init(sys::page_wiped_on_fork) else {
        return u64::from(std::process::id());
    };
    match page.load(SeqCst) {
        0 => {
            let token = TOKENS.fetch_add(1, SeqCst) + 1;
            // Another thread of this process may have been faster.
            page.compare_exchange(0, token, SeqCst, SeqCst).map_or_else(|other| other, |_| token)
        }
        token => token,
    }
}

/// A value that each process has for itself: a forked process begins without one. The one that it inherits is never
/// looked at again; its memory stays taken.
pub struct PerProcess<T> {
    own: AtomicPtr<Node<T>>,
}

struct Node<T> {
    token: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// Without a value.
    pub const fn new() -> PerProcess<T> {
        PerProcess { own: AtomicPtr::new(null_mut()) }
    }

    /// The value of this process, if it has one.
    pub fn get(&self) -> Option<&T> {
        self.find(process_token())
    }

    /// The value of this process; made if there is none. Several threads may make one at the same time: one of them is
    /// kept, the others are dropped.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let token = process_token();
        if let Some(value) = self.find(token) {
            return value;
        }
        let inherited = self.own.load(SeqCst);
        let made = Box::into_raw(Box::new(Node { token, value: make() }));
        if self.own.compare_exchange(inherited, made, SeqCst, SeqCst).is_err() {
            // SAFETY: it came from `Box::into_raw` above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
        self.find(token).expect("a thread of this process has just put one there")
    }

    fn find(&self, token: u64) -> Option<&T> {
        // SAFETY: the pointer is null or came from `Box::into_raw`. A node is freed only when `self` is dropped, so it
        // lives for as long as the borrow of `self`.
        let node = unsafe { self.own.load(SeqCst).as_ref() }?;
        (node.token == token).then_some(&node.value)
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let Some(node) = NonNull::new(*self.own.get_mut()) else { return };
        // SAFETY: as in `find`.
        if unsafe { node.as_ref() }.token == process_token() {
            // SAFETY: it came from `Box::into_raw`, and `self`, through which alone it is reached, is being dropped.
            drop(unsafe { Box::from_raw(node.as_ptr()) });
        }
    }
}

/// A value that belongs to the process that made it: a forked process can neither look at it nor free it.
pub struct OfProcess<T> {
    token: u64,
    value: UnsafeCell<ManuallyDrop<T>>,
}

// SAFETY: the cell is borrowed mutably in `drop` only, when no other borrow exists; otherwise it gives shared borrows.
unsafe impl<T: Send> Send for OfProcess<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for OfProcess<T> {}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess { token: process_token(), value: UnsafeCell::new(ManuallyDrop::new(value)) }
    }

    /// The value; `None` in a process that was forked since.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: no mutable borrow exists while `self` is borrowed.
        (self.token == process_token()).then(|| unsafe { &*self.value.get() }.deref())
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.token == process_token() {
            // SAFETY: `self` is being dropped, so the value is dropped once and not used afterwards.
            unsafe { ManuallyDrop::drop(self.value.get_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Condvar, Mutex};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    /// Runs `look` in a forked process; whether it gave true there. Nothing in it may allocate much or print.
    fn in_child(look: impl FnOnce() -> bool) -> bool {
        sys::fork_for_test(look)
    }

    #[test]
    fn a_forked_process_has_another_token_and_its_children_too() {
        let token = process_token();
        assert_eq!(process_token(), token);
        assert!(in_child(|| {
            let second = process_token();
            second != token && second == process_token() && in_child(|| ![token, second].contains(&process_token()))
        }));
        assert_eq!(process_token(), token);
    }

    #[test]
    fn each_process_makes_its_own_value() {
        let value = PerProcess::new();
        assert!(value.get().is_none());
        assert_eq!(*value.get_or_init(|| 1), 1);
        assert_eq!(*value.get_or_init(|| 2), 1);
        assert!(in_child(|| value.get().is_none() && *value.get_or_init(|| 3) == 3 && value.get() == Some(&3)));
        assert_eq!(value.get(), Some(&1));
    }

    #[test]
    fn threads_that_make_a_value_at_once_get_the_same() {
        for _ in 0..100 {
            let (value, barrier) = (PerProcess::new(), std::sync::Barrier::new(2));
            let make = |mine: u32| {
                barrier.wait();
                *value.get_or_init(|| mine)
            };
            let (one, two) = std::thread::scope(|scope| {
                let one = scope.spawn(|| make(1));
                (make(2), one.join().unwrap())
            });
            assert_eq!(one, two);
        }
    }

    #[test]
    fn a_value_is_dropped_in_its_own_process_only() {
        let counted = Arc::new(());
        let (per, of) = (PerProcess::new(), OfProcess::new(counted.clone()));
        per.get_or_init(|| counted.clone());
        assert_eq!(Arc::strong_count(&counted), 3);
        let (per, of) = (Some(per), Some(of));
        assert!(in_child(move || {
            assert!(of.as_ref().is_some_and(|of| of.get().is_none()));
            drop((per, of));
            Arc::strong_count(&counted) == 3
        }));
        let counted = Arc::new(());
        let (per, of) = (PerProcess::new(), OfProcess::new(counted.clone()));
        per.get_or_init(|| counted.clone());
        assert!(of.get().is_some());
        drop((per, of));
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    /// Another test of this process may have the order of locks watched, which takes a lock of the whole process.
    #[cfg(debug_assertions)]
    #[test]
    fn a_child_takes_locks_whatever_its_parent_knew_of_their_order() {
        crate::sync::watch_order();
        let has_taken = crate::sync::while_looking(|| {
            in_child(|| {
                sys::end_in(20);
                let (one, two) = (Mutex::new(1), Mutex::new(2));
                *one.lock() + *two.lock() == 3
            })
        });
        assert!(has_taken, "the child ended well");
    }

    /// Threads of a child contend among themselves while its memory is full of traces of its parent's threads.
    #[test]
    fn a_childs_threads_do_not_meet_those_of_its_parent_in_a_lock() {
        const THREADS: usize = 8;
        let contend = |pair: &(Mutex<usize>, Condvar), rounds: usize| {
            sys::in_threads_for_test(THREADS, &|| {
                for _ in 0..rounds {
                    let mut count = pair.0.lock();
                    *count += 1;
                    pair.1.notify_one();
                    drop(pair.1.wait_for(count, Duration::from_micros(10)));
                }
            });
        };
        let (pair, stop) = ((Mutex::new(0), Condvar::new()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    contend(&pair, 10);
                }
            });
            let right = (0..20).filter(|_| {
                in_child(|| {
                    sys::end_in(20);
                    let own = (Mutex::new(0), Condvar::new());
                    contend(&own, 200);
                    *own.0.lock() == THREADS * 200
                })
            });
            let right = right.count();
            stop.store(true, SeqCst);
            assert_eq!(right, 20, "children that ended well");
        });
    }
}
