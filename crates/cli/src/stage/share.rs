//! How much of the cores of its node a stage beside programs takes while programs fill them.
//!
//! The lowest priority alone leaves a stage of several threads a part that programs feel, and what servers do for it has their
//! priority. So its threads rest while other processes keep the cores busy: as long as all that it works is more than its part
//! (docs/decisions/0115-a-stage-beside-programs-has-the-lowest-priority.md). On idle cores it never rests.

use crate::sys;
use aze_copy::Watch;
use aze_copy::tree::Spot;
use aze_io::sync::Mutex;
use aze_words::exit::Trouble;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The part of the time of all cores that the threads of a stage work while programs fill them: one in so many.
const PART: u32 = 50;

/// How long the use of the cores is watched before it is judged.
const LOOK: Duration = Duration::from_millis(200);

/// A resting thread looks so often whether it is to go on.
const REST_MAX: Duration = Duration::from_millis(50);

/// The longest rest of a thread in one piece: a stage goes on beside programs that never pause.
const RESTS_MAX: Duration = Duration::from_secs(5);

thread_local! {
    /// Time that this thread had worked when it last came by.
    static WORKED: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The cores of this node, as the threads of a stage share them with programs.
pub struct Cores {
    use_of_cores: Mutex<UseOfCores>,
    are_full: AtomicBool,
    debt: Mutex<Debt>,
}

/// How the cores were used until a moment.
struct UseOfCores {
    at: Instant,
    cores: sys::CoresTime,
    own: Duration,
}

impl UseOfCores {
    fn now() -> Option<UseOfCores> {
        let cores = sys::cores_time().ok()?;
        Some(UseOfCores { at: Instant::now(), cores, own: sys::processor_time(std::process::id()).ok()? })
    }

    /// Whether programs have filled the cores since `before`.
    fn are_full_since(&self, before: &UseOfCores) -> bool {
        let all = self.cores.all.saturating_sub(before.cores.all);
        let busy = self.cores.busy.saturating_sub(before.cores.busy);
        are_full(all, busy, self.own.saturating_sub(before.own))
    }
}

/// Whether programs fill the cores: two thirds of their time. What servers do for a stage is less than its own work, and is seen
/// as work of others: so as much as its own is left out.
fn are_full(all: Duration, busy: Duration, own: Duration) -> bool {
    let others = busy.saturating_sub(own * 2);
    !all.is_zero() && others * 3 >= all * 2
}

/// What all threads have worked beyond their part since programs fill the cores.
struct Debt {
    owed: Duration,
    at: Instant,
}

impl Debt {
    /// Adds the time worked, and takes away the part of the time that has passed on so many cores. Gives the rest.
    fn note(&mut self, worked: Duration, now: Instant, cores: u32) -> Duration {
        let part = now.saturating_duration_since(self.at) * cores / PART;
        self.owed = (self.owed + worked).saturating_sub(part);
        self.at = now;
        self.owed
    }
}

impl Cores {
    /// `None` where the system does not tell how busy its cores are: no thread rests there.
    pub fn watch() -> Option<Cores> {
        let use_of_cores = UseOfCores::now()?;
        let debt = Debt { owed: Duration::ZERO, at: use_of_cores.at };
        Some(Cores { use_of_cores: Mutex::new(use_of_cores), are_full: AtomicBool::new(false), debt: Mutex::new(debt) })
    }

    /// Holds the calling thread up while all have worked more than their part of full cores, but not once `is_over`.
    pub fn turn(&self, is_over: &dyn Fn() -> bool) {
        let Ok(worked) = sys::thread_time() else { return };
        let before = WORKED.replace(Some(worked)).unwrap_or(worked);
        let began = Instant::now();
        let mut more = worked.saturating_sub(before);
        loop {
            let cores = self.look();
            let mut debt = self.debt.lock();
            let owed = debt.note(std::mem::take(&mut more), Instant::now(), cores);
            if !self.are_full.load(Ordering::Relaxed) {
                debt.owed = Duration::ZERO;
                return;
            }
            drop(debt);
            if owed.is_zero() || began.elapsed() >= RESTS_MAX || is_over() {
                return;
            }
            std::thread::sleep((owed * PART / cores.max(1)).min(REST_MAX));
        }
    }

    /// Judges how the cores were used since the last look, if that is long enough ago. Gives how many they are.
    fn look(&self) -> u32 {
        let mut before = self.use_of_cores.lock();
        if before.at.elapsed() >= LOOK
            && let Some(now) = UseOfCores::now()
        {
            self.are_full.store(now.are_full_since(&before), Ordering::Relaxed);
            *before = now;
        }
        before.cores.count
    }
}

/// Hands on all that is heard, and has threads rest.
pub struct Beside {
    watch: Arc<dyn Watch>,
    cores: Cores,
}

impl Beside {
    /// Of a stage with the lowest priority.
    pub fn around(watch: Arc<dyn Watch>) -> Arc<dyn Watch> {
        match Cores::watch() {
            Some(cores) => Arc::new(Beside { watch, cores }),
            None => watch,
        }
    }
}

impl Watch for Beside {
    fn turn(&self) {
        self.cores.turn(&|| self.is_over());
    }

    fn is_over(&self) -> bool {
        self.watch.is_over()
    }

    fn expect(&self, bytes: u64) {
        self.watch.expect(bytes);
    }

    fn copied(&self, bytes: u64) {
        self.watch.copied(bytes);
    }

    fn file(&self, from: &Spot, to: &Spot) {
        self.watch.file(from, to);
    }

    fn dir(&self) {
        self.watch.dir();
    }

    fn lacks(&self, trouble: &Trouble) {
        self.watch.lacks(trouble);
    }

    fn failed(&self, trouble: &Trouble) {
        self.watch.failed(trouble);
    }

    fn step(&self) {
        self.watch.step();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration as D;

    const HOUR: D = D::from_secs(3600);

    /// Of a stage that judges the cores no more.
    fn cores(are_full: bool, count: u32) -> Cores {
        let (cores, at) = (sys::CoresTime { count, all: D::ZERO, busy: D::ZERO }, Instant::now() + HOUR);
        let debt = Mutex::new(Debt { owed: D::ZERO, at: Instant::now() });
        let use_of_cores = Mutex::new(UseOfCores { at, cores, own: D::ZERO });
        Cores { use_of_cores, are_full: AtomicBool::new(are_full), debt }
    }

    /// How long a thread that has worked for 4 ms is held up.
    fn rest_of(cores: &Cores, is_over: &dyn Fn() -> bool) -> D {
        cores.turn(is_over);
        let worked = sys::thread_time().expect("a clock");
        while sys::thread_time().expect("a clock") < worked + D::from_millis(4) {}
        let came = Instant::now();
        cores.turn(is_over);
        came.elapsed()
    }

    #[test]
    fn a_thread_rests_until_what_it_has_worked_is_its_part_of_full_cores() {
        // The part of the time that it works does not count for the work done in it. On a busy machine it may take long to work so much, which
        // pays for it: one of many threads is not interrupted.
        let mut rests = (0..100).map(|_| rest_of(&cores(true, 2), &|| false));
        assert!(rests.any(|rest| rest >= D::from_millis(4) * PART / 2 * 9 / 10));
    }

    #[test]
    fn what_was_worked_on_idle_cores_or_when_the_stage_is_to_end_is_no_reason_to_rest() {
        let idle = cores(false, 2);
        rest_of(&idle, &|| false);
        assert_eq!(idle.debt.lock().owed, D::ZERO);
        // Without cores the part of the stage is none, however long this thread is interrupted for.
        let over = cores(true, 0);
        let asked = Cell::new(0);
        rest_of(&over, &|| {
            asked.set(asked.get() + 1);
            true
        });
        assert!(over.debt.lock().owed >= D::from_millis(4), "the debt stays");
        assert!((1..=2).contains(&asked.get()), "each of its two turns ended when it heard of the end");
    }

    #[test]
    fn programs_fill_the_cores_and_a_stage_with_its_servers_does_not() {
        let s = D::from_secs;
        let ms = D::from_millis;
        for (busy, own, full, who) in [
            (s(10), s(0), true, "programs alone"),
            (s(10), ms(200), true, "programs, and a stage that rests"),
            (s(10), ms(1200), true, "programs with four fifths, and a stage that takes what is left, with its servers"),
            (s(6), s(0), false, "programs that leave two fifths"),
            (s(10), ms(5500), false, "a stage and its servers"),
            (s(10), ms(2700), false, "two stages with their servers"),
            (s(0), s(0), false, "nobody"),
        ] {
            assert_eq!(are_full(s(10), busy, own), full, "{who}");
        }
        assert!(!are_full(s(0), s(0), s(0)), "no time has passed");
    }

    #[test]
    fn debts_go_with_the_part_of_the_time_that_passes() {
        let began = Instant::now();
        let mut debt = Debt { owed: D::ZERO, at: began };
        assert_eq!(debt.note(D::from_millis(100), began, 2), D::from_millis(100));
        let part = D::from_secs(1) * 2 / PART;
        assert_eq!(debt.note(D::ZERO, began + D::from_secs(1), 2), D::from_millis(100) - part);
        assert_eq!(debt.note(D::ZERO, began + HOUR, 2), D::ZERO);
        assert_eq!(debt.note(D::from_millis(7), began + HOUR, 2), D::from_millis(7), "rest is not kept for later");
    }
}
