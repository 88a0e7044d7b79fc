//! This server's member of the keeper group, and who waits for another keeper.

use aze_io::sync::Mutex;
use aze_keeper::{Driver, MemberId, Outside};
use aze_proto::place::GroupMember;
use aze_proto::{MapEpoch, ServerIndex, SessionId, ShardMap};
use futures_channel::oneshot;
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncGuard};
use std::sync::Arc;

pub(crate) struct Grouped {
    member: Mutex<Option<Member>>,
    /// One change of the member at a time, where it waits for the disk.
    changing: AsyncMutex<()>,
    /// The newest map that this server has heard of while it comes back.
    heard: Mutex<Option<Arc<ShardMap>>>,
    /// Who waits for another keeper.
    asking: Mutex<Vec<oneshot::Sender<()>>>,
    /// Whether this server finds out whether the keeper is gone.
    looking: Mutex<bool>,
}

/// A member of the group that was formed by a map.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) formed: MapEpoch,
    pub(crate) driver: Arc<Driver>,
    /// The driver holds it weakly.
    pub(crate) _outside: Arc<dyn Outside>,
}

/// How a member is named in its group.
pub(crate) fn id_of(session: SessionId) -> MemberId {
    MemberId(session.0.max(1))
}

/// The server of a member.
pub(crate) fn server_of(members: &[GroupMember], id: MemberId) -> Option<ServerIndex> {
    members.iter().find(|member| id_of(member.session) == id).map(|member| member.server)
}

impl Grouped {
    pub(crate) fn new() -> Grouped {
        let (changing, heard) = (AsyncMutex::new(()), Mutex::new(None));
        Grouped { member: Mutex::new(None), changing, heard, asking: Mutex::default(), looking: Mutex::new(false) }
    }

    /// The member here, if this server is one.
    pub(crate) fn member(&self) -> Option<Member> {
        self.member.lock().clone()
    }

    /// There is a newer group; what this server is in it.
    pub(crate) fn take_part(&self, formed: MapEpoch, member: impl FnOnce() -> Option<Member>) {
        let mut known = self.member.lock();
        if known.as_ref().is_none_or(|known| known.formed < formed) {
            *known = member();
        }
    }

    /// The turn to change the member.
    pub(crate) async fn changing(&self) -> AsyncGuard<'_, ()> {
        self.changing.lock().await
    }

    /// This server is that member from now on, or none.
    pub(crate) fn is_now(&self, member: Option<Member>) {
        *self.member.lock() = member;
    }

    /// A server that comes back has heard of a map.
    pub(crate) fn hear(&self, map: Arc<ShardMap>) {
        let mut heard = self.heard.lock();
        if heard.as_ref().is_none_or(|known| known.epoch < map.epoch) {
            *heard = Some(map);
        }
    }

    /// The newest map that it has heard of.
    pub(crate) fn heard(&self) -> Option<Arc<ShardMap>> {
        self.heard.lock().clone()
    }

    /// Resolves when there is another keeper, or another life of it.
    pub(crate) fn other_keeper(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut asking = self.asking.lock();
        asking.retain(|waiter| !waiter.is_canceled());
        asking.push(sender);
        receiver
    }

    pub(crate) fn keeper_has_changed(&self) {
        for waiter in std::mem::take(&mut *self.asking.lock()) {
            // One that has given up does not receive.
            let _ = waiter.send(());
        }
    }

    /// Begins to find out whether the keeper is gone, unless this server is about to already.
    pub(crate) fn looks(self: &Arc<Self>) -> Option<Looking> {
        let mut looking = self.looking.lock();
        (!std::mem::replace(&mut *looking, true)).then(|| Looking(self.clone()))
    }
}

/// This server finds out whether the keeper is gone, until this is dropped.
pub(crate) struct Looking(Arc<Grouped>);

impl Drop for Looking {
    fn drop(&mut self) {
        *self.0.looking.lock() = false;
    }
}
