//! What the letters of a path say, without a look at any file.
//!
//! Pure. `..` is taken lexically only to tell a path into the volume from one out of it; below the volume's root, the agent
//! walks it.

/// The part of an absolute path below `at`, with its slash; empty for `at` itself.
pub fn below<'a>(at: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(at)?;
    (rest.is_empty() || rest.first() == Some(&b'/')).then_some(rest)
}

/// True if a walk along the parts of the path gets above its beginning at some point.
pub fn climbs(path: &[u8]) -> bool {
    let mut depth = 0i32;
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return true;
        }
    }
    false
}

/// True if an absolute path has parts that change under [`reduce`].
pub fn is_reducible(path: &[u8]) -> bool {
    let parts = path.strip_prefix(b"/").unwrap_or(path).split(|byte| *byte == b'/');
    parts.into_iter().any(|part| matches!(part, b"" | b"." | b".."))
}

/// The absolute path without empty parts, `.` and `..`, into `to`; its length, or `None` if there is no room. A slash at the
/// end stays.
pub fn reduce(path: &[u8], to: &mut [u8]) -> Option<usize> {
    let mut length = 0;
    let mut directory = false;
    for part in path.split(|byte| *byte == b'/') {
        directory = matches!(part, b"" | b"." | b"..");
        match part {
            b"" | b"." => {}
            b".." => length = to.get(..length)?.iter().rposition(|byte| *byte == b'/').unwrap_or(0),
            _ => {
                *to.get_mut(length)? = b'/';
                to.get_mut(length + 1..length + 1 + part.len())?.copy_from_slice(part);
                length += 1 + part.len();
            }
        }
    }
    if directory || length == 0 {
        *to.get_mut(length)? = b'/';
        length += 1;
    }
    Some(length)
}

/// Puts texts one behind the other, and a NUL that is not counted; `None` if there is no room.
pub fn join(to: &mut [u8], parts: &[&[u8]]) -> Option<usize> {
    let mut length = 0;
    for part in parts {
        to.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    *to.get_mut(length)? = 0;
    Some(length)
}

/// A descriptor that a path of procfs, or of /dev, names, and the rest of the path behind it. `pid` is this process.
pub fn descriptor(path: &[u8], pid: u32) -> Option<(i32, &[u8])> {
    match path {
        b"/dev/stdin" => return Some((0, b"")),
        b"/dev/stdout" => return Some((1, b"")),
        b"/dev/stderr" => return Some((2, b"")),
        _ => {}
    }
    let rest = path.strip_prefix(b"/dev/fd/").or_else(|| own_proc(path, pid)?.strip_prefix(b"fd/"))?;
    let (fd, rest) = number(rest)?;
    (rest.is_empty() || rest.first() == Some(&b'/')).then_some((i32::try_from(fd).ok()?, rest))
}

/// True for the path by which a process finds its program.
pub fn is_own_program(path: &[u8], pid: u32) -> bool {
    own_proc(path, pid) == Some(b"exe")
}

/// The part of the path in this process's directory of procfs.
fn own_proc(path: &[u8], pid: u32) -> Option<&[u8]> {
    let rest = path.strip_prefix(b"/proc/")?;
    if let Some(rest) = rest.strip_prefix(b"self/").or_else(|| rest.strip_prefix(b"thread-self/")) {
        return Some(rest);
    }
    let (process, rest) = number(rest)?;
    if process == pid { rest.strip_prefix(b"/") } else { None }
}

/// The path of a working directory, empty if it is not known, and its descriptor: `N:/path`, or `/path` alone.
pub fn working_directory(text: &[u8]) -> Option<(&[u8], Option<i32>)> {
    let (path, fd) = match number(text) {
        Some((fd, rest)) => (rest.strip_prefix(b":")?, Some(i32::try_from(fd).ok()?)),
        None => (text, None),
    };
    (path.first() == Some(&b'/') || path.is_empty() && fd.is_some()).then_some((path, fd))
}

/// The decimal number at the beginning, and the rest.
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at_checked(digits)?;
    if number.is_empty() {
        return None;
    }
    let mut value = 0u32;
    for digit in number {
        value = value.checked_mul(10)?.checked_add(u32::from(digit - b'0'))?;
    }
    Some((value, rest))
}

/// The interpreter and its one argument in the first bytes of a script, as execve(2) reads them.
pub fn interpreter(head: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let (program, argument) = line.split_at_checked(end)?;
    let argument = argument.trim_ascii();
    (!program.is_empty()).then_some((program, (!argument.is_empty()).then_some(argument)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced(path: &str) -> String {
        let mut to = [0; 64];
        let length = reduce(path.as_bytes(), &mut to).expect("there is room");
        String::from_utf8(to[..length].to_vec()).expect("text")
    }

    #[test]
    fn a_path_is_below_only_at_a_boundary() {
        assert_eq!(below(b"/aze", b"/aze"), Some(&b""[..]));
        assert_eq!(below(b"/aze", b"/aze/a//b/"), Some(&b"/a//b/"[..]));
        assert_eq!(below(b"/aze", b"/azekura/a"), None);
        assert_eq!(below(b"/aze", b"/az"), None);
    }

    #[test]
    fn climbing_is_seen_at_the_lowest_point() {
        assert!(climbs(b"..") && climbs(b"/a/../..") && climbs(b"a/../../b/c") && climbs(b"./../a"));
        assert!(!climbs(b"") && !climbs(b"/a/..") && !climbs(b"a/b/../../c") && !climbs(b"..a") && !climbs(b"a/..."));
    }

    #[test]
    fn reducing_is_lexical() {
        assert_eq!(reduced("/aze/../etc/passwd"), "/etc/passwd");
        assert_eq!(reduced("//aze/./a//b/"), "/aze/a/b/");
        assert_eq!(reduced("/a/b/.."), "/a/");
        assert_eq!(reduced("/../.."), "/");
        assert_eq!(reduced("/"), "/");
        assert!(is_reducible(b"//aze") && is_reducible(b"/a/../b") && is_reducible(b"/a/"));
        assert!(!is_reducible(b"/a/b") && !is_reducible(b"/.a/..b"));
        assert_eq!(reduce(b"/abc", &mut [0; 3]), None);
    }

    #[test]
    fn descriptors_are_known_by_their_names() {
        assert_eq!(descriptor(b"/proc/self/fd/12", 7), Some((12, &b""[..])));
        assert_eq!(descriptor(b"/proc/7/fd/3/a/b", 7), Some((3, &b"/a/b"[..])));
        assert_eq!(descriptor(b"/dev/fd/0", 7), Some((0, &b""[..])));
        assert_eq!(descriptor(b"/dev/stdout", 7), Some((1, &b""[..])));
        let others: [&[u8]; 6] = [
            b"/proc/8/fd/3",
            b"/proc/self/fd/",
            b"/proc/self/fd/3x",
            b"/proc/self/fdinfo/3",
            b"/proc/fd/3",
            b"/dev/fd",
        ];
        assert!(others.iter().all(|path| descriptor(path, 7).is_none()));
        assert_eq!(descriptor(b"/dev/fd/99999999999", 7), None);
        assert!(is_own_program(b"/proc/self/exe", 7) && is_own_program(b"/proc/7/exe", 7));
        assert!(!is_own_program(b"/proc/8/exe", 7) && !is_own_program(b"/proc/self/exe2", 7));
    }

    #[test]
    fn a_working_directory_has_a_path_or_a_descriptor() {
        assert_eq!(working_directory(b"/a/b"), Some((&b"/a/b"[..], None)));
        assert_eq!(working_directory(b"65000:/a"), Some((&b"/a"[..], Some(65_000))));
        assert_eq!(working_directory(b"7:"), Some((&b""[..], Some(7))));
        for text in [&b""[..], b"a", b"7", b"7:a", b":/a", b"99999999999:/a"] {
            assert_eq!(working_directory(text), None);
        }
    }

    #[test]
    fn an_interpreter_has_one_argument() {
        assert_eq!(interpreter(b"#!/bin/sh\necho"), Some((&b"/bin/sh"[..], None)));
        assert_eq!(interpreter(b"#! /usr/bin/env -S a b \n"), Some((&b"/usr/bin/env"[..], Some(&b"-S a b"[..]))));
        assert_eq!(interpreter(b"#!\n"), None);
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn joining_needs_room_for_the_end() {
        let mut to = [1; 6];
        assert_eq!(join(&mut to, &[b"ab", b"cde"]), Some(5));
        assert_eq!(&to, b"abcde\0");
        assert_eq!(join(&mut to, &[b"ab", b"cdef"]), None);
    }
}
