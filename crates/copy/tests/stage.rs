//! Staging to and from places that fail: each failure is told, no line is wrong, and nothing hidden is left.

use aze_copy::stage::ledger::{Hold, Ledger, Route, Work, at_work};
use aze_copy::stage::standing::{LOST_MAX, Standing, Why, look};
use aze_copy::stage::state::Journal;
use aze_copy::stage::survey::Filter;
use aze_copy::stage::verify::{Claims, verify};
use aze_copy::stage::{Order, ROUNDS_MAX, Report, Side, stage};
use aze_copy::stripes::Stripes;
use aze_copy::tree::{GoneName, Meta, Names, PutBack, ReadBack, Replaces, Sink, Source, Spot, Traits, Tree, Xattr};
use aze_copy::{LocalTree, Watch};
use aze_proto::attr::FileKind;
use aze_receipt::line::What;
use aze_receipt::{Key, Line, Signed};
use aze_words::exit::{Exit, Outcome, Trouble, of_io};
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What a place does to one file, the one called `bad`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Fault {
    #[default]
    None,
    /// These calls fail with this number.
    Create(i32),
    Write(i32),
    Settle(i32),
    Publish(i32),
    Read(i32),
    /// The bytes that come back are others than were written.
    ReadsBackOther,
    /// Another process changes the copy while it is read back.
    ChangedBehind,
    /// The same when it was read back and compared.
    ChangedAfter,
    /// Another process puts a file of its own in the place of the copy.
    Replaced,
    /// A program of the volume changes the copy when it has its name, or its mode, or gives it an extended attribute. Servers count the
    /// changes of its data.
    WrittenNamed,
    ModeNamed,
    XattrNamed,
    /// The same right before it gets a further name.
    WrittenLinked,
    ModeLinked,
    XattrLinked,
    /// No program changes it, and servers count.
    Counted,
    /// Another process changes the file when all files are verified.
    ChangedLate,
    /// The source changes while it is read, so many times.
    SourceChanges(u32),
    /// Its other name gets another file while it is read.
    Relinked,
    /// A server that counts changes was started again, or has counted one that no time shows.
    CountsOther,
    /// None: new files are on so many servers.
    Striped(u32),
    /// It cannot be opened.
    Open(i32),
    /// So many times another stage has put it to its own place, and has had the volume read it from there.
    AdoptedMeanwhile(u32),
    /// Its data cannot be taken over from the directory below.
    TakeOver(i32),
    /// It cannot be removed.
    Remove(i32),
    /// Of a directory: it cannot have its attributes, or its names cannot be made durable.
    SetDir(i32),
    SyncDir(i32),
    /// Of a directory: its names cannot all be told.
    ListSome(i32),
    /// Of all files, some calls of some of them fail, as this number draws it; or another process changes the copy.
    AtRandom(u64),
}

impl Fault {
    /// Whether the place is a volume, whose servers count the changes of data.
    fn is_counted(self) -> bool {
        use Fault::{Counted, ModeLinked, ModeNamed, WrittenLinked, WrittenNamed, XattrLinked, XattrNamed};
        matches!(self, Counted | WrittenNamed | ModeNamed | XattrNamed | WrittenLinked | ModeLinked | XattrLinked)
    }

    /// Of calls that may fail at random, the fault of this one on a file: the same whenever it is asked in an attempt.
    fn drawn(self, path: &Path, call: &str) -> Fault {
        let Fault::AtRandom(seed) = self else { return self };
        let hash = aze_receipt::Hash::of(format!("{seed} {call} {:?}", path.file_name()).as_bytes()).to_string();
        let draw = u64::from_str_radix(&hash[..8], 16).expect("a number") as usize;
        let numbers = [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EACCES, libc::ESTALE, libc::EROFS];
        let number = numbers[draw / 8 % numbers.len()];
        match (draw % 8, call) {
            (0, "create") => Fault::Create(number),
            (0, "write") => Fault::Write(number),
            (0, "settle") => Fault::Settle(number),
            (0, "publish") => Fault::Publish(number),
            (0, "read") => Fault::Read(number),
            (1, "read") => Fault::ReadsBackOther,
            (2, "read") => Fault::ChangedBehind,
            (1, "publish") => Fault::Replaced,
            _ => Fault::None,
        }
    }
}

/// Local files; one of them has a fault.
#[derive(Default)]
struct Faulty {
    fault: Fault,
    times: AtomicU32,
    /// Names of the destination that the source had.
    gone: Vec<GoneName>,
    /// What became of them.
    story: Arc<Mutex<Vec<String>>>,
    /// Unfinished files.
    sinks: Arc<AtomicU32>,
    sinks_most: AtomicU32,
}

struct FaultySource {
    inner: Box<dyn Source>,
    path: PathBuf,
    fault: Fault,
    times: u32,
}

struct FaultySink {
    inner: Box<dyn Sink>,
    path: PathBuf,
    hidden: PathBuf,
    fault: Fault,
    sinks: Arc<AtomicU32>,
}

impl Drop for FaultySink {
    fn drop(&mut self) {
        self.sinks.fetch_sub(1, Ordering::Relaxed);
    }
}

fn errno(number: i32) -> Trouble {
    Trouble::local("a planted fault", &std::io::Error::from_raw_os_error(number))
}

/// Changes a byte of a file, which has the same length and the same time then.
fn change_quietly(path: &Path) {
    let file = File::options().write(true).open(path).expect("the copy");
    let time = file.metadata().and_then(|meta| meta.modified()).expect("its time");
    file.write_all_at(b"!", 0).expect("room");
    file.set_modified(time).expect("its time");
}

fn change_mode(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o611)).expect("its mode");
}

fn add_xattr(path: &Path) {
    let xattr = (b"user.k".to_vec(), b"value".to_vec());
    LocalTree.set_dir_xattr(path.as_os_str().as_bytes(), &xattr).expect("an extended attribute");
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

impl Faulty {
    fn of(&self, at: &[u8]) -> Fault {
        if at.ends_with(b"bad") || matches!(self.fault, Fault::AtRandom(_)) { self.fault } else { Fault::None }
    }
}

impl Source for FaultySource {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        if self.fault == Fault::ChangedAfter {
            let file = File::options().append(true).open(&self.path).expect("the copy");
            std::io::Write::write_all(&mut &file, b"!").expect("room");
        }
        self.inner.xattrs()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let count = self.inner.read_at(offset, buffer)?;
        match self.fault.drawn(&self.path, "read") {
            Fault::Read(number) => return Err(errno(number)),
            Fault::ReadsBackOther if count > 0 => buffer[count - 1] ^= 1,
            // With another length, so that no clock has to go on.
            Fault::ChangedBehind => {
                let file = File::options().append(true).open(&self.path).expect("the copy");
                std::io::Write::write_all(&mut &file, b"!").expect("room");
            }
            Fault::SourceChanges(most) if self.times < most => {
                let file = File::options().write(true).open(&self.path).expect("the source");
                file.set_len(10 + u64::from(self.times)).expect("another length");
            }
            Fault::Relinked => {
                let other = self.path.with_file_name("too-bad");
                fs::remove_file(&other).expect("its other name");
                fs::write(other, "another file").expect("a file");
            }
            _ => {}
        }
        Ok(count)
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        self.inner.next_data(offset)
    }

    fn meta(&self) -> Outcome<Meta> {
        self.inner.meta()
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        let mut mark = self.inner.mark()?;
        if self.fault == Fault::CountsOther {
            mark[0] += 1;
        }
        if self.fault.is_counted() {
            let mut bytes = [0; 64];
            let count = self.inner.read_at(0, &mut bytes)?;
            mark = bytes[..count].iter().map(|byte| u64::from(*byte)).collect();
        }
        Ok(mark)
    }
}

impl Sink for FaultySink {
    fn set_size(&self, bytes: u64) -> Outcome<()> {
        self.inner.set_size(bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<()> {
        if let Fault::Write(number) = self.fault.drawn(&self.path, "write") {
            Err(errno(number))
        } else {
            self.inner.write_at(offset, data)
        }
    }

    fn reread(&self) -> Outcome<Box<dyn Source>> {
        self.inner.reread()
    }

    fn set_xattr(&self, xattr: &Xattr) -> Outcome<()> {
        self.inner.set_xattr(xattr)
    }

    fn finish(&self, meta: &Meta, preserve: bool) -> Outcome<()> {
        self.inner.finish(meta, preserve)
    }

    fn settle(&self, meta: &Meta) -> Outcome<()> {
        if let Fault::Settle(number) = self.fault.drawn(&self.path, "settle") {
            Err(errno(number))
        } else {
            self.inner.settle(meta)
        }
    }

    fn reread_stored(&self) -> Outcome<(Box<dyn Source>, ReadBack)> {
        let (inner, how) = self.inner.reread_stored()?;
        // Drawn by the name that it shall have: the hidden one is another in each attempt.
        let (path, fault) = (self.hidden.clone(), self.fault.drawn(&self.path, "read"));
        let how = if fault.is_counted() { ReadBack::Servers } else { how };
        Ok((Box::new(FaultySource { inner, path, fault, times: 0 }), how))
    }

    fn publish(&self, replaces: &Replaces) -> Outcome<Meta> {
        match self.fault.drawn(&self.path, "publish") {
            Fault::Publish(number) => Err(errno(number)),
            Fault::Replaced => {
                self.inner.publish(replaces)?;
                fs::remove_file(&self.path).expect("the copy");
                fs::write(&self.path, "another").expect("room");
                LocalTree.stat(self.path.as_os_str().as_bytes(), false).map(|meta| meta.expect("it is there"))
            }
            fault => {
                let named = self.inner.publish(replaces)?;
                match fault {
                    Fault::WrittenNamed => change_quietly(&self.path),
                    Fault::ModeNamed => change_mode(&self.path),
                    Fault::XattrNamed => add_xattr(&self.path),
                    _ => return Ok(named),
                }
                LocalTree.stat(self.path.as_os_str().as_bytes(), false).map(|meta| meta.expect("it is there"))
            }
        }
    }

    fn abandon(&self) {
        self.inner.abandon();
    }
}

impl Tree for Faulty {
    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Option<Meta>> {
        LocalTree.stat(path, follow)
    }

    fn list(&self, dir: &[u8]) -> Outcome<Names> {
        match self.of(dir) {
            Fault::ListSome(number) => Ok(Names { entries: Vec::new(), trouble: Some(errno(number)) }),
            _ => LocalTree.list(dir),
        }
    }

    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        LocalTree.read_link(path)
    }

    fn open(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        LocalTree.open(path)
    }

    fn create(&self, path: &[u8], mode: u32) -> Outcome<Box<dyn Sink>> {
        LocalTree.create(path, mode)
    }

    fn make_dir(&self, path: &[u8]) -> Outcome<()> {
        LocalTree.make_dir(path)
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()> {
        LocalTree.make_link(path, target)
    }

    fn open_fresh(&self, at: &[u8]) -> Outcome<Box<dyn Source>> {
        if let Fault::Open(number) = self.of(at) {
            return Err(errno(number));
        }
        let inner = LocalTree.open_fresh(at)?;
        let (path, fault) = (path(at).to_owned(), self.of(at));
        Ok(Box::new(FaultySource { inner, path, fault, times: self.times.fetch_add(1, Ordering::Relaxed) }))
    }

    fn create_as(&self, at: &[u8], mode: u32, hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        if let Fault::Create(number) = self.of(at).drawn(path(at), "create") {
            return Err(errno(number));
        }
        let inner = LocalTree.create_as(at, mode, hidden)?;
        let (at, fault) = (path(at).to_owned(), self.of(at));
        let (hidden, sinks) = (at.with_file_name(path(hidden)), self.sinks.clone());
        let now = sinks.fetch_add(1, Ordering::Relaxed) + 1;
        if let Fault::Striped(_) = self.fault
            && self.sinks_most.fetch_max(now, Ordering::Relaxed) < now
        {
            self.story.lock().expect("no panic").push(format!("{now} at once"));
        }
        Ok(Box::new(FaultySink { inner, hidden, path: at, fault, sinks }))
    }

    fn make_link_as(&self, path: &[u8], target: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        LocalTree.make_link_as(path, target, hidden, replaces)
    }

    fn add_name(&self, existing: &[u8], path: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        let file = crate::path(existing);
        match self.fault {
            Fault::WrittenLinked => change_quietly(file),
            Fault::ModeLinked => change_mode(file),
            Fault::XattrLinked => add_xattr(file),
            _ => {}
        }
        LocalTree.add_name(existing, path, hidden, replaces)
    }

    fn remove(&self, path: &[u8], kind: FileKind) -> Outcome<()> {
        if let Fault::Remove(number) = self.of(path) {
            return Err(errno(number));
        }
        LocalTree.remove(path, kind)
    }

    fn sync_dir(&self, dir: &[u8]) -> Outcome<()> {
        if let Fault::SyncDir(number) = self.of(dir) {
            return Err(errno(number));
        }
        if matches!(self.fault, Fault::SetDir(_)) {
            let name = path(dir).file_name().expect("a name").display().to_string();
            self.story.lock().expect("no panic").push(format!("sync {name}"));
        }
        if self.fault == Fault::ChangedLate && path(dir).join("bad").exists() {
            fs::write(path(dir).join("bad"), "another length").expect("room");
        }
        LocalTree.sync_dir(dir)
    }

    fn put_in_place(&self, from: &[u8], to: &[u8], exchange: bool) -> Outcome<()> {
        LocalTree.put_in_place(from, to, exchange)
    }

    fn traits(&self, dir: &[u8], hidden: &[u8]) -> Outcome<Traits> {
        let stripes =
            if let Fault::Striped(count) = self.fault { Some(Stripes { count, bytes: 1 << 20 }) } else { None };
        LocalTree.traits(dir, hidden).map(|traits| Traits { stripes, ..traits })
    }

    fn dir_xattrs(&self, path: &[u8]) -> Outcome<Vec<Xattr>> {
        LocalTree.dir_xattrs(path)
    }

    fn set_dir_xattr(&self, path: &[u8], xattr: &Xattr) -> Outcome<()> {
        LocalTree.set_dir_xattr(path, xattr)
    }

    fn set_dir(&self, path: &[u8], meta: &Meta, preserve: bool) -> Outcome<()> {
        if let Fault::SetDir(number) = self.of(path) {
            return Err(errno(number));
        }
        LocalTree.set_dir(path, meta, preserve)
    }

    fn shown(&self, path: &[u8]) -> String {
        LocalTree.shown(path)
    }

    fn is_volume(&self) -> bool {
        self.fault == Fault::CountsOther
    }

    fn gone(&self) -> Outcome<Vec<GoneName>> {
        Ok(self.gone.clone())
    }

    /// Before a file is copied to its own place.
    fn keep_data(&self, name: &GoneName) -> Outcome<()> {
        self.story
            .lock()
            .expect("no panic")
            .push(format!("keep {}", path(&name.inside).file_name().expect("a name").display()));
        Ok(())
    }

    fn has_kept_data(&self, name: &GoneName) -> Outcome<bool> {
        let Fault::AdoptedMeanwhile(times) = self.of(&name.inside) else { return Ok(true) };
        let there = path(&name.outside);
        assert!(!fs::read(there).is_ok_and(|bytes| bytes == b"contents of a file"), "it has its name already");
        Ok(self.times.fetch_add(1, Ordering::Relaxed) >= times)
    }

    fn take_over(&self, gone: &GoneName) -> Outcome<()> {
        if let Fault::TakeOver(number) = self.of(&gone.inside) {
            return Err(errno(number));
        }
        // While its place still has it, if it ever had.
        let there = path(&gone.outside).symlink_metadata();
        assert!(gone.identity == [7; 4] || there.is_ok_and(|there| there.ino() == gone.identity[0]));
        self.story.lock().expect("no panic").push(format!("over {}", String::from_utf8_lossy(&gone.inside)));
        Ok(())
    }

    fn adopt(&self, put: &PutBack) -> Outcome<bool> {
        let there = path(&put.outside).metadata().expect("it was put there");
        assert_eq!((there.ino(), there.len()), (put.identity[0], put.size));
        self.story
            .lock()
            .expect("no panic")
            .push(format!("adopt {}", path(&put.inside).file_name().expect("a name").display()));
        Ok(true)
    }

    fn forget_gone(&self, gone: &GoneName) -> Outcome<()> {
        let there = path(&gone.outside).symlink_metadata();
        assert!(there.is_err() || there.is_ok_and(|there| there.is_dir() || there.ino() != gone.identity[0]));
        self.story.lock().expect("no panic").push(format!("forget {}", String::from_utf8_lossy(&gone.inside)));
        Ok(())
    }

    fn id(&self) -> String {
        LocalTree.id()
    }
}

/// Notes failures.
#[derive(Default)]
struct Notes(Mutex<Vec<Trouble>>, Mutex<Vec<Trouble>>);

impl Watch for Notes {
    fn is_over(&self) -> bool {
        false
    }

    fn expect(&self, _bytes: u64) {}

    fn copied(&self, _bytes: u64) {}

    fn file(&self, _from: &Spot, _to: &Spot) {}

    fn dir(&self) {}

    fn lacks(&self, trouble: &Trouble) {
        assert!(trouble.text.contains("lfs setstripe"), "nothing lacks: {trouble}");
        self.1.lock().expect("no panic").push(trouble.clone());
    }

    fn failed(&self, trouble: &Trouble) {
        self.0.lock().expect("no panic").push(trouble.clone());
    }
}

/// What came of a stage.
struct Staged {
    report: Outcome<Report>,
    failures: Vec<Trouble>,
    /// Advice about stripes.
    advice: Vec<Trouble>,
    /// Paths of the receipt, and those of names that it says were removed.
    paths: Vec<String>,
    removed: Vec<String>,
    /// What the volume was told of names that went.
    story: Vec<String>,
}

/// A source with a good file and a bad one, and where it is staged to.
struct Setting(PathBuf);

impl Setting {
    fn new(test: &str) -> Setting {
        let dir = std::env::temp_dir().join(format!("aze-stage-{test}-{}", std::process::id()));
        fs::create_dir_all(dir.join("from")).expect("a new directory");
        for name in ["bad", "good"] {
            fs::write(dir.join("from").join(name), "contents of a file").expect("a file");
        }
        Setting(dir)
    }

    /// Stages with faults on one side; gives what came of it, the failures, and the paths of the receipt.
    fn stage(&self, at_source: Fault, at_destination: Fault) -> (Outcome<Report>, Vec<Trouble>, Vec<String>) {
        let Staged { report, failures, paths, .. } = self.stage_over(at_source, at_destination, None, false);
        (report, failures, paths)
    }

    /// The same, of a source that lies over the destination, in which these names went.
    fn stage_over(&self, at_source: Fault, at_destination: Fault, gone: Option<Vec<GoneName>>, delete: bool) -> Staged {
        let side = if gone.is_some() { Side::Own } else { Side::Outside };
        let (gone, story) = (gone.unwrap_or_default(), Arc::<Mutex<Vec<String>>>::default());
        let spot = |fault, name: &str| Spot {
            tree: Arc::new(Faulty { fault, gone: gone.clone(), story: story.clone(), ..Faulty::default() }),
            path: self.0.join(name).as_os_str().as_bytes().to_vec(),
        };
        let receipt = self.0.join("receipt");
        let _ = fs::remove_file(&receipt);
        let order = Order {
            direction: "out",
            source: "a test".into(),
            from: spot(at_source, "from"),
            to: spot(at_destination, "to"),
            destination: self.0.join("to").as_os_str().as_bytes().to_vec(),
            filter: Filter::default(),
            side,
            delete,
            closed_only: false,
            atomic: false,
            jobs: 2,
            nodes: None,
            state: self.0.join("state"),
            ledger: self.ledger().map(|dir| (self.hold(&dir).expect("nobody else has it"), self.route())),
            receipt: Some((receipt.clone(), Key::at(&self.0.join("key")).expect("a key").0)),
            program: "a test".into(),
        };
        let notes: Arc<Notes> = Arc::default();
        let watch: Arc<dyn Watch> = notes.clone();
        let report = stage(&order, &watch);
        let failures = notes.0.lock().expect("no panic").clone();
        let advice = notes.1.lock().expect("no panic").clone();
        let (mut paths, mut removed) = (Vec::new(), Vec::new());
        if report.is_ok() {
            let signed = Signed::open(&receipt, None).expect("a receipt");
            let (claims, doubts) = (Claims { owners_and_times: true, jobs: 2 }, Notes::default());
            let there = Spot { tree: Arc::new(LocalTree), path: self.0.join("to").as_os_str().as_bytes().to_vec() };
            let good = verify(&signed, &there, claims, &doubts).expect("lines");
            assert_eq!(*doubts.0.lock().expect("no panic"), [], "a line is wrong");
            for line in signed.lines().expect("lines") {
                match line.expect("a line") {
                    Line::Object(object) => paths.push(String::from_utf8(object.path).expect("text")),
                    Line::Removed(line) => removed.push(String::from_utf8(line.path).expect("text")),
                    _ => panic!("neither object nor removal"),
                }
            }
            assert_eq!(good, (paths.len() + removed.len()) as u64);
        }
        let story = story.lock().expect("no panic").clone();
        Staged { report, failures, advice, paths, removed, story }
    }

    /// Where ledgers are kept, if they are.
    fn ledger(&self) -> Option<PathBuf> {
        Some(self.0.join("ledgers")).filter(|dir| dir.exists())
    }

    fn work(&self) -> Work {
        Work { route: self.route(), state: self.0.join("state"), host: "here".into(), pid: 7 }
    }

    fn hold(&self, dir: &Path) -> Outcome<Hold> {
        Hold::take(dir, "key", &self.work())
    }

    fn route(&self) -> Route {
        let path = |name: &str| self.0.join(name).into_os_string().into_encoded_bytes();
        Route { direction: "out".into(), inside: path("from"), outside: path("to") }
    }

    /// How the source stands to the ledger, at a place with a fault.
    fn standing(&self, fault: Fault) -> Standing {
        let ledger = Ledger::read(&self.0.join("ledgers/key.ledger")).expect("a ledger");
        let tree = Arc::new(Faulty { fault, ..Faulty::default() });
        let start = Spot { tree, path: self.route().inside };
        look(&start, &Vec::from_iter(ledger), 2, 10, None, &|| false).expect("a look")
    }

    /// The paths that the ledger has.
    fn entries(&self) -> Vec<String> {
        let ledger = Ledger::read(&self.0.join("ledgers/key.ledger")).expect("a ledger").expect("it is there");
        assert_eq!(ledger.route, self.route());
        ledger.entries.into_keys().map(|path| String::from_utf8(path).expect("text")).collect()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.join("to")).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// While a server of the destination is away only some names are told: further names to be removed are unknown.
#[test]
fn a_stage_that_removes_names_fails_where_not_all_can_be_told() {
    let setting = Setting::new("list-some");
    for (side, file) in [("from", "kept"), ("to", "left")] {
        let dir = setting.0.join(side).join("dir-bad");
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join(file), "x").expect("a file");
    }
    let left = setting.0.join("to/dir-bad/left");
    let trouble = setting.stage_over(Fault::None, Fault::ListSome(libc::EIO), None, true).report.expect_err("it fails");
    assert!(trouble.text.contains("a planted fault") && left.exists(), "{trouble}");
    let report = setting.stage_over(Fault::None, Fault::None, None, true).report.expect("it ends");
    assert_eq!((report.missing, report.removed, left.exists()), (0, 1, false));
}

/// Where files take many servers each, fewer are made at the same time, and a better layout is advised.
#[test]
fn striped_files_are_made_a_few_at_a_time() {
    for (stripes, told) in [(1, &["1 at once", "2 at once"][..]), (200, &["1 at once"])] {
        let setting = Setting::new("striped");
        for number in 0..60 {
            fs::write(setting.0.join(format!("from/f{number}")), "x").expect("a file");
        }
        File::create(setting.0.join("from/large")).expect("a file").set_len(33 << 30).expect("a hole");
        let staged = setting.stage_over(Fault::None, Fault::Striped(stripes), None, false);
        assert_eq!(staged.report.expect("it ends").missing, 0);
        assert_eq!(staged.story, told, "with {stripes} stripes");
        let advised = staged.advice.iter().filter(|advice| advice.text.contains("lfs setstripe -c 3 ")).count();
        assert_eq!((advised, staged.advice.len()), (usize::from(stripes == 1), usize::from(stripes == 1)));
    }
}

/// Names that a volume over the destination has removed: which of them the stage removes there, and which stay when something fails.
#[test]
fn names_that_went_are_removed_below_or_told() {
    let setting = || {
        let setting = Setting::new("gone");
        let to = setting.0.join("to");
        fs::create_dir_all(to.join("dir")).expect("directories");
        for name in ["bad", "good", "removed", "changed", "several", "dir/inner"] {
            fs::write(to.join(name), format!("old contents of {name}")).expect("a file");
        }
        fs::hard_link(to.join("several"), to.join("another")).expect("a link");
        let gone: Vec<GoneName> = ["bad", "good", "removed", "changed", "several", "dir", "dir/inner", "vanished"]
            .iter()
            .map(|name| {
                let outside = to.join(name);
                let meta = outside.symlink_metadata().ok();
                let time = |seconds: i64, ns: i64| (seconds * 1_000_000_000 + ns) as u64;
                let identity = meta.as_ref().map_or([7; 4], |meta| {
                    let times = (time(meta.mtime(), meta.mtime_nsec()), time(meta.ctime(), meta.ctime_nsec()));
                    [meta.ino(), meta.len(), times.0, times.1]
                });
                let is_dir = meta.is_some_and(|meta| meta.is_dir());
                GoneName {
                    inside: format!("/{name}").into_bytes(),
                    outside: outside.into_os_string().into_encoded_bytes(),
                    kind: if is_dir { FileKind::Directory } else { FileKind::File },
                    identity,
                    inode: 5,
                    record: Some((1, name.as_bytes().to_vec(), aze_proto::ids::Time(3))),
                }
            })
            .collect();
        fs::write(to.join("changed"), "by somebody else").expect("a file");
        (setting, gone)
    };
    let contents = |setting: &Setting, name: &str| fs::read_to_string(setting.0.join("to").join(name)).ok();
    let sorted = |mut words: Vec<String>| {
        words.sort();
        words
    };

    // Nothing fails.
    let (at, gone) = setting();
    let staged = at.stage_over(Fault::None, Fault::None, Some(gone.clone()), true);
    let report = staged.report.expect("it ends");
    assert_eq!((report.missing, report.left, report.removed), (0, 2, 3), "{:?}", staged.failures);
    assert_eq!(staged.removed, ["removed", "dir/inner", "dir"]);
    assert_eq!(staged.failures.len(), 2);
    for words in ["changed: it has changed since", "several: it has several names"] {
        assert!(staged.failures.iter().any(|failure| failure.text.contains(words)), "{:?}", staged.failures);
    }
    assert_eq!(contents(&at, "changed").as_deref(), Some("by somebody else"));
    assert_eq!(contents(&at, "several").as_deref(), Some("old contents of several"));
    assert_eq!(contents(&at, "bad").as_deref(), Some("contents of a file"));
    let follows = [
        "adopt bad",
        "adopt good",
        "forget /bad",
        "forget /dir",
        "forget /dir/inner",
        "forget /good",
        "forget /removed",
        "forget /vanished",
        "keep bad",
        "keep good",
        "over /bad",
        "over /changed",
        "over /dir",
        "over /dir/inner",
        "over /good",
        "over /removed",
        "over /several",
        "over /vanished",
    ];
    assert_eq!(sorted(staged.story), follows);
    drop(at);

    // Without being asked to, nothing is removed.
    let (at, gone) = setting();
    let staged = at.stage_over(Fault::None, Fault::None, Some(gone), false);
    let report = staged.report.expect("it ends");
    assert_eq!((report.missing, report.left, report.left_named.len()), (0, 5, 5));
    assert_eq!(contents(&at, "removed").as_deref(), Some("old contents of removed"));
    let follows = [
        "adopt bad",
        "adopt good",
        "forget /bad",
        "forget /good",
        "forget /vanished",
        "keep bad",
        "keep good",
        "over /bad",
        "over /good",
    ];
    assert_eq!(sorted(staged.story), follows);
    drop(at);

    // The volume cannot take data over that it needs: their place is left alone, and nothing is removed.
    let (at, gone) = setting();
    let staged = at.stage_over(Fault::TakeOver(libc::ENOSPC), Fault::None, Some(gone), true);
    let report = staged.report.expect("it ends");
    assert_eq!((report.missing, report.left, staged.failures.len()), (1, 5, 1), "{:?}", staged.failures);
    assert!(staged.failures[0].text.contains("bad is left alone"), "{:?}", staged.failures);
    assert_eq!(contents(&at, "bad").as_deref(), Some("old contents of bad"));
    assert_eq!(contents(&at, "removed").as_deref(), Some("old contents of removed"));
    let follows = [
        "adopt good",
        "forget /good",
        "forget /vanished",
        "keep good",
        "over /changed",
        "over /dir",
        "over /dir/inner",
        "over /good",
        "over /removed",
        "over /several",
        "over /vanished",
    ];
    assert_eq!(sorted(staged.story), follows);
    drop(at);

    // A further name of a new file does not get that place either.
    let (at, gone) = setting();
    fs::rename(at.0.join("from/bad"), at.0.join("from/also")).expect("a rename");
    fs::hard_link(at.0.join("from/also"), at.0.join("from/bad")).expect("a link");
    let staged = at.stage_over(Fault::TakeOver(libc::ENOSPC), Fault::None, Some(gone), true);
    assert_eq!((staged.report.expect("it ends").missing, staged.failures.len()), (1, 1), "{:?}", staged.failures);
    assert_eq!(contents(&at, "bad").as_deref(), Some("old contents of bad"));
    assert_eq!(contents(&at, "also").as_deref(), Some("contents of a file"));
    drop(at);

    // It cannot be taken over, or not be removed, and nothing takes its place.
    for (at_source, at_destination) in
        [(Fault::TakeOver(libc::EIO), Fault::None), (Fault::None, Fault::Remove(libc::EACCES))]
    {
        let (at, gone) = setting();
        fs::remove_file(at.0.join("from/bad")).expect("a removal");
        let staged = at.stage_over(at_source, at_destination, Some(gone), true);
        let report = staged.report.expect("it ends");
        assert_eq!((report.missing, report.left, report.removed), (0, 3, 3), "{:?}", staged.failures);
        assert_eq!(contents(&at, "bad").as_deref(), Some("old contents of bad"));
        assert!(!staged.story.contains(&"forget /bad".to_owned()), "{:?}", staged.story);
        drop(at);
    }
}

#[test]
fn a_place_that_fails_gets_no_line_and_the_next_attempt_goes_on() {
    let mut cases = Vec::new();
    for number in [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EACCES, libc::ESTALE, libc::EROFS] {
        let exit = of_io(&std::io::Error::from_raw_os_error(number));
        for fault in [Fault::Create, Fault::Write, Fault::Settle, Fault::Publish, Fault::Read] {
            cases.push((fault(number), exit));
        }
    }
    cases.push((Fault::ReadsBackOther, Exit::Fatal));
    cases.push((Fault::ChangedBehind, Exit::Fatal));
    // Found by the simulation: the attributes to compare with were asked for once more, after that change.
    cases.push((Fault::ChangedAfter, Exit::Again));
    cases.push((Fault::Replaced, Exit::Again));
    cases.push((Fault::ChangedLate, Exit::Again));
    // Found by the simulation of stages into a volume: the ledger took a copy that a program had changed for the staged
    // one.
    cases.push((Fault::WrittenNamed, Exit::Again));
    cases.push((Fault::ModeNamed, Exit::Again));
    cases.push((Fault::XattrNamed, Exit::Again));
    assert_eq!(cases.len(), 38);
    for (number, (fault, exit)) in cases.into_iter().enumerate() {
        let setting = Setting::new(&format!("fault{number}"));
        let (report, failures, paths) = setting.stage(Fault::None, fault);
        let report = report.expect("the good file is staged");
        assert_eq!((report.missing, paths), (1, vec![String::new(), "good".into()]), "{fault:?}");
        assert_eq!(failures.len(), 1, "{fault:?}: {failures:?}");
        assert_eq!(failures[0].exit, exit, "{fault:?}: {failures:?}");
        assert!(failures[0].text.contains("bad") && failures[0].text.len() > 20, "{fault:?}: {failures:?}");
        use Fault::{ChangedAfter, ChangedLate, ModeNamed, Replaced, WrittenNamed, XattrNamed};
        let is_left = matches!(fault, ChangedAfter | Replaced | ChangedLate | WrittenNamed | ModeNamed | XattrNamed);
        let left = if is_left { vec!["bad", "good"] } else { vec!["good"] };
        assert_eq!(setting.names(), left, "{fault:?}: nothing hidden, and nothing under a final name");
        let (report, failures, paths) = setting.stage(Fault::None, Fault::None);
        let report = report.expect("all is staged");
        assert_eq!((report.missing, report.resumed, failures), (0, 1, vec![]), "{fault:?}");
        assert_eq!(paths, ["", "bad", "good"]);
        assert!(!setting.0.join("state").exists());
    }
}

/// The simulation has found lines of further names whose file a program of the volume had changed before, at the same length and
/// with the time put back.
#[test]
fn a_copy_that_a_program_changes_before_its_further_name_has_no_line_there() {
    let faults = [Fault::WrittenLinked, Fault::ModeLinked, Fault::XattrLinked].map(|fault| (fault, 0));
    for (fault, further) in faults.into_iter().chain([(Fault::Counted, 2)]) {
        let setting = Setting::new(&format!("linked-{fault:?}"));
        fs::create_dir(setting.0.join("ledgers")).expect("a directory");
        fs::hard_link(setting.0.join("from/bad"), setting.0.join("from/too-bad")).expect("a name");
        let (report, failures, paths) = setting.stage(Fault::None, fault);
        let report = report.expect("the good file is staged");
        assert_eq!((report.missing, paths.len()), (2 - further, 2 + further as usize), "{fault:?}: {failures:?}");
        let told = failures.iter().filter(|failure| failure.exit == Exit::Again && failure.text.contains("bad"));
        assert_eq!(told.count() == 0, fault == Fault::Counted, "{failures:?}");
        // Servers that were started again count anew: it is copied again, and has both names.
        let (report, failures, paths) = setting.stage(Fault::None, Fault::None);
        assert_eq!((report.expect("all is staged").missing, paths.len()), (0, 4), "{fault:?}: {failures:?}");
    }
}

/// The simulation has found lines of further names with bytes that the source never had there: the name led to another file when its
/// first one was read.
#[test]
fn a_further_name_that_leads_elsewhere_meanwhile_has_no_line() {
    let setting = Setting::new("relinked");
    fs::hard_link(setting.0.join("from/bad"), setting.0.join("from/too-bad")).expect("a name");
    let (report, failures, paths) = setting.stage(Fault::Relinked, Fault::None);
    assert_eq!((report.expect("the others are staged").missing, paths.len()), (1, 3), "{failures:?}");
    assert!(failures.len() == 1 && failures[0].exit == Exit::Again, "{failures:?}");
    let (report, failures, _) = setting.stage(Fault::None, Fault::None);
    assert_eq!((report.expect("all is staged").missing, failures), (0, vec![]));
    assert_eq!(fs::read(setting.0.join("to/too-bad")).expect("a file"), b"another file");
}

/// A line says that the directory of its object was synced. The simulation has found that a directory which could not have its
/// attributes was not, and that its files had lines all the same.
#[test]
fn what_is_in_a_directory_that_is_not_synced_gets_no_line() {
    let setting = Setting::new("unsynced");
    let dir = setting.0.join("from/sub/bad");
    fs::create_dir_all(&dir).expect("a directory");
    fs::write(dir.join("file"), "in it").expect("a file");
    fs::remove_file(setting.0.join("from/bad")).expect("a removal");
    let staged = setting.stage_over(Fault::None, Fault::SetDir(libc::ENOSPC), None, false);
    let missing = staged.report.expect("it ends").missing;
    assert_eq!((missing, staged.failures.len()), (1, 1), "{:?}", staged.failures);
    assert_eq!(staged.paths, ["", "good", "sub", "sub/bad/file"]);
    let synced = staged.story.iter().filter(|step| *step == "sync bad").count();
    assert_eq!(synced, 1, "{:?}", staged.story);
    let staged = setting.stage_over(Fault::None, Fault::SyncDir(libc::EIO), None, false);
    let missing = staged.report.expect("it ends").missing;
    assert_eq!((missing, staged.failures.len()), (2, 1), "{:?}", staged.failures);
    assert_eq!(staged.paths, ["", "good", "sub"]);
    let (report, failures, paths) = setting.stage(Fault::None, Fault::None);
    assert_eq!((report.expect("it ends").missing, failures), (0, vec![]));
    assert_eq!(paths, ["", "good", "sub", "sub/bad", "sub/bad/file"]);
}

/// What an attempt leaves that was killed before it has proven anything: its number in the state, and a temporary name.
fn killed_attempt(setting: &Setting, hidden: &str) {
    let word = format!("out a test to {}", setting.0.join("to").display());
    let mut journal = Journal::open(&setting.0.join("state"), &word, "0123456789abcdef").expect("a state");
    journal.found(2, 2, &[]).expect("room");
    fs::write(setting.0.join("to").join(hidden), "half of").expect("room");
}

/// The simulation has found that the state of a killed attempt went when the next one could not begin, and its temporary names
/// stayed for ever; and that they stayed in directories in which nothing was to be staged any more.
#[test]
fn temporary_names_of_a_killed_attempt_go_also_after_one_that_could_not_begin() {
    let setting = Setting::new("sweeps");
    fs::create_dir_all(setting.0.join("to/good")).expect("a directory in the way");
    killed_attempt(&setting, ".aze-stage-0123456789abcdef-3");
    let (report, failures, _) = setting.stage(Fault::None, Fault::None);
    assert_eq!((report.expect_err("it cannot begin").exit, failures.len()), (Exit::Caller, 1));
    assert!(setting.0.join("state").exists(), "its state says whose the temporary names are");
    fs::remove_dir(setting.0.join("to/good")).expect("a removal");
    let (report, failures, _) = setting.stage(Fault::None, Fault::None);
    assert_eq!((report.expect("it ends").missing, failures), (0, vec![]));
    assert_eq!(setting.names(), ["bad", "good"]);
    assert!(!setting.0.join("state").exists());
}

/// The simulation has found that a file which an attempt had put into the directory below right before it was killed
/// was taken for another program's if the volume's had changed before the next attempt.
#[test]
fn a_file_that_a_killed_attempt_has_put_below_is_known() {
    for is_noted in [false, true] {
        let setting = Setting::new(&format!("named{is_noted}"));
        fs::create_dir_all(setting.0.join("to")).expect("a directory");
        let there = setting.0.join("to/good");
        fs::write(&there, "put there by the attempt").expect("room");
        let word = format!("out a test to {}", setting.0.join("to").display());
        let mut journal = Journal::open(&setting.0.join("state"), &word, "0123456789abcdef").expect("a state");
        let meta = LocalTree.stat(there.as_os_str().as_bytes(), false).expect("a file").expect("it is there");
        let [inode, size, mtime, _] = meta.print();
        if is_noted {
            journal.name(b"good".to_vec(), [inode, size, mtime]).expect("room");
            journal.name(b"good".to_vec(), [inode + 1, size, mtime]).expect("room, for another attempt");
        }
        drop(journal);
        let staged = setting.stage_over(Fault::None, Fault::None, Some(Vec::new()), false);
        let contents = fs::read_to_string(&there).expect("it is there");
        match is_noted {
            true => {
                assert_eq!((staged.report.expect("it ends").missing, staged.failures), (0, vec![]));
                assert_eq!(contents, "contents of a file");
            }
            false => {
                assert_eq!((staged.report.expect("it ends").missing, staged.failures.len()), (1, 1));
                assert_eq!(contents, "put there by the attempt");
            }
        }
    }
}

/// Files change between attempts at a destination that fails at random. Every line of every receipt is true when it is
/// written (`Setting::stage` looks), and every file not named as dirty has an equal copy.
#[test]
fn nothing_that_changes_is_lost_at_a_destination_that_fails_at_random() {
    const SEEDS: u64 = 16;
    let (mut failed, mut proven) = (0, 0);
    for seed in 0..SEEDS {
        let setting = Setting::new(&format!("random{seed}"));
        fs::create_dir(setting.0.join("ledgers")).expect("a directory");
        for round in 0..4 {
            for file in 0..6 {
                // By length: two changes may have one time.
                if (seed + round * 5 + file * 3) % 4 != 0 {
                    let path = setting.0.join(format!("from/file{file}"));
                    let mut file = File::options().append(true).create(true).open(path).expect("a file");
                    std::io::Write::write_all(&mut file, format!("{round} ").as_bytes()).expect("room");
                }
            }
            let (report, failures, paths) = setting.stage(Fault::None, Fault::AtRandom(seed * 100 + round));
            let report = report.unwrap_or_else(|trouble| panic!("seed {seed}, round {round}: {trouble}"));
            assert_eq!(report.missing, failures.len() as u64, "seed {seed}, round {round}: {failures:?}");
            (failed, proven) = (failed + failures.len(), proven + paths.len());
            let standing = setting.standing(Fault::None);
            assert!(standing.lost.is_empty() && standing.dirty.objects == standing.named.len() as u64);
            for entry in fs::read_dir(setting.0.join("from")).expect("a directory").flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                if !standing.named.contains_key(path.as_os_str().as_bytes()) {
                    let copy = fs::read(setting.0.join("to").join(&name)).unwrap_or_default();
                    let is_equal = fs::read(&path).expect("a file") == copy;
                    assert!(is_equal, "seed {seed}, round {round}: {name:?} is not dirty, and its copy differs");
                }
            }
        }
        let (report, failures, paths) = setting.stage(Fault::None, Fault::None);
        assert_eq!((report.expect("all is staged").missing, failures, paths.len()), (0, vec![], 9), "seed {seed}");
        assert_eq!(setting.standing(Fault::None).dirty.objects, 0, "seed {seed}");
    }
    println!("{failed} objects failed, {proven} lines were true");
    assert!(failed > 100 && proven > 200, "{failed} {proven}");
}

#[test]
fn a_ledger_has_what_a_receipt_has_and_the_next_stage_copies_the_rest() {
    for (number, fault) in
        [Fault::Write(libc::EIO), Fault::ReadsBackOther, Fault::Publish(libc::EIO)].into_iter().enumerate()
    {
        let setting = Setting::new(&format!("ledger{number}"));
        fs::create_dir(setting.0.join("ledgers")).expect("a directory");
        let (report, _, paths) = setting.stage(Fault::None, fault);
        assert_eq!((report.expect("the good file is staged").missing, paths.len()), (1, 2), "{fault:?}");
        assert_eq!(setting.entries(), paths, "{fault:?}");
        let (report, _, paths) = setting.stage(Fault::None, Fault::None);
        assert_eq!((report.expect("all is staged").resumed, paths.len()), (1, 3), "{fault:?}");
        assert_eq!(setting.entries(), paths, "{fault:?}");
        assert!(!setting.0.join("state").exists());
        // Nothing is left to copy, and nothing can fail.
        let (report, failures, paths) = setting.stage(Fault::None, fault);
        assert_eq!((report.expect("all is staged").resumed, failures, paths.len()), (2, vec![], 3), "{fault:?}");
        // A file that has changed, on either side, is copied again.
        for side in ["from", "to"] {
            let file = File::options().write(true).open(setting.0.join(side).join("good")).expect("a file");
            file.write_all_at(b"Z", 1).expect("room");
            let (report, ..) = setting.stage(Fault::None, Fault::None);
            assert_eq!(report.expect("all is staged").resumed, 1, "{fault:?}: {side}");
        }
        assert_eq!(fs::read(setting.0.join("to/good")).expect("a file"), b"cZntents of a file");
    }
}

#[test]
fn all_that_no_ledger_has_as_it_is_counts_as_dirty() {
    let setting = Setting::new("standing");
    fs::create_dir(setting.0.join("ledgers")).expect("a directory");
    let dirty = |fault| {
        let standing = setting.standing(fault);
        assert_eq!(standing.dirty.objects, standing.named.len() as u64);
        assert!(standing.lost.is_empty() && !standing.ended_early);
        let name = |at: &[u8]| path(at).strip_prefix(setting.0.join("from")).expect("below").display().to_string();
        standing.named.into_iter().map(|(path, why)| (name(&path), why)).collect::<Vec<_>>()
    };
    let of = |all: &[(&str, Why)]| all.iter().map(|(path, why)| ((*path).to_owned(), *why)).collect::<Vec<_>>();
    assert_eq!(dirty(Fault::None), of(&[("bad", Why::New), ("good", Why::New)]));
    setting.stage(Fault::None, Fault::None).0.expect("all is staged");
    assert_eq!(dirty(Fault::None), []);
    assert_eq!(setting.standing(Fault::None).staged.objects, 3);
    // Neither length nor times have changed.
    assert_eq!(dirty(Fault::CountsOther), of(&[("bad", Why::Data)]));
    let from = setting.0.join("from");
    fs::set_permissions(from.join("good"), Permissions::from_mode(0o600)).expect("a mode");
    fs::remove_file(from.join("bad")).expect("it goes");
    fs::write(from.join("later"), "later").expect("room");
    let all = [("", Why::Attributes), ("bad", Why::Removed), ("good", Why::Data), ("later", Why::New)];
    assert_eq!(dirty(Fault::None), of(&all), "a mark of local files has the change time");
    fs::rename(from.join("later"), from.join("bad")).expect("another name");
    let standing = setting.standing(Fault::Open(libc::EIO));
    assert_eq!((standing.lost.len(), standing.lost[0].exit, standing.ended_early), (1, Exit::Fatal, false));
    // The look ends before each object of a dead server has taken its time.
    for number in 0..2 * LOST_MAX {
        fs::write(from.join(format!("{number}bad")), "x").expect("room");
    }
    setting.stage(Fault::None, Fault::None).0.expect("all is staged");
    let standing = setting.standing(Fault::Open(libc::EIO));
    assert!((LOST_MAX..LOST_MAX + 2).contains(&standing.lost.len()) && standing.ended_early, "{standing:?}");
}

/// A server that is lost has names that no program has removed: they are lost, and not removed.
#[test]
fn what_is_in_a_directory_that_cannot_be_listed_does_not_count_as_removed() {
    let setting = Setting::new("unlisted");
    fs::create_dir(setting.0.join("ledgers")).expect("a directory");
    let from = setting.0.join("from");
    fs::create_dir_all(from.join("dir-bad/below")).expect("directories");
    for name in ["dir-bad/one", "dir-bad/below/two", "dir-bad.other"] {
        fs::write(from.join(name), "x").expect("room");
    }
    setting.stage(Fault::None, Fault::None).0.expect("all is staged");
    fs::remove_file(from.join("dir-bad.other")).expect("it goes");
    let told = |standing: Standing| {
        let removed = standing.named.iter().filter(|(_, why)| **why == Why::Removed).map(|(path, _)| path.clone());
        (standing.lost.len(), standing.removed, removed.collect::<Vec<_>>())
    };
    let removed = vec![from.join("dir-bad.other").into_os_string().into_encoded_bytes()];
    assert_eq!(told(setting.standing(Fault::ListSome(libc::EIO))), (1, 1, removed.clone()));
    assert_eq!(told(setting.standing(Fault::None)), (0, 1, removed));
}

#[test]
fn a_file_that_is_counted_anew_is_compared_and_copied_only_if_it_differs() {
    let setting = Setting::new("compared");
    fs::create_dir(setting.0.join("ledgers")).expect("a directory");
    setting.stage(Fault::None, Fault::None).0.expect("all is staged");
    let inode = || fs::metadata(setting.0.join("to/bad")).expect("a file").ino();
    let before = inode();
    assert_eq!(setting.stage(Fault::CountsOther, Fault::None).0.expect("all is staged").resumed, 2);
    assert_eq!((inode(), setting.standing(Fault::CountsOther).dirty.objects), (before, 0));
    // The same attributes, but other bytes than those that the ledger tells of.
    let path = setting.0.join("ledgers/key.ledger");
    let mut ledger = Ledger::read(&path).expect("a ledger").expect("it is there");
    let entry = ledger.entries.get_mut(&b"bad"[..]).expect("an entry");
    let What::File { hash, chunks, .. } = &mut entry.object.what else { panic!("no file") };
    (*hash, *chunks) = (aze_receipt::Hash::of(b"other bytes"), None);
    entry.from[7] += 1;
    ledger.write(&path).expect("room");
    assert_eq!(setting.stage(Fault::CountsOther, Fault::None).0.expect("all is staged").resumed, 1);
    assert_ne!(inode(), before, "it is copied");
}

#[test]
fn a_ledger_that_is_not_whole_is_not_believed() {
    let setting = Setting::new("cut");
    fs::create_dir(setting.0.join("ledgers")).expect("a directory");
    setting.stage(Fault::None, Fault::None).0.expect("all is staged");
    let path = setting.0.join("ledgers/key.ledger");
    let good = fs::read(&path).expect("a ledger");
    assert!(good.len() > 1000);
    for len in (1..good.len()).step_by(5) {
        fs::write(&path, &good[..len]).expect("room");
        assert!(Ledger::read(&path).is_err(), "{len} bytes");
    }
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 6);
    for line in 0..lines.len() {
        let mut fewer = lines.clone();
        fewer.remove(line);
        fs::write(&path, fewer.concat()).expect("room");
        assert!(Ledger::read(&path).is_err(), "without line {line}");
    }
    let refused = setting.stage(Fault::None, Fault::None).0.expect_err("it cannot go on from that");
    assert!(refused.exit == Exit::Fatal && refused.text.contains("damaged"), "{refused}");
    fs::write(&path, good).expect("room");
    assert_eq!(setting.stage(Fault::None, Fault::None).0.expect("all is staged").resumed, 2);
    let dir = setting.0.join("ledgers");
    assert_eq!(at_work(&dir).expect("a directory"), []);
    let held = setting.hold(&dir).expect("nobody else has it");
    assert_eq!(setting.hold(&dir).err().map(|busy| busy.exit), Some(Exit::Again));
    assert_eq!(at_work(&dir).expect("a directory"), [setting.work()]);
    drop(held);
    assert_eq!(at_work(&dir).expect("a directory"), []);
}

#[test]
fn looking_who_is_at_work_holds_up_no_stage() {
    let setting = Setting::new("looked-at");
    let dir = setting.0.join("ledgers");
    drop(setting.hold(&dir).expect("nobody else has it"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                at_work(&dir).expect("a directory");
            }
        });
        let taken: Vec<bool> = (0..2000).map(|_| setting.hold(&dir).is_ok()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!((taken.len(), taken.iter().filter(|taken| !**taken).count()), (2000, 0));
    });
}

#[test]
fn a_look_ends_at_its_moment_and_says_so() {
    let setting = Setting::new("late");
    let start = Spot { tree: Arc::new(LocalTree), path: setting.route().inside };
    let ledger = Ledger { route: setting.route(), ..Ledger::default() };
    let late = look(&start, std::slice::from_ref(&ledger), 2, 10, Some(Instant::now()), &|| false).expect("a look");
    assert_eq!((late.ended_early, late.dirty.objects), (true, 0));
    let whole = look(&start, &[ledger], 2, 10, None, &|| false).expect("a look");
    assert_eq!((whole.ended_early, whole.dirty.objects), (false, 2));
}

#[test]
fn a_source_that_changes_is_copied_again_and_at_last_named() {
    let setting = Setting::new("changes");
    // Each look at the good file counts, too.
    let (report, failures, paths) = setting.stage(Fault::SourceChanges(3), Fault::None);
    assert_eq!((report.expect("a report").missing, failures), (0, vec![]));
    assert_eq!(paths, ["", "bad", "good"]);
    let setting = Setting::new("changes-always");
    let (report, failures, paths) = setting.stage(Fault::SourceChanges(u32::MAX), Fault::None);
    assert_eq!((report.expect("a report").missing, paths), (1, vec![String::new(), "good".into()]));
    assert_eq!(failures.len(), 1);
    let told = format!("bad: it changed while it was copied, {ROUNDS_MAX} times");
    assert!(failures[0].text.contains(&told), "{failures:?}");
    assert_eq!(setting.names(), ["good"]);
}

#[test]
fn a_file_that_another_stage_has_put_back_meanwhile_is_copied_again_and_at_last_named() {
    let setting = Setting::new("adopted");
    let Staged { report, failures, paths, .. } =
        setting.stage_over(Fault::AdoptedMeanwhile(2), Fault::None, Some(Vec::new()), false);
    assert_eq!((report.expect("a report").missing, failures), (0, vec![]));
    assert_eq!(paths, ["", "bad", "good"]);
    drop(setting);
    let setting = Setting::new("adopted-always");
    let Staged { report, failures, paths, .. } =
        setting.stage_over(Fault::AdoptedMeanwhile(u32::MAX), Fault::None, Some(Vec::new()), false);
    assert_eq!((report.expect("a report").missing, failures.len(), paths.len()), (1, 1, 2), "{failures:?}");
    assert_eq!(setting.names(), ["good"]);
}

#[test]
fn what_was_changed_since_an_attempt_is_copied_again_and_nothing_else() {
    let setting = Setting::new("resume");
    let (report, ..) = setting.stage(Fault::None, Fault::Write(libc::EIO));
    assert_eq!(report.expect("a report").missing, 1);
    // At the destination, without a change of length, and at the source.
    let at = |name: &str| File::options().write(true).open(setting.0.join(name)).expect("a file");
    at("to/good").write_all_at(b"X", 3).expect("room");
    let (report, failures, paths) = setting.stage(Fault::None, Fault::Write(libc::EIO));
    assert_eq!((report.expect("a report").resumed, failures.len(), paths.len()), (0, 1, 2));
    assert_eq!(fs::read(setting.0.join("to/good")).expect("a file"), b"contents of a file");
    at("from/good").write_all_at(b"Y", 3).expect("room");
    let (report, ..) = setting.stage(Fault::None, Fault::Write(libc::EIO));
    assert_eq!(report.expect("a report").resumed, 0);
    assert_eq!(fs::read(setting.0.join("to/good")).expect("a file"), b"conYents of a file");
    let (report, failures, paths) = setting.stage(Fault::None, Fault::None);
    assert_eq!((report.expect("a report").resumed, failures.len(), paths.len()), (1, 0, 3));
    // A state whose last line is not whole, and one of another order.
    let (report, ..) = setting.stage(Fault::None, Fault::Write(libc::EIO));
    assert_eq!(report.expect("a report").missing, 1);
    let state = setting.0.join("state");
    let bytes = fs::read(&state).expect("a state");
    fs::write(&state, &bytes[..bytes.len() - 9]).expect("room");
    let (report, ..) = setting.stage(Fault::None, Fault::None);
    assert_eq!(report.expect("a report").missing, 0);
    fs::write(&state, "{\"order\":\"another\",\"state\":\"azekura stage 1\"}\n").expect("room");
    let refused = setting.stage(Fault::None, Fault::None).0.expect_err("another order's state");
    assert!(refused.exit == Exit::Caller && refused.text.contains("--state"), "{refused}");
}
