//! Slots move between servers, and servers join and leave, while clients work.

use crate::cluster::{Cluster, server_node};
use crate::plan::Mix;
use crate::work::Board;
use aze_client::Client;
use aze_io::sim::SimRng;
use aze_proto::{Code, Failure, Refusal, ServerIndex, SlotIndex};
use aze_server::Server;
use futures_channel::oneshot::Receiver;
use futures_util::future::{Either, join_all, select};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a test looks again whether a server runs.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// How long a message of a dead process may be on its way.
const LATE_WORD_TIME_MAX: Duration = Duration::from_secs(3);

/// After the last question to the keeper: until it has done the request, whether its answer arrives or not.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(20);

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// How long servers may take to leave when the faults are over.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(300);

/// The server that keeps the map, if it runs.
fn keeper_of(cluster: &Cluster) -> Option<Arc<Server>> {
    let newest = cluster.servers().into_iter().map(|server| server.map()).max_by_key(|map| map.epoch)?;
    cluster.server(newest.keeper.0)
}

/// Has the keeper move one slot after the other until the work is over; gives how many have moved.
pub async fn drive(cluster: Arc<Cluster>, board: Arc<Board>, servers_leave: bool) -> u64 {
    let mut rng = cluster.sim.rng("slots");
    let mut moved = 0;
    while !board.is_over() {
        cluster.sim.sleep(Duration::from_micros(rng.below(60_000))).await;
        let Some(keeper) = keeper_of(&cluster) else { return moved };
        let slot = SlotIndex(rng.below(u64::from(keeper.map().slots.len())) as u32);
        let to = ServerIndex(rng.below(keeper.map().servers.len() as u64) as u16);
        let before = keeper.map().slots.get(slot).map(|slot| slot.primary);
        let (done, result) = futures_channel::oneshot::channel();
        // As a task of the keeper, it ends with it.
        cluster.sim.node(&server_node(keeper.status().index.0)).spawn(async move {
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

/// Has servers join, in one turn or two, and may break a turn off and begin it again; gives how many have got their
/// share of the slots. Some die before they have any, unless slots move by themselves.
pub async fn grow(cluster: Arc<Cluster>, board: Arc<Board>, client: Arc<Client>, slots_move: bool) -> u64 {
    let mut rng = cluster.sim.rng("joining");
    let mut joined = 0;
    for _ in 0..rng.between(1, 2) {
        cluster.sim.sleep(Duration::from_micros(rng.below(60_000))).await;
        for _ in 0..rng.between(1, 3) {
            let dies = (!slots_move && rng.chance(200_000)).then(|| Duration::from_micros(1 + rng.below(8_000)));
            join(&cluster, &board, dies).await;
        }
        joined = match balance(&cluster, &board, &client, &mut rng).await {
            Some(joined) => joined,
            None => return joined,
        };
    }
    joined
}

/// Starts a server that joins, and kills it after a moment, in which its start begins, if it is to die.
async fn join(cluster: &Arc<Cluster>, board: &Arc<Board>, dies: Option<Duration>) {
    let Some(keeper) = keeper_of(cluster) else { return };
    let index = keeper.map().servers.len() as u16;
    if keeper.map().check_room_for(1).is_err() {
        return;
    }
    let (starting, run) = (cluster.clone(), board.clone());
    let started = cluster.on_driver(async move {
        let result = starting.add_server(index).await;
        run.note(&starting, format!("server {index} joins: {:?}", result.as_ref().map_err(ToString::to_string)));
        result
    });
    if let Some(moment) = dies {
        cluster.sim.sleep(moment).await;
        board.note(cluster, format!("server {index} dies"));
        cluster.kill_server(index, false);
        forget_dead(cluster, index).await;
    }
    if let Ok(Err(failure)) = started.await
        && dies.is_none()
    {
        judge(cluster, board, &failure);
        // A start that fails ends the process. The server may be in the map by then.
        cluster.kill_server(index, false);
        forget_dead(cluster, index).await;
    }
}

/// After the death of a server that joins: as if a process on its node told the keeper, which may hear of the server
/// only after its death.
async fn forget_dead(cluster: &Arc<Cluster>, index: u16) {
    let until_ns = cluster.sim.now_ns() + LATE_WORD_TIME_MAX.as_nanos() as u64;
    while cluster.sim.now_ns() < until_ns {
        let Some(keeper) = keeper_of(cluster) else { return };
        if keeper.map().server(ServerIndex(index)).is_some_and(|info| !info.left) {
            let (done, result) = futures_channel::oneshot::channel();
            cluster.sim.node(&server_node(keeper.status().index.0)).spawn(async move {
                // An error means that the run is over.
                let _ = done.send(keeper.leave(&[ServerIndex(index)]).await.is_ok());
            });
            if result.await.is_ok_and(|left| left) {
                return;
            }
        }
        cluster.sim.sleep(LOOK_PAUSE).await;
    }
}

/// Has slots moved until all servers have as many, but for one; gives how many that joined have got their share, and nothing if that
/// cannot be any more.
async fn balance(cluster: &Arc<Cluster>, board: &Arc<Board>, client: &Arc<Client>, rng: &mut SimRng) -> Option<u64> {
    loop {
        if rng.chance(50_000) {
            // As if the command had been ended, and were begun again.
            cluster.sim.sleep(Duration::from_micros(rng.below(300_000))).await;
        }
        let asked = client.clone();
        match cluster.on_client(0, async move { asked.balance().await }).await.ok()? {
            Ok(0) => break,
            Ok(_) => {}
            Err(failure) => {
                judge(cluster, board, &failure);
                let is_hopeless = failure.is_silence() || has_dead_giver(cluster);
                if failure.code != Code::Busy && !failure.is_silence() || is_hopeless && board.is_over() {
                    return None;
                }
                cluster.sim.sleep(Duration::from_millis(20)).await;
            }
        }
    }
    let keeper = keeper_of(cluster)?;
    let map = keeper.map();
    let has_share = |server: &ServerIndex| map.slots.served_by(*server).next().is_some();
    Some((cluster.layout().servers..map.servers.len() as u16).map(ServerIndex).filter(has_share).count() as u64)
}

/// Whether a server that has slots does not run: no other server has its data.
fn has_dead_giver(cluster: &Cluster) -> bool {
    let runs = |server: ServerIndex| cluster.server(server.0).is_some();
    cluster.newest_map().is_some_and(|map| map.slots.iter().any(|(_, slot)| !runs(slot.primary)))
}

/// Has some servers leave, in several turns, and may break a turn off and begin it again; gives how many have left. The
/// process of one that has left is killed at once, or when it ends by itself.
pub async fn shrink(cluster: Arc<Cluster>, board: Arc<Board>, client: Arc<Client>) -> u64 {
    let (mut rng, mut signals) = (cluster.sim.rng("leaving"), cluster.sim.rng("leaving by a signal"));
    let servers = keeper_of(&cluster).map_or(0, |keeper| keeper.map().servers.len() as u16);
    let mut leavers: Vec<ServerIndex> = (1..servers).map(ServerIndex).collect();
    leavers.retain(|_| rng.chance(600_000));
    let (mut going, mut over_at_ns) = (BTreeMap::new(), None);
    while !leavers.is_empty() && !board.is_over() {
        cluster.sim.sleep(Duration::from_micros(rng.below(60_000))).await;
        let turn: Vec<ServerIndex> = leavers.drain(..rng.between(1, leavers.len() as u64) as usize).collect();
        let (ends_at_once, ends_with_work) = (rng.chance(400_000), rng.chance(300_000));
        if signals.chance(300_000) {
            leave_by_signal(&cluster, &board, &turn).await;
        }
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
                    // The keeper may have died for good, and all that live are to leave: no server could take their slots.
                    let leaves = |server: &Arc<Server>| turn.contains(&server.status().index) || server.has_left();
                    let nobody_stays = cluster.servers().iter().all(leaves);
                    let is_hopeless = (failure.is_silence() || nobody_stays) && board.is_over();
                    if failure.code != Code::Busy && !failure.is_silence() || is_hopeless {
                        leavers.clear();
                        break;
                    }
                    cluster.sim.sleep(Duration::from_millis(20)).await;
                    let now_ns = cluster.sim.now_ns();
                    if board.is_over() && now_ns - *over_at_ns.get_or_insert(now_ns) > LEAVE_TIME_MAX.as_nanos() as u64
                    {
                        board.violation(format!("servers have not left {LEAVE_TIME_MAX:?} after the work: {failure}"));
                        leavers.clear();
                        break;
                    }
                }
                // The run is over.
                Err(_) => return going.len() as u64,
            }
            if board.is_over() && ends_with_work {
                break;
            }
        }
    }
    // A keeper whose word was lost is done by now.
    cluster.sim.sleep(LAST_WORD_TIME_MAX).await;
    see_ends(&cluster, &board, &mut going, false);
    let left = going.len() as u64;
    join_all(going.into_values()).await;
    left
}

/// Has servers leave by themselves, at the same time, as after SIGTERM. When the work is over, a command has the rest leave.
async fn leave_by_signal(cluster: &Arc<Cluster>, board: &Board, servers: &[ServerIndex]) {
    let left = servers.iter().filter_map(|server| cluster.server(server.0)).map(|server| {
        let (done, left) = futures_channel::oneshot::channel();
        server.leave_by_itself(NEVER, move |result| {
            // An error means that the run is over.
            let _ = done.send(result);
        });
        left
    });
    let mut left = std::pin::pin!(join_all(left.collect::<Vec<_>>()));
    let mut over_at_ns = None;
    loop {
        match select(left, std::pin::pin!(cluster.sim.sleep(LOOK_PAUSE))).await {
            Either::Left((results, _)) => {
                // Those without a result have died.
                results
                    .iter()
                    .flatten()
                    .filter_map(|left| left.as_ref().err())
                    .for_each(|why| judge(cluster, board, why));
                return;
            }
            Either::Right((_, goes_on)) => left = goes_on,
        }
        let now_ns = cluster.sim.now_ns();
        if board.is_over() && now_ns - *over_at_ns.get_or_insert(now_ns) > LAST_WORD_TIME_MAX.as_nanos() as u64 {
            return;
        }
    }
}

/// Notes which servers have left, and has their processes end.
fn see_ends(cluster: &Arc<Cluster>, board: &Board, going: &mut BTreeMap<ServerIndex, Receiver<()>>, at_once: bool) {
    // The keeper may have died just after it had decided that.
    let Some(map) = cluster.newest_map() else { return };
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
    let restarted = matches!(board.mix(), Mix::Restarts | Mix::KeeperDeath) && failure.code == Code::Unsupported;
    // Another server has come to keep the map.
    let replaced = matches!(failure.refusal, Some(Refusal::MapStale { .. }));
    let silent = board.mix().loses_answers() && (failure.is_silence() || failure.code == Code::Expired);
    if failure.code != Code::Busy && !restarted && !silent && !replaced {
        board.violation(format!("a slot could not be moved: {failure}"));
    }
}
