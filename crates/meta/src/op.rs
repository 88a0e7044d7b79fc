//! Operations: every change of a shard, as data. Their encoding is what a journal keeps, so a
//! change of it raises [`OP_VERSION`] and adds a golden sample.

use crate::tables::{EntryKey, Lock};
use crate::xattr::Xattr;
use aze_proto::ids::{Generation, Ino, Life, MapEpoch, Sequence, SessionId, ShardId, Time, TxId};
use aze_proto::place::Layout;
use aze_proto::wire::Blob;
use aze_proto::{Attr, Backing, Failure, FileKind, Imported, Reply, Spread, XattrHow, wire_enum, wire_struct};

/// Version of the encoding of [`Op`] and [`Stamp`].
pub const OP_VERSION: u8 = 7;

/// Truncations of one file that may wait for data servers at once. One more is answered with
/// `Code::Busy`: the server must first get the earlier ones acknowledged.
pub const TRUNCATIONS_PENDING_MAX: usize = 64;

/// Inode numbers in the blocks that a shard starts by itself when it has used one up.
pub const INO_BLOCK: u64 = 1 << 16;

wire_struct! {
    /// A file to be made.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NewFile {
        /// Its kind.
        pub kind: FileKind,
        /// Permission bits (12 bits), see [`crate::access::new_file`].
        pub mode: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Device number, for device files; ignored for others.
        pub rdev: u32,
        /// A symlink's target; ignored for others.
        pub target: Blob,
        /// Map epoch of now.
        pub born: MapEpoch,
        /// Base-2 logarithm of the chunk size in bytes.
        pub chunk_bits: u8,
        /// Where its chunks go.
        pub layout: Layout,
        /// A private directory; for kind `Directory` only.
        pub private: bool,
        /// Its volume lies over a backing, into which it may be staged; for kind `File` only.
        pub over_backing: bool,
    }
}

wire_struct! {
    /// New attributes; `None` leaves a field as it is. [`crate::access::check_setattr`] makes it.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct AttrSet {
        /// Permission bits (12 bits).
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Access time.
        pub atime: Option<Time>,
        /// Modification time.
        pub mtime: Option<Time>,
    }
}

wire_enum! {
    /// How a request ended.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Outcome {
        /// With this reply.
        1 = Success { reply: Reply },
        /// With this error.
        2 = Failed { failure: Failure },
    }
}

impl From<Outcome> for Result<Reply, Failure> {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success { reply } => Ok(reply),
            Outcome::Failed { failure } => Err(failure),
        }
    }
}

impl From<Result<Reply, Failure>> for Outcome {
    fn from(result: Result<Reply, Failure>) -> Outcome {
        match result {
            Ok(reply) => Outcome::Success { reply },
            Err(failure) => Outcome::Failed { failure },
        }
    }
}

wire_enum! {
    /// A change of one shard. The reply named is what `apply` gives on success.
    ///
    /// An entry that a transaction holds is not changed by others: they fail with `Code::Busy`,
    /// without effect. An operation with `under` acts for the transaction named, whose lock ends
    /// with it; if that transaction does not hold the entry (any more), the operation has been
    /// done before: it does nothing and succeeds, so that a decision may be sent again.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Op {
        /// Makes the root directory (in shard 0, once). Reply: `Attributes`.
        1 = MakeRoot { uid: u32, gid: u32, mode: u32, born: MapEpoch, chunk_bits: u8 },
        /// Makes a file of any kind, or finds the one there if a regular file is wanted and
        /// `exclusive` is not set. Reply: `Entry`; the inode found may be of any kind but a
        /// directory (`IsDirectory`), and has attributes only if its inode is here.
        2 = Create { key: EntryKey, new: NewFile, exclusive: bool },
        /// Removes a name. Reply: `Done`. A file's inode here loses a link; elsewhere, see
        /// `Effects::drop_link`. A directory's inode here goes with its name; elsewhere its home
        /// has deleted it when it closed it.
        3 = Remove {
            key: EntryKey,
            /// Only if it leads there, else `Busy`: look again. A directory is removed only
            /// with this set (`IsDirectory` without).
            only: Option<Ino>,
            /// The name has moved to another place: the inode is left alone.
            moved: bool,
            under: Option<TxId>,
        },
        /// Sets a name that leads to an existing inode, whose link count must have been raised
        /// before (hard link), or does not change (rename). An inode that it replaces goes as in `Remove`.
        /// A name that leads there already is left as it is. Reply: `Attributes` with the `attr`
        /// given, else `Done`.
        4 = Insert {
            key: EntryKey,
            ino: Ino,
            kind: FileKind,
            /// Without it an existing name is an error (`Exists`).
            replace: bool,
            under: Option<TxId>,
            attr: Option<Attr>,
        },
        /// Sets attributes. Reply: `Attributes`.
        7 = SetAttr { ino: Ino, set: AttrSet },
        /// A file has been written up to `end` (0: not at all) in the generation named. Size and
        /// times move by maximum. Reply: `Attributes`.
        8 = Report { ino: Ino, generation: Generation, end: u64, spread: Spread },
        /// Sets a file's length and raises its generation by one. Reply: `Attributes`.
        9 = Truncate { ino: Ino, size: u64 },
        /// Every data server has truncated the file up to and including this generation. Reply: `Done`.
        10 = TruncateDone { ino: Ino, generation: Generation },
        /// A directory has moved. Reply: `Done`.
        11 = SetParent { ino: Ino, parent: Ino },
        /// Forgets an orphan that is open nowhere any more, or a directory that was closed
        /// because it is empty everywhere. Reply: `Done`.
        12 = Delete { ino: Ino },
        /// Lets a transaction lock an entry; repeating it is harmless. The source of a move must
        /// lead to the inode named (`NotFound`, `Busy`). Reply: for a destination `Prepared` with
        /// what the name leads to now, else `Done`.
        13 = Lock { key: EntryKey, lock: Lock },
        /// Ends a transaction's lock, if it has it. Reply: `Done`.
        14 = Unlock { key: EntryKey, tx: TxId },
        /// Nothing but the outcome of a request that no other operation decides: it took several steps, or failed.
        15 = Record { outcome: Outcome },
        /// Leaves the rest of the current block of inode numbers and starts one of `count`
        /// numbers after its end. A shard with a journal applies it after a restart, and before
        /// it runs out, and makes it durable before it creates: so no number that a lost tail of
        /// the journal had issued is issued again. Reply: `Done`.
        16 = ReserveInos { count: u64 },
        /// One more name for an inode here, provisionally, until `LinkEnd`: it is about to be made
        /// in `shard`, which can be asked. Repeating it is harmless. Reply: `Attributes`.
        20 = LinkBegin { ino: Ino, tx: TxId, shard: ShardId },
        /// The name that was announced was made, or not: then the count comes down again. Does
        /// nothing if it was not announced, or ended before. Reply: `Done`.
        21 = LinkEnd { ino: Ino, tx: TxId, kept: bool },
        /// Makes the name announced as `tx`, which is remembered until `LinkResolved`. Reply: `Done`.
        22 = LinkInsert { key: EntryKey, ino: Ino, kind: FileKind, tx: TxId },
        /// An inode here has lost a name in another shard, once for each `tx`, which is remembered
        /// until `LinkForget`. Reply: `Attributes`, or `Done` if the inode is gone.
        23 = LinkDrop { ino: Ino, tx: TxId },
        /// `LinkDrop` will not come again. Reply: `Done`.
        24 = LinkForget { ino: Ino, tx: TxId },
        /// The inode's home knows what `tx` has done to a name here. Reply: `Done`.
        25 = LinkResolved { tx: TxId },
        /// Sets or removes an extended attribute, and the mode that goes with it.
        /// [`crate::xattr::check_set`] makes the parts. Reply: `Attributes`.
        26 = SetXattr { ino: Ino, name: Blob, value: Option<Blob>, mode: Option<u32>, if_any: bool, how: XattrHow },
        /// As `Create`, with extended attributes for the new inode. Reply: `Entry`.
        27 = CreateWith { key: EntryKey, new: NewFile, exclusive: bool, xattrs: Vec<Xattr> },
        /// Lets a name that is there lead to another inode; the one that it led to loses nothing, since
        /// it gets another name in the same transaction (exchange). Reply: `Done`.
        28 = Exchange { key: EntryKey, ino: Ino, kind: FileKind, under: TxId },
        /// As `Report`, for data written to the chunk beside the inode: it decides the write. Reply: `Written` with
        /// the attributes.
        29 = Wrote { ino: Ino, generation: Generation, end: u64, spread: Spread },
        /// A session has ended: its outcomes are forgotten. Reply: `Done`.
        30 = EndSession { session: SessionId },
        /// Outcomes of sessions that were silent since the last time, and before it, are forgotten. Reply: `Done`.
        31 = ExpireOutcomes,
        /// As `Report`, for data appended at `offset`: it decides the append. Reply: `Appended`.
        32 = Appended { ino: Ino, generation: Generation, offset: u64, end: u64 },
        /// The shard was made empty again, and its slot has begun this life: no number of an earlier one is issued. Only
        /// for a life later than the shard's (`Invalid`). Reply: `Done`.
        33 = BeginLife { life: Life },
        /// Makes a name that was found in the volume's backing, with its inode; a name that is there is left as it is.
        /// Reply: `Entry`.
        34 = Import { key: EntryKey, file: Imported, born: MapEpoch, chunk_bits: u8, layout: Layout, spread: Spread },
        /// All names of a directory that lies over one of the backing have been imported. Reply: `Attributes`.
        35 = ImportedAll { dir: Ino },
        /// An inode lies over this one of the backing: of the root directory, when the volume is made. Reply: `Attributes`.
        36 = LieOver { ino: Ino, backing: Backing },
        /// The data of a file that came from the backing are about to be changed. Reply: `Attributes`.
        37 = WillChange { ino: Ino },
        /// What an inode came from is about to be removed from the backing: neither its data nor its attributes are there any
        /// more. Nothing if it did not come from there. Reply: `Attributes`.
        38 = LeaveBacking { ino: Ino },
        /// Drops the record of a name of the backing that went at this time, if there is one. Reply: `Done`.
        39 = ForgetGone { key: EntryKey, since: Time },
        /// A stage has put a file's bytes into the backing: this is where it comes from now on, and not all servers of its data
        /// have confirmed that yet. Reply: `Attributes`.
        41 = Adopt { ino: Ino, backing: Backing },
        /// All of them have, of this origin. Nothing if it has another one by now. Reply: `Attributes`.
        42 = Settled { ino: Ino, origin: u32 },
        /// The names of a file have been counted, at a time when none could be made or removed. Reply: `Done`.
        40 = SetLinks { ino: Ino, links: u32 },
    }
}

impl Op {
    /// The name that it makes, removes, holds or lets go, if it is about one.
    pub fn key(&self) -> Option<&EntryKey> {
        match self {
            Op::Create { key, .. }
            | Op::CreateWith { key, .. }
            | Op::Remove { key, .. }
            | Op::Insert { key, .. }
            | Op::LinkInsert { key, .. }
            | Op::Lock { key, .. }
            | Op::Unlock { key, .. }
            | Op::Exchange { key, .. }
            | Op::Import { key, .. } => Some(key),
            Op::MakeRoot { .. }
            | Op::SetAttr { .. }
            | Op::Report { .. }
            | Op::Truncate { .. }
            | Op::TruncateDone { .. }
            | Op::SetParent { .. }
            | Op::Delete { .. }
            | Op::Record { .. }
            | Op::ReserveInos { .. }
            | Op::BeginLife { .. }
            | Op::LinkBegin { .. }
            | Op::LinkEnd { .. }
            | Op::LinkDrop { .. }
            | Op::LinkForget { .. }
            | Op::LinkResolved { .. }
            | Op::SetXattr { .. }
            | Op::Wrote { .. }
            | Op::Appended { .. }
            | Op::EndSession { .. }
            | Op::ExpireOutcomes
            | Op::ImportedAll { .. }
            | Op::LieOver { .. }
            | Op::WillChange { .. }
            | Op::LeaveBacking { .. }
            | Op::ForgetGone { .. }
            | Op::Adopt { .. }
            | Op::Settled { .. }
            | Op::SetLinks { .. } => None,
        }
    }
}

wire_struct! {
    /// When an operation happens and for which request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Stamp {
        /// The operation's time (hybrid clock).
        pub time: Time,
        /// Whose request it is.
        pub session: SessionId,
        /// The request's number; 0: the outcome is not recorded.
        pub sequence: Sequence,
        /// The lowest sequence that the session still wants.
        pub floor: Sequence,
    }
}

impl Stamp {
    /// A stamp that records nothing.
    pub fn at(time: Time) -> Stamp {
        Stamp { time, ..Stamp::default() }
    }
}
