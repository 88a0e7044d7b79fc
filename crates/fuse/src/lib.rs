//! The mount door: it alone knows what the kernel's FUSE requests look like.
//!
//! Each request is translated into one call of the client, and the answer back; what an operation
//! means, which server does it, and how often it is tried, it deliberately does not know.
//!
//! What the kernel may keep: of files what this client has leases of, so that a change made elsewhere shows
//! at once; of directories entries and attributes for [`CACHE_TIME_DEFAULT`] unless asked for
//! otherwise; data until a file is opened again or is seen to have changed.
//! A missing name is never kept. Permission bits are checked by the kernel (`default_permissions`)
//! and by the servers.

mod abi;
mod crew;
mod device;
mod door;
mod fs;
mod handles;
mod identity;
mod journal;
mod kernel_cache;
mod locks;
mod lru;
mod mounting;
mod nodes;
mod pages;
mod pick_ups;
mod queue;
mod recalls;
mod removed;
mod reply;
mod session;
pub mod signals;
mod space;
mod stream;
mod support;
mod trace;
mod translate;
mod unnamed;
mod uring;
mod worker_pool;
mod writers;
mod xattr;

pub use mounting::unmount;

use aze_client::Client;
use aze_io::real::Runtime;
use session::Session;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel may use cached names and attributes by default.
pub const CACHE_TIME_DEFAULT: Duration = Duration::from_secs(1);

/// The longest such time. Changes of other clients are hidden for as long.
pub const CACHE_TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes that one request reads or writes at most: what the kernel allows without asking root.
pub const REQUEST_BYTES: u32 = 1 << 20;

/// Most threads of one mount: as many requests may wait for servers that are slow.
pub const THREADS_MAX: usize = 64;

/// How the kernel's requests come to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseIo {
    /// By io_uring where root has switched that on (Linux 6.14 and newer), else by `/dev/fuse`.
    Auto,
    /// By io_uring(7): a queue for each processor.
    Uring,
    /// By `/dev/fuse`.
    Dev,
}

impl fmt::Display for FuseIo {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            FuseIo::Auto => "auto",
            FuseIo::Uring => "uring",
            FuseIo::Dev => "dev",
        })
    }
}

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Name of the volume, for the list of mounts.
    pub volume: String,
    /// Refuse every change.
    pub read_only: bool,
    /// Let other users in; needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Requests served at the same time at most.
    pub threads: usize,
    /// How long the kernel may use cached names and attributes, at most
    /// [`CACHE_TIME_MAX`]; zero: it asks every time.
    pub cache_time: Duration,
    /// Reads and writes go to the servers as programs ask for them, past the kernel's page cache; writes of a file below
    /// its end go on side by side (Linux 6.2 and newer).
    pub direct_io: bool,
    /// How requests come.
    pub fuse_io: FuseIo,
}

/// A mount that is being served.
pub struct Mounted {
    dir: PathBuf,
    session: Arc<Session>,
    fuse_io: FuseIo,
}

/// Mounts the client's volume at `dir`, which must be an empty place to mount on. Returns when the
/// kernel and this process have agreed; requests are then served until the unmount.
///
/// # Errors
/// What the system or fusermount3(1) said; `Unsupported` if the kernel is too old.
pub fn mount(client: Arc<Client>, runtime: Arc<Runtime>, dir: &Path, options: &MountOptions) -> io::Result<Mounted> {
    let dir = dir.canonicalize()?;
    let device = mounting::mount(&dir, options)?;
    match serve(client, runtime, device, dir.clone(), options) {
        Ok(mounted) => {
            read_ahead(&dir);
            Ok(mounted)
        }
        Err(error) => {
            // No process will serve it; why is the error to tell.
            let _ = unmount(&dir, true);
            Err(error)
        }
    }
}

/// A mount in the making that only the processes of one mount namespace see (mount_namespaces(7)): one
/// process makes it there, and another, outside of that namespace, serves it. So the mount ends by itself
/// with the last process of the namespace.
pub struct Unmounted(device::Device);

impl Unmounted {
    /// Opens the device. A process in a user namespace of its own must do so after it has entered that,
    /// because the kernel compares the two (fuse_fill_super in Linux' fs/fuse/inode.c).
    ///
    /// # Errors
    /// What the system said.
    pub fn open() -> io::Result<Unmounted> {
        device::Device::open().map(Unmounted)
    }

    /// Mounts at `dir` in the caller's mount namespace; to be called by the process that has entered it.
    /// Closes this process's descriptor of the device: the mount must break off with the process that
    /// serves it.
    ///
    /// # Errors
    /// What the system said.
    pub fn mount(self, dir: &Path, options: &MountOptions) -> io::Result<()> {
        mounting::mount_device(&self.0, dir, options)
    }

    /// Serves the mount once it is made; returns when the kernel and this process have agreed. `dir` is its
    /// name in messages only.
    ///
    /// # Errors
    /// What the system said; `Unsupported` if the kernel is too old.
    pub fn serve(
        self,
        client: Arc<Client>,
        runtime: Arc<Runtime>,
        dir: &Path,
        options: &MountOptions,
    ) -> io::Result<Mounted> {
        serve(client, runtime, self.0, dir.to_path_buf(), options)
    }
}

fn serve(
    client: Arc<Client>,
    runtime: Arc<Runtime>,
    device: device::Device,
    dir: PathBuf,
    options: &MountOptions,
) -> io::Result<Mounted> {
    runtime.background()?;
    let device = Arc::new(device);
    let agreed = session::agree(&device, options.fuse_io)?;
    let writers = writers::Writers::new(agreed.features & abi::init::DIRECT_IO_ALLOW_MMAP != 0);
    let cache_time = options.cache_time.min(CACHE_TIME_MAX);
    let door = door::Door::new(client, runtime, device.clone(), cache_time, options.direct_io, writers)?;
    let door = Arc::new(door);
    // Requests that the kernel has sent by now are read from here on.
    door.listen();
    let (session, begun) = Session::start(door, device, options.threads, agreed.queues);
    match begun {
        Err(error) if options.fuse_io == FuseIo::Uring => Err(support::refused(&error)),
        // Where a queue has failed the kernel sends all by the device.
        begun => {
            let fuse_io = if begun.is_ok() && session.has_queues() { FuseIo::Uring } else { FuseIo::Dev };
            Ok(Mounted { dir, session, fuse_io })
        }
    }
}

impl Mounted {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How requests come: never [`FuseIo::Auto`].
    pub fn fuse_io(&self) -> FuseIo {
        self.fuse_io
    }

    /// What writes down what programs ask of this mount.
    pub fn tracer(&self) -> Tracer {
        Tracer(self.session.door())
    }

    /// Waits until it is unmounted.
    ///
    /// # Errors
    /// The error that ended the mount otherwise.
    pub fn wait(self) -> io::Result<()> {
        self.session.wait()
    }
}

/// Writes down what programs ask of a mount.
pub struct Tracer(Arc<door::Door>);

impl Tracer {
    /// Writes a line for each request to `stream`, until its other end is closed: eight fields between tabs, which are
    /// seconds since now, microseconds that it took, operation, path, second path or target, offset and length (`4096+512`),
    /// error number (0: none), process. A line `lost` and a number stands for lines that the reader was too slow for.
    ///
    /// # Errors
    /// What the system said.
    pub fn attach(&self, stream: UnixStream) -> io::Result<()> {
        self.0.trace.attach(stream)
    }
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
