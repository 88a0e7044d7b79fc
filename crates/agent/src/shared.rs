//! The agent's side of the memory that it shares with its programs ([`aze_calls::shared`]).
//!
//! It alone gives places to descriptions. Programs may write what they like there: that moves the positions of their own user's files,
//! and nothing else.

use crate::sys::Words;
use aze_calls::shared::{
    NAMES_VERSION_AT, PLACES, SERVERS_VERSION_AT, TIME_AT, counter_at, opens_at, position_at, position_in, with_place,
    word_of,
};
use aze_client::Subscriber;
use aze_io::sync::{Mutex, MutexGuard};
use aze_proto::ids::{Ino, Time};
use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The memory.
pub struct Shared {
    words: Words,
    descriptor: OwnedFd,
    places: Mutex<Places>,
}

/// Which places are free: those that never had a description, and then those that had one longest ago.
#[derive(Default)]
struct Places {
    used: usize,
    free: VecDeque<u16>,
}

impl Places {
    fn take(&mut self) -> Option<u16> {
        // Place 0 is none.
        let next = self.used + 1;
        if next < PLACES {
            self.used = next;
            return u16::try_from(next).ok();
        }
        self.free.pop_front()
    }
}

impl Shared {
    /// New memory, without positions.
    ///
    /// # Errors
    /// What the system said: EMFILE, ENOMEM.
    pub fn new() -> io::Result<Arc<Shared>> {
        let (words, descriptor) = Words::new()?;
        Ok(Arc::new(Shared { words, descriptor, places: Mutex::default() }))
    }

    /// By which programs map it.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    /// What a counter of changes has come to.
    pub fn changes(&self, counter: usize) -> u64 {
        counter_at(counter as u32).map_or(0, |at| self.words.at(at).load(SeqCst))
    }

    /// A change begins or ends.
    pub fn count_change(&self, counter: usize) {
        if let Some(at) = counter_at(counter as u32) {
            self.words.at(at).fetch_add(1, SeqCst);
        }
    }

    /// Indexes that are shared count while it is this.
    pub fn servers_version(&self) -> u64 {
        self.words.at(SERVERS_VERSION_AT).load(SeqCst)
    }

    /// Notes about directories count while it is this.
    pub fn names_version(&self) -> u64 {
        self.words.at(NAMES_VERSION_AT).load(SeqCst)
    }

    /// A position for a description of this number; gives the number with the place.
    pub fn begin(self: &Arc<Shared>, number: u64) -> (u64, Position) {
        let Some(place) = self.places.lock().take() else { return (number, Position::default()) };
        let desc = with_place(number, place);
        let placed = Placed { shared: self.clone(), desc };
        placed.show(0);
        (desc, Position { last: Mutex::new(0), placed: Some(placed) })
    }
}

impl Subscriber for Shared {
    fn servers_changed(&self) {
        self.words.at(SERVERS_VERSION_AT).fetch_add(1, SeqCst);
        self.names_changed();
    }

    fn names_changed(&self) {
        self.words.at(NAMES_VERSION_AT).fetch_add(1, SeqCst);
    }

    fn opened(&self, ino: Ino) {
        self.words.at(opens_at(ino.0)).fetch_add(1, SeqCst);
    }

    fn closed(&self, ino: Ino) {
        self.words.at(opens_at(ino.0)).fetch_sub(1, SeqCst);
    }

    fn seen(&self) -> Time {
        Time(self.words.at(TIME_AT).load(SeqCst))
    }
}

/// Where reads and writes of a description begin. Held during those that move it, so that they come one after the other.
#[derive(Default)]
pub struct Position {
    /// The position when the agent held it last; later, programs may have moved the word.
    last: Mutex<u64>,
    placed: Option<Placed>,
}

/// The place of a description, until it is dropped.
struct Placed {
    shared: Arc<Shared>,
    desc: u64,
}

impl Placed {
    fn swap(&self, word: u64) -> u64 {
        position_at(self.desc).map_or(0, |at| self.shared.words.at(at).swap(word, SeqCst))
    }

    /// Programs may take and move it.
    fn show(&self, position: u64) {
        self.swap(word_of(self.desc, position));
    }

    /// Programs have to ask; gives what they have left.
    fn hide(&self) -> Option<u64> {
        position_in(self.swap(word_of(self.desc, u64::MAX)), self.desc)
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.hide();
        if let Some(place) = position_at(self.desc).and_then(|place| u16::try_from(place).ok()) {
            self.shared.places.lock().free.push_back(place);
        }
    }
}

impl Position {
    /// Holds it: programs that would move it wait for the agent's answer.
    pub fn lock(&self) -> HeldPosition<'_> {
        let mut last = self.last.lock();
        let placed = self.placed.as_ref();
        if let Some(position) = placed.and_then(Placed::hide) {
            *last = position;
        }
        HeldPosition { last, placed }
    }
}

/// A position that is held.
pub struct HeldPosition<'a> {
    last: MutexGuard<'a, u64>,
    placed: Option<&'a Placed>,
}

impl Deref for HeldPosition<'_> {
    type Target = u64;

    fn deref(&self) -> &u64 {
        &self.last
    }
}

impl DerefMut for HeldPosition<'_> {
    fn deref_mut(&mut self) -> &mut u64 {
        &mut self.last
    }
}

impl Drop for HeldPosition<'_> {
    fn drop(&mut self) {
        if let Some(placed) = self.placed {
            placed.show(*self.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_calls::shared::ASK;

    fn word(shared: &Shared, desc: u64) -> Option<u64> {
        position_in(shared.words.at(position_at(desc).expect("a place")).load(SeqCst), desc)
    }

    #[test]
    fn programs_move_a_position_while_the_agent_does_not_hold_it() {
        let shared = Shared::new().expect("memory");
        let (desc, position) = shared.begin(5);
        assert_eq!(word(&shared, desc), Some(0));
        shared.words.at(position_at(desc).expect("a place")).store(word_of(desc, 70), SeqCst);
        let mut held = position.lock();
        assert_eq!((*held, word(&shared, desc)), (70, None), "what a program has left");
        *held += 5;
        drop(held);
        assert_eq!(word(&shared, desc), Some(75));
        *position.lock() = ASK + 7;
        assert_eq!((word(&shared, desc), *position.lock()), (None, ASK + 7), "too large for a word");
        drop(position);
        assert_eq!(word(&shared, desc), None);
    }

    #[test]
    fn the_place_that_was_free_longest_is_given_first_and_none_when_all_are_taken() {
        let shared = Shared::new().expect("memory");
        let mut all: Vec<_> = (1..PLACES as u64).map(|number| shared.begin(number)).collect();
        let (number, without) = shared.begin(1 << 20);
        assert_eq!((number, position_at(number)), (1 << 20, None));
        *without.lock() = 9;
        assert_eq!(*without.lock(), 9);
        let freed = [all.remove(7), all.remove(3)].map(|(desc, _)| position_at(desc));
        let again = [2 << 20, 3 << 20].map(|number| shared.begin(number));
        assert_eq!(again.each_ref().map(|(desc, _)| position_at(*desc)), freed);
    }
}
