//! Open files.

use crate::connected::{Connected, Times, check_end};
use crate::error::{Error, Result};
use crate::flags::Flags;
use crate::path::{self, Path, parse};
use aze_client::{Access, Created, NewFile, Room};
use aze_io::real::OfProcess;
use aze_io::sync::Mutex;
use aze_proto::attr::{Attr, Change, FileKind, XattrHow};
use aze_proto::error::{Code, Failure};
use aze_proto::limits::APPEND_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where lseek(2) counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The file's beginning: `SEEK_SET`.
    Start,
    /// The position: `SEEK_CUR`.
    Position,
    /// The file's end: `SEEK_END`.
    End,
    /// The next byte that is no hole: `SEEK_DATA`.
    Data,
    /// The next hole: `SEEK_HOLE`.
    Hole,
}

impl Whence {
    /// That of a number for lseek(2).
    pub fn of_number(whence: i32) -> Result<Whence> {
        match whence {
            libc::SEEK_SET => Ok(Whence::Start),
            libc::SEEK_CUR => Ok(Whence::Position),
            libc::SEEK_END => Ok(Whence::End),
            libc::SEEK_DATA => Ok(Whence::Data),
            libc::SEEK_HOLE => Ok(Whence::Hole),
            other => Err(Error::new(libc::EINVAL, format!("{other} is no place to seek from"))),
        }
    }
}

/// An open file or directory of this process, with a position. Closed when it is dropped; [`File::close`] tells whether
/// all is well. In a forked process every call fails with EBADF, and nothing is closed: the parent still has it.
pub struct File(OfProcess<Open>);

struct Open {
    connected: Arc<Connected>,
    file: Arc<aze_client::File>,
    /// The same file, opened for writing since ([`Flags::writes_later`]).
    writer: Mutex<Option<Arc<aze_client::File>>>,
    flags: Flags,
    kind: FileKind,
    /// Held during reads and writes that move it, so that those of two threads come one after the other, as open(2)
    /// has it.
    position: Mutex<u64>,
    is_closed: AtomicBool,
}

impl Connected {
    /// open(2). `mode` counts for a file that is made.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn open(self: &Arc<Connected>, path: &[u8], flags: Flags, mode: u32) -> Result<Arc<File>> {
        let path = parse(path)?;
        let (file, created) = match flags.create {
            true => self.create(&path, flags, mode).await?,
            false => (self.open_existing(&path, flags).await?, false),
        };
        let kind = file.attr().kind;
        if flags.directory && kind != FileKind::Directory {
            return Err(Error::new(libc::ENOTDIR, format!("{}: not a directory", path::shown(&path.bytes))));
        }
        if flags.writes_later && kind == FileKind::Directory {
            return Err(Error::new(libc::EISDIR, format!("{}: is a directory", path::shown(&path.bytes))));
        }
        check_end(&path, &file.attr())?;
        if !matches!(kind, FileKind::File | FileKind::Directory) {
            let text =
                format!("{}: devices, pipes and sockets are opened through a mount only", path::shown(&path.bytes));
            return Err(Error::new(libc::ENXIO, text));
        }
        if flags.truncate && !created && kind == FileKind::File {
            self.client().truncate(self.who(), file.ino(), 0, Some(&file)).await?;
        }
        let (connected, is_closed) = (self.clone(), AtomicBool::new(false));
        let (writer, position) = (Mutex::new(None), Mutex::new(0));
        let open = Open { connected, file, writer, flags, kind, position, is_closed };
        Ok(Arc::new(File(OfProcess::new(open))))
    }

    async fn open_existing(&self, path: &Path, flags: Flags) -> Result<Arc<aze_client::File>> {
        let (client, who) = (self.client(), self.who());
        if flags.no_follow {
            let attr = client.resolve(who, &path.bytes, path.wants_dir).await?;
            if attr.kind == FileKind::Symlink {
                return Err(Error::new(libc::ELOOP, format!("{}: is a symbolic link", path::shown(&path.bytes))));
            }
            return Ok(client.open(who, attr.ino, flags.access).await?);
        }
        // Small files that are read once need one request.
        let opened = match flags.direct || flags.truncate {
            true => client.open_path(who, &path.bytes, flags.access).await,
            false => client.open_path_with_contents(who, &path.bytes, flags.access).await,
        };
        Ok(opened?)
    }

    async fn create(&self, path: &Path, flags: Flags, mode: u32) -> Result<(Arc<aze_client::File>, bool)> {
        let is_dir = || Error::new(libc::EISDIR, format!("{}: is a directory", path::shown(&path.bytes)));
        if path.wants_dir {
            return Err(is_dir());
        }
        let exclusive = flags.exclusive || flags.no_follow;
        let (open, chunk_bits) = (Some(flags.access), flags.chunk_bits);
        let new = NewFile { exclusive, open, chunk_bits, ..self.new_file(FileKind::File, mode) };
        match self.client().create_path(self.who(), &path.bytes, &new).await {
            Ok(Created { file: Some(file), created, .. }) => Ok((file, created)),
            Ok(Created { attr, .. }) if attr.kind == FileKind::Directory => Err(is_dir()),
            Ok(_) => Err(Error::new(libc::ENXIO, format!("{}: no regular file", path::shown(&path.bytes)))),
            // Something is there: unless that is an error by itself, it is opened without following a link.
            Err(Failure { code: Code::Exists, .. }) if flags.no_follow && !flags.exclusive => {
                let file = self.open_existing(path, flags).await?;
                if file.attr().kind == FileKind::Directory { Err(is_dir()) } else { Ok((file, false)) }
            }
            Err(failure) => Err(failure.into()),
        }
    }
}

impl File {
    fn open(&self) -> Result<&Open> {
        let open = self.0.get().ok_or_else(|| Error::of_parent("the file"))?;
        if open.is_closed.load(Ordering::SeqCst) {
            return Err(Error::new(libc::EBADF, "the file was closed"));
        }
        Ok(open)
    }

    fn for_reading(&self) -> Result<&Open> {
        let open = self.open()?;
        match (open.kind, open.flags.access.read) {
            (FileKind::Directory, _) => Err(Error::new(libc::EISDIR, "a directory is read by its entries")),
            (_, false) => Err(Error::new(libc::EBADF, "the file was not opened for reading")),
            _ => Ok(open),
        }
    }

    fn for_writing(&self) -> Result<&Open> {
        let open = self.open()?;
        match open.flags.access.write || (open.flags.writes_later && open.kind == FileKind::File) {
            false => Err(Error::new(libc::EBADF, "the file was not opened for writing")),
            true => Ok(open),
        }
    }

    /// The connection that it was opened through.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn connected(&self) -> Result<Arc<Connected>> {
        Ok(self.open()?.connected.clone())
    }

    /// Whether it is a directory.
    ///
    /// # Errors
    /// EBADF in a forked process, and of a closed file.
    pub fn is_directory(&self) -> Result<bool> {
        Ok(self.open()?.kind == FileKind::Directory)
    }

    /// Whether it belongs to a process that this one was forked from, so that every call fails.
    pub fn is_of_parent(&self) -> bool {
        self.0.get().is_none()
    }

    /// Whether its connection has ended, so that every call fails.
    pub fn is_lost(&self) -> bool {
        self.0.get().is_none_or(|open| open.connected.check().is_err())
    }

    /// The flags that it was opened with.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn flags(&self) -> Result<Flags> {
        Ok(self.open()?.flags)
    }

    /// pread(2): fills `buffer` from `offset` on; gives fewer bytes only at the end of the file. Of a file of up to 64 KiB
    /// that was opened for reading only, less than a second ago, it may give what the open found.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let open = self.for_reading()?;
        Ok(open.latest().read_as_opened(offset, buffer).await?)
    }

    /// pwrite(2): writes all of `data` at `offset`, also if the file was opened for appending.
    ///
    /// # Errors
    /// As in its manual page; any part may have been written then.
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let open = self.for_writing()?;
        open.writer().await?.write(offset, data).await?;
        open.synced(data.len()).await
    }

    /// Adds `data` at the end of the file, wherever that is by then; gives where that end is afterwards. Up to 4 MiB
    /// stay together; longer data may have those of other programs in between.
    ///
    /// # Errors
    /// As write(2).
    pub async fn append(&self, data: &[u8]) -> Result<u64> {
        let open = self.for_writing()?;
        let mut end = 0;
        for part in data.chunks(APPEND_BYTES_MAX) {
            end = open.writer().await?.append(part).await? + part.len() as u64;
        }
        open.synced(data.len()).await?;
        Ok(end)
    }

    /// read(2): from the position, which it moves. Blocks.
    ///
    /// # Errors
    /// As in its manual page.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        let open = self.for_reading()?;
        let mut position = open.position.lock();
        let count = open.connected.wait(self.read_at(*position, buffer))?;
        *position += count as u64;
        Ok(count)
    }

    /// write(2): all of `data` at the position, which it moves, or at the end if the file was opened with `O_APPEND`.
    /// Blocks.
    ///
    /// # Errors
    /// As in its manual page.
    pub fn write(&self, data: &[u8]) -> Result<usize> {
        let open = self.for_writing()?;
        let mut position = open.position.lock();
        if data.is_empty() {
            return Ok(0);
        }
        if open.flags.append {
            *position = open.connected.wait(self.append(data))?;
        } else {
            open.connected.wait(self.write_at(*position, data))?;
            *position += data.len() as u64;
        }
        Ok(data.len())
    }

    /// lseek(2): the new position. Blocks where the file's end, data or holes are asked for.
    ///
    /// # Errors
    /// As in its manual page.
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64> {
        let open = self.open()?;
        let mut position = open.position.lock();
        let base = match whence {
            Whence::Start => 0,
            Whence::Position => *position,
            Whence::End => open.connected.wait(self.stat())?.size,
            Whence::Data | Whence::Hole => {
                let beyond = || Error::new(libc::ENXIO, "there is nothing beyond the end of the file");
                let from = u64::try_from(offset).map_err(|_| beyond())?;
                let found =
                    open.connected.wait(async { Ok(open.latest().seek(from, whence == Whence::Hole).await) })?;
                *position = match found {
                    Err(Failure { code: Code::NotFound, .. }) => return Err(beyond()),
                    found => found?,
                };
                return Ok(*position);
            }
        };
        let place = base.checked_add_signed(offset).filter(|place| i64::try_from(*place).is_ok());
        *position = place.ok_or_else(|| Error::new(libc::EINVAL, "a position is between 0 and 2^63 - 1"))?;
        Ok(*position)
    }

    /// fstat(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn stat(&self) -> Result<Attr> {
        let open = self.open()?;
        Ok(open.connected.client().getattr(open.connected.who(), open.file.ino()).await?)
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn truncate(&self, length: u64) -> Result<()> {
        let open = self.open()?;
        if self.for_writing().is_err() || open.kind != FileKind::File {
            return Err(Error::new(libc::EINVAL, "the file was not opened for writing"));
        }
        let (client, who, file) = (open.connected.client(), open.connected.who(), open.writer().await?);
        Ok(client.truncate(who, file.ino(), length, Some(&file)).await.map(drop)?)
    }

    /// fsync(2): written data are as durable as the volume promises.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn sync(&self) -> Result<()> {
        let open = self.open()?;
        match open.kind {
            FileKind::Directory => open.connected.sync().await,
            _ => Ok(open.latest().sync().await?),
        }
    }

    /// fallocate(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn make_room(&self, room: Room, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let open = self.for_writing()?;
        Ok(open.writer().await?.make_room(room, offset, length, keep_size).await?)
    }

    /// fchmod(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn chmod(&self, mode: u32) -> Result<()> {
        self.change(Change { mode: Some(mode & 0o7777), ..Change::default() }).await
    }

    /// fchown(2); `None` leaves user or group as it is.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change(Change { uid, gid, ..Change::default() }).await
    }

    /// futimens(3).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn set_times(&self, times: Times) -> Result<()> {
        self.change(Change { atime: times.access, mtime: times.modification, ..Change::default() }).await
    }

    async fn change(&self, change: Change) -> Result<()> {
        let open = self.open()?;
        open.connected.change(open.file.ino(), change).await
    }

    /// fgetxattr(2): the whole value.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn get_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        let open = self.open()?;
        Ok(open.connected.client().get_xattr(open.connected.who(), open.file.ino(), name).await?)
    }

    /// fsetxattr(2).
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn set_xattr(&self, name: &[u8], value: &[u8], how: XattrHow) -> Result<()> {
        let open = self.open()?;
        Ok(open.connected.client().set_xattr(open.connected.who(), open.file.ino(), name, value, how).await?)
    }

    /// close(2). Calls after it fail with EBADF; a second one, too. Blocks.
    ///
    /// # Errors
    /// As in its manual page; the file is closed all the same.
    pub fn close(&self) -> Result<()> {
        self.connected()?.wait(self.close_and_tell())
    }

    /// As [`File::close`], without blocking.
    ///
    /// # Errors
    /// As [`File::close`].
    pub async fn close_and_tell(&self) -> Result<()> {
        let open = self.open()?;
        if open.is_closed.swap(true, Ordering::SeqCst) {
            return Err(Error::new(libc::EBADF, "the file was closed"));
        }
        let writer = open.writer.lock().take();
        let written = match writer {
            Some(writer) => writer.close().await,
            None => Ok(()),
        };
        open.file.close().await?;
        Ok(written?)
    }

    pub(crate) fn client_file(&self) -> Result<&Arc<aze_client::File>> {
        Ok(&self.open()?.file)
    }
}

impl Open {
    /// The file as the last call that needed more than reading has opened it.
    fn latest(&self) -> Arc<aze_client::File> {
        self.writer.lock().clone().unwrap_or_else(|| self.file.clone())
    }

    /// The file for a call that writes.
    async fn writer(&self) -> Result<Arc<aze_client::File>> {
        if self.flags.access.write {
            return Ok(self.file.clone());
        }
        if let Some(writer) = self.writer.lock().clone() {
            return Ok(writer);
        }
        let access = Access { read: true, write: true };
        let opened = self.connected.client().open(self.connected.who(), self.file.ino(), access).await?;
        // Another thread may have been first.
        Ok(self.writer.lock().get_or_insert(opened).clone())
    }

    /// The end of a write of so many bytes.
    async fn synced(&self, written: usize) -> Result<usize> {
        if self.flags.sync {
            self.latest().sync().await?;
        }
        Ok(written)
    }
}
