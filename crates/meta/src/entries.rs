//! What operations do to names: make, find, remove, set, lock. The rules are those of open(2),
//! unlink(2), rmdir(2), link(2) and rename(2), as far as one shard can decide them.

use crate::Rare;
use crate::op::NewFile;
use crate::shard::{DirDelta, Effects, Shard, Step};
use crate::tables::{EntryKey, EntryValue, Inode, Lock, Role, Tables};
use crate::xattr::Xattr;
use aze_proto::ids::{Generation, Ino, MapEpoch, Time, TxId};
use aze_proto::limits::{CHUNK_BITS_MAX, CHUNK_BITS_MIN, TARGET_BYTES_MAX};
use aze_proto::message::Victim;
use aze_proto::place::Layout;
use aze_proto::{Attr, Code, Failure, FileKind, Reply, Spread};

/// Permission, set-id and sticky bits.
pub(crate) const MODE_BITS: u32 = 0o7777;

/// Whether an operation may touch an entry.
enum LockCheck {
    /// It may: the entry is not locked, or by the transaction for which it acts.
    Mine,
    /// The transaction for which it acts does not hold the entry any more: it has been done.
    Over,
}

impl<T: Tables> Shard<T> {
    pub(crate) fn root(&mut self, uid: u32, gid: u32, mode: u32, born: MapEpoch, chunk_bits: u8, time: Time) -> Step {
        if !self.is_home(Ino::ROOT) {
            return Err(Failure::new(Code::Invalid, format!("the root directory is not made in shard {}", self.id)));
        }
        if self.tables.inode(Ino::ROOT).is_some() {
            return Err(Code::Exists.into());
        }
        let new = NewFile {
            kind: FileKind::Directory,
            mode,
            uid,
            gid,
            rdev: 0,
            target: Default::default(),
            born,
            chunk_bits,
            layout: Layout::new(Ino::ROOT.prefix(), self.shards),
            private: false,
            over_backing: false,
        };
        new.check()?;
        let inode = new.inode(Ino::ROOT, Ino::ROOT, time);
        let attr = inode.attr.clone();
        self.tables.insert_inode(inode);
        Ok((Reply::Attributes { attr: attr.clone() }, Effects { attr: Some(attr), ..Effects::default() }))
    }

    pub(crate) fn create(
        &mut self,
        key: &EntryKey,
        new: &NewFile,
        exclusive: bool,
        xattrs: &[Xattr],
        time: Time,
    ) -> Step {
        self.check_mine(key)?;
        self.check_lock(key, None)?;
        if let Some(found) = self.tables.entry(key) {
            return self.find(found, new.kind, exclusive);
        }
        new.check()?;
        let ino = self.issue(key.hash.prefix())?;
        let ino = if new.private { ino.of_private_directory() } else { ino };
        let ino = if new.over_backing { ino.of_backing() } else { ino };
        let mut inode = new.inode(ino, key.parent, time);
        for xattr in xattrs {
            inode.put_xattr(&xattr.name.0, Some(xattr.value.clone()));
        }
        let attr = inode.attr.clone();
        self.tables.insert_inode(inode);
        self.tables.insert_entry(key, EntryValue { ino, kind: new.kind });
        let delta = delta(key.parent, None, Some(new.kind));
        let reply = Reply::Entry { ino, kind: new.kind, attr: Some(attr.clone()), created: true };
        Ok((reply, Effects { delta: Some(delta), attr: Some(attr), ..Effects::default() }))
    }

    /// Creation meets a name that is there: open(2) without `O_EXCL` takes it.
    fn find(&self, found: EntryValue, wanted: FileKind, exclusive: bool) -> Step {
        if exclusive || wanted != FileKind::File {
            return Err(Code::Exists.into());
        }
        if found.kind == FileKind::Directory {
            return Err(Code::IsDirectory.into());
        }
        let attr = self.tables.inode(found.ino).map(|inode| inode.attr.clone());
        let reply = Reply::Entry { ino: found.ino, kind: found.kind, attr: attr.clone(), created: false };
        Ok((reply, Effects { attr, ..Effects::default() }))
    }

    pub(crate) fn remove(
        &mut self,
        key: &EntryKey,
        only: Option<Ino>,
        moved: bool,
        under: Option<TxId>,
        time: Time,
    ) -> Step {
        self.check_mine(key)?;
        if let LockCheck::Over = self.check_lock(key, under)? {
            return Ok((Reply::Done, Effects::default()));
        }
        let value = self.tables.entry(key).ok_or(Code::NotFound)?;
        match only {
            Some(ino) => self.check_leads_to(value, ino)?,
            None if value.kind == FileKind::Directory => return Err(Code::IsDirectory.into()),
            None => {}
        }
        let mut effects = Effects { delta: Some(delta(key.parent, Some(value.kind), None)), ..Effects::default() };
        if !moved {
            self.check_replaceable(value)?;
        }
        self.note_gone(key, value.ino, time);
        if !moved {
            self.lose_name(value, time, &mut effects);
        }
        effects.removed = Some(Victim { ino: value.ino, kind: value.kind });
        self.tables.remove_entry(key);
        self.end_lock(key, under);
        Ok((Reply::Done, effects))
    }

    pub(crate) fn insert(
        &mut self,
        key: &EntryKey,
        value: EntryValue,
        replace: bool,
        under: Option<TxId>,
        answer: Option<&Attr>,
        time: Time,
    ) -> Step {
        self.check_mine(key)?;
        let reply = answer.map_or(Reply::Done, |attr| Reply::Attributes { attr: attr.clone() });
        if let LockCheck::Over = self.check_lock(key, under)? {
            return Ok((reply, Effects::default()));
        }
        let old = self.tables.entry(key);
        let mut effects = Effects::default();
        if let Some(old) = old {
            if !replace {
                return Err(Code::Exists.into());
            }
            if old.ino != value.ino {
                check_kinds(old.kind, value.kind)?;
                self.check_replaceable(old)?;
                self.note_gone(key, old.ino, time);
                self.lose_name(old, time, &mut effects);
                effects.removed = Some(Victim { ino: old.ino, kind: old.kind });
            }
        }
        if old.is_none_or(|old| old.ino != value.ino) {
            self.tables.insert_entry(key, value);
            self.note_back(key, value.ino);
            effects.delta = Some(delta(key.parent, old.map(|old| old.kind), Some(value.kind)));
        }
        effects.attr = self.tables.inode(value.ino).map(|inode| inode.attr.clone());
        self.end_lock(key, under);
        Ok((reply, effects))
    }

    pub(crate) fn exchange(&mut self, key: &EntryKey, value: EntryValue, under: TxId, time: Time) -> Step {
        self.check_mine(key)?;
        if let LockCheck::Over = self.check_lock(key, Some(under))? {
            return Ok((Reply::Done, Effects::default()));
        }
        let old = self.tables.entry(key).ok_or(Code::NotFound)?;
        self.note_gone(key, old.ino, time);
        self.tables.insert_entry(key, value);
        self.note_back(key, value.ino);
        self.end_lock(key, Some(under));
        let delta = Some(delta(key.parent, Some(old.kind), Some(value.kind)));
        let attr = self.tables.inode(value.ino).map(|inode| inode.attr.clone());
        Ok((Reply::Done, Effects { delta, attr, ..Effects::default() }))
    }

    pub(crate) fn lock(&mut self, key: &EntryKey, lock: &Lock) -> Step {
        self.check_mine(key)?;
        if let Some(held) = self.tables.lock(key)
            && held.tx != lock.tx
        {
            return Err(busy(key, held));
        }
        let found = self.tables.entry(key);
        let reply = match lock.role {
            Role::Source | Role::ExchangeSource { .. } => {
                self.check_leads_to(found.ok_or(Code::NotFound)?, lock.ino)?;
                Reply::Done
            }
            Role::Destination | Role::ExchangeDestination => {
                Reply::Prepared { victim: found.map(|value| Victim { ino: value.ino, kind: value.kind }) }
            }
        };
        self.tables.insert_lock(key, lock.clone());
        Ok((reply, Effects::default()))
    }

    pub(crate) fn unlock(&mut self, key: &EntryKey, tx: TxId) -> Step {
        self.check_mine(key)?;
        if self.tables.lock(key).is_some_and(|lock| lock.tx == tx) {
            self.tables.remove_lock(key);
        }
        Ok((Reply::Done, Effects::default()))
    }

    fn check_lock(&self, key: &EntryKey, under: Option<TxId>) -> Result<LockCheck, Failure> {
        match (self.tables.lock(key), under) {
            (None, None) => Ok(LockCheck::Mine),
            (Some(lock), Some(tx)) if lock.tx == tx => Ok(LockCheck::Mine),
            (_, Some(_)) => Ok(LockCheck::Over),
            (Some(lock), None) => Err(busy(key, lock)),
        }
    }

    fn end_lock(&mut self, key: &EntryKey, under: Option<TxId>) {
        if under.is_some() {
            self.tables.remove_lock(key);
        }
    }

    fn check_leads_to(&self, value: EntryValue, ino: Ino) -> Result<(), Failure> {
        if value.ino == ino {
            return Ok(());
        }
        Err(Failure::new(Code::Busy, format!("the name leads to inode {} now, not to {ino}: look again", value.ino)))
    }

    /// A directory that still has entries here was not closed: it stays, whichever op asked.
    fn check_replaceable(&self, value: EntryValue) -> Result<(), Failure> {
        let full = value.kind == FileKind::Directory && self.has_entries(value.ino);
        if full { Err(Code::NotEmpty.into()) } else { Ok(()) }
    }

    /// An inode has lost a name in this shard.
    fn lose_name(&mut self, value: EntryValue, time: Time, effects: &mut Effects) {
        if value.kind == FileKind::Directory {
            self.tables.remove_inode(value.ino);
        } else if !self.is_home(value.ino) {
            effects.drop_link = Some(self.lose_link(value.ino));
        } else if let Some(attr) = self.lower_links(value.ino, time) {
            effects.orphan = (attr.links == 0).then_some(value.ino);
            effects.attr = Some(attr);
        }
    }
}

fn busy(key: &EntryKey, lock: &Lock) -> Failure {
    Failure::new(Code::Busy, format!("transaction {} holds '{}'", lock.tx, key.name))
}

/// rename(2): a directory replaces only a directory, anything else only another kind.
fn check_kinds(old: FileKind, new: FileKind) -> Result<(), Failure> {
    match (old, new) {
        (FileKind::Directory, FileKind::Directory) => Ok(()),
        (FileKind::Directory, _) => Err(Code::IsDirectory.into()),
        (_, FileKind::Directory) => Err(Code::NotDirectory.into()),
        _ => Ok(()),
    }
}

/// How the counts of a directory change when an entry of kind `old` gives way to one of kind `new`.
pub(crate) fn delta(dir: Ino, old: Option<FileKind>, new: Option<FileKind>) -> DirDelta {
    let entries = i64::from(new.is_some()) - i64::from(old.is_some());
    let subdirs = i64::from(new == Some(FileKind::Directory)) - i64::from(old == Some(FileKind::Directory));
    DirDelta { dir, entries, subdirs }
}

impl NewFile {
    fn check(&self) -> Result<(), Failure> {
        if !(CHUNK_BITS_MIN..=CHUNK_BITS_MAX).contains(&self.chunk_bits) {
            let limits = format!("{CHUNK_BITS_MIN} to {CHUNK_BITS_MAX}");
            return Err(Failure::new(
                Code::Invalid,
                format!("chunks of 2^{} bytes: the exponent must be {limits}", self.chunk_bits),
            ));
        }
        if self.private && self.kind != FileKind::Directory {
            return Err(Failure::new(Code::Invalid, "a private directory is a directory"));
        }
        if self.over_backing && self.kind != FileKind::File {
            return Err(Failure::new(Code::Invalid, "only files are staged back with their chunks"));
        }
        if self.kind != FileKind::Symlink {
            return Ok(());
        }
        match self.target.0.len() {
            // symlink(2) says ENOENT.
            0 => Err(Failure::new(Code::NotFound, "a symbolic link to nothing")),
            len if len > TARGET_BYTES_MAX => Err(Failure::new(
                Code::NameTooLong,
                format!("a link's target of {len} bytes: at most {TARGET_BYTES_MAX} are possible"),
            )),
            _ => Ok(()),
        }
    }

    fn inode(&self, ino: Ino, parent: Ino, time: Time) -> Inode {
        let directory = self.kind == FileKind::Directory;
        let device = matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let target = if self.kind == FileKind::Symlink { self.target.0.clone() } else { Vec::new() };
        let attr = Attr {
            ino,
            kind: self.kind,
            mode: self.mode & MODE_BITS,
            links: if directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: if device { self.rdev } else { 0 },
            size: target.len() as u64,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            generation: Generation(0),
            born: self.born,
            layout: self.layout,
            chunk_bits: self.chunk_bits,
            spread: Spread::default(),
            has_xattrs: false,
            parent: if directory { parent } else { Ino(0) },
        };
        Inode { attr, rare: Rare::of_target(target) }
    }
}
