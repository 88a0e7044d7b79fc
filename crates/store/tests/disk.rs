//! The journal on a simulated disk whose power is cut at any moment: all durable records are there,
//! and the records there are a prefix of those written.

use aze_io::disk::{Dir, DiskError};
use aze_io::logical::LogicalClock;
use aze_io::sim::{DiskFault, Faults, Sim};
use aze_io::sync::Mutex;
use aze_proto::SlotIndex;
use aze_store::disk::checkpoint::Writer;
use aze_store::disk::journal::{Journal, Stage};
use aze_store::disk::manifest::Manifest;
use aze_store::disk::record::HEADER_BYTES;
use aze_store::disk::recover::{Found, Record, read_all};
use aze_store::disk::slots::SlotLogs;
use aze_store::disk::{log_name, remove_older, state_name};
use std::sync::Arc;
use std::time::Duration;

const NODE: &str = "s0";
const DIR: &str = "/disk";

fn head_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn payload_of(number: u64) -> Vec<u8> {
    vec![number as u8; (number * 37 % 3000) as usize]
}

fn number_of(head: &[u8]) -> u64 {
    u64::from_le_bytes(head.try_into().expect("heads of these tests have eight bytes"))
}

async fn open(sim: &Sim) -> Arc<dyn Dir> {
    sim.node(NODE).open_dir(DIR).await.expect("a simulated directory opens")
}

/// The numbers of the records there are, in order.
async fn numbers(sim: &Sim) -> Result<(Vec<u64>, Found), DiskError> {
    let dir = open(sim).await;
    let mut numbers = Vec::new();
    let found = read_all(&*dir, |record| {
        let number = number_of(record.head);
        if record.is_sound {
            assert_eq!(record.payload, payload_of(number));
        }
        numbers.push(number);
        Ok(())
    })
    .await?;
    Ok((numbers, found))
}

/// Adds records from 0 on, syncing now and then, until killed. `told` is the number of records that
/// are known to be written, and durable.
async fn write_for_ever(sim: Sim, told: Arc<Mutex<(u64, u64)>>, syncs: bool) {
    let io = sim.node(NODE);
    let dir = io.open_dir(DIR).await.unwrap();
    let journal = Journal::begin(dir.clone(), syncs, 1, 0, Default::default()).await.unwrap();
    let mut rng = sim.rng("writer");
    let mut number = 0;
    loop {
        for _ in 0..rng.between(1, 5) {
            journal.append(&head_of(number), &payload_of(number));
            number += 1;
        }
        let end = journal.end();
        match rng.below(8) {
            0 => {
                journal.reach(end, Stage::Durable).await.unwrap();
                told.lock().1 = number;
            }
            1 if rng.chance(200_000) => {
                let (next, position) = journal.rotate().await.unwrap();
                let mut writer = Writer::begin(dir.clone(), next, position, 0).await.unwrap();
                for number in 0..number {
                    writer.add(&head_of(number), &payload_of(number)).await.unwrap();
                }
                writer.finish().await.unwrap();
                told.lock().1 = number;
                remove_older(&*dir, next).await.unwrap();
            }
            _ => {
                journal.reach(end, Stage::Written).await.unwrap();
                told.lock().0 = number;
            }
        }
    }
}

fn run(seed: u64, power_cut: bool, syncs: bool) {
    let sim = Sim::new(seed, Faults::default());
    let told = Arc::new(Mutex::new((0, 0)));
    sim.node(NODE).spawn(write_for_ever(sim.clone(), told.clone(), syncs));
    let after = Duration::from_micros(sim.rng("when").between(100, 60_000));
    let numbers = sim.block_on(async {
        sim.sleep(after).await;
        if power_cut {
            sim.kill_silently(NODE)
        } else {
            sim.kill(NODE)
        }
        numbers(&sim).await
    });
    let (numbers, found) = numbers.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!(found.rotten, 0, "seed {seed}");
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "seed {seed}: not a beginning: {numbers:?}");
    let (written, durable) = *told.lock();
    let least = if power_cut { durable } else { written.max(durable) };
    assert!(numbers.len() as u64 >= least, "seed {seed}: {} records, and {least} were promised", numbers.len());
    sim.shutdown();
}

#[test]
fn a_power_cut_leaves_a_beginning_with_all_that_was_durable() {
    (0..400).for_each(|seed| run(seed, true, true));
}

#[test]
fn the_death_of_the_process_leaves_all_that_was_written() {
    (0..200).for_each(|seed| run(seed, false, seed % 2 == 0));
}

/// Every place at which the file can end.
#[test]
fn a_journal_cut_at_any_byte_is_a_beginning() {
    let sim = Sim::new(3, Faults::default());
    sim.block_on(async {
        let dir = open(&sim).await;
        let journal = Journal::begin(dir.clone(), true, 1, 0, Default::default()).await.unwrap();
        let mut ends = Vec::new();
        for number in 0..6 {
            journal.append(&head_of(number), &payload_of(number % 3));
            ends.push(journal.end());
        }
        journal.reach(journal.end(), Stage::Durable).await.unwrap();
        let file = dir.open(&log_name(1)).await.unwrap();
        let bytes = file.read_at(0, file.size().await.unwrap() as usize).await.unwrap();
        for length in 0..=bytes.len() {
            let file = dir.create(&log_name(1)).await.unwrap();
            file.append(bytes[..length].to_vec()).await.unwrap();
            let mut count = 0;
            let found = read_all(&*dir, |_| {
                count += 1;
                Ok(())
            });
            let found = found.await.unwrap_or_else(|error| panic!("cut at {length}: {error}"));
            let whole = ends.iter().filter(|end| **end <= length as u64).count();
            assert_eq!(count, whole, "cut at {length}");
            let rest = &bytes[if whole == 0 { 0 } else { ends[whole - 1] as usize }..length];
            // Zeros at the end may be room that was set aside.
            let torn = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
            assert_eq!(found.torn_bytes, torn, "cut at {length}");
        }
    });
}

/// The clock gives each record a later time, also after it has heard of a later one, and a start finds the last one. A
/// journal in which a record is not later than the one before is damaged.
#[test]
fn records_are_in_the_order_of_their_logical_time() {
    let sim = Sim::new(5, Faults::default());
    sim.block_on(async {
        let dir = open(&sim).await;
        let clock = Arc::new(LogicalClock::default());
        let journal = Journal::begin(dir.clone(), true, 1, 0, clock.clone()).await.unwrap();
        journal.append(&head_of(0), &[]);
        clock.witness(1000);
        journal.append(&head_of(1), &[]);
        journal.reach(journal.end(), Stage::Durable).await.unwrap();
        let found = read_all(&*dir, |_| Ok(())).await.unwrap();
        assert_eq!((found.records, found.order, clock.now()), (2, 1001, 1001));
        // A start that does not know of the times before.
        let again = Journal::begin(dir.clone(), true, 2, journal.end(), Default::default()).await.unwrap();
        again.append(&head_of(2), &[]);
        again.reach(again.end(), Stage::Durable).await.unwrap();
        let why = read_all(&*dir, |_| Ok(())).await.unwrap_err().to_string();
        assert!(why.contains("logical time 1 after one of 1001"), "{why}");
    });
}

/// Slots share a journal, and each has a log of its own, which goes on over checkpoints and starts. One whose records do not
/// follow each other is damaged.
#[test]
fn logs_of_slots_go_on_over_checkpoints_and_starts() {
    let sim = Sim::new(6, Faults::default());
    sim.block_on(async {
        let dir = open(&sim).await;
        let clock = Arc::new(LogicalClock::default());
        let journal = Journal::begin(dir.clone(), true, 1, 0, clock.clone()).await.unwrap();
        let add = |journal: &Arc<Journal>, slots: &[u32]| {
            for slot in slots {
                journal.append_parts(Some(SlotIndex(*slot)), &head_of(0), &[]);
            }
        };
        let serials = |slots: &SlotLogs| [0, 1, 2].map(|slot| slots.get(SlotIndex(slot)).serial);
        add(&journal, &[0, 2, 2]);
        journal.append(&head_of(0), &[]);
        journal.reach(journal.end(), Stage::Durable).await.unwrap();
        assert_eq!(serials(&read_all(&*dir, |_| Ok(())).await.unwrap().slots), [1, 0, 2]);
        // A checkpoint, and records after it.
        let (number, position) = journal.rotate().await.unwrap();
        add(&journal, &[2, 0]);
        let writer = Writer::begin(dir.clone(), number, position, clock.now()).await.unwrap();
        let mut writer = writer.with_slots(journal.slots_before());
        writer.add_of(Some(SlotIndex(1)), &head_of(0), &[]).await.unwrap();
        writer.finish().await.unwrap();
        journal.reach(journal.end(), Stage::Durable).await.unwrap();
        remove_older(&*dir, number).await.unwrap();
        let mut of = Vec::new();
        let each = |record: &Record<'_>| {
            of.push((record.in_checkpoint, record.slot.map(|slot| slot.0)));
            Ok(())
        };
        let found = read_all(&*dir, each).await.unwrap();
        assert_eq!(of, [(true, Some(1)), (false, Some(2)), (false, Some(0))]);
        assert_eq!(serials(&found.slots), [2, 0, 3]);
        // A start that does not know how far the logs had come.
        let again = Journal::begin(dir.clone(), true, found.next, found.position, clock).await.unwrap();
        add(&again, &[2]);
        again.reach(again.end(), Stage::Durable).await.unwrap();
        let why = read_all(&*dir, |_| Ok(())).await.unwrap_err().to_string();
        assert!(why.contains("record 1 of slot 2 where record 4 is due"), "{why}");
        // One that does.
        dir.remove(&log_name(found.next)).await.unwrap();
        let clock = LogicalClock::default();
        clock.witness(found.order);
        let again = Journal::begin(dir.clone(), true, found.next, found.position, Arc::new(clock)).await.unwrap();
        again.resume(found.slots);
        add(&again, &[2, 1]);
        again.reach(again.end(), Stage::Durable).await.unwrap();
        assert_eq!(serials(&read_all(&*dir, |_| Ok(())).await.unwrap().slots), [2, 1, 4]);
    });
}

async fn durable_journal(sim: &Sim, records: u64) -> Vec<u64> {
    let journal = Journal::begin(open(sim).await, true, 1, 0, Default::default()).await.unwrap();
    let mut begins = Vec::new();
    for number in 0..records {
        begins.push(journal.append(&head_of(number), &payload_of(number)));
        journal.reach(journal.end(), Stage::Durable).await.unwrap();
    }
    begins
}

#[test]
fn damage_before_something_durable_is_refused_and_rotten_data_are_told() {
    let sim = Sim::new(4, Faults::default());
    sim.block_on(async {
        let begins = durable_journal(&sim, 8).await;
        // In the data of record 3.
        let bit = (begins[3] + HEADER_BYTES as u64 + 8 + 5) * 8;
        assert!(sim.flip_disk_bit(NODE, DIR, &log_name(1), bit));
        let (all, found) = numbers(&sim).await.unwrap();
        assert_eq!((all.len(), found.rotten), (8, 1));
        // In its head.
        assert!(sim.flip_disk_bit(NODE, DIR, &log_name(1), (begins[3] + HEADER_BYTES as u64 + 1) * 8));
        let why = numbers(&sim).await.unwrap_err().to_string();
        assert!(why.contains("damaged at byte"), "{why}");
    });
}

/// The last records have nothing behind them that would say that they were durable, but the end mark.
#[test]
fn damage_in_a_journal_that_came_to_a_clean_end_is_never_taken_for_a_torn_end() {
    for syncs in [true, false] {
        let sim = Sim::new(7, Faults::default());
        sim.block_on(async {
            let journal = Journal::begin(open(&sim).await, syncs, 1, 0, Default::default()).await.unwrap();
            let begins: Vec<u64> = (0..6).map(|number| journal.append(&head_of(number), &payload_of(number))).collect();
            let end = journal.end();
            journal.finish().await.unwrap();
            sim.kill_silently(NODE);
            let (all, found) = numbers(&sim).await.unwrap();
            assert_eq!((all.len(), found.records, found.torn_bytes, found.rotten), (6, 6, 0, 0));
            assert!(found.position > end, "the next journal goes on behind the mark");
            let flip = |bit| assert!(sim.flip_disk_bit(NODE, DIR, &log_name(1), bit));
            for bit in 0..end * 8 {
                flip(bit);
                let is_told = numbers(&sim).await.map_or(true, |(all, found)| (all.len(), found.rotten) == (6, 1));
                assert!(is_told, "bit {bit}, where records begin at {begins:?}");
                flip(bit);
            }
            // Of the mark nothing is lost but the mark.
            flip(end * 8);
            let (all, found) = numbers(&sim).await.unwrap();
            assert_eq!((all.len(), found.rotten), (6, 0));
            assert!(found.torn_bytes > 0);
        });
    }
}

/// A journal in several files that no caller ever syncs: a clean end makes all of them durable.
#[test]
fn a_clean_end_makes_durable_what_nobody_synced() {
    for seed in 0..60 {
        let sim = Sim::new(seed, Faults::default());
        sim.block_on(async {
            let journal = Journal::begin(open(&sim).await, false, 1, 0, Default::default()).await.unwrap();
            for number in 0..12 {
                journal.append(&head_of(number), &payload_of(number));
                if number % 4 == 3 {
                    journal.rotate().await.unwrap();
                }
            }
            journal.finish().await.unwrap();
            sim.kill_silently(NODE);
            let (all, _) = numbers(&sim).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(all.iter().copied().eq(0..12), "seed {seed}: {all:?}");
        });
    }
}

#[test]
fn after_an_error_nothing_more_is_promised() {
    let sim = Sim::new(5, Faults::default());
    sim.block_on(async {
        let journal = Journal::begin(open(&sim).await, true, 1, 0, Default::default()).await.unwrap();
        journal.append(&head_of(0), &[]);
        journal.reach(journal.end(), Stage::Durable).await.unwrap();
        sim.set_disk_fault(NODE, DiskFault::Full);
        journal.append(&head_of(1), &[]);
        assert!(journal.reach(journal.end(), Stage::Written).await.is_err());
        sim.set_disk_fault(NODE, DiskFault::None);
        journal.append(&head_of(2), &[]);
        assert!(journal.reach(journal.end(), Stage::Written).await.is_err());
        assert_eq!(numbers(&sim).await.unwrap().0, [0]);
    });
}

#[test]
fn a_manifest_survives() {
    let sim = Sim::new(6, Faults::default());
    sim.block_on(async {
        let dir = open(&sim).await;
        assert_eq!(Manifest::read(&*dir).await, Ok(None));
        let manifest = Manifest {
            volume: 7,
            server: 1,
            servers: 3,
            shards: 256,
            slots: 32,
            chunk_bits: 16,
            owner_uid: 5,
            directory: 0,
            directories: 1,
        };
        manifest.write(&*dir).await.unwrap();
        sim.kill_silently(NODE);
        assert_eq!(Manifest::read(&*open(&sim).await).await, Ok(Some(manifest)));
    });
}

async fn contents(dir: &dyn Dir, name: &str) -> Vec<u8> {
    let file = dir.open(name).await.unwrap();
    file.read_at(0, file.size().await.unwrap() as usize).await.unwrap()
}

/// A copy of a journal, kept as a file on a volume, puts its records into the data of other records. Where
/// no record before them was sound they were taken for later records, and a start was refused.
#[test]
fn copies_of_records_in_the_data_of_a_torn_first_record_say_nothing() {
    const FAR: u64 = 1 << 40;
    let sim = Sim::new(8, Faults::default());
    sim.block_on(async {
        let dir = open(&sim).await;
        Writer::begin(dir.clone(), 1, FAR, 0).await.unwrap().finish().await.unwrap();
        let journal = Journal::begin(dir.clone(), true, 1, FAR, Default::default()).await.unwrap();
        for number in 0..8 {
            journal.append(&head_of(number), &payload_of(number));
            journal.reach(journal.end(), Stage::Durable).await.unwrap();
        }
        let (end, copy) = (journal.end(), contents(&*dir, &log_name(1)).await);
        assert_eq!(numbers(&sim).await.unwrap().1.position, end);
        Writer::begin(dir.clone(), 2, end, 0).await.unwrap().finish().await.unwrap();
        let journal = Journal::begin(dir.clone(), true, 2, end, Default::default()).await.unwrap();
        journal.append(&head_of(8), &copy);
        journal.append(&head_of(9), &[]);
        journal.reach(journal.end(), Stage::Written).await.unwrap();
        // Its first bytes have not got to the disk.
        let mut torn = contents(&*dir, &log_name(2)).await;
        torn[..40].fill(0);
        dir.create(&log_name(2)).await.unwrap().append(torn).await.unwrap();
        let (all, found) = numbers(&sim).await.unwrap_or_else(|error| panic!("{error}"));
        assert!(all.is_empty() && found.torn_bytes > 0 && found.position == end, "{found:?}");
    });
}

/// A change of these bytes is another format: see `manifest::FORMAT`.
#[test]
fn checkpoints_and_journals_end_like_this() {
    let sim = Sim::new(9, Faults::default());
    sim.block_on(async {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let dir = open(&sim).await;
        Writer::begin(dir.clone(), 1, 0x1122, 0).await.unwrap().finish().await.unwrap();
        assert_eq!(hex(&contents(&*dir, &state_name(1)).await), CHECKPOINT);
        let journal = Journal::begin(dir.clone(), true, 1, 0x1122, Default::default()).await.unwrap();
        journal.finish().await.unwrap();
        assert_eq!(hex(&contents(&*dir, &log_name(1)).await[..HEADER_BYTES]), JOURNAL);
    });
}

const CHECKPOINT: &str = concat!(
    "415a5233030000000c000000225dc1afb3e731b1",
    "000000000000000000000000000000000000000000000000",
    "ffffffff0000000000000000000000000620833e",
    "656e64221100000000000000000000",
);
const JOURNAL: &str = concat!(
    "415a523300000000000000000000000000000000",
    "221100000000000022110000000000000100000000000000",
    "ffffffff0000000000000000000000003ef8663a",
);
