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
mod entry;
mod environment;
mod exec;
mod fds;
mod host;
mod locks;
mod mapping;
#[cfg(not(test))]
mod memory;
mod names;
mod open;
mod paths;
mod place;
mod poll;
mod process;
mod refused;
mod rewrite;
mod settings;
mod sites;
mod stat;
mod table;
mod transfer;
mod vectors;
mod xattr;

use settings::Mode;

/// Called by the loader before the program's own beginning, with the arguments of `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(i32, *const *const u8, *const *const u8) = start;

#[cfg_attr(test, allow(dead_code))]
extern "C" fn start(count: i32, arguments: *const *const u8, environment: *const *const u8) {
    let environment = environment as u64;
    let program = if count > 0 { host::string(host::read(arguments as u64), usize::MAX) } else { b"" };
    let Mode::On { verbose } = settings::read(environment, program) else { return };
    if !process::start() {
        host::say(&[b"aze: this program does not see the volume: the kernel gives no memory\n"]);
        return;
    }
    let counts = match rewrite::all() {
        Ok(counts) => counts,
        Err(_) => {
            host::say(&[b"aze: this program does not see the volume: its libc cannot be rewritten (not glibc, or the kernel refuses)\n"]);
            return;
        }
    };
    if counts.are_mostly_unknown() {
        host::say(&[b"aze: this program sees little or nothing of the volume: most system calls of its libc have a form that is not known\n"]);
    }
    if let Some(here) = settings::working_directory(environment) {
        names::begin_in(here);
    }
    environment::clean(environment);
    if verbose {
        report(program, &counts);
    }
}

/// The counts of a start, on standard error.
fn report(program: &[u8], counts: &rewrite::Counts) {
    host::say(&[b"aze: intercept: ", program, b": "]);
    for (count, text) in [
        (counts.texts, &b" texts, "[..]),
        (counts.rewritten, b" sites rewritten, "),
        (counts.others, b" of other calls, "),
        (counts.unknown, b" left alone\n"),
    ] {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut rest = count;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        host::say(&[&digits[at..], text]);
    }
}
