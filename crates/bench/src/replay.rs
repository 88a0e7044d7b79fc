//! How long a volume of many files takes to start again after all its servers were killed: from its
//! journals, as they were when it happened, and from the checkpoint that every start writes.

use crate::place::{Native, Place};
use crate::program::Program;
use crate::started::{self, Started};
use aze_words::errln;
use aze_words::exit::{Outcome, Trouble};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Callers that make the files, each in a directory of its own.
const CALLERS: u64 = 8;
/// What a server may hold for each file, with room to spare, and besides.
const BYTES_PER_FILE: u64 = 1024;
const BYTES_BESIDES: u64 = 1 << 30;
/// How much of a file is looked at in one piece.
const LOOK_BYTES: usize = 64 << 10;
/// How long one start may take.
const START_TIME_MAX: &str = "600s";

/// Bytes that a start has read, and its time.
struct Start {
    took: Duration,
    journal_bytes: u64,
    checkpoint_bytes: u64,
}

/// One turn: a start of the empty volume, one from journals, one from checkpoints.
struct Turn {
    empty: Start,
    journal: Start,
    checkpoint: Start,
    /// By how much the servers' memory is larger with the files than without, each time just started.
    memory_bytes: i64,
}

/// What came of it.
pub struct Replay {
    files: u64,
    turns: Vec<Turn>,
}

/// Makes volumes below `scratch` and kills them.
pub fn measure(
    program: &'static dyn Program,
    scratch: &Path,
    servers: u16,
    files: u64,
    repeat: usize,
) -> Outcome<Replay> {
    let files = files.div_ceil(CALLERS) * CALLERS;
    let turn = |turn: usize| {
        errln!("bench durability: turn {turn} of {repeat}, start with {files} files");
        let name = format!("replay-{turn}-{}", std::process::id());
        let storage = scratch.join(format!("replay-{turn}"));
        let (servers, size) = (servers.to_string(), (BYTES_BESIDES + files * BYTES_PER_FILE).to_string());
        let dir = storage.display().to_string();
        let options = ["--servers", &servers, "--size", &size, "--storage", &dir, "--durability", "none"];
        let volume = Started::new(program, &name, &options)?;
        let empty = start(&volume, &storage)?;
        let without = volume.settled_bytes()?;
        make(&volume, files)?;
        let journal = start(&volume, &storage)?;
        count(&volume, files + CALLERS)?;
        let checkpoint = start(&volume, &storage)?;
        count(&volume, files + CALLERS)?;
        let memory_bytes = volume.settled_bytes()? - without;
        drop(volume);
        let removed = fs::remove_dir_all(&storage);
        removed.map_err(|error| Trouble::local(format!("remove {}", storage.display()), &error))?;
        Ok(Turn { empty, journal, checkpoint, memory_bytes })
    };
    Ok(Replay { files, turns: (1..=repeat).map(turn).collect::<Outcome<Vec<Turn>>>()? })
}

fn start(volume: &Started, storage: &Path) -> Outcome<Start> {
    let (journal_bytes, checkpoint_bytes) = (bytes(storage, "log-")?, bytes(storage, "state-")?);
    let started = Instant::now();
    volume.crash_and_restart(START_TIME_MAX)?;
    Ok(Start { took: started.elapsed(), journal_bytes, checkpoint_bytes })
}

/// Bytes of the files of all servers whose names begin so, without the room that is ready behind them.
fn bytes(storage: &Path, beginning: &str) -> Outcome<u64> {
    let told = |error: std::io::Error| Trouble::local(format!("look into {}", storage.display()), &error);
    let mut bytes = 0;
    for server in fs::read_dir(storage).map_err(told)? {
        for file in fs::read_dir(server.map_err(told)?.path()).map_err(told)? {
            let file = file.map_err(told)?;
            if file.file_name().to_string_lossy().starts_with(beginning) {
                bytes += File::open(file.path()).and_then(|file| used(&file)).map_err(told)?;
            }
        }
    }
    Ok(bytes)
}

/// Length of a file without the zeros at its end.
fn used(file: &File) -> io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut block = vec![0; LOOK_BYTES];
    while end > 0 {
        let begin = end.saturating_sub(LOOK_BYTES as u64);
        let block = &mut block[..(end - begin) as usize];
        file.read_exact_at(block, begin)?;
        if let Some(last) = block.iter().rposition(|byte| *byte != 0) {
            return Ok(begin + last as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// All of them must be there, or the measurement is of something else.
fn count(volume: &Started, names: u64) -> Outcome<()> {
    let session = volume.open()?;
    let counted = started::count(session.as_ref(), names);
    session.end();
    counted
}

fn make(volume: &Started, files: u64) -> Outcome<()> {
    let session = volume.open()?;
    let made = thread::scope(|scope| {
        let session = &session;
        let call = move |caller: u64| {
            let place = Native::new(session.clone(), &format!("caller-{caller}"))?;
            (0..files / CALLERS).try_for_each(|index| place.create(&format!("f{index:07}")))
        };
        let threads: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || call(caller))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a caller does not panic"))
    });
    session.end();
    made
}

impl Replay {
    /// The median of one kind of start, in seconds, and that start.
    fn median(&self, kind: impl Fn(&Turn) -> &Start) -> (f64, &Start) {
        let mut starts: Vec<&Start> = self.turns.iter().map(&kind).collect();
        starts.sort_by_key(|start| start.took);
        let start = starts[starts.len() / 2];
        (start.took.as_secs_f64(), start)
    }

    /// Seconds for a million files: the time of a start less that of an empty volume.
    fn per_million(&self, seconds: f64) -> f64 {
        let (empty, _) = self.median(|turn| &turn.empty);
        (seconds - empty).max(0.0) / self.files as f64 * 1e6
    }

    fn memory_per_file(&self) -> f64 {
        let mut each: Vec<i64> = self.turns.iter().map(|turn| turn.memory_bytes).collect();
        each.sort_unstable();
        each[each.len() / 2] as f64 / self.files as f64
    }

    /// One object.
    pub fn json(&self) -> Value {
        let start = |kind: fn(&Turn) -> &Start| {
            let (seconds, start) = self.median(kind);
            json!({
                "seconds": seconds,
                "s_per_million_files": self.per_million(seconds),
                "journal_bytes": start.journal_bytes,
                "checkpoint_bytes": start.checkpoint_bytes,
                "turns": self.turns.iter().map(|turn| kind(turn).took.as_secs_f64()).collect::<Vec<_>>(),
            })
        };
        json!({
            "files": self.files,
            "memory_bytes_per_file": self.memory_per_file(),
            "empty": start(|turn| &turn.empty),
            "journal": start(|turn| &turn.journal),
            "checkpoint": start(|turn| &turn.checkpoint),
        })
    }

    /// Lines for people.
    pub fn text(&self) -> String {
        let line = |what: &str, kind: fn(&Turn) -> &Start| {
            let (seconds, start) = self.median(kind);
            format!(
                "{what:<24}{seconds:>10.3} s{:>10.2} s per million files; read: journal {} KiB, checkpoint {} KiB\n",
                self.per_million(seconds),
                start.journal_bytes >> 10,
                start.checkpoint_bytes >> 10
            )
        };
        let (empty, _) = self.median(|turn| &turn.empty);
        format!("started again after a kill of all servers, {} empty files\n", self.files)
            + &format!("{:<24}{empty:>10.3} s\n", "no files")
            + &line("from the journal", |turn| &turn.journal)
            + &line("from a checkpoint", |turn| &turn.checkpoint)
            + &format!("{:<24}{:>10.0} bytes of memory for each file\n", "then", self.memory_per_file())
    }
}
