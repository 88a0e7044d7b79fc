//! The mount's log: what went wrong in the servers, told in full, at most one line each second.
//!
//! The caller gets only an error number; this is where the story goes.

use aze_io::Io;
use aze_io::sync::Mutex;
use aze_proto::error::{Class, Code, Failure};
use std::fmt;
use std::io::Write;

/// Least time between two lines, in nanoseconds.
const QUIET_NS: u64 = 1_000_000_000;

/// Writes to standard error.
pub struct Journal {
    io: Io,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    next_ns: u64,
    left_out: u64,
}

impl Journal {
    /// An empty log.
    pub fn new(io: Io) -> Journal {
        Journal { io, last: Mutex::default() }
    }

    /// Tells a failure that is not the caller's own.
    pub fn note(&self, operation: impl fmt::Display, failure: &Failure) {
        if is_worth_telling(failure.code) {
            self.say(format_args!("{operation}: {failure}"));
        }
    }

    /// Tells what went wrong in here.
    pub fn say(&self, what: impl fmt::Display) {
        let left_out = {
            let mut last = self.last.lock();
            let now_ns = self.io.mono_ns();
            if now_ns < last.next_ns {
                last.left_out += 1;
                return;
            }
            last.next_ns = now_ns + QUIET_NS;
            std::mem::take(&mut last.left_out)
        };
        let more = if left_out > 0 { format!(" ({left_out} more since the last line)") } else { String::new() };
        let seconds = self.io.wall_ns() / 1_000_000_000;
        // A full disk under the log must not end the mount.
        let _ = writeln!(std::io::stderr(), "{seconds} {what}{more}");
    }
}

/// Whether a failure concerns the volume's operator, not only the caller.
fn is_worth_telling(code: Code) -> bool {
    match code {
        Code::NotAuthentic | Code::Version | Code::Expired | Code::Limit => true,
        Code::Busy => false,
        _ => code.class() != Class::Caller,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_servers_faults_are_told() {
        for code in
            [Code::Unreachable, Code::Lost, Code::Corrupt, Code::UnknownOutcome, Code::NotAuthentic, Code::TimedOut]
        {
            assert!(is_worth_telling(code), "{code:?}");
        }
        for code in [Code::NotFound, Code::Exists, Code::NoSpace, Code::AccessDenied, Code::Busy] {
            assert!(!is_worth_telling(code), "{code:?}");
        }
    }
}
