//! Which priority the threads of a stage have on the cores of their nodes.
//!
//! Priorities are of threads, and a thread that has given its own up cannot take it back. So work of low priority is done by a
//! thread that is started for it, and by those that it starts; the last round before the end of a job still has the command's
//! priority (docs/decisions/0115-a-stage-beside-programs-has-the-lowest-priority.md).

use crate::exit::{Outcome, Trouble};
use crate::sys;
use aze_copy::Watch;
use aze_copy::stage::{Order, Report};
use std::panic::resume_unwind;
use std::sync::Arc;

/// What `--priority` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Priority {
    /// The one that the command was started with.
    Same,
    /// The lowest one, nice 19: programs on the same cores come first.
    Low,
}

impl Priority {
    /// Does some work with this priority, and waits for its end.
    pub fn during<T: Send>(self, work: impl FnOnce() -> T + Send) -> Outcome<T> {
        match self {
            Priority::Same => Ok(work()),
            Priority::Low => std::thread::scope(|scope| {
                let lower = || sys::be_nice(sys::NICE_LOWEST).map(|()| work());
                let thread = std::thread::Builder::new().name("aze-stage".into()).spawn_scoped(scope, lower);
                let thread = thread.map_err(|error| Trouble::local("start a thread", &error))?;
                let done = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                done.map_err(|error| Trouble::local("lower the priority", &error))
            }),
        }
    }

    /// Stages with this priority.
    pub fn stage(self, order: &Order, watch: &Arc<dyn Watch>) -> Outcome<Report> {
        self.during(|| aze_copy::stage::stage(order, watch))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_work_and_what_it_starts_is_nice_and_the_caller_is_not() {
        let before = sys::nice();
        let seen = || (sys::nice(), std::thread::spawn(sys::nice).join().expect("no panic"));
        assert_eq!(Priority::Low.during(seen).expect("a thread"), (19, 19));
        assert_eq!(Priority::Same.during(seen).expect("no thread"), (before, before));
        assert_eq!(sys::nice(), before);
    }
}
