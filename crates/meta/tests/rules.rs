//! Rules that random short sequences do not reach: limits, inode numbers, outcomes, listings.

use aze_meta::op::{INO_BLOCK, TRUNCATIONS_PENDING_MAX};
use aze_meta::{Applied, Effects, EntryKey, Lock, NewFile, Op, Outcome, Role, Shard, Stamp};
use aze_proto::Spread;
use aze_proto::ids::{
    Generation, Incarnation, Ino, Life, MapEpoch, Prefix, Sequence, ServerIndex, SessionId, ShardId, Time, TxId,
};
use aze_proto::limits::{FILE_BYTES_MAX, LINKS_MAX, RETRIES_PER_SESSION_AND_SHARD, TARGET_BYTES_MAX};
use aze_proto::message::Victim;
use aze_proto::place::Layout;
use aze_proto::retry::Verdict;
use aze_proto::wire::{Blob, Wire};
use aze_proto::{Attr, Backing, BackingIdentity, Code, Failure, FileKind, Imported, Name, NameHash, Refusal, Reply};

fn shard() -> Shard {
    Shard::new(ShardId(0), 1)
}

fn key(name: &str) -> EntryKey {
    EntryKey::new(Ino::ROOT, Name::new(name.as_bytes()).expect("a name"))
}

fn new(kind: FileKind) -> NewFile {
    NewFile {
        kind,
        mode: 0o644,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: Blob(b"t".to_vec()),
        born: MapEpoch(1),
        chunk_bits: 20,
        layout: Layout::default(),
        private: false,
        over_backing: false,
    }
}

fn apply(shard: &mut Shard, op: Op) -> Applied {
    shard.apply(&op, &Stamp::at(Time(100)))
}

fn code(applied: Applied) -> Code {
    applied.reply.expect_err("an error").code
}

fn create(shard: &mut Shard, name: &str, kind: FileKind) -> Attr {
    let applied = apply(shard, Op::Create { key: key(name), new: new(kind), exclusive: true });
    applied.reply.expect("made");
    applied.effects.attr.expect("made here")
}

#[test]
fn an_inode_number_is_issued_once() {
    let mut shard = shard();
    let root = shard.make_root(0, 0, 0o755, MapEpoch(1), 20, Time(1)).expect("the first root");
    assert_eq!((root.ino, root.parent, root.links), (Ino::ROOT, Ino::ROOT, 2));
    assert_eq!(shard.make_root(0, 0, 0o755, MapEpoch(1), 20, Time(1)).expect_err("one root").code, Code::Exists);
    let first = create(&mut shard, "a", FileKind::File).ino;
    assert_ne!(first, Ino::ROOT);
    assert_eq!(shard.inos_left(), INO_BLOCK - 1);
    apply(&mut shard, Op::ReserveInos { count: 1 });
    let second = create(&mut shard, "b", FileKind::File).ino;
    assert_eq!(second.counter(), first.counter() + INO_BLOCK);
    assert_eq!(shard.inos_left(), 0);
    assert_eq!(create(&mut shard, "c", FileKind::File).ino.counter(), second.counter() + 1);
    assert_eq!(shard.inos_left(), INO_BLOCK - 1);
    let mut reborn = Shard::new(ShardId(0), 1);
    apply(&mut reborn, Op::BeginLife { life: Life(1) });
    let other = create(&mut reborn, "a", FileKind::File).ino;
    assert_eq!((other.prefix(), other.counter()), (first.prefix(), first.counter()));
    assert_ne!(other, first);
}

/// An inode has the place of its name, so that both stay together when shards are cut in two.
#[test]
fn an_inode_number_begins_with_the_place_of_its_name() {
    let mut shard = shard();
    for number in 0..100 {
        let name = format!("f{number}");
        let ino = create(&mut shard, &name, FileKind::File).ino;
        let hash = NameHash::of(Ino::ROOT, &Name::new(name.as_bytes()).expect("a name"));
        assert_eq!((ino.prefix(), ino.counter()), (hash.prefix(), 2 + number));
        assert_eq!(ino.home(4096), hash.shard(4096));
        assert_eq!(shard.inode(ino).map(|inode| inode.attr.ino), Some(ino));
        let other = Ino::new(Prefix(ino.prefix().0 ^ 1), ino.life(), ino.counter()).expect("a number");
        assert_eq!(shard.inode(other), None, "it has another place");
    }
    let issued: Vec<u64> = shard.all_inodes().map(|inode| inode.attr.ino.issue()).collect();
    assert_eq!(issued, (2..102).collect::<Vec<_>>(), "in the order in which they were issued");
}

/// What a shard of an earlier life has issued is not known any more: no number of it is issued again.
#[test]
fn a_life_begins_once_and_in_order() {
    let mut shard = shard();
    let first = create(&mut shard, "a", FileKind::File).ino;
    for life in [0, 64, 200] {
        assert_eq!(code(apply(&mut shard, Op::BeginLife { life: Life(life) })), Code::Invalid, "life {life}");
    }
    assert_eq!(apply(&mut shard, Op::BeginLife { life: Life(2) }).reply, Ok(Reply::Done));
    assert_eq!(code(apply(&mut shard, Op::BeginLife { life: Life(2) })), Code::Invalid);
    let second = create(&mut shard, "b", FileKind::File).ino;
    assert_eq!((first.life(), second.life(), second.counter()), (Life(0), Life(2), 2));
    let mut restored = Shard::new(ShardId(0), 1);
    shard.dump(1000).into_iter().for_each(|part| restored.absorb(part));
    assert_eq!((restored.life(), restored.digest()), (Life(2), shard.digest()));
}

/// The last number of a life is issued, and then an error that says so; never a number twice.
#[test]
fn a_shard_that_has_issued_all_its_numbers_says_so() {
    let mut shard = shard();
    apply(&mut shard, Op::ReserveInos { count: (1 << Ino::COUNTER_BITS) - 2 - INO_BLOCK - 1 });
    apply(&mut shard, Op::ReserveInos { count: 1 });
    let last = create(&mut shard, "a", FileKind::File).ino;
    assert_eq!(last.counter(), (1 << Ino::COUNTER_BITS) - 1);
    for name in ["b", "c"] {
        let key = EntryKey::new(Ino::ROOT, Name::new(name.as_bytes()).expect("a name"));
        let failure =
            apply(&mut shard, Op::Create { key, new: new(FileKind::File), exclusive: true }).reply.unwrap_err();
        assert_eq!(failure.code, Code::NoSpace);
        assert!(failure.detail.contains("all 2^34 inode numbers of its life 0"), "{failure}");
    }
}

#[test]
fn inode_numbers_run_out_with_an_error() {
    let mut shard = shard();
    apply(&mut shard, Op::ReserveInos { count: u64::MAX });
    apply(&mut shard, Op::ReserveInos { count: 1 });
    assert_eq!(
        code(apply(&mut shard, Op::Create { key: key("a"), new: new(FileKind::File), exclusive: true })),
        Code::NoSpace
    );
    assert_eq!((shard.entries(), shard.inodes()), (0, 0));
}

#[test]
fn only_shard_0_has_the_root() {
    let mut shard = Shard::new(ShardId(1), 2);
    assert_eq!(shard.make_root(0, 0, 0o755, MapEpoch(1), 20, Time(1)).expect_err("not here").code, Code::Invalid);
}

#[test]
fn limits_are_errors() {
    let mut shard = shard();
    let ino = create(&mut shard, "a", FileKind::File).ino;
    for number in 1..u64::from(LINKS_MAX) {
        let tx = TxId(number);
        apply(&mut shard, Op::LinkBegin { ino, tx, shard: ShardId(0) }).reply.expect("below the limit");
        apply(&mut shard, Op::LinkEnd { ino, tx, kept: true }).reply.expect("it was announced");
    }
    let one_more = Op::LinkBegin { ino, tx: TxId(0), shard: ShardId(0) };
    assert_eq!(code(apply(&mut shard, one_more)), Code::TooManyLinks);
    assert_eq!(code(apply(&mut shard, Op::Truncate { ino, size: FILE_BYTES_MAX + 1 })), Code::TooLarge);
    let report = Op::Report { ino, generation: Generation(0), end: FILE_BYTES_MAX + 1, spread: Spread::ANYWHERE };
    assert_eq!(code(apply(&mut shard, report)), Code::TooLarge);
    apply(&mut shard, Op::Truncate { ino, size: FILE_BYTES_MAX }).reply.expect("the largest file");
    for (length, expected) in [(0, Code::NotFound), (TARGET_BYTES_MAX + 1, Code::NameTooLong)] {
        let long = NewFile { target: Blob(vec![b'x'; length]), ..new(FileKind::Symlink) };
        assert_eq!(code(apply(&mut shard, Op::Create { key: key("l"), new: long, exclusive: true })), expected);
    }
    for chunk_bits in [0, 15, 25, 64, 255] {
        let odd = NewFile { chunk_bits, ..new(FileKind::File) };
        assert_eq!(code(apply(&mut shard, Op::Create { key: key("o"), new: odd, exclusive: true })), Code::Invalid);
    }
}

#[test]
fn truncations_that_wait_are_bounded_and_covered_ones_do_not_count() {
    let mut shard = shard();
    let ino = create(&mut shard, "a", FileKind::File).ino;
    for size in (1..1000).rev() {
        apply(&mut shard, Op::Truncate { ino, size }).reply.expect("covers the one before");
    }
    assert_eq!(shard.inode(ino).expect("here").rare.get().truncations.len(), 1);
    for _ in 0..2 * TRUNCATIONS_PENDING_MAX {
        apply(&mut shard, Op::Truncate { ino, size: 1 }).reply.expect("covers the one before, which was as short");
    }
    for size in 2..=TRUNCATIONS_PENDING_MAX as u64 {
        apply(&mut shard, Op::Truncate { ino, size }).reply.expect("below the limit");
    }
    let before = shard.digest();
    assert_eq!(code(apply(&mut shard, Op::Truncate { ino, size: 5000 })), Code::Busy);
    assert_eq!(shard.digest(), before);
    let generation = shard.inode(ino).expect("here").attr.generation;
    apply(&mut shard, Op::TruncateDone { ino, generation: Generation(generation.0 - 1) }).reply.expect("done");
    assert_eq!(shard.inode(ino).expect("here").rare.get().truncations.len(), 1);
    apply(&mut shard, Op::Truncate { ino, size: 5000 }).reply.expect("there is room again");
}

/// A server that saw the truncation to 0 and got data afterwards must not lose them to that truncation again.
#[test]
fn a_truncation_that_was_seen_is_not_repeated() {
    let mut shard = shard();
    let ino = create(&mut shard, "a", FileKind::File).ino;
    apply(&mut shard, Op::Truncate { ino, size: 0 });
    apply(&mut shard, Op::Truncate { ino, size: 100 });
    let inode = shard.inode(ino).expect("here");
    assert_eq!(inode.truncated_since(Generation(0)), 0);
    assert_eq!(inode.truncated_since(Generation(1)), 100);
    assert_eq!(inode.truncated_since(Generation(2)), u64::MAX);
}

/// The steps of a rename within one shard, each of them sent twice.
#[test]
fn a_rename_locks_inserts_removes_and_leaves_no_lock() {
    let mut shard = shard();
    let attr = create(&mut shard, "old", FileKind::File);
    let victim = create(&mut shard, "new", FileKind::File).ino;
    let (tx, ino, kind) = (TxId(1), attr.ino, FileKind::File);
    let lock = |role| Lock { tx, role, coordinator: ServerIndex(0), incarnation: Incarnation(0), ino, kind };
    for _ in 0..2 {
        let source = apply(&mut shard, Op::Lock { key: key("old"), lock: lock(Role::Source) }).reply;
        assert_eq!(source, Ok(Reply::Done));
        let destination = apply(&mut shard, Op::Lock { key: key("new"), lock: lock(Role::Destination) }).reply;
        assert_eq!(destination, Ok(Reply::Prepared { victim: Some(Victim { ino: victim, kind }) }));
    }
    let other = Lock { tx: TxId(2), ..lock(Role::Source) };
    assert_eq!(code(apply(&mut shard, Op::Lock { key: key("old"), lock: other })), Code::Busy);
    for name in ["old", "new"] {
        let remove = Op::Remove { key: key(name), only: None, moved: false, under: None };
        assert_eq!(code(apply(&mut shard, remove)), Code::Busy);
        apply(&mut shard, Op::Unlock { key: key(name), tx: TxId(2) }).reply.expect("not its lock, no effect");
        assert!(shard.lock_of(&key(name)).is_some());
    }
    let insert = Op::Insert { key: key("new"), ino, kind, replace: true, under: Some(tx), attr: None };
    let remove = Op::Remove { key: key("old"), only: Some(ino), moved: true, under: Some(tx) };
    let effects = apply(&mut shard, insert.clone()).effects;
    assert_eq!((effects.orphan, effects.removed), (Some(victim), Some(Victim { ino: victim, kind })));
    apply(&mut shard, remove.clone()).reply.expect("moved");
    assert_eq!(shard.locks().count(), 0);
    assert_eq!(shard.entry(&key("old")), None);
    assert_eq!(shard.inode(ino).expect("here").attr.links, 1);

    // The name is used anew before the decision arrives a second time: it must not be touched.
    apply(&mut shard, Op::Remove { key: key("new"), only: None, moved: false, under: None }).reply.expect("removed");
    let before = shard.digest();
    for op in [insert, remove] {
        let again = apply(&mut shard, op);
        assert_eq!((again.reply, again.effects), (Ok(Reply::Done), Effects::default()));
    }
    assert_eq!(shard.digest(), before);
}

/// Two names within one shard, each step sent twice: nothing is lost, counts stay, and no lock.
#[test]
fn an_exchange_lets_two_names_change_places() {
    let mut shard = shard();
    let file = create(&mut shard, "file", FileKind::File).ino;
    let dir = create(&mut shard, "dir", FileKind::Directory).ino;
    let inside = EntryKey::new(dir, key("inside").name);
    let (tx, kind) = (TxId(1), FileKind::Directory);
    let lock = |role| Lock {
        tx,
        role,
        coordinator: ServerIndex(0),
        incarnation: Incarnation(0),
        ino: file,
        kind: FileKind::File,
    };
    let first = Role::ExchangeSource { ino: dir, kind, parent: key("dir").parent };
    for _ in 0..2 {
        let locked = apply(&mut shard, Op::Lock { key: key("file"), lock: lock(first) }).reply;
        assert_eq!(locked, Ok(Reply::Done));
        let locked = apply(&mut shard, Op::Lock { key: key("dir"), lock: lock(Role::ExchangeDestination) }).reply;
        assert_eq!(locked, Ok(Reply::Prepared { victim: Some(Victim { ino: dir, kind }) }));
    }
    // The directory need not be empty.
    apply(&mut shard, Op::Create { key: inside, new: new(FileKind::File), exclusive: true }).reply.expect("a new name");
    for _ in 0..2 {
        for (name, ino, kind) in [("dir", file, FileKind::File), ("file", dir, kind)] {
            let exchange = Op::Exchange { key: key(name), ino, kind, under: tx };
            let effects = apply(&mut shard, exchange).effects;
            assert_eq!((effects.orphan, effects.removed, effects.drop_link), (None, None, None));
            assert_eq!(shard.entry(&key(name)).map(|entry| entry.ino), Some(ino));
        }
    }
    assert_eq!(shard.locks().count(), 0);
    assert_eq!(shard.inode(file).expect("here").attr.links, 1);
    assert!(shard.inode(dir).is_some());
}

#[test]
fn a_link_is_answered_with_the_attributes_its_home_gave() {
    let mut shard = shard();
    let attr = create(&mut shard, "a", FileKind::File);
    let op = Op::Insert {
        key: key("b"),
        ino: attr.ino,
        kind: attr.kind,
        replace: false,
        under: None,
        attr: Some(Attr { links: 2, ..attr.clone() }),
    };
    assert_eq!(apply(&mut shard, op).reply, Ok(Reply::Attributes { attr: Attr { links: 2, ..attr } }));
}

#[test]
fn a_stale_report_is_refused_with_the_generation_of_now() {
    let mut shard = shard();
    let ino = create(&mut shard, "a", FileKind::File).ino;
    apply(&mut shard, Op::Truncate { ino, size: 7 });
    let applied = apply(&mut shard, Op::Report { ino, generation: Generation(0), end: 50, spread: Spread::default() });
    let refusal = applied.reply.expect_err("refused").refusal;
    assert_eq!(refusal, Some(Refusal::GenerationStale { generation: Generation(1) }));
    assert_eq!(shard.inode(ino).expect("here").attr.size, 7);
}

#[test]
fn times_of_change_never_move_back() {
    let mut shard = shard();
    let ino = create(&mut shard, "a", FileKind::File).ino;
    let early = Stamp::at(Time(5));
    for op in [
        Op::Report { ino, generation: Generation(0), end: 1, spread: Spread::default() },
        Op::Truncate { ino, size: 0 },
        Op::LinkBegin { ino, tx: TxId(1), shard: ShardId(0) },
        Op::LinkDrop { ino, tx: TxId(2) },
        Op::LinkEnd { ino, tx: TxId(1), kept: true },
        Op::SetAttr { ino, set: Default::default() },
    ] {
        shard.apply(&op, &early).reply.expect("done");
        let attr = &shard.inode(ino).expect("here").attr;
        assert_eq!((attr.mtime, attr.ctime), (Time(100), Time(100)), "after {op:?}");
    }
}

#[test]
fn outcomes_are_remembered_with_the_effect_and_errors_too() {
    let mut shard = shard();
    let stamp = |sequence, floor| Stamp {
        time: Time(1),
        session: SessionId(4),
        sequence: Sequence(sequence),
        floor: Sequence(floor),
    };
    let op = Op::Create { key: key("a"), new: new(FileKind::File), exclusive: true };
    let first = shard.apply(&op, &stamp(1, 1)).reply;
    let second = shard.apply(&op, &stamp(2, 1)).reply;
    assert_eq!(second, Err(Code::Exists.into()));
    assert_eq!(shard.check(SessionId(4), Sequence(1), Sequence(1)), Verdict::Done(first));
    assert_eq!(shard.check(SessionId(4), Sequence(2), Sequence(1)), Verdict::Done(second));
    let reply = Ok(Reply::ParentIs { parent: Ino(9) });
    shard.apply(&Op::Record { outcome: Outcome::from(reply.clone()) }, &stamp(3, 3));
    assert_eq!(shard.check(SessionId(4), Sequence(3), Sequence(3)), Verdict::Done(reply));
    assert_eq!(shard.check(SessionId(4), Sequence(1), Sequence(3)), Verdict::TooOld);
    let held = Ok(Reply::Done);
    shard.remember(&stamp(4, 3), held.clone());
    assert_eq!(shard.check(SessionId(4), Sequence(4), Sequence(3)), Verdict::Done(held));
    let silent = Stamp::at(Time(1));
    shard.apply(&Op::ExpireOutcomes, &silent).reply.expect("done");
    shard.apply(&Op::ExpireOutcomes, &silent).reply.expect("done");
    assert_eq!(shard.check(SessionId(4), Sequence(3), Sequence(3)), Verdict::TooOld);
    shard.apply(&Op::EndSession { session: SessionId(4) }, &silent).reply.expect("done");
    assert_eq!(shard.check(SessionId(4), Sequence(1), Sequence(1)), Verdict::New);
}

/// A write beside its inode is decided by the operation that changes the inode.
#[test]
fn a_write_and_its_outcome_are_one_operation() {
    let mut shard = shard();
    let ino = create(&mut shard, "a", FileKind::File).ino;
    let stamp = Stamp { time: Time(200), session: SessionId(4), sequence: Sequence(1), floor: Sequence(1) };
    let wrote = |generation| Op::Wrote { ino, generation, end: 7, spread: Spread::default() };
    shard.apply(&Op::Truncate { ino, size: 0 }, &Stamp::at(Time(150))).reply.expect("done");
    // Refused: the client asks again with the same number.
    let refused = shard.apply(&wrote(Generation(0)), &stamp).reply.expect_err("another generation");
    assert_eq!(refused.code, Code::Refused);
    assert_eq!(shard.check(SessionId(4), Sequence(1), Sequence(1)), Verdict::New);
    let reply = shard.apply(&wrote(Generation(1)), &stamp).reply;
    let Ok(Reply::Written { attr: Some(attr) }) = &reply else { panic!("{reply:?}") };
    assert_eq!((attr.size, attr.mtime), (7, Time(200)));
    assert_eq!(shard.check(SessionId(4), Sequence(1), Sequence(1)), Verdict::Done(reply));
}

/// An operation that was meant for another shard changes nothing, has no outcome, and says so.
#[test]
fn an_operation_of_another_shard_is_poison() {
    let key = key("a");
    let other = ShardId(1 - key.hash.shard(2).0);
    let mut shard = Shard::new(other, 2);
    let before = shard.digest();
    let stamp = Stamp { time: Time(1), session: SessionId(4), sequence: Sequence(1), floor: Sequence(1) };
    let applied = shard.apply(&Op::Create { key, new: new(FileKind::File), exclusive: true }, &stamp);
    assert!(applied.is_poison && !applied.decides(), "{applied:?}");
    assert_eq!(shard.digest(), before);
    assert_eq!(shard.check(SessionId(4), Sequence(1), Sequence(1)), Verdict::New);
}

/// A request that met a defect elsewhere ends with it, and is no contradiction of the shard that keeps its outcome.
#[test]
fn an_outcome_that_names_a_defect_is_kept() {
    let mut shard = shard();
    let stamp = Stamp { time: Time(1), session: SessionId(4), sequence: Sequence(1), floor: Sequence(1) };
    let failure = Failure::new(Code::Internal, "a defect at another server");
    let applied = shard.apply(&Op::Record { outcome: Outcome::Failed { failure: failure.clone() } }, &stamp);
    assert!(!applied.is_poison && applied.decides(), "{applied:?}");
    assert_eq!(shard.check(SessionId(4), Sequence(1), Sequence(1)), Verdict::Done(Err(failure)));
}

/// A journal is replayed without `check`; the floor in the stamps bounds the records.
#[test]
fn outcomes_stay_bounded_without_checks() {
    let mut shard = shard();
    for number in 1..=10 * RETRIES_PER_SESSION_AND_SHARD as u64 {
        let stamp = Stamp { time: Time(1), session: SessionId(4), sequence: Sequence(number), floor: Sequence(number) };
        shard.apply(&Op::Delete { ino: Ino(99) }, &stamp);
    }
    let next = Sequence(10 * RETRIES_PER_SESSION_AND_SHARD as u64 + 1);
    assert_eq!(shard.check(SessionId(4), next, Sequence(0)), Verdict::New);
}

#[test]
fn a_listing_goes_on_after_a_cookie() {
    let mut shard = shard();
    let hash = |number: u64| NameHash::from_bytes(&number.to_le_bytes()).expect("a hash");
    let last = (1 << NameHash::BITS) - 1;
    for (number, name) in [(0, "first"), (7, "twin a"), (7, "twin b"), (8, "next"), (last, "last")] {
        let key = EntryKey { parent: Ino::ROOT, hash: hash(number), name: Name::new(name.as_bytes()).expect("a name") };
        apply(&mut shard, Op::Create { key, new: new(FileKind::File), exclusive: true }).reply.expect("made");
    }
    let after =
        |cookie| shard.entries_after(Ino::ROOT, cookie).map(|(_, name, _)| name.to_string()).collect::<Vec<_>>();
    assert_eq!(after(0), ["first", "twin a", "twin b", "next", "last"]);
    assert_eq!(after(2), after(0));
    assert_eq!(after(hash(0).cookie()), ["twin a", "twin b", "next", "last"]);
    assert_eq!(after(hash(7).cookie()), ["next", "last"]);
    assert_eq!(after(hash(last).cookie()), [""; 0]);
    assert_eq!(after(u64::MAX), [""; 0]);
}

#[test]
fn a_name_of_the_backing_that_goes_is_remembered_until_the_backing_has_followed() {
    let mut shard = shard();
    shard.make_root(0, 0, 0o755, MapEpoch(1), 20, Time(1)).expect("the first root");
    let import = |shard: &mut Shard, text: &str, kind: FileKind| {
        let identity = BackingIdentity { inode: 5, size: 6, mtime_ns: 7, ctime_ns: 8 };
        let backing = Backing { path: Blob(format!("d/{text}").into_bytes()), identity, ..Backing::default() };
        let (name, xattrs) = (Name::new(text.as_bytes()).expect("a name"), Vec::new());
        let (atime, mtime, target) = (Time(1), Time(1), Blob::default());
        let file = Imported { name, kind, mode: 0o644, uid: 1, gid: 2, rdev: 0, atime, mtime, target, xattrs, backing };
        let (born, layout, spread) = (MapEpoch(1), Layout::default(), Spread::default());
        let applied = apply(shard, Op::Import { key: key(text), file, born, chunk_bits: 20, layout, spread });
        applied.effects.attr.expect("made here").ino
    };
    let gone = |shard: &Shard| -> Vec<(String, Ino)> {
        shard.gone_behind(None).map(|(key, gone)| (key.name.to_string(), gone.ino)).collect()
    };
    let [a, b, c, dir] =
        [("a", FileKind::File), ("b", FileKind::File), ("c", FileKind::File), ("dir", FileKind::Directory)]
            .map(|(text, kind)| import(&mut shard, text, kind));
    let put = |text: &str, ino: Ino| Op::Insert {
        key: key(text),
        ino,
        kind: FileKind::File,
        replace: true,
        under: None,
        attr: None,
    };
    let take = |text: &str, moved: bool| Op::Remove { key: key(text), only: None, moved, under: None };
    assert_eq!(gone(&shard), []);
    // Renamed, over another one, and back: the other one has gone.
    for op in [put("b", a), take("a", true)] {
        apply(&mut shard, op).reply.expect("done");
    }
    let mut all = gone(&shard);
    all.sort();
    assert_eq!(all, [("a".to_owned(), a), ("b".to_owned(), b)]);
    for op in [put("a", a), take("b", true)] {
        apply(&mut shard, op).reply.expect("done");
    }
    assert_eq!(gone(&shard), [("b".to_owned(), b)]);
    // Names that were made anew leave the record as it is, and their removals do not count.
    create(&mut shard, "b", FileKind::File);
    apply(&mut shard, take("b", false)).reply.expect("done");
    assert_eq!(gone(&shard), [("b".to_owned(), b)]);
    // A directory is deleted before its name goes.
    apply(&mut shard, Op::Delete { ino: dir }).reply.expect("done");
    let only = Some(dir);
    apply(&mut shard, Op::Remove { key: key("dir"), only, moved: false, under: None }).reply.expect("done");
    assert_eq!(gone(&shard).len(), 2);
    // So is a renamed file whose new name goes before the old one.
    for op in [put("new", c), take("new", false), Op::Delete { ino: c }, take("c", true)] {
        apply(&mut shard, op).reply.expect("done");
    }
    assert!(gone(&shard).contains(&("c".to_owned(), c)), "{:?}", gone(&shard));
    // All of it is in a checkpoint.
    let mut copy = Shard::new(ShardId(0), 1);
    shard.dump(1).into_iter().for_each(|part| copy.absorb(part));
    assert_eq!((gone(&copy), copy.digest(), copy.rare_bytes()), (gone(&shard), shard.digest(), shard.rare_bytes()));
    // The backing follows: the record goes, another one of the same name stays.
    for (since, left) in [(Time(99), 3), (Time(100), 2)] {
        apply(&mut shard, Op::ForgetGone { key: key("b"), since }).reply.expect("done");
        assert_eq!(gone(&shard).len(), left);
    }
    // What the backing loses is nowhere else: it is not clean, also under its first name.
    assert!(shard.inode(a).and_then(|inode| inode.backing()).expect("it came from there").is_clean());
    apply(&mut shard, Op::LeaveBacking { ino: a }).reply.expect("done");
    assert!(!shard.inode(a).and_then(|inode| inode.backing()).expect("it came from there").is_clean());
}
