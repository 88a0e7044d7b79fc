//! The ledger of a volume and a destination: of each object that a finished attempt has proven, the version in the volume and
//! the identity at the other side.
//!
//! A later attempt copies only what differs from it, and [`super::standing`] finds with it what a volume holds that is nowhere
//! else. It proves nothing by itself: each entry is compared with the volume, and before an object is released with the
//! destination, too. It is written whole, under a temporary name, and has its name when it is on the device: a process that is
//! killed leaves the old one or the new one.

use super::state::{Done, Version, lock_alone};
use crate::tree::join;
use aze_receipt::{Line, Object};
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::hex;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What the first line says.
const FORM: &str = "azekura ledger 1";

/// What the names of ledgers end in.
const ENDING: &str = ".ledger";

/// What the names of the files end in by which stages hold ledgers.
const LOCK_ENDING: &str = ".lock";

/// Bytes of the note in such a file, at most: two paths, each in hexadecimal, and a little more.
const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Which way, and between which places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// `out` or `in`.
    pub direction: String,
    /// The absolute path of the file or directory in the volume.
    pub inside: Vec<u8>,
    /// The absolute path outside the volume.
    pub outside: Vec<u8>,
}

impl Route {
    /// Whether it leads out of the volume.
    pub fn is_out(&self) -> bool {
        self.direction == "out"
    }
}

/// One ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Which way, and between which places.
    pub route: Route,
    /// By path below these places.
    pub entries: BTreeMap<Vec<u8>, Done>,
    /// Those of them that the volume has given up, or was about to: they are at the other side alone.
    pub released: BTreeSet<Vec<u8>>,
    /// How fast the last attempt was that has copied something.
    pub pace: Option<Pace>,
}

/// How much an attempt has copied, and in which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How many objects.
    pub objects: u64,
    /// Bytes of the files among them.
    pub bytes: u64,
    /// From the first look at the source to the receipt.
    pub time_ns: u64,
}

/// An object costs as much time as so many bytes.
const OBJECT_UNITS: u64 = 256 << 10;

/// How much work so many objects and bytes are, counted in bytes.
pub fn units(objects: u64, bytes: u64) -> f64 {
    bytes as f64 + objects as f64 * OBJECT_UNITS as f64
}

impl Pace {
    /// Units of work per second.
    pub fn units_per_s(&self) -> f64 {
        units(self.objects, self.bytes) / (self.time_ns as f64 / 1e9).max(0.001)
    }
}

impl Ledger {
    /// Reads a ledger; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is not whole.
    pub fn read(path: &Path) -> Outcome<Option<Ledger>> {
        let failed = |error: std::io::Error| Trouble::local(format!("read the ledger {}", path.display()), &error);
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let (mut ledger, mut reader, mut end) = (Ledger::default(), BufReader::with_capacity(256 << 10, file), None);
        let line_max = 2 * aze_receipt::line::LINE_BYTES_MAX as u64;
        loop {
            let mut line = Vec::new();
            if reader.by_ref().take(line_max).read_until(b'\n', &mut line).map_err(failed)? == 0 {
                break;
            }
            let fields = serde_json::from_slice::<Map<String, Value>>(&line).ok();
            let is_whole = line.ends_with(b"\n") && end.is_none();
            if !is_whole || fields.and_then(|fields| ledger.take(&fields, &mut end)).is_none() {
                return Err(damaged(path));
            }
        }
        if end != Some(ledger.records()) {
            return Err(damaged(path));
        }
        Ok(Some(ledger))
    }

    /// Changes the ledger in a file, or begins it: one process after the other, since a stage and a release may be at work at
    /// the same time. Waits for the other one, which holds the lock for as long as it writes.
    ///
    /// # Errors
    /// Those of reading and writing; the older one is still there then.
    pub fn update(path: &Path, change: impl FnOnce(&mut Ledger) -> Outcome<()>) -> Outcome<()> {
        let failed = |error: std::io::Error| Trouble::local(format!("lock the ledger {}", path.display()), &error);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let lock = options.open(path.with_extension("change")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let mut ledger = Ledger::read(path)?.unwrap_or_default();
        change(&mut ledger)?;
        ledger.write(path)
    }

    /// Writes it, in the place of an older one.
    ///
    /// # Errors
    /// Those of writing; the older one is still there then.
    pub fn write(&self, path: &Path) -> Outcome<()> {
        let failed = |error: std::io::Error| Trouble::local(format!("keep the ledger {}", path.display()), &error);
        let temporary = path.with_extension("new");
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let mut file = BufWriter::with_capacity(256 << 10, options.open(&temporary)?);
            let Route { direction, inside, outside } = &self.route;
            let (inside, outside) = (hex::write(inside), hex::write(outside));
            let head = json!({ "ledger": FORM, "direction": direction, "inside": inside, "outside": outside });
            writeln!(file, "{head}")?;
            for done in self.entries.values() {
                writeln!(file, "{}", Value::Object(fields_of(done)))?;
            }
            for path in &self.released {
                writeln!(file, "{}", json!({ "released": hex::write(path) }))?;
            }
            if let Some(Pace { objects, bytes, time_ns }) = self.pace {
                writeln!(file, "{}", json!({ "pace": [objects, bytes, time_ns] }))?;
            }
            writeln!(file, "{}", json!({ "end": self.records() }))?;
            file.flush()?;
            file.get_ref().sync_all()?;
            fs::rename(&temporary, path)?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(failed)
    }

    /// Lines between the first and the last.
    fn records(&self) -> u64 {
        (self.entries.len() + self.released.len() + usize::from(self.pace.is_some())) as u64
    }

    /// Absolute paths of released files at the other side.
    pub fn released_outside(&self) -> impl Iterator<Item = Vec<u8>> {
        self.released.iter().map(|path| match path.is_empty() {
            true => self.route.outside.clone(),
            false => join(&self.route.outside, path),
        })
    }

    fn take(&mut self, fields: &Map<String, Value>, end: &mut Option<u64>) -> Option<()> {
        let text = |field: &str| fields.get(field)?.as_str();
        if self.route.direction.is_empty() {
            let direction = text("direction").filter(|way| ["in", "out"].contains(way))?;
            let direction = text("ledger").filter(|form| *form == FORM).and(Some(direction.to_owned()))?;
            self.route =
                Route { direction, inside: hex::read(text("inside")?)?, outside: hex::read(text("outside")?)? };
        } else if let Some(count) = fields.get("end") {
            *end = Some(count.as_u64()?);
        } else if text("released").is_some() {
            let path = hex::read(text("released")?)?;
            self.released.insert(self.entries.contains_key(&path).then_some(path)?);
        } else if let Some(pace) = fields.get("pace") {
            let numbers: Option<Vec<u64>> = pace.as_array()?.iter().map(Value::as_u64).collect();
            let [objects, bytes, time_ns] = numbers?[..] else { return None };
            self.pace = Some(Pace { objects, bytes, time_ns });
        } else {
            let done = done_of(fields)?;
            self.entries.insert(done.object.path.clone(), done);
        }
        Some(())
    }
}

fn damaged(path: &Path) -> Trouble {
    let text =
        format!("the ledger {} is damaged, or of another version of aze: remove it, and stage again", path.display());
    Trouble::new(Exit::Fatal, text)
}

/// The fields that a proven object has in ledgers and states.
pub(super) fn fields_of(done: &Done) -> Map<String, Value> {
    let line = Line::Object(Box::new(done.object.clone())).write();
    let mut fields = Map::new();
    fields.insert("done".into(), line.into());
    for (field, version) in [("from", &done.from), ("to", &done.to), ("held", &done.held)] {
        if !version.is_empty() {
            fields.insert(field.into(), version.clone().into());
        }
    }
    fields
}

/// The proven object that [`fields_of`] has written.
pub(super) fn done_of(fields: &Map<String, Value>) -> Option<Done> {
    let numbers = |field: &str| -> Option<Version> {
        let Some(value) = fields.get(field) else { return Some(Vec::new()) };
        value.as_array()?.iter().map(Value::as_u64).collect()
    };
    let Line::Object(object) = Line::read(fields.get("done")?.as_str()?)? else { return None };
    let (from, to, held) = (numbers("from")?, numbers("to").filter(|to| to.len() == 5)?, numbers("held")?);
    Some(Done { object: Object::clone(&object), from, to, held })
}

/// The ledgers of a directory, each with the file that it is in.
///
/// # Errors
/// The directory cannot be read. A ledger that cannot be read is in the second list, with the reason.
pub fn all_in(dir: &Path) -> Outcome<(Vec<Ledger>, Vec<Trouble>)> {
    let (mut ledgers, mut troubles) = (Vec::new(), Vec::new());
    for path in files_in(dir)? {
        match Ledger::read(&path) {
            Ok(ledger) => ledgers.extend(ledger),
            Err(trouble) => troubles.push(trouble),
        }
    }
    Ok((ledgers, troubles))
}

/// The files of a directory that are ledgers.
///
/// # Errors
/// The directory cannot be read.
pub fn files_in(dir: &Path) -> Outcome<Vec<PathBuf>> {
    ending_in(dir, ENDING)
}

fn ending_in(dir: &Path, ending: &str) -> Outcome<Vec<PathBuf>> {
    let failed = |error: std::io::Error| Trouble::local(format!("read the ledgers in {}", dir.display()), &error);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut paths =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>().map_err(failed)?;
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    Ok(paths)
}

/// A stage that is at work, or waits for its next round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Which way, and between which places.
    pub route: Route,
    /// Where the state of its attempt lies as long as it copies.
    pub state: PathBuf,
    /// The node that it runs on.
    pub host: String,
    /// Its process there.
    pub pid: u32,
}

impl Work {
    fn write(&self) -> String {
        let Route { direction, inside, outside } = &self.route;
        let (inside, outside) = (hex::write(inside), hex::write(outside));
        let state = hex::write(self.state.as_os_str().as_bytes());
        let (host, pid) = (&self.host, self.pid);
        json!({ "direction": direction, "inside": inside, "outside": outside, "state": state, "host": host, "pid": pid })
            .to_string()
    }

    fn read(line: &str) -> Option<Work> {
        let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
        let text = |field: &str| fields.get(field)?.as_str();
        let direction = text("direction")?.to_owned();
        let route = Route { direction, inside: hex::read(text("inside")?)?, outside: hex::read(text("outside")?)? };
        let state = PathBuf::from(OsString::from_vec(hex::read(text("state")?)?));
        let pid = u32::try_from(fields.get("pid")?.as_u64()?).ok()?;
        Some(Work { route, state, host: text("host")?.to_owned(), pid })
    }
}

/// The stages that hold a ledger of a directory now. Blocks no longer than the file system does.
///
/// # Errors
/// The directory, or the note of a stage in it, cannot be read.
pub fn at_work(dir: &Path) -> Outcome<Vec<Work>> {
    let mut works = Vec::new();
    for path in ending_in(dir, LOCK_ENDING)? {
        let failed = |error: std::io::Error| Trouble::local(format!("read {}", path.display()), &error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            file => file.map_err(failed)?,
        };
        if let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
            let mut note = String::new();
            file.take(NOTE_BYTES_MAX).read_to_string(&mut note).map_err(failed)?;
            // One that begins at this moment has not written its note yet.
            works.extend(Work::read(&note));
        }
    }
    Ok(works)
}

/// The right to stage between the two places of a ledger, which one process has at a time.
pub struct Hold {
    path: PathBuf,
    _lock: File,
}

impl Hold {
    /// Takes the ledger `key` in `dir`, which is made if need be, and notes there who has it, for [`at_work`].
    ///
    /// # Errors
    /// [`Exit::Again`] if another process has it.
    pub fn take(dir: &Path, key: &str, work: &Work) -> Outcome<Hold> {
        let path = dir.join(format!("{key}{ENDING}"));
        let failed = |error: &std::io::Error| Trouble::local(format!("keep the ledger {}", path.display()), error);
        fs::create_dir_all(dir).map_err(|error| failed(&error))?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut lock = options.open(path.with_extension(&LOCK_ENDING[1..])).map_err(|error| failed(&error))?;
        match lock_alone(&lock) {
            Ok(()) => {
                let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", work.write()));
                written.map_err(|error| failed(&error))?;
                Ok(Hold { path, _lock: lock })
            }
            Err(TryLockError::WouldBlock) => {
                let text = "another 'aze stage' with these arguments is at work: wait for its end";
                Err(Trouble::new(Exit::Again, text))
            }
            Err(TryLockError::Error(error)) => Err(failed(&error)),
        }
    }

    /// Where the ledger is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
