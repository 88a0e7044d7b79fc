//! What an intercepted program and its agent say to each other.
//!
//! It alone knows the layout of their packets. What an operation does is the agent's business, and which system calls become
//! operations the library's.
//!
//! The *agent* of an `aze run --door intercept` executes every operation on the volume for the programs below it: it is
//! the only client of the servers, with one session. The *library* that is loaded into each program turns system calls
//! on the volume into requests to the agent. The library keeps no state about open files that outlives a call: an open
//! file description is a pipe(7): programs hold the reading end (a real descriptor, so that fork, dup, exec,
//! SCM_RIGHTS, close and posix_spawn are the kernel's business) and the agent holds the writing end, which becomes
//! POLLERR when the last copy of the reading end has gone, however that happened. Position, flags, flock and the open
//! of the servers are the description's, in the agent.
//!
//! A *channel* is one SOCK_SEQPACKET connection to the agent's socket. A thread uses one for the length of a call; a process
//! has as many as it has calls at once. First [`Hello`], answered by [`Welcome`] with the channel's memory (a memfd of
//! [`CHANNEL_BYTES`]: the window, then the [`mailbox`]) as a file descriptor. Then one request, one reply, and so on. Both are a header, then
//! `bytes` bytes, in the mailbox or as a packet, as [`Op::way`] says. Data of reads and writes, listings and values of attributes lie in
//! the window.

#![no_std]

pub mod executable;
pub mod indexes;
pub mod mailbox;
pub mod shared;

/// Version of these declarations; the agent refuses another one.
pub const VERSION: u32 = 11;
/// Environment: path of the agent's socket.
pub const AGENT_VARIABLE: &str = "AZE_AGENT";
/// Environment: where programs see the volume, for instance `/aze`; absolute, no trailing slash.
pub const AT_VARIABLE: &str = "AZE_AT";
/// Environment, set by the library for exec(2) only: the working directory, if it lies in the volume, as `N:/path`, or `/path` without
/// a descriptor N of it.
pub const CWD_VARIABLE: &str = "AZE_CWD";
/// Environment: names of programs (last part of their path, separated by commas) that the library leaves alone.
pub const BYPASS_VARIABLE: &str = "AZE_BYPASS";
/// Environment: how many sites were left alone, and so on, on standard error at the start of each program.
pub const VERBOSE_VARIABLE: &str = "AZE_INTERCEPT_VERBOSE";
/// Environment: `symbols` has the library take symbols alone, also where it could rewrite.
pub const WAY_VARIABLE: &str = "AZE_INTERCEPT";

/// Largest request, and largest reply.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Largest read or write of one request.
pub const WINDOW_BYTES: usize = 1 << 20;
/// Memory of a channel.
pub const CHANNEL_BYTES: usize = WINDOW_BYTES + mailbox::MAILBOX_BYTES;
/// [`Request::desc`] for "no description": paths are below the volume's root.
pub const NO_DESC: u64 = 0;
/// [`Request::offset`] for "at the description's position, and move it".
pub const POSITION: u64 = u64::MAX;

/// Tests plant panics by it in an agent with debug assertions: `a` of [`Op::Identify`], and of [`Op::Seek`] in a file.
#[cfg(debug_assertions)]
pub const PLANTED: u64 = 0x706c_616e;

/// First packet of a channel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Number of the process, as it knows itself.
    pub pid: u32,
}

/// Its answer; the window comes with it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// 0, or a negative errno: then there is no window and the agent closes the channel.
    pub result: i32,
    /// 1: each close(2) of a file opened for writing must ask [`Op::Flush`] and return its error (`--durability close`).
    pub flush_at_close: u32,
    /// Number by which stat(2) names the device.
    pub dev: u64,
}

/// Stands for no processor.
pub const NO_PROCESSOR: u16 = u16::MAX;

/// Header of a request. `a` and `b` are the operation's; `first` is the length of the first of two byte strings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// A number of [`Op`].
    pub op: u32,
    /// Bytes that follow the header.
    pub bytes: u32,
    /// A description: of the file, or of the directory below which a relative path begins.
    pub desc: u64,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// The operation's.
    pub a: u64,
    /// The operation's.
    pub b: u64,
    /// The operation's.
    pub c: u64,
    /// Length of the first of two byte strings.
    pub first: u32,
    /// The process's umask, for operations that make files.
    pub umask: u16,
    /// The processor on which the asking thread waits, and to which the agent's thread comes; or [`NO_PROCESSOR`].
    pub processor: u16,
}

/// Header of a reply.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The system call's result: negative errno, or what the operation says.
    pub result: i64,
    /// The description, where the operation says so; else 0.
    pub desc: u64,
    /// Bytes that follow the header.
    pub bytes: u32,
    /// 1: a file descriptor comes with it.
    pub has_fd: u32,
}

/// What stat(2) and statx(2) are made from. Times: seconds, nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Number of a device file, else 0.
    pub rdev: u64,
    /// Kind and permission bits.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Bytes that are best read and written at once.
    pub blksize: u32,
    /// 0.
    pub pad: u32,
    /// Last access.
    pub atime: [i64; 2],
    /// Last change of the data.
    pub mtime: [i64; 2],
    /// Last change of the attributes.
    pub ctime: [i64; 2],
    /// When it was made.
    pub btime: [i64; 2],
}

/// Contents of a file that came with its open, as they were then. They may be shown until the counter of changes is another one, or
/// the clock has come to `until_ns`. Those of a file that was opened for writing, too, whoever shows them has seen in a published index
/// before it asked for the open: they may be shown while the record of the inode there is the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// By CLOCK_MONOTONIC (clock_gettime(2)).
    pub until_ns: u64,
    /// What the counter was.
    pub seen: u64,
    /// Bytes in the window.
    pub len: u32,
    /// Which counter of [`shared`].
    pub counter: u32,
}

/// Which parts follow the [`Stat`] in an answer to an open of so many bytes: whether a [`Kept`], and whether a directory
/// ([`indexes::ResolvedDirectory`]) behind it.
pub fn after_stat(bytes: usize) -> (bool, bool) {
    const KEPT: usize = size_of::<Kept>();
    const DIRECTORY: usize = size_of::<indexes::ResolvedDirectory>();
    const BOTH: usize = KEPT + DIRECTORY;
    match bytes.wrapping_sub(size_of::<Stat>()) {
        KEPT => (true, false),
        DIRECTORY => (false, true),
        BOTH => (true, true),
        _ => (false, false),
    }
}

/// Operations. "path" is the packet's bytes (no NUL): absolute below the volume's root when `desc` is [`NO_DESC`], else
/// relative to that directory (empty: the description itself, as AT_EMPTY_PATH). Follow: `a` bit 0 = do not follow a
/// symbolic link at the end (AT_SYMLINK_NOFOLLOW).
///
/// Every operation on a path may be answered with [`LEAVES`]: a symbolic link on the way leads out of the volume, or a
/// named pipe is opened; the reply's bytes are the absolute path to use instead, and the library makes the system call with that.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `a`: inode number of a pipe, `c`: its device (fstat(2)). Result: `desc`, and 1 if it was opened with O_PATH, else 0; or -ENOENT.
    Identify = 1,
    /// path; `a`: flags of open(2), `b`: mode, `c`: 1 + the number of the channel's named pipe ([`Op::Pipes`]), whose reading end the library has opened, or 0,
    /// `len`: [`indexes::WANT_DIRECTORY`] or 0. Reply: `desc`, a pipe's reading end unless the named pipe stands for the description, and a [`Stat`] in the bytes.
    /// Result: 1 + the number of the channel's next named pipe, 0 if there is none or the one that it has was not used. A [`Kept`] behind the [`Stat`] says that the whole contents are in the window. Last comes the directory, if it is wanted: of an open for reading and writing only.
    Open,
    /// desc, offset or [`POSITION`], len. Result: bytes, in the window.
    Read,
    /// desc, offset or [`POSITION`], len, data in the window. O_APPEND is the description's. Result: bytes.
    Write,
    /// desc, offset (as i64), `a`: whence. Result: the new position.
    Seek,
    /// path, follow, `len` as [`Op::Open`]. Reply: [`Stat`].
    Stat,
    /// desc. Reply: [`Stat`].
    StatOpen,
    /// desc, len: at most so many bytes of struct linux_dirent64, in the window. Result: bytes, 0 at the end.
    ReadDir,
    /// path, `a`: mode.
    Mkdir,
    /// path.
    Rmdir,
    /// path.
    Unlink,
    /// Two paths: the first of `first` bytes below `desc`, the second below `b`; `a`: flags of renameat2(2).
    Rename,
    /// Two paths as [`Op::Rename`] (existing, new); `a` bit 0: follow (AT_SYMLINK_FOLLOW).
    Link,
    /// Two strings: target of `first` bytes, then the path below `desc`.
    Symlink,
    /// path. Reply: the target.
    Readlink,
    /// path, len.
    Truncate,
    /// desc, len.
    TruncateOpen,
    /// path (or desc with an empty one), follow, `b`: mode.
    Chmod,
    /// path (or desc), follow, `b`: uid, `c`: gid; u32::MAX leaves one as it is.
    Chown,
    /// path (or desc), follow; bytes begin with two struct timespec (32 bytes; UTIME_NOW, UTIME_OMIT), then the path.
    SetTimes,
    /// path, follow, `b`: mode of access(2), `c`: 1 if effective ids count, `len` as [`Op::Open`].
    Access,
    /// desc; `a`: 1 for fdatasync(2).
    Sync,
    /// desc, offset, len, `a`: mode of fallocate(2).
    Allocate,
    /// path (or desc), follow, `b`: flags; strings: name of `first` bytes, then path; value of `len` bytes in the window.
    SetXattr,
    /// path (or desc), follow, len: room (0 asks for the length); name, then path. Value in the window. Result: its length.
    GetXattr,
    /// path (or desc), follow, len: room. Names in the window, each with a NUL. Result: their length.
    ListXattr,
    /// path (or desc), follow; name, then path.
    RemoveXattr,
    /// desc, `a`: F_GETLK, F_SETLK, F_SETLKW or F_OFD_*; bytes: struct flock, absolute (l_whence 0). Reply: struct flock for
    /// F_GETLK. While F_SETLKW waits, a packet [`Op::Cancel`] on the same channel ends it with -EINTR (one reply in all).
    Lock,
    /// desc, `a`: operation of flock(2). Cancel as in [`Op::Lock`].
    Flock,
    /// desc: this process has closed a descriptor of the file: its fcntl locks on the inode go (as close(2) does).
    Unlock,
    /// Ends a waiting [`Op::Lock`] or [`Op::Flock`]. No reply of its own.
    Cancel,
    /// desc. Result: flags as F_GETFL gives them.
    GetFlags,
    /// desc, `a`: flags as F_SETFL takes them.
    SetFlags,
    /// Reply: struct statfs.
    StatFs,
    /// desc. Reply: its path in the volume, begins with '/'. Result: 0, or 1 if it was removed, and the path is that of before with ` (deleted)`.
    PathOf,
    /// desc: a file's pending writes and their errors, for close(2) where [`Welcome::flush_at_close`] says so.
    Flush,
    /// desc, offset, len: a sealed, executable memfd with these contents, for mmap(2) and execve(2).
    Contents,
    /// Everything of the volume (sync(2), syncfs(2)).
    SyncAll,
    /// desc, offset, len, `a`: other description, `b`: its offset: copy_file_range(2) within the volume; offsets may be
    /// [`POSITION`]. Result: bytes.
    Copy,
    /// desc, open for reading and writing. Reply: a memfd with the whole file, for a shared mapping, the same for all processes
    /// of the agent; `desc`: the number by which [`Op::Settle`] knows the file. If a mapping of it is refused with EPERM, it had
    /// just been given up: ask again.
    Map,
    /// Bytes that programs have stored in shared mappings are written: offset, len of the file `b` (0: of all files); `a` bit 0: and made durable.
    /// Afterwards memfds that no process maps any more are given up.
    Settle,
    /// path, `a`: kind and mode, `b`: number of a device (mknod(2)).
    Mknod,
    /// Reply: the memory of [`shared`], for all processes of the agent.
    Shared,
    /// `a` 0: which published indexes can be read, as [`indexes`] says. `a` 1 + s: the memory of server s; `b` 1: a descriptor that is
    /// readable when the server's process has ended (pidfd_open(2)). ENOENT if it is not shared any more.
    Indexes,
    /// `a` 0: with the directory of the agent's named pipes. Result: 1 + the number of the one that is reserved for this channel, by which it is named
    /// there; 0: there is none. The library opens it before it asks [`Op::Open`].
    Pipes,
}

/// See [`Op`]; no errno has this number.
pub const LEAVES: i64 = -4000;

/// Flags of a pipe that stands for a description (F_GETFL): no other pipe is likely to have both, so that the library
/// asks the agent for few others.
pub const PIPE_FLAGS: i32 = 0o40000 | 0o4000; // O_DIRECT | O_NONBLOCK

impl Op {
    /// Every operation, in the order of their numbers.
    pub const ALL: [Op; 45] = [
        Op::Identify,
        Op::Open,
        Op::Read,
        Op::Write,
        Op::Seek,
        Op::Stat,
        Op::StatOpen,
        Op::ReadDir,
        Op::Mkdir,
        Op::Rmdir,
        Op::Unlink,
        Op::Rename,
        Op::Link,
        Op::Symlink,
        Op::Readlink,
        Op::Truncate,
        Op::TruncateOpen,
        Op::Chmod,
        Op::Chown,
        Op::SetTimes,
        Op::Access,
        Op::Sync,
        Op::Allocate,
        Op::SetXattr,
        Op::GetXattr,
        Op::ListXattr,
        Op::RemoveXattr,
        Op::Lock,
        Op::Flock,
        Op::Unlock,
        Op::Cancel,
        Op::GetFlags,
        Op::SetFlags,
        Op::StatFs,
        Op::PathOf,
        Op::Flush,
        Op::Contents,
        Op::SyncAll,
        Op::Copy,
        Op::Map,
        Op::Settle,
        Op::Mknod,
        Op::Shared,
        Op::Indexes,
        Op::Pipes,
    ];

    /// The operation of a number.
    pub fn of_number(number: u32) -> Option<Op> {
        Op::ALL.get(number.checked_sub(1)? as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn layouts_stay_as_they_are() {
        assert_eq!((size_of::<Hello>(), offset_of!(Hello, pid)), (8, 4));
        assert_eq!((size_of::<Welcome>(), offset_of!(Welcome, flush_at_close), offset_of!(Welcome, dev)), (16, 4, 8));
        assert_eq!((size_of::<Request>(), size_of::<Reply>(), size_of::<Stat>()), (64, 24, 120));
        assert_eq!(
            (size_of::<Kept>(), offset_of!(Kept, seen), offset_of!(Kept, len), offset_of!(Kept, counter)),
            (24, 8, 16, 20)
        );
        let request = [
            (offset_of!(Request, op), 0),
            (offset_of!(Request, bytes), 4),
            (offset_of!(Request, desc), 8),
            (offset_of!(Request, offset), 16),
            (offset_of!(Request, len), 24),
            (offset_of!(Request, a), 32),
            (offset_of!(Request, b), 40),
            (offset_of!(Request, c), 48),
            (offset_of!(Request, first), 56),
            (offset_of!(Request, umask), 60),
            (offset_of!(Request, processor), 62),
        ];
        request.iter().for_each(|(is, should)| assert_eq!(is, should));
        let reply =
            [offset_of!(Reply, result), offset_of!(Reply, desc), offset_of!(Reply, bytes), offset_of!(Reply, has_fd)];
        assert_eq!(reply, [0, 8, 16, 20]);
        assert_eq!((size_of::<indexes::SharedIndexes>(), offset_of!(indexes::SharedIndexes, uid)), (32, 16));
        assert_eq!((size_of::<indexes::ResolvedDirectory>(), offset_of!(indexes::ResolvedDirectory, server)), (40, 32));
        let stat = [
            (offset_of!(Stat, ino), 0),
            (offset_of!(Stat, size), 8),
            (offset_of!(Stat, blocks), 16),
            (offset_of!(Stat, rdev), 24),
            (offset_of!(Stat, mode), 32),
            (offset_of!(Stat, nlink), 36),
            (offset_of!(Stat, uid), 40),
            (offset_of!(Stat, gid), 44),
            (offset_of!(Stat, blksize), 48),
            (offset_of!(Stat, atime), 56),
            (offset_of!(Stat, mtime), 72),
            (offset_of!(Stat, ctime), 88),
            (offset_of!(Stat, btime), 104),
        ];
        stat.iter().for_each(|(is, should)| assert_eq!(is, should));
    }

    #[test]
    fn the_length_of_an_answer_to_an_open_says_which_parts_it_has() {
        let lengths = [0, 119, 120, 144, 160, 184, 185];
        let parts = [
            (false, false),
            (false, false),
            (false, false),
            (true, false),
            (false, true),
            (true, true),
            (false, false),
        ];
        assert_eq!(lengths.map(after_stat), parts);
    }

    #[test]
    fn operations_keep_their_numbers() {
        assert_eq!(Op::ALL.len() as u32, Op::Pipes as u32);
        for (at, op) in Op::ALL.iter().enumerate() {
            assert_eq!((*op as u32, Op::of_number(*op as u32)), (at as u32 + 1, Some(*op)));
        }
        assert_eq!((Op::Identify as u32, Op::Lock as u32, Op::Copy as u32), (1, 28, 39));
        assert_eq!((Op::of_number(0), Op::of_number(46)), (None, None));
    }
}
