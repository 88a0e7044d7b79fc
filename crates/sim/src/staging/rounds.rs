//! Stages in rounds: programs hold files open, rounds are killed, broken off and kept from the cores, and jobs end.
//!
//! A round that leaves open files out has no new line of a file that was open all the time; the last round leaves none
//! out; it begins early enough for the margin that was asked for; and files that do not fit into the time left are
//! dirty when the job has ended.

use super::job::{Ended, Job, Told, What};
use super::own_files::OwnFiles;
use super::{Run, StagingPlan};
use aze_copy::stage::Order;
use aze_copy::stage::rounds::{End, Priority, Program, Round, Rounds, dirty, has_work};
use aze_copy::stage::standing::Standing;
use aze_io::sim::SimRng;
use aze_words::exit::{Exit, Outcome};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How much later than it is due a last round begins at most, for the look before it and the end of a round that is broken off.
const LATENESS_MAX: Duration = Duration::from_millis(1500);

/// How long programs keep a round of low priority from the cores after each part of a file, at most, in runs in which they do.
const STARVED_MS: u64 = 2000;

/// How stages go on in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    every: Option<Duration>,
    /// After its beginning, and the margin.
    end: Option<(Duration, Duration)>,
    priority: Option<Priority>,
    /// Programs leave nothing to rounds of low priority.
    is_starved: bool,
}

/// A round as it went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Went {
    round: Round,
    /// When the source was looked at before it.
    looked: Duration,
    /// When it was done, its code, and how many files it has left out; none if it was killed.
    ended: Option<(Duration, Option<Exit>, u64)>,
}

/// The process in which rounds run.
struct Command<'a> {
    job: &'a Job,
    is_starved: bool,
}

impl Job {
    pub fn stage_in_rounds(&self, asked: Asked, mut order: Order) -> Outcome<Ended> {
        let command = Command { job: self, is_starved: asked.is_starved };
        let now = self.told.now();
        *self.told.began.lock() = Some(now);
        let rounds = Rounds {
            every: asked.every,
            end: asked.end.map(|(left, margin)| End { at: now + left, margin }),
            priority: asked.priority,
            closed_only: order.closed_only,
        };
        Ok(Ended::Rounds(rounds.run(&mut order, &command)?))
    }
}

impl Program for Command<'_> {
    fn now(&self) -> Duration {
        self.job.told.now()
    }

    fn is_asked_to_end(&self) -> bool {
        self.job.told.is_asked()
    }

    fn wait(&self, time: Duration) {
        self.job.told.wait(time);
    }

    fn look(&self, order: &Order, _: Priority) -> Outcome<Standing> {
        let now = self.now();
        let standing = dirty(order, &|| self.is_asked_to_end())?;
        *self.job.told.looked.lock() = Some((now, has_work(&standing, order)));
        Ok(standing)
    }

    fn stage(&self, order: &mut Order, round: &Round) -> Outcome<Option<Exit>> {
        let told = &self.job.told;
        if let Some((path, _)) = &mut order.receipt {
            *path = OwnFiles::free_receipt(path);
        }
        let is_starved = self.is_starved && round.priority == Priority::Low;
        told.starved_ms.store(if is_starved { STARVED_MS } else { 0 }, Ordering::Relaxed);
        let looked = told.looked.lock().map_or_else(|| self.now(), |(looked, _)| looked);
        let went = Went { round: *round, looked, ended: None };
        told.went.lock().push(went);
        *told.until.lock() = round.until.filter(|_| self.job.breaks_off());
        let staged = self.job.stage_once(order);
        let is_late = told.until.lock().take().is_some_and(|until| self.now() >= until);
        let (exit, open) = match &staged {
            Ok(report) if report.missing == 0 && report.left == 0 => (Some(Exit::Done), report.open),
            Ok(report) => (Some(Exit::Some), report.open),
            Err(_) if is_late => (None, 0),
            Err(trouble) => (Some(trouble.exit), 0),
        };
        if self.is_asked_to_end() {
            staged?;
        }
        if let Some(last) = told.went.lock().last_mut() {
            last.ended = Some((self.now(), exit, open));
        }
        Ok(exit)
    }

    fn warn(&self, _: u64, _: Duration) {}
}

impl StagingPlan {
    /// Whether nothing but programs can hold up a round: then the last one has to be in time.
    pub(super) fn is_calm(&self) -> bool {
        let is_held_up = self.nodes > 0 && self.kills;
        self.rounds && !self.fails && self.durability.is_none() && !is_held_up
    }
}

impl Run {
    /// A command that stages in rounds, until the end of its job, or until it is asked to end or killed.
    pub(super) async fn some_rounds(&self, rng: &mut SimRng) {
        let ms = Duration::from_millis;
        let end = rng
            .chance(700_000)
            .then(|| (ms(1000 + rng.below(6000)), ms(LATENESS_MAX.as_millis() as u64 + rng.below(1000))));
        let asked = Asked {
            every: rng.chance(800_000).then(|| ms(300 + rng.below(1500))),
            end,
            priority: rng.chance(200_000).then(|| if rng.chance(500_000) { Priority::Low } else { Priority::Same }),
            is_starved: rng.chance(300_000),
        };
        let kill_after = (self.plan.kills && rng.chance(400_000)).then(|| ms(1 + rng.below(6000)));
        let is_asked = end.is_none() || rng.chance(100_000);
        let asked_after = is_asked.then(|| ms(500 + rng.below(5000)));
        self.job(What::Rounds(asked), kill_after, asked_after).await;
        if self.plan.power_cuts && rng.chance(300_000) {
            self.lose_power();
        }
    }

    /// The batch system ends a job, and its stage in rounds.
    pub(super) async fn rounds_without_time(&self) {
        let left = Duration::from_millis(1 + self.plan.seed % 7 * 60);
        let asked = Asked { every: None, end: Some((left, Duration::ZERO)), priority: None, is_starved: false };
        self.job(What::Rounds(asked), Some(left), None).await;
    }

    /// The last round began in time, and left nothing out.
    pub(super) fn check_rounds(&self, asked: &Asked, ended: &Ended, told: &Told) {
        let went = told.went.lock().clone();
        let mut counts = self.counts.lock();
        counts.rounds += went.len() as u64;
        counts.broken_off += went.iter().filter(|went| matches!(went.ended, Some((_, None, _)))).count() as u64;
        counts.open += went.iter().filter_map(|went| went.ended).map(|(_, _, open)| open).sum::<u64>();
        drop(counts);
        let (Some((left, margin)), Some(began)) = (asked.end, *told.began.lock()) else { return };
        let end = began + left;
        for last in went.iter().filter(|went| went.round.is_last) {
            if let Some((_, _, open @ 1..)) = last.ended {
                self.wrong(format!("the last round has left {open} open files out"));
            }
        }
        let is_calm = self.plan.is_calm();
        let due = (end - margin.min(left)).max(began);
        let (looked, was_dirty) = told.looked.lock().unwrap_or((began, true));
        let Some((last, before)) = went.split_last().filter(|(last, _)| last.round.is_last) else {
            let is_over = matches!(ended, Ended::Rounds(ended) if !ended.was_asked);
            if was_dirty && (is_over || is_calm && told.now() > due + LATENESS_MAX) {
                self.wrong(format!(
                    "no last round, that was due at {due:?}; the last look was at {looked:?}: {went:?}"
                ));
            }
            return;
        };
        // A round of the same priority as the last one is not broken off.
        let before = before.last().filter(|before| before.round.priority == Priority::Same);
        let held_up = before.and_then(|before| Some(before.ended?.0 - before.looked)).unwrap_or_default();
        if is_calm && last.looked > due + LATENESS_MAX + held_up {
            self.wrong(format!("a last round that was due at {due:?} began at {:?}: {went:?}", last.looked));
        }
        if let Some((at, ..)) = last.ended {
            let mut counts = self.counts.lock();
            if at <= end { counts.in_time += 1 } else { counts.late += 1 }
        }
    }
}
