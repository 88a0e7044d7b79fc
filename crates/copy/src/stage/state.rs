//! What an attempt has done so far, in a file: the next one goes on from there.
//!
//! The file is a journal of JSON lines. A line that could not be written as a whole, since there was no space, is cut off before
//! the next one is added, so a process that is killed leaves at most one line that is not whole, the last one, which the next one
//! cuts off. It is locked for as long as its attempt lives (flock(2)); the lock goes with the
//! process, however that ends. It is no proof of anything: its claims are compared with source and destination again.

use super::ledger::{done_of, fields_of};
use super::prove::now;
use aze_receipt::line::What;
use aze_receipt::{Object, when};
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::hex;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The journal is synced after so many objects. A power cut takes the notes since; these objects are copied again then.
const SYNC_OBJECTS: u32 = 256;

/// What the first line says.
const FORM: &str = "azekura stage 1";

/// Numbers that tell a version of a file from another one.
pub type Version = Vec<u64>;

/// An object that was proven.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// What its line in a receipt says.
    pub object: Object,
    /// The version of the source that was read.
    pub from: Version,
    /// What the destination was then.
    pub to: Version,
    /// The version of the destination, if a volume is the destination; else empty.
    pub held: Version,
}

/// The journal of one stage.
pub struct Journal {
    path: PathBuf,
    file: Arc<File>,
    /// Bytes of its whole lines.
    whole_bytes: u64,
    /// A part of a line may follow them.
    is_torn: bool,
    unsynced: u32,
    known: Known,
    /// Objects are noted in the file.
    has_notes: bool,
}

/// What a journal says.
#[derive(Debug, Default)]
pub struct Known {
    /// Source, destination and the rest of the arguments.
    pub order: String,
    /// The attempts so far, the latest last.
    pub attempts: Vec<String>,
    /// When the latest began.
    pub started: String,
    /// The nodes that the latest attempt lets copy; none if it copies itself.
    pub nodes: Vec<String>,
    /// Objects and bytes of the source, as the latest attempt found them.
    pub found: Option<(u64, u64)>,
    /// By path.
    pub done: BTreeMap<Vec<u8>, Done>,
    /// Files that were about to get their names; whether they did is not known: by path, inode, length and time of the
    /// last change at the destination, of each attempt.
    pub named: BTreeMap<Vec<u8>, Vec<[u64; 3]>>,
}

impl Journal {
    /// Opens the journal of an order, or begins it, and locks it; a new attempt has this number.
    ///
    /// # Errors
    /// [`Exit::Again`] if another process works on the order; [`Exit::Caller`] if the file is another one's.
    pub fn open(path: &Path, order: &str, attempt: &str) -> Outcome<Journal> {
        let failed = |error: &std::io::Error| not_kept(path, error);
        let file = loop {
            let mut options = OpenOptions::new();
            options.read(true).append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let file = options.open(path).map_err(|error| failed(&error))?;
            match lock_alone(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let text = format!(
                        "{}: another 'aze stage' with these arguments is at work: wait for its end",
                        path.display()
                    );
                    return Err(Trouble::new(Exit::Again, text));
                }
                Err(TryLockError::Error(error)) => return Err(failed(&error)),
            }
            // The process that had it may have ended well, and removed it, before the lock was had.
            let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
            if fs::symlink_metadata(path).map(inode).ok() == file.metadata().map(inode).ok() {
                break file;
            }
        };
        let (known, whole_bytes) = Known::read(path, &file)?;
        if !known.order.is_empty() && known.order != order {
            let text = format!(
                "{}: it is the state of another stage ({}): give another file with --state",
                path.display(),
                known.order
            );
            return Err(Trouble::new(Exit::Caller, text));
        }
        let has_notes = !known.done.is_empty();
        let (path, file, is_torn, unsynced) = (path.to_owned(), Arc::new(file), false, 0);
        let mut journal = Journal { path, file, whole_bytes, is_torn, unsynced, known, has_notes };
        if journal.known.order.is_empty() {
            journal.known.order = order.to_owned();
            journal.put(&json!({ "state": FORM, "order": order }))?;
        }
        journal.put(&json!({ "attempt": attempt, "started": when(now()) }))?;
        journal.sync()?;
        Ok(journal)
    }

    /// The claims of its lines.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Notes how much there is to do, and which nodes are to copy it, if this process does not.
    pub fn found(&mut self, objects: u64, bytes: u64, nodes: &[String]) -> Outcome<()> {
        self.put(&json!({ "objects": objects, "bytes": bytes, "nodes": nodes }))
    }

    /// Notes an object.
    pub fn note(&mut self, done: Done) -> Outcome<()> {
        let line = line_of(&done);
        self.note_line(done, &line)?.map_or(Ok(()), Unsynced::sync)
    }

    /// Notes an object by its [line](line_of). It is time to sync the notes if they are given back: without the journal's lock, so
    /// that others can note what they have proven while the device stores these.
    pub fn note_line(&mut self, done: Done, line: &str) -> Outcome<Option<Unsynced>> {
        self.put_line(line)?;
        self.has_notes = true;
        self.known.named.remove(&done.object.path);
        self.known.done.insert(done.object.path.clone(), done);
        self.unsynced += 1;
        if self.unsynced < SYNC_OBJECTS {
            return Ok(None);
        }
        self.unsynced = 0;
        Ok(Some(Unsynced { path: self.path.clone(), file: self.file.clone() }))
    }

    /// Notes that a file is about to get its name. If that is the last note of it, the next attempt knows the file for its own.
    pub fn name(&mut self, path: Vec<u8>, print: [u64; 3]) -> Outcome<()> {
        self.put(&json!({ "named": hex::write(&path), "print": print }))?;
        self.known.named.entry(path).or_default().push(print);
        Ok(())
    }

    /// Adds what the ledger has of an object, if no attempt since has noted it.
    pub fn recall(&mut self, done: Done) {
        self.known.done.entry(done.object.path.clone()).or_insert(done);
    }

    /// Whether the file has objects, or earlier attempts that may have left temporary names.
    pub fn has_notes(&self) -> bool {
        self.has_notes || !self.known.attempts.is_empty()
    }

    /// Forgets an object that is no longer as it was proven.
    pub fn forget(&mut self, path: &[u8]) {
        // Its line stays, and is not believed by the next attempt either: it compares.
        self.known.done.remove(path);
    }

    /// Makes all notes durable.
    pub fn sync(&mut self) -> Outcome<()> {
        self.unsynced = 0;
        Unsynced { path: self.path.clone(), file: self.file.clone() }.sync()
    }

    /// Removes it: all is done.
    pub fn remove(self) -> Outcome<()> {
        fs::remove_file(&self.path).map_err(|error| not_kept(&self.path, &error))
    }

    fn put(&mut self, line: &Value) -> Outcome<()> {
        self.put_line(&format!("{line}\n"))
    }

    fn put_line(&mut self, line: &str) -> Outcome<()> {
        self.cut_off().map_err(|error| not_kept(&self.path, &error))?;
        // With one call, so that no other end of the process leaves half of it.
        self.is_torn = true;
        if let Err(error) = (&*self.file).write_all(line.as_bytes()) {
            // If that fails, too, the next line tries it again, or the next attempt does it.
            let _ = self.cut_off();
            return Err(not_kept(&self.path, &error));
        }
        self.is_torn = false;
        self.whole_bytes += line.len() as u64;
        Ok(())
    }

    /// Cuts off what a write that failed has left behind the last whole line.
    fn cut_off(&mut self) -> std::io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.whole_bytes)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

/// The line of an object.
pub(super) fn line_of(done: &Done) -> String {
    format!("{}\n", Value::Object(fields_of(done)))
}

/// A journal with notes that are not durable.
pub struct Unsynced {
    path: PathBuf,
    file: Arc<File>,
}

impl Unsynced {
    /// Makes all notes durable that were there before.
    pub fn sync(self) -> Outcome<()> {
        self.file.sync_data().map_err(|error| not_kept(&self.path, &error))
    }
}

fn not_kept(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::local(format!("keep the state in {}", path.display()), error)
}

/// A line of the file is not one of a state. If the lines before it are, they have `whole` bytes.
fn no_line(path: &Path, whole: Option<u64>) -> Trouble {
    let path = path.display();
    match whole {
        None => {
            let text = format!("{path}: it is not the state of a stage: give another file with --state");
            Trouble::new(Exit::Caller, text)
        }
        Some(whole) => {
            let text = format!(
                "{path}: the state of this stage is damaged at byte {whole}, as earlier builds left it when its file system was full: \
                 remove the file, and give the same command again: it begins anew, and looks at every object"
            );
            Trouble::new(Exit::Fatal, text)
        }
    }
}

/// Times that a lock is tried for which only a process that looks who is at work stands in the way, which lets go at once.
const LOCK_TRIES: u32 = 10_000;

/// Takes a lock alone, or says that another process has it so. One that holds it shared only looks, as [`Known::look`] does.
pub(super) fn lock_alone(file: &File) -> Result<(), TryLockError> {
    for _ in 1..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => file.try_lock_shared()?,
            tried => return tried,
        }
        file.unlock().map_err(TryLockError::Error)?;
        std::thread::yield_now();
    }
    file.try_lock()
}

impl Known {
    /// Reads a journal without locking it; and whether its attempt is still at work.
    ///
    /// # Errors
    /// It is no journal.
    pub fn look(path: &Path) -> Outcome<(Known, bool)> {
        let failed = |error: std::io::Error| Trouble::local(format!("read {}", path.display()), &error);
        let file = File::open(path).map_err(failed)?;
        let lives = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        // An attempt that starts just now is not to be held up.
        file.unlock().map_err(failed)?;
        let known = Known::lines(path, &file)?.0;
        if known.order.is_empty() {
            let text = format!("{}: it is neither a receipt nor the state of a stage", path.display());
            return Err(Trouble::new(Exit::Caller, text));
        }
        Ok((known, lives))
    }

    /// Objects that are proven, and the bytes of the files among them.
    pub fn proven(&self) -> (u64, u64) {
        let sizes = self.done.values().map(|done| match &done.object.what {
            What::File { size, same_as: None, .. } => *size,
            _ => 0,
        });
        (self.done.len() as u64, sizes.sum())
    }

    /// Objects and bytes that are left, at most: some may be as an earlier stage has proven them. `None` as long as the
    /// attempt looks at its source.
    pub fn left(&self) -> Option<(u64, u64)> {
        let ((proven, proven_bytes), (found, bytes)) = (self.proven(), self.found?);
        Some((found.saturating_sub(proven), bytes.saturating_sub(proven_bytes)))
    }

    fn read(path: &Path, file: &File) -> Outcome<(Known, u64)> {
        let (known, whole) = Known::lines(path, file)?;
        file.set_len(whole).map_err(|error| not_kept(path, &error))?;
        Ok((known, whole))
    }

    /// The lines that are whole, and how many bytes they have.
    fn lines(path: &Path, mut file: &File) -> Outcome<(Known, u64)> {
        let failed = |error: std::io::Error| Trouble::local(format!("read {}", path.display()), &error);
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let (mut known, mut whole, mut reader) = (Known::default(), 0, BufReader::new(file));
        let line_max = 2 * aze_receipt::line::LINE_BYTES_MAX as u64;
        loop {
            let mut line = Vec::new();
            let count = reader.by_ref().take(line_max).read_until(b'\n', &mut line).map_err(failed)?;
            if count == 0 || !line.ends_with(b"\n") {
                return Ok((known, whole));
            }
            let fields = serde_json::from_slice::<Map<String, Value>>(&line).ok();
            if fields.and_then(|fields| known.take(&fields)).is_none() {
                return Err(no_line(path, (!known.order.is_empty()).then_some(whole)));
            }
            whole += count as u64;
        }
    }

    fn take(&mut self, fields: &Map<String, Value>) -> Option<()> {
        let text = |field: &str| Some(fields.get(field)?.as_str()?.to_owned());
        if fields.contains_key("state") {
            self.order = text("order").filter(|_| text("state").as_deref() == Some(FORM))?;
        } else if let Some(attempt) = text("attempt") {
            self.attempts.push(attempt);
            (self.started, self.found, self.nodes) = (text("started")?, None, Vec::new());
        } else if let Some(objects) = fields.get("objects") {
            self.found = Some((objects.as_u64()?, fields.get("bytes")?.as_u64()?));
            let nodes = fields.get("nodes").and_then(Value::as_array).into_iter().flatten();
            self.nodes = nodes.filter_map(|node| Some(node.as_str()?.to_owned())).collect();
        } else if let Some(path) = text("named") {
            let print: Option<Vec<u64>> = fields.get("print")?.as_array()?.iter().map(Value::as_u64).collect();
            self.named.entry(hex::read(&path)?).or_default().push(print?.try_into().ok()?);
        } else {
            let done = done_of(fields)?;
            self.named.remove(&done.object.path);
            self.done.insert(done.object.path.clone(), done);
        }
        (!self.order.is_empty()).then_some(())
    }
}
