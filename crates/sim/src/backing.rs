//! A backing in memory: a directory of another file system over which a simulated volume lies. It is slow, gives errors,
//! and changes underneath, as its test wants.

use aze_io::backing::{Backing, BackingError, BackingResult, Found, Identity, Names};
use aze_io::sync::Mutex;
use aze_io::{Boxed, Io};
use aze_proto::limits::BLOCK_BYTES;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Type bits of directories and regular files, with all rights for their owner.
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moods {
    /// Longest time of an operation, in milliseconds.
    pub slow_ms: u64,
    /// Operations of a million that fail with an input or output error.
    pub error_ppm: u64,
    /// Operations of a million that are denied.
    pub denied_ppm: u64,
    /// Operations of a million that take half a minute, longer than any asker waits.
    pub hung_ppm: u64,
}

/// A directory over which a volume lies, as its servers are told of it.
#[derive(Clone)]
pub struct Below {
    /// The directory.
    pub tree: Arc<dyn Backing>,
    /// What its root is.
    pub root: Identity,
}

impl std::fmt::Debug for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Below {:?}", self.root)
    }
}

impl From<SimBacking> for Below {
    fn from(backing: SimBacking) -> Below {
        let root = backing.root();
        Below { tree: Arc::new(backing), root }
    }
}

#[derive(Clone, Debug)]
struct Object {
    mode: u32,
    identity: Identity,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Vec<u8>, Object>,
    inodes: u64,
    /// Time of the last change: each has another one.
    now_ns: i64,
    moods: Moods,
}

/// A directory tree in memory.
#[derive(Clone)]
pub struct SimBacking {
    io: Io,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for SimBacking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SimBacking")
    }
}

impl SimBacking {
    /// An empty tree, which waits on the node of `io`.
    pub fn new(io: Io) -> SimBacking {
        let backing = SimBacking { io, state: Arc::default() };
        backing.put(b"", DIRECTORY, Vec::new());
        backing
    }

    /// What its root is.
    pub fn root(&self) -> Identity {
        self.state.lock().objects[&b""[..]].identity
    }

    /// Makes a directory.
    pub fn make_dir(&self, path: &str) {
        self.put(path.as_bytes(), DIRECTORY, Vec::new());
    }

    /// Makes a file, or puts another one in its place.
    pub fn make_file(&self, path: &str, bytes: Vec<u8>) {
        self.put(path.as_bytes(), FILE, bytes);
    }

    /// Writes to a file that is there.
    pub fn change(&self, path: &str, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        state.now_ns += 1;
        let now_ns = state.now_ns;
        let object = state.objects.get_mut(path.as_bytes()).expect("the file is there");
        object.identity = Identity { size: bytes.len() as u64, mtime_ns: now_ns, ctime_ns: now_ns, ..object.identity };
        object.bytes = bytes;
    }

    /// Removes a file.
    pub fn remove(&self, path: &str) {
        self.state.lock().objects.remove(path.as_bytes());
    }

    /// The object under a path, and its bytes.
    pub fn stored(&self, path: &str) -> Option<(Identity, Vec<u8>)> {
        self.state.lock().objects.get(path.as_bytes()).map(|object| (object.identity, object.bytes.clone()))
    }

    /// From now on this goes wrong.
    pub fn set_moods(&self, moods: Moods) {
        self.state.lock().moods = moods;
    }

    fn put(&self, path: &[u8], mode: u32, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        state.inodes += 1;
        state.now_ns += 1;
        let (inode, now_ns) = (state.inodes, state.now_ns);
        let identity = Identity { inode, size: bytes.len() as u64, mtime_ns: now_ns, ctime_ns: now_ns };
        state.objects.insert(path.to_vec(), Object { mode, identity, bytes });
    }

    async fn wait(&self) -> BackingResult<()> {
        let moods = self.state.lock().moods;
        let drawn = self.io.random_u64() % 1_000_000;
        let ms = if drawn < moods.hung_ppm { 30_000 } else { self.io.random_u64() % (moods.slow_ms + 1) };
        self.io.sleep(Duration::from_millis(ms)).await;
        match self.io.random_u64() % 1_000_000 {
            drawn if drawn < moods.error_ppm => Err(BackingError::Failed("input/output error".into())),
            drawn if drawn < moods.error_ppm + moods.denied_ppm => {
                Err(BackingError::Denied("permission denied".into()))
            }
            _ => Ok(()),
        }
    }

    fn object(&self, path: &[u8]) -> BackingResult<Object> {
        let object = self.state.lock().objects.get(path).cloned();
        object.ok_or_else(|| BackingError::Changed(format!("{}: it is gone", path.escape_ascii())))
    }

    fn same(&self, path: &[u8], identity: Identity) -> BackingResult<Object> {
        let object = self.object(path)?;
        if object.identity == identity {
            Ok(object)
        } else {
            Err(BackingError::Changed(format!("{}: it has changed", path.escape_ascii())))
        }
    }
}

fn found(name: &[u8], object: &Object) -> Found {
    Found { name: name.to_vec(), mode: object.mode, identity: object.identity, ..Found::default() }
}

impl SimBacking {
    /// All bytes of a file in one moment, if it is this one before and after the look.
    async fn bytes_of(&self, path: &[u8], identity: Identity) -> BackingResult<Vec<u8>> {
        self.same(path, identity)?;
        self.wait().await?;
        let bytes = self.object(path)?.bytes;
        self.wait().await?;
        self.same(path, identity)?;
        Ok(bytes)
    }
}

impl Backing for SimBacking {
    fn root(&self) -> &str {
        "/backing"
    }

    fn look(&self, path: Vec<u8>) -> Boxed<'_, BackingResult<Found>> {
        Box::pin(async move {
            self.wait().await?;
            Ok(found(b"", &self.object(&path)?))
        })
    }

    fn list(&self, path: Vec<u8>, identity: Identity) -> Boxed<'_, BackingResult<Arc<dyn Names>>> {
        Box::pin(async move {
            self.wait().await?;
            if self.object(&path)?.identity.inode != identity.inode {
                return Err(BackingError::Changed("another directory".into()));
            }
            let start = if path.is_empty() { Vec::new() } else { [&path[..], b"/"].concat() };
            let state = self.state.lock();
            let below = state.objects.keys().filter_map(|path| path.strip_prefix(&start[..]));
            let names = below.filter(|name| !name.is_empty() && !name.contains(&b'/')).map(<[u8]>::to_vec);
            let names = Mutex::new(names.collect());
            Ok(Arc::new(SimNames { backing: self.clone(), start, names }) as Arc<dyn Names>)
        })
    }

    fn read(&self, path: Vec<u8>, identity: Identity, offset: u64, len: usize) -> Boxed<'_, BackingResult<Vec<u8>>> {
        Box::pin(async move {
            let bytes = self.bytes_of(&path, identity).await?;
            let end = bytes.len().min(offset as usize + len);
            Ok(bytes.get(offset as usize..end).unwrap_or_default().to_vec())
        })
    }

    fn next_data(&self, path: Vec<u8>, identity: Identity, offset: u64) -> Boxed<'_, BackingResult<Range<u64>>> {
        Box::pin(async move { Ok(data_in(&self.bytes_of(&path, identity).await?, offset)) })
    }
}

/// The next data of a file with these bytes. Half of the blocks of zeros are holes.
pub(crate) fn data_in(bytes: &[u8], offset: u64) -> Range<u64> {
    let is_hole = |block: &(usize, &[u8])| block.0.is_multiple_of(2) && block.1.iter().all(|byte| *byte == 0);
    let blocks = || bytes.chunks(BLOCK_BYTES).enumerate().skip(offset as usize / BLOCK_BYTES);
    let start = |(index, _): (usize, &[u8])| offset.max((index * BLOCK_BYTES) as u64);
    let Some(data) = blocks().find(|block| !is_hole(block)).map(start) else { return u64::MAX..u64::MAX };
    let hole = blocks().find(|block| is_hole(block) && start(*block) > data).map(start);
    data..hole.unwrap_or(bytes.len() as u64)
}

/// The next page of a listing: a few names, so that small directories have several pages.
pub(crate) fn take_page(names: &Mutex<Vec<Vec<u8>>>, count: usize) -> Vec<Vec<u8>> {
    let mut names = names.lock();
    let page = names.len().min(count).min(3);
    names.drain(..page).collect()
}

struct SimNames {
    backing: SimBacking,
    start: Vec<u8>,
    names: Mutex<Vec<Vec<u8>>>,
}

impl Names for SimNames {
    fn next(&self, count: usize) -> Boxed<'_, BackingResult<Vec<Found>>> {
        Box::pin(async move {
            self.backing.wait().await?;
            let page = take_page(&self.names, count);
            let path = |name: &[u8]| [&self.start, name].concat();
            Ok(page.iter().filter_map(|name| Some(found(name, &self.backing.object(&path(name)).ok()?))).collect())
        })
    }
}
