//! The rules between names and inodes. Rows in, problems out: where the rows come from, and
//! whether they are all of one moment, is the caller's business.

use aze_proto::check::{CheckedEntry, CheckedInode};
use aze_proto::{FileKind, Ino};
use std::collections::BTreeSet;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Which kind, in the words of the check of directories.
    pub(crate) kind: &'static str,
    /// With which inode.
    pub(crate) ino: Ino,
    /// With which of its names.
    pub(crate) entry: Option<CheckedEntry>,
    /// The state that was found in place of the right one.
    pub(crate) found: String,
}

/// Inodes, and all names that lead to them.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) inodes: Vec<CheckedInode>,
    pub(crate) entries: Vec<CheckedEntry>,
}

impl Rows {
    /// Every inode with its names, in the order of their numbers; also those that are not there and have some.
    pub(crate) fn each(&mut self, mut each: impl FnMut(Ino, Option<&CheckedInode>, &[CheckedEntry])) {
        self.inodes.sort_unstable_by_key(|inode| inode.ino);
        self.inodes.dedup_by_key(|inode| inode.ino);
        self.entries.sort_by_key(|entry| entry.ino);
        let mut inodes = self.inodes.iter().peekable();
        for names in self.entries.chunk_by(|a, b| a.ino == b.ino) {
            let ino = names[0].ino;
            while let Some(inode) = inodes.next_if(|inode| inode.ino < ino) {
                each(inode.ino, Some(inode), &[]);
            }
            each(ino, inodes.next_if(|inode| inode.ino == ino), names);
        }
        inodes.for_each(|inode| each(inode.ino, Some(inode), &[]));
    }
}

/// The problems of one inode and its names; `is_directory` says whether a directory of this number is there.
pub(crate) fn judge(
    ino: Ino,
    inode: Option<&CheckedInode>,
    names: &[CheckedEntry],
    is_directory: impl Fn(Ino) -> bool,
) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut add = |kind, entry: Option<&CheckedEntry>, found: String| {
        wrong.push(Wrong { kind, ino, entry: entry.cloned(), found });
    };
    let count = names.len() as u32;
    match inode {
        None if ino == Ino::ROOT && names.is_empty() => add("no root", None, "the root directory is not there".into()),
        None => {
            for name in names {
                add("name without file", Some(name), "leads to an inode that is not there".into());
            }
        }
        Some(inode) if inode.kind == FileKind::Directory => {
            let names_due = u32::from(ino != Ino::ROOT);
            if count < names_due {
                add("file without name", None, "a directory without a name".into());
            }
            if count > names_due {
                add("two names", names.last(), "a directory that has another name, too".into());
            }
            for name in names.iter().filter(|name| name.parent != inode.parent && name.kind == inode.kind) {
                let found = format!("is in directory {}, and believes to be in {}", name.parent, inode.parent);
                add("wrong parent", Some(name), found);
            }
        }
        Some(inode) if count == 0 && (inode.links > 0 || !inode.is_open) => {
            let open = if inode.is_open { "" } else { ", and nobody has it open" };
            add("file without name", None, format!("counts {} names and has none{open}", inode.links));
        }
        Some(inode) if count != inode.links => {
            let found = format!("the link count is {}, the names are {count}", inode.links);
            add("link count", names.first(), found);
        }
        Some(_) => {}
    }
    for name in names {
        if let Some(inode) = inode.filter(|inode| inode.kind != name.kind) {
            add("wrong kind", Some(name), format!("is a {:?} by its name and a {:?} itself", name.kind, inode.kind));
        }
        if name.is_misplaced {
            add("misplaced name", Some(name), "is not where this name is looked for".into());
        }
        if !is_directory(name.parent) {
            add("unreachable", Some(name), format!("is in directory {}, which is not there", name.parent));
        }
    }
    wrong
}

/// Directories from which no way leads up, but round and round: those on a circle. `parents` has pairs of a
/// directory and where it believes to be, in their order; a way that leaves the pairs is no circle.
pub(crate) fn circles(parents: &[(Ino, Ino)]) -> BTreeSet<Ino> {
    let place = |dir: Ino| parents.binary_search_by_key(&dir, |(dir, _)| *dir).ok();
    let above = |at: usize| if parents[at].0 == Ino::ROOT { None } else { place(parents[at].1) };
    // From which start each was come across first, counted from 1.
    let mut seen = vec![0; parents.len()];
    let mut on_circle = BTreeSet::new();
    for start in 0..parents.len() {
        let mut way = Some(start);
        while let Some(at) = way.filter(|at| seen[*at] == 0) {
            seen[at] = start as u32 + 1;
            way = above(at);
        }
        // A way that meets an older one is known; one that meets itself goes round.
        let mut round = way.filter(|at| seen[*at] == start as u32 + 1);
        while let Some(at) = round.filter(|at| on_circle.insert(parents[*at].0)) {
            round = above(at);
        }
    }
    on_circle
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: FileKind = FileKind::Directory;
    const FILE: FileKind = FileKind::File;

    fn inode(ino: u64, kind: FileKind, links: u32) -> CheckedInode {
        CheckedInode { ino: Ino(ino), kind, links, parent: Ino::ROOT, is_open: false, is_under_way: false }
    }

    fn name(ino: u64, kind: FileKind, parent: u64) -> CheckedEntry {
        CheckedEntry { ino: Ino(ino), kind, parent: Ino(parent), is_misplaced: false, name: None }
    }

    fn kinds(inodes: &[CheckedInode], entries: &[CheckedEntry]) -> Vec<(&'static str, u64)> {
        let mut rows = Rows { inodes: inodes.to_vec(), entries: entries.to_vec() };
        let mut found = Vec::new();
        rows.each(|ino, inode, names| {
            let wrong = judge(ino, inode, names, |dir| [1, 5].contains(&dir.0));
            found.extend(wrong.into_iter().map(|wrong| (wrong.kind, wrong.ino.0)));
        });
        found
    }

    #[test]
    fn what_fits_together_is_well() {
        let root = inode(1, DIR, 2);
        let open = CheckedInode { is_open: true, ..inode(9, FILE, 0) };
        let inodes = [inode(7, FILE, 2), root, inode(5, DIR, 2), open];
        let names = [name(7, FILE, 5), name(5, DIR, 1), name(7, FILE, 1)];
        assert_eq!(kinds(&inodes, &names), []);
        assert_eq!(kinds(&[], &[]), []);
    }

    #[test]
    fn each_thing_that_does_not_fit_has_its_name() {
        assert_eq!(kinds(&[], &[name(7, FILE, 1)]), [("name without file", 7)]);
        assert_eq!(kinds(&[inode(7, FILE, 1)], &[]), [("file without name", 7)]);
        assert_eq!(kinds(&[inode(7, FILE, 0)], &[]), [("file without name", 7)], "nobody has it open");
        assert_eq!(kinds(&[inode(5, DIR, 2)], &[]), [("file without name", 5)]);
        assert_eq!(kinds(&[inode(7, FILE, 2)], &[name(7, FILE, 1)]), [("link count", 7)]);
        assert_eq!(kinds(&[inode(7, FILE, 1)], &[name(7, FILE, 1), name(7, FILE, 5)]), [("link count", 7)]);
        let lost = [("unreachable", 7)];
        assert_eq!(kinds(&[inode(7, FILE, 1)], &[name(7, FILE, 6)]), lost);
        let wrong = [("two names", 5), ("wrong parent", 5)];
        assert_eq!(kinds(&[inode(5, DIR, 2)], &[name(5, DIR, 1), name(5, DIR, 5)]), wrong);
        assert_eq!(kinds(&[inode(1, DIR, 2)], &[name(1, DIR, 1)]), [("two names", 1)]);
        assert_eq!(kinds(&[inode(7, FILE, 1)], &[name(7, DIR, 1)]), [("wrong kind", 7)]);
        let misplaced = CheckedEntry { is_misplaced: true, ..name(7, FILE, 1) };
        assert_eq!(kinds(&[inode(7, FILE, 1)], &[misplaced]), [("misplaced name", 7)]);
        let no_root = judge(Ino::ROOT, None, &[], |_| true);
        assert_eq!(no_root[0].kind, "no root");
    }

    #[test]
    fn circles_are_found_and_ways_to_the_root_are_none() {
        let of = |pairs: &[(u64, u64)]| {
            let pairs: Vec<(Ino, Ino)> = pairs.iter().map(|(dir, parent)| (Ino(*dir), Ino(*parent))).collect();
            circles(&pairs).into_iter().map(|dir| dir.0).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(1, 1), (2, 1), (3, 2), (4, 3), (5, 9)]), [0; 0]);
        assert_eq!(of(&[(1, 1), (2, 3), (3, 4), (4, 2), (5, 4), (6, 5), (7, 1)]), [2, 3, 4]);
        assert_eq!(of(&[(8, 8), (9, 8)]), [8], "a directory in itself");
    }
}
