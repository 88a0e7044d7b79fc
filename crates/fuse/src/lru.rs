//! A cache of inodes, of bounded size, that drops entries which were not used recently.

use aze_proto::ids::Ino;
use std::collections::HashMap;

/// An approximate LRU cache: two generations; when the younger is full, the older is dropped.
pub struct LruCache<V> {
    young: HashMap<Ino, V>,
    old: HashMap<Ino, V>,
    generation_max: usize,
}

impl<V> LruCache<V> {
    /// Room for so many.
    pub fn new(max: usize) -> LruCache<V> {
        LruCache { young: HashMap::new(), old: HashMap::new(), generation_max: max / 2 }
    }

    /// Removes an entry; the caller puts it back to keep it.
    pub fn take(&mut self, ino: Ino) -> Option<V> {
        self.young.remove(&ino).or_else(|| self.old.remove(&ino))
    }

    /// Adds or replaces an entry.
    pub fn put(&mut self, ino: Ino, value: V) {
        if self.young.len() >= self.generation_max && !self.young.contains_key(&ino) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_used_stays() {
        const MAX: usize = 100;
        let mut lru = LruCache::new(MAX);
        for ino in 0..3 * MAX as u64 {
            lru.put(Ino(ino), ino);
            if ino % 10 == 0 {
                let used = lru.take(Ino(0)).expect("it was used a moment ago");
                lru.put(Ino(0), used);
            }
            assert!(lru.young.len() + lru.old.len() <= MAX);
        }
        assert!(lru.take(Ino(1)).is_none());
    }
}
