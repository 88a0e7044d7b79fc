//! Two names that change places: with targets of any kind, with all the counts, for users who may, and with
//! any server dying in the middle.

use crate::support::{ROOT, create, name, with_cluster};
use aze_client::Client;
use aze_io::sim::Link;
use aze_proto::{Attr, Change, Code, Failure, FileKind, Identity, Ino, Name, NameHash, ServerIndex};
use aze_sim::Cluster;
use aze_sim::work::shared::new_file;
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything that goes on in the background.
const SETTLE: Duration = Duration::from_secs(40);

/// Shorter than any frame is on its way.
const MOMENT: Duration = Duration::from_micros(2);

async fn make(client: &Client, who: &Identity, dir: Ino, text: &str, kind: FileKind) -> Ino {
    client.create(who, dir, &name(text), &new_file(kind, true)).await.expect("a new name can be made").attr.ino
}

async fn found(client: &Client, dir: Ino, text: &str) -> Result<Ino, Code> {
    client.lookup(&ROOT, dir, &name(text)).await.map(|attr| attr.ino).map_err(|failure| failure.code)
}

fn code(result: Result<(), Failure>) -> Result<(), Code> {
    result.map_err(|failure| failure.code)
}

/// Files, full directories and links of two directories, in every combination and many times, so that
/// names, inodes and directories are on one server, on two and on three.
#[test]
fn names_change_places_whatever_they_lead_to() {
    with_cluster(3, |_cluster, client| async move {
        let kinds = [FileKind::File, FileKind::Directory, FileKind::Symlink];
        let (one, two) = (
            make(&client, &ROOT, Ino::ROOT, "one", FileKind::Directory).await,
            make(&client, &ROOT, Ino::ROOT, "two", FileKind::Directory).await,
        );
        let mut subdirs = [0, 0];
        let mut count = 0;
        for _ in 0..4 {
            for (first, second) in kinds.into_iter().flat_map(|first| kinds.map(|second| (first, second))) {
                let text = format!("n{count}");
                count += 1;
                let old =
                    [make(&client, &ROOT, one, &text, first).await, make(&client, &ROOT, two, &text, second).await];
                for (dir, kind) in old.into_iter().zip([first, second]) {
                    if kind == FileKind::Directory {
                        make(&client, &ROOT, dir, "inside", FileKind::File).await;
                    }
                }
                let exchanged = client.exchange(&ROOT, one, &name(&text), two, &name(&text)).await;
                assert_eq!(exchanged, Ok(()), "{first:?} with {second:?}");
                assert_eq!(found(&client, one, &text).await, Ok(old[1]));
                assert_eq!(found(&client, two, &text).await, Ok(old[0]));
                for (place, path, kind) in [(1, "/two", first), (0, "/one", second)] {
                    if kind == FileKind::Directory {
                        subdirs[place] += 1;
                        let inside = client.resolve(&ROOT, format!("{path}/{text}/inside").as_bytes(), false).await;
                        assert!(inside.is_ok(), "{inside:?}");
                    }
                }
                let links: Vec<u32> = {
                    let mut links = Vec::new();
                    for ino in old {
                        links.push(client.getattr(&ROOT, ino).await.expect("it is there").links);
                    }
                    links
                };
                let expected = [first, second].map(|kind| if kind == FileKind::Directory { 2 } else { 1 });
                assert_eq!(links, expected);
            }
        }
        for (dir, subdirs) in [one, two].into_iter().zip(subdirs) {
            let Attr { size, links, .. } = client.getattr(&ROOT, dir).await.expect("it is there");
            assert_eq!((size, links), (count, 2 + subdirs));
        }
        assert_eq!(code(client.exchange(&ROOT, one, &name("n0"), two, &name("none")).await), Err(Code::NotFound));
        assert_eq!(code(client.exchange(&ROOT, one, &name("none"), two, &name("n0")).await), Err(Code::NotFound));
        // Two names of one file, and one name twice: nothing happens.
        let ino = create(&client, one, "file").await.ino();
        client.link(&ROOT, ino, two, &name("link")).await.expect("a file can have two names");
        assert_eq!(client.exchange(&ROOT, one, &name("file"), two, &name("link")).await, Ok(()));
        assert_eq!(client.exchange(&ROOT, one, &name("file"), one, &name("file")).await, Ok(()));
        assert_eq!(client.getattr(&ROOT, ino).await.map(|attr| attr.links), Ok(2));
    });
}

/// Where a directory is belongs to what a client remembers of it.
#[test]
fn a_directory_that_has_changed_places_is_known_to_be_elsewhere() {
    with_cluster(3, |_cluster, client| async move {
        let one = make(&client, &ROOT, Ino::ROOT, "one", FileKind::Directory).await;
        let old = [
            make(&client, &ROOT, Ino::ROOT, "dir", FileKind::Directory).await,
            make(&client, &ROOT, one, "dir", FileKind::Directory).await,
        ];
        let parents = async || {
            let mut parents = Vec::new();
            for ino in old {
                let aged = client.getattr_within(&ROOT, ino, Duration::from_secs(1)).await.expect("it is there");
                parents.push(aged.attr.parent);
            }
            parents
        };
        assert_eq!(parents().await, [Ino::ROOT, one]);
        assert_eq!(client.exchange(&ROOT, Ino::ROOT, &name("dir"), one, &name("dir")).await, Ok(()));
        assert_eq!(parents().await, [one, Ino::ROOT]);
    });
}

/// Another client remembers the way to both directories.
#[test]
fn paths_that_others_know_lead_to_what_has_come_there() {
    with_cluster(3, |cluster, client| async move {
        let other = cluster.connect(1).await.expect("a client connects");
        let one = make(&client, &ROOT, Ino::ROOT, "one", FileKind::Directory).await;
        for round in 0..8 {
            let text = format!("n{round}");
            let mut files = Vec::new();
            for parent in [one, Ino::ROOT] {
                let dir = make(&client, &ROOT, parent, &text, FileKind::Directory).await;
                files.push(make(&client, &ROOT, dir, "file", FileKind::File).await);
            }
            let paths = [format!("/one/{text}/file"), format!("/{text}/file")];
            let seen = async || {
                let mut seen = Vec::new();
                for path in &paths {
                    seen.push(other.resolve(&ROOT, path.as_bytes(), false).await.expect("it is there").ino);
                }
                seen
            };
            assert_eq!(seen().await, files, "round {round}");
            assert_eq!(client.exchange(&ROOT, one, &name(&text), Ino::ROOT, &name(&text)).await, Ok(()));
            files.reverse();
            assert_eq!(seen().await, files, "round {round}");
        }
    });
}

#[test]
fn a_directory_is_not_exchanged_with_what_is_below_it() {
    with_cluster(3, |_cluster, client| async move {
        for round in 0..8 {
            let (top, low) = (format!("top{round}"), format!("low{round}"));
            let upper = make(&client, &ROOT, Ino::ROOT, &top, FileKind::Directory).await;
            let middle = make(&client, &ROOT, upper, "middle", FileKind::Directory).await;
            make(&client, &ROOT, middle, &low, if round % 2 == 0 { FileKind::File } else { FileKind::Directory }).await;
            let (top, low) = (name(&top), name(&low));
            assert_eq!(code(client.exchange(&ROOT, Ino::ROOT, &top, middle, &low).await), Err(Code::Invalid));
            assert_eq!(code(client.exchange(&ROOT, middle, &low, Ino::ROOT, &top).await), Err(Code::Invalid));
            assert!(client.resolve(&ROOT, format!("/{top}/middle/{low}").as_bytes(), false).await.is_ok());
        }
    });
}

/// The rights of rename(2), of both names.
#[test]
fn both_names_must_be_ones_that_may_go() {
    with_cluster(3, |_cluster, client| async move {
        let user = Identity { uid: 1000, gid: 1000, groups: Vec::new() };
        let mode = |mode| Change { mode: Some(mode), ..Change::default() };
        let open = make(&client, &ROOT, Ino::ROOT, "open", FileKind::Directory).await;
        let sticky = make(&client, &ROOT, Ino::ROOT, "sticky", FileKind::Directory).await;
        let closed = make(&client, &ROOT, Ino::ROOT, "closed", FileKind::Directory).await;
        for (dir, bits) in [(open, 0o777), (sticky, 0o1777)] {
            client.setattr(&ROOT, dir, &mode(bits)).await.expect("root changes modes");
        }
        for index in 0..12 {
            let text = format!("n{index}");
            let entry = name(&text);
            make(&client, &ROOT, closed, &text, FileKind::File).await;
            make(&client, &ROOT, sticky, &text, FileKind::File).await;
            let mine = make(&client, &user, open, &text, FileKind::File).await;
            for (dir, expected) in [(closed, Code::AccessDenied), (sticky, Code::NotPermitted)] {
                assert_eq!(code(client.exchange(&user, open, &entry, dir, &entry).await), Err(expected));
                assert_eq!(code(client.exchange(&user, dir, &entry, open, &entry).await), Err(expected));
            }
            // Another user's directory may change its name, and not its parent.
            let (theirs, aside) = (format!("theirs{index}"), format!("aside{index}"));
            let other = make(&client, &ROOT, open, &theirs, FileKind::Directory).await;
            make(&client, &user, sticky, &aside, FileKind::File).await;
            let (theirs_name, aside_name) = (name(&theirs), name(&aside));
            for (from, to) in
                [((open, &theirs_name), (sticky, &aside_name)), ((sticky, &aside_name), (open, &theirs_name))]
            {
                assert_eq!(code(client.exchange(&user, from.0, from.1, to.0, to.1).await), Err(Code::AccessDenied));
            }
            assert_eq!(client.exchange(&user, open, &theirs_name, open, &entry).await, Ok(()));
            assert_eq!((found(&client, open, &theirs).await, found(&client, open, &text).await), (Ok(mine), Ok(other)));
        }
    });
}

/// A name in the root directory whose entry is on a server.
fn name_at(client: &Client, server: u16, prefix: &str) -> String {
    let map = client.map();
    let is_there = |text: &String| {
        let shard = NameHash::of(Ino::ROOT, &Name::new(text.as_bytes()).expect("a name")).shard(map.shards());
        map.server_of(shard) == Some(ServerIndex(server))
    };
    (0..64)
        .map(|index| format!("{prefix}{index}"))
        .find(is_there)
        .expect("of 64 names one hashes to each of three servers")
}

fn entry_at(cluster: &Cluster, server: u16, text: &str) -> Option<Ino> {
    let entries = cluster.server(server)?.entries_of(Ino::ROOT);
    entries.into_iter().find(|(entry, ..)| *entry == name(text)).map(|(_, ino, _)| ino)
}

/// Begins to exchange a name on server 1 with one on server 2, and cuts the way back to server 1 when
/// the second name has been changed, but no server was told. Gives the names and what they led to.
async fn half_done(cluster: &Arc<Cluster>, client: &Arc<Client>, kind: FileKind) -> [(String, Ino); 2] {
    let texts = [name_at(client, 1, "first"), name_at(client, 2, "second")];
    let inos =
        [make(client, &ROOT, Ino::ROOT, &texts[0], kind).await, make(client, &ROOT, Ino::ROOT, &texts[1], kind).await];
    let (asking, names) = (client.clone(), texts.clone().map(|text| name(&text)));
    let _answer =
        cluster.on_client(0, async move { asking.exchange(&ROOT, Ino::ROOT, &names[0], Ino::ROOT, &names[1]).await });
    while entry_at(cluster, 2, &texts[1]) != Some(inos[0]) {
        cluster.sim.sleep(MOMENT).await;
    }
    cluster.sim.set_link("s2", "s1", Link::Down);
    // Until the frames on their way have vanished.
    cluster.sim.sleep(Duration::from_millis(1)).await;
    let [one, two] = texts;
    [(one, inos[0]), (two, inos[1])]
}

#[test]
fn who_looks_at_the_other_half_of_an_exchange_waits_for_it() {
    for kind in [FileKind::File, FileKind::Directory] {
        with_cluster(3, |cluster, client| async move {
            let other = cluster.connect(1).await.expect("a quiet cluster connects");
            let [(first, one), (second, two)] = half_done(&cluster, &client, kind).await;
            assert_eq!(found(&other, Ino::ROOT, &second).await, Ok(one));
            assert_eq!(found(&other, Ino::ROOT, &first).await, Err(Code::TimedOut), "not what it was before");
            cluster.sim.heal();
            cluster.sim.sleep(SETTLE).await;
            assert_eq!(found(&other, Ino::ROOT, &first).await, Ok(two));
            assert_eq!(found(&other, Ino::ROOT, &second).await, Ok(one));
        });
    }
}

/// The second name went with its server before another server knew that it had been changed: the inode that
/// got it keeps the first one, for else it would have none.
#[test]
fn an_exchange_whose_second_name_is_lost_is_undone() {
    with_cluster(3, |cluster, client| async move {
        let [(first, one), _] = half_done(&cluster, &client, FileKind::File).await;
        cluster.kill_server(2, false);
        cluster.sim.heal();
        cluster.start_server(2).await.expect("a server that died can start again");
        cluster.sim.sleep(SETTLE).await;
        assert_eq!(found(&client, Ino::ROOT, &first).await, Ok(one));
        assert!(cluster.servers().iter().all(|server| server.contents().locks == 0));
    });
}

/// The first name's server died before the decision arrived: the second name keeps its inode.
#[test]
fn an_exchange_whose_first_name_is_lost_has_not_happened() {
    with_cluster(3, |cluster, client| async move {
        let (first, second) = (name_at(&client, 1, "first"), name_at(&client, 2, "second"));
        make(&client, &ROOT, Ino::ROOT, &first, FileKind::Directory).await;
        let two = make(&client, &ROOT, Ino::ROOT, &second, FileKind::Directory).await;
        let (asking, names) = (client.clone(), [name(&first), name(&second)]);
        let _answer = cluster
            .on_client(0, async move { asking.exchange(&ROOT, Ino::ROOT, &names[0], Ino::ROOT, &names[1]).await });
        let locked = || cluster.server(2).is_some_and(|server| server.contents().locks > 0);
        while !locked() {
            cluster.sim.sleep(MOMENT).await;
        }
        cluster.kill_server(1, false);
        cluster.start_server(1).await.expect("a server that died can start again");
        cluster.sim.sleep(SETTLE).await;
        assert_eq!(found(&client, Ino::ROOT, &second).await, Ok(two));
        assert!(!locked());
    });
}
