//! What a memory with files in it looks like. Numbers are little-endian.
//!
//! A superblock, 112 bytes:
//!
//! | bytes | content |
//! |---|---|
//! | 64 | the title, then zeros |
//! | 4, 4 | the format; base-2 logarithm of the size of a block |
//! | 8 | bytes of the whole |
//! | 8 | generation: how many tables there were; it tells where the table is |
//! | 8, 8 | bytes of the table, and its checksum |
//! | 8 | the checksum of all that |
//!
//! A table: the first block that was never used (8), the number of files (8); for each, in the order of
//! names, the length of the name (2), the name, bytes (8), number of extents (4), and for each of those
//! its first block (4) and how many there are (4).

use super::Shape;
use super::room::Extent;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The format of all this. Any other is refused.
pub const FORMAT: u32 = 1;

/// Where one copy of the superblock is from the other, in bytes: a page, so that each is synced alone.
pub(super) const COPY_BYTES: usize = 4096;

/// How a superblock begins.
const TITLE: &[u8] = b"Azekura: one server's part of a volume, in one file\n";

const TITLE_BYTES: usize = 64;
const SUPERBLOCK_BYTES: usize = 112;

/// A table may have so many bytes, and [`TABLE_BYTES_PER_BLOCK`] for each block.
const TABLE_BYTES_BASE: u64 = 8 << 10;
const TABLE_BYTES_PER_BLOCK: u64 = 16;

/// Fewest blocks that are of any use.
const BLOCKS_MIN: u64 = 4;

/// Where a copy of the superblock is.
pub(super) fn copy_at(copy: usize) -> u64 {
    (copy * COPY_BYTES) as u64
}

/// Where everything is in a memory of some length.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub bytes: u64,
    pub block_bits: u32,
    pub blocks: u32,
    /// Longest table.
    pub table_bytes: usize,
    first_block_at: u64,
}

impl Layout {
    /// `None` if there is no room for anything.
    pub fn of(bytes: u64, block_bits: u32) -> Option<Layout> {
        if !(12..=30).contains(&block_bits) {
            return None;
        }
        let most = bytes >> block_bits;
        let table_bytes = (TABLE_BYTES_BASE + most * TABLE_BYTES_PER_BLOCK).next_multiple_of(COPY_BYTES as u64);
        let first_block_at = (2 * (COPY_BYTES as u64 + table_bytes)).next_multiple_of(1 << block_bits);
        let blocks = u32::try_from(bytes.checked_sub(first_block_at)? >> block_bits).ok()?;
        let table_bytes = usize::try_from(table_bytes).ok()?;
        (u64::from(blocks) >= BLOCKS_MIN).then_some(Layout { bytes, block_bits, blocks, table_bytes, first_block_at })
    }

    /// Where the table of a generation is.
    pub fn table_at(&self, generation: u64) -> u64 {
        copy_at(2) + generation % 2 * self.table_bytes as u64
    }

    /// Where a block is.
    pub fn block_at(&self, block: u32) -> u64 {
        self.first_block_at + (u64::from(block) << self.block_bits)
    }
}

/// Any change of one word changes it.
fn sum(bytes: &[u8]) -> u64 {
    let mut sum = bytes.len() as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        sum ^= sum >> 32;
    }
    sum
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub block_bits: u32,
    pub bytes: u64,
    pub generation: u64,
    pub table_bytes: u64,
    pub table_sum: u64,
}

impl Superblock {
    pub fn new(layout: &Layout, generation: u64, table: &[u8]) -> Superblock {
        let Layout { bytes, block_bits, .. } = *layout;
        Superblock { block_bits, bytes, generation, table_bytes: table.len() as u64, table_sum: sum(table) }
    }

    /// The first one, without a table: says whose the memory is from now on.
    pub fn claim(layout: &Layout) -> Superblock {
        Superblock::new(layout, 0, &[])
    }

    /// Its bytes.
    pub fn page(&self) -> Vec<u8> {
        let mut page = TITLE.to_vec();
        page.resize(TITLE_BYTES, 0);
        page.extend(FORMAT.to_le_bytes());
        page.extend(self.block_bits.to_le_bytes());
        for number in [self.bytes, self.generation, self.table_bytes, self.table_sum] {
            page.extend(number.to_le_bytes());
        }
        page.extend(sum(&page).to_le_bytes());
        page.resize(COPY_BYTES, 0);
        page
    }
}

/// The state of one copy of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    Whole(Superblock),
    /// A superblock of another format.
    OtherFormat(u32),
    /// It begins like one, and its checksum is another.
    Damaged,
    /// Nothing like it.
    Nothing,
}

impl Copied {
    pub fn other_format(&self) -> Option<u32> {
        match self {
            Copied::OtherFormat(format) => Some(*format),
            _ => None,
        }
    }
}

/// Looks at a copy of the superblock.
pub(super) fn look(page: &[u8]) -> Copied {
    let number = |at: usize| {
        let word = page.get(at..at + 8).and_then(|word| word.try_into().ok());
        u64::from_le_bytes(word.unwrap_or_default())
    };
    let is_sound = page.get(..SUPERBLOCK_BYTES - 8).is_some_and(|own| sum(own) == number(SUPERBLOCK_BYTES - 8));
    let (format, block_bits) = (number(64) as u32, (number(64) >> 32) as u32);
    if !page.starts_with(TITLE) {
        // A title that has lost some of its words is still one.
        let ours = page.chunks(8).zip(TITLE.chunks_exact(8)).filter(|(found, title)| found == title).count();
        return if ours > 0 { Copied::Damaged } else { Copied::Nothing };
    }
    match is_sound {
        _ if format != FORMAT && format != 0 => Copied::OtherFormat(format),
        true => Copied::Whole(Superblock {
            block_bits,
            bytes: number(72),
            generation: number(80),
            table_bytes: number(88),
            table_sum: number(96),
        }),
        false => Copied::Damaged,
    }
}

/// The copy that is right, and which it is.
pub(super) fn newest(copies: &[Copied; 2]) -> Option<(Superblock, usize)> {
    let whole = copies.iter().enumerate().filter_map(|(copy, found)| match found {
        Copied::Whole(superblock) => Some((*superblock, copy)),
        _ => None,
    });
    whole.max_by_key(|(superblock, _)| superblock.generation)
}

/// The bytes of a table.
pub(super) fn table<'a>(fresh: u32, files: impl Iterator<Item = (&'a str, Arc<Shape>)>) -> Vec<u8> {
    let mut bytes = u64::from(fresh).to_le_bytes().to_vec();
    bytes.extend([0; 8]);
    let mut count = 0u64;
    for (name, shape) in files {
        count += 1;
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(shape.bytes.to_le_bytes());
        bytes.extend((shape.extents.len() as u32).to_le_bytes());
        for extent in &shape.extents {
            bytes.extend(extent.start.to_le_bytes());
            bytes.extend(extent.count.to_le_bytes());
        }
    }
    bytes[8..16].copy_from_slice(&count.to_le_bytes());
    bytes
}

pub(super) struct Parsed {
    pub fresh: u32,
    pub files: BTreeMap<String, Shape>,
}

/// Reads a table.
///
/// # Errors
/// The damage found.
pub(super) fn parse(table: &[u8], superblock: &Superblock, layout: &Layout) -> Result<Parsed, &'static str> {
    if table.len() as u64 != superblock.table_bytes || sum(table) != superblock.table_sum {
        return Err("it does not match its checksum");
    }
    let mut files = BTreeMap::new();
    if superblock.generation == 0 && table.is_empty() {
        return Ok(Parsed { fresh: 0, files });
    }
    let mut rest = table;
    let fresh = u32::try_from(number(&mut rest, 8)?).ok().filter(|fresh| *fresh <= layout.blocks);
    let fresh = fresh.ok_or("a block beyond its end")?;
    let mut used = vec![false; fresh as usize];
    for _ in 0..number(&mut rest, 8)? {
        let name_bytes = number(&mut rest, 2)? as usize;
        let (name, behind) = rest.split_at_checked(name_bytes).ok_or("it ends early")?;
        rest = behind;
        let name = std::str::from_utf8(name).map_err(|_| "a name that is no text")?;
        let mut shape = Shape { bytes: number(&mut rest, 8)?, extents: Vec::new() };
        for _ in 0..number(&mut rest, 4)? {
            let (start, count) = (number(&mut rest, 4)? as u32, number(&mut rest, 4)? as u32);
            let blocks = used.get_mut(start as usize..start as usize + count as usize);
            for is_used in blocks.ok_or("a block beyond its end")? {
                if std::mem::replace(is_used, true) {
                    return Err("a block of two files");
                }
            }
            shape.extents.push(Extent { start, count });
        }
        if shape.bytes > shape.blocks() << layout.block_bits {
            return Err("a file longer than its blocks");
        }
        if files.insert(name.to_owned(), shape).is_some() {
            return Err("a name twice");
        }
    }
    if rest.is_empty() { Ok(Parsed { fresh, files }) } else { Err("it goes on behind its end") }
}

fn number(rest: &mut &[u8], bytes: usize) -> Result<u64, &'static str> {
    let (head, behind) = rest.split_at_checked(bytes).ok_or("it ends early")?;
    *rest = behind;
    Ok(head.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}
