//! Requests are counted where the servers dispatch them: what the project promises about round
//! trips is proven on the other side of the wire.

use crate::support::{ROOT, create, name, opened_file, with_cluster, with_layout};
use aze_client::{Access, Client, Lister, NewFile};
use aze_proto::message::Durability;
use aze_proto::{FileKind, Ino};
use aze_sim::Cluster;
use aze_sim::cluster::{CHUNK_BITS, Layout};
use futures_util::future::join_all;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const READ: Access = Access { read: true, write: false };
const READ_WRITE: Access = Access { read: true, write: true };

fn counts(cluster: &Cluster) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for counter in cluster.servers().iter().flat_map(|server| server.status().requests) {
        *sums.entry(counter.name).or_default() += counter.count;
    }
    sums
}

/// The requests that `work` makes all servers dispatch. Closes are left out: they are collected and
/// sent many at a time, whenever that is.
async fn requests<T>(cluster: &Cluster, work: impl Future<Output = T>) -> (Vec<(String, u64)>, T) {
    let before = counts(cluster);
    let done = work.await;
    let more = counts(cluster).into_iter().map(|(kind, count)| {
        let old = before.get(&kind).copied().unwrap_or(0);
        (kind, count - old)
    });
    (more.filter(|(kind, count)| *count > 0 && kind != "Close").collect(), done)
}

fn one(kind: &str) -> Vec<(String, u64)> {
    vec![(kind.to_string(), 1)]
}

/// Makes client and servers know the directory: every server that will serve its entries asks the
/// directory's home once.
async fn warm(client: &Arc<Client>) {
    client.mkdir_all(&ROOT, b"/dir/inner", 0o755).await.expect("directories can be made");
    let (dir, _) = client.resolve_parent(&ROOT, b"/dir/inner/x").await.expect("the directory is there");
    for index in 0..64 {
        let file = create(client, dir, &format!("warm{index}")).await;
        file.close().await.expect("a file that is open can be closed");
    }
}

#[test]
fn the_common_operations_take_one_request_each() {
    with_cluster(4, |cluster, client| async move {
        warm(&client).await;
        for index in 0..16 {
            let path = format!("/dir/inner/f{index}").into_bytes();
            let (asked, made) = requests(&cluster, client.create_path(&ROOT, &path, &opened_file())).await;
            assert_eq!(asked, one("Create"), "creation and open");
            let file = made.expect("a new name can be made").file.expect("an open was asked for");
            let (asked, written) = requests(&cluster, file.write(0, b"a few bytes")).await;
            assert_eq!((asked, written), (one("Write"), Ok(())), "a small write");
            let (asked, read) = requests(&cluster, file.read(0, 4096)).await;
            assert_eq!((asked, read), (one("Read"), Ok(b"a few bytes".to_vec())), "a small read");
            let (asked, attr) = requests(&cluster, client.resolve(&ROOT, &path, true)).await;
            assert_eq!(asked, one("Lookup"), "stat of a path");
            let attr = attr.expect("it was made just now");
            assert_eq!(attr.size, 11);
            let (asked, opened) = requests(&cluster, client.open(&ROOT, attr.ino, READ)).await;
            assert_eq!(asked, one("Open"), "open by number");
            drop(opened.expect("root may open it"));
            let (asked, opened) = requests(&cluster, client.open_path(&ROOT, &path, READ)).await;
            assert_eq!(asked, one("OpenName"), "open of a path");
            assert_eq!(opened.expect("root may open it").read(0, 64).await, Ok(b"a few bytes".to_vec()));
            let read_whole = async {
                let file = client.open_path_with_contents(&ROOT, &path, READ).await.expect("root may open it");
                let mut buffer = [0; 64];
                let count = file.read_as_opened(0, &mut buffer).await.expect("it can be read");
                file.close().await.expect("a file that is open can be closed");
                buffer[..count].to_vec()
            };
            let (asked, whole) = requests(&cluster, read_whole).await;
            assert_eq!((asked, whole), (one("OpenNameWith"), b"a few bytes".to_vec()), "open, read and close");
            let read_by_number = async {
                let file = client.open_with_contents(&ROOT, attr.ino, READ).await.expect("root may open it");
                let mut buffer = [0; 3];
                assert_eq!((file.read_as_opened(2, &mut buffer).await, &buffer), (Ok(3), b"few"));
                file
            };
            let (asked, file) = requests(&cluster, read_by_number).await;
            assert_eq!(asked, one("OpenWith"), "open by number and read");
            let (asked, count) = requests(&cluster, file.read_as_opened(99, &mut [0; 3])).await;
            assert_eq!((asked, count), (one("Read"), Ok(0)), "a read behind the end, where something may be by now");
            let both = async {
                let file = client.open_path_with_contents(&ROOT, &path, READ_WRITE).await.expect("root may open it");
                file.read_as_opened(0, &mut [0; 64]).await
            };
            let (asked, count) = requests(&cluster, both).await;
            let expected = [("OpenName".to_string(), 1), ("Read".to_string(), 1)];
            assert_eq!(
                (&asked[..], count),
                (&expected[..], Ok(11)),
                "an open for writing, too, reads what others have written"
            );
            let (asked, gone) = requests(&cluster, client.unlink_path(&ROOT, &path)).await;
            assert_eq!((asked, gone), (one("Unlink"), Ok(())), "unlink");
        }
    });
}

#[test]
fn a_directory_that_few_servers_serve_asks_few_servers() {
    with_cluster(4, |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/small", 0o755).await.expect("a directory can be made").ino;
        create(&client, dir, "only").await;
        let (asked, listing) = requests(&cluster, client.list(&ROOT, dir, 0, 100, false)).await;
        let listing = listing.expect("it can be listed");
        assert_eq!(listing.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>(), [name("only")]);
        assert_eq!(asked, [("Holders".to_string(), 1), ("List".to_string(), 1)]);
    });
}

/// Servers that the syncs of a volume of four have gone to.
async fn synced<T>(cluster: &Cluster, work: impl Future<Output = T>) -> u64 {
    let asked = requests(cluster, work).await.0;
    asked.into_iter().find(|(kind, _)| kind == "Sync").map_or(0, |(_, count)| count)
}

#[test]
fn a_new_small_file_is_synced_by_its_home_and_all_else_by_all() {
    let layout = Layout { durability: Some(Durability::Close), ..Layout::of(4) };
    with_layout(layout, |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("a directory can be made").ino;
        for index in 0..8 {
            let made = |what: &str| name(&format!("{what}{index}"));
            let small = create(&client, dir, &format!("small{index}")).await;
            small.write(0, b"a few bytes").await.expect("it can be written");
            assert_eq!(synced(&cluster, small.sync()).await, 1, "fsync");
            assert_eq!(synced(&cluster, small.close()).await, 1, "close");

            let again = client.open(&ROOT, small.ino(), READ_WRITE).await.expect("root may open it");
            assert_eq!(synced(&cluster, again.close()).await, 4, "its name may be anywhere");

            let wide = create(&client, dir, &format!("wide{index}")).await;
            wide.write(1 << CHUNK_BITS, b"elsewhere").await.expect("it can be written");
            assert_eq!(synced(&cluster, wide.close()).await, 4, "data in chunk 1");
            let grown = create(&client, dir, &format!("grown{index}")).await;
            for _ in 0..2 {
                grown.append(&vec![7; (1 << CHUNK_BITS) - 1]).await.expect("it can be appended to");
            }
            assert_eq!(synced(&cluster, grown.close()).await, 4, "appended into chunk 1");

            let moved = create(&client, dir, &format!("moved{index}")).await;
            client.rename(&ROOT, dir, &made("moved"), dir, &made("new"), false).await.expect("it can be renamed");
            assert_eq!(synced(&cluster, moved.sync()).await, 4, "its new name may be anywhere");
            assert_eq!(synced(&cluster, moved.close()).await, 1, "where all is synced");
            let other = create(&client, dir, &format!("other{index}")).await;
            client.link(&ROOT, other.ino(), dir, &made("link")).await.expect("it can have two names");
            client.sync(&ROOT).await.expect("all servers can sync");
            assert_eq!(synced(&cluster, other.close()).await, 1, "where all is synced");
            client.exchange(&ROOT, dir, &made("new"), dir, &made("other")).await.expect("they can change places");
            let last = create(&client, dir, &format!("last{index}")).await;
            assert_eq!(synced(&cluster, last.close()).await, 4, "a directory above may have been renamed");
        }
    });
}

/// How many `TruncateData` and `DeleteData` a truncation and a removal of a file of so many chunks take.
fn told(servers: u16, chunks: u64) -> (u64, u64) {
    let told = Cell::new((0, 0));
    let out = &told;
    with_cluster(servers, |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("a directory can be made").ino;
        let file = create(&client, dir, "file").await;
        for chunk in 0..chunks {
            file.write(chunk << CHUNK_BITS, b"some").await.expect("it can be written");
        }
        let count =
            |asked: &[(String, u64)], kind: &str| asked.iter().find(|(name, _)| name == kind).map_or(0, |row| row.1);
        let (asked, _) = requests(&cluster, client.truncate(&ROOT, file.ino(), 1, Some(&file))).await;
        file.close().await.expect("a file that is open can be closed");
        let gone = async {
            client.unlink(&ROOT, dir, &name("file")).await.expect("it can be removed");
            // Data are deleted in the background.
            cluster.client_io(0).sleep(Duration::from_secs(2)).await;
        };
        let (removed, ()) = requests(&cluster, gone).await;
        out.set((count(&asked, "TruncateData"), count(&removed, "DeleteData")));
    });
    told.get()
}

#[test]
fn truncation_and_removal_ask_the_servers_of_the_chunks() {
    for servers in [4, 16] {
        assert_eq!(told(servers, 1), (0, 0), "data beside the inode, {servers} servers");
        let (truncated, deleted) = told(servers, 2);
        assert!((1..=2).contains(&truncated) && (1..=2).contains(&deleted), "{servers}: {truncated}, {deleted}");
    }
    let (truncated, deleted) = told(4, 5);
    assert!((3..=4).contains(&truncated) && (3..=4).contains(&deleted), "all servers: {truncated}, {deleted}");
}

#[test]
fn closes_wait_for_others_of_the_same_server() {
    with_cluster(4, |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("a directory can be made").ino;
        let mut files = Vec::new();
        for index in 0..512 {
            files.push(create(&client, dir, &format!("f{index}")).await);
        }
        let closes = || counts(&cluster).get("Close").copied().unwrap_or(0);
        let opens = || cluster.servers().iter().map(|server| server.status().opens).sum::<u64>();
        let before = closes();
        assert_eq!(opens(), 512);
        for file in files {
            file.close().await.expect("a file that is open can be closed");
        }
        cluster.client_io(0).sleep(Duration::from_millis(500)).await;
        assert_eq!(opens(), 0, "none was held back for good");
        // The full requests, and at the end one to each server with the remaining closes.
        assert!((8..=8 + 4).contains(&(closes() - before)), "{} requests for 512 closes", closes() - before);
    });
}

/// Lists a directory by pages of so many entries, and gives names and requests.
async fn listed(cluster: &Cluster, client: &Client, lister: &mut Lister, page: usize) -> (usize, u64) {
    let list = async {
        let (mut names, mut after) = (0, 0);
        loop {
            let listing = lister.page(client, &ROOT, after, page).await.expect("it can be listed");
            names += listing.entries.len();
            match listing.entries.last() {
                Some(last) if listing.more => after = last.hash.cookie(),
                _ => return names,
            }
        }
    };
    let (asked, names) = requests(cluster, list).await;
    (names, asked.iter().map(|(_, count)| count).sum())
}

#[test]
fn a_listing_asks_each_server_only_when_what_it_sent_is_used_up() {
    const NAMES: usize = 2000;
    const PAGE: usize = 256;
    for servers in [4, 16] {
        with_cluster(servers, move |cluster, client| async move {
            let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("a directory can be made").ino;
            let unopened = NewFile { open: None, ..opened_file() };
            for index in 0..NAMES {
                client.create(&ROOT, dir, &name(&format!("n{index}")), &unopened).await.expect("a new name");
            }
            let mut lister = Lister::new(dir, true);
            let (names, asked) = listed(&cluster, &client, &mut lister, PAGE).await;
            assert_eq!(names, NAMES);
            // And one for the servers that have entries.
            let most = NAMES as u64 / PAGE as u64 + u64::from(servers) + 1;
            assert!(asked <= most, "{servers} servers: {asked} requests, {most} are enough");
        });
    }
}

#[test]
fn a_listing_shows_nothing_that_is_older_than_a_second() {
    with_cluster(4, |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("a directory can be made").ino;
        for index in 0..100 {
            create(&client, dir, &format!("n{index}")).await;
        }
        let mut lister = Lister::new(dir, false);
        let first = lister.page(&client, &ROOT, 0, 50).await.expect("it can be listed");
        assert!(first.more && first.entries.len() >= 50, "{} entries", first.entries.len());
        let given: Vec<_> = first.entries.iter().map(|entry| entry.name.clone()).collect();
        for gone in (0..100).map(|index| name(&format!("n{index}"))).filter(|name| !given.contains(name)) {
            client.unlink(&ROOT, dir, &gone).await.expect("it can be removed");
        }
        cluster.client_io(0).sleep(Duration::from_millis(1001)).await;
        let after = first.entries.last().expect("it has entries").hash.cookie();
        let rest = lister.page(&client, &ROOT, after, 50).await.expect("it can be listed");
        assert_eq!((rest.entries.len(), rest.more), (0, false));
    });
}

#[test]
fn space_is_asked_for_once_a_second_however_many_ask() {
    const SECOND: Duration = Duration::from_secs(1);
    for servers in [4, 16] {
        with_cluster(servers, move |cluster, client| async move {
            for _ in 0..2 {
                let ask = async {
                    let together = join_all((0..8).map(|_| client.statfs_within(SECOND))).await;
                    let later = client.statfs_within(SECOND).await;
                    assert!(together.into_iter().all(|space| space == later) && later.is_ok(), "all get one answer");
                };
                let (asked, ()) = requests(&cluster, ask).await;
                assert_eq!(asked, [("StatFs".to_string(), u64::from(servers))]);
                cluster.client_io(0).sleep(SECOND).await;
            }
            cluster.kill_server(1, false);
            assert!(client.statfs_within(SECOND).await.is_err(), "a sum without a server would be wrong");
        });
    }
}

/// A client that wants leases, as a mount does, asks each server for recalls only while it asks about files.
#[test]
fn an_idle_client_sends_nothing() {
    for servers in [4, 16] {
        with_cluster(servers, move |cluster, client| async move {
            client.listen(Box::new(|_| Box::pin(async {})));
            warm(&client).await;
            for index in 0..64 {
                let path = format!("/dir/inner/warm{index}").into_bytes();
                client.resolve(&ROOT, &path, true).await.expect("it is there");
            }
            let io = cluster.client_io(0);
            let listening = requests(&cluster, io.sleep(Duration::from_secs(5))).await.0;
            assert!(listening.iter().any(|(kind, _)| kind == "Listen"), "it had leases: {listening:?}");
            let (asked, ()) = requests(&cluster, io.sleep(Duration::from_secs(600))).await;
            assert_eq!(asked, [], "{servers} servers");
        });
    }
}

/// Requests that each server has dispatched.
fn by_server(cluster: &Cluster) -> Vec<u64> {
    let servers = cluster.servers();
    servers.iter().map(|server| server.status().requests.iter().map(|counter| counter.count).sum()).collect()
}

/// Names, inodes and data of all depths: the server that keeps the directory is asked, and asks no other one.
#[test]
fn what_is_below_a_private_directory_concerns_one_server() {
    for servers in [4, 16] {
        with_cluster(servers, |cluster, client| async move {
            let folder = |private| NewFile { kind: FileKind::Directory, open: None, private, ..opened_file() };
            let made = client.create(&ROOT, Ino::ROOT, &name("own"), &folder(true)).await.expect("a new name");
            let (top, home) = (made.attr.ino, client.map().home_of(made.attr.ino).expect("a server"));
            let before = by_server(&cluster);
            let mut dirs = vec![top];
            for depth in 0..3 {
                for index in 0..4 {
                    let (above, name) = (dirs[depth], name(&format!("d{index}")));
                    let made = client.create(&ROOT, above, &name, &folder(false)).await.expect("a new name");
                    dirs.push(made.attr.ino);
                }
            }
            for dir in &dirs {
                let file = create(&client, *dir, "file").await;
                file.write(0, &vec![7; 5 << CHUNK_BITS]).await.expect("it can be written");
                let mut read = vec![0; 5 << CHUNK_BITS];
                assert_eq!(file.read_into(0, &mut read).await, Ok(read.len()));
                client.truncate(&ROOT, file.ino(), 3 << CHUNK_BITS, None).await.expect("it can be cut");
                file.sync().await.expect("it can be synced");
                file.close().await.expect("it can be closed");
                client.link(&ROOT, file.ino(), *dir, &name("second")).await.expect("a new name");
                client.rename(&ROOT, *dir, &name("file"), *dir, &name("third"), false).await.expect("it is there");
                assert_eq!(client.lookup(&ROOT, *dir, &name("third")).await.map(|attr| attr.ino), Ok(file.ino()));
                let listing = client.list(&ROOT, *dir, 0, 100, true).await.expect("it can be listed");
                assert!(listing.entries.len() == if dirs[..3].contains(dir) { 6 } else { 2 } && !listing.more);
                for gone in ["second", "third"] {
                    client.unlink(&ROOT, *dir, &name(gone)).await.expect("it is there");
                }
            }
            let spare = client.create(&ROOT, dirs[2], &name("spare"), &folder(false)).await.expect("a new name");
            assert!(spare.attr.ino.is_private_directory());
            client.rmdir(&ROOT, dirs[2], &name("spare")).await.expect("it is empty");
            // Removals in the background are over, too.
            cluster.client_io(0).sleep(Duration::from_secs(5)).await;
            let after = by_server(&cluster);
            assert_eq!(after.len(), usize::from(servers));
            for (index, (before, after)) in before.iter().zip(&after).enumerate() {
                let more = after - before;
                assert_eq!(more > 0, index == usize::from(home.0), "server {index} of {servers}: {more} requests");
            }
        });
    }
}

/// A file that is moved into a private directory stays on its servers, and so does one that is moved out of it.
#[test]
fn moves_into_and_out_of_a_private_directory_keep_all_that_is_there() {
    with_cluster(4, |cluster, client| async move {
        let folder = |private| NewFile { kind: FileKind::Directory, open: None, private, ..opened_file() };
        let make = async |above, text: &str, private| {
            client.create(&ROOT, above, &name(text), &folder(private)).await.expect("a new name").attr.ino
        };
        let (own, plain) = (make(Ino::ROOT, "own", true).await, make(Ino::ROOT, "plain", false).await);
        for (from, to, private) in [(own, plain, true), (plain, own, false)] {
            let inner = make(from, "inner", false).await;
            assert_eq!(inner.is_private_directory(), private);
            for (dir, text) in [(inner, "deep"), (from, "file")] {
                let file = create(&client, dir, text).await;
                file.write(0, &vec![9; 3 << CHUNK_BITS]).await.expect("it can be written");
                file.close().await.expect("it can be closed");
            }
            for text in ["inner", "file"] {
                client.rename(&ROOT, from, &name(text), to, &name(text), false).await.expect("it is there");
            }
            let listing = client.list(&ROOT, to, 0, 100, false).await.expect("it can be listed");
            assert_eq!(listing.entries.len(), 2);
            for (dir, text) in [(inner, "deep"), (to, "file")] {
                let ino = client.lookup(&ROOT, dir, &name(text)).await.expect("it is there").ino;
                let file = client.open(&ROOT, ino, READ).await.expect("it can be opened");
                assert_eq!(file.read(0, 4 << CHUNK_BITS).await, Ok(vec![9; 3 << CHUNK_BITS]));
                file.close().await.expect("it can be closed");
                client.unlink(&ROOT, dir, &name(text)).await.expect("it is there");
            }
            let later = make(inner, "later", false).await;
            assert_eq!(later.is_private_directory(), private, "a directory stays what it was when it was made");
            client.rmdir(&ROOT, inner, &name("later")).await.expect("it is empty");
            client.rmdir(&ROOT, to, &name("inner")).await.expect("it is empty");
        }
        let _ = cluster;
    });
}
