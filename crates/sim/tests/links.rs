//! How many names a file has: exact in the end, whichever answers were lost and servers died.

use crate::support::{ROOT, create, name, with_cluster, with_layout};
use aze_client::Client;
use aze_io::sim::Link;
use aze_proto::message::Durability;
use aze_proto::{Code, Ino, NameHash, ServerIndex};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use futures_util::future::{join, join_all};
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything that goes on in the background.
const SETTLE: Duration = Duration::from_secs(40);

/// A file whose inode is on server `home`.
async fn file_at(client: &Arc<Client>, home: u16) -> Ino {
    for index in 0..64 {
        let file = create(client, Ino::ROOT, &format!("file{home} {index}")).await;
        let ino = file.ino();
        file.close().await.expect("a file that is open can be closed");
        if client.map().home_of(ino) == Some(ServerIndex(home)) {
            return ino;
        }
    }
    panic!("of 64 names one hashes to each of three servers");
}

/// Names whose entries are on server `server`.
fn names_at(client: &Client, server: u16, prefix: &str) -> Vec<aze_proto::Name> {
    let map = client.map();
    let here = |name: &aze_proto::Name| {
        map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards())) == Some(ServerIndex(server))
    };
    (0..64).map(|index| name(&format!("{prefix}{index}"))).filter(here).take(8).collect()
}

/// An inode's link count in the tables, and the number of names in doubt on all servers.
fn settled(cluster: &Cluster, ino: Ino) -> (u32, u64) {
    let all: Vec<_> = cluster.servers().iter().map(|server| server.contents()).collect();
    let links =
        all.iter().flat_map(|contents| &contents.inodes).find(|attr| attr.ino == ino).map_or(0, |attr| attr.links);
    (links, all.iter().map(|contents| contents.in_doubt).sum())
}

#[test]
fn a_count_that_went_up_without_an_answer_comes_down_again() {
    with_cluster(3, |cluster, client| async move {
        let ino = file_at(&client, 2).await;
        let names = names_at(&client, 1, "new");
        client.link(&ROOT, ino, Ino::ROOT, &names[0]).await.expect("a quiet cluster links");
        cluster.sim.set_link("s2", "s1", Link::Down);
        let linked = join_all(names[1..].iter().map(|name| client.link(&ROOT, ino, Ino::ROOT, name))).await;
        assert!(linked.iter().all(Result::is_err), "the home's answers do not arrive: {linked:?}");
        cluster.sim.heal();
        cluster.sim.sleep(SETTLE).await;
        assert_eq!(settled(&cluster, ino), (2, 0));
    });
}

#[test]
fn a_name_that_went_is_taken_off_once_however_often_it_is_told() {
    with_cluster(3, |cluster, client| async move {
        let ino = file_at(&client, 2).await;
        let names = names_at(&client, 1, "old");
        for name in &names {
            client.link(&ROOT, ino, Ino::ROOT, name).await.expect("a quiet cluster links");
        }
        for (down, gone) in [(("s2", "s1"), &names[..4]), (("s1", "s2"), &names[4..7])] {
            cluster.sim.set_link(down.0, down.1, Link::Down);
            let removed = join_all(gone.iter().map(|name| client.unlink(&ROOT, Ino::ROOT, name))).await;
            assert!(
                removed.iter().all(|answer| answer.as_ref().err().is_none_or(|failure| failure.code != Code::NotFound))
            );
            // The client has its answer; the server of the names gives up later, and asks anew.
            cluster.sim.sleep(Duration::from_secs(15)).await;
            cluster.sim.heal();
            cluster.sim.sleep(SETTLE).await;
        }
        assert_eq!(settled(&cluster, ino), (2, 0));
    });
}

/// The server of a name that went dies when the home has answered, and has forgotten that it took the name off: in its next
/// life it must not ask for that once more.
#[test]
fn a_name_that_went_is_taken_off_once_though_its_server_dies_and_comes_back_alone() {
    let layout = Layout { durability: Some(Durability::Fsync), ..Layout::of(3) };
    with_layout(layout, |cluster, client| async move {
        let ino = file_at(&client, 2).await;
        let old = &names_at(&client, 1, "old")[0];
        client.link(&ROOT, ino, Ino::ROOT, old).await.expect("a quiet cluster links");
        cluster.sim.sleep(SETTLE).await;
        cluster.sim.set_link("s2", "s1", Link::Down);
        client.unlink(&ROOT, Ino::ROOT, old).await.expect("the name goes, whatever becomes of the count");
        assert_eq!(settled(&cluster, ino), (1, 2), "taken off, and the answer did not arrive: both sides remember it");
        // Server 1 asks on its own then: no answer of its brings its journal further.
        cluster.sim.sleep(Duration::from_secs(15)).await;
        cluster.sim.heal();
        for _ in 0..SETTLE.as_millis() {
            cluster.sim.sleep(Duration::from_millis(1)).await;
            if settled(&cluster, ino) == (1, 0) {
                break;
            }
        }
        assert_eq!(settled(&cluster, ino), (1, 0), "it is told once more, and both sides forget it");
        cluster.kill_server(1, false);
        cluster.bring_back(1).await.expect("a server that was killed comes back");
        cluster.sim.sleep(SETTLE).await;
        assert_eq!(settled(&cluster, ino), (1, 0));
        client.getattr(&ROOT, ino).await.expect("the file has a name");
    });
}

#[test]
fn a_link_whose_server_died_in_the_middle_is_not_counted() {
    with_cluster(3, |cluster, client| async move {
        let ino = file_at(&client, 2).await;
        let names = names_at(&client, 1, "new");
        // The first opens the connection on which the request of the other still arrives.
        client.link(&ROOT, ino, Ino::ROOT, &names[1]).await.expect("a quiet cluster links");
        client.unlink(&ROOT, Ino::ROOT, &names[1]).await.expect("and unlinks");
        cluster.sim.sleep(SETTLE).await;
        cluster.sim.set_link("s2", "s1", Link::Down);
        let (asking, other) = (client.clone(), names[0].clone());
        let linking = cluster.on_client(0, async move { asking.link(&ROOT, ino, Ino::ROOT, &other).await });
        cluster.sim.sleep(Duration::from_secs(2)).await;
        assert_eq!(settled(&cluster, ino), (2, 1), "counted, and not known to be made");
        cluster.kill_server(1, false);
        cluster.sim.heal();
        cluster.start_server(1).await.expect("a server that died can start again");
        // No server made the name, whichever answer the client got.
        let _ = linking.await;
        cluster.sim.sleep(SETTLE).await;
        assert_eq!(settled(&cluster, ino), (1, 0));
    });
}

/// Linking answered EBUSY when another file was just being renamed to the new name.
#[test]
fn a_link_to_a_name_that_is_being_renamed_waits() {
    with_cluster(3, |_cluster, client| async move {
        let ino = file_at(&client, 2).await;
        for index in 0..60 {
            let (from, to) = (name(&format!("from{index}")), name(&format!("to{index}")));
            create(&client, Ino::ROOT, &format!("from{index}")).await;
            let renaming = client.rename(&ROOT, Ino::ROOT, &from, Ino::ROOT, &to, false);
            let (renamed, linked) = join(renaming, client.link(&ROOT, ino, Ino::ROOT, &to)).await;
            renamed.expect("the old name is there");
            let code = linked.map(|_| ()).map_err(|failure| failure.code);
            assert!(matches!(code, Ok(()) | Err(Code::Exists)), "{code:?}");
        }
    });
}
