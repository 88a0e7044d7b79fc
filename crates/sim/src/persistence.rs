//! Persistent volumes: clients work, then everything ends at once, by a power cut that every server
//! meets at a place of its own in its journal, or as `kill -9` of all of them; then all of it starts
//! again, and every file that was promised must be there, whole, under its name.
//!
//! After a power cut the synced changes are promised; later ones may be there or not. After
//! `kill -9` all acknowledged changes are promised.

mod again;
mod alone;
mod book;
mod look;
mod moving;
mod trouble;
mod wide;
mod without;
mod worker;

use crate::cluster::{Cluster, Layout, server_node};
use crate::plan::{Mix, Plan, slow_payloads};
use crate::work::Board;
use aze_io::sim::{DiskFault, Faults, Sim, SimRng};
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_server::sabotage::Switches;
use book::Book;
use futures_util::future::join_all;
use look::look;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use worker::Worker;

pub use trouble::Trouble;

/// How often everything ends and starts again in one run.
const LIVES: usize = 3;

/// Longest file, in chunks.
const CHUNKS_MAX: u64 = 4;

/// Longest write, in bytes.
const WRITE_BYTES_MAX: u64 = 90_000;

/// How much is in a journal before a checkpoint, at least and at most, as powers of two.
const CHECKPOINT_BITS: (u64, u64) = (14, 20);

/// Longest life in which servers leave that count the starts, in microseconds: all slots of one move.
const FIRST_LEAVES_US_MAX: u64 = 3_000_000;

/// Tasks of a crowd.
const CROWD: usize = 12;

/// Longest run in virtual time.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Makes a plan of a seed.
pub type PlanOf = fn(u64) -> PersistentPlan;

/// What can be made of a seed.
pub const KINDS: [(&str, PlanOf); 10] = [
    ("without", PersistentPlan::without),
    ("moving", PersistentPlan::moving),
    ("first-leaving", PersistentPlan::first_leaving),
    ("moving-alone", PersistentPlan::moving_alone),
    ("alone", PersistentPlan::alone),
    ("ending", PersistentPlan::of),
    ("staying", PersistentPlan::staying),
    ("failing", PersistentPlan::failing),
    ("troubled", PersistentPlan::troubled),
    ("renaming", PersistentPlan::renaming),
];

/// What a seed means here.
#[derive(Clone, Debug)]
pub struct PersistentPlan {
    /// The seed.
    pub seed: u64,
    /// Number of servers.
    pub servers: u16,
    /// Tasks that work.
    pub tasks: usize,
    /// Directories of each server.
    pub directories: u16,
    /// What the volume promises.
    pub durability: Durability,
    /// Whether the power is cut, or only the processes die.
    pub power_cut: bool,
    /// Clients stay: one server dies, by a power cut or alone, and the volume is started again
    /// under them.
    pub clients_stay: bool,
    /// Clients and the other servers stay: servers that die come back alone.
    pub alone: bool,
    /// Clients stay: servers die, then all, and the volume is started again without some, and later with all.
    pub without: bool,
    /// Each time they do so at the second try only.
    pub starts_fail: bool,
    /// Whether some renames are exchanges.
    pub exchanges: bool,
    /// Slots move meanwhile, and servers join and leave.
    pub moves: bool,
    /// The servers that leave are those that count the starts, one after the other.
    pub first_leaves: bool,
    /// What goes wrong besides, and with it one more client that does what the others do not.
    pub trouble: Option<Trouble>,
    /// Protections removed.
    pub switches: Switches,
}

impl PersistentPlan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> PersistentPlan {
        let mut rng = SimRng::new(seed, "lasting plan");
        let durability = *rng.pick(&[Durability::Fsync, Durability::Fsync, Durability::Close, Durability::None]);
        let power_cut = durability != Durability::None && rng.chance(700_000);
        let (servers, tasks) = (rng.between(1, 4) as u16, rng.between(1, 3) as usize);
        let exchanges = SimRng::new(seed, "exchanges").chance(500_000);
        let directories = *SimRng::new(seed, "directories").pick(&[1, 1, 2, 3]);
        let (clients_stay, alone, without, starts_fail, moves) = (false, false, false, false, false);
        let (first_leaves, trouble, switches) = (false, None, Switches::default());
        PersistentPlan {
            seed,
            servers,
            tasks,
            directories,
            durability,
            power_cut,
            clients_stay,
            alone,
            without,
            starts_fail,
            exchanges,
            moves,
            first_leaves,
            trouble,
            switches,
        }
    }

    /// The plan of a seed for a volume that is started again under its clients.
    pub fn staying(seed: u64) -> PersistentPlan {
        PersistentPlan { clients_stay: true, ..PersistentPlan::of(seed) }
    }

    /// The plan of a seed for servers that die and come back while the others go on.
    pub fn alone(seed: u64) -> PersistentPlan {
        let plan = PersistentPlan::of(seed);
        PersistentPlan { alone: true, power_cut: false, servers: plan.servers.max(2), ..plan }
    }

    /// The plan of a seed for a volume that is started again without some of its servers, under its clients, and then with all.
    pub fn without(seed: u64) -> PersistentPlan {
        let (plan, servers) = (PersistentPlan::of(seed), SimRng::new(seed, "servers").between(3, 5) as u16);
        PersistentPlan { without: true, servers, ..plan }
    }

    /// The plan of a seed for a volume whose slots move, and whose servers join and leave, until everything ends.
    pub fn moving(seed: u64) -> PersistentPlan {
        PersistentPlan { moves: true, ..PersistentPlan::of(seed) }
    }

    /// The same, and the servers that leave are those that count the starts.
    pub fn first_leaving(seed: u64) -> PersistentPlan {
        let plan = PersistentPlan::moving(seed);
        PersistentPlan { first_leaves: true, servers: plan.servers.max(3), ..plan }
    }

    /// The plan of a seed for servers that die while slots move, and come back while the others go on.
    pub fn moving_alone(seed: u64) -> PersistentPlan {
        PersistentPlan { moves: true, ..PersistentPlan::alone(seed) }
    }

    /// The plan of a seed for a volume whose first start fails, each time, under its clients.
    pub fn failing(seed: u64) -> PersistentPlan {
        PersistentPlan { starts_fail: true, ..PersistentPlan::staying(seed) }
    }

    /// The plan of a seed under trouble.
    pub fn troubled(seed: u64) -> PersistentPlan {
        PersistentPlan { trouble: Some(Trouble::of(seed)), ..PersistentPlan::of(seed) }
    }

    /// The plan of a seed for a crowd that renames until the power is cut.
    pub fn renaming(seed: u64) -> PersistentPlan {
        let servers = SimRng::new(seed, "renaming plan").between(1, 3) as u16;
        let (durability, trouble) = (Durability::Fsync, Some(Trouble::renaming(seed)));
        PersistentPlan { servers, tasks: CROWD, durability, power_cut: true, trouble, ..PersistentPlan::of(seed) }
    }
}

/// Runs a seed; returns the violations found.
///
/// # Panics
/// When a task of the cluster panics, spins, or waits for ever.
pub fn run(plan: &PersistentPlan, verbose: bool) -> Vec<String> {
    run_counting(plan, verbose).0
}

/// What a run has done.
#[derive(Default)]
pub struct Counts {
    /// Units of data that came back from disks.
    pub back: AtomicU64,
    /// Slots that have moved.
    pub moved: AtomicU64,
    /// Servers that counted the starts and have left.
    pub firsts: AtomicU64,
    /// Starts without some servers.
    pub without: AtomicU64,
    /// Those that were refused, since others could have started.
    pub refused: AtomicU64,
}

/// As [`run`]; also gives its counts.
///
/// # Panics
/// As there.
pub fn run_counting(plan: &PersistentPlan, verbose: bool) -> (Vec<String>, Counts) {
    let counts = Counts::default();
    let sim = Sim::new(plan.seed, Faults::default());
    sim.set_time_limit(TIME_MAX);
    sim.set_sharing(*sim.rng("lending").pick(&[None, Some(1), Some(10_000)]));
    let checkpoint_bits = plan.trouble.as_ref().map_or(CHECKPOINT_BITS, Trouble::checkpoint_bits);
    sim.set_slow_payloads(slow_payloads(&mut sim.rng("pauses")));
    let layout = Layout {
        durability: Some(plan.durability),
        storage_dirs: plan.directories,
        switches: plan.switches,
        checkpoint_bytes: 1 << sim.rng("checkpoints").between(checkpoint_bits.0, checkpoint_bits.1),
        // Mostly less than clients write.
        memory_bytes: 1 << sim.rng("memory").between(20, 24).min(23),
        ..Layout::of(plan.servers)
    };
    let cluster = Cluster::new(sim.clone(), layout);
    let general = Plan { mix: Mix::Quiet, ..Plan::of(plan.seed) };
    let board = Board::new(&general, &cluster, verbose);
    sim.block_on(lives(&cluster, plan, &board, &counts));
    if verbose {
        board.story().iter().for_each(|line| eprintln!("{line}"));
    }
    let violations = board.violations();
    cluster.end();
    (violations, counts)
}

async fn lives(cluster: &Arc<Cluster>, plan: &PersistentPlan, board: &Arc<Board>, counts: &Counts) {
    if plan.alone {
        return alone::lives(cluster, plan, board, counts).await;
    }
    if plan.without {
        return without::lives(cluster, plan, board, counts).await;
    }
    if plan.clients_stay {
        return again::lives(cluster, plan, board).await;
    }
    let (book, wide) = (Arc::new(Mutex::new(Book::default())), Arc::new(Mutex::new(wide::WideBook::default())));
    let mut clean_ends = cluster.sim.rng("clean ends");
    for life in 0..=LIVES {
        let ends_cleanly = clean_ends.chance(250_000);
        if let Err(failure) = cluster.start().await {
            return board.violation(format!("life {life}: the volume does not start: {failure}"));
        }
        let client = match cluster.connect(0).await {
            Ok(client) => client,
            Err(failure) => return board.violation(format!("life {life}: no client connects: {failure}")),
        };
        trouble::end(cluster);
        // All servers soon drop the data and inodes that a start drops.
        cluster.sim.sleep(Duration::from_secs(3)).await;
        look(cluster, plan, board, &client, &book, life).await;
        if let Err(why) = wide::look(cluster, &client, &wide).await {
            board.violation(format!("start {life}: {why}"));
        }
        let units = cluster.servers().iter().map(|server| server.units_brought_back()).sum();
        counts.back.fetch_add(units, Ordering::Relaxed);
        if !board.violations().is_empty() || life == LIVES {
            return;
        }
        let mut ends = Vec::new();
        if let Some(trouble) = &plan.trouble {
            if life == 0
                && let Err(failure) = wide::begin(&client, &wide).await
            {
                return board.violation(format!("the first files: {failure}"));
            }
            let rng = cluster.sim.rng(&format!("wide of life {life}"));
            let lasts = !plan.power_cut || ends_cleanly;
            ends.push(
                cluster
                    .on_client(0, wide::work(lasts, trouble.clone(), rng, client.clone(), wide.clone(), board.clone())),
            );
            trouble.begin(cluster, life);
        }
        for task in 0..plan.tasks {
            let worker = Worker {
                acknowledged_lasts: !plan.power_cut || ends_cleanly,
                ..Worker::new(plan, cluster, (life, task), &client, &book, board)
            };
            ends.push(cluster.on_client(0, worker.work()));
        }
        let moves = Arc::new(moving::Progress::default());
        if plan.moves {
            let rng = cluster.sim.rng(&format!("moves of life {life}"));
            ends.push(cluster.on_driver(moving::go(
                cluster.clone(),
                board.clone(),
                moves.clone(),
                rng,
                plan.first_leaves,
            )));
        }
        let us_max = match &plan.trouble {
            Some(trouble) => trouble.life_us_max(),
            None if plan.first_leaves => FIRST_LEAVES_US_MAX,
            None => 400_000,
        };
        let until = Duration::from_micros(cluster.sim.rng(&format!("life {life}")).between(2_000, us_max));
        cluster.sim.sleep(until / 2).await;
        if let Some(trouble) = &plan.trouble {
            trouble.go_on(cluster, life);
        }
        match &plan.trouble {
            None if plan.moves => {
                let rng = &mut cluster.sim.rng(&format!("last moves of life {life}"));
                match plan.first_leaves && rng.chance(500_000) {
                    true => moves.when_the_first_changes(cluster, rng, until - until / 2).await,
                    false => moves.in_a_move(cluster, rng, until - until / 2).await,
                }
            }
            Some(trouble) => trouble.last_moments(cluster, until - until / 2).await,
            None => cluster.sim.sleep(until - until / 2).await,
        }
        board.note(cluster, format!("everything ends, cleanly: {ends_cleanly}, power cut: {}", plan.power_cut));
        moves.end();
        if ends_cleanly {
            cluster.kill_client(0);
            if plan.moves {
                // The slot that moves arrives, or not.
                cluster.sim.sleep(Duration::from_secs(5)).await;
            }
            for server in cluster.servers() {
                if let Err(failure) = server.rest().await {
                    return board.violation(format!("life {life}: no clean end: {failure}"));
                }
            }
        }
        cluster.kill_all(1, plan.power_cut);
        // They have ended with their node.
        join_all(ends).await;
        counts.moved.fetch_add(moves.moved(), Ordering::Relaxed);
        counts.firsts.fetch_add(moves.firsts(), Ordering::Relaxed);
        (0..cluster.places()).for_each(|server| cluster.sim.set_disk_fault(&server_node(server), DiskFault::None));
    }
}
