//! The way from a program's call of a function of libc into this library.
//!
//! A place for each function calls the same code, which knows the function by the address that it comes from. Arguments are put
//! down, so that the call can go on to libc's function as it came: with its registers, its stack, and its caller.

use super::functions::{COUNT, FUNCTIONS, How};
use super::{errno, look_again, real_of, set_errno};
use crate::dispatch::{self, AS_IT_WAS};
use crate::fds::{self, Fd};
use crate::table::{CLASSES, WITH_FD};
use core::arch::{global_asm, naked_asm};

/// Bytes of a function's place.
const STUB_BYTES: u64 = 8;

/// As [`crate::entry::MARK`], on this way.
pub const MARK: u64 = 0x6b75_7261_5b0b_a7e5;

/// What a function was called with.
#[repr(C)]
pub struct Frame {
    /// The first six arguments.
    pub args: [u64; 6],
    rax: u64,
    /// Number of the function.
    pub index: u64,
    base: u64,
    /// Where the caller goes on.
    pub back: u64,
}

impl Frame {
    /// An argument behind the first six.
    pub fn further(&self, index: usize) -> u64 {
        let end = core::ptr::from_ref(self) as u64 + size_of::<Frame>() as u64;
        crate::host::read(end + index as u64 * 8)
    }
}

/// What becomes of a call.
#[repr(C)]
pub struct Outcome {
    value: u64,
    /// The function to which the call goes on, with the arguments in the frame; 0 if it is done.
    on: u64,
}

impl Outcome {
    /// A value for the caller.
    pub fn value(value: u64) -> Outcome {
        Outcome { value, on: 0 }
    }

    /// The value, if the call is done.
    pub fn as_value(&self) -> Option<u64> {
        (self.on == 0).then_some(self.value)
    }

    /// A system call's result: a negative one becomes -1 and errno.
    pub fn of(result: i64) -> Outcome {
        Outcome::value(number(result) as u64)
    }

    /// A null pointer and errno.
    pub fn null(failed: i64) -> Outcome {
        set_errno(-failed as i32);
        Outcome::value(0)
    }

    /// The call is libc's own.
    pub fn libcs(frame: &Frame) -> Outcome {
        Outcome::to(real_of(frame.index as usize))
    }

    /// The call goes on to another function.
    pub fn to(function: u64) -> Outcome {
        Outcome { value: 0, on: function }
    }
}

/// A system call's result as libc's functions give it.
pub fn number(result: i64) -> i64 {
    if result >= 0 {
        return result;
    }
    set_errno(-result as i32);
    -1
}

/// Makes a system call as a rewritten site does. Never [`AS_IT_WAS`].
pub fn make(number: i64, args: [u64; 6]) -> i64 {
    match dispatch::handle(number, args) {
        AS_IT_WAS => crate::host::raw(number, args),
        result => result,
    }
}

global_asm!(
    ".text",
    ".balign 16",
    ".hidden aze_symbol_stubs",
    ".globl aze_symbol_stubs",
    "aze_symbol_stubs:",
    ".rept {count}",
    ".balign 8",
    "call {enter}",
    ".endr",
    ".balign 8",
    count = const COUNT,
    enter = sym enter,
);

unsafe extern "C" {
    #[link_name = "aze_symbol_stubs"]
    static STUBS: u8;
}

/// The address that takes a function's place.
pub fn stub(index: usize) -> u64 {
    &raw const STUBS as u64 + index as u64 * STUB_BYTES
}

/// From a function's place. `naked`, because no register may be touched before it is kept.
#[unsafe(naked)]
extern "C" fn enter() {
    naked_asm!(
        "pop r11",
        "lea r10, [rip + aze_symbol_stubs]",
        "sub r11, r10",
        "shr r11, 3",
        "push rbp",
        "mov rbp, rsp",
        "push r11",
        "push rax",
        "push r9",
        "push r8",
        "push rcx",
        "push rdx",
        "push rsi",
        "push rdi",
        "mov rdi, rsp",
        // For `defects.rs`: how to get out of the middle.
        "push 0",
        "push r15",
        "push r14",
        "push r13",
        "push r12",
        "push rbx",
        "push rbp",
        "movabs r11, {mark}",
        "push r11",
        "call {act}",
        "add rsp, 64",
        "test rdx, rdx",
        "jnz 2f",
        "leave",
        "ret",
        "2:",
        "mov r11, rdx",
        "pop rdi",
        "pop rsi",
        "pop rdx",
        "pop rcx",
        "pop r8",
        "pop r9",
        "pop rax",
        "leave",
        "jmp r11",
        mark = const MARK,
        act = sym act,
    )
}

/// From the middle of a call that has failed: rdi is the place of the mark on the stack, rsi the value.
#[cfg(all(not(test), panic = "abort"))]
#[unsafe(naked)]
pub extern "C" fn resume(mark: u64, value: i64) -> ! {
    naked_asm!(
        "mov rbp, [rdi + 8]",
        "mov rbx, [rdi + 16]",
        "mov r12, [rdi + 24]",
        "mov r13, [rdi + 32]",
        "mov r14, [rdi + 40]",
        "mov r15, [rdi + 48]",
        "mov rax, rsi",
        "leave",
        "ret",
    )
}

/// What a call gives that has failed by a defect of this library; `mark` is as of [`resume`].
#[cfg(all(not(test), panic = "abort"))]
pub fn fail(mark: u64) -> i64 {
    set_errno(libc::EIO);
    // Between the mark and the frame lie the registers that are kept.
    let index: u64 = crate::host::read(mark + 64 + core::mem::offset_of!(Frame, index) as u64);
    match FUNCTIONS.get(index as usize) {
        Some((_, How::Pointer(_))) => 0,
        _ => -1,
    }
}

/// Handles a call. Functions of libc leave errno alone when they succeed, and so does this.
extern "C" fn act(frame: *mut Frame) -> Outcome {
    // SAFETY: the code above has put the frame on the stack and does not touch it until this returns.
    let frame = unsafe { &mut *frame };
    look_again();
    let Some((_, how)) = FUNCTIONS.get(frame.index as usize) else { return Outcome::libcs(frame) };
    let before = errno();
    let outcome = match how {
        How::Call(number) => {
            // Libc's own is a place at which a thread can be cancelled (pthread_cancel(3)).
            let is_of_fd = CLASSES.get(*number as usize) == Some(&WITH_FD);
            if is_of_fd && fds::known(fds::argument(frame.args[0])) == Some(Fd::Kernels) {
                return Outcome::libcs(frame);
            }
            match dispatch::handle(*number, frame.args) {
                AS_IT_WAS => Outcome::libcs(frame),
                result => Outcome::of(result),
            }
        }
        How::Own(act) | How::Pointer(act) => act(frame),
    };
    if outcome.on != 0 {
        set_errno(before);
    }
    outcome
}
