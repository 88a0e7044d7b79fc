//! A worker of a stage: copies parts of files, and reads them back, for the command on another node.
//!
//! It opens files that exist, and makes, renames and removes none. It ends with its input, also in the middle of a task.

use super::message::{self, FORM, Order, Said, Task};
use crate::Watch;
use crate::stage::nodes::{Copied, Part, copy_part, look_for, reread_part};
use crate::tree::Spot;
use aze_io::threads::{self, Late, Receiver, Sender, Thread, queue};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How often it says that it is there.
const BEAT: Duration = Duration::from_secs(1);

/// Tasks at the same time, at most, however many the command asks for.
pub const JOBS_MAX: u16 = 256;

/// The process that a worker is.
pub trait Process: Send + Sync {
    /// The number of its running system, by which nodes are told apart: those with the same one share a page cache. Empty if it has none.
    fn system(&self) -> String;
    /// Gives the calling thread this nice value, and those that it starts.
    ///
    /// # Errors
    /// What the system said.
    fn be_nice(&self, nice: i32) -> Outcome<()>;
    /// A path of a volume, or of this node where none is named.
    ///
    /// # Errors
    /// The volume cannot be reached.
    fn open(&self, volume: Option<&str>, path: &[u8]) -> Outcome<Spot>;
    /// Ends it at once, in the middle of its tasks. One that is simulated goes on for some steps, which must do no harm either.
    fn die(&self, exit: Exit);
    /// As [`Watch::turn`], until `is_over`.
    fn turn(&self, _is_over: &dyn Fn() -> bool) {}
}

/// What the threads of a worker share.
struct Worker {
    process: Arc<dyn Process>,
    from: Spot,
    to: Spot,
    at_work: AtomicUsize,
    is_over: AtomicBool,
    words: Arc<Sender<Said>>,
}

/// Does what the command says in `input`, and tells what came of it in `output`. Ends with `input`.
///
/// # Errors
/// The input is none of this version, or cannot be read.
pub fn serve(process: &Arc<dyn Process>, input: impl Read, output: Box<dyn Write + Send>) -> Outcome<Exit> {
    let mut input = BufReader::new(input);
    let failed = |error: &std::io::Error| Trouble::local("read what to do from standard input", error);
    let Some(line) = message::next(&mut input).map_err(|error| failed(&error))? else { return Ok(Exit::Done) };
    let begun = begin(&line, process.as_ref());
    // Its threads inherit the nice value.
    let (words, to_write) = queue(1);
    let (words, teller) = (Arc::new(words), process.clone());
    let mut threads = vec![start("aze-words", move || tell(output, &to_write, teller.as_ref()))?];
    let (from, to, jobs) = match begun {
        Ok(begun) => begun,
        Err((is_elsewhere, trouble)) => {
            let _ = words.send(Said::Refused { is_elsewhere, exit: trouble.exit as u8, text: trouble.text });
            drop(words);
            join(threads);
            return Ok(trouble.exit);
        }
    };
    let _ = words.send(Said::Ready { form: FORM, system: process.system() });
    let (at_work, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let worker = Arc::new(Worker { process: process.clone(), from, to, at_work, is_over, words });
    let (tasks, to_do) = queue(jobs);
    let to_do = Arc::new(to_do);
    for _ in 0..jobs {
        let (worker, to_do) = (worker.clone(), to_do.clone());
        threads.push(start("aze-stage-worker", move || worker.work(&to_do))?);
    }
    let (over, is_over) = queue::<()>(1);
    let words = worker.words.clone();
    let beat = move || while is_over.recv_in(BEAT) == Err(Late) && words.send(Said::Alive).is_ok() {};
    threads.push(start("aze-beat", beat)?);
    if let Err(trouble) = worker.take(&mut input, &tasks) {
        worker.is_over.store(true, Ordering::Relaxed);
        return Err(trouble);
    }
    if worker.at_work.load(Ordering::Relaxed) > 0 {
        // The command is gone, or has given this node up: unfinished copies have names that are removed.
        worker.is_over.store(true, Ordering::Relaxed);
        process.die(Exit::Done);
    }
    drop((tasks, over, worker));
    join(threads);
    Ok(Exit::Done)
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome<Thread> {
    threads::start(name, work).map_err(|error| Trouble::local("start a thread", &error))
}

fn join(threads: Vec<Thread>) {
    // One that has panicked has told so, and ended the process.
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

/// Opens both sides, looks at the probe, and tells how many tasks there may be. An error tells whether other files are in its place.
fn begin(line: &[u8], process: &dyn Process) -> Result<(Spot, Spot, usize), (bool, Trouble)> {
    let order: Order = message::read(line).ok_or_else(|| {
        let text = "the first line of standard input is no order of this version: 'aze stage' starts this";
        (false, Trouble::usage(text))
    })?;
    if order.stage_worker != FORM {
        let (theirs, own) = (&order.program, env!("CARGO_PKG_VERSION"));
        let text = format!("this node has aze {own}, which is told by aze {theirs}: give all nodes the same version");
        return Err((false, Trouble::usage(text)));
    }
    let probe = order.probe().ok_or_else(|| (false, Trouble::usage("a probe without a path: a defect in aze")))?;
    let open = |volume: &Option<String>, path: &[u8]| process.open(volume.as_deref(), path);
    // Before the first thread starts, since each inherits this.
    let opened = process
        .be_nice(order.nice)
        .and_then(|()| Ok((open(&order.volumes[0], &probe.from.0)?, open(&order.volumes[1], &probe.to)?)));
    let (from, to) = opened.map_err(|trouble| (false, trouble))?;
    look_for(&probe, &from, &to).map_err(|trouble| (trouble.exit == Exit::Caller, trouble))?;
    Ok((from, to, order.jobs.clamp(1, JOBS_MAX.into())))
}

/// Writes the words line by line. If the command does not read it any more, the process ends.
fn tell(mut output: Box<dyn Write + Send>, words: &Receiver<Said>, process: &dyn Process) {
    while let Some(said) = words.recv() {
        if output.write_all(&message::line(&said)).and_then(|()| output.flush()).is_err() {
            process.die(Exit::Again);
            return;
        }
    }
}

impl Worker {
    /// Takes tasks until there are no more.
    fn take(&self, input: &mut BufReader<impl Read>, tasks: &Sender<Task>) -> Outcome<()> {
        let failed = |error: &std::io::Error| Trouble::local("read what to do from standard input", error);
        while let Some(line) = message::next(input).map_err(|error| failed(&error))? {
            let Some(task) = message::read::<Task>(&line) else {
                return Err(Trouble::new(Exit::Fatal, "a line of standard input is no task: 'aze stage' starts this"));
            };
            self.at_work.fetch_add(1, Ordering::Relaxed);
            if tasks.send(task).is_err() {
                return Err(Trouble::new(Exit::Fatal, "the threads that copy have ended: a defect in aze"));
            }
        }
        Ok(())
    }

    fn work(&self, to_do: &Receiver<Task>) {
        let mut memory = Vec::new();
        while let Some(task) = to_do.recv() {
            let defect = || Trouble::new(Exit::Fatal, "a task without a part: a defect in aze");
            let done = task.part().ok_or_else(defect).and_then(|part| self.perform(&task, &part, &mut memory));
            let id = task.id;
            self.at_work.fetch_sub(1, Ordering::Relaxed);
            let said = done.unwrap_or_else(|trouble| Said::Failed { id, exit: trouble.exit as u8, text: trouble.text });
            if self.words.send(said).is_err() {
                // The command does not read it any more.
                return;
            }
        }
    }

    fn perform(&self, task: &Task, part: &Part, memory: &mut Vec<u8>) -> Outcome<Said> {
        let spot = |side: &Spot, path: &[u8]| Spot { tree: side.tree.clone(), path: path.to_vec() };
        let (from, to, id) = (spot(&self.from, &part.from), spot(&self.to, &part.to), task.id);
        if task.read_back {
            let (sums, how) = reread_part(&to, part, self)?;
            return Ok(Said::Done { id, sums: Some(message::of_sums(&sums)), read_back: Some(how.word().into()) });
        }
        let sums = match copy_part(&from, &to, part, self, memory)? {
            Copied::Sums(sums) => Some(message::of_sums(&sums)),
            Copied::Changed => None,
        };
        Ok(Said::Done { id, sums, read_back: None })
    }
}

/// The command tells how it goes.
impl Watch for Worker {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn expect(&self, _: u64) {}

    fn copied(&self, _: u64) {}

    fn file(&self, _: &Spot, _: &Spot) {}

    fn dir(&self) {}

    fn lacks(&self, _: &Trouble) {}

    fn failed(&self, _: &Trouble) {}

    fn turn(&self) {
        self.process.turn(&|| self.is_over());
    }
}
