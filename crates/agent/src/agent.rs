//! The agent: one session, and the table of what programs have open through it.
//!
//! One thread (`run`) takes channels and hears of the ends of descriptions and processes; each channel has a thread
//! that does its calls. The agent ends when neither a process nor a description is left.

use crate::channel;
use crate::description::{Description, Descriptions, Kind};
use crate::error::{Fault, Result, errno};
use crate::mailbox::Channel;
use crate::mapped::Mapped;
use crate::named_pipes::{self, NamedPipe, NamedPipes};
use crate::panics::{self, Held};
use crate::program::{Program, Programs, with_variable};
use crate::shared::Shared;
use crate::sys::{self, Epoll};
use aze_calls::{AGENT_VARIABLE, Welcome};
use aze_client::Client;
use aze_handles::Connected;
use aze_io::sync::Mutex;
use aze_proto::attr::Identity;
use aze_proto::error::Failure;
use aze_proto::ids::Ino;
use aze_proto::message::LockSpace;
use aze_reach::Volume;
use aze_words::errln;
use futures_channel::oneshot;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Channels at one time: as many calls can be under way. Each takes a thread, and up to 1 MiB of memory for its window. A further
/// one is refused with EAGAIN.
pub const CHANNELS_MAX: usize = 4096;

/// Bytes of the stack of a channel's thread. The system gives memory for the pages in use only.
const STACK_BYTES: usize = 1 << 20;

/// How long the agent does not look for descriptions that have ended, after it has found some: a program that closes many
/// files does not wake a thread for each. Servers are told of closes much later (`client/src/closes.rs`).
const REST: Duration = Duration::from_millis(1);

/// Least time between two lines of the log.
const QUIET: Duration = Duration::from_secs(1);

/// How [`Agent::ended`] is watched: it is reported once, and again when it is asked for again.
const ONCE: i32 = libc::EPOLLIN | libc::EPOLLONESHOT;

/// How a channel is watched that waits for no lock.
const HANG_UP: i32 = libc::EPOLLRDHUP | libc::EPOLLONESHOT;

/// Kinds of the numbers that [`Epoll`] reports, in their highest bits.
mod token {
    pub const LISTENER: u64 = 0;
    /// Some descriptions have ended: [`Agent::ended`](super::Agent::ended) knows which.
    pub const ENDED: u64 = 1;
    /// The thread of a channel has let go of the last description after the last process: [`Agent::emptied`](super::Agent::emptied).
    pub const EMPTIED: u64 = 2;
    /// One on which others may wait.
    pub const DESCRIPTION: u64 = 1 << 61;
    pub const PROGRAM: u64 = 2 << 61;
    pub const WAIT: u64 = 3 << 61;
    /// The other side of a channel has closed it.
    pub const CHANNEL: u64 = 4 << 61;
    pub const KIND: u64 = 7 << 61;
}

/// The agent of one volume for one tree of processes.
pub struct Agent {
    connected: Arc<Connected>,
    /// Where programs see the volume's root.
    at: Vec<u8>,
    /// Where it listens.
    path: PathBuf,
    /// Where the system's named pipes are that stand for those of the volume.
    pipes: PathBuf,
    /// The user whose processes it serves.
    uid: u32,
    welcome: Welcome,
    epoll: Epoll,
    /// Reports descriptions that have ended. The agent looks at it when there are some, at most every [`REST`], and before a
    /// lock is asked for.
    ended: Epoll,
    /// Pipes for descriptions, made ahead.
    named_pipes: NamedPipes,
    /// Held while some are let go of, so that who comes next finds them gone.
    letting_go: Mutex<()>,
    /// Tells the thread of [`Listening::run`] to look whether all is over: a description that another thread has let go of is not reported to it.
    emptied: File,
    /// Memory that all programs share.
    pub shared: Arc<Shared>,
    /// All that programs have open.
    pub descriptions: Descriptions,
    /// Files that programs have mapped to be shared and written.
    pub mapped: Mapped,
    programs: Mutex<Programs>,
    /// Numbers of descriptions, of owners of locks and of waits: none is given twice.
    numbers: AtomicU64,
    channels: AtomicUsize,
    /// Those that are watched, by their numbers.
    watched_channels: Mutex<BTreeMap<u64, Arc<Channel>>>,
    /// What ends a wait for a lock, by the number of the wait.
    waits: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    log: Mutex<Log>,
    /// A descriptor that is kept for [`Agent::turn_away`].
    spare: Mutex<Option<File>>,
}

#[derive(Default)]
struct Log {
    last: Option<Instant>,
    left_out: u64,
}

/// An agent that listens already.
pub struct Listening {
    agent: Arc<Agent>,
    listener: OwnedFd,
    program: u32,
    files_max: u64,
}

impl Listening {
    /// Connects to a volume and listens at `path`, in a directory that its owner alone may enter, for `program` and the
    /// processes that it starts, which see the volume at the absolute path `at`.
    ///
    /// # Errors
    /// Those of [`Connected::to`]; what the system said.
    pub fn start(volume: Volume, path: &Path, at: &Path, program: u32) -> aze_handles::Result<Listening> {
        let failed = |what: &str, error: &io::Error| {
            let number = error.raw_os_error().unwrap_or(libc::EINVAL);
            aze_handles::Error::new(number, format!("{what}: {error}"))
        };
        let files_max = sys::open_as_many_files_as_allowed();
        let dev = dev_of(&volume.record.name, volume.record.created_ns);
        let pipes = volume.pipes_dir();
        let connected = Connected::to(volume)?;
        connected.go_on_without_callers()?;
        connected.use_lanes();
        let listener = sys::listen(path).map_err(|error| failed(&format!("listen at {}", path.display()), &error))?;
        let watched = |error: &io::Error| failed("watch the program", error);
        let shared = Shared::new().map_err(|error| failed("make memory for programs", &error))?;
        let counts = shared.clone();
        connected.client().tell_changes(Box::new(move |counter| counts.count_change(counter)));
        connected.client().share_with(shared.clone());
        let flush_at_close = u32::from(connected.client().syncs_at_close());
        let agent = Arc::new(Agent {
            uid: aze_io::real::user_id(),
            welcome: Welcome { result: 0, flush_at_close, dev },
            at: at.as_os_str().as_bytes().to_vec(),
            path: path.to_owned(),
            pipes,
            epoll: Epoll::new().map_err(|error| watched(&error))?,
            ended: Epoll::new().map_err(|error| watched(&error))?,
            named_pipes: NamedPipes::new(path.with_extension("opens"), files_max),
            letting_go: Mutex::default(),
            emptied: aze_io::real::event().map_err(|error| watched(&error))?,
            shared,
            descriptions: Descriptions::default(),
            mapped: Mapped::default(),
            programs: Mutex::default(),
            numbers: AtomicU64::new(1),
            channels: AtomicUsize::new(0),
            watched_channels: Mutex::default(),
            waits: Mutex::default(),
            log: Mutex::default(),
            spare: Mutex::new(File::open("/dev/null").ok()),
            connected,
        });
        agent.epoll.add(&listener, libc::EPOLLIN, token::LISTENER).map_err(|error| watched(&error))?;
        agent.epoll.add(&agent.ended, ONCE, token::ENDED).map_err(|error| watched(&error))?;
        let each_time = libc::EPOLLIN | libc::EPOLLET;
        agent.epoll.add(&agent.emptied, each_time, token::EMPTIED).map_err(|error| watched(&error))?;
        match agent.program(program) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(watched(&error)),
            _ => {}
        }
        Ok(Listening { agent, listener, program, files_max })
    }

    /// Serves until no process and no open file is left; blocks until then.
    ///
    /// # Errors
    /// What epoll(7) said.
    pub fn run(self) -> io::Result<()> {
        let Listening { program, files_max, .. } = self;
        // Operations may panic, and the agent goes on.
        aze_io::defects::end_at_locks_after_a_panic();
        self.agent.say(format_args!("serve process {program}; at most {files_max} files can be open at one time"));
        let served = self.agent.serve(&self.listener);
        // A program that comes now is refused by the system.
        let _ = std::fs::remove_file(&self.agent.path);
        self.agent.named_pipes.remove();
        self.agent.settle();
        self.agent.connected.end();
        served
    }
}

/// The number by which stat(2) names a volume's device: one that the system hardly gives to a file system of its own, since it
/// counts such numbers up from 1.
fn dev_of(name: &str, created_ns: u64) -> u64 {
    let mut hash = created_ns ^ 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    libc::makedev(0, 0x8_0000 | (hash >> 32) as u32 & 0x7_ffff)
}

impl Agent {
    fn serve(self: &Arc<Self>, listener: &OwnedFd) -> io::Result<()> {
        // While there is such a time, the ends of most descriptions do not wake this thread.
        let mut rests_until: Option<Instant> = None;
        loop {
            let limit = rests_until.map(|until| until.saturating_duration_since(Instant::now()));
            let (mut changed, mut is_told) = (false, false);
            for number in self.epoll.wait(limit)? {
                let what = number & !token::KIND;
                match number & token::KIND {
                    token::DESCRIPTION => changed |= self.let_go(&[what]),
                    token::PROGRAM => {
                        self.program_ended(what);
                        changed = true;
                    }
                    token::WAIT => drop(self.waits.lock().remove(&what)),
                    token::CHANNEL => self.channel_ended(what),
                    _ if number == token::ENDED => is_told = true,
                    _ if number == token::EMPTIED => changed = true,
                    _ => self.take_channel(listener),
                }
            }
            // Also after the end of a program: with it, its descriptions have ended.
            let some_ended = self.let_go_of_ended()?;
            if changed | some_ended && self.is_done() {
                return Ok(());
            }
            if some_ended || is_told {
                rests_until = Some(Instant::now() + REST);
            } else if rests_until.is_some_and(|until| until <= Instant::now()) {
                // The next one is told at once, also if it has ended already.
                rests_until = None;
                self.epoll.rearm(&self.ended, ONCE, token::ENDED)?;
            }
        }
    }

    /// Whether neither a process nor a description is left.
    fn is_done(self: &Arc<Self>) -> bool {
        // A process may be forked by one that was looked at before it, and that has ended before it was looked at.
        for _ in 0..2 {
            if !self.programs.lock().is_empty() || !self.are_all_closed() {
                return false;
            }
            for pid in with_variable(AGENT_VARIABLE, self.path.as_os_str().as_bytes()) {
                // One that has ended meanwhile has no descriptor.
                let _ = self.program(pid);
            }
        }
        self.programs.lock().is_empty() && self.are_all_closed()
    }

    /// Whether no description is left. After a panic one may be held by its call for ever: only processes count then.
    fn are_all_closed(&self) -> bool {
        panics::has_been() || self.descriptions.is_empty()
    }

    fn take_channel(self: &Arc<Self>, listener: &OwnedFd) {
        let socket = match sys::accept(listener) {
            Ok(socket) => socket,
            Err(error) => {
                if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
                    self.turn_away(listener);
                }
                return self.say(format_args!("take a channel: {error}"));
            }
        };
        let number = self.channels.fetch_add(1, SeqCst);
        let taken = Taken(self.clone());
        let is_one_too_many = number >= CHANNELS_MAX;
        let serve = move || channel::serve(&taken.0, socket, is_one_too_many);
        let thread = std::thread::Builder::new().name("aze-channel".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(serve) {
            self.say(format_args!("start a thread for a channel: {error}"));
        }
    }

    /// Ends a channel for which there is no descriptor: else it would be reported again and again.
    fn turn_away(&self, listener: &OwnedFd) {
        let mut spare = self.spare.lock();
        *spare = None;
        // Another thread may have taken the descriptor meanwhile; then it is reported once more.
        drop(sys::accept(listener));
        *spare = File::open("/dev/null").ok();
    }

    /// What a channel that was taken is told, apart from errors.
    pub fn welcome(&self) -> Welcome {
        self.welcome
    }

    /// The user whose processes may connect.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Where programs see the volume's root.
    pub fn at(&self) -> &[u8] {
        &self.at
    }

    /// The path of the system's named pipe that stands for one of the volume (fifo(7)), which is made if it is not there: programs
    /// without a mount on this machine meet in it. It stays until the volume ends, as other programs may know it.
    ///
    /// # Errors
    /// What the system said.
    pub fn pipe_of(&self, ino: Ino) -> Result<Vec<u8>> {
        match DirBuilder::new().mode(0o700).create(&self.pipes) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let path = self.pipes.join(ino.0.to_string());
        match sys::make_named_pipe(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
            _ => Ok(path.into_os_string().into_vec()),
        }
    }

    /// What asks the servers.
    pub fn client(&self) -> &Client {
        self.connected.client()
    }

    /// On whose behalf.
    pub fn who(&self) -> &Identity {
        self.connected.who()
    }

    /// The connection to the volume.
    pub fn connected(&self) -> &Arc<Connected> {
        &self.connected
    }

    /// Blocks until an operation is done. A panic of the client in the middle of it is its failure, with EIO.
    pub fn wait<T>(&self, operation: impl Future<Output = std::result::Result<T, Failure>>) -> Result<T> {
        Ok(self.wait_for(operation)??)
    }

    /// As [`Agent::wait`]; gives the failure itself to a caller that has an answer to some of them.
    pub fn wait_for<T>(&self, operation: impl Future<Output = T>) -> Result<T> {
        // What this thread does for others while it leads is not to be caught.
        let _held = Held::begin();
        let operation = pin!(operation);
        let caught = panics::catching(operation, || self.client().forget_what_it_believes());
        self.connected.wait(caught).map_err(Fault::Failed)
    }

    /// As [`Agent::wait_for`], for operations that have an effect at the servers which outlives them and that another program
    /// would wait for: a panic ends the agent, and so the session and the effect.
    pub fn wait_for_lock<T>(&self, operation: impl Future<Output = T>) -> Result<T> {
        let _held = Held::begin();
        let operation = pin!(operation);
        self.connected.wait(async { Ok(operation.await) }).map_err(Fault::Failed)
    }

    /// A number that no description, owner or wait had before.
    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, SeqCst)
    }

    /// The process of this number, known from now on until it ends.
    ///
    /// # Errors
    /// ESRCH if it has ended; what the system said.
    pub fn program(self: &Arc<Self>, pid: u32) -> io::Result<Arc<Program>> {
        let mut programs = self.programs.lock();
        if let Some(program) = programs.get(&pid).filter(|program| !sys::has_ended(&program.descriptor)) {
            return Ok(program.clone());
        }
        // Another process had this number, and its end has not been reported yet.
        programs.remove(&pid).iter().for_each(|before| self.program_has_ended(before));
        let program = Arc::new(Program::of(pid, self.number())?);
        programs.insert(pid, program.clone());
        // It is known before its end can be reported.
        match self.epoll.add(&program.descriptor, libc::EPOLLIN, token::PROGRAM | program.owner) {
            Ok(()) => Ok(program),
            Err(error) => {
                programs.remove(&pid);
                Err(error)
            }
        }
    }

    fn program_ended(self: &Arc<Self>, owner: u64) {
        let mut programs = self.programs.lock();
        let pid = programs.values().find(|program| program.owner == owner).map(|program| program.process.pid);
        let ended = pid.and_then(|pid| programs.remove(&pid));
        drop(programs);
        ended.iter().for_each(|program| self.program_has_ended(program));
    }

    fn program_has_ended(self: &Arc<Self>, program: &Program) {
        self.epoll.remove(&program.descriptor);
        for description in program.ends() {
            self.unlock_later(&description, program.owner);
        }
        if self.mapped.is_used() {
            let agent = self.clone();
            // This thread does not wait for servers.
            let settling = std::thread::Builder::new().name("aze-mapped".into()).spawn(move || agent.settle());
            settling.map_or_else(|error| self.say(format_args!("start a thread for mappings: {error}")), drop);
        }
    }

    /// Writes what processes have stored in shared mappings. Blocks.
    fn settle(&self) {
        if let Err(fault) = self.mapped.settle(self) {
            self.say(format_args!("write what was stored in a mapping: {fault:?}"));
        }
    }

    /// Ends, in the background, what an owner has locked through a description.
    pub fn unlock_later(self: &Arc<Self>, description: &Arc<Description>, owner: u64) {
        let Ok(file) = description.open().cloned() else { return };
        let agent = self.clone();
        self.connected.begin(async move {
            if let Err(failure) = file.unlock_owner(LockSpace::Ranges, owner).await {
                agent.say(format_args!("unlock inode {} of a process that has ended: {failure}", file.ino()));
            }
        });
    }

    /// Reserves a named pipe; `None` if there are too many.
    ///
    /// # Errors
    /// What the system said.
    pub fn reserve_pipe(&self) -> io::Result<Option<Arc<NamedPipe>>> {
        self.named_pipes.reserve(&self.ended)
    }

    /// A named pipe is reserved no longer.
    pub fn give_pipe_back(&self, pipe: Arc<NamedPipe>) {
        self.named_pipes.give_back(pipe);
    }

    /// The directory of the named pipes.
    ///
    /// # Errors
    /// What the system said.
    pub fn pipes_directory(&self) -> io::Result<OwnedFd> {
        self.named_pipes.directory()
    }

    /// Makes a description known; its reading end is for the program, or the program has it.
    ///
    /// # Errors
    /// EBADF if the program has not; what epoll(7) said.
    pub fn watch(self: &Arc<Self>, description: Arc<Description>) -> Result<()> {
        // It is known before its end can be reported.
        self.descriptions.insert(description.clone());
        let number = description.number;
        if let Some(pipe) = description.named_pipe() {
            self.named_pipes.bind(pipe, number);
            // The program may have ended before, and then nothing is reported any more.
            return if pipe.has_reader() {
                Ok(())
            } else {
                self.let_go(&[number]);
                self.tell_if_all_is_over()?;
                Err(errno(libc::EBADF))
            };
        }
        self.ended.add(description.writing_end(), libc::EPOLLET, number).map_err(|error| {
            self.descriptions.remove(&[number]);
            error.into()
        })
    }

    /// From now on the end of this description is told at once: another program may wait for its locks.
    ///
    /// # Errors
    /// ENOSPC beyond the watches that epoll(7) allows.
    pub fn watch_closely(&self, description: &Description) -> Result<()> {
        if description.is_watched_closely.swap(true, SeqCst) {
            return Ok(());
        }
        if description.named_pipe().is_some() {
            // It may be watched for a description before.
            self.epoll.remove(description.writing_end());
        }
        let watched = self.epoll.add(description.writing_end(), libc::EPOLLET, token::DESCRIPTION | description.number);
        watched.map_err(|error| {
            description.is_watched_closely.store(false, SeqCst);
            error.into()
        })
    }

    /// Lets go of the descriptions whose last copy has gone before this call; false if there are none. Waits for no server.
    ///
    /// # Errors
    /// What epoll(7) said.
    pub fn let_go_of_ended(self: &Arc<Self>) -> io::Result<bool> {
        // Who comes later does not find them any more: a panic in between ends the agent.
        let _held = Held::begin();
        let _alone = self.letting_go.lock();
        let mut some = false;
        loop {
            let ended = self.ended.wait(Some(Duration::ZERO))?;
            if ended.is_empty() {
                break;
            }
            let number = |reported: u64| match named_pipes::of_token(reported) {
                Some(pipe) => self.named_pipes.ended(pipe),
                None => Some(reported),
            };
            let ended: Vec<u64> = ended.into_iter().filter_map(number).collect();
            some |= self.let_go(&ended);
        }
        if some {
            self.tell_if_all_is_over()?;
        }
        Ok(some)
    }

    /// Has the thread of [`Listening::run`] look whether all is over, if it may be: a description was let go of.
    fn tell_if_all_is_over(&self) -> io::Result<()> {
        if self.descriptions.is_empty() && self.programs.lock().is_empty() {
            (&self.emptied).write_all(&1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// The last copies of these descriptions have gone; false if all were let go of before.
    fn let_go(self: &Arc<Self>, numbers: &[u64]) -> bool {
        let descriptions = self.descriptions.remove(numbers);
        let some = !descriptions.is_empty();
        // Without a close a file is closed in the background, when the last call on it has ended; its locks go, too.
        for description in descriptions {
            if let Some(pipe) = description.named_pipe() {
                if description.is_watched_closely.load(SeqCst) {
                    self.epoll.remove(&pipe.writing_end);
                }
                self.named_pipes.give_back(pipe.clone());
            }
            if let Kind::File(file) = &description.kind
                && file.access().write
                && self.client().syncs_at_close()
            {
                let (file, agent) = (file.clone(), self.clone());
                self.connected.begin(async move {
                    if let Err(failure) = file.close().await {
                        agent.say(format_args!("close inode {}: {failure}", file.ino()));
                    }
                });
            }
        }
        some
    }

    /// From now on the channel ends when the other side closes it, though its thread waits at the mailbox.
    ///
    /// # Errors
    /// ENOSPC beyond the watches that epoll(7) allows.
    pub fn watch_channel(&self, channel: &Arc<Channel>) -> io::Result<()> {
        self.watched_channels.lock().insert(channel.number, channel.clone());
        let watched = self.epoll.add(&channel.socket, HANG_UP, token::CHANNEL | channel.number);
        watched.inspect_err(|_| self.forget_channel(channel))
    }

    /// A channel has ended.
    pub fn forget_channel(&self, channel: &Channel) {
        self.watched_channels.lock().remove(&channel.number);
    }

    fn channel_ended(&self, number: u64) {
        let channel = self.watched_channels.lock().get(&number).cloned();
        channel.iter().for_each(|channel| channel.end());
    }

    /// What resolves when a wait is over because its channel has something to say, or has ended; and the number of the wait.
    ///
    /// # Errors
    /// What epoll(7) said.
    pub fn begin_wait(&self, channel: &Channel) -> Result<(u64, oneshot::Receiver<()>)> {
        let (number, (end, ended)) = (self.number(), oneshot::channel());
        self.waits.lock().insert(number, end);
        let events = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT;
        match self.epoll.rearm(&channel.socket, events, token::WAIT | number) {
            Ok(()) => Ok((number, ended)),
            Err(error) => {
                self.waits.lock().remove(&number);
                Err(error.into())
            }
        }
    }

    /// A wait is over.
    pub fn end_wait(&self, number: u64, channel: &Channel) {
        if self.epoll.rearm(&channel.socket, HANG_UP, token::CHANNEL | channel.number).is_err() {
            // No thread would hear of its end.
            channel.end();
        }
        self.waits.lock().remove(&number);
    }

    /// Writes a line to the log, at most one each second.
    pub fn say(&self, text: std::fmt::Arguments<'_>) {
        let left_out = {
            let mut log = self.log.lock();
            let now = Instant::now();
            if log.last.is_some_and(|last| now.duration_since(last) < QUIET) {
                log.left_out += 1;
                return;
            }
            log.last = Some(now);
            std::mem::take(&mut log.left_out)
        };
        let more = if left_out > 0 { format!(" ({left_out} more since the last line)") } else { String::new() };
        errln!("{text}{more}");
    }
}

/// One of the channels, until it ends.
struct Taken(Arc<Agent>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.channels.fetch_sub(1, SeqCst);
    }
}
