//! Numbers for open files, as C has them.
//!
//! A number holds a place in the table and a count of how often that place was used, so that one that was closed, or that
//! a forked process has from its parent, is not taken for another file that was opened since.

use crate::error::{Error, Result};
use aze_io::real::process_token;
use aze_io::sync::RwLock;
use std::sync::Arc;

/// Bits of a number that name the place: 1,048,576 files can be open at one time.
const PLACE_BITS: u32 = 20;

/// Values of the count: it takes the other bits of a positive number.
const COUNTS: u32 = 1 << (31 - PLACE_BITS);

/// Counts that lie between a process and its children: a prime number, so that they seldom meet.
const COUNTS_PER_PROCESS: u64 = 677;

/// Open files, or other things, by their numbers.
pub struct Table<T> {
    what: &'static str,
    places: RwLock<Places<T>>,
}

struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<u32>,
}

struct Place<T> {
    count: u32,
    held: Option<Arc<T>>,
}

impl<T> Table<T> {
    /// An empty table of the calling process; `what` names its objects in errors.
    pub fn new(what: &'static str) -> Table<T> {
        Table { what, places: RwLock::new(Places { all: Vec::new(), free: Vec::new() }) }
    }

    /// Gives something a number.
    ///
    /// # Errors
    /// EMFILE if 1,048,576 are in the table.
    pub fn insert(&self, value: Arc<T>) -> Result<i32> {
        let mut places = self.places.write();
        let at = match places.free.pop() {
            Some(at) => at,
            None if places.all.len() >= 1 << PLACE_BITS => {
                let text = format!("no number is left for another {}: {} are in use", self.what, 1 << PLACE_BITS);
                return Err(Error::new(libc::EMFILE, text));
            }
            None => {
                let count = (process_token() * COUNTS_PER_PROCESS % u64::from(COUNTS)) as u32;
                places.all.push(Place { count, held: None });
                places.all.len() as u32 - 1
            }
        };
        let place = &mut places.all[at as usize];
        place.held = Some(value);
        Ok((place.count << PLACE_BITS | at) as i32)
    }

    /// The object with this number.
    ///
    /// # Errors
    /// EBADF if nothing has it.
    pub fn get(&self, number: i32) -> Result<Arc<T>> {
        let places = self.places.read();
        let found = split(number).and_then(|(count, at)| {
            let place = places.all.get(at).filter(|place| place.count == count)?;
            place.held.clone()
        });
        found.ok_or_else(|| self.bad(number))
    }

    /// Takes something out of the table.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn remove(&self, number: i32) -> Result<Arc<T>> {
        let (count, at) = split(number).ok_or_else(|| self.bad(number))?;
        let mut places = self.places.write();
        let place = places.all.get_mut(at).filter(|place| place.count == count);
        let (place, value) = match place.map(|place| (place.held.take(), place)) {
            Some((Some(value), place)) => (place, value),
            _ => return Err(self.bad(number)),
        };
        place.count = (place.count + 1) % COUNTS;
        places.free.push(at as u32);
        Ok(value)
    }

    /// Takes everything out of the table that `is_it` is true of.
    pub fn remove_all(&self, is_it: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut places = self.places.write();
        let mut removed = Vec::new();
        for at in 0..places.all.len() {
            let place = &mut places.all[at];
            if place.held.as_deref().is_some_and(&is_it) {
                removed.extend(place.held.take());
                place.count = (place.count + 1) % COUNTS;
                places.free.push(at as u32);
            }
        }
        removed
    }

    fn bad(&self, number: i32) -> Error {
        Error::new(libc::EBADF, format!("{number} is no open {} of this process", self.what))
    }
}

/// Count and place of a number.
fn split(number: i32) -> Option<(u32, usize)> {
    let number = u32::try_from(number).ok()?;
    Some((number >> PLACE_BITS, (number & ((1 << PLACE_BITS) - 1)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_good_again_when_its_place_is() {
        let table = Table::new("file");
        let one = table.insert(Arc::new('a')).unwrap();
        assert_eq!(*table.get(one).unwrap(), 'a');
        assert_eq!(*table.remove(one).unwrap(), 'a');
        let two = table.insert(Arc::new('b')).unwrap();
        assert_eq!(split(one).unwrap().1, split(two).unwrap().1, "the place is used again");
        for bad in [one, -1, i32::MAX, i32::MIN, two + 1] {
            assert_eq!(table.get(bad).map_err(|error| error.errno), Err(libc::EBADF), "{bad}");
            assert_eq!(table.remove(bad).map_err(|error| error.errno), Err(libc::EBADF), "{bad}");
        }
        assert_eq!(*table.get(two).unwrap(), 'b');
    }

    #[test]
    fn numbers_stay_positive_however_often_a_place_is_used() {
        let table = Table::new("file");
        for _ in 0..3 * COUNTS {
            let number = table.insert(Arc::new(())).unwrap();
            assert!(number >= 0);
            table.remove(number).unwrap();
        }
    }

    #[test]
    fn all_of_a_kind_are_removed() {
        let table = Table::new("file");
        let numbers: Vec<i32> = (0..10).map(|value| table.insert(Arc::new(value)).unwrap()).collect();
        assert_eq!(table.remove_all(|value| value % 2 == 0).len(), 5);
        assert_eq!(numbers.iter().filter(|number| table.get(**number).is_ok()).count(), 5);
    }
}
