//! Extended attributes: who may do what with which name, as xattr(7) says of Linux, and the change
//! of an inode's own. What the two names of access control lists mean is in `acl`.

use crate::access::{Want, may};
use crate::acl::Acl;
use crate::inodes;
use crate::shard::{Shard, Step};
use crate::tables::{Inode, Tables};
use aze_proto::ids::{Ino, Time};
use aze_proto::limits::{XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX};
use aze_proto::wire::Blob;
pub use aze_proto::xattr::Xattr;
use aze_proto::xattr::{XattrSpace, absent};
use aze_proto::{Attr, Code, Failure, FileKind, Identity, XattrHow};

/// How the names of attributes begin in which a volume keeps notes of its own.
const NOTES: &[u8] = b"user.azekura.";

/// A change of an extended attribute that may be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrSet {
    /// The new value; `None` removes it.
    pub value: Option<Blob>,
    /// The permission bits that go with it, if they change.
    pub mode: Option<u32>,
    /// It need not be there to be removed.
    pub if_any: bool,
}

fn denied(identity: &Identity, what: &str) -> Failure {
    Failure::new(Code::AccessDenied, format!("user {} may not {what}", identity.uid))
}

/// The value of an extended attribute, for a user who may read it.
///
/// # Errors
/// `NoAttribute`, `AccessDenied`, `OutOfRange` (the name's length), `Unsupported` (its namespace).
pub fn get(identity: &Identity, inode: &Inode, name: &[u8]) -> Result<Blob, Failure> {
    let attr = &inode.attr;
    match XattrSpace::of(name)? {
        XattrSpace::User if !matches!(attr.kind, FileKind::File | FileKind::Directory) => return Err(absent(name)),
        XattrSpace::User if !may(identity, inode, Want::READ) => return Err(denied(identity, "read")),
        XattrSpace::Trusted if !identity.is_root() => return Err(absent(name)),
        XattrSpace::Acl { .. } if attr.kind == FileKind::Symlink => {
            return Err(Failure::new(Code::Unsupported, "a symbolic link has no rights of its own"));
        }
        _ => {}
    }
    inode.xattr(name).cloned().ok_or_else(|| absent(name))
}

/// The names of the extended attributes that a user may know of.
pub fn list(identity: &Identity, inode: &Inode) -> Vec<Blob> {
    let names = inode.rare.get().xattrs.iter().map(|xattr| xattr.name.clone());
    names.filter(|name| identity.is_root() || !name.0.starts_with(b"trusted.")).collect()
}

/// What setting (or removing, with `None`) an extended attribute comes to, if `identity` may do it.
///
/// # Errors
/// `NotPermitted`, `AccessDenied`, `Invalid` (an access control list that is none), `OutOfRange`,
/// `Limit` (a value that is too long), `Unsupported`.
pub fn check_set(identity: &Identity, inode: &Inode, name: &[u8], value: Option<&Blob>) -> Result<XattrSet, Failure> {
    let attr = &inode.attr;
    let space = XattrSpace::of(name)?;
    if let Some(value) = value.filter(|value| value.0.len() > XATTR_VALUE_BYTES_MAX) {
        let detail = format!("a value of {} bytes: at most {XATTR_VALUE_BYTES_MAX} are possible", value.0.len());
        return Err(Failure::new(Code::Limit, detail));
    }
    let owner = identity.is_root() || identity.uid == attr.uid;
    let refused = |what: &str| Err(Failure::new(Code::NotPermitted, format!("user {} may not {what}", identity.uid)));
    match space {
        XattrSpace::User if !matches!(attr.kind, FileKind::File | FileKind::Directory) => {
            return refused("give user attributes to what is neither file nor directory");
        }
        XattrSpace::User if attr.kind == FileKind::Directory && attr.mode & 0o1000 != 0 && !owner => {
            return refused("change attributes of a sticky directory of another user");
        }
        XattrSpace::User if !may(identity, inode, Want::WRITE) => return Err(denied(identity, "write")),
        XattrSpace::Trusted | XattrSpace::Security if !identity.is_root() => {
            return refused("change trusted and security attributes: only root may");
        }
        XattrSpace::Acl { default } => return check_set_acl(identity, attr, default, owner, value),
        _ => {}
    }
    Ok(XattrSet { value: value.cloned(), mode: None, if_any: false })
}

fn check_set_acl(
    identity: &Identity,
    attr: &Attr,
    default: bool,
    owner: bool,
    value: Option<&Blob>,
) -> Result<XattrSet, Failure> {
    if attr.kind == FileKind::Symlink {
        return Err(Failure::new(Code::Unsupported, "a symbolic link has no rights of its own"));
    }
    if !owner {
        let detail = format!("user {} may not change the access control list of another user's file", identity.uid);
        return Err(Failure::new(Code::NotPermitted, detail));
    }
    // An empty list is none.
    let list = value.map(|value| Acl::parse(&value.0)).transpose()?.flatten();
    if default && attr.kind != FileKind::Directory && list.is_some() {
        return Err(Failure::new(Code::AccessDenied, "only directories have a default access control list"));
    }
    match list {
        None => Ok(XattrSet { value: None, mode: None, if_any: true }),
        Some(list) if default => Ok(XattrSet { value: Some(list.to_blob()), mode: None, if_any: true }),
        Some(list) => {
            let mut mode = attr.mode & !0o777 | list.mode();
            if !identity.is_root() && !identity.in_group(attr.gid) {
                mode &= !crate::access::SET_GID;
            }
            let value = (!list.is_only_mode()).then(|| list.to_blob());
            Ok(XattrSet { value, mode: Some(mode), if_any: true })
        }
    }
}

impl Inode {
    /// The value of an extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Option<&Blob> {
        self.rare.get().xattrs.iter().find(|xattr| xattr.name.0 == name).map(|xattr| &xattr.value)
    }

    /// Sets or removes an extended attribute.
    pub(crate) fn put_xattr(&mut self, name: &[u8], value: Option<Blob>) {
        self.rare.change(|parts| {
            parts.xattrs.retain(|xattr| xattr.name.0 != name);
            if let Some(value) = value {
                let place = parts.xattrs.partition_point(|xattr| xattr.name.0.as_slice() < name);
                parts.xattrs.insert(place, Xattr { name: Blob(name.to_vec()), value });
            }
        });
        self.attr.has_xattrs = !self.rare.get().xattrs.is_empty();
    }

    pub(crate) fn check_room(&self, name: &[u8], value: &Blob) -> Result<(), Failure> {
        let others = || self.rare.get().xattrs.iter().filter(|xattr| xattr.name.0 != name);
        // In a list each name ends with a NUL.
        let names: usize = others().map(|xattr| xattr.name.0.len() + 1).sum::<usize>() + name.len() + 1;
        let values: usize = others().map(|xattr| xattr.value.0.len()).sum::<usize>() + value.0.len();
        if names > XATTR_LIST_BYTES_MAX || names + values > XATTRS_BYTES_MAX {
            let detail = format!(
                "extended attributes of one file: at most {XATTR_LIST_BYTES_MAX} bytes of names and {XATTRS_BYTES_MAX} in all"
            );
            return Err(Failure::new(Code::NoSpace, detail));
        }
        Ok(())
    }
}

impl<T: Tables> Shard<T> {
    pub(crate) fn set_xattr(&mut self, ino: Ino, name: &Blob, set: &XattrSet, how: XattrHow, time: Time) -> Step {
        let inode = self.here(ino)?;
        let found = inode.xattr(&name.0).is_some();
        match (how, &set.value) {
            (XattrHow::Create, _) if found => return Err(Code::Exists.into()),
            (XattrHow::Replace, _) if !found => return Err(absent(&name.0)),
            (_, None) if !found && !set.if_any => return Err(absent(&name.0)),
            (_, Some(value)) => inode.check_room(&name.0, value)?,
            _ => {}
        }
        self.change(ino, |inode| {
            // What the volume notes of itself is no attribute of the backing.
            if !name.0.starts_with(NOTES) {
                inode.change_backing(|backing| backing.attributes_changed = true);
            }
            inode.put_xattr(&name.0, set.value.clone());
            inode.attr.mode = set.mode.map_or(inode.attr.mode, |mode| mode & 0o7777);
            inodes::changed(&mut inode.attr, time);
        })
    }
}
