//! `aze bench io500`: the twelve phases of IO500 on one node, on a volume or on any directory.
//!
//! Real processes do the work, as with the official program, but they are started and kept in step
//! by this one through sockets, without MPI. This file knows the order of things: make ready, touch
//! memory, measure, remove everything, report.

mod ground;
mod layout;
mod link;
mod pattern;
mod rank;
mod ranks;
mod report;
mod volume;

pub use rank::run as run_rank;

use crate::exit::{Exit, Outcome, Trouble};
use crate::process;
use crate::size;
use crate::volume::Volume;
use ground::{Ground, Room};
use layout::{Phase, VALID_STONEWALL_S};
use link::{Order, Setup, Where};
use ranks::Ranks;
use report::{Measured, Report};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  aze bench io500 --short                           the volume, in under a minute
  aze bench io500 --short --target /dev/shm         a directory, to compare with
  aze bench io500 --procs 8 --results ~/io500-today the long run, with result files";

/// Stonewall of `--short`.
const SHORT_STONEWALL: Duration = Duration::from_secs(1);
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

/// The twelve phases of IO500: bandwidths, rates and the score of one node.
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
    /// Processes that do the work
    #[arg(long, value_name = "N", default_value_t = 4)]
    procs: u32,
    /// When writing phases stop [default: 300s, with --short 1s]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    stonewall: Option<Duration>,
    /// A run of less than a minute
    #[arg(long)]
    short: bool,
    /// Memory to touch before [default: 8G or what fits, where files are in memory]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    warm: Option<u64>,
    /// Write result.txt and result_summary.txt into this new directory
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn stonewall(&self) -> Duration {
        let default = if self.short { SHORT_STONEWALL } else { Duration::from_secs_f64(VALID_STONEWALL_S) };
        self.stonewall.unwrap_or(default)
    }
}

/// Measures, removes what it made, then reports.
pub fn run(args: &Args) -> Outcome<Exit> {
    if args.procs == 0 || args.procs > PROCS_MAX {
        return Err(Trouble::usage(format!("bench io500: --procs {}: expected 1 to {PROCS_MAX}", args.procs)));
    }
    // Before any thread is started, so that an interruption is heard where it can be answered.
    aze_fuse::signals::hold().map_err(|error| Trouble::local("bench io500: hold signals", &error))?;
    if let Some(dir) = &args.results {
        report::make_ready(dir)?;
    }
    let setup = setup(args)?;
    let ground = ground::open(&setup.place, &setup.base)?;
    let measured = ground.begin().and_then(|()| {
        let measured = measure(args, &setup, ground.as_ref());
        // All ranks have ended, so that nothing comes after it.
        let removed = ground.remove_all();
        match (measured, removed) {
            (Err(why), Err(left)) => Err(Trouble::new(why.exit, format!("{why}; something is left behind: {left}"))),
            (measured, removed) => measured.and_then(|report| removed.map(|()| report)),
        }
    });
    ground.end();
    let report = measured?;
    if let Some(dir) = &args.results {
        report.write(dir)?;
    }
    if args.json {
        println!("{:#}", report.json());
    } else {
        print!("{}\n{}\n", report.summary(), report.circumstances());
    }
    Ok(Exit::Done)
}

fn setup(args: &Args) -> Outcome<Setup> {
    let place = match &args.target {
        Some(dir) => Where::Directory(
            std::path::absolute(dir).map_err(|error| Trouble::local(format!("find {}", dir.display()), &error))?,
        ),
        None => Where::Volume(Volume::meant(args.name.as_deref())?.record.name),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let pid = std::process::id();
    Ok(Setup {
        rank: 0,
        procs: args.procs,
        place,
        base: format!("aze-io500-{}-{pid}", now.as_secs()),
        run: now.as_nanos() as u64 ^ u64::from(pid),
        stonewall_s: args.stonewall().as_secs_f64(),
    })
}

fn measure(args: &Args, setup: &Setup, ground: &dyn Ground) -> Outcome<Report> {
    let place = ground.described()?;
    layout::directories(args.procs).iter().try_for_each(|path| ground.make_dir(path))?;
    let phase_time_max = args.stonewall() * PHASE_STONEWALLS_MAX + PHASE_TIME_MORE;
    let mut ranks = Ranks::start(setup, phase_time_max)?;
    let warm_bytes = warm(args, ground, &mut ranks)?;
    let mut run = Run { procs: args.procs, room: ground.room()?, since_ns: 0, counts: Vec::new() };
    let mut phases = Vec::new();
    for phase in Phase::ALL {
        eprintln!("bench io500: {phase}");
        phases.push(run.phase(&mut ranks, phase)?);
        if phase == Phase::MdtestEasyWrite {
            run.since_ns = ground.make_stamp()?;
        }
    }
    ranks.end();
    Ok(Report { place, procs: args.procs, stonewall: args.stonewall(), warm_bytes, phases })
}

/// Touches memory; gives how much.
fn warm(args: &Args, ground: &dyn Ground, ranks: &mut Ranks) -> Outcome<u64> {
    let before = ground.room()?.bytes;
    let default = if ground.is_memory()? { WARM_BYTES_DEFAULT } else { 0 };
    let bytes = args.warm.unwrap_or(default).min(before / 100 * WARM_PERCENT);
    let each = bytes / u64::from(args.procs);
    if each == 0 {
        return Ok(0);
    }
    eprintln!("bench io500: touching {}", size::words(bytes));
    ranks.all(&Order::Warm(each), "touching memory")?;
    // Space that comes back late would be missing in what follows.
    let is_back = || ground.room().is_ok_and(|room| room.bytes >= before / 100 * 95);
    process::until(Instant::now() + SETTLE_TIME_MAX, is_back);
    Ok(each * u64::from(args.procs))
}

/// What is known of the phases so far.
struct Run {
    procs: u32,
    room: Room,
    /// Time of the stamp.
    since_ns: u64,
    /// How many times each rank has done what a writing phase does.
    counts: Vec<(Phase, u64)>,
}

impl Run {
    fn phase(&mut self, ranks: &mut Ranks, phase: Phase) -> Outcome<Measured> {
        let procs = u64::from(self.procs);
        if phase == Phase::Find {
            return self.find(ranks);
        }
        let (count_max, started) = (self.count_max(phase), Instant::now());
        let count = if phase.is_write() {
            let count = ranks.write(phase, count_max)?;
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
