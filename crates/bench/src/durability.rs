//! `aze bench durability`: what each promise of a volume in directories costs: small files, written by
//! few and by many callers, with and without fsync(2), beside directories that do the same; and how
//! long a start takes that reads them again (in `replay`).
//!
//! It compares only places with the same promise: files that are safe when the caller goes on, or files
//! without any promise.

use crate::place::{Directory, Native, Place, describe};
use crate::program::{Program, Session};
use crate::record::{self, Keep};
use crate::replay::{self, Replay};
use crate::started::{self, Scratch, Started};
use aze_io::real::files;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use aze_words::{errln, out, outln};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  aze bench durability --storage /data --target /data         beside the file system of the same disk
  aze bench durability --storage /data --target /data --target /dev/shm --record result
  aze bench durability --storage /data --time 100ms --repeat 1 --replay 0";

/// Contents of a file: as many bytes as a small file of IO500 has.
const FILE_BYTES: usize = 3901;
/// What the volumes may hold; their files are removed after every turn.
const CAPACITY: &str = "2G";
/// Callers at most: each has a directory of its own in every place.
const CALLERS_MAX: usize = 1024;
/// Time after which a round that is not counted is over.
const FIRST_TOUCH: Duration = Duration::from_millis(100);

/// What durability costs: small files by promise and callers, beside directories; and time to start again.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where volumes are kept that are started, measured and removed
    #[arg(long, value_name = "DIR")]
    storage: PathBuf,
    /// Measure this directory too; may be given several times
    #[arg(long, value_name = "DIR")]
    target: Vec<PathBuf>,
    /// Servers of each volume
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// Callers at once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8,32")]
    callers: Vec<usize>,
    /// How long each place is measured with each number of callers, in each turn
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = size::parse_duration)]
    time: Duration,
    /// Turns of every place; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,
    /// Files of a volume that is killed and started again; 0 leaves that out
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    replay: u64,
    /// Write result.json and result.txt into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One way of writing files in one place.
struct Column {
    title: String,
    ground: Ground,
    /// Whether callers call fsync(2) before they close.
    sync: bool,
    /// Whether a file is safe when its caller goes on, if the place is one that can keep anything.
    is_safe: bool,
    durable: String,
    /// Of each number of callers, of each turn.
    figures: Vec<Vec<Figure>>,
}

enum Ground {
    Volume(Arc<dyn Session>),
    Directory(PathBuf),
}

/// What came of one number of callers in one place, in one turn.
#[derive(Clone, Copy)]
struct Figure {
    files: u64,
    took: Duration,
    /// Times of one file of one caller.
    median: Duration,
    slow: Duration,
}

impl Column {
    /// What callers go through.
    fn through(&self) -> &'static str {
        match self.ground {
            Ground::Volume(_) => "the client library, no mount",
            Ground::Directory(_) => "the kernel",
        }
    }
}

impl Figure {
    fn per_second(&self) -> f64 {
        self.files as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Measures, removes its files, then reports.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    if args.repeat == 0 || args.time.is_zero() || args.callers.is_empty() {
        return Err(Trouble::usage("bench durability: --repeat, --time and --callers must be at least 1"));
    }
    if let Some(callers) = args.callers.iter().find(|callers| !(1..=CALLERS_MAX).contains(*callers)) {
        return Err(Trouble::usage(format!("bench durability: --callers {callers}: expected 1 to {CALLERS_MAX}")));
    }
    started::hear_signals(program, "durability")?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let scratch = Scratch::new(&args.storage, "durability")?;
    let columns = columns(args, program, &scratch.path)?;
    let replay = match args.replay {
        0 => None,
        files => Some(replay::measure(program, &scratch.path, args.servers, files, args.repeat)?),
    };
    drop(scratch);
    let (result, text) = (json(args, program, &columns, replay.as_ref()), text(args, &columns, replay.as_ref()));
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        keep.write("result.txt", &text)?;
    }
    if args.json {
        outln!("{result}");
    } else {
        out!("{text}");
    }
    Ok(Exit::Done)
}

/// All places, measured in turns.
fn columns(args: &Args, program: &'static dyn Program, scratch: &Path) -> Outcome<Vec<Column>> {
    let mut started = Vec::new();
    let mut columns = Vec::new();
    let storage = describe(scratch)?.title;
    let servers = args.servers.to_string();
    for promise in ["none", "fsync", "close"] {
        let name = format!("durability-{promise}-{}", std::process::id());
        let dir = scratch.join(promise).display().to_string();
        let options = ["--servers", &servers, "--size", CAPACITY, "--storage", &dir, "--durability", promise];
        started.push(Started::new(program, &name, &options)?);
        let session = program.open(&name)?;
        let ways: &[bool] = if promise == "fsync" { &[false, true] } else { &[false] };
        for sync in ways {
            let is_safe = *sync || promise == "close";
            columns.push(Column {
                title: format!("aze {promise}{}", if *sync { ", fsync" } else { "" }),
                durable: durable_in_volume(&storage, promise, *sync),
                ground: Ground::Volume(session.clone()),
                sync: *sync,
                is_safe,
                figures: args.callers.iter().map(|_| Vec::new()).collect(),
            });
        }
    }
    let mut own = Vec::new();
    for target in &args.target {
        own.push(Scratch::new(target, "beside")?);
        let kind = describe(target)?.title;
        for sync in [false, true] {
            columns.push(Column {
                title: format!("{kind}{}", if sync { ", fsync" } else { "" }),
                durable: durable_in_directory(&kind, sync),
                ground: Ground::Directory(own[own.len() - 1].path.clone()),
                sync,
                is_safe: sync,
                figures: args.callers.iter().map(|_| Vec::new()).collect(),
            });
        }
    }
    for column in &columns {
        round(column, args.callers.iter().copied().max().unwrap_or(1), FIRST_TOUCH, scratch)?;
    }
    for turn in 1..=args.repeat {
        for (index, callers) in args.callers.iter().enumerate() {
            errln!("bench durability: turn {turn} of {}, {callers} at once", args.repeat);
            for column in &mut columns {
                let figure = round(column, *callers, args.time, scratch)?;
                column.figures[index].push(figure);
            }
        }
    }
    for column in &columns {
        if let Ground::Volume(session) = &column.ground {
            session.end();
        }
    }
    Ok(columns)
}

fn durable_in_volume(storage: &str, promise: &str, sync: bool) -> String {
    match (storage, promise, sync) {
        ("tmpfs", ..) => "nothing: its directory is in memory (tmpfs)".into(),
        (_, "none", _) => "nothing sure: it survives its servers, not the power".into(),
        (_, "close", _) => "each file and its name when close had returned".into(),
        (_, _, true) => "each file and its name when fsync had returned".into(),
        _ => "nothing sure yet: nothing was synced".into(),
    }
}

fn durable_in_directory(kind: &str, sync: bool) -> String {
    match (kind, sync) {
        ("tmpfs", _) => "nothing: it is in memory (tmpfs), where fsync does nothing".into(),
        ("aze, mounted", _) => "what its volume promises: nothing if that is in memory".into(),
        (_, false) => "nothing sure yet: nothing was synced".into(),
        (_, true) => "each file when fsync had returned".into(),
    }
}

/// Many callers make files for some time, which are then removed.
fn round(column: &Column, callers: usize, time: Duration, storage: &Path) -> Outcome<Figure> {
    let contents: Vec<u8> = (0..FILE_BYTES).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
    let places = (0..callers).map(|caller| {
        let name = format!("caller-{caller}");
        Ok(match &column.ground {
            Ground::Volume(session) => Box::new(Native::new(session.clone(), &name)?) as Box<dyn Place>,
            Ground::Directory(dir) => Box::new(Directory::new(dir, &name)?),
        })
    });
    let places = places.collect::<Outcome<Vec<Box<dyn Place>>>>()?;
    let barrier = Barrier::new(callers + 1);
    let call = |place: &dyn Place| {
        let mut times = Vec::new();
        barrier.wait();
        let started = Instant::now();
        while started.elapsed() < time {
            let begun = Instant::now();
            place.put(&format!("f{:07}", times.len()), &contents, column.sync)?;
            times.push(begun.elapsed());
        }
        Ok(times)
    };
    let (took, results) = thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = places.iter().map(|place| scope.spawn(move || call(place.as_ref()))).collect();
        barrier.wait();
        let started = Instant::now();
        let results: Vec<Outcome<Vec<Duration>>> =
            threads.into_iter().map(|thread| thread.join().expect("a caller does not panic")).collect();
        (started.elapsed(), results)
    });
    let times = results.into_iter().collect::<Outcome<Vec<_>>>()?;
    thread::scope(|scope| {
        let clear = |place: &dyn Place, files: usize| {
            (0..files).try_for_each(|index| place.remove(&format!("f{index:07}"))).and_then(|()| place.end())
        };
        let threads: Vec<_> = places
            .iter()
            .zip(&times)
            .map(|(place, times)| scope.spawn(move || clear(place.as_ref(), times.len())))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a caller does not panic"))
    })?;
    rest(column, storage)?;
    let mut times = times.concat();
    times.sort();
    let of = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    Ok(Figure { files: times.len() as u64, took, median: of(50), slow: of(99) })
}

/// Leaves nothing on its way to a disk, which would be in the way of the next.
fn rest(column: &Column, storage: &Path) -> Outcome<()> {
    let sync = |dir: &Path| {
        let synced = File::open(dir).and_then(|dir| files::sync_file_system(&dir));
        synced.map_err(|error| Trouble::local(format!("synchronise the file system of {}", dir.display()), &error))
    };
    sync(storage)?;
    match &column.ground {
        Ground::Directory(dir) => sync(dir),
        Ground::Volume(_) => Ok(()),
    }
}

/// The median turn, by its rate.
fn median(figures: &[Figure]) -> Figure {
    crate::median::median(figures, Figure::per_second)
}

/// Pairs of volumes and directories that have promised the same.
fn pairs(columns: &[Column]) -> Vec<(&Column, &Column)> {
    let is_volume = |column: &Column| matches!(column.ground, Ground::Volume(_));
    let ours = columns.iter().filter(|column| is_volume(column));
    let theirs = || columns.iter().filter(|column| !is_volume(column));
    ours.flat_map(|ours| theirs().filter(|other| other.is_safe == ours.is_safe).map(move |other| (ours, other)))
        .collect()
}

fn ratio(ours: &[Figure], theirs: &[Figure]) -> f64 {
    median(ours).per_second() / median(theirs).per_second().max(f64::MIN_POSITIVE)
}

fn json(args: &Args, program: &dyn Program, columns: &[Column], replay: Option<&Replay>) -> Value {
    let phase_name = |callers: &usize| format!("files, {callers} at once");
    let place = |column: &Column| {
        let phase = |(callers, figures): (&usize, &Vec<Figure>)| {
            let figure = median(figures);
            json!({
                "phase": phase_name(callers),
                "value": figure.per_second() / 1000.0,
                "unit": "kIOPS",
                "seconds": figure.took.as_secs_f64(),
                "ops": figure.files,
                "latency_us_median": figure.median.as_secs_f64() * 1e6,
                "latency_us_p99": figure.slow.as_secs_f64() * 1e6,
                "turns": figures.iter().map(|figure| figure.per_second() / 1000.0).collect::<Vec<_>>(),
            })
        };
        json!({
            "place": column.title,
            "fsync_called": column.sync,
            "through": column.through(),
            "durable": column.durable,
            "phases": args.callers.iter().zip(&column.figures).map(phase).collect::<Vec<_>>(),
        })
    };
    let pair = |(ours, theirs): (&Column, &Column)| {
        let each = args.callers.iter().zip(ours.figures.iter().zip(&theirs.figures));
        let ratios: Map<String, Value> =
            each.map(|(callers, (ours, theirs))| (phase_name(callers), ratio(ours, theirs).into())).collect();
        json!({ "place": ours.title, "to": theirs.title, "ratios": ratios })
    };
    let mut result = record::circumstances(program);
    result["file_bytes"] = FILE_BYTES.into();
    result["servers"] = args.servers.into();
    result["time_s"] = args.time.as_secs_f64().into();
    result["callers"] = json!(args.callers);
    result["places"] = columns.iter().map(place).collect();
    result["against"] = pairs(columns).into_iter().map(pair).collect();
    result["replay"] = replay.map_or(Value::Null, Replay::json);
    result
}

fn text(args: &Args, columns: &[Column], replay: Option<&Replay>) -> String {
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    let turns = if args.repeat == 1 { "one turn".to_string() } else { format!("medians of {} turns", args.repeat) };
    put(format!(
        "files of {FILE_BYTES} bytes made, written and closed, {} s for each figure, {turns}; files/s (time of one)",
        args.time.as_secs_f64()
    ));
    put(String::new());
    let at_once = |callers: &usize| format!("{:>24}", format!("{callers} at once"));
    put(format!("{:<24}{}", "", args.callers.iter().map(at_once).collect::<String>()));
    for column in columns {
        let cell = |figures: &Vec<Figure>| {
            let figure = median(figures);
            let us = figure.median.as_secs_f64() * 1e6;
            format!("{:>24}", format!("{:.0} ({us:.0} us)", figure.per_second()))
        };
        put(format!("{:<24}{}", column.title, column.figures.iter().map(cell).collect::<String>()));
    }
    put(String::new());
    for (ours, theirs) in pairs(columns) {
        let each = ours.figures.iter().zip(&theirs.figures);
        let ratios: String = each.map(|(ours, theirs)| format!("{:>10.2}", ratio(ours, theirs))).collect();
        put(format!("{:<40}{ratios}", format!("{} / {}", ours.title, theirs.title)));
    }
    put(String::new());
    columns.iter().for_each(|column| {
        put(format!("{:<24}through {}; durable: {}", column.title, column.through(), column.durable))
    });
    if let Some(replay) = replay {
        put(format!("\n{}", replay.text()));
    }
    text
}
