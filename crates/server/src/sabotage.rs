//! Switches that remove one protection each, so that the simulation can prove that it notices.
//!
//! They exist only with the feature `sabotage`, which nothing but the simulation enables; without
//! it [`Sabotage::is`] is a constant `false`.

use aze_proto::Prefix;
use aze_proto::place::Layout;

/// Whether this build can switch protections off: it is one of the simulation's.
pub const IS_POSSIBLE: bool = cfg!(feature = "sabotage");

/// One protection that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A hole in a file of the backing takes only chunks that were read from there.
    PunchNothing,
    /// Chunks that were not read from the backing count as holes.
    UnreadAreHoles,
    /// Repeated changes are done again instead of answered from the record.
    SkipDuplicateCheck,
    /// Requests that know of fewer renamed directories than the server are served.
    SkipNamespaceEpochCheck,
    /// Of a change of paths only the homes of directories are told, and not who has their entries.
    TellHomesAlone,
    /// Nothing is asked about directories in the one that changes.
    TellOneDirectory,
    /// Who gets a directory's stub does not get the namespace epoch with it.
    GrantStubsAlone,
    /// A request that has waited for a stub is served although a path has changed meanwhile.
    CheckPathsOnce,
    /// A slot that moves while a change of paths is told is not noticed.
    TellBeforeMoves,
    /// A rename asks nothing about its second directory before it begins.
    RenameUntold,
    /// A server's client opens a file again by a name in a directory whose changes the server is not told.
    BelieveNamesUntold,
    /// New rights of the root are told to those servers only that have got its stub.
    TellHoldersOfRoot,
    /// A server does not tell the home of a directory before it answers a change of its part.
    ForgetParts,
    /// A directory is removed without closing it at the servers that may hold entries.
    SkipDirectoryClose,
    /// A server that restarted empty serves files older than itself, as if they had holes.
    SkipBornCheck,
    /// A truncation raises the generation but does not truncate at the other servers.
    SkipTruncation,
    /// A truncation or removal asks only the first of the servers of a file's chunks.
    ShortReach,
    /// Requests for an entry that a rename has locked do not wait for its end.
    SkipEntryLock,
    /// What clients may read without a request is not taken away when it changes.
    SkipPublishedClear,
    /// A new name is not counted where clients see that there is none.
    SkipPublishedCount,
    /// What clients may read of an inode stays as it is when only data change.
    SkipPublishedData,
    /// A sync is answered before the journal is durable.
    SkipSync,
    /// Other servers are answered before the records that they build upon are durable.
    SkipDurableAnswers,
    /// Other servers are asked before what that follows from is durable.
    SkipDurableBefore,
    /// Answers do not wait for the journal at all.
    SkipJournalWait,
    /// A checkpoint gets its name before the journal of the time in which it was made is durable.
    SkipCheckpointWait,
    /// A checkpoint gets its name before the segments that it names are durable.
    SkipSegmentSync,
    /// Places in segments are given out again although the newest checkpoint names them.
    FreePlacesEarly,
    /// A checkpoint lists the finished renames before it looks at the shards.
    ListRenamesFirst,
    /// At a start the old name of a rename that was committed stays.
    ForgetOldName,
    /// At a start what a checkpoint has already is done once more.
    ReplayAll,
    /// At a start truncations of data are not done again.
    ForgetTruncations,
    /// At a start the outcomes of requests are not read.
    ForgetOutcomes,
    /// At a start inode numbers are given out again that were given out in lost records.
    ReuseInos,
    /// The slots of a server that comes back empty go on with the life before.
    KeepLife,
    /// At a start link counts stay as they were found.
    SkipLinkCount,
    /// At a start data stay that no file has.
    KeepStrays,
    /// A change is answered before clients have given up their leases of the changed inodes.
    SkipRecallWait,
    /// Data of a file that is deleted stay on other servers.
    SkipDataDelete,
    /// A name that goes is not taken off the count of an inode elsewhere.
    SkipLinkDrop,
    /// The server does not look at the claims of its node's clients.
    SkipClaims,
    /// A server that starts again does not wait for what its earlier life has said.
    SkipComebackWait,
    /// Requests of the earlier life of a server that came back alone are served.
    SkipLifeFence,
    /// A rename that a server which came back alone was told to have failed is committed all the same.
    CommitAfterAbort,
    /// A server that comes back alone does not learn which servers have entries of its directories.
    ForgetHolders,
    /// A server that comes back alone gives slots before it has learnt that.
    GiveUnsettled,
    /// A slot that moves has locks and opens since the life of its new server began.
    ForgetSince,
    /// The keeper takes a map into use before the group has agreed.
    DecideAlone,
    /// A new keeper does not wait for what servers know of the one before.
    TakeOverUnheard,
    /// A new keeper counts the namespace epoch on from its own number.
    TakeOverEpoch,
    /// A new keeper gives the token although transactions have it.
    TakeOverTokens,
    /// A directory is moved although its home has not heard of the new parent, and is told later.
    TellParentLater,
    /// Servers take namespace epochs from a keeper from which another server has taken over.
    HearOldKeepers,
    /// A server comes back alone as if its process had never ended.
    KeepOldLife,
    /// A server that starts again takes a map into use that has the life before in its place.
    TakeMapOfEarlierLife,
    /// Two servers that come back at the same time wait for each other to confirm that.
    AwaitComing,
    /// No bug: the word that a move is over is heard just when its map is in use, before the slot is given or taken by it, as by another
    /// thread.
    HearEndFirst,
    /// A file that is being released is opened for writing and changed all the same.
    SkipFreeze,
    /// The server does not note which opens are for writing.
    ForgetWriters,
    /// A chunk is read from any file that the backing has under the path now.
    AnyBackingFile,
    /// A directory is imported by everybody who asks for it, also when it has been imported.
    ImportAgain,
    /// The giver of a slot does not remember how requests ended there.
    ForgetGivenOutcomes,
    /// The giver of a slot goes on serving it.
    KeepGivenSlot,
    /// A server that takes a slot lets clients read its published index before the names of the slot are there.
    PublishWhileTaking,
    /// The homes of directories do not hear that the taker of a slot has entries of them.
    ForgetNewHolder,
    /// Opens do not go with a slot.
    KeepOpens,
    /// The taker of a slot does not hear of sessions that leave the giver.
    ForgetHeirs,
    /// A slot is given while requests are being worked on.
    SkipDrain,
    /// A chunk of the backing that was written counts as a copy of it, and may go.
    CallChangedACopy,
    /// Before the backing loses an object nothing is kept of it.
    SkipKeep,
    /// At a start it is forgotten which chunks of the backing stay.
    ForgetKept,
    /// A chunk that goes when room is short leaves zeros.
    EvictToZeros,
    /// A server that joins does not hear which sessions no server serves.
    ForgetFences,
    /// A session is ended for all servers that were there when that began, and not for those that have joined since.
    FenceOnce,
    /// A server has left that has a slot.
    LeaveSlotBehind,
    /// The taker of a slot does not remember how requests ended at the giver.
    ForgetBroughtOutcomes,
    /// A member of the keeper group answers before its promises are on its disk.
    PromiseUnsaved,
    /// A member of the keeper group that comes back has forgotten its promises, and votes.
    ForgetPromises,
    /// A server that is no member of the keeper group does not write down that it has promised nothing.
    NoPromiseUnsaid,
    /// A start goes by the map on the disk of the first server.
    StartByFirst,
    /// The last slot of the first server of a volume in directories moves while any server keeps the map, which need not be the next one that
    /// counts the starts.
    LeaveUncounted,
    /// A start without some servers goes on although the others may have started without these.
    StartWithoutMajority,
    /// A start without some servers cleans up as if all were there.
    CleanUpWithout,
    /// A start without some servers does not suppose that those have entries of directories.
    ForgetLeftOut,
    /// At a start without some servers an old name stays or goes by what those say that are there.
    GuessWithout,
    /// Directories move although a server that was left out may have been moving one.
    MoveWithout,
    /// A keeper decides a move although another server has kept the map since it began, and has given it up.
    DecideGivenUp,
    /// The taker of a slot says that it has all of it when it has that in memory.
    TakeUnsaved,
    /// The giver of a slot lets go of it on its disk when it has given it, before the move is decided.
    FreeUndecided,
    /// A server that starts serves every slot that is in its directory, also those that the map gives to others.
    ServeOld,
    /// The home of a staged file does not wait for all servers of its data to say that theirs are those that were staged.
    SettleEarly,
    /// A server makes chunks copies after a stage without a look whether they have changed since.
    SettleUncounted,
    /// A server that has made chunks copies does not tell the home of the next change.
    ForgetToTell,
    /// The home takes a staged copy of an earlier version for the file's origin.
    AdoptAnyVersion,
    /// Changes of files are not counted.
    CountNoChanges,
    /// A write to a part of a chunk does not have the rest of it read from the backing.
    WriteWithoutRest,
}

/// The protections that are off in one server; none, in every build but the simulation's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Switches {
    #[cfg(feature = "sabotage")]
    removed: Option<Sabotage>,
    /// Data of new files are placed apart from their inodes.
    #[cfg(feature = "sabotage")]
    apart: bool,
}

impl Switches {
    /// All protections but one.
    #[cfg(feature = "sabotage")]
    pub fn without(removed: Sabotage) -> Switches {
        Switches { removed: Some(removed), apart: false }
    }

    /// All protections; data of new files are placed apart from their inodes, as a layout may.
    #[cfg(feature = "sabotage")]
    pub fn apart() -> Switches {
        Switches { removed: None, apart: true }
    }

    /// Where the chunks of a file go whose inode is at this place, on a volume of so many shards: from beside it on.
    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn layout(&self, place: Prefix, shards: u32) -> Layout {
        Layout::new(place, shards)
    }

    /// Where the chunks of a file go whose inode is at this place, on a volume of so many shards: from beside it on, or
    /// from the next shard on.
    #[cfg(feature = "sabotage")]
    pub(crate) fn layout(&self, place: Prefix, shards: u32) -> Layout {
        let beside = Layout::new(place, shards);
        if self.apart { Layout { first: beside.place(1), ..beside } } else { beside }
    }

    /// Whether a protection is removed.
    #[cfg(feature = "sabotage")]
    pub(crate) fn is(&self, what: Sabotage) -> bool {
        self.removed == Some(what)
    }

    /// Whether a protection is removed: never.
    #[cfg(not(feature = "sabotage"))]
    pub(crate) fn is(&self, _what: Sabotage) -> bool {
        false
    }
}
