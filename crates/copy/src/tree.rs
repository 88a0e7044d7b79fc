//! Files of any place behind one face, for work on volumes and local paths alike.
//!
//! Everything here blocks the calling thread, and may be called from many threads at once.

use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::sync::Arc;

/// What a copy must know of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits (12).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Whether it may have holes.
    pub is_sparse: bool,
    /// Last access.
    pub atime: Time,
    /// Last change.
    pub mtime: Time,
    /// What tells it from every other file of its tree.
    pub identity: (u64, u64),
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Names {
    /// In no particular order.
    pub entries: Vec<Named>,
    /// Why some may be missing.
    pub trouble: Option<Trouble>,
}

/// An entry of a directory.
#[derive(Debug)]
pub struct Named {
    /// Its name.
    pub name: Vec<u8>,
    /// The kind of its inode.
    pub kind: FileKind,
    /// Its attributes, where the listing brought them along.
    pub meta: Option<Meta>,
}

/// An extended attribute: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Whether a copy keeps an extended attribute of this name: those that people and programs set, and access
/// control lists. The rest belongs to the machine that made it.
pub fn is_kept(name: &[u8]) -> bool {
    [&b"user."[..], b"trusted.", b"system.posix_acl_"].iter().any(|prefix| name.starts_with(prefix))
}

/// An open file to read.
pub trait Source: Send + Sync {
    /// The extended attributes that a copy keeps.
    fn xattrs(&self) -> Outcome<Vec<Xattr>>;
    /// Fills `buffer` from `offset` on; fewer bytes than asked for mean the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize>;
    /// Where the next data are, from `offset` on; `None` if there are only holes up to the end.
    fn next_data(&self, offset: u64) -> Outcome<Option<u64>>;
}

/// A new file. Until [`Sink::finish`] it must not be taken for the whole.
pub trait Sink: Send + Sync {
    /// Gives the empty file this length, all of it a hole.
    fn set_size(&self, bytes: u64) -> Outcome<()>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<()>;
    /// Opens the written bytes, to read them again.
    fn reread(&self) -> Outcome<Box<dyn Source>>;
    /// Gives it an extended attribute, before [`Sink::finish`].
    fn set_xattr(&self, xattr: &Xattr) -> Outcome<()>;
    /// Completes it: its mode, and owner and times where `preserve` is set.
    fn finish(&self, meta: &Meta, preserve: bool) -> Outcome<()>;
    /// Removes the unfinished file.
    fn abandon(&self);
}

/// Files that are named by paths.
pub trait Tree: Send + Sync {
    /// The attributes of a file; `None` if there is none.
    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Option<Meta>>;
    /// What a directory holds.
    fn list(&self, dir: &[u8]) -> Outcome<Names>;
    /// A symlink's target.
    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>>;
    /// Opens a file to read.
    fn open(&self, path: &[u8]) -> Outcome<Box<dyn Source>>;
    /// Makes or replaces a file that is to have these permission bits.
    fn create(&self, path: &[u8], mode: u32) -> Outcome<Box<dyn Sink>>;
    /// Makes a directory that its owner may use; one that is there already will do.
    fn make_dir(&self, path: &[u8]) -> Outcome<()>;
    /// Makes a symlink, in the place of another symlink or file if need be.
    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()>;
    /// The extended attributes of a directory that a copy keeps.
    fn dir_xattrs(&self, path: &[u8]) -> Outcome<Vec<Xattr>>;
    /// Gives a directory an extended attribute.
    fn set_dir_xattr(&self, path: &[u8], xattr: &Xattr) -> Outcome<()>;
    /// Gives a directory its mode, and owner and times where `preserve` is set.
    fn set_dir(&self, path: &[u8], meta: &Meta, preserve: bool) -> Outcome<()>;
    /// The path as it is shown in messages.
    fn shown(&self, path: &[u8]) -> String;
    /// What tells this tree from others: paths of equal trees may name the same file.
    fn id(&self) -> String;
}

/// Permission bits of a copy: those that lend the owner's rights are kept only with the owner.
pub fn copied_mode(mode: u32, owner_kept: bool) -> u32 {
    if owner_kept { mode } else { mode & 0o777 }
}

/// A place with the tree that it is in.
#[derive(Clone)]
pub struct Spot {
    /// The tree.
    pub tree: Arc<dyn Tree>,
    /// The path in it.
    pub path: Vec<u8>,
}

impl Spot {
    /// The attributes of the file; `None` if there is none.
    pub fn stat(&self, follow: bool) -> Outcome<Option<Meta>> {
        self.tree.stat(&self.path, follow)
    }

    /// The attributes of the file; an error if there is none.
    pub fn must_stat(&self, follow: bool) -> Outcome<Meta> {
        let missing = || Trouble::new(Exit::NotFound, format!("{}: no such file or directory", self.shown()));
        self.stat(follow)?.ok_or_else(missing)
    }

    /// As it is shown in messages.
    pub fn shown(&self) -> String {
        self.tree.shown(&self.path)
    }

    /// `name` in this directory.
    pub fn join(&self, name: &[u8]) -> Spot {
        Spot { tree: self.tree.clone(), path: join(&self.path, name) }
    }
}

/// `path` and `name` with exactly one slash between them.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() && !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}
