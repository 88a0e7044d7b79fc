//! What must be true of a volume at rest: first as clients see it, then, when they have gone, as
//! the servers' tables have it.

use crate::cluster::Cluster;
use crate::plan::{Mix, Plan};
use crate::work::{Board, ROOT, Worker, appends, files, listing, locks, shared};
use aze_client::{CheckOptions, Checked, Client};
use aze_proto::limits::SESSION_GRACE_MS;
use aze_proto::predicate::Predicate;
use aze_proto::{Attr, Code, Failure, FileKind, Ino, Name, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest read of a whole file.
const WHOLE: usize = 1 << 20;

/// After the clients have gone: until their opens are dropped and what only they kept is deleted.
const GRACE: Duration = Duration::from_millis(SESSION_GRACE_MS + 5_000);

/// The checks after a run that has been healed.
pub async fn after(cluster: &Arc<Cluster>, plan: &Plan, board: &Arc<Board>, clients: &[Arc<Client>]) {
    let alive = if plan.mix == Mix::ClientDeath { 1 } else { clients.len() };
    for (index, client) in clients.iter().enumerate().take(alive) {
        let worker = Worker::new(cluster, board, (index, client.clone()), "auditor", 0);
        // Who was out of reach for longer than its grace starts anew, as a process would.
        let worker = renewed(cluster, worker, index).await;
        let lost = cluster.on_client(index, look(worker, plan.clone()));
        // The node is alive: so the task ends.
        let _ = lost.await;
    }
    let census = Census::take(cluster);
    if plan.mix != Mix::Restarts {
        for (index, client) in clients.iter().enumerate().take(1) {
            let worker =
                renewed(cluster, Worker::new(cluster, board, (index, client.clone()), "auditor", 0), index).await;
            compare(&worker, &census).await;
        }
    }
    for (index, client) in clients.iter().enumerate().take(alive) {
        let (client, board) = (client.clone(), board.clone());
        let closed = cluster.on_client(index, async move { client.close().await });
        if let Ok(Err(failure)) = closed.await
            && failure.code != Code::Expired
        {
            board.violation(format!("client {index} could not end its session: {failure}"));
        }
    }
    cluster.sim.sleep(GRACE).await;
    Census::take(cluster).check(plan, board);
    if let Ok(client) = cluster.connect(0).await {
        looked_through(plan, board, "at rest", client.check(&ROOT, CheckOptions::default()).await);
    }
}

/// What a check of the volume in use says: nothing may be wrong but what went with a server.
pub fn looked_through(plan: &Plan, board: &Board, when: &str, checked: Result<Checked, Failure>) {
    match checked {
        Ok(checked) if plan.mix != Mix::Restarts => {
            for finding in checked.findings {
                board.violation(format!("{when} the check says: {}: {}", finding.kind, finding.text));
            }
            if when == "at rest" && !checked.notes.is_empty() {
                board.violation(format!("at rest the check says: {:?}", checked.notes));
            }
        }
        Ok(_) => {}
        Err(failure)
            if when != "at rest"
                && (plan.mix.loses_answers()
                    || (plan.slots_move || plan.servers_leave || plan.servers_join) && failure.code == Code::Busy) =>
        {
            board.tell(|| format!("{when} no check is possible: {failure}"));
        }
        Err(failure) => board.violation(format!("{when} no check is possible: {failure}")),
    }
}

/// The tables of a volume that was never used.
pub fn tables(cluster: &Cluster, plan: &Plan, board: &Board) {
    Census::take(cluster).check(plan, board);
}

/// A client whose session has ended somewhere, since it was out of reach for longer than its grace,
/// is replaced by a new one, as a new process would be.
async fn renewed(cluster: &Arc<Cluster>, worker: Worker, index: usize) -> Worker {
    let ended = |(_, answer): &(_, Result<_, Failure>)| matches!(answer, Err(failure) if failure.code == Code::Expired);
    if !worker.board.mix().loses_answers() || !worker.client.status().await.iter().any(ended) {
        return worker;
    }
    match cluster.connect(index).await {
        Ok(client) => Worker { client, ..worker },
        Err(failure) => {
            worker.board.violation(format!("client {index} cannot connect again after healing: {failure}"));
            worker
        }
    }
}

/// One client's look at everything.
async fn look(worker: Worker, plan: Plan) {
    for slot in worker.board.files() {
        if let Err(failure) = files::check(&worker, &slot, 0, WHOLE).await {
            judge_missing(&worker, &plan, &slot, &failure);
        }
    }
    if !plan.mix.loses_answers() {
        locks::check_free(&worker).await;
    }
    if let Err(failure) = appends::check(&worker).await
        && !(plan.mix == Mix::Restarts && matches!(failure.code, Code::Lost))
    {
        worker.board.violation(format!("{}: what was appended cannot be read after healing: {failure}", worker.who));
    }
    for slot in worker.board.listings() {
        listing::check(&worker, &slot, 11).await;
    }
    live_again(&worker).await;
}

fn judge_missing(worker: &Worker, plan: &Plan, slot: &crate::work::FileSlot, failure: &Failure) {
    let bytes = slot.bytes.lock();
    let must_be_there = !bytes.unlinked && bytes.is_written();
    let lost = plan.mix == Mix::Restarts && failure.code == Code::Lost;
    let absent = matches!(failure.code, Code::NotFound | Code::Stale);
    if !lost && (must_be_there || !absent) {
        worker.board.violation(format!(
            "{}: {} after healing: {failure}",
            worker.who,
            String::from_utf8_lossy(&slot.path)
        ));
    }
}

/// A healed cluster serves: a new directory, a new file that is written, read and removed.
async fn live_again(worker: &Worker) {
    // Names in the root that a server lost are lost for good: one that is not is found soon.
    for attempt in 0..32 {
        let name = Name::new(format!("new {} {attempt}", worker.who).as_bytes()).expect("a label is a name");
        let dir = shared::new_file(FileKind::Directory, true);
        let made = worker
            .call(|| format!("mkdir '{name}' after healing"), worker.client.create(&ROOT, Ino::ROOT, &name, &dir))
            .await;
        match made {
            Err(failure) if failure.code == Code::Lost => continue,
            Err(failure) => {
                return worker
                    .board
                    .violation(format!("{}: a healed cluster makes no directory: {failure}", worker.who));
            }
            Ok(made) => {
                if let Err(failure) = try_all(worker, made.attr.ino, &name).await {
                    worker.board.violation(format!("{}: a healed cluster does not serve: {failure}", worker.who));
                }
                return;
            }
        }
    }
    worker.board.violation(format!("{}: no name is left in the root directory", worker.who));
}

async fn try_all(worker: &Worker, dir: Ino, name: &Name) -> Result<(), Failure> {
    let client = &worker.client;
    for index in 0..8 {
        let inner = Name::new(format!("f{index}").as_bytes()).expect("a label is a name");
        let made = client.create(&ROOT, dir, &inner, &shared::new_file(FileKind::File, true)).await?;
        let file = client.open(&ROOT, made.attr.ino, aze_client::Access { read: true, write: true }).await?;
        let data = crate::bytes::data_of(index + 1, 0, 100_000);
        file.write(0, &data).await?;
        if file.read(0, data.len()).await? != data {
            worker.board.violation(format!("{}: what was written after healing is not read back", worker.who));
        }
        file.close().await?;
        client.unlink(&ROOT, dir, &inner).await?;
    }
    client.rmdir(&ROOT, Ino::ROOT, name).await
}

/// All that the servers keep.
struct Census {
    inodes: BTreeMap<Ino, Attr>,
    /// Directory → its entries.
    tree: BTreeMap<Ino, BTreeMap<Name, (Ino, FileKind)>>,
    /// Entries counted by the servers.
    entries: u64,
    opens: Vec<(Ino, u64)>,
    chunks: Vec<(Ino, u64)>,
    reserved: BTreeSet<(Ino, u64)>,
    locks: u64,
    running: u64,
    in_doubt: u64,
    file_locks: u64,
    /// How many servers serve each shard, and how many servers give or take a slot.
    served: BTreeMap<ShardId, u32>,
    moving: u32,
    /// The shards that the newest map gives to servers that run.
    expected: BTreeSet<ShardId>,
}

impl Census {
    fn take(cluster: &Cluster) -> Census {
        let servers = cluster.servers();
        let mut census = Census {
            inodes: BTreeMap::new(),
            tree: BTreeMap::new(),
            entries: servers.iter().map(|server| server.status().entries).sum(),
            opens: Vec::new(),
            chunks: Vec::new(),
            reserved: BTreeSet::new(),
            locks: 0,
            running: 0,
            in_doubt: 0,
            file_locks: 0,
            served: BTreeMap::new(),
            moving: 0,
            expected: BTreeSet::new(),
        };
        let newest = servers.iter().map(|server| server.map()).max_by_key(|map| map.epoch);
        let running: BTreeSet<u16> = (0..cluster.places()).filter(|at| cluster.server(*at).is_some()).collect();
        if let Some(map) = newest {
            let is_served = |shard: &ShardId| map.server_of(*shard).is_some_and(|server| running.contains(&server.0));
            census.expected = (0..map.shards()).map(ShardId).filter(is_served).collect();
        }
        for server in &servers {
            let contents = server.contents();
            census.inodes.extend(contents.inodes.into_iter().map(|attr| (attr.ino, attr)));
            census.opens.extend(contents.opens);
            census.chunks.extend(contents.chunks);
            census.reserved.extend(contents.reserved);
            census.locks += contents.locks;
            census.running += contents.running;
            census.in_doubt += contents.in_doubt;
            census.file_locks += contents.file_locks;
            contents.shards.into_iter().for_each(|shard| *census.served.entry(shard).or_default() += 1);
            census.moving += u32::from(contents.is_moving);
        }
        let mut open = vec![Ino::ROOT];
        while let Some(dir) = open.pop() {
            let entries: BTreeMap<_, _> = servers
                .iter()
                .flat_map(|server| server.entries_of(dir))
                .map(|(name, ino, kind)| (name, (ino, kind)))
                .collect();
            let subdirs = entries.values().filter(|(_, kind)| *kind == FileKind::Directory).map(|(ino, _)| *ino);
            open.extend(subdirs.filter(|ino| !census.tree.contains_key(ino)));
            census.tree.insert(dir, entries);
        }
        census
    }

    fn names_of(&self) -> BTreeMap<Ino, u32> {
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        for (ino, _) in self.tree.values().flat_map(|entries| entries.values()) {
            *names.entry(*ino).or_default() += 1;
        }
        names
    }

    /// The tables of a volume at rest, without clients.
    fn check(&self, plan: &Plan, board: &Board) {
        let lossy = plan.mix == Mix::Restarts;
        let found = |text: String| board.violation(format!("at rest: {text}"));
        let twice = self.served.iter().filter(|(_, servers)| **servers > 1).count();
        let missing = self.expected.iter().filter(|shard| !self.served.contains_key(shard)).count();
        if twice > 0 || missing > 0 || self.moving > 0 {
            found(format!(
                "{twice} shards are served by several servers, {missing} by none, and {} servers move a slot",
                self.moving
            ));
        }
        if self.locks > 0 || self.running > 0 {
            found(format!("{} names are locked and {} changes are being worked on", self.locks, self.running));
        }
        if self.in_doubt > 0 && !lossy {
            found(format!("{} links are in doubt between names and inodes", self.in_doubt));
        }
        if self.file_locks > 0 {
            found(format!("{} locks are left after all sessions ended", self.file_locks));
        }
        if !self.opens.is_empty() {
            found(format!("opens are left after all sessions ended: {:?}", self.opens));
        }
        let connected: u64 = self.tree.values().map(|entries| entries.len() as u64).sum();
        if connected != self.entries && !lossy {
            found(format!("{} entries, of which only {connected} hang together with the root", self.entries));
        }
        self.check_entries(plan, &found);
        self.check_inodes(plan, &found);
        self.check_chunks(plan, &found);
    }

    /// Every entry leads to an inode of its kind; every directory has one name and its parent.
    fn check_entries(&self, plan: &Plan, found: &dyn Fn(String)) {
        for (dir, entries) in &self.tree {
            for (name, (ino, kind)) in entries {
                match self.inodes.get(ino) {
                    // It may have been on a server that lost everything.
                    None if plan.mix == Mix::Restarts => {}
                    None => found(format!("'{name}' in {dir} leads to inode {ino}, which is not there")),
                    Some(attr) if attr.kind != *kind => {
                        found(format!("'{name}' in {dir} is a {kind:?} that is a {:?}", attr.kind))
                    }
                    Some(attr) if *kind == FileKind::Directory && attr.parent != *dir => {
                        found(format!("directory {ino} is in {dir} and believes to be in {}", attr.parent));
                    }
                    Some(_) => {}
                }
            }
        }
        let twice = self.names_of().into_iter().filter(|(ino, count)| *count > 1 && self.tree.contains_key(ino));
        for (ino, count) in twice {
            found(format!("directory {ino} has {count} names"));
        }
    }

    /// Every inode has as many names as it counts, and at least one.
    fn check_inodes(&self, plan: &Plan, found: &dyn Fn(String)) {
        let names = self.names_of();
        for (ino, attr) in self.inodes.iter().filter(|(ino, _)| **ino != Ino::ROOT) {
            let count = names.get(ino).copied().unwrap_or(0);
            if attr.kind == FileKind::Directory {
                if count == 0 && plan.mix != Mix::Restarts {
                    found(format!("directory {ino} has no name"));
                }
            } else if count > attr.links {
                found(format!("inode {ino} has {count} names and counts {}", attr.links));
            } else if attr.links == 0 || count < attr.links && plan.mix != Mix::Restarts {
                // Names that were lost with their server are still counted.
                found(format!("inode {ino} of kind {:?} has {count} names and counts {}", attr.kind, attr.links));
            }
        }
    }

    /// Every chunk belongs to a file that reaches so far.
    fn check_chunks(&self, plan: &Plan, found: &dyn Fn(String)) {
        let mut gone: BTreeSet<Ino> = BTreeSet::new();
        for (ino, chunk) in &self.chunks {
            match self.inodes.get(ino) {
                None => {
                    gone.insert(*ino);
                }
                // A reservation may lie there, and a write that was never answered may have stored bytes there.
                Some(attr)
                    if chunk << attr.chunk_bits >= attr.size.max(1)
                        && !self.reserved.contains(&(*ino, *chunk))
                        && !plan.mix.loses_answers()
                        && plan.mix != Mix::ClientDeath =>
                {
                    found(format!("chunk {chunk} of inode {ino} is beyond its length {}", attr.size));
                }
                Some(_) => {}
            }
        }
        if !gone.is_empty() && plan.mix != Mix::Restarts {
            found(format!("chunks of files that are not there: {gone:?}"));
        }
    }
}

/// What a client is told against what the tables have.
async fn compare(worker: &Worker, census: &Census) {
    let board = &worker.board;
    for (dir, entries) in &census.tree {
        let call = listing::list_all(&worker.client, *dir, 5);
        let Ok(mut listed) = worker.call(|| format!("list {dir} at rest"), call).await else { continue };
        listed.sort();
        let expected: Vec<Vec<u8>> = entries.keys().map(|name| name.as_bytes().to_vec()).collect();
        if listed != expected {
            board.violation(format!("directory {dir} is listed as {listed:?} and has {expected:?}"));
        }
        let Ok(attr) = worker.call(|| format!("getattr {dir} at rest"), worker.client.getattr(&ROOT, *dir)).await
        else {
            continue;
        };
        let subdirs = entries.values().filter(|(_, kind)| *kind == FileKind::Directory).count() as u32;
        if (attr.size, attr.links) != (entries.len() as u64, 2 + subdirs) {
            let has = format!("{} entries, {subdirs} of them directories", entries.len());
            board.violation(format!("directory {dir} has {has}, and says size {} and links {}", attr.size, attr.links));
        }
    }
    compare_search(worker, census).await;
}

/// find and du against the tables.
async fn compare_search(worker: &Worker, census: &Census) {
    let mut found: Vec<Ino> = Vec::new();
    let mut each = |path: aze_client::FoundPath| found.push(path.ino);
    let everything = Predicate::default();
    let call = worker.client.find(&ROOT, Ino::ROOT, &everything, &mut each);
    if worker.call(|| "find at rest".into(), call).await.is_ok() {
        found.sort();
        let mut expected: Vec<Ino> =
            census.tree.values().flat_map(|entries| entries.values().map(|(ino, _)| *ino)).collect();
        expected.sort();
        // The answer may include the root itself or not.
        found.retain(|ino| *ino != Ino::ROOT);
        if found != expected {
            worker.board.violation(format!("find gives {found:?}, and there are {expected:?}"));
        }
    }
    let Ok(sum) = worker.call(|| "usage at rest".into(), worker.client.usage(&ROOT, Ino::ROOT, None)).await else {
        return;
    };
    let files: Vec<&Attr> = census
        .names_of()
        .keys()
        .filter_map(|ino| census.inodes.get(ino))
        .filter(|attr| attr.kind != FileKind::Directory)
        .collect();
    let expected = (files.len() as u64, files.iter().map(|attr| attr.size).sum::<u64>());
    if (sum.files, sum.bytes) != expected {
        worker
            .board
            .violation(format!("usage says {} files of {} bytes, and there are {expected:?}", sum.files, sum.bytes));
    }
}
