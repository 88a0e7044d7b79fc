//! Extended attributes, access control lists among them, asked of an inode's home.
//!
//! Most files have none, and programs ask for several of each all the same (`ls -l`, `cp -a`). A file's attributes say
//! whether it has any: where a client may believe them, it answers itself that there are none. Directories are asked
//! for, since servers give no lease of them.

use crate::attrs::is_silence;
use crate::client::{Client, Core, unexpected};
use crate::leases::Lease;
use crate::route::Place;
use aze_io::sync::Mutex;
use aze_proto::limits::LEASE_MS;
use aze_proto::wire::Blob;
use aze_proto::xattr::{XattrSpace, absent};
use aze_proto::{Attr, Code, Failure, FileKind, Identity, Ino, Reply, Request, XattrHow};
use std::collections::BTreeMap;
use std::time::Duration;

/// Files for which a client remembers whether they have extended attributes; one more, and all are forgotten, which
/// costs a request each.
const FILES_MAX: usize = 1 << 15;

/// Inodes share counters of this client's own changes; two that share one cost a request now and then.
const COUNTERS: usize = 256;

/// How long an answer that is on its way may be believed at most.
const LEASE_NS: u64 = LEASE_MS as u64 * 1_000_000;

/// Permission bits under a umask, for a new file: in a directory with a default access control list
/// the umask does not count, so the request names it.
pub fn mode_under(mode: u32, umask: u32) -> u32 {
    (mode & !umask & 0o7777) | (mode & umask & 0o777) << 16
}

/// Which files have extended attributes, by answers with a lease.
///
/// Others' changes end the lease. Servers do not tell a client of its own changes, so that these are noted here: what
/// was asked for before one has ended is not believed after it.
#[derive(Default)]
pub(crate) struct Attributed {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<Ino, Known>,
    own: BTreeMap<usize, Own>,
}

/// What an answer has told of a file.
#[derive(Clone, Copy)]
struct Known {
    kind: FileKind,
    has_xattrs: bool,
    lease: Lease,
}

/// Own changes of the inodes that share a counter.
#[derive(Clone, Copy, Default)]
struct Own {
    /// Those that are under way.
    open: u32,
    /// A lease that ends later was asked for after the last of them had ended.
    lease_end_ns: u64,
}

impl Attributed {
    /// A server's answer, with its lease if there is one.
    pub(crate) fn learn(&self, attr: &Attr, lease: Option<Lease>) {
        let Some(lease) = lease.filter(|_| attr.kind != FileKind::Directory) else { return };
        let mut state = self.state.lock();
        let own = state.own.get(&counter(attr.ino)).copied().unwrap_or_default();
        if own.open > 0 || lease.until_ns() <= own.lease_end_ns {
            state.files.remove(&attr.ino);
            return;
        }
        if state.files.len() >= FILES_MAX {
            state.files.clear();
        }
        state.files.insert(attr.ino, Known { kind: attr.kind, has_xattrs: attr.has_xattrs, lease });
    }

    /// Forgets all files.
    pub(crate) fn forget_all(&self) {
        self.state.lock().files.clear();
    }

    fn get(&self, ino: Ino) -> Option<Known> {
        self.state.lock().files.get(&ino).copied()
    }
}

fn counter(ino: Ino) -> usize {
    (ino.0 ^ ino.0 >> 48) as usize % COUNTERS
}

/// A change of an inode's extended attributes by this client, also one whose caller has given up.
struct Changing<'a> {
    core: &'a Core,
    ino: Ino,
}

impl<'a> Changing<'a> {
    fn begin(core: &'a Core, ino: Ino) -> Changing<'a> {
        let mut state = core.attributed.state.lock();
        state.files.remove(&ino);
        state.own.entry(counter(ino)).or_default().open += 1;
        drop(state);
        Changing { core, ino }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let lease_end_ns = self.core.io.mono_ns() + LEASE_NS;
        let mut state = self.core.attributed.state.lock();
        let own = state.own.entry(counter(self.ino)).or_default();
        (own.open, own.lease_end_ns) = (own.open - 1, lease_end_ns);
    }
}

impl Core {
    /// The kind of an inode that has no extended attributes, as far as its attributes are known; those that were once
    /// are asked for again, so that one request answers all questions about the file.
    async fn kind_without(&self, who: &Identity, ino: Ino) -> Result<Option<FileKind>, Failure> {
        let (kind, has_xattrs) = if let Some(attr) = self.look_at(ino) {
            (attr.kind, attr.has_xattrs)
        } else if let Some(Known { kind, has_xattrs, lease }) = self.attributed.get(ino) {
            match self.leases.left(lease, ino, self.io.mono_ns()).is_zero() {
                true => (kind, self.fetch_attr(who, ino, false).await?.has_xattrs),
                false => (kind, has_xattrs),
            }
        } else {
            return Ok(None);
        };
        Ok((!has_xattrs).then_some(kind))
    }

    /// An access control list of the root, whose home does not answer with more than a failure. Other attributes only the home has.
    async fn acl_of_root(&self, who: &Identity, name: &[u8], failure: Failure) -> Result<Vec<u8>, Failure> {
        let Ok(XattrSpace::Acl { default }) = XattrSpace::of(name) else { return Err(failure) };
        let stub = self.rights_of_root(who).await.map_err(|_| failure)?;
        let list = if default { stub.default_acl } else { stub.acl };
        list.map(|list| list.0).ok_or_else(|| absent(name))
    }
}

/// Whether `who` is told of an inode that has no extended attributes at all that it has not this one: its home decides
/// who may read it, and what a symbolic link's rights are.
fn may_tell(who: &Identity, kind: FileKind, name: &[u8]) -> Result<bool, Failure> {
    Ok(match XattrSpace::of(name)? {
        XattrSpace::User => who.is_root(),
        XattrSpace::Acl { .. } => kind != FileKind::Symlink,
        XattrSpace::Trusted | XattrSpace::Security => true,
    })
}

impl Client {
    /// The value of an extended attribute: getxattr(2). Names are with their namespace, and
    /// `system.posix_acl_access` and `system.posix_acl_default` are in the Linux kernel's form.
    ///
    /// # Errors
    /// [`Code::NoAttribute`], [`Code::AccessDenied`], [`Code::Unsupported`] (another namespace than
    /// `user`, `trusted`, `security`), [`Code::OutOfRange`] (a name longer than 255 bytes).
    pub async fn get_xattr(&self, who: &Identity, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Failure> {
        if let Some(kind) = self.core.kind_without(who, ino).await?
            && may_tell(who, kind, name)?
        {
            return Err(absent(name));
        }
        let request = Request::GetXattr { ino, name: Blob(name.to_vec()) };
        match self.core.ask(who, Place::Home(ino), &request).await {
            Ok(Reply::Xattr { value }) => Ok(value.0),
            Ok(other) => Err(unexpected(&request, &other)),
            Err(failure) if ino == Ino::ROOT && is_silence(&failure) => self.core.acl_of_root(who, name, failure).await,
            Err(failure) => Err(failure),
        }
    }

    /// As [`Client::get_xattr`]. If this client has seen less than `age_max` ago that a directory has no extended attributes, it
    /// answers by itself that there is no security label and no access control list: programs that list directories ask for
    /// both. It asks for the default list, from which a new name gets its rights.
    ///
    /// # Errors
    /// As [`Client::get_xattr`].
    pub async fn get_xattr_within(
        &self,
        who: &Identity,
        ino: Ino,
        name: &[u8],
        age_max: Duration,
    ) -> Result<Vec<u8>, Failure> {
        if let Some(known) = self.core.dir_attrs.young(ino, self.core.io.mono_ns(), age_max)
            && !known.attr.has_xattrs
            && matches!(XattrSpace::of(name), Ok(XattrSpace::Security | XattrSpace::Acl { default: false }))
        {
            return Err(absent(name));
        }
        self.get_xattr(who, ino, name).await
    }

    /// The names of the extended attributes that `who` may know of: listxattr(2).
    ///
    /// # Errors
    /// [`Code::Stale`] if there is no such inode any more.
    pub async fn list_xattr(&self, who: &Identity, ino: Ino) -> Result<Vec<Vec<u8>>, Failure> {
        if self.core.kind_without(who, ino).await?.is_some() {
            return Ok(Vec::new());
        }
        let request = Request::ListXattr { ino };
        match self.core.ask(who, Place::Home(ino), &request).await? {
            Reply::XattrNames { names } => Ok(names.into_iter().map(|name| name.0).collect()),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// Sets an extended attribute: setxattr(2). When this has returned for the access control list
    /// of a directory, users who lost rights by it get in nowhere, over no path.
    ///
    /// # Errors
    /// Those of [`Client::get_xattr`]; [`Code::NotPermitted`], [`Code::Exists`], [`Code::Limit`] (a
    /// value longer than 64 KiB), [`Code::NoSpace`] (too many of them), [`Code::Invalid`] (no valid
    /// access control list).
    pub async fn set_xattr(
        &self,
        who: &Identity,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: XattrHow,
    ) -> Result<(), Failure> {
        self.change_xattr(who, ino, name, Some(Blob(value.to_vec())), how).await
    }

    /// Removes an extended attribute: removexattr(2).
    ///
    /// # Errors
    /// Those of [`Client::set_xattr`].
    pub async fn remove_xattr(&self, who: &Identity, ino: Ino, name: &[u8]) -> Result<(), Failure> {
        self.change_xattr(who, ino, name, None, XattrHow::Any).await
    }

    async fn change_xattr(
        &self,
        who: &Identity,
        ino: Ino,
        name: &[u8],
        value: Option<Blob>,
        how: XattrHow,
    ) -> Result<(), Failure> {
        if let Some(value) = &value {
            // Longer ones would not fit into a request.
            let longest = aze_proto::limits::XATTR_VALUE_BYTES_MAX;
            if value.0.len() > longest {
                let detail = format!("a value of {} bytes: at most {longest} are possible", value.0.len());
                return Err(Failure::new(Code::Limit, detail));
            }
        }
        let request = Request::SetXattr { ino, name: Blob(name.to_vec()), value, how };
        let changing = Changing::begin(&self.core, ino);
        let reply = self.core.ask(who, Place::Home(ino), &request).await;
        drop(changing);
        self.core.dir_attrs.forget(ino);
        match reply? {
            Reply::Done => Ok(()),
            reply => self.core.attributes(&request, reply).map(drop),
        }
    }
}
