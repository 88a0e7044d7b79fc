//! New processes and new programs.
//!
//! A new program gets the environment by which it sees the volume, even if its caller passes another one. A program that lies in the
//! volume is copied to memory by the agent and run from there; the interpreter of a script gets the script's path, and reads
//! it by itself.

use crate::channel::{FIRST, Session};
use crate::entry::{BY_THUNK, BY_THUNK_SHARED, DONE};
use crate::environment::{self, Arena};
use crate::fds;
use crate::host::{self, Args, call, error, raw};
use crate::place::{self, PATH_BYTES_MAX, Place, Target};
use crate::{cwd, mapping, open, paths, process, settings, stat};
use aze_calls::{LEAVES, Op, Request, executable};
use libc::{AT_EMPTY_PATH, AT_FDCWD};

/// Scripts whose interpreters are scripts, as in the kernel.
const SCRIPTS_MAX: u32 = 5;

/// Bytes of a script in which its interpreter stands, as in the kernel.
const HEAD_BYTES: usize = 256;

/// Where struct clone_args has the child's stack.
const STACK_AT: u64 = 40;

/// Whether the thunk makes a call, because the child of it would return to this library's stack.
pub fn by_thunk(number: i64, args: &Args) -> u64 {
    let (flags, stack) = match number {
        libc::SYS_vfork => ((libc::CLONE_VM | libc::CLONE_VFORK) as u64, 0),
        libc::SYS_clone => (args[0], args[1]),
        libc::SYS_clone3 if host::is_memory(args[0]) => {
            (host::read::<u64>(args[0]), host::read::<u64>(args[0] + STACK_AT))
        }
        _ => return DONE,
    };
    let has = |flag: i32| flags & flag as u64 != 0;
    if !has(libc::CLONE_VM) {
        return if stack == 0 { DONE } else { BY_THUNK };
    }
    // A thread with descriptors of its own, or a process with those of this one: nothing can be known about any.
    if has(libc::CLONE_THREAD) != has(libc::CLONE_FILES) {
        process::stop_noting();
    }
    if has(libc::CLONE_THREAD) {
        return BY_THUNK;
    }
    process::sharing_begins();
    // Without CLONE_VFORK, its end is not seen: from now on each call asks who makes it.
    if has(libc::CLONE_VFORK) { BY_THUNK_SHARED } else { BY_THUNK }
}

/// fork(2), and clone(2) with a copy of the memory: the child has a copy of the memory.
pub fn fork(number: i64, args: Args) -> i64 {
    let result = raw(number, args);
    if result == 0 {
        let mask = process::block_signals();
        process::begin();
        process::restore_signals(mask);
    }
    result
}

/// unshare(2).
pub fn unshare(args: Args) -> i64 {
    if args[0] & libc::CLONE_FILES as u64 != 0 {
        process::stop_noting();
    }
    raw(libc::SYS_unshare, args)
}

/// The program of a call.
struct Program {
    directory: i32,
    path: u64,
    arguments: u64,
    flags: u64,
    /// The path in the volume, if it lies there.
    volume: &'static [u8],
    /// Its copy, which is closed if it cannot be run.
    copy: Option<i32>,
}

/// execve(2) and execveat(2). Returns only if it failed.
pub fn execve(directory: i32, path: u64, arguments: u64, variables: u64, flags: u64) -> i64 {
    execve_by(directory, path, arguments, variables, flags, run)
}

/// As [`execve`]; `run` makes the call, whose program, arguments and environment may be others. It may succeed and return, as
/// posix_spawn(3) does.
pub fn execve_by(
    directory: i32,
    path: u64,
    arguments: u64,
    variables: u64,
    flags: u64,
    run: impl Fn(i32, u64, u64, u64, u64) -> i64,
) -> i64 {
    mapping::settle();
    let itself = stat::is_itself(path, flags);
    if !host::is_memory(path) && !itself {
        return run(directory, path, arguments, variables, flags);
    }
    let kernels = if itself { fds::of(directory) == fds::Fd::Kernels } else { place::is_kernels(directory, path) };
    if kernels && !cwd::is_ours() && environment::is_complete(variables) {
        warn_if_hidden(&Program { directory, path, arguments, flags, volume: b"", copy: None }, variables);
        let failed = run(directory, path, arguments, variables, flags);
        if failed != error(libc::ENOENT) {
            return failed;
        }
    }
    let Some(mut arena) = Arena::new(variables, arguments) else { return error(libc::ENOMEM) };
    let program = Program { directory, path, arguments, flags, volume: b"", copy: None };
    let failed = match find(program, &mut arena) {
        Ok(program) => {
            let variables = environment::complete(variables, program.volume, &mut arena);
            let failed = match variables {
                Some(variables) => {
                    warn_if_hidden(&program, variables);
                    run(program.directory, program.path, program.arguments, variables, program.flags)
                }
                None => error(libc::E2BIG),
            };
            if let Some(copy) = program.copy {
                host::close(copy);
            }
            failed
        }
        Err(failed) => failed,
    };
    arena.give_back();
    failed
}

/// Says so if this library cannot see the program's system calls though the program seems to need the volume: it lies there, begins
/// in a directory there, or has an argument that is a path there. It would find another file or none, and its user would not know why.
fn warn_if_hidden(program: &Program, variables: u64) {
    let name = match program.copy {
        Some(_) => program.volume,
        None if program.flags != 0 || !host::is_memory(program.path) => return,
        None if cwd::is_ours() || names_the_volume(program.arguments) => host::string(program.path, PATH_BYTES_MAX),
        None => return,
    };
    if settings::is_left_alone(name, variables) {
        return;
    }
    let fd = program.copy.unwrap_or_else(|| {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        raw(libc::SYS_openat, [program.directory as u64, program.path, flags, 0, 0, 0]) as i32
    });
    if fd < 0 {
        return;
    }
    let hidden = executable::hidden(|offset, to| {
        let args = [fd as u64, to.as_mut_ptr() as u64, to.len() as u64, offset, 0, 0];
        raw(libc::SYS_pread64, args) == to.len() as i64
    });
    if program.copy.is_none() {
        host::close(fd);
    }
    if let Some(hidden) = hidden {
        let text = b": it does not see the volume as 'aze run --door mount' would show it\n";
        host::say(&[b"aze: ", name, b" ", hidden.words().as_bytes(), text]);
    }
}

/// True if an argument behind the first is a path in the volume.
fn names_the_volume(arguments: u64) -> bool {
    if !host::is_memory(arguments) {
        return false;
    }
    let mut at = arguments;
    loop {
        let argument = host::read::<u64>(at);
        if argument == 0 {
            return false;
        }
        let place = settings::AT.get();
        if at != arguments && paths::below(place, host::string(argument, place.len() + 1)).is_some() {
            return true;
        }
        at += 8;
    }
}

fn run(directory: i32, path: u64, arguments: u64, variables: u64, flags: u64) -> i64 {
    if directory == AT_FDCWD && flags == 0 {
        return call(libc::SYS_execve, path, arguments, variables);
    }
    raw(libc::SYS_execveat, [directory as u64, path, arguments, variables, flags, 0])
}

/// Finds the program that runs in the end: an interpreter, if there are scripts.
fn find(mut program: Program, arena: &mut Arena) -> Result<Program, i64> {
    for _ in 0..SCRIPTS_MAX {
        let mut session = Session::begin()?;
        let itself = stat::is_itself(program.path, program.flags);
        let found = if itself {
            match fds::of(program.directory) {
                fds::Fd::Ours(desc) => Place::Ours(Target { desc, path: b"" }),
                fds::Fd::Kernels => Place::Kernels,
                fds::Fd::Failed(failed) => Place::Failed(failed),
            }
        } else {
            let path = host::string(program.path, PATH_BYTES_MAX);
            place::locate(&mut session, program.directory, path, FIRST, true)
        };
        let found = match found {
            Place::Kernels if !itself => place::linked(&mut session, program.directory, program.path),
            found => found,
        };
        let Some(script) = look_at(&mut session, found, &mut program, arena)? else { return Ok(program) };
        program.arguments = arena.script_arguments(&script, program.arguments).ok_or(error(libc::ENOMEM))?;
        program.path = script.interpreter;
        (program.directory, program.flags) = (AT_FDCWD, 0);
    }
    Err(error(libc::ELOOP))
}

/// A script, or the program that is to run: the kernel finds it by what `program` says.
fn look_at(
    session: &mut Session,
    mut place: Place,
    program: &mut Program,
    arena: &mut Arena,
) -> Result<Option<Script>, i64> {
    for _ in 0..place::LINKS_MAX {
        match place {
            Place::Failed(failed) => return Err(failed),
            Place::Elsewhere(path) => {
                program.path = arena.text(&[host::string(path, PATH_BYTES_MAX)]).ok_or(error(libc::ENOMEM))?;
                (program.directory, program.flags) = (AT_FDCWD, 0);
                return Ok(None);
            }
            Place::Kernels => return Ok(script_outside(program, arena)),
            Place::Ours(target) => match in_the_volume(session, target, program, arena) {
                Err(LEAVES) => place = place::left(session, FIRST, true),
                found => return found,
            },
        }
    }
    Err(error(libc::ELOOP))
}

/// A script: addresses of texts in the arena.
pub struct Script {
    /// Path of its interpreter.
    pub interpreter: u64,
    /// The interpreter's argument, or 0.
    pub argument: u64,
    /// The script's path.
    pub path: u64,
}

/// A program of the volume: a script, or a program that is copied to memory. The error may be LEAVES.
fn in_the_volume(
    session: &mut Session,
    target: Target,
    program: &mut Program,
    arena: &mut Arena,
) -> Result<Option<Script>, i64> {
    let stat = stat::fetch(session, target, true)?;
    let request =
        Request { op: Op::Access as u32, desc: target.desc, b: libc::X_OK as u64, c: 1, ..Request::default() };
    let allowed = session.ask(request, &[target.path])?.result;
    if allowed < 0 {
        return Err(allowed);
    }
    if stat.mode & libc::S_IFMT != libc::S_IFREG || stat.mode & 0o111 == 0 {
        return Err(error(libc::EACCES));
    }
    let opened = open::open_ours(session, target, (libc::O_RDONLY | libc::O_CLOEXEC) as u32, 0);
    if opened < 0 {
        return Err(opened);
    }
    // The answer to the open names the description.
    let desc = session.last().desc;
    let finish = |result| {
        fds::forget(opened as i32);
        host::close(opened as i32);
        result
    };
    // Where it lies, without links; a script that was named by itself is passed on by that name, as the kernel does it.
    let no_room = error(libc::ENOMEM);
    let asked = session.ask(Request { op: Op::PathOf as u32, desc, ..Request::default() }, &[]);
    let path = match asked {
        // It has no path that is short enough: the program does not know its own.
        Ok(reply) if reply.result == error(libc::ENAMETOOLONG) => arena.text(&[]),
        Ok(reply) if reply.result < 0 => return finish(Err(reply.result)),
        Ok(reply) => arena.text(&[settings::AT.get(), session.bytes(&reply)]),
        Err(failed) => return finish(Err(failed)),
    };
    let Some(path) = path else { return finish(Err(no_room)) };
    let is_named = program.directory == AT_FDCWD && !target.path.is_empty();
    let request = Request { op: Op::Read as u32, desc, len: HEAD_BYTES as u64, ..Request::default() };
    let head = match session.ask(request, &[]) {
        Ok(reply) if reply.result >= 0 => host::bytes(session.window(), (reply.result as usize).min(HEAD_BYTES)),
        Ok(reply) => return finish(Err(reply.result)),
        Err(failed) => return finish(Err(failed)),
    };
    if let Some(script) = script(head, if is_named { program.path } else { path }, arena) {
        let has_path = is_named || host::read::<u8>(path) != 0;
        return finish(if has_path { Ok(Some(script)) } else { Err(error(libc::ENAMETOOLONG)) });
    }
    match mapping::contents(desc, 0, stat.size) {
        Ok(copy) => {
            program.copy = Some(copy);
            (program.directory, program.flags) = (copy, AT_EMPTY_PATH as u64);
            program.path = c"".as_ptr() as u64;
            program.volume = host::string(path, PATH_BYTES_MAX);
            finish(Ok(None))
        }
        Err(failed) => finish(Err(failed)),
    }
}

fn script(head: &[u8], path: u64, arena: &mut Arena) -> Option<Script> {
    let (interpreter, extra) = paths::interpreter(head)?;
    let extra = match extra {
        Some(text) => arena.text(&[text])?,
        None => 0,
    };
    Some(Script { interpreter: arena.text(&[interpreter])?, argument: extra, path })
}

/// A script of the kernel's whose interpreter lies in the volume: the kernel would not find it.
fn script_outside(program: &Program, arena: &mut Arena) -> Option<Script> {
    if !host::is_memory(program.path) || program.flags != 0 {
        return None;
    }
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let fd = raw(libc::SYS_openat, [program.directory as u64, program.path, flags, 0, 0, 0]);
    if fd < 0 {
        return None;
    }
    let mut head = [0u8; HEAD_BYTES];
    let bytes = call(libc::SYS_read, fd as u64, head.as_mut_ptr() as u64, HEAD_BYTES as u64);
    host::close(fd as i32);
    let head = head.get(..usize::try_from(bytes).ok()?)?;
    let (interpreter, _) = paths::interpreter(head)?;
    paths::below(settings::AT.get(), interpreter)?;
    script(head, program.path, arena)
}
