//! The journal of one server: records in the order in which they took effect.
//!
//! Adding a record puts it into memory only, so that it can be done under any lock. A task writes
//! what has gathered, and syncs when somebody waits for that: everybody who waits meanwhile is
//! served by the next round together (group commit). Nothing is tried again after an error: what a
//! disk holds after a failed write or sync cannot be known without reading it.

use super::{log_name, record};
use aze_io::Io;
use aze_io::disk::{Dir, DiskError, DiskFile, DiskResult};
use futures_channel::oneshot;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes that a journal that is synced leaves to the system at most: what a power cut can take of
/// what nobody has synced, and few enough for the inode numbers set aside to last.
const UNSYNCED_BYTES_MAX: u64 = 8 << 20;

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
    io: Io,
    dir: Arc<dyn Dir>,
    /// Without it nothing is ever synced, and what is written counts as durable.
    syncs: bool,
    state: Mutex<State>,
}

struct State {
    /// Files with what has still to be written to them; the last one is the current.
    files: VecDeque<(Arc<dyn DiskFile>, Vec<u8>)>,
    /// Number of the current file.
    number: u64,
    /// Where the current file begins.
    began: u64,
    end: u64,
    written: u64,
    durable: u64,
    wanted_durable: u64,
    is_running: bool,
    waiters: Vec<(u64, Stage, oneshot::Sender<()>)>,
    failed: Option<String>,
}

impl Journal {
    /// A new journal file that goes on at `position`; everything before it is durable elsewhere.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn begin(io: Io, dir: Arc<dyn Dir>, syncs: bool, number: u64, position: u64) -> DiskResult<Arc<Journal>> {
        let file = dir.create(&log_name(number)).await?;
        dir.sync().await?;
        let state = State {
            files: VecDeque::from([(file, Vec::new())]),
            number,
            began: position,
            end: position,
            written: position,
            durable: position,
            wanted_durable: 0,
            is_running: false,
            waiters: Vec::new(),
            failed: None,
        };
        Ok(Arc::new(Journal { io, dir, syncs, state: Mutex::new(state) }))
    }

    /// Adds a record; gives where it begins. Whether it gets anywhere is told by [`Self::reach`].
    pub fn append(self: &Arc<Self>, head: &[u8], payload: &[u8]) -> u64 {
        let mut state = self.state.lock();
        let (position, durable) = (state.end, state.durable);
        state.end += record::size(head, payload);
        if state.failed.is_none()
            && let Some((_, buffer)) = state.files.back_mut()
        {
            record::put(buffer, position, durable, head, payload);
        }
        if state.end - durable > UNSYNCED_BYTES_MAX {
            state.wanted_durable = state.end;
        }
        self.start(&mut state);
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
        self.settle(Err(why));
    }

    /// Whether everything before `position` has reached the stage.
    pub fn has_reached(&self, position: u64, stage: Stage) -> bool {
        let state = self.state.lock();
        state.failed.is_none() && state.reached(self.stage(stage)) >= position
    }

    /// Without syncs there is no stage beyond the first.
    fn stage(&self, stage: Stage) -> Stage {
        if self.syncs { stage } else { Stage::Written }
    }

    /// Waits until everything before `position` has reached the stage.
    ///
    /// # Errors
    /// Why the journal could not be written; it never can again.
    pub async fn reach(self: &Arc<Self>, position: u64, stage: Stage) -> Result<(), String> {
        let stage = self.stage(stage);
        let reached = {
            let mut state = self.state.lock();
            if let Some(why) = &state.failed {
                return Err(why.clone());
            }
            if state.reached(stage) >= position {
                return Ok(());
            }
            if stage == Stage::Durable {
                state.wanted_durable = state.wanted_durable.max(position);
            }
            let (sender, receiver) = oneshot::channel();
            state.waiters.push((position, stage, sender));
            self.start(&mut state);
            receiver
        };
        match reached.await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().unwrap_or_else(|| "the server ends".into())),
        }
    }

    /// Brings everything to the disk, even where nothing is ever synced otherwise.
    ///
    /// # Errors
    /// Why the disk has not got it.
    pub async fn finish(self: &Arc<Self>) -> Result<(), String> {
        self.reach(self.end(), Stage::Durable).await?;
        let files: Vec<_> = self.state.lock().files.iter().map(|(file, _)| file.clone()).collect();
        for file in files {
            file.sync().await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Goes on in a new file, of the next number, which is given, with where it begins.
    ///
    /// # Errors
    /// What the disk says; the old file is then still the current one.
    pub async fn rotate(self: &Arc<Self>) -> DiskResult<(u64, u64)> {
        let number = self.state.lock().number + 1;
        let file = self.dir.create(&log_name(number)).await?;
        self.dir.sync().await?;
        let mut state = self.state.lock();
        state.files.push_back((file, Vec::new()));
        (state.number, state.began) = (number, state.end);
        self.start(&mut state);
        Ok((number, state.end))
    }

    fn start(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.is_running, true) {
            let journal = self.clone();
            self.io.spawn(async move { journal.run().await });
        }
    }

    /// Writes and syncs until there is nothing left to do.
    async fn run(self: Arc<Self>) {
        loop {
            let Some((file, step)) = self.next_step() else { return };
            let result = match step {
                Step::Write(bytes) => {
                    let count = bytes.len() as u64;
                    file.append(bytes).await.map(|()| self.state.lock().written += count)
                }
                Step::Sync(position) => file.sync().await.map(|()| self.state.lock().durable = position),
                Step::Next if self.syncs => {
                    // Nothing of the next file is written before this one is durable: so only the
                    // last file can have a torn end.
                    let position = self.state.lock().written;
                    file.sync().await.map(|()| {
                        let mut state = self.state.lock();
                        state.durable = position;
                        state.files.pop_front();
                    })
                }
                Step::Next => {
                    self.state.lock().files.pop_front();
                    Ok(())
                }
            };
            self.settle(result);
        }
    }

    fn next_step(&self) -> Option<(Arc<dyn DiskFile>, Step)> {
        let mut state = self.state.lock();
        let wants_sync = self.syncs && state.wanted_durable > state.durable;
        let (written, is_last) = (state.written, state.files.len() == 1);
        let has_failed = state.failed.is_some();
        let step = match state.files.front_mut() {
            _ if has_failed => None,
            Some((file, buffer)) if !buffer.is_empty() => Some((file.clone(), Step::Write(std::mem::take(buffer)))),
            Some((file, _)) if !is_last => Some((file.clone(), Step::Next)),
            Some((file, _)) if wants_sync => Some((file.clone(), Step::Sync(written))),
            _ => None,
        };
        state.is_running = step.is_some();
        step
    }

    /// Tells those who waited for what has been reached; all of them, after an error.
    fn settle(&self, result: DiskResult<()>) {
        let mut state = self.state.lock();
        let done: Vec<_> = match result {
            Ok(()) => {
                let (written, durable) = (state.reached(Stage::Written), state.reached(Stage::Durable));
                let at = |stage: Stage| if stage == Stage::Written { written } else { durable };
                state.waiters.extract_if(.., |(position, stage, _)| at(*stage) >= *position).collect()
            }
            Err(error) => {
                state.failed = Some(error.to_string());
                for (_, buffer) in &mut state.files {
                    *buffer = Vec::new();
                }
                state.waiters.clear();
                Vec::new()
            }
        };
        drop(state);
        for (_, _, sender) in done {
            // Whoever has given up is no concern.
            let _ = sender.send(());
        }
    }
}

enum Step {
    Write(Vec<u8>),
    /// Sync the file; everything before the position is in it, or durable already.
    Sync(u64),
    /// The file is full: go on with the next.
    Next,
}

impl State {
    fn reached(&self, stage: Stage) -> u64 {
        match stage {
            Stage::Written => self.written,
            Stage::Durable => self.durable,
        }
    }
}
