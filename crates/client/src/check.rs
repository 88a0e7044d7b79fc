//! Looking through a volume in use: names, inodes and data of all servers, compared with each other.
//!
//! Servers tell rows of their tables step by step, and no request waits for that; so the rows are of no
//! single moment. Rows that do not fit are looked at a second time, alone, while every server notes what
//! happens to it (a *watch*): what nothing happened to was all the time as it was seen, and only that is
//! reported. Memory is bounded: the inodes are looked at in parts.

mod ask;
mod judge;
mod paths;

use crate::client::{Client, Core};
use crate::route::is_replanned;
use aze_proto::check::{CHECK_INODES_MAX, ChunkPlace, DamagedData, DataPlace};
use aze_proto::limits::SESSION_GRACE_MS;
use aze_proto::{Code, Failure, FileKind, Identity, Ino, ServerIndex, ShardMap};
use futures_util::future::{try_join, try_join_all};
use judge::{Rows, Wrong, circles, judge};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Inodes that are compared at once, with their names: about 64 MiB.
const INODES_AT_ONCE: u64 = 1 << 19;

/// Directories that are kept in mind: 320 MiB. Beyond that a note says that not everything was compared.
const DIRECTORIES_MAX: usize = 1 << 24;

/// Until rows are looked at a second time. A removal is complete everywhere within that time: the grace of a
/// session that left, and the patience of a request that waits for another server.
const SECOND_LOOK_AFTER: Duration = Duration::from_millis(SESSION_GRACE_MS + 5_000);

/// How often something is looked at again that is in motion each time, and the pause in between.
const LOOKS_MAX: u32 = 10;
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Findings after which a check ends.
const FINDINGS_MAX: usize = 1000;

/// How a volume is to be looked through.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Bytes of data that all servers together may compare in a second, on average; as many as they can
    /// otherwise.
    pub bytes_per_second: Option<u64>,
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which kind, in a word or two: those of the check of directories.
    pub kind: &'static str,
    /// The problem, and its place.
    pub text: String,
    /// The inode that it is about.
    pub ino: Ino,
}

/// The extent and the findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The problems.
    pub findings: Vec<Finding>,
    /// What nothing can be said of, and why.
    pub notes: Vec<String>,
    /// Inodes that are no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of file data.
    pub bytes: u64,
}

/// Data that looked wrong on a server.
#[derive(Clone, Debug)]
struct DataSuspect {
    server: ServerIndex,
    place: ChunkPlace,
    /// The damaged data; without any, the file is not there.
    damaged: Option<DamagedData>,
}

/// How often a check is begun anew because slots have moved.
const MOVES_MAX: u32 = 5;

/// One check.
struct Check<'a> {
    core: &'a Core,
    who: &'a Identity,
    map: Arc<ShardMap>,
    options: CheckOptions,
    checked: Checked,
    /// Directories and where they believe to be, by number.
    dirs: Vec<(Ino, Ino)>,
    /// Numbers the watches of this check.
    watches: u64,
}

impl Client {
    /// Looks through the volume while it is in use. Only its owner, or root, may.
    ///
    /// # Errors
    /// [`Code::NotPermitted`]; a server that does not answer: then nothing can be said. [`Code::Busy`] if slots move
    /// between servers all the time.
    pub async fn check(&self, who: &Identity, options: CheckOptions) -> Result<Checked, Failure> {
        for _ in 0..MOVES_MAX {
            match self.check_by_map(who, options).await {
                Err(failure) if is_replanned(&failure) => {}
                checked => return checked,
            }
        }
        let text = format!("slots moved between servers in each of {MOVES_MAX} checks: check again when that is over");
        Err(Failure::new(Code::Busy, text))
    }

    /// A check of what servers have by one map.
    async fn check_by_map(&self, who: &Identity, options: CheckOptions) -> Result<Checked, Failure> {
        // No question to a whole server would tell that the map known here is an old one.
        self.core.look_for_map().await?;
        let inodes = self.statfs().await?.inodes;
        let (core, map) = (&*self.core, self.map());
        let (checked, dirs) = (Checked::default(), Vec::new());
        // Grows from check to check of the session.
        let watches = core.io.mono_ns();
        let mut check = Check { core, who, map, options, checked, dirs, watches };
        let suspects = check.look_at_names(inodes).await?;
        let data = check.look_at_data().await?;
        let is_suspicious = !suspects.is_empty() || data.iter().any(|suspect| suspect.damaged.is_none());
        if is_suspicious {
            core.io.sleep(SECOND_LOOK_AFTER).await;
        }
        let wrong = check.look_at_names_again(suspects).await?;
        let data = check.look_at_data_again(data).await?;
        check.report(wrong, data).await?;
        Ok(check.checked)
    }
}

impl Check<'_> {
    /// A first look at all names and inodes; gives the inodes with which something may be wrong.
    async fn look_at_names(&mut self, inodes: u64) -> Result<BTreeSet<Ino>, Failure> {
        let shards = self.map.shards();
        let dirs = try_join_all(self.map.members().map(|server| self.inodes(server, 0..shards, true))).await?;
        self.dirs = dirs.into_iter().flatten().map(|dir| (dir.ino, dir.parent)).collect();
        self.dirs.sort_unstable();
        let knows_all = self.dirs.len() <= DIRECTORIES_MAX;
        if !knows_all {
            self.dirs = Vec::new();
            let text = format!(
                "the volume has more than {DIRECTORIES_MAX} directories: whether they hang together with the root was not looked at"
            );
            self.checked.notes.push(text);
        }
        let mut suspects = circles(&self.dirs);
        let parts = (inodes / INODES_AT_ONCE + 1).next_power_of_two().min(u64::from(shards)) as u32;
        let mut has_root = false;
        for part in 0..parts {
            let homes = shards / parts * part..shards / parts * (part + 1);
            let inodes = self.map.members().map(|server| self.inodes(server, homes.clone(), false));
            let entries = self.map.members().map(|server| self.entries(server, homes.clone(), &[]));
            let (inodes, entries) = try_join(try_join_all(inodes), try_join_all(entries)).await?;
            let entries = entries.into_iter().flat_map(|(entries, _)| entries).collect();
            let mut rows = Rows { inodes: inodes.into_iter().flatten().collect(), entries };
            let (dirs, checked) = (&self.dirs, &mut self.checked);
            let is_directory = |dir: Ino| !knows_all || dirs.binary_search_by_key(&dir, |(dir, _)| *dir).is_ok();
            rows.each(|ino, inode, names| {
                match inode.map(|inode| inode.kind) {
                    Some(FileKind::Directory) => checked.directories += 1,
                    Some(_) => checked.files += 1,
                    None => {}
                }
                has_root |= ino == Ino::ROOT && inode.is_some();
                if !judge(ino, inode, names, is_directory).is_empty() {
                    suspects.insert(ino);
                }
            });
        }
        if !has_root {
            suspects.insert(Ino::ROOT);
        }
        Ok(suspects)
    }

    /// A second look, alone and under a watch; gives the problems.
    async fn look_at_names_again(&mut self, suspects: BTreeSet<Ino>) -> Result<Vec<Wrong>, Failure> {
        let suspects: Vec<Ino> = suspects.into_iter().collect();
        let (mut wrong, mut in_motion) = (Vec::new(), 0);
        for batch in suspects.chunks(CHECK_INODES_MAX) {
            let mut left = batch.to_vec();
            for look in 0..LOOKS_MAX {
                if left.is_empty() {
                    break;
                }
                if look > 0 {
                    self.core.io.sleep(LOOK_PAUSE).await;
                }
                left = self.look_at_some_names(left, &mut wrong).await?;
            }
            in_motion += left.len();
            if wrong.len() >= FINDINGS_MAX {
                self.has_too_many();
                break;
            }
        }
        if in_motion > 0 {
            let text = format!(
                "{in_motion} inodes were changed, or had a rename, link or removal under way, each of {LOOKS_MAX} times that they were looked at: nothing is said of them"
            );
            self.checked.notes.push(text);
        }
        Ok(wrong)
    }

    /// Looks at some inodes and their names while nothing happens to them; gives those to which something
    /// happened.
    async fn look_at_some_names(&mut self, inos: Vec<Ino>, wrong: &mut Vec<Wrong>) -> Result<Vec<Ino>, Failure> {
        self.begin_watch(&inos).await?;
        let shards = self.map.shards();
        let entries = self.map.members().map(|server| self.entries(server, 0..shards, &inos));
        let (inodes, told) = try_join(self.those(&inos), try_join_all(entries)).await?;
        let (mut entries, mut moving) = (Vec::new(), BTreeSet::new());
        for (some, under_way) in told {
            entries.extend(some);
            moving.extend(under_way);
        }
        // A directory that is gone by now, while names in it are still there.
        let parents: BTreeSet<Ino> = entries.iter().map(|entry| entry.parent).collect();
        let parents: Vec<Ino> = parents.into_iter().collect();
        let found = self.those(&parents).await?;
        let alive = found.iter().filter(|inode| inode.kind == FileKind::Directory);
        let alive: BTreeSet<Ino> = alive.map(|inode| inode.ino).collect();
        moving.extend(self.end_watch().await?);
        moving.extend(inodes.iter().filter(|inode| inode.is_under_way).map(|inode| inode.ino));
        let mut rows = Rows { inodes, entries };
        let mut ways = Vec::new();
        let mut seen = BTreeSet::new();
        rows.each(|ino, inode, names| {
            if moving.contains(&ino) {
                return;
            }
            seen.insert(ino);
            wrong.extend(judge(ino, inode, names, |dir| alive.contains(&dir)));
            if let Some(dir) = inode.filter(|inode| inode.kind == FileKind::Directory) {
                ways.push((ino, dir.parent));
            }
        });
        for ino in circles(&ways) {
            let found = "lies in itself: no way leads from it to the root".into();
            wrong.push(Wrong { kind: "unreachable", ino, entry: None, found });
        }
        // A number with neither inode nor name is free, except the root's.
        if inos.contains(&Ino::ROOT) && !seen.contains(&Ino::ROOT) && !moving.contains(&Ino::ROOT) {
            wrong.extend(judge(Ino::ROOT, None, &[], |_| true));
        }
        Ok(inos.into_iter().filter(|ino| moving.contains(ino)).collect())
    }

    /// A first look at all data; gives what may be wrong.
    async fn look_at_data(&mut self) -> Result<Vec<DataSuspect>, Failure> {
        let looks = self.map.members().map(|server| self.look_at_data_of(server));
        let mut suspects = Vec::new();
        for (bytes, some) in try_join_all(looks).await? {
            self.checked.bytes += bytes;
            suspects.extend(some);
        }
        Ok(suspects)
    }

    async fn look_at_data_of(&self, server: ServerIndex) -> Result<(u64, Vec<DataSuspect>), Failure> {
        let (mut bytes, mut suspects) = (0, Vec::new());
        let mut place = Some(DataPlace::default());
        while let Some(from) = place {
            let began_ns = self.core.io.mono_ns();
            let step = self.data(server, from, None).await?;
            bytes += step.bytes;
            let has_room = |suspects: &Vec<DataSuspect>| suspects.len() <= FINDINGS_MAX;
            for damaged in step.damaged {
                if has_room(&suspects) {
                    suspects.push(DataSuspect { server, place: damaged.place, damaged: Some(damaged) });
                }
            }
            for place in step.strays {
                // A file with many chunks here comes along once in each step.
                let is_known = |known: &DataSuspect| known.damaged.is_none() && known.place.ino == place.ino;
                if has_room(&suspects) && !suspects.iter().any(is_known) {
                    suspects.push(DataSuspect { server, place, damaged: None });
                }
            }
            self.keep_pace(step.bytes, began_ns).await;
            place = step.next;
        }
        Ok((bytes, suspects))
    }

    /// Waits until so many bytes may have been compared since.
    async fn keep_pace(&self, bytes: u64, began_ns: u64) {
        let Some(rate) = self.options.bytes_per_second else { return };
        let share = (rate as f64 / self.map.servers.len() as f64).max(1.0);
        let due = Duration::from_secs_f64(bytes as f64 / share);
        let taken = Duration::from_nanos(self.core.io.mono_ns() - began_ns);
        if due > taken {
            self.core.io.sleep(due - taken).await;
        }
    }

    /// A second look at data; gives the problems.
    async fn look_at_data_again(&mut self, suspects: Vec<DataSuspect>) -> Result<Vec<DataSuspect>, Failure> {
        if suspects.len() > FINDINGS_MAX {
            self.has_too_many();
        }
        let mut wrong = Vec::new();
        for suspect in suspects.into_iter().take(FINDINGS_MAX) {
            let DataSuspect { server, place, damaged } = suspect;
            let step = self.data(server, DataPlace::default(), Some(place)).await?;
            let again = match damaged {
                Some(_) => step.damaged.into_iter().next().map(Some),
                None if !step.strays.contains(&place) => None,
                // Its home may still be telling others that it is gone.
                None => self.those(&[place.ino]).await?.is_empty().then_some(None),
            };
            wrong.extend(again.map(|damaged| DataSuspect { server, place, damaged }));
        }
        Ok(wrong)
    }

    fn has_too_many(&mut self) {
        let text = format!("{FINDINGS_MAX} findings and more: what else looked wrong was not looked at again");
        if !self.checked.notes.contains(&text) {
            self.checked.notes.push(text);
        }
    }

    fn strange(&self, server: ServerIndex, what: &str) -> Failure {
        Failure::new(Code::Malformed, format!("server {server} answered {what} with something else"))
    }
}
