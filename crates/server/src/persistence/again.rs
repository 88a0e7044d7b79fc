//! A volume that is started again while clients go on: they are served when all servers are done
//! with the operations that the end of the servers interrupted, and not before: those must not meet new changes.

use super::opening::starting;
use super::state::persistence::Persistence;
use crate::state::Server;
use crate::wait::{Attempt, Stop};
use aze_proto::{Code, Failure, MapEpoch, Reply, Request, ServerIndex};
use futures_util::future::try_join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Server {
    /// Waits until all servers are done, and begins to serve clients.
    pub(crate) async fn open_together(self: &Arc<Self>) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence else { return Ok(()) };
        let is_first = self.is_first();
        let left_out = self.left_out();
        let is_other = |server: &ServerIndex| *server != self.slot() && !left_out.contains(server);
        let others: Vec<ServerIndex> = self.map().members().filter(is_other).collect();
        let all_done = || try_join_all(others.iter().map(|other| self.ask_until_ready(*other, Request::IsDone)));
        if is_first && !persistence.is_new {
            if !left_out.is_empty() {
                all_done().await?;
            }
            // All servers have begun this start: counting links has waited for them, if all are there.
            self.complete_start(persistence).await?;
        }
        persistence.is_done.store(true, Ordering::SeqCst);
        if !persistence.is_new {
            all_done().await?;
            if !is_first {
                self.complete_start(persistence).await?;
            }
        }
        if left_out.is_empty() {
            self.transactions.all_have_asked();
        }
        persistence.is_open.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Another server asks whether this one is done.
    pub(crate) fn is_done(&self) -> Attempt<Reply> {
        match &self.persistence {
            Some(Persistence { is_done, .. }) if !is_done.load(Ordering::SeqCst) => {
                Err(Stop::Fail(Failure::new(Code::Busy, format!("{} is still starting", self.who()))))
            }
            _ => Ok(Reply::Done),
        }
    }

    /// What a client is told that asks before the volume is open: that it shall ask again.
    pub(crate) fn not_open(&self, request: &Request) -> Option<Failure> {
        let is_open = self.persistence.as_ref().is_none_or(|persistence| persistence.is_open.load(Ordering::Relaxed));
        let is_harmless = match request {
            Request::Status | Request::Activity | Request::Shutdown => true,
            Request::GetMap => self.map_epoch_now() > MapEpoch(0),
            _ => false,
        };
        (!is_open && !is_harmless).then(|| starting(self.slot()))
    }
}
