//! What operations do to inodes at their home: links, attributes, length, deletion. Times of
//! change never move back; merges take the maximum.

use crate::acl;
use crate::op::{AttrSet, TRUNCATIONS_PENDING_MAX};
use crate::shard::{Effects, Shard, Step};
use crate::tables::{Inode, PendingTruncation, Tables};
use aze_proto::ids::{Generation, Ino, Time};
use aze_proto::limits::FILE_BYTES_MAX;
use aze_proto::{Attr, Code, Failure, FileKind, Refusal, Reply, Spread};

impl<T: Tables> Shard<T> {
    pub(crate) fn set_attr(&mut self, ino: Ino, set: &AttrSet, time: Time) -> Step {
        self.here(ino)?;
        self.change(ino, |inode| {
            if let (Some(mode), Some(list)) = (set.mode, inode.acl()) {
                inode.put_xattr(acl::ACCESS, Some(list.with_mode(mode).to_blob()));
            }
            if inode.attr.kind == FileKind::Directory && set.mtime.is_some() {
                inode.rare.change(|parts| parts.mtime_set = time);
            }
            if *set != (AttrSet { atime: set.atime, ..AttrSet::default() }) {
                inode.change_backing(|backing| backing.attributes_changed = true);
            }
            let attr = &mut inode.attr;
            attr.mode = set.mode.map_or(attr.mode, |mode| mode & 0o7777);
            attr.uid = set.uid.unwrap_or(attr.uid);
            attr.gid = set.gid.unwrap_or(attr.gid);
            attr.atime = set.atime.unwrap_or(attr.atime);
            attr.mtime = set.mtime.unwrap_or(attr.mtime);
            changed(attr, time);
        })
    }

    pub(crate) fn report(&mut self, ino: Ino, generation: Generation, end: u64, spread: Spread, time: Time) -> Step {
        let attr = &self.file_here(ino)?.attr;
        if generation < attr.generation {
            return Err(Failure::refused(Refusal::GenerationStale { generation: attr.generation }));
        }
        if generation > attr.generation {
            let detail = format!("generation {generation} of inode {ino} has not begun: it is in {}", attr.generation);
            return Err(Failure::new(Code::Invalid, detail));
        }
        check_size(end)?;
        self.change(ino, |inode| {
            inode.change_backing(|backing| backing.data_changed = true);
            let attr = &mut inode.attr;
            attr.size = attr.size.max(end);
            attr.spread = attr.spread.and(spread);
            attr.mtime = attr.mtime.max(time);
            changed(attr, time);
        })
    }

    pub(crate) fn truncate(&mut self, ino: Ino, size: u64, time: Time) -> Step {
        let inode = self.file_here(ino)?;
        check_size(size)?;
        let raised = inode.attr.generation.0.checked_add(1).map(Generation);
        let generation =
            raised.ok_or_else(|| Failure::new(Code::Limit, format!("inode {ino} has been truncated 2^32 times")))?;
        // An older truncation that left as much or more is covered by this one.
        let kept = inode.rare.get().truncations.iter().filter(|truncation| truncation.length < size).count();
        if kept >= TRUNCATIONS_PENDING_MAX {
            let detail = format!("{kept} truncations of inode {ino} wait for servers of its data");
            return Err(Failure::new(Code::Busy, detail));
        }
        self.change(ino, |inode| {
            inode.rare.change(|parts| {
                parts.truncations.truncate(kept);
                parts.truncations.push(PendingTruncation { generation, length: size });
            });
            inode.change_backing(|backing| {
                backing.data_changed = true;
                backing.length = backing.length.min(size);
            });
            let attr = &mut inode.attr;
            attr.generation = generation;
            // An empty file has no holes any more.
            attr.spread = attr.spread.with_sparse(size > 0 && (attr.spread.is_sparse() || size > attr.size));
            attr.size = size;
            attr.mtime = attr.mtime.max(time);
            changed(attr, time);
        })
    }

    pub(crate) fn truncate_done(&mut self, ino: Ino, generation: Generation) -> Step {
        self.here(ino)?;
        let (_, effects) = self.change(ino, |inode| {
            inode.rare.change(|parts| parts.truncations.retain(|truncation| truncation.generation > generation))
        })?;
        Ok((Reply::Done, effects))
    }

    pub(crate) fn set_parent(&mut self, ino: Ino, parent: Ino, time: Time) -> Step {
        if self.here(ino)?.attr.kind != FileKind::Directory {
            return Err(Code::NotDirectory.into());
        }
        let (_, effects) = self.change(ino, |inode| {
            inode.attr.parent = parent;
            changed(&mut inode.attr, time);
        })?;
        Ok((Reply::Done, effects))
    }

    pub(crate) fn delete(&mut self, ino: Ino, time: Time) -> Step {
        let attr = &self.here(ino)?.attr;
        if ino == Ino::ROOT {
            return Err(Failure::new(Code::NotPermitted, "the root directory cannot be deleted"));
        }
        if attr.kind == FileKind::Directory && self.has_entries(ino) {
            return Err(Code::NotEmpty.into());
        }
        if attr.kind != FileKind::Directory && attr.links > 0 {
            return Err(Failure::new(Code::Invalid, format!("inode {ino} still has {} links", attr.links)));
        }
        self.note_gone_deleted(ino, time);
        let attr = self.tables.remove_inode(ino).map(|inode| inode.attr);
        Ok((Reply::Done, Effects { attr, ..Effects::default() }))
    }

    pub(crate) fn here(&self, ino: Ino) -> Result<&Inode, Failure> {
        self.tables.inode(ino).ok_or_else(|| gone(ino))
    }

    /// A regular file that lives here: the only kind that has data.
    fn file_here(&self, ino: Ino) -> Result<&Inode, Failure> {
        let inode = self.here(ino)?;
        match inode.attr.kind {
            FileKind::File => Ok(inode),
            FileKind::Directory => Err(Code::IsDirectory.into()),
            _ => Err(Failure::new(Code::Invalid, format!("inode {ino} is no regular file: it has no data"))),
        }
    }

    pub(crate) fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Step {
        let attr = self.tables.update_inode(ino, |inode| {
            change(inode);
            inode.attr.clone()
        });
        let attr = attr.ok_or_else(|| gone(ino))?;
        Ok((Reply::Attributes { attr: attr.clone() }, Effects { attr: Some(attr), ..Effects::default() }))
    }
}

fn gone(ino: Ino) -> Failure {
    Failure::new(Code::Stale, format!("inode {ino}"))
}

pub(crate) fn changed(attr: &mut Attr, time: Time) {
    attr.ctime = attr.ctime.max(time);
}

fn check_size(size: u64) -> Result<(), Failure> {
    if size <= FILE_BYTES_MAX {
        return Ok(());
    }
    Err(Failure::new(Code::TooLarge, format!("{size} bytes: a file has at most {FILE_BYTES_MAX}")))
}
