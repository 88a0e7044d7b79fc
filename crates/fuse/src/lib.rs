//! The mount door: it alone knows what the kernel's FUSE requests look like.
//!
//! Each request is translated into one call of the client, and the answer back; what an operation
//! means, which server does it, and how often it is tried, it deliberately does not know.
//!
//! What the kernel may keep: entries and attributes for [`VALIDITY`], so that a change made
//! elsewhere shows within that time; data until a file is opened again or is seen to have changed.
//! A missing name is never kept. Permission bits are checked by the kernel (`default_permissions`)
//! and by the servers.

mod door;
mod fs;
mod handles;
mod identity;
mod journal;
pub mod signals;
mod stream;
mod translate;

pub use identity::own as own_identity;

use aze_client::Client;
use aze_io::real::Runtime;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the kernel may answer from what it knows of names and attributes.
pub const VALIDITY: Duration = Duration::from_secs(1);

/// Bytes that one request reads or writes at most: what the kernel allows without asking root.
pub const REQUEST_BYTES: u32 = 1 << 20;

/// Most threads of one mount.
pub const THREADS_MAX: usize = 64;

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Name of the volume, for the list of mounts.
    pub volume: String,
    /// Refuse every change.
    pub read_only: bool,
    /// Let other users in; needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Requests served at the same time.
    pub threads: usize,
}

/// A mount that is being served.
pub struct Mounted {
    dir: PathBuf,
    session: JoinHandle<io::Result<()>>,
}

/// Mounts the client's volume at `dir`, which must be an empty place to mount on. Returns when the
/// kernel and this process have agreed; requests are then served until somebody unmounts.
///
/// # Errors
/// What the system or fusermount3(1) said.
pub fn mount(client: Arc<Client>, runtime: Arc<Runtime>, dir: &Path, options: &MountOptions) -> io::Result<Mounted> {
    runtime.background()?;
    let dir = dir.canonicalize()?;
    let door = door::Door::new(client, runtime);
    let session = Session::new(door, &dir, &config(options))?.spawn()?;
    let session = detach(session);
    read_ahead(&dir);
    Ok(Mounted { dir, session })
}

impl Mounted {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until somebody has unmounted.
    ///
    /// # Errors
    /// What ended the conversation with the kernel otherwise.
    pub fn wait(self) -> io::Result<()> {
        self.session.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the mount panicked")))
    }
}

/// Unmounts `dir`. With `detach` a mount in use disappears at once and ends with its last user.
///
/// # Errors
/// `ResourceBusy` if it is in use and `detach` is not given; what the system said otherwise.
pub fn unmount(dir: &Path, detach: bool) -> io::Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if detach { libc::MNT_DETACH } else { 0 };
    // SAFETY: `path` is a string that ends in NUL and lives until the call returns.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    let mut helper = Command::new("fusermount3");
    helper.arg("-u").args(detach.then_some("-z")).arg("--").arg(dir);
    let output = helper.output().map_err(|error| io::Error::new(error.kind(), format!("run fusermount3: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if text.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, text))
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("azekura:{}", options.volume)),
        // The library hands its own `Subtype` to fusermount3 only, not to mount(2).
        MountOption::CUSTOM("subtype=aze".into()),
        MountOption::DefaultPermissions,
        if options.read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.clamp(1, THREADS_MAX));
    config.clone_fd = true;
    config
}

/// Takes the serving thread out of the library's hands. When its own object is dropped it unmounts
/// whatever is mounted at the place by then, even if somebody has unmounted ours and mounted
/// something else: it takes the device's POLLERR for "still mounted".
fn detach(mut session: BackgroundSession) -> JoinHandle<io::Result<()>> {
    let nothing = std::thread::spawn(|| Ok(()));
    let serving = std::mem::replace(&mut session.guard, nothing);
    std::mem::forget(session);
    serving
}

/// Lets the kernel read ahead by whole requests; only root may, and reading is right without it.
fn read_ahead(dir: &Path) {
    if let Ok(meta) = std::fs::metadata(dir) {
        let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let _ = std::fs::write(
            format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
            (4 * REQUEST_BYTES / 1024).to_string(),
        );
    }
}
