//! Rewriting of the text of libc and the loader, at the start, while the process has one thread.
//!
//! It finds their text in `/proc/self/maps`, makes it writable for a moment, and puts jumps to thunks where they make system
//! calls that this library looks at. Nothing else of the process is changed.

use crate::entry;
use crate::host::{self, call, error, raw};
use crate::settings;
use crate::sites::{self, Around, Found, THUNK_BYTES};
use crate::table;

/// Bytes of `/proc/self/maps` that are read.
const MAPS_BYTES_MAX: usize = 1 << 20;

/// Bytes of thunks for one text; 1,023 sites. glibc 2.36 has 526 calls in all.
const THUNKS_BYTES: usize = 64 << 10;

/// The first thunk's place: before it, two addresses.
const HEAD_BYTES: usize = 16;

/// How far from a text its thunks are tried, in steps: a jump reaches 2 GiB.
const STEPS_MAX: u64 = 1500;
const STEP_BYTES: u64 = 1 << 20;

/// Beginnings of the names of files whose text is rewritten: glibc's, with its parts of before 2.34.
const NAMES: [&[u8]; 9] = [
    b"libc.so.6",
    b"libc-2.",
    b"ld-linux-x86-64.so.2",
    b"ld-2.",
    b"libpthread.so.0",
    b"libpthread-2.",
    b"librt.so.1",
    b"librt-2.",
    b"libdl",
];

/// The counts of a start.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Texts that were rewritten.
    pub texts: u64,
    /// Sites that come to this library now.
    pub rewritten: u64,
    /// Sites of calls that it does not look at.
    pub others: u64,
    /// Sites of an unknown form, left alone.
    pub unknown: u64,
}

impl Counts {
    /// True if a libc was found whose calls mostly stay the kernel's. Of glibc 2.31 to 2.41, five of six sites and more are known.
    pub fn are_mostly_unknown(&self) -> bool {
        self.rewritten <= self.unknown
    }
}

/// A mapping of an executable file.
struct Text {
    start: u64,
    end: u64,
}

/// Rewrites the texts that are mapped, and notes where this library lies. `Err` with a negative errno if nothing can be rewritten.
pub fn all() -> Result<Counts, i64> {
    let mut counts = Counts::default();
    let mut failed = error(libc::ENOENT);
    look_through(|text, path| {
        if is_libc(path) {
            match one(&text, &mut counts) {
                Ok(()) => counts.texts += 1,
                Err(errno) => failed = errno,
            }
        }
    })?;
    if counts.texts == 0 { Err(failed) } else { Ok(counts) }
}

/// Notes where this library lies, and rewrites nothing.
pub fn nothing() -> Result<(), i64> {
    look_through(|_, _| {})
}

/// Gives each text with its path; notes where this library lies.
fn look_through(mut each: impl FnMut(Text, &[u8])) -> Result<(), i64> {
    let buffer = host::map(MAPS_BYTES_MAX);
    if buffer == 0 {
        return Err(error(libc::ENOMEM));
    }
    let maps = read_maps(buffer)?;
    let own = entry::enter as *const () as u64;
    let mut lines = maps.split(|byte| *byte == b'\n').filter_map(executable).peekable();
    while let Some((mut text, path)) = lines.next() {
        // Libraries that patch libc, too, leave its text in several mappings; an instruction may lie across two of them.
        while let Some((more, _)) = lines.next_if(|(next, of)| next.start == text.end && *of == path) {
            text.end = more.end;
        }
        if (text.start..text.end).contains(&own) {
            settings::LIBRARY.set(path);
        }
        each(text, path);
    }
    host::unmap(buffer, MAPS_BYTES_MAX);
    Ok(())
}

/// True for the path of libc, or of a part of it.
pub fn is_libc(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    NAMES.iter().any(|known| name.starts_with(known))
}

fn read_maps(buffer: u64) -> Result<&'static [u8], i64> {
    let path = c"/proc/self/maps".as_ptr() as u64;
    let fd = call(libc::SYS_open, path, (libc::O_RDONLY | libc::O_CLOEXEC) as u64, 0);
    if fd < 0 {
        return Err(fd);
    }
    let mut length = 0;
    loop {
        let got = call(libc::SYS_read, fd as u64, buffer + length as u64, (MAPS_BYTES_MAX - length) as u64);
        if got <= 0 {
            break;
        }
        length += got as usize;
    }
    host::close(fd as i32);
    Ok(host::bytes(buffer, length))
}

/// The mapping of a line, if it is executable and has a path: `start-end r-xp offset device inode path`.
fn executable(line: &[u8]) -> Option<(Text, &[u8])> {
    let (text, permissions) = mapping(line)?;
    if permissions.get(2) != Some(&b'x') {
        return None;
    }
    let slash = line.iter().position(|byte| *byte == b'/')?;
    Some((text, line.get(slash..)?))
}

/// The mapping of a line, and its permissions.
fn mapping(line: &[u8]) -> Option<(Text, &[u8])> {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let (range, permissions) = (words.next()?, words.next()?);
    let mut ends = range.split(|byte| *byte == b'-');
    let text = Text { start: hexadecimal(ends.next()?)?, end: hexadecimal(ends.next()?)? };
    (text.start < text.end).then_some((text, permissions))
}

/// True if this process may write to an address, or if the kernel gives no list of mappings.
pub fn is_writable(address: u64) -> bool {
    let buffer = host::map(MAPS_BYTES_MAX);
    if buffer == 0 {
        return true;
    }
    let mut is_writable = true;
    if let Ok(maps) = read_maps(buffer) {
        let mut mappings = maps.split(|byte| *byte == b'\n').filter_map(mapping);
        let found = mappings.find(|(text, _)| (text.start..text.end).contains(&address));
        is_writable = found.is_none_or(|(_, permissions)| permissions.get(1) == Some(&b'w'));
    }
    host::unmap(buffer, MAPS_BYTES_MAX);
    is_writable
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, digit| Some(value << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

/// Rewrites one text.
fn one(text: &Text, counts: &mut Counts) -> Result<(), i64> {
    let length = (text.end - text.start) as usize;
    let bytes = host::bytes(text.start, length);
    let thunks = near(text).ok_or(error(libc::ENOMEM))?;
    host::write(thunks, entry::enter as *const () as u64);
    host::write(thunks + 8, entry::after as *const () as u64);
    let target = writable(text)?;
    let mut used = HEAD_BYTES;
    let mut from = 0;
    while let Some(at) = sites::next_pair(bytes, from) {
        from = at + 2;
        match sites::look(bytes, at, table::handles) {
            Found::Other => counts.others += 1,
            Found::Unknown => counts.unknown += 1,
            Found::Site(_) if used + THUNK_BYTES > THUNKS_BYTES => counts.unknown += 1,
            Found::Site(site) => {
                let thunk = thunks + used as u64;
                let around = Around { thunk, text: text.start, entry: thunks, after: thunks + 8 };
                let code = sites::thunk(bytes, &site, &around);
                host::copy(thunk, code.as_ptr() as u64, code.len());
                let jump = sites::jump(&site, &around);
                host::copy(target.at + site.at as u64, jump.as_ptr() as u64, site.replaced);
                used += THUNK_BYTES;
                from = site.back;
                counts.rewritten += 1;
            }
        }
    }
    protect(thunks, THUNKS_BYTES as u64, libc::PROT_READ | libc::PROT_EXEC)?;
    finish(text, &target)
}

/// Memory for thunks within reach of a text.
fn near(text: &Text) -> Option<u64> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let below = (1..STEPS_MAX).filter_map(|step| text.start.checked_sub(step * STEP_BYTES));
    let above = (1..STEPS_MAX).map(|step| text.end + step * STEP_BYTES);
    for at in below.chain(above) {
        let at = at & !0xfff;
        let mapped = raw(libc::SYS_mmap, [at, THUNKS_BYTES as u64, protection, flags, u64::MAX, 0]);
        if mapped == at as i64 {
            return Some(at);
        }
        // Kernels before 4.17 take the address as a hint.
        if mapped > 0 {
            host::unmap(mapped as u64, THUNKS_BYTES);
        }
    }
    None
}

/// Where the bytes of a text are written.
struct Writable {
    at: u64,
    /// True for a copy, which takes the text's place in the end.
    is_copy: bool,
}

/// Makes the text writable where it lies; where the kernel refuses that, a copy.
fn writable(text: &Text) -> Result<Writable, i64> {
    let length = text.end - text.start;
    if protect(text.start, length, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC).is_ok() {
        return Ok(Writable { at: text.start, is_copy: false });
    }
    let at = host::map(length as usize);
    if at == 0 {
        return Err(error(libc::ENOMEM));
    }
    host::copy(at, text.start, length as usize);
    Ok(Writable { at, is_copy: true })
}

fn finish(text: &Text, target: &Writable) -> Result<(), i64> {
    let length = text.end - text.start;
    protect(target.at, length, libc::PROT_READ | libc::PROT_EXEC)?;
    if target.is_copy {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let moved = raw(libc::SYS_mremap, [target.at, length, length, flags, text.start, 0]);
        if moved < 0 {
            return Err(moved);
        }
    }
    Ok(())
}

fn protect(at: u64, length: u64, protection: i32) -> Result<(), i64> {
    let result = call(libc::SYS_mprotect, at, length, protection as u64);
    if result < 0 { Err(result) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_mappings_of_files_are_found() {
        let line = b"7f00-8f00 r-xp 00026000 08:01 1234                     /usr/lib/x86_64-linux-gnu/libc.so.6";
        let (text, path) = executable(line).expect("a mapping");
        assert_eq!((text.start, text.end, path), (0x7f00, 0x8f00, &b"/usr/lib/x86_64-linux-gnu/libc.so.6"[..]));
        assert!(executable(b"7f00-8f00 r--p 00026000 08:01 1234  /usr/lib/libc.so.6").is_none());
        assert!(executable(b"7f00-8f00 r-xp 00000000 00:00 0  [vdso]").is_none());
        assert!(executable(b"").is_none());
    }

    #[test]
    fn this_process_has_a_libc_whose_sites_are_known() {
        let maps = std::fs::read("/proc/self/maps").expect("maps");
        let texts: Vec<Text> = maps
            .split(|byte| *byte == b'\n')
            .filter_map(executable)
            .filter(|(_, path)| {
                path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b"libc.so.6"))
            })
            .map(|(text, _)| text)
            .collect();
        assert_eq!(texts.len(), 1, "this test runs with glibc");
        let bytes = host::bytes(texts[0].start, (texts[0].end - texts[0].start) as usize);
        let (mut from, mut known, mut unknown) = (0, 0, 0);
        while let Some(at) = sites::next_pair(bytes, from) {
            from = at + 2;
            match sites::look(bytes, at, table::handles) {
                Found::Site(site) => {
                    assert!(site.replaced >= 5 && site.back <= bytes.len() && site.at + site.replaced <= site.back);
                    known += 1;
                }
                Found::Unknown => unknown += 1,
                Found::Other => {}
            }
        }
        assert!(known > 150 && unknown < 60, "{known} known sites, {unknown} unknown ones");
        let counts = |rewritten, unknown| Counts { texts: 1, rewritten, others: 9, unknown };
        assert!(!counts(known, unknown).are_mostly_unknown() && counts(unknown, known).are_mostly_unknown());
        assert!(counts(0, 0).are_mostly_unknown());
    }
}
