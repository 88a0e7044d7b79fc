//! Chunks of files with holes: data are read, summed up and written, and nothing is done for holes.

use crate::tree::{Sink, Source};
use aze_io::sync::Mutex;
use aze_receipt::sums::{self, PIECE_BYTES};
use aze_receipt::{CHUNK_BYTES, Hash, Sums};
use aze_words::exit::Outcome;
use std::collections::BTreeMap;
use std::ops::Range;

/// So much is read of the first data of a chunk with holes before it is looked for the next ones: in sparse files they are often
/// shorter than a chunk, and the look costs a request.
const DATA_BYTES: usize = 1 << 20;

/// Looks that are remembered, at most: those at the beginning of the file go first.
const LOOKS_MAX: usize = 4096;

/// Where data go on in a file, as looks between two marks have found it: threads that share the file ask once for each hole.
#[derive(Default)]
pub(super) struct Looks(Mutex<BTreeMap<u64, Option<u64>>>);

impl Looks {
    /// As [`Source::next_data_between_marks`]. If there are data, it is looked behind their first part, too: the thread that reads that asks
    /// next, and all threads whose parts lie in the hole behind it have their answer then.
    pub fn next_data(&self, source: &dyn Source, offset: u64) -> Outcome<Option<u64>> {
        // Others wait meanwhile, mostly for the same answer.
        let mut known = self.0.lock();
        let found = look(&mut known, source, offset)?;
        if let Some(at) = found {
            let chunk_end = (at / CHUNK_BYTES).saturating_add(1).saturating_mul(CHUNK_BYTES);
            let behind = (at - at % PIECE_BYTES as u64).saturating_add(DATA_BYTES as u64);
            look(&mut known, source, behind.min(chunk_end))?;
        }
        Ok(found)
    }
}

fn look(known: &mut BTreeMap<u64, Option<u64>>, source: &dyn Source, offset: u64) -> Outcome<Option<u64>> {
    // From where was asked to what was found there is nothing else.
    if let Some((_, found)) = known.range(..=offset).next_back()
        && found.is_none_or(|at| offset <= at)
    {
        return Ok(*found);
    }
    let found = source.next_data_between_marks(offset)?;
    known.insert(offset, found);
    if known.len() > LOOKS_MAX {
        known.pop_first();
    }
    Ok(found)
}

/// A chunk of a file, as far as it was read.
pub(super) struct Chunk<'a> {
    bytes: &'a mut [u8],
    /// Of each piece whether it was read. The memory of others is of no meaning, and they are zeros.
    is_read: Vec<bool>,
}

impl<'a> Chunk<'a> {
    /// Reads a chunk; shorter than `block` if the file ends before.
    pub fn read(source: &dyn Source, offset: u64, block: &'a mut [u8]) -> Outcome<Chunk<'a>> {
        let count = source.read_at(offset, block)?;
        Ok(Chunk { bytes: &mut block[..count], is_read: vec![true; count.div_ceil(PIECE_BYTES)] })
    }

    /// The same of a file with holes, of a chunk whose first data are at `data`: its holes are not read, as far as they are more than
    /// [`DATA_BYTES`] away from its first data.
    pub fn read_data(
        source: &dyn Source,
        looks: &Looks,
        offset: u64,
        data: u64,
        block: &'a mut [u8],
    ) -> Outcome<Chunk<'a>> {
        let mut is_read = vec![false; block.len().div_ceil(PIECE_BYTES)];
        let (mut from, mut data, mut step) = (0, Some(data), DATA_BYTES);
        let len = loop {
            let to = data.map_or(block.len(), |at| (at.saturating_sub(offset) as usize).clamp(from, block.len()));
            let to = if to < block.len() { to - to % PIECE_BYTES } else { to };
            if to == block.len() {
                // Without data behind it, the file may end within the hole.
                let last = if data.is_none() { block.len() - 1 } else { block.len() };
                let mut byte = [0];
                break last + source.read_at(offset + last as u64, &mut byte[..block.len() - last])?;
            }
            let end = block.len().min(to + step);
            let count = source.read_at(offset + to as u64, &mut block[to..end])?;
            is_read[to / PIECE_BYTES..(to + count).div_ceil(PIECE_BYTES)].fill(true);
            if to + count < end || end == block.len() {
                break to + count;
            }
            (from, step) = (end, block.len());
            data = looks.next_data(source, offset + end as u64)?;
        };
        is_read.truncate(len.div_ceil(PIECE_BYTES));
        Ok(Chunk { bytes: &mut block[..len], is_read })
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// All of its bytes, of a chunk without holes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Its sum; none if it is all zeros.
    pub fn sum(&mut self) -> Option<Hash> {
        Sums::of_pieces(self.bytes, &self.is_read)
    }

    /// Writes its pieces that are not all zeros.
    pub fn write_data(&self, sink: &dyn Sink, offset: u64) -> Outcome<()> {
        let mut data: Option<Range<usize>> = None;
        for (piece, (bytes, is_read)) in self.bytes.chunks(PIECE_BYTES).zip(&self.is_read).enumerate() {
            let from = piece * PIECE_BYTES;
            if *is_read && !sums::is_zero(bytes) {
                data = Some(data.map_or(from, |data| data.start)..from + bytes.len());
            } else if let Some(data) = data.take() {
                sink.write_at(offset + data.start as u64, &self.bytes[data])?;
            }
        }
        data.map_or(Ok(()), |data| sink.write_at(offset + data.start as u64, &self.bytes[data]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Meta, ReadBack, Replaces, Xattr};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Notes what is written.
    struct Noted(Mutex<Vec<(u64, usize)>>);

    impl Sink for Noted {
        fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<()> {
            self.0.lock().push((offset, data.len()));
            Ok(())
        }

        fn set_size(&self, _: u64) -> Outcome<()> {
            unreachable!()
        }

        fn reread(&self) -> Outcome<Box<dyn Source>> {
            unreachable!()
        }

        fn set_xattr(&self, _: &Xattr) -> Outcome<()> {
            unreachable!()
        }

        fn finish(&self, _: &Meta, _: bool) -> Outcome<()> {
            unreachable!()
        }

        fn settle(&self, _: &Meta) -> Outcome<()> {
            unreachable!()
        }

        fn reread_stored(&self) -> Outcome<(Box<dyn Source>, ReadBack)> {
            unreachable!()
        }

        fn publish(&self, _: &Replaces) -> Outcome<Meta> {
            unreachable!()
        }

        fn abandon(&self) {}
    }

    /// A file with data in some ranges, and holes elsewhere; notes where it is read.
    #[derive(Default)]
    struct Holed {
        data: Vec<Range<u64>>,
        len: u64,
        read: Mutex<Vec<Range<u64>>>,
        looks: AtomicUsize,
    }

    impl Holed {
        fn byte(&self, at: u64) -> u8 {
            if self.data.iter().any(|range| range.contains(&at)) { (at % 251) as u8 + 1 } else { 0 }
        }
    }

    impl Source for Holed {
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
            let end = self.len.min(offset + buffer.len() as u64).max(offset);
            self.read.lock().push(offset..end);
            (offset..end).zip(buffer.iter_mut()).for_each(|(at, byte)| *byte = self.byte(at));
            Ok((end - offset) as usize)
        }

        fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            let behind = self.data.iter().filter(|range| range.end > offset && range.start < self.len);
            Ok(behind.map(|range| range.start.max(offset)).min())
        }

        fn xattrs(&self) -> Outcome<Vec<Xattr>> {
            unreachable!()
        }

        fn meta(&self) -> Outcome<Meta> {
            unreachable!()
        }

        fn mark(&self) -> Outcome<Vec<u64>> {
            unreachable!()
        }
    }

    #[test]
    fn of_a_chunk_with_holes_the_data_are_read_and_little_else() {
        const STEP: u64 = DATA_BYTES as u64;
        const END: u64 = CHUNK_BYTES;
        const LAST_PIECE: Range<u64> = END - PIECE_BYTES as u64..END;
        let end = END - 1..END;
        let (first, middle, last) = (0..STEP, STEP + 77..STEP + 78, END - 5..END);
        let (more, cut) = (2 * STEP + 9..2 * STEP + 10, 0..1000);
        let cases = [
            (vec![first.clone()], END, vec![first.clone(), end.clone()]),
            (vec![first.clone(), last.clone()], END, vec![first.clone(), LAST_PIECE]),
            (vec![middle.clone()], END, vec![STEP..2 * STEP, end.clone()]),
            (vec![middle, more], END, vec![STEP..2 * STEP, 2 * STEP..END]),
            (vec![last], END, vec![LAST_PIECE]),
            // Cut off in its data, and in the hole behind them.
            (vec![first.clone()], cut.end, vec![cut]),
            (vec![first.clone()], 2 * STEP, vec![first, END - 1..END - 1]),
        ];
        // The second chunk of a file.
        let moved = |ranges: &[Range<u64>]| -> Vec<Range<u64>> {
            ranges.iter().map(|range| range.start + END..range.end + END).collect()
        };
        for (number, (data, len, expected)) in cases.into_iter().enumerate() {
            let source = Holed { data: moved(&data), len: END + len, ..Holed::default() };
            let mut block = vec![0xee; END as usize];
            let (looks, first) = (Looks::default(), source.data[0].start);
            let mut chunk = Chunk::read_data(&source, &looks, END, first, &mut block).expect("it is read");
            assert_eq!(*source.read.lock(), moved(&expected), "case {number}");
            let count = chunk.len();
            assert_eq!(count as u64 == END, len == END, "case {number}: {count} bytes");
            let real: Vec<u8> = (0..count).map(|at| source.byte(END + at as u64)).collect();
            assert_eq!(chunk.sum(), Sums::of_chunk(&real), "case {number}");
            let read = |at: &usize| chunk.is_read[at / PIECE_BYTES];
            assert!((0..count).filter(read).all(|at| chunk.bytes[at] == real[at]), "case {number}");
            assert!((0..count).all(|at| read(&at) || real[at] == 0), "case {number}");
        }
    }

    #[test]
    fn of_a_file_with_holes_the_data_are_written_and_no_more() {
        let mut block = vec![0; 5 * PIECE_BYTES + 10];
        block[PIECE_BYTES + 5] = 1;
        block[3 * PIECE_BYTES - 1] = 1;
        block[5 * PIECE_BYTES + 9] = 1;
        let noted = |is_read: [bool; 6]| {
            let noted = Noted(Mutex::default());
            let chunk = Chunk { bytes: &mut block.clone(), is_read: is_read.to_vec() };
            chunk.write_data(&noted, 100).expect("a sink that takes all");
            noted.0.into_inner()
        };
        let piece = PIECE_BYTES as u64;
        assert_eq!(noted([true; 6]), [(100 + piece, 2 * PIECE_BYTES), (100 + 5 * piece, 10)]);
        // Memory of what was not read has anything in it.
        assert_eq!(noted([true, false, true, true, true, false]), [(100 + 2 * piece, PIECE_BYTES)]);
    }

    /// Threads look through parts of 64 MiB, mostly in their order.
    #[test]
    fn each_hole_is_asked_for_once_by_all_who_come_to_it() {
        const MIB: u64 = 1 << 20;
        let looks_of = |parts: &mut dyn Iterator<Item = u64>| {
            let data = (0..16).map(|piece| piece * 100 * MIB..(piece * 100 + 1) * MIB).collect();
            let source = Holed { data, len: 1600 * MIB, ..Holed::default() };
            let (looks, mut found) = (Looks::default(), 0);
            for part in parts {
                let (mut offset, end) = (part * 64 * MIB, (part + 1) * 64 * MIB);
                while let Some(at) = looks.next_data(&source, offset).expect("it is found").filter(|at| *at < end) {
                    assert!(at >= offset && at % (100 * MIB) == 0, "{at}");
                    let behind = at / (100 * MIB) + 1;
                    let next = looks.next_data(&source, at + MIB).expect("it is found");
                    assert_eq!(next, (behind < 16).then_some(behind * 100 * MIB));
                    offset = at - at % CHUNK_BYTES + CHUNK_BYTES;
                    found += 1;
                }
            }
            assert_eq!(found, 16);
            source.looks.into_inner()
        };
        assert_eq!(looks_of(&mut (0..25)), 17);
        let turned = |part: u64| part / 5 * 5 + [2, 0, 1, 4, 3][part as usize % 5];
        assert!(looks_of(&mut (0..25).map(turned)) <= 2 * 17);
        looks_of(&mut (0..25).rev());
        assert_eq!(Looks::default().next_data(&Holed::default(), 5), Ok(None));
    }

    #[test]
    fn what_is_known_of_holes_is_bounded() {
        let looks = Looks::default();
        let data: Vec<Range<u64>> =
            (0..LOOKS_MAX as u64).map(|chunk| chunk * CHUNK_BYTES..chunk * CHUNK_BYTES + 1).collect();
        let source = Holed { len: u64::MAX, data, ..Holed::default() };
        for chunk in 0..LOOKS_MAX as u64 {
            let at = chunk * CHUNK_BYTES;
            assert_eq!(looks.next_data(&source, at), Ok(Some(at)));
        }
        assert!(looks.0.lock().len() <= LOOKS_MAX);
    }
}
