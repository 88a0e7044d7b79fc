//! Inodes at their home: attributes, opens, the stubs of directories and who holds them.

use crate::names::locks::forget_locks;
use crate::names::state::directories::Fetch;
use crate::names::state::parts::Part;
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work, then};
use aze_meta::access::{self, Want};
use aze_meta::{AttrSet, Inode, Op, Stamp, acl};
use aze_proto::message::Handle;
use aze_proto::{
    Attr, Change, Code, Failure, FileKind, Identity, Incarnation, Ino, Name, NamespaceEpoch, Refusal, Reply, Request,
    ServerIndex, SessionId, Stub, Time,
};
use futures_channel::oneshot;
use std::sync::Arc;

/// How often the counts of a directory are gathered anew because entries of it may have moved meanwhile.
const GATHERS_MAX: u32 = 4;

impl Server {
    pub(crate) fn getattr(self: &Arc<Self>, work: &mut Work, ino: Ino, exact: bool) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        let (mut attr, mtime_set) = (inode.attr.clone(), inode.rare.get().mtime_set);
        if inode.is_behind() {
            // How many subdirectories it has is not known. Programs that count on it take 1 for that: find(1), fts(3).
            attr.links = 1;
            return Ok(Reply::Attributes { attr }.into());
        }
        names.shard.published.show_inode(&attr);
        work.leased = self.lease(work, &mut names, ino, attr.kind);
        if !exact || attr.kind != FileKind::Directory {
            return Ok(Reply::Attributes { attr }.into());
        }
        let (parts, _, to_ask) = self.parts_known(&mut names, ino);
        drop(names);
        if to_ask.is_empty() {
            merge(&mut attr, mtime_set, &parts);
            return Ok(Reply::Attributes { attr }.into());
        }
        let server = self.clone();
        then(async move {
            server.gather(&mut attr, mtime_set).await?;
            Ok(Reply::Attributes { attr })
        })
    }

    /// Adds what the holders of a directory know of its entries.
    async fn gather(self: &Arc<Self>, attr: &mut Attr, mtime_set: Time) -> Result<(), Failure> {
        let (mut parts, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..GATHERS_MAX {
            let epoch = self.map_epoch_now();
            // Not older than this map: entries may have moved to a server that was not a holder before.
            let Some(cell) = self.shards.home(attr.ino) else { return Err(self.stale()) };
            let (known, question, to_ask) = self.parts_known(&mut cell.names.lock(), attr.ino);
            parts = known;
            answers = self.ask_for_parts(attr.ino, &to_ask, question).await;
            if self.map_epoch_now() == epoch {
                break;
            }
        }
        parts.extend(self.all_of(answers)?);
        merge(attr, mtime_set, &parts);
        Ok(())
    }

    /// What holders have answered, if all have.
    fn all_of(&self, answers: Vec<(ServerIndex, Result<Part, Failure>)>) -> Result<Vec<Part>, Failure> {
        let answers = answers.into_iter().map(|(holder, answer)| match answer {
            // The map has changed as often as this has asked: the client begins anew.
            Err(_) if self.map().has_left(holder) => Err(self.stale()),
            answer => answer,
        });
        answers.collect()
    }

    /// As [`Self::gather`], of those holders only whose processes have not ended, and all of them are asked.
    async fn gather_from_living(
        self: &Arc<Self>,
        attr: &mut Attr,
        mtime_set: Time,
        holders: &[ServerIndex],
    ) -> Result<(), Failure> {
        let (mut holders, mut answers) = (holders.to_vec(), Vec::new());
        for _ in 0..GATHERS_MAX {
            let epoch = self.map_epoch_now();
            let question = self.directories.number();
            if let Some(cell) = self.shards.home(attr.ino) {
                let mut names = cell.names.lock();
                holders = self.living_of(holders_of(&names, attr.ino));
                self.parts_asked(&mut names, attr.ino, &holders, question);
            } else {
                holders = self.living_of(holders);
            }
            answers = self.ask_for_parts(attr.ino, &holders, question).await;
            if self.map_epoch_now() == epoch {
                break;
            }
        }
        merge(attr, mtime_set, &self.all_of(answers)?);
        Ok(())
    }

    fn living_of(&self, mut servers: Vec<ServerIndex>) -> Vec<ServerIndex> {
        let map = self.map();
        servers.retain(|server| !map.is_gone(*server));
        servers
    }

    pub(crate) fn setattr(self: &Arc<Self>, work: &mut Work, ino: Ino, change: &Change) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        self.unfrozen(&names, ino)?;
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        let set = access::check_setattr(&work.identity, inode, change, work.stamp.time)?;
        if inode.attr.kind != FileKind::Directory {
            work.recorded = true;
            return Ok(names.shard.apply(&Op::SetAttr { ino, set }, &work.stamp).reply?.into());
        }
        let (inode, holders) = (inode.clone(), holders_of(&names, ino));
        drop(names);
        let (server, identity, stamp, change) = (self.clone(), work.identity.clone(), work.stamp, change.clone());
        then(async move { server.set_directory_attr(inode, &change, &identity, holders, stamp).await })
    }

    /// A directory's attributes: a loss of rights is first made known to everybody who may have
    /// cached a path through it; then every server that serves its entries learns the new rights.
    async fn set_directory_attr(
        self: &Arc<Self>,
        inode: Inode,
        change: &Change,
        identity: &Identity,
        holders: Vec<ServerIndex>,
        stamp: Stamp,
    ) -> Result<Reply, Failure> {
        let (ino, before) = (inode.attr.ino, inode.attr.clone());
        // Nothing changes if one of them cannot be asked afterwards for the attributes of the answer.
        self.gather_from_living(&mut before.clone(), inode.rare.get().mtime_set, &holders).await?;
        let set = access::check_setattr(identity, &inode, change, stamp.time)?;
        let after = Attr {
            mode: set.mode.unwrap_or(before.mode),
            uid: set.uid.unwrap_or(before.uid),
            gid: set.gid.unwrap_or(before.gid),
            ..before.clone()
        };
        if access::loses_search(&before, &after) {
            self.ask_keeper(Request::RaiseEpoch { dir: ino }).await?;
        }
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let (holders, lost) = self.change_directory(ino, Op::SetAttr { ino, set }, rights, stamp).await?;
        if lost {
            // Once more: since the first message a client may have looked a name up at a holder with the
            // old rights, and would keep it under the new epoch.
            self.ask_keeper(Request::RaiseEpoch { dir: ino }).await?;
        }
        let (mut attr, mtime_set) = self.attr_here(ino)?;
        // What one that has ended knew of times comes back with it, or is lost with its entries.
        self.gather_from_living(&mut attr, mtime_set, &holders).await?;
        Ok(Reply::Attributes { attr })
    }

    /// Changes a directory, and if its `rights` change, tells every server that serves its entries.
    /// Gives those servers, and whether the mode takes rights from a user.
    pub(crate) async fn change_directory(
        self: &Arc<Self>,
        ino: Ino,
        op: Op,
        rights: bool,
        stamp: Stamp,
    ) -> Result<(Vec<ServerIndex>, bool), Failure> {
        let (stub, holders, lost) = self.apply_to_directory(ino, op, rights, stamp)?;
        if let Some(stub) = stub {
            let mut silent = None;
            let mut told = holders.clone();
            if ino == Ino::ROOT && !self.config.switches.is(Sabotage::TellHoldersOfRoot) {
                // By a map that is read after the change: who is in none yet is told by `tell_root_rights`.
                told.extend(self.living().into_iter().filter(|server| !holders.contains(server)));
            }
            for (holder, answer) in self.ask_each(&told, &Request::StubUpdate { stub: stub.clone() }).await {
                if let Err(failure) = answer {
                    self.persist(holder, aze_proto::ShardId(0), Request::StubUpdate { stub: stub.clone() });
                    if self.map().is_gone(holder) {
                        continue;
                    }
                    silent = Some(
                        failure.during(format!("directory {ino} is changed, but server {holder} has not confirmed it")),
                    );
                }
            }
            if let Some(failure) = silent {
                return Err(failure);
            }
        }
        Ok((holders, lost))
    }

    /// Applies; gives the new stub if rights were set, the holders, and whether a user lost rights.
    fn apply_to_directory(
        &self,
        ino: Ino,
        op: Op,
        rights: bool,
        stamp: Stamp,
    ) -> Result<(Option<Stub>, Vec<ServerIndex>, bool), Failure> {
        let cell = self.shards.home(ino).ok_or_else(|| Failure::from(Code::Internal))?;
        let mut names = cell.names.lock();
        let before = names.shard.inode(ino).map(|inode| inode.attr.clone());
        let stamp = self.own_stamp(&stamp);
        let applied = names.shard.apply(&op, &stamp);
        applied.reply?;
        let lost =
            before.zip(applied.effects.attr).is_some_and(|(before, after)| access::loses_search(&before, &after));
        let holders = names.holders.entry(ino).or_default();
        holders.version += u64::from(rights);
        let servers = holders.servers.keys().copied().collect();
        let stub = if rights { stub_of(&names, ino, self.directories.changed(ino)) } else { None };
        Ok((stub, servers, lost))
    }

    /// The attributes at an inode's home, and when the modification time of a directory was last set.
    fn attr_here(&self, ino: Ino) -> Result<(Attr, Time), Failure> {
        let cell = self.shards.home(ino).ok_or_else(|| Failure::from(Code::Internal))?;
        let names = cell.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        Ok((inode.attr.clone(), inode.rare.get().mtime_set))
    }

    pub(crate) fn open(self: &Arc<Self>, work: &Work, ino: Ino, handle: u64, want: Want) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        let attr = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr.clone();
        if attr.kind == FileKind::Directory && want.write {
            return Err(Code::IsDirectory.into());
        }
        self.register_open(work, &mut names, &attr, handle, want)?;
        Ok(Reply::Attributes { attr }.into())
    }

    pub(crate) fn open_name(
        self: &Arc<Self>,
        work: &Work,
        parent: Ino,
        name: &Name,
        handle: u64,
        want: Want,
    ) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let mut names = cell.names.lock();
        self.unlocked(cell, &names, &key)?;
        self.directories.enter_to_look(parent, &work.identity, self.whole_since())?;
        let entry = names.shard.entry(&key).ok_or(Code::NotFound)?;
        let attr = names.shard.inode(entry.ino).map(|inode| inode.attr.clone());
        if let Some(attr) = attr.as_ref().filter(|attr| attr.kind == FileKind::File) {
            self.register_open(work, &mut names, attr, handle, want)?;
            names.shard.published.show_entry(&key, attr.ino, Some(attr));
        }
        Ok(Reply::Entry { ino: entry.ino, kind: entry.kind, attr, created: false }.into())
    }

    pub(crate) fn register_open(
        &self,
        work: &Work,
        names: &mut Names,
        attr: &Attr,
        handle: u64,
        want: Want,
    ) -> Attempt<()> {
        let allowed = names.shard.inode(attr.ino).is_some_and(|inode| access::may(&work.identity, inode, want));
        if !allowed {
            let detail = format!("inode {} of user {}, as user {}", attr.ino, attr.uid, work.identity.uid);
            return Err(Failure::new(Code::AccessDenied, detail).into());
        }
        if want.write {
            self.unfrozen(names, attr.ino)?;
        }
        let writes = want.write && !self.config.switches.is(Sabotage::ForgetWriters);
        names.opens.insert(attr.ino, work.session, handle, writes);
        Ok(())
    }

    pub(crate) fn close_handles(self: &Arc<Self>, session: SessionId, handles: &[Handle]) -> Reply {
        for Handle { ino, handle } in handles {
            let Some(cell) = self.shards.home(*ino) else { continue };
            let mut names = cell.names.lock();
            if !names.opens.remove(*ino, session, *handle) && !names.opens.has(*ino) {
                continue;
            }
            if !names.opens.has_of(*ino, session) {
                forget_locks(&mut names, *ino, session);
            }
            let has_name = names.shard.inode(*ino).is_some_and(|inode| inode.attr.links > 0);
            if !has_name && !names.opens.has(*ino) {
                drop(names);
                self.delete_if_orphan(*ino);
            }
        }
        Reply::Done
    }

    pub(crate) fn report(
        self: &Arc<Self>,
        work: &mut Work,
        ino: Ino,
        generation: aze_proto::Generation,
        end: u64,
        spread: aze_proto::Spread,
    ) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        if names.shard.inode(ino).is_none() {
            return Err(self.gone(ino).into());
        }
        self.drop_set_id(&mut names, ino, work);
        work.recorded = true;
        let applied = names.shard.apply(&Op::Report { ino, generation, end, spread }, &work.stamp);
        Ok(applied.reply?.into())
    }

    /// A user other than root who changes the data of a file takes its set-id bits away.
    pub(crate) fn drop_set_id(&self, names: &mut Names, ino: Ino, work: &Work) {
        let mode = names.shard.inode(ino).and_then(|inode| access::mode_after_write(&work.identity, &inode.attr));
        if mode.is_some() {
            let set = AttrSet { mode, ..AttrSet::default() };
            // Cannot fail: the inode is here, and a mode can be set on any.
            let _ = names.shard.apply(&Op::SetAttr { ino, set }, &self.own_stamp(&work.stamp)).reply;
        }
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let inode = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?;
        if inode.attr.kind != FileKind::Symlink {
            return Err(Failure::new(Code::Invalid, "not a symbolic link").into());
        }
        Ok(Reply::Target { target: aze_proto::wire::Blob(inode.rare.get().target.clone()) }.into())
    }

    pub(crate) fn holders(self: &Arc<Self>, work: &mut Work, dir: Ino) -> Attempt<Output> {
        let names = self.cell(self.home(dir))?.names.lock();
        let inode = names.shard.inode(dir).ok_or_else(|| self.gone(dir))?;
        let attr = inode.attr.clone();
        if attr.kind != FileKind::Directory {
            return Err(Code::NotDirectory.into());
        }
        if !access::may(&work.identity, inode, Want::READ) {
            return Err(
                Failure::new(Code::AccessDenied, format!("directory {dir}, as user {}", work.identity.uid)).into()
            );
        }
        self.imported(&names, dir)?;
        Ok(Reply::Holders { servers: holders_of(&names, dir), attr }.into())
    }

    /// At a directory's home: another server wants to serve entries of it.
    pub(crate) fn stub_get(
        self: &Arc<Self>,
        dir: Ino,
        holder: ServerIndex,
        incarnation: Incarnation,
        known: NamespaceEpoch,
    ) -> Attempt<Output> {
        let cell = self.cell(self.home(dir))?;
        let mut names = cell.names.lock();
        let attr = names.shard.inode(dir).ok_or_else(|| match self.gone(dir) {
            Failure { code: Code::Stale, detail, .. } => Failure::new(Code::NotFound, detail),
            lost => lost,
        })?;
        if attr.attr.kind != FileKind::Directory {
            return Err(Code::NotDirectory.into());
        }
        let holders = names.holders.entry(dir).or_default();
        holders.parts.changes(holder);
        if holders.closing {
            let (sender, decided) = oneshot::channel();
            holders.waiters.push(sender);
            let server = self.clone();
            return then(async move {
                // Whichever way it was decided, and also if the sender is gone: look again.
                let _ = decided.await;
                let granted = server.ask_shard(server.home(dir), Request::StubGet { dir, holder, incarnation }).await;
                // It is noted as a holder by now.
                server.paths_known(known)?;
                granted
            });
        }
        holders.servers.insert(holder, incarnation);
        // From now on the holder is told of changes of paths. It may have missed those before.
        self.paths_known(known)?;
        let stub = stub_of(&names, dir, self.directories.changed(dir)).ok_or_else(|| Failure::from(Code::Internal))?;
        Ok(Reply::StubGranted { stub }.into())
    }

    /// # Errors
    /// [`Refusal::NamespaceStale`], if a server that wants to serve paths knows an older epoch than this one.
    fn paths_known(&self, known: NamespaceEpoch) -> Result<(), Failure> {
        if self.config.switches.is(Sabotage::GrantStubsAlone) {
            return Ok(());
        }
        self.namespace.refusal(known).map_or(Ok(()), |refusal| Err(Failure::refused(refusal)))
    }

    /// Asks the home of a directory for its stub, which also tells the home that this server's part changes. Learns of
    /// the changes of paths that the home knows.
    pub(crate) async fn ask_for_stub(self: &Arc<Self>, dir: Ino) -> Result<Reply, Failure> {
        loop {
            let request = Request::StubGet { dir, holder: self.slot(), incarnation: self.incarnation() };
            match self.ask_shard(self.home(dir), request).await {
                Err(Failure { refusal: Some(Refusal::NamespaceStale { epoch, all, changed }), .. }) => {
                    self.namespace.learn(epoch, all, &changed);
                }
                answer => return answer,
            }
        }
    }

    /// Gets a directory's stub from its home, or waits for the request that is getting it.
    pub(crate) async fn fetch_stub(self: &Arc<Self>, dir: Ino, deadline_ns: u64) -> Result<(), Failure> {
        let fetch = match self.directories.begin_fetch(dir) {
            Fetch::Mine(fetch) => fetch,
            Fetch::Wait(there) => return self.await_until(there, deadline_ns, "a directory's home to answer").await,
        };
        let asked = self.ask_for_stub(dir).await;
        match asked {
            Ok(Reply::StubGranted { stub }) => {
                self.directories.fetched(stub, fetch);
                Ok(())
            }
            Ok(_) => {
                self.directories.fetch_failed(dir, fetch);
                Err(Failure::new(Code::Malformed, "StubGet was answered with something else"))
            }
            Err(failure) => {
                let is_gone = || {
                    let map = self.map();
                    map.home_of(dir).is_some_and(|home| map.is_gone(home))
                };
                if dir == Ino::ROOT && self.directories.take_root(fetch, is_gone) {
                    return Ok(());
                }
                self.directories.fetch_failed(dir, fetch);
                Err(failure)
            }
        }
    }
}

impl Server {
    /// The stub of a directory whose home is here.
    pub(crate) fn stub_now(&self, dir: Ino) -> Option<Stub> {
        stub_of(&self.shards.home(dir)?.names.lock(), dir, self.directories.changed(dir))
    }
}

/// The servers that hold a directory's stub, in their order.
pub(crate) fn holders_of(names: &Names, dir: Ino) -> Vec<ServerIndex> {
    names.holders.get(&dir).map(|holders| holders.servers.keys().copied().collect()).unwrap_or_default()
}

/// The stub of a directory whose entries here came or went last at `changed`.
fn stub_of(names: &Names, dir: Ino, changed: Time) -> Option<Stub> {
    let inode = names.shard.inode(dir)?;
    let mut attr = inode.attr.clone();
    merge(&mut attr, inode.rare.get().mtime_set, &[(0, 0, changed)]);
    let version = names.holders.get(&dir)?.version;
    Some(Stub {
        ino: dir,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        born: attr.born,
        chunk_bits: attr.chunk_bits,
        acl: inode.xattr(acl::ACCESS).cloned(),
        default_acl: inode.xattr(acl::DEFAULT).cloned(),
        is_behind: inode.is_behind(),
        version,
        mtime: attr.mtime,
        ctime: attr.ctime,
    })
}

/// Adds the holders' parts: counts by sum, times by maximum. Changes of entries before the modification time was set
/// (utimensat) move it no more.
fn merge(attr: &mut Attr, mtime_set: Time, parts: &[(u64, u64, Time)]) {
    for (entries, subdirs, changed) in parts {
        attr.size += entries;
        attr.links = attr.links.saturating_add(u32::try_from(*subdirs).unwrap_or(u32::MAX));
        if *changed > mtime_set {
            attr.mtime = attr.mtime.max(*changed);
        }
        attr.ctime = attr.ctime.max(*changed);
    }
}
