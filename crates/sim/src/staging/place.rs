//! A file system in memory, as a destination of a stage and as the directory over which a volume lies.
//!
//! It has the calls that a stage makes on local files, keeps every state that each object ever had with its time, and knows
//! what of it was synced: losing its power takes the rest. It fails as its plan says, and others may change it.

mod backing;
mod cache;
mod number;
mod others;

pub use others::Window;

use cache::Cache;

use crate::backing::data_in;
use aze_copy::tree::{
    Meta, Named, Names, ReadBack, Replaces, Sink, Source, Traits, Tree, Xattr, beside, copied_mode, in_the_way, parent,
};
use aze_io::Io;
use aze_io::backing::Identity;
use aze_io::sim::{SimRng, WALL_BASE_NS};
use aze_io::sync::Mutex;
use aze_io::threads::Waiter;
use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The inode of the root.
const ROOT: u64 = 1;

/// What the place cannot do, and what goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Moods {
    /// Longest time of half a call, in microseconds.
    pub slow_us: u64,
    /// Calls of a million that fail, each with a number drawn from those that such a call may give.
    pub error_ppm: u64,
    /// Nothing can be written for want of room.
    pub is_full: bool,
    /// Nothing can be changed.
    pub is_read_only: bool,
    /// Files of a million that are another on the disk than was written.
    pub rot_ppm: u32,
    /// Names that differ by case are one.
    pub folds_case: bool,
    /// A file can have several names.
    pub links: bool,
    /// Two names can change places in one step.
    pub exchanges: bool,
    /// The longest name.
    pub name_bytes_max: usize,
    /// Half of the blocks of zeros are holes, which take no room.
    pub has_holes: bool,
    /// Protections of stages that are removed here.
    pub without: Option<Missing>,
}

impl Default for Moods {
    fn default() -> Moods {
        Moods {
            slow_us: 200,
            error_ppm: 0,
            is_full: false,
            is_read_only: false,
            rot_ppm: 0,
            folds_case: false,
            links: true,
            exchanges: true,
            name_bytes_max: 255,
            has_holes: false,
            without: None,
        }
    }
}

/// What a stage relies on and a place or volume may leave out, so that a test can prove that this is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Files are not synced before they get their names.
    SyncOfFiles,
    /// Directories are not synced.
    SyncOfNames,
    /// All copies have one temporary name.
    OwnNames,
    /// The times of files stand still when others change their bytes.
    ChangeTimes,
    /// Bytes that are read back come from the page cache of the node that reads, if that has the file.
    ReadFromStorage,
    /// Rounds are not broken off.
    BreakingOff,
}

impl Missing {
    /// All of them.
    pub const ALL: [Missing; 6] = [
        Missing::SyncOfFiles,
        Missing::SyncOfNames,
        Missing::OwnNames,
        Missing::ChangeTimes,
        Missing::BreakingOff,
        Missing::ReadFromStorage,
    ];
}

/// A state of an object, from a moment on.
#[derive(Clone, Debug)]
pub struct Version {
    /// When it began, in nanoseconds since 1970.
    pub from_ns: u64,
    /// Bytes of a file, target of a link.
    pub bytes: Arc<Vec<u8>>,
    /// Permission bits.
    pub mode: u32,
    /// Last change.
    pub mtime: Time,
    ctime: Time,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    names: BTreeMap<Vec<u8>, u64>,
}

#[derive(Clone, Debug)]
struct Node {
    kind: FileKind,
    now: Version,
    /// All states, the latest last.
    versions: Vec<Version>,
    /// The state that a loss of power leaves.
    stored: Option<Version>,
    /// The bytes when they were synced last: the part that a device has stays, and no later sync removes it.
    synced: Option<Arc<Vec<u8>>>,
    links: u64,
    cache: Cache,
}

struct State {
    nodes: BTreeMap<u64, Node>,
    inodes: u64,
    /// Times of changes: each has another one.
    clock_ns: u64,
    moods: Moods,
    rng: SimRng,
    /// When a path led to another inode, or to none.
    names: Vec<(u64, Vec<u8>, Option<u64>)>,
    /// Directories that servers have begun to list.
    listed: Vec<Vec<u8>>,
    /// Files that others have changed, by inode, or by path if they have replaced it.
    tampered: Vec<(u64, Vec<u8>)>,
}

/// The file system. Clones are the same one.
#[derive(Clone)]
pub struct Place {
    io: Io,
    state: Arc<Mutex<State>>,
    /// Where the directory is over which a volume lies.
    below: &'static str,
    /// The machine that has it mounted so, with a page cache of its own; 0 for those who have none.
    system: usize,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Place")
    }
}

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

fn split(path: &[u8]) -> (Vec<u8>, &[u8]) {
    (parent(path), path.rsplit(|byte| *byte == b'/').next().unwrap_or(path))
}

impl State {
    fn tick(&mut self, now_ns: u64) -> Time {
        self.clock_ns = (self.clock_ns + 1).max(now_ns);
        Time(self.clock_ns)
    }

    fn key(&self, dir: u64, name: &[u8]) -> Option<(Vec<u8>, u64)> {
        let names = &self.nodes.get(&dir)?.now.names;
        match self.moods.folds_case {
            false => names.get_key_value(name).map(|(name, inode)| (name.clone(), *inode)),
            true => names
                .iter()
                .find(|(other, _)| other.eq_ignore_ascii_case(name))
                .map(|(name, inode)| (name.clone(), *inode)),
        }
    }

    fn find(&self, path: &[u8]) -> io::Result<u64> {
        let mut inode = ROOT;
        for part in parts(path) {
            if self.nodes[&inode].kind != FileKind::Directory {
                return Err(errno(number::ENOTDIR));
            }
            inode = self.key(inode, part).ok_or_else(|| errno(number::ENOENT))?.1;
        }
        Ok(inode)
    }

    /// Changes an object, and keeps the state that it has then.
    fn change(&mut self, inode: u64, now_ns: u64, is_data: bool, change: impl FnOnce(&mut Version)) {
        let time = self.tick(now_ns);
        let node = self.nodes.get_mut(&inode).expect("objects stay as history");
        node.now.from_ns = now_ns;
        node.now.ctime = time;
        if is_data {
            node.now.mtime = time;
            node.cache.drop_pages();
        }
        change(&mut node.now);
        node.versions.push(Version { names: BTreeMap::new(), ..node.now.clone() });
    }

    fn make(&mut self, kind: FileKind, mode: u32, bytes: Vec<u8>, now_ns: u64) -> u64 {
        self.inodes += 1;
        let (inode, time) = (self.inodes, self.tick(now_ns));
        let now = Version {
            from_ns: now_ns,
            bytes: Arc::new(bytes),
            mode,
            mtime: time,
            ctime: time,
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        let versions = vec![now.clone()];
        // A link has no contents of its own to sync: it is on the disk once its name is.
        let stored = (kind == FileKind::Symlink).then(|| now.clone());
        let cache = Cache::default();
        self.nodes.insert(inode, Node { kind, now, versions, stored, synced: None, links: 0, cache });
        inode
    }

    /// Has a path lead to an inode, or to none.
    fn set_name(&mut self, path: &[u8], inode: Option<u64>, now_ns: u64) -> io::Result<()> {
        let (dir, name) = split(path);
        if name.len() > self.moods.name_bytes_max {
            return Err(errno(number::ENAMETOOLONG));
        }
        let dir = self.find(&dir)?;
        let (name, before) = match self.key(dir, name) {
            Some((name, before)) => (name, Some(before)),
            None => (name.to_vec(), None),
        };
        self.change(dir, now_ns, true, |version| match inode {
            Some(inode) => drop(version.names.insert(name, inode)),
            None => drop(version.names.remove(&name)),
        });
        for (changed, by) in [(before, -1i64), (inode, 1)] {
            if let Some(changed) = changed {
                self.change(changed, now_ns, false, |_| {});
                let links = &mut self.nodes.get_mut(&changed).expect("it is there").links;
                *links = links.saturating_add_signed(by);
            }
        }
        self.names.push((now_ns, path.to_vec(), inode));
        Ok(())
    }

    fn rename(&mut self, from: &[u8], to: &[u8], now_ns: u64) -> io::Result<()> {
        let inode = self.find(from)?;
        self.set_name(to, Some(inode), now_ns)?;
        self.set_name(from, None, now_ns)
    }

    fn meta(&self, inode: u64) -> Meta {
        let node = &self.nodes[&inode];
        Meta {
            kind: node.kind,
            mode: node.now.mode,
            uid: 0,
            gid: 0,
            size: if node.kind == FileKind::Directory { 0 } else { node.now.bytes.len() as u64 },
            is_sparse: self.has_hole(node),
            atime: node.now.mtime,
            mtime: node.now.mtime,
            ctime: node.now.ctime,
            links: node.links,
            identity: (1, inode),
        }
    }

    fn has_hole(&self, node: &Node) -> bool {
        let bytes = &node.now.bytes;
        self.moods.has_holes && node.kind == FileKind::File && data_in(bytes, 0) != (0..bytes.len() as u64)
    }

    fn sync(&mut self, inode: u64) {
        let node = self.nodes.get_mut(&inode).expect("it is there");
        let mut stored = node.now.clone();
        let is_synced = node.synced.as_ref().is_some_and(|synced| Arc::ptr_eq(synced, &node.now.bytes));
        if let Some(before) = node.stored.as_ref().filter(|_| is_synced) {
            stored.bytes = before.bytes.clone();
        }
        node.synced = Some(node.now.bytes.clone());
        node.stored = Some(stored);
    }

    /// Makes a file durable; what the disk has may be another one.
    fn sync_file(&mut self, inode: u64, system: usize) {
        if self.moods.without == Some(Missing::SyncOfFiles) {
            return;
        }
        self.sync_on(inode, system);
        let rots = self.rng.chance(self.moods.rot_ppm);
        let stored = self.nodes.get_mut(&inode).and_then(|node| node.stored.as_mut());
        if let Some(byte) = stored.filter(|_| rots).and_then(|stored| Arc::make_mut(&mut stored.bytes).last_mut()) {
            *byte ^= 1;
        }
        let node = self.nodes.get_mut(&inode).expect("it is there");
        node.cache.synced(system, node.stored.as_ref());
    }

    /// Every path below a directory, with its inode.
    fn walk(&self, dir: u64, path: &[u8], into: &mut Vec<(Vec<u8>, u64)>) {
        for (name, inode) in &self.nodes[&dir].now.names {
            let path = aze_copy::tree::join(path, name);
            into.push((path.clone(), *inode));
            if self.nodes[inode].kind == FileKind::Directory {
                self.walk(*inode, &path, into);
            }
        }
    }
}

/// Why a call of a killed process gave nothing.
fn killed() -> Trouble {
    Trouble::new(Exit::Fatal, "this process was killed")
}

impl Place {
    /// An empty one, with these directories; the first is the one over which a volume may lie.
    pub fn new(io: Io, rng: SimRng, dirs: &[&'static str]) -> Place {
        let state = State {
            nodes: BTreeMap::new(),
            inodes: 0,
            clock_ns: 0,
            moods: Moods::default(),
            rng,
            names: Vec::new(),
            listed: Vec::new(),
            tampered: Vec::new(),
        };
        let place = Place { io, state: Arc::new(Mutex::new(state)), below: dirs[0], system: 0 };
        let now_ns = place.now_ns();
        {
            let mut state = place.state.lock();
            state.make(FileKind::Directory, 0o755, Vec::new(), now_ns);
            state.sync(ROOT);
        }
        dirs.iter().for_each(|dir| place.put_dir(dir));
        place
    }

    /// The date.
    pub fn now_ns(&self) -> u64 {
        WALL_BASE_NS.unsigned_abs() + self.io.mono_ns()
    }

    /// Makes a directory, at once and durably.
    pub fn put_dir(&self, path: &str) {
        self.put(path, FileKind::Directory, 0o755, Vec::new());
    }

    /// Makes a file, at once and durably.
    pub fn put_file(&self, path: &str, bytes: Vec<u8>) {
        self.put(path, FileKind::File, 0o644, bytes);
    }

    /// Gives a file a further name, at once and durably.
    pub fn put_name(&self, existing: &str, path: &str) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let inode = state.find(existing.as_bytes()).expect("it is there");
        state.set_name(path.as_bytes(), Some(inode), now_ns).expect("its directory is there");
        state.sync(inode);
        let dir = state.find(&parent(path.as_bytes())).expect("its directory is there");
        state.sync(dir);
    }

    fn put(&self, path: &str, kind: FileKind, mode: u32, bytes: Vec<u8>) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let inode = state.make(kind, mode, bytes, now_ns);
        state.set_name(path.as_bytes(), Some(inode), now_ns).expect("its directory is there");
        state.sync(inode);
        let dir = state.find(&parent(path.as_bytes())).expect("its directory is there");
        state.sync(dir);
    }

    /// From now on this goes wrong.
    pub fn set_moods(&self, moods: Moods) {
        self.state.lock().moods = moods;
    }

    /// What goes wrong.
    pub fn moods(&self) -> Moods {
        self.state.lock().moods
    }

    /// What the directory below is.
    pub fn root_identity(&self) -> Identity {
        let state = self.state.lock();
        identity_of(&state.meta(state.find(self.below.as_bytes()).expect("it is there")))
    }

    /// The bytes of a file under a path, or the target of a link.
    pub fn bytes_at(&self, path: &[u8]) -> Option<Arc<Vec<u8>>> {
        let state = self.state.lock();
        let node = &state.nodes[&state.find(path).ok()?];
        (node.kind != FileKind::Directory).then(|| node.now.bytes.clone())
    }

    /// The number of what a path leads to.
    pub fn inode_at(&self, path: &[u8]) -> Option<u64> {
        self.state.lock().find(path).ok()
    }

    /// Every path below one, with its kind.
    pub fn all_below(&self, path: &[u8]) -> Vec<(Vec<u8>, FileKind)> {
        let state = self.state.lock();
        let Ok(dir) = state.find(path) else { return Vec::new() };
        let mut all = Vec::new();
        state.walk(dir, path, &mut all);
        all.into_iter().map(|(path, inode)| (path, state.nodes[&inode].kind)).collect()
    }

    /// The states that an inode had at some time of a moment: several if it changed in it.
    pub fn states_at(&self, inode: u64, is_moment: impl Fn(u64) -> std::cmp::Ordering) -> Vec<Version> {
        let state = self.state.lock();
        let Some(node) = state.nodes.get(&inode) else { return Vec::new() };
        let before = node.versions.iter().rfind(|version| is_moment(version.from_ns).is_lt());
        let within = node.versions.iter().filter(|version| is_moment(version.from_ns).is_eq());
        before.into_iter().chain(within).cloned().collect()
    }

    /// Whether a path led to an inode at some time that is not before one moment and not after another.
    pub fn led_to(
        &self,
        path: &[u8],
        inode: u64,
        is_early: impl Fn(u64) -> bool,
        is_late: impl Fn(u64) -> bool,
    ) -> bool {
        let state = self.state.lock();
        let mut last = None;
        for (at, _, to) in state.names.iter().filter(|(_, other, _)| other == path) {
            if is_late(*at) {
                break;
            }
            if !is_early(*at) && (last == Some(inode) || *to == Some(inode)) {
                return true;
            }
            last = *to;
        }
        last == Some(inode)
    }

    /// Whether a path leads to this inode, and it has these bytes; `None` if either was changed since then.
    pub fn is_stored(&self, path: &[u8], inode: u64, is_later: impl Fn(u64) -> bool) -> Option<bool> {
        let state = self.state.lock();
        let node = state.nodes.get(&inode)?;
        let is_data_later = |pair: &[Version]| is_later(pair[1].from_ns) && pair[0].bytes != pair[1].bytes;
        if state.find(path).ok() != Some(inode) || node.versions.windows(2).any(is_data_later) {
            return None;
        }
        let (mut dir, mut is_named) = (ROOT, true);
        for part in parts(path) {
            let (name, inode) = state.key(dir, part)?;
            let stored = state.nodes[&dir].stored.as_ref();
            is_named &= stored.is_some_and(|stored| stored.names.get(&name) == Some(&inode));
            dir = inode;
        }
        Some(is_named && node.stored.as_ref().is_some_and(|stored| stored.bytes == node.now.bytes))
    }

    /// Whether others have changed the object under a path, or a former one.
    pub fn is_tampered(&self, path: &[u8]) -> bool {
        self.state.lock().tampered.iter().any(|(_, other)| other == path)
    }

    /// A stage has put the object under a path there: others have not changed it.
    pub fn forget_tampering(&self, path: &[u8]) {
        self.state.lock().tampered.retain(|(_, other)| other != path);
    }

    /// Others change a file, remove it, or replace it.
    pub fn tamper(&self, path: &[u8], how: u64) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let Ok(inode) = state.find(path) else { return };
        if state.nodes[&inode].kind != FileKind::File {
            return;
        }
        match how % 3 {
            0 => state.change(inode, now_ns, true, |version| Arc::make_mut(&mut version.bytes).push(b'!')),
            1 => drop(state.set_name(path, None, now_ns)),
            _ => {
                let other = state.make(FileKind::File, 0o644, b"of somebody else".to_vec(), now_ns);
                drop(state.set_name(path, Some(other), now_ns));
            }
        }
        let path = path.to_vec();
        state.tampered.push((inode, path));
    }

    /// The machine loses its power: changes that were not synced are lost, or not.
    pub fn lose_power(&self) {
        let now_ns = self.now_ns();
        let state = &mut *self.state.lock();
        let mut before = Vec::new();
        state.walk(ROOT, b"/", &mut before);
        for node in state.nodes.values_mut() {
            if state.rng.chance(300_000) {
                // It was written back in time.
                continue;
            }
            let lost = || Version { bytes: Arc::default(), names: BTreeMap::new(), ..node.now.clone() };
            // The change time goes with the name that has moved it.
            let ctime = node.now.ctime;
            node.now = Version { from_ns: now_ns, ctime, ..node.stored.clone().unwrap_or_else(lost) };
            node.versions.push(Version { names: BTreeMap::new(), ..node.now.clone() });
        }
        let mut after = Vec::new();
        state.walk(ROOT, b"/", &mut after);
        state.nodes.values_mut().for_each(|node| node.links = 0);
        for (_, inode) in &after {
            state.nodes.get_mut(inode).expect("it is there").links += 1;
        }
        let (before, after) = (BTreeMap::from_iter(before), BTreeMap::from_iter(after));
        let gone = before.keys().filter(|path| !after.contains_key(*path)).map(|path| (path, None));
        let come = after.iter().filter(|(path, inode)| before.get(*path) != Some(*inode));
        let changed = gone.chain(come.map(|(path, inode)| (path, Some(*inode))));
        let changed: Vec<_> = changed.map(|(path, inode)| (now_ns, path.clone(), inode)).collect();
        state.names.extend(changed);
        // All that is there now is on the disk.
        let inodes: Vec<u64> = state.nodes.keys().copied().collect();
        for inode in inodes {
            let node = state.nodes.get_mut(&inode).expect("it is there");
            node.synced = None;
            node.cache.drop_pages();
            state.sync(inode);
        }
    }

    fn pause(&self) -> Outcome<()> {
        let us = {
            let state = &mut *self.state.lock();
            let slow_us = state.moods.slow_us;
            if state.rng.chance(400_000) { 0 } else { state.rng.below(slow_us + 1) }
        };
        let slept = Waiter::Simulated.block_on(self.io.sleep(Duration::from_micros(us)));
        slept.ok_or_else(killed)
    }

    /// The error that a call has now, if it has one.
    fn trouble(&self, changes: bool) -> io::Result<()> {
        let state = &mut *self.state.lock();
        let moods = state.moods;
        if changes && moods.is_read_only {
            return Err(errno(number::EROFS));
        }
        if changes && moods.is_full && state.rng.chance(700_000) {
            return Err(errno(number::ENOSPC));
        }
        if !state.rng.chance(u32::try_from(moods.error_ppm).unwrap_or(u32::MAX)) {
            return Ok(());
        }
        let looks = [number::EIO, number::EACCES, number::ESTALE];
        let writes = [number::EIO, number::EACCES, number::ESTALE, number::ENOSPC, number::EDQUOT, number::EROFS];
        let numbers = if changes { &writes[..] } else { &looks[..] };
        Err(errno(*state.rng.pick(numbers)))
    }

    /// A call of a process: it takes time before and after its effect, and may fail.
    fn call<T>(
        &self,
        what: &str,
        path: &[u8],
        changes: bool,
        effect: impl FnOnce(&mut State, u64) -> io::Result<T>,
    ) -> Outcome<T> {
        self.pause()?;
        let done = self.trouble(changes).and_then(|()| effect(&mut self.state.lock(), self.now_ns()));
        self.pause()?;
        done.map_err(|error| Trouble::local(format!("{what} {}", self.shown(path)), &error))
    }

    fn refuse_dir(&self, path: &[u8]) -> Outcome<()> {
        match self.stat(path, false) {
            Ok(Some(meta)) if meta.kind == FileKind::Directory => {
                let text = format!("create {}: a directory is there: move it away", self.shown(path));
                Err(Trouble::new(Exit::Caller, text))
            }
            _ => Ok(()),
        }
    }

    /// Gives a whole file or link its name.
    fn give_name(&self, hidden: &[u8], path: &[u8], replaces: &Replaces) -> Outcome<()> {
        let Replaces::Only(known) = replaces else {
            return self.call("finish", path, true, |state, now_ns| state.rename(hidden, path, now_ns));
        };
        match self.stat(path, false)? {
            Some(there) if known.contains(&there.print()) => {
                return self.call("finish", path, true, |state, now_ns| state.rename(hidden, path, now_ns));
            }
            Some(_) => return Err(in_the_way(&self.shown(path))),
            None => {}
        }
        let is_free = self.call("finish", path, true, |state, now_ns| match state.find(path) {
            Ok(_) => Ok(false),
            Err(_) => state.rename(hidden, path, now_ns).map(|()| true),
        })?;
        if is_free { Ok(()) } else { Err(in_the_way(&self.shown(path))) }
    }

    fn by_way_of(
        &self,
        path: &[u8],
        hidden: &[u8],
        replaces: &Replaces,
        make: impl FnOnce(&mut State, &[u8], u64) -> io::Result<()>,
    ) -> Outcome<()> {
        self.refuse_dir(path)?;
        let hidden = beside(path, hidden);
        self.call("make", path, true, |state, now_ns| make(state, &hidden, now_ns))?;
        self.give_name(&hidden, path, replaces).inspect_err(|_| drop(self.remove(&hidden, FileKind::File)))
    }
}

fn identity_of(meta: &Meta) -> Identity {
    let ns = |time: Time| time.0.cast_signed();
    Identity { inode: meta.identity.1, size: meta.size, mtime_ns: ns(meta.mtime), ctime_ns: ns(meta.ctime) }
}

impl Tree for Place {
    fn stat(&self, path: &[u8], _follow: bool) -> Outcome<Option<Meta>> {
        self.call("stat", path, false, |state, _| match state.find(path) {
            Ok(inode) => Ok(Some(state.meta(inode))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn list(&self, dir: &[u8]) -> Outcome<Names> {
        self.call("list", dir, false, |state, _| {
            let names = state.nodes[&state.find(dir)?].now.names.clone();
            let named = |(name, inode): (Vec<u8>, u64)| Named { name, kind: state.nodes[&inode].kind, meta: None };
            Ok(Names { entries: names.into_iter().map(named).collect(), trouble: None })
        })
    }

    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        self.call("read link", path, false, |state, _| match &state.nodes[&state.find(path)?] {
            node if node.kind == FileKind::Symlink => Ok(node.now.bytes.to_vec()),
            _ => Err(errno(number::EINVAL)),
        })
    }

    fn open(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        self.open_fresh(path)
    }

    fn create(&self, path: &[u8], mode: u32) -> Outcome<Box<dyn Sink>> {
        self.create_as(path, mode, b".unnamed")
    }

    fn open_fresh(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        let inode = self.call("open", path, false, |state, _| match state.find(path)? {
            inode if state.nodes[&inode].kind == FileKind::File => Ok(inode),
            _ => Err(errno(number::EINVAL)),
        })?;
        Ok(Box::new(PlaceSource { place: self.clone(), inode, path: path.to_vec(), is_stored: false }))
    }

    fn create_as(&self, path: &[u8], _mode: u32, hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        self.refuse_dir(path)?;
        let mut hidden = beside(path, hidden);
        let without = self.moods().without;
        if without == Some(Missing::OwnNames) {
            hidden = beside(path, b".aze-stage-part");
        }
        let inode = self.call("create", path, true, |state, now_ns| match state.find(&hidden) {
            Ok(inode) if without == Some(Missing::OwnNames) => Ok(inode),
            Ok(_) => Err(errno(number::EEXIST)),
            Err(_) => {
                let inode = state.make(FileKind::File, 0o600, Vec::new(), now_ns);
                state.set_name(&hidden, Some(inode), now_ns).map(|()| inode)
            }
        })?;
        Ok(Box::new(PlaceSink { place: self.clone(), inode, hidden, path: path.to_vec() }))
    }

    fn reopen_as(&self, path: &[u8], hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        let hidden = beside(path, hidden);
        let inode = self.call("open", path, false, |state, _| state.find(&hidden))?;
        Ok(Box::new(PlaceSink { place: self.clone(), inode, hidden, path: path.to_vec() }))
    }

    fn reread_as(&self, path: &[u8], hidden: &[u8]) -> Outcome<(Box<dyn Source>, ReadBack)> {
        let hidden = beside(path, hidden);
        let inode = self.call("read back", path, false, |state, _| state.find(&hidden))?;
        Ok((Box::new(self.stored_source(inode, path)), ReadBack::Direct))
    }

    fn make_link_as(&self, path: &[u8], target: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        self.by_way_of(path, hidden, replaces, |state, hidden, now_ns| {
            let inode = state.make(FileKind::Symlink, 0o777, target.to_vec(), now_ns);
            state.set_name(hidden, Some(inode), now_ns)
        })
    }

    fn add_name(&self, existing: &[u8], path: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        let of = |path: &[u8]| Ok(self.stat(path, false)?.map(|meta| meta.identity));
        let there: Option<(u64, u64)> = of(existing)?;
        if there.is_some() && of(path)? == there {
            return Ok(());
        }
        self.by_way_of(path, hidden, replaces, |state, hidden, now_ns| {
            if !state.moods.links {
                return Err(errno(number::EOPNOTSUPP));
            }
            let inode = state.find(existing)?;
            state.set_name(hidden, Some(inode), now_ns)
        })
    }

    fn remove(&self, path: &[u8], kind: FileKind) -> Outcome<()> {
        self.call("remove", path, true, |state, now_ns| {
            let node = &state.nodes[&state.find(path)?];
            match (kind, node.kind) {
                (FileKind::Directory, FileKind::Directory) if !node.now.names.is_empty() => {
                    Err(errno(number::ENOTEMPTY))
                }
                (FileKind::Directory, FileKind::Directory) => state.set_name(path, None, now_ns),
                (FileKind::Directory, _) | (_, FileKind::Directory) => Err(errno(number::ENOTDIR)),
                _ => state.set_name(path, None, now_ns),
            }
        })
    }

    fn sync_dir(&self, path: &[u8]) -> Outcome<()> {
        self.call("sync directory", path, false, |state, _| {
            let inode = state.find(path)?;
            if state.moods.without != Some(Missing::SyncOfNames) {
                state.sync(inode);
            }
            Ok(())
        })
    }

    fn put_in_place(&self, from: &[u8], to: &[u8], exchange: bool) -> Outcome<()> {
        if exchange && !self.moods().exchanges {
            let text = format!("publish {}: its file system cannot let two names change places", self.shown(to));
            return Err(Trouble::new(Exit::Caller, text));
        }
        self.call("publish", to, true, |state, now_ns| {
            let (inode, there) = (state.find(from)?, state.find(to).ok());
            if there.is_some() != exchange {
                return Err(errno(if exchange { number::ENOENT } else { number::EEXIST }));
            }
            let mut moved = Vec::new();
            state.walk(inode, to, &mut moved);
            let mut left = Vec::new();
            state.walk(inode, from, &mut left);
            let mut come = Vec::new();
            if let Some(there) = there {
                state.walk(there, from, &mut come);
            }
            state.set_name(to, Some(inode), now_ns)?;
            state.set_name(from, there, now_ns)?;
            let gone = left.into_iter().map(|(path, _)| (now_ns, path, None));
            let now = moved.into_iter().chain(come).map(|(path, inode)| (now_ns, path, Some(inode)));
            let all: Vec<_> = gone.chain(now).collect();
            state.names.extend(all);
            Ok(())
        })
    }

    fn traits(&self, dir: &[u8], _hidden: &[u8]) -> Outcome<Traits> {
        self.call("write to", dir, true, |state, _| {
            state.find(dir)?;
            let Moods { folds_case, links, name_bytes_max, .. } = state.moods;
            Ok(Traits { folds_case, links, name_bytes_max, room_bytes: 1 << 40, room_files: None, stripes: None })
        })
    }

    fn make_dir(&self, path: &[u8]) -> Outcome<()> {
        self.call("make directory", path, true, |state, now_ns| match state.find(path) {
            Ok(inode) if state.nodes[&inode].kind == FileKind::Directory => Ok(()),
            Ok(_) => Err(errno(number::EEXIST)),
            Err(_) => {
                let inode = state.make(FileKind::Directory, 0o700, Vec::new(), now_ns);
                state.set_name(path, Some(inode), now_ns)
            }
        })
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()> {
        self.make_link_as(path, target, b".unnamed", &Replaces::Anything)
    }

    fn dir_xattrs(&self, path: &[u8]) -> Outcome<Vec<Xattr>> {
        self.call("read extended attributes of", path, false, |state, _| {
            Ok(state.nodes[&state.find(path)?].now.xattrs.clone().into_iter().collect())
        })
    }

    fn set_dir_xattr(&self, path: &[u8], (name, value): &Xattr) -> Outcome<()> {
        self.call("set attributes of", path, true, |state, now_ns| {
            let inode = state.find(path)?;
            state.change(inode, now_ns, false, |version| drop(version.xattrs.insert(name.clone(), value.clone())));
            Ok(())
        })
    }

    fn set_dir(&self, path: &[u8], meta: &Meta, _preserve: bool) -> Outcome<()> {
        self.call("set attributes of", path, true, |state, now_ns| {
            let inode = state.find(path)?;
            let (mode, mtime) = (copied_mode(meta.mode, true), meta.mtime);
            state.change(inode, now_ns, false, |version| (version.mode, version.mtime) = (mode, mtime));
            Ok(())
        })
    }

    fn shown(&self, path: &[u8]) -> String {
        String::from_utf8_lossy(path).into_owned()
    }

    fn id(&self) -> String {
        "place".into()
    }
}

struct PlaceSource {
    place: Place,
    inode: u64,
    path: Vec<u8>,
    /// It reads from the disk.
    is_stored: bool,
}

impl Source for PlaceSource {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        self.place.call("read extended attributes of", &self.path, false, |state, _| {
            Ok(state.nodes[&self.inode].now.xattrs.clone().into_iter().collect())
        })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let bytes = self.place.call("read", &self.path, false, |state, _| {
            let node = &state.nodes[&self.inode];
            let stored = node.stored.as_ref().filter(|_| self.is_stored).map(|stored| stored.bytes.clone());
            // Files that were never synced are on the disk by chance.
            Ok(if self.is_stored { stored.unwrap_or_default() } else { node.seen_by(self.place.system) })
        })?;
        let from = bytes.len().min(offset as usize);
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        Ok(count)
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        if !self.place.moods().has_holes {
            return Ok(Some(offset));
        }
        self.place.call("look for data in", &self.path, false, |state, _| {
            let bytes = &state.nodes[&self.inode].now.bytes;
            Ok(Some(data_in(bytes, offset).start).filter(|at| *at < bytes.len() as u64))
        })
    }

    fn meta(&self) -> Outcome<Meta> {
        self.place.call("stat", &self.path, false, |state, _| Ok(state.meta(self.inode)))
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        let meta = self.meta()?;
        Ok(vec![meta.identity.0, meta.identity.1, meta.size, meta.mtime.0, meta.ctime.0])
    }
}

struct PlaceSink {
    place: Place,
    inode: u64,
    hidden: Vec<u8>,
    path: Vec<u8>,
}

impl PlaceSink {
    fn change(&self, is_data: bool, change: impl FnOnce(&mut Version)) -> Outcome<()> {
        self.place.call("write", &self.path, true, |state, now_ns| {
            state.change(self.inode, now_ns, is_data, change);
            Ok(())
        })
    }
}

impl PlaceSink {
    fn write(&self, change: impl FnOnce(&mut Vec<u8>)) -> Outcome<()> {
        self.place.call("write", &self.path, true, |state, now_ns| {
            state.write(self.inode, self.place.system, now_ns, change);
            Ok(())
        })
    }
}

impl Sink for PlaceSink {
    fn set_size(&self, bytes: u64) -> Outcome<()> {
        // Attributes arrive at once, and are in no page cache.
        self.change(true, |version| Arc::make_mut(&mut version.bytes).resize(bytes as usize, 0))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<()> {
        // In two calls, as write(2) may.
        let half = data.len() / 2;
        for (offset, data) in [(offset as usize, &data[..half]), (offset as usize + half, &data[half..])] {
            self.write(|bytes| {
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[offset..offset + data.len()].copy_from_slice(data);
            })?;
        }
        Ok(())
    }

    fn reread(&self) -> Outcome<Box<dyn Source>> {
        self.place.open_fresh(&self.hidden)
    }

    fn set_xattr(&self, (name, value): &Xattr) -> Outcome<()> {
        self.change(false, |version| drop(version.xattrs.insert(name.clone(), value.clone())))
    }

    fn finish(&self, meta: &Meta, _preserve: bool) -> Outcome<()> {
        self.settle(meta)?;
        self.publish(&Replaces::Anything).map(drop)
    }

    fn settle(&self, meta: &Meta) -> Outcome<()> {
        let (mode, mtime) = (copied_mode(meta.mode, true), meta.mtime);
        self.change(false, |version| (version.mode, version.mtime) = (mode, mtime))?;
        self.place.call("write", &self.path, true, |state, _| {
            state.sync_file(self.inode, self.place.system);
            Ok(())
        })
    }

    fn store(&self) -> Outcome<()> {
        self.place.call("write", &self.path, true, |state, _| {
            state.sync_file(self.inode, self.place.system);
            Ok(())
        })
    }

    fn reread_stored(&self) -> Outcome<(Box<dyn Source>, ReadBack)> {
        let inode = self.place.call("read back", &self.path, false, |state, _| state.find(&self.hidden))?;
        Ok((Box::new(self.place.stored_source(inode, &self.path)), ReadBack::Direct))
    }

    fn publish(&self, replaces: &Replaces) -> Outcome<Meta> {
        self.place.give_name(&self.hidden, &self.path, replaces)?;
        let found = self.place.stat(&self.path, false)?;
        found
            .ok_or_else(|| Trouble::new(Exit::NotFound, format!("finish {}: it is gone", self.place.shown(&self.path))))
    }

    fn abandon(&self) {
        // The name tells that it is temporary.
        let _ = self.place.remove(&self.hidden, FileKind::File);
    }
}
