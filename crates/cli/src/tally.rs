//! Counts what a command on many items did, tells each failure, and chooses the exit code; and
//! writes results to standard output.

use crate::exit::{self, Exit, Outcome, Trouble};
use aze_words::errln;
use indicatif::ProgressBar;
use std::io::{self, BufWriter, Stdout, Write};
use std::sync::Mutex;

/// The items of one command. Shared by its threads.
pub struct Tally {
    command: &'static str,
    bar: Option<ProgressBar>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    done: u64,
    failed: u64,
    /// The one exit code of all failures, until two differ.
    exit: Option<Exit>,
}

impl Tally {
    /// For the command of this name.
    pub fn new(command: &'static str) -> Tally {
        Tally { command, bar: None, state: Mutex::default() }
    }

    /// The same, with a progress bar that messages must not tear.
    pub fn with_bar(command: &'static str, bar: Option<ProgressBar>) -> Tally {
        Tally { command, bar, state: Mutex::default() }
    }

    /// Counts one item, and tells why if it failed.
    pub fn note<T>(&self, outcome: Outcome<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                self.lock().done += 1;
                Some(value)
            }
            Err(trouble) => {
                self.fail(&trouble);
                None
            }
        }
    }

    /// Counts and tells a failure.
    pub fn fail(&self, trouble: &Trouble) {
        let mut state = self.lock();
        state.exit = match state.exit {
            None => Some(trouble.exit),
            Some(exit) if exit == trouble.exit => Some(exit),
            Some(_) => Some(Exit::Some),
        };
        state.failed += 1;
        self.tell(&exit::failure_line(self.command, trouble));
    }

    /// Tells of a part that is missing from an item that is done all the same.
    pub fn warn(&self, trouble: &Trouble) {
        let _one_at_a_time = self.lock();
        self.tell(&exit::warning_line(self.command, trouble));
    }

    fn tell(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| errln!("{text}")),
            None => errln!("{text}"),
        }
    }

    /// How many items failed.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// 0 if nothing failed, the failures' common code if nothing succeeded, else 1.
    pub fn exit(&self) -> Exit {
        let state = self.lock();
        match state.exit {
            None => Exit::Done,
            Some(exit) if state.done == 0 => exit,
            Some(_) => Exit::Some,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Standard output, written in large pieces.
pub struct Out(BufWriter<Stdout>);

impl Out {
    /// Opens it.
    pub fn new() -> Out {
        Out(BufWriter::with_capacity(64 << 10, io::stdout()))
    }

    /// Writes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Outcome<()> {
        let result = self.0.write_all(bytes);
        written(result)
    }

    /// Writes bytes and an end of line.
    pub fn line(&mut self, bytes: impl AsRef<[u8]>) -> Outcome<()> {
        self.bytes(bytes.as_ref())?;
        self.bytes(b"\n")
    }

    /// Writes a JSON value on a line of its own.
    pub fn json(&mut self, value: &impl serde::Serialize) -> Outcome<()> {
        self.line(serde_json::to_string(value).expect("values of strings and numbers become JSON"))
    }

    /// Writes a table; see [`crate::show::table`].
    pub fn table(&mut self, right: &[bool], rows: &[Vec<String>]) -> Outcome<()> {
        let result = crate::show::table(&mut self.0, right, rows);
        written(result)
    }

    /// Writes the buffered output.
    pub fn flush(&mut self) -> Outcome<()> {
        let result = self.0.flush();
        written(result)
    }
}

/// A reader that has gone away, such as `head`, is no error: no reader is left to tell.
fn written(result: io::Result<()>) -> Outcome<()> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(Exit::Done as i32),
        Err(error) => Err(Trouble::local("write to standard output", &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit_of(outcomes: &[Option<Exit>]) -> Exit {
        let tally = Tally::new("test");
        for outcome in outcomes {
            tally.note(outcome.map_or(Ok(()), |exit| Err(Trouble::new(exit, "as the test wants"))));
        }
        tally.exit()
    }

    #[test]
    fn the_exit_code_says_how_much_failed_and_how() {
        assert_eq!(exit_of(&[None, None]), Exit::Done);
        assert_eq!(exit_of(&[]), Exit::Done);
        assert_eq!(exit_of(&[Some(Exit::NotFound)]), Exit::NotFound);
        assert_eq!(exit_of(&[Some(Exit::NotFound), Some(Exit::NotFound)]), Exit::NotFound);
        assert_eq!(exit_of(&[Some(Exit::NotFound), Some(Exit::Denied)]), Exit::Some);
        assert_eq!(exit_of(&[None, Some(Exit::NotFound)]), Exit::Some);
    }
}
