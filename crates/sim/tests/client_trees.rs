//! Listings, searches and sums over whole trees, with and without all servers.

use crate::support::{ROOT, create, name, opened_file, with_cluster, with_layout};
use aze_client::{Client, FoundPath, NewFile, UsageSum};
use aze_proto::limits::BYTES_PER_RECORD;
use aze_proto::predicate::Predicate;
use aze_proto::wire::Blob;
use aze_proto::{Change, Code, Failure, FileKind, Identity, Ino, NameHash};
use aze_sim::cluster::Layout;
use std::collections::{BTreeMap, BTreeSet};

async fn listed(client: &Client, dir: Ino, limit: usize) -> Vec<String> {
    let (mut after, mut names) = (0, Vec::new());
    loop {
        let page = client.list(&ROOT, dir, after, limit, true).await.expect("it can be listed");
        assert_eq!(page.failure, None);
        assert!(page.entries.is_sorted_by_key(|entry| entry.hash));
        assert!(page.entries.iter().all(|entry| entry.attr.as_ref().is_none_or(|attr| attr.ino == entry.ino)));
        names.extend(page.entries.iter().map(|entry| entry.name.to_string()));
        match page.entries.last() {
            Some(last) if page.more => after = last.hash.cookie(),
            _ => return names,
        }
    }
}

#[test]
fn listings_have_everything_once_whatever_the_size_of_pages() {
    with_cluster(4, |_cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/d", 0o755).await.expect("a directory can be made").ino;
        assert_eq!(listed(&client, dir, 10).await, Vec::<String>::new());
        let mut expected = BTreeSet::new();
        for index in 0..300 {
            create(&client, dir, &format!("f{index}")).await;
            expected.insert(format!("f{index}"));
        }
        let mut orders = BTreeSet::new();
        for limit in [1, 7, 64, 1000, usize::MAX] {
            let names = listed(&client, dir, limit).await;
            assert_eq!(names.len(), 300, "pages of {limit}");
            assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), expected);
            orders.insert(names);
        }
        assert_eq!(orders.len(), 1, "one order, that of the cookies");
        let file = create(&client, dir, "x").await.ino();
        assert_eq!(client.list(&ROOT, file, 0, 10, false).await.unwrap_err().code, Code::NotDirectory);
    });
}

#[test]
fn a_listing_without_one_server_says_so() {
    with_cluster(3, |cluster, client| async move {
        for index in 0..60 {
            create(&client, Ino::ROOT, &format!("f{index}")).await;
        }
        cluster.kill_server(2, false);
        let page = client.list(&ROOT, Ino::ROOT, 0, 1000, false).await.expect("the home of the root answers");
        assert!((20..60).contains(&page.entries.len()), "the others' entries are there: {}", page.entries.len());
        assert!(is_silence(&page.failure.expect("one server is missing")));
    });
}

/// Whether a server did not answer: whether the request reached it is unknown.
fn is_silence(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unreachable | Code::TimedOut)
}

/// A tree of 40 directories and some 400 files; gives the files with their sizes.
async fn tree(client: &Client) -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    for top in 0..8 {
        for sub in 0..4 {
            let path = format!("t{top}/s{sub}");
            let dir = client
                .mkdir_all(&ROOT, format!("/root/{path}").as_bytes(), 0o755)
                .await
                .expect("directories can be made")
                .ino;
            for index in 0..12 {
                let file =
                    create(client, dir, &format!("f{index}.{}", if index % 3 == 0 { "dat" } else { "txt" })).await;
                let size = (top * 1000 + sub * 100 + index) as u64;
                file.write(0, &vec![1; size as usize]).await.expect("there is room");
                files.insert(format!("{path}/f{index}.{}", if index % 3 == 0 { "dat" } else { "txt" }), size);
            }
        }
    }
    files
}

async fn find(
    client: &Client,
    who: &Identity,
    root: Ino,
    predicate: &Predicate,
) -> (BTreeSet<String>, Result<(), Failure>) {
    let mut found = Vec::new();
    let mut each = |path: FoundPath| found.push(String::from_utf8(path.path).expect("the test's names are text"));
    let result = client.find(who, root, predicate, &mut each).await;
    let count = found.len();
    let set: BTreeSet<String> = found.into_iter().collect();
    assert_eq!(set.len(), count, "nothing is found twice");
    (set, result)
}

#[test]
fn searches_find_what_fits_and_nothing_else() {
    with_cluster(4, |_cluster, client| async move {
        let files = tree(&client).await;
        let root = client.resolve(&ROOT, b"/root", true).await.expect("it exists").ino;
        // A file whose inode is not where its entry is: only its home knows its size.
        client.rename_path(&ROOT, b"/root/t7/s3/f9.dat", b"/root/t0/moved.dat", false).await.expect("it exists");
        let mut files = files;
        let size = files.remove("t7/s3/f9.dat").expect("it was made");
        files.insert("t0/moved.dat".into(), size);

        let everything = find(&client, &ROOT, root, &Predicate::default()).await;
        assert_eq!((everything.0.len(), everything.1), (files.len() + 40, Ok(())));
        let by_name = Predicate { name: Some(Blob(b"*.dat".to_vec())), ..Predicate::default() };
        let expected: BTreeSet<String> = files.keys().filter(|path| path.ends_with(".dat")).cloned().collect();
        assert_eq!(find(&client, &ROOT, root, &by_name).await, (expected, Ok(())));
        let by_size = Predicate { size_min: Some(3_300), kind: Some(FileKind::File), ..Predicate::default() };
        let expected: BTreeSet<String> =
            files.iter().filter(|(_, size)| **size >= 3_300).map(|(path, _)| path.clone()).collect();
        assert_eq!(find(&client, &ROOT, root, &by_size).await, (expected, Ok(())));
        let dirs = Predicate { kind: Some(FileKind::Directory), ..Predicate::default() };
        assert_eq!(find(&client, &ROOT, root, &dirs).await.0.len(), 40);
        let full_dirs = Predicate { kind: Some(FileKind::Directory), size_min: Some(12), ..Predicate::default() };
        assert_eq!(
            find(&client, &ROOT, root, &full_dirs).await.0.len(),
            31,
            "a directory's size is its number of entries"
        );
    });
}

#[test]
fn closed_directories_and_silent_servers_are_errors_at_the_end() {
    with_cluster(3, |cluster, client| async move {
        let files = tree(&client).await;
        let root = client.resolve(&ROOT, b"/root", true).await.expect("it exists").ino;
        let closed = client.resolve(&ROOT, b"/root/t3/s1", true).await.expect("it exists").ino;
        client.setattr(&ROOT, closed, &Change { mode: Some(0o700), ..Change::default() }).await.expect("root may");
        let user = Identity { uid: 1000, gid: 1000, groups: Vec::new() };
        let only_files = Predicate { kind: Some(FileKind::File), ..Predicate::default() };
        let (found, result) = find(&client, &user, root, &only_files).await;
        assert_eq!(found.len(), files.len() - 12);
        let failure = result.expect_err("a directory was closed");
        assert_eq!(failure.code, Code::AccessDenied);
        assert!(failure.detail.contains("t3/s1"), "{failure}");

        cluster.kill_server(1, false);
        let (found, result) = find(&client, &ROOT, root, &only_files).await;
        assert!(!found.is_empty() && found.len() < files.len(), "{} found", found.len());
        assert!(is_silence(&result.expect_err("a server is missing")));
        assert!(client.usage(&ROOT, root, None).await.is_err());
        assert!(client.statfs().await.is_err());
        assert_eq!(client.status().await.iter().filter(|(_, status)| status.is_ok()).count(), 2);
    });
}

#[test]
fn sums_count_every_file_once() {
    with_cluster(4, |_cluster, client| async move {
        let files = tree(&client).await;
        let root = client.resolve(&ROOT, b"/root", true).await.expect("it exists").ino;
        let file = client.resolve(&ROOT, b"/root/t5/s2/f4.txt", true).await.expect("it exists").ino;
        for to in ["t0", "t1", "t6"] {
            let (dir, last) =
                client.resolve_parent(&ROOT, format!("/root/{to}/link").as_bytes()).await.expect("it exists");
            client.link(&ROOT, file, dir, &last).await.expect("a file may have many names");
        }
        client.rename_path(&ROOT, b"/root/t7/s3/f9.dat", b"/root/t7/s2/moved", false).await.expect("it exists");
        let expected = UsageSum { files: files.len() as u64, dirs: 40, bytes: files.values().sum() };
        assert_eq!(client.usage(&ROOT, root, None).await, Ok(expected));

        let mut dirs = BTreeMap::new();
        let mut each = |path: &[u8], sum: &UsageSum| {
            assert_eq!(dirs.insert(String::from_utf8(path.to_vec()).expect("text"), *sum), None);
        };
        assert_eq!(client.usage(&ROOT, root, Some(&mut each)).await, Ok(expected));
        assert_eq!((dirs.len(), dirs[""]), (41, expected));
        let bytes =
            |prefix: &str| files.iter().filter(|(path, _)| path.starts_with(prefix)).map(|(_, size)| size).sum::<u64>();
        assert_eq!(dirs["t7"], UsageSum { files: 48, dirs: 4, bytes: bytes("t7/") });
        assert_eq!(dirs["t2/s1"], UsageSum { files: 12, dirs: 0, bytes: bytes("t2/s1/") });
        assert_eq!((dirs["t7/s3"].files, dirs["t7/s2"].files), (11, 13));
    });
}

#[test]
fn names_end_where_memory_for_them_ends() {
    let layout = Layout { memory_bytes: 1 << 20, ..Layout::of(1) };
    with_layout(layout, |_cluster, client| async move {
        let most = client.statfs().await.expect("it answers").inodes_max;
        // A name and an inode for each; the root has no name.
        assert_eq!(most, (1 << 20) / BYTES_PER_RECORD / 2);
        for number in 0..most {
            create(&client, Ino::ROOT, &format!("f{number}")).await.close().await.expect("there is room");
        }
        let made = client.create(&ROOT, Ino::ROOT, &name("more"), &opened_file()).await;
        let failure = made.err().expect("there is no room for names");
        assert_eq!(failure.code, Code::NoSpace);
        assert!(failure.detail.contains("4097 of 4096 names and inodes"), "{}", failure.detail);
        let space = client.statfs().await.expect("it answers");
        assert!(space.inodes >= space.inodes_max && space.used_bytes < space.capacity_bytes, "{space:?}");
        for number in 0..2 {
            client.unlink(&ROOT, Ino::ROOT, &name(&format!("f{number}"))).await.expect("it exists");
        }
        client.rename_path(&ROOT, b"/f7", b"/g7", false).await.expect("no name more than before");
        let dir = NewFile { kind: FileKind::Directory, open: None, ..opened_file() };
        client.create(&ROOT, Ino::ROOT, &name("dir"), &dir).await.expect("there is room again");
    });
}

#[test]
fn space_and_status_come_from_all_servers() {
    with_cluster(3, |_cluster, client| async move {
        let empty = client.statfs().await.expect("all answer");
        create(&client, Ino::ROOT, "f").await.write(0, &vec![7; 1 << 20]).await.expect("there is room");
        let space = client.statfs().await.expect("all answer");
        assert_eq!((space.capacity_bytes, space.inodes), (empty.capacity_bytes, empty.inodes + 1));
        assert!(space.used_bytes >= empty.used_bytes + (1 << 20));
        let status: Vec<_> =
            client.status().await.into_iter().map(|(_, status)| status.expect("all answer").index.0).collect();
        assert_eq!(status, [0, 1, 2]);
        let fifo = NewFile { kind: FileKind::Fifo, open: None, ..opened_file() };
        client.create(&ROOT, Ino::ROOT, &name("fifo"), &fifo).await.expect("a new name");
        assert_eq!(client.getattr(&ROOT, Ino::ROOT).await.expect("the root exists").size, 2);
        assert!(client.shutdown_servers().await.iter().all(|(_, said)| said.is_ok()));
    });
}

/// The search for such a name took most of the time of a copy when it had to be in the same shard of 4096.
#[test]
fn a_name_beside_another_is_on_the_same_server_and_found_at_once() {
    with_cluster(3, |_cluster, client| async move {
        let map = client.map();
        let server_of = |name: &aze_proto::Name| map.server_of(NameHash::of(Ino::ROOT, name).shard(map.shards()));
        for index in 0..100 {
            let wanted = name(&format!("file{index}"));
            let hidden = client.name_beside(Ino::ROOT, &wanted);
            assert_eq!(server_of(&hidden), server_of(&wanted), "{hidden}");
            let count = hidden.to_string().rsplit('-').next().and_then(|count| count.parse::<u32>().ok());
            assert!(count.is_some_and(|count| count < 48), "{hidden}: 16 tries for each server");
        }
    });
}

/// Directories of a tree that is searched, and names in each.
const DIRS: usize = 1000;
const NAMES: usize = 10;

/// Requests of one search through a tree of that many directories, by kind.
fn requests_of_a_search(servers: u16, predicate: Predicate) -> BTreeMap<String, u64> {
    let (tell, told) = std::sync::mpsc::channel();
    with_cluster(servers, move |cluster, client| async move {
        let unopened = NewFile { open: None, ..opened_file() };
        let root = client.mkdir_all(&ROOT, b"/root", 0o755).await.expect("a directory can be made").ino;
        for dir in 0..DIRS {
            let path = format!("/root/d{dir}");
            let dir = client.mkdir_all(&ROOT, path.as_bytes(), 0o755).await.expect("directories can be made").ino;
            let made = (0..NAMES).map(|index| {
                let (client, name, unopened) = (&client, name(&format!("n{index}")), &unopened);
                async move { client.create(&ROOT, dir, &name, unopened).await.map(drop) }
            });
            futures_util::future::try_join_all(made).await.expect("new names");
        }
        let asked = || {
            let mut counts = BTreeMap::new();
            for counter in cluster.servers().iter().flat_map(|server| server.status().requests) {
                *counts.entry(counter.name).or_insert(0) += counter.count;
            }
            counts
        };
        cluster.client_io(0).sleep(std::time::Duration::from_secs(1)).await;
        let before = asked();
        let (found, ended) = find(&client, &ROOT, root, &predicate).await;
        assert_eq!((found.len(), ended), (DIRS * (NAMES + 1), Ok(())));
        let mut counts = asked();
        counts.iter_mut().for_each(|(name, count)| *count -= before.get(name).copied().unwrap_or(0));
        counts.retain(|_, count| *count > 0);
        tell.send(counts).expect("somebody waits");
    });
    told.recv().expect("it was told")
}

/// Two for each server, one for the root and one for all directories below it, and one for each 256 directories.
#[test]
fn a_search_asks_each_server_for_many_directories_at_a_time() {
    for servers in [64, 4] {
        let counts = requests_of_a_search(servers, Predicate::default());
        let most = 2 * u64::from(servers) + DIRS.div_ceil(256) as u64;
        assert!(counts.values().sum::<u64>() <= most, "{servers} servers: {counts:?}, at most {most}");
    }
}
