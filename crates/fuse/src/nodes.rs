//! The numbers by which the kernel knows inodes.
//!
//! The kernel keeps inodes in a table, whose hash takes little but the low bits of the
//! number. An inode's own number has its shard in the highest bits and counts the files of the shard in the
//! lowest ones: as many files as there are shards would share one place, and be gone through one by one
//! whenever the kernel learns a new one. So the kernel is given numbers whose bits are mixed. Programs
//! do not see them: `st_ino` is the inode's own number.

/// The kernel's number of the root directory, and its own (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

/// An odd number, 2^64 by the golden ratio: low bits decide about high ones.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What takes it back: `SPREAD * GATHER` is 1.
const GATHER: u64 = 0xf1de_83e1_9937_733d;
const _: () = assert!(SPREAD.wrapping_mul(GATHER) == 1);

/// By which number the kernel is to know this inode.
pub fn node(ino: u64) -> u64 {
    if ino == ROOT {
        return ROOT;
    }
    let node = mix(ino);
    // That of the root is taken.
    if node == ROOT { mix(ROOT) } else { node }
}

/// Which inode the kernel means.
pub fn ino(node: u64) -> u64 {
    if node == ROOT {
        return ROOT;
    }
    let ino = unmix(node);
    if ino == ROOT { unmix(ROOT) } else { ino }
}

fn mix(ino: u64) -> u64 {
    let spread = ino.wrapping_mul(SPREAD);
    spread ^ spread >> 32
}

fn unmix(node: u64) -> u64 {
    (node ^ node >> 32).wrapping_mul(GATHER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_inode_has_a_number_of_its_own() {
        let shards = [0, 1, 2, 4095, 65_535].map(|shard: u64| shard << 48);
        let counters = [1, 2, 3, 77, (1 << 36) - 1];
        let mut inos: Vec<u64> =
            shards.iter().flat_map(|shard| counters.map(|counter| shard | 1 << 36 | counter)).collect();
        inos.extend([0, 1, u64::MAX, unmix(1), mix(1)]);
        for number in inos {
            assert_eq!((ino(node(number)), node(ino(number))), (number, number));
        }
        assert_eq!((node(1), ino(1)), (1, 1), "the kernel knows the root by this number");
    }

    /// Where the kernel looks for an inode, in a table of 2^21 places (`hash` in its `fs/inode.c`).
    fn place(node: u64, mount: u64) -> u64 {
        const ADDED: u64 = 0x61c8_8646_80b5_83eb;
        let first = node.wrapping_mul(mount) ^ (ADDED.wrapping_add(node) / 64);
        (first ^ (first ^ ADDED) >> 21) & ((1 << 21) - 1)
    }

    #[test]
    fn the_kernel_finds_them_in_places_of_their_own() {
        for mount in [0xffff_8881_0345_6800, 0xffff_8881_a2b3_c000, 0xffff_9a04_c4d1_1000] {
            for (shards, files) in [(4096, 25), (64, 2000), (1, 100_000)] {
                let mut places = BTreeMap::<u64, u32>::new();
                for shard in 0..shards {
                    for counter in 1..=files {
                        *places.entry(place(node(shard << 48 | 1 << 36 | counter), mount)).or_default() += 1;
                    }
                }
                let most = places.values().max().copied();
                assert!(most < Some(12), "{most:?} of {shards} times {files} files are in one place");
            }
        }
    }
}
