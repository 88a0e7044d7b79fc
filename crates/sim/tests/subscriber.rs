//! What a client tells those with whom it shares published indexes, so that they believe nothing that it would not believe.

use crate::support::{ROOT, create, name, with_layout};
use aze_client::Subscriber;
use aze_proto::{Code, Ino, NamespaceEpoch, Time};
use aze_sim::cluster::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

/// Counts the client's calls.
#[derive(Default)]
struct Counts {
    servers: AtomicU64,
    names: AtomicU64,
    open: AtomicI64,
    seen: AtomicU64,
}

impl Subscriber for Counts {
    fn servers_changed(&self) {
        self.servers.fetch_add(1, SeqCst);
    }

    fn names_changed(&self) {
        self.names.fetch_add(1, SeqCst);
    }

    fn opened(&self, _: Ino) {
        self.open.fetch_add(1, SeqCst);
    }

    fn closed(&self, _: Ino) {
        self.open.fetch_sub(1, SeqCst);
    }

    fn seen(&self) -> Time {
        Time(self.seen.load(SeqCst))
    }
}

fn layout() -> Layout {
    Layout { published_bytes: 1 << 20, ..Layout::of(3) }
}

#[test]
fn files_are_counted_from_their_first_open_to_their_last_close() {
    with_layout(layout(), |cluster, client| async move {
        let counts = Arc::new(Counts::default());
        client.share_with(counts.clone());
        let file = create(&client, Ino::ROOT, "f").await;
        assert_eq!(counts.open.load(SeqCst), 1);
        let again =
            client.open(&ROOT, file.ino(), aze_client::Access { read: true, write: false }).await.expect("open");
        assert_eq!(counts.open.load(SeqCst), 1, "an inode is counted once");
        file.close().await.expect("closed");
        drop(file);
        cluster.sim.sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(counts.open.load(SeqCst), 1, "it is open still");
        drop(again);
        cluster.sim.sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(counts.open.load(SeqCst), 0);
    });
}

#[test]
fn who_learns_that_directories_have_moved_tells_it_before_its_caller() {
    with_layout(layout(), |cluster, client| async move {
        let counts = Arc::new(Counts::default());
        client.share_with(counts.clone());
        let other = cluster.connect(1).await.expect("a second client connects");
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("made").ino;
        create(&client, dir, "f").await.close().await.expect("closed");
        client.resolve(&ROOT, b"/dir/f", true).await.expect("there");
        let (servers, names) = (counts.servers.load(SeqCst), counts.names.load(SeqCst));
        other.rename(&ROOT, Ino::ROOT, &name("dir"), Ino::ROOT, &name("moved"), false).await.expect("renamed");
        let gone = client.resolve(&ROOT, b"/dir/f", true).await.map_err(|failure| failure.code);
        assert_eq!(gone.map(|attr| attr.ino), Err(Code::NotFound));
        assert!(counts.names.load(SeqCst) > names, "what was said of /dir counts no more");
        assert_eq!(counts.servers.load(SeqCst), servers, "and the indexes do");
        client.forget_what_it_believes();
        assert!(counts.servers.load(SeqCst) > servers, "after a panic nothing does");
    });
}

#[test]
fn the_loss_of_a_server_is_told_before_its_requests_fail() {
    with_layout(layout(), |cluster, client| async move {
        let counts = Arc::new(Counts::default());
        client.share_with(counts.clone());
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("made").ino;
        for round in 0..20 {
            create(&client, dir, &format!("f{round}")).await.close().await.expect("closed");
        }
        let servers = counts.servers.load(SeqCst);
        cluster.kill_server(2, false);
        let mut failed = 0;
        for round in 0..20 {
            failed += usize::from(client.resolve(&ROOT, format!("/dir/f{round}").as_bytes(), true).await.is_err());
            assert!(failed == 0 || counts.servers.load(SeqCst) > servers, "f{round} failed before that was told");
        }
        assert!(failed > 0, "a server had some of the files");
    });
}

#[test]
fn what_is_asked_for_is_not_dated_before_what_the_others_have_seen() {
    with_layout(layout(), |cluster, client| async move {
        let counts = Arc::new(Counts::default());
        client.share_with(counts.clone());
        let file = create(&client, Ino::ROOT, "f").await;
        let ahead = file.attr().ctime.0 + 20_000_000_000;
        counts.seen.store(ahead, SeqCst);
        let changed = client.truncate(&ROOT, file.ino(), 3, None).await.expect("cut");
        assert!(changed.ctime.0 >= ahead, "{} is before {ahead}", changed.ctime.0);
        drop(cluster);
    });
}

#[test]
fn who_was_let_in_is_told_only_of_states_that_a_lookup_has_seen() {
    with_layout(layout(), |cluster, client| async move {
        let dir = client.mkdir_all(&ROOT, b"/dir", 0o755).await.expect("made").ino;
        let missing = name("missing");
        assert_eq!(client.was_let_in(&ROOT, dir, &missing), None);
        let epoch = NamespaceEpoch(0);
        // The first lookup has the server publish the directory, and the second one sees it.
        assert_eq!(client.is_let_in(&ROOT, dir, &missing, epoch).await, None);
        let let_in = client.is_let_in(&ROOT, dir, &missing, epoch).await.expect("it was let in");
        assert_eq!(client.was_let_in(&ROOT, dir, &missing), Some(let_in));
        client.forget_what_it_believes();
        assert_eq!(client.was_let_in(&ROOT, dir, &missing), None);
        drop(cluster);
    });
}
