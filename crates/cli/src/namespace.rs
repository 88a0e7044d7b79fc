//! Namespaces of Linux: how a process without root gets a view of the file system of its own.
//!
//! It alone knows the order of the steps: a user namespace first, because a process has the right to
//! mount only in a mount namespace that its user namespace owns (user_namespaces(7)).

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Where the new root is mounted before it becomes the root; the directory itself stays as it is.
const WORKBENCH: &str = "/tmp";

/// Where the old root is meanwhile.
const OLD: &str = "/.azekura-old-root";

/// Puts this process into a user namespace of its own, in which its user and group keep their numbers.
/// It must have one thread only.
///
/// # Errors
/// What the system said: EPERM or ENOSPC where the machine does not let its users make namespaces.
pub fn enter_user() -> io::Result<()> {
    // SAFETY: both calls take nothing and always succeed.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: a number; no memory is passed.
    done(unsafe { libc::unshare(libc::CLONE_NEWUSER) })?;
    // The kernel lets a user map groups only when setgroups(2) is given up.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Puts this process into a mount namespace of its own. Mounts that others make and remove still show in it;
/// its own do not show elsewhere.
///
/// # Errors
/// What the system said.
pub fn enter_mounts() -> io::Result<()> {
    // SAFETY: a number; no memory is passed.
    done(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount(c"none", Path::new("/"), None, libc::MS_REC | libc::MS_SLAVE)
}

/// Gives this process a root directory that has everything of the old one and the empty directory `/name`
/// besides. To be called in a mount namespace of its own; the working directory is `/` afterwards.
///
/// # Errors
/// What the system said; EINVAL from pivot_root(2) where the old root is no mount, as after chroot(2).
pub fn add_to_root(name: &str) -> io::Result<()> {
    let root = Path::new(WORKBENCH);
    mount(c"azekura", root, Some(c"tmpfs"), libc::MS_NOSUID | libc::MS_NODEV)?;
    let old = root.join(OLD.trim_start_matches('/'));
    fs::create_dir(&old)?;
    let (new_root, put_old) = (CString::new(WORKBENCH)?, CString::new(old.as_os_str().as_bytes())?);
    // SAFETY: both arguments are strings that end in NUL and live until the call returns.
    let pivoted = unsafe { libc::syscall(libc::SYS_pivot_root, new_root.as_ptr(), put_old.as_ptr()) };
    done(pivoted as i32)?;
    std::env::set_current_dir("/")?;
    for entry in fs::read_dir(OLD)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let target = Path::new("/").join(entry.file_name());
        if kind.is_symlink() {
            symlink(fs::read_link(&path)?, &target)?;
        } else if kind.is_dir() {
            fs::create_dir(&target)?;
            bind(&path, &target)?;
        } else if kind.is_file() {
            fs::write(&target, b"")?;
            bind(&path, &target)?;
        }
    }
    fs::create_dir(Path::new("/").join(name))?;
    let old = CString::new(OLD)?;
    // SAFETY: the argument is a string that ends in NUL and lives until the call returns.
    done(unsafe { libc::umount2(old.as_ptr(), libc::MNT_DETACH) })?;
    fs::remove_dir(OLD)?;
    fs::set_permissions("/", fs::Permissions::from_mode(0o755))
}

/// Binds a directory or file, with everything that is mounted below it, to another place.
fn bind(what: &Path, place: &Path) -> io::Result<()> {
    let what = CString::new(what.as_os_str().as_bytes())?;
    mount(&what, place, None, libc::MS_BIND | libc::MS_REC)
}

fn mount(what: &CStr, place: &Path, kind: Option<&CStr>, flags: libc::c_ulong) -> io::Result<()> {
    let place = CString::new(place.as_os_str().as_bytes())?;
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or a string that ends in NUL and lives until the call returns.
    done(unsafe { libc::mount(what.as_ptr(), place.as_ptr(), kind, flags, std::ptr::null()) })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
