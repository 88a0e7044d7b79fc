//! The only room that knows what a file operation means: resolve, split, route, cache, retry.
#![allow(unused_variables, missing_docs)]

use aze_io::{Addr, Io};
use aze_proto::handshake::Secret;
use aze_proto::message::{Listed, Predicate, ServerStatus};
use aze_proto::{Attr, Change, Failure, FileKind, Identity, Ino, Name, SessionId, ShardMap};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Config {
    pub volume: String,
    pub secret: Secret,
    pub seeds: Vec<(String, Vec<Addr>)>,
    pub host: String,
    pub job: String,
    pub deadline: Duration,
    pub tcp_only: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub read: bool,
    pub write: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub kind: FileKind,
    /// Permission bits, umask already applied.
    pub mode: u32,
    pub rdev: u32,
    pub target: Vec<u8>,
    pub exclusive: bool,
    pub open: Option<Access>,
    /// 0: the directory's.
    pub chunk_bits: u8,
}

pub struct Created {
    pub attr: Attr,
    pub created: bool,
    pub file: Option<Arc<File>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Listed>,
    pub more: bool,
    pub failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub inodes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPath {
    /// Relative to the root of the search.
    pub path: Vec<u8>,
    pub ino: Ino,
    pub kind: FileKind,
    pub attr: Option<Attr>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSum {
    pub files: u64,
    pub dirs: u64,
    pub bytes: u64,
}

pub struct Client {}
pub struct File {}

impl Client {
    pub async fn connect(io: Io, config: Config) -> Result<Arc<Client>, Failure> {
        todo!()
    }
    pub fn map(&self) -> Arc<ShardMap> {
        todo!()
    }
    pub fn session(&self) -> SessionId {
        todo!()
    }
    pub async fn close(&self) -> Result<(), Failure> {
        todo!()
    }
    pub async fn lookup(&self, who: &Identity, parent: Ino, name: &Name) -> Result<Attr, Failure> {
        todo!()
    }
    pub async fn getattr(&self, who: &Identity, ino: Ino) -> Result<Attr, Failure> {
        todo!()
    }
    pub async fn setattr(&self, who: &Identity, ino: Ino, change: &Change) -> Result<Attr, Failure> {
        todo!()
    }
    pub async fn truncate(&self, who: &Identity, ino: Ino, size: u64, through: Option<&File>) -> Result<Attr, Failure> {
        todo!()
    }
    pub async fn create(&self, who: &Identity, parent: Ino, name: &Name, new: &NewFile) -> Result<Created, Failure> {
        todo!()
    }
    pub async fn unlink(&self, who: &Identity, parent: Ino, name: &Name) -> Result<(), Failure> {
        todo!()
    }
    pub async fn rmdir(&self, who: &Identity, parent: Ino, name: &Name) -> Result<(), Failure> {
        todo!()
    }
    pub async fn link(&self, who: &Identity, ino: Ino, parent: Ino, name: &Name) -> Result<Attr, Failure> {
        todo!()
    }
    pub async fn rename(
        &self,
        who: &Identity,
        parent: Ino,
        name: &Name,
        to_parent: Ino,
        to_name: &Name,
        no_replace: bool,
    ) -> Result<(), Failure> {
        todo!()
    }
    pub async fn readlink(&self, who: &Identity, ino: Ino) -> Result<Vec<u8>, Failure> {
        todo!()
    }
    pub async fn open(&self, who: &Identity, ino: Ino, access: Access) -> Result<Arc<File>, Failure> {
        todo!()
    }
    pub async fn list(&self, who: &Identity, dir: Ino, after: u64, limit: usize, attrs: bool) -> Result<Listing, Failure> {
        todo!()
    }
    pub async fn statfs(&self) -> Result<Space, Failure> {
        todo!()
    }
    pub async fn status(&self) -> Vec<Result<ServerStatus, Failure>> {
        todo!()
    }
    pub async fn shutdown_servers(&self) -> Vec<Result<(), Failure>> {
        todo!()
    }
    pub async fn find(
        &self,
        who: &Identity,
        root: Ino,
        predicate: &Predicate,
        each: &mut (dyn FnMut(FoundPath) + Send),
    ) -> Result<(), Failure> {
        todo!()
    }
    pub async fn usage(
        &self,
        who: &Identity,
        root: Ino,
        each_dir: Option<&mut (dyn FnMut(&[u8], &UsageSum) + Send)>,
    ) -> Result<UsageSum, Failure> {
        todo!()
    }
    pub async fn resolve(&self, who: &Identity, path: &[u8], follow_last: bool) -> Result<Attr, Failure> {
        todo!()
    }
    pub async fn resolve_parent(&self, who: &Identity, path: &[u8]) -> Result<(Ino, Name), Failure> {
        todo!()
    }
    pub async fn mkdir_all(&self, who: &Identity, path: &[u8], mode: u32) -> Result<Attr, Failure> {
        todo!()
    }
}

impl File {
    pub fn ino(&self) -> Ino {
        todo!()
    }
    pub fn attr(&self) -> Attr {
        todo!()
    }
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        todo!()
    }
    pub async fn read_into(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        todo!()
    }
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        todo!()
    }
    pub async fn flush(&self) -> Result<(), Failure> {
        todo!()
    }
    pub async fn close(&self) -> Result<(), Failure> {
        todo!()
    }
}
