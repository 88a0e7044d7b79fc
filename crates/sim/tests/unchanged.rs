//! Two equal counts of changes, one after the other: all that was read in between was there at one moment.

use crate::support::{ROOT, create, name, with_cluster};
use aze_client::{Access, Client};
use aze_io::sim::Faults;
use aze_proto::Ino;
use aze_sim::cluster::CHUNK_BITS;
use futures_util::future::join;
use std::cell::{Cell, RefCell};

const CHUNK: u64 = 1 << CHUNK_BITS;
const CHUNKS: u64 = 6;
const BOTH: Access = Access { read: true, write: true };

/// The writer replaces the marks of all chunks, one chunk after the other, again and again. At each moment the file has the
/// new marks up to some chunk, and the old ones from there on: everything else never was.
#[test]
fn bytes_read_between_two_equal_counts_are_of_one_moment() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let written = create(&one, Ino::ROOT, "f").await;
        let ino = written.ino();
        for chunk in 0..CHUNKS {
            written.write(chunk * CHUNK, &[0]).await.expect("a write");
        }
        cluster.sim.set_faults(Faults { duplicate_ppm: 20_000, loss_ppm: 5_000, ..Faults::default() });
        let mut rng = cluster.sim.rng("pauses");
        let is_over = Cell::new(false);
        let found = RefCell::new((0, 0));
        let writing = async {
            let mut mark = 0u8;
            while !is_over.get() {
                mark = mark.wrapping_add(1);
                for chunk in 0..CHUNKS {
                    written.write(chunk * CHUNK, &[mark]).await.expect("a write");
                }
                if rng.chance(300_000) {
                    // Long enough for some readers to find the file at rest.
                    cluster.client_io(0).sleep(std::time::Duration::from_millis(rng.below(30))).await;
                }
            }
        };
        let reading = async {
            let file = open(&two, ino).await;
            for _ in 0..400 {
                let before = file.count_changes().await.expect("a count");
                let mut marks = Vec::new();
                for chunk in 0..CHUNKS {
                    marks.extend(file.read(chunk * CHUNK, 1).await.expect("a read"));
                }
                let after = file.count_changes().await.expect("a count");
                if before != after {
                    found.borrow_mut().1 += 1;
                    continue;
                }
                found.borrow_mut().0 += 1;
                let border = marks.iter().position(|mark| *mark != marks[0]).unwrap_or(marks.len());
                let old = marks[0].wrapping_sub(1);
                assert_eq!(marks.len(), CHUNKS as usize);
                assert!(marks[border..].iter().all(|mark| *mark == old), "never at one moment: {marks:?}");
            }
            is_over.set(true);
        };
        join(writing, reading).await;
        let (same, changed) = *found.borrow();
        assert!(same > 10 && changed > 10, "{same} equal, {changed} different");
    });
}

/// Each way of changing a file's data is counted, on whichever server it is, and looking at them is not.
#[test]
fn every_change_of_data_is_counted_and_no_look() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let file = create(&one, Ino::ROOT, "f").await;
        let seen = open(&two, file.ino()).await;
        let mut last = seen.count_changes().await.expect("a count");
        for step in 0..8 {
            match step {
                0 => file.write(0, b"first").await.expect("a write"),
                1 => file.write(3 * CHUNK, b"beyond").await.expect("a write"),
                2 => file.write(3 * CHUNK, b"beyond").await.expect("the same bytes"),
                3 => file.make_room(aze_client::Room::Hole, 3 * CHUNK, 3, false).await.expect("a hole"),
                4 => file.make_room(aze_client::Room::Zeroed, CHUNK, CHUNK, false).await.expect("zeros"),
                5 => drop(file.append(b"more").await.expect("an append")),
                6 => drop(one.truncate(&ROOT, file.ino(), 2 * CHUNK, Some(&file)).await.expect("a truncation")),
                _ => drop(one.truncate(&ROOT, file.ino(), 1, Some(&file)).await.expect("a truncation")),
            }
            let now = seen.count_changes().await.expect("a count");
            assert_ne!(now, last, "step {step} is not counted");
            seen.read(0, 5 * CHUNK as usize).await.expect("a read");
            two.getattr(&ROOT, file.ino()).await.expect("attributes");
            assert_eq!(seen.count_changes().await.expect("a count"), now, "a look after step {step} is counted");
            last = now;
        }
        one.unlink(&ROOT, Ino::ROOT, &name("f")).await.expect("a removal");
    });
}

async fn open(client: &Client, ino: Ino) -> std::sync::Arc<aze_client::File> {
    client.open(&ROOT, ino, BOTH).await.expect("root may open it")
}
