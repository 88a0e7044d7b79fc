//! Who may do what: the rules of POSIX and Linux on owner, group and mode, as pure functions. An
//! `Identity` comes from the connection that proved it; these rules believe it.

use crate::acl::{self, Acl};
use crate::op::AttrSet;
use crate::tables::Inode;
use aze_proto::ids::Time;
use aze_proto::{Attr, Change, Code, Failure, FileKind, Identity, SetTime, Stub};

/// Set-user-id.
pub const SET_UID: u32 = 0o4000;
/// Set-group-id; on a directory: new files take its group.
pub const SET_GID: u32 = 0o2000;
/// Sticky; on a directory: only owners remove.
pub const STICKY: u32 = 0o1000;

/// The kinds of access to a file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Read data, or names.
    pub read: bool,
    /// Change data, or names.
    pub write: bool,
    /// Execute, or search.
    pub execute: bool,
}

impl Want {
    /// Read data, or names.
    pub const READ: Want = Want { read: true, write: false, execute: false };
    /// Change data.
    pub const WRITE: Want = Want { read: false, write: true, execute: false };
    /// Look a name up.
    pub const SEARCH: Want = Want { read: false, write: false, execute: true };
    /// Make, remove or rename a name.
    pub const CHANGE_NAMES: Want = Want { read: false, write: true, execute: true };

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.read) << 2 | u32::from(self.write) << 1 | u32::from(self.execute)
    }
}

/// Whether `identity` has the access that it wants to a file or directory.
pub fn may(identity: &Identity, inode: &Inode, want: Want) -> bool {
    let attr = &inode.attr;
    let list = inode.acl();
    allows(identity, attr.kind == FileKind::Directory, (attr.mode, attr.uid, attr.gid), list.as_ref(), want)
}

/// Whether `identity` has the access that it wants in a directory.
pub fn may_in(identity: &Identity, stub: &Stub, want: Want) -> bool {
    // The home gives out only lists that it has checked.
    let list = stub.acl.as_ref().and_then(|list| Acl::parse(&list.0).ok().flatten());
    allows(identity, true, (stub.mode, stub.uid, stub.gid), list.as_ref(), want)
}

fn allows(
    identity: &Identity,
    directory: bool,
    (mode, uid, gid): (u32, u32, u32),
    list: Option<&Acl>,
    want: Want,
) -> bool {
    if identity.is_root() {
        return directory || !want.execute || mode & 0o111 != 0;
    }
    if let Some(list) = list {
        return list.allows(identity, uid, gid, want);
    }
    // The first class that fits decides, even if a later one would allow more.
    let class = if identity.uid == uid {
        mode >> 6
    } else if identity.in_group(gid) {
        mode >> 3
    } else {
        mode
    };
    class & want.bits() == want.bits()
}

/// Whether `identity` may make a file of this kind at all: device files are for root.
pub fn may_make(identity: &Identity, kind: FileKind) -> bool {
    identity.is_root() || !matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}

/// Owner and mode of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewOwner {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits (12 bits).
    pub mode: u32,
}

/// Owner, group and mode of a file of `kind` made in the directory `stub` with the mode asked
/// for: inode(7) on the set-group-id bit of directories.
pub fn new_file(identity: &Identity, stub: &Stub, kind: FileKind, mode: u32) -> NewOwner {
    let inherits = stub.mode & SET_GID != 0;
    let gid = if inherits { stub.gid } else { identity.gid };
    let mut mode = if kind == FileKind::Symlink { 0o777 } else { mode & 0o7777 };
    if kind == FileKind::Directory {
        mode = if inherits { mode | SET_GID } else { mode };
    } else if !identity.is_root() && !identity.in_group(gid) {
        // Otherwise any user could make a program that runs with the directory's group.
        mode &= !SET_GID;
    }
    NewOwner { uid: identity.uid, gid, mode }
}

/// Whether the sticky bit of the directory keeps `identity` from removing or renaming a name of
/// an inode that belongs to `inode_uid`.
pub fn sticky_forbids(identity: &Identity, stub: &Stub, inode_uid: u32) -> bool {
    stub.mode & STICKY != 0 && !identity.is_root() && identity.uid != inode_uid && identity.uid != stub.uid
}

/// Whether `identity` may set the length: truncate(2). `opened`: it has been opened for writing,
/// when rights were checked.
///
/// # Errors
/// `IsDirectory`, `Invalid` (no regular file) or `AccessDenied`.
pub fn check_truncate(identity: &Identity, inode: &Inode, opened: bool) -> Result<(), Failure> {
    match inode.attr.kind {
        FileKind::File if opened || may(identity, inode, Want::WRITE) => Ok(()),
        FileKind::File => Err(Failure::new(Code::AccessDenied, format!("user {} may not write", identity.uid))),
        FileKind::Directory => Err(Code::IsDirectory.into()),
        _ => Err(Failure::new(Code::Invalid, "only regular files have a length that can be set")),
    }
}

/// What a change of attributes comes to, if `identity` may make it: chmod(2), chown(2),
/// utimensat(2). `now` is the time of the operation.
///
/// # Errors
/// `NotPermitted`, `AccessDenied` (time set to now without right to write), `Unsupported` (mode of
/// a symbolic link).
pub fn check_setattr(identity: &Identity, inode: &Inode, change: &Change, now: Time) -> Result<AttrSet, Failure> {
    let attr = &inode.attr;
    check_chmod(identity, attr, change)?;
    check_chown(identity, attr, change)?;
    check_times(identity, inode, change)?;
    let resolve = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::To { time } => time,
    };
    Ok(AttrSet {
        mode: new_mode(identity, attr, change),
        uid: change.uid,
        gid: change.gid,
        atime: change.atime.map(resolve),
        mtime: change.mtime.map(resolve),
    })
}

fn owns(identity: &Identity, attr: &Attr) -> bool {
    identity.is_root() || identity.uid == attr.uid
}

fn not_permitted(identity: &Identity, what: &str) -> Failure {
    Failure::new(Code::NotPermitted, format!("user {} may not {what}", identity.uid))
}

fn check_chmod(identity: &Identity, attr: &Attr, change: &Change) -> Result<(), Failure> {
    if change.mode.is_none() {
        return Ok(());
    }
    if attr.kind == FileKind::Symlink {
        return Err(Failure::new(Code::Unsupported, "a symbolic link has no mode of its own"));
    }
    if owns(identity, attr) { Ok(()) } else { Err(not_permitted(identity, "change the mode of another user's file")) }
}

fn check_chown(identity: &Identity, attr: &Attr, change: &Change) -> Result<(), Failure> {
    if identity.is_root() || (change.uid.is_none() && change.gid.is_none()) {
        return Ok(());
    }
    if identity.uid != attr.uid || change.uid.is_some_and(|uid| uid != attr.uid) {
        return Err(not_permitted(identity, "change the owner"));
    }
    match change.gid {
        Some(gid) if gid != attr.gid && !identity.in_group(gid) => {
            Err(not_permitted(identity, &format!("give a file to group {gid}")))
        }
        _ => Ok(()),
    }
}

/// A user who may write may set both times to now; anything else is for the owner.
fn check_times(identity: &Identity, inode: &Inode, change: &Change) -> Result<(), Failure> {
    match (change.atime, change.mtime) {
        (None, None) => Ok(()),
        _ if owns(identity, &inode.attr) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) if may(identity, inode, Want::WRITE) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => {
            Err(Failure::new(Code::AccessDenied, format!("user {} may not write", identity.uid)))
        }
        _ => Err(not_permitted(identity, "set the times of another user's file")),
    }
}

/// The mode after the change, if it changes: a set-id bit never outlives the ownership it was
/// given for. That holds for root too, as chown(2) says of Linux since 2.2.13.
fn new_mode(identity: &Identity, attr: &Attr, change: &Change) -> Option<u32> {
    let gid = change.gid.unwrap_or(attr.gid);
    let mut mode = change.mode.map_or(attr.mode, |mode| mode & 0o7777);
    if change.mode.is_some() && !identity.is_root() && !identity.in_group(gid) {
        mode &= !SET_GID;
    }
    if attr.kind != FileKind::Directory && (change.uid.is_some() || change.gid.is_some()) {
        mode = without_set_id(identity, attr.gid, mode);
    }
    (change.mode.is_some() || mode != attr.mode).then_some(mode)
}

/// The mode of a file whose data `identity` has changed, if that takes set-id bits from it: what
/// runs with its owner's rights is not to be rewritten by another user. Root keeps them, as
/// `CAP_FSETID` does (capabilities(7)).
pub fn mode_after_write(identity: &Identity, attr: &Attr) -> Option<u32> {
    if identity.is_root() || attr.kind != FileKind::File {
        return None;
    }
    let mode = without_set_id(identity, attr.gid, attr.mode);
    (mode != attr.mode).then_some(mode)
}

/// Without group execution the set-group-id bit gives no user anything, and a user of the group
/// may keep it: inode(7).
fn without_set_id(identity: &Identity, gid: u32, mode: u32) -> u32 {
    let keeps_group = mode & 0o010 == 0 && (identity.is_root() || identity.in_group(gid));
    mode & !(SET_UID | if keeps_group { 0 } else { SET_GID })
}

/// Whether a change of a directory's attributes takes from any user the right to go through it:
/// only then do paths through it that clients have cached become wrong.
pub fn loses_search(before: &Attr, after: &Attr) -> bool {
    before.uid != after.uid || before.gid != after.gid || before.mode & 0o111 & !after.mode != 0
}

impl Inode {
    /// Its access control list, if it has one beyond its mode.
    pub fn acl(&self) -> Option<Acl> {
        // A stored list was checked before.
        Acl::parse(&self.xattr(acl::ACCESS)?.0).ok().flatten()
    }
}
