//! The new names here whose renames are not known to be over at their coordinators.

use aze_io::sync::Mutex;
use aze_meta::EntryKey;
use aze_proto::{ServerIndex, TxId};
use std::collections::{BTreeMap, BTreeSet};

/// Transactions in one message to a coordinator.
const TXS_AT_ONCE: usize = 4096;

/// New names here whose renames are not known to be over.
#[derive(Default)]
pub(crate) struct Unresolved(Mutex<Names>);

#[derive(Default)]
struct Names {
    /// With the transaction that has made each, and its coordinator.
    made: BTreeMap<EntryKey, (TxId, ServerIndex)>,
    /// Whether coordinators are being told in the background.
    is_told: bool,
}

impl Unresolved {
    /// The transaction that has made a name, and its coordinator.
    pub(crate) fn of(&self, key: &EntryKey) -> Option<(TxId, ServerIndex)> {
        self.0.lock().made.get(key).copied()
    }

    /// Whether one of them is such a name.
    pub(crate) fn any(&self, is_such: impl Fn(&EntryKey) -> bool) -> bool {
        self.0.lock().made.keys().any(is_such)
    }

    /// The new name that a transaction has made.
    pub(crate) fn name_of(&self, tx: TxId) -> Option<EntryKey> {
        self.0.lock().made.iter().find(|(_, (made_by, _))| *made_by == tx).map(|(key, _)| key.clone())
    }

    /// Gives whether the caller has to start the task that tells.
    pub(crate) fn add(&self, key: EntryKey, tx: TxId, coordinator: ServerIndex) -> bool {
        let mut names = self.0.lock();
        names.made.insert(key, (tx, coordinator));
        !std::mem::replace(&mut names.is_told, true)
    }

    /// Some of them for each coordinator; with none left the telling is over.
    pub(crate) fn to_tell(&self) -> BTreeMap<ServerIndex, BTreeSet<TxId>> {
        let mut names = self.0.lock();
        let mut all: BTreeMap<ServerIndex, BTreeSet<TxId>> = BTreeMap::new();
        for (tx, coordinator) in names.made.values() {
            let txs = all.entry(*coordinator).or_default();
            if txs.len() < TXS_AT_ONCE {
                txs.insert(*tx);
            }
        }
        names.is_told = !all.is_empty();
        all
    }

    /// The rename that has made a name is over.
    pub(crate) fn forget(&self, key: &EntryKey, tx: TxId) {
        let mut names = self.0.lock();
        if names.made.get(key).is_some_and(|(known, _)| *known == tx) {
            names.made.remove(key);
        }
    }

    /// Coordinators have been told of these.
    pub(crate) fn told(&self, txs: &BTreeSet<TxId>) {
        self.0.lock().made.retain(|_, (tx, _)| !txs.contains(tx));
    }
}
