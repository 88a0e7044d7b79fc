//! Extended attributes at an inode's home, access control lists among them. Who may do what with
//! them is decided in `aze_meta::xattr`; here they are looked up, changed, and, where they are the
//! rights of a directory, made known to the servers of its entries.

use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_meta::access::{self, Want};
use aze_meta::{Op, acl, xattr};
use aze_proto::wire::Blob;
use aze_proto::{Code, Failure, FileKind, Identity, Ino, Reply, Request, XattrHow};
use std::sync::Arc;

impl Server {
    pub(crate) fn get_xattr(&self, work: &Work, ino: Ino, name: &Blob) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        Ok(Reply::Xattr { value: xattr::get(&work.identity, inode, &name.0)? }.into())
    }

    pub(crate) fn list_xattr(&self, work: &Work, ino: Ino) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        Ok(Reply::XattrNames { names: xattr::list(&work.identity, inode) }.into())
    }

    pub(crate) fn set_xattr(
        self: &Arc<Self>,
        work: &mut Work,
        ino: Ino,
        name: &Blob,
        value: Option<&Blob>,
        how: XattrHow,
    ) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        self.unfrozen(&names, ino)?;
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        let set = xattr::check_set(&work.identity, inode, &name.0, value)?;
        if value.is_some() {
            self.check_room()?;
        }
        let is_dir = inode.attr.kind == FileKind::Directory;
        let (access, default) = (name.0 == acl::ACCESS, name.0 == acl::DEFAULT);
        let op = Op::SetXattr { ino, name: name.clone(), value: set.value, mode: set.mode, if_any: set.if_any, how };
        if !is_dir || !access && !default {
            work.recorded = true;
            return Ok(names.shard.apply(&op, &work.stamp).reply?.into());
        }
        drop(names);
        let (server, stamp) = (self.clone(), work.stamp);
        then(async move {
            // Whom a list leaves out is not worked out: a request that sets one may have taken rights.
            if access {
                server.ask_keeper(Request::RaiseEpoch { dir: ino }).await?;
            }
            server.change_directory(ino, op, true, stamp).await?;
            if access {
                server.ask_keeper(Request::RaiseEpoch { dir: ino }).await?;
            }
            Ok(Reply::Done)
        })
    }

    /// At an inode's home, for another server: whether a user may write it.
    pub(crate) fn may_write(&self, ino: Ino, identity: &Identity) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        if access::may(identity, inode, Want::WRITE) {
            return Ok(Reply::Done.into());
        }
        Err(Failure::new(Code::AccessDenied, format!("user {} may not write inode {ino}", identity.uid)).into())
    }
}
