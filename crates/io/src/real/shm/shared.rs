//! A published index in memory that this process writes and others can only read.
//!
//! It alone knows how the memory is kept from being written by them: the file is sealed against
//! any mapping for writing but the one that was there before.

use std::io::Result;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::region::Region;
use crate::published::{SharedWords, Words};

/// Most memory of a published index that is mapped, in bytes.
const PUBLISHED_BYTES_MAX: usize = 1 << 30;

struct Shared {
    region: Region,
    words: usize,
    /// To be handed on to readers.
    file: OwnedFd,
}

impl Words for Shared {
    fn words(&self) -> &[AtomicU64] {
        self.region.words64(0, self.words)
    }

    fn file(&self) -> Option<&OwnedFd> {
        Some(&self.file)
    }
}

/// See [`crate::World::share`].
pub(in super::super) fn share(words: usize) -> Option<SharedWords> {
    let bytes = words.checked_mul(8).filter(|bytes| *bytes <= PUBLISHED_BYTES_MAX)?;
    let (region, file) = Region::create_for_readers(c"aze-slate", bytes).ok()?;
    Some(SharedWords(Arc::new(Shared { region, words, file })))
}

/// Maps what a writer has handed on, to be read.
pub(super) fn open(file: OwnedFd) -> Result<SharedWords> {
    let region = Region::open_to_read(&file, PUBLISHED_BYTES_MAX)?;
    let words = region.bytes() / 8;
    Ok(SharedWords(Arc::new(Shared { region, words, file })))
}
