//! Names in one shard of inodes in another, counted exactly through deaths and lost answers.
//!
//! A new name is announced at the inode's home before it is made: the count goes up, and the home
//! remembers whom to ask whether it was made. A name that goes is remembered where it was until the
//! home has taken it off the count, which it does once for each transaction, however often it is
//! told. So whichever message is lost, the two sides agree in the end.

use crate::shard::{Effects, Shard, Step};
use crate::tables::{EntryKey, EntryValue, Tables};
use crate::{PendingLink, inodes};
use aze_proto::ids::{Ino, ShardId, Time, TxId};
use aze_proto::limits::LINKS_MAX;
use aze_proto::{Attr, Code, Failure, FileKind, Reply, wire_enum};

wire_enum! {
    /// A change of a name here that the home of its inode does not know yet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum LinkInDoubt {
        /// It was made.
        1 = Made,
        /// It went: the home of `ino` must count one less.
        2 = Dropped { ino: Ino },
    }
}

/// An inode elsewhere that has lost a name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLink {
    /// The inode.
    pub ino: Ino,
    /// Which name of it, for [`crate::Op::LinkDrop`].
    pub tx: TxId,
}

impl<T: Tables> Shard<T> {
    pub(crate) fn link_begin(&mut self, ino: Ino, tx: TxId, shard: ShardId, time: Time) -> Step {
        let inode = self.tables.inode(ino).ok_or(Code::NotFound)?;
        if inode.rare.get().links.iter().any(|link| link.tx == tx) {
            let attr = inode.attr.clone();
            return Ok((Reply::Attributes { attr: attr.clone() }, Effects { attr: Some(attr), ..Effects::default() }));
        }
        match &inode.attr {
            // link(2): EPERM for directories.
            Attr { kind: FileKind::Directory, .. } => {
                Err(Failure::new(Code::NotPermitted, "directories have one name"))
            }
            // The last name is gone: a file that is only held open gets no name again.
            Attr { links: 0, .. } => Err(Code::NotFound.into()),
            Attr { links, .. } if *links >= LINKS_MAX => Err(Code::TooManyLinks.into()),
            _ => self.change(ino, |inode| {
                inode.attr.links += 1;
                inode.rare.change(|parts| parts.links.push(PendingLink { tx, shard }));
                inodes::changed(&mut inode.attr, time);
            }),
        }
    }

    pub(crate) fn link_end(&mut self, ino: Ino, tx: TxId, kept: bool, time: Time) -> Step {
        let announced = self.tables.update_inode(ino, |inode| {
            let mut found = false;
            if !inode.rare.get().links.is_empty() {
                inode.rare.change(|parts| {
                    let before = parts.links.len();
                    parts.links.retain(|link| link.tx != tx);
                    found = parts.links.len() != before;
                });
            }
            found
        });
        let mut effects = Effects::default();
        if announced == Some(true)
            && !kept
            && let Some(attr) = self.lower_links(ino, time)
        {
            effects.orphan = (attr.links == 0).then_some(ino);
            effects.attr = Some(attr);
        }
        Ok((Reply::Done, effects))
    }

    pub(crate) fn link_insert(&mut self, key: &EntryKey, value: EntryValue, tx: TxId, time: Time) -> Step {
        let step = self.insert(key, value, false, None, None, time)?;
        self.in_doubt.insert(tx, LinkInDoubt::Made);
        Ok(step)
    }

    pub(crate) fn link_drop(&mut self, ino: Ino, tx: TxId, time: Time) -> Step {
        let Some(inode) = self.tables.inode(ino) else { return Ok((Reply::Done, Effects::default())) };
        if inode.rare.get().dropped.contains(&tx) {
            let attr = inode.attr.clone();
            return Ok((Reply::Attributes { attr: attr.clone() }, Effects { attr: Some(attr), ..Effects::default() }));
        }
        match inode.attr {
            Attr { kind: FileKind::Directory, .. } => {
                Err(Failure::new(Code::IsDirectory, "a directory's links are not lowered"))
            }
            Attr { links: 0, .. } => {
                Err(Failure::new(Code::NotFound, format!("inode {ino} has no link left to lower")))
            }
            _ => {
                let (reply, mut effects) = self.change(ino, |inode| {
                    inode.attr.links -= 1;
                    inode.rare.change(|parts| parts.dropped.push(tx));
                    inodes::changed(&mut inode.attr, time);
                })?;
                effects.orphan = effects.attr.as_ref().filter(|attr| attr.links == 0).map(|attr| attr.ino);
                Ok((reply, effects))
            }
        }
    }

    pub(crate) fn link_forget(&mut self, ino: Ino, tx: TxId) -> Step {
        self.tables.update_inode(ino, |inode| {
            if !inode.rare.get().dropped.is_empty() {
                inode.rare.change(|parts| parts.dropped.retain(|dropped| *dropped != tx));
            }
        });
        Ok((Reply::Done, Effects::default()))
    }

    pub(crate) fn set_links(&mut self, ino: Ino, links: u32) -> Step {
        let set = self.tables.update_inode(ino, |inode| inode.attr.links = links);
        set.ok_or(Code::NotFound)?;
        let orphan = (links == 0).then_some(ino);
        Ok((Reply::Done, Effects { orphan, ..Effects::default() }))
    }

    /// Inodes of whose links something is under way, as far as this shard knows.
    pub fn inodes_in_doubt(&self) -> Vec<Ino> {
        let dropped = self.in_doubt.values().filter_map(|in_doubt| match in_doubt {
            LinkInDoubt::Dropped { ino } => Some(*ino),
            LinkInDoubt::Made => None,
        });
        let announced = self.tables.inodes().filter(|inode| !inode.rare.get().links.is_empty());
        dropped.chain(announced.map(|inode| inode.attr.ino)).collect()
    }

    /// Forgets counts that are under way between names and inodes: for a volume whose servers all start again, and
    /// count the names.
    pub fn forget_links(&mut self) {
        self.in_doubt.clear();
        let inos: Vec<Ino> = self.tables.inodes().map(|inode| inode.attr.ino).collect();
        for ino in inos {
            self.tables.update_inode(ino, |inode| {
                inode.rare.change(|parts| {
                    parts.links.clear();
                    parts.dropped.clear();
                });
            });
        }
    }

    pub(crate) fn link_resolved(&mut self, tx: TxId) -> Step {
        self.in_doubt.remove(&tx);
        Ok((Reply::Done, Effects::default()))
    }

    /// A name here of an inode elsewhere is about to go.
    pub(crate) fn lose_link(&mut self, ino: Ino) -> LostLink {
        let tx = self.new_tx();
        self.in_doubt.insert(tx, LinkInDoubt::Dropped { ino });
        LostLink { ino, tx }
    }

    /// Takes one link from an inode here; its attributes afterwards.
    pub(crate) fn lower_links(&mut self, ino: Ino, time: Time) -> Option<Attr> {
        self.tables.update_inode(ino, |inode| {
            inode.attr.links = inode.attr.links.saturating_sub(1);
            inodes::changed(&mut inode.attr, time);
            inode.attr.clone()
        })
    }

    /// Changes of names here that the homes of their inodes do not know: for a start of the shard, and for checks.
    pub fn in_doubt(&self) -> impl Iterator<Item = (TxId, LinkInDoubt)> {
        self.in_doubt.iter().map(|(tx, in_doubt)| (*tx, *in_doubt))
    }

    /// Whether the name announced as `tx` was made here and its inode's home does not know yet.
    pub fn has_made(&self, tx: TxId) -> bool {
        self.in_doubt.get(&tx) == Some(&LinkInDoubt::Made)
    }
}
