//! Staging in: files of the place become files of the volume, while others change the source and programs change the copies.
//!
//! Of the source each state is known, with the moments between which a path led to it. Of a copy it is known what its line says, what
//! programs have found there first, and what they have changed since.

use super::job::{Ended, What as Task};
use super::place::Window;
use super::programs::{Content, INSIDE, Known, NEVER, ROOT, hash_of};
use super::users::read_all;
use super::{ASIDE, Place, Run, StagingPlan, shown};
use aze_client::{Access, Client};
use aze_copy::stage::ledger;
use aze_copy::stage::standing::Standing;
use aze_copy::stage::state::Done;
use aze_copy::tree::{join, parent};
use aze_io::sim::SimRng;
use aze_proto::attr::{Attr, Change, FileKind, SetTime};
use aze_proto::error::Class;
use aze_proto::{Code, Failure, Ino};
use aze_receipt::line::What;
use aze_receipt::{Head, Object, Removed, when};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Names of files in a directory of the source.
const NAMES: u64 = 6;

/// How often a check asks again that was not answered, since servers are killed meanwhile.
const TRIES: u32 = 60;

/// Entries of a directory that a check lists.
const ENTRIES_MAX: usize = 1000;

const READ: Access = Access { read: true, write: false };

/// The directory that is staged.
pub(super) fn source() -> String {
    format!("{ASIDE}/run")
}

/// Contents of a file of the source: solid, with holes, or none.
fn contents(rng: &mut SimRng) -> Vec<u8> {
    let fill = |rng: &mut SimRng, len: u64| -> Vec<u8> {
        rng.u64().to_le_bytes().iter().copied().cycle().take(len as usize).collect()
    };
    match rng.below(8) {
        0 => Vec::new(),
        1 | 2 => {
            // Two chunks of a receipt, now and then.
            let len = if rng.chance(200_000) { 4_300_000 } else { 20_000 + rng.below(200_000) };
            let mut bytes = vec![0; len as usize];
            for _ in 0..rng.below(4) {
                let data_len = 1 + rng.below(9000).min(len - 1);
                let at = rng.below(len - data_len + 1) as usize;
                bytes[at..at + data_len as usize].copy_from_slice(&fill(rng, data_len));
            }
            bytes
        }
        _ => {
            let len = 1 + rng.below(150_000);
            fill(rng, len)
        }
    }
}

impl StagingPlan {
    /// The plan of a seed for staging in.
    pub fn inward(seed: u64) -> StagingPlan {
        let mut rng = SimRng::new(seed, "staging in");
        let is_persistent = rng.chance(400_000);
        StagingPlan {
            seed,
            is_inward: true,
            servers: rng.between(1 + u64::from(is_persistent), 3) as u16,
            programs: rng.between(1, 3) as usize,
            durability: is_persistent.then_some(aze_proto::message::Durability::Fsync),
            is_over_directory: false,
            is_tight: false,
            delete: rng.chance(300_000),
            atomic: rng.chance(150_000),
            releases: false,
            closed_only: false,
            rounds: false,
            nodes: 0,
            others: rng.chance(800_000),
            power_cuts: false,
            fails: rng.chance(400_000),
            is_odd: false,
            links: rng.chance(600_000),
            kills: rng.chance(800_000),
            is_clock_ahead: false,
            without: None,
            switches: aze_server::sabotage::Switches::default(),
        }
    }
}

/// Makes the source.
pub(super) fn prepare(plan: &StagingPlan, place: &Place, rng: &mut SimRng) {
    place.put_dir(&source());
    for me in 0..plan.programs {
        let dir = format!("{}/w{me}", source());
        place.put_dir(&dir);
        for number in 0..NAMES - 1 {
            place.put_file(&format!("{dir}/n{number}"), contents(rng));
        }
        if plan.links {
            place.put_name(&format!("{dir}/n1"), &format!("{dir}/n{}", NAMES - 1));
            place.replace(format!("{dir}/to").as_bytes(), FileKind::Symlink, b"n0".to_vec());
        }
    }
}

impl Run {
    /// Others change the source.
    pub(super) fn change_source(&self, rng: &mut SimRng) {
        for _ in 0..rng.below(4) {
            let dir = format!("{}/w{}", source(), rng.below(self.plan.programs as u64));
            let name = |rng: &mut SimRng| format!("{dir}/n{}", rng.below(NAMES)).into_bytes();
            let (path, other) = (name(rng), name(rng));
            self.counts.lock().underneath += 1;
            match rng.below(12) {
                0..=3 => {
                    // In place, as far as it goes, and not as a whole.
                    let (data, at) = (rng.u64().to_le_bytes(), rng.u64());
                    self.place.rewrite(&path, |bytes| {
                        let at = at as usize % (bytes.len() + 1);
                        let len = bytes.len() - at;
                        bytes[at..].copy_from_slice(&data.iter().copied().cycle().take(len).collect::<Vec<_>>());
                    });
                }
                4 => {
                    let data = rng.u64().to_le_bytes();
                    self.place.rewrite(&path, |bytes| bytes.extend_from_slice(&data));
                }
                5 => {
                    let cut = rng.u64();
                    self.place.rewrite(&path, |bytes| bytes.truncate(cut as usize % (bytes.len() + 1)));
                }
                6 | 7 => self.place.replace(&path, FileKind::File, contents(rng)),
                8 if path != other => self.place.move_to(&path, &other),
                9 => self.place.unlink(&path),
                10 if self.plan.links && path != other => self.place.add_link(&path, &other),
                11 if self.plan.links => self.place.replace(
                    &path,
                    FileKind::Symlink,
                    rng.u64().to_le_bytes().map(|byte| b'a' + byte % 26).to_vec(),
                ),
                _ => {
                    let (mode, back) = (0o600 + rng.below(0o77) as u32, rng.below(1 << 40));
                    let time = self.place.now_at(&path).map(|(.., state)| aze_proto::ids::Time(state.mtime.0 - back));
                    self.place.set_attributes(&path, Some(mode), time);
                }
            }
        }
    }

    /// Asks until servers answer.
    async fn insist<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut tries = 0;
        loop {
            match ask().await {
                Err(failure)
                    if failure.code.class() != Class::Caller && failure.code != Code::Stale && tries < TRIES =>
                {
                    tries += 1;
                    self.cluster.sim.sleep(Duration::from_millis(200)).await;
                }
                answer => return answer,
            }
        }
    }

    /// A client that looks at the volume.
    pub(super) async fn looker(&self) -> Arc<Client> {
        let node = self.next_node();
        self.insist(|| self.cluster.connect(node)).await.expect("a client connects")
    }

    async fn read_inode(&self, client: &Client, ino: Ino) -> Result<(Attr, Vec<u8>), Failure> {
        self.insist(|| async {
            let file = client.open(&ROOT, ino, READ).await?;
            let attr = client.getattr(&ROOT, ino).await?;
            let bytes = read_all(&file, attr.size).await?;
            file.close().await?;
            Ok((attr, bytes))
        })
        .await
    }

    fn in_source(path: &[u8]) -> Vec<u8> {
        if path.is_empty() { source().into_bytes() } else { join(source().as_bytes(), path) }
    }

    /// A line of an object that was staged in: the source had it, as a whole, and so has the volume, but for what programs have changed
    /// since.
    pub(super) async fn check_copy(&self, client: &Client, head: &Head, finished: &str, object: &Object) {
        let (from, to) = (Run::in_source(&object.path), Run::at_inside(&object.path));
        let wrong = |why: String| self.wrong(format!("line {} checked {}: {why}", shown(&to), object.checked));
        let fits = |kind: FileKind, state: &super::place::Version| match &object.what {
            What::File { size, hash, .. } => {
                kind == FileKind::File
                    && state.bytes.len() as u64 == *size
                    && when(state.mtime.0) == object.mtime
                    && state.mode == object.mode
                    && hash_of(&state.bytes) == *hash
            }
            What::Link { target } => kind == FileKind::Symlink && *state.bytes == *target,
            What::Directory => kind == FileKind::Directory,
        };
        // An attempt may have been broken off after it, and a later one has gone on.
        let read = Window { from: self.start_before(&object.checked), to: object.checked.clone() };
        if !self.place.was(&from, &read, fits) {
            wrong("the source did not have that between the attempt's start and that moment".into());
        }
        if !self.place.was(&from, &Window { from: head.started.clone(), to: finished.into() }, fits) {
            wrong("the source did not have that in the attempt that has signed it".into());
        }
        let led = self.insist(|| client.resolve(&ROOT, &to[..], false)).await;
        let began = self.place.now_ns();
        let read = match object.what {
            What::File { .. } => Some(self.read_inode(client, Ino(object.inode)).await),
            _ => None,
        };
        let target = match (&object.what, &led) {
            (What::Link { .. }, Ok(attr)) if attr.kind == FileKind::Symlink => {
                self.insist(|| client.readlink(&ROOT, attr.ino)).await.ok()
            }
            _ => None,
        };
        let is_late = |at: u64| when(at).as_str() >= object.checked.as_str();
        let (is_renamed, is_untouched, known) = {
            let copies = &self.model.lock().copies;
            (
                copies.is_renamed(&to, is_late),
                copies.is_untouched(object.inode),
                copies.inodes.get(&object.inode).cloned(),
            )
        };
        let is_there = led.as_ref().is_ok_and(|attr| attr.ino.0 == object.inode);
        if !is_renamed && !is_there {
            let found = led.map(|attr| attr.ino);
            wrong(format!("no program has touched the name, and it does not lead there: {found:?}"));
        }
        if let What::Link { target: staged } = &object.what
            && !is_renamed
            && target.as_ref() != Some(staged)
        {
            wrong("the link leads elsewhere".into());
        }
        let (Some(read), What::File { hash, .. }) = (read, &object.what) else { return };
        let (attr, bytes) = match read {
            Ok(read) => read,
            Err(_) if is_renamed => return,
            Err(failure) => return wrong(format!("it cannot be read: {failure}")),
        };
        let found = hash_of(&bytes);
        match &known {
            Some(known) if known.contents[0].hash != *hash => {
                wrong("a program has found other bytes there before it changed any".into());
            }
            Some(known) if !known.had_at(*hash, &object.checked) => {
                wrong("a program had changed it by then".into());
            }
            // While it was read: it may be a mixture.
            Some(known) if known.contents.iter().any(|content| content.from >= began) => {}
            Some(known) if !known.had_since(began, found) => {
                wrong("it has other bytes than a program has made of it".into());
            }
            None if found != *hash => wrong("it has other bytes, and no program has changed any".into()),
            _ => {}
        }
        if is_untouched && (when(attr.mtime.0) != object.mtime || attr.mode != object.mode) {
            wrong(format!("it has other attributes: {} {:o}", when(attr.mtime.0), attr.mode));
        }
    }

    /// A name that was removed in the volume was not at the source all the time.
    pub(super) fn check_removed_in(&self, head: &Head, removed: &Removed) {
        self.counts.lock().removals += 1;
        let window = Window { from: head.started.clone(), to: removed.when.clone() };
        if !self.place.was_free(&Run::in_source(&removed.path), &window) {
            self.wrong(format!("{} was removed, and the source had it all the time", shown(&removed.path)));
        }
    }

    /// A receipt in which nothing is missing has each name that the source had all the time.
    pub(super) fn check_complete_in(&self, head: &Head, finished: &str, paths: &BTreeSet<Vec<u8>>) {
        let window = Window { from: head.started.clone(), to: finished.into() };
        let root = source();
        for (path, _) in self.place.all_below(root.as_bytes()) {
            let below = &path[root.len() + 1..];
            if !self.place.was_free(&path, &window) && !paths.contains(below) {
                self.wrong(format!("{}: no line, though nothing is missing", shown(&path)));
            }
        }
    }

    /// All of a directory of the volume.
    async fn walk(&self, client: &Client, dir: &[u8]) -> BTreeMap<Vec<u8>, (FileKind, Ino)> {
        let (mut waiting, mut found) = (vec![dir.to_vec()], BTreeMap::new());
        while let Some(dir) = waiting.pop() {
            let listed = self
                .insist(|| async {
                    let ino = client.resolve(&ROOT, &dir[..], true).await?.ino;
                    client.list(&ROOT, ino, 0, ENTRIES_MAX, false).await
                })
                .await;
            let listing = match listed {
                Ok(listing) => listing,
                Err(failure) => {
                    self.wrong(format!("list {}: {failure}", shown(&dir)));
                    continue;
                }
            };
            if listing.more || listing.failure.is_some() {
                self.wrong(format!("list {}: {:?}", shown(&dir), listing.failure));
            }
            for entry in listing.entries {
                let path = join(&dir, entry.name.as_bytes());
                if entry.kind == FileKind::Directory {
                    waiting.push(path.clone());
                }
                found.insert(path, (entry.kind, entry.ino));
            }
        }
        found
    }

    /// A file that a look at the volume does not call dirty is as a line of a receipt says. A file that was staged in,
    /// and that no program has changed, is not dirty.
    async fn check_ledger_in(&self, client: &Client, standing: &Standing) {
        standing.lost.iter().for_each(|trouble| self.wrong(format!("lost: {trouble}")));
        let (ledgers, _) = ledger::all_in(&self.files.ledgers()).unwrap_or_default();
        let entries: BTreeMap<Vec<u8>, Done> = ledgers.into_iter().flat_map(|ledger| ledger.entries).collect();
        for (path, (kind, ino)) in self.walk(client, INSIDE.as_bytes()).await {
            if kind == FileKind::Directory {
                continue;
            }
            let is_dirty = standing.named.contains_key(&path);
            let entry = entries.get(&path[INSIDE.len() + 1..]);
            let attr_and_hash = match kind {
                FileKind::File => self.read_inode(client, ino).await.map(|(attr, bytes)| (attr, hash_of(&bytes))),
                _ => self.insist(|| client.getattr(&ROOT, ino)).await.map(|attr| (attr, hash_of(b""))),
            };
            let Ok((attr, hash)) = attr_and_hash else {
                self.wrong(format!("{}: it cannot be read", shown(&path)));
                continue;
            };
            let is_staged = entry.is_some_and(|Done { object, .. }| {
                let is_same = match &object.what {
                    What::File { hash: staged, .. } => hash == *staged && when(attr.mtime.0) == object.mtime,
                    What::Link { .. } => kind == FileKind::Symlink,
                    What::Directory => false,
                };
                is_same && attr.mode == object.mode && object.inode == ino.0
            });
            if !is_dirty && !is_staged {
                self.wrong(format!("{}: it is not dirty, and no line says what it has", shown(&path)));
            }
            self.counts.lock().staged += u64::from(!is_dirty);
            // Servers that were killed count changes anew; of these files it is not known.
            let is_untouched = self.model.lock().copies.is_untouched(ino.0);
            if is_dirty && is_staged && is_untouched && self.plan.durability.is_none() && !self.is_renamed_near(&path) {
                self.wrong(format!("{}: it was staged in, is untouched, and dirty", shown(&path)));
            }
        }
    }

    /// Whether a program has changed names in the directory: other names of the file may be among them.
    fn is_renamed_near(&self, path: &[u8]) -> bool {
        let dir = parent(path);
        self.model.lock().copies.renamings.iter().any(|one| parent(&one.path) == dir)
    }

    async fn look(&self) -> Option<Box<Standing>> {
        match self.job(Task::Look, None, None).await.0 {
            Ended::Looked(standing) => Some(standing),
            other => {
                self.wrong(format!("the look at what is dirty: {other:?}"));
                None
            }
        }
    }

    /// Faults, changes of the source and programs have ended.
    pub(super) async fn last_part_in(&self) {
        self.tell(|| "the last part".into());
        let client = self.looker().await;
        if let Some(standing) = self.look().await {
            self.check_ledger_in(&client, &standing).await;
        }
        for attempt in 1..=super::LAST_ATTEMPTS_MAX {
            let (ended, failures) = self.job(Task::Stage, None, None).await;
            match ended {
                Ended::Well { missing: 0, .. } => break,
                _ if attempt < super::LAST_ATTEMPTS_MAX => {}
                other => return self.wrong(format!("{attempt} attempts when nothing fails: {other:?}, {failures:?}")),
            }
        }
        let client = self.looker().await;
        self.check_whole_in(&client).await;
        if let Some(standing) = self.look().await {
            self.check_ledger_in(&client, &standing).await;
        }
        self.check_changes_are_dirty(&client).await;
    }

    /// The volume has all that the source has, and nothing hidden.
    async fn check_whole_in(&self, client: &Client) {
        let (root, found) = (source(), self.walk(client, INSIDE.as_bytes()).await);
        let mut inodes: BTreeMap<u64, BTreeSet<Ino>> = BTreeMap::new();
        let mut wanted = BTreeSet::new();
        for (path, _) in self.place.all_below(root.as_bytes()) {
            let (Some((inode, kind, state)), to) = (self.place.now_at(&path), Run::at_inside(&path[root.len() + 1..]))
            else {
                continue;
            };
            wanted.insert(to.clone());
            let Some((there, ino)) = found.get(&to).filter(|(there, _)| *there == kind) else {
                self.wrong(format!("{}: it was staged in, and is not there", shown(&to)));
                continue;
            };
            let is_right = match there {
                FileKind::File => {
                    inodes.entry(inode).or_default().insert(*ino);
                    self.read_inode(client, *ino).await.is_ok_and(|(attr, bytes)| {
                        bytes == *state.bytes && attr.mtime == state.mtime && attr.mode == state.mode
                    })
                }
                FileKind::Symlink => {
                    self.insist(|| client.readlink(&ROOT, *ino)).await.is_ok_and(|target| target == *state.bytes)
                }
                _ => true,
            };
            if !is_right {
                self.wrong(format!("{}: it was staged in, and is something else than the source", shown(&to)));
            }
        }
        if inodes.values().any(|inos| inos.len() > 1) {
            self.wrong("names of one file are several files in the volume".into());
        }
        if self.plan.delete
            && let Some(path) = found.keys().find(|path| !wanted.contains(*path))
        {
            self.wrong(format!("{}: the source does not have it, and it is there after --delete", shown(path)));
        }
        let all = self.walk(client, b"/").await;
        for path in all.keys().filter(|path| path.windows(11).any(|part| part == b"/.aze-stage")) {
            self.wrong(format!("{}: a temporary name is left", shown(path)));
        }
        if self.files.state().exists() {
            self.wrong("the state of a stage that has ended well is left".into());
        }
    }

    /// What a program changes after the last stage is dirty: `aze down` names it.
    async fn check_changes_are_dirty(&self, client: &Client) {
        let found = self.walk(client, INSIDE.as_bytes()).await;
        let files: Vec<(Vec<u8>, Ino)> = found
            .into_iter()
            .filter(|(_, (kind, _))| *kind == FileKind::File)
            .map(|(path, (_, ino))| (path, ino))
            .collect();
        let mut changed = Vec::new();
        for (number, (path, ino)) in files.iter().enumerate().take(9) {
            let done = async {
                match number % 3 {
                    // The same length and the same time.
                    0 => {
                        let before = client.getattr(&ROOT, *ino).await?;
                        let file = client.open(&ROOT, *ino, Access { read: true, write: true }).await?;
                        file.write(before.size.saturating_sub(1), b"\xa5").await?;
                        file.close().await?;
                        let time = Some(SetTime::To { time: before.mtime });
                        client.setattr(&ROOT, *ino, &Change { mtime: time, ..Change::default() }).await.map(drop)
                    }
                    1 => {
                        let mode = Some(0o611);
                        client.setattr(&ROOT, *ino, &Change { mode, ..Change::default() }).await.map(drop)
                    }
                    _ => {
                        let (dir, name) = client.resolve_parent(&ROOT, &path[..]).await?;
                        let to = aze_proto::Name::new(b"renamed").expect("a proper name");
                        client.rename(&ROOT, dir, &name, dir, &to, false).await
                    }
                }
            };
            match done.await {
                Ok(()) if number % 3 == 2 => changed.push(join(&parent(path), b"renamed")),
                Ok(()) => changed.push(path.clone()),
                Err(failure) => self.wrong(format!("change {}: {failure}", shown(path))),
            }
        }
        let Some(standing) = self.look().await else { return };
        for path in changed.iter().filter(|path| !standing.named.contains_key(*path)) {
            self.wrong(format!(
                "{}: a program has changed it since it was staged in, and it is not dirty",
                shown(path)
            ));
        }
        self.counts.lock().dirty += changed.len() as u64;
    }
}

impl Known {
    /// Whether it may have had such a content at a moment.
    fn had_at(&self, hash: aze_receipt::Hash, moment: &str) -> bool {
        let is_then = |content: &&Content| {
            when(content.from).as_str() <= moment && (content.to == NEVER || when(content.to).as_str() >= moment)
        };
        self.contents.iter().filter(is_then).any(|content| content.hash == hash)
    }

    /// Whether it may have had such a content at some time since a moment.
    pub fn had_since(&self, began: u64, hash: aze_receipt::Hash) -> bool {
        let is_since = |content: &&Content| content.to == NEVER || content.to >= began;
        self.contents.iter().filter(is_since).any(|content| content.hash == hash)
    }
}
