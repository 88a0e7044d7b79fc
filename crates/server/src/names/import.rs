//! Directories whose names are still in the volume's backing: all names of one are made in the volume before anything else
//! is done with them. What keeps other requests out meanwhile is the stub, see [`Stub::is_behind`](aze_proto::Stub).

use crate::chunks::backing::{backing_failure, identity_of};
use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::{Over, Server};
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, Work, then};
use aze_io::backing::Found;
use aze_meta::{EntryKey, Op, Stamp};
use aze_proto::limits::{IMPORT_BYTES_MAX, IMPORT_NAMES_MAX, TARGET_BYTES_MAX};
use aze_proto::place::Layout;
use aze_proto::wire::{Blob, Wire};
use aze_proto::xattr::{Xattr, XattrSpace};
use aze_proto::{
    Backing, BackingIdentity, Code, Failure, FileKind, Imported, Ino, Name, NameHash, Reply, Request, ServerIndex,
    ShardId, Spread, Time,
};
use aze_store::disk::journal::Stage;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest path below the backing's root, in bytes: `PATH_MAX` of Linux without the terminator.
const PATH_BYTES_MAX: usize = TARGET_BYTES_MAX;

/// Files with several names that the log names for each directory.
const LINKED_NAMED_MAX: usize = 4;

/// Programs look for holes in imported files of more bytes than these: in smaller ones that takes longer than reading.
const MAY_HAVE_HOLES_BYTES: u64 = 64 << 10;

impl Server {
    /// Stops at a directory that has its home here and whose names are still in the backing.
    pub(crate) fn imported(&self, names: &Names, dir: Ino) -> Attempt<()> {
        let is_behind = names.shard.inode(dir).is_some_and(aze_meta::Inode::is_behind);
        if is_behind { Err(Stop::Wait(Wait::Import(dir))) } else { Ok(()) }
    }

    /// Has a directory imported by its home.
    pub(crate) async fn fetch_names(self: &Arc<Self>, dir: Ino, deadline_ns: u64) -> Result<(), Failure> {
        loop {
            match self.ask_shard(self.home(dir), Request::ImportDir { dir }).await {
                Ok(_) => {
                    self.directories.imported(dir);
                    return Ok(());
                }
                // A large directory takes longer than one question.
                Err(failure) if failure.code == Code::TimedOut && self.io.mono_ns() < deadline_ns => {}
                Err(failure) => return Err(failure.during(format!("importing directory {dir}"))),
            }
        }
    }

    /// At a directory's home: answered when all its names are imported.
    pub(crate) fn import_dir(self: &Arc<Self>, work: &Work, dir: Ino) -> Attempt<Output> {
        let names = self.cell(self.home(dir))?.names.lock();
        let inode = names.shard.inode(dir).ok_or_else(|| self.gone(dir))?;
        if !inode.is_behind() {
            return Ok(Reply::Done.into());
        }
        drop(names);
        let (is_first, ended) = self.imports.join(dir);
        if is_first || self.config.switches.is(Sabotage::ImportAgain) {
            let server = self.clone();
            self.io.spawn(async move {
                let ended = server.import_all(dir).await;
                server.imports.end(&dir, &ended);
            });
        }
        let (server, deadline_ns) = (self.clone(), work.deadline_ns);
        then(async move {
            let left = std::time::Duration::from_nanos(deadline_ns.saturating_sub(server.io.mono_ns()));
            match server.io.timeout(left, ended).await {
                Some(Ok(ended)) => ended.map(|()| Reply::Done),
                Some(Err(_)) => Err(Failure::new(Code::Busy, "the import has ended without a word; try again")),
                None => {
                    let detail = format!("{}: directory {dir} is still being imported; try again", server.who());
                    Err(Failure::new(Code::TimedOut, detail))
                }
            }
        })
    }

    /// Imports a directory. It may have been begun before: names that are there are left as they are, and none has been
    /// removed, since no request could.
    async fn import_all(self: &Arc<Self>, dir: Ino) -> Result<(), Failure> {
        let Some(over) = &self.config.backing else {
            let detail = format!("{}: it was started without the backing that directory {dir} came from", self.who());
            return Err(Failure::new(Code::Backing, detail));
        };
        let backing = {
            let cell = self.shards.home(dir).ok_or_else(|| Failure::from(Code::Internal))?;
            let names = cell.names.lock();
            let inode = names.shard.inode(dir).ok_or_else(|| self.gone(dir))?;
            match inode.backing() {
                Some(backing) if inode.is_behind() => backing.clone(),
                _ => return Ok(()),
            }
        };
        let listed = over.tree.list(backing.path.0.clone(), identity_of(&backing.identity)).await;
        let listed = listed.map_err(backing_failure)?;
        let mut linked = Linked::default();
        loop {
            let page = listed.next(IMPORT_NAMES_MAX).await.map_err(backing_failure)?;
            if page.is_empty() {
                break;
            }
            linked.add(&page);
            self.import_page(dir, &backing.path.0, page, over).await?;
        }
        if let Some(line) = linked.told(over.tree.root(), &backing.path.0) {
            (over.report)(&line);
        }
        let cell = self.shards.home(dir).ok_or_else(|| Failure::from(Code::Internal))?;
        let applied = cell.names.lock().shard.apply(&Op::ImportedAll { dir }, &self.own_stamp(&Stamp::default()));
        applied.reply?;
        // Before any name of it can be removed: a later life must not import it again.
        if let Some(persistence) = &self.persistence {
            let durable = persistence.journal.reach(persistence.journal.end(), Stage::Durable).await;
            durable.map_err(|why| Failure::new(Code::UnknownOutcome, why.to_string()))?;
        }
        Ok(())
    }

    async fn import_page(
        self: &Arc<Self>,
        dir: Ino,
        above: &[u8],
        page: Vec<Found>,
        over: &Over,
    ) -> Result<(), Failure> {
        let mut by_server: BTreeMap<ServerIndex, Vec<(usize, Imported)>> = BTreeMap::new();
        for found in page {
            let file = imported(found, above, over)?;
            let shard = NameHash::of(dir, &file.name).shard(self.config.shards);
            let server = self.map().server_of(shard);
            let server =
                server.ok_or_else(|| Failure::new(Code::Internal, format!("shard {shard} is on no server")))?;
            by_server.entry(server).or_default().push((file.to_bytes().len(), file));
        }
        let requests = by_server.into_iter().flat_map(|(server, files)| {
            in_messages(files).into_iter().map(move |names| (server, Request::Import { dir, names }))
        });
        let asked = requests.map(|(server, request)| self.ask(server, ShardId(0), request));
        join_all(asked).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// From a directory's home: makes those of the names that are not there.
    pub(crate) fn import(self: &Arc<Self>, dir: Ino, files: &[Imported]) -> Attempt<Output> {
        for file in files {
            let key = EntryKey::new(dir, file.name.clone());
            let cell = self.cell(key.hash.shard(self.config.shards))?;
            let mut names = cell.names.lock();
            if names.shard.entry(&key).is_some() {
                continue;
            }
            self.check_room()?;
            let stub = self.directories.enter_to_import(
                dir,
                self.whole_since(),
                self.config.switches.is(Sabotage::ImportAgain),
            )?;
            let (layout, born) = (self.layout_of_new(&key), self.map_epoch_now());
            let spread = self.spread_of(file, stub.chunk_bits, layout, &key);
            let op = Op::Import { key, file: file.clone(), born, chunk_bits: stub.chunk_bits, layout, spread };
            let applied = names.shard.apply(&op, &self.own_stamp(&Stamp::default()));
            match applied.reply {
                // The directory's times are those of the backing.
                Ok(_) => self.directories.added(dir, cell.id, file.kind == FileKind::Directory, Time(0)),
                Err(failure) => {
                    self.directories.not_added(dir);
                    return Err(failure.during(format!("importing '{}'", file.name)).into());
                }
            }
        }
        Ok(Reply::Done.into())
    }

    /// Where data of an imported file may come to be: all servers of its chunks hear of truncations. A large one may have holes:
    /// programs look for them.
    fn spread_of(&self, file: &Imported, chunk_bits: u8, layout: Layout, key: &EntryKey) -> Spread {
        let length = if file.kind == FileKind::File { file.backing.length } else { 0 };
        let beside = if layout.first == key.hash.prefix() { 1 << chunk_bits } else { 0 };
        let mut spread = Spread::default();
        if length > beside {
            spread = Spread::reaching(length.div_ceil(1 << chunk_bits));
            if spread.chunks() >= self.map().indexes().count() as u64 {
                spread = Spread::ANYWHERE;
            }
        }
        spread.with_sparse(length > MAY_HAVE_HOLES_BYTES)
    }
}

/// The files of a directory of the backing that have several names there: in the volume each name is a file of its own.
#[derive(Default)]
struct Linked {
    count: u64,
    /// The first of them.
    named: Vec<Vec<u8>>,
}

impl Linked {
    fn add(&mut self, page: &[Found]) {
        let is_dir = |found: &Found| FileKind::from_mode(found.mode) == Some(FileKind::Directory);
        for found in page.iter().filter(|found| found.links > 1 && !is_dir(found)) {
            self.count += 1;
            if self.named.len() < LINKED_NAMED_MAX {
                self.named.push(found.name.clone());
            }
        }
    }

    /// For the log; nothing if there are none.
    fn told(&self, root: &str, dir: &[u8]) -> Option<String> {
        let shown = self.named.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>().join(", ");
        let (count, more) = (self.count, if self.count > self.named.len() as u64 { ", …" } else { "" });
        let at = if dir.is_empty() { root.to_owned() } else { format!("{root}/{}", String::from_utf8_lossy(dir)) };
        let line = format!(
            "{count} files of {at} have several names in the backing ({shown}{more}): in the volume each name is a file of its own: a \
             change by one name does not show under the others, and is not staged out to its place"
        );
        (count > 0).then_some(line)
    }
}

/// Splits files, each with its size, into messages.
fn in_messages(files: Vec<(usize, Imported)>) -> Vec<Vec<Imported>> {
    let (mut messages, mut bytes) = (Vec::new(), IMPORT_BYTES_MAX);
    for (size, file) in files {
        if bytes + size > IMPORT_BYTES_MAX {
            messages.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        messages.last_mut().expect("the first file begins one").push(file);
    }
    messages
}

fn time(ns: i64) -> Time {
    Time(u64::try_from(ns).unwrap_or(0))
}

/// The file that was found under a name, as the volume takes it over.
fn imported(found: Found, above: &[u8], over: &Over) -> Result<Imported, Failure> {
    let Found { name, mode, uid, gid, rdev, atime_ns, identity, links: _, target, xattrs } = found;
    let path = if above.is_empty() { name.clone() } else { [above, &name].join(&b'/') };
    let shown = || format!("{}/{}", over.tree.root(), String::from_utf8_lossy(&path));
    let name = Name::new(&name).map_err(|bad| Failure::new(Code::NameTooLong, format!("{}: {bad:?}", shown())))?;
    if path.len() > PATH_BYTES_MAX {
        let detail = format!("{}: a path of {} bytes: at most {PATH_BYTES_MAX} are possible", shown(), path.len());
        return Err(Failure::new(Code::NameTooLong, detail));
    }
    let kind = FileKind::from_mode(mode)
        .ok_or_else(|| Failure::new(Code::Unsupported, format!("{}: no known kind of file", shown())))?;
    let is_kept = |name: &[u8]| matches!(XattrSpace::of(name), Ok(XattrSpace::User | XattrSpace::Acl { .. }));
    let xattrs = xattrs.into_iter().filter(|(name, _)| is_kept(name));
    let xattrs = xattrs.map(|(name, value)| Xattr { name: Blob(name), value: Blob(value) }).collect();
    let length = if kind == FileKind::File { identity.size } else { 0 };
    let told = BackingIdentity {
        inode: identity.inode,
        size: identity.size,
        mtime_ns: identity.mtime_ns.cast_unsigned(),
        ctime_ns: identity.ctime_ns.cast_unsigned(),
    };
    Ok(Imported {
        name,
        kind,
        mode: mode & 0o7777,
        uid,
        gid,
        rdev: u32::try_from(rdev).unwrap_or(0),
        atime: time(atime_ns),
        mtime: time(identity.mtime_ns),
        target: Blob(target),
        xattrs,
        backing: Backing { path: Blob(path), identity: told, length, ..Backing::default() },
    })
}
