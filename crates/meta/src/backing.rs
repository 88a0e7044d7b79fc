//! What operations do to inodes that came from the directory over which the volume lies: they are made as they were
//! found there, and remember where that was.

use crate::Rare;
use crate::entries::{MODE_BITS, delta};
use crate::shard::{Effects, Shard, Step};
use crate::tables::{EntryKey, EntryValue, Inode, Tables};
use aze_proto::ids::{Generation, Ino, MapEpoch, Time};
use aze_proto::place::Layout;
use aze_proto::{Attr, Backing, Code, Failure, FileKind, Imported, Reply, Spread};

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

    pub(crate) fn will_change(&mut self, ino: Ino) -> Step {
        self.here(ino)?;
        self.change(ino, |inode| inode.change_backing(|backing| backing.data_changed = true))
    }
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
    inode.rare.change(|parts| parts.backing = Some(file.backing.clone()));
    Ok(inode)
}
