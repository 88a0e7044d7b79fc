//! Files in a memory against a model, with every moment at which the power can go.

use super::format::{self, Layout, Superblock};
use super::*;
use crate::sim::{Faults, Sim, SimRng};
use std::collections::BTreeMap;

/// Small blocks, so that files have many.
const BITS: u32 = 12;
const BLOCK: u64 = 1 << BITS;

/// Room for 24 of them.
const BYTES: usize = 128 << 10;

/// Room for 12.
const FEW_BYTES: usize = 80 << 10;

#[derive(Clone)]
enum Event {
    Wrote(u64, Vec<u8>),
    Synced(u64, u64),
}

/// Memory that records writes and syncs.
#[derive(Default)]
struct Noted {
    now: Mutex<Vec<u8>>,
    events: Mutex<Vec<Event>>,
    /// How many syncs go well before all of them fail.
    syncs_left: Mutex<Option<u32>>,
}

impl Noted {
    fn of(bytes: Vec<u8>) -> Arc<Noted> {
        Arc::new(Noted { now: Mutex::new(bytes), ..Noted::default() })
    }

    fn new() -> Arc<Noted> {
        Noted::of(vec![0; BYTES])
    }
}

impl Memory for Noted {
    fn name(&self) -> &str {
        "memory"
    }

    fn bytes(&self) -> u64 {
        self.now.lock().len() as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.now.lock()[at as usize..at as usize + to.len()]);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.now.lock()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        self.events.lock().push(Event::Wrote(at, bytes.to_vec()));
    }

    fn zero(&self, at: u64, bytes: u64) {
        self.write(at, &vec![0; bytes as usize]);
    }

    fn sync(&self, at: u64, bytes: u64) -> DiskResult<()> {
        match &mut *self.syncs_left.lock() {
            Some(0) => return Err(DiskError::Failed("a sync failed".into())),
            Some(left) => *left -= 1,
            None => {}
        }
        self.events.lock().push(Event::Synced(at, bytes));
        Ok(())
    }

    fn prepare(&self) -> DiskResult<()> {
        Ok(())
    }

    fn first_data(&self, at: u64) -> DiskResult<Option<u64>> {
        let first = self.now.lock()[at as usize..].iter().position(|byte| *byte != 0);
        Ok(first.map(|first| at + first as u64))
    }
}

fn open(memory: &Arc<Noted>) -> DiskResult<Arc<Files>> {
    Files::open(memory.clone(), BITS)
}

/// What memory may hold while things are done with it.
struct Power {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Words with the values written to them since they were synced.
    pending: BTreeMap<usize, Vec<[u8; 8]>>,
}

impl Power {
    fn of(bytes: Vec<u8>) -> Power {
        Power { durable: bytes.clone(), now: bytes, pending: BTreeMap::new() }
    }

    fn word(bytes: &[u8], at: usize) -> [u8; 8] {
        bytes[at..at + 8].try_into().expect("eight bytes")
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Wrote(at, bytes) => {
                let (start, end) = (*at as usize, *at as usize + bytes.len());
                self.now[start..end].copy_from_slice(bytes);
                for word in (start / 8 * 8..end).step_by(8) {
                    self.pending.entry(word).or_default().push(Power::word(&self.now, word));
                }
            }
            Event::Synced(at, bytes) => {
                let (start, end) = (*at as usize / 8 * 8, (*at + bytes) as usize);
                let words: Vec<usize> = self.pending.range(start..end).map(|(word, _)| *word).collect();
                for word in words {
                    self.pending.remove(&word);
                    self.durable[word..word + 8].copy_from_slice(&self.now[word..word + 8]);
                }
            }
        }
    }

    /// The bytes there when the power comes back: with none, all or any of the unsynced writes.
    fn cut(&self, rng: &mut SimRng, fate: u64) -> Vec<u8> {
        let mut left = self.durable.clone();
        for (word, values) in &self.pending {
            let count = values.len() as u64;
            let kept = match fate {
                0 => 0,
                1 => count,
                2 => count * rng.below(2),
                _ if rng.chance(100_000) => 0,
                _ => rng.below(count + 1),
            };
            if kept > 0 {
                left[*word..*word + 8].copy_from_slice(&values[kept as usize - 1]);
            }
        }
        left
    }
}

#[derive(Clone, Default)]
struct ModelFile {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync.
    unsynced: Vec<(usize, Vec<u8>)>,
    is_log: bool,
}

impl ModelFile {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes.resize(self.bytes.len().max(offset + bytes.len()), 0);
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.unsynced.push((offset, bytes.to_vec()));
    }

    fn sync(&mut self) {
        self.durable = self.bytes.clone();
        self.unsynced.clear();
    }

    fn allows(&self, found: &[u8]) -> bool {
        let fits = if self.is_log { found.len() >= self.bytes.len() } else { found.len() == self.bytes.len() };
        let byte_fits = |(at, byte): (usize, &u8)| {
            let written = self.unsynced.iter().filter_map(|(offset, bytes)| bytes.get(at.checked_sub(*offset)?));
            self.durable.get(at).copied().unwrap_or(0) == *byte || written.into_iter().any(|new| new == byte)
        };
        fits && found.iter().enumerate().all(byte_fits)
    }
}

type Model = BTreeMap<String, ModelFile>;

fn allows(model: &Model, found: &BTreeMap<String, Vec<u8>>) -> bool {
    model.keys().eq(found.keys()) && model.iter().all(|(name, file)| file.allows(&found[name]))
}

fn read_all(files: &Files) -> BTreeMap<String, Vec<u8>> {
    let read = |name: String| {
        let node = files.open_file(&name).expect("it is listed");
        let bytes = files.read_at(&node, 0, usize::MAX >> 1);
        (name, bytes)
    };
    files.list().into_iter().map(read).collect()
}

/// A drawn thing to do, done to both; `false` if there was no room.
fn step(files: &Files, model: &mut Model, open: &mut BTreeMap<String, Arc<Node>>, rng: &mut SimRng) -> bool {
    let name = format!("file-{}", rng.below(4));
    let there = open.get(&name).cloned().filter(|_| model.contains_key(&name));
    let data = |rng: &mut SimRng, len: usize| (0..len).map(|_| rng.between(1, 255) as u8).collect::<Vec<u8>>();
    match (rng.below(8), there) {
        (0 | 1, _) | (_, None) => {
            let (bytes, is_log) = (rng.below(2) * rng.below(5 * BLOCK), rng.chance(500_000));
            let is_log = is_log && bytes == 0;
            match files.create(&name, bytes, is_log) {
                Ok(node) => drop(open.insert(name.clone(), node)),
                Err(error) => {
                    assert!(matches!(error, DiskError::Full(_)), "{error}");
                    return false;
                }
            }
            let zeros = vec![0; bytes as usize];
            model.insert(name, ModelFile { bytes: zeros.clone(), durable: zeros, is_log, ..ModelFile::default() });
        }
        (2 | 3, Some(node)) => {
            let len = rng.below(2 * BLOCK) as usize;
            let bytes = data(rng, len);
            if let Err(error) = files.append(&node, &bytes) {
                assert!(matches!(error, DiskError::Full(_)), "{error}");
                return false;
            }
            let file = model.get_mut(&name).expect("it is there");
            file.write(file.bytes.len(), &bytes);
        }
        (4, Some(node)) => {
            let file = model.get_mut(&name).expect("it is there");
            let offset = rng.below(file.bytes.len() as u64 + 1) as usize;
            let len = rng.below((file.bytes.len() - offset) as u64 + 1) as usize;
            let bytes = data(rng, len);
            files.write_at(&node, offset as u64, &bytes).expect("within its length");
            file.write(offset, &bytes);
        }
        (5, Some(node)) => {
            files.sync(&node).expect("a sync");
            model.get_mut(&name).expect("it is there").sync();
        }
        (6, Some(node)) => {
            let to = format!("file-{}", rng.below(4));
            files.rename(&name, &to).expect("it is there");
            let file = model.remove(&name).expect("it is there");
            open.remove(&name);
            model.insert(to.clone(), file);
            open.insert(to, node);
        }
        (_, Some(_)) => {
            files.remove(&name).expect("a removal");
            model.remove(&name);
            if rng.chance(500_000) {
                open.remove(&name);
            }
        }
    }
    true
}

/// After a power cut at any moment the files are as before or after the step under way, synced bytes are whole, and all
/// free room can be had and is zeros.
#[test]
fn whenever_the_power_goes_what_was_synced_is_there_and_the_rest_is_clean() {
    let (mut cuts, mut refused) = (0, 0);
    for seed in 0..40 {
        let mut rng = Sim::new(seed, Faults::default()).rng("files");
        let memory = Noted::of(vec![0; FEW_BYTES]);
        let files = open(&memory).unwrap();
        let (mut model, mut nodes) = (Model::new(), BTreeMap::new());
        let mut states = vec![(0, model.clone())];
        for _ in 0..25 {
            refused += u32::from(!step(&files, &mut model, &mut nodes, &mut rng));
            states.push((memory.events.lock().len(), model.clone()));
            let found = read_all(&files);
            let now = |(name, file): (&String, &ModelFile)| {
                found[name].starts_with(&file.bytes) && found[name][file.bytes.len()..].iter().all(|byte| *byte == 0)
            };
            assert!(model.keys().eq(found.keys()) && model.iter().all(now), "seed {seed}: the files of now");
        }
        let events = memory.events.lock().clone();
        let mut power = Power::of(vec![0; FEW_BYTES]);
        for done in 0..=events.len() {
            let before = states.iter().rposition(|(count, _)| *count <= done).expect("the first is at 0");
            for fate in 0..5 {
                let left = Noted::of(power.cut(&mut rng, fate));
                let opened = open(&left).unwrap_or_else(|error| panic!("seed {seed}, {done} events, {fate}: {error}"));
                let found = read_all(&opened);
                let fits = states[before..].iter().take(2).any(|(_, model)| allows(model, &found));
                assert!(fits, "seed {seed}, {done} events, {fate}: neither before nor after step {before}");
                let free = opened.free_bytes();
                let all = opened.create("all", free, false).expect("free room can be had");
                assert_eq!(opened.free_bytes(), 0);
                let is_clean = opened.read_at(&all, 0, free as usize).iter().all(|byte| *byte == 0);
                assert!(is_clean, "seed {seed}, {done} events, {fate}: new room has old bytes");
                drop((all, opened));
                assert_eq!(open(&left).expect("what was made is there").list().len(), found.len() + 1);
                cuts += 1;
            }
            if let Some(event) = events.get(done) {
                power.take(event);
            }
        }
    }
    assert!(cuts > 10_000 && refused > 20, "{cuts} cuts, {refused} times full");
}

/// The death of the process takes nothing.
#[test]
fn what_was_written_is_there_without_a_sync() {
    for seed in 0..200 {
        let mut rng = Sim::new(seed, Faults::default()).rng("files");
        let memory = Noted::new();
        let (mut model, mut nodes) = (Model::new(), BTreeMap::new());
        for _ in 0..4 {
            let files = open(&memory).unwrap();
            nodes.clear();
            model.values_mut().for_each(|file| file.is_log = false);
            for name in files.list() {
                nodes.insert(name.clone(), files.open_file(&name).expect("it is listed"));
            }
            for _ in 0..20 {
                step(&files, &mut model, &mut nodes, &mut rng);
            }
            drop((files, std::mem::take(&mut nodes)));
            let found = read_all(&open(&memory).unwrap());
            assert!(model.keys().eq(found.keys()), "seed {seed}");
            for (name, file) in &mut model {
                assert!(found[name].starts_with(&file.bytes), "seed {seed}: {name}");
                // The room of a log is its length from now on.
                file.bytes = found[name].clone();
            }
        }
    }
}

/// A memory with two files, and how long everything before the blocks is.
fn sample() -> (Vec<u8>, Superblock) {
    let memory = Noted::new();
    let files = open(&memory).unwrap();
    let log = files.create("log", 0, true).unwrap();
    files.append(&log, b"words").unwrap();
    files.create("data", 2 * BLOCK + 7, false).unwrap();
    let bytes = memory.now.lock().clone();
    let format::Copied::Whole(superblock) = format::look(&bytes) else { panic!("a superblock") };
    (bytes, superblock)
}

#[test]
fn a_flipped_bit_is_told_and_nothing_wrong_is_served() {
    let (bytes, superblock) = sample();
    let layout = Layout::of(BYTES as u64, BITS).unwrap();
    let right = read_all(&open(&Noted::of(bytes.clone())).unwrap());
    let table = layout.table_at(superblock.generation) as usize;
    let (mut told, mut served) = (0, 0);
    let places = (0..112).chain(4096..4096 + 112).chain(table..table + superblock.table_bytes as usize);
    for at in places {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            match open(&Noted::of(changed)) {
                Ok(files) => {
                    assert!(at < 8192 && files.remark().is_some(), "byte {at}, bit {bit}: not a word of it");
                    assert_eq!(read_all(&files), right, "byte {at}, bit {bit}");
                    served += 1;
                }
                Err(DiskError::Failed(why)) => {
                    assert!(at >= 8192 && why.contains("is damaged: its table of files"), "byte {at}: {why}");
                    told += 1;
                }
                Err(error) => panic!("byte {at}, bit {bit}: {error}"),
            }
        }
    }
    assert_eq!((served, told), (2 * 112 * 8, superblock.table_bytes * 8));
    let mut both = bytes.clone();
    (both[100], both[4096 + 100]) = (!both[100], !both[4096 + 100]);
    let error = open(&Noted::of(both)).err().unwrap();
    assert!(matches!(&error, DiskError::Failed(why) if why.contains("neither copy")), "{error}");
    let cut = Noted::of(bytes[..BYTES - 4096].to_vec());
    let error = open(&cut).err().unwrap();
    assert!(matches!(&error, DiskError::Failed(why) if why.contains("it was cut")), "{error}");
    // A memory that was made longer keeps its files.
    let mut longer = bytes;
    longer.resize(2 * BYTES, 1);
    assert_eq!(read_all(&open(&Noted::of(longer)).unwrap()), right);
}

#[test]
fn what_is_not_ours_is_not_touched() {
    for at in [0, 100, 4095, 4096, 9000, BYTES - 1] {
        let mut bytes = vec![0; BYTES];
        bytes[at] = 1;
        let memory = Noted::of(bytes);
        let error = open(&memory).err().expect("it has other content");
        let text = format!("other content, at byte {at}");
        assert!(matches!(&error, DiskError::Unfit(why) if why.contains(&text)), "{error}");
        assert!(memory.events.lock().is_empty());
    }
    let memory = Noted::new();
    open(&memory).unwrap();
    assert!(memory.events.lock().is_empty(), "to look changes nothing");
    let error = Files::open(Noted::of(vec![0; 40 << 10]), BITS).err().expect("no room");
    assert!(matches!(&error, DiskError::Unfit(why) if why.contains("too small")), "{error}");
}

#[test]
fn another_format_is_refused() {
    let (mut bytes, _) = sample();
    for copy in [0, 4096] {
        bytes[copy + 64] = FORMAT as u8 + 1;
    }
    let error = open(&Noted::of(bytes)).err().expect("another format");
    assert!(matches!(&error, DiskError::Unfit(why) if why.contains("memory is in format 2")), "{error}");
}

#[test]
fn after_a_failed_sync_nothing_changes_any_more() {
    for good in 0..12 {
        let memory = Noted::new();
        let files = open(&memory).unwrap();
        let node = files.create("a", BLOCK, false).unwrap();
        *memory.syncs_left.lock() = Some(good);
        let failed = (0..12).find_map(|number| files.create(&format!("b{number}"), 0, false).err());
        assert!(matches!(failed, Some(DiskError::Failed(_))), "{failed:?}");
        *memory.syncs_left.lock() = None;
        let events = memory.events.lock().len();
        assert!(files.create("c", BLOCK, false).is_err() && files.remove("a").is_err());
        assert!(files.rename("a", "d").is_err() && files.append(&node, b"more").is_err());
        assert_eq!(memory.events.lock().len(), events, "nothing is written");
    }
    let memory = Noted::new();
    let files = open(&memory).unwrap();
    let node = files.create("a", BLOCK, false).unwrap();
    files.write_at(&node, 0, b"bytes").unwrap();
    *memory.syncs_left.lock() = Some(0);
    assert!(files.sync(&node).is_err());
    *memory.syncs_left.lock() = None;
    assert!(files.sync(&node).is_err(), "what failed is not made good");
}

#[test]
fn a_full_memory_says_so_and_goes_on() {
    let memory = Noted::new();
    let files = open(&memory).unwrap();
    let free = files.free_bytes();
    let full = files.create("a", free + 1, false).err();
    assert!(matches!(&full, Some(DiskError::Full(why)) if why.contains("no room for a")), "{full:?}");
    let a = files.create("a", free, false).unwrap();
    let b = files.create("b", 0, true).unwrap();
    assert!(matches!(files.append(&b, b"x"), Err(DiskError::Full(_))));
    files.remove("a").unwrap();
    assert_eq!(files.free_bytes(), 0, "whoever has it open reads on");
    drop(a);
    assert_eq!(files.free_bytes(), free);
    files.append(&b, b"x").unwrap();
    // Many names with a few blocks.
    let mut names = 0;
    while files.create(&format!("{names:0200}"), 0, false).is_ok() {
        names += 1;
    }
    assert!(names > 20, "{names}");
    let full = files.create("c", 0, false).err();
    assert!(files.create(&"n".repeat(250), 0, false).is_err());
    assert!(full.is_none() || matches!(full, Some(DiskError::Full(_))), "{full:?}");
    drop((files, b));
    assert_eq!(open(&memory).unwrap().list().iter().filter(|name| name.starts_with("00")).count(), names);
}

#[test]
fn it_looks_like_this() {
    let (bytes, superblock) = sample();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(bytes.starts_with(b"Azekura: one server's part of a volume, in one file\n"));
    assert_eq!(bytes[..4096], bytes[4096..8192]);
    assert_eq!(hex(&bytes[64..112]), SUPERBLOCK);
    let table = Layout::of(BYTES as u64, BITS).unwrap().table_at(superblock.generation) as usize;
    assert_eq!(hex(&bytes[table..table + superblock.table_bytes as usize]), TABLE);
    let again = open(&Noted::of(bytes)).unwrap();
    assert_eq!(again.list(), ["data", "log"]);
}

/// Format 1, blocks of 4 KiB, 128 KiB in all, the third table.
const SUPERBLOCK: &str = "010000000c00000000000200000000000300000000000000\
                          43000000000000001a19d744f797a9c5469c8586c12bf74b";

/// Four blocks used; `data` has 8,199 bytes in three of them, `log` the first.
const TABLE: &str = "0400000000000000020000000000000004006461746107200000000000000100000001000000030000\
                     0003006c6f670010000000000000010000000000000001000000";
