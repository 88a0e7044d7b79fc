//! Files of this machine: the system calls on them that the standard library does not wrap, each with its proof.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Room for most extended attributes, and for all that Linux has: xattr(7).
const XATTR_ROOM_BYTES: usize = 4096;
const XATTR_BYTES_MAX: usize = 65536;

/// Reads at `offset` until `buffer` is full or the file ends; gives the number of bytes read.
pub fn read_at(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match FileExt::read_at(file, &mut buffer[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// The attributes that a file has now, asked of the server of a file system that has one (statx(2), AT_STATX_FORCE_SYNC): kernels
/// believe those of NFS and FUSE for seconds.
pub fn attributes_now(file: &File) -> io::Result<libc::statx> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC;
    // SAFETY: it is numbers only, for which zero is a valid value.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the path is an empty C string, and `about` is room for what the call writes.
    let done = unsafe {
        let (fd, mask) = (file.as_raw_fd(), libc::STATX_BASIC_STATS);
        // By its number: the function is newer than the libc of the packages.
        libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), flags, mask, &raw mut about)
    };
    if done == 0 { Ok(about) } else { Err(io::Error::last_os_error()) }
}

/// Where the next data of a file are, from `offset` on (lseek(2), SEEK_DATA); `None` if there are none. Moves the file's
/// position.
pub fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, offset, libc::SEEK_DATA)
}

/// Where the next hole of a file is, from `offset` on, which is before its end (lseek(2), SEEK_HOLE); the end if there is none. Moves
/// the file's position.
pub fn next_hole(file: &File, offset: u64) -> io::Result<u64> {
    match seek(file, offset, libc::SEEK_HOLE)? {
        Some(at) if at > offset => Ok(at),
        // The file system knows of no holes, or the file was cut off meanwhile.
        _ => Ok(u64::MAX),
    }
}

fn seek(file: &File, offset: u64, whence: i32) -> io::Result<Option<u64>> {
    let from = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: lseek(2) takes numbers.
    let at = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
    match u64::try_from(at) {
        Ok(at) => Ok(Some(at)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            // The file system knows of no holes.
            error if error.raw_os_error() == Some(libc::EINVAL) => Ok(Some(offset)),
            error => Err(error),
        },
    }
}

/// The kind of the file system that holds `path`, as the number that statfs(2) gives.
pub fn file_system_kind(path: &Path) -> io::Result<i64> {
    Ok(file_system(path)?.f_type)
}

/// Bytes and files that still fit into the file system that holds `path`; `None` for files if it
/// does not limit them.
pub fn file_system_room(path: &Path) -> io::Result<(u64, Option<u64>)> {
    let told = file_system(path)?;
    let files = (told.f_files > 0).then_some(told.f_ffree);
    Ok((told.f_bavail.saturating_mul(told.f_bsize as u64), files))
}

/// The names of an open file's extended attributes.
pub fn xattr_names(file: &impl AsRawFd) -> io::Result<Vec<Vec<u8>>> {
    let names = grown(|room| {
        // SAFETY: the pointer and length are those of `room`, which lives until the call returns.
        unsafe { libc::flistxattr(file.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) }
    })?;
    Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

/// Names and values of the extended attributes of the object under a path; none where its file system has none. A
/// symbolic link is not followed. One that goes meanwhile is left out.
pub fn path_xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let at = CString::new(path.as_os_str().as_bytes())?;
    let names = grown(|room| {
        // SAFETY: `at` ends in NUL; the pointer and length are those of `room`. Both live until the call returns.
        unsafe { libc::llistxattr(at.as_ptr(), room.as_mut_ptr().cast(), room.len()) }
    });
    let names = match names {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSUP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let text = CString::new(name)?;
        let value = grown(|room| {
            // SAFETY: `at` and `text` end in NUL; the pointer and length are those of `room`. All live until the call returns.
            unsafe { libc::lgetxattr(at.as_ptr(), text.as_ptr(), room.as_mut_ptr().cast(), room.len()) }
        });
        match value {
            Ok(value) => all.push((name.to_vec(), value)),
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The value of an open file's extended attribute.
pub fn xattr(file: &impl AsRawFd, name: &[u8]) -> io::Result<Vec<u8>> {
    let name = CString::new(name)?;
    grown(|room| {
        // SAFETY: `name` ends in NUL; the pointer and length are those of `room`. Both live until the call returns.
        unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), room.as_mut_ptr().cast(), room.len()) }
    })
}

/// Sets an extended attribute of an open file.
pub fn set_xattr(file: &impl AsRawFd, name: &[u8], value: &[u8]) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: `name` ends in NUL; the pointer and length are those of `value`. Both live until the call returns.
    done(unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) })
}

/// What a call writes that says how much that is, or ERANGE if there is too little room.
fn grown(call: impl Fn(&mut [u8]) -> isize) -> io::Result<Vec<u8>> {
    let mut room = vec![0; XATTR_ROOM_BYTES];
    loop {
        match usize::try_from(call(&mut room)) {
            Ok(count) => {
                room.truncate(count);
                return Ok(room);
            }
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.raw_os_error() != Some(libc::ERANGE) || room.len() >= XATTR_BYTES_MAX {
                    return Err(error);
                }
                room.resize(XATTR_BYTES_MAX, 0);
            }
        }
    }
}

/// Writes to its device what the file system of an open file still holds back.
pub fn sync_file_system(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: a descriptor is no memory; an invalid one gives EBADF.
    done(unsafe { libc::syncfs(file.as_raw_fd()) })
}

/// The longest name, in bytes, that the file system that holds `path` can give a file.
pub fn name_bytes_max(path: &Path) -> io::Result<usize> {
    Ok(usize::try_from(file_system(path)?.f_namelen).unwrap_or(usize::MAX))
}

/// Opens a file to read it past the page cache (open(2), O_DIRECT): offsets, lengths and addresses have to be whole blocks of
/// its device. A symbolic link is not followed.
///
/// # Errors
/// EINVAL where the file system cannot do that.
pub fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW).open(path)
}

/// Has the kernel begin to write a range of a file to its device (sync_file_range(2), SYNC_FILE_RANGE_WRITE), without waiting for
/// the end. It makes nothing durable.
pub fn begin_write_back(file: &impl AsRawFd, range: Range<u64>) -> io::Result<()> {
    let from = i64::try_from(range.start).map_err(|_| io::ErrorKind::InvalidInput)?;
    let len = i64::try_from(range.end.saturating_sub(range.start)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: sync_file_range(2) takes numbers.
    done(unsafe { libc::sync_file_range(file.as_raw_fd(), from, len, libc::SYNC_FILE_RANGE_WRITE) })
}

/// Has the kernel forget the bytes of a file that it keeps, as far as they are on the device (posix_fadvise(2),
/// POSIX_FADV_DONTNEED): a later read comes from there.
pub fn drop_cached(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: posix_fadvise(2) takes numbers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// What becomes of the new name of [`rename_with`], if it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The rename fails with EEXIST.
    Fails,
    /// The two names change places; it must be taken.
    Exchanges,
}

/// Gives a file or directory another name, as renameat2(2) does it.
///
/// # Errors
/// EINVAL or ENOSYS where the file system or the kernel cannot do that.
pub fn rename_with(from: &Path, to: &Path, taken: Taken) -> io::Result<()> {
    let (from, to) = (CString::new(from.as_os_str().as_bytes())?, CString::new(to.as_os_str().as_bytes())?);
    let flags = match taken {
        Taken::Fails => libc::RENAME_NOREPLACE,
        Taken::Exchanges => libc::RENAME_EXCHANGE,
    };
    let here = libc::AT_FDCWD;
    // By its number, since glibc 2.17 has no function for it.
    // SAFETY: both paths end in NUL and live until the call returns.
    done(unsafe { libc::syscall(libc::SYS_renameat2, here, from.as_ptr(), here, to.as_ptr(), flags) } as i32)
}

/// Sets the times of the last access and the last change of a symbolic link itself, in nanoseconds since 1970.
pub fn set_link_times(path: &Path, [accessed_ns, modified_ns]: [u64; 2]) -> io::Result<()> {
    const SECOND_NS: u64 = 1_000_000_000;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let time = |ns: u64| libc::timespec { tv_sec: (ns / SECOND_NS) as i64, tv_nsec: (ns % SECOND_NS) as i64 };
    let times = [time(accessed_ns), time(modified_ns)];
    // SAFETY: the path ends in NUL, and it and the two times live until the call returns.
    done(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) })
}

fn file_system(path: &Path) -> io::Result<libc::statfs> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all fields of `statfs` are numbers.
    let mut told: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends in NUL, and `told` lives until the call returns.
    done(unsafe { libc::statfs(path.as_ptr(), &mut told) })?;
    Ok(told)
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
