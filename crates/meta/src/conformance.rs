//! What every implementation of [`Tables`] has to do, as one suite that each of them runs in its
//! tests: the answers of rows kept in plain lists, over a few thousand changes.

use crate::Rare;
use crate::tables::{EntryKey, EntryValue, Inode, Lock, PendingTruncation, Role, Tables};
use aze_proto::ids::{Generation, Incarnation, Ino, MapEpoch, ServerIndex, Time, TxId};
use aze_proto::{Attr, FileKind, Name, NameHash, Spread};

/// Changes that the suite makes: enough for tables to grow, split and shrink several times.
const CHANGES: u64 = 4_000;

/// Runs the suite on tables that `make` makes empty.
///
/// # Panics
/// At the first answer that is wrong.
pub fn conformance<T: Tables>(make: impl Fn() -> T) {
    empty_tables_have_nothing(&make());
    equal_hashes_are_told_apart_by_name(make());
    many_changes(make());
}

fn empty_tables_have_nothing<T: Tables>(tables: &T) {
    let key = key(1, 0, b"a");
    assert_eq!((tables.entry_count(), tables.inode_count()), (0, 0));
    assert_eq!(tables.entry(&key), None);
    assert_eq!(tables.inode(Ino(1)), None);
    assert_eq!(tables.lock(&key), None);
    assert_eq!(tables.entries_of(Ino(1), NameHash::default()).count(), 0);
    assert_eq!(tables.entries().count() + tables.inodes().count() + tables.locks().count(), 0);
}

fn equal_hashes_are_told_apart_by_name<T: Tables>(mut tables: T) {
    let value = |ino| EntryValue { ino: Ino(ino), kind: FileKind::File };
    let last = (1 << NameHash::BITS) - 1;
    let keys =
        [key(1, 5, b"\x01"), key(1, 5, b"\x01\x01"), key(1, 5, b"b"), key(1, last, &[255; 255]), key(2, 0, b"\x01")];
    for (number, key) in keys.iter().enumerate().rev() {
        assert_eq!(tables.insert_entry(key, value(number as u64)), None);
    }
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(tables.entry(key), Some(value(number as u64)));
    }
    let found = |parent, hash_min| -> Vec<u64> {
        let hash_min = NameHash::after_cookie(hash_min + NameHash::COOKIE_MIN - 1).expect("a hash");
        tables.entries_of(Ino(parent), hash_min).map(|(_, _, value)| value.ino.0).collect()
    };
    assert_eq!(found(1, 0), [0, 1, 2, 3]);
    assert_eq!(found(1, 5), [0, 1, 2, 3]);
    assert_eq!(found(1, 6), [3]);
    assert_eq!(found(1, last), [3]);
    assert_eq!(found(2, 0), [4]);
    assert_eq!(found(2, 1), [0; 0]);
    assert_eq!(found(3, 0), [0; 0]);
    assert_eq!(tables.entries().map(|(key, _)| key.clone()).collect::<Vec<_>>(), keys);
}

fn many_changes<T: Tables>(mut tables: T) {
    let mut model = Model::default();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for step in 0..CHANGES {
        // First mostly insertions, then mostly removals.
        let removes = random.below(4) < if step < CHANGES / 2 { 1 } else { 3 };
        let name = [b'a' + random.below(6) as u8];
        let key = key(random.below(4), random.below(40), &name);
        match (random.below(4), removes) {
            (0 | 1, false) => {
                let value = EntryValue { ino: Ino(random.below(1000)), kind: FileKind::File };
                assert_eq!(tables.insert_entry(&key, value), put(&mut model.entries, key, value));
            }
            (0 | 1, true) => assert_eq!(tables.remove_entry(&key), cut(&mut model.entries, &key)),
            (2, false) => {
                let inode = inode(random.below(100), step);
                assert_eq!(tables.insert_inode(inode.clone()), put(&mut model.inodes, inode.attr.ino, inode));
            }
            (2, true) => {
                let ino = Ino(random.below(100));
                assert_eq!(tables.remove_inode(ino), cut(&mut model.inodes, &ino));
            }
            (_, false) => {
                let lock = lock(step);
                assert_eq!(tables.insert_lock(&key, lock.clone()), put(&mut model.locks, key, lock));
            }
            (_, true) => assert_eq!(tables.remove_lock(&key), cut(&mut model.locks, &key)),
        }
        update(&mut tables, &mut model, Ino(random.below(100)), step);
        if step % 64 == 0 {
            compare(&tables, &model);
        }
    }
    compare(&tables, &model);
}

/// Rows in no order, found by looking at all of them.
#[derive(Default)]
struct Model {
    entries: Vec<(EntryKey, EntryValue)>,
    inodes: Vec<(Ino, Inode)>,
    locks: Vec<(EntryKey, Lock)>,
}

fn put<K: PartialEq, V>(rows: &mut Vec<(K, V)>, key: K, value: V) -> Option<V> {
    let old = cut(rows, &key);
    rows.push((key, value));
    old
}

fn cut<K: PartialEq, V>(rows: &mut Vec<(K, V)>, key: &K) -> Option<V> {
    let at = rows.iter().position(|(known, _)| known == key)?;
    Some(rows.swap_remove(at).1)
}

fn update<T: Tables>(tables: &mut T, model: &mut Model, ino: Ino, step: u64) {
    let found = tables.update_inode(ino, |inode| {
        inode.attr.size += step;
        inode
            .rare
            .change(|parts| parts.truncations.push(PendingTruncation { generation: Generation(1), length: step }));
        inode.attr.size
    });
    let row = model.inodes.iter_mut().find(|(known, _)| *known == ino);
    assert_eq!(found.is_some(), row.is_some());
    if let Some((_, inode)) = row {
        inode.attr.size += step;
        inode
            .rare
            .change(|parts| parts.truncations.push(PendingTruncation { generation: Generation(1), length: step }));
        assert_eq!(found, Some(inode.attr.size));
        assert_eq!(tables.inode(ino), Some(&*inode));
    }
}

fn compare<T: Tables>(tables: &T, model: &Model) {
    let mut entries = model.entries.clone();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(tables.entries().map(|(key, value)| (key.clone(), value)).collect::<Vec<_>>(), entries);
    let rare_bytes = model.inodes.iter().map(|(_, inode)| inode.rare_bytes()).sum::<u64>();
    assert_eq!(tables.rare_bytes(), rare_bytes);
    assert_eq!(tables.entry_count(), entries.len() as u64);
    for (place, (key, value)) in entries.iter().enumerate() {
        assert_eq!(tables.entry(key), Some(*value));
        assert!(tables.entries_behind(key).map(|(key, _)| key).eq(entries[place + 1..].iter().map(|(key, _)| key)));
        let from: Vec<_> =
            tables.entries_of(key.parent, key.hash).map(|(hash, name, value)| (hash, name.clone(), value)).collect();
        let rows = entries.iter().filter(|(other, _)| other.parent == key.parent && other.hash >= key.hash);
        assert_eq!(from, rows.map(|(key, value)| (key.hash, key.name.clone(), *value)).collect::<Vec<_>>());
    }
    let mut inodes = model.inodes.clone();
    inodes.sort_by_key(|(ino, _)| *ino);
    assert!(tables.inodes().eq(inodes.iter().map(|(_, inode)| inode)));
    for from in [0, 1, 40, 63, 64, 65, 99, 100].map(Ino) {
        let rest = inodes.iter().map(|(_, inode)| inode).filter(|inode| inode.attr.ino >= from);
        assert!(tables.inodes_from(from).eq(rest));
    }
    assert_eq!(tables.inode_count(), inodes.len() as u64);
    let mut locks = model.locks.clone();
    locks.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(tables.locks().eq(locks.iter().map(|(key, lock)| (key, lock))));
    for (key, lock) in &locks {
        assert_eq!(tables.lock(key), Some(lock));
    }
}

/// Numbers without pattern, the same in every run (xorshift64, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

fn key(parent: u64, hash: u64, name: &[u8]) -> EntryKey {
    let hash = NameHash::after_cookie(hash + NameHash::COOKIE_MIN - 1).expect("a hash of 62 bits");
    EntryKey { parent: Ino(parent), hash, name: Name::new(name).expect("a name") }
}

pub(crate) fn inode(number: u64, step: u64) -> Inode {
    let time = Time(step);
    let attr = Attr {
        ino: Ino(number),
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 1,
        gid: 2,
        rdev: 0,
        size: step,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        generation: Generation(0),
        born: MapEpoch(1),
        layout: aze_proto::place::Layout::default(),
        chunk_bits: 20,
        spread: Spread::default(),
        has_xattrs: false,
        parent: Ino(0),
    };
    Inode { attr, rare: Rare::of_target(vec![b'x'; (step % 50) as usize]) }
}

fn lock(step: u64) -> Lock {
    let (coordinator, incarnation) = (ServerIndex(1), Incarnation(2));
    Lock { tx: TxId(step), role: Role::Destination, coordinator, incarnation, ino: Ino(step), kind: FileKind::File }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_tables_conform() {
        conformance(crate::PlainTables::default);
    }
}
