//! How instructions that make system calls look, and the code that replaces them.
//!
//! Pure: bytes in, bytes out. Three forms are known, of glibc 2.31 to 2.41. In two of them, the instruction of five bytes right
//! before is a load of the number, or a move to or from the stack: it becomes a jump to the thunk, which does it instead.
//! The `syscall` stays where it is. Calls that are the kernel's are made there, so that what libc knows about this
//! address (unwinding, cancellation) stays true, and a jump to the instruction itself still works. In the third, the result
//! is compared right after: both instructions become the jump, and the comparison moves. Compilers emit no jump to that
//! comparison, because its flags mean nothing without the call.

/// Bytes of one thunk: the code outside of the text to which a site jumps.
pub const THUNK_BYTES: usize = 64;

/// Bytes before a thunk's return at which the call is made as it was.
pub const PLAIN_BEFORE: usize = 5;

/// Bytes before a thunk's return at which its `syscall` for a child on the parent's memory lies.
pub const SHARING_BEFORE: usize = 25;

/// Bytes of a jump to anywhere within 2 GiB.
const JUMP_BYTES: usize = 5;

/// A place to be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Where the bytes to be replaced begin.
    pub at: usize,
    /// How many bytes are replaced by a jump and nops.
    pub replaced: usize,
    /// Where the code goes on.
    pub back: usize,
    /// How it looks.
    pub form: Form,
}

/// What the bytes that become a jump did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Before the call, they loaded its number.
    Number,
    /// Before the call, they moved a register to the stack, or the number from it.
    Move,
    /// They were the call, and a comparison of its result.
    Compared,
}

/// What the text says at a `syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It can be rewritten.
    Site(Site),
    /// It makes a call that this library never handles.
    Other,
    /// Its form is not known.
    Unknown,
}

/// Looks at the `syscall` of two bytes at `at`. `handles` says which numbers matter.
pub fn look(text: &[u8], at: usize, handles: impl Fn(u32) -> bool) -> Found {
    let loaded = number_before(text, at);
    if let Some(number) = loaded
        && !handles(number)
    {
        return Found::Other;
    }
    // With a prefix, the load is of another register, unless the prefix belongs to the instruction before: leave it then.
    let prefixed = at >= 6 && (0x40..0x50).contains(&text[at - 6]);
    let before = |form| Found::Site(Site { at: at - JUMP_BYTES, replaced: JUMP_BYTES, back: at + 2, form });
    if loaded.is_some() && !prefixed {
        return before(Form::Number);
    }
    if moves_before(text, at) {
        return before(Form::Move);
    }
    match comparison(&text[at + 2..]) {
        Some(bytes) => Found::Site(Site { at, replaced: 2 + bytes, back: at + 2 + bytes, form: Form::Compared }),
        None => Found::Unknown,
    }
}

/// True if the instruction right before is `mov rax, [rsp + x]` or `mov [rsp + x], r11`, as glibc 2.41 has them.
fn moves_before(text: &[u8], at: usize) -> bool {
    let before = at.checked_sub(JUMP_BYTES).and_then(|from| text.get(from..at));
    matches!(before, Some([0x48, 0x8b, 0x44, 0x24, _] | [0x4c, 0x89, 0x5c, 0x24, _]))
}

/// The number that `mov eax, imm32` right before loads.
fn number_before(text: &[u8], at: usize) -> Option<u32> {
    let load = text.get(at.checked_sub(5)?..at)?;
    let number = u32::from_le_bytes([load[1], load[2], load[3], load[4]]);
    (load[0] == 0xb8 && number < 1024).then_some(number)
}

/// Length of a comparison of the result with a small negative number.
fn comparison(after: &[u8]) -> Option<usize> {
    match after {
        [0x48, 0x3d, 0 | 1, 0xf0, 0xff, 0xff, ..] => Some(6),
        [0x3d, 0 | 1, 0xf0, 0xff, 0xff, ..] => Some(5),
        [0x48, 0x83, 0xf8, ..] if after.len() > 3 => Some(4),
        _ => None,
    }
}

/// Where pairs of bytes that are a `syscall` begin, from `from` on; `None` at the end.
pub fn next_pair(text: &[u8], from: usize) -> Option<usize> {
    use core::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    let mut at = from;
    while at + 17 <= text.len() {
        // SAFETY: both loads lie within the text, as the condition says, and need no alignment; every x86-64 has SSE2.
        let hits = unsafe {
            let here = _mm_loadu_si128(text.as_ptr().add(at).cast());
            let next = _mm_loadu_si128(text.as_ptr().add(at + 1).cast());
            let both =
                _mm_and_si128(_mm_cmpeq_epi8(here, _mm_set1_epi8(0x0f)), _mm_cmpeq_epi8(next, _mm_set1_epi8(0x05)));
            _mm_movemask_epi8(both)
        };
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize);
        }
        at += 16;
    }
    (at..text.len().saturating_sub(1)).find(|at| text[*at] == 0x0f && text[at + 1] == 0x05)
}

/// Bytes that are put down one after the other.
struct Code<'a> {
    bytes: &'a mut [u8; THUNK_BYTES],
    length: usize,
    address: u64,
}

impl Code<'_> {
    fn put(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = *byte;
            }
            self.length += 1;
        }
    }

    /// An instruction that ends with the distance to an address.
    fn put_to(&mut self, instruction: &[u8], to: u64) {
        self.put(instruction);
        let end = self.address + self.length as u64 + 4;
        self.put(&(to.wrapping_sub(end) as i32).to_le_bytes());
    }
}

/// Addresses of what thunks need; all lie within 2 GiB of each other.
#[derive(Clone, Copy)]
pub struct Around {
    /// Where the thunk will lie.
    pub thunk: u64,
    /// Where the text begins.
    pub text: u64,
    /// Where the address of the way into this library lies.
    pub entry: u64,
    /// Where the address of the way back into it, after a shared child, lies.
    pub after: u64,
}

/// The code of a site's thunk. The entry finds the address of the return in rcx, which a system call destroys anyway.
pub fn thunk(text: &[u8], site: &Site, around: &Around) -> [u8; THUNK_BYTES] {
    let mut bytes = [0x90; THUNK_BYTES];
    let mut code = Code { bytes: &mut bytes, length: 0, address: around.thunk };
    if site.form != Form::Compared {
        code.put(&text[site.at..site.at + site.replaced]);
    }
    // lea rcx, [return]: behind this instruction, the jump, and the two calls.
    let here = around.thunk + code.length as u64;
    let back = here + 7 + 6 + SHARING_BEFORE as u64;
    code.put_to(&[0x48, 0x8d, 0x0d], back);
    code.put_to(&[0xff, 0x25], around.entry); // jmp [entry]
    code.put(&[0x0f, 0x05, 0x48, 0x85, 0xc0, 0x74, 18]); // syscall; test rax, rax; jz return
    code.put_to(&[0x48, 0x8d, 0x0d], back);
    code.put_to(&[0xff, 0x25], around.after); // jmp [after]
    // The call as it was; then the return: the comparison that the jump has replaced, and the jump back.
    if site.form == Form::Compared {
        code.put(&[0x0f, 0x05, 0x0f, 0x1f, 0x00]); // syscall; a nop of three bytes
        code.put(&text[site.at + 2..site.at + site.replaced]);
    } else {
        code.put_to(&[0xe9], around.text + (site.at + site.replaced) as u64); // jmp to the site's own
    }
    code.put_to(&[0xe9], around.text + site.back as u64);
    bytes
}

/// The bytes that a site gets: a jump to its thunk, then nops.
pub fn jump(site: &Site, around: &Around) -> [u8; 8] {
    let mut bytes = [0x90; 8];
    let end = around.text + (site.at + JUMP_BYTES) as u64;
    bytes[0] = 0xe9;
    bytes[1..JUMP_BYTES].copy_from_slice(&(around.thunk.wrapping_sub(end) as i32).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(before: &[u8], after: &[u8]) -> Found {
        let mut text = before.to_vec();
        text.extend([0x0f, 0x05]);
        text.extend(after);
        look(&text, before.len(), |number| number != 202)
    }

    #[test]
    fn forms_of_glibc_are_known() {
        let site = Site { at: 3, replaced: 5, back: 10, form: Form::Number };
        assert_eq!(found(&[0x31, 0xff, 0x90, 0xb8, 1, 1, 0, 0], &[0xc3, 0x90]), Found::Site(site));
        let compared = |replaced, back| Found::Site(Site { at: 2, replaced, back, form: Form::Compared });
        assert_eq!(found(&[0x31, 0xc0], &[0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0x77]), compared(8, 10));
        assert_eq!(found(&[0x31, 0xc0], &[0x48, 0x3d, 1, 0xf0, 0xff, 0xff, 0x77]), compared(8, 10));
        assert_eq!(found(&[0x31, 0xc0], &[0x3d, 0, 0xf0, 0xff, 0xff, 0x77]), compared(7, 9));
        assert_eq!(found(&[0x31, 0xc0], &[0x48, 0x83, 0xf8, 0xfc, 0x74]), compared(6, 8));
        let moved = Found::Site(Site { at: 1, replaced: 5, back: 8, form: Form::Move });
        assert_eq!(found(&[0x90, 0x48, 0x8b, 0x44, 0x24, 0x10], &[0x5b, 0xc3]), moved);
        assert_eq!(found(&[0x90, 0x4c, 0x89, 0x5c, 0x24, 0x08], &[0xc3]), moved);
    }

    #[test]
    fn other_numbers_and_unknown_forms_stay_as_they_are() {
        // futex(2); rt_sigreturn of the restorer (mov rax, 15); a load of r8d; two bytes after which there is nothing.
        assert_eq!(found(&[0xb8, 202, 0, 0, 0], &[0x48, 0x3d, 0, 0xf0, 0xff, 0xff]), Found::Other);
        assert_eq!(found(&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], &[0x0f, 0x1f, 0x80, 0, 0]), Found::Unknown);
        assert_eq!(found(&[0x41, 0xb8, 1, 0, 0, 0], &[0x89, 0xc2]), Found::Unknown);
        assert_eq!(found(&[], &[]), Found::Unknown);
    }

    #[test]
    fn pairs_are_found_wherever_they_lie() {
        for at in 0..70 {
            let mut text = [0x0fu8; 72];
            text[at + 1] = 0x05;
            assert_eq!(next_pair(&text, 0), Some(at));
            assert_eq!(next_pair(&text, at + 1), None);
        }
        assert_eq!(next_pair(&[0x0f], 0), None);
    }

    fn number_at(code: &[u8], at: usize) -> i64 {
        i64::from(i32::from_le_bytes(code[at..at + 4].try_into().expect("four bytes")))
    }

    #[test]
    fn a_thunk_has_its_calls_where_the_entry_looks_for_them() {
        let text = [0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0x77];
        let around = Around { thunk: 0x10_0000, text: 0x20_0000, entry: 0xf_f000, after: 0xf_f008 };
        for form in [Form::Compared, Form::Move] {
            let site = match form {
                Form::Compared => Site { at: 2, replaced: 8, back: 10, form },
                _ => Site { at: 0, replaced: 5, back: 10, form },
            };
            let code = thunk(&text, &site, &around);
            let start = if form == Form::Compared { 0 } else { 5 };
            assert_eq!(code[..start], text[..start]);
            let back = start + 7 + number_at(&code, start + 3) as usize;
            let address = |place: usize| (around.thunk + place as u64).wrapping_add_signed(number_at(&code, place - 4));
            assert_eq!(code[back - SHARING_BEFORE..][..2], [0x0f, 0x05]);
            // The short jump past the way back ends at the return.
            assert_eq!(back - SHARING_BEFORE + 7 + usize::from(code[back - SHARING_BEFORE + 6]), back);
            let moved = match form {
                Form::Compared => {
                    assert_eq!(code[back - PLAIN_BEFORE..][..2], [0x0f, 0x05]);
                    assert_eq!(code[back..back + 6], text[4..10]);
                    6
                }
                _ => {
                    assert_eq!((code[back - PLAIN_BEFORE], address(back)), (0xe9, around.text + 5));
                    0
                }
            };
            let ends = back + moved + JUMP_BYTES;
            assert_eq!((code[ends - JUMP_BYTES], address(ends)), (0xe9, around.text + 10));
        }
        let site = Site { at: 2, replaced: 8, back: 10, form: Form::Compared };
        assert_eq!(jump(&site, &around)[0], 0xe9);
        let to = i32::from_le_bytes(jump(&site, &around)[1..5].try_into().expect("four bytes"));
        assert_eq!((around.text + 7).wrapping_add(to as i64 as u64), around.thunk);
    }
}
