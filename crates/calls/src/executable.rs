//! Which programs make system calls past libc, so that the library sees none of them: the file says it (elf(5)).

/// Why the library does not see a program's system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// It has no loader that would load the library.
    Static,
    /// It is written in Go: Go's own library makes system calls by itself.
    Go,
}

impl Hidden {
    /// What the program is, to stand behind its path.
    pub fn words(self) -> &'static str {
        match self {
            Hidden::Static => "is statically linked",
            Hidden::Go => "is a Go program, which makes system calls past libc",
        }
    }
}

/// Program headers that are looked at; the kernel takes no more than fit into a page.
const HEADERS_MAX: u64 = 73;
const HEADER_BYTES: usize = 56;

/// Kinds of program headers: the loader's path, a note.
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// A note's header and its owner's name, as Go's linker writes them: length of the name, length of the description, kind (4).
const NOTE_BYTES: usize = 16;

/// Looks at a program of 64 bits. `read_at` fills the bytes from an offset of the file, or says `false`. `None` for programs that
/// the library sees, and for a file that is no such program or cannot be read: execve(2) tells the caller why it fails.
pub fn hidden(mut read_at: impl FnMut(u64, &mut [u8]) -> bool) -> Option<Hidden> {
    let mut head = [0; 64];
    if !read_at(0, &mut head) || !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (offset, size) = (u64_at(&head, 32)?, u64::from(u16_at(&head, 54)?));
    let mut has_loader = false;
    for number in 0..u64::from(u16_at(&head, 56)?).min(HEADERS_MAX) {
        let mut header = [0; HEADER_BYTES];
        if !read_at(offset.checked_add(number * size)?, &mut header) {
            return None;
        }
        match u32_at(&header, 0)? {
            PT_INTERP => has_loader = true,
            PT_NOTE => {
                let mut note = [0; NOTE_BYTES];
                let is_read = read_at(u64_at(&header, 8)?, &mut note);
                if is_read && u32_at(&note, 0) == Some(4) && u32_at(&note, 8) == Some(4) && note.ends_with(b"Go\0\0") {
                    return Some(Hidden::Go);
                }
            }
            _ => {}
        }
    }
    (!has_loader).then_some(Hidden::Static)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    /// A program with these headers (kind, offset of its part of the file), and a note of this owner at 1,000.
    fn program(headers: &[(u32, u64)], owner: &[u8; 4]) -> Vec<u8> {
        let mut file = std::vec![0; 2048];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
        for (at, (kind, offset)) in headers.iter().enumerate() {
            let at = 64 + 56 * at;
            file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            file[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
        }
        for (at, value) in [(1000, 4u32), (1004, 83), (1008, 4)] {
            file[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        file[1012..1016].copy_from_slice(owner);
        file
    }

    fn seen(file: &[u8]) -> Option<Hidden> {
        hidden(|offset, to| {
            let from = usize::try_from(offset).ok().and_then(|at| file.get(at..)?.get(..to.len()));
            from.map(|from| to.copy_from_slice(from)).is_some()
        })
    }

    #[test]
    fn programs_without_a_loader_and_those_of_go_are_hidden() {
        let (load, loader, note) = ((1, 0), (PT_INTERP, 500), (PT_NOTE, 1000));
        assert_eq!(seen(&program(&[load, loader, note], b"GNU\0")), None);
        assert_eq!(seen(&program(&[load, note], b"GNU\0")), Some(Hidden::Static));
        assert_eq!(seen(&program(&[load, loader, note], b"Go\0\0")), Some(Hidden::Go));
        assert_eq!(seen(&program(&[note, load], b"Go\0\0")), Some(Hidden::Go));
    }

    #[test]
    fn no_file_is_read_beyond_its_end() {
        let whole = program(&[(1, 0), (PT_NOTE, u64::MAX)], b"GNU\0");
        assert_eq!(seen(&whole), Some(Hidden::Static), "a note that is not there");
        for end in 0..64 + 2 * 56 {
            assert_eq!(seen(&whole[..end]), None, "{end} bytes");
        }
        let mut far = whole;
        far[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(seen(&far), None);
        assert_eq!(seen(b"#!/bin/sh\n"), None);
    }
}
