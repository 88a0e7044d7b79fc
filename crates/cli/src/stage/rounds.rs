//! `aze stage out` again and again while programs run: every so often, and once more before the end of the job.
//!
//! Room `copy` decides when a round is begun and broken off. This file knows the clock, the signals, the end of the job, and where
//! receipts lie; and it tells how each round went.

use super::{Common, free_receipt, priority, tell};
use crate::batch::{self, JobEnd};
use crate::copy::Reporter;
use crate::exit::{Exit, Outcome, Trouble};
use crate::{size, sys, when};
use aze_copy::Watch;
use aze_copy::stage::Order;
use aze_copy::stage::rounds::{End, Priority, Program, Round, Rounds, dirty};
use aze_copy::stage::standing::Standing;
use aze_proto::ids::Time;
use aze_words::errln;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files and parts of files at work at the same time, so that programs notice little.
pub const JOBS_DEFAULT: u16 = 4;

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

impl Args {
    /// Whether there is to be more than one round.
    pub fn are_asked_for(&self) -> bool {
        self.every.is_some() || self.before_end.is_some()
    }

    /// Stages in rounds until a signal or the end. The exit code is that of the last round.
    pub(super) fn run(&self, common: &Common, mut order: Order, reporter: &Arc<Reporter>) -> Outcome<Exit> {
        let command = Command { common, reporter, began: Instant::now() };
        let rounds = Rounds {
            every: self.every,
            end: self.end(command.now())?,
            priority: common.priority,
            closed_only: order.closed_only,
        };
        let ended = rounds.run(&mut order, &command)?;
        if ended.was_asked {
            errln!("aze: stage: ended by a signal after {} rounds with changes", ended.rounds);
        }
        Ok(ended.exit)
    }

    fn end(&self, now: Duration) -> Outcome<Option<End>> {
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
        Ok(Some(End { at: now.saturating_add(end.ok_or_else(missing)?.left()), margin }))
    }
}

/// This process, in which rounds run.
struct Command<'a> {
    common: &'a Common,
    reporter: &'a Arc<Reporter>,
    began: Instant,
}

impl Program for Command<'_> {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn is_asked_to_end(&self) -> bool {
        self.reporter.signal().is_some()
    }

    fn wait(&self, time: Duration) {
        self.reporter.wait(time);
    }

    fn look(&self, order: &Order, priority: Priority) -> Outcome<Standing> {
        priority::during(priority, || dirty(order, &|| self.reporter.is_over()))?
    }

    /// With a receipt.
    fn stage(&self, order: &mut Order, round: &Round) -> Outcome<Option<Exit>> {
        self.reporter.end_at(round.until.and_then(|until| self.began.checked_add(until)));
        let done = self.stage_until_then(order, round.priority);
        self.reporter.end_at(None);
        done
    }

    fn warn(&self, bytes: u64, left: Duration) {
        let (bytes, left) = (size::words(bytes), left.as_secs());
        errln!("aze: stage: warning: {bytes} may not be staged in the {left} s that are left");
    }
}

impl Command<'_> {
    fn stage_until_then(&self, order: &mut Order, priority: Priority) -> Outcome<Option<Exit>> {
        let reporter = self.reporter;
        let to = PathBuf::from(OsStr::from_bytes(&order.destination));
        if let Some((path, _)) = &mut order.receipt {
            *path = free_receipt(Path::new(&to))?;
        }
        let (started, failed_before) = (Instant::now(), reporter.tally.failed());
        let watch: Arc<dyn Watch> = reporter.clone();
        let report = match priority::stage(priority, order, &watch) {
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
        tell(self.common, &report, super::signer(order).as_ref(), &summary);
        let is_whole = report.missing == 0 && report.left == 0 && reporter.tally.failed() == failed_before;
        Ok(Some(if is_whole { Exit::Done } else { Exit::Some }))
    }
}
