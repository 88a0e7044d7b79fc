//! Waiting for what no event tells.

use std::time::{Duration, Instant};

/// How often a wait looks again. Processes that are not our children cannot be waited for otherwise.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Looks again and again until `holds`; false if it does not by the deadline.
pub fn until(deadline: Instant, mut holds: impl FnMut() -> bool) -> bool {
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
