//! Calls that the volume refuses, each with the errno by which programs do without.

use crate::dispatch::AS_IT_WAS;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::place::{self, PathCall};
use crate::stat;

/// Bytes of struct sockaddr_un before its path.
const FAMILY_BYTES: u64 = 2;

/// splice(2), tee(2), vmsplice(2): EINVAL, as for files that cannot.
pub fn splice(number: i64, args: Args) -> i64 {
    let second = if number == libc::SYS_splice { args[2] } else { args[1] };
    let ours = |fd: u64| matches!(fds::of(argument(fd)), Fd::Ours(_) | Fd::Failed(_));
    if ours(args[0]) || number != libc::SYS_vmsplice && ours(second) { error(libc::EINVAL) } else { raw(number, args) }
}

/// io_setup(2) of libaio, which has system calls of its own: ENOSYS, as of libc's syscall(2). The loader finds this one first.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub extern "C" fn io_setup(events: u32, context: u64) -> i32 {
    if crate::settings::AT.get().is_empty() {
        // The program does not see the volume.
        return host::call(libc::SYS_io_setup, u64::from(events), context, 0) as i32;
    }
    error(libc::ENOSYS) as i32
}

/// epoll_ctl(2): EPERM, as for every regular file.
pub fn epoll_ctl(args: Args) -> i64 {
    match fds::of_open(argument(args[2])) {
        Fd::Ours(_) if args[1] as i32 == libc::EPOLL_CTL_ADD => error(libc::EPERM),
        Fd::Failed(failed) => failed,
        _ => raw(libc::SYS_epoll_ctl, args),
    }
}

/// Calls with a path for which the volume has nothing.
pub fn by_path(number: i64, args: Args) -> i64 {
    // The number of watches is exhausted: programs look again from time to time instead. Handles and new roots: no.
    let (dir, path, failed) = match number {
        libc::SYS_inotify_add_watch => (None, 1, libc::ENOSPC),
        libc::SYS_name_to_handle_at if stat::is_itself(args[1], args[4]) => {
            return stat::of_itself(number, args, |_, _| error(libc::EOPNOTSUPP));
        }
        libc::SYS_name_to_handle_at => (Some(0), 1, libc::EOPNOTSUPP),
        libc::SYS_mount => (None, 1, libc::EPERM),
        _ => (None, 0, libc::EPERM),
    };
    if number == libc::SYS_mount && is_ours(args[0]) {
        return error(libc::EPERM);
    }
    let follows = number != libc::SYS_name_to_handle_at;
    let call = PathCall { number, args, dir, path, follows };
    place::run(&call, |session, target| match stat::fetch(session, target, follows) {
        Ok(_) => error(failed),
        Err(missing) => missing,
    })
}

fn is_ours(path: u64) -> bool {
    host::is_memory(path) && crate::paths::below(crate::settings::AT.get(), host::string(path, 4096)).is_some()
}

/// bind(2) and connect(2): the volume has no sockets.
pub fn socket(args: Args) -> i64 {
    let (address, length) = (args[1], args[2] & 0xffff_ffff);
    if !host::is_memory(address) || length <= FAMILY_BYTES || i32::from(host::read::<u16>(address)) != libc::AF_UNIX {
        return AS_IT_WAS;
    }
    let path = host::string(address + FAMILY_BYTES, (length - FAMILY_BYTES) as usize);
    let absolute = crate::paths::below(crate::settings::AT.get(), path).is_some_and(|rest| !crate::paths::climbs(rest));
    let relative = !path.is_empty() && path.first() != Some(&b'/') && crate::cwd::is_ours();
    if absolute || relative { error(libc::EADDRNOTAVAIL) } else { AS_IT_WAS }
}
