//! A directory of persistent storage within one mapped file: for persistent memory.
//!
//! | where | content |
//! |---|---|
//! | byte 0 and byte 4,096 | two copies of the superblock ([`format`]): how long all of it is, where the table is, and its checksum |
//! | behind them | two places for the table of files, used in turn: names, lengths, blocks |
//! | from the first whole block on | blocks of file data |
//!
//! A change of the table is written to the place that is not in use and synced, then to one copy of
//! the superblock, then to the other, each synced before the next is touched. So at any moment one copy
//! at least is whole, and of two that are whole the newer one is right; one that is not was being
//! written, or has changed since: that cannot be told apart, and does no harm. What changes a name or a
//! length is durable when it returns.
//!
//! One rule keeps file data clean: nothing is written to a block that the durable table does not give to
//! that file, and a block that it gives was durably zero before. So after a power cut the place of an unsynced write
//! has words of it and zeros, or the bytes from before, never those of another file.
//!
//! It knows [`Memory`] only: what keeps it, and how that is synced, is for others (`real::disk::mapping`).

mod dir;
mod format;
mod room;

#[cfg(test)]
mod tests;

use crate::disk::{DiskError, DiskResult};
use crate::sync::{Mutex, RwLock};
use format::{Copied, Layout, Superblock};
use room::{Extent, Room};
use std::collections::BTreeMap;
use std::sync::Arc;

pub use dir::{Hands, Work, open_dir};
pub use format::FORMAT;

/// Base-2 logarithm of the size of a block, unless chosen otherwise.
pub const BLOCK_BITS_DEFAULT: u32 = 20;

/// A file that grows gets, beyond the blocks it needs, a quarter of those it has, but at most this many.
const AHEAD_BLOCKS_MAX: u64 = 16;

/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Memory that keeps written bytes, once they are synced. Ranges lie within it.
pub trait Memory: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;
    /// Its length in bytes.
    fn bytes(&self) -> u64;
    /// Copies from it.
    fn read(&self, at: u64, to: &mut [u8]);
    /// Copies to it. Before a sync any of the words of eight bytes may be durable, in any order.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Writes zeros.
    fn zero(&self, at: u64, bytes: u64);
    /// Makes a range durable.
    ///
    /// # Errors
    /// Why it is not; nothing is known of it then.
    fn sync(&self, at: u64, bytes: u64) -> DiskResult<()>;
    /// Has room for all of it, before anything is written.
    ///
    /// # Errors
    /// There is none.
    fn prepare(&self) -> DiskResult<()>;
    /// Where the first byte is, from `at` on, that is not zero.
    ///
    /// # Errors
    /// Why that cannot be told.
    fn first_data(&self, at: u64) -> DiskResult<Option<u64>>;
}

/// The files in a memory.
pub struct Files {
    memory: Arc<dyn Memory>,
    layout: Layout,
    table: Mutex<Table>,
    room: Arc<Room>,
    remark: Option<String>,
}

/// The durable table: it changes once a change is durable.
struct Table {
    names: BTreeMap<String, Arc<Node>>,
    generation: u64,
    /// The copy of the superblock that is written last: the other one may be older, or not whole.
    kept_copy: usize,
    /// Whether a superblock has ever been written.
    is_claimed: bool,
    /// Whether the memory has room for everything.
    is_prepared: bool,
    /// Why nothing can be changed any more.
    failed: Option<DiskError>,
}

/// A file, as long as it has a name or is open.
pub struct Node {
    shape: RwLock<Arc<Shape>>,
    /// Where the next bytes go, if it grows at its end. Held while something is added.
    end: Mutex<u64>,
    /// Whether its length is that of its room.
    is_log: bool,
    /// The range written and not synced, from the first such byte to the last.
    unsynced: Mutex<Option<(u64, u64)>>,
    /// Why a sync failed. Held while one is under way, which others wait for.
    sync_failed: Mutex<Option<DiskError>>,
    room: Arc<Room>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shape {
    bytes: u64,
    extents: Vec<Extent>,
}

impl Node {
    fn new(shape: Shape, is_log: bool, room: &Arc<Room>) -> Arc<Node> {
        Arc::new(Node {
            end: Mutex::new(shape.bytes),
            shape: RwLock::new(Arc::new(shape)),
            is_log,
            unsynced: Mutex::default(),
            sync_failed: Mutex::default(),
            room: room.clone(),
        })
    }
}

impl Shape {
    fn blocks(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.count)).sum()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The table has not named it for a while, or everything ends.
        self.room.give_back(&self.shape.get_mut().extents);
    }
}

impl Files {
    /// Opens the files in a memory. Nothing is written: a memory that is all zeros gets a superblock with the first
    /// change, and blocks of `2^block_bits` bytes.
    ///
    /// # Errors
    /// [`DiskError::Unfit`] if it is too small, holds something else, or is in another format;
    /// [`DiskError::Failed`] if it is damaged.
    pub fn open(memory: Arc<dyn Memory>, block_bits: u32) -> DiskResult<Arc<Files>> {
        let copies = [0, 1].map(|copy| {
            let mut page = vec![0; format::COPY_BYTES];
            memory.read(format::copy_at(copy), &mut page);
            format::look(&page)
        });
        let (superblock, kept_copy) = match format::newest(&copies) {
            Some(found) => found,
            None => return Self::begin(memory, &copies, block_bits),
        };
        let name = memory.name();
        if superblock.bytes > memory.bytes() {
            let (has, had) = (memory.bytes(), superblock.bytes);
            let why = format!("{name} has {has} bytes of {had} that it had: it was cut; restore it from a copy");
            return Err(DiskError::Failed(why));
        }
        let damaged = |what: &str| DiskError::Failed(format!("{name} is damaged: {what}; restore it from a copy"));
        let layout = Layout::of(superblock.bytes, superblock.block_bits).ok_or_else(|| damaged("its superblock"))?;
        let mut table = vec![0; usize::try_from(superblock.table_bytes).unwrap_or(usize::MAX).min(layout.table_bytes)];
        memory.read(layout.table_at(superblock.generation), &mut table);
        let parsed = format::parse(&table, &superblock, &layout);
        let parsed = parsed.map_err(|why| damaged(&format!("its table of files: {why}")))?;
        let room = Arc::new(Room::new(layout.blocks, parsed.fresh, parsed.files.values().flat_map(|s| &s.extents)));
        let names = parsed.files.into_iter().map(|(name, shape)| (name, Node::new(shape, false, &room))).collect();
        // The first of all is written to one copy before the other has anything.
        let is_damaged = superblock.generation > 0 && !copies.iter().all(|copy| matches!(copy, Copied::Whole(_)));
        let remark = is_damaged.then(|| {
            format!(
                "{name}: one of the two copies of its superblock is not whole: it was being written when the power \
                 went, or has changed since; the other one is used"
            )
        });
        let generation = superblock.generation;
        let table =
            Mutex::new(Table { names, generation, kept_copy, is_claimed: true, is_prepared: false, failed: None });
        Ok(Arc::new(Files { memory, layout, table, room, remark }))
    }

    /// A memory without a superblock that can be used.
    fn begin(memory: Arc<dyn Memory>, copies: &[Copied; 2], block_bits: u32) -> DiskResult<Arc<Files>> {
        let name = memory.name();
        if let Some(found) = copies.iter().find_map(Copied::other_format) {
            let why = format!(
                "{name} is in format {found}, and this program knows format {FORMAT} only: use the version that wrote it"
            );
            return Err(DiskError::Unfit(why));
        }
        let bytes = memory.bytes();
        let layout = Layout::of(bytes, block_bits)
            .ok_or_else(|| DiskError::Unfit(format!("{name} is too small: it has {bytes} bytes")))?;
        // A torn first write leaves a part of a superblock, and zeros everywhere else.
        let claim = Superblock::claim(&layout).page();
        let mut page = vec![0; format::COPY_BYTES];
        memory.read(0, &mut page);
        let words = page.chunks(8).zip(claim.chunks(8));
        let is_torn_claim = words.clone().all(|(found, ours)| found == ours || found.iter().all(|byte| *byte == 0));
        let from = if is_torn_claim { format::COPY_BYTES as u64 } else { 0 };
        if let Some(at) = memory.first_data(from)? {
            if copies.iter().any(|copy| matches!(copy, Copied::Damaged)) {
                let why = format!("{name} is damaged: neither copy of its superblock is whole; restore it from a copy");
                return Err(DiskError::Failed(why));
            }
            let why = format!(
                "{name} has other content, at byte {at}, which is not touched: give a new file (truncate -s SIZE FILE), \
                 or fill this one with zeros if nobody needs what is in it"
            );
            return Err(DiskError::Unfit(why));
        }
        let names = BTreeMap::new();
        let table = Mutex::new(Table {
            names,
            generation: 0,
            kept_copy: 0,
            is_claimed: false,
            is_prepared: false,
            failed: None,
        });
        let room = Arc::new(Room::new(layout.blocks, 0, [].iter()));
        Ok(Arc::new(Files { memory, layout, table, room, remark: None }))
    }

    /// What people should know of it.
    pub fn remark(&self) -> Option<String> {
        self.remark.clone()
    }

    /// Names of files, in their order.
    pub fn list(&self) -> Vec<String> {
        self.table.lock().names.keys().cloned().collect()
    }

    /// Bytes in blocks that no file has.
    pub fn free_bytes(&self) -> u64 {
        self.room.free_blocks() << self.layout.block_bits
    }

    /// Makes an empty file, or one of a length; one of that name that was there before is replaced.
    ///
    /// # Errors
    /// No room; what the memory says.
    pub fn create(&self, name: &str, bytes: u64, is_log: bool) -> DiskResult<Arc<Node>> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(DiskError::Failed(format!("create '{name}' in {}: no such name", self.memory.name())));
        }
        let extents = self.allocate(bytes.div_ceil(1 << self.layout.block_bits), 0, name)?;
        // From here on its blocks go back by themselves.
        let node = Node::new(Shape { bytes, extents }, is_log, &self.room);
        let mut table = self.table.lock();
        let mut names = table.names.clone();
        names.insert(name.into(), node.clone());
        self.commit(&mut table, names, None)?;
        Ok(node)
    }

    /// A file that is there.
    ///
    /// # Errors
    /// There is none.
    pub fn open_file(&self, name: &str) -> DiskResult<Arc<Node>> {
        self.table.lock().names.get(name).cloned().ok_or_else(|| self.missing("open", name))
    }

    fn missing(&self, what: &str, name: &str) -> DiskError {
        DiskError::NotFound(format!("{what} '{name}' in {}: there is no such file", self.memory.name()))
    }

    /// Gives a file another name, replacing the file that had it.
    ///
    /// # Errors
    /// There is none; what the memory says.
    pub fn rename(&self, from: &str, to: &str) -> DiskResult<()> {
        let mut table = self.table.lock();
        let mut names = table.names.clone();
        let node = names.remove(from).ok_or_else(|| self.missing("rename", from))?;
        names.insert(to.into(), node);
        self.commit(&mut table, names, None)
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// What the memory says.
    pub fn remove(&self, name: &str) -> DiskResult<()> {
        let mut table = self.table.lock();
        let mut names = table.names.clone();
        match names.remove(name) {
            Some(_) => self.commit(&mut table, names, None),
            None => Ok(()),
        }
    }

    /// Length of a file.
    pub fn size(&self, node: &Node) -> u64 {
        node.shape.read().bytes
    }

    /// Bytes from `offset` on, at most `len`; fewer only at the end of the file.
    pub fn read_at(&self, node: &Node, offset: u64, len: usize) -> Vec<u8> {
        let shape = node.shape.read().clone();
        let len = (len as u64).min(shape.bytes.saturating_sub(offset)) as usize;
        let mut bytes = vec![0; len];
        for (at, from, to) in self.pieces(&shape, offset, len) {
            self.memory.read(at, &mut bytes[from..to]);
        }
        bytes
    }

    /// Adds bytes at the end.
    ///
    /// # Errors
    /// No room; what the memory says.
    pub fn append(&self, node: &Node, bytes: &[u8]) -> DiskResult<()> {
        let mut end = node.end.lock();
        let wanted = *end + bytes.len() as u64;
        let shape = node.shape.read().clone();
        if wanted > shape.bytes {
            self.lengthen(node, &shape, wanted)?;
        }
        self.put(node, *end, bytes);
        *end = wanted;
        Ok(())
    }

    /// Gives a file a new length, and the blocks for it.
    fn lengthen(&self, node: &Node, shape: &Shape, wanted: u64) -> DiskResult<()> {
        let has = shape.blocks();
        let lacks = wanted.div_ceil(1 << self.layout.block_bits).saturating_sub(has);
        let mut longer = shape.clone();
        if lacks > 0 {
            let more = self.allocate(lacks, (has / 4).min(AHEAD_BLOCKS_MAX), "a file that grows")?;
            more.into_iter().for_each(|extent| room::push(&mut longer.extents, extent));
        }
        longer.bytes = if node.is_log { longer.blocks() << self.layout.block_bits } else { wanted };
        let mut table = self.table.lock();
        let names = table.names.clone();
        let longer = Arc::new(longer);
        if let Err(error) = self.commit(&mut table, names, Some((node, &longer))) {
            // What the table may name after all is never given out again: nothing can be changed any more.
            if matches!(error, DiskError::Full(_)) {
                self.room.give_back(&room::beyond(&longer.extents, has));
            }
            return Err(error);
        }
        *node.shape.write() = longer;
        Ok(())
    }

    /// Writes at a place within a file's length.
    ///
    /// # Errors
    /// The place is beyond it.
    pub fn write_at(&self, node: &Node, offset: u64, bytes: &[u8]) -> DiskResult<()> {
        let size = self.size(node);
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > size) {
            let name = self.memory.name();
            let why = format!("{name}: {} bytes at {offset} of a file of {size} bytes", bytes.len());
            return Err(DiskError::Failed(why));
        }
        self.put(node, offset, bytes);
        Ok(())
    }

    fn put(&self, node: &Node, offset: u64, bytes: &[u8]) {
        let shape = node.shape.read().clone();
        for (at, from, to) in self.pieces(&shape, offset, bytes.len()) {
            self.memory.write(at, &bytes[from..to]);
        }
        let (start, end) = (offset, offset + bytes.len() as u64);
        let mut unsynced = node.unsynced.lock();
        let (first, last) = unsynced.unwrap_or((start, end));
        *unsynced = Some((first.min(start), last.max(end)));
    }

    /// Makes earlier writes to a file durable.
    ///
    /// # Errors
    /// What the memory says.
    pub fn sync(&self, node: &Node) -> DiskResult<()> {
        let mut failed = node.sync_failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        let Some((start, end)) = node.unsynced.lock().take() else { return Ok(()) };
        let shape = node.shape.read().clone();
        let mut pieces = self.pieces(&shape, start, (end - start) as usize).into_iter();
        let synced = pieces.try_for_each(|(at, from, to)| self.memory.sync(at, (to - from) as u64));
        *failed = synced.clone().err();
        synced
    }

    /// Where a range of a file is: places in the memory, each with the part of the range that it has.
    fn pieces(&self, shape: &Shape, offset: u64, len: usize) -> Vec<(u64, usize, usize)> {
        let (mut pieces, mut begins) = (Vec::new(), 0);
        let end = offset + len as u64;
        for extent in &shape.extents {
            let bytes = u64::from(extent.count) << self.layout.block_bits;
            let (from, to) = (offset.max(begins), end.min(begins + bytes));
            if from < to {
                let at = self.layout.block_at(extent.start) + (from - begins);
                pieces.push((at, (from - offset) as usize, (to - offset) as usize));
            }
            begins += bytes;
        }
        pieces
    }

    /// Blocks that are durably zero: so many at least, and some more if there are any.
    fn allocate(&self, blocks: u64, ahead: u64, what: &str) -> DiskResult<Vec<Extent>> {
        self.prepare(&mut self.table.lock())?;
        let taken = self.room.take(blocks + ahead).or_else(|| self.room.take(blocks));
        let (extents, used) = taken.ok_or_else(|| {
            let (name, free) = (self.memory.name(), self.free_bytes());
            let wanted = blocks << self.layout.block_bits;
            DiskError::Full(format!("{name}: no room for {what}: {free} bytes are free, and {wanted} are wanted"))
        })?;
        for extent in &used {
            let (at, bytes) = (self.layout.block_at(extent.start), u64::from(extent.count) << self.layout.block_bits);
            self.memory.zero(at, bytes);
            if let Err(error) = self.memory.sync(at, bytes) {
                self.room.give_back(&extents);
                return Err(error);
            }
        }
        Ok(extents)
    }

    /// Makes a table durable in which `changed` has another shape than now; then it is the table.
    fn commit(
        &self,
        table: &mut Table,
        names: BTreeMap<String, Arc<Node>>,
        changed: Option<(&Node, &Arc<Shape>)>,
    ) -> DiskResult<()> {
        self.prepare(table)?;
        let shape_of = |node: &Arc<Node>| match changed {
            Some((other, shape)) if std::ptr::eq(Arc::as_ptr(node), other) => shape.clone(),
            _ => node.shape.read().clone(),
        };
        let files = names.iter().map(|(name, node)| (name.as_str(), shape_of(node)));
        let bytes = format::table(self.room.fresh(), files);
        if bytes.len() > self.layout.table_bytes {
            let why = format!("{}: no room for more files in its table", self.memory.name());
            return Err(DiskError::Full(why));
        }
        let written = self.write_table(table, &bytes);
        table.failed = written.clone().err();
        written?;
        let before = std::mem::replace(&mut table.names, names);
        // Files that have lost their name give their blocks back here, unless they are open.
        drop(before);
        Ok(())
    }

    /// Before anything is written.
    fn prepare(&self, table: &mut Table) -> DiskResult<()> {
        if let Some(error) = &table.failed {
            return Err(error.clone());
        }
        if !table.is_prepared {
            self.memory.prepare()?;
            table.is_prepared = true;
        }
        Ok(())
    }

    fn write_table(&self, table: &mut Table, bytes: &[u8]) -> DiskResult<()> {
        if !table.is_claimed {
            let claim = Superblock::claim(&self.layout).page();
            self.write_synced(format::copy_at(0), &claim)?;
            self.write_synced(format::copy_at(1), &claim)?;
            table.is_claimed = true;
        }
        let generation = table.generation + 1;
        self.write_synced(self.layout.table_at(generation), bytes)?;
        let page = Superblock::new(&self.layout, generation, bytes).page();
        self.write_synced(format::copy_at(1 - table.kept_copy), &page)?;
        self.write_synced(format::copy_at(table.kept_copy), &page)?;
        table.generation = generation;
        Ok(())
    }

    fn write_synced(&self, at: u64, bytes: &[u8]) -> DiskResult<()> {
        self.memory.write(at, bytes);
        self.memory.sync(at, bytes.len() as u64)
    }
}
