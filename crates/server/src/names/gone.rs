//! Names of the volume's backing that do not lead any more to the inodes that were imported under them. Their records are made where
//! names change (`aze_meta`); here the volume's owner asks for them, and has them dropped when the backing has followed.

use crate::state::Server;
use crate::wait::Attempt;
use crate::work::{Output, Work};
use aze_meta::{EntryKey, Op, Stamp};
use aze_proto::check::{EntryPlace, EntrySpot};
use aze_proto::limits::GONE_BYTES_MAX;
use aze_proto::{Gone, Ino, Name, Reply, Time};

/// Bytes of a record in a message, beside its name and its path, at most.
const ROW_BYTES: usize = 128;

impl Server {
    /// The records from a place on: a page of them.
    pub(crate) fn gone_names(&self, from: &EntryPlace) -> Attempt<Output> {
        let (mut names, mut bytes) = (Vec::<Gone>::new(), 0);
        for cell in self.shards.iter().filter(|cell| cell.id >= from.shard) {
            let spot = from.after.as_ref().filter(|_| cell.id == from.shard);
            let after = spot.map(|spot| EntryKey { parent: spot.parent, hash: spot.hash, name: spot.name.clone() });
            let here = cell.names.lock();
            for (key, gone) in here.shard.gone_behind(after.as_ref()) {
                names.push(gone.clone());
                bytes += ROW_BYTES + gone.name.as_bytes().len() + gone.path.0.len();
                if bytes >= GONE_BYTES_MAX {
                    let EntryKey { parent, hash, name } = key.clone();
                    let next = EntryPlace { shard: cell.id, after: Some(EntrySpot { parent, hash, name }) };
                    return Ok(Reply::GoneAre { names, next: Some(next) }.into());
                }
            }
        }
        Ok(Reply::GoneAre { names, next: None }.into())
    }

    /// At an inode's home: the backing is about to lose the object from which it came.
    pub(crate) fn leave_backing(&self, ino: Ino) -> Attempt<Output> {
        let mut names = self.cell(self.home(ino))?.names.lock();
        let backing = names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.backing();
        if backing.is_some_and(|backing| !backing.data_changed || !backing.attributes_changed) {
            names.shard.apply(&Op::LeaveBacking { ino }, &self.own_stamp(&Stamp::default())).reply?;
        }
        Ok(Reply::Done.into())
    }

    pub(crate) fn forget_gone(&self, work: &Work, parent: Ino, name: &Name, since: Time) -> Attempt<Output> {
        let (cell, key) = self.entry_place(work, parent, name)?;
        let applied = cell.names.lock().shard.apply(&Op::ForgetGone { key, since }, &self.own_stamp(&Stamp::default()));
        applied.reply?;
        Ok(Reply::Done.into())
    }
}
