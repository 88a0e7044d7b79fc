//! Copies within this machine's file systems.

use aze_copy::tree::{Meta, Names, Replaces, Sink, Source, Spot, Traits, Tree, Xattr};
use aze_copy::{Copier, How, LocalTree, Watch};
use aze_proto::attr::FileKind;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A new directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("aze-copy-{test}-{}", std::process::id()));
        fs::create_dir(&dir).expect("a new directory");
        Scratch(dir)
    }

    /// Names of the files and directories at `path`.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(path)).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Notes what a copy tells.
#[derive(Default)]
struct Notes {
    bytes: AtomicU64,
    files: AtomicU64,
    dirs: AtomicU64,
    failures: Mutex<Vec<Trouble>>,
    /// The copy is to end as soon as bytes are copied.
    ends_early: AtomicBool,
}

impl Watch for Notes {
    fn is_over(&self) -> bool {
        self.ends_early.load(Ordering::Relaxed) && self.bytes.load(Ordering::Relaxed) > 0
    }

    fn expect(&self, _bytes: u64) {}

    fn copied(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn file(&self, _from: &Spot, _to: &Spot) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    fn dir(&self) {
        self.dirs.fetch_add(1, Ordering::Relaxed);
    }

    fn lacks(&self, trouble: &Trouble) {
        panic!("a local copy lacks nothing: {trouble}");
    }

    fn failed(&self, trouble: &Trouble) {
        self.failures.lock().expect("no panic").push(trouble.clone());
    }
}

fn copy(tree: Arc<dyn Tree>, from: &Path, to: &Path, notes: &Arc<Notes>) {
    let spot = |tree: Arc<dyn Tree>, path: &Path| Spot { tree, path: path.as_os_str().as_bytes().to_vec() };
    let how = How { recursive: true, preserve: true, verify: true, jobs: 3 };
    let mut copier = Copier::start(how, notes.clone(), BTreeMap::new()).expect("threads");
    copier.copy(spot(tree, from), spot(Arc::new(LocalTree), to)).expect("the source is there");
    copier.finish().expect("no thread panics");
}

#[test]
fn a_tree_arrives_whole_and_holes_stay_holes() {
    let scratch = Scratch::new("whole");
    let from = scratch.0.join("from");
    fs::create_dir_all(from.join("below")).expect("directories");
    // More than one part, nearly all of it holes.
    let sparse = File::create(from.join("below/sparse")).expect("a file");
    sparse.set_len(200 << 20).expect("a hole");
    sparse.write_all_at(b"data", 130 << 20).expect("data");
    fs::write(from.join("empty"), "").expect("a file");
    fs::write(from.join("small"), "contents").expect("a file");
    std::os::unix::fs::symlink("small", from.join("link")).expect("a link");
    let (to, notes) = (scratch.0.join("to"), Arc::default());
    copy(Arc::new(LocalTree), &from, &to, &notes);
    assert_eq!(*notes.failures.lock().expect("no panic"), []);
    assert_eq!([notes.files.load(Ordering::Relaxed), notes.dirs.load(Ordering::Relaxed)], [4, 2]);
    assert_eq!(scratch.names("to"), ["below", "empty", "link", "small"]);
    assert_eq!(fs::read(to.join("small")).expect("a file"), b"contents");
    assert_eq!(fs::read_link(to.join("link")).expect("a link"), Path::new("small"));
    let (copied, meta) = (to.join("below/sparse"), |path: &Path| fs::metadata(path).expect("a file"));
    let mut data = [0; 6];
    File::open(&copied).and_then(|file| file.read_exact_at(&mut data, (130 << 20) - 1)).expect("data");
    assert_eq!((&data, meta(&copied).len()), (b"\0data\0", 200 << 20));
    assert!(meta(&copied).blocks() < 1 << 15, "{} blocks", meta(&copied).blocks());
    assert_eq!(meta(&to).mtime_nsec(), meta(&from).mtime_nsec(), "a directory's times are set when all is in it");
}

#[test]
fn a_copy_that_is_ended_leaves_nothing_that_is_not_whole() {
    let scratch = Scratch::new("ended");
    fs::write(scratch.0.join("from"), vec![7; 9 << 20]).expect("a file");
    let notes = Arc::new(Notes { ends_early: true.into(), ..Notes::default() });
    copy(Arc::new(LocalTree), &scratch.0.join("from"), &scratch.0.join("to"), &notes);
    assert_eq!([notes.files.load(Ordering::Relaxed), notes.bytes.load(Ordering::Relaxed)], [0, 4 << 20]);
    assert_eq!(scratch.names(""), ["from"]);
}

#[test]
fn a_file_that_cannot_be_read_keeps_its_old_copy() {
    let scratch = Scratch::new("unread");
    fs::write(scratch.0.join("from"), vec![7; 9 << 20]).expect("a file");
    fs::write(scratch.0.join("to"), "old").expect("a file");
    let notes = Arc::default();
    copy(Arc::new(Damaged), &scratch.0.join("from"), &scratch.0.join("to"), &notes);
    let failures = notes.failures.lock().expect("no panic");
    assert_eq!(failures.iter().map(|trouble| trouble.exit).collect::<Vec<_>>(), [Exit::Fatal]);
    assert_eq!(fs::read(scratch.0.join("to")).expect("a file"), b"old");
    assert_eq!(scratch.names(""), ["from", "to"]);
}

/// Local files whose first 4 MiB can be read.
struct Damaged;

struct DamagedFile(Box<dyn Source>);

impl Source for DamagedFile {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        self.0.xattrs()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        if offset < 4 << 20 { self.0.read_at(offset, buffer) } else { Err(Trouble::new(Exit::Fatal, "damaged")) }
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        self.0.next_data(offset)
    }

    fn meta(&self) -> Outcome<Meta> {
        self.0.meta()
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        self.0.mark()
    }
}

impl Tree for Damaged {
    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Option<Meta>> {
        LocalTree.stat(path, follow)
    }

    fn list(&self, dir: &[u8]) -> Outcome<Names> {
        LocalTree.list(dir)
    }

    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        LocalTree.read_link(path)
    }

    fn open(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        Ok(Box::new(DamagedFile(LocalTree.open(path)?)))
    }

    fn create(&self, path: &[u8], mode: u32) -> Outcome<Box<dyn Sink>> {
        LocalTree.create(path, mode)
    }

    fn open_fresh(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        Ok(Box::new(DamagedFile(LocalTree.open_fresh(path)?)))
    }

    fn create_as(&self, path: &[u8], mode: u32, hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        LocalTree.create_as(path, mode, hidden)
    }

    fn make_link_as(&self, path: &[u8], target: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        LocalTree.make_link_as(path, target, hidden, replaces)
    }

    fn add_name(&self, existing: &[u8], path: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        LocalTree.add_name(existing, path, hidden, replaces)
    }

    fn remove(&self, path: &[u8], kind: FileKind) -> Outcome<()> {
        LocalTree.remove(path, kind)
    }

    fn sync_dir(&self, path: &[u8]) -> Outcome<()> {
        LocalTree.sync_dir(path)
    }

    fn put_in_place(&self, from: &[u8], to: &[u8], exchange: bool) -> Outcome<()> {
        LocalTree.put_in_place(from, to, exchange)
    }

    fn traits(&self, dir: &[u8], hidden: &[u8]) -> Outcome<Traits> {
        LocalTree.traits(dir, hidden)
    }

    fn make_dir(&self, path: &[u8]) -> Outcome<()> {
        LocalTree.make_dir(path)
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()> {
        LocalTree.make_link(path, target)
    }

    fn dir_xattrs(&self, path: &[u8]) -> Outcome<Vec<Xattr>> {
        LocalTree.dir_xattrs(path)
    }

    fn set_dir_xattr(&self, path: &[u8], xattr: &Xattr) -> Outcome<()> {
        LocalTree.set_dir_xattr(path, xattr)
    }

    fn set_dir(&self, path: &[u8], meta: &Meta, preserve: bool) -> Outcome<()> {
        LocalTree.set_dir(path, meta, preserve)
    }

    fn shown(&self, path: &[u8]) -> String {
        LocalTree.shown(path)
    }

    fn id(&self) -> String {
        LocalTree.id()
    }
}
