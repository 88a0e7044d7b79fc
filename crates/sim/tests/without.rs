//! A volume in directories is started without some of its servers: the others serve what they have, and nothing is cleaned up, guessed or decided
//! that would remove what a server has which was left out. Each protection is removed once, which is noticed.

use crate::support::{ROOT, create, name, with_layout};
use aze_client::{Access, Client};
use aze_io::sim::{Faults, Sim};
use aze_proto::message::Durability;
use aze_proto::{Change, Code, Failure, FileKind, Identity, Ino, Name, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use aze_sim::persistence::{PersistentPlan, run_counting};
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The server that is left out, where one is.
const AWAY: u16 = 2;

/// Moments of one operation at which everything ends, and the time between two of them.
const MOMENTS: u64 = 24;
const MOMENT: Duration = Duration::from_micros(150);

fn layout(switches: Switches) -> Layout {
    Layout { durability: Some(Durability::Fsync), switches, ..Layout::of(4) }
}

/// The `number`-th name in a directory whose entry is on a server.
fn name_at(client: &Client, dir: Ino, server: u16, number: usize) -> Name {
    let map = client.map();
    let is_there =
        |name: &Name| map.server_of(NameHash::of(dir, name).shard(map.shards())) == Some(ServerIndex(server));
    let mut names = (0..4096).map(|index| name(&format!("n{index}"))).filter(is_there);
    names.nth(number).expect("of so many names some are there")
}

async fn make_dir(client: &Client, parent: Ino, name: &Name) -> Result<Ino, Failure> {
    client.create(&ROOT, parent, name, &new_file(FileKind::Directory, true)).await.map(|made| made.attr.ino)
}

/// A directory in the root whose name and home are on a server.
async fn dir_at(client: &Client, server: u16) -> (Name, Ino) {
    for number in 0..64 {
        let name = name_at(client, Ino::ROOT, server, number);
        match make_dir(client, Ino::ROOT, &name).await {
            Ok(dir) if client.map().home_of(dir) == Some(ServerIndex(server)) => return (name, dir),
            Ok(_) => {}
            Err(failure) => assert_eq!(failure.code, Code::Exists, "{failure}"),
        }
    }
    panic!("of so many directories none has its home on server {server}");
}

/// A file of a directory with a name on a server, and its inode.
async fn file_at(client: &Client, dir: Ino, server: u16, number: usize) -> (Name, Ino) {
    let name = name_at(client, dir, server, number);
    let file = create(client, dir, std::str::from_utf8(name.as_bytes()).expect("letters and digits")).await;
    file.write(0, name.as_bytes()).await.expect("all servers run");
    file.sync().await.expect("its servers run");
    let ino = file.attr().ino;
    file.close().await.expect("its servers run");
    (name, ino)
}

async fn is_whole(client: &Client, dir: Ino, name: &Name, content: &Name) -> Result<(), Failure> {
    let ino = client.lookup(&ROOT, dir, name).await?.ino;
    let file = client.open(&ROOT, ino, Access { read: true, write: false }).await?;
    let data = file.read(0, 100).await?;
    assert_eq!(data, content.as_bytes(), "{name} in {dir}");
    file.close().await
}

/// Everything ends and is started again, without some servers.
async fn again(cluster: &Arc<Cluster>, without: &[u16]) -> Result<(), Failure> {
    cluster.kill_all(4, true);
    cluster.begin_another_start();
    cluster.start_without(without).await
}

/// The same, and a client.
async fn again_with(cluster: &Arc<Cluster>, without: &[u16]) -> Result<Arc<Client>, Failure> {
    again(cluster, without).await?;
    cluster.connect(1).await
}

#[test]
fn the_others_serve_what_they_have_and_the_rest_comes_back_with_all() {
    with_layout(layout(Switches::default()), |cluster, client| async move {
        let mut made = Vec::new();
        for server in 0..4 {
            let (name, dir) = dir_at(&client, server).await;
            let (file, _) = file_at(&client, dir, server, 0).await;
            made.push((server, name, dir, file));
        }
        client.sync(&ROOT).await.expect("all run");
        let client = again_with(&cluster, &[AWAY]).await.expect("three of four start");
        let map = client.map();
        assert!(map.is_gone(ServerIndex(AWAY)) && map.servers[usize::from(AWAY)].is_left_out(), "{map:?}");
        for (server, name, dir, file) in &made {
            let found = client.lookup(&ROOT, Ino::ROOT, name).await.map(|attr| attr.ino);
            if *server == AWAY {
                assert!(found.as_ref().is_err_and(|failure| failure.code == Code::Unreachable), "{found:?}");
                continue;
            }
            assert_eq!(found.as_ref(), Ok(dir));
            assert_eq!(is_whole(&client, *dir, file, file).await, Ok(()), "server {server}");
            file_at(&client, *dir, *server, 1).await;
        }
        let refused = cluster.bring_back(AWAY).await.expect_err("it was not in this start");
        assert!(refused.detail.contains("was left out when the volume was last started"), "{refused}");
        let client = again_with(&cluster, &[]).await.expect("all are there");
        for (server, name, dir, file) in &made {
            assert_eq!(client.lookup(&ROOT, Ino::ROOT, name).await.map(|attr| attr.ino), Ok(*dir));
            assert_eq!(is_whole(&client, *dir, file, file).await, Ok(()), "server {server}");
            if *server != AWAY {
                let later = name_at(&client, *dir, *server, 1);
                assert_eq!(is_whole(&client, *dir, &later, &later).await, Ok(()), "server {server}");
            }
        }
    });
}

/// Whether two groups of servers that have none in common both start.
fn two_halves(switches: Switches) -> Result<(), String> {
    let sim = Sim::new(1, Faults::default());
    let cluster = Cluster::new(sim.clone(), layout(switches));
    let outcome = sim.block_on(async {
        cluster.start().await.expect("a quiet cluster starts");
        // Servers 0 to 2 decide.
        let starts = |without: &'static [u16]| again(&cluster, without);
        starts(&[2, 3]).await.map_err(|failure| format!("two of three are there: {failure}"))?;
        for without in [&[0, 1][..], &[0], &[0, 3]] {
            cluster.kill_all(0, true);
            cluster.begin_another_start();
            match cluster.start_without(without).await {
                Err(failure) if failure.detail.contains("could have started it without these") => {}
                other => return Err(format!("servers 0 and 1 have started, and then all but {without:?}: {other:?}")),
            }
        }
        // Server 0 has decided alone since.
        for without in [&[1, 2][..], &[1], &[3], &[]] {
            starts(without).await.map_err(|failure| format!("without {without:?}: {failure}"))?;
        }
        Ok(())
    });
    cluster.end();
    outcome
}

#[test]
fn of_two_halves_one_starts() {
    assert_eq!(two_halves(Switches::default()), Ok(()));
    assert!(two_halves(Switches::without(Sabotage::StartWithoutMajority)).is_err());
}

/// Names of a server that is left out are in a directory of another one. Gives what happens to it.
fn a_directory_is_removed(switches: Switches) -> Result<(), String> {
    with_layout(layout(switches), |cluster, client| async move {
        let (name, dir) = dir_at(&client, 1).await;
        let (file, _) = file_at(&client, dir, AWAY, 0).await;
        client.sync(&ROOT).await.expect("all run");
        let client = again_with(&cluster, &[AWAY]).await.expect("three of four start");
        let removed = client.rmdir(&ROOT, Ino::ROOT, &name).await;
        let client = again_with(&cluster, &[]).await.expect("all are there");
        is_whole(&client, dir, &file, &file).await.map_err(|failure| format!("rmdir: {removed:?}; then {failure}"))?;
        removed.err().map(drop).ok_or_else(|| "the directory had a name".into())
    })
}

#[test]
fn a_directory_in_which_a_server_that_is_away_has_names_is_not_removed() {
    assert_eq!(a_directory_is_removed(Switches::default()), Ok(()));
    assert!(a_directory_is_removed(Switches::without(Sabotage::ForgetLeftOut)).is_err());
}

/// A file has two names, one at a server that is left out; the other one is removed.
fn a_name_is_removed(switches: Switches) -> Result<(), String> {
    with_layout(layout(switches), |cluster, client| async move {
        let (_, dir) = dir_at(&client, 1).await;
        let mut number = 0;
        let (first, ino) = loop {
            let (name, ino) = file_at(&client, dir, 1, number).await;
            if client.map().home_of(ino) == Some(ServerIndex(1)) {
                break (name, ino);
            }
            number += 1;
        };
        let second = name_at(&client, dir, AWAY, 0);
        client.link(&ROOT, ino, dir, &second).await.expect("all run");
        client.sync(&ROOT).await.expect("all run");
        let client = again_with(&cluster, &[AWAY]).await.expect("three of four start");
        client.unlink(&ROOT, dir, &first).await.map_err(|failure| format!("unlink: {failure}"))?;
        cluster.sim.sleep(Duration::from_secs(3)).await;
        // What the removal has left of the file is on the disks: they keep it without a power cut.
        cluster.kill_all(4, false);
        cluster.begin_another_start();
        cluster.start_without(&[]).await.expect("all are there");
        let client = cluster.connect(1).await.expect("all run");
        is_whole(&client, dir, &second, &first).await.map_err(|failure| format!("the other name: {failure}"))
    })
}

#[test]
fn names_of_a_server_that_is_away_count() {
    assert_eq!(a_name_is_removed(Switches::default()), Ok(()));
    assert!(a_name_is_removed(Switches::without(Sabotage::CleanUpWithout)).is_err());
}

/// Everything ends at some moment of a rename to a name at a server that is left out then. Gives how often the old name was held.
fn a_rename_is_cut_off(switches: Switches) -> Result<usize, String> {
    let mut held = 0;
    for moment in 0..MOMENTS {
        let outcome = with_layout(layout(switches), |cluster, client| async move {
            let (_, dir) = dir_at(&client, 1).await;
            let (old, _) = file_at(&client, dir, 1, 0).await;
            let new = name_at(&client, dir, AWAY, 0);
            client.sync(&ROOT).await.expect("all run");
            let (from, to) = (old.clone(), new.clone());
            drop(cluster.on_client(0, async move { client.rename(&ROOT, dir, &from, dir, &to, false).await }));
            cluster.sim.sleep(MOMENT * moment as u32).await;
            let client = again_with(&cluster, &[AWAY]).await.expect("three of four start");
            let began_ns = cluster.sim.now_ns();
            let is_held = match client.lookup(&ROOT, dir, &old).await {
                Ok(_) => false,
                Err(failure) if failure.code == Code::NotFound => false,
                Err(_) => true,
            };
            let took = Duration::from_nanos(cluster.sim.now_ns() - began_ns);
            assert!(took < Duration::from_secs(30), "{took:?}");
            let client = again_with(&cluster, &[]).await.expect("all are there");
            let mut found = Vec::new();
            for name in [&old, &new] {
                match is_whole(&client, dir, name, &old).await {
                    Ok(()) => found.push(name.clone()),
                    Err(failure) if failure.code == Code::NotFound => {}
                    Err(failure) => return Err(format!("moment {moment}: {name}: {failure}")),
                }
            }
            match found.len() {
                1 => Ok(is_held),
                _ => Err(format!("moment {moment}: the file has the names {found:?}")),
            }
        });
        held += usize::from(outcome?);
    }
    Ok(held)
}

#[test]
fn a_rename_that_a_server_may_have_done_which_is_away_stays_in_doubt() {
    let held = a_rename_is_cut_off(Switches::default()).expect("the file has one name");
    assert!(held > 0, "no moment of these left it in doubt");
    assert!(a_rename_is_cut_off(Switches::without(Sabotage::GuessWithout)).is_err());
}

/// What moving a directory says while a server is left out.
fn a_directory_moves(switches: Switches) -> Result<(), Failure> {
    with_layout(layout(switches), |cluster, client| async move {
        let (name, _) = dir_at(&client, 1).await;
        let (_, other) = dir_at(&client, 3).await;
        let to = name_at(&client, other, 3, 0);
        client.sync(&ROOT).await.expect("all run");
        let client = again_with(&cluster, &[AWAY]).await.expect("three of four start");
        let again = name_at(&client, Ino::ROOT, 1, 70);
        client.rename(&ROOT, Ino::ROOT, &name, Ino::ROOT, &again, false).await.expect("it stays where it is");
        client.rename(&ROOT, Ino::ROOT, &again, other, &to, false).await
    })
}

#[test]
fn directories_do_not_move_while_a_server_is_away_that_may_have_been_moving_one() {
    let refused = a_directory_moves(Switches::default()).expect_err("server 2 is left out");
    assert!(refused.code == Code::Unreachable && refused.detail.contains("server 2 is left out"), "{refused}");
    assert_eq!(a_directory_moves(Switches::without(Sabotage::MoveWithout)), Ok(()));
}

/// Its rights are on every server's disk.
#[test]
fn names_in_the_root_are_found_without_its_home() {
    with_layout(layout(Switches::default()), |cluster, client| async move {
        let (file, _) = file_at(&client, Ino::ROOT, 1, 0).await;
        let change = Change { mode: Some(0o711), ..Change::default() };
        client.setattr(&ROOT, Ino::ROOT, &change).await.expect("all run");
        client.sync(&ROOT).await.expect("all run");
        for without in [&[0][..], &[0, 3]] {
            // The second time one of the two that decide since is missing, or the one that does.
            let client = match again_with(&cluster, without).await {
                Ok(client) => client,
                Err(failure) => panic!("without {without:?}: {failure}"),
            };
            assert_eq!(is_whole(&client, Ino::ROOT, &file, &file).await, Ok(()));
            let new = name_at(&client, Ino::ROOT, 1, without.len());
            let stranger = Identity { uid: 7, ..Identity::default() };
            let refused = client.create(&stranger, Ino::ROOT, &new, &new_file(FileKind::File, true)).await;
            assert_eq!(refused.map(drop).map_err(|failure| failure.code), Err(Code::AccessDenied));
            make_dir(&client, Ino::ROOT, &new).await.expect("the rights of the root are known");
        }
    });
}

/// Seeds that are looked at by this test alone; those of `persistent.rs` are the same plans.
#[test]
fn most_starts_without_some_servers_go_on() {
    let (mut without, mut refused) = (0, 0);
    for seed in 1000..1012 {
        let (violations, counts) = run_counting(&PersistentPlan::without(seed), false);
        assert_eq!(violations, Vec::<String>::new(), "seed {seed}");
        without += counts.without.load(Ordering::Relaxed);
        refused += counts.refused.load(Ordering::Relaxed);
    }
    assert!(without > 40 && refused > 2, "{without} starts, {refused} refused");
}
