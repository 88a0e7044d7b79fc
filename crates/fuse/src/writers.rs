//! Files that several programs of this node write at the same time.
//!
//! The kernel's page cache splits each record that begins within a page into two writes, and lets the writers of a file take
//! turns. So an open for writing that is not the first one of its file goes past the cache.

use aze_client::{Access, File};
use aze_proto::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Opens for writing, by file.
pub struct Writers {
    opens: Mutex<HashMap<Ino, usize>>,
    may_be_mapped: bool,
}

impl Writers {
    /// `may_be_mapped` says whether the kernel maps files into memory that were opened past its cache. Before Linux 6.6 it
    /// does not map them to be shared, so that files that a program may map are not opened so.
    pub fn new(may_be_mapped: bool) -> Writers {
        Writers { opens: Mutex::default(), may_be_mapped }
    }

    /// Counts an open. Gives whether it goes past the cache: it is for writing, and one of several.
    pub fn opened(&self, file: &File) -> bool {
        let Access { read, write } = file.access();
        if !write {
            return false;
        }
        let mut opens = self.opens.lock();
        let count = opens.entry(file.ino()).or_default();
        *count += 1;
        *count > 1 && (!read || self.may_be_mapped)
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
}
