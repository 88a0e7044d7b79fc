//! Extended attributes.

use crate::channel::Session;
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::place::{self, PathCall, Target};
use crate::stat::NO_FOLLOW;
use aze_calls::{Op, Request};

/// Longest name, as in the kernel.
const NAME_BYTES_MAX: usize = 255;
/// Largest value, and longest list of names, as in the kernel.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// Handles these calls.
pub fn handle(number: i64, args: Args) -> i64 {
    let act = |session: &mut Session, target: Target| ask(session, target, number, args);
    let follows =
        !matches!(number, libc::SYS_lsetxattr | libc::SYS_lgetxattr | libc::SYS_llistxattr | libc::SYS_lremovexattr);
    match number {
        libc::SYS_fsetxattr | libc::SYS_fgetxattr | libc::SYS_flistxattr | libc::SYS_fremovexattr => {
            match fds::of_open(argument(args[0])) {
                Fd::Kernels => raw(number, args),
                Fd::Failed(failed) => failed,
                Fd::Ours(desc) => Session::begin()
                    .map_or_else(|failed| failed, |mut session| act(&mut session, Target { desc, path: b"" })),
            }
        }
        _ => place::run(&PathCall { number, args, dir: None, path: 0, follows }, act),
    }
}

fn ask(session: &mut Session, target: Target, number: i64, args: Args) -> i64 {
    let follow = match number {
        libc::SYS_lsetxattr | libc::SYS_lgetxattr | libc::SYS_llistxattr | libc::SYS_lremovexattr => NO_FOLLOW,
        _ => 0,
    };
    let request = Request { desc: target.desc, a: follow, ..Request::default() };
    if matches!(number, libc::SYS_listxattr | libc::SYS_llistxattr | libc::SYS_flistxattr) {
        let len = args[2].min(VALUE_BYTES_MAX);
        return fill(session, Request { op: Op::ListXattr as u32, len, ..request }, &[target.path], args[1]);
    }
    if !host::is_memory(args[1]) {
        return error(libc::EFAULT);
    }
    let name = host::string(args[1], NAME_BYTES_MAX + 1);
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return error(libc::ERANGE);
    }
    let request = Request { first: name.len() as u32, ..request };
    let parts = [name, target.path];
    match number {
        libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_fgetxattr => {
            let len = args[3].min(VALUE_BYTES_MAX);
            fill(session, Request { op: Op::GetXattr as u32, len, ..request }, &parts, args[2])
        }
        libc::SYS_setxattr | libc::SYS_lsetxattr | libc::SYS_fsetxattr => {
            if args[3] > VALUE_BYTES_MAX {
                return error(libc::E2BIG);
            }
            if args[3] > 0 && !host::is_memory(args[2]) {
                return error(libc::EFAULT);
            }
            if let Err(failed) = session.connect() {
                return failed;
            }
            host::copy(session.window(), args[2], args[3] as usize);
            let request = Request { op: Op::SetXattr as u32, b: args[4] & 0xffff_ffff, len: args[3], ..request };
            session.ask(request, &parts).map_or_else(|failed| failed, |reply| reply.result)
        }
        _ => {
            let request = Request { op: Op::RemoveXattr as u32, ..request };
            session.ask(request, &parts).map_or_else(|failed| failed, |reply| reply.result)
        }
    }
}

/// Asks for bytes in the window, and copies them if there is room for any.
fn fill(session: &mut Session, request: Request, parts: &[&[u8]], to: u64) -> i64 {
    if request.len > 0 && !host::is_memory(to) {
        return error(libc::EFAULT);
    }
    let result = session.ask(request, parts).map_or_else(|failed| failed, |reply| reply.result);
    if request.len > 0 && result > 0 {
        host::copy(to, session.window(), (result as u64).min(request.len) as usize);
    }
    result
}
