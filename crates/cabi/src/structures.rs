//! Structures of the system's headers.

use aze_handles::{Attr, Error, FileKind, Result, SetTime, Space};
use aze_handles::{NAME_BYTES_MAX, Time};

/// Bytes of one block in statvfs(3).
const BLOCK_BYTES: u64 = 4096;

const SECOND_NS: u64 = 1_000_000_000;

/// struct stat of stat(2). The device number is 0: a volume is no device of the system.
pub fn stat_of(attr: &Attr) -> libc::stat {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_ino = attr.ino.0;
    stat.st_mode = attr.st_mode();
    stat.st_nlink = u64::from(attr.links);
    (stat.st_uid, stat.st_gid) = (attr.uid, attr.gid);
    stat.st_rdev = u64::from(attr.rdev);
    stat.st_size = attr.size as i64;
    stat.st_blksize = if attr.kind == FileKind::File { attr.chunk_bytes() as i64 } else { BLOCK_BYTES as i64 };
    stat.st_blocks = attr.blocks() as i64;
    let parts = |time: Time| ((time.0 / SECOND_NS) as i64, (time.0 % SECOND_NS) as i64);
    (stat.st_atime, stat.st_atime_nsec) = parts(attr.atime);
    (stat.st_mtime, stat.st_mtime_nsec) = parts(attr.mtime);
    (stat.st_ctime, stat.st_ctime_nsec) = parts(attr.ctime);
    stat
}

/// struct statvfs of statvfs(3).
pub fn statvfs_of(space: &Space) -> libc::statvfs {
    // SAFETY: all fields are numbers, for which zero is a value.
    let mut statvfs: libc::statvfs = unsafe { std::mem::zeroed() };
    let free = space.capacity_bytes.saturating_sub(space.used_bytes) / BLOCK_BYTES;
    let inodes_free = space.inodes_max.saturating_sub(space.inodes);
    (statvfs.f_bsize, statvfs.f_frsize) = (BLOCK_BYTES, BLOCK_BYTES);
    statvfs.f_blocks = space.capacity_bytes / BLOCK_BYTES;
    (statvfs.f_bfree, statvfs.f_bavail) = (free, free);
    statvfs.f_files = space.inodes_max;
    (statvfs.f_ffree, statvfs.f_favail) = (inodes_free, inodes_free);
    statvfs.f_namemax = NAME_BYTES_MAX as u64;
    statvfs
}

/// Makes a directory entry: struct dirent of readdir(3).
pub fn fill_dirent(dirent: &mut libc::dirent, name: &[u8], ino: u64, kind: FileKind, next: u64) {
    dirent.d_ino = ino;
    dirent.d_off = next as i64;
    dirent.d_reclen = size_of::<libc::dirent>() as u16;
    dirent.d_type = (kind.mode_bits() >> 12) as u8;
    // A name has at most 255 bytes and the field 256, so that a NUL follows.
    let count = name.len().min(dirent.d_name.len() - 1);
    for (to, from) in dirent.d_name.iter_mut().zip(name[..count].iter().chain([&0])) {
        *to = from.cast_signed();
    }
}

/// A time to set, as utimensat(2) takes it: `None` leaves it as it is (`UTIME_OMIT`). Times before 1970 become 1970.
///
/// # Errors
/// EINVAL for nanoseconds out of range.
pub fn set_time(time: &libc::timespec) -> Result<Option<SetTime>> {
    match time.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        nanoseconds @ 0..1_000_000_000 => {
            let seconds = u64::try_from(time.tv_sec).map(|seconds| seconds.saturating_mul(SECOND_NS));
            let time = seconds.map_or(0, |ns| ns.saturating_add(nanoseconds.cast_unsigned()));
            Ok(Some(SetTime::To { time: Time(time) }))
        }
        other => Err(Error::new(libc::EINVAL, format!("{other} nanoseconds: a second has 1,000,000,000"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_set_are_those_of_utimensat() {
        let set = |tv_sec, tv_nsec| set_time(&libc::timespec { tv_sec, tv_nsec }).map_err(|error| error.errno);
        assert_eq!(set(9, libc::UTIME_OMIT), Ok(None));
        assert_eq!(set(9, libc::UTIME_NOW), Ok(Some(SetTime::Now)));
        assert_eq!(set(2, 5), Ok(Some(SetTime::To { time: Time(2_000_000_005) })));
        assert_eq!(set(-2, 5), Ok(Some(SetTime::To { time: Time(0) })));
        assert_eq!(set(i64::MAX, 5), Ok(Some(SetTime::To { time: Time(u64::MAX) })));
        assert_eq!((set(0, -1), set(0, 1_000_000_000)), (Err(libc::EINVAL), Err(libc::EINVAL)));
    }

    #[test]
    fn the_longest_name_fits_an_entry() {
        // SAFETY: all fields are numbers, for which zero is a value.
        let mut dirent: libc::dirent = unsafe { std::mem::zeroed() };
        for len in [255, 3] {
            fill_dirent(&mut dirent, &vec![b'x'; len], 7, FileKind::Directory, 9);
            let end = dirent.d_name.iter().position(|byte| *byte == 0);
            assert_eq!((end, dirent.d_type, dirent.d_ino, dirent.d_off), (Some(len), libc::DT_DIR, 7, 9));
        }
    }
}
