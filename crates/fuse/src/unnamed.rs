//! Threads that come to files which have lost a name. One may have come by that name, which lasts only where
//! names are cached, or by another one, or without a name, as by way of `/proc/self/fd`.
//!
//! A request for such a file is refused with ESTALE: the kernel then looks every name of the path up again
//! (path_resolution(7)), and takes the inode that is there now. A thread that has just looked up a name which
//! leads there, or has been refused and comes back without looking anything up, is let in: once to ask
//! for attributes, once to open and once for anything else.
//!
//! The kernel looks again once for each call of a program. So a thread that was refused is let in to the file that it finds
//! then, with the same request, also if that file loses another name at the same moment, as the source of a rename does.

use crate::abi::op;
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

/// Who may come to what.
#[derive(Default)]
pub struct Unnamed {
    known: AtomicUsize,
    threads: Mutex<BTreeMap<u32, May>>,
    /// Threads whose other requests were refused, and that come back with them. To make a link the kernel looks up the
    /// new name, too, and asks for attributes in passing, whatever the answer is.
    back: Mutex<BTreeMap<u32, Ino>>,
    /// Threads that the kernel has look again.
    looking: AtomicUsize,
    again: Mutex<BTreeMap<u32, Again>>,
}

/// A thread whose request was refused: the kernel looks again, and comes with the same one.
#[derive(Clone, Copy)]
struct Again {
    opcode: u32,
    /// The file that it has found. To make a link the kernel looks the new name up after it, and finds none.
    found: Option<May>,
}

/// Whether the kernel sends such requests before the one that it looks a path up for.
fn is_in_between(opcode: u32) -> bool {
    matches!(opcode, op::LOOKUP | op::GETATTR | op::READLINK)
}

impl Unnamed {
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
        if is_in_between(opcode) || self.looking.load(SeqCst) == 0 {
            return;
        }
        let mut again = self.again.lock();
        if again.get(&thread).is_some_and(|again| again.opcode != opcode) {
            self.looks_no_more(&mut again, thread);
        }
    }

    /// A thread's request ends otherwise than by [`Self::refused`].
    pub fn ends(&self, thread: u32, opcode: u32) {
        if !is_in_between(opcode) && self.looking.load(SeqCst) > 0 {
            self.looks_no_more(&mut self.again.lock(), thread);
        }
    }

    /// A thread's request was answered with ESTALE, by the mount or by a server. A lookup of the kernel is enough for who asks for attributes.
    pub fn refused(&self, thread: u32, opcode: u32) {
        let mut again = self.again.lock();
        if is_in_between(opcode) || again.remove(&thread).is_some() {
            // The kernel looks again once.
            return self.looking.store(again.len(), SeqCst);
        }
        if again.len() >= THREADS_MAX {
            again.pop_first();
        }
        again.insert(thread, Again { opcode, found: None });
        self.looking.store(again.len(), SeqCst);
    }

    fn looks_no_more(&self, again: &mut BTreeMap<u32, Again>, thread: u32) {
        again.remove(&thread);
        self.looking.store(again.len(), SeqCst);
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
            let mut again = self.again.lock();
            match (found, again.get_mut(&thread)) {
                (Found::File { ino, .. }, Some(again)) => again.found = Some(May::all(ino)),
                // That is what the program is told.
                (Found::Nothing, Some(Again { found: None, .. })) => self.looks_no_more(&mut again, thread),
                (Found::Nothing | Found::Directory, Some(_)) | (_, None) => {}
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
        let unnamed = Unnamed::default();
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

    /// It was sent away from another file. What it finds loses another name as it is found, or just after.
    const FOUND: Ino = Ino(6);

    fn looked_again(opcode: u32, has_moved: bool) -> Unnamed {
        let unnamed = Unnamed::default();
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
        let nothing = Unnamed::default();
        nothing.refused(1, op::OPEN);
        nothing.looked_up(1, Found::Nothing);
        nothing.looked_up(1, Found::File { ino: FOUND, has_moved: false });
        assert!(nothing.refuses(1, FOUND, Want::Open), "the program was told that there is nothing");
        let asks = looked_again(op::GETATTR, false);
        assert!(asks.refuses(1, FOUND, Want::Attributes), "a lookup was enough for it");
        let twice = looked_again(op::OPEN, false);
        twice.refused(1, op::OPEN);
        twice.looked_up(1, Found::File { ino: FOUND, has_moved: false });
        assert!(twice.refuses(1, FOUND, Want::Open), "the kernel looks again once");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let unnamed = Unnamed::default();
        for thread in 0..2 * THREADS_MAX as u32 {
            unnamed.refuses(thread, INO, Want::Open);
            unnamed.refuses(thread, INO, Want::Else);
            unnamed.refused(thread, op::OPEN);
        }
        let lens = [unnamed.threads.lock().len(), unnamed.back.lock().len(), unnamed.again.lock().len()];
        assert!(lens.iter().all(|len| (1..=THREADS_MAX).contains(len)), "{lens:?}");
    }
}
