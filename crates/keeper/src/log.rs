//! What a member has to remember, as the library of consensus asks for it.

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata};
use raft::storage::Storage;
use raft::{Error, GetEntriesContext, RaftState, StorageError};

/// The newest value that is decided, and the proposals since.
///
/// A value takes the place of all earlier ones, so that nothing decided is kept but the last.
#[derive(Clone, Default)]
pub(crate) struct Log {
    /// The term, the vote, and how far decisions are known to go.
    pub(crate) promises: HardState,
    /// The newest decided value, its place in the log, and the members of that moment.
    pub(crate) decided: Snapshot,
    /// What follows it.
    pub(crate) entries: Vec<Entry>,
}

impl Log {
    /// The log with which each founder of a group begins.
    pub(crate) fn founded(members: &[u64], value: Vec<u8>) -> Log {
        let mut at = SnapshotMetadata::default();
        (at.index, at.term) = (1, 1);
        at.mut_conf_state().voters = members.to_vec();
        let mut decided = Snapshot { data: value.into(), ..Snapshot::default() };
        decided.set_metadata(at);
        let mut promises = HardState::default();
        (promises.term, promises.commit) = (1, 1);
        Log { promises, decided, entries: Vec::new() }
    }

    pub(crate) fn index(&self) -> u64 {
        self.decided.get_metadata().index
    }

    pub(crate) fn members(&self) -> &ConfState {
        self.decided.get_metadata().get_conf_state()
    }

    /// Puts these entries in the place of its own from the first of them on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        self.entries.retain(|entry| entry.index < first.index);
        self.entries.extend_from_slice(entries);
    }

    /// Takes over what another member has decided.
    pub(crate) fn take_over(&mut self, decided: Snapshot) {
        self.promises.commit = self.promises.commit.max(decided.get_metadata().index);
        self.promises.term = self.promises.term.max(decided.get_metadata().term);
        self.decided = decided;
        self.entries.clear();
    }

    /// Everything up to an entry is decided and taken into use; its value, if it has one, is the newest.
    pub(crate) fn applied(&mut self, entry: &Entry) {
        if !entry.data.is_empty() {
            self.decided.data = entry.data.clone();
        }
        let at = self.decided.mut_metadata();
        (at.index, at.term) = (entry.index, entry.term);
        self.entries.retain(|later| later.index > entry.index);
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.promises.clone(), self.members().clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.index() {
            return Err(Error::Store(StorageError::Compacted));
        }
        let mut entries: Vec<Entry> =
            self.entries.iter().filter(|entry| (low..high).contains(&entry.index)).cloned().collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let at = self.decided.get_metadata();
        if index == at.index {
            return Ok(at.term);
        }
        if index < at.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        let entry = self.entries.iter().find(|entry| entry.index == index);
        entry.map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.index() + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.entries.last().map_or(self.index(), |entry| entry.index))
    }

    fn snapshot(&self, at_least: u64, _to: u64) -> raft::Result<Snapshot> {
        if self.index() < at_least {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.decided.clone())
    }
}
