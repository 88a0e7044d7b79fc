//! Answers without a request: what a server of this node lets its clients read.
//!
//! It alone knows when such an answer counts: if the server still held the connection after it
//! had been read, and knew no more of map and names than the asker then, so that it would have
//! given the same answer to a request.

use crate::Target;
use crate::caller::Caller;
use crate::link::Channel;
use aze_index::Named as Words;
pub use aze_index::Seen;
use aze_io::published::Reader;
use aze_proto::published::{NOTE_PERIOD, inode_attr};
use aze_proto::{Attr, Ino, MapEpoch, Name, NamespaceEpoch, Time};
use std::os::fd::OwnedFd;
use std::sync::Arc;

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

impl Known {
    fn words(self) -> aze_index::Known {
        let namespace_epoch = self.namespace_epoch.map(|epoch| epoch.0);
        aze_index::Known { map_epoch: u64::from(self.map_epoch.0), namespace_epoch }
    }
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
        let channel = self.standing(to)?;
        channel.published().is_some().then_some(PublishedIndex { channel })
    }
}

impl PublishedIndex {
    fn reader(&self) -> Option<&Reader> {
        self.channel.published()
    }

    /// For other processes of this user on this node that are to read it: the memory file, and by what the end of the server's
    /// process is known at once (pidfd_open(2)). `None` where the system cannot tell, and in the simulation.
    pub fn files(&self) -> Option<(OwnedFd, OwnedFd)> {
        let (memory, process) = (self.reader()?.file()?, self.channel.process()?);
        let files = (memory.try_clone().ok()?, process.descriptor()?.try_clone().ok()?);
        // If it lives still then it has lived all the time, and its number was not given to another process.
        self.channel.is_held().then_some(files)
    }

    /// Notes before the last look that an inode's attributes will be believed, so that a later change finds the claim; false if it
    /// cannot be noted.
    fn claim(&self, index: &aze_index::Reader<'_>, known: Known, ino: u64) -> bool {
        if !known.believes {
            return true;
        }
        let Some(claims) = self.channel.claims() else { return false };
        claims.claim(ino, index.note(NOTE_PERIOD));
        true
    }

    /// The attributes of a regular file that lives on the server.
    pub fn inode(&self, ino: Ino, known: Known) -> Option<Attr> {
        let index = self.reader()?.read();
        let (seen, value) = index.inode(ino.0)?;
        let attr = inode_attr(ino, &value)?;
        let counts =
            self.claim(&index, known, ino.0) && index.counts(known.words(), &[seen], || self.channel.is_held());
        counts.then_some(attr)
    }

    /// As [`PublishedIndex::inode`], and the record, by which is known later whether anything of the file has changed. Nobody goes on
    /// believing the attributes.
    pub fn record(&self, ino: Ino, known: Known) -> Option<(Attr, Seen)> {
        let index = self.reader()?.read();
        let (seen, value) = index.inode(ino.0)?;
        let attr = inode_attr(ino, &value)?;
        index.counts(known.words(), &[seen], || self.channel.is_held()).then_some((attr, seen))
    }

    /// Whether neither data nor attributes of a file have changed since its record was read: then the server would answer a request
    /// now as it would have done then.
    pub fn is_unchanged(&self, seen: Seen, known: Known) -> bool {
        self.reader().is_some_and(|reader| reader.read().counts(known.words(), &[seen], || self.channel.is_held()))
    }

    /// What a name leads to; `None` if nothing is to be said even of the directory.
    pub fn lookup(&self, parent: Ino, name: &Name, known: Known) -> Option<Found> {
        let index = self.reader()?.read();
        let claim = |ino| self.claim(&index, known, ino);
        let found = index.lookup(parent.0, name.as_bytes(), known.words(), claim, |_| self.channel.is_held())?;
        let named = match found.named {
            Words::File(ino, value, _) => inode_attr(Ino(ino), &value).map_or(Named::Unknown, Named::File),
            Words::Nothing(time) => Named::Nothing(Time(time)),
            Words::Unknown => Named::Unknown,
        };
        Some(Found { directory: found.directory, named })
    }
}
