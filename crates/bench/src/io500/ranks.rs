//! The processes of a run, seen from the coordinator: started together, here or by a launcher on other
//! nodes, heard one word at a time, and always ended. Each is one rank, or all ranks of its node
//! are threads of one. A process that dies ends its output, which is heard at once; one that hangs is given
//! up at the phase's deadline.

use super::layout::Phase;
use super::link::{self, Order, Said, Setup, say};
use crate::program::Program;
use aze_io::real::until;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::fmt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a process may take to end by itself, and after it was killed.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Where ranks run.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Each node's name; none is this node, without a launcher.
    pub hosts: Vec<String>,
    /// How a program is run on a node, with `{host}` for its name.
    pub launcher: Vec<String>,
    /// This program there.
    pub program: String,
}

impl Nodes {
    /// How many nodes there are.
    pub fn count(&self) -> u32 {
        self.hosts.len().max(1) as u32
    }

    /// How many of so many ranks run on one node.
    pub fn share(&self, procs: u32) -> u32 {
        procs.div_ceil(self.count())
    }

    /// The node of a rank: neighbours share one, as they do where MPI fills node after node.
    fn host(&self, rank: u32, procs: u32) -> Option<&str> {
        self.hosts.get((rank / self.share(procs)) as usize).map(String::as_str)
    }

    fn argv(&self, rank: u32, procs: u32) -> Vec<String> {
        let host = self.host(rank, procs);
        let launcher = self.launcher.iter().filter_map(|word| Some(word.replace("{host}", host?)));
        let words = ["bench", "io500-rank"].map(String::from);
        launcher.chain([self.program.clone()]).chain(words).collect()
    }
}

/// Signals that end the coordinator, heard by one thread for all runs.
pub struct Interrupts(Arc<Mutex<Listener>>);

#[derive(Default)]
struct Listener {
    was_interrupted: bool,
    run: Option<Sender<Event>>,
}

impl Interrupts {
    /// Hears them from now on; they have to be held already.
    pub fn hear(program: &'static dyn Program) -> Interrupts {
        let listener = Arc::new(Mutex::new(Listener::default()));
        let ours = listener.clone();
        std::thread::spawn(move || {
            while program.wait_for_signal().is_ok() {
                let mut listener = lock(&ours);
                listener.was_interrupted = true;
                // Between two runs no rank runs; the next run looks.
                let _ = listener.run.as_ref().map(|run| run.send(Event::Interrupted));
            }
        });
        Interrupts(listener)
    }

    fn tell(&self, run: &Sender<Event>) {
        let mut listener = lock(&self.0);
        if listener.was_interrupted {
            // It is received as soon as anything is.
            let _ = run.send(Event::Interrupted);
        }
        listener.run = Some(run.clone());
    }
}

fn lock(listener: &Mutex<Listener>) -> MutexGuard<'_, Listener> {
    listener.lock().expect("nothing panics with this lock")
}

/// The events that the coordinator waits for.
enum Event {
    /// A rank said something.
    Said(u32, Outcome<Said>),
    /// A rank's output has ended.
    Gone(u32),
    /// The user wants it to end.
    Interrupted,
}

/// All processes of a run.
pub struct Ranks {
    procs: u32,
    /// Ranks that are threads of one process.
    each: u32,
    children: Vec<(Child, Option<ChildStdin>)>,
    /// They are on this node, each a child of this process.
    are_here: bool,
    events: Receiver<Event>,
    /// How long a phase may take.
    phase_time_max: Duration,
}

impl Ranks {
    /// Starts as many ranks as `setup` says, as processes or as threads of one process on each node, and
    /// waits until each is ready.
    pub fn start(
        setup: &Setup,
        threads: bool,
        nodes: &Nodes,
        interrupts: &Interrupts,
        phase_time_max: Duration,
    ) -> Outcome<Ranks> {
        let (heard, events) = channel();
        let (procs, each) = (setup.procs, if threads { nodes.share(setup.procs) } else { 1 });
        let are_here = nodes.hosts.is_empty();
        let mut ranks = Ranks { procs, each, children: Vec::new(), are_here, events, phase_time_max };
        interrupts.tell(&heard);
        for first in (0..procs).step_by(each as usize) {
            ranks.children.push(start(first, &nodes.argv(first, procs), &heard)?);
        }
        for rank in 0..setup.procs {
            ranks.order(rank, &Order::Setup(Setup { rank, ..setup.clone() }), "start")?;
        }
        ranks.all_done("start")?;
        Ok(ranks)
    }

    /// Has all ranks do the same, and waits until they have.
    pub fn all(&mut self, order: &Order, doing: impl fmt::Display) -> Outcome<()> {
        self.order_all(order, &doing)?;
        self.all_done(doing)
    }

    /// Has all ranks write until the stonewall and on to what the fastest has reached; gives that.
    pub fn write(&mut self, phase: Phase, count_max: u64, exactly: bool) -> Outcome<u64> {
        self.order_all(&Order::Write { phase, count_max, exactly }, &phase)?;
        let deadline = Instant::now() + self.phase_time_max;
        let mut most = 0;
        for _ in 0..self.procs {
            match self.hear(&phase, deadline)? {
                (_, Said::Reached(count)) => most = count.max(most),
                (rank, said) => return Err(out_of_turn(&phase, rank, &said)),
            }
        }
        self.all(&Order::UpTo(most), phase)?;
        Ok(most)
    }

    /// Searches a tree, each directory by whichever rank is idle; gives the entries looked at, if
    /// they were counted, and those found.
    pub fn search(&mut self, since_ns: u64) -> Outcome<(Option<u64>, u64)> {
        let deadline = Instant::now() + self.phase_time_max;
        let mut idle: Vec<u32> = (0..self.procs).rev().collect();
        let mut waiting = vec![String::new()];
        let (mut looked, mut found) = (Some(0), 0);
        loop {
            while !waiting.is_empty()
                && let Some(rank) = idle.pop()
            {
                let dir = waiting.pop().unwrap_or_default();
                self.order(rank, &Order::Walk { dir, since_ns }, Phase::Find)?;
            }
            if idle.len() == self.procs as usize {
                return Ok((looked, found));
            }
            match self.hear(&Phase::Find, deadline)? {
                (rank, Said::Walked(walked)) => {
                    looked = looked.zip(walked.looked).map(|(all, more)| all + more);
                    found += walked.found;
                    waiting.extend(walked.dirs);
                    idle.push(rank);
                }
                (rank, said) => return Err(out_of_turn(&Phase::Find, rank, &said)),
            }
        }
    }

    fn order_all(&mut self, order: &Order, doing: &impl fmt::Display) -> Outcome<()> {
        (0..self.procs).try_for_each(|rank| self.order(rank, order, doing))
    }

    fn order(&mut self, rank: u32, order: &Order, doing: impl fmt::Display) -> Outcome<()> {
        let said = match &mut self.children[(rank / self.each) as usize].1 {
            Some(input) => say(input, rank, order),
            None => Err(Trouble::new(Exit::Fatal, format!("rank {rank}: the run is over"))),
        };
        // One that has gone may have said why before.
        said.map_err(|_| self.last_words(rank, &doing))
    }

    fn all_done(&mut self, doing: impl fmt::Display) -> Outcome<()> {
        let deadline = Instant::now() + self.phase_time_max;
        for _ in 0..self.procs {
            match self.hear(&doing, deadline)? {
                (_, Said::Done) => {}
                (rank, said) => return Err(out_of_turn(&doing, rank, &said)),
            }
        }
        Ok(())
    }

    /// The next word of any rank; a failure is an error.
    fn hear(&mut self, doing: &impl fmt::Display, deadline: Instant) -> Outcome<(u32, Said)> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.events.recv_timeout(left) {
            Ok(Event::Said(rank, Ok(Said::Failed { exit, text }))) => {
                Err(Trouble::new(Exit::of_number(exit), format!("rank {rank}, {doing}: {text}")))
            }
            Ok(Event::Said(rank, Ok(said))) => Ok((rank, said)),
            Ok(Event::Said(rank, Err(trouble))) => Err(trouble.during(format!("rank {rank}, {doing}"))),
            Ok(Event::Gone(rank)) => Err(self.died(rank, doing)),
            Ok(Event::Interrupted) => Err(Trouble::new(Exit::Again, format!("{doing}: interrupted"))),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let (limit, count) = (self.phase_time_max.as_secs(), self.procs);
                let text =
                    format!("{doing}: not all {count} ranks were done after {limit} s: the place is too slow or hangs");
                Err(Trouble::new(Exit::Again, text))
            }
        }
    }

    /// Why a rank does not take orders any more.
    fn last_words(&mut self, rank: u32, doing: &impl fmt::Display) -> Trouble {
        let deadline = Instant::now() + END_TIME_MAX;
        loop {
            match self.hear(doing, deadline) {
                Ok(_) => {}
                Err(trouble) => return trouble.during(format!("rank {rank} takes no orders")),
            }
        }
    }

    fn died(&mut self, rank: u32, doing: &impl fmt::Display) -> Trouble {
        let child = &mut self.children[(rank / self.each) as usize].0;
        until(Instant::now() + END_TIME_MAX, || !matches!(child.try_wait(), Ok(None)));
        let how = match child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "it closed its output".into(),
        };
        Trouble::new(Exit::Fatal, format!("rank {rank} (process {}) ended during {doing}: {how}", child.id()))
    }

    /// Lets all end by themselves.
    pub fn end(mut self) {
        self.wait();
    }

    /// Closes their inputs, at which they end, and waits.
    fn wait(&mut self) {
        self.children.iter_mut().for_each(|(_, input)| drop(input.take()));
        let deadline = Instant::now() + END_TIME_MAX;
        for (child, _) in &mut self.children {
            until(deadline, || !matches!(child.try_wait(), Ok(None)));
        }
    }
}

impl Drop for Ranks {
    /// Ends those that still run: no rank touches the files when this returns. On another node that
    /// takes a rank's own doing, as only its launcher can be killed from here.
    fn drop(&mut self) {
        if !self.are_here {
            self.wait();
        }
        for (child, _) in &mut self.children {
            // An error means that it has ended.
            let _ = child.kill();
        }
        self.wait();
    }
}

fn start(rank: u32, argv: &[String], heard: &Sender<Event>) -> Outcome<(Child, Option<ChildStdin>)> {
    let failed =
        |error: &std::io::Error| Trouble::local(format!("bench io500: start rank {rank}: run {}", argv[0]), error);
    let mut command = Command::new(&argv[0]);
    // A key that interrupts the shell's job reaches the coordinator only, which ends the ranks.
    command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let input = child.stdin.take();
    let mut next = link::lines(child.stdout.take().expect("the child was given a pipe"));
    let heard = heard.clone();
    std::thread::spawn(move || {
        loop {
            let event = match next() {
                // A launcher may print a greeting; it is none of ours.
                Some(line) if link::rank_of(&line).is_none() => continue,
                Some(line) => match link::parse(&line) {
                    Ok((rank, said)) => Event::Said(rank, Ok(said)),
                    Err(trouble) => Event::Said(rank, Err(trouble)),
                },
                None => Event::Gone(rank),
            };
            let is_last = !matches!(event, Event::Said(_, Ok(_)));
            if heard.send(event).is_err() || is_last {
                return;
            }
        }
    });
    Ok((child, input))
}

fn out_of_turn(doing: &impl fmt::Display, rank: u32, said: &Said) -> Trouble {
    Trouble::new(Exit::Fatal, format!("rank {rank}, {doing}: it said {said:?}, which was not asked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_filled_one_after_the_other() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_string()).collect::<Vec<_>>();
        let nodes = Nodes { hosts: words(&["a", "b"]), launcher: words(&["ssh", "{host}"]), program: "aze".into() };
        let hosts: Vec<_> = (0..5).map(|rank| nodes.host(rank, 5)).collect();
        assert_eq!(hosts, [Some("a"), Some("a"), Some("a"), Some("b"), Some("b")]);
        assert_eq!(nodes.argv(3, 5), words(&["ssh", "b", "aze", "bench", "io500-rank"]));
        let here = Nodes { hosts: Vec::new(), ..nodes };
        assert_eq!((here.count(), here.share(4)), (1, 4));
        assert_eq!(here.argv(3, 4), words(&["aze", "bench", "io500-rank"]));
    }
}
