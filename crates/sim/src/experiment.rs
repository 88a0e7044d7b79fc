//! Many nodes on which programs measure a volume: the real servers and clients, with a modelled network below them and
//! modelled processors.
//!
//! It alone knows which virtual time a measurement takes. What programs do stands in [`work`], and a measurement of
//! running servers does the same; what a request costs a server comes from there too, as [`Times`].

mod times;
pub mod work;

use crate::cluster::{CHUNK_BITS, Cluster, Layout};
use aze_client::Client;
use aze_io::sim::{Faults, Network, Sim, Timing};
use aze_proto::slots::Placement;
use aze_proto::{Code, Failure};
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::time::Duration;
pub use times::{Cost, Times};
use work::{Job, Phase, Process};

/// Memory that a server may have for file data, for each byte that it would have if all had the same.
const UNEVEN: u64 = 8;

/// Longest virtual time of a measurement.
const TIME_MAX: Duration = Duration::from_secs(36_000);

/// How long a client waits for an answer: none gets lost, and servers may have much to do.
const DEADLINE: Duration = Duration::from_secs(600);

/// A measurement, and the machines for it.
#[derive(Clone)]
pub struct Plan {
    /// Where every random number comes from.
    pub seed: u64,
    /// Servers, each on a machine of its own.
    pub servers: u16,
    /// Clients, one on each of the first machines; all processes of a machine use one.
    pub clients: usize,
    /// Everything is on one machine.
    pub together: bool,
    /// Processors of each machine.
    pub cores: usize,
    /// The network.
    pub network: Network,
    /// Which server gets which slot.
    pub placement: Placement,
    /// What processors need for requests.
    pub times: Arc<Times>,
    /// What processes do.
    pub job: Job,
}

/// What one phase did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The phase.
    pub phase: Phase,
    /// Operations, or bytes.
    pub amount: u64,
    /// From the first process that began until the last had ended.
    pub seconds: f64,
}

impl Measured {
    /// Operations or bytes a second.
    pub fn rate(&self) -> f64 {
        self.amount as f64 / self.seconds
    }
}

/// The machine of a node: servers and clients of the same number share one, and the driver of the run has one.
fn own_machine(node: &str) -> u32 {
    node[1..].parse().unwrap_or(u32::MAX)
}

fn one_machine(_node: &str) -> u32 {
    0
}

/// Measures the phases, in this order, after a turn of all of them that connects everybody with the servers.
///
/// # Errors
/// What an operation says.
///
/// # Panics
/// When a task of the cluster panics, spins, or waits for ever.
pub fn run(plan: &Plan, phases: &[Phase]) -> Result<Vec<Measured>, Failure> {
    let sim = Sim::new(plan.seed, faults(plan));
    sim.set_time_limit(TIME_MAX);
    let each = plan.job.bytes * (plan.clients * plan.job.procs) as u64 / u64::from(plan.servers);
    let layout = Layout::of(plan.servers);
    let memory_bytes = layout.memory_bytes.max(each * UNEVEN + 2 * plan.job.alone);
    let layout = Layout { placement: plan.placement, deadline: DEADLINE, memory_bytes, ..layout };
    let cluster = Cluster::new(sim.clone(), layout);
    let measured = sim.block_on(measure(&cluster, plan, phases));
    cluster.end();
    measured
}

/// No faults; connecting takes the latency.
fn faults(plan: &Plan) -> Faults {
    let (delay_ns_min, delay_ns_max) = (plan.network.latency_ns, plan.network.latency_ns);
    Faults { delay_ns_min, delay_ns_max, ..Faults::default() }
}

async fn measure(cluster: &Arc<Cluster>, plan: &Plan, phases: &[Phase]) -> Result<Vec<Measured>, Failure> {
    cluster.start().await?;
    let clients: Vec<Arc<Client>> = try_join_all((0..plan.clients).map(|index| cluster.connect(index))).await?;
    // Their start is not measured.
    cluster.sim.set_timing(Some(Timing {
        network: plan.network,
        cores: plan.cores,
        machine_of: if plan.together { one_machine } else { own_machine },
        work: plan.times.clone(),
    }));
    let all = plan.clients * plan.job.procs;
    let processes: Vec<Arc<Process>> = (0..all)
        .map(|rank| Arc::new(Process::new(clients[rank / plan.job.procs].clone(), rank, all, plan.job, CHUNK_BITS)))
        .collect();
    let ready = cluster.on_client(0, Process::prepare(processes[0].clone()));
    ended(ready.await)?;
    let mut measured = Vec::new();
    for is_measured in [false, true] {
        for phase in phases {
            let began_ns = cluster.sim.now_ns();
            let done = processes.iter().enumerate().map(|(rank, process)| {
                cluster.on_client(rank / plan.job.procs, Process::work(process.clone(), *phase))
            });
            let mut amount = 0;
            for done in done.collect::<Vec<_>>() {
                amount += ended(done.await)?;
            }
            let seconds = (cluster.sim.now_ns() - began_ns).max(1) as f64 / 1e9;
            if is_measured {
                measured.push(Measured { phase: *phase, amount, seconds });
            }
            // Closes are sent later, and are no part of the next phase.
            cluster.sim.sleep(work::REST).await;
        }
    }
    Ok(measured)
}

fn ended<T>(result: Result<Result<T, Failure>, futures_channel::oneshot::Canceled>) -> Result<T, Failure> {
    result.unwrap_or_else(|_| Err(Failure::new(Code::Stopping, "a process of the measurement was killed")))
}
