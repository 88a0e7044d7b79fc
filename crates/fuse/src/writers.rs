//! Files that several programs of this node write at the same time.
//!
//! The kernel's page cache splits each record that begins within a page into two writes, and lets the writers of a file take
//! turns. So an open for writing that is not the first one of its file goes past the cache.

use aze_client::Access;
use aze_io::sync::Mutex;
use aze_proto::Ino;
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
    pub fn opened(&self, ino: Ino, access: Access) -> bool {
        if !access.write {
            return false;
        }
        let mut opens = self.opens.lock();
        let count = opens.entry(ino).or_default();
        *count += 1;
        *count > 1 && (!access.read || self.may_be_mapped)
    }

    /// Forgets an open that was counted.
    pub fn closed(&self, ino: Ino, access: Access) {
        if !access.write {
            return;
        }
        let mut opens = self.opens.lock();
        let Some(count) = opens.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            opens.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Access = Access { read: true, write: false };
    const WRITE: Access = Access { read: false, write: true };
    const BOTH: Access = Access { read: true, write: true };

    #[test]
    fn only_a_further_open_for_writing_goes_past_the_cache() {
        let writers = Writers::new(true);
        assert!(!writers.opened(Ino(5), READ));
        assert!(!writers.opened(Ino(5), WRITE), "the first one; a reader does not count");
        assert!(!writers.opened(Ino(6), WRITE), "another file");
        assert!(writers.opened(Ino(5), WRITE) && writers.opened(Ino(5), BOTH));
        assert!(!writers.opened(Ino(5), READ), "it does not write");
    }

    #[test]
    fn a_file_that_a_program_may_map_stays_in_the_cache_of_an_old_kernel() {
        let writers = Writers::new(false);
        assert!(!writers.opened(Ino(5), BOTH) && !writers.opened(Ino(5), BOTH));
        assert!(writers.opened(Ino(5), WRITE), "what is not open for reading is not mapped");
    }

    #[test]
    fn a_closed_file_counts_no_more() {
        let writers = Writers::new(true);
        writers.opened(Ino(5), WRITE);
        writers.opened(Ino(5), READ);
        writers.closed(Ino(5), READ);
        assert!(writers.opened(Ino(5), WRITE), "a reader has closed it, the first writer has not");
        for _ in 0..2 {
            writers.closed(Ino(5), WRITE);
        }
        assert!(writers.opens.lock().is_empty(), "nothing is kept of it");
        assert!(!writers.opened(Ino(5), WRITE), "the first one again");
    }
}
