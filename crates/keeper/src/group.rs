//! One member of a group.

use crate::log::Log;
use crate::{Damaged, MemberId, stored};
use protobuf::Message as _;
use raft::eraftpb::{Entry, Message, MessageType};
use raft::{Config, INVALID_ID, Progress, ProgressState, RawNode, SnapshotStatus, StateRole};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Ticks after which one that stands for election, or hands the lead over, begins anew. The least that the library allows with a heartbeat in
/// each tick.
const ELECTION_TICKS: usize = 2;

/// A value that a member has proposed, until its fate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proposal {
    index: u64,
    term: u64,
}

/// How a proposal has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is decided.
    Decided,
    /// Something else was decided in its place: it never will be.
    Lost,
    /// Later decisions came with one message: whether it was among them has to be seen from the value.
    Unknown,
}

/// A proposal whose fate is known now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which.
    pub proposal: Proposal,
    /// How it has ended.
    pub fate: Fate,
}

/// Why a member refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It does not lead. Who does, as far as it knows.
    NotLeading(Option<MemberId>),
    /// Something else is under way: an earlier proposal, or the beginning of this member's lead. To be tried again when time has passed.
    Busy,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NotLeading(_) => f.write_str("this member does not lead the keeper group"),
            Refused::Busy => f.write_str("the keeper group has not finished what is under way"),
        }
    }
}

impl std::error::Error for Refused {}

/// What a member wants done. Its driver makes `stored` durable before anything else of this or any later work has
/// an effect outside.
#[derive(Debug, Default)]
pub struct Work {
    /// The log, to be stored in place of the earlier one.
    pub stored: Option<Vec<u8>>,
    /// Messages, and the members that are to have them. They may get lost, be late, or come twice.
    pub messages: Vec<(MemberId, Vec<u8>)>,
    /// A newer value is decided.
    pub decided: Option<Vec<u8>>,
    /// Proposals of this member whose fate is known now.
    pub outcomes: Vec<Outcome>,
}

/// One member of a group.
pub struct Group {
    node: RawNode<Log>,
    me: MemberId,
    proposed: BTreeMap<u64, u64>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raft = &self.node.raft;
        f.debug_struct("Group")
            .field("me", &self.me)
            .field("state", &raft.state)
            .field("term", &raft.term)
            .field("leader", &self.leader())
            .field("members", self.node.store().members())
            .field("decided", &self.node.store().index())
            .field("reached", &self.reached())
            .field("busy", &self.is_busy())
            .finish_non_exhaustive()
    }
}

impl Group {
    /// A founder of a group: each founder is given the same members and the same value.
    ///
    /// # Panics
    /// If a number is 0, or `me` is not among the members.
    #[must_use]
    pub fn found(me: MemberId, members: &[MemberId], value: Vec<u8>) -> Group {
        assert!(members.contains(&me), "a founder is a member");
        let members: Vec<u64> = members.iter().map(|member| member.0).collect();
        Group::of(me, Log::founded(&members, value))
    }

    /// A member that goes on with its stored log.
    ///
    /// # Errors
    /// The bytes are not what a member stores.
    pub fn restored(bytes: &[u8]) -> Result<Group, Damaged> {
        let (me, log) = stored::decode(bytes)?;
        Ok(Group::of(me, log))
    }

    fn of(me: MemberId, log: Log) -> Group {
        let config = Config {
            id: me.0,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: 1,
            // One value only, so that nothing is drawn by lot.
            min_election_tick: ELECTION_TICKS,
            max_election_tick: ELECTION_TICKS + 1,
            applied: log.index(),
            pre_vote: true,
            max_size_per_msg: u64::MAX,
            ..Config::default()
        };
        let quiet = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, log, &quiet).expect("the configuration is right, and the log is in memory");
        Group { node, me, proposed: BTreeMap::new() }
    }

    /// The log, as [`Work::stored`] gives it.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        stored::encode(self.me, self.node.store())
    }

    /// This member.
    #[must_use]
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> Vec<MemberId> {
        let all: BTreeSet<u64> = self.node.store().members().voters.iter().copied().collect();
        all.into_iter().map(MemberId).collect()
    }

    /// The newest value that this member knows to be decided.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.node.store().decided.data
    }

    /// The newest value to which this member has agreed: of several members that are all there, that of the one that
    /// [has reached](Group::reached) farthest is the newest that is decided, or one that may still be.
    #[must_use]
    pub fn agreed(&self) -> &[u8] {
        let log = self.node.store();
        // The first entry of a leader has none.
        log.entries.iter().rev().find(|entry| !entry.data.is_empty()).map_or(self.value(), |entry| &entry.data)
    }

    /// How far this member's log goes, by term and entry: of several members that are all there, the one that goes farthest has every decision.
    #[must_use]
    pub fn reached(&self) -> (u64, u64) {
        let log = self.node.store();
        let last = log.entries.last().map(|entry| (entry.term, entry.index));
        last.unwrap_or((log.decided.get_metadata().term, log.index()))
    }

    /// Who leads, as far as this member knows.
    #[must_use]
    pub fn leader(&self) -> Option<MemberId> {
        Some(self.node.raft.leader_id).filter(|leader| *leader != INVALID_ID).map(MemberId)
    }

    /// Whether this member leads and knows all earlier decisions, as far as it knows itself: another member may lead already.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.node.raft.state == StateRole::Leader
            && self.node.store().decided.get_metadata().term == self.node.raft.term
    }

    /// Whether the driver has to [tick](Group::tick): an election or a proposal is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let raft = &self.node.raft;
        match raft.state {
            StateRole::Follower => false,
            StateRole::Candidate | StateRole::PreCandidate => true,
            StateRole::Leader => !self.leads() || raft.raft_log.last_index() > raft.raft_log.applied,
        }
    }

    /// Stands for election. The driver finds out before that the leader is gone: a leader that is not loses the
    /// lead, and nothing else.
    pub fn campaign(&mut self) {
        // One that leads already does not stand.
        let _ = self.node.campaign();
    }

    /// Time has passed, so that a message should have been answered: what got lost is sent again.
    pub fn tick(&mut self) {
        if !self.is_busy() {
            return;
        }
        // A whole value is as small as any message. The library waits for its arrival to be told.
        let is_late = |progress: &Progress| progress.state == ProgressState::Snapshot;
        let late = self.node.raft.prs().iter().filter(|(_, progress)| is_late(progress)).map(|(member, _)| *member);
        for member in late.collect::<Vec<u64>>() {
            self.node.report_snapshot(member, SnapshotStatus::Failure);
        }
        self.node.tick();
    }

    /// A message of another member has come. One that is not for this member, or is none, is ignored.
    pub fn receive(&mut self, bytes: &[u8]) {
        let Ok(message) = Message::parse_from_bytes(bytes) else { return };
        if message.to != self.me.0 || message.from == self.me.0 {
            return;
        }
        // A proposal is made here, by those who see the value that is decided.
        if matches!(message.get_msg_type(), MessageType::MsgPropose | MessageType::MsgReadIndex) {
            return;
        }
        let is_vote = matches!(message.get_msg_type(), MessageType::MsgRequestPreVote | MessageType::MsgRequestVote);
        let is_behind = is_vote && (message.log_term, message.index) < self.reached();
        // What comes from one that is no member any more is refused there, and that is all.
        let _ = self.node.step(message);
        if is_behind && self.node.raft.state == StateRole::Follower {
            // It gets no vote before it has this log, and only a leader brings it that. Time may not pass by itself.
            // One that stands already goes on: to begin anew would throw its votes away.
            self.campaign();
        }
    }

    /// Messages to a member get lost.
    pub fn unreachable(&mut self, member: MemberId) {
        self.node.report_unreachable(member.0);
    }

    /// Proposes the value that takes the place of [the one that is decided](Group::value). So nothing else is proposed before that is decided.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn propose(&mut self, value: Vec<u8>) -> Result<Proposal, Refused> {
        self.check_rests()?;
        self.node.propose(Vec::new(), value).map_err(|_| Refused::Busy)?;
        Ok(self.note_proposal())
    }

    /// The next work, or `None`. To be called again after each call that changes something.
    pub fn work(&mut self) -> Option<Work> {
        if !self.node.has_ready() {
            return None;
        }
        let mut work = Work::default();
        let mut has_changed = false;
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            let mut messages = ready.take_messages();
            messages.extend(ready.take_persisted_messages());
            if !ready.snapshot().is_empty() {
                let snapshot = ready.snapshot().clone();
                let index = snapshot.get_metadata().index;
                self.node.mut_store().take_over(snapshot);
                work.decided = Some(self.value().to_vec());
                self.settle_to(index, &mut work);
                has_changed = true;
            }
            if !ready.entries().is_empty() {
                let entries = ready.take_entries();
                self.node.mut_store().append(&entries);
                has_changed = true;
            }
            if let Some(promises) = ready.hs() {
                self.node.mut_store().promises = promises.clone();
                has_changed = true;
            }
            let decided = ready.take_committed_entries();
            has_changed |= self.apply(decided, &mut work);
            let mut light = self.node.advance_append(ready);
            if let Some(index) = light.commit_index() {
                self.node.mut_store().promises.commit = index;
                has_changed = true;
            }
            messages.extend(light.take_messages());
            has_changed |= self.apply(light.take_committed_entries(), &mut work);
            self.node.advance_apply();
            let out = messages.into_iter().map(|message| {
                let bytes = message.write_to_bytes().expect("a message is written to memory");
                (MemberId(message.to), bytes)
            });
            work.messages.extend(out);
        }
        if has_changed {
            work.stored = Some(self.stored());
        }
        Some(work)
    }

    /// Takes decided entries into use; whether there were any.
    fn apply(&mut self, decided: Vec<Entry>, work: &mut Work) -> bool {
        let any = !decided.is_empty();
        for entry in decided {
            self.node.mut_store().applied(&entry);
            if !entry.data.is_empty() {
                work.decided = Some(entry.data.to_vec());
            }
            if let Some(term) = self.proposed.remove(&entry.index) {
                let fate = if term == entry.term { Fate::Decided } else { Fate::Lost };
                work.outcomes.push(Outcome { proposal: Proposal { index: entry.index, term }, fate });
            }
        }
        any
    }

    /// The fate of proposals up to an entry: they came as one value.
    fn settle_to(&mut self, index: u64, work: &mut Work) {
        let later = self.proposed.split_off(&(index + 1));
        for (index, term) in std::mem::replace(&mut self.proposed, later) {
            work.outcomes.push(Outcome { proposal: Proposal { index, term }, fate: Fate::Unknown });
        }
    }

    fn check_leads(&self) -> Result<(), Refused> {
        match self.node.raft.state {
            StateRole::Leader if self.leads() => Ok(()),
            StateRole::Leader => Err(Refused::Busy),
            _ => Err(Refused::NotLeading(self.leader())),
        }
    }

    /// Whether this member leads, and everything that it has proposed is decided.
    fn check_rests(&self) -> Result<(), Refused> {
        self.check_leads()?;
        let log = &self.node.raft.raft_log;
        if log.last_index() > log.applied {
            return Err(Refused::Busy);
        }
        Ok(())
    }

    fn note_proposal(&mut self) -> Proposal {
        let log = &self.node.raft.raft_log;
        let proposal = Proposal { index: log.last_index(), term: self.node.raft.term };
        self.proposed.insert(proposal.index, proposal.term);
        proposal
    }
}
