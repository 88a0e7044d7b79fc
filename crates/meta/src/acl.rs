//! Access control lists, as acl(5) has them, in the bytes in which the Linux kernel hands them over
//! as extended attributes (version 2 of `posix_acl_xattr`).

use crate::access::Want;
use crate::xattr::Xattr;
use aze_proto::wire::Blob;
pub use aze_proto::xattr::{ACL_ACCESS as ACCESS, ACL_DEFAULT as DEFAULT};
use aze_proto::{Code, Failure, FileKind, Identity};

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of entries that have none.
const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

fn invalid(what: &str) -> Failure {
    Failure::new(Code::Invalid, format!("an access control list {what}"))
}

impl Acl {
    /// Reads a list; one without entries is none.
    ///
    /// # Errors
    /// `Unsupported` (another version), `Invalid`.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>, Failure> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or_else(|| invalid("without a version"))?;
        if head != VERSION.to_le_bytes() {
            return Err(Failure::new(
                Code::Unsupported,
                format!("an access control list of another version than {VERSION}"),
            ));
        }
        if rest.len() % ENTRY_BYTES != 0 {
            return Err(invalid("with half an entry"));
        }
        let entries = rest.chunks_exact(ENTRY_BYTES).map(|entry| Entry {
            tag: u16::from_le_bytes([entry[0], entry[1]]),
            perm: u16::from_le_bytes([entry[2], entry[3]]),
            id: u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]),
        });
        let list = Acl { entries: entries.collect() };
        if list.entries.is_empty() {
            return Ok(None);
        }
        list.check()?;
        Ok(Some(list))
    }

    /// One owner, users, one group, groups, the mask where there are users or groups, others: in
    /// this order.
    fn check(&self) -> Result<(), Failure> {
        const ORDER: [u16; 6] = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        let mut last = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            let place = ORDER.iter().position(|tag| *tag == entry.tag).ok_or_else(|| invalid("with an unknown tag"))?;
            let named = matches!(entry.tag, USER | GROUP);
            if place < last || index > 0 && place == last && !named {
                return Err(invalid("whose entries are out of order"));
            }
            if entry.perm & !7 != 0 {
                return Err(invalid("with unknown permissions"));
            }
            if named && entry.id == NOBODY {
                return Err(invalid("with an entry for nobody"));
            }
            last = place;
        }
        let has = |tag| self.perm(tag).is_some();
        if !has(USER_OBJ) || !has(GROUP_OBJ) || !has(OTHER) {
            return Err(invalid("without owner, group or others"));
        }
        if (has(USER) || has(GROUP)) && !has(MASK) {
            return Err(invalid("with named users or groups and without a mask"));
        }
        Ok(())
    }

    /// The bytes of the list. Entries that have no id say so as the kernel does.
    pub fn to_blob(&self) -> Blob {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.tag.to_le_bytes());
            bytes.extend_from_slice(&entry.perm.to_le_bytes());
            let id = if matches!(entry.tag, USER | GROUP) { entry.id } else { NOBODY };
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        Blob(bytes)
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    fn perm_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.entries.iter_mut().find(|entry| entry.tag == tag).map(|entry| &mut entry.perm)
    }

    /// What the group bits of the mode show: the mask, or without one the group.
    fn group_class(&self) -> u16 {
        if self.perm(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// The nine permission bits that the list comes to.
    pub fn mode(&self) -> u32 {
        let bits = |tag| u32::from(self.perm(tag).unwrap_or(0));
        bits(USER_OBJ) << 6 | bits(self.group_class()) << 3 | bits(OTHER)
    }

    /// Whether the list says no more than the nine bits do.
    pub fn is_only_mode(&self) -> bool {
        self.entries.iter().all(|entry| matches!(entry.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// The list after chmod(2): the mask, where there is one, takes the group's bits.
    pub fn with_mode(mut self, mode: u32) -> Acl {
        for (tag, shift) in [(USER_OBJ, 6), (self.group_class(), 3), (OTHER, 0)] {
            if let Some(perm) = self.perm_mut(tag) {
                *perm = (mode >> shift & 7) as u16;
            }
        }
        self
    }

    /// Whether the list gives `identity` all of `want`: the first entry that fits decides, but of the
    /// groups any that gives all of it.
    pub fn allows(&self, identity: &Identity, owner: u32, group: u32, want: Want) -> bool {
        let want = want.bits() as u16;
        let gives = |perm: u16| perm & want == want;
        if identity.uid == owner {
            return self.perm(USER_OBJ).is_some_and(gives);
        }
        let mask = self.perm(MASK).unwrap_or(7);
        if let Some(entry) = self.entries.iter().find(|entry| entry.tag == USER && entry.id == identity.uid) {
            return gives(entry.perm & mask);
        }
        let mut groups = self.entries.iter().filter(|entry| match entry.tag {
            GROUP_OBJ => identity.in_group(group),
            GROUP => identity.in_group(entry.id),
            _ => false,
        });
        match groups.next() {
            Some(first) => std::iter::once(first).chain(groups).any(|entry| gives(entry.perm & mask)),
            None => self.perm(OTHER).is_some_and(gives),
        }
    }
}

/// What a new file gets from its directory, besides owner and group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Its permission bits.
    pub mode: u32,
    /// Its lists.
    pub xattrs: Vec<Xattr>,
}

/// The rights of a file made with the mode asked for (from bit 16 on the bits that the umask has
/// taken), in a directory with this default list: each class gets what both give, and the umask does
/// not count. Without a default list the mode stays.
pub fn inherited(default: Option<&Blob>, kind: FileKind, asked: u32) -> Inherited {
    let mode = asked & 0o7777;
    // A stored list was checked before. Symbolic links have no rights.
    let list = default.filter(|_| kind != FileKind::Symlink).and_then(|list| Acl::parse(&list.0).ok().flatten());
    let Some(default) = list else { return Inherited { mode, xattrs: Vec::new() } };
    let mode = mode | asked >> 16 & 0o777;
    let mut access = default.clone();
    for (tag, shift) in [(USER_OBJ, 6), (default.group_class(), 3), (OTHER, 0)] {
        if let Some(perm) = access.perm_mut(tag) {
            *perm &= (mode >> shift & 7) as u16;
        }
    }
    let mut xattrs = Vec::new();
    if !access.is_only_mode() {
        xattrs.push(Xattr { name: Blob(ACCESS.to_vec()), value: access.to_blob() });
    }
    if kind == FileKind::Directory {
        xattrs.push(Xattr { name: Blob(DEFAULT.to_vec()), value: default.to_blob() });
    }
    Inherited { mode: mode & !0o777 | access.mode(), xattrs }
}
