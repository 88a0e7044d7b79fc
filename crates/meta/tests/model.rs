//! A shard against a model that keeps everything in lists and looks at all of them: short random
//! sequences of operations must give the same replies, effects and state. Every operation also
//! goes through its encoding into a second shard, which must end up the same.

use aze_meta::op::INO_BLOCK;
use aze_meta::{
    Applied, AttrSet, Effects, EntryKey, LinkInDoubt, Lock, LostLink, NewFile, Op, Outcome, Role, Shard, ShardPart,
    Stamp, Xattr,
};
use aze_proto::NameHash;
use aze_proto::ids::{
    Generation, Incarnation, Ino, Life, MapEpoch, Prefix, Sequence, ServerIndex, SessionId, ShardId, Time, TxId,
};
use aze_proto::message::Victim;
use aze_proto::place::Layout;
use aze_proto::retry::Verdict;
use aze_proto::wire::{Blob, Wire};
use aze_proto::{Attr, Code, Failure, FileKind, Name, Refusal, Reply, Spread, XattrHow};
use proptest::prelude::*;

const CHUNK_BITS: u8 = 20;

#[derive(Clone)]
struct Node {
    attr: Attr,
    target: Vec<u8>,
    /// Every truncation not acknowledged, none left out.
    truncations: Vec<(Generation, u64)>,
    /// Names announced, and names that went elsewhere.
    announced: Vec<TxId>,
    dropped: Vec<TxId>,
    xattrs: Vec<Xattr>,
}

#[derive(Default)]
struct Model {
    names: Vec<(EntryKey, Ino, FileKind)>,
    nodes: Vec<Node>,
    locks: Vec<(EntryKey, Lock)>,
    issued: u64,
    reserved_end: u64,
    /// What happened to names here and is not known elsewhere.
    in_doubt: Vec<(TxId, LinkInDoubt)>,
    lost: u64,
}

type Answer = Result<(Reply, Effects), Failure>;

fn is_dir(kind: FileKind) -> bool {
    kind == FileKind::Directory
}

fn done(effects: Effects) -> Answer {
    Ok((Reply::Done, effects))
}

impl Model {
    fn new() -> Model {
        Model { issued: 1, reserved_end: 2 + INO_BLOCK, ..Model::default() }
    }

    fn name(&self, key: &EntryKey) -> Option<(Ino, FileKind)> {
        self.names.iter().find(|(known, ..)| known == key).map(|(_, ino, kind)| (*ino, *kind))
    }

    fn node(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.attr.ino == ino)
    }

    fn attr(&self, ino: Ino) -> Option<Attr> {
        self.nodes.iter().find(|node| node.attr.ino == ino).map(|node| node.attr.clone())
    }

    fn holder(&self, key: &EntryKey) -> Option<TxId> {
        self.locks.iter().find(|(known, _)| known == key).map(|(_, lock)| lock.tx)
    }

    fn is_full(&self, dir: Ino) -> bool {
        self.names.iter().any(|(key, ..)| key.parent == dir)
    }

    fn apply(&mut self, op: &Op, time: Time) -> Answer {
        match op {
            Op::MakeRoot { uid, gid, mode, born, chunk_bits } => self.root(*uid, *gid, *mode, *born, *chunk_bits, time),
            Op::Create { key, new, exclusive } => self.create(key, new, *exclusive, &[], time),
            Op::CreateWith { key, new, exclusive, xattrs } => self.create(key, new, *exclusive, xattrs, time),
            Op::Remove { key, only, moved, under } => self.remove(key, *only, *moved, *under, time),
            Op::Insert { key, ino, kind, replace, under, attr } => {
                self.insert(key, (*ino, *kind), *replace, *under, attr, time)
            }
            Op::Exchange { key, ino, kind, under } => self.exchange(key, (*ino, *kind), *under),
            Op::Lock { key, lock } => self.lock(key, lock),
            Op::Unlock { key, tx } => {
                self.locks.retain(|(known, lock)| known != key || lock.tx != *tx);
                done(Effects::default())
            }
            Op::Record { outcome: Outcome::Success { reply } } => Ok((reply.clone(), Effects::default())),
            Op::Record { outcome: Outcome::Failed { failure } } => Err(failure.clone()),
            Op::ReserveInos { count } => {
                self.issued = self.reserved_end - 1;
                self.reserved_end += count;
                done(Effects::default())
            }
            Op::BeginLife { .. } => done(Effects::default()),
            Op::LinkBegin { ino, tx, .. } => {
                let node = self.node(*ino).ok_or(Code::NotFound)?;
                if node.announced.contains(tx) {
                    let attr = node.attr.clone();
                    return there(attr);
                }
                if is_dir(node.attr.kind) {
                    return Err(Code::NotPermitted.into());
                }
                if node.attr.links == 0 {
                    return Err(Code::NotFound.into());
                }
                self.touch(*ino, time, |node| {
                    node.attr.links += 1;
                    node.announced.push(*tx);
                })
            }
            Op::LinkEnd { ino, tx, kept } => {
                let Some(node) = self.node(*ino).filter(|node| node.announced.contains(tx)) else {
                    return done(Effects::default());
                };
                node.announced.retain(|announced| announced != tx);
                if *kept {
                    return done(Effects::default());
                }
                let (_, mut effects) =
                    self.touch(*ino, time, |node| node.attr.links = node.attr.links.saturating_sub(1))?;
                effects.orphan = effects.attr.as_ref().filter(|attr| attr.links == 0).map(|_| *ino);
                done(effects)
            }
            Op::LinkInsert { key, ino, kind, tx } => {
                let made = self.insert(key, (*ino, *kind), false, None, &None, time)?;
                self.in_doubt.retain(|(known, _)| known != tx);
                self.in_doubt.push((*tx, LinkInDoubt::Made));
                Ok(made)
            }
            Op::SetXattr { ino, name, value, mode, if_any, how } => {
                let node = self.node(*ino).ok_or(Code::Stale)?;
                let there = node.xattrs.iter().any(|xattr| xattr.name == *name);
                if there && *how == XattrHow::Create {
                    return Err(Code::Exists.into());
                }
                if !there && (*how == XattrHow::Replace || value.is_none() && !if_any) {
                    return Err(Code::NoAttribute.into());
                }
                self.touch(*ino, time, |node| {
                    node.xattrs.retain(|xattr| xattr.name != *name);
                    let new = value.iter().map(|value| Xattr { name: name.clone(), value: value.clone() });
                    node.xattrs.extend(new);
                    node.attr.has_xattrs = !node.xattrs.is_empty();
                    node.attr.mode = mode.unwrap_or(node.attr.mode);
                })
            }
            Op::LinkForget { ino, tx } => {
                if let Some(node) = self.node(*ino) {
                    node.dropped.retain(|dropped| dropped != tx);
                }
                done(Effects::default())
            }
            Op::LinkResolved { tx } => {
                self.in_doubt.retain(|(known, _)| known != tx);
                done(Effects::default())
            }
            Op::Delete { ino } => self.delete(*ino),
            Op::LinkDrop { ino, tx } => self.drop_link(*ino, *tx, time),
            other => self.change(other, time),
        }
    }

    /// Operations on an inode that must be there.
    fn change(&mut self, op: &Op, time: Time) -> Answer {
        match op {
            Op::SetAttr { ino, set } => self.touch(*ino, time, |node| {
                let attr = &mut node.attr;
                if let Some(mode) = set.mode {
                    attr.mode = mode;
                }
                if let Some(uid) = set.uid {
                    attr.uid = uid;
                }
                if let Some(gid) = set.gid {
                    attr.gid = gid;
                }
                if let Some(atime) = set.atime {
                    attr.atime = atime;
                }
                if let Some(mtime) = set.mtime {
                    attr.mtime = mtime;
                }
            }),
            Op::Report { ino, generation, end, spread } => {
                let now = self.file(*ino)?.generation;
                if *generation < now {
                    return Err(Failure::refused(Refusal::GenerationStale { generation: now }));
                }
                if *generation > now {
                    return Err(Code::Invalid.into());
                }
                self.touch(*ino, time, |node| {
                    node.attr.size = node.attr.size.max(*end);
                    let known = node.attr.spread;
                    let is_sparse = known.is_sparse() || spread.is_sparse();
                    node.attr.spread = Spread::new(known.reach().max(spread.reach()), is_sparse);
                    node.attr.mtime = node.attr.mtime.max(time);
                })
            }
            Op::Truncate { ino, size } => {
                self.file(*ino)?;
                self.touch(*ino, time, |node| {
                    node.attr.generation.0 += 1;
                    let grows = *size > node.attr.size;
                    let is_sparse = (node.attr.spread.is_sparse() || grows) && *size != 0;
                    node.attr.spread = Spread::new(node.attr.spread.reach(), is_sparse);
                    node.attr.size = *size;
                    node.attr.mtime = node.attr.mtime.max(time);
                    node.truncations.push((node.attr.generation, *size));
                })
            }
            Op::TruncateDone { ino, generation } => {
                let node = self.node(*ino).ok_or(Code::Stale)?;
                node.truncations.retain(|(begun, _)| begun > generation);
                let attr = Some(node.attr.clone());
                done(Effects { attr, ..Effects::default() })
            }
            Op::SetParent { ino, parent } => {
                if !is_dir(self.attr(*ino).ok_or(Code::Stale)?.kind) {
                    return Err(Code::NotDirectory.into());
                }
                let (_, effects) = self.touch(*ino, time, |node| node.attr.parent = *parent)?;
                done(effects)
            }
            other => panic!("{other:?} is not modelled"),
        }
    }

    fn touch(&mut self, ino: Ino, time: Time, change: impl FnOnce(&mut Node)) -> Answer {
        let node = self.node(ino).ok_or(Code::Stale)?;
        change(node);
        node.attr.ctime = node.attr.ctime.max(time);
        let attr = node.attr.clone();
        Ok((Reply::Attributes { attr: attr.clone() }, Effects { attr: Some(attr), ..Effects::default() }))
    }

    fn file(&self, ino: Ino) -> Result<Attr, Failure> {
        let attr = self.attr(ino).ok_or(Code::Stale)?;
        match attr.kind {
            FileKind::File => Ok(attr),
            FileKind::Directory => Err(Code::IsDirectory.into()),
            _ => Err(Code::Invalid.into()),
        }
    }

    fn make(&mut self, ino: Ino, parent: Ino, new: &NewFile, time: Time) -> Attr {
        let target = if new.kind == FileKind::Symlink { new.target.0.clone() } else { vec![] };
        let attr = Attr {
            ino,
            kind: new.kind,
            mode: new.mode,
            links: if is_dir(new.kind) { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            rdev: if new.kind == FileKind::CharDevice { new.rdev } else { 0 },
            size: target.len() as u64,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            generation: Generation(0),
            born: new.born,
            layout: new.layout,
            chunk_bits: new.chunk_bits,
            spread: Spread::default(),
            has_xattrs: false,
            parent: if is_dir(new.kind) { parent } else { Ino(0) },
        };
        self.nodes.push(Node {
            attr: attr.clone(),
            target,
            truncations: vec![],
            announced: vec![],
            dropped: vec![],
            xattrs: vec![],
        });
        attr
    }

    fn root(&mut self, uid: u32, gid: u32, mode: u32, born: MapEpoch, chunk_bits: u8, time: Time) -> Answer {
        if self.attr(Ino::ROOT).is_some() {
            return Err(Code::Exists.into());
        }
        let new = NewFile {
            kind: FileKind::Directory,
            mode,
            uid,
            gid,
            rdev: 0,
            target: Blob::default(),
            born,
            chunk_bits,
            layout: LAYOUT,
            private: false,
            over_backing: false,
        };
        let attr = self.make(Ino::ROOT, Ino::ROOT, &new, time);
        Ok((Reply::Attributes { attr: attr.clone() }, Effects { attr: Some(attr), ..Effects::default() }))
    }

    fn create(&mut self, key: &EntryKey, new: &NewFile, exclusive: bool, xattrs: &[Xattr], time: Time) -> Answer {
        if self.holder(key).is_some() {
            return Err(Code::Busy.into());
        }
        if let Some((ino, kind)) = self.name(key) {
            if exclusive || new.kind != FileKind::File {
                return Err(Code::Exists.into());
            }
            if is_dir(kind) {
                return Err(Code::IsDirectory.into());
            }
            let attr = self.attr(ino);
            return Ok((
                Reply::Entry { ino, kind, attr: attr.clone(), created: false },
                Effects { attr, ..Effects::default() },
            ));
        }
        self.issued += 1;
        if self.issued == self.reserved_end {
            self.reserved_end += INO_BLOCK;
        }
        let ino = local(self.issued);
        let ino = if new.private { ino.of_private_directory() } else { ino };
        let ino = if new.over_backing { ino.of_backing() } else { ino };
        self.make(ino, key.parent, new, time);
        let node = self.node(ino).expect("just made");
        (node.xattrs, node.attr.has_xattrs) = (xattrs.to_vec(), !xattrs.is_empty());
        let attr = Some(node.attr.clone());
        self.names.push((key.clone(), ino, new.kind));
        let delta = delta(key, 1, i64::from(is_dir(new.kind)));
        Ok((
            Reply::Entry { ino, kind: new.kind, attr: attr.clone(), created: true },
            Effects { delta, attr, ..Effects::default() },
        ))
    }

    /// What becomes of an inode whose name goes; the shard is the home of numbers of shard 0.
    fn lose(&mut self, ino: Ino, kind: FileKind, time: Time, effects: &mut Effects) -> Result<(), Failure> {
        effects.removed = Some(Victim { ino, kind });
        if is_dir(kind) {
            if self.is_full(ino) {
                return Err(Code::NotEmpty.into());
            }
            self.nodes.retain(|node| node.attr.ino != ino);
        } else if ino.home(SHARDS) != ShardId(0) {
            // Named as inode numbers are, by a counter of the shard.
            self.lost += 1;
            let tx = TxId(local(self.lost).0);
            self.in_doubt.push((tx, LinkInDoubt::Dropped { ino }));
            effects.drop_link = Some(LostLink { ino, tx });
        } else if let Some(node) = self.node(ino) {
            node.attr.links = node.attr.links.saturating_sub(1);
            node.attr.ctime = node.attr.ctime.max(time);
            effects.attr = Some(node.attr.clone());
            effects.orphan = (node.attr.links == 0).then_some(ino);
        }
        Ok(())
    }

    fn remove(&mut self, key: &EntryKey, only: Option<Ino>, moved: bool, under: Option<TxId>, time: Time) -> Answer {
        if under.is_some() && self.holder(key) != under {
            return done(Effects::default());
        }
        if self.holder(key) != under {
            return Err(Code::Busy.into());
        }
        let (ino, kind) = self.name(key).ok_or(Code::NotFound)?;
        if only.is_some_and(|only| only != ino) {
            return Err(Code::Busy.into());
        }
        if only.is_none() && is_dir(kind) {
            return Err(Code::IsDirectory.into());
        }
        let mut effects = Effects::default();
        if moved {
            effects.removed = Some(Victim { ino, kind });
        } else {
            self.lose(ino, kind, time, &mut effects)?;
        }
        effects.delta = delta(key, -1, -i64::from(is_dir(kind)));
        self.names.retain(|(known, ..)| known != key);
        self.locks.retain(|(known, _)| known != key);
        done(effects)
    }

    fn insert(
        &mut self,
        key: &EntryKey,
        (ino, kind): (Ino, FileKind),
        replace: bool,
        under: Option<TxId>,
        answer: &Option<Attr>,
        time: Time,
    ) -> Answer {
        let reply = match answer {
            Some(attr) => Reply::Attributes { attr: attr.clone() },
            None => Reply::Done,
        };
        if under.is_some() && self.holder(key) != under {
            return Ok((reply, Effects::default()));
        }
        if self.holder(key) != under {
            return Err(Code::Busy.into());
        }
        let mut effects = Effects::default();
        match self.name(key) {
            Some(_) if !replace => return Err(Code::Exists.into()),
            Some((old, _)) if old == ino => {}
            Some((_, old)) if is_dir(old) && !is_dir(kind) => return Err(Code::IsDirectory.into()),
            Some((_, old)) if !is_dir(old) && is_dir(kind) => return Err(Code::NotDirectory.into()),
            Some((old, old_kind)) => {
                self.lose(old, old_kind, time, &mut effects)?;
                effects.delta = delta(key, 0, 0);
                self.names.retain(|(known, ..)| known != key);
                self.names.push((key.clone(), ino, kind));
            }
            None => {
                effects.delta = delta(key, 1, i64::from(is_dir(kind)));
                self.names.push((key.clone(), ino, kind));
            }
        }
        effects.attr = self.attr(ino);
        self.locks.retain(|(known, _)| known != key);
        Ok((reply, effects))
    }

    fn exchange(&mut self, key: &EntryKey, (ino, kind): (Ino, FileKind), under: TxId) -> Answer {
        if self.holder(key) != Some(under) {
            return done(Effects::default());
        }
        let (_, was) = self.name(key).ok_or(Code::NotFound)?;
        self.names.retain(|(known, ..)| known != key);
        self.names.push((key.clone(), ino, kind));
        self.locks.retain(|(known, _)| known != key);
        let delta = delta(key, 0, i64::from(is_dir(kind)) - i64::from(is_dir(was)));
        done(Effects { delta, attr: self.attr(ino), ..Effects::default() })
    }

    fn lock(&mut self, key: &EntryKey, lock: &Lock) -> Answer {
        if self.holder(key).is_some_and(|tx| tx != lock.tx) {
            return Err(Code::Busy.into());
        }
        let found = self.name(key);
        let reply = if matches!(lock.role, Role::Destination | Role::ExchangeDestination) {
            Reply::Prepared { victim: found.map(|(ino, kind)| Victim { ino, kind }) }
        } else if found.ok_or(Code::NotFound)?.0 == lock.ino {
            Reply::Done
        } else {
            return Err(Code::Busy.into());
        };
        self.locks.retain(|(known, _)| known != key);
        self.locks.push((key.clone(), lock.clone()));
        Ok((reply, Effects::default()))
    }

    fn drop_link(&mut self, ino: Ino, tx: TxId, time: Time) -> Answer {
        let Some(node) = self.node(ino) else { return done(Effects::default()) };
        let attr = node.attr.clone();
        if node.dropped.contains(&tx) {
            return there(attr);
        }
        if is_dir(attr.kind) {
            return Err(Code::IsDirectory.into());
        }
        if attr.links == 0 {
            return Err(Code::NotFound.into());
        }
        let (reply, mut effects) = self.touch(ino, time, |node| {
            node.attr.links -= 1;
            node.dropped.push(tx);
        })?;
        effects.orphan = (attr.links == 1).then_some(ino);
        Ok((reply, effects))
    }

    fn delete(&mut self, ino: Ino) -> Answer {
        let attr = self.attr(ino).ok_or(Code::Stale)?;
        if ino == Ino::ROOT {
            return Err(Code::NotPermitted.into());
        }
        if is_dir(attr.kind) && self.is_full(ino) {
            return Err(Code::NotEmpty.into());
        }
        if !is_dir(attr.kind) && attr.links > 0 {
            return Err(Code::Invalid.into());
        }
        self.nodes.retain(|node| node.attr.ino != ino);
        done(Effects { attr: Some(attr), ..Effects::default() })
    }

    fn assert_same(&self, shard: &Shard) {
        assert_eq!(shard.entries(), self.names.len() as u64);
        assert_eq!(shard.inodes(), self.nodes.len() as u64);
        for node in &self.nodes {
            let inode = shard.inode(node.attr.ino).expect("the inode is in the model");
            assert_eq!((&inode.attr, &inode.rare.get().target), (&node.attr, &node.target));
            let mut xattrs = node.xattrs.clone();
            xattrs.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(inode.rare.get().xattrs, xattrs);
            let announced: Vec<TxId> = inode.rare.get().links.iter().map(|link| link.tx).collect();
            assert_eq!((&announced, &inode.rare.get().dropped), (&node.announced, &node.dropped));
            for have in (0..=node.attr.generation.0).map(Generation) {
                let least = node.truncations.iter().filter(|(begun, _)| *begun > have).map(|(_, length)| *length).min();
                assert_eq!(inode.truncated_since(have), least.unwrap_or(u64::MAX), "since {have}");
            }
        }
        let mut in_doubt = self.in_doubt.clone();
        in_doubt.sort_by_key(|(tx, _)| *tx);
        assert!(shard.in_doubt().eq(in_doubt));
        let mut names = self.names.clone();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        for parent in parents() {
            let listed: Vec<_> =
                shard.entries_after(parent, 0).map(|(_, name, value)| (name.clone(), value.ino, value.kind)).collect();
            let expected = names.iter().filter(|(key, ..)| key.parent == parent);
            assert_eq!(listed, expected.map(|(key, ino, kind)| (key.name.clone(), *ino, *kind)).collect::<Vec<_>>());
            assert_eq!(shard.has_entries(parent), self.is_full(parent));
        }
        for (key, ino, kind) in &names {
            assert_eq!(shard.entry(key).map(|value| (value.ino, value.kind)), Some((*ino, *kind)));
        }
        assert_eq!(shard.locks().count(), self.locks.len());
        for (key, lock) in &self.locks {
            assert_eq!(shard.lock_of(key), Some(lock));
        }
    }
}

fn there(attr: Attr) -> Answer {
    Ok((Reply::Attributes { attr: attr.clone() }, Effects { attr: Some(attr), ..Effects::default() }))
}

fn delta(key: &EntryKey, entries: i64, subdirs: i64) -> Option<aze_meta::DirDelta> {
    Some(aze_meta::DirDelta { dir: key.parent, entries, subdirs })
}

/// Of the volume; the shard is the first of them.
const SHARDS: u32 = 8;

/// Of every file, and of the root directory.
const LAYOUT: Layout = Layout { first: Prefix(0), shard_bits: 3 };

/// The life in which all numbers are issued.
const LIFE: Life = Life(3);

fn local(counter: u64) -> Ino {
    Ino::new(Prefix(0), LIFE, counter).expect("a small counter")
}

fn foreign(counter: u64) -> Ino {
    Ino::new(Prefix::first_of(ShardId(7), SHARDS), LIFE, counter).expect("a small counter")
}

/// A key whose place is the first of all: so inode numbers can be told beforehand.
fn key(parent: Ino, name: Name) -> EntryKey {
    let hash = NameHash::of(parent, &name).get() & ((1 << (NameHash::BITS - Prefix::BITS)) - 1);
    EntryKey { parent, hash: NameHash::from_bytes(&hash.to_bytes()).expect("a hash"), name }
}

fn parents() -> Vec<Ino> {
    vec![Ino::ROOT, local(2), local(3), foreign(2)]
}

fn inos() -> impl Strategy<Value = Ino> {
    prop_oneof![8 => (2..6u64).prop_map(local), 1 => Just(Ino::ROOT), 1 => (2..4u64).prop_map(foreign)]
}

fn kinds() -> impl Strategy<Value = FileKind> {
    prop_oneof![
        4 => Just(FileKind::File),
        3 => Just(FileKind::Directory),
        1 => Just(FileKind::Symlink),
        1 => Just(FileKind::CharDevice),
    ]
}

fn keys() -> impl Strategy<Value = EntryKey> {
    (prop::sample::select(parents()), 0..3u8)
        .prop_map(|(parent, name)| key(parent, Name::new(&[b'a' + name]).expect("a name")))
}

fn txs() -> impl Strategy<Value = Option<TxId>> {
    prop_oneof![4 => Just(None), 1 => (1..3u64).prop_map(|tx| Some(TxId(tx)))]
}

fn links() -> impl Strategy<Value = TxId> {
    (100..103u64).prop_map(TxId)
}

fn xattrs() -> impl Strategy<Value = Xattr> {
    let names = prop::sample::select(vec!["user.a", "user.b", "trusted.c"]);
    (names, prop::collection::vec(any::<u8>(), 0..4))
        .prop_map(|(name, value)| Xattr { name: Blob(name.into()), value: Blob(value) })
}

fn hows() -> impl Strategy<Value = XattrHow> {
    prop_oneof![2 => Just(XattrHow::Any), 1 => Just(XattrHow::Create), 1 => Just(XattrHow::Replace)]
}

fn times() -> impl Strategy<Value = Time> {
    (0..30u64).prop_map(Time)
}

fn name_ops() -> impl Strategy<Value = Op> {
    let new = (kinds(), 0..0o10000u32, 0..3u32, times()).prop_map(|(kind, mode, uid, _)| NewFile {
        kind,
        mode,
        uid,
        gid: uid + 10,
        rdev: 5,
        target: Blob(b"over/there".to_vec()),
        born: MapEpoch(1),
        chunk_bits: CHUNK_BITS,
        layout: LAYOUT,
        private: kind == FileKind::Directory && mode % 2 == 1,
        over_backing: kind == FileKind::File && mode % 2 == 1,
    });
    let roles = [
        Role::Source,
        Role::Destination,
        Role::ExchangeSource { ino: local(2), kind: FileKind::File, parent: Ino::ROOT },
        Role::ExchangeDestination,
    ];
    let lock = (1..3u64, prop::sample::select(roles.to_vec()), inos(), kinds()).prop_map(|(tx, role, ino, kind)| {
        Lock { tx: TxId(tx), role, coordinator: ServerIndex(1), incarnation: Incarnation(0), ino, kind }
    });
    prop_oneof![
        6 => (keys(), new, any::<bool>()).prop_map(|(key, new, exclusive)| Op::Create { key, new, exclusive }),
        4 => (keys(), prop::option::of(inos()), prop::bool::weighted(0.2), txs())
            .prop_map(|(key, only, moved, under)| Op::Remove { key, only, moved, under }),
        4 => (keys(), inos(), kinds(), any::<bool>(), txs())
            .prop_map(|(key, ino, kind, replace, under)| Op::Insert { key, ino, kind, replace, under, attr: None }),
        2 => (keys(), kinds(), xattrs()).prop_map(|(key, kind, xattr)| {
            let (target, born) = (Blob(b"t".to_vec()), MapEpoch(1));
            let new = NewFile { kind, mode: 0o600, uid: 1, gid: 1, rdev: 5, target, born, chunk_bits: CHUNK_BITS, layout: LAYOUT, private: false, over_backing: false };
            Op::CreateWith { key, new, exclusive: true, xattrs: vec![xattr] }
        }),
        2 => (keys(), inos(), kinds(), links()).prop_map(|(key, ino, kind, tx)| Op::LinkInsert { key, ino, kind, tx }),
        2 => (keys(), inos(), kinds(), 1..3u64)
            .prop_map(|(key, ino, kind, tx)| Op::Exchange { key, ino, kind, under: TxId(tx) }),
        2 => (keys(), lock).prop_map(|(key, lock)| Op::Lock { key, lock }),
        1 => (keys(), 1..3u64).prop_map(|(key, tx)| Op::Unlock { key, tx: TxId(tx) }),
        1 => (0..5u64).prop_map(|count| Op::ReserveInos { count }),
    ]
}

fn inode_ops() -> impl Strategy<Value = Op> {
    let set = (
        prop::option::of(0..0o10000u32),
        prop::option::of(0..3u32),
        prop::option::of(times()),
        prop::option::of(times()),
    )
        .prop_map(|(mode, id, atime, mtime)| AttrSet { mode, uid: id, gid: id, atime, mtime });
    let generations = || prop_oneof![3 => Just(Generation(0)), 1 => (1..3u32).prop_map(Generation)];
    prop_oneof![
        2 => (inos(), links()).prop_map(|(ino, tx)| Op::LinkBegin { ino, tx, shard: ShardId(1) }),
        2 => (inos(), links(), any::<bool>()).prop_map(|(ino, tx, kept)| Op::LinkEnd { ino, tx, kept }),
        2 => (inos(), links()).prop_map(|(ino, tx)| Op::LinkDrop { ino, tx }),
        1 => (inos(), links()).prop_map(|(ino, tx)| Op::LinkForget { ino, tx }),
        3 => (inos(), xattrs(), any::<bool>(), prop::option::of(0..0o10000u32), any::<bool>(), hows()).prop_map(
            |(ino, Xattr { name, value }, set, mode, if_any, how)| {
                let value = set.then_some(value);
                Op::SetXattr { ino, name, value, mode, if_any, how }
            }
        ),
        1 => prop_oneof![links(), (1..4u64).prop_map(|lost| TxId(local(lost).0))].prop_map(|tx| Op::LinkResolved { tx }),
        2 => (inos(), set).prop_map(|(ino, set)| Op::SetAttr { ino, set }),
        3 => (inos(), generations(), 0..100u64, (0..=Spread::REACH_MAX, any::<bool>())).prop_map(
            |(ino, generation, end, (reach, sparse))| Op::Report { ino, generation, end, spread: Spread::new(reach, sparse) }
        ),
        3 => (inos(), 0..100u64).prop_map(|(ino, size)| Op::Truncate { ino, size }),
        1 => (inos(), generations()).prop_map(|(ino, generation)| Op::TruncateDone { ino, generation }),
        1 => (inos(), inos()).prop_map(|(ino, parent)| Op::SetParent { ino, parent }),
        2 => inos().prop_map(|ino| Op::Delete { ino }),
        1 => (0..3u32).prop_map(|_| Op::Record { outcome: Outcome::Failed { failure: Code::AccessDenied.into() } }),
        1 => Just(Op::MakeRoot { uid: 0, gid: 0, mode: 0o755, born: MapEpoch(1), chunk_bits: CHUNK_BITS }),
    ]
}

/// Codes and refusals are promised, texts are not.
fn essence(reply: Result<Reply, Failure>) -> Result<Reply, (Code, Option<Refusal>)> {
    reply.map_err(|failure| (failure.code, failure.refusal))
}

fn assert_recorded(shard: &mut Shard, stamp: &Stamp, reply: &Result<Reply, Failure>) {
    let verdict = shard.check(stamp.session, stamp.sequence, stamp.floor);
    match reply {
        Err(failure) if matches!(failure.code, Code::Busy | Code::Refused) => assert_eq!(verdict, Verdict::New),
        _ => assert_eq!(verdict, Verdict::Done(reply.clone())),
    }
}

/// What every sequence begins with, so that there is something to work on: a file, number 2, and
/// a directory, number 3.
fn beginning() -> Vec<(Op, Time)> {
    let make = |name: &[u8], kind| {
        let key = key(Ino::ROOT, Name::new(name).expect("a name"));
        let (target, born) = (Blob::default(), MapEpoch(1));
        let new = NewFile {
            kind,
            mode: 0o700,
            uid: 1,
            gid: 1,
            rdev: 0,
            target,
            born,
            chunk_bits: CHUNK_BITS,
            layout: LAYOUT,
            private: false,
            over_backing: false,
        };
        (Op::Create { key, new, exclusive: true }, Time(10))
    };
    let root = Op::MakeRoot { uid: 0, gid: 0, mode: 0o755, born: MapEpoch(1), chunk_bits: CHUNK_BITS };
    vec![
        (Op::BeginLife { life: LIFE }, Time(9)),
        (root, Time(10)),
        make(b"a", FileKind::File),
        make(b"b", FileKind::Directory),
    ]
}

fn run(ops: &[(Op, Time)]) {
    let mut model = Model::new();
    let mut shard = Shard::new(ShardId(0), SHARDS);
    let mut replayed = shard.clone();
    for (number, (op, time)) in beginning().iter().chain(ops).enumerate() {
        let sequence = Sequence(number as u64 + 1);
        let stamp = Stamp { time: *time, session: SessionId(9), sequence, floor: sequence };
        assert_eq!(shard.check(stamp.session, sequence, sequence), Verdict::New);
        let Applied { reply, effects, is_poison } = shard.apply(op, &stamp);
        assert_recorded(&mut shard, &stamp, &reply);
        let (expected_reply, expected_effects) = match model.apply(op, *time) {
            Ok((reply, effects)) => (Ok(reply), effects),
            Err(failure) => (Err(failure), Effects::default()),
        };
        assert_eq!(essence(reply.clone()), essence(expected_reply), "reply of {op:?}");
        assert_eq!(effects, expected_effects, "effects of {op:?}");
        model.assert_same(&shard);

        let again = Op::from_bytes(&op.to_bytes()).expect("an operation survives its encoding");
        assert_eq!(&again, op);
        assert_eq!(replayed.apply(&again, &stamp), Applied { reply, effects, is_poison });
        assert_eq!(replayed.digest(), shard.digest());
    }
    for rows_max in [1, 3, 1000] {
        let mut restored = Shard::new(ShardId(0), SHARDS);
        for part in shard.dump(rows_max) {
            restored.absorb(ShardPart::from_bytes(&part.to_bytes()).expect("a part survives its encoding"));
        }
        assert_eq!(restored.digest(), shard.digest());
        let outcomes: Vec<_> = shard.outcomes().all().collect();
        assert_eq!(outcomes.len(), 1);
        assert_eq!(restored.outcomes().all().collect::<Vec<_>>(), outcomes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 600 } else { 10_000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_shard_does_what_the_model_does(ops in prop::collection::vec((prop_oneof![3 => name_ops(), 2 => inode_ops()], times()), 1..40)) {
        run(&ops);
    }
}
