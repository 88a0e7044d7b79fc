//! Staging again and again while programs run: when a round is begun, which files it leaves out, and when it is broken off.
//!
//! Each round copies all objects that have changed since the last one, with a receipt of its own, and none is made where
//! nothing has changed. One round is at work at a time; one that takes longer than the period delays the next.
//!
//! The last round has to be done in time, so it has the command's priority, and takes open files, too. What programs leave to another
//! round may be nothing, so one that is still at work when the last one is due is broken off, and the last one goes on from there.
//!
//! Time, priorities and words for people come from [`Program`].

use super::ledger::{self, Ledger};
use super::standing::{Standing, look};
use super::{Order, Spot};
use aze_words::exit::{Exit, Outcome};
use std::time::Duration;

/// How often the dirty bytes are compared with the time that is left.
const CHECK: Duration = Duration::from_secs(60);

/// Units of work per second until a round has shown how many there are: a slow file system.
pub const PACE_DEFAULT: f64 = (20 << 20) as f64;

/// The last round may take so many times longer than the pace of the others tells.
const CAUTION: f64 = 1.5;

/// Which share of the cores a round gets beside programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The one that the command was started with.
    Same,
    /// The lowest one: programs on the same cores come first.
    Low,
}

/// The end that the last round has to be in time for.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// By the clock of the [`Program`].
    pub at: Duration,
    /// The last round is to be done so much earlier.
    pub margin: Duration,
}

/// The rounds asked for.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// From the beginning of a round to that of the next; without it there are the first one and the last one.
    pub every: Option<Duration>,
    /// Without it rounds go on until the program is asked to end.
    pub end: Option<End>,
    /// Of all rounds; if none is asked for, only the last one has that of the command.
    pub priority: Option<Priority>,
    /// Files that are open for writing are left to later rounds, and to the last one.
    pub closed_only: bool,
}

/// One round.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Its priority.
    pub priority: Priority,
    /// It is broken off at this moment.
    pub until: Option<Duration>,
    /// How long it may take by the pace so far, with some for caution.
    pub needed: Duration,
    /// It is the one before the end.
    pub is_last: bool,
}

/// How the rounds ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// The code of the last round that was not broken off.
    pub exit: Exit,
    /// Rounds that had something to copy.
    pub rounds: u64,
    /// The program was asked to end.
    pub was_asked: bool,
}

/// The process in which rounds run.
pub trait Program {
    /// The time since a moment that stays the same.
    fn now(&self) -> Duration;
    /// Whether it was asked to end.
    fn is_asked_to_end(&self) -> bool;
    /// Waits for so long, or until it is asked to end.
    fn wait(&self, time: Duration);
    /// How the source stands, as [`dirty`] says, looked at with this priority.
    fn look(&self, order: &Order, priority: Priority) -> Outcome<Standing>;
    /// Stages once, and gives the exit code; `None` if the round was broken off at the moment that was set.
    ///
    /// # Errors
    /// No further round has a chance.
    fn stage(&self, order: &mut Order, round: &Round) -> Outcome<Option<Exit>>;
    /// So many bytes may not be staged in the time that is left.
    fn warn(&self, bytes: u64, left: Duration);
}

impl Rounds {
    /// Stages in rounds until the program is asked to end, or the last one before the end is done.
    ///
    /// # Errors
    /// The source cannot be compared with its ledger, or no further round has a chance.
    pub fn run(&self, order: &mut Order, program: &dyn Program) -> Outcome<Ended> {
        let (end, low) = (self.end, Priority::Low);
        let last_priority = self.priority.unwrap_or(Priority::Same);
        let mut pace = Pace { units_per_s: PACE_DEFAULT, is_of_last: true, last: last_priority };
        let (mut next, mut exit) = (Some(program.now()), Exit::Done);
        let (mut rounds, mut has_warned) = (0, false);
        while !program.is_asked_to_end() {
            let now = program.now();
            // Programs must not delay the last look before the end.
            let looking = if end.is_some() { last_priority } else { self.priority.unwrap_or(low) };
            let standing = match program.look(order, looking) {
                Err(_) if program.is_asked_to_end() => break,
                standing => standing?,
            };
            let (needed, is_sure) = (time_needed(&standing, pace.units_per_s), pace.is_of_last);
            let left = end.map(|end| end.at.saturating_sub(now));
            if let Some(left) = left.filter(|left| *left < needed && is_sure && !has_warned) {
                has_warned = true;
                program.warn(standing.dirty.bytes, left);
            }
            let due = end.map(|end| end.at.saturating_sub(needed.saturating_add(end.margin)));
            let is_last = due.is_some_and(|due| now >= due);
            if is_last || next.is_some_and(|next| now >= next) {
                if has_work(&standing, order) {
                    rounds += 1;
                    order.closed_only = self.closed_only && !is_last;
                    let priority = if is_last { last_priority } else { self.priority.unwrap_or(low) };
                    // One that gets no time would let the last one wait.
                    let until = due.filter(|_| priority == low && !is_last);
                    if let Some(done) = program.stage(order, &Round { priority, until, needed, is_last })? {
                        exit = done;
                        if standing.dirty.objects > 0 {
                            pace.note(priority, units(&standing), program.now().saturating_sub(now));
                        }
                    }
                }
                next = self.every.map(|every| now + every);
            }
            let took = program.now().saturating_sub(now);
            // If the pace was that of a round that had to wait for programs, it may have been far too early.
            if is_last && (is_sure || !pace.is_of_last || left.is_none_or(|left| left < took)) {
                return Ok(Ended { exit, rounds, was_asked: false });
            }
            let latest = due.map(|due| due.max(now).min(now + CHECK));
            let wake = [next, latest].into_iter().flatten().min().unwrap_or(now + CHECK);
            program.wait(wake.saturating_sub(program.now()));
        }
        Ok(Ended { exit, rounds, was_asked: true })
    }
}

/// Whether a round would do anything.
pub fn has_work(standing: &Standing, order: &Order) -> bool {
    let left_alone = if order.delete { 0 } else { standing.removed };
    standing.dirty.objects > left_alone || !standing.lost.is_empty()
}

/// How the source of an order stands to its ledger.
///
/// # Errors
/// The ledger cannot be read, or `is_over` said so.
///
/// # Panics
/// If the order has no ledger.
pub fn dirty(order: &Order, is_over: &dyn Fn() -> bool) -> Outcome<Standing> {
    let (hold, route) = order.ledger.as_ref().expect("a stage in rounds has a ledger");
    let ledger = Ledger::read(hold.path())?.filter(|ledger| ledger.route == *route);
    let start = Spot { tree: order.from.tree.clone(), path: route.inside.clone() };
    look(&start, &Vec::from_iter(ledger), order.jobs, 0, None, is_over)
}

/// How fast rounds are.
struct Pace {
    units_per_s: f64,
    /// Of a round with the priority of the last one, or guessed.
    is_of_last: bool,
    /// The priority of the last round.
    last: Priority,
}

impl Pace {
    /// Takes in a round. How long rounds of low priority take tells more of the programs beside them: it counts until there was one with
    /// the priority of the last round.
    fn note(&mut self, priority: Priority, units: f64, time: Duration) {
        let is_of_last = priority == self.last;
        let is_guess = self.units_per_s == PACE_DEFAULT;
        if is_of_last || is_guess || !self.is_of_last {
            self.units_per_s = units / time.as_secs_f64().max(0.001);
            self.is_of_last = is_of_last;
        }
    }
}

fn units(standing: &Standing) -> f64 {
    ledger::units(standing.dirty.objects, standing.dirty.bytes)
}

/// How long a round of all dirty objects may take, at a pace in units of work per second.
pub fn time_needed(standing: &Standing, pace: f64) -> Duration {
    Duration::try_from_secs_f64(units(standing) / pace * CAUTION).unwrap_or(Duration::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::standing::Count;

    #[test]
    fn the_pace_of_a_round_that_waits_for_programs_counts_until_there_is_a_better_one() {
        let mut pace = Pace { units_per_s: PACE_DEFAULT, is_of_last: true, last: Priority::Same };
        let mut noted = |priority, units, seconds| {
            pace.note(priority, units, Duration::from_secs(seconds));
            (pace.units_per_s, pace.is_of_last)
        };
        assert_eq!(noted(Priority::Low, 100.0, 100), (1.0, false));
        assert_eq!(noted(Priority::Low, 200.0, 100), (2.0, false));
        assert_eq!(noted(Priority::Same, 100.0, 1), (100.0, true));
        assert_eq!(noted(Priority::Low, 100.0, 100), (100.0, true));
        assert_eq!(noted(Priority::Same, 50.0, 1), (50.0, true));
    }

    #[test]
    fn the_time_for_a_round_follows_from_the_pace_of_the_others() {
        let of = |objects, bytes| Standing { dirty: Count { objects, bytes }, ..Standing::default() };
        let pace = (100 << 20) as f64;
        assert_eq!(time_needed(&of(0, 0), pace), Duration::ZERO);
        let large = time_needed(&of(1, 1000 << 20), pace);
        assert!(large > Duration::from_secs(15) && large < Duration::from_secs(16), "{large:?}");
        let many = time_needed(&of(4000, 0), pace);
        assert!(many > Duration::from_secs(14) && many < Duration::from_secs(16), "{many:?}");
        assert!(time_needed(&of(1, u64::MAX), 0.0) > Duration::from_secs(1 << 40));
    }
}
