//! What messages say of names: pages of listings and searches, and what a rename would replace.

use crate::attr::{Attr, FileKind};
use crate::ids::Ino;
use crate::name::{Name, NameHash};
use crate::wire_struct;

wire_struct! {
    /// An entry in a listing.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Listed {
        /// Its cookie.
        pub hash: NameHash,
        /// Its name.
        pub name: Name,
        /// The inode that it leads to.
        pub ino: Ino,
        /// The inode's kind.
        pub kind: FileKind,
        /// If asked for and kept here.
        pub attr: Option<Attr>,
    }
}

wire_struct! {
    /// An entry found by a scan.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Found {
        /// Index of its directory in the request.
        pub dir: u32,
        /// Its name.
        pub name: Name,
        /// The inode that it leads to.
        pub ino: Ino,
        /// The inode's kind.
        pub kind: FileKind,
        /// Absent where the inode lives elsewhere: the asker fetches it and decides.
        pub attr: Option<Attr>,
    }
}

wire_struct! {
    /// A directory that a scan came across.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SubDir {
        /// Index of its parent in the request.
        pub dir: u32,
        /// Its name.
        pub name: Name,
        /// Its inode number.
        pub ino: Ino,
    }
}

wire_struct! {
    /// What files with one link, kept on one server, add up to in one directory.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Usage {
        /// Index of the directory in the request.
        pub dir: u32,
        /// Files of every kind but directories.
        pub files: u64,
        /// Sum of their lengths in bytes.
        pub bytes: u64,
    }
}

wire_struct! {
    /// Where a scan goes on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ScanPlace {
        /// Index of the directory.
        pub dir: u32,
        /// Cookie within it.
        pub after: u64,
    }
}

wire_struct! {
    /// What a rename would replace.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Victim {
        /// Its inode number.
        pub ino: Ino,
        /// Its kind.
        pub kind: FileKind,
    }
}
