//! The tables of a shard behind a trait, so that they may live on the heap, in an arena that
//! other processes map, or on disk. What the rows mean to a file system operation is known one
//! floor up; here they are ordered, found, replaced and counted. [`crate::conformance`] is what
//! every implementation has to pass.

use crate::Rare;
use crate::pages::InodePages;
use aze_proto::ids::{Generation, Incarnation, Ino, ServerIndex, TxId};
use aze_proto::{Attr, Backing, FileKind, Name, NameHash, wire_enum, wire_struct};
use std::collections::BTreeMap;
use std::ops::Bound;

wire_struct! {
    /// Where an entry stands: entries are ordered by directory, then hash, then name.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct EntryKey {
        /// The directory.
        pub parent: Ino,
        /// Hash of directory and name; its high bits choose the shard.
        pub hash: NameHash,
        /// The name.
        pub name: Name,
    }
}

impl EntryKey {
    /// The key of a name in a directory.
    pub fn new(parent: Ino, name: Name) -> EntryKey {
        EntryKey { parent, hash: NameHash::of(parent, &name), name }
    }
}

wire_struct! {
    /// What a name leads to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EntryValue {
        /// The inode, here or in another shard.
        pub ino: Ino,
        /// Its kind, which never changes.
        pub kind: FileKind,
    }
}

wire_struct! {
    /// A truncation that not every data server has acknowledged yet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PendingTruncation {
        /// The generation that it began.
        pub generation: Generation,
        /// The length to which it truncates, in bytes.
        pub length: u64,
    }
}

wire_struct! {
    /// An inode at its home. With no links left it is an orphan: readable for as long as it is open.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Inode {
        /// Its attributes.
        pub attr: Attr,
        /// What few inodes have.
        pub rare: Rare,
    }
}

impl Inode {
    /// An inode with attributes only.
    pub fn of(attr: Attr) -> Inode {
        Inode { attr, rare: Rare::default() }
    }

    /// Where it came from, if it came from the volume's backing.
    pub fn backing(&self) -> Option<&Backing> {
        self.rare.get().backing.as_ref()
    }

    /// Whether it is a directory whose names are still in the backing.
    pub fn is_behind(&self) -> bool {
        self.attr.kind == FileKind::Directory && self.backing().is_some_and(|backing| !backing.is_imported)
    }

    /// Changes the note of its origin, if it came from the backing.
    pub(crate) fn change_backing(&mut self, change: impl FnOnce(&mut Backing)) {
        if self.backing().is_some() {
            self.rare.change(|parts| parts.backing.as_mut().map(change));
        }
    }

    /// Bytes of its extended attributes, of a symlink's target, and of its path in the backing.
    pub fn rare_bytes(&self) -> u64 {
        let parts = self.rare.get();
        let xattrs = parts.xattrs.iter().map(|xattr| xattr.name.0.len() + xattr.value.0.len());
        let backing = parts.backing.as_ref().map_or(0, |backing| backing.path.0.len() + size_of::<Backing>());
        (parts.target.len() + xattrs.sum::<usize>() + backing) as u64
    }

    /// The length beyond which a data server that has seen generation `have` must drop its data before it serves the
    /// generation of now: the least length of all truncations since. `u64::MAX` if there was none that it could have
    /// missed.
    pub fn truncated_since(&self, have: Generation) -> u64 {
        self.rare
            .get()
            .truncations
            .iter()
            .filter(|truncation| truncation.generation > have)
            .map(|truncation| truncation.length)
            .min()
            .unwrap_or(u64::MAX)
    }
}

wire_enum! {
    /// Which end of a rename an entry is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Role {
        /// The old name.
        1 = Source,
        /// The new name.
        2 = Destination,
        /// The first name of an exchange: this inode gets it, and had its name in this directory.
        3 = ExchangeSource { ino: Ino, kind: FileKind, parent: Ino },
        /// The second name of an exchange.
        4 = ExchangeDestination,
    }
}

wire_struct! {
    /// A transaction holds an entry, present or absent: no request reads or changes it until the
    /// transaction has ended.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Lock {
        /// The transaction.
        pub tx: TxId,
        /// Which end of it the entry is.
        pub role: Role,
        /// The server that decides it.
        pub coordinator: ServerIndex,
        /// The coordinator's incarnation: one that has restarted empty knows nothing of it.
        pub incarnation: Incarnation,
        /// The inode that moves.
        pub ino: Ino,
        /// Its kind.
        pub kind: FileKind,
    }
}

/// Ordered tables of entries, inodes and locks. Nothing here blocks or fails; a full device is
/// the business of the caller that makes room before it applies an operation.
pub trait Tables {
    /// What a name leads to.
    fn entry(&self, key: &EntryKey) -> Option<EntryValue>;
    /// Sets a name's entry; gives the entry before.
    fn insert_entry(&mut self, key: &EntryKey, value: EntryValue) -> Option<EntryValue>;
    /// Removes a name; gives its entry.
    fn remove_entry(&mut self, key: &EntryKey) -> Option<EntryValue>;
    /// Entries of directory `parent` whose hash is at least `hash_min`, by hash, then name.
    fn entries_of(&self, parent: Ino, hash_min: NameHash) -> impl Iterator<Item = (NameHash, &Name, EntryValue)>;
    /// All entries in the order of their keys.
    fn entries(&self) -> impl Iterator<Item = (&EntryKey, EntryValue)>;
    /// The entries behind a key, which need not be there, in their order.
    fn entries_behind(&self, key: &EntryKey) -> impl Iterator<Item = (&EntryKey, EntryValue)>;
    /// Number of entries.
    fn entry_count(&self) -> u64;

    /// An inode.
    fn inode(&self, ino: Ino) -> Option<&Inode>;
    /// Sets an inode under its own number; gives the one replaced. No two have the same [`Ino::issue`].
    fn insert_inode(&mut self, inode: Inode) -> Option<Inode>;
    /// Changes an inode in place; `None` if there is none. `change` must not change its number.
    fn update_inode<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Inode) -> R) -> Option<R>;
    /// Removes an inode.
    fn remove_inode(&mut self, ino: Ino) -> Option<Inode>;
    /// All inodes in the order in which their numbers were issued ([`Ino::issue`]).
    fn inodes(&self) -> impl Iterator<Item = &Inode>;
    /// The inodes whose numbers were issued from this one on, in that order.
    fn inodes_from(&self, from: Ino) -> impl Iterator<Item = &Inode>;
    /// Number of inodes.
    fn inode_count(&self) -> u64;
    /// Bytes of rare parts of any length, see [`Inode::rare_bytes`].
    fn rare_bytes(&self) -> u64;

    /// Who holds an entry.
    fn lock(&self, key: &EntryKey) -> Option<&Lock>;
    /// Lets a transaction lock an entry; gives the lock replaced.
    fn insert_lock(&mut self, key: &EntryKey, lock: Lock) -> Option<Lock>;
    /// Ends a lock.
    fn remove_lock(&mut self, key: &EntryKey) -> Option<Lock>;
    /// All locks in the order of their keys.
    fn locks(&self) -> impl Iterator<Item = (&EntryKey, &Lock)>;
}

/// Tables on the heap.
#[derive(Clone, Debug, Default)]
pub struct PlainTables {
    pub(crate) entries: BTreeMap<EntryKey, EntryValue>,
    pub(crate) inodes: InodePages,
    pub(crate) rare_bytes: u64,
    pub(crate) locks: BTreeMap<EntryKey, Lock>,
}

/// The least key of a directory with at least this hash: the byte 1 is the least name there is.
fn first_key(parent: Ino, hash: NameHash) -> EntryKey {
    let name = Name::new(&[1]).expect("one byte that is neither NUL, dot nor slash is a name");
    EntryKey { parent, hash, name }
}

impl Tables for PlainTables {
    fn entry(&self, key: &EntryKey) -> Option<EntryValue> {
        self.entries.get(key).copied()
    }

    fn insert_entry(&mut self, key: &EntryKey, value: EntryValue) -> Option<EntryValue> {
        self.entries.insert(key.clone(), value)
    }

    fn remove_entry(&mut self, key: &EntryKey) -> Option<EntryValue> {
        self.entries.remove(key)
    }

    fn entries_of(&self, parent: Ino, hash_min: NameHash) -> impl Iterator<Item = (NameHash, &Name, EntryValue)> {
        self.entries
            .range((Bound::Included(first_key(parent, hash_min)), Bound::Unbounded))
            .take_while(move |(key, _)| key.parent == parent)
            .map(|(key, value)| (key.hash, &key.name, *value))
    }

    fn entries(&self) -> impl Iterator<Item = (&EntryKey, EntryValue)> {
        self.entries.iter().map(|(key, value)| (key, *value))
    }

    fn entries_behind(&self, key: &EntryKey) -> impl Iterator<Item = (&EntryKey, EntryValue)> {
        self.entries.range((Bound::Excluded(key), Bound::Unbounded)).map(|(key, value)| (key, *value))
    }

    fn entry_count(&self) -> u64 {
        self.entries.len() as u64
    }

    fn inode(&self, ino: Ino) -> Option<&Inode> {
        self.inodes.get(ino)
    }

    fn insert_inode(&mut self, inode: Inode) -> Option<Inode> {
        let bytes = inode.rare_bytes();
        let before = self.inodes.insert(inode);
        self.rare_bytes = self.rare_bytes + bytes - before.as_ref().map_or(0, Inode::rare_bytes);
        before
    }

    fn update_inode<R>(&mut self, ino: Ino, change: impl FnOnce(&mut Inode) -> R) -> Option<R> {
        let inode = self.inodes.get_mut(ino)?;
        let before = inode.rare_bytes();
        let result = change(inode);
        self.rare_bytes = self.rare_bytes + inode.rare_bytes() - before;
        Some(result)
    }

    fn remove_inode(&mut self, ino: Ino) -> Option<Inode> {
        let removed = self.inodes.remove(ino);
        self.rare_bytes -= removed.as_ref().map_or(0, Inode::rare_bytes);
        removed
    }

    fn inodes(&self) -> impl Iterator<Item = &Inode> {
        self.inodes.iter()
    }

    fn inodes_from(&self, from: Ino) -> impl Iterator<Item = &Inode> {
        self.inodes.iter_from(from)
    }

    fn inode_count(&self) -> u64 {
        self.inodes.len() as u64
    }

    fn rare_bytes(&self) -> u64 {
        self.rare_bytes
    }

    fn lock(&self, key: &EntryKey) -> Option<&Lock> {
        // Nearly always nothing is locked: the check must cost nothing then.
        if self.locks.is_empty() { None } else { self.locks.get(key) }
    }

    fn insert_lock(&mut self, key: &EntryKey, lock: Lock) -> Option<Lock> {
        self.locks.insert(key.clone(), lock)
    }

    fn remove_lock(&mut self, key: &EntryKey) -> Option<Lock> {
        self.locks.remove(key)
    }

    fn locks(&self) -> impl Iterator<Item = (&EntryKey, &Lock)> {
        self.locks.iter()
    }
}
