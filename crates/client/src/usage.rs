//! Summing up a tree: the servers add, only sums travel.

use crate::client::Client;
use crate::scan::{ScanPage, Wanted};
use aze_proto::predicate::Predicate;
use aze_proto::{Failure, Identity, Ino};
use std::collections::{BTreeMap, BTreeSet};

/// What a tree adds up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSum {
    /// Files of every kind but directories.
    pub files: u64,
    /// Directories below the root of the tree.
    pub dirs: u64,
    /// Sum of the files' lengths in bytes.
    pub bytes: u64,
}

/// Is told the path of a directory, relative to the root of the tree, and its sum.
pub type EachDir<'a> = &'a mut (dyn FnMut(&[u8], &UsageSum) + Send);

impl UsageSum {
    fn add(&mut self, other: UsageSum) {
        self.files += other.files;
        self.dirs += other.dirs;
        self.bytes += other.bytes;
    }
}

impl Client {
    /// Adds up the tree below `root`. A file with several names in it is counted once, in the
    /// directory in which it was come across first. `each_dir` is told, at the end and in the order
    /// of their paths, what each directory and all below it add up to, `root` (an empty path)
    /// included; for that the sums of all directories are kept in memory.
    ///
    /// # Errors
    /// As [`Client::find`]; `each_dir` is then told of the reachable directories.
    pub async fn usage(&self, who: &Identity, root: Ino, each_dir: Option<EachDir<'_>>) -> Result<UsageSum, Failure> {
        match self.usage_of_reachable(who, root, each_dir).await {
            (sum, None) => Ok(sum),
            (_, Some(failure)) => Err(failure),
        }
    }

    /// As [`Client::usage`], but gives also the sum of the reachable part if there is a failure.
    pub async fn usage_of_reachable(
        &self,
        who: &Identity,
        root: Ino,
        each_dir: Option<EachDir<'_>>,
    ) -> (UsageSum, Option<Failure>) {
        let mut total = UsageSum::default();
        let mut by_dir: Option<BTreeMap<Vec<u8>, UsageSum>> =
            each_dir.is_some().then(|| BTreeMap::from([(Vec::new(), UsageSum::default())]));
        let mut linked = BTreeSet::new();
        let mut take = |page: &ScanPage| {
            let mut add = |dir: &[u8], sum: UsageSum| {
                total.add(sum);
                if let Some(by_dir) = &mut by_dir {
                    by_dir.entry(dir.to_vec()).or_default().add(sum);
                }
            };
            for usage in &page.usage {
                add(page.dir_path(usage.dir), UsageSum { files: usage.files, dirs: 0, bytes: usage.bytes });
            }
            for (found, attr) in &page.elsewhere {
                if attr.links <= 1 || linked.insert(attr.ino) {
                    add(page.dir_path(found.dir), UsageSum { files: 1, dirs: 0, bytes: attr.size });
                }
            }
            for subdir in &page.subdirs {
                add(page.dir_path(subdir.dir), UsageSum { dirs: 1, ..UsageSum::default() });
                add(&page.path(subdir.dir, &subdir.name), UsageSum::default());
            }
        };
        let predicate = Predicate::default();
        let scanned = self.scan(who, root, Wanted { predicate: &predicate, find: false, usage: true }, &mut take).await;
        if let (Some(by_dir), Some(each_dir)) = (by_dir, each_dir) {
            with_subdirs(by_dir).iter().for_each(|(dir, sum)| each_dir(dir, sum));
        }
        (total, scanned.err())
    }
}

/// Adds to each directory the sums below it.
fn with_subdirs(mut by_dir: BTreeMap<Vec<u8>, UsageSum>) -> BTreeMap<Vec<u8>, UsageSum> {
    let mut paths: Vec<Vec<u8>> = by_dir.keys().filter(|path| !path.is_empty()).cloned().collect();
    // The deepest first: a directory is complete when it is added to the one above.
    paths.sort_by_key(|path| std::cmp::Reverse(path.iter().filter(|byte| **byte == b'/').count()));
    for path in paths {
        let sum = by_dir[&path];
        let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &path[..slash]);
        if let Some(above) = by_dir.get_mut(parent) {
            above.add(sum);
        }
    }
    by_dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_include_what_is_below_them() {
        let own = |files| UsageSum { files, dirs: 0, bytes: files * 10 };
        let paths: [(&[u8], u64); 6] = [(b"", 1), (b"a", 2), (b"a/b", 4), (b"a/b/c", 8), (b"a.d", 16), (b"ab", 32)];
        let by_dir = with_subdirs(paths.map(|(path, files)| (path.to_vec(), own(files))).into());
        let files: Vec<u64> = by_dir.values().map(|sum| sum.files).collect();
        assert_eq!(files, [63, 14, 16, 12, 8, 32]);
        assert_eq!(by_dir[&b"a"[..]].bytes, 140);
    }
}
