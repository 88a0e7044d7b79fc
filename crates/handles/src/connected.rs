//! One process's connection to a volume, and what can be done to paths.
//!
//! Operations are futures, so that they can be waited for ([`Connected::wait`]) or queued ([`crate::Queue`]).

use crate::error::{Error, Result};
use crate::lanes::Lanes;
use crate::path::{self, Path, parse};
use crate::queue::Ends;
use aze_client::lane::OnLane;
use aze_client::{Client, NewFile, Space, mode_under};
use aze_io::real::Runtime;
use aze_io::sync::{Condvar, Mutex};
use aze_proto::attr::{Attr, Change, FileKind, Identity, SetTime, XattrHow};
use aze_proto::error::Failure;
use aze_proto::ids::Ino;
use aze_proto::limits::TARGET_BYTES_MAX;
use aze_reach::{Session, volume};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

/// How long the end of a connection waits for operations under way, at each of two steps.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// The connection of this process. Made by [`crate::Volume::connected`]; a forked process must not use its parent's.
pub struct Connected {
    pub(crate) session: Arc<Session>,
    umask: AtomicU32,
    calls: Calls,
    lanes: Lanes,
    is_ended: AtomicBool,
    queues: Mutex<Vec<Weak<dyn Ends>>>,
}

/// How many callers wait for an operation.
#[derive(Default)]
struct Calls {
    count: Mutex<usize>,
    none: Condvar,
}

/// One call, until it is dropped.
struct Call<'a>(&'a Calls);

impl Calls {
    fn begin(&self) -> Call<'_> {
        *self.count.lock() += 1;
        Call(self)
    }

    /// Waits for `limit` at most; false if there are still some.
    fn have_ended_within(&self, limit: Duration) -> bool {
        let begin = Instant::now();
        let mut count = self.count.lock();
        while *count > 0 {
            let Some(left) = limit.checked_sub(begin.elapsed()) else { return false };
            count = self.none.wait_for(count, left);
        }
        true
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

/// Times to set: access and modification. `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Of the last access.
    pub access: Option<SetTime>,
    /// Of the last change of the data.
    pub modification: Option<SetTime>,
}

impl Connected {
    /// Connects to a volume that was found.
    ///
    /// # Errors
    /// As [`crate::Volume::open`].
    pub fn to(volume: volume::Volume) -> Result<Arc<Connected>> {
        let session = Session::open_on(Runtime::library(), volume)?;
        session.client.use_contacts();
        let connected = Arc::new(Connected {
            session,
            umask: AtomicU32::new(umask_of_process()),
            calls: Calls::default(),
            lanes: Lanes::new(),
            is_ended: AtomicBool::new(false),
            queues: Mutex::default(),
        });
        let weak = Arc::downgrade(&connected);
        connected.runtime().when_broken(move || {
            // No thread drives the runtime any more, so that no operation runs.
            weak.upgrade().iter().for_each(|connected| connected.fail_queues(&defect()));
        });
        Ok(connected)
    }

    /// What asks the servers: for doors whose calls are no paths from the root.
    pub fn client(&self) -> &Arc<Client> {
        &self.session.client
    }

    /// On whose behalf it asks.
    pub fn who(&self) -> &Identity {
        &self.session.who
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.session.runtime
    }

    /// # Errors
    /// EIO if a defect has ended the connection, EBADF if [`crate::Volume::close`] has.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_ended.load(Ordering::SeqCst) {
            return Err(Error::new(libc::EBADF, format!("volume '{}' was closed", self.session.volume.record.name)));
        }
        if self.runtime().is_broken() { Err(defect()) } else { Ok(()) }
    }

    /// Has a queue hear of the connection's end.
    pub(crate) fn know<T: Send + 'static>(&self, queue: &Arc<crate::queue::Shared<T>>) {
        let queue: Weak<dyn Ends> = Arc::downgrade(queue) as Weak<dyn Ends>;
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    fn live_queues(&self) -> Vec<Arc<dyn Ends>> {
        self.queues.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn fail_queues(&self, error: &Error) {
        self.live_queues().iter().for_each(|queue| queue.fail_all(error));
    }

    /// Starts the one thread that does what goes on without a caller: closing files, keeping locks.
    ///
    /// # Errors
    /// What the system said: EAGAIN.
    pub fn go_on_without_callers(&self) -> Result<()> {
        let failed = |error: io::Error| Error::new(error.raw_os_error().unwrap_or(libc::EIO), error.to_string());
        self.runtime().background().map_err(failed)
    }

    /// Begins an operation whose outcome no caller waits for; see [`Connected::go_on_without_callers`].
    pub fn begin(&self, operation: impl Future<Output = ()> + Send + 'static) {
        self.runtime().io().spawn(operation);
    }

    /// Ends the connection: calls under way fail, and so do later ones. Doing so twice is harmless.
    pub fn end(&self) {
        if self.is_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        if !self.runtime().is_broken() {
            self.session.end();
            // Requests fail from now on, and with them what waits for them.
            let queues = self.live_queues();
            let idle = poll_fn(|context| match queues.iter().all(|queue| queue.is_idle(context.waker())) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            let io = self.runtime().io();
            let _ = self.runtime().block_on(io.timeout(END_TIME_MAX, idle));
        }
        // Callers that still wait are told no, too, but not all at once: a runtime that was shut down fires no timer.
        if self.calls.have_ended_within(END_TIME_MAX) {
            self.lanes.shutdown();
            self.runtime().shutdown();
        }
        self.fail_queues(&Error::new(libc::EBADF, "the volume was closed"));
    }

    /// Blocks until an operation is done.
    ///
    /// # Errors
    /// Those of the operation; EIO if a defect has ended the connection, EBADF if it was closed.
    #[inline(always)]
    pub fn wait<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        // An operation is several KiB large, and is copied wherever it is handed on by value.
        self.wait_for(pin!(operation))
    }

    fn wait_for<T>(&self, operation: Pin<&mut impl Future<Output = Result<T>>>) -> Result<T> {
        let _call = self.calls.begin();
        self.check()?;
        let (lane, runtime) =
            self.lanes.free(self.runtime(), |lane, runtime| self.client().add_lane(lane, runtime.io()));
        runtime.block_on(OnLane::new(lane, operation))
    }

    /// From now on threads that wait at the same time use connections of their own ([`aze_client::lane`]), up to as many as this process
    /// may use processors. One that waits alone uses those from before.
    pub fn use_lanes(&self) {
        self.lanes.use_all();
    }

    /// As [`Connected::wait`], but for `limit` at most: gives `None` then, and the operation goes on when it is waited for
    /// again. For callers that look after signals now and then.
    ///
    /// # Errors
    /// As [`Connected::wait`].
    pub fn wait_within<F: Future<Output = Result<T>>, T>(
        &self,
        limit: Duration,
        operation: Pin<&mut F>,
    ) -> Result<Option<T>> {
        let io = self.runtime().io();
        self.wait(async { io.timeout(limit, operation).await.transpose() })
    }

    /// Has a task of the connection panic: for tests of what comes after.
    #[cfg(debug_assertions)]
    pub fn plant_panic(&self) {
        self.runtime().io().spawn(async { panic!("planted in a task") });
    }

    /// Sets the mask of permission bits that files made from now on do not get; gives the one before. At first it is that
    /// of the process at the time of the connection: umask(2) cannot be read without changing it.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.umask.swap(umask & 0o777, Ordering::SeqCst)
    }

    pub(crate) fn new_file(&self, kind: FileKind, mode: u32) -> NewFile {
        let mode = mode_under(mode & 0o7777, self.umask.load(Ordering::SeqCst));
        NewFile { kind, mode, rdev: 0, target: Vec::new(), exclusive: true, open: None, chunk_bits: 0, private: false }
    }

    /// The inode that a path leads to.
    async fn find(&self, path: &[u8], follow: bool) -> Result<Attr> {
        let path = parse(path)?;
        let attr = self.client().resolve(self.who(), &path.bytes, follow || path.wants_dir).await?;
        check_end(&path, &attr)?;
        Ok(attr)
    }

    /// stat(2), or lstat(2) without `follow`.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn stat(&self, path: &[u8], follow: bool) -> Result<Attr> {
        let attr = self.find(path, follow).await?;
        match attr.kind {
            // Its counts are gathered from the servers that hold its entries.
            FileKind::Directory => Ok(self.client().getattr(self.who(), attr.ino).await?),
            _ => Ok(attr),
        }
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        let path = parse(path)?;
        let new = self.new_file(FileKind::Directory, mode & 0o1777);
        Ok(self.client().create_path(self.who(), &path.bytes, &new).await.map(drop)?)
    }

    /// As [`Connected::mkdir`]; a private directory: all that is made below it is on one server.
    ///
    /// # Errors
    /// As mkdir(2).
    pub async fn mkdir_private(&self, path: &[u8], mode: u32) -> Result<()> {
        let path = parse(path)?;
        let new = NewFile { private: true, ..self.new_file(FileKind::Directory, mode & 0o1777) };
        Ok(self.client().create_path(self.who(), &path.bytes, &new).await.map(drop)?)
    }

    /// Makes a directory with all those above it that are missing; one that is there is fine.
    ///
    /// # Errors
    /// As mkdir(2).
    pub async fn mkdir_all(&self, path: &[u8], mode: u32) -> Result<()> {
        let path = parse(path)?;
        let mode = self.new_file(FileKind::Directory, mode & 0o1777).mode;
        Ok(self.client().mkdir_all(self.who(), &path.bytes, mode).await.map(drop)?)
    }

    /// How many servers the volume has.
    pub fn servers(&self) -> usize {
        self.client().map().servers.len()
    }

    /// rmdir(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn rmdir(&self, path: &[u8]) -> Result<()> {
        let path = parse(path)?;
        if path.ends_in_dot {
            return Err(Error::new(libc::EINVAL, format!("{}: '.' cannot be removed", path::shown(&path.bytes))));
        }
        Ok(self.client().rmdir_path(self.who(), &path.bytes).await?)
    }

    /// unlink(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn unlink(&self, path: &[u8]) -> Result<()> {
        let path = parse(path)?;
        if path.wants_dir {
            // It fails in any case; the kind of file decides how.
            let attr = self.client().resolve(self.who(), &path.bytes, true).await?;
            check_end(&path, &attr)?;
            return Err(Error::new(libc::EISDIR, format!("{}: is a directory", path::shown(&path.bytes))));
        }
        Ok(self.client().unlink_path(self.who(), &path.bytes).await?)
    }

    /// renameat2(2) with `flags` 0, `RENAME_NOREPLACE` or `RENAME_EXCHANGE`.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
        let (from, to) = (parse(from)?, parse(to)?);
        if from.ends_in_dot || to.ends_in_dot {
            return Err(Error::new(libc::EBUSY, "'.' cannot be renamed"));
        }
        let (client, who) = (self.client(), self.who());
        if from.wants_dir || to.wants_dir {
            let attr = client.resolve(who, &from.bytes, false).await?;
            check_end(&Path { wants_dir: true, ..from.clone() }, &attr)?;
        }
        match flags {
            0 | libc::RENAME_NOREPLACE => {
                Ok(client.rename_path(who, &from.bytes, &to.bytes, flags == libc::RENAME_NOREPLACE).await?)
            }
            libc::RENAME_EXCHANGE => {
                let (dir, name) = client.resolve_parent(who, &from.bytes).await?;
                let (to_dir, to_name) = client.resolve_parent(who, &to.bytes).await?;
                Ok(client.exchange(who, dir, &name, to_dir, &to_name).await?)
            }
            other => Err(Error::new(libc::EINVAL, format!("flags {other:#x} of renameat2(2) are not supported"))),
        }
    }

    /// link(2); with `follow` as linkat(2) does it with `AT_SYMLINK_FOLLOW`.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn link(&self, target: &[u8], path: &[u8], follow: bool) -> Result<()> {
        let attr = self.find(target, follow).await?;
        if attr.kind == FileKind::Directory {
            return Err(Error::new(libc::EPERM, format!("{}: a directory has one name", path::shown(target))));
        }
        let path = self.new_name(path).await?;
        let (dir, name) = self.client().resolve_parent(self.who(), &path).await?;
        Ok(self.client().link(self.who(), attr.ino, dir, &name).await.map(drop)?)
    }

    /// symlink(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        if target.is_empty() {
            return Err(Error::new(libc::ENOENT, "a symbolic link needs a target"));
        }
        if target.len() > TARGET_BYTES_MAX {
            let text = format!("a target of {} bytes: at most {TARGET_BYTES_MAX} are possible", target.len());
            return Err(Error::new(libc::ENAMETOOLONG, text));
        }
        let path = self.new_name(path).await?;
        let new = NewFile { target: target.to_vec(), mode: 0o777, ..self.new_file(FileKind::Symlink, 0) };
        Ok(self.client().create_path(self.who(), &path, &new).await.map(drop)?)
    }

    /// A path that is to be given to something that is no directory.
    async fn new_name(&self, path: &[u8]) -> Result<Vec<u8>> {
        let path = parse(path)?;
        if path.wants_dir {
            let there = self.client().resolve(self.who(), &path.bytes, true).await;
            let errno = if there.is_ok() { libc::EEXIST } else { libc::ENOENT };
            return Err(Error::new(errno, format!("{}: only a directory has such a path", path::shown(&path.bytes))));
        }
        Ok(path.bytes)
    }

    /// readlink(2): the whole target.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let attr = self.find(path, false).await?;
        if attr.kind != FileKind::Symlink {
            return Err(Error::new(libc::EINVAL, format!("{}: is no symbolic link", path::shown(path))));
        }
        Ok(self.client().readlink(self.who(), attr.ino).await?)
    }

    /// truncate(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn truncate(&self, path: &[u8], length: u64) -> Result<()> {
        let attr = self.find(path, true).await?;
        Ok(self.client().truncate(self.who(), attr.ino, length, None).await.map(drop)?)
    }

    /// chmod(2); without `follow` a symbolic link itself is refused with EOPNOTSUPP.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn chmod(&self, path: &[u8], mode: u32, follow: bool) -> Result<()> {
        let attr = self.find(path, follow).await?;
        if attr.kind == FileKind::Symlink {
            return Err(Error::new(libc::EOPNOTSUPP, format!("{}: a symbolic link has no mode", path::shown(path))));
        }
        self.change(attr.ino, Change { mode: Some(mode & 0o7777), ..Change::default() }).await
    }

    /// chown(2), or lchown(2) without `follow`; `None` leaves user or group as it is.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn chown(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>, follow: bool) -> Result<()> {
        let attr = self.find(path, follow).await?;
        self.change(attr.ino, Change { uid, gid, ..Change::default() }).await
    }

    /// utimensat(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn set_times(&self, path: &[u8], times: Times, follow: bool) -> Result<()> {
        let attr = self.find(path, follow).await?;
        self.change(attr.ino, Change { atime: times.access, mtime: times.modification, ..Change::default() }).await
    }

    pub(crate) async fn change(&self, ino: Ino, change: Change) -> Result<()> {
        if change == Change::default() {
            return Ok(());
        }
        Ok(self.client().setattr(self.who(), ino, &change).await.map(drop)?)
    }

    /// getxattr(2), or lgetxattr(2) without `follow`: the whole value.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn get_xattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<Vec<u8>> {
        let attr = self.find(path, follow).await?;
        Ok(self.client().get_xattr(self.who(), attr.ino, name).await?)
    }

    /// listxattr(2): the names.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn list_xattr(&self, path: &[u8], follow: bool) -> Result<Vec<Vec<u8>>> {
        let attr = self.find(path, follow).await?;
        Ok(self.client().list_xattr(self.who(), attr.ino).await?)
    }

    /// setxattr(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], how: XattrHow, follow: bool) -> Result<()> {
        let attr = self.find(path, follow).await?;
        Ok(self.client().set_xattr(self.who(), attr.ino, name, value, how).await?)
    }

    /// removexattr(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn remove_xattr(&self, path: &[u8], name: &[u8], follow: bool) -> Result<()> {
        let attr = self.find(path, follow).await?;
        Ok(self.client().remove_xattr(self.who(), attr.ino, name).await?)
    }

    /// The space of the volume: statvfs(3).
    ///
    /// # Errors
    /// EIO or ETIMEDOUT if a server does not answer.
    pub async fn space(&self) -> Result<Space> {
        Ok(self.client().statfs().await?)
    }

    /// Makes durable all that any client has been told is done: syncfs(2).
    ///
    /// # Errors
    /// EIO if a server cannot, or was started again since.
    pub async fn sync(&self) -> Result<()> {
        Ok(self.client().sync(self.who()).await?)
    }
}

fn defect() -> Error {
    Error::new(libc::EIO, "a defect in Azekura has ended this connection: close the volume and open it again")
}

/// A path that ends in `/` leads to a directory.
pub(crate) fn check_end(path: &Path, attr: &Attr) -> Result<()> {
    if path.wants_dir && attr.kind != FileKind::Directory {
        let failure = Failure::from(aze_proto::error::Code::NotDirectory);
        return Err(Error::from(failure).during(path::shown(&path.bytes)));
    }
    Ok(())
}

/// The mask of this process (proc_pid_status(5)); 022 where the system does not tell it (Linux before 4.7).
fn umask_of_process() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}
