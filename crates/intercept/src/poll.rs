//! Waiting for descriptors: one of a file is always ready.

use crate::dispatch::AS_IT_WAS;
use crate::fds::{self, Fd};
use crate::host::{self, Args, raw};

/// What a file is ready for.
const READY: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM;

/// What hides a descriptor in the host's array: the sign, and a bit that numbers which programs hide themselves have set.
const HIDDEN: i32 = !(1 << 29);

/// Descriptors of a select(2) that is looked at; larger sets, which glibc's type does not have, are the kernel's.
const SELECT_MAX: u64 = 1024;
const WORDS: usize = SELECT_MAX as usize / 64;

/// One set of a select(2).
type Set = [u64; WORDS];

/// poll(2) and ppoll(2). While the kernel looks at the others, those of the volume are negative in the host's array, which
/// means that they are not looked at.
pub fn poll(number: i64, mut args: Args) -> i64 {
    let (array, count) = (args[0], args[1]);
    if !host::is_memory(array) {
        return AS_IT_WAS;
    }
    let at = |index: u64| array + index * size_of::<libc::pollfd>() as u64;
    let mut ours = 0u64;
    let mut ready = 0i64;
    for index in 0..count {
        let entry: libc::pollfd = host::read(at(index));
        if entry.fd >= 0 && matches!(fds::of(entry.fd), Fd::Ours(_)) {
            ours += 1;
            if entry.events & READY != 0 {
                ready += 1;
            }
        }
    }
    if ours == 0 {
        return AS_IT_WAS;
    }
    hide(array, count, false);
    let at_once = [0i64; 2];
    if ready > 0 {
        args[2] = if number == libc::SYS_ppoll { at_once.as_ptr() as u64 } else { 0 };
    }
    let result = raw(number, args);
    hide(array, count, true);
    if result < 0 {
        return result;
    }
    for index in 0..count {
        let mut entry: libc::pollfd = host::read(at(index));
        if entry.fd >= 0 && matches!(fds::of(entry.fd), Fd::Ours(_)) {
            entry.revents = entry.events & READY;
            host::write(at(index), entry);
        }
    }
    result + ready
}

/// Makes the volume's descriptors negative, or what they were again.
fn hide(array: u64, count: u64, again: bool) {
    for index in 0..count {
        let at = array + index * size_of::<libc::pollfd>() as u64;
        let mut entry: libc::pollfd = host::read(at);
        let fd = if again { entry.fd ^ HIDDEN } else { entry.fd };
        if (entry.fd < 0) == again && matches!(fds::of(fd), Fd::Ours(_)) {
            entry.fd ^= HIDDEN;
            host::write(at, entry);
        }
    }
}

/// select(2) and pselect6(2).
pub fn select(number: i64, mut args: Args) -> i64 {
    let count = args[0] & 0xffff_ffff;
    if count > SELECT_MAX {
        return AS_IT_WAS;
    }
    let words = (count as usize).div_ceil(64);
    let mut ours: [Set; 3] = [[0; WORDS]; 3];
    let mut ready = 0i64;
    let mut any = false;
    for (set, place) in ours.iter_mut().zip(args.iter().skip(1)) {
        if !host::is_memory(*place) {
            continue;
        }
        for (word, bits) in set.iter_mut().take(words).enumerate() {
            *bits = of_the_volume(host::read(*place + word as u64 * 8), word, count);
            any |= *bits != 0;
        }
    }
    if !any {
        return AS_IT_WAS;
    }
    for (set, place) in ours.iter().zip(args.iter().skip(1)) {
        for (word, bits) in set.iter().take(words).enumerate().filter(|(_, bits)| **bits != 0) {
            let at = *place + word as u64 * 8;
            host::write(at, host::read::<u64>(at) & !bits);
        }
    }
    // Files are ready to be read and written, and never exceptional.
    for set in ours.iter().take(2) {
        ready += set.iter().map(|bits| i64::from(bits.count_ones())).sum::<i64>();
    }
    let at_once = [0i64; 2];
    if ready > 0 {
        args[4] = at_once.as_ptr() as u64;
    }
    let result = raw(number, args);
    if result < 0 {
        return result;
    }
    for (set, place) in ours.iter().take(2).zip(args.iter().skip(1)) {
        for (word, bits) in set.iter().take(words).enumerate().filter(|(_, bits)| **bits != 0) {
            let at = *place + word as u64 * 8;
            host::write(at, host::read::<u64>(at) | bits);
        }
    }
    result + ready
}

/// The bits of a word that are descriptors of the volume.
fn of_the_volume(bits: u64, word: usize, count: u64) -> u64 {
    let mut found = 0;
    let mut rest = bits;
    while rest != 0 {
        let bit = u64::from(rest.trailing_zeros());
        rest &= rest - 1;
        let fd = word as u64 * 64 + bit;
        if fd < count && matches!(fds::of(fd as i32), Fd::Ours(_)) {
            found |= 1 << bit;
        }
    }
    found
}
