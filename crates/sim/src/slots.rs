//! Slots move between servers while clients work.

use crate::cluster::{Cluster, server_node};
use crate::plan::Mix;
use crate::work::Board;
use aze_proto::{Code, Failure, ServerIndex, SlotIndex};
use std::sync::Arc;
use std::time::Duration;

/// Has the keeper move one slot after the other until the work is over; gives how many have moved.
pub async fn drive(cluster: Arc<Cluster>, board: Arc<Board>) -> u64 {
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
            Ok(Err(failure)) => judge(&cluster, &board, &failure),
            // The keeper has died.
            Err(_) => {}
        }
    }
    moved
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
