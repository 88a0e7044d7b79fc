//! In which order threads take locks. Two threads that take the same two locks in different orders wait for one another some day: this
//! finds that out without their doing so, since it remembers for each lock which others were held when it was taken. It is there in
//! builds with debug assertions, and at work once [`watch`] was called, as the simulation does, in which one thread does
//! the work of all, and so never waits.
//!
//! Locks are told apart by the place in the program that has made them and by what they guard: those of the same kind are one. In which
//! order a thread takes two of a kind is not looked at.

use crate::real::process_token;
use std::any::type_name;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

type Place = &'static Location<'static>;

/// A kind of locks.
type Kind = u32;

/// The process that watches ([`process_token`]); 0: none. One that was forked from it does not: a thread of its parent may
/// have held [`KNOWN`].
static WATCHES: AtomicU64 = AtomicU64::new(0);

static KNOWN: std::sync::Mutex<Known> = std::sync::Mutex::new(Known { kinds: Vec::new(), taken: BTreeMap::new() });

thread_local! {
    /// The locks that this thread holds, and the orders that it has found sound.
    static THREAD: RefCell<Thread> = const { RefCell::new(Thread { held: Vec::new(), sound: BTreeSet::new() }) };
}

struct Known {
    /// For each kind, the place that makes such locks, and the type that they guard.
    kinds: Vec<(Place, &'static str)>,
    /// Which kinds were taken while another was held, and where both were taken.
    taken: BTreeMap<Kind, BTreeMap<Kind, (Place, Place)>>,
}

struct Thread {
    held: Vec<(Kind, usize, Place)>,
    sound: BTreeSet<(Kind, Kind)>,
}

/// From now on every thread of the process watches the order of its locks, and panics if it contradicts an earlier one.
pub fn watch() {
    WATCHES.store(process_token(), Relaxed);
}

/// The kind of a lock, once it is known.
#[derive(Debug)]
pub(super) struct Site {
    made: Place,
    /// Counted from 1; 0 if it is not known yet.
    kind: AtomicU32,
}

/// A lock that is held, until this is dropped.
#[derive(Debug)]
pub(super) struct Held(Option<usize>);

impl Site {
    #[track_caller]
    pub(super) const fn here() -> Site {
        Site { made: Location::caller(), kind: AtomicU32::new(0) }
    }

    fn kind<T: ?Sized>(&self) -> Kind {
        match self.kind.load(Relaxed) {
            0 => {
                let kind = known().kind((self.made, type_name::<T>()));
                self.kind.store(kind, Relaxed);
                kind
            }
            kind => kind,
        }
    }

    /// The thread is about to wait for the lock.
    #[track_caller]
    pub(super) fn take<T: ?Sized>(&self) -> Held {
        self.note::<T>(true)
    }

    /// The thread has the lock, and would not have waited for it.
    #[track_caller]
    pub(super) fn take_without_waiting<T: ?Sized>(&self) -> Held {
        self.note::<T>(false)
    }

    #[track_caller]
    fn note<T: ?Sized>(&self, waits: bool) -> Held {
        match WATCHES.load(Relaxed) {
            0 => return Held(None),
            process if process != process_token() => return Held(None),
            _ => {}
        }
        let (kind, address, place) = (self.kind::<T>(), std::ptr::from_ref(self) as usize, Location::caller());
        // A thread that ends has nothing to watch.
        let noted = THREAD.try_with(|thread| thread.borrow_mut().take((kind, address, place), waits));
        match noted {
            Ok(Err(why)) => panic!("{why}"),
            Ok(Ok(())) => Held(Some(address)),
            Err(_) => Held(None),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(address) = self.0 else { return };
        // As above.
        let _ = THREAD.try_with(|thread| {
            let held = &mut thread.borrow_mut().held;
            held.iter().rposition(|(_, other, _)| *other == address).map(|at| held.remove(at))
        });
    }
}

impl Thread {
    fn take(&mut self, taken: (Kind, usize, Place), waits: bool) -> Result<(), String> {
        let (kind, address, place) = taken;
        for (held, other, held_at) in self.held.iter().filter(|_| waits) {
            if *other == address {
                return Err(format!("locked at {place}, and the thread has locked it at {held_at}"));
            }
            if *held != kind && self.sound.insert((*held, kind)) {
                known().order((*held, *held_at), (kind, place))?;
            }
        }
        self.held.push(taken);
        Ok(())
    }
}

/// Does `work` while this thread is finding out whether an order is sound.
#[cfg(test)]
pub(crate) fn while_looking<T>(work: impl FnOnce() -> T) -> T {
    let _known = known();
    work()
}

fn known() -> std::sync::MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Known {
    fn kind(&mut self, of: (Place, &'static str)) -> Kind {
        let is_it = |known: &(Place, &'static str)| known.1 == of.1 && known.0 == of.0;
        let at = self.kinds.iter().position(is_it).unwrap_or_else(|| {
            self.kinds.push(of);
            self.kinds.len() - 1
        });
        at as Kind + 1
    }

    fn name(&self, kind: Kind) -> String {
        let (made, guards) = self.kinds[kind as usize - 1];
        format!("{guards} (made at {made})")
    }

    /// A lock is taken while another one is held.
    fn order(&mut self, (held, held_at): (Kind, Place), (kind, place): (Kind, Place)) -> Result<(), String> {
        if let Some(way) = self.way(kind, held) {
            let mut why = format!("{} is locked at {place} by a thread that holds ", self.name(kind));
            why += &format!("{} since {held_at}; but in another order:", self.name(held));
            for (first, then) in way.iter().zip(way.iter().skip(1)) {
                let (first_at, then_at) = self.taken[first][then];
                why += &format!(" {} (at {first_at}) before {} (at {then_at});", self.name(*first), self.name(*then));
            }
            return Err(why);
        }
        self.taken.entry(held).or_default().entry(kind).or_insert((held_at, place));
        Ok(())
    }

    /// The kinds from one to another: a thread took each while it held the one before.
    fn way(&self, from: Kind, to: Kind) -> Option<Vec<Kind>> {
        let (mut before, mut next) = (BTreeMap::from([(from, from)]), vec![from]);
        while let Some(kind) = next.pop() {
            if kind == to {
                let mut way = vec![to];
                while way.last() != Some(&from) {
                    way.push(before[&way[way.len() - 1]]);
                }
                way.reverse();
                return Some(way);
            }
            for then in self.taken.get(&kind).into_iter().flat_map(BTreeMap::keys) {
                before.entry(*then).or_insert_with(|| {
                    next.push(*then);
                    kind
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::sync::{Mutex, RwLock};

    /// What a thread is told that takes locks in an order of its own; watched from now on.
    fn told(work: impl FnOnce() + Send + 'static) -> Option<String> {
        super::watch();
        let why = std::thread::spawn(work).join().err()?;
        why.downcast_ref::<String>().cloned()
    }

    #[test]
    fn two_orders_of_two_locks_are_noticed_though_nobody_waits() {
        let (one, two, three) = (
            &*Box::leak(Box::new(Mutex::new(1))),
            &*Box::leak(Box::new(RwLock::new(2))),
            &*Box::leak(Box::new(Mutex::new(3))),
        );
        assert_eq!(told(|| drop((one.lock(), two.read()))), None);
        assert_eq!(told(|| drop((two.write(), three.lock()))), None);
        assert_eq!(told(|| drop((one.lock(), three.lock()))), None);
        let why = told(|| drop((three.lock(), one.lock()))).expect("one comes before three");
        assert!(why.contains("in another order: i32") && why.matches("sync/order.rs").count() >= 6, "{why}");
        assert_eq!(told(|| drop((three.lock(), one.try_lock()))), None, "who does not wait keeps nobody waiting");
        let again = told(|| drop((three.lock(), one.lock())));
        assert!(again.is_some(), "it is told as often as it is found");
    }

    #[test]
    fn a_lock_that_the_thread_has_is_noticed() {
        let lock = &*Box::leak(Box::new(Mutex::new(())));
        assert!(told(|| drop((lock.lock(), lock.lock()))).is_some_and(|why| why.starts_with("locked at ")));
        assert_eq!(
            told(|| {
                drop(lock.lock());
                drop(lock.lock());
            }),
            None,
            "one after the other"
        );
    }

    #[test]
    fn who_sleeps_until_a_call_does_not_have_the_lock() {
        use crate::sync::Condvar;
        use std::time::Duration;
        let (slept, other, call) =
            (&*Box::leak(Box::new(Mutex::new(()))), &*Box::leak(Box::new(Mutex::new(()))), Condvar::new());
        let work = move || {
            drop(call.wait_for(slept.lock(), Duration::from_millis(1)));
            drop((other.lock(), slept.lock()));
        };
        assert_eq!(told(work), None);
    }
}
