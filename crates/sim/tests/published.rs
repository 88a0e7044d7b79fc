//! What clients read without a request is what a request would have been answered with, and takes none.

use crate::support::{ROOT, create, name, with_cluster, with_layout};
use aze_client::Client;
use aze_io::sim::Link;
use aze_proto::message::Durability;
use aze_proto::{Change, Code, FileKind, Identity, Ino, NameHash, ServerIndex};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::{Layout, server_node};
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::time::Duration;

fn layout(servers: u16) -> Layout {
    Layout { published_bytes: 1 << 20, ..Layout::of(servers) }
}

/// Requests that the servers have been asked by now, but for those that no caller waits for.
fn asked(cluster: &Cluster) -> u64 {
    let counters = cluster.servers().into_iter().flat_map(|server| server.status().requests);
    counters.filter(|counter| counter.name != "Close").map(|counter| counter.count).sum()
}

async fn size(client: &Client, path: &str) -> Result<u64, Code> {
    client.resolve(&ROOT, path.as_bytes(), true).await.map(|attr| attr.size).map_err(|failure| failure.code)
}

async fn other(cluster: &Arc<Cluster>) -> Arc<Client> {
    cluster.connect(1).await.expect("a second client connects")
}

#[test]
fn a_stat_takes_no_request_and_shows_what_was_acknowledged() {
    with_layout(layout(3), |cluster, client| async move {
        let other = other(&cluster).await;
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("made").ino;
        for round in 0..40 {
            let (text, path) = (format!("f{round}"), format!("/dir/f{round}"));
            create(&client, dir, &text).await;
            // Makes every server let this client look names up.
            assert_eq!((size(&client, &path).await, size(&other, &path).await), (Ok(0), Ok(0)));
        }
        for round in 0..40 {
            let (text, path) = (format!("g{round}"), format!("/dir/g{round}"));
            let file = create(&client, dir, &text).await;
            let before = asked(&cluster);
            assert_eq!((size(&client, &path).await, size(&other, &path).await), (Ok(0), Ok(0)));
            assert_eq!(client.getattr(&ROOT, file.ino()).await.map(|attr| attr.links), Ok(1));
            assert_eq!(asked(&cluster), before, "{path}: nobody was asked");
            file.write(0, b"seven b").await.expect("written");
            assert_eq!(size(&other, &path).await, Ok(7));
            client.truncate(&ROOT, file.ino(), 3, None).await.expect("cut");
            assert_eq!(size(&other, &path).await, Ok(3));
            let change = Change { mode: Some(0o600), ..Change::default() };
            client.setattr(&ROOT, file.ino(), &change).await.expect("changed");
            let seen = other.resolve(&ROOT, path.as_bytes(), true).await.expect("there");
            assert_eq!((seen.mode, seen.ino), (0o600, file.ino()));
            file.close().await.expect("closed");
            match round % 4 {
                0 => {
                    client.unlink(&ROOT, dir, &name(&text)).await.expect("removed");
                    assert_eq!(size(&other, &path).await, Err(Code::NotFound));
                    // Its close is sent a little later, and only then it goes.
                    cluster.sim.sleep(Duration::from_secs(1)).await;
                    assert_eq!(other.getattr(&ROOT, file.ino()).await.map_err(|gone| gone.code), Err(Code::Stale));
                }
                1 => {
                    let moved = name(&format!("moved{round}"));
                    client.rename(&ROOT, dir, &name(&text), dir, &moved, false).await.expect("renamed");
                    assert_eq!(size(&other, &path).await, Err(Code::NotFound));
                    assert_eq!(size(&other, &format!("/dir/{moved}")).await, Ok(3));
                }
                2 => {
                    client.link(&ROOT, file.ino(), dir, &name(&format!("link{round}"))).await.expect("linked");
                    let linked = other.resolve(&ROOT, path.as_bytes(), true).await;
                    assert_eq!(linked.map(|attr| attr.links), Ok(2));
                }
                _ => {
                    create(&client, dir, "in its place").await.write(0, b"12345").await.expect("written");
                    client.rename(&ROOT, dir, &name("in its place"), dir, &name(&text), false).await.expect("replaced");
                    assert_eq!(size(&other, &path).await, Ok(5));
                }
            }
        }
    });
}

#[test]
fn who_loses_the_right_to_search_a_directory_reads_nothing_more_in_it() {
    with_layout(layout(2), |cluster, client| async move {
        let other = other(&cluster).await;
        let user = Identity { uid: 77, gid: 77, groups: Vec::new() };
        let stranger = Identity { uid: 78, gid: 78, groups: Vec::new() };
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o700).await.expect("made").ino;
        for number in 0..8 {
            create(&client, dir, &format!("f{number}")).await.close().await.expect("closed");
        }
        let mode = |mode| Change { mode: Some(mode), ..Change::default() };
        let may = |who: Identity, number: u32| {
            let other = other.clone();
            async move {
                let found = other.lookup(&who, dir, &name(&format!("f{number}"))).await;
                found.map(drop).map_err(|failure| failure.code)
            }
        };
        for _ in 0..3 {
            for number in 0..8 {
                assert_eq!(may(ROOT.clone(), number).await, Ok(()), "root looks it up, again and again");
                assert_eq!(may(user.clone(), number).await, Err(Code::AccessDenied));
            }
        }
        client.setattr(&ROOT, dir, &mode(0o711)).await.expect("changed");
        let before = other.answers_without_request();
        for _ in 0..3 {
            for number in 0..8 {
                assert_eq!(may(user.clone(), number).await, Ok(()));
            }
        }
        assert!(other.answers_without_request() > before + 8, "most of them took no request");
        client.setattr(&ROOT, dir, &mode(0o700)).await.expect("changed");
        for number in 0..8 {
            assert_eq!(may(user.clone(), number).await, Err(Code::AccessDenied));
            assert_eq!(may(stranger.clone(), number).await, Err(Code::AccessDenied));
        }
    });
}

/// Looks up a name; gives whether it is there, and whether that took a request.
async fn is_there(cluster: &Cluster, client: &Client, dir: Ino, text: &str) -> (bool, bool) {
    let before = asked(cluster);
    let found = match client.lookup(&ROOT, dir, &name(text)).await {
        Ok(_) => true,
        Err(failure) if failure.code == Code::NotFound => false,
        Err(failure) => panic!("{text}: {failure}"),
    };
    (found, asked(cluster) > before)
}

#[test]
fn a_name_that_does_not_exist_takes_no_request() {
    with_layout(layout(3), |cluster, client| async move {
        let other = other(&cluster).await;
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("made").ino;
        for round in 0..40 {
            // Makes every server let both look names up.
            for client in [&client, &other] {
                assert!(!is_there(&cluster, client, dir, &format!("x{round}")).await.0);
            }
        }
        let long = "n".repeat(200);
        let mut unasked = 0;
        for (round, kind) in [FileKind::File, FileKind::Directory, FileKind::Fifo].iter().cycle().take(30).enumerate() {
            let (text, moved) = (format!("{long}{round}"), format!("moved{round}"));
            for client in [&client, &other] {
                let (found, took) = is_there(&cluster, client, dir, &text).await;
                assert!(!found);
                unasked += u32::from(!took);
            }
            client.create(&ROOT, dir, &name(&text), &new_file(*kind, true)).await.expect("made");
            assert!(is_there(&cluster, &other, dir, &text).await.0);
            client.rename(&ROOT, dir, &name(&text), dir, &name(&moved), false).await.expect("renamed");
            assert!(!is_there(&cluster, &other, dir, &text).await.0);
            assert!(is_there(&cluster, &other, dir, &moved).await.0);
            if *kind == FileKind::File {
                let ino = client.lookup(&ROOT, dir, &name(&moved)).await.expect("there").ino;
                client.link(&ROOT, ino, dir, &name(&text)).await.expect("linked");
                assert!(is_there(&cluster, &other, dir, &text).await.0);
                client.unlink(&ROOT, dir, &name(&text)).await.expect("removed");
            }
            match kind {
                FileKind::Directory => client.rmdir(&ROOT, dir, &name(&moved)).await.expect("removed"),
                _ => client.unlink(&ROOT, dir, &name(&moved)).await.expect("removed"),
            }
            for text in [text, moved] {
                let (found, took) = is_there(&cluster, &other, dir, &text).await;
                assert!(!found);
                unasked += u32::from(!took);
            }
        }
        assert!(unasked >= 110, "{unasked} of 120 names took no request");
        client.rmdir(&ROOT, Ino::ROOT, &name("dir")).await.expect("removed");
        let gone = other.lookup(&ROOT, dir, &name("x")).await.expect_err("there is no such directory");
        assert!(matches!(gone.code, Code::NotFound | Code::Stale), "{gone}");
    });
}

#[test]
fn a_removal_that_was_seen_comes_before_what_is_done_next() {
    with_layout(layout(3), |cluster, client| async move {
        let other = other(&cluster).await;
        for round in 0..20 {
            assert!(!is_there(&cluster, &other, Ino::ROOT, &format!("x{round}")).await.0);
        }
        for round in 0..20 {
            let (text, next) = (format!("f{round}"), format!("g{round}"));
            let file = create(&client, Ino::ROOT, &text).await;
            client.unlink(&ROOT, Ino::ROOT, &name(&text)).await.expect("removed");
            assert!(!is_there(&cluster, &other, Ino::ROOT, &text).await.0);
            let made = create(&other, Ino::ROOT, &next).await.attr().mtime;
            // No client was told before that, lest all clocks should know.
            let removed = client.getattr(&ROOT, file.ino()).await.expect("open").ctime;
            assert!(made >= removed, "{made:?} after {removed:?}");
        }
    });
}

#[test]
fn a_server_that_is_gone_is_no_longer_read() {
    with_layout(layout(2), |cluster, client| async move {
        let mut on_dead = Vec::new();
        for number in 0..16 {
            let file = create(&client, Ino::ROOT, &format!("f{number}")).await;
            if client.map().home_of(file.ino()) == Some(aze_proto::ServerIndex(1)) {
                on_dead.push(format!("/f{number}"));
            }
            file.close().await.expect("closed");
            for _ in 0..2 {
                assert_eq!(size(&client, &format!("/f{number}")).await, Ok(0));
            }
        }
        assert!(client.answers_without_request() > 0 && !on_dead.is_empty());
        cluster.kill_server(1, false);
        for path in &on_dead {
            let read = client.answers_without_request();
            let failed = size(&client, path).await.expect_err("nobody is there to say so");
            assert!(matches!(failed, Code::TimedOut | Code::Unreachable), "{path}: {failed:?}");
            assert_eq!(client.answers_without_request(), read, "{path}");
        }
        cluster.start_server(1).await.expect("it starts again, empty");
        cluster.sim.sleep(Duration::from_secs(5)).await;
        for path in &on_dead {
            assert_eq!(size(&client, path).await, Err(Code::Lost), "{path}: its directory was whole before");
        }
    });
}

#[test]
fn after_the_end_of_the_session_nothing_is_read() {
    with_layout(layout(1), |_cluster, client| async move {
        create(&client, Ino::ROOT, "f").await.close().await.expect("closed");
        for _ in 0..3 {
            assert_eq!(size(&client, "/f").await, Ok(0));
        }
        assert!(client.answers_without_request() > 0);
        client.close().await.expect("nothing is unreported");
        assert_eq!(size(&client, "/f").await, Err(Code::Expired));
    });
}

#[test]
fn what_is_not_a_regular_file_or_has_a_long_name_is_asked_for() {
    with_layout(layout(1), |cluster, client| async move {
        let long = "n".repeat(40);
        for (text, kind) in [("fifo", FileKind::Fifo), ("dir", FileKind::Directory), (long.as_str(), FileKind::File)] {
            client.create(&ROOT, Ino::ROOT, &name(text), &new_file(kind, true)).await.expect("made");
            for _ in 0..3 {
                let before = asked(&cluster);
                let found = client.lookup(&ROOT, Ino::ROOT, &name(text)).await.expect("there");
                assert_eq!((found.kind, asked(&cluster)), (kind, before + 1));
            }
        }
    });
}

#[test]
fn without_a_published_index_everything_is_asked_for() {
    with_cluster(1, |_cluster, client| async move {
        create(&client, Ino::ROOT, "f").await.close().await.expect("closed");
        for _ in 0..3 {
            assert_eq!(size(&client, "/f").await, Ok(0));
        }
        assert_eq!(client.answers_without_request(), 0);
    });
}

#[test]
fn a_volume_that_lasts_is_asked() {
    let layout = Layout { durability: Some(Durability::Fsync), ..layout(1) };
    with_layout(layout, |_cluster, client| async move {
        create(&client, Ino::ROOT, "f").await.close().await.expect("closed");
        for _ in 0..3 {
            assert_eq!(size(&client, "/f").await, Ok(0));
        }
        assert_eq!(client.answers_without_request(), 0);
    });
}

/// A server that stops, since an operation contradicts one of its shards, shows nothing more without a request, either.
#[test]
fn nothing_is_shown_by_a_server_whose_shard_is_contradicted() {
    with_layout(layout(1), |cluster, client| async move {
        create(&client, Ino::ROOT, "a").await;
        for _ in 0..2 {
            assert_eq!(size(&client, "/a").await, Ok(0));
        }
        let before = asked(&cluster);
        assert_eq!((size(&client, "/a").await, asked(&cluster)), (Ok(0), before));
        cluster.server(0).expect("it runs").contradict();
        assert_eq!(size(&client, "/a").await, Err(Code::Lost));
    });
}

/// Slots move from server 2 to others, and server 1 hears late that it has them: the keeper's word gets lost. A client that knows it looks
/// names up which are there. Gives how many lookups there were, and how many found nothing.
fn looked_up_while_slots_move(switches: Switches) -> (usize, usize) {
    let (tell, told) = std::sync::mpsc::channel();
    with_layout(Layout { switches, ..layout(3) }, |cluster, client| async move {
        let mover = other(&cluster).await;
        let paths: Vec<String> = (0..200).map(|number| format!("/f{number}")).collect();
        for path in &paths {
            create(&client, Ino::ROOT, &path[1..]).await.close().await.expect("closed");
        }
        for path in paths.iter().chain(&paths) {
            assert_eq!(size(&client, path).await, Ok(0), "it is there, and every server lets this client look");
        }
        let (mut lookups, mut lost) = (0, 0);
        loop {
            let before = cluster.server(0).expect("it runs").map();
            let mover = mover.clone();
            let moved = cluster.on_client(1, async move {
                loop {
                    match mover.leave(&[ServerIndex(2)]).await {
                        Err(failure) if failure.code == Code::Busy => {}
                        answer => return answer.map(|(left, _)| left),
                    }
                }
            });
            while cluster.server(0).expect("it runs").map().epoch == before.epoch {
                cluster.sim.sleep(Duration::from_micros(1)).await;
            }
            let now = cluster.server(0).expect("it runs").map();
            let to_one = |name: &str| {
                let slot = now.slots.slot_of(NameHash::of(Ino::ROOT, &crate::support::name(name)).shard(now.shards()));
                let primary = |map: &aze_proto::ShardMap| map.slots.get(slot).map(|slot| slot.primary);
                primary(&now) == Some(ServerIndex(1)) && primary(&before) == Some(ServerIndex(2))
            };
            let gone: Vec<String> = paths.iter().filter(|path| to_one(&path[1..])).cloned().collect();
            if !gone.is_empty() {
                cluster.sim.set_link(&server_node(0), &server_node(1), Link::Down);
            }
            let mut looking = Vec::new();
            for path in gone {
                let client = client.clone();
                looking.push(cluster.on_client(0, async move { size(&client, &path).await }));
                // The first one is told by the giver which server has the slot now.
                cluster.sim.sleep(Duration::from_millis(5)).await;
            }
            cluster.sim.heal();
            for looked in looking {
                let found = looked.await.expect("the client lives");
                assert!(matches!(found, Ok(0) | Err(Code::NotFound)), "{found:?}");
                (lookups, lost) = (lookups + 1, lost + usize::from(found.is_err()));
            }
            if moved.await.expect("the client lives").expect("nothing is in the way") == 0 {
                break;
            }
        }
        for path in &paths {
            assert_eq!(size(&client, path).await, Ok(0), "{path} is there afterwards");
        }
        tell.send((lookups, lost)).expect("somebody waits");
    });
    told.recv().expect("it was told")
}

#[test]
fn a_name_is_not_missing_while_its_slot_comes_to_another_server() {
    let (lookups, lost) = looked_up_while_slots_move(Switches::default());
    assert!(lookups > 10 && lost == 0, "{lost} of {lookups} lookups found nothing");
    let (lookups, lost) = looked_up_while_slots_move(Switches::without(Sabotage::PublishWhileTaking));
    assert!(lost > 0, "none of {lookups} lookups notices it");
    println!("PublishWhileTaking: {lost} of {lookups} lookups found nothing");
}
