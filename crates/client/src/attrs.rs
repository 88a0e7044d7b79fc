//! Attributes of inodes, asked of their home.

use crate::client::{Client, Core, unexpected};
use crate::dir_attrs::Aged;
use crate::file::File;
use crate::inodes::Inode;
use crate::leases::Lease;
use crate::route::{Knowing, Place};
use aze_proto::{Attr, Change, Code, Failure, FileKind, Identity, Ino, Reply, Request, Spread, Stub};
use std::time::Duration;

impl Core {
    pub(crate) async fn getattr(&self, who: &Identity, ino: Ino) -> Result<Attr, Failure> {
        if let Some(inode) = self.inodes.get(ino)
            && inode.take_dirty()
        {
            return self.report_time(who, &inode).await;
        }
        self.fetch_attr(who, ino, true).await
    }

    /// As [`Self::getattr`], with a lease if there is one.
    async fn getattr_leased(&self, who: &Identity, ino: Ino) -> Result<(Attr, Option<Lease>), Failure> {
        if self.inodes.is_dirty(ino) {
            return Ok((self.getattr(who, ino).await?, None));
        }
        self.fetch_leased(who, ino, true).await
    }

    /// As [`Self::fetch_attr`], with a lease if there is one.
    pub(crate) async fn fetch_leased(
        &self,
        who: &Identity,
        ino: Ino,
        exact: bool,
    ) -> Result<(Attr, Option<Lease>), Failure> {
        let claimed = self.claiming();
        if let Some(attr) = self.look_at(ino) {
            return Ok((attr, claimed));
        }
        let request = Request::GetAttr { ino, exact };
        let (reply, lease) = self.ask_leased(who, Place::Home(ino), Knowing::Latest, &request).await?;
        let attr = self.attributes(&request, reply)?;
        self.attributed.learn(&attr, lease);
        Ok((attr, lease))
    }

    /// Asks the home, also with unreported changes of this client; `exact` gathers a directory's counts.
    pub(crate) async fn fetch_attr(&self, who: &Identity, ino: Ino, exact: bool) -> Result<Attr, Failure> {
        Ok(self.fetch_leased(who, ino, exact).await?.0)
    }

    async fn getattr_within(&self, who: &Identity, ino: Ino, age_max: Duration) -> Result<Aged, Failure> {
        let asked_ns = self.io.mono_ns();
        if let Some(young) = self.dir_attrs.young(ino, asked_ns, age_max) {
            return Ok(young);
        }
        let fetching = Fetching::begin(self, ino, asked_ns);
        let exact = if self.dir_attrs.rests(asked_ns) { None } else { Some(self.getattr_leased(who, ino).await) };
        let answer = match exact {
            Some(Err(failure)) if is_silence(&failure) => {
                let answer = self.getattr_of_home(who, ino).await;
                if answer.as_ref().is_ok_and(|(attr, _)| attr.kind == FileKind::Directory) {
                    self.dir_attrs.rest(self.io.mono_ns());
                }
                answer
            }
            Some(answer) => answer,
            None => self.getattr_of_home(who, ino).await,
        };
        match answer {
            Ok((attr, lease)) => Ok(Aged { attr: fetching.end(Ok(attr))?, age: Duration::ZERO, lease }),
            Err(failure) => {
                let last = if is_silence(&failure) { self.dir_attrs.make_do(ino, self.io.mono_ns()) } else { None };
                drop(fetching);
                if last.is_none() && ino == Ino::ROOT && is_silence(&failure) {
                    return self.root_by_its_rights(who).await.map(Aged::from).map_err(|_| failure);
                }
                last.map(Aged::from).ok_or(failure)
            }
        }
    }

    /// While a server does not answer, names on the others must go on: of a directory, what its home knows and the
    /// counts that were known last.
    async fn getattr_of_home(&self, who: &Identity, ino: Ino) -> Result<(Attr, Option<Lease>), Failure> {
        if self.inodes.is_dirty(ino) {
            return Ok((self.getattr(who, ino).await?, None));
        }
        let (attr, lease) = self.fetch_leased(who, ino, false).await?;
        if attr.kind != FileKind::Directory {
            return Ok((attr, lease));
        }
        Ok((self.dir_attrs.with_last_counts(attr), lease))
    }

    /// The root while its home has ended, for the kernel, which looks at its rights before everything that it does below: mode and owner are
    /// those of the root, and times those of when its home told its rights last. No living server knows counts: 1 link and size 0.
    async fn root_by_its_rights(&self, who: &Identity) -> Result<Attr, Failure> {
        let stub = self.rights_of_root(who).await?;
        Ok(self.dir_attrs.of_rights(&stub, self.routes.read().map.shards()))
    }

    /// The rights of the root, of another server than its home: each has been told of every change.
    pub(crate) async fn rights_of_root(&self, who: &Identity) -> Result<Stub, Failure> {
        let routes = self.routes.read().clone();
        let request = Request::RootRights;
        let home = routes.map.home_of(Ino::ROOT).unwrap_or_default();
        let mut failure = Failure::new(Code::Unreachable, format!("{}: no server to ask", request.name()));
        for other in self.others(&routes, home) {
            match self.ask_server(who, other.index, &request).await {
                Ok(Reply::StubGranted { stub }) => return Ok(stub),
                Ok(reply) => return Err(unexpected(&request, &reply)),
                Err(other) => failure = other,
            }
        }
        Err(failure)
    }

    /// Reports unreported changes.
    pub(crate) async fn flush(&self, who: &Identity, inode: &Inode) -> Result<(), Failure> {
        if inode.take_dirty() { self.report_time(who, inode).await.map(drop) } else { Ok(()) }
    }

    /// What an open that ends could not report is owed to the home.
    pub(crate) fn owe_unreported(&self, who: &Identity, inode: &Inode) {
        if inode.take_dirty() {
            self.owe(who, &inode.attr(), 0, Spread::default());
        }
    }

    /// Reports that a file was written; if that fails it stays unreported.
    async fn report_time(&self, who: &Identity, inode: &Inode) -> Result<Attr, Failure> {
        let until = self.patience();
        loop {
            let known = inode.attr();
            let request =
                Request::Report { ino: known.ino, generation: known.generation, end: 0, spread: Spread::default() };
            let reported = self
                .ask(who, Place::Home(known.ino), &request)
                .await
                .and_then(|reply| self.attributes(&request, reply));
            match reported {
                Err(failure) if crate::data::is_stale(&failure) => {
                    until.check(self, &failure, &request)?;
                    self.fetch_attr(who, known.ino, false).await?;
                }
                Err(failure) => {
                    inode.still_dirty();
                    return Err(failure);
                }
                reported => return reported,
            }
        }
    }
}

/// Whether a server did not answer, as opposed to one that has said no.
pub(crate) fn is_silence(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unreachable | Code::TimedOut)
}

/// An answer on its way, also if its caller has given up.
struct Fetching<'a> {
    core: &'a Core,
    ino: Ino,
    asked_ns: u64,
    is_over: bool,
}

impl<'a> Fetching<'a> {
    fn begin(core: &'a Core, ino: Ino, asked_ns: u64) -> Fetching<'a> {
        core.dir_attrs.begin(ino);
        Fetching { core, ino, asked_ns, is_over: false }
    }

    fn end(mut self, answer: Result<Attr, Failure>) -> Result<Attr, Failure> {
        self.is_over = true;
        let of_directory = answer.as_ref().ok().filter(|attr| attr.kind == FileKind::Directory).cloned();
        let kept = self.core.dir_attrs.end(self.ino, self.asked_ns, of_directory);
        kept.map_or(answer, Ok)
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.core.dir_attrs.end(self.ino, self.asked_ns, None);
        }
    }
}

impl Client {
    /// As [`Client::getattr`], but of a directory an answer that was exact less than `age_max` ago
    /// will do, with what this client has changed since. While a server does not answer, the counts are those that
    /// were known last, with 1 link; while the directory's home does not, that goes for everything.
    ///
    /// # Errors
    /// As [`Client::getattr`].
    pub async fn getattr_within(&self, who: &Identity, ino: Ino, age_max: Duration) -> Result<Aged, Failure> {
        self.core.getattr_within(who, ino, age_max).await
    }

    /// The attributes of an inode, exact at some moment during the call: a directory's counts and
    /// times are gathered from all servers with entries of it, and writes of this client are in.
    ///
    /// # Errors
    /// [`Code::Stale`](aze_proto::Code::Stale) if there is no such inode any more.
    pub async fn getattr(&self, who: &Identity, ino: Ino) -> Result<Attr, Failure> {
        self.core.getattr(who, ino).await
    }

    /// Changes attributes other than the length; gives all of them as they are then.
    ///
    /// # Errors
    /// [`Code::NotPermitted`](aze_proto::Code::NotPermitted) and
    /// [`Code::AccessDenied`](aze_proto::Code::AccessDenied) as in chmod(2), chown(2) and utimensat(2).
    pub async fn setattr(&self, who: &Identity, ino: Ino, change: &Change) -> Result<Attr, Failure> {
        if change.mtime.is_some()
            && let Some(inode) = self.core.inodes.get(ino)
        {
            // The time that is set now takes the place of that of earlier writes, which must not
            // be reported after it.
            inode.take_dirty();
            self.core.owe_no_time(ino);
        }
        let request = Request::SetAttr { ino, change: change.clone() };
        let reply = self.core.ask(who, Place::Home(ino), &request).await;
        self.core.dir_attrs.forget(ino);
        self.core.attributes(&request, reply?)
    }

    /// Sets a file's length; what lies beyond is gone for everybody when this returns. Needs write
    /// permission, unless it happens `through` a file that is open for writing.
    ///
    /// # Errors
    /// [`Code::IsDirectory`](aze_proto::Code::IsDirectory), [`Code::Invalid`](aze_proto::Code::Invalid)
    /// (no regular file), [`Code::AccessDenied`](aze_proto::Code::AccessDenied),
    /// [`Code::TooLarge`](aze_proto::Code::TooLarge).
    pub async fn truncate(&self, who: &Identity, ino: Ino, size: u64, through: Option<&File>) -> Result<Attr, Failure> {
        let opened = through.is_some_and(|file| file.ino() == ino && file.access().write);
        let request = Request::Truncate { ino, size, opened };
        let reply = self.core.ask(who, Place::Home(ino), &request).await?;
        self.core.attributes(&request, reply)
    }
}
