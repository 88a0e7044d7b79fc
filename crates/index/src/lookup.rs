//! When words that were read are the answer that the server would give.
//!
//! If nothing of them has changed when the last one was read, the server knew no more of map and names than the asker does,
//! and the server was alive after that.

use crate::reader::{Reader, Seen};
use crate::words::{
    DIRECTORIES, DIRECTORY_VALUE_WORDS, ENTRIES, INODE_VALUE_WORDS, INODES, NOTE_MAP_EPOCH, NOTE_NAMESPACE_EPOCH,
    NOTE_REMOVED, entry_key, hash_of,
};

/// What the asker knows.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Of the shard map.
    pub map_epoch: u64,
    /// Of renamed directories; `None` if it does not matter.
    pub namespace_epoch: Option<u64>,
}

/// What a name led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The state of the directory in which names may be looked up, which no other state shares.
    pub directory: u64,
    /// What the name leads to, as far as that is to be read.
    pub named: Named,
}

/// A name to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// It leads to a regular file: its inode number, the words of its attributes, which are not checked, and the record of these.
    File(u64, [u64; INODE_VALUE_WORDS], Seen),
    /// It does not exist. Every name that was removed before went until this time, in nanoseconds.
    Nothing(u64),
    /// Nothing is to be said of it.
    Unknown,
}

impl Reader<'_> {
    /// Whether the records that were read count. `is_held` looks last whether the server still is there.
    pub fn counts(&self, known: Known, seen: &[Seen], is_held: impl FnOnce() -> bool) -> bool {
        let map_epoch = self.note(NOTE_MAP_EPOCH);
        let in_step = map_epoch != 0
            && map_epoch <= known.map_epoch
            && known.namespace_epoch.is_none_or(|epoch| self.note(NOTE_NAMESPACE_EPOCH) <= epoch);
        in_step && seen.iter().all(|seen| self.is_unchanged(seen)) && is_held()
    }

    /// The words of an inode's attributes.
    pub fn inode(&self, ino: u64) -> Option<(Seen, [u64; INODE_VALUE_WORDS])> {
        let mut value = [0; INODE_VALUE_WORDS];
        let seen = self.find(INODES, ino, &[ino], &mut value)?;
        Some((seen, value))
    }

    /// What a name leads to; `None` if nothing is to be said even of the directory. `claim` is told of a file's inode before
    /// the last look, and has it not counted by `false`; `is_held` as for [`Reader::counts`], with the inode, if it is one.
    pub fn lookup(
        &self,
        parent: u64,
        name: &[u8],
        known: Known,
        claim: impl Fn(u64) -> bool,
        is_held: impl Fn(Option<u64>) -> bool,
    ) -> Option<Found> {
        let mut state = [0; DIRECTORY_VALUE_WORDS];
        let directory = self.find(DIRECTORIES, parent, &[parent], &mut state)?;
        let hash = hash_of(parent, name);
        let read = || {
            let (key, mut ino) = (entry_key(parent, name)?, [0]);
            let entry = self.find(ENTRIES, hash, &key, &mut ino)?;
            let [ino] = ino;
            let (inode, value) = self.inode(ino)?;
            // All three were there when the last one was read.
            let counts = claim(ino) && self.counts(known, &[directory, entry, inode], || is_held(Some(ino)));
            counts.then_some((ino, value, inode))
        };
        // The directory was as it is when there was nothing of this name in it.
        // A name that is not there is asked for every time: its absence is not cached.
        let is_missing = || self.has_none(hash) && self.counts(known, &[directory], || is_held(None));
        let named = match read() {
            Some((ino, value, seen)) => Named::File(ino, value, seen),
            None if is_missing() => Named::Nothing(self.note(NOTE_REMOVED)),
            None => Named::Unknown,
        };
        Some(Found { directory: state[0], named })
    }
}
