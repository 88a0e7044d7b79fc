//! The processor of a channel's thread: the one on which its program waits.

use aze_calls::NO_PROCESSOR;
use aze_io::real::{keep_on, processors};

/// The calling thread, as a follower of who asks it.
pub struct Follower {
    /// The processors that the agent may use.
    allowed: Vec<usize>,
    at: u16,
}

impl Follower {
    /// Binds the calling thread to nothing yet.
    pub fn new() -> Follower {
        Follower { allowed: processors(), at: NO_PROCESSOR }
    }

    /// Binds the thread to a processor; to all that the agent may use if it may not use this one, and for [`NO_PROCESSOR`].
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
