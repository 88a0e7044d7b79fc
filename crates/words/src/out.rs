//! Lines for standard output and standard error that may have lost their reader.
//!
//! `println!` and `eprintln!` panic when they cannot write, which ends a command in the middle of its work when `head` has
//! gone away, and a server whose log is on a full disk. [`outln!`](crate::outln), [`out!`](crate::out) and
//! [`errln!`](crate::errln) do not: a closed pipe is no error, as no reader is left, and any other failure of standard output
//! is kept for [`finish`], which the program calls before it ends. What standard error cannot take is dropped.

use crate::exit::{Outcome, Trouble};
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

/// The first failure of standard output, unless it was a closed pipe.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line to standard output, as `println!` does; see [`out`](self).
#[macro_export]
macro_rules! outln {
    ($($words:tt)*) => { $crate::out::print(format_args!("{}\n", format_args!($($words)*))) };
}

/// Prints text to standard output, as `print!` does; see [`out`](self).
#[macro_export]
macro_rules! out {
    ($($words:tt)*) => { $crate::out::print(format_args!($($words)*)) };
}

/// Prints a line to standard error, as `eprintln!` does; see [`out`](self).
#[macro_export]
macro_rules! errln {
    ($($words:tt)*) => { $crate::out::print_error(format_args!("{}\n", format_args!($($words)*))) };
}

/// Writes to standard output; blocks until its reader takes it.
pub fn print(text: fmt::Arguments<'_>) {
    keep(io::stdout().write_fmt(text));
}

/// Writes to standard error; blocks until its reader takes it.
pub fn print_error(text: fmt::Arguments<'_>) {
    // No stream is left on which a failure of this one could be told.
    let _ = io::stderr().write_fmt(text);
}

/// Writes the rest of standard output.
///
/// # Errors
/// The first failure of standard output in this process, unless its reader has closed it.
pub fn finish() -> Outcome<()> {
    keep(io::stdout().flush());
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
    failed.as_ref().map_or(Ok(()), |error| Err(Trouble::local("write to standard output", error)))
}

fn keep(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}
