//! Files that are released: their data are elsewhere, too, and the volume gives them up.
//!
//! The home alone knows who has a file open, and what its attributes are; the shard of its name alone can take the name away.
//! So the session that releases a file has its home freeze it first: from then on nothing changes the file until the name is
//! gone or the session's open ends. The name goes only if the home has not been started again in between, since it would have
//! forgotten that. If the session is away no server serves it any more before the file may change again.

use crate::sabotage::Sabotage;
use crate::shards::Names;
use crate::state::Server;
use crate::wait::{Attempt, Stop, Wait};
use crate::work::{Output, Work};
use aze_proto::{Attr, Code, Failure, FileKind, Generation, Ino, MapEpoch, Name, Reply, Time};
use std::sync::Arc;

/// What a file has to be like to be frozen.
pub(crate) struct Frozen {
    pub(crate) generation: Generation,
    pub(crate) ctime: Time,
    /// Opens from before a start of this server do not matter.
    pub(crate) any_life: bool,
}

impl Server {
    /// Requests that change a file wait while it is frozen.
    pub(crate) fn unfrozen(&self, names: &Names, ino: Ino) -> Attempt<()> {
        let waits = names.opens.is_frozen(ino) && !self.config.switches.is(Sabotage::SkipFreeze);
        if waits { Err(Stop::Wait(Wait::Frozen(ino))) } else { Ok(()) }
    }

    /// Whether the table of opens has had all of this file: it is lost when the server starts again.
    fn knows_all_opens(&self, attr: &Attr) -> bool {
        attr.born >= self.map().home_since(attr.ino)
    }

    pub(crate) fn count_opens(&self, ino: Ino) -> Attempt<Output> {
        let names = self.cell(self.home(ino))?.names.lock();
        let attr = &names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let (opens, writers) = (count(names.opens.count(ino)), count(names.opens.writers(ino)));
        Ok(Reply::OpensAre { opens, writers, knows_all: self.knows_all_opens(attr) }.into())
    }

    pub(crate) fn freeze(&self, work: &Work, ino: Ino, handle: u64, as_it_was: Frozen) -> Attempt<Output> {
        let Frozen { generation, ctime, any_life } = as_it_was;
        let mut names = self.cell(self.home(ino))?.names.lock();
        let attr = &names.shard.inode(ino).ok_or_else(|| self.gone(ino))?.attr;
        let refused = |why: String| Err(Failure::new(Code::Busy, format!("inode {ino}: {why}")).into());
        if attr.kind != FileKind::File || attr.links != 1 {
            return refused(format!("it has {} names", attr.links));
        }
        if (attr.generation, attr.ctime) != (generation, ctime) {
            return refused("it has changed".into());
        }
        if !any_life && !self.knows_all_opens(attr) {
            let why = "was started again since the file was made, and does not know which programs had it open before";
            return refused(format!("{} {why}", self.who()));
        }
        if !names.opens.freeze(ino, work.session, handle) {
            return refused("a program has it open for writing, or had it a moment ago".into());
        }
        Ok(Reply::Frozen { began: self.map().home_since(ino) }.into())
    }

    pub(crate) fn unlink_frozen(
        self: &Arc<Self>,
        work: &mut Work,
        parent: Ino,
        name: &Name,
        ino: Ino,
        began: MapEpoch,
    ) -> Attempt<Output> {
        if self.map().home_since(ino) != began {
            let why = "its server was started again meanwhile, and does not know any more that nothing may change it";
            return Err(Failure::new(Code::Busy, format!("inode {ino}: {why}")).into());
        }
        self.unlink(work, parent, name, Some(ino))
    }
}
