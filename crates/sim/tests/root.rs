//! A server has ended, the root's home among others: what needs it fails at once, and names in the root go on at the others.

mod support;

use aze_client::Client;
use aze_proto::message::Durability;
use aze_proto::{Change, Code, Failure, FileKind, Identity, Ino, Name, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::time::Duration;
use support::{ROOT, create, name, with_cluster, with_layout};

const SERVERS: u16 = 4;

/// Somebody who is not the owner.
static OTHER: Identity = Identity { uid: 7, gid: 7, groups: Vec::new() };

/// Some round trips: connecting takes two, the question to other servers another two.
const AT_ONCE: Duration = Duration::from_millis(20);

/// A name in the root whose entry is on a server.
fn name_at(client: &Client, server: u16, prefix: &str) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards())) == Some(ServerIndex(server));
    (0..256).map(|index| name(&format!("{prefix}{index}"))).find(is_there).expect("of 256 names one is there")
}

async fn make(client: &Client, who: &Identity, name: &Name) -> Result<Ino, Failure> {
    Ok(client.create(who, Ino::ROOT, name, &new_file(FileKind::File, true)).await?.attr.ino)
}

/// Kills a server whose end a client sees, and waits until the map says so.
async fn end(cluster: &Arc<Cluster>, client: &Arc<Client>, server: u16) {
    // Who is connected to a server sees its end.
    client.status().await;
    cluster.kill_server(server, false);
    while !cluster.newest_map().is_some_and(|map| map.is_gone(ServerIndex(server))) {
        cluster.sim.sleep(Duration::from_millis(10)).await;
        let failed = client.lookup(&ROOT, Ino::ROOT, &name_at(client, server, "gone")).await;
        assert!(failed.is_err(), "nobody can say whether it is there");
    }
}

/// How a lookup ends whose entry is on a server, and after which time.
async fn look(cluster: &Cluster, client: &Client, server: u16) -> (Result<Ino, Failure>, Duration) {
    let began_ns = cluster.sim.now_ns();
    let found = client.lookup(&ROOT, Ino::ROOT, &name_at(client, server, "there")).await.map(|attr| attr.ino);
    (found, Duration::from_nanos(cluster.sim.now_ns() - began_ns))
}

/// A fresh client and one that goes on hear at once that a server has ended, and of others nothing changes.
#[test]
fn what_needs_a_server_that_has_ended_fails_at_once() {
    for dead in 0..SERVERS {
        with_cluster(SERVERS, |cluster, client| async move {
            for server in 0..SERVERS {
                make(&client, &ROOT, &name_at(&client, server, "there")).await.expect("a quiet cluster makes names");
            }
            let idle = cluster.connect(1).await.expect("it connects");
            end(&cluster, &client, dead).await;
            let fresh = cluster.connect(2).await.expect("it connects");
            for (who, client) in [("idle", idle), ("fresh", fresh), ("which saw it", client)] {
                for server in 0..SERVERS {
                    let (found, took) = look(&cluster, &client, server).await;
                    assert!(took <= AT_ONCE, "{who}: server {server} after {dead} has ended: {took:?}, {found:?}");
                    match found {
                        Ok(_) => assert_ne!(server, dead, "{who}"),
                        Err(failure) => {
                            let names_it = failure.detail.contains(&format!("server {dead} on"));
                            assert!(
                                server == dead && failure.code == Code::Unreachable && names_it,
                                "{who}: {failure}"
                            );
                            assert!(failure.detail.contains("its process has ended"), "{failure}");
                        }
                    }
                }
            }
        });
    }
}

/// Requests under way when a server ends: those that change nothing fail, and on a volume in memory changes, too.
#[test]
fn requests_under_way_hear_of_the_end() {
    with_cluster(SERVERS, |cluster, client| async move {
        client.status().await;
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let client = client.clone();
                cluster.on_client(0, async move {
                    loop {
                        let name = name_at(&client, 2, &format!("n{number}x"));
                        if let Err(failure) = make(&client, &ROOT, &name).await {
                            return failure;
                        }
                        client.unlink(&ROOT, Ino::ROOT, &name).await.ok();
                    }
                })
            })
            .collect();
        cluster.sim.sleep(Duration::from_millis(50)).await;
        cluster.kill_server(2, false);
        let killed_ns = cluster.sim.now_ns();
        assert_eq!(tasks.len(), 40);
        for task in tasks {
            let failure = task.await.expect("the client lives");
            assert!(matches!(failure.code, Code::Unreachable | Code::UnknownOutcome), "{failure}");
        }
        let took = Duration::from_nanos(cluster.sim.now_ns() - killed_ns);
        assert!(took < Duration::from_secs(1), "{took:?}");
    });
}

/// A server of a volume in directories that comes back is used at once, by all clients.
#[test]
fn a_server_that_comes_back_is_used_at_once() {
    let layout = Layout { durability: Some(Durability::Fsync), ..Layout::of(SERVERS) };
    with_layout(layout, |cluster, client| async move {
        create(&client, Ino::ROOT, &name_at(&client, 2, "there").to_string()).await;
        let idle = cluster.connect(1).await.expect("it connects");
        end(&cluster, &client, 2).await;
        let fresh = cluster.connect(2).await.expect("it connects");
        for client in [&client, &idle, &fresh] {
            let (found, took) = look(&cluster, client, 2).await;
            let failure = found.expect_err("it is away");
            assert!(failure.detail.contains("aze restart --server 2") && took <= AT_ONCE, "{took:?}: {failure}");
        }
        cluster.bring_back(2).await.expect("it comes back");
        for client in [&client, &idle, &fresh] {
            let (found, took) = look(&cluster, client, 2).await;
            // A connection is tried again after a pause of up to 50 ms.
            assert!(found.is_ok() && took <= AT_ONCE * 5, "{took:?}: {found:?}");
        }
    });
}

/// What is left of the root when its home has ended before any other server has needed it.
async fn the_root_goes_on(cluster: Arc<Cluster>, client: Arc<Client>) {
    end(&cluster, &client, 0).await;
    let fresh = cluster.connect(2).await.expect("it connects");
    for (client, prefix) in [(&client, "old"), (&fresh, "new")] {
        for server in 1..SERVERS {
            let here = name_at(client, server, prefix);
            let ino = make(client, &ROOT, &here).await.expect("a name in the root");
            assert_eq!(client.lookup(&ROOT, Ino::ROOT, &here).await.map(|attr| attr.ino), Ok(ino));
            let there = name_at(client, server % (SERVERS - 1) + 1, &format!("{prefix}er"));
            assert_eq!(client.rename(&ROOT, Ino::ROOT, &here, Ino::ROOT, &there, false).await, Ok(()));
            assert_eq!(client.unlink(&ROOT, Ino::ROOT, &there).await, Ok(()));
            client.create(&ROOT, Ino::ROOT, &here, &new_file(FileKind::Directory, true)).await.expect("a directory");
            let refused = make(client, &OTHER, &name_at(client, server, "foreign")).await;
            assert_eq!(refused.expect_err("it is not his").code, Code::AccessDenied);
        }
        let began_ns = cluster.sim.now_ns();
        let stat = client.getattr(&ROOT, Ino::ROOT).await.expect_err("its times are at its home");
        let listed = client.list(&ROOT, Ino::ROOT, 0, 100, false).await.expect("others answer");
        let listed = listed.failure.expect("it may be short, and says so");
        for failure in [stat, listed] {
            assert!(failure.code == Code::Unreachable && failure.detail.contains("server 0 on"), "{failure}");
        }
        assert!(Duration::from_nanos(cluster.sim.now_ns() - began_ns) <= AT_ONCE);
        let shown = client.getattr_within(&ROOT, Ino::ROOT, Duration::ZERO).await.expect("for the kernel").attr;
        assert_eq!((shown.kind, shown.mode, shown.uid), (FileKind::Directory, 0o755, 0));
    }
}

#[test]
fn names_in_the_root_go_on_without_its_home() {
    with_cluster(SERVERS, |cluster, client| async move { the_root_goes_on(cluster, client).await });
}

/// The home of a volume in directories learns what happened meanwhile.
#[test]
fn the_home_of_the_root_learns_of_names_that_were_made_without_it() {
    let layout = Layout { durability: Some(Durability::Fsync), ..Layout::of(SERVERS) };
    with_layout(layout, |cluster, client| async move {
        the_root_goes_on(cluster.clone(), client.clone()).await;
        cluster.bring_back(0).await.expect("it comes back");
        let attr = client.getattr(&ROOT, Ino::ROOT).await.expect("its home is back");
        let names = client.list(&ROOT, Ino::ROOT, 0, 100, false).await.expect("it is listed");
        assert_eq!((attr.size, attr.links, names.entries.len()), (6, 8, 6));
        let change = Change { mode: Some(0o700), ..Change::default() };
        assert_eq!(client.setattr(&ROOT, Ino::ROOT, &change).await.map(|attr| attr.mode), Ok(0o700));
        for server in 0..SERVERS {
            let refused = client.lookup(&OTHER, Ino::ROOT, &name_at(&client, server, "old")).await;
            assert_eq!(refused.expect_err("it is not his").code, Code::AccessDenied, "server {server}");
        }
    });
}

/// Gives the root these modes, one after the other, ends its home, and gives the servers where somebody else may make names then.
async fn enters_after(cluster: Arc<Cluster>, client: Arc<Client>, modes: &[u32]) -> Vec<u16> {
    for mode in modes {
        let change = Change { mode: Some(*mode), ..Change::default() };
        client.setattr(&ROOT, Ino::ROOT, &change).await.expect("the root's rights are changed");
    }
    end(&cluster, &client, 0).await;
    let mut entered = Vec::new();
    for server in 1..SERVERS {
        if make(&client, &OTHER, &name_at(&client, server, "foreign")).await.is_ok() {
            entered.push(server);
        }
        make(&client, &ROOT, &name_at(&client, server, "own")).await.expect("the owner makes names");
    }
    entered
}

/// The rights that the root was given, or has lost, are those at each server, also if none has needed the root before.
#[test]
fn rights_of_the_root_are_known_everywhere() {
    for (modes, entered) in [(&[0o777][..], &[1, 2, 3][..]), (&[0o777, 0o700], &[])] {
        with_cluster(SERVERS, |cluster, client| async move {
            assert_eq!(enters_after(cluster, client, modes).await, entered, "{modes:?}");
        });
    }
}

#[test]
fn a_change_of_the_root_that_only_holders_hear_of_is_noticed() {
    let switches = Switches::without(Sabotage::TellHoldersOfRoot);
    with_layout(Layout { switches, ..Layout::of(SERVERS) }, |cluster, client| async move {
        assert_ne!(enters_after(cluster, client, &[0o777]).await, [1, 2, 3]);
    });
}
