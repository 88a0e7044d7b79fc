//! Every message, declared once: requests in this file, replies and the structures that messages carry in its
//! folder. The header of a frame says which shard is meant and who asks for the how-manieth change; the body
//! is an [`Envelope`] around a [`Request`], or a [`Reply`]. A request with many fields has them in a struct of
//! [`fields`](crate::fields).
//!
//! Each request names the shard that its header must carry: *entry* (hash of parent and name),
//! *home* (the inode's), *chunk* (the chunk's), or none (*server*: the whole server is meant).

mod files;
mod lock;
mod names;
mod reply;
mod status;

use std::sync::Arc;

use crate::attr::{Change, Identity, Spread, Stub, XattrHow};
use crate::backing::{Imported, Settle, Staged};
use crate::check::{ChunkPlace, DataPlace, EntryPlace};
use crate::fields::{CountChanges, Create, Prepare, PrepareExchange, Punch, Read, Reserve, Scan, Seek, Write};
use crate::ids::{
    Generation, Incarnation, Ino, MapEpoch, NamespaceEpoch, ServerIndex, SessionId, ShardId, SlotIndex, Time, TxId,
};
use crate::name::Name;
use crate::place::{ServerInfo, ShardMap};
use crate::wire::Blob;
use crate::{wire_enum, wire_struct};

pub use files::{Durability, FileNow, Handle, HeldStub, Recall};
pub use lock::{LockMode, LockOutcome, LockSpace, LockSpec};
pub use names::{Found, Listed, ScanPlace, SubDir, Usage, Victim};
pub use reply::Reply;
pub use status::{Counter, HotCount, JobActivity, RecentActivity, ServerActivity, ServerStatus};

wire_struct! {
    /// The body of a request frame.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Envelope {
        /// On whose behalf.
        pub identity: Identity,
        /// The request itself.
        pub request: Request,
    }
}

wire_enum! {
    /// What can be asked of a server.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Request {
        /// Entry shard. Needs search permission on the parent. Reply: `Entry`.
        1 = Lookup { parent: Ino, name: Name },
        /// Entry shard. Makes a file of any kind but a hard link. Reply: `Entry`.
        2 = Create(Create),
        /// Entry shard. Removes a name of anything but a directory. Reply: `DoneAt`.
        3 = Unlink { parent: Ino, name: Name },
        /// Entry shard. Removes an empty directory. Reply: `Done`.
        4 = Rmdir { parent: Ino, name: Name },
        /// Entry shard of the new name. Reply: `Attributes`.
        5 = Link { parent: Ino, name: Name, ino: Ino },
        /// Entry shard of the old name. Reply: `Done`.
        6 = Rename {
            parent: Ino,
            name: Name,
            to_parent: Ino,
            to_name: Name,
            /// Fail if the new name exists (`RENAME_NOREPLACE`).
            no_replace: bool,
        },
        /// Entry shard. Opens a regular file by name, if its inode lives beside its entry; else opens
        /// nothing. Reply: `Entry`, with attributes exactly if the inode is here.
        7 = OpenName { parent: Ino, name: Name, handle: u64, read: bool, write: bool },

        /// Home. `exact` gathers a directory's counts and times from all servers with entries of it.
        /// Reply: `Attributes`.
        10 = GetAttr { ino: Ino, exact: bool },
        /// Home. Reply: `Attributes`.
        11 = SetAttr { ino: Ino, change: Change },
        /// Home. Sets the length; needs write permission unless `opened` (the handle was checked at
        /// open). Reply: `Attributes` with the new generation.
        12 = Truncate { ino: Ino, size: u64, opened: bool },
        /// Home. Checks permission and registers an open. Reply: `Attributes`.
        13 = Open { ino: Ino, handle: u64, read: bool, write: bool },
        /// Server. Ends opens; repeating it is harmless. Reply: `Done`.
        14 = Close { handles: Vec<Handle> },
        /// Home. The file has been written up to `end` (0: not at all), in the generation named; its
        /// modification time becomes now. `spread` announces the first data beyond chunk 0, and is
        /// acknowledged before such data are sent; and holes. Reply: `Attributes`.
        15 = Report { ino: Ino, generation: Generation, end: u64, spread: Spread },
        /// Home. Reply: `Target`.
        16 = ReadLink { ino: Ino },
        /// Home of a directory. Needs read permission. Reply: `Holders`.
        17 = Holders { dir: Ino },

        /// Chunk. The payload is written at `offset` of the chunk; chunk 0 at the inode's home also
        /// moves size and times. Reply: `Written`.
        20 = Write(Write),
        /// Chunk. Reply: `Data`.
        21 = Read(Read),

        /// Server. This server's entries of a directory after cookie `after` (0: from the first), in
        /// order of their cookies; entries of equal cookie come in one page. Reply: `Listing`.
        30 = List { dir: Ino, after: u64, limit: u32, attrs: bool },
        /// Server. Looks through this server's entries of many directories. Reply: `Scanned`.
        31 = Scan { scan: Box<Scan> },
        /// Server. Reply: `Space`.
        32 = StatFs,
        /// Server. Reply: `Status`.
        33 = Status,
        /// Server. Reply: `ActivityIs`.
        38 = Activity,
        /// Server. The server's map. Reply: `Map`.
        34 = GetMap,
        /// Server; the owner or root. The server ends when the reply is sent. Reply: `Done`.
        35 = Shutdown,
        /// Server. The session ends, and its opens and locks with it. Reply: `Done`.
        36 = EndSession,

        /// Keeper, from a process on the same machine: the process of this server has ended. `began` and
        /// `incarnation` say which life of it is meant. Reply: `Done`.
        39 = ServerEnded { server: ServerIndex, began: MapEpoch, incarnation: Incarnation },

        /// Keeper, from a server that starts. Answered when the volume is complete. Reply: `Map`.
        40 = Join { slot: ServerIndex, info: ServerInfo },
        /// Server, from the keeper: a newer map. Reply: `Done`.
        41 = MapPush { map: Arc<ShardMap> },
        /// Home of a directory, from a server that has entries of it to serve. Reply: `StubGranted`.
        42 = StubGet { dir: Ino, holder: ServerIndex, incarnation: Incarnation },
        /// Server, from a directory's home: stop changing entries if there are none. Reply: `StubClosed`.
        /// `round` grows with every closing of the directory, so that late copies are told apart.
        43 = StubClose { dir: Ino, round: u64 },
        /// Server: the removal did not happen. Reply: `Done`.
        44 = StubReopen { dir: Ino, round: u64 },
        /// Server: the directory is gone. Reply: `Done`.
        45 = StubDrop { dir: Ino },
        /// Server: a directory's rights have changed; of the root, every server is told its rights. Reply: `Done`.
        46 = StubUpdate { stub: Stub },
        /// Server, from a directory's home: this server's part of its counts. From version 16 on who has answered sends `StubGet` before it
        /// answers a change of that part. Reply: `FragmentIs`.
        47 = Fragment { dir: Ino },
        /// Entry shard of a rename's new name: lock and validate. Reply: `Prepared`.
        48 = Prepare(Prepare),
        /// Entry shard of a rename's new name: the decision. Reply: `Done`.
        49 = Commit { tx: TxId, to_parent: Ino, to_name: Name },
        /// Entry shard of a rename's new name: never mind. Reply: `Done`.
        50 = Abort { tx: TxId, to_parent: Ino, to_name: Name },
        /// Server, to a coordinator: what became of it? Reply: `TxIs`.
        51 = TxOutcome { tx: TxId },
        /// Entry shard of the second name of an exchange: as `Prepare`; the name must be there, and its
        /// inode gets the first name. Reply: `Prepared`.
        52 = PrepareExchange(PrepareExchange),
        /// Server, to a coordinator: these renames have been committed here. Reply: `Done`, when their old
        /// names have gone.
        53 = TxResolve { txs: Vec<TxId> },
        /// Home of a directory: it has moved. Reply: `Done`.
        54 = SetParent { ino: Ino, parent: Ino },
        /// Home of a directory. Reply: `ParentIs`.
        55 = ParentOf { ino: Ino },
        /// Home of a directory: make it dead if it is empty everywhere. Reply: `Done`.
        56 = CloseDir { dir: Ino },
        /// Keeper: a directory is renamed or loses rights. Answered when every server knows that serves paths through it. Reply: `EpochIs`.
        57 = RaiseEpoch { dir: Ino },
        /// Server, from the keeper: `changed` are renamed or lose rights, the last one at this epoch, and each at the one after that of the
        /// one before it. This server is the home of the directories `at_home`, and may have entries of those `with_entries`.
        /// Reply: `PathsAre`.
        58 = EpochPush { epoch: NamespaceEpoch, changed: Vec<Ino>, at_home: Vec<Ino>, with_entries: Vec<Ino> },
        /// Keeper: the one token for moving directories between parents. Reply: `Done`.
        59 = TakeToken { tx: TxId },
        /// Keeper: the transaction needs the token no longer; 0 means those of earlier lives of the sender. Reply: `Done`.
        60 = DropToken { tx: TxId },
        /// Server: drop a file's bytes from `length` on and refuse generations below. Reply: `Done`.
        61 = TruncateData { ino: Ino, generation: Generation, length: u64, chunk_bits: u8 },
        /// Server: drop all of a deleted file's data. Reply: `Done`.
        62 = DeleteData { ino: Ino },
        /// Home, from a server that may have missed a truncation. Reply: `TruncateIs`.
        63 = TruncateQuery { ino: Ino, have: Generation },
        /// Home, from the server of a new name in `shard`: one name more, provisionally. Reply: `Attributes`.
        64 = LinkBegin { ino: Ino, tx: TxId, shard: ShardId },
        /// Home: whether the name that was announced was made. Repeating it is harmless. Reply: `Done`.
        65 = LinkEnd { ino: Ino, tx: TxId, kept: bool },
        /// Home: one name less; done once for each `tx`. Reply: `Attributes`, or `Done` if the inode is gone.
        66 = LinkDrop { ino: Ino, tx: TxId },
        /// Home: the answer to `LinkDrop` has arrived. Reply: `Done`.
        67 = LinkForget { ino: Ino, tx: TxId },
        /// Shard of a new name, from the inode's home: was it made? Reply: `TxIs`.
        68 = LinkOutcome { tx: TxId },
        /// Home: may this user write it? Reply: `Done`.
        69 = MayWrite { ino: Ino, identity: Identity },

        /// Home. The value of an extended attribute. Reply: `Xattr`.
        100 = GetXattr { ino: Ino, name: Blob },
        /// Home. Reply: `XattrNames`.
        101 = ListXattr { ino: Ino },
        /// Home. Without a value the attribute is removed. Reply: `Attributes`, or `Done` for the
        /// access control lists of a directory.
        102 = SetXattr { ino: Ino, name: Blob, value: Option<Blob>, how: XattrHow },
        /// Chunk. Zeros are stored in the range wherever nothing is, or with `zero` everywhere, so that
        /// later writes to it need no more memory. Reply: `Done`.
        103 = Reserve(Reserve),
        /// Chunk, and all other chunks of the file in the same shard. The file's bytes from `start` to
        /// `end` become zeros, and whole units give their memory back. Reply: `Done`.
        104 = Punch(Punch),
        /// Server. Where in the file the first byte is, from `offset` on, that is stored on this server,
        /// or with `hole` that belongs here and is not. Reply: `SoughtIs`.
        105 = Seek(Seek),
        /// Server. How often data of the file have changed in the shards of this server. Reply: `ChangesAre`.
        108 = CountChanges(CountChanges),
        /// Entry shard of a name that is not made: it only says where. Makes a regular file without a
        /// name and opens it, with `write` for writing, too; until it has none again, it may be given one by `Link`.
        /// Reply: `Entry`.
        106 = CreateUnnamed { parent: Ino, name: Name, mode: u32, open: u64, write: bool },
        /// Entry shard of the first name. Two names that are both there change places
        /// (`RENAME_EXCHANGE`). Reply: `Done`.
        107 = Exchange { parent: Ino, name: Name, to_parent: Ino, to_name: Name },
        /// Server: refuse this session from now on. Answered when none of its changes is under way here
        /// any more. Reply: `Done`.
        70 = FenceSession { session: SessionId },

        /// Home of a file open for writing. The payload goes to the end of the file, in one piece, after
        /// all appends that the home has taken on before. Reply: `Appended`.
        110 = Append {
            ino: Ino,
            /// One checksum for each block of the payload, counted from its beginning.
            sums: Vec<u32>,
        },
        /// Home. Locks a range of a file, or puts the request into the file's queue under the number
        /// `wait` of the session. Reply: `LockIs`, which is `Granted`, `Held`, `Queued` or `Deadlock`.
        111 = SetLock { ino: Ino, lock: LockSpec, wait: Option<u64> },
        /// Home. Unlocks what an owner has of a range. Reply: `Done`.
        112 = Unlock { ino: Ino, space: LockSpace, owner: u64, start: u64, end: u64 },
        /// Home. Whether a lock could be had. Reply: `LockIs`, which is `Granted` or `Held`.
        113 = TestLock { ino: Ino, lock: LockSpec },
        /// Home. Answered when the request that waits under this number is granted, or soon in any
        /// case. Reply: `LockIs`, which is `Granted`, `Queued` or `Cancelled`.
        114 = AwaitLock { ino: Ino, wait: u64 },
        /// Home. Takes a request out of the queue. Reply: `LockIs`: `Cancelled`, or `Granted` if it had
        /// left the queue before.
        115 = CancelLock { ino: Ino, wait: u64 },
        /// Server. The session that has locks, or waits for some, of files of this server still lives.
        /// Reply: `Done`.
        116 = KeepLocks,
        /// Server. Answered when a lease of the session is recalled, and soon in any case; from now on and
        /// for a moment the session is given leases. It has let go of everything up to `confirmed`, a
        /// number of that life of the server. Reply: `Recalled`.
        117 = Listen { life: u64, confirmed: u64 },
        /// Home. How often a file is open. Reply: `OpensAre`.
        118 = CountOpens { ino: Ino },
        /// Home. Freezes a file that the session has open under `handle`, if no session has had it open for writing
        /// since then and it has this generation and change time, and one name: until that open ends, every request
        /// that would change the file waits. `any_life` takes it although the home was started again since the file was
        /// made, so that it does not know opens from before. Reply: `Frozen`.
        119 = Freeze { ino: Ino, handle: u64, generation: Generation, ctime: Time, any_life: bool },
        /// Entry shard. As `Unlink`, of a file that the session has frozen; refused if the name leads elsewhere, or the
        /// file's home was started again after the epoch `began` that it gave with `Frozen`. Reply: `DoneAt`.
        120 = UnlinkFrozen { parent: Ino, name: Name, ino: Ino, began: MapEpoch },
        /// Home. `Open` for reading that also asks for the whole contents of a file of at most
        /// `contents` bytes. Reply: `OpenedWith`, or as `Open`'s where they do not come along: a
        /// request that is sent again gets them no second time.
        125 = OpenWith { ino: Ino, handle: u64, write: bool, contents: u32 },
        /// Entry shard. `OpenName` in the same way. Reply: `OpenedWith`, or as `OpenName`'s.
        126 = OpenNameWith { parent: Ino, name: Name, handle: u64, write: bool, contents: u32 },
        /// Home. As `Open` for reading, by a kernel that is about to run the file: needs the right to that, not to
        /// read.
        127 = OpenToRun { ino: Ino, handle: u64 },
        /// Server, from a client of its node: opens the regular file at a path below a directory for reading, by a client of the server's own, which
        /// opens a file that several clients open once for all; `contents`: those of a small file are wanted, too. It is open until
        /// `CloseThrough`, or the session ends. Reply: `OpenedThrough`.
        128 = OpenThrough { dir: Ino, path: Blob, handle: u64, contents: bool },
        /// Server, from a client of its node: as `OpenThrough` of the regular file that a name of a directory means, where the directory was found
        /// by a path. A symbolic link is not followed. Reply: `OpenedThrough`.
        211 = OpenNameThrough { dir: Ino, name: Name, handle: u64, contents: bool },
        /// Server. Files that were opened through it are closed. Reply: `Done`.
        129 = CloseThrough { handles: Vec<u64> },

        /// Server, from one with persistent storage: which volume is this? Reply: `PersistentIs`.
        85 = PersistentId,
        /// Server, from a coordinator that has started again: has the rename been committed here? If
        /// not, it is given up, and never will be. Reply: `TxIs`.
        86 = TxDone { tx: TxId },
        /// Server, from another one that has started again: what entries here lead to inodes whose home
        /// is there, shard by shard. Reply: `LinksAre`.
        87 = LinksTo { home: ServerIndex, from: u32 },
        /// Server, from another one that has data of them: which of these files are there. Reply: `FilesAre`.
        88 = FilesNow { inos: Vec<Ino> },
        /// Server, from server `of`, which has come back alone: stubs here of directories whose home it is, from
        /// inode number `from` on, and the sessions that are refused here. Reply: `KnownIs`.
        97 = Known { of: ServerIndex, from: Ino },
        /// Server, from another one that has started again: are all changes in doubt resolved there?
        /// Reply: `Done`.
        96 = IsDone,
        /// Server: answered when all that it has done is durable, if it has persistent storage. Reply: `Synced`.
        130 = Sync,

        /// Server; the owner or root. Inodes from number `from` on with homes below `end_home`, or those of
        /// `only`. Reply: `InodesChecked`.
        150 = CheckInodes { from: Ino, end_home: u32, directories: bool, only: Vec<Ino> },
        /// Server; the owner or root. Names from a place on that lead to inodes with homes from `first_home`
        /// to below `end_home`, or to those of `only`. Reply: `EntriesChecked`.
        151 = CheckEntries { from: EntryPlace, first_home: u32, end_home: u32, only: Vec<Ino> },
        /// Server; the owner or root. Compares data with their checksums, from a place on or of one chunk, and
        /// asks whether their files are there. Reply: `DataChecked`.
        152 = CheckData { from: DataPlace, only: Option<ChunkPlace> },
        /// Server; the owner or root. From now on, note which of these inodes change or get or lose names;
        /// without any: which have. A watch with the same or an older number is not begun again. Reply: `Done`,
        /// or `WatchTold`.
        153 = CheckWatch { number: u64, begin: Option<Vec<Ino>> },

        /// Home. Where an inode came from, and whether it was changed since. Reply: `BackingIs`.
        160 = BackingOf { ino: Ino },
        /// Home of a file that came from a backing: its data are about to be changed. Answered when that is noted. Reply:
        /// `BackingIs`.
        161 = WillChange { ino: Ino },
        /// Home of a directory. Answered when all its names have been imported from the backing. Reply: `Done`.
        162 = ImportDir { dir: Ino },
        /// Server, from the home of a directory that is being imported: makes those of the names that are not there. Reply:
        /// `Done`.
        163 = Import { dir: Ino, names: Vec<Imported> },
        /// Server; the owner or root. Names of the backing that do not lead any more, in the volume, to the objects
        /// imported under them, from a place on. Reply: `GoneAre`.
        164 = GoneNames { from: EntryPlace },
        /// Home of an inode that came from the backing; the owner or root. The backing is about to lose the object from which it
        /// came: from now on the volume alone has its data, under any name. Reply: `Done`.
        165 = LeaveBacking { ino: Ino },
        /// Entry; the owner or root. The backing has followed the removal of this name, or has another object there that the
        /// volume has put there: the record of that moment is dropped. Reply: `Done`.
        166 = ForgetGone { parent: Ino, name: Name, since: Time },
        /// Home of a file; the owner or root. A stage has put this version of it into the backing: if it still has that one, the
        /// object there is its origin from now on, and its data are copies. Answered when all servers of its data have said
        /// whether theirs are. Reply: `BackingIs`.
        167 = Adopt { staged: Box<Staged> },
        /// Server, from a file's home: says whether its data are those that the backing has, and makes them copies if so. Reply:
        /// `Settled`.
        168 = Settle { settle: Box<Settle> },
        /// Home of a file; the owner or root. A stage is about to put it into the backing: what an earlier one has put there is not
        /// adopted from now on. Reply: `Claimed`.
        169 = Claim { ino: Ino },

        /// Keeper; the owner or root. A slot is to be served by another server. Answered when it is. Reply: `Done`.
        170 = MoveSlot { slot: SlotIndex, to: ServerIndex },
        /// Server, from the keeper: sends some of the data of a slot in advance to the server that will have it. Reply:
        /// `CopiedIs`.
        171 = CopySlot { moving: u64, slot: SlotIndex, to: ServerIndex },
        /// Server, from the keeper: gives a slot. Answered when the other server has all of it, and nothing of it changes here
        /// until the map says whose it is. Reply: `Done`.
        172 = GiveSlot { moving: u64, slot: SlotIndex, to: ServerIndex },
        /// Server, from one that gives a slot: a piece of it, with data of files in the payload. Taken in once for each
        /// `number`. Reply: `Done`.
        173 = TakePiece {
            moving: u64,
            slot: SlotIndex,
            number: u64,
            piece: Blob,
            /// One checksum for each block of the payload.
            sums: Vec<u32>,
        },
        /// Server, from one that gives a slot: these pieces were all. `leased`: clients may believe answers of the giver for
        /// as long as a lease lasts. Answered when the homes of all directories know who has entries of them. Reply: `Done`.
        174 = TakeAll { moving: u64, slot: SlotIndex, pieces: u64, leased: bool },
        /// Server, from the keeper: a move is over, and this map says how it ended. Reply: `Done`.
        175 = MoveEnd { moving: u64, map: Arc<ShardMap> },
        /// Keeper: how has a move ended? Refused with `Busy` while that is not decided. Reply: `Map`.
        176 = MoveOutcome { moving: u64 },
        /// Server, from the giver, if the keeper has ended: has the slot been taken into use? If not, it never will be. Reply:
        /// `Map`.
        177 = TakeUndo { moving: u64 },
        /// Server, from one that takes a slot: it has entries of these directories. Reply: `Done`.
        178 = NoteHolders { holder: ServerIndex, incarnation: Incarnation, dirs: Vec<Ino> },
        /// Server, from one that has given it a slot in which the session had opens or locks: the session has left, or `is_over`.
        /// Reply: `Done`.
        179 = SessionGone { session: SessionId, is_over: bool },
        /// Keeper; the owner or root. These servers are to leave the volume: moves one slot of theirs to a server that stays;
        /// those that have none left have left. Repeated until none stays. Reply: `Leaving`.
        180 = Leave { servers: Vec<ServerIndex> },
        /// Keeper, from a server that joins a volume in use, as the one with the next number. Reply: `Entered`.
        182 = Enter { slot: ServerIndex, info: ServerInfo },
        /// Keeper; the owner or root. Moves one slot to a server that has fewer than others. Repeated until all have as many, but for
        /// one. Reply: `Balancing`.
        183 = Balance,
        /// Server, from another member of the keeper group that was formed by this map: what its consensus has to say. Refused if the
        /// group has decided on another one since. Reply: `Done`.
        190 = Group { formed: MapEpoch, bytes: Blob },
        /// Server, from one that has become the keeper by this map: takes it into use, and says what only the keeper before knew.
        /// Reply: `TakeoverIs`.
        191 = Takeover { map: Arc<ShardMap> },
        /// Server, to the members of the keeper group: the keeper, in this life, has not answered, or its process `has_ended`, as a
        /// process on the same machine has seen. Reply: `Done`.
        192 = KeeperGone { keeper: ServerIndex, began: MapEpoch, incarnation: Incarnation, has_ended: bool },
        /// Server, from the first one when all servers of a volume in directories start: to which map has this one agreed last as a member
        /// of a keeper group? Reply: `GroupKeptIs`.
        193 = GroupKept,
        /// Server: the rights of the root, as that has been told them, for a client that cannot ask the root's home since that has ended.
        /// Reply: `StubGranted`.
        210 = RootRights,
        /// Server, from one that holds opens or locks of the session and is to be told of its end: is the session connected
        /// there, or was it a moment ago? Reply: `Done`, or refused with `Expired`.
        181 = KnowsSession { session: SessionId },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileKind;
    use crate::wire::Wire;

    #[test]
    fn tags_are_unique() {
        for names in [Request::NAMES, Reply::NAMES] {
            let mut tags: Vec<_> = names.iter().map(|(tag, _)| tag).collect();
            tags.sort();
            tags.dedup();
            assert_eq!(tags.len(), names.len());
        }
    }

    #[test]
    fn hostile_counts_take_no_memory() {
        let mut bytes = 14u16.to_bytes();
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        assert!(Request::from_bytes(&bytes).is_err());
    }

    #[test]
    fn messages_survive_the_wire() {
        let request = Request::Create(Create {
            parent: Ino::ROOT,
            name: Name::new(b"x").unwrap(),
            kind: FileKind::Symlink,
            mode: 0o777,
            rdev: 0,
            target: Blob(b"../y".to_vec()),
            exclusive: true,
            open: Some(4),
            write: true,
            chunk_bits: 0,
            private: false,
        });
        let envelope = Envelope { identity: Identity { uid: 1, gid: 2, groups: vec![3, 4] }, request };
        assert_eq!(Envelope::from_bytes(&envelope.to_bytes()), Ok(envelope));
    }
}
