//! How an operation ends that gives no result.

use aze_client::WayNote;
use aze_handles::Error;
use aze_proto::error::Failure;
use std::io;

/// Why an operation gives no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It has failed.
    Failed(Error),
    /// A symbolic link leads out of the volume: the system call goes on with this path.
    Leaves(Vec<u8>),
    /// The same for the second of two paths.
    SecondLeaves(Vec<u8>),
}

/// The outcome of an operation.
pub type Result<T> = std::result::Result<T, Fault>;

/// An error with a number of errno(3) alone: the program knows its call.
pub fn errno(number: i32) -> Fault {
    Fault::Failed(Error::new(number, String::new()))
}

/// An error of the caller's, with its story.
pub fn failed(number: i32, text: impl Into<String>) -> Fault {
    Fault::Failed(Error::new(number, text))
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Failed(error)
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Fault {
        Fault::Failed(failure.into())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Failed(Error::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string()))
    }
}

/// What became of an operation on a path: it may have led out of the volume.
pub fn unless_it_left<T>(note: &WayNote, done: Result<T>) -> Result<T> {
    match done {
        Err(fault) => Err(note.leaves_to().map_or(fault, Fault::Leaves)),
        done => done,
    }
}
