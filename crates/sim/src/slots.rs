//! Slots move between servers, and servers leave, while clients work.

use crate::cluster::{Cluster, server_node};
use crate::plan::Mix;
use crate::work::Board;
use aze_client::Client;
use aze_proto::{Code, Failure, ServerIndex, SlotIndex};
use futures_channel::oneshot::Receiver;
use futures_util::future::{Either, join_all, select};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a test looks again whether a server runs.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// After the last question to the keeper: until it has done what it was asked, whether its answer arrives or not.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(20);

/// Has the keeper move one slot after the other until the work is over; gives how many have moved.
pub async fn drive(cluster: Arc<Cluster>, board: Arc<Board>, servers_leave: bool) -> u64 {
    let mut rng = cluster.sim.rng("slots");
    let mut moved = 0;
    while !board.is_over() {
        cluster.sim.sleep(Duration::from_micros(rng.below(60_000))).await;
        let Some(keeper) = cluster.server(0) else { return moved };
        let slot = SlotIndex(rng.below(u64::from(keeper.map().slots.len())) as u32);
        let to = ServerIndex(rng.below(u64::from(cluster.layout().servers)) as u16);
        let before = keeper.map().slots.get(slot).map(|slot| slot.primary);
        let (done, result) = futures_channel::oneshot::channel();
        // As a task of the keeper, it ends with it.
        cluster.sim.node(&server_node(0)).spawn(async move {
            // An error means that the run is over.
            let _ = done.send(keeper.move_slot(slot, to).await);
        });
        match result.await {
            Ok(Ok(())) if before != Some(to) => {
                moved += 1;
                board.note(&cluster, format!("slot {slot} has moved to server {to}"));
            }
            Ok(Ok(())) => {}
            // A slot was to go to a server that leaves.
            Ok(Err(failure)) if servers_leave && failure.code == Code::Invalid => {}
            Ok(Err(failure)) => judge(&cluster, &board, &failure),
            // The keeper has died.
            Err(_) => {}
        }
    }
    moved
}

/// Has some servers leave, in several turns, each of which may be broken off and begun again; gives how many have left. The
/// process of one that has left is killed at once, or when it ends by itself.
pub async fn shrink(cluster: Arc<Cluster>, board: Arc<Board>, client: Arc<Client>) -> u64 {
    let mut rng = cluster.sim.rng("leaving");
    let mut leavers: Vec<ServerIndex> = (1..cluster.layout().servers).map(ServerIndex).collect();
    leavers.retain(|_| rng.chance(600_000));
    let mut going = BTreeMap::new();
    while !leavers.is_empty() && !board.is_over() {
        cluster.sim.sleep(Duration::from_micros(rng.below(60_000))).await;
        let turn: Vec<ServerIndex> = leavers.drain(..rng.between(1, leavers.len() as u64) as usize).collect();
        let (ends_at_once, ends_with_work) = (rng.chance(400_000), rng.chance(300_000));
        loop {
            if rng.chance(50_000) {
                // As if the command had been ended, and were begun again.
                cluster.sim.sleep(Duration::from_micros(rng.below(300_000))).await;
            }
            let (asked, leaving) = (client.clone(), turn.clone());
            let answer = cluster.on_client(0, async move { asked.leave(&leaving).await }).await;
            see_ends(&cluster, &board, &mut going, ends_at_once);
            match answer {
                Ok(Ok((_, staying))) if staying.is_empty() => break,
                Ok(Ok(_)) => {}
                Ok(Err(failure)) => {
                    // The client was out of reach for longer than its grace: then another one would go on.
                    let is_cut_off = board.mix().loses_answers() && failure.code == Code::Expired;
                    if !is_cut_off {
                        judge(&cluster, &board, &failure);
                    }
                    // The keeper may have died for good.
                    let is_hopeless = failure.is_silence() && board.is_over();
                    if failure.code != Code::Busy && !failure.is_silence() || is_hopeless {
                        leavers.clear();
                        break;
                    }
                    cluster.sim.sleep(Duration::from_millis(20)).await;
                }
                // The run is over.
                Err(_) => return going.len() as u64,
            }
            if board.is_over() && ends_with_work {
                break;
            }
        }
    }
    // One whose word was lost is done with what it was asked by now.
    cluster.sim.sleep(LAST_WORD_TIME_MAX).await;
    see_ends(&cluster, &board, &mut going, false);
    let left = going.len() as u64;
    join_all(going.into_values()).await;
    left
}

/// Notes which servers have left, and has their processes end.
fn see_ends(cluster: &Arc<Cluster>, board: &Board, going: &mut BTreeMap<ServerIndex, Receiver<()>>, at_once: bool) {
    let Some(map) = cluster.server(0).map(|keeper| keeper.map()) else { return };
    for server in map.indexes().filter(|server| map.has_left(*server)) {
        going.entry(server).or_insert_with(|| {
            board.note(cluster, format!("server {server} has left"));
            cluster.on_driver(end(cluster.clone(), server, at_once))
        });
    }
}

/// Has the process of a server that has left end.
async fn end(cluster: Arc<Cluster>, server: ServerIndex, at_once: bool) {
    let Some(running) = cluster.server(server.0) else { return };
    let mut stopped = Box::pin(running.stopped());
    // A fault may kill it before it ends by itself.
    while !at_once && cluster.server(server.0).is_some() {
        match select(stopped, Box::pin(cluster.sim.sleep(LOOK_PAUSE))).await {
            Either::Left(_) => break,
            Either::Right((_, waiting)) => stopped = waiting,
        }
    }
    if cluster.server(server.0).is_some() {
        cluster.kill_server(server.0, false);
    }
}

/// A move may fail because something is under way for too long, or servers do not answer.
fn judge(cluster: &Arc<Cluster>, board: &Board, failure: &Failure) {
    board.note(cluster, format!("{failure}"));
    let restarted = board.mix() == Mix::Restarts && failure.code == Code::Unsupported;
    let silent = board.mix().loses_answers() && failure.is_silence();
    if failure.code != Code::Busy && !restarted && !silent {
        board.violation(format!("a slot could not be moved: {failure}"));
    }
}
