//! The model against measurements: the same processes on running servers, and simulated on one machine like this.

use super::super::Args;
use super::measured::{CLIENTS, Found, PROCS, Running, job};
use super::simulate;
use crate::median::median;
use crate::program::Program;
use aze_io::sim::Network;
use aze_proto::slots::Placement;
use aze_sim::experiment::Plan;
use aze_sim::experiment::work::Phase;
use aze_words::errln;
use aze_words::exit::Outcome;
use serde_json::{Value, json};
use std::sync::Arc;

/// Numbers of servers that are at hand.
const SERVERS: [u16; 3] = [1, 2, 4];
/// By how many times the model may be off, and say nothing.
const OFF_MAX: f64 = 1.5;
const TRANSFER: u64 = 64 << 10;
const BYTES: u64 = 8 << 20;

/// One phase, measured and simulated.
pub(super) struct Check {
    pub(super) servers: u16,
    pub(super) phase: Phase,
    pub(super) measured: f64,
    pub(super) simulated: f64,
    /// How many cores worked for it, of those of this machine, which the simulated one uses all.
    pub(super) busy: f64,
}

impl Check {
    pub(super) fn ratio(&self) -> f64 {
        self.simulated / self.measured
    }

    /// Whether figures of this phase are to be believed.
    pub(super) fn is_off(&self) -> bool {
        self.ratio().max(1.0 / self.ratio()) > OFF_MAX
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "servers": self.servers,
            "phase": self.phase.name(),
            "measured": self.measured,
            "simulated": self.simulated,
            "ratio": self.ratio(),
            "busy_cores": self.busy,
            "off": self.is_off(),
        })
    }
}

pub(super) fn check(args: &Args, program: &'static dyn Program, found: &Found) -> Outcome<Vec<Check>> {
    let phases = [&[Phase::EasyCreate, Phase::Search], &Phase::NAMES[1..], &Phase::DATA].concat();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Nothing uses the ports of one machine.
    let latency_ns = found.local_latency_ns;
    let network = Network { latency_ns, local_latency_ns: latency_ns, port_bytes_per_s: u64::MAX, frame_bytes: 0 };
    let mut checks = Vec::new();
    for servers in SERVERS {
        errln!("bench p4: check the model on {servers} servers");
        let job = job(PROCS, TRANSFER, BYTES);
        let running = Running::new(program, servers, CLIENTS, job)?;
        let turns = running.turns(&phases, args.repeat)?;
        running.end();
        let plan = Plan {
            seed: args.model.seed,
            servers,
            clients: CLIENTS,
            together: true,
            cores,
            network,
            placement: Placement::Modular,
            times: Arc::new(found.times.clone()),
            job,
        };
        for (simulated, turns) in simulate(&plan, &phases)?.iter().zip(&turns) {
            let rates: Vec<f64> = turns.iter().map(|turn| turn.measured.rate()).collect();
            let measured = median(&rates, |rate| *rate);
            let busy: Vec<f64> = turns.iter().map(|turn| turn.busy()).collect();
            let busy = median(&busy, |busy| *busy);
            checks.push(Check { servers, phase: simulated.phase, measured, simulated: simulated.rate(), busy });
        }
    }
    Ok(checks)
}
