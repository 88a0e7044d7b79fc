//! Answers to a client that checks a volume in use: rows of their tables, a few at a
//! time, and what of their data does not match its checksums. What hangs together over servers is
//! compared by the asker.

use crate::attr::FileKind;
use crate::ids::{Ino, ShardId};
use crate::name::{Name, NameHash};
use crate::wire_struct;

/// Inodes that one request may single out.
pub const CHECK_INODES_MAX: usize = 16_384;

wire_struct! {
    /// An inode at its home.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CheckedInode {
        /// Its number.
        pub ino: Ino,
        /// Its kind.
        pub kind: FileKind,
        /// Names that it counts; of no meaning for directories.
        pub links: u32,
        /// Of a directory: where it believes to be.
        pub parent: Ino,
        /// It is open.
        pub is_open: bool,
        /// A name is counted that may yet turn out not to have been made.
        pub is_under_way: bool,
    }
}

wire_struct! {
    /// A name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CheckedEntry {
        /// The inode that it leads to.
        pub ino: Ino,
        /// The kind of that, as the name has it.
        pub kind: FileKind,
        /// Its directory.
        pub parent: Ino,
        /// It is not where its name would be looked for.
        pub is_misplaced: bool,
        /// The name itself, if inodes were singled out.
        pub name: Option<Name>,
    }
}

wire_struct! {
    /// A name in a server's tables.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct EntrySpot {
        /// Its directory.
        pub parent: Ino,
        /// Its hash.
        pub hash: NameHash,
        /// Itself.
        pub name: Name,
    }
}

wire_struct! {
    /// Where a look at a server's names goes on.
    #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct EntryPlace {
        /// In this shard, or the first one after it.
        pub shard: ShardId,
        /// Behind this name.
        pub after: Option<EntrySpot>,
    }
}

wire_struct! {
    /// Where a look at a server's data goes on: at this unit.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub struct DataPlace {
        /// In this shard, or the first one after it.
        pub shard: ShardId,
        /// The file.
        pub ino: Ino,
        /// Its chunk.
        pub chunk: u64,
        /// Within the chunk.
        pub unit: u16,
    }
}

wire_struct! {
    /// A chunk of a file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct ChunkPlace {
        /// The file.
        pub ino: Ino,
        /// Which chunk.
        pub chunk: u64,
    }
}

wire_struct! {
    /// Stored data that differ from the written bytes, or cannot be read.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DamagedData {
        /// The chunk.
        pub place: ChunkPlace,
        /// The first byte of the first block of it that is wrong.
        pub byte: u64,
        /// Why it cannot be read, if it does not merely differ.
        pub unreadable: Option<String>,
        /// Where it is stored, for people.
        pub stored: String,
    }
}
