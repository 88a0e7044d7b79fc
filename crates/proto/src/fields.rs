//! The fields of those requests that have many, which a handler gets as one value. On the wire they stand in this order.

use crate::attr::{FileKind, Identity};
use crate::ids::{Generation, Incarnation, Ino, MapEpoch, ServerIndex, SlotIndex, TxId};
use crate::name::Name;
use crate::place::Layout;
use crate::predicate::Predicate;
use crate::wire::Blob;
use crate::wire_struct;

wire_struct! {
    /// A file of any kind but a hard link, to be made.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Create {
        /// The directory.
        pub parent: Ino,
        /// The name in it.
        pub name: Name,
        /// The kind of the file.
        pub kind: FileKind,
        /// Permission bits, the caller's umask already applied; from bit 16 on those that it has
        /// taken, since it does not count in a directory with a default access control list.
        pub mode: u32,
        /// Device number for device files.
        pub rdev: u32,
        /// A symlink's target.
        pub target: Blob,
        /// Fail if the name exists (`O_EXCL`); always meant for kinds other than `File`.
        pub exclusive: bool,
        /// Registers an open under this handle number of the session.
        pub open: Option<u64>,
        /// That open is for writing, too.
        pub write: bool,
        /// Base-2 logarithm of the chunk size; 0 takes the directory's.
        pub chunk_bits: u8,
        /// A directory that keeps all that is made in it beside itself; for kind `Directory` only.
        pub private: bool,
    }
}

wire_struct! {
    /// Where a payload is written.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Write {
        /// The file.
        pub ino: Ino,
        /// The generation of its data.
        pub generation: Generation,
        /// The map epoch at which it was made.
        pub born: MapEpoch,
        /// Where its chunks are.
        pub layout: Layout,
        /// Index of the chunk.
        pub chunk: u64,
        /// First byte within the chunk.
        pub offset: u32,
        /// One checksum for each piece within a block, see `sum::piece_sums`.
        pub sums: Vec<u32>,
    }
}

impl Write {
    /// Whether the chunk lies beside the file's inode, so that the write changes both.
    pub fn is_beside_inode(&self) -> bool {
        self.chunk == 0 && self.layout.is_beside(self.ino)
    }
}

wire_struct! {
    /// Which bytes of a chunk are read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Read {
        /// The file.
        pub ino: Ino,
        /// The generation of its data.
        pub generation: Generation,
        /// The map epoch at which it was made.
        pub born: MapEpoch,
        /// Where its chunks are.
        pub layout: Layout,
        /// Index of the chunk.
        pub chunk: u64,
        /// First byte within the chunk.
        pub offset: u32,
        /// Number of bytes; 0: the chunk is read from the backing if there is room for it, and none of its bytes are sent.
        pub len: u32,
    }
}

wire_struct! {
    /// Which bytes of a chunk get their memory ahead of writes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Reserve {
        /// The file.
        pub ino: Ino,
        /// The generation of its data.
        pub generation: Generation,
        /// The map epoch at which it was made.
        pub born: MapEpoch,
        /// Where its chunks are.
        pub layout: Layout,
        /// Index of the chunk.
        pub chunk: u64,
        /// First byte within the chunk.
        pub offset: u32,
        /// Number of bytes; 0: the chunk is read from the backing if it is not here, and stays.
        pub len: u32,
        /// All of the range becomes zeros, also where something is stored.
        pub zero: bool,
        /// Base-2 logarithm of the file's chunk size.
        pub chunk_bits: u8,
    }
}

wire_struct! {
    /// Which bytes of a file become a hole.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Punch {
        /// The file.
        pub ino: Ino,
        /// The generation of its data.
        pub generation: Generation,
        /// The map epoch at which it was made.
        pub born: MapEpoch,
        /// Where its chunks are.
        pub layout: Layout,
        /// Index of a chunk of the shard that is meant.
        pub chunk: u64,
        /// First byte within the file.
        pub start: u64,
        /// The byte after the last one.
        pub end: u64,
        /// Base-2 logarithm of the file's chunk size.
        pub chunk_bits: u8,
    }
}

wire_struct! {
    /// Where data or a hole begin on one server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Seek {
        /// The file.
        pub ino: Ino,
        /// The generation of its data.
        pub generation: Generation,
        /// The map epoch at which it was made.
        pub born: MapEpoch,
        /// Where its chunks are.
        pub layout: Layout,
        /// From which byte of the file on.
        pub offset: u64,
        /// A hole is sought, not data.
        pub hole: bool,
        /// Base-2 logarithm of the file's chunk size.
        pub chunk_bits: u8,
    }
}

wire_struct! {
    /// Whose changes of data one server is asked to count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CountChanges {
        /// The file.
        pub ino: Ino,
        /// The generation of its data.
        pub generation: Generation,
        /// The map epoch at which it was made.
        pub born: MapEpoch,
        /// Where its chunks are.
        pub layout: Layout,
        /// How many chunks, from chunk 0 on, may have data; at least 1.
        pub chunks: u64,
    }
}

wire_struct! {
    /// A search through a server's entries of many directories.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Scan {
        /// The directories.
        pub dirs: Vec<Ino>,
        /// Which entries match.
        pub predicate: Predicate,
        /// Report matching entries (find).
        pub find: bool,
        /// Sum up what the directories hold (du).
        pub usage: bool,
        /// In which directory the last page ended: index in `dirs`.
        pub after_dir: u32,
        /// The cookie at which it ended there.
        pub after: u64,
        /// The most entries of a page.
        pub limit: u32,
        /// The slots in which to look; all of the server's if none is named.
        pub slots: Vec<SlotIndex>,
    }
}

wire_struct! {
    /// A rename, for the server of the new name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Prepare {
        /// The transaction.
        pub tx: TxId,
        /// The server that decides it.
        pub coordinator: ServerIndex,
        /// That server's incarnation.
        pub incarnation: Incarnation,
        /// The directory of the new name.
        pub to_parent: Ino,
        /// The new name.
        pub to_name: Name,
        /// The inode that gets it.
        pub ino: Ino,
        /// The kind of that inode.
        pub kind: FileKind,
        /// Fail if the new name exists.
        pub no_replace: bool,
        /// Who renames: the new directory's rights are checked where it is known.
        pub identity: Identity,
    }
}

wire_struct! {
    /// An exchange, for the server of the second name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PrepareExchange {
        /// The transaction.
        pub tx: TxId,
        /// The server that decides it.
        pub coordinator: ServerIndex,
        /// That server's incarnation.
        pub incarnation: Incarnation,
        /// The directory of the second name.
        pub to_parent: Ino,
        /// The second name.
        pub to_name: Name,
        /// The inode that gets it.
        pub ino: Ino,
        /// The kind of that inode.
        pub kind: FileKind,
        /// Who exchanges: the second directory's rights are checked where it is known.
        pub identity: Identity,
    }
}
