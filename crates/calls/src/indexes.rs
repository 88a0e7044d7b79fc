//! What a library needs to look names up in published indexes without its agent.
//!
//! The agent shares the indexes that its client may read: [`Op::Indexes`](crate::Op::Indexes). It says with the answer to a
//! question on a path that asks for it ([`WANT_DIRECTORY`]) what its client knows of the directory by then. Each counts while its
//! version ([`crate::shared`]) is the one it names.

/// [`Request::len`](crate::Request::len) of [`Op::Stat`](crate::Op::Stat), [`Op::Open`](crate::Op::Open) and
/// [`Op::Access`](crate::Op::Access): a [`ResolvedDirectory`] is wanted as well.
pub const WANT_DIRECTORY: u64 = 1;

/// Most servers whose indexes are shared.
pub const SERVERS_MAX: usize = 16;

/// Bytes that the answer to [`Op::Indexes`](crate::Op::Indexes) begins with. The numbers of these servers (u32, at most [`SERVERS_MAX`]) follow;
/// the servers of the slots (u16) lie in the window.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedIndexes {
    /// While the word at [`SERVERS_VERSION_AT`](crate::shared::SERVERS_VERSION_AT) says this.
    pub version: u64,
    /// A server that knows a newer map has to be asked.
    pub map_epoch: u64,
    /// On whose behalf the agent asks.
    pub uid: u32,
    /// Base-2 logarithm of the number of shards.
    pub shard_bits: u32,
    /// Number of slots.
    pub slots: u32,
    /// Number of servers.
    pub servers: u32,
}

/// Where a name was looked up, at the end of the answer; only of a path whose directories are no symbolic links and no `..`, and
/// where the answer is an inode or ENOENT.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolvedDirectory {
    /// While the word at [`NAMES_VERSION_AT`](crate::shared::NAMES_VERSION_AT) says this.
    pub version: u64,
    /// The directory that the path led to without its last part.
    pub dir: u64,
    /// The state of the directory at the server in which the user may look names up.
    pub state: u64,
    /// A server that knows of a newer change of directories has to be asked.
    pub namespace_epoch: u64,
    /// The server of the name.
    pub server: u32,
    /// 0.
    pub pad: u32,
}

/// Whether a user may access a regular file in all wanted ways (access(2)), where its permission bits say so; `None` where lists of
/// rights and groups count, too.
pub fn may_access(uid: u32, owner: u32, mode: u32, wanted: u32) -> Option<bool> {
    match uid {
        _ if wanted == 0 => Some(true),
        0 => Some(wanted & 1 == 0 || mode & 0o111 != 0),
        _ if uid == owner => Some(mode >> 6 & wanted == wanted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_bits_decide_for_owner_and_root() {
        assert_eq!(
            [may_access(0, 5, 0o600, 6), may_access(0, 5, 0o600, 1), may_access(0, 5, 0o601, 7)].map(Option::unwrap),
            [true, false, true]
        );
        assert_eq!((may_access(5, 5, 0o477, 4), may_access(5, 5, 0o477, 2)), (Some(true), Some(false)));
        assert_eq!((may_access(6, 5, 0o777, 1), may_access(6, 5, 0, 0)), (None, Some(true)));
    }
}
