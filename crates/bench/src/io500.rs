//! `aze bench io500`: the twelve phases of IO500 on one node or several, on a volume or any directory.
//!
//! Real processes do the work, as with the official program, but they are started and kept in step
//! by this one through their inputs and outputs, without MPI. This file knows the order of things: make
//! ready, touch memory, measure, remove everything; the next place; the next turn; report.

mod beside;
mod ground;
mod layout;
mod link;
mod pattern;
mod rank;
mod ranks;
mod report;
mod volume;

pub use rank::run as run_rank;

use crate::place::{Described, describe, kept_time};
use crate::program::{Program, Volume};
use crate::record::{self, Keep};
use aze_io::real::until;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use aze_words::{errln, out, outln};
use beside::{Beside, Runs};
use ground::{Ground, Room};
use layout::{Phase, VALID_STONEWALL_S};
use link::{Order, Setup, Where};
use ranks::{Interrupts, Nodes, Ranks};
use report::{Measured, Report};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  aze bench io500 --short                           the volume, in under a minute
  aze bench io500 --short --against /dev/shm        and a directory, in turns, with ratios
  aze bench io500 --short --repeat 15 --beside \
    'rm -rf out && mkdir out && aze stage out aze:/data out/data --jobs 4'
                                                    what staging /data out costs, each time anew
  aze bench io500 --procs 8 --record ~/io500-today  the long run, with result files
  aze bench io500 --target /data --ranks-hosts node1,node2   a directory that both nodes have";

/// Stonewall of `--short`, and its turns.
const SHORT_STONEWALL: Duration = Duration::from_secs(1);
const SHORT_TURNS: usize = 3;
/// Processes on each node unless the user chose.
const PROCS_DEFAULT: u32 = 4;
/// Processes at most: more than any node has cores.
const PROCS_MAX: u32 = 1024;
/// Memory touched before a run unless it is said otherwise: what the writing phases of a short run
/// take on a machine that writes 5 GB/s.
const WARM_BYTES_DEFAULT: u64 = 8 << 30;
/// Percent of the room that is left for each use, so that no phase ends for lack of space.
const WARM_PERCENT: u64 = 60;
const EASY_PERCENT: u64 = 50;
const HARD_PERCENT: u64 = 25;
const SMALL_PERCENT: u64 = 15;
/// Percent of the files that may still be made, for each of the two phases that make many.
const FILES_PERCENT: u64 = 45;
/// What a small file takes, with its inode.
const SMALL_FILE_ROOM_BYTES: u64 = 8192;
/// A phase may take so many stonewalls and so much more; after that it hangs.
const PHASE_STONEWALLS_MAX: u32 = 20;
const PHASE_TIME_MORE: Duration = Duration::from_secs(600);
/// How long removed files may take to give back their space.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(10);

/// The twelve phases of IO500: bandwidths, rates and the score, of one node or several.
///
/// Writing phases last 300 s for a result that counts; --short marks its results invalid.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume [default: $AZE_VOLUME, or the only one that runs]
    #[arg(long, conflicts_with = "target")]
    name: Option<String>,
    /// Measure the volume without a mount; this is the default
    #[arg(long, conflicts_with = "target")]
    native: bool,
    /// Measure this directory instead
    #[arg(long, value_name = "DIR")]
    target: Option<PathBuf>,
    /// Measure this directory too, in turns, and print ratios; may be given several times
    #[arg(long, value_name = "DIR")]
    against: Vec<PathBuf>,
    /// Measure the first place also with threads of one process on each node, which share its connection,
    /// instead of processes: in turns, with ratios
    #[arg(long)]
    with_threads: bool,
    /// Run COMMAND (by `sh -c`, on this node) beside the phases of every second turn, again and again, and print what is left of
    /// each phase's speed
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["against", "with_threads"])]
    beside: Option<String>,
    /// Processes that do the work, in all [default: 4 on each node]
    #[arg(long, value_name = "N")]
    procs: Option<u32>,
    /// Nodes that they run on [default: those of a volume that was started on nodes, else this one]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    ranks_hosts: Vec<String>,
    /// How to run a program on a node [default: as the volume was started, or with ssh]
    #[arg(long, value_name = "WORDS")]
    launcher: Option<String>,
    /// Where the nodes have this program, if not in the same place
    #[arg(long, value_name = "PATH")]
    remote_aze: Option<PathBuf>,
    /// When writing phases stop [default: 300s, with --short 1s]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    stonewall: Option<Duration>,
    /// Turns of every place; each phase counts with its median [default: 1, with --short 3]
    #[arg(long, value_name = "N")]
    repeat: Option<usize>,
    /// A run of less than a minute for each place
    #[arg(long)]
    short: bool,
    /// Memory to touch before each turn [default: 8G or what fits, where files are in memory]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    warm: Option<u64>,
    /// Write result.json, result.txt and result_summary.txt into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn stonewall(&self) -> Duration {
        let default = if self.short { SHORT_STONEWALL } else { Duration::from_secs_f64(VALID_STONEWALL_S) };
        self.stonewall.unwrap_or(default)
    }

    fn turns(&self) -> usize {
        self.repeat.unwrap_or(if self.short { SHORT_TURNS } else { 1 })
    }
}

/// Measures, removes its files, then reports.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    // Before any thread is started, so that an interruption is heard where it can be answered.
    program.hold_signals().map_err(|error| Trouble::local("bench io500: hold signals", &error))?;
    let mut contest = Contest::new(args, program)?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    if let Some(command) = &args.beside {
        contest.beside = Some(Beside::new(command, output_of_beside(args), program)?);
    }
    let reports = contest.reports();
    let kept_output = contest.beside.as_ref().and_then(Beside::kept_output);
    let (reports, runs) = reports?;
    let (first, others) = reports.split_first().expect("there is a place to measure");
    let result = match &contest.beside {
        Some(beside) => json_of_beside(program, (first, &others[0]), beside, kept_output, runs),
        None => json(program, first, others),
    };
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        for (index, report) in reports.iter().enumerate() {
            let of = match index {
                0 => String::new(),
                _ if args.beside.is_some() => "beside_".into(),
                _ => format!("against{index}_"),
            };
            keep.write(&format!("{of}result.txt"), &report.sections())?;
            keep.write(&format!("{of}result_summary.txt"), &report.summary())?;
        }
    }
    if args.json {
        outln!("{result}");
        return Ok(Exit::Done);
    }
    for report in &reports {
        out!("{}\n{}\n\n", report.summary(), report.circumstances());
    }
    match &contest.beside {
        Some(beside) => {
            outln!("{}", first.table_of_left(&others[0]));
            let Runs { done, failed, cut_off } = runs;
            outln!(
                "beside: {}\nruns: {done} ended with exit code 0, {failed} with 1, {cut_off} with their turn",
                beside.command
            );
            kept_output.iter().for_each(|path| outln!("their output: {}", path.display()));
        }
        None => others.iter().for_each(|other| outln!("{}", first.beside(other))),
    }
    Ok(Exit::Done)
}

/// The file for what the command of `--beside` prints: of the record, or in the directory for temporary files.
fn output_of_beside(args: &Args) -> PathBuf {
    match &args.record {
        Some(dir) => dir.join("beside_output.txt"),
        None => std::env::temp_dir().join(format!("aze-bench-io500-beside-{}.txt", std::process::id())),
    }
}

/// The first place's object, with the circumstances that it means nothing without.
fn json_of_first(program: &dyn Program, first: &Report) -> serde_json::Value {
    let mut result = first.json();
    let circumstances = record::circumstances(program);
    for (name, value) in circumstances.as_object().into_iter().flatten() {
        result[name] = value.clone();
    }
    result
}

/// The object of the turns alone, with those beside the command inside.
fn json_of_beside(
    program: &dyn Program,
    (alone, with): (&Report, &Report),
    beside: &Beside,
    output: Option<&PathBuf>,
    runs: Runs,
) -> serde_json::Value {
    let mut result = json_of_first(program, alone);
    result["beside"] = with.json();
    result["beside"]["command"] = beside.command.clone().into();
    result["beside"]["output"] = output.map(|path| path.display().to_string()).into();
    result["beside"]["runs"] = json!({ "done": runs.done, "failed": runs.failed, "cut_off": runs.cut_off });
    result["beside"]["left"] = alone.left(with).iter().map(report::Left::json).collect();
    result
}

/// The first place's object, with those that it was compared with inside.
fn json(program: &dyn Program, first: &Report, others: &[Report]) -> serde_json::Value {
    let mut result = json_of_first(program, first);
    let against = others.iter().map(|other| {
        let ratios: serde_json::Map<_, _> =
            first.ratios(other).into_iter().map(|(name, ratio)| (name.into(), json!(ratio))).collect();
        let mut against = other.json();
        against["ratios"] = ratios.into();
        against
    });
    result["against"] = against.collect();
    result
}

/// Places to be measured in turns, by the same ranks.
struct Contest<'a> {
    args: &'a Args,
    program: &'static dyn Program,
    procs: u32,
    nodes: Nodes,
    /// Each with whether threads do the work.
    places: Vec<(Where, bool)>,
    /// What runs beside the turns of the second place, which is the first one again.
    beside: Option<Beside>,
    /// The longest time for which a kernel may use cached names and attributes, in any of the places.
    cache_time: Duration,
    interrupts: Interrupts,
}

impl<'a> Contest<'a> {
    fn new(args: &'a Args, program: &'static dyn Program) -> Outcome<Contest<'a>> {
        let volume = match args.target {
            Some(_) => None,
            None => Some(program.volume(args.name.as_deref())?),
        };
        let nodes = nodes(args, program, volume.as_ref())?;
        let procs = args.procs.unwrap_or(PROCS_DEFAULT * nodes.count());
        if procs < nodes.count() || procs > PROCS_MAX {
            let text = format!("bench io500: --procs {procs}: expected {} to {PROCS_MAX}", nodes.count());
            return Err(Trouble::usage(text));
        }
        if args.turns() == 0 {
            return Err(Trouble::usage("bench io500: --repeat 0: expected at least 1"));
        }
        let directories = args.target.iter().chain(&args.against).map(|dir| {
            let found = std::path::absolute(dir).map(Where::Directory);
            found.map_err(|error| Trouble::local(format!("find {}", dir.display()), &error))
        });
        let volume = volume.map(|volume| Ok(Where::Volume(volume.name)));
        let places = volume.into_iter().chain(directories).map(|place| Ok((place?, false)));
        let mut places = places.collect::<Outcome<Vec<_>>>()?;
        if args.with_threads {
            places.insert(1, (places[0].0.clone(), true));
        }
        if args.beside.is_some() {
            places.push(places[0].clone());
        }
        let mut cache_time = Duration::ZERO;
        for (place, _) in &places {
            if let Where::Directory(dir) = place
                && describe(dir)?.is_mount
            {
                cache_time = kept_time(program);
            }
        }
        let interrupts = Interrupts::hear(program);
        Ok(Contest { args, program, procs, nodes, places, beside: None, cache_time, interrupts })
    }

    /// What runs beside the turns of the place of this index.
    fn beside(&self, index: usize) -> Option<&Beside> {
        self.beside.as_ref().filter(|_| index == 1)
    }

    /// Every place once in every turn; and how what ran beside them ended.
    fn reports(&self) -> Outcome<(Vec<Report>, Runs)> {
        let turns = self.args.turns();
        let work = self.work()?;
        let mut runs = Runs::default();
        let mut all: Vec<Vec<Turn>> = self.places.iter().map(|_| Vec::new()).collect();
        for turn in 1..=turns {
            for (index, done) in all.iter_mut().enumerate() {
                let turn = self.turn(index, &format!("turn {turn} of {turns}"), &work)?;
                runs.add(turn.runs);
                done.push(turn);
            }
        }
        let report = |done: Vec<Turn>| {
            let values: Vec<Vec<Measured>> = done.iter().map(|turn| turn.phases.clone()).collect();
            let Turn { place, warm_bytes, .. } = done.into_iter().next().expect("there is at least one turn");
            Report::new(place, (self.procs, self.nodes.count()), self.args.stonewall(), warm_bytes, &values)
        };
        Ok((all.into_iter().map(report).collect(), runs))
    }

    /// What each rank does in each writing phase of a short run, if several places are compared: as much as the slowest
    /// place does until the stonewall, so that all do the same work. A long run is stopped by the stonewall in each.
    fn work(&self) -> Outcome<Vec<(Phase, u64)>> {
        let mut work: Vec<(Phase, u64)> = Vec::new();
        if !self.args.short || self.places.len() == 1 {
            return Ok(work);
        }
        for index in 0..self.places.len() {
            let counts = self.turn(index, "looking for equal work", &[])?.counts;
            match work.is_empty() {
                true => work = counts,
                false => work.iter_mut().zip(counts).for_each(|(least, count)| least.1 = least.1.min(count.1)),
            }
        }
        Ok(work)
    }

    /// One run in the place of this index, which is left as it was; of so much work, or else until the stonewall.
    fn turn(&self, index: usize, title: &str, work: &[(Phase, u64)]) -> Outcome<Turn> {
        let setup = self.setup(self.places[index].0.clone());
        let ground = ground::open(self.program, &setup.place, &setup.base)?;
        let measured = ground.begin().and_then(|()| {
            let measured = self.measure(&setup, index, ground.as_ref(), title, work);
            // All ranks have ended, so that nothing comes after it.
            let removed = ground.remove_all();
            match (measured, removed) {
                (Err(why), Err(left)) => {
                    Err(Trouble::new(why.exit, format!("{why}; something is left behind: {left}")))
                }
                (measured, removed) => measured.and_then(|turn| removed.map(|()| turn)),
            }
        });
        ground.end();
        measured
    }

    fn setup(&self, place: Where) -> Setup {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let pid = std::process::id();
        Setup {
            rank: 0,
            procs: self.procs,
            procs_on_node: self.nodes.share(self.procs),
            place,
            base: format!("aze-io500-{}-{pid}", now.as_nanos()),
            run: now.as_nanos() as u64 ^ u64::from(pid),
            stonewall_s: self.args.stonewall().as_secs_f64(),
        }
    }

    fn measure(
        &self,
        setup: &Setup,
        index: usize,
        ground: &dyn Ground,
        title: &str,
        work: &[(Phase, u64)],
    ) -> Outcome<Turn> {
        let (mut place, threads, beside) = (ground.described()?, self.places[index].1, self.beside(index));
        if threads {
            place.title.push_str(", threads");
        }
        if beside.is_some() {
            place.title.push_str(", beside");
        }
        layout::directories(self.procs).iter().try_for_each(|path| ground.make_dir(path))?;
        let phase_time_max = self.args.stonewall() * PHASE_STONEWALLS_MAX + PHASE_TIME_MORE;
        let mut ranks = Ranks::start(setup, threads, &self.nodes, &self.interrupts, phase_time_max)?;
        let warm_bytes = warm(self.args, self.program, self.procs, ground, &mut ranks)?;
        let mut run =
            Run { procs: self.procs, room: ground.room(self.program)?, since_ns: 0, counts: Vec::new(), work };
        let mut phases = Vec::new();
        if let Some(beside) = beside {
            errln!("bench io500: {title}, {}: from here on runs {}", place.title, beside.command);
        }
        let running = beside.map(Beside::begin).transpose()?;
        for phase in Phase::ALL {
            errln!("bench io500: {title}, {}: {phase}", place.title);
            if !phase.is_write() {
                // What the last phase has left in a kernel must not answer in this one.
                std::thread::sleep(self.cache_time);
            }
            phases.push(run.phase(&mut ranks, phase)?);
            if phase == Phase::MdtestEasyWrite {
                run.since_ns = ground.make_stamp()?;
            }
            if running.as_ref().is_some_and(beside::Running::has_ended) {
                break;
            }
        }
        let runs = running.map_or(Ok(Runs::default()), beside::Running::end)?;
        ranks.end();
        let counts = run.counts;
        Ok(Turn { place, warm_bytes, phases, counts, runs })
    }
}

/// One run in one place.
struct Turn {
    place: Described,
    warm_bytes: u64,
    phases: Vec<Measured>,
    /// What each rank has done in each writing phase.
    counts: Vec<(Phase, u64)>,
    /// Of what ran beside it.
    runs: Runs,
}

/// Where the ranks run: as said, or where the volume's servers do.
fn nodes(args: &Args, program: &dyn Program, volume: Option<&Volume>) -> Outcome<Nodes> {
    let mut hosts = args.ranks_hosts.clone();
    if hosts.is_empty() {
        hosts = volume.map(|volume| volume.nodes.clone()).unwrap_or_default();
    }
    let mut seen = BTreeSet::new();
    hosts.retain(|host| seen.insert(host.clone()));
    let launcher = match (&args.launcher, volume.and_then(|volume| volume.launcher.clone())) {
        (None, Some(words)) => words,
        (template, _) => program.launcher(template.as_deref())?,
    };
    let there = args.remote_aze.clone().or_else(|| volume.and_then(|volume| volume.remote_aze.clone()));
    let program = match there.filter(|_| !hosts.is_empty()) {
        Some(path) => path,
        None => std::env::current_exe().map_err(|error| Trouble::local("find this program's file", &error))?,
    };
    Ok(Nodes { hosts, launcher, program: program.display().to_string() })
}

/// Touches memory; gives how much.
fn warm(args: &Args, program: &dyn Program, procs: u32, ground: &dyn Ground, ranks: &mut Ranks) -> Outcome<u64> {
    let before = ground.room(program)?.bytes;
    let default = if ground.is_memory()? { WARM_BYTES_DEFAULT } else { 0 };
    let bytes = args.warm.unwrap_or(default).min(before / 100 * WARM_PERCENT);
    let each = bytes / u64::from(procs);
    if each == 0 {
        return Ok(0);
    }
    errln!("bench io500: touching {}", size::words(bytes));
    ranks.all(&Order::Warm(each), "touching memory")?;
    // Space that comes back late would be missing in what follows.
    let is_back = || ground.room(program).is_ok_and(|room| room.bytes >= before / 100 * 95);
    until(Instant::now() + SETTLE_TIME_MAX, is_back);
    Ok(each * u64::from(procs))
}

/// The outcomes of the phases so far.
struct Run<'a> {
    procs: u32,
    /// What each rank is to do in each writing phase; nothing: until the stonewall.
    work: &'a [(Phase, u64)],
    room: Room,
    /// Time of the stamp.
    since_ns: u64,
    /// How many times each rank has done what a writing phase does.
    counts: Vec<(Phase, u64)>,
}

impl Run<'_> {
    fn phase(&mut self, ranks: &mut Ranks, phase: Phase) -> Outcome<Measured> {
        let procs = u64::from(self.procs);
        if phase == Phase::Find {
            return self.find(ranks);
        }
        let (count_max, started) = (self.count_max(phase), Instant::now());
        let count = if phase.is_write() {
            let fixed = self.work.iter().find(|(of, _)| *of == phase).map(|(_, count)| *count);
            let count = ranks.write(phase, fixed.unwrap_or(count_max), fixed.is_some())?;
            self.counts.push((phase, count));
            count
        } else {
            let count = self.count(phase.writer());
            ranks.all(&Order::Take { phase, count }, phase)?;
            count
        };
        Ok(Measured { phase, took: started.elapsed(), ops: count * procs })
    }

    /// Everything that was made is looked at, and what should be found is known.
    fn find(&self, ranks: &mut Ranks) -> Outcome<Measured> {
        let small = self.count(Phase::MdtestHardWrite);
        let files = u64::from(self.procs) * (1 + self.count(Phase::MdtestEasyWrite) + small);
        // The shared file and the stamp.
        let entries = layout::directories(self.procs).len() as u64 + files + 2;
        let expected = layout::found_names(self.procs, small);
        let started = Instant::now();
        let (looked, found) = ranks.search(self.since_ns)?;
        let took = started.elapsed();
        if found != expected || looked.is_some_and(|looked| looked != entries) {
            let looked = looked.map_or("an unknown number of".into(), |looked| looked.to_string());
            let text = format!(
                "find: {found} found among {looked} entries, not {expected} among {entries}: files are missing or their times are wrong"
            );
            return Err(Trouble::new(Exit::Fatal, text));
        }
        Ok(Measured { phase: Phase::Find, took, ops: entries })
    }

    /// How often each rank has done what a writing phase does.
    fn count(&self, writer: Phase) -> u64 {
        self.counts.iter().find(|(phase, _)| *phase == writer).map_or(0, |(_, count)| *count)
    }

    /// How often each rank may do what a writing phase does: at least once.
    fn count_max(&self, phase: Phase) -> u64 {
        let share = |percent: u64| self.room.bytes / 100 * percent / u64::from(self.procs);
        let bytes = match phase {
            Phase::IorEasyWrite => share(EASY_PERCENT) / phase.bytes_each(),
            Phase::IorHardWrite => share(HARD_PERCENT) / phase.bytes_each(),
            Phase::MdtestHardWrite => share(SMALL_PERCENT) / SMALL_FILE_ROOM_BYTES,
            _ => u64::MAX,
        };
        let files = match self.room.files {
            Some(files) if !phase.is_bandwidth() => files / 100 * FILES_PERCENT / u64::from(self.procs),
            _ => u64::MAX,
        };
        phase.count_max().min(bytes).min(files).max(1)
    }
}
