//! Files that a stage has put into the backing: the object there becomes their origin, and their chunks become copies of it, which
//! may go when room is short.
//!
//! The order. The home looks at the place in the backing, compares the file with the version that was staged, and notes the new
//! origin as one that settles: with that, the file is still dirty, and no chunk may go. When that is durable, it asks each server of
//! the data. A server first learns of the new origin, so that every later change is told to the home again; then it
//! compares its count of changes with the one of the staged version, and makes the chunks copies in the same hold of each
//! shard's lock. So a chunk that is a copy has the bytes of an origin that the home does not forget, also after a kill. Once all
//! servers have confirmed, the origin has settled. A change that was told meanwhile has made the file dirty again.

use crate::chunks::backing::{backing_failure, identity_of};
use crate::chunks::state::backed::Known;
use crate::sabotage::Sabotage;
use crate::shards::ShardCell;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, then};
use aze_io::backing::BackingError;
use aze_meta::{Op, Stamp};
use aze_proto::fields::CountChanges;
use aze_proto::{
    Attr, Backing, Code, Failure, FileKind, Ino, Reply, Request, ServerChanges, ServerIndex, Settle, ShardId, Staged,
};
use aze_store::disk::journal::Stage;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Server {
    /// Whether a new file of this kind may be staged back into the backing, so that its chunks may go.
    pub(crate) fn is_over_backing(&self, kind: FileKind) -> bool {
        kind == FileKind::File && self.config.backing.is_some()
    }

    /// At a file's home: who stages it now is told where it comes from, and a late request of an earlier stage does not change that.
    pub(crate) fn claim(&self, ino: Ino) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let backing = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.backing().cloned();
        let claim = self.io.random_u64();
        self.backed.claim(ino, claim);
        Ok(Reply::Claimed { claim, backing }.into())
    }

    /// At a file's home.
    pub(crate) fn adopt(self: &Arc<Self>, staged: &Staged) -> Attempt<Output> {
        let (server, staged) = (self.clone(), staged.clone());
        then(async move { server.adopt_now(&staged).await })
    }

    async fn adopt_now(self: &Arc<Self>, staged: &Staged) -> Result<Reply, Failure> {
        let ino = staged.ino;
        self.check_place(staged).await?;
        if self.is_named_below(staged).await? {
            return self.origin_now(ino);
        }
        let Some((attr, backing)) = self.note_origin(staged)? else { return self.origin_now(ino) };
        // Before a chunk may go that only this origin has.
        if let Some(persistence) = &self.persistence {
            let durable = persistence.journal.reach(persistence.journal.end(), Stage::Durable).await;
            durable.map_err(|why| Failure::new(Code::UnknownOutcome, why.to_string()))?;
        }
        let asked = staged.changes.iter().map(|changes| self.ask_to_settle(&attr, &backing, staged, *changes));
        let is_same = join_all(asked).await.into_iter().all(|is_same| is_same);
        if is_same || self.config.switches.is(Sabotage::SettleEarly) {
            let cell = self.shards.home(ino).ok_or_else(|| Failure::from(Code::Internal))?;
            let settled = Op::Settled { ino, origin: backing.origin };
            cell.names.lock().shard.apply(&settled, &self.own_stamp(&Stamp::default())).reply?;
        }
        self.backed.end_claim(ino, staged.claim);
        self.origin_now(ino)
    }

    /// The home does not believe its asker, and looks at the place in the backing.
    async fn check_place(&self, staged: &Staged) -> Result<(), Failure> {
        let Some(over) = &self.config.backing else {
            let detail =
                format!("{}: it was started without a backing that could have inode {}", self.who(), staged.ino);
            return Err(Failure::new(Code::Backing, detail));
        };
        let found = over.tree.look(staged.path.0.clone()).await.map_err(backing_failure)?;
        let is_file = FileKind::from_mode(found.mode) == Some(FileKind::File);
        if is_file && found.identity == identity_of(&staged.identity) {
            return Ok(());
        }
        let path = String::from_utf8_lossy(&staged.path.0);
        let detail = format!("{}/{path}: it is not what was staged there", over.tree.root());
        Err(Failure::new(Code::Changed, detail))
    }

    /// Whether the place that the file had before tells of a name that went: names in a directory that was renamed have no records
    /// of their own, and are known by where their inodes came from, until the backing has followed.
    async fn is_named_below(&self, staged: &Staged) -> Result<bool, Failure> {
        let before = {
            let cell = self.shards.home(staged.ino).ok_or_else(|| Failure::from(Code::Internal))?;
            let names = cell.names.lock();
            names.shard.inode(staged.ino).ok_or_else(|| self.gone(staged.ino))?.backing().cloned().unwrap_or_default()
        };
        let came_with_directory = staged.parent.is_backed()
            && before.parent == staged.parent
            && before.path != staged.path
            && staged.path.0.rsplit(|byte| *byte == b'/').next() == Some(before.first_name());
        let Some(over) = self.config.backing.as_ref().filter(|_| came_with_directory) else { return Ok(false) };
        match over.tree.look(before.path.0.clone()).await {
            Ok(found) => Ok(found.identity.inode == before.identity.inode),
            Err(BackingError::Changed(_)) => Ok(false),
            Err(error) => Err(backing_failure(error)),
        }
    }

    /// Notes the new origin, as one that settles; `None` if the file is in another version or has another origin by now.
    fn note_origin(&self, staged: &Staged) -> Result<Option<(Attr, Backing)>, Failure> {
        let cell = self.shards.home(staged.ino).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        let inode = names.shard.inode(staged.ino).ok_or_else(|| self.gone(staged.ino))?;
        let (attr, before) = (inode.attr.clone(), inode.backing().cloned().unwrap_or_default());
        let next = staged.origin.wrapping_add(1);
        if before.origin == next && before.identity == staged.identity && before.is_settling {
            // The same request once more.
            return Ok(Some((attr, before)));
        }
        let is_any = self.config.switches.is(Sabotage::AdoptAnyVersion);
        let is_version = attr.kind == FileKind::File
            && attr.ino.is_backed()
            && attr.links == 1
            && attr.generation == staged.generation
            && attr.size == staged.size
            && before.origin == staged.origin
            && self.backed.is_claim(staged.ino, staged.claim)
            && attr.spread.chunks().max(1) == staged.chunks
            && self.servers_of_data(&attr) == staged.changes.iter().map(|of| of.server).collect::<BTreeSet<_>>();
        if !is_version && !is_any {
            return Ok(None);
        }
        let backing = Backing {
            path: staged.path.clone(),
            identity: staged.identity,
            length: staged.size,
            is_imported: true,
            data_changed: false,
            // One that has come since then, or with the stage itself.
            attributes_changed: attr.ctime != staged.ctime,
            parent: staged.parent,
            origin: next,
            is_settling: true,
        };
        let adopt = Op::Adopt { ino: staged.ino, backing: backing.clone() };
        names.shard.apply(&adopt, &self.own_stamp(&Stamp::default())).reply?;
        Ok(Some((attr, backing)))
    }

    /// The servers whose changes of a file's data a stage counts.
    fn servers_of_data(&self, attr: &Attr) -> BTreeSet<ServerIndex> {
        let map = self.map();
        let mut all: BTreeSet<ServerIndex> = map.data_servers(attr).into_iter().collect();
        if all.is_empty() {
            all.extend(map.server_of(map.chunk_shard(attr, 0)));
        }
        all
    }

    fn origin_now(&self, ino: Ino) -> Result<Reply, Failure> {
        let cell = self.shards.home(ino).ok_or_else(|| Failure::from(Code::Internal))?;
        let names = cell.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        let (generation, chunk_bits) = (inode.attr.generation, inode.attr.chunk_bits);
        Ok(Reply::BackingIs { backing: inode.backing().cloned(), generation, chunk_bits })
    }

    /// Whether the data of a server are those that were staged. One that does not answer has not said so.
    async fn ask_to_settle(
        self: &Arc<Self>,
        attr: &Attr,
        backing: &Backing,
        staged: &Staged,
        changes: ServerChanges,
    ) -> bool {
        let &Attr { ino, born, layout, chunk_bits, .. } = attr;
        let count = CountChanges { ino, generation: staged.generation, born, layout, chunks: staged.chunks };
        let settle = Box::new(Settle { count, changes, backing: backing.clone(), chunk_bits });
        matches!(
            self.ask(changes.server, ShardId(0), Request::Settle { settle }).await,
            Ok(Reply::Settled { is_same: true })
        )
    }

    /// From a file's home.
    pub(crate) fn settle_copies(&self, settle: &Settle) -> Attempt<Output> {
        let Settle { count, changes, backing, chunk_bits } = settle;
        let CountChanges { ino, generation, .. } = *count;
        self.check_kept(ino, count.born)?;
        // First: later writes tell the home of the change.
        let tells = !self.config.switches.is(Sabotage::ForgetToTell);
        if tells {
            let known = Known { generation, backing: backing.clone(), chunk_bits: *chunk_bits, may_change: false };
            self.backed.learn(ino, known, self.backed.forgotten());
        }
        // This server keeps a later origin that it knows of, and may keep an older one when it has just forgotten
        // others.
        let is_other = tells && self.backed.known(ino).is_some_and(|known| known.backing.origin != backing.origin);
        let (mut wraps, mut sum, mut counted) = (0u64, 0u64, Vec::new());
        for cell in self.shards_of_data(count) {
            let of_shard = cell.data.lock().count_changes(ino, generation);
            let of_shard = of_shard.map_err(|error| self.data_stop(error, cell.id, ino))?;
            wraps = wraps.wrapping_add(of_shard.wraps);
            sum = sum.wrapping_add(of_shard.changes);
            counted.push((cell, of_shard));
        }
        let mut is_same =
            (self.leases.life(), wraps, sum) == (changes.life, changes.wraps, changes.changes) && !is_other;
        let is_any = self.config.switches.is(Sabotage::SettleUncounted);
        if !is_same && !is_any {
            return Ok(Reply::Settled { is_same }.into());
        }
        for (cell, before) in counted {
            let mut data = cell.data.lock();
            // Each count only grows: the sum was that of the version, so each of them was, and is if it has not changed.
            if is_any || data.count_changes(ino, generation).is_ok_and(|now| now == before) {
                self.evictions.count_drained(data.note_copies(ino, backing.length, *chunk_bits));
            } else {
                is_same = false;
            }
        }
        Ok(Reply::Settled { is_same: is_same || is_any }.into())
    }

    /// The shards here that may have data of a file.
    pub(crate) fn shards_of_data(&self, count: &CountChanges) -> impl Iterator<Item = &ShardCell> {
        let CountChanges { layout, chunks, .. } = *count;
        let is_near = move |id| layout.ahead(0, id, self.config.shards).is_some_and(|ahead| ahead < chunks.max(1));
        self.shards.iter().filter(move |cell| is_near(cell.id))
    }
}
