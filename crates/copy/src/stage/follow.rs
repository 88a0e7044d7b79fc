//! What a stage out does about names that went, where the destination is the directory over which the volume lies.
//!
//! Before the place of such a name gets another object, or loses the one that it has, the volume takes over all data that it
//! has not read yet: an inode that was renamed, has another name, or is still open, reads them from there. Then, with
//! [`Order::delete`](super::Order::delete), objects are removed whose names the volume has removed, each after a look that
//! shows that it is still the one that the volume took over or put there; without it they are counted. A record of a name goes when
//! the directory has followed, and that is durable.
//!
//! What remains: another process that changes an object between that look and its removal, or its replacement.

use super::ledger::{self, Ledger};
use super::prove::{Known, OWN_NUMBERS, now, own_place};
use super::state::Done;
use super::survey::{Survey, at, stat_within};
use super::{Order, Side, Stage, parent_dir};
use crate::Watch;
use crate::tree::{GoneName, Meta, Origin, Print, PutBack, Spot, Tree, parent};
use aze_io::sync::Mutex;
use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_receipt::line::What;
use aze_receipt::{Removed, when};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Names that are named, of those that are left at the destination.
const LEFT_NAMED_MAX: usize = 10;

/// Names that went, by their paths below the destination.
pub type Gone = BTreeMap<Vec<u8>, GoneName>;

/// Inodes of the volume that were staged to a path below the destination, and may be read from there though they have lost the
/// name, by these paths.
pub type Former = BTreeMap<Vec<u8>, Vec<GoneName>>;

/// An object of the destination that the volume has under this name no more.
#[derive(Clone)]
pub(super) struct Doomed {
    kind: FileKind,
    /// Its print if the volume has put it there.
    put: Option<Print>,
    /// The name that went if the volume has taken it from there.
    gone: Option<GoneName>,
}

impl Order {
    /// The names that went, with places at the destination.
    pub(super) fn gone(&self, watch: &dyn Watch) -> Outcome<Gone> {
        if self.side == Side::Outside {
            return Ok(Gone::new());
        }
        let all = match self.from.tree.gone() {
            // Servers tell only the volume's owner. The stage of another user replaces no object that its ledger does not know.
            Err(trouble) if trouble.exit == Exit::Denied && !self.delete => {
                watch.lacks(&trouble.during("names that were removed are not looked at"));
                Vec::new()
            }
            all => all?,
        };
        let below = |gone: GoneName| Some((self.below(&gone.outside)?, gone));
        Ok(all.into_iter().filter_map(below).collect())
    }

    /// The path below the destination.
    fn below(&self, outside: &[u8]) -> Option<Vec<u8>> {
        let to = self.to.path.strip_suffix(b"/").unwrap_or(&self.to.path);
        match outside.strip_prefix(to)? {
            b"" => Some(Vec::new()),
            rest => Some(rest.strip_prefix(b"/")?.to_vec()),
        }
    }

    /// The files and links of the destination that objects may replace; `None` if they may replace any.
    pub(super) fn known(&self, survey: &Survey, state: &super::state::Known, gone: &Gone) -> Outcome<Option<Known>> {
        if self.side == Side::Outside {
            return Ok(None);
        }
        let mut known: BTreeMap<Vec<u8>, Vec<Print>> = BTreeMap::new();
        let mut add = |path: &[u8], print: Print| known.entry(path.to_vec()).or_default().push(print);
        for (path, origin) in &survey.origins {
            if let Some(meta) = survey.objects.get(path) {
                add(path, origin.print(meta.kind));
            }
        }
        gone.iter().for_each(|(path, gone)| add(path, gone.print()));
        state.done.iter().for_each(|(path, done)| add(path, print_of(&done.to)));
        for (path, named) in &state.named {
            // An attempt was broken off when it gave this file its name, which has moved its change time.
            let is_named = |there: &Meta| named.iter().any(|print| there.print()[..3] == print[..]);
            if let Some(there) = at(&self.to, path).stat(false)?.filter(is_named) {
                add(path, there.print());
            }
        }
        for (path, first) in &survey.further_names() {
            // It was broken off when it gave the file a further name.
            let is_named = |there: &Meta| {
                state.named.get(first).is_some_and(|named| named.iter().any(|print| there.print()[..3] == print[..]))
            };
            if let Some(there) = at(&self.to, path).stat(false)?.filter(is_named) {
                add(path, there.print());
            }
        }
        for other in self.ledgers()?.iter().filter(|ledger| ledger.route.is_out()) {
            for (path, done) in &other.entries {
                if let Some(path) = self.below(&at_outside(&other.route.outside, path)) {
                    add(&path, print_of(&done.to));
                }
            }
        }
        Ok(Some(Mutex::new(known)))
    }

    /// The files staged to each path before, as far as this attempt and the ledgers know.
    pub(super) fn former(&self, before: &BTreeMap<Vec<u8>, Done>) -> Outcome<Former> {
        let mut former = Former::new();
        if self.side == Side::Outside {
            return Ok(former);
        }
        let mut add = |path: Vec<u8>, done: &Done| {
            let (Some(&inode), [_, identity @ ..]) = (done.from.get(1), &done.to[..]) else { return };
            let (What::File { .. }, Ok(identity)) = (&done.object.what, identity.try_into()) else { return };
            let (inside, outside) = (at(&self.from, &path).path, at(&self.to, &path).path);
            let was = GoneName { inside, outside, kind: FileKind::File, identity, inode, record: None };
            let all = former.entry(path).or_default();
            if !all.contains(&was) {
                all.push(was);
            }
        };
        before.iter().for_each(|(path, done)| add(path.clone(), done));
        for other in self.ledgers()?.iter().filter(|ledger| ledger.route.is_out()) {
            for (path, done) in &other.entries {
                if let Some(path) = self.below(&at_outside(&other.route.outside, path)) {
                    add(path, done);
                }
            }
        }
        Ok(former)
    }

    /// All ledgers of the volume.
    pub(super) fn ledgers(&self) -> Outcome<Vec<Ledger>> {
        let Some((hold, _)) = &self.ledger else { return Ok(Vec::new()) };
        let (ledgers, troubles) = ledger::all_in(&parent_dir(hold.path()))?;
        troubles.into_iter().next().map_or(Ok(ledgers), Err)
    }
}

/// Of each inode at the destination: how many paths it was staged to.
pub(super) fn names_of_inodes(former: &Former) -> BTreeMap<u64, u64> {
    let mut names = BTreeMap::new();
    for all in former.values() {
        let inodes: BTreeSet<u64> = all.iter().map(|was| was.print()[0]).collect();
        inodes.into_iter().for_each(|inode| *names.entry(inode).or_default() += 1);
    }
    names
}

fn at_outside(outside: &[u8], path: &[u8]) -> Vec<u8> {
    if path.is_empty() { outside.to_vec() } else { crate::tree::join(outside, path) }
}

/// The print in an identity of a proven object, which begins with the device.
fn print_of(to: &[u64]) -> Print {
    to.get(1..5).and_then(|print| print.try_into().ok()).unwrap_or_default()
}

fn kind_of(done: &Done) -> FileKind {
    match done.object.what {
        What::Directory => FileKind::Directory,
        What::File { .. } => FileKind::File,
        What::Link { .. } => FileKind::Symlink,
    }
}

impl Stage<'_> {
    /// Before anything is written: the volume takes over what the places of objects still hold for other names, and what names hold
    /// that are to be removed. Such a place for which that fails is left alone. It counts as a change of these files, so it comes before
    /// they are read.
    pub(super) fn take_over_replaced(&mut self) -> Outcome<()> {
        let is_own = self.order.delete && self.order.side == Side::Own;
        let doomed = if is_own { self.doomed() } else { BTreeMap::new() };
        let gone = self.gone.iter().filter(|(path, _)| self.survey.objects.contains_key(*path));
        let gone = gone.chain(doomed.iter().filter_map(|(path, doomed)| Some((path, doomed.gone.as_ref()?))));
        let former = self.former.iter().flat_map(|(path, all)| all.iter().map(move |was| (path, was)));
        let is_needed = |path: &Vec<u8>, was: &GoneName| {
            let now = self.survey.objects.get(path);
            now.is_some_and(|meta| meta.identity.1 != was.inode) || doomed.contains_key(path)
        };
        let origins = self.survey.origins.iter();
        let clean: Vec<(&Vec<u8>, GoneName)> =
            origins.filter_map(|(path, origin)| self.clean_file(path, origin)).collect();
        let all = gone.chain(former.filter(|(path, was)| is_needed(path, was)));
        let all = all.chain(clean.iter().map(|(path, origin)| (*path, origin)));
        self.left_alone = self.take_over(all.collect(), |tree, gone| tree.take_over(gone))?;
        Ok(())
    }

    /// A file that has not changed since it came from its place, which it shall share with its further names: the volume
    /// comes to hold it for changed, since the place gets another object.
    fn clean_file<'a>(&self, path: &'a Vec<u8>, origin: &Origin) -> Option<(&'a Vec<u8>, GoneName)> {
        let meta = self.survey.objects.get(path).filter(|meta| meta.kind == FileKind::File && origin.is_clean)?;
        let (inside, outside) = (origin.inside.clone(), origin.outside.clone());
        let (kind, identity, inode) = (meta.kind, origin.identity, meta.identity.1);
        Some((path, GoneName { inside, outside, kind, identity, inode, record: None }))
    }

    /// Before files that came from their places get new objects there: the volume takes over their data, also those that it has
    /// read and might drop to read them again; and new files are claimed. A file for which that fails is not copied.
    pub(super) fn take_over_own(&self, todo: &mut Vec<(Spot, Spot)>) -> Outcome<()> {
        let own = |path: &Vec<u8>| {
            let meta = self.survey.objects.get(path).filter(|meta| meta.kind == FileKind::File)?;
            let (from, to) = (at(&self.order.from, path), at(&self.to, path));
            let name = own_place(&from, &to, meta);
            Some((from.path, name))
        };
        if self.order.side == Side::Outside {
            return Ok(());
        }
        let mut all: BTreeMap<Vec<u8>, GoneName> = self.survey.objects.keys().filter_map(own).collect();
        let to_copy: BTreeSet<&[u8]> = todo.iter().map(|(from, _)| from.path.as_slice()).collect();
        all.retain(|path, _| to_copy.contains(path.as_slice()));
        // They are held for changed already: so users other than the volume's owner may do this.
        let failed = self.take_over(all.iter().collect(), |tree, name| tree.keep_data(name))?;
        todo.retain(|(from, _)| !failed.contains(&from.path));
        Ok(())
    }

    /// Has the volume take over what inodes still need of the destination, several at a time, and make it durable. Gives the
    /// paths for which that failed.
    fn take_over(
        &self,
        names: Vec<(&Vec<u8>, &GoneName)>,
        each: impl Fn(&dyn Tree, &GoneName) -> Outcome<()> + Sync,
    ) -> Outcome<BTreeSet<Vec<u8>>> {
        let failed = Mutex::new(BTreeSet::new());
        self.several_at_once(&names, |(path, gone)| {
            if let Err(trouble) = each(&*self.order.from.tree, gone) {
                let to = String::from_utf8_lossy(&gone.outside).into_owned();
                self.watch.failed(&trouble.during(format_args!("{to} is left alone, since its data are needed")));
                failed.lock().insert((*path).clone());
            }
        });
        if !names.is_empty() {
            self.order.from.tree.sync_dir(&self.order.from.path)?;
        }
        self.check_end()?;
        Ok(failed.into_inner())
    }

    /// Does the same for all items, until the attempt is asked to end.
    fn several_at_once<T: Sync>(&self, items: &[T], each: impl Fn(&T) + Sync) {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !self.watch.is_over()) {
                each(item);
            }
        };
        aze_io::threads::together(self.order.jobs.min(items.len()), work);
    }

    /// Removes what the volume has removed, or counts it.
    pub(super) fn follow(&mut self, is_whole: bool) -> Outcome<()> {
        let mut all = self.doomed();
        self.removed.iter().for_each(|removed| drop(all.remove(&removed.path)));
        let mut all = Vec::from_iter(all);
        all.reverse();
        self.remove_all(all, self.order.delete && is_whole)
    }

    /// Removes these objects, each directory behind all that is in it, or counts them.
    pub(super) fn remove_all(&mut self, all: Vec<(Vec<u8>, Doomed)>, removes: bool) -> Outcome<()> {
        let (mut dirs, mut relinked) = (BTreeSet::new(), BTreeSet::new());
        for (path, doomed) in all {
            self.check_end()?;
            let spot = at(&self.to, &path);
            match stat_within(&self.to, &path) {
                Ok(None) => {
                    self.vanished.push(path);
                    self.followed.extend(doomed.gone);
                }
                Ok(Some(_)) if !removes => {
                    self.report.left += 1;
                    if self.report.left_named.len() < LEFT_NAMED_MAX {
                        self.report.left_named.push(spot.shown());
                    }
                }
                Ok(Some(_)) if self.left_alone.contains(&path) => self.report.left += 1,
                Ok(Some(there)) => match self.remove_doomed(&path, &doomed, &there, &relinked) {
                    Ok(()) => {
                        if there.kind == FileKind::File && there.links > 1 {
                            relinked.insert(there.identity.1);
                        }
                        self.removed.push(Removed { path, when: when(now()) });
                        dirs.insert(parent(&spot.path));
                        self.followed.extend(doomed.gone);
                    }
                    Err(trouble) => {
                        self.report.left += 1;
                        self.watch.failed(&trouble);
                    }
                },
                Err(trouble) => {
                    self.report.left += 1;
                    self.watch.failed(&trouble);
                }
            }
        }
        for dir in dirs {
            // It may have been removed itself.
            if self.to.tree.stat(&dir, false)?.is_some() {
                self.to.tree.sync_dir(&dir)?;
            }
        }
        Ok(())
    }

    /// Drops the records of names that went at the destination, too, or have objects of the volume there, when that is durable.
    pub(super) fn forget_followed(&mut self) -> Outcome<()> {
        let mut followed = std::mem::take(&mut self.followed);
        self.replaced_names(&mut followed);
        followed.retain(|gone| gone.record.is_some());
        let failed = Mutex::new(None);
        self.several_at_once(&followed, |gone| {
            if let Err(trouble) = self.order.from.tree.forget_gone(gone) {
                failed.lock().get_or_insert(trouble);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// The volume reads files from now on where they were put, and need not hold their bytes any more; but for those with several
    /// names, which are several files if they are read from there. To be called when all of it is durable.
    pub(super) fn let_go(&mut self, proven: &BTreeSet<Vec<u8>>) {
        if self.order.side != Side::Own {
            return;
        }
        let put = |path: &Vec<u8>| {
            let done = self.proof.journal.lock().known().done.get(path).cloned()?;
            let links = self.survey.objects.get(path)?.links;
            let (What::File { same_as: None, .. }, 1) = (&done.object.what, links) else { return None };
            let [_, identity @ ..] = &done.to[..] else { return None };
            Some(PutBack {
                inside: at(&self.order.from, path).path,
                outside: at(&self.order.to, path).path,
                inode: *done.from.get(1)?,
                size: *done.from.get(2)?,
                ctime: Time(*done.from.get(4)?),
                mark: done.from.get(OWN_NUMBERS..)?.to_vec(),
                identity: identity.try_into().ok()?,
            })
        };
        let all: Vec<PutBack> = proven.iter().filter_map(put).collect();
        let (drained, denied) = (AtomicU64::new(0), AtomicBool::new(false));
        self.several_at_once(&all, |put| {
            if denied.load(Ordering::Relaxed) {
                return;
            }
            match self.order.from.tree.adopt(put) {
                Ok(is_clean) => drop(drained.fetch_add(is_clean.into(), Ordering::Relaxed)),
                Err(trouble) if trouble.exit == Exit::Denied => {
                    if !denied.swap(true, Ordering::Relaxed) {
                        self.watch.lacks(&trouble.during("what was staged stays in the volume"));
                    }
                }
                // It is proven all the same, and the next stage tries again.
                Err(trouble) => self.watch.lacks(&trouble.during("it stays in the volume, too")),
            }
        });
        self.report.drained = drained.into_inner();
    }

    /// Objects of the destination that the volume has removed under their names, by path.
    pub(super) fn doomed(&self) -> BTreeMap<Vec<u8>, Doomed> {
        let mut all: BTreeMap<Vec<u8>, Doomed> = BTreeMap::new();
        if self.order.filter.is_partial() {
            return all;
        }
        let is_kept = |path: &Vec<u8>| path.is_empty() || self.survey.names.contains(path) || self.kept.contains(path);
        for (path, gone) in self.gone.iter().filter(|(path, _)| !is_kept(path)) {
            all.insert(path.clone(), Doomed { kind: gone.kind, put: None, gone: Some(gone.clone()) });
        }
        if !self.is_surveyed {
            // What could not be looked at is not held for removed.
            return all;
        }
        let journal = self.proof.journal.lock();
        for (path, done) in journal.known().done.iter().filter(|(path, _)| !is_kept(path)) {
            let kind = kind_of(done);
            let doomed = all.entry(path.clone()).or_insert(Doomed { kind, put: None, gone: None });
            (doomed.kind, doomed.put) = (kind, Some(print_of(&done.to)));
        }
        all
    }

    /// What the volume has removed under a name that it has given to an object of another kind.
    pub(super) fn doomed_at(&self, path: &[u8], kind: FileKind) -> Option<Doomed> {
        let gone = self.gone.get(path).filter(|gone| gone.kind == kind).cloned();
        let journal = self.proof.journal.lock();
        let put = journal.known().done.get(path).filter(|done| kind_of(done) == kind).map(|done| print_of(&done.to));
        (gone.is_some() || put.is_some()).then_some(Doomed { kind, put, gone })
    }

    /// Why an object must not be removed: it may not be the one that the volume has removed, or another name needs it.
    pub(super) fn check_doomed(
        &self,
        path: &[u8],
        doomed: &Doomed,
        there: &Meta,
        relinked: &BTreeSet<u64>,
    ) -> Outcome<()> {
        let spot = at(&self.to, path);
        let refuse = |why: &str| {
            let text = format!("remove {}: {why}: it stays: remove it there if it is to go", spot.shown());
            Err(Trouble::new(Exit::Caller, text))
        };
        if there.kind != doomed.kind {
            return refuse("it is another object than the volume has taken from there");
        }
        let (print, taken) = (there.print(), doomed.gone.as_ref().map(GoneName::print));
        let is_same = |known: Option<Print>| match there.kind {
            // Its entries move its times.
            FileKind::Directory => known.is_some_and(|known| known[0] == print[0]),
            // Another name of it was removed just now.
            _ if relinked.contains(&print[0]) => known.is_some_and(|known| known[..3] == print[..3]),
            _ => known == Some(print),
        };
        if !is_same(doomed.put) {
            if !is_same(taken) {
                return refuse("it has changed since the volume has taken it from there");
            }
            if there.kind != FileKind::Directory && there.links > 1 {
                return refuse(
                    "it has several names there, and what the volume has not read of the others would be lost",
                );
            }
        }
        Ok(())
    }

    fn remove_doomed(&self, path: &[u8], doomed: &Doomed, there: &Meta, relinked: &BTreeSet<u64>) -> Outcome<()> {
        self.check_doomed(path, doomed, there, relinked)?;
        let spot = at(&self.to, path);
        spot.tree.remove(&spot.path, doomed.kind).map_err(|trouble| match there.kind {
            FileKind::Directory => {
                trouble.during("what is in it the volume has not taken from there, or it stays, too")
            }
            _ => trouble,
        })
    }

    /// Adds the names that have another object at their place now, which the volume has put there. Names in a directory that was
    /// renamed have no record of their own: that of the directory stays as long as one of them is left.
    fn replaced_names(&self, followed: &mut Vec<GoneName>) {
        let journal = self.proof.journal.lock();
        let mut gone_below: BTreeSet<Vec<u8>> = followed.iter().map(|gone| gone.outside.clone()).collect();
        let has_left = |path: &[u8], gone_below: &BTreeSet<Vec<u8>>| {
            let start = [path, b"/"].concat();
            let below = self.gone.range(start.clone()..).take_while(|(path, _)| path.starts_with(&start));
            below.into_iter().any(|(_, gone)| gone.record.is_none() && !gone_below.contains(&gone.outside))
        };
        for (path, gone) in self.gone.iter().rev() {
            let is_put = match self.survey.objects.get(path).map(|meta| meta.kind) {
                Some(FileKind::Directory) => true,
                Some(_) => journal.known().done.contains_key(path),
                None => false,
            };
            if is_put && !self.left_alone.contains(path) && !has_left(path, &gone_below) {
                gone_below.insert(gone.outside.clone());
                followed.push(gone.clone());
            }
        }
    }
}
