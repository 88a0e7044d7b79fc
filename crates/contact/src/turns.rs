//! One open of each path at a time: of many who want the same at once the first ones ask, and the others find it open.
//!
//! It alone knows which caller waits for which other one. It does not know files.

use aze_io::sync::Mutex;
use futures_channel::oneshot;
use std::collections::VecDeque;

/// Who has a turn, and who waits for one.
pub(crate) struct Turns<What> {
    table: Mutex<Vec<Queue<What>>>,
}

/// One caller has the turn for `what`; the others wait in their order.
struct Queue<What> {
    what: What,
    waiting: VecDeque<oneshot::Sender<()>>,
}

/// A turn, which passes on to the next one when it is dropped.
pub(crate) struct Turn<'a, What: PartialEq> {
    turns: &'a Turns<What>,
    /// `None` once another `Turn` passes it on.
    what: Option<What>,
}

/// A place in a queue. If its owner gives up just when the turn has come, the next one gets it.
struct Waiting<'a, What: PartialEq> {
    turn: Turn<'a, What>,
    has_come: oneshot::Receiver<()>,
}

impl<What: PartialEq + Clone> Turns<What> {
    /// No caller has a turn.
    pub(crate) fn new() -> Turns<What> {
        Turns { table: Mutex::new(Vec::new()) }
    }

    /// Waits until all callers that came before are done with the same.
    pub(crate) async fn turn(&self, what: What) -> Turn<'_, What> {
        let turn = Turn { turns: self, what: Some(what.clone()) };
        let has_come = {
            let mut table = self.table.lock();
            match table.iter_mut().find(|queue| queue.what == what) {
                Some(queue) => {
                    let (next, has_come) = oneshot::channel();
                    queue.waiting.push_back(next);
                    has_come
                }
                None => {
                    table.push(Queue { what, waiting: VecDeque::new() });
                    return turn;
                }
            }
        };
        let mut waiting = Waiting { turn, has_come };
        // The queue keeps the sender until the turn has come.
        let _ = (&mut waiting.has_come).await;
        Turn { turns: self, what: waiting.turn.what.take() }
    }
}

impl<What: PartialEq> Drop for Waiting<'_, What> {
    fn drop(&mut self) {
        self.has_come.close();
        let has_come = self.has_come.try_recv().is_ok_and(|come| come.is_some());
        if !has_come {
            // Another caller has the turn, and passes this place over.
            self.turn.what = None;
        }
    }
}

impl<What: PartialEq> Drop for Turn<'_, What> {
    fn drop(&mut self) {
        let Some(what) = &self.what else { return };
        let mut table = self.turns.table.lock();
        let Some(at) = table.iter().position(|queue| queue.what == *what) else { return };
        while let Some(next) = table[at].waiting.pop_front() {
            // Who has given up is passed over.
            if next.send(()).is_ok() {
                return;
            }
        }
        table.swap_remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn turns_for_the_same_come_one_after_the_other() {
        let turns = Turns::new();
        let first = turns.turn("one").now_or_never().expect("nobody has it");
        let other = turns.turn("other").now_or_never().expect("something else");
        let (mut second, mut third) = (Box::pin(turns.turn("one")), Box::pin(turns.turn("one")));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(other);
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(third.as_mut().now_or_never().is_none(), "the second one came before");
        let turn = second.as_mut().now_or_never().expect("it has come");
        drop(turn);
        drop(third.as_mut().now_or_never().expect("it has come"));
        assert!(turns.table.lock().is_empty(), "nothing is kept of what is over");
    }

    #[test]
    fn who_gives_up_is_passed_over_also_when_the_turn_has_just_come() {
        let turns = Turns::new();
        let first = turns.turn("one").now_or_never().expect("nobody has it");
        let [mut early, mut late, mut last] = [(); 3].map(|()| Box::pin(turns.turn("one")));
        for waiting in [&mut early, &mut late, &mut last] {
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        drop(early);
        drop(first);
        // Its turn has come, and it was not polled since.
        drop(late);
        drop(last.as_mut().now_or_never().expect("it has come"));
        assert!(turns.table.lock().is_empty());
    }
}
