//! Opens that bring the contents of a small file along: a client that opens a file to read it needs no
//! second request. Contents and attributes are of one moment, that of the open.

use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Contents, Output, Work};
use aze_meta::access::Want;
use aze_proto::limits::{LEASE_MS, OPEN_CONTENTS_BYTES_MAX};
use aze_proto::{Attr, Code, FileKind, Ino, Name, Reply};
use aze_rpc::ReplyContext;
use aze_store::ChunkShard;
use std::sync::Arc;

impl Server {
    pub(crate) fn open_with(
        self: &Arc<Self>,
        work: &mut Work,
        ino: Ino,
        handle: u64,
        write: bool,
        contents: u32,
    ) -> Attempt<Output> {
        let cell = self.cell(self.home(ino))?;
        let data = cell.data.lock();
        let mut names = cell.names.lock();
        let attr = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr.clone();
        if attr.kind == FileKind::Directory && write {
            return Err(Code::IsDirectory.into());
        }
        self.register_open(work, &mut names, &attr, handle, Want { read: true, write, execute: false })?;
        work.leased = !write && self.lease(work, &mut names, ino, attr.kind);
        names.shard.published.show_inode(&attr);
        Ok(with_contents(&data, &attr, contents, Reply::Attributes { attr: attr.clone() }))
    }

    pub(crate) fn open_name_with(
        self: &Arc<Self>,
        work: &mut Work,
        parent: Ino,
        name: &Name,
        handle: u64,
        write: bool,
        contents: u32,
    ) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let data = cell.data.lock();
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.directories.enter_to_look(parent, &work.identity, self.whole_since())?;
        let entry = names.shard.entry(&key).ok_or(Code::NotFound)?;
        let (ino, kind) = (entry.ino, entry.kind);
        let attr = names.shard.inode(ino).map(|inode| inode.attr.clone());
        let plain = Reply::Entry { ino, kind, attr: attr.clone(), created: false };
        match attr.filter(|attr| attr.kind == FileKind::File) {
            Some(attr) => {
                self.register_open(work, &mut names, &attr, handle, Want { read: true, write, execute: false })?;
                work.leased = !write && self.lease(work, &mut names, ino, kind);
                names.shard.published.show_entry(&key, ino, Some(&attr));
                Ok(with_contents(&data, &attr, contents, plain))
            }
            None => {
                // It is opened where it is; the name is known by this.
                work.leased = !write && self.lease(work, &mut names, ino, kind);
                Ok(plain.into())
            }
        }
    }

    /// Sends an open with its contents.
    pub(crate) fn respond_contents(&self, work: Work, contents: Contents) {
        let Contents { attr, mut held, .. } = contents;
        if let Some(responder) = work.responder {
            let reply = Reply::OpenedWith { attr, sums: std::mem::take(&mut held.sums) };
            let lease_ms = if work.leased { LEASE_MS } else { 0 };
            responder.send(ReplyContext { lease_ms, ..self.reply_context() }, Ok(reply), &held.parts());
        }
    }
}

/// The reply to an open, with the file's contents if it is that small.
fn with_contents(data: &ChunkShard, attr: &Attr, limit: u32, plain: Reply) -> Output {
    let limit = u64::from(limit.min(OPEN_CONTENTS_BYTES_MAX)).min(attr.home_bytes());
    if attr.kind != FileKind::File || attr.size > limit {
        return plain.into();
    }
    if attr.ino.is_backed() && !data.has(attr.ino, 0) {
        // They may still be in the backing: a read gets them.
        return plain.into();
    }
    match data.hold(attr.ino, attr.generation, 0, 0, attr.size as u32) {
        Ok(held) => Output::Contents(Box::new(Contents { attr: attr.clone(), held, plain })),
        // A read reports the failure.
        Err(_) => plain.into(),
    }
}
