//! The acknowledged changes of a writer in a directory that it alone changes, recorded outside of the volume.
//!
//! Each step is one change: it is put down before it begins, and again when it has returned. A step
//! that fails, since a process was killed under it, may have happened or not; every other one must be
//! found done.

use crate::Draw;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names in one directory tree, about.
const NAMES: usize = 40;

/// Directories among them, at most: they stay, and files have to have room.
const DIRS: usize = 12;

/// Longest file, in bytes: some chunks of 64 KiB.
const FILE_BYTES_MAX: u64 = 300_000;

/// Looks at a directory in which one step may still be under way, at most.
const LOOKS_MAX: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Dir,
    File(u32),
}

/// Names, relative to the ledger's directory, and the bytes of the files that they lead to.
#[derive(Clone, Debug, Default)]
struct State {
    names: BTreeMap<String, Node>,
    contents: BTreeMap<u32, Arc<Vec<u8>>>,
}

/// A step that has not returned, or has failed.
#[derive(Clone)]
enum Doubt {
    /// It is as before, or so.
    Done(State),
    /// Bytes of a file from `start` on may be those of before or these, its length any between.
    Bytes { file: u32, start: usize, after: Vec<u8> },
    /// There may be a file of this name, with a part of these bytes, or not.
    New { name: String, bytes: Vec<u8> },
}

/// How long after a step that has failed its names may change as if it had not, at most: the server of one of its names has
/// come back by then, and has heard how the step was decided.
const LATE_MAX: Duration = Duration::from_secs(30);

/// A step over two servers that has failed, and was found undone: where one of them was silent, the other one may go on when
/// that is back (docs/semantics.md, unknown outcomes).
struct Late {
    step: String,
    failed: Instant,
    /// The name that goes, and its node.
    removed: Option<(String, Node)>,
    added: (String, Node),
}

impl Late {
    /// `None` if a step changes contents only, or makes a file, which one server does.
    fn between(before: &State, after: &State, step: Option<&String>) -> Option<Late> {
        let pair = |(name, node): (&String, &Node)| (name.clone(), *node);
        let removed = before.names.iter().find(|(name, _)| !after.names.contains_key(*name)).map(pair);
        let added = after.names.iter().find(|(name, node)| before.names.get(*name) != Some(node)).map(pair)?;
        let is_new = matches!(added.1, Node::File(file) if !before.contents.contains_key(&file));
        (!is_new).then(|| Late { step: step.cloned().unwrap_or_default(), failed: Instant::now(), removed, added })
    }

    /// Whether it can still happen to these names.
    fn is_in(&self, state: &State) -> bool {
        let is_other = state.names.get(&self.added.0) != Some(&self.added.1);
        is_other && self.removed.as_ref().is_none_or(|(name, node)| state.names.get(name) == Some(node))
    }

    fn is_shown_by(&self, (dirs, files): &Found) -> bool {
        let is_there = |name: &String| dirs.contains(name) || files.contains_key(name);
        is_there(&self.added.0) && self.removed.as_ref().is_none_or(|(name, _)| !is_there(name))
    }

    fn apply(&self, state: &mut State) {
        let (to, node) = &self.added;
        match (&self.removed, node) {
            (Some((from, _)), Node::Dir) => state.names = moved(&state.names, from, to),
            (removed, _) => {
                state.names.retain(|name, _| removed.as_ref().is_none_or(|(from, _)| name != from));
                state.names.insert(to.clone(), *node);
            }
        }
    }

    /// The directory that it moves, and where.
    fn moved_dir(&self) -> Option<(&str, &str)> {
        let (to, node) = &self.added;
        self.removed.as_ref().filter(|_| *node == Node::Dir).map(|(from, _)| (from.as_str(), to.as_str()))
    }

    /// A directory above its names has moved.
    fn follow(&mut self, (from, to): (&str, &str)) {
        for name in self.removed.iter_mut().map(|(name, _)| name).chain([&mut self.added.0]) {
            *name = below(name, from, to);
        }
    }
}

/// A name after a directory was renamed.
fn below(name: &str, from: &str, to: &str) -> String {
    match name.strip_prefix(from) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
        _ => name.into(),
    }
}

/// All names after a directory was renamed.
fn moved(names: &BTreeMap<String, Node>, from: &str, to: &str) -> BTreeMap<String, Node> {
    names.iter().map(|(name, node)| (below(name, from, to), *node)).collect()
}

/// What one writer was told.
pub struct Ledger {
    /// The directory within the volume.
    pub dir: String,
    now: State,
    doubt: Option<Doubt>,
    late: Vec<Late>,
    draw: Draw,
    last: u32,
    story: Vec<String>,
}

/// Directories, and files by their names.
type Found = (Vec<String>, BTreeMap<String, Seen>);

/// A file as it was found.
#[derive(Clone, PartialEq)]
struct Seen {
    ino: u64,
    links: u64,
    bytes: Vec<u8>,
}

impl Ledger {
    /// Of a directory that has just been made.
    pub fn new(dir: &str, draw: Draw) -> Ledger {
        Ledger {
            dir: dir.into(),
            now: State::default(),
            doubt: None,
            late: Vec::new(),
            draw,
            last: 0,
            story: Vec::new(),
        }
    }

    /// Whether the last step is neither done nor undone, for all that is known.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// The last steps, for people.
    pub fn story(&self) -> String {
        self.story[self.story.len().saturating_sub(20)..].join("\n  ")
    }

    fn dirs(&self) -> usize {
        self.now.names.values().filter(|node| **node == Node::Dir).count()
    }

    fn fresh(&mut self) -> String {
        self.last += 1;
        let dirs: Vec<&String> =
            self.now.names.iter().filter_map(|(name, node)| (*node == Node::Dir).then_some(name)).collect();
        match self.draw.below(dirs.len() as u64 + 1) as usize {
            0 => format!("n{}", self.last),
            dir => format!("{}/n{}", dirs[dir - 1], self.last),
        }
    }

    fn file(&mut self) -> Option<(String, u32)> {
        let file = |(name, node): (&String, &Node)| match node {
            Node::File(file) => Some((name.clone(), *file)),
            Node::Dir => None,
        };
        let files: Vec<(String, u32)> = self.now.names.iter().filter_map(file).collect();
        (!files.is_empty()).then(|| files[self.draw.below(files.len() as u64) as usize].clone())
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut word = self.draw.word() | 1;
        let mut next = move || {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (word >> 56) as u8 | 1
        };
        (0..len).map(|_| next()).collect()
    }

    /// Makes a change in the mounted directory `root`.
    ///
    /// # Errors
    /// What the system says.
    pub fn step(&mut self, root: &Path) -> io::Result<()> {
        let root = root.join(&self.dir);
        let many = self.now.names.len() > NAMES;
        match self.draw.below(100) {
            0..=19 if !many => self.create(&root),
            0..=44 => self.write(&root),
            45..=51 => self.append(&root),
            52..=58 => self.truncate(&root),
            59..=74 => self.rename(&root),
            75..=79 if !many => self.link(&root),
            80..=84 if !many && self.dirs() < DIRS => self.mkdir(&root),
            85..=87 => self.rename_dir(&root),
            88..=93 => self.sync(&root),
            _ => self.unlink(&root),
        }
    }

    /// Does what takes the ledger to `after`.
    fn change(&mut self, what: String, after: State, act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.story.push(what);
        self.doubt = Some(Doubt::Done(after.clone()));
        act().inspect_err(|error| self.story.push(format!("that failed: {error}")))?;
        (self.now, self.doubt) = (after, None);
        Ok(())
    }

    /// Puts down a step that never began: its file cannot be opened.
    fn failed(&mut self, what: &str, error: io::Error) -> io::Error {
        self.story.push(format!("{what}: it cannot be opened"));
        error
    }

    fn create(&mut self, root: &Path) -> io::Result<()> {
        let name = self.fresh();
        let mut after = self.now.clone();
        after.names.insert(name.clone(), Node::File(self.last));
        after.contents.insert(self.last, Arc::default());
        self.change(format!("create {name}"), after, || File::create_new(root.join(&name)).map(drop))
    }

    fn write(&mut self, root: &Path) -> io::Result<()> {
        let Some((name, file)) = self.file() else { return Ok(()) };
        let before = self.now.contents[&file].clone();
        let start = self.draw.below(before.len() as u64 * 5 / 4 + 1).min(FILE_BYTES_MAX - 1);
        let len = match self.draw.below(3) {
            0 => self.draw.below(200) + 1,
            1 => self.draw.below(9000) + 1,
            _ => self.draw.below(200_000) + 1,
        };
        let data = self.bytes(len.min(FILE_BYTES_MAX - start));
        self.story.push(format!("write {start}+{} of {name}", data.len()));
        let open = OpenOptions::new().write(true).open(root.join(&name))?;
        let mut after = before.to_vec();
        let start = start as usize;
        after.resize(after.len().max(start + data.len()), 0);
        after[start..start + data.len()].copy_from_slice(&data);
        self.doubt = Some(Doubt::Bytes { file, start: start.min(before.len()), after: after.clone() });
        open.write_all_at(&data, start as u64)?;
        self.doubt = None;
        self.now.contents.insert(file, Arc::new(after));
        Ok(())
    }

    fn append(&mut self, root: &Path) -> io::Result<()> {
        let Some((name, file)) = self.file() else { return Ok(()) };
        let len = self.draw.below(5000) + 1;
        let data = self.bytes(len);
        let mut after = self.now.clone();
        let mut bytes = after.contents[&file].to_vec();
        if bytes.len() as u64 + len > FILE_BYTES_MAX {
            return Ok(());
        }
        bytes.extend(&data);
        after.contents.insert(file, Arc::new(bytes));
        let what = format!("append {len} to {name}");
        let mut open =
            OpenOptions::new().append(true).open(root.join(&name)).map_err(|error| self.failed(&what, error))?;
        self.change(what, after, || io::Write::write_all(&mut open, &data))
    }

    fn truncate(&mut self, root: &Path) -> io::Result<()> {
        let Some((name, file)) = self.file() else { return Ok(()) };
        let mut after = self.now.clone();
        let mut bytes = after.contents[&file].to_vec();
        let len = self.draw.below(bytes.len() as u64 * 5 / 4 + 1).min(FILE_BYTES_MAX);
        bytes.resize(len as usize, 0);
        after.contents.insert(file, Arc::new(bytes));
        let what = format!("truncate {name} to {len}");
        let open = OpenOptions::new().write(true).open(root.join(&name)).map_err(|error| self.failed(&what, error))?;
        self.change(what, after, || open.set_len(len))
    }

    /// Onto a fresh name, or one that leads to something.
    fn renamed(&mut self) -> Option<(String, String, State)> {
        let (from, file) = self.file()?;
        let onto = self.file().filter(|_| self.draw.below(3) == 0);
        // Two names of one file: rename(2) then does nothing.
        let onto = onto.filter(|(_, other)| *other != file).map(|(name, _)| name);
        let to = onto.unwrap_or_else(|| self.fresh());
        let mut after = self.now.clone();
        let node = after.names.remove(&from)?;
        after.names.insert(to.clone(), node);
        Some((from, to, after))
    }

    fn rename(&mut self, root: &Path) -> io::Result<()> {
        let Some((from, to, after)) = self.renamed() else { return Ok(()) };
        self.change(format!("rename {from} to {to}"), after, || fs::rename(root.join(&from), root.join(&to)))
    }

    fn rename_dir(&mut self, root: &Path) -> io::Result<()> {
        let dirs: Vec<String> =
            self.now.names.iter().filter(|(_, node)| **node == Node::Dir).map(|(name, _)| name.clone()).collect();
        if dirs.is_empty() {
            return Ok(());
        }
        let (from, to) = (dirs[self.draw.below(dirs.len() as u64) as usize].clone(), self.fresh());
        if to.starts_with(&format!("{from}/")) {
            return Ok(());
        }
        let after = State { names: moved(&self.now.names, &from, &to), contents: self.now.contents.clone() };
        let what = format!("rename directory {from} to {to}");
        self.change(what, after, || fs::rename(root.join(&from), root.join(&to)))?;
        self.late.iter_mut().for_each(|late| late.follow((&from, &to)));
        Ok(())
    }

    fn link(&mut self, root: &Path) -> io::Result<()> {
        let Some((old, file)) = self.file() else { return Ok(()) };
        let (new, mut after) = (self.fresh(), self.now.clone());
        after.names.insert(new.clone(), Node::File(file));
        self.change(format!("link {old} as {new}"), after, || fs::hard_link(root.join(&old), root.join(&new)))
    }

    fn mkdir(&mut self, root: &Path) -> io::Result<()> {
        let (name, mut after) = (self.fresh(), self.now.clone());
        after.names.insert(name.clone(), Node::Dir);
        self.change(format!("mkdir {name}"), after, || fs::create_dir(root.join(&name)))
    }

    fn unlink(&mut self, root: &Path) -> io::Result<()> {
        let Some((name, _)) = self.file() else { return Ok(()) };
        let mut after = self.now.clone();
        after.names.remove(&name);
        self.change(format!("unlink {name}"), after, || fs::remove_file(root.join(&name)))
    }

    fn sync(&mut self, root: &Path) -> io::Result<()> {
        let Some((name, _)) = self.file() else { return Ok(()) };
        self.story.push(format!("fsync {name}"));
        File::open(root.join(&name))?.sync_all()
    }

    /// Makes a change by a command, which `run` starts and waits for; it tells whether that succeeded.
    /// `local` is a path outside of the volume for the source of a copy.
    pub fn command(&mut self, local: &Path, run: impl FnOnce(&[&str]) -> bool) -> bool {
        let at = |dir: &str, name: &str| format!("aze:/{dir}/{name}");
        let draw = if self.now.names.len() > NAMES { 9 } else { self.draw.below(10) };
        let mut run = Some(run);
        let mut act = |words: &[&str]| match run.take().is_some_and(|run| run(words)) {
            true => Ok(()),
            false => Err(io::Error::other("the command failed")),
        };
        let dir = self.dir.clone();
        if draw < 6 || self.now.names.is_empty() {
            self.last += 1;
            let (name, len) = (format!("n{}", self.last), self.draw.below(FILE_BYTES_MAX));
            let bytes = self.bytes(len);
            fs::write(local, &bytes).expect("a local file");
            self.story.push(format!("cp {len} bytes to {name}"));
            self.doubt = Some(Doubt::New { name: name.clone(), bytes: bytes.clone() });
            if act(&["cp", &local.display().to_string(), &at(&dir, &name)]).is_err() {
                return false;
            }
            self.doubt = None;
            self.now.names.insert(name, Node::File(self.last));
            self.now.contents.insert(self.last, Arc::new(bytes));
            return true;
        }
        if draw < 9 {
            let Some((from, to, after)) = self.renamed() else { return true };
            let words = [at(&dir, &from), at(&dir, &to)];
            return self.change(format!("mv {from} {to}"), after, || act(&["mv", &words[0], &words[1]])).is_ok();
        }
        let Some((name, _)) = self.file() else { return true };
        let mut after = self.now.clone();
        after.names.remove(&name);
        self.change(format!("rm {name}"), after, || act(&["rm", &at(&dir, &name)])).is_ok()
    }

    /// The directories and files that exist. A request of a killed process may take effect during a look:
    /// with a step in doubt it looks until two looks agree.
    fn settled(&self, root: &Path) -> Result<Found, String> {
        let mut last: Option<Result<Found, String>> = None;
        for _ in 0..LOOKS_MAX {
            let (mut dirs, mut files) = (Vec::new(), BTreeMap::new());
            let found = look(root, "", &mut dirs, &mut files).map(|()| (dirs, files));
            if self.doubt.is_none() || last.as_ref() == Some(&found) {
                return found;
            }
            last = Some(found);
        }
        last.unwrap_or_else(|| Err("nobody looked".into()))
    }

    /// Compares the directory with the ledger, and takes over the outcome of a step in doubt.
    ///
    /// # Errors
    /// The first difference. A step in doubt then stays in doubt: while servers still settle it, its file may have the
    /// link count of after it without its name, so a later look may find the one or the other outcome.
    pub fn check(&mut self, root: &Path) -> Result<(), String> {
        let (root, looked) = (root.join(&self.dir), Instant::now());
        let found = self.settled(&root)?;
        let doubt = self.doubt.take();
        let compared = self
            .take_over(&root, &found, doubt.as_ref())
            .or_else(|why| self.take_late(&root, &found, doubt.as_ref(), why));
        match compared {
            Ok(()) => self.late.retain(|late| looked.duration_since(late.failed) < LATE_MAX),
            Err(_) => self.doubt = doubt,
        }
        compared.map_err(|why| format!("{why}{}", self.differences(&root, &found)))
    }

    /// As [`Self::take_over`], after names have changed by steps that had failed, and were found undone then.
    fn take_late(&mut self, root: &Path, found: &Found, doubt: Option<&Doubt>, why: String) -> Result<(), String> {
        let is_late = |late: &mut Late| late.is_in(&self.now) && late.is_shown_by(found);
        let taken: Vec<Late> = self.late.extract_if(.., is_late).collect();
        if taken.is_empty() {
            return Err(why);
        }
        let mut doubt = doubt.cloned();
        for late in taken {
            self.story.push(format!("later came: {}", late.step));
            late.apply(&mut self.now);
            if let Some(Doubt::Done(after)) = &mut doubt
                && late.is_in(after)
            {
                late.apply(after);
            }
            self.follow(Some(&late));
        }
        self.take_over(root, found, doubt.as_ref())
    }

    /// Steps that may still happen concern the same names after a directory above them has moved.
    fn follow(&mut self, done: Option<&Late>) {
        if let Some(moved) = done.and_then(Late::moved_dir) {
            self.late.iter_mut().for_each(|late| late.follow(moved));
        }
    }

    /// Names that were not found and names that were found without being known; the steps that they were in.
    fn differences(&self, root: &Path, (dirs, files): &Found) -> String {
        let is_there = |name: &String| dirs.contains(name) || files.contains_key(name);
        let gone = self.now.names.keys().filter(|name| !is_there(name)).map(|name| {
            let looked = fs::symlink_metadata(root.join(name));
            let looked = looked.map_or_else(|error| error.to_string(), |meta| format!("inode {}", meta.ino()));
            format!("\n  {name} is not listed ({looked}){}", self.steps_of(name))
        });
        let unknown = dirs.iter().chain(files.keys()).filter(|name| !self.now.names.contains_key(*name));
        gone.chain(unknown.map(|name| format!("\n  {name} is there{}", self.steps_of(name)))).collect()
    }

    fn steps_of(&self, name: &str) -> String {
        let steps = self.story.iter().enumerate().filter(|(_, step)| step.split(' ').any(|word| word == name));
        steps
            .map(|(number, step)| {
                let outcome = self.story[number + 1..].iter().take_while(|next| next.starts_with("that "));
                format!("; {number}: {step}{}", outcome.map(|next| format!(", {next}")).collect::<String>())
            })
            .collect()
    }

    /// Looks at each name after a part of the volume was lost: what can be reached is as the ledger says, and the rest is EIO. Gives how many
    /// names are there, and how many are lost.
    ///
    /// # Errors
    /// The first name that is neither.
    pub fn check_part(&self, root: &Path) -> Result<(usize, usize), String> {
        let root = root.join(&self.dir);
        let after = match &self.doubt {
            Some(Doubt::Done(after)) => Some(after),
            Some(Doubt::Bytes { .. } | Doubt::New { .. }) | None => None,
        };
        let all: BTreeSet<&String> =
            self.now.names.keys().chain(after.iter().flat_map(|after| after.names.keys())).collect();
        let (mut there, mut lost) = (0, 0);
        for name in all {
            let seen = fs::symlink_metadata(root.join(name)).and_then(|meta| match meta.is_dir() {
                true => Ok(None),
                false => fs::read(root.join(name)).map(Some),
            });
            let states = [Some(&self.now), after];
            let may_be = |state: &State, seen: Option<&Option<Vec<u8>>>| match (state.names.get(name), seen) {
                (None, None) | (Some(Node::Dir), Some(None)) => true,
                (Some(Node::File(file)), Some(Some(bytes))) => {
                    let is_in_doubt =
                        matches!(&self.doubt, Some(Doubt::Bytes { file: doubtful, .. }) if doubtful == file);
                    is_in_doubt || *state.contents[file] == *bytes
                }
                _ => false,
            };
            let is_right = |seen: Option<&Option<Vec<u8>>>| states.iter().flatten().any(|state| may_be(state, seen));
            match seen {
                Ok(seen) if is_right(Some(&seen)) => there += 1,
                Ok(seen) => {
                    let what = seen.map_or_else(|| "a directory".into(), |bytes| format!("{} bytes", bytes.len()));
                    return Err(format!("{name} is there with {what}, which it never had"));
                }
                Err(error) if error.raw_os_error() == Some(libc::EIO) => lost += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound && is_right(None) => {}
                Err(error) => return Err(format!("{name}: {error}")),
            }
        }
        Ok((there, lost))
    }

    /// Compares the tree `found` with the ledger, before or after the step in doubt, and keeps the state that agrees.
    fn take_over(&mut self, root: &Path, (dirs, files): &Found, doubt: Option<&Doubt>) -> Result<(), String> {
        let mut files = files.clone();
        if let Some(Doubt::New { name, bytes }) = doubt
            && let Some(seen) = files.remove(name)
        {
            if seen.bytes.len() > bytes.len() || seen.bytes.iter().zip(bytes).any(|(is, was)| is != was && *is != 0) {
                return Err(format!("{name}, which a killed command was writing, has bytes that it never wrote"));
            }
            fs::remove_file(root.join(name)).map_err(|error| format!("remove {name}: {error}"))?;
        }
        if let Some(Doubt::Bytes { file, start, after }) = doubt {
            let (name, _) = self.now.names.iter().find(|(_, node)| **node == Node::File(*file)).expect("it has a name");
            let before = self.now.contents[file].clone();
            let Some(seen) = files.get(name) else { return Err(format!("{name} is gone")) };
            if seen.bytes.len() < before.len() || seen.bytes.len() > after.len() {
                return Err(format!(
                    "{name}: {} bytes, before {}, after {}",
                    seen.bytes.len(),
                    before.len(),
                    after.len()
                ));
            }
            let is_right = |(at, is): (usize, &u8)| {
                *is == after[at] && at >= *start || *is == before.get(at).copied().unwrap_or(0)
            };
            if let Some(at) = (0..seen.bytes.len()).find(|at| !is_right((*at, &seen.bytes[*at]))) {
                return Err(format!("{name}: byte {at} is neither from before nor from the write under way"));
            }
            self.now.contents.insert(*file, Arc::new(seen.bytes.clone()));
        }
        let found = self.now.compare(dirs, &files);
        match (found, doubt) {
            (Ok(()), Some(Doubt::Done(after))) => {
                self.late.extend(Late::between(
                    &self.now,
                    after,
                    self.story.iter().rev().find(|step| !step.starts_with("that ")),
                ));
                self.story.push("that was found undone".into());
                Ok(())
            }
            (Err(_), Some(Doubt::Done(after))) => {
                let before = self.now.compare(dirs, &files).err().unwrap_or_default();
                let also = |why| format!("neither as before the last step ({before}) nor as after it ({why})");
                after.compare(dirs, &files).map_err(also)?;
                let step = Late::between(&self.now, after, None);
                self.follow(step.as_ref());
                self.now = after.clone();
                self.story.push("that was found done".into());
                Ok(())
            }
            (found, _) => found,
        }
    }
}

/// How the name begins that `aze cp` gives a file until it is whole; one that is killed leaves it.
const HIDDEN: &str = ".aze-";

/// Everything below `dir`.
fn look(root: &Path, dir: &str, dirs: &mut Vec<String>, files: &mut BTreeMap<String, Seen>) -> Result<(), String> {
    let at = root.join(dir);
    let wrong = |path: &PathBuf, error: io::Error| format!("{}: {error}", path.display());
    for entry in fs::read_dir(&at).map_err(|error| wrong(&at, error))? {
        let entry = entry.map_err(|error| wrong(&at, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(HIDDEN) {
            continue;
        }
        let (name, path) = (
            if dir.is_empty() { name } else { format!("{dir}/{}", entry.file_name().to_string_lossy()) },
            entry.path(),
        );
        let meta = fs::symlink_metadata(&path).map_err(|error| wrong(&path, error))?;
        if meta.is_dir() {
            dirs.push(name.clone());
            look(root, &name, dirs, files)?;
        } else {
            let bytes = fs::read(&path).map_err(|error| wrong(&path, error))?;
            files.insert(name, Seen { ino: meta.ino(), links: meta.nlink(), bytes });
        }
    }
    Ok(())
}

impl State {
    fn compare(&self, dirs: &[String], files: &BTreeMap<String, Seen>) -> Result<(), String> {
        let mut inos: BTreeMap<u32, u64> = BTreeMap::new();
        for (name, node) in &self.names {
            let Node::File(file) = node else {
                if !dirs.contains(name) {
                    return Err(format!("directory {name} is gone"));
                }
                continue;
            };
            let Some(seen) = files.get(name) else { return Err(format!("file {name} is gone")) };
            let bytes = &self.contents[file];
            if seen.bytes.len() != bytes.len() {
                return Err(format!("{name} has {} bytes instead of {}", seen.bytes.len(), bytes.len()));
            }
            if let Some(at) = (0..bytes.len()).find(|at| bytes[*at] != seen.bytes[*at]) {
                return Err(format!("{name} has another byte at {at}"));
            }
            if *inos.entry(*file).or_insert(seen.ino) != seen.ino {
                return Err(format!("{name} was a second name of a file, and now is another file"));
            }
            let links = self.names.values().filter(|other| *other == node).count() as u64;
            if seen.links != links {
                return Err(format!("{name} has link count {} instead of {links}", seen.links));
            }
        }
        let unknown = |name: &&String| !self.names.contains_key(*name);
        match dirs.iter().find(unknown).or_else(|| files.keys().find(unknown)) {
            Some(name) => Err(format!("{name} must not be there")),
            None => Ok(()),
        }
    }
}
