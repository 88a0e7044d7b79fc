//! The conversation with the kernel: the agreement at the start, and the workers that answer
//! requests until the mount ends.
//!
//! A worker reads a request, has it done on its own thread, and answers: waking another thread would
//! cost more than most requests take. The worker pool decides which workers read ([`crate::worker_pool`]); where
//! requests come by queues, the crew does ([`crate::crew`]), and the pool's workers read forgets and interruptions. A
//! request that may wait without bound (for a lock) occupies no worker: it goes on as a task.

use crate::abi::{self, Args, Header, Out, Room, init, op};
use crate::crew::Crew;
use crate::device::{Came, Device};
use crate::door::Door;
use crate::fs::{self, Done};
use crate::locks;
use crate::queue::{self, Held, Queue};
use crate::reply::{self, Errno, Reply};
use crate::support;
use crate::worker_pool::WorkerPool;
use crate::{FuseIo, REQUEST_BYTES};
use std::io;
use std::sync::{Arc, mpsc};

/// Requests that the kernel may have under way without a program that waits for them: read-ahead and
/// direct I/O. Enough to keep every server of a large volume busy with one stream.
const BACKGROUND_MAX: u16 = 64;

/// Bytes of a page, as the kernel counts them in requests.
const PAGE_BYTES: u32 = 4096;

/// Room for a request beyond the data of a write: headers, and names of requests that have them.
const REQUEST_ROOM: usize = 4096;

/// Features that the mount asks the kernel for; with an older kernel it does without.
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::MAX_PAGES
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::PARALLEL_DIROPS
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ATOMIC_O_TRUNC
    | init::AUTO_INVAL_DATA
    | init::ASYNC_DIO
    // Set-id bits go at the servers, with the write, truncation or change of owner that takes
    // them. The kernel would ask for the new mode on behalf of a writer who may not set it.
    | init::HANDLE_KILLPRIV
    | init::HANDLE_KILLPRIV_V2
    // The kernel looks at access control lists when it checks rights. In a directory with a default
    // list the umask does not count: it is told apart from the mode.
    | init::POSIX_ACL
    | init::DONT_MASK
    // A symlink's target never changes and an inode number is never used again.
    | init::CACHE_SYMLINKS
    // Appends and writes of several writers are direct I/O; such a file may still be mapped into memory.
    | init::DIRECT_IO_ALLOW_MMAP
    | init::EXT;

/// What both sides have agreed on.
pub struct Agreed {
    /// The features that both have.
    pub features: u64,
    /// The queues by which requests come, if they do not all come by the device.
    pub queues: Vec<Arc<Queue>>,
}

/// Answers the kernel's first request, by which both sides learn what the other can do.
///
/// # Errors
/// `Unsupported` if the kernel is too old, or if queues are demanded and cannot be had; what the system said otherwise.
pub fn agree(device: &Arc<Device>, by: FuseIo) -> io::Result<Agreed> {
    let mut buffer = vec![0; REQUEST_BYTES as usize + REQUEST_ROOM];
    loop {
        let count = match device.receive(&mut buffer)? {
            Came::Request(count) => count,
            Came::Nothing => continue,
            Came::End => return Err(io::Error::other("the mount ended before it began")),
        };
        let (header, mut args) = abi::split(&buffer[..count]).map_err(|_| not_understood())?;
        let reply = Reply::new(device.clone(), header.unique);
        if header.opcode != op::INIT {
            reply.send_outcome(Err(Errno(libc::EIO)));
            continue;
        }
        let offer = Offer::take(&mut args).map_err(|_| not_understood())?;
        if offer.major > abi::MAJOR {
            // It asks again in the version that it is told here.
            let mut out = Out::new(64);
            out.u32(abi::MAJOR);
            out.u32(abi::MINOR_MAX);
            out.zeros(56);
            reply.send(&mut out);
            continue;
        }
        if (offer.major, offer.minor) < (abi::MAJOR, abi::MINOR_MIN) {
            reply.send_outcome(Err(Errno(libc::EPROTO)));
            let text = format!(
                "this kernel speaks FUSE {}.{}, a mount needs {}.{} or newer (Linux 5.4)",
                offer.major,
                offer.minor,
                abi::MAJOR,
                abi::MINOR_MIN
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let queues = match by {
            FuseIo::Dev => Vec::new(),
            FuseIo::Auto => support::queues(device, offer.flags).unwrap_or_default(),
            FuseIo::Uring => support::queues(device, offer.flags)?,
        };
        let features = offer.flags & WANTED | if queues.is_empty() { 0 } else { init::OVER_IO_URING };
        let mut out = Out::new(64);
        offer.answer(features, &mut out);
        return if reply.send(&mut out) { Ok(Agreed { features, queues }) } else { Err(not_understood()) };
    }
}

fn not_understood() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the kernel and this program do not understand each other")
}

/// What the kernel says of itself.
struct Offer {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u64,
}

impl Offer {
    fn take(args: &mut Args<'_>) -> Result<Offer, abi::Malformed> {
        let (major, minor) = (args.u32()?, args.u32()?);
        let (max_readahead, low) = (args.u32()?, args.u32()?);
        let high = if u64::from(low) & init::EXT != 0 { args.u32()? } else { 0 };
        Ok(Offer { major, minor, max_readahead, flags: u64::from(high) << 32 | u64::from(low) })
    }

    fn answer(&self, flags: u64, out: &mut Out) {
        let bytes_max = if flags & init::MAX_PAGES != 0 { REQUEST_BYTES } else { 32 * PAGE_BYTES };
        out.u32(abi::MAJOR);
        out.u32(self.minor.min(abi::MINOR_MAX));
        out.u32(self.max_readahead.min(4 * REQUEST_BYTES));
        out.u32(flags as u32);
        out.put(&BACKGROUND_MAX.to_ne_bytes());
        // From here on the kernel holds writers of pages back.
        out.put(&(BACKGROUND_MAX / 4 * 3).to_ne_bytes());
        out.u32(bytes_max);
        // Times are exact to the nanosecond.
        out.u32(1);
        out.put(&((bytes_max / PAGE_BYTES) as u16).to_ne_bytes());
        out.zeros(2);
        out.u32((flags >> 32) as u32);
        out.zeros(28);
    }
}

/// A mount that is being served.
pub struct Session {
    door: Arc<Door>,
    /// The descriptor that was mounted; workers have clones of it.
    device: Arc<Device>,
    /// The workers that read the device: all requests come by it, or forgets and interruptions.
    pool: Arc<WorkerPool>,
    /// The workers that read the queues, if there are any.
    crew: Arc<Crew>,
    queues: Vec<Arc<Queue>>,
}

impl Session {
    /// Starts to answer, by at most so many threads beside one for each queue; returns when all queues are read.
    ///
    /// # Errors
    /// If a queue cannot be read: then all requests come by the device.
    pub fn start(
        door: Arc<Door>,
        device: Arc<Device>,
        threads: usize,
        queues: Vec<Arc<Queue>>,
    ) -> (Arc<Session>, io::Result<()>) {
        let pool = Arc::new(WorkerPool::new(threads));
        let all = queues.clone();
        let crew = Arc::new(Crew::new(queues.len(), threads, move |number| _ = all[number].ensure()));
        let session = Arc::new(Session { door, device, pool, crew, queues });
        let of_workers = Arc::downgrade(&session);
        session.pool.begin(move || {
            if let Some(session) = of_workers.upgrade() {
                session.start_worker();
            }
        });
        let (of_workers, (tell, told)) = (Arc::downgrade(&session), mpsc::channel());
        session.crew.begin(move |number| {
            if let Some(session) = of_workers.upgrade() {
                session.start_reader(number, tell.clone());
            }
        });
        let begun: io::Result<()> = told.iter().take(session.queues.len()).collect();
        if let (Err(_), Some(queue)) = (&begun, session.queues.first()) {
            session.crew.end();
            queue.give_up();
        }
        (session, begun)
    }

    /// Starts a worker, which has been counted already, for this queue. The first one of a queue tells whether the
    /// kernel has taken its buffer.
    fn start_reader(self: &Arc<Self>, number: usize, tell: mpsc::Sender<io::Result<()>>) {
        let (session, failed) = (self.clone(), tell.clone());
        let life = move || {
            let _place = session.crew.join(number);
            if let Err(error) = session.read(number, &tell) {
                session.crew.fail(error);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("aze-queue".into()).spawn(life) {
            self.door.journal.say(format_args!("no further thread for the mount: {error}"));
            self.crew.not_started(number);
            // Nothing listens any more if the queue has a worker.
            let _ = failed.send(Err(error));
        }
    }

    /// The life of a worker that reads queues, first this one.
    fn read(&self, number: usize, tell: &mpsc::Sender<io::Result<()>>) -> io::Result<()> {
        let first = &self.queues[number];
        if first.has_no_buffer() {
            let begun = first.add_buffer().and_then(|()| first.refusal().map_or(Ok(()), Err));
            let is_refused = begun.is_err();
            if is_refused {
                // Before anything calls another worker for a queue by which nothing will come.
                self.crew.end();
            }
            // The session waits for it.
            let _ = tell.send(begun);
            if is_refused {
                return Ok(());
            }
        }
        let mut out = Out::new(REQUEST_BYTES as usize + REQUEST_ROOM);
        while let Some(number) = self.crew.may_read() {
            match self.queues[number].next()? {
                queue::Came::Request(held) => self.serve_held(held, &mut out),
                queue::Came::Refused(errno) => {
                    let error = io::Error::from_raw_os_error(errno);
                    self.door
                        .journal
                        .say(format_args!("the kernel refused a reply to a request of processor {number}: {error}"));
                }
                queue::Came::End => {
                    self.crew.end();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn serve_held(&self, held: Held, out: &mut Out) {
        let unique = held.unique();
        // SAFETY: the answer is the last thing that is done with either.
        let parts = unsafe { held.open(out) }.and_then(abi::split);
        let reply = Reply::of_queue(held, unique);
        let Ok((header, args)) = parts else { return self.not_understood(reply) };
        queue::begins(header.node);
        self.crew.begins(fs::kind(&self.door, &header, args));
        answer(&self.door, &header, args, out, reply);
    }

    fn not_understood(&self, reply: Reply) {
        reply.send_outcome(Err(Errno(libc::EPROTO)));
        self.door.journal.say("the kernel sent a request that cannot be understood");
    }

    /// Whether requests come by queues.
    pub fn has_queues(&self) -> bool {
        !self.queues.is_empty()
    }

    /// What requests share.
    pub fn door(&self) -> Arc<Door> {
        self.door.clone()
    }

    /// Blocks until the mount has ended and every worker is gone.
    ///
    /// # Errors
    /// What ended it, if it was not its unmounting, or the system's reason not to start any worker.
    pub fn wait(&self) -> io::Result<()> {
        let failure = self.crew.wait();
        let failure = failure.or(self.pool.wait());
        // Waits for locks are for programs that this mount no longer has.
        self.door.locks.end();
        failure.map_or(Ok(()), Err)
    }

    /// Starts a worker that has been counted already.
    fn start_worker(self: &Arc<Self>) {
        let session = self.clone();
        let life = move || {
            let _place = session.pool.join();
            if let Err(error) = session.work() {
                session.pool.fail(error);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("aze-mount".into()).spawn(life) {
            self.door.journal.say(format_args!("no further thread for the mount: {error}"));
            self.pool.not_started(error);
        }
    }

    /// The life of a worker.
    fn work(&self) -> io::Result<()> {
        // Without a clone it works as well, with one lock more in common.
        let device = Device::clone_of(&self.device).map_or_else(|_| self.device.clone(), Arc::new);
        let mut room = Room::new(REQUEST_BYTES as usize + REQUEST_ROOM);
        let mut out = Out::new(REQUEST_BYTES as usize + REQUEST_ROOM);
        while self.pool.may_read() {
            // A persistent error meets the other workers, too; when the last one is gone the kernel ends the mount.
            match device.receive(room.bytes())? {
                Came::Request(count) => self.serve(&device, &room.bytes()[..count], &mut out),
                Came::Nothing => {}
                Came::End => {
                    self.pool.end();
                    self.crew.end();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn serve(&self, device: &Arc<Device>, message: &[u8], out: &mut Out) {
        let (header, args) = match abi::split(message) {
            Ok(parts) => parts,
            Err(abi::Malformed) => {
                if let Some(unique) = message.get(8..16) {
                    let unique = u64::from_ne_bytes(unique.try_into().expect("eight bytes"));
                    return self.not_understood(Reply::new(device.clone(), unique));
                }
                return self.door.journal.say("the kernel sent a request without a number");
            }
        };
        self.pool.begins(header.pid, fs::kind(&self.door, &header, args));
        let reply = Reply::new(device.clone(), header.unique);
        out.clear();
        answer(&self.door, &header, args, out, reply);
    }
}

/// Has a request done and answers it.
fn answer(door: &Arc<Door>, header: &Header, args: Args<'_>, out: &mut Out, reply: Reply) {
    let watch = door.trace.begin(header, &args).map(|traced| -> Box<reply::Watch> {
        let door = door.clone();
        Box::new(move |answer| door.trace.end(traced, answer))
    });
    let reply = reply.watched(watch);
    if header.opcode == op::SETLKW {
        return locks::set_or_wait(door, header, args, reply);
    }
    // Until the answer has gone: then the kernel lets go of the pages.
    let is_write = header.opcode == op::WRITE;
    let _transfer = (is_write || header.opcode == op::READ).then(|| door.pages.transfer(header.node, is_write));
    door.begins(header);
    let done = fs::act(door, header, args, out);
    // Before the answer: the kernel looks again at once.
    match &done {
        Err(errno) if errno.0 == libc::ESTALE => door.was_sent_back(header),
        _ => door.ends(header),
    }
    let done = match done {
        Ok(Done::Silently) => {
            return reply.not_owed();
        }
        Ok(done) => done,
        Err(errno) => {
            reply.send_outcome(Err(errno));
            return;
        }
    };
    if reply.send(out) {
        return out.versions.iter().for_each(|version| door.kernel_cache.tell(*version));
    }
    // The kernel has not taken it: it does not know the handle, and will never release it.
    match done {
        Done::Opened(handle) => drop(door.leave(handle)),
        Done::OpenedDir(handle) => drop(door.streams.remove(handle)),
        Done::Now | Done::Silently => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    /// What a kernel of this version is answered, and what comes of it here.
    fn agreed(major: u32, minor: u32, flags: u64) -> (Vec<u8>, io::Result<u64>) {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        let device = Arc::new(Device::adopt(OwnedFd::from(ours)));
        let mut request = Out::new(128);
        request.u32(104);
        request.u32(op::INIT);
        request.u64(1);
        request.zeros(24);
        for value in [major, minor, 1 << 17, flags as u32, (flags >> 32) as u32] {
            request.u32(value);
        }
        request.zeros(44);
        let mut theirs = std::fs::File::from(OwnedFd::from(theirs));
        theirs.write_all(request.written()).expect("the request is sent");
        let outcome = agree(&device, FuseIo::Dev).map(|agreed| agreed.features);
        let mut answer = vec![0; 256];
        let count = theirs.read(&mut answer).expect("an answer");
        answer.truncate(count);
        (answer, outcome)
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    }

    #[test]
    fn a_kernel_gets_what_both_know() {
        let (answer, outcome) = agreed(7, 45, u64::MAX);
        outcome.expect("a new kernel will do");
        assert_eq!(answer.len(), abi::OUT_HEADER_BYTES + 64);
        let body = &answer[abi::OUT_HEADER_BYTES..];
        assert_eq!((word(body, 0), word(body, 4)), (7, 45));
        assert_eq!(u64::from(word(body, 12)) | u64::from(word(body, 32)) << 32, WANTED);
        assert_eq!((word(body, 20), word(body, 28)), (REQUEST_BYTES, 256), "bytes and pages of a request");
        let (answer, outcome) = agreed(7, 31, 0);
        outcome.expect("the oldest kernel will do");
        let body = &answer[abi::OUT_HEADER_BYTES..];
        assert_eq!((word(body, 4), word(body, 12), word(body, 20)), (31, 0, 128 * 1024));
    }

    #[test]
    fn a_kernel_that_is_too_old_is_told_apart() {
        let (answer, outcome) = agreed(7, 30, u64::MAX);
        assert_eq!(answer, abi::out_header(1, -libc::EPROTO, 0));
        let error = outcome.expect_err("too old");
        assert_eq!(error.to_string(), "this kernel speaks FUSE 7.30, a mount needs 7.31 or newer (Linux 5.4)");
    }
}
