//! Closes, sent many at a time.
//!
//! No program waits for a close: it only lets the home delete a file that has no name any more. So
//! closes are collected for a moment, for each server by itself: a request to many servers with a few closes each
//! would wake all of them. Those that get lost with a server or this process end with the session.

use crate::client::Core;
use crate::contact::Through;
use crate::route::{Patience, is_replanned};
use aze_io::sync::Mutex;
use aze_proto::message::Handle;
use aze_proto::{Identity, Ino, Request, ServerIndex, SessionId};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Closes that are sent to one server at once.
const BATCH_MAX: usize = 64;
/// How long a close waits for others.
const BATCH_TIME_MAX: Duration = Duration::from_millis(50);
/// Pause before a client looks again whether a slot of a server that has ended is somewhere else.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Closes {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    by_server: BTreeMap<ServerIndex, Vec<Handle>>,
    /// A task will send the queue.
    timed: bool,
    /// Those that a server did not answer.
    late: Vec<Late>,
    /// A task looks where they belong.
    looks: bool,
}

/// Closes that a server did not answer.
struct Late {
    server: ServerIndex,
    /// Its process.
    process: SessionId,
    until: Patience,
    handles: Vec<Handle>,
}

/// An open that the home has registered, or a server of this node. It is closed soon after it was dropped.
pub(crate) struct Registered {
    core: Weak<Core>,
    by: Mutex<By>,
}

struct By {
    handle: Handle,
    /// The home does not know of it, but the client of a server of this node.
    through: Option<Through>,
}

impl Registered {
    /// Of this client.
    pub(crate) fn new(core: &Core, handle: Handle) -> Arc<Registered> {
        Arc::new(Registered { core: core.me.clone(), by: Mutex::new(By { handle, through: None }) })
    }

    /// Through a server of this node.
    pub(crate) fn through(core: &Core, handle: Handle, through: Through) -> Arc<Registered> {
        Arc::new(Registered { core: core.me.clone(), by: Mutex::new(By { handle, through: Some(through) }) })
    }

    /// Its number.
    pub(crate) fn handle(&self) -> Handle {
        self.by.lock().handle
    }

    /// Which file it is of.
    pub(crate) fn ino(&self) -> Ino {
        self.handle().ino
    }

    /// The server that knows of it, if that is not the home.
    pub(crate) fn contact(&self) -> Option<Through> {
        self.by.lock().through.clone()
    }

    /// The home knows of it now under this number.
    pub(crate) fn is_at_home(&self, handle: u64) {
        let Some(core) = self.core.upgrade() else { return };
        let mut by = self.by.lock();
        let earlier = std::mem::replace(&mut by.handle.handle, handle);
        let through = by.through.take();
        let ino = by.handle.ino;
        drop(by);
        match through {
            Some(through) => core.close_through(through.contact.index, earlier),
            // Another one was faster.
            None => core.close_later(Handle { ino, handle: earlier }),
        }
    }
}

/// Where an open is registered.
#[derive(Clone, Copy)]
pub(crate) enum At {
    /// The home of this file.
    Home(Ino),
    /// A server of this node.
    Contact(ServerIndex),
}

/// An open that is not a file yet: if its caller gives up, it is closed.
pub(crate) struct Unopened<'a> {
    core: &'a Arc<Core>,
    at: At,
    handle: Option<u64>,
}

impl Unopened<'_> {
    /// Made before the request is sent.
    pub(crate) fn new(core: &Arc<Core>, at: At, handle: u64) -> Unopened<'_> {
        Unopened { core, at, handle: Some(handle) }
    }

    /// It has become a file, or was never registered.
    pub(crate) fn forget(mut self) {
        self.handle = None;
    }
}

impl Drop for Unopened<'_> {
    fn drop(&mut self) {
        match (self.handle, self.at) {
            (Some(handle), At::Home(ino)) => self.core.close_later(Handle { ino, handle }),
            (Some(handle), At::Contact(contact)) => self.core.close_through(contact, handle),
            (None, _) => {}
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Without the client its session has ended, too.
        let Some(core) = self.core.upgrade() else { return };
        let By { handle, through } = self.by.get_mut();
        match through {
            Some(through) => core.close_through(through.contact.index, handle.handle),
            None => core.close_later(*handle),
        }
    }
}

impl Core {
    /// Has an open ended soon.
    pub(crate) fn close_later(self: &Arc<Self>, handle: Handle) {
        let server = self.routes.read().map.home_of(handle.ino);
        // Where a server is missing no table says that the file is open.
        let Some(server) = server else { return };
        let mut queue = self.closes.queue.lock();
        let handles = queue.by_server.entry(server).or_default();
        handles.push(handle);
        if handles.len() >= BATCH_MAX {
            let batch = std::mem::replace(handles, Vec::with_capacity(BATCH_MAX));
            drop(queue);
            self.spawn(|core| async move { core.send_closes(server, batch).await });
        } else if !std::mem::replace(&mut queue.timed, true) {
            drop(queue);
            self.spawn(|core| async move {
                core.io.sleep(BATCH_TIME_MAX).await;
                let all = {
                    let mut queue = core.closes.queue.lock();
                    queue.timed = false;
                    std::mem::take(&mut queue.by_server)
                };
                let some = all.into_iter().filter(|(_, handles)| !handles.is_empty());
                join_all(some.map(|(server, handles)| core.send_closes(server, handles))).await;
            });
        }
    }

    async fn send_closes(self: &Arc<Self>, server: ServerIndex, handles: Vec<Handle>) {
        let nobody = Identity::default();
        let until = self.patience();
        // In nearly every case that one server is the home of all.
        let mut open = vec![(server, handles)];
        while let Some((server, handles)) = open.pop() {
            let map = self.routes.read().map.clone();
            if handles.iter().any(|handle| map.home_of(handle.ino) != Some(server)) {
                let mut by_home: BTreeMap<ServerIndex, Vec<Handle>> = BTreeMap::new();
                for handle in handles {
                    map.home_of(handle.ino).into_iter().for_each(|home| by_home.entry(home).or_default().push(handle));
                }
                open.extend(by_home);
                continue;
            }
            let request = Request::Close { handles: handles.clone() };
            // What does not arrive ends with the session.
            let Err(failure) = self.ask_planned(&nobody, &map, server, &request).await else { continue };
            if is_replanned(&failure) && !until.is_over(self) {
                open.push((server, handles));
            } else if let Some(info) = map.server(server).filter(|_| failure.is_silence()) {
                self.close_where_it_went(Late { server, process: info.session, until: self.patience(), handles });
            }
        }
    }

    /// A server may have given a slot to another one, with opens in it, before it ended. Only the others say so, and that may be decided
    /// after its end.
    fn close_where_it_went(self: &Arc<Self>, late: Late) {
        let mut queue = self.closes.queue.lock();
        queue.late.push(late);
        if std::mem::replace(&mut queue.looks, true) {
            return;
        }
        drop(queue);
        self.spawn(|core| async move {
            while core.look_for_late().await {
                core.io.sleep(LOOK_PAUSE).await;
            }
        });
    }

    /// Looks once where late closes belong; gives whether some are left.
    async fn look_for_late(self: &Arc<Self>) -> bool {
        // If no server answers, the next look is soon.
        let _ = self.look_for_map().await;
        let map = self.routes.read().map.clone();
        let mut found = Vec::new();
        let mut queue = self.closes.queue.lock();
        for mut late in std::mem::take(&mut queue.late) {
            found.extend(late.handles.extract_if(.., |handle| map.home_of(handle.ino) != Some(late.server)));
            // A later process of that server knows nothing of them.
            let runs = map.server(late.server).is_some_and(|info| info.session == late.process);
            if !late.handles.is_empty() && runs && !late.until.is_over(self) {
                queue.late.push(late);
            }
        }
        let is_some_left = !queue.late.is_empty();
        queue.looks = is_some_left;
        drop(queue);
        found.into_iter().for_each(|handle| self.close_later(handle));
        is_some_left
    }
}
