//! The host: its kernel and its memory.
//!
//! It alone makes system calls and touches memory that the host has named in one. Nothing here allocates, takes a lock, or
//! goes through the host's libc, whose own system calls end in this library.

use core::arch::asm;

/// Arguments of a system call, as registers hold them.
pub type Args = [u64; 6];

/// Addresses below this are no memory: the kernel maps nothing there (`vm.mmap_min_addr`), and programs pass null.
const ADDRESS_MIN: u64 = 4096;

/// Makes a system call; blocks as the call does. The result is the kernel's: a negative errno for a failure.
pub fn raw(number: i64, args: Args) -> i64 {
    let result: i64;
    // SAFETY: the kernel checks every address that it is given. The memory that it writes is memory that the host, or the
    // caller here, has named for it; registers that the instruction changes are declared.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// A system call with up to three arguments.
pub fn call(number: i64, a: u64, b: u64, c: u64) -> i64 {
    raw(number, [a, b, c, 0, 0, 0])
}

/// True for an address that can be memory at all; the kernel answers others with EFAULT.
pub fn is_memory(address: u64) -> bool {
    (ADDRESS_MIN..1 << 47).contains(&address)
}

/// A negative errno.
pub fn error(errno: i32) -> i64 {
    -i64::from(errno)
}

/// The value that lies at an address of the host.
pub fn read<T: Copy>(address: u64) -> T {
    // SAFETY: the host has given this address to a system call, which would read it, too. An address that is no memory ends
    // the host by SIGSEGV, which docs/semantics.md says.
    unsafe { (address as *const T).read_unaligned() }
}

/// Puts a value to an address of the host.
pub fn write<T: Copy>(address: u64, value: T) {
    // SAFETY: as of `read`: the system call would write it, too.
    unsafe { (address as *mut T).write_unaligned(value) }
}

/// Copies bytes between two places, one of them the host's.
pub fn copy(to: u64, from: u64, bytes: usize) {
    // SAFETY: as of `read` and `write`; the other place is memory of a session, which the host does not know.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) }
}

/// The bytes of a string that ends with a NUL, without it; at most `bytes_max` are looked at.
pub fn string(address: u64, bytes_max: usize) -> &'static [u8] {
    let mut length = 0;
    while length < bytes_max && read::<u8>(address + length as u64) != 0 {
        length += 1;
    }
    bytes(address, length)
}

/// Memory of the host as bytes, for the length of a call.
pub fn bytes(address: u64, length: usize) -> &'static [u8] {
    // SAFETY: as of `read`; no reference outlives the system call for which the host keeps the memory.
    unsafe { core::slice::from_raw_parts(address as *const u8, length) }
}

/// Memory that is this library's own: `bytes` of it, of zeros, or 0 if the kernel has none.
pub fn map(bytes: usize) -> u64 {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let at = raw(libc::SYS_mmap, [0, bytes as u64, protection, flags, u64::MAX, 0]);
    if at < 0 { 0 } else { at as u64 }
}

/// Gives memory of [`map`] back.
pub fn unmap(at: u64, bytes: usize) {
    call(libc::SYS_munmap, at, bytes as u64, 0);
}

/// Closes a descriptor that is this library's own.
pub fn close(fd: i32) {
    call(libc::SYS_close, fd as u64, 0, 0);
}

/// Number of this process.
pub fn pid() -> u32 {
    call(libc::SYS_getpid, 0, 0, 0) as u32
}

/// Parts of a message.
const PARTS_MAX: usize = 8;

/// Writes a message of up to [`PARTS_MAX`] parts to standard error, in one piece: other processes write there, too.
pub fn say(parts: &[&[u8]]) {
    let mut vectors = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
    for (vector, part) in vectors.iter_mut().zip(parts) {
        *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    }
    call(libc::SYS_writev, 2, vectors.as_ptr() as u64, parts.len().min(PARTS_MAX) as u64);
}

/// `/proc/self/fd/N`, with a NUL.
pub fn descriptor_link(fd: i32) -> [u8; 32] {
    let mut path = [0u8; 32];
    let directory = b"/proc/self/fd/";
    let mut digits = [0u8; 10];
    let (mut rest, mut count) = (fd as u32, 0);
    for digit in &mut digits {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let letters = directory.iter().chain(digits.iter().take(count).rev());
    for (place, letter) in path.iter_mut().zip(letters) {
        *place = *letter;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_descriptors_have_their_number() {
        for fd in [0, 7, 10, 65_535, i32::MAX] {
            let link = descriptor_link(fd);
            let text = std::ffi::CStr::from_bytes_until_nul(&link).expect("it ends").to_str().expect("text");
            assert_eq!(text, format!("/proc/self/fd/{fd}"));
        }
    }
}
