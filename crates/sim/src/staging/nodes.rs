//! Workers of a stage: processes on nodes of their own, which copy and read back what the command gives them, by its pipes.
//!
//! The work is that of room `copy`; how a worker is started, spoken to and given up is told here as `aze` does it: it says once a second
//! that it lives, and is lost when its words end, or when nothing was heard of it for ten. Workers are killed, or stand still for
//! longer than that and go on: what they write then must be in no file that has a name.

use super::job::Told;
use super::place::Place;
use super::programs::ROOT;
use super::{ASIDE, BELOW, Run};
use crate::Cluster;
use crate::cluster::client_node;
use aze_copy::Watch;
use aze_copy::stage::nodes::{Copied, Nodes, Part, Probe, Share, copy_part, look_for, reread_part};
use aze_copy::tree::{ReadBack, Spot, Tree};
use aze_io::Io;
use aze_io::sim::{DRIVER, Process, SimRng};
use aze_io::sync::Mutex;
use aze_io::threads::{self, Waiter};
use aze_receipt::Sums;
use aze_tree::{Connection, VolumeTree};
use aze_words::exit::{Exit, Outcome, Trouble};
use futures_util::future::{Either, select};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Tasks of a worker at the same time.
const JOBS: usize = 2;

/// How often a worker says that it is there.
const BEAT: Duration = Duration::from_secs(1);

/// How long a worker may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How often a thread that waits looks whether its worker is silent.
const LOOK: Duration = Duration::from_millis(200);

/// The same where all workers have enough to do, or one is to start.
const SHORT_LOOK: Duration = Duration::from_millis(5);

/// How long workers may take to start.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// One end of it writes, the other one reads. It may end.
struct Pipe<T>(Arc<Mutex<Flow<T>>>);

struct Flow<T> {
    items: VecDeque<T>,
    has_ended: bool,
    waiting: Vec<Waker>,
}

impl<T> Clone for Pipe<T> {
    fn clone(&self) -> Pipe<T> {
        Pipe(self.0.clone())
    }
}

impl<T> Pipe<T> {
    fn new() -> Pipe<T> {
        Pipe(Arc::new(Mutex::new(Flow { items: VecDeque::new(), has_ended: false, waiting: Vec::new() })))
    }

    fn change(&self, change: impl FnOnce(&mut Flow<T>)) {
        let mut flow = self.0.lock();
        change(&mut flow);
        let waiting = std::mem::take(&mut flow.waiting);
        drop(flow);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn send(&self, item: T) {
        // The words of a killed process do not arrive.
        self.change(|flow| {
            if !flow.has_ended {
                flow.items.push_back(item)
            }
        });
    }

    fn end(&self) {
        self.change(|flow| flow.has_ended = true);
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut flow = self.0.lock();
        match flow.items.pop_front() {
            Some(item) => Poll::Ready(Some(item)),
            None if flow.has_ended => Poll::Ready(None),
            None => {
                flow.waiting.push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The next item; `None` at the end, or if the process was killed.
    fn recv(&self) -> Option<T> {
        Waiter::Simulated.block_on(poll_fn(|context| self.poll(context))).flatten()
    }

    /// The same, or an error if there is none in time.
    fn recv_in(&self, io: &Io, time: Duration) -> Result<Option<T>, ()> {
        let next = poll_fn(|context| self.poll(context));
        match Waiter::Simulated.block_on(select(next, pin!(io.sleep(time)))) {
            Some(Either::Left((item, _))) => Ok(item),
            Some(Either::Right(_)) => Err(()),
            None => Ok(None),
        }
    }
}

struct Task {
    id: u64,
    read_back: bool,
    part: Part,
}

enum Said {
    Ready,
    Refused { is_elsewhere: bool, text: String },
    Alive,
    Done { id: u64, done: Outcome<Done> },
}

enum Done {
    Copied(Copied),
    ReadBack(Sums, ReadBack),
}

/// A worker, for those who trouble it.
pub(super) struct Worker {
    node: usize,
    process: Process,
    input: Pipe<Task>,
    output: Pipe<Said>,
    stands_until_ns: Arc<AtomicU64>,
    has_ended: Arc<AtomicBool>,
    /// Another file system than the command's, under the same path.
    elsewhere: Option<Place>,
}

/// All workers of a run, by the order in which they were started.
pub(super) type Workers = Arc<Mutex<Vec<Worker>>>;

/// The worker's process.
struct Life {
    cluster: Arc<Cluster>,
    node: usize,
    io: Io,
    place: Place,
    input: Pipe<Task>,
    output: Pipe<Said>,
    is_over: AtomicBool,
    backing: Option<Vec<u8>>,
}

impl Watch for Life {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn expect(&self, _: u64) {}

    fn copied(&self, _: u64) {}

    fn file(&self, _: &Spot, _: &Spot) {}

    fn dir(&self) {}

    fn lacks(&self, _: &Trouble) {}

    fn failed(&self, _: &Trouble) {}
}

impl Life {
    fn run(self: Arc<Self>, probe: &Probe) {
        if let Some(Ok(client)) = Waiter::Simulated.block_on(self.cluster.connect(self.node)) {
            let connection = Connection {
                client,
                who: ROOT.clone(),
                waiter: Waiter::Simulated,
                volume: "sim".into(),
                backing: self.backing.clone(),
            };
            let from: Arc<dyn Tree> = Arc::new(VolumeTree::new(connection, "aze:".into()));
            self.work(probe, &from);
        }
        self.output.end();
    }

    fn work(self: &Arc<Self>, probe: &Probe, from: &Arc<dyn Tree>) {
        let to: Arc<dyn Tree> = Arc::new(self.place.clone());
        let spot = |tree: &Arc<dyn Tree>, path: &[u8]| Spot { tree: tree.clone(), path: path.to_vec() };
        if let Err(trouble) = look_for(probe, &spot(from, &probe.from.0), &spot(&to, &probe.to)) {
            self.say(Said::Refused { is_elsewhere: trouble.exit == Exit::Caller, text: trouble.text });
            return;
        }
        self.say(Said::Ready);
        let (tasks, queue) = threads::queue::<Task>(JOBS);
        let queue = Arc::new(queue);
        let mut all = Vec::new();
        for _ in 0..JOBS {
            let (this, queue, from, to) = (self.clone(), queue.clone(), from.clone(), to.clone());
            let work = move || {
                let mut memory = Vec::new();
                while let Some(task) = queue.recv() {
                    let (id, part) = (task.id, &task.part);
                    let (from, to) = (spot(&from, &part.from), spot(&to, &part.to));
                    let done = match task.read_back {
                        true => reread_part(&to, part, &*this).map(|(sums, how)| Done::ReadBack(sums, how)),
                        false => copy_part(&from, &to, part, &*this, &mut memory).map(Done::Copied),
                    };
                    this.say(Said::Done { id, done });
                }
            };
            all.push(threads::start("works", work).expect("room for a thread"));
        }
        let this = self.clone();
        let beat = move || {
            while !this.is_over() && Waiter::Simulated.block_on(this.io.sleep(BEAT)).is_some() {
                this.say(Said::Alive);
            }
        };
        all.push(threads::start("beats", beat).expect("room for a thread"));
        while let Some(task) = self.input.recv() {
            if tasks.send(task).is_err() {
                break;
            }
        }
        // A real one ends here at once. What its threads are at goes on here, which is worse.
        self.is_over.store(true, Ordering::Relaxed);
        drop(tasks);
        all.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn say(&self, said: Said) {
        self.place.stand_still();
        self.output.send(said);
    }
}

enum Phase {
    Starting,
    Ready,
    Elsewhere(String),
    Lost(String),
}

struct Member {
    phase: Phase,
    heard: Duration,
    busy: usize,
    waiting: BTreeMap<u64, Pipe<Outcome<Done>>>,
    share: Share,
}

/// The workers of one command.
pub(super) struct Crowd {
    pub cluster: Arc<Cluster>,
    pub place: Place,
    pub told: Arc<Told>,
    pub io: Io,
    /// A node for each.
    pub nodes: Vec<usize>,
    /// The first one has another file system in the place of the destination.
    pub is_elsewhere: bool,
    pub workers: Workers,
    pub backing: Option<Vec<u8>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    members: Vec<Member>,
    inputs: Vec<Pipe<Task>>,
    last_id: u64,
}

impl State {
    fn lose(&mut self, at: usize, why: &str) {
        let member = &mut self.members[at];
        if matches!(member.phase, Phase::Starting | Phase::Ready) {
            member.phase = Phase::Lost(why.into());
            member.share.lost = Some(why.into());
            std::mem::take(&mut member.waiting).values().for_each(Pipe::end);
            self.inputs[at].end();
        }
    }

    fn hear(&mut self, at: usize, said: Said, now: Duration) {
        let member = &mut self.members[at];
        member.heard = now;
        match said {
            Said::Ready => member.phase = Phase::Ready,
            Said::Refused { is_elsewhere: true, text } => member.phase = Phase::Elsewhere(text),
            Said::Refused { text, .. } => self.lose(at, &text),
            Said::Alive => {}
            Said::Done { id, done } => {
                if let Some(waiting) = member.waiting.remove(&id) {
                    member.busy -= 1;
                    waiting.send(done);
                }
            }
        }
    }

    /// The one that has least to do; of those but the writer, if there are any.
    fn pick(&self, writer: Option<usize>) -> Option<Option<usize>> {
        let ready = |at: &usize| matches!(self.members[*at].phase, Phase::Ready);
        let alive: Vec<usize> = (0..self.members.len()).filter(ready).collect();
        let others: Vec<usize> = alive.iter().copied().filter(|at| writer.is_some() && Some(*at) != writer).collect();
        let pool = if others.is_empty() { alive } else { others };
        let least = *pool.iter().min_by_key(|at| self.members[**at].busy)?;
        Some(Some(least).filter(|at| self.members[*at].busy < JOBS))
    }
}

fn asked_to_end() -> Trouble {
    Trouble::new(Exit::Again, "the command was asked to end")
}

impl Crowd {
    fn is_over(&self) -> bool {
        self.told.is_over()
    }

    fn wait(&self, time: Duration) {
        // Whether it is killed its watch tells.
        let _ = Waiter::Simulated.block_on(self.io.sleep(time));
    }

    fn run(&self, at: usize, probe: &Probe) -> (Pipe<Task>, Pipe<Said>) {
        let node = self.nodes[at];
        let stands_until_ns = Arc::<AtomicU64>::default();
        let elsewhere = (self.is_elsewhere && at == 0).then(|| {
            let sim = &self.cluster.sim;
            Place::new(sim.node(DRIVER), sim.rng("elsewhere"), &[BELOW, ASIDE])
        });
        let place = elsewhere.as_ref().unwrap_or(&self.place).on_node(node, stands_until_ns.clone());
        let (input, output) = (Pipe::new(), Pipe::new());
        let has_ended = Arc::<AtomicBool>::default();
        let life = Arc::new(Life {
            cluster: self.cluster.clone(),
            node,
            io: self.cluster.client_io(node),
            place,
            input: input.clone(),
            output: output.clone(),
            is_over: AtomicBool::new(false),
            backing: self.backing.clone(),
        });
        let (probe, ended) = (probe.clone(), has_ended.clone());
        let main = move || {
            life.run(&probe);
            ended.store(true, Ordering::Relaxed);
        };
        let process = Process::start(&self.cluster.sim, &client_node(node), main);
        let pipes = (input.clone(), output.clone());
        self.workers.lock().push(Worker { node, process, input, output, stands_until_ns, has_ended, elsewhere });
        pipes
    }

    fn give(&self, part: &Part, writer: Option<usize>) -> Outcome<Result<(usize, Done), bool>> {
        let (at, answer) = loop {
            if self.is_over() {
                return Err(asked_to_end());
            }
            let mut state = self.state.lock();
            match state.pick(writer) {
                None => return Ok(Err(true)),
                Some(None) => {
                    drop(state);
                    self.wait(SHORT_LOOK);
                }
                Some(Some(at)) => {
                    state.last_id += 1;
                    let (id, answer) = (state.last_id, Pipe::new());
                    state.members[at].waiting.insert(id, answer.clone());
                    state.members[at].busy += 1;
                    state.inputs[at].send(Task { id, read_back: writer.is_some(), part: part.clone() });
                    break (at, answer);
                }
            }
        };
        loop {
            match answer.recv_in(&self.io, LOOK) {
                Ok(Some(done)) => return done.map(|done| Ok((at, done))),
                Ok(None) if self.is_over() => return Err(asked_to_end()),
                Ok(None) => return Ok(Err(false)),
                Err(()) if self.is_over() => return Err(asked_to_end()),
                Err(()) => {
                    let mut state = self.state.lock();
                    if self.told.now().saturating_sub(state.members[at].heard) > SILENCE_MAX {
                        state.lose(at, "nothing was heard of it");
                    }
                }
            }
        }
    }

    /// Of a command of a run.
    pub fn new(run: &Run, told: &Arc<Told>, io: Io, is_elsewhere: bool) -> Crowd {
        Crowd {
            cluster: run.cluster.clone(),
            place: run.place.clone(),
            told: told.clone(),
            io,
            nodes: (0..run.plan.nodes).map(|_| run.next_node()).collect(),
            is_elsewhere,
            workers: run.workers.clone(),
            backing: run.plan.is_over_directory.then(|| BELOW.into()),
            state: Arc::default(),
        }
    }
}

impl Nodes for Crowd {
    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| client_node(*node)).collect()
    }

    fn jobs(&self) -> usize {
        self.nodes.len() * JOBS
    }

    fn start(&self, probe: &Probe, _: &Arc<dyn Watch>) -> Outcome<bool> {
        let began = self.told.now();
        for at in 0..self.nodes.len() {
            let (input, output) = self.run(at, probe);
            let share = Share { node: client_node(self.nodes[at]), ..Share::default() };
            let member = Member { phase: Phase::Starting, heard: began, busy: 0, waiting: BTreeMap::new(), share };
            let mut state = self.state.lock();
            state.members.push(member);
            state.inputs.push(input);
            drop(state);
            let (state, told) = (self.state.clone(), self.told.clone());
            let listen = move || {
                while let Some(said) = output.recv() {
                    state.lock().hear(at, said, told.now());
                }
                state.lock().lose(at, "it has ended");
            };
            threads::start("listens", listen).expect("room for a thread");
        }
        while self.state.lock().members.iter().any(|member| matches!(member.phase, Phase::Starting)) {
            if self.is_over() {
                return Err(asked_to_end());
            }
            if self.told.now() > began + START_TIME_MAX {
                let mut state = self.state.lock();
                let starting = |at: &usize| matches!(state.members[*at].phase, Phase::Starting);
                let late: Vec<usize> = (0..state.members.len()).filter(starting).collect();
                late.into_iter().for_each(|at| state.lose(at, "it has not started"));
            }
            self.wait(SHORT_LOOK);
        }
        let state = self.state.lock();
        for member in &state.members {
            match &member.phase {
                Phase::Elsewhere(text) => return Err(Trouble::new(Exit::Caller, text.clone())),
                Phase::Lost(why) => self.told.lacks(&Trouble::new(Exit::Again, why.clone())),
                _ => {}
            }
        }
        Ok(state.members.iter().any(|member| matches!(member.phase, Phase::Ready)))
    }

    fn copy(&self, part: &Part) -> Outcome<Option<(usize, Copied)>> {
        match self.give(part, None)? {
            Ok((at, Done::Copied(copied))) => {
                self.state.lock().members[at].share.copied_bytes += part.range.end - part.range.start;
                Ok(Some((at, copied)))
            }
            Ok(_) => Err(Trouble::new(Exit::Fatal, "an answer to another task")),
            Err(_) => Ok(None),
        }
    }

    fn read_back(&self, part: &Part, writer: usize) -> Outcome<Option<(Sums, ReadBack, bool)>> {
        loop {
            match self.give(part, Some(writer))? {
                Ok((at, Done::ReadBack(sums, how))) => {
                    self.state.lock().members[at].share.read_back_bytes += part.range.end - part.range.start;
                    return Ok(Some((sums, how, at != writer)));
                }
                Ok(_) => return Err(Trouble::new(Exit::Fatal, "an answer to another task")),
                Err(true) => return Ok(None),
                Err(false) => {}
            }
        }
    }

    fn are_gone(&self) -> bool {
        let state = self.state.lock();
        !state.members.is_empty() && !state.members.iter().any(|member| matches!(member.phase, Phase::Ready))
    }

    fn end(&self) -> Vec<Share> {
        let state = self.state.lock();
        state.inputs.iter().for_each(Pipe::end);
        state.members.iter().map(|member| member.share.clone()).collect()
    }
}

impl Run {
    /// Kills workers, or has them stand still, for as long as it is polled.
    pub(super) async fn trouble_workers(&self, mut rng: SimRng) -> Infallible {
        if self.plan.nodes == 0 {
            return std::future::pending().await;
        }
        loop {
            self.cluster.sim.sleep(Duration::from_millis(1 + rng.below(400))).await;
            let workers = self.workers.lock();
            let alive: Vec<&Worker> =
                workers.iter().filter(|worker| !worker.has_ended.load(Ordering::Relaxed)).collect();
            if alive.is_empty() || !self.plan.kills || self.model.lock().is_over || !rng.chance(150_000) {
                continue;
            }
            let worker = alive[rng.below(alive.len() as u64) as usize];
            if rng.chance(500_000) {
                self.tell(|| format!("the worker on node {} is killed", worker.node));
                self.counts.lock().workers_killed += 1;
                worker.output.end();
                self.cluster.kill_client(worker.node);
                worker.process.kill();
                worker.has_ended.store(true, Ordering::Relaxed);
            } else {
                self.tell(|| format!("the worker on node {} stands still", worker.node));
                self.counts.lock().workers_stopped += 1;
                let until = self.cluster.sim.now_ns() + (SILENCE_MAX.as_nanos() as u64) + rng.below(5_000_000_000);
                worker.stands_until_ns.store(until, Ordering::Relaxed);
            }
        }
    }

    /// The pipes of a command that has ended end, too; workers that have ended go.
    pub(super) fn leave_workers(&self) {
        let mut workers = self.workers.lock();
        workers.iter().for_each(|worker| worker.input.end());
        for worker in workers.iter() {
            let files =
                worker.elsewhere.iter().flat_map(|place| [BELOW, ASIDE].map(|dir| place.all_below(dir.as_bytes())));
            if let Some((path, _)) = files.flatten().next() {
                self.wrong(format!("{}: it is where the command never was", super::shown(&path)));
            }
        }
        let has_ended = |worker: &Worker| worker.has_ended.load(Ordering::Relaxed);
        let (over, left): (Vec<Worker>, Vec<Worker>) = std::mem::take(&mut *workers).into_iter().partition(has_ended);
        *workers = left;
        over.iter().for_each(|worker| self.cluster.kill_client(worker.node));
    }

    /// The run is over.
    pub(super) fn end_workers(&self) {
        for worker in std::mem::take(&mut *self.workers.lock()) {
            worker.output.end();
            self.cluster.kill_client(worker.node);
        }
    }
}
