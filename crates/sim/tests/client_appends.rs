//! Appends of several clients to one file: whole, in one order, and undone if they fail.

use crate::support::{ROOT, create, with_cluster};
use aze_client::Access;
use aze_proto::limits::APPEND_BYTES_MAX;
use aze_proto::{Code, Ino};
use aze_sim::bytes::data_of;
use aze_sim::cluster::CHUNK_BITS;
use futures_util::future::join_all;

const BOTH: Access = Access { read: true, write: true };
const CHUNK: usize = 1 << CHUNK_BITS;

#[test]
fn appends_of_all_clients_come_one_after_the_other() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let first = create(&one, Ino::ROOT, "log").await;
        let second = two.open(&ROOT, first.ino(), BOTH).await.expect("root may open it");
        let lens = [1, 100, 4096, 5000, CHUNK - 7, CHUNK, 2 * CHUNK + 1, 10];
        let appends = (0..40).map(|index| {
            let file = if index % 2 == 0 { &first } else { &second };
            let data = data_of(index + 1, 0, lens[index as usize % lens.len()]);
            async move { (file.append(&data).await.expect("an append to an open file"), data) }
        });
        let mut done = join_all(appends).await;
        done.sort();
        let mut end = 0;
        for (offset, data) in &done {
            assert_eq!(*offset, end, "appends leave no gap and do not overlap");
            end += data.len() as u64;
        }
        let expected = done.into_iter().map(|(_, data)| data).collect::<Vec<_>>().concat();
        assert_eq!(second.read(0, expected.len() + 1).await.as_deref(), Ok(&expected[..]));
        assert_eq!(first.attr().size.max(second.attr().size), end);
    });
}

#[test]
fn an_append_goes_to_where_a_write_or_truncation_has_left_the_end() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let first = create(&one, Ino::ROOT, "log").await;
        let second = two.open(&ROOT, first.ino(), BOTH).await.expect("root may open it");
        first.write(3 * CHUNK as u64, b"end").await.expect("a write of an open file");
        assert_eq!(second.append(b"more").await, Ok(3 * CHUNK as u64 + 3));
        one.truncate(&ROOT, first.ino(), 10, Some(&first)).await.expect("root may truncate");
        assert_eq!(second.append(&data_of(1, 0, 2 * CHUNK)).await, Ok(10));
        assert_eq!(first.append(b"").await, Ok(10 + 2 * CHUNK as u64), "nothing is appended nowhere");
        let expected = [vec![0; 10], data_of(1, 0, 2 * CHUNK)].concat();
        assert_eq!(first.read(0, 4 * CHUNK).await.as_deref(), Ok(&expected[..]));
        let long = vec![1; APPEND_BYTES_MAX + 1];
        assert_eq!(first.append(&long).await.map_err(|failure| failure.code), Err(Code::Limit));
        let read = one.open(&ROOT, first.ino(), Access { read: true, write: false }).await.expect("root may open it");
        assert_eq!(read.append(b"x").await.map_err(|failure| failure.code), Err(Code::Invalid));
    });
}

#[test]
fn an_append_that_fails_leaves_nothing_behind() {
    with_cluster(2, |cluster, client| async move {
        // Every other chunk is on the server that will be silent.
        let mut file = create(&client, Ino::ROOT, "log").await;
        for index in 0.. {
            if client.map().home_of(file.ino()).is_some_and(|server| server.0 == 0) {
                break;
            }
            file = create(&client, Ino::ROOT, &format!("log{index}")).await;
        }
        file.append(b"first").await.expect("an append to an open file");
        cluster.sim.set_link("s0", "s1", aze_io::sim::Link::Down);
        let failure = file.append(&data_of(1, 0, 3 * CHUNK)).await.expect_err("a server is silent");
        assert_eq!(failure.code, Code::Unreachable, "{failure}");
        cluster.sim.heal();
        assert_eq!(file.append(b"second").await, Ok(5));
        assert_eq!(file.read(0, 4 * CHUNK).await.as_deref(), Ok(&b"firstsecond"[..]));
        // Bytes stored by the failed append are not seen when the file grows over them.
        file.write(4 * CHUNK as u64, b"x").await.expect("a write of an open file");
        let grown = file.read(11, 4 * CHUNK - 11).await.expect("a read of an open file");
        assert!(grown.iter().all(|byte| *byte == 0), "bytes of an append that failed came back");
    });
}
