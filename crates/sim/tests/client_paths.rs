//! Paths: links, dots, cached directories, and other clients' changes to the directories on the way.

use crate::support::{ROOT, create, name, opened_file, with_cluster};
use aze_client::{Access, Client, NewFile};
use aze_proto::{Change, Code, FileKind, Identity, Ino};
use aze_sim::Cluster;

async fn symlink(client: &Client, path: &str, target: &str) {
    let new = NewFile { kind: FileKind::Symlink, mode: 0o777, target: target.into(), open: None, ..opened_file() };
    client.create_path(&ROOT, path.as_bytes(), &new).await.expect("a new name can be made");
}

async fn ino(client: &Client, path: &str) -> Result<Ino, Code> {
    client.resolve(&ROOT, path.as_bytes(), true).await.map(|attr| attr.ino).map_err(|failure| failure.code)
}

fn dispatched(cluster: &Cluster) -> u64 {
    let counters = cluster.servers().into_iter().flat_map(|server| server.status().requests);
    counters.filter(|counter| counter.name != "Close").map(|counter| counter.count).sum()
}

#[test]
fn links_and_dots_lead_where_they_do_in_posix() {
    with_cluster(3, |_cluster, client| async move {
        let deep = client.mkdir_all(&ROOT, b"/a/b/c", 0o755).await.expect("directories can be made").ino;
        let file = create(&client, deep, "f").await.ino();
        symlink(&client, "/a/rel", "b/c").await;
        symlink(&client, "/abs", "/a/b").await;
        symlink(&client, "/a/b/up", "../rel/f").await;
        symlink(&client, "/loop", "/loop2/x").await;
        symlink(&client, "/loop2", "loop").await;
        symlink(&client, "/dangling", "a/none").await;
        for path in [
            "/a/b/c/f",
            "//a/./b//c/f",
            "/a/rel/f",
            "/abs/c/f",
            "/abs/../b/c/f",
            "/a/b/up",
            "/../a/rel/../c/f",
            "/abs/up",
        ] {
            assert_eq!(ino(&client, path).await, Ok(file), "{path}");
        }
        for (path, code) in [
            ("/a/none", Code::NotFound),
            ("/none/f", Code::NotFound),
            ("/a/b/c/f/x", Code::NotDirectory),
            ("/loop/y", Code::LinkLoop),
            ("/dangling", Code::NotFound),
            ("a/b", Code::Invalid),
            ("", Code::Invalid),
        ] {
            assert_eq!(ino(&client, path).await, Err(code), "{path}");
        }
        assert_eq!(ino(&client, "/").await, Ok(Ino::ROOT));
        assert_eq!(ino(&client, "/a/b/c/../..").await, ino(&client, "/a").await);
        let link = client.resolve(&ROOT, b"/a/rel", false).await.expect("it exists");
        assert_eq!(link.kind, FileKind::Symlink);
        assert_eq!(client.readlink(&ROOT, link.ino).await.as_deref(), Ok(&b"b/c"[..]));
        assert_eq!(client.resolve_parent(&ROOT, b"/a/rel/new").await, Ok((deep, name("new"))));
        assert_eq!(client.resolve_parent(&ROOT, b"/a/..").await.unwrap_err().code, Code::Invalid);
        let long = format!("/{}", "x".repeat(256));
        assert_eq!(ino(&client, &long).await, Err(Code::NameTooLong));
    });
}

#[test]
fn files_are_made_and_opened_through_links() {
    with_cluster(2, |_cluster, client| async move {
        client.mkdir_all(&ROOT, b"/d", 0o755).await.expect("a directory can be made");
        symlink(&client, "/l", "d/f").await;
        let new = NewFile { exclusive: false, ..opened_file() };
        let made = client.create_path(&ROOT, b"/l", &new).await.expect("where the link leads");
        assert!(made.created);
        let again = client.create_path(&ROOT, b"/d/f", &new).await.expect("it exists");
        assert_eq!((again.created, again.attr.ino), (false, made.attr.ino));
        assert!(again.file.is_some());
        assert_eq!(client.create_path(&ROOT, b"/l", &opened_file()).await.err().expect("exclusive").code, Code::Exists);
        assert_eq!(client.create_path(&ROOT, b"/d", &new).await.err().expect("not a file").code, Code::IsDirectory);
        let opened = client.open_path(&ROOT, b"/l", Access { read: true, write: true }).await.expect("root may");
        assert_eq!(opened.ino(), made.attr.ino);
        client.rename_path(&ROOT, b"/d/f", b"/g", false).await.expect("it exists");
        assert_eq!(ino(&client, "/l").await, Err(Code::NotFound));
        client.unlink_path(&ROOT, b"/l").await.expect("the link itself");
        client.unlink_path(&ROOT, b"/g").await.expect("it exists");
        client.rmdir_path(&ROOT, b"/d").await.expect("it is empty");
        assert_eq!(ino(&client, "/d").await, Err(Code::NotFound));
    });
}

#[test]
fn directories_are_made_with_all_that_is_above() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let (a, b) = futures_util::future::join(
            one.mkdir_all(&ROOT, b"/x/y/z/w", 0o755),
            two.mkdir_all(&ROOT, b"/x/y/z/w", 0o755),
        )
        .await;
        assert_eq!(a.expect("made").ino, b.expect("made").ino);
        assert_eq!(one.mkdir_all(&ROOT, b"/x/y/", 0o700).await.expect("exists").mode, 0o755);
        create(&one, Ino::ROOT, "f").await;
        assert_eq!(one.mkdir_all(&ROOT, b"/f/g", 0o755).await.unwrap_err().code, Code::NotDirectory);
        assert_eq!(one.mkdir_all(&ROOT, b"/f", 0o755).await.unwrap_err().code, Code::NotDirectory);
        assert_eq!(one.mkdir_all(&ROOT, b"/", 0o755).await.expect("exists").ino, Ino::ROOT);
        symlink(&one, "/l", "x").await;
        one.mkdir_all(&ROOT, b"/l/new", 0o755).await.expect("through a link");
        assert!(ino(&two, "/x/new").await.is_ok());
        one.mkdir_all(&ROOT, b"/p/../q/./r", 0o755).await.expect("with dots");
        assert!(ino(&two, "/q/r").await.is_ok());
    });
}

#[test]
fn operations_on_paths_take_one_request_with_the_directory_cached() {
    with_cluster(4, |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/a/b/c", 0o755).await.expect("directories can be made").ino;
        for index in 0..32 {
            create(&client, dir, &format!("warm{index}")).await;
        }
        client.resolve(&ROOT, b"/a/b/c/warm0", true).await.expect("it exists");
        for index in 0..8 {
            let path = format!("/a/b/c/f{index}").into_bytes();
            let before = dispatched(&cluster);
            client.create_path(&ROOT, &path, &opened_file()).await.expect("a new name");
            client.resolve(&ROOT, &path, true).await.expect("it exists");
            client.unlink_path(&ROOT, &path).await.expect("it exists");
            assert_eq!(dispatched(&cluster) - before, 3);
        }
    });
}

#[test]
fn a_renamed_directory_is_not_found_under_its_old_name() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let dir = one.mkdir_all(&ROOT, b"/a/b", 0o755).await.expect("directories can be made").ino;
        one.create_path(&ROOT, b"/a/b/f", &opened_file()).await.expect("a new name");
        two.rename_path(&ROOT, b"/a", b"/z", false).await.expect("it exists");
        // The first client has the way to /a/b in its cache.
        let failure =
            one.create_path(&ROOT, b"/a/b/g", &opened_file()).await.err().expect("the directory has another name");
        assert_eq!(failure.code, Code::NotFound);
        assert_eq!(ino(&one, "/a/b/f").await, Err(Code::NotFound));
        assert!(ino(&one, "/z/b/f").await.is_ok());
        // A directory can be used by its inode number under any name.
        create(&one, dir, "h").await;
        assert!(ino(&two, "/z/b/h").await.is_ok());
        two.mkdir_all(&ROOT, b"/a/b", 0o755).await.expect("the name is free");
        two.rename_path(&ROOT, b"/z/b/f", b"/a/b/f2", false).await.expect("it exists");
        assert!(ino(&one, "/a/b/f2").await.is_ok());
    });
}

#[test]
fn a_directory_made_anew_under_an_old_name_is_found() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        one.mkdir_all(&ROOT, b"/a/b", 0o755).await.expect("directories can be made");
        one.create_path(&ROOT, b"/a/b/f", &opened_file()).await.expect("a new name");
        two.unlink_path(&ROOT, b"/a/b/f").await.expect("it exists");
        two.rmdir_path(&ROOT, b"/a/b").await.expect("it is empty");
        assert_eq!(ino(&one, "/a/b/f").await, Err(Code::NotFound));
        two.mkdir_all(&ROOT, b"/a/b", 0o755).await.expect("the name is free");
        two.create_path(&ROOT, b"/a/b/f", &opened_file()).await.expect("a new name");
        assert!(ino(&one, "/a/b/f").await.is_ok());
        two.unlink_path(&ROOT, b"/a/b/f").await.expect("it exists");
        two.rmdir_path(&ROOT, b"/a/b").await.expect("it is empty");
        two.mkdir_all(&ROOT, b"/a/b/f", 0o755).await.expect("the name is free");
        one.rename_path(&ROOT, b"/a/b/f", b"/a/b/g", false).await.expect("the new directory has it");
    });
}

#[test]
fn what_one_user_may_pass_through_is_no_way_for_another() {
    with_cluster(2, |_cluster, client| async move {
        let user = Identity { uid: 1000, gid: 1000, groups: Vec::new() };
        let dir = client.mkdir_all(&ROOT, b"/private/inner", 0o755).await.expect("directories can be made").ino;
        create(&client, dir, "f").await;
        client.resolve(&user, b"/private/inner/f", true).await.expect("everybody may pass");
        let private = client.resolve(&ROOT, b"/private", true).await.expect("it exists").ino;
        let change = Change { mode: Some(0o700), ..Change::default() };
        client.setattr(&ROOT, private, &change).await.expect("root may");
        assert_eq!(client.resolve(&user, b"/private/inner/f", true).await.unwrap_err().code, Code::AccessDenied);
        client.resolve(&ROOT, b"/private/inner/f", true).await.expect("root may");
        assert_eq!(client.resolve(&user, b"/private/inner/f", true).await.unwrap_err().code, Code::AccessDenied);
    });
}
