//! Failures as C and Python know them: an errno and a sentence.

use aze_proto::error::Failure;
use aze_words::exit::{Exit, Trouble};
use std::fmt;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The error number of errno(3).
    pub errno: i32,
    /// The attempt, its object, and why it failed.
    pub text: String,
}

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this number with its story.
    pub fn new(errno: i32, text: impl Into<String>) -> Error {
        Error { errno, text: text.into() }
    }

    /// Something that was opened before fork(2), used in the child.
    pub(crate) fn of_parent(what: &str) -> Error {
        Error::new(libc::EBADF, format!("{what} was opened before fork(2): a child opens its own"))
    }

    /// Puts the operation in front of the story.
    pub fn during(self, what: impl fmt::Display) -> Error {
        Error { text: format!("{what}: {}", self.text), ..self }
    }
}

impl From<Failure> for Error {
    /// The number is that of the mount: [`Code::errno`](aze_proto::error::Code::errno).
    fn from(failure: Failure) -> Error {
        Error::new(failure.code.errno(), failure.to_string())
    }
}

impl From<Trouble> for Error {
    /// Of a volume that cannot be found or reached: ENOENT, EACCES, EINVAL for a name that cannot be one, EHOSTUNREACH
    /// for one that may be there later, and EIO.
    fn from(trouble: Trouble) -> Error {
        let errno = match trouble.exit {
            Exit::NotFound => libc::ENOENT,
            Exit::Denied => libc::EACCES,
            Exit::Usage | Exit::Caller => libc::EINVAL,
            Exit::Again => libc::EHOSTUNREACH,
            Exit::Done | Exit::Some | Exit::Fatal | Exit::Unsaved => libc::EIO,
        };
        Error::new(errno, trouble.text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
