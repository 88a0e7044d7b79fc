//! One queue of requests: those of the programs on one processor, which come by io_uring(7) instead of `/dev/fuse`.
//!
//! The kernel puts a request into a *buffer*, memory that this process has given to it, and gets the buffer back with
//! the reply (FUSE over io_uring, Linux 6.14). It does so on the thread that has given the buffer, wherever that
//! thread is at that moment: a thread that ends would take its buffers with it, and a request that is on its way into
//! one of them would be lost. So only threads that last give buffers ([`lasts`]); the reply of any other thread goes
//! by way of one that does nothing else.
//!
//! A request that finds no buffer waits until a reply brings one: the kernel hands it over with that reply, but not
//! when a buffer is added. So before a request may take long, or wait without bound for a lock, [`Queue::ensure`] adds
//! a buffer if the kernel has none; and has the kernel send one more request, whose reply then brings those that have
//! waited.

use crate::REQUEST_BYTES;
use crate::abi::{IN_HEADER_BYTES, Malformed, Out, PAGE_BYTES, out_header};
use crate::device::{Device, Sent};
use crate::uring::{Command, Ring};
use aze_io::real::keep_on;
use aze_io::sync::Mutex;
use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;

/// Most processors of a machine whose mounts use queues: each has a thread. As many as a set of processors has room
/// for.
pub const QUEUES_MAX: usize = 1024;

/// Buffers of one mount at most. Each program that waits for a lock keeps one; when there are no more, the next one
/// gets ENOLCK.
pub const BUFFERS_MAX: usize = 1 << 14;

/// Numbers of the requests that the kernel was asked for are from here on.
const ASKED: u64 = 1 << 63;

/// Bytes of a buffer: a page for what the kernel and this process say of the request, and room for data.
const BUFFER_BYTES: usize = PAGE_BYTES + PAYLOAD_BYTES;

/// Bytes of the data of a buffer: what the kernel asks for, which is as much as a request may carry.
const PAYLOAD_BYTES: usize = REQUEST_BYTES as usize;

/// What stands at the beginning of a buffer (`fuse_uring_req_header`): the header of the request, or of its reply;
const HEADER_BYTES: usize = 288;
/// the first argument of the request;
const ARGUMENT_AT: usize = 128;
const ARGUMENT_BYTES: usize = 128;
/// the number by which the kernel finds the request when it is answered;
const COMMIT_AT: usize = 264;
/// and how many bytes of data there are.
const LENGTH_AT: usize = 272;

/// Commands to the device (`fuse_uring_cmd`).
mod operation {
    pub const REGISTER: u32 = 1;
    pub const COMMIT_AND_FETCH: u32 = 2;
}

thread_local! {
    /// This thread ends only with the mount.
    static LASTS: Cell<bool> = const { Cell::new(false) };

    /// The inode that this thread's request is about.
    static INODE: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread begins with a request about this inode.
pub fn begins(ino: u64) {
    INODE.set(ino);
}

/// The calling thread ends only with the mount, so it may give buffers to the kernel.
pub fn lasts() {
    LASTS.set(true);
}

/// What the kernel says of a request in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    /// Bytes of the first argument.
    argument: usize,
    /// Bytes of the other ones, which are data.
    data: usize,
    /// The number by which it is answered.
    commit: u64,
}

impl Parts {
    /// Reads them from the beginning of a buffer.
    fn of(header: &[u8; HEADER_BYTES]) -> Result<Parts, Malformed> {
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes")) as usize;
        let (len, data) = (word(0), word(LENGTH_AT));
        let argument = len.checked_sub(IN_HEADER_BYTES + data).ok_or(Malformed)?;
        if argument > ARGUMENT_BYTES || data > PAYLOAD_BYTES {
            return Err(Malformed);
        }
        Ok(Parts { argument, data, commit: commit_of(header) })
    }
}

fn commit_of(header: &[u8; HEADER_BYTES]) -> u64 {
    u64::from_ne_bytes(header[COMMIT_AT..COMMIT_AT + 8].try_into().expect("eight bytes"))
}

/// Writes what stands at the beginning of a buffer with a reply: `error` is 0 or a negative error number.
fn put_reply(header: &mut [u8; HEADER_BYTES], unique: u64, error: i32, data: usize) {
    let out = out_header(unique, error, data);
    header[..out.len()].copy_from_slice(&out);
    let data = u32::try_from(data).expect("a reply is no longer than a request may ask for");
    header[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&data.to_ne_bytes());
}

/// Memory of buffers, for as long as the queue lives: page by page only as far as it has been used.
struct Buffer(NonNull<u8>);

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new() -> io::Result<Buffer> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping, wherever the kernel puts it; it takes away no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BUFFER_BYTES, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A huge page would be taken whole for a request of a few bytes. Without the advice all works as well.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe { libc::madvise(start, BUFFER_BYTES, libc::MADV_NOHUGEPAGE) };
        Ok(Buffer(NonNull::new(start.cast()).expect("no mapping begins at 0")))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours. The queue drops it when it is of no use to the kernel any more. An error would
        // leave it mapped.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BUFFER_BYTES) };
    }
}

/// What the queues of a mount share.
pub struct Common {
    device: Arc<Device>,
    /// Entries of all queues.
    buffers: AtomicUsize,
    /// To the thread that answers in place of those which do not last.
    late: mpsc::Sender<Answered>,
}

/// A reply that is written and has to be given to the kernel.
struct Answered {
    queue: Arc<Queue>,
    buffer: Filled,
}

/// One queue.
pub struct Queue {
    /// The processor.
    pub number: usize,
    ring: Ring,
    common: Arc<Common>,
    /// Entries that the kernel has and that hold no request which was collected.
    given: AtomicUsize,
    memory: Mutex<Vec<Buffer>>,
    /// Requests that the kernel was asked for.
    asked: AtomicU64,
}

/// A buffer with a request that was collected.
#[derive(Clone, Copy)]
struct Filled {
    start: NonNull<u8>,
    commit: u64,
}

// SAFETY: who has it is the only one that uses the buffer's memory.
unsafe impl Send for Filled {}

/// What waiting for a request came to.
pub enum Came {
    /// A request.
    Request(Held),
    /// The kernel has refused a buffer or a reply, with this error number; what waited for that reply has been
    /// answered by the kernel.
    Refused(i32),
    /// The mount is no more.
    End,
}

/// Makes the queues of a mount, one for each of `processors`, without the kernel's knowledge yet; starts the thread
/// that answers in place of others.
///
/// # Errors
/// What the system said: EPERM where io_uring is forbidden.
pub fn make(processors: usize, device: &Arc<Device>) -> io::Result<Vec<Arc<Queue>>> {
    let (late, answered) = mpsc::channel::<Answered>();
    let common = Arc::new(Common { device: device.clone(), buffers: AtomicUsize::new(0), late });
    let queue = |number| {
        let (given, memory, asked) = (AtomicUsize::new(0), Mutex::default(), AtomicU64::new(0));
        Ring::new().map(|ring| Arc::new(Queue { number, ring, common: common.clone(), given, memory, asked }))
    };
    let queues = (0..processors).map(queue).collect::<io::Result<Vec<_>>>()?;
    let answer = move || {
        lasts();
        // Ends with the last queue.
        answered.into_iter().for_each(|Answered { queue, buffer }| _ = queue.commit(buffer));
    };
    std::thread::Builder::new().name("aze-answers".into()).spawn(answer)?;
    Ok(queues)
}

impl Queue {
    /// Gives the kernel one buffer more, on behalf of the calling thread, which lasts.
    ///
    /// # Errors
    /// What the system said; `OutOfMemory` if there are [`BUFFERS_MAX`].
    pub fn add_buffer(&self) -> io::Result<()> {
        debug_assert!(LASTS.get(), "a thread that ends takes its buffers with it");
        if self.common.buffers.fetch_add(1, SeqCst) >= BUFFERS_MAX {
            self.common.buffers.fetch_sub(1, SeqCst);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let buffer = Buffer::new().inspect_err(|_| _ = self.common.buffers.fetch_sub(1, SeqCst))?;
        let start = buffer.0;
        self.memory.lock().push(buffer);
        let payload = payload(start);
        let parts = [
            libc::iovec { iov_base: start.as_ptr().cast(), iov_len: HEADER_BYTES },
            libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: PAYLOAD_BYTES },
        ];
        // The kernel reads the two parts before the call returns.
        self.command(operation::REGISTER, parts.as_ptr().addr() as u64, parts.len() as u32, start, 0)
    }

    /// Whether it has not begun.
    pub fn has_no_buffer(&self) -> bool {
        self.memory.lock().is_empty()
    }

    /// Lets the kernel know that there will be no queues: it sends all requests by the device. It learns it from a
    /// command that it must refuse.
    pub fn give_up(&self) {
        // Nothing can be done if it does not even take that.
        let _ = self.command(operation::REGISTER, 0, 0, NonNull::dangling(), 0);
    }

    fn command(&self, operation: u32, address: u64, len: u32, buffer: NonNull<u8>, commit: u64) -> io::Result<()> {
        let (descriptor, tag) = (self.common.device.descriptor(), buffer.as_ptr().addr() as u64);
        // In this order: the request may be there when the call returns.
        self.given.fetch_add(1, SeqCst);
        let command = Command { descriptor, operation, address, len, tag, own: [0, commit, self.number as u64] };
        self.ring.submit(&command).inspect_err(|_| _ = self.given.fetch_sub(1, SeqCst))
    }

    /// Why the kernel has refused the first buffer, if it has. To be asked once, when that buffer was added.
    pub fn refusal(&self) -> Option<io::Error> {
        let result = self.ring.collect_error()?;
        self.given.fetch_sub(1, SeqCst);
        Some(io::Error::from_raw_os_error(-result))
    }

    /// The calling thread, which runs on the queue's processor, begins with what may take long: sees to it that
    /// further requests can come. Gives false where no buffer can be added: then they wait for the next reply.
    pub fn ensure(&self) -> bool {
        if self.given.load(SeqCst) > 0 {
            return true;
        }
        let is_added = self.add_buffer().is_ok();
        if is_added {
            // The request comes to the queue of the processor on which this thread runs, which may have been switched on
            // after the thread began.
            let _ = keep_on(&[self.number]);
            // The kernel's own numbers are even, and so must this be; they never come as far as this.
            self.common.device.ask_for_request(ASKED | self.asked.fetch_add(2, SeqCst), INODE.get());
        }
        is_added
    }

    /// Blocks until there is a request.
    ///
    /// # Errors
    /// What the system said.
    pub fn next(self: &Arc<Queue>) -> io::Result<Came> {
        loop {
            let Some(outcome) = self.ring.collect() else {
                self.ring.wait()?;
                continue;
            };
            self.given.fetch_sub(1, SeqCst);
            return Ok(match -outcome.result {
                0 => {
                    let start = std::ptr::with_exposed_provenance_mut::<u8>(outcome.tag as usize);
                    let start = NonNull::new(start).expect("the kernel gives back the tag of a buffer");
                    // SAFETY: the buffer is this process's again until it is answered, and lives as long as the queue.
                    let commit = commit_of(unsafe { start.cast().as_ref() });
                    Came::Request(Held { queue: self.clone(), buffer: Filled { start, commit } })
                }
                libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => Came::End,
                errno => Came::Refused(errno),
            });
        }
    }

    /// Gives a reply to the kernel, and the buffer with it.
    fn commit(&self, buffer: Filled) -> Sent {
        match self.command(operation::COMMIT_AND_FETCH, 0, 0, buffer.start, buffer.commit) {
            Ok(()) => Sent::Taken,
            Err(_) => Sent::Unwanted,
        }
    }
}

/// The place for data in a buffer.
fn payload(start: NonNull<u8>) -> NonNull<u8> {
    // SAFETY: it lies inside of the buffer.
    unsafe { start.add(PAGE_BYTES) }
}

/// A request that was collected, until it is answered.
pub struct Held {
    queue: Arc<Queue>,
    buffer: Filled,
}

impl Held {
    /// The request as it would have come by the device, in one piece. `out` is then ready for the answer: where the
    /// request has no data it is made where the kernel wants it.
    ///
    /// # Safety
    /// The bytes must not be used, nor `out` read or written, after the request was answered.
    pub unsafe fn open<'a>(&self, out: &mut Out) -> Result<&'a [u8], Malformed> {
        out.clear();
        let start = self.buffer.start;
        // SAFETY: the buffer is this process's, and nothing else refers to it.
        let parts = Parts::of(unsafe { start.cast().as_ref() })?;
        let before = IN_HEADER_BYTES + parts.argument;
        // SAFETY: both places lie inside of the buffer's first page, and do not overlap: it is longer than both
        // together.
        let message = unsafe {
            let message = start.add(PAGE_BYTES - before);
            message.copy_from_nonoverlapping(start, IN_HEADER_BYTES);
            message.add(IN_HEADER_BYTES).copy_from_nonoverlapping(start.add(ARGUMENT_AT), parts.argument);
            message
        };
        if parts.data == 0 {
            // SAFETY: the request ends where the place for data begins, and the caller keeps the rules.
            unsafe { out.lend(payload(start), PAYLOAD_BYTES) };
        }
        // SAFETY: these bytes were written just now or by the kernel, and stay until it is answered.
        Ok(unsafe { std::slice::from_raw_parts(message.as_ptr(), before + parts.data) })
    }

    /// The number of the request, for a reply if it cannot be understood.
    pub fn unique(&self) -> u64 {
        // SAFETY: the buffer is this process's.
        let header: &[u8; HEADER_BYTES] = unsafe { self.buffer.start.cast().as_ref() };
        u64::from_ne_bytes(header[8..16].try_into().expect("eight bytes"))
    }

    /// Whether this request may wait without bound, since further ones can come meanwhile; asked by the thread that
    /// has collected it.
    pub fn may_wait(&self) -> bool {
        self.queue.ensure()
    }

    /// Answers with bytes.
    pub fn send(self, unique: u64, out: &Out) -> Sent {
        let len = out.len();
        assert!(len <= PAYLOAD_BYTES, "a reply is no longer than a request may ask for");
        if !out.is_lent() {
            let to = payload(self.buffer.start);
            // SAFETY: the buffer has room for it, is this process's, and is other memory.
            unsafe { to.as_ptr().copy_from_nonoverlapping(out.written().as_ptr(), len) };
        }
        self.answer(unique, 0, len)
    }

    /// Answers with 0 or a negative error number, and so many bytes that are in place.
    pub fn answer(self, unique: u64, error: i32, data: usize) -> Sent {
        let Held { queue, buffer } = self;
        // SAFETY: the buffer is this process's, and no other reference to it is used from here on.
        put_reply(unsafe { buffer.start.cast().as_mut() }, unique, error, data);
        if LASTS.get() {
            return queue.commit(buffer);
        }
        let late = queue.common.late.clone();
        match late.send(Answered { queue, buffer }) {
            Ok(()) => Sent::Taken,
            // That thread ends when all queues are gone, and this one is not: it has panicked.
            Err(_) => Sent::Unwanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::op;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    /// The beginning of a buffer as the kernel fills it in, for a request with these arguments.
    fn header(opcode: u32, argument: &[u8], data: usize) -> [u8; HEADER_BYTES] {
        let mut header = [0xee; HEADER_BYTES];
        header[..4].copy_from_slice(&((40 + argument.len() + data) as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&opcode.to_ne_bytes());
        header[8..16].copy_from_slice(&0x0102_0304_0506_0708u64.to_ne_bytes());
        header[16..40].fill(0);
        header[128..128 + argument.len()].copy_from_slice(argument);
        // Flags; then what the request is answered by, and how much data there is.
        header[256..264].fill(0);
        header[264..272].copy_from_slice(&0x1112_1314_1516_1718u64.to_ne_bytes());
        header[272..276].copy_from_slice(&(data as u32).to_ne_bytes());
        header[276..].fill(0);
        header
    }

    #[test]
    fn a_buffer_has_the_layout_of_the_kernel() {
        let parts = Parts::of(&header(op::WRITE, &[1; 40], 4096));
        assert_eq!(parts, Ok(Parts { argument: 40, data: 4096, commit: 0x1112_1314_1516_1718 }));
        let mut reply = header(op::READ, &[1; 40], 0);
        let before = reply;
        put_reply(&mut reply, 0x2122_2324_2526_2728, -2, 5);
        assert_eq!(reply[..4], 21u32.to_ne_bytes());
        assert_eq!(reply[4..8], (-2i32).to_ne_bytes());
        assert_eq!(reply[8..16], 0x2122_2324_2526_2728u64.to_ne_bytes());
        assert_eq!(reply[272..276], 5u32.to_ne_bytes());
        assert_eq!((&reply[16..272], &reply[276..]), (&before[16..272], &before[276..]), "the rest stays");
    }

    #[test]
    fn no_request_is_longer_than_its_buffer() {
        for (argument, data) in [(128, 0), (0, PAYLOAD_BYTES), (128, PAYLOAD_BYTES)] {
            assert!(Parts::of(&header(op::WRITE, &vec![0; argument], data)).is_ok());
        }
        let with_len = |len: u32, data: u32| {
            let mut bytes = header(op::WRITE, &[], 0);
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            bytes[272..276].copy_from_slice(&data.to_ne_bytes());
            Parts::of(&bytes)
        };
        for (len, data) in
            [(39, 0), (40 + 129, 0), (50, 11), (u32::MAX, 0), (40, u32::MAX), (u32::MAX, PAYLOAD_BYTES as u32 + 1)]
        {
            assert_eq!(with_len(len, data), Err(Malformed), "{len} bytes, {data} of them data");
        }
    }

    /// A queue whose device is a socket; `None` where io_uring is forbidden: then a mount does without.
    fn queue() -> Option<(Arc<Queue>, UnixDatagram)> {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        match make(1, &Arc::new(Device::adopt(OwnedFd::from(ours)))) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => None,
            made => Some((made.expect("a queue").remove(0), theirs)),
        }
    }

    #[test]
    fn a_request_is_in_one_piece_and_its_answer_where_the_kernel_wants_it() {
        let Some((queue, _kernel)) = queue() else { return };
        let mut out = Out::new(4096);
        for (argument, data) in [(&b"0123456789abcdef"[..], &b"name\0"[..]), (b"", b"name\0"), (b"01234567", b"")] {
            let buffer = Buffer::new().expect("memory");
            let start = buffer.0;
            queue.memory.lock().push(buffer);
            // SAFETY: both places lie inside of the buffer, which nothing else uses.
            unsafe {
                start.cast().write(header(op::LOOKUP, argument, data.len()));
                payload(start).as_ptr().copy_from_nonoverlapping(data.as_ptr(), data.len());
            }
            let held = Held { queue: queue.clone(), buffer: Filled { start, commit: 7 } };
            // SAFETY: it is answered below, after the last use.
            let message = unsafe { held.open(&mut out) }.expect("well formed");
            let expected = [&header(op::LOOKUP, argument, data.len())[..40], argument, data].concat();
            assert_eq!(message, expected);
            assert_eq!(out.is_lent(), data.is_empty());
            out.put(b"answer");
            assert_eq!(held.unique(), 0x0102_0304_0506_0708);
            lasts();
            held.send(9, &out);
            // SAFETY: as above; no kernel has the buffer.
            let answer = unsafe { std::slice::from_raw_parts(payload(start).as_ptr(), 6) };
            assert_eq!(answer, b"answer");
        }
    }

    /// Without it a request that found no buffer would wait for ever behind programs that wait for locks.
    #[test]
    fn a_queue_without_a_buffer_gets_one_and_asks_for_a_request() {
        let Some((queue, kernel)) = queue() else { return };
        lasts();
        begins(5);
        kernel.set_nonblocking(true).expect("a socket of ours");
        assert!(queue.has_no_buffer() && queue.ensure());
        let mut message = [0; 64];
        assert_eq!(kernel.recv(&mut message).expect("it was asked"), 48);
        assert_eq!(message[16..24], ASKED.to_ne_bytes());
        assert!(queue.ensure(), "it has one");
        assert!(kernel.recv(&mut message).is_err(), "no more is asked");
        queue.given.store(0, SeqCst);
        queue.common.buffers.store(BUFFERS_MAX, SeqCst);
        assert!(!queue.ensure());
        assert_eq!(queue.common.buffers.load(SeqCst), BUFFERS_MAX);
        assert!(kernel.recv(&mut message).is_err());
    }
}
