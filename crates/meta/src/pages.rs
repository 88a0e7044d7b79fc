//! Inodes of one shard by the order in which their numbers were issued, packed. A shard counts up, so neighbours are made
//! one after the other; an ordered map of single inodes would be half empty then, since its nodes split in
//! the middle and only the last one ever grows. Here 64 consecutive numbers share a page, which
//! holds those that exist side by side and a bit for each. The prefix of a number plays no part: a shard issues each life
//! and counter once.

use crate::tables::Inode;
use aze_proto::ids::Ino;
use std::collections::BTreeMap;

/// Numbers to a page, as a power of two: the bits of its mask.
const PAGE_BITS: u32 = u64::BITS.trailing_zeros();

/// Ordered inodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct InodePages {
    pages: BTreeMap<u64, Page>,
    count: u64,
}

/// Those of 64 numbers that exist.
#[derive(Clone, Debug, Default)]
struct Page {
    /// Which do.
    mask: u64,
    /// They themselves, by number.
    inodes: Vec<Inode>,
}

fn place(ino: Ino) -> (u64, u64) {
    let issue = ino.issue();
    (issue >> PAGE_BITS, 1 << (issue % u64::from(u64::BITS)))
}

impl Page {
    /// How many inodes stand before that of `bit`.
    fn before(&self, bit: u64) -> usize {
        (self.mask & (bit - 1)).count_ones() as usize
    }

    fn at(&self, bit: u64) -> Option<usize> {
        (self.mask & bit != 0).then(|| self.before(bit))
    }

    /// The same of an inode, which has a prefix, too.
    fn of(&self, bit: u64, ino: Ino) -> Option<usize> {
        self.at(bit).filter(|at| self.inodes[*at].attr.ino == ino)
    }
}

impl InodePages {
    pub(crate) fn get(&self, ino: Ino) -> Option<&Inode> {
        let (page, bit) = place(ino);
        let page = self.pages.get(&page)?;
        Some(&page.inodes[page.of(bit, ino)?])
    }

    pub(crate) fn get_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        let (page, bit) = place(ino);
        let page = self.pages.get_mut(&page)?;
        let at = page.of(bit, ino)?;
        Some(&mut page.inodes[at])
    }

    pub(crate) fn insert(&mut self, inode: Inode) -> Option<Inode> {
        let (page, bit) = place(inode.attr.ino);
        let page = self.pages.entry(page).or_default();
        if let Some(at) = page.at(bit) {
            return Some(std::mem::replace(&mut page.inodes[at], inode));
        }
        let at = page.before(bit);
        page.inodes.insert(at, inode);
        page.mask |= bit;
        self.count += 1;
        None
    }

    pub(crate) fn remove(&mut self, ino: Ino) -> Option<Inode> {
        let (number, bit) = place(ino);
        let page = self.pages.get_mut(&number)?;
        let inode = page.inodes.remove(page.of(bit, ino)?);
        page.mask &= !bit;
        self.count -= 1;
        if page.mask == 0 {
            self.pages.remove(&number);
        } else if page.inodes.len() <= page.inodes.capacity() / 4 {
            // Removed rows give their memory back, at the cost of a copy every now and then.
            page.inodes.shrink_to(page.inodes.len() * 2);
        }
        Some(inode)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Inode> {
        self.pages.values().flat_map(|page| &page.inodes)
    }

    pub(crate) fn iter_from(&self, from: Ino) -> impl Iterator<Item = &Inode> {
        let rest = self.pages.range(place(from).0..).flat_map(|(_, page)| &page.inodes);
        rest.skip_while(move |inode| inode.attr.ino.issue() < from.issue())
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::inode;

    /// Bytes that an inode takes in its table, with the spare room beside it.
    fn bytes_each(pages: &InodePages) -> usize {
        let slots: usize = pages.pages.values().map(|page| page.inodes.capacity()).sum();
        slots * size_of::<Inode>() / pages.len()
    }

    #[test]
    fn inodes_made_in_order_lie_side_by_side() {
        let mut pages = InodePages::default();
        (0..6400).for_each(|number| assert_eq!(pages.insert(inode(number, 0)), None));
        assert_eq!(bytes_each(&pages), size_of::<Inode>());
        assert!(size_of::<Inode>() <= 120, "{} bytes for an inode", size_of::<Inode>());
    }

    #[test]
    fn removed_inodes_give_their_memory_back() {
        let mut pages = InodePages::default();
        (0..6400).for_each(|number| drop(pages.insert(inode(number, 0))));
        (0..6400).filter(|number| number % 64 != 7).for_each(|number| drop(pages.remove(Ino(number))));
        assert_eq!(pages.len(), 100);
        assert!(bytes_each(&pages) <= 4 * size_of::<Inode>());
        (0..100).for_each(|page| assert!(pages.remove(Ino(page * 64 + 7)).is_some()));
        assert!(pages.pages.is_empty());
    }
}
