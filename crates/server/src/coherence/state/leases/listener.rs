//! A session that listens: the leases that it has been given, and the recalls that it has to confirm.

use super::{LEASES_MAX, LEASES_OF_SESSION_MAX, LISTENS_NS, Leases, RECALLS_MAX};
use aze_io::sync::Mutex;
use aze_proto::message::Recall;
use aze_proto::{Reply, SessionId, ShardId};
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// A session that listens.
pub(crate) struct Listener {
    pub(super) session: SessionId,
    home: Arc<Leases>,
    pub(super) given: AtomicUsize,
    pub(super) heard_ns: AtomicU64,
    /// It has ended in good order, and its cache with it.
    pub(super) is_gone: AtomicBool,
    /// Recalls to confirm, as in the mail.
    pub(super) waiting: AtomicUsize,
    pub(super) mail: Mutex<Mail>,
}

#[derive(Default)]
pub(super) struct Mail {
    /// Recalls that it has not confirmed, and until when they matter.
    pub(super) recalls: BTreeMap<u64, (Recall, u64)>,
    pub(super) wakeup: Option<oneshot::Sender<()>>,
}

pub(super) struct Lease {
    pub(super) holder: Arc<Listener>,
    pub(super) until_ns: u64,
    /// It covers attributes, or names, no longer; it counts until its time is over.
    pub(super) lost_attrs: bool,
    pub(super) lost_names: bool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.holder.given.fetch_sub(1, SeqCst);
        self.holder.home.given.fetch_sub(1, SeqCst);
    }
}

impl Listener {
    pub(super) fn new(home: &Arc<Leases>, session: SessionId) -> Listener {
        Listener {
            session,
            home: home.clone(),
            given: AtomicUsize::new(0),
            heard_ns: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            mail: Mutex::default(),
        }
    }

    pub(super) fn listens(&self, now_ns: u64) -> bool {
        now_ns < self.heard_ns.load(SeqCst) + LISTENS_NS
    }

    /// A lease that is counted, if there is room for one more.
    pub(super) fn lease(self: &Arc<Self>, until_ns: u64) -> Option<Lease> {
        let (mine, all) = (self.given.fetch_add(1, SeqCst), self.home.given.fetch_add(1, SeqCst));
        let lease = Lease { holder: self.clone(), until_ns, lost_attrs: false, lost_names: false };
        (mine < LEASES_OF_SESSION_MAX && all < LEASES_MAX).then_some(lease)
    }

    pub(super) fn recall(&self, shard: ShardId, recall: Recall, until_ns: u64) {
        if self.is_gone.load(SeqCst) {
            return;
        }
        let mut mail = self.mail.lock();
        let number = self.home.begin(shard, until_ns);
        mail.recalls.insert(number, (recall, until_ns));
        self.waiting.store(mail.recalls.len(), SeqCst);
        // Without a waiting question of the session, its next question finds the recall.
        mail.wakeup.take().map(|wakeup| wakeup.send(()));
    }

    /// Recalls to send to it.
    pub(crate) fn news(&self, now_ns: u64) -> Reply {
        let mut mail = self.mail.lock();
        mail.recalls.retain(|_, (_, until_ns)| *until_ns > now_ns);
        self.waiting.store(mail.recalls.len(), SeqCst);
        let told = || mail.recalls.iter().take(RECALLS_MAX);
        let last = told().next_back().map_or(0, |(number, _)| *number);
        let recalls = told().map(|(_, (recall, _))| *recall).collect();
        Reply::Recalled { life: self.home.life, last, recalls }
    }

    /// Recalls to send to it; with none, a signal that there is one. The signal of an older question comes at once: that
    /// question has been given up, or will be asked again.
    pub(crate) fn news_or_bell(&self, now_ns: u64) -> Result<Reply, oneshot::Receiver<()>> {
        let mut mail = self.mail.lock();
        if mail.recalls.values().any(|(_, until_ns)| *until_ns > now_ns) {
            drop(mail);
            return Ok(self.news(now_ns));
        }
        let (wakeup, woken) = oneshot::channel();
        mail.wakeup = Some(wakeup);
        Err(woken)
    }

    /// It has let go of everything up to this number.
    pub(crate) fn confirmed(&self, last: u64) {
        let mut mail = self.mail.lock();
        let left = mail.recalls.split_off(&last.saturating_add(1));
        let done = std::mem::replace(&mut mail.recalls, left);
        self.waiting.store(mail.recalls.len(), SeqCst);
        drop(mail);
        self.home.end(done.into_keys());
    }
}
