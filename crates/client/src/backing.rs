//! Where files came from, in a volume that lies over a directory of another file system.

use crate::changes::ChangeCounts;
use crate::client::unexpected;
use crate::data::in_window;
use crate::list::Lister;
use crate::names::done;
use crate::route::Place;
use crate::{Client, File};
use aze_proto::check::EntryPlace;
use aze_proto::limits::LIST_ENTRIES_MAX;
use aze_proto::wire::Blob;
use aze_proto::{
    Backing, BackingIdentity, Code, Failure, FileKind, Gone, Identity, Ino, Name, Reply, Request, ServerIndex, Staged,
    Time,
};
use futures_util::future::try_join_all;
use std::ops::Range;

/// Chunks of one file that are fetched at once: half the threads that a server has for its backing, so that one file leaves room
/// for others.
const FETCHED_AT_ONCE: usize = 4;

/// How often a chunk is asked for that the backing has not given in time: what comes late serves the next asker.
const FETCH_TRIES: usize = 6;

/// How often a file is offered its place in the backing: another stage may give it another one in between.
const ADOPT_TRIES: usize = 3;

/// Inodes whose origins are asked for at once.
const ASKED_AT_ONCE: usize = 64;

/// A file of the volume that a stage has put into the backing, durably.
#[derive(Clone, Debug)]
pub struct PutBack {
    /// Its length when it was read.
    pub size: u64,
    /// Its change time then.
    pub ctime: Time,
    /// The counts of its changes from before the first byte was read until after the last.
    pub counts: ChangeCounts,
    /// The directory of the volume in which it has its name.
    pub parent: Ino,
    /// Where the backing has it, below the backing's root.
    pub path: Vec<u8>,
    /// The file that is there.
    pub identity: BackingIdentity,
}

impl Client {
    /// Says that a stage is about to put a file into the backing: late requests of earlier ones have no effect from now on. Gives the
    /// number of this claim, and where the file comes from now. For the volume's owner and root.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn claim(&self, who: &Identity, ino: Ino) -> Result<(u64, Option<Backing>), Failure> {
        let request = Request::Claim { ino };
        match self.core.ask(who, Place::Home(ino), &request).await? {
            Reply::Claimed { claim, backing } => Ok((claim, backing)),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// Has the volume read an open file from now on where a stage has put it, so that its chunks may go when room is short; gives whether
    /// all of it is clean. Not so if it has changed since it was read. For the volume's owner and root.
    ///
    /// # Errors
    /// [`Code::Changed`] if the backing has something else there; those of every request.
    pub async fn adopt(&self, who: &Identity, file: &File, put: &PutBack) -> Result<bool, Failure> {
        let (generation, chunks, changes) = put.counts.parts();
        for _ in 0..ADOPT_TRIES {
            let (claim, before) = self.claim(who, file.ino()).await?;
            let before = before.unwrap_or_default();
            if before.is_clean() && before.identity == put.identity && before.path.0 == put.path {
                return Ok(true);
            }
            // Chunks that are not here have the bytes of the origin of now. As long as that stays, they have those that were read,
            // if nothing has changed since then.
            if file.count_changes().await? != put.counts {
                return Ok(false);
            }
            let staged = Staged {
                ino: file.ino(),
                claim,
                origin: before.origin,
                generation,
                size: put.size,
                ctime: put.ctime,
                chunks,
                changes: changes.clone(),
                parent: put.parent,
                path: Blob(put.path.clone()),
                identity: put.identity,
            };
            let request = Request::Adopt { staged: Box::new(staged) };
            let now = match self.core.ask(who, Place::Home(file.ino()), &request).await? {
                Reply::BackingIs { backing, .. } => backing.unwrap_or_default(),
                other => return Err(unexpected(&request, &other)),
            };
            if now.identity == put.identity || now.origin == before.origin {
                return Ok(now.identity == put.identity && now.is_clean());
            }
        }
        Ok(false)
    }

    /// Where an inode came from, and whether it was changed since; `None` if it did not come from the volume's backing.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn backing_of(&self, who: &Identity, ino: Ino) -> Result<Option<Backing>, Failure> {
        let request = Request::BackingOf { ino };
        match self.core.ask(who, Place::Home(ino), &request).await? {
            Reply::BackingIs { backing, .. } => Ok(backing),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// As [`Client::gone_names`], with the names in directories that were renamed, which have no record of their own:
    /// they lead to the objects imported under them, and yet are at other places than in the backing. With each name,
    /// whether it has a record.
    ///
    /// # Errors
    /// If one server does not answer: its records would be missing.
    pub async fn gone_trees(&self, who: &Identity) -> Result<Vec<(Gone, bool)>, Failure> {
        let mut all: Vec<(Gone, bool)> = self.gone_names(who).await?.into_iter().map(|gone| (gone, true)).collect();
        let is_dir = |gone: &Gone| gone.kind == FileKind::Directory;
        let mut waiting: Vec<Ino> = all.iter().filter(|(gone, _)| is_dir(gone)).map(|(gone, _)| gone.ino).collect();
        while let Some(dir) = waiting.pop() {
            let found = match self.imported_into(who, dir).await {
                // The directory is gone, or has changed in the backing before any of its names was imported.
                Err(failure) if matches!(failure.code, Code::Stale | Code::Changed) => continue,
                found => found?,
            };
            for gone in found {
                if is_dir(&gone) {
                    waiting.push(gone.ino);
                }
                all.push((gone, false));
            }
        }
        Ok(all)
    }

    /// The names of a directory that lead to the files that were imported under them.
    async fn imported_into(&self, who: &Identity, dir: Ino) -> Result<Vec<Gone>, Failure> {
        let (mut lister, mut after, mut found) = (Lister::new(dir, false), 0, Vec::new());
        loop {
            let page = lister.page(self, who, after, LIST_ENTRIES_MAX).await?;
            if let Some(failure) = page.failure {
                return Err(failure);
            }
            let Some(last) = page.entries.last() else { return Ok(found) };
            after = last.hash.cookie();
            let imported = page.entries.iter().filter(|entry| entry.ino.is_backed()).map(|entry| async move {
                let backing = match self.backing_of(who, entry.ino).await {
                    Err(failure) if failure.code == Code::Stale => None,
                    backing => backing?,
                };
                let is_first =
                    |backing: &Backing| backing.parent == dir && backing.first_name() == entry.name.as_bytes();
                Ok(backing.filter(is_first).map(|Backing { path, identity, .. }| {
                    let (name, ino, kind) = (entry.name.clone(), entry.ino, entry.kind);
                    Gone { parent: dir, name, ino, kind, path, identity, since: Time(0) }
                }))
            });
            in_window(ASKED_AT_ONCE, imported, |gone| found.extend(gone)).await?;
            if !page.more {
                return Ok(found);
            }
        }
    }

    /// All names of the backing that do not lead any more, in the volume, to the objects imported under them. For the
    /// volume's owner and root.
    ///
    /// # Errors
    /// If one server does not answer: its records would be missing.
    pub async fn gone_names(&self, who: &Identity) -> Result<Vec<Gone>, Failure> {
        let servers: Vec<_> = self.map().members().collect();
        let all = try_join_all(servers.into_iter().map(|server| self.gone_names_of(who, server))).await?;
        Ok(all.into_iter().flatten().collect())
    }

    async fn gone_names_of(&self, who: &Identity, server: ServerIndex) -> Result<Vec<Gone>, Failure> {
        let (mut all, mut from) = (Vec::new(), EntryPlace::default());
        loop {
            let request = Request::GoneNames { from: from.clone() };
            match self.core.ask_server(who, server, &request).await? {
                Reply::GoneAre { names, next } => {
                    all.extend(names);
                    match next {
                        Some(next) if next > from => from = next,
                        Some(_) => return Err(Failure::new(Code::Malformed, "a page of names leads back")),
                        None => return Ok(all),
                    }
                }
                other => return Err(unexpected(&request, &other)),
            }
        }
    }

    /// Says that the backing is about to lose the object from which an inode came: from now on the volume alone has its data,
    /// under any name. For the volume's owner and root.
    ///
    /// # Errors
    /// Those of every request; `Stale` if there is no such inode any more.
    pub async fn leave_backing(&self, who: &Identity, ino: Ino) -> Result<(), Failure> {
        let request = Request::LeaveBacking { ino };
        done(&request, self.core.ask(who, Place::Home(ino), &request).await?)
    }

    /// Drops the record of a name, when the backing has followed. One that was made later stays. For the volume's owner and
    /// root.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn forget_gone(&self, who: &Identity, parent: Ino, name: &Name, since: Time) -> Result<(), Failure> {
        let request = Request::ForgetGone { parent, name: name.clone(), since };
        done(&request, self.core.ask(who, Place::Entry(parent, name), &request).await?)
    }

    /// Has the volume take over all that an open file still needs of the backing: its servers read the missing chunks, and keep
    /// all. To be called before the object from which the file came is changed or removed there.
    ///
    /// # Errors
    /// Those of reading; [`Code::NoSpace`] if there is no room for all of it.
    pub async fn take_over(&self, who: &Identity, file: &File) -> Result<(), Failure> {
        match self.backing_of(who, file.attr().ino).await? {
            Some(backing) => file.keep_chunks(backing.length, FETCHED_AT_ONCE, FETCH_TRIES).await,
            None => Ok(()),
        }
    }

    /// Has servers read a part of an open file from the backing, as far as it came from there and they have not yet. Nothing
    /// that they have goes for it.
    ///
    /// # Errors
    /// Those of reading; [`Code::NoSpace`] once there is no more room.
    pub async fn fetch(&self, file: &File, part: Range<u64>) -> Result<(), Failure> {
        let attr = file.attr();
        let chunk_bytes = 1 << attr.chunk_bits;
        let chunks = (part.start..part.end.min(attr.size)).step_by(chunk_bytes);
        let fetches = chunks.map(|offset| async move {
            for _ in 1..FETCH_TRIES {
                match file.fetch_chunk(offset).await {
                    Err(failure) if failure.code == Code::TimedOut => {}
                    fetched => return fetched,
                }
            }
            file.fetch_chunk(offset).await
        });
        in_window(FETCHED_AT_ONCE, fetches, drop).await
    }
}
