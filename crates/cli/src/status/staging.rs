//! The part of `aze status` about staging, of a volume that keeps account of it: dirty objects, stages at work, and whether
//! the dirty bytes can still be staged before the job ends.
//!
//! Bounded: nothing is asked of a volume with a server that does not answer; the look at the objects ends after [`LOOK_TIME`],
//! and then says that there may be more; a batch system has the time that [`batch`] gives it.

use crate::account::{self, Account, standing_to};
use crate::exit::{Exit, Outcome, Trouble};
use crate::session::Session;
use crate::{batch, show, size};
use aze_copy::stage::ledger::{self, Ledger, Pace, Work};
use aze_copy::stage::rounds::{PACE_DEFAULT, time_needed};
use aze_copy::stage::standing::Standing;
use aze_copy::stage::state::Known;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the objects of a volume are looked at.
const LOOK_TIME: Duration = Duration::from_secs(3);

/// How staging of a volume goes.
pub struct Staging {
    /// Its objects, compared with the ledgers; or why they are not.
    standing: Outcome<Standing>,
    /// Stages at work, each with its progress if it copies now.
    works: Vec<(Work, Option<Progress>)>,
    /// Of stages out so far, in units of work per second; `None` if none has copied anything yet.
    pace: Option<f64>,
    /// Until the end of the job that this command runs in.
    left: Option<Duration>,
    /// Why other things are not known.
    troubles: Vec<Trouble>,
}

/// How far a stage has come.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Progress {
    proven: u64,
    proven_bytes: u64,
    /// Objects and bytes that are left, when it knows its source.
    left: Option<(u64, u64)>,
}

impl Staging {
    /// Looks; `None` if the volume keeps no account.
    pub fn look(session: &Arc<Session>, all_answer: bool) -> Option<Staging> {
        let unknown = |trouble| Staging::without(Err(trouble));
        if !all_answer {
            let text = "not looked at, since a server does not answer";
            return account::is_marked(&session.volume.dir).then(|| unknown(Trouble::new(Exit::Again, text)));
        }
        let account = match Account::find(session) {
            Ok(account) => account?,
            Err(trouble) => return Some(unknown(trouble)),
        };
        let mut staging = Staging::without(Ok(Standing::default()));
        let works = staging.known_or(account.ledgers().and_then(|dir| ledger::at_work(&dir)));
        let with_progress = |work: Work| (work.clone(), Progress::of(&work));
        staging.works = works.into_iter().map(with_progress).collect();
        staging.left = staging.known_or(batch::job_end()).map(|end| end.left());
        staging.standing = account.read_ledgers().and_then(|ledgers| {
            staging.pace = pace(&ledgers);
            standing_to(&ledgers, session, 0, Some(Instant::now() + LOOK_TIME), &|| false)
        });
        Some(staging)
    }

    fn without(standing: Outcome<Standing>) -> Staging {
        Staging { standing, works: Vec::new(), pace: None, left: None, troubles: Vec::new() }
    }

    /// The finding, or an empty one and a trouble to tell.
    fn known_or<T: Default>(&mut self, found: Outcome<T>) -> T {
        found.unwrap_or_else(|trouble| {
            self.troubles.push(trouble);
            T::default()
        })
    }

    /// How long it takes to stage the dirty objects, at the pace so far, with some for caution; before there is one, at the pace that
    /// rounds assume, too.
    fn needed(&self) -> Option<Duration> {
        Some(time_needed(self.standing.as_ref().ok()?, self.pace.unwrap_or(PACE_DEFAULT)))
    }

    /// The pace by which that is, as people read it.
    fn speed(&self) -> String {
        match self.pace {
            Some(_) => "at the speed so far".into(),
            None => format!(
                "at {}/s, which is a guess until a stage out has shown its speed",
                size::words(PACE_DEFAULT as u64)
            ),
        }
    }

    /// Lines for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match &self.standing {
            Ok(standing) => {
                let Standing { staged, dirty, .. } = standing;
                let at_least = if standing.ended_early { "at least " } else { "" };
                let mut line =
                    format!("dirty: {at_least}{}, {}", show::count(dirty.objects, "object"), size::words(dirty.bytes));
                if let Some(needed) = self.needed().filter(|_| dirty.objects > 0) {
                    line += &format!(", about {} to stage out {}", super::age(needed.as_secs().max(1)), self.speed());
                }
                lines.push(format!("{line}; staged: {at_least}{}", show::count(staged.objects, "object")));
            }
            Err(trouble) => lines.push(format!("dirty: {trouble}")),
        }
        for (work, progress) in &self.works {
            let (Work { host, pid, .. }, (from, to)) = (work, places(work));
            let how = match progress {
                Some(Progress { proven, proven_bytes, left: Some((left, left_bytes)) }) => format!(
                    "{} proven, {}; at most {left} left, {}",
                    show::count(*proven, "object"),
                    size::words(*proven_bytes),
                    size::words(*left_bytes)
                ),
                Some(_) => "it looks at its source".into(),
                None => "it copies nothing now".into(),
            };
            lines.push(format!("staging {} {from} to {to} (pid {pid} on {host}): {how}", work.route.direction));
        }
        if let Some(left) = self.left {
            lines.push(format!("the job ends in {}", super::age(left.as_secs())));
        }
        lines
    }

    /// Warnings: first that the dirty objects cannot be staged in the time that the job has left.
    pub fn warnings(&self) -> Vec<Trouble> {
        let mut warnings = self.troubles.clone();
        if let (Ok(standing), Some(needed), Some(left)) = (&self.standing, self.needed(), self.left)
            && needed > left
        {
            let (bytes, needed, left) =
                (size::words(standing.dirty.bytes), super::age(needed.as_secs()), super::age(left.as_secs()));
            let text = format!(
                "{bytes} that only the volume has no longer fit into what is left: they need about {needed} {}, \
                 and the job ends in {left}: stage out now what matters most ('aze stage out')",
                self.speed()
            );
            warnings.insert(0, Trouble::new(Exit::Unsaved, text));
        }
        warnings
    }

    /// The same as an object.
    pub fn object(&self) -> Value {
        let standing = self.standing.as_ref();
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let works: Vec<Value> = self
            .works
            .iter()
            .map(|(work, progress)| {
                let (from, to) = places(work);
                let left = progress.and_then(|progress| progress.left);
                json!({
                    "direction": work.route.direction, "from": from, "to": to, "host": work.host, "pid": work.pid,
                    "proven": progress.map(|progress| progress.proven), "proven_bytes": progress.map(|progress| progress.proven_bytes),
                    "left": left.map(|left| left.0), "left_bytes": left.map(|left| left.1),
                })
            })
            .collect();
        let fits = self.needed().zip(self.left).map(|(needed, left)| needed <= left);
        json!({
            "dirty": standing.map(|standing| standing.dirty.objects).ok(),
            "dirty_bytes": standing.map(|standing| standing.dirty.bytes).ok(),
            "staged": standing.map(|standing| standing.staged.objects).ok(),
            "staged_bytes": standing.map(|standing| standing.staged.bytes).ok(),
            "ended_early": standing.map(|standing| standing.ended_early).ok(),
            "why": standing.err().map(|trouble| &trouble.text),
            "needed_s": seconds(self.needed()), "speed_is_guess": self.pace.is_none(), "job_left_s": seconds(self.left), "fits": fits, "at_work": works,
        })
    }
}

impl Progress {
    /// `None` if no attempt is under way: the stage waits for its next round.
    fn of(work: &Work) -> Option<Progress> {
        let (known, _) = Known::look(&work.state).ok()?;
        let (proven, proven_bytes) = known.proven();
        Some(Progress { proven, proven_bytes, left: known.left() })
    }
}

/// Where a stage copies from and to, as it is written.
fn places(work: &Work) -> (String, String) {
    let inside = account::shown(&work.route.inside);
    let outside = String::from_utf8_lossy(&work.route.outside).into_owned();
    if work.route.is_out() { (inside, outside) } else { (outside, inside) }
}

/// The pace of the last stages out, one of each ledger, together.
fn pace(ledgers: &[Ledger]) -> Option<f64> {
    let paces = ledgers.iter().filter(|ledger| ledger.route.is_out()).filter_map(|ledger| ledger.pace);
    let add = |one: Pace, other: Pace| Pace {
        objects: one.objects.saturating_add(other.objects),
        bytes: one.bytes.saturating_add(other.bytes),
        time_ns: one.time_ns.saturating_add(other.time_ns),
    };
    paces.reduce(add).map(|pace| pace.units_per_s())
}
