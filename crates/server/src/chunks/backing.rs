//! Data that are still in the volume's backing: a chunk is read from there, whole, before the first request that touches
//! it goes on. Below [`Backing::length`](aze_proto::Backing::length) a chunk is stored whole or not at all, so that whether
//! it was read needs no note.

use crate::chunks::state::backed::{Known, Lack, Run};
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, READERS_PAUSE};
use aze_io::backing::{BackingError, Identity};
use aze_meta::{Op, Stamp};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::piece_sums;
use aze_proto::{BackingIdentity, Code, Failure, Ino, Refusal, Reply, Request};
use aze_store::{ChunkShard, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long before its asker gives up a request is answered that waits for the backing, so that the answer, which names the
/// file, arrives.
const ANSWER_MARGIN: Duration = Duration::from_millis(500);

/// The identity as the backing compares it.
pub(crate) fn identity_of(identity: &BackingIdentity) -> Identity {
    let BackingIdentity { inode, size, mtime_ns, ctime_ns } = *identity;
    Identity { inode, size, mtime_ns: mtime_ns.cast_signed(), ctime_ns: ctime_ns.cast_signed() }
}

/// What users are told of an error of the backing.
pub(crate) fn backing_failure(error: BackingError) -> Failure {
    match error {
        BackingError::Changed(why) => Failure::new(Code::Changed, why),
        BackingError::Denied(why) => Failure::new(
            Code::AccessDenied,
            format!("{why}: the volume's servers read its backing with the rights of the user who started them"),
        ),
        BackingError::Failed(why) => Failure::new(Code::Backing, why),
    }
}

impl Server {
    /// Stops at a chunk whose bytes are still in the backing, and at a change that the file's home does not know of.
    pub(crate) fn filled(&self, data: &ChunkShard, lack: Lack) -> Attempt<()> {
        let Lack { ino, chunk, changes, .. } = lack;
        if !ino.is_backed() {
            return Ok(());
        }
        let has = chunk.is_some_and(|chunk| data.has(ino, chunk));
        if has && !changes {
            return Ok(());
        }
        let known = self.known_backing(lack)?;
        if has || chunk.is_none_or(|chunk| !known.has_part_in(chunk)) {
            return Ok(());
        }
        if changes && self.config.switches.is(Sabotage::WriteWithoutRest) {
            return Ok(());
        }
        Err(Stop::Wait(Wait::Backing(lack)))
    }

    /// What the home says of a file that came from the backing, in the generation that the asker knows.
    pub(crate) fn known_backing(&self, lack: Lack) -> Attempt<Arc<Known>> {
        match self.backed.known(lack.ino) {
            Some(known) if known.generation > lack.generation => {
                Err(Failure::refused(Refusal::GenerationStale { generation: known.generation }).into())
            }
            Some(known) if known.generation == lack.generation && (known.may_change || !lack.changes) => Ok(known),
            _ => Err(Stop::Wait(Wait::Backing(Lack { chunk: None, ..lack }))),
        }
    }

    /// Gets what a request lacks: what the home says, or the chunk.
    pub(crate) async fn fetch_backed(self: &Arc<Self>, lack: Lack, deadline_ns: u64) -> Result<(), Failure> {
        match (lack.chunk, self.backed.known(lack.ino)) {
            (Some(chunk), Some(known)) => self.fill(lack, chunk, known, deadline_ns).await,
            _ => self.ask_backing(lack).await,
        }
    }

    async fn ask_backing(self: &Arc<Self>, lack: Lack) -> Result<(), Failure> {
        let Lack { ino, generation, changes, .. } = lack;
        let request = if changes { Request::WillChange { ino } } else { Request::BackingOf { ino } };
        let forgotten = self.backed.forgotten();
        match self.ask_shard(self.home(ino), request).await? {
            Reply::BackingIs { backing, generation: now, chunk_bits } => {
                // A file that was made in the volume has no origin before a stage gives it one.
                let backing = backing.unwrap_or_default();
                let may_change = changes || backing.data_changed;
                self.backed.learn(ino, Known { generation: now, backing, chunk_bits, may_change }, forgotten);
                // A truncation that the asker has seen was lost with a restart of the home.
                if now < generation {
                    return Err(Failure::refused(Refusal::GenerationStale { generation: now }));
                }
                Ok(())
            }
            _ => Err(Failure::new(Code::Malformed, "BackingOf or WillChange was answered with something else")),
        }
    }

    /// Reads a chunk from the backing, once for all who wait for it.
    async fn fill(
        self: &Arc<Self>,
        lack: Lack,
        chunk: u64,
        known: Arc<Known>,
        deadline_ns: u64,
    ) -> Result<(), Failure> {
        let path = self.backing_path(&known);
        if lack.is_ahead {
            self.check_room_ahead(known.bytes_of(chunk) as u64)?;
        }
        let (is_first, ended) = self.backed.reads.join((lack.ino, chunk));
        if is_first {
            self.begin_to_fill(lack, chunk, known);
        }
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.io.mono_ns())).saturating_sub(ANSWER_MARGIN);
        match self.io.timeout(left, ended).await {
            Some(Ok(ended)) => ended,
            // The task that reads has ended without a word: look again.
            Some(Err(_)) => Ok(()),
            None => Err(self.late(&path)),
        }
    }

    fn begin_to_fill(self: &Arc<Self>, lack: Lack, chunk: u64, known: Arc<Known>) {
        let (server, bytes) = (self.clone(), known.bytes_of(chunk) as u64);
        self.backed.being_read.fetch_add(bytes, Ordering::Relaxed);
        self.io.spawn(async move {
            let ended = server.fill_now(lack, chunk, &known).await;
            server.backed.being_read.fetch_sub(bytes, Ordering::Relaxed);
            server.backed.reads.end(&(lack.ino, chunk), &ended);
        });
    }

    async fn fill_now(self: &Arc<Self>, lack: Lack, chunk: u64, known: &Known) -> Result<(), Failure> {
        let Lack { shard, ino, .. } = lack;
        let Some(over) = &self.config.backing else {
            let detail = format!("{}: it was started without the backing that inode {ino} came from", self.who());
            return Err(Failure::new(Code::Backing, detail));
        };
        let (Some(cell), Some(start)) = (self.shards.get(shard), known.start_of(chunk)) else { return Ok(()) };
        let len = known.bytes_of(chunk);
        let mut identity = identity_of(&known.backing.identity);
        if self.config.switches.is(Sabotage::AnyBackingFile)
            && let Ok(found) = over.tree.look(known.backing.path.0.clone()).await
        {
            identity = found.identity;
        }
        let read = over.tree.read(known.backing.path.0.clone(), identity, start, len).await;
        let mut bytes = match read {
            Err(error) if matches!(error, BackingError::Changed(_)) && self.has_other_origin(lack, known).await? => {
                return Ok(());
            }
            read => read.map_err(|error| self.told(ino, error))?,
        };
        if bytes.len() != len {
            let why = format!("{}: it ends before its length", self.backing_path(known));
            return Err(self.told(ino, BackingError::Changed(why)));
        }
        if bytes.iter().all(|byte| *byte == 0) {
            // One block says that the chunk was read; blocks that are not stored read as zeros.
            bytes.truncate(BLOCK_BYTES);
        }
        let sums = piece_sums(0, &bytes);
        let deadline_ns = self.io.mono_ns() + self.config.deadline.as_nanos() as u64;
        loop {
            let filled = {
                let mut data = cell.data.lock();
                match data.has(ino, chunk) {
                    true => Ok(()),
                    false => data.fill(ino, known.generation, chunk, &bytes, &sums),
                }
            };
            match filled {
                Ok(()) => {
                    self.keep_room();
                    return Ok(());
                }
                Err(StoreError::GenerationStale(_) | StoreError::Deleted { .. }) => {
                    self.backed.forget(ino);
                    return Ok(());
                }
                Err(StoreError::MissedTruncation { .. }) => {
                    self.backed.forget(ino);
                    return self.catch_up_with_truncations(shard, ino).await;
                }
                Err(StoreError::BeingRead) => self.io.sleep(READERS_PAUSE).await,
                Err(error) => {
                    let is_full = matches!(error, StoreError::NoSpace { .. } | StoreError::DiskFull { .. });
                    let needs_memory = self.persistence.is_some() && matches!(error, StoreError::NoSpace { .. });
                    let what = format!("reading {} into the volume, {}", self.backing_path(known), self.who());
                    let failure = Failure::from(error).during(what);
                    match is_full {
                        true if needs_memory => self.await_room(deadline_ns, failure).await?,
                        true => self.await_eviction(deadline_ns, failure).await?,
                        false => return Err(failure),
                    }
                }
            }
        }
    }

    /// The next data of a file in the backing, at a place or behind it. Where the backing has another file by now, or gives an error,
    /// there are data: who reads them is told.
    pub(crate) async fn run_in_backing(
        self: &Arc<Self>,
        lack: Lack,
        at: u64,
        deadline_ns: u64,
    ) -> Result<Run, Failure> {
        let (Some(known), Some(over)) = (self.backed.known(lack.ino), &self.config.backing) else {
            self.ask_backing(lack).await?;
            return Ok(Run { origin: 0, from: at, data: at..at });
        };
        let (backing, path) = (&known.backing, self.backing_path(&known));
        let asked = over.tree.next_data(backing.path.0.clone(), identity_of(&backing.identity), at);
        let left = Duration::from_nanos(deadline_ns.saturating_sub(self.io.mono_ns())).saturating_sub(ANSWER_MARGIN);
        let data = match self.io.timeout(left, asked).await {
            Some(data) => data.unwrap_or(at..u64::MAX),
            None => return Err(self.late(&path)),
        };
        Ok(Run { origin: backing.origin, from: at, data })
    }

    fn late(&self, path: &str) -> Failure {
        let detail = format!("{}: the backing has not answered in time about {path}; try again", self.who());
        Failure::new(Code::TimedOut, detail)
    }

    /// Whether a stage has given a file another origin than the one that is known here.
    async fn has_other_origin(self: &Arc<Self>, lack: Lack, known: &Known) -> Result<bool, Failure> {
        self.ask_backing(Lack { chunk: None, changes: false, ..lack }).await?;
        Ok(self.backed.known(lack.ino).is_none_or(|now| now.backing.origin != known.backing.origin))
    }

    /// What users are told of an error; the log names a file that has changed underneath, once.
    fn told(&self, ino: Ino, error: BackingError) -> Failure {
        if let (BackingError::Changed(why), Some(over)) = (&error, &self.config.backing)
            && self.backed.is_news(ino)
        {
            (over.report)(&format!("a file of the backing has changed underneath the volume: {why}"));
        }
        backing_failure(error)
    }

    /// For people: where a file is in the backing.
    fn backing_path(&self, known: &Known) -> String {
        let root = self.config.backing.as_ref().map_or("", |over| over.tree.root());
        format!("{root}/{}", String::from_utf8_lossy(&known.backing.path.0))
    }

    pub(crate) fn backing_of(&self, ino: Ino) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        let (generation, chunk_bits) = (inode.attr.generation, inode.attr.chunk_bits);
        Ok(Reply::BackingIs { backing: inode.backing().cloned(), generation, chunk_bits }.into())
    }

    /// At a file's home: its data are about to be changed.
    pub(crate) fn will_change(&self, ino: Ino) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        if inode.backing().is_some_and(|backing| !backing.data_changed) {
            names.shard.apply(&Op::WillChange { ino }, &self.own_stamp(&Stamp::default())).reply?;
        }
        drop(names);
        self.backing_of(ino)
    }
}
