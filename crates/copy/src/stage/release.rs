//! Release: a volume gives up files that are staged out, each after proof that its copy is still there.
//!
//! The order of the steps: each file is compared with the ledger and its copy with what the receipt's line was made from
//! ([`prove_one`]); then the ledger says, on the device, that these files may be missing in the volume; then each file is
//! compared once more, and the volume takes its name away in one step if no client has had it open for writing since
//! ([`Source::release`](crate::tree::Source::release)); at last files that stayed are taken out of the ledger's list. So a process
//! that is killed leaves each file in the volume, or at its destination and in the list; one that is in both is staged as
//! before. The list keeps a later `--delete` from taking the copy away, and the volume from counting the file as removed.

use super::ledger::Ledger;
use super::prove::{identity, sums_of, version, xattrs_hash};
use super::standing::{relative, version_now};
use super::state::{Done, Version};
use crate::Watch;
use crate::tree::{Spot, join, parent};
use aze_io::sync::Mutex;
use aze_proto::attr::FileKind;
use aze_receipt::line::What;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The arguments of a release.
pub struct Order<'a> {
    /// Files and directories of the volume, by their absolute paths; of a directory all files below it.
    pub from: Vec<Spot>,
    /// The tree that the ledgers' other sides are in.
    pub outside: Arc<dyn crate::tree::Tree>,
    /// The files of the ledgers of this volume.
    pub ledgers: Vec<PathBuf>,
    /// Read the copies, and compare their sums with those of the receipt.
    pub compare: bool,
    /// Also files whose server was started again since they were made: it does not know who had them open before.
    pub any_life: bool,
    /// Files at work at the same time.
    pub jobs: usize,
    /// Notes in the volume that files are about to be released; called once or more, before the first.
    pub note: &'a (dyn Fn() -> Outcome<()> + Sync),
}

/// How it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that the volume has given up.
    pub released: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that it keeps, each told to the watch with the reason.
    pub kept: u64,
}

/// Releases. Each file that stays is told to the watch, with the reason.
///
/// # Errors
/// A ledger cannot be read or written. Files may have been released; all of those are in a ledger's list.
pub fn release(order: &Order<'_>, watch: &dyn Watch) -> Outcome<Report> {
    let mut report = Report::default();
    let mut todo: BTreeMap<Vec<u8>, (Spot, Option<Trouble>)> = BTreeMap::new();
    for start in &order.from {
        for file in files(start, watch)? {
            todo.insert(file.path.clone(), (file, None));
        }
    }
    for place in &order.ledgers {
        let Some(ledger) = Ledger::read(place)?.filter(|ledger| ledger.route.is_out()) else { continue };
        let here: Vec<(Spot, &Done)> = todo
            .values()
            .filter_map(|(file, _)| Some((file.clone(), ledger.entries.get(relative(&ledger.route, &file.path)?)?)))
            .collect();
        if !here.is_empty() {
            let work = Work { order, watch, place, ledger: &ledger };
            for (path, outcome) in work.all(&here)? {
                match outcome {
                    Ok(bytes) => {
                        todo.remove(&path);
                        report.released += 1;
                        report.bytes += bytes;
                    }
                    Err(trouble) => drop(todo.get_mut(&path).map(|(_, why)| *why = Some(trouble))),
                }
            }
        }
        end_early(watch)?;
    }
    for (file, why) in todo.into_values() {
        report.kept += 1;
        let unknown = || kept(&file, "no receipt of this volume has it: stage it out first, with --keep");
        watch.failed(&why.unwrap_or_else(unknown));
    }
    Ok(report)
}

fn end_early(watch: &dyn Watch) -> Outcome<()> {
    let text = "the command was asked to end: the same command goes on from here";
    if watch.is_over() { Err(Trouble::new(Exit::Again, text)) } else { Ok(()) }
}

fn kept(file: &Spot, why: impl std::fmt::Display) -> Trouble {
    Trouble::new(Exit::Some, format!("{}: not released: {why}", file.shown()))
}

/// The regular files at or below a place.
fn files(start: &Spot, watch: &dyn Watch) -> Outcome<Vec<Spot>> {
    let meta = start.must_stat(false)?;
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    match meta.kind {
        FileKind::Directory => dirs.push(start.path.clone()),
        FileKind::File => files.push(start.clone()),
        _ => watch.failed(&kept(start, "it is no regular file, and holds no data")),
    }
    while let Some(dir) = dirs.pop() {
        let names = start.tree.list(&dir)?;
        names.trouble.iter().for_each(|trouble| watch.failed(trouble));
        for entry in names.entries {
            let path = join(&dir, &entry.name);
            match entry.kind {
                FileKind::Directory => dirs.push(path),
                FileKind::File => files.push(Spot { tree: start.tree.clone(), path }),
                _ => {}
            }
        }
        end_early(watch)?;
    }
    Ok(files)
}

/// The files of one ledger.
struct Work<'a> {
    order: &'a Order<'a>,
    watch: &'a dyn Watch,
    place: &'a Path,
    ledger: &'a Ledger,
}

type Each = Vec<(Vec<u8>, Outcome<u64>)>;

impl Work<'_> {
    /// Gives the bytes of each file that was released, or the reason for which it stays.
    fn all(&self, files: &[(Spot, &Done)]) -> Outcome<Each> {
        let mut each = self.in_parallel(files, |file, done| self.prove_one(file, done, self.order.compare));
        let proven: BTreeSet<Vec<u8>> =
            each.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(path, _)| path.clone()).collect();
        let proven: Vec<(Spot, &Done)> =
            files.iter().filter(|(file, _)| proven.contains(&file.path)).cloned().collect();
        if proven.is_empty() {
            return Ok(each);
        }
        let clean = self.clean_dirs(&proven);
        (self.order.note)()?;
        self.list(&proven, true)?;
        let tried = self.in_parallel(&proven, |file, done| self.release_one(file, done));
        // Where it is not known whether the file has gone, or where it is there no more, the list keeps it.
        let stays = |outcome: &Outcome<u64>| {
            outcome.as_ref().is_err_and(|trouble| !matches!(trouble.exit, Exit::Fatal | Exit::NotFound))
        };
        let stayed: BTreeSet<Vec<u8>> =
            tried.iter().filter(|(_, outcome)| stays(outcome)).map(|(path, _)| path.clone()).collect();
        let stayed: Vec<(Spot, &Done)> =
            proven.iter().filter(|(file, _)| stayed.contains(&file.path)).cloned().collect();
        if !stayed.is_empty() {
            self.list(&stayed, false)?;
        }
        self.keep_clean(clean)?;
        each.retain(|(_, outcome)| outcome.is_err());
        each.extend(tried);
        Ok(each)
    }

    /// The directories of files, and the root, as far as they are as they were staged.
    fn clean_dirs(&self, files: &[(Spot, &Done)]) -> Vec<(Spot, &Done)> {
        let Some((any, _)) = files.first() else { return Vec::new() };
        let dirs: BTreeSet<Vec<u8>> = files.iter().map(|(file, _)| parent(&file.path)).chain([b"/".to_vec()]).collect();
        let known = dirs.into_iter().filter_map(|path| {
            let done = self.ledger.entries.get(relative(&self.ledger.route, &path)?)?;
            let dir = Spot { tree: any.tree.clone(), path };
            let is_clean = version_now(&dir, FileKind::Directory).is_ok_and(|(_, now)| now == done.from);
            is_clean.then_some((dir, done))
        });
        known.collect()
    }

    /// The release has moved the times of these directories; that makes nothing dirty. Where anything else differs, the
    /// directory is left to the next stage.
    fn keep_clean(&self, dirs: Vec<(Spot, &Done)>) -> Outcome<()> {
        let now = dirs.into_iter().filter_map(|(dir, done)| {
            let (_, now) = version_now(&dir, FileKind::Directory).ok()?;
            let xattrs = xattrs_hash(dir.tree.dir_xattrs(&dir.path).ok()?);
            let timeless = |version: &Version| (version[..2].to_vec(), version[5..].to_vec());
            (timeless(&now) == timeless(&done.from) && xattrs == done.object.xattrs).then_some((done, now))
        });
        let now: Vec<(&Done, Version)> = now.collect();
        Ledger::update(self.place, |ledger| {
            for (done, now) in now {
                let entry = ledger.entries.get_mut(&done.object.path);
                if let Some(entry) = entry.filter(|entry| entry.from == done.from) {
                    entry.from = now;
                }
            }
            Ok(())
        })
    }

    /// Puts files on the ledger's list of those that the volume may have given up, or takes them off. A file whose
    /// version in the ledger a stage has replaced meanwhile is left alone: it is not released then, since its version
    /// is not the one that was proven.
    fn list(&self, files: &[(Spot, &Done)], is_given_up: bool) -> Outcome<()> {
        Ledger::update(self.place, |ledger| {
            for (_, done) in files {
                let path = &done.object.path;
                if ledger.entries.get(path).is_none_or(|entry| entry.from != done.from) {
                    continue;
                }
                match is_given_up {
                    true => drop(ledger.released.insert(path.clone())),
                    false => drop(ledger.released.remove(path)),
                }
            }
            Ok(())
        })
    }

    fn in_parallel(&self, files: &[(Spot, &Done)], step: impl Fn(&Spot, &Done) -> Outcome<u64> + Sync) -> Each {
        let (next, each) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some((file, done)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outcome = end_early(self.watch).and_then(|()| step(file, done));
                each.lock().push((file.path.clone(), outcome));
            }
        };
        aze_io::threads::together(self.order.jobs.min(files.len()), work);
        each.into_inner()
    }

    /// Whether the volume's file is as it was staged, and its copy is where it was put; gives its bytes.
    fn prove_one(&self, file: &Spot, done: &Done, compare: bool) -> Outcome<u64> {
        let What::File { size, same_as: None, hash, .. } = &done.object.what else {
            return Err(kept(file, "it has several names"));
        };
        let (meta, now) = version_now(file, FileKind::File)?;
        if now != done.from {
            return Err(kept(
                file,
                "it has changed since it was staged, or its server was started again: stage it once more",
            ));
        }
        if meta.links != 1 {
            return Err(kept(file, "it has several names"));
        }
        let copy = self.copy_of(done);
        self.check_copy(file, &copy, done)?;
        if compare {
            let source = copy.tree.open_fresh(&copy.path)?;
            let found = sums_of(source.as_ref(), *size, source.meta()?.is_sparse, self.watch)?;
            if found.hash(*size) != *hash {
                return Err(kept(file, format!("{} has other bytes than the receipt says", copy.shown())));
            }
            self.check_copy(file, &copy, done)?;
        }
        Ok(*size)
    }

    fn copy_of(&self, done: &Done) -> Spot {
        let outside = &self.ledger.route.outside;
        let path = if done.object.path.is_empty() { outside.clone() } else { join(outside, &done.object.path) };
        Spot { tree: self.order.outside.clone(), path }
    }

    fn check_copy(&self, file: &Spot, copy: &Spot, done: &Done) -> Outcome<()> {
        match copy.stat(false)? {
            Some(there) if identity(&there) == done.to => Ok(()),
            Some(_) => {
                Err(kept(file, format!("{} has changed since it was verified: stage it once more", copy.shown())))
            }
            None => Err(kept(file, format!("{} is not there any more: stage it once more", copy.shown()))),
        }
    }

    /// Has the volume give up a file, if it is still as it was staged.
    fn release_one(&self, file: &Spot, done: &Done) -> Outcome<u64> {
        let source = file.tree.open_fresh(&file.path)?;
        let (meta, mark) = source.marked()?;
        if version(&meta, &mark) != done.from {
            return Err(kept(file, "it has changed since it was staged: stage it once more"));
        }
        self.check_copy(file, &self.copy_of(done), done)?;
        source.release(&file.path, &meta, &mark, self.order.any_life)?;
        Ok(meta.size)
    }
}
