//! A check of a volume in use: it reports nothing sound, even if users change it meanwhile, and all
//! damage done on purpose.

use crate::support::{ROOT, create, name, with_cluster, with_layout};
use aze_client::{CheckOptions, Checked, Client};
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, FileKind, Identity, Ino};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::bytes::data_of;
use aze_sim::cluster::{CHUNK_BITS, Layout};
use futures_util::future::join_all;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longer than a check waits before it looks a second time.
const OVER: Duration = Duration::from_secs(20);

async fn check(client: &Client) -> Checked {
    client.check(&ROOT, CheckOptions::default()).await.expect("the volume can be looked through")
}

fn kinds(checked: &Checked) -> BTreeSet<&'static str> {
    checked.findings.iter().map(|finding| finding.kind).collect()
}

/// A tree with directories, files of one chunk and of many, links and renamed files.
async fn fill(client: &Client, files: u32) -> Ino {
    let dir = client.mkdir_all(&ROOT, b"/tree/of/directories", 0o755).await.expect("directories can be made").ino;
    for number in 0..files {
        let file = create(client, dir, &format!("f{number}")).await;
        let len = if number % 4 == 0 { 3 << CHUNK_BITS } else { 5000 };
        file.write(0, &data_of(number, 0, len)).await.expect("there is room");
        file.close().await.expect("an open file can be closed");
        let (old, new) = (name(&format!("f{number}")), name(&format!("g{number}")));
        match number % 3 {
            0 => client.rename(&ROOT, dir, &old, Ino::ROOT, &new, false).await.expect("a file can be renamed"),
            1 => {
                let linked = client.link(&ROOT, file.ino(), Ino::ROOT, &new).await;
                assert!(linked.is_ok(), "a file can have two names");
            }
            _ => {}
        }
    }
    dir
}

#[test]
fn a_volume_that_is_well_is_reported_well() {
    with_cluster(3, |cluster, client| async move {
        fill(&client, 40).await;
        let before = cluster.sim.now_ns();
        let checked = check(&client).await;
        assert_eq!((checked.findings, checked.notes), (Vec::new(), Vec::new()));
        assert_eq!((checked.files, checked.directories), (40, 4));
        assert_eq!(checked.bytes, 10 * (3 << CHUNK_BITS) + 30 * 5000);
        assert!(Duration::from_nanos(cluster.sim.now_ns() - before) < OVER / 2, "a second look was taken of something");
    });
}

#[test]
fn only_the_owner_and_root_may_look() {
    with_cluster(2, |_cluster, client| async move {
        let stranger = Identity { uid: 1000, gid: 1000, groups: Vec::new() };
        let refused = client.check(&stranger, CheckOptions::default()).await;
        assert_eq!(refused.map_err(|failure| failure.code), Err(Code::NotPermitted));
    });
}

#[test]
fn without_a_server_nothing_is_said() {
    with_cluster(3, |cluster, client| async move {
        fill(&client, 10).await;
        cluster.kill_server(1, true);
        let refused = client.check(&ROOT, CheckOptions::default()).await.expect_err("a server is dead");
        assert!(refused.to_string().contains("server 1"), "{refused}");
    });
}

#[test]
fn a_rate_is_obeyed() {
    with_cluster(2, |cluster, client| async move {
        fill(&client, 100).await;
        let began = cluster.sim.now_ns();
        let options = CheckOptions { bytes_per_second: Some(1 << 20) };
        let checked = client.check(&ROOT, options).await.expect("the volume can be looked through");
        let took = (cluster.sim.now_ns() - began) as f64 / 1e9;
        let rate = checked.bytes as f64 / took;
        assert!((0.5..=1.01).contains(&(rate / (1 << 20) as f64)), "{rate} bytes in a second, {took} s");
    });
}

#[test]
fn bits_that_flip_in_memory_are_found_with_their_path() {
    with_cluster(3, |cluster, client| async move {
        let dir = fill(&client, 20).await;
        let file = create(&client, dir, "rotten").await;
        file.write(0, &data_of(7, 0, 3 << CHUNK_BITS)).await.expect("there is room");
        let flipped = cluster.servers().iter().any(|server| server.flip_bit(file.ino(), 2, 8 * 9000));
        assert!(flipped, "one of the servers has it");
        let checked = check(&client).await;
        assert_eq!(checked.findings.len(), 1, "{checked:?}");
        let finding = &checked.findings[0];
        assert_eq!((finding.kind, finding.ino), ("checksum", file.ino()));
        let words = ["/tree/of/directories/rotten", "chunk 2", "byte 8192", "memory of server"];
        words.iter().for_each(|word| assert!(finding.text.contains(word), "{word} in {}", finding.text));
        client.unlink(&ROOT, dir, &name("rotten")).await.expect("a rotten file can be removed");
        file.close().await.expect("an open file can be closed");
        cluster.sim.sleep(OVER).await;
        assert_eq!(check(&client).await.findings, []);
    });
}

fn on_disks(servers: u16) -> Layout {
    Layout { durability: Some(Durability::Fsync), ..Layout::of(servers) }
}

#[test]
fn bits_that_flip_on_disks_are_found_and_nothing_is_brought_into_memory() {
    with_layout(on_disks(2), |cluster, client| async move {
        fill(&client, 40).await;
        client.close().await.expect("a session can be ended");
        for server in cluster.servers() {
            server.rest().await.expect("the disk works");
        }
        // What a start has written down is in segments.
        cluster.kill_all(1, false);
        cluster.start().await.expect("the volume starts again");
        let client = cluster.connect(0).await.expect("a client connects");
        let memory = || cluster.servers().iter().map(|server| server.units_brought_back()).sum::<u64>();
        let before = memory();
        assert_eq!(kinds(&check(&client).await), BTreeSet::new());
        let mut told = 0;
        for place in (1..16).map(|number| number * (64 << 10)) {
            let flip =
                || cluster.sim.flip_disk_bit("s0", aze_sim::cluster::STORAGE_DIR, "data-0000000000", place * 8 + 3);
            assert!(flip());
            let checked = check(&client).await;
            told += usize::from(!checked.findings.is_empty());
            assert!(checked.findings.len() <= 1, "{checked:?}");
            for finding in &checked.findings {
                let is_named = finding.text.starts_with('/') && finding.text.contains("data-0000000000 at byte");
                assert!(finding.kind == "checksum" && is_named, "{finding:?}");
            }
            assert!(flip());
        }
        assert!(told > 5, "only {told} of the places were in use");
        assert_eq!(memory(), before, "looking has brought units into memory");
    });
}

/// However often clients change names meanwhile: nothing is wrong, so nothing is reported.
#[test]
fn nothing_is_reported_in_a_storm() {
    with_cluster(3, |cluster, client| async move {
        let dir = fill(&client, 30).await;
        let over = Cell::new(false);
        let is_over = || over.get();
        let worker = |number: u32| {
            let client = client.clone();
            async move {
                let mut round = 0;
                while !is_over() {
                    round += 1;
                    let (first, second) = (name(&format!("a{number}")), name(&format!("b{number}.{}", round % 17)));
                    let file = create(&client, dir, &format!("a{number}")).await;
                    file.write(0, &data_of(number, 0, 70_000)).await?;
                    file.close().await?;
                    client.rename(&ROOT, dir, &first, Ino::ROOT, &second, false).await?;
                    client.link(&ROOT, file.ino(), dir, &name(&format!("l{number}"))).await?;
                    let sub = crate::support::name(&format!("d{number}"));
                    let new =
                        aze_client::NewFile { kind: FileKind::Directory, open: None, ..crate::support::opened_file() };
                    let made = client.create(&ROOT, dir, &sub, &new).await?.attr.ino;
                    client.rename(&ROOT, dir, &sub, Ino::ROOT, &sub, false).await?;
                    client.rename(&ROOT, Ino::ROOT, &second, made, &second, false).await?;
                    client.rename(&ROOT, made, &second, dir, &first, false).await?;
                    client.rmdir(&ROOT, Ino::ROOT, &sub).await?;
                    client.unlink(&ROOT, dir, &name(&format!("l{number}"))).await?;
                    client.unlink(&ROOT, dir, &first).await?;
                }
                Ok::<u32, Failure>(round)
            }
        };
        let checks = async {
            let mut notes = 0;
            for _ in 0..10 {
                let checked = check(&client).await;
                assert_eq!(checked.findings, []);
                notes += checked.notes.len();
            }
            over.set(true);
            notes
        };
        let (rounds, notes) = futures_util::future::join(join_all((0..4).map(worker)), checks).await;
        let rounds: u32 = rounds.into_iter().map(|round| round.expect("a quiet cluster does it")).sum();
        assert!(rounds > 200, "only {rounds} rounds: that is no storm");
        println!("{rounds} rounds, {notes} checks found something in motion every time");
        cluster.sim.sleep(OVER).await;
        let checked = check(&client).await;
        assert_eq!((checked.findings, checked.notes), (Vec::new(), Vec::new()));
    });
}

fn sabotaged(sabotage: Sabotage) -> Layout {
    Layout { switches: Switches::without(sabotage), ..Layout::of(3) }
}

#[test]
fn data_that_outlive_their_file_are_found() {
    with_layout(sabotaged(Sabotage::SkipDataDelete), |cluster, client| async move {
        let dir = fill(&client, 12).await;
        let file = create(&client, dir, "wide").await;
        file.write(0, &data_of(1, 0, 3 << CHUNK_BITS)).await.expect("there is room");
        file.close().await.expect("an open file can be closed");
        client.unlink(&ROOT, dir, &name("wide")).await.expect("a file can be removed");
        cluster.sim.sleep(OVER).await;
        let checked = check(&client).await;
        assert_eq!(kinds(&checked), BTreeSet::from(["data without file"]), "{checked:?}");
        assert!(checked.findings.iter().all(|finding| finding.ino == file.ino()), "{checked:?}");
    });
}

#[test]
fn names_that_are_still_counted_are_found() {
    with_layout(sabotaged(Sabotage::SkipLinkDrop), |cluster, client| async move {
        let dir = fill(&client, 12).await;
        let mut names = 0;
        for number in 0..16 {
            let file = create(&client, dir, &format!("n{number}")).await;
            let second = name(&format!("m{number}"));
            client.link(&ROOT, file.ino(), dir, &second).await.expect("a file can have two names");
            client.unlink(&ROOT, dir, &second).await.expect("one of them can go");
            file.close().await.expect("an open file can be closed");
            names += 1;
        }
        cluster.sim.sleep(OVER).await;
        let checked = check(&client).await;
        assert_eq!(kinds(&checked), BTreeSet::from(["link count"]), "{checked:?}");
        // The other names were on the shards of their files.
        assert!(checked.findings.len() > names / 2, "{} of {names}", checked.findings.len());
        let finding = &checked.findings[0];
        assert!(finding.text.contains("/tree/of/directories/n") && finding.text.contains("count is 2"), "{finding:?}");
    });
}

#[test]
fn names_in_directories_that_are_gone_are_found() {
    with_layout(sabotaged(Sabotage::SkipDirectoryClose), |cluster, client| async move {
        let dir = fill(&client, 6).await;
        let new = aze_client::NewFile { kind: FileKind::Directory, open: None, ..crate::support::opened_file() };
        let doomed = client.create(&ROOT, dir, &name("doomed"), &new).await.expect("a directory").attr.ino;
        for number in 0..6 {
            create(&client, doomed, &format!("kept{number}")).await.close().await.expect("it can be closed");
        }
        cluster.sim.sleep(OVER).await;
        let removed = client.rmdir(&ROOT, dir, &name("doomed")).await;
        assert_eq!(removed, Ok(()), "nobody has looked whether it is empty");
        let checked = check(&client).await;
        assert_eq!(kinds(&checked), BTreeSet::from(["unreachable"]), "{checked:?}");
        let is_told = |finding: &aze_client::Finding| finding.text.contains(&format!("(directory {doomed})/kept"));
        assert!(checked.findings.iter().any(is_told), "{checked:?}");
    });
}

/// A server that came back empty has lost inodes to which names of others lead.
#[test]
fn what_went_with_a_server_is_told_so() {
    with_cluster(3, |cluster, client| async move {
        fill(&client, 40).await;
        cluster.kill_server(2, false);
        cluster.start_server(2).await.expect("a server that died can start again");
        let checked = check(&client).await;
        assert!(kinds(&checked).contains("name without file"), "{checked:?}");
        let told = checked.findings.iter().filter(|finding| finding.text.contains("has restarted empty")).count();
        assert!(told > 0, "{checked:?}");
    });
}
