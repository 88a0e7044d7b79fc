//! Calls on attributes: stat(2), chmod(2), access(2), extended attributes and the like.

use crate::call::{Call, Place};
use crate::channel::Answer;
use crate::description::{Description, Kind};
use crate::error::{Result, errno};
use crate::mapped::Changed;
use crate::{stat, sys};
use aze_calls::indexes::may_access;
use aze_proto::attr::{Attr, Change, FileKind, Identity, SetTime, XattrHow};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::{Ino, Time};

/// Rights of a program of its own, as on a mount: it would have no effect.
const CAPABILITY: &[u8] = b"security.capability";

/// Access control lists in the kernel's form (acl(5)): its version, and how long its head and an entry are.
const LIST: &[u8] = b"system.posix_acl_access";
const LIST_HEAD_BYTES: usize = 4;
const LIST_ENTRY_BYTES: usize = 8;

/// A namespace without a name in it.
const NO_NAME: &[u8] = b"user.";

/// What no attribute can be: there already, and new.
const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;

/// Longest name of an extended attribute, in bytes (xattr(7)).
const XATTR_NAME_BYTES_MAX: usize = 255;

impl Call<'_> {
    /// stat(2).
    pub fn stat(&self) -> Result<Answer> {
        let attr = match self.place(self.request.desc, self.bytes)? {
            Place::Itself(description) => self.attr_of(&description)?,
            Place::Below(below) if below.itself().is_some() => self.attr_of(&*self.description()?)?,
            Place::Below(below) => {
                let attr = self.resolve(&below, self.follows())?;
                match attr.kind {
                    // Its counts are gathered from the servers that hold its entries.
                    FileKind::Directory => self.agent.wait(self.agent.client().getattr(self.agent.who(), attr.ino))?,
                    _ => attr,
                }
            }
        };
        Ok(Answer::with(sys::bytes_of(&stat::of(&attr)).to_vec()))
    }

    /// fstat(2).
    pub fn stat_open(&self) -> Result<Answer> {
        let attr = self.attr_of(&*self.description()?)?;
        Ok(Answer::with(sys::bytes_of(&stat::of(&attr)).to_vec()))
    }

    /// The attributes of a description's inode.
    ///
    /// # Errors
    /// Those of every request.
    pub fn attr_of(&self, description: &Description) -> Result<Attr> {
        let (client, who) = (self.agent.client(), self.agent.who());
        match self.agent.wait_for(client.getattr(who, description.ino))? {
            Ok(attr) => {
                description.tell(&attr);
                Ok(attr)
            }
            // It was removed, and the servers keep files only while they are open: a program that has it may still ask.
            Err(Failure { code: Code::Stale, .. }) if !matches!(description.kind, Kind::File(_)) => {
                Ok(description.removed_attr())
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// truncate(2).
    pub fn truncate(&self) -> Result<Answer> {
        let len = i64::try_from(self.request.len).map_err(|_| errno(libc::EINVAL))? as u64;
        let below = self.below(self.request.desc, self.bytes)?;
        let attr = self.resolve(&below, true)?;
        self.agent.mapped.changing(self.agent, attr.ino, || {
            self.agent.wait(self.agent.client().truncate(self.agent.who(), attr.ino, len, None))?;
            Ok((Answer::default(), Changed::Len(len)))
        })
    }

    /// chmod(2).
    pub fn chmod(&self) -> Result<Answer> {
        let (ino, kind) = self.target(self.bytes)?;
        if kind == FileKind::Symlink {
            return Err(errno(libc::EOPNOTSUPP));
        }
        self.change(ino, &Change { mode: Some(self.request.b as u32 & 0o7777), ..Change::default() })
    }

    /// chown(2).
    pub fn chown(&self) -> Result<Answer> {
        let (ino, _) = self.target(self.bytes)?;
        let id = |id: u64| (id as u32 != u32::MAX).then_some(id as u32);
        self.change(ino, &Change { uid: id(self.request.b), gid: id(self.request.c), ..Change::default() })
    }

    /// utimensat(2).
    pub fn set_times(&self) -> Result<Answer> {
        let (times, path) = sys::take::<[libc::timespec; 2]>(self.bytes).ok_or(errno(libc::EINVAL))?;
        let [atime, mtime] = [time_of(&times[0]), time_of(&times[1])];
        if let (Ok(None), Ok(None)) = (&atime, &mtime) {
            // Linux does not even look whether the file is there.
            return Ok(Answer::default());
        }
        let (ino, _) = self.target(path)?;
        let (atime, mtime) = (atime?, mtime?);
        self.change(ino, &Change { atime, mtime, ..Change::default() })
    }

    fn change(&self, ino: Ino, change: &Change) -> Result<Answer> {
        if *change != Change::default() {
            self.agent.wait(self.agent.client().setattr(self.agent.who(), ino, change))?;
        }
        Ok(Answer::default())
    }

    /// access(2). The agent asks with its effective ids, which are those of its programs, too.
    pub fn access(&self) -> Result<Answer> {
        let mode = self.request.b as i32;
        if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
            return Err(errno(libc::EINVAL));
        }
        let attr = match self.place(self.request.desc, self.bytes)? {
            Place::Itself(description) => self.attr_of(&description)?,
            Place::Below(below) => self.resolve(&below, self.follows())?,
        };
        if self.may(&attr, mode as u32)? { Ok(Answer::default()) } else { Err(errno(libc::EACCES)) }
    }

    fn may(&self, attr: &Attr, wanted: u32) -> Result<bool> {
        let (client, who) = (self.agent.client(), self.agent.who());
        if attr.kind == FileKind::Directory && who.is_root() {
            return Ok(true);
        }
        if let Some(may) = may_access(who.uid, attr.uid, attr.mode, wanted) {
            return Ok(may);
        }
        let allows = |class: u32| class & wanted == wanted;
        match self.agent.wait_for(client.get_xattr(who, attr.ino, LIST))? {
            Ok(list) => Ok(list_allows(&list, who, attr.gid, wanted)),
            Err(Failure { code: Code::NoAttribute | Code::Unsupported, .. }) => {
                Ok(allows(if who.in_group(attr.gid) { attr.mode >> 3 } else { attr.mode }))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// statfs(2).
    pub fn stat_fs(&self) -> Result<Answer> {
        let space = self.agent.wait(self.agent.client().statfs())?;
        let told = stat::of_space(&space, self.agent.welcome().dev);
        Ok(Answer::with(sys::bytes_of(&told).to_vec()))
    }

    /// setxattr(2).
    pub fn set_xattr(&mut self) -> Result<Answer> {
        let (name, path) = self.xattr()?;
        if name == CAPABILITY {
            return Err(errno(libc::EOPNOTSUPP));
        }
        let how = match self.request.b as i32 {
            0 => XattrHow::Any,
            libc::XATTR_CREATE => XattrHow::Create,
            libc::XATTR_REPLACE | BOTH => XattrHow::Replace,
            _ => return Err(errno(libc::EINVAL)),
        };
        let (ino, _) = self.target(path)?;
        if name == NO_NAME {
            return Err(errno(libc::EINVAL));
        }
        if self.request.b as i32 == BOTH {
            self.agent.wait(self.agent.client().get_xattr(self.agent.who(), ino, name))?;
            return Err(errno(libc::EEXIST));
        }
        let (name, agent, len) = (name.to_vec(), self.agent, self.window_len().map_err(|_| errno(libc::E2BIG))?);
        let value = self.window.bytes(len);
        agent.wait(agent.client().set_xattr(agent.who(), ino, &name, value, how))?;
        Ok(Answer::default())
    }

    /// getxattr(2).
    pub fn get_xattr(&mut self) -> Result<Answer> {
        let (name, path) = self.xattr()?;
        let (ino, kind) = self.target(path)?;
        if name == CAPABILITY {
            return Err(errno(libc::ENODATA));
        }
        let value = match self.agent.wait_for(self.agent.client().get_xattr(self.agent.who(), ino, name))? {
            // A directory that was removed while it is open.
            Err(Failure { code: Code::Stale, .. }) if kind == FileKind::Directory => return Err(errno(libc::ENODATA)),
            value => value?,
        };
        self.give(&value)
    }

    /// listxattr(2).
    pub fn list_xattr(&mut self) -> Result<Answer> {
        let (ino, kind) = self.target(self.bytes)?;
        let names = match self.agent.wait_for(self.agent.client().list_xattr(self.agent.who(), ino))? {
            Err(Failure { code: Code::Stale, .. }) if kind == FileKind::Directory => Vec::new(),
            names => names?,
        };
        let list: Vec<u8> = names.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
        self.give(&list)
    }

    /// removexattr(2).
    pub fn remove_xattr(&self) -> Result<Answer> {
        let (name, path) = self.xattr()?;
        let (ino, _) = self.target(path)?;
        self.agent.wait(self.agent.client().remove_xattr(self.agent.who(), ino, name))?;
        Ok(Answer::default())
    }

    /// Name and path of a request about an extended attribute.
    fn xattr(&self) -> Result<(&[u8], &[u8])> {
        let (name, path) = self.strings()?;
        match name.len() {
            1..=XATTR_NAME_BYTES_MAX => Ok((name, path)),
            _ => Err(errno(libc::ERANGE)),
        }
    }

    /// Without room the program wants to know how much it takes.
    fn give(&mut self, bytes: &[u8]) -> Result<Answer> {
        if self.request.len > 0 {
            let room = usize::try_from(self.request.len).unwrap_or(usize::MAX);
            let window = self.window.bytes(room);
            window.get_mut(..bytes.len()).ok_or(errno(libc::ERANGE))?.copy_from_slice(bytes);
        }
        Ok(Answer::of(bytes.len() as u64))
    }
}

/// A time of utimensat(2); `None` leaves it as it is.
fn time_of(time: &libc::timespec) -> Result<Option<SetTime>> {
    match (time.tv_sec, time.tv_nsec) {
        (_, libc::UTIME_NOW) => Ok(Some(SetTime::Now)),
        (_, libc::UTIME_OMIT) => Ok(None),
        (seconds, nanoseconds @ 0..1_000_000_000) => {
            // Times before 1970 and after 2554 become the nearest one that can be kept, as on a mount.
            let ns = u64::try_from(seconds).map_or(0, |seconds| seconds.saturating_mul(1_000_000_000));
            let within = if seconds < 0 { 0 } else { nanoseconds as u64 };
            Ok(Some(SetTime::To { time: Time(ns.saturating_add(within)) }))
        }
        _ => Err(errno(libc::EINVAL)),
    }
}

/// Whether an access control list lets a user who is not the owner have all that is wanted (acl(5), "access check algorithm").
fn list_allows(list: &[u8], who: &Identity, gid: u32, wanted: u32) -> bool {
    let entries = list.get(LIST_HEAD_BYTES..).unwrap_or_default().chunks_exact(LIST_ENTRY_BYTES).map(|entry| {
        let short = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        (short(0), u32::from(short(2)), id)
    });
    let entries: Vec<(u16, u32, u32)> = entries.collect();
    const USER: u16 = 2;
    const GROUP_OBJ: u16 = 4;
    const GROUP: u16 = 8;
    const MASK: u16 = 16;
    const OTHER: u16 = 32;
    let of = |tag: u16| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
    let mask = of(MASK).unwrap_or(7);
    if let Some((_, rights, _)) = entries.iter().find(|(tag, _, id)| *tag == USER && *id == who.uid) {
        return rights & mask & wanted == wanted;
    }
    let mut groups = entries.iter().filter(|(tag, _, id)| match *tag {
        GROUP_OBJ => who.in_group(gid),
        GROUP => who.in_group(*id),
        _ => false,
    });
    let mut is_in_one = false;
    let is_allowed = groups.by_ref().any(|(_, rights, _)| {
        is_in_one = true;
        rights & mask & wanted == wanted
    });
    if is_in_one { is_allowed } else { of(OTHER).unwrap_or(0) & wanted == wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            bytes.extend([&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
        }
        bytes
    }

    #[test]
    fn a_list_is_looked_through_in_its_order() {
        let who = |uid, gid, groups: &[u32]| Identity { uid, gid, groups: groups.to_vec() };
        let list = list(&[(1, 7, 0), (2, 7, 50), (2, 0, 51), (4, 4, 0), (8, 6, 70), (16, 6, 0), (32, 1, 0)]);
        let cases = [
            (who(50, 1, &[]), 6, true),
            (who(50, 1, &[]), 1, false),
            (who(51, 70, &[]), 4, false),
            (who(9, 10, &[]), 4, true),
            (who(9, 10, &[]), 2, false),
            (who(9, 10, &[70]), 2, true),
            (who(9, 10, &[70]), 1, false),
            (who(9, 9, &[]), 1, true),
            (who(9, 9, &[]), 4, false),
        ];
        for (who, wanted, allowed) in cases {
            assert_eq!(list_allows(&list, &who, 10, wanted), allowed, "{who:?} wants {wanted}");
        }
    }

    #[test]
    fn times_before_1970_and_wrong_ones() {
        let time = |tv_sec, tv_nsec| time_of(&libc::timespec { tv_sec, tv_nsec });
        assert_eq!(time(3, 5), Ok(Some(SetTime::To { time: Time(3_000_000_005) })));
        assert_eq!(time(-3, 5), Ok(Some(SetTime::To { time: Time(0) })));
        assert_eq!((time(0, libc::UTIME_NOW), time(9, libc::UTIME_OMIT)), (Ok(Some(SetTime::Now)), Ok(None)));
        assert_eq!(time(0, 1_000_000_000), Err(errno(libc::EINVAL)));
        assert_eq!(time(0, -1), Err(errno(libc::EINVAL)));
    }
}
