//! What simulated servers share with clients, as if the two nodes were one.
//!
//! Held as in shared memory: until the client has given it back, or the server's end of the connection
//! is gone. A server that dies keeps nothing from its clients: what they can see does not change any more.

use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::sync::Mutex;

use crate::slab::Frame;

/// Shared payloads of one connection that may be out at one time.
const SHARED_PAYLOADS_MAX: usize = 64;

type Parts = Vec<(Arc<Frame>, Range<usize>)>;

#[derive(Debug)]
struct Kept {
    /// Nothing any more when the connection has ended.
    parts: Mutex<Option<Parts>>,
    len: usize,
}

/// A payload that is shared with a client.
#[derive(Debug)]
pub(crate) struct SimPayload(Arc<Kept>);

/// The payloads that one end of a connection shares.
#[derive(Default)]
pub(super) struct SharedPayloads(Vec<Weak<Kept>>);

impl SharedPayloads {
    /// Shares a payload, if not too much is out.
    pub(super) fn share_frames(&mut self, parts: &[(Arc<Frame>, Range<usize>)]) -> Option<SimPayload> {
        self.0.retain(|kept| kept.strong_count() > 0);
        if self.0.len() >= SHARED_PAYLOADS_MAX {
            return None;
        }
        let len = parts.iter().map(|(_, range)| range.len()).sum();
        let kept = Arc::new(Kept { parts: Mutex::new(Some(parts.to_vec())), len });
        self.0.push(Arc::downgrade(&kept));
        Some(SimPayload(kept))
    }

    /// The end is gone: shared payloads still out are not kept any more.
    pub(super) fn end(&mut self) {
        for kept in self.0.drain(..).filter_map(|kept| kept.upgrade()) {
            let parts = kept.parts.lock().take();
            drop(parts);
        }
    }
}

impl SimPayload {
    pub(crate) fn len(&self) -> usize {
        self.0.len
    }

    /// See [`crate::SharedPayload::copy_to`].
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
