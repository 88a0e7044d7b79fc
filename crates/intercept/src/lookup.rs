//! Names and attributes without a question: from the published indexes that the agent shares ([`aze_calls::indexes`]).
//!
//! It alone takes an answer from an index for the agent's: if its client would take it there. Of a path it is known which
//! directory its beginning leads to, as the agent has said with the answer to an earlier question: exactly these bytes, none of
//! them a link. After the index is read, it is looked whether server and agent are alive, whether the agent has learnt what ends that
//! knowledge, and whether a file may be open at the agent, of which only that may know all. Everything else is asked for. Of a file that
//! was looked up it knows later whether anything has changed since.
//!
//! What the agent has said of directories lies in memory that the kernel wipes in a child. Indexes stay mapped until the end: a thread
//! may be reading it.

use crate::channel::{self, Session};
use crate::host::{self, call, error, raw};
use crate::place::Target;
use crate::process::{self, wiped};
use crate::shared;
use aze_calls::indexes::{ResolvedDirectory, SERVERS_MAX, SharedIndexes, WANT_DIRECTORY, may_access};
use aze_calls::shared::{NAMES_VERSION_AT, SERVERS_VERSION_AT, TIME_AT, opens_at};
use aze_calls::{Op, Reply, Request, Stat, WINDOW_BYTES, after_stat};
use aze_index::{
    INODE_BLOCKS, INODE_MODES, INODE_OWNERS, INODE_SIZE, INODE_TIMES, INODE_VALUE_WORDS, Known, Layout, Named, Reader,
    SHAPES, Seen, chunk_bits_of, hash_of, parts, slot_of_hash,
};
use core::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence,
};

/// Longest path that is looked at, in bytes. It is copied to the stack, since the host may change it meanwhile.
const PATH_BYTES_MAX: usize = 256;

/// Longest name of an entry, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Questions that could have been answered from an index before the agent is asked for them: about as many as that takes.
const MISSED_MAX: u32 = 6;

/// How often a process gets the indexes, each time after the agent's servers have changed.
const GETS_MAX: u32 = 32;

/// Most slots of a volume.
const SLOTS_MAX: u32 = WINDOW_BYTES as u32 / 2;

/// Largest index that is mapped, in bytes.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Directories known by the path that leads to them.
const PLACES: usize = 256;
/// Directories and servers of which is known in which state names may be looked up.
const STATES: usize = 1024;

/// Words of a place: description, version, directory, namespace epoch, length of the path and its bytes.
const PLACE_WORDS: usize = 5 + PATH_BYTES_MAX / 8;

/// Words that are read and written whole, without a lock: the count is odd while they are written.
pub struct Note<const WORDS: usize> {
    count: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// What the agent has said of directories.
pub struct Directories {
    places: [Note<PLACE_WORDS>; PLACES],
    states: [Note<3>; STATES],
}

impl<const WORDS: usize> Note<WORDS> {
    /// The words, unless they are being written.
    fn read(&self) -> Option<[u64; WORDS]> {
        let before = self.count.load(Acquire);
        let mut words = [0; WORDS];
        for (to, from) in words.iter_mut().zip(&self.words) {
            *to = from.load(Relaxed);
        }
        fence(Acquire);
        (before.is_multiple_of(2) && self.count.load(Relaxed) == before).then_some(words)
    }

    /// Writes the words, unless another thread does.
    fn write(&self, words: &[u64; WORDS]) {
        let before = self.count.load(SeqCst);
        if !before.is_multiple_of(2) || self.count.compare_exchange(before, before + 1, SeqCst, SeqCst).is_err() {
            return;
        }
        for (to, from) in self.words.iter().zip(words) {
            to.store(*from, SeqCst);
        }
        self.count.store(before + 2, SeqCst);
    }
}

/// A path that ends in a name, and the directory below which it begins.
pub struct Key {
    desc: u64,
    bytes: [u8; PATH_BYTES_MAX],
    /// Where the name begins.
    name_at: usize,
    length: usize,
}

impl Key {
    /// The path of a target; `None` if it is too long, or does not end in a name.
    pub fn of(target: &Target) -> Option<Key> {
        let length = target.path.len();
        let mut bytes = [0; PATH_BYTES_MAX];
        bytes.get_mut(..length)?.copy_from_slice(target.path);
        let path = bytes.get(..length)?;
        let name_at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let key = Key { desc: target.desc, bytes, name_at, length };
        let is_name = !matches!(key.name(), b"" | b"." | b"..") && key.name().len() <= NAME_BYTES_MAX;
        is_name.then_some(key)
    }

    fn path(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&[])
    }

    fn name(&self) -> &[u8] {
        self.bytes.get(self.name_at..self.length).unwrap_or(&[])
    }

    fn beginning(&self) -> &[u8] {
        self.bytes.get(..self.name_at).unwrap_or(&[])
    }

    /// The words of the place, without the knowledge of it.
    fn words(&self) -> [u64; PLACE_WORDS] {
        let mut words = [0; PLACE_WORDS];
        (words[0], words[4]) = (self.desc, self.name_at as u64);
        for (to, from) in words[5..].iter_mut().zip(self.beginning().chunks(8)) {
            *to = from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        words
    }

    fn note(&self) -> Option<&'static Note<PLACE_WORDS>> {
        wiped().directories.places.get(hash_of(self.desc, self.beginning()) as usize % PLACES)
    }
}

fn state_note(dir: u64, server: u32) -> Option<&'static Note<3>> {
    // Fibonacci hashing: the high bits of a product depend on all bits below.
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    let place = dir.wrapping_mul(GOLDEN).wrapping_add(server.into()).wrapping_mul(GOLDEN);
    wiped().directories.states.get((place >> 40) as usize % STATES)
}

/// An index that is mapped.
struct Mapped {
    /// Server and one more; 0 if there is none.
    server: AtomicU32,
    /// Readable when the server has ended.
    process: AtomicI32,
    /// Number of the memory file.
    file: AtomicU64,
    at: AtomicU64,
    words: AtomicU64,
}

static MAPPED: [Mapped; SERVERS_MAX] = [const {
    Mapped {
        server: AtomicU32::new(0),
        process: AtomicI32::new(-1),
        file: AtomicU64::new(0),
        at: AtomicU64::new(0),
        words: AtomicU64::new(0),
    }
}; SERVERS_MAX];

impl Mapped {
    /// Its words, if there is one.
    fn reader(&self) -> Option<Reader<'static>> {
        let (at, words) = (self.at.load(SeqCst), self.words.load(SeqCst) as usize);
        if at == 0 {
            return None;
        }
        // SAFETY: the mapping has as many words and is never taken away, nor can the file be cut; its words are atomic.
        let words = unsafe { core::slice::from_raw_parts(at as *const AtomicU64, words) };
        Some(Reader { words, layout: Layout::of(words, &SHAPES)? })
    }
}

/// What the agent shares: this, which of [`MAPPED`] count, and the servers of the slots (u16).
#[derive(Clone, Copy)]
#[repr(C)]
struct Guide {
    shared: SharedIndexes,
    counts: [bool; SERVERS_MAX],
}

/// Where the guide is that counts; 0 if there is none. Those of before stay, since a thread may be reading one.
static GUIDE: AtomicU64 = AtomicU64::new(0);
/// Questions since then that could have been answered from an index.
static MISSED: AtomicU32 = AtomicU32::new(0);
/// How often the agent was asked for them.
static GETS: AtomicU32 = AtomicU32::new(0);

/// Descriptors of this room.
pub fn descriptors() -> impl Iterator<Item = i32> {
    MAPPED.iter().map(|mapped| mapped.process.load(SeqCst))
}

impl Guide {
    fn now() -> Option<&'static Guide> {
        let at = GUIDE.load(SeqCst);
        // SAFETY: the thread that stored the address had filled the memory, which is never given back or written again.
        (at != 0).then(|| unsafe { &*(at as *const Guide) })
    }

    fn counts(&self) -> bool {
        word(SERVERS_VERSION_AT) == Some(self.shared.version)
    }

    /// The server of a name's entry.
    fn server_of(&self, hash: u64) -> u32 {
        let slot = slot_of_hash(hash, self.shared.shard_bits, self.shared.slots);
        let slots = &raw const *self as u64 + size_of::<Guide>() as u64;
        u32::from(host::read::<u16>(slots + u64::from(slot) * 2))
    }

    fn index_of(&self, server: u32) -> Option<&'static Mapped> {
        let mapped = MAPPED
            .iter()
            .zip(&self.counts)
            .find(|(mapped, counts)| **counts && mapped.server.load(SeqCst) == server + 1);
        mapped.map(|(mapped, _)| mapped)
    }
}

fn word(index: usize) -> Option<u64> {
    shared::word(Some(index)).map(|word| word.load(SeqCst))
}

/// The record of a file's inode at one moment, by which is known later whether anything of the file has changed since.
#[derive(Clone, Copy)]
pub struct Witness {
    /// Where the guide is that counted.
    guide: u64,
    /// Which of [`MAPPED`], and one more.
    mapped: u64,
    /// Where the count of the record is, and its value then.
    at: u64,
    count: u64,
}

impl Witness {
    /// To be kept in memory that threads share.
    pub fn words(self) -> [u64; 4] {
        [self.guide, self.mapped, self.at, self.count]
    }

    /// What was kept so; zeros are none.
    pub fn of([guide, mapped, at, count]: [u64; 4]) -> Option<Witness> {
        (guide != 0).then_some(Witness { guide, mapped, at, count })
    }
}

/// What an index has said.
pub enum Looked {
    /// It is a regular file.
    File(Stat, Witness),
    /// There is no such name.
    Missing,
}

/// What the agent would answer to a question on this path now; `None` if it has to be asked.
pub fn look(session: &mut Session, key: &Key) -> Option<Looked> {
    let guide = Guide::now().filter(|guide| guide.counts())?;
    if process::is_broken() || !process::may_note() {
        return None;
    }
    let mut place = key.note()?.read()?;
    let [_, version, dir, namespace_epoch, ..] = place;
    (place[1], place[2], place[3]) = (0, 0, 0);
    if place != key.words() || word(NAMES_VERSION_AT) != Some(version) {
        return None;
    }
    let server = guide.server_of(hash_of(dir, key.name()));
    let [_, _, state] = state_note(dir, server)?.read().filter(|known| known[..2] == [dir, u64::from(server) + 1])?;
    let (mapped, socket) = (guide.index_of(server)?, session.socket()?);
    let index = mapped.reader()?;
    let known = Known { map_epoch: guide.shared.map_epoch, namespace_epoch: Some(namespace_epoch) };
    let is_held = |ino: Option<u64>| {
        let is_open = ino.is_some_and(|ino| word(opens_at(ino)) != Some(0));
        !is_open
            && are_alive(mapped.process.load(SeqCst), socket)
            && guide.counts()
            && word(NAMES_VERSION_AT) == Some(version)
    };
    let found = index.lookup(dir, key.name(), known, |_| true, is_held)?;
    if found.directory != state {
        return None;
    }
    match found.named {
        Named::File(ino, value, record) => {
            let stat = stat_of(ino, &value)?;
            // What the agent changes later is dated after this.
            seen(value[INODE_TIMES + 2])?;
            let place = MAPPED.iter().position(|other| core::ptr::eq(other, mapped))? as u64;
            let (guide, at) = (&raw const *guide as u64, record.at as u64);
            Some(Looked::File(stat, Witness { guide, mapped: place + 1, at, count: record.count }))
        }
        Named::Nothing(time) => {
            seen(time)?;
            Some(Looked::Missing)
        }
        Named::Unknown => None,
    }
}

/// Whether the answer to an open is of this inode.
pub fn is_of(session: &Session, reply: &Reply, ino: u64) -> bool {
    let bytes = session.bytes(reply);
    bytes.len() >= size_of::<Stat>() && host::read::<Stat>(bytes.as_ptr() as u64).ino == ino
}

/// Whether the file is unchanged since its record was seen: a question would be answered now as it would have been
/// then.
pub fn is_unchanged(session: &mut Session, witness: Witness) -> bool {
    is_still(session, witness).is_some()
}

fn is_still(session: &mut Session, witness: Witness) -> Option<()> {
    let guide = Guide::now().filter(|guide| &raw const **guide as u64 == witness.guide && guide.counts())?;
    let mapped = MAPPED.get(usize::try_from(witness.mapped).ok()?.checked_sub(1)?)?;
    let (index, socket) = (mapped.reader()?, session.socket()?);
    let seen = Seen { at: usize::try_from(witness.at).ok()?, count: witness.count };
    let known = Known { map_epoch: guide.shared.map_epoch, namespace_epoch: None };
    let is_held = || are_alive(mapped.process.load(SeqCst), socket) && guide.counts();
    index.counts(known, &[seen], is_held).then_some(())
}

/// The result of access(2); `None` if the agent has to be asked.
pub fn access(session: &mut Session, key: &Key, wanted: u32) -> Option<i64> {
    match look(session, key)? {
        Looked::Missing => Some(error(libc::ENOENT)),
        Looked::File(stat, _) => {
            let uid = Guide::now()?.shared.uid;
            may_access(uid, stat.uid, stat.mode, wanted).map(|may| if may { 0 } else { error(libc::EACCES) })
        }
    }
}

/// Notes a time that the host has seen.
fn seen(time: u64) -> Option<()> {
    let latest = shared::word(Some(TIME_AT))?;
    if latest.load(SeqCst) < time {
        latest.fetch_max(time, SeqCst);
    }
    Some(())
}

/// Whether a server's process has not ended, and the agent has not, either.
fn are_alive(server: i32, agent: i32) -> bool {
    let mut asked = [
        libc::pollfd { fd: server, events: libc::POLLIN, revents: 0 },
        libc::pollfd { fd: agent, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 },
    ];
    server >= 0 && agent >= 0 && call(libc::SYS_poll, asked.as_mut_ptr() as u64, asked.len() as u64, 0) == 0
}

/// As the agent's: `None` if the words cannot be a file's.
fn stat_of(ino: u64, value: &[u64; INODE_VALUE_WORDS]) -> Option<Stat> {
    let ((mode, nlink), (uid, gid)) = (parts(value[INODE_MODES]), parts(value[INODE_OWNERS]));
    let chunk_bits = chunk_bits_of(value);
    if mode & !0o7777 != 0 || !(16..=24).contains(&chunk_bits) {
        return None;
    }
    let time = |at: usize| {
        const SECOND_NS: u64 = 1_000_000_000;
        let ns = value[INODE_TIMES + at];
        [(ns / SECOND_NS) as i64, (ns % SECOND_NS) as i64]
    };
    Some(Stat {
        ino,
        size: value[INODE_SIZE],
        blocks: value[INODE_BLOCKS],
        rdev: 0,
        mode: libc::S_IFREG | mode,
        nlink,
        uid,
        gid,
        blksize: (1 << chunk_bits).min(WINDOW_BYTES as u32),
        pad: 0,
        atime: time(0),
        mtime: time(1),
        ctime: time(2),
        btime: time(3),
    })
}

/// Asks the agent about a path, which is `path` without a key, and notes what its answer says of the directory.
pub fn ask(
    session: &mut Session,
    request: Request,
    key: Option<&Key>,
    path: &[u8],
) -> Result<(Reply, Option<i32>), i64> {
    let Some(key) = key.filter(|_| process::may_note()) else {
        return session.ask_with_fd(request, &[path]);
    };
    if MISSED.load(SeqCst) >= MISSED_MAX && !Guide::now().is_some_and(Guide::counts) {
        get_indexes(session);
    }
    // The copy: what is noted is of these bytes, whatever the host makes of its own.
    let (reply, fd) = session.ask_with_fd(Request { len: WANT_DIRECTORY, ..request }, &[key.path()])?;
    let bytes = session.bytes(&reply);
    let is_of = |op: Op| request.op == op as u32 && reply.result >= 0;
    let (has_directory, would_have_done) = match fd {
        // The contents of an open for reading and writing are shown by an index only.
        _ if is_of(Op::Open) => (after_stat(bytes.len()).1, after_stat(bytes.len()).0),
        None if is_of(Op::Stat) => (bytes.len() == size_of::<Stat>() + size_of::<ResolvedDirectory>(), true),
        _ => (bytes.len() == size_of::<ResolvedDirectory>(), true),
    };
    if has_directory {
        note(key, &host::read((bytes.as_ptr() as usize + bytes.len() - size_of::<ResolvedDirectory>()) as u64));
        MISSED.fetch_add(u32::from(would_have_done), SeqCst);
    }
    Ok((reply, fd))
}

fn note(key: &Key, found: &ResolvedDirectory) {
    let mut words = key.words();
    (words[1], words[2], words[3]) = (found.version, found.dir, found.namespace_epoch);
    if let (Some(place), Some(state)) = (key.note(), state_note(found.dir, found.server)) {
        place.write(&words);
        state.write(&[found.dir, u64::from(found.server) + 1, found.state]);
    }
}

/// Gets the indexes from the agent, unless another thread does.
fn get_indexes(session: &mut Session) {
    let getting = &wiped().getting_indexes;
    if GETS.load(SeqCst) >= GETS_MAX || getting.swap(1, SeqCst) != 0 {
        return;
    }
    GETS.fetch_add(1, SeqCst);
    MISSED.store(0, SeqCst);
    shared::map(session);
    // A host whose memory is limited by addresses needs them itself.
    if !is_memory_limited()
        && let Some(guide) = guide(session)
    {
        GUIDE.store(guide, SeqCst);
    }
    getting.store(0, SeqCst);
}

fn is_memory_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let args = [0, libc::RLIMIT_AS as u64, 0, &raw mut limit as u64, 0, 0];
    raw(libc::SYS_prlimit64, args) < 0 || limit.rlim_cur != libc::RLIM_INFINITY
}

/// Where a new guide is.
fn guide(session: &mut Session) -> Option<u64> {
    let request = Request { op: Op::Indexes as u32, ..Request::default() };
    let reply = session.ask(request, &[]).ok().filter(|reply| reply.result >= 0)?;
    let bytes = session.bytes(&reply);
    if bytes.len() < size_of::<SharedIndexes>() {
        return None;
    }
    let (begin, head) = (bytes.as_ptr() as u64, size_of::<SharedIndexes>() as u64);
    let shared: SharedIndexes = host::read(begin);
    let count = shared.servers as usize;
    if count > SERVERS_MAX || bytes.len() != size_of::<SharedIndexes>() + count * 4 {
        return None;
    }
    if !(1..=SLOTS_MAX).contains(&shared.slots) || shared.shard_bits > 32 {
        return None;
    }
    let mut servers = [0u32; SERVERS_MAX];
    for (at, server) in servers.iter_mut().enumerate().take(count) {
        *server = host::read(begin + head + at as u64 * 4);
    }
    let (slots_bytes, guide_bytes) = (shared.slots as usize * 2, size_of::<Guide>());
    let at = host::map(guide_bytes + slots_bytes);
    if at == 0 {
        return None;
    }
    host::copy(at + guide_bytes as u64, session.window(), slots_bytes);
    let mut counts = [false; SERVERS_MAX];
    for server in servers.iter().take(count) {
        if let Some(counts) = map_index(session, *server).and_then(|place| counts.get_mut(place)) {
            *counts = true;
        }
    }
    host::write(at, Guide { shared, counts });
    Some(at)
}

/// Maps a server's index, unless that was done; which of [`MAPPED`] it is.
fn map_index(session: &mut Session, server: u32) -> Option<usize> {
    let request = Request { op: Op::Indexes as u32, a: u64::from(server) + 1, ..Request::default() };
    let memory = session.ask_with_fd(request, &[]).ok()?.1?;
    // SAFETY: zeros are a valid struct stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    let told = call(libc::SYS_fstat, memory as u64, &raw mut about as u64, 0);
    let bytes = about.st_size as u64;
    if told < 0 || bytes > INDEX_BYTES_MAX {
        host::close(memory);
        return None;
    }
    let is_it = |mapped: &Mapped| mapped.server.load(SeqCst) == server + 1 && mapped.file.load(SeqCst) == about.st_ino;
    if let Some(place) = MAPPED.iter().position(is_it) {
        host::close(memory);
        return Some(place);
    }
    let Some(place) = MAPPED.iter().position(|mapped| mapped.server.load(SeqCst) == 0) else {
        host::close(memory);
        return None;
    };
    let args = [0, bytes, libc::PROT_READ as u64, libc::MAP_SHARED as u64, memory as u64, 0];
    let at = raw(libc::SYS_mmap, args);
    host::close(memory);
    if at < 0 {
        return None;
    }
    call(libc::SYS_madvise, at as u64, bytes, libc::MADV_DONTDUMP as u64);
    let process = session.ask_with_fd(Request { b: 1, ..request }, &[]).ok().and_then(|(_, fd)| fd);
    let Some(process) = process else {
        host::unmap(at as u64, bytes as usize);
        return None;
    };
    let mapped = MAPPED.get(place)?;
    mapped.process.store(channel::hide(process), SeqCst);
    mapped.file.store(about.st_ino, SeqCst);
    mapped.at.store(at as u64, SeqCst);
    mapped.words.store(bytes / 8, SeqCst);
    mapped.server.store(server + 1, SeqCst);
    Some(place)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use aze_calls::NO_DESC;

    fn key(path: &'static str) -> Option<Key> {
        Key::of(&Target { desc: NO_DESC, path: path.as_bytes() })
    }

    #[test]
    fn a_path_has_a_key_if_it_ends_in_a_name() {
        let parts = |path| key(path).map(|key| (key.beginning().to_vec(), key.name().to_vec()));
        let is = |beginning: &str, name: &str| Some((beginning.as_bytes().to_vec(), name.as_bytes().to_vec()));
        assert_eq!(parts("/a/b/c"), is("/a/b/", "c"));
        assert_eq!((parts("c"), parts("/c"), parts("//c")), (is("", "c"), is("/", "c"), is("//", "c")));
        for path in ["", "/", "/a/", "/a/.", "..", "a/.."] {
            assert!(parts(path).is_none(), "{path}");
        }
        let long: &'static str = std::string::String::leak("n".repeat(PATH_BYTES_MAX + 1));
        assert!(key(long).is_none() && key(&long[1..]).is_none() && key(&long[2..]).is_some());
    }

    #[test]
    fn keys_of_different_beginnings_have_different_words() {
        let words = |path| key(path).expect("a name").words();
        assert_eq!(words("/abcdefg/x"), words("/abcdefg/y"));
        for other in ["/abcdefg//x", "abcdefg/x", "/abcdef/x", "/abcdefgh/x", "x"] {
            assert_ne!(words("/abcdefg/x"), words(other), "{other}");
        }
        let below = Key::of(&Target { desc: 7, path: b"/abcdefg/x" }).expect("a name");
        assert_ne!(words("/abcdefg/x"), below.words());
    }

    #[test]
    fn a_note_is_read_whole_or_not_at_all() {
        let note = Note { count: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 3] };
        std::thread::scope(|scope| {
            for writer in 1..3 {
                let note = &note;
                scope.spawn(move || (0..50_000).for_each(|round| note.write(&[round * writer; 3])));
            }
            for _ in 0..50_000 {
                assert!(note.read().is_none_or(|words| words.iter().all(|word| *word == words[0])));
            }
        });
        note.count.store(7, SeqCst);
        note.write(&[9; 3]);
        assert_eq!(
            (note.read(), note.count.load(SeqCst)),
            (None, 7),
            "another thread writes, or has been stopped for ever"
        );
    }

    #[test]
    fn words_of_an_index_are_a_regular_file_or_nothing() {
        let mut value = [1 << 32 | 0o4640, 7 << 32 | 5, 10, 1, 2, 3_000_000_004, 4, 0, (1 << 24 | 20) << 32, 2];
        let stat = stat_of(9, &value).expect("a file");
        assert_eq!((stat.ino, stat.mode, stat.nlink, stat.uid, stat.gid), (9, libc::S_IFREG | 0o4640, 1, 5, 7));
        assert_eq!((stat.size, stat.blocks, stat.blksize, stat.ctime), (10, 2, 1 << 20, [3, 4]));
        value[8] = 24 << 32;
        assert_eq!(stat_of(9, &value).expect("a file").blksize, WINDOW_BYTES as u32, "as the agent says");
        value[8] = 25 << 32;
        assert!(stat_of(9, &value).is_none());
        (value[8], value[0]) = (20 << 32, 0o10_000);
        assert!(stat_of(9, &value).is_none());
    }
}
