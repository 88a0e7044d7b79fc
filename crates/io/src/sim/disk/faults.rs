//! What can go wrong with a simulated disk: the fault of all of it, and the trouble of one call.

use crate::disk::DiskError;

/// The fault of a node's disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFault {
    /// Nothing.
    #[default]
    None,
    /// Little room is left.
    Low,
    /// Writes fail since no room is left.
    Full,
    /// Writes and syncs fail.
    Broken,
    /// All works but one call: of those that can fail so, the one of this number from now on, counted from 0.
    Once(u64, DiskTrouble),
    /// Everything takes much longer.
    Slow,
}

/// How one call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskTrouble {
    /// ENOSPC: of a write, or of what makes a name.
    Full,
    /// EIO: of any call. After one of a sync the system takes for clean the bytes that it was to make durable, and they
    /// are lost.
    Failed,
    /// EMFILE: of what makes or opens a file.
    TooManyFiles,
    /// A write that ends before its end.
    Short,
}

/// Kinds of calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Reads, lists or removes.
    Read,
    Open,
    /// Makes a name.
    Make,
    /// Makes a file whose room is set aside.
    MakeFixed,
    Write,
    Sync,
    /// The beginning of another.
    Part,
}

impl DiskTrouble {
    pub(super) fn happens_to(self, call: Call) -> bool {
        match self {
            DiskTrouble::Full => matches!(call, Call::Make | Call::MakeFixed | Call::Write),
            DiskTrouble::Failed => call != Call::Part,
            DiskTrouble::TooManyFiles => matches!(call, Call::Make | Call::MakeFixed | Call::Open),
            DiskTrouble::Short => call == Call::Write,
        }
    }

    pub(super) fn error(self) -> DiskError {
        match self {
            DiskTrouble::Full | DiskTrouble::Short => DiskError::Full("the simulated disk is full".into()),
            DiskTrouble::Failed => DiskError::Failed("the simulated disk failed once".into()),
            DiskTrouble::TooManyFiles => DiskError::Failed("the simulated process has too many open files".into()),
        }
    }
}
