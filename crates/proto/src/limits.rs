//! Constants that all nodes of a volume must share, and limits of the wire.
//!
//! [`fingerprint`] is compared at the handshake, so that two builds that disagree refuse
//! each other instead of misreading each other.

use crate::handshake::Versions;

/// Newest version of frames and messages that this build speaks. A change of any encoding raises it and adds a golden
/// sample.
pub const WIRE_VERSION: u8 = 16;

/// All versions that this build speaks. The oldest is raised only when no build needs it any more.
pub const WIRE_VERSIONS: Versions = Versions { oldest: 16, newest: WIRE_VERSION };

/// Version of the steps of the handshake, which is that of no message: it stays, so that builds that have no other
/// version in common can tell each other so.
pub const HANDSHAKE_VERSION: u8 = 0;

/// Bytes that one checksum covers. Small enough that a 4 KiB read stays a 4 KiB read, large
/// enough that checksums are a thousandth of the data.
pub const BLOCK_BYTES: usize = 4096;

/// Virtual shards of a volume unless the user chose: far more than servers, so that moving single
/// shards balances load, few enough that one server can visit all of its own in microseconds.
pub const SHARDS_DEFAULT: u32 = 4096;

/// Most shards a volume can have. An inode number has room for 2^22 ([`Prefix::BITS`](crate::ids::Prefix::BITS)); every
/// process has the whole map, which has some 300 bytes for each server, so that there are fewer until a map can be had in parts.
pub const SHARDS_MAX: u32 = 1 << 18;

/// Fewest shards for each server, so that load can be balanced at all.
pub const SHARDS_PER_SERVER_MIN: u32 = 64;

/// Most servers that a volume can have, those that have left included.
pub const SERVERS_MAX: u16 = (SHARDS_MAX / SHARDS_PER_SERVER_MIN) as u16;

/// Slots for each server of a new volume of several servers: one that joins a volume of eight takes one slot from each,
/// and an eighth of a server's part is moved or lost at a time. A one-server volume has one slot.
pub const SLOTS_PER_SERVER: u32 = 8;

/// Base-2 logarithm of the chunk size unless the user chose: 1 MiB, one full FUSE request.
pub const CHUNK_BITS_DEFAULT: u8 = 20;
/// Smallest chunk: 64 KiB. Below, the cost of a request dominates.
pub const CHUNK_BITS_MIN: u8 = 16;
/// Largest chunk: 16 MiB. Above, one request holds a server's memory for too long.
pub const CHUNK_BITS_MAX: u8 = 24;

/// Longest head (header and body) of a frame: the map of a volume with as many servers as there can be fits with room to spare.
pub const HEAD_BYTES_MAX: u32 = 4 << 20;
/// Longest page of directory entries, and longest list of names, in one frame.
pub const PAGE_BYTES_MAX: usize = 768 << 10;
/// Longest payload of a frame: one largest chunk, widened to whole blocks.
pub const PAYLOAD_BYTES_MAX: u32 = (1 << CHUNK_BITS_MAX) + 2 * BLOCK_BYTES as u32;

/// Longest append: its home keeps the data while it is its turn to wait, so a few must fit in memory.
pub const APPEND_BYTES_MAX: usize = 4 << 20;

/// Longest name of a directory entry in bytes (POSIX `NAME_MAX` on Linux).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link in bytes (`PATH_MAX` without its terminator).
pub const TARGET_BYTES_MAX: usize = 4095;
/// Largest file in bytes: offsets are signed 64-bit numbers in POSIX.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Most links to one file.
pub const LINKS_MAX: u32 = 65_000;
/// Longest name of an extended attribute, with its namespace, as on Linux.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute, as on Linux.
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
/// Longest list of the names of one file's extended attributes, as on Linux.
pub const XATTR_LIST_BYTES_MAX: usize = 65_536;
/// Most bytes of names and values of one file's extended attributes: they stay in memory with it.
pub const XATTRS_BYTES_MAX: usize = 256 << 10;
/// Most supplementary groups that a request states; more are refused, never cut off.
pub const GROUPS_MAX: usize = 1024;

/// Requests of one session that change one shard and are not yet known to be done. A server
/// keeps that many replies for a session and shard; a client waits before it would send more.
pub const RETRIES_PER_SESSION_AND_SHARD: usize = 64;

/// Longest time that a client goes on repeating a request. Retry records of a session that
/// has been silent for longer are dropped, and its old sequence numbers refused.
pub const RETRY_SECONDS_MAX: u64 = 60;

/// How long a client tries before it gives up with an error, unless told otherwise.
pub const DEADLINE_MS_DEFAULT: u32 = 10_000;

/// How long a client follows a start that it sees under way: a server that has begun to start says so, and counts as
/// silent only from its last word on.
pub const START_SECONDS_MAX: u64 = 600;

/// Longest contents that come along with an open: one unit of storage. More would be read by
/// programs that open a file only to look at its beginning.
pub const OPEN_CONTENTS_BYTES_MAX: u32 = 64 << 10;

/// How long a session may be without any connection before a server drops its open files.
pub const SESSION_GRACE_MS: u64 = 10_000;

/// The name of the job as which a server's own client connects, which opens files for the clients of its node. They may be idle when the server
/// ends, and open at the homes what they had open through it when they go on: until then homes keep the opens of that client.
pub const CONTACT_JOB: &str = "(contact)";

/// How often a client says to the homes of its locks that it lives. A server that has not heard it
/// for [`SESSION_GRACE_MS`] frees them: two such messages may get lost.
pub const LOCKS_KEPT_MS: u64 = 3_000;

/// How long what a server says of a file may be believed without asking again, where it says so, counted
/// from before it was asked.
pub const LEASE_MS: u32 = 1_000;

/// Directories whose rename or loss of rights is remembered for clients with an older epoch;
/// a client that is further behind forgets all it cached.
pub const NAMESPACE_CHANGES_KEPT: usize = 4096;

/// Entries that one page of a listing holds at most.
pub const LIST_ENTRIES_MAX: usize = 4096;

/// Directories in one request of a search.
pub const SCAN_DIRS_MAX: usize = 4096;

/// Times that bytes damaged on their way are sent before damage is reported. A network that damages one
/// packet in a hundred of those that its own checksums let pass does so four times in a row once in a
/// hundred million; damage in a store is there every time.
pub const DAMAGED_TRIES_MAX: u32 = 4;

/// Names in one page of an import from a backing. The largest such page, with its paths and attributes, has to fit into
/// a frame's head: see [`IMPORT_BYTES_MAX`].
pub const IMPORT_NAMES_MAX: usize = 256;

/// Bytes of one message of an import, and at least one name: with the largest name it stays below [`HEAD_BYTES_MAX`].
pub const IMPORT_BYTES_MAX: usize = 256 << 10;

/// Bytes of names and paths in one page of names of the backing that went, and at least one: with the longest path it stays
/// below [`HEAD_BYTES_MAX`].
pub const GONE_BYTES_MAX: usize = 256 << 10;

/// How many bytes of a server's memory there are for each entry or inode that it may keep beside the data. Both of an
/// empty file take about 200 bytes of memory, so that names can take two fifths of the memory given for data, beside
/// it. As many bytes of extended attributes, or of symlinks' targets, count as one of them.
pub const BYTES_PER_RECORD: u64 = 256;

/// Entries and inodes that even the smallest server may keep.
pub const RECORDS_MIN: u64 = 1024;

/// Entries and inodes that a server with this much memory for data keeps at most, together.
pub fn records_max(memory_bytes: u64) -> u64 {
    (memory_bytes / BYTES_PER_RECORD).max(RECORDS_MIN)
}

/// A number that changes when a constant above changes that both ends must share where they speak `version`. A constant
/// changes with the version only; this finds builds in which it has changed without.
pub fn fingerprint(version: u8) -> u64 {
    let shared = [
        u64::from(version),
        BLOCK_BYTES as u64,
        u64::from(SHARDS_MAX),
        u64::from(CHUNK_BITS_MAX),
        NAME_BYTES_MAX as u64,
        RETRIES_PER_SESSION_AND_SHARD as u64,
        RETRY_SECONDS_MAX,
    ];
    let bytes: Vec<u8> = shared.iter().flat_map(|value| value.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes)
}
