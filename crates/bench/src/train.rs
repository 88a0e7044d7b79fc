//! `aze bench train`: a load as training has it. Workers read whole small files in random order, each file once in an
//! epoch, while one caller writes a large checkpoint now and then, synchronised, and removes the one before. Every
//! place has the same files and gets the same time, in turns; the contents of every file that is read are checked.

use crate::place::{Described, Directory, Native, Place, describe, describe_native};
use crate::program::{Program, Session};
use crate::record::{self, Keep};
use crate::started;
use aze_io::real::until;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use aze_words::{errln, out, outln};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  aze bench train                                       the volume: 100,000 files, 4 workers, two minutes a turn
  aze bench train --against /var/tmp --against /dev/shm     and directories beside it, with ratios
  aze bench train --short --against /dev/shm            in a few seconds";

/// What `--short` and the full form do, where nothing else is said.
const FULL: Form = Form { files: 100_000, time_s: 120, checkpoint_every_s: 60, checkpoint_bytes: 256 << 20 };
const SHORT: Form = Form { files: 2000, time_s: 2, checkpoint_every_s: 1, checkpoint_bytes: 16 << 20 };

struct Form {
    files: u64,
    time_s: u64,
    checkpoint_every_s: u64,
    checkpoint_bytes: u64,
}

/// The beginning of each file: its number.
const HEAD_BYTES: u64 = 8;
/// A file is as long as the mean says, or shorter or longer by up to half of it.
const BYTES_MEAN_MIN: u64 = 4 * HEAD_BYTES;

/// Random reads of many small files by several workers, with a checkpoint now and then.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume [default: $AZE_VOLUME, or the only one that runs]
    #[arg(long)]
    name: Option<String>,
    /// This directory too, in turns with the volume, and the ratio; may be given several times
    #[arg(long, value_name = "DIR")]
    against: Vec<PathBuf>,
    /// Files, all in one directory [default: 100000, 2000 with --short]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    files: Option<u64>,
    /// Mean length of a file; lengths are spread evenly over half of it to both sides
    #[arg(long, default_value = "16K", value_parser = size::parse)]
    bytes: u64,
    /// Workers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    workers: u64,
    /// How long a turn of a place is [default: 2m, 2s with --short]
    #[arg(long, value_parser = size::parse_duration)]
    time: Option<Duration>,
    /// Time between two checkpoints; the first one comes after half of it [default: 60s, 1s with --short]
    #[arg(long, value_name = "TIME", value_parser = size::parse_duration)]
    checkpoint_every: Option<Duration>,
    /// Length of a checkpoint [default: 256M, 16M with --short]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    checkpoint_bytes: Option<u64>,
    /// Turns of every place; the median is shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// A quick form with few files
    #[arg(long)]
    short: bool,
    /// Write result.json and result.txt into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The work in every place.
struct Load {
    files: u64,
    bytes_mean: u64,
    workers: u64,
    time: Duration,
    checkpoint_every: Duration,
    checkpoint: Vec<u8>,
    repeat: u64,
}

impl Load {
    fn of(args: &Args) -> Outcome<Load> {
        let form = if args.short { SHORT } else { FULL };
        let checkpoint_bytes = args.checkpoint_bytes.unwrap_or(form.checkpoint_bytes);
        let load = Load {
            files: args.files.unwrap_or(form.files),
            bytes_mean: args.bytes,
            workers: args.workers,
            time: args.time.unwrap_or(Duration::from_secs(form.time_s)),
            checkpoint_every: args.checkpoint_every.unwrap_or(Duration::from_secs(form.checkpoint_every_s)),
            checkpoint: (0..checkpoint_bytes).map(|index| (index.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect(),
            repeat: args.repeat,
        };
        let usage = |text: &str| Err(Trouble::usage(format!("bench train: {text}")));
        match &load {
            load if load.bytes_mean < BYTES_MEAN_MIN => usage("--bytes must be at least 32"),
            load if load.workers > load.files => usage("--workers must not be more than --files"),
            load if load.time.is_zero() || load.checkpoint_every.is_zero() => {
                usage("--time and --checkpoint-every must be longer than nothing")
            }
            load if load.checkpoint.is_empty() => usage("--checkpoint-bytes must be at least 1"),
            _ => Ok(load),
        }
    }

    /// The length of file number `index`: the same in every place and run.
    fn length(&self, index: u64) -> u64 {
        let (least, spread) = (self.bytes_mean - self.bytes_mean / 2, self.bytes_mean / 2 * 2 + 1);
        least + mixed(index) % spread
    }

    fn length_max(&self) -> u64 {
        self.bytes_mean + self.bytes_mean / 2
    }

    /// Fills memory with the contents of file number `index`.
    fn fill(&self, index: u64, contents: &mut Vec<u8>) {
        let length = self.length(index) as usize;
        contents.clear();
        contents.extend_from_slice(&index.to_le_bytes());
        contents.resize(length, index as u8);
    }

    /// Whether this is all of file number `index`.
    fn is(&self, index: u64, contents: &[u8]) -> bool {
        let (head, rest) = contents.split_at(contents.len().min(HEAD_BYTES as usize));
        contents.len() as u64 == self.length(index)
            && head == index.to_le_bytes()
            && rest.iter().all(|byte| *byte == index as u8)
    }
}

fn name_of(index: u64) -> String {
    format!("f{index:09}")
}

/// A number that has nothing to do with its neighbours' (the last steps of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut word = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Puts numbers into an order that the seed decides (Fisher and Yates).
fn shuffle(numbers: &mut [u64], seed: u64) {
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, (mixed(seed ^ mixed(last as u64)) % (last as u64 + 1)) as usize);
    }
}

/// A place with its files, as each worker sees it, and as the writer of checkpoints does.
struct Ground {
    what: Described,
    workers: Vec<Box<dyn Place>>,
    writer: Box<dyn Place>,
    turns: Vec<Turn>,
}

/// What came of one place in one turn.
struct Turn {
    samples_per_s: f64,
    bytes_per_s: f64,
    /// Times that checkpoints took.
    checkpoints: Vec<Duration>,
}

/// Measures, then prints a table or JSON.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    let load = Load::of(args)?;
    started::hear_signals(program, "train")?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let volume = program.volume(args.name.as_deref())?.name;
    let sessions = (0..=load.workers).map(|_| program.open(&volume)).collect::<Outcome<Vec<Arc<dyn Session>>>>()?;
    let mut grounds = vec![in_volume(&sessions)?];
    for target in &args.against {
        grounds.push(in_directory(target, &load)?);
    }
    for ground in &grounds {
        errln!("bench train: {} files in {}", load.files, ground.what.title);
        make(ground, &load)?;
    }
    for turn in 0..load.repeat {
        for ground in &mut grounds {
            errln!("bench train: turn {} of {}, {}", turn + 1, load.repeat, ground.what.title);
            let done = turn_of(ground, &load, turn)?;
            ground.turns.push(done);
        }
    }
    for ground in &grounds {
        (0..load.files).try_for_each(|index| ground.writer.remove(&name_of(index)))?;
        ground.writer.end()?;
    }
    sessions.iter().for_each(|session| session.end());
    let (result, table) = (json(&load, program, &grounds), table(&load, &grounds));
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

fn own_name() -> String {
    format!("train-{}", std::process::id())
}

/// The volume: workers have a session each, as processes have them, and the writer the last one.
fn in_volume(sessions: &[Arc<dyn Session>]) -> Outcome<Ground> {
    let (writer, workers) = sessions.split_last().expect("there is one for the writer");
    let what = describe_native(writer.volume().durability.as_deref());
    let writer = Native::removed(writer.clone(), &own_name(), false)?;
    let workers = workers.iter().map(|session| Box::new(writer.seen_by(session.clone())) as Box<dyn Place>).collect();
    Ok(Ground { what, workers, writer: Box::new(writer), turns: Vec::new() })
}

fn in_directory(target: &Path, load: &Load) -> Outcome<Ground> {
    let writer = Directory::new(target, &own_name())?;
    let workers = (0..load.workers).map(|_| Box::new(writer.seen_again()) as Box<dyn Place>).collect();
    Ok(Ground { what: describe(target)?, workers, writer: Box::new(writer), turns: Vec::new() })
}

/// Makes the files, by all workers.
fn make(ground: &Ground, load: &Load) -> Outcome<()> {
    let make = |place: &dyn Place, worker: u64| {
        let mut contents = Vec::new();
        (worker..load.files).step_by(load.workers as usize).try_for_each(|index| {
            started::go_on()?;
            load.fill(index, &mut contents);
            place.put(&name_of(index), &contents, false)
        })
    };
    thread::scope(|scope| {
        let workers = ground.workers.iter().zip(0..);
        let threads: Vec<_> =
            workers.map(|(place, worker)| scope.spawn(move || make(place.as_ref(), worker))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })
}

/// Samples and bytes that a worker has read.
type Read = (u64, u64);

fn turn_of(ground: &Ground, load: &Load, turn: u64) -> Outcome<Turn> {
    let (started, failed) = (Instant::now(), AtomicBool::new(false));
    let deadline = started + load.time;
    let failed = &failed;
    // One that fails has the others stop.
    let noted = move |outcome: Outcome<Read>| {
        failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    };
    let (read, checkpoints) = thread::scope(|scope| {
        let workers: Vec<_> = (ground.workers.iter().zip(0..))
            .map(|(place, worker)| {
                scope.spawn(move || noted(work(place.as_ref(), load, (turn, worker), deadline, failed)))
            })
            .collect();
        let checkpoints = write_checkpoints(ground.writer.as_ref(), load, (started, deadline), failed);
        failed.fetch_or(checkpoints.is_err(), Ordering::Relaxed);
        let read: Outcome<Vec<Read>> =
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect();
        (read, checkpoints)
    });
    let (read, checkpoints) = (read?, checkpoints?);
    let seconds = started.elapsed().min(load.time.max(Duration::from_nanos(1))).as_secs_f64();
    let (samples, bytes) =
        read.into_iter().fold((0, 0), |(samples, bytes), (more, long)| (samples + more, bytes + long));
    Ok(Turn { samples_per_s: samples as f64 / seconds, bytes_per_s: bytes as f64 / seconds, checkpoints })
}

/// One worker: its share of each epoch, in random order, until the time is over.
fn work(
    place: &dyn Place,
    load: &Load,
    (turn, worker): (u64, u64),
    deadline: Instant,
    failed: &AtomicBool,
) -> Outcome<Read> {
    let mut contents = vec![0; load.length_max() as usize + 1];
    let (mut samples, mut bytes) = (0, 0);
    let mut all: Vec<u64> = (0..load.files).collect();
    for epoch in 0.. {
        // The same order for all workers; each takes its share of it.
        shuffle(&mut all, mixed(turn << 32 | epoch));
        for index in all.iter().skip(worker as usize).step_by(load.workers as usize) {
            if Instant::now() >= deadline || failed.load(Ordering::Relaxed) {
                return Ok((samples, bytes));
            }
            started::go_on()?;
            let name = name_of(*index);
            let count = place.load(&name, &mut contents)?;
            if !load.is(*index, &contents[..count]) {
                let text = format!("bench train: {count} bytes of {name} were read, and not those that were written");
                return Err(Trouble::new(Exit::Fatal, text));
            }
            samples += 1;
            bytes += count as u64;
        }
    }
    Ok((samples, bytes))
}

/// Writes checkpoints when they are due, until the time is over; gives what each took.
fn write_checkpoints(
    place: &dyn Place,
    load: &Load,
    (started, deadline): (Instant, Instant),
    failed: &AtomicBool,
) -> Outcome<Vec<Duration>> {
    let mut took = Vec::new();
    let name = |number: usize| format!("checkpoint{number}");
    let mut due = started + load.checkpoint_every / 2;
    while due < deadline && !until(due, || failed.load(Ordering::Relaxed)) {
        let begun = Instant::now();
        place.put(&name(took.len()), &load.checkpoint, true)?;
        took.push(begun.elapsed());
        // The older one goes when the newer one is safe.
        if took.len() > 1 {
            place.remove(&name(took.len() - 2))?;
        }
        due += load.checkpoint_every;
    }
    if let Some(last) = took.len().checked_sub(1) {
        place.remove(&name(last))?;
    }
    Ok(took)
}

fn samples(ground: &Ground) -> f64 {
    crate::median::median(&ground.turns.iter().map(|turn| turn.samples_per_s).collect::<Vec<f64>>(), |rate| *rate)
}

fn bytes(ground: &Ground) -> f64 {
    crate::median::median(&ground.turns.iter().map(|turn| turn.bytes_per_s).collect::<Vec<f64>>(), |rate| *rate)
}

/// The median time of a checkpoint, of all turns; `None` if there was none.
fn checkpoint(ground: &Ground) -> Option<f64> {
    let took: Vec<f64> =
        ground.turns.iter().flat_map(|turn| &turn.checkpoints).map(|took| took.as_secs_f64()).collect();
    // The median counts rates: the slower one of two.
    (!took.is_empty()).then(|| crate::median::median(&took, |seconds| -seconds))
}

fn json(load: &Load, program: &dyn Program, grounds: &[Ground]) -> Value {
    let place = |ground: &Ground| {
        json!({
            "place": ground.what.title,
            "cached": ground.what.cached,
            "durable": ground.what.durable,
            "fsync": ground.what.fsync,
            "samples_per_s": samples(ground),
            "bytes_per_s": bytes(ground),
            "turns": ground.turns.iter().map(|turn| turn.samples_per_s).collect::<Vec<f64>>(),
            "checkpoints": ground.turns.iter().map(|turn| turn.checkpoints.len()).sum::<usize>(),
            "checkpoint_s_median": checkpoint(ground),
            "ratio": samples(&grounds[0]) / samples(ground),
        })
    };
    let mut result = record::circumstances(program);
    result["files"] = load.files.into();
    result["bytes_mean"] = load.bytes_mean.into();
    result["workers"] = load.workers.into();
    result["time_s"] = load.time.as_secs_f64().into();
    result["checkpoint_every_s"] = load.checkpoint_every.as_secs_f64().into();
    result["checkpoint_bytes"] = load.checkpoint.len().into();
    result["places"] = grounds.iter().map(place).collect();
    result
}

fn table(load: &Load, grounds: &[Ground]) -> String {
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    put(format!(
        "{} files of {} in the mean, read whole in random order by {} workers; median of {} turns of {:.1} s",
        load.files,
        size::words(load.bytes_mean),
        load.workers,
        load.repeat,
        load.time.as_secs_f64()
    ));
    put(format!(
        "a checkpoint of {} every {:.1} s\n",
        size::words(load.checkpoint.len() as u64),
        load.checkpoint_every.as_secs_f64()
    ));
    put(format!("{:<16}{:>12}{:>10}{:>14}{:>26}", "", "files/s", "MB/s", "checkpoint s", "volume / this"));
    for ground in grounds {
        let seconds = checkpoint(ground).map_or("-".to_string(), |seconds| format!("{seconds:.3}"));
        let ratio = format!("{:.2}", samples(&grounds[0]) / samples(ground));
        put(format!(
            "{:<16}{:>12.0}{:>10.0}{seconds:>14}{ratio:>26}",
            ground.what.title,
            samples(ground),
            bytes(ground) / 1e6
        ));
    }
    put(String::new());
    for Ground { what, .. } in grounds {
        put(format!(
            "{:<14} cached: {}; durable: {}; after fsync: {}",
            what.title, what.cached, what.durable, what.fsync
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            files: 1000,
            bytes_mean: 100,
            workers: 3,
            time: Duration::ZERO,
            checkpoint_every: Duration::ZERO,
            checkpoint: Vec::new(),
            repeat: 1,
        }
    }

    #[test]
    fn files_differ_and_are_known_by_every_byte() {
        let load = load();
        let lengths: Vec<u64> = (0..1000).map(|index| load.length(index)).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&50), Some(&150)));
        let mean = lengths.iter().sum::<u64>() / 1000;
        assert!((95..=105).contains(&mean), "{mean}");
        let mut contents = Vec::new();
        load.fill(7, &mut contents);
        assert!(load.is(7, &contents) && !load.is(8, &contents) && !load.is(7, &contents[1..]) && !load.is(7, &[]));
        for at in 0..contents.len() {
            contents[at] ^= 1;
            assert!(!load.is(7, &contents), "{at}");
            contents[at] ^= 1;
        }
        contents.push(7);
        assert!(!load.is(7, &contents));
    }

    #[test]
    fn an_epoch_has_every_file_once_in_an_order_of_its_own() {
        let order = |seed| {
            let mut all: Vec<u64> = (0..1000).collect();
            shuffle(&mut all, seed);
            all
        };
        let (one, other) = (order(1), order(2));
        assert!(one != other && one == order(1));
        for mut all in [one, other] {
            assert!(all.iter().zip(0..).filter(|(number, at)| *number == at).count() < 20);
            all.sort_unstable();
            assert_eq!(all, (0..1000).collect::<Vec<u64>>());
        }
    }
}
