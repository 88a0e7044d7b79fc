//! Encodings of operations, byte for byte: a journal written by one build is read by the next.
//! A change of one of them raises `OP_VERSION` and adds the new sample beside the old.

use aze_meta::op::OP_VERSION;
use aze_meta::{AttrSet, EntryKey, Lock, NewFile, Op, Outcome, Role, Stamp, Xattr};
use aze_proto::ids::{
    Generation, Incarnation, Ino, Life, MapEpoch, Prefix, Sequence, ServerIndex, SessionId, ShardId, Time, TxId,
};
use aze_proto::place::Layout;
use aze_proto::wire::{Blob, Wire};
use aze_proto::{Backing, BackingIdentity, Imported, Spread};
use aze_proto::{Code, Failure, FileKind, Name, Reply, XattrHow};

fn samples() -> Vec<Op> {
    let key = EntryKey::new(Ino(2), Name::new(b"name").expect("a name"));
    let new = NewFile {
        kind: FileKind::Symlink,
        mode: 0o777,
        uid: 1,
        gid: 2,
        rdev: 3,
        target: Blob(b"to".to_vec()),
        born: MapEpoch(4),
        chunk_bits: 20,
        layout: Layout { first: Prefix(9), shard_bits: 12 },
        private: false,
        over_backing: false,
    };
    let lock = Lock {
        tx: TxId(5),
        role: Role::Destination,
        coordinator: ServerIndex(6),
        incarnation: Incarnation(7),
        ino: Ino(8),
        kind: FileKind::Directory,
    };
    let set = AttrSet { mode: Some(0o644), uid: None, gid: Some(9), atime: None, mtime: Some(Time(10)) };
    let (ino, under) = (Ino(8), Some(TxId(5)));
    let exchanged = key.clone();
    vec![
        Op::MakeRoot { uid: 1, gid: 2, mode: 0o755, born: MapEpoch(3), chunk_bits: 20 },
        Op::Create { key: key.clone(), new: new.clone(), exclusive: true },
        Op::Remove { key: key.clone(), only: Some(ino), moved: true, under },
        Op::Insert { key: key.clone(), ino, kind: FileKind::File, replace: true, under, attr: None },
        Op::SetAttr { ino, set },
        Op::Report { ino, generation: Generation(1), end: 2, spread: Spread::ANYWHERE },
        Op::Truncate { ino, size: 3 },
        Op::TruncateDone { ino, generation: Generation(4) },
        Op::SetParent { ino, parent: Ino(9) },
        Op::Delete { ino },
        Op::Lock { key: key.clone(), lock: lock.clone() },
        Op::Unlock { key: key.clone(), tx: TxId(5) },
        Op::Record { outcome: Outcome::Success { reply: Reply::Done } },
        Op::Record { outcome: Outcome::Failed { failure: Failure::new(Code::Busy, "why") } },
        Op::ReserveInos { count: 11 },
        Op::LinkBegin { ino, tx: TxId(5), shard: ShardId(12) },
        Op::LinkEnd { ino, tx: TxId(5), kept: true },
        Op::LinkInsert { key: key.clone(), ino, kind: FileKind::File, tx: TxId(5) },
        Op::LinkDrop { ino, tx: TxId(5) },
        Op::LinkForget { ino, tx: TxId(5) },
        Op::LinkResolved { tx: TxId(5) },
        Op::SetXattr {
            ino,
            name: Blob(b"user.a".to_vec()),
            value: Some(Blob(b"b".to_vec())),
            mode: None,
            if_any: false,
            how: XattrHow::Create,
        },
        Op::CreateWith {
            key,
            new,
            exclusive: true,
            xattrs: vec![Xattr { name: Blob(b"user.a".to_vec()), value: Blob(b"b".to_vec()) }],
        },
        Op::SetLinks { ino: Ino(8), links: 2 },
        Op::Exchange { key: exchanged.clone(), ino, kind: FileKind::File, under: TxId(5) },
        Op::Lock {
            key: exchanged.clone(),
            lock: Lock {
                role: Role::ExchangeSource { ino: Ino(9), kind: FileKind::File, parent: Ino(3) },
                ..lock.clone()
            },
        },
        Op::Lock { key: exchanged, lock: Lock { role: Role::ExchangeDestination, ..lock } },
        Op::Wrote { ino, generation: Generation(2), end: 9, spread: Spread::sparse(true) },
        Op::EndSession { session: SessionId(4) },
        Op::ExpireOutcomes,
        Op::BeginLife { life: Life(3) },
        Op::Appended { ino, generation: Generation(2), offset: 9, end: 10 },
        Op::Import {
            key: EntryKey::new(Ino(2), Name::new(b"name").expect("a name")),
            file: imported(),
            born: MapEpoch(4),
            chunk_bits: 20,
            layout: Layout { first: Prefix(9), shard_bits: 12 },
            spread: Spread::ANYWHERE,
        },
        Op::ImportedAll { dir: ino },
        Op::LieOver { ino, backing: imported().backing },
        Op::WillChange { ino },
        Op::LeaveBacking { ino },
        Op::Adopt { ino, backing: imported().backing },
        Op::Settled { ino, origin: 9 },
        Op::ForgetGone { key: EntryKey::new(Ino(2), Name::new(b"name").expect("a name")), since: Time(3) },
    ]
}

fn imported() -> Imported {
    Imported {
        name: Name::new(b"name").expect("a name"),
        kind: FileKind::File,
        mode: 0o640,
        uid: 1,
        gid: 2,
        rdev: 0,
        atime: Time(3),
        mtime: Time(4),
        target: Blob::default(),
        xattrs: vec![Xattr { name: Blob(b"user.a".to_vec()), value: Blob(b"b".to_vec()) }],
        backing: Backing {
            path: Blob(b"d/name".to_vec()),
            identity: BackingIdentity { inode: 5, size: 6, mtime_ns: 7, ctime_ns: 8 },
            length: 6,
            is_imported: true,
            data_changed: false,
            attributes_changed: true,
            parent: Ino(2),
            origin: 9,
            is_settling: true,
        },
    }
}

const GOLDEN: &str = include_str!("golden_ops_7.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn operations_are_encoded_as_ever() {
    assert_eq!(OP_VERSION, 7, "a new version brings a new file of samples");
    let written: String = samples().iter().map(|op| format!("{} {}\n", op.name(), hex(&op.to_bytes()))).collect();
    assert_eq!(written, GOLDEN);
}

#[test]
fn every_kind_of_operation_has_a_sample() {
    for (_, name) in Op::NAMES {
        assert!(GOLDEN.lines().any(|line| line.split(' ').next() == Some(name)), "{name} has no golden sample");
    }
}

#[test]
fn old_bytes_are_understood() {
    for (line, op) in GOLDEN.lines().zip(samples()) {
        let digits = line.split(' ').nth(1).expect("a line has a name and digits");
        let bytes: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
            .collect();
        assert_eq!(Op::from_bytes(&bytes), Ok(op));
        for cut in 0..bytes.len() {
            assert!(Op::from_bytes(&bytes[..cut]).is_err(), "a torn operation must not be understood");
        }
    }
}

#[test]
fn a_stamp_is_four_numbers() {
    let stamp = Stamp { time: Time(1), session: SessionId(2), sequence: Sequence(3), floor: Sequence(4) };
    assert_eq!(hex(&stamp.to_bytes()), "0100000000000000020000000000000003000000000000000400000000000000");
}
