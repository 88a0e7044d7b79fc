//! Waiting without a thread: an attempt that cannot go on ends with a `Wait`, the task that
//! carries the request waits for that and attempts again.

use crate::chunks::state::backed::Lack;
use aze_meta::EntryKey;
use aze_proto::{Failure, Ino, ShardId};
use std::ops::Range;

/// What must change before an attempt can succeed.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    /// The directory's stub is not here.
    Stub(Ino),
    /// The directory may be on its way out.
    Closing(Ino),
    /// A rename or removal has the entry locked.
    Entry(ShardId, EntryKey),
    /// The rename that has made the entry may not be over.
    Unresolved(EntryKey),
    /// The owner of an inode that lives elsewhere must be known (sticky directories).
    Owner(Ino),
    /// This server may have missed a truncation.
    Truncation(ShardId, Ino),
    /// Memory is full, and the frames to be overwritten are being read.
    Readers,
    /// Units of a chunk are on the disk only.
    Cold(ShardId, Ino, u64, Range<usize>),
    /// Memory is full: some of it must go to the disk, or else it fails as told.
    Room(Failure),
    /// There is no more room: copies of the backing must go, or else it fails as told.
    Eviction(Failure),
    /// A session has frozen the file.
    Frozen(Ino),
    /// The names of a directory are still in the volume's backing.
    Import(Ino),
    /// Data of a file are, or what its home knows of them is not here.
    Backing(Lack),
    /// Where data of a file are in the backing, from a byte on, has to be known.
    Run(Lack, u64),
    /// An append to the file is under way.
    Turn(Ino),
}

/// Why an attempt did not succeed.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It never will.
    Fail(Failure),
    /// It will after this.
    Wait(Wait),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Fail(failure)
    }
}

impl From<aze_proto::Code> for Stop {
    fn from(code: aze_proto::Code) -> Stop {
        Stop::Fail(code.into())
    }
}

/// The result of one attempt.
pub(crate) type Attempt<T> = Result<T, Stop>;
