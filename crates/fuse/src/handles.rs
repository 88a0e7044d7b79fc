//! Numbers for open files and directories: the kernel keeps the number, this table its meaning.

use aze_io::sync::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Open things by number. It holds what programs hold open, and so is bounded by their limits.
pub struct Handles<T> {
    next: AtomicU64,
    open: RwLock<BTreeMap<u64, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { next: AtomicU64::new(1), open: RwLock::default() }
    }
}

impl<T> Handles<T> {
    /// Gives `thing` a number that was never given before.
    pub fn insert(&self, thing: Arc<T>) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(number, thing);
        number
    }

    /// What a number means.
    pub fn get(&self, number: u64) -> Option<Arc<T>> {
        self.open.read().get(&number).cloned()
    }

    /// Whether one of the open things is as `is_it` says.
    pub fn any(&self, is_it: impl Fn(&T) -> bool) -> bool {
        self.open.read().values().any(|thing| is_it(thing))
    }

    /// Forgets a number.
    pub fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.open.write().remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_given_twice() {
        let handles = Handles::default();
        let (first, second) = (handles.insert(Arc::new("a")), handles.insert(Arc::new("b")));
        assert_eq!((handles.get(first).as_deref(), handles.get(second).as_deref()), (Some(&"a"), Some(&"b")));
        assert!(handles.any(|thing| *thing == "b") && !handles.any(|thing| *thing == "c"));
        for number in [second, first] {
            assert!(handles.remove(number).is_some());
            assert!(handles.get(number).is_none() && handles.remove(number).is_none());
        }
        let third = handles.insert(Arc::new("c"));
        assert!(third != first && third != second, "a late request must not hit another file");
    }
}
