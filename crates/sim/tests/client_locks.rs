//! Locks of files between clients: owners, waiters, and the death of a client.

use crate::support::{ROOT, create, with_cluster};
use aze_client::{Access, Client, File, Locked};
use aze_proto::limits::{LOCKS_KEPT_MS, SESSION_GRACE_MS};
use aze_proto::message::{LockMode, LockSpace, LockSpec};
use aze_proto::{Code, Ino};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

const BOTH: Access = Access { read: true, write: true };

fn range(owner: u64, start: u64, end: u64, mode: LockMode) -> LockSpec {
    LockSpec { space: LockSpace::Ranges, owner, pid: 7, start, end, mode }
}

fn whole(owner: u64) -> LockSpec {
    LockSpec { space: LockSpace::Whole, ..range(owner, 0, u64::MAX, LockMode::Exclusive) }
}

async fn open(client: &Client, ino: Ino) -> Arc<File> {
    client.open(&ROOT, ino, BOTH).await.expect("root may open it")
}

#[test]
fn a_lock_excludes_those_of_other_clients_and_owners() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let mine = create(&one, Ino::ROOT, "f").await;
        let theirs = open(&two, mine.ino()).await;
        let lock = range(1, 0, 99, LockMode::Exclusive);
        assert_eq!(mine.try_lock(&lock).await, Ok(Locked::Granted));
        assert_eq!(theirs.try_lock(&range(1, 50, 60, LockMode::Shared)).await, Ok(Locked::Held(lock)));
        assert_eq!(mine.try_lock(&range(2, 50, 60, LockMode::Shared)).await, Ok(Locked::Held(lock)));
        assert_eq!(theirs.test_lock(&range(1, 0, 0, LockMode::Shared)).await, Ok(Some(lock)));
        assert_eq!(theirs.try_lock(&range(1, 100, u64::MAX, LockMode::Exclusive)).await, Ok(Locked::Granted));
        assert_eq!(theirs.try_lock(&whole(1)).await, Ok(Locked::Granted));
        mine.unlock(LockSpace::Ranges, 1, 0, 59).await.expect("the home answers");
        assert_eq!(theirs.try_lock(&range(1, 50, 59, LockMode::Shared)).await, Ok(Locked::Granted));
        mine.unlock_owner(LockSpace::Ranges, 1).await.expect("the home answers");
        assert_eq!(theirs.test_lock(&range(1, 0, 99, LockMode::Exclusive)).await, Ok(None));
        let dir = one.mkdir_all(&ROOT, b"/d", 0o755).await.expect("a directory can be made");
        let dir = one.open(&ROOT, dir.ino, Access { read: true, write: false }).await.expect("root may open it");
        assert_eq!(dir.try_lock(&whole(1)).await.map_err(|failure| failure.code), Err(Code::Invalid));
    });
}

#[test]
fn who_waits_is_granted_when_the_other_unlocks_closes_or_ends() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let theirs = create(&two, Ino::ROOT, "f").await;
        for round in 0..3 {
            let mine = open(&one, theirs.ino()).await;
            assert_eq!(mine.try_lock(&whole(1)).await, Ok(Locked::Granted));
            let waiting = theirs.clone();
            let wait = cluster.on_client(1, async move { waiting.lock_unless(&whole(2), pending()).await });
            cluster.sim.sleep(Duration::from_secs(25)).await;
            match round {
                0 => mine.unlock_owner(LockSpace::Whole, 1).await.expect("the home answers"),
                1 => mine.close().await.expect("an open file can be closed"),
                _ => drop(mine),
            }
            assert_eq!(wait.await, Ok(Ok(Locked::Granted)), "round {round}");
            theirs.unlock_owner(LockSpace::Whole, 2).await.expect("the home answers");
        }
    });
}

#[test]
fn a_wait_can_be_ended_and_leaves_nothing() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let mine = create(&one, Ino::ROOT, "f").await;
        let theirs = open(&two, mine.ino()).await;
        assert_eq!(mine.try_lock(&whole(1)).await, Ok(Locked::Granted));
        let stop = cluster.sim.sleep(Duration::from_secs(3));
        assert_eq!(theirs.lock_unless(&whole(2), stop).await, Ok(Locked::Interrupted));
        // One that is dropped goes out of the queue, too.
        let (io, lock) = (cluster.client_io(1), whole(3));
        let dropped = io.timeout(Duration::from_secs(3), theirs.lock_unless(&lock, pending()));
        assert_eq!(dropped.await, None);
        cluster.sim.sleep(Duration::from_secs(1)).await;
        mine.unlock_owner(LockSpace::Whole, 1).await.expect("the home answers");
        assert_eq!(mine.test_lock(&whole(1)).await, Ok(None), "somebody who waits no longer was granted the lock");
        // A circle within one file is seen.
        assert_eq!(mine.try_lock(&range(1, 0, 0, LockMode::Exclusive)).await, Ok(Locked::Granted));
        assert_eq!(theirs.try_lock(&range(1, 1, 1, LockMode::Exclusive)).await, Ok(Locked::Granted));
        let waiting = mine.clone();
        let lock = range(1, 1, 1, LockMode::Exclusive);
        let wait = cluster.on_client(0, async move { waiting.lock_unless(&lock, pending()).await });
        cluster.sim.sleep(Duration::from_secs(1)).await;
        let circle = theirs.lock_unless(&range(1, 0, 0, LockMode::Exclusive), pending()).await;
        assert_eq!(circle, Ok(Locked::Deadlock));
        theirs.close().await.expect("an open file can be closed");
        assert_eq!(wait.await, Ok(Ok(Locked::Granted)));
    });
}

#[test]
fn a_wait_survives_a_broken_connection() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let mine = create(&one, Ino::ROOT, "f").await;
        let theirs = open(&two, mine.ino()).await;
        assert_eq!(mine.try_lock(&whole(1)).await, Ok(Locked::Granted));
        let waiting = theirs.clone();
        let wait = cluster.on_client(1, async move { waiting.lock_unless(&whole(2), pending()).await });
        cluster.sim.sleep(Duration::from_secs(2)).await;
        let home = one.map().home_of(mine.ino()).expect("it has a home").0;
        let node = format!("s{home}");
        cluster.sim.set_link("c1", &node, aze_io::sim::Link::Down);
        cluster.sim.set_link(&node, "c1", aze_io::sim::Link::Down);
        cluster.sim.sleep(Duration::from_secs(4)).await;
        mine.unlock_owner(LockSpace::Whole, 1).await.expect("the home answers");
        cluster.sim.heal();
        assert_eq!(wait.await, Ok(Ok(Locked::Granted)));
    });
}

#[test]
fn the_locks_of_a_dead_client_are_free_after_its_grace() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let mine = create(&one, Ino::ROOT, "f").await;
        let theirs = open(&two, mine.ino()).await;
        assert_eq!(theirs.try_lock(&whole(1)).await, Ok(Locked::Granted));
        let waiting = mine.clone();
        let wait = cluster.on_client(0, async move { waiting.lock_unless(&whole(2), pending()).await });
        cluster.kill_client(1);
        cluster.sim.sleep(Duration::from_millis(SESSION_GRACE_MS - LOCKS_KEPT_MS - 500)).await;
        assert!(matches!(mine.test_lock(&whole(3)).await, Ok(Some(held)) if held.owner == 1));
        cluster.sim.sleep(Duration::from_millis(LOCKS_KEPT_MS + 1000)).await;
        assert_eq!(wait.await, Ok(Ok(Locked::Granted)));
        assert!(matches!(mine.test_lock(&whole(3)).await, Ok(Some(held)) if held.owner == 2));
    });
}

#[test]
fn a_client_that_lost_its_locks_writes_nothing_any_more() {
    with_cluster(3, |cluster, one| async move {
        let two = cluster.connect(1).await.expect("a second client connects");
        let mine = create(&one, Ino::ROOT, "f").await;
        let theirs = open(&two, mine.ino()).await;
        assert_eq!(theirs.try_lock(&whole(1)).await, Ok(Locked::Granted));
        theirs.write(200_000, b"as long as it has the lock").await.expect("all servers know the session");
        // It is out of reach of the home alone, and believes to have the lock.
        let node = format!("s{}", one.map().home_of(mine.ino()).expect("it has a home").0);
        cluster.sim.set_link("c1", &node, aze_io::sim::Link::Down);
        cluster.sim.set_link(&node, "c1", aze_io::sim::Link::Down);
        assert_eq!(mine.lock_unless(&whole(2), pending()).await, Ok(Locked::Granted));
        let written = theirs.write(100_000, b"without it").await;
        assert_eq!(written.map_err(|failure| failure.code), Err(Code::Expired));
        let other = two.statfs().await;
        assert!(other.is_err(), "a session that has ended is refused by all");
    });
}
