//! Places at the destination that have an object of another kind: a directory where a file or link is to be staged, or the
//! other way round.
//!
//! In the directory over which the volume lies, and with [`Order::delete`](super::Order::delete), such an object is removed if the
//! volume has removed it under this name, and it is still the one that the volume took over or put there; a directory, if that
//! is true of all that is in it. The stage does so when it has copied all other objects, and then copies these. It leaves every
//! other object where it is, says why, and copies the rest.

use super::follow::Doomed;
use super::survey::{above, at};
use super::{Side, Stage};
use crate::tree::{Meta, join};
use aze_proto::attr::FileKind;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::{BTreeMap, BTreeSet};

impl Stage<'_> {
    /// How many names of the destination are there already. Notes the objects of another kind that are to go, and leaves those
    /// out in whose place one stays.
    pub(super) fn replaced_files(&mut self, obstacles: &mut Vec<Trouble>) -> Outcome<u64> {
        let (mut replaced, mut others) = (0, BTreeMap::new());
        if self.to.stat(false)?.is_none() {
            return Ok(0);
        }
        for (path, meta) in &self.survey.objects {
            if above(path).any(|dir| others.contains_key(dir)) {
                continue;
            }
            // What cannot be looked at tells so when it is copied.
            let Ok(Some(there)) = at(&self.to, path).stat(path.is_empty()) else { continue };
            replaced += 1;
            if (meta.kind == FileKind::Directory) != (there.kind == FileKind::Directory) {
                others.insert(path.clone(), there);
            }
        }
        if others.is_empty() {
            return Ok(replaced);
        }
        let doomed = self.doomed();
        let mut stay = BTreeSet::new();
        for (path, there) in others {
            match self.may_go(&path, &there, &doomed) {
                Ok(()) => drop(self.turned.insert(path)),
                Err(trouble) if self.order.side == Side::Own && !path.is_empty() => {
                    self.watch.failed(&trouble);
                    stay.insert(path);
                }
                Err(trouble) => obstacles.push(trouble),
            }
        }
        self.leave_out(&stay);
        Ok(replaced)
    }

    /// Whether an object may go from the place of one of another kind; else why not.
    fn may_go(&self, path: &[u8], there: &Meta, doomed: &BTreeMap<Vec<u8>, Doomed>) -> Outcome<()> {
        let refuse = |why: &str| {
            let is_dir = there.kind == FileKind::Directory;
            let (what, instead) = if is_dir { ("a directory", "none") } else { ("no directory", "one") };
            let shown = at(&self.to, path).shown();
            Err(Trouble::new(Exit::Caller, format!("{shown}: {what} is there, and {instead} is to be staged: {why}")))
        };
        let own = self.doomed_at(path, there.kind).filter(|_| self.order.side == Side::Own && !path.is_empty());
        let Some(own) = own else { return refuse("move it away") };
        if self.kept.contains(path) {
            return refuse("the volume has released files there, which are nowhere else: move it away");
        }
        if !self.order.delete || self.order.filter.is_partial() {
            return refuse("the volume has removed it: stage all with --delete, or move it away");
        }
        self.check_doomed(path, &own, there, &BTreeSet::new())?;
        let mut waiting = Vec::from_iter((there.kind == FileKind::Directory).then(|| path.to_vec()));
        while let Some(dir) = waiting.pop() {
            let place = at(&self.to, &dir);
            for entry in place.tree.list(&place.path)?.all()? {
                let below = join(&dir, &entry.name);
                let spot = at(&self.to, &below);
                let Some(there) = spot.stat(false)? else { continue };
                let Some(doomed) = doomed.get(&below) else {
                    return refuse(&format!("{} is none that the volume has removed: move it away", spot.shown()));
                };
                self.check_doomed(&below, doomed, &there, &BTreeSet::new())?;
                if there.kind == FileKind::Directory {
                    waiting.push(below);
                }
            }
        }
        Ok(())
    }

    /// Whether an object has its place only when one of another kind has gone from there.
    pub(super) fn is_late(&self, path: &[u8]) -> bool {
        self.turned.contains(path) || above(path).any(|dir| self.turned.contains(dir))
    }

    /// When all other objects are copied: removes what is in the places of the late ones, and copies these.
    pub(super) fn copy_late(&mut self) -> Outcome<()> {
        if self.turned.is_empty() {
            return Ok(());
        }
        let is_whole = self.report.missing == 0 && self.missing().iter().all(|path| self.is_late(path));
        let doomed = self.doomed();
        let mut stay = BTreeSet::new();
        for path in self.turned.clone() {
            let cleared = match is_whole {
                true => self.clear(&path, &doomed),
                false => {
                    let text = "it stays, with what is in it, since not all else could be staged";
                    Err(Trouble::new(Exit::Some, format!("{}: {text}", at(&self.to, &path).shown())))
                }
            };
            if let Err(trouble) = cleared {
                self.watch.failed(&trouble);
                stay.insert(path);
            }
        }
        self.leave_out(&stay);
        self.check_end()?;
        self.make_dirs(true)?;
        self.copy_all(true)
    }

    /// Removes what is in the place of an object of another kind.
    fn clear(&mut self, path: &[u8], doomed: &BTreeMap<Vec<u8>, Doomed>) -> Outcome<()> {
        let spot = at(&self.to, path);
        let Some(there) = spot.stat(false)? else { return Ok(()) };
        let below = doomed.iter().filter(|(other, _)| above(other).any(|dir| dir == path));
        let mut all: Vec<(Vec<u8>, Doomed)> = below.map(|(path, doomed)| (path.clone(), doomed.clone())).collect();
        all.extend(self.doomed_at(path, there.kind).map(|doomed| (path.to_vec(), doomed)));
        all.sort_by(|one, other| other.0.cmp(&one.0));
        self.remove_all(all, true)?;
        // Its name gets a line as an object.
        self.removed.retain(|removed| removed.path != path);
        match spot.stat(false)? {
            None => Ok(()),
            Some(_) => Err(Trouble::new(Exit::Some, format!("{}: it stays, as said above", spot.shown()))),
        }
    }

    /// Goes on without the objects at these paths, and below.
    fn leave_out(&mut self, paths: &BTreeSet<Vec<u8>>) {
        if paths.is_empty() {
            return;
        }
        let is_out = |path: &Vec<u8>| paths.contains(path) || above(path).any(|dir| paths.contains(dir));
        let before = self.survey.objects.len();
        self.survey.objects.retain(|path, _| !is_out(path));
        self.survey.clean_dirs.retain(|path| !is_out(path));
        self.report.missing += (before - self.survey.objects.len()) as u64;
    }
}
