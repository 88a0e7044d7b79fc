//! A server has ended, the root's home among others: what needs it fails at once, and names in the root go on at the others. What a client owes
//! it comes to it when it is back.

use crate::support::{ROOT, create, name, with_cluster, with_layout};
use aze_client::Client;
use aze_proto::message::Durability;
use aze_proto::{Change, Code, Failure, FileKind, Identity, Ino, Name, NameHash, ServerIndex, Time, XattrHow};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{CHUNK_BITS, Layout};
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SERVERS: u16 = 4;

/// A user who is not the owner.
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
    with_layout(durable(), |cluster, client| async move {
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

fn durable() -> Layout {
    Layout { durability: Some(Durability::Fsync), ..Layout::of(SERVERS) }
}

/// Changes on a volume in directories, too, and a server that is back does them.
#[test]
fn changes_that_need_a_server_that_has_ended_fail_at_once() {
    with_layout(durable(), |cluster, client| async move {
        let (there, far) = (name_at(&client, 2, "there"), name_at(&client, 1, "far"));
        let file = create(&client, Ino::ROOT, &there.to_string()).await;
        make(&client, &ROOT, &far).await.expect("a quiet cluster makes names");
        let idle = cluster.connect(1).await.expect("it connects");
        end(&cluster, &client, 2).await;
        let fresh = cluster.connect(2).await.expect("it connects");
        for client in [&client, &idle, &fresh] {
            let began_ns = cluster.sim.now_ns();
            let failed = [
                make(client, &ROOT, &name_at(client, 2, "new")).await.map(drop),
                client.unlink(&ROOT, Ino::ROOT, &there).await,
                client.rename(&ROOT, Ino::ROOT, &far, Ino::ROOT, &name_at(client, 2, "to"), false).await,
                client.truncate(&ROOT, file.ino(), 5, None).await.map(drop),
                file.append(b"more").await.map(drop),
            ];
            let took = Duration::from_nanos(cluster.sim.now_ns() - began_ns);
            assert!(took <= AT_ONCE * 5, "{took:?}");
            for failure in failed.map(|done| done.expect_err("its server is away")) {
                let names_it = failure.detail.contains("server 2 on");
                assert!(failure.code == Code::Unreachable && names_it, "{failure}");
            }
            let failure = client.unlink(&ROOT, Ino::ROOT, &there).await.expect_err("its server is away");
            assert!(failure.detail.contains("aze restart --server 2"), "{failure}");
        }
        cluster.bring_back(2).await.expect("it comes back");
        for (client, prefix) in [(&client, "a"), (&idle, "b"), (&fresh, "c")] {
            let name = name_at(client, 2, prefix);
            make(client, &ROOT, &name).await.expect("it is back");
            client.unlink(&ROOT, Ino::ROOT, &name).await.expect("it is back");
        }
        client.rename(&ROOT, Ino::ROOT, &far, Ino::ROOT, &there, false).await.expect("no name is held");
    });
}

/// A change that has been sent when its server ends waits for it, and is done once; one that could not be sent fails, and is not done.
#[test]
fn changes_under_way_end_as_their_server_says_when_it_is_back() {
    with_layout(durable(), |cluster, client| async move {
        client.status().await;
        let killed = Arc::new(AtomicBool::new(false));
        let tasks: Vec<_> = (0..40)
            .map(|number| {
                let (client, killed) = (client.clone(), killed.clone());
                cluster.on_client(0, async move {
                    let mut made = Vec::new();
                    while !killed.load(Ordering::Relaxed) {
                        let name = name_at(&client, 2, &format!("n{number}x{}x", made.len()));
                        let done = make(&client, &ROOT, &name).await;
                        made.push((name, done));
                    }
                    made
                })
            })
            .collect();
        cluster.sim.sleep(Duration::from_millis(10)).await;
        killed.store(true, Ordering::Relaxed);
        cluster.kill_server(2, false);
        cluster.sim.sleep(Duration::from_secs(2)).await;
        let began_ns = cluster.sim.now_ns();
        let late = name_at(&client, 2, "late");
        let failed = make(&client, &ROOT, &late).await.expect_err("its server is away");
        assert!(failed.code == Code::Unreachable && cluster.sim.now_ns() - began_ns < 1_000_000_000, "{failed}");
        cluster.bring_back(2).await.expect("it comes back");
        let mut all = vec![(late, Err(failed))];
        let mut all_done = 0;
        for task in tasks {
            let made = task.await.expect("the client lives");
            all_done += made.iter().filter(|(_, done)| done.is_ok()).count();
            all.extend(made);
        }
        for (name, done) in all {
            let found = client.lookup(&ROOT, Ino::ROOT, &name).await.map(|attr| attr.ino);
            match done {
                Ok(ino) => assert_eq!(found, Ok(ino), "{name}"),
                Err(failure) => {
                    assert_eq!(failure.code, Code::Unreachable, "{name}: {failure}");
                    assert_eq!(found.map_err(|failure| failure.code), Err(Code::NotFound), "{name}");
                }
            }
        }
        assert!(all_done > 0, "some were under way");
    });
}

/// A file of three chunks with room for a fourth at other servers than its home, which has ended.
async fn file_without_home(cluster: &Arc<Cluster>, client: &Arc<Client>) -> Arc<aze_client::File> {
    let file = create(client, Ino::ROOT, &name_at(client, 2, "file").to_string()).await;
    file.write(0, &vec![1; 3 << CHUNK_BITS]).await.expect("all servers live");
    end(cluster, client, 2).await;
    file
}

/// The data are at a server that lives, and the home learns of them when it is back.
#[test]
fn a_length_that_could_not_be_told_is_told_when_the_server_is_back() {
    with_layout(durable(), |cluster, client| async move {
        let file = file_without_home(&cluster, &client).await;
        let failure = file.write(3 << CHUNK_BITS, b"four").await.expect_err("its home is away");
        assert!(failure.detail.contains("aze restart --server 2"), "{failure}");
        let ino = file.ino();
        file.close().await.expect("nothing is unreported");
        cluster.sim.sleep(Duration::from_secs(60)).await;
        cluster.bring_back(2).await.expect("it comes back");
        cluster.sim.sleep(Duration::from_secs(10)).await;
        let other = cluster.connect(1).await.expect("it connects");
        assert_eq!(other.getattr(&ROOT, ino).await.map(|attr| attr.size), Ok((3 << CHUNK_BITS) + 4));
    });
}

/// A write has been acknowledged, and its time not told when its file's server ends: a close says so, and the time is told later.
#[test]
fn a_time_that_a_close_could_not_tell_is_told_when_the_server_is_back() {
    with_layout(durable(), |cluster, client| async move {
        let file = create(&client, Ino::ROOT, &name_at(&client, 2, "file").to_string()).await;
        let ino = file.ino();
        file.write(0, &vec![1; 3 << CHUNK_BITS]).await.expect("all servers live");
        file.write(1 << CHUNK_BITS, b"again").await.expect("all servers live");
        let before = cluster.connect(1).await.expect("it connects");
        let told = before.getattr(&ROOT, ino).await.expect("it is there").mtime;
        end(&cluster, &client, 2).await;
        assert_eq!(file.close().await.map_err(|failure| failure.code), Err(Code::Unreachable));
        cluster.sim.sleep(Duration::from_secs(60)).await;
        cluster.bring_back(2).await.expect("it comes back");
        cluster.sim.sleep(Duration::from_secs(10)).await;
        let after = before.getattr(&ROOT, ino).await.expect("it is there").mtime;
        assert!(after > told, "{after:?} {told:?}");
    });
}

/// The root goes on in part when its home has ended before any other server has needed it.
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
    with_layout(durable(), |cluster, client| async move {
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

/// Gives the root these modes, one after the other, ends its home, and gives the servers where another user may make
/// names then.
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

/// A client that has not looked at the root before shows the times of when its home has told its rights last.
#[test]
fn times_of_the_root_are_those_that_its_home_has_told() {
    let told_since = |modes: &'static [u32]| {
        move |cluster: Arc<Cluster>, client: Arc<Client>| async move {
            let mut told = client.getattr(&ROOT, Ino::ROOT).await.expect("its home is there");
            cluster.sim.sleep(Duration::from_secs(5)).await;
            make(&client, &ROOT, &name_at(&client, 1, "before")).await.expect("a name in the root");
            for mode in modes {
                let change = Change { mode: Some(*mode), ..Change::default() };
                let changed = client.setattr(&ROOT, Ino::ROOT, &change).await.expect("the root's rights are changed");
                assert!(changed.ctime > told.ctime && changed.mtime > told.mtime, "{changed:?} {told:?}");
                // The name is at another server than the root, and its time was not told.
                told.ctime = changed.ctime;
            }
            make(&client, &ROOT, &name_at(&client, 1, "after")).await.expect("a name in the root");
            end(&cluster, &client, 0).await;
            let fresh = cluster.connect(2).await.expect("it connects");
            let shown = fresh.getattr_within(&ROOT, Ino::ROOT, Duration::ZERO).await.expect("for the kernel").attr;
            assert!(told.mtime > Time(0));
            assert_eq!((shown.mtime, shown.ctime), (told.mtime, told.ctime), "{modes:?}");
            assert_eq!((shown.size, shown.links), (0, 1), "nobody knows them");
        }
    };
    for layout in [Layout::of(SERVERS), durable()] {
        with_layout(layout.clone(), told_since(&[]));
        with_layout(layout, told_since(&[0o700, 0o750]));
    }
}

/// Access control lists of the root are rights; other attributes of it only its home has.
#[test]
fn lists_of_the_root_are_known_without_its_home() {
    with_cluster(SERVERS, |cluster, client| async move {
        // Version 2; the owner, user 7, the owning group, the mask, and others, each with a tag, rights and a number.
        let entries = [(1u16, 7u16, u32::MAX), (2, 7, 7), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights, number) in entries {
            list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()).chain(number.to_le_bytes()));
        }
        let (access, default) = (&b"system.posix_acl_access"[..], &b"system.posix_acl_default"[..]);
        client.set_xattr(&ROOT, Ino::ROOT, access, &list, XattrHow::Any).await.expect("a proper list");
        let there = client.get_xattr(&ROOT, Ino::ROOT, access).await.expect("it was set");
        end(&cluster, &client, 0).await;
        let fresh = cluster.connect(2).await.expect("it connects");
        for client in [client, fresh] {
            assert_eq!(client.get_xattr(&ROOT, Ino::ROOT, access).await, Ok(there.clone()));
            let failed = |failure: Failure| failure.code;
            let code = client.get_xattr(&ROOT, Ino::ROOT, default).await.map_err(failed);
            assert_eq!(code, Err(Code::NoAttribute));
            let code = client.get_xattr(&ROOT, Ino::ROOT, b"user.any").await.map_err(failed);
            assert_eq!(code, Err(Code::Unreachable));
            let changed = client.set_xattr(&ROOT, Ino::ROOT, access, &list, XattrHow::Any).await;
            assert_eq!(changed.map_err(failed), Err(Code::Unreachable));
            make(&client, &OTHER, &name_at(&client, 1, &format!("n{}x", cluster.sim.now_ns())))
                .await
                .expect("the list lets him");
        }
    });
}

#[test]
fn a_change_of_the_root_that_only_holders_hear_of_is_noticed() {
    let switches = Switches::without(Sabotage::TellHoldersOfRoot);
    with_layout(Layout { switches, ..Layout::of(SERVERS) }, |cluster, client| async move {
        assert_ne!(enters_after(cluster, client, &[0o777]).await, [1, 2, 3]);
    });
}
