//! A directory's counts and times are the sum of its holders' parts, which the directory's home keeps.
//!
//! A server that has said its part promises to tell the home before it answers a change of it. So a directory that no
//! server changes costs one request, however many servers have entries of it, and one that is changed costs a question
//! to each server with a change since the last look. A server that wants to change entries tells the home by a request
//! that it sends anyway, the one for the stub.

use super::state::parts::Part;
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use aze_proto::limits::LEASE_MS;
use aze_proto::{Code, Failure, Ino, Reply, Request, ServerIndex};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a home that could not be told is told again.
const TELL_PAUSE: Duration = Duration::from_millis(50);

/// For how long answers wait for a home that is silent, as for a client that does not give a lease back. What looks at the directory asks that
/// very home.
const WORD_TIME_MAX: Duration = Duration::from_millis(LEASE_MS as u64);

/// Directories whose parts here a request may change.
type Changed = [Option<Ino>; 2];

impl Server {
    /// At a directory's home: the parts that are known, the number of the question for the others, and whom to ask it.
    pub(super) fn parts_known(&self, names: &mut Names, dir: Ino) -> (Vec<Part>, u64, Vec<ServerIndex>) {
        let question = self.directories.number();
        let Some(holders) = names.holders.get_mut(&dir) else { return (Vec::new(), question, Vec::new()) };
        // Who has left gave its entries to servers that were noted as holders before; another thread may be striking it off
        // just now.
        let map = self.map();
        let others: Vec<ServerIndex> =
            holders.servers.keys().copied().filter(|of| *of != self.slot() && !map.has_left(*of)).collect();
        let (mut parts, mut to_ask) = holders.parts.look(&others, map.epoch, question);
        if holders.servers.contains_key(&self.slot()) {
            let own = self.directories.fragment(dir);
            // Entries that come with a slot are counted here before the map says so, and at their giver, too: as any other holder this one is
            // asked when it knows how the move has ended. Looked at afterwards: a move counts what comes after it has begun, and is over after
            // its map is in use.
            if self.moving.is_busy() || self.map_epoch_now() != map.epoch {
                to_ask.push(self.slot());
            } else {
                parts.push(own);
            }
        }
        (parts, question, to_ask)
    }

    /// Asks holders for their parts, and keeps them.
    pub(super) async fn ask_for_parts(
        self: &Arc<Self>,
        dir: Ino,
        holders: &[ServerIndex],
        question: u64,
    ) -> Vec<(ServerIndex, Result<Part, Failure>)> {
        let mut parts = Vec::with_capacity(holders.len());
        for (holder, answer) in self.ask_each(holders, &Request::Fragment { dir }).await {
            let part = match answer {
                Ok(Reply::FragmentIs { entries, subdirs, changed }) => Ok((entries, subdirs, changed)),
                Ok(_) => Err(Failure::new(Code::Malformed, "Fragment was answered with something else")),
                Err(failure) => Err(failure.during(format!("entries of directory {dir} on server {holder}"))),
            };
            // This server counts its own part when it is looked at.
            if let (Ok(part), Some(cell)) = (&part, self.shards.home(dir))
                && holder != self.slot()
                && let Some(holders) = cell.names.lock().holders.get_mut(&dir)
            {
                holders.parts.learn(holder, question, *part);
            }
            parts.push((holder, part));
        }
        parts
    }

    /// At a directory's home: all parts are about to be asked for, by the question with this number.
    pub(super) fn parts_asked(&self, names: &mut Names, dir: Ino, holders: &[ServerIndex], question: u64) {
        if let Some(known) = names.holders.get_mut(&dir) {
            known.parts.ask(holders, self.map_epoch_now(), question);
        }
    }

    /// At a holder: its part. The home is told before an answer says that it has changed.
    pub(crate) fn part(&self, dir: Ino) -> Reply {
        let promises = self.shards.home(dir).is_none();
        let (entries, subdirs, changed) =
            if promises { self.directories.promised(dir) } else { self.directories.fragment(dir) };
        Reply::FragmentIs { entries, subdirs, changed }
    }

    /// Has homes told of parts that change.
    pub(crate) fn tell_of_parts(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.directories.untold.tell_by(Box::new(move |dir| {
            if let Some(server) = this.upgrade() {
                server.clone().io.spawn(async move { server.tell_home(dir).await });
            }
        }));
    }

    async fn tell_home(self: Arc<Self>, dir: Ino) {
        loop {
            if !self.config.switches.is(Sabotage::ForgetParts) && !self.has_told_home(dir).await {
                self.io.sleep(TELL_PAUSE).await;
                continue;
            }
            if !self.directories.untold.has_told(dir) {
                return;
            }
        }
    }

    /// Whether no home counts on this server's part as it was, by now.
    async fn has_told_home(self: &Arc<Self>, dir: Ino) -> bool {
        match self.ask_for_stub(dir).await {
            Ok(_) => true,
            Err(failure) if failure.is_silence() || failure.code == Code::Busy => {
                // The next life of a home knows no parts.
                let map = self.map();
                self.is_stopping() || map.home_of(dir).is_none_or(|home| map.is_gone(home))
            }
            Err(failure) => failure.code != Code::Refused || self.is_stopping(),
        }
    }

    /// The directories of a request whose answer has to wait until their homes have been told.
    pub(crate) fn untold_parts(&self, request: &Request) -> Option<Changed> {
        let dirs = if self.directories.untold.is_empty() { [None; 2] } else { changed(request) };
        dirs.iter().any(Option::is_some).then_some(dirs)
    }

    /// Waits until homes have been told of the parts that have changed, or have been silent for [`WORD_TIME_MAX`].
    pub(crate) async fn parts_told(&self, dirs: Changed, deadline_ns: u64) {
        for dir in dirs.into_iter().flatten() {
            while let Some(mut waiting) = self.directories.untold.wait(dir) {
                // After the deadline no client waits for the answer.
                let left = Duration::from_nanos(deadline_ns.saturating_sub(self.io.mono_ns()));
                let is_told = self.io.timeout(left.min(WORD_TIME_MAX), &mut waiting.told).await.is_some();
                if is_told || left < WORD_TIME_MAX || self.directories.untold.gives_up(dir, &waiting) {
                    break;
                }
            }
        }
    }
}

fn changed(request: &Request) -> Changed {
    match request {
        Request::Create(create) => [Some(create.parent), None],
        Request::Unlink { parent, .. }
        | Request::UnlinkFrozen { parent, .. }
        | Request::Rmdir { parent, .. }
        | Request::Link { parent, .. } => [Some(*parent), None],
        Request::Rename { parent, to_parent, .. } | Request::Exchange { parent, to_parent, .. } => {
            [Some(*parent), Some(*to_parent)]
        }
        Request::Commit { to_parent, .. } => [Some(*to_parent), None],
        _ => [None; 2],
    }
}
