//! Exit codes: the one table, and the errors that choose from it.
//!
//! It alone knows which number a kind of failure gives. Job scripts test these numbers, so they
//! never change.

use aze_proto::error::{Class, Code, Failure};
use std::fmt;
use std::io;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Everything asked for was done.
    Done = 0,
    /// Some items failed, others were done.
    Some = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// A file, directory or volume does not exist.
    NotFound = 3,
    /// Rights or the volume's secret are missing.
    Denied = 4,
    /// It cannot succeed as asked: exists, not empty, too long, no space.
    Caller = 5,
    /// It may succeed later: busy, unreachable, too slow.
    Again = 6,
    /// Data are lost or damaged, or it is unknown whether a change took effect.
    Fatal = 7,
    /// Nothing was ended or removed, since objects would have been lost that are nowhere else.
    Unsaved = 8,
}

/// The table as `aze help exit-codes` and the end of `aze --help` show it.
pub const TABLE: &str = "\
Exit codes:
  0  everything was done
  1  some items failed, the others were done
  2  the command line was not understood
  3  not found: file, directory or volume
  4  permission denied, or the volume's secret is missing or wrong
  5  cannot be done as asked: exists, not empty, wrong kind, no space
  6  try again: busy, server unreachable, no answer in time
  7  fatal: data lost or corrupt, or the outcome of a change is unknown
  8  not done: objects that are nowhere else would be lost ('aze down')";

/// Why a command, or a part of it, failed: a class and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Which exit code it gives.
    pub exit: Exit,
    /// The attempt, its object, the reason and the remedy.
    pub text: String,
}

/// What every function returns that may fail for a user.
pub type Outcome<T> = Result<T, Trouble>;

impl Exit {
    /// The exit code of a number; unknown ones are the worst.
    pub fn of_number(number: u8) -> Exit {
        let codes = [Exit::Usage, Exit::NotFound, Exit::Denied, Exit::Caller, Exit::Again, Exit::Unsaved];
        codes.into_iter().find(|exit| *exit as u8 == number).unwrap_or(Exit::Fatal)
    }
}

impl Trouble {
    /// An error with its story.
    pub fn new(exit: Exit, text: impl Into<String>) -> Trouble {
        Trouble { exit, text: text.into() }
    }

    /// A command line that makes no sense.
    pub fn usage(text: impl Into<String>) -> Trouble {
        Trouble::new(Exit::Usage, text)
    }

    /// A failure of the volume during `what`.
    pub fn volume(what: impl fmt::Display, failure: &Failure) -> Trouble {
        let (what, advice) = (what.to_string(), advice(failure.code));
        // The client names the path that it stumbled over, which mostly is the one just named.
        let repeats = !failure.detail.is_empty() && what.ends_with(&failure.detail);
        let why = if repeats { failure.code.text().into() } else { failure.to_string() };
        let separator = if advice.is_empty() { "" } else { ": " };
        Trouble::new(of_code(failure.code), format!("{what}: {why}{separator}{advice}"))
    }

    /// A failure of the local system during `what`.
    pub fn local(what: impl fmt::Display, error: &io::Error) -> Trouble {
        Trouble::new(of_io(error), format!("{what}: {}", plain(error)))
    }

    /// Puts the operation in front of the story.
    pub fn during(mut self, what: impl fmt::Display) -> Trouble {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The exit code of an error of the volume.
pub fn of_code(code: Code) -> Exit {
    match code {
        Code::NotFound | Code::Stale => Exit::NotFound,
        Code::AccessDenied | Code::NotPermitted | Code::NotAuthentic => Exit::Denied,
        _ => match code.class() {
            Class::Caller => Exit::Caller,
            Class::Again => Exit::Again,
            Class::Fatal => Exit::Fatal,
        },
    }
}

/// The exit code of an error of the local system.
pub fn of_io(error: &io::Error) -> Exit {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::PermissionDenied => Exit::Denied,
        ErrorKind::TimedOut | ErrorKind::ResourceBusy | ErrorKind::WouldBlock | ErrorKind::Interrupted => Exit::Again,
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof => Exit::Fatal,
        _ if error.raw_os_error() == Some(libc::EIO) => Exit::Fatal,
        _ => Exit::Caller,
    }
}

/// What to do about an error, where the error alone tells.
fn advice(code: Code) -> &'static str {
    match code {
        Code::Unreachable | Code::TimedOut | Code::Stopping => "see 'aze status' for the state of its servers",
        Code::NoSpace => "see 'aze df'; remove files, or start a larger volume with 'aze up --size'",
        Code::NotAuthentic => "the secret in the volume's directory is not the one its servers were started with",
        Code::Version => "use the same build of aze for the servers and for this command",
        Code::UnknownOutcome => "look at the files concerned before you repeat the command",
        Code::Lost => "a server was restarted empty; copy the file in again",
        _ => "",
    }
}

/// The system's words without Rust's "(os error N)".
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_protocol_has_an_exit_code() {
        for code in Code::ALL {
            let exit = of_code(*code) as u8;
            assert!((3..=7).contains(&exit), "{code:?} gives {exit}");
        }
        assert_eq!(of_code(Code::NotFound), Exit::NotFound);
        assert_eq!(of_code(Code::NotAuthentic), Exit::Denied);
        assert_eq!(of_code(Code::NotEmpty), Exit::Caller);
        assert_eq!(of_code(Code::NoSpace), Exit::Caller);
        assert_eq!(of_code(Code::Unreachable), Exit::Again);
        assert_eq!(of_code(Code::Corrupt), Exit::Fatal);
        assert_eq!(of_code(Code::UnknownOutcome), Exit::Fatal);
    }

    #[test]
    fn the_table_lists_every_exit_code_in_order() {
        let codes = [
            Exit::Done,
            Exit::Some,
            Exit::Usage,
            Exit::NotFound,
            Exit::Denied,
            Exit::Caller,
            Exit::Again,
            Exit::Fatal,
            Exit::Unsaved,
        ];
        for (number, (exit, line)) in codes.into_iter().zip(TABLE.lines().skip(1)).enumerate() {
            assert_eq!(exit as usize, number);
            assert!(line.starts_with(&format!("  {number}  ")), "{line}");
        }
        assert_eq!(TABLE.lines().count(), codes.len() + 1);
    }

    #[test]
    fn a_path_is_not_named_twice() {
        let failure = Failure::new(Code::NotFound, "/a/b");
        assert_eq!(Trouble::volume("open aze:/a/b", &failure).text, "open aze:/a/b: no such file or directory");
        assert_eq!(
            Trouble::volume("open aze:/a/b/c", &failure).text,
            "open aze:/a/b/c: /a/b: no such file or directory"
        );
    }

    #[test]
    fn local_errors_read_like_the_shell_s() {
        let error = io::Error::from_raw_os_error(libc::ENOENT);
        let trouble = Trouble::local("open /no/such", &error);
        assert_eq!(trouble, Trouble::new(Exit::NotFound, "open /no/such: no such file or directory"));
    }
}
