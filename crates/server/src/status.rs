//! What a server tells of itself.

use crate::state::Server;
use aze_proto::limits::{BLOCK_BYTES, BYTES_PER_RECORD, records_max};
use aze_proto::message::ServerStatus;
use aze_proto::{Attr, Code, Failure, FileKind, Ino, Name, Reply, SessionId, ShardId};

/// What one server keeps, row by row: for checks of a volume at rest. Between servers it is no
/// moment in time.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// Inodes that have their home here.
    pub inodes: Vec<Attr>,
    /// Opens of inodes that have their home here: the inode and how many.
    pub opens: Vec<(Ino, u64)>,
    /// Chunks stored here.
    pub chunks: Vec<(Ino, u64)>,
    /// Those with nothing but zeros, as after a reservation.
    pub reserved: Vec<(Ino, u64)>,
    /// Names that a transaction holds.
    pub locks: u64,
    /// Changes being worked on.
    pub running: u64,
    /// Names made or gone whose inodes' homes do not know it, or that a home still remembers.
    pub in_doubt: u64,
    /// Locks of files, and requests that wait for one.
    pub file_locks: u64,
    /// The shards that are served here.
    pub shards: Vec<ShardId>,
    /// Whether a slot is on its way to or from here.
    pub is_moving: bool,
    /// Sessions that no server serves, as far as this one knows.
    pub fenced: Vec<SessionId>,
}

impl Server {
    /// Everything here but the entries, for which see [`Self::entries_of`].
    pub fn contents(&self) -> Contents {
        let (is_moving, fenced) = (self.moving.is_busy(), self.sessions.fenced());
        let mut contents = Contents { is_moving, fenced, ..Contents::default() };
        for cell in self.shards.iter() {
            contents.shards.push(cell.id);
            contents.chunks.extend(cell.data.lock().stored());
            contents.reserved.extend(cell.data.lock().reserved());
            let names = cell.names.lock();
            contents.inodes.extend(names.shard.all_inodes().map(|inode| inode.attr.clone()));
            for ino in names.opens.inos() {
                match contents.opens.last_mut() {
                    Some((last, count)) if *last == ino => *count += 1,
                    _ => contents.opens.push((ino, 1)),
                }
            }
            contents.locks += names.shard.locks().count() as u64;
            contents.running += names.running.len() as u64;
            contents.in_doubt += names.shard.in_doubt().count() as u64;
            let remembered = names.shard.all_inodes().map(|inode| inode.rare.get());
            contents.in_doubt += remembered.map(|rare| (rare.links.len() + rare.dropped.len()) as u64).sum::<u64>();
            let counts = names.locks.values().map(|locks| locks.counts());
            contents.file_locks += counts.map(|(held, waiting)| (held + waiting) as u64).sum::<u64>();
        }
        contents
    }

    /// This server's entries of a directory, as the tables have them.
    pub fn entries_of(&self, dir: Ino) -> Vec<(Name, Ino, FileKind)> {
        let mut entries = Vec::new();
        for cell in self.shards.iter() {
            let names = cell.names.lock();
            entries.extend(
                names.shard.entries_after(dir, 0).map(|(_, name, entry)| (name.clone(), entry.ino, entry.kind)),
            );
        }
        entries
    }

    /// Fails when memory is full: names and inodes are kept beside the data, and a server without room for
    /// data makes no more of them; nor does one that has as many of them as fit its size.
    pub(crate) fn check_room(&self) -> Result<(), Failure> {
        let (used, capacity) = (self.store.used_bytes(), self.store.capacity_bytes());
        let used = used.saturating_sub(self.store.copies_bytes());
        if used + BLOCK_BYTES as u64 > capacity {
            return Err(Failure::new(Code::NoSpace, format!("{}: {used} of {capacity} bytes are used", self.who())));
        }
        let (records, most) = (self.shards.records.count(), records_max(self.config.capacity_bytes));
        if records >= most {
            let kept = format!(
                "{records} of {most} names and inodes, one for each {BYTES_PER_RECORD} bytes of its memory (aze up --size) and of extended attributes"
            );
            return Err(Failure::new(Code::NoSpace, format!("{} has {kept}", self.who())));
        }
        Ok(())
    }

    pub(crate) fn space(&self) -> Reply {
        let inodes = self.shards.iter().map(|cell| cell.names.lock().shard.inodes()).sum();
        self.store.settle();
        // Copies of the backing give way to data that are written.
        let used_bytes = self.store.used_bytes().saturating_sub(self.store.copies_bytes());
        let capacity_bytes = self.store.capacity_bytes();
        // Each has a name, here or elsewhere.
        Reply::Space { capacity_bytes, used_bytes, inodes, inodes_max: records_max(self.config.capacity_bytes) / 2 }
    }

    /// How this server is; also what the program shows of it.
    pub fn status(&self) -> ServerStatus {
        let (mut inodes, mut entries, mut chunks, mut opens, mut writers) = (0, 0, 0, 0, 0);
        for cell in self.shards.iter() {
            chunks += cell.data.lock().chunks();
            let names = cell.names.lock();
            inodes += names.shard.inodes();
            entries += names.shard.entries();
            opens += names.opens.len() as u64;
            writers += names.opens.all_writers() as u64;
        }
        self.store.settle();
        ServerStatus {
            index: self.slot(),
            host: self.config.host.clone(),
            pid: self.config.pid,
            incarnation: self.incarnation(),
            map_epoch: self.map_epoch_now(),
            namespace_epoch: self.namespace_epoch(),
            up_ns: self.io.mono_ns() - self.started_ns,
            capacity_bytes: self.store.capacity_bytes(),
            used_bytes: self.store.used_bytes(),
            touched_bytes: self.store.touched_bytes(),
            clean_bytes: self.store.copies_bytes(),
            drained_bytes: self.evictions.drained_bytes(),
            evicted_bytes: self.evictions.bytes(),
            evicted_chunks: self.evictions.chunks(),
            inodes,
            entries,
            chunks,
            sessions: self.sessions.connected(),
            opens,
            writers,
            requests: self.counters.counts(self.units_brought_back()),
            failure: self.failure().map_or(String::new(), |failure| failure.detail),
        }
    }
}
