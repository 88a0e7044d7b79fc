//! The objects to stage, and all obstacles to staging them: found before the first byte is copied.

use crate::tree::{Meta, Origin, Spot, Traits, join};
use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_proto::predicate::glob;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use std::collections::{BTreeMap, BTreeSet};

/// The longest path of a receipt, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Which objects of the source are meant.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Shell patterns; without any, all. One with a slash is for the whole path, one without for the last component.
    pub include: Vec<Vec<u8>>,
    /// The same, for objects that are left out; of a directory, with all that is in it.
    pub exclude: Vec<Vec<u8>>,
    /// Only files whose contents have changed since.
    pub newer_than: Option<Time>,
    /// Only these paths, each with all that is in it.
    pub list: Option<BTreeSet<Vec<u8>>>,
    /// The list names objects alone: a directory without those in it.
    pub list_alone: bool,
    /// The absolute path of the destination: objects that came from where they would be copied to, and have not changed, are
    /// left out.
    pub destination: Option<Vec<u8>>,
}

impl Filter {
    /// Whether it leaves anything out.
    pub fn is_partial(&self) -> bool {
        let Filter { include, exclude, newer_than, list, list_alone: _, destination: _ } = self;
        !include.is_empty() || !exclude.is_empty() || newer_than.is_some() || list.is_some()
    }

    fn excludes(&self, path: &[u8]) -> bool {
        self.exclude.iter().any(|pattern| fits(pattern, path))
    }

    fn wants(&self, path: &[u8], meta: &Meta) -> bool {
        let is_listed = |list: &BTreeSet<Vec<u8>>| {
            let is_below = || list.contains(&b""[..]) || above(path).any(|dir| list.contains(dir));
            list.contains(path) || !self.list_alone && is_below()
        };
        let is_dir = meta.kind == FileKind::Directory;
        self.list.as_ref().is_none_or(is_listed)
            && (self.include.is_empty() || self.include.iter().any(|pattern| fits(pattern, path)))
            && self.newer_than.is_none_or(|time| !is_dir && meta.mtime > time)
    }
}

fn fits(pattern: &[u8], path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if pattern.contains(&b'/') {
        glob(pattern.strip_prefix(b"/").unwrap_or(pattern), path)
    } else {
        glob(pattern, name)
    }
}

/// The objects of a source.
#[derive(Debug, Default)]
pub struct Survey {
    /// By path; empty for the source itself.
    pub objects: BTreeMap<Vec<u8>, Meta>,
    /// All names of the source, also those that were left out.
    pub names: BTreeSet<Vec<u8>>,
    /// Directories that are left out, since they came from their place at the destination and have not changed.
    pub clean_dirs: BTreeSet<Vec<u8>>,
    /// Where objects came from that came from their place at the destination, and have changed.
    pub origins: BTreeMap<Vec<u8>, Origin>,
    /// What could not be looked at, or not be staged.
    pub troubles: Vec<Trouble>,
}

impl Survey {
    /// Walks the source.
    ///
    /// # Errors
    /// There is none, or it is neither file nor directory.
    pub fn of(from: &Spot, filter: &Filter, is_over: &dyn Fn() -> bool) -> Outcome<Survey> {
        let root = from.must_stat(true)?;
        let mut survey = Survey::default();
        let mut waiting = vec![(Vec::new(), root)];
        let mut clean_names = Vec::new();
        while let Some((path, meta)) = waiting.pop() {
            if is_over() {
                return Ok(survey);
            }
            survey.names.insert(path.clone());
            if !path.is_empty() && filter.excludes(&path) {
                continue;
            }
            let spot = at(from, &path);
            let origin = match survey.origin(from, &path, &meta, filter) {
                Ok(origin) => origin,
                Err(trouble) => {
                    survey.troubles.push(trouble);
                    continue;
                }
            };
            if origin.as_ref().is_some_and(|origin| origin.is_behind) && filter.list.is_none() {
                survey.clean_dirs.insert(path);
                continue;
            }
            if meta.kind != FileKind::Directory
                && let Some(origin) = origin.as_ref().filter(|origin| origin.is_clean)
            {
                if meta.kind == FileKind::File && meta.links > 1 && filter.wants(&path, &meta) {
                    clean_names.push((path, meta, origin.clone()));
                }
                continue;
            }
            match meta.kind {
                FileKind::Directory => match spot.tree.list_with_attributes(&spot.path) {
                    Ok(names) => {
                        survey.troubles.extend(names.trouble);
                        for entry in names.entries {
                            let below = join(&path, &entry.name);
                            match entry.meta.map_or_else(|| at(from, &below).must_stat(false), Ok) {
                                Ok(meta) => waiting.push((below, meta)),
                                Err(trouble) => survey.troubles.push(trouble),
                            }
                        }
                    }
                    Err(trouble) => survey.troubles.push(trouble),
                },
                FileKind::File | FileKind::Symlink => {}
                _ => {
                    let text = format!("{}: neither file, directory nor symbolic link: not staged", spot.shown());
                    survey.troubles.push(Trouble::new(Exit::Caller, text));
                    continue;
                }
            }
            match origin {
                // The root of a volume has attributes of its own.
                Some(origin) if origin.is_clean || origin.inside == b"/" => {
                    survey.clean_dirs.insert(path);
                    continue;
                }
                Some(origin) => drop(survey.origins.insert(path.clone(), origin)),
                None => {}
            }
            if path.len() > PATH_BYTES_MAX {
                let text = format!("{}: a path of more than {PATH_BYTES_MAX} bytes", spot.shown());
                survey.troubles.push(Trouble::new(Exit::Caller, text));
            } else if path.is_empty() || filter.wants(&path, &meta) {
                survey.objects.insert(path, meta);
            }
        }
        survey.add_clean_names(clean_names);
        survey.add_parents(from)?;
        if let Some(list) = &filter.list {
            let missing = list.iter().filter(|path| !survey.names.contains(*path)).collect::<Vec<_>>();
            let text = |path: &[u8]| format!("{}: no such file or directory", at(from, path).shown());
            survey.troubles.extend(missing.into_iter().map(|path| Trouble::new(Exit::NotFound, text(path))));
        }
        Ok(survey)
    }

    /// Where an object came from, if that is where it would be copied to.
    fn origin(&self, from: &Spot, path: &[u8], meta: &Meta, filter: &Filter) -> Outcome<Option<Origin>> {
        let Some(to) = &filter.destination else { return Ok(None) };
        let place = if path.is_empty() { to.clone() } else { join(to, path) };
        Ok(from.tree.origin(meta)?.filter(|origin| origin.outside == place))
    }

    /// Directories of the destination in which something is to be changed: those that are staged, and those above objects.
    pub fn touched_dirs(&self) -> BTreeSet<Vec<u8>> {
        let mut touched = BTreeSet::new();
        for (path, meta) in &self.objects {
            if meta.kind == FileKind::Directory {
                touched.insert(path.clone());
            }
            let above = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |end| &path[..end]);
            if self.clean_dirs.contains(above) {
                touched.insert(above.to_vec());
            }
        }
        touched
    }

    /// Adds files that came from their places and have not changed, if a program has given them further names that are chosen: the
    /// destination gets one file for all of these.
    fn add_clean_names(&mut self, clean: Vec<(Vec<u8>, Meta, Origin)>) {
        let files = self.objects.values().filter(|meta| meta.kind == FileKind::File && meta.links > 1);
        let files: BTreeSet<(u64, u64)> = files.map(|meta| meta.identity).collect();
        for (path, meta, origin) in clean.into_iter().filter(|(_, meta, _)| files.contains(&meta.identity)) {
            self.origins.insert(path.clone(), origin);
            self.objects.insert(path, meta);
        }
    }

    /// Adds the directories above the chosen objects, which a filter may have left out.
    fn add_parents(&mut self, from: &Spot) -> Outcome<()> {
        let mut missing = BTreeSet::new();
        for path in self.objects.keys() {
            let is_missing = |dir: &&[u8]| !self.objects.contains_key(*dir) && !self.clean_dirs.contains(*dir);
            missing.extend(above(path).filter(is_missing).map(<[u8]>::to_vec));
        }
        for dir in missing {
            let meta = at(from, &dir).must_stat(false)?;
            self.objects.insert(dir, meta);
        }
        Ok(())
    }

    /// Bytes of all files, each inode once.
    pub fn bytes(&self) -> u64 {
        let mut seen = BTreeSet::new();
        let files = self.objects.values().filter(|meta| meta.kind == FileKind::File);
        files.filter(|meta| meta.links == 1 || seen.insert(meta.identity)).map(|meta| meta.size).sum()
    }

    /// Of each file with several names among the objects: the path of the first, and the others.
    pub fn further_names(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let (mut first, mut further) = (BTreeMap::new(), BTreeMap::new());
        for (path, meta) in self.objects.iter().filter(|(_, meta)| meta.kind == FileKind::File && meta.links > 1) {
            if let Some(first) = first.get(&meta.identity) {
                further.insert(path.clone(), Vec::clone(first));
            } else {
                first.insert(meta.identity, path.clone());
            }
        }
        further
    }

    /// What the destination cannot take, each thing named. `needed` bytes and files are not there yet.
    pub fn obstacles(&self, to: &Spot, traits: &Traits, needed_bytes: u64, needed_files: u64) -> Vec<Trouble> {
        let mut found = Vec::new();
        let mut say = |text: String| found.push(Trouble::new(Exit::Caller, text));
        let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().unwrap_or(path).to_vec();
        for path in self.objects.keys().filter(|path| name(path).len() > traits.name_bytes_max) {
            let max = traits.name_bytes_max;
            say(format!(
                "{}: a name of {} bytes, but the destination takes {max}",
                at(to, path).shown(),
                name(path).len()
            ));
        }
        if traits.folds_case {
            let mut folded: BTreeMap<String, &Vec<u8>> = BTreeMap::new();
            for path in self.objects.keys() {
                if let Some(other) = folded.insert(String::from_utf8_lossy(path).to_lowercase(), path) {
                    let (one, other) = (at(to, path).shown(), at(to, other).shown());
                    say(format!(
                        "{one} and {other}: one name at the destination, which does not tell upper from lower case"
                    ));
                }
            }
        }
        if !traits.links {
            for (path, first) in self.further_names() {
                let (one, other) = (at(to, &path).shown(), at(to, &first).shown());
                say(format!(
                    "{one} and {other}: one file with two names, which the destination cannot have: leave one out with --exclude"
                ));
            }
        }
        if needed_bytes > traits.room_bytes {
            let (needed, room) = (size::words(needed_bytes), size::words(traits.room_bytes));
            say(format!("{}: {needed} are to be staged, but there is room for {room}", to.shown()));
        }
        if let Some(room) = traits.room_files.filter(|room| needed_files > *room) {
            say(format!("{}: {needed_files} objects are to be staged, but there is room for {room}", to.shown()));
        }
        found
    }
}

/// The directories above a relative path, but for its root.
pub(super) fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| &path[..end])
}

/// The attributes of what has a relative path, if something has it: no symbolic link leads there.
pub(super) fn stat_within(root: &Spot, path: &[u8]) -> Outcome<Option<Meta>> {
    for dir in above(path) {
        if at(root, dir).stat(false)?.is_none_or(|there| there.kind != FileKind::Directory) {
            return Ok(None);
        }
    }
    at(root, path).stat(false)
}

/// The place of a relative path.
pub fn at(root: &Spot, path: &[u8]) -> Spot {
    if path.is_empty() { root.clone() } else { root.join(path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LocalTree;
    use std::sync::Arc;

    fn meta(links: u64, inode: u64, size: u64) -> Meta {
        Meta { mtime: Time(5), links, identity: (0, inode), ..Meta::of_file(size) }
    }

    #[test]
    fn everything_in_the_way_is_named_before() {
        let mut survey = Survey::default();
        for (path, links, inode) in
            [("d/Name", 1, 1), ("d/name", 1, 2), ("one", 2, 3), ("two", 2, 3), ("much-too-long", 1, 4)]
        {
            survey.objects.insert(path.into(), meta(links, inode, 100));
        }
        let to = Spot { tree: Arc::new(LocalTree), path: b"/to".to_vec() };
        let all = Traits {
            folds_case: false,
            links: true,
            name_bytes_max: 255,
            room_bytes: 400,
            room_files: Some(5),
            stripes: None,
        };
        assert_eq!(survey.bytes(), 400);
        assert_eq!(survey.obstacles(&to, &all, 400, 5), []);
        let told = |traits: Traits| -> Vec<String> {
            survey.obstacles(&to, &traits, 400, 5).into_iter().map(|trouble| trouble.text).collect()
        };
        for (traits, words) in [
            (Traits { folds_case: true, ..all }, ["/to/d/name", "/to/d/Name"]),
            (Traits { links: false, ..all }, ["/to/two", "/to/one"]),
            (Traits { name_bytes_max: 12, ..all }, ["/to/much-too-long", "13 bytes"]),
            (Traits { room_bytes: 399, ..all }, ["/to", "400 B"]),
            (Traits { room_files: Some(4), ..all }, ["/to", "5 objects"]),
        ] {
            let told = told(traits);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(words.iter().all(|word| told[0].contains(word)), "{told:?}");
        }
    }

    #[test]
    fn filters_choose_by_path_name_list_and_time() {
        let file = meta(1, 1, 1);
        let filter = |include: &[&str], list: Option<&[&str]>, time: Option<u64>| Filter {
            destination: None,
            include: include.iter().map(|text| text.as_bytes().to_vec()).collect(),
            exclude: vec![b"*.tmp".to_vec(), b"a/skip".to_vec()],
            newer_than: time.map(Time),
            list: list.map(|list| list.iter().map(|text| text.as_bytes().to_vec()).collect()),
            list_alone: false,
        };
        for (filter, path, wanted) in [
            (filter(&[], None, None), "x/y", true),
            (filter(&["*.h5"], None, None), "x/y.h5", true),
            (filter(&["*.h5"], None, None), "x/y", false),
            (filter(&["x/*"], None, None), "x/y", true),
            (filter(&["z/*"], None, None), "x/y", false),
            (filter(&[], Some(&["x"]), None), "x/y", true),
            (filter(&[], Some(&["xx"]), None), "x/y", false),
            (filter(&[], None, Some(4)), "x/y", true),
            (filter(&[], None, Some(5)), "x/y", false),
        ] {
            assert_eq!(filter.wants(path.as_bytes(), &file), wanted, "{path} by {filter:?}");
        }
        let alone = Filter { list_alone: true, ..filter(&[], Some(&["x", ""]), None) };
        assert!(alone.wants(b"x", &file) && !alone.wants(b"x/y", &file) && !alone.wants(b"y", &file));
        let excluded = filter(&[], None, None);
        assert!(excluded.excludes(b"x/y.tmp") && excluded.excludes(b"a/skip") && !excluded.excludes(b"b/a/skip"));
    }
}
