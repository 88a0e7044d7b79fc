//! The second way: symbols alone, where the text of libc cannot be rewritten.
//!
//! Programs and libraries call libc by addresses that the loader has put down for them. Where such an address belongs to a function
//! that makes system calls this library looks at, it becomes that of a function here ([`functions`]), which makes the same
//! system call by the same code as a rewritten site, or goes on to libc's. Calls that libc makes by itself do not pass there: for stdio its
//! table of functions is changed, too ([`stdio`]), listings have functions here ([`listing`]); the others are in
//! docs/semantics.md. No text is changed, and nothing that is written becomes executable.

mod entry;
mod functions;
mod listing;
mod paths;
mod programs;
mod spawn;
mod stdio;

#[cfg(all(not(test), panic = "abort"))]
pub use entry::{MARK, fail, resume};

use crate::elf::{self, Object};
use crate::host::{self, call, error};
use crate::rewrite;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};
use functions::{COUNT, FUNCTIONS};

/// Bytes of the kernel's vector that are read.
const VECTOR_BYTES: usize = 1024;

/// A function of [`FUNCTIONS`] in this process.
struct Known {
    /// Address of libc's; 0 if it has none.
    real: AtomicU64,
    /// Another object, such as the program itself or a library that was loaded first, defines it before libc does.
    is_others: AtomicBool,
}

static KNOWN: [Known; COUNT] = [const { Known { real: AtomicU64::new(0), is_others: AtomicBool::new(false) } }; COUNT];

/// Hashes of the names.
static HASHES: [u32; COUNT] = hashes();

const fn hashes() -> [u32; COUNT] {
    let mut all = [0; COUNT];
    let mut at = 0;
    while at < COUNT {
        all[at] = elf::hash(FUNCTIONS[at].0.as_bytes());
        at += 1;
    }
    all
}

/// Addresses in libc that have no function here; see [`WANTED`].
static FOUND: [AtomicU64; WANTED.len()] = [const { AtomicU64::new(0) }; WANTED.len()];

/// What else of libc is used.
#[derive(Clone, Copy)]
pub enum Wanted {
    Iterate,
    Errno,
    Environ,
    Malloc,
    Realloc,
    Free,
    Sort,
    Stdout,
    CloseStream,
}

const WANTED: [&str; 9] = [
    "dl_iterate_phdr",
    "__errno_location",
    "environ",
    "malloc",
    "realloc",
    "free",
    "qsort",
    "_IO_2_1_stdout_",
    "fclose",
];

/// True from the start on, if this way was taken.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// So many calls look for new objects. dlopen(3) goes on in libc, which does not tell when it returns; a program that has
/// loaded a library asks for its functions (dlsym(3)), which looks again.
static LOOKS: AtomicU32 = AtomicU32::new(0);
const LOOKS_MAX: u32 = 1000;

/// How many objects the loader had loaded at the beginning of the last walk through them, and of the last one that passed none by.
static SEEN: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);

/// The first error of a walk.
static FAILED: AtomicI32 = AtomicI32::new(0);

/// One walk through the objects.
#[derive(Default)]
struct Walk {
    /// How many the loader has loaded.
    loaded: u64,
    /// The loader is still at work on one, which was passed by.
    is_partial: bool,
}

/// What dl_iterate_phdr(3) says of an object.
#[repr(C)]
struct Info {
    base: u64,
    name: u64,
    headers: u64,
    count: u16,
    loaded: u64,
}

/// True if this process sees the volume by symbols alone.
pub fn is_on() -> bool {
    IS_ON.load(SeqCst)
}

/// The address of something of libc's; 0 if it has none.
pub fn found(what: Wanted) -> u64 {
    FOUND.get(what as usize).map_or(0, |found| found.load(SeqCst))
}

/// Puts the functions here before those of libc; true if this could be done for stdio, too. `Err` with a negative errno.
pub fn start() -> Result<bool, i64> {
    let debug = loader().ok_or(error(libc::ENOENT))?;
    // struct r_debug: the version, then the first of the list of struct link_map: base, name, dynamic, next.
    let mut map: u64 = host::read(debug + 8);
    let iterate = elf::hash(WANTED[0].as_bytes());
    while map != 0 && found(Wanted::Iterate) == 0 {
        let name = host::string(host::read(map + 8), usize::MAX);
        if rewrite::is_libc(name) {
            let base: u64 = host::read(map);
            let (headers, count) = (base + host::read::<u64>(base + 32), host::read::<u16>(base + 56));
            if let Some(at) =
                Object::of(base, headers, count.into()).and_then(|object| object.find(WANTED[0].as_bytes(), iterate))
            {
                FOUND[0].store(at, SeqCst);
            }
        }
        map = host::read(map + 24);
    }
    if found(Wanted::Iterate) == 0 {
        return Err(error(libc::ENOENT));
    }
    iterate_over(look_up, &mut Walk::default());
    let needed = [Wanted::Errno, Wanted::Environ, Wanted::Malloc, Wanted::Realloc, Wanted::Free, Wanted::Sort];
    if needed.into_iter().any(|what| found(what) == 0) || real("open") == 0 {
        return Err(error(libc::ENOENT));
    }
    walk();
    match FAILED.load(SeqCst) {
        0 => {}
        failed => return Err(i64::from(failed)),
    }
    IS_ON.store(true, SeqCst);
    Ok(stdio::start())
}

/// The loader's list of objects.
fn loader() -> Option<u64> {
    let mut vector = [0u64; VECTOR_BYTES / 8];
    let fd = call(libc::SYS_open, c"/proc/self/auxv".as_ptr() as u64, (libc::O_RDONLY | libc::O_CLOEXEC) as u64, 0);
    call(libc::SYS_read, fd as u64, vector.as_mut_ptr() as u64, VECTOR_BYTES as u64);
    host::close(fd as i32);
    let value = |kind: u64| vector.chunks_exact(2).find(|pair| pair[0] == kind).map_or(0, |pair| pair[1]);
    let loader = Object::loader(value(libc::AT_BASE), value(libc::AT_PHDR))?;
    loader.find(b"_r_debug", elf::hash(b"_r_debug"))
}

/// A function that dl_iterate_phdr(3) calls for each object.
type Each = extern "C" fn(*const Info, u64, &mut Walk) -> i32;

/// Looks at each object, in the loader's order and with its lock, which one thread at a time has.
fn iterate_over(each: Each, walk: &mut Walk) {
    let iterate = found(Wanted::Iterate);
    // SAFETY: libc's function has this type.
    let iterate: extern "C" fn(Each, &mut Walk) -> i32 = unsafe { core::mem::transmute(iterate) };
    iterate(each, walk);
}

/// The object, and its name.
fn object(info: *const Info) -> Option<(Object, &'static [u8])> {
    // SAFETY: libc gives an address of its own for the length of this call.
    let info = unsafe { &*info };
    let name = if info.name == 0 { b"" } else { host::string(info.name, usize::MAX) };
    Object::of(info.base, info.headers, info.count.into()).map(|object| (object, name))
}

/// Notes what of [`FUNCTIONS`] and [`WANTED`] an object defines.
extern "C" fn look_up(info: *const Info, _: u64, _: &mut Walk) -> i32 {
    let Some((object, name)) = object(info) else { return 0 };
    if object.dynamic == own_dynamic() {
        return 0;
    }
    let is_libc = rewrite::is_libc(name);
    for ((function, hash), known) in FUNCTIONS.iter().zip(&HASHES).zip(&KNOWN) {
        if known.real.load(SeqCst) != 0 {
            continue;
        }
        match object.find(function.0.as_bytes(), *hash) {
            Some(address) if is_libc => known.real.store(address, SeqCst),
            Some(_) => known.is_others.store(true, SeqCst),
            None => {}
        }
    }
    for (name, found) in WANTED.iter().zip(&FOUND) {
        // Memory is given and taken by the functions that the program uses, whosever they are.
        if found.load(SeqCst) == 0
            && let Some(address) = object.find(name.as_bytes(), elf::hash(name.as_bytes()))
        {
            found.store(address, SeqCst);
        }
    }
    0
}

/// Puts addresses of functions here where an object keeps those of libc's.
extern "C" fn put_in_place(info: *const Info, _: u64, walk: &mut Walk) -> i32 {
    count(info, 0, walk);
    let Some((object, name)) = object(info) else { return 0 };
    if object.dynamic == own_dynamic() || rewrite::is_libc(name) {
        return 0;
    }
    let mut place = Place::new(object.sealed);
    object.references(|name, at| {
        if let Some(index) = index_of(name)
            && let Some(known) = KNOWN.get(index)
            && known.real.load(SeqCst) != 0
            && !known.is_others.load(SeqCst)
        {
            place.put(at, entry::stub(index));
        }
    });
    walk.is_partial |= place.is_under_way;
    place.end();
    0
}

/// Where addresses are put down in an object: some of it is read-only, and becomes so again.
struct Place {
    sealed: (u64, u64),
    /// Whether it was looked at, and what came of it.
    is_done: Option<bool>,
    /// The loader is still at work on the object.
    is_under_way: bool,
    is_open: bool,
}

impl Place {
    fn new(sealed: (u64, u64)) -> Place {
        Place { sealed, is_done: None, is_under_way: false, is_open: false }
    }

    fn put(&mut self, at: u64, value: u64) {
        if host::read::<u64>(at) == value || !self.is_done() {
            return;
        }
        let is_sealed = (self.sealed.0..self.sealed.1).contains(&at);
        if is_sealed && !self.is_open {
            if !self.protect(libc::PROT_READ | libc::PROT_WRITE) {
                return;
            }
            self.is_open = true;
        }
        host::write(at, value);
    }

    /// True if the loader has put all addresses of the object down. It makes the object's part read-only as the last thing. Of an object
    /// without such a part it is known at the start only.
    fn is_done(&mut self) -> bool {
        if let Some(is_done) = self.is_done {
            return is_done;
        }
        let has_part = self.sealed.0 < self.sealed.1;
        self.is_under_way = is_on() && has_part && rewrite::is_writable(self.sealed.0);
        let is_done = !is_on() || has_part && !self.is_under_way;
        self.is_done = Some(is_done);
        is_done
    }

    fn end(self) {
        if self.is_open {
            self.protect(libc::PROT_READ);
        }
    }

    fn protect(&self, protection: i32) -> bool {
        let result = call(libc::SYS_mprotect, self.sealed.0, self.sealed.1 - self.sealed.0, protection as u64);
        if result < 0 {
            FAILED.store(result as i32, SeqCst);
        }
        result >= 0
    }
}

/// Where this library's own table for the loader lies.
fn own_dynamic() -> u64 {
    let at: u64;
    // SAFETY: an address is taken; the linker defines the name.
    unsafe { core::arch::asm!("lea {}, [rip + _DYNAMIC]", out(reg) at, options(nomem, nostack, preserves_flags)) };
    at
}

/// The number of a function by its name.
fn index_of(name: &[u8]) -> Option<usize> {
    let hash = elf::hash(name);
    let is_it = |index: &usize| FUNCTIONS.get(*index).is_some_and(|function| function.0.as_bytes() == name);
    (0..COUNT).filter(|index| HASHES.get(*index) == Some(&hash)).find(is_it)
}

/// The address of libc's own function; 0 if it has none.
fn real(name: &str) -> u64 {
    index_of(name.as_bytes()).map_or(0, real_of)
}

fn real_of(index: usize) -> u64 {
    KNOWN.get(index).map_or(0, |known| known.real.load(SeqCst))
}

/// A library is about to be loaded, or may have been.
fn may_be_more() {
    LOOKS.store(LOOKS_MAX, SeqCst);
}

/// Puts addresses down in all objects.
fn walk() {
    let mut walk = Walk::default();
    iterate_over(put_in_place, &mut walk);
    SEEN.store(walk.loaded, SeqCst);
    if !walk.is_partial {
        DONE.store(walk.loaded, SeqCst);
    }
}

/// How many objects the loader has loaded, those that have gone among them.
fn loaded() -> u64 {
    let mut walk = Walk::default();
    iterate_over(count, &mut walk);
    walk.loaded
}

/// Looks through objects that have come since the last walk, if any may have.
fn look_again() {
    if LOOKS.load(SeqCst) == 0 {
        return;
    }
    LOOKS.fetch_update(SeqCst, SeqCst, |looks| looks.checked_sub(1)).ok();
    if loaded() != SEEN.load(SeqCst) {
        walk();
    }
}

/// Looks through all objects that have come, for a thread that is about to call one: what another thread has only begun to do counts
/// for nothing.
fn look_through() {
    if loaded() != DONE.load(SeqCst) {
        walk();
    }
}

/// Notes how many objects there have been, and ends.
extern "C" fn count(info: *const Info, _: u64, walk: &mut Walk) -> i32 {
    // SAFETY: as of `object`.
    walk.loaded = unsafe { &*info }.loaded;
    1
}

/// errno of this thread.
fn set_errno(errno: i32) {
    let location = found(Wanted::Errno);
    // SAFETY: libc's function has this type, and gives the address of this thread's errno.
    unsafe {
        let location: extern "C" fn() -> *mut i32 = core::mem::transmute(location);
        *location() = errno;
    }
}

fn errno() -> i32 {
    let location = found(Wanted::Errno);
    // SAFETY: as of `set_errno`.
    unsafe {
        let location: extern "C" fn() -> *mut i32 = core::mem::transmute(location);
        *location()
    }
}

/// Calls a function of the host with up to six arguments.
fn call_host(function: u64, args: [u64; 6]) -> u64 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the address is that of a function of libc, or one that the host has named for a call, and its arguments are
    // those that it takes; more than it takes change nothing with this calling convention.
    unsafe {
        let function: extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64 = core::mem::transmute(function);
        function(a, b, c, d, e, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_there_once_and_found() {
        const { assert!(COUNT > 200) };
        for (index, (name, _)) in FUNCTIONS.iter().enumerate() {
            assert_eq!(index_of(name.as_bytes()), Some(index), "{name}");
        }
        assert_eq!(index_of(b"printf"), None);
    }
}
