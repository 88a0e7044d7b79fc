//! Problems in words for people: with paths, as far as they are known.

use super::{Check, DataSuspect, Finding, Wrong};
use aze_proto::check::{CHECK_INODES_MAX, CheckedEntry};
use aze_proto::{Failure, Ino, Name};
use futures_util::future::try_join_all;
use std::collections::{BTreeMap, BTreeSet};

/// Directories between a directory and the root that a path is told of, at most.
const DEPTH_MAX: usize = 4096;

/// Inodes whose names are looked for; paths of further ones begin with the number of a directory.
const NAMES_MAX: usize = 16 * CHECK_INODES_MAX;

/// Names by the inode that they lead to: directory and name.
type Names = BTreeMap<Ino, (Ino, Name)>;

impl Check<'_> {
    pub(super) async fn report(&mut self, wrong: Vec<Wrong>, data: Vec<DataSuspect>) -> Result<(), Failure> {
        if wrong.is_empty() && data.is_empty() {
            return Ok(());
        }
        let mut names = self.names(data.iter().map(|suspect| suspect.place.ino).collect()).await?;
        let known = wrong.iter().filter_map(|wrong| wrong.entry.as_ref()).map(|entry| entry.parent);
        let parents: Vec<Ino> = known.chain(names.values().map(|(parent, _)| *parent)).collect();
        names.extend(self.names(self.above(parents)).await?);
        for Wrong { kind, ino, entry, found } in wrong {
            let who = self.who(ino, entry.as_ref().and_then(|entry| path_of(&names, entry)));
            self.checked.findings.push(Finding { kind, text: format!("{who}: {found}{}", self.lost(ino)), ino });
        }
        for DataSuspect { server, place, damaged } in data {
            let path = names.get(&place.ino).map(|(parent, name)| path(&names, *parent, name));
            let (who, chunk) = (self.who(place.ino, path), place.chunk);
            let (kind, text) = match damaged {
                None => ("data without file", format!("data on server {server} of a file that is not there")),
                Some(damaged) => {
                    let at = format!("chunk {chunk}, byte {}, in {}", damaged.byte, damaged.stored);
                    match damaged.unreadable {
                        None => ("checksum", at),
                        Some(why) => ("unreadable", format!("chunk {chunk}, in {}: {why}", damaged.stored)),
                    }
                }
            };
            let ino = place.ino;
            self.checked.findings.push(Finding { kind, text: format!("{who}: {text}{}", self.lost(ino)), ino });
        }
        Ok(())
    }

    /// How people know an inode.
    fn who(&self, ino: Ino, path: Option<String>) -> String {
        let home = self.map.home_of(ino).map_or_else(String::new, |home| format!(" of server {home}"));
        match path {
            Some(path) => format!("{path} (inode {ino}{home})"),
            None => format!("inode {ino}{home}"),
        }
    }

    /// Why an inode may be missing that was on a server which has lost all it had.
    fn lost(&self, ino: Ino) -> &'static str {
        let slot = self.map.slots.keeps(ino.home(self.map.shards()));
        let is_lost = slot.is_some_and(|slot| ino.life() < slot.life);
        if is_lost { "; that server has restarted empty" } else { "" }
    }

    /// These directories and all above them.
    fn above(&self, dirs: Vec<Ino>) -> BTreeSet<Ino> {
        let mut all = BTreeSet::new();
        for mut dir in dirs {
            while dir != Ino::ROOT && all.insert(dir) {
                let Ok(at) = self.dirs.binary_search_by_key(&dir, |(dir, _)| *dir) else { break };
                dir = self.dirs[at].1;
            }
        }
        all
    }

    /// A name of each of these inodes.
    async fn names(&self, inos: BTreeSet<Ino>) -> Result<Names, Failure> {
        let inos: Vec<Ino> = inos.into_iter().take(NAMES_MAX).collect();
        let (mut names, shards) = (Names::new(), self.map.shards());
        for some in inos.chunks(CHECK_INODES_MAX) {
            let asked = self.map.members().map(|server| self.entries(server, 0..shards, some));
            for entry in try_join_all(asked).await?.into_iter().flat_map(|(entries, _)| entries) {
                if let Some(name) = entry.name {
                    names.insert(entry.ino, (entry.parent, name));
                }
            }
        }
        Ok(names)
    }
}

fn path_of(names: &Names, entry: &CheckedEntry) -> Option<String> {
    entry.name.as_ref().map(|name| path(names, entry.parent, name))
}

fn path(names: &Names, mut dir: Ino, name: &Name) -> String {
    let mut path = format!("/{name}");
    for _ in 0..DEPTH_MAX {
        match names.get(&dir) {
            _ if dir == Ino::ROOT => return path,
            Some((parent, name)) => {
                path.insert_str(0, &format!("/{name}"));
                dir = *parent;
            }
            None => break,
        }
    }
    format!("(directory {dir}){path}")
}
