//! `aze bench many`: whether an operation on a name costs the same in a volume of ten million files as in a
//! small one, in one directory and in many, and what a server's memory holds for each of them. A
//! volume in memory is started for each layout, grows by doubling, and is looked at after each step.

use crate::place::{Native, Place};
use crate::plot::{self, Curve};
use crate::program::{Program, Session};
use crate::record::{self, Keep};
use crate::started::{self, Started};
use aze_proto::limits::BYTES_PER_RECORD;
use aze_words::exit::{Exit, Outcome};
use aze_words::{errln, out, outln};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  aze bench many                                 ten million files, twice: about ten minutes, 6 GiB of memory
  aze bench many --files 1000000 --record result
  aze bench many --files 6400 --probes 100";

/// How often the number of files is doubled.
const DOUBLINGS: u32 = 6;
/// Files of a directory, where there are many directories.
const FILES_PER_DIR: u64 = 1000;
/// Memory of the servers for each file at the end, and at least: twice what names may have.
const CAPACITY_PER_FILE: u64 = 4 * BYTES_PER_RECORD;
const CAPACITY_MIN: u64 = 256 << 20;
/// A step through all files that meets each of them once, if it shares no factor with their number.
const STRIDE: u64 = 7_368_787;
/// How much dearer an operation may be at the end, to be called flat.
const FLAT_RATIO: f64 = 1.5;

/// What names cost when there are many of them: operations and memory, from N/64 files to N.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files at the end
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(64..=1_000_000_000))]
    files: u64,
    /// Files that are looked up, and files that are made and removed, one after another, after each step
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    probes: u64,
    /// Callers that make and remove the files
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    callers: u64,
    /// Servers of each volume
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Write result.json, result.txt and a picture into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How the files are laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    OneDirectory,
    ManyDirectories,
}

impl Layout {
    fn title(self) -> String {
        match self {
            Layout::OneDirectory => "one directory".into(),
            Layout::ManyDirectories => format!("directories of {FILES_PER_DIR}"),
        }
    }

    fn directories(self, files: u64) -> u64 {
        match self {
            Layout::OneDirectory => 1,
            Layout::ManyDirectories => files.div_ceil(FILES_PER_DIR),
        }
    }
}

/// The operations of one caller that are timed: their names, and which figure of a step is theirs.
const OPERATIONS: [&str; 3] = ["stat", "create", "remove"];

/// Measurements at one number of files.
struct Step {
    files: u64,
    /// Creates a second of all callers, on the way here.
    creates_per_s: f64,
    /// Medians of one operation of one caller, as in `OPERATIONS`.
    operations: [Duration; 3],
    /// Files a second of a search that meets all of them.
    found_per_s: f64,
    /// Memory of the servers for each file, beyond their memory without files.
    memory_bytes_per_file: f64,
}

/// A layout, and what came of it.
struct Grown {
    layout: Layout,
    steps: Vec<Step>,
    removes_per_s: f64,
}

impl Grown {
    /// How much dearer an operation was at the end than at the beginning.
    fn ratio(&self, operation: usize) -> f64 {
        let of = |step: &Step| step.operations[operation].as_secs_f64();
        of(&self.steps[self.steps.len() - 1]) / of(&self.steps[0]).max(f64::MIN_POSITIVE)
    }
}

/// Measures, then reports.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    started::hear_signals(program, "many")?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let layouts = [Layout::OneDirectory, Layout::ManyDirectories];
    let grown = layouts.into_iter().map(|layout| grow(args, program, layout)).collect::<Outcome<Vec<Grown>>>()?;
    let (result, text) = (json(args, program, &grown), text(args, &grown));
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        keep.write("result.txt", &text)?;
        keep.write("operations.svg", &picture(&grown))?;
    }
    if args.json {
        outln!("{result}");
    } else {
        out!("{text}");
    }
    Ok(Exit::Done)
}

/// The directories of a volume that grows, and the names of its files.
struct Ground {
    session: Arc<dyn Session>,
    layout: Layout,
    places: Vec<Native>,
}

impl Ground {
    /// File number `index`: its directory and its name.
    fn file(&self, index: u64) -> (&Native, String) {
        let place = match self.layout {
            Layout::OneDirectory => 0,
            Layout::ManyDirectories => index / FILES_PER_DIR,
        };
        (&self.places[place as usize], format!("f{index:09}"))
    }

    /// Does the same to all files from `begin` to `end`, by many callers; gives how many a second.
    fn all(&self, callers: u64, begin: u64, end: u64, each: &Each<'_>) -> Outcome<f64> {
        let started = Instant::now();
        thread::scope(|scope| {
            let call = move |caller: u64| {
                (begin + caller..end).step_by(callers as usize).try_for_each(|index| {
                    let (place, name) = self.file(index);
                    each(place, &name)
                })
            };
            let threads: Vec<_> = (0..callers).map(|caller| scope.spawn(move || call(caller))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a caller does not panic"))
        })?;
        Ok((end - begin) as f64 / started.elapsed().as_secs_f64())
    }

    /// Does the same `count` times, by one caller; gives the median time of one.
    fn median(&self, count: u64, each: &dyn Fn(u64) -> Outcome<()>) -> Outcome<Duration> {
        let mut times = Vec::with_capacity(count as usize);
        for index in 0..count {
            let started = Instant::now();
            each(index)?;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }
}

/// An operation on one file.
type Each<'a> = dyn Fn(&Native, &str) -> Outcome<()> + Sync + 'a;

fn grow(args: &Args, program: &'static dyn Program, layout: Layout) -> Outcome<Grown> {
    let name = format!("many-{}-{}", layout as u8, std::process::id());
    let servers = args.servers.to_string();
    let size = (args.files * CAPACITY_PER_FILE).max(CAPACITY_MIN).to_string();
    let volume = Started::new(program, &name, &["--servers", &servers, "--size", &size])?;
    let empty_bytes = volume.settled_bytes()?;
    let session = program.open(&name)?;
    let mut ground = Ground { session, layout, places: Vec::new() };
    let mut steps: Vec<Step> = Vec::new();
    for halvings in (0..=DOUBLINGS).rev() {
        let (before, files) = (steps.last().map_or(0, |step| step.files), args.files >> halvings);
        errln!("bench many: {}, {files} files", layout.title());
        for index in ground.places.len() as u64..layout.directories(files) {
            ground.places.push(Native::new(ground.session.clone(), &format!("d{index:07}"))?);
        }
        let creates_per_s = ground.all(args.callers, before, files, &|place, name| place.create(name))?;
        let memory_bytes_per_file = (volume.settled_bytes()? - empty_bytes) as f64 / files as f64;
        let mut step =
            Step { files, creates_per_s, operations: Default::default(), found_per_s: 0.0, memory_bytes_per_file };
        look(args, &ground, &mut step)?;
        steps.push(step);
    }
    let removes_per_s = ground.all(args.callers, 0, args.files, &|place, name| place.remove(name))?;
    ground.places.iter().try_for_each(Place::end)?;
    ground.session.end();
    Ok(Grown { layout, steps, removes_per_s })
}

/// Operations on a volume of so many files.
fn look(args: &Args, ground: &Ground, step: &mut Step) -> Outcome<()> {
    let some = |index: u64| ground.file(index.wrapping_mul(STRIDE) % step.files);
    let extra = |index: u64| (some(index).0, format!("x{index:09}"));
    let stat = |index: u64| {
        let (place, name) = some(index);
        place.stat(&name)
    };
    let create = |index: u64| {
        let (place, name) = extra(index);
        place.create(&name)
    };
    let remove = |index: u64| {
        let (place, name) = extra(index);
        place.remove(&name)
    };
    let started = Instant::now();
    started::count(ground.session.as_ref(), step.files + ground.layout.directories(step.files))?;
    step.found_per_s = step.files as f64 / started.elapsed().as_secs_f64();
    let probes = args.probes;
    step.operations = [ground.median(probes, &stat)?, ground.median(probes, &create)?, ground.median(probes, &remove)?];
    Ok(())
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn json(args: &Args, program: &dyn Program, grown: &[Grown]) -> Value {
    let step = |step: &Step| {
        json!({
            "files": step.files,
            "creates_per_s": step.creates_per_s,
            "stat_us_median": us(step.operations[0]),
            "create_us_median": us(step.operations[1]),
            "remove_us_median": us(step.operations[2]),
            "found_per_s": step.found_per_s,
            "memory_bytes_per_file": step.memory_bytes_per_file,
        })
    };
    let layout = |grown: &Grown| {
        let ratios: serde_json::Map<String, Value> =
            OPERATIONS.iter().enumerate().map(|(index, name)| (name.to_string(), grown.ratio(index).into())).collect();
        json!({
            "layout": grown.layout.title(),
            "steps": grown.steps.iter().map(step).collect::<Vec<_>>(),
            "removes_per_s": grown.removes_per_s,
            "last_to_first": ratios,
        })
    };
    let mut result = record::circumstances(program);
    result["files"] = args.files.into();
    result["probes"] = args.probes.into();
    result["callers"] = args.callers.into();
    result["servers"] = args.servers.into();
    result["durable"] = "nothing: the servers keep it in memory".into();
    result["layouts"] = grown.iter().map(layout).collect();
    result
}

fn text(args: &Args, grown: &[Grown]) -> String {
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    put(format!(
        "empty files in a volume in memory, {} callers make them; medians of {} operations of one caller",
        args.callers, args.probes
    ));
    for grown in grown {
        put(format!("\n{}", grown.layout.title()));
        let head = ["files", "creates/s", "stat us", "create us", "remove us", "found/s", "bytes/file"];
        put(head.iter().map(|title| format!("{title:>12}")).collect());
        for step in &grown.steps {
            let operations: String = step.operations.iter().map(|time| format!("{:>12.1}", us(*time))).collect();
            put(format!(
                "{:>12}{:>12.0}{operations}{:>12.0}{:>12.0}",
                step.files, step.creates_per_s, step.found_per_s, step.memory_bytes_per_file
            ));
        }
        let ratios = OPERATIONS.iter().enumerate().map(|(index, name)| {
            let ratio = grown.ratio(index);
            format!("{name} {ratio:.2}{}", if ratio <= FLAT_RATIO { "" } else { " (not flat)" })
        });
        put(format!("last to first: {}", ratios.collect::<Vec<_>>().join(", ")));
        put(format!("then removed: {:.0} files/s", grown.removes_per_s));
    }
    text
}

fn picture(grown: &[Grown]) -> String {
    let curve = |grown: &Grown, operation: usize| Curve {
        name: format!("{}, {}", OPERATIONS[operation], grown.layout.title()),
        points: grown.steps.iter().map(|step| (step.files, us(step.operations[operation]))).collect(),
    };
    let curves: Vec<Curve> =
        grown.iter().flat_map(|grown| (0..OPERATIONS.len()).map(move |operation| curve(grown, operation))).collect();
    plot::draw("One operation of one caller, by files in the volume", "files", "us", &curves, &plot::count)
}
