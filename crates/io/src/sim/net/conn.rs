//! An end of a simulated connection as its users hold it.

use std::ops::Range;
use std::sync::Arc;

use super::super::state::{Core, Life};
use super::Phase;
use crate::claims::Claims;
use crate::published::{self, SharedWords};
use crate::slab;
use crate::{Connection, FrameLimits, NetError, Peer, Process};

/// What users hold of an end.
pub(super) struct SimConnection {
    pub(super) core: Arc<Core>,
    pub(super) id: u64,
    pub(super) peer: Peer,
    /// For the end that dialled: the other one.
    pub(super) listener: Option<Life>,
}

/// The life of a node, as if the node that asks were on the same machine.
struct Watched {
    core: Arc<Core>,
    life: Life,
}

impl Process for Watched {
    fn has_ended(&self) -> bool {
        let state = self.core.state.lock();
        // With its machine goes everybody who could see it.
        !state.is_alive(self.life) && state.nodes[self.life.node as usize].host_up
    }
}

impl Connection for SimConnection {
    fn send(&self, head: &[u8], payload: &[&[u8]]) -> Result<(), NetError> {
        self.core.state.lock().send(self.id, head, payload, &[])
    }

    fn send_held(
        &self,
        head: &[u8],
        payload: &[&[u8]],
        held: &[(Arc<slab::Frame>, Range<usize>)],
    ) -> Result<(), NetError> {
        self.core.state.lock().send(self.id, head, payload, held)
    }

    fn close(&self) {
        let why = NetError::Closed("the connection was closed on this side".into());
        self.core.state.lock().close(self.id, why, "closed by the peer");
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn set_limits(&self, limits: FrameLimits) {
        if let Some(end) = self.core.state.lock().ends.get_mut(&self.id) {
            end.limits = limits;
        }
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn offer(&self, published: &Arc<published::Writer>) {
        if let Some(end) = self.core.state.lock().ends.get_mut(&self.id) {
            end.offer = Some(published.memory().clone());
            end.claims = Some(Claims::own());
        }
    }

    fn offered(&self) -> Option<SharedWords> {
        self.core.state.lock().ends.get(&(self.id ^ 1))?.offer.clone()
    }

    fn claims(&self) -> Option<Claims> {
        let state = self.core.state.lock();
        let of = |id: u64| state.ends.get(&id).and_then(|end| end.claims.clone());
        of(self.id).or_else(|| of(self.id ^ 1))
    }

    fn is_held(&self) -> bool {
        let state = self.core.state.lock();
        let is_open = |id: u64| state.ends.get(&id).is_some_and(|end| end.phase == Phase::Open);
        is_open(self.id) && is_open(self.id ^ 1)
    }

    fn process(&self) -> Option<Arc<dyn Process>> {
        Some(Arc::new(Watched { core: self.core.clone(), life: self.listener? }))
    }
}
