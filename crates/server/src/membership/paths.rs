//! Paths that change: a directory is renamed or loses rights. Who serves paths through it must know before that is decided; of the other servers
//! none has to be asked.
//!
//! A request by a path is served where its last directory has entries, and by that directory's home (to list it). Both hold what they need to
//! refuse it: a server serves entries only with the directory's stub, which its home has given it and notes. So the keeper asks the home of the
//! directory who holds its stub; the home and the holders, which directories they have in it; and the homes and holders of those, to the last
//! one. Who gets a stub later gets the namespace epoch with it. Where an answer may miss something, or to ask everybody is less, every server
//! of the volume is told.

use crate::names::inodes::holders_of;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_proto::{
    Code, Failure, FileKind, Ino, MapEpoch, NamespaceEpoch, Refusal, Reply, Request, ServerIndex, ShardId,
};
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How long one server may take to confirm a new namespace epoch. Shorter than the time that servers give the keeper, so
/// that the refusal names the silent server and not the keeper.
const CONFIRM_TIME_MAX: Duration = Duration::from_secs(2);

/// Every so many epochs each server is told, so that a keeper that takes over knows how far the one before it may have come.
pub(crate) const TOLD_TO_ALL_EVERY: u64 = 1 << 16;

/// Changes of paths that come with each message, for a server that was not told of the last ones. One that has missed more lets its clients forget
/// all paths.
const CHANGES_TOLD: usize = 64;

/// Entries of a directory through which a server looks for directories, and directories that it names at most.
const ENTRIES_SEEN_MAX: usize = 4096;
const WITHIN_MAX: usize = 256;

/// The directories about which a server is asked.
#[derive(Clone, Default)]
struct Asked {
    at_home: Vec<Ino>,
    with_entries: Vec<Ino>,
}

/// Who has been told, and who is to be told next.
struct Round {
    told: BTreeSet<ServerIndex>,
    next: BTreeMap<ServerIndex, Asked>,
    /// Directories whose homes have been asked, or are about to be.
    seen: BTreeSet<Ino>,
    /// False if a server may be missing.
    is_all: bool,
}

impl Server {
    /// A directory is about to be renamed or to lose rights: who serves paths through it must know before it is. When one does not
    /// confirm it the request is refused, since that server may still be serving clients by the old path.
    pub(crate) fn raise_epoch(self: &Arc<Self>, dir: Ino) -> Attempt<Output> {
        let server = self.clone();
        let refused_before = self.keeper.refusals();
        then(async move {
            server.hear_all().await?;
            let mut last = server.keeper.raising().await;
            // A raise that waited while another one was refused is refused, too: if each waited for the silent server
            // anew, the later ones would take longer than their servers wait for the keeper.
            if let Some(failure) = server.keeper.refused_since(refused_before) {
                return Err(failure);
            }
            *last = NamespaceEpoch(last.0.max(server.namespace_epoch().0) + 1);
            let epoch = *last;
            // It is told first: it tells others what changed, and its epoch to servers that come into the map.
            server.namespace.push(epoch, &[dir]);
            let began = server.map_epoch_now();
            let mut round = Round { told: BTreeSet::new(), next: BTreeMap::new(), seen: BTreeSet::new(), is_all: true };
            server.add_home(&mut round, dir);
            while !round.next.is_empty() {
                if round.told.len() + round.next.len() > server.living().len() {
                    round.is_all = false;
                    break;
                }
                server.tell_next(&mut round, epoch).await?;
            }
            // A slot that has moved meanwhile may have taken entries to a server that was not asked.
            let has_moved = server.map_epoch_now() != began && !server.config.switches.is(Sabotage::TellBeforeMoves);
            if !round.is_all || has_moved || epoch.0.is_multiple_of(TOLD_TO_ALL_EVERY) {
                let others = server.living().into_iter().filter(|other| !round.told.contains(other));
                round.next = others.map(|other| (other, Asked::default())).collect();
                server.tell_next(&mut round, epoch).await?;
            }
            Ok(Reply::EpochIs { epoch })
        })
    }

    /// The home of a directory is asked next.
    fn add_home(&self, round: &mut Round, dir: Ino) {
        if !round.seen.insert(dir) {
            return;
        }
        let map = self.map();
        match map.home_of(dir).filter(|home| !map.is_gone(*home)) {
            Some(home) => round.next.entry(home).or_default().at_home.push(dir),
            // No other server knows which servers hold its stub.
            None => round.is_all = false,
        }
    }

    /// Asks those that are next, and finds out who follows.
    async fn tell_next(self: &Arc<Self>, round: &mut Round, epoch: NamespaceEpoch) -> Result<(), Failure> {
        let asked = std::mem::take(&mut round.next);
        let changed = self.namespace.changes_up_to(epoch, CHANGES_TOLD);
        let time = CONFIRM_TIME_MAX.min(self.config.deadline);
        let ask = |(other, asked): (ServerIndex, Asked)| {
            let (server, changed) = (self.clone(), changed.clone());
            async move {
                let Asked { at_home, with_entries } = asked.clone();
                let push = Request::EpochPush { epoch, changed, at_home, with_entries };
                let answer = match other == server.slot() {
                    true => server.ask(other, ShardId(0), push).await,
                    false => server.ask_other(other, ShardId(0), push, &[], time).await,
                };
                (other, asked, answer)
            }
        };
        for (other, asked, answer) in join_all(asked.into_iter().map(ask)).await {
            match answer {
                Ok(Reply::PathsAre { holders, within, is_all }) => {
                    round.told.insert(other);
                    round.is_all &= is_all;
                    let switches = &self.config.switches;
                    let at_home = &asked.at_home;
                    for holder in holders.into_iter().filter(|_| !switches.is(Sabotage::TellHomesAlone)) {
                        if self.map().is_gone(holder) {
                            // It may have directories in it that live elsewhere.
                            round.is_all = false;
                        } else {
                            round.next.entry(holder).or_default().with_entries.extend(at_home);
                        }
                    }
                    if !switches.is(Sabotage::TellOneDirectory) {
                        within.into_iter().for_each(|dir| self.add_home(round, dir));
                    }
                }
                Ok(_) => return Err(Failure::new(Code::Malformed, "EpochPush was answered with something else")),
                Err(_) if self.map().is_gone(other) => round.is_all = false,
                Err(failure) => {
                    let failure = failure.during(format!(
                        "nothing is changed, since server {other} has not confirmed that paths through a directory change"
                    ));
                    if self.map().keeper != self.slot() {
                        // Another server is the keeper now.
                        return Err(self.no_keeper());
                    }
                    self.keeper.refuse(&failure);
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Servers take an epoch from the keeper only: one that another server has taken over from raises it no more.
    pub(crate) fn epoch_pushed(
        &self,
        (epoch, changed): (NamespaceEpoch, &[Ino]),
        (at_home, with_entries): (&[Ino], &[Ino]),
        work: &Work,
    ) -> Attempt<Output> {
        let map = self.map();
        let is_keeper = map.server(map.keeper).is_some_and(|info| info.session == work.session);
        if !is_keeper && work.header.map_epoch <= map.epoch && !self.config.switches.is(Sabotage::HearOldKeepers) {
            return Err(Failure::refused(Refusal::MapStale { epoch: map.epoch }).into());
        }
        // Before anything is looked at: what comes later comes with this epoch.
        self.namespace.push(epoch, changed);
        let (mut holders, mut within, mut is_all) = (BTreeSet::new(), BTreeSet::new(), map.epoch > MapEpoch(0));
        for dir in at_home {
            let noted = self.shards.home(*dir).and_then(|cell| {
                let names = cell.names.lock();
                names.shard.inode(*dir)?;
                Some(holders_of(&names, *dir))
            });
            is_all &= noted.is_some();
            holders.extend(noted.unwrap_or_default());
        }
        holders.remove(&self.slot());
        for dir in at_home.iter().chain(with_entries) {
            is_all &= self.directories_in(*dir, &mut within);
        }
        // Entries and stubs that are on their way to another server, or from one, may be missing.
        is_all &= !self.moving.is_busy() || self.config.switches.is(Sabotage::TellBeforeMoves);
        Ok(Reply::PathsAre { holders: holders.into_iter().collect(), within: within.into_iter().collect(), is_all }
            .into())
    }

    /// The directories that this server has in a directory; `false` if there may be more.
    fn directories_in(&self, dir: Ino, within: &mut BTreeSet<Ino>) -> bool {
        let mut seen = 0;
        for shard in self.directories.shards_with_directories(dir) {
            let Some(cell) = self.shards.get(shard) else { return false };
            let names = cell.names.lock();
            for (_, _, entry) in names.shard.entries_after(dir, 0) {
                seen += 1;
                if entry.kind == FileKind::Directory {
                    within.insert(entry.ino);
                }
                if seen > ENTRIES_SEEN_MAX || within.len() > WITHIN_MAX {
                    return false;
                }
            }
        }
        true
    }
}
