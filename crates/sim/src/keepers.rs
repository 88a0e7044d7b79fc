//! A crowd moves directories into each other and takes rights from them, while the keeper of the map changes: it dies, is cut off, or
//! hands over. Acknowledged moves are there, no directory comes below itself, and moves go on.
//!
//! On a volume in memory all that the crowd uses is on servers that do not die; the others die one after the other, whichever of them keeps
//! the map. On a volume in directories any of them dies, and comes back alone, or all end at once, also by a power cut, and start again.

use crate::cluster::{Cluster, Layout, client_node, server_node};
use crate::work::{ROOT, shared::new_file};
use aze_client::Client;
use aze_io::sim::{Faults, Link, Sim, SimRng};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Change, Code, Failure, FileKind, Ino, Name, NameHash, ServerIndex};
use aze_server::sabotage::Switches;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest run in virtual time.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Directories that stay where they are.
const BASES: usize = 2;

/// Directories that move.
const ITEMS: usize = 6;

/// Clients; each moves some of them.
const CLIENTS: usize = 3;

/// Until everything in the background is done.
const REST: Duration = Duration::from_secs(45);

/// After the last fault: until a directory is renamed.
const GO_ON_TIME_MAX: Duration = Duration::from_secs(15);

/// What became of a run.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    /// What should not be.
    pub violations: Vec<String>,
    /// Moves that were acknowledged.
    pub moves: u64,
    /// How often another server came to keep the map.
    pub keepers: u64,
    /// A server has died while no process was connected to it: it may still serve, and renames are refused.
    pub unseen: bool,
    /// Hash over everything that happened.
    pub trace_hash: u64,
}

struct Place {
    /// Directories into which others move: bases first, then those that move.
    dirs: Vec<Ino>,
    /// Where each is that moves: in the directory of that number, as far as is known.
    at: Mutex<BTreeMap<usize, Option<usize>>>,
    safe: [u16; 2],
    moves: AtomicU64,
    is_over: AtomicBool,
    violations: Mutex<Vec<String>>,
}

/// Runs a seed.
pub fn run(seed: u64, switches: Switches) -> Crowd {
    run_in(seed, switches, false)
}

/// Runs a seed on a volume in directories.
pub fn run_durable(seed: u64, switches: Switches) -> Crowd {
    run_in(seed, switches, true)
}

fn run_in(seed: u64, switches: Switches, lasts: bool) -> Crowd {
    let sim = Sim::new(seed, Faults::default());
    sim.set_time_limit(TIME_MAX);
    let mut rng = SimRng::new(seed, "keepers");
    let servers = rng.between(3, 6) as u16;
    let layout = Layout { switches, durability: lasts.then_some(Durability::Fsync), ..Layout::of(servers) };
    let cluster = Cluster::new(sim.clone(), layout);
    let crowd = sim.block_on(whole(cluster.clone(), rng));
    let crowd = Crowd { trace_hash: sim.trace_hash(), ..crowd };
    cluster.end();
    crowd
}

async fn whole(cluster: Arc<Cluster>, mut rng: SimRng) -> Crowd {
    let (place, clients) = match begin(&cluster).await {
        Ok(begun) => begun,
        Err(failure) => return Crowd { violations: vec![format!("set up: {failure}")], ..Crowd::default() },
    };
    let loss_ppm = if rng.chance(300_000) { 5_000 } else { 0 };
    let delay_ns_max = *rng.pick(&[200_000, 3_000_000, 30_000_000]);
    cluster.sim.set_faults(Faults { delay_ns_max, loss_ppm, ..Faults::default() });
    let movers = (0..CLIENTS).map(|number| {
        let (client, place) = (clients[number].clone(), place.clone());
        let rng = cluster.sim.rng(&format!("mover {number}"));
        cluster.on_client(number, mover(cluster.clone(), client, place, number, rng))
    });
    let movers: Vec<_> = movers.collect();
    let keepers = match cluster.layout().durability {
        None => trouble(&cluster, &place, &mut rng).await,
        Some(_) => durable_trouble(&cluster, &place, &mut rng).await,
    };
    cluster.sim.heal();
    cluster.sim.set_faults(Faults::default());
    cluster.sim.sleep(Duration::from_secs(2)).await;
    place.is_over.store(true, Ordering::Relaxed);
    join_all(movers).await;
    cluster.sim.sleep(REST).await;
    let unseen = is_unseen(&cluster);
    if !unseen {
        goes_on(&cluster, &place, &clients[0]).await;
    }
    look(&cluster, &place);
    let moves = place.moves.load(Ordering::Relaxed);
    Crowd { violations: place.violations.lock().clone(), moves, keepers, unseen, trace_hash: 0 }
}

async fn begin(cluster: &Arc<Cluster>) -> Result<(Arc<Place>, Vec<Arc<Client>>), Failure> {
    cluster.start().await?;
    let mut clients = Vec::new();
    for index in 0..CLIENTS {
        clients.push(cluster.connect(index).await?);
    }
    // Who is connected to a server sees its end.
    for client in &clients {
        client.status().await;
    }
    let (first, servers) = (&clients[0], cluster.layout().servers);
    let safe = [servers - 2, servers - 1];
    let mut dirs = Vec::new();
    let mut number = 0;
    // The root's names are on any server: only inodes are used later.
    while dirs.len() < BASES {
        let made = make(first, Ino::ROOT, &name_at(first, Ino::ROOT, safe[0], number)).await?;
        number += 1;
        dirs.extend(Some(made).filter(|made| is_safe(first, *made, safe)));
    }
    for item in 0..ITEMS {
        // A directory whose home is on a server that stays.
        let mut try_number = 0;
        loop {
            let name = name_at(first, Ino::ROOT, safe[0], number + try_number);
            try_number += 1;
            let made = make(first, Ino::ROOT, &name).await?;
            if is_safe(first, made, safe) {
                let (to, to_name) = (dirs[0], item_name(first, dirs[0], safe, item));
                first.rename(&ROOT, Ino::ROOT, &name, to, &to_name, false).await?;
                dirs.push(made);
                break;
            }
        }
        number += try_number;
    }
    // After a power cut it is there.
    first.sync(&ROOT).await?;
    let at = Mutex::new((0..ITEMS).map(|item| (item, Some(0))).collect());
    let place = Place {
        dirs,
        at,
        safe,
        moves: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        violations: Mutex::default(),
    };
    Ok((Arc::new(place), clients))
}

fn is_safe(client: &Client, dir: Ino, safe: [u16; 2]) -> bool {
    client.map().home_of(dir).is_some_and(|home| safe.contains(&home.0))
}

async fn make(client: &Client, parent: Ino, name: &Name) -> Result<Ino, Failure> {
    Ok(client.create(&ROOT, parent, name, &new_file(FileKind::Directory, true)).await?.attr.ino)
}

/// The `number`-th name in a directory whose entry is on a server.
fn name_at(client: &Client, dir: Ino, server: u16, number: usize) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(dir, name).shard(map.shards())) == Some(ServerIndex(server));
    let name = |index: u32| Name::new(format!("d{index}").as_bytes()).expect("a proper name");
    (0..u32::MAX).map(name).filter(is_there).nth(number).expect("there are many names")
}

/// What a directory is called in another one.
fn item_name(client: &Client, dir: Ino, safe: [u16; 2], item: usize) -> Name {
    name_at(client, dir, safe[item % 2], item)
}

async fn mover(cluster: Arc<Cluster>, client: Arc<Client>, place: Arc<Place>, number: usize, mut rng: SimRng) {
    let mine: Vec<usize> = (0..ITEMS).filter(|item| item % CLIENTS == number).collect();
    while !place.is_over.load(Ordering::Relaxed) {
        cluster.sim.sleep(Duration::from_micros(rng.below(20_000))).await;
        let item = *rng.pick(&mine);
        let ino = place.dirs[BASES + item];
        if rng.chance(150_000) {
            let change = Change { mode: Some(*rng.pick(&[0o700, 0o755])), ..Change::default() };
            // It may take rights: all servers have to hear of that.
            drop(client.setattr(&ROOT, ino, &change).await);
            continue;
        }
        let at = place.at.lock().get(&item).copied().flatten();
        let Some(from) = at else {
            let found = find(&client, &place, item).await;
            place.at.lock().insert(item, found);
            continue;
        };
        let to = rng.below((BASES + ITEMS) as u64) as usize;
        if to == from || to == BASES + item {
            continue;
        }
        let (old, new) = (place.dirs[from], place.dirs[to]);
        let (old_name, new_name) =
            (item_name(&client, old, place.safe, item), item_name(&client, new, place.safe, item));
        place.at.lock().insert(item, None);
        let moved = client.rename(&ROOT, old, &old_name, new, &new_name, false).await;
        let now = match moved {
            Ok(()) => {
                place.moves.fetch_add(1, Ordering::Relaxed);
                Some(to)
            }
            Err(failure) if failure.code == Code::Invalid => Some(from),
            // Whether it has happened, looking tells.
            Err(_) => None,
        };
        place.at.lock().insert(item, now);
    }
}

/// In which directory one is.
async fn find(client: &Client, place: &Place, item: usize) -> Option<usize> {
    for (number, dir) in place.dirs.iter().enumerate().filter(|(number, _)| *number != BASES + item) {
        let found = client.lookup(&ROOT, *dir, &item_name(client, *dir, place.safe, item)).await;
        if found.is_ok_and(|attr| attr.ino == place.dirs[BASES + item]) {
            return Some(number);
        }
    }
    None
}

fn keeper_of(cluster: &Cluster) -> Option<ServerIndex> {
    cluster.newest_map().map(|map| map.keeper)
}

/// Cuts the keeper off for a while, in one direction or both.
async fn cut_off(cluster: &Cluster, keeper: ServerIndex, others: &[u16], rng: &mut SimRng) {
    let both = rng.chance(600_000);
    let clients = (0..CLIENTS).map(client_node);
    for other in others.iter().map(|server| server_node(*server)).chain(clients) {
        cluster.sim.set_link(&server_node(keeper.0), &other, Link::Down);
        if both {
            cluster.sim.set_link(&other, &server_node(keeper.0), Link::Down);
        }
    }
    cluster.sim.sleep(Duration::from_millis(rng.between(100, 6_000))).await;
    cluster.sim.heal();
}

/// As [`trouble`], on a volume in directories. At its end all servers run.
async fn durable_trouble(cluster: &Arc<Cluster>, place: &Place, rng: &mut SimRng) -> u64 {
    let (mut keepers, mut dead) = (0, Vec::new());
    for _ in 0..rng.between(3, 8) {
        cluster.sim.sleep(Duration::from_micros(rng.below(400_000))).await;
        let Some(keeper) = keeper_of(cluster) else { return keepers };
        let running: Vec<u16> = (0..cluster.places()).filter(|server| cluster.server(*server).is_some()).collect();
        let others: Vec<u16> = running.iter().copied().filter(|server| *server != keeper.0).collect();
        match rng.below(10) {
            0..4 if running.len() > 2 || running.len() > 1 && dead.is_empty() => {
                let dies = if rng.chance(600_000) { keeper.0 } else { *rng.pick(&running) };
                if cluster.server(dies).is_some() {
                    cluster.kill_server(dies, false);
                    dead.push(dies);
                }
            }
            4..6 => {
                let heir = ServerIndex(*rng.pick(&running));
                // It may be refused, or the server may have died.
                drop(cluster.at_server(keeper, move |keeper| async move { keeper.hand_over_to(heir).await }).await);
            }
            6 => cut_off(cluster, keeper, &others, rng).await,
            7 => {
                let power_cut = rng.chance(700_000);
                cluster.kill_all(0, power_cut);
                cluster.sim.sleep(Duration::from_millis(5)).await;
                if power_cut {
                    // The power cut may have lost unsynced changes: looking tells.
                    place.at.lock().values_mut().for_each(|at| *at = None);
                }
                dead.clear();
                cluster.begin_another_start();
                if let Err(failure) = cluster.start().await {
                    place.violations.lock().push(format!("the volume does not start: {failure}"));
                    return keepers;
                }
            }
            _ => {
                if !all_come_back(cluster, place, &mut dead, rng.chance(500_000)).await {
                    return keepers;
                }
            }
        }
        cluster.sim.sleep(Duration::from_micros(rng.below(1_500_000))).await;
        keepers += u64::from(keeper_of(cluster) != Some(keeper));
    }
    all_come_back(cluster, place, &mut dead, true).await;
    keepers
}

/// Brings servers back that have died, all at once or the first alone; `false` if they do not come back.
async fn all_come_back(cluster: &Arc<Cluster>, place: &Place, dead: &mut Vec<u16>, all: bool) -> bool {
    if !all && dead.len() > 1 {
        match cluster.bring_back(dead[0]).await {
            Ok(()) => drop(dead.remove(0)),
            // The one that died last had decided alone.
            Err(failure) if failure.detail.contains("bring it back together with this one") => {
                cluster.kill_server(dead[0], false);
            }
            Err(failure) => {
                place.violations.lock().push(format!("server {} does not come back: {failure}", dead[0]));
                return false;
            }
        }
    }
    let back = join_all(dead.iter().map(|server| cluster.bring_back(*server))).await;
    let failed = dead.iter().zip(&back).filter_map(|(server, back)| back.as_ref().err().map(|why| (server, why)));
    let failed: Vec<String> =
        failed.map(|(server, why)| format!("server {server} does not come back: {why}")).collect();
    place.violations.lock().extend(failed.iter().cloned());
    dead.clear();
    failed.is_empty()
}

/// Has the keeper change in several ways; gives how often another one kept the map afterwards.
async fn trouble(cluster: &Arc<Cluster>, place: &Place, rng: &mut SimRng) -> u64 {
    let mut keepers = 0;
    for _ in 0..rng.between(3, 8) {
        cluster.sim.sleep(Duration::from_micros(rng.below(400_000))).await;
        let Some(keeper) = keeper_of(cluster) else { return keepers };
        let Some(running) = cluster.server(keeper.0) else { return keepers };
        let others: Vec<u16> =
            (0..cluster.places()).filter(|server| *server != keeper.0 && cluster.server(*server).is_some()).collect();
        match rng.below(10) {
            0..3 if !place.safe.contains(&keeper.0) => cluster.kill_server(keeper.0, false),
            0..7 => {
                let heir = ServerIndex(*rng.pick(&others));
                let (done, result) = futures_channel::oneshot::channel();
                cluster.sim.node(&server_node(keeper.0)).spawn(async move {
                    // An error means that the run is over.
                    let _ = done.send(running.hand_over_to(heir).await);
                });
                if rng.chance(300_000) && !place.safe.contains(&keeper.0) {
                    cluster.sim.sleep(Duration::from_micros(rng.below(10_000))).await;
                    cluster.kill_server(keeper.0, false);
                }
                // It may be refused, or the server may have died.
                drop(result.await);
            }
            _ => {
                cut_off(cluster, keeper, &others, rng).await;
            }
        }
        cluster.sim.sleep(Duration::from_micros(rng.below(1_500_000))).await;
        keepers += u64::from(keeper_of(cluster) != Some(keeper));
    }
    keepers
}

/// Whether the newest map does not say of each server that has died that it has ended.
fn is_unseen(cluster: &Cluster) -> bool {
    cluster
        .newest_map()
        .is_some_and(|map| map.indexes().any(|server| cluster.server(server.0).is_none() && !map.is_gone(server)))
}

/// A directory is renamed within a bound, unless too few servers are left to decide.
async fn goes_on(cluster: &Arc<Cluster>, place: &Place, client: &Arc<Client>) {
    let Some(map) = cluster.newest_map() else { return };
    let living = map.group.members.iter().filter(|member| cluster.server(member.server.0).is_some()).count();
    if living < map.group.majority() {
        return;
    }
    let base = place.dirs[0];
    let (old, new) = (name_at(client, base, place.safe[0], ITEMS), name_at(client, base, place.safe[1], ITEMS + 1));
    let made = make(client, base, &old).await;
    let until_ns = cluster.sim.now_ns() + GO_ON_TIME_MAX.as_nanos() as u64;
    let renamed = loop {
        match client.rename(&ROOT, base, &old, base, &new, false).await {
            Err(_) if cluster.sim.now_ns() < until_ns => {}
            answer => break answer,
        }
    };
    if let Err(failure) = made.map(drop).and(renamed) {
        place.violations.lock().push(format!("renames do not go on: {failure}; the map: {:?}", map.group));
    }
}

/// Each directory is in one place, the one that was acknowledged, and none is below itself.
fn look(cluster: &Cluster, place: &Place) {
    let mut parents: BTreeMap<Ino, Vec<usize>> = BTreeMap::new();
    for (number, dir) in place.dirs.iter().enumerate() {
        for (_, ino, _) in cluster.servers().iter().flat_map(|server| server.entries_of(*dir)) {
            parents.entry(ino).or_default().push(number);
        }
    }
    let mut violations = place.violations.lock();
    for item in 0..ITEMS {
        let there = parents.get(&place.dirs[BASES + item]).cloned().unwrap_or_default();
        if there.len() != 1 {
            violations.push(format!("directory {item} is at {} places: {there:?}", there.len()));
            continue;
        }
        if let Some(at) = place.at.lock().get(&item).copied().flatten()
            && there != [at]
        {
            violations.push(format!("directory {item} was acknowledged in {at}, and is in {there:?}"));
        }
        let (mut dir, mut steps) = (there[0], 0);
        while dir >= BASES {
            let above = parents.get(&place.dirs[dir]).and_then(|above| above.first());
            let Some(above) = above.filter(|_| steps <= ITEMS) else {
                violations.push(format!("directory {item} is below itself"));
                break;
            };
            (dir, steps) = (*above, steps + 1);
        }
    }
}
