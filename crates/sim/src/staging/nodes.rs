//! Workers of a stage: processes on nodes of their own, which copy and read back what the command gives them.
//!
//! The team, the messages and the worker are those of room `copy`. Here are the processes, and the lines between them and the command.
//! Workers are killed, with their machines or without, or stopped, and so is the command; lines are cut or held. What a worker writes once
//! it was given up must be in no file that has a name, and none outlives its command.

use super::job::What;
use super::line::{Line, Writer};
use super::place::Place;
use super::programs::ROOT;
use super::{ASIDE, BELOW, Run, StagingPlan};
use crate::Cluster;
use crate::cluster::client_node;
use aze_copy::stage::team::worker::{self, serve};
use aze_copy::stage::team::{Launched, Launcher, SILENCE_MAX, START_TIME_MAX, Started, Team};
use aze_copy::tree::{Spot, Tree};
use aze_io::sim::{DRIVER, Process, SimRng};
use aze_io::sync::Mutex;
use aze_io::threads::Waiter;
use aze_tree::{Connection, VolumeTree};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Tasks of a worker at the same time.
const JOBS: usize = 2;

/// When a command that is stopped while nothing else happens to it and its workers is stopped at the latest, after its beginning.
const STOPPED_AFTER: Duration = Duration::from_millis(150);

/// How long workers may go on when their command has ended: one that is stopped or held goes on later.
const OUTLIVES_MAX: Duration = Duration::from_secs(1);

/// A worker, for those who trouble it.
pub(super) struct Worker {
    node: usize,
    /// The machine, by which page caches are told apart.
    system: usize,
    process: Process,
    /// To the worker, and from it.
    lines: [Line; 2],
    has_ended: Arc<AtomicBool>,
    /// It is stopped, or its lines are held, until this moment.
    until_ns: u64,
    /// Another file system than the command's, under the same path.
    elsewhere: Option<Place>,
}

impl Worker {
    fn is_there(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed)
    }

    fn kill(&self, cluster: &Cluster) {
        cluster.kill_client(self.node);
        self.process.kill();
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// All workers of a run, by the order in which they were started.
pub(super) type Workers = Arc<Mutex<Vec<Worker>>>;

/// The worker's process.
struct Life {
    cluster: Arc<Cluster>,
    node: usize,
    system: usize,
    place: Place,
    backing: Option<Vec<u8>>,
    lines: [Line; 2],
    has_ended: Arc<AtomicBool>,
}

impl Life {
    fn run(self, mut errors: Writer) {
        let [input, output] = self.lines.clone();
        let io = self.cluster.client_io(self.node);
        // A greeting of its shell.
        if self.node.is_multiple_of(3) {
            output.put(b"welcome to this node\n");
        }
        let (input, output) = (input.reader(io), output.writer());
        let process: Arc<dyn worker::Process> = Arc::new(self);
        if let Err(trouble) = serve(&process, input, Box::new(output)) {
            // The command may have closed it.
            let _ = errors.write_all(trouble.text.as_bytes());
        }
    }
}

impl worker::Process for Life {
    fn system(&self) -> String {
        format!("system {}", self.system)
    }

    fn be_nice(&self, _: i32) -> Outcome<()> {
        Ok(())
    }

    fn open(&self, volume: Option<&str>, path: &[u8]) -> Outcome<Spot> {
        let tree: Arc<dyn Tree> = match volume {
            None => Arc::new(self.place.clone()),
            Some(name) => {
                let client = match Waiter::Simulated.block_on(self.cluster.connect(self.node)) {
                    Some(connected) => connected.map_err(|failure| Trouble::volume("connect", &failure))?,
                    None => return Err(Trouble::new(Exit::Fatal, "this process was killed")),
                };
                let (who, backing) = (ROOT.clone(), self.backing.clone());
                let connection = Connection { client, who, waiter: Waiter::Simulated, volume: name.into(), backing };
                Arc::new(VolumeTree::new(connection, "aze:".into()))
            }
        };
        Ok(Spot { tree, path: path.to_vec() })
    }

    fn die(&self, _: Exit) {
        // Every other one goes on with what its threads are at, which is worse.
        if self.node.is_multiple_of(2) {
            Process::stop_own();
            self.has_ended.store(true, Ordering::Relaxed);
            self.lines.iter().for_each(|line| line.cut(usize::MAX));
        }
    }
}

/// Starts the workers of one command.
struct Starter {
    cluster: Arc<Cluster>,
    place: Place,
    command: usize,
    /// A node and a machine for each.
    nodes: Vec<(usize, usize)>,
    /// Nodes that have had their worker: one that is started anew gets another one, with a client of its own, on the same machine.
    used: Mutex<BTreeSet<usize>>,
    next_node: Arc<AtomicUsize>,
    /// The first one has another file system in the place of the destination.
    is_elsewhere: bool,
    /// This one is not reached.
    unreached: Option<usize>,
    workers: Workers,
    backing: Option<Vec<u8>>,
}

impl Launcher for Starter {
    fn start(&self, at: usize) -> Outcome<Started> {
        if self.unreached == Some(at) && at.is_multiple_of(2) {
            return Err(Trouble::new(Exit::Again, "no program of this name"));
        }
        let (mut node, system) = self.nodes[at];
        if !self.used.lock().insert(node) {
            node = self.next_node.fetch_add(1, Ordering::Relaxed);
        }
        let elsewhere = (self.is_elsewhere && at == 0).then(|| {
            let sim = &self.cluster.sim;
            Place::new(sim.node(DRIVER), sim.rng("elsewhere"), &[BELOW, ASIDE])
        });
        let place = elsewhere.as_ref().unwrap_or(&self.place).on_system(system);
        let (lines, errors) = ([Line::default(), Line::default()], Line::default());
        let has_ended = Arc::<AtomicBool>::default();
        let (cluster, backing) = (self.cluster.clone(), self.backing.clone());
        let life = Life { cluster, node, system, place, backing, lines: lines.clone(), has_ended: has_ended.clone() };
        let (ended, words, is_unreached) = (has_ended.clone(), errors.writer(), self.unreached == Some(at));
        let main = move || {
            if is_unreached {
                let (mut words, _) = (words, life.lines[1].writer());
                let _ = words.write_all(b"no route to it");
            } else {
                life.run(words);
            }
            ended.store(true, Ordering::Relaxed);
        };
        let process = Process::start(&self.cluster.sim, &client_node(node), main);
        let [input, output] = &lines;
        let (input, output) = (input.writer(), output.reader(self.cluster.client_io(self.command)));
        let errors = errors.reader(self.cluster.client_io(self.command));
        let launched = Launching { lines: lines.clone(), has_ended: has_ended.clone() };
        self.workers.lock().push(Worker { node, system, process, lines, has_ended, until_ns: 0, elsewhere });
        let (input, output, errors) = (Box::new(input), Box::new(output), Box::new(errors));
        Ok(Started { input, output, errors, launched: Box::new(launched) })
    }

    fn nice(&self) -> i32 {
        0
    }
}

/// The launcher at the command's side: a worker is out of its reach.
struct Launching {
    lines: [Line; 2],
    has_ended: Arc<AtomicBool>,
}

impl Launched for Launching {
    fn kill(&mut self) {
        self.lines.iter().for_each(|line| line.cut(usize::MAX));
    }

    fn has_ended(&mut self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }
}

impl Drop for Launching {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What went wrong on purpose with the workers of a command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Troubles {
    /// The command was stopped.
    pub stops: u32,
    /// Something for which a worker may be given up.
    pub others: u32,
}

/// Whether a command has other nodes work for it.
pub(super) fn has_workers(what: What) -> bool {
    what == What::Stage || what.is_rounds()
}

/// The workers of a command of a run.
pub(super) fn team(run: &Run, command: usize, is_elsewhere: bool, rng: &mut SimRng) -> Team {
    let mut nodes: Vec<(usize, usize)> = Vec::new();
    for _ in 0..run.plan.nodes {
        let node = run.next_node();
        // Containers of one machine have one page cache.
        let system = if rng.chance(200_000) { nodes.first().map_or(command, |(_, system)| *system) } else { node };
        nodes.push((node, system));
    }
    let has_unreached = !run.model.lock().is_over && rng.chance(100_000);
    let starter = Starter {
        cluster: run.cluster.clone(),
        place: run.place.clone(),
        command,
        unreached: has_unreached.then(|| rng.below(nodes.len() as u64) as usize),
        is_elsewhere,
        workers: run.workers.clone(),
        backing: run.plan.is_over_directory.then(|| BELOW.into()),
        nodes: nodes.clone(),
        used: Mutex::default(),
        next_node: run.nodes.clone(),
    };
    let names = nodes.iter().map(|(node, _)| client_node(*node)).collect();
    let is_named = has_unreached && rng.chance(300_000);
    let mut volumes = [Some("sim".into()), None];
    if run.plan.is_inward {
        volumes.reverse();
    }
    Team::new(names, is_named, volumes, JOBS, Box::new(starter))
}

impl StagingPlan {
    /// The same with workers on other nodes, which copy and read back.
    pub fn with_nodes(self) -> StagingPlan {
        let nodes = SimRng::new(self.seed, "nodes").between(1, 3) as usize;
        StagingPlan { nodes, ..self }
    }
}

impl Run {
    /// Whether a command with workers is stopped for longer than it waits for any of them, while nothing else happens to it and to them.
    pub(super) fn is_stopped_alone(&self, what: What, rng: &mut SimRng) -> bool {
        let has_workers = self.plan.nodes > 0 && has_workers(what);
        has_workers && self.plan.kills && !self.model.lock().is_over && rng.chance(200_000)
    }

    /// Stops a command, and has it go on.
    pub(super) async fn stop_alone(
        &self,
        command: &Process,
        mut rng: SimRng,
        troubles: &Mutex<Troubles>,
    ) -> Infallible {
        self.cluster.sim.sleep(Duration::from_nanos(rng.below(STOPPED_AFTER.as_nanos() as u64))).await;
        let patience = if rng.chance(500_000) { SILENCE_MAX } else { START_TIME_MAX };
        let time = patience + Duration::from_nanos(rng.below(5_000_000_000));
        self.tell(|| format!("the command stops for {time:?}, and nothing else happens"));
        self.counts.lock().commands_stopped += 1;
        troubles.lock().stops += 1;
        command.stop();
        self.cluster.sim.sleep(time).await;
        command.go_on();
        std::future::pending().await
    }

    /// Kills workers, with their machines or without, stops them or the command, cuts and holds lines, for as long as it is polled.
    pub(super) async fn trouble_workers(
        &self,
        command: &Process,
        mut rng: SimRng,
        troubles: &Mutex<Troubles>,
    ) -> Infallible {
        if self.plan.nodes == 0 {
            return std::future::pending().await;
        }
        let mut command_until_ns = 0;
        loop {
            self.cluster.sim.sleep(Duration::from_millis(1 + rng.below(400))).await;
            let now_ns = self.cluster.sim.now_ns();
            if command_until_ns > 0 && now_ns >= command_until_ns {
                command_until_ns = 0;
                command.go_on();
            }
            self.let_workers_go_on(now_ns);
            let mut workers = self.workers.lock();
            let mut alive: Vec<&mut Worker> = workers.iter_mut().filter(|worker| worker.is_there()).collect();
            if alive.is_empty() || !self.plan.kills || self.model.lock().is_over || !rng.chance(150_000) {
                continue;
            }
            let at = rng.below(alive.len() as u64) as usize;
            let worker = &mut alive[at];
            // For longer than a worker may be silent, or not.
            let long = SILENCE_MAX + Duration::from_nanos(rng.below(5_000_000_000));
            let time = if rng.chance(600_000) { long } else { Duration::from_nanos(rng.below(9_000_000_000)) };
            let until_ns = now_ns + time.as_nanos() as u64;
            let what = rng.below(10);
            let told =
                ["killed", "lost with its machine", "cut off", "held", "stopped", "left while the command stops"];
            let what = [0, 0, 0, 1, 2, 3, 3, 4, 4, 5][what as usize];
            self.tell(|| format!("the worker on node {} is {} for {time:?}", worker.node, told[what]));
            let mut counts = self.counts.lock();
            troubles.lock().others += u32::from(what < 5 && (what < 3 || time > SILENCE_MAX - Duration::from_secs(2)));
            match what {
                0 | 1 => {
                    counts.workers_killed += 1;
                    worker.kill(&self.cluster);
                    if what == 1 {
                        self.place.lose_machine(worker.system);
                    }
                }
                2 => {
                    counts.lines_cut += 1;
                    worker.lines.iter().for_each(|line| line.cut(rng.below(line.len() as u64 + 1) as usize));
                }
                3 => {
                    counts.lines_cut += 1;
                    worker.until_ns = until_ns;
                    worker.lines.iter().for_each(|line| line.hold(true));
                }
                4 => {
                    counts.workers_stopped += 1;
                    worker.until_ns = until_ns;
                    worker.process.stop();
                }
                _ => {
                    counts.commands_stopped += 1;
                    troubles.lock().stops += 1;
                    command_until_ns = until_ns;
                    command.stop();
                }
            }
        }
    }

    /// Those that are stopped or held go on when their time is over.
    fn let_workers_go_on(&self, now_ns: u64) {
        for worker in self.workers.lock().iter_mut().filter(|worker| worker.until_ns > 0 && now_ns >= worker.until_ns) {
            worker.until_ns = 0;
            if worker.is_there() {
                worker.process.go_on();
            }
            worker.lines.iter().for_each(|line| line.hold(false));
        }
    }

    /// After a command has ended: nothing is where it never was; workers that have ended go.
    pub(super) fn leave_workers(&self) {
        let mut workers = self.workers.lock();
        for worker in workers.iter() {
            let files =
                worker.elsewhere.iter().flat_map(|place| [BELOW, ASIDE].map(|dir| place.all_below(dir.as_bytes())));
            if let Some((path, _)) = files.flatten().next() {
                self.wrong(format!("{}: it is where the command never was", super::shown(&path)));
            }
        }
        let (left, over): (Vec<Worker>, Vec<Worker>) =
            std::mem::take(&mut *workers).into_iter().partition(Worker::is_there);
        *workers = left;
        drop(workers);
        over.iter().for_each(|worker| worker.kill(&self.cluster));
    }

    /// The run is over. Each worker has ended with its command, or does so when it goes on.
    pub(super) async fn end_workers(&self) {
        self.let_workers_go_on(u64::MAX);
        self.cluster.sim.sleep(OUTLIVES_MAX).await;
        for worker in std::mem::take(&mut *self.workers.lock()) {
            if worker.is_there() {
                self.wrong(format!("the worker on node {} has outlived its command", worker.node));
            }
            worker.kill(&self.cluster);
        }
    }
}
