//! What requests cost processors here: real servers and clients over TCP do the work of the phases, and the system says for how
//! long processors worked for either of them.

use super::super::Args;
use crate::median::median;
use crate::program::{Program, Session};
use crate::started::Started;
use aze_sim::experiment::work::{self, Job, Phase, Process};
use aze_sim::experiment::{Cost, Measured, Times};
use aze_words::errln;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Clients, each a session of its own, and processes of each.
pub(super) const CLIENTS: usize = 2;
pub(super) const PROCS: usize = 2;
/// Base-2 logarithm of the chunk size, as simulated.
const CHUNK_BITS: u8 = aze_sim::cluster::CHUNK_BITS;
const FILES: u64 = 500;
const SMALL: u64 = 4 << 10;
const LARGE: u64 = 1 << CHUNK_BITS;

/// Times of this machine.
pub(super) struct Found {
    pub(super) times: Times,
    /// Time between two processes of this machine, without what processors do for the message.
    pub(super) local_latency_ns: u64,
}

/// One phase on running servers.
#[derive(Clone)]
pub(super) struct Turn {
    pub(super) measured: Measured,
    servers: Duration,
    clients: Duration,
    requests: BTreeMap<String, u64>,
}

impl Turn {
    /// Seconds that processors worked for servers and clients, divided by those of the phase.
    pub(super) fn busy(&self) -> f64 {
        (self.servers + self.clients).as_secs_f64() / self.measured.seconds
    }
}

/// A volume that runs, and clients of it.
pub(super) struct Running {
    started: Started,
    sessions: Vec<Arc<dyn Session>>,
    program: &'static dyn Program,
    processes: Vec<Arc<Process>>,
    procs: usize,
}

/// Amounts that take long enough to be measured.
pub(super) fn job(procs: usize, transfer: u64, bytes: u64) -> Job {
    Job { procs, files: FILES, bytes, transfer, alone: 1 << 20 }
}

impl Running {
    pub(super) fn new(program: &'static dyn Program, servers: u16, clients: usize, job: Job) -> Outcome<Running> {
        let name = format!("p4-model-{servers}-{}", std::process::id());
        let started = Started::new(program, &name, &["--servers", &servers.to_string(), "--transport", "tcp"])?;
        let sessions = (0..clients).map(|_| program.open(&started.name)).collect::<Outcome<Vec<_>>>()?;
        let all = clients * job.procs;
        let process = |rank: usize| {
            Arc::new(Process::new(sessions[rank / job.procs].client().clone(), rank, all, job, CHUNK_BITS))
        };
        let processes: Vec<_> = (0..all).map(process).collect();
        sessions[0].ask("bench p4: prepare", Process::prepare(processes[0].clone()))?;
        Ok(Running { started, sessions, program, processes, procs: job.procs })
    }

    /// Turns of the phases in this order; the first turn connects everybody to the servers, and is not kept.
    pub(super) fn turns(&self, phases: &[Phase], repeat: usize) -> Outcome<Vec<Vec<Turn>>> {
        let mut turns = vec![Vec::new(); phases.len()];
        for turn in 0..=repeat {
            for (phase, turns) in phases.iter().zip(&mut turns) {
                let done = self.turn(*phase)?;
                if turn > 0 {
                    turns.push(done);
                }
            }
        }
        Ok(turns)
    }

    fn requests(&self) -> Outcome<BTreeMap<String, u64>> {
        let client = self.sessions[0].client();
        let answers = self.sessions[0].ask("look at every server", async { Ok(client.status().await) })?;
        let mut counts = BTreeMap::new();
        for (server, answer) in answers {
            let status: aze_proto::message::ServerStatus =
                answer.map_err(|failure| Trouble::volume(format!("look at server {server}"), &failure))?;
            status.requests.into_iter().for_each(|counter| *counts.entry(counter.name).or_insert(0) += counter.count);
        }
        Ok(counts)
    }

    fn turn(&self, phase: Phase) -> Outcome<Turn> {
        let (asked, name) = (self.requests()?, Some(self.started.name.as_str()));
        let (servers, clients) = (self.program.processor_time(name)?, self.program.processor_time(None)?);
        let barrier = Barrier::new(self.processes.len());
        let done = std::thread::scope(|scope| {
            let threads = self.processes.iter().enumerate().map(|(rank, process)| {
                let (barrier, session) = (&barrier, &self.sessions[rank / self.procs]);
                scope.spawn(move || {
                    barrier.wait();
                    let began = Instant::now();
                    let amount = session.ask(phase.name(), Process::work(process.clone(), phase))?;
                    Ok((began, Instant::now(), amount))
                })
            });
            let threads: Vec<_> = threads.collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a process does not panic"))
                .collect::<Outcome<Vec<_>>>()
        })?;
        let first = done.iter().map(|(began, ..)| *began).min().unwrap_or_else(Instant::now);
        let took = done.iter().map(|(_, ended, _)| ended.duration_since(first)).max().unwrap_or_default();
        let amount = done.iter().map(|(.., amount)| amount).sum();
        // Closes are sent late, and are part of what an open costs.
        std::thread::sleep(work::REST);
        let servers = self.program.processor_time(name)?.saturating_sub(servers);
        let clients = self.program.processor_time(None)?.saturating_sub(clients);
        let requests = self.requests()?.into_iter().map(|(name, count)| {
            let before = asked.get(&name).copied().unwrap_or(0);
            (name, count - before)
        });
        let measured = Measured { phase, amount, seconds: took.as_secs_f64() };
        Ok(Turn { measured, servers, clients, requests: requests.collect() })
    }

    pub(super) fn end(self) {
        self.sessions.iter().for_each(|session| session.end());
    }
}

/// The most frequent request of a phase, and its number.
fn main_request(turn: &Turn) -> Outcome<(&str, u64)> {
    let kinds = turn.requests.iter().filter(|(name, _)| !matches!(name.as_str(), "Close" | "Status"));
    let most = kinds.max_by_key(|(_, count)| **count).filter(|(_, count)| **count > 0);
    let none =
        || Trouble::new(Exit::Fatal, format!("bench p4: {} has asked the servers nothing", turn.measured.phase.name()));
    most.map(|(name, count)| (name.as_str(), *count)).ok_or_else(none)
}

/// Nanoseconds for one of so many: the median of the turns.
fn each(turns: &[Turn], of: impl Fn(&Turn) -> Duration) -> Outcome<u64> {
    let counted = turns.iter().map(|turn| Ok(of(turn).as_nanos() as f64 / main_request(turn)?.1 as f64));
    Ok(median(&counted.collect::<Outcome<Vec<f64>>>()?, |ns| *ns) as u64)
}

/// Measures on one server.
pub(super) fn times(args: &Args, program: &'static dyn Program) -> Outcome<Found> {
    errln!("bench p4: measure times of one server and its clients over TCP");
    let names = [Phase::EasyCreate, Phase::EasyStat, Phase::EasyOpen, Phase::EasyRemove];
    let data = [Phase::EasyWrite, Phase::EasyRead];
    let mut times = Times::default();
    let mut answers = Vec::new();
    let of = |transfer: u64, phases: &[Phase]| {
        let running = Running::new(program, 1, CLIENTS, job(PROCS, transfer, 512 * transfer))?;
        let turns = running.turns(phases, args.repeat)?;
        running.end();
        Ok::<_, Trouble>(turns)
    };
    let small = of(SMALL, &[&names[..], &data].concat())?;
    let large = of(LARGE, &data)?;
    for turns in &small {
        let name = main_request(&turns[0])?.0.to_owned();
        let cost = Cost { ns: each(turns, |turn| turn.servers)?, mib_ns: 0 };
        answers.push(each(turns, |turn| turn.clients)?);
        times.requests.entry(name).or_insert(cost);
    }
    times.answer_ns = median(&answers, |ns| *ns as f64);
    let per_mib = |less: u64, more: u64| (u128::from(more.saturating_sub(less)) << 20) as u64 / (LARGE - SMALL);
    for (turns, small) in large.iter().zip(&small[names.len()..]) {
        let name = main_request(&turns[0])?.0.to_owned();
        let clients = per_mib(each(small, |turn| turn.clients)?, each(turns, |turn| turn.clients)?);
        if turns[0].measured.phase == Phase::EasyWrite {
            times.sent_mib_ns = clients
        } else {
            times.received_mib_ns = clients
        }
        let (less, more) = (each(small, |turn| turn.servers)?, each(turns, |turn| turn.servers)?);
        if let Some(cost) = times.requests.get_mut(&name) {
            cost.mib_ns = per_mib(less, more);
        }
    }
    let searched = Running::new(program, 1, CLIENTS, job(PROCS, SMALL, SMALL))?;
    let turns = searched.turns(&[Phase::EasyCreate, Phase::Search, Phase::EasyRemove], args.repeat)?;
    searched.end();
    let costs: Vec<u64> = times.requests.values().map(|cost| cost.ns).collect();
    times.other_ns = median(&costs, |ns| *ns as f64);
    // The rest of a search, divided by what it has found.
    let found = |of: &dyn Fn(&Turn) -> Duration, ns: u64| {
        let each = |turn: &Turn| {
            let asked: u64 = turn.requests.iter().filter(|(name, _)| *name != "Status").map(|(_, count)| count).sum();
            of(turn).saturating_sub(Duration::from_nanos(asked * ns)).as_nanos() as f64 / turn.measured.amount as f64
        };
        (median(&turns[1].iter().map(each).collect::<Vec<f64>>(), |ns| *ns) as u64).max(1)
    };
    (times.found_ns, times.received_found_ns) =
        (found(&|turn| turn.servers, times.other_ns), found(&|turn| turn.clients, times.answer_ns));
    // The time of an open includes its close.
    times.requests.insert("Close".into(), Cost::default());
    let alone = Running::new(program, 1, 1, job(1, SMALL, SMALL))?;
    let turns = alone.turns(&[Phase::EasyCreate, Phase::EasyRemove], args.repeat)?;
    alone.end();
    let rest = each(&turns[1], |turn| {
        Duration::from_secs_f64(turn.measured.seconds).saturating_sub(turn.servers + turn.clients)
    })?;
    Ok(Found { times, local_latency_ns: (rest / 2).max(1) })
}
