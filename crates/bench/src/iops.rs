//! `aze bench iops`: single operations and their latencies, side by side in one run.
//!
//! Every place does the same work, in turn, several times; the median of the turns is shown. Memory
//! is touched before it is measured, since the first touch of a page costs several times the copy.

use crate::place::{Described, Directory, Native, Place, describe, describe_native, kept_time};
use crate::program::{Program, Session};
use crate::record::{self, Keep};
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use aze_words::{errln, out, outln};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of one write and one read.
const BLOCK_BYTES: usize = 1 << 20;

/// Creates, stats, 1 MiB writes and reads, removes: rates and latencies side by side.
#[derive(clap::Args)]
#[command(after_help = crate::EXAMPLES)]
pub struct Args {
    /// The volume [default: $AZE_VOLUME, or the only one that runs]
    #[arg(long)]
    name: Option<String>,
    /// Measure the volume without a mount [default: only this, if no --target is given]
    #[arg(long)]
    native: bool,
    /// Measure the volume also with a private directory for each caller ('aze mkdir --private'), and show the ratios
    #[arg(long)]
    private: bool,
    /// Measure this directory too; may be given several times
    #[arg(long, value_name = "DIR")]
    target: Vec<PathBuf>,
    /// Callers at once in every place
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Files that each caller creates, looks up and removes
    #[arg(long, default_value_t = 5000)]
    files: usize,
    /// Bytes that each caller writes and reads
    #[arg(long, default_value = "128M", value_parser = size::parse)]
    bytes: u64,
    /// Turns of every place; the median is shown
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Write result.json and result.txt into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The head of the column of private directories.
const PRIVATE_TITLE: &str = "aze, private";

/// The phases, in their order.
const PHASES: [&str; 5] = ["create", "stat", "write", "read", "remove"];

/// One phase in one place, in one turn.
#[derive(Clone, Copy)]
struct Figure {
    /// Operations, or bytes, a second, of all callers together.
    per_second: f64,
    /// Median time of one operation of one caller; zero where a phase is one long operation.
    median: Duration,
}

/// Where the directories of the callers are made.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// In the volume; private ones or ordinary ones.
    Volume { private: bool },
    /// In this one of `--target`.
    Target(usize),
}

struct Column {
    what: Described,
    at: At,
    /// One row a turn, one figure a phase.
    turns: Vec<[Figure; 5]>,
}

/// Measures, then prints a table or JSON.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    if args.threads == 0 || args.files == 0 || args.repeat == 0 || args.bytes < BLOCK_BYTES as u64 {
        return Err(Trouble::usage(
            "bench iops: --threads, --files and --repeat must be at least 1, --bytes at least 1M",
        ));
    }
    crate::started::hear_signals(program, "iops")?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let native = args.native || args.private || args.target.is_empty();
    let session = if native { Some(program.open(&program.volume(args.name.as_deref())?.name)?) } else { None };
    let mut columns: Vec<Column> = Vec::new();
    if native {
        let durability = session.as_ref().and_then(|session| session.volume().durability);
        let what = describe_native(durability.as_deref());
        let private = args.private.then(|| Described { title: PRIVATE_TITLE.into(), ..what.clone() });
        columns.push(Column { what, at: At::Volume { private: false }, turns: Vec::new() });
        columns.extend(private.map(|what| Column { what, at: At::Volume { private: true }, turns: Vec::new() }));
    }
    for (index, target) in args.target.iter().enumerate() {
        columns.push(Column { what: describe(target)?, at: At::Target(index), turns: Vec::new() });
    }
    let has_mount = columns.iter().any(|column| column.what.is_mount);
    let cache_time = if has_mount { kept_time(program) } else { Duration::ZERO };
    for turn in 0..args.repeat {
        for column in &mut columns {
            errln!("bench iops: turn {} of {}, {}", turn + 1, args.repeat, column.what.title);
            let places = places(args, session.as_ref(), column.at, turn)?;
            column.turns.push(turn_of(args, &places, cache_time)?);
        }
    }
    if let Some(session) = session {
        session.end();
    }
    let (result, table) = (json(args, program, &columns), table(args, &columns));
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        keep.write("result.txt", &table)?;
    }
    if args.json {
        outln!("{result}");
    } else {
        out!("{table}");
    }
    Ok(Exit::Done)
}

/// A directory for every caller.
fn places(args: &Args, session: Option<&Arc<dyn Session>>, at: At, turn: usize) -> Outcome<Vec<Box<dyn Place>>> {
    (0..args.threads)
        .map(|caller| {
            let name = format!("bench-{}-{turn}-{caller}", std::process::id());
            Ok(match (at, session) {
                (At::Target(index), _) => Box::new(Directory::new(&args.target[index], &name)?) as Box<dyn Place>,
                (At::Volume { private }, Some(session)) => Box::new(Native::removed(session.clone(), &name, private)?),
                (At::Volume { .. }, None) => return Err(Trouble::usage("bench iops: nothing to measure")),
            })
        })
        .collect()
}

fn turn_of(args: &Args, places: &[Box<dyn Place>], cache_time: Duration) -> Outcome<[Figure; 5]> {
    let block: Vec<u8> = (0..BLOCK_BYTES).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
    let count = (args.bytes / BLOCK_BYTES as u64) as usize;
    let bytes = (count * BLOCK_BYTES * places.len()) as f64;
    let files = (args.files * places.len()) as f64;
    let each = |operation: &(dyn Fn(&dyn Place, &str) -> Outcome<()> + Sync)| {
        measure(places, files, &|place, times| {
            (0..args.files).try_for_each(|index| {
                let started = Instant::now();
                operation(place, &format!("f{index:07}"))?;
                times.push(started.elapsed());
                Ok(())
            })
        })
    };
    let create = each(&|place, name| place.create(name))?;
    // What making the files has left in a kernel must not answer.
    thread::sleep(cache_time);
    let stat = each(&|place, name| place.stat(name))?;
    let write = || measure(places, bytes, &|place, _| place.write("data", &block, count));
    // The first round touches the memory, the second is the one that counts.
    write()?;
    measure(places, bytes, &|place, _| place.remove("data"))?;
    let write = write()?;
    let read = measure(places, bytes, &|place, _| {
        let mut buffer = vec![0; BLOCK_BYTES];
        let length = place.read("data", &mut buffer)?;
        if length == (count * BLOCK_BYTES) as u64 && buffer == block {
            Ok(())
        } else {
            Err(Trouble::new(
                Exit::Fatal,
                format!("bench iops: {length} bytes were read, and not those that were written"),
            ))
        }
    })?;
    let remove = each(&|place, name| place.remove(name))?;
    places.iter().try_for_each(|place| place.remove("data").and_then(|()| place.end()))?;
    Ok([create, stat, write, read, remove])
}

/// What one caller does in a phase: in its place, noting how long each operation takes.
type Work<'a> = dyn Fn(&dyn Place, &mut Vec<Duration>) -> Outcome<()> + Sync + 'a;

/// Runs one phase in all places at once; `units` is what all of them do together.
fn measure(places: &[Box<dyn Place>], units: f64, work: &Work<'_>) -> Outcome<Figure> {
    let barrier = Barrier::new(places.len() + 1);
    let (elapsed, results) = thread::scope(|scope| {
        let callers: Vec<_> = places
            .iter()
            .map(|place| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut times = Vec::new();
                    barrier.wait();
                    work(place.as_ref(), &mut times).map(|()| times)
                })
            })
            .collect();
        barrier.wait();
        let started = Instant::now();
        let results: Vec<_> =
            callers.into_iter().map(|caller| caller.join().expect("a caller does not panic")).collect();
        (started.elapsed(), results)
    });
    let mut times = results.into_iter().collect::<Outcome<Vec<_>>>()?.concat();
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    Ok(Figure { per_second: units / elapsed.as_secs_f64(), median })
}

/// The median turn of a phase, by its rate.
fn median(column: &Column, phase: usize) -> Figure {
    let figures: Vec<Figure> = column.turns.iter().map(|turn| turn[phase]).collect();
    crate::median::median(&figures, |figure| figure.per_second)
}

/// How many times as fast the private directories are as the ordinary ones, in a phase; `None` without `--private`.
fn private_ratio(columns: &[Column], phase: usize) -> Option<f64> {
    let of = |private| columns.iter().find(|column| column.at == At::Volume { private });
    Some(median(of(true)?, phase).per_second / median(of(false)?, phase).per_second)
}

fn is_bandwidth(phase: &str) -> bool {
    matches!(phase, "write" | "read")
}

fn table(args: &Args, columns: &[Column]) -> String {
    let mut text = String::new();
    let mut put = |part: String| text.push_str(&part);
    let turns = if args.repeat == 1 { "one turn".to_string() } else { format!("median of {} turns", args.repeat) };
    put(format!(
        "{} callers, {} files and {} MiB each, {turns}, memory warm\n",
        args.threads,
        args.files,
        args.bytes >> 20
    ));
    put("\n".into());
    put(format!("{:<18}", ""));
    for column in columns {
        put(format!("{:>26}", column.what.title));
    }
    if private_ratio(columns, 0).is_some() {
        put(format!("{:>20}", "private/ordinary"));
    }
    put("\n".into());
    for (index, phase) in PHASES.iter().enumerate() {
        let unit = if is_bandwidth(phase) { "1 MiB, MB/s" } else { "1/s" };
        put(format!("{:<18}", format!("{phase} ({unit})")));
        for column in columns {
            let figure = median(column, index);
            let cell = if is_bandwidth(phase) {
                format!("{:.0}", figure.per_second / 1e6)
            } else {
                format!("{:.0} ({:.1} us)", figure.per_second, figure.median.as_secs_f64() * 1e6)
            };
            put(format!("{cell:>26}"));
        }
        if let Some(ratio) = private_ratio(columns, index) {
            put(format!("{ratio:>20.2}"));
        }
        put("\n".into());
    }
    put("\n".into());
    for column in columns {
        put(format!("{:<14} cached: {}; durable: {}\n", column.what.title, column.what.cached, column.what.durable));
    }
    text
}

fn json(args: &Args, program: &dyn Program, columns: &[Column]) -> Value {
    let places: Vec<Value> = columns
        .iter()
        .map(|column| {
            let phases: serde_json::Map<String, Value> = PHASES
                .iter()
                .enumerate()
                .map(|(index, phase)| {
                    let figure = median(column, index);
                    let turns: Vec<f64> = column.turns.iter().map(|turn| turn[index].per_second).collect();
                    let value = if is_bandwidth(phase) {
                        json!({ "bytes_per_s": figure.per_second, "turns": turns })
                    } else {
                        json!({ "per_s": figure.per_second, "latency_us_median": figure.median.as_secs_f64() * 1e6, "turns": turns })
                    };
                    ((*phase).to_string(), value)
                })
                .collect();
            json!({ "place": column.what.title, "cached": column.what.cached, "durable": column.what.durable, "phases": phases })
        })
        .collect();
    let mut run = record::circumstances(program);
    run["callers"] = args.threads.into();
    run["files_per_caller"] = args.files.into();
    run["bytes_per_caller"] = args.bytes.into();
    run["turns"] = args.repeat.into();
    run["places"] = places.into();
    if columns.iter().any(|column| column.at == At::Volume { private: true }) {
        let ratio =
            |(index, phase): (usize, &&str)| Some(((*phase).to_string(), private_ratio(columns, index)?.into()));
        run["private_ratios"] = Value::Object(PHASES.iter().enumerate().filter_map(ratio).collect());
    }
    run
}
