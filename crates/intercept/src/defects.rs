//! What happens if this library itself is wrong: the call fails with EIO, and so do all later ones that need the agent. The
//! host lives on.
//!
//! A panic cannot unwind through the host's frames. The stack has a mark at the place at which the entry has put down the
//! host's registers: from there, the host goes on. What the call held stays held, which is why nothing is asked any more.

use crate::channel::SESSION_MARK;
use crate::entry::{MARK, resume};
use crate::processor::Stay;
use crate::{host, process, symbols};
use core::panic::PanicInfo;

/// Bytes of stack that are looked through. Calls of this library need less.
const STACK_BYTES_MAX: u64 = 64 << 10;

#[panic_handler]
fn failed(_: &PanicInfo<'_>) -> ! {
    process::set_broken();
    host::say(&[
        b"aze: a defect of libaze_intercept.so: this program's calls on the volume fail with EIO from now on\n",
    ]);
    let here = 0u64;
    let begin = &raw const here as u64;
    let mut before = None;
    for at in (begin..begin + STACK_BYTES_MAX).step_by(8) {
        match host::read::<u64>(at) {
            SESSION_MARK => before = Some((host::read::<u64>(at + 8), host::read::<Stay>(at + 16))),
            MARK if host::read::<u64>(at + 8).wrapping_sub(at) < 1024 => {
                give_back(before);
                resume(at, host::error(libc::EIO));
            }
            symbols::MARK if host::read::<u64>(at + 8).wrapping_sub(at) < 1024 => {
                give_back(before);
                symbols::resume(at, symbols::fail(at));
            }
            _ => {}
        }
    }
    loop {
        host::call(libc::SYS_exit_group, 134, 0, 0);
    }
}

/// Gives the thread its signals back, and the processors that it may run on.
fn give_back(before: Option<(u64, Stay)>) {
    if let Some((mask, mut stay)) = before {
        stay.end();
        process::restore_signals(mask);
    }
}
