//! Clients that stay: servers die under their work, then all do, and the volume is started again without some of them. It is worked on, servers
//! that are there die and come back, and in the end all servers start. Operations may fail while some are away, in bounded time; nothing that
//! was promised is missing then.

use super::again::{Progress, failing_start, sync_told};
use super::book::Book;
use super::look::look;
use super::worker::Worker;
use super::{Counts, LIVES, PersistentPlan};
use crate::cluster::Cluster;
use crate::work::{Board, ROOT};
use aze_io::sim::SimRng;
use aze_io::sync::Mutex;
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many starts without servers follow one another at most.
const STARTS_MAX: u64 = 3;

/// As `super::lives`, with one client for all of it.
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
        let progress = Arc::new(Progress { power_cut: plan.power_cut, ..Progress::default() });
        let ends: Vec<_> = (0..plan.tasks)
            .map(|task| {
                let worker = Worker {
                    again: Some(progress.clone()),
                    ..Worker::new(plan, cluster, (life, task), &client, &book, board)
                };
                cluster.on_client(0, worker.work())
            })
            .collect();
        let pause = |us: u64| cluster.sim.sleep(Duration::from_micros(us));
        let doubt = || {
            if plan.power_cut {
                let mut book = book.lock();
                book.files.values_mut().filter(|known| !known.is_settled()).for_each(|known| known.in_doubt = true);
            }
        };
        pause(rng.between(2_000, 400_000)).await;
        let mut away = vec![rng.below(u64::from(plan.servers)) as u16];
        board.note(cluster, format!("server {away:?} dies, power cut: {}", plan.power_cut));
        progress.phase.fetch_add(1, Ordering::Relaxed);
        cluster.kill_server(away[0], plan.power_cut);
        doubt();
        for _ in 0..rng.between(1, STARTS_MAX) {
            // Mostly the others have not yet agreed that it has ended.
            let us_max = *rng.pick(&[3_000, 100_000, 4_000_000]);
            pause(rng.between(0, us_max)).await;
            end_all(cluster, plan).await;
            doubt();
            pause(rng.between(0, 1_000_000)).await;
            doubt();
            if plan.starts_fail || rng.chance(200_000) {
                failing_start(cluster, plan, life).await;
                doubt();
            }
            if rng.chance(300_000) {
                away = drawn(rng, plan.servers);
            }
            cluster.begin_another_start();
            board.note(cluster, format!("the volume is started without {away:?}"));
            match cluster.start_without(&away).await {
                Ok(()) => drop(counts.without.fetch_add(1, Ordering::Relaxed)),
                Err(failure) if failure.detail.contains("could have started it without these") => {
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(failure) => {
                    return board.violation(format!("life {life}: no start without {away:?}: {failure}"));
                }
            }
            if rng.chance(400_000) {
                pause(rng.between(2_000, 400_000)).await;
                one_comes_back(cluster, plan, rng, &away).await;
            }
            pause(rng.between(2_000, 1_000_000)).await;
        }
        end_all(cluster, plan).await;
        doubt();
        pause(rng.between(0, 1_000_000)).await;
        doubt();
        cluster.begin_another_start();
        if let Err(failure) = cluster.start().await {
            return board
                .violation(format!("life {life}: the volume does not start with all servers again: {failure}"));
        }
        board.note(cluster, "all servers are back".into());
        progress.phase.fetch_add(1, Ordering::Relaxed);
        pause(rng.between(2_000, 400_000)).await;
        progress.is_over.store(true, Ordering::Relaxed);
        join_all(ends).await;
        // For late closes, the files deleted with them, and reports of writes, which clients send every 8 s.
        cluster.sim.sleep(Duration::from_secs(10)).await;
        if let (Err(failure), _) | (_, Err(failure)) = (sync_told(&client, plan).await, client.sync(&ROOT).await) {
            return board.violation(format!("life {life}: sync: {failure}"));
        }
        look(cluster, plan, board, &client, &book, life).await;
        if !board.violations().is_empty() {
            return;
        }
    }
}

/// One server, or two.
fn drawn(rng: &mut SimRng, servers: u16) -> Vec<u16> {
    let first = rng.below(u64::from(servers)) as u16;
    match servers > 3 && rng.chance(400_000) {
        true => vec![first, (first + 1 + rng.below(u64::from(servers) - 1) as u16) % servers],
        false => vec![first],
    }
}

/// Ends the servers that run, one after the other or at once.
async fn end_all(cluster: &Arc<Cluster>, plan: &PersistentPlan) {
    (0..plan.servers).for_each(|server| cluster.kill_server(server, plan.power_cut));
}

/// One of the servers that are there dies alone, and comes back, or does not since the others cannot decide.
async fn one_comes_back(cluster: &Arc<Cluster>, plan: &PersistentPlan, rng: &mut SimRng, away: &[u16]) {
    let there: Vec<u16> = (0..plan.servers).filter(|server| !away.contains(server)).collect();
    let dies = *rng.pick(&there);
    if cluster.server(dies).is_none() {
        return;
    }
    cluster.kill_server(dies, false);
    cluster.sim.sleep(Duration::from_micros(rng.between(0, 500_000))).await;
    // Its result is ignored: the end of all follows.
    drop(cluster.bring_back(dies).await);
}
