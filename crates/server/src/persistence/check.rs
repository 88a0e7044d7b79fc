//! Looks through the directories of a volume that is down: what a server would read at its start is
//! read in the same way, and what hangs together is compared over all servers.

use super::state::image::Image;
use super::state::persistence::disk_failure;
use super::state::promises::{self, agreed_in};
use super::state::starts;
use aze_io::Io;
use aze_io::disk::{Dir, DiskError};
use aze_io::slab::{BASE_BYTES, Slab};
use aze_meta::{EntryKey, Op, Stamp};
use aze_proto::ids::{Ino, ServerIndex};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::place::Agreed;
use aze_proto::slots::SlotTable;
use aze_proto::sum::block_sum;
use aze_proto::{Code, Failure, FileKind, NameHash};
use aze_store::disk::group::GroupFile;
use aze_store::disk::journal::Journal;
use aze_store::disk::manifest::{self, Manifest};
use aze_store::disk::placement::Placement;
use aze_store::disk::recover::{Found, read_for};
use aze_store::disk::remove_older;
use aze_store::disk::root;
use aze_store::disk::segments::{Root, SEGMENT_BYTES_DEFAULT, Segments};
use aze_store::disk::starts::Starts;
use aze_store::{Disk, Row, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Directories between a directory and the root, at most; more can only be a circle.
const DEPTH_MAX: usize = 65_536;

/// Memory beyond the size of the directories, in bytes; only the part that journals need is used.
const MARGIN_BYTES: u64 = 256 << 20;

/// Bytes that are looked at to see whether a segment has a beginning.
const HEAD_BYTES: usize = 64;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which kind, in a word or two.
    pub kind: &'static str,
    /// The problem, and its place.
    pub text: String,
    /// The inode that it is about, where it can be repaired.
    pub ino: Option<Ino>,
}

/// The findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The problems.
    pub problems: Vec<Problem>,
    /// What the next start will bring to an end: it was under way when the servers ended.
    pub notes: Vec<String>,
    /// The repairs.
    pub repaired: Vec<String>,
    /// Inodes that are no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of file data.
    pub bytes: u64,
}

impl Report {
    fn wrong(&mut self, kind: &'static str, text: String) {
        self.problems.push(Problem { kind, text, ino: None });
    }

    fn repairable(&mut self, kind: &'static str, ino: Ino, text: String) {
        self.problems.push(Problem { kind, text, ino: Some(ino) });
    }
}

/// One server's part.
struct Part {
    /// Where it is: all its directories.
    path: String,
    /// The first of them.
    dir: Arc<dyn Dir>,
    image: Image,
    found: Found,
    store: Arc<Store>,
}

/// Checks the parts of a volume, all directories of all of its servers, in any order. With `repair`
/// link counts are set to the number of names, and data without a file are dropped; nothing if anything
/// could not be read.
///
/// # Errors
/// Why nothing can be said: a directory that is missing, in use, or of another volume or format.
pub async fn check(io: &Io, dirs: &[String], repair: bool) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut parts = open(io, dirs, &mut report).await?;
    if report.problems.is_empty() {
        let names = Names::of(&mut parts, &mut report);
        names.compare(&mut report);
        let strays = data(&mut parts, &names, &mut report).await;
        if repair {
            mend(&mut parts, &names, &strays, &mut report).await?;
        }
    } else if repair {
        report.notes.push("nothing is repaired, since not everything could be read".into());
    }
    Ok(report)
}

/// A directory that is open.
struct Opened {
    path: String,
    dir: Arc<dyn Dir>,
}

/// Opens all directories; gives those of each server in their order, and what the first of all says.
async fn open_dirs(
    io: &Io,
    dirs: &[String],
    report: &mut Report,
) -> Result<(BTreeMap<u16, Vec<Opened>>, Manifest, SlotTable), Failure> {
    let mut first: Option<Manifest> = None;
    let mut seen = BTreeMap::new();
    for path in dirs {
        let failed = |error| disk_failure(path, &error);
        let dir = io.open_dir(path).await.map_err(|error| match error {
            DiskError::InUse(_) => {
                let detail = format!("storage {path}: a server uses it: end the volume with 'aze down' first");
                Failure::new(Code::Busy, detail)
            }
            error => failed(error),
        })?;
        report.notes.extend(dir.remarks());
        let manifest = Manifest::read(&*dir).await.map_err(failed)?;
        if manifest.is_none()
            && let Some(Manifest { server, volume, .. }) = manifest::read_left(&*dir).await.map_err(failed)?
        {
            report
                .notes
                .push(format!("{path}: server {server} has left volume {volume:016x}: it is no part of that any more"));
            continue;
        }
        let missing = || Failure::new(Code::NotFound, format!("storage {path}: it holds no part of a volume"));
        let manifest = manifest.ok_or_else(missing)?;
        let known = *first.get_or_insert(manifest);
        if (Manifest { server: known.server, directory: known.directory, ..manifest }) != known {
            let detail = format!("storage {path}: it holds a part of another volume than {}", dirs[0]);
            return Err(Failure::new(Code::Invalid, detail));
        }
        let Manifest { server, directory, directories, .. } = manifest;
        if let Some(Opened { path: other, .. }) = seen.insert((server, directory), Opened { path: path.clone(), dir }) {
            let which = if directories > 1 { format!("directory {directory} of ") } else { String::new() };
            let detail = format!("storage {path}: {which}server {server} is in {other}, too");
            return Err(Failure::new(Code::Invalid, detail));
        }
    }
    let Some(known) = first else {
        return Err(Failure::new(Code::Invalid, "no directory of a volume is given"));
    };
    let (mut placement, mut agreed): (Option<Placement>, Option<Agreed>) = (None, None);
    for ((server, _), opened) in &seen {
        let failed = |error| disk_failure(&opened.path, &error);
        if *server == 0 {
            placement = placement.or(Placement::read(&*opened.dir).await.map_err(failed)?);
        }
        if let Some(file) = GroupFile::read(&*opened.dir).await.map_err(failed)? {
            let theirs = agreed_in(&file).map_err(|why| failed(DiskError::Failed(why)))?;
            agreed = agreed.into_iter().chain([theirs]).max_by_key(Agreed::order);
        }
    }
    let placement = promises::placement(agreed.as_ref(), placement.as_ref(), known.servers);
    let slots = match &placement {
        Some(placement) => SlotTable::recorded(known.shards, &placement.slots),
        None => SlotTable::begun(known.shards, known.servers, known.slots),
    };
    let slots = slots.map_err(|why| Failure::new(Code::Invalid, why))?;
    let members = match &placement {
        Some(placement) => placement.members().into_iter().map(|server| server.0).collect(),
        None => (0..known.servers).collect::<Vec<u16>>(),
    };
    let (mut servers, mut absent) = (BTreeMap::<u16, Vec<Opened>>::new(), Vec::new());
    for server in members {
        let numbers = 0..known.directories;
        let found: Vec<Option<Opened>> = numbers.map(|number| seen.remove(&(server, number))).collect();
        let of_them = |number: usize| format!("directory {number} of the {} of {server}", known.directories);
        match found.iter().position(Option::is_none) {
            Some(number) if found.iter().any(Option::is_some) => absent.push(of_them(number)),
            Some(_) => absent.push(server.to_string()),
            None => drop(servers.insert(server, found.into_iter().flatten().collect())),
        }
    }
    if !absent.is_empty() {
        let (servers, absent) = (servers.len() + absent.len(), absent.join(", "));
        let detail = format!("the volume has {servers} servers: the directories of these are missing: {absent}");
        return Err(Failure::new(Code::NotFound, detail));
    }
    for ((server, _), Opened { path, .. }) in seen {
        let text =
            format!("{path}: server {server} has left the volume: what is there is no part of it, and may be removed");
        report.notes.push(text);
    }
    Ok((servers, known, slots))
}

/// Opens and reads everything.
async fn open(io: &Io, dirs: &[String], report: &mut Report) -> Result<Vec<Part>, Failure> {
    let (servers, manifest, slots) = open_dirs(io, dirs, report).await?;
    let mut parts = Vec::new();
    // The first one counts the starts.
    let mut newest_starts: Option<(u16, Starts)> = None;
    for (server, opened) in servers {
        let manifest = Manifest { server, ..manifest };
        let (mut bytes, mut segment_bytes) = (MARGIN_BYTES, SEGMENT_BYTES_DEFAULT);
        let mut headless = None;
        for Opened { path, dir } in &opened {
            let failed = |error| disk_failure(path, &error);
            for name in dir.list().await.map_err(failed)? {
                let file = dir.open(&name).await.map_err(failed)?;
                let size = file.size().await.map_err(failed)?;
                if name.starts_with("data-") {
                    segment_bytes = size;
                    let head = file.read_at(0, HEAD_BYTES).await.map_err(failed)?;
                    headless = headless.or(head.iter().all(|byte| *byte == 0).then(|| format!("{path}: {name}")));
                }
                bytes += size;
            }
        }
        // A start drops such a file; here it is left to people.
        if let Some(name) = headless {
            let text = "it begins with zeros: it was being made when the power went, or its beginning is lost";
            report.wrong("unreadable", format!("{name}: {text}"));
            continue;
        }
        let paths: Vec<&str> = opened.iter().map(|opened| opened.path.as_str()).collect();
        let (all, path, dir) = (paths.join(", "), opened[0].path.clone(), opened[0].dir.clone());
        let slab = Slab::with_excess(bytes).map_err(|why| Failure::new(Code::NoSpace, format!("memory: {why}")))?;
        let store = Store::new(slab);
        let roots = opened.iter().map(|opened| Root { dir: opened.dir.clone(), name: opened.path.clone() }).collect();
        // No room for anything more: segments are only read.
        match Segments::open_in(roots, manifest, segment_bytes, 0).await {
            Ok(segments) => store.use_disk(Disk::new(segments, 0)),
            Err(error) => {
                report.wrong("unreadable", format!("{all}: {error}"));
                continue;
            }
        }
        let mut image = Image::empty(ServerIndex(server), manifest.servers, manifest.shards, &store)
            .map_err(|why| Failure::new(Code::Invalid, format!("storage {path}: {why}")))?;
        image.has_slots(manifest.slots);
        if let Err(error) = root::read(&*dir).await {
            report.wrong(
                "unreadable",
                format!("{path}: {error}: remove it: the next start of all servers writes it again"),
            );
        }
        let read = match Starts::read(&*dir).await {
            Ok(starts) => read_for(&*dir, &mut image).await.and_then(|found| {
                starts::reaches_its_end(&starts, &found)?;
                let newest = newest_starts.get_or_insert_with(|| (server, starts.clone()));
                if newest.1.complete < starts.complete && starts.is_newer_for(newest.0, &newest.1) {
                    // The one before was left out of the last start.
                    *newest = (server, starts.clone());
                }
                let (by, newest) = (ServerIndex(newest.0), &newest.1);
                let (start, complete, last) = (newest.begun + 1, newest.complete, newest.last_of(server));
                starts::compare(&starts, &starts::Counted { by, start, complete, last }).map_err(DiskError::Failed)?;
                image.note_logs(&found.slots);
                image.keep(&slots, ServerIndex(server), false).map_err(DiskError::Failed)?;
                Ok(found)
            }),
            Err(error) => Err(error),
        };
        match read {
            Ok(found) => {
                if found.torn_bytes > 0 {
                    let torn = found.torn_bytes;
                    report.notes.push(format!(
                        "{path}: {torn} bytes at the end of the journal are left out: they were being written"
                    ));
                }
                parts.push(Part { path: all, dir, image, found, store });
            }
            Err(error) => report.wrong("unreadable", format!("{path}: {error}")),
        }
    }
    Ok(parts)
}

/// What a name leads to.
struct Entry {
    key: EntryKey,
    ino: Ino,
    kind: FileKind,
    is_locked: bool,
}

/// An inode, as far as it matters here.
struct Node {
    kind: FileKind,
    links: u32,
    names: u32,
}

/// All names and inodes of the volume.
struct Names {
    nodes: BTreeMap<Ino, Node>,
    entries: Vec<Entry>,
    /// Where a directory's name is, and the first name of anything else.
    places: BTreeMap<Ino, EntryKey>,
    /// Something is under way with the links of these.
    in_doubt: BTreeSet<Ino>,
}

impl Names {
    fn of(parts: &mut [Part], report: &mut Report) -> Names {
        let (mut nodes, mut places) = (BTreeMap::new(), BTreeMap::new());
        let (mut entries, mut in_doubt): (Vec<Entry>, BTreeSet<Ino>) = (Vec::new(), BTreeSet::new());
        let mut locks = 0;
        for (names, _) in parts.iter_mut().flat_map(|part| part.image.shards()) {
            for inode in names.all_inodes() {
                let node = Node { kind: inode.attr.kind, links: inode.attr.links, names: 0 };
                match node.kind {
                    FileKind::Directory => report.directories += 1,
                    _ => report.files += 1,
                }
                nodes.insert(inode.attr.ino, node);
            }
            for (key, lock) in names.locks() {
                locks += 1;
                in_doubt.insert(lock.ino);
                in_doubt.extend(names.entry(key).map(|entry| entry.ino));
            }
            in_doubt.extend(names.inodes_in_doubt());
            for (key, entry) in names.all_entries() {
                let is_locked = names.lock_of(key).is_some();
                entries.push(Entry { key: key.clone(), ino: entry.ino, kind: entry.kind, is_locked });
            }
            for (key, _) in names.all_entries().filter(|(key, _)| key.hash != NameHash::of(key.parent, &key.name)) {
                report.wrong("misplaced name", format!("name '{}' in directory {}", key.name, key.parent));
            }
        }
        for entry in &entries {
            if let Some(node) = nodes.get_mut(&entry.ino) {
                node.names += 1;
            }
            places.entry(entry.ino).or_insert_with(|| entry.key.clone());
        }
        if locks > 0 {
            report.notes.push(format!("{locks} names are held by renames or removals that were under way"));
        }
        Names { nodes, entries, places, in_doubt }
    }

    /// The path of a name.
    fn path(&self, key: &EntryKey) -> String {
        let mut path = format!("/{}", key.name);
        let mut dir = key.parent;
        for _ in 0..DEPTH_MAX {
            if dir == Ino::ROOT {
                return path;
            }
            let Some(key) = self.places.get(&dir) else { return format!("(directory {dir}){path}") };
            path.insert_str(0, &format!("/{}", key.name));
            dir = key.parent;
        }
        format!("(a circle){}", path.rsplit_once('/').map_or("", |(_, name)| name))
    }

    /// How people know an inode.
    fn who(&self, ino: Ino) -> String {
        match self.places.get(&ino) {
            Some(key) => format!("{} (inode {ino})", self.path(key)),
            None => format!("inode {ino}, which has no name"),
        }
    }

    fn is_below_root(&self, mut dir: Ino) -> bool {
        for _ in 0..DEPTH_MAX {
            match self.places.get(&dir) {
                _ if dir == Ino::ROOT => return true,
                Some(key) => dir = key.parent,
                None => return false,
            }
        }
        false
    }

    fn compare(&self, report: &mut Report) {
        let mut directories_named = BTreeSet::new();
        for entry in &self.entries {
            let path = self.path(&entry.key);
            match self.nodes.get(&entry.ino) {
                _ if entry.is_locked => {}
                None => report
                    .wrong("name without file", format!("{path} leads to inode {}, which is not there", entry.ino)),
                Some(node) if node.kind != entry.kind => {
                    report.wrong(
                        "wrong kind",
                        format!("{path} is a {:?} by its name and a {:?} itself", entry.kind, node.kind),
                    );
                }
                Some(node) if node.kind == FileKind::Directory && !directories_named.insert(entry.ino) => {
                    report.wrong("two names", format!("{path}: directory {} has another name, too", entry.ino));
                }
                Some(_) => {}
            }
            if !self.is_below_root(entry.key.parent) {
                report.wrong("unreachable", format!("{path} is not below the root"));
            }
        }
        for (ino, node) in &self.nodes {
            let is_dir = node.kind == FileKind::Directory;
            match (node.names, node.links) {
                _ if *ino == Ino::ROOT || self.in_doubt.contains(ino) => {}
                (0, 0) => report
                    .notes
                    .push(format!("inode {ino} has lost its last name while it was open: the next start drops it")),
                (0, _) => report.wrong("file without name", format!("{:?} {ino} has no name", node.kind)),
                (names, links) if names != links && !is_dir => {
                    report.repairable(
                        "link count",
                        *ino,
                        format!("{}: the link count is {links}, the names are {names}", self.who(*ino)),
                    );
                }
                _ => {}
            }
        }
        if !self.nodes.contains_key(&Ino::ROOT) {
            report.wrong("no root", "the root directory is not there".into());
        }
    }
}

/// Looks through the data; gives those without a file.
async fn data(parts: &mut [Part], names: &Names, report: &mut Report) -> BTreeSet<Ino> {
    let mut strays: BTreeMap<Ino, u64> = BTreeMap::new();
    for part in parts {
        let Part { path, image, store, .. } = part;
        // One line for a file, however much of it is damaged.
        let mut told = BTreeSet::new();
        for (_, data) in image.shards() {
            report.bytes += data.bytes();
            for (ino, _) in data.stored().filter(|(ino, _)| !names.nodes.contains_key(ino)) {
                *strays.entry(ino).or_default() += 1;
            }
            let all = data.snapshot();
            for dirty in &all.dirty {
                let row = dirty.row();
                if let Some(at) = rotten(&row, dirty.data().1).filter(|_| told.insert(row.ino)) {
                    let text = format!("{}: chunk {}, byte {at}, in {path}", names.who(row.ino), row.chunk);
                    report.wrong("checksum", text);
                }
            }
            for row in &all.rows {
                let (who, chunk) = (names.who(row.ino), row.chunk);
                match store.fetch_row(row).await {
                    Ok(bytes) => {
                        if let Some(at) = rotten(row, &bytes).filter(|_| told.insert(row.ino)) {
                            report.wrong("checksum", format!("{who}: chunk {chunk}, byte {at}, in {path}"));
                        }
                    }
                    Err(_) if !told.insert(row.ino) => {}
                    Err(error) => report.wrong("unreadable", format!("{path}: {who}: chunk {chunk}: {error}")),
                }
            }
        }
    }
    for (ino, chunks) in &strays {
        let chunks = if *chunks == 1 { "1 chunk".into() } else { format!("{chunks} chunks") };
        report.repairable("data without file", *ino, format!("{chunks} of inode {ino}, which is not there"));
    }
    strays.into_keys().collect()
}

/// Where data of a unit do not match their checksums, within the chunk.
fn rotten(row: &Row, bytes: &[u8]) -> Option<u64> {
    let blocks = bytes.chunks(BLOCK_BYTES).zip(&row.sums);
    let found = blocks.enumerate().find(|(_, (block, sum))| block_sum(block) != **sum);
    found.map(|(index, _)| (usize::from(row.unit) * BASE_BYTES + index * BLOCK_BYTES) as u64)
}

/// Sets link counts and drops data without a file, and writes the parts down as a start would.
async fn mend(parts: &mut [Part], names: &Names, strays: &BTreeSet<Ino>, report: &mut Report) -> Result<(), Failure> {
    let mut done = Vec::new();
    for part in parts {
        let before = done.len();
        let stamp = Stamp::at(part.image.time);
        for (shard, data) in part.image.shards() {
            let wrong = |ino: &Ino| {
                let node = names.nodes.get(ino)?;
                let is_wrong = node.kind != FileKind::Directory && node.names > 0 && node.names != node.links;
                (is_wrong && !names.in_doubt.contains(ino)).then_some(node.names)
            };
            let counts: Vec<(Ino, u32)> =
                shard.all_inodes().filter_map(|inode| Some((inode.attr.ino, wrong(&inode.attr.ino)?))).collect();
            for (ino, links) in counts {
                if shard.apply(&Op::SetLinks { ino, links }, &stamp).reply.is_ok() {
                    done.push(("link count", ino, format!("{}: the link count is {links} now", names.who(ino))));
                }
            }
            let here: Vec<Ino> = strays.iter().copied().filter(|ino| data.generation_of(*ino).is_some()).collect();
            for ino in here {
                data.delete(ino);
                done.push(("data without file", ino, format!("data of inode {ino} are dropped from {}", part.path)));
            }
        }
        if done.len() > before {
            let failed = |error| disk_failure(&part.path, &error);
            let Found { next, position, .. } = part.found;
            part.image.write_down(&part.dir, &part.found).await.map_err(failed)?;
            Journal::begin(part.dir.clone(), true, next, position, Default::default()).await.map_err(failed)?;
            remove_older(&*part.dir, next).await.map_err(failed)?;
        }
    }
    let is_done =
        |problem: &Problem| done.iter().any(|(kind, ino, _)| (*kind, Some(*ino)) == (problem.kind, problem.ino));
    report.problems.retain(|problem| !is_done(problem));
    report.repaired = done.into_iter().map(|(_, _, text)| text).collect();
    Ok(())
}

#[cfg(test)]
mod tests;
