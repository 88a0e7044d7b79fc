//! A directory that is renamed or loses rights: those servers are told that serve paths through it, and no others; no
//! client is served by an old path after that.

use crate::support::{ROOT, create, name, opened_file, with_layout};
use aze_client::{Access, Client, NewFile};
use aze_proto::slots::slot_of;
use aze_proto::{Change, Code, FileKind, Identity, Ino, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use std::sync::Arc;

const SERVERS: u16 = 8;

fn told(cluster: &Cluster) -> u64 {
    let counters = cluster.servers().into_iter().flat_map(|server| server.status().requests);
    counters.filter(|counter| counter.name == "EpochPush").map(|counter| counter.count).sum()
}

/// Requests that tell of changed paths: of renames of an empty directory, one with a file, one with a directory in it, one with 32 files; of a loss of
/// rights of the last but one.
async fn told_of_each(cluster: &Cluster, client: &Client) -> Vec<u64> {
    let dirs = ["empty", "file", "deep", "many"];
    for dir in dirs {
        client.mkdir_all(&ROOT, format!("/{dir}").as_bytes(), 0o755).await.expect("a new name");
    }
    client.create_path(&ROOT, b"/file/f", &opened_file()).await.expect("a new name");
    client.mkdir_all(&ROOT, b"/deep/in", 0o755).await.expect("a new name");
    for index in 0..32 {
        client.create_path(&ROOT, format!("/many/{index}").as_bytes(), &opened_file()).await.expect("a new name");
    }
    let mut counts = Vec::new();
    for dir in dirs {
        let before = told(cluster);
        let (from, to) = (format!("/{dir}"), format!("/{dir}2"));
        client.rename_path(&ROOT, from.as_bytes(), to.as_bytes(), false).await.expect("it is there");
        counts.push(told(cluster) - before);
    }
    let dir = client.resolve(&ROOT, b"/deep2", true).await.expect("it is there").ino;
    let before = told(cluster);
    client.setattr(&ROOT, dir, &Change { mode: Some(0o700), ..Change::default() }).await.expect("root may");
    counts.push(told(cluster) - before);
    counts
}

#[test]
fn who_serves_paths_through_a_directory_is_told_of_its_change_and_nobody_else() {
    for servers in [4, 16, 64] {
        let counts =
            with_layout(Layout::of(servers), |cluster, client| async move { told_of_each(&cluster, &client).await });
        let n = u64::from(servers);
        assert_eq!(counts.len(), 5);
        // The home; and a holder; and the home of the one within, that holds no stub; the servers that have one of 32
        // files; twice.
        let most = [1, 2, 3, n.min(32) + 1, 6];
        assert!(
            counts.iter().zip(most).all(|(count, most)| (1..=most).contains(count)),
            "{servers} servers: {counts:?}"
        );
    }
}

/// A client that has the way to a directory in its cache for each of so many names in it.
async fn clients_that_know(cluster: &Cluster, count: usize, path: &str) -> Vec<Arc<Client>> {
    let mut clients = Vec::new();
    for index in 0..count {
        let client = cluster.connect(1 + index).await.expect("a client connects");
        client.resolve(&ROOT, path.as_bytes(), true).await.expect("it is there");
        // A client caches the entries that it looked up on the way to a name.
        let none = client.resolve(&ROOT, format!("{path}/none").as_bytes(), true).await;
        assert_eq!(none.err().map(|failure| failure.code), Some(Code::NotFound));
        clients.push(client);
    }
    clients
}

/// What clients do by paths through `/a` after that was renamed: those that were served.
async fn served(cluster: &Cluster, one: &Client, rename: (&str, &str), old: &str) -> Vec<String> {
    one.mkdir_all(&ROOT, b"/a/b/c", 0o755).await.expect("directories can be made");
    for dir in ["/a", "/a/b", "/a/b/c"] {
        one.create_path(&ROOT, format!("{dir}/f").as_bytes(), &opened_file()).await.expect("a new name");
    }
    let clients = clients_that_know(cluster, 24, old).await;
    let (from, to) = rename;
    one.rename_path(&ROOT, from.as_bytes(), to.as_bytes(), false).await.expect("it is there");
    let mut served = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        // One in three opens a file that is there: those go to its server.
        let path = format!("{old}/f");
        let done = if index % 3 == 0 {
            client.open_path(&ROOT, &path, Access { read: true, write: false }).await.map(drop)
        } else {
            client.create_path(&ROOT, format!("{old}/new{index}").as_bytes(), &opened_file()).await.map(drop)
        };
        match done {
            Ok(()) => served.push(format!("{index}: {old}")),
            Err(failure) => assert_eq!(failure.code, Code::NotFound, "{failure:?}"),
        }
    }
    served
}

fn all_served(switches: Switches) -> Vec<String> {
    let cases = [
        (("/a", "/z"), "/a"),
        (("/a", "/z"), "/a/b"),
        (("/a", "/z"), "/a/b/c"),
        (("/a/b", "/a/z"), "/a/b"),
        (("/a/b", "/z"), "/a/b/c"),
    ];
    let layout = Layout { switches, ..Layout::of(SERVERS) };
    let mut all = Vec::new();
    for (rename, old) in cases {
        all.extend(with_layout(
            layout.clone(),
            |cluster, one| async move { served(&cluster, &one, rename, old).await },
        ));
    }
    all
}

#[test]
fn nobody_is_served_by_an_old_path() {
    assert_eq!(all_served(Switches::default()), Vec::<String>::new());
    for sabotage in [
        Sabotage::SkipNamespaceEpochCheck,
        Sabotage::TellHomesAlone,
        Sabotage::TellOneDirectory,
        Sabotage::GrantStubsAlone,
        Sabotage::CheckPathsOnce,
    ] {
        assert_ne!(all_served(Switches::without(sabotage)), Vec::<String>::new(), "{sabotage:?} is noticed");
    }
}

/// Moves files into a directory by a path that it has no more.
fn moved_in(switches: Switches) -> usize {
    with_layout(Layout { switches, ..Layout::of(SERVERS) }, |cluster, one| async move {
        one.mkdir_all(&ROOT, b"/a/b", 0o755).await.expect("directories can be made");
        one.mkdir_all(&ROOT, b"/x", 0o755).await.expect("directories can be made");
        let clients = clients_that_know(&cluster, 16, "/a/b").await;
        for index in 0..clients.len() {
            one.create_path(&ROOT, format!("/x/{index}").as_bytes(), &opened_file()).await.expect("a new name");
        }
        one.rename_path(&ROOT, b"/a", b"/z", false).await.expect("it is there");
        let mut moved = 0;
        for (index, client) in clients.iter().enumerate() {
            let (from, to) = (format!("/x/{index}"), format!("/a/b/{index}"));
            match client.rename_path(&ROOT, from.as_bytes(), to.as_bytes(), false).await {
                Ok(()) => moved += 1,
                Err(failure) => assert_eq!(failure.code, Code::NotFound, "{failure:?}"),
            }
        }
        moved
    })
}

#[test]
fn nothing_is_moved_to_an_old_path() {
    assert_eq!(moved_in(Switches::default()), 0);
    assert_ne!(moved_in(Switches::without(Sabotage::RenameUntold)), 0, "it is noticed");
}

/// A directory is renamed, and its home moves to a server that was not told.
fn served_after_a_move(switches: Switches, by: u16) -> usize {
    with_layout(Layout { switches, ..Layout::of(SERVERS) }, |cluster, one| async move {
        let dir = one.mkdir_all(&ROOT, b"/a", 0o755).await.expect("directories can be made").ino;
        let clients = clients_that_know(&cluster, 16, "/a").await;
        one.rename_path(&ROOT, b"/a", b"/z", false).await.expect("it is there");
        let map = cluster.newest_map().expect("it is in use");
        let home = map.home_of(dir).expect("it has a home");
        let slot = slot_of(dir.home(map.shards()), map.slots.len());
        let to = ServerIndex((home.0 + by) % SERVERS);
        let moved = cluster.at_server(map.keeper, move |keeper| async move { keeper.move_slot(slot, to).await }).await;
        moved.expect("they run").expect("a slot can move");
        let mut served = 0;
        for (index, client) in clients.iter().enumerate() {
            let new = client.create_path(&ROOT, format!("/a/new{index}").as_bytes(), &opened_file()).await;
            served += usize::from(new.is_ok());
        }
        served
    })
}

#[test]
fn a_home_that_moves_takes_with_it_what_it_was_told() {
    let all = |switches| (1..SERVERS).map(|by| served_after_a_move(switches, by)).sum::<usize>();
    assert_eq!(all(Switches::default()), 0);
    assert_ne!(all(Switches::without(Sabotage::TellBeforeMoves)), 0, "it is noticed");
}

/// A user who has lost the right to search a directory, or one above it, is not served in any below.
#[test]
fn who_has_lost_the_way_is_served_nowhere_below() {
    for closed in ["/a", "/a/b", "/a/b/c"] {
        with_layout(Layout::of(SERVERS), |cluster, one| async move {
            let dir = one.mkdir_all(&ROOT, b"/a/b/c", 0o777).await.expect("directories can be made").ino;
            one.setattr(&ROOT, dir, &Change { mode: Some(0o777), ..Change::default() }).await.expect("root may");
            let user = Identity { uid: 7, gid: 7, groups: Vec::new() };
            let two = cluster.connect(1).await.expect("a client connects");
            let three = cluster.connect(2).await.expect("a client connects");
            for index in 0..8 {
                let path = format!("/a/b/c/{index}").into_bytes();
                two.create_path(&user, &path, &opened_file()).await.expect("all may");
                three.resolve(&user, &path, true).await.expect("all may");
            }
            let ino = one.resolve(&ROOT, closed.as_bytes(), true).await.expect("it is there").ino;
            one.setattr(&ROOT, ino, &Change { mode: Some(0o700), ..Change::default() }).await.expect("root may");
            for index in 0..32 {
                let path = format!("/a/b/c/{index}").into_bytes();
                for client in [&two, &three] {
                    let seen = client.resolve(&user, &path, true).await;
                    assert_eq!(seen.err().map(|failure| failure.code), Some(Code::AccessDenied), "{closed}: {index}");
                }
            }
        });
    }
}

/// Who does not hear is not waited for unless it serves such paths.
#[test]
fn a_silent_server_that_has_nothing_below_is_no_hindrance() {
    with_layout(Layout::of(SERVERS), |cluster, one| async move {
        let dir = one.mkdir_all(&ROOT, b"/a", 0o755).await.expect("directories can be made").ino;
        let map = cluster.newest_map().expect("it is in use");
        let at = |parent: Ino, text: &str| map.server_of(NameHash::of(parent, &name(text)).shard(map.shards()));
        let concerned =
            [map.home_of(dir), map.home_of(Ino::ROOT), at(Ino::ROOT, "a"), at(Ino::ROOT, "z"), Some(map.keeper)];
        let silent =
            (0..SERVERS).rev().find(|index| !concerned.contains(&Some(ServerIndex(*index)))).expect("of eight");
        assert!(!map.group.members.iter().any(|member| member.server.0 == silent), "it only serves");
        cluster.kill_server(silent, true);
        one.rename_path(&ROOT, b"/a", b"/z", false).await.expect("nobody else has to know");
        let new = NewFile { kind: FileKind::Directory, open: None, ..opened_file() };
        drop(one.create(&ROOT, dir, &name("b"), &new).await);
        create(&one, Ino::ROOT, "end").await;
    });
}

/// A server whose clients make and remove names tells homes of that. One that has missed changes of other paths is not held up.
#[test]
fn a_server_that_has_missed_changes_of_paths_works_on_at_once() {
    with_layout(Layout::of(SERVERS), |cluster, one| async move {
        one.mkdir_all(&ROOT, b"/a", 0o755).await.expect("directories can be made");
        for index in 0..32 {
            one.create_path(&ROOT, format!("/a/{index}").as_bytes(), &opened_file()).await.expect("a new name");
        }
        // From here on the home of /a counts on the parts that servers have named.
        let dir = one.resolve(&ROOT, b"/a", true).await.expect("it is there").ino;
        one.getattr(&ROOT, dir).await.expect("it is there");
        // Each of these is told to one home, that of /a among them.
        for index in 0..16 {
            let (from, to) = (format!("/b{index}"), format!("/c{index}"));
            one.mkdir_all(&ROOT, from.as_bytes(), 0o755).await.expect("directories can be made");
            one.rename_path(&ROOT, from.as_bytes(), to.as_bytes(), false).await.expect("it is there");
        }
        let began_ns = cluster.sim.now_ns();
        for index in 0..32 {
            one.unlink_path(&ROOT, format!("/a/{index}").as_bytes()).await.expect("it is there");
        }
        let took_ms = (cluster.sim.now_ns() - began_ns) / 1_000_000;
        assert!(took_ms < 500, "{took_ms} ms");
    });
}
