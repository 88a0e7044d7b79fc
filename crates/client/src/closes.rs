//! Closes, sent many at a time.
//!
//! Nobody waits for a close: it only lets the home delete a file that has no name any more. So
//! closes are collected for a moment. Those that get lost with a server or this process end with
//! the session.

use crate::client::Core;
use aze_proto::message::Handle;
use aze_proto::{Identity, Request, ServerIndex};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Closes that are sent at once.
const BATCH_MAX: usize = 64;
/// How long a close waits for others.
const BATCH_TIME_MAX: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Closes {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    handles: Vec<Handle>,
    /// A task will send what is queued.
    timed: bool,
}

impl Core {
    /// Has an open ended soon.
    pub(crate) fn close_later(self: &Arc<Self>, handle: Handle) {
        let mut queue = self.closes.queue.lock();
        queue.handles.push(handle);
        if queue.handles.len() >= BATCH_MAX {
            let batch = std::mem::take(&mut queue.handles);
            drop(queue);
            self.spawn(|core| async move { core.send_closes(batch).await });
        } else if !std::mem::replace(&mut queue.timed, true) {
            drop(queue);
            self.spawn(|core| async move {
                core.io.sleep(BATCH_TIME_MAX).await;
                let batch = {
                    let mut queue = core.closes.queue.lock();
                    queue.timed = false;
                    std::mem::take(&mut queue.handles)
                };
                core.send_closes(batch).await;
            });
        }
    }

    async fn send_closes(&self, batch: Vec<Handle>) {
        let map = self.routes.read().map.clone();
        let mut by_server: BTreeMap<ServerIndex, Vec<Handle>> = BTreeMap::new();
        for handle in batch {
            if let Some(server) = map.server_of(handle.ino.home()) {
                by_server.entry(server).or_default().push(handle);
            }
        }
        let nobody = Identity::default();
        let sends = by_server.into_iter().map(|(server, handles)| {
            let nobody = &nobody;
            async move { self.ask_server(nobody, server, &Request::Close { handles }).await }
        });
        // What does not arrive ends with the session.
        let _ = join_all(sends).await;
    }
}
