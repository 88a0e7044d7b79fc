//! Open files of simulated nodes: those that grow, and those of fixed length.

use super::dir::{Place, missing};
use super::faults::{Call, DiskFault};
use super::file::SimFile;
use super::{SYNC_NS, WRITE_NS};
use crate::Boxed;
use crate::disk::{DiskError, DiskFile, DiskResult, FixedFile};

pub(super) struct SimHandle {
    pub(super) place: Place,
    pub(super) id: u64,
}

impl SimHandle {
    async fn with<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut SimFile) -> DiskResult<T>,
    ) -> DiskResult<T> {
        self.try_with(ns, call, |file, trouble| trouble.map_or_else(|| op(file), Err)).await
    }

    /// `op` is told what goes wrong.
    async fn try_with<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut SimFile, Option<DiskError>) -> DiskResult<T>,
    ) -> DiskResult<T> {
        let id = self.id;
        self.place
            .try_run(ns, call, |state, key, trouble| {
                let file = state.disks.dirs.get_mut(&key).and_then(|dir| dir.files.get_mut(&id));
                op(file.ok_or_else(|| missing("a removed file"))?, trouble)
            })
            .await
    }
}

impl DiskFile for SimHandle {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        Box::pin(self.with(WRITE_NS, Call::Read, |file| Ok(file.len() as u64)))
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        Box::pin(self.with(WRITE_NS, Call::Read, move |file| {
            let start = (offset as usize).min(file.len());
            let end = (start + len).min(file.len());
            let mut bytes = file.bytes[start.min(file.bytes.len())..end.min(file.bytes.len())].to_vec();
            bytes.resize(end - start, 0);
            Ok(bytes)
        }))
    }

    fn append(&self, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        Box::pin(self.try_with(WRITE_NS, Call::Write, move |file, trouble| file.append(&bytes, trouble)))
    }

    fn append_now(&self, bytes: Vec<u8>) -> Result<DiskResult<()>, Vec<u8>> {
        let mut state = self.place.core.state.lock();
        let (node, path) = (self.place.life.node, self.place.path.clone());
        let may_wait = state.disks.fault(node) == DiskFault::Slow || state.disks.rng.chance(300_000);
        if may_wait || !state.is_alive(self.place.life) {
            return Err(bytes);
        }
        let trouble = state.disks.trouble(node, Call::Write);
        let file = state.disks.dirs.get_mut(&(node, path)).and_then(|dir| dir.files.get_mut(&self.id));
        Ok(file.ok_or_else(|| missing("a removed file")).and_then(|file| file.append(&bytes, trouble)))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(async move {
            // Writes made while the sync runs are not covered by it.
            let covers = self.with((0, 0), Call::Part, |file| Ok(file.bytes.len())).await?;
            self.try_with(SYNC_NS, Call::Sync, move |file, trouble| {
                if let Some(trouble) = trouble {
                    file.doom();
                    return Err(trouble);
                }
                file.synced = file.synced.max(covers);
                file.ends.retain(|end| *end > covers);
                Ok(())
            })
            .await
        })
    }
}

pub(super) struct SimFixed(pub(super) SimHandle);

impl FixedFile for SimFixed {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        self.0.size()
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.0.read_at(offset, len)
    }

    fn write_at(&self, offset: u64, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        Box::pin(self.0.try_with(WRITE_NS, Call::Write, move |file, trouble| {
            let start = offset as usize;
            let count = if trouble.is_some() { bytes.len() / 2 } else { bytes.len() };
            let Some(place) = file.bytes.get_mut(start..start + count) else {
                return Err(DiskError::Failed(format!("byte {start}: beyond the end of a simulated file")));
            };
            place.copy_from_slice(&bytes[..count]);
            file.places.push((start, bytes[..count].to_vec()));
            trouble.map_or(Ok(()), Err)
        }))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(async move {
            // Writes made while the sync runs are not covered by it.
            let covers = self.0.with((0, 0), Call::Part, |file| Ok(file.settled + file.places.len())).await?;
            self.0
                .try_with(SYNC_NS, Call::Sync, move |file, trouble| {
                    if let Some(trouble) = trouble {
                        file.doom();
                        return Err(trouble);
                    }
                    let count = covers.saturating_sub(file.settled);
                    file.settled += count;
                    for (start, bytes) in file.places.drain(..count) {
                        file.under[start..start + bytes.len()].copy_from_slice(&bytes);
                    }
                    Ok(())
                })
                .await
        })
    }
}
