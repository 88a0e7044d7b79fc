//! The pieces in which a slot travels from the server that serves it to the one that will.

use crate::persistence::state::record::{Seen, Step};
use aze_proto::ids::{Incarnation, Ino, ServerIndex, SessionId, ShardId, Time};
use aze_proto::message::LockSpec;
use aze_proto::{wire_enum, wire_struct};

wire_struct! {
    /// A file that is open, or may be written by a session that is away.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenRow {
        /// The file.
        pub ino: Ino,
        /// Who has it open.
        pub session: SessionId,
        /// The session's number of the open.
        pub handle: u64,
        /// It is open for writing.
        pub writes: bool,
        /// No program has had it open for writing since.
        pub is_quiet: bool,
        /// The session is away.
        pub is_away: bool,
        /// The open has frozen the file.
        pub is_frozen: bool,
    }
}

wire_struct! {
    /// A lock of a file, or a request for one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FileLockRow {
        /// The file.
        pub ino: Ino,
        /// Whose it is.
        pub session: SessionId,
        /// The range and the mode of the lock.
        pub spec: LockSpec,
        /// The number under which it waits; `None`: it is held.
        pub waits: Option<u64>,
    }
}

wire_struct! {
    /// A server with entries of a directory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HolderRow {
        /// The directory.
        pub dir: Ino,
        /// Version of its stub.
        pub version: u64,
        /// The server.
        pub server: ServerIndex,
        /// Its life.
        pub incarnation: Incarnation,
    }
}

wire_struct! {
    /// When entries of a directory last came or went.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ChangedRow {
        /// The directory.
        pub dir: Ino,
        /// When.
        pub changed: Time,
    }
}

wire_enum! {
    /// One piece.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Piece {
        /// All but data that came before is void.
        1 = Anew {},
        /// Data that came before of this file are void.
        2 = Forget { shard: ShardId, ino: Ino },
        /// Tables of a shard, outcomes of its requests, generations, or data, which are in the payload.
        3 = Step { step: Step },
        /// What sessions have open.
        4 = Opens { shard: ShardId, opens: Vec<OpenRow> },
        /// What sessions have locked.
        5 = Locks { shard: ShardId, locks: Vec<FileLockRow> },
        /// Who has entries of directories.
        6 = Holders { shard: ShardId, holders: Vec<HolderRow> },
        /// Files that were made without a name and have had none yet.
        7 = Unnamed { shard: ShardId, inos: Vec<Ino> },
        /// When entries of directories last came or went at the giver.
        8 = Changed { dirs: Vec<ChangedRow> },
        /// Files that are gone, and generations before which nothing is taken of others.
        9 = Dropped { gone: Vec<Ino>, since: Vec<Seen> },
    }
}
