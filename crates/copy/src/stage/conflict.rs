//! Places at the destination that have something already, and files with several names on either side.
//!
//! It alone knows when an object may get a place in the directory over which the volume lies: see
//! docs/decisions/0111-a-name-of-several-in-a-backing-keeps-its-file.md.

use super::Stage;
use super::ledger::Ledger;
use super::prove::{identity, sums_of};
use super::state::Done;
use super::survey::at;
use crate::tree::{GoneName, Meta, Print, Replaces, Spot, in_the_way, several_names};
use aze_proto::attr::FileKind;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::{BTreeMap, BTreeSet};

impl Stage<'_> {
    /// Why an object must not get its place, which has another one: the volume has neither taken that one from there nor put it there; or
    /// has taken it, and it has several names there, which are several files in the volume. One that is equal may have been put there
    /// by an attempt that was killed before it noted that, and is replaced without a loss.
    pub(super) fn conflict(&self, path: &[u8], from: &Spot, to: &Spot) -> Option<Trouble> {
        let Replaces::Only(known) = self.proof.replaces(&to.path) else { return None };
        let there = match to.stat(false) {
            // A directory was found before.
            Ok(there) => there.filter(|there| there.kind != FileKind::Directory)?,
            Err(trouble) => return Some(trouble),
        };
        let print = there.print();
        if known.contains(&print) {
            return (self.is_taken(path, print) && there.links > 1).then(|| several_names(&to.shown(), there.links));
        }
        let is_own = self.has_lost_a_name(path, &there);
        if !is_own && (there.links > 1 || !self.is_equal(from, to, &there).unwrap_or(false)) {
            let text = format!(
                "{}: it has changed since the volume has taken it from there, and so has {}: stage it to another place, or \
                 remove one of them",
                to.shown(),
                from.shown()
            );
            let has_origin = self.survey.origins.contains_key(path);
            return Some(if has_origin { Trouble::new(Exit::Caller, text) } else { in_the_way(&to.shown()) });
        }
        if let Some(known) = &self.proof.known {
            known.lock().entry(path.to_vec()).or_default().push(print);
        }
        None
    }

    /// Whether the volume has put this file there under several names, and a stage has given some of these to another file since, which
    /// has moved the change time.
    pub(super) fn has_lost_a_name(&self, path: &[u8], there: &Meta) -> bool {
        let print = there.print();
        let is_it = |was: &GoneName| was.print()[..3] == print[..3];
        self.former.get(path).is_some_and(|all| all.iter().any(is_it))
            && self.put_names.get(&print[0]).is_some_and(|names| *names > there.links)
    }

    /// Whether the volume has taken an object from this path at the destination; objects that it has put there have other prints.
    fn is_taken(&self, path: &[u8], print: Print) -> bool {
        let origin = self.survey.origins.get(path).zip(self.survey.objects.get(path));
        let origin = origin.map(|(origin, meta)| origin.print(meta.kind));
        origin.into_iter().chain(self.gone.get(path).map(GoneName::print)).any(|taken| taken == print)
    }

    /// Whether two files have equal bytes, or two links equal targets.
    fn is_equal(&self, from: &Spot, to: &Spot, there: &Meta) -> Outcome<bool> {
        let meta = from.must_stat(false)?;
        match (meta.kind, there.kind) {
            (FileKind::Symlink, FileKind::Symlink) => {
                Ok(from.tree.read_link(&from.path)? == to.tree.read_link(&to.path)?)
            }
            (FileKind::File, FileKind::File) if meta.size == there.size => {
                self.watch.expect(meta.size.saturating_mul(2));
                let sums = |spot: &Spot, is_sparse| {
                    sums_of(spot.tree.open_fresh(&spot.path)?.as_ref(), meta.size, is_sparse, self.watch.as_ref())
                };
                Ok(sums(from, meta.is_sparse)?.hash(meta.size) == sums(to, there.is_sparse)?.hash(meta.size))
            }
            _ => Ok(false),
        }
    }

    /// Gives files their further names; then notes all names, since each new one moves the change time of the inode.
    pub(super) fn further_names(&self) {
        let further = self.survey.further_names();
        let first_of = |path: &Vec<u8>| self.proof.journal.lock().known().done.get(path).cloned();
        let mut named = BTreeMap::new();
        // Data that the volume could not take over are at those that are left alone; that was told.
        for (path, first) in further.iter().filter(|(path, _)| !self.left_alone.contains(*path)) {
            let Some(done) = first_of(first) else { continue };
            let (from, existing, to) = (at(&self.order.from, path), at(&self.to, first), at(&self.to, path));
            // It may have led elsewhere before the file was read, or since.
            let surveyed = self.survey.objects.get(path).map(|meta| meta.identity);
            let is_still = surveyed.is_some_and(|identity| {
                done.from.get(1) == Some(&identity.1)
                    && from.stat(false).is_ok_and(|meta| meta.is_some_and(|meta| meta.identity == identity))
            });
            if !is_still {
                let text = format!(
                    "{}: another file has the name of {} since they were looked at: stage again",
                    from.shown(),
                    at(&self.order.from, first).shown()
                );
                self.watch.failed(&Trouble::new(Exit::Again, text));
                continue;
            }
            if let Some(trouble) = self.conflict(path, &from, &to) {
                self.watch.failed(&trouble);
                continue;
            }
            match to.tree.add_name(&existing.path, &to.path, &self.proof.hidden(), &self.proof.replaces(&to.path)) {
                Ok(()) => {
                    named.insert(first.clone(), done.clone());
                    named.insert(path.clone(), done);
                }
                Err(trouble) => self.watch.failed(&trouble),
            }
        }
        for (path, first) in named {
            let to = at(&self.to, &path);
            match self.proof.name(&first, &to) {
                Ok(()) if further.contains_key(&path) => self.watch.file(&to, &to),
                Ok(()) => {}
                Err(trouble) => self.watch.failed(&trouble),
            }
        }
    }

    /// Files of the ledger that are about to be other ones under some of their names: it gets the change time that they have now under the rest,
    /// so that a later stage knows them.
    pub(super) fn follow_lost_names(&self, ledger: &mut Ledger, proven: &BTreeSet<Vec<u8>>) -> Outcome<()> {
        let inode = |done: &Done| done.to.get(1).copied();
        let lost: BTreeSet<u64> = ledger
            .entries
            .iter()
            .filter(|(path, _)| proven.contains(*path))
            .filter_map(|(_, done)| inode(done))
            .collect();
        for (path, done) in ledger.entries.iter_mut().filter(|(path, _)| !proven.contains(*path)) {
            if inode(done).is_none_or(|inode| !lost.contains(&inode)) {
                continue;
            }
            if let Some(there) = at(&self.order.to, path).stat(false)?
                && self.has_lost_a_name(path, &there)
            {
                done.to = identity(&there);
            }
        }
        Ok(())
    }
}
