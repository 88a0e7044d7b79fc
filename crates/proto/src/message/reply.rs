//! Every reply, declared once.

use std::sync::Arc;

use super::{
    Durability, FileNow, Found, HeldStub, Listed, LockOutcome, Recall, ScanPlace, ServerActivity, ServerStatus, SubDir,
    Usage, Victim,
};
use crate::attr::{Attr, FileKind, Stub};
use crate::backing::{Backing, Gone};
use crate::check::{CheckedEntry, CheckedInode, ChunkPlace, DamagedData, DataPlace, EntryPlace};
use crate::ids::{Generation, Ino, MapEpoch, NamespaceEpoch, ServerIndex, SessionId, Time, TxId};
use crate::place::{Agreed, Away, ShardMap};
use crate::wire::Blob;
use crate::wire_enum;

wire_enum! {
    /// What a server answers.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Reply {
        /// It is done.
        1 = Done,
        /// A name's meaning. Without `attr` the inode lives elsewhere: ask its home.
        2 = Entry { ino: Ino, kind: FileKind, attr: Option<Attr>, created: bool },
        /// Attributes of the inode asked about.
        3 = Attributes { attr: Attr },
        /// A symlink's target.
        4 = Target { target: Blob },
        /// The servers that hold entries of a directory, and its attributes.
        5 = Holders { servers: Vec<ServerIndex>, attr: Attr },
        /// Data are stored; attributes where the server is the inode's home.
        6 = Written { attr: Option<Attr> },
        /// Data of one chunk. The payload starts at `start`, a block border at or before the offset
        /// asked for, and ends where this chunk's stored data end or at the block border at or after
        /// the end asked for. What lies beyond it is a hole or beyond the end of the file: only the
        /// size tells, which is given where the server is the inode's home.
        7 = Data { start: u32, sums: Vec<u32>, size: Option<u64> },
        /// A page of a directory; `more` says that another one follows after the last entry.
        8 = Listing { entries: Vec<Listed>, more: bool },
        /// A page of a search. With `next` there is more, from that place on.
        9 = Scanned { found: Vec<Found>, subdirs: Vec<SubDir>, elsewhere: Vec<Found>, usage: Vec<Usage>, next: Option<ScanPlace> },
        /// Space of one server, in bytes, and its number of inodes.
        10 = Space { capacity_bytes: u64, used_bytes: u64, inodes: u64, inodes_max: u64 },
        /// How a server is.
        11 = Status { status: Box<ServerStatus> },
        /// The server's own counters, and its activity by job.
        54 = ActivityIs { activity: Box<ServerActivity> },
        /// The shard map.
        12 = Map { map: Arc<ShardMap> },
        /// A directory's stub.
        13 = StubGranted { stub: Stub },
        /// Whether the stub was closed, that is: whether there was no entry.
        14 = StubClosed { empty: bool },
        /// A part of a directory's counts.
        15 = FragmentIs { entries: u64, subdirs: u64, changed: Time },
        /// The new name is locked; it leads to `victim` now.
        16 = Prepared { victim: Option<Victim> },
        /// What became of a transaction; `None` when it is not yet decided.
        17 = TxIs { committed: Option<bool> },
        /// A directory's parent.
        18 = ParentIs { parent: Ino },
        /// The namespace epoch.
        19 = EpochIs { epoch: NamespaceEpoch },
        /// An entry went at this time. A repeated request may be answered with `Done`.
        21 = DoneAt { time: Time },
        /// What a server that may have missed truncations has to drop.
        20 = TruncateIs { generation: Generation, length: u64, chunk_bits: u8 },
        /// Data were appended and begin at `offset`.
        35 = Appended { attr: Attr, offset: u64 },

        /// A file is open. The payload is all its stored bytes, which are in chunk 0, from its
        /// beginning on, as they were when the file was opened; up to the size the rest is a hole.
        45 = OpenedWith { attr: Attr, sums: Vec<u32> },
        /// The value of an extended attribute.
        30 = Xattr { value: Blob },
        /// The names of extended attributes.
        31 = XattrNames { names: Vec<Blob> },
        /// Where it is in the file; nowhere on this server.
        32 = SoughtIs { at: Option<u64> },
        /// Changes of a file's data on this server, counted since it started; `life` names that start. Two equal answers mean
        /// that nothing has changed in between. `wraps` says how often a counter of its shards has begun anew.
        33 = ChangesAre { life: u64, wraps: u64, changes: u64 },
        /// How often a file is open, and how many of these opens are for writing, those of sessions that are away included.
        /// `knows_all` is false if the home was started again since the file was made: opens from before are not
        /// counted then.
        41 = OpensAre { opens: u32, writers: u32, knows_all: bool },
        /// The file is frozen; its home's life began at this epoch.
        42 = Frozen { began: MapEpoch },
        /// What became of a lock.
        36 = LockIs { outcome: LockOutcome },
        /// What the session has to let go of; it confirms that with `last`.
        37 = Recalled { life: u64, last: u64, recalls: Vec<Recall> },
        /// A rename or exchange is done, of these inodes, directories aside: the session drops them from its cache, as
        /// after a recall.
        40 = Moved { inos: Vec<Ino> },
        /// The volume's number, whether it is new, the number of this start, of the last one in which every server
        /// took part that was not left out, and the servers that have been left out, since which start.
        50 = PersistentIs { volume: u64, is_new: bool, start: u64, complete: u64, away: Vec<Away> },
        /// The inodes that entries lead to, one for each entry; with `next` there is more, from that shard on.
        51 = LinksAre { inos: Vec<Ino>, next: Option<u32> },
        /// Stubs of directories, in the order of their inode numbers, and refused sessions; with `next` there are more stubs, from that
        /// number on.
        57 = KnownIs { stubs: Vec<HeldStub>, fenced: Vec<SessionId>, next: Option<Ino> },
        /// Those of the files asked about that are there.
        52 = FilesAre { files: Vec<FileNow> },
        /// Earlier changes are as durable as this volume makes them; `durability` says how durable that is.
        53 = Synced { durability: Durability },
        /// Inodes; with `next` there are more, from that number on.
        75 = InodesChecked { inodes: Vec<CheckedInode>, next: Option<Ino> },
        /// Names, and those of the inodes singled out with whose names something is under way.
        76 = EntriesChecked { entries: Vec<CheckedEntry>, under_way: Vec<Ino>, next: Option<EntryPlace> },
        /// So many bytes were compared. `strays` have data here and are not there.
        77 = DataChecked { bytes: u64, damaged: Vec<DamagedData>, strays: Vec<ChunkPlace>, next: Option<DataPlace> },
        /// Those of the inodes watched with which something has happened.
        78 = WatchTold { changed: Vec<Ino> },
        /// Where an inode came from, if it came from a backing, its generation, and the base-2 logarithm of its chunk size.
        79 = BackingIs { backing: Option<Backing>, generation: Generation, chunk_bits: u8 },
        /// Names of the backing that went, and where to go on, if there are more.
        80 = GoneAre { names: Vec<Gone>, next: Option<EntryPlace> },
        /// Some data of a slot are at the server that will have it, and whether there are more.
        81 = CopiedIs { more: bool },
        /// Slots that servers which leave still have, and those of the servers that have not left.
        82 = Leaving { slots: u32, servers: Vec<ServerIndex> },
        /// The map with the server in it, and the sessions that no server serves.
        83 = Entered { map: Arc<ShardMap>, fenced: Vec<SessionId> },
        /// The namespace epoch of this server, and its transactions that have the token for moving directories.
        90 = TakeoverIs { epoch: NamespaceEpoch, tokens: Vec<TxId> },
        /// The number of the volume that this server has a part of, unless its directories are empty; and the newest
        /// map to which it has agreed as a member of a keeper group. Then its last start, the last complete one that it
        /// knows, and who was away then.
        91 = GroupKeptIs { volume: Option<u64>, agreed: Option<Box<Agreed>>, begun: u64, complete: u64, away: Vec<Away> },
        /// A file is open; `is_shared`: it was opened more than once lately. `contents`: all of them, if they came along.
        92 = OpenedThrough { attr: Attr, is_shared: bool, contents: Option<Blob> },
        /// Servers that hold stubs of the directories `at_home`, but for the one that answers, and the directories that it has in all that were
        /// named. `is_all`: these are certainly all.
        93 = PathsAre { holders: Vec<ServerIndex>, within: Vec<Ino>, is_all: bool },
        /// So many slots are to move until all servers have as many, but for one.
        84 = Balancing { slots: u32 },
        /// Whether all data of a file that a server has are those of the version asked about. They are copies of the backing then.
        85 = Settled { is_same: bool },
        /// What `Adopt` has to name, and where the file comes from now.
        86 = Claimed { claim: u64, backing: Option<Backing> },
    }
}
