//! Which priority the threads of a stage have on the cores of their nodes.
//!
//! Priorities are of threads, and a thread that has given its own up cannot take it back. So work of low priority is done by a
//! thread that is started for it, and by those that it starts; the last round before the end of a job still has the command's
//! priority (docs/decisions/0115-a-stage-beside-programs-has-the-lowest-priority.md).

use super::share::Beside;
use crate::exit::{Outcome, Trouble};
use crate::sys;
use aze_copy::Watch;
pub use aze_copy::stage::rounds::Priority;
use aze_copy::stage::{Order, Report};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::panic::resume_unwind;
use std::sync::Arc;

/// Reads what `--priority` asks for.
pub fn parser() -> impl TypedValueParser<Value = Priority> {
    let same = PossibleValue::new("same").help("The one that the command was started with");
    let low = PossibleValue::new("low").help("The lowest one, nice 19: programs on the same cores come first");
    let words = PossibleValuesParser::new([same, low]);
    words.map(|word| if word == "low" { Priority::Low } else { Priority::Same })
}

/// Does some work with a priority, and waits for its end.
pub fn during<T: Send>(priority: Priority, work: impl FnOnce() -> T + Send) -> Outcome<T> {
    match priority {
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

/// Stages with a priority; with the low one, threads rest while programs fill the cores.
pub fn stage(priority: Priority, order: &Order, watch: &Arc<dyn Watch>) -> Outcome<Report> {
    let watch = match priority {
        Priority::Same => watch.clone(),
        Priority::Low => Beside::around(watch.clone()),
    };
    during(priority, || aze_copy::stage::stage(order, &watch))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_work_and_what_it_starts_is_nice_and_the_caller_is_not() {
        let before = sys::nice();
        let seen = || (sys::nice(), std::thread::spawn(sys::nice).join().expect("no panic"));
        assert_eq!(during(Priority::Low, seen).expect("a thread"), (19, 19));
        assert_eq!(during(Priority::Same, seen).expect("no thread"), (before, before));
        assert_eq!(sys::nice(), before);
    }
}
