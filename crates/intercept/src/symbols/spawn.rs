//! posix_spawn(3) whose child is to open files of the volume, or to begin in one of its directories.
//!
//! Libc's own child makes these calls by itself, on its parent's memory. Here it is a forked one that makes them as rewritten
//! sites would. The parent waits until it has become the program, or learns why not.

use super::entry::make;
use super::functions::is_kernels;
use super::{call_host, real};
use crate::fds::{self, Fd, argument};
use crate::host::{self, call, error, raw};
use crate::process;
use core::ptr::addr_of_mut;
use libc::AT_FDCWD;

/// posix_spawn_file_actions_t of glibc: how many, and where they are; bytes of one.
const COUNT_AT: u64 = 4;
const LIST_AT: u64 = 8;
const ACTION_BYTES: u64 = 32;

/// What an action does.
const CLOSES: u32 = 0;
const COPIES: u32 = 1;
const OPENS: u32 = 2;
const GOES: u32 = 3;
const GOES_TO_DESCRIPTOR: u32 = 4;
const CLOSES_FROM: u32 = 5;
const TAKES_TERMINAL: u32 = 6;

/// posix_spawnattr_t: flags, group, signals that get their default, mask, scheduling.
const GROUP_AT: u64 = 4;
const DEFAULTS_AT: u64 = 8;
const MASK_AT: u64 = 136;
const PARAMETER_AT: u64 = 264;
const POLICY_AT: u64 = 268;

const SIGNALS: u64 = 64;

/// struct sigaction as the kernel reads it: handler, flags, restorer, mask.
type Action = [u64; 4];

/// Gives the kind of each action and the address of its arguments, in order.
fn each(actions: u64) -> impl Iterator<Item = (u32, u64)> {
    let (count, list) = if host::is_memory(actions) {
        (host::read::<i32>(actions + COUNT_AT).max(0) as u64, host::read::<u64>(actions + LIST_AT))
    } else {
        (0, 0)
    };
    (0..count).map(move |index| list + index * ACTION_BYTES).map(|at| (host::read(at), at + 8))
}

/// True if libc's own child would not find what one of the actions names.
pub fn needs_volume(actions: u64) -> bool {
    let is_known = each(actions).all(|(kind, _)| kind <= TAKES_TERMINAL);
    is_known
        && each(actions).any(|(kind, at)| match kind {
            OPENS => !is_kernels(AT_FDCWD as u64, host::read(at + 8)),
            GOES => !is_kernels(AT_FDCWD as u64, host::read(at)),
            GOES_TO_DESCRIPTOR => fds::of(host::read(at)) != Fd::Kernels,
            _ => false,
        })
}

/// Forks, does the actions, and becomes a program by `become_it`; 0, or a negative errno.
pub fn spawn(pid: u64, actions: u64, attributes: u64, become_it: impl Fn() -> i64) -> i64 {
    let mut ends = [0i32; 2];
    let made = call(libc::SYS_pipe2, ends.as_mut_ptr() as u64, libc::O_CLOEXEC as u64, 0);
    if made < 0 {
        return made;
    }
    let mask = process::block_signals();
    let child = call_host(real("fork"), [0; 6]) as i32;
    if child == 0 {
        process::begin();
        host::close(ends[0]);
        // What the actions close or replace must not be this: as libc does it, an end that is hit moves away.
        let told = call(libc::SYS_fcntl, ends[1] as u64, libc::F_DUPFD_CLOEXEC as u64, super::programs::COPY_MIN);
        host::close(ends[1]);
        let failed = prepare(actions, attributes, mask).err().unwrap_or_else(&become_it);
        call(libc::SYS_write, told as u64, &raw const failed as u64, size_of::<i64>() as u64);
        loop {
            call(libc::SYS_exit_group, 127, 0, 0);
        }
    }
    process::restore_signals(mask);
    host::close(ends[1]);
    let mut failed = 0i64;
    if child < 0 {
        failed = error(super::errno());
    } else {
        while call(libc::SYS_read, ends[0] as u64, addr_of_mut!(failed) as u64, size_of::<i64>() as u64)
            == error(libc::EINTR)
        {}
        if failed < 0 {
            raw(libc::SYS_wait4, [child as u64, 0, 0, 0, 0, 0]);
        } else if host::is_memory(pid) {
            host::write(pid, child);
        }
    }
    host::close(ends[0]);
    failed
}

fn checked(result: i64) -> Result<i64, i64> {
    if result < 0 { Err(result) } else { Ok(result) }
}

/// In the child: attributes, then actions, with all signals blocked; then the signals of the new program.
fn prepare(actions: u64, attributes: u64, mask: u64) -> Result<(), i64> {
    let has_any = host::is_memory(attributes);
    let flags = if has_any { i32::from(host::read::<i16>(attributes)) } else { 0 };
    let has = |flag: i32| flags & flag != 0;
    let defaults = if has(libc::POSIX_SPAWN_SETSIGDEF) { host::read::<u64>(attributes + DEFAULTS_AT) } else { 0 };
    for signal in 1..=SIGNALS {
        let mut action: Action = [0; 4];
        let asked = raw(libc::SYS_rt_sigaction, [signal, 0, action.as_mut_ptr() as u64, 8, 0, 0]);
        let is_caught = asked >= 0 && action[0] > libc::SIG_IGN as u64;
        if is_caught || defaults & 1 << (signal - 1) != 0 {
            action = [0; 4];
            raw(libc::SYS_rt_sigaction, [signal, action.as_ptr() as u64, 0, 8, 0, 0]);
        }
    }
    if has(libc::POSIX_SPAWN_SETSCHEDULER) {
        let policy = u64::from(host::read::<u32>(attributes + POLICY_AT));
        checked(call(libc::SYS_sched_setscheduler, 0, policy, attributes + PARAMETER_AT))?;
    } else if has(libc::POSIX_SPAWN_SETSCHEDPARAM) {
        checked(call(libc::SYS_sched_setparam, 0, attributes + PARAMETER_AT, 0))?;
    }
    if has(libc::POSIX_SPAWN_SETSID.into()) {
        checked(call(libc::SYS_setsid, 0, 0, 0))?;
    }
    if has(libc::POSIX_SPAWN_SETPGROUP) {
        checked(call(libc::SYS_setpgid, 0, u64::from(host::read::<u32>(attributes + GROUP_AT)), 0))?;
    }
    if has(libc::POSIX_SPAWN_RESETIDS) {
        let (user, group) = (call(libc::SYS_getuid, 0, 0, 0), call(libc::SYS_getgid, 0, 0, 0));
        checked(call(libc::SYS_setresgid, u64::MAX, group as u64, u64::MAX))?;
        checked(call(libc::SYS_setresuid, u64::MAX, user as u64, u64::MAX))?;
    }
    for (kind, at) in each(actions) {
        act(kind, at)?;
    }
    process::restore_signals(if has(libc::POSIX_SPAWN_SETSIGMASK) { host::read(attributes + MASK_AT) } else { mask });
    Ok(())
}

fn act(kind: u32, at: u64) -> Result<(), i64> {
    let number = |offset: u64| u64::from(host::read::<u32>(at + offset));
    let path = |offset: u64| host::read::<u64>(at + offset);
    match kind {
        CLOSES => {
            // One that is not open is no error.
            make(libc::SYS_close, [number(0), 0, 0, 0, 0, 0]);
        }
        COPIES if number(0) == number(4) => {
            checked(call(libc::SYS_fcntl, number(0), libc::F_SETFD as u64, 0))?;
        }
        COPIES => {
            checked(make(libc::SYS_dup2, [number(0), number(4), 0, 0, 0, 0]))?;
        }
        OPENS => {
            let to = number(0);
            make(libc::SYS_close, [to, 0, 0, 0, 0, 0]);
            let fd = checked(make(libc::SYS_open, [path(8), number(16), number(20), 0, 0, 0]))? as u64;
            if fd != to {
                checked(make(libc::SYS_dup2, [fd, to, 0, 0, 0, 0]))?;
                make(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
            }
        }
        GOES => {
            checked(make(libc::SYS_chdir, [path(0), 0, 0, 0, 0, 0]))?;
        }
        GOES_TO_DESCRIPTOR => {
            checked(make(libc::SYS_fchdir, [number(0), 0, 0, 0, 0, 0]))?;
        }
        CLOSES_FROM => {
            checked(make(libc::SYS_close_range, [number(0), u64::from(u32::MAX), 0, 0, 0, 0]))?;
        }
        _ => {
            let mut group = call(libc::SYS_getpgid, 0, 0, 0) as i32;
            let args = [argument(number(0)) as u64, libc::TIOCSPGRP, &raw mut group as u64];
            checked(call(libc::SYS_ioctl, args[0], args[1], args[2]))?;
        }
    }
    Ok(())
}
