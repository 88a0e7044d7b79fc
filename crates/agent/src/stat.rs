//! Attributes as stat(2) and statfs(2) show them.

use aze_calls::Stat;
use aze_client::Space;
use aze_proto::attr::Attr;
use aze_proto::ids::Time;
use aze_proto::limits::NAME_BYTES_MAX;

/// What programs are told to read and write at once, in bytes, where the chunk is not smaller: a channel's window.
const BLOCK_SIZE_BEST: u64 = aze_calls::WINDOW_BYTES as u64;

/// Bytes of one block in statfs(2).
const STATFS_BLOCK_BYTES: u64 = 4096;

/// Kind of the file system, as a mount of the volume has it: that of FUSE (statfs(2)).
const KIND: libc::__fsword_t = 0x6573_5546;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Attributes for a program.
pub fn of(attr: &Attr) -> Stat {
    let time = |Time(ns): Time| [(ns / SECOND_NS) as i64, (ns % SECOND_NS) as i64];
    Stat {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks(),
        rdev: attr.rdev.into(),
        mode: attr.st_mode(),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        blksize: attr.chunk_bytes().min(BLOCK_SIZE_BEST) as u32,
        pad: 0,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        btime: time(attr.btime),
    }
}

/// The volume's space for a program; `dev` tells the volume apart from others.
pub fn of_space(space: &Space, dev: u64) -> libc::statfs {
    let free = space.capacity_bytes.saturating_sub(space.used_bytes) / STATFS_BLOCK_BYTES;
    // Where there is no room for data none is left for names either.
    let free_files = if free == 0 { 0 } else { space.inodes_max.saturating_sub(space.inodes) };
    let mut told = crate::sys::zeros::<libc::statfs>();
    told.f_type = KIND;
    told.f_bsize = STATFS_BLOCK_BYTES as libc::__fsword_t;
    told.f_blocks = space.capacity_bytes / STATFS_BLOCK_BYTES;
    told.f_bfree = free;
    told.f_bavail = free;
    told.f_files = space.inodes + free_files;
    told.f_ffree = free_files;
    told.f_fsid = crate::sys::fsid(dev);
    told.f_namelen = NAME_BYTES_MAX as libc::__fsword_t;
    told.f_frsize = STATFS_BLOCK_BYTES as libc::__fsword_t;
    told
}
