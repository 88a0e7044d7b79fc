//! A file that is opened again without a request is the one that a request would have opened: with its rights, its name, and
//! contents no older than the open; the same of a file that a server opens for clients of its node. Several clients open, change, replace and forbid the same files, over networks that lose and delay.

use crate::rough::{rough, seeds};
use crate::support::{ROOT, create, name, opened_file, with_cluster, with_layout};
use aze_client::{Access, Client, File, Way, WayNote};
use aze_io::sim::{Faults, Link, Sim, SimRng};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Change, Code, Failure, Identity, Ino, NameHash};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{Layout, client_node, server_node};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SERVERS: u16 = 3;
const CLIENTS: u64 = 3;
const FILES: u64 = 2 * CLIENTS;
const READ: Access = Access { read: true, write: false };

/// A user to whom the permission bits for the group apply, or those for others.
fn user(is_member: bool) -> Identity {
    Identity { uid: 7, gid: if is_member { 0 } else { 7 }, groups: Vec::new() }
}

/// A file at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    ino: Ino,
    value: u64,
    /// Not only the group's members may read it.
    may_read: bool,
}

/// Of each file: how many changes have begun and ended, and its state, if that is known.
#[derive(Default)]
struct Done {
    changes: u64,
    files: BTreeMap<u64, (u64, Option<State>)>,
    /// Files that have another name now.
    away: BTreeSet<Ino>,
}

impl Done {
    fn note(&mut self, number: u64, state: Option<State>) {
        self.changes += 1;
        self.files.insert(number, (self.changes, state));
    }
}

/// What the simulated programs have seen.
#[derive(Default)]
struct Seen {
    wrong: Vec<String>,
    opens: u64,
    refused: u64,
    gone: u64,
}

fn file_name(number: u64) -> String {
    format!("f{number}")
}

fn bytes_of(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(8)
}

/// A new file with these contents, under a name that no other task uses.
async fn make(client: &Client, name: &str, value: u64) -> Result<State, Failure> {
    let made = client.create(&ROOT, Ino::ROOT, &crate::support::name(name), &opened_file()).await?;
    let file = made.file.expect("an open was asked for");
    file.write(0, &bytes_of(value)).await?;
    file.close().await?;
    Ok(State { ino: file.ino(), value, may_read: true })
}

/// One random change of a file that only this task changes.
async fn change(client: &Client, rng: &mut SimRng, number: u64, done: &Mutex<Done>) {
    let before = done.lock().files.get(&number).and_then(|(_, state)| *state);
    done.lock().note(number, None);
    let here = name(&file_name(number));
    let value = rng.below(u64::MAX);
    let outcome = async {
        let Some(now) = before else {
            // How an earlier change ended is unknown.
            let _ = client.unlink(&ROOT, Ino::ROOT, &here).await;
            return make(client, &file_name(number), value).await;
        };
        match rng.below(6) {
            0 | 1 => {
                let file = client.open(&ROOT, now.ino, Access { read: false, write: true }).await?;
                file.write(0, &bytes_of(value)).await?;
                file.close().await?;
                Ok(State { value, ..now })
            }
            2 => {
                let may_read = !now.may_read;
                let mode = Some(if may_read { 0o644 } else { 0o640 });
                client.setattr(&ROOT, now.ino, &Change { mode, ..Change::default() }).await?;
                Ok(State { may_read, ..now })
            }
            3 => {
                client.unlink(&ROOT, Ino::ROOT, &here).await?;
                make(client, &file_name(number), value).await
            }
            4 => {
                let away = name(&format!("old{number}-{value}"));
                done.lock().away.insert(now.ino);
                client.rename(&ROOT, Ino::ROOT, &here, Ino::ROOT, &away, false).await?;
                make(client, &file_name(number), value).await
            }
            _ => {
                let temporary = format!("new{number}-{value}");
                let state = make(client, &temporary, value).await?;
                client.rename(&ROOT, Ino::ROOT, &name(&temporary), Ino::ROOT, &here, false).await?;
                Ok(state)
            }
        }
    };
    let state = outcome.await.ok();
    done.lock().note(number, state);
}

/// Opens a file as a program does: by its name, in turns as an agent does if that is said, or by the inode that a kernel knows of it. Reads it
/// whole.
async fn open(
    client: &Client,
    rng: &mut SimRng,
    who: &Identity,
    number: u64,
    ino: Option<Ino>,
    as_agent: bool,
) -> Result<(Arc<File>, Vec<u8>), Failure> {
    let file = match ino {
        Some(ino) => client.open_with_contents(who, ino, READ).await?,
        None => {
            let (path, note) = (format!("/{}", file_name(number)), WayNote::default());
            let way = match as_agent && rng.below(2) == 0 {
                true => Way::below(Ino::ROOT, path.as_bytes()).seen_at(b"/aze", &note),
                false => Way::from(path.as_str()),
            };
            // In turns without contents.
            match rng.below(2) {
                0 => client.open_path(who, way, READ).await?,
                _ => client.open_path_with_contents(who, way, READ).await?,
            }
        }
    };
    let mut bytes = vec![0; 100];
    let count = file.read_as_opened(0, &mut bytes).await?;
    bytes.truncate(count);
    Ok((file, bytes))
}

/// The error in the outcome of an open of a file that was at rest in this state. A client that has the file open may
/// open it once more, though it has lost its name; a file that has another name now is opened by its number.
fn judge(
    state: State,
    known: Option<Ino>,
    may_open: bool,
    outcome: &Result<(Arc<File>, Vec<u8>), Failure>,
) -> Option<String> {
    let is_other = known.is_some_and(|ino| ino != state.ino);
    match outcome {
        Ok((file, _)) if is_other && may_open && Some(file.ino()) == known => None,
        Ok((file, bytes)) => {
            let is_right = file.ino() == state.ino && state.may_read && *bytes == bytes_of(state.value);
            (!is_right).then(|| format!("{state:?}, and inode {} was opened with {bytes:?}", file.ino()))
        }
        Err(failure) if failure.code == Code::AccessDenied => {
            (state.may_read && !is_other).then(|| format!("{state:?}, and was refused"))
        }
        Err(failure) if matches!(failure.code, Code::NotFound | Code::Stale) => {
            (!is_other).then(|| format!("{state:?}, and was not found"))
        }
        Err(_) => None,
    }
}

async fn read(
    client: Arc<Client>,
    is_near: bool,
    sim: Sim,
    mut rng: SimRng,
    done: Arc<Mutex<Done>>,
    seen: Arc<Mutex<Seen>>,
) {
    let mut kept: Vec<Arc<File>> = Vec::new();
    let mut inos: BTreeMap<u64, Ino> = BTreeMap::new();
    for step in 0..800 {
        let number = rng.below(FILES);
        let known = inos.get(&number).copied().filter(|_| rng.below(2) == 0);
        let before = done.lock().files.get(&number).copied();
        let is_there = |ino| client.is_open(ino) || done.lock().away.contains(&ino);
        let may_open = known.is_some_and(is_there);
        // In turns, each for a while: who is another user asks.
        let is_member = step % 200 >= 150;
        let outcome = open(&client, &mut rng, &user(is_member), number, known, is_near).await;
        let after = done.lock().files.get(&number).copied();
        if before == after
            && let Some((_, Some(state))) = before
                .map(|(at, state)| (at, state.map(|state| State { may_read: state.may_read || is_member, ..state })))
            && let Some(wrong) = judge(state, known, may_open, &outcome)
        {
            let at_ns = sim.now_ns();
            seen.lock().wrong.push(format!("at {at_ns}: {} by {known:?}: {wrong}", file_name(number)));
        }
        match outcome {
            Ok((file, _)) => {
                seen.lock().opens += 1;
                inos.insert(number, file.ino());
                kept.push(file);
            }
            Err(failure) => {
                inos.remove(&number);
                seen.lock().refused += u64::from(failure.code == Code::AccessDenied);
                seen.lock().gone += u64::from(matches!(failure.code, Code::NotFound | Code::Stale));
            }
        }
        if kept.len() > rng.below(4) as usize {
            let closed = kept.swap_remove(rng.below(kept.len() as u64) as usize);
            // Of a file for reading nothing can be lost.
            let _ = closed.close().await;
        }
        sim.sleep(Duration::from_micros(rng.below(20_000))).await;
    }
}

/// The outcomes that clients saw, and how many opens took no request.
fn run(seed: u64, faults: Faults, switches: Switches, enemy: bool) -> (Seen, u64) {
    let sim = Sim::new(seed, faults);
    let published_bytes = if seed.is_multiple_of(2) { 0 } else { 1 << 20 };
    let layout = Layout { switches, published_bytes, contacts: true, ..Layout::of(SERVERS) };
    let cluster = Cluster::new(sim.clone(), layout);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut without = 0;
    sim.set_time_limit(Duration::from_secs(3600));
    sim.block_on(async {
        cluster.start().await.expect("a cluster starts");
        let done = Arc::new(Mutex::new(Done::default()));
        let (mut tasks, mut clients) = (Vec::new(), Vec::new());
        for here in 0..CLIENTS {
            // Of every four seeds one has clients on one server's node, which opens files for them.
            let client = match seed % 4 {
                3 => cluster.connect_near(here as usize, 0).await.expect("a client connects"),
                _ => cluster.connect(here as usize).await.expect("a client connects"),
            };
            client.use_contacts();
            // The last one has no leases.
            if here + 1 < CLIENTS {
                let sim = sim.clone();
                client.listen(Box::new(move |_| {
                    let sim = sim.clone();
                    Box::pin(async move { sim.sleep(Duration::from_millis(5)).await })
                }));
            }
            let reading = read(
                client.clone(),
                seed % 4 == 3,
                sim.clone(),
                sim.rng(&format!("reader {here}")),
                done.clone(),
                seen.clone(),
            );
            tasks.push(cluster.on_client(here as usize, reading));
            let (changer, done, sim) = (client.clone(), done.clone(), sim.clone());
            let mut rng = sim.rng(&format!("changer {here}"));
            tasks.push(cluster.on_client(here as usize, async move {
                for _ in 0..40 {
                    let number = rng.below(FILES / CLIENTS) * CLIENTS + here;
                    change(&changer, &mut rng, number, &done).await;
                    // Now and then for longer than leases last.
                    let longest = if rng.below(10) == 0 { 6_000_000 } else { 150_000 };
                    sim.sleep(Duration::from_micros(rng.below(longest))).await;
                }
            }));
            clients.push(client);
        }
        if enemy {
            let mut rng = sim.rng("enemy");
            for _ in 0..4 {
                sim.sleep(Duration::from_millis(rng.below(700))).await;
                let (client, server) = (client_node(rng.below(3) as usize), server_node(rng.below(3) as u16));
                let ways = [(&client, &server), (&server, &client)];
                for (from, to) in &ways[rng.below(2) as usize..] {
                    sim.set_link(from, to, Link::Down);
                }
                sim.sleep(Duration::from_millis(rng.below(3000))).await;
                sim.heal();
            }
            cluster.kill_client(1);
        }
        for task in tasks {
            // One of the clients may have been killed.
            let _ = task.await;
        }
        without = clients.iter().map(|client| client.opens_without_request()).sum();
        for kind in ["OpenThrough", "OpenNameThrough"] {
            let requests = cluster.servers().into_iter().flat_map(|server| server.status().requests);
            let through: u64 = requests.filter(|counter| counter.name == kind).map(|counter| counter.count).sum();
            assert_eq!(through > 0, seed % 4 == 3, "seed {seed}: {through} opens through a server: {kind}");
        }
    });
    cluster.end();
    let seen = std::mem::take(&mut *seen.lock());
    (seen, without)
}

#[test]
fn what_is_opened_again_is_what_a_request_would_have_opened() {
    let mut all = [0; 4];
    for seed in seeds(10) {
        let (seen, without) = run(seed, Faults::default(), Switches::default(), false);
        assert_eq!(seen.wrong, [""; 0], "seed {seed}");
        assert!(without > 50, "seed {seed}: {without} opens took no request");
        for (sum, count) in all.iter_mut().zip([seen.opens, seen.refused, seen.gone, without]) {
            *sum += count;
        }
    }
    assert!(all.iter().zip([2000, 200, 20, 1000]).all(|(sum, least)| *sum > least), "{all:?}");
}

#[test]
fn what_is_opened_again_is_right_on_a_rough_network_with_dead_clients() {
    for seed in seeds(20) {
        let (seen, _) = run(seed, rough(), Switches::default(), true);
        assert_eq!(seen.wrong, [""; 0], "seed {seed}");
    }
}

#[test]
fn changes_that_do_not_wait_for_recalls_are_noticed() {
    let switches = Switches::without(Sabotage::SkipRecallWait);
    // Where recalls are late.
    let faults = Faults { reorder_ppm: 300_000, ..Faults::default() };
    assert!((0..60).any(|seed| !run(seed, faults.clone(), switches, false).0.wrong.is_empty()));
}

/// How often a file is open, as its home counts, after all closes have come there.
async fn open_count(cluster: &Cluster, client: &Client, ino: Ino) -> u32 {
    cluster.sim.sleep(Duration::from_millis(100)).await;
    let file = client.open(&ROOT, ino, READ).await.expect("it is there");
    let all = file.count_opens().await.expect("it is open").opens;
    file.close().await.expect("nothing was written");
    all - 1
}

#[test]
fn a_file_with_an_index_is_opened_again_without_a_request_and_held_for_a_second() {
    with_layout(Layout { published_bytes: 1 << 20, ..Layout::of(SERVERS) }, |cluster, writer| async move {
        let client = cluster.connect(1).await.expect("a client connects");
        for (number, bytes) in [(0, 1000), (1, 3 << 20)] {
            let file = create(&writer, Ino::ROOT, &file_name(number)).await;
            file.write(0, &vec![1; bytes]).await.expect("there is room");
            file.close().await.expect("it is written");
            let before = client.opens_without_request();
            for _ in 0..6 {
                let path = format!("/{}", file_name(number));
                let file =
                    client.open_path_with_contents(&user(false), path.as_str(), READ).await.expect("it is there");
                let mut text = vec![0; 10];
                assert_eq!(file.read_as_opened(0, &mut text).await.expect("read"), 10);
                assert_eq!(text, [1; 10]);
            }
            // The first two ask; of the first file one more, since the client is let into the directory meanwhile.
            assert_eq!(client.opens_without_request() - before, 3 + number);
            assert_eq!(open_count(&cluster, &writer, file.ino()).await, 1, "one open stands for all later ones");
            cluster.sim.sleep(Duration::from_millis(2500)).await;
            assert_eq!(
                open_count(&cluster, &writer, file.ino()).await,
                0,
                "it is not held for longer than a second after its last use"
            );
        }
    });
}

#[test]
fn a_file_is_opened_again_for_as_long_as_its_lease_lasts() {
    with_cluster(SERVERS, |cluster, writer| async move {
        let client = cluster.connect(1).await.expect("a client connects");
        client.listen(Box::new(|_| Box::pin(async {})));
        let made = create(&writer, Ino::ROOT, &file_name(0)).await;
        made.close().await.expect("it is written");
        let open = || async { client.open_with_contents(&user(false), made.ino(), READ).await.expect("it is there") };
        // By the second one it listens.
        for _ in 0..3 {
            drop(open().await);
            cluster.sim.sleep(Duration::from_millis(10)).await;
        }
        let before = client.opens_without_request();
        let kept = open().await;
        assert_eq!(client.opens_without_request() - before, 1);
        cluster.sim.sleep(Duration::from_millis(1100)).await;
        drop(open().await);
        assert_eq!(client.opens_without_request() - before, 1, "the lease is over");
        drop(open().await);
        assert_eq!(client.opens_without_request() - before, 2, "it came anew");
        drop(kept);
    });
}

#[test]
fn nothing_is_held_of_a_file_that_is_opened_once_nor_after_a_removal() {
    with_layout(Layout { published_bytes: 1 << 20, ..Layout::of(SERVERS) }, |cluster, client| async move {
        for number in 0..3 {
            create(&client, Ino::ROOT, &file_name(number)).await.close().await.expect("it is made");
        }
        let open = async |number| {
            let path = format!("/{}", file_name(number));
            client.open_path_with_contents(&ROOT, path.as_str(), READ).await.expect("it is there").ino()
        };
        let once = open(0).await;
        let twice = open(1).await;
        assert_eq!(open(1).await, twice);
        assert_eq!([open_count(&cluster, &client, once).await, open_count(&cluster, &client, twice).await], [0, 1]);
        client.unlink(&ROOT, Ino::ROOT, &name(&file_name(2))).await.expect("it is there");
        assert_eq!(open_count(&cluster, &client, twice).await, 0);
    });
}

/// A server that comes back alone does not know of the opens of its earlier life: one that is made after that is registered anew.
#[test]
fn a_file_whose_server_has_come_back_is_not_opened_again_by_an_open_of_its_earlier_life() {
    let layout = Layout { durability: Some(Durability::Fsync), ..Layout::of(SERVERS) };
    with_layout(layout, |cluster, writer| async move {
        let client = cluster.connect(1).await.expect("a client connects");
        client.listen(Box::new(|_| Box::pin(async {})));
        let made = create(&writer, Ino::ROOT, &file_name(0)).await;
        made.close().await.expect("it is written");
        let home = client.map().home_of(made.ino()).expect("a server");
        let elsewhere = (0..).map(|number| name(&format!("x{number}"))).find(|name| {
            let map = client.map();
            map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards())) == Some(home)
        });
        let open = || async { client.open_with_contents(&user(false), made.ino(), READ).await.expect("it is there") };
        for _ in 0..3 {
            drop(open().await);
            cluster.sim.sleep(Duration::from_millis(10)).await;
        }
        let before = client.opens_without_request();
        let kept = open().await;
        assert_eq!(client.opens_without_request() - before, 1);
        cluster.kill_server(home.0, false);
        cluster.bring_back(home.0).await.expect("it comes back");
        // This tells the client that the server is in another life.
        let looked = client.lookup(&ROOT, Ino::ROOT, &elsewhere.expect("there are many names")).await;
        assert_eq!(looked.expect_err("it was not made").code, Code::NotFound);
        let anew = open().await;
        assert_eq!(client.opens_without_request() - before, 1);
        assert_eq!(open_count(&cluster, &writer, made.ino()).await, 1, "the one of the earlier life is not known");
        drop((kept, anew));
    });
}

#[test]
fn nothing_is_opened_again_after_the_client_has_ended() {
    with_cluster(SERVERS, |cluster, writer| async move {
        let client = cluster.connect(1).await.expect("a client connects");
        client.listen(Box::new(|_| Box::pin(async {})));
        let made = create(&writer, Ino::ROOT, &file_name(0)).await;
        made.close().await.expect("it is written");
        for _ in 0..4 {
            client.open_with_contents(&ROOT, made.ino(), READ).await.expect("it is there");
            cluster.sim.sleep(Duration::from_millis(10)).await;
        }
        assert!(client.opens_without_request() > 0);
        client.close().await.expect("nothing was written");
        let opened = client.open_with_contents(&ROOT, made.ino(), READ).await.map(drop);
        assert_eq!(opened.expect_err("it has ended").code, Code::Expired);
    });
}
