//! The promises: lines of receipts were true, objects that are not dirty are at the destination, synced objects stay.

use super::programs::{INSIDE, Known, NEVER};
use super::{BELOW, COLD, COLD_DIRS, Run, shown};
use aze_copy::stage::ledger;
use aze_copy::stage::standing::Standing;
use aze_copy::stage::state::Done;
use aze_copy::warm::Warmed;
use aze_receipt::line::What;
use aze_receipt::{Head, Line, Object, Removed, Signed, when};
use std::collections::BTreeSet;
use std::path::Path;

/// A line of a receipt whose object must be at the destination until others change it there.
pub(super) struct Kept {
    path: Vec<u8>,
    inode: u64,
}

/// Whether a file may have had such a content at some time between two moments.
fn had(known: &Known, hash: aze_receipt::Hash, from: &str, to: &str) -> bool {
    let is_within =
        |began: u64, ended: u64| when(began).as_str() <= to && (ended == NEVER || when(ended).as_str() >= from);
    known.contents.iter().any(|content| content.hash == hash && is_within(content.from, content.to))
}

/// Whether a path may have led to a file at some time between two moments.
fn led(known: &Known, path: &[u8], from: &str, to: &str) -> bool {
    let is_within =
        |began: u64, ended: u64| when(began).as_str() <= to && (ended == NEVER || when(ended).as_str() >= from);
    known.names.iter().any(|name| name.path == path && is_within(name.from, name.to))
}

impl Run {
    fn at_outside(&self, path: &[u8]) -> Vec<u8> {
        let outside = self.outside().into_bytes();
        if path.is_empty() { outside } else { aze_copy::tree::join(&outside, path) }
    }

    pub(super) fn at_inside(path: &[u8]) -> Vec<u8> {
        if path.is_empty() { INSIDE.into() } else { aze_copy::tree::join(INSIDE.as_bytes(), path) }
    }

    /// Compares receipts that have come since the last look; tells whether there are any.
    pub(super) async fn check_receipts(&self) -> bool {
        let known = self.checked.lock().clone();
        let new: Vec<_> = self.files.receipts().into_iter().filter(|path| !known.contains(path)).collect();
        for path in &new {
            self.counts.lock().receipts += 1;
            if let Err(trouble) = self.check_receipt(path).await {
                self.wrong(format!("{}: {trouble}", path.display()));
            }
            self.checked.lock().insert(path.clone());
        }
        !new.is_empty()
    }

    async fn check_receipt(&self, path: &Path) -> aze_words::exit::Outcome<()> {
        let signed = Signed::open(path, Some(&self.files.key().public()))?;
        let (mut head, finished) = (signed.head.clone(), signed.end.finished.clone());
        // Names are looked at before the head is written.
        head.started = self.start_before(&head.started);
        let mut paths = BTreeSet::new();
        let looker = if self.plan.is_inward { Some(self.looker().await) } else { None };
        for line in signed.lines()? {
            match line? {
                Line::Object(object) => {
                    self.counts.lock().lines += 1;
                    paths.insert(object.path.clone());
                    self.lines.lock().insert((object.path.clone(), object.checked.clone()));
                    match &looker {
                        Some(client) => self.check_copy(client, &head, &finished, &object).await,
                        None => self.check_object(&head, &finished, &object),
                    }
                }
                Line::Removed(removed) if self.plan.is_inward => self.check_removed_in(&head, &removed),
                Line::Removed(removed) => self.check_removed(&head, &removed),
                Line::Head(_) | Line::End(_) => {}
            }
        }
        if signed.end.missing == 0 && self.plan.is_inward {
            self.check_complete_in(&head, &finished, &paths);
        } else if signed.end.missing == 0 && !self.plan.is_over_directory {
            self.check_complete(&head, &finished, &paths);
        }
        Ok(())
    }

    /// Names that were taken over are those of the place, and the volume asks for none of them once more. A server that has been killed meanwhile, or a
    /// place that fails, may have the volume ask again.
    pub(super) fn check_warmed(&self, warmed: &Warmed, names: &BTreeSet<Vec<u8>>, listed: usize, failures: &[String]) {
        let below = format!("{BELOW}{COLD}");
        let there = self.place.all_below(below.as_bytes());
        let there: BTreeSet<Vec<u8>> = there.into_iter().map(|(path, _)| path[BELOW.len()..].to_vec()).collect();
        if !failures.is_empty() {
            return;
        }
        self.counts.lock().warmed += names.len() as u64;
        if *names != there || warmed.directories != COLD_DIRS.len() as u64 {
            self.wrong(format!("{warmed:?}: {} names were taken over of {}", names.len(), there.len()));
        }
        if listed > 0 && (self.model.lock().is_over || self.plan.durability.is_none()) {
            self.wrong(format!("{listed} directories are listed anew, whose names were taken over"));
        }
    }

    /// Each entry of a ledger has a line in a receipt.
    pub(super) fn check_ledgers(&self) {
        let (ledgers, troubles) = ledger::all_in(&self.files.ledgers()).unwrap_or_default();
        troubles.iter().for_each(|trouble| self.wrong(format!("{trouble}")));
        let all = ledgers.iter().flat_map(|ledger| &ledger.entries);
        let is_unknown = |done: &Done| {
            let line = (done.object.path.clone(), done.object.checked.clone());
            done.object.what != What::Directory && !self.lines.lock().contains(&line)
        };
        if let Some((path, _)) = all.into_iter().find(|(_, done)| is_unknown(done)) {
            self.wrong(format!("{}: a ledger has it, and no receipt", shown(path)));
        }
    }

    /// When the job began that was at work at a moment.
    pub(super) fn start_before(&self, moment: &str) -> String {
        let starts: Vec<String> = self.starts.lock().iter().map(|start| when(start.at)).collect();
        starts.into_iter().rfind(|start| start.as_str() <= moment).unwrap_or_default()
    }

    /// A line of an object: at its moment the destination had these bytes, and then the name; and so had the volume, at one
    /// moment.
    fn check_object(&self, head: &Head, finished: &str, object: &Object) {
        let path = self.at_outside(&object.path);
        let wrong = |why: &str| self.wrong(format!("line {} checked {}: {why}", shown(&path), object.checked));
        let states = self.place.states_at(object.inode, |at| when(at).as_str().cmp(object.checked.as_str()));
        let is_state = |state: &super::place::Version| {
            let is_bytes = match &object.what {
                What::File { size, hash, .. } => {
                    state.bytes.len() as u64 == *size && super::hash_of(&state.bytes) == *hash
                }
                What::Link { target } => *state.bytes == *target,
                What::Directory => true,
            };
            let is_time = object.what == What::Directory || when(state.mtime.0) == object.mtime;
            is_bytes && is_time && state.mode == object.mode
        };
        if !states.iter().any(is_state) {
            wrong("the destination did not have that then");
        }
        let (is_early, is_late) =
            (|at: u64| when(at).as_str() < object.checked.as_str(), |at: u64| when(at).as_str() > finished);
        let is_published = self.plan.atomic || self.place.led_to(&path, object.inode, is_early, is_late);
        if !is_published {
            wrong("the name did not lead there between that moment and the end");
        }
        if let What::File { read_back, .. } = &object.what
            && read_back == "other_node"
        {
            self.counts.lock().by_others += 1;
            if !self.place.was_reread_by_another(object.inode) {
                wrong("no other node has read it back");
            }
        }
        let (hash, same_as) = match &object.what {
            What::File { hash, same_as, .. } => (*hash, same_as.as_ref()),
            What::Link { target } => (super::hash_of(target), None),
            What::Directory => return,
        };
        let first = same_as.unwrap_or(&object.path);
        let inside = Run::at_inside(first);
        let model = self.model.lock();
        // An attempt may have been broken off after it, and a later one has gone on.
        let attempt = self.start_before(&object.checked);
        let further = Run::at_inside(&object.path);
        let was = |from: &str, to: &str| {
            let leads = |known: &Known| led(known, &inside, from, to) && led(known, &further, from, to);
            model.files.iter().any(|known| leads(known) && had(known, hash, from, to))
        };
        let (is_read, is_still) = (was(&attempt, &object.checked), was(&head.started, finished));
        drop(model);
        if !is_read {
            wrong("the volume did not have these bytes between the attempt's start and that moment");
        }
        // A further name of an unchanged file is looked at anew.
        if same_as.is_none() {
            self.check_closed(object, &inside);
        }
        if !is_still {
            wrong("the volume did not have these bytes in the attempt that has signed it");
        }
        let stored = self.place.is_stored(&path, object.inode, |at| when(at).as_str() >= object.checked.as_str());
        if stored == Some(false) {
            wrong("it is not on the device");
        }
        if stored.is_some() {
            self.place.forget_tampering(&path);
        }
    }

    /// A round that leaves open files out has no new line of a file that was open all the time from its beginning.
    fn check_closed(&self, object: &Object, inside: &[u8]) {
        let starts = self.starts.lock();
        let start = starts.iter().rfind(|start| when(start.at).as_str() <= object.checked.as_str()).copied();
        drop(starts);
        let Some(start) = start.filter(|start| start.is_closed_only) else { return };
        let is_throughout = |from: u64, to: u64| from <= start.at && when(to).as_str() >= object.checked.as_str();
        let is_held = self.model.lock().files.iter().any(|known| {
            let mut names = known.names.iter().filter(|name| name.path == inside);
            names.any(|name| is_throughout(name.sure_from, name.sure_to))
                && known.holds.iter().any(|hold| is_throughout(hold.from, hold.to))
        });
        if is_held {
            self.wrong(format!(
                "line {} checked {}: a program had it open for writing all the time",
                shown(inside),
                object.checked
            ));
        }
    }

    /// The removed object was not in the volume all the time.
    fn check_removed(&self, head: &Head, removed: &Removed) {
        self.counts.lock().removals += 1;
        let inside = Run::at_inside(&removed.path);
        let model = self.model.lock();
        let names = model.files.iter().flat_map(|known| &known.names).filter(|name| name.path == inside);
        let is_there = names.into_iter().any(|name| {
            when(name.sure_from).as_str() <= head.started.as_str()
                && (name.sure_to == NEVER || when(name.sure_to).as_str() >= removed.when.as_str())
        });
        drop(model);
        if is_there {
            self.wrong(format!("{} was removed, and the volume had it all the time", shown(&inside)));
        }
    }

    /// A receipt in which nothing is missing has each name that was there all the time.
    fn check_complete(&self, head: &Head, finished: &str, paths: &BTreeSet<Vec<u8>>) {
        let model = self.model.lock();
        let names = model.files.iter().flat_map(|known| &known.names);
        let is_throughout = |name: &&super::programs::Named| {
            name.sure_from != NEVER
                && when(name.sure_from).as_str() < head.started.as_str()
                && (name.sure_to == NEVER || when(name.sure_to).as_str() > finished)
        };
        // Its program may not know yet that it was released.
        let released = self.files.released();
        let is_missing = |name: &&super::programs::Named| {
            let path = &name.path[INSIDE.len() + 1..];
            !paths.contains(path) && !released.contains(&self.at_outside(path))
        };
        let missing = names.filter(is_throughout).find(is_missing);
        let missing = missing.map(|name| name.path.clone());
        drop(model);
        if let Some(path) = missing {
            self.wrong(format!("{}: no line, though nothing is missing", shown(&path)));
        }
    }

    /// Files that the volume has given up are at the destination, as long as no other one had their names.
    pub(super) fn check_released(&self) {
        let files: Vec<Known> = self.model.lock().files.clone();
        for (index, known) in files.iter().enumerate().filter(|(_, known)| known.gone == Some(super::Gone::Released)) {
            let Some(name) = known.names.iter().max_by_key(|name| name.to) else { continue };
            let others = files.iter().enumerate().filter(|(other, _)| *other != index);
            let mut names = others.flat_map(|(_, other)| &other.names);
            if names.any(|later| later.path == name.path && later.to > name.from) {
                continue;
            }
            let outside = self.at_outside(&name.path[INSIDE.len() + 1..]);
            if !self.place.bytes_at(&outside).is_some_and(|bytes| known.has(super::hash_of(&bytes))) {
                self.wrong(format!("{}: it was released, and its copy is gone", shown(&outside)));
            }
        }
    }

    /// Files that the ledger calls staged: the destination has the volume's bytes.
    pub(super) fn check_standing(&self, standing: &Standing) {
        for trouble in &standing.lost {
            self.wrong(format!("lost: {trouble}"));
        }
        let files: Vec<Known> = self.model.lock().files.clone();
        for known in &files {
            for path in known.paths().filter(|path| !standing.named.contains_key(*path)) {
                let outside = self.at_outside(&path[INSIDE.len() + 1..]);
                if self.place.is_tampered(&outside) {
                    continue;
                }
                match self.place.bytes_at(&outside) {
                    Some(bytes) if known.has(super::hash_of(&bytes)) => self.counts.lock().staged += 1,
                    // It was released, and its program does not know that yet.
                    there => self.wrong(format!(
                        "{}: it is not dirty, and {} has {}",
                        shown(path),
                        shown(&outside),
                        if there.is_some() { "other bytes" } else { "nothing" }
                    )),
                }
            }
        }
    }

    /// Files of the last receipt that are unchanged since.
    pub(super) fn what_must_stay(&self) -> Vec<Kept> {
        let Some(last) = self.checked.lock().iter().next_back().cloned() else { return Vec::new() };
        let Ok(signed) = Signed::open(&last, None) else { return Vec::new() };
        let Ok(lines) = signed.lines() else { return Vec::new() };
        let mut kept = Vec::new();
        for line in lines.flatten() {
            let Line::Object(object) = line else { continue };
            let path = self.at_outside(&object.path);
            let is_later = |at: u64| when(at).as_str() >= object.checked.as_str();
            if let (What::File { .. }, Some(_)) = (&object.what, self.place.is_stored(&path, object.inode, is_later)) {
                kept.push(Kept { path, inode: object.inode });
            }
        }
        kept
    }

    /// After a loss of power they are still there.
    pub(super) fn check_kept(&self, kept: &[Kept]) {
        let now = self.place.now_ns();
        for Kept { path, inode } in kept {
            if self.place.is_stored(path, *inode, |at| at >= now) != Some(true) {
                self.wrong(format!("{}: a receipt has it, and a loss of power has taken it", shown(path)));
            }
        }
    }
}
