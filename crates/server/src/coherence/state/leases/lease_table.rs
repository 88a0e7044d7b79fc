//! The leases of one shard, given by its answers and recalled by its changes.

use super::listener::{Lease, Listener};
use super::{HELD_NS, Leases, RECALLS_MAX};
use crate::coherence::state::claims::Claimants;
use aze_meta::{Op, Shard};
use aze_proto::message::Recall;
use aze_proto::{Ino, SessionId, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The leases of one shard.
#[derive(Default)]
pub(crate) struct LeaseTable {
    pub(super) leases: BTreeMap<Ino, Vec<Lease>>,
    /// When to look whether a lease is over, one for each.
    pub(super) order: VecDeque<(u64, Ino, SessionId)>,
    /// All leases of the server, for those that are claimed.
    home: Option<Arc<Leases>>,
}

impl LeaseTable {
    /// Of a shard of this server.
    pub(crate) fn of(home: &Arc<Leases>) -> LeaseTable {
        LeaseTable { home: Some(home.clone()), ..LeaseTable::default() }
    }

    /// Gives a lease of an inode, or makes it last anew.
    pub(crate) fn give(&mut self, ino: Ino, listener: &Arc<Listener>, now_ns: u64) -> bool {
        self.sweep(now_ns);
        if listener.waiting.load(SeqCst) >= RECALLS_MAX {
            return false;
        }
        let until_ns = now_ns + HELD_NS;
        let leases = self.leases.entry(ino).or_default();
        if let Some(known) = leases.iter_mut().find(|lease| lease.holder.session == listener.session) {
            known.until_ns = until_ns;
            (known.lost_attrs, known.lost_names) = (false, false);
            return true;
        }
        let lease = listener.lease(until_ns);
        let is_given = lease.is_some();
        leases.extend(lease);
        if leases.is_empty() {
            self.leases.remove(&ino);
        }
        if is_given {
            self.order.push_back((until_ns, ino, listener.session));
        }
        is_given
    }

    /// Removes expired leases.
    pub(crate) fn sweep(&mut self, now_ns: u64) {
        while let Some((_, ino, session)) = self.order.pop_front_if(|(until_ns, ..)| *until_ns <= now_ns) {
            let Some(leases) = self.leases.get_mut(&ino) else { continue };
            if let Some(place) = leases.iter().position(|lease| lease.holder.session == session) {
                match leases[place].until_ns {
                    later if later > now_ns => self.order.push_back((later, ino, session)),
                    _ => drop(leases.swap_remove(place)),
                }
            }
            if leases.is_empty() {
                self.leases.remove(&ino);
            }
        }
    }

    /// Whether no session has a lease here, nor can have claimed one.
    pub(crate) fn is_empty(&self) -> bool {
        let claims = self.home.as_ref().and_then(|home| home.claims.as_ref());
        self.leases.is_empty() && claims.is_none_or(Claimants::is_empty)
    }

    /// The inodes with leases.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.leases.keys().copied()
    }

    /// Recalls the leases of an inode, but for those of the session `by`.
    pub(super) fn recall(&mut self, shard: ShardId, recall: Recall, by: Option<SessionId>) {
        if let Some(home) = &self.home {
            home.recall_claims(shard, recall, by);
        }
        let Some(leases) = self.leases.get_mut(&recall.ino) else { return };
        for lease in leases.iter_mut().filter(|lease| Some(lease.holder.session) != by) {
            // A session that has dropped the attributes may still use the name.
            let is_known = lease.lost_names || (lease.lost_attrs && !recall.names);
            if is_known {
                continue;
            }
            lease.lost_attrs = true;
            lease.lost_names = recall.names;
            lease.holder.recall(shard, recall, lease.until_ns);
        }
    }
}

/// What an operation is about to take a name from, or to give another meaning.
pub(crate) fn loses_name(shard: &Shard, op: &Op) -> Option<Ino> {
    match op {
        Op::Remove { key, .. } | Op::Insert { key, .. } | Op::Exchange { key, .. } => {
            shard.entry(key).map(|entry| entry.ino)
        }
        _ => None,
    }
}

/// Recalls all leases of an inode and its names.
pub(crate) fn recall_names(lease_table: &mut LeaseTable, shard: ShardId, ino: Ino) {
    lease_table.recall(shard, Recall { ino, names: true }, None);
}

/// Recalls what an operation that has been applied has changed; `lost` is what [`loses_name`] gave before.
pub(crate) fn recall_changed(lease_table: &mut LeaseTable, shard: ShardId, op: &Op, lost: Option<Ino>, by: SessionId) {
    if let Some(ino) = lost {
        // The session that makes the change gets no recall. One that renames learns the moved inodes from the answer
        // (`Moved`), and drops them: its kernel goes on using the new name, for which it has no lease.
        lease_table.recall(shard, Recall { ino, names: true }, Some(by));
    }
    // The sessions that knew a deleted file had their recall when its last name was removed.
    let changed = match op {
        Op::SetAttr { ino, .. }
        | Op::Report { ino, .. }
        | Op::Wrote { ino, .. }
        | Op::Appended { ino, .. }
        | Op::Truncate { ino, .. }
        | Op::LinkBegin { ino, .. }
        | Op::LinkEnd { ino, .. }
        | Op::LinkDrop { ino, .. }
        | Op::SetXattr { ino, .. }
        | Op::SetLinks { ino, .. } => *ino,
        Op::MakeRoot { .. }
        | Op::Import { .. }
        | Op::ImportedAll { .. }
        | Op::LieOver { .. }
        | Op::WillChange { .. }
        | Op::LeaveBacking { .. }
        | Op::Adopt { .. }
        | Op::Settled { .. }
        | Op::ForgetGone { .. }
        | Op::Create { .. }
        | Op::CreateWith { .. }
        | Op::Remove { .. }
        | Op::Insert { .. }
        | Op::LinkInsert { .. }
        | Op::Exchange { .. }
        | Op::Lock { .. }
        | Op::Unlock { .. }
        | Op::TruncateDone { .. }
        | Op::SetParent { .. }
        | Op::Delete { .. }
        | Op::Record { .. }
        | Op::ReserveInos { .. }
        | Op::BeginLife { .. }
        | Op::LinkForget { .. }
        | Op::LinkResolved { .. }
        | Op::EndSession { .. }
        | Op::ExpireOutcomes => return,
    };
    lease_table.recall(shard, Recall { ino: changed, names: false }, Some(by));
}
