//! Figures 1, 2, 3, 5, 6 and 8 with more nodes than are at hand: the real servers and clients run in a simulation, over a modelled
//! network, with times that were measured on real servers of this machine in the same run. None of its figures is
//! a measured one, and it says so wherever it gives them.

mod check;
mod measured;
mod results;

use super::Args;
use crate::program::Program;
use crate::record::{self, Keep};
use aze_io::sim::Network;
use aze_proto::limits::SERVERS_MAX;
use aze_proto::slots::Placement;
use aze_sim::experiment::work::{Job, Phase};
use aze_sim::experiment::{self, Measured, Plan, Times};
use aze_words::exit::{Exit, Outcome, Trouble};
use aze_words::size;
use aze_words::{errln, out, outln};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// What stands beside every figure.
const WHAT: &str = "simulated: real code, modelled network, measured server times";

/// Names that each process makes, looks at and removes: half as many for each on many nodes, of which each is connected with others by each name.
const FILES: u64 = 8;
const MANY_NODES: u16 = 256;
/// Bytes that each process writes and reads, in transfers of one chunk: what 1,024 nodes write fits in the memory of one.
const BYTES: u64 = 128 << 10;
const TRANSFER: u64 = 64 << 10;
/// Bytes of the file of figures 5 and 6.
const ALONE: u64 = 16 << 20;
/// Transfers of figures 5 and 6.
const TRANSFERS: [u64; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// The model of a machine room. The paper's notes do not tell its hardware: the defaults are a node of today's clusters with a
/// network of 100 Gbit/s.
#[derive(clap::Args)]
pub struct Model {
    /// Simulate the figures with as many nodes as --nodes says: real code, modelled network, server times measured here first
    #[arg(long, conflicts_with_all = ["name", "chunks", "bytes", "servers", "files", "openers", "procs", "stonewall"])]
    pub(super) simulate: bool,
    /// Simulated nodes, each with a server and processes
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "16,64,256,1024", requires = "simulate", value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    nodes: Vec<u16>,
    /// Processes of a simulated node; they share one client, as those of a mount do
    #[arg(long, value_name = "N", default_value_t = 4, requires = "simulate", value_parser = clap::value_parser!(u16).range(1..=64))]
    node_procs: u16,
    /// Cores of a simulated node, for its server and its processes
    #[arg(long, value_name = "N", default_value_t = 16, requires = "simulate", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: u16,
    /// Nanoseconds from one simulated node to another
    #[arg(long, value_name = "NS", default_value_t = 2_000, requires = "simulate", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    latency_ns: u64,
    /// Nanoseconds from a process to the server of its node
    #[arg(long, value_name = "NS", default_value_t = 1_000, requires = "simulate", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    local_latency_ns: u64,
    /// Bytes a second that a simulated node's port sends, and as many that it receives
    #[arg(long, value_name = "SIZE", default_value = "11920M", requires = "simulate", value_parser = rate)]
    port: u64,
    /// Bytes that a port is busy with for each message besides the message's
    #[arg(long, value_name = "SIZE", default_value = "64", requires = "simulate", value_parser = size::parse)]
    message: u64,
    /// Where the random numbers of the simulation come from: the same with the same times gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1, requires = "simulate")]
    seed: u64,
    /// Take the measured times from this record (result.json) instead of measuring
    #[arg(long, value_name = "FILE", requires = "simulate")]
    times: Option<PathBuf>,
}

fn rate(text: &str) -> Result<u64, String> {
    size::parse(text).and_then(|rate| if rate > 0 { Ok(rate) } else { Err("a port takes something".into()) })
}

impl Model {
    fn network(&self) -> Network {
        Network {
            latency_ns: self.latency_ns,
            local_latency_ns: self.local_latency_ns,
            port_bytes_per_s: self.port,
            frame_bytes: self.message,
        }
    }

    fn plan(&self, nodes: u16, placement: Placement, times: &Arc<Times>) -> Plan {
        let procs = usize::from(self.node_procs);
        Plan {
            seed: self.seed,
            servers: nodes,
            clients: usize::from(nodes),
            together: false,
            cores: usize::from(self.cores),
            network: self.network(),
            placement,
            times: times.clone(),
            job: Job { procs, files: files(nodes), bytes: BYTES, transfer: TRANSFER, alone: ALONE },
        }
    }
}

/// Names of each process on so many nodes.
fn files(nodes: u16) -> u64 {
    if nodes > MANY_NODES { FILES / 2 } else { FILES }
}

/// One phase on so many nodes.
struct Row {
    nodes: u16,
    placement: Placement,
    measured: Measured,
}

/// The phases of a figure.
fn phases(figure: u8) -> Vec<Phase> {
    let transfers =
        |all: bool| TRANSFERS.iter().flat_map(move |size| [Phase::Write(*size, all), Phase::Read(*size, all)]);
    match figure {
        1 => Phase::DATA.into(),
        2 => Phase::NAMES.into(),
        3 => vec![Phase::EasyCreate, Phase::Search, Phase::EasyRemove],
        5 => transfers(false).collect(),
        6 => transfers(true).collect(),
        _ => vec![Phase::OpenOne, Phase::OpenOwn],
    }
}

/// Runs phases in a simulation.
fn simulate(plan: &Plan, phases: &[Phase]) -> Outcome<Vec<Measured>> {
    let told = |failure| Trouble::volume(format!("bench p4: simulate {} servers", plan.servers), &failure);
    experiment::run(plan, phases).map_err(told)
}

/// Measures times, compares the model with servers of this machine, and simulates.
pub(super) fn run(args: &Args, program: &'static dyn Program) -> Outcome<Exit> {
    let keep = args.record.as_deref().map(Keep::new).transpose()?;
    let circumstances = record::circumstances(program);
    let (times, checks) = match &args.model.times {
        Some(file) => (results::times_of(file)?, None),
        None => {
            let found = measured::times(args, program)?;
            let checks = check::check(args, program, &found)?;
            (found.times, Some(checks))
        }
    };
    let times = Arc::new(times);
    let mut rows = Vec::new();
    for nodes in &args.model.nodes {
        for placement in [Placement::Modular, Placement::Ring] {
            // Of a ring only the figures that compare it. Each figure by itself takes less memory than all together.
            let is_wanted = |figure: &u8| placement == Placement::Modular || matches!(*figure, 1 | 2);
            for figure in args.figure.iter().filter(|figure| is_wanted(figure)) {
                errln!("bench p4: simulate figure {figure} on {nodes} nodes, {}", placement.word());
                let mut plan = args.model.plan(*nodes, placement, &times);
                if matches!(figure, 5 | 6) {
                    (plan.clients, plan.job.procs) = (1, 1);
                }
                let mut measured = simulate(&plan, &phases(*figure))?;
                // A search makes and removes the files that it looks for: these phases are part of figure 2.
                measured.retain(|measured| *figure != 3 || measured.phase == Phase::Search);
                rows.extend(measured.into_iter().map(|measured| Row { nodes: *nodes, placement, measured }));
            }
        }
    }
    let tables = results::tables(args, &rows, checks.as_deref());
    let mut result = circumstances;
    result["simulated"] = simulated_json(args, &times, checks.as_deref(), &rows);
    if let Some(keep) = keep {
        keep.write("result.json", &format!("{result:#}\n"))?;
        keep.write("result.txt", &tables)?;
        for (name, picture) in results::pictures(&rows) {
            keep.write(&name, &picture)?;
        }
    }
    if args.json {
        outln!("{result}")
    } else {
        out!("{tables}")
    }
    Ok(Exit::Done)
}

fn simulated_json(args: &Args, times: &Times, checks: Option<&[check::Check]>, rows: &[Row]) -> Value {
    let model = &args.model;
    let row = |row: &Row| {
        let phase = row.measured.phase;
        json!({
            "nodes": row.nodes,
            "placement": row.placement.word(),
            "phase": phase.name(),
            "unit": if phase.moves_data() { "bytes" } else { "operations" },
            "files_of_a_process": files(row.nodes),
            "amount": row.measured.amount,
            "seconds": row.measured.seconds,
            "rate": row.measured.rate(),
        })
    };
    json!({
        "what": WHAT,
        "seed": model.seed,
        "latency_ns": model.latency_ns,
        "local_latency_ns": model.local_latency_ns,
        "port_bytes_per_s": model.port,
        "message_bytes": model.message,
        "cores": model.cores,
        "processes_of_a_node": model.node_procs,
        "bytes_of_a_process": BYTES,
        "transfer_bytes": TRANSFER,
        "times": results::times_json(times),
        "check": checks.map(|checks| checks.iter().map(check::Check::json).collect::<Vec<_>>()),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "paper": results::PAPER,
    })
}
