//! Renames that a server does not confirm.
//!
//! The new name's server has done a rename, and the coordinator does not know it yet; a client changes the new name, and
//! then its server dies. The coordinator then restored the old name, since every inode must have a name: but the inode had
//! another one already, or was removed.

use crate::support::{ROOT, create, with_cluster};
use aze_client::Client;
use aze_io::sim::Link;
use aze_proto::{Code, FileKind, Ino, Name, NameHash, ServerIndex};
use aze_sim::Cluster;
use aze_sim::work::shared::new_file;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything that goes on in the background.
const SETTLE: Duration = Duration::from_secs(40);

/// Shorter than any frame is on its way.
const MOMENT: Duration = Duration::from_micros(2);

/// A name in the root directory whose entry is on a server.
fn name_at(client: &Client, server: u16, prefix: &str) -> Name {
    name_in(client, Ino::ROOT, server, prefix)
}

/// The same in any directory.
fn name_in(client: &Client, dir: Ino, server: u16, prefix: &str) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(dir, name).shard(map.shards())) == Some(ServerIndex(server));
    (0..64)
        .map(|index| crate::support::name(&format!("{prefix}{index}")))
        .find(is_there)
        .expect("of 64 names one is there")
}

async fn make(client: &Client, name: &Name, kind: FileKind) -> Ino {
    if kind == FileKind::File {
        let file = create(client, Ino::ROOT, &name.to_string()).await;
        file.close().await.expect("a file that is open can be closed");
        return file.ino();
    }
    let made = client.create(&ROOT, Ino::ROOT, name, &new_file(kind, true)).await;
    made.expect("a quiet cluster makes names").attr.ino
}

/// What leads to an inode, on all servers.
fn names_of(cluster: &Cluster, ino: Ino) -> Vec<Name> {
    let entries = cluster.servers().into_iter().flat_map(|server| server.entries_of(Ino::ROOT));
    entries.filter(|(_, there, _)| *there == ino).map(|(name, ..)| name).collect()
}

/// A rename from a name on server 1 to one on server 2, whose answer does not reach server 1.
struct Unconfirmed {
    old: Name,
    new: Name,
    ino: Ino,
}

async fn unconfirmed(cluster: &Arc<Cluster>, client: &Arc<Client>, kind: FileKind) -> Unconfirmed {
    let (old, new) = (name_at(client, 1, "old"), name_at(client, 2, "new"));
    let ino = make(client, &old, kind).await;
    let (asking, from, to) = (client.clone(), old.clone(), new.clone());
    let _answer =
        cluster.on_client(0, async move { asking.rename(&ROOT, Ino::ROOT, &from, Ino::ROOT, &to, false).await });
    let is_done =
        || cluster.server(2).is_some_and(|server| server.entries_of(Ino::ROOT).iter().any(|(_, at, _)| *at == ino));
    while !is_done() {
        cluster.sim.sleep(MOMENT).await;
    }
    cluster.sim.set_link("s2", "s1", Link::Down);
    cluster.sim.sleep(Duration::from_millis(1)).await;
    cluster.sim.heal();
    Unconfirmed { old, new, ino }
}

/// Before server 1 asks again.
async fn restart(cluster: &Arc<Cluster>) {
    cluster.kill_server(2, false);
    cluster.start_server(2).await.expect("a server that died can start again");
    cluster.sim.sleep(SETTLE).await;
    assert!(cluster.servers().iter().all(|server| server.contents().locks == 0));
}

#[test]
fn what_was_renamed_again_has_one_name() {
    for kind in [FileKind::File, FileKind::Directory] {
        with_cluster(3, |cluster, client| async move {
            let other = cluster.connect(1).await.expect("a quiet cluster connects");
            let Unconfirmed { new, ino, .. } = unconfirmed(&cluster, &client, kind).await;
            let third = name_at(&client, 0, "third");
            assert_eq!(other.rename(&ROOT, Ino::ROOT, &new, Ino::ROOT, &third, false).await, Ok(()));
            restart(&cluster).await;
            assert_eq!(names_of(&cluster, ino), [third]);
        });
    }
}

#[test]
fn what_was_exchanged_again_has_one_name() {
    with_cluster(3, |cluster, client| async move {
        let other = cluster.connect(1).await.expect("a quiet cluster connects");
        let third = name_at(&client, 0, "third");
        make(&client, &third, FileKind::File).await;
        let Unconfirmed { new, ino, .. } = unconfirmed(&cluster, &client, FileKind::File).await;
        assert_eq!(other.exchange(&ROOT, Ino::ROOT, &third, Ino::ROOT, &new).await, Ok(()));
        restart(&cluster).await;
        assert_eq!(names_of(&cluster, ino), [third]);
    });
}

#[test]
fn what_was_removed_or_replaced_does_not_come_back() {
    for way in 0..3 {
        with_cluster(3, |cluster, client| async move {
            let other = cluster.connect(1).await.expect("a quiet cluster connects");
            let third = name_at(&client, 0, "third");
            make(&client, &third, FileKind::File).await;
            let kind = if way == 2 { FileKind::Directory } else { FileKind::File };
            let Unconfirmed { old, new, ino } = unconfirmed(&cluster, &client, kind).await;
            let gone = match way {
                0 => other.unlink(&ROOT, Ino::ROOT, &new).await,
                1 => other.rename(&ROOT, Ino::ROOT, &third, Ino::ROOT, &new, false).await,
                _ => other.rmdir(&ROOT, Ino::ROOT, &new).await,
            };
            assert_eq!(gone, Ok(()));
            restart(&cluster).await;
            assert_eq!(names_of(&cluster, ino), [] as [Name; 0], "way {way}");
            let found = client.lookup(&ROOT, Ino::ROOT, &old).await;
            assert_eq!(found.map(|attr| attr.ino).map_err(|failure| failure.code), Err(Code::NotFound));
        });
    }
}

/// The rename is never completed: then the old name is back, as the only one.
#[test]
fn what_nobody_touched_has_its_old_name_back() {
    with_cluster(3, |cluster, client| async move {
        let Unconfirmed { old, ino, .. } = unconfirmed(&cluster, &client, FileKind::File).await;
        restart(&cluster).await;
        assert_eq!(names_of(&cluster, ino), [old]);
    });
}

/// Each of several renames of directories waited for the silent server in turn, longer than their coordinators wait
/// for the keeper: the later ones blamed server 0.
#[test]
fn a_silent_server_is_named_by_all_renames_that_need_it() {
    const RENAMES: usize = 4;
    with_cluster(3, |cluster, client| async move {
        let names: Vec<(Name, Name)> = (0..RENAMES)
            .map(|index| (name_at(&client, 0, &format!("old{index} ")), name_at(&client, 1, &format!("new{index} "))))
            .collect();
        for (old, _) in &names {
            let dir = make(&client, old, FileKind::Directory).await;
            // So server 2 serves paths through it.
            create(&client, dir, &name_in(&client, dir, 2, "below").to_string()).await;
        }
        cluster.sim.set_link("s0", "s2", Link::Down);
        let began_ns = cluster.sim.now_ns();
        let rename = |(old, new): &(Name, Name)| {
            let (client, old, new) = (client.clone(), old.clone(), new.clone());
            async move { client.rename(&ROOT, Ino::ROOT, &old, Ino::ROOT, &new, false).await }
        };
        let refused = join_all(names.iter().map(rename)).await;
        let took = Duration::from_nanos(cluster.sim.now_ns() - began_ns);
        assert_eq!(refused.len(), RENAMES);
        for answer in refused {
            let failure = answer.expect_err("a server has not confirmed it");
            assert!(failure.detail.contains("since server 2 has not confirmed"), "{failure}");
        }
        assert!(took < Duration::from_secs(3), "{took:?}");
        cluster.sim.heal();
        cluster.sim.sleep(SETTLE).await;
        for answer in join_all(names.iter().map(rename)).await {
            assert_eq!(answer, Ok(()), "none of them has left anything behind");
        }
    });
}

/// A server whose process has ended confirms nothing any more, and no server waits for that once another process on its
/// machine has seen the end; one whose whole machine is silent may still serve.
#[test]
fn a_server_that_has_ended_need_not_confirm() {
    for is_silent in [false, true] {
        with_cluster(3, |cluster, client| async move {
            let other = cluster.connect(1).await.expect("a quiet cluster connects");
            let (old, new) = (name_at(&client, 0, "old"), name_at(&client, 1, "new"));
            let dir = make(&client, &old, FileKind::Directory).await;
            // The other client caches the way through the directory; one of them knows server 2.
            let inner = format!("/{old}/inner").into_bytes();
            let made = other.create_path(&ROOT, &inner, &new_file(FileKind::Directory, true)).await;
            made.expect("a quiet cluster makes names");
            make(&client, &name_at(&client, 2, "there"), FileKind::File).await;
            create(&client, dir, &name_in(&client, dir, 2, "below").to_string()).await;
            cluster.kill_server(2, is_silent);
            cluster.sim.sleep(Duration::from_secs(3)).await;
            let answer = client.rename(&ROOT, Ino::ROOT, &old, Ino::ROOT, &new, false).await;
            if is_silent {
                let failure = answer.expect_err("a server has not confirmed it");
                assert!(failure.detail.contains("since server 2 has not confirmed"), "{failure}");
                return;
            }
            assert_eq!(answer, Ok(()));
            assert!(cluster.server(0).is_some_and(|server| server.map().is_gone(ServerIndex(2))));
            let old_way = other.resolve(&ROOT, &inner, true).await.map_err(|failure| failure.code);
            assert_eq!(old_way, Err(Code::NotFound), "nobody goes the old way");
            cluster.start_server(2).await.expect("a server that died can start again");
            cluster.sim.sleep(SETTLE).await;
            assert_eq!(names_of(&cluster, dir), [new]);
            assert!(cluster.servers().iter().all(|server| !server.map().is_gone(ServerIndex(2))));
        });
    }
}
