//! Tasks that fight over a few names; every answer is written down for the search of `linear`.

use super::{Board, ROOT, SHARED, Worker, is_plain};
use crate::names::{NAMES, name, path};
use crate::tree::{Id, NameIndex, Op, Ret};
use aze_client::NewFile;
use aze_proto::{Failure, FileKind, Ino};

/// Directories that the tasks know at most: with more they would never meet.
const DIRS_MAX: usize = 6;

/// Files that the tasks know at most.
const INODES_MAX: usize = 8;

/// A new file of a kind.
pub fn new_file(kind: FileKind, exclusive: bool) -> NewFile {
    let target = if kind == FileKind::Symlink { b"nowhere".to_vec() } else { Vec::new() };
    NewFile { kind, mode: 0o755, rdev: 0, target, exclusive, open: None, chunk_bits: 0, private: false }
}

impl Board {
    /// Makes the area known.
    pub fn begin_shared(&self, base: Ino) {
        self.begin_area(SHARED, base);
        self.dirs.lock().push(base.0);
    }

    fn learn(&self, id: Id, kind: FileKind) {
        let (mut list, max) = match kind {
            FileKind::Directory => (self.dirs.lock(), DIRS_MAX),
            _ => (self.inodes.lock(), INODES_MAX),
        };
        if !list.contains(&id) {
            list.push(id);
        }
        if list.len() > max {
            // The base stays.
            list.remove(1);
        }
    }
}

/// Does `ops` random operations.
pub async fn run(mut worker: Worker, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        let Some(op) = draw(&mut worker) else { continue };
        perform(&worker, SHARED, op).await;
    }
}

fn draw(worker: &mut Worker) -> Option<Op> {
    let (dirs, inodes) = (worker.board.dirs.lock().clone(), worker.board.inodes.lock().clone());
    let exchanges = worker.board.exchanges();
    let rng = &mut worker.rng;
    let mut name = || rng.below(NAMES) as NameIndex;
    let (one, other, third) = (name(), name(), name());
    let rng = &mut worker.rng;
    let (dir, to_dir) = (*rng.pick(&dirs), *rng.pick(&dirs));
    Some(match rng.below(100) {
        0..=19 => Op::Lookup { dir, name: one },
        20..=39 => Op::Resolve { path: [one, other, third][..rng.between(1, 3) as usize].to_vec() },
        40..=53 => Op::Create { dir, name: one, kind: FileKind::File, exclusive: rng.chance(500_000) },
        54..=64 => Op::Create { dir, name: one, kind: FileKind::Directory, exclusive: true },
        65..=67 => Op::Create { dir, name: one, kind: FileKind::Symlink, exclusive: true },
        68..=75 => Op::Unlink { dir, name: one },
        76..=82 => Op::Rmdir { dir, name: one },
        83..=86 if inodes.is_empty() => return None,
        83..=86 => Op::Link { ino: *rng.pick(&inodes), dir, name: one },
        _ if exchanges && rng.chance(500_000) => Op::Exchange { dir, name: one, to_dir, to_name: other },
        _ => Op::Rename { dir, name: one, to_dir, to_name: other, no_replace: rng.chance(200_000) },
    })
}

/// Performs an operation, and records it with its answer.
pub async fn perform(worker: &Worker, area: usize, op: Op) {
    let index = worker.board.begin(area, &worker.who, &op);
    let result = worker.call(|| format!("{op:?}"), ask(worker, &op)).await;
    let ret = match result {
        Ok(ret) => ret,
        Err(failure) if is_plain(failure.code) => Ret::Failed(failure.code),
        Err(_) => Ret::Unknown,
    };
    if let Ret::Entry { id, kind, .. } = ret
        && area == SHARED
    {
        worker.board.learn(id, kind);
    }
    worker.board.end(area, index, ret);
}

async fn ask(worker: &Worker, op: &Op) -> Result<Ret, Failure> {
    let (client, who) = (&worker.client, &ROOT);
    match op {
        Op::Lookup { dir, name: index } => {
            let attr = client.lookup(who, Ino(*dir), &name(*index)).await?;
            Ok(Ret::Entry { id: attr.ino.0, kind: attr.kind, created: false })
        }
        Op::Resolve { path: parts } => {
            let attr = client.resolve(who, &path(parts), false).await?;
            Ok(Ret::Entry { id: attr.ino.0, kind: attr.kind, created: false })
        }
        Op::Create { dir, name: index, kind, exclusive } => {
            // Half of the directories are private, and all below them.
            let private = *kind == FileKind::Directory && *index % 2 == 1;
            let new = NewFile { private, ..new_file(*kind, *exclusive) };
            let made = client.create(who, Ino(*dir), &name(*index), &new).await?;
            Ok(Ret::Entry { id: made.attr.ino.0, kind: made.attr.kind, created: made.created })
        }
        Op::Unlink { dir, name: index } => client.unlink(who, Ino(*dir), &name(*index)).await.map(|()| Ret::Done),
        Op::Rmdir { dir, name: index } => client.rmdir(who, Ino(*dir), &name(*index)).await.map(|()| Ret::Done),
        Op::Link { ino, dir, name: index } => {
            client.link(who, Ino(*ino), Ino(*dir), &name(*index)).await.map(|_| Ret::Done)
        }
        Op::Rename { dir, name: from, to_dir, to_name, no_replace } => client
            .rename(who, Ino(*dir), &name(*from), Ino(*to_dir), &name(*to_name), *no_replace)
            .await
            .map(|()| Ret::Done),
        Op::Exchange { dir, name: one, to_dir, to_name } => {
            client.exchange(who, Ino(*dir), &name(*one), Ino(*to_dir), &name(*to_name)).await.map(|()| Ret::Done)
        }
    }
}
