//! Directories and files of persistent storage, as a task sees them.
//!
//! Files are of two kinds. Those that grow at their end are all that a journal needs: a later torn write cannot harm
//! synced bytes. Those of a fixed length have their room from the beginning and are read and written at any place.
//! Every operation is a future: in the real world a thread of the directory's own does it (`real::disk`), so that a
//! slow disk holds up no task that does not wait for it, or it is memory that keeps its contents (`mapped`); in the
//! simulated one it takes a drawn time, and unsynced writes may be lost, torn or kept out of order when the power is
//! cut (`sim::disk`).

use crate::{Boxed, Task};
use std::fmt;
use std::sync::Arc;

/// Why an operation on persistent storage failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskError {
    /// There is no such file.
    NotFound(String),
    /// Another process uses the directory.
    InUse(String),
    /// No room is left.
    Full(String),
    /// The file or directory cannot be used, and is not touched.
    Unfit(String),
    /// Anything else; the text says what the system said.
    Failed(String),
}

impl fmt::Display for DiskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskError::NotFound(why)
            | DiskError::InUse(why)
            | DiskError::Full(why)
            | DiskError::Unfit(why)
            | DiskError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for DiskError {}

/// What an operation on persistent storage gives.
pub type DiskResult<T> = Result<T, DiskError>;

/// A directory that this process uses alone until the handle is dropped.
pub trait Dir: Send + Sync {
    /// The names of its files, in their order.
    fn list(&self) -> Boxed<'_, DiskResult<Vec<String>>>;
    /// Makes an empty file; one of that name that was there before is emptied.
    fn create<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>>;
    /// As [`Dir::create`], for a file to which little is added at a time and much of it synced: its room
    /// is set aside in steps, so that it may end in zeros that were never written.
    fn create_log<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>>;
    /// Opens a file that is there.
    fn open<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>>;
    /// Gives a file another name, replacing the file that had it.
    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> Boxed<'a, DiskResult<()>>;
    /// Removes a file; one that is not there is no error.
    fn remove<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<()>>;
    /// Makes a file of a fixed length, all zeros, for which the room is set aside at once; one of that
    /// name that was there before is replaced. Without room it is not made.
    fn create_fixed<'a>(&'a self, name: &'a str, bytes: u64) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>>;
    /// Opens a file of a fixed length that is there.
    fn open_fixed<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>>;
    /// Bytes that its files could still take.
    fn free_bytes(&self) -> Boxed<'_, DiskResult<u64>>;
    /// Makes earlier creations, renames and removals of files durable.
    fn sync(&self) -> Boxed<'_, DiskResult<()>>;
    /// Runs a task where the files that grow are written, so that it need not be woken for each
    /// operation on them. It waits for nothing else.
    fn spawn(&self, task: Task);
    /// For people: what keeps it, if that is not a directory of the system's.
    fn medium(&self) -> Option<String> {
        None
    }
    /// For people: oddities that do no harm.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A file that grows at its end.
pub trait DiskFile: Send + Sync {
    /// Its length in bytes.
    fn size(&self) -> Boxed<'_, DiskResult<u64>>;
    /// Bytes from `offset` on, at most `len`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>>;
    /// Adds bytes at the end. When it resolves, the system has them: they survive this process, not
    /// yet a power cut. After an error any part of them may be there.
    fn append(&self, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>>;
    /// The same on this thread, where that takes no longer than to copy the bytes.
    ///
    /// # Errors
    /// The bytes, none of them added, where it might take longer.
    fn append_now(&self, bytes: Vec<u8>) -> Result<DiskResult<()>, Vec<u8>>;
    /// Makes the bytes durable. After an error nothing is known of them, and trying again proves nothing.
    fn sync(&self) -> Boxed<'_, DiskResult<()>>;
}

/// A file of a fixed length.
pub trait FixedFile: Send + Sync {
    /// Its length in bytes.
    fn size(&self) -> Boxed<'_, DiskResult<u64>>;
    /// Bytes from `offset` on, at most `len`; fewer only at the end of the file.
    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>>;
    /// The same from the disk itself, where the system can be told to drop its cached pages of the range: before the
    /// read, and again after it.
    fn read_disk_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.read_at(offset, len)
    }
    /// Writes at a place within its length. When it resolves, the system has the bytes. After an error,
    /// or a power cut before a sync, any part of the place may have them.
    fn write_at(&self, offset: u64, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>>;
    /// Makes earlier writes durable. After an error nothing is known of them.
    fn sync(&self) -> Boxed<'_, DiskResult<()>>;
}
