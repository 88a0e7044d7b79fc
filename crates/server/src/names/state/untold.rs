//! Directories whose homes count on what this server has said of its part, and whose parts here change: the homes are told (`names/parts.rs`),
//! and answers to changes wait for that.

use aze_io::sync::Mutex;
use aze_proto::Ino;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Begins to tell the home of a directory; called within the directory's lock.
pub(crate) type Tell = Box<dyn Fn(Ino) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Untold {
    /// How many there are.
    count: AtomicUsize,
    table: Mutex<Table>,
    /// Has a home told.
    tell: OnceLock<Tell>,
}

#[derive(Default)]
struct Table {
    dirs: BTreeMap<Ino, Telling>,
    rounds: u64,
}

/// A home is being told.
#[derive(Default)]
struct Telling {
    /// Tells this word from the next one, which the home may need if it asks in between.
    round: u64,
    waiters: Vec<oneshot::Sender<()>>,
    /// The part has been said, and has changed, since this word was sent: those that wait for the next one.
    again: Option<Vec<oneshot::Sender<()>>>,
    /// The home has been silent for so long that answers do not wait for it any more.
    is_late: bool,
}

/// An answer that waits.
pub(crate) struct Waiting {
    /// Sent to when the home has been told, or is not waited for any more.
    pub(crate) told: oneshot::Receiver<()>,
    round: u64,
}

impl Untold {
    /// Sets the function that has a home told.
    pub(crate) fn tell_by(&self, tell: Tell) {
        // Set once, when the server is made.
        let _ = self.tell.set(tell);
    }

    /// A part changes; `is_promised` says whether the home counts on it as it was.
    pub(crate) fn changes(&self, dir: Ino, is_promised: &mut bool) {
        if std::mem::take(is_promised) {
            self.begin(dir);
        }
    }

    #[cold]
    fn begin(&self, dir: Ino) {
        let Some(tell) = self.tell.get() else { return };
        let mut table = self.table.lock();
        let round = table.rounds;
        match table.dirs.entry(dir) {
            Entry::Occupied(telling) => drop(telling.into_mut().again.get_or_insert_default()),
            Entry::Vacant(place) => {
                place.insert(Telling { round, ..Telling::default() });
                table.rounds += 1;
                self.count.fetch_add(1, Ordering::SeqCst);
                drop(table);
                tell(dir);
            }
        }
    }

    /// Whether no home is to be told anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// What the answer to a change has to wait for; `None`: for nothing, or not any more.
    pub(crate) fn wait(&self, dir: Ino) -> Option<Waiting> {
        let mut table = self.table.lock();
        let telling = table.dirs.get_mut(&dir).filter(|telling| !telling.is_late)?;
        let (sender, told) = oneshot::channel();
        // The change may be one that only the next word is about.
        telling.again.as_mut().unwrap_or(&mut telling.waiters).push(sender);
        Some(Waiting { told, round: telling.round })
    }

    /// An answer has waited for long enough: none waits for this word any more. `false` if it has been sent meanwhile, and another one is on its
    /// way.
    pub(crate) fn gives_up(&self, dir: Ino, waiting: &Waiting) -> bool {
        let mut table = self.table.lock();
        let Some(telling) = table.dirs.get_mut(&dir) else { return true };
        if telling.round != waiting.round {
            return false;
        }
        telling.is_late = true;
        wake(&mut telling.waiters);
        telling.again.as_mut().into_iter().for_each(wake);
        true
    }

    /// The home has been told; gives whether it has to be told once more.
    pub(crate) fn has_told(&self, dir: Ino) -> bool {
        let mut table = self.table.lock();
        let round = table.rounds;
        let Some(telling) = table.dirs.get_mut(&dir) else { return false };
        wake(&mut telling.waiters);
        if let Some(waiters) = telling.again.take() {
            *telling = Telling { round, waiters, ..Telling::default() };
            table.rounds += 1;
            return true;
        }
        table.dirs.remove(&dir);
        self.count.fetch_sub(1, Ordering::SeqCst);
        false
    }
}

fn wake(waiters: &mut Vec<oneshot::Sender<()>>) {
    for waiter in waiters.drain(..) {
        // A waiter that has given up is no concern.
        let _ = waiter.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const DIR: Ino = Ino(7);

    fn untold() -> (Untold, Arc<AtomicUsize>) {
        let (untold, words) = (Untold::default(), Arc::new(AtomicUsize::new(0)));
        let counted = words.clone();
        untold.tell_by(Box::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        (untold, words)
    }

    fn is_told(waiting: &mut Waiting) -> bool {
        matches!(waiting.told.try_recv(), Ok(Some(())))
    }

    #[test]
    fn a_home_is_told_once_of_many_changes_after_one_promise() {
        let (untold, words) = untold();
        let mut is_promised = true;
        untold.changes(DIR, &mut is_promised);
        untold.changes(DIR, &mut is_promised);
        assert!(!is_promised && !untold.is_empty() && untold.wait(Ino(8)).is_none());
        let mut waiting = untold.wait(DIR).expect("the home is not told yet");
        assert!(!is_told(&mut waiting));
        assert!(!untold.has_told(DIR));
        assert!(is_told(&mut waiting) && untold.is_empty() && untold.wait(DIR).is_none());
        assert_eq!(words.load(Ordering::SeqCst), 1);
    }

    /// One client looked at a directory all the time while others made files in it: the first of them got their answers
    /// only when it looked no more.
    #[test]
    fn an_answer_waits_for_its_own_word_however_often_others_follow() {
        let (untold, _) = untold();
        untold.changes(DIR, &mut true);
        let mut first = untold.wait(DIR).expect("the home is not told yet");
        untold.changes(DIR, &mut true);
        let mut second = untold.wait(DIR).expect("the home is not told yet");
        assert!(untold.has_told(DIR), "the part was said in between, and has changed");
        assert!(is_told(&mut first) && !is_told(&mut second));
        untold.changes(DIR, &mut true);
        assert!(untold.has_told(DIR) && is_told(&mut second));
        assert!(!untold.has_told(DIR) && untold.is_empty());
    }

    #[test]
    fn a_silent_home_is_waited_for_by_the_first_answers_only() {
        let (untold, _) = untold();
        untold.changes(DIR, &mut true);
        let (first, mut other) = (untold.wait(DIR).expect("it waits"), untold.wait(DIR).expect("it waits"));
        assert!(untold.gives_up(DIR, &first));
        assert!(is_told(&mut other) && untold.wait(DIR).is_none() && !untold.is_empty(), "the word is still under way");
        // The home answers, and has asked before: it is waited for again.
        untold.changes(DIR, &mut true);
        assert!(untold.has_told(DIR));
        assert!(untold.wait(DIR).is_some());
        assert!(!untold.gives_up(DIR, &first), "that was another word");
        assert!(untold.wait(DIR).is_some());
    }
}
