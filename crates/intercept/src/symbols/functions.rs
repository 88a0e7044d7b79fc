//! Which functions of libc make which system call.

use super::entry::{Frame, Outcome, make, number};
use super::{listing, paths, programs, stdio};
use crate::fds::{self, Fd, argument};
use crate::host;
use crate::place;
use crate::table::{self, SYS_FCHMODAT2};
use How::{Call, Own, Pointer};
use core::mem::MaybeUninit;
use libc::AT_FDCWD;

/// How a function is done.
pub enum How {
    /// It is this system call with the same arguments.
    Call(i64),
    /// By a function here.
    Own(fn(&Frame) -> Outcome),
    /// By a function here; it gives a pointer, which is null if it fails.
    Pointer(fn(&Frame) -> Outcome),
}

/// How many there are.
pub const COUNT: usize = FUNCTIONS.len();

/// The functions. Those with 64 in their names are the same on this machine, and those with `__` are what headers and older libraries
/// call in their place.
pub static FUNCTIONS: &[(&str, How)] = &[
    ("open", Own(open)),
    ("open64", Own(open)),
    ("__open", Own(open)),
    ("__open64", Own(open)),
    ("__open_2", Own(|frame| unless_it_makes(frame, frame.args[1], open))),
    ("__open64_2", Own(|frame| unless_it_makes(frame, frame.args[1], open))),
    ("openat", Own(openat)),
    ("openat64", Own(openat)),
    ("__openat_2", Own(|frame| unless_it_makes(frame, frame.args[2], openat))),
    ("__openat64_2", Own(|frame| unless_it_makes(frame, frame.args[2], openat))),
    ("creat", Call(libc::SYS_creat)),
    ("creat64", Call(libc::SYS_creat)),
    ("close", Call(libc::SYS_close)),
    ("__close", Call(libc::SYS_close)),
    ("close_range", Call(libc::SYS_close_range)),
    ("closefrom", Own(closefrom)),
    ("read", Call(libc::SYS_read)),
    ("__read", Call(libc::SYS_read)),
    ("__read_chk", Own(read_checked)),
    ("write", Call(libc::SYS_write)),
    ("__write", Call(libc::SYS_write)),
    ("pread", Call(libc::SYS_pread64)),
    ("pread64", Call(libc::SYS_pread64)),
    ("__pread64", Call(libc::SYS_pread64)),
    ("__pread_chk", Own(pread_checked)),
    ("__pread64_chk", Own(pread_checked)),
    ("pwrite", Call(libc::SYS_pwrite64)),
    ("pwrite64", Call(libc::SYS_pwrite64)),
    ("__pwrite64", Call(libc::SYS_pwrite64)),
    ("readv", Call(libc::SYS_readv)),
    ("writev", Call(libc::SYS_writev)),
    ("preadv", Call(libc::SYS_preadv)),
    ("preadv64", Call(libc::SYS_preadv)),
    ("pwritev", Call(libc::SYS_pwritev)),
    ("pwritev64", Call(libc::SYS_pwritev)),
    ("preadv2", Own(preadv2)),
    ("preadv64v2", Own(preadv2)),
    ("pwritev2", Own(pwritev2)),
    ("pwritev64v2", Own(pwritev2)),
    ("lseek", Call(libc::SYS_lseek)),
    ("lseek64", Call(libc::SYS_lseek)),
    ("__lseek", Call(libc::SYS_lseek)),
    ("getdents64", Call(libc::SYS_getdents64)),
    ("ftruncate", Call(libc::SYS_ftruncate)),
    ("ftruncate64", Call(libc::SYS_ftruncate)),
    ("truncate", Call(libc::SYS_truncate)),
    ("truncate64", Call(libc::SYS_truncate)),
    ("fsync", Call(libc::SYS_fsync)),
    ("fdatasync", Call(libc::SYS_fdatasync)),
    ("sync", Call(libc::SYS_sync)),
    ("syncfs", Call(libc::SYS_syncfs)),
    ("sync_file_range", Call(libc::SYS_sync_file_range)),
    ("fallocate", Call(libc::SYS_fallocate)),
    ("fallocate64", Call(libc::SYS_fallocate)),
    ("posix_fallocate", Own(posix_fallocate)),
    ("posix_fallocate64", Own(posix_fallocate)),
    ("posix_fadvise", Own(posix_fadvise)),
    ("posix_fadvise64", Own(posix_fadvise)),
    ("readahead", Call(libc::SYS_readahead)),
    ("dup", Call(libc::SYS_dup)),
    ("dup2", Call(libc::SYS_dup2)),
    ("__dup2", Call(libc::SYS_dup2)),
    ("dup3", Call(libc::SYS_dup3)),
    ("fcntl", Own(fcntl)),
    ("fcntl64", Own(fcntl)),
    ("__fcntl", Own(fcntl)),
    ("ioctl", Call(libc::SYS_ioctl)),
    ("flock", Call(libc::SYS_flock)),
    ("lockf", Own(lockf)),
    ("lockf64", Own(lockf)),
    ("stat", Call(libc::SYS_stat)),
    ("stat64", Call(libc::SYS_stat)),
    ("lstat", Call(libc::SYS_lstat)),
    ("lstat64", Call(libc::SYS_lstat)),
    ("fstat", Call(libc::SYS_fstat)),
    ("fstat64", Call(libc::SYS_fstat)),
    ("fstatat", Call(libc::SYS_newfstatat)),
    ("fstatat64", Call(libc::SYS_newfstatat)),
    ("__xstat", Own(|frame| after_version(frame, libc::SYS_stat))),
    ("__xstat64", Own(|frame| after_version(frame, libc::SYS_stat))),
    ("__lxstat", Own(|frame| after_version(frame, libc::SYS_lstat))),
    ("__lxstat64", Own(|frame| after_version(frame, libc::SYS_lstat))),
    ("__fxstat", Own(|frame| after_version(frame, libc::SYS_fstat))),
    ("__fxstat64", Own(|frame| after_version(frame, libc::SYS_fstat))),
    ("__fxstatat", Own(|frame| after_version(frame, libc::SYS_newfstatat))),
    ("__fxstatat64", Own(|frame| after_version(frame, libc::SYS_newfstatat))),
    ("statx", Call(libc::SYS_statx)),
    ("statfs", Call(libc::SYS_statfs)),
    ("statfs64", Call(libc::SYS_statfs)),
    ("fstatfs", Call(libc::SYS_fstatfs)),
    ("fstatfs64", Call(libc::SYS_fstatfs)),
    ("statvfs", Own(statvfs)),
    ("statvfs64", Own(statvfs)),
    ("fstatvfs", Own(fstatvfs)),
    ("fstatvfs64", Own(fstatvfs)),
    ("pathconf", Own(pathconf)),
    ("fpathconf", Own(fpathconf)),
    ("access", Call(libc::SYS_access)),
    ("faccessat", Own(faccessat)),
    ("eaccess", Own(eaccess)),
    ("euidaccess", Own(eaccess)),
    ("mkdir", Call(libc::SYS_mkdir)),
    ("mkdirat", Call(libc::SYS_mkdirat)),
    ("rmdir", Call(libc::SYS_rmdir)),
    ("unlink", Call(libc::SYS_unlink)),
    ("unlinkat", Call(libc::SYS_unlinkat)),
    ("remove", Own(remove)),
    ("rename", Call(libc::SYS_rename)),
    ("renameat", Call(libc::SYS_renameat)),
    ("renameat2", Call(libc::SYS_renameat2)),
    ("link", Call(libc::SYS_link)),
    ("linkat", Call(libc::SYS_linkat)),
    ("symlink", Call(libc::SYS_symlink)),
    ("symlinkat", Call(libc::SYS_symlinkat)),
    ("readlink", Call(libc::SYS_readlink)),
    ("readlinkat", Call(libc::SYS_readlinkat)),
    ("__readlink_chk", Own(readlink_checked)),
    ("__readlinkat_chk", Own(readlinkat_checked)),
    ("mknod", Call(libc::SYS_mknod)),
    ("mknodat", Call(libc::SYS_mknodat)),
    ("__xmknod", Own(xmknod)),
    ("__xmknodat", Own(xmknodat)),
    ("mkfifo", Own(mkfifo)),
    ("mkfifoat", Own(mkfifoat)),
    ("chmod", Call(libc::SYS_chmod)),
    ("fchmod", Call(libc::SYS_fchmod)),
    ("lchmod", Own(lchmod)),
    ("fchmodat", Own(fchmodat)),
    ("chown", Call(libc::SYS_chown)),
    ("lchown", Call(libc::SYS_lchown)),
    ("fchown", Call(libc::SYS_fchown)),
    ("fchownat", Call(libc::SYS_fchownat)),
    ("utime", Call(libc::SYS_utime)),
    ("utimes", Call(libc::SYS_utimes)),
    ("futimesat", Call(libc::SYS_futimesat)),
    ("utimensat", Call(libc::SYS_utimensat)),
    ("futimens", Own(futimens)),
    ("futimes", Own(|frame| by_microseconds(frame, frame.args[0], 0, 0))),
    ("lutimes", Own(|frame| by_microseconds(frame, AT_FDCWD as u64, frame.args[0], libc::AT_SYMLINK_NOFOLLOW as u64))),
    ("setxattr", Call(libc::SYS_setxattr)),
    ("lsetxattr", Call(libc::SYS_lsetxattr)),
    ("fsetxattr", Call(libc::SYS_fsetxattr)),
    ("getxattr", Call(libc::SYS_getxattr)),
    ("lgetxattr", Call(libc::SYS_lgetxattr)),
    ("fgetxattr", Call(libc::SYS_fgetxattr)),
    ("listxattr", Call(libc::SYS_listxattr)),
    ("llistxattr", Call(libc::SYS_llistxattr)),
    ("flistxattr", Call(libc::SYS_flistxattr)),
    ("removexattr", Call(libc::SYS_removexattr)),
    ("lremovexattr", Call(libc::SYS_lremovexattr)),
    ("fremovexattr", Call(libc::SYS_fremovexattr)),
    ("mmap", Own(mmap)),
    ("mmap64", Own(mmap)),
    ("munmap", Call(libc::SYS_munmap)),
    ("mremap", Own(mremap)),
    ("msync", Call(libc::SYS_msync)),
    ("sendfile", Call(libc::SYS_sendfile)),
    ("sendfile64", Call(libc::SYS_sendfile)),
    ("copy_file_range", Call(libc::SYS_copy_file_range)),
    ("splice", Call(libc::SYS_splice)),
    ("tee", Call(libc::SYS_tee)),
    ("vmsplice", Call(libc::SYS_vmsplice)),
    ("poll", Call(libc::SYS_poll)),
    ("__poll", Call(libc::SYS_poll)),
    ("__poll_chk", Call(libc::SYS_poll)),
    ("ppoll", Own(ppoll)),
    ("__ppoll_chk", Own(ppoll)),
    ("select", Call(libc::SYS_select)),
    ("__select", Call(libc::SYS_select)),
    ("pselect", Own(pselect)),
    ("epoll_ctl", Call(libc::SYS_epoll_ctl)),
    ("inotify_add_watch", Call(libc::SYS_inotify_add_watch)),
    ("name_to_handle_at", Call(libc::SYS_name_to_handle_at)),
    ("chroot", Call(libc::SYS_chroot)),
    ("mount", Call(libc::SYS_mount)),
    ("umount2", Call(libc::SYS_umount2)),
    ("umount", Own(umount)),
    ("bind", Call(libc::SYS_bind)),
    ("connect", Own(connect)),
    ("umask", Call(libc::SYS_umask)),
    ("unshare", Call(libc::SYS_unshare)),
    ("chdir", Call(libc::SYS_chdir)),
    ("fchdir", Call(libc::SYS_fchdir)),
    ("getcwd", Pointer(paths::getcwd)),
    ("__getcwd_chk", Pointer(paths::getcwd)),
    ("get_current_dir_name", Pointer(paths::get_current_dir_name)),
    ("realpath", Pointer(paths::realpath)),
    ("__realpath_chk", Pointer(paths::realpath)),
    ("canonicalize_file_name", Pointer(paths::canonicalize_file_name)),
    ("mkstemp", Own(paths::mkstemp)),
    ("mkstemp64", Own(paths::mkstemp)),
    ("mkostemp", Own(paths::mkostemp)),
    ("mkostemp64", Own(paths::mkostemp)),
    ("mkstemps", Own(paths::mkstemps)),
    ("mkstemps64", Own(paths::mkstemps)),
    ("mkostemps", Own(paths::mkostemps)),
    ("mkostemps64", Own(paths::mkostemps)),
    ("mkdtemp", Pointer(paths::mkdtemp)),
    ("fopen", Pointer(stdio::fopen)),
    ("fopen64", Pointer(stdio::fopen)),
    ("fdopen", Pointer(stdio::fdopen)),
    ("freopen", Pointer(stdio::freopen)),
    ("freopen64", Pointer(stdio::freopen)),
    ("_IO_file_read", Own(stdio::read)),
    ("_IO_file_write", Own(stdio::write)),
    ("_IO_file_seek", Own(stdio::seek)),
    ("_IO_file_close", Own(stdio::close)),
    ("_IO_file_stat", Own(stdio::status)),
    ("opendir", Pointer(listing::opendir)),
    ("fdopendir", Pointer(listing::fdopendir)),
    ("closedir", Own(listing::closedir)),
    ("readdir", Pointer(listing::readdir)),
    ("readdir64", Pointer(listing::readdir)),
    ("readdir_r", Own(listing::readdir_r)),
    ("readdir64_r", Own(listing::readdir_r)),
    ("rewinddir", Own(listing::rewinddir)),
    ("seekdir", Own(listing::seekdir)),
    ("telldir", Own(listing::telldir)),
    ("dirfd", Own(listing::dirfd)),
    ("scandir", Own(listing::scandir)),
    ("scandir64", Own(listing::scandir)),
    ("glob", Own(listing::glob)),
    ("glob64", Own(listing::glob)),
    ("execve", Own(programs::execve)),
    ("execv", Own(programs::execv)),
    ("execvp", Own(programs::execvp)),
    ("execvpe", Own(programs::execvpe)),
    ("execl", Own(programs::execl)),
    ("execle", Own(programs::execle)),
    ("execlp", Own(programs::execlp)),
    ("fexecve", Own(programs::fexecve)),
    ("execveat", Call(libc::SYS_execveat)),
    ("posix_spawn", Own(programs::posix_spawn)),
    ("posix_spawnp", Own(programs::posix_spawnp)),
    ("system", Own(programs::system)),
    ("popen", Pointer(programs::popen)),
    ("fork", Own(programs::fork)),
    ("__fork", Own(programs::fork)),
    ("vfork", Own(programs::fork)),
    ("__vfork", Own(programs::fork)),
    ("daemon", Own(programs::daemon)),
    ("login_tty", Own(programs::login_tty)),
    ("_exit", Own(programs::exit)),
    ("_Exit", Own(programs::exit)),
    ("syscall", Own(programs::syscall)),
    ("dlopen", Pointer(programs::dlopen)),
    ("dlsym", Pointer(programs::dlsym)),
];

/// Whether a path is surely the kernel's, but for links: what libc does about it is better known to libc.
pub fn is_kernels(directory: u64, path: u64) -> bool {
    place::is_kernels(argument(directory), path)
}

fn is_ours(fd: u64) -> bool {
    matches!(fds::of(argument(fd)), Fd::Ours(_))
}

/// True if an open(2) with these flags has a mode.
fn makes(flags: u64) -> bool {
    flags as i32 & libc::O_CREAT != 0 || flags as i32 & libc::O_TMPFILE == libc::O_TMPFILE
}

/// The mode of an open(2), which callers give only where it counts.
fn mode(flags: u64, mode: u64) -> u64 {
    if makes(flags) { mode & 0o7777 } else { 0 }
}

/// Libc ends a program that makes a file and gives no mode.
fn unless_it_makes(frame: &Frame, flags: u64, open: fn(&Frame) -> Outcome) -> Outcome {
    if makes(flags) { Outcome::libcs(frame) } else { open(frame) }
}

fn open(frame: &Frame) -> Outcome {
    let [path, flags, given, ..] = frame.args;
    Outcome::of(make(libc::SYS_open, [path, flags, mode(flags, given), 0, 0, 0]))
}

fn openat(frame: &Frame) -> Outcome {
    let [directory, path, flags, given, ..] = frame.args;
    Outcome::of(make(libc::SYS_openat, [directory, path, flags, mode(flags, given), 0, 0]))
}

fn closefrom(frame: &Frame) -> Outcome {
    let first = argument(frame.args[0]).max(0) as u64;
    make(libc::SYS_close_range, [first, u64::from(u32::MAX), 0, 0, 0, 0]);
    Outcome::value(0)
}

/// Libc ends the program if its buffer is too small.
fn read_checked(frame: &Frame) -> Outcome {
    let [_, _, bytes, room, ..] = frame.args;
    by_fd(frame, libc::SYS_read, bytes <= room)
}

fn pread_checked(frame: &Frame) -> Outcome {
    let [_, _, bytes, _, room, _] = frame.args;
    by_fd(frame, libc::SYS_pread64, bytes <= room)
}

/// A call on a descriptor of the volume, if `is_sound`; else it is libc's.
fn by_fd(frame: &Frame, number: i64, is_sound: bool) -> Outcome {
    if is_sound && is_ours(frame.args[0]) { Outcome::of(make(number, frame.args)) } else { Outcome::libcs(frame) }
}

/// The system calls have their flags one argument later.
fn preadv2(frame: &Frame) -> Outcome {
    vectored(frame, libc::SYS_preadv2)
}

fn pwritev2(frame: &Frame) -> Outcome {
    vectored(frame, libc::SYS_pwritev2)
}

fn vectored(frame: &Frame, number: i64) -> Outcome {
    let [fd, vectors, count, offset, flags, _] = frame.args;
    if !is_ours(fd) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(number, [fd, vectors, count, offset, 0, flags & 0xffff_ffff]))
}

fn posix_fallocate(frame: &Frame) -> Outcome {
    let [fd, offset, bytes, ..] = frame.args;
    if !is_ours(fd) {
        return Outcome::libcs(frame);
    }
    Outcome::value(-make(libc::SYS_fallocate, [fd, 0, offset, bytes, 0, 0]).min(0) as u64)
}

fn posix_fadvise(frame: &Frame) -> Outcome {
    if is_ours(frame.args[0]) { Outcome::value(0) } else { Outcome::libcs(frame) }
}

fn fcntl(frame: &Frame) -> Outcome {
    let [fd, command, ..] = frame.args;
    let copies = matches!(argument(command), libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
    if !copies && fds::known(argument(fd)) == Some(Fd::Kernels) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(libc::SYS_fcntl, frame.args))
}

fn lockf(frame: &Frame) -> Outcome {
    let [fd, command, length, ..] = frame.args;
    if !is_ours(fd) {
        return Outcome::libcs(frame);
    }
    // SAFETY: zeros are a valid struct flock.
    let mut lock: libc::flock = unsafe { MaybeUninit::zeroed().assume_init() };
    (lock.l_whence, lock.l_len) = (libc::SEEK_CUR as i16, length as i64);
    let mut ask = |kind: i32, command: i32| {
        lock.l_type = kind as i16;
        make(libc::SYS_fcntl, [fd, command as u64, &raw mut lock as u64, 0, 0, 0])
    };
    let result = match argument(command) {
        libc::F_ULOCK => ask(libc::F_UNLCK, libc::F_SETLK),
        libc::F_LOCK => ask(libc::F_WRLCK, libc::F_SETLKW),
        libc::F_TLOCK => ask(libc::F_WRLCK, libc::F_SETLK),
        libc::F_TEST => match ask(libc::F_WRLCK, libc::F_GETLK) {
            0 if i32::from(lock.l_type) != libc::F_UNLCK => host::error(libc::EACCES),
            result => result,
        },
        _ => host::error(libc::EINVAL),
    };
    Outcome::of(result)
}

/// The first argument is the version of struct stat; this machine has one version.
fn after_version(frame: &Frame, call: i64) -> Outcome {
    let [_, a, b, c, d, _] = frame.args;
    Outcome::of(make(call, [a, b, c, d, 0, 0]))
}

fn statvfs(frame: &Frame) -> Outcome {
    if is_kernels(AT_FDCWD as u64, frame.args[0]) {
        return Outcome::libcs(frame);
    }
    as_statvfs(libc::SYS_statfs, frame)
}

fn fstatvfs(frame: &Frame) -> Outcome {
    if is_ours(frame.args[0]) { as_statvfs(libc::SYS_fstatfs, frame) } else { Outcome::libcs(frame) }
}

/// What statfs(2) says, in the form of statvfs(3).
fn as_statvfs(call: i64, frame: &Frame) -> Outcome {
    // SAFETY: zeros are valid values of both.
    let (mut from, mut to): (libc::statfs, libc::statvfs) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    let result = make(call, [frame.args[0], &raw mut from as u64, 0, 0, 0, 0]);
    if result >= 0 {
        (to.f_bsize, to.f_frsize) = (from.f_bsize as u64, from.f_frsize as u64);
        (to.f_blocks, to.f_bfree, to.f_bavail) = (from.f_blocks, from.f_bfree, from.f_bavail);
        (to.f_files, to.f_ffree, to.f_favail) = (from.f_files, from.f_ffree, from.f_ffree);
        to.f_namemax = from.f_namelen as u64;
        host::write(frame.args[1], to);
    }
    Outcome::of(result)
}

fn pathconf(frame: &Frame) -> Outcome {
    if is_kernels(AT_FDCWD as u64, frame.args[0]) {
        return Outcome::libcs(frame);
    }
    as_pathconf(libc::SYS_statfs, libc::SYS_stat, frame)
}

fn fpathconf(frame: &Frame) -> Outcome {
    if !is_ours(frame.args[0]) {
        return Outcome::libcs(frame);
    }
    as_pathconf(libc::SYS_fstatfs, libc::SYS_fstat, frame)
}

/// Limits for which libc asks for the file or its file system, as it gives them for one of FUSE (pathconf(3)). For the others it looks at
/// neither.
fn as_pathconf(system: i64, file: i64, frame: &Frame) -> Outcome {
    let [of, limit, ..] = frame.args;
    // SAFETY: zeros are valid values of both.
    let (mut space, mut stat): (libc::statfs, libc::stat) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    let limit = argument(limit);
    let asked = match limit {
        libc::_PC_ASYNC_IO => make(file, [of, &raw mut stat as u64, 0, 0, 0, 0]),
        libc::_PC_LINK_MAX
        | libc::_PC_NAME_MAX
        | libc::_PC_CHOWN_RESTRICTED
        | libc::_PC_FILESIZEBITS
        | libc::_PC_REC_MIN_XFER_SIZE
        | libc::_PC_REC_XFER_ALIGN
        | libc::_PC_ALLOC_SIZE_MIN
        | libc::_PC_2_SYMLINKS => make(system, [of, &raw mut space as u64, 0, 0, 0, 0]),
        _ => return Outcome::libcs(frame),
    };
    let given = match limit {
        _ if asked < 0 => asked,
        libc::_PC_LINK_MAX => 127,
        libc::_PC_NAME_MAX => space.f_namelen,
        libc::_PC_FILESIZEBITS => 32,
        libc::_PC_REC_MIN_XFER_SIZE => space.f_bsize,
        libc::_PC_REC_XFER_ALIGN | libc::_PC_ALLOC_SIZE_MIN => space.f_frsize,
        // No limit is no error.
        libc::_PC_ASYNC_IO if !matches!(stat.st_mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK) => {
            return Outcome::value(u64::MAX);
        }
        _ => 1,
    };
    Outcome::of(given)
}

/// Without flags it is the older call, which every kernel has.
fn faccessat(frame: &Frame) -> Outcome {
    let [directory, path, mode, flags, ..] = frame.args;
    if argument(flags) == 0 {
        return Outcome::of(make(libc::SYS_faccessat, frame.args));
    }
    if is_kernels(directory, path) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(libc::SYS_faccessat2, [directory, path, mode, flags, 0, 0]))
}

fn eaccess(frame: &Frame) -> Outcome {
    let [path, mode, ..] = frame.args;
    if is_kernels(AT_FDCWD as u64, path) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(libc::SYS_faccessat2, [AT_FDCWD as u64, path, mode, libc::AT_EACCESS as u64, 0, 0]))
}

fn remove(frame: &Frame) -> Outcome {
    let result = make(libc::SYS_unlink, frame.args);
    let is_directory = result == host::error(libc::EISDIR) || result == host::error(libc::EPERM);
    Outcome::of(if is_directory { make(libc::SYS_rmdir, frame.args) } else { result })
}

fn readlink_checked(frame: &Frame) -> Outcome {
    let [_, _, bytes, room, ..] = frame.args;
    if bytes > room { Outcome::libcs(frame) } else { Outcome::of(make(libc::SYS_readlink, frame.args)) }
}

fn readlinkat_checked(frame: &Frame) -> Outcome {
    let [_, _, _, bytes, room, _] = frame.args;
    if bytes > room { Outcome::libcs(frame) } else { Outcome::of(make(libc::SYS_readlinkat, frame.args)) }
}

fn xmknod(frame: &Frame) -> Outcome {
    let [_, path, mode, device, ..] = frame.args;
    Outcome::of(make(libc::SYS_mknod, [path, mode, host::read(device), 0, 0, 0]))
}

fn xmknodat(frame: &Frame) -> Outcome {
    let [_, directory, path, mode, device, _] = frame.args;
    Outcome::of(make(libc::SYS_mknodat, [directory, path, mode, host::read(device), 0, 0]))
}

/// The mode of a named pipe.
fn pipe(mode: u64) -> u64 {
    mode & 0o7777 | u64::from(libc::S_IFIFO)
}

fn mkfifo(frame: &Frame) -> Outcome {
    let [path, mode, ..] = frame.args;
    Outcome::of(make(libc::SYS_mknod, [path, pipe(mode), 0, 0, 0, 0]))
}

fn mkfifoat(frame: &Frame) -> Outcome {
    let [directory, path, mode, ..] = frame.args;
    Outcome::of(make(libc::SYS_mknodat, [directory, path, pipe(mode), 0, 0, 0]))
}

fn lchmod(frame: &Frame) -> Outcome {
    let [path, mode, ..] = frame.args;
    if is_kernels(AT_FDCWD as u64, path) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(SYS_FCHMODAT2, [AT_FDCWD as u64, path, mode, libc::AT_SYMLINK_NOFOLLOW as u64, 0, 0]))
}

fn fchmodat(frame: &Frame) -> Outcome {
    let [directory, path, _, flags, ..] = frame.args;
    if argument(flags) == 0 {
        return Outcome::of(make(libc::SYS_fchmodat, frame.args));
    }
    if is_kernels(directory, path) {
        return Outcome::libcs(frame);
    }
    Outcome::of(make(SYS_FCHMODAT2, frame.args))
}

fn futimens(frame: &Frame) -> Outcome {
    let [fd, times, ..] = frame.args;
    Outcome::of(make(libc::SYS_utimensat, [fd, 0, times, 0, 0, 0]))
}

/// Times in microseconds for a call that takes nanoseconds.
fn by_microseconds(frame: &Frame, directory: u64, path: u64, flags: u64) -> Outcome {
    let at = frame.args[1];
    if at == 0 {
        return Outcome::of(make(libc::SYS_utimensat, [directory, path, 0, flags, 0, 0]));
    }
    let mut times: [i64; 4] = host::read(at);
    for micro in [times[1], times[3]] {
        if !(0..1_000_000).contains(&micro) {
            return Outcome::of(host::error(libc::EINVAL));
        }
    }
    (times[1], times[3]) = (times[1] * 1000, times[3] * 1000);
    Outcome::of(make(libc::SYS_utimensat, [directory, path, times.as_ptr() as u64, flags, 0, 0]))
}

/// MAP_FAILED is -1, as for other calls.
fn mmap(frame: &Frame) -> Outcome {
    Outcome::of(make(libc::SYS_mmap, frame.args))
}

/// The new address is there only with a flag.
fn mremap(frame: &Frame) -> Outcome {
    Outcome::of(make(libc::SYS_mremap, frame.args))
}

/// The kernel changes the time that it is given; libc's function does not.
fn time(at: u64, copy: &mut [i64; 2]) -> u64 {
    if at == 0 {
        return 0;
    }
    *copy = host::read(at);
    copy.as_ptr() as u64
}

fn ppoll(frame: &Frame) -> Outcome {
    let ([array, count, at, mask, ..], mut copy) = (frame.args, [0; 2]);
    let args = [array, count, time(at, &mut copy), mask, 8, 0];
    match crate::dispatch::handle(libc::SYS_ppoll, args) {
        crate::dispatch::AS_IT_WAS => Outcome::libcs(frame),
        result => Outcome::of(result),
    }
}

fn pselect(frame: &Frame) -> Outcome {
    let ([count, reads, writes, others, at, mask], mut copy) = (frame.args, [0; 2]);
    let signals = [mask, 8];
    let args = [count, reads, writes, others, time(at, &mut copy), signals.as_ptr() as u64];
    match crate::dispatch::handle(libc::SYS_pselect6, args) {
        crate::dispatch::AS_IT_WAS => Outcome::libcs(frame),
        result => Outcome::of(result),
    }
}

fn umount(frame: &Frame) -> Outcome {
    Outcome::of(make(libc::SYS_umount2, [frame.args[0], 0, 0, 0, 0, 0]))
}

/// Waits for another machine are libc's, so that a thread can be cancelled there.
fn connect(frame: &Frame) -> Outcome {
    let address = frame.args[1];
    let is_local = host::is_memory(address) && host::read::<u16>(address) == libc::AF_UNIX as u16;
    if is_local { Outcome::of(make(libc::SYS_connect, frame.args)) } else { Outcome::libcs(frame) }
}

/// A system call that a program makes by its number.
pub fn by_number(frame: &Frame) -> Outcome {
    let [call, a, b, c, d, e] = frame.args;
    let makes_process = matches!(call as i64, libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3);
    if makes_process || !u32::try_from(call).is_ok_and(table::handles) {
        return Outcome::libcs(frame);
    }
    Outcome::value(number(make(call as i64, [a, b, c, d, e, frame.further(0)])) as u64)
}
