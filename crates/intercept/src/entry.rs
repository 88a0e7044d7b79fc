//! The way from a rewritten site into this library and back.
//!
//! It alone knows registers. A thunk jumps here with the system call's registers as they are and the address of its return in
//! rcx. The kernel changes rax, rcx and r11 only, and so does this: the first lines decide with these three whether the call
//! can go to the kernel at once; the long way keeps everything else, the red zone and the SSE registers too. Rust's code
//! here uses no AVX, and `memory.rs` keeps libc's copying functions, which do, out of it.

use crate::dispatch;
use crate::fds::{CACHED, NOT_OURS};
use crate::process::{FDS_AT, VFORKS_AT, WIPED};
use crate::sites::{PLAIN_BEFORE, SHARING_BEFORE};
use crate::table::{CLASSES, NUMBERS, PASS, WITH_FD};
use core::arch::naked_asm;

/// The call is done.
pub const DONE: u64 = 0;
/// The thunk makes the call; the parent comes back when its child on this memory has gone.
pub const BY_THUNK_SHARED: u64 = 1;
/// The call is made as it was: it is the kernel's, or has a stack for its child.
pub const BY_THUNK: u64 = 2;

/// A number by which the place on the stack is found from which the host can go on.
pub const MARK: u64 = 0x6b75_7261_1d5e_a7e5;

/// Registers of a call, as `enter` puts them down; the first has the lowest address.
#[repr(C)]
pub struct Frame {
    /// [`DONE`], [`BY_THUNK_SHARED`] or [`BY_THUNK`].
    pub sharing: u64,
    /// Number of the call.
    pub number: u64,
    /// r9, r8, r10, rdx, rsi, rdi.
    pub reversed: [u64; 6],
    /// rbp.
    pub base: u64,
}

/// From a thunk: rax is the number, rcx the thunk's return. `naked`, because no register may be touched before it is kept.
#[unsafe(naked)]
pub extern "C" fn enter() {
    naked_asm!(
        // Does this library look at calls of this number?
        "mov eax, eax",
        "cmp eax, {numbers}",
        "jae 2f",
        "lea r11, [rip + {classes}]",
        "movzx r11d, byte ptr [r11 + rax]",
        "cmp r11d, {pass}",
        "je 2f",
        "cmp r11d, {with_fd}",
        "jne 3f",
        // A descriptor that is known to be another file's, and no child runs on this memory?
        "mov r11d, edi",
        "cmp r11d, {cached}",
        "jae 3f",
        "shl r11, 3",
        "add r11, qword ptr [rip + {wiped}]",
        "cmp qword ptr [r11 + {fds}], {not_ours}",
        "jne 3f",
        "mov r11, qword ptr [rip + {wiped}]",
        "cmp dword ptr [r11 + {vforks}], 0",
        "jne 3f",
        // The call as it was, on the caller's stack.
        "2:",
        "lea r11, [rcx - {plain}]",
        "jmp r11",
        // The long way.
        "3:",
        "lea rsp, [rsp - 128]",
        "push rcx",
        "pushfq",
        "cld",
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "push r9",
        "push rax",
        "push 0",
        "mov rdi, rsp",
        "sub rsp, 336",
        "and rsp, -16",
        "movaps [rsp], xmm0",
        "movaps [rsp + 16], xmm1",
        "movaps [rsp + 32], xmm2",
        "movaps [rsp + 48], xmm3",
        "movaps [rsp + 64], xmm4",
        "movaps [rsp + 80], xmm5",
        "movaps [rsp + 96], xmm6",
        "movaps [rsp + 112], xmm7",
        "movaps [rsp + 128], xmm8",
        "movaps [rsp + 144], xmm9",
        "movaps [rsp + 160], xmm10",
        "movaps [rsp + 176], xmm11",
        "movaps [rsp + 192], xmm12",
        "movaps [rsp + 208], xmm13",
        "movaps [rsp + 224], xmm14",
        "movaps [rsp + 240], xmm15",
        // For `defects.rs`: how to get out of the middle.
        "movabs r11, {mark}",
        "mov [rsp + 256], r11",
        "mov [rsp + 264], rbp",
        "mov [rsp + 272], rbx",
        "mov [rsp + 280], r12",
        "mov [rsp + 288], r13",
        "mov [rsp + 296], r14",
        "mov [rsp + 304], r15",
        "call {dispatch}",
        "jmp {leave}",
        numbers = const NUMBERS,
        classes = sym CLASSES,
        pass = const PASS,
        with_fd = const WITH_FD,
        cached = const CACHED,
        wiped = sym WIPED,
        fds = const FDS_AT,
        not_ours = const NOT_OURS,
        vforks = const VFORKS_AT,
        mark = const MARK,
        plain = const PLAIN_BEFORE,
        dispatch = sym dispatch::dispatch,
        leave = sym leave,
    )
}

/// Puts the registers back as they were; rax is the result.
#[unsafe(naked)]
extern "C" fn leave() {
    naked_asm!(
        "movaps xmm0, [rsp]",
        "movaps xmm1, [rsp + 16]",
        "movaps xmm2, [rsp + 32]",
        "movaps xmm3, [rsp + 48]",
        "movaps xmm4, [rsp + 64]",
        "movaps xmm5, [rsp + 80]",
        "movaps xmm6, [rsp + 96]",
        "movaps xmm7, [rsp + 112]",
        "movaps xmm8, [rsp + 128]",
        "movaps xmm9, [rsp + 144]",
        "movaps xmm10, [rsp + 160]",
        "movaps xmm11, [rsp + 176]",
        "movaps xmm12, [rsp + 192]",
        "movaps xmm13, [rsp + 208]",
        "movaps xmm14, [rsp + 224]",
        "movaps xmm15, [rsp + 240]",
        "lea rsp, [rbp - 64]",
        "pop r11",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop r10",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "pop rbp",
        // The direction flag is the only one that could matter behind a system call, and it hardly ever is set.
        "pop rcx",
        "test ecx, 0x400",
        "jz 2f",
        "std",
        "2:",
        "pop rcx",
        "lea rsp, [rsp + 128]",
        "test r11d, r11d",
        "jnz 3f",
        "jmp rcx",
        // rax is the number again: the thunk makes the call, for a child with a stack of its own, or for one on this stack,
        // and then its way back comes through `after`.
        "3:",
        "cmp r11d, 1",
        "je 4f",
        "lea r11, [rcx - {plain}]",
        "jmp r11",
        "4:",
        "lea r11, [rcx - {sharing}]",
        "jmp r11",
        plain = const PLAIN_BEFORE,
        sharing = const SHARING_BEFORE,
    )
}

/// From the middle of a call that has failed: rdi is the place of the mark on the stack, rsi the result.
#[cfg(all(not(test), panic = "abort"))]
#[unsafe(naked)]
pub extern "C" fn resume(mark: u64, result: i64) -> ! {
    naked_asm!(
        "mov rbp, [rdi + 8]",
        "mov rbx, [rdi + 16]",
        "mov r12, [rdi + 24]",
        "mov r13, [rdi + 32]",
        "mov r14, [rdi + 40]",
        "mov r15, [rdi + 48]",
        "lea rsp, [rdi - 256]",
        "mov rax, rsi",
        "jmp {leave}",
        leave = sym leave,
    )
}

/// From a thunk: the parent goes on after its child on this memory has become another program, or has ended.
#[unsafe(naked)]
pub extern "C" fn after() {
    naked_asm!(
        "lea rsp, [rsp - 128]",
        "push rcx",
        "pushfq",
        "cld",
        "push rbp",
        "mov rbp, rsp",
        "push rdi",
        "push rsi",
        "push rdx",
        "push r10",
        "push r8",
        "push r9",
        "push rax",
        "push 0",
        "mov rdi, rax",
        "sub rsp, 336",
        "and rsp, -16",
        "movaps [rsp], xmm0",
        "movaps [rsp + 16], xmm1",
        "movaps [rsp + 32], xmm2",
        "movaps [rsp + 48], xmm3",
        "movaps [rsp + 64], xmm4",
        "movaps [rsp + 80], xmm5",
        "movaps [rsp + 96], xmm6",
        "movaps [rsp + 112], xmm7",
        "movaps [rsp + 128], xmm8",
        "movaps [rsp + 144], xmm9",
        "movaps [rsp + 160], xmm10",
        "movaps [rsp + 176], xmm11",
        "movaps [rsp + 192], xmm12",
        "movaps [rsp + 208], xmm13",
        "movaps [rsp + 224], xmm14",
        "movaps [rsp + 240], xmm15",
        "call {after}",
        "jmp {leave}",
        after = sym dispatch::after_sharing,
        leave = sym leave,
    )
}
