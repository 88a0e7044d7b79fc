//! Errors as they cross the wire, and the one place where errno is chosen.

use crate::ids::{Generation, Ino, MapEpoch, NamespaceEpoch};
use crate::wire::{Input, Malformed, Wire};
use crate::{wire_enum, wire_struct};
use std::fmt;

/// Whose turn it is after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The request itself cannot succeed: the caller must change something.
    Caller,
    /// The same request may succeed later, or elsewhere.
    Again,
    /// Something is broken or lost.
    Fatal,
}

macro_rules! codes {
    ($($(#[$meta:meta])* $number:literal $code:ident $class:ident $errno:literal $text:literal),* $(,)?) => {
        /// What went wrong, in words of POSIX where POSIX has one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $($(#[$meta])* #[doc = $text] $code),* }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            /// The number on the wire.
            pub fn number(self) -> u16 {
                match self { $(Code::$code => $number),* }
            }

            /// The code of a number on the wire.
            pub fn from_number(number: u16) -> Option<Code> {
                match number { $($number => Some(Code::$code),)* _ => None }
            }

            /// Whose turn it is.
            pub fn class(self) -> Class {
                match self { $(Code::$code => Class::$class),* }
            }

            /// The error number that a system call gives for it on Linux.
            pub fn errno(self) -> i32 {
                match self { $(Code::$code => $errno),* }
            }

            /// A sentence for people.
            pub fn text(self) -> &'static str {
                match self { $(Code::$code => $text),* }
            }
        }
    };
}

codes! {
    1 NotFound Caller 2 "no such file or directory",
    2 Exists Caller 17 "file exists",
    3 NotDirectory Caller 20 "not a directory",
    4 IsDirectory Caller 21 "is a directory",
    5 NotEmpty Caller 39 "directory not empty",
    6 AccessDenied Caller 13 "permission denied",
    7 NotPermitted Caller 1 "operation not permitted",
    8 Invalid Caller 22 "invalid argument",
    9 NameTooLong Caller 36 "file name too long",
    10 TooManyLinks Caller 31 "too many links",
    11 TooLarge Caller 27 "file too large",
    12 LinkLoop Caller 40 "too many levels of symbolic links",
    13 CrossVolume Caller 18 "the two names are on different volumes",
    14 Unsupported Caller 95 "not supported by this volume",
    15 NoSpace Caller 28 "no space left in the volume",
    16 Busy Again 16 "busy with another operation",
    17 TimedOut Again 110 "no answer before the deadline",
    18 Unreachable Again 5 "the server cannot be reached",
    19 UnknownOutcome Fatal 5 "the server stopped answering: whether the change took effect is unknown",
    20 Lost Fatal 5 "data were on a server that lost them",
    21 Corrupt Fatal 5 "stored or transferred bytes do not match their checksum",
    22 Stale Caller 116 "the file no longer exists",
    23 Refused Again 11 "refused: the request is out of date",
    24 Expired Caller 116 "the session has ended",
    25 Replayed Fatal 5 "an old copy of a request",
    26 NotAuthentic Caller 13 "the other end could not prove that it knows the volume's secret",
    27 Version Caller 71 "the other end speaks another version of the protocol",
    28 Malformed Fatal 71 "a message could not be understood",
    29 Stopping Again 5 "the server is shutting down",
    30 Internal Fatal 5 "a defect in Azekura",
    31 Limit Caller 7 "a named limit was exceeded",
    32 NoAttribute Caller 61 "no such extended attribute",
    33 OutOfRange Caller 34 "out of range",
    34 Backing Fatal 5 "the backing file system gave an error",
    35 Changed Fatal 116 "changed in the backing file system: a new volume over it ('aze up --backing') shows it as it is now",
}

impl Wire for Code {
    fn put(&self, out: &mut Vec<u8>) {
        self.number().put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let number = u16::take(input)?;
        Code::from_number(number).ok_or_else(|| input.malformed("an unknown error code"))
    }
}

wire_enum! {
    /// Why a request was refused before it had any effect, with what the client needs to ask again.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Refusal {
        /// The shard map has moved on; fetch it.
        1 = MapStale {
            /// The server's map.
            epoch: MapEpoch
        },
        /// Directories were renamed or lost rights since the client's epoch.
        2 = NamespaceStale {
            /// The server's epoch.
            epoch: NamespaceEpoch,
            /// Whether everything cached must go, because the list would be too long.
            all: bool,
            /// The directories concerned.
            changed: Vec<Ino>,
        },
        /// The file was truncated since; fetch its attributes.
        3 = GenerationStale {
            /// The generation now.
            generation: Generation
        },
        /// Too many changes of this session wait at this shard.
        4 = TooManyPending,
        /// The server reads its storage, or waits for other servers that do; ask again.
        5 = Starting,
    }
}

wire_struct! {
    /// An error reply.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Failure {
        /// What went wrong.
        pub code: Code,
        /// The operation, its object and the reason of the failure: for people.
        pub detail: String,
        /// Present with `Code::Refused`.
        pub refusal: Option<Refusal>,
    }
}

impl Failure {
    /// An error with its story.
    pub fn new(code: Code, detail: impl Into<String>) -> Failure {
        Failure { code, detail: detail.into(), refusal: None }
    }

    /// A refusal that the client handles by itself.
    pub fn refused(refusal: Refusal) -> Failure {
        Failure { code: Code::Refused, detail: String::new(), refusal: Some(refusal) }
    }

    /// Whether no server has said what became of the request.
    pub fn is_silence(&self) -> bool {
        matches!(self.code, Code::Unreachable | Code::TimedOut | Code::UnknownOutcome | Code::Stopping)
    }

    /// Puts the operation in front of the story.
    pub fn during(mut self, what: impl fmt::Display) -> Failure {
        self.detail = if self.detail.is_empty() { what.to_string() } else { format!("{what}: {}", self.detail) };
        self
    }
}

impl From<Code> for Failure {
    fn from(code: Code) -> Failure {
        Failure::new(code, "")
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        Failure::new(Code::Malformed, malformed.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.detail.is_empty(), &self.refusal) {
            (true, None) => f.write_str(self.code.text()),
            (true, Some(refusal)) => write!(f, "{} ({})", self.code.text(), refusal.name()),
            (false, _) => write!(f, "{}: {}", self.detail, self.code.text()),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_one_code_each() {
        for (index, code) in Code::ALL.iter().enumerate() {
            assert_eq!(Code::from_number(code.number()), Some(*code));
            assert_eq!(usize::from(code.number()), index + 1, "numbers are never reused or skipped");
        }
    }
}
