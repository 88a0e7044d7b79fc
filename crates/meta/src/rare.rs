//! What few inodes have, apart, so that it costs the many others one pointer.

use crate::tables::PendingTruncation;
use crate::xattr::Xattr;
use aze_proto::ids::{ShardId, Time, TxId};
use aze_proto::wire::{Input, Malformed, Wire};
use aze_proto::{Backing, wire_struct};

wire_struct! {
    /// A name that is counted and may yet turn out not to have been made.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PendingLink {
        /// Which link.
        pub tx: TxId,
        /// Where the name is made: this shard knows what became of it.
        pub shard: ShardId,
    }
}

wire_struct! {
    /// All of it.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Parts {
        /// A symlink's target; empty for other kinds.
        pub target: Vec<u8>,
        /// Truncations not yet acknowledged everywhere, oldest first, of strictly growing
        /// length: an older one that a newer one covers is dropped. At most
        /// [`crate::op::TRUNCATIONS_PENDING_MAX`].
        pub truncations: Vec<PendingTruncation>,
        /// Names that are counted and not yet known to be made.
        pub links: Vec<PendingLink>,
        /// Names that went; the requests that removed them have no answer yet: so that the same name is not taken off
        /// the count twice.
        pub dropped: Vec<TxId>,
        /// Extended attributes, by their names.
        pub xattrs: Vec<Xattr>,
        /// When the modification time of a directory was last set: changes of its entries before that, which the servers
        /// of the entries remember, do not count any more. 0 if it never was.
        pub mtime_set: Time,
        /// Where in the volume's backing it came from.
        pub backing: Option<Backing>,
    }
}

static NOTHING: Parts = Parts {
    target: Vec::new(),
    truncations: Vec::new(),
    links: Vec::new(),
    dropped: Vec::new(),
    xattrs: Vec::new(),
    mtime_set: Time(0),
    backing: None,
};

/// What few inodes have; nearly always nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rare(Option<Box<Parts>>);

impl Rare {
    /// A symlink's: its target.
    pub(crate) fn of_target(target: Vec<u8>) -> Rare {
        let mut rare = Rare::default();
        if !target.is_empty() {
            rare.change(|parts| parts.target = target);
        }
        rare
    }

    /// The parts there are.
    pub fn get(&self) -> &Parts {
        self.0.as_deref().unwrap_or(&NOTHING)
    }

    /// Changes the parts there are.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut Parts) -> R) -> R {
        let mut parts = self.0.take().unwrap_or_default();
        let result = change(&mut parts);
        self.0 = (*parts != NOTHING).then_some(parts);
        result
    }
}

impl Wire for Rare {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.is_some().put(out);
        if let Some(parts) = &self.0 {
            parts.put(out);
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let parts = <Option<Parts> as Wire>::take(input)?;
        Ok(Rare(parts.filter(|parts| *parts != NOTHING).map(Box::new)))
    }
}
