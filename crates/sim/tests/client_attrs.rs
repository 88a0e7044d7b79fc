//! Extended attributes and access control lists, as clients of several servers see them.

use crate::support::{ROOT, create, name, with_cluster, with_layout};
use aze_client::{Access, Client, NewFile, mode_under};
use aze_io::sync::Mutex;
use aze_proto::{Change, Code, FileKind, Identity, Ino, SetTime, Time, XattrHow};
use aze_server::sabotage::{Sabotage, Switches};
use aze_sim::Cluster;
use aze_sim::cluster::Layout;
use aze_sim::work::shared::new_file;
use std::time::Duration;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NOBODY: u32 = u32::MAX;

/// Memory of a small server.
const MEMORY_BYTES: u64 = 1 << 20;

fn user() -> Identity {
    Identity { uid: 1000, gid: 1000, groups: Vec::new() }
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([*tag, *perm].into_iter().flat_map(u16::to_le_bytes));
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Owner all, user 1000 all, other users nothing.
fn for_the_user() -> Vec<u8> {
    acl(&[(1, 7, NOBODY), (2, 7, 1000), (4, 0, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)])
}

#[test]
fn an_attribute_is_seen_by_other_clients_at_once() {
    with_cluster(3, |cluster, client| async move {
        let other = cluster.connect(1).await.expect("a quiet cluster connects");
        let any = XattrHow::Any;
        for index in 0..12 {
            let ino = create(&client, Ino::ROOT, &format!("f{index}")).await.ino();
            assert_eq!(client.set_xattr(&ROOT, ino, b"user.a", b"value", any).await, Ok(()));
            assert_eq!(other.get_xattr(&ROOT, ino, b"user.a").await, Ok(b"value".to_vec()));
            assert_eq!(other.list_xattr(&ROOT, ino).await, Ok(vec![b"user.a".to_vec()]));
            let again = other.set_xattr(&ROOT, ino, b"user.a", b"", XattrHow::Create).await;
            assert_eq!(again.map_err(|failure| failure.code), Err(Code::Exists));
            assert_eq!(other.remove_xattr(&ROOT, ino, b"user.a").await, Ok(()));
            let gone = client.get_xattr(&ROOT, ino, b"user.a").await;
            assert_eq!(gone.map_err(|failure| failure.code), Err(Code::NoAttribute));
            let long = client.set_xattr(&ROOT, ino, b"user.a", &[0; 65_537], any).await;
            assert_eq!(long.map_err(|failure| failure.code), Err(Code::Limit));
            assert_eq!(client.set_xattr(&ROOT, ino, b"user.a", &[7; 65_536], any).await, Ok(()));
            assert_eq!(client.get_xattr(&ROOT, ino, b"user.a").await, Ok(vec![7; 65_536]));
        }
    });
}

/// Requests for extended attributes that the servers have been asked by now.
fn asked(cluster: &Cluster) -> u64 {
    let counters = cluster.servers().into_iter().flat_map(|server| server.status().requests);
    counters
        .filter(|counter| counter.name.ends_with("etXattr") || counter.name == "ListXattr")
        .map(|counter| counter.count)
        .sum()
}

/// Lets a client be given leases.
fn believe(client: &Client) {
    client.listen(Box::new(|_recalls| Box::pin(async {})));
}

/// Two clients that believe answers; one of them changes the attributes of a file, both look at them. Gives what one of
/// them has seen that is not so, and how many looks took no request.
fn looks_at_attributes(layout: Layout) -> (Vec<String>, u64) {
    let (wrong, unasked) = (Mutex::new(Vec::new()), Mutex::new(0));
    with_layout(layout, async |cluster, client| {
        let other = cluster.connect(1).await.expect("a quiet cluster connects");
        believe(&client);
        believe(&other);
        for index in 0..12 {
            let ino = create(&client, Ino::ROOT, &format!("f{index}")).await.ino();
            let closed = Change { mode: Some(0o600), ..Change::default() };
            client.setattr(&ROOT, ino, &closed).await.expect("root may");
            for round in 0..4u8 {
                let (has_one, name) = (round % 2 == 1, self::name(&format!("f{index}")));
                let value = if has_one { Ok(vec![round]) } else { Err(Code::NoAttribute) };
                for (who, looker) in [("the other", &other), ("the one", &client)] {
                    for text in [&b"user.a"[..], ACCESS, DEFAULT, b"security.selinux"] {
                        let before = asked(&cluster);
                        let listed = looker.list_xattr(&ROOT, ino).await.expect("it is there");
                        let got = looker.get_xattr(&ROOT, ino, text).await.map_err(|failure| failure.code);
                        *unasked.lock() += u64::from(asked(&cluster) == before);
                        let expected = if text == b"user.a" { value.clone() } else { Err(Code::NoAttribute) };
                        if got != expected || listed.len() != usize::from(has_one) {
                            let text = text.escape_ascii();
                            wrong.lock().push(format!("f{index}, {round}: {who} sees {listed:?}, {text}: {got:?}"));
                        }
                        looker.lookup_within(&ROOT, Ino::ROOT, &name, Duration::ZERO).await.expect("it is there");
                    }
                    let code = async |who: &Identity, name: &[u8]| {
                        looker.get_xattr(who, ino, name).await.map_err(|failure| failure.code)
                    };
                    assert_eq!(code(&user(), b"user.a").await, Err(Code::AccessDenied), "he may not read the file");
                    assert_eq!(code(&ROOT, b"strange.a").await, Err(Code::Unsupported));
                }
                let changed = match has_one {
                    false => client.set_xattr(&ROOT, ino, b"user.a", &[round + 1], XattrHow::Any).await,
                    true => client.remove_xattr(&ROOT, ino, b"user.a").await,
                };
                changed.expect("root may");
            }
        }
    });
    (wrong.into_inner(), unasked.into_inner())
}

#[test]
fn a_file_without_attributes_is_not_asked_for_them() {
    for published_bytes in [0, 1 << 20] {
        let (wrong, unasked) = looks_at_attributes(Layout { published_bytes, ..Layout::of(3) });
        assert_eq!(wrong, Vec::<String>::new(), "published: {published_bytes}");
        // 12 files, two rounds of four without attributes, two clients, four names, the first of them asked for after a
        // change; and the first answer of each server comes without a lease.
        assert!((130..=192).contains(&unasked), "published: {published_bytes}: {unasked} looks took no request");
    }
}

#[test]
fn attributes_that_are_believed_after_a_change_are_noticed() {
    let layout = Layout { switches: Switches::without(Sabotage::SkipRecallWait), ..Layout::of(3) };
    assert_ne!(looks_at_attributes(layout).0, Vec::<String>::new());
}

/// Memory for data does not hold attributes, which would go on for ever otherwise.
#[test]
fn attributes_and_targets_end_where_memory_does() {
    let layout = Layout { memory_bytes: MEMORY_BYTES, ..Layout::of(1) };
    with_layout(layout, |_cluster, client| async move {
        let any = XattrHow::Any;
        let (mut bytes, mut inos) = (0, Vec::new());
        let full = loop {
            let ino = match client
                .create(&ROOT, Ino::ROOT, &name(&format!("f{}", inos.len())), &new_file(FileKind::File, true))
                .await
            {
                Ok(made) => made.attr.ino,
                Err(failure) => break failure,
            };
            match client.set_xattr(&ROOT, ino, b"user.a", &[7; 60_000], any).await {
                Ok(()) => bytes += 60_000,
                Err(failure) => break failure,
            }
            inos.push(ino);
            assert!(bytes < 2 * MEMORY_BYTES, "{bytes} bytes of attributes");
        };
        assert_eq!(full.code, Code::NoSpace, "{full}");
        assert!(bytes > MEMORY_BYTES / 2, "{bytes} bytes of attributes");
        for ino in &inos[..2] {
            assert_eq!(client.remove_xattr(&ROOT, *ino, b"user.a").await, Ok(()));
        }
        let mut targets = 0;
        let full = loop {
            let link = NewFile { target: vec![b't'; 4000], ..new_file(FileKind::Symlink, true) };
            match client.create(&ROOT, Ino::ROOT, &name(&format!("l{targets}")), &link).await {
                Ok(_) => targets += 1,
                Err(failure) => break failure,
            }
            assert!(targets < 60, "{targets} symlinks");
        };
        assert_eq!(full.code, Code::NoSpace, "{full}");
        assert!(targets > 10, "{targets} symlinks");
    });
}

#[test]
fn every_server_knows_the_list_of_a_directory() {
    with_cluster(4, |_cluster, client| async move {
        let dir = client.create(&ROOT, Ino::ROOT, &name("dir"), &new_file(FileKind::Directory, true)).await;
        let dir = dir.expect("root makes directories").attr.ino;
        let closed = Change { mode: Some(0o700), ..Change::default() };
        client.setattr(&ROOT, dir, &closed).await.expect("root closes it");
        for index in 0..16 {
            create(&client, dir, &format!("f{index}")).await;
        }
        for (list, expected) in [(Some(for_the_user()), true), (None, false), (Some(for_the_user()), true)] {
            match &list {
                Some(list) => client.set_xattr(&ROOT, dir, ACCESS, list, XattrHow::Any).await.expect("root may"),
                None => {
                    client.remove_xattr(&ROOT, dir, ACCESS).await.expect("root may");
                    client.setattr(&ROOT, dir, &closed).await.expect("the group's bits showed the mask");
                }
            }
            for index in 0..16 {
                let found = client.lookup(&user(), dir, &name(&format!("f{index}"))).await;
                let code = found.map(|_| ()).map_err(|failure| failure.code);
                assert_eq!(code, if expected { Ok(()) } else { Err(Code::AccessDenied) }, "f{index}");
            }
        }
        let made = client.create(&user(), dir, &name("of the user"), &new_file(FileKind::File, true)).await;
        assert_eq!(made.map(|made| made.attr.uid).map_err(|failure| failure.code), Ok(1000));
    });
}

#[test]
fn what_is_made_in_a_directory_inherits_its_default_list() {
    with_cluster(3, |_cluster, client| async move {
        let dir = client.create(&ROOT, Ino::ROOT, &name("dir"), &new_file(FileKind::Directory, true)).await;
        let dir = dir.expect("root makes directories").attr.ino;
        client.set_xattr(&ROOT, dir, DEFAULT, &for_the_user(), XattrHow::Any).await.expect("root may");
        for index in 0..8 {
            let new = NewFile { mode: mode_under(0o666, 0o027), ..new_file(FileKind::File, true) };
            let made = client.create(&ROOT, dir, &name(&format!("f{index}")), &new).await.expect("root may").attr;
            assert_eq!(made.mode, 0o660, "the umask does not count");
            let open = Access { read: true, write: true };
            client.open(&user(), made.ino, open).await.expect("the list gives it to the user");
            let inner = NewFile { mode: 0o755, ..new_file(FileKind::Directory, true) };
            let inner = client.create(&ROOT, dir, &name(&format!("d{index}")), &inner).await.expect("root may").attr;
            assert_eq!(client.get_xattr(&ROOT, inner.ino, DEFAULT).await, Ok(for_the_user()));
            let deep = NewFile { mode: 0o600, ..new_file(FileKind::File, true) };
            let deep = client.create(&ROOT, inner.ino, &name("deep"), &deep).await.expect("root may").attr;
            let refused = client.open(&user(), deep.ino, open).await.map(|_| ()).map_err(|failure| failure.code);
            assert_eq!(refused, Err(Code::AccessDenied), "the mode asked for became the mask");
        }
    });
}

/// The times of a directory are at its home, and those of its entries' changes at the servers that have them: a change of
/// the first hides the second, so it has to take them along.
#[test]
fn the_modification_time_of_a_directory_never_goes_back() {
    with_cluster(4, |cluster, client| async move {
        let other = client.mkdir_all(&ROOT, b"/other", 0o755).await.expect("made").ino;
        for round in 0..12 {
            let path = format!("/d{round}");
            let dir = client.mkdir_all(&ROOT, path.as_bytes(), 0o755).await.expect("made").ino;
            for number in 0..8 {
                cluster.sim.sleep(std::time::Duration::from_millis(3)).await;
                create(&client, dir, &format!("f{number}")).await;
            }
            let before = client.getattr(&ROOT, dir).await.expect("it is there");
            cluster.sim.sleep(std::time::Duration::from_millis(3)).await;
            match round % 3 {
                0 => client.set_xattr(&ROOT, dir, b"user.a", b"b", XattrHow::Any).await.expect("set"),
                1 => {
                    let here = name(&format!("d{round}"));
                    client.rename(&ROOT, Ino::ROOT, &here, other, &here, false).await.expect("renamed");
                }
                _ => client.set_xattr(&ROOT, dir, DEFAULT, &for_the_user(), XattrHow::Any).await.expect("set"),
            }
            cluster.sim.sleep(std::time::Duration::from_secs(3)).await;
            let after = client.getattr(&ROOT, dir).await.expect("it is there");
            assert_eq!(after.mtime, before.mtime, "round {round}");
            assert!(after.ctime > before.ctime, "round {round}");
            // Set back on purpose it stays, until an entry comes or goes.
            let back = Change { mtime: Some(SetTime::To { time: Time(1) }), ..Change::default() };
            client.setattr(&ROOT, dir, &back).await.expect("set");
            client.set_xattr(&ROOT, dir, b"user.b", b"c", XattrHow::Any).await.expect("set");
            assert_eq!(client.getattr(&ROOT, dir).await.map(|attr| attr.mtime), Ok(Time(1)), "round {round}");
            create(&client, dir, "last").await;
            cluster.sim.sleep(std::time::Duration::from_secs(3)).await;
            assert!(client.getattr(&ROOT, dir).await.is_ok_and(|attr| attr.mtime > before.mtime), "round {round}");
        }
    });
}
