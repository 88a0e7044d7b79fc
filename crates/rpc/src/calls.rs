//! Requests that wait for their reply.
//!
//! It alone knows how a waiting request gets its news. A call stays in the table under the same number
//! however often its request is sent, so that the first reply counts and all later ones are dropped.

use crate::caller::Answer;
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure, ServerIndex};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

/// Calls that one process may have in flight: far more than any server's queue is good for. A
/// request beyond that fails at once.
pub(crate) const CALLS_MAX: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 20;

/// How long a request may be without reply before it is sent again, at first; doubled each time up to [`SILENCE_MAX_NS`].
const SILENCE_NS: u64 = 1_000_000_000;

/// The longest time without reply before a request is sent again: one that may wait for minutes is tried often enough
/// when messages are lost.
const SILENCE_MAX_NS: u64 = 8_000_000_000;

/// What a waiting request is told.
pub(crate) enum News {
    /// The server's answer.
    Answer(Result<Answer, Failure>),
    /// Time to send it again: the connection is a new one, or there has been silence.
    Send,
    /// There will be no connection.
    Broken(Failure),
    /// The process of the server has ended. One that was sent may go on waiting for the server's next life.
    Ended(Failure),
    /// Its time is up.
    Deadline,
}

#[derive(Default)]
pub(crate) struct Calls {
    table: Mutex<Table>,
}

/// A slab: a call's number is its slot's place below a serial number, so that a number is never
/// given twice and finding its slot takes no search.
#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    serial: u64,
    /// A task looks after silence and deadlines.
    swept: bool,
}

struct Slot {
    /// 0 when free.
    call: u64,
    server: ServerIndex,
    /// The connection over which it was sent last; 0 when it waits for one.
    conn: u64,
    is_change: bool,
    deadline_ns: u64,
    resend_ns: u64,
    silence_ns: u64,
    news: Option<News>,
    waker: Option<Waker>,
}

impl Table {
    fn slot(&mut self, call: u64) -> Option<&mut Slot> {
        let index = (call & (CALLS_MAX as u64 - 1)) as usize;
        self.slots.get_mut(index).filter(|slot| slot.call == call && call != 0)
    }

    fn live(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().filter(|slot| slot.call != 0)
    }
}

impl Slot {
    /// Tells the call, unless it has been told something already that says more.
    fn tell(&mut self, news: News) -> Option<Waker> {
        if !self.hears(matches!(news, News::Send)) {
            return None;
        }
        self.news = Some(news);
        self.waker.take()
    }

    /// Whether news count: a call keeps the first answer or failure, and sends again only if it has no other news.
    fn hears(&self, is_send: bool) -> bool {
        match &self.news {
            None | Some(News::Send) => true,
            Some(News::Ended(_)) => !is_send,
            Some(_) => false,
        }
    }
}

/// A call in flight; dropping it takes it out of the table.
pub(crate) struct Call<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Calls {
    /// Enters a call to be sent over connection `conn` (0: when there is one). The second value
    /// says that a sweeper has to be started.
    ///
    /// # Errors
    /// [`Code::Limit`] when [`CALLS_MAX`] are in flight.
    pub(crate) fn begin(
        &self,
        server: ServerIndex,
        conn: u64,
        is_change: bool,
        now_ns: u64,
        deadline_ns: u64,
    ) -> Result<(Call<'_>, bool), Failure> {
        let mut table = self.table.lock();
        let index = match table.free.pop() {
            Some(index) => index as usize,
            None if table.slots.len() == CALLS_MAX => {
                return Err(Failure::new(Code::Limit, format!("{CALLS_MAX} requests are in flight already")));
            }
            None => table.slots.len(),
        };
        table.serial += 1;
        let number = table.serial << INDEX_BITS | index as u64;
        let resend_ns = now_ns + SILENCE_NS;
        let slot = Slot {
            call: number,
            server,
            conn,
            is_change,
            deadline_ns,
            resend_ns,
            silence_ns: SILENCE_NS,
            news: None,
            waker: None,
        };
        match table.slots.get_mut(index) {
            Some(free) => *free = slot,
            None => table.slots.push(slot),
        }
        let sweeper_needed = !std::mem::replace(&mut table.swept, true);
        Ok((Call { calls: self, number }, sweeper_needed))
    }

    /// Hands a reply to its call; one without a waiting call is dropped.
    pub(crate) fn answer(&self, call: u64, server: ServerIndex, answer: Result<Answer, Failure>) {
        let mut table = self.table.lock();
        let Some(slot) = table.slot(call).filter(|slot| slot.server == server && slot.hears(false)) else { return };
        // An answer is large: it is moved once.
        slot.news = Some(News::Answer(answer));
        let waker = slot.waker.take();
        drop(table);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A new connection to `server` stands: requests that were sent over another one, or not yet, are sent now.
    pub(crate) fn connected(&self, server: ServerIndex, conn: u64, now_ns: u64) {
        self.tell_all(|slot| {
            if slot.server != server || slot.conn == conn {
                return None;
            }
            slot.resend_ns = now_ns + slot.silence_ns;
            slot.tell(News::Send)
        });
    }

    /// There will be no connection to `server` (`None`: to any).
    pub(crate) fn broken(&self, server: Option<ServerIndex>, failure: &Failure) {
        self.tell_all(|slot| {
            let concerned = server.is_none_or(|server| server == slot.server);
            concerned.then(|| slot.tell(News::Broken(failure.clone()))).flatten()
        });
    }

    /// The process of `server` has ended: calls fail; with `sent_wait` changes are told, and those that were sent wait.
    pub(crate) fn ended(&self, server: ServerIndex, failure: &Failure, sent_wait: bool) {
        self.tell_all(|slot| {
            let news = if sent_wait && slot.is_change { News::Ended } else { News::Broken };
            (slot.server == server).then(|| slot.tell(news(failure.clone()))).flatten()
        });
    }

    /// Whether a call to `server` is in flight.
    pub(crate) fn any_for(&self, server: ServerIndex) -> bool {
        self.table.lock().live().any(|slot| slot.server == server)
    }

    /// Tells calls of deadlines and silence; `false` when none is left, and sweeping may end.
    pub(crate) fn sweep(&self, now_ns: u64) -> bool {
        self.tell_all(|slot| {
            if now_ns >= slot.deadline_ns {
                return slot.tell(News::Deadline);
            }
            if now_ns < slot.resend_ns {
                return None;
            }
            slot.silence_ns = SILENCE_MAX_NS.min(slot.silence_ns * 2);
            slot.resend_ns = now_ns + slot.silence_ns;
            slot.tell(News::Send)
        });
        let mut table = self.table.lock();
        let left = table.live().next().is_some();
        table.swept = left;
        left
    }

    fn tell_all(&self, mut tell: impl FnMut(&mut Slot) -> Option<Waker>) {
        let wakers: Vec<Waker> = self.table.lock().live().filter_map(&mut tell).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Call<'_> {
    /// For the header.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Notes over which connection it is sent now; 0 when it waits for one.
    pub(crate) fn sent_over(&self, conn: u64) {
        if let Some(slot) = self.calls.table.lock().slot(self.number) {
            slot.conn = conn;
        }
    }

    /// Sets a later deadline.
    pub(crate) fn wait_until(&self, deadline_ns: u64) {
        if let Some(slot) = self.calls.table.lock().slot(self.number) {
            slot.deadline_ns = deadline_ns;
        }
    }

    /// Waits for what happens next.
    pub(crate) async fn news(&self) -> News {
        poll_fn(|cx| self.poll_news(cx)).await
    }

    fn poll_news(&self, cx: &mut Context<'_>) -> Poll<News> {
        let mut table = self.calls.table.lock();
        let slot = table.slot(self.number).expect("a call stays in the table until it is dropped");
        if let Some(news) = slot.news.take() {
            return Poll::Ready(news);
        }
        if !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            slot.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut table = self.calls.table.lock();
        let slot = table.slot(self.number).expect("a call stays in the table until it is dropped");
        slot.call = 0;
        let unread = (slot.news.is_some().then(|| slot.news.take()), slot.waker.take());
        table.free.push((self.number & (CALLS_MAX as u64 - 1)) as u32);
        drop(table);
        // An answer may be large, and a waker is foreign code: neither is dropped under the lock.
        drop(unread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::Reply;
    use aze_proto::frame::{Header, Kind};
    use futures_util::FutureExt;

    const HERE: ServerIndex = ServerIndex(1);
    const THERE: ServerIndex = ServerIndex(2);
    const SECOND: u64 = 1_000_000_000;

    fn done(call: u64) -> Result<Answer, Failure> {
        Ok(Answer { header: Header::new(Kind::Reply, call), reply: Reply::Done, payload: Vec::new(), shared: None })
    }

    fn begin(calls: &Calls, conn: u64) -> Call<'_> {
        calls.begin(HERE, conn, false, 0, 10 * SECOND).unwrap().0
    }

    fn news(call: &Call<'_>) -> Option<News> {
        call.news().now_or_never()
    }

    #[test]
    fn the_first_reply_counts() {
        let calls = Calls::default();
        let (one, two) = (begin(&calls, 5), begin(&calls, 5));
        calls.answer(two.number(), HERE, done(two.number()));
        calls.answer(two.number(), HERE, Err(Failure::from(Code::Internal)));
        assert!(matches!(news(&two), Some(News::Answer(Ok(answer))) if answer.header.call == two.number()));
        assert!(news(&one).is_none());
        calls.answer(one.number(), THERE, done(one.number()));
        assert!(news(&one).is_none(), "another server has no say in it");
    }

    #[test]
    fn a_number_is_never_given_twice() {
        let calls = Calls::default();
        let first = begin(&calls, 5);
        let old = first.number();
        drop(first);
        let second = begin(&calls, 5);
        assert_ne!(second.number(), old);
        for hostile in [old, 0, u64::MAX, CALLS_MAX as u64 - 1] {
            calls.answer(hostile, HERE, done(hostile));
        }
        assert!(news(&second).is_none());
    }

    #[test]
    fn silence_doubles_up_to_8_s_and_ends_at_the_deadline() {
        let calls = Calls::default();
        let (call, _) = calls.begin(HERE, 5, false, 0, 40 * SECOND).unwrap();
        let mut sent_at = Vec::new();
        for tick in 1..400 {
            assert!(calls.sweep(tick * SECOND / 10));
            match news(&call) {
                Some(News::Send) => sent_at.push(tick),
                None => {}
                Some(_) => panic!("nothing else has happened"),
            }
        }
        assert_eq!(sent_at, [10, 30, 70, 150, 230, 310, 390]);
        assert!(calls.sweep(40 * SECOND));
        assert!(matches!(news(&call), Some(News::Deadline)));
        drop(call);
        assert!(!calls.sweep(40 * SECOND), "nothing is left to look after");
    }

    #[test]
    fn a_new_connection_concerns_what_went_over_another() {
        let calls = Calls::default();
        let (waiting, lost, fresh) = (begin(&calls, 0), begin(&calls, 5), begin(&calls, 6));
        calls.connected(THERE, 6, 0);
        assert!(news(&waiting).is_none());
        calls.connected(HERE, 6, 0);
        assert!(matches!((news(&waiting), news(&lost), news(&fresh)), (Some(News::Send), Some(News::Send), None)));
        calls.broken(Some(THERE), &Failure::from(Code::NotAuthentic));
        assert!(news(&waiting).is_none());
        calls.broken(None, &Failure::from(Code::NotAuthentic));
        calls.answer(waiting.number(), HERE, done(1));
        assert!(matches!(news(&waiting), Some(News::Broken(_))));
    }

    /// Changes that were sent may wait for a server of a volume in directories to come back; nothing else does.
    #[test]
    fn the_end_of_a_server_ends_what_it_need_not_answer() {
        let why = Failure::from(Code::Unreachable);
        for (sent_wait, told) in [(true, 2), (false, 0)] {
            let calls = Calls::default();
            let waiting: Vec<_> = [(5, false), (0, true), (5, true)]
                .map(|(conn, is_change)| calls.begin(HERE, conn, is_change, 0, SECOND).unwrap().0)
                .into();
            calls.ended(THERE, &why, false);
            assert!(waiting.iter().all(|call| news(call).is_none()));
            calls.ended(HERE, &why, sent_wait);
            let heard: Vec<_> = waiting.iter().map(|call| news(call).expect("all are told")).collect();
            assert_eq!(heard.iter().filter(|news| matches!(news, News::Ended(_))).count(), told);
            assert_eq!(heard.iter().filter(|news| matches!(news, News::Broken(_))).count(), 3 - told);
        }
    }

    /// It is not lost in a later silence, and an answer that came before the end counts.
    #[test]
    fn the_end_of_a_server_is_told_unless_there_is_an_answer() {
        let why = Failure::from(Code::Unreachable);
        let calls = Calls::default();
        let waiting = || calls.begin(HERE, 5, true, 0, 10 * SECOND).unwrap().0;
        let (silent, answered) = (waiting(), waiting());
        calls.ended(HERE, &why, true);
        calls.sweep(2 * SECOND);
        calls.answer(answered.number(), HERE, done(answered.number()));
        assert!(matches!(news(&silent), Some(News::Ended(_))));
        assert!(matches!(news(&answered), Some(News::Answer(Ok(_)))));
    }

    #[test]
    fn one_sweeper_at_a_time() {
        let calls = Calls::default();
        let (one, first) = calls.begin(HERE, 0, false, 0, 1).unwrap();
        let (two, second) = calls.begin(HERE, 0, false, 0, 1).unwrap();
        assert_eq!((first, second), (true, false));
        drop((one, two));
        assert!(!calls.sweep(1));
        assert!(calls.begin(HERE, 0, false, 0, 1).unwrap().1);
    }
}
