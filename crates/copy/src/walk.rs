//! The walk over the sources of a copy, in the thread of the caller: it makes directories and queues files and links.

use crate::Watch;
use crate::tree::{Meta, Spot};
use crate::workers::{Job, Plan, Transfer, Workers, warn};
use aze_proto::attr::FileKind;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a copy is made.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Directories are copied, too, with all that is in them; then symbolic links are copied as links.
    pub recursive: bool,
    /// Owner, times, extended attributes and access control lists are kept as far as the target lets them.
    pub preserve: bool,
    /// Both sides of each file are read again and compared, before the copy gets its name.
    pub verify: bool,
    /// Files and parts of files copied at the same time.
    pub jobs: usize,
}

/// What tells a file from every other one of all trees: the name of its tree ([`Tree::id`]), and its identity there.
type Object = (String, (u64, u64));

/// A copy under way.
pub struct Copier {
    recursive: bool,
    plan: Arc<Plan>,
    workers: Workers,
    /// Volumes that are mounted here, by device number: names of their trees.
    mounts: BTreeMap<u64, String>,
    /// Directories made, parents before children.
    dirs: Vec<Made>,
    /// The same directories, each with the copy that has made it, so that a copy into itself ends.
    made: BTreeMap<Object, (Spot, Spot)>,
}

/// A new directory, with the attributes that it is to have.
struct Made {
    from: Spot,
    dir: Spot,
    meta: Meta,
}

impl Copier {
    /// Starts the threads. `mounts` are the volumes that are mounted on this machine, by device number (st_dev), as the
    /// names of their trees: a file of a mount is that of its volume.
    ///
    /// # Errors
    /// The system has no room for so many.
    pub fn start(how: How, watch: Arc<dyn Watch>, mounts: BTreeMap<u64, String>) -> Outcome<Copier> {
        let plan = Arc::new(Plan { preserve: how.preserve, verify: how.verify, watch, proof: None });
        let workers = Workers::start(how.jobs, &plan)?;
        Ok(Copier { recursive: how.recursive, plan, workers, mounts, dirs: Vec::new(), made: BTreeMap::new() })
    }

    /// Copies one source, which gets the path `to`. Returns when all of it is found; files may still be on their way.
    /// What fails below the source is told to the watch.
    ///
    /// # Errors
    /// There is no such source.
    pub fn copy(&mut self, from: Spot, to: Spot) -> Outcome<()> {
        let meta = from.must_stat(!self.recursive)?;
        self.visit(from, to, meta);
        Ok(())
    }

    /// Waits until all files are copied, then gives directories their final mode and times, when nothing is put into
    /// them any more.
    ///
    /// # Errors
    /// A thread has panicked.
    pub fn finish(self) -> Outcome<()> {
        let Copier { plan, workers, dirs, .. } = self;
        workers.finish()?;
        for Made { from, dir, meta } in dirs.iter().rev() {
            let kept = if plan.preserve { keep_xattrs(from, dir, &plan) } else { Ok(()) };
            if let Err(trouble) = kept.and_then(|()| dir.tree.set_dir(&dir.path, meta, plan.preserve)) {
                plan.watch.failed(&trouble);
            }
        }
        Ok(())
    }

    fn visit(&mut self, from: Spot, to: Spot, meta: Meta) {
        if self.plan.watch.is_over() {
            return;
        }
        let visited = match meta.kind {
            FileKind::File => self.file(from, to, meta),
            FileKind::Symlink => self.workers.put(Job::Link { from, to, meta }),
            FileKind::Directory if self.recursive => self.dir(&from, &to, meta),
            FileKind::Directory => {
                Err(Trouble::new(Exit::Caller, format!("{}: is a directory: use -r to copy it", from.shown())))
            }
            _ => Err(Trouble::new(
                Exit::Caller,
                format!("{}: neither file, directory nor symbolic link: not copied", from.shown()),
            )),
        };
        if let Err(trouble) = visited {
            self.plan.watch.failed(&trouble);
        }
    }

    fn file(&mut self, from: Spot, to: Spot, meta: Meta) -> Outcome<()> {
        let source = self.object(&from, &meta);
        // A local path may be in a mount of the source's volume; a path of another volume leads to another file.
        let may_be_same = source.0 == to.tree.id() || !to.tree.is_volume() && !self.mounts.is_empty();
        if may_be_same && to.stat(true)?.is_some_and(|there| self.object(&to, &there) == source) {
            return Err(same("file", &from, &to));
        }
        self.plan.watch.expect(meta.size);
        let transfer = Arc::new(Transfer::new(from, to, meta));
        for part in 0..transfer.parts() {
            self.workers.put(Job::Part { transfer: transfer.clone(), part })?;
        }
        Ok(())
    }

    fn object(&self, spot: &Spot, meta: &Meta) -> Object {
        let (device, inode) = meta.identity;
        match self.mounts.get(&device).filter(|_| !spot.tree.is_volume()) {
            // As a volume's own tree tells its files apart: a mount shows their numbers.
            Some(volume) => (volume.clone(), (0, inode)),
            None => (spot.tree.id(), meta.identity),
        }
    }

    fn dir(&mut self, from: &Spot, to: &Spot, mut meta: Meta) -> Outcome<()> {
        let source = self.object(from, &meta);
        if let Some((copied, copy)) = self.made.get(&source) {
            let text = format!(
                "cannot copy directory {} into itself, {}: give a target outside of it",
                copied.shown(),
                copy.shown()
            );
            return Err(Trouble::new(Exit::Caller, text));
        }
        if self.plan.preserve {
            // Asked before its names are: a change that comes later is to look later than the copy.
            match from.tree.stat_dir(&from.path) {
                Ok(exact) => meta = exact,
                Err(trouble) => self.plan.watch.failed(&trouble),
            }
        }
        to.tree.make_dir(&to.path)?;
        if let Some(made) = to.stat(true)? {
            let target = self.object(to, &made);
            if target == source {
                return Err(same("directory", from, to));
            }
            self.made.insert(target, (from.clone(), to.clone()));
        }
        self.dirs.push(Made { from: from.clone(), dir: to.clone(), meta });
        self.plan.watch.dir();
        let names = from.tree.list_with_attributes(&from.path)?;
        if let Some(trouble) = &names.trouble {
            self.plan.watch.failed(trouble);
        }
        for entry in names.entries {
            let child = from.join(&entry.name);
            match entry.meta.map_or_else(|| child.must_stat(false), Ok) {
                Ok(meta) => self.visit(child, to.join(&entry.name), meta),
                Err(trouble) => self.plan.watch.failed(&trouble),
            }
        }
        Ok(())
    }
}

fn same(kind: &str, from: &Spot, to: &Spot) -> Trouble {
    Trouble::new(Exit::Caller, format!("{} and {} are the same {kind}: give another target", from.shown(), to.shown()))
}

/// Gives a directory the extended attributes of its source; one that it cannot have is told.
fn keep_xattrs(from: &Spot, to: &Spot, plan: &Plan) -> Outcome<()> {
    for xattr in from.tree.dir_xattrs(&from.path)? {
        warn(plan, &xattr, to.tree.set_dir_xattr(&to.path, &xattr));
    }
    Ok(())
}
