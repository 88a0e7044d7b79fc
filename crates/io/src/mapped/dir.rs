//! Files in a memory as a task sees them.

use super::{Files, Node};
use crate::disk::{Dir, DiskError, DiskFile, DiskResult, FixedFile};
use crate::{Boxed, Task};
use futures_channel::oneshot;
use std::sync::Arc;

/// What a job works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Names, and files that grow.
    Names,
    /// Places in files of a fixed length.
    Places,
}

/// The threads that do the work.
pub trait Hands: Send + Sync {
    /// Does it at once, or on a thread for it.
    fn work(&self, work: Work, job: Box<dyn FnOnce() + Send>);
    /// As [`Dir::spawn`].
    fn spawn(&self, task: Task);
}

/// The directory that the files in a memory are; `medium` is for people.
pub fn open_dir(files: Arc<Files>, hands: Arc<dyn Hands>, medium: &'static str) -> Arc<dyn Dir> {
    Arc::new(MappedDir(Place { files, hands }, medium))
}

#[derive(Clone)]
struct Place {
    files: Arc<Files>,
    hands: Arc<dyn Hands>,
}

impl Place {
    fn run<T: Send + 'static>(
        &self,
        work: Work,
        job: impl FnOnce(&Files) -> DiskResult<T> + Send + 'static,
    ) -> Boxed<'_, DiskResult<T>> {
        let files = self.files.clone();
        Box::pin(async move {
            let (give, take) = oneshot::channel();
            // An error means that the caller has given up.
            let job = move || drop(give.send(job(&files)));
            self.hands.work(work, Box::new(job));
            take.await.map_err(|_| DiskError::Failed("the thread for files has ended".into()))?
        })
    }

    fn file(&self, node: Arc<Node>) -> MappedFile {
        MappedFile { place: self.clone(), node }
    }
}

struct MappedDir(Place, &'static str);

impl MappedDir {
    fn create_any<'a>(&'a self, name: &str, bytes: u64, is_log: bool) -> Boxed<'a, DiskResult<MappedFile>> {
        let name = name.to_owned();
        let made = self.0.run(Work::Names, move |files| files.create(&name, bytes, is_log));
        Box::pin(async move { Ok(self.0.file(made.await?)) })
    }

    fn open_any<'a>(&'a self, name: &str) -> Boxed<'a, DiskResult<MappedFile>> {
        let node = self.0.files.open_file(name);
        Box::pin(async move { Ok(self.0.file(node?)) })
    }
}

impl Dir for MappedDir {
    fn list(&self) -> Boxed<'_, DiskResult<Vec<String>>> {
        let names = self.0.files.list();
        Box::pin(async move { Ok(names) })
    }

    fn create<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(async move { Ok(Arc::new(self.create_any(name, 0, false).await?) as Arc<dyn DiskFile>) })
    }

    fn create_log<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(async move { Ok(Arc::new(self.create_any(name, 0, true).await?) as Arc<dyn DiskFile>) })
    }

    fn open<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn DiskFile>>> {
        Box::pin(async move { Ok(Arc::new(self.open_any(name).await?) as Arc<dyn DiskFile>) })
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> Boxed<'a, DiskResult<()>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.0.run(Work::Names, move |files| files.rename(&from, &to))
    }

    fn remove<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<()>> {
        let name = name.to_owned();
        self.0.run(Work::Names, move |files| files.remove(&name))
    }

    fn create_fixed<'a>(&'a self, name: &'a str, bytes: u64) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        Box::pin(async move { Ok(Arc::new(self.create_any(name, bytes, false).await?) as Arc<dyn FixedFile>) })
    }

    fn open_fixed<'a>(&'a self, name: &'a str) -> Boxed<'a, DiskResult<Arc<dyn FixedFile>>> {
        Box::pin(async move { Ok(Arc::new(self.open_any(name).await?) as Arc<dyn FixedFile>) })
    }

    fn free_bytes(&self) -> Boxed<'_, DiskResult<u64>> {
        let free = self.0.files.free_bytes();
        Box::pin(async move { Ok(free) })
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        // Names are durable when they are changed.
        Box::pin(async { Ok(()) })
    }

    fn spawn(&self, task: Task) {
        self.0.hands.spawn(task);
    }

    fn medium(&self) -> Option<String> {
        Some(self.1.into())
    }

    fn remarks(&self) -> Vec<String> {
        self.0.files.remark().into_iter().collect()
    }
}

struct MappedFile {
    place: Place,
    node: Arc<Node>,
}

impl MappedFile {
    fn run<T: Send + 'static>(
        &self,
        work: Work,
        job: impl FnOnce(&Files, &Node) -> DiskResult<T> + Send + 'static,
    ) -> Boxed<'_, DiskResult<T>> {
        let node = self.node.clone();
        self.place.run(work, move |files| job(files, &node))
    }

    fn length(&self) -> Boxed<'_, DiskResult<u64>> {
        let size = self.place.files.size(&self.node);
        Box::pin(async move { Ok(size) })
    }
}

impl DiskFile for MappedFile {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        self.length()
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.run(Work::Names, move |files, node| Ok(files.read_at(node, offset, len)))
    }

    fn append(&self, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        self.run(Work::Names, move |files, node| files.append(node, &bytes))
    }

    fn append_now(&self, bytes: Vec<u8>) -> Result<DiskResult<()>, Vec<u8>> {
        // It may need a block that has to be zeroed, and a table that has to be synced.
        Err(bytes)
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        self.run(Work::Names, Files::sync)
    }
}

impl FixedFile for MappedFile {
    fn size(&self) -> Boxed<'_, DiskResult<u64>> {
        self.length()
    }

    fn read_at(&self, offset: u64, len: usize) -> Boxed<'_, DiskResult<Vec<u8>>> {
        self.run(Work::Places, move |files, node| Ok(files.read_at(node, offset, len)))
    }

    fn write_at(&self, offset: u64, bytes: Vec<u8>) -> Boxed<'_, DiskResult<()>> {
        self.run(Work::Places, move |files, node| files.write_at(node, offset, &bytes))
    }

    fn sync(&self) -> Boxed<'_, DiskResult<()>> {
        self.run(Work::Places, Files::sync)
    }
}
