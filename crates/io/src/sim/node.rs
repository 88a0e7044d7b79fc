//! The world as seen by one incarnation of one node.

use std::sync::Arc;
use std::task::Waker;

use super::state::{Core, Event, Life};
use super::{disk, net};
use crate::disk::{Dir, DiskResult};
use crate::once::Once;
use crate::published::SharedWords;
use crate::{Acceptor, Addr, Boxed, Connection, Handler, Listener, NetError, Task, TimerId, World};

/// One incarnation of a simulated node; made by [`super::Sim::node`].
///
/// Once the node was killed, tasks given to it are dropped, its timers never fire, connects end
/// in [`NetError::Unreachable`] and listens in [`NetError::Listen`].
pub struct Node {
    core: Arc<Core>,
    life: Life,
}

impl Node {
    pub(super) fn new(core: Arc<Core>, life: Life) -> Node {
        Node { core, life }
    }
}

impl World for Node {
    fn mono_ns(&self) -> u64 {
        self.core.state.lock().now_ns
    }

    fn wall_ns(&self) -> u64 {
        self.core.state.lock().wall_ns(self.life.node)
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.core.state.lock().nodes[self.life.node as usize].random.fill(bytes);
    }

    fn spawn(&self, task: Task) {
        self.core.spawn(self.life, task);
    }

    fn wake_at(&self, deadline_ns: u64, waker: Waker) -> TimerId {
        let mut state = self.core.state.lock();
        if state.is_alive(self.life) {
            state.schedule(deadline_ns, Event::Timer { life: self.life, waker })
        } else {
            // The waker is an argument and so goes after the lock.
            TimerId { deadline_ns, serial: 0 }
        }
    }

    fn cancel_timer(&self, timer: TimerId) {
        let _cancelled = {
            let mut state = self.core.state.lock();
            match state.events.get(&timer).map(Box::as_ref) {
                Some(Event::Timer { life, .. }) if *life == self.life => state.events.remove(&timer),
                _ => None,
            }
        };
    }

    fn connect<'a>(
        &'a self,
        addr: &'a Addr,
        handler: Arc<dyn Handler>,
    ) -> Boxed<'a, Result<Arc<dyn Connection>, NetError>> {
        Box::pin(net::connect(&self.core, self.life, addr, handler))
    }

    fn listen(&self, addr: &Addr, acceptor: Arc<dyn Acceptor>) -> Result<Box<dyn Listener>, NetError> {
        net::listen(&self.core, self.life, addr, acceptor)
    }

    fn share(&self, words: usize) -> Option<SharedWords> {
        Some(SharedWords::own(words))
    }

    fn once(&self) -> Option<&Once> {
        Some(&self.core.once)
    }

    fn open_dir<'a>(&'a self, path: &'a str) -> Boxed<'a, DiskResult<Arc<dyn Dir>>> {
        Box::pin(disk::open_dir(&self.core, self.life, path))
    }
}
