//! An instance of io_uring(7): commands go into one ring of shared memory, their results come out of another.
//!
//! Any number of threads may submit and collect. What a command means is not known here.

use aze_io::sync::Mutex;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Places for commands: they are submitted one at a time.
const SQ_ENTRIES: u32 = 4;

/// Places for results. When more are there the kernel keeps the rest, and gives it with the next wait.
const CQ_ENTRIES: u32 = 128;

/// Bytes of a command, with much room for what its device alone understands.
const COMMAND_BYTES: usize = 128;

/// Bytes of a result.
const RESULT_BYTES: usize = 16;

/// Pause before the kernel is asked again that had no memory for a command: a program waits for what the command
/// brings.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// Numbers of `linux/io_uring.h`.
mod number {
    pub const SETUP_CQSIZE: u32 = 1 << 3;
    pub const SETUP_SQE128: u32 = 1 << 10;
    pub const ENTER_GETEVENTS: u32 = 1;
    pub const OFFSET_SQ: i64 = 0;
    pub const OFFSET_CQ: i64 = 0x800_0000;
    pub const OFFSET_SQES: i64 = 0x1000_0000;
    pub const OP_URING_CMD: u8 = 46;
}

/// Where the fields of the ring of commands are (`io_sqring_offsets`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_addr: u64,
}

/// Where the fields of the ring of results are (`io_cqring_offsets`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: u32,
    user_addr: u64,
}

/// What an instance is to be, and how it has become (`io_uring_params`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: SqOffsets,
    cq: CqOffsets,
}

/// A command to the device of a descriptor (`IORING_OP_URING_CMD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The device.
    pub descriptor: RawFd,
    /// Which of its commands.
    pub operation: u32,
    /// What the command is about, as the device understands it.
    pub address: u64,
    /// How much of that there is.
    pub len: u32,
    /// What the result repeats.
    pub tag: u64,
    /// What the device alone understands; there is room for more.
    pub own: [u64; 3],
}

impl Command {
    /// As the kernel wants it (`io_uring_sqe`).
    fn bytes(&self) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = number::OP_URING_CMD;
        bytes[4..8].copy_from_slice(&self.descriptor.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.operation.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[48..56].copy_from_slice(&self.own[0].to_ne_bytes());
        bytes[56..64].copy_from_slice(&self.own[1].to_ne_bytes());
        bytes[64..72].copy_from_slice(&self.own[2].to_ne_bytes());
        bytes
    }
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The command's tag.
    pub tag: u64,
    /// 0 or a negative error number.
    pub result: i32,
}

/// Memory shared with the kernel.
struct Shared {
    start: NonNull<u8>,
    len: usize,
}

impl Shared {
    fn map(ring: &OwnedFd, len: usize, offset: i64) -> io::Result<Shared> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a fresh mapping, wherever the kernel puts it; it takes away no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, ring.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared { start: NonNull::new(start.cast()).expect("no mapping begins at 0"), len })
    }

    /// Memory at this offset, which the kernel has named.
    fn at(&self, offset: u32, bytes: usize) -> NonNull<u8> {
        assert!(offset as usize + bytes <= self.len, "the kernel names places inside of the ring");
        // SAFETY: the result lies inside of the mapping.
        unsafe { self.start.add(offset as usize) }
    }

    fn number(&self, offset: u32) -> &AtomicU32 {
        let place = self.at(offset, 4).cast::<AtomicU32>();
        assert!(place.is_aligned(), "the kernel aligns its numbers");
        // SAFETY: it is aligned, lies inside of the mapping, and both sides use it as an atomic number.
        unsafe { place.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives this value. An error would leave it mapped.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the memory belongs to no thread; the ring guards each end that is ours by a lock.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// One instance.
pub struct Ring {
    // Before the descriptor is closed nothing needs to be unmapped.
    sq: Shared,
    cq: Shared,
    commands: Shared,
    params: Params,
    /// Held by the thread that puts a command in.
    submits: Mutex<()>,
    /// Held by the thread that takes a result out.
    collects: Mutex<()>,
    descriptor: OwnedFd,
}

impl Ring {
    /// Makes one.
    ///
    /// # Errors
    /// What the system said: EPERM where it is forbidden, ENOSYS where there is none.
    pub fn new() -> io::Result<Ring> {
        let flags = number::SETUP_SQE128 | number::SETUP_CQSIZE;
        let mut params = Params { flags, cq_entries: CQ_ENTRIES, ..Params::default() };
        // SAFETY: the parameters live until the call returns, which reads and writes them.
        let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, SQ_ENTRIES, &raw mut params) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the system has just opened it for us.
        let descriptor = unsafe { OwnedFd::from_raw_fd(made as RawFd) };
        let entries = params.sq_entries as usize;
        let sq = Shared::map(&descriptor, params.sq.array as usize + 4 * entries, number::OFFSET_SQ)?;
        let results = RESULT_BYTES * params.cq_entries as usize;
        let cq = Shared::map(&descriptor, params.cq.cqes as usize + results, number::OFFSET_CQ)?;
        let commands = Shared::map(&descriptor, COMMAND_BYTES * entries, number::OFFSET_SQES)?;
        let (submits, collects) = (Mutex::default(), Mutex::default());
        Ok(Ring { sq, cq, commands, params, submits, collects, descriptor })
    }

    /// Has the kernel begin with a command, on behalf of the calling thread.
    ///
    /// # Errors
    /// What the system said if it has not taken the command. What the command itself comes to is a result.
    pub fn submit(&self, command: &Command) -> io::Result<()> {
        let _only_one = self.submits.lock();
        let tail = self.sq.number(self.params.sq.tail);
        let number = tail.load(Ordering::Relaxed);
        let place = number & (self.params.sq_entries - 1);
        let bytes = command.bytes();
        let to = self.commands.at(place * COMMAND_BYTES as u32, COMMAND_BYTES);
        // SAFETY: `to` has room for it; the kernel reads it after the tail has been moved, and is done with it when the
        // call below returns.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), COMMAND_BYTES) };
        self.sq.number(self.params.sq.array + 4 * place).store(place, Ordering::Relaxed);
        tail.store(number.wrapping_add(1), Ordering::Release);
        loop {
            let error = match self.enter(1, 0, 0) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EBUSY) => std::thread::park_timeout(MEMORY_PAUSE),
                _ => {
                    // The kernel has not taken it, and must not take it with the next one.
                    tail.store(number, Ordering::Release);
                    return Err(error);
                }
            }
        }
    }

    /// Blocks until there is a result; may return before.
    ///
    /// # Errors
    /// What the system said.
    pub fn wait(&self) -> io::Result<()> {
        match self.enter(0, 1, number::ENTER_GETEVENTS) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    fn enter(&self, submit: u32, wait: u32, flags: u32) -> io::Result<()> {
        let (ring, none) = (self.descriptor.as_raw_fd(), std::ptr::null::<libc::sigset_t>());
        // SAFETY: the rings of this descriptor are mapped; no set of signals is given.
        let done = unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, submit, wait, flags, none, 0usize) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes a result out, if there is one.
    pub fn collect(&self) -> Option<Outcome> {
        self.collect_if(|_| true)
    }

    /// Takes the next result out if it is an error, and gives that.
    pub fn collect_error(&self) -> Option<i32> {
        self.collect_if(|outcome| outcome.result < 0).map(|outcome| outcome.result)
    }

    fn collect_if(&self, is_wanted: impl Fn(&Outcome) -> bool) -> Option<Outcome> {
        let _only_one = self.collects.lock();
        let head = self.cq.number(self.params.cq.head);
        let number = head.load(Ordering::Relaxed);
        if number == self.cq.number(self.params.cq.tail).load(Ordering::Acquire) {
            return None;
        }
        let place = number & (self.params.cq_entries - 1);
        let from = self.cq.at(self.params.cq.cqes + place * RESULT_BYTES as u32, RESULT_BYTES);
        // SAFETY: the kernel has written the result before it moved the tail, and leaves it alone until the head has
        // moved.
        let bytes = unsafe { from.cast::<[u8; RESULT_BYTES]>().read() };
        let outcome = Outcome {
            tag: u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes")),
            result: i32::from_ne_bytes(bytes[8..12].try_into().expect("four bytes")),
        };
        if !is_wanted(&outcome) {
            return None;
        }
        head.store(number.wrapping_add(1), Ordering::Release);
        Some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_the_layout_of_the_kernel() {
        let own = [6, 0x1112_1314_1516_1718, 9];
        let command = Command { descriptor: 5, operation: 2, address: 0x0102_0304, len: 7, tag: 0x0a0b, own };
        let mut golden = [0u8; 128];
        golden[0] = 46;
        golden[4] = 5;
        golden[8] = 2;
        golden[16..20].copy_from_slice(&[4, 3, 2, 1]);
        golden[24] = 7;
        golden[32..34].copy_from_slice(&[0x0b, 0x0a]);
        golden[48] = 6;
        golden[56..64].copy_from_slice(&[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        golden[64] = 9;
        if cfg!(target_endian = "little") {
            assert_eq!(command.bytes(), golden);
        }
    }

    /// No device answers such a command, which is a result like any other.
    #[test]
    fn what_was_submitted_comes_out_in_order() {
        let ring = match Ring::new() {
            // A container may forbid it: then a mount does without.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => return,
            made => made.expect("an instance"),
        };
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert_eq!(ring.collect(), None);
        // More than there are places, so that both rings go round.
        for tag in 0..u64::from(3 * CQ_ENTRIES) {
            let command = Command { descriptor: file.as_raw_fd(), operation: 0, address: 0, len: 0, tag, own: [0; 3] };
            ring.submit(&command).expect("it is taken");
            ring.wait().expect("there is a result");
            let outcome = ring.collect().expect("a result");
            assert!(outcome.tag == tag && outcome.result <= 0, "{outcome:?}");
        }
        assert_eq!(ring.collect(), None);
    }
}
