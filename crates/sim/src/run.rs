//! One run: set up, work and faults, healing, checks.

use crate::audit;
use crate::cluster::{Cluster, Layout};
use crate::faults;
use crate::linear::{Verdict, check};
use crate::names::{self, SHARED_DIR};
use crate::plan::{Mix, Plan};
use crate::slots;
use crate::work::{Board, ROOT, Worker, appends, attributes, files, listing, locks, moving, rights, shared};
use aze_client::{CheckOptions, Client};
use aze_io::sim::{Faults, Sim};
use aze_proto::{Failure, Ino};
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// States that the search for an order may look at. A run that needs more counts as undecided.
const SEARCH_BUDGET: usize = 150_000;

/// Longest run in virtual time: a task that hangs for longer than all deadlines together is found.
const TIME_MAX: Duration = Duration::from_secs(1200);

/// After healing: until every server has finished its background work. Longer than
/// the patience of a locked name, the grace of a session and a deadline together.
const REST: Duration = Duration::from_secs(40);

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the seed meant.
    pub plan: Plan,
    /// The violations found; empty if all is well.
    pub violations: Vec<String>,
    /// Calls of clients.
    pub calls: u64,
    /// Whether the search for an order of the shared names came to an end.
    pub decided: bool,
    /// Hash over everything that happened.
    pub trace_hash: u64,
    /// What happened, if it was asked for.
    pub story: Vec<String>,
    /// Answers that clients read without a request.
    pub unasked: u64,
    /// Answers whose data were shared.
    pub shared: u64,
    /// Data that servers received straight into their memory for data, and how often that stopped in the middle.
    pub in_frames: (u64, u64),
    /// How many times a slot has moved by itself.
    pub slot_moves: u64,
    /// How many servers have left.
    pub servers_left: u64,
    /// How many servers have joined and got their share of the slots.
    pub servers_joined: u64,
    /// Virtual time at the end.
    pub virtual_ns: u64,
    /// Steps of tasks, timers and frames.
    pub steps: u64,
}

/// Runs a seed.
pub fn run(seed: u64, verbose: bool) -> Outcome {
    run_plan(Plan::of(seed), verbose)
}

/// Runs a plan.
///
/// # Panics
/// When a task of the cluster panics, spins, or waits for ever; the seed is named.
pub fn run_plan(plan: Plan, verbose: bool) -> Outcome {
    let sim = Sim::new(plan.seed, Faults::default());
    sim.set_time_limit(TIME_MAX);
    sim.set_sharing(plan.share_bytes_min);
    sim.set_slow_payloads(plan.slow_payloads);
    let (switches, placement, published_bytes) = (plan.switches, plan.placement, plan.published_bytes);
    let layout = Layout { switches, placement, published_bytes, ..Layout::of(plan.servers) };
    let cluster = Cluster::new(sim.clone(), layout);
    let board = Board::new(&plan, &cluster, verbose);
    let (decided, unasked, slot_moves, (servers_joined, servers_left)) =
        sim.block_on(whole(cluster.clone(), plan.clone(), board.clone()));
    let outcome = Outcome {
        violations: board.violations(),
        calls: board.calls(),
        decided,
        trace_hash: sim.trace_hash(),
        story: board.story(),
        unasked,
        shared: sim.counters().payloads_shared,
        in_frames: (sim.counters().payloads_in_frames, sim.counters().payloads_paused),
        slot_moves,
        servers_left,
        servers_joined,
        virtual_ns: sim.now_ns(),
        steps: sim.counters().steps,
        plan,
    };
    cluster.end();
    outcome
}

async fn whole(cluster: Arc<Cluster>, plan: Plan, board: Arc<Board>) -> (bool, u64, u64, (u64, u64)) {
    let begun = begin(&cluster, &plan, &board).await;
    let (clients, places) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            board.violation(format!("the cluster could not be set up: {failure}"));
            return (true, 0, 0, (0, 0));
        }
    };
    cluster.sim.set_faults(faults::steady(&plan, &mut cluster.sim.rng("steady faults")));
    board.note(&cluster, format!("{plan:?}"));
    let faulty = cluster.on_driver(faults::drive(cluster.clone(), plan.clone(), board.clone()));
    let moving =
        plan.slots_move.then(|| cluster.on_driver(slots::drive(cluster.clone(), board.clone(), plan.servers_leave)));
    let changing = (plan.servers_join || plan.servers_leave).then(|| {
        let (cluster, board, client, plan) = (cluster.clone(), board.clone(), clients[0].clone(), plan.clone());
        cluster.clone().on_driver(async move {
            let joined = match plan.servers_join {
                true => slots::grow(cluster.clone(), board.clone(), client.clone(), plan.slots_move).await,
                false => 0,
            };
            let left = if plan.servers_leave { slots::shrink(cluster, board, client).await } else { 0 };
            (joined, left)
        })
    });
    work(&cluster, &plan, &board, &clients, places).await;
    board.set_over();
    // The sender cannot be gone: the driver is never killed.
    let _ = faulty.await;
    let slot_moves = match moving {
        Some(moving) => moving.await.unwrap_or(0),
        None => 0,
    };
    heal(&cluster, &board).await;
    let servers_changed = match changing {
        Some(changing) => changing.await.unwrap_or_default(),
        None => (0, 0),
    };
    none_stays_behind(&cluster, &board);
    if plan.mix != Mix::KeeperDeath {
        board.set_settled();
        audit::after(&cluster, &plan, &board, &clients).await;
    }
    let unasked = clients.iter().map(|client| client.answers_without_request()).sum();
    (judge_names(&board), unasked, slot_moves, servers_changed)
}

/// A server that has left ends by itself.
fn none_stays_behind(cluster: &Cluster, board: &Board) {
    for server in cluster.servers().iter().filter(|server| server.has_left()) {
        board.violation(format!("server {} has left, and its process goes on", server.status().index));
    }
}

/// Directories that some workloads need to know.
#[derive(Clone, Copy, Default)]
struct Places {
    guarded: Option<Ino>,
    moving: Option<Ino>,
    attributed: Option<Ino>,
    filled: Option<Ino>,
}

/// Starts everything and makes the directories that the workloads use.
async fn begin(cluster: &Arc<Cluster>, plan: &Plan, board: &Arc<Board>) -> Result<(Vec<Arc<Client>>, Places), Failure> {
    cluster.start().await?;
    let mut clients = Vec::new();
    for index in 0..plan.clients {
        let client = cluster.connect(index).await?;
        (1..plan.lanes).for_each(|lane| client.add_lane(lane, cluster.client_io(index)));
        clients.push(client);
    }
    let first = &clients[0];
    let base = first.mkdir_all(&ROOT, SHARED_DIR, 0o755).await?.ino;
    board.begin_shared(base);
    first.mkdir_all(&ROOT, files::FILES_DIR, 0o755).await?;
    if plan.listing {
        let worker = Worker::new(cluster, board, (0, first.clone()), "setup", 0);
        listing::begin(&worker, first.mkdir_all(&ROOT, listing::LISTED_DIR, 0o755).await?.ino);
    }
    if plan.append_tasks > 0 {
        let (root, name) = first.resolve_parent(&ROOT, appends::APPENDED_FILE).await?;
        let made = first.create(&ROOT, root, &name, &shared::new_file(aze_proto::FileKind::File, true)).await?;
        appends::begin(board, made.attr.ino);
    }
    if plan.lock_tasks > 0 {
        let dir = first.mkdir_all(&ROOT, locks::LOCKED_DIR, 0o755).await?.ino;
        for number in 0..locks::FILES {
            let name = names::name(number as u8);
            let made = first.create(&ROOT, dir, &name, &shared::new_file(aze_proto::FileKind::File, true)).await?;
            board.held_locks.lock().add_file(made.attr.ino);
        }
    }
    let mut places = Places::default();
    if plan.moving {
        let dir = first.mkdir_all(&ROOT, moving::MOVING_DIR, 0o755).await?.ino;
        places.moving = Some(dir);
        let mut worker = Worker::new(cluster, board, (0, first.clone()), "mover's friend", 0);
        let kind = moving::kind(&mut worker);
        moving::begin(&worker, dir, kind).await?;
    }
    if plan.rights {
        let (root, name) = first.resolve_parent(&ROOT, attributes::ATTRIBUTED_FILE).await?;
        let new = shared::new_file(aze_proto::FileKind::File, true);
        places.attributed = Some(first.create(&ROOT, root, &name, &new).await?.attr.ino);
        places.guarded = Some(first.mkdir_all(&ROOT, rights::GUARDED_DIR, 0o755).await?.ino);
        first.mkdir_all(&ROOT, rights::INNER_DIR, 0o755).await?;
        let (inner, name) = first.resolve_parent(&ROOT, rights::GUARDED_FILE).await?;
        first.create(&ROOT, inner, &name, &shared::new_file(aze_proto::FileKind::File, true)).await?;
    }
    if plan.looks {
        places.filled = Some(first.mkdir_all(&ROOT, attributes::FILLED_DIR, 0o755).await?.ino);
    }
    Ok((clients, places))
}

/// Runs all workloads to their end, or to the end of their clients.
async fn work(cluster: &Arc<Cluster>, plan: &Plan, board: &Arc<Board>, clients: &[Arc<Client>], places: Places) {
    let client = |number: usize| (number % clients.len(), clients[number % clients.len()].clone());
    let worker = |number: usize, label: &str| Worker::new(cluster, board, client(number), label, plan.think_us_max);
    let mut tasks = Vec::new();
    for number in 0..plan.name_tasks {
        let worker = worker(number, &format!("names {number}"));
        tasks.push(cluster.on_client(number % clients.len(), shared::run(worker, plan.name_ops)));
    }
    for number in 0..plan.file_tasks {
        let writer = worker(number, &format!("file {number}"));
        tasks.push(cluster.on_client(number % clients.len(), files::write(writer, number, plan.file_ops)));
        for reader in [number + 1, number + 2] {
            let label = format!("reader {reader} of file {number}");
            let reading = files::read(worker(reader, &label), number, plan.file_ops / 2);
            tasks.push(cluster.on_client(reader % clients.len(), reading));
        }
    }
    for number in 0..plan.lock_tasks {
        let locking = locks::run(worker(number, &format!("locker {number}")), number, plan.name_ops);
        tasks.push(cluster.on_client(number % clients.len(), locking));
    }
    for number in 0..plan.append_tasks {
        let appending = appends::add(worker(number, &format!("appender {number}")), plan.file_ops, number == 0);
        tasks.push(cluster.on_client(number % clients.len(), appending));
    }
    if plan.append_tasks > 0 {
        let reading = appends::read(worker(1, "reader of appends"), plan.file_ops / 2);
        tasks.push(cluster.on_client(1 % clients.len(), reading));
    }
    for slot in board.listings() {
        tasks
            .push(cluster.on_client(0, listing::change(worker(0, "lister's friend"), slot.clone(), plan.name_ops * 2)));
        tasks.push(cluster.on_client(1 % clients.len(), listing::list(worker(1, "lister"), slot, plan.name_ops)));
    }
    if let Some(dir) = places.guarded {
        let door = rights::open_door();
        tasks.push(cluster.on_client(0, rights::guard(worker(0, "guard"), dir, door.clone(), plan.name_ops)));
        tasks.push(cluster.on_client(1 % clients.len(), rights::enter(worker(1, "user"), door, plan.name_ops * 2)));
    }
    if let Some(ino) = places.attributed {
        let count = attributes::SharedCount::default();
        tasks.push(cluster.on_client(0, attributes::count(worker(0, "counter"), ino, count.clone(), plan.name_ops)));
        let reading = attributes::read(worker(1, "reader of the count"), ino, count, plan.name_ops * 2);
        tasks.push(cluster.on_client(1 % clients.len(), reading));
    }
    if let Some(dir) = places.moving {
        tasks.push(cluster.on_client(0, moving::go(worker(0, "mover"), dir, plan.name_ops / 2)));
        for number in 1..3 {
            let watching = moving::watch(worker(number, &format!("watcher {number}")), dir, plan.name_ops * 2);
            tasks.push(cluster.on_client(number % clients.len(), watching));
        }
    }
    if plan.looks {
        let looking = attributes::look(worker(1, "looker"), plan.name_ops);
        tasks.push(cluster.on_client(1 % clients.len(), looking));
    }
    if let Some(dir) = places.filled {
        let names = attributes::SharedCount::default();
        for number in 0..2 {
            let filler = worker(number, &format!("filler {number}"));
            let filling = attributes::fill(filler, dir, names.clone(), number, plan.name_ops * 2);
            tasks.push(cluster.on_client(number % clients.len(), filling));
            let weigher = worker(number, &format!("weigher {number}"));
            let weighing = attributes::weigh(weigher, dir, names.clone(), plan.name_ops * 4);
            tasks.push(cluster.on_client(number % clients.len(), weighing));
        }
    }
    if plan.checks {
        let (client, plan, board) = (clients[0].clone(), plan.clone(), board.clone());
        tasks.push(cluster.on_client(0, async move {
            let checked = client.check(&ROOT, CheckOptions::default()).await;
            audit::looked_through(&plan, &board, "under work", checked);
        }));
    }
    // A task whose client was killed gives an error, as intended.
    join_all(tasks).await;
}

async fn heal(cluster: &Arc<Cluster>, board: &Arc<Board>) {
    cluster.sim.heal();
    cluster.sim.set_faults(Faults::default());
    board.note(cluster, "all faults are over".into());
    cluster.sim.sleep(REST).await;
}

/// Whether the search for an order came to an end in every area.
fn judge_names(board: &Board) -> bool {
    let mut decided = true;
    for area in board.areas() {
        match check(area.base, &area.events, SEARCH_BUDGET, board.mix() == Mix::Restarts) {
            Verdict::Linearizable => {}
            Verdict::Undecided => decided = false,
            Verdict::Impossible(why) => board.violation(format!("names: {why}")),
        }
    }
    decided
}
