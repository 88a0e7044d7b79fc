//! One thing is damaged each, and exactly that is reported.

use super::*;
use crate::persistence::state::record::Step;
use aze_io::sim::{Faults, Sim};
use aze_meta::Shard;
use aze_meta::op::NewFile;
use aze_proto::ids::{Generation, MapEpoch, ShardId, SlotIndex, Time};
use aze_proto::place::Layout;
use aze_proto::slots::{slot_of, slots_of};
use aze_proto::sum::piece_sums;
use aze_proto::wire::Wire;
use aze_proto::{Name, Reply};
use aze_store::disk::checkpoint::Writer;
use aze_store::{ChunkShard, disk};

const SHARDS: u32 = 64;
const DIR: &str = "/storage";

/// Length of a segment here.
const SEGMENT_BYTES: u64 = 1 << 20;

/// What a unit of 5,000 bytes takes of it.
const PLACE_BYTES: u64 = 16 << 10;

/// A volume of one server with `/dir`, `/dir/file` and a second name of that, `/other`.
struct Small {
    sim: Sim,
    io: Io,
    steps: Vec<(Step, Vec<u8>)>,
    shards: Vec<Shard>,
    dir: Ino,
    file: Ino,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("it is a name")
}

fn key(parent: Ino, text: &str) -> EntryKey {
    EntryKey { parent, hash: NameHash::of(parent, &name(text)), name: name(text) }
}

/// The file, which has two names: a path to it goes by either.
const FILE: &str = "/dir/file";

fn says(text: &str, word: &str) -> bool {
    text.contains(word) || word == FILE && text.contains("/other")
}

impl Small {
    fn new() -> Small {
        let sim = Sim::new(1, Faults::default());
        let io = sim.node("s0");
        let shards = (0..SHARDS).map(|id| Shard::new(ShardId(id), SHARDS)).collect();
        let mut small = Small { sim, io, steps: Vec::new(), shards, dir: Ino(0), file: Ino(0) };
        let make_root = Op::MakeRoot { uid: 0, gid: 0, mode: 0o755, born: MapEpoch(1), chunk_bits: 20 };
        small.apply(Ino::ROOT.home(SHARDS), make_root);
        small.dir = small.create(Ino::ROOT, "dir", FileKind::Directory);
        small.file = small.create(small.dir, "file", FileKind::File);
        let file = small.file;
        small.apply(file.home(SHARDS), Op::SetLinks { ino: file, links: 2 });
        small.name(Ino::ROOT, "other", file);
        small.data(file, 0);
        small
    }

    fn apply(&mut self, shard: ShardId, op: Op) -> Reply {
        let stamp = Stamp::at(Time(1 + self.steps.len() as u64));
        let reply = self.shards[shard.0 as usize].apply(&op, &stamp).reply.expect("it can be done");
        self.steps.push((Step::Names { shard, stamp, op }, Vec::new()));
        reply
    }

    fn create(&mut self, parent: Ino, text: &str, kind: FileKind) -> Ino {
        let key = key(parent, text);
        let (target, born, chunk_bits) = (Default::default(), MapEpoch(1), 20);
        let new = NewFile {
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            target,
            born,
            chunk_bits,
            layout: Layout::new(key.hash.prefix(), SHARDS),
            private: false,
            over_backing: false,
        };
        let op = Op::Create { key: key.clone(), new, exclusive: true };
        let shard = key.hash.shard(SHARDS);
        self.apply(shard, op);
        self.shards[shard.0 as usize].entry(&key).expect("it was made").ino
    }

    fn name(&mut self, parent: Ino, text: &str, ino: Ino) {
        let key = key(parent, text);
        let shard = key.hash.shard(SHARDS);
        self.apply(shard, Op::Insert { key, ino, kind: FileKind::File, replace: false, under: None, attr: None });
    }

    fn data(&mut self, ino: Ino, chunk: u64) {
        let (shard, bytes) = (ino.home(SHARDS), vec![7; 5000]);
        let (generation, sums) = (Generation(0), piece_sums(0, &bytes));
        let stamp = Stamp::default();
        self.steps.push((Step::Data { shard, stamp, ino, generation, chunk, offset: 0, sums }, bytes));
    }

    fn block<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.sim.block_on(work)
    }

    /// Writes it all down.
    fn put(&self, server: u16, servers: u16) {
        // A server needs so many shards at least, and a volume a power of two of them.
        let shards = (SHARDS * u32::from(servers)).next_power_of_two();
        let (io, steps) = (self.io.clone(), self.steps.clone());
        self.block(async move {
            let dir = io.open_dir(DIR).await.expect("a directory");
            let manifest = Manifest {
                volume: 5,
                server,
                servers,
                shards,
                slots: slots_of(servers),
                chunk_bits: 20,
                owner_uid: 0,
                directory: 0,
                directories: 1,
            };
            manifest.write(&*dir).await.expect("a manifest");
            Starts { begun: 1, complete: 1, ..Starts::default() }.write(&*dir).await.expect("the starts");
            Writer::begin(dir.clone(), 1, 0, 0).await.expect("a checkpoint").finish().await.expect("its end");
            let journal = Journal::begin(dir, true, 1, 0, Default::default()).await.expect("a journal");
            for (step, bytes) in steps {
                let slot = step.shard().map(|shard| slot_of(shard, slots_of(servers)));
                journal.append_parts(slot, &step.to_bytes(), &[&bytes]);
            }
            journal.finish().await.expect("the journal is written");
        });
    }

    fn check(&self, repair: bool) -> Result<Report, Failure> {
        let io = self.io.clone();
        self.block(async move { check(&io, &[DIR.to_string()], repair).await })
    }

    /// The report on this volume once it is written down.
    fn problems(&self) -> Vec<(&'static str, String)> {
        self.put(0, 1);
        let problems = self.check(false).expect("it can be checked").problems;
        problems.into_iter().map(|problem| (problem.kind, problem.text)).collect()
    }

    /// The only problem; its text has these words.
    fn only(&self, kind: &str, words: &[&str]) {
        let problems = self.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].0, kind, "{problems:?}");
        words.iter().for_each(|word| assert!(says(&problems[0].1, word), "{word} in {problems:?}"));
    }

    /// As a server's start: what the journal has goes to a checkpoint, and its data to segments.
    fn begin_again(&self) {
        let io = self.io.clone();
        self.block(async move {
            let dir = io.open_dir(DIR).await.expect("a directory");
            let manifest = Manifest::read(&*dir).await.expect("a manifest").expect("one that is there");
            let segments = Segments::open(dir.clone(), manifest, SEGMENT_BYTES, SEGMENT_BYTES).await;
            let store = Store::new(Slab::new(MARGIN_BYTES).expect("memory"));
            store.use_disk(Disk::new(segments.expect("segments"), SEGMENT_BYTES));
            let mut image = Image::empty(ServerIndex(0), 1, manifest.shards, &store).expect("an image");
            let found = Found { order: 0, ..read_for(&*dir, &mut image).await.expect("it can be read") };
            image.write_down(&dir, &found).await.expect("it can be written");
            let Found { next, position, .. } = found;
            Journal::begin(dir.clone(), true, next, position, Default::default()).await.expect("a journal");
            remove_older(&*dir, next).await.expect("what is old can go");
        });
    }
}

#[test]
fn what_is_well_is_reported_well() {
    let small = Small::new();
    assert_eq!(small.problems(), []);
    let report = small.check(true).expect("it can be checked");
    assert_eq!((report.files, report.directories, report.bytes), (1, 2, 5000));
    assert_eq!((report.notes, report.repaired), (Vec::new(), Vec::new()));
}

#[test]
fn a_name_that_leads_nowhere_is_found_with_its_path() {
    let mut small = Small::new();
    let dir = small.dir;
    small.name(dir, "ghost", Ino(small.file.0 + 999));
    small.only("name without file", &["/dir/ghost"]);
}

#[test]
fn a_file_without_a_name_is_found() {
    let mut small = Small::new();
    let file = small.create(Ino::ROOT, "gone", FileKind::File);
    let key = key(Ino::ROOT, "gone");
    small.apply(key.hash.shard(SHARDS), Op::Remove { key, only: Some(file), moved: true, under: None });
    small.only("file without name", &[&file.to_string()]);
}

#[test]
fn a_wrong_link_count_is_found_and_repaired() {
    let mut small = Small::new();
    let file = small.file;
    small.apply(file.home(SHARDS), Op::SetLinks { ino: file, links: 5 });
    small.only("link count", &[FILE, "is 5", "are 2"]);
    let report = small.check(true).expect("it can be repaired");
    assert_eq!((report.problems.len(), report.repaired.len()), (0, 1), "{report:?}");
    assert_eq!(small.check(false).expect("it can be checked").problems, []);
}

#[test]
fn data_without_a_file_are_found_and_dropped() {
    let mut small = Small::new();
    let stray = Ino(small.file.0 + 999);
    small.data(stray, 0);
    small.only("data without file", &[&stray.to_string()]);
    let report = small.check(true).expect("it can be repaired");
    assert_eq!((report.problems.len(), report.repaired.len()), (0, 1), "{report:?}");
    let report = small.check(false).expect("it can be checked");
    assert_eq!((report.problems.len(), report.bytes), (0, 5000));
}

#[test]
fn data_that_have_changed_are_found_with_their_path() {
    let small = Small::new();
    small.put(0, 1);
    // The last record before the end mark is the file's data: nothing else says that it was durable.
    let size = |(step, bytes): &(Step, Vec<u8>)| disk::record::size(&step.to_bytes(), bytes.len());
    let end: u64 = small.steps.iter().map(size).sum();
    let log = disk::log_name(1);
    assert!(small.sim.flip_disk_bit("s0", DIR, &log, (end - 100) * 8));
    let report = small.check(false).expect("it can be checked");
    assert_eq!(report.notes, Vec::<String>::new());
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert_eq!(report.problems[0].kind, "checksum");
    assert!(says(&report.problems[0].text, FILE), "{report:?}");
    assert!(small.sim.flip_disk_bit("s0", DIR, &log, (end - 5010) * 8), "and its head");
    let report = small.check(false).expect("it can be said what is wrong");
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert_eq!(report.problems[0].kind, "unreadable");
}

/// Repaired rows are written down anew; data that are in segments stay where they are.
#[test]
fn what_is_repaired_leaves_the_data_in_segments() {
    let mut small = Small::new();
    let (file, stray) = (small.file, Ino(small.file.0 + 999));
    small.apply(file.home(SHARDS), Op::SetLinks { ino: file, links: 5 });
    small.data(stray, 0);
    small.put(0, 1);
    small.begin_again();
    let report = small.check(true).expect("it can be repaired");
    assert_eq!((report.problems.len(), report.repaired.len(), report.bytes), (0, 2, 10_000), "{report:?}");
    let report = small.check(false).expect("it can be checked");
    assert_eq!((report.problems.len(), report.notes.len(), report.bytes), (0, 0, 5000), "{report:?}");
    // The bytes are nowhere else: of the places of 16 KiB one is the file's.
    let segment = "data-0000000000";
    let is_told = |bit| {
        assert!(small.sim.flip_disk_bit("s0", DIR, segment, bit), "{:?}", small.sim.disk_files("s0", DIR));
        let problems = small.check(false).expect("it can be checked").problems;
        assert!(small.sim.flip_disk_bit("s0", DIR, segment, bit));
        problems.iter().any(|problem| problem.kind == "checksum" && says(&problem.text, FILE))
    };
    let told = (0..SEGMENT_BYTES / PLACE_BYTES).filter(|place| is_told((place * PLACE_BYTES + 100) * 8));
    assert_eq!(told.count(), 1);
}

/// Records of a slot are told apart from those of others without knowing what they say.
#[test]
fn a_record_among_those_of_another_slot_is_damage() {
    let small = Small::new();
    let (servers, shard) = (2, ShardId(0));
    let io = small.io.clone();
    for (slot, expected) in [(Some(SlotIndex(0)), None), (Some(SlotIndex(2)), Some("slot 2")), (None, Some("no slot"))]
    {
        let io = io.clone();
        let read = small.block(async move {
            let dir = io.open_dir(DIR).await.expect("a directory");
            let journal = Journal::begin(dir.clone(), true, 1, 0, Default::default()).await.expect("a journal");
            journal.append_parts(slot, &Step::Drop { shard, ino: Ino(9) }.to_bytes(), &[]);
            journal.reach(journal.end(), aze_store::disk::journal::Stage::Durable).await.expect("it can be written");
            let store = Store::new(Slab::new(MARGIN_BYTES).expect("memory"));
            let mut image = Image::empty(ServerIndex(0), servers, SHARDS * 2, &store).expect("an image");
            let read = read_for(&*dir, &mut image).await;
            dir.remove(&disk::log_name(1)).await.expect("it can be removed");
            read.map(drop).map_err(|error| error.to_string())
        });
        match expected {
            None => assert_eq!(read, Ok(())),
            Some(told) => {
                let why = read.expect_err("shard 0 is in slot 0");
                assert!(why.contains(&format!("a record of slot 0 among those of {told}")), "{why}");
            }
        }
    }
}

#[test]
fn a_damaged_checkpoint_is_found() {
    let small = Small::new();
    small.put(0, 1);
    assert!(small.sim.flip_disk_bit("s0", DIR, &disk::state_name(1), 100));
    let report = small.check(true).expect("it can be said what is wrong");
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert_eq!(report.problems[0].kind, "unreadable");
    assert!(report.notes.iter().any(|note| note.contains("nothing is repaired")), "{report:?}");
}

#[test]
fn what_is_not_whole_cannot_be_checked() {
    let small = Small::new();
    let none = small.check(false).unwrap_err();
    assert!(none.detail.contains("no part of a volume"), "{none}");
    let small = Small { steps: Vec::new(), ..small };
    small.put(1, 3);
    let missing = small.check(false).unwrap_err();
    assert!(missing.detail.contains("missing: 0, 2"), "{missing}");
}

#[test]
fn a_shard_that_is_restored_says_where_data_changed() {
    let slab = Slab::new(MARGIN_BYTES).expect("memory");
    let mut shard = ChunkShard::new(Store::new(slab));
    let bytes = vec![3; 9000];
    let mut sums = piece_sums(0, &bytes);
    sums[1] ^= 1;
    shard.restore(Ino(9), Generation(0), 0, 0, &bytes, &sums).expect("there is room");
    let found = shard.snapshot().dirty.iter().find_map(|dirty| rotten(&dirty.row(), dirty.data().1));
    assert_eq!(found, Some(BLOCK_BYTES as u64));
}
