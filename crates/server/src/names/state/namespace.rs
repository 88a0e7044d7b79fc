//! The namespace epoch: what clients may still believe of the paths they have cached.
//!
//! The keeper raises it before a directory is renamed or loses rights, and the servers that serve paths through it
//! acknowledge it before the change is decided; others learn it when they get something to serve below it. A request that knows an older epoch is refused
//! with the directories changed since.

use crate::coherence::state::published::PublishedIndex;
use aze_io::sync::Mutex;
use aze_proto::limits::NAMESPACE_CHANGES_KEPT;
use aze_proto::{Ino, NamespaceEpoch, Refusal};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Namespace {
    epoch: AtomicU64,
    changes: Mutex<Changes>,
    published: PublishedIndex,
}

#[derive(Default)]
struct Changes {
    /// Epoch from which on the list below is complete.
    complete_since: u64,
    list: VecDeque<(u64, Ino)>,
}

impl Namespace {
    pub(crate) fn new(published: PublishedIndex) -> Namespace {
        Namespace { epoch: AtomicU64::new(0), changes: Mutex::new(Changes::default()), published }
    }

    pub(crate) fn epoch(&self) -> NamespaceEpoch {
        NamespaceEpoch(self.epoch.load(Ordering::SeqCst))
    }

    /// Takes note of changes: the last one raised the namespace to `epoch`, and each of the others to the one before. A
    /// gap means that this server missed some: a client that is older than the gap has to forget everything.
    pub(crate) fn push(&self, epoch: NamespaceEpoch, changed: &[Ino]) {
        let mut changes = self.changes.lock();
        let now = self.epoch.load(Ordering::SeqCst);
        if epoch.0 <= now {
            return;
        }
        let before = epoch.0.saturating_sub(changed.len() as u64);
        if now < before {
            changes.list.clear();
            changes.complete_since = before;
        }
        let all = (before + 1..).zip(changed.iter().copied());
        changes.list.extend(all.filter(|(at, _)| *at > now));
        while changes.list.len() > NAMESPACE_CHANGES_KEPT
            && let Some((dropped, _)) = changes.list.pop_front()
        {
            changes.complete_since = dropped;
        }
        self.published.set_namespace_epoch(epoch);
        self.epoch.store(epoch.0, Ordering::SeqCst);
    }

    /// The last changes up to an epoch, at most so many, in their order.
    pub(crate) fn changes_up_to(&self, epoch: NamespaceEpoch, most: usize) -> Vec<Ino> {
        let changes = self.changes.lock();
        let known = changes.list.iter().filter(|(at, _)| *at <= epoch.0);
        let skipped = known.clone().count().saturating_sub(most);
        known.skip(skipped).map(|(_, dir)| *dir).collect()
    }

    /// Takes over what another server knows, which has refused a request of this one for it.
    pub(crate) fn learn(&self, epoch: NamespaceEpoch, all: bool, changed: &[Ino]) {
        if all { self.adopt(epoch) } else { self.push(epoch, changed) }
    }

    /// Starts at an epoch learnt from the keeper, with no memory of earlier changes.
    pub(crate) fn adopt(&self, epoch: NamespaceEpoch) {
        let mut changes = self.changes.lock();
        if epoch.0 > self.epoch.load(Ordering::SeqCst) {
            changes.list.clear();
            changes.complete_since = epoch.0;
            self.published.set_namespace_epoch(epoch);
            self.epoch.store(epoch.0, Ordering::SeqCst);
        }
    }

    /// The refusal for a client at `known`, or `None` if that is new enough.
    pub(crate) fn refusal(&self, known: NamespaceEpoch) -> Option<Refusal> {
        if known.0 >= self.epoch.load(Ordering::SeqCst) {
            return None;
        }
        let changes = self.changes.lock();
        let epoch = self.epoch();
        if known.0 < changes.complete_since {
            return Some(Refusal::NamespaceStale { epoch, all: true, changed: Vec::new() });
        }
        let changed = changes.list.iter().filter(|(at, _)| *at > known.0).map(|(_, dir)| *dir).collect();
        Some(Refusal::NamespaceStale { epoch, all: false, changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(refusal: Option<Refusal>) -> Option<(bool, Vec<u64>)> {
        match refusal {
            Some(Refusal::NamespaceStale { all, changed, .. }) => {
                Some((all, changed.iter().map(|ino| ino.0).collect()))
            }
            _ => None,
        }
    }

    #[test]
    fn an_older_epoch_is_refused_with_what_changed_since() {
        let namespace = Namespace::new(PublishedIndex::default());
        assert!(namespace.refusal(NamespaceEpoch(0)).is_none());
        namespace.push(NamespaceEpoch(1), &[Ino(11)]);
        namespace.push(NamespaceEpoch(2), &[Ino(12)]);
        namespace.push(NamespaceEpoch(2), &[Ino(13)]);
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(1))), Some((false, vec![12])));
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(0))), Some((false, vec![11, 12])));
        assert!(namespace.refusal(NamespaceEpoch(2)).is_none());
    }

    #[test]
    fn after_a_gap_everything_is_forgotten() {
        let namespace = Namespace::new(PublishedIndex::default());
        namespace.push(NamespaceEpoch(1), &[Ino(11)]);
        namespace.push(NamespaceEpoch(5), &[Ino(15)]);
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(1))), Some((true, vec![])));
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(4))), Some((false, vec![15])));
    }

    #[test]
    fn what_was_missed_comes_with_the_next_change() {
        let namespace = Namespace::new(PublishedIndex::default());
        namespace.push(NamespaceEpoch(1), &[Ino(11)]);
        namespace.push(NamespaceEpoch(4), &[Ino(11), Ino(12), Ino(13), Ino(14)]);
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(0))), Some((false, vec![11, 12, 13, 14])));
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(2))), Some((false, vec![13, 14])));
        assert_eq!(namespace.changes_up_to(NamespaceEpoch(3), 2), [Ino(12), Ino(13)]);
        namespace.push(NamespaceEpoch(9), &[Ino(18), Ino(19)]);
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(6))), Some((true, vec![])));
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(7))), Some((false, vec![18, 19])));
        namespace.learn(NamespaceEpoch(11), false, &[Ino(20), Ino(21)]);
        namespace.learn(NamespaceEpoch(20), true, &[]);
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(19))), Some((true, vec![])));
        assert!(namespace.refusal(NamespaceEpoch(20)).is_none());
    }

    #[test]
    fn the_list_is_bounded() {
        let namespace = Namespace::new(PublishedIndex::default());
        for epoch in 1..=NAMESPACE_CHANGES_KEPT as u64 + 10 {
            namespace.push(NamespaceEpoch(epoch), &[Ino(epoch)]);
        }
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(9))).map(|(all, _)| all), Some(true));
        assert_eq!(changed(namespace.refusal(NamespaceEpoch(10))).map(|(all, _)| all), Some(false));
    }
}
