//! What readers of a published index without a standard library take from room `index` is what this room says.

use aze_index as index;
use aze_proto::attr::{Attr, FileKind, Spread};
use aze_proto::ids::{Generation, MapEpoch, Prefix};
use aze_proto::place::Layout;
use aze_proto::published::inode_value;
use aze_proto::slots::{Placement, SlotTable, slot_of};
use aze_proto::{Ino, Name, NameHash, ShardId, Time};

#[test]
fn a_name_has_the_same_slot_for_both() {
    for (placement, shards, servers) in
        [(Placement::Modular, 4096, 1), (Placement::Modular, 4096, 3), (Placement::Ring, 1024, 5)]
    {
        let slots = SlotTable::placed(placement, shards, servers).expect("a table");
        let private = Ino(7 << 42 | 9).of_private_directory();
        for (parent, round) in
            [Ino::ROOT, Ino(77), private].into_iter().flat_map(|ino| (0..50).map(move |round| (ino, round)))
        {
            let name = Name::new(format!("name {round}").as_bytes()).expect("a name");
            let hash = NameHash::of(parent, &name);
            assert_eq!(index::hash_of(parent.0, name.as_bytes()), hash.get());
            let slot = index::slot_of_hash(hash.get(), shards.trailing_zeros(), slots.len());
            assert_eq!(slot, slot_of(hash.shard(shards), slots.len()).0);
            // The first shards are in the slots of their numbers, by which a client tells the servers of slots.
            let keeps = |shard| slots.keeps(shard).map(|slot| slot.primary);
            assert_eq!(keeps(ShardId(slot)), keeps(hash.shard(shards)));
        }
    }
}

#[test]
fn the_words_of_an_inode_lie_where_they_are_looked_for() {
    let layout = Layout { first: Prefix(5), shard_bits: 12 };
    let attr = Attr {
        ino: Ino(9),
        kind: FileKind::File,
        mode: 0o4755,
        links: 3,
        uid: 4,
        gid: 5,
        rdev: 0,
        size: 1000,
        atime: Time(1),
        mtime: Time(2),
        ctime: Time(3),
        btime: Time(4),
        generation: Generation(7),
        born: MapEpoch(8),
        layout,
        chunk_bits: 17,
        spread: Spread::ANYWHERE,
        has_xattrs: true,
        parent: Ino(0),
    };
    let value = inode_value(&attr).expect("a regular file has a record");
    assert_eq!(index::parts(value[index::INODE_MODES]), (0o4755, 3));
    assert_eq!(index::parts(value[index::INODE_OWNERS]), (4, 5));
    assert_eq!((value[index::INODE_SIZE], value[index::INODE_BLOCKS]), (1000, attr.blocks()));
    assert_eq!(value[index::INODE_TIMES..][..4], [1, 2, 3, 4]);
    assert_eq!(index::chunk_bits_of(&value), 17);
}
