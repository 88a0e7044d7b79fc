//! What goes wrong and when, drawn from the seed.

use crate::cluster::{Cluster, client_node, server_node};
use crate::plan::{Mix, Plan};
use crate::work::Board;
use aze_io::sim::{Faults, Link, SimRng};
use aze_proto::ServerIndex;
use std::sync::Arc;
use std::time::Duration;

/// Faults that go on for the whole run.
pub fn steady(plan: &Plan, rng: &mut SimRng) -> Faults {
    let slow = Faults { delay_ns_max: rng.between(50_000, 2_000_000), ..Faults::default() };
    match plan.mix {
        Mix::Lossy => Faults {
            loss_ppm: rng.below(30_000) as u32,
            duplicate_ppm: rng.below(50_000) as u32,
            reorder_ppm: rng.below(80_000) as u32,
            reorder_delay_ns_max: rng.between(1_000_000, 1_500_000_000),
            ..slow
        },
        Mix::Cuts => Faults {
            connection_cut_ppm: rng.below(8_000) as u32,
            flip_ppm: rng.below(4_000) as u32,
            duplicate_ppm: rng.below(10_000) as u32,
            ..slow
        },
        Mix::Partitions | Mix::Restarts if rng.chance(300_000) => {
            Faults { loss_ppm: 5_000, duplicate_ppm: 10_000, reorder_ppm: 10_000, ..slow }
        }
        _ => slow,
    }
}

/// Makes things go wrong; ends with all links up and all servers that can come back started, at
/// the latest soon after the work is over.
pub async fn drive(cluster: Arc<Cluster>, plan: Plan, board: Arc<Board>) {
    let mut rng = cluster.sim.rng("faults");
    match plan.mix {
        Mix::Quiet | Mix::Lossy | Mix::Cuts => {}
        Mix::Partitions => partitions(&cluster, &plan, &board, &mut rng).await,
        Mix::Restarts => restarts(&cluster, &plan, &board, &mut rng).await,
        Mix::ClientDeath => {
            pause(&cluster, &mut rng, 200).await;
            // The first client stays, to look at what the others left behind.
            let index = rng.between(1, plan.clients as u64 - 1) as usize;
            board.note(&cluster, format!("client {index} dies"));
            cluster.kill_client(index);
        }
        Mix::Clocks => clocks(&cluster, &plan, &board, &mut rng).await,
        Mix::KeeperDeath => {
            pause(&cluster, &mut rng, 300).await;
            board.note(&cluster, "the keeper dies for good".into());
            cluster.kill_server(0, rng.chance(500_000));
        }
    }
}

async fn pause(cluster: &Cluster, rng: &mut SimRng, ms_max: u64) {
    cluster.sim.sleep(Duration::from_micros(rng.below(ms_max * 1000))).await;
}

fn draw_node(plan: &Plan, rng: &mut SimRng) -> String {
    let count = u64::from(plan.servers) + plan.clients as u64;
    match rng.below(count) {
        index if index < u64::from(plan.servers) => server_node(index as u16),
        index => client_node((index - u64::from(plan.servers)) as usize),
    }
}

async fn partitions(cluster: &Cluster, plan: &Plan, board: &Board, rng: &mut SimRng) {
    // At most one outage in a run is longer than a deadline.
    let mut long = rng.chance(400_000);
    while !board.is_over() {
        pause(cluster, rng, 150).await;
        let (one, other) = (draw_node(plan, rng), draw_node(plan, rng));
        if one == other {
            continue;
        }
        let both = rng.chance(500_000);
        cluster.sim.set_link(&one, &other, Link::Down);
        if both {
            cluster.sim.set_link(&other, &one, Link::Down);
        }
        let ms = if std::mem::take(&mut long) { rng.between(11_000, 25_000) } else { rng.between(10, 2_500) };
        board.note(cluster, format!("{one} -> {other} is down{} for {ms} ms", if both { ", both ways," } else { "" }));
        cluster.sim.sleep(Duration::from_millis(ms)).await;
        cluster.sim.heal();
    }
}

async fn restarts(cluster: &Arc<Cluster>, plan: &Plan, board: &Board, rng: &mut SimRng) {
    for _ in 0..rng.between(1, 2) {
        pause(cluster, rng, 300).await;
        let index = rng.between(1, u64::from(plan.servers) - 1) as u16;
        let silent = rng.chance(300_000);
        board.note(cluster, format!("server {index} dies{}", if silent { " without a word" } else { "" }));
        cluster.kill_server(index, silent);
        cluster.sim.sleep(Duration::from_millis(rng.between(1, 1500))).await;
        if cluster.server(0).is_some_and(|keeper| keeper.map().has_left(ServerIndex(index))) {
            // It had left before, or was about to end.
            continue;
        }
        board.note(cluster, format!("server {index} starts again, empty"));
        if let Err(failure) = cluster.start_server(index).await {
            board.violation(format!("server {index} could not start again: {failure}"));
        }
    }
}

async fn clocks(cluster: &Cluster, plan: &Plan, board: &Board, rng: &mut SimRng) {
    for _ in 0..rng.between(1, 6) {
        pause(cluster, rng, 100).await;
        let node = draw_node(plan, rng);
        let ms = rng.between(0, 40_000) as i64 - 20_000;
        board.note(cluster, format!("the clock of {node} jumps by {ms} ms"));
        cluster.sim.step_clock(&node, ms * 1_000_000);
    }
}
