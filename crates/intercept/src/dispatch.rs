//! Which function handles which system call.
//!
//! The entry comes here with the registers of a call. A call that is not the volume's is made as it is.

use crate::entry::{BY_THUNK, DONE, Frame};
use crate::fds::argument;
use crate::host::{Args, error, raw};
use crate::table::SYS_FCHMODAT2;
use crate::{
    attributes, data, descriptors, exec, flags, locks, mapping, names, open, poll, process, refused, transfer,
};
use libc::AT_FDCWD;

/// No result of a call: it is the kernel's, with the arguments that the host has given, and is made where the host makes it. For
/// calls that may take long, so that they can be cancelled there (pthread_cancel(3)).
pub const AS_IT_WAS: i64 = i64::MIN;

/// Handles a system call; the result goes to the host. No panic leaves it: see `defects.rs`.
pub extern "C" fn dispatch(frame: *mut Frame) -> i64 {
    // SAFETY: the entry has put the frame on the stack and does not touch it until this returns.
    let frame = unsafe { &mut *frame };
    let mut args: Args = frame.reversed;
    args.reverse();
    let number = frame.number as i64;
    frame.sharing = exec::by_thunk(number, &args);
    if frame.sharing != DONE {
        return number;
    }
    match handle(number, args) {
        AS_IT_WAS => {
            frame.sharing = BY_THUNK;
            number
        }
        result => result,
    }
}

/// The parent goes on after a child on its memory.
pub extern "C" fn after_sharing(result: i64) -> i64 {
    process::sharing_ends(result);
    result
}

/// Handles a system call that makes no child on this memory: its result, or [`AS_IT_WAS`].
pub fn handle(number: i64, args: Args) -> i64 {
    if flags::are_refused(number, &args) {
        return raw(number, args);
    }
    match number {
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_preadv2
        | libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_lseek
        | libc::SYS_getdents
        | libc::SYS_getdents64
        | libc::SYS_ftruncate
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync_file_range
        | libc::SYS_fallocate
        | libc::SYS_fadvise64
        | libc::SYS_readahead => data::handle(number, args),
        libc::SYS_open => open::open(number, args, None, 0, args[1], args[2]),
        libc::SYS_creat => open::creat(args),
        libc::SYS_openat => open::open(number, args, Some(0), 1, args[2], args[3]),
        libc::SYS_openat2 => open::openat2(args),
        libc::SYS_close => open::close(args),
        libc::SYS_close_range => open::close_range(args),
        libc::SYS_dup | libc::SYS_dup2 | libc::SYS_dup3 => descriptors::dup(number, args),
        libc::SYS_fcntl => descriptors::fcntl(args),
        libc::SYS_ioctl => descriptors::ioctl(args),
        libc::SYS_chdir | libc::SYS_fchdir | libc::SYS_getcwd => names::directory(number, args),
        libc::SYS_flock => locks::flock(args),
        libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_fstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_statfs
        | libc::SYS_fstatfs
        | libc::SYS_access
        | libc::SYS_faccessat
        | libc::SYS_faccessat2 => crate::stat::handle(number, args),
        libc::SYS_mkdir
        | libc::SYS_mkdirat
        | libc::SYS_rmdir
        | libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_link
        | libc::SYS_linkat
        | libc::SYS_symlink
        | libc::SYS_symlinkat
        | libc::SYS_readlink
        | libc::SYS_readlinkat
        | libc::SYS_mknod
        | libc::SYS_mknodat => names::handle(number, args),
        libc::SYS_truncate
        | libc::SYS_chmod
        | libc::SYS_fchmod
        | libc::SYS_fchmodat
        | SYS_FCHMODAT2
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_fchown
        | libc::SYS_fchownat
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat
        | libc::SYS_utimensat => attributes::handle(number, args),
        libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_fsetxattr
        | libc::SYS_getxattr
        | libc::SYS_lgetxattr
        | libc::SYS_fgetxattr
        | libc::SYS_listxattr
        | libc::SYS_llistxattr
        | libc::SYS_flistxattr
        | libc::SYS_removexattr
        | libc::SYS_lremovexattr
        | libc::SYS_fremovexattr => crate::xattr::handle(number, args),
        libc::SYS_sync | libc::SYS_syncfs => data::sync_all(number, args),
        libc::SYS_sendfile => transfer::sendfile(args),
        libc::SYS_copy_file_range => transfer::copy_file_range(args),
        libc::SYS_splice | libc::SYS_tee | libc::SYS_vmsplice => refused::splice(number, args),
        libc::SYS_poll | libc::SYS_ppoll => poll::poll(number, args),
        libc::SYS_select | libc::SYS_pselect6 => poll::select(number, args),
        libc::SYS_epoll_ctl => refused::epoll_ctl(args),
        libc::SYS_mmap => mapping::mmap(args),
        libc::SYS_munmap => mapping::munmap(args),
        libc::SYS_mremap => mapping::mremap(args),
        libc::SYS_msync => mapping::msync(args),
        libc::SYS_exit_group => {
            mapping::settle();
            crate::report_end();
            raw(number, args)
        }
        libc::SYS_io_uring_setup | libc::SYS_io_setup => error(libc::ENOSYS),
        libc::SYS_inotify_add_watch
        | libc::SYS_chroot
        | libc::SYS_pivot_root
        | libc::SYS_mount
        | libc::SYS_umount2
        | libc::SYS_name_to_handle_at => refused::by_path(number, args),
        libc::SYS_bind | libc::SYS_connect => refused::socket(args),
        libc::SYS_execve => exec::execve(AT_FDCWD, args[0], args[1], args[2], 0),
        libc::SYS_execveat => exec::execve(argument(args[0]), args[1], args[2], args[3], args[4]),
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => exec::fork(number, args),
        libc::SYS_unshare => exec::unshare(args),
        libc::SYS_umask => process::umask(args[0]),
        _ => raw(number, args),
    }
}
