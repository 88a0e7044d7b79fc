//! What copying a tree means: which files are found, how they are divided in parts, when a copy is whole, and what
//! stays behind if it fails.
//!
//! It alone knows that a file has another name until all of it is copied, compared if asked for, and has its
//! attributes; where holes stay holes; and that a directory gets its mode and times last. Where files are it does not
//! know: it works on a [`tree::Tree`] and brings one, the files of this machine ([`LocalTree`]). The files of a volume
//! as a tree are with the rooms that may use the client.
//!
//! [`stage`] is a copy with proof: the bytes that were read were there at one moment, the bytes that were written were read
//! back from their storage, and a signed receipt says so. It goes on where an earlier attempt was broken off.
//!
//! One thread walks the sources, makes directories and feeds a bounded queue; other threads copy. Nothing is printed:
//! a [`Watch`] hears how it goes.

mod local;
pub mod stage;
pub mod stripes;
pub mod tree;
mod walk;
pub mod warm;
mod workers;

pub use local::LocalTree;
pub use walk::{Copier, How};

use aze_words::exit::Trouble;
use tree::Spot;

/// Hears how a copy goes, from all its threads, and may have it end early.
pub trait Watch: Send + Sync {
    /// Whether the copy is to end: unfinished files are removed, and none is begun.
    fn is_over(&self) -> bool;
    /// So many bytes more than was known are to be copied.
    fn expect(&self, bytes: u64);
    /// So many more bytes are copied.
    fn copied(&self, bytes: u64);
    /// A file or symbolic link is copied.
    fn file(&self, from: &Spot, to: &Spot);
    /// A directory is made.
    fn dir(&self);
    /// A copy goes on without a part, such as an extended attribute that its place cannot keep.
    fn lacks(&self, trouble: &Trouble);
    /// A file, link or directory could not be copied.
    fn failed(&self, trouble: &Trouble);
    /// All work up to here is on the device, and the next step concerns another file: a moment at which the simulation
    /// may end the process.
    fn step(&self) {}
    /// A thread comes by between two pieces of its work, none longer than a chunk. It may be held up while others need the cores.
    fn turn(&self) {}
}
