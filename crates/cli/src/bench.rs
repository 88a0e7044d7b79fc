//! `aze bench`: its measurements; this file has `iops`: single operations and their
//! latencies, side by side in one run. `io500` and `p4` have rooms of their own.
//!
//! Every place does the same work, in turn, several times; the median of the turns is shown. Memory
//! is touched before it is measured, since the first touch of a page costs several times the copy.

use crate::bench_durability;
use crate::bench_many;
use crate::bench_p4;
use crate::bench_place::{Described, Directory, KEPT_TIME, Native, Place, describe, describe_native};
use crate::bench_record::{self, Keep};
use crate::exit::{Exit, Outcome, Trouble};
use crate::io500;
use crate::session::Session;
use crate::size;
use crate::volume::Volume;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  aze bench iops                                    the volume, without a mount
  aze bench iops --native --target /mnt/v --target /dev/shm --target /var/tmp
  aze bench iops --threads 4 --files 20000 --json
  aze bench io500 --short                           the phases of IO500, in under a minute
  aze bench p4                                      bandwidth of one process by transfer size
  aze bench durability --storage /data --target /data   what it costs that files are safe
  aze bench many                                    what names cost when there are ten million of them";

/// Bytes of one write and one read.
const BLOCK_BYTES: usize = 1 << 20;

/// Measure the volume, and directories to compare it with.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Iops(Iops),
    Io500(io500::Args),
    P4(bench_p4::Args),
    Durability(bench_durability::Args),
    Many(bench_many::Args),
    /// One process of `aze bench io500`, which starts it.
    #[command(hide = true)]
    Io500Rank,
}

/// Creates, stats, 1 MiB writes and reads, removes: rates and latencies side by side.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct Iops {
    /// The volume [default: $AZE_VOLUME, or the only one that runs]
    #[arg(long)]
    name: Option<String>,
    /// Measure the volume without a mount [default: only this, if no --target is given]
    #[arg(long)]
    native: bool,
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

struct Column {
    what: Described,
    /// One row a turn, one figure a phase.
    turns: Vec<[Figure; 5]>,
}

/// Measures, then prints a table or JSON.
pub fn run(args: &Args) -> Outcome<Exit> {
    match &args.bench {
        Bench::Iops(iops) => run_iops(iops),
        Bench::Io500(args) => io500::run(args),
        Bench::P4(args) => bench_p4::run(args),
        Bench::Durability(args) => bench_durability::run(args),
        Bench::Many(args) => bench_many::run(args),
        Bench::Io500Rank => io500::run_rank(),
    }
}

fn run_iops(iops: &Iops) -> Outcome<Exit> {
    if iops.threads == 0 || iops.files == 0 || iops.repeat == 0 || iops.bytes < BLOCK_BYTES as u64 {
        return Err(Trouble::usage(
            "bench iops: --threads, --files and --repeat must be at least 1, --bytes at least 1M",
        ));
    }
    crate::bench_volume::hear_signals("iops")?;
    let keep = iops.record.as_deref().map(Keep::new).transpose()?;
    let native = iops.native || iops.target.is_empty();
    let session = if native { Some(Session::open(Volume::meant(iops.name.as_deref())?)?) } else { None };
    let mut columns: Vec<Column> = Vec::new();
    if native {
        let durability = session.as_ref().and_then(|session| session.volume.record.settings.durability.clone());
        columns.push(Column { what: describe_native(durability.as_deref()), turns: Vec::new() });
    }
    for target in &iops.target {
        columns.push(Column { what: describe(target)?, turns: Vec::new() });
    }
    let has_mount = columns.iter().any(|column| column.what.is_mount);
    let cache_time = if has_mount { KEPT_TIME } else { Duration::ZERO };
    for turn in 0..iops.repeat {
        for (index, column) in columns.iter_mut().enumerate() {
            eprintln!("bench iops: turn {} of {}, {}", turn + 1, iops.repeat, column.what.title);
            let target = if native { index.checked_sub(1) } else { Some(index) };
            let places = places(iops, session.as_ref(), target, turn)?;
            column.turns.push(turn_of(iops, &places, cache_time)?);
        }
    }
    if let Some(session) = session {
        session.end();
    }
    let (result, table) = (json(iops, &columns), table(iops, &columns));
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        keep.write("result.txt", &table)?;
    }
    if iops.json {
        println!("{result}");
    } else {
        print!("{table}");
    }
    Ok(Exit::Done)
}

/// A directory for every caller.
fn places(
    iops: &Iops,
    session: Option<&Arc<Session>>,
    target: Option<usize>,
    turn: usize,
) -> Outcome<Vec<Box<dyn Place>>> {
    (0..iops.threads)
        .map(|caller| {
            let name = format!("bench-{}-{turn}-{caller}", std::process::id());
            Ok(match (target, session) {
                (Some(index), _) => Box::new(Directory::new(&iops.target[index], &name)?) as Box<dyn Place>,
                (None, Some(session)) => Box::new(Native::removed(session.clone(), &name)?),
                (None, None) => return Err(Trouble::usage("bench iops: nothing to measure")),
            })
        })
        .collect()
}

fn turn_of(iops: &Iops, places: &[Box<dyn Place>], cache_time: Duration) -> Outcome<[Figure; 5]> {
    let block: Vec<u8> = (0..BLOCK_BYTES).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
    let count = (iops.bytes / BLOCK_BYTES as u64) as usize;
    let bytes = (count * BLOCK_BYTES * places.len()) as f64;
    let files = (iops.files * places.len()) as f64;
    let each = |operation: &(dyn Fn(&dyn Place, &str) -> Outcome<()> + Sync)| {
        measure(places, files, &|place, times| {
            (0..iops.files).try_for_each(|index| {
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
    crate::bench_median::median(&figures, |figure| figure.per_second)
}

fn is_bandwidth(phase: &str) -> bool {
    matches!(phase, "write" | "read")
}

fn table(iops: &Iops, columns: &[Column]) -> String {
    let mut text = String::new();
    let mut put = |part: String| text.push_str(&part);
    let turns = if iops.repeat == 1 { "one turn".to_string() } else { format!("median of {} turns", iops.repeat) };
    put(format!(
        "{} callers, {} files and {} MiB each, {turns}, memory warm\n",
        iops.threads,
        iops.files,
        iops.bytes >> 20
    ));
    put("\n".into());
    put(format!("{:<18}", ""));
    for column in columns {
        put(format!("{:>26}", column.what.title));
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
        put("\n".into());
    }
    put("\n".into());
    for column in columns {
        put(format!("{:<14} cached: {}; durable: {}\n", column.what.title, column.what.cached, column.what.durable));
    }
    text
}

fn json(iops: &Iops, columns: &[Column]) -> Value {
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
    let mut run = bench_record::circumstances();
    run["callers"] = iops.threads.into();
    run["files_per_caller"] = iops.files.into();
    run["bytes_per_caller"] = iops.bytes.into();
    run["turns"] = iops.repeat.into();
    run["places"] = places.into();
    run
}
