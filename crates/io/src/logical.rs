//! A logical clock (Lamport, "Time, clocks, and the ordering of events in a distributed system", 1978): it orders
//! events by cause, regardless of the nodes' clocks.

use std::sync::atomic::{AtomicU64, Ordering};

/// The logical clock of one process. Its time moves with each event that is stamped, and with each message that
/// arrives.
#[derive(Debug, Default)]
pub struct LogicalClock(AtomicU64);

impl LogicalClock {
    /// The time of a new event: later than of all events before, here and in every process that was heard of.
    pub fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The time of the last event: a message that is sent now states it.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// A message has arrived that states this time, or a record was read that has it: events from now on are later.
    pub fn witness(&self, time: u64) {
        // Without a write where nothing changes: threads share the line.
        if time > self.now() {
            self.0.fetch_max(time, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effect_is_later_than_its_cause() {
        let (one, other) = (LogicalClock::default(), LogicalClock::default());
        for _ in 0..5 {
            one.tick();
        }
        let cause = one.tick();
        other.witness(one.now());
        let effect = other.tick();
        assert!(effect > cause, "{effect} {cause}");
        other.witness(2);
        assert_eq!(other.now(), effect);
        one.witness(other.now());
        assert!(one.tick() > effect);
    }
}
