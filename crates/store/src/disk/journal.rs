//! The journal of one server: records in the order in which they took effect.
//!
//! Adding a record puts it into memory only, so that a thread can do it under any lock. A thread that waits until its
//! record is written writes all records that are in memory, if that takes no longer than to copy them; else a task
//! does. Another task syncs when a thread waits for that. One sync serves all threads that wait when it begins (group
//! commit), and records are written while a sync runs. After an error nothing is tried again: without reading the disk
//! the server cannot know its contents after a failed write or sync.

use super::record::Place;
use super::slots::SlotLogs;
use super::{log_name, record};
use aze_io::disk::{Dir, DiskError, DiskFile, DiskResult};
use aze_io::logical::LogicalClock;
use aze_io::sync::Mutex;
use aze_proto::{Configuration, SlotIndex};
use futures_channel::oneshot;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most bytes that a synced journal leaves unsynced: a power cut can take that much of changes that no program has
/// synced. Few enough for the inode numbers that are set aside.
const UNSYNCED_BYTES_MAX: u64 = 8 << 20;

/// When so many bytes of records are in memory a task writes them, though no thread waits for them.
const GATHERED_BYTES_MAX: usize = 64 << 10;

/// How often a thread that waits writes the records that other threads have added meanwhile.
const TURNS_MAX: usize = 4;

/// The head of the record that a clean end writes. No other has an empty one.
pub(super) const END: &[u8] = &[];

/// How far a journal has got, as a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The system has it: it survives this process.
    Written,
    /// The disk has it: it survives a power cut.
    Durable,
}

/// Takes records and brings them to the disk.
pub struct Journal {
    dir: Arc<dyn Dir>,
    state: Mutex<State>,
}

struct State {
    /// Files with the bytes still to be written to them; the last one is the current.
    files: VecDeque<(Arc<dyn DiskFile>, Vec<u8>)>,
    /// Number of the current file.
    number: u64,
    /// Where the current file begins.
    began: u64,
    end: u64,
    written: u64,
    durable: u64,
    /// The first place that is wanted to be durable.
    wanted: Option<u64>,
    /// Whether the sync under way is the last of its file.
    syncs_whole_file: bool,
    /// Without it only full files are synced, and written records count as durable.
    syncs: bool,
    is_writing: bool,
    is_syncing: bool,
    waiters: Vec<Waiter>,
    failed: Option<String>,
    clock: Arc<LogicalClock>,
    /// How far the logs of slots have come, and had come where the current file begins.
    slots: SlotLogs,
    slots_before: SlotLogs,
}

struct Waiter {
    position: u64,
    stage: Stage,
    then: Then,
}

/// What a thread calls when a place has been reached, or with the reason why it never will be.
type Then = Box<dyn FnOnce(Result<(), String>) + Send>;

impl Journal {
    /// A new journal file that goes on at `position`; everything before it is durable elsewhere. `clock` gives each
    /// record its logical time.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn begin(
        dir: Arc<dyn Dir>,
        syncs: bool,
        number: u64,
        position: u64,
        clock: Arc<LogicalClock>,
    ) -> DiskResult<Arc<Journal>> {
        let file = dir.create_log(&log_name(number)).await?;
        dir.sync().await?;
        let state = State {
            files: VecDeque::from([(file, Vec::new())]),
            number,
            began: position,
            end: position,
            written: position,
            durable: position,
            wanted: None,
            syncs_whole_file: false,
            syncs,
            is_writing: false,
            is_syncing: false,
            waiters: Vec::new(),
            failed: None,
            clock,
            slots: SlotLogs::default(),
            slots_before: SlotLogs::default(),
        };
        Ok(Arc::new(Journal { dir, state: Mutex::new(state) }))
    }

    /// Goes on with the logs of slots, before the first record.
    pub fn resume(&self, slots: SlotLogs) {
        let mut state = self.state.lock();
        (state.slots_before, state.slots) = (slots.clone(), slots);
    }

    /// How far the logs of slots had come where the current file begins.
    pub fn slots_before(&self) -> SlotLogs {
        self.state.lock().slots_before.clone()
    }

    /// Adds a record of no slot; returns where it begins. [`Self::reach`] waits until it is written or synced; the last few
    /// records stay in memory until a thread waits for them.
    pub fn append(self: &Arc<Self>, head: &[u8], payload: &[u8]) -> u64 {
        self.append_parts(None, head, &[payload])
    }

    /// As [`Self::append`], of a slot, with a payload in several parts.
    pub fn append_parts(self: &Arc<Self>, slot: Option<SlotIndex>, head: &[u8], payload: &[&[u8]]) -> u64 {
        let mut state = self.state.lock();
        let durable = state.durable;
        let position = state.add(durable, slot, head, payload);
        let is_much = state.syncs && state.end - durable > UNSYNCED_BYTES_MAX;
        if is_much {
            state.want_durable(durable + 1);
        }
        if is_much || state.gathered() > GATHERED_BYTES_MAX {
            self.start(&mut state);
        }
        position
    }

    /// Where the next record will begin: everything added so far is before it.
    pub fn end(&self) -> u64 {
        self.state.lock().end
    }

    /// Bytes in the current file.
    pub fn bytes(&self) -> u64 {
        let state = self.state.lock();
        state.end - state.began
    }

    /// Why nothing can be written any more, if that is so.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }

    /// Nothing more can be promised: other files of the server could not be written.
    pub fn fail(&self, why: DiskError) {
        let told = self.state.lock().fail(&why);
        tell(told);
    }

    /// Whether everything before `position` has reached the stage.
    pub fn has_reached(&self, position: u64, stage: Stage) -> bool {
        let state = self.state.lock();
        state.failed.is_none() && state.reached(state.stage(stage)) >= position
    }

    /// Calls `then` when everything before `position` has reached the stage: at once, or on the thread that writes the
    /// journal, so that no thread has to be woken for it. It must not take long. May call those of other callers, too.
    pub fn when(self: &Arc<Self>, position: u64, stage: Stage, then: impl FnOnce(Result<(), String>) + Send + 'static) {
        let result = {
            let mut state = self.state.lock();
            let stage = state.stage(stage);
            match &state.failed {
                Some(why) => Err(why.clone()),
                None if state.reached(stage) >= position => Ok(()),
                None => {
                    if stage == Stage::Durable {
                        state.want_durable(position);
                    }
                    state.waiters.push(Waiter { position, stage, then: Box::new(then) });
                    drop(state);
                    return self.write_here();
                }
            }
        };
        then(result);
    }

    /// Waits until everything before `position` has reached the stage.
    ///
    /// # Errors
    /// Why the journal could not be written; it never can again.
    pub async fn reach(self: &Arc<Self>, position: u64, stage: Stage) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        // A caller that has given up does not receive.
        self.when(position, stage, |result| drop(sender.send(result)));
        receiver.await.unwrap_or_else(|_| Err("the server ends".into()))
    }

    /// Brings everything to the disk, even where nothing is ever synced otherwise, and says so in the
    /// journal itself: damage before that record is no torn end. Returns where that record ends.
    ///
    /// # Errors
    /// Why the disk has not got it.
    pub async fn finish(self: &Arc<Self>) -> Result<u64, String> {
        let end = self.end();
        self.reach(end, Stage::Durable).await?;
        self.sync_last().await?;
        let marked = {
            let mut state = self.state.lock();
            state.add(end, None, END, &[]);
            state.end
        };
        self.reach(marked, Stage::Durable).await?;
        self.sync_last().await?;
        Ok(marked)
    }

    /// Syncs the current file; the ones before it were when they became full.
    async fn sync_last(&self) -> Result<(), String> {
        let file = self.state.lock().files.back().map(|(file, _)| file.clone());
        match file {
            Some(file) => file.sync().await.map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Goes on in a new file, of the next number, which is given, with where it begins.
    ///
    /// # Errors
    /// What the disk says; the old file is then still the current one.
    pub async fn rotate(self: &Arc<Self>) -> DiskResult<(u64, u64)> {
        self.rotate_taking(None).await
    }

    /// As [`Self::rotate`]; in the new file, records of a slot that the server has taken from another one are of this
    /// configuration, and numbered anew. None is in the file before the checkpoint of its number, which has the slot, is
    /// durable; records of an earlier time that the server had the slot are in older files.
    ///
    /// # Errors
    /// As there.
    pub async fn rotate_taking(self: &Arc<Self>, taken: Option<(SlotIndex, Configuration)>) -> DiskResult<(u64, u64)> {
        let number = self.state.lock().number + 1;
        let file = self.dir.create_log(&log_name(number)).await?;
        self.dir.sync().await?;
        let mut state = self.state.lock();
        if let Some((slot, configuration)) = taken {
            state.slots.take_over(slot, configuration);
        }
        state.files.push_back((file, Vec::new()));
        (state.number, state.began, state.slots_before) = (number, state.end, state.slots.clone());
        self.start(&mut state);
        Ok((number, state.end))
    }

    /// Writes the records in memory, on this thread if that takes no longer than to copy them, and has tasks do the
    /// rest.
    fn write_here(self: &Arc<Self>) {
        for _ in 0..TURNS_MAX {
            let (file, bytes) = {
                let mut state = self.state.lock();
                match state.claim_write(GATHERED_BYTES_MAX) {
                    true => state.take_bytes(),
                    false => return self.start(&mut state),
                }
            };
            let count = bytes.len() as u64;
            let result = match file.append_now(bytes) {
                Ok(done) => done.map(|()| count),
                Err(bytes) => {
                    let mut state = self.state.lock();
                    state.give_back(bytes);
                    return self.start(&mut state);
                }
            };
            let told = self.state.lock().settle(&Step::Write, result);
            tell(told);
        }
        self.start(&mut self.state.lock());
    }

    /// Starts tasks for the steps that can be done and that no task does yet.
    fn start(self: &Arc<Self>, state: &mut State) {
        while let Some(step) = state.claim() {
            let journal = self.clone();
            self.dir.spawn(Box::pin(async move { journal.run(step).await }));
        }
    }

    /// Writes and syncs until no step is left that no other task does.
    async fn run(self: Arc<Self>, first: Step) {
        let mut forgets = Forgets { journal: &self, is_over: false };
        let mut next = Some(first);
        while let Some(step) = next {
            let result = match &step {
                Step::Write => {
                    let (file, bytes) = self.state.lock().take_bytes();
                    let count = bytes.len() as u64;
                    file.append(bytes).await.map(|()| count)
                }
                Step::Sync => {
                    let (file, position) = self.state.lock().what_to_sync();
                    file.sync().await.map(|()| position)
                }
            };
            let told;
            (told, next) = {
                let mut state = self.state.lock();
                let told = state.settle(&step, result);
                let next = state.claim();
                // What else there is to do is for another.
                self.start(&mut state);
                (told, next)
            };
            tell(told);
        }
        forgets.is_over = true;
    }
}

/// Drops the waiting callers when a step is given up in the middle, as at the end of the process: they may hold the
/// last references to the journal.
struct Forgets<'a> {
    journal: &'a Journal,
    is_over: bool,
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let waiters = std::mem::take(&mut self.journal.state.lock().waiters);
            drop(waiters);
        }
    }
}

/// Calls the callbacks of the callers that waited, without any lock.
fn tell((waiters, result): (Vec<Waiter>, Result<(), String>)) {
    for waiter in waiters {
        (waiter.then)(result.clone());
    }
}

/// Each step is done by one task at a time; the two run side by side.
enum Step {
    Write,
    Sync,
}

impl State {
    /// Without syncs there is no stage beyond the first.
    fn stage(&self, stage: Stage) -> Stage {
        if self.syncs { stage } else { Stage::Written }
    }

    fn reached(&self, stage: Stage) -> u64 {
        match stage {
            Stage::Written => self.written,
            Stage::Durable => self.durable,
        }
    }

    /// Adds a record that says how far the journal is durable.
    fn add(&mut self, durable: u64, slot: Option<SlotIndex>, head: &[u8], payload: &[&[u8]]) -> u64 {
        let position = self.end;
        let of = slot.map(|slot| self.slots.next(slot));
        let at = Place { position, durable, order: self.clock.tick(), of };
        self.end += record::size(head, payload.iter().map(|part| part.len()).sum());
        if self.failed.is_none()
            && let Some((_, buffer)) = self.files.back_mut()
        {
            record::put_parts(buffer, at, head, payload);
        }
        position
    }

    /// Bytes that can be written now.
    fn gathered(&self) -> usize {
        self.files.front().map_or(0, |(_, buffer)| buffer.len())
    }

    fn want_durable(&mut self, position: u64) {
        self.wanted = Some(self.wanted.map_or(position, |wanted| wanted.min(position)));
    }

    /// Claims a step that can be done and that no task does yet.
    fn claim(&mut self) -> Option<Step> {
        if self.claim_write(usize::MAX) {
            return Some(Step::Write);
        }
        if self.failed.is_some() {
            return None;
        }
        // Nothing of the next file is written before this one is durable: so only the last file can have
        // a torn end, and a clean end has no more than that to sync.
        let is_full = self.files.len() > 1 && !self.is_writing;
        if !self.is_syncing && (is_full || self.wanted.is_some_and(|wanted| wanted <= self.written)) {
            self.is_syncing = true;
            return Some(Step::Sync);
        }
        None
    }

    /// Claims to write the records in memory, if no task does and they are at most so many bytes.
    fn claim_write(&mut self, bytes_max: usize) -> bool {
        let can = self.failed.is_none() && !self.is_writing && (1..=bytes_max).contains(&self.gathered());
        self.is_writing |= can;
        can
    }

    /// Nothing of it was written.
    fn give_back(&mut self, mut bytes: Vec<u8>) {
        self.is_writing = false;
        if let (Some((_, buffer)), None) = (self.files.front_mut(), &self.failed) {
            bytes.append(buffer);
            *buffer = bytes;
        }
    }

    fn take_bytes(&mut self) -> (Arc<dyn DiskFile>, Vec<u8>) {
        let (file, buffer) = self.files.front_mut().expect("a journal has a file");
        (file.clone(), std::mem::take(buffer))
    }

    /// The file, and the place before which everything is in it or durable already.
    fn what_to_sync(&mut self) -> (Arc<dyn DiskFile>, u64) {
        let (file, buffer) = self.files.front().expect("a journal has a file");
        self.syncs_whole_file = self.files.len() > 1 && buffer.is_empty() && !self.is_writing;
        (file.clone(), self.written)
    }

    /// Notes what a step has done; gives whom to tell what.
    fn settle(&mut self, step: &Step, result: DiskResult<u64>) -> (Vec<Waiter>, Result<(), String>) {
        match step {
            Step::Write => self.is_writing = false,
            Step::Sync => self.is_syncing = false,
        }
        match (step, result) {
            (Step::Write, Ok(count)) => self.written += count,
            (Step::Sync, Ok(position)) => {
                self.durable = position;
                if std::mem::take(&mut self.syncs_whole_file) {
                    self.files.pop_front();
                }
            }
            (_, Err(error)) => return self.fail(&error),
        }
        let (written, durable) = (self.written, self.durable);
        let at = |stage: Stage| if stage == Stage::Written { written } else { durable };
        let done = self.waiters.extract_if(.., |waiter| at(waiter.stage) >= waiter.position).collect();
        self.wanted = (self.end - durable > UNSYNCED_BYTES_MAX && self.syncs).then_some(durable + 1);
        let waiting = self.waiters.iter().filter(|waiter| waiter.stage == Stage::Durable);
        if let Some(first) = waiting.map(|waiter| waiter.position).min() {
            self.want_durable(first);
        }
        (done, Ok(()))
    }

    fn fail(&mut self, error: &DiskError) -> (Vec<Waiter>, Result<(), String>) {
        let why = self.failed.get_or_insert_with(|| error.to_string()).clone();
        for (_, buffer) in &mut self.files {
            *buffer = Vec::new();
        }
        (std::mem::take(&mut self.waiters), Err(why))
    }
}
