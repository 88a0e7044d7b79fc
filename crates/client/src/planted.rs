//! Panics that tests plant in a client: builds with debug assertions only.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Where a panic is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Planted {
    /// Before a request is sent.
    Asking = 1,
    /// After its answer has come, and before anything is noted.
    Answered,
    /// While the state of an open file is locked.
    Noting,
    /// While a connection is asked to send.
    Sending,
}

/// The place, or 0 for none.
static PLANTED: AtomicU32 = AtomicU32::new(0);

impl Planted {
    /// All places.
    pub const ALL: [Planted; 4] = [Planted::Asking, Planted::Answered, Planted::Noting, Planted::Sending];

    /// The next operation that comes by here panics.
    pub fn plant(self) {
        PLANTED.store(self as u32, SeqCst);
    }

    /// An operation has come by.
    pub(crate) fn reached(self) {
        assert!(PLANTED.compare_exchange(self as u32, 0, SeqCst, SeqCst).is_err(), "planted: {self:?}");
    }
}
