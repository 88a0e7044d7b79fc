//! Making, removing and renaming of names; links; the working directory.

use crate::channel::{self, FIRST, FOURTH, SECOND, Session, THIRD};
use crate::cwd::{self, Held};
use crate::fds::{self, Fd, argument};
use crate::host::{self, Args, error, raw};
use crate::place::{self, LINKS_MAX, PATH_BYTES_MAX, PathCall, Place, Target};
use crate::settings::EXE;
use crate::{paths, process, stat};
use aze_calls::{LEAVES, NO_DESC, Op, Request};
use libc::AT_FDCWD;

/// Handles these calls.
pub fn handle(number: i64, args: Args) -> i64 {
    let one = |dir, path, request: Request| {
        let call = PathCall { number, args, dir, path, follows: false };
        place::run(&call, |session, target| {
            let asked = session.ask(Request { desc: target.desc, ..request }, &[target.path]);
            asked.map_or_else(|failed| failed, |reply| reply.result)
        })
    };
    let op = |op: Op| Request { op: op as u32, ..Request::default() };
    let here = AT_FDCWD as u64;
    match number {
        libc::SYS_mkdir => one(None, 0, Request { a: args[1], ..op(Op::Mkdir) }),
        libc::SYS_mkdirat => one(Some(0), 1, Request { a: args[2], ..op(Op::Mkdir) }),
        libc::SYS_rmdir => one(None, 0, op(Op::Rmdir)),
        libc::SYS_unlink => one(None, 0, op(Op::Unlink)),
        libc::SYS_unlinkat if args[2] as i32 & libc::AT_REMOVEDIR != 0 => one(Some(0), 1, op(Op::Rmdir)),
        libc::SYS_unlinkat => one(Some(0), 1, op(Op::Unlink)),
        libc::SYS_rename => two(number, [here, args[0], here, args[1]], op(Op::Rename), args),
        libc::SYS_renameat => two(number, [args[0], args[1], args[2], args[3]], op(Op::Rename), args),
        libc::SYS_renameat2 => {
            let request = Request { a: args[4] & 0xffff_ffff, ..op(Op::Rename) };
            two(number, [args[0], args[1], args[2], args[3]], request, args)
        }
        libc::SYS_link => two(number, [here, args[0], here, args[1]], op(Op::Link), args),
        libc::SYS_linkat => {
            let follows = u64::from(args[4] as i32 & libc::AT_SYMLINK_FOLLOW != 0);
            two(number, [args[0], args[1], args[2], args[3]], Request { a: follows, ..op(Op::Link) }, args)
        }
        libc::SYS_symlink => symlink(number, args, None, 1),
        libc::SYS_symlinkat => symlink(number, args, Some(1), 2),
        libc::SYS_readlink => readlink(number, args, None, 0, args[1], args[2]),
        libc::SYS_readlinkat => readlink(number, args, Some(0), 1, args[2], args[3]),
        libc::SYS_mknod => one(None, 0, Request { a: args[1], b: args[2], ..op(Op::Mknod) }),
        _ => one(Some(0), 1, Request { a: args[2], b: args[3], ..op(Op::Mknod) }),
    }
}

/// A call with two paths: directory and path of each. Both in the volume, or both out of it.
fn two(number: i64, paths: [u64; 4], request: Request, args: Args) -> i64 {
    let [from_dir, from, to_dir, to] = paths;
    // A file without a name gets one: the first path is empty, and the descriptor the file.
    let itself = number == libc::SYS_linkat && stat::is_itself(from, args[4]);
    let kernels = |dir: u64, path: u64| place::is_kernels(argument(dir), path);
    if !host::is_memory(to) || (!itself && !host::is_memory(from)) {
        // The kernel looks at both before it looks for one that it does not know.
        return error(libc::EFAULT);
    }
    let from_kernels = if itself { fds::of(argument(from_dir)) == Fd::Kernels } else { kernels(from_dir, from) };
    let both_kernels = from_kernels && kernels(to_dir, to);
    if both_kernels {
        let result = raw(number, args);
        let linked = |dir: u64, path: u64| place::may_be_linked(argument(dir), path);
        if result != error(libc::ENOENT) || itself || !(linked(from_dir, from) || linked(to_dir, to)) {
            return result;
        }
    }
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let follows = number == libc::SYS_linkat && request.a != 0;
    let (mut first, mut second) = if both_kernels {
        // The kernel has not found one of them: a link on the way may lead into the volume.
        (place::linked(&mut session, argument(from_dir), from), Place::Kernels)
    } else {
        let first = if itself {
            match fds::of(argument(from_dir)) {
                Fd::Ours(desc) => Place::Ours(Target { desc, path: b"" }),
                Fd::Kernels => Place::Kernels,
                Fd::Failed(failed) => Place::Failed(failed),
            }
        } else {
            place::locate(&mut session, argument(from_dir), host::string(from, PATH_BYTES_MAX), FIRST, follows)
        };
        let path = host::string(to, PATH_BYTES_MAX);
        (first, place::locate(&mut session, argument(to_dir), path, SECOND, false))
    };
    // One lies in the volume: the kernel would not find the other one by a link into it, either.
    if let (Place::Ours(_), Place::Kernels) = (&first, &second) {
        first = kept(&session, first);
        second = place::linked(&mut session, argument(to_dir), to);
    } else if let (Place::Kernels, Place::Ours(_)) = (&first, &second)
        && !itself
    {
        second = kept(&session, second);
        first = place::linked(&mut session, argument(from_dir), from);
    }
    if both_kernels && matches!(first, Place::Kernels) {
        second = place::linked(&mut session, argument(to_dir), to);
        if !matches!(second, Place::Ours(_)) {
            return error(libc::ENOENT);
        }
    }
    for _ in 0..LINKS_MAX {
        let (from, to) = match (&first, &second) {
            (Place::Failed(failed), _) | (_, Place::Failed(failed)) => return *failed,
            (Place::Ours(from), Place::Ours(to)) => (*from, *to),
            (Place::Ours(_), _) | (_, Place::Ours(_)) => return error(libc::EXDEV),
            _ => return elsewhere(&mut session, number, args, &first, &second),
        };
        let request = Request { desc: from.desc, b: to.desc, first: from.path.len() as u32, ..request };
        let result = session.ask(request, &[from.path, to.path]).map_or_else(|failed| failed, |reply| reply.result);
        if result != LEAVES {
            return result;
        }
        // The reply says which of the paths leaves the volume.
        if session.last().desc == 0 {
            first = place::left(&mut session, FIRST, follows);
        } else {
            second = place::left(&mut session, SECOND, false);
        }
        // Whether the other one leaves it, too, says a look at that one alone.
        let (other, area) = if matches!(first, Place::Ours(_)) { (&mut first, FIRST) } else { (&mut second, SECOND) };
        if let Place::Ours(target) = *other
            && let Err(LEAVES) = stat::fetch(&mut session, target, false)
        {
            *other = place::left(&mut session, area, false);
        }
    }
    error(libc::ELOOP)
}

/// A place whose path stays while another one is looked for.
fn kept(session: &Session, place: Place) -> Place {
    let Place::Ours(target) = place else { return place };
    let room = session.area(FOURTH);
    match paths::join(room, &[target.path]) {
        Some(length) => Place::Ours(Target { path: room.get(..length).unwrap_or(&[]), ..target }),
        None => Place::Failed(error(libc::ENAMETOOLONG)),
    }
}

/// Both paths are the kernel's, though not as the host has written them.
fn elsewhere(session: &mut Session, number: i64, mut args: Args, first: &Place, second: &Place) -> i64 {
    let (from_at, to_at) = if matches!(number, libc::SYS_rename | libc::SYS_link) { (0, 1) } else { (1, 3) };
    if let Place::Elsewhere(path) = first {
        args[from_at] = *path;
    }
    if let Place::Elsewhere(path) = second {
        args[to_at] = *path;
    }
    session.unblock();
    raw(number, args)
}

/// symlink(2): the target is a text, which is not looked at.
fn symlink(number: i64, args: Args, dir: Option<usize>, path: usize) -> i64 {
    if !host::is_memory(args[0]) {
        return raw(number, args);
    }
    let text = host::string(args[0], PATH_BYTES_MAX);
    let call = PathCall { number, args, dir, path, follows: false };
    place::run(&call, |session, target| {
        let request =
            Request { op: Op::Symlink as u32, desc: target.desc, first: text.len() as u32, ..Request::default() };
        session.ask(request, &[text, target.path]).map_or_else(|failed| failed, |reply| reply.result)
    })
}

/// readlink(2), also of `/proc/self/fd/N` and `/proc/self/exe`, which the kernel would answer with names of its own.
fn readlink(number: i64, args: Args, dir: Option<usize>, path: usize, to: u64, room: u64) -> i64 {
    if room as i32 <= 0 {
        return error(libc::EINVAL);
    }
    let address = args.get(path).copied().unwrap_or(0);
    if host::is_memory(address) && !matches!(host::read::<u8>(address), 0) {
        let text = host::string(address, PATH_BYTES_MAX);
        if text.starts_with(b"/proc/") || text.starts_with(b"/dev/") {
            let pid = process::shared_child().unwrap_or_else(host::pid);
            if paths::is_own_program(text, pid) && !EXE.get().is_empty() {
                return give(EXE.get(), to, room);
            }
            if let Some((fd, b"")) = paths::descriptor(text, pid)
                && text.starts_with(b"/proc/")
                && let Fd::Ours(desc) = fds::of(fd)
            {
                return link_of(desc, to, room);
            }
        }
    } else if host::is_memory(address) && dir.is_some() {
        // An empty path means the descriptor, which is a link only if it was opened as one.
        return stat::of_itself(number, args, |session, target| ask_link(session, target, to, room));
    }
    let call = PathCall { number, args, dir, path, follows: false };
    place::run(&call, |session, target| ask_link(session, target, to, room))
}

fn ask_link(session: &mut Session, target: Target, to: u64, room: u64) -> i64 {
    let request = Request { op: Op::Readlink as u32, desc: target.desc, ..Request::default() };
    match session.ask(request, &[target.path]) {
        Ok(reply) if reply.result >= 0 => give(session.bytes(&reply), to, room),
        Ok(reply) => reply.result,
        Err(failed) => failed,
    }
}

/// The text of a link to a description, as procfs shows it.
fn link_of(desc: u64, to: u64, room: u64) -> i64 {
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let asked = session.ask(Request { op: Op::PathOf as u32, desc, ..Request::default() }, &[]);
    match asked {
        Ok(reply) if reply.result >= 0 => match stat::seen(&session, FIRST, session.bytes(&reply)) {
            Some(length) => give(session.area(FIRST).get(..length).unwrap_or(&[]), to, room),
            None => error(libc::ENAMETOOLONG),
        },
        Ok(reply) => reply.result,
        Err(failed) => failed,
    }
}

/// The path of a description; ENOENT if it was removed.
fn path_of(session: &mut Session, desc: u64) -> Result<&'static [u8], i64> {
    let reply = session.ask(Request { op: Op::PathOf as u32, desc, ..Request::default() }, &[])?;
    match reply.result {
        0 => Ok(session.bytes(&reply)),
        failed if failed < 0 => Err(failed),
        _ => Err(error(libc::ENOENT)),
    }
}

/// As much of a link's text as there is room for.
fn give(text: &[u8], to: u64, room: u64) -> i64 {
    let bytes = text.len().min((room & 0xffff_ffff) as usize);
    if bytes == 0 {
        return error(libc::EINVAL);
    }
    if !host::is_memory(to) {
        return error(libc::EFAULT);
    }
    host::copy(to, text.as_ptr() as u64, bytes);
    bytes as i64
}

/// chdir(2), fchdir(2), getcwd(2).
pub fn directory(number: i64, args: Args) -> i64 {
    match number {
        libc::SYS_getcwd => getcwd(args),
        libc::SYS_chdir => {
            let mut inside = false;
            let call = PathCall { number, args, dir: None, path: 0, follows: true };
            let result = place::run(&call, |session, target| {
                inside = true;
                let changed = chdir(session, target, None);
                inside = changed != LEAVES;
                changed
            });
            if result >= 0 && !inside {
                cwd::clear();
            }
            result
        }
        _ => match fds::of(argument(args[0])) {
            Fd::Failed(failed) => failed,
            Fd::Ours(desc) => Session::begin().map_or_else(
                |failed| failed,
                |mut session| chdir(&mut session, Target { desc, path: b"" }, Some(argument(args[0]))),
            ),
            Fd::Kernels => {
                let result = raw(number, args);
                if result >= 0 {
                    cwd::clear();
                }
                result
            }
        },
    }
}

/// Changes to a directory of the volume: it must be one, and the host may search it. `fd` is the host's descriptor, if the call names one.
fn chdir(session: &mut Session, target: Target, fd: Option<i32>) -> i64 {
    match stat::fetch(session, target, true) {
        Ok(stat) if stat.mode & libc::S_IFMT != libc::S_IFDIR => return error(libc::ENOTDIR),
        Ok(_) => {}
        Err(failed) => return failed,
    }
    let request =
        Request { op: Op::Access as u32, desc: target.desc, b: libc::X_OK as u64, c: 1, ..Request::default() };
    match session.ask(request, &[target.path]) {
        Ok(reply) if reply.result < 0 => return reply.result,
        Ok(_) => {}
        Err(failed) => return failed,
    }
    let held = match fd {
        Some(fd) => cwd::held(fd, target.desc),
        None => match opened(session, target) {
            Ok(held) => Some(held),
            Err(failed) => return failed,
        },
    };
    let desc = held.map_or(target.desc, |held| held.desc);
    let path = match path_of(session, desc) {
        Ok(path) => path,
        // The directory itself is held.
        Err(_) if held.is_some() => b"",
        Err(failed) => return failed,
    };
    cwd::set(path, held).map_or_else(|failed| failed, |()| 0)
}

/// Opens a directory, for a descriptor of this library's.
fn opened(session: &mut Session, target: Target) -> Result<Held, i64> {
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    let request = Request { op: Op::Open as u32, desc: target.desc, a: flags, ..Request::default() };
    match session.ask_with_fd(request, &[target.path])? {
        (reply, Some(fd)) if reply.result >= 0 => Ok(Held { desc: reply.desc, fd: channel::hide(fd) }),
        (reply, _) => Err(if reply.result < 0 { reply.result } else { error(libc::EMFILE) }),
    }
}

fn getcwd(args: Args) -> i64 {
    let mut session = match Session::begin() {
        Ok(session) => session,
        Err(failed) => return failed,
    };
    let room = session.area(THIRD);
    let path: &'static [u8] = match cwd::desc() {
        None => {
            drop(session);
            return raw(libc::SYS_getcwd, args);
        }
        Some(NO_DESC) => {
            let length = cwd::get(room).unwrap_or(0);
            room.get(..length).unwrap_or(&[])
        }
        Some(desc) => match path_of(&mut session, desc) {
            Ok(path) => path,
            Err(failed) => return failed,
        },
    };
    // With the NUL, as the kernel counts it.
    let bytes = stat::seen(&session, FIRST, path).unwrap_or(PATH_BYTES_MAX) + 1;
    if bytes > PATH_BYTES_MAX {
        return error(libc::ENAMETOOLONG);
    }
    if (args[1] as usize) < bytes {
        return error(libc::ERANGE);
    }
    if !host::is_memory(args[0]) {
        return error(libc::EFAULT);
    }
    host::copy(args[0], session.area(FIRST).as_ptr() as u64, bytes);
    bytes as i64
}

/// At the start: the working directory that the program before execve(2) had. It is found by its path if its descriptor was closed.
pub fn begin_in(path: &'static [u8], fd: Option<i32>) {
    if let Some(fd) = fd
        && let Fd::Ours(desc) = fds::of(fd)
    {
        fds::forget(fd);
        channel::note_hidden(fd);
        host::call(libc::SYS_fcntl, fd as u64, libc::F_SETFD as u64, libc::FD_CLOEXEC as u64);
        let _ = cwd::set(path, Some(Held { desc, fd }));
    } else if !path.is_empty()
        && let Ok(mut session) = Session::begin()
    {
        chdir(&mut session, Target { desc: NO_DESC, path }, None);
    }
}
