//! Answers without a request: what a server of this node lets its clients read.
//!
//! It alone knows when such an answer counts: if the server still held the connection after it
//! had been read, and knew no more of map and names than the asker then, so that it would have
//! given the same answer to a request.

use crate::Target;
use crate::caller::Caller;
use crate::link::Channel;
use aze_io::published::{Reader, Seen, Shape};
use aze_proto::published::{
    DIRECTORIES, DIRECTORY_VALUE_WORDS, ENTRIES, INODE_VALUE_WORDS, INODES, NOTE_MAP_EPOCH, NOTE_NAMESPACE_EPOCH,
    NOTE_PERIOD, NOTE_REMOVED, SHAPES, entry_key, inode_attr,
};
use aze_proto::{Attr, Ino, MapEpoch, Name, NameHash, NamespaceEpoch, Time};
use std::sync::Arc;

/// The tables of a published index.
pub fn shapes() -> [Shape; SHAPES.len()] {
    SHAPES.map(|(key_words, value_words)| Shape { key_words, value_words })
}

/// A server's published index.
pub struct PublishedIndex {
    channel: Arc<Channel>,
}

/// What the asker knows.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Of the shard map.
    pub map_epoch: MapEpoch,
    /// Of renamed directories; `None` if it does not matter.
    pub namespace_epoch: Option<NamespaceEpoch>,
    /// The asker goes on believing the answer: the server is to know.
    pub believes: bool,
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
    /// It leads to a regular file of these attributes.
    File(Attr),
    /// It does not exist. Every name that was removed before went until this time.
    Nothing(Time),
    /// Nothing is to be said of it.
    Unknown,
}

impl Caller {
    /// The published index of a server that shares memory with this process, if it stands.
    pub fn published(&self, to: &Target) -> Option<PublishedIndex> {
        let channel = self.core().standing(to)?;
        channel.published().is_some().then_some(PublishedIndex { channel })
    }
}

impl PublishedIndex {
    fn reader(&self) -> Option<&Reader> {
        self.channel.published()
    }

    /// Whether the words that were read of an inode are valid.
    fn counts(&self, reader: &Reader, known: Known, ino: Ino, seen: &[Seen]) -> bool {
        if known.believes {
            // Before the last look, so that a later change finds the claim.
            let Some(claims) = self.channel.claims() else { return false };
            claims.claim(ino.0, reader.note(NOTE_PERIOD));
        }
        let map_epoch = reader.note(NOTE_MAP_EPOCH);
        let in_step = map_epoch != 0
            && map_epoch <= u64::from(known.map_epoch.0)
            && known.namespace_epoch.is_none_or(|epoch| reader.note(NOTE_NAMESPACE_EPOCH) <= epoch.0);
        in_step && seen.iter().all(|seen| reader.is_unchanged(seen)) && self.channel.is_held()
    }

    fn read_inode(reader: &Reader, ino: Ino) -> Option<(Seen, Attr)> {
        let mut value = [0; INODE_VALUE_WORDS];
        let seen = reader.find(INODES, ino.0, &[ino.0], &mut value)?;
        Some((seen, inode_attr(ino, &value)?))
    }

    /// The attributes of a regular file that lives on the server.
    pub fn inode(&self, ino: Ino, known: Known) -> Option<Attr> {
        let reader = self.reader()?;
        let (seen, attr) = Self::read_inode(reader, ino)?;
        self.counts(reader, known, ino, &[seen]).then_some(attr)
    }

    /// What a name leads to; `None` if nothing is to be said even of the directory.
    pub fn lookup(&self, parent: Ino, name: &Name, known: Known) -> Option<Found> {
        let reader = self.reader()?;
        let mut state = [0; DIRECTORY_VALUE_WORDS];
        let directory = reader.find(DIRECTORIES, parent.0, &[parent.0], &mut state)?;
        let hash = NameHash::of(parent, name).get();
        let read = || {
            let (key, mut ino) = (entry_key(parent, name)?, [0]);
            let entry = reader.find(ENTRIES, hash, &key, &mut ino)?;
            let (inode, attr) = Self::read_inode(reader, Ino(ino[0]))?;
            // All three were there when the last one was read.
            self.counts(reader, known, Ino(ino[0]), &[directory, entry, inode]).then_some(attr)
        };
        // The directory was as it is when there was nothing of this name in it.
        // A name that is not there is asked for every time: its absence is not cached.
        let asks = Known { believes: false, ..known };
        let is_missing = || reader.has_none(hash) && self.counts(reader, asks, parent, &[directory]);
        let named = match read() {
            Some(attr) => Named::File(attr),
            None if is_missing() => Named::Nothing(Time(reader.note(NOTE_REMOVED))),
            None => Named::Unknown,
        };
        Some(Found { directory: state[0], named })
    }
}
