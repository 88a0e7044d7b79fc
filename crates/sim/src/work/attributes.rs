//! One task counts up in an extended attribute of a file; others read it. Another one looks at directories.

use super::{ROOT, Worker};
use aze_io::sync::Mutex;
use aze_proto::{Code, FileKind, Ino, XattrHow};
use std::sync::Arc;

/// Names of a directory that a look goes on to.
const NAMES: usize = 50;

/// The file.
pub const ATTRIBUTED_FILE: &[u8] = b"/attributed";

const NAME: &[u8] = b"user.count";

/// The last count that was acknowledged, and the last one that was requested.
pub type SharedCount = Arc<Mutex<(u64, u64)>>;

/// Counts, and tries each time to create the attribute that is already there.
pub async fn count(mut worker: Worker, ino: Ino, count: SharedCount, ops: u64) {
    for next in 1..=ops {
        worker.think().await;
        count.lock().1 = next;
        let client = &worker.client;
        let value = next.to_le_bytes();
        let set = client.set_xattr(&ROOT, ino, NAME, &value, XattrHow::Any);
        if worker.call(|| format!("count {next}"), set).await.is_ok() {
            count.lock().0 = next;
        }
        let again = client.set_xattr(&ROOT, ino, NAME, &value, XattrHow::Create);
        if let Ok(()) = worker.call(|| "make what is there".into(), again).await
            && count.lock().0 > 0
        {
            worker.board.violation(format!("{}: an attribute that is there was created", worker.who));
        }
    }
}

/// Reads.
pub async fn read(mut worker: Worker, ino: Ino, count: SharedCount, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        let least = count.lock().0;
        let read = worker.call(|| "read the count".into(), worker.client.get_xattr(&ROOT, ino, NAME)).await;
        let most = count.lock().1;
        let seen = match read {
            Ok(value) => value.try_into().map_or(u64::MAX, u64::from_le_bytes),
            Err(failure) if failure.code == Code::NoAttribute => 0,
            Err(_) => continue,
        };
        if seen < least || seen > most {
            let what = format!("{}: reads a count of {seen}, which is {least} to {most}", worker.who);
            worker.board.violation(what);
        }
    }
}

/// Looks at the root and the directories below it, again and again: their homes count on what other servers have said of their parts. What is
/// wrong for good is found when all is over.
pub async fn look(mut worker: Worker, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop() {
            // Any may be away, or be removed just now.
            let _ = worker.client.getattr(&ROOT, dir).await;
            let listed = worker.client.list(&ROOT, dir, 0, NAMES, false).await.map(|page| page.entries);
            let below = listed.into_iter().flatten().filter(|entry| entry.kind == FileKind::Directory);
            dirs.extend(below.map(|entry| entry.ino));
        }
    }
}
