//! Attributes of directories for callers that do not need the latest.
//!
//! The kernel asks for a directory's attributes before every change in it, only to check rights, and
//! the exact answer takes a request to every server with entries of it. So the last answer is kept
//! for as long as the asker allows, with this client's own changes of files added: it sees its own changes
//! at once, and those of others when it asks anew. Less frequent changes make it
//! forget the answer.

use crate::leases::Lease;
use aze_io::sync::Mutex;
use aze_proto::place::Layout;
use aze_proto::{Attr, FileKind, Generation, Ino, Spread, Stub, Time};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// For how long the exact counts of directories are not asked for after a server did not answer such a
/// question: each takes the home a second, which every program in the directory waits for.
const REST: Duration = Duration::from_secs(5);

/// Links of a directory whose subdirectories could not be counted: what file systems tell that do not count
/// them. Programs that search trees then look at every entry.
const LINKS_UNKNOWN: u32 = 1;

/// Directories kept at most; one more makes all of them forgotten, which costs a request each.
const DIRECTORIES_MAX: usize = 4096;

/// Attributes with their age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aged {
    /// The attributes.
    pub attr: Attr,
    /// How long ago they were exact, this client's own changes aside.
    pub age: Duration,
    /// Until when they may be believed, and the name that led to them; directories go without.
    pub lease: Option<Lease>,
}

impl From<Attr> for Aged {
    fn from(attr: Attr) -> Aged {
        Aged { attr, age: Duration::ZERO, lease: None }
    }
}

#[derive(Default)]
pub(crate) struct DirAttrs {
    table: Mutex<Table>,
    /// Until when exact counts are not asked for.
    rests_until_ns: AtomicU64,
}

#[derive(Default)]
struct Table {
    known: BTreeMap<Ino, Known>,
    fetching: BTreeMap<Ino, Fetching>,
}

struct Known {
    attr: Attr,
    /// When the answer was asked for.
    asked_ns: u64,
    /// Until when it must do however old it is, since the directory's home does not answer.
    must_do_until_ns: u64,
}

/// What happens to a directory while its attributes are on their way.
#[derive(Default)]
struct Fetching {
    fetchers: u32,
    /// The latest of this client's own changes.
    changed: Time,
    /// The answer must not be kept.
    is_outdated: bool,
}

impl DirAttrs {
    /// The last answer, if it is young enough.
    pub(crate) fn young(&self, dir: Ino, now_ns: u64, age_max: Duration) -> Option<Aged> {
        let table = self.table.lock();
        let known = table.known.get(&dir)?;
        let age = Duration::from_nanos(now_ns.saturating_sub(known.asked_ns));
        (age < age_max || now_ns < known.must_do_until_ns).then(|| Aged { attr: known.attr.clone(), age, lease: None })
    }

    /// Whether a server has lately not answered when exact counts were gathered.
    pub(crate) fn rests(&self, now_ns: u64) -> bool {
        now_ns < self.rests_until_ns.load(Ordering::Relaxed)
    }

    /// A server has not answered: exact counts are not asked for until [`REST`] is over.
    pub(crate) fn rest(&self, now_ns: u64) {
        self.rests_until_ns.store(now_ns.saturating_add(REST.as_nanos() as u64), Ordering::Relaxed);
    }

    /// Attributes of a directory as its home alone knows them, with the number of entries that was last known.
    pub(crate) fn with_last_counts(&self, attr: Attr) -> Attr {
        let table = self.table.lock();
        let last = table.known.get(&attr.ino).map(|known| &known.attr);
        let (size, mtime) = last.map_or((attr.size, attr.mtime), |last| (last.size, last.mtime.max(attr.mtime)));
        Attr { size, mtime, links: LINKS_UNKNOWN, ..attr }
    }

    /// The home does not answer: the last answer must do until [`REST`] is over. `None` if nothing is.
    pub(crate) fn make_do(&self, dir: Ino, now_ns: u64) -> Option<Attr> {
        let mut table = self.table.lock();
        let known = table.known.get_mut(&dir)?;
        known.must_do_until_ns = now_ns.saturating_add(REST.as_nanos() as u64);
        Some(known.attr.clone())
    }

    /// A directory, by its rights alone, with the times that its home has told with them.
    pub(crate) fn of_rights(&self, stub: &Stub, shards: u32) -> Attr {
        Attr {
            ino: stub.ino,
            kind: FileKind::Directory,
            mode: stub.mode,
            links: LINKS_UNKNOWN,
            uid: stub.uid,
            gid: stub.gid,
            rdev: 0,
            size: 0,
            atime: stub.mtime,
            mtime: stub.mtime,
            ctime: stub.ctime,
            btime: Time(0),
            generation: Generation(0),
            born: stub.born,
            layout: Layout::new(stub.ino.prefix(), shards),
            chunk_bits: stub.chunk_bits,
            spread: Spread::default(),
            // Its home knows.
            has_xattrs: true,
            parent: stub.ino,
        }
    }

    /// The attributes are being asked for; [`Self::end`] must follow.
    pub(crate) fn begin(&self, dir: Ino) {
        self.table.lock().fetching.entry(dir).or_default().fetchers += 1;
    }

    /// The answer, or that there is none. Gives the answer with the changes made meanwhile.
    pub(crate) fn end(&self, dir: Ino, asked_ns: u64, answer: Option<Attr>) -> Option<Attr> {
        let mut table = self.table.lock();
        let Some(fetching) = table.fetching.get_mut(&dir) else { return answer };
        fetching.fetchers -= 1;
        let (changed, keep) = (fetching.changed, !fetching.is_outdated);
        if fetching.fetchers == 0 {
            table.fetching.remove(&dir);
        }
        let mut attr = answer?;
        if keep {
            touch(&mut attr, changed);
            if table.known.len() >= DIRECTORIES_MAX {
                table.known.clear();
            }
            table.known.insert(dir, Known { attr: attr.clone(), asked_ns, must_do_until_ns: 0 });
        }
        Some(attr)
    }

    /// This client has put a file into the directory, or taken one away.
    pub(crate) fn changed(&self, dir: Ino, came: bool, time: Time) {
        let mut table = self.table.lock();
        if let Some(fetching) = table.fetching.get_mut(&dir) {
            fetching.changed = fetching.changed.max(time);
        }
        if let Some(known) = table.known.get_mut(&dir) {
            known.attr.size = if came { known.attr.size + 1 } else { known.attr.size.saturating_sub(1) };
            touch(&mut known.attr, time);
        }
    }

    /// This client has made a directory in this one.
    pub(crate) fn grown(&self, dir: Ino, time: Time) {
        let mut table = self.table.lock();
        if let Some(fetching) = table.fetching.get_mut(&dir) {
            // Whether it is counted there is not known, and programs take the number of links for exact.
            fetching.is_outdated = true;
        }
        if let Some(known) = table.known.get_mut(&dir) {
            known.attr.links += 1;
            known.attr.size += 1;
            touch(&mut known.attr, time);
        }
    }

    /// A directory in this one may be no more.
    pub(crate) fn forget_in(&self, parent: Ino) {
        let mut table = self.table.lock();
        table.known.retain(|_, known| known.attr.parent != parent);
        // Of those on their way it is not known where they are.
        table.fetching.values_mut().for_each(|fetching| fetching.is_outdated = true);
    }

    /// Forgets all directories; answers on their way are not kept.
    pub(crate) fn forget_all(&self) {
        let mut table = self.table.lock();
        table.known.clear();
        table.fetching.values_mut().for_each(|fetching| fetching.is_outdated = true);
    }

    /// Something has happened to the directory that is not followed here.
    pub(crate) fn forget(&self, dir: Ino) {
        let mut table = self.table.lock();
        table.known.remove(&dir);
        if let Some(fetching) = table.fetching.get_mut(&dir) {
            fetching.is_outdated = true;
        }
    }
}

/// An entry came or went at `time`.
fn touch(attr: &mut Attr, time: Time) {
    attr.mtime = attr.mtime.max(time);
    attr.ctime = attr.ctime.max(time);
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::MapEpoch;

    const DIR: Ino = Ino(7);
    const SECOND: Duration = Duration::from_secs(1);

    fn attr(size: u64, mtime: u64) -> Attr {
        Attr {
            ino: DIR,
            kind: FileKind::Directory,
            mode: 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            atime: Time(0),
            mtime: Time(mtime),
            ctime: Time(mtime),
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

    fn fetch(attrs: &DirAttrs, asked_ns: u64, answer: Attr) {
        attrs.begin(DIR);
        attrs.end(DIR, asked_ns, Some(answer));
    }

    #[test]
    fn an_answer_is_kept_until_it_is_too_old() {
        let attrs = DirAttrs::default();
        assert_eq!(attrs.young(DIR, 5, SECOND), None);
        fetch(&attrs, 5, attr(1, 10));
        assert_eq!(attrs.young(DIR, 6, SECOND).map(|aged| aged.age), Some(Duration::from_nanos(1)));
        assert_eq!(attrs.young(DIR, 1_000_000_005, SECOND), None);
    }

    #[test]
    fn what_was_forgotten_and_what_was_on_its_way_is_asked_anew() {
        let attrs = DirAttrs::default();
        fetch(&attrs, 5, attr(1, 10));
        attrs.begin(DIR);
        attrs.forget_all();
        assert_eq!(attrs.young(DIR, 6, SECOND), None);
        attrs.end(DIR, 6, Some(attr(1, 10)));
        assert_eq!(attrs.young(DIR, 7, SECOND), None, "it was asked for before");
        fetch(&attrs, 8, attr(2, 20));
        assert_eq!(attrs.young(DIR, 9, SECOND).map(|aged| aged.attr.size), Some(2));
    }

    #[test]
    fn names_go_on_while_counts_cannot_be_gathered() {
        let attrs = DirAttrs::default();
        assert_eq!((attrs.make_do(DIR, 0), attrs.rests(0)), (None, false));
        fetch(&attrs, 5, attr(7, 10));
        let of_home = attrs.with_last_counts(attr(0, 20));
        assert_eq!((of_home.size, of_home.links, of_home.mtime), (7, LINKS_UNKNOWN, Time(20)));
        let rest_ns = REST.as_nanos() as u64;
        attrs.rest(100);
        assert_eq!([99 + rest_ns, 100 + rest_ns].map(|now_ns| attrs.rests(now_ns)), [true, false]);
        // The home itself is silent: the last answer will do, and then it is asked again.
        assert_eq!(attrs.make_do(DIR, 100), Some(attr(7, 10)));
        assert_eq!(attrs.young(DIR, 99 + rest_ns, Duration::ZERO).map(|aged| aged.attr), Some(attr(7, 10)));
        assert_eq!(attrs.young(DIR, 100 + rest_ns, Duration::ZERO), None);
        // An answer of the home in between counts at once.
        attrs.make_do(DIR, 100);
        fetch(&attrs, 101, attr(8, 30));
        assert_eq!(attrs.young(DIR, 101 + rest_ns, SECOND), None);
    }

    #[test]
    fn own_changes_show_at_once() {
        let attrs = DirAttrs::default();
        fetch(&attrs, 0, attr(1, 10));
        attrs.changed(DIR, true, Time(20));
        assert_eq!(attrs.young(DIR, 1, SECOND).map(|aged| (aged.attr.size, aged.attr.mtime)), Some((2, Time(20))));
        attrs.changed(DIR, false, Time(15));
        assert_eq!(attrs.young(DIR, 1, SECOND).map(|aged| (aged.attr.size, aged.attr.mtime)), Some((1, Time(20))));
    }

    #[test]
    fn a_new_directory_is_one_more_link() {
        let attrs = DirAttrs::default();
        fetch(&attrs, 0, attr(1, 10));
        attrs.grown(DIR, Time(20));
        let expected = Attr { links: 3, ..attr(2, 20) };
        assert_eq!(attrs.young(DIR, 1, SECOND).map(|aged| aged.attr), Some(expected));
        attrs.begin(DIR);
        attrs.grown(DIR, Time(30));
        attrs.end(DIR, 2, Some(attr(2, 20)));
        assert_eq!(attrs.young(DIR, 3, SECOND).map(|aged| (aged.attr.links, aged.attr.size)), Some((4, 3)));
    }

    #[test]
    fn a_change_while_the_answer_is_on_its_way_is_not_lost() {
        let attrs = DirAttrs::default();
        attrs.begin(DIR);
        attrs.changed(DIR, true, Time(30));
        let answer = attrs.end(DIR, 0, Some(attr(1, 10)));
        assert_eq!(answer.map(|attr| attr.mtime), Some(Time(30)));
        assert_eq!(attrs.young(DIR, 1, SECOND).map(|aged| aged.attr.mtime), Some(Time(30)));
    }

    #[test]
    fn what_is_removed_is_not_answered_from_what_was_known() {
        let attrs = DirAttrs::default();
        fetch(&attrs, 0, attr(1, 10));
        attrs.forget_in(Ino(99));
        assert!(attrs.young(DIR, 1, SECOND).is_some());
        attrs.begin(DIR);
        attrs.forget_in(Ino::ROOT);
        assert!(attrs.end(DIR, 0, Some(attr(1, 10))).is_some());
        assert_eq!(attrs.young(DIR, 1, SECOND), None);
    }

    #[test]
    fn an_answer_overtaken_by_what_is_not_followed_is_not_kept() {
        let attrs = DirAttrs::default();
        attrs.begin(DIR);
        attrs.forget(DIR);
        assert!(attrs.end(DIR, 0, Some(attr(1, 10))).is_some());
        assert_eq!(attrs.young(DIR, 1, SECOND), None);
        fetch(&attrs, 0, attr(1, 10));
        attrs.forget(DIR);
        assert_eq!(attrs.young(DIR, 1, SECOND), None);
    }
}
