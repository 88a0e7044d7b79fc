//! Golden samples: the encoding of version 16, byte for byte. A change here is a change of format,
//! which needs a new version and a reader for the old one.

use aze_proto::check::{CheckedEntry, CheckedInode, ChunkPlace, DamagedData, DataPlace, EntryPlace, EntrySpot};
use aze_proto::fields::{CountChanges, Create, PrepareExchange, Punch, Read, Reserve, Scan, Seek, Write};
use aze_proto::frame::{Header, Kind, open, seal};
use aze_proto::handshake::{Hello, Step, Versions};
use aze_proto::message::{
    Envelope, HeldStub, HotCount, JobActivity, Listed, LockMode, LockOutcome, LockSpace, LockSpec, Recall,
    RecentActivity, ServerActivity,
};
use aze_proto::place::{Agreed, Away, GroupMember, KeeperGroup, Layout, ServerInfo, ShardMap};
use aze_proto::predicate::Predicate;
use aze_proto::slots::SlotTable;
use aze_proto::wire::{Blob, Wire};
use aze_proto::*;
use std::sync::Arc;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attr() -> Attr {
    Attr {
        ino: Ino::new(Prefix(3), Life(1), 9).expect("the parts fit"),
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 5,
        atime: Time(1),
        mtime: Time(2),
        ctime: Time(3),
        btime: Time(4),
        generation: Generation(7),
        born: MapEpoch(1),
        layout: Layout { first: Prefix(3), shard_bits: 12 },
        chunk_bits: 20,
        spread: Spread::default(),
        has_xattrs: true,
        parent: Ino(0),
    }
}

fn imported() -> Imported {
    Imported {
        name: Name::new(b"a").expect("a name"),
        kind: FileKind::File,
        mode: 0o640,
        uid: 1,
        gid: 2,
        rdev: 0,
        atime: Time(3),
        mtime: Time(4),
        target: Blob::default(),
        xattrs: vec![xattr::Xattr { name: Blob(b"user.a".to_vec()), value: Blob(b"b".to_vec()) }],
        backing: Backing {
            path: Blob(b"d/a".to_vec()),
            identity: BackingIdentity { inode: 5, size: 6, mtime_ns: 7, ctime_ns: 8 },
            length: 6,
            is_imported: true,
            data_changed: false,
            attributes_changed: true,
            parent: Ino(9),
            origin: 3,
            is_settling: true,
        },
    }
}

fn staged() -> Staged {
    let Backing { path, identity, parent, origin, .. } = imported().backing;
    let changes = vec![ServerChanges { server: ServerIndex(2), life: 4, wraps: 5, changes: 6 }];
    let (generation, ctime) = (Generation(7), Time(8));
    Staged { ino: Ino(10), claim: 11, origin, generation, size: 6, ctime, chunks: 1, changes, parent, path, identity }
}

fn settle() -> Request {
    let (ino, born, layout) = (Ino(10), MapEpoch(2), Layout { first: Prefix(9), shard_bits: 12 });
    let Staged { generation, chunks, changes, .. } = staged();
    let count = CountChanges { ino, generation, born, layout, chunks };
    let settle = Settle { count, changes: changes[0], backing: imported().backing, chunk_bits: 20 };
    Request::Settle { settle: Box::new(settle) }
}

fn gone() -> Gone {
    let Backing { path, identity, .. } = imported().backing;
    let name = Name::new(b"a").expect("a name");
    Gone { parent: Ino(9), name, ino: Ino(10), kind: FileKind::File, path, identity, since: Time(11) }
}

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let name = Name::new(b"a").expect("a name");
    let identity = Identity { uid: 1000, gid: 100, groups: vec![4] };
    let create = Request::Create(Create {
        parent: Ino::ROOT,
        name: name.clone(),
        kind: FileKind::File,
        mode: 0o644,
        rdev: 0,
        target: Blob::default(),
        exclusive: true,
        open: Some(5),
        write: true,
        chunk_bits: 0,
        private: false,
    });
    let xattr = Blob(b"user.a".to_vec());
    let write = Request::Write(Write {
        ino: Ino(9),
        generation: Generation(1),
        born: MapEpoch(1),
        layout: Layout { first: Prefix(6), shard_bits: 12 },
        chunk: 2,
        offset: 4096,
        sums: vec![0xdead_beef],
    });
    let listed =
        Listed { hash: NameHash::of(Ino::ROOT, &name), name, ino: Ino(9), kind: FileKind::Directory, attr: None };
    let spec = LockSpec { space: LockSpace::Ranges, owner: 5, pid: 6, start: 7, end: 8, mode: LockMode::Exclusive };
    let lock = Request::SetLock { ino: Ino(9), lock: spec, wait: Some(3) };
    let held = Reply::LockIs { outcome: LockOutcome::Held { by: spec } };
    let (ino, generation, born, chunk_bits) = (Ino(9), Generation(1), MapEpoch(1), 20);
    let layout = Layout { first: Prefix(6), shard_bits: 12 };
    let unnamed = Request::CreateUnnamed {
        parent: Ino(1),
        name: Name::new(b"a").expect("a name"),
        mode: 0o600,
        open: 5,
        write: true,
    };
    let freeze = Request::Freeze { ino: Ino(9), handle: 5, generation: Generation(6), ctime: Time(7), any_life: true };
    let unlink = Request::UnlinkFrozen {
        parent: Ino(1),
        name: Name::new(b"a").expect("a name"),
        ino: Ino(9),
        began: MapEpoch(8),
    };
    let reserve = Request::Reserve(Reserve {
        ino,
        generation,
        born,
        layout,
        chunk: 2,
        offset: 3,
        len: 4,
        zero: true,
        chunk_bits,
    });
    let punch = Request::Punch(Punch { ino, generation, born, layout, chunk: 2, start: 3, end: 4, chunk_bits });
    let seek = Request::Seek(Seek { ino, generation, born, layout, offset: 3, hole: true, chunk_bits });
    let count = Request::CountChanges(CountChanges { ino, generation, born, layout, chunks: 4 });
    let read = Request::Read(Read { ino, generation, born, layout, chunk: 2, offset: 3, len: 4 });
    let scan = Scan {
        dirs: vec![Ino(9)],
        predicate: Predicate::default(),
        find: true,
        usage: false,
        after_dir: 2,
        after: 3,
        limit: 4,
        slots: vec![SlotIndex(5)],
    };
    let scan = Request::Scan { scan: Box::new(scan) };
    let (parent, to_parent, to_name) = (Ino::ROOT, Ino(9), Name::new(b"b").expect("a name"));
    let exchange =
        Request::Exchange { parent, name: Name::new(b"a").expect("a name"), to_parent, to_name: to_name.clone() };
    let prepare = Request::PrepareExchange(PrepareExchange {
        tx: TxId(5),
        coordinator: ServerIndex(6),
        incarnation: Incarnation(7),
        to_parent,
        to_name,
        ino,
        kind: FileKind::Directory,
        identity: Identity { uid: 1000, gid: 100, groups: vec![4] },
    });
    let name = Name::new(b"a").expect("a name");
    let spot = EntrySpot { parent: Ino(1), hash: NameHash::of(Ino::ROOT, &name), name: name.clone() };
    let place = EntryPlace { shard: ShardId(3), after: Some(spot) };
    let check_entries = Request::CheckEntries { from: place, first_home: 0, end_home: 64, only: vec![Ino(9)] };
    let (kind, links, parent) = (FileKind::File, 2, Ino(1));
    let inode = CheckedInode { ino, kind, links, parent, is_open: true, is_under_way: false };
    let inodes_checked = Reply::InodesChecked { inodes: vec![inode], next: Some(Ino(10)) };
    let entry = CheckedEntry { ino, kind, parent, is_misplaced: false, name: Some(name) };
    let entries_checked = Reply::EntriesChecked { entries: vec![entry], under_way: vec![Ino(9)], next: None };
    let at = ChunkPlace { ino, chunk: 2 };
    let damaged = DamagedData { place: at, byte: 4096, unreadable: None, stored: "memory".into() };
    let next = Some(DataPlace { shard: ShardId(3), ino, chunk: 2, unit: 1 });
    let data_checked = Reply::DataChecked { bytes: 5, damaged: vec![damaged], strays: vec![at], next };
    let job = JobActivity { job: "j".into(), connections: 1, requests: 2, read_bytes: 3, written_bytes: 4 };
    let hot = HotCount { ino, name: Blob(b"a".to_vec()), count: 10 };
    let (directories, files) = (vec![hot.clone()], vec![hot]);
    let recent = RecentActivity { window_ms: 11, changes: 12, directories, opens: 13, files, took: vec![14] };
    let activity = ServerActivity {
        pid: 5,
        memory_bytes: 6,
        used_bytes: 7,
        sessions: 8,
        timed_one_in: 16,
        took: vec![0, 9],
        jobs: vec![job],
        recent,
    };
    let info = ServerInfo {
        addresses: vec!["tcp:h:1".into()],
        host: "h".into(),
        incarnation: Incarnation(2),
        since: MapEpoch(3),
        pid: 4,
        capacity_bytes: 5,
        ended: true,
        left: true,
        joining: true,
        life: 6,
        began: MapEpoch(7),
        session: SessionId(8),
    };
    let ended = Request::ServerEnded { server: ServerIndex(6), began: MapEpoch(7), incarnation: Incarnation(8) };
    let stub = HeldStub { dir: Ino(1), rights: 2, round: 3 };
    let known = Reply::KnownIs { stubs: vec![stub], fenced: vec![SessionId(4)], next: Some(Ino(5)) };
    let map = ShardMap {
        epoch: MapEpoch(1),
        keeper: ServerIndex(0),
        group: KeeperGroup {
            formed: MapEpoch(1),
            members: vec![GroupMember { server: ServerIndex(2), session: SessionId(3) }],
        },
        chunk_bits: 20,
        owner_uid: 1000,
        owner_gid: 100,
        volume: "v".into(),
        servers: Vec::new(),
        slots: SlotTable::begun(64, 1, 1).expect("one slot of 64 shards"),
    };
    let away = Away { server: ServerIndex(2), start: 4 };
    let agreed = Agreed { start: 6, formed: MapEpoch(7), term: 8, index: 9, map: map.clone() };
    let root = Stub {
        ino: Ino::ROOT,
        mode: 0o755,
        uid: 1000,
        gid: 100,
        born: MapEpoch(2),
        chunk_bits: 20,
        acl: None,
        default_acl: Some(Blob(vec![3])),
        is_behind: false,
        version: 4,
        mtime: Time(5),
        ctime: Time(6),
    };
    let kept = Reply::GroupKeptIs {
        volume: Some(5),
        agreed: Some(Box::new(agreed)),
        begun: 12,
        complete: 11,
        away: vec![away],
    };
    let hello = Hello {
        versions: Versions { oldest: 9, newest: 10 },
        session: SessionId(5),
        nonce: [3; 32],
        volume: "v".into(),
        server: false,
        job: "j".into(),
        more: Blob(b"later".to_vec()),
    };
    let challenge = Step::Challenge { nonce: [4; 32], version: 9, fingerprint: 7, proof: [5; 32] };
    vec![
        ("hello", Step::Hello { hello, proof: [6; 32] }.to_bytes()),
        ("challenge", challenge.to_bytes()),
        ("map", Reply::Map { map: Arc::new(map.clone()) }.to_bytes()),
        ("join", Request::Join { slot: ServerIndex(1), info: info.clone() }.to_bytes()),
        ("server ended", ended.to_bytes()),
        ("known", Request::Known { of: ServerIndex(1), from: Ino(2) }.to_bytes()),
        ("known is", known.to_bytes()),
        ("envelope", Envelope { identity, request: create }.to_bytes()),
        ("write", write.to_bytes()),
        ("attributes", Reply::Attributes { attr: attr() }.to_bytes()),
        ("listing", Reply::Listing { entries: vec![listed], more: false }.to_bytes()),
        ("refusal", Failure::refused(Refusal::MapStale { epoch: MapEpoch(4) }).to_bytes()),
        ("starting", Failure::refused(Refusal::Starting).to_bytes()),
        ("activity is", Reply::ActivityIs { activity: Box::new(activity) }.to_bytes()),
        ("append", Request::Append { ino: Ino(9), sums: vec![1, 2] }.to_bytes()),
        ("appended", Reply::Appended { attr: attr(), offset: 7 }.to_bytes()),
        ("open with contents", Request::OpenWith { ino: Ino(9), handle: 5, write: false, contents: 65_536 }.to_bytes()),
        (
            "open name with contents",
            Request::OpenNameWith {
                parent: Ino::ROOT,
                name: Name::new(b"a").expect("a name"),
                handle: 5,
                write: true,
                contents: 65_536,
            }
            .to_bytes(),
        ),
        ("opened with contents", Reply::OpenedWith { attr: attr(), sums: vec![0xdead_beef] }.to_bytes()),
        ("link", Request::LinkBegin { ino: Ino(9), tx: TxId(5), shard: ShardId(3) }.to_bytes()),
        (
            "set xattr",
            Request::SetXattr { ino: Ino(9), name: xattr.clone(), value: None, how: XattrHow::Any }.to_bytes(),
        ),
        ("xattr names", Reply::XattrNames { names: vec![xattr] }.to_bytes()),
        ("lock", lock.to_bytes()),
        ("lock is held", held.to_bytes()),
        ("create unnamed", unnamed.to_bytes()),
        ("reserve", reserve.to_bytes()),
        ("punch", punch.to_bytes()),
        ("seek", seek.to_bytes()),
        ("count changes", count.to_bytes()),
        ("read", read.to_bytes()),
        ("scan", scan.to_bytes()),
        ("take all", Request::TakeAll { moving: 3, slot: SlotIndex(5), pieces: 7, leased: true }.to_bytes()),
        ("leave", Request::Leave { servers: vec![ServerIndex(2)] }.to_bytes()),
        ("leaving", Reply::Leaving { slots: 5, servers: vec![ServerIndex(2)] }.to_bytes()),
        ("enter", Request::Enter { slot: ServerIndex(1), info }.to_bytes()),
        ("balance", Request::Balance.to_bytes()),
        ("group kept is", kept.to_bytes()),
        ("entered", Reply::Entered { map: Arc::new(map), fenced: vec![SessionId(5)] }.to_bytes()),
        ("balancing", Reply::Balancing { slots: 5 }.to_bytes()),
        ("group kept", Request::GroupKept.to_bytes()),
        ("root rights", Request::RootRights.to_bytes()),
        ("root rights are", Reply::StubGranted { stub: root }.to_bytes()),
        ("group", Request::Group { formed: MapEpoch(5), bytes: Blob(vec![6, 7]) }.to_bytes()),
        (
            "keeper gone",
            Request::KeeperGone {
                keeper: ServerIndex(5),
                began: MapEpoch(6),
                incarnation: Incarnation(7),
                has_ended: true,
            }
            .to_bytes(),
        ),
        ("takeover is", Reply::TakeoverIs { epoch: NamespaceEpoch(5), tokens: vec![TxId(6)] }.to_bytes()),
        (
            "note holders",
            Request::NoteHolders { holder: ServerIndex(2), incarnation: Incarnation(1), dirs: vec![Ino(9)] }.to_bytes(),
        ),
        ("sought", Reply::SoughtIs { at: Some(9) }.to_bytes()),
        ("changes are", Reply::ChangesAre { life: 5, wraps: 6, changes: 7 }.to_bytes()),
        ("exchange", exchange.to_bytes()),
        ("prepare exchange", prepare.to_bytes()),
        ("resolve", Request::TxResolve { txs: vec![TxId(5)] }.to_bytes()),
        ("listen", Request::Listen { life: 5, confirmed: 6 }.to_bytes()),
        (
            "recalled",
            Reply::Recalled { life: 5, last: 7, recalls: vec![Recall { ino: Ino(9), names: true }] }.to_bytes(),
        ),
        ("check entries", check_entries.to_bytes()),
        ("check watch", Request::CheckWatch { number: 5, begin: Some(vec![Ino(9)]) }.to_bytes()),
        ("inodes checked", inodes_checked.to_bytes()),
        ("entries checked", entries_checked.to_bytes()),
        ("data checked", data_checked.to_bytes()),
        ("moved", Reply::Moved { inos: vec![Ino(9)] }.to_bytes()),
        (
            "persistent is",
            Reply::PersistentIs { volume: 5, is_new: true, start: 7, complete: 6, away: vec![away] }.to_bytes(),
        ),
        ("count opens", Request::CountOpens { ino: Ino(9) }.to_bytes()),
        ("opens are", Reply::OpensAre { opens: 5, writers: 6, knows_all: true }.to_bytes()),
        ("freeze", freeze.to_bytes()),
        ("frozen", Reply::Frozen { began: MapEpoch(8) }.to_bytes()),
        ("unlink frozen", unlink.to_bytes()),
        ("open to run", Request::OpenToRun { ino: Ino(9), handle: 5 }.to_bytes()),
        (
            "open through",
            Request::OpenThrough { dir: Ino(9), path: Blob(vec![7]), handle: 5, contents: true }.to_bytes(),
        ),
        (
            "open name through",
            Request::OpenNameThrough { dir: Ino(9), name: Name::new(b"a").expect("a name"), handle: 5, contents: true }
                .to_bytes(),
        ),
        (
            "epoch push",
            Request::EpochPush {
                epoch: NamespaceEpoch(5),
                changed: vec![Ino(6)],
                at_home: vec![Ino(7)],
                with_entries: vec![Ino(8)],
            }
            .to_bytes(),
        ),
        ("paths", Reply::PathsAre { holders: vec![ServerIndex(2)], within: vec![Ino(9)], is_all: true }.to_bytes()),
        ("close through", Request::CloseThrough { handles: vec![5] }.to_bytes()),
        (
            "opened through",
            Reply::OpenedThrough { attr: attr(), is_shared: true, contents: Some(Blob(vec![8])) }.to_bytes(),
        ),
        ("backing of", Request::BackingOf { ino: Ino(9) }.to_bytes()),
        ("will change", Request::WillChange { ino: Ino(9) }.to_bytes()),
        ("import dir", Request::ImportDir { dir: Ino(9) }.to_bytes()),
        ("import", Request::Import { dir: Ino(9), names: vec![imported()] }.to_bytes()),
        (
            "backing is",
            Reply::BackingIs { backing: Some(imported().backing), generation: Generation(7), chunk_bits: 20 }
                .to_bytes(),
        ),
        ("gone names", Request::GoneNames { from: EntryPlace::default() }.to_bytes()),
        ("leave backing", Request::LeaveBacking { ino: Ino(9) }.to_bytes()),
        (
            "forget gone",
            Request::ForgetGone { parent: Ino(9), name: Name::new(b"a").expect("a name"), since: Time(11) }.to_bytes(),
        ),
        ("adopt", Request::Adopt { staged: Box::new(staged()) }.to_bytes()),
        ("claim", Request::Claim { ino: Ino(10) }.to_bytes()),
        ("claimed", Reply::Claimed { claim: 11, backing: Some(imported().backing) }.to_bytes()),
        ("settle", settle().to_bytes()),
        ("settled", Reply::Settled { is_same: true }.to_bytes()),
        ("gone are", Reply::GoneAre { names: vec![gone()], next: Some(EntryPlace::default()) }.to_bytes()),
        ("head", seal(&Header { sequence: Sequence(8), ..Header::new(Kind::Request, 2) }, b"body", 3, Some(&[9; 32]))),
    ]
}

const GOLDEN: &[(&str, &str)] = &[
    (
        "hello",
        "0100090a0500000000000000030303030303030303030303030303030303030303030303030303030303030301000000\
         7600010000006a050000006c617465720606060606060606060606060606060606060606060606060606060606060606",
    ),
    (
        "challenge",
        "020004040404040404040404040404040404040404040404040404040404040404040907000000000000000505050505\
         050505050505050505050505050505050505050505050505050505",
    ),
    (
        "map",
        "0c0001000000000001000000010000000200030000000000000014e80300006400000001000000760000000040000000010001000000000100000000000000000000000000",
    ),
    (
        "join",
        "2800010001000000070000007463703a683a31010000006802000300000004000000050000000000000001010106000000070000\
         000800000000000000",
    ),
    ("server ended", "27000600070000000800"),
    ("known", "610001000200000000000000"),
    (
        "known is",
        "390001000000010000000000000002000000000000000300000000000000010000000400000000000000010500000000000000",
    ),
    (
        "envelope",
        "e80300006400000001000000040000000200010000000000000001006108a40100000000000000000000010105000000\
         00000000010000",
    ),
    ("write", "140009000000000000000100000001000000060000000c02000000000000000010000001000000efbeadde"),
    (
        "attributes",
        "030009000000100c000008a401000001000000e803000064000000000000000500000000000000010000000000000002\
         00000000000000030000000000000004000000000000000700000001000000030000000c1400010000000000000000",
    ),
    ("listing", "080001000000c8e9cd5b26b4bd340100610900000000000000040000"),
    ("refusal", "17000000000001010004000000"),
    ("starting", "170000000000010500"),
    (
        "activity is",
        "36000500000006000000000000000700000000000000080000000000000010000000020000000000000000000000\
         090000000000000001000000010000006a0100000000000000020000000000000003000000000000000400000000\
         0000000b000000000000000c0000000000000001000000090000000000000001000000610a00000000000000\
         0d0000000000000001000000090000000000000001000000610a0000000000000001000000\
         0e00000000000000",
    ),
    ("append", "6e000900000000000000020000000100000002000000"),
    (
        "appended",
        "230009000000100c000008a401000001000000e803000064000000000000000500000000000000010000000000000002\
         00000000000000030000000000000004000000000000000700000001000000030000000c14000100000000000000000700\
         000000000000",
    ),
    ("open with contents", "7d00090000000000000005000000000000000000000100"),
    ("open name with contents", "7e00010000000000000001006105000000000000000100000100"),
    (
        "opened with contents",
        "2d0009000000100c000008a401000001000000e803000064000000000000000500000000000000010000000000000002\
         00000000000000030000000000000004000000000000000700000001000000030000000c14000100000000000000000100\
         0000efbeadde",
    ),
    ("link", "40000900000000000000050000000000000003000000"),
    ("set xattr", "6600090000000000000006000000757365722e61000100"),
    ("xattr names", "1f000100000006000000757365722e61"),
    ("lock", "6f0009000000000000000100050000000000000006000000070000000000000008000000000000000200010300000000000000"),
    ("lock is held", "240002000100050000000000000006000000070000000000000008000000000000000200"),
    ("create unnamed", "6a00010000000000000001006180010000050000000000000001"),
    ("reserve", "670009000000000000000100000001000000060000000c020000000000000003000000040000000114"),
    ("punch", "680009000000000000000100000001000000060000000c02000000000000000300000000000000040000000000000014"),
    ("seek", "690009000000000000000100000001000000060000000c03000000000000000114"),
    ("count changes", "6c0009000000000000000100000001000000060000000c0400000000000000"),
    ("read", "150009000000000000000100000001000000060000000c02000000000000000300000004000000"),
    ("scan", "1f00010000000900000000000000000000000000000100020000000300000000000000040000000100000005000000"),
    ("take all", "ae00030000000000000005000000070000000000000001"),
    ("leave", "b400010000000200"),
    ("leaving", "520005000000010000000200"),
    (
        "enter",
        "b600010001000000070000007463703a683a31010000006802000300000004000000050000000000000001010106000000070000\
         000800000000000000",
    ),
    ("balance", "b700"),
    (
        "group kept is",
        "5b00010500000000000000010600000000000000070000000800000000000000090000000000000001000000000001000000010000000200030000000000000014e803000064000000010000007600000000400000000100010000000001000000000000000000000000000c000000000000000b000000000000000100000002000400000000000000",
    ),
    (
        "entered",
        "530001000000000001000000010000000200030000000000000014e80300006400000001000000760000000040000000010001000000000100000000000000000000000000010000000500000000000000",
    ),
    ("balancing", "540005000000"),
    ("group kept", "c100"),
    ("root rights", "d200"),
    (
        "root rights are",
        "0d000100000000000000ed010000e80300006400000002000000140001010000000300040000000000000005000000000000000600000000000000",
    ),
    ("group", "be0005000000020000000607"),
    ("keeper gone", "c000050006000000070001"),
    ("takeover is", "5a000500000000000000010000000600000000000000"),
    ("note holders", "b20002000100010000000900000000000000"),
    ("sought", "2000010900000000000000"),
    ("changes are", "2100050000000000000006000000000000000700000000000000"),
    ("exchange", "6b0001000000000000000100610900000000000000010062"),
    (
        "prepare exchange",
        "34000500000000000000060007000900000000000000010062090000000000000004e803000064000000010000000400\
         0000",
    ),
    ("resolve", "3500010000000500000000000000"),
    ("listen", "750005000000000000000600000000000000"),
    ("recalled", "25000500000000000000070000000000000001000000090000000000000001"),
    ("check entries", "970003000000010100000000000000c8e9cd5b26b4bd340100610000000040000000010000000900000000000000"),
    ("check watch", "9900050000000000000001010000000900000000000000"),
    ("inodes checked", "4b00010000000900000000000000080200000001000000000000000100010a00000000000000"),
    ("entries checked", "4c00010000000900000000000000080100000000000000000101006101000000090000000000000000"),
    (
        "data checked",
        "4d0005000000000000000100000009000000000000000200000000000000001000000000000000060000006d656d6f72\
         7901000000090000000000000002000000000000000103000000090000000000000002000000000000000100",
    ),
    ("moved", "2800010000000900000000000000"),
    ("persistent is", "3200050000000000000001070000000000000006000000000000000100000002000400000000000000"),
    ("count opens", "76000900000000000000"),
    ("opens are", "2900050000000600000001"),
    (
        "freeze",
        "770009000000000000000500000000000000060000000700000000000000\
     01",
    ),
    ("frozen", "2a0008000000"),
    (
        "unlink frozen",
        "7800010000000000000001006109000000000000000800\
     0000",
    ),
    ("open to run", "7f0009000000000000000500000000000000"),
    ("open through", "800009000000000000000100000007050000000000000001"),
    ("open name through", "d3000900000000000000010061050000000000000001"),
    ("epoch push", "3a000500000000000000010000000600000000000000010000000700000000000000010000000800000000000000"),
    ("paths", "5d0001000000020001000000090000000000000001"),
    ("close through", "8100010000000500000000000000"),
    (
        "opened through",
        "5c0009000000100c000008a401000001000000e80300006400000000000000050000000000000001000000000000000200000000000000030000000000000004000000000000000700000001000000030000000c140001000000000000000001010100000008",
    ),
    ("backing of", "a0000900000000000000"),
    ("will change", "a1000900000000000000"),
    ("import dir", "a2000900000000000000"),
    (
        "import",
        "a30009000000000000000100000001006108a001000001000000020000000000000003000000000000000400000000000000000000000100000006000000757365722e61010000006203000000642f610500000000000000060000000000000007000000000000000800000000000000060000000000000001000109000000000000000300000001",
    ),
    (
        "backing is",
        "4f000103000000642f6105000000000000000600000000000000070000000000000008000000000000000600000000000000010001090000000000000003000000010700000014",
    ),
    ("gone names", "a4000000000000"),
    ("leave backing", "a5000900000000000000"),
    ("forget gone", "a60009000000000000000100610b00000000000000"),
    (
        "adopt",
        "a7000a000000000000000b000000000000000300000007000000060000000000000008000000000000000100000000000000010000000200040000000000000005000000000000000600000000000000090000000000000003000000642f610500000000000000060000000000000007000000000000000800000000000000",
    ),
    ("claim", "a9000a00000000000000"),
    (
        "claimed",
        "56000b000000000000000103000000642f610500000000000000060000000000000007000000000000000800000000000000060000000000000001000109000000000000000300000001",
    ),
    (
        "settle",
        "a8000a000000000000000700000002000000090000000c0100000000000000020004000000000000000500000000000000060000000000000003000000642f61050000000000000006000000000000000700000000000000080000000000000006000000000000000100010900000000000000030000000114",
    ),
    ("settled", "550001"),
    (
        "gone are",
        "50000100000009000000000000000100610a000000000000000803000000642f61050000000000000006000000000000\
         00070000000000000008000000000000000b00000000000000010000000000",
    ),
    (
        "head",
        "415a4b100200000002000000000000000000000000000000080000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000040000000300000050c93f2699f24d39271ca129e520181dfb9c9110626f6479",
    ),
];

#[test]
fn encodings_are_those_of_version_16() {
    let samples: Vec<_> = samples().into_iter().map(|(name, bytes)| (name, hex(&bytes))).collect();
    let golden: Vec<_> = GOLDEN.iter().map(|(name, bytes)| (*name, (*bytes).to_string())).collect();
    assert_eq!(samples, golden, "the encoding of version {} has changed", limits::WIRE_VERSION);
}

#[test]
fn the_golden_head_opens() {
    let (_, bytes) = samples().pop().expect("there are samples");
    let (header, body) = open(&bytes, 3, Some(&[9; 32])).expect("a sealed frame opens");
    assert_eq!((header.sequence, body), (Sequence(8), &b"body"[..]));
}

/// The page on the wire names every request.
#[test]
fn every_request_is_on_the_page() {
    let page = include_str!("../../../docs/wire.md");
    assert!(Request::NAMES.len() > 80);
    let missing: Vec<&str> =
        Request::NAMES.iter().map(|(_, name)| *name).filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, [] as [&str; 0]);
    assert!(page.contains(&format!("`WIRE_VERSION` ({})", limits::WIRE_VERSION)));
}
