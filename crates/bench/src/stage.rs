//! `aze bench stage`: how fast files are staged out of a volume and into one, beside as many processes of cp(1) that do the
//! same between a mount of it, or a directory, and the same directory.
//!
//! A copy without proof is not the same work. So each turn of cp has two times: until it has ended, when nothing is durable;
//! and until its copies were synchronised, too, read from where they are stored, and compared, as `aze stage` does.

use crate::place::describe;
use crate::program::Program;
use crate::record::{self, Keep};
use crate::started::{self, Scratch, Started, aze, go_on};
use aze_io::real::files;
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use aze_words::{errln, out, outln};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  aze bench stage --target /project                      2,000 files of 4 KiB, and a sparse one of 4 GiB
  aze bench stage --target /project --files 100000 --sparse 100G --data 1G --size 8G --record result
  aze bench stage --target /project --sparse 0 --cp dir  small files alone, beside copies within /project";

/// Data of a sparse file lie in pieces of this size, with the same distance between them.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that are compared at once.
const BLOCK_BYTES: usize = 4 << 20;
/// What reads past the page cache may have to be aligned to.
const ALIGNED_BYTES: usize = 4096;

/// How fast files are staged out of a volume and in, beside as many processes of cp(1).
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory to which is staged, and from which; what is made there is removed, small files at the end
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// Small files, in as many directories as there are --jobs; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(..=100_000_000))]
    files: u64,
    /// Length of a small file
    #[arg(long, default_value = "4K", value_parser = size::parse)]
    bytes: u64,
    /// Length of the sparse file; 0 leaves it out
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size::parse)]
    sparse: u64,
    /// Data of the sparse file, in pieces of 1 MiB
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size::parse)]
    data: u64,
    /// --jobs of 'aze stage', and processes of cp
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    /// The other side of cp: a mount of the volume, or a directory in --target
    #[arg(long, value_name = "SIDE", default_value = "mount")]
    cp: Other,
    /// Servers of the volume, which is started for this
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    servers: u16,
    /// What the volume may hold: the data three times
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    size: String,
    /// Turns, which cp and 'aze stage' begin alternately
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Write result.json and result.txt into this new directory
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The other side of cp.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Other {
    /// A mount of the volume.
    Mount,
    /// A directory in that of --target.
    Dir,
}

/// The kind of files that are copied at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Files,
    Sparse,
}

impl Work {
    /// Its name in the source's directory.
    fn name(self) -> &'static str {
        match self {
            Work::Files => "files",
            Work::Sparse => "sparse",
        }
    }
}

/// One kind of work in one direction, with its turns.
struct Row {
    work: Work,
    direction: &'static str,
    turns: Vec<Turn>,
}

/// Times of one turn.
#[derive(Clone, Copy)]
struct Turn {
    stage: Duration,
    cp: Duration,
    /// Until the copies of cp were synchronised, read back and compared, too.
    cp_proven: Duration,
}

/// The places of all copies.
struct Ground<'a> {
    args: &'a Args,
    program: &'static dyn Program,
    volume: String,
    /// The scratch directory in that of `--target`.
    dir: PathBuf,
    /// A mount of the volume.
    mount: Option<PathBuf>,
}

/// Measures, removes its files, then reports.
pub fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    let usage = |text: &str| Err(Trouble::usage(format!("bench stage: {text}")));
    match args {
        Args { files: 0, sparse: 0, .. } => return usage("--files and --sparse leave nothing to copy"),
        Args { files: 1.., bytes: 0, .. } => return usage("--bytes must be at least 1"),
        Args { sparse: 1.., .. } if args.data < PIECE_BYTES || args.data > args.sparse => {
            return usage("--data must be at least 1M and not more than --sparse");
        }
        _ => {}
    }
    started::hear_signals(program, "stage")?;
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let scratch = Scratch::new(&args.target, "stage")?;
    let volume = format!("bench-stage-{}", std::process::id());
    let started = Started::new(program, &volume, &["--servers", &args.servers.to_string(), "--size", &args.size])?;
    let mount = (args.cp == Other::Mount).then(|| scratch.path.join("mount"));
    let ground = Ground { args, program, volume, dir: scratch.path.clone(), mount };
    let mut rows = ground.prepare()?;
    for turn in 0..args.repeat {
        for row in &mut rows {
            let (name, direction) = (row.work.name(), row.direction);
            errln!("bench stage: turn {} of {}, {name} {direction}", turn + 1, args.repeat);
            let measured = ground.turn(row.work, row.direction, turn)?;
            row.turns.push(measured);
        }
    }
    let what = describe(&args.target)?.title;
    drop(started);
    drop(scratch);
    let (result, text) = (json(args, program, &what, &rows), text(args, &what, &rows));
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

impl Ground<'_> {
    /// Makes the source in the directory and in the volume, and mounts that.
    fn prepare(&self) -> Outcome<Vec<Row>> {
        let source = self.dir.join("source");
        let mut works = Vec::new();
        make_dir(&source)?;
        if self.args.files > 0 {
            make_files(&source.join(Work::Files.name()), self.args)?;
            works.push(Work::Files);
        }
        if self.args.sparse > 0 {
            let path = source.join(Work::Sparse.name());
            make_sparse(&path, self.args)
                .map_err(|error| Trouble::local(format!("make {}", path.display()), &error))?;
            works.push(Work::Sparse);
        }
        aze(&["cp", "-r", "--quiet", text_of(&source)?, &self.inside("source")])?;
        if let Some(mount) = &self.mount {
            make_dir(mount)?;
            aze(&["mount", "--name", &self.volume, text_of(mount)?])?;
        }
        let rows = |work| ["out", "in"].map(|direction| Row { work, direction, turns: Vec::new() });
        Ok(works.into_iter().flat_map(rows).collect())
    }

    /// A path of the volume.
    fn inside(&self, path: &str) -> String {
        format!("aze://{}/{path}", self.volume)
    }

    /// Where cp reads and writes in the place of the volume.
    fn other(&self) -> PathBuf {
        self.mount.clone().unwrap_or_else(|| self.dir.clone())
    }

    /// Both ways, one after the other; which is first changes with each turn.
    fn turn(&self, work: Work, direction: &'static str, turn: u64) -> Outcome<Turn> {
        let (mut stage, mut copied) = (Duration::ZERO, (Duration::ZERO, Duration::ZERO));
        for is_stage in [turn.is_multiple_of(2), !turn.is_multiple_of(2)] {
            go_on()?;
            match is_stage {
                true => stage = self.stage(work, direction, turn)?,
                false => copied = self.copy(work, direction, turn)?,
            }
        }
        Ok(Turn { stage, cp: copied.0, cp_proven: copied.1 })
    }

    /// Has `aze stage` copy to a place where nothing is.
    fn stage(&self, work: Work, direction: &str, turn: u64) -> Outcome<Duration> {
        let (local, copy) = (self.dir.join("source").join(work.name()), format!("{}-{turn}", work.name()));
        let (receipt, jobs) = (self.dir.join("receipt.jsonl"), self.args.jobs.to_string());
        let there = self.dir.join(&copy);
        let (from, to) = match direction {
            "out" => (self.inside(&format!("source/{}", work.name())), text_of(&there)?.to_string()),
            _ => (text_of(&local)?.to_string(), self.inside(&copy)),
        };
        let words = ["stage", direction, &from, &to, "--quiet", "--jobs", &jobs, "--receipt", text_of(&receipt)?];
        let begun = Instant::now();
        aze(&words)?;
        let took = begun.elapsed();
        match direction {
            "out" => self.remove(work, &there)?,
            _ => aze(&["rm", "-r", "--force", &to]).map(drop)?,
        }
        remove(&receipt)?;
        self.rest()?;
        Ok(took)
    }

    /// Has cp copy to a place where nothing is; gives the time until it has ended, and until its copies were proven.
    fn copy(&self, work: Work, direction: &str, turn: u64) -> Outcome<(Duration, Duration)> {
        let name = work.name();
        let copied = format!("{name}-{direction}-by-cp-{turn}");
        let (from, to) = match direction {
            "out" => (self.other().join("source").join(name), self.dir.join(copied)),
            _ => (self.dir.join("source").join(name), self.other().join(copied)),
        };
        make_dir(&to)?;
        let begun = Instant::now();
        let shares: Vec<(PathBuf, PathBuf)> = match work {
            Work::Files => (0..self.args.jobs).map(|at| (from.join(dir_name(at)), to.join(dir_name(at)))).collect(),
            Work::Sparse => vec![(from, to.join(name))],
        };
        let mut running = Vec::new();
        for (from, _) in &shares {
            let mut command = Command::new("cp");
            command.args(["-r", "-p", "--sparse=always"]).arg(from).arg(&to).stdin(Stdio::null());
            self.program.with_signals(&mut command);
            running.push(command.spawn().map_err(|error| Trouble::local("run cp", &error))?);
        }
        for mut copy in running {
            let status = copy.wait().map_err(|error| Trouble::local("wait for cp", &error))?;
            if !status.success() {
                return Err(Trouble::new(Exit::Again, format!("cp: {status}: see above")));
            }
        }
        let copied = begun.elapsed();
        sync(&to)?;
        compare_all(&shares)?;
        let proven = begun.elapsed();
        match (direction, &self.mount) {
            ("in", Some(_)) => remove(&to)?,
            _ => self.remove(work, &to)?,
        }
        self.rest()?;
        Ok((copied, proven))
    }

    /// Removes a copy in the directory. Small files stay until the end: a file system may take long to make files while
    /// it looks for an inode that none has had of late, as ext4 without a journal does, and the next work would pay for
    /// that.
    fn remove(&self, work: Work, copy: &Path) -> Outcome<()> {
        if work == Work::Sparse { remove(copy) } else { Ok(()) }
    }

    /// Leaves nothing on its way to a disk, which would be in the way of the next.
    fn rest(&self) -> Outcome<()> {
        sync(&self.dir)
    }
}

fn dir_name(at: u64) -> String {
    format!("d{at:03}")
}

fn text_of(path: &Path) -> Outcome<&str> {
    path.to_str().ok_or_else(|| Trouble::usage(format!("bench stage: {} is no text", path.display())))
}

fn make_dir(path: &Path) -> Outcome<()> {
    fs::create_dir(path).map_err(|error| Trouble::local(format!("make {}", path.display()), &error))
}

fn remove(path: &Path) -> Outcome<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(|error| Trouble::local(format!("remove {}", path.display()), &error))
}

fn sync(dir: &Path) -> Outcome<()> {
    let synced = File::open(dir).and_then(|dir| files::sync_file_system(&dir));
    synced.map_err(|error| Trouble::local(format!("synchronise the file system of {}", dir.display()), &error))
}

/// Bytes that no two files or pieces have in common.
fn contents(number: u64, bytes: &mut [u8]) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let mixed = (number << 32 | at as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes()[..word.len()]);
    }
}

fn make_files(root: &Path, args: &Args) -> Outcome<()> {
    make_dir(root)?;
    let dirs: Vec<PathBuf> = (0..args.jobs).map(|at| root.join(dir_name(at))).collect();
    dirs.iter().try_for_each(|dir| make_dir(dir))?;
    let mut bytes = vec![0; args.bytes as usize];
    for index in 0..args.files {
        go_on()?;
        contents(index, &mut bytes);
        let path = dirs[(index % args.jobs) as usize].join(format!("f{index:09}"));
        fs::write(&path, &bytes).map_err(|error| Trouble::local(format!("write {}", path.display()), &error))?;
    }
    Ok(())
}

fn make_sparse(path: &Path, args: &Args) -> std::io::Result<()> {
    let (file, pieces) = (File::create_new(path)?, args.data / PIECE_BYTES);
    file.set_len(args.sparse)?;
    let mut bytes = vec![0; PIECE_BYTES as usize];
    for piece in 0..pieces {
        contents(piece, &mut bytes);
        file.write_all_at(&bytes, args.sparse / pieces * piece / PIECE_BYTES * PIECE_BYTES)?;
    }
    Ok(())
}

/// Compares all copies of cp with what they are copies of, a thread for each share.
fn compare_all(shares: &[(PathBuf, PathBuf)]) -> Outcome<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|(from, to)| scope.spawn(|| compare_tree(from, to, &mut [Vec::new(), Vec::new()])))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a comparison does not panic"))
    })
}

fn compare_tree(from: &Path, to: &Path, memory: &mut [Vec<u8>; 2]) -> Outcome<()> {
    let failed = |error: &std::io::Error| Trouble::local(format!("compare {}", to.display()), error);
    if !from.is_dir() {
        return match compare(from, to, memory) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Trouble::new(Exit::Fatal, format!("{}: it has other bytes than cp has read", to.display())))
            }
            Err(error) => Err(failed(&error)),
        };
    }
    for entry in fs::read_dir(from).map_err(|error| failed(&error))? {
        go_on()?;
        let name = entry.map_err(|error| failed(&error))?.file_name();
        compare_tree(&from.join(&name), &to.join(&name), memory)?;
    }
    Ok(())
}

/// Whether a copy has the bytes of its source, and no others, where it is stored; what both have as holes is not read.
fn compare(from: &Path, to: &Path, memory: &mut [Vec<u8>; 2]) -> std::io::Result<bool> {
    let (source, stored) = (File::open(from)?, stored(to, &mut memory[1])?);
    let len = source.metadata()?.len();
    if stored.metadata()?.len() != len {
        return Ok(false);
    }
    let mut offset = 0;
    while offset < len {
        if len > BLOCK_BYTES as u64 {
            let next = [files::next_data(&source, offset)?, files::next_data(&stored, offset)?];
            let Some(next) = next.into_iter().flatten().min() else { return Ok(true) };
            offset = next - next % BLOCK_BYTES as u64;
        }
        let count = (len - offset).min(BLOCK_BYTES as u64) as usize;
        let [one, other] = memory;
        let (one, other) = (aligned(one), aligned(other));
        let room = count.next_multiple_of(ALIGNED_BYTES);
        files::read_at(&source, offset, &mut one[..count])?;
        if read_aligned(&stored, offset, &mut other[..room])? != count || one[..count] != other[..count] {
            return Ok(false);
        }
        offset += count as u64;
    }
    Ok(true)
}

/// Opens a copy so that it is read from where it is stored: past the page cache, or where the file system cannot do that,
/// after the kernel was told to forget its pages.
fn stored(path: &Path, memory: &mut Vec<u8>) -> std::io::Result<File> {
    if let Ok(file) = files::open_direct(path)
        && file.read_at(&mut aligned(memory)[..ALIGNED_BYTES], 0).is_ok()
    {
        return Ok(file);
    }
    let file = File::open(path)?;
    files::drop_cached(&file)?;
    Ok(file)
}

/// Reads until the room is full, or the file ends: then within a block, so that no aligned read could go on.
fn read_aligned(file: &File, offset: u64, room: &mut [u8]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < room.len() && count.is_multiple_of(ALIGNED_BYTES) {
        match file.read_at(&mut room[count..], offset + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}

/// A block of the memory that begins at an aligned address.
fn aligned(memory: &mut Vec<u8>) -> &mut [u8] {
    memory.resize(BLOCK_BYTES + ALIGNED_BYTES, 0);
    let before = memory.as_ptr().align_offset(ALIGNED_BYTES);
    &mut memory[before..before + BLOCK_BYTES]
}

/// The median of all turns, and the ends.
struct Spread {
    median: f64,
    lowest: f64,
    highest: f64,
}

impl Spread {
    /// Of rates, or with `sign` -1 of times: the slower one of two turns in the middle counts.
    fn of(turns: &[Turn], sign: f64, value: impl Fn(&Turn) -> f64) -> Spread {
        let values: Vec<f64> = turns.iter().map(value).collect();
        Spread {
            median: crate::median::median(&values, |value| sign * *value),
            lowest: values.iter().copied().fold(f64::INFINITY, f64::min),
            highest: values.iter().copied().fold(0.0, f64::max),
        }
    }

    fn json(&self) -> Value {
        json!({ "median": self.median, "lowest": self.lowest, "highest": self.highest })
    }
}

impl Row {
    fn seconds(&self) -> [Spread; 3] {
        [
            Spread::of(&self.turns, -1.0, |turn| turn.cp.as_secs_f64()),
            Spread::of(&self.turns, -1.0, |turn| turn.cp_proven.as_secs_f64()),
            Spread::of(&self.turns, -1.0, |turn| turn.stage.as_secs_f64()),
        ]
    }

    /// How fast `aze stage` is, measured by cp alone, and by cp with the proof.
    fn ratios(&self) -> [Spread; 2] {
        let ratio = |one: Duration, turn: &Turn| one.as_secs_f64() / turn.stage.as_secs_f64().max(f64::MIN_POSITIVE);
        [
            Spread::of(&self.turns, 1.0, |turn| ratio(turn.cp, turn)),
            Spread::of(&self.turns, 1.0, |turn| ratio(turn.cp_proven, turn)),
        ]
    }
}

/// What each way of copying has done when its time ends.
const INCLUDES: [(&str, &str); 3] = [
    ("cp", "mode, owner and times; nothing is durable, nothing is read back"),
    (
        "cp_proven",
        "the same, then syncfs(2), then all copies are read past the page cache and compared with the source",
    ),
    ("stage", "each file and name durable (fsync), read past the page cache, compared by BLAKE3; a signed receipt"),
];

fn json(args: &Args, program: &dyn Program, what: &str, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let ([cp, cp_proven, stage], [to_cp, to_proven]) = (row.seconds(), row.ratios());
        let turn = |turn: &Turn| {
            json!({
                "cp_s": turn.cp.as_secs_f64(), "cp_proven_s": turn.cp_proven.as_secs_f64(),
                "stage_s": turn.stage.as_secs_f64(),
            })
        };
        json!({
            "work": row.work.name(), "direction": row.direction,
            "cp_s": cp.json(), "cp_proven_s": cp_proven.json(), "stage_s": stage.json(),
            "ratio_to_cp": to_cp.json(), "ratio_to_cp_proven": to_proven.json(),
            "turns": row.turns.iter().map(turn).collect::<Vec<_>>(),
        })
    };
    let mut result = record::circumstances(program);
    result["target"] = what.into();
    result["cp"] = if args.cp == Other::Mount { "mount" } else { "dir" }.into();
    result["files"] = args.files.into();
    result["file_bytes"] = args.bytes.into();
    result["sparse_bytes"] = args.sparse.into();
    result["data_bytes"] = args.data.into();
    result["jobs"] = args.jobs.into();
    result["servers"] = args.servers.into();
    result["includes"] = INCLUDES.iter().map(|(way, text)| (way.to_string(), Value::from(*text))).collect();
    result["rows"] = rows.iter().map(row).collect();
    result
}

fn text(args: &Args, what: &str, rows: &[Row]) -> String {
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    let side = if args.cp == Other::Mount { "a mount of the volume" } else { "a directory beside it" };
    put(format!("between a volume of {} servers in memory and {what}; cp: between {side} and {what}", args.servers));
    let turns = if args.repeat == 1 { "one turn".to_string() } else { format!("medians of {} turns", args.repeat) };
    put(format!("seconds, {turns}; ratios: median, lowest and highest turn\n"));
    put(format!(
        "{:<42}{:>9}{:>12}{:>9}   {:<18}{:<18}",
        "", "cp", "cp proven", "stage", "cp / stage", "cp proven / stage"
    ));
    for row in rows {
        let name = match row.work {
            Work::Files => format!("{} files of {}", args.files, size::words(args.bytes)),
            Work::Sparse => format!("{} with {} of data", size::words(args.sparse), size::words(args.data)),
        };
        let [cp, proven, stage] = row.seconds().map(|spread| format!("{:.3}", spread.median));
        let [to_cp, to_proven] =
            row.ratios().map(|Spread { median, lowest, highest }| format!("{median:.2} {lowest:.2} {highest:.2}"));
        let name = format!("{name}, {}", row.direction);
        put(format!("{name:<42}{cp:>9}{proven:>12}{stage:>9}   {to_cp:<18}{to_proven:<18}"));
    }
    put(format!("\n{} jobs of 'aze stage', and processes of cp; of a single file, one process", args.jobs));
    INCLUDES.iter().for_each(|(way, text)| put(format!("{:<11} {text}", way.replace('_', " "))));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(stage: u64, cp: u64, cp_proven: u64) -> Turn {
        let [stage, cp, cp_proven] = [stage, cp, cp_proven].map(Duration::from_secs);
        Turn { stage, cp, cp_proven }
    }

    #[test]
    fn ratios_are_of_the_turns_and_not_of_medians() {
        let row = Row { work: Work::Files, direction: "out", turns: vec![turn(2, 1, 4), turn(4, 4, 4), turn(1, 2, 9)] };
        let [cp, proven] = row.ratios();
        assert_eq!([cp.lowest, cp.median, cp.highest], [0.5, 1.0, 2.0]);
        assert_eq!([proven.lowest, proven.median, proven.highest], [1.0, 2.0, 9.0]);
    }

    #[test]
    fn a_copy_with_other_bytes_or_holes_is_found() {
        let dir = std::env::temp_dir().join(format!("aze-bench-stage-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (one, other) = (dir.join("one"), dir.join("other"));
        let with = |path: &Path, at: u64, len: u64| {
            let file = File::create(path).unwrap();
            file.set_len(len).unwrap();
            file.write_all_at(b"data", at).unwrap();
        };
        let same = || compare(&one, &other, &mut [Vec::new(), Vec::new()]).unwrap();
        let far = 3 * BLOCK_BYTES as u64 + 5;
        for (len, at, there, expected) in [
            (100, 7, (7, 100), true),
            (100, 7, (8, 100), false),
            (100, 7, (7, 101), false),
            (4 * far, far, (far, 4 * far), true),
            (4 * far, far, (2 * far, 4 * far), false),
            (4 * far, far, (far + 1, 4 * far), false),
        ] {
            with(&one, at, len);
            with(&other, there.0, there.1);
            assert_eq!(same(), expected, "{len} {at} {there:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
