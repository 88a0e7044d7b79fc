//! `aze stage out` again and again while programs run: every so often, and once more before the end of the job.
//!
//! Each round copies all objects that have changed since the last one, with a receipt of its own, and none is made where
//! nothing has changed. A round never holds up programs: it reads, it runs where they leave cores idle, and a file that they write
//! meanwhile is left to the next round. One round is at work at a time; one that takes longer than the period delays the next.
//!
//! The last round has to be done in time, so it has the command's priority. What programs leave to a round may be nothing, so
//! one that is still at work when the last one is due is broken off, and the last one goes on from there.

use super::{Common, Priority, free_receipt, tell};
use crate::batch::{self, JobEnd};
use crate::copy::Reporter;
use crate::exit::{Exit, Outcome, Trouble};
use crate::{size, sys, when};
use aze_copy::Watch;
use aze_copy::stage::Order;
use aze_copy::stage::ledger::{self, Ledger};
use aze_copy::stage::standing::{Standing, look};
use aze_copy::tree::Spot;
use aze_proto::ids::Time;
use aze_words::errln;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files and parts of files at work at the same time, so that programs notice little.
pub const JOBS_DEFAULT: u16 = 4;

/// How often the dirty bytes are compared with the time that is left.
const CHECK: Duration = Duration::from_secs(60);

/// Units of work per second until a round has shown how many there are: a slow file system.
const PACE_DEFAULT: f64 = (20 << 20) as f64;

/// The last round may take so many times longer than the pace of the others tells.
const CAUTION: f64 = 1.5;

#[derive(clap::Args)]
pub struct Args {
    /// Stage again and again, so often, until SIGTERM or SIGINT; a receipt for each round that found changes.
    #[arg(long, value_name = "TIME", value_parser = period,
          conflicts_with_all = ["atomic", "receipt", "list", "newer_than", "include", "exclude"])]
    every: Option<Duration>,
    /// Stage now, and once more before the end of the job: as early as the speed so far demands, and TIME earlier. The
    /// end is that of the Slurm or Flux job that this runs in, or of --until.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "60s",
          value_parser = size::parse_duration,
          conflicts_with_all = ["atomic", "receipt", "list", "newer_than", "include", "exclude"])]
    before_end: Option<Duration>,
    /// With --before-end: the end of the job, as a time of 'aze find'.
    #[arg(long, value_name = "TIME", requires = "before_end", value_parser = when::parse)]
    until: Option<Time>,
}

fn period(text: &str) -> Result<Duration, String> {
    let period = size::parse_duration(text)?;
    if period.is_zero() { Err("a period is longer than 0".into()) } else { Ok(period) }
}

/// The end that the last round has to be in time for.
#[derive(Clone, Copy)]
struct End {
    at: Instant,
    margin: Duration,
}

impl Args {
    /// Whether there is to be more than one round.
    pub fn are_asked_for(&self) -> bool {
        self.every.is_some() || self.before_end.is_some()
    }

    /// Stages in rounds until a signal or the end. The exit code is that of the last round.
    pub(super) fn run(&self, common: &Common, mut order: Order, reporter: &Arc<Reporter>) -> Outcome<Exit> {
        let end = self.end()?;
        let mut pace =
            Pace { units_per_s: PACE_DEFAULT, is_of_last: true, last: common.priority.unwrap_or(Priority::Same) };
        let (mut next, mut exit) = (Some(Instant::now()), Exit::Done);
        let (mut rounds, mut has_warned, closed_only) = (0_u64, false, order.closed_only);
        while reporter.signal().is_none() {
            let now = Instant::now();
            // Programs must not delay the last look before the end.
            let looking = common.priority.unwrap_or(if end.is_some() { Priority::Same } else { Priority::Low });
            let standing = match looking.during(|| dirty(&order, reporter))? {
                Err(_) if reporter.signal().is_some() => break,
                standing => standing?,
            };
            let (needed, is_sure) = (time_needed(&standing, pace.units_per_s), pace.is_of_last);
            let left = end.map(|end| end.at.saturating_duration_since(now));
            if let Some(left) = left.filter(|left| *left < needed && is_sure && !has_warned) {
                has_warned = true;
                let (bytes, left) = (size::words(standing.dirty.bytes), left.as_secs());
                errln!("aze: stage: warning: {bytes} may not be staged in the {left} s that are left");
            }
            let is_last = end.is_some_and(|end| now + needed + end.margin >= end.at);
            if is_last || next.is_some_and(|next| now >= next) {
                let left_alone = if order.delete { 0 } else { standing.removed };
                if standing.dirty.objects > left_alone || !standing.lost.is_empty() {
                    rounds += 1;
                    order.closed_only = closed_only && !is_last;
                    let priority = common.priority.unwrap_or(if is_last { Priority::Same } else { Priority::Low });
                    let may_wait = priority == Priority::Low && !is_last;
                    reporter.end_at(end.filter(|_| may_wait).and_then(|end| end.at.checked_sub(needed + end.margin)));
                    let done = round(common, &mut order, reporter, priority);
                    reporter.end_at(None);
                    if let Some(done) = done? {
                        exit = done;
                        if standing.dirty.objects > 0 {
                            pace.note(priority, units(&standing), now.elapsed());
                        }
                    }
                }
                next = self.every.map(|every| now + every);
            }
            // If the pace was that of a round that had to wait for programs, it may have been far too early.
            if is_last && (is_sure || !pace.is_of_last || left.is_none_or(|left| left < now.elapsed())) {
                return Ok(exit);
            }
            let latest = end.map(|end| end.at.checked_sub(needed + end.margin).unwrap_or(now).min(now + CHECK));
            let due = [next, latest].into_iter().flatten().min().unwrap_or(now + CHECK);
            reporter.wait(due.saturating_duration_since(Instant::now()));
        }
        errln!("aze: stage: ended by a signal after {rounds} rounds with changes");
        Ok(exit)
    }

    fn end(&self) -> Outcome<Option<End>> {
        let Some(margin) = self.before_end else { return Ok(None) };
        let end = match self.until {
            Some(end) => Some(JobEnd::At(end)),
            None => batch::job_end().map_err(|trouble| trouble.during("--before-end"))?,
        };
        let missing = || {
            let text =
                "--before-end: the end of the job is not known: Slurm and Flux tell it; elsewhere give --until TIME";
            Trouble::usage(text)
        };
        Ok(Some(End { at: Instant::now() + end.ok_or_else(missing)?.left(), margin }))
    }
}

/// How the source stands to its ledger.
fn dirty(order: &Order, reporter: &Arc<Reporter>) -> Outcome<Standing> {
    let (hold, route) = order.ledger.as_ref().expect("a stage in rounds has a ledger");
    let ledger = Ledger::read(hold.path())?.filter(|ledger| ledger.route == *route);
    let start = Spot { tree: order.from.tree.clone(), path: route.inside.clone() };
    look(&start, &Vec::from_iter(ledger), order.jobs, 0, None, &|| reporter.is_over())
}

/// One round, with a receipt; `None` if it was broken off, since the last one is due.
fn round(common: &Common, order: &mut Order, reporter: &Arc<Reporter>, priority: Priority) -> Outcome<Option<Exit>> {
    let to = PathBuf::from(OsStr::from_bytes(&order.destination));
    if let Some((path, _)) = &mut order.receipt {
        *path = free_receipt(Path::new(&to))?;
    }
    let (started, failed_before) = (Instant::now(), reporter.tally.failed());
    let watch: Arc<dyn Watch> = reporter.clone();
    let report = match priority.stage(order, &watch) {
        Ok(report) => report,
        Err(trouble) => {
            if let Some(signal) = reporter.signal() {
                errln!("aze: stage: ended by a signal: the same command goes on from here");
                sys::die_of(signal);
            }
            if reporter.is_late() {
                errln!("aze: stage: a round was broken off, since the end is near: the last one goes on from here");
                return Ok(None);
            }
            // A destination may be full for a while.
            reporter.tally.fail(&trouble);
            return Ok(Some(trouble.exit));
        }
    };
    let bytes = report.end.as_ref().map_or(0, |end| end.bytes);
    let summary = format!("{} in {:.1} s", size::words(bytes), started.elapsed().as_secs_f64());
    tell(common, &report, super::signer(order).as_ref(), &summary);
    let is_whole = report.missing == 0 && report.left == 0 && reporter.tally.failed() == failed_before;
    Ok(Some(if is_whole { Exit::Done } else { Exit::Some }))
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
    use aze_copy::stage::standing::Count;

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
