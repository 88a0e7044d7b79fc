//! What a volume remembers of the directory that it lies over: of each inode that came from there where it was, and what
//! it was then.

use crate::fields::CountChanges;
use crate::ids::{Generation, Ino, ServerIndex, Time};
use crate::wire::Blob;
use crate::xattr::Xattr;
use crate::{FileKind, Name, wire_struct};

wire_struct! {
    /// What tells a file of the backing apart from any other, and from itself before or after a change.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct BackingIdentity {
        /// Its number in its file system.
        pub inode: u64,
        /// Its length in bytes.
        pub size: u64,
        /// When its data were last changed, in nanoseconds since 1970, two's complement.
        pub mtime_ns: u64,
        /// When anything of it was last changed, in the same way.
        pub ctime_ns: u64,
    }
}

wire_struct! {
    /// Where an inode came from, kept at its home.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Backing {
        /// Its path below the backing's root when it was imported; empty for the root itself.
        pub path: Blob,
        /// The object found there.
        pub identity: BackingIdentity,
        /// Bytes of a file from its beginning on that are the backing's unless they were written in the volume: the
        /// least of the backing's length and all lengths to which the file was truncated.
        pub length: u64,
        /// All names of a directory have been imported.
        pub is_imported: bool,
        /// The file's data may have been changed in the volume.
        pub data_changed: bool,
        /// Attributes have been changed in the volume.
        pub attributes_changed: bool,
        /// The directory of the volume into which it was imported: there, the last part of its path is its first name.
        pub parent: Ino,
        /// How often a stage has put the volume's bytes into the backing, so that another object there is its origin now.
        pub origin: u32,
        /// Not all servers with data of it have confirmed since then that theirs are those bytes.
        pub is_settling: bool,
    }
}

impl Backing {
    /// Whether the volume has nothing of the inode's own data and attributes that its backing has not. Its names, and what
    /// is in a directory, are another question.
    pub fn is_clean(&self) -> bool {
        !self.data_changed && !self.attributes_changed && !self.is_settling
    }

    /// The last part of its path: the name under which it was imported. Empty for the root.
    pub fn first_name(&self) -> &[u8] {
        self.path.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

wire_struct! {
    /// How often the data of a file had changed on one server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct ServerChanges {
        /// The server.
        pub server: ServerIndex,
        /// The start of that server since which it counts.
        pub life: u64,
        /// How often counters of its shards have begun anew.
        pub wraps: u64,
        /// Changes of the file's data.
        pub changes: u64,
    }
}

wire_struct! {
    /// What a stage has put into the backing, and the version of the file that it has read for it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Staged {
        /// The file.
        pub ino: Ino,
        /// The latest claim to the file: it is refused if there was another one since.
        pub claim: u64,
        /// The origin that it had before: it is refused if it has another one by now.
        pub origin: u32,
        /// The generation of the version that was read.
        pub generation: Generation,
        /// Its length.
        pub size: u64,
        /// Its change time.
        pub ctime: Time,
        /// How many chunks might have data.
        pub chunks: u64,
        /// How often its data had changed, by server.
        pub changes: Vec<ServerChanges>,
        /// The directory of the volume in which it has the name that is the last part of `path`.
        pub parent: Ino,
        /// Where the backing has it, below the backing's root.
        pub path: Blob,
        /// The object there.
        pub identity: BackingIdentity,
    }
}

wire_struct! {
    /// A file's home asks a server of its data: if these have not changed since the version that the backing has, they are
    /// copies from now on.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Settle {
        /// Whose data, and how the server counts their changes.
        pub count: CountChanges,
        /// The count that it must have.
        pub changes: ServerChanges,
        /// What the home has noted of its origin.
        pub backing: Backing,
        /// Base-2 logarithm of its chunk size.
        pub chunk_bits: u8,
    }
}

wire_struct! {
    /// A name of the backing that does not lead in the volume any more to the object imported under it: it was removed,
    /// renamed away, or replaced. Kept by the server of the name until the backing has followed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Gone {
        /// The directory of the volume into which it was imported, and which may be gone, too.
        pub parent: Ino,
        /// Its name there.
        pub name: Name,
        /// The inode to which it led, which may have other names, or be gone.
        pub ino: Ino,
        /// Kind of that inode.
        pub kind: FileKind,
        /// Its path below the backing's root.
        pub path: Blob,
        /// The object found there.
        pub identity: BackingIdentity,
        /// When it went; with the name, it tells this record from a later one.
        pub since: Time,
    }
}

wire_struct! {
    /// A name of a directory of the backing, with all that the volume takes over of it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Imported {
        /// The name.
        pub name: Name,
        /// Kind of file.
        pub kind: FileKind,
        /// Permission bits with set-id and sticky (12 bits).
        pub mode: u32,
        /// Owner.
        pub uid: u32,
        /// Owning group.
        pub gid: u32,
        /// Device number of a device file, else 0.
        pub rdev: u32,
        /// When it was last read.
        pub atime: Time,
        /// When its data were last changed.
        pub mtime: Time,
        /// A symbolic link's target.
        pub target: Blob,
        /// Extended attributes and access control lists.
        pub xattrs: Vec<Xattr>,
        /// Where it came from.
        pub backing: Backing,
    }
}
