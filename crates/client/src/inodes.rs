//! What this client knows of the files it has open.
//!
//! All opens of one file share its state: its size, its generation, and whether a write
//! has not yet been reported, so that a stat through one descriptor shows data written through
//! another.

use crate::opened::{Contents, version};
use crate::share::Subscribed;
use aze_io::sync::Mutex;
use aze_proto::{Attr, Generation, Identity, Ino, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// How long a write within the file's size may go unreported, in nanoseconds: the age that a
/// modification time seen by others may have.
const REPORT_INTERVAL_NS: u64 = 1_000_000_000;

/// Set-user-id and set-group-id.
const SET_ID_BITS: u32 = 0o6000;

/// Entries of files that are closed are cleared away when at least that many are there.
const CLEAR_AT_MIN: usize = 64;

pub(crate) struct Inodes {
    table: Mutex<Table>,
    contents: Arc<Contents>,
    subscribed: Subscribed,
}

#[derive(Default)]
struct Table {
    open: BTreeMap<Ino, Weak<Inode>>,
    clear_at: usize,
}

/// One open file.
pub(crate) struct Inode {
    state: Mutex<State>,
    contents: Arc<Contents>,
    /// The subscriber that counts it as open, by this number.
    counted: Option<(Ino, Subscribed)>,
}

struct State {
    attr: Attr,
    opener: Identity,
    /// A write has happened of whose time the home does not know.
    dirty: bool,
    /// When the home last learnt of a write of this client.
    reported_ns: Option<u64>,
    /// Since the volume was started again no server has said anything of it: it may not be there any more.
    forgotten: bool,
}

/// What a write beyond chunk 0 has to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportNow {
    /// That the file ends here at least.
    End(u64),
    /// That it was written.
    Time,
    /// Nothing yet.
    Nothing,
}

impl Inodes {
    /// No open files; `contents` is told when a file is known to be another one than it was.
    pub(crate) fn new(contents: Arc<Contents>, subscribed: Subscribed) -> Inodes {
        Inodes { table: Mutex::default(), contents, subscribed }
    }

    /// The shared knowledge of a file that was opened with these attributes.
    pub(crate) fn open(&self, attr: &Attr, opener: &Identity) -> Arc<Inode> {
        let mut table = self.table.lock();
        if let Some(inode) = table.open.get(&attr.ino).and_then(Weak::upgrade) {
            inode.learn(attr);
            return inode;
        }
        if table.open.len() >= table.clear_at.max(CLEAR_AT_MIN) {
            table.open.retain(|_, inode| inode.strong_count() > 0);
            table.clear_at = table.open.len() * 2;
        }
        let state =
            State { attr: attr.clone(), opener: opener.clone(), dirty: false, reported_ns: None, forgotten: false };
        let counted = self.subscribed.get().map(|subscriber| {
            subscriber.opened(attr.ino);
            (attr.ino, self.subscribed.clone())
        });
        let inode = Arc::new(Inode { state: Mutex::new(state), contents: self.contents.clone(), counted });
        table.open.insert(attr.ino, Arc::downgrade(&inode));
        inode
    }

    /// The attributes of a file, if it is open.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.table.lock().open.get(&ino).and_then(Weak::upgrade)
    }

    /// All open files.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.table.lock().open.values().filter_map(Weak::upgrade).collect()
    }

    /// Takes in what a server said of a file, should it be open.
    pub(crate) fn learn(&self, attr: &Attr) {
        if let Some(inode) = self.get(attr.ino) {
            inode.learn(attr);
        }
    }

    /// Forgets sizes, generations and times: the next answer of a server is believed.
    pub(crate) fn forget_all(&self) {
        for inode in self.all() {
            let mut state = inode.state.lock();
            state.forgotten = true;
            let known = &mut state.attr;
            (known.generation, known.size, known.ctime) = (Generation(0), 0, Time(0));
        }
        self.contents.forget_all();
    }

    /// Whether a write to the file is unreported.
    pub(crate) fn is_dirty(&self, ino: Ino) -> bool {
        self.get(ino).is_some_and(|inode| inode.is_dirty())
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if let Some((ino, subscribed)) = &self.counted
            && let Some(subscriber) = subscribed.get()
        {
            subscriber.closed(*ino);
        }
    }
}

impl Inode {
    /// The attributes as last known.
    pub(crate) fn attr(&self) -> Attr {
        self.state.lock().attr.clone()
    }

    /// The same, if a server has said so since the volume was started last.
    pub(crate) fn attr_of_this_start(&self) -> Option<Attr> {
        let state = self.state.lock();
        (!state.forgotten).then(|| state.attr.clone())
    }

    /// On whose behalf it was first opened.
    pub(crate) fn opener(&self) -> Identity {
        self.state.lock().opener.clone()
    }

    /// Takes in what a server said. Answers may come in any order: within one generation a size
    /// never shrinks and times never go back, unless they are set.
    pub(crate) fn learn(&self, attr: &Attr) {
        let mut state = self.state.lock();
        #[cfg(debug_assertions)]
        crate::planted::Planted::Noting.reached();
        state.forgotten = false;
        let known = &mut state.attr;
        let before = version(known);
        if attr.generation < known.generation {
            return;
        }
        let size = if attr.generation == known.generation { known.size.max(attr.size) } else { attr.size };
        // Data never reach less far than they did.
        let reach = known.spread.reach().max(attr.spread.reach());
        if attr.generation > known.generation || attr.ctime >= known.ctime {
            *known = attr.clone();
        }
        (known.size, known.spread) = (size, known.spread.with_reach(reach));
        if version(known) != before {
            drop(self.contents.change(known.ino));
        }
    }

    /// A write up to `end`, in the generation of `attr`, has been acknowledged.
    pub(crate) fn wrote(&self, attr: &Attr, end: u64) {
        let known = &mut self.state.lock().attr;
        if known.generation == attr.generation {
            known.size = known.size.max(end);
        }
    }

    /// What a write beyond chunk 0 up to `end` has to report along with its data.
    pub(crate) fn report_for(&self, end: u64, now_ns: u64) -> ReportNow {
        let mut state = self.state.lock();
        let due = state.reported_ns.is_none_or(|last| now_ns.saturating_sub(last) >= REPORT_INTERVAL_NS)
            // The report is what takes these bits from the file: not a second later.
            || state.attr.mode & SET_ID_BITS != 0;
        let report = match end > state.attr.size {
            true => ReportNow::End(end),
            false if due => ReportNow::Time,
            false => ReportNow::Nothing,
        };
        if report == ReportNow::Nothing {
            state.dirty = true;
        } else {
            state.reported_ns = Some(now_ns);
        }
        report
    }

    /// Whether a write is unreported.
    pub(crate) fn is_dirty(&self) -> bool {
        self.state.lock().dirty
    }

    /// Takes over the duty to report, if there is one.
    pub(crate) fn take_dirty(&self) -> bool {
        std::mem::take(&mut self.state.lock().dirty)
    }

    /// The report has failed: another write may try.
    pub(crate) fn still_dirty(&self) {
        self.state.lock().dirty = true;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use aze_proto::{FileKind, MapEpoch};

    /// Attributes of a file of this size and generation.
    pub(crate) fn attr(size: u64, generation: u32, ctime: u64) -> Attr {
        Attr {
            ino: Ino(9),
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
            generation: Generation(generation),
            born: MapEpoch(1),
            layout: aze_proto::place::Layout::default(),
            chunk_bits: 20,
            spread: aze_proto::Spread::default(),
            has_xattrs: false,
            parent: Ino(0),
        }
    }

    fn inodes() -> Inodes {
        Inodes::new(Arc::new(Contents::new(4096)), Subscribed::default())
    }

    #[test]
    fn opens_of_one_file_share_what_is_known() {
        let inodes = inodes();
        let one = inodes.open(&attr(5, 0, 1), &Identity::default());
        let two = inodes.open(&attr(7, 0, 2), &Identity::default());
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(one.attr().size, 7);
        drop((one, two));
        assert!(inodes.get(Ino(9)).is_none());
    }

    #[test]
    fn late_answers_do_not_shrink_a_file_and_truncation_does() {
        let inode = inodes().open(&attr(100, 0, 5), &Identity::default());
        inode.learn(&attr(50, 0, 3));
        assert_eq!((inode.attr().size, inode.attr().ctime), (100, Time(5)));
        inode.learn(&attr(50, 0, 6));
        assert_eq!((inode.attr().size, inode.attr().ctime), (100, Time(6)));
        inode.learn(&attr(10, 1, 4));
        assert_eq!(inode.attr().size, 10);
        inode.learn(&attr(100, 0, 9));
        assert_eq!(inode.attr().size, 10);
        inode.wrote(&attr(0, 0, 0), 500);
        assert_eq!(inode.attr().size, 10, "a write of an older generation was truncated");
        inode.wrote(&attr(0, 1, 0), 500);
        assert_eq!(inode.attr().size, 500);
    }

    #[test]
    fn what_extends_is_reported_and_the_rest_once_a_second() {
        const SECOND: u64 = 1_000_000_000;
        let inode = inodes().open(&attr(100, 0, 5), &Identity::default());
        assert_eq!(inode.report_for(200, 0), ReportNow::End(200));
        assert_eq!(inode.report_for(200, 1), ReportNow::End(200), "as long as it is not acknowledged");
        inode.wrote(&attr(0, 0, 0), 200);
        assert_eq!((inode.report_for(200, 2), inode.is_dirty()), (ReportNow::Nothing, true));
        assert_eq!(inode.report_for(150, SECOND + 1), ReportNow::Time);
        assert!(inode.take_dirty() && !inode.take_dirty());
    }

    #[test]
    fn closed_files_are_cleared_away() {
        let inodes = inodes();
        for ino in 1..1000 {
            inodes.open(&Attr { ino: Ino(ino), ..attr(0, 0, 0) }, &Identity::default());
        }
        assert!(inodes.table.lock().open.len() <= CLEAR_AT_MIN);
    }
}
