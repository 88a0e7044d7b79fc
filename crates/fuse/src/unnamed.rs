//! Threads that come to files which have lost a name. One may have come by that name, which lasts only where
//! names are cached, or by another one, or without a name, as by way of `/proc/self/fd`.
//!
//! A request for such a file is refused with ESTALE: the kernel then looks every name of the path up again
//! (path_resolution(7)), and takes the inode that is there now. A thread that has just looked up a name which
//! leads there, or has been refused and comes back without looking anything up, is let in: once to ask
//! for attributes, once to open and once for anything else.
//!
//! The kernel looks again once for each call of a program. So a thread that was refused is let in to the file that it
//! finds then, with the same request, also if that file loses another name at the same moment, as the source of a
//! rename does. Between that lookup and the request another client may replace the file once more. So the mount has the
//! file that such a thread finds open until the thread has come: an open file stays.

use crate::abi::op;
use aze_client::File;
use aze_io::sync::Mutex;
use aze_proto::ids::Ino;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Threads that are remembered. They come back at once.
const THREADS_MAX: usize = 4096;

/// What a thread wants of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Its attributes.
    Attributes,
    /// To open it.
    Open,
    /// Anything else for which it need not be open.
    Else,
}

/// Where a name has led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// To a file or a symbolic link, which has lost another name, or has not.
    File { ino: Ino, has_moved: bool },
    /// To a directory, a pipe, a socket or a device.
    Directory,
    /// Nowhere.
    Nothing,
}

/// What a thread may do next.
#[derive(Clone, Copy)]
struct May {
    ino: Ino,
    ask: bool,
    open: bool,
    other: bool,
}

impl May {
    /// It may do each of the three once.
    fn all(ino: Ino) -> May {
        May { ino, ask: true, open: true, other: true }
    }

    /// Whether it may, from now on no more.
    fn take(&mut self, ino: Ino, want: Want) -> bool {
        let may = match want {
            _ if self.ino != ino => return false,
            Want::Attributes => &mut self.ask,
            Want::Open => &mut self.open,
            Want::Else => &mut self.other,
        };
        std::mem::take(may)
    }
}

/// Who may come to what. `F` is an open file.
pub struct Unnamed<F = Arc<File>> {
    known: AtomicUsize,
    threads: Mutex<BTreeMap<u32, May>>,
    /// Threads whose other requests were refused, and that come back with them. To make a link the kernel looks up the
    /// new name, too, and asks for attributes in passing, and ignores the answer.
    back: Mutex<BTreeMap<u32, Ino>>,
    /// Threads that the kernel has look again.
    looking: AtomicUsize,
    again: Mutex<BTreeMap<u32, Again<F>>>,
    /// How often a thread was refused that looks again.
    refusals: AtomicU64,
}

impl<F> Default for Unnamed<F> {
    fn default() -> Unnamed<F> {
        Unnamed {
            known: AtomicUsize::default(),
            threads: Mutex::default(),
            back: Mutex::default(),
            looking: AtomicUsize::default(),
            again: Mutex::default(),
            refusals: AtomicU64::default(),
        }
    }
}

/// A thread whose request was refused: the kernel looks again, and comes with the same one; or with any, if it has asked for attributes to check
/// a right.
struct Again<F> {
    number: u64,
    opcode: u32,
    /// The file that it has found. To make a link the kernel looks the new name up after it, and finds none.
    found: Option<May>,
    /// The file that it has found, open.
    held: Option<Held<F>>,
}

impl<F> Again<F> {
    /// Whether this is the request that it looks a path up for.
    fn comes_with(&self, opcode: u32) -> bool {
        self.opcode == opcode || self.opcode == op::GETATTR
    }

    /// Whether it has asked for the attributes of the file that it has found: if it only wanted to know these, its next
    /// request is another matter.
    fn has_asked(&self) -> bool {
        self.opcode == op::GETATTR && self.found.is_some_and(|found| !found.ask)
    }
}

struct Held<F> {
    ino: Ino,
    /// Closed when it is dropped.
    #[expect(dead_code)]
    file: F,
}

/// Whether the kernel sends such requests before the one that it looks a path up for.
fn is_in_between(opcode: u32) -> bool {
    matches!(opcode, op::LOOKUP | op::GETATTR | op::READLINK)
}

impl<F> Unnamed<F> {
    /// Whether a thread is to be refused.
    pub fn refuses(&self, thread: u32, ino: Ino, want: Want) -> bool {
        let has_found = self.has_found(thread, ino, want);
        let mut threads = self.threads.lock();
        // The same lookup may have let it in for both reasons: it comes in once.
        let was_let_in = threads.get_mut(&thread).is_some_and(|may| may.take(ino, want));
        if has_found || was_let_in {
            return false;
        }
        if want == Want::Else {
            drop(threads);
            return !self.comes_back(thread, ino);
        }
        self.let_in(&mut threads, thread, May { other: false, ..May::all(ino) });
        true
    }

    /// Whether a thread has just been refused; from now on it has.
    fn comes_back(&self, thread: u32, ino: Ino) -> bool {
        let mut back = self.back.lock();
        if back.get(&thread) == Some(&ino) {
            back.remove(&thread);
            return true;
        }
        if back.len() >= THREADS_MAX {
            back.pop_first();
        }
        back.insert(thread, ino);
        false
    }

    /// A thread's request begins: one that looks again comes with the request that was refused, after lookups.
    pub fn begins(&self, thread: u32, opcode: u32) {
        if self.looking.load(SeqCst) > 0 {
            let is_over = |again: &Again<F>| match is_in_between(opcode) {
                true => again.has_asked(),
                false => !again.comes_with(opcode),
            };
            drop(self.looks_no_more(thread, is_over));
        }
    }

    /// A thread's request ends otherwise than by [`Self::refused`].
    pub fn ends(&self, thread: u32, opcode: u32) {
        if !is_in_between(opcode) && self.looking.load(SeqCst) > 0 {
            drop(self.looks_no_more(thread, |_| true));
        }
    }

    /// A thread's request was answered with ESTALE, by the mount or by a server. Gives the number of this refusal if the thread looks again
    /// from now on.
    pub fn refused(&self, thread: u32, opcode: u32) -> Option<u64> {
        // The kernel looks again once.
        let is_second = |again: &Again<F>| again.found.is_some() && again.comes_with(opcode);
        let is_lookup = matches!(opcode, op::LOOKUP | op::READLINK);
        if is_lookup || self.looks_no_more(thread, is_second).is_some() {
            return None;
        }
        let mut again = self.again.lock();
        if opcode == op::GETATTR && again.contains_key(&thread) {
            // In passing.
            return None;
        }
        let number = self.refusals.fetch_add(1, SeqCst);
        let first = if again.len() >= THREADS_MAX { again.pop_first() } else { None };
        let before = again.insert(thread, Again { number, opcode, found: None, held: None });
        self.looking.store(again.len(), SeqCst);
        drop(again);
        // Closing a file may take other locks.
        drop((first, before));
        Some(number)
    }

    /// A thread has had time to look again since this refusal: if it does not come, that is forgotten.
    pub fn is_over(&self, thread: u32, number: u64) {
        drop(self.looks_no_more(thread, |again| again.number == number));
    }

    /// Forgets that a thread looks again, if that is so and `ends` says so; gives its record.
    fn looks_no_more(&self, thread: u32, ends: impl Fn(&Again<F>) -> bool) -> Option<Again<F>> {
        let mut again = self.again.lock();
        let known = if again.get(&thread).is_some_and(ends) { again.remove(&thread) } else { None };
        self.looking.store(again.len(), SeqCst);
        known
    }

    /// Whether a thread looks again.
    pub fn looks_again(&self, thread: u32) -> bool {
        self.looking.load(SeqCst) > 0 && self.again.lock().contains_key(&thread)
    }

    /// Keeps the file open that a thread has found which looks again, until it has come.
    pub fn hold(&self, thread: u32, ino: Ino, file: F) {
        let mut held = Some(Held { ino, file });
        if let Some(again) = self.again.lock().get_mut(&thread) {
            std::mem::swap(&mut again.held, &mut held);
        }
        drop(held);
    }

    /// Whether this file is held for a thread.
    pub fn is_held(&self, ino: Ino) -> bool {
        let is_it = |again: &Again<F>| again.held.as_ref().is_some_and(|held| held.ino == ino);
        self.looking.load(SeqCst) > 0 && self.again.lock().values().any(is_it)
    }

    /// Whether a thread that looks again has found this file.
    fn has_found(&self, thread: u32, ino: Ino, want: Want) -> bool {
        if self.looking.load(SeqCst) == 0 {
            return false;
        }
        let mut again = self.again.lock();
        let found = again.get_mut(&thread).and_then(|again| again.found.as_mut());
        found.is_some_and(|may| may.take(ino, want))
    }

    /// A thread has looked a name up.
    pub fn looked_up(&self, thread: u32, found: Found) {
        if self.looking.load(SeqCst) > 0 {
            match found {
                Found::File { ino, .. } => {
                    if let Some(again) = self.again.lock().get_mut(&thread) {
                        again.found = Some(May::all(ino));
                    }
                }
                // That is what the program is told.
                Found::Nothing => drop(self.looks_no_more(thread, |again| again.found.is_none())),
                Found::Directory => {}
            }
        }
        let moved = match found {
            Found::File { ino, has_moved: true } => Some(ino),
            _ => None,
        };
        if moved.is_none() && self.known.load(SeqCst) == 0 {
            return;
        }
        let mut threads = self.threads.lock();
        threads.remove(&thread);
        self.known.store(threads.len(), SeqCst);
        if let Some(ino) = moved {
            self.let_in(&mut threads, thread, May::all(ino));
        }
    }

    fn let_in(&self, threads: &mut BTreeMap<u32, May>, thread: u32, may: May) {
        if threads.len() >= THREADS_MAX {
            threads.pop_first();
        }
        threads.insert(thread, may);
        self.known.store(threads.len(), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(5);

    #[test]
    fn who_comes_back_or_has_looked_is_let_in_once() {
        let unnamed = Unnamed::<u32>::default();
        assert!(unnamed.refuses(1, INO, Want::Open), "by the old name, perhaps");
        assert!(unnamed.refuses(2, INO, Want::Open), "another thread");
        assert!(!unnamed.refuses(1, INO, Want::Open), "it came without one");
        assert!(unnamed.refuses(1, INO, Want::Open), "another time");
        assert!(unnamed.refuses(1, INO, Want::Else), "a link, after its attributes were refused");
        unnamed.looked_up(1, Found::Nothing);
        assert!(!unnamed.refuses(1, INO, Want::Else), "it came without a name, or has looked at another one since");
        assert!(unnamed.refuses(1, INO, Want::Attributes), "that name led elsewhere");
        unnamed.looked_up(1, Found::File { ino: INO, has_moved: true });
        for want in [Want::Attributes, Want::Open, Want::Else] {
            assert!(!unnamed.refuses(1, INO, want));
        }
        assert!(unnamed.refuses(1, INO, Want::Attributes), "it may come by the old name now");
    }

    /// It was sent away from another file. The file that it finds loses another name as it is found, or just after.
    const FOUND: Ino = Ino(6);

    fn looked_again(opcode: u32, has_moved: bool) -> Unnamed<u32> {
        let unnamed = Unnamed::<u32>::default();
        unnamed.refused(1, opcode);
        unnamed.looked_up(1, Found::Directory);
        unnamed.looked_up(1, Found::File { ino: FOUND, has_moved });
        unnamed
    }

    #[test]
    fn who_was_refused_is_let_in_to_what_it_finds() {
        for has_moved in [true, false] {
            for (opcode, want) in [(op::OPEN, Want::Open), (op::LINK, Want::Else)] {
                let unnamed = looked_again(opcode, has_moved);
                if opcode == op::LINK {
                    unnamed.looked_up(1, Found::Directory);
                    unnamed.looked_up(1, Found::Nothing);
                }
                assert!(unnamed.refuses(2, FOUND, want), "another thread");
                assert!(!unnamed.refuses(1, FOUND, Want::Attributes), "in passing, {has_moved}");
                unnamed.begins(1, opcode);
                assert!(!unnamed.refuses(1, FOUND, want), "{want:?} {has_moved}");
                assert!(unnamed.refuses(1, FOUND, want), "{want:?} another time");
                let unnamed = looked_again(opcode, false);
                unnamed.begins(1, opcode);
                unnamed.ends(1, opcode);
                assert!(unnamed.refuses(1, FOUND, want), "{want:?}: nobody had to ask when it was let in");
            }
        }
    }

    #[test]
    fn who_looks_for_something_else_is_refused() {
        let another = looked_again(op::OPEN, false);
        another.begins(1, op::SETATTR);
        assert!(another.refuses(1, FOUND, Want::Else), "another request");
        assert!(another.refuses(1, FOUND, Want::Open), "that was the end of it");
        let nothing = Unnamed::<u32>::default();
        nothing.refused(1, op::OPEN);
        nothing.looked_up(1, Found::Nothing);
        nothing.looked_up(1, Found::File { ino: FOUND, has_moved: false });
        assert!(nothing.refuses(1, FOUND, Want::Open), "the program was told that there is nothing");
        let asks = looked_again(op::LOOKUP, false);
        assert!(asks.refuses(1, FOUND, Want::Attributes), "a lookup was enough for it");
        let twice = looked_again(op::OPEN, false);
        twice.refused(1, op::OPEN);
        twice.looked_up(1, Found::File { ino: FOUND, has_moved: false });
        assert!(twice.refuses(1, FOUND, Want::Open), "the kernel looks again once");
    }

    /// To check a right the kernel asks for attributes before anything else, and after each lookup.
    #[test]
    fn who_was_refused_when_it_asked_may_ask_once_and_then_do_something() {
        for (opcode, want) in [(op::OPEN, Want::Open), (op::SETATTR, Want::Else)] {
            let unnamed = looked_again(op::GETATTR, true);
            unnamed.begins(1, op::GETATTR);
            assert!(!unnamed.refuses(1, FOUND, Want::Attributes));
            unnamed.ends(1, op::GETATTR);
            unnamed.begins(1, opcode);
            assert!(!unnamed.refuses(1, FOUND, want), "{want:?}");
        }
        let asked = looked_again(op::GETATTR, false);
        assert!(!asked.refuses(1, FOUND, Want::Attributes));
        asked.begins(1, op::GETATTR);
        assert!(asked.refuses(1, FOUND, Want::Attributes), "by the old name, perhaps");
        let twice = looked_again(op::GETATTR, false);
        twice.refused(1, op::GETATTR);
        assert!(!twice.looks_again(1), "the kernel looks again once");
        let before = Unnamed::<u32>::default();
        before.refused(1, op::GETATTR);
        before.begins(1, op::LINK);
        before.refused(1, op::LINK);
        before.looked_up(1, Found::File { ino: FOUND, has_moved: false });
        before.looked_up(1, Found::Nothing);
        before.begins(1, op::LINK);
        assert!(!before.refuses(1, FOUND, Want::Else), "the kernel did not care for the attributes");
        let passing = looked_again(op::LINK, false);
        passing.refused(1, op::GETATTR);
        assert!(passing.looks_again(1), "that was in passing");
    }

    #[test]
    fn what_a_thread_finds_that_looks_again_is_open_until_it_has_come() {
        let file = Arc::new(7);
        let is_held = || Arc::strong_count(&file) > 1;
        let held = |opcode| {
            let unnamed = Unnamed::<Arc<u32>>::default();
            assert!(!unnamed.looks_again(1), "it was not refused");
            unnamed.refused(1, opcode);
            assert!(unnamed.looks_again(1) && !unnamed.looks_again(2));
            unnamed.looked_up(1, Found::Directory);
            unnamed.hold(1, FOUND, file.clone());
            unnamed.looked_up(1, Found::File { ino: FOUND, has_moved: false });
            assert!(is_held() && unnamed.is_held(FOUND) && !unnamed.is_held(INO));
            unnamed
        };
        for refused in [op::OPEN, op::GETATTR] {
            let unnamed = held(refused);
            unnamed.begins(1, op::GETATTR);
            assert!(!unnamed.refuses(1, FOUND, Want::Attributes));
            unnamed.ends(1, op::GETATTR);
            unnamed.begins(1, op::OPEN);
            assert!(is_held(), "while it is opened");
            unnamed.ends(1, op::OPEN);
            assert!(!is_held() && !unnamed.is_held(FOUND), "it is open");
        }
        let unnamed = held(op::OPEN);
        unnamed.begins(1, op::SETATTR);
        assert!(!is_held(), "another request");
        let unnamed = held(op::GETATTR);
        unnamed.begins(1, op::GETATTR);
        assert!(!unnamed.refuses(1, FOUND, Want::Attributes));
        unnamed.begins(1, op::LOOKUP);
        assert!(!is_held() && !unnamed.looks_again(1), "it wanted to know the attributes, and does");
        let unnamed = held(op::OPEN);
        unnamed.refused(1, op::OPEN);
        assert!(!is_held() && !unnamed.looks_again(1), "the kernel looks again once");
        let unnamed = held(op::OPEN);
        unnamed.hold(1, INO, Arc::new(8));
        assert!(!is_held(), "the kernel has looked the name up twice");
        unnamed.hold(2, FOUND, file.clone());
        assert!(!is_held(), "a thread that does not look again");
        let unnamed = held(op::OPEN);
        unnamed.ends(1, op::OPEN);
        let late = unnamed.refused(1, op::GETATTR).expect("a number");
        unnamed.ends(1, op::OPEN);
        let number = unnamed.refused(1, op::OPEN).expect("another one");
        unnamed.hold(1, FOUND, file.clone());
        unnamed.is_over(1, late);
        assert!(is_held(), "it was refused once more since");
        unnamed.is_over(1, number);
        assert!(!is_held() && !unnamed.looks_again(1), "its thread does not come");
        assert_eq!(unnamed.looking.load(SeqCst), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let unnamed = Unnamed::<u32>::default();
        for thread in 0..2 * THREADS_MAX as u32 {
            unnamed.refuses(thread, INO, Want::Open);
            unnamed.refuses(thread, INO, Want::Else);
            unnamed.refused(thread, op::OPEN);
            unnamed.hold(thread, INO, thread);
        }
        let lens = [unnamed.threads.lock().len(), unnamed.back.lock().len(), unnamed.again.lock().len()];
        assert!(lens.iter().all(|len| (1..=THREADS_MAX).contains(len)), "{lens:?}");
    }
}
