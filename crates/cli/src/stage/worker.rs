//! `aze stage worker`: copies parts of files, and reads them back, for an 'aze stage' on another node.
//!
//! It opens files that exist, and makes, renames and removes none. It ends with its input, whatever it is doing.

use super::message::{self, FORM, Order, Said, Task};
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::{Place, VolumePath};
use crate::session::Sessions;
use crate::sys;
use aze_copy::Watch;
use aze_copy::stage::nodes::{Copied, Part, copy_part, look_for, reread_part};
use aze_copy::tree::{Spot, Tree};
use std::ffi::OsStr;
use std::io::{BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often it says that it is there.
const BEAT: Duration = Duration::from_secs(1);

/// Tasks at the same time, at most, whatever it is told.
const JOBS_MAX: usize = super::JOBS_MAX as usize;

/// Work for an 'aze stage' on another node, which starts this.
///
/// It reads tasks from its standard input, as 'aze stage --nodes' sends them, and writes what it has done to its
/// standard output. It ends with its input.
#[derive(clap::Args)]
pub struct Args {}

/// Both sides of a stage.
struct Sides {
    from: Arc<dyn Tree>,
    to: Arc<dyn Tree>,
}

impl Sides {
    fn from(&self, path: &[u8]) -> Spot {
        Spot { tree: self.from.clone(), path: path.to_vec() }
    }

    fn to(&self, path: &[u8]) -> Spot {
        Spot { tree: self.to.clone(), path: path.to_vec() }
    }
}

/// Runs the command.
pub fn run(_: &Args) -> Outcome<Exit> {
    let mut input = BufReader::new(std::io::stdin());
    let failed = |error: &std::io::Error| Trouble::local("read what to do from standard input", error);
    let Some(line) = message::next(&mut input).map_err(|error| failed(&error))? else { return Ok(Exit::Done) };
    let mut sessions = Sessions::default();
    let (sides, jobs) = match begin(&line, &mut sessions) {
        Ok(begun) => begun,
        Err((is_elsewhere, trouble)) => {
            say(&Said::Refused { is_elsewhere, exit: trouble.exit as u8, text: trouble.text });
            return Ok(trouble.exit);
        }
    };
    say(&Said::Ready { form: FORM, system: system() });
    let (tasks, queue) = sync_channel(jobs);
    let shared = Arc::new((sides, Mutex::new(queue), AtomicUsize::new(0)));
    let mut threads = Vec::new();
    for _ in 0..jobs {
        let shared = shared.clone();
        let work = move || work(&shared.0, &shared.1, &shared.2);
        let started = std::thread::Builder::new().name("aze-stage-worker".into()).spawn(work);
        threads.push(started.map_err(|error| Trouble::local("start a thread", &error))?);
    }
    let (over, is_over) = channel::<()>();
    let beat = move || {
        while is_over.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
            say(&Said::Alive);
        }
    };
    std::thread::Builder::new()
        .name("aze-beat".into())
        .spawn(beat)
        .map_err(|error| Trouble::local("start a thread", &error))?;
    while let Some(line) = message::next(&mut input).map_err(|error| failed(&error))? {
        let Some(task) = message::read::<Task>(&line) else {
            return Err(Trouble::new(Exit::Fatal, "a line of standard input is no task: 'aze stage' starts this"));
        };
        shared.2.fetch_add(1, Ordering::Relaxed);
        if tasks.send(task).is_err() {
            return Err(Trouble::new(Exit::Fatal, "the threads that copy have ended: a defect in aze"));
        }
    }
    if shared.2.load(Ordering::Relaxed) > 0 {
        // The command is gone, or has given this node up: what is half done has a name that is removed.
        std::process::exit(Exit::Done as i32);
    }
    drop((tasks, over));
    Ok(Exit::Done)
}

/// Opens both sides, and looks at the probe. An error tells whether other files are in its place.
fn begin(line: &[u8], sessions: &mut Sessions) -> Result<(Sides, usize), (bool, Trouble)> {
    let order: Order = message::read(line).ok_or_else(|| {
        let text = "the first line of standard input is no order of this version: 'aze stage' starts this";
        (false, Trouble::usage(text))
    })?;
    if order.stage_worker != FORM {
        let (theirs, own) = (&order.program, env!("CARGO_PKG_VERSION"));
        let text = format!("this node has aze {own}, which is told by aze {theirs}: give all nodes the same version");
        return Err((false, Trouble::usage(text)));
    }
    // Before the first thread starts, since each inherits this.
    sys::be_nice(order.nice).map_err(|error| (false, Trouble::local("lower the priority", &error)))?;
    let probe = order.probe().ok_or_else(|| (false, Trouble::usage("a probe without a path: a defect in aze")))?;
    let (from, to) = (OsStr::from_bytes(&probe.from.0), OsStr::from_bytes(&probe.to));
    let mut open = |volume: &Option<String>, path: &OsStr| {
        let place = match volume {
            Some(name) => Place::Volume(VolumePath { volume: Some(name.clone()), path: path.as_bytes().to_vec() }),
            None => Place::Local(PathBuf::from(path)),
        };
        place.spot(sessions).map_err(|trouble| (false, trouble))
    };
    let (from, to) = (open(&order.volumes[0], from)?, open(&order.volumes[1], to)?);
    look_for(&probe, &from, &to).map_err(|trouble| (trouble.exit == Exit::Caller, trouble))?;
    Ok((Sides { from: from.tree, to: to.tree }, order.jobs.clamp(1, JOBS_MAX)))
}

/// The number of the running system (random(4), "boot_id"): nodes with the same one share a page cache.
fn system() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn work(sides: &Sides, queue: &Mutex<Receiver<Task>>, at_work: &AtomicUsize) {
    let mut memory = Vec::new();
    loop {
        let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        let defect = || Trouble::new(Exit::Fatal, "a task without a part: a defect in aze");
        let done = task.part().ok_or_else(defect).and_then(|part| perform(&task, &part, sides, &mut memory));
        let id = task.id;
        at_work.fetch_sub(1, Ordering::Relaxed);
        say(&done.unwrap_or_else(|trouble| Said::Failed { id, exit: trouble.exit as u8, text: trouble.text }));
    }
}

fn perform(task: &Task, part: &Part, sides: &Sides, memory: &mut Vec<u8>) -> Outcome<Said> {
    let (from, to, id) = (sides.from(&part.from), sides.to(&part.to), task.id);
    if task.read_back {
        let (sums, how) = reread_part(&to, part, &Quiet)?;
        return Ok(Said::Done { id, sums: Some(message::of_sums(&sums)), read_back: Some(how.word().into()) });
    }
    let sums = match copy_part(&from, &to, part, &Quiet, memory)? {
        Copied::Sums(sums) => Some(message::of_sums(&sums)),
        Copied::Changed => None,
    };
    Ok(Said::Done { id, sums, read_back: None })
}

/// Writes a line. If the command does not read it any more, this ends.
fn say(said: &Said) {
    let mut out = std::io::stdout().lock();
    if out.write_all(&message::line(said)).and_then(|()| out.flush()).is_err() {
        std::process::exit(Exit::Again as i32);
    }
}

/// The command tells how it goes.
struct Quiet;

impl Watch for Quiet {
    fn is_over(&self) -> bool {
        false
    }

    fn expect(&self, _: u64) {}

    fn copied(&self, _: u64) {}

    fn file(&self, _: &Spot, _: &Spot) {}

    fn dir(&self) {}

    fn lacks(&self, _: &Trouble) {}

    fn failed(&self, _: &Trouble) {}
}
