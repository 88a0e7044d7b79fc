//! What this client may believe of files without asking again: what came with a lease, until the lease is
//! recalled or its time is over.
//!
//! Only a client that has said what to do with recalls ([`Client::listen`]) is given leases. For each server
//! that it asks about files one question waits there until something is recalled; for a server that it
//! asks nothing, there is none. A recall while an answer is on its way makes its lease void.
//! A record of a server's published index comes with a lease, too: the client claims it before it believes it.

use crate::client::{Client, Core, unexpected};
use crate::route::{Knowing, Place, Question};
use aze_io::sync::Mutex;
use aze_proto::limits::LEASE_MS;
use aze_proto::message::Recall;
use aze_proto::{Code, Failure, Identity, Ino, Reply, Request, ServerIndex, ShardMap};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Inodes share counters of recalls; two that share one cost a lease now and then.
const COUNTERS: usize = 1 << 12;

/// How long after the last question about files a server is listened to: longer than any lease.
const LISTEN_NS: u64 = 2 * LEASE_MS as u64 * 1_000_000;

/// Pause before a server is listened to again that does not answer.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);

/// Drops the cached state that the recalls name; it is gone when the future resolves.
pub type LetGo = dyn Fn(Vec<Recall>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Until when an answer may be believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    until_ns: u64,
    /// Recalls seen when it was asked for.
    seen: u64,
}

impl Lease {
    /// That of an answer which needs two.
    pub fn both(one: Option<Lease>, other: Option<Lease>) -> Option<Lease> {
        Some(one?.min(other?))
    }

    /// The one that ends first, for what needs both.
    pub(crate) fn min(self, other: Lease) -> Lease {
        Lease { until_ns: self.until_ns.min(other.until_ns), seen: self.seen.min(other.seen) }
    }

    /// When it ends at the latest, by this node's clock.
    pub(crate) fn until_ns(self) -> u64 {
        self.until_ns
    }
}

pub(crate) struct Leases {
    listening: OnceLock<Listening>,
    /// Recalls seen so far, and of each counter the last one.
    seen: AtomicU64,
    counters: Vec<AtomicU64>,
}

struct Listening {
    core: Weak<Core>,
    let_go: Box<LetGo>,
    /// When each server that is listened to was last asked something.
    servers: Mutex<BTreeMap<ServerIndex, u64>>,
}

impl Default for Leases {
    fn default() -> Leases {
        let counters = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Leases { listening: OnceLock::new(), seen: AtomicU64::new(0), counters }
    }
}

impl Leases {
    fn counter(&self, ino: Ino) -> &AtomicU64 {
        &self.counters[(ino.0 ^ ino.0 >> 48) as usize % COUNTERS]
    }

    /// Whether this client is given leases, and claims the records of a server's published index that it reads.
    pub(crate) fn are_wanted(&self) -> bool {
        self.listening.get().is_some()
    }

    /// To be called before something is asked; the answer's lease is made with [`Self::lease`].
    pub(crate) fn ask(&self, now_ns: u64) -> Lease {
        Lease { until_ns: now_ns, seen: self.seen.load(SeqCst) }
    }

    /// The lease of an answer that may be believed for `lease_ms` from the question on.
    pub(crate) fn lease(asked: Lease, lease_ms: u32) -> Option<Lease> {
        let length_ns = u64::from(lease_ms.min(LEASE_MS)) * 1_000_000;
        (lease_ms > 0).then_some(Lease { until_ns: asked.until_ns + length_ns, ..asked })
    }

    fn note(&self, recalls: &[Recall]) {
        let number = self.seen.fetch_add(1, SeqCst) + 1;
        for recall in recalls {
            self.counter(recall.ino).fetch_max(number, SeqCst);
        }
    }

    /// Makes all leases void, also those of answers that are on their way.
    pub(crate) fn void_all(&self) {
        let number = self.seen.fetch_add(1, SeqCst) + 1;
        for counter in &self.counters {
            counter.fetch_max(number, SeqCst);
        }
    }

    pub(crate) fn left(&self, lease: Lease, ino: Ino, now_ns: u64) -> Duration {
        let is_void = self.counter(ino).load(SeqCst) > lease.seen;
        if is_void { Duration::ZERO } else { Duration::from_nanos(lease.until_ns.saturating_sub(now_ns)) }
    }
}

impl Client {
    /// Wants leases from now on. `let_go` is told what others are about to change, and resolves when
    /// no request of this client believes an earlier answer about it any more: servers wait for that.
    pub fn listen(&self, let_go: Box<LetGo>) {
        let listening = Listening { core: Arc::downgrade(&self.core), let_go, servers: Mutex::default() };
        // A second one would be told nothing.
        assert!(self.core.leases.listening.set(listening).is_ok(), "a client listens once");
    }

    /// How long earlier answers about an inode may still be believed.
    pub fn lease_left(&self, lease: Option<Lease>, ino: Ino) -> Duration {
        lease.map_or(Duration::ZERO, |lease| self.core.leases.left(lease, ino, self.core.io.mono_ns()))
    }

    /// Whether a file is open here.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.core.inodes.get(ino).is_some()
    }
}

impl Core {
    /// A server is about to be asked something, perhaps what may come with a lease.
    pub(crate) fn listen_for(&self, server: ServerIndex, request: &Request) {
        if request.may_be_leased() {
            self.listen_to(server);
        }
    }

    /// Something of this server may be believed from now on.
    pub(crate) fn listen_to(&self, server: ServerIndex) {
        let Some(listening) = self.leases.listening.get() else { return };
        let is_new = listening.servers.lock().insert(server, self.io.mono_ns()).is_none();
        if is_new && let Some(core) = listening.core.upgrade() {
            core.spawn(|core| async move { core.listening(server).await });
        }
    }

    /// Listens to a server for as long as it is asked about files.
    async fn listening(self: Arc<Self>, server: ServerIndex) {
        let Some(listening) = self.leases.listening.get() else { return };
        let (mut of_life, mut confirmed) = (0, 0);
        loop {
            let request = Request::Listen { life: of_life, confirmed };
            match self.ask(&Identity::default(), Place::Server(server), &request).await {
                Ok(Reply::Recalled { life, last, recalls }) => {
                    let is_quiet = recalls.is_empty();
                    self.recalled(listening, recalls).await;
                    (of_life, confirmed) = (life, last);
                    if !is_quiet {
                        continue;
                    }
                }
                answer => {
                    let failure = answer.map_or_else(|failure| failure, |reply| unexpected(&request, &reply));
                    if failure.code == Code::Expired {
                        // Nothing is believed any more, since nothing is answered.
                        return;
                    }
                    // Leases run out meanwhile.
                    self.io.sleep(FAILURE_PAUSE).await;
                }
            }
            let mut servers = listening.servers.lock();
            if servers.get(&server).is_none_or(|asked_ns| self.io.mono_ns() > asked_ns + LISTEN_NS) {
                servers.remove(&server);
                return;
            }
        }
    }

    async fn recalled(&self, listening: &Listening, recalls: Vec<Recall>) {
        if recalls.is_empty() {
            return;
        }
        self.leases.note(&recalls);
        self.not_again(recalls.iter().map(|recall| recall.ino));
        for recall in &recalls {
            // What came along with an open is as old as the rest.
            drop(self.contents.change(recall.ino));
        }
        (listening.let_go)(recalls).await;
    }

    /// This client has given these inodes other names, and is not told that again: what believes it to have a lease
    /// of the old ones lets go of it.
    pub(crate) async fn has_moved(&self, inos: Vec<Ino>) {
        if let Some(listening) = self.leases.listening.get() {
            self.recalled(listening, inos.into_iter().map(|ino| Recall { ino, names: true }).collect()).await;
        }
    }

    /// Begins to read records of a published index; they get the lease.
    pub(crate) fn claiming(&self) -> Option<Lease> {
        Leases::lease(self.leases.ask(self.io.mono_ns()), LEASE_MS).filter(|_| self.leases.are_wanted())
    }

    /// As [`Self::ask_planned`], with the answer's lease.
    pub(crate) async fn ask_leased_planned(
        &self,
        who: &Identity,
        map: &ShardMap,
        server: ServerIndex,
        request: &Request,
    ) -> Result<(Reply, Option<Lease>), Failure> {
        let asked = self.leases.ask(self.io.mono_ns());
        let (place, knowing, planned) = (Place::Server(server), Knowing::Latest, Some(map.epoch));
        let question = Question { who, place, knowing, request, payload: &[], life: None, planned };
        let answer = self.ask_question(question).await?;
        Ok((answer.reply, Leases::lease(asked, answer.header.deadline_ms)))
    }

    /// As [`Self::ask`], with the answer's lease.
    pub(crate) async fn ask_leased(
        &self,
        who: &Identity,
        place: Place<'_>,
        knowing: Knowing,
        request: &Request,
    ) -> Result<(Reply, Option<Lease>), Failure> {
        let asked = self.leases.ask(self.io.mono_ns());
        let question = Question { who, place, knowing, request, payload: &[], life: None, planned: None };
        let answer = self.ask_question(question).await?;
        Ok((answer.reply, Leases::lease(asked, answer.header.deadline_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_counts_from_the_question_and_ends_with_a_recall() {
        let leases = Leases::default();
        let lease = Leases::lease(leases.ask(100), LEASE_MS).expect("a lease");
        assert_eq!(leases.left(lease, Ino(5), 100), SECOND);
        assert_eq!(leases.left(lease, Ino(5), 1_000_000_100), Duration::ZERO);
        assert_eq!(Leases::lease(leases.ask(100), 0), None);
        leases.note(&[Recall { ino: Ino(5), names: false }]);
        assert_eq!(leases.left(lease, Ino(5), 101), Duration::ZERO, "also if its answer comes after the recall");
        assert!(!leases.left(lease, Ino(6), 101).is_zero());
        let again = Leases::lease(leases.ask(101), LEASE_MS).expect("a lease");
        assert_eq!(leases.left(again, Ino(5), 101), SECOND);
        assert_eq!(Lease::both(Some(lease), Some(again)), Some(lease));
        assert_eq!(Lease::both(Some(lease), None), None);
        leases.void_all();
        assert_eq!([Ino(5), Ino(6)].map(|ino| leases.left(again, ino, 101)), [Duration::ZERO; 2]);
    }
}
