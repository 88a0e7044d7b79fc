//! Threads that come to files which have lost a name. One may have come by that name, which lasts only where
//! names are cached, or by another one, or without a name, as by way of `/proc/self/fd`.
//!
//! A request for such a file is refused with ESTALE: the kernel then looks every name of the path up again
//! (path_resolution(7)), and takes the inode that is there now. A thread that has just looked up a name which
//! leads there, or has been refused and comes back without looking anything up, is let in: once to ask
//! for attributes, once to open and once for anything else.

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

/// Who may come to what.
#[derive(Default)]
pub struct Unnamed {
    known: AtomicUsize,
    threads: Mutex<BTreeMap<u32, May>>,
    /// Threads whose other requests were refused, and that come back with them. To make a link the kernel looks up the
    /// new name, too, and asks for attributes in passing, whatever the answer is.
    back: Mutex<BTreeMap<u32, Ino>>,
}

impl Unnamed {
    /// Whether a thread is to be refused.
    pub fn refuses(&self, thread: u32, ino: Ino, want: Want) -> bool {
        let mut threads = self.threads.lock();
        if let Some(may) = threads.get_mut(&thread).filter(|may| may.ino == ino) {
            let may = match want {
                Want::Attributes => &mut may.ask,
                Want::Open => &mut may.open,
                Want::Else => &mut may.other,
            };
            if std::mem::take(may) {
                return false;
            }
        }
        if want == Want::Else {
            drop(threads);
            return !self.comes_back(thread, ino);
        }
        self.let_in(&mut threads, thread, May { ino, ask: true, open: true, other: false });
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

    /// A thread has looked a name up, which leads to `found`, a file that has lost another name.
    pub fn looked_up(&self, thread: u32, found: Option<Ino>) {
        if found.is_none() && self.known.load(SeqCst) == 0 {
            return;
        }
        let mut threads = self.threads.lock();
        threads.remove(&thread);
        self.known.store(threads.len(), SeqCst);
        if let Some(ino) = found {
            self.let_in(&mut threads, thread, May { ino, ask: true, open: true, other: true });
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
        unnamed.looked_up(1, None);
        assert!(!unnamed.refuses(1, INO, Want::Else), "it came without a name, or has looked at another one since");
        assert!(unnamed.refuses(1, INO, Want::Attributes), "that name led elsewhere");
        unnamed.looked_up(1, Some(INO));
        for want in [Want::Attributes, Want::Open, Want::Else] {
            assert!(!unnamed.refuses(1, INO, want));
        }
        assert!(unnamed.refuses(1, INO, Want::Attributes), "it may come by the old name now");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let unnamed = Unnamed::default();
        for thread in 0..2 * THREADS_MAX as u32 {
            unnamed.refuses(thread, INO, Want::Open);
            unnamed.refuses(thread, INO, Want::Else);
        }
        assert!(unnamed.threads.lock().len() <= THREADS_MAX && unnamed.back.lock().len() <= THREADS_MAX);
    }
}
