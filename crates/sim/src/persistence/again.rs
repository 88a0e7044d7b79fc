//! Clients that stay: a server dies under their work, the others are ended, and the volume is started
//! again. Operations under way may fail, in bounded time; later ones must not.

use super::book::Book;
use super::look::look;
use super::worker::Worker;
use super::{LIVES, PersistentPlan};
use crate::cluster::Cluster;
use crate::work::{Board, ROOT};
use aze_client::Client;
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Code, Failure};
use futures_util::future::{join, join_all};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How far a life has got: whether the servers run, and whether the work is over.
#[derive(Default)]
pub(super) struct Progress {
    /// Even while they run, odd while they do not, or not all of them.
    pub(super) phase: AtomicU32,
    pub(super) is_over: AtomicBool,
    pub(super) power_cut: bool,
    /// Servers come back alone: nothing is lost with them.
    pub(super) alone: bool,
}

impl Progress {
    pub(super) fn phase(&self) -> u32 {
        self.phase.load(Ordering::Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Whether an operation that began in a phase may have failed so.
    pub(super) fn judge(&self, began: u32, step: u64, failure: &Failure) -> Result<(), &'static str> {
        let has_restarted = self.phase() > 0;
        // A sync or close of a file opened before reports once that data may be lost.
        let syncs = step >= 90;
        match failure.code {
            Code::NoSpace => Ok(()),
            _ if !has_restarted => Err("no server has died yet"),
            Code::Lost if syncs && !self.alone => Ok(()),
            Code::UnknownOutcome | Code::TimedOut | Code::Unreachable if began == self.phase() => {
                // A connection to a server that lost power looks alive to a client that has not used it since.
                if began.is_multiple_of(2) && !self.power_cut {
                    Err("all servers run since before it began")
                } else {
                    Ok(())
                }
            }
            Code::UnknownOutcome | Code::TimedOut | Code::Unreachable => Ok(()),
            // Files, directories and names that were not synced are gone.
            Code::NotFound | Code::Stale if self.power_cut => Ok(()),
            // The token of a directory move whose coordinator has died is given out again after 20 s.
            Code::Busy if self.alone && (80..=84).contains(&step) => Ok(()),
            // A file without a name goes with its server's table of opens.
            Code::Stale => Ok(()),
            _ => Err("nothing explains this"),
        }
    }
}

/// A sync after the volume was started again says so, once.
pub(super) async fn sync_told(client: &Client, plan: &PersistentPlan) -> Result<(), Failure> {
    match client.sync(&ROOT).await {
        Err(failure) if failure.code == Code::Lost => Ok(()),
        Ok(()) if plan.durability == Durability::None => Ok(()),
        Ok(()) => Err(Failure::new(Code::Internal, "it does not say that the volume was started again")),
        Err(failure) => Err(failure),
    }
}

/// A start during which all servers end, or soon after it: clients may have been served.
pub(super) async fn failing_start(cluster: &Arc<Cluster>, plan: &PersistentPlan, life: usize) {
    let rng = &mut cluster.sim.rng(&format!("failing start of life {life}"));
    let (in_middle, pause) = (rng.chance(300_000), Duration::from_micros(rng.between(0, 40_000)));
    let over = async {
        cluster.sim.sleep(pause).await;
        (0..plan.servers).for_each(|server| cluster.kill_server(server, plan.power_cut));
    };
    cluster.begin_another_start();
    // Its result is ignored: only the next start must succeed.
    if in_middle {
        drop(join(cluster.start(), over).await);
    } else {
        drop(cluster.start().await);
        over.await;
    }
}

/// As `super::lives`, with one client for all of it.
pub(super) async fn lives(cluster: &Arc<Cluster>, plan: &PersistentPlan, board: &Arc<Board>) {
    let book = Arc::new(Mutex::new(Book::default()));
    if let Err(failure) = cluster.start().await {
        return board.violation(format!("the volume does not start: {failure}"));
    }
    let client = match cluster.connect(0).await {
        Ok(client) => client,
        Err(failure) => return board.violation(format!("no client connects: {failure}")),
    };
    for life in 0..LIVES {
        let rng = &cluster.sim.rng(&format!("life {life}"));
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
        let mut rng = rng.clone();
        let pause = |us: u64| cluster.sim.sleep(Duration::from_micros(us));
        pause(rng.between(2_000, 400_000)).await;
        let dead = rng.below(u64::from(plan.servers)) as u16;
        board.note(cluster, format!("server {dead} dies, power cut: {}", plan.power_cut));
        progress.phase.fetch_add(1, Ordering::Relaxed);
        cluster.kill_server(dead, plan.power_cut);
        let doubt = || {
            if plan.power_cut {
                let mut book = book.lock();
                book.files.values_mut().filter(|known| !known.is_settled()).for_each(|known| known.in_doubt = true);
            }
        };
        doubt();
        pause(rng.between(0, 4_000_000)).await;
        (0..plan.servers).filter(|server| *server != dead).for_each(|server| cluster.kill_server(server, false));
        pause(rng.between(0, 2_000_000)).await;
        // Acknowledgements sent just before have arrived by now.
        doubt();
        if plan.starts_fail {
            failing_start(cluster, plan, life).await;
            doubt();
        }
        cluster.begin_another_start();
        if let Err(failure) = cluster.start().await {
            return board.violation(format!("life {life}: the volume does not start again: {failure}"));
        }
        board.note(cluster, "all servers are back".into());
        progress.phase.fetch_add(1, Ordering::Relaxed);
        pause(rng.between(2_000, 400_000)).await;
        progress.is_over.store(true, Ordering::Relaxed);
        join_all(ends).await;
        // For late closes, and the files deleted with them.
        cluster.sim.sleep(Duration::from_secs(3)).await;
        // `look` expects the state it finds from the next life: so it must be durable.
        if let (Err(failure), _) | (_, Err(failure)) = (sync_told(&client, plan).await, client.sync(&ROOT).await) {
            return board.violation(format!("life {life}: sync: {failure}"));
        }
        look(cluster, plan, board, &client, &book, life).await;
        if !board.violations().is_empty() {
            return;
        }
    }
}
