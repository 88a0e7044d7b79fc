//! The journal and checkpoints within a mapped file, whose power is cut at any store or sync: all durable
//! records are there, and the records there are a prefix of those written.

use aze_io::disk::{Dir, DiskResult};
use aze_io::mapped::{self, Files, Hands, Memory, Work};
use aze_io::sim::{Faults, Sim, SimRng};
use aze_io::sync::Mutex;
use aze_io::{Io, Task};
use aze_store::disk::checkpoint::Writer;
use aze_store::disk::journal::{Journal, Stage};
use aze_store::disk::recover::read_all;
use aze_store::disk::remove_older;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NODE: &str = "s0";
const BYTES: usize = 4 << 20;
const BLOCK_BITS: u32 = 12;

/// Numbers of records that are known to be written, and durable.
type Acknowledged = Arc<Mutex<(u64, u64)>>;

/// Memory that keeps the bytes of one moment: those that a power cut leaves then, or the death of the process.
struct Cut(Mutex<State>, Acknowledged);

struct State {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Words with the values written to them since they were synced.
    pending: BTreeMap<usize, Vec<[u8; 8]>>,
    /// Stores and syncs until the moment.
    left: u64,
    is_power_cut: bool,
    kept: Option<(Vec<u8>, u64)>,
    rng: SimRng,
}

impl Cut {
    fn new(bytes: Vec<u8>, left: u64, is_power_cut: bool, rng: SimRng, acknowledged: &Acknowledged) -> Arc<Cut> {
        let durable = bytes.clone();
        let state = State { now: bytes, durable, pending: BTreeMap::new(), left, is_power_cut, kept: None, rng };
        Arc::new(Cut(Mutex::new(state), acknowledged.clone()))
    }

    fn count(&self, state: &mut State) {
        if state.left > 0 {
            state.left -= 1;
        } else if state.kept.is_none() {
            let (written, durable) = *self.1.lock();
            let promised = if state.is_power_cut { durable } else { written.max(durable) };
            let mut bytes = if state.is_power_cut { state.durable.clone() } else { state.now.clone() };
            for (word, values) in state.pending.iter().filter(|_| state.is_power_cut) {
                let kept = state.rng.below(values.len() as u64 + 1) as usize;
                if kept > 0 {
                    bytes[*word..*word + 8].copy_from_slice(&values[kept - 1]);
                }
            }
            state.kept = Some((bytes, promised));
        }
    }
}

impl Memory for Cut {
    fn name(&self) -> &str {
        "memory"
    }

    fn bytes(&self) -> u64 {
        BYTES as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.0.lock().now[at as usize..at as usize + to.len()]);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let mut state = self.0.lock();
        let State { now, pending, .. } = &mut *state;
        let (start, end) = (at as usize, at as usize + bytes.len());
        now[start..end].copy_from_slice(bytes);
        for word in (start / 8 * 8..end).step_by(8) {
            pending.entry(word).or_default().push(now[word..word + 8].try_into().expect("eight bytes"));
        }
        self.count(&mut state);
    }

    fn zero(&self, at: u64, bytes: u64) {
        self.write(at, &vec![0; bytes as usize]);
    }

    fn sync(&self, at: u64, bytes: u64) -> DiskResult<()> {
        let mut state = self.0.lock();
        let State { now, durable, pending, .. } = &mut *state;
        let words = at as usize / 8 * 8..(at + bytes) as usize;
        pending.retain(|word, _| {
            let is_synced = words.contains(word);
            if is_synced {
                durable[*word..*word + 8].copy_from_slice(&now[*word..*word + 8]);
            }
            !is_synced
        });
        self.count(&mut state);
        Ok(())
    }

    fn prepare(&self) -> DiskResult<()> {
        Ok(())
    }

    fn first_data(&self, at: u64) -> DiskResult<Option<u64>> {
        let first = self.0.lock().now[at as usize..].iter().position(|byte| *byte != 0);
        Ok(first.map(|first| at + first as u64))
    }
}

struct AtOnce(Io);

impl Hands for AtOnce {
    fn work(&self, _: Work, job: Box<dyn FnOnce() + Send>) {
        job();
    }

    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }
}

fn open(sim: &Sim, memory: Arc<Cut>) -> Arc<dyn Dir> {
    let files = Files::open(memory, BLOCK_BITS).unwrap_or_else(|error| panic!("seed {}: {error}", sim.seed()));
    mapped::open_dir(files, Arc::new(AtOnce(sim.node(NODE))), "a test's")
}

fn payload_of(number: u64) -> Vec<u8> {
    vec![number as u8 | 1; (number * 37 % 3000) as usize]
}

async fn write_for_ever(io: Io, dir: Arc<dyn Dir>, mut rng: SimRng, acknowledged: Acknowledged) {
    let journal = Journal::begin(dir.clone(), true, 1, 0, Default::default()).await.unwrap();
    let mut number = 0u64;
    loop {
        for _ in 0..rng.between(1, 5) {
            journal.append(&number.to_le_bytes(), &payload_of(number));
            number += 1;
        }
        let end = journal.end();
        match rng.below(8) {
            0 => {
                journal.reach(end, Stage::Durable).await.unwrap();
                acknowledged.lock().1 = number;
            }
            1 if number < 300 => {
                let (next, position) = journal.rotate().await.unwrap();
                let mut writer = Writer::begin(dir.clone(), next, position, 0).await.unwrap();
                for number in 0..number {
                    writer.add(&number.to_le_bytes(), &payload_of(number)).await.unwrap();
                }
                writer.finish().await.unwrap();
                acknowledged.lock().1 = number;
                remove_older(&*dir, next).await.unwrap();
            }
            _ => {
                journal.reach(end, Stage::Written).await.unwrap();
                acknowledged.lock().0 = number;
            }
        }
        io.sleep(Duration::from_micros(1)).await;
    }
}

fn run(seed: u64, is_power_cut: bool) {
    let sim = Sim::new(seed, Faults::default());
    let (acknowledged, mut rng) = (Acknowledged::default(), sim.rng("cut"));
    let memory = Cut::new(vec![0; BYTES], rng.below(400), is_power_cut, sim.rng("words"), &acknowledged);
    let writer = write_for_ever(sim.node(NODE), open(&sim, memory.clone()), sim.rng("writer"), acknowledged.clone());
    sim.node(NODE).spawn(writer);
    let (bytes, promised) = sim.block_on(async {
        loop {
            sim.sleep(Duration::from_micros(1)).await;
            if let Some(kept) = memory.0.lock().kept.take() {
                return kept;
            }
        }
    });
    sim.kill(NODE);
    let left = Cut::new(bytes, u64::MAX, false, sim.rng("none"), &acknowledged);
    let mut numbers = Vec::new();
    let found = sim.block_on(async {
        let dir = open(&sim, left);
        read_all(&*dir, |record| {
            let number = u64::from_le_bytes(record.head.try_into().expect("heads have eight bytes"));
            if record.is_sound {
                assert_eq!(record.payload, payload_of(number));
            }
            numbers.push(number);
            Ok(())
        })
        .await
    });
    let found = found.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(found.rotten, 0, "seed {seed}");
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "seed {seed}: not a beginning: {numbers:?}");
    assert!(numbers.len() as u64 >= promised, "seed {seed}: {} records, {promised} were promised", numbers.len());
    sim.shutdown();
}

#[test]
fn a_power_cut_at_any_store_leaves_a_beginning_with_all_that_was_durable() {
    (0..300).for_each(|seed| run(seed, true));
}

#[test]
fn the_death_of_the_process_at_any_store_leaves_all_that_was_written() {
    (0..100).for_each(|seed| run(seed, false));
}
