//! The store's errors, and their codes on the wire.

use aze_proto::ids::{Generation, Ino};
use aze_proto::{Code, Failure, Refusal};
use std::fmt;

/// Why a chunk was not read or written. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The file has been truncated since: this is its generation now.
    GenerationStale(Generation),
    /// The request comes from a newer generation than this shard has seen: the server asks the
    /// file's home for the truncations since, calls [`crate::ChunkShard::truncate`] and repeats.
    MissedTruncation {
        /// The generation that the shard has seen.
        have: Generation,
    },
    /// The file has been deleted.
    Deleted {
        /// Its inode number.
        ino: Ino,
    },
    /// There is no frame left.
    NoSpace {
        /// Bytes in use.
        used_bytes: u64,
        /// Bytes there are.
        capacity_bytes: u64,
    },
    /// There is no frame left for a copy of a frame that is being read: the server tries again
    /// when the readers have gone.
    BeingRead,
    /// These units of the chunk are on the disk only: the server brings them back
    /// ([`crate::Store::fetch`], [`crate::ChunkShard::warm`]) and repeats.
    Cold {
        /// The file.
        ino: Ino,
        /// The chunk.
        chunk: u64,
        /// The units.
        units: std::ops::Range<usize>,
    },
    /// What may be kept on the disk is kept already.
    DiskFull {
        /// Bytes in use.
        used_bytes: u64,
        /// Bytes there may be.
        capacity_bytes: u64,
    },
    /// The data do not match the checksums they came with.
    Damaged {
        /// The file.
        ino: Ino,
        /// The chunk.
        chunk: u64,
        /// Which of the pieces sent, counted from 0.
        piece: usize,
    },
    /// A stored block that was to be changed in part does not match its checksum any more.
    Corrupt {
        /// The file.
        ino: Ino,
        /// The chunk.
        chunk: u64,
        /// The block within the chunk, counted from 0.
        block: usize,
    },
    /// The range does not fit into the largest chunk there is.
    OutOfRange {
        /// Its end within the chunk, in bytes.
        end: u64,
    },
}

impl StoreError {
    /// Its code on the wire.
    pub fn code(&self) -> Code {
        match self {
            StoreError::GenerationStale(_) => Code::Refused,
            StoreError::MissedTruncation { .. } | StoreError::BeingRead | StoreError::Cold { .. } => Code::Busy,
            StoreError::Deleted { .. } => Code::Stale,
            StoreError::NoSpace { .. } | StoreError::DiskFull { .. } => Code::NoSpace,
            StoreError::Damaged { .. } | StoreError::Corrupt { .. } => Code::Corrupt,
            StoreError::OutOfRange { .. } => Code::Invalid,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::GenerationStale(now) => write!(f, "the file has been truncated: it is in generation {now}"),
            StoreError::MissedTruncation { have } => {
                write!(f, "a truncation after generation {have} has not arrived here yet")
            }
            StoreError::Deleted { ino } => write!(f, "inode {ino} has been deleted"),
            StoreError::NoSpace { used_bytes, capacity_bytes } => {
                write!(
                    f,
                    "{used_bytes} of {capacity_bytes} bytes of this server's memory are in use: remove files, or use more servers"
                )
            }
            StoreError::Cold { ino, chunk, units } => {
                write!(f, "units {units:?} of chunk {chunk} of inode {ino} are on the disk: try again")
            }
            StoreError::DiskFull { used_bytes, capacity_bytes } => write!(
                f,
                "{used_bytes} of {capacity_bytes} bytes of this server's storage are in use: remove files, or start the volume with a larger --storage-size"
            ),
            StoreError::BeingRead => {
                write!(f, "memory is full, and what is to be overwritten is being read: try again")
            }
            StoreError::Damaged { ino, chunk, piece } => {
                write!(f, "piece {piece} of a write to chunk {chunk} of inode {ino} arrived damaged: write it again")
            }
            StoreError::Corrupt { ino, chunk, block } => {
                write!(
                    f,
                    "block {block} of chunk {chunk} of inode {ino} has changed in memory: overwrite the whole block, or restore the file"
                )
            }
            StoreError::OutOfRange { end } => write!(f, "byte {end} lies beyond the largest chunk"),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        match error {
            StoreError::GenerationStale(generation) => Failure::refused(Refusal::GenerationStale { generation }),
            _ => Failure::new(error.code(), error.to_string()),
        }
    }
}
