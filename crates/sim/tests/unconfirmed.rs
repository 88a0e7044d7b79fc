//! A rename has been done, and its coordinator does not know yet when somebody goes on with the new name
//! and the server of that dies. The coordinator then gave the old name back, for what was moved must have
//! one: it had one already, or was not to have one any more.

mod support;

use aze_client::Client;
use aze_io::sim::Link;
use aze_proto::{Code, FileKind, Ino, Name, NameHash, ServerIndex};
use aze_sim::Cluster;
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::time::Duration;
use support::{ROOT, create, with_cluster};

/// Longer than anything that goes on in the background.
const SETTLE: Duration = Duration::from_secs(40);

/// Shorter than any frame is on its way.
const MOMENT: Duration = Duration::from_micros(2);

/// A name in the root directory whose entry is on a server.
fn name_at(client: &Client, server: u16, prefix: &str) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards())) == Some(ServerIndex(server));
    (0..64).map(|index| support::name(&format!("{prefix}{index}"))).find(is_there).expect("of 64 names one is there")
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

/// Nobody goes on: then the old name is back, as the only one.
#[test]
fn what_nobody_touched_has_its_old_name_back() {
    with_cluster(3, |cluster, client| async move {
        let Unconfirmed { old, ino, .. } = unconfirmed(&cluster, &client, FileKind::File).await;
        restart(&cluster).await;
        assert_eq!(names_of(&cluster, ino), [old]);
    });
}
