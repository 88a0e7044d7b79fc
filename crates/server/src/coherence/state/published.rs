//! The published index: what clients of this node read without a request.
//!
//! It alone knows what stands there and when it changes. A changed record is written, or taken away,
//! under the lock of its shard or directory and so before any client hears of the change; a missing record
//! is asked for, and put there then. So a client never reads the old state of anything after it, or
//! another client, has seen the new one. An inode's record is written anew or taken away with every change of the data beside the inode,
//! too: while it is the same, the data are. A volume in directories has none: its clients must read durable records only.

use crate::sabotage::{Sabotage, Switches};
use aze_io::Io;
use aze_io::published::{Writer, words_needed};
use aze_io::sync::Mutex;
use aze_meta::{Applied, EntryKey, Op};
use aze_proto::published::{
    DIRECTORIES, ENTRIES, INODES, NOTE_MAP_EPOCH, NOTE_NAMESPACE_EPOCH, NOTE_PERIOD, NOTE_REMOVED, SHAPES,
    counter_bits, entry_key, file_bits, inode_value,
};
use aze_proto::{Attr, FileKind, Ino, MapEpoch, NamespaceEpoch, Reply, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A server's published index, if it has one.
#[derive(Clone, Default)]
pub(crate) struct PublishedIndex(Option<Arc<Written>>);

struct Written {
    writer: Arc<Writer>,
    /// The last number given to the state of a directory.
    states: AtomicU64,
    /// Whether it is read.
    reading: Mutex<Reading>,
    /// Nothing is taken away: only the simulation does that.
    keeps_all: bool,
    /// New names are not counted: likewise.
    skips_count: bool,
    /// Records stay where only data change: likewise.
    skips_data: bool,
}

/// Whether clients read the index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Goes,
    /// Not while a slot is given.
    Pauses,
    /// Never again.
    Closed,
}

impl Written {
    fn clear(&self, table: usize, place: u64, key: &[u64]) {
        if !self.keeps_all {
            self.writer.clear(table, place, key);
        }
    }
}

impl PublishedIndex {
    /// A published index of about `bytes`; none for 0, or if the system has no such memory.
    pub(crate) fn new(io: &Io, bytes: u64, switches: &Switches) -> PublishedIndex {
        if bytes == 0 {
            return PublishedIndex(None);
        }
        // A bucket has four records.
        let [files, ..] = file_bits(bytes);
        let (bits, counters) = (file_bits(bytes).map(|bits| bits.saturating_sub(2)), counter_bits(files));
        let written = io.share(words_needed(&SHAPES, &bits, counters)).map(|memory| Written {
            writer: Arc::new(Writer::begin(memory, &SHAPES, &bits, counters)),
            // No client takes a number of another server, or of one that was here before, for one of this.
            states: AtomicU64::new(io.random_u64()),
            reading: Mutex::new(Reading::Goes),
            keeps_all: switches.is(Sabotage::SkipPublishedClear),
            skips_count: switches.is(Sabotage::SkipPublishedCount),
            skips_data: switches.is(Sabotage::SkipPublishedData),
        });
        PublishedIndex(written.map(Arc::new))
    }

    /// For the connections of clients.
    pub(crate) fn writer(&self) -> Option<Arc<Writer>> {
        self.0.as_ref().map(|written| written.writer.clone())
    }

    /// From now on clients that know an older map have to ask. To be called before the map counts.
    pub(crate) fn set_map_epoch(&self, epoch: MapEpoch) {
        let Some(written) = &self.0 else { return };
        let reading = written.reading.lock();
        if *reading == Reading::Goes {
            written.writer.set_note(NOTE_MAP_EPOCH, u64::from(epoch.0));
        }
    }

    /// Clients read nothing for a while, since another server may change it.
    pub(crate) fn pause(&self) {
        let Some(written) = &self.0 else { return };
        let mut reading = written.reading.lock();
        if *reading == Reading::Goes {
            *reading = Reading::Pauses;
            written.writer.set_note(NOTE_MAP_EPOCH, 0);
        }
    }

    /// The while is over; clients that know an older map than this have to ask.
    pub(crate) fn resume(&self, epoch: MapEpoch) {
        let Some(written) = &self.0 else { return };
        let mut reading = written.reading.lock();
        if *reading == Reading::Pauses {
            *reading = Reading::Goes;
            written.writer.set_note(NOTE_MAP_EPOCH, u64::from(epoch.0));
        }
    }

    /// Claims from now on belong to this period.
    pub(crate) fn set_period(&self, period: u64) {
        if let Some(written) = &self.0 {
            written.writer.set_note(NOTE_PERIOD, period);
        }
    }

    /// Nothing is to be read any more.
    pub(crate) fn close(&self) {
        let Some(written) = &self.0 else { return };
        *written.reading.lock() = Reading::Closed;
        written.writer.set_note(NOTE_MAP_EPOCH, 0);
    }

    /// From now on clients that know less of renamed directories have to ask.
    pub(crate) fn set_namespace_epoch(&self, epoch: NamespaceEpoch) {
        if let Some(written) = &self.0 {
            written.writer.set_note(NOTE_NAMESPACE_EPOCH, epoch.0);
        }
    }

    /// Names in this directory may be looked up by clients that were allowed to while it was in this
    /// state; a state without a number gets one. To be called under the directory's lock.
    pub(crate) fn put_directory(&self, dir: Ino, state: &mut u64) {
        let Some(written) = &self.0 else { return };
        if *state == 0 {
            *state = written.states.fetch_add(1, Ordering::Relaxed);
        }
        written.writer.put(DIRECTORIES, dir.0, &[dir.0], &[*state, 0]);
    }

    /// The directory's state ends. To be called under its lock.
    pub(crate) fn clear_directory(&self, dir: Ino, state: &mut u64) {
        if let Some(written) = &self.0
            && std::mem::take(state) != 0
        {
            written.clear(DIRECTORIES, dir.0, &[dir.0]);
        }
    }

    /// Names that are not there may have gone until this moment, on another server.
    pub(crate) fn note_removed(&self, time: Time) {
        if let Some(written) = &self.0 {
            written.writer.raise_note(NOTE_REMOVED, time.0);
        }
    }

    /// Whether clients read it.
    pub(crate) fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// A name that was neither there nor held is so now. To be called under the lock of its shard.
    pub(crate) fn count_name(&self, key: &EntryKey) {
        if let Some(written) = self.0.as_ref().filter(|written| !written.skips_count) {
            written.writer.count(key.hash.get());
        }
    }

    /// A name is neither there nor held any more. To be called under the lock of its shard.
    pub(crate) fn uncount_name(&self, key: &EntryKey, time: Time) {
        if let Some(written) = &self.0 {
            // Who sees that it is not there is told when it went.
            written.writer.raise_note(NOTE_REMOVED, time.0);
            written.writer.uncount(key.hash.get());
        }
    }

    /// An entry that is not locked is another one now. To be called under the lock of its shard.
    fn put_entry(&self, key: &EntryKey, ino: Ino, kind: FileKind) {
        if let Some(written) = &self.0
            && kind == FileKind::File
            && let Some(words) = entry_key(key.parent, &key.name)
        {
            written.writer.put(ENTRIES, key.hash.get(), &words, &[ino.0]);
        }
    }

    /// A file was looked up or opened by this name, and nothing has changed. To be called under the lock of its shard.
    pub(crate) fn show_entry(&self, key: &EntryKey, ino: Ino, attr: Option<&Attr>) {
        if let Some(written) = &self.0
            && let Some(words) = entry_key(key.parent, &key.name)
        {
            written.writer.show(ENTRIES, key.hash.get(), &words, &[ino.0]);
            attr.inspect(|attr| self.show_inode(attr));
        }
    }

    /// A file was looked at, and nothing has changed. To be called under the lock of its shard.
    pub(crate) fn show_inode(&self, attr: &Attr) {
        if let Some(written) = &self.0
            && let Some(value) = inode_value(attr)
        {
            written.writer.show(INODES, attr.ino.0, &[attr.ino.0], &value);
        }
    }

    fn clear_entry(&self, key: &EntryKey) {
        if let Some(written) = &self.0
            && let Some(words) = entry_key(key.parent, &key.name)
        {
            written.clear(ENTRIES, key.hash.get(), &words);
        }
    }

    /// The attributes of an inode here as they are now. To be called under the lock of its shard.
    fn put_inode(&self, attr: &Attr) {
        if let Some(written) = &self.0
            && let Some(value) = inode_value(attr)
        {
            written.writer.put(INODES, attr.ino.0, &[attr.ino.0], &value);
        }
    }

    fn clear_inode(&self, ino: Ino) {
        if let Some(written) = &self.0 {
            written.clear(INODES, ino.0, &[ino.0]);
        }
    }

    /// Data beside an inode have changed, and not its attributes: those who have seen the record with the data before are to see that. To be
    /// called under the lock of these data.
    pub(crate) fn data_changed(&self, ino: Ino) {
        if self.0.as_ref().is_some_and(|written| !written.skips_data) {
            self.clear_inode(ino);
        }
    }

    /// The entry is served by another server.
    pub(crate) fn withdraw_entry(&self, key: &EntryKey) {
        self.clear_entry(key);
    }

    /// The inode is served by another server.
    pub(crate) fn withdraw_inode(&self, ino: Ino) {
        self.clear_inode(ino);
    }

    /// An operation was applied to a shard, whose lock is still held. New states are written only of
    /// what stands alone: of a new file, and of one inode. All else is taken away.
    pub(crate) fn applied(&self, op: &Op, applied: &Applied) {
        if self.0.is_none() {
            return;
        }
        let effects = &applied.effects;
        match op {
            Op::Create { key, .. } | Op::CreateWith { key, .. } => {
                if let (Ok(Reply::Entry { created: true, .. }), Some(attr)) = (&applied.reply, &effects.attr) {
                    self.put_inode(attr);
                    self.put_entry(key, attr.ino, attr.kind);
                }
            }
            Op::Remove { key, .. } => {
                self.clear_entry(key);
                self.clear_changed(applied);
            }
            Op::Insert { key, ino, .. } | Op::LinkInsert { key, ino, .. } | Op::Exchange { key, ino, .. } => {
                self.clear_entry(key);
                self.clear_inode(*ino);
                self.clear_changed(applied);
            }
            Op::Lock { key, .. } | Op::Unlock { key, .. } => self.clear_entry(key),
            Op::Wrote { .. } if self.0.as_ref().is_some_and(|written| written.skips_data) => {}
            Op::SetAttr { ino, .. }
            | Op::Report { ino, .. }
            | Op::Wrote { ino, .. }
            | Op::Appended { ino, .. }
            | Op::Truncate { ino, .. }
            | Op::SetXattr { ino, .. } => match &effects.attr {
                Some(attr) if attr.ino == *ino => self.put_inode(attr),
                _ => self.clear_inode(*ino),
            },
            Op::TruncateDone { ino, .. }
            | Op::SetParent { ino, .. }
            | Op::Delete { ino }
            | Op::LinkBegin { ino, .. }
            | Op::LinkEnd { ino, .. }
            | Op::LinkDrop { ino, .. }
            | Op::LinkForget { ino, .. }
            | Op::SetLinks { ino, .. } => self.clear_inode(*ino),
            // An imported name was unknown to every client; notes about a backing are no attributes.
            Op::Import { key, .. } => self.clear_entry(key),
            Op::MakeRoot { .. }
            | Op::ImportedAll { .. }
            | Op::LieOver { .. }
            | Op::WillChange { .. }
            | Op::LeaveBacking { .. }
            | Op::Adopt { .. }
            | Op::Settled { .. }
            | Op::ForgetGone { .. }
            | Op::Record { .. }
            | Op::ReserveInos { .. }
            | Op::BeginLife { .. }
            | Op::LinkResolved { .. }
            | Op::EndSession { .. }
            | Op::ExpireOutcomes => {}
        }
    }

    fn clear_changed(&self, applied: &Applied) {
        let effects = &applied.effects;
        let removed = effects.removed.as_ref().map(|victim| victim.ino);
        let inos = [removed, effects.orphan, effects.attr.as_ref().map(|attr| attr.ino)];
        inos.into_iter().flatten().for_each(|ino| self.clear_inode(ino));
    }
}
