//! A nearly full file system below a volume: the room left is for removals. And a disk full of units that only
//! the last checkpoint names: writers wait for the next one.

use crate::support::{ROOT, create, name, opened_file, with_cluster, with_layout};
use aze_client::File;
use aze_io::sim::DiskFault;
use aze_proto::message::Durability;
use aze_proto::{Code, Ino};
use aze_sim::bytes::data_of;
use aze_sim::cluster::Layout;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// Longer than a server takes to look again.
const A_WHILE: Duration = Duration::from_secs(2);

#[test]
fn a_disk_that_is_nearly_full_takes_nothing_but_removals_until_there_is_room() {
    let layout = Layout { durability: Some(Durability::Fsync), ..Layout::of(1) };
    with_layout(layout, |cluster, client| async move {
        let file = create(&client, Ino::ROOT, "kept").await;
        file.write(0, b"some bytes").await.expect("it can be written");
        let gone = create(&client, Ino::ROOT, "gone").await;
        gone.close().await.expect("closed");
        // The first request makes the server look at its disk.
        let look = || async {
            cluster.sim.sleep(A_WHILE).await;
            client.sync(&ROOT).await.expect("it can be synced");
            cluster.sim.sleep(A_WHILE).await;
        };
        cluster.sim.set_disk_fault("s0", DiskFault::Low);
        look().await;
        let made = client.create(&ROOT, Ino::ROOT, &name("new"), &opened_file()).await.map(|_| ());
        let refused = made.expect_err("there is no room");
        assert_eq!(refused.code, Code::NoSpace, "{refused}");
        assert!(refused.detail.contains("nearly full"), "{refused}");
        let refused = file.write(0, b"other bytes").await.expect_err("there is no room");
        assert_eq!(refused.code, Code::NoSpace, "{refused}");
        let mut bytes = [0; 10];
        file.read_into(0, &mut bytes).await.expect("it can be read");
        assert_eq!(&bytes, b"some bytes");
        client.unlink(&ROOT, Ino::ROOT, &name("gone")).await.expect("removals are taken");
        file.sync().await.expect("and syncs");
        cluster.sim.set_disk_fault("s0", DiskFault::None);
        look().await;
        file.write(0, b"other bytes").await.expect("there is room again");
        create(&client, Ino::ROOT, "new").await;
    });
}

#[test]
fn a_volume_in_memory_looks_at_no_disk() {
    with_cluster(1, |cluster, client| async move {
        cluster.sim.set_disk_fault("s0", DiskFault::Low);
        for text in ["before", "after"] {
            create(&client, Ino::ROOT, text).await.write(0, b"some bytes").await.expect("it can be written");
            cluster.sim.sleep(A_WHILE).await;
        }
    });
}

const UNIT: u64 = 64 << 10;
/// Of the 32 MiB that the server may keep.
const UNITS: u64 = 30 << 4;
/// Bytes rewritten in each unit: so few that the journal stays short for long, and no checkpoint is due.
const PIECE: usize = 4096;
const TASKS: u64 = 8;

fn layout(directories: u16, memory_bytes: u64) -> Layout {
    Layout {
        durability: Some(Durability::Fsync),
        checkpoint_bytes: 3 << 20,
        memory_bytes,
        storage_dirs: directories,
        deadline: Duration::from_secs(30),
        ..Layout::of(1)
    }
}

fn rewritten(directories: u16, memory_bytes: u64) {
    with_layout(layout(directories, memory_bytes), |cluster, client| async move {
        let mut files: Vec<Arc<File>> = Vec::new();
        for task in 0..TASKS {
            let file = create(&client, Ino::ROOT, &format!("f{task}")).await;
            for unit in 0..UNITS / TASKS {
                let data = data_of(task as u32, unit * UNIT, UNIT as usize);
                file.write(unit * UNIT, &data).await.expect("there is room");
            }
            files.push(file);
        }
        for round in 1..=3 {
            let tasks = files.iter().enumerate().map(|(task, file)| async move {
                for unit in 0..UNITS / TASKS {
                    let written = file.write(unit * UNIT, &data_of(100 * round + task as u32, 0, PIECE)).await;
                    written.unwrap_or_else(|why| panic!("round {round}, task {task}, unit {unit}: {why}"));
                }
            });
            join_all(tasks).await;
        }
        for (task, file) in files.iter().enumerate() {
            for unit in 0..UNITS / TASKS {
                let mut wanted = data_of(task as u32, unit * UNIT, UNIT as usize);
                wanted[..PIECE].copy_from_slice(&data_of(300 + task as u32, 0, PIECE));
                let read = file.read(unit * UNIT, UNIT as usize).await.expect("it can be read");
                assert!(read == wanted, "file {task}, unit {unit} has other bytes");
            }
        }
        // New data that do not fit are refused, and soon.
        let (more, began) = (create(&client, Ino::ROOT, "more").await, cluster.sim.now_ns());
        let mut refused = None;
        for unit in 0..UNITS {
            if let Err(failure) = more.write(unit * UNIT, &data_of(9, 0, UNIT as usize)).await {
                refused = Some((unit, failure));
                break;
            }
        }
        let (unit, failure) = refused.expect("it cannot hold twice as much");
        assert_eq!(failure.code, Code::NoSpace, "{failure}");
        assert!(unit * UNIT < 6 << 20, "{unit} units more were taken");
        assert!(cluster.sim.now_ns() - began < 20_000_000_000, "it took long to say so");
    });
}

#[test]
fn what_is_written_over_waits_for_places_and_is_not_refused() {
    for eighths in 16..32 {
        rewritten(1, eighths << 17);
    }
}

#[test]
fn also_with_several_directories() {
    for eighths in 16..32 {
        rewritten(3, eighths << 17);
    }
}
