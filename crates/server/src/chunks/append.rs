//! Appends: the file's home puts them in order. It gets the data with the request, chooses the place,
//! stores them on the servers of their chunks, and only then raises the size; so no reader ever sees a
//! part of an append, and an append that did not finish has no effect.

use crate::chunks::state::backed::Lack;
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, READERS_PAUSE, Work, then};
use aze_meta::access;
use aze_meta::op::TRUNCATIONS_PENDING_MAX;
use aze_meta::{AttrSet, Op, Stamp};
use aze_proto::fields::Write;
use aze_proto::limits::{APPEND_BYTES_MAX, DAMAGED_TRIES_MAX, FILE_BYTES_MAX};
use aze_proto::place::{Span, spans};
use aze_proto::sum::{first_mismatch, piece_sums};
use aze_proto::{Attr, Code, Failure, FileKind, Identity, Ino, Reply, Request, ShardId};
use aze_store::StoreError;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// One append whose turn it is.
struct Append {
    ino: Ino,
    identity: Identity,
    stamp: Stamp,
    payload: Vec<u8>,
    /// The sender's checksums, by blocks of the payload.
    sums: Vec<u32>,
    /// When the client will have given up.
    deadline_ns: u64,
}

impl Server {
    pub(crate) fn append(self: &Arc<Self>, work: &mut Work, ino: Ino, sums: &[u32]) -> Attempt<Output> {
        if work.payload.len() > APPEND_BYTES_MAX {
            let detail = format!("{} bytes: one append has at most {APPEND_BYTES_MAX}", work.payload.len());
            return Err(Failure::new(Code::Limit, detail).into());
        }
        // Declared before the lock: giving it back takes that.
        let turn = work.turn.take();
        let mut names = self.cell(self.home(ino))?.names.lock();
        let attr = &names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr;
        if attr.kind != FileKind::File {
            return Err(Failure::new(Code::Invalid, format!("inode {ino} is no regular file")).into());
        }
        let turn = match turn.or_else(|| self.try_turn(&mut names, ino)) {
            Some(turn) => turn,
            None => return Err(Stop::Wait(Wait::Turn(ino))),
        };
        drop(names);
        let append = Append {
            ino,
            identity: work.identity.clone(),
            stamp: work.stamp,
            sums: sums.to_vec(),
            payload: std::mem::take(&mut work.payload).into_bytes(),
            deadline_ns: work.deadline_ns,
        };
        let server = self.clone();
        then(async move {
            let appended = server.append_in_turn(&append).await;
            drop(turn);
            appended
        })
    }

    async fn append_in_turn(self: &Arc<Self>, append: &Append) -> Result<Reply, Failure> {
        let attr = self.place_append(append)?;
        let (offset, bytes) = (attr.size, append.payload.len());
        let pieces: Vec<(Span, Vec<u32>)> = spans(offset, bytes, attr.chunk_bits)
            .map(|span| (span, piece_sums(u64::from(span.offset), part(append, span))))
            .collect();
        // After the new checksums were made, so that no byte changes between the old and the new ones.
        if let Some(block) = first_mismatch(0, &append.payload, &append.sums) {
            let detail = format!("append to inode {}: block {block} was damaged on its way", append.ino);
            return Err(Failure::new(Code::Corrupt, detail));
        }
        let stores = pieces.iter().map(|(span, sums)| self.store_span(append, &attr, *span, sums));
        let failed = join_all(stores).await.into_iter().find_map(Result::err);
        let done = match failed {
            None => self.count_append(append, &attr),
            Some(failure) => Err(failure),
        };
        done.map_err(|failure| {
            self.take_back(&attr, pieces.len());
            match failure.code {
                // Whether the bytes were stored is not known; that they do not count is.
                Code::UnknownOutcome => Failure::new(Code::Unreachable, format!("nothing was appended: {failure}")),
                _ => failure,
            }
        })
    }

    /// The file as it is, after its home was told that data may go beyond chunk 0.
    fn place_append(&self, append: &Append) -> Result<Attr, Failure> {
        let cell = self.shards.home(append.ino).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        let inode = names.shard.inode(append.ino).ok_or_else(|| self.gone(append.ino))?;
        let attr = inode.attr.clone();
        let end = attr.size.checked_add(append.payload.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(Failure::new(Code::TooLarge, format!("a file has at most {FILE_BYTES_MAX} bytes")));
        };
        if inode.rare.get().truncations.len() + 1 >= TRUNCATIONS_PENDING_MAX {
            // If this append failed, its stored part could not be cut off.
            let detail = format!(
                "{} truncations of inode {} wait for servers of its data",
                inode.rare.get().truncations.len(),
                attr.ino
            );
            return Err(Failure::new(Code::Busy, detail));
        }
        if let Some(reach) = attr.reach_for(end, || self.map().indexes().count()) {
            let report = Op::Report { ino: attr.ino, generation: attr.generation, end: 0, spread: reach };
            names.shard.apply(&report, &self.own_stamp(&append.stamp)).reply?;
            return Ok(Attr { spread: attr.spread.and(reach), ..attr });
        }
        Ok(attr)
    }

    async fn store_span(
        self: &Arc<Self>,
        append: &Append,
        attr: &Attr,
        span: Span,
        sums: &[u32],
    ) -> Result<(), Failure> {
        let (ino, generation, data) = (attr.ino, attr.generation, part(append, span));
        let shard = attr.layout.place(span.chunk).shard(self.config.shards);
        let Some(cell) = self.shards.get(shard) else {
            return self.store_elsewhere(append, attr, shard, span, sums).await;
        };
        loop {
            let lack = Lack { shard, ino, generation, chunk: Some(span.chunk), changes: true, is_ahead: false };
            let tried = {
                let mut chunks = cell.data.lock();
                let filled = self.filled(&chunks, lack);
                filled.map(|()| chunks.write(ino, generation, span.chunk, span.offset, data, sums))
            };
            let written = match tried {
                Ok(written) => written,
                Err(Stop::Wait(Wait::Backing(lack))) => {
                    self.fetch_backed(lack, append.deadline_ns).await?;
                    continue;
                }
                Err(Stop::Wait(wait)) => return Err(Failure::new(Code::Internal, format!("{wait:?}"))),
                Err(Stop::Fail(failure)) => return Err(failure),
            };
            match written {
                Err(StoreError::MissedTruncation { .. }) => self.catch_up_with_truncations(shard, ino).await?,
                Err(StoreError::BeingRead) if self.io.mono_ns() < append.deadline_ns => {
                    self.io.sleep(READERS_PAUSE).await;
                }
                Err(StoreError::Cold { chunk, units, .. }) => {
                    self.bring_back(shard, (ino, chunk), &units, append.deadline_ns).await?;
                }
                Err(error @ StoreError::NoSpace { .. }) if self.persistence.is_some() => {
                    self.await_room(append.deadline_ns, Failure::from(error)).await?;
                }
                Err(error @ (StoreError::NoSpace { .. } | StoreError::DiskFull { .. }))
                    if self.config.backing.is_some() =>
                {
                    let full = Failure::from(error).during(format!("append to inode {ino}, {}", self.who()));
                    self.await_eviction(append.deadline_ns, full).await?;
                }
                Err(error) => return Err(Failure::from(error).during(format!("append to inode {ino}, {}", self.who()))),
                Ok(()) => {
                    self.keep_room();
                    return Ok(());
                }
            }
        }
    }

    async fn store_elsewhere(
        self: &Arc<Self>,
        append: &Append,
        attr: &Attr,
        shard: ShardId,
        span: Span,
        sums: &[u32],
    ) -> Result<(), Failure> {
        let data = part(append, span);
        let Attr { ino, generation, born, .. } = *attr;
        let write = Request::Write(Write {
            ino,
            generation,
            born,
            layout: attr.layout,
            chunk: span.chunk,
            offset: span.offset,
            sums: sums.to_vec(),
        });
        let mut tries = 1;
        loop {
            // Leaves time to answer before the client takes this server for dead.
            let left_ns = append.deadline_ns.saturating_sub(self.io.mono_ns());
            let deadline = self.config.deadline.min(Duration::from_nanos(left_ns / 2));
            match self.ask_shard_with(shard, write.clone(), data, deadline).await {
                // Bytes that were damaged on the way have had no effect: once more.
                Err(failure) if failure.code == Code::Corrupt && tries < DAMAGED_TRIES_MAX => tries += 1,
                stored => return stored.map(drop),
            }
        }
    }

    /// All of it is stored: from now on it counts.
    fn count_append(&self, append: &Append, attr: &Attr) -> Result<Reply, Failure> {
        let Append { ino, identity, stamp, payload, .. } = append;
        let cell = self.shards.home(*ino).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        let now = &names.shard.inode(*ino).ok_or_else(|| self.gone(*ino))?.attr;
        if payload.is_empty() {
            // A write of nothing changes nothing: write(2).
            return Ok(Reply::Appended { attr: now.clone(), offset: now.size });
        }
        if let Some(mode) = access::mode_after_write(identity, now) {
            let set = AttrSet { mode: Some(mode), ..AttrSet::default() };
            names.shard.apply(&Op::SetAttr { ino: *ino, set }, &self.own_stamp(stamp)).reply?;
        }
        let end = attr.size + payload.len() as u64;
        let appended = Op::Appended { ino: *ino, generation: attr.generation, offset: attr.size, end };
        let stamp = Stamp { time: self.own_stamp(stamp).time, ..*stamp };
        names.shard.apply(&appended, &stamp).reply
    }

    /// Cuts off the stored bytes of an append that failed, as a truncation to where the file ends: a
    /// new generation, so that its writes still in flight are refused.
    fn take_back(self: &Arc<Self>, attr: &Attr, pieces: usize) {
        let first = attr.layout.place(attr.size >> attr.chunk_bits).shard(self.config.shards);
        if pieces == 0 || pieces == 1 && self.shards.get(first).is_some() {
            // The store writes all of a piece or nothing.
            return;
        }
        let Some(cell) = self.shards.home(attr.ino) else { return };
        let mut data = cell.data.lock();
        let mut names = cell.names.lock();
        let Some(size) = names.shard.inode(attr.ino).map(|inode| inode.attr.size) else { return };
        let stamp = self.own_stamp(&Stamp::default());
        let truncation = names.shard.apply(&Op::Truncate { ino: attr.ino, size }, &stamp);
        let Some(now) = truncation.effects.attr.filter(|_| truncation.reply.is_ok()) else { return };
        data.truncate(attr.ino, now.generation, size, now.chunk_bits);
        drop(names);
        drop(data);
        let server = self.clone();
        self.io.spawn(async move {
            // Who does not answer is told in the background, and asks before it serves.
            let _ = server.truncate_data(&now, size).await;
        });
    }
}

fn part(append: &Append, span: Span) -> &[u8] {
    &append.payload[span.start..span.start + span.len]
}
