//! Locks that a forked process may use: each is a word of memory of its own.
//!
//! They are the standard library's, which wait by futex(2). Libraries of locks with one table of waiting threads for the
//! whole process are not usable here: a child of fork(2) inherits the entries of its parent's threads, and comes to grief
//! when two threads of its own contend. A panic of a thread that holds a lock does not make it unusable for others, since
//! programs that load a library of ours go on after one (docs/decisions/0073-libraries-unwind.md); in an agent of intercepted
//! programs it ends the process ([`crate::defects`]).

use crate::defects::lock_after_a_panic;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{LockResult, PoisonError, TryLockError};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

fn also_after_a_panic<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(after_a_panic)
}

#[cold]
fn after_a_panic<T>(locked: PoisonError<T>) -> T {
    lock_after_a_panic();
    locked.into_inner()
}

/// A lock for one thread at a time.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// What was locked.
    pub fn into_inner(self) -> T {
        also_after_a_panic(self.0.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread has the lock. A thread that has it already waits for ever.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        also_after_a_panic(self.0.lock())
    }

    /// The lock, unless another thread has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(after_a_panic(error)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What is locked, for its only user.
    pub fn get_mut(&mut self) -> &mut T {
        also_after_a_panic(self.0.get_mut())
    }
}

/// A lock for any number of readers, or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        also_after_a_panic(self.0.read())
    }

    /// Waits until no other thread reads or writes.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        also_after_a_panic(self.0.write())
    }

    /// What is locked, for its only user.
    pub fn get_mut(&mut self) -> &mut T {
        also_after_a_panic(self.0.get_mut())
    }
}

/// Where threads sleep until another one has changed what a [`Mutex`] guards. They may wake without a call: look again.
/// A call where no thread sleeps makes no system call.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: std::sync::Condvar,
    /// Counted up with the mutex locked: a thread that changes what it guards sees all that slept before.
    sleepers: AtomicUsize,
}

impl Condvar {
    /// One where no thread sleeps.
    pub const fn new() -> Self {
        Condvar { inner: std::sync::Condvar::new(), sleepers: AtomicUsize::new(0) }
    }

    /// Unlocks, sleeps until a call, and locks again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.sleepers.fetch_add(1, SeqCst);
        let guard = also_after_a_panic(self.inner.wait(guard));
        self.sleepers.fetch_sub(1, SeqCst);
        guard
    }

    /// As [`Condvar::wait`], for `limit` at most.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.sleepers.fetch_add(1, SeqCst);
        let (guard, _) = also_after_a_panic(self.inner.wait_timeout(guard, limit));
        self.sleepers.fetch_sub(1, SeqCst);
        guard
    }

    /// Wakes one thread.
    pub fn notify_one(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            self.inner.notify_one();
        }
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            self.inner.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_lock_is_usable_after_a_panic() {
        let lock = Arc::new(Mutex::new(1));
        let other = lock.clone();
        let ended = std::thread::spawn(move || {
            let _guard = other.lock();
            panic!("planted");
        });
        assert!(ended.join().is_err());
        assert_eq!(*lock.lock(), 1);
        assert_eq!(Arc::into_inner(lock).map(Mutex::into_inner), Some(1));
    }

    #[test]
    fn a_sleeper_wakes_by_a_call_or_after_its_limit() {
        let pair = (Mutex::new(false), Condvar::new());
        drop(pair.1.wait_for(pair.0.lock(), Duration::from_millis(1)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *pair.0.lock() = true;
                pair.1.notify_all();
            });
            let mut guard = pair.0.lock();
            while !*guard {
                guard = pair.1.wait(guard);
            }
        });
    }
}
