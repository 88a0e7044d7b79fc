//! The same place as the directory over which a volume lies: what servers read of it.

use super::{Place, identity_of, number};
use crate::backing::{data_in, take_page};
use aze_copy::tree::Tree;
use aze_io::Boxed;
use aze_io::backing::{Backing, BackingError, BackingResult, Found, Identity, Names as BackingNames};
use aze_io::sync::Mutex;
use aze_proto::attr::FileKind;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

impl Place {
    async fn wait(&self) -> BackingResult<()> {
        let us = {
            let state = &mut *self.state.lock();
            let slow_us = state.moods.slow_us;
            state.rng.below(slow_us + 1)
        };
        self.io.sleep(Duration::from_micros(us)).await;
        match self.trouble(false) {
            Err(error) if error.raw_os_error() == Some(number::EACCES) => Err(BackingError::Denied(error.to_string())),
            Err(error) => Err(BackingError::Failed(error.to_string())),
            Ok(()) => Ok(()),
        }
    }

    fn found(&self, path: &[u8], name: &[u8]) -> BackingResult<Found> {
        let state = self.state.lock();
        let inode = state.find(path).map_err(|error| BackingError::Changed(error.to_string()))?;
        let (meta, node) = (state.meta(inode), &state.nodes[&inode]);
        let kind = match node.kind {
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            _ => 0o100_000,
        };
        Ok(Found {
            name: name.to_vec(),
            mode: kind | meta.mode,
            atime_ns: meta.atime.0.cast_signed(),
            identity: identity_of(&meta),
            links: meta.links,
            target: if node.kind == FileKind::Symlink { node.now.bytes.to_vec() } else { Vec::new() },
            xattrs: node.now.xattrs.clone().into_iter().collect(),
            ..Found::default()
        })
    }

    /// How often servers have begun to list a directory, or one below it.
    pub(in crate::staging) fn lists_below(&self, dir: &[u8]) -> usize {
        self.state.lock().listed.iter().filter(|path| path.starts_with(dir)).count()
    }

    fn path_below(&self, path: &[u8]) -> Vec<u8> {
        aze_copy::tree::join(self.below.as_bytes(), path)
    }

    fn same(&self, path: &[u8], identity: Identity) -> BackingResult<()> {
        match self.found(path, b"")?.identity == identity {
            true => Ok(()),
            false => Err(BackingError::Changed(format!("{}: it has changed", self.shown(path)))),
        }
    }

    /// All bytes of a file, if it is this one before and after the look.
    async fn bytes_of(&self, path: &[u8], identity: Identity) -> BackingResult<Vec<u8>> {
        let path = self.path_below(path);
        self.same(&path, identity)?;
        self.wait().await?;
        let bytes = self.bytes_at(&path).unwrap_or_default();
        self.wait().await?;
        self.same(&path, identity)?;
        Ok(bytes.to_vec())
    }
}

impl Backing for Place {
    fn root(&self) -> &str {
        self.below
    }

    fn look(&self, path: Vec<u8>) -> Boxed<'_, BackingResult<Found>> {
        Box::pin(async move {
            self.wait().await?;
            self.found(&self.path_below(&path), b"")
        })
    }

    fn list(&self, path: Vec<u8>, identity: Identity) -> Boxed<'_, BackingResult<Arc<dyn BackingNames>>> {
        Box::pin(async move {
            self.wait().await?;
            let path = self.path_below(&path);
            self.state.lock().listed.push(path.clone());
            if self.found(&path, b"")?.identity.inode != identity.inode {
                return Err(BackingError::Changed("another directory".into()));
            }
            let names = {
                let state = self.state.lock();
                let inode = state.find(&path).map_err(|error| BackingError::Changed(error.to_string()))?;
                state.nodes[&inode].now.names.keys().cloned().collect()
            };
            Ok(Arc::new(PlaceNames { place: self.clone(), path, names: Mutex::new(names) }) as Arc<dyn BackingNames>)
        })
    }

    fn read(&self, path: Vec<u8>, identity: Identity, offset: u64, len: usize) -> Boxed<'_, BackingResult<Vec<u8>>> {
        Box::pin(async move {
            let bytes = self.bytes_of(&path, identity).await?;
            let end = bytes.len().min(offset as usize + len);
            Ok(bytes.get(offset as usize..end).unwrap_or_default().to_vec())
        })
    }

    fn next_data(&self, path: Vec<u8>, identity: Identity, offset: u64) -> Boxed<'_, BackingResult<Range<u64>>> {
        Box::pin(async move { Ok(data_in(&self.bytes_of(&path, identity).await?, offset)) })
    }
}

struct PlaceNames {
    place: Place,
    path: Vec<u8>,
    names: Mutex<Vec<Vec<u8>>>,
}

impl BackingNames for PlaceNames {
    fn next(&self, count: usize) -> Boxed<'_, BackingResult<Vec<Found>>> {
        Box::pin(async move {
            self.place.wait().await?;
            let page = take_page(&self.names, count);
            let found = |name: &Vec<u8>| self.place.found(&aze_copy::tree::join(&self.path, name), name).ok();
            Ok(page.iter().filter_map(found).collect())
        })
    }
}
