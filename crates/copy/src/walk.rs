//! The walk over the sources of a copy, in the thread of the caller: it makes directories and queues files and links.

use crate::Watch;
use crate::tree::{Meta, Spot};
use crate::workers::{Job, Plan, Transfer, Workers, warn};
use aze_proto::attr::FileKind;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeSet;
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

/// A copy under way.
pub struct Copier {
    recursive: bool,
    plan: Arc<Plan>,
    workers: Workers,
    /// Directories made, parents before children.
    dirs: Vec<Made>,
    /// The same directories, so that a copy into itself ends.
    made: BTreeSet<(String, (u64, u64))>,
}

/// A new directory, with the attributes that it is to have.
struct Made {
    from: Spot,
    dir: Spot,
    meta: Meta,
}

impl Copier {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no room for so many.
    pub fn start(how: How, watch: Arc<dyn Watch>) -> Outcome<Copier> {
        let plan = Arc::new(Plan { preserve: how.preserve, verify: how.verify, watch, proof: None });
        let workers = Workers::start(how.jobs, &plan)?;
        Ok(Copier { recursive: how.recursive, plan, workers, dirs: Vec::new(), made: BTreeSet::new() })
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
            FileKind::Symlink => self.workers.put(Job::Link { from, to }),
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
        if from.tree.id() == to.tree.id() && to.stat(true)?.is_some_and(|there| there.identity == meta.identity) {
            return Err(Trouble::new(Exit::Caller, format!("{} and {} are the same file", from.shown(), to.shown())));
        }
        self.plan.watch.expect(meta.size);
        let transfer = Arc::new(Transfer::new(from, to, meta));
        for part in 0..transfer.parts() {
            self.workers.put(Job::Part { transfer: transfer.clone(), part })?;
        }
        Ok(())
    }

    fn dir(&mut self, from: &Spot, to: &Spot, mut meta: Meta) -> Outcome<()> {
        if self.made.contains(&(from.tree.id(), meta.identity)) {
            return Err(Trouble::new(Exit::Caller, format!("{}: not copied into itself", from.shown())));
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
            self.made.insert((to.tree.id(), made.identity));
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

/// Gives a directory the extended attributes of its source; one that it cannot have is told.
fn keep_xattrs(from: &Spot, to: &Spot, plan: &Plan) -> Outcome<()> {
    for xattr in from.tree.dir_xattrs(&from.path)? {
        warn(plan, &xattr, to.tree.set_dir_xattr(&to.path, &xattr));
    }
    Ok(())
}
