//! What the records of a journal and of a checkpoint say. A change of their encoding is another
//! format: `aze_store::disk::manifest::FORMAT`.

use aze_meta::{Op, Outcome, SessionRow, ShardPart, Stamp};
use aze_proto::ids::{Generation, Ino, SessionId, ShardId, Time, TxId};
use aze_proto::{wire_enum, wire_struct};
use aze_store::Row;

impl From<Row> for Unit {
    fn from(row: Row) -> Unit {
        let Row { ino, generation, chunk, unit, slot, len, sums, is_copy } = row;
        Unit { ino, generation, chunk, unit, slot, len, sums, is_copy }
    }
}

impl From<Unit> for Row {
    fn from(from: Unit) -> Row {
        let Unit { ino, generation, chunk, unit, slot, len, sums, is_copy } = from;
        Row { ino, generation, chunk, unit, slot, len, sums, is_copy }
    }
}

wire_struct! {
    /// The generation of a file in one shard.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Seen {
        /// The file.
        pub ino: Ino,
        /// Its generation.
        pub generation: Generation,
    }
}

wire_struct! {
    /// When entries of a directory last came or went on this server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Changed {
        /// The directory.
        pub dir: Ino,
        /// When.
        pub time: Time,
    }
}

wire_struct! {
    /// A unit of file data that is in a segment.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Unit {
        /// The file.
        pub ino: Ino,
        /// Its generation.
        pub generation: Generation,
        /// The chunk.
        pub chunk: u64,
        /// Which 64 KiB of it.
        pub unit: u16,
        /// The place in the segments.
        pub slot: u64,
        /// Bytes that count.
        pub len: u32,
        /// The checksums of its blocks.
        pub sums: Vec<u32>,
        /// The chunk is a copy of what the backing has.
        pub is_copy: bool,
    }
}

wire_enum! {
    /// One step of one shard, or of the server.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Step {
        /// An operation on names and inodes that has taken effect.
        1 = Names { shard: ShardId, stamp: Stamp, op: Op },
        /// Data were written: the payload, with a checksum for each piece here. A request that the stamp names ends
        /// with it.
        2 = Data {
            shard: ShardId,
            stamp: Stamp,
            ino: Ino,
            generation: Generation,
            chunk: u64,
            offset: u32,
            sums: Vec<u32>,
        },
        /// A file was truncated.
        3 = TruncateData { shard: ShardId, ino: Ino, generation: Generation, length: u64, chunk_bits: u8 },
        /// A file's data were dropped.
        4 = Drop { shard: ShardId, ino: Ino },
        /// Data beyond the end of a file were dropped.
        5 = Trim { shard: ShardId, ino: Ino, length: u64, chunk_bits: u8 },
        /// A range of a file became zeros. A request that the stamp names ends with it.
        6 = Punch { shard: ShardId, stamp: Stamp, ino: Ino, start: u64, end: u64, chunk_bits: u8 },
        /// A request for data ended without a change of them.
        7 = Outcome { shard: ShardId, stamp: Stamp, outcome: Outcome },
        /// A session ended: its outcomes among the shard's data are forgotten.
        8 = EndSession { shard: ShardId, session: SessionId },
        /// As `Op::ExpireOutcomes`, for the shard's data.
        9 = ExpireOutcomes { shard: ShardId },
        /// A chunk was read from the backing: the payload.
        15 = Fill { shard: ShardId, ino: Ino, generation: Generation, chunk: u64, sums: Vec<u32> },
        /// A chunk that was read from the backing stays.
        16 = Keep { shard: ShardId, ino: Ino, chunk: u64 },
        /// The chunks of a file have become copies: the backing has its first `length` bytes.
        18 = Copies { shard: ShardId, ino: Ino, length: u64, chunk_bits: u8 },
        /// It went, and will be read from there again.
        17 = Evict { shard: ShardId, ino: Ino, chunk: u64 },
        /// In a checkpoint: a shard's tables, or a part of them, as they were at a place of the journal.
        10 = Tables { shard: ShardId, position: u64, part: ShardPart },
        /// In a checkpoint: generations of files, after the shard's tables.
        11 = Generations { shard: ShardId, seen: Vec<Seen> },
        /// In a checkpoint: outcomes of requests for the shard's data, by session.
        14 = Outcomes { shard: ShardId, sessions: Vec<SessionRow> },
        /// In a checkpoint: data in segments.
        13 = Units { shard: ShardId, units: Vec<Unit> },
        /// In a checkpoint: what the server knows besides its shards.
        12 = Server { time: Time, finished: Vec<TxId>, changed: Vec<Changed> },
    }
}

impl Step {
    /// The shard that it concerns; `None`: the server as a whole.
    pub(crate) fn shard(&self) -> Option<ShardId> {
        match self {
            Step::Server { .. } => None,
            Step::Names { shard, .. }
            | Step::Data { shard, .. }
            | Step::Fill { shard, .. }
            | Step::Keep { shard, .. }
            | Step::Copies { shard, .. }
            | Step::Evict { shard, .. }
            | Step::Outcome { shard, .. }
            | Step::EndSession { shard, .. }
            | Step::ExpireOutcomes { shard }
            | Step::Outcomes { shard, .. }
            | Step::TruncateData { shard, .. }
            | Step::Drop { shard, .. }
            | Step::Trim { shard, .. }
            | Step::Punch { shard, .. }
            | Step::Tables { shard, .. }
            | Step::Units { shard, .. }
            | Step::Generations { shard, .. } => Some(*shard),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::wire::Wire;
    use aze_proto::{Reply, Sequence};

    /// See `a_record_looks_like_this` in the store for the bytes around it.
    #[test]
    fn steps_look_like_this() {
        let hex = |step: Step| step.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let shard = ShardId(3);
        assert_eq!(hex(Step::Drop { shard, ino: Ino(9) }), "0400030000000900000000000000");
        let op = Op::SetLinks { ino: Ino(5), links: 1 };
        let stamp = Stamp { time: Time(1), session: SessionId(2), sequence: Sequence(3), floor: Sequence(4) };
        let stamped = "0100000000000000020000000000000003000000000000000400000000000000";
        let names = Step::Names { shard, stamp, op };
        assert_eq!(hex(names), format!("010003000000{stamped}2800050000000000000001000000"));
        let (ino, generation) = (Ino(9), Generation(1));
        let data = Step::Data { shard, stamp, ino, generation, chunk: 2, offset: 7, sums: vec![8] };
        assert_eq!(
            hex(data),
            format!("020003000000{stamped}09000000000000000100000002000000000000000700000001000000") + "08000000"
        );
        let punch = Step::Punch { shard, stamp, ino, start: 5, end: 6, chunk_bits: 16 };
        let range = "0900000000000000050000000000000006000000000000001000000000000000";
        assert_eq!(hex(punch), format!("060003000000{stamped}{}", &range[..50]));
        let outcome = Step::Outcome { shard, stamp, outcome: Ok(Reply::Done).into() };
        assert_eq!(hex(outcome), format!("070003000000{stamped}01000100"));
        assert_eq!(hex(Step::EndSession { shard, session: SessionId(2) }), "0800030000000200000000000000");
        assert_eq!(hex(Step::ExpireOutcomes { shard }), "090003000000");
        let row = SessionRow { session: SessionId(2), floor: Sequence(4), is_recent: true, outcomes: Vec::new() };
        assert_eq!(
            hex(Step::Outcomes { shard, sessions: vec![row] }),
            "0e000300000001000000020000000000000004000000000000000100000000"
        );
        let (chunk, slot, sums) = (2, 0x121, vec![8]);
        let unit = Unit { ino, generation, chunk, unit: 3, slot, len: 7, sums: sums.clone(), is_copy: true };
        assert_eq!(
            hex(Step::Units { shard, units: vec![unit] }),
            "0d00030000000100000009000000000000000100000002000000000000000300".to_owned()
                + "210100000000000007000000010000000800000001"
        );
        let place = "0900000000000000";
        assert_eq!(
            hex(Step::Fill { shard, ino, generation, chunk, sums }),
            format!("0f0003000000{place}0100000002000000000000000100000008000000")
        );
        assert_eq!(hex(Step::Keep { shard, ino, chunk }), format!("100003000000{place}0200000000000000"));
        assert_eq!(
            hex(Step::Copies { shard, ino, length: 2, chunk_bits: 16 }),
            format!("120003000000{place}020000000000000010")
        );
        assert_eq!(hex(Step::Evict { shard, ino, chunk }), format!("110003000000{place}0200000000000000"));
    }
}
