//! A directory of another file system over which a volume lies: looked at and read, never written.
//!
//! Any file system may be slow, or never answer. So every operation is a future, and in the real world threads of the
//! backing's own do it (`real::backing`); only those wait with it.

use crate::Boxed;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Threads of one backing: as many operations are at work at the same time, others wait in their order.
pub const BACKING_THREADS: usize = 8;

/// What tells a file apart from any other, and from itself before or after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its number in its file system. That of the file system is not compared: nodes give a mount different ones.
    pub inode: u64,
    /// Its length in bytes.
    pub size: u64,
    /// When its data were last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// When anything of it was last changed, in nanoseconds since 1970.
    pub ctime_ns: i64,
}

/// One object of the backing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its name; empty for the object that was asked about.
    pub name: Vec<u8>,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// When it was last read, in nanoseconds since 1970.
    pub atime_ns: i64,
    /// The identity of the object.
    pub identity: Identity,
    /// How many names it has; of a directory the file system's count.
    pub links: u64,
    /// A symbolic link's target.
    pub target: Vec<u8>,
    /// Names and values of its extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why the backing gave no answer, or another one than was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingError {
    /// It is not there any more, or another one, or has changed.
    Changed(String),
    /// The server's user may not.
    Denied(String),
    /// What the system said.
    Failed(String),
}

impl fmt::Display for BackingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackingError::Changed(why) | BackingError::Denied(why) | BackingError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for BackingError {}

/// What an operation on a backing gives.
pub type BackingResult<T> = Result<T, BackingError>;

/// A directory tree of another file system. Paths are below its root, without a slash at either end; empty for the root.
pub trait Backing: Send + Sync {
    /// Where its root is, for people.
    fn root(&self) -> &str;

    /// Looks at the object under a path; symbolic links are not followed at its end.
    fn look(&self, path: Vec<u8>) -> Boxed<'_, BackingResult<Found>>;

    /// The names of a directory, if it is still the one of this number.
    fn list(&self, path: Vec<u8>, identity: Identity) -> Boxed<'_, BackingResult<Arc<dyn Names>>>;

    /// `len` bytes of a file at `offset`, fewer only at its end, if it is this file before and after they were read.
    fn read(&self, path: Vec<u8>, identity: Identity, offset: u64, len: usize) -> Boxed<'_, BackingResult<Vec<u8>>>;

    /// The next bytes of a file, at `offset` or behind it, that may be other than zeros, as far as they go without a hole; empty, at
    /// the largest offset, if there are none. All if the file system knows of no holes. The file is this one before and after
    /// the look.
    fn next_data(&self, path: Vec<u8>, identity: Identity, offset: u64) -> Boxed<'_, BackingResult<Range<u64>>>;
}

/// The names of a directory, page by page.
pub trait Names: Send + Sync {
    /// The next `count` names, in no order, with all that is known of them; none at the end. A name that has gone
    /// since it was listed is left out.
    fn next(&self, count: usize) -> Boxed<'_, BackingResult<Vec<Found>>>;
}
