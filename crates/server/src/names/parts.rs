//! A directory's counts and times are the sum of its holders' parts, which the directory's home keeps.
//!
//! Who has said its part promises to tell the home before it answers a change of it. So a directory that nobody changes costs one request,
//! however many servers have entries of it, and one that is changed costs a question to each server with a change since the last look.
//! The home is told by what it gets anyway from a server that wants to change entries: the request for the stub.

use super::state::parts::Part;
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use aze_proto::{Code, Failure, Ino, Reply, Request, ServerIndex};
use std::sync::Arc;
use std::time::Duration;

/// Pause before a home that could not be told is told again.
const TELL_PAUSE: Duration = Duration::from_millis(50);

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
        let (mut parts, to_ask) = holders.parts.look(&others, map.epoch, question);
        if holders.servers.contains_key(&self.slot()) {
            parts.push(self.directories.fragment(dir));
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
            if let (Ok(part), Some(cell)) = (&part, self.shards.home(dir))
                && let Some(holders) = cell.names.lock().holders.get_mut(&dir)
            {
                holders.parts.learn(holder, question, *part);
            }
            parts.push((holder, part));
        }
        parts
    }

    /// At a holder: its part. The home is told before an answer says that it has changed.
    pub(crate) fn part(&self, dir: Ino) -> Reply {
        let is_home = self.shards.home(dir).is_some();
        let (entries, subdirs, changed) =
            if is_home { self.directories.fragment(dir) } else { self.directories.promised(dir) };
        Reply::FragmentIs { entries, subdirs, changed }
    }

    /// Has homes told of parts that change.
    pub(crate) fn tell_of_parts(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.directories.on_change(Box::new(move |dir| {
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
            if !self.directories.has_told(dir) {
                return;
            }
        }
    }

    /// Whether no home counts on this server's part as it was, by now.
    async fn has_told_home(self: &Arc<Self>, dir: Ino) -> bool {
        let (holder, incarnation) = (self.slot(), self.incarnation());
        match self.ask_shard(self.home(dir), Request::StubGet { dir, holder, incarnation }).await {
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
        let dirs = if self.directories.are_told() { [None; 2] } else { changed(request) };
        dirs.iter().any(Option::is_some).then_some(dirs)
    }

    /// Waits until homes have been told of the parts that have changed.
    pub(crate) async fn parts_told(&self, dirs: Changed, deadline_ns: u64) {
        for dir in dirs.into_iter().flatten() {
            if let Some(told) = self.directories.wait_told(dir) {
                // After the deadline nobody waits for the answer.
                let _ = self.await_until(told, deadline_ns, "a directory's home to be told").await;
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
