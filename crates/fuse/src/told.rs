//! What the kernel was told of files, so that it shows what has changed elsewhere.
//!
//! *When a file is opened.* The kernel drops a file's pages then, unless told otherwise, but keeps the
//! attributes, and a size that is too small hides what another node has written. So an open compares
//! what the server says with what the kernel was told last: where they differ the kernel is asked to
//! forget; where nothing has changed since the last open it may keep the pages too.
//!
//! *When its attributes are told.* Pages that are older than a change of another client must be gone before anybody
//! reads by attributes that are newer ([`crate::pages`]). Where the change was recalled they have gone already. A change
//! under a lease is this mount's own: the kernel's pages have it. Otherwise, for example where nobody has looked for a while,
//! they go before the answer; but where the length is another one the kernel would drop that answer, since it has
//! crossed: then one thread is answered first, and throws pages away by itself, and the others wait.

use crate::halves::Halves;
use aze_client::Lease;
use aze_proto::attr::Attr;
use aze_proto::ids::{Generation, Ino, Time};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Files remembered. Of one that is not the kernel is asked to forget what it knows, which costs one request.
const FILES_MAX: usize = 1 << 16;

/// Bits that say of which files the kernel may have pages: 512 KiB. Files share some, and so may be thought to have
/// pages that have none.
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

/// What is remembered of one file.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The attributes that the kernel has; `None` if it may have others.
    attrs: Option<Version>,
    /// As it was when it was opened last; the kernel may have pages of it.
    opened: Option<Version>,
    /// Its pages are not older than this.
    shown: Option<Version>,
    /// Until when `shown` cannot have been changed by others.
    lease: Option<Lease>,
    /// So many times its pages are being thrown away.
    drops: u32,
    /// This thread was answered first, and may still be throwing pages away by itself.
    first: Option<First>,
}

/// A thread that was answered before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// As the kernel names it; 0 if it has no name here.
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

/// What the kernel of one mount was told.
pub struct Told {
    files: Mutex<Halves<Known>>,
    ended: Condvar,
    paged: Vec<AtomicU64>,
}

impl Default for Told {
    fn default() -> Told {
        let paged = (0..PAGED_BITS / 64).map(|_| AtomicU64::new(0)).collect();
        Told { files: Mutex::new(Halves::new(FILES_MAX)), ended: Condvar::new(), paged }
    }
}

/// What telling attributes may need.
pub struct Means<'a> {
    /// Whether nothing under this lease can have been changed by another client.
    pub is_leased: &'a dyn Fn(Lease) -> bool,
    /// The calling thread is about to wait for another one.
    pub waits: &'a dyn Fn(),
    /// Whether the kernel has no page that it did not have before its pages were thrown away last.
    pub are_clean: &'a dyn Fn() -> bool,
    /// Throws the kernel's pages of the file away.
    pub drop_pages: &'a dyn Fn(),
}

/// How attributes are to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Showing {
    /// To be believed for as long as their lease lasts.
    Believed,
    /// To this thread first, not to be believed; to be followed by [`Told::first_is_done`] after a while.
    First(First),
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
        files.put(attr.ino, Known { attrs: same.then_some(version), opened: Some(version), ..known });
        AtOpen { forget_attrs: !same, keep_pages: known.opened == Some(version) }
    }

    fn bit(&self, ino: Ino) -> (&AtomicU64, u64) {
        let bit = (ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PAGED_BITS;
        (&self.paged[bit / 64], 1 << (bit % 64))
    }

    /// The kernel is about to have pages of this file.
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

    /// Returns when a thread may be told these attributes, and how.
    pub fn show(&self, attr: &Attr, lease: Option<Lease>, thread: u32, means: &Means<'_>) -> Showing {
        let version = Version::of(attr);
        let mut files = self.files.lock();
        let mut known = loop {
            let mut known = files.take(attr.ino).unwrap_or_default();
            if known.drops == 0 && known.first.is_none_or(|first| first.thread == thread && thread != 0) {
                if known.first.take().is_some() {
                    // It asks again, so the kernel has taken its answer.
                    known.shown = None;
                    break Known { drops: 1, ..known };
                }
                break known;
            }
            files.put(attr.ino, known);
            drop(files);
            (means.waits)();
            files = self.files.lock();
            let known = files.take(attr.ino).unwrap_or_default();
            files.put(attr.ino, known);
            if known.drops > 0 || known.first.is_some() {
                self.ended.wait(&mut files);
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
            if known.shown.is_none_or(|shown| shown.size != version.size) {
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

    /// A thread that was answered first has had its time: whether pages are to be thrown away now, which
    /// [`Told::first_has_ended`] ends.
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

    /// Others are about to hear that they have changed the file. Whether there may be pages to be thrown away; if so nobody
    /// is told attributes until [`Told::dropped`].
    pub fn begin_drop(&self, ino: Ino) -> bool {
        if !self.may_have_pages(ino) {
            return false;
        }
        let mut files = self.files.lock();
        let known = files.take(ino).unwrap_or_default();
        files.put(ino, Known { drops: known.drops + 1, lease: None, ..known });
        true
    }

    /// The pages have gone that the kernel had.
    pub fn dropped(&self, ino: Ino) {
        self.end_drop(ino, None);
    }

    /// The same, of pages that a thread which was answered first may not have thrown away.
    pub fn first_has_ended(&self, ino: Ino, first: First) {
        self.end_drop(ino, Some((first.version, None)));
    }

    /// Pages have gone that were there; the others are not older than this.
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

    /// Whether the kernel may be given these attributes at once.
    pub fn is_shown(&self, attr: &Attr) -> bool {
        if !self.may_have_pages(attr.ino) {
            return true;
        }
        let mut files = self.files.lock();
        let Some(known) = files.take(attr.ino) else { return false };
        files.put(attr.ino, known);
        known.shown == Some(Version::of(attr)) && known.drops == 0
    }

    /// This mount has changed a file's attributes, which are told without regard to pages and believed by nobody.
    pub fn changed(&self, attr: &Attr, is_leased: impl Fn(Lease) -> bool) {
        let mut files = self.files.lock();
        let known = files.take(attr.ino).unwrap_or_default();
        let is_own = known.shown.is_some() && known.lease.is_some_and(is_leased);
        // Of what is not its own the kernel knows the length now; its pages may be of any time.
        let before = Version { mtime: Time(0), ctime: Time(0), ..Version::of(attr) };
        files.put(attr.ino, Known { shown: Some(if is_own { Version::of(attr) } else { before }), ..known });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::attr::FileKind;
    use aze_proto::ids::{MapEpoch, ShardId};
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

    /// What telling this takes: pages are thrown away, or a thread is first.
    fn tell(told: &Told, size: u64, ctime: u64, thread: u32, is_leased: bool, are_clean: bool) -> &'static str {
        let dropped = Cell::new(false);
        let means = Means {
            is_leased: &|_| is_leased,
            waits: &|| {},
            are_clean: &|| are_clean,
            drop_pages: &|| dropped.set(true),
        };
        match told.show(&attr(2, size, ctime), Some(Lease::default()), thread, &means) {
            Showing::First(_) => "first",
            Showing::Believed if dropped.get() => "dropped",
            Showing::Believed => "",
        }
    }

    #[test]
    fn pages_go_before_a_change_of_others_is_told() {
        let told = Told::default();
        assert_eq!([tell(&told, 5, 1, 7, false, false), tell(&told, 5, 2, 7, false, false)], ["", ""], "none");
        told.has_pages(Ino(2));
        assert_eq!(tell(&told, 5, 2, 7, false, false), "");
        assert_eq!(tell(&told, 5, 3, 7, false, false), "dropped");
        assert!(told.is_shown(&attr(2, 5, 3)) && !told.is_shown(&attr(2, 5, 4)));
        assert_eq!(tell(&told, 9, 2, 7, false, false), "", "a late answer");
        assert_eq!(tell(&told, 5, 4, 7, false, true), "", "they went when it was recalled");
        assert_eq!(tell(&told, 5, 5, 7, true, false), "", "a change of one's own");
        told.changed(&attr(2, 5, 6), |_| true);
        assert_eq!(tell(&told, 5, 6, 7, true, false), "");
        told.changed(&attr(2, 5, 7), |_| false);
        assert_eq!(tell(&told, 5, 7, 7, false, false), "dropped", "what was there before may have been another's");
    }

    #[test]
    fn of_another_length_one_thread_is_told_first() {
        let told = Told::default();
        tell(&told, 5, 1, 7, false, false);
        told.has_pages(Ino(2));
        assert_eq!(tell(&told, 9, 2, 7, false, false), "first");
        assert!(!told.is_shown(&attr(2, 9, 2)));
        assert_eq!(tell(&told, 9, 2, 7, false, false), "dropped", "it asks again");
        assert_eq!(tell(&told, 9, 2, 8, false, false), "");
        let means = Means { is_leased: &|_| false, waits: &|| {}, are_clean: &|| false, drop_pages: &|| {} };
        let Showing::First(first) = told.show(&attr(2, 4, 3), None, 0, &means) else { panic!("it is another length") };
        // It has no name, so that nothing is known of it but that it has had its time.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| tell(&told, 4, 3, 0, false, false));
            assert!(told.first_is_done(Ino(2), first));
            assert!(!told.first_is_done(Ino(2), first));
            told.first_has_ended(Ino(2), first);
            assert_eq!(other.join().expect("it is told"), "");
        });
    }

    #[test]
    fn nobody_is_told_while_pages_are_thrown_away() {
        let told = Told::default();
        assert!(!told.begin_drop(Ino(2)), "there are none");
        told.has_pages(Ino(2));
        assert!(told.begin_drop(Ino(2)));
        let (waits, is_done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let waits = || {
                    waits.fetch_add(1, SeqCst);
                };
                let means = Means { is_leased: &|_| false, waits: &waits, are_clean: &|| true, drop_pages: &|| {} };
                assert_eq!(told.show(&attr(2, 5, 1), None, 7, &means), Showing::Believed);
                assert_eq!(is_done.load(SeqCst), 1);
            });
            while waits.load(SeqCst) < 1 {
                std::thread::yield_now();
            }
            is_done.store(1, SeqCst);
            told.dropped(Ino(2));
        });
    }

    #[test]
    fn answers_that_cross_are_not_trusted() {
        let told = Told::default();
        told.tell(Version::of(&attr(2, 9, 4)));
        told.tell(Version::of(&attr(2, 5, 1)));
        assert!(told.open(&attr(2, 9, 4)).forget_attrs);
    }
}
