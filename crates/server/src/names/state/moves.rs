//! What a rename is at its coordinator: the two names, what moves, and what becomes of the inode in the way.

use aze_meta::{EntryKey, EntryValue, Stamp};
use aze_proto::{FileKind, Identity, Ino, Name, NameHash, Reply, Request, ShardId, TxId};

/// What becomes of an inode that has the new name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It goes.
    Replace,
    /// There must be nothing.
    NoReplace,
    /// It gets the old name.
    Exchange,
}

/// A rename in progress, at its coordinator. Every try is a transaction of its own, so that a late
/// message of one does nothing to the next.
#[derive(Clone)]
pub(crate) struct Move {
    pub(crate) tx: TxId,
    /// In whose name the token is taken, if it is: the same in every try.
    pub(crate) token: TxId,
    pub(crate) identity: Identity,
    pub(crate) from: EntryKey,
    pub(crate) to_parent: Ino,
    pub(crate) to_name: Name,
    pub(crate) how: How,
    pub(crate) stamp: Stamp,
    pub(crate) deadline_ns: u64,
}

/// What gets the new name, and in an exchange what gets the old one.
#[derive(Clone, Copy)]
pub(crate) struct Moved {
    pub(crate) entry: EntryValue,
    pub(crate) back: Option<EntryValue>,
}

impl Moved {
    /// That it is done.
    pub(crate) fn done(&self) -> Reply {
        let entries = std::iter::once(self.entry).chain(self.back);
        let files = entries.filter(|entry| entry.kind != FileKind::Directory);
        Reply::Moved { inos: files.map(|entry| entry.ino).collect() }
    }
}

impl Move {
    pub(crate) fn old_shard(&self, shards: u32) -> ShardId {
        self.from.hash.shard(shards)
    }

    pub(crate) fn new_shard(&self, shards: u32) -> ShardId {
        NameHash::of(self.to_parent, &self.to_name).shard(shards)
    }

    pub(crate) fn commit(&self) -> Request {
        Request::Commit { tx: self.tx, to_parent: self.to_parent, to_name: self.to_name.clone() }
    }

    pub(crate) fn changes_parent(&self) -> bool {
        self.from.parent != self.to_parent
    }
}
