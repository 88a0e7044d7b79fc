//! A file to which little is added at a time and much of it synced. Its room is set aside in steps and
//! filled with zeros, so that a sync has to write the bytes only: neither a length nor places on the
//! disk change with it, for which a file system has a journal of its own.

use super::pool::Pool;
use super::{failed, read_at};
use crate::Boxed;
use crate::disk::{DiskFile, DiskResult};
use crate::sync::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Room is set aside up to the next multiple of this, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// Appends of this many bytes are synced seldom: room prepared for them with zeros would only be written twice.
const LARGE_BYTES: usize = 64 << 10;

/// A write into memory of the system takes some microseconds. One that took so long has waited for the
/// disk; shorter ones may have lost their core for a moment.
const SLOW: Duration = Duration::from_millis(20);

/// How long threads with other work do not write, after a slow write.
const SLOW_REST: Duration = Duration::from_secs(1);

pub(super) struct Log {
    file: Arc<File>,
    path: PathBuf,
    pool: Arc<Pool>,
    ends: Arc<Mutex<Ends>>,
}

/// Of an empty file all are 0.
#[derive(Default)]
struct Ends {
    /// Where the next bytes go.
    written: u64,
    /// Where the file ends.
    prepared: u64,
    /// Until when writes may wait for the disk.
    slow_until: Option<Instant>,
}

impl Ends {
    /// Whether so many bytes can be written at once.
    fn have_room(&self, bytes: usize) -> bool {
        bytes <= LARGE_BYTES
            && self.written + bytes as u64 <= self.prepared
            && self.slow_until.is_none_or(|until| Instant::now() >= until)
    }
}

impl Log {
    /// Of an empty file.
    pub(super) fn new(file: File, path: PathBuf, pool: Arc<Pool>) -> Log {
        Log { file: Arc::new(file), path, pool, ends: Arc::default() }
    }
}

fn append(file: &File, ends: &mut Ends, mut bytes: Vec<u8>) -> std::io::Result<()> {
    let (at, count) = (ends.written, bytes.len() as u64);
    let end = at + count;
    if end > ends.prepared {
        ends.prepared = end;
        if bytes.len() < LARGE_BYTES {
            ends.prepared = end.next_multiple_of(STEP_BYTES);
            bytes.resize((ends.prepared - at) as usize, 0);
        }
    }
    file.write_all_at(&bytes, at)?;
    ends.written = end;
    Ok(())
}

impl DiskFile for Log {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        let size = self.ends.lock().prepared;
        Box::pin(async move { Ok(size) })
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        let (file, path) = (self.file.clone(), self.path.clone());
        Box::pin(self.pool.run(move || read_at(&file, offset, len).map_err(|error| failed("read", &path, &error))))
    }

    fn append(&self, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        let (file, path, ends) = (self.file.clone(), self.path.clone(), self.ends.clone());
        Box::pin(
            self.pool
                .run(move || append(&file, &mut ends.lock(), bytes).map_err(|error| failed("write to", &path, &error))),
        )
    }

    fn append_now(&self, bytes: Vec<u8>) -> Result<DiskResult<()>, Vec<u8>> {
        let Some(mut ends) = self.ends.try_lock().filter(|ends| ends.have_room(bytes.len())) else { return Err(bytes) };
        let began = Instant::now();
        let done = append(&self.file, &mut ends, bytes);
        let took = began.elapsed();
        ends.slow_until = (took >= SLOW).then(|| began + took + SLOW_REST);
        Ok(done.map_err(|error| failed("write to", &self.path, &error)))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        let (file, path) = (self.file.clone(), self.path.clone());
        Box::pin(self.pool.run(move || file.sync_data().map_err(|error| failed("sync", &path, &error))))
    }
}
