//! Calls on open files and directories: data, positions, room, contents.

use crate::call::Call;
use crate::channel::Answer;
use crate::description::{Description, Kind};
use crate::error::{Result, errno, failed};
use crate::mapped::{self, Changed};
use crate::panics::Held;
use crate::shared::HeldPosition;
use crate::sys;
use aze_calls::{POSITION, WINDOW_BYTES};
use aze_client::{File, Room};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Ino;
use aze_proto::limits::FILE_BYTES_MAX;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that one copy_file_range(2) copies at most, so that it ends in time: programs go on with the rest.
const COPY_BYTES_MAX: u64 = 32 << 20;

/// Modes of fallocate(2) that Linux knows: it refuses others before it looks at the file.
const ALLOCATE_MODES: i32 = libc::FALLOC_FL_KEEP_SIZE
    | libc::FALLOC_FL_PUNCH_HOLE
    | libc::FALLOC_FL_COLLAPSE_RANGE
    | libc::FALLOC_FL_ZERO_RANGE
    | libc::FALLOC_FL_INSERT_RANGE
    | libc::FALLOC_FL_UNSHARE_RANGE;

/// Bytes of an entry in a listing before its name: `d_name` of struct linux_dirent64.
const DIRENT_BYTES: usize = 19;

impl Call<'_> {
    /// read(2) and pread(2).
    pub fn read(&mut self) -> Result<Answer> {
        let description = self.description()?;
        let len = self.window_len()?;
        let file = description.for_reading()?;
        let agent = self.agent;
        self.stored_is_written(description.ino);
        let mut from = From::of(&description, self.request.offset)?;
        from.check(len)?;
        let count = agent.wait(file.read_as_opened(from.at, self.window.bytes(len)))?;
        from.moved(count);
        Ok(Answer::of(count as u64))
    }

    /// write(2) and pwrite(2).
    pub fn write(&mut self) -> Result<Answer> {
        let description = self.description()?;
        let len = self.window_len()?;
        let file = description.for_writing()?;
        let agent = self.agent;
        let data = self.window.bytes(len);
        // Where Linux appends, it does so wherever pwrite(2) is told to write (its section BUGS).
        let flags = description.flags();
        let mut to = From::of(&description, self.request.offset)?;
        to.check(len)?;
        if flags & libc::O_APPEND != 0 {
            if len > 0 {
                to.at = agent.mapped.changing(agent, description.ino, || {
                    let begin = agent.wait(file.append(data))?;
                    Ok((begin, Changed::Bytes(begin..begin + len as u64)))
                })?;
            }
        } else {
            let room =
                FILE_BYTES_MAX.checked_sub(to.at).filter(|room| *room > 0 || len == 0).ok_or(errno(libc::EFBIG))?;
            if len as u64 > room {
                return Err(errno(libc::EFBIG));
            }
            agent.mapped.changing(agent, description.ino, || {
                agent.wait(file.write(to.at, data))?;
                Ok(((), Changed::Bytes(to.at..to.at + len as u64)))
            })?;
        }
        if flags & libc::O_DSYNC != 0 {
            agent.wait(file.sync())?;
        }
        to.moved(len);
        Ok(Answer::of(len as u64))
    }

    /// lseek(2).
    pub fn seek(&self) -> Result<Answer> {
        let description = self.description()?;
        let (offset, whence) = (self.request.offset as i64, self.request.a as i32);
        match &description.kind {
            Kind::Place => Err(errno(libc::EBADF)),
            Kind::Directory(_, dir) => {
                let from = match whence {
                    libc::SEEK_SET => 0,
                    libc::SEEK_CUR => dir.tell()?,
                    _ => return Err(errno(libc::EINVAL)),
                };
                let place = from.checked_add_signed(offset).filter(|place| i64::try_from(*place).is_ok());
                let place = place.ok_or(errno(libc::EINVAL))?;
                if whence == libc::SEEK_SET || offset != 0 {
                    dir.seek(place)?;
                }
                Ok(Answer::of(place))
            }
            Kind::File(file) => self.seek_in(&description, file, offset, whence),
        }
    }

    fn seek_in(&self, description: &Description, file: &Arc<File>, offset: i64, whence: i32) -> Result<Answer> {
        let _held = Held::begin();
        let mut position = description.position.lock();
        #[cfg(debug_assertions)]
        assert!(whence != aze_calls::PLANTED as i32, "planted, with a position locked");
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *position,
            libc::SEEK_END => self.attr_of(description)?.size,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let from = u64::try_from(offset).map_err(|_| errno(libc::ENXIO))?;
                self.stored_is_written(description.ino);
                let found = self.agent.wait_for(file.seek(from, whence == libc::SEEK_HOLE))?;
                *position = match found {
                    Err(Failure { code: Code::NotFound, .. }) => return Err(errno(libc::ENXIO)),
                    found => found?,
                };
                return Ok(Answer::of(*position));
            }
            _ => return Err(errno(libc::EINVAL)),
        };
        let place = base.checked_add_signed(offset).filter(|place| i64::try_from(*place).is_ok());
        *position = place.ok_or(errno(libc::EINVAL))?;
        Ok(Answer::of(*position))
    }

    /// getdents64(2).
    pub fn read_dir(&mut self) -> Result<Answer> {
        let description = self.description()?;
        let dir = description.directory()?;
        // The listing, which others read on, would be left half-changed by a panic.
        let _held = Held::begin();
        let window = self.window.bytes(usize::try_from(self.request.len).unwrap_or(WINDOW_BYTES));
        let (mut filled, mut was_full) = (0, false);
        dir.read_while(|entry| {
            let len = (DIRENT_BYTES + entry.name.len() + 1).next_multiple_of(8);
            let Some(place) = window.get_mut(filled..filled + len) else {
                was_full = true;
                return false;
            };
            place.fill(0);
            place[..8].copy_from_slice(&entry.ino.to_ne_bytes());
            place[8..16].copy_from_slice(&entry.next.to_ne_bytes());
            place[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
            place[18] = (entry.kind.mode_bits() >> 12) as u8;
            place[DIRENT_BYTES..][..entry.name.len()].copy_from_slice(&entry.name);
            filled += len;
            true
        })?;
        if filled == 0 && was_full {
            return Err(failed(libc::EINVAL, "the next entry of the directory is longer than the buffer"));
        }
        Ok(Answer::of(filled as u64))
    }

    /// ftruncate(2).
    pub fn truncate_open(&self) -> Result<Answer> {
        let description = self.description()?;
        let len = i64::try_from(self.request.len).map_err(|_| errno(libc::EINVAL))? as u64;
        let file = match &description.kind {
            Kind::Place => return Err(errno(libc::EBADF)),
            _ => description.for_writing().map_err(|_| errno(libc::EINVAL))?,
        };
        let (client, who) = (self.agent.client(), self.agent.who());
        self.agent.mapped.changing(self.agent, file.ino(), || {
            self.agent.wait(client.truncate(who, file.ino(), len, Some(file)))?;
            Ok((Answer::default(), Changed::Len(len)))
        })
    }

    /// fsync(2).
    pub fn sync(&self) -> Result<Answer> {
        let description = self.description()?;
        match &description.kind {
            Kind::Place => return Err(errno(libc::EBADF)),
            Kind::Directory(..) => self.agent.wait(self.agent.client().sync(self.agent.who()))?,
            Kind::File(file) => {
                if let Some(copies) = self.agent.mapped.of(description.ino) {
                    copies.write_back(self.agent, 0..u64::MAX)?;
                }
                self.agent.wait(file.sync())?;
            }
        }
        Ok(Answer::default())
    }

    /// What close(2) asks for: pending writes and their errors.
    pub fn flush(&self) -> Result<Answer> {
        if let Kind::File(file) = &self.description()?.kind {
            self.agent.wait(file.flush_for_close())?;
        }
        Ok(Answer::default())
    }

    /// sync(2) and syncfs(2).
    pub fn sync_all(&self) -> Result<Answer> {
        self.agent.mapped.settle(self.agent)?;
        self.agent.wait(self.agent.client().sync(self.agent.who()))?;
        Ok(Answer::default())
    }

    /// fallocate(2).
    pub fn allocate(&self) -> Result<Answer> {
        let description = self.description()?;
        let (offset, len) = (self.request.offset, self.request.len);
        if i64::try_from(offset).is_err() || i64::try_from(len).is_err() || len == 0 {
            return Err(errno(libc::EINVAL));
        }
        let mode = self.request.a as i32;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let punches = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        if mode & !ALLOCATE_MODES != 0 || punches && (!keep_size || mode & libc::FALLOC_FL_ZERO_RANGE != 0) {
            return Err(errno(libc::EOPNOTSUPP));
        }
        let file = description.for_writing()?;
        let room = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Room::Reserved,
            libc::FALLOC_FL_ZERO_RANGE => Room::Zeroed,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Room::Hole,
            // Modes that move the bytes behind the range, as on a mount.
            _ => return Err(errno(libc::EOPNOTSUPP)),
        };
        self.agent.mapped.changing(self.agent, description.ino, || {
            self.agent.wait(file.make_room(room, offset, len, keep_size))?;
            let end = offset.saturating_add(len);
            let end = if keep_size { end.min(self.attr_of(&description)?.size) } else { end };
            Ok((Answer::default(), Changed::Bytes(offset.min(end)..end)))
        })
    }

    /// What programs have stored in a shared mapping of a file is written, so that a call finds it. What cannot be written now
    /// is written later, and told by msync(2) and fsync(2).
    pub fn stored_is_written(&self, ino: Ino) {
        let Some(copies) = self.agent.mapped.of(ino) else { return };
        if let Err(fault) = copies.write_back(self.agent, 0..u64::MAX) {
            self.agent.say(format_args!("write what was stored in a mapping of inode {ino}: {fault:?}"));
        }
    }

    /// mmap(2), shared and open for reading and writing.
    pub fn map(&self) -> Result<Answer> {
        let description = self.description()?;
        let file = match &description.kind {
            Kind::File(file) if description.for_reading().and(description.for_writing()).is_ok() => file,
            Kind::File(_) => return Err(errno(libc::EACCES)),
            Kind::Directory(..) => return Err(errno(libc::ENODEV)),
            Kind::Place => return Err(errno(libc::EBADF)),
        };
        let seen = self.agent.mapped.begin(self.agent, file, || Ok(self.attr_of(&description)?.size))?;
        Ok(Answer { passed: Some(seen), desc: file.ino().0, ..Answer::default() })
    }

    /// msync(2), and the end of mappings.
    pub fn settle(&self) -> Result<Answer> {
        let (offset, ino) = (self.request.offset, Ino(self.request.b));
        if self.request.b == 0 {
            self.agent.mapped.settle(self.agent)?;
        } else if let Some(copies) = self.agent.mapped.of(ino) {
            copies.write_back(self.agent, offset..offset.saturating_add(self.request.len))?;
            if self.request.a & 1 != 0 {
                copies.sync(self.agent)?;
            }
        }
        Ok(Answer::default())
    }

    /// A file in memory with the same contents, for mmap(2) and execve(2).
    pub fn contents(&self) -> Result<Answer> {
        let description = self.description()?;
        let file = description.for_reading()?;
        let (offset, len) = (self.request.offset, self.request.len);
        let size = self.attr_of(&description)?.size;
        let end = offset.saturating_add(len).min(size);
        self.stored_is_written(description.ino);
        let memory = sys::executable_memory_file()?;
        memory.set_len(end.saturating_sub(offset))?;
        mapped::copy_data(self.agent, file, offset..end, |at, bytes| memory.write_all_at(bytes, at - offset))?;
        sys::seal(&memory, libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
        Ok(Answer { passed: Some(memory.into()), ..Answer::default() })
    }

    /// copy_file_range(2).
    pub fn copy(&self) -> Result<Answer> {
        let (from, to) = (self.description()?, self.agent.descriptions.get(self.request.a)?);
        if [&from, &to].iter().any(|one| matches!(one.kind, Kind::Directory(..))) {
            return Err(errno(libc::EISDIR));
        }
        let (source, target) = (from.for_reading()?, to.for_writing()?);
        if to.flags() & libc::O_APPEND != 0 {
            return Err(errno(libc::EBADF));
        }
        let mut len = self.request.len.min(COPY_BYTES_MAX);
        let is_one = from.number == to.number;
        if is_one && self.request.offset == POSITION && self.request.b == POSITION {
            // One position for both: the ranges are the same.
            let at = From::of(&from, POSITION)?.at;
            let is_empty = len == 0 || self.attr_of(&from)?.size <= at;
            return if is_empty { Ok(Answer::of(0)) } else { Err(errno(libc::EINVAL)) };
        }
        // Every call takes the locks of two positions in the same order.
        let (mut reading, mut writing);
        if from.number <= to.number {
            reading = From::of(&from, self.request.offset)?;
            writing = From::of(&to, self.request.b)?;
        } else {
            writing = From::of(&to, self.request.b)?;
            reading = From::of(&from, self.request.offset)?;
        }
        let (from_at, to_at) = (reading.at, writing.at);
        if to_at >= FILE_BYTES_MAX {
            return Err(errno(libc::EFBIG));
        }
        self.stored_is_written(from.ino);
        if from.ino == to.ino {
            // What lies behind the file's end is not copied, and overlaps with nothing.
            len = len.min(self.attr_of(&from)?.size.saturating_sub(from_at));
            if len > 0 && from_at < to_at.saturating_add(len) && to_at < from_at.saturating_add(len) {
                return Err(errno(libc::EINVAL));
            }
        }
        let mut buffer = vec![0; usize::try_from(len).unwrap_or(WINDOW_BYTES).min(WINDOW_BYTES)];
        let done = self.agent.mapped.changing(self.agent, to.ino, || {
            let mut done = 0;
            while done < len {
                let part = usize::try_from(len - done).unwrap_or(WINDOW_BYTES).min(buffer.len());
                let copied = self.agent.wait(async {
                    let count = source.read_into(from_at + done, &mut buffer[..part]).await?;
                    target.write(to_at + done, &buffer[..count]).await?;
                    Ok(count)
                });
                match copied {
                    Ok(0) => break,
                    Ok(count) => done += count as u64,
                    // The part that was copied is told first.
                    Err(_) if done > 0 => break,
                    Err(fault) => return Err(fault),
                }
            }
            Ok((done, Changed::Bytes(to_at..to_at + done)))
        })?;
        reading.moved(done as usize);
        writing.moved(done as usize);
        Ok(Answer::of(done))
    }
}

/// Where a call reads or writes: a place of its own, or the description's, which moves on with it.
struct From<'a> {
    at: u64,
    position: Option<(HeldPosition<'a>, Held)>,
}

impl<'a> From<'a> {
    fn of(description: &'a Description, offset: u64) -> Result<From<'a>> {
        if offset == POSITION {
            let held = Held::begin();
            let position = description.position.lock();
            return Ok(From { at: *position, position: Some((position, held)) });
        }
        i64::try_from(offset).map_err(|_| errno(libc::EINVAL))?;
        Ok(From { at: offset, position: None })
    }

    /// EINVAL if a call of so many bytes would end where no offset can be.
    fn check(&self, bytes: usize) -> Result<()> {
        let end = self.at.checked_add(bytes as u64).and_then(|end| i64::try_from(end).ok());
        end.map(drop).ok_or(errno(libc::EINVAL))
    }

    fn moved(&mut self, bytes: usize) {
        if let Some((position, _)) = &mut self.position {
            **position = self.at + bytes as u64;
        }
    }
}
