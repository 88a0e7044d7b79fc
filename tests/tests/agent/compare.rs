//! The same calls to an agent and to a file system of the kernel, with what each said.

use super::calls::{Program, bytes_of, take};
use aze_calls::{LEAVES, NO_DESC, Op, POSITION, Request, Stat, WINDOW_BYTES};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Write;
use std::io;
use std::mem::zeroed;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What a call gives: a number, or an error number below 0; and what came with it.
pub type Said = (i64, Vec<u8>);

/// A file system with numbers for open files.
pub trait Files {
    /// open(2) under a number of the caller's choice.
    fn open(&mut self, number: u64, dir: u64, path: &str, flags: i32, mode: u32) -> i64;
    /// close(2).
    fn close(&mut self, number: u64);
    /// read(2), or pread(2) if there is an offset.
    fn read(&mut self, number: u64, len: usize, offset: Option<u64>) -> Said;
    /// write(2), or pwrite(2).
    fn write(&mut self, number: u64, data: &[u8], offset: Option<u64>) -> i64;
    /// lseek(2).
    fn seek(&mut self, number: u64, offset: i64, whence: i32) -> i64;
    /// fstatat(2): kind and rights, names, owner, length unless it is a directory.
    fn stat(&mut self, dir: u64, path: &str, follow: bool) -> Said;
    /// All names of a directory, from the position on, in order.
    fn names(&mut self, number: u64) -> Said;
    /// A call on one path with two numbers.
    fn on_path(&mut self, what: OnPath, dir: u64, path: &str, a: u64, b: u64) -> Said;
    /// A call on two paths, or a target and a path.
    fn on_two(&mut self, what: OnTwo, dir: u64, first: &str, second: &str, flags: u64) -> i64;
    /// A call on something that is open, with three numbers.
    fn on_open(&mut self, what: OnOpen, number: u64, a: u64, b: u64, c: u64) -> Said;
    /// Extended attributes: name, value to set.
    fn xattr(&mut self, what: Xattr, dir: u64, path: &str, name: &str, value: &[u8], number: u64) -> Said;
}

#[derive(Clone, Copy, Debug)]
pub enum OnPath {
    Mkdir,
    Rmdir,
    Unlink,
    Readlink,
    Truncate,
    Chmod,
    Chown,
    Access,
    Times,
}

#[derive(Clone, Copy, Debug)]
pub enum OnTwo {
    Rename,
    Link,
    Symlink,
}

#[derive(Clone, Copy, Debug)]
pub enum OnOpen {
    Truncate,
    Sync,
    Allocate,
    GetFlags,
    SetFlags,
    Chmod,
    Flock,
    Lock,
    TestLock,
    Copy,
}

#[derive(Clone, Copy, Debug)]
pub enum Xattr {
    Set,
    Get,
    List,
    Remove,
}

/// The agent.
pub struct Intercepted {
    pub program: Program,
    open: BTreeMap<u64, (u64, OwnedFd)>,
}

impl Intercepted {
    pub fn new(program: Program) -> Intercepted {
        Intercepted { program, open: BTreeMap::new() }
    }

    fn desc(&self, number: u64) -> u64 {
        // A number that no description has.
        if number == NO_DESC { NO_DESC } else { self.open.get(&number).map_or(1 << 40, |open| open.0) }
    }

    fn said(&self, op: Op, request: Request, bytes: &[u8]) -> Said {
        let answer = self.program.call(op, request, bytes);
        (answer.result, answer.bytes)
    }
}

fn summary(mode: u32, nlink: u64, uid: u32, gid: u32, size: u64) -> Vec<u8> {
    let is_dir = mode & libc::S_IFMT == libc::S_IFDIR;
    let (nlink, size) = if is_dir { (0, 0) } else { (nlink, size) };
    format!("{mode:o} {nlink} {uid} {gid} {size}").into_bytes()
}

impl Files for Intercepted {
    fn open(&mut self, number: u64, dir: u64, path: &str, flags: i32, mode: u32) -> i64 {
        let request = Request { desc: self.desc(dir), a: flags as u64, b: mode.into(), ..Request::default() };
        let answer = self.program.call(Op::Open, request, path.as_bytes());
        if let Some(passed) = answer.passed {
            assert!(answer.result == 0 && answer.bytes.len() >= size_of::<Stat>(), "{}", answer.result);
            self.open.insert(number, (answer.desc, passed));
        }
        answer.result
    }

    fn close(&mut self, number: u64) {
        self.open.remove(&number);
    }

    fn read(&mut self, number: u64, len: usize, offset: Option<u64>) -> Said {
        let offset = offset.unwrap_or(POSITION);
        let request = Request { desc: self.desc(number), offset, len: len as u64, ..Request::default() };
        let result = self.program.call(Op::Read, request, &[]).result;
        let count = usize::try_from(result).unwrap_or(0);
        (result, self.program.window()[..count].to_vec())
    }

    fn write(&mut self, number: u64, data: &[u8], offset: Option<u64>) -> i64 {
        self.program.window()[..data.len()].copy_from_slice(data);
        let offset = offset.unwrap_or(POSITION);
        let request = Request { desc: self.desc(number), offset, len: data.len() as u64, ..Request::default() };
        self.program.call(Op::Write, request, &[]).result
    }

    fn seek(&mut self, number: u64, offset: i64, whence: i32) -> i64 {
        let request =
            Request { desc: self.desc(number), offset: offset as u64, a: whence as u64, ..Request::default() };
        self.program.call(Op::Seek, request, &[]).result
    }

    fn stat(&mut self, dir: u64, path: &str, follow: bool) -> Said {
        let request = Request { desc: self.desc(dir), a: u64::from(!follow), ..Request::default() };
        let (result, bytes) = self.said(Op::Stat, request, path.as_bytes());
        if result != 0 {
            return (result, Vec::new());
        }
        let stat: Stat = take(&bytes);
        (0, summary(stat.mode, stat.nlink.into(), stat.uid, stat.gid, stat.size))
    }

    fn names(&mut self, number: u64) -> Said {
        let mut all = Vec::new();
        loop {
            let request = Request { desc: self.desc(number), len: 100, ..Request::default() };
            let count = self.program.call(Op::ReadDir, request, &[]).result;
            match usize::try_from(count) {
                Err(_) => return (count, Vec::new()),
                Ok(0) => return (0, joined(all)),
                Ok(count) => all.extend(entries(&self.program.window()[..count])),
            }
        }
    }

    fn on_path(&mut self, what: OnPath, dir: u64, path: &str, a: u64, b: u64) -> Said {
        let (op, mut bytes) = match what {
            OnPath::Mkdir => (Op::Mkdir, Vec::new()),
            OnPath::Rmdir => (Op::Rmdir, Vec::new()),
            OnPath::Unlink => (Op::Unlink, Vec::new()),
            OnPath::Readlink => (Op::Readlink, Vec::new()),
            OnPath::Truncate => (Op::Truncate, Vec::new()),
            OnPath::Chmod => (Op::Chmod, Vec::new()),
            OnPath::Chown => (Op::Chown, Vec::new()),
            OnPath::Access => (Op::Access, Vec::new()),
            OnPath::Times => (Op::SetTimes, bytes_of(&times(a, b))),
        };
        let request = Request { desc: self.desc(dir), ..Request::default() };
        let request = match what {
            OnPath::Mkdir => Request { a, ..request },
            OnPath::Truncate => Request { len: a, ..request },
            OnPath::Chown => Request { b: a, c: b, ..request },
            OnPath::Chmod | OnPath::Access => Request { b: a, ..request },
            _ => request,
        };
        bytes.extend_from_slice(path.as_bytes());
        self.said(op, request, &bytes)
    }

    fn on_two(&mut self, what: OnTwo, dir: u64, first: &str, second: &str, flags: u64) -> i64 {
        let op = match what {
            OnTwo::Rename => Op::Rename,
            OnTwo::Link => Op::Link,
            OnTwo::Symlink => Op::Symlink,
        };
        let a =
            if matches!(what, OnTwo::Link) { u64::from(flags & libc::AT_SYMLINK_FOLLOW as u64 != 0) } else { flags };
        let desc = self.desc(dir);
        let request = Request { desc, b: desc, a, first: first.len() as u32, ..Request::default() };
        self.program.call(op, request, [first, second].concat().as_bytes()).result
    }

    fn on_open(&mut self, what: OnOpen, number: u64, a: u64, b: u64, c: u64) -> Said {
        let request = Request { desc: self.desc(number), ..Request::default() };
        match what {
            OnOpen::Truncate => self.said(Op::TruncateOpen, Request { len: a, ..request }, &[]),
            OnOpen::Sync => self.said(Op::Sync, request, &[]),
            OnOpen::Allocate => self.said(Op::Allocate, Request { a, offset: b, len: c, ..request }, &[]),
            OnOpen::GetFlags => self.said(Op::GetFlags, request, &[]),
            OnOpen::SetFlags => self.said(Op::SetFlags, Request { a, ..request }, &[]),
            OnOpen::Chmod => self.said(Op::Chmod, Request { b: a, ..request }, &[]),
            OnOpen::Flock => self.said(Op::Flock, Request { a, ..request }, &[]),
            OnOpen::Lock | OnOpen::TestLock => {
                let command = if matches!(what, OnOpen::Lock) { libc::F_OFD_SETLK } else { libc::F_OFD_GETLK };
                let answer = self.program.lock(request.desc, command, a as i32, b as i64, c as i64);
                (answer.result, shown_lock(&answer.bytes))
            }
            OnOpen::Copy => {
                let request = Request { offset: POSITION, a: self.desc(a), b: POSITION, len: b, ..request };
                self.said(Op::Copy, request, &[])
            }
        }
    }

    fn xattr(&mut self, what: Xattr, dir: u64, path: &str, name: &str, value: &[u8], number: u64) -> Said {
        let op = match what {
            Xattr::Set => Op::SetXattr,
            Xattr::Get => Op::GetXattr,
            Xattr::List => Op::ListXattr,
            Xattr::Remove => Op::RemoveXattr,
        };
        let is_set = matches!(what, Xattr::Set);
        let len = if is_set { value.len() as u64 } else { number };
        let b = if is_set { number } else { 0 };
        let first = if matches!(what, Xattr::List) { 0 } else { name.len() as u32 };
        self.program.window()[..value.len()].copy_from_slice(value);
        let request = Request { desc: self.desc(dir), b, len, first, ..Request::default() };
        let bytes = if first == 0 { path.to_owned() } else { [name, path].concat() };
        let result = self.program.call(op, request, bytes.as_bytes()).result;
        let gives = matches!(what, Xattr::Get | Xattr::List) && number > 0;
        let count = if gives { usize::try_from(result).unwrap_or(0) } else { 0 };
        (result, self.program.window()[..count].to_vec())
    }
}

fn times(atime: u64, mtime: u64) -> [libc::timespec; 2] {
    [atime, mtime].map(|nanoseconds| libc::timespec { tv_sec: 7, tv_nsec: nanoseconds as i64 })
}

fn shown_lock(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let lock: libc::flock = take(bytes);
    match i32::from(lock.l_type) {
        libc::F_UNLCK => b"free".to_vec(),
        kind => format!("{kind} {} {} {}", lock.l_start, lock.l_len, lock.l_pid).into_bytes(),
    }
}

/// The names of a part of a listing, and that its cookies and lengths are sound.
fn entries(mut bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while !bytes.is_empty() {
        let len = usize::from(u16::from_ne_bytes([bytes[16], bytes[17]]));
        let name = bytes[19..len].split(|byte| *byte == 0).next().expect("a name");
        assert!(len % 8 == 0 && len > 19 + name.len(), "room for a name and its end");
        names.push(format!("{} {}", String::from_utf8_lossy(name), bytes[18]));
        bytes = &bytes[len..];
    }
    names
}

fn joined(mut names: Vec<String>) -> Vec<u8> {
    names.sort();
    names.join(", ").into_bytes()
}

/// A directory of the kernel's.
pub struct Kernel {
    root: CString,
    open: BTreeMap<u64, i32>,
}

impl Kernel {
    pub fn new(root: &Path) -> Kernel {
        let root = CString::new(root.to_str().expect("a path")).expect("no NUL");
        Kernel { root, open: BTreeMap::new() }
    }

    /// The directory of a call, and its path.
    fn place(&self, dir: u64, path: &str) -> (i32, CString) {
        if dir != NO_DESC {
            return (self.open.get(&dir).copied().unwrap_or(-1), CString::new(path).expect("no NUL"));
        }
        let path = format!("{}{path}", self.root.to_str().expect("a path"));
        (libc::AT_FDCWD, CString::new(path).expect("no NUL"))
    }

    fn number(&self, number: u64) -> i32 {
        self.open.get(&number).copied().unwrap_or(-1)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        for number in self.open.values() {
            // SAFETY: the descriptor is ours.
            unsafe { libc::close(*number) };
        }
    }
}

fn said(result: i64) -> i64 {
    if result < 0 { -i64::from(io::Error::last_os_error().raw_os_error().expect("an error number")) } else { result }
}

impl Files for Kernel {
    fn open(&mut self, number: u64, dir: u64, path: &str, flags: i32, mode: u32) -> i64 {
        let (dir, path) = self.place(dir, path);
        // SAFETY: the path ends in NUL and lives until the call returns, as in all calls below.
        let result = said(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) }.into());
        if result < 0 {
            return result;
        }
        self.close(number);
        self.open.insert(number, result as i32);
        0
    }

    fn close(&mut self, number: u64) {
        if let Some(number) = self.open.remove(&number) {
            // SAFETY: the descriptor is ours.
            unsafe { libc::close(number) };
        }
    }

    fn read(&mut self, number: u64, len: usize, offset: Option<u64>) -> Said {
        let (mut buffer, number) = (vec![0u8; len], self.number(number));
        let at = buffer.as_mut_ptr().cast();
        // SAFETY: the pointer and the length are those of `buffer`.
        let result = unsafe {
            match offset {
                None => libc::read(number, at, len),
                Some(offset) => libc::pread(number, at, len, offset as i64),
            }
        };
        let result = said(result as i64);
        buffer.truncate(usize::try_from(result).unwrap_or(0));
        (result, buffer)
    }

    fn write(&mut self, number: u64, data: &[u8], offset: Option<u64>) -> i64 {
        let (number, at) = (self.number(number), data.as_ptr().cast());
        // SAFETY: the pointer and the length are those of `data`.
        let result = unsafe {
            match offset {
                None => libc::write(number, at, data.len()),
                Some(offset) => libc::pwrite(number, at, data.len(), offset as i64),
            }
        };
        said(result as i64)
    }

    fn seek(&mut self, number: u64, offset: i64, whence: i32) -> i64 {
        // SAFETY: lseek(2) takes numbers.
        said(unsafe { libc::lseek(self.number(number), offset, whence) })
    }

    fn stat(&mut self, dir: u64, path: &str, follow: bool) -> Said {
        let (dir, path) = self.place(dir, path);
        let flags = libc::AT_EMPTY_PATH | if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
        // SAFETY: a structure of numbers.
        let mut stat: libc::stat = unsafe { zeroed() };
        // SAFETY: `stat` lives until the call returns.
        let result = said(unsafe { libc::fstatat(dir, path.as_ptr(), &raw mut stat, flags) }.into());
        match result {
            0 => (0, summary(stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid, stat.st_size as u64)),
            error => (error, Vec::new()),
        }
    }

    fn names(&mut self, number: u64) -> Said {
        let (mut all, mut buffer) = (Vec::new(), vec![0u8; 100]);
        loop {
            // SAFETY: the pointer and the length are those of `buffer`.
            let count =
                unsafe { libc::syscall(libc::SYS_getdents64, self.number(number), buffer.as_mut_ptr(), buffer.len()) };
            match usize::try_from(said(count)) {
                Err(_) => return (said(count), Vec::new()),
                Ok(0) => return (0, joined(all)),
                Ok(count) => all.extend(entries(&buffer[..count])),
            }
        }
    }

    fn on_path(&mut self, what: OnPath, dir: u64, path: &str, a: u64, b: u64) -> Said {
        let (dir, path) = self.place(dir, path);
        let at = path.as_ptr();
        let mut target = vec![0u8; 4096];
        // SAFETY: the paths end in NUL; buffers and times live until the calls return.
        let result: i64 = unsafe {
            match what {
                OnPath::Mkdir => i64::from(libc::mkdirat(dir, at, a as u32)),
                OnPath::Rmdir => libc::unlinkat(dir, at, libc::AT_REMOVEDIR).into(),
                OnPath::Unlink => libc::unlinkat(dir, at, 0).into(),
                OnPath::Readlink => libc::readlinkat(dir, at, target.as_mut_ptr().cast(), 4096) as i64,
                OnPath::Truncate => libc::truncate(at, a as i64).into(),
                OnPath::Chmod => libc::fchmodat(dir, at, a as u32, 0).into(),
                OnPath::Chown => libc::fchownat(dir, at, a as u32, b as u32, 0).into(),
                OnPath::Access => libc::faccessat(dir, at, a as i32, 0).into(),
                OnPath::Times => libc::utimensat(dir, at, times(a, b).as_ptr(), 0).into(),
            }
        };
        let result = said(result);
        if matches!(what, OnPath::Readlink) && result >= 0 {
            target.truncate(result as usize);
            return (0, target);
        }
        (result, Vec::new())
    }

    fn on_two(&mut self, what: OnTwo, dir: u64, first: &str, second: &str, flags: u64) -> i64 {
        let ((to_dir, to), (dir, from)) = (self.place(dir, second), self.place(dir, first));
        let (from, to) = (from.as_ptr(), to.as_ptr());
        // SAFETY: the paths end in NUL and live until the calls return.
        let result: i64 = unsafe {
            match what {
                OnTwo::Rename => libc::syscall(libc::SYS_renameat2, dir, from, to_dir, to, flags),
                OnTwo::Link => libc::linkat(dir, from, to_dir, to, flags as i32).into(),
                OnTwo::Symlink => {
                    let target = CString::new(first).expect("no NUL");
                    libc::symlinkat(target.as_ptr(), to_dir, to).into()
                }
            }
        };
        said(result)
    }

    fn on_open(&mut self, what: OnOpen, number: u64, a: u64, b: u64, c: u64) -> Said {
        let number = self.number(number);
        if let OnOpen::Lock | OnOpen::TestLock = what {
            let (_, bytes) = Program::lock_request(0, 0, a as i32, b as i64, c as i64);
            let mut lock: libc::flock = take(&bytes);
            let is_test = matches!(what, OnOpen::TestLock);
            let command = if is_test { libc::F_OFD_GETLK } else { libc::F_OFD_SETLK };
            // SAFETY: `lock` lives until the call returns.
            let result = said(unsafe { libc::fcntl(number, command, &raw mut lock) }.into());
            let shown = if is_test && result == 0 { shown_lock(&bytes_of(&lock)) } else { Vec::new() };
            return (result, shown);
        }
        let (target, nowhere) = (self.number(a), std::ptr::null_mut());
        // SAFETY: these take numbers, and null pointers where positions are not passed.
        let result: i64 = unsafe {
            match what {
                OnOpen::Truncate => libc::ftruncate(number, a as i64).into(),
                OnOpen::Sync => libc::fsync(number).into(),
                OnOpen::Allocate => libc::fallocate(number, a as i32, b as i64, c as i64).into(),
                OnOpen::GetFlags => libc::fcntl(number, libc::F_GETFL).into(),
                OnOpen::SetFlags => libc::fcntl(number, libc::F_SETFL, a as i32).into(),
                OnOpen::Chmod => libc::fchmod(number, a as u32).into(),
                OnOpen::Flock => libc::flock(number, a as i32).into(),
                OnOpen::Copy => libc::copy_file_range(number, nowhere, target, nowhere, b as usize, 0) as i64,
                OnOpen::Lock | OnOpen::TestLock => unreachable!("done above"),
            }
        };
        (said(result), Vec::new())
    }

    fn xattr(&mut self, what: Xattr, dir: u64, path: &str, name: &str, value: &[u8], number: u64) -> Said {
        let (_, path) = self.place(dir, path);
        let name = CString::new(name).expect("no NUL");
        let (path, name, len) = (path.as_ptr(), name.as_ptr(), number as usize);
        let mut room = vec![0u8; len];
        // SAFETY: strings end in NUL; pointers and lengths are those of `value` and `room`.
        let result: i64 = unsafe {
            match what {
                Xattr::Set => libc::setxattr(path, name, value.as_ptr().cast(), value.len(), number as i32).into(),
                Xattr::Get => libc::getxattr(path, name, room.as_mut_ptr().cast(), len) as i64,
                Xattr::List => libc::listxattr(path, room.as_mut_ptr().cast(), len) as i64,
                Xattr::Remove => libc::removexattr(path, name).into(),
            }
        };
        let result = said(result);
        let gives = matches!(what, Xattr::Get | Xattr::List);
        room.truncate(if gives { usize::try_from(result).unwrap_or(0) } else { 0 });
        (result, room)
    }
}

/// What calls have said, one line for each.
#[derive(Default)]
pub struct Script {
    pub lines: Vec<String>,
}

impl Script {
    /// Notes a call and its outcome.
    pub fn note(&mut self, call: impl std::fmt::Display, (result, bytes): Said) {
        let mut line = String::new();
        let name = |number: i64| io::Error::from_raw_os_error(-number as i32).to_string();
        match result {
            LEAVES => write!(line, "{call}: leaves"),
            0.. => write!(line, "{call}: {result} {}", String::from_utf8_lossy(&bytes)),
            _ => write!(line, "{call}: {}", name(result)),
        }
        .expect("a string takes text");
        self.lines.push(line);
    }
}

/// No window is longer.
const _: () = assert!(WINDOW_BYTES >= 4096);
