//! Locks that a forked process may use: each is a word of memory of its own.
//!
//! They are the standard library's, which wait by futex(2). Libraries of locks with one table of waiting threads for the
//! whole process are not usable here: a child of fork(2) inherits the entries of its parent's threads, and comes to grief
//! when two threads of its own contend. A panic of a thread that holds a lock does not make it unusable for others, since
//! programs that load a library of ours go on after one (docs/decisions/0073-libraries-unwind.md); in an agent of intercepted
//! programs it ends the process ([`crate::defects`]).

#[cfg(debug_assertions)]
mod order;
#[cfg(not(debug_assertions))]
#[path = "sync/unwatched.rs"]
mod order;

#[cfg(all(test, debug_assertions))]
pub(crate) use order::while_looking;

use crate::defects::lock_after_a_panic;
use order::{Held, Site};
use std::fmt::{self, Debug, Formatter};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{LockResult, PoisonError, TryLockError};
use std::time::Duration;

/// From now on a thread that takes locks in an order which contradicts an earlier one panics, whether it would wait or not. Only builds
/// with debug assertions look.
pub fn watch_order() {
    #[cfg(debug_assertions)]
    order::watch();
}

fn also_after_a_panic<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(after_a_panic)
}

#[cold]
fn after_a_panic<T>(locked: PoisonError<T>) -> T {
    lock_after_a_panic();
    locked.into_inner()
}

/// A lock for one thread at a time.
pub struct Mutex<T: ?Sized> {
    site: Site,
    lock: std::sync::Mutex<T>,
}

/// The guarded value, for the thread that has the lock.
#[derive(Debug)]
pub struct MutexGuard<'a, T: ?Sized> {
    guard: std::sync::MutexGuard<'a, T>,
    held: Held,
    site: &'a Site,
}

impl<T> Mutex<T> {
    /// A lock around `value`.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Mutex { site: Site::here(), lock: std::sync::Mutex::new(value) }
    }

    /// The guarded value.
    pub fn into_inner(self) -> T {
        also_after_a_panic(self.lock.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread has the lock. A thread that has it already waits for ever.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.site.take::<T>();
        MutexGuard { guard: also_after_a_panic(self.lock.lock()), held, site: &self.site }
    }

    /// The lock, unless another thread has it.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = match self.lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => after_a_panic(error),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { guard, held: self.site.take_without_waiting::<T>(), site: &self.site })
    }

    /// The guarded value, for its only user.
    pub fn get_mut(&mut self) -> &mut T {
        also_after_a_panic(self.lock.get_mut())
    }
}

/// A lock for any number of readers, or one writer.
pub struct RwLock<T: ?Sized> {
    site: Site,
    lock: std::sync::RwLock<T>,
}

/// The guarded value, for a thread that reads.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    guard: std::sync::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// The guarded value, for the thread that writes.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    guard: std::sync::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    /// A lock around `value`.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        RwLock { site: Site::here(), lock: std::sync::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes. A thread that reads already may wait for ever, behind one that waits to write.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.site.take::<T>();
        RwLockReadGuard { guard: also_after_a_panic(self.lock.read()), _held: held }
    }

    /// Waits until no other thread reads or writes.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.site.take::<T>();
        RwLockWriteGuard { guard: also_after_a_panic(self.lock.write()), _held: held }
    }

    /// The guarded value, for its only user.
    pub fn get_mut(&mut self) -> &mut T {
        also_after_a_panic(self.lock.get_mut())
    }
}

impl<T: Default> Default for Mutex<T> {
    #[track_caller]
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

impl<T: Default> Default for RwLock<T> {
    #[track_caller]
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

impl<T: ?Sized + Debug> Debug for Mutex<T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.lock.fmt(out)
    }
}

impl<T: ?Sized + Debug> Debug for RwLock<T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.lock.fmt(out)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Where threads sleep until another one has changed what a [`Mutex`] guards. They may wake without a call: look again.
/// A call where no thread sleeps makes no system call.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: std::sync::Condvar,
    /// Counted up with the mutex locked: a thread that changes the guarded value sees all that slept before.
    sleepers: AtomicUsize,
}

impl Condvar {
    /// One where no thread sleeps.
    pub const fn new() -> Self {
        Condvar { inner: std::sync::Condvar::new(), sleepers: AtomicUsize::new(0) }
    }

    /// Unlocks, sleeps until a call, and locks again.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        let MutexGuard { guard, held, site } = guard;
        drop(held);
        self.sleepers.fetch_add(1, SeqCst);
        let guard = also_after_a_panic(self.inner.wait(guard));
        self.sleepers.fetch_sub(1, SeqCst);
        MutexGuard { guard, held: site.take::<T>(), site }
    }

    /// As [`Condvar::wait`], for `limit` at most.
    #[track_caller]
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        let MutexGuard { guard, held, site } = guard;
        drop(held);
        self.sleepers.fetch_add(1, SeqCst);
        let (guard, _) = also_after_a_panic(self.inner.wait_timeout(guard, limit));
        self.sleepers.fetch_sub(1, SeqCst);
        MutexGuard { guard, held: site.take::<T>(), site }
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
