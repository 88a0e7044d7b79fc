//! The chunks of a file, as threads take them in turn: of one with holes, data are looked for, read, summed up and written, and nothing is
//! done for holes.

use crate::tree::{Sink, Source};
use aze_io::sync::Mutex;
use aze_receipt::sums::{self, PIECE_BYTES};
use aze_receipt::{CHUNK_BYTES, Hash, Sums};
use aze_words::exit::Outcome;
use std::ops::Range;

/// So much is read of the first data of a chunk with holes before it is looked for the next ones: in sparse files they are often
/// shorter than a chunk, and the look costs a request.
const DATA_BYTES: usize = 1 << 20;

/// How far the threads that share a file, or a part of one, have come: each takes the next chunk that may have data, in the order of the
/// file. So one look for each hole is enough, however many threads there are.
pub(super) struct Frontier {
    end: u64,
    is_sparse: bool,
    ahead: Mutex<Ahead>,
}

struct Ahead {
    /// Where the next chunk begins.
    next: u64,
    /// From where was looked last, and where data go on from there.
    looked: Option<(u64, Option<u64>)>,
}

/// A chunk that one thread has taken.
pub(super) struct Taken {
    /// Where it begins.
    pub offset: u64,
    /// Its length, unless the file is cut off meanwhile.
    pub len: usize,
    /// Of a file with holes: where its first data are, and where data go on behind the first [`DATA_BYTES`] from there.
    data: Option<(u64, Option<u64>)>,
}

impl Frontier {
    /// Before the first chunk of a range, which begins at the beginning of a chunk and ends with the file at the latest.
    pub fn new(range: Range<u64>, is_sparse: bool) -> Frontier {
        Frontier { end: range.end, is_sparse, ahead: Mutex::new(Ahead { next: range.start, looked: None }) }
    }

    /// Takes the next chunk that may have data. Gives how many bytes of holes lie before it, and `None` behind the last one. Looks are
    /// those of [`Source::next_data_between_marks`].
    pub fn take(&self, source: &dyn Source) -> Outcome<(u64, Option<Taken>)> {
        // Others wait meanwhile for the same answer.
        let mut ahead = self.ahead.lock();
        let from = ahead.next.min(self.end);
        let (mut offset, mut data) = (from, None);
        if self.is_sparse && from < self.end {
            offset = self.end;
            if let Some(first) = ahead.look(source, from)?.filter(|at| *at < self.end) {
                offset = first - first % CHUNK_BYTES;
                let first_end = first - first % PIECE_BYTES as u64 + DATA_BYTES as u64;
                let behind = first_end.min(offset + CHUNK_BYTES);
                data = Some((first, if behind < self.end { ahead.look(source, behind)? } else { None }));
            }
        }
        let len = CHUNK_BYTES.min(self.end - offset);
        ahead.next = offset + len;
        Ok((offset - from, (len > 0).then_some(Taken { offset, len: len as usize, data })))
    }

    /// No more chunks are taken: those taken so far were in vain.
    pub fn stop(&self) {
        self.ahead.lock().next = self.end;
    }
}

impl Ahead {
    fn look(&mut self, source: &dyn Source, offset: u64) -> Outcome<Option<u64>> {
        match self.looked {
            // Between the start of the look and the data it found there are no others.
            Some((from, found)) if from <= offset && found.is_none_or(|at| offset <= at) => Ok(found),
            _ => {
                let found = source.next_data_between_marks(offset)?;
                self.looked = Some((offset, found));
                Ok(found)
            }
        }
    }
}

/// A chunk of a file, as far as it was read.
pub(super) struct Chunk<'a> {
    bytes: &'a mut [u8],
    /// Of each piece whether it was read. The memory of others is of no meaning, and they are zeros.
    is_read: Vec<bool>,
}

impl<'a> Chunk<'a> {
    /// Reads a chunk into a block of its length; less if the file ends before. Its holes are not read, as far as they are more than
    /// [`DATA_BYTES`] away from its first data.
    pub fn read(source: &dyn Source, taken: &Taken, block: &'a mut [u8]) -> Outcome<Chunk<'a>> {
        let (offset, all) = (taken.offset, block.len());
        let mut is_read = vec![false; all.div_ceil(PIECE_BYTES)];
        // Gives where the bytes end.
        let mut read = |range: Range<usize>| -> Outcome<usize> {
            let end = range.start + source.read_at(offset + range.start as u64, &mut block[range.clone()])?;
            is_read[range.start / PIECE_BYTES..end.div_ceil(PIECE_BYTES)].fill(true);
            Ok(end)
        };
        let len = match taken.data {
            None => read(0..all)?,
            Some((first, behind)) => {
                let first = (first - offset) as usize;
                let start = first - first % PIECE_BYTES;
                let end = all.min(start + DATA_BYTES);
                match (read(start..end)?, behind.map(|at| at.saturating_sub(offset) as usize)) {
                    (len, _) if len < end || end == all => len,
                    (_, Some(next)) if next < all => read(next - next % PIECE_BYTES..all)?,
                    (_, Some(_)) => all,
                    // Without data behind it, the file may end within the hole.
                    (_, None) => all - 1 + source.read_at(offset + all as u64 - 1, &mut [0])?,
                }
            }
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

    /// Notes all writes.
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
            // As long as it was before it was cut off.
            let taken = Frontier::new(END..2 * END, true).take(&source).expect("it is found").1.expect("a chunk");
            let mut chunk = Chunk::read(&source, &taken, &mut block).expect("it is read");
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
        // Memory of pieces that were not read may have any bytes.
        assert_eq!(noted([true, false, true, true, true, false]), [(100 + 2 * piece, PIECE_BYTES)]);
    }

    const MIB: u64 = 1 << 20;

    /// The chunks that are taken until there are no more, and how many bytes lie between them.
    fn all_taken(frontier: &Frontier, source: &Holed) -> (Vec<Taken>, u64) {
        let (mut all, mut passed) = (Vec::new(), 0);
        loop {
            let (holes, taken) = frontier.take(source).expect("it is found");
            passed += holes;
            match taken {
                Some(taken) => all.push(taken),
                None => return (all, passed),
            }
        }
    }

    #[test]
    fn one_look_is_enough_for_each_hole() {
        let data = (0..16).map(|piece| piece * 100 * MIB..(piece * 100 + 1) * MIB).collect();
        let source = Holed { data, len: 1600 * MIB, ..Holed::default() };
        let frontier = Frontier::new(0..1600 * MIB, true);
        let (all, passed) = all_taken(&frontier, &source);
        assert_eq!(
            all.iter().map(|taken| taken.offset / MIB).collect::<Vec<_>>(),
            Vec::from_iter((0..1600).step_by(100))
        );
        assert_eq!(source.looks.into_inner(), 17);
        assert_eq!(passed + 16 * CHUNK_BYTES, 1600 * MIB);
        // Reading a taken chunk needs none.
        let source = Holed { data: source.data, len: source.len, ..Holed::default() };
        for taken in &all {
            let mut block = vec![0xee; taken.len];
            assert_eq!(Chunk::read(&source, taken, &mut block).expect("it is read").len(), taken.len);
        }
        assert_eq!(source.looks.into_inner(), 0);
    }

    #[test]
    fn each_chunk_with_data_is_taken_once_and_no_other() {
        // Data to the end of a chunk, over a border, in the last bytes of the file, and in one long run.
        let data = vec![3 * MIB..4 * MIB, 11 * MIB..13 * MIB, 40 * MIB + 1..61 * MIB, 97 * MIB..97 * MIB + 5];
        let source = Holed { data, len: 97 * MIB + 5, ..Holed::default() };
        let offsets = |range: Range<u64>| {
            let all = all_taken(&Frontier::new(range, true), &source).0;
            all.iter().map(|taken| (taken.offset / MIB, taken.len as u64)).collect::<Vec<_>>()
        };
        let full = |offset| (offset, CHUNK_BYTES);
        let [first, next, long] = [vec![full(0)], vec![full(8), full(12)], (40..61).step_by(4).map(full).collect()];
        let last = vec![(96, MIB + 5)];
        assert_eq!(offsets(0..source.len), [first, next, long, last].concat());
        assert_eq!(offsets(12 * MIB..44 * MIB), [full(12), full(40)]);
        assert_eq!(offsets(64 * MIB..96 * MIB), []);
        // Two for each chunk of a long run, and one for each hole.
        source.looks.store(0, Ordering::Relaxed);
        offsets(40 * MIB..60 * MIB);
        assert_eq!(source.looks.load(Ordering::Relaxed), 10);
        // Of a file without holes nothing is asked.
        let frontier = Frontier::new(0..9 * MIB, false);
        let (all, passed) = all_taken(&frontier, &source);
        let places: Vec<_> = all.iter().map(|taken| (taken.offset / MIB, taken.len as u64 / MIB)).collect();
        assert_eq!((places, passed), (vec![(0, 4), (4, 4), (8, 1)], 0));
        assert_eq!(source.looks.load(Ordering::Relaxed), 10);
        assert_eq!(all_taken(&Frontier::new(0..0, true), &source).0.len(), 0);
    }

    #[test]
    fn after_a_failure_nothing_more_is_taken() {
        let source = Holed { data: vec![0..60 * MIB, 60 * MIB..100 * MIB], len: 100 * MIB, ..Holed::default() };
        for is_sparse in [true, false] {
            let frontier = Frontier::new(0..100 * MIB, is_sparse);
            assert!(frontier.take(&source).expect("it is found").1.is_some());
            frontier.stop();
            assert!(frontier.take(&source).expect("it is found").1.is_none());
        }
    }
}
