//! A table of inodes, of bounded size, that forgets entries which were not used lately.

use aze_proto::ids::Ino;
use std::collections::HashMap;

/// Two halves; the older one is forgotten when the younger is full.
pub struct Halves<V> {
    young: HashMap<Ino, V>,
    old: HashMap<Ino, V>,
    half_max: usize,
}

impl<V> Halves<V> {
    /// Room for so many.
    pub fn new(max: usize) -> Halves<V> {
        Halves { young: HashMap::new(), old: HashMap::new(), half_max: max / 2 }
    }

    /// Removes an entry; the caller puts it back to keep it.
    pub fn take(&mut self, ino: Ino) -> Option<V> {
        self.young.remove(&ino).or_else(|| self.old.remove(&ino))
    }

    /// Adds or replaces an entry.
    pub fn put(&mut self, ino: Ino, value: V) {
        if self.young.len() >= self.half_max && !self.young.contains_key(&ino) {
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
        let mut halves = Halves::new(MAX);
        for ino in 0..3 * MAX as u64 {
            halves.put(Ino(ino), ino);
            if ino % 10 == 0 {
                let used = halves.take(Ino(0)).expect("it was used a moment ago");
                halves.put(Ino(0), used);
            }
            assert!(halves.young.len() + halves.old.len() <= MAX);
        }
        assert!(halves.take(Ino(1)).is_none());
    }
}
