//! Claims: leases that clients of this node take by themselves, of records that they read in the published index.
//!
//! A client notes the inode in memory that it shares with this server (`aze_io::claims`) before it looks for the
//! last time whether the record still stands; a server that changes something looks there after the published index has
//! been changed. So the client sees the change, or is told of it. No clock is shared: a claim is of a period,
//! and claims of this one and the last count; each period is longer than any lease.

use aze_io::Io;
use aze_io::claims::{Claim, Claims};
use aze_io::sync::{Mutex, RwLock};
use aze_proto::message::Recall;
use aze_proto::{Ino, SessionId, ShardId};
use aze_rpc::Proven;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use crate::coherence::state::published::PublishedIndex;
use crate::sabotage::{Sabotage, Switches};

/// The first period: a word in which nothing was noted is of one long before.
const FIRST: u64 = 16;

/// Claims remembered that were recalled already; one more, and all are forgotten, which costs recalls.
const RECALLED_MAX: usize = 4096;

/// Who may claim something.
pub(crate) struct Claimants {
    io: Io,
    published: PublishedIndex,
    period: AtomicU64,
    count: AtomicUsize,
    all: RwLock<Vec<Claimant>>,
    /// The server does not look at claims: a sabotage of the simulation.
    is_blind: bool,
}

/// One connection of a client.
struct Claimant {
    who: Arc<Proven>,
    claims: Claims,
    /// It has ended, and its claims count until then.
    until_ns: Option<u64>,
    /// Claims that a shard has recalled, and whether names too: a client that has not claimed anew since then believes
    /// none of them.
    recalled: Mutex<BTreeMap<(ShardId, Ino), (Claim, bool)>>,
}

impl Claimant {
    /// Whether this has to be recalled; it is from now on.
    fn takes(&self, shard: ShardId, recall: Recall, period: u64) -> bool {
        let claim = self.claims.look(recall.ino.0);
        if claim.period() + 1 < period {
            return false;
        }
        let mut recalled = self.recalled.lock();
        if recalled.len() >= RECALLED_MAX {
            recalled.clear();
        }
        let names_before = match recalled.get(&(shard, recall.ino)) {
            Some((known, names)) if *known == claim && (*names || !recall.names) => return false,
            Some((known, names)) if *known == claim => *names,
            _ => false,
        };
        recalled.insert((shard, recall.ino), (claim, recall.names || names_before));
        true
    }
}

impl Claimants {
    pub(crate) fn new(io: Io, published: PublishedIndex, switches: &Switches) -> Claimants {
        published.set_period(FIRST);
        let (period, count) = (AtomicU64::new(FIRST), AtomicUsize::new(0));
        let is_blind = switches.is(Sabotage::SkipClaims);
        Claimants { io, published, period, count, all: RwLock::default(), is_blind }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.io.mono_ns()
    }

    /// A connection over which something may be claimed from now on.
    pub(crate) fn enter(&self, who: &Arc<Proven>, claims: Claims) {
        let mut all = self.all.write();
        all.push(Claimant { who: who.clone(), claims, until_ns: None, recalled: Mutex::default() });
        self.count.store(all.len(), SeqCst);
    }

    /// The connection has ended: no claim comes over it any more, and earlier ones count until then.
    /// Gives whether it was one.
    pub(crate) fn leave(&self, who: &Arc<Proven>, until_ns: u64) -> bool {
        let mut all = self.all.write();
        let left = all.iter_mut().find(|claimant| Arc::ptr_eq(&claimant.who, who));
        left.map(|claimant| claimant.until_ns = Some(until_ns)).is_some()
    }

    /// The session has ended in good order: it believes nothing.
    pub(crate) fn end(&self, session: SessionId) {
        let mut all = self.all.write();
        all.retain(|claimant| claimant.who.session != session);
        self.count.store(all.len(), SeqCst);
    }

    /// Whether no client can claim anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// The sessions that a recall has to reach, but for the session `by`. To be called after the
    /// published index has been changed.
    pub(crate) fn take(&self, shard: ShardId, recall: Recall, by: Option<SessionId>) -> Vec<SessionId> {
        if self.is_empty() || self.is_blind {
            return Vec::new();
        }
        let period = self.period.load(SeqCst);
        let all = self.all.read();
        let others = all.iter().filter(|claimant| Some(claimant.who.session) != by);
        others.filter(|claimant| claimant.takes(shard, recall, period)).map(|claimant| claimant.who.session).collect()
    }

    /// Begins the next period. To be called less often than leases last.
    pub(crate) fn turn(&self, now_ns: u64) {
        let mut all = self.all.write();
        all.retain(|claimant| claimant.until_ns.is_none_or(|until_ns| now_ns < until_ns));
        all.iter().for_each(|claimant| claimant.recalled.lock().clear());
        self.count.store(all.len(), SeqCst);
        drop(all);
        self.published.set_period(self.period.fetch_add(1, SeqCst) + 1);
    }
}
