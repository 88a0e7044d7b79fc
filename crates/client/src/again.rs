//! Opening a file again that this client has open for reading, without a request.
//!
//! It alone knows when that is allowed: the home has registered an open of this client for the same user, and nothing of the file has
//! changed since then. That is known by the file's record in a published index, or by a lease that came with the open and was not
//! recalled, if this client itself has changed nothing either. So programs that open one file from many processes of a
//! node ask its home once (FINCHFS, "contact servers").
//!
//! A name that was opened stays known with it, for the client of a server that opens files for those of its node: a
//! rename or removal recalls the file's lease, and any other change of a path raises the epoch of the namespace.
//!
//! A file is remembered from its second open on, so that files that one process each opens take no room here. Its open is
//! then held for a second after the last use.

use crate::client::{Client, Core};
use crate::closes::Registered;
use crate::file::{File, How};
use crate::leases::{Lease, Leases};
use crate::opened::{CONTENTS_TIME, Opened};
use crate::published::Witness;
use crate::route::{Place, Question};
use crate::tries::Tries;
use aze_io::sync::Mutex;
use aze_proto::rules::Changes;
use aze_proto::{Attr, FileKind, Identity, Ino, MapEpoch, Name, NamespaceEpoch, Request};
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Files that were opened once, the latest at each place.
const ONCE_MAX: usize = 256;

/// Files that may be opened again without a request; beyond, the one that was used longest ago goes.
const KNOWN_MAX: usize = 1024;

/// Contents that are kept for all of them.
const CONTENTS_BYTES_MAX: usize = 16 << 20;

/// How long an open is held after its last use: no longer than a lease lasts.
const HELD: Duration = CONTENTS_TIME;

/// Inodes share counters of changes; two that share one cost a request now and then.
const COUNTERS: usize = 1 << 12;

/// Whether this process is told before a path through the directory changes.
pub type IsTold = Arc<dyn Fn(Ino) -> BoxFuture<'static, bool> + Send + Sync>;

pub(crate) struct Again {
    /// In which directories names are believed.
    pub(crate) is_told: OnceLock<IsTold>,
    table: Mutex<Table>,
    /// Whether there may be a file that can be opened again.
    is_some: AtomicBool,
    /// A look at a name in an index before an open: it helps where the file is opened again, or lives elsewhere than its name.
    pub(crate) looks: Tries,
    /// Changes of this client, begun, and again when they ended: of inodes, and of names.
    changes: Vec<AtomicU64>,
    names: AtomicU64,
    all: AtomicU64,
    /// Opens that took no request.
    opens: AtomicU64,
}

/// The place of an inode among so many.
fn place_of(ino: Ino, places: usize) -> usize {
    (ino.0 ^ ino.0 >> 48) as usize % places
}

#[derive(Default)]
struct Table {
    /// Each file has one place, by its number: a look is made before and after every open.
    once: Vec<Ino>,
    known: BTreeMap<Ino, Known>,
    /// The files with a known name.
    named: BTreeMap<(Ino, Name), Ino>,
    bytes: usize,
    /// A task will let go of the opens that are held.
    is_timed: bool,
}

/// An open by which a file is opened again.
struct Known {
    who: Identity,
    open: Weak<Registered>,
    /// Kept while this one lasts.
    held: Option<Arc<Registered>>,
    used_ns: u64,
    attr: Attr,
    /// The life of the home that has registered it: a later one does not know of it.
    life: u32,
    /// The lease that came with it, and what this client had changed before.
    lease: Option<(Before, Lease)>,
    /// The file's record from before it was sent.
    witness: Option<Arc<Witness>>,
    /// The contents that came with it: those of now while the record is the same, or the lease is good.
    contents: Option<Arc<Vec<u8>>>,
    /// The name by which it was opened.
    name: Option<KnownName>,
}

/// A name that led to a file, and was found by a path that was valid at this epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownName {
    pub(crate) parent: Ino,
    pub(crate) name: Name,
    pub(crate) epoch: NamespaceEpoch,
}

/// What this client has changed so far.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Before {
    file: u64,
    names: u64,
}

/// Notes of the state before an open for reading is sent.
pub(crate) struct Noted {
    /// Of the shard map: where it has changed, it is not known which life of a server has registered the open.
    map_epoch: MapEpoch,
    /// `None` where the file is not known before the answer: then the lease counts if this client has changed nothing meanwhile.
    before: Option<Before>,
    /// All changes of this client.
    all: u64,
    asked: Lease,
    witness: Option<Witness>,
}

/// A change by this client, from before it is sent until its caller waits no longer.
pub(crate) struct Changing<'a> {
    counter: &'a AtomicU64,
    all: &'a AtomicU64,
}

impl Changing<'_> {
    fn count(&self) {
        self.counter.fetch_add(1, SeqCst);
        self.all.fetch_add(1, SeqCst);
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.count();
    }
}

impl Default for Again {
    fn default() -> Again {
        let changes = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        let (names, all, opens) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (is_told, table, is_some, looks) =
            (OnceLock::new(), Mutex::default(), AtomicBool::new(false), Tries::default());
        Again { is_told, table, is_some, looks, changes, names, all, opens }
    }
}

impl Table {
    /// Whether the file was opened before, a short while ago.
    fn was_opened(&self, ino: Ino) -> bool {
        self.once.get(place_of(ino, ONCE_MAX)) == Some(&ino) || self.known.contains_key(&ino)
    }

    fn note_first(&mut self, ino: Ino) {
        self.once.resize(ONCE_MAX, Ino(0));
        self.once[place_of(ino, ONCE_MAX)] = ino;
    }

    fn remove(&mut self, ino: Ino) -> Option<Known> {
        let known = self.known.remove(&ino)?;
        if let Some(KnownName { parent, name, .. }) = &known.name {
            self.named.remove(&(*parent, name.clone()));
        }
        self.bytes -= known.contents.as_ref().map_or(0, |bytes| bytes.len());
        Some(known)
    }

    /// Forgets opens that are closed, and lets go of those by which no file was opened for a while.
    fn sweep(&mut self, now_ns: u64) -> Vec<Arc<Registered>> {
        let closed: Vec<Ino> =
            self.known.iter().filter(|(_, known)| known.open.strong_count() == 0).map(|(ino, _)| *ino).collect();
        for ino in closed {
            self.remove(ino);
        }
        let is_over = |known: &&mut Known| now_ns >= known.used_ns + HELD.as_nanos() as u64;
        self.known.values_mut().filter(is_over).filter_map(|known| known.held.take()).collect()
    }
}

impl Again {
    /// Whether a name in the directory may lead to a file without a request.
    pub(crate) async fn believes_names_in(&self, dir: Ino) -> bool {
        match self.is_told.get() {
            Some(is_told) => is_told(dir).await,
            None => false,
        }
    }

    fn counter(&self, ino: Ino) -> &AtomicU64 {
        &self.changes[place_of(ino, COUNTERS)]
    }

    fn before(&self, ino: Ino) -> Before {
        Before { file: self.counter(ino).load(SeqCst), names: self.names.load(SeqCst) }
    }

    /// Counts a request that may change a file that exists, until the result is dropped.
    pub(crate) fn change(&self, question: &Question<'_>) -> Option<Changing<'_>> {
        let request = question.request;
        let is_change = matches!(request.rules().changes, Changes::Names | Changes::Data);
        if !is_change || matches!(request, Request::Create(_) | Request::CreateUnnamed { .. }) {
            return None;
        }
        let counter = match (request.changes_contents_of(), question.place) {
            (Some(ino), _) | (None, Place::Home(ino)) => self.counter(ino),
            _ => &self.names,
        };
        let changing = Changing { counter, all: &self.all };
        changing.count();
        Some(changing)
    }

    /// The changes of this client from before something was asked, if the answer is about this file.
    fn before_of(&self, ino: Ino, noted: &Noted) -> Option<Before> {
        let now = self.before(ino);
        noted.before.or_else(|| (self.all.load(SeqCst) == noted.all).then_some(now))
    }

    /// Whether a name is looked at before it is opened.
    pub(crate) fn looks_first(&self) -> bool {
        self.is_some.load(SeqCst) || self.looks.is_next()
    }

    /// How many opens took no request.
    pub(crate) fn opens(&self) -> u64 {
        self.opens.load(SeqCst)
    }
}

impl How {
    /// Whether an open of this kind may stand for others. One for writing is counted by the home, and ends with its file.
    fn is_shared(self) -> bool {
        self.contents && self.access.read && !self.access.write && !self.to_run && !self.nameless
    }
}

impl Core {
    /// Opens a file again by an open that the home has registered, if nothing has changed since.
    pub(crate) fn open_again(self: &Arc<Self>, who: &Identity, ino: Ino, how: How) -> Option<Arc<File>> {
        self.open_known(who, ino, how, None)
    }

    /// Opens the file of a name in the same way, if neither the name nor the path to it has changed since it was opened by it.
    pub(crate) fn open_named_again(self: &Arc<Self>, who: &Identity, named: &KnownName, how: How) -> Option<Arc<File>> {
        let ino = *self.again.table.lock().named.get(&(named.parent, named.name.clone()))?;
        self.open_known(who, ino, how, Some(named))
    }

    /// Whether a file may be opened again without a request, or might a moment ago.
    pub(crate) fn is_opened_often(&self, ino: Ino) -> bool {
        self.again.table.lock().known.contains_key(&ino)
    }

    fn open_known(
        self: &Arc<Self>,
        who: &Identity,
        ino: Ino,
        how: How,
        named: Option<&KnownName>,
    ) -> Option<Arc<File>> {
        if !how.is_shared() {
            return None;
        }
        let seen = self.contents.seen(ino.home(self.routes.read().map.shards()));
        let life = self.life_of(ino);
        let (open, then, lease, witness, contents) = {
            let table = self.again.table.lock();
            let known = table.known.get(&ino).filter(|known| known.who == *who && known.life == life)?;
            named.is_none_or(|named| known.name.as_ref() == Some(named)).then_some(())?;
            let open = known.open.upgrade()?;
            (open, known.attr.clone(), known.lease, known.witness.clone(), known.contents.clone())
        };
        // A record says nothing of names.
        let is_recorded = named.is_none() && witness.is_some_and(|witness| self.is_unchanged(&witness));
        let is_leased = || {
            lease.is_some_and(|(before, lease)| {
                self.again.before(ino) == before && !self.leases.left(lease, ino, self.io.mono_ns()).is_zero()
            })
        };
        if !(is_recorded || is_leased()) || then.links == 0 {
            return None;
        }
        // A kernel has the pages, or asks for them.
        let contents = contents.filter(|_| is_recorded || named.is_some());
        let opened = contents.map(|bytes| self.contents.again(&then, bytes, seen, self.io.mono_ns()));
        {
            let mut table = self.again.table.lock();
            if let Some(known) = table.known.get_mut(&ino).filter(|known| known.open.ptr_eq(&Arc::downgrade(&open))) {
                (known.used_ns, known.held) = (self.io.mono_ns(), Some(open.clone()));
            }
        }
        self.let_go_later();
        self.again.opens.fetch_add(1, SeqCst);
        Some(File::opened(self, who, &then, how.access, open, opened, false))
    }

    /// Notes the state before an open is sent, if it may stand for others.
    pub(crate) fn note_before(&self, ino: Option<Ino>, how: How) -> Option<Noted> {
        if !how.is_shared() {
            return None;
        }
        let all = self.again.all.load(SeqCst);
        let (asked, before) = (self.leases.ask(self.io.mono_ns()), ino.map(|ino| self.again.before(ino)));
        let known = ino.filter(|ino| self.again.table.lock().was_opened(*ino));
        let witness = known.and_then(|ino| self.record(ino)).map(|(_, witness)| witness);
        Some(Noted { map_epoch: self.routes.read().map.epoch, before, all, asked, witness })
    }

    /// Remembers an open that the home has registered, if it is not the first of this file, and the name by which it was opened, with
    /// the lease of the name. `lease_ms` came with the answer.
    pub(crate) fn remember(
        self: &Arc<Self>,
        who: &Identity,
        attr: &Attr,
        open: &Arc<Registered>,
        noted: Noted,
        (lease_ms, opened): (u32, Option<&Opened>),
        name: Option<(KnownName, Lease)>,
    ) {
        let ino = attr.ino;
        if attr.kind != FileKind::File || noted.map_epoch != self.routes.read().map.epoch {
            return;
        }
        {
            let mut table = self.again.table.lock();
            if !table.was_opened(ino) {
                return table.note_first(ino);
            }
        }
        let before = self.again.before_of(ino, &noted);
        let witness = noted.witness.filter(|witness| witness.ino == ino).map(Arc::new);
        let lease = before.zip(Leases::lease(noted.asked, lease_ms));
        let (name, of_name) = name.filter(|_| lease.is_some()).unzip();
        let lease = lease.map(|(before, lease)| (before, of_name.map_or(lease, |other| lease.min(other))));
        let bytes = opened.and_then(Opened::bytes).filter(|_| witness.is_some() || name.is_some());
        let (now_ns, life) = (self.io.mono_ns(), self.life_of(ino));
        let dropped = {
            let mut table = self.again.table.lock();
            let mut dropped: Vec<Known> = table.remove(ino).into_iter().collect();
            if table.known.len() >= KNOWN_MAX {
                let oldest = table.known.iter().min_by_key(|(_, known)| known.used_ns).map(|(ino, _)| *ino);
                dropped.extend(oldest.and_then(|ino| table.remove(ino)));
            }
            let contents = bytes.filter(|bytes| table.bytes + bytes.len() <= CONTENTS_BYTES_MAX);
            table.bytes += contents.as_ref().map_or(0, |bytes| bytes.len());
            let known = Known {
                who: who.clone(),
                open: Arc::downgrade(open),
                held: Some(open.clone()),
                used_ns: now_ns,
                attr: attr.clone(),
                life,
                lease,
                witness,
                contents,
                name: name.clone(),
            };
            if let Some(KnownName { parent, name, .. }) = name {
                table.named.insert((parent, name), ino);
            }
            table.known.insert(ino, known);
            self.again.is_some.store(true, SeqCst);
            dropped
        };
        // Closing takes locks of its own.
        drop(dropped);
        self.let_go_later();
    }

    /// Has a task let go of held opens once their time is over, if none does. The task does not keep the client.
    fn let_go_later(&self) {
        if std::mem::replace(&mut self.again.table.lock().is_timed, true) {
            return;
        }
        let (io, this) = (self.io.clone(), self.me.clone());
        self.io.spawn(async move {
            loop {
                io.sleep(HELD).await;
                let Some(core) = this.upgrade() else { return };
                let mut table = core.again.table.lock();
                let let_go = table.sweep(io.mono_ns());
                // The next round finds that these are closed, and forgets them.
                let goes_on = !let_go.is_empty() || table.known.values().any(|known| known.held.is_some());
                table.is_timed = goes_on;
                core.again.is_some.store(!table.known.is_empty(), SeqCst);
                drop(table);
                drop(let_go);
                if !goes_on {
                    return;
                }
            }
        });
    }

    /// Forgets all opens, and lets go of them: each file is asked for when it is opened next.
    pub(crate) fn forget_opens(&self) {
        let known = {
            let mut table = self.again.table.lock();
            table.bytes = 0;
            table.named.clear();
            std::mem::take(&mut table.known)
        };
        drop(known);
    }

    /// Others have changed these inodes, or taken their names away: their opens stand for no other.
    pub(crate) fn not_again(&self, inos: impl Iterator<Item = Ino>) {
        let dropped: Vec<Known> = {
            let mut table = self.again.table.lock();
            inos.filter_map(|ino| table.remove(ino)).collect()
        };
        drop(dropped);
    }

    /// A server has answered a request. If that was to take a name away, this client lets go of the opens that it holds for later ones: the
    /// file may have gone with its name.
    pub(crate) fn has_answered(&self, request: &Request) {
        if !matches!(request, Request::Unlink { .. } | Request::Rename { .. }) {
            return;
        }
        let held: Vec<Arc<Registered>> =
            self.again.table.lock().known.values_mut().filter_map(|known| known.held.take()).collect();
        drop(held);
    }
}

impl Client {
    /// Opens of files that took no request, because this client had the file open.
    pub fn opens_without_request(&self) -> u64 {
        self.core.again.opens()
    }
}
