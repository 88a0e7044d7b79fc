//! Where the thread of a channel runs: on the processor on which its program waits.

use aze_calls::NO_PROCESSOR;
use aze_io::real::{keep_on, processors};

/// The calling thread, as a follower of who asks it.
pub struct Follower {
    /// Where it may run.
    allowed: Vec<usize>,
    at: u16,
}

impl Follower {
    /// Of a thread that runs where it may.
    pub fn new() -> Follower {
        Follower { allowed: processors(), at: NO_PROCESSOR }
    }

    /// Goes to a processor. For one that this process may not use, and for none, any will do.
    pub fn follow(&mut self, processor: u16) {
        if processor == self.at {
            return;
        }
        self.at = processor;
        let one = [usize::from(processor)];
        // On another processor the call takes a little longer.
        let _ = keep_on(if self.allowed.contains(&one[0]) { &one } else { &self.allowed });
    }
}
