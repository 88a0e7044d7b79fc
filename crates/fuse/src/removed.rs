//! Directories that are removed while programs of this mount are in them or have them open. Their home
//! knows them no more; this table has their last attributes, so that programs can still look at them.

use crate::lru::LruCache;
use aze_io::sync::Mutex;
use aze_proto::attr::{Attr, Change, FileKind, SetTime};
use aze_proto::ids::{Ino, Time};

/// Directories remembered. One that is used stays.
const DIRECTORIES_MAX: usize = 1 << 15;

/// What the kernel was told of directories.
pub struct Removed {
    directories: Mutex<LruCache<Attr>>,
}

impl Default for Removed {
    fn default() -> Removed {
        Removed { directories: Mutex::new(LruCache::new(DIRECTORIES_MAX)) }
    }
}

impl Removed {
    /// The kernel is told this; of anything but directories nothing is kept.
    pub fn tell(&self, attr: &Attr) {
        if attr.kind == FileKind::Directory {
            self.directories.lock().put(attr.ino, attr.clone());
        }
    }

    /// The last attributes of a removed directory, without names. `None` if there were none, or they are forgotten.
    pub fn attr(&self, dir: Ino) -> Option<Attr> {
        let mut directories = self.directories.lock();
        let last = directories.take(dir)?;
        let attr = Attr { links: 0, size: 0, ..last };
        directories.put(dir, attr.clone());
        Some(attr)
    }

    /// The same after a change of its attributes, for which the kernel has checked the caller's rights: no other
    /// client can see the directory any more.
    pub fn change(&self, dir: Ino, change: &Change, now: Time) -> Option<Attr> {
        let attr = self.attr(dir)?;
        let resolve = |time: Option<SetTime>, last: Time| match time {
            None => last,
            Some(SetTime::Now) => now,
            Some(SetTime::To { time }) => time,
        };
        let changed = Attr {
            mode: change.mode.unwrap_or(attr.mode),
            uid: change.uid.unwrap_or(attr.uid),
            gid: change.gid.unwrap_or(attr.gid),
            atime: resolve(change.atime, attr.atime),
            mtime: resolve(change.mtime, attr.mtime),
            // The servers' clock may be ahead.
            ctime: attr.ctime.max(now),
            ..attr
        };
        self.directories.lock().put(dir, changed.clone());
        Some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::ids::{Generation, MapEpoch};

    fn attr(ino: u64, kind: FileKind) -> Attr {
        Attr {
            ino: Ino(ino),
            kind,
            mode: 0o750,
            links: 3,
            uid: 4,
            gid: 5,
            rdev: 0,
            size: 6,
            atime: Time(1),
            mtime: Time(2),
            ctime: Time(3),
            btime: Time(4),
            generation: Generation(0),
            born: MapEpoch(1),
            layout: aze_proto::place::Layout::default(),
            chunk_bits: 20,
            spread: aze_proto::Spread::default(),
            has_xattrs: false,
            parent: Ino::ROOT,
        }
    }

    #[test]
    fn a_directory_is_what_it_was_but_empty_and_without_a_name() {
        let removed = Removed::default();
        removed.tell(&attr(7, FileKind::Directory));
        removed.tell(&attr(8, FileKind::File));
        let expected = Attr { links: 0, size: 0, ..attr(7, FileKind::Directory) };
        for _ in 0..2 {
            assert_eq!(removed.attr(Ino(7)), Some(expected.clone()));
        }
        assert_eq!((removed.attr(Ino(8)), removed.attr(Ino(9))), (None, None));
    }

    #[test]
    fn its_attributes_can_still_be_changed() {
        let removed = Removed::default();
        removed.tell(&attr(7, FileKind::Directory));
        let gone = Attr { links: 0, size: 0, ..attr(7, FileKind::Directory) };
        let mode = Change { mode: Some(0o2700), gid: Some(9), ..Change::default() };
        let expected = Attr { mode: 0o2700, gid: 9, ctime: Time(8), ..gone.clone() };
        assert_eq!(removed.change(Ino(7), &mode, Time(8)), Some(expected.clone()));
        let times =
            Change { atime: Some(SetTime::Now), mtime: Some(SetTime::To { time: Time(1) }), ..Change::default() };
        let expected = Attr { atime: Time(7), mtime: Time(1), ..expected };
        assert_eq!(removed.change(Ino(7), &times, Time(7)), Some(expected.clone()), "time does not go back");
        assert_eq!(removed.attr(Ino(7)), Some(expected));
        assert_eq!(removed.change(Ino(8), &mode, Time(8)), None);
    }
}
