//! Root takes and gives back the right to search a directory; a user tries all the while. Once a
//! loss of rights is acknowledged, nobody gets in over a path that he had cached.

use super::{ROOT, Worker};
use aze_proto::{Change, Code, Identity, Ino};
use parking_lot::Mutex;
use std::sync::Arc;

/// The directory whose rights change.
pub const GUARDED_DIR: &[u8] = b"/guarded";
/// A directory below it.
pub const INNER_DIR: &[u8] = b"/guarded/inner";
/// What the user asks for: below a directory that he caches.
pub const GUARDED_FILE: &[u8] = b"/guarded/inner/file";

/// What is known of the rights.
#[derive(Debug)]
pub struct Door {
    open: Option<bool>,
    /// Changes begun.
    changes: u64,
}

/// Shared by both tasks.
pub type SharedDoor = Arc<Mutex<Door>>;

/// An open door.
pub fn open_door() -> SharedDoor {
    Arc::new(Mutex::new(Door { open: Some(true), changes: 0 }))
}

/// The user.
pub fn user() -> Identity {
    Identity { uid: 1000, gid: 1000, groups: Vec::new() }
}

/// Opens and closes.
pub async fn guard(mut worker: Worker, dir: Ino, door: SharedDoor, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        let open = worker.rng.chance(500_000);
        {
            let mut door = door.lock();
            door.open = None;
            door.changes += 1;
        }
        let change = Change { mode: Some(if open { 0o755 } else { 0o700 }), ..Change::default() };
        let result = worker.call(|| format!("open the door: {open}"), worker.client.setattr(&ROOT, dir, &change)).await;
        if result.is_ok() {
            door.lock().open = Some(open);
        }
    }
}

/// Tries.
pub async fn enter(mut worker: Worker, door: SharedDoor, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        let before = {
            let door = door.lock();
            (door.open, door.changes)
        };
        let result =
            worker.call(|| "go through the door".into(), worker.client.resolve(&user(), GUARDED_FILE, true)).await;
        let certain = before.0.filter(|_| door.lock().changes == before.1);
        let wrong = match (certain, &result) {
            (Some(false), Ok(_)) => Some("gets in though the door is closed".to_string()),
            (Some(true), Err(failure)) if matches!(failure.code, Code::AccessDenied | Code::NotFound | Code::Stale) => {
                Some(format!("does not get in though the door is open: {failure}"))
            }
            (_, Err(failure)) if matches!(failure.code, Code::NotFound | Code::Stale) => {
                Some(format!("finds nothing: {failure}"))
            }
            _ => None,
        };
        if let Some(what) = wrong {
            worker.board.violation(format!("{} {what}", worker.who));
        }
    }
}
