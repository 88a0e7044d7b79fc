//! The processes of a run, seen from the coordinator: started together, heard one word at a time,
//! and ended whatever happens. A rank that dies closes its socket, which is heard at once; one that
//! hangs is given up at the phase's deadline.

use super::layout::Phase;
use super::link::{Link, Order, Said, Setup, say};
use crate::exit::{Exit, Outcome, Trouble};
use crate::{process, up};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long a process may take to end by itself, and after it was killed.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// What is waited for.
enum Event {
    /// A rank said something.
    Said(u32, Outcome<Said>),
    /// A rank's socket has ended.
    Gone(u32),
    /// The user wants it to end.
    Interrupted,
}

/// All processes of a run.
pub struct Ranks {
    children: Vec<(Child, UnixStream)>,
    events: Receiver<Event>,
    /// How long a phase may take.
    phase_time_max: Duration,
}

impl Ranks {
    /// Starts as many processes as `setup` says and waits until each is ready. Signals that end the
    /// coordinator have to be held already: they are heard from now on.
    pub fn start(setup: &Setup, phase_time_max: Duration) -> Outcome<Ranks> {
        let (heard, events) = channel();
        let mut ranks = Ranks { children: Vec::new(), events, phase_time_max };
        let interrupts = heard.clone();
        std::thread::spawn(move || {
            // Nobody listens any more when the run is over.
            while aze_fuse::signals::wait().is_ok() && interrupts.send(Event::Interrupted).is_ok() {}
        });
        for rank in 0..setup.procs {
            ranks.children.push(start(rank, &heard)?);
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
    pub fn write(&mut self, phase: Phase, count_max: u64) -> Outcome<u64> {
        self.order_all(&Order::Write { phase, count_max }, &phase)?;
        let deadline = Instant::now() + self.phase_time_max;
        let mut most = 0;
        for _ in 0..self.children.len() {
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
        let mut idle: Vec<u32> = (0..self.children.len() as u32).rev().collect();
        let mut waiting = vec![String::new()];
        let (mut looked, mut found) = (Some(0), 0);
        loop {
            while !waiting.is_empty()
                && let Some(rank) = idle.pop()
            {
                let dir = waiting.pop().unwrap_or_default();
                self.order(rank, &Order::Walk { dir, since_ns }, Phase::Find)?;
            }
            if idle.len() == self.children.len() {
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
        (0..self.children.len() as u32).try_for_each(|rank| self.order(rank, order, doing))
    }

    fn order(&mut self, rank: u32, order: &Order, doing: impl fmt::Display) -> Outcome<()> {
        let said = say(&mut self.children[rank as usize].1, order);
        // One that has gone may have said why before.
        said.map_err(|_| self.last_words(rank, &doing))
    }

    fn all_done(&mut self, doing: impl fmt::Display) -> Outcome<()> {
        let deadline = Instant::now() + self.phase_time_max;
        for _ in 0..self.children.len() {
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
                Err(Trouble::new(up::exit_of(exit), format!("rank {rank}, {doing}: {text}")))
            }
            Ok(Event::Said(rank, Ok(said))) => Ok((rank, said)),
            Ok(Event::Said(rank, Err(trouble))) => Err(trouble.during(format!("rank {rank}, {doing}"))),
            Ok(Event::Gone(rank)) => Err(self.died(rank, doing)),
            Ok(Event::Interrupted) => Err(Trouble::new(Exit::Again, format!("{doing}: interrupted"))),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let (limit, count) = (self.phase_time_max.as_secs(), self.children.len());
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
        let child = &mut self.children[rank as usize].0;
        process::until(Instant::now() + END_TIME_MAX, || !matches!(child.try_wait(), Ok(None)));
        let how = match child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "it closed its socket".into(),
        };
        Trouble::new(Exit::Fatal, format!("rank {rank} (process {}) ended during {doing}: {how}", child.id()))
    }

    /// Lets all end by themselves.
    pub fn end(mut self) {
        for (_, socket) in &self.children {
            // It is closed already if the rank has gone.
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
        let deadline = Instant::now() + END_TIME_MAX;
        for (child, _) in &mut self.children {
            process::until(deadline, || !matches!(child.try_wait(), Ok(None)));
        }
    }
}

impl Drop for Ranks {
    /// Kills those that still run: nobody touches the files when this returns.
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // An error means that it has ended.
            let _ = child.kill();
        }
        let deadline = Instant::now() + END_TIME_MAX;
        for (child, _) in &mut self.children {
            process::until(deadline, || !matches!(child.try_wait(), Ok(None)));
        }
    }
}

fn start(rank: u32, heard: &Sender<Event>) -> Outcome<(Child, UnixStream)> {
    let failed = |error: &std::io::Error| Trouble::local(format!("bench io500: start rank {rank}"), error);
    let (ours, its) = UnixStream::pair().map_err(|error| failed(&error))?;
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    // A key that interrupts the shell's job reaches the coordinator only, which ends the ranks.
    command.args(["bench", "io500-rank"]).stdin(OwnedFd::from(its)).process_group(0);
    let child = command.spawn().map_err(|error| failed(&error))?;
    let mut link = Link::new(ours.try_clone().map_err(|error| failed(&error))?)?;
    let heard = heard.clone();
    std::thread::spawn(move || {
        loop {
            let event = match link.hear::<Said>() {
                Ok(Some(said)) => Event::Said(rank, Ok(said)),
                Ok(None) => Event::Gone(rank),
                Err(trouble) => Event::Said(rank, Err(trouble)),
            };
            let is_last = !matches!(event, Event::Said(_, Ok(_)));
            if heard.send(event).is_err() || is_last {
                return;
            }
        }
    });
    Ok((child, ours))
}

fn out_of_turn(doing: &impl fmt::Display, rank: u32, said: &Said) -> Trouble {
    Trouble::new(Exit::Fatal, format!("rank {rank}, {doing}: it said {said:?}, which was not asked"))
}
