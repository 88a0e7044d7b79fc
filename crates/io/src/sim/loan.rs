//! What simulated servers lend to clients, as if the two nodes were one.
//!
//! Held as in shared memory: until the client has given it back, or the server's end of the connection
//! is gone. A server that dies keeps nothing from its clients: what they can see does not change any more.

use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::slab::Frame;

/// Loans of one connection that may be out at one time.
const LOANS_MAX: usize = 64;

type Parts = Vec<(Arc<Frame>, Range<usize>)>;

#[derive(Debug)]
struct Kept {
    /// Nothing any more when the connection has ended.
    parts: Mutex<Option<Parts>>,
    len: usize,
}

/// What a client was lent.
#[derive(Debug)]
pub(crate) struct SimLoan(Arc<Kept>);

/// What one end of a connection has lent.
#[derive(Default)]
pub(super) struct Lent(Vec<Weak<Kept>>);

impl Lent {
    /// Lends, if not too much is out.
    pub(super) fn lend(&mut self, parts: &[(Arc<Frame>, Range<usize>)]) -> Option<SimLoan> {
        self.0.retain(|kept| kept.strong_count() > 0);
        if self.0.len() >= LOANS_MAX {
            return None;
        }
        let len = parts.iter().map(|(_, range)| range.len()).sum();
        let kept = Arc::new(Kept { parts: Mutex::new(Some(parts.to_vec())), len });
        self.0.push(Arc::downgrade(&kept));
        Some(SimLoan(kept))
    }

    /// The end is gone: loans still out are not kept any more.
    pub(super) fn end(&mut self) {
        for kept in self.0.drain(..).filter_map(|kept| kept.upgrade()) {
            let parts = kept.parts.lock().take();
            drop(parts);
        }
    }
}

impl SimLoan {
    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    /// See [`crate::Loan::copy_to`].
    pub(crate) fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        let parts = self.0.parts.lock();
        let Some(parts) = &*parts else { return false };
        let (mut skip, mut rest) = (at, to);
        for (frame, range) in parts {
            let part = &frame.bytes()[range.clone()];
            let part = &part[skip.min(part.len())..];
            skip -= skip.min(range.len());
            let (now, after) = rest.split_at_mut(part.len().min(rest.len()));
            now.copy_from_slice(&part[..now.len()]);
            rest = after;
        }
        rest.is_empty()
    }
}
