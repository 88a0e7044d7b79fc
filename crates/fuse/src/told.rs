//! What the kernel was told of files, so that an open shows it what has changed elsewhere.
//!
//! The kernel drops a file's pages when it is opened, unless told otherwise, but keeps the
//! attributes, and a size that is too small hides what another node has written. So an open compares
//! what the server says with what the kernel was told last: where they differ the kernel is asked to
//! forget; where nothing has changed since the last open it may keep the pages too.

use crate::halves::Halves;
use aze_proto::attr::Attr;
use aze_proto::ids::{Generation, Ino, Time};
use parking_lot::Mutex;

/// Files remembered. Of one that is not the kernel is asked to forget what it knows, which costs one request.
const FILES_MAX: usize = 1 << 16;

/// What every change of a file's bytes or attributes changes: times never repeat, and never go back
/// but by utimensat(2), which moves the change time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    ino: Ino,
    size: u64,
    generation: Generation,
    mtime: Time,
    ctime: Time,
}

impl Version {
    /// The one that these attributes are of.
    pub fn of(attr: &Attr) -> Version {
        Version { ino: attr.ino, size: attr.size, generation: attr.generation, mtime: attr.mtime, ctime: attr.ctime }
    }
}

/// What is remembered of one file.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The attributes that the kernel has; `None` if it may have others.
    attrs: Option<Version>,
    /// As it was when it was opened last; the kernel may have pages of it.
    opened: Option<Version>,
}

/// What the kernel must do when a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtOpen {
    /// Its attributes are outdated.
    pub forget_attrs: bool,
    /// Its pages are as good as new.
    pub keep_pages: bool,
}

/// What the kernel of one mount was told.
pub struct Told {
    files: Mutex<Halves<Known>>,
}

impl Default for Told {
    fn default() -> Told {
        Told { files: Mutex::new(Halves::new(FILES_MAX)) }
    }
}

impl Told {
    /// This has been told: the kernel has taken the answer.
    pub fn tell(&self, version: Version) {
        let mut files = self.files.lock();
        let mut known = files.take(version.ino).unwrap_or_default();
        // Of two answers that cross the kernel may have either. It refuses one that was asked for before
        // it learned of a newer one, so the order of the newer after the older is safe.
        known.attrs = match known.attrs {
            Some(other) if other.ctime > version.ctime => None,
            _ => Some(version),
        };
        files.put(version.ino, known);
    }

    /// A file is opened, of which the server says this.
    pub fn open(&self, attr: &Attr) -> AtOpen {
        let version = Version::of(attr);
        let mut files = self.files.lock();
        let known = files.take(attr.ino).unwrap_or_default();
        let same = known.attrs == Some(version);
        files.put(attr.ino, Known { attrs: same.then_some(version), opened: Some(version) });
        AtOpen { forget_attrs: !same, keep_pages: known.opened == Some(version) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::attr::FileKind;
    use aze_proto::ids::{MapEpoch, ShardId};

    fn attr(ino: u64, size: u64, ctime: u64) -> Attr {
        Attr {
            ino: Ino(ino),
            kind: FileKind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            atime: Time(0),
            mtime: Time(ctime),
            ctime: Time(ctime),
            btime: Time(0),
            generation: Generation(0),
            born: MapEpoch(1),
            data_shard: ShardId(0),
            chunk_bits: 20,
            wide: false,
            parent: Ino::ROOT,
        }
    }

    #[test]
    fn an_open_finds_what_the_kernel_does_not_know() {
        let told = Told::default();
        assert_eq!(told.open(&attr(2, 5, 1)), AtOpen { forget_attrs: true, keep_pages: false }, "never told");
        told.tell(Version::of(&attr(2, 5, 1)));
        assert_eq!(told.open(&attr(2, 5, 1)), AtOpen { forget_attrs: false, keep_pages: true });
        assert_eq!(told.open(&attr(2, 9, 4)), AtOpen { forget_attrs: true, keep_pages: false }, "changed elsewhere");
        assert!(told.open(&attr(2, 9, 4)).forget_attrs, "it has not asked since");
        told.tell(Version::of(&attr(2, 9, 4)));
        assert!(!told.open(&attr(2, 9, 4)).forget_attrs);
    }

    #[test]
    fn answers_that_cross_are_not_trusted() {
        let told = Told::default();
        told.tell(Version::of(&attr(2, 9, 4)));
        told.tell(Version::of(&attr(2, 5, 1)));
        assert!(told.open(&attr(2, 9, 4)).forget_attrs);
    }
}
