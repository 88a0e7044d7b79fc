//! Listings and searches over the entries that live on this server.
//!
//! Shards are ranges of the name hash, so going through a directory's shards in their order gives
//! its entries in the order of their cookies, without any state between two pages.

use crate::coherence::state::leases::LeaseTable;
use crate::shards::ShardCell;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work};
use aze_meta::access::Want;
use aze_proto::fields::Scan;
use aze_proto::limits::{LIST_ENTRIES_MAX, PAGE_BYTES_MAX, SCAN_DIRS_MAX};
use aze_proto::message::{Found, Listed, ScanPlace, SubDir, Usage};
use aze_proto::predicate::Predicate;
use aze_proto::slots::slot_of;
use aze_proto::{FileKind, Ino, NameHash, Reply, ShardId, SlotIndex};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Entries that one page of a search looks at before it is sent: a page must be done within
/// milliseconds, for any predicate.
const SCAN_ENTRIES_MAX: usize = 65_536;

/// Encoded size of an entry with attributes and without its name, rounded up.
const ENTRY_BYTES: usize = 192;

/// One page of a search being filled.
#[derive(Default)]
struct Page {
    found: Vec<Found>,
    elsewhere: Vec<Found>,
    subdirs: Vec<SubDir>,
    usage: Vec<Usage>,
    seen: usize,
    bytes: usize,
}

impl Server {
    pub(crate) fn list(
        self: &Arc<Self>,
        work: &mut Work,
        dir: Ino,
        after: u64,
        limit: u32,
        attrs: bool,
    ) -> Attempt<Output> {
        self.directories.enter(dir, &work.identity, Want::READ, self.whole_since())?;
        let limit = (limit as usize).clamp(1, LIST_ENTRIES_MAX);
        let mut entries: Vec<Listed> = Vec::new();
        let mut bytes = 0;
        let (listener, now_ns) = (if attrs { self.listener_of(work) } else { None }, self.io.mono_ns());
        let mut leased = listener.is_some();
        let more = self.each_entry(dir, after, &[], |cell, lease_table, listed| {
            // Entries of one cookie must not be split: the next page starts after the cookie.
            let full = entries.len() >= limit || bytes >= PAGE_BYTES_MAX;
            if full && entries.last().is_some_and(|last| last.hash != listed.hash) {
                return ControlFlow::Break(());
            }
            bytes += ENTRY_BYTES + listed.name.as_bytes().len();
            let attr = if attrs { cell.inode(listed.ino).map(|inode| inode.attr.clone()) } else { None };
            if let Some(listener) = listener.as_ref().filter(|_| listed.kind != FileKind::Directory) {
                leased &= lease_table.give(listed.ino, listener, now_ns);
            }
            entries.push(Listed { attr, ..listed });
            ControlFlow::Continue(())
        });
        work.leased = leased;
        Ok(Reply::Listing { entries, more: more.is_break() }.into())
    }

    /// Whether this server certainly has no entries of a directory: it would hold its stub, unless it
    /// had lost it with an earlier life.
    fn has_no_part_in(&self, dir: Ino) -> bool {
        !self.directories.is_known(dir) && self.is_first_life()
    }

    /// Goes through the entries of a directory after a cookie, shard by shard, of these slots or of all.
    fn each_entry(
        &self,
        dir: Ino,
        after: u64,
        only: &[SlotIndex],
        mut visit: impl FnMut(&aze_meta::Shard, &mut LeaseTable, Listed) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let slots = self.map().slots.len();
        let Some(first) = NameHash::after_cookie(after) else { return ControlFlow::Continue(()) };
        let from: ShardId = first.shard(self.config.shards);
        for shard in self.directories.shards_from(dir, from) {
            if !only.is_empty() && !only.contains(&slot_of(shard, slots)) {
                continue;
            }
            let Some(cell) = self.shards.get(shard) else { continue };
            visit_shard(cell, dir, after, &mut visit)?;
        }
        ControlFlow::Continue(())
    }

    pub(crate) fn scan(self: &Arc<Self>, work: &Work, scan: &Scan) -> Attempt<Output> {
        let &Scan { ref dirs, ref predicate, find, usage, after_dir, after, limit, ref slots } = scan;
        if dirs.len() > SCAN_DIRS_MAX {
            let detail = format!("a search through {} directories at once: at most {SCAN_DIRS_MAX}", dirs.len());
            return Err(aze_proto::Failure::new(aze_proto::Code::Limit, detail).into());
        }
        let limit = (limit as usize).clamp(1, LIST_ENTRIES_MAX);
        let mut page = Page::default();
        let mut next = None;
        for index in after_dir..dirs.len() as u32 {
            let dir = dirs[index as usize];
            let start = if index == after_dir { after } else { 0 };
            // One that came from the backing may not have been imported yet: its stub tells.
            let may_be_behind = dir.is_backed() || dir == Ino::ROOT && self.config.backing.is_some();
            if !may_be_behind && self.has_no_part_in(dir) {
                continue;
            }
            // A directory that is gone since it was named has no entries; one that is closed to
            // the asker is an error, as it is for find(1).
            self.directories.enter(dir, &work.identity, Want { execute: true, ..Want::READ }, self.whole_since())?;
            let mut sum = Usage { dir: index, ..Usage::default() };
            let mut last = start;
            let stopped = self.each_entry(dir, start, slots, |shard, _, listed| {
                let cookie = listed.hash.cookie();
                if page.is_full(limit) && cookie != last {
                    return ControlFlow::Break(());
                }
                last = cookie;
                page.take(shard, listed, index, predicate, find, usage.then_some(&mut sum));
                ControlFlow::Continue(())
            });
            if usage && sum.files > 0 {
                page.usage.push(sum);
            }
            if stopped.is_break() {
                next = Some(ScanPlace { dir: index, after: last });
                break;
            }
        }
        let Page { found, elsewhere, subdirs, usage, .. } = page;
        Ok(Reply::Scanned { found, subdirs, elsewhere, usage, next }.into())
    }
}

fn visit_shard(
    cell: &ShardCell,
    dir: Ino,
    after: u64,
    visit: &mut impl FnMut(&aze_meta::Shard, &mut LeaseTable, Listed) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut names = cell.names.lock();
    let (shard, lease_table) = names.shard.parts();
    for (hash, name, entry) in shard.entries_after(dir, after) {
        visit(shard, lease_table, Listed { hash, name: name.clone(), ino: entry.ino, kind: entry.kind, attr: None })?;
    }
    ControlFlow::Continue(())
}

impl Page {
    fn is_full(&self, limit: usize) -> bool {
        let answers = self.found.len() + self.elsewhere.len() + self.subdirs.len();
        answers >= limit || self.seen >= SCAN_ENTRIES_MAX || self.bytes >= PAGE_BYTES_MAX
    }

    fn take(
        &mut self,
        shard: &aze_meta::Shard,
        listed: Listed,
        dir: u32,
        predicate: &Predicate,
        find: bool,
        usage: Option<&mut Usage>,
    ) {
        self.seen += 1;
        let Listed { name, ino, kind, .. } = listed;
        let attr = shard.inode(ino).map(|inode| inode.attr.clone());
        if kind == FileKind::Directory {
            self.bytes += ENTRY_BYTES + name.as_bytes().len();
            self.subdirs.push(SubDir { dir, name: name.clone(), ino });
        }
        let wanted = find && predicate.fits_name(&name, kind);
        // A file with several names, or whose inode is elsewhere, is counted by the asker, once.
        let countable = kind != FileKind::Directory && attr.as_ref().is_some_and(|attr| attr.links == 1);
        if let (Some(sum), Some(attr), true) = (usage, &attr, countable) {
            sum.files += 1;
            sum.bytes += attr.size;
        } else if kind != FileKind::Directory && !find {
            self.bytes += ENTRY_BYTES + name.as_bytes().len();
            self.elsewhere.push(Found { dir, name, ino, kind, attr });
            return;
        }
        match attr {
            // The size and times of a directory are known to its home only after gathering.
            Some(attr)
                if wanted && (kind != FileKind::Directory || !predicate.needs_attr()) && predicate.fits_attr(&attr) =>
            {
                self.bytes += ENTRY_BYTES + name.as_bytes().len();
                self.found.push(Found { dir, name, ino, kind, attr: Some(attr) });
            }
            Some(_) if kind != FileKind::Directory || !predicate.needs_attr() => {}
            _ if wanted => {
                self.bytes += ENTRY_BYTES + name.as_bytes().len();
                self.elsewhere.push(Found { dir, name, ino, kind, attr: None });
            }
            _ => {}
        }
    }
}
