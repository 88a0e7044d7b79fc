//! One task counts up in an extended attribute of a file; others read it. Another one looks at directories, and some at one directory that
//! others fill.

use super::shared::new_file;
use super::{ROOT, Worker};
use crate::plan::Mix;
use aze_io::sync::Mutex;
use aze_proto::{Code, FileKind, Ino, Name, Time, XattrHow};
use std::sync::Arc;
use std::time::Duration;

/// Names of a directory that a look goes on to.
const NAMES: usize = 50;

/// The directory that is filled.
pub const FILLED_DIR: &[u8] = b"/filled";

/// The file.
pub const ATTRIBUTED_FILE: &[u8] = b"/attributed";

const NAME: &[u8] = b"user.count";

/// The last count that was acknowledged, and the last one that was requested. Of names: how many were, by all who make some.
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

/// How long tasks look at directories or fill one: where a server has died for good, each request for its data takes a
/// deadline.
const LOOK_TIME_MAX: Duration = Duration::from_secs(60);

/// Looks at the root and the directories below it, again and again: their homes count on what other servers have said
/// of their parts. A check at the end finds lasting errors.
pub async fn look(mut worker: Worker, ops: u64) {
    let until_ns = worker.io.mono_ns() + LOOK_TIME_MAX.as_nanos() as u64;
    for _ in 0..ops {
        worker.think().await;
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop().filter(|_| worker.io.mono_ns() < until_ns) {
            // Any may be away, or be removed just now.
            let _ = worker.client.getattr(&ROOT, dir).await;
            let listed = worker.client.list(&ROOT, dir, 0, NAMES, false).await.map(|page| page.entries);
            let below = listed.into_iter().flatten().filter(|entry| entry.kind == FileKind::Directory);
            dirs.extend(below.map(|entry| entry.ino));
        }
    }
}

/// Makes names in a directory.
pub async fn fill(mut worker: Worker, dir: Ino, names: SharedCount, number: usize, ops: u64) {
    let until_ns = worker.io.mono_ns() + LOOK_TIME_MAX.as_nanos() as u64;
    for next in 0..ops {
        worker.think().await;
        if worker.io.mono_ns() >= until_ns {
            return;
        }
        let name = Name::new(format!("{number}-{next}").as_bytes()).expect("a proper name");
        names.lock().1 += 1;
        let new = new_file(FileKind::File, true);
        let made = worker.client.create(&ROOT, dir, &name, &new);
        if worker.call(|| format!("fill in {number}-{next}"), made).await.is_ok() {
            names.lock().0 += 1;
        }
    }
}

/// Looks at the directory that is filled: what anybody has been told is made shows, nothing is counted twice, and time does not go back.
pub async fn weigh(mut worker: Worker, dir: Ino, names: SharedCount, ops: u64) {
    // Where servers lose names there are fewer. Where frames get lost, a home that cannot be told for a second is not waited for.
    let all_show = matches!(worker.board.mix(), Mix::Quiet | Mix::ClientDeath | Mix::Clocks);
    let mut last = (0, Time(0));
    let until_ns = worker.io.mono_ns() + LOOK_TIME_MAX.as_nanos() as u64;
    for _ in 0..ops {
        worker.think().await;
        if worker.io.mono_ns() >= until_ns {
            return;
        }
        let least = names.lock().0;
        let Ok(attr) = worker.client.getattr(&ROOT, dir).await else { continue };
        let most = names.lock().1;
        if attr.size > most || all_show && attr.size < least {
            worker.board.violation(format!("{}: {} names, which are {least} to {most}", worker.who, attr.size));
        }
        let seen = (attr.size, attr.mtime);
        if all_show && (seen.0 < last.0 || seen.1 < last.1) {
            worker.board.violation(format!("{}: a directory goes back from {last:?} to {seen:?}", worker.who));
        }
        last = seen;
    }
}
