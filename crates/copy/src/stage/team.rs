//! The workers of a stage on other nodes: starts them, gives them tasks, and notices when one is lost.
//!
//! Each is a process with a line to the command: its input, its output, and its words when it fails. How it is started is behind
//! [`Launcher`]: the command runs `aze stage worker` by the volume's launcher, the simulation a process of its own. A thread writes to a
//! worker's input, one reads its output, and one its last words. The threads of the stage wait here for what they have asked for.
//!
//! What a worker does is in `team/worker.rs`, what both say to each other in `team/message.rs`.

pub mod message;
pub mod worker;

use super::nodes::{Copied, Nodes, Part, Probe, Share};
use crate::Watch;
use crate::tree::ReadBack;
use aze_io::sync::MutexGuard;
use aze_io::threads::{self, Late, Receiver, Sender, Watched, now, queue};
use aze_receipt::{CHUNK_BYTES, Sums};
use aze_words::exit::{Exit, Outcome, Trouble};
use message::{FORM, Order, Said, Task, Volumes};
use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// Tasks at work at the same time on all nodes, at most: a thread of the command waits for each.
const TASKS_MAX: usize = 1024;

/// How long a worker may be silent, which says once a second that it is there.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long all workers together may take to start.
pub const START_TIME_MAX: Duration = Duration::from_secs(30);

/// How long workers get to end by themselves.
const CALL_OFF_TIME: Duration = Duration::from_secs(5);

/// How often it is looked whether they have.
const CALL_OFF_LOOK: Duration = Duration::from_millis(5);

/// How often threads that wait look whether a signal has come, or a worker is silent.
const LOOK: Duration = Duration::from_millis(200);

/// If a thread that waits has not looked for so long, the command itself did not run.
const LOOKED_AWAY: Duration = Duration::from_secs(2);

/// How long the last words of a launcher that has ended are waited for.
const WORDS_TIME: Duration = Duration::from_secs(1);

/// Bytes of these words that are kept.
const WORDS_BYTES_MAX: usize = 2 << 10;

/// How workers are started.
pub trait Launcher: Send + Sync {
    /// Starts a worker on a node, by the place of its name in the team, and does not wait for it.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&self, at: usize) -> Outcome<Started>;
    /// The nice value of the calling thread, which workers take over.
    fn nice(&self) -> i32;
}

/// A worker that was started, as far as the command has it.
pub struct Started {
    /// Where it reads its order and tasks. It ends with this.
    pub input: Box<dyn Write + Send>,
    /// Where it answers.
    pub output: Box<dyn Read + Send>,
    /// Where it, or who has started it, says why it has failed.
    pub errors: Box<dyn Read + Send>,
    /// Its launcher's process.
    pub launched: Box<dyn Launched>,
}

/// The process that was started on this node for a worker. To drop it ends the process, and waits for that.
pub trait Launched: Send {
    /// Ends it, and does not wait. A worker that is out of its reach ends with its input.
    fn kill(&mut self);
    /// Whether it has ended.
    fn has_ended(&mut self) -> bool;
}

/// The workers of a stage.
pub struct Team {
    inner: Arc<Watched<State>>,
    names: Vec<String>,
    /// They were named: one that is not reached is not left out.
    is_named: bool,
    volumes: Volumes,
    /// Tasks of a node at the same time.
    jobs: usize,
    launcher: Box<dyn Launcher>,
}

#[derive(Default)]
struct State {
    /// Counts the starts, so that nothing is taken from workers of an earlier one.
    start: u64,
    members: Vec<Member>,
    /// Their ends are asked for.
    is_ending: bool,
    watch: Option<Arc<dyn Watch>>,
    last_id: u64,
}

#[derive(Debug, PartialEq)]
enum Phase {
    Starting,
    Ready,
    /// It has other files in the places of the stage.
    Elsewhere(String),
    Lost(String),
}

/// A worker that runs: its launcher's process, and the lines that it is to read.
type Running = (Box<dyn Launched>, Sender<Vec<u8>>);

struct Member {
    share: Share,
    phase: Phase,
    /// The number of its running system.
    system: String,
    launched: Option<Box<dyn Launched>>,
    input: Option<Sender<Vec<u8>>>,
    heard: Duration,
    /// Tasks under way, and tasks so far.
    busy: usize,
    given: u64,
    waiting: BTreeMap<u64, Sender<Said>>,
}

impl Team {
    /// Of workers on the nodes of these names, with up to `jobs` tasks on each at the same time. If the nodes were named, each of them has
    /// to be reached.
    pub fn new(names: Vec<String>, is_named: bool, volumes: Volumes, jobs: usize, launcher: Box<dyn Launcher>) -> Team {
        let jobs = jobs.min(TASKS_MAX / names.len().max(1)).max(1);
        Team { inner: Arc::default(), names, is_named, volumes, jobs, launcher }
    }

    /// Starts a worker on a node, and gives it its order.
    fn run(&self, at: usize, start: u64, order: &Order) -> Outcome<Running> {
        let Started { input, output, errors, launched } = self.launcher.start(at)?;
        let (lines, to_write) = queue(self.jobs + 1);
        let _ = lines.try_send(message::line(order));
        let (told, words) = queue(1);
        let inner = self.inner.clone();
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            threads::start(name, work).map(drop).map_err(|error| Trouble::local("start a thread", &error))
        };
        spawn("aze-node-in", Box::new(move || write(input, &to_write)))?;
        spawn("aze-node-err", Box::new(move || drop(told.try_send(last_words(errors)))))?;
        spawn("aze-node-out", Box::new(move || listen(&inner, (start, at), output, &words)))?;
        Ok((launched, lines))
    }

    /// Waits until each worker is ready, or will not be.
    fn wait_for_start(&self) -> Outcome<()> {
        let (mut deadline, mut attention) = (now() + START_TIME_MAX, Attention::now());
        let mut state = self.inner.lock();
        loop {
            // What workers have said while this process was stopped may not have been read yet.
            deadline += attention.away().unwrap_or_default();
            let late = |member: &Member| member.phase == Phase::Starting;
            if !state.members.iter().any(late) {
                return Ok(());
            }
            if is_over(&state) {
                return Err(asked_to_end());
            }
            if now() >= deadline {
                for at in 0..state.members.len() {
                    if late(&state.members[at]) {
                        lose(&mut state, at, format!("it has not started within {} s", START_TIME_MAX.as_secs()));
                    }
                }
            }
            state = self.wait(state)?;
        }
    }

    /// Waits until something has changed, but not for long.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> Outcome<MutexGuard<'a, State>> {
        self.inner.wait(state, LOOK).ok_or_else(asked_to_end)
    }

    /// Whether some nodes have started; tells of those that have not.
    fn judge(&self) -> Outcome<bool> {
        let state = self.inner.lock();
        let told = |member: &Member| match &member.phase {
            Phase::Elsewhere(why) | Phase::Lost(why) => Some(format!("{}: {why}", member.share.node)),
            _ => None,
        };
        let is_elsewhere = |member: &&Member| matches!(member.phase, Phase::Elsewhere(_));
        let elsewhere: Vec<String> = state.members.iter().filter(is_elsewhere).filter_map(told).collect();
        if !elsewhere.is_empty() {
            let text = format!("{}: give places that all nodes share, or fewer --nodes", elsewhere.join("; "));
            return Err(Trouble::new(Exit::Caller, text));
        }
        let lost: Vec<String> = state.members.iter().filter_map(told).collect();
        if self.is_named && !lost.is_empty() {
            return Err(Trouble::new(Exit::Caller, format!("{}: name other --nodes, or 'all'", lost.join("; "))));
        }
        let some = lost.len() < state.members.len();
        let rest = if some { "the others copy" } else { "this node copies alone" };
        if let Some(watch) = &state.watch {
            lost.iter().for_each(|why| watch.lacks(&Trouble::new(Exit::Again, format!("{why}: {rest}"))));
        }
        Ok(some)
    }

    /// Gives a task to a node, and waits for the answer: which node, whether it is another one than the writer, and its words.
    fn give(&self, part: &Part, writer: Option<usize>) -> Outcome<Result<(usize, bool, Said), Gone>> {
        let Some((at, is_other, answer)) = self.pick(part, writer)? else { return Ok(Err(Gone::All)) };
        let mut attention = Attention::now();
        loop {
            match answer.recv_in(LOOK) {
                Ok(Some(Said::Failed { exit, text, .. })) => {
                    let trouble = Trouble::new(Exit::of_number(exit), text);
                    return Err(trouble.during(format_args!("on {}", self.names[at])));
                }
                Ok(Some(said)) => return Ok(Ok((at, is_other, said))),
                Ok(None) if is_over(&self.inner.lock()) => return Err(asked_to_end()),
                Ok(None) => return Ok(Err(Gone::One)),
                Err(Late) => {
                    let mut state = self.inner.lock();
                    if is_over(&state) {
                        return Err(asked_to_end());
                    }
                    let now = now();
                    if attention.away().is_some() {
                        // It may not have read yet what workers have said meanwhile.
                        state.members.iter_mut().for_each(|member| member.heard = now);
                    }
                    let is_silent = |member: &Member| now.saturating_sub(member.heard) > SILENCE_MAX;
                    if state.members.get(at).is_some_and(is_silent) {
                        lose(&mut state, at, format!("nothing was heard of it for {} s", SILENCE_MAX.as_secs()));
                        self.inner.tell();
                    }
                }
            }
        }
    }

    /// The node that has the least to do and may have one more task; of those that run another system than the writer, if
    /// there are any. Waits until there is one; `None` if none is left.
    fn pick(&self, part: &Part, writer: Option<usize>) -> Outcome<Option<(usize, bool, Receiver<Said>)>> {
        let mut state = self.inner.lock();
        loop {
            if is_over(&state) {
                return Err(asked_to_end());
            }
            let ready = |at: &usize| state.members[*at].phase == Phase::Ready;
            let alive: Vec<usize> = (0..state.members.len()).filter(ready).collect();
            if alive.is_empty() {
                return Ok(None);
            }
            let is_other = |at: &usize| {
                writer.is_some_and(|writer| {
                    let (one, other) = (&state.members[*at].system, &state.members[writer].system);
                    one != other && !one.is_empty() && !other.is_empty()
                })
            };
            let others: Vec<usize> = alive.iter().copied().filter(is_other).collect();
            let pool = if others.is_empty() { &alive } else { &others };
            let free = pool.iter().filter(|at| state.members[**at].busy < self.jobs);
            let Some(at) = free.min_by_key(|at| (state.members[**at].busy, state.members[**at].given)).copied() else {
                state = self.wait(state)?;
                continue;
            };
            let is_other = is_other(&at);
            state.last_id += 1;
            let (id, (tell, answer)) = (state.last_id, queue(1));
            let member = &mut state.members[at];
            let line = message::line(&Task::new(id, writer.is_some(), part));
            if member.input.as_ref().is_none_or(|input| input.try_send(line).is_err()) {
                lose(&mut state, at, "its input is closed".into());
                continue;
            }
            member.waiting.insert(id, tell);
            (member.busy, member.given) = (member.busy + 1, member.given + 1);
            return Ok(Some((at, is_other, answer)));
        }
    }

    fn counted(&self, at: usize, count: impl FnOnce(&mut Share)) {
        if let Some(member) = self.inner.lock().members.get_mut(at) {
            count(&mut member.share);
        }
    }
}

/// When a thread that waits has looked last.
struct Attention(Duration);

impl Attention {
    fn now() -> Attention {
        Attention(now())
    }

    /// How long this process did not run since the last look, if it was stopped.
    fn away(&mut self) -> Option<Duration> {
        let before = std::mem::replace(&mut self.0, now());
        Some(self.0.saturating_sub(before)).filter(|away| *away > LOOKED_AWAY)
    }
}

/// Which nodes are gone.
enum Gone {
    /// The one that had the task.
    One,
    /// All of them.
    All,
}

impl Nodes for Team {
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn jobs(&self) -> usize {
        self.jobs * self.names.len()
    }

    fn start(&self, probe: &Probe, watch: &Arc<dyn Watch>) -> Outcome<bool> {
        let order = Order::new(&self.volumes, self.jobs, self.launcher.nice(), probe);
        let member = |node: &String| Member {
            share: Share { node: node.clone(), ..Share::default() },
            phase: Phase::Starting,
            system: String::new(),
            launched: None,
            input: None,
            heard: now(),
            busy: 0,
            given: 0,
            waiting: BTreeMap::new(),
        };
        let mut state = self.inner.lock();
        let start = state.start + 1;
        let members = self.names.iter().map(member).collect();
        *state = State { start, members, watch: Some(watch.clone()), ..State::default() };
        // Its threads wait for the lock.
        for at in 0..self.names.len() {
            match self.run(at, start, &order) {
                Ok((launched, input)) => {
                    let member = &mut state.members[at];
                    (member.launched, member.input) = (Some(launched), Some(input));
                }
                Err(trouble) => lose(&mut state, at, trouble.text),
            }
        }
        drop(state);
        self.wait_for_start().and_then(|()| self.judge())
    }

    fn copy(&self, part: &Part) -> Outcome<Option<(usize, Copied)>> {
        let Ok((at, _, said)) = self.give(part, None)? else { return Ok(None) };
        let Said::Done { sums, .. } = said else { return Err(self.odd(at)) };
        let Some(sums) = sums else { return Ok(Some((at, Copied::Changed))) };
        self.counted(at, |share| share.copied_bytes += part.range.end - part.range.start);
        let sums = message::sums_of(&sums).filter(|sums| is_of(sums, part)).ok_or_else(|| self.odd(at))?;
        Ok(Some((at, Copied::Sums(sums))))
    }

    fn read_back(&self, part: &Part, writer: usize) -> Outcome<Option<(Sums, ReadBack, bool)>> {
        loop {
            let (at, is_other, said) = match self.give(part, Some(writer))? {
                Ok(given) => given,
                // It has only read.
                Err(Gone::One) => continue,
                Err(Gone::All) => return Ok(None),
            };
            let Said::Done { sums: Some(sums), read_back: Some(how), .. } = said else { return Err(self.odd(at)) };
            self.counted(at, |share| share.read_back_bytes += part.range.end - part.range.start);
            let sums = message::sums_of(&sums).filter(|sums| is_of(sums, part));
            let (sums, how) = sums.zip(message::read_back_of(&how)).ok_or_else(|| self.odd(at))?;
            return Ok(Some((sums, how, is_other)));
        }
    }

    fn are_gone(&self) -> bool {
        let state = self.inner.lock();
        !state.members.is_empty() && !state.members.iter().any(|member| member.phase == Phase::Ready)
    }

    fn end(&self) -> Vec<Share> {
        let mut members = {
            let mut state = self.inner.lock();
            state.is_ending = true;
            std::mem::take(&mut state.members)
        };
        // The end of their input ends them.
        members.iter_mut().for_each(|member| drop(member.input.take()));
        let deadline = now() + CALL_OFF_TIME;
        for launched in members.iter_mut().filter_map(|member| member.launched.as_mut()) {
            while !launched.has_ended() && now() < deadline && threads::sleep(CALL_OFF_LOOK) {}
        }
        members.into_iter().map(|member| member.share).collect()
    }
}

impl Team {
    fn odd(&self, at: usize) -> Trouble {
        let text = format!("the worker on {} has given an answer that is none: a defect in aze", self.names[at]);
        Trouble::new(Exit::Fatal, text)
    }
}

/// Whether sums are of chunks of this part.
fn is_of(sums: &Sums, part: &Part) -> bool {
    let in_part = |chunk: &u64| part.range.contains(&chunk.saturating_mul(CHUNK_BYTES));
    sums.chunks.keys().all(in_part)
}

fn is_over(state: &State) -> bool {
    state.watch.as_ref().is_some_and(|watch| watch.is_over())
}

fn asked_to_end() -> Trouble {
    Trouble::new(Exit::Again, "the command was asked to end")
}

/// Gives a node up: its launcher is ended, and its tasks are for others.
fn lose(state: &mut State, at: usize, why: String) {
    let is_ending = state.is_ending;
    let member = &mut state.members[at];
    let was_ready = match member.phase {
        Phase::Ready => true,
        Phase::Starting => false,
        Phase::Elsewhere(_) | Phase::Lost(_) => return,
    };
    member.input = None;
    member.waiting.clear();
    if let Some(launched) = &mut member.launched {
        launched.kill();
    }
    let told = format!("{} is lost: {why}: what it was at goes to others", member.share.node);
    member.share.lost = Some(why.clone());
    member.phase = Phase::Lost(why);
    if was_ready
        && !is_ending
        && let Some(watch) = &state.watch
    {
        watch.lacks(&Trouble::new(Exit::Again, told));
    }
}

/// Writes lines to a worker until there are no more, or it reads none.
fn write(mut input: Box<dyn Write + Send>, lines: &Receiver<Vec<u8>>) {
    while let Some(line) = lines.recv() {
        if input.write_all(&line).and_then(|()| input.flush()).is_err() {
            // The end of its output tells.
            return;
        }
    }
}

/// The last bytes of what a launcher or worker has written to its standard error.
fn last_words(mut errors: Box<dyn Read + Send>) -> String {
    let (mut words, mut block) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = errors.read(&mut block) {
        words.extend_from_slice(&block[..count]);
        let more = words.len().saturating_sub(WORDS_BYTES_MAX);
        words.drain(..more);
    }
    String::from_utf8_lossy(&words).trim().replace('\n', "\n  ")
}

/// Takes what a worker says, until it says no more.
fn listen(inner: &Watched<State>, (start, at): (u64, usize), output: Box<dyn Read + Send>, words: &Receiver<String>) {
    let mut reader = BufReader::new(output);
    let mut is_known = false;
    let why = loop {
        let line = match message::next(&mut reader) {
            Ok(Some(line)) => line,
            Ok(None) => {
                let words = words.recv_in(WORDS_TIME).ok().flatten().unwrap_or_default();
                break if words.is_empty() { "it has ended".into() } else { format!("it has ended: {words}") };
            }
            Err(error) => break format!("its words cannot be read: {error}"),
        };
        let said = message::read::<Said>(&line);
        let mut state = inner.lock();
        if state.start != start || state.members.is_empty() {
            return;
        }
        let member = &mut state.members[at];
        member.heard = now();
        match said {
            // A launcher may print a greeting; it is none of ours.
            None if !is_known => continue,
            None => {
                break "it says what no worker says: a defect in aze, or a program on that node writes to its output"
                    .into();
            }
            Some(Said::Ready { form: FORM, system }) if member.phase == Phase::Starting => {
                (is_known, member.system, member.phase) = (true, system, Phase::Ready);
            }
            Some(Said::Ready { .. }) => break "it has another version of aze: give all nodes the same one".into(),
            Some(Said::Refused { is_elsewhere: true, text, .. }) => member.phase = Phase::Elsewhere(text),
            Some(Said::Refused { text, .. }) => {
                lose(&mut state, at, text);
            }
            Some(Said::Alive) => {}
            Some(said @ (Said::Done { id, .. } | Said::Failed { id, .. })) => {
                if let Some(tell) = member.waiting.remove(&id) {
                    member.busy -= 1;
                    // One that waits no more was asked to end.
                    let _ = tell.try_send(said);
                }
            }
        }
        inner.tell();
    };
    let mut state = inner.lock();
    if state.start == start && !state.members.is_empty() {
        lose(&mut state, at, why);
        inner.tell();
    }
}
