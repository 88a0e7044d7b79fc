//! The sequential model of a small directory tree: names, what they lead to, and nothing else.
//!
//! An operation applied to a state gives the states that its answer allows: none if the answer is
//! wrong there, several where the answer does not tell.

use aze_proto::{Code, FileKind};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What an entry leads to: an inode number, or [`UNSEEN`] plus the number of the operation that
/// made it, and no client has been told its inode number yet.
pub type Id = u64;

/// From here on ids stand for inodes whose numbers no client has seen. Real numbers of a small
/// volume are far below: their home shard is in the top 16 bits.
pub const UNSEEN: Id = 0xffff << 48;

/// A name, as its place in the list of names that a workload uses.
pub type NameIndex = u8;

/// A tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    /// Where paths begin.
    pub base: Id,
    /// (directory, name) → inode and its kind.
    pub entries: BTreeMap<(Id, NameIndex), (Id, FileKind)>,
    /// Directories that are alive, each with its parent.
    pub dirs: BTreeMap<Id, Id>,
    /// Renames that were never confirmed, as far as they may yet be undone.
    pub unconfirmed: Vec<Unconfirmed>,
}

/// A rename whose new name may go with its server before that has confirmed it: the old one is back then.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unconfirmed {
    from: (Id, NameIndex),
    to: (Id, NameIndex),
    moved: Id,
    /// What an exchange had for it.
    back: Option<Id>,
}

/// An operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the request or answer")]
pub enum Op {
    /// One name in one directory.
    Lookup { dir: Id, name: NameIndex },
    /// A path from the base, by one call.
    Resolve { path: Vec<NameIndex> },
    /// A new file, directory or symlink.
    Create { dir: Id, name: NameIndex, kind: FileKind, exclusive: bool },
    /// Remove a name of a non-directory.
    Unlink { dir: Id, name: NameIndex },
    /// Remove an empty directory.
    Rmdir { dir: Id, name: NameIndex },
    /// One more name.
    Link { ino: Id, dir: Id, name: NameIndex },
    /// rename(2).
    Rename { dir: Id, name: NameIndex, to_dir: Id, to_name: NameIndex, no_replace: bool },
    /// renameat2(2) with RENAME_EXCHANGE.
    Exchange { dir: Id, name: NameIndex, to_dir: Id, to_name: NameIndex },
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the request or answer")]
pub enum Ret {
    /// It is done.
    Done,
    /// What the name leads to, and whether it was made.
    Entry { id: Id, kind: FileKind, created: bool },
    /// It cannot be done, and was not.
    Failed(Code),
    /// Unknown.
    Unknown,
}

impl Tree {
    /// An empty tree.
    pub fn new(base: Id) -> Tree {
        Tree { base, entries: BTreeMap::new(), dirs: BTreeMap::from([(base, base)]), unconfirmed: Vec::new() }
    }

    /// One step along a path.
    pub fn step(&self, dir: Id, name: NameIndex) -> Result<(Id, FileKind), Code> {
        if !self.dirs.contains_key(&dir) {
            return Err(Code::NotFound);
        }
        self.entries.get(&(dir, name)).copied().ok_or(Code::NotFound)
    }

    fn is_empty(&self, dir: Id) -> bool {
        self.entries.range((dir, 0)..=(dir, NameIndex::MAX)).next().is_none()
    }

    /// Whether `dir` is `top` or below it.
    fn is_below(&self, mut dir: Id, top: Id) -> bool {
        for _ in 0..=self.dirs.len() {
            if dir == top {
                return true;
            }
            match self.dirs.get(&dir) {
                Some(parent) if *parent != dir => dir = *parent,
                _ => return false,
            }
        }
        false
    }

    /// Gives an inode that had no number yet its number.
    pub fn learn(&mut self, unseen: Id, id: Id) {
        let rename = |old: Id| if old == unseen { id } else { old };
        let entries = std::mem::take(&mut self.entries);
        self.entries =
            entries.into_iter().map(|((dir, name), (to, kind))| ((rename(dir), name), (rename(to), kind))).collect();
        let dirs = std::mem::take(&mut self.dirs);
        self.dirs = dirs.into_iter().map(|(dir, parent)| (rename(dir), rename(parent))).collect();
        for Unconfirmed { from, to, moved, back } in &mut self.unconfirmed {
            (from.0, to.0, *moved) = (rename(from.0), rename(to.0), rename(*moved));
            *back = back.map(rename);
        }
    }

    /// Directories whose number no client has seen.
    pub fn unseen_dirs(&self) -> Vec<Id> {
        self.dirs.keys().copied().filter(|dir| *dir >= UNSEEN).collect()
    }

    fn dir_errors(&self, dir: Id) -> Vec<Code> {
        if self.dirs.contains_key(&dir) { Vec::new() } else { vec![Code::NotFound, Code::Stale] }
    }

    /// Every error that is true of the operation in this state; with none it must succeed.
    pub fn errors(&self, op: &Op) -> Vec<Code> {
        match op {
            Op::Lookup { dir, name } => match self.step(*dir, *name) {
                Ok(_) => Vec::new(),
                Err(_) => vec![Code::NotFound, Code::Stale],
            },
            Op::Resolve { .. } => Vec::new(),
            Op::Create { dir, name, kind, exclusive } => self.create_errors(*dir, *name, *kind, *exclusive),
            Op::Unlink { dir, name } => match self.step(*dir, *name) {
                Err(_) => vec![Code::NotFound, Code::Stale],
                Ok((_, FileKind::Directory)) => vec![Code::IsDirectory],
                Ok(_) => Vec::new(),
            },
            Op::Rmdir { dir, name } => match self.step(*dir, *name) {
                Err(_) => vec![Code::NotFound, Code::Stale],
                Ok((id, FileKind::Directory)) if self.is_empty(id) => Vec::new(),
                Ok((_, FileKind::Directory)) => vec![Code::NotEmpty],
                Ok(_) => vec![Code::NotDirectory],
            },
            Op::Link { ino, dir, name } => self.link_errors(*ino, *dir, *name),
            Op::Rename { dir, name, to_dir, to_name, no_replace } => {
                self.rename_errors((*dir, *name), (*to_dir, *to_name), *no_replace)
            }
            Op::Exchange { dir, name, to_dir, to_name } => self.exchange_errors((*dir, *name), (*to_dir, *to_name)),
        }
    }

    fn create_errors(&self, dir: Id, name: NameIndex, kind: FileKind, exclusive: bool) -> Vec<Code> {
        let mut errors = self.dir_errors(dir);
        match self.entries.get(&(dir, name)) {
            Some(_) if exclusive || kind != FileKind::File => errors.push(Code::Exists),
            Some((_, FileKind::Directory)) => errors.push(Code::IsDirectory),
            _ => {}
        }
        errors
    }

    fn link_errors(&self, ino: Id, dir: Id, name: NameIndex) -> Vec<Code> {
        let mut errors = self.dir_errors(dir);
        if self.entries.contains_key(&(dir, name)) {
            errors.push(Code::Exists);
        }
        errors.extend(if self.dirs.contains_key(&ino) { vec![Code::NotPermitted] } else { Vec::new() });
        errors
    }

    /// A file without a name may or may not be there still: an unlink takes its name first and
    /// lowers its count after, so a link may find it or not.
    fn may_be_gone(&self, ino: Id) -> bool {
        !self.entries.values().any(|(id, _)| *id == ino)
    }

    fn rename_errors(&self, from: (Id, NameIndex), to: (Id, NameIndex), no_replace: bool) -> Vec<Code> {
        let mut errors = self.dir_errors(from.0);
        errors.extend(self.dir_errors(to.0));
        let Ok((id, kind)) = self.step(from.0, from.1) else {
            errors.extend([Code::NotFound, Code::Stale]);
            return errors;
        };
        let moves_dir = kind == FileKind::Directory;
        if moves_dir && self.is_below(to.0, id) {
            errors.push(Code::Invalid);
        }
        let Some((victim, victim_kind)) = self.entries.get(&to).copied() else { return errors };
        if no_replace {
            errors.push(Code::Exists);
        }
        if victim == id {
            return errors;
        }
        match (moves_dir, victim_kind == FileKind::Directory) {
            (true, false) => errors.push(Code::NotDirectory),
            (false, true) => errors.push(Code::IsDirectory),
            (true, true) if !self.is_empty(victim) => errors.push(Code::NotEmpty),
            _ => {}
        }
        errors
    }

    fn exchange_errors(&self, from: (Id, NameIndex), to: (Id, NameIndex)) -> Vec<Code> {
        let mut errors = self.dir_errors(from.0);
        errors.extend(self.dir_errors(to.0));
        let (Ok(one), Ok(other)) = (self.step(from.0, from.1), self.step(to.0, to.1)) else {
            errors.extend([Code::NotFound, Code::Stale]);
            // Which of the two is looked at first is a matter of taste.
            for (name, there) in [(from, to), (to, from)] {
                if let Ok((id, FileKind::Directory)) = self.step(name.0, name.1)
                    && self.is_below(there.0, id)
                {
                    errors.push(Code::Invalid);
                }
            }
            return errors;
        };
        for ((id, kind), dir) in [(one, to.0), (other, from.0)] {
            if one.0 != other.0 && kind == FileKind::Directory && self.is_below(dir, id) {
                errors.push(Code::Invalid);
            }
        }
        errors
    }

    /// The state after the operation has succeeded; `made` is what a creation makes.
    pub fn after(&self, op: &Op, made: Id) -> Tree {
        let mut next = self.clone();
        match op {
            Op::Lookup { .. } | Op::Resolve { .. } => {}
            Op::Create { dir, name, kind, .. } => {
                if let Entry::Vacant(free) = next.entries.entry((*dir, *name)) {
                    free.insert((made, *kind));
                    if *kind == FileKind::Directory {
                        next.dirs.insert(made, *dir);
                    }
                }
            }
            Op::Unlink { dir, name } | Op::Rmdir { dir, name } => next.remove((*dir, *name)),
            Op::Link { ino, dir, name } => {
                // Only non-directories are linked; no rule here depends on their kind.
                next.entries.insert((*dir, *name), (*ino, FileKind::File));
            }
            Op::Rename { dir, name, to_dir, to_name, .. } => next.rename((*dir, *name), (*to_dir, *to_name)),
            Op::Exchange { dir, name, to_dir, to_name } => next.exchange((*dir, *name), (*to_dir, *to_name)),
        }
        next
    }

    /// Remembers, if `op` is a rename that has made this of `before`, that it may be undone.
    pub fn may_be_undone(&mut self, op: &Op, before: &Tree) {
        let (Op::Rename { dir, name, to_dir, to_name, .. } | Op::Exchange { dir, name, to_dir, to_name }) = *op else {
            return;
        };
        if let Some((moved, _)) = before.entries.get(&(dir, name))
            && self.entries != before.entries
        {
            let back = match op {
                Op::Exchange { .. } => before.entries.get(&(to_dir, to_name)).map(|(back, _)| *back),
                _ => None,
            };
            self.unconfirmed.push(Unconfirmed { from: (dir, name), to: (to_dir, to_name), moved: *moved, back });
        }
    }

    /// The states in which one of the unconfirmed renames is undone.
    pub fn undone(&self) -> Vec<Tree> {
        let undo = |(index, Unconfirmed { from, to, moved, back }): (usize, &Unconfirmed)| {
            let at_from = self.entries.get(from).map(|(id, _)| *id);
            let there = self.entries.get(to).filter(|there| there.0 == *moved && at_from == *back);
            let (id, kind) = *there?;
            let mut next = self.clone();
            next.unconfirmed.remove(index);
            next.entries.remove(to);
            next.entries.insert(*from, (id, kind));
            if kind == FileKind::Directory {
                next.dirs.insert(id, from.0);
            }
            Some(next)
        };
        self.unconfirmed.iter().enumerate().filter_map(undo).collect()
    }

    fn remove(&mut self, key: (Id, NameIndex)) {
        if let Some((id, FileKind::Directory)) = self.entries.remove(&key) {
            self.dirs.remove(&id);
        }
    }

    fn rename(&mut self, from: (Id, NameIndex), to: (Id, NameIndex)) {
        let Some(moved) = self.entries.get(&from).copied() else { return };
        // Two names of one file, or the same name twice: nothing happens.
        if self.entries.get(&to).is_some_and(|there| there.0 == moved.0) {
            return;
        }
        self.remove(to);
        self.entries.remove(&from);
        self.entries.insert(to, moved);
        if moved.1 == FileKind::Directory {
            self.dirs.insert(moved.0, to.0);
        }
    }

    fn exchange(&mut self, one: (Id, NameIndex), other: (Id, NameIndex)) {
        let (Some(first), Some(second)) = (self.entries.get(&one).copied(), self.entries.get(&other).copied()) else {
            return;
        };
        for (key, (id, kind)) in [(one, second), (other, first)] {
            self.entries.insert(key, (id, kind));
            if kind == FileKind::Directory {
                self.dirs.insert(id, key.0);
            }
        }
    }

    /// The states that the answer allows, if the operation takes effect here in one step.
    /// `made` names what an unheard-of creation makes; `known` are the ids that were seen made.
    pub fn answer(&self, op: &Op, ret: &Ret, made: Id, known: &dyn Fn(Id) -> bool) -> Vec<Tree> {
        let errors = self.errors(op);
        match ret {
            Ret::Failed(code) => {
                let gone = matches!(op, Op::Link { ino, .. } if self.may_be_gone(*ino))
                    && matches!(code, Code::NotFound | Code::Stale);
                // Busy says that nothing has happened and asks to try again; everything but a rename or exchange waits.
                let busy = *code == Code::Busy && matches!(op, Op::Rename { .. } | Op::Exchange { .. });
                if errors.contains(code) || gone || busy { vec![self.clone()] } else { Vec::new() }
            }
            _ if !errors.is_empty() => Vec::new(),
            Ret::Unknown | Ret::Done => vec![self.after(op, made)],
            Ret::Entry { id, kind, created } => self.answer_entry(op, (*id, *kind), *created, known),
        }
    }

    fn answer_entry(&self, op: &Op, seen: (Id, FileKind), created: bool, known: &dyn Fn(Id) -> bool) -> Vec<Tree> {
        let there = match op {
            Op::Lookup { dir, name } | Op::Create { dir, name, .. } => self.entries.get(&(*dir, *name)).copied(),
            Op::Link { .. } => return vec![self.after(op, seen.0)],
            _ => return Vec::new(),
        };
        match there {
            None if created => vec![self.after(op, seen.0)],
            Some(there) if !created => self.recognize(there, seen, known).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether an entry is the one that a client saw; an unseen one is thereby seen.
    pub fn recognize(&self, there: (Id, FileKind), seen: (Id, FileKind), known: &dyn Fn(Id) -> bool) -> Option<Tree> {
        let same_sort = (there.1 == FileKind::Directory) == (seen.1 == FileKind::Directory);
        if there.0 == seen.0 {
            return same_sort.then(|| self.clone());
        }
        let may_be = there.0 >= UNSEEN && same_sort && !known(seen.0) && !self.holds(seen.0);
        may_be.then(|| {
            let mut next = self.clone();
            next.learn(there.0, seen.0);
            next
        })
    }

    fn holds(&self, id: Id) -> bool {
        self.dirs.contains_key(&id) || self.entries.values().any(|(there, _)| *there == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Id = 2;

    fn made(tree: &Tree, dir: Id, name: NameIndex, kind: FileKind, id: Id) -> Tree {
        tree.after(&Op::Create { dir, name, kind, exclusive: true }, id)
    }

    #[test]
    fn a_directory_moves_with_what_is_in_it_and_not_below_itself() {
        let tree = made(&Tree::new(BASE), BASE, 0, FileKind::Directory, 10);
        let tree = made(&tree, 10, 1, FileKind::Directory, 11);
        let into_itself = Op::Rename { dir: BASE, name: 0, to_dir: 11, to_name: 2, no_replace: false };
        assert_eq!(tree.errors(&into_itself), [Code::Invalid]);
        let aside = Op::Rename { dir: 10, name: 1, to_dir: BASE, to_name: 2, no_replace: false };
        let tree = tree.after(&aside, 0);
        assert_eq!((tree.step(BASE, 2), tree.dirs[&11]), (Ok((11, FileKind::Directory)), BASE));
        assert_eq!(tree.errors(&Op::Rmdir { dir: BASE, name: 0 }), []);
    }

    #[test]
    fn an_exclusive_creation_has_one_winner() {
        let create = Op::Create { dir: BASE, name: 0, kind: FileKind::File, exclusive: true };
        let won = Ret::Entry { id: 10, kind: FileKind::File, created: true };
        let tree = Tree::new(BASE);
        let after = tree.answer(&create, &won, UNSEEN, &|_| true);
        assert_eq!(after.len(), 1);
        assert!(
            after[0]
                .answer(&create, &Ret::Entry { id: 11, kind: FileKind::File, created: true }, UNSEEN, &|_| true)
                .is_empty()
        );
        assert_eq!(after[0].answer(&create, &Ret::Failed(Code::Exists), UNSEEN, &|_| true).len(), 1);
        assert!(tree.answer(&create, &Ret::Failed(Code::Exists), UNSEEN, &|_| true).is_empty());
    }

    #[test]
    fn what_was_made_unheard_of_is_recognized_once() {
        let create = Op::Create { dir: BASE, name: 0, kind: FileKind::File, exclusive: true };
        let tree = Tree::new(BASE).answer(&create, &Ret::Unknown, UNSEEN + 3, &|_| false).remove(0);
        let lookup = Op::Lookup { dir: BASE, name: 0 };
        let seen = |id| Ret::Entry { id, kind: FileKind::File, created: false };
        assert!(tree.answer(&lookup, &seen(10), 0, &|id| id == 10).is_empty(), "somebody else made number 10");
        let tree = tree.answer(&lookup, &seen(11), 0, &|_| false).remove(0);
        assert!(tree.answer(&lookup, &seen(12), 0, &|_| false).is_empty());
    }
}
