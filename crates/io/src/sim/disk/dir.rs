//! A directory as a process of a simulated node uses it: calls take time, and end when the node dies.

use super::super::node::Node;
use super::super::state::{Core, Life, State};
use super::faults::{Call, DiskFault};
use super::file::SimFile;
use super::handle::{SimFixed, SimHandle};
use super::{NameOp, SYNC_NS, SimDir, WRITE_NS, apply};
use crate::disk::{Dir, DiskError, DiskFile, DiskResult, FixedFile};
use crate::{Boxed, Io, Task};
use std::sync::Arc;
use std::time::Duration;

/// What a slow disk takes longer by.
const SLOW_FACTOR: u64 = 60;

pub(super) struct Place {
    pub(super) core: Arc<Core>,
    pub(super) life: Life,
    pub(super) path: String,
}

impl Place {
    /// Lets time pass, then does `op` unless the node has died; `op` is told what goes wrong.
    pub(super) async fn try_run<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut State, (u32, String), Option<DiskError>) -> DiskResult<T>,
    ) -> DiskResult<T> {
        let delay = {
            let disks = &mut self.core.state.lock().disks;
            let factor = if disks.fault(self.life.node) == DiskFault::Slow { SLOW_FACTOR } else { 1 };
            disks.rng.between(ns.0, ns.1) * factor
        };
        let io = Io::new(Arc::new(Node::new(self.core.clone(), self.life)));
        io.sleep(Duration::from_nanos(delay)).await;
        let mut state = self.core.state.lock();
        if !state.is_alive(self.life) {
            return Err(DiskError::Failed("the node is dead".into()));
        }
        let trouble = state.disks.trouble(self.life.node, call);
        op(&mut state, (self.life.node, self.path.clone()), trouble)
    }

    /// As [`Self::try_run`], for an `op` that does not begin if something goes wrong.
    async fn run<T>(
        &self,
        ns: (u64, u64),
        call: Call,
        op: impl FnOnce(&mut State, (u32, String)) -> DiskResult<T>,
    ) -> DiskResult<T> {
        self.try_run(ns, call, |state, key, trouble| trouble.map_or_else(|| op(state, key), Err)).await
    }

    async fn names<T>(&self, call: Call, op: impl FnOnce(&mut SimDir, &mut u64) -> DiskResult<T>) -> DiskResult<T> {
        self.run(WRITE_NS, call, |state, key| {
            let disks = &mut state.disks;
            op(disks.dirs.entry(key).or_default(), &mut disks.last_file)
        })
        .await
    }

    fn file(&self, id: u64) -> Arc<dyn DiskFile> {
        let place = Place { core: self.core.clone(), life: self.life, path: self.path.clone() };
        Arc::new(SimHandle { place, id })
    }

    async fn create_growing(&self, name: &str, is_log: bool) -> DiskResult<Arc<dyn DiskFile>> {
        let id = self
            .names(Call::Make, |dir, last_file| {
                *last_file += 1;
                let op = NameOp::Create(name.into(), *last_file);
                apply(&mut dir.names, &op);
                dir.pending.push(op);
                dir.files.insert(*last_file, SimFile { is_log, ..SimFile::default() });
                Ok(*last_file)
            })
            .await?;
        Ok(self.file(id))
    }

    fn fixed(&self, id: u64) -> Arc<dyn FixedFile> {
        let place = Place { core: self.core.clone(), life: self.life, path: self.path.clone() };
        Arc::new(SimFixed(SimHandle { place, id }))
    }
}

/// Opens a directory of a node, which is made if it is not there.
pub(in super::super) async fn open_dir(core: &Arc<Core>, life: Life, path: &str) -> DiskResult<Arc<dyn Dir>> {
    let place = Place { core: core.clone(), life, path: path.into() };
    place.names(Call::Open, |_, _| Ok(())).await?;
    Ok(Arc::new(place))
}

pub(super) fn missing(name: &str) -> DiskError {
    DiskError::NotFound(format!("{name}: no such file"))
}

impl Dir for Place {
    fn list(&self) -> Boxed<'_, DiskResult<Vec<String>>> {
        Box::pin(self.names(Call::Read, |dir, _| Ok(dir.names.keys().cloned().collect())))
    }

    fn create<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(self.create_growing(name, false))
    }

    fn create_log<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(self.create_growing(name, true))
    }

    fn open<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(async move {
            let id = self.names(Call::Open, |dir, _| dir.names.get(name).copied().ok_or_else(|| missing(name))).await?;
            Ok(self.file(id))
        })
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> Boxed<'a, DiskResult<()>> {
        Box::pin(self.names(Call::Make, |dir, _| {
            if !dir.names.contains_key(from) {
                return Err(missing(from));
            }
            let op = NameOp::Rename(from.into(), to.into());
            apply(&mut dir.names, &op);
            dir.pending.push(op);
            Ok(())
        }))
    }

    fn remove<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<()>> {
        Box::pin(self.names(Call::Read, |dir, _| {
            let op = NameOp::Remove(name.into());
            apply(&mut dir.names, &op);
            dir.pending.push(op);
            Ok(())
        }))
    }

    fn create_fixed<'a>(&'a self, name: &'a str, bytes: u64) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        Box::pin(async move {
            let made = self.run(WRITE_NS, Call::MakeFixed, |state, key| {
                let disks = &mut state.disks;
                if disks.rooms.contains_key(&key) && disks.free(&key) < bytes {
                    return Err(DiskError::Full("the simulated directory is full".into()));
                }
                disks.last_file += 1;
                let (id, dir) = (disks.last_file, disks.dirs.entry(key).or_default());
                let op = NameOp::Create(name.into(), id);
                apply(&mut dir.names, &op);
                dir.pending.push(op);
                let zeros = vec![0; bytes as usize];
                dir.files.insert(id, SimFile { bytes: zeros.clone(), under: zeros, ..SimFile::default() });
                Ok(id)
            });
            Ok(self.fixed(made.await?))
        })
    }

    fn open_fixed<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        Box::pin(async move {
            let id = self.names(Call::Open, |dir, _| dir.names.get(name).copied().ok_or_else(|| missing(name))).await?;
            Ok(self.fixed(id))
        })
    }

    fn free_bytes(&self) -> Boxed<'_, DiskResult<u64>> {
        Box::pin(self.run(WRITE_NS, Call::Read, |state, key| {
            if matches!(state.disks.faults.get(&key.0), Some(DiskFault::Low | DiskFault::Full)) {
                return Ok(0);
            }
            Ok(state.disks.free(&key))
        }))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(self.run(SYNC_NS, Call::Sync, |state, key| {
            let dir = state.disks.dirs.entry(key).or_default();
            dir.pending.clear();
            dir.synced_names = dir.names.clone();
            Ok(())
        }))
    }

    fn spawn(&self, task: Task) {
        Io::new(Arc::new(Node::new(self.core.clone(), self.life))).spawn(task);
    }
}
