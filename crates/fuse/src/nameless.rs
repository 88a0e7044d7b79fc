//! Files that have lost their last name while they are open on this mount. Whoever opens one has come
//! by a name that lasts only where names are cached, or without a name, as by way of `/proc/self/fd`.

use aze_proto::attr::Attr;
use aze_proto::ids::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Threads of which is remembered that they were sent to look again. They come back at once.
const REFUSED_MAX: usize = 4096;

/// Who was sent to look again, and for which file.
#[derive(Default)]
pub struct Nameless {
    refused: Mutex<BTreeMap<u32, Ino>>,
}

impl Nameless {
    /// Whether the open is to be refused with ESTALE: the kernel then looks every name of the path up
    /// again (path_resolution(7)), and opens what is there now. Whoever comes back for the same file
    /// came without a name, and is let in.
    pub fn refuses(&self, thread: u32, attr: &Attr) -> bool {
        if attr.links > 0 {
            return false;
        }
        let mut refused = self.refused.lock();
        if refused.remove(&thread) == Some(attr.ino) {
            return false;
        }
        if refused.len() >= REFUSED_MAX {
            refused.pop_first();
        }
        refused.insert(thread, attr.ino);
        true
    }
}
