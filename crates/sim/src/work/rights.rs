//! Root takes and gives back the right to search a directory; a user tries all the while. Once a
//! loss of rights is acknowledged, no user gets in over a cached path.

use super::{ROOT, Worker};
use aze_io::sync::Mutex;
use aze_proto::{Change, Code, Identity, Ino, XattrHow};
use std::sync::Arc;

/// The directory whose rights change.
pub const GUARDED_DIR: &[u8] = b"/guarded";
/// A directory below it.
pub const INNER_DIR: &[u8] = b"/guarded/inner";
/// What the user asks for: below a directory that he caches.
pub const GUARDED_FILE: &[u8] = b"/guarded/inner/file";

/// The expected rights; `open` is `None` during a change and after a failed one.
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

/// An access control list: the owner may all, the user what `user` says, others what `others` say.
fn list(user: Option<u16>, others: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut entries = vec![(1, 7, NOBODY), (4, others, NOBODY), (32, others, NOBODY)];
    if let Some(user) = user {
        entries = vec![(1, 7, NOBODY), (2, user, 1000), (4, others, NOBODY), (16, 7, NOBODY), (32, others, NOBODY)];
    }
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([tag, perm].into_iter().flat_map(u16::to_le_bytes));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// Opens and closes, by the mode or by an access control list.
pub async fn guard(mut worker: Worker, dir: Ino, door: SharedDoor, ops: u64) {
    // Whether the directory certainly has no list: then its mode alone decides.
    let mut plain = true;
    for _ in 0..ops {
        worker.think().await;
        let open = worker.rng.chance(500_000);
        let named = worker.rng.chance(300_000);
        let listed = !plain || worker.rng.chance(400_000);
        {
            let mut door = door.lock();
            door.open = None;
            door.changes += 1;
        }
        let result = if listed {
            // The user's entry takes precedence over that of others.
            let user = named.then_some(if open { 5 } else { 0 });
            let list = list(user, if open != named { 5 } else { 0 });
            plain = false;
            let call = worker.client.set_xattr(&ROOT, dir, b"system.posix_acl_access", &list, XattrHow::Any);
            worker.call(|| format!("open the door by a list: {open}"), call).await
        } else {
            let change = Change { mode: Some(if open { 0o755 } else { 0o700 }), ..Change::default() };
            let call = worker.client.setattr(&ROOT, dir, &change);
            worker.call(|| format!("open the door: {open}"), call).await.map(drop)
        };
        if result.is_ok() {
            plain = !listed || !named;
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
