//! A command of the user that runs beside the phases of every second turn, again and again, so that its cost for them
//! shows. One thread of this process starts it, waits for it, and ends it with its group of processes.

use crate::program::{Program, Tell};
use aze_io::real::until;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the command may take to end after it was asked to, and after it was killed.
const END_TIME_MAX: Duration = Duration::from_secs(10);
/// A run of the command may take so long: longer than any turn.
const RUN_TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Bytes at the end of its output from which an error takes the last line.
const LAST_WORDS_BYTES: u64 = 1024;

/// How the runs of the command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// With exit code 0.
    pub done: u64,
    /// With exit code 1.
    pub failed: u64,
    /// Because the turn was over.
    pub cut_off: u64,
}

impl Runs {
    /// Adds the runs of another turn.
    pub fn add(&mut self, other: Runs) {
        self.done += other.done;
        self.failed += other.failed;
        self.cut_off += other.cut_off;
    }
}

/// The command, and where its output goes.
#[derive(Clone)]
pub struct Beside {
    /// As the user gave it.
    pub command: String,
    /// The file that keeps what all its runs print.
    pub output: PathBuf,
    program: &'static dyn Program,
}

impl Beside {
    /// Makes the file, which must not be there.
    pub fn new(command: &str, output: PathBuf, program: &'static dyn Program) -> Outcome<Beside> {
        File::create_new(&output).map_err(|error| Trouble::local(format!("make {}", output.display()), &error))?;
        Ok(Beside { command: command.into(), output, program })
    }

    /// Starts the command; from now on it runs until [`Running::end`].
    pub fn begin(&self) -> Outcome<Running> {
        let first = self.start()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (beside, over) = (self.clone(), is_over.clone());
        let thread = std::thread::spawn(move || beside.again_and_again(first, &over));
        Ok(Running { is_over, thread: Some(thread) })
    }

    fn start(&self) -> Outcome<Child> {
        let failed = |error: &std::io::Error| Trouble::local("bench io500: --beside: run sh", error);
        let opened = OpenOptions::new().append(true).open(&self.output);
        let output = opened.and_then(|file| Ok((file.try_clone()?, file))).map_err(|error| failed(&error))?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).stdin(Stdio::null()).stdout(output.0).stderr(output.1).process_group(0);
        self.program.with_signals(&mut command);
        command.spawn().map_err(|error| failed(&error))
    }

    /// Runs it until the turn is over or a run ends as none may.
    fn again_and_again(&self, first: Child, is_over: &AtomicBool) -> Outcome<Runs> {
        let (mut child, mut runs) = (first, Runs::default());
        loop {
            let mut ended = None;
            until(Instant::now() + RUN_TIME_MAX, || {
                ended = child.try_wait().transpose();
                ended.is_some() || is_over.load(Ordering::Relaxed)
            });
            // What the command has left in the background must not reach into the next turn.
            self.end_group(&mut child);
            match ended {
                None => {
                    runs.cut_off += 1;
                    return Ok(runs);
                }
                Some(Ok(status)) if status.code() == Some(0) => runs.done += 1,
                Some(Ok(status)) if status.code() == Some(1) => runs.failed += 1,
                Some(Ok(status)) => return Err(self.wrong(status)),
                Some(Err(error)) => return Err(Trouble::local("bench io500: --beside: wait for sh", &error)),
            }
            if is_over.load(Ordering::Relaxed) {
                return Ok(runs);
            }
            child = self.start()?;
        }
    }

    /// Asks all processes of the group to end, and kills those that do not.
    fn end_group(&self, child: &mut Child) {
        let leader = child.id();
        for how in [Tell::End, Tell::Kill] {
            let mut gone = || {
                // A leader that was not waited for counts as one of its group.
                let _ = child.try_wait();
                !self.program.tell_group(leader, Tell::Nothing)
            };
            if gone() {
                return;
            }
            self.program.tell_group(leader, how);
            until(Instant::now() + END_TIME_MAX, gone);
        }
    }

    fn wrong(&self, status: ExitStatus) -> Trouble {
        let (command, output) = (&self.command, self.output.display());
        let last = self.last_words().map(|line| format!(": {line}")).unwrap_or_default();
        match status.code() {
            Some(126 | 127) => Trouble::usage(format!(
                "bench io500: --beside '{command}' never ran: sh could not run it ({status}){last} (its output is in {output})"
            )),
            _ => Trouble::new(
                Exit::Caller,
                format!(
                    "bench io500: --beside '{command}' ended with {status}, where only 0 and 1 are expected, so that what was \
                     measured is not its cost{last} (its output is in {output})"
                ),
            ),
        }
    }

    /// The last line that it has printed.
    fn last_words(&self) -> Option<String> {
        let mut file = File::open(&self.output).ok()?;
        let length = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS_BYTES))).ok()?;
        let mut bytes = Vec::new();
        file.take(LAST_WORDS_BYTES).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_string())
    }

    /// Removes a file of output that has nothing in it; gives the file if it stays.
    pub fn kept_output(&self) -> Option<&PathBuf> {
        if fs::metadata(&self.output).is_ok_and(|file| file.len() == 0) && fs::remove_file(&self.output).is_ok() {
            return None;
        }
        Some(&self.output)
    }
}

/// The command runs; it is ended with this.
pub struct Running {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Outcome<Runs>>>,
}

impl Running {
    /// Whether it is not started again, since a run has ended as none may: [`Running::end`] says how.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it, and says how its runs have ended.
    pub fn end(mut self) -> Outcome<Runs> {
        self.join().expect("nobody else ends it")
    }

    fn join(&mut self) -> Option<Outcome<Runs>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().expect("the thread does not panic"))
    }
}

impl Drop for Running {
    /// After a failure of the turn: that failure is told.
    fn drop(&mut self) {
        let _ = self.join();
    }
}
