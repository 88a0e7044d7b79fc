//! New processes, new programs, and libraries that a program loads.

use super::entry::{Frame, Outcome, make, stub};
use super::functions::{by_number, is_kernels};
use super::{Wanted, call_host, found, index_of, look_through, may_be_more, real, real_of, spawn};
use crate::environment::{self, Arena};
use crate::fds::{self, Fd};
use crate::host::{self, error};
use crate::place::PATH_BYTES_MAX;
use crate::{cwd, exec, mapping, paths, process};
use libc::AT_FDCWD;

/// Where execvp(3) looks if nothing says where.
const PATH: &[u8] = b"/bin:/usr/bin";

/// The lowest number of a program's copy, so that what a child does with its low descriptors does not hit it.
pub const COPY_MIN: u64 = 500;

/// dlsym(3): the next object behind the caller's.
const NEXT: u64 = u64::MAX;

fn environ() -> u64 {
    host::read(found(Wanted::Environ))
}

/// execve(3).
pub fn execve(frame: &Frame) -> Outcome {
    let [path, arguments, variables, ..] = frame.args;
    Outcome::of(exec::execve(AT_FDCWD, path, arguments, variables, 0))
}

/// execv(3).
pub fn execv(frame: &Frame) -> Outcome {
    let [path, arguments, ..] = frame.args;
    Outcome::of(exec::execve(AT_FDCWD, path, arguments, environ(), 0))
}

/// execvp(3).
pub fn execvp(frame: &Frame) -> Outcome {
    let [name, arguments, ..] = frame.args;
    Outcome::of(search(name, arguments, |path, arguments| exec::execve(AT_FDCWD, path, arguments, environ(), 0)))
}

/// execvpe(3).
pub fn execvpe(frame: &Frame) -> Outcome {
    let [name, arguments, variables, ..] = frame.args;
    Outcome::of(search(name, arguments, |path, arguments| exec::execve(AT_FDCWD, path, arguments, variables, 0)))
}

/// fexecve(3).
pub fn fexecve(frame: &Frame) -> Outcome {
    let [fd, arguments, variables, ..] = frame.args;
    let empty = c"".as_ptr() as u64;
    Outcome::of(exec::execve(fds::argument(fd), empty, arguments, variables, libc::AT_EMPTY_PATH as u64))
}

/// execl(3).
pub fn execl(frame: &Frame) -> Outcome {
    with_list(frame, |arguments, _| exec::execve(AT_FDCWD, frame.args[0], arguments, environ(), 0))
}

/// execle(3): the environment stands behind the arguments.
pub fn execle(frame: &Frame) -> Outcome {
    with_list(frame, |arguments, count| exec::execve(AT_FDCWD, frame.args[0], arguments, nth(frame, count + 1), 0))
}

/// execlp(3).
pub fn execlp(frame: &Frame) -> Outcome {
    with_list(frame, |arguments, _| {
        search(frame.args[0], arguments, |path, arguments| exec::execve(AT_FDCWD, path, arguments, environ(), 0))
    })
}

/// An argument behind the first of a function that takes as many as there are.
fn nth(frame: &Frame, index: usize) -> u64 {
    match frame.args.get(index + 1) {
        Some(argument) => *argument,
        None => frame.further(index + 1 - frame.args.len()),
    }
}

/// The arguments up to null as a list, and their count.
fn with_list(frame: &Frame, act: impl FnOnce(u64, usize) -> i64) -> Outcome {
    let mut count = 0;
    while nth(frame, count) != 0 {
        count += 1;
    }
    let bytes = (count + 1) * 8;
    let list = host::map(bytes);
    if list == 0 {
        return Outcome::of(error(libc::ENOMEM));
    }
    for index in 0..count {
        host::write(list + index as u64 * 8, nth(frame, index));
    }
    let result = act(list, count);
    host::unmap(list, bytes);
    Outcome::of(result)
}

/// Tries a program's name in the directories of PATH, as execvp(3) does; `run` is given a path and the arguments.
fn search(name: u64, arguments: u64, run: impl Fn(u64, u64) -> i64) -> i64 {
    let text = host::string(name, PATH_BYTES_MAX);
    if text.is_empty() {
        return error(libc::ENOENT);
    }
    if text.contains(&b'/') {
        return run_or_read(name, arguments, &run);
    }
    let list = crate::settings::variable(environ(), "PATH").unwrap_or(PATH);
    let (mut room, mut denied) = ([0u8; PATH_BYTES_MAX], false);
    for directory in list.split(|byte| *byte == b':') {
        let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        if paths::join(&mut room, &[directory, slash, text]).is_none() {
            continue;
        }
        let result = run_or_read(room.as_ptr() as u64, arguments, &run);
        match -result as i32 {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return result,
        }
    }
    error(if denied { libc::EACCES } else { libc::ENOENT })
}

/// Runs a program; a text without an interpreter's name is read by the shell.
fn run_or_read(path: u64, arguments: u64, run: impl Fn(u64, u64) -> i64) -> i64 {
    let result = run(path, arguments);
    if result != error(libc::ENOEXEC) {
        return result;
    }
    let mut count = 0u64;
    while host::read::<u64>(arguments + count * 8) != 0 {
        count += 1;
    }
    let bytes = (count as usize + 3) * 8;
    let list = host::map(bytes);
    if list == 0 {
        return error(libc::ENOMEM);
    }
    let shell = c"/bin/sh".as_ptr() as u64;
    host::write(list, shell);
    host::write(list + 8, path);
    for index in 1..count {
        host::write(list + 8 + index * 8, host::read::<u64>(arguments + index * 8));
    }
    let result = run(shell, list);
    host::unmap(list, bytes);
    result
}

/// posix_spawn(3): what the child does before it becomes the program is libc's, unless the volume is needed for it.
pub fn posix_spawn(frame: &Frame) -> Outcome {
    let [pid, path, actions, attributes, arguments, variables] = frame.args;
    if spawn::needs_volume(actions) {
        let become_it = || exec::execve(AT_FDCWD, path, arguments, variables, 0);
        return Outcome::value(-spawn::spawn(pid, actions, attributes, become_it) as u64);
    }
    Outcome::value(-spawned(frame, path, arguments, variables) as u64)
}

/// posix_spawnp(3).
pub fn posix_spawnp(frame: &Frame) -> Outcome {
    let [pid, name, actions, attributes, arguments, variables] = frame.args;
    if spawn::needs_volume(actions) {
        let run = |path, arguments| exec::execve(AT_FDCWD, path, arguments, variables, 0);
        return Outcome::value(-spawn::spawn(pid, actions, attributes, || search(name, arguments, run)) as u64);
    }
    Outcome::value(-search(name, arguments, |path, arguments| spawned(frame, path, arguments, variables)) as u64)
}

fn spawned(frame: &Frame, path: u64, arguments: u64, variables: u64) -> i64 {
    let [to, _, actions, attributes, ..] = frame.args;
    let spawn = real("posix_spawn");
    exec::execve_by(AT_FDCWD, path, arguments, variables, 0, |directory, path, arguments, variables, flags| {
        let spawn = |path: u64| -(call_host(spawn, [to, path, actions, attributes, arguments, variables]) as i32);
        if directory == AT_FDCWD && flags == 0 {
            return i64::from(spawn(path));
        }
        let copy = host::call(libc::SYS_fcntl, directory as u64, libc::F_DUPFD_CLOEXEC as u64, COPY_MIN);
        if copy < 0 {
            return copy;
        }
        let result = spawn(host::descriptor_link(copy as i32).as_ptr() as u64);
        host::close(copy as i32);
        i64::from(result)
    })
}

/// Calls a function of libc that starts a program by itself, with an environment by which that sees the volume.
fn with_environment(frame: &Frame) -> Outcome {
    let before = environ();
    if !cwd::is_ours() && environment::is_complete(before) {
        return Outcome::libcs(frame);
    }
    let Some(mut arena) = Arena::new(before, 0) else { return Outcome::libcs(frame) };
    let Some(variables) = environment::complete(before, b"", &mut arena) else { return Outcome::libcs(frame) };
    let at = found(Wanted::Environ);
    host::write(at, variables);
    let value = call_host(real_of(frame.index as usize), frame.args);
    if environ() == variables {
        host::write(at, before);
        arena.give_back();
    }
    Outcome::value(value)
}

/// system(3).
pub fn system(frame: &Frame) -> Outcome {
    with_environment(frame)
}

/// popen(3).
pub fn popen(frame: &Frame) -> Outcome {
    with_environment(frame)
}

/// fork(2), and vfork(2), which may do the same: a child on its parent's memory would return through this function's stack.
pub fn fork(_: &Frame) -> Outcome {
    let result = call_host(real("fork"), [0; 6]) as i32;
    if result == 0 {
        let mask = process::block_signals();
        process::begin();
        process::restore_signals(mask);
    }
    Outcome::value(i64::from(result) as u64)
}

/// daemon(3).
pub fn daemon(frame: &Frame) -> Outcome {
    let result = call_host(real("daemon"), frame.args) as i32;
    if result == 0 {
        // Libc has put /dev/null there, and has gone to the root, by itself.
        fds::forget_range(0, 2);
        if fds::argument(frame.args[0]) == 0 {
            cwd::clear();
        }
    }
    Outcome::value(i64::from(result) as u64)
}

/// login_tty(3).
pub fn login_tty(frame: &Frame) -> Outcome {
    let result = call_host(real("login_tty"), frame.args);
    fds::forget_range(0, 2);
    Outcome::value(result)
}

/// _exit(2).
pub fn exit(frame: &Frame) -> Outcome {
    mapping::settle();
    Outcome::libcs(frame)
}

/// syscall(2).
pub fn syscall(frame: &Frame) -> Outcome {
    by_number(frame)
}

/// dlopen(3): a library that lies in the volume is loaded from a copy in memory.
pub fn dlopen(frame: &Frame) -> Outcome {
    let [path, mode, ..] = frame.args;
    may_be_more();
    let has_slash = host::is_memory(path) && host::string(path, PATH_BYTES_MAX).contains(&b'/');
    if !has_slash || is_kernels(AT_FDCWD as u64, path) {
        // Libc looks at who calls it.
        return Outcome::libcs(frame);
    }
    let fd = make(libc::SYS_open, [path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64, 0, 0, 0, 0]);
    let desc = match fds::of(fd as i32) {
        Fd::Ours(desc) if fd >= 0 => desc,
        // Libc says why not.
        _ => {
            if fd >= 0 {
                make(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
            }
            return Outcome::libcs(frame);
        }
    };
    // SAFETY: zeros are a valid value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    make(libc::SYS_fstat, [fd as u64, &raw mut stat as u64, 0, 0, 0, 0]);
    let copy = mapping::contents(desc, 0, stat.st_size as u64);
    make(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
    let Ok(copy) = copy else { return Outcome::libcs(frame) };
    let link = host::descriptor_link(copy);
    let handle = call_host(real("dlopen"), [link.as_ptr() as u64, mode, 0, 0, 0, 0]);
    host::close(copy);
    look_through();
    Outcome::value(handle)
}

/// dlsym(3): who asks for a function of libc's that has one here gets that.
pub fn dlsym(frame: &Frame) -> Outcome {
    let [handle, name, ..] = frame.args;
    look_through();
    let known = host::is_memory(name).then(|| index_of(host::string(name, 256))).flatten();
    let Some(index) = known.filter(|index| real_of(*index) != 0) else { return Outcome::libcs(frame) };
    if handle == NEXT {
        return Outcome::value(stub(index));
    }
    let address = call_host(real("dlsym"), frame.args);
    Outcome::value(if address == real_of(index) { stub(index) } else { address })
}
