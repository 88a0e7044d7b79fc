//! Extended attributes, access control lists among them, asked of an inode's home.

use crate::client::{Client, unexpected};
use crate::route::Place;
use aze_proto::wire::Blob;
use aze_proto::{Code, Failure, Identity, Ino, Reply, Request, XattrHow};

/// Permission bits under a umask, for a new file: in a directory with a default access control list
/// the umask does not count, so the request names it.
pub fn mode_under(mode: u32, umask: u32) -> u32 {
    (mode & !umask & 0o7777) | (mode & umask & 0o777) << 16
}

impl Client {
    /// The value of an extended attribute: getxattr(2). Names are with their namespace, and
    /// `system.posix_acl_access` and `system.posix_acl_default` are in the Linux kernel's form.
    ///
    /// # Errors
    /// [`Code::NoAttribute`], [`Code::AccessDenied`], [`Code::Unsupported`] (another namespace than
    /// `user`, `trusted`, `security`), [`Code::OutOfRange`] (a name longer than 255 bytes).
    pub async fn get_xattr(&self, who: &Identity, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Failure> {
        let request = Request::GetXattr { ino, name: Blob(name.to_vec()) };
        match self.core.ask(who, Place::Home(ino), &request).await? {
            Reply::Xattr { value } => Ok(value.0),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// The names of the extended attributes that `who` may know of: listxattr(2).
    ///
    /// # Errors
    /// [`Code::Stale`] if there is no such inode any more.
    pub async fn list_xattr(&self, who: &Identity, ino: Ino) -> Result<Vec<Vec<u8>>, Failure> {
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
        let reply = self.core.ask(who, Place::Home(ino), &request).await;
        self.core.dir_attrs.forget(ino);
        match reply? {
            Reply::Done => Ok(()),
            reply => self.core.attributes(&request, reply).map(drop),
        }
    }
}
