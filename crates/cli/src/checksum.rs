//! `aze checksum`: BLAKE3 of files in volumes and here, in the lines that `b3sum` writes.

use crate::exit::{Exit, Outcome, Trouble};
use crate::place::Place;
use crate::session::Sessions;
use crate::show;
use crate::tally::{Out, Tally};
use aze_copy::tree::{Named, Spot};
use aze_proto::attr::FileKind;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

/// Bytes read at once.
const BLOCK_BYTES: usize = 4 << 20;

/// Files that wait to be read; the walk waits when there are more.
const QUEUE_FILES_MAX: usize = 1024;

/// Most files read at the same time.
const JOBS_MAX: u16 = 256;

/// Compute or check BLAKE3 checksums of files, in parallel.
///
/// Each line is the checksum in hexadecimal, two spaces and the path, for local files and files of
/// a volume alike. A path with a line feed or a backslash is escaped, as sha256sum does it. Of what -r
/// finds only regular files have a line; a local FIFO or device that is named itself is read to its end.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze checksum aze:/data.h5 data.h5
  aze checksum -r aze:/results > results.b3
  aze checksum --check results.b3")]
pub struct Args {
    /// Files, and with -r directories.
    #[arg(required_unless_present = "check", value_name = "PATH")]
    paths: Vec<OsString>,
    /// Directories with all files in them, too.
    #[arg(short, long)]
    recursive: bool,
    /// Read checksums and paths from this file, and say which files have changed.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["paths", "recursive"])]
    check: Option<PathBuf>,
    /// With --check: name only files that are not as they were.
    #[arg(long, requires = "check")]
    quiet: bool,
    /// One JSON object for each line.
    #[arg(long, conflicts_with = "check")]
    json: bool,
    /// Files read at the same time.
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(JOBS_MAX)))]
    jobs: u16,
}

/// A file whose checksum is wanted.
struct Item {
    /// Where its line stands among the others.
    number: u64,
    /// As it was or will be written.
    written: Vec<u8>,
    spot: Spot,
    /// What the checksum ought to be.
    expected: Option<String>,
}

/// What came of it.
struct Answer {
    written: Vec<u8>,
    expected: Option<String>,
    sum: Outcome<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let tally = Tally::new("checksum");
    let (queue, items) = sync_channel(QUEUE_FILES_MAX);
    let items = Mutex::new(items);
    let (answers, answered) = channel();
    let mut feed = Feed { queue, next: 0, tally: &tally };
    let (fed, printed) = std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            let (items, answers) = (&items, answers.clone());
            scope.spawn(move || work(items, &answers));
        }
        drop(answers);
        let tally = &tally;
        let printer = scope.spawn(move || print(args, answered, tally));
        // The connections live until the last file has been read.
        let mut sessions = Sessions::default();
        let fed = match &args.check {
            Some(list) => feed.list(list, &mut sessions),
            None => {
                feed.paths(args, &mut sessions);
                Ok(())
            }
        };
        drop(feed);
        let printed = printer.join().unwrap_or_else(|_| std::process::exit(Exit::Fatal as i32));
        (fed, printed)
    });
    fed.and(printed)?;
    Ok(tally.exit())
}

/// Finds files and queues them.
struct Feed<'a> {
    queue: SyncSender<Item>,
    next: u64,
    tally: &'a Tally,
}

impl Feed<'_> {
    fn paths(&mut self, args: &Args, sessions: &mut Sessions) {
        for path in &args.paths {
            let walked = Place::parse(path).and_then(|place| {
                let spot = place.spot(sessions)?;
                self.walk(args, spot, path.as_bytes().to_vec())
            });
            if let Err(trouble) = walked {
                self.tally.fail(&trouble);
            }
        }
    }

    /// Visits a file, or all files below a directory in the order of their names.
    fn walk(&mut self, args: &Args, spot: Spot, written: Vec<u8>) -> Outcome<()> {
        let kind = spot.must_stat(true)?.kind;
        if kind == FileKind::Directory && !args.recursive {
            return Err(Trouble::new(
                Exit::Caller,
                format!("{}: is a directory: use -r for the files in it", spot.shown()),
            ));
        }
        if kind != FileKind::Directory {
            // A FIFO or device that is named is read; one of a volume says that it cannot be.
            self.put(spot, written, None);
            return Ok(());
        }
        let mut waiting = vec![(spot, written, kind)];
        while let Some((spot, written, kind)) = waiting.pop() {
            match kind {
                FileKind::File => self.put(spot, written, None),
                FileKind::Directory => match spot.tree.list(&spot.path) {
                    Ok(mut names) => {
                        if let Some(trouble) = names.trouble {
                            self.tally.fail(&trouble);
                        }
                        names.entries.sort_by(|a, b| a.name.cmp(&b.name));
                        let below = names.entries.into_iter().rev();
                        let visit = |entry: Named| {
                            (spot.join(&entry.name), crate::place::join(&written, &entry.name), entry.kind)
                        };
                        waiting.extend(below.map(visit));
                    }
                    Err(trouble) => self.tally.fail(&trouble),
                },
                // Links are not followed; devices, FIFOs and sockets have no bytes to sum.
                _ => {}
            }
        }
        Ok(())
    }

    fn list(&mut self, list: &PathBuf, sessions: &mut Sessions) -> Outcome<()> {
        let failed = |error: &std::io::Error| Trouble::local(format!("read {}", list.display()), error);
        let file = std::fs::File::open(list).map_err(|error| failed(&error))?;
        let mut is_empty = true;
        for (number, line) in std::io::BufReader::new(file).split(b'\n').enumerate() {
            is_empty = false;
            let line = line.map_err(|error| failed(&error))?;
            let Some((sum, path)) = parse_line(&line) else {
                let place = format!("{} line {}", list.display(), number + 1);
                self.tally
                    .fail(&Trouble::usage(format!("{place}: expected 64 hexadecimal digits, two spaces and a path")));
                continue;
            };
            let spot = Place::parse(OsStr::from_bytes(&path)).and_then(|place| place.spot(sessions));
            match spot {
                Ok(spot) => self.put(spot, path, Some(sum)),
                Err(trouble) => self.tally.fail(&trouble),
            }
        }
        if is_empty {
            // What was to write it may have failed.
            return Err(Trouble::new(Exit::Some, format!("{}: it has no line: nothing was checked", list.display())));
        }
        Ok(())
    }

    fn put(&mut self, spot: Spot, written: Vec<u8>, expected: Option<String>) {
        let number = self.next;
        self.next += 1;
        // The readers end only after the queue has.
        let _ = self.queue.send(Item { number, written, spot, expected });
    }
}

fn work(items: &Mutex<Receiver<Item>>, answers: &Sender<(u64, Answer)>) {
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let item = items.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(item) = item else { return };
        let answer = Answer { sum: checksum(&item.spot, &mut block), written: item.written, expected: item.expected };
        if answers.send((item.number, answer)).is_err() {
            return;
        }
    }
}

fn checksum(spot: &Spot, block: &mut [u8]) -> Outcome<String> {
    let source = spot.tree.open(&spot.path)?;
    let mut hasher = blake3::Hasher::new();
    let mut offset = 0;
    loop {
        let count = source.read_at(offset, block)?;
        hasher.update(&block[..count]);
        if count < block.len() {
            return Ok(hasher.finalize().to_hex().to_string());
        }
        offset += count as u64;
    }
}

/// Prints answers in the order of the questions.
fn print(args: &Args, answered: Receiver<(u64, Answer)>, tally: &Tally) -> Outcome<()> {
    let mut out = Out::new();
    let mut early = BTreeMap::new();
    let mut next = 0;
    for (number, answer) in answered {
        early.insert(number, answer);
        while let Some(answer) = early.remove(&next) {
            next += 1;
            let told = match answer.sum {
                Ok(sum) => tell(args, &mut out, &answer.written, &sum, answer.expected.as_deref())?,
                Err(trouble) => Err(trouble),
            };
            if told.is_err() {
                out.flush()?;
            }
            tally.note(told);
        }
    }
    out.flush()
}

/// The outer error is that of standard output, the inner one that of the file.
fn tell(args: &Args, out: &mut Out, written: &[u8], sum: &str, expected: Option<&str>) -> Outcome<Outcome<()>> {
    match expected {
        None if args.json => {
            let mut object = serde_json::Map::new();
            show::put_name(&mut object, "path", written);
            object.insert("blake3".into(), sum.into());
            out.json(&object)?;
        }
        None => out.line(line(sum, written))?,
        Some(expected) if expected != sum => {
            let path = String::from_utf8_lossy(written);
            return Ok(Err(Trouble::new(Exit::Some, format!("{path}: has changed: expected {expected}, found {sum}"))));
        }
        Some(_) if args.quiet => {}
        Some(_) => out.line([&show::name(written)[..], b": OK"].concat())?,
    }
    Ok(Ok(()))
}

fn line(sum: &str, path: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(sum.len() + 2 + path.len());
    if path.iter().any(|byte| matches!(byte, b'\n' | b'\\')) {
        line.push(b'\\');
    }
    line.extend_from_slice(sum.as_bytes());
    line.extend_from_slice(b"  ");
    for byte in path {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\\' => line.extend_from_slice(b"\\\\"),
            byte => line.push(*byte),
        }
    }
    line
}

fn parse_line(text: &[u8]) -> Option<(String, Vec<u8>)> {
    let (escaped, text) = text.strip_prefix(b"\\").map_or((false, text), |text| (true, text));
    let (sum, rest) = text.split_at_checked(64)?;
    let path = rest.strip_prefix(b"  ").filter(|path| !path.is_empty())?;
    let sum = str::from_utf8(sum).ok().filter(|sum| aze_words::hex::read(sum).is_some())?.to_ascii_lowercase();
    if !escaped {
        return Some((sum, path.to_vec()));
    }
    let mut bytes = path.iter();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'\\' => b'\\',
                _ => return None,
            },
            byte => *byte,
        });
    }
    Some((sum, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_survives_its_line() {
        let sum = "0f".repeat(32);
        for path in [&b"aze:/a b"[..], b"x\ny", b"back\\slash", b"\xff", b"  two"] {
            assert_eq!(parse_line(&line(&sum, path)), Some((sum.clone(), path.to_vec())));
        }
        assert_eq!(line(&sum, b"a"), [sum.as_bytes(), b"  a"].concat());
    }

    #[test]
    fn other_lines_are_refused() {
        let sum = "0f".repeat(32);
        for text in
            [String::new(), sum.clone(), format!("{sum} a"), format!("{}x  a", &sum[1..]), format!("\\{sum}  a\\x")]
        {
            assert_eq!(parse_line(text.as_bytes()), None, "{text}");
        }
    }
}
