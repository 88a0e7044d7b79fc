//! Flags that the kernel refuses before it looks at a path.

use crate::host::Args;
use crate::table::SYS_FCHMODAT2;
use libc::{AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW};

/// The rules of statx(2) for how fresh its answer is; both of them at once are none.
const SYNC_RULES: i32 = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
/// A bit of the mask of statx(2) that is never used.
const STATX_RESERVED: u32 = 0x8000_0000;
/// Flags of name_to_handle_at(2) besides those for its path: AT_HANDLE_FID and the newer ones.
const OF_HANDLES: i32 = 0x203;

/// True if the call has flags that the kernel refuses. Such a call is the kernel's, whatever its path: it takes no effect there.
pub fn are_refused(number: i64, args: &Args) -> bool {
    let [_, _, third, fourth, fifth, _] = args.map(|argument| argument as i32);
    let at = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH;
    let of_stat = at | AT_NO_AUTOMOUNT | SYNC_RULES;
    match number {
        libc::SYS_unlinkat => third & !libc::AT_REMOVEDIR != 0,
        libc::SYS_linkat => fifth & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0,
        libc::SYS_renameat2 => {
            let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
            let alone = libc::RENAME_EXCHANGE as i32;
            fifth & !(known as i32) != 0 || fifth & alone != 0 && fifth != alone
        }
        libc::SYS_utimensat | libc::SYS_faccessat2 | SYS_FCHMODAT2 => {
            let own = if number == libc::SYS_faccessat2 { libc::AT_EACCESS } else { 0 };
            fourth & !(at | own) != 0
        }
        libc::SYS_fchownat => fifth & !at != 0,
        libc::SYS_newfstatat => fourth & !of_stat != 0,
        libc::SYS_statx => {
            third & !of_stat != 0 || third & SYNC_RULES == SYNC_RULES || args[3] as u32 & STATX_RESERVED != 0
        }
        libc::SYS_name_to_handle_at => fifth & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH | OF_HANDLES) != 0,
        libc::SYS_dup3 => third & !libc::O_CLOEXEC != 0,
        libc::SYS_close_range => third as u32 & !(libc::CLOSE_RANGE_CLOEXEC | libc::CLOSE_RANGE_UNSHARE) != 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_are_the_kernels_to_refuse() {
        let with = |at: usize, flags: u64| {
            let mut args: Args = [0; 6];
            args[at] = flags;
            args
        };
        let cases = [
            (libc::SYS_unlinkat, 2, 0x200, 1),
            (libc::SYS_linkat, 4, 0x1400, 0x55),
            (libc::SYS_renameat2, 4, 2, 3),
            (libc::SYS_renameat2, 4, 1, 0x80),
            (libc::SYS_utimensat, 3, 0x1100, 0x55),
            (libc::SYS_faccessat2, 3, 0x1300, 0x400),
            (SYS_FCHMODAT2, 3, 0x1100, 0x200),
            (libc::SYS_fchownat, 4, 0x1100, 0x200),
            (libc::SYS_newfstatat, 3, 0x1900, 1),
            (libc::SYS_statx, 2, 0x2000, 0x6000),
            (libc::SYS_statx, 3, 0xfff, 0x8000_0000),
            (libc::SYS_dup3, 2, 0o2000000, 1),
            (libc::SYS_close_range, 2, 6, 8),
        ];
        for (number, at, known, refused) in cases {
            assert!(!are_refused(number, &with(at, known)), "call {number}, {known:#x}");
            assert!(are_refused(number, &with(at, refused)), "call {number}, {refused:#x}");
            // The kernel looks at 32 bits.
            assert!(!are_refused(number, &with(at, known | 1 << 40)), "call {number}");
        }
        assert!(!are_refused(libc::SYS_read, &[u64::MAX; 6]));
    }
}
