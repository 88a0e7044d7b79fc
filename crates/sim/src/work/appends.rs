//! Several clients append records to one file, which one of them sometimes empties; a client that reads it
//! finds whole records only, each once, in an order that agrees with what came after what.

use super::{Board, ROOT, Worker};
use crate::bytes::data_of;
use crate::cluster::CHUNK_BITS;
use aze_client::Access;
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure, Ino};
use std::collections::BTreeMap;

/// The file to which everybody appends.
pub const APPENDED_FILE: &[u8] = b"/appended";

/// Number and length of a record, in front of its bytes.
const HEAD_BYTES: usize = 8;

/// Longest read of the whole file.
const WHOLE: usize = 8 << 20;

const READ: Access = Access { read: true, write: false };
const READ_WRITE: Access = Access { read: true, write: true };

/// How an append or truncation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// It had no effect.
    Failed,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    begun: u64,
    ended: u64,
    end: End,
    /// Where an append said that it went.
    offset: u64,
}

impl Step {
    /// Whether it may have happened after something that began then.
    fn may_follow(&self, begun: u64) -> bool {
        self.end != End::Failed && self.ended > begun
    }
}

/// Appends and truncations, with their outcomes.
#[derive(Debug, Default)]
pub struct Log {
    ino: Option<Ino>,
    next: u32,
    appends: BTreeMap<u32, Step>,
    emptied: Vec<Step>,
}

/// Shared by all tasks of the run.
pub type SharedLog = Mutex<Log>;

/// Makes the file known.
pub fn begin(board: &Board, ino: Ino) {
    board.appends.lock().ino = Some(ino);
}

fn record(id: u32, len: usize) -> Vec<u8> {
    let mut bytes = [id.to_le_bytes(), (len as u32).to_le_bytes()].concat();
    bytes.extend(data_of(id, HEAD_BYTES as u64, len - HEAD_BYTES));
    bytes
}

/// Appends `ops` records; `empties` also lets it truncate the file to nothing now and then.
pub async fn add(mut worker: Worker, ops: u64, empties: bool) {
    let Some(ino) = worker.board.appends.lock().ino else { return };
    let opened = worker.call(|| "open what is appended to".into(), worker.client.open(&ROOT, ino, READ_WRITE)).await;
    let Ok(file) = opened else { return };
    for _ in 0..ops {
        worker.think().await;
        if empties && worker.rng.chance(150_000) {
            let begun = worker.board.tick();
            let place = {
                let mut log = worker.board.appends.lock();
                log.emptied.push(Step { begun, ended: u64::MAX, end: End::Unknown, offset: 0 });
                log.emptied.len() - 1
            };
            let call = worker.client.truncate(&ROOT, ino, 0, Some(&file));
            // One that fails may have happened: the home decides before it tells the others.
            if worker.call(|| "empty what is appended to".into(), call).await.is_ok() {
                let ended = worker.board.tick();
                let step = &mut worker.board.appends.lock().emptied[place];
                (step.ended, step.end) = (ended, End::Done);
            }
            continue;
        }
        let longest = if worker.rng.chance(200_000) { 3 << CHUNK_BITS } else { 6000 };
        let len = worker.rng.between(HEAD_BYTES as u64 + 1, longest) as usize;
        let begun = worker.board.tick();
        let id = {
            let mut log = worker.board.appends.lock();
            log.next += 1;
            let id = log.next;
            log.appends.insert(id, Step { begun, ended: u64::MAX, end: End::Unknown, offset: 0 });
            id
        };
        let data = record(id, len);
        let result = worker.call(|| format!("append record {id} of {len} bytes"), file.append(&data)).await;
        let ended = worker.board.tick();
        let mut log = worker.board.appends.lock();
        let step = log.appends.get_mut(&id).expect("it was put there");
        match result {
            Ok(offset) => *step = Step { ended, end: End::Done, offset, ..*step },
            Err(failure) if has_no_effect(failure.code) => *step = Step { ended, end: End::Failed, ..*step },
            Err(_) => {}
        }
    }
    let _ = worker.call(|| "close".into(), file.close()).await;
}

/// What says that nothing was appended.
fn has_no_effect(code: Code) -> bool {
    matches!(
        code,
        Code::Unreachable | Code::TimedOut | Code::Busy | Code::NoSpace | Code::Lost | Code::Stale | Code::Corrupt
    )
}

/// Reads the file again and again while others append.
pub async fn read(mut worker: Worker, ops: u64) {
    for _ in 0..ops {
        worker.think().await;
        // What fails is judged where it is called.
        let _ = check(&worker).await;
    }
}

/// Reads the whole file and compares it with the log.
///
/// # Errors
/// What the client said.
pub async fn check(worker: &Worker) -> Result<(), Failure> {
    let Some(ino) = worker.board.appends.lock().ino else { return Ok(()) };
    let begun = worker.board.tick();
    let file = worker.call(|| "open what was appended".into(), worker.client.open(&ROOT, ino, READ)).await?;
    let data = worker.call(|| "read what was appended".into(), file.read(0, WHOLE)).await?;
    let ended = worker.board.tick();
    if let Err(why) = worker.board.appends.lock().judge(&data, begun, ended) {
        worker.board.violation(format!("{}: what was appended: {why}", worker.who));
    }
    worker.call(|| "close".into(), file.close()).await
}

impl Log {
    /// Whether a client that read from `begun` to `ended` may have found `data`.
    fn judge(&self, data: &[u8], begun: u64, ended: u64) -> Result<(), String> {
        let mut found: Vec<u32> = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let head = data
                .get(at..at + HEAD_BYTES)
                .ok_or_else(|| format!("{} bytes after the last record at {at}", data.len() - at))?;
            let (id, len) = head.split_at(4);
            let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
            let (id, len) = (number(id), number(len) as usize);
            let step = self.appends.get(&id).ok_or_else(|| format!("no record begins at {at}, with number {id}"))?;
            if data.get(at..at + len) != Some(&record(id, len)[..]) {
                return Err(format!("record {id} of {len} bytes at {at} is not whole: {step:?}"));
            }
            if step.begun > ended || step.end == End::Failed || step.end == End::Done && step.offset != at as u64 {
                return Err(format!("record {id} at {at} cannot be there: {step:?}"));
            }
            if found.contains(&id) {
                return Err(format!("record {id} is there twice, also at {at}"));
            }
            let gone =
                self.emptied.iter().find(|cut| cut.end == End::Done && cut.begun > step.ended && cut.ended < begun);
            if let Some(cut) = gone {
                return Err(format!("record {id} at {at} was cut off: {step:?}, {cut:?}"));
            }
            if let Some(later) = found.iter().find(|earlier| step.ended < self.appends[earlier].begun) {
                return Err(format!("record {id} at {at} comes after {later}, which began when it had ended"));
            }
            found.push(id);
            at += len;
        }
        for (id, step) in &self.appends {
            let missing = step.end == End::Done && step.ended < begun && !found.contains(id);
            if missing && !self.emptied.iter().any(|cut| cut.begun < ended && cut.may_follow(step.begun)) {
                return Err(format!("record {id} is not there: {step:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(ends: &[End]) -> Log {
        let mut log = Log::default();
        let mut offset = 0;
        for (index, end) in ends.iter().enumerate() {
            let (id, begun) = (index as u32 + 1, index as u64 * 10);
            log.appends.insert(id, Step { begun, ended: begun + 5, end: *end, offset });
            offset += if *end == End::Done { 20 } else { 0 };
        }
        log
    }

    #[test]
    fn records_are_whole_in_order_and_there_once() {
        let log = log(&[End::Done, End::Done, End::Failed, End::Unknown]);
        let (one, two, three, four) = (record(1, 20), record(2, 20), record(3, 20), record(4, 20));
        let judge = |parts: &[&[u8]]| log.judge(&parts.concat(), 100, 110);
        assert_eq!(judge(&[&one, &two]), Ok(()));
        assert_eq!(judge(&[&one, &two, &four]), Ok(()));
        assert!(judge(&[&one]).is_err(), "an acknowledged record is missing");
        assert!(judge(&[&two, &one]).is_err(), "the wrong order");
        assert!(judge(&[&one, &two, &four, &four]).is_err(), "twice");
        assert!(judge(&[&one, &two, &three]).is_err(), "one that failed");
        assert!(judge(&[&one, &two, &four[..19]]).is_err(), "torn");
        assert!(judge(&[&one, &[0; 20], &two]).is_err(), "a hole");
    }

    #[test]
    fn what_was_cut_off_is_gone_and_what_came_later_is_not() {
        let mut log = log(&[End::Done, End::Done]);
        log.emptied.push(Step { begun: 7, ended: 9, end: End::Done, offset: 0 });
        log.appends.get_mut(&2).expect("it is there").offset = 0;
        assert_eq!(log.judge(&record(2, 20), 100, 110), Ok(()));
        assert!(log.judge(&[record(1, 20), record(2, 20)].concat(), 100, 110).is_err());
        assert!(log.judge(&[], 100, 110).is_err());
    }
}
