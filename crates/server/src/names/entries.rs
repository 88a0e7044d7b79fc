//! Lookup and create: the two requests that begin almost everything, each on the shard that
//! (parent, name) hashes to.

use crate::sabotage::Sabotage;
use crate::shards::{Names, ShardCell};
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, Work};
use aze_meta::access::{self, Want};
use aze_meta::{EntryKey, NewFile, Op, acl};
use aze_proto::fields::Create;
use aze_proto::place::Layout;
use aze_proto::{Code, Failure, FileKind, Ino, MapEpoch, Name, NameHash, Reply, ShardId};
use std::sync::Arc;

impl Server {
    /// The cell of a shard that admission has found to be here.
    pub(crate) fn cell(&self, shard: ShardId) -> Attempt<&ShardCell> {
        self.shards
            .get(shard)
            .ok_or_else(|| Failure::new(Code::Internal, format!("{} does not hold shard {shard}", self.who())).into())
    }

    /// The entry's shard and key. The header's shard must be the one the name hashes to.
    pub(crate) fn entry_place(&self, work: &Work, parent: Ino, name: &Name) -> Attempt<(&ShardCell, EntryKey)> {
        let hash = NameHash::of(parent, name);
        if hash.shard(self.config.shards) != work.header.shard {
            let detail = format!("'{name}' in directory {parent} does not hash to shard {}", work.header.shard);
            return Err(Failure::new(Code::Malformed, detail).into());
        }
        Ok((self.cell(work.header.shard)?, EntryKey { parent, hash, name: name.clone() }))
    }

    /// Stops at an entry that a rename or removal has locked.
    pub(crate) fn unlocked(&self, cell: &ShardCell, names: &Names, key: &EntryKey) -> Attempt<()> {
        if names.shard.lock_of(key).is_some() && !self.config.switches.is(Sabotage::SkipEntryLock) {
            return Err(Stop::Wait(Wait::Entry(cell.id, key.clone())));
        }
        Ok(())
    }

    /// From which epoch on directories are whole on this server.
    pub(crate) fn whole_since(&self) -> MapEpoch {
        if self.config.switches.is(Sabotage::SkipBornCheck) { MapEpoch(0) } else { self.since() }
    }

    pub(crate) fn lookup(self: &Arc<Self>, work: &mut Work, parent: Ino, name: &Name) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.directories.enter_to_look(parent, &work.identity, self.whole_since())?;
        let entry = names.shard.entry(&key).ok_or(Code::NotFound)?;
        let leased = self.lease(work, &mut names, entry.ino, entry.kind);
        let attr = names.shard.inode(entry.ino).map(|inode| inode.attr.clone());
        if entry.kind == FileKind::File {
            names.shard.published.show_entry(&key, entry.ino, attr.as_ref());
        }
        let reply = Reply::Entry { ino: entry.ino, kind: entry.kind, attr, created: false };
        work.leased = leased;
        Ok(reply.into())
    }

    /// Where the chunks of a file go that is made under this name.
    pub(crate) fn layout_of_new(&self, key: &EntryKey) -> Layout {
        let place = key.hash.prefix();
        if key.parent.is_private_directory() {
            return Layout::in_one_shard(place);
        }
        self.config.switches.layout(place, self.config.shards)
    }

    pub(crate) fn create(self: &Arc<Self>, work: &mut Work, create: &Create) -> Attempt<Output> {
        let &Create { parent, ref name, kind, mode, rdev, ref target, exclusive, open, write, chunk_bits, private } =
            create;
        if !access::may_make(&work.identity, kind) {
            return Err(Failure::new(Code::NotPermitted, "only root may make device files").into());
        }
        let (cell, key) = self.entry_place(work, parent, name)?;
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        let exists = names.shard.entry(&key).is_some();
        if !exists {
            self.check_room()?;
        }
        let stub = if exists {
            self.directories.enter(parent, &work.identity, Want::SEARCH, self.whole_since())?
        } else {
            self.directories.enter_to_add(parent, &work.identity, self.whole_since())?
        };
        let chunk_bits = if chunk_bits == 0 { stub.chunk_bits } else { chunk_bits };
        let inherited = acl::inherited(stub.default_acl.as_ref(), kind, mode);
        let owned = access::new_file(&work.identity, &stub, kind, inherited.mode);
        let (uid, gid, mode) = (owned.uid, owned.gid, owned.mode);
        let (target, born) = (target.clone(), self.map_epoch_now());
        let layout = self.layout_of_new(&key);
        let private = private || kind == FileKind::Directory && parent.is_private_directory();
        let over_backing = self.is_over_backing(kind);
        let new = NewFile { kind, mode, uid, gid, rdev, target, born, chunk_bits, layout, private, over_backing };
        let exclusive = exclusive || kind != FileKind::File;
        let op = match inherited.xattrs {
            xattrs if xattrs.is_empty() => Op::Create { key, new, exclusive },
            xattrs => Op::CreateWith { key, new, exclusive, xattrs },
        };
        let applied = names.shard.apply(&op, &work.stamp);
        work.recorded = true;
        match &applied.reply {
            Ok(Reply::Entry { ino, created: true, .. }) => {
                if let Some(handle) = open {
                    names.opens.insert(*ino, work.session, handle, write);
                }
                self.directories.added(parent, cell.id, kind == FileKind::Directory, work.stamp.time);
            }
            _ if !exists => self.directories.not_added(parent),
            _ => {}
        }
        if let Ok(Reply::Entry { ino, kind, .. }) = &applied.reply {
            work.leased = self.lease(work, &mut names, *ino, *kind);
        }
        Ok(applied.reply?.into())
    }
}
