//! Servers die under the work of clients, one at a time or two, and come back alone while the others go on. Operations
//! may fail while they are away, in bounded time; later ones must not, and nothing acknowledged is missing.

use super::again::Progress;
use super::book::Book;
use super::look::look;
use super::worker::Worker;
use super::{Counts, LIVES, PersistentPlan, moving};
use crate::cluster::Cluster;
use crate::work::{Board, ROOT};
use aze_io::sync::Mutex;
use aze_proto::Failure;
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// After this time nothing is under way in the background.
const REST: Duration = Duration::from_secs(30);

/// As `super::lives`, with one client and the same servers for all of it.
pub(super) async fn lives(cluster: &Arc<Cluster>, plan: &PersistentPlan, board: &Arc<Board>, counts: &Counts) {
    let book = Arc::new(Mutex::new(Book::default()));
    if let Err(failure) = cluster.start().await {
        return board.violation(format!("the volume does not start: {failure}"));
    }
    let client = match cluster.connect(0).await {
        Ok(client) => client,
        Err(failure) => return board.violation(format!("no client connects: {failure}")),
    };
    for life in 0..LIVES {
        let rng = &mut cluster.sim.rng(&format!("life {life}"));
        let progress = Arc::new(Progress { alone: true, ..Progress::default() });
        let ends: Vec<_> = (0..plan.tasks)
            .map(|task| {
                let worker = Worker {
                    acknowledged_lasts: true,
                    again: Some(progress.clone()),
                    ..Worker::new(plan, cluster, (life, task), &client, &book, board)
                };
                cluster.on_client(0, worker.work())
            })
            .collect();
        let pause = |us: u64| cluster.sim.sleep(Duration::from_micros(us));
        pause(rng.between(2_000, 400_000)).await;
        let moves = Arc::new(moving::Progress::default());
        let mut moved = None;
        if plan.moves {
            let draws = cluster.sim.rng(&format!("moves of life {life}"));
            moved = Some(cluster.on_driver(moving::go(
                cluster.clone(),
                board.clone(),
                moves.clone(),
                draws,
                plan.first_leaves,
            )));
            pause(rng.between(0, 200_000)).await;
            moves.in_a_move(cluster, rng, Duration::from_millis(200)).await;
        }
        let map = cluster.newest_map();
        let members: Vec<u16> = match &map {
            // One that joins and has no slot yet does not come back: it has left.
            Some(map) => map
                .members()
                .filter(|server| map.slots.served_by(*server).next().is_some())
                .map(|server| server.0)
                .collect(),
            None => (0..plan.servers).collect(),
        };
        let first = rng.below(members.len() as u64) as usize;
        // If all others have left, none comes back alone.
        let mut dead = if members.len() > 1 { vec![members[first]] } else { Vec::new() };
        if members.len() > 2 && rng.chance(250_000) {
            dead.push(members[(first + 1) % members.len()]);
        }
        board.note(cluster, format!("servers {dead:?} die"));
        progress.phase.fetch_add(1, Ordering::Relaxed);
        for server in &dead {
            cluster.kill_server(*server, false);
            pause(rng.between(0, 3_000)).await;
        }
        pause(rng.between(0, 6_000_000)).await;
        // Who has had its last slot moved away when it died has left, and does not come back.
        let has_left =
            |server: u16| cluster.newest_map().is_some_and(|map| map.has_left(aze_proto::ServerIndex(server)));
        dead.retain(|server| !has_left(*server));
        let mut back = Vec::new();
        if rng.chance(500_000) {
            if let Some(server) = dead.first().copied() {
                back.push(cluster.bring_back(server).await);
                pause(rng.between(0, 2_000_000)).await;
            }
            // The one that died last had decided alone.
            let needs_both = |back: &Result<(), Failure>| {
                back.as_ref().is_err_and(|failure| failure.detail.contains("bring it back together with this one"))
            };
            if dead.len() > 1 && back.iter().all(needs_both) {
                cluster.kill_server(dead[0], false);
                back.clear();
            }
        }
        let rest = dead.iter().skip(back.len());
        back.extend(join_all(rest.map(|server| cluster.bring_back(*server))).await);
        if let Some(failure) = back.into_iter().find_map(Result::err) {
            return board.violation(format!("life {life}: {dead:?} do not come back: {failure}"));
        }
        board.note(cluster, format!("servers {dead:?} are back"));
        moves.end();
        if let Some(moved) = moved {
            // It ends when the move that it has begun does.
            let _ = moved.await;
        }
        counts.moved.fetch_add(moves.moved(), Ordering::Relaxed);
        progress.phase.fetch_add(1, Ordering::Relaxed);
        pause(rng.between(2_000, 400_000)).await;
        progress.is_over.store(true, Ordering::Relaxed);
        join_all(ends).await;
        cluster.sim.sleep(REST).await;
        if let Err(failure) = client.sync(&ROOT).await {
            return board.violation(format!("life {life}: sync: {failure}"));
        }
        look(cluster, plan, board, &client, &book, life).await;
        if !board.violations().is_empty() {
            return;
        }
    }
}
