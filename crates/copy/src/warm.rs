//! Warming up: a tree that lies over a directory takes names of it over, and data, before programs ask for them.
//!
//! Threads take directories and parts of files from one stack, so that the latest found is done first: memory is bounded by
//! the depth of the tree times its largest directories. Servers read; no data come here.

use crate::Watch;
use crate::tree::{Meta, Spot, join};
use aze_io::sync::Mutex;
use aze_io::threads::{self, Watched};
use aze_proto::attr::FileKind;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a large file that one thread has fetched before it looks for other work.
const PART_BYTES: u64 = 64 << 20;

/// How often threads that have no work look whether the command was asked to end.
const LOOK: Duration = Duration::from_millis(200);

/// Objects that the tree has taken over, now or before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Directories, with all their names.
    pub directories: u64,
    /// Files of the directory below, with all their data; 0 if only names were asked for.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

enum Work {
    Dir(Vec<u8>),
    Part(Arc<Fetched>, Range<u64>),
}

/// A file that is fetched in parts.
struct Fetched {
    path: Vec<u8>,
    size: u64,
    parts_left: AtomicU64,
    has_failed: AtomicBool,
}

#[derive(Default)]
struct Stack {
    work: Vec<Work>,
    at_work: usize,
    warmed: Warmed,
}

struct Warm<'a> {
    start: &'a Spot,
    names_only: bool,
    watch: &'a dyn Watch,
    stack: Watched<Stack>,
    /// It makes no sense to go on.
    full: Mutex<Option<Trouble>>,
}

/// Takes over a file or directory of a tree with all that is in it; with `names_only` names and no data. What fails for one object
/// is told to the watch, and the others go on.
///
/// # Errors
/// There is no such object, or the command was asked to end, or there is no more room.
pub fn warm(start: &Spot, names_only: bool, jobs: usize, watch: &dyn Watch) -> Outcome<Warmed> {
    let meta = start.must_stat(true)?;
    let (stack, full) = Default::default();
    let warm = Warm { start, names_only, watch, stack, full };
    warm.found(start.path.clone(), meta.kind, Some(meta));
    threads::together(jobs.max(1), || warm.work());
    if let Some(trouble) = warm.full.into_inner() {
        return Err(trouble);
    }
    if watch.is_over() {
        return Err(Trouble::new(Exit::Again, "the command was asked to end: the same command goes on from here"));
    }
    Ok(warm.stack.into_inner().warmed)
}

impl Warm<'_> {
    fn work(&self) {
        loop {
            let mut stack = self.stack.lock();
            let work = loop {
                if self.watch.is_over() || self.full.lock().is_some() {
                    stack.work.clear();
                }
                match stack.work.pop() {
                    Some(work) => break work,
                    None if stack.at_work == 0 => return,
                    None => match self.stack.wait(stack, LOOK) {
                        Some(changed) => stack = changed,
                        None => return,
                    },
                }
            };
            stack.at_work += 1;
            drop(stack);
            match work {
                Work::Dir(path) => self.list(&path),
                Work::Part(file, part) => self.fetch(&file, part),
            }
            self.stack.lock().at_work -= 1;
            self.stack.tell();
        }
    }

    fn list(&self, dir: &[u8]) {
        match self.start.tree.list(dir) {
            Ok(names) => {
                if let Some(trouble) = names.trouble {
                    self.watch.failed(&trouble);
                }
                self.stack.lock().warmed.directories += 1;
                self.watch.dir();
                for entry in names.entries {
                    self.found(join(dir, &entry.name), entry.kind, entry.meta);
                }
            }
            // Another process has removed it.
            Err(trouble) if trouble.exit == Exit::NotFound => {}
            Err(trouble) => self.watch.failed(&trouble),
        }
    }

    fn found(&self, path: Vec<u8>, kind: FileKind, meta: Option<Meta>) {
        match kind {
            FileKind::Directory => self.put(vec![Work::Dir(path)]),
            FileKind::File if !self.names_only => {
                let spot = Spot { tree: self.start.tree.clone(), path };
                match meta.map_or_else(|| spot.must_stat(false), Ok) {
                    Ok(meta) => self.found_file(spot.path, &meta),
                    Err(trouble) if trouble.exit == Exit::NotFound => {}
                    Err(trouble) => self.watch.failed(&trouble),
                }
            }
            _ => {}
        }
    }

    fn found_file(&self, path: Vec<u8>, meta: &Meta) {
        if !self.start.tree.came_from_below(meta) {
            return;
        }
        self.watch.expect(meta.size);
        let parts = meta.size.div_ceil(PART_BYTES).max(1);
        let (parts_left, has_failed) = (parts.into(), AtomicBool::new(false));
        let file = Arc::new(Fetched { path, size: meta.size, parts_left, has_failed });
        let part = |number: u64| number * PART_BYTES..meta.size.min((number + 1) * PART_BYTES);
        self.put((0..parts).rev().map(|number| Work::Part(file.clone(), part(number))).collect());
    }

    fn put(&self, work: Vec<Work>) {
        self.stack.lock().work.extend(work);
        self.stack.tell();
    }

    fn fetch(&self, file: &Fetched, part: Range<u64>) {
        let bytes = part.end - part.start;
        match self.start.tree.fetch(&file.path, part) {
            Ok(()) => self.watch.copied(bytes),
            Err(trouble) => {
                if trouble.exit == Exit::Caller {
                    // No file fits in after this one.
                    self.full.lock().get_or_insert(trouble);
                } else if !file.has_failed.swap(true, Ordering::Relaxed) {
                    self.watch.failed(&trouble);
                }
                file.has_failed.store(true, Ordering::Relaxed);
            }
        }
        if file.parts_left.fetch_sub(1, Ordering::Relaxed) == 1 && !file.has_failed.load(Ordering::Relaxed) {
            let spot = Spot { tree: self.start.tree.clone(), path: file.path.clone() };
            self.watch.file(&spot, &spot);
            let mut stack = self.stack.lock();
            stack.warmed.files += 1;
            stack.warmed.bytes += file.size;
        }
    }
}
