//! Threads that come to files which have lost a name. One may have come by that name, which lasts only where
//! names are cached, or by another one, or without a name, as by way of `/proc/self/fd`.
//!
//! A request for such a file is refused with ESTALE: the kernel then looks every name of the path up again
//! (path_resolution(7)), and takes the inode that is there now. A thread that has just looked up a name which
//! leads there, or has been refused and comes back without looking anything up, is let in: once to ask
//! for attributes, once to open and once for anything else.
//!
//! The kernel looks again once for each call of a program. So whoever was refused is let in to the file that it finds
//! then, also if that one loses another name at the same moment, as the source of a rename does.

use aze_io::sync::Mutex;
use aze_proto::ids::Ino;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

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

/// Who may come to what.
#[derive(Default)]
pub struct Unnamed {
    known: AtomicUsize,
    threads: Mutex<BTreeMap<u32, May>>,
    /// Threads that were refused, and come back.
    back: Mutex<BTreeMap<u32, Back>>,
    coming_back: AtomicUsize,
}

/// A thread that was refused and comes back.
#[derive(Clone, Copy, Default)]
struct Back {
    /// What it wanted something else of than attributes or an open. To make a link the kernel looks up the new name, too,
    /// and asks for attributes in passing, whatever the answer is.
    refused: Option<Ino>,
    /// The file that it has found since. To make a link the kernel looks the new name up after it, and finds none.
    found: Option<May>,
}

impl Unnamed {
    /// Whether a thread is to be refused.
    pub fn refuses(&self, thread: u32, ino: Ino, want: Want) -> bool {
        let mut threads = self.threads.lock();
        if threads.get_mut(&thread).is_some_and(|may| may.take(ino, want)) || self.comes_back(thread, ino, want) {
            return false;
        }
        if want != Want::Else {
            self.let_in(&mut threads, thread, May { other: false, ..May::all(ino) });
        }
        true
    }

    /// Whether a thread has just been refused, and comes back for the same file or the one that it has found since.
    fn comes_back(&self, thread: u32, ino: Ino, want: Want) -> bool {
        let mut threads = self.back.lock();
        let Some(back) = threads.get_mut(&thread) else {
            if want == Want::Else {
                self.note_back(&mut threads, thread, Back { refused: Some(ino), found: None });
            }
            return false;
        };
        let is_back = back.found.as_mut().is_some_and(|may| may.take(ino, want))
            || want == Want::Else && back.refused == Some(ino);
        if want == Want::Else && !is_back {
            *back = Back { refused: Some(ino), found: None };
        }
        // With an open or a change the program's call is over.
        if want != Want::Attributes && is_back {
            threads.remove(&thread);
            self.coming_back.store(threads.len(), SeqCst);
        }
        is_back
    }

    /// A thread was told ESTALE, by the mount or by a server: the kernel looks again now.
    pub fn refused(&self, thread: u32) {
        let mut threads = self.back.lock();
        let refused = threads.get(&thread).and_then(|back| back.refused);
        self.note_back(&mut threads, thread, Back { refused, found: None });
    }

    fn note_back(&self, threads: &mut BTreeMap<u32, Back>, thread: u32, back: Back) {
        if threads.len() >= THREADS_MAX && !threads.contains_key(&thread) {
            threads.pop_first();
        }
        threads.insert(thread, back);
        self.coming_back.store(threads.len(), SeqCst);
    }

    /// A thread has looked a name up. It leads to the file or link `found`, if to any, of which is known whether it has
    /// lost another name.
    pub fn looked_up(&self, thread: u32, found: Option<Ino>, has_moved: bool) {
        if let Some(ino) = found
            && self.coming_back.load(SeqCst) > 0
            && let Some(back) = self.back.lock().get_mut(&thread)
        {
            back.found = Some(May::all(ino));
        }
        let moved = found.filter(|_| has_moved);
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
        let unnamed = Unnamed::default();
        assert!(unnamed.refuses(1, INO, Want::Open), "by the old name, perhaps");
        assert!(unnamed.refuses(2, INO, Want::Open), "another thread");
        assert!(!unnamed.refuses(1, INO, Want::Open), "it came without one");
        assert!(unnamed.refuses(1, INO, Want::Open), "another time");
        assert!(unnamed.refuses(1, INO, Want::Else), "a link, after its attributes were refused");
        unnamed.looked_up(1, None, false);
        assert!(!unnamed.refuses(1, INO, Want::Else), "it came without a name, or has looked at another one since");
        assert!(unnamed.refuses(1, INO, Want::Attributes), "that name led elsewhere");
        unnamed.looked_up(1, Some(INO), true);
        for want in [Want::Attributes, Want::Open, Want::Else] {
            assert!(!unnamed.refuses(1, INO, want));
        }
        assert!(unnamed.refuses(1, INO, Want::Attributes), "it may come by the old name now");
    }

    #[test]
    fn who_was_refused_is_let_in_to_what_it_finds() {
        // It was sent away from INO. What it finds loses another name as it is found, or just after.
        const FOUND: Ino = Ino(6);
        for case in 0..8 {
            let (refused_by_mount, known_at_lookup) = (case & 1 > 0, case & 2 > 0);
            let want = if case & 4 > 0 { Want::Open } else { Want::Else };
            let unnamed = Unnamed::default();
            if refused_by_mount {
                assert!(unnamed.refuses(1, INO, Want::Else));
            }
            unnamed.refused(1);
            unnamed.looked_up(1, Some(FOUND), known_at_lookup);
            // The directory and the new name of a link.
            unnamed.looked_up(1, None, false);
            unnamed.looked_up(1, None, false);
            assert!(unnamed.refuses(2, FOUND, want), "another thread");
            assert!(!unnamed.refuses(1, FOUND, Want::Attributes), "{refused_by_mount} {known_at_lookup}");
            assert!(!unnamed.refuses(1, FOUND, want), "{want:?} {refused_by_mount} {known_at_lookup}");
            assert!(unnamed.refuses(1, FOUND, want), "{want:?} another time");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let unnamed = Unnamed::default();
        for thread in 0..2 * THREADS_MAX as u32 {
            unnamed.refuses(thread, INO, Want::Open);
            unnamed.refuses(thread, INO, Want::Else);
            unnamed.refused(thread);
        }
        assert!(unnamed.threads.lock().len() <= THREADS_MAX && unnamed.back.lock().len() <= THREADS_MAX);
    }
}
