//! What the kernel has cached of files, so that it shows changes made elsewhere.
//!
//! *When a file is opened.* The kernel drops a file's pages then, unless told otherwise, but keeps the
//! attributes, and a size that is too small hides what another node has written. So an open compares
//! what the server says with what the kernel was told last: where they differ the kernel is asked to
//! forget; where nothing has changed since the last open it may keep the pages too.
//!
//! *When the kernel gets its attributes.* After another client has changed a file, the kernel must drop the older pages
//! before a program can read with the newer attributes ([`crate::pages`]):
//!
//! - If the other client's change recalled a lease of this mount, the pages are gone already.
//! - If this mount has held a lease since, the change is this mount's own, and the pages contain it.
//! - Otherwise this mount drops the pages and answers then. If the file is shorter the kernel would discard that
//!   answer, since it was asked for before the pages were dropped. So this mount answers one thread first, whose kernel
//!   call then drops the pages because the modification time differs, and lets other threads wait until that thread asks
//!   again, for these attributes or anything else ([`crate::pick_ups`]), or [`crate::recalls::PICK_UP_TIME`] has passed. If the length has changed once more when it asks again, it is
//!   answered first again.
//!
//! *When a file has grown.* The kernel discards attributes if it has learned anything of the file since it asked for
//! them: other attributes, a write of this mount that has ended, that it is to forget some. It reads nothing beyond the
//! length that it has, and asks once for each read. So before this mount tells the reader of an open file a larger
//! length than the kernel is known to have, it gives the kernel the last byte ([`crate::pages::Pages::lengthen_now`]),
//! after which the kernel has that length, though it may discard attributes.

use crate::lru::LruCache;
use aze_client::Lease;
use aze_io::sync::{Condvar, Mutex};
use aze_proto::attr::Attr;
use aze_proto::ids::{Generation, Ino, Time};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Files remembered. When a program opens another file the kernel is asked to forget its attributes, which costs one
/// request.
const FILES_MAX: usize = 1 << 16;

/// Size of a bit set (512 KiB) of the files that may have pages in the kernel. Several files share a bit, so a set bit
/// may be another file's.
const PAGED_BITS: usize = 1 << 22;

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

/// The facts about one file.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The attributes that the kernel has; `None` if they are not known.
    attrs: Option<Version>,
    /// As it was when it was opened last; the kernel may have pages of it.
    opened: Option<Version>,
    /// The kernel's pages contain this version or a newer one.
    shown: Option<Version>,
    /// While it lasts no other client can have changed the file since `shown`.
    lease: Option<Lease>,
    /// The kernel takes the file for at least so many bytes long; `None` if the kernel's length is not known.
    length_min: Option<u64>,
    /// Threads that are dropping its pages.
    drops: u32,
    /// The thread that was answered first; its kernel call may still be dropping pages.
    first: Option<First>,
}

/// A thread that gets the attributes of a file of another length, while further threads wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// Its number in this process's namespace; 0 if it has none.
    thread: u32,
    version: Version,
}

/// What the kernel must do when a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtOpen {
    /// Its attributes are outdated.
    pub forget_attrs: bool,
    /// Its pages are as good as new.
    pub keep_pages: bool,
}

/// The attributes and pages that the kernel of one mount has cached.
pub struct KernelCache {
    files: Mutex<LruCache<Known>>,
    ended: Condvar,
    paged: Vec<AtomicU64>,
}

impl Default for KernelCache {
    fn default() -> KernelCache {
        let paged = (0..PAGED_BITS / 64).map(|_| AtomicU64::new(0)).collect();
        KernelCache { files: Mutex::new(LruCache::new(FILES_MAX)), ended: Condvar::new(), paged }
    }
}

/// What telling attributes may need.
pub struct Means<'a> {
    /// The kernel has been given the last byte, so that it has the length even if it discards the answer.
    pub is_lengthened: bool,
    /// Whether this lease still lasts, so that no other client can have changed the file.
    pub is_leased: &'a dyn Fn(Lease) -> bool,
    /// The calling thread is about to wait for another one.
    pub waits: &'a dyn Fn(),
    /// Whether the kernel has had no page of the file since its pages were dropped last.
    pub are_clean: &'a dyn Fn() -> bool,
    /// Has the kernel drop the pages of the file; returns when they are gone.
    pub drop_pages: &'a dyn Fn(),
}

/// How attributes are to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Showing {
    /// To be believed for as long as their lease lasts.
    Believed,
    /// To this thread first, for no time at all. The caller calls [`KernelCache::first_is_done`] when the kernel has processed the answer.
    First(First),
}

impl KernelCache {
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
        // The first attributes of an inode are never discarded; later ones may be, and may also be those that are kept.
        known.length_min = Some(known.length_min.map_or(version.size, |length| length.min(version.size)));
        files.put(version.ino, known);
    }

    /// Whether the kernel may take a file for shorter than these attributes say because another client has lengthened it.
    pub fn is_too_short(&self, attr: &Attr, is_leased: impl Fn(Lease) -> bool) -> bool {
        let mut files = self.files.lock();
        let mut known = files.take(attr.ino).unwrap_or_default();
        let is_own = known.shown.is_some() && known.lease.is_some_and(is_leased);
        if is_own {
            // By programs of this mount: the kernel has noted it before their calls return.
            known.length_min = known.length_min.max(Some(attr.size));
        }
        let is_too_short = known.length_min.is_none_or(|length| length < attr.size);
        files.put(attr.ino, known);
        is_too_short && attr.size > 0
    }

    /// Notes that the kernel takes a file for at least so many bytes long.
    pub fn has_length(&self, ino: Ino, length: u64) {
        let mut files = self.files.lock();
        let known = files.take(ino).unwrap_or_default();
        files.put(ino, Known { length_min: known.length_min.max(Some(length)), ..known });
    }

    /// A program of this mount has written up to `end`: the kernel takes the file for at least as long when it has the answer.
    pub fn written(&self, ino: Ino, end: u64, is_leased: impl Fn(Lease) -> bool) {
        self.changed_here(ino, is_leased, |length_min| length_min.max(Some(end)));
    }

    /// A program of this mount has opened the file with O_TRUNC: the kernel takes it for empty when it has the answer.
    pub fn cut(&self, ino: Ino, is_leased: impl Fn(Lease) -> bool) {
        self.changed_here(ino, is_leased, |_| Some(0));
    }

    /// Without a lease another client may have changed the file as well: what the kernel's pages contain, and how long it takes the
    /// file for, is not known then from what was told before.
    fn changed_here(
        &self,
        ino: Ino,
        is_leased: impl Fn(Lease) -> bool,
        length_min: impl FnOnce(Option<u64>) -> Option<u64>,
    ) {
        let mut files = self.files.lock();
        let known = files.take(ino).unwrap_or_default();
        let shown = known.shown.filter(|_| known.lease.is_some_and(is_leased));
        files.put(ino, Known { shown, length_min: length_min(known.length_min), ..known });
    }

    /// Notes that a program opens a file with these attributes.
    pub fn open(&self, attr: &Attr) -> AtOpen {
        let version = Version::of(attr);
        let mut files = self.files.lock();
        let known = files.take(attr.ino).unwrap_or_default();
        let same = known.attrs == Some(version);
        files.put(attr.ino, Known { attrs: same.then_some(version), opened: Some(version), ..known });
        AtOpen { forget_attrs: !same, keep_pages: known.opened == Some(version) }
    }

    fn bit(&self, ino: Ino) -> (&AtomicU64, u64) {
        let bit = (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PAGED_BITS;
        (&self.paged[bit / 64], 1 << (bit % 64))
    }

    /// Notes that the kernel is about to get pages of this file.
    pub fn has_pages(&self, ino: Ino) {
        let (word, bit) = self.bit(ino);
        if word.load(SeqCst) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
    }

    fn may_have_pages(&self, ino: Ino) -> bool {
        let (word, bit) = self.bit(ino);
        word.load(SeqCst) & bit != 0
    }

    /// Blocks until a thread may get these attributes; says how.
    pub fn show(&self, attr: &Attr, lease: Option<Lease>, thread: u32, means: &Means<'_>) -> Showing {
        let version = Version::of(attr);
        let mut files = self.files.lock();
        let mut known = loop {
            let mut known = files.take(attr.ino).unwrap_or_default();
            if known.drops == 0 && known.first.is_none_or(|first| first.thread == thread && thread != 0) {
                let Some(first) = known.first.take() else { break known };
                // The thread asks again, so the kernel has processed the first answer. Where the length is another one by now,
                // the kernel would discard an answer that was asked for before the pages were dropped, as it would have then.
                known.shown = None;
                break Known { drops: u32::from(first.version.size == version.size), ..known };
            }
            files.put(attr.ino, known);
            drop(files);
            (means.waits)();
            files = self.files.lock();
            let known = files.take(attr.ino).unwrap_or_default();
            files.put(attr.ino, known);
            if known.drops > 0 || known.first.is_some() {
                files = self.ended.wait(files);
            }
        };
        if known.drops == 0 {
            if known.shown.is_some_and(|shown| shown.ctime > version.ctime) {
                // The answer comes late; the pages are newer than it.
                files.put(attr.ino, known);
                return Showing::Believed;
            }
            let is_own = known.shown.is_some() && known.lease.is_some_and(|lease| (means.is_leased)(lease));
            let has_none = !self.may_have_pages(attr.ino) || (means.are_clean)();
            if known.shown == Some(version) || is_own || has_none {
                files.put(attr.ino, Known { shown: Some(version), lease, ..known });
                return Showing::Believed;
            }
            if known.shown.is_none_or(|shown| shown.size != version.size) && !means.is_lengthened {
                let first = First { thread, version };
                files.put(attr.ino, Known { shown: None, first: Some(first), ..known });
                return Showing::First(first);
            }
            known.drops = 1;
        }
        files.put(attr.ino, known);
        drop(files);
        (means.waits)();
        (means.drop_pages)();
        self.end_drop(attr.ino, Some((version, lease)));
        Showing::Believed
    }

    /// The kernel has processed the answer of a thread that was answered first, or the time for that is over. If this returns true the caller drops the pages and then
    /// calls [`KernelCache::first_has_ended`].
    pub fn first_is_done(&self, ino: Ino, first: First) -> bool {
        let mut files = self.files.lock();
        let Some(mut known) = files.take(ino) else { return false };
        let is_still = known.first == Some(first);
        if is_still {
            (known.first, known.drops) = (None, known.drops + 1);
        }
        files.put(ino, known);
        is_still
    }

    /// Another client has changed the file, and its change returns after this mount has confirmed the recall. If this
    /// returns true the kernel may have pages: the caller drops them and calls [`KernelCache::dropped`]; until then
    /// requests for attributes wait.
    pub fn begin_drop(&self, ino: Ino) -> bool {
        if !self.may_have_pages(ino) {
            return false;
        }
        let mut files = self.files.lock();
        let known = files.take(ino).unwrap_or_default();
        files.put(ino, Known { drops: known.drops + 1, lease: None, ..known });
        true
    }

    /// The pages are gone that the kernel had at [`KernelCache::begin_drop`].
    pub fn dropped(&self, ino: Ino) {
        self.end_drop(ino, None);
    }

    /// The pages are gone that the kernel had at [`KernelCache::first_is_done`].
    pub fn first_has_ended(&self, ino: Ino, first: First) {
        self.end_drop(ino, Some((first.version, None)));
    }

    /// Ends one drop. Pages that the kernel has now contain `shown` or a newer version.
    fn end_drop(&self, ino: Ino, shown: Option<(Version, Option<Lease>)>) {
        let mut files = self.files.lock();
        let mut known = files.take(ino).unwrap_or_default();
        known.drops = known.drops.saturating_sub(1);
        if let Some((version, lease)) = shown {
            (known.shown, known.lease) = (Some(version), lease);
        }
        files.put(ino, known);
        self.ended.notify_all();
    }

    /// Whether the kernel may get these attributes without any wait.
    pub fn is_shown(&self, attr: &Attr) -> bool {
        if !self.may_have_pages(attr.ino) {
            return true;
        }
        let mut files = self.files.lock();
        let Some(known) = files.take(attr.ino) else { return false };
        files.put(attr.ino, known);
        known.shown == Some(Version::of(attr)) && known.drops == 0
    }

    /// Notes attributes that this mount has changed itself. The kernel gets them at once, for no time at all.
    pub fn changed(&self, attr: &Attr, is_leased: impl Fn(Lease) -> bool) {
        let mut files = self.files.lock();
        let known = files.take(attr.ino).unwrap_or_default();
        let is_own = known.shown.is_some() && known.lease.is_some_and(is_leased);
        // Without a lease another client may have changed the file as well: the kernel now has the length, but its
        // pages may be of any version.
        let before = Version { mtime: Time(0), ctime: Time(0), ..Version::of(attr) };
        let shown = Some(if is_own { Version::of(attr) } else { before });
        let length_min = known.length_min.map(|length| length.min(attr.size));
        files.put(attr.ino, Known { shown, length_min, ..known });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::attr::FileKind;
    use aze_proto::ids::MapEpoch;
    use std::cell::Cell;

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
            layout: aze_proto::place::Layout::default(),
            chunk_bits: 20,
            spread: aze_proto::Spread::default(),
            has_xattrs: false,
            parent: Ino::ROOT,
        }
    }

    #[test]
    fn an_open_finds_what_the_kernel_does_not_know() {
        let kernel_cache = KernelCache::default();
        assert_eq!(kernel_cache.open(&attr(2, 5, 1)), AtOpen { forget_attrs: true, keep_pages: false }, "never told");
        kernel_cache.tell(Version::of(&attr(2, 5, 1)));
        assert_eq!(kernel_cache.open(&attr(2, 5, 1)), AtOpen { forget_attrs: false, keep_pages: true });
        assert_eq!(
            kernel_cache.open(&attr(2, 9, 4)),
            AtOpen { forget_attrs: true, keep_pages: false },
            "changed elsewhere"
        );
        assert!(kernel_cache.open(&attr(2, 9, 4)).forget_attrs, "it has not asked since");
        kernel_cache.tell(Version::of(&attr(2, 9, 4)));
        assert!(!kernel_cache.open(&attr(2, 9, 4)).forget_attrs);
    }

    /// What telling this takes: pages are thrown away, or a thread is first.
    fn tell(
        kernel_cache: &KernelCache,
        size: u64,
        ctime: u64,
        thread: u32,
        is_leased: bool,
        are_clean: bool,
    ) -> &'static str {
        let dropped = Cell::new(false);
        let means = Means {
            is_lengthened: false,
            is_leased: &|_| is_leased,
            waits: &|| {},
            are_clean: &|| are_clean,
            drop_pages: &|| dropped.set(true),
        };
        match kernel_cache.show(&attr(2, size, ctime), Some(Lease::default()), thread, &means) {
            Showing::First(_) => "first",
            Showing::Believed if dropped.get() => "dropped",
            Showing::Believed => "",
        }
    }

    /// The kernel discards an answer of another length that was asked for before pages were dropped. So a program saw the
    /// old length after a truncation by another mount had returned.
    #[test]
    fn a_length_that_changes_once_more_is_told_first_again() {
        let kernel_cache = KernelCache::default();
        kernel_cache.has_pages(Ino(2));
        assert_eq!(tell(&kernel_cache, 9, 1, 7, false, false), "first");
        assert_eq!(tell(&kernel_cache, 5, 2, 7, false, false), "first", "another length: no page is dropped meanwhile");
        assert_eq!(tell(&kernel_cache, 5, 2, 7, false, false), "dropped", "the same length");
        assert_eq!(tell(&kernel_cache, 9, 3, 7, false, false), "first");
        assert_eq!(tell(&kernel_cache, 5, 4, 7, false, true), "", "the recall has dropped the pages");
    }

    #[test]
    fn pages_go_before_the_change_of_another_client_shows() {
        let kernel_cache = KernelCache::default();
        assert_eq!(
            [tell(&kernel_cache, 5, 1, 7, false, false), tell(&kernel_cache, 5, 2, 7, false, false)],
            ["", ""],
            "none"
        );
        kernel_cache.has_pages(Ino(2));
        assert_eq!(tell(&kernel_cache, 5, 2, 7, false, false), "");
        assert_eq!(tell(&kernel_cache, 5, 3, 7, false, false), "dropped");
        assert!(kernel_cache.is_shown(&attr(2, 5, 3)) && !kernel_cache.is_shown(&attr(2, 5, 4)));
        assert_eq!(tell(&kernel_cache, 9, 2, 7, false, false), "", "a late answer");
        assert_eq!(tell(&kernel_cache, 5, 4, 7, false, true), "", "the recall has dropped them");
        assert_eq!(tell(&kernel_cache, 5, 5, 7, true, false), "", "a change of one's own");
        kernel_cache.changed(&attr(2, 5, 6), |_| true);
        assert_eq!(tell(&kernel_cache, 5, 6, 7, true, false), "");
        kernel_cache.changed(&attr(2, 5, 7), |_| false);
        assert_eq!(tell(&kernel_cache, 5, 7, 7, false, false), "dropped", "the version before may be another client's");
    }

    #[test]
    fn of_another_length_one_thread_is_told_first() {
        let kernel_cache = KernelCache::default();
        tell(&kernel_cache, 5, 1, 7, false, false);
        kernel_cache.has_pages(Ino(2));
        assert_eq!(tell(&kernel_cache, 9, 2, 7, false, false), "first");
        assert!(!kernel_cache.is_shown(&attr(2, 9, 2)));
        assert_eq!(tell(&kernel_cache, 9, 2, 7, false, false), "dropped", "it asks again");
        assert_eq!(tell(&kernel_cache, 9, 2, 8, false, false), "");
        let means = Means {
            is_lengthened: false,
            is_leased: &|_| false,
            waits: &|| {},
            are_clean: &|| false,
            drop_pages: &|| {},
        };
        let Showing::First(first) = kernel_cache.show(&attr(2, 4, 3), None, 0, &means) else {
            panic!("it is another length")
        };
        // Threads without a number cannot be recognised when they ask again.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| tell(&kernel_cache, 4, 3, 0, false, false));
            assert!(kernel_cache.first_is_done(Ino(2), first));
            assert!(!kernel_cache.first_is_done(Ino(2), first));
            kernel_cache.first_has_ended(Ino(2), first);
            assert_eq!(other.join().expect("it is told"), "");
        });
    }

    #[test]
    fn a_file_is_too_short_when_another_client_has_lengthened_it() {
        let kernel_cache = KernelCache::default();
        let is_too_short = |size, is_leased| kernel_cache.is_too_short(&attr(2, size, 1), |_| is_leased);
        assert!(
            is_too_short(5, false) && !is_too_short(0, false),
            "nothing is known, and nothing is shorter than nothing"
        );
        kernel_cache.tell(Version::of(&attr(2, 5, 1)));
        assert!(!is_too_short(5, false) && !is_too_short(4, false) && is_too_short(6, false));
        kernel_cache.tell(Version::of(&attr(2, 6, 2)));
        assert!(is_too_short(6, false), "the kernel may have discarded the second answer");
        kernel_cache.has_length(Ino(2), 6);
        assert!(!is_too_short(6, false) && is_too_short(7, false));
        kernel_cache.changed(&attr(2, 3, 3), |_| false);
        assert!(is_too_short(4, false), "this mount has made it shorter");
        tell(&kernel_cache, 3, 4, 7, false, true);
        assert!(!is_too_short(9, true) && !is_too_short(9, false), "a program of this mount has lengthened it");
    }

    /// Without a lease a write of this mount makes the kernel's length another one than that which was told last: an answer of the length that was
    /// told last was taken for one that the kernel has, and was discarded when its pages were dropped.
    #[test]
    fn after_a_write_of_this_mount_the_kernel_may_have_another_length() {
        let kernel_cache = KernelCache::default();
        kernel_cache.has_pages(Ino(2));
        assert_eq!(tell(&kernel_cache, 9, 1, 7, false, true), "");
        kernel_cache.has_length(Ino(2), 9);
        let is_too_short = |size| kernel_cache.is_too_short(&attr(2, size, 1), |_| false);
        kernel_cache.cut(Ino(2), |_| false);
        assert!(is_too_short(1));
        kernel_cache.written(Ino(2), 6, |_| false);
        assert!(!is_too_short(4) && !is_too_short(6) && is_too_short(9));
        assert_eq!(tell(&kernel_cache, 9, 2, 7, false, false), "first");
        assert_eq!(tell(&kernel_cache, 9, 2, 7, false, false), "dropped");
        kernel_cache.written(Ino(2), 12, |_| true);
        assert_eq!(
            tell(&kernel_cache, 9, 3, 7, false, false),
            "dropped",
            "with a lease the file is this mount's alone"
        );
    }

    #[test]
    fn a_longer_file_is_believed_once_the_kernel_has_its_length() {
        let kernel_cache = KernelCache::default();
        kernel_cache.has_pages(Ino(2));
        let dropped = Cell::new(0);
        let means = Means {
            is_lengthened: true,
            is_leased: &|_| false,
            waits: &|| {},
            are_clean: &|| false,
            drop_pages: &|| dropped.set(dropped.get() + 1),
        };
        assert_eq!(kernel_cache.show(&attr(2, 9, 1), None, 7, &means), Showing::Believed);
        assert_eq!(dropped.get(), 1);
    }

    #[test]
    fn requests_for_attributes_wait_while_pages_are_dropped() {
        let kernel_cache = KernelCache::default();
        assert!(!kernel_cache.begin_drop(Ino(2)), "there are none");
        kernel_cache.has_pages(Ino(2));
        assert!(kernel_cache.begin_drop(Ino(2)));
        let (waits, is_done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let waits = || {
                    waits.fetch_add(1, SeqCst);
                };
                let means = Means {
                    is_lengthened: false,
                    is_leased: &|_| false,
                    waits: &waits,
                    are_clean: &|| true,
                    drop_pages: &|| {},
                };
                assert_eq!(kernel_cache.show(&attr(2, 5, 1), None, 7, &means), Showing::Believed);
                assert_eq!(is_done.load(SeqCst), 1);
            });
            while waits.load(SeqCst) < 1 {
                std::thread::yield_now();
            }
            is_done.store(1, SeqCst);
            kernel_cache.dropped(Ino(2));
        });
    }

    #[test]
    fn answers_that_cross_are_not_trusted() {
        let kernel_cache = KernelCache::default();
        kernel_cache.tell(Version::of(&attr(2, 9, 4)));
        kernel_cache.tell(Version::of(&attr(2, 5, 1)));
        assert!(kernel_cache.open(&attr(2, 9, 4)).forget_attrs);
    }
}
