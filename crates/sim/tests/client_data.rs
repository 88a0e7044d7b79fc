//! Bytes and sizes: what one client has written, every client reads and sees the length of.

use crate::support::{ROOT, create, name, with_cluster};
use aze_client::{Access, Client, FLIGHT_BYTES_MAX, File, NEAR_BYTES_MAX};
use aze_io::sim::{Faults, SimRng};
use aze_proto::{Change, Code, Identity, Ino, SetTime, Time};
use aze_sim::bytes::data_of;
use aze_sim::cluster::CHUNK_BITS;
use futures_util::future::join_all;
use std::sync::Arc;

const BOTH: Access = Access { read: true, write: true };
const CHUNK: u64 = 1 << CHUNK_BITS;

async fn open(client: &Client, ino: Ino) -> Arc<File> {
    client.open(&ROOT, ino, BOTH).await.expect("root may open it")
}

/// A length or offset that is often at or near a border of blocks or chunks.
fn awkward(rng: &mut SimRng, max: u64) -> u64 {
    let near = [0, 1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5];
    let value = if rng.chance(500_000) { *rng.pick(&near) + rng.below(3) } else { rng.below(max) };
    value.min(max)
}

#[test]
fn files_behave_like_byte_strings_for_all_clients() {
    byte_strings(None);
}

/// The data that each client reads are shared with it, as on the servers' node.
#[test]
fn files_behave_like_byte_strings_when_what_is_read_is_shared() {
    byte_strings(Some(1));
}

fn byte_strings(share_bytes_min: Option<usize>) {
    with_cluster(3, |cluster, one| async move {
        cluster.sim.set_sharing(share_bytes_min);
        let two = cluster.connect(1).await.expect("a second client connects");
        let mut rng = cluster.sim.rng("data");
        // Frames are damaged on the way, in data as well: no caller must notice.
        cluster.sim.set_faults(Faults { flip_ppm: 3_000, duplicate_ppm: 20_000, ..Faults::default() });
        for round in 0..8 {
            let made = create(&one, Ino::ROOT, &format!("f{round}")).await;
            let files = [made.clone(), open(&two, made.ino()).await];
            let mut model: Vec<u8> = Vec::new();
            for step in 0..60 {
                let (writer, reader) = (&files[rng.below(2) as usize], &files[rng.below(2) as usize]);
                let offset = awkward(&mut rng, 5 * CHUNK);
                let len = awkward(&mut rng, 4 * CHUNK) as usize;
                match rng.below(5) {
                    0..3 => {
                        let data = data_of(round, step * (1 << 32), len);
                        writer.write(offset, &data).await.expect("a write of an open file");
                        let end = offset as usize + len;
                        if len > 0 {
                            model.resize(model.len().max(end), 0);
                            model[offset as usize..end].copy_from_slice(&data);
                        }
                    }
                    3 => {
                        let client = if rng.chance(500_000) { &one } else { &two };
                        client.truncate(&ROOT, made.ino(), offset, None).await.expect("root may truncate");
                        model.resize(offset as usize, 0);
                    }
                    _ => {}
                }
                let start = (offset as usize).min(model.len());
                let expected = &model[start..(start + len).min(model.len())];
                let read = reader.read(offset, len).await.expect("a read of an open file");
                assert!(
                    read == expected,
                    "round {round} step {step}: {len} bytes at {offset}: {} read of {}",
                    read.len(),
                    model.len()
                );
                let client = if rng.chance(500_000) { &one } else { &two };
                assert_eq!(client.getattr(&ROOT, made.ino()).await.expect("it exists").size, model.len() as u64);
            }
        }
        let counters = cluster.sim.counters();
        assert!(counters.frames_flipped > 10);
        assert_eq!(counters.payloads_shared > 100, share_bytes_min.is_some(), "{}", counters.payloads_shared);
    });
}

#[test]
fn one_call_may_be_larger_than_what_is_under_way_at_once() {
    with_cluster(3, |_cluster, client| async move {
        let file = create(&client, Ino::ROOT, "large").await;
        let data = data_of(3, 0, 20 << 20);
        file.write(17, &data).await.expect("there is room");
        assert!(file.read(17, data.len() + 100).await.expect("it can be read") == data);
        assert_eq!(file.read(0, 17).await, Ok(vec![0; 17]));
    });
}

#[test]
fn what_another_client_appends_is_read_and_what_it_truncates_is_not() {
    with_cluster(2, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let writer = create(&one, Ino::ROOT, "f").await;
        let reader = open(&two, writer.ino()).await;
        let mut length = 0;
        for step in 0..12 {
            let data = data_of(step, 0, 30_000);
            writer.write(length, &data).await.expect("there is room");
            length += 30_000;
            assert_eq!(
                reader.read(length - 30_000, 40_000).await.as_deref(),
                Ok(&data[..]),
                "the reader believed the file shorter"
            );
            assert_eq!(reader.read(length, 10).await.as_deref(), Ok(&[][..]));
        }
        one.truncate(&ROOT, writer.ino(), 5, Some(&writer)).await.expect("it is open for writing");
        assert_eq!(reader.read(0, 100_000).await.map(|data| data.len()), Ok(5), "the reader believed the file longer");
        assert_eq!(reader.read(200_000, 10).await.as_deref(), Ok(&[][..]));
        reader.write(CHUNK * 2, b"x").await.expect("a writer of the old generation learns the new one");
        let expected = [data_of(0, 0, 5), vec![0; 2 * CHUNK as usize - 5], b"x".to_vec()].concat();
        assert!(
            writer.read(0, 1 << 20).await.expect("it can be read") == expected,
            "truncated bytes are gone for good"
        );
    });
}

#[test]
fn modification_times_are_reported_once_a_second_and_when_asked_for() {
    with_cluster(2, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let file = create(&one, Ino::ROOT, "f").await;
        file.write(0, &data_of(1, 0, 4 * CHUNK as usize)).await.expect("there is room");
        let first = two.getattr(&ROOT, file.ino()).await.expect("it exists").mtime;
        cluster.sim.sleep(std::time::Duration::from_millis(100)).await;
        file.write(2 * CHUNK, b"within").await.expect("there is room");
        assert_eq!(two.getattr(&ROOT, file.ino()).await.expect("it exists").mtime, first, "not told yet");
        let own = one.lookup(&ROOT, Ino::ROOT, &name("f")).await.expect("it exists").mtime;
        assert!(own > first, "whoever has written sees it");
        cluster.sim.sleep(std::time::Duration::from_millis(100)).await;
        file.write(2 * CHUNK, b"within").await.expect("there is room");
        file.close().await.expect("it can be reported");
        assert!(two.getattr(&ROOT, file.ino()).await.expect("it exists").mtime > own);
    });
}

#[test]
fn a_time_that_was_set_is_not_moved_by_earlier_writes() {
    with_cluster(2, |_cluster, client| async move {
        let file = create(&client, Ino::ROOT, "f").await;
        file.write(0, &data_of(1, 0, 4 * CHUNK as usize)).await.expect("there is room");
        file.write(2 * CHUNK, b"within").await.expect("there is room");
        let time = Time(1_000_000_000);
        let change = Change { mtime: Some(SetTime::To { time }), ..Change::default() };
        assert_eq!(client.setattr(&ROOT, file.ino(), &change).await.expect("root may").mtime, time);
        let ino = file.ino();
        file.close().await.expect("it can be closed");
        assert_eq!(client.getattr(&ROOT, ino).await.expect("it exists").mtime, time);
    });
}

#[test]
fn what_a_file_was_not_opened_for_fails() {
    with_cluster(1, |_cluster, client| async move {
        let made = create(&client, Ino::ROOT, "f").await;
        let reader = client.open(&ROOT, made.ino(), Access { read: true, write: false }).await.expect("root may");
        assert_eq!(reader.write(0, b"x").await.unwrap_err().code, Code::Invalid);
        let writer = client.open(&ROOT, made.ino(), Access { read: false, write: true }).await.expect("root may");
        assert_eq!(writer.read(0, 1).await.unwrap_err().code, Code::Invalid);
        assert_eq!(writer.write(u64::MAX, b"x").await.unwrap_err().code, Code::TooLarge);
        assert_eq!(writer.write(i64::MAX as u64, b"x").await.unwrap_err().code, Code::TooLarge);
        assert_eq!(made.read(u64::MAX, 5).await.as_deref(), Ok(&[][..]));
    });
}

#[test]
fn an_unlinked_file_lives_until_its_last_close() {
    with_cluster(2, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "f").await;
        file.write(0, &data_of(1, 0, 3 * CHUNK as usize)).await.expect("there is room");
        client.unlink(&ROOT, Ino::ROOT, &name("f")).await.expect("it exists");
        assert_eq!(file.read(2 * CHUNK, 5).await, Ok(data_of(1, 2 * CHUNK, 5)));
        let ino = file.ino();
        drop(file);
        cluster.sim.sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(client.getattr(&ROOT, ino).await.unwrap_err().code, Code::Stale, "dropping it closed it");
        let chunks: u64 = cluster.servers().iter().map(|server| server.status().chunks).sum();
        assert_eq!(chunks, 0);
    });
}

/// A mount that knew a name from a second ago opened the file that another client had replaced since,
/// for as long as its last close was on its way: the new file was there and the old one was read.
/// A client that holds a file open, on the other hand, may open it again without a name.
#[test]
fn a_file_without_a_name_is_opened_by_its_holders_only() {
    with_cluster(2, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let held = create(&one, Ino::ROOT, "f").await;
        held.write(0, b"old").await.expect("there is room");
        one.unlink(&ROOT, Ino::ROOT, &name("f")).await.expect("it exists");
        assert_eq!(two.open(&ROOT, held.ino(), BOTH).await.map(|_| ()).unwrap_err().code, Code::Stale);
        let again = open(&one, held.ino()).await;
        assert_eq!(again.read(0, 5).await.as_deref(), Ok(&b"old"[..]));
        let ino = held.ino();
        drop((held, again));
        cluster.sim.sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(one.getattr(&ROOT, ino).await.unwrap_err().code, Code::Stale, "the refused open was closed too");
    });
}

/// Set-id bits stayed when a user other than root wrote beyond the first chunk.
#[test]
fn a_write_anywhere_takes_set_id_bits() {
    with_cluster(3, |_cluster, client| async move {
        let made = create(&client, Ino::ROOT, "f").await;
        made.write(0, &data_of(1, 0, 3 * CHUNK as usize)).await.expect("there is room");
        let somebody = Identity { uid: 7, gid: 7, groups: Vec::new() };
        let set = Change { mode: Some(0o6777), ..Change::default() };
        let mode = async || client.getattr(&ROOT, made.ino()).await.expect("it exists").mode;
        for offset in [5, CHUNK + 5, 3 * CHUNK] {
            client.setattr(&ROOT, made.ino(), &set).await.expect("root may");
            made.write(offset, b"x").await.expect("there is room");
            assert_eq!(mode().await, 0o6777, "root keeps them");
            let file = client.open(&somebody, made.ino(), BOTH).await.expect("everybody may");
            file.write(offset, b"y").await.expect("there is room");
            assert_eq!(mode().await, 0o777, "a write at {offset}");
        }
        client.setattr(&ROOT, made.ino(), &set).await.expect("root may");
        client.truncate(&somebody, made.ino(), 9, None).await.expect("everybody may");
        assert_eq!(mode().await, 0o777);
    });
}

#[test]
fn a_large_call_has_all_its_chunks_under_way_at_once_within_the_limit() {
    with_cluster(3, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "large").await;
        let data = data_of(3, 0, 24 << 20);
        file.write(5, &data).await.expect("there is room");
        assert_eq!(client.flight_peak_bytes(), data.len(), "all parts of a write are sent before one is answered");
        let reader = cluster.connect(1).await.expect("a second client connects");
        let opened = open(&reader, file.ino()).await;
        assert!(opened.read(5, data.len()).await.expect("it can be read") == data);
        assert_eq!(reader.flight_peak_bytes(), data.len(), "all parts of a read are asked for at once");
        let calls = (0..5).map(|index| opened.read(index, data.len()));
        for (index, read) in join_all(calls).await.into_iter().enumerate() {
            let read = read.expect("it can be read");
            assert!(
                read[..5 - index].iter().all(|byte| *byte == 0) && read[5 - index..] == data[..data.len() - 5 + index]
            );
        }
        let peak = reader.flight_peak_bytes();
        assert!(peak > FLIGHT_BYTES_MAX - CHUNK as usize && peak <= FLIGHT_BYTES_MAX, "{peak} bytes were under way");
    });
}

#[test]
fn a_large_call_has_less_under_way_where_all_servers_are_near() {
    for (servers, expected) in [(1, NEAR_BYTES_MAX), (2, 12 << 20)] {
        with_cluster(servers, |cluster, far| async move {
            let file = create(&far, Ino::ROOT, "large").await;
            let data = data_of(3, 0, 12 << 20);
            file.write(0, &data).await.expect("there is room");
            let near = cluster.connect_near(1, 0).await.expect("a second client connects");
            let opened = near.open(&ROOT, file.ino(), BOTH).await.expect("it can be opened");
            assert!(opened.read(0, data.len()).await.expect("it can be read") == data);
            assert_eq!(near.flight_peak_bytes(), expected, "{servers} servers: read");
            opened.write(0, &data).await.expect("there is room");
            assert_eq!(near.flight_peak_bytes(), expected, "{servers} servers: write");
        });
    }
}

#[test]
fn a_part_that_fails_fails_the_call_and_shows_nothing_short() {
    with_cluster(3, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "f").await;
        let data = data_of(1, 0, 6 * CHUNK as usize);
        file.write(0, &data).await.expect("there is room");
        let homes: Vec<_> =
            (0..6).map(|chunk| client.map().server_of(client.map().chunk_shard(&file.attr(), chunk))).collect();
        let lost = (0..6).find(|chunk| homes[*chunk] != homes[0] && homes[*chunk].is_some_and(|server| server.0 != 0));
        let lost = lost.expect("three servers have the chunks");
        cluster.kill_server(homes[lost].expect("every chunk has a server").0, false);
        let failure = file.read(0, data.len()).await.expect_err("a part cannot be read");
        assert_eq!(failure.code, Code::Unreachable, "{failure}");
        let failure = file.write(0, &data).await.expect_err("a part cannot be written");
        assert!(matches!(failure.code, Code::UnknownOutcome | Code::Unreachable), "{failure}");
        assert_eq!(file.read(7, 100).await.as_deref(), Ok(&data[7..107]), "what is elsewhere can be read");
        assert_eq!(file.read(0, 0).await.as_deref(), Ok(&[][..]), "nothing is asked for, and nothing fails");
        file.write(lost as u64 * CHUNK, &[]).await.expect("nothing is written");
    });
}

/// Two damaged frames in a row were reported as damage in the store.
#[test]
fn what_is_damaged_on_the_way_twice_in_a_row_is_sent_again() {
    with_cluster(3, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "f").await;
        cluster.sim.set_faults(Faults { flip_ppm: 100_000, ..Faults::default() });
        for round in 0..150 {
            let data = data_of(round, 0, 2 * CHUNK as usize);
            file.write(0, &data).await.expect("a write of an open file");
            let read = file.read(0, data.len()).await.expect("a read of an open file");
            assert!(read == data, "round {round}");
            file.append(&data[..5000]).await.expect("an append to an open file");
            client.truncate(&ROOT, file.ino(), 0, None).await.expect("root may truncate");
        }
    });
}
