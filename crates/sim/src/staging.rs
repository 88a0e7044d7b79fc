//! Staging in the simulation: the program that stages, as it is shipped, on the client and the servers, as they are shipped, while
//! programs write, everything is killed in turn, and the destination fails.
//!
//! A seed gives a plan. The run keeps what every file may have had at every moment, on both sides, and compares receipts, ledgers
//! and removals with that. See docs/decisions/0104-blocking-threads-in-the-simulation.md.

mod check;
mod inward;
mod job;
mod line;
mod nodes;
mod own_files;
mod place;
mod programs;
mod rounds;
mod users;

pub use place::{Missing, Moods, Place};

use crate::Cluster;
use crate::backing::Below;
use crate::cluster::{CHUNK_BITS, Layout, server_node};
use aze_copy::stage::Side;
use aze_io::sim::{DRIVER, Faults, Process, Sim, SimRng};
use aze_proto::attr::FileKind;
use aze_proto::message::Durability;
use aze_server::sabotage::Switches;
use futures_util::future::{Either, join, select};
use job::{Ended, Job, What};
use own_files::OwnFiles;
use programs::{Gone, INSIDE, Program, ROOT, Shared, hash_of};
use std::ops::AddAssign;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use users::User;

/// The directory over which a volume lies.
const BELOW: &str = "/b";

/// A directory of the volume over a directory that no program uses, with its directories.
const COLD: &str = "/cold";
const COLD_DIRS: [&str; 4] = ["/cold", "/cold/a", "/cold/a/b", "/cold/c"];

/// Names in each of them.
const COLD_NAMES: usize = 30;

/// Where other stages go to.
const ASIDE: &str = "/o";

/// Stages and releases while programs work.
const JOBS: u64 = 8;

/// The same, in rounds.
const ROUNDS_JOBS: u64 = 4;

/// How far the clock of a server is ahead in some runs: more than others follow.
const CLOCK_AHEAD: Duration = Duration::from_secs(600);

/// When a job is asked to end, after its beginning.
const ASKED_AFTER: Duration = Duration::from_millis(200);

/// Attempts at most until all is staged when nothing fails any more.
const LAST_ATTEMPTS_MAX: u32 = 8;

/// How long a job may take when nothing fails, and at most.
const JOB_TIME_MAX: Duration = Duration::from_secs(600);

/// What one seed does.
#[derive(Clone, Debug)]
pub struct StagingPlan {
    /// The seed.
    pub seed: u64,
    /// Files are staged in, and not out.
    pub is_inward: bool,
    /// Servers of the volume.
    pub servers: u16,
    /// Programs that write.
    pub programs: usize,
    /// What the disks of the servers promise; `None`: the volume is in memory, and its servers are not killed.
    pub durability: Option<Durability>,
    /// The volume lies over a directory, and is staged to it.
    pub is_over_directory: bool,
    /// Servers have less room than the files need.
    pub is_tight: bool,
    /// Names that the volume has not are removed.
    pub delete: bool,
    /// All of it appears in one step.
    pub atomic: bool,
    /// Files are released.
    pub releases: bool,
    /// Files that are open for writing are left out.
    pub closed_only: bool,
    /// Stages go on in rounds, and programs hold files open meanwhile.
    pub rounds: bool,
    /// Workers on nodes of their own that copy and read back; without any the command does.
    pub nodes: usize,
    /// Others change the place that is not the volume.
    pub others: bool,
    /// The destination loses its power.
    pub power_cuts: bool,
    /// The destination fails and is full for some time.
    pub fails: bool,
    /// The destination cannot have all names.
    pub is_odd: bool,
    /// Programs give files several names and make symbolic links, and files of the directory below have names elsewhere in it.
    pub links: bool,
    /// Stages, releases and programs are killed.
    pub kills: bool,
    /// The protection that is left out, so that a test can prove that the loss is noticed.
    pub without: Option<Missing>,
    /// The clock of a server is so far ahead that others do not follow it: changes on those move no time of a file that it has
    /// changed.
    pub is_clock_ahead: bool,
    /// Protections that are removed from every server.
    pub switches: Switches,
}

impl StagingPlan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> StagingPlan {
        let mut rng = SimRng::new(seed, "staging");
        let is_over_directory = rng.chance(400_000);
        let is_persistent = rng.chance(400_000);
        let atomic = !is_over_directory && rng.chance(150_000);
        let mut plan = StagingPlan {
            seed,
            is_inward: false,
            // One that comes back needs another one that has gone on.
            servers: rng.between(1 + u64::from(is_persistent), 3) as u16,
            programs: rng.between(1, 3) as usize,
            durability: is_persistent.then_some(Durability::Fsync),
            is_over_directory,
            is_tight: is_over_directory && rng.chance(400_000),
            delete: rng.chance(500_000),
            atomic,
            releases: !atomic && rng.chance(500_000),
            closed_only: !atomic && rng.chance(200_000),
            rounds: false,
            nodes: 0,
            others: !is_over_directory && rng.chance(300_000),
            power_cuts: rng.chance(300_000),
            fails: rng.chance(500_000),
            is_odd: !is_over_directory && rng.chance(150_000),
            kills: rng.chance(800_000),
            links: false,
            is_clock_ahead: false,
            without: None,
            switches: Switches::default(),
        };
        plan.links = !plan.is_odd && rng.chance(400_000);
        // Files of several chunks need room.
        plan.is_clock_ahead = !plan.is_tight && SimRng::new(seed, "clock").chance(300_000);
        plan
    }

    /// Whether names are taken over before they are used: there is room for them.
    fn has_cold(&self) -> bool {
        self.is_over_directory && !self.is_tight
    }

    /// The plan of a seed in which stages go on in rounds.
    pub fn in_rounds(seed: u64) -> StagingPlan {
        let mut rng = SimRng::new(seed, "rounds");
        let closed_only = rng.chance(600_000);
        StagingPlan { atomic: false, closed_only, rounds: true, ..StagingPlan::of(seed) }
    }

    /// The plan of a seed in which workers on other nodes copy and read back.
    pub fn by_nodes(seed: u64) -> StagingPlan {
        StagingPlan::of(seed).with_nodes()
    }
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub struct StagingOutcome {
    /// All violations found.
    pub wrong: Vec<String>,
    /// What the run did, so that a test can prove that it was something.
    pub counts: Counts,
    /// Of the whole run, see [`Sim::trace_hash`].
    pub trace_hash: u64,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Changes of files that were answered.
    pub changes: u64,
    /// Jobs that were killed.
    pub kills: u64,
    /// Receipts that were compared, and their lines.
    pub receipts: u64,
    /// See there.
    pub lines: u64,
    /// Lines of removals.
    pub removals: u64,
    /// Files that were found to be released.
    pub released: u64,
    /// Files that the volume need not hold any more.
    pub drained: u64,
    /// Losses of power.
    pub power_cuts: u64,
    /// Servers that were killed, and came back.
    pub servers_killed: u64,
    /// Names of directories of the place that the volume has taken over before they were used.
    pub warmed: u64,
    /// Objects that a look found to be staged, when programs had ended.
    pub staged: u64,
    /// Changes of the source by others, where files are staged in.
    pub underneath: u64,
    /// Whole files of the source that programs have found in the volume.
    pub found: u64,
    /// Changes after the last stage that a look has named.
    pub dirty: u64,
    /// Rounds that have begun, and those that were broken off.
    pub rounds: u64,
    /// See there.
    pub broken_off: u64,
    /// Last rounds that were done before the end, and those that were late.
    pub in_time: u64,
    /// See there.
    pub late: u64,
    /// Files that rounds have left out, since programs had them open.
    pub open: u64,
    /// Workers that were killed, and that stood still.
    pub workers_killed: u64,
    /// See there.
    pub workers_stopped: u64,
    /// Lines between a command and a worker that were cut, or held.
    pub lines_cut: u64,
    /// Commands that stood still.
    pub commands_stopped: u64,
    /// Stages that were refused, since a worker had another file system in the place of the destination.
    pub refused: u64,
    /// Lines of files that another node has read back.
    pub by_others: u64,
    /// Whether objects of the directory below were left alone at the end, for want of a proof that they are the volume's.
    pub conflicts: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, one: Counts) {
        let Counts {
            changes,
            kills,
            receipts,
            lines,
            removals,
            released,
            drained,
            power_cuts,
            servers_killed,
            warmed,
            staged,
            underneath,
            found,
            dirty,
            rounds,
            broken_off,
            in_time,
            late,
            open,
            workers_killed,
            workers_stopped,
            lines_cut,
            commands_stopped,
            refused,
            by_others,
            conflicts,
        } = one;
        self.changes += changes;
        self.kills += kills;
        self.receipts += receipts;
        self.lines += lines;
        self.removals += removals;
        self.released += released;
        self.drained += drained;
        self.power_cuts += power_cuts;
        self.servers_killed += servers_killed;
        self.warmed += warmed;
        self.staged += staged;
        self.underneath += underneath;
        self.found += found;
        self.dirty += dirty;
        self.rounds += rounds;
        self.broken_off += broken_off;
        self.in_time += in_time;
        self.late += late;
        self.open += open;
        self.workers_killed += workers_killed;
        self.workers_stopped += workers_stopped;
        self.lines_cut += lines_cut;
        self.commands_stopped += commands_stopped;
        self.refused += refused;
        self.by_others += by_others;
        self.conflicts += conflicts;
    }
}

/// Runs one seed.
pub fn run(plan: &StagingPlan, verbose: bool) -> StagingOutcome {
    let sim = Sim::new(plan.seed, Faults::default());
    let place = Place::new(sim.node(DRIVER), sim.rng("place"), &[BELOW, ASIDE]);
    let memory_bytes = if plan.is_tight { 10 << CHUNK_BITS } else { 16 << 20 };
    let below = Below { tree: Arc::new(place.clone()), root: place.root_identity() };
    let model = Shared::default();
    place.put_dir(&format!("{BELOW}/d"));
    if plan.is_over_directory {
        prepare_below(plan, &place, &model);
    }
    if plan.is_inward {
        inward::prepare(plan, &place, &mut sim.rng("source"));
    }
    let mut layout = Layout {
        durability: plan.durability,
        switches: plan.switches,
        backing: plan.is_over_directory.then_some(below),
        ..Layout::of(plan.servers)
    };
    match plan.durability {
        None => layout.memory_bytes = memory_bytes,
        Some(_) => layout.disk_bytes = layout.disk_bytes.min(memory_bytes),
    }
    let cluster = Cluster::new(sim.clone(), layout);
    let run = Run {
        plan: plan.clone(),
        cluster: cluster.clone(),
        place,
        model,
        files: OwnFiles::new(plan.seed),
        counts: aze_io::sync::Mutex::default(),
        nodes: Arc::default(),
        starts: Arc::default(),
        checked: aze_io::sync::Mutex::default(),
        lines: aze_io::sync::Mutex::default(),
        number: std::sync::atomic::AtomicU64::new(0),
        workers: Arc::default(),
        verbose,
    };
    sim.block_on(run.whole());
    let trace_hash = sim.trace_hash();
    cluster.end();
    let model = run.model.lock();
    let (changes, released, found) = (model.changes, model.released, model.copies.found);
    let counts = Counts { changes, released, found, ..*run.counts.lock() };
    StagingOutcome { wrong: model.wrong.clone(), counts, trace_hash }
}

fn shown(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path)
}

/// Whether a stage leaves an object of the directory below alone, for want of a proof that it is the volume's: an attempt that has
/// put it there may have been broken off, and its note may be lost or superseded.
fn is_conflict(failure: &str) -> bool {
    let texts = ["neither is touched", "it has changed since the volume has taken it from there"];
    texts.iter().any(|text| failure.contains(text))
}

/// Whether it leaves a place alone since the object there has several names.
fn is_of_several_names(failure: &str) -> bool {
    let texts = ["names there, and a copy would get this one alone", "it has several names there"];
    texts.iter().any(|text| failure.contains(text))
}

/// The other name of the first file of a program's, in the directory below.
fn other_name(program: usize) -> String {
    format!("{BELOW}/other-{program}")
}

/// Contents of the directory before the volume lies over it.
fn prepare_below(plan: &StagingPlan, place: &Place, model: &Shared) {
    for dir in COLD_DIRS.into_iter().filter(|_| plan.has_cold()) {
        place.put_dir(&format!("{BELOW}{dir}"));
        (0..COLD_NAMES).for_each(|number| place.put_file(&format!("{BELOW}{dir}/f{number}"), vec![number as u8; 40]));
    }
    for me in 0..plan.programs {
        place.put_dir(&format!("{BELOW}{INSIDE}/w{me}"));
        for number in 0..3 {
            let bytes = vec![1 + number as u8; (number * 50_000 + 1000) as usize];
            let path = format!("{INSIDE}/w{me}/n{number}");
            place.put_file(&format!("{BELOW}{path}"), bytes.clone());
            if plan.links && number == 0 {
                place.put_name(&format!("{BELOW}{path}"), &other_name(me));
            }
            model.lock().files.push(programs::Known::there(path.into_bytes(), bytes, me));
        }
    }
}

/// The beginning of a stage.
#[derive(Clone, Copy, Debug)]
struct Start {
    at: u64,
    is_closed_only: bool,
}

/// One run.
struct Run {
    plan: StagingPlan,
    cluster: Arc<Cluster>,
    place: Place,
    model: Shared,
    files: OwnFiles,
    counts: aze_io::sync::Mutex<Counts>,
    nodes: Arc<std::sync::atomic::AtomicUsize>,
    /// The stages that have begun.
    starts: Arc<aze_io::sync::Mutex<Vec<Start>>>,
    /// Receipts that were compared.
    checked: aze_io::sync::Mutex<std::collections::BTreeSet<std::path::PathBuf>>,
    /// Path and moment of each of their lines.
    lines: aze_io::sync::Mutex<std::collections::BTreeSet<(Vec<u8>, String)>>,
    /// Number of the next receipt.
    number: std::sync::atomic::AtomicU64,
    workers: nodes::Workers,
    verbose: bool,
}

impl Run {
    /// The directory at the destination that gets the contents of [`INSIDE`].
    fn outside(&self) -> String {
        if self.plan.is_over_directory { format!("{BELOW}{INSIDE}") } else { inward::source() }
    }

    fn side(&self) -> Side {
        if self.plan.is_over_directory { Side::Own } else { Side::Outside }
    }

    fn tell(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:12} {}", self.cluster.sim.now_ns() / 1000, text());
        }
    }

    fn wrong(&self, text: String) {
        self.tell(|| format!("WRONG {text}"));
        self.model.lock().wrong.push(text);
    }

    fn next_node(&self) -> usize {
        self.nodes.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    /// What the destination cannot do in this run.
    fn ordinary(&self) -> Moods {
        let plan = &self.plan;
        let ordinary = Moods { without: plan.without, has_holes: plan.is_inward, ..Moods::default() };
        match plan.is_odd {
            true => Moods { folds_case: true, links: false, name_bytes_max: 32, ..ordinary },
            false => Moods { exchanges: !plan.seed.is_multiple_of(5), ..ordinary },
        }
    }

    async fn whole(&self) {
        self.place.set_moods(self.ordinary());
        self.cluster.start().await.expect("a quiet cluster starts");
        if self.plan.is_clock_ahead {
            self.cluster.sim.step_clock(&server_node(0), CLOCK_AHEAD.as_nanos() as i64);
        }
        let client = self.cluster.connect(self.next_node()).await.expect("a client connects");
        for me in 0..self.plan.programs {
            client.mkdir_all(&ROOT, format!("{INSIDE}/w{me}").as_bytes(), 0o755).await.expect("a directory");
        }
        // A lost message costs seconds.
        let (duplicate_ppm, loss_ppm) = (20_000, if self.plan.is_calm() { 0 } else { 2_000 });
        // A slow network, in which writes come between the parts of a read.
        let is_slow = self.plan.seed.is_multiple_of(3) || self.plan.is_clock_ahead;
        let delay_ns_max = if is_slow { 3_000_000 } else { 200_000 };
        self.cluster.sim.set_faults(Faults { duplicate_ppm, loss_ppm, delay_ns_max, ..Faults::default() });
        let work = async {
            self.work().await;
            self.model.lock().is_over = true;
        };
        join(work, self.disturb()).await;
        self.cluster.sim.set_faults(Faults::default());
        self.place.set_moods(self.ordinary());
        // Longer than any request or pause of a program takes.
        self.cluster.sim.sleep(Duration::from_secs(45)).await;
        match self.plan.is_inward {
            true => self.last_part_in().await,
            false => self.last_part().await,
        }
        self.end_workers().await;
    }

    /// Keeps programs at work, and kills them, servers, and what the destination does.
    async fn disturb(&self) {
        let mut rng = self.cluster.sim.rng("disturb");
        let mut programs: Vec<Option<usize>> = vec![None; self.plan.programs];
        while !self.model.lock().is_over {
            for (me, node) in programs.iter_mut().enumerate().filter(|(_, node)| node.is_none()) {
                let number = self.next_node();
                let Ok(client) = self.cluster.connect(number).await else { continue };
                let (io, place, model) = (self.cluster.client_io(number), self.place.clone(), self.model.clone());
                *node = Some(number);
                if self.plan.is_inward {
                    let dir = format!("{INSIDE}/w{me}");
                    drop(self.cluster.on_client(number, User { client, io, place, model, me, dir }.work()));
                    continue;
                }
                let program = Program {
                    client,
                    io,
                    place,
                    model,
                    me,
                    outside: self.outside(),
                    is_odd: self.plan.is_odd,
                    links: self.plan.links,
                    holds: self.plan.rounds,
                    writes_apart: self.plan.is_clock_ahead,
                };
                drop(self.cluster.on_client(number, program.work()));
            }
            self.cluster.sim.sleep(Duration::from_millis(20 + rng.below(300))).await;
            if self.plan.kills && rng.chance(150_000) {
                let me = rng.below(self.plan.programs as u64) as usize;
                if let Some(node) = programs[me].take() {
                    self.model.lock().end_holds(self.place.now_ns(), Some(me));
                    self.cluster.kill_client(node);
                }
            }
            if self.plan.durability.is_some() && rng.chance(150_000) {
                let server = rng.below(u64::from(self.plan.servers)) as u16;
                self.tell(|| format!("server {server} is killed"));
                // It forgets who had files open.
                self.model.lock().end_holds(self.place.now_ns(), None);
                self.cluster.kill_server(server, false);
                self.cluster.sim.sleep(Duration::from_millis(rng.below(300))).await;
                self.cluster.bring_back(server).await.expect("it comes back");
                self.counts.lock().servers_killed += 1;
            }
            if self.plan.fails {
                let (ordinary, slow_us) = (self.ordinary(), if rng.chance(100_000) { 20_000 } else { 200 });
                let moods = match rng.below(8) {
                    0 => Moods { is_full: true, slow_us, ..ordinary },
                    1 => Moods { is_read_only: true, slow_us, ..ordinary },
                    2..=4 => Moods { error_ppm: 20_000, rot_ppm: 20_000, slow_us, ..ordinary },
                    _ => Moods { slow_us, ..ordinary },
                };
                self.place.set_moods(moods);
            }
            match self.plan.others {
                true if self.plan.is_inward => self.change_source(&mut rng),
                true => self.tamper(&mut rng),
                false => {}
            }
        }
    }

    /// Others change a file at the destination. They leave alone what the volume has given up, or gives up just now: those are the only
    /// copies.
    fn tamper(&self, rng: &mut SimRng) {
        if self.files.is_releasing() {
            return;
        }
        let outside = self.outside();
        let files: Vec<Vec<u8>> = self.place.all_below(outside.as_bytes()).into_iter().map(|(path, _)| path).collect();
        if files.is_empty() || !rng.chance(400_000) {
            return;
        }
        let path = rng.pick(&files).clone();
        let inside = [INSIDE.as_bytes(), &path[outside.len()..]].concat();
        let is_released = self.files.released().contains(&path);
        let model = self.model.lock();
        let mine: Vec<_> =
            model.files.iter().filter(|file| file.names.iter().any(|name| name.path == inside)).collect();
        let is_only_copy = is_released || mine.iter().any(|file| file.gone == Some(Gone::Released) || !file.is_certain);
        drop(mine);
        drop(model);
        if !is_only_copy {
            self.tell(|| format!("others change {}", String::from_utf8_lossy(&path)));
            self.place.tamper(&path, rng.u64());
        }
    }

    /// Stages and releases, again and again.
    async fn work(&self) {
        let (mut rng, mut cold) = (self.cluster.sim.rng("jobs"), self.cluster.sim.rng("cold"));
        let mut last = Duration::from_millis(300);
        for _ in 0..if self.plan.rounds { ROUNDS_JOBS } else { JOBS } {
            self.cluster.sim.sleep(Duration::from_millis(rng.below(600))).await;
            if self.plan.rounds {
                self.some_rounds(&mut rng).await;
                continue;
            }
            let mut what = if self.plan.releases && rng.chance(350_000) { What::Release } else { What::Stage };
            if self.plan.has_cold() && cold.chance(250_000) {
                what = What::Warm;
            }
            let kill_after = (self.plan.kills && rng.chance(550_000))
                .then(|| Duration::from_nanos(rng.below(last.as_nanos() as u64 * 5 / 4) + 1));
            let asked = rng.chance(100_000).then_some(ASKED_AFTER);
            let before = self.cluster.sim.now_ns();
            let (ended, _) = self.job(what, kill_after, asked).await;
            if !matches!(ended, Ended::Killed) {
                last = Duration::from_nanos(self.cluster.sim.now_ns() - before).max(Duration::from_millis(20));
            }
            if self.plan.power_cuts && rng.chance(300_000) {
                self.lose_power();
            }
        }
    }

    fn lose_power(&self) {
        self.tell(|| "the destination loses its power".into());
        self.counts.lock().power_cuts += 1;
        let kept = self.what_must_stay();
        self.place.lose_power();
        self.check_kept(&kept);
    }

    /// Runs one job on a node of its own to its end, or to its death.
    async fn job(
        &self,
        what: What,
        kill_after: Option<Duration>,
        asked_after: Option<Duration>,
    ) -> (Ended, Vec<String>) {
        let node = self.next_node();
        self.tell(|| {
            format!("{what:?} on node {node}, killed after {kill_after:?}, asked to end after {asked_after:?}")
        });
        self.files.begin(what == What::Release);
        let number = self.number.load(std::sync::atomic::Ordering::Relaxed);
        let troubles = aze_io::sync::Mutex::default();
        let mut stops = self.cluster.sim.rng(&format!("stop of {node}"));
        let is_stopped = self.is_stopped_alone(what, &mut stops);
        let kill_after = kill_after.filter(|_| !is_stopped);
        let mut rng = self.cluster.sim.rng(&format!("workers of {node}"));
        let is_elsewhere = self.plan.nodes > 0 && !self.model.lock().is_over && rng.chance(100_000);
        let job = Job::new(self, node, what, number, is_elsewhere);
        let (told, at_work) = (job.told.clone(), job.clone());
        let process = Process::start(&self.cluster.sim, &crate::cluster::client_node(node), move || at_work.run());
        let ended = {
            let limit = kill_after.unwrap_or(JOB_TIME_MAX);
            let asked = async {
                if let Some(after) = asked_after {
                    self.cluster.sim.sleep(limit.min(after)).await;
                    told.ask_to_end();
                }
                std::future::pending::<()>().await;
            };
            let (ended, asked) = (pin!(process.ended()), pin!(asked));
            let timed = select(ended, self.cluster.sim.sleep(limit));
            let troubled = async {
                match is_stopped {
                    true => self.stop_alone(&process, stops, &troubles).await,
                    false => self.trouble_workers(&process, rng, &troubles).await,
                }
            };
            let troubled = pin!(troubled);
            match select(select(timed, asked), troubled).await {
                Either::Left((Either::Left((Either::Left((true, _)), _)), _)) => told.ended(),
                _ => Ended::Killed,
            }
        };
        self.leave_workers();
        if let Ended::Killed = ended {
            if kill_after.is_none() {
                self.wrong(format!("{what:?} has not ended after {JOB_TIME_MAX:?}: {:?}", told.failures()));
            }
            let files = self.files.read();
            told.die();
            self.cluster.kill_client(node);
            process.kill();
            self.files.restore(&files);
            self.counts.lock().kills += 1;
        } else {
            self.cluster.kill_client(node);
        }
        self.tell(|| format!("{what:?} ended: {ended:?}, {:?}", told.failures()));
        self.files.end();
        let troubles: nodes::Troubles = *troubles.lock();
        if troubles.stops > 0 && troubles.others == 0 {
            let blames = ["nothing was heard of it", "it has not started within"];
            let is_lost = |text: &&String| blames.iter().any(|blame| text.contains(blame));
            if let Some(text) = told.failures().iter().find(is_lost) {
                self.wrong(format!("only the command stood still: {text}"));
            }
        }
        if let Ended::Failed(trouble) = &ended {
            let is_refused = is_elsewhere && trouble.text.contains("another place here than where the command runs");
            self.counts.lock().refused += u64::from(is_refused);
        }
        if let Ended::Warmed { warmed, names, listed } = &ended {
            self.check_warmed(warmed, names, *listed, &told.failures());
        }
        if let What::Rounds(asked) = &what {
            self.check_rounds(asked, &ended, &told);
        }
        let is_new = self.check_receipts().await;
        self.check_ledgers();
        if is_new || matches!(ended, Ended::Well { .. }) {
            self.number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        while self.files.receipt(self.number.load(std::sync::atomic::Ordering::Relaxed)).exists() && what.is_rounds() {
            self.number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        if let Ended::Well { drained, .. } = ended {
            self.counts.lock().drained += drained;
        }
        (ended, told.failures())
    }

    /// Faults and changes by others end.
    async fn last_part(&self) {
        self.tell(|| "the last part".into());
        if self.plan.rounds {
            self.rounds_without_time().await;
        }
        match self.job(What::Look, None, None).await.0 {
            Ended::Looked(standing) => self.check_standing(&standing),
            other => self.wrong(format!("the look at what is dirty: {other:?}")),
        }
        if self.plan.has_cold() {
            match self.job(What::Warm, None, None).await {
                (Ended::Warmed { .. }, failures) if failures.is_empty() => {}
                other => self.wrong(format!("names were to be taken over when nothing fails: {other:?}")),
            }
        }
        if self.plan.releases {
            self.job(What::Release, None, None).await;
            self.find_released().await;
        }
        // The destination cannot have all of it.
        let may_fail = self.plan.is_odd || self.plan.atomic && !self.ordinary().exchanges;
        for attempt in 1..=LAST_ATTEMPTS_MAX {
            let (ended, failures) = self.job(What::Stage, None, None).await;
            match ended {
                Ended::Well { missing: 0, left: 0, .. } => break,
                Ended::Well { missing: 0, .. } if !self.plan.delete => break,
                Ended::Well { .. } if attempt > 1 && failures.iter().all(|text| is_of_several_names(text)) => break,
                _ if attempt < LAST_ATTEMPTS_MAX => {}
                Ended::Well { .. }
                    if self.plan.is_over_directory
                        && failures.iter().all(|text| is_conflict(text) || is_of_several_names(text)) =>
                {
                    self.counts.lock().conflicts += 1;
                    return;
                }
                other => {
                    if !may_fail {
                        self.wrong(format!("{attempt} attempts when nothing fails: {other:?}, {failures:?}"));
                    }
                    return;
                }
            }
        }
        self.find_released().await;
        self.check_whole();
        self.check_volume().await;
        if self.plan.power_cuts {
            self.lose_power();
            self.check_whole();
        }
    }

    /// Looks which files are in the volume, and at the copies of those that are not.
    async fn find_released(&self) {
        let number = self.next_node();
        let client = self.cluster.connect(number).await.expect("a client connects");
        let files: Vec<(usize, Vec<u8>)> = {
            let model = self.model.lock();
            let files = model.files.iter().enumerate().filter(|(_, known)| !known.is_link);
            files.filter_map(|(file, known)| Some((file, known.paths().next()?.to_vec()))).collect()
        };
        let program = Program {
            client,
            io: self.cluster.client_io(number),
            place: self.place.clone(),
            model: self.model.clone(),
            me: 0,
            outside: self.outside(),
            is_odd: false,
            links: false,
            holds: false,
            writes_apart: false,
        };
        for (file, path) in files {
            if let Err(failure) = program.open_and_close(file, &path).await {
                self.wrong(format!("open {}: {failure}", String::from_utf8_lossy(&path)));
            }
        }
    }

    /// All files of the volume have what their programs have written.
    async fn check_volume(&self) {
        let client = self.cluster.connect(self.next_node()).await.expect("a client connects");
        let files: Vec<Vec<u8>> = {
            let model = self.model.lock();
            let files = model.files.iter().filter(|known| !known.is_link);
            files.flat_map(|known| known.paths().map(<[u8]>::to_vec)).collect()
        };
        for path in files {
            let read = async {
                let attr = client.resolve(&ROOT, &path[..], false).await?;
                let opened = client.open(&ROOT, attr.ino, aze_client::Access { read: true, write: false }).await?;
                let bytes = opened.read(0, attr.size as usize).await?;
                opened.close().await?;
                Ok::<_, aze_proto::Failure>(bytes)
            };
            match read.await {
                Ok(bytes) => {
                    let is_right = self
                        .model
                        .lock()
                        .files
                        .iter()
                        .any(|known| known.paths().any(|other| other == path) && known.has(hash_of(&bytes)));
                    if !is_right {
                        self.wrong(format!("{}: the volume has other bytes", String::from_utf8_lossy(&path)));
                    }
                }
                Err(failure) => self.wrong(format!("read {}: {failure}", String::from_utf8_lossy(&path))),
            }
        }
    }

    /// Whether files of the directory below have names elsewhere.
    fn has_names_elsewhere(&self) -> bool {
        self.plan.links && self.plan.is_over_directory
    }

    /// Whether nothing gets the place of a path, since the object there has several names.
    fn is_left_alone(&self, path: &[u8]) -> bool {
        self.has_names_elsewhere() && path.ends_with(b"/n0")
    }

    /// Files that had several names in the directory below are what they were, under each of them.
    fn check_names_elsewhere(&self) {
        for me in (0..self.plan.programs).filter(|_| self.has_names_elsewhere()) {
            let (one, other) = (format!("{BELOW}{INSIDE}/w{me}/n0"), other_name(me));
            let [one, other] = [one, other].map(|path| self.place.inode_at(path.as_bytes()));
            if one.is_none() || one != other {
                self.wrong(format!("program {me}: its file of several names is several files: {one:?} and {other:?}"));
            }
        }
    }

    /// The destination has all that the volume has, and nothing hidden.
    fn check_whole(&self) {
        let outside = self.outside();
        let files: Vec<(Vec<u8>, programs::Known)> = {
            let model = self.model.lock();
            let of = |known: &programs::Known| known.paths().map(<[u8]>::to_vec).collect::<Vec<_>>();
            model.files.iter().flat_map(|known| of(known).into_iter().map(|path| (path, known.clone()))).collect()
        };
        // A file that cannot have its first name there is not staged under the others either.
        let is_left_alone =
            |known: &programs::Known| !known.is_link && known.paths().any(|path| self.is_left_alone(path));
        for (path, known) in files.iter().filter(|(path, known)| !self.is_left_alone(path) && !is_left_alone(known)) {
            let at = [outside.as_bytes(), &path[INSIDE.len()..]].concat();
            // Of links each name gets a link of its own.
            let others = known.paths().filter(|_| !known.is_link);
            let inodes: std::collections::BTreeSet<_> = others
                .map(|other| self.place.inode_at(&[outside.as_bytes(), &other[INSIDE.len()..]].concat()))
                .collect();
            if inodes.len() > 1 {
                self.wrong(format!("{}: its names are several files", String::from_utf8_lossy(&at)));
            }
            if !self.place.bytes_at(&at).is_some_and(|bytes| known.has(hash_of(&bytes))) {
                self.wrong(format!("{}: it was staged, and has other bytes", String::from_utf8_lossy(&at)));
            }
        }
        self.check_names_elsewhere();
        self.check_released();
        let all = [BELOW, ASIDE].into_iter().flat_map(|dir| self.place.all_below(dir.as_bytes()));
        for (path, _) in all.filter(|(path, kind)| *kind != FileKind::Directory || path.ends_with(b".aze")) {
            if path.windows(11).any(|part| part == b"/.aze-stage") {
                self.wrong(format!("{}: a temporary name is left", String::from_utf8_lossy(&path)));
            }
        }
        if !self.has_names_elsewhere() && self.files.state().exists() {
            self.wrong("the state of a stage that has ended well is left".into());
        }
    }
}
