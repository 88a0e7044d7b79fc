//! Large writes, which servers receive straight into their memory for data: while payloads stop in the middle,
//! connections are lost there, memory is full, and clients stall.

use crate::support::{ROOT, name, opened_file, with_layout};
use aze_client::{Client, File};
use aze_io::sim::{Faults, SlowPayloads};
use aze_proto::{Code, Ino};
use aze_sim::Cluster;
use aze_sim::bytes::data_of;
use aze_sim::cluster::Layout;
use std::sync::Arc;
use std::time::Duration;

const CHUNK_BITS: u8 = 19;
const CHUNK: u64 = 1 << CHUNK_BITS;
const UNIT: u64 = 64 << 10;

/// One server with so much memory for data.
fn layout(memory_bytes: u64) -> Layout {
    Layout { memory_bytes, ..Layout::of(1) }
}

async fn create(client: &Client, text: &str) -> Arc<File> {
    let new = aze_client::NewFile { chunk_bits: CHUNK_BITS, ..opened_file() };
    let made = client.create(&ROOT, Ino::ROOT, &name(text), &new).await.expect("a new name can be made");
    made.file.expect("an open was asked for")
}

fn used(cluster: &Cluster) -> u64 {
    cluster.servers().iter().map(|server| server.status().used_bytes).sum()
}

fn slow(pause_ppm: u32, pause_ms_max: u64) -> Option<SlowPayloads> {
    Some(SlowPayloads { pause_ppm, pause_ns_max: pause_ms_max * 1_000_000 })
}

#[test]
fn whatever_happens_to_a_payload_its_bytes_are_written_once_and_whole() {
    with_layout(layout(16 << 20), |cluster, client| async move {
        let sim = &cluster.sim;
        sim.set_slow_payloads(slow(400_000, 50));
        let mut rng = sim.rng("large");
        let file = create(&client, "f").await;
        let mut model = vec![0; 3 * CHUNK as usize];
        file.write(0, &model).await.expect("there is room");
        sim.set_faults(Faults {
            connection_cut_ppm: 20_000,
            flip_ppm: 20_000,
            duplicate_ppm: 100_000,
            ..Faults::default()
        });
        for step in 0..200 {
            let unit = if rng.chance(500_000) { UNIT } else { 1 };
            let offset = rng.below(2 * CHUNK) / unit * unit;
            let len = rng.between(UNIT, 3 * CHUNK - offset);
            let data = data_of(step, step.into(), len as usize);
            file.write(offset, &data).await.expect("a write of an open file");
            model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
            let read = file.read(0, model.len()).await.expect("a read of an open file");
            assert!(read == model, "step {step}: {len} bytes at {offset}");
        }
        let counters = sim.counters();
        assert!(counters.payloads_in_frames > 300 && counters.payloads_paused > 100, "{counters:?}");
        assert!(counters.connections_cut > 5 && counters.frames_flipped > 10, "{counters:?}");
        sim.set_faults(Faults::default());
        client.unlink(&ROOT, Ino::ROOT, &name("f")).await.expect("it exists");
        drop(file);
        sim.sleep(Duration::from_secs(30)).await;
        assert_eq!(used(&cluster), 0, "frames of payloads that were lost or came twice were given back");
    });
}

#[test]
fn a_full_memory_is_overwritten_and_refuses_no_more_than_it_has_to() {
    with_layout(layout(2 << 20), |cluster, client| async move {
        cluster.sim.set_slow_payloads(slow(500_000, 10));
        let file = create(&client, "f").await;
        let mut model = Vec::new();
        for unit in 0..30 {
            let data = data_of(unit + 1, u64::from(unit) * UNIT, UNIT as usize);
            file.write(u64::from(unit) * UNIT, &data).await.expect("there is room");
            model.extend_from_slice(&data);
        }
        // All memory but what lists of small frames may keep.
        assert_eq!(used(&cluster), 30 * UNIT);
        let mut rng = cluster.sim.rng("full");
        for step in 100..160 {
            let unit = if rng.chance(500_000) { UNIT } else { 1 };
            let offset = rng.below(20 * UNIT) / unit * unit;
            let len = rng.between(UNIT, 30 * UNIT - offset);
            let data = data_of(step, offset, len as usize);
            file.write(offset, &data).await.expect("what is there already is overwritten");
            model[offset as usize..(offset + len) as usize].copy_from_slice(&data);
            assert!(file.read(0, model.len()).await.expect("readable") == model, "step {step}");
        }
        let failure = file.write(30 * UNIT, &vec![1; 3 * UNIT as usize]).await.expect_err("too much");
        assert_eq!(failure.code, Code::NoSpace);
        file.write(30 * UNIT, &vec![1; 2 * UNIT as usize]).await.expect("the last two units");
        assert_eq!(used(&cluster), 2 << 20);
    });
}

/// A client that stops in the middle of a payload keeps no other from the last byte of memory.
#[test]
fn clients_that_stall_hold_nothing_that_another_one_needs() {
    with_layout(layout(4 << 20), |cluster, client| async move {
        let file = create(&client, "f").await;
        let mut stalled = Vec::new();
        // Each is silent for longer than it takes the others.
        cluster.sim.set_slow_payloads(slow(1_000_000, 1_000_000));
        for index in 1..4 {
            let other = cluster.connect(index).await.expect("another client connects");
            let held = create(&other, &format!("g{index}")).await;
            stalled.push(cluster.on_client(index, async move {
                let _other = other;
                held.write(0, &data_of(7, 0, 4 * UNIT as usize)).await
            }));
        }
        cluster.sim.sleep(Duration::from_millis(5)).await;
        assert_eq!(cluster.sim.counters().payloads_paused, 2, "more than an eighth of memory would be held");
        assert_eq!(used(&cluster), 4 * UNIT, "the third one's went another way");
        cluster.sim.set_slow_payloads(None);
        for unit in 0..60 {
            let data = data_of(unit + 1, u64::from(unit) * UNIT, UNIT as usize);
            file.write(u64::from(unit) * UNIT, &data).await.expect("there is room for each of 60 units");
        }
        assert_eq!(used(&cluster), 4 << 20, "all of it");
        assert_eq!(file.write(60 * UNIT, &[1]).await.expect_err("full").code, Code::NoSpace);
        assert_eq!(file.read(0, 9).await, Ok(data_of(1, 0, 9)));
    });
}
