//! Wall clocks of servers that jump by hours: no answer is wrong, and nothing is done
//! twice or not at all. Times of files are the only thing that they decide.

use crate::support::{ROOT, create, name, with_cluster};
use aze_io::sim::Faults;
use aze_proto::Ino;
use aze_sim::cluster::server_node;
use futures_util::future::join_all;
use std::time::Duration;

/// Tasks that create names.
const TASKS: usize = 24;

/// What servers keep for repetitions is looked through at the end of the first minute: the clocks jump
/// just before it, while answers that were lost are asked for again.
const BEFORE: Duration = Duration::from_millis(56_900);
const UNTIL_JUMP: Duration = Duration::from_millis(3_000);
const AFTER_JUMP: Duration = Duration::from_millis(3_000);

fn jump(seconds: i64) {
    with_cluster(3, |cluster, client| async move {
        let sim = cluster.sim.clone();
        sim.sleep(BEFORE).await;
        sim.set_faults(Faults { loss_ppm: 30_000, ..Faults::default() });
        let until_ns = sim.now_ns() + (UNTIL_JUMP + AFTER_JUMP).as_nanos() as u64;
        let tasks = (0..TASKS).map(|task| {
            let (client, sim) = (client.clone(), sim.clone());
            cluster.on_client(0, async move {
                let mut made = 0;
                while sim.now_ns() < until_ns {
                    create(&client, Ino::ROOT, &format!("t{task}n{made}")).await;
                    made += 1;
                }
                made
            })
        });
        let tasks: Vec<_> = tasks.collect();
        sim.sleep(UNTIL_JUMP).await;
        (0..3).for_each(|server| sim.step_clock(&server_node(server), seconds * 1_000_000_000));
        let made = join_all(tasks).await;
        sim.set_faults(Faults::default());
        for (task, made) in made.into_iter().enumerate() {
            let made = made.expect("the task has ended");
            for number in 0..made {
                let found = client.lookup(&ROOT, Ino::ROOT, &name(&format!("t{task}n{number}"))).await;
                found.unwrap_or_else(|failure| panic!("t{task}n{number}: {failure}"));
            }
        }
    });
}

#[test]
fn a_clock_that_jumps_ahead_by_hours_fails_nothing_under_way() {
    jump(5 * 3600);
}

#[test]
fn a_clock_that_jumps_back_by_hours_fails_nothing_under_way() {
    jump(-5 * 3600);
}
