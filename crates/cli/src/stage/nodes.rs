//! The workers of a stage on other nodes: starts them, gives them tasks, and notices when one is lost.
//!
//! Each is `aze stage worker`, run by the volume's launcher. A thread writes to its input, one reads its output, and one the
//! last words of its standard error. The threads of the stage wait here for what they have asked for.

use super::message::{self, FORM, Order, Said, Task, Volumes};
use crate::exit::{Exit, Outcome, Trouble};
use crate::mount_nodes;
use crate::session::Session;
use crate::sys;
use aze_copy::Watch;
use aze_copy::stage::nodes::{Copied, Nodes, Part, Probe, Share};
use aze_copy::tree::ReadBack;
use aze_io::real::until;
use aze_io::sync::{Condvar, Mutex};
use aze_receipt::Sums;
use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// Nodes of one stage, at most; of more, the first ones.
const NODES_MAX: usize = 64;

/// Tasks at work at the same time on all nodes, at most: a thread of the command waits for each.
const TASKS_MAX: usize = 1024;

/// How long a worker may be silent, which says once a second that it is there.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long all workers together may take to start.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// How long workers get to end by themselves.
const CALL_OFF_TIME: Duration = Duration::from_secs(5);

/// How often threads that wait look whether a signal has come, or a worker is silent.
const LOOK: Duration = Duration::from_millis(200);

/// If a thread that waits has not looked for so long, the command itself did not run.
const LOOKED_AWAY: Duration = Duration::from_secs(2);

/// How long the last words of a launcher that has ended are waited for.
const WORDS_TIME: Duration = Duration::from_secs(1);

/// Bytes of these words that are kept.
const WORDS_BYTES_MAX: usize = 2 << 10;

/// What `--nodes` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All nodes of the volume.
    All,
    /// So many of them.
    Count(usize),
    /// These.
    Named(Vec<String>),
}

/// Reads what `--nodes` was given.
pub fn parse(text: &str) -> Result<Wanted, String> {
    if text == "all" {
        return Ok(Wanted::All);
    }
    if let Ok(count) = text.parse() {
        return if count == 0 {
            Err("no node can copy nothing: give 1 or more".into())
        } else {
            Ok(Wanted::Count(count))
        };
    }
    let mut names: Vec<String> = Vec::new();
    for name in text.split(',').map(str::trim) {
        if name.is_empty() {
            return Err("expected 'all', a number, or names of nodes with commas between them".into());
        }
        if !names.iter().any(|known| known == name) {
            names.push(name.into());
        }
    }
    Ok(Wanted::Named(names))
}

/// The nodes of a volume that are meant; none if no launcher has started its servers, and nothing else is asked for.
fn choose(wanted: &Wanted, all: Vec<String>) -> Outcome<Vec<String>> {
    let has = |count: usize| format!("the volume has {}", crate::show::count(count as u64, "node"));
    match wanted {
        Wanted::All => Ok(all.into_iter().take(NODES_MAX).collect()),
        // The one where the command runs.
        Wanted::Count(1) if all.is_empty() => Ok(all),
        Wanted::Count(count) if *count > all.len().min(NODES_MAX) => {
            let text = format!("--nodes {count}: {}, and {NODES_MAX} work at most", has(all.len().max(1)));
            Err(Trouble::usage(text))
        }
        Wanted::Count(count) => Ok(all.into_iter().take(*count).collect()),
        Wanted::Named(names) => {
            if let Some(other) = names.iter().find(|name| !all.contains(name)) {
                let known = if all.is_empty() { "no launcher has started its servers".into() } else { all.join(", ") };
                return Err(Trouble::usage(format!("--nodes: '{other}' is no node of the volume: {known}")));
            }
            if names.len() > NODES_MAX {
                return Err(Trouble::usage(format!("--nodes: {NODES_MAX} nodes work at most")));
            }
            Ok(names.clone())
        }
    }
}

/// The workers of a stage.
pub struct Team {
    inner: Arc<Inner>,
    names: Vec<String>,
    /// They were named: one that is not reached is not left out.
    is_named: bool,
    volumes: Volumes,
    /// Tasks of a node at the same time.
    jobs: usize,
    session: Arc<Session>,
}

struct Inner {
    state: Mutex<State>,
    changed: Condvar,
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

struct Member {
    share: Share,
    phase: Phase,
    /// The number of its running system.
    system: String,
    child: Option<Child>,
    input: Option<SyncSender<Vec<u8>>>,
    heard: Instant,
    /// Tasks under way, and tasks so far.
    busy: usize,
    given: u64,
    waiting: BTreeMap<u64, Sender<Said>>,
}

impl Team {
    /// Of the nodes of a volume that are meant, with so many tasks on each; `None` if this process is to copy.
    pub fn of(wanted: &Wanted, session: &Arc<Session>, volumes: Volumes, jobs: usize) -> Outcome<Option<Arc<Team>>> {
        let names = choose(wanted, mount_nodes::of(&session.volume))?;
        if names.is_empty() {
            return Ok(None);
        }
        let jobs = jobs.min(TASKS_MAX / names.len()).max(1);
        let inner = Arc::new(Inner { state: Mutex::default(), changed: Condvar::default() });
        let is_named = matches!(wanted, Wanted::Named(_));
        Ok(Some(Arc::new(Team { inner, names, is_named, volumes, jobs, session: session.clone() })))
    }

    /// Runs a worker on a node, and gives it its order.
    fn run(&self, at: usize, start: u64, order: &Order) -> Outcome<(Child, SyncSender<Vec<u8>>)> {
        let node = &self.names[at];
        let missing = || Trouble::new(Exit::Fatal, format!("volume.json names no launcher for {node}"));
        let mut command = self.session.volume.command_on(node, &["stage", "worker"]).ok_or_else(missing)?;
        // A key that interrupts the shell's job must not reach a worker: it ends with the command.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |error: &std::io::Error| Trouble::local("run the launcher", error);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else { unreachable!("the child was given pipes") };
        let (lines, to_write) = sync_channel(self.jobs + 1);
        let _ = lines.send(message::line(order));
        let (told, words) = channel();
        let inner = self.inner.clone();
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(work)
                .map_err(|error| Trouble::local("start a thread", &error))
        };
        spawn("aze-node-in", Box::new(move || write(input, &to_write)))?;
        spawn("aze-node-err", Box::new(move || drop(told.send(last_words(errors)))))?;
        spawn("aze-node-out", Box::new(move || listen(&inner, (start, at), output, &words)))?;
        Ok((child, lines))
    }

    /// Waits until each worker is ready, or will not be.
    fn wait_for_start(&self) -> Outcome<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        let mut state = self.inner.state.lock();
        loop {
            let late = |member: &Member| member.phase == Phase::Starting;
            if !state.members.iter().any(late) {
                return Ok(());
            }
            if is_over(&state) {
                return Err(asked_to_end());
            }
            if Instant::now() >= deadline {
                for at in 0..state.members.len() {
                    if late(&state.members[at]) {
                        lose(&mut state, at, format!("it has not started within {} s", START_TIME_MAX.as_secs()));
                    }
                }
            }
            state = self.inner.changed.wait_for(state, LOOK);
        }
    }

    /// Whether some nodes have started; tells of those that have not.
    fn judge(&self) -> Outcome<bool> {
        let state = self.inner.state.lock();
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
        let mut looked = Instant::now();
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(Said::Failed { exit, text, .. }) => {
                    let trouble = Trouble::new(Exit::of_number(exit), text);
                    return Err(trouble.during(format_args!("on {}", self.names[at])));
                }
                Ok(said) => return Ok(Ok((at, is_other, said))),
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(Gone::One)),
                Err(RecvTimeoutError::Timeout) => {
                    let mut state = self.inner.state.lock();
                    if is_over(&state) {
                        return Err(asked_to_end());
                    }
                    if looked.elapsed() > LOOKED_AWAY {
                        // This process was stopped, and may not have read yet what workers have said meanwhile.
                        state.members.iter_mut().for_each(|member| member.heard = Instant::now());
                    }
                    looked = Instant::now();
                    if state.members.get(at).is_some_and(|member| member.heard.elapsed() > SILENCE_MAX) {
                        lose(&mut state, at, format!("nothing was heard of it for {} s", SILENCE_MAX.as_secs()));
                        self.inner.changed.notify_all();
                    }
                }
            }
        }
    }

    /// The node that has the least to do and may have one more task; of those that run another system than the writer, if
    /// there are any. Waits until there is one; `None` if none is left.
    fn pick(&self, part: &Part, writer: Option<usize>) -> Outcome<Option<(usize, bool, Receiver<Said>)>> {
        let mut state = self.inner.state.lock();
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
                state = self.inner.changed.wait_for(state, LOOK);
                continue;
            };
            let is_other = is_other(&at);
            state.last_id += 1;
            let (id, (tell, answer)) = (state.last_id, channel());
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
        if let Some(member) = self.inner.state.lock().members.get_mut(at) {
            count(&mut member.share);
        }
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
        // Of this thread: a stage may have given up its priority.
        let order = Order::new(&self.volumes, self.jobs, sys::nice(), probe);
        let member = |node: &String| Member {
            share: Share { node: node.clone(), ..Share::default() },
            phase: Phase::Starting,
            system: String::new(),
            child: None,
            input: None,
            heard: Instant::now(),
            busy: 0,
            given: 0,
            waiting: BTreeMap::new(),
        };
        let mut state = self.inner.state.lock();
        let start = state.start + 1;
        let members = self.names.iter().map(member).collect();
        *state = State { start, members, watch: Some(watch.clone()), ..State::default() };
        // Its threads wait for the lock.
        for at in 0..self.names.len() {
            match self.run(at, start, &order) {
                Ok((child, input)) => {
                    let member = &mut state.members[at];
                    (member.child, member.input) = (Some(child), Some(input));
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
        let state = self.inner.state.lock();
        !state.members.is_empty() && !state.members.iter().any(|member| member.phase == Phase::Ready)
    }

    fn end(&self) -> Vec<Share> {
        let mut members = {
            let mut state = self.inner.state.lock();
            state.is_ending = true;
            std::mem::take(&mut state.members)
        };
        // The end of their input ends them.
        members.iter_mut().for_each(|member| drop(member.input.take()));
        let deadline = Instant::now() + CALL_OFF_TIME;
        for child in members.iter_mut().filter_map(|member| member.child.as_mut()) {
            if !until(deadline, || matches!(child.try_wait(), Ok(Some(_)))) {
                // An error means that it has ended after all.
                let _ = child.kill();
                let _ = child.wait();
            }
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
    let in_part = |chunk: &u64| part.range.contains(&chunk.saturating_mul(aze_receipt::CHUNK_BYTES));
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
    if let Some(child) = &mut member.child {
        // An error means that it has ended already.
        let _ = child.kill();
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
fn write(mut input: ChildStdin, lines: &Receiver<Vec<u8>>) {
    while let Ok(line) = lines.recv() {
        if input.write_all(&line).and_then(|()| input.flush()).is_err() {
            // The end of its output tells.
            return;
        }
    }
}

/// The last bytes of what a launcher or worker has written to its standard error.
fn last_words(mut errors: ChildStderr) -> String {
    let (mut words, mut block) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = errors.read(&mut block) {
        words.extend_from_slice(&block[..count]);
        let more = words.len().saturating_sub(WORDS_BYTES_MAX);
        words.drain(..more);
    }
    String::from_utf8_lossy(&words).trim().replace('\n', "\n  ")
}

/// Takes what a worker says, until it says no more.
fn listen(inner: &Inner, (start, at): (u64, usize), output: ChildStdout, words: &Receiver<String>) {
    let mut reader = BufReader::new(output);
    let mut is_known = false;
    let why = loop {
        let line = match message::next(&mut reader) {
            Ok(Some(line)) => line,
            Ok(None) => {
                let words = words.recv_timeout(WORDS_TIME).unwrap_or_default();
                break if words.is_empty() { "it has ended".into() } else { format!("it has ended: {words}") };
            }
            Err(error) => break format!("its words cannot be read: {error}"),
        };
        let said = message::read::<Said>(&line);
        let mut state = inner.state.lock();
        if state.start != start || state.members.is_empty() {
            return;
        }
        let member = &mut state.members[at];
        member.heard = Instant::now();
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
                    let _ = tell.send(said);
                }
            }
        }
        inner.changed.notify_all();
    };
    let mut state = inner.state.lock();
    if state.start == start && !state.members.is_empty() {
        lose(&mut state, at, why);
        inner.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn nodes_are_all_so_many_or_those_that_are_named() {
        assert_eq!(parse("all"), Ok(Wanted::All));
        assert_eq!(parse("3"), Ok(Wanted::Count(3)));
        assert_eq!(parse("n1, n2,n1"), Ok(Wanted::Named(named(&["n1", "n2"]))));
        for text in ["", "0", "n1,,n2", ","] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_nodes_of_the_volume_are_taken() {
        let three = || named(&["a", "b", "c"]);
        let chosen = |wanted: &Wanted, all: Vec<String>| choose(wanted, all).map_err(|trouble| trouble.exit);
        assert_eq!(chosen(&Wanted::All, three()), Ok(three()));
        assert_eq!(chosen(&Wanted::All, Vec::new()), Ok(Vec::new()), "this machine alone");
        assert_eq!(chosen(&Wanted::Count(1), Vec::new()), Ok(Vec::new()));
        assert_eq!(chosen(&Wanted::Count(2), three()), Ok(named(&["a", "b"])));
        assert_eq!(chosen(&Wanted::Count(4), three()), Err(Exit::Usage));
        assert_eq!(chosen(&Wanted::Count(2), Vec::new()), Err(Exit::Usage));
        assert_eq!(chosen(&Wanted::Named(named(&["c"])), three()), Ok(named(&["c"])));
        assert_eq!(chosen(&Wanted::Named(named(&["d"])), three()), Err(Exit::Usage));
        let many: Vec<String> = (0..100).map(|at| format!("n{at}")).collect();
        assert_eq!(chosen(&Wanted::All, many.clone()).map(|some| some.len()), Ok(NODES_MAX));
        assert_eq!(chosen(&Wanted::Named(many.clone()), many), Err(Exit::Usage));
    }
}
