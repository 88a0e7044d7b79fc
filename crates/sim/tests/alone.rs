//! A server of a persistent volume dies in the middle of an operation, the others go on, and it comes back alone: the
//! operation is done or not, all clients see the same, and no acknowledged change is missing.

use crate::support::{ROOT, create, name, with_layout};
use aze_client::{Access, CheckOptions, Client, File, Locked, NewFile};
use aze_io::sim::{Faults, Link};
use aze_io::sync::Mutex;
use aze_proto::fields::{Create, Prepare};
use aze_proto::message::{Durability, LockMode, LockSpace, LockSpec, Reply, Request};
use aze_proto::wire::Blob;
use aze_proto::{
    Change, Code, Failure, FileKind, Incarnation, Ino, Name, NameHash, NamespaceEpoch, ServerIndex, SessionId, ShardId,
    TxId,
};
use aze_rpc::{Ask, Caller, CallerConfig, Target};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{Layout, SECRET, VOLUME, client_node};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SERVERS: u16 = 3;

/// Moments of one operation at which a server dies, and the time between two of them.
const MOMENTS: u64 = 24;
const MOMENT: Duration = Duration::from_micros(150);

fn layout(switches: Switches) -> Layout {
    Layout { durability: Some(Durability::Fsync), switches, ..Layout::of(SERVERS) }
}

fn directory() -> NewFile {
    NewFile {
        kind: FileKind::Directory,
        mode: 0o755,
        rdev: 0,
        target: Vec::new(),
        exclusive: true,
        open: None,
        chunk_bits: 0,
        private: false,
    }
}

/// What one round has made before its operation.
struct Round {
    dir: Ino,
    other: Ino,
    file: Ino,
    sub: Ino,
    number: u64,
}

impl Round {
    fn name(&self, text: &str) -> Name {
        name(&format!("{text}{}", self.number))
    }

    async fn begin(client: &Client, number: u64) -> Result<Round, Failure> {
        let make = async |parent: Ino, text: &str| -> Result<Ino, Failure> {
            let made = client.create(&ROOT, parent, &name(&format!("{text}{number}")), &directory()).await?;
            Ok(made.attr.ino)
        };
        let (dir, other) = (make(Ino::ROOT, "dir").await?, make(Ino::ROOT, "other").await?);
        let sub = make(dir, "sub").await?;
        make(other, "victim").await?;
        let file = create(client, dir, &format!("file{number}")).await;
        file.write(0, &[7; 150_000]).await?;
        let second = create(client, other, &format!("second{number}")).await;
        second.write(0, &[9; 10]).await?;
        second.close().await?;
        let ino = file.attr().ino;
        file.close().await?;
        Ok(Round { dir, other, file: ino, sub, number })
    }
}

/// The operations in whose middle a server dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Create,
    Unlink,
    Rename,
    Replace,
    MoveDirectory,
    ReplaceDirectory,
    Exchange,
    Rmdir,
    Link,
    UnlinkLink,
    Truncate,
    Write,
    Append,
    Chmod,
}

const ALL: [What; 14] = [
    What::Create,
    What::Unlink,
    What::Rename,
    What::Replace,
    What::MoveDirectory,
    What::ReplaceDirectory,
    What::Exchange,
    What::Rmdir,
    What::Link,
    What::UnlinkLink,
    What::Truncate,
    What::Write,
    What::Append,
    What::Chmod,
];

impl What {
    async fn work(self, client: &Arc<Client>, round: &Round) -> Result<(), Failure> {
        let Round { dir, other, file, sub, .. } = *round;
        let at = |text: &str| round.name(text);
        match self {
            What::Create => {
                let open = NewFile { kind: FileKind::File, ..directory() };
                client.create(&ROOT, other, &at("new"), &open).await.map(drop)
            }
            What::Unlink => client.unlink(&ROOT, dir, &at("file")).await,
            What::Rename => client.rename(&ROOT, dir, &at("file"), other, &at("moved"), false).await,
            What::Replace => client.rename(&ROOT, dir, &at("file"), other, &at("second"), false).await,
            What::MoveDirectory => client.rename(&ROOT, dir, &at("sub"), other, &at("moved"), false).await,
            What::ReplaceDirectory => client.rename(&ROOT, dir, &at("sub"), other, &at("victim"), false).await,
            What::Exchange => client.exchange(&ROOT, dir, &at("sub"), other, &at("second")).await,
            What::Rmdir => client.rmdir(&ROOT, dir, &at("sub")).await,
            What::Link => client.link(&ROOT, file, other, &at("link")).await.map(drop),
            What::UnlinkLink => {
                client.link(&ROOT, file, other, &at("link")).await?;
                client.unlink(&ROOT, dir, &at("file")).await
            }
            What::Truncate => client.truncate(&ROOT, file, 3, None).await.map(drop),
            What::Write | What::Append => {
                let open = client.open(&ROOT, file, Access { read: true, write: true }).await?;
                let written = match self {
                    What::Write => open.write(1000, &[8; 140_000]).await,
                    _ => open.append(&[8; 140_000]).await.map(drop),
                };
                // Given up where its server is away.
                let _ = open.close().await;
                written
            }
            What::Chmod => {
                let change = Change { mode: Some(0o700), ..Change::default() };
                client.setattr(&ROOT, sub, &change).await.map(drop)
            }
        }
    }
}

/// All paths below a directory, with their inodes.
async fn tree(client: &Client, round: &Round) -> Result<BTreeMap<String, Ino>, Failure> {
    let mut all = BTreeMap::new();
    for (dir, text) in [(round.dir, "dir"), (round.other, "other")] {
        for wanted in ["file", "sub", "second", "victim", "moved", "link", "new"] {
            match client.lookup(&ROOT, dir, &round.name(wanted)).await {
                Ok(attr) => drop(all.insert(format!("{text}/{wanted}"), attr.ino)),
                Err(failure) if failure.code == Code::NotFound => {}
                Err(failure) => return Err(failure.during(format!("{text}/{wanted}"))),
            }
        }
    }
    Ok(all)
}

/// Kills each server at each moment of an operation, and brings it back; gives the findings.
async fn rounds(cluster: &Arc<Cluster>, client: &Arc<Client>, what: What) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut number = 0;
    for server in 0..SERVERS {
        for moment in 0..MOMENTS {
            number += 1;
            let at = format!("{what:?}, server {server}, moment {moment}");
            let round = match Round::begin(client, number).await {
                Ok(round) => Arc::new(round),
                Err(failure) => {
                    wrong.push(format!("{at}: before: {failure}"));
                    return wrong;
                }
            };
            let before = tree(client, &round).await.expect("all servers run");
            let (work, one) = (round.clone(), client.clone());
            let done = cluster.on_client(0, async move { what.work(&one, &work).await });
            cluster.sim.sleep(MOMENT * moment as u32).await;
            cluster.kill_server(server, false);
            cluster.sim.sleep(Duration::from_millis(number % 3 * 700)).await;
            if let Err(failure) = cluster.bring_back(server).await {
                wrong.push(format!("{at}: it does not come back: {failure}"));
                return wrong;
            }
            let ended = done.await.expect("the client lives");
            // For what goes on in the background.
            cluster.sim.sleep(Duration::from_secs(20)).await;
            wrong
                .extend(look(client, &round, what, &before, ended).await.into_iter().map(|why| format!("{at}: {why}")));
            if !wrong.is_empty() {
                return wrong;
            }
        }
    }
    let checked = client.check(&ROOT, CheckOptions::default()).await;
    match checked {
        Ok(report) if report.findings.is_empty() && report.notes.is_empty() => {}
        Ok(report) => wrong.push(format!("{what:?}: {:?} {:?}", report.findings, report.notes)),
        Err(failure) => wrong.push(format!("{what:?}: check: {failure}")),
    }
    wrong
}

/// The tree afterwards must be the tree before, or the one that the operation makes of it.
async fn look(
    client: &Arc<Client>,
    round: &Round,
    what: What,
    before: &BTreeMap<String, Ino>,
    ended: Result<(), Failure>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let after = match tree(client, round).await {
        Ok(after) => after,
        Err(failure) => return vec![format!("after: {failure}")],
    };
    let mut done = before.clone();
    match what {
        What::Create => drop(after.get("other/new").map(|ino| done.insert("other/new".into(), *ino))),
        What::Unlink => drop(done.remove("dir/file")),
        What::Rename | What::Replace => {
            let ino = done.remove("dir/file").expect("it was there");
            let to = if what == What::Rename { "other/moved" } else { "other/second" };
            done.insert(to.into(), ino);
        }
        What::MoveDirectory | What::ReplaceDirectory => {
            let ino = done.remove("dir/sub").expect("it was there");
            let to = if what == What::MoveDirectory { "other/moved" } else { "other/victim" };
            done.insert(to.into(), ino);
        }
        What::Exchange => {
            let (one, two) = (done["dir/sub"], done["other/second"]);
            done.insert("dir/sub".into(), two);
            done.insert("other/second".into(), one);
        }
        What::Rmdir => drop(done.remove("dir/sub")),
        What::Link => drop(done.insert("other/link".into(), round.file)),
        What::UnlinkLink => {
            done.insert("other/link".into(), round.file);
            if !after.contains_key("dir/file") {
                done.remove("dir/file");
            }
        }
        What::Truncate | What::Write | What::Append | What::Chmod => {}
    }
    let is_half_way = what == What::ReplaceDirectory && {
        // The directory in the way was removed, and the rename given up.
        let mut half = before.clone();
        half.remove("other/victim");
        after == half
    };
    match &ended {
        Ok(()) if after != done => wrong.push(format!("acknowledged, and there is {after:?} instead of {done:?}")),
        Err(failure) if !failure.is_silence() => wrong.push(format!("it fails with {failure}")),
        Err(failure) if after != done && after != *before && !is_half_way => {
            wrong.push(format!("after {failure}: {after:?}, and it was {before:?}"));
        }
        _ => {}
    }
    if ended.is_ok() && matches!(what, What::Write | What::Append | What::Truncate) {
        let read = async {
            let open = client.open(&ROOT, round.file, Access { read: true, write: false }).await?;
            let data = open.read(0, 400_000).await?;
            open.close().await?;
            Ok::<_, Failure>(data)
        };
        let expected = match what {
            What::Truncate => vec![7; 3],
            What::Append => [vec![7; 150_000], vec![8; 140_000]].concat(),
            _ => [vec![7; 1000], vec![8; 140_000], vec![7; 9000]].concat(),
        };
        match read.await {
            Ok(data) if data == expected => {}
            Ok(data) => wrong.push(format!("{} bytes that were not written so", data.len())),
            Err(failure) => wrong.push(format!("read: {failure}")),
        }
    }
    // No directory with entries can be removed, also where its home has come back.
    for text in ["dir", "other"].into_iter().filter(|text| after.keys().any(|path| path.starts_with(text))) {
        match client.rmdir(&ROOT, Ino::ROOT, &round.name(text)).await {
            Err(failure) if failure.code == Code::NotEmpty => {}
            other => wrong.push(format!("{text} has entries, and its removal gives {other:?}")),
        }
    }
    // All of it can be changed again.
    for (path, ino) in &after {
        let (dir, text) = path.split_once('/').expect("a directory and a name");
        let parent = if dir == "dir" { round.dir } else { round.other };
        let is_dir = client.getattr(&ROOT, *ino).await.is_ok_and(|attr| attr.kind == FileKind::Directory);
        let gone = match is_dir {
            true => client.rmdir(&ROOT, parent, &round.name(text)).await,
            false => client.unlink(&ROOT, parent, &round.name(text)).await,
        };
        if let Err(failure) = gone {
            wrong.push(format!("{path} cannot be removed: {failure}"));
        }
    }
    for text in ["dir", "other"] {
        if let Err(failure) = client.rmdir(&ROOT, Ino::ROOT, &round.name(text)).await {
            wrong.push(format!("{text} cannot be removed: {failure}"));
        }
    }
    wrong
}

fn findings(what: What, switches: Switches) -> Vec<String> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let wrong = found.clone();
    with_layout(layout(switches), |cluster, client| async move {
        *wrong.lock() = rounds(&cluster, &client, what).await;
    });
    std::mem::take(&mut *found.lock())
}

#[test]
fn every_operation_survives_the_death_of_a_server_at_every_moment() {
    let only = std::env::var("AZE_SIM_WHAT").ok();
    let mut wrong = Vec::new();
    for what in ALL.into_iter().filter(|what| only.as_ref().is_none_or(|only| *only == format!("{what:?}"))) {
        wrong.extend(findings(what, Switches::default()));
    }
    assert!(wrong.is_empty(), "{} findings:\n{}", wrong.len(), wrong.join("\n"));
}

/// Without a protection something is found, with it nothing.
fn is_noticed(removed: Sabotage, whats: &[What]) {
    let is_found = |what: &What| {
        let found = std::panic::catch_unwind(|| findings(*what, Switches::without(removed)));
        // A server that loses a protection may also break one of its own assertions.
        found.is_err() || found.is_ok_and(|found| !found.is_empty())
    };
    let what =
        *whats.iter().find(|what| is_found(what)).unwrap_or_else(|| panic!("{whats:?} do not notice {removed:?}"));
    assert_eq!(findings(what, Switches::default()), Vec::<String>::new(), "{what:?} with all protections");
}

#[test]
fn a_server_that_does_not_learn_who_has_its_directories_is_noticed() {
    is_noticed(Sabotage::ForgetHolders, &[What::Create]);
}

/// Sends what a server may have sent, in a session that is given.
async fn as_server(
    cluster: &Cluster,
    session: SessionId,
    to: ServerIndex,
    shard: ShardId,
    request: Request,
) -> Result<Reply, Failure> {
    let map = cluster.server(to.0).expect("the server runs").map();
    let config = CallerConfig {
        secret: SECRET,
        volume: VOLUME.into(),
        versions: aze_proto::limits::WIRE_VERSIONS,
        session,
        server: true,
        job: "late".into(),
        host: client_node(1),
        transport: aze_io::Transport::Tcp,
        start_time_max: Duration::ZERO,
        order: Arc::default(),
    };
    let caller = Caller::new(cluster.client_io(1), config);
    let target = Target::of(&map, to).expect("the server is in the map");
    let ask = Ask {
        to: &target,
        shard,
        map_epoch: map.epoch,
        namespace_epoch: NamespaceEpoch(u64::MAX),
        identity: &ROOT,
        request: &request,
        payload: &[],
        deadline: Duration::from_secs(5),
    };
    caller.ask(ask).await.map(|answer| answer.reply)
}

/// Runs a scenario with a protection, and without; the scenario returns the errors it found.
fn with_and_without<F: Future<Output = Vec<String>>>(removed: Sabotage, scenario: fn(Arc<Cluster>, Arc<Client>) -> F) {
    for (switches, is_well) in [(Switches::default(), true), (Switches::without(removed), false)] {
        let found = Arc::new(Mutex::new(Vec::new()));
        let wrong = found.clone();
        with_layout(layout(switches), |cluster, client| async move {
            *wrong.lock() = scenario(cluster, client).await;
        });
        let found = std::mem::take(&mut *found.lock());
        assert_eq!(found.is_empty(), is_well, "{removed:?} is there: {is_well}; found {found:?}");
    }
}

/// What an earlier life of a server has sent arrives after the server has come back.
async fn late_request(cluster: Arc<Cluster>, client: Arc<Client>) -> Vec<String> {
    let file = create(&client, Ino::ROOT, "f").await;
    let home = cluster.server(0).expect("it runs").map().home_of(file.ino()).expect("a server");
    let dead = (home.0 + 1) % SERVERS;
    let earlier = cluster.server(dead).expect("it runs").map().servers[usize::from(dead)].session;
    cluster.kill_server(dead, false);
    cluster.bring_back(dead).await.expect("it comes back");
    let late = Request::LinkBegin { ino: file.ino(), tx: TxId(77), shard: ShardId(1) };
    match as_server(&cluster, earlier, home, file.ino().home(cluster.layout().shards), late).await {
        Err(failure) if failure.code == Code::Expired => Vec::new(),
        other => vec![format!("an earlier life is served: {other:?}")],
    }
}

#[test]
fn a_server_that_serves_an_earlier_life_is_noticed() {
    with_and_without(Sabotage::SkipLifeFence, late_request);
}

/// A rename was prepared; its coordinator came back and was told that it has failed; the commit arrives then.
async fn late_commit(cluster: Arc<Cluster>, client: Arc<Client>) -> Vec<String> {
    let file = create(&client, Ino::ROOT, "f").await;
    create(&client, Ino::ROOT, "warm").await;
    let (to_parent, to_name) = (Ino::ROOT, name("late"));
    let map = cluster.server(0).expect("it runs").map();
    let shard = NameHash::of(to_parent, &to_name).shard(map.shards());
    let to = map.server_of(shard).expect("a server");
    let (tx, coordinator, session) = (TxId(99), ServerIndex((to.0 + 1) % SERVERS), SessionId(4711));
    let prepare = Request::Prepare(Prepare {
        tx,
        coordinator,
        incarnation: Incarnation(0),
        to_parent,
        to_name: to_name.clone(),
        ino: file.ino(),
        kind: FileKind::File,
        no_replace: false,
        identity: ROOT.clone(),
    });
    let prepared = as_server(&cluster, session, to, shard, prepare).await;
    assert_eq!(prepared, Ok(Reply::Prepared { victim: None }));
    let told = as_server(&cluster, session, to, ShardId(0), Request::TxDone { tx }).await;
    assert_eq!(told, Ok(Reply::TxIs { committed: Some(false) }));
    let commit = Request::Commit { tx, to_parent, to_name: to_name.clone() };
    let _ = as_server(&cluster, session, to, shard, commit).await;
    match client.lookup(&ROOT, to_parent, &to_name).await {
        Err(failure) if failure.code == Code::NotFound => Vec::new(),
        other => vec![format!("the rename that was given up is there: {other:?}")],
    }
}

#[test]
fn a_commit_after_an_abort_is_noticed() {
    with_and_without(Sabotage::CommitAfterAbort, late_commit);
}

/// A lock that one client had at a server, which has died since and is back, and its file as two clients have it open.
struct LostLock {
    lock: LockSpec,
    two: Arc<Client>,
    mine: Arc<File>,
    theirs: Arc<File>,
    home: ServerIndex,
}

impl LostLock {
    async fn of(cluster: &Arc<Cluster>, one: &Client) -> LostLock {
        let lock =
            LockSpec { space: LockSpace::Whole, owner: 1, pid: 7, start: 0, end: u64::MAX, mode: LockMode::Exclusive };
        let two = cluster.connect(1).await.expect("a second client connects");
        let mine = create(one, Ino::ROOT, "f").await;
        let theirs = two.open(&ROOT, mine.ino(), Access { read: true, write: true }).await.expect("an open");
        assert_eq!(mine.try_lock(&lock).await, Ok(Locked::Granted));
        let home = cluster.server(0).expect("it runs").map().home_of(mine.ino()).expect("a server");
        cluster.kill_server(home.0, false);
        cluster.bring_back(home.0).await.expect("it comes back");
        LostLock { lock, two, mine, theirs, home }
    }
}

/// One client has a lock at a server that dies; another one gets it when the server is back; the first one writes.
async fn lost_lock(cluster: Arc<Cluster>, one: Arc<Client>) -> Vec<String> {
    let LostLock { lock, two: _two, mine, theirs, .. } = LostLock::of(&cluster, &one).await;
    let mut wrong = Vec::new();
    if theirs.try_lock(&lock).await != Ok(Locked::Granted) {
        wrong.push("the lock is not free".into());
    }
    // The first chunk is at the home, the second one elsewhere.
    for offset in [0, 70_000] {
        // The first request may be the one that tells of the new life.
        match mine.write(offset, b"mine").await {
            Err(failure) if failure.code == Code::Lost => {}
            other => wrong.push(format!("a write at {offset} without the lock gives {other:?}")),
        }
    }
    wrong
}

#[test]
fn a_server_that_returns_under_its_old_life_is_noticed() {
    with_and_without(Sabotage::KeepOldLife, lost_lock);
}

/// Has the keeper move the slot of an inode's home to another server, however often it says that something is under way.
async fn move_home(cluster: &Cluster, ino: Ino, to: ServerIndex) -> Result<(), Failure> {
    loop {
        let map = cluster.newest_map().expect("a server runs");
        let slot = map.slots.slot_of(ino.home(map.shards()));
        let moved = cluster.at_server(map.keeper, move |keeper| async move { keeper.move_slot(slot, to).await }).await;
        match moved.expect("the keeper runs") {
            Err(failure) if failure.code == Code::Busy => cluster.sim.sleep(Duration::from_millis(20)).await,
            moved => return moved,
        }
    }
}

/// Two servers that are not an inode's home: one that does not keep the map comes last.
fn others_than(home: ServerIndex) -> (ServerIndex, ServerIndex) {
    let mut others = (0..SERVERS).map(ServerIndex).filter(|server| *server != home);
    let (first, second) = (others.next().expect("three servers"), others.next().expect("three servers"));
    (first, second)
}

/// A lock is lost with its server, which comes back and gives the slot away before the one that had the lock hears of it; one that is taken
/// afterwards goes with the slot, to a server that never stopped and back.
async fn lock_of_a_moved_slot(cluster: Arc<Cluster>, one: Arc<Client>) -> Vec<String> {
    let LostLock { lock, two: _two, mine, theirs, home } = LostLock::of(&cluster, &one).await;
    let (to, _) = others_than(home);
    move_home(&cluster, mine.ino(), to).await.expect("a slot moves after a comeback");
    let mut wrong = Vec::new();
    // It has not heard of the comeback: that is no lock of the earlier life all the same.
    let theirs_is = theirs.try_lock(&lock).await;
    if theirs_is != Ok(Locked::Granted) {
        wrong.push(format!("the lock is not free: {theirs_is:?}"));
    }
    for offset in [0, 70_000] {
        match mine.write(offset, b"mine").await {
            Err(failure) if failure.code == Code::Lost => {}
            other => wrong.push(format!("a write at {offset} without the lock gives {other:?}")),
        }
    }
    for server in [home, to, home] {
        move_home(&cluster, mine.ino(), server).await.expect("a slot moves after a comeback");
        if let Err(failure) = theirs.write(0, b"theirs").await {
            wrong.push(format!("the slot is on server {server}, and its lock is said to be lost: {failure}"));
        }
    }
    let third = one.open(&ROOT, mine.ino(), Access { read: true, write: true }).await.expect("an open");
    match third.try_lock(&LockSpec { owner: 2, ..lock }).await {
        Ok(Locked::Held(_)) => {}
        other => wrong.push(format!("the lock that has moved is not held: {other:?}")),
    }
    wrong
}

#[test]
fn locks_go_with_the_life_of_a_server_and_not_with_a_move() {
    with_and_without(Sabotage::ForgetSince, lock_of_a_moved_slot);
}

/// A server that comes back is to give the slot of a directory before it has heard from another server that this one has entries of it.
async fn given_early(cluster: Arc<Cluster>, client: Arc<Client>) -> Vec<String> {
    let map = cluster.server(0).expect("it runs").map();
    let (home, third) = (ServerIndex(1), ServerIndex(2));
    let mut number = 0;
    let dir = loop {
        number += 1;
        let made = client.create(&ROOT, Ino::ROOT, &name(&format!("d{number}")), &directory()).await;
        let dir = made.expect("a new name can be made").attr.ino;
        if map.home_of(dir) == Some(home) {
            break dir;
        }
    };
    let at_third = |text: &String| map.server_of(NameHash::of(dir, &name(text)).shard(map.shards())) == Some(third);
    let file = (0..).map(|at| format!("f{at}")).find(at_third).expect("some name is there");
    create(&client, dir, &file).await.close().await.expect("closed");
    cluster.kill_server(home.0, false);
    let back = cluster.clone();
    let back = cluster.on_driver(async move {
        back.sim.sleep(Duration::from_millis(1)).await;
        back.bring_back(home.0).await
    });
    // In the map it is known to all; then it hears nothing from the third.
    let is_in_map = |server: &ServerIndex| {
        cluster.server(server.0).is_some_and(|server| server.map().servers[usize::from(home.0)].life > 0)
    };
    while ![ServerIndex(0), third].iter().all(is_in_map) {
        cluster.sim.sleep(Duration::from_micros(10)).await;
    }
    for (from, to) in [("s1", "s2"), ("s2", "s1")] {
        cluster.sim.set_link(from, to, Link::Down);
    }
    let slot = map.slots.slot_of(dir.home(map.shards()));
    for _ in 0..20 {
        let moved = cluster
            .at_server(ServerIndex(0), move |keeper| async move { keeper.move_slot(slot, ServerIndex(0)).await });
        if moved.await.expect("it runs").is_ok() {
            break;
        }
        cluster.sim.sleep(Duration::from_millis(50)).await;
    }
    for (from, to) in [("s1", "s2"), ("s2", "s1")] {
        cluster.sim.set_link(from, to, Link::Up);
    }
    back.await.expect("the driver lives").expect("it comes back");
    match client.rmdir(&ROOT, Ino::ROOT, &name(&format!("d{number}"))).await {
        Err(failure) if failure.code == Code::NotEmpty => Vec::new(),
        other => vec![format!("a directory with an entry is removed: {other:?}")],
    }
}

#[test]
fn a_server_that_gives_a_slot_before_it_knows_who_has_its_directories_is_noticed() {
    with_and_without(Sabotage::GiveUnsettled, given_early);
}

/// A request whose answer was lost is sent again after the server has come back.
async fn retried(cluster: Arc<Cluster>, _: Arc<Client>) -> Vec<String> {
    let new = name("new");
    let map = cluster.server(0).expect("it runs").map();
    let shard = NameHash::of(Ino::ROOT, &new).shard(map.shards());
    let home = map.server_of(shard).expect("a server");
    let create = || {
        let (kind, target) = (FileKind::File, Blob(Vec::new()));
        let (mode, rdev, exclusive, open, write, chunk_bits) = (0o644, 0, true, None, false, 0);
        let (parent, name) = (Ino::ROOT, new.clone());
        let create =
            Create { parent, name, kind, mode, rdev, target, exclusive, open, write, chunk_bits, private: false };
        // The first change of its session each time: the same request to the server.
        as_server(&cluster, SessionId(4712), home, shard, Request::Create(create))
    };
    let first = create().await;
    assert!(first.is_ok(), "{first:?}");
    cluster.kill_server(home.0, false);
    cluster.bring_back(home.0).await.expect("it comes back");
    let second = create().await;
    if first == second { Vec::new() } else { vec![format!("{first:?}, and then {second:?}")] }
}

#[test]
fn a_server_that_forgets_outcomes_is_noticed() {
    with_and_without(Sabotage::ForgetOutcomes, retried);
}

/// A machine that was booted since has lost its unsynced data.
#[test]
fn a_server_whose_machine_was_booted_does_not_come_back_alone() {
    with_layout(layout(Switches::default()), |cluster, client| async move {
        create(&client, Ino::ROOT, "f").await;
        cluster.kill_server(1, true);
        let refused = cluster.bring_back(1).await.expect_err("its power was cut");
        assert!(refused.code == Code::Lost && refused.detail.contains("its machine was started again"), "{refused}");
    });
}

/// Every fourth message is lost while servers come back.
#[test]
fn a_server_comes_back_though_messages_are_lost() {
    with_layout(layout(Switches::default()), |cluster, _| async move {
        for round in 0..20 {
            let server = round % SERVERS;
            cluster.kill_server(server, false);
            cluster.sim.set_faults(Faults { loss_ppm: 250_000, ..Faults::default() });
            let back = cluster.bring_back(server).await;
            assert_eq!(back, Ok(()), "round {round}");
            cluster.sim.set_faults(Faults::default());
        }
    });
}
