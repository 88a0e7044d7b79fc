//! What helps some clients only: it is tried each time at first and while it helps, else now and then.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// After so many tries in a row that did not help, one time in [`TRIED_ONE_IN`] it is tried, until it helps.
const VAIN_MAX: u32 = 8;
const TRIED_ONE_IN: u32 = 64;

/// How the last tries went.
#[derive(Default)]
pub(crate) struct Tries {
    vain: AtomicU32,
    passed: AtomicU32,
}

impl Tries {
    /// Whether to try this time.
    pub(crate) fn is_next(&self) -> bool {
        self.vain.load(Relaxed) < VAIN_MAX || self.passed.fetch_add(1, Relaxed) % TRIED_ONE_IN == TRIED_ONE_IN - 1
    }

    /// How a try went.
    pub(crate) fn note(&self, has_helped: bool) {
        // Two at the same time may count as one.
        let vain = if has_helped { 0 } else { self.vain.load(Relaxed).saturating_add(1) };
        self.vain.store(vain, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_help_is_seldom_tried() {
        let tries = Tries::default();
        let goes = || {
            let goes = tries.is_next();
            if goes {
                tries.note(false);
            }
            goes
        };
        assert_eq!((0..VAIN_MAX).filter(|_| goes()).count(), VAIN_MAX as usize);
        assert_eq!((0..640).filter(|_| goes()).count(), 640 / TRIED_ONE_IN as usize);
        tries.note(true);
        assert!(tries.is_next() && tries.is_next(), "it helps again");
    }
}
