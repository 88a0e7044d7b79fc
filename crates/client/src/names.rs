//! Operations on the names in a directory: each is one request to the shard that parent and name
//! hash to, and a second one to the inode's home if that is elsewhere.

use crate::attrs::is_silence;
use crate::client::{Client, Core, unexpected};
use crate::dir_attrs::Aged;
use crate::file::{Access, File};
use crate::leases::Lease;
use crate::published::Looked;
use crate::route::{Knowing, Patience, Place};
use aze_proto::fields::Create;
use aze_proto::wire::Blob;
use aze_proto::{Attr, Code, Failure, FileKind, Identity, Ino, Name, NameHash, Reply, Request};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;

/// Pause before a name is looked up again whose file was gone: a removal must have come in between, and
/// some take as long.
const LOOK_AGAIN_PAUSE: Duration = Duration::from_millis(1);

/// Names looked up at the same time.
const LOOKUPS_MAX: usize = 64;

/// A file to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits, the caller's umask already applied.
    pub mode: u32,
    /// Device number of a device file, else 0.
    pub rdev: u32,
    /// Target of a symbolic link, else empty.
    pub target: Vec<u8>,
    /// Fail if the name exists; goes without saying for kinds other than `File`.
    pub exclusive: bool,
    /// Open it too; for kind `File` only.
    pub open: Option<Access>,
    /// Base-2 logarithm of the chunk size in bytes; 0 takes the directory's.
    pub chunk_bits: u8,
    /// Keep names, inodes and data made in it on its own server; for kind `Directory` only.
    pub private: bool,
}

/// What [`Client::create`] has made or found.
pub struct Created {
    /// Its attributes.
    pub attr: Attr,
    /// It is new.
    pub created: bool,
    /// Open, if that was asked for and it is a regular file.
    pub file: Option<Arc<File>>,
    /// Until when name and attributes may be believed.
    pub lease: Option<Lease>,
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub struct Reached {
    /// Its inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Its attributes; of a directory whose home does not answer, why they are missing: its entries may be on servers
    /// that do.
    pub attr: Result<Attr, Failure>,
}

impl Reached {
    pub(crate) fn of(ino: Ino, kind: FileKind, attr: Result<Attr, Failure>) -> Result<Reached, Failure> {
        match attr {
            Err(failure) if kind != FileKind::Directory || !is_silence(&failure) => Err(failure),
            attr => Ok(Reached { ino, kind, attr }),
        }
    }
}

/// What an entry says.
pub(crate) struct Entry {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    /// Absent where the inode lives on another server than its entry.
    pub(crate) attr: Option<Attr>,
    pub(crate) created: bool,
}

impl Core {
    /// Takes an entry out of a reply.
    pub(crate) fn entry(&self, asked: &Request, reply: Reply) -> Result<Entry, Failure> {
        match reply {
            Reply::Entry { ino, kind, attr, created } => {
                if let Some(attr) = &attr {
                    self.inodes.learn(attr);
                }
                Ok(Entry { ino, kind, attr, created })
            }
            other => Err(unexpected(asked, &other)),
        }
    }

    pub(crate) async fn lookup(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        knowing: Knowing,
    ) -> Result<Entry, Failure> {
        Ok(self.entry_leased(who, parent, name, knowing).await?.0)
    }

    /// The same, with the lease of the answer if there is one.
    async fn entry_leased(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        knowing: Knowing,
    ) -> Result<(Entry, Option<Lease>), Failure> {
        let claimed = self.claiming();
        let directory = match self.look(who, parent, name, knowing) {
            Looked::Found(entry) => return Ok((entry, claimed)),
            Looked::Missing => return Err(Code::NotFound.into()),
            Looked::Ask(directory) => directory,
        };
        let request = Request::Lookup { parent, name: name.clone() };
        let reply = self.ask_leased(who, Place::Entry(parent, name), knowing, &request).await;
        // A user who is told that there is no such name was let in, too.
        if let (Some(directory), Ok(_) | Err(Failure { code: Code::NotFound, .. })) = (directory, &reply) {
            self.entered.let_in(who, parent, directory);
        }
        let (reply, lease) = reply?;
        let entry = self.entry(&request, reply)?;
        if let Some(attr) = &entry.attr {
            self.attributed.learn(attr, lease);
        }
        Ok((entry, lease))
    }

    /// Looks a name up, with the attributes of its inode.
    pub(crate) async fn lookup_attr(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        knowing: Knowing,
    ) -> Result<Attr, Failure> {
        self.lookup_reached(who, parent, name, knowing).await?.attr
    }

    /// The same, also of a directory whose home does not answer.
    pub(crate) async fn lookup_reached(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        knowing: Knowing,
    ) -> Result<Reached, Failure> {
        let until = self.patience();
        loop {
            let entry = self.lookup(who, parent, name, knowing).await?;
            match self.entry_attr(who, &entry).await {
                Err(failure) if failure.code == Code::Stale => self.look_again(until, failure).await?,
                attr => return Reached::of(entry.ino, entry.kind, attr),
            }
        }
    }

    /// The same, with the lease of name and attributes if there is one.
    async fn lookup_leased(&self, who: &Identity, parent: Ino, name: &Name) -> Result<(Attr, Option<Lease>), Failure> {
        let until = self.patience();
        loop {
            let (entry, lease) = self.entry_leased(who, parent, name, Knowing::Latest).await?;
            let found = match entry.attr {
                _ if self.inodes.is_dirty(entry.ino) => self.getattr(who, entry.ino).await.map(|attr| (attr, None)),
                Some(attr) => Ok((attr, lease)),
                None => {
                    let fetched = self.fetch_leased(who, entry.ino, false).await;
                    fetched.map(|(attr, of_attr)| (attr, Lease::both(lease, of_attr)))
                }
            };
            match found {
                Err(failure) if failure.code == Code::Stale => self.look_again(until, failure).await?,
                answer => return answer,
            }
        }
    }

    /// The attributes of an entry's inode.
    async fn entry_attr(&self, who: &Identity, entry: &Entry) -> Result<Attr, Failure> {
        match &entry.attr {
            _ if self.inodes.is_dirty(entry.ino) => self.getattr(who, entry.ino).await,
            Some(attr) => Ok(attr.clone()),
            None => self.fetch_attr(who, entry.ino, false).await,
        }
    }

    /// What a name meant was gone when its home was asked: another client has removed the name in
    /// between, or given it to another file. Fails when the time is up.
    pub(crate) async fn look_again(&self, until: Patience, gone: Failure) -> Result<(), Failure> {
        self.io.sleep(LOOK_AGAIN_PAUSE).await;
        if until.is_over(self) { Err(gone) } else { Ok(()) }
    }

    pub(crate) async fn create(
        self: &Arc<Self>,
        who: &Identity,
        parent: Ino,
        name: &Name,
        new: &NewFile,
        knowing: Knowing,
    ) -> Result<Created, Failure> {
        let access = new.open.filter(|_| new.kind == FileKind::File);
        let handle = access.map(|_| self.new_handle());
        let request = Request::Create(Create {
            parent,
            name: name.clone(),
            kind: new.kind,
            mode: new.mode,
            rdev: new.rdev,
            target: Blob(new.target.clone()),
            exclusive: new.exclusive || new.kind != FileKind::File,
            open: handle,
            write: access.is_some_and(|access| access.write),
            chunk_bits: new.chunk_bits,
            private: new.private,
        });
        let until = self.patience();
        loop {
            let asked = self.ask_leased(who, Place::Entry(parent, name), knowing, &request).await;
            let (reply, lease) = asked.map_or_else(|failure| (Err(failure), None), |(reply, lease)| (Ok(reply), lease));
            self.note_made(parent, &reply);
            let entry = self.entry(&request, reply?)?;
            // What else there was comes with what its home says.
            let lease = lease.filter(|_| entry.created);
            if let Some(attr) = &entry.attr {
                self.attributed.learn(attr, lease);
            }
            match self.made(who, &entry, access.zip(handle), lease).await {
                Err(failure) if failure.code == Code::Stale && !entry.created => {
                    self.look_again(until, failure).await?
                }
                made => return made,
            }
        }
    }

    /// Keeps the cached attributes of the directory in step.
    fn note_made(&self, parent: Ino, reply: &Result<Reply, Failure>) {
        match reply {
            Ok(Reply::Entry { created: false, .. }) => {}
            Ok(Reply::Entry { kind: FileKind::Directory, attr: Some(attr), .. }) => {
                self.dir_attrs.grown(parent, attr.btime);
            }
            Ok(Reply::Entry { attr: Some(attr), .. }) => self.dir_attrs.changed(parent, true, attr.btime),
            _ => self.dir_attrs.forget(parent),
        }
    }

    /// The inode that was made or found, opened if that is wanted: one that was made is open already.
    async fn made(
        self: &Arc<Self>,
        who: &Identity,
        entry: &Entry,
        open: Option<(Access, u64)>,
        lease: Option<Lease>,
    ) -> Result<Created, Failure> {
        let created = entry.created;
        match (open, &entry.attr) {
            (Some((access, handle)), Some(attr)) if created => {
                let file = File::opened(self, who, attr, access, self.registered(attr.ino, handle), None, true);
                Ok(Created { attr: attr.clone(), created, file: Some(file), lease })
            }
            (Some((access, _)), _) if entry.kind == FileKind::File => {
                let file = self.open(who, entry.ino, access.into()).await?;
                Ok(Created { attr: file.attr(), created, file: Some(file), lease })
            }
            (Some((access, _)), _) if entry.kind == FileKind::Directory && access.write => {
                Err(Code::IsDirectory.into())
            }
            _ => Ok(Created { attr: self.entry_attr(who, entry).await?, created, file: None, lease }),
        }
    }

    /// Takes a name away.
    pub(crate) async fn remove(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        is_dir: bool,
        knowing: Knowing,
    ) -> Result<(), Failure> {
        let request = match is_dir {
            true => Request::Rmdir { parent, name: name.clone() },
            false => Request::Unlink { parent, name: name.clone() },
        };
        let reply = self.ask_knowing(who, Place::Entry(parent, name), knowing, &request).await;
        match &reply {
            Ok(Reply::DoneAt { time }) if !is_dir => self.dir_attrs.changed(parent, false, *time),
            _ => self.dir_attrs.forget(parent),
        }
        if is_dir {
            self.dirs.forget(parent, name);
            self.dir_attrs.forget_in(parent);
        }
        done(&request, reply?)
    }

    pub(crate) async fn rename(
        &self,
        who: &Identity,
        (parent, name): (Ino, &Name),
        (to_parent, to_name): (Ino, &Name),
        no_replace: bool,
        knowing: Knowing,
    ) -> Result<(), Failure> {
        let request = Request::Rename { parent, name: name.clone(), to_parent, to_name: to_name.clone(), no_replace };
        let reply = self.ask_knowing(who, Place::Entry(parent, name), knowing, &request).await;
        self.names_moved([(parent, name), (to_parent, to_name)], &request, reply).await
    }

    pub(crate) async fn exchange(
        &self,
        who: &Identity,
        (parent, name): (Ino, &Name),
        (to_parent, to_name): (Ino, &Name),
        knowing: Knowing,
    ) -> Result<(), Failure> {
        let request = Request::Exchange { parent, name: name.clone(), to_parent, to_name: to_name.clone() };
        let reply = self.ask_knowing(who, Place::Entry(parent, name), knowing, &request).await;
        self.names_moved([(parent, name), (to_parent, to_name)], &request, reply).await
    }

    /// What a request that gives these names to something else has come to.
    async fn names_moved(
        &self,
        names: [(Ino, &Name); 2],
        request: &Request,
        reply: Result<Reply, Failure>,
    ) -> Result<(), Failure> {
        self.moves.count();
        self.forget_moved(names);
        match reply? {
            Reply::Moved { inos } => {
                self.has_moved(inos).await;
                Ok(())
            }
            // Both names led to one file already.
            reply => done(request, reply),
        }
    }

    /// These names mean something else now. A directory may have had one of them: its attributes say where it is.
    fn forget_moved(&self, names: [(Ino, &Name); 2]) {
        for (parent, name) in names {
            self.dirs.forget(parent, name);
            self.dir_attrs.forget(parent);
            self.dir_attrs.forget_in(parent);
        }
    }

    pub(crate) async fn link(
        &self,
        who: &Identity,
        ino: Ino,
        parent: Ino,
        name: &Name,
        knowing: Knowing,
    ) -> Result<Attr, Failure> {
        let request = Request::Link { parent, name: name.clone(), ino };
        let reply = self.ask_knowing(who, Place::Entry(parent, name), knowing, &request).await;
        self.moves.count();
        self.dir_attrs.forget(parent);
        self.attributes(&request, reply?)
    }

    pub(crate) async fn readlink(&self, who: &Identity, ino: Ino) -> Result<Vec<u8>, Failure> {
        let request = Request::ReadLink { ino };
        match self.ask(who, Place::Home(ino), &request).await? {
            Reply::Target { target } => Ok(target.0),
            other => Err(unexpected(&request, &other)),
        }
    }
}

/// Checks that a reply says no more than that it is done.
pub(crate) fn done(asked: &Request, reply: Reply) -> Result<(), Failure> {
    match reply {
        Reply::Done | Reply::DoneAt { .. } => Ok(()),
        other => Err(unexpected(asked, &other)),
    }
}

impl Client {
    /// What a name means. One request, or two where the inode does not live beside its entry. A
    /// directory's counts and times are those its home knows; [`Client::getattr`] gathers them.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::AccessDenied`].
    pub async fn lookup(&self, who: &Identity, parent: Ino, name: &Name) -> Result<Attr, Failure> {
        self.core.lookup_attr(who, parent, name, Knowing::Latest).await
    }

    /// [`Client::lookup`] of several names, up to 64 at a time; `each` hears of every one by its number.
    pub async fn lookup_all(
        &self,
        who: &Identity,
        parent: Ino,
        names: &[Name],
        mut each: impl FnMut(usize, Result<Attr, Failure>),
    ) {
        let lookups =
            names.iter().enumerate().map(|(at, name)| async move { (at, self.lookup(who, parent, name).await) });
        let mut waiting = lookups.fuse();
        let mut under_way: FuturesUnordered<_> = waiting.by_ref().take(LOOKUPS_MAX).collect();
        while let Some((at, attr)) = under_way.next().await {
            each(at, attr);
            under_way.extend(waiting.next());
        }
    }

    /// As [`Client::lookup`], with a directory's counts and times no older than `age_max`: of one that
    /// is replaced meanwhile, those of its successor.
    ///
    /// # Errors
    /// As [`Client::lookup`].
    pub async fn lookup_within(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        age_max: Duration,
    ) -> Result<Aged, Failure> {
        let until = self.core.patience();
        loop {
            let (attr, lease) = self.core.lookup_leased(who, parent, name).await?;
            if attr.kind != FileKind::Directory {
                return Ok(Aged { attr, age: Duration::ZERO, lease });
            }
            match self.getattr_within(who, attr.ino, age_max).await {
                Err(failure) if failure.code == Code::Stale => self.core.look_again(until, failure).await?,
                answer => return answer,
            }
        }
    }

    /// As [`Client::lookup_within`], and opens the regular file that was found, for nothing but to keep it from going: another one while each is
    /// replaced before it is open. Gives no file where the name means something else, or where that fails otherwise.
    ///
    /// # Errors
    /// As [`Client::lookup`]; [`Code::Stale`] if the file is still being replaced when the client's patience is over.
    pub async fn lookup_and_hold(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        age_max: Duration,
    ) -> Result<(Aged, Option<Arc<File>>), Failure> {
        let until = self.core.patience();
        loop {
            let aged = self.lookup_within(who, parent, name, age_max).await?;
            if aged.attr.kind != FileKind::File {
                return Ok((aged, None));
            }
            match self.open(who, aged.attr.ino, Access { read: false, write: false }).await {
                Err(failure) if failure.code == Code::Stale => self.core.look_again(until, failure).await?,
                opened => return Ok((aged, opened.ok())),
            }
        }
    }

    /// Makes a file of any kind, and opens a regular one if that is wanted. One request; a second
    /// one where a file of this name exists and is to be opened.
    ///
    /// # Errors
    /// [`Code::Exists`] if exclusive; [`Code::IsDirectory`] if a directory is there and is to be
    /// written; [`Code::NotFound`] (the parent), [`Code::AccessDenied`], [`Code::NoSpace`].
    pub async fn create(&self, who: &Identity, parent: Ino, name: &Name, new: &NewFile) -> Result<Created, Failure> {
        self.core.create(who, parent, name, new, Knowing::Latest).await
    }

    /// A hidden name in `parent` that no other caller uses, and whose entry is on the server of `name`: renaming it to
    /// `name` takes no request between servers.
    pub fn name_beside(&self, parent: Ino, name: &Name) -> Name {
        let unique = self.core.io.random_u64();
        let hidden = |count: usize| Name::new(format!(".aze-{unique:016x}-{count}").as_bytes()).expect("a short name");
        self.nearest_name(parent, name, hidden)
    }

    /// The first of some names in `parent` whose entry is on the server of `name`: renaming it to `name` takes no request between
    /// servers.
    pub fn nearest_name(&self, parent: Ino, name: &Name, numbered: impl Fn(usize) -> Name) -> Name {
        let map = self.map();
        let server_of = |name: &Name| map.server_of(NameHash::of(parent, name).shard(map.shards()));
        let wanted = server_of(name);
        // One in as many as there are servers fits; if none of these does, the rename takes more requests.
        let mut names = (0..16 * map.servers.len()).map(&numbered);
        names.find(|hidden| server_of(hidden) == wanted).unwrap_or_else(|| numbered(0))
    }

    /// Takes away a name of anything but a directory. The file lives on while it is open somewhere.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::IsDirectory`], [`Code::AccessDenied`].
    pub async fn unlink(&self, who: &Identity, parent: Ino, name: &Name) -> Result<(), Failure> {
        self.core.remove(who, parent, name, false, Knowing::Latest).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Code::NotEmpty`], [`Code::NotFound`], [`Code::NotDirectory`], [`Code::AccessDenied`].
    pub async fn rmdir(&self, who: &Identity, parent: Ino, name: &Name) -> Result<(), Failure> {
        self.core.remove(who, parent, name, true, Knowing::Latest).await
    }

    /// Gives a file one more name; gives its attributes.
    ///
    /// # Errors
    /// [`Code::Exists`], [`Code::NotPermitted`] (a directory), [`Code::TooManyLinks`].
    pub async fn link(&self, who: &Identity, ino: Ino, parent: Ino, name: &Name) -> Result<Attr, Failure> {
        self.core.link(who, ino, parent, name, Knowing::Latest).await
    }

    /// Renames, replacing an entry of the new name (unless `no_replace`) in one step.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::Exists`], [`Code::NotEmpty`], [`Code::Invalid`] (a directory
    /// into itself).
    pub async fn rename(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        to_parent: Ino,
        to_name: &Name,
        no_replace: bool,
    ) -> Result<(), Failure> {
        self.core.rename(who, (parent, name), (to_parent, to_name), no_replace, Knowing::Latest).await
    }

    /// Lets two names that are both there change places in one step, files and directories alike.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::Invalid`] (a directory into itself), [`Code::AccessDenied`].
    pub async fn exchange(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        to_parent: Ino,
        to_name: &Name,
    ) -> Result<(), Failure> {
        self.core.exchange(who, (parent, name), (to_parent, to_name), Knowing::Latest).await
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Code::Invalid`] if it is none.
    pub async fn readlink(&self, who: &Identity, ino: Ino) -> Result<Vec<u8>, Failure> {
        self.core.readlink(who, ino).await
    }
}
