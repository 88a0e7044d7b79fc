//! Conversations with the agent.
//!
//! A thread takes a channel for the length of a call, with all signals blocked, so that no handler runs in between and waits
//! for what its own thread holds. A channel is a socket and memory: room for paths and replies, the window, and the mailbox. The sockets
//! are descriptors of the host's process: they lie at high numbers, and calls of the host that would close or replace one are
//! told that it does not exist. A forked child finds the numbers and closes them; it gets channels of its own. A child on its
//! parent's memory, whose descriptors are not the parent's, makes a channel for each call.

use crate::cwd;
use crate::host::{self, Args, call, error, raw};
use crate::lookup::{self, Witness};
use crate::mailbox::{Ended, Mailbox};
use crate::named_pipes;
use crate::process::{self, begin, is_ready, shared_child};
use crate::processor::{self, Stay};
use crate::settings;
use aze_calls::indexes::SERVERS_MAX;
use aze_calls::mailbox::Way;
use aze_calls::{
    CHANNEL_BYTES, Hello, Kept, MESSAGE_BYTES_MAX, NO_PROCESSOR, Op, Reply, Request, Stat, VERSION, WINDOW_BYTES,
    Welcome, after_stat,
};
use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Channels that a process keeps. More calls at once make channels for one call each.
const CHANNELS_MAX: usize = 64;

/// Highest descriptor that a channel gets, even with a larger limit.
const FD_MAX: u64 = 65_000;

/// Room of a channel before its window: the reply, three paths, and what else a call needs to put down.
pub const REPLY: Area = Area { at: 0, bytes: 24 << 10 };
/// Room for the first path.
pub const FIRST: Area = Area { at: 24 << 10, bytes: 12 << 10 };
/// Room for the second path.
pub const SECOND: Area = Area { at: 36 << 10, bytes: 12 << 10 };
/// Room for a path that is being made.
pub const THIRD: Area = Area { at: 48 << 10, bytes: 16 << 10 };
/// Room for a path that is kept while another one is looked for.
pub const FOURTH: Area = Area { at: 64 << 10, bytes: 16 << 10 };
const ROOM_BYTES: usize = 80 << 10;
const MEMORY_BYTES: usize = ROOM_BYTES + CHANNEL_BYTES;

/// Bytes of a control message that brings one descriptor: header of 16, the number, padding.
const CONTROL_BYTES: usize = 24;

/// A part of a channel's room.
#[derive(Clone, Copy)]
pub struct Area {
    at: usize,
    /// Its length.
    pub bytes: usize,
}

/// The first field of each session.
pub const SESSION_MARK: u64 = 0x5e55_1017_617a_656b;

struct Channel {
    busy: AtomicBool,
    /// The socket; -1 if there is none yet. Forked children inherit the number and close it.
    fd: AtomicI32,
    /// The memory; 0 if there is none yet. Forked children do not inherit it.
    memory: AtomicU64,
    /// How often something was asked over it.
    asked: AtomicU32,
    /// The named pipe for the next open.
    next_pipe: named_pipes::Next,
    /// The description whose contents are in the window, as the following says; 0 if there are none.
    kept: AtomicU64,
    kept_until_ns: AtomicU64,
    kept_seen: AtomicU64,
    kept_len: AtomicU32,
    kept_counter: AtomicU32,
    /// Of a file that was opened for writing, too: [`Witness::words`].
    kept_witness: [AtomicU64; 4],
}

impl Channel {
    const fn new() -> Channel {
        Channel {
            busy: AtomicBool::new(false),
            fd: AtomicI32::new(-1),
            memory: AtomicU64::new(0),
            asked: AtomicU32::new(0),
            next_pipe: named_pipes::Next::new(),
            kept: AtomicU64::new(0),
            kept_until_ns: AtomicU64::new(0),
            kept_seen: AtomicU64::new(0),
            kept_len: AtomicU32::new(0),
            kept_counter: AtomicU32::new(0),
            kept_witness: [const { AtomicU64::new(0) }; 4],
        }
    }
}

static CHANNELS: [Channel; CHANNELS_MAX] = [const { Channel::new() }; CHANNELS_MAX];

/// The lowest descriptor that a channel has had: a cheap look tells most descriptors of the host from those.
static LOWEST: AtomicI32 = AtomicI32::new(i32::MAX);

/// How often this process has asked the agent.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Number by which stat(2) names the device, and whether close(2) asks for a flush: as the agent has said.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static FLUSH_AT_CLOSE: AtomicBool = AtomicBool::new(false);

/// A call to the agent: a channel, with all signals blocked.
#[repr(C)]
pub struct Session {
    /// [`SESSION_MARK`], by which `defects.rs` finds the two fields behind it.
    mark: u64,
    /// The signals that were blocked before.
    mask: u64,
    stay: Stay,
    /// The channel, unless it is for this call only.
    kept: Option<&'static Channel>,
    fd: i32,
    memory: u64,
    blocked: bool,
    /// The header of the last reply.
    last: Reply,
}

/// In a forked child: closes the sockets that it has inherited.
pub fn forget_all() {
    ASKED.store(0, Relaxed);
    for channel in &CHANNELS {
        let fd = channel.fd.swap(-1, SeqCst);
        if fd >= 0 {
            host::close(fd);
        }
        channel.memory.store(0, SeqCst);
        channel.next_pipe.forget();
        channel.kept.store(0, SeqCst);
        channel.busy.store(false, SeqCst);
    }
}

/// How often this process has asked the agent.
pub fn asked() -> u64 {
    ASKED.load(Relaxed)
}

/// True for a descriptor of this library's, which the host must not close or replace.
pub fn is_hidden(fd: i32) -> bool {
    fd >= LOWEST.load(Relaxed) && descriptors().any(|hidden| hidden == fd)
}

fn descriptors() -> impl Iterator<Item = i32> {
    let channels = CHANNELS.iter().map(|channel| channel.fd.load(SeqCst));
    channels.chain(lookup::descriptors()).chain(named_pipes::descriptors()).chain(cwd::descriptors())
}

/// Moves a descriptor that is to be this library's to a number that the host hardly uses; gives the one that it has now.
pub fn hide(low: i32) -> i32 {
    let fd = raise(low);
    note_hidden(fd);
    fd
}

/// A copy of a descriptor that is this library's, at such a number; `None` if the host has all of them.
pub fn hidden_copy(fd: i32) -> Option<i32> {
    high_copy(fd).inspect(|copy| note_hidden(*copy))
}

/// A descriptor is this library's where it is.
pub fn note_hidden(fd: i32) {
    LOWEST.fetch_min(fd, SeqCst);
}

/// The lowest descriptor of this library's that is at least `from`.
pub fn next_hidden(from: u32) -> Option<u32> {
    descriptors().filter_map(|fd| u32::try_from(fd).ok()).filter(|fd| *fd >= from).min()
}

/// The device number of the volume's files.
pub fn device() -> u64 {
    DEVICE.load(SeqCst)
}

/// True if close(2) of a file that may have been written asks the agent first.
pub fn flushes_at_close() -> bool {
    FLUSH_AT_CLOSE.load(SeqCst)
}

impl Session {
    /// Takes a channel's memory; a connection is made when something is asked. Fails if there is no memory.
    pub fn begin() -> Result<Session, i64> {
        let mask = process::block_signals();
        if !is_ready() {
            begin();
        }
        let free = |channel: &&Channel| channel.busy.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        let kept = if shared_child().is_some() { None } else { CHANNELS.iter().find(free) };
        let (fd, memory) = match kept {
            Some(channel) => (channel.fd.load(SeqCst), channel.memory.load(SeqCst)),
            None => (-1, 0),
        };
        let mut session = Session {
            mark: SESSION_MARK,
            mask,
            stay: Stay::NONE,
            kept,
            fd,
            memory,
            blocked: true,
            last: Reply::default(),
        };
        if memory == 0 {
            session.memory = host::map(MEMORY_BYTES);
            if session.memory == 0 {
                return Err(error(libc::ENOMEM));
            }
            call(libc::SYS_madvise, session.memory, MEMORY_BYTES as u64, libc::MADV_DONTFORK as u64);
            if let Some(channel) = kept {
                channel.memory.store(session.memory, SeqCst);
            }
        }
        Ok(session)
    }

    /// Unblocks the signals before the end, for a call of the kernel's that may take long.
    pub fn unblock(&mut self) {
        if self.blocked {
            self.blocked = false;
            process::restore_signals(self.mask);
        }
    }

    /// Makes a call of the kernel's that may take long with the host's signals, and blocks them again.
    pub fn with_signals(&mut self, make: impl FnOnce() -> i64) -> i64 {
        process::restore_signals(self.mask);
        let result = make();
        process::block_signals();
        result
    }

    /// A part of the room. Every caller uses one part for one thing at a time.
    pub fn area(&self, area: Area) -> &'static mut [u8] {
        // SAFETY: the memory is this session's until its end, and parts do not overlap; callers let no reference outlive the
        // system call that they handle.
        unsafe { core::slice::from_raw_parts_mut((self.memory as usize + area.at) as *mut u8, area.bytes) }
    }

    /// Where the window begins; there is one as soon as something has been asked. Nothing is kept there any more.
    pub fn window(&self) -> u64 {
        self.drop_kept();
        self.kept_window()
    }

    /// The same, to look at the contents kept there.
    pub fn kept_window(&self) -> u64 {
        self.memory + ROOM_BYTES as u64
    }

    /// Notes the contents that came with an open, if they did; `witness` says by what is known that they are still current, where that
    /// is to be known.
    pub fn keep(&self, reply: &Reply, witness: Option<Witness>) {
        let Some(channel) = self.kept else { return };
        let bytes = self.bytes(reply);
        if !after_stat(bytes.len()).0 {
            return;
        }
        let kept: Kept = host::read(bytes.as_ptr() as u64 + size_of::<Stat>() as u64);
        if kept.len as usize > WINDOW_BYTES {
            return;
        }
        channel.kept_until_ns.store(kept.until_ns, Relaxed);
        channel.kept_seen.store(kept.seen, Relaxed);
        channel.kept_len.store(kept.len, Relaxed);
        channel.kept_counter.store(kept.counter, Relaxed);
        let words = witness.map_or([0; 4], Witness::words);
        channel.kept_witness.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
        channel.kept.store(reply.desc, SeqCst);
    }

    /// The contents kept for a description, and their witness.
    pub fn kept(&self, desc: u64) -> Option<(Kept, Option<Witness>)> {
        let channel = self.kept.filter(|channel| channel.kept.load(SeqCst) == desc)?;
        let kept = Kept {
            until_ns: channel.kept_until_ns.load(Relaxed),
            seen: channel.kept_seen.load(Relaxed),
            len: channel.kept_len.load(Relaxed),
            counter: channel.kept_counter.load(Relaxed),
        };
        Some((kept, Witness::of(channel.kept_witness.each_ref().map(|word| word.load(Relaxed)))))
    }

    /// What is known of the named pipe for the next open; `None` where the channel is for this call only.
    pub fn next_pipe(&self) -> Option<&'static named_pipes::Next> {
        self.kept.filter(|_| process::may_note()).map(|channel| &channel.next_pipe)
    }

    /// Keeps no contents any more.
    pub fn drop_kept(&self) {
        if let Some(channel) = self.kept {
            channel.kept.store(0, SeqCst);
        }
    }

    /// The socket, connected; `None` if there is no agent.
    pub fn socket(&mut self) -> Option<i32> {
        self.connect().ok().map(|()| self.fd)
    }

    /// Makes the connection, if there is none.
    pub fn connect(&mut self) -> Result<(), i64> {
        if process::is_broken() {
            return Err(error(libc::EIO));
        }
        if self.fd >= 0 {
            return Ok(());
        }
        let socket = open_socket()?;
        if let Err(failed) = self.greet(socket) {
            host::close(socket);
            return Err(failed);
        }
        self.fd = socket;
        if let Some(channel) = self.kept {
            LOWEST.fetch_min(socket, SeqCst);
            channel.fd.store(socket, SeqCst);
        }
        Ok(())
    }

    fn greet(&mut self, socket: i32) -> Result<(), i64> {
        let hello = Hello { version: VERSION, pid: host::pid() };
        let sent = raw(
            libc::SYS_sendto,
            [socket as u64, &raw const hello as u64, size_of::<Hello>() as u64, libc::MSG_NOSIGNAL as u64, 0, 0],
        );
        if sent != size_of::<Hello>() as i64 {
            return Err(error(libc::EIO));
        }
        let mut welcome = Welcome::default();
        let (bytes, window) = receive(socket, &raw mut welcome as u64, size_of::<Welcome>());
        if bytes != size_of::<Welcome>() as i64 || welcome.result != 0 || window.is_none() {
            if let Some(window) = window {
                host::close(window);
            }
            return Err(if welcome.result < 0 { i64::from(welcome.result) } else { error(libc::EIO) });
        }
        let window = window.unwrap_or(-1);
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let mapped = raw(libc::SYS_mmap, [self.window(), CHANNEL_BYTES as u64, protection, flags, window as u64, 0]);
        host::close(window);
        if mapped < 0 {
            return Err(error(libc::ENOMEM));
        }
        call(libc::SYS_madvise, self.window(), CHANNEL_BYTES as u64, libc::MADV_DONTFORK as u64);
        DEVICE.store(welcome.dev, SeqCst);
        FLUSH_AT_CLOSE.store(welcome.flush_at_close != 0, SeqCst);
        Ok(())
    }

    /// Sends a request with the bytes of `parts`. Blocks until the agent answers or has gone: then EIO.
    pub fn ask(&mut self, request: Request, parts: &[&[u8]]) -> Result<Reply, i64> {
        self.ask_with_fd(request, parts).map(|(reply, fd)| {
            if let Some(fd) = fd {
                host::close(fd);
            }
            reply
        })
    }

    /// As [`Session::ask`], for operations whose reply brings a descriptor; it is close-on-exec.
    pub fn ask_with_fd(&mut self, request: Request, parts: &[&[u8]]) -> Result<(Reply, Option<i32>), i64> {
        let asked = self.kept.map_or(0, |channel| channel.asked.fetch_add(1, Relaxed));
        let processor = if processor::stays(asked) { self.stay.begin() } else { NO_PROCESSOR };
        let reply = self.ask_from(processor, request, parts);
        self.stay.end();
        reply
    }

    fn ask_from(&mut self, processor: u16, request: Request, parts: &[&[u8]]) -> Result<(Reply, Option<i32>), i64> {
        let way = Op::of_number(request.op).map_or(Way::Packets, Op::way);
        let request = self.prepared(processor, request, parts)?;
        if way == Way::Packets {
            self.send_packet(request, parts)?;
            self.tell_of_packet()?;
            return self.reply();
        }
        self.mailbox().ask(&request, parts).map_err(|Ended| self.lost())?;
        if way == Way::Descriptor {
            return self.reply();
        }
        match self.reply_in_mailbox()? {
            Some(reply) => Ok((reply, None)),
            None if way == Way::Either => self.reply(),
            None => Err(self.lost()),
        }
    }

    /// Sends a request only, of those whose way is packets: the answer may take long, and the thread runs where it may meanwhile.
    pub fn send(&mut self, request: Request, parts: &[&[u8]]) -> Result<(), i64> {
        let request = self.prepared(NO_PROCESSOR, request, parts)?;
        self.send_packet(request, parts)?;
        self.tell_of_packet()
    }

    /// Connects, and fills in what every request says.
    fn prepared(&mut self, processor: u16, request: Request, parts: &[&[u8]]) -> Result<Request, i64> {
        // The answer may use the window.
        self.drop_kept();
        ASKED.fetch_add(1, Relaxed);
        self.connect()?;
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        if size_of::<Request>() + bytes > MESSAGE_BYTES_MAX {
            return Err(error(libc::ENAMETOOLONG));
        }
        Ok(Request { bytes: bytes as u32, umask: process::umask_now() as u16, processor, ..request })
    }

    fn mailbox(&self) -> Mailbox {
        Mailbox(self.kept_window() + WINDOW_BYTES as u64)
    }

    fn send_packet(&mut self, request: Request, parts: &[&[u8]]) -> Result<(), i64> {
        let mut vectors = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 5];
        vectors[0] = libc::iovec { iov_base: (&raw const request).cast_mut().cast(), iov_len: size_of::<Request>() };
        let mut count = 1;
        for (vector, part) in vectors.iter_mut().skip(1).zip(parts) {
            *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
            count += 1;
        }
        let header = message(&raw mut vectors[0], count, 0, 0);
        let sent = call(libc::SYS_sendmsg, self.fd as u64, &raw const header as u64, libc::MSG_NOSIGNAL as u64);
        if sent < 0 { Err(self.lost()) } else { Ok(()) }
    }

    fn tell_of_packet(&mut self) -> Result<(), i64> {
        self.mailbox().sent().map_err(|Ended| self.lost())
    }

    /// Waits for a reply in the mailbox, and copies it out; `None` if it is a packet.
    fn reply_in_mailbox(&mut self) -> Result<Option<Reply>, i64> {
        let Some(at) = self.mailbox().reply(self.fd).map_err(|Ended| self.lost())? else { return Ok(None) };
        let reply: Reply = host::read(at);
        let (room, bytes) = (self.area(REPLY), size_of::<Reply>() + reply.bytes as usize);
        if bytes > MESSAGE_BYTES_MAX {
            return Err(self.lost());
        }
        host::copy(room.as_ptr() as u64, at, bytes);
        self.last = reply;
        Ok(Some(reply))
    }

    /// Waits for a reply by a packet.
    pub fn reply(&mut self) -> Result<(Reply, Option<i32>), i64> {
        let room = self.area(REPLY);
        let (bytes, fd) = receive(self.fd, room.as_ptr() as u64, room.len());
        if bytes < size_of::<Reply>() as i64 {
            if let Some(fd) = fd {
                host::close(fd);
            }
            return Err(self.lost());
        }
        let reply: Reply = host::read(room.as_ptr() as u64);
        if size_of::<Reply>() + reply.bytes as usize > bytes as usize {
            return Err(self.lost());
        }
        self.last = reply;
        Ok((reply, fd))
    }

    /// The header of the last reply; its bytes lie there until the next one.
    pub fn last(&self) -> Reply {
        self.last
    }

    /// The bytes of a reply.
    pub fn bytes(&self, reply: &Reply) -> &'static [u8] {
        let room = self.area(REPLY);
        room.get(size_of::<Reply>()..size_of::<Reply>() + reply.bytes as usize).unwrap_or(&[])
    }

    /// Sends a word of its own for the request that waits. The agent sees the packet where it waits, and is not told of it: it may
    /// have answered already, and then skips it before the next packet.
    pub fn cancel(&mut self) {
        let _ = self.send_packet(Request { op: Op::Cancel as u32, ..Request::default() }, &[]);
    }

    /// The socket, and the signals that the host had blocked, to wait for a reply that may take long.
    pub fn waiting(&self) -> (i32, u64) {
        (self.fd, self.mask)
    }

    /// The agent has gone, or says what this library does not understand: nothing more is said on this channel.
    fn lost(&mut self) -> i64 {
        let fd = core::mem::replace(&mut self.fd, -1);
        if let Some(channel) = self.kept {
            channel.fd.store(-1, SeqCst);
            channel.next_pipe.forget();
        }
        if fd >= 0 {
            host::close(fd);
        }
        error(libc::EIO)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        match self.kept {
            Some(channel) => channel.busy.store(false, SeqCst),
            None => {
                if self.fd >= 0 {
                    host::close(self.fd);
                }
                if self.memory != 0 {
                    host::unmap(self.memory, MEMORY_BYTES);
                }
            }
        }
        self.mark = 0;
        self.unblock();
    }
}

/// A socket that is connected to the agent, at a high number. EIO if there is no agent.
fn open_socket() -> Result<i32, i64> {
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
    let low = call(libc::SYS_socket, libc::AF_UNIX as u64, kind, 0);
    if low < 0 {
        return Err(low);
    }
    let socket = raise(low as i32);
    let (address, length) = settings::agent_address();
    loop {
        match call(libc::SYS_connect, socket as u64, address, length) {
            connected if connected >= 0 => return Ok(socket),
            interrupted if interrupted == error(libc::EINTR) => {}
            failed => {
                host::close(socket);
                let denied = failed == error(libc::EMFILE) || failed == error(libc::EACCES);
                return Err(if denied { failed } else { error(libc::EIO) });
            }
        }
    }
}

/// Moves a descriptor to a number that the host hardly uses; gives the one that it has now.
fn raise(low: i32) -> i32 {
    let Some(high) = high_copy(low) else { return low };
    host::close(low);
    high
}

/// A copy of a descriptor at such a number, closed by execve(2).
fn high_copy(fd: i32) -> Option<i32> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let args: Args = [0, libc::RLIMIT_NOFILE as u64, 0, &raw mut limit as u64, 0, 0];
    if raw(libc::SYS_prlimit64, args) < 0 {
        return None;
    }
    let from = limit.rlim_cur.min(FD_MAX).saturating_sub((CHANNELS_MAX + SERVERS_MAX) as u64 + 4);
    let high = call(libc::SYS_fcntl, fd as u64, libc::F_DUPFD_CLOEXEC as u64, from);
    (high >= 0).then_some(high as i32)
}

/// Header of a packet that is sent or received.
fn message(vectors: *mut libc::iovec, count: usize, control: u64, bytes: usize) -> libc::msghdr {
    // SAFETY: zeros are a valid header.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = vectors;
    header.msg_iovlen = count as _;
    header.msg_control = control as *mut _;
    header.msg_controllen = bytes as _;
    header
}

/// Receives a packet and the descriptor that may come with it. The length, or a negative errno; 0 if the agent has gone.
fn receive(socket: i32, to: u64, bytes: usize) -> (i64, Option<i32>) {
    let mut control = [0u64; CONTROL_BYTES / 8];
    let mut vector = libc::iovec { iov_base: to as *mut _, iov_len: bytes };
    loop {
        let header = message(&raw mut vector, 1, control.as_mut_ptr() as u64, CONTROL_BYTES);
        let flags = libc::MSG_CMSG_CLOEXEC as u64;
        let received = call(libc::SYS_recvmsg, socket as u64, &raw const header as u64, flags);
        if received == error(libc::EINTR) {
            continue;
        }
        // The header of a control message: length of 8 bytes, level, kind; then the descriptor.
        let kind = (libc::SOL_SOCKET as u64) | (libc::SCM_RIGHTS as u64) << 32;
        let brought =
            received >= 0 && host::read::<usize>(&raw const header.msg_controllen as u64) > 16 && control[1] == kind;
        return (received, brought.then_some(control[2] as u32 as i32));
    }
}
