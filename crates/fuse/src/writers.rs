//! Files that several programs of this node write at the same time.
//!
//! The kernel's page cache splits each record that begins within a page into two writes, and lets the writers of a file take
//! turns. So an open for writing that is not the first one of its file goes past the cache.

use aze_client::{Access, File};
use aze_proto::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Opens for writing, by file.
#[derive(Default)]
pub struct Writers {
    opens: Mutex<HashMap<Ino, usize>>,
    may_be_mapped: AtomicBool,
}

impl Writers {
    /// Whether the kernel maps files into memory that were opened past its cache. Before Linux 6.6 it does not map them to be
    /// shared, so that files that a program may map are not opened so.
    pub fn may_be_mapped(&self, may_be: bool) {
        self.may_be_mapped.store(may_be, Ordering::Relaxed);
    }

    /// Counts an open.
    pub fn opened(&self, file: &File) {
        if file.access().write {
            *self.opens.lock().entry(file.ino()).or_default() += 1;
        }
    }

    /// Forgets an open that was counted.
    pub fn closed(&self, file: &File) {
        if !file.access().write {
            return;
        }
        let mut opens = self.opens.lock();
        let Some(count) = opens.get_mut(&file.ino()) else { return };
        *count -= 1;
        if *count == 0 {
            opens.remove(&file.ino());
        }
    }

    /// Whether an open goes past the cache: it is for writing, and one of several.
    pub fn is_direct(&self, file: &File) -> bool {
        let Access { read, write } = file.access();
        let is_allowed = write && (!read || self.may_be_mapped.load(Ordering::Relaxed));
        is_allowed && self.opens.lock().get(&file.ino()).is_some_and(|count| *count > 1)
    }
}
