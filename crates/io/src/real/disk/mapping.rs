//! A file, or a device of persistent memory, that is mapped into this process.
//!
//! Where the kernel grants `MAP_SYNC`, the mapping is the persistent memory itself: written bytes are durable when the
//! lines of the processor's cache that hold them have been written back, for which there are instructions, and no
//! system call is needed. Everywhere else the mapping is the system's cache of the file, and `msync` makes it durable.

use super::pool::Pool;
use super::{check_own, failed, lock_alone, set_aside, unfit};
use crate::Task;
use crate::disk::{Dir, DiskResult};
use crate::mapped::{self, BLOCK_BITS_DEFAULT, Files, Hands, Memory, Work};
use flush::Lines;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

mod flush;

/// Shortest file that is taken, in bytes: a server's journal and a few segments must fit.
const FILE_BYTES_MIN: u64 = 1 << 30;

/// Bytes that are looked at together for anything but zeros.
const LOOK_BYTES: usize = 1 << 20;

/// Opens the directory within a file or device that is there.
pub(super) fn open_dir(path: &Path, names: Arc<Pool>, places: Arc<Pool>) -> DiskResult<Arc<dyn Dir>> {
    let mapping = Mapping::open(path)?;
    let is_quick = mapping.lines.is_some();
    let medium = match is_quick {
        true => "persistent memory",
        false => "not persistent memory: synced by the kernel",
    };
    let files = Files::open(Arc::new(mapping), BLOCK_BITS_DEFAULT)?;
    Ok(mapped::open_dir(files, Arc::new(Threads { names, places, is_quick }), medium))
}

/// The threads of a directory. Places in memory are not worth waking one.
struct Threads {
    names: Arc<Pool>,
    places: Arc<Pool>,
    is_quick: bool,
}

impl Hands for Threads {
    fn work(&self, work: Work, job: Box<dyn FnOnce() + Send>) {
        match work {
            Work::Places if self.is_quick => job(),
            Work::Places => self.places.post(job),
            Work::Names => self.names.post(job),
        }
    }

    fn spawn(&self, task: Task) {
        self.names.spawn(task);
    }
}

struct Mapping {
    path: PathBuf,
    name: String,
    /// Holds the lock, too.
    file: File,
    /// Whether the file has a file system's room, and not a device's.
    is_regular: bool,
    start: NonNull<u8>,
    bytes: usize,
    /// How lines of the cache are written back; `None`: the system is asked to sync.
    lines: Option<Lines>,
}

// SAFETY: the mapping is memory of the process, which is reached through raw copies only, from any thread; it is
// unmapped when the last owner goes.
unsafe impl Send for Mapping {}
// SAFETY: as above. Copies of one range at the same time give a mixture of bytes if one of them writes: a reader
// notices, since files keep checksums, and copies make no references into the mapping.
unsafe impl Sync for Mapping {}

/// The length of a file or device that can be mapped.
fn length(path: &Path, about: &Metadata) -> DiskResult<u64> {
    let kind = about.file_type();
    if kind.is_file() {
        return Ok(about.len());
    }
    if kind.is_block_device() {
        return Err(unfit(path, "it is a block device: make a file system on it, and give a directory there"));
    }
    if kind.is_char_device() {
        let (major, minor) = (libc::major(about.rdev()), libc::minor(about.rdev()));
        let system = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
        let subsystem = fs::read_link(system.join("subsystem")).unwrap_or_default();
        let size = fs::read_to_string(system.join("size")).ok().and_then(|text| text.trim().parse().ok());
        if let Some(bytes) = size.filter(|_| subsystem.file_name().is_some_and(|name| name == "dax")) {
            return Ok(bytes);
        }
    }
    Err(unfit(path, "it is neither a directory, nor a file, nor a device of persistent memory (/dev/daxX.Y)"))
}

impl Mapping {
    fn open(path: &Path) -> DiskResult<Mapping> {
        // Devices are looked at before they are opened, which can have effects.
        length(path, &path.metadata().map_err(|error| failed("look at", path, &error))?)?;
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| failed("open", path, &error))?;
        let about = file.metadata().map_err(|error| failed("look at", path, &error))?;
        let is_regular = about.file_type().is_file();
        if is_regular {
            check_own(path)?;
        }
        let bytes = length(path, &about)?;
        if bytes < FILE_BYTES_MIN {
            let (name, least) = (path.display(), FILE_BYTES_MIN >> 20);
            let why = format!(
                "it has {bytes} bytes, and at least {least} MiB are needed: 'truncate -s SIZE {name}' makes a new file \
                 longer"
            );
            return Err(unfit(path, &why));
        }
        lock_alone(&file, path)?;
        let bytes = usize::try_from(bytes).map_err(|_| unfit(path, "it is too large to be mapped"))?;
        let (start, lines) = map(path, &file, bytes, is_regular)?;
        let name = path.display().to_string();
        Ok(Mapping { path: path.into(), name, file, is_regular, start, bytes, lines })
    }

    fn at(&self, at: u64, bytes: u64) -> *mut u8 {
        let is_within = at.checked_add(bytes).is_some_and(|end| end <= self.bytes as u64);
        assert!(is_within, "{bytes} bytes at {at} are not within {}", self.name);
        // SAFETY: just checked to be within the mapping, which is one object.
        unsafe { self.start.as_ptr().add(at as usize) }
    }

    fn written(&self, at: u64, bytes: u64) {
        if let Some(lines) = self.lines {
            lines.write_back(self.at(at, bytes), bytes as usize);
        }
    }

    fn first_in_file(&self, mut at: u64) -> io::Result<Option<u64>> {
        let mut buffer = vec![0; LOOK_BYTES];
        while at < self.bytes as u64 {
            // SAFETY: takes a descriptor, which `file` keeps open, and no memory.
            let data = unsafe { libc::lseek(self.file.as_raw_fd(), at.cast_signed(), libc::SEEK_DATA) };
            match u64::try_from(data) {
                Ok(data) => at = data.max(at),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    return if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) };
                }
            }
            let count = self.file.read_at(&mut buffer, at)?;
            if let Some(first) = buffer[..count].iter().position(|byte| *byte != 0) {
                return Ok(Some(at + first as u64));
            }
            if count == 0 {
                break;
            }
            at += count as u64;
        }
        Ok(None)
    }
}

/// Maps a file: as persistent memory if it is.
fn map(path: &Path, file: &File, bytes: usize, is_regular: bool) -> DiskResult<(NonNull<u8>, Option<Lines>)> {
    let map = |flags| {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel picks addresses that nothing uses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(NonNull::new(start.cast()).expect("the kernel maps nothing at address zero unasked"))
    };
    let refused = match Lines::of_this_processor() {
        Some(lines) => match map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) {
            Ok(start) => return Ok((start, Some(lines))),
            Err(error) => error.to_string(),
        },
        None => "not on this processor".into(),
    };
    if !is_regular {
        return Err(unfit(path, &format!("it cannot be used as persistent memory: map with MAP_SYNC: {refused}")));
    }
    // The first error is dropped: if this mapping fails too, its error tells.
    let start = map(libc::MAP_SHARED).map_err(|error| failed("map", path, &error))?;
    Ok((start, None))
}

impl Memory for Mapping {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        let from = self.at(at, to.len() as u64);
        // SAFETY: the source is mapped, the target is exclusively borrowed and as long.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let to = self.at(at, bytes.len() as u64);
        // SAFETY: the target is mapped and no Rust object; the source cannot overlap it, since nothing gives out
        // references into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        self.written(at, bytes.len() as u64);
    }

    fn zero(&self, at: u64, bytes: u64) {
        let to = self.at(at, bytes);
        // SAFETY: the target is mapped and no Rust object.
        unsafe { std::ptr::write_bytes(to, 0, bytes as usize) };
        self.written(at, bytes);
    }

    fn sync(&self, at: u64, bytes: u64) -> DiskResult<()> {
        if self.lines.is_some() || bytes == 0 {
            // It is durable since it was written.
            return Ok(());
        }
        let page = page_bytes();
        let from = at / page * page;
        let bytes = at + bytes - from;
        // SAFETY: the range is mapped, and no memory of Rust's.
        if unsafe { libc::msync(self.at(from, bytes).cast(), bytes as usize, libc::MS_SYNC) } == 0 {
            return Ok(());
        }
        Err(failed("sync", &self.path, &io::Error::last_os_error()))
    }

    fn prepare(&self) -> DiskResult<()> {
        let about = self.file.metadata().map_err(|error| failed("look at", &self.path, &error))?;
        if !self.is_regular || about.blocks().saturating_mul(512) >= self.bytes as u64 {
            return Ok(());
        }
        // A file system that has no room when a page is touched first ends the process.
        set_aside(&self.file, self.bytes as u64)
            .map_err(|error| failed("set aside the room of", &self.path, &error))?;
        self.file.sync_all().map_err(|error| failed("sync", &self.path, &error))
    }

    fn first_data(&self, mut at: u64) -> DiskResult<Option<u64>> {
        if self.is_regular {
            // Without touching holes, which would take room.
            return self.first_in_file(at).map_err(|error| failed("read", &self.path, &error));
        }
        let mut buffer = vec![0; LOOK_BYTES];
        while at < self.bytes() {
            let count = (self.bytes() - at).min(LOOK_BYTES as u64) as usize;
            self.read(at, &mut buffer[..count]);
            if let Some(first) = buffer[..count].iter().position(|byte| *byte != 0) {
                return Ok(Some(at + first as u64));
            }
            at += count as u64;
        }
        Ok(None)
    }
}

fn page_bytes() -> u64 {
    // SAFETY: takes no pointer.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers into it.
        let unmapped = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        assert!(unmapped == 0, "a mapping can be unmapped");
    }
}
