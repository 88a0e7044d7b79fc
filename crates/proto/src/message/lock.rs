//! What messages say of locks.

use crate::{wire_enum, wire_struct};

wire_enum! {
    /// Two kinds of locks that know nothing of each other.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum LockSpace {
        /// Byte ranges: fcntl(2), of processes and of open file descriptions.
        1 = Ranges,
        /// Whole files: flock(2).
        2 = Whole,
    }
}

wire_enum! {
    /// How much a lock excludes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LockMode {
        /// Exclusive ones.
        1 = Shared,
        /// Excludes every other lock.
        2 = Exclusive,
    }
}

wire_struct! {
    /// A lock of a session.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LockSpec {
        /// Which kind.
        pub space: LockSpace,
        /// Whose it is, within the session.
        pub owner: u64,
        /// Its process, for people.
        pub pid: u32,
        /// First byte.
        pub start: u64,
        /// Last byte; `u64::MAX` is the end of the file, wherever that is.
        pub end: u64,
        /// How much it excludes.
        pub mode: LockMode,
    }
}

wire_enum! {
    /// What became of a lock.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum LockOutcome {
        /// It is, or could be, had.
        1 = Granted,
        /// It cannot be had because of this one.
        2 = Held { by: LockSpec },
        /// It waits.
        3 = Queued,
        /// It would wait for an owner that waits for it.
        4 = Deadlock,
        /// It waits no longer.
        5 = Cancelled,
    }
}
