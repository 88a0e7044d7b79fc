//! What operations do to inodes that came from the directory over which the volume lies: they are made as they were
//! found there, and remember where that was.

use crate::Rare;
use crate::entries::{MODE_BITS, delta};
use crate::shard::{Effects, Shard, Step};
use crate::tables::{EntryKey, EntryValue, Inode, Tables};
use aze_proto::ids::{Generation, Ino, MapEpoch, Time};
use aze_proto::place::Layout;
use aze_proto::{Attr, Backing, Code, Failure, FileKind, Gone, Imported, Name, Reply, Spread};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What the server decides of a file that is imported.
pub(crate) struct Place {
    pub(crate) born: MapEpoch,
    pub(crate) chunk_bits: u8,
    pub(crate) layout: Layout,
    pub(crate) spread: Spread,
}

impl<T: Tables> Shard<T> {
    pub(crate) fn import(&mut self, key: &EntryKey, file: &Imported, place: &Place, time: Time) -> Step {
        self.check_mine(key)?;
        if let Some(EntryValue { ino, kind }) = self.tables.entry(key) {
            return Ok((Reply::Entry { ino, kind, attr: None, created: false }, Effects::default()));
        }
        let ino = self.issue(key.hash.prefix())?.of_backing();
        let inode = imported(ino, key.parent, file, place, time)?;
        let attr = inode.attr.clone();
        self.tables.insert_inode(inode);
        self.tables.insert_entry(key, EntryValue { ino, kind: file.kind });
        let delta = delta(key.parent, None, Some(file.kind));
        let reply = Reply::Entry { ino, kind: file.kind, attr: None, created: true };
        Ok((reply, Effects { delta: Some(delta), attr: Some(attr), ..Effects::default() }))
    }

    pub(crate) fn imported_all(&mut self, dir: Ino) -> Step {
        if self.here(dir)?.backing().is_none() {
            return Err(Failure::new(Code::Invalid, format!("directory {dir} did not come from a backing")));
        }
        self.change(dir, |inode| inode.change_backing(|backing| backing.is_imported = true))
    }

    pub(crate) fn lie_over(&mut self, ino: Ino, backing: &Backing) -> Step {
        self.here(ino)?;
        self.change(ino, |inode| inode.rare.change(|parts| parts.backing = Some(backing.clone())))
    }

    pub(crate) fn leave_backing(&mut self, ino: Ino) -> Step {
        self.here(ino)?;
        self.change(ino, |inode| {
            inode.change_backing(|backing| {
                backing.data_changed = true;
                backing.attributes_changed = true;
            });
        })
    }

    pub(crate) fn settled(&mut self, ino: Ino, origin: u32) -> Step {
        self.here(ino)?;
        self.change(ino, |inode| {
            inode.change_backing(|backing| backing.is_settling &= backing.origin != origin);
        })
    }

    pub(crate) fn forget_gone(&mut self, key: &EntryKey, since: Time) -> Step {
        self.gone.forget(key, since);
        Ok((Reply::Done, Effects::default()))
    }

    /// A name is about to lead elsewhere or nowhere: if it is the first name of its inode, it is recorded until the backing has
    /// followed.
    pub(crate) fn note_gone(&mut self, key: &EntryKey, ino: Ino, time: Time) {
        let Some((inode, backing)) = self.tables.inode(ino).and_then(|inode| Some((inode, inode.backing()?))) else {
            return;
        };
        if backing.parent != key.parent || backing.first_name() != key.name.as_bytes() {
            return;
        }
        let (path, identity) = (backing.path.clone(), backing.identity);
        let (parent, name, kind) = (key.parent, key.name.clone(), inode.attr.kind);
        self.gone.put(Gone { parent, name, ino, kind, path, identity, since: time });
    }

    /// A name leads to this inode now: if that came from there, the name has not gone. An inode that was staged under another name
    /// comes from that one.
    pub(crate) fn note_back(&mut self, key: &EntryKey, ino: Ino) {
        let backing = self.tables.inode(ino).and_then(Inode::backing);
        if backing.is_some_and(|backing| backing.parent == key.parent && backing.first_name() == key.name.as_bytes()) {
            self.gone.drop_if(key, |gone| gone.ino == ino);
        }
    }

    /// As [`Self::note_gone`], of an inode that is about to be deleted while its first name still leads to it, which goes
    /// afterwards, when nothing tells any more where the inode came from: that of a directory that is removed, and that of
    /// a file whose new name is gone before the rename has ended at the old one.
    pub(crate) fn note_gone_deleted(&mut self, ino: Ino, time: Time) {
        let Some(backing) = self.tables.inode(ino).and_then(Inode::backing) else { return };
        let Ok(name) = Name::new(backing.first_name()) else { return };
        let key = EntryKey::new(backing.parent, name);
        if self.tables.entry(&key).is_some_and(|entry| entry.ino == ino) {
            self.note_gone(&key, ino, time);
        }
    }

    /// Names of the backing that went, in the order of their keys, from the one behind `after` on.
    pub fn gone_behind(&self, after: Option<&EntryKey>) -> impl Iterator<Item = (&EntryKey, &Gone)> {
        self.gone.behind(after)
    }

    pub(crate) fn will_change(&mut self, ino: Ino) -> Step {
        self.here(ino)?;
        self.change(ino, |inode| inode.change_backing(|backing| backing.data_changed = true))
    }
}

/// Names of the backing that went, each with the object that was imported under it.
#[derive(Clone, Debug, Default)]
pub(crate) struct GoneNames {
    names: BTreeMap<EntryKey, Gone>,
    bytes: u64,
}

impl GoneNames {
    pub(crate) fn put(&mut self, gone: Gone) {
        self.bytes += bytes_of(&gone);
        let key = EntryKey::new(gone.parent, gone.name.clone());
        if let Some(before) = self.names.insert(key, gone) {
            self.bytes -= bytes_of(&before);
        }
    }

    fn forget(&mut self, key: &EntryKey, since: Time) {
        self.drop_if(key, |gone| gone.since == since);
    }

    fn drop_if(&mut self, key: &EntryKey, is_it: impl FnOnce(&Gone) -> bool) {
        if self.names.get(key).is_some_and(is_it)
            && let Some(gone) = self.names.remove(key)
        {
            self.bytes -= bytes_of(&gone);
        }
    }

    pub(crate) fn behind(&self, after: Option<&EntryKey>) -> impl Iterator<Item = (&EntryKey, &Gone)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.names.range((from, Bound::Unbounded))
    }

    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    /// Bytes of all of them in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn bytes_of(gone: &Gone) -> u64 {
    (size_of::<(EntryKey, Gone)>() + 2 * gone.name.as_bytes().len() + gone.path.0.len()) as u64
}

fn imported(ino: Ino, parent: Ino, file: &Imported, place: &Place, time: Time) -> Result<Inode, Failure> {
    let directory = file.kind == FileKind::Directory;
    let target = if file.kind == FileKind::Symlink { file.target.0.clone() } else { Vec::new() };
    let size = match file.kind {
        FileKind::File => file.backing.length,
        _ => target.len() as u64,
    };
    let attr = Attr {
        ino,
        kind: file.kind,
        mode: file.mode & MODE_BITS,
        links: if directory { 2 } else { 1 },
        uid: file.uid,
        gid: file.gid,
        rdev: file.rdev,
        size,
        atime: file.atime,
        mtime: file.mtime,
        ctime: time,
        btime: time,
        generation: Generation(0),
        born: place.born,
        layout: place.layout,
        chunk_bits: place.chunk_bits,
        spread: place.spread,
        has_xattrs: false,
        parent: if directory { parent } else { Ino(0) },
    };
    let mut inode = Inode { attr, rare: Rare::of_target(target) };
    for xattr in &file.xattrs {
        inode.check_room(&xattr.name.0, &xattr.value)?;
        inode.put_xattr(&xattr.name.0, Some(xattr.value.clone()));
    }
    inode.rare.change(|parts| parts.backing = Some(Backing { parent, ..file.backing.clone() }));
    Ok(inode)
}
