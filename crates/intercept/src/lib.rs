//! Unmodified programs see a volume without a mount.
//!
//! The loader puts this library into each program of an `aze run --door intercept`. It rewrites the instructions by which libc
//! and the loader make system calls; those on paths and descriptors of the volume become requests to an agent
//! (`aze_calls`), the others stay as they are. It alone knows which call of Linux becomes which request; what a request does
//! is the agent's business. Why it is so: docs/decisions/0080-interception.md.
//!
//! The library is a guest: it allocates nothing by the host's means, takes no lock of the host's, has no thread, and uses
//! nothing of the standard library, which would. In release builds it does not even have one. In other builds, the compiler
//! asks for the means of unwinding, which only the standard library has; there it is linked, and not used.

#![cfg_attr(all(not(test), panic = "abort"), no_std)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod attributes;
mod channel;
mod cwd;
mod data;
#[cfg(all(not(test), panic = "abort"))]
mod defects;
mod descriptors;
mod dispatch;
mod elf;
mod entry;
mod environment;
mod exec;
mod fds;
mod flags;
mod host;
mod limits;
mod locks;
mod lookup;
mod mailbox;
mod mapping;
#[cfg(not(test))]
mod memory;
mod named_pipes;
mod names;
mod open;
mod paths;
mod place;
mod poll;
mod process;
mod processor;
mod refused;
mod rewrite;
mod settings;
mod shared;
mod sites;
mod stat;
mod symbols;
mod table;
mod transfer;
mod vectors;
mod xattr;

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use settings::Symbols;

/// Counts are shown.
static SHOWS_COUNTS: AtomicBool = AtomicBool::new(false);

/// Called by the loader before the program's own beginning, with the arguments of `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, *const *const u8, *const *const u8) = start;

#[cfg_attr(test, allow(dead_code))]
extern "C" fn start(count: i32, arguments: *const *const u8, environment: *const *const u8) {
    let environment = environment as u64;
    let program = if count > 0 { host::string(host::read(arguments as u64), usize::MAX) } else { b"" };
    let Some(mode) = settings::read(environment, program) else { return };
    if !process::start() {
        host::say(&[b"aze: this program does not see the volume: the kernel gives no memory\n"]);
        return;
    }
    let counts = match mode.symbols {
        Symbols::Forced => {
            // Without its own path, the library cannot see to programs that this one starts.
            let is_known = rewrite::nothing().is_ok();
            let why: &[u8] = if is_known { b"AZE_INTERCEPT=symbols" } else { b"/proc/self/maps cannot be read" };
            by_symbols(why, !is_known).then(Default::default)
        }
        symbols => by_sites(symbols),
    };
    let Some(counts) = counts else { return };
    if let Some((path, fd)) = settings::working_directory(environment) {
        names::begin_in(path, fd);
    }
    environment::clean(environment);
    if mode.verbose {
        SHOWS_COUNTS.store(true, Relaxed);
        report(program, &counts);
    }
}

/// Rewrites the sites of system calls; where that cannot be done, takes symbols alone. `None` if that cannot be either.
fn by_sites(symbols: Symbols) -> Option<rewrite::Counts> {
    let says = symbols == Symbols::IfNeeded;
    let counts = match rewrite::all() {
        Ok(counts) if counts.are_mostly_unknown() => {
            let why = b"most system calls of its libc have a form that is not known";
            return by_symbols(why, says).then_some(counts);
        }
        Ok(counts) => return Some(counts),
        Err(_) => rewrite::Counts::default(),
    };
    let why = b"libc cannot be rewritten: it is not glibc, or the kernel refuses (SELinux, seccomp)";
    by_symbols(why, says).then_some(counts)
}

/// Takes symbols alone, and says what that means, once for all programs below this one. False if the program sees nothing of the volume.
fn by_symbols(why: &[u8], says: bool) -> bool {
    match symbols::start() {
        Err(_) => {
            host::say(&[
                b"aze: this program does not see the volume: ",
                why,
                b"; and the addresses of its functions are not found, or cannot be changed\n",
            ]);
            return false;
        }
        Ok(false) => host::say(&[b"aze: streams of stdio do not see the volume: this libc has others than known\n"]),
        Ok(true) => {}
    }
    if says {
        let what = b"; programs see the volume by symbols alone, and libc's own calls (nftw, fts, ...) do not\n";
        host::say(&[b"aze: ", why, what]);
        settings::say_no_more();
    }
    true
}

/// Has the agent write the program's mappings at its end: with symbols alone, this library does not see the call that ends it.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

#[cfg_attr(test, allow(dead_code))]
extern "C" fn end() {
    if symbols::is_on() {
        mapping::settle();
        report_end();
    }
}

/// The counts of a start, on standard error.
fn report(program: &[u8], counts: &rewrite::Counts) {
    host::say(&[b"aze: intercept: ", program, b": "]);
    for (count, text) in [
        (counts.texts, &b" texts, "[..]),
        (counts.rewritten, b" sites rewritten, "),
        (counts.others, b" of other calls, "),
        (counts.unknown, b" left alone"),
    ] {
        let mut digits = [0u8; 20];
        host::say(&[decimal(count, &mut digits), text]);
    }
    host::say(&[if symbols::is_on() { b"; by symbols alone\n" } else { b"\n" }]);
}

/// At the end of a process: how often it has asked the agent, on standard error, if it has and counts are shown.
fn report_end() {
    let count = channel::asked();
    if count > 0 && SHOWS_COUNTS.load(Relaxed) {
        let mut digits = [0u8; 20];
        host::say(&[b"aze: intercept: asked the agent ", decimal(count, &mut digits), b" times\n"]);
    }
}

/// A number in digits.
fn decimal(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return &digits[at..];
        }
    }
}
