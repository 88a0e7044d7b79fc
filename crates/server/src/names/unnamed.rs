//! Files that are made without a name, for `O_TMPFILE`: orphans from the beginning, which go with their
//! last open. Unlike others without a name they may be given one.

use crate::shards::Names;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work};
use aze_meta::{NewFile, Op, access, acl};
use aze_proto::{Attr, Code, Failure, FileKind, Ino, Name, Reply, ShardId, TxId};
use std::sync::Arc;

impl Server {
    pub(crate) fn create_unnamed(
        self: &Arc<Self>,
        work: &Work,
        parent: Ino,
        name: &Name,
        mode: u32,
        open: u64,
        write: bool,
    ) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.check_room()?;
        let stub = self.directories.enter_to_add(parent, &work.identity, self.whole_since())?;
        // It needs the right to make a name, and makes none.
        self.directories.not_added(parent);
        let kind = FileKind::File;
        let inherited = acl::inherited(stub.default_acl.as_ref(), kind, mode);
        let owned = access::new_file(&work.identity, &stub, kind, inherited.mode);
        let (born, chunk_bits) = (self.map_epoch_now(), stub.chunk_bits);
        let (uid, gid, mode) = (owned.uid, owned.gid, owned.mode);
        let (layout, private) = (self.layout_of_new(&key), false);
        let (target, over_backing) = (Default::default(), self.is_over_backing(kind));
        let new = NewFile { kind, mode, uid, gid, rdev: 0, target, born, chunk_bits, layout, private, over_backing };
        let made = Op::CreateWith { key: key.clone(), new, exclusive: true, xattrs: inherited.xattrs };
        let stamp = self.own_stamp(&work.stamp);
        let Reply::Entry { ino, .. } = names.shard.apply(&made, &stamp).reply? else {
            return Err(Failure::new(Code::Internal, "CreateWith gave no entry").into());
        };
        names.opens.insert(ino, work.session, open, write);
        names.unnamed.insert(ino);
        names.shard.apply(&Op::Remove { key, only: None, moved: false, under: None }, &stamp).reply?;
        let attr = names.shard.inode(ino).map(|inode| inode.attr.clone());
        Ok(Reply::Entry { ino, kind, attr, created: true }.into())
    }

    /// Announces the first name of a file that was made without one. `None`: it is no such file.
    pub(crate) fn name_unnamed(
        &self,
        names: &mut Names,
        work: &Work,
        ino: Ino,
        tx: TxId,
        shard: ShardId,
    ) -> Attempt<Option<Reply>> {
        let links = |names: &Names| names.shard.inode(ino).map(|inode| inode.attr.links);
        if links(names) != Some(0) || !names.unnamed.contains(&ino) {
            return Ok(None);
        }
        let stamp = self.own_stamp(&work.stamp);
        // A file without names cannot be linked: it counts one that is none while the first is announced.
        let steps = [Op::SetLinks { ino, links: 1 }, Op::LinkBegin { ino, tx, shard }, Op::SetLinks { ino, links: 1 }];
        for step in steps {
            names.shard.apply(&step, &stamp).reply?;
        }
        let attr: Option<Attr> = names.shard.inode(ino).map(|inode| inode.attr.clone());
        Ok(attr.map(|attr| Reply::Attributes { attr }))
    }
}
