//! Which system calls this library looks at.
//!
//! A site that makes another call is not rewritten, if its number is known; else the entry finds here that the call is the
//! kernel's.

/// The table's length; calls with larger numbers are the kernel's.
pub const NUMBERS: usize = 512;

/// The kernel's.
pub const PASS: u8 = 0;
/// Ours if its first argument is a descriptor of ours.
pub const WITH_FD: u8 = 1;
/// Looked at by the dispatcher.
pub const LOOKED_AT: u8 = 2;

/// fchmodat2(2) has no name in the libc crate of every version.
pub const SYS_FCHMODAT2: i64 = 452;

/// Calls whose only link to a file is the descriptor in their first argument.
const OF_FD: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_getdents,
    libc::SYS_getdents64,
    libc::SYS_ftruncate,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_fsetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_ioctl,
    libc::SYS_vmsplice,
];

/// The others that the dispatcher handles.
const OTHERS: &[i64] = &[
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_creat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_truncate,
    libc::SYS_chmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_sync,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fcntl,
    libc::SYS_statfs,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_getcwd,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_ctl,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_exit_group,
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_inotify_add_watch,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_name_to_handle_at,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_unshare,
    libc::SYS_umask,
];

/// The class of each number.
pub static CLASSES: [u8; NUMBERS] = classes();

const fn classes() -> [u8; NUMBERS] {
    let mut table = [PASS; NUMBERS];
    let mut at = 0;
    while at < OF_FD.len() {
        table[OF_FD[at] as usize] = WITH_FD;
        at += 1;
    }
    at = 0;
    while at < OTHERS.len() {
        table[OTHERS[at] as usize] = LOOKED_AT;
        at += 1;
    }
    table
}

/// True for a number that this library looks at.
pub fn handles(number: u32) -> bool {
    CLASSES.get(number as usize).is_some_and(|class| *class != PASS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_stands_in_the_table_once() {
        assert!(OF_FD.len() > 30 && OTHERS.len() > 80, "{} and {}", OF_FD.len(), OTHERS.len());
        let handled = (0..NUMBERS as u32).filter(|number| handles(*number)).count();
        assert_eq!(handled, OF_FD.len() + OTHERS.len());
        assert!(!handles(libc::SYS_rt_sigreturn as u32) && !handles(libc::SYS_futex as u32) && !handles(100_000));
    }
}
