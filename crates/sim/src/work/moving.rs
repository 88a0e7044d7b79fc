//! One file goes from name to name while others look for it: at every moment exactly one name is
//! there, and a client that has seen the new one does not see the old one. Or it takes turns with others.

use super::shared::perform;
use super::{MOVING, ROOT, Worker};
use crate::names::{NAMES, name};
use crate::tree::{NameIndex, Op};
use aze_proto::{Failure, FileKind, Ino};

/// The directory in which it moves.
pub const MOVING_DIR: &[u8] = b"/moving";

/// Makes what moves, at name 0, as part of the history.
///
/// # Errors
/// What the client says.
pub async fn begin(worker: &Worker, dir: Ino, kind: FileKind) -> Result<(), Failure> {
    worker.board.begin_area(MOVING, dir);
    perform(worker, MOVING, Op::Create { dir: dir.0, name: 0, kind, exclusive: true }).await;
    worker.client.lookup(&ROOT, dir, &name(0)).await.map(|_| ())
}

/// Moves it to `moves` names, one after the other.
pub async fn go(mut worker: Worker, dir: Ino, moves: u64) {
    let mut at: NameIndex = 0;
    for _ in 0..moves {
        worker.think().await;
        let to = worker.rng.below(NAMES) as NameIndex;
        let (dir_id, exchanges) = (dir.0, worker.board.exchanges());
        if exchanges && worker.rng.chance(300_000) {
            let name = worker.rng.below(NAMES) as NameIndex;
            perform(&worker, MOVING, Op::Create { dir: dir_id, name, kind: FileKind::File, exclusive: true }).await;
        }
        let op = match exchanges && worker.rng.chance(600_000) {
            true => Op::Exchange { dir: dir_id, name: at, to_dir: dir_id, to_name: to },
            false => Op::Rename { dir: dir_id, name: at, to_dir: dir_id, to_name: to, no_replace: false },
        };
        perform(&worker, MOVING, op).await;
        // After an answer that never came it may be at either name: looking tells.
        let moved = worker.client.lookup(&ROOT, dir, &name(to)).await.is_ok();
        at = if moved { to } else { at };
    }
}

/// Looks for it, without a pause.
pub async fn watch(mut worker: Worker, dir: Ino, looks: u64) {
    for _ in 0..looks {
        let name = worker.rng.below(NAMES) as NameIndex;
        perform(&worker, MOVING, Op::Lookup { dir: dir.0, name }).await;
    }
}

/// The kind of the moved inode: mostly a file.
pub fn kind(worker: &mut Worker) -> FileKind {
    if worker.rng.chance(250_000) { FileKind::Directory } else { FileKind::File }
}
