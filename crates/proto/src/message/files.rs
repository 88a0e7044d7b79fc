//! What messages say of files: their opens, leases on them, and how they are kept.

use crate::ids::{Generation, Ino};
use crate::{wire_enum, wire_struct};

wire_enum! {
    /// What a volume keeps through a power cut.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Durability {
        /// Nothing.
        1 = None,
        /// Data and names that were synced.
        2 = Fsync,
        /// The same, and data that were written through files which have been closed.
        3 = Close,
    }
}

wire_struct! {
    /// A file that is there.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FileNow {
        /// Its inode number.
        pub ino: Ino,
        /// Its length in bytes.
        pub size: u64,
        /// Its generation.
        pub generation: Generation,
        /// Base-2 logarithm of its chunk size.
        pub chunk_bits: u8,
    }
}

wire_struct! {
    /// A server's stub of a directory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HeldStub {
        /// The directory.
        pub dir: Ino,
        /// Checksum of the rights that it states ([`Stub::rights`](crate::Stub::rights)); 0 while it is being fetched.
        pub rights: u64,
        /// The round of the closing that it waits for; 0 if it is not being closed.
        pub round: u64,
    }
}

wire_struct! {
    /// A lease that ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Recall {
        /// Whose attributes have changed.
        pub ino: Ino,
        /// A name leads there no longer.
        pub names: bool,
    }
}

wire_struct! {
    /// One open of one session.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Handle {
        /// The file.
        pub ino: Ino,
        /// The session's number for the open.
        pub handle: u64,
    }
}
