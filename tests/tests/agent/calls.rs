//! A program of the protocol between intercepted programs and their agent, without the library: a process that has connected,
//! and calls that this test makes on its behalf.

use aze_calls::mailbox::{ASKED, REQUEST_AT, SENT, WORD_AT};
use aze_calls::{
    CHANNEL_BYTES, Hello, NO_DESC, NO_PROCESSOR, Op, POSITION, Reply, Request, Stat, VERSION, WINDOW_BYTES, Welcome,
};
use aze_tests::{Place, wait_until};
use std::cell::Cell;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where the agents of these tests show the volume.
pub const AT: &str = "/seen";

/// Tells this program to be an agent: where it listens, the volume, and its first process.
pub const AGENT: &str = "AZE_TEST_AGENT";

/// An agent in a process of its own.
pub struct AgentProcess {
    pub process: Child,
    pub socket: PathBuf,
}

impl AgentProcess {
    /// Starts one for a process.
    pub fn start(place: &Place, volume: &str, program: u32) -> AgentProcess {
        AgentProcess::start_with(place, volume, program, None)
    }

    /// The same, that may have so many files open.
    pub fn start_with(place: &Place, volume: &str, program: u32, files_max: Option<u64>) -> AgentProcess {
        let socket = place.path(&format!("agent-{program}.sock"));
        let words = format!("{}\n{volume}\n{program}", socket.display());
        let mut command = Command::new(std::env::current_exe().expect("a program knows its file"));
        command.args(["--exact", "an_agent_of_another_test", "--nocapture"]).env(AGENT, words);
        command.env("AZE_RUN_DIR", place.path("run")).env_remove("XDG_RUNTIME_DIR");
        let log = std::fs::File::create(place.path(&format!("agent-{program}.log"))).expect("a log");
        if let Some(max) = files_max {
            let limit = libc::rlimit { rlim_cur: max, rlim_max: max };
            // SAFETY: setrlimit(2) may be called between fork and exec, and reads `limit` only.
            let act = move || match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            };
            // SAFETY: `act` makes one system call.
            unsafe { command.pre_exec(act) };
        }
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("an agent");
        wait_until("the agent listens", || listens(&socket));
        AgentProcess { process, socket }
    }

    /// Waits until it has ended by itself.
    pub fn has_ended(mut self) {
        wait_until("the agent has ended", || self.process.try_wait().expect("it is a child").is_some());
        assert!(!self.socket.exists(), "its socket is removed");
    }
}

impl AgentProcess {
    /// The text of its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.socket.with_extension("log")).expect("a log")
    }

    /// Waits until it has ended by a defect.
    pub fn has_aborted(mut self) {
        wait_until("the agent has ended", || self.process.try_wait().expect("it is a child").is_some());
        let status = self.process.wait().expect("it is a child");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGABRT), "{status}");
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The life of an agent, if this process is to be one.
pub fn be_an_agent() {
    let Ok(words) = std::env::var(AGENT) else { return };
    // As the command does.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !aze_agent::ends_one_call_only() {
            std::process::abort();
        }
    }));
    let words: Vec<&str> = words.lines().collect();
    let [socket, volume, program] = words.as_slice() else { panic!("three words, not {words:?}") };
    let volume = aze_reach::Volume::open(volume).expect("the volume");
    let program = program.parse().expect("a number");
    let listening = aze_agent::Listening::start(volume, Path::new(socket), Path::new(AT), program);
    listening.unwrap_or_else(|error| panic!("{error}")).run().expect("it serves");
}

/// A process, and its channel, which this test uses on its behalf.
pub struct Program {
    pub pid: i32,
    channel: OwnedFd,
    window: *mut u8,
    pub umask: u32,
    was_killed: Cell<bool>,
}

// SAFETY: the window belongs to no thread.
unsafe impl Send for Program {}

/// Whether a socket of this name takes connections: between bind(2) and listen(2) there is its name alone.
fn listens(path: &Path) -> bool {
    let all = std::fs::read_to_string("/proc/net/unix").expect("it can be read");
    let name = path.to_str().expect("UTF-8");
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path: proc_net(5). The flag is __SO_ACCEPTCON.
    all.lines()
        .map(|line| line.split_whitespace().collect())
        .any(|words: Vec<&str>| words.len() == 8 && words[3] == "00010000" && words[7] == name)
}

fn socket_address(path: &Path) -> libc::sockaddr_un {
    // SAFETY: an address is a family and bytes, for which zeros are a value.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
        *to = *from as libc::c_char;
    }
    address
}

fn new_socket() -> OwnedFd {
    // SAFETY: socket(2) takes numbers.
    let number = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    assert!(number >= 0, "a socket");
    // SAFETY: nothing else knows the new descriptor.
    unsafe { OwnedFd::from_raw_fd(number) }
}

fn connect(socket: i32, address: &libc::sockaddr_un) -> i32 {
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address lives until the call returns and has this length.
    unsafe { libc::connect(socket, std::ptr::from_ref(address).cast(), len) }
}

impl Program {
    /// A new process that does nothing but wait, after it has connected.
    pub fn start(agent: &Path) -> Program {
        let (channel, address) = (new_socket(), socket_address(agent));
        // SAFETY: the child makes system calls only, and never returns.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "a process");
        if pid == 0 {
            let number = channel.as_raw_fd() as u32;
            // No open file of another test must stay open here.
            // SAFETY: close_range(2) takes numbers.
            unsafe { libc::syscall(libc::SYS_close_range, 3, number - 1, 0) };
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_close_range, number + 1, u32::MAX, 0) };
            if connect(channel.as_raw_fd(), &address) != 0 {
                // SAFETY: _exit(2) runs nothing of ours.
                unsafe { libc::_exit(1) };
            }
            loop {
                // SAFETY: pause(2) takes nothing.
                unsafe { libc::pause() };
            }
        }
        wait_until("the process has connected", || {
            let (mut address, mut len) = ([0u8; 128], 128);
            // SAFETY: both live until the call returns, and `len` is the room.
            unsafe { libc::getpeername(channel.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut len) == 0 }
        });
        Program::begin(channel, pid)
    }

    /// A channel of this process itself.
    pub fn me(agent: &Path) -> Program {
        let (channel, address) = (new_socket(), socket_address(agent));
        assert_eq!(connect(channel.as_raw_fd(), &address), 0, "{}", io::Error::last_os_error());
        Program::begin(channel, 0)
    }

    /// The same, unless the agent refuses it or closes it.
    pub fn me_if_taken(agent: &Path) -> Option<Program> {
        let (channel, address) = (new_socket(), socket_address(agent));
        assert_eq!(connect(channel.as_raw_fd(), &address), 0, "{}", io::Error::last_os_error());
        let hello = bytes_of(&Hello { version: VERSION, pid: std::process::id() });
        // SAFETY: the pointer and the length are those of `hello`. The other side may have closed the channel.
        unsafe { libc::send(channel.as_raw_fd(), hello.as_ptr().cast(), hello.len(), libc::MSG_NOSIGNAL) };
        let (packet, window) = receive(&channel);
        (!packet.is_empty() && take::<Welcome>(&packet).result == 0).then(|| Program::mapped(channel, 0, window))
    }

    /// One more channel of this process that is refused; gives the error number.
    pub fn refused(agent: &Path, hello: Hello) -> i32 {
        let (channel, address) = (new_socket(), socket_address(agent));
        assert_eq!(connect(channel.as_raw_fd(), &address), 0, "{}", io::Error::last_os_error());
        send(&channel, &bytes_of(&hello));
        let (packet, passed) = receive(&channel);
        assert!(passed.is_none(), "no window");
        assert_eq!(receive(&channel).0.len(), 0, "it is closed");
        -take::<Welcome>(&packet).result
    }

    fn begin(channel: OwnedFd, pid: i32) -> Program {
        send(&channel, &bytes_of(&Hello { version: VERSION, pid: std::process::id() }));
        let (packet, window) = receive(&channel);
        let welcome: Welcome = take(&packet);
        assert_eq!(welcome.result, 0);
        Program::mapped(channel, pid, window)
    }

    fn mapped(channel: OwnedFd, pid: i32, window: Option<OwnedFd>) -> Program {
        let window = window.expect("a window");
        let (rights, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the system chooses.
        let at = unsafe { libc::mmap(null_mut(), CHANNEL_BYTES, rights, how, window.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // The memory cannot be taken away from under the agent.
        // SAFETY: ftruncate(2) takes numbers.
        assert_eq!(unsafe { libc::ftruncate(window.as_raw_fd(), 0) }, -1);
        Program { pid, channel, window: at.cast(), umask: 0o022, was_killed: Cell::new(false) }
    }

    /// Kills the process.
    pub fn kill(&self) {
        self.was_killed.set(true);
        let mut status = 0;
        // SAFETY: kill(2) takes numbers; the process is a child that is waited for below only.
        assert_eq!(unsafe { libc::kill(self.pid, libc::SIGKILL) }, 0);
        // SAFETY: `status` lives until the call returns.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
    }

    /// The window.
    pub fn window(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this many bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.window, WINDOW_BYTES) }
    }

    /// Sends a request, and waits for no reply.
    pub fn ask(&self, op: Op, request: Request, bytes: &[u8]) {
        let request = Request {
            op: op as u32,
            bytes: bytes.len() as u32,
            umask: self.umask as u16,
            processor: NO_PROCESSOR,
            ..request
        };
        send(&self.channel, &[&bytes_of(&request)[..], bytes].concat());
        if op != Op::Cancel {
            self.tell_of_packet();
        }
    }

    /// Puts into the mailbox what may be no request; true if the agent closes the channel.
    pub fn is_closed_after_mailbox(&self, request: Request) -> bool {
        let bytes = bytes_of(&request);
        // SAFETY: the mapping has room for a request there.
        unsafe { self.window.add(WINDOW_BYTES + REQUEST_AT).copy_from(bytes.as_ptr(), bytes.len()) };
        self.tell(ASKED);
        receive(&self.channel).0.is_empty()
    }

    fn tell_of_packet(&self) {
        self.tell(SENT);
    }

    /// The agent's thread sleeps at the mailbox.
    fn tell(&self, what: u32) {
        // SAFETY: the mapping has the mailbox behind the window, and lives as long as `self`.
        let word = unsafe { AtomicU32::from_ptr(self.window.add(WINDOW_BYTES + WORD_AT).cast()) };
        word.store(what, Ordering::SeqCst);
        // SAFETY: the call takes an address and numbers.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Waits for a reply.
    pub fn answer(&self) -> Answer {
        let (packet, passed) = receive(&self.channel);
        assert!(!packet.is_empty(), "the channel has ended");
        let (head, bytes) = packet.split_at(size_of::<Reply>());
        let reply: Reply = take(head);
        assert_eq!((reply.bytes as usize, reply.has_fd == 1), (bytes.len(), passed.is_some()));
        Answer { result: reply.result, desc: reply.desc, bytes: bytes.to_vec(), passed }
    }

    /// Whether a reply is there, or the end of the channel.
    pub fn has_answer(&self) -> bool {
        let mut asked = libc::pollfd { fd: self.channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `asked` lives until the call returns.
        unsafe { libc::poll(&raw mut asked, 1, 0) > 0 }
    }

    /// Sends bytes that may be no request; true if the agent closes the channel.
    pub fn is_closed_after(&self, bytes: &[u8]) -> bool {
        send(&self.channel, bytes);
        self.tell_of_packet();
        receive(&self.channel).0.is_empty()
    }

    /// Sends a request; true if the channel ends instead of an answer.
    pub fn is_lost_after(&self, op: Op, request: Request) -> bool {
        self.ask(op, request, &[]);
        self.has_lost_its_agent()
    }

    /// True if the channel ends instead of an answer to the request.
    pub fn has_lost_its_agent(&self) -> bool {
        receive(&self.channel).0.is_empty()
    }

    /// Does a request.
    pub fn call(&self, op: Op, request: Request, bytes: &[u8]) -> Answer {
        self.ask(op, request, bytes);
        self.answer()
    }

    /// open(2) below the root: the description and the descriptor.
    pub fn open(&self, path: &str, flags: i32) -> (u64, OwnedFd) {
        let request = Request { a: flags as u64, b: 0o666, ..Request::default() };
        let answer = self.call(Op::Open, request, path.as_bytes());
        assert_eq!(answer.result, 0, "open {path}");
        assert!(answer.bytes.len() >= size_of::<Stat>());
        (answer.desc, answer.passed.expect("a descriptor"))
    }

    /// A request about a description; gives its result.
    pub fn on(&self, op: Op, desc: u64, a: i32) -> i64 {
        self.call(op, Request { desc, a: a as u64, ..Request::default() }, &[]).result
    }

    /// A request about a path below the root; gives its result.
    pub fn at(&self, op: Op, path: &str, a: u64) -> i64 {
        self.call(op, Request { desc: NO_DESC, a, ..Request::default() }, path.as_bytes()).result
    }

    /// The memory that the agent shares with its programs.
    pub fn shared(&self) -> Shared {
        let fd = self.call(Op::Shared, Request::default(), &[]).passed.expect("memory");
        let (rights, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the system chooses.
        let at = unsafe { libc::mmap(null_mut(), aze_calls::shared::BYTES, rights, how, fd.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Shared(at.cast())
    }

    /// write(2).
    pub fn write(&mut self, desc: u64, data: &[u8]) -> i64 {
        self.window()[..data.len()].copy_from_slice(data);
        let request = Request { desc, offset: POSITION, len: data.len() as u64, ..Request::default() };
        self.call(Op::Write, request, &[]).result
    }

    /// pread(2) of up to 4096 bytes.
    pub fn read_at(&mut self, desc: u64, offset: u64) -> Vec<u8> {
        let answer = self.call(Op::Read, Request { desc, offset, len: 4096, ..Request::default() }, &[]);
        assert!(answer.result >= 0, "read: {}", answer.result);
        self.window()[..answer.result as usize].to_vec()
    }

    /// A lock of bytes, from `start` on: command and kind of fcntl(2).
    pub fn lock_request(desc: u64, command: i32, kind: i32, start: i64, len: i64) -> (Request, Vec<u8>) {
        // SAFETY: a structure of numbers.
        let mut lock: libc::flock = unsafe { zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (kind as libc::c_short, start, len);
        (Request { desc, a: command as u64, ..Request::default() }, bytes_of(&lock))
    }

    /// The same, done.
    pub fn lock(&self, desc: u64, command: i32, kind: i32, start: i64, len: i64) -> Answer {
        let (request, bytes) = Program::lock_request(desc, command, kind, start, len);
        self.call(Op::Lock, request, &bytes)
    }
}

/// Words that an agent shares with its programs.
pub struct Shared(*const AtomicU64);

impl Shared {
    /// One of them.
    pub fn word(&self, index: Option<usize>) -> &AtomicU64 {
        let index = index.filter(|index| *index < aze_calls::shared::WORDS).expect("a word");
        // SAFETY: the mapping has as many words and stays; the words are atomic.
        unsafe { &*self.0.add(index) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the mapping is of this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.window.cast(), CHANNEL_BYTES) };
        if self.pid > 0 && !self.was_killed.get() {
            // SAFETY: both take numbers; a child that was not waited for keeps its number.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            // SAFETY: the status is not asked for.
            unsafe { libc::waitpid(self.pid, null_mut(), 0) };
        }
    }
}

/// A reply.
pub struct Answer {
    pub result: i64,
    pub desc: u64,
    pub bytes: Vec<u8>,
    pub passed: Option<OwnedFd>,
}

/// Structures of numbers without gaps.
pub fn take<T: Copy>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: there are as many bytes, and the structures of these tests are numbers.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

/// The bytes of such a structure.
pub fn bytes_of<T: Copy>(value: &T) -> Vec<u8> {
    // SAFETY: the structures of these tests are numbers without gaps, or were made of zeros.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

fn send(channel: &OwnedFd, packet: &[u8]) {
    // SAFETY: the pointer and the length are those of `packet`.
    let sent = unsafe { libc::send(channel.as_raw_fd(), packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL) };
    assert_eq!(sent, packet.len() as isize, "{}", io::Error::last_os_error());
}

/// The next packet, and the descriptor that came with it; an empty one at the end.
fn receive(channel: &OwnedFd) -> (Vec<u8>, Option<OwnedFd>) {
    let (mut bytes, mut control) = (vec![0u8; aze_calls::MESSAGE_BYTES_MAX], [0u64; 4]);
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a message is pointers and lengths, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
    // SAFETY: everything that the message points to lives until the call returns.
    let count = unsafe { libc::recvmsg(channel.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    // A channel may be broken where its end is meant.
    let Ok(count) = usize::try_from(count) else { return (Vec::new(), None) };
    bytes.truncate(count);
    // SAFETY: the system has filled the message.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    let passed = (!header.is_null()).then(|| {
        // SAFETY: a header of SCM_RIGHTS is followed by a number.
        let number = unsafe { libc::CMSG_DATA(header).cast::<i32>().read_unaligned() };
        // SAFETY: the system has just given this descriptor, and nothing else knows it.
        unsafe { OwnedFd::from_raw_fd(number) }
    });
    (bytes, passed)
}
