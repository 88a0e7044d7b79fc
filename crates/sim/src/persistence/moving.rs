//! Slots of a volume in directories move, and servers join and leave, until everything ends or a server dies.

use crate::cluster::{Cluster, server_node};
use crate::work::Board;
use aze_io::sim::{DiskFault, SimRng};
use aze_proto::{Code, Failure, ServerIndex, ShardMap, SlotIndex};
use futures_util::future::{Either, select};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Servers that there are at most, those that have left included.
const SERVERS_MAX: u16 = 7;

/// Pause before a driver looks again.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// What a server says that does not keep the map, or not any more.
const NOT_KEEPER: &str = "does not keep the map";

/// How far the moves of one life have got.
#[derive(Default)]
pub(super) struct Progress {
    is_over: AtomicBool,
    begun: AtomicU64,
    moved: AtomicU64,
    /// Servers that counted the starts and have left.
    firsts: AtomicU64,
}

impl Progress {
    /// Nothing more is begun.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// How many slots have moved.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// How many servers have left that counted the starts.
    pub(super) fn firsts(&self) -> u64 {
        self.firsts.load(Ordering::Relaxed)
    }

    /// Resolves a moment after another server has come to count the starts, or after so long.
    pub(super) async fn when_the_first_changes(&self, cluster: &Cluster, rng: &mut SimRng, longest: Duration) {
        let first = || cluster.newest_map().map(|map| map.slots.first());
        let (before, until_ns) = (first(), cluster.sim.now_ns() + longest.as_nanos() as u64);
        while first() == before && cluster.sim.now_ns() < until_ns {
            cluster.sim.sleep(Duration::from_micros(20)).await;
        }
        let most = *rng.pick(&[200, 3_000, 60_000]);
        cluster.sim.sleep(Duration::from_micros(rng.below(most))).await;
    }

    /// Resolves a moment after a move has begun, or after so long.
    pub(super) async fn in_a_move(&self, cluster: &Cluster, rng: &mut SimRng, longest: Duration) {
        let (begun, until_ns) = (self.begun.load(Ordering::Relaxed), cluster.sim.now_ns() + longest.as_nanos() as u64);
        while self.begun.load(Ordering::Relaxed) == begun && cluster.sim.now_ns() < until_ns {
            cluster.sim.sleep(Duration::from_micros(200)).await;
        }
        let most = *rng.pick(&[3_000, 15_000, 60_000]);
        cluster.sim.sleep(Duration::from_micros(rng.below(most))).await;
    }
}

/// Moves slots, and has servers join and leave, until it is over; with `first_leaves` those that count the starts.
pub(super) async fn go(
    cluster: Arc<Cluster>,
    board: Arc<Board>,
    progress: Arc<Progress>,
    mut rng: SimRng,
    first_leaves: bool,
) {
    let mut going = BTreeSet::new();
    while !progress.is_over.load(Ordering::Relaxed) {
        cluster.sim.sleep(Duration::from_micros(rng.below(20_000))).await;
        see_ends(&cluster, &board, &mut going, &mut rng);
        let Some(map) = cluster.newest_map().filter(|map| cluster.server(map.keeper.0).is_some()) else { continue };
        let members: Vec<ServerIndex> = map.members().filter(|server| !map.is_gone(*server)).collect();
        let draw = match rng.below(100) {
            // Most of the time it leaves.
            draw @ 16..75 if first_leaves => draw % 8 + 8,
            draw => draw,
        };
        if draw >= 95 {
            let heir = *rng.pick(&members);
            if cluster.server(heir.0).is_none() {
                // A keeper that leaves has asked its heir before: one that does not answer keeps nothing.
                continue;
            }
            let handed =
                cluster.at_server(map.keeper, move |keeper| async move { keeper.hand_over_to(heir).await }).await;
            board.note(&cluster, format!("server {heir} is to keep the map: {}", handed == Some(Ok(()))));
        } else if draw < 8 && map.servers.len() < usize::from(SERVERS_MAX) && map.check_room_for(1).is_ok() {
            let index = map.servers.len() as u16;
            let (starting, run) = (cluster.clone(), board.clone());
            let joined = cluster.on_driver(async move {
                let joined = starting.add_server(index).await;
                run.note(
                    &starting,
                    format!("server {index} joins: {:?}", joined.as_ref().map_err(ToString::to_string)),
                );
            });
            // Everything may end while it joins.
            let _ = select(joined, Box::pin(cluster.sim.sleep(Duration::from_secs(1)))).await;
        } else if draw < 16 && members.len() > 1 {
            let leaver = if first_leaves { map.slots.first() } else { *rng.pick(&members) };
            if first_leaves {
                slow_down_the_next(&cluster, &map, rng.chance(500_000));
            }
            board.note(&cluster, format!("server {leaver} is to leave"));
            for _ in 0..40 {
                if progress.is_over.load(Ordering::Relaxed) {
                    break;
                }
                progress.begun.fetch_add(1, Ordering::Relaxed);
                // The one that leaves may have handed the map over.
                let keeper = cluster.newest_map().map_or(map.keeper, |map| map.keeper);
                let left = cluster.at_server(keeper, move |keeper| async move { keeper.leave(&[leaver]).await }).await;
                match left {
                    Some(Ok((_, staying))) if staying.is_empty() => {
                        progress.firsts.fetch_add(u64::from(leaver == map.slots.first()), Ordering::Relaxed);
                        break;
                    }
                    Some(Ok(_)) => drop(progress.moved.fetch_add(1, Ordering::Relaxed)),
                    Some(Err(failure)) => {
                        judge(&cluster, &board, &failure);
                        if failure.code != Code::Busy && !failure.detail.contains(NOT_KEEPER) {
                            break;
                        }
                        cluster.sim.sleep(LOOK_PAUSE).await;
                    }
                    None => break,
                }
            }
        } else {
            let slot = SlotIndex(rng.below(u64::from(map.slots.len())) as u32);
            let to = *rng.pick(&members);
            if map.slots.get(slot).is_some_and(|slot| slot.primary == to) {
                continue;
            }
            progress.begun.fetch_add(1, Ordering::Relaxed);
            let moved =
                cluster.at_server(map.keeper, move |keeper| async move { keeper.move_slot(slot, to).await }).await;
            match moved {
                Some(Ok(())) => {
                    progress.moved.fetch_add(1, Ordering::Relaxed);
                    board.note(&cluster, format!("slot {slot} has moved to server {to}"));
                }
                Some(Err(failure)) => judge(&cluster, &board, &failure),
                None => {}
            }
        }
    }
}

/// The disk of the server that counts the starts next is slow, or no disk is.
fn slow_down_the_next(cluster: &Cluster, map: &ShardMap, is_slow: bool) {
    let first = map.slots.first();
    let next = map.slots.iter().map(|(_, slot)| slot.primary).filter(|server| *server != first).min();
    for server in map.indexes() {
        let fault = if is_slow && next == Some(server) { DiskFault::Slow } else { DiskFault::None };
        cluster.sim.set_disk_fault(&server_node(server.0), fault);
    }
}

/// Has the processes of servers end that have left: after they have marked their directories, or before.
fn see_ends(cluster: &Arc<Cluster>, board: &Arc<Board>, going: &mut BTreeSet<ServerIndex>, rng: &mut SimRng) {
    let Some(map) = cluster.newest_map() else { return };
    for index in map.indexes().filter(|server| map.has_left(*server)) {
        let Some(server) = cluster.server(index.0) else { continue };
        if !going.insert(index) {
            continue;
        }
        let (marks, cluster, board) = (rng.chance(500_000), cluster.clone(), board.clone());
        board.note(&cluster, format!("server {index} has left"));
        drop(cluster.clone().on_driver(async move {
            let mut stopped = Box::pin(server.stopped());
            while cluster.server(index.0).is_some() {
                match select(stopped, Box::pin(cluster.sim.sleep(LOOK_PAUSE))).await {
                    Either::Left(_) => break,
                    Either::Right((_, waiting)) => stopped = waiting,
                }
            }
            if cluster.server(index.0).is_none() {
                return;
            }
            if marks && let Err(failure) = server.rest().await {
                // Everything may have ended meanwhile.
                board.note(&cluster, format!("server {index} has not marked its directories: {failure}"));
            }
            if cluster.server(index.0).is_some() {
                cluster.kill_server(index.0, false);
            }
        }));
    }
}

/// A move may fail because something is under way for too long, a server has died or has come back, or a disk is full.
fn judge(cluster: &Arc<Cluster>, board: &Arc<Board>, failure: &Failure) {
    board.note(cluster, format!("{:?}: {failure}", failure.code));
    let is_explained = matches!(failure.code, Code::Busy | Code::NoSpace | Code::Invalid) || failure.is_silence();
    let is_refused = failure.code == Code::Unsupported && failure.detail.contains("no slot moves")
        || failure.detail.contains(NOT_KEEPER);
    if !is_explained && !is_refused {
        board.violation(format!("a slot could not be moved: {:?}: {failure}", failure.code));
    }
}
