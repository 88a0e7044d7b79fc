//! What messages say of servers: how they are, and what jobs have asked of them.

use crate::ids::{Incarnation, Ino, MapEpoch, NamespaceEpoch, ServerIndex};
use crate::wire::Blob;
use crate::wire_struct;

wire_struct! {
    /// A counter with its name.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Counter {
        /// The counter's name.
        pub name: String,
        /// How often.
        pub count: u64,
    }
}

wire_struct! {
    /// How a server is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ServerStatus {
        /// Its place in the map.
        pub index: ServerIndex,
        /// Its node.
        pub host: String,
        /// Its process id there.
        pub pid: u32,
        /// Its incarnation.
        pub incarnation: Incarnation,
        /// Its map.
        pub map_epoch: MapEpoch,
        /// Its namespace epoch.
        pub namespace_epoch: NamespaceEpoch,
        /// Time since it started, in nanoseconds.
        pub up_ns: u64,
        /// Bytes it can hold.
        pub capacity_bytes: u64,
        /// Bytes it holds.
        pub used_bytes: u64,
        /// Bytes of memory that are faulted in.
        pub touched_bytes: u64,
        /// Bytes of file data that are copies of what the backing has, and may go when room is short.
        pub clean_bytes: u64,
        /// Bytes of chunks that became such copies since it started, when a stage had put them into the backing.
        pub drained_bytes: u64,
        /// Bytes that such copies have freed since it started.
        pub evicted_bytes: u64,
        /// Chunks that have gone for it since then.
        pub evicted_chunks: u64,
        /// Inodes it keeps.
        pub inodes: u64,
        /// Entries it keeps.
        pub entries: u64,
        /// Chunks it keeps.
        pub chunks: u64,
        /// Sessions connected.
        pub sessions: u64,
        /// Opens registered.
        pub opens: u64,
        /// Those of them that are for writing, and those for writing of sessions that are away.
        pub writers: u64,
        /// Requests by name, counted where they are dispatched.
        pub requests: Vec<Counter>,
        /// Why it serves nothing more; empty if it serves.
        pub failure: String,
    }
}

wire_struct! {
    /// How often something was asked for of late, among the requests that were counted.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HotCount {
        /// The file, or the directory.
        pub ino: Ino,
        /// If the requests named it: the file's name, in the directory `ino`.
        pub name: Blob,
        /// Requests; may be too high by the number of all requests over the number of counters.
        pub count: u64,
    }
}

wire_struct! {
    /// What a server was asked for in its last seconds; one request in [`ServerActivity::timed_one_in`] is counted.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RecentActivity {
        /// The time meant, in milliseconds until now.
        pub window_ms: u64,
        /// Names made and removed.
        pub changes: u64,
        /// The directories with the most of them.
        pub directories: Vec<HotCount>,
        /// Files opened.
        pub opens: u64,
        /// Those opened the most.
        pub files: Vec<HotCount>,
        /// As [`ServerActivity::took`].
        pub took: Vec<u64>,
    }
}

wire_struct! {
    /// What one job has asked of a server.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct JobActivity {
        /// The job, as its processes name it.
        pub job: String,
        /// Connections of it that stand.
        pub connections: u64,
        /// Requests.
        pub requests: u64,
        /// Bytes of file data that it asked to read.
        pub read_bytes: u64,
        /// Bytes of file data that it sent.
        pub written_bytes: u64,
    }
}

wire_struct! {
    /// What a server has done since it started.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ServerActivity {
        /// Its process: another one has begun to count anew.
        pub pid: u32,
        /// Bytes of memory that its process takes.
        pub memory_bytes: u64,
        /// Bytes of file data that it holds.
        pub used_bytes: u64,
        /// Sessions connected.
        pub sessions: u64,
        /// One request in so many is timed.
        pub timed_one_in: u32,
        /// How many of those took less than 2^n nanoseconds, and not less than half of that, by n.
        pub took: Vec<u64>,
        /// By job; those without a connection come last.
        pub jobs: Vec<JobActivity>,
        /// Recent requests to it.
        pub recent: RecentActivity,
    }
}
