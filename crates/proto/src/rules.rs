//! The properties of a request by its kind: one row for each, from which everything else follows.
//!
//! A row names every property, so that a request without one does not compile. Where a field of the request decides, too,
//! the method that asks for the property says so.

use crate::fields::{Punch, Reserve, Write};
use crate::ids::Ino;
use crate::message::{Reply, Request};

/// Where a request goes. The first three have a shard, which the header states and the server must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The shard of parent and name.
    Entry,
    /// The inode's shard.
    Home,
    /// The chunk's shard.
    Chunk,
    /// A server as a whole.
    Server,
    /// A server as a whole, as the one that serves certain slots: one that knows a newer map refuses the sender, who
    /// has to find out anew which servers are to be asked.
    Slots,
    /// The server that keeps the map.
    Keeper,
}

/// Who may send a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Every session.
    Anyone,
    /// Sessions of the volume's owner and of root.
    Owner,
    /// Servers of the volume.
    Servers,
}

/// What a request changes. A change has a sequence number, and takes effect once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Nothing that a repetition would change again.
    Nothing,
    /// Names and inodes, with which its outcome is remembered.
    Names,
    /// What its session holds: opens and locks, which end with it. Its outcome is remembered in memory only.
    Holds,
    /// Data, with which its outcome is remembered.
    Data,
}

/// Whether the sender has to know of all directories that were renamed or have lost rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paths {
    /// It must: the request means names.
    Paths,
    /// It need not.
    Plain,
}

/// Whether a client repeats a request if it does not know, after a start of the volume, whether the request was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// The result is the same.
    Again,
    /// It is not.
    Once,
}

/// How far the journal must be before the answer leaves a server that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The record is with the system.
    Written,
    /// The record is synced: other servers build upon the answer.
    Durable,
}

/// What a server does before it sends a request to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Nothing.
    AtOnce,
    /// It writes its journal: what the other one does must not outlast its cause when this one's process is killed.
    Written,
    /// It syncs its journal: what the other one does must not outlast its cause.
    Synced,
}

/// In which state a server answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It is in the map, and its storage works.
    Mapped,
    /// Its storage works.
    Unmapped,
    /// It is in the map.
    Failed,
    /// Any.
    Always,
}

/// Whether a request makes the journal longer without need: it is refused when the disk is nearly full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It does.
    Adds,
    /// It does not.
    Lean,
}

/// Whether a request is for one generation of a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generations {
    /// It is, and its sender handles the refusal of an old one.
    OneGen,
    /// It is not.
    AnyGen,
}

/// Whether an answer may come with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// It may.
    Leased,
    /// It may not.
    Bare,
}

/// When a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as it is done.
    Soon,
    /// When something happens that it waits for.
    Waits,
}

/// The properties of a request by its kind.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Where it goes.
    pub to: To,
    /// Who may send it.
    pub sender: Sender,
    /// Its kind of change.
    pub changes: Changes,
    /// Whether its sender must know of renamed directories.
    pub paths: Paths,
    /// Whether it may be repeated.
    pub repeat: Repeat,
    /// What its answer waits for.
    pub answer: Answer,
    /// What its sender, a server, does before.
    pub first: First,
    /// When a server answers it.
    pub when: When,
    /// Whether it takes room for nothing but more.
    pub room: Room,
    /// Whether it is for one generation of data.
    pub generations: Generations,
    /// Whether its answer may come with a lease.
    pub lease: Lease,
    /// Whether it waits for an event.
    pub pace: Pace,
    /// Whether a reply is one that it may get.
    pub may_get: fn(&Reply) -> bool,
}

macro_rules! rows {
    ($request:expr, $($name:ident: $to:ident $sender:ident $changes:ident $paths:ident $repeat:ident $answer:ident
        $first:ident $when:ident $room:ident $generations:ident $lease:ident $pace:ident [$($reply:ident)+])*) => {
        match $request { $(Request::$name { .. } => const { &Rules {
            to: To::$to,
            sender: Sender::$sender,
            changes: Changes::$changes,
            paths: Paths::$paths,
            repeat: Repeat::$repeat,
            answer: Answer::$answer,
            first: First::$first,
            when: When::$when,
            room: Room::$room,
            generations: Generations::$generations,
            lease: Lease::$lease,
            pace: Pace::$pace,
            may_get: |reply| matches!(reply, $(Reply::$reply { .. })|+),
        } }),* }
    };
}

impl Request {
    /// The row of its kind.
    #[inline]
    #[rustfmt::skip]
    pub fn rules(&self) -> &'static Rules {
        rows! { self,
    //               to     sender  changes paths repeat answer first   when     room generations lease pace reply
    Lookup:          Entry  Anyone  Nothing Paths Again Written AtOnce  Mapped   Lean AnyGen Leased Soon  [Entry]
    Create:          Entry  Anyone  Names   Paths Again Written AtOnce  Mapped   Adds AnyGen Leased Soon  [Entry]
    Unlink:          Entry  Anyone  Names   Paths Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [DoneAt Done]
    Rmdir:           Entry  Anyone  Names   Paths Once  Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Link:            Entry  Anyone  Names   Paths Once  Written AtOnce  Mapped   Adds AnyGen Bare   Soon  [Attributes]
    Rename:          Entry  Anyone  Names   Paths Once  Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Moved Done]
    OpenName:        Entry  Anyone  Holds   Paths Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Entry]
    GetAttr:         Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Leased Soon  [Attributes]
    SetAttr:         Home   Anyone  Names   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Attributes]
    Truncate:        Home   Anyone  Names   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Attributes]
    Open:            Home   Anyone  Holds   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Attributes]
    Close:           Slots  Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Report:          Home   Anyone  Names   Plain Again Written AtOnce  Mapped   Lean OneGen Bare   Soon  [Attributes]
    ReadLink:        Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Target]
    Holders:         Home   Anyone  Nothing Paths Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Holders]
    Write:           Chunk  Anyone  Data    Plain Again Written AtOnce  Mapped   Adds OneGen Bare   Soon  [Written]
    Read:            Chunk  Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean OneGen Bare   Soon  [Data]
    List:            Slots  Anyone  Nothing Paths Again Written AtOnce  Mapped   Lean AnyGen Leased Soon  [Listing]
    Scan:            Slots  Anyone  Nothing Paths Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Scanned]
    StatFs:          Server Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Space]
    Status:          Server Anyone  Nothing Plain Again Written AtOnce  Always   Lean AnyGen Bare   Soon  [Status]
    Activity:        Server Anyone  Nothing Plain Again Written AtOnce  Always   Lean AnyGen Bare   Soon  [ActivityIs]
    GetMap:          Server Anyone  Nothing Plain Again Written AtOnce  Always   Lean AnyGen Bare   Soon  [Map]
    Shutdown:        Server Owner   Nothing Plain Again Written AtOnce  Always   Lean AnyGen Bare   Soon  [Done]
    EndSession:      Server Anyone  Nothing Plain Again Written AtOnce  Failed   Lean AnyGen Bare   Soon  [Done]
    ServerEnded:     Keeper Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Join:            Keeper Servers Nothing Plain Again Written AtOnce  Unmapped Lean AnyGen Bare   Soon  [Map]
    MapPush:         Server Servers Nothing Plain Again Written AtOnce  Unmapped Lean AnyGen Bare   Soon  [Done]
    StubGet:         Home   Servers Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [StubGranted]
    StubClose:       Server Servers Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [StubClosed]
    StubReopen:      Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    StubDrop:        Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    StubUpdate:      Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Fragment:        Slots  Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [FragmentIs]
    Prepare:         Entry  Servers Nothing Plain Again Written Synced  Mapped   Lean AnyGen Bare   Soon  [Prepared]
    Commit:          Entry  Servers Nothing Plain Again Durable Synced  Mapped   Lean AnyGen Bare   Soon  [Done]
    Abort:           Entry  Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    TxOutcome:       Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [TxIs]
    PrepareExchange: Entry  Servers Nothing Plain Again Written Synced  Mapped   Lean AnyGen Bare   Soon  [Prepared]
    TxResolve:       Server Servers Nothing Plain Again Written Synced  Mapped   Lean AnyGen Bare   Soon  [Done]
    SetParent:       Home   Servers Names   Plain Again Durable Synced  Mapped   Lean AnyGen Bare   Soon  [Done]
    ParentOf:        Home   Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [ParentIs]
    CloseDir:        Home   Servers Names   Plain Again Durable Synced  Mapped   Lean AnyGen Bare   Soon  [Done]
    RaiseEpoch:      Keeper Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [EpochIs]
    EpochPush:       Server Servers Nothing Plain Again Written AtOnce  Unmapped  Lean AnyGen Bare   Soon  [PathsAre]
    TakeToken:       Keeper Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    DropToken:       Keeper Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    TruncateData:    Slots  Servers Nothing Plain Again Durable Synced  Mapped   Lean AnyGen Bare   Soon  [Done]
    DeleteData:      Slots  Servers Nothing Plain Again Written Synced  Mapped   Lean AnyGen Bare   Soon  [Done]
    TruncateQuery:   Home   Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [TruncateIs]
    LinkBegin:       Home   Servers Names   Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [Attributes]
    LinkEnd:         Home   Servers Names   Plain Again Written Synced  Mapped   Lean AnyGen Bare   Soon  [Done]
    LinkDrop:        Home   Servers Names   Plain Again Written Synced  Mapped   Lean AnyGen Bare   Soon
        [Attributes Done]
    LinkForget:      Home   Servers Nothing Plain Again Written Written Mapped   Lean AnyGen Bare   Soon  [Done]
    LinkOutcome:     Entry  Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [TxIs]
    MayWrite:        Home   Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    GetXattr:        Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Xattr]
    ListXattr:       Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [XattrNames]
    SetXattr:        Home   Anyone  Names   Plain Again Written AtOnce  Mapped   Adds AnyGen Bare   Soon
        [Attributes Done]
    Reserve:         Chunk  Anyone  Data    Plain Again Written AtOnce  Mapped   Adds OneGen Bare   Soon  [Done]
    Punch:           Chunk  Anyone  Data    Plain Again Written AtOnce  Mapped   Lean OneGen Bare   Soon  [Done]
    Seek:            Slots  Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean OneGen Bare   Soon  [SoughtIs]
    CountChanges:    Slots  Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean OneGen Bare   Soon  [ChangesAre]
    CreateUnnamed:   Entry  Anyone  Names   Paths Again Written AtOnce  Mapped   Adds AnyGen Bare   Soon  [Entry]
    Exchange:        Entry  Anyone  Names   Paths Once  Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Moved Done]
    FenceSession:    Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Append:          Home   Anyone  Names   Plain Again Written AtOnce  Mapped   Adds AnyGen Bare   Soon  [Appended]
    SetLock:         Home   Anyone  Holds   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [LockIs]
    Unlock:          Home   Anyone  Holds   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    TestLock:        Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [LockIs]
    AwaitLock:       Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Waits [LockIs]
    CancelLock:      Home   Anyone  Holds   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [LockIs]
    KeepLocks:       Slots  Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Listen:          Server Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Waits [Recalled]
    CountOpens:      Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [OpensAre]
    Freeze:          Home   Anyone  Holds   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Frozen]
    UnlinkFrozen:    Entry  Anyone  Names   Paths Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [DoneAt Done]
    OpenWith:        Home   Anyone  Holds   Plain Again Written AtOnce  Mapped   Lean AnyGen Leased Soon
        [OpenedWith Attributes]
    OpenNameWith:    Entry  Anyone  Holds   Paths Again Written AtOnce  Mapped   Lean AnyGen Leased Soon
        [OpenedWith Entry Attributes]
    OpenToRun:       Home   Anyone  Holds   Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Attributes]
    OpenThrough:     Server Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon
        [OpenedThrough]
    OpenNameThrough: Server Anyone  Nothing Paths Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon
        [OpenedThrough]
    CloseThrough:    Server Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    PersistentId:    Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [PersistentIs]
    TxDone:          Server Servers Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [TxIs]
    LinksTo:         Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [LinksAre]
    FilesNow:        Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [FilesAre]
    Known:           Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [KnownIs]
    IsDone:          Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Sync:            Server Anyone  Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [Synced]
    CheckInodes:     Slots  Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon
        [InodesChecked]
    CheckEntries:    Slots  Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon
        [EntriesChecked]
    CheckData:       Slots  Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [DataChecked]
    CheckWatch:      Server Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon
        [Done WatchTold]
    BackingOf:       Home   Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [BackingIs]
    WillChange:      Home   Servers Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [BackingIs]
    ImportDir:       Home   Servers Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Import:          Server Servers Nothing Plain Again Durable AtOnce  Mapped   Adds AnyGen Bare   Soon  [Done]
    GoneNames:       Server Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [GoneAre]
    LeaveBacking:    Home   Owner   Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    ForgetGone:      Entry  Owner   Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Adopt:           Home   Owner   Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [BackingIs]
    Settle:          Slots  Servers Nothing Plain Again Durable AtOnce  Mapped   Lean AnyGen Bare   Soon  [Settled]
    Claim:           Home   Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Claimed]
    MoveSlot:        Keeper Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    CopySlot:        Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [CopiedIs]
    GiveSlot:        Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    TakePiece:       Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    TakeAll:         Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    MoveEnd:         Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    MoveOutcome:     Keeper Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Map]
    TakeUndo:        Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Map]
    NoteHolders:     Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    SessionGone:     Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    KnowsSession:    Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Leave:           Keeper Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Leaving]
    Enter:           Keeper Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Entered]
    GroupKept:       Server Servers Nothing Plain Again Written AtOnce  Unmapped Lean AnyGen Bare   Soon  [GroupKeptIs]
    Group:           Server Servers Nothing Plain Again Written AtOnce  Unmapped Lean AnyGen Bare   Soon  [Done]
    RootRights:      Server Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [StubGranted]
    Takeover:        Server Servers Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [TakeoverIs]
    KeeperGone:      Server Anyone  Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Done]
    Balance:         Keeper Owner   Nothing Plain Again Written AtOnce  Mapped   Lean AnyGen Bare   Soon  [Balancing]
        }
    }

    /// Whether it changes something and so needs a sequence number to take effect once.
    pub fn is_change(&self) -> bool {
        self.rules().changes != Changes::Nothing
    }

    /// With what its outcome is remembered. A write to the chunk beside the inode changes both, and is remembered with
    /// the inode.
    pub fn remembered_with(&self) -> Changes {
        match self {
            Request::Write(write) if write.is_beside_inode() => Changes::Names,
            _ => self.rules().changes,
        }
    }

    /// Whether it may be done a second time when the client does not know whether it was done before the volume
    /// started again: a server that did it with one operation has its outcome in the journal.
    pub fn may_be_repeated(&self) -> bool {
        self.rules().repeat == Repeat::Again
    }

    /// What its answer waits for. The first report that a file has data beyond its first chunk has all servers asked
    /// for them from then on.
    pub fn answer_waits_for(&self) -> Answer {
        match self {
            Request::Report { spread, .. } if spread.is_wide() => Answer::Durable,
            _ => self.rules().answer,
        }
    }

    /// Whether it only makes the journal longer. The removal of an extended attribute does not.
    pub fn takes_room(&self) -> bool {
        match self {
            Request::SetXattr { value: None, .. } => false,
            _ => self.rules().room == Room::Adds,
        }
    }

    /// Whether its answer may come with a lease. Names alone do not.
    pub fn may_be_leased(&self) -> bool {
        match self {
            Request::List { attrs: false, .. } => false,
            _ => self.rules().lease == Lease::Leased,
        }
    }

    /// Whether only servers of the volume may ask it.
    pub fn from_servers_only(&self) -> bool {
        self.rules().sender == Sender::Servers
    }

    /// Whether it is about names, so that what the sender knows of renamed directories matters.
    pub fn needs_namespace_epoch(&self) -> bool {
        self.rules().paths == Paths::Paths
    }

    /// Whether the header's shard is meaningful and must belong to the server asked.
    pub fn names_shard(&self) -> bool {
        matches!(self.rules().to, To::Entry | To::Home | To::Chunk)
    }

    /// Whether it is part of moving a slot.
    pub fn moves_a_slot(&self) -> bool {
        matches!(
            self,
            Request::MoveSlot { .. }
                | Request::Leave { .. }
                | Request::Balance
                | Request::CopySlot { .. }
                | Request::GiveSlot { .. }
                | Request::TakePiece { .. }
                | Request::TakeAll { .. }
                | Request::MoveEnd { .. }
                | Request::MoveOutcome { .. }
                | Request::TakeUndo { .. }
                | Request::NoteHolders { .. }
        )
    }

    /// Whether it tells a server of a newer map.
    pub fn brings_a_map(&self) -> bool {
        matches!(self, Request::MapPush { .. } | Request::MoveEnd { .. } | Request::Takeover { .. })
    }

    /// Whether a server answers it that is not in the map yet.
    pub fn needs_no_map(&self) -> bool {
        matches!(self.rules().when, When::Unmapped | When::Always)
    }

    /// Whether a server answers it whose storage has failed.
    pub fn needs_no_storage(&self) -> bool {
        matches!(self.rules().when, When::Failed | When::Always)
    }

    /// Whether a reply is one that this request may get.
    pub fn may_get(&self, reply: &Reply) -> bool {
        (self.rules().may_get)(reply)
    }

    /// The file whose bytes or length it changes on behalf of a user: what a client keeps of its
    /// contents is outdated from then on.
    pub fn changes_contents_of(&self) -> Option<Ino> {
        match self {
            Request::Write(Write { ino, .. })
            | Request::Truncate { ino, .. }
            | Request::Append { ino, .. }
            | Request::Reserve(Reserve { ino, .. })
            | Request::Punch(Punch { ino, .. }) => Some(*ino),
            _ => None,
        }
    }
}
