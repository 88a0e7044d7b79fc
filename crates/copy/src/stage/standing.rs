//! Objects that a volume alone holds: all of its objects, compared with the ledgers of staged objects.
//!
//! An object is *staged* if an entry of a ledger has its path and its version: inode, length, times, mode, owners, and
//! of a file the numbers of its data's changes as the servers count them. Nothing else counts as staged: objects
//! without an entry, objects changed since, and objects whose changes a server counted that was started again since are
//! *dirty*. So an error of a ledger, or a ledger that is lost, makes clean objects dirty and never the other way round.
//! Directories outside of all ledgers are passed over: they hold names and no data.
//!
//! Bounded: threads by `jobs`; the look ends early after [`LOST_MAX`] objects that cannot be looked at, since each may have cost
//! the time that a server is waited for; and at the moment that its caller sets.

use super::ledger::{Ledger, Route};
use super::prove::{OWN_NUMBERS, version};
use super::state::Version;
use crate::tree::{Meta, Origin, Spot, join};
use aze_io::sync::Mutex;
use aze_proto::attr::FileKind;
use aze_receipt::line::What;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The look ends after so many objects that cannot be looked at.
pub const LOST_MAX: usize = 8;

/// Objects of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub objects: u64,
    /// Bytes of the files among them.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Why an object is dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// No ledger knows it.
    New,
    /// Its data have changed since it was staged, or may have: a server was started again.
    Data,
    /// It came from the directory over which the volume lies, under another name.
    Renamed,
    /// Its data have not changed, but its times, mode, owners or extended attributes have.
    Attributes,
    /// It was staged out, or came from the directory over which the volume lies, and is not in the volume any more under this
    /// name; the other side still has it.
    Removed,
}

impl Why {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Why::New => "new",
            Why::Data => "changed",
            Why::Renamed => "renamed",
            Why::Attributes => "attributes changed",
            Why::Removed => "removed",
        }
    }
}

/// How a volume stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Objects as they were staged.
    pub staged: Count,
    /// Objects that are not.
    pub dirty: Count,
    /// Those of the dirty ones that have only other attributes, or were removed: no data are in the volume alone.
    pub without_data: u64,
    /// Those of the dirty ones that were removed.
    pub removed: u64,
    /// Objects that the volume has given up, since they were staged out.
    pub released: Count,
    /// The first dirty ones in the order of their paths, as many as were asked for.
    pub named: BTreeMap<Vec<u8>, Why>,
    /// Of those named that were renamed, the paths that they had.
    pub renamed_from: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What could not be looked at.
    pub lost: Vec<Trouble>,
    /// Why names that were removed are not among the dirty ones: servers tell only the volume's owner and root.
    pub untold: Option<Trouble>,
    /// The look ended early: there may be more of everything.
    pub ended_early: bool,
}

impl Standing {
    fn dirty(&mut self, path: Vec<u8>, why: Why, bytes: u64, named_max: usize) {
        let has_data = matches!(why, Why::New | Why::Data | Why::Renamed);
        self.dirty.add(if has_data { bytes } else { 0 });
        self.without_data += u64::from(!has_data);
        self.removed += u64::from(why == Why::Removed);
        if self.named.len() < named_max || self.named.last_key_value().is_some_and(|(last, _)| path < *last) {
            self.named.insert(path, why);
            while self.named.len() > named_max {
                if let Some((last, _)) = self.named.pop_last() {
                    self.renamed_from.remove(&last);
                }
            }
        }
    }

    fn renamed(&mut self, path: Vec<u8>, from: Vec<u8>, bytes: u64, named_max: usize) {
        self.dirty(path.clone(), Why::Renamed, bytes, named_max);
        if self.named.contains_key(&path) {
            self.renamed_from.insert(path, from);
        }
    }

    /// Why an object that is named is dirty, in words.
    pub fn why(&self, path: &[u8], why: Why) -> String {
        match self.renamed_from.get(path) {
            Some(from) => format!("{} from {}", why.word(), String::from_utf8_lossy(from)),
            None => why.word().into(),
        }
    }

    /// Whether this user's rights are all that is missing to look at the rest.
    pub fn is_closed(&self) -> bool {
        !self.lost.is_empty() && self.lost.iter().all(|trouble| trouble.exit == Exit::Denied)
    }

    fn is_over(&self) -> bool {
        self.lost.len() >= LOST_MAX
    }
}

/// What cannot be looked at, in a word: it is closed to this user, or lost.
pub fn word_for(trouble: &Trouble) -> &'static str {
    if trouble.exit == Exit::Denied { "closed" } else { "lost" }
}

/// Compares a file or directory of a volume, with all that is in it, with ledgers. `start` has its absolute path. Of the dirty
/// objects at most `named_max` are named. At the moment `until` the look ends early, as soon as requests under way are answered.
///
/// # Errors
/// The command was asked to end.
pub fn look(
    start: &Spot,
    ledgers: &[Ledger],
    jobs: usize,
    named_max: usize,
    until: Option<Instant>,
    is_over: &dyn Fn() -> bool,
) -> Outcome<Standing> {
    let is_late = || until.is_some_and(|until| Instant::now() >= until);
    let mut standing = Standing::default();
    let (mut waiting, mut seen, mut inodes) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    // A lost server does not tell its names of these directories, which may still be there.
    let mut unlisted = Vec::new();
    let mut gone = gone(start, &mut standing);
    let mut children = first(start, &mut waiting)?;
    loop {
        for (path, bytes, found) in judge(start, ledgers, &children, jobs, &is_late) {
            if ledgers.iter().any(|ledger| ledger.route.is_out() && version_of(ledger, &path).is_some()) {
                seen.insert(path.clone());
            }
            if !matches!(found, Found::Lost(_)) {
                gone.remove(&path);
            }
            match found {
                Found::Renamed(from, inode) => {
                    let bytes = if inodes.insert(inode) { bytes } else { 0 };
                    standing.renamed(path, from, bytes, named_max);
                }
                Found::Staged(inode) if inodes.insert(inode) => standing.staged.add(bytes),
                Found::Staged(_) => standing.staged.add(0),
                Found::Dirty(why, inode) if inodes.insert(inode) => standing.dirty(path, why, bytes, named_max),
                Found::Dirty(why, _) => standing.dirty(path, why, 0, named_max),
                Found::Passed => {}
                Found::Lost(trouble) => standing.lost.push(trouble),
            }
        }
        if is_over() {
            return Err(Trouble::new(Exit::Again, "the command was asked to end"));
        }
        if standing.is_over() || is_late() {
            standing.ended_early = true;
            return Ok(standing);
        }
        let Some(dir) = waiting.pop() else { break };
        children.clear();
        match is_untouched(start, &dir) {
            Ok(false) => {}
            Ok(true) => continue,
            Err(trouble) => {
                standing.lost.push(trouble);
                unlisted.push(dir);
                continue;
            }
        }
        match start.tree.list(&dir) {
            Ok(names) => {
                if let Some(trouble) = names.trouble {
                    standing.lost.push(trouble);
                    unlisted.push(dir.clone());
                }
                for entry in names.entries {
                    let path = join(&dir, &entry.name);
                    if entry.kind == FileKind::Directory {
                        waiting.push(path.clone());
                    }
                    children.push((path, entry.kind, entry.meta));
                }
            }
            // Another process has removed it.
            Err(trouble) if trouble.exit == Exit::NotFound => {}
            Err(trouble) => {
                standing.lost.push(trouble);
                unlisted.push(dir);
            }
        }
    }
    removed(ledgers, &seen, &unlisted, gone, named_max, &mut standing);
    Ok(standing)
}

/// The paths of the directory over which the volume lies that went, and may be names of something else now.
fn gone(start: &Spot, standing: &mut Standing) -> BTreeSet<Vec<u8>> {
    let inside = start.path.strip_suffix(b"/").unwrap_or(&start.path);
    let is_meant = |path: &Vec<u8>| path == inside || is_below(path, inside);
    match start.tree.gone() {
        Ok(all) => all.into_iter().map(|gone| gone.inside).filter(is_meant).collect(),
        Err(trouble) => {
            match trouble.exit {
                Exit::Denied => standing.untold = Some(trouble.during("names that were removed are not looked at")),
                _ => standing.lost.push(trouble),
            }
            BTreeSet::new()
        }
    }
}

/// Whether a directory is where it came from, and the volume has not taken any name of it yet: then all in it is clean.
fn is_untouched(start: &Spot, dir: &[u8]) -> Outcome<bool> {
    if !start.tree.has_origins() {
        return Ok(false);
    }
    let Some(meta) = start.tree.stat(dir, false)? else { return Ok(false) };
    Ok(start.tree.origin(&meta)?.is_some_and(|origin| origin.is_behind && origin.inside == dir))
}

/// The object at which a look starts; none if it is not there.
fn first(start: &Spot, waiting: &mut Vec<Vec<u8>>) -> Outcome<Vec<Child>> {
    let Some(meta) = start.stat(true)? else { return Ok(Vec::new()) };
    if meta.kind == FileKind::Directory {
        waiting.push(start.path.clone());
    }
    Ok(vec![(start.path.clone(), meta.kind, None)])
}

/// Whether a path is in a directory, at any depth.
fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir.strip_suffix(b"/").unwrap_or(dir)).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Adds objects that were staged out, or came from below, and have no name in the volume any more. Servers did not tell all names of the
/// directories `unlisted`, so no object below them is added.
fn removed(
    ledgers: &[Ledger],
    seen: &BTreeSet<Vec<u8>>,
    unlisted: &[Vec<u8>],
    mut gone: BTreeSet<Vec<u8>>,
    named_max: usize,
    standing: &mut Standing,
) {
    let mut released = BTreeMap::new();
    for ledger in ledgers.iter().filter(|ledger| ledger.route.is_out()) {
        for (path, done) in &ledger.entries {
            let inside = below(&ledger.route.inside, path);
            if seen.contains(&inside) {
                continue;
            }
            match (ledger.released.contains(path), &done.object.what) {
                (true, What::File { size, .. }) => drop(released.insert(inside, *size)),
                _ if unlisted.iter().any(|dir| is_below(&inside, dir)) => {}
                _ => drop(gone.insert(inside)),
            }
        }
    }
    released.values().for_each(|size| standing.released.add(*size));
    // Another ledger may have a copy that is older, of a file that went with its release; and a directory stays at the
    // destination as long as a released file is in it.
    let is_kept = |path: &Vec<u8>| {
        let mut same = released.range(path.clone()..).take_while(|(other, _)| other.starts_with(path));
        same.any(|(other, _)| other.get(path.len()).is_none_or(|byte| *byte == b'/'))
    };
    gone.retain(|path| !is_kept(path));
    gone.into_iter().for_each(|path| standing.dirty(path, Why::Removed, 0, named_max));
}

/// The finding about one object.
enum Found {
    /// As it was staged; with its inode.
    Staged((u64, u64)),
    /// Not so; with its inode.
    Dirty(Why, (u64, u64)),
    /// Not so, since it came under the name that is first here.
    Renamed(Vec<u8>, (u64, u64)),
    /// It does not count.
    Passed,
    Lost(Trouble),
}

type Child = (Vec<u8>, FileKind, Option<Meta>);

/// Judges the objects of one directory, several at a time, until it is late.
fn judge(
    start: &Spot,
    ledgers: &[Ledger],
    children: &[Child],
    jobs: usize,
    is_late: &(dyn Fn() -> bool + Sync),
) -> Vec<(Vec<u8>, u64, Found)> {
    let (next, judged, lost) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    let work = || {
        while let Some((path, kind, meta)) = children.get(next.fetch_add(1, Ordering::Relaxed)) {
            if lost.load(Ordering::Relaxed) >= LOST_MAX || is_late() {
                return;
            }
            let (bytes, found) = judge_one(start, ledgers, path, *kind, meta.as_ref());
            if let Found::Lost(_) = found {
                lost.fetch_add(1, Ordering::Relaxed);
            }
            judged.lock().push((path.clone(), bytes, found));
        }
    };
    aze_io::threads::together(jobs.min(children.len()), work);
    judged.into_inner()
}

fn judge_one(start: &Spot, ledgers: &[Ledger], path: &[u8], kind: FileKind, meta: Option<&Meta>) -> (u64, Found) {
    if !matches!(kind, FileKind::File | FileKind::Directory | FileKind::Symlink) {
        // A FIFO, socket or device holds nothing that could be staged.
        return (0, Found::Passed);
    }
    match origin(start, path, meta) {
        Ok(None) => {}
        Ok(Some((meta, origin))) => {
            let bytes = if kind == FileKind::File { meta.size } else { 0 };
            let has_ledger = ledgers.iter().any(|ledger| version_of(ledger, path).is_some());
            // The root of a volume has attributes of its own.
            match origin.inside == path {
                true if origin.is_clean || path == b"/" => return (bytes, Found::Staged(meta.identity)),
                _ if has_ledger => {}
                false if kind == FileKind::Directory => return (0, Found::Passed),
                false => return (bytes, Found::Renamed(origin.inside, meta.identity)),
                true if origin.data_changed => return (bytes, Found::Dirty(Why::Data, meta.identity)),
                true => return (bytes, Found::Dirty(Why::Attributes, meta.identity)),
            }
        }
        Err(trouble) if trouble.exit == Exit::NotFound => return (0, Found::Passed),
        Err(trouble) => return (0, Found::Lost(trouble)),
    }
    let known: Vec<&Version> = ledgers.iter().filter_map(|ledger| version_of(ledger, path)).collect();
    let spot = Spot { tree: start.tree.clone(), path: path.to_vec() };
    match (kind, meta) {
        (FileKind::Directory, _) if known.is_empty() => return (0, Found::Passed),
        (_, Some(meta)) if known.is_empty() => return (meta.size, Found::Dirty(Why::New, meta.identity)),
        _ => {}
    }
    let (meta, now) = match version_now(&spot, kind) {
        Ok(found) => found,
        // Another process has removed or replaced it; the next look tells.
        Err(trouble) if trouble.exit == Exit::NotFound => return (0, Found::Passed),
        Err(trouble) => return (0, Found::Lost(trouble)),
    };
    let bytes = if kind == FileKind::File { meta.size } else { 0 };
    let differences: Vec<Option<Why>> = known.into_iter().map(|known| difference(known, &now)).collect();
    let found = match differences.iter().flatten().max() {
        _ if differences.contains(&None) => Found::Staged(meta.identity),
        Some(why) => Found::Dirty(*why, meta.identity),
        None => Found::Dirty(Why::New, meta.identity),
    };
    (bytes, found)
}

/// The attributes of an object and where it came from, if it came from the directory over which the volume lies.
fn origin(start: &Spot, path: &[u8], meta: Option<&Meta>) -> Outcome<Option<(Meta, Origin)>> {
    if !start.tree.has_origins() {
        return Ok(None);
    }
    let meta = match meta {
        Some(meta) => meta.clone(),
        None => Spot { tree: start.tree.clone(), path: path.to_vec() }.must_stat(false)?,
    };
    Ok(start.tree.origin(&meta)?.map(|origin| (meta, origin)))
}

/// Attributes and version that an object has now.
pub(super) fn version_now(spot: &Spot, kind: FileKind) -> Outcome<(Meta, Version)> {
    if kind != FileKind::File {
        let meta = if kind == FileKind::Directory { spot.tree.stat_dir(&spot.path)? } else { spot.must_stat(false)? };
        if meta.kind != kind {
            let text = format!("{}: its attributes cannot be read", spot.shown());
            return Err(Trouble::new(Exit::Fatal, text));
        }
        let version = version(&meta, &[]);
        return Ok((meta, version));
    }
    let source = spot.tree.open_fresh(&spot.path)?;
    let (meta, mark) = source.marked()?;
    let version = version(&meta, &mark);
    Ok((meta, version))
}

/// The version that an object of the volume had when it was staged.
fn version_of<'a>(ledger: &'a Ledger, path: &[u8]) -> Option<&'a Version> {
    let done = ledger.entries.get(relative(&ledger.route, path)?)?;
    Some(if ledger.route.is_out() { &done.from } else { &done.held })
}

/// How a version differs from one that was staged; `None` if it does not.
fn difference(known: &Version, now: &Version) -> Option<Why> {
    if known == now {
        return None;
    }
    let same_data = known.len() == now.len()
        && known.len() > OWN_NUMBERS
        && known[..3] == now[..3]
        && known[OWN_NUMBERS..] == now[OWN_NUMBERS..];
    // Of a directory or symbolic link all is attributes.
    let same_object = known.len() == OWN_NUMBERS && now.len() == OWN_NUMBERS && known[..2] == now[..2];
    Some(if same_data || same_object { Why::Attributes } else { Why::Data })
}

/// The path below a route's place in the volume; `None` if it is elsewhere.
pub(super) fn relative<'a>(route: &Route, path: &'a [u8]) -> Option<&'a [u8]> {
    let inside = route.inside.strip_suffix(b"/").unwrap_or(&route.inside);
    match path.strip_prefix(inside)? {
        b"" | b"/" => Some(b""),
        rest => rest.strip_prefix(b"/"),
    }
}

/// The path in the volume of a path below `inside`.
fn below(inside: &[u8], path: &[u8]) -> Vec<u8> {
    if path.is_empty() { inside.to_vec() } else { join(inside, path) }
}
