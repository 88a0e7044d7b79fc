//! Requests to the server that keeps the map: when that one is gone, the group that decides about the map is told so, and the next keeper
//! is asked.

use crate::client::Core;
use crate::route::{Routes, is_replanned};
use aze_proto::{Code, Failure, Identity, Incarnation, MapEpoch, Reply, Request, ServerIndex};
use aze_rpc::Target;
use futures_util::future::{Either, select};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a question to the keeper may take before the group is told that it has not answered.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(1);

/// Pause before another server is asked whether there is a new keeper.
const KEEPER_PAUSE: Duration = Duration::from_millis(200);

impl Core {
    /// Asks the keeper, and the next one if that one is gone.
    pub(crate) async fn ask_keeper(&self, who: &Identity, request: &Request) -> Result<Reply, Failure> {
        let until = self.patience();
        loop {
            let routes = self.routes.read().clone();
            let keeper = routes.map.keeper;
            let asked = pin!(self.ask_planned(who, &routes.map, keeper, request));
            let failure = match select(asked, pin!(self.until_other_keeper(&routes))).await {
                Either::Left((Err(failure), _)) if is_replanned(&failure) => failure,
                Either::Left((Err(failure), _)) if self.routes.read().map.keeper != keeper => failure,
                Either::Left((answer, _)) => return answer,
                Either::Right(((), _)) => {
                    Failure::new(Code::Unreachable, format!("server {keeper} kept the map, and is gone"))
                }
            };
            until.check(self, &failure, request)?;
        }
    }

    /// Resolves when there is another keeper. Meanwhile tells the group, again and again, that the one of this map does not answer.
    async fn until_other_keeper(&self, known: &Arc<Routes>) {
        let keeper = known.map.keeper;
        loop {
            self.io.sleep(SILENCE_TIME_MAX).await;
            let Some(info) = known.map.server(keeper) else { continue };
            self.tell_keeper_gone(known, (keeper, info.began, info.incarnation), false).await;
            self.io.sleep(KEEPER_PAUSE).await;
            self.look_for_other_keeper(known).await;
            if self.routes.read().map.keeper != keeper {
                return;
            }
        }
    }

    /// Tells the members of the group that the process of the keeper has ended, until there is another one.
    pub(crate) async fn tell_end_of_keeper(&self, keeper: (ServerIndex, MapEpoch, Incarnation)) {
        let until = self.patience();
        loop {
            let known = self.routes.read().clone();
            if known.map.keeper != keeper.0 || known.map.group.members.len() <= 1 || until.is_over(self) {
                return;
            }
            self.tell_keeper_gone(&known, keeper, true).await;
            self.io.sleep(SILENCE_TIME_MAX).await;
            self.look_for_other_keeper(&known).await;
        }
    }

    /// Fetches the map from a server that may know another keeper.
    async fn look_for_other_keeper(&self, known: &Arc<Routes>) {
        let keeper = known.map.keeper;
        for other in known.targets().filter(|target| target.index != keeper && !known.map.is_gone(target.index)) {
            if self.refresh_map(known, other).await.is_ok() {
                return;
            }
        }
    }

    /// Tells the members of the group that the keeper is gone: its process `has_ended`, or it does not answer.
    pub(crate) async fn tell_keeper_gone(
        &self,
        known: &Arc<Routes>,
        keeper: (ServerIndex, MapEpoch, Incarnation),
        has_ended: bool,
    ) {
        let (keeper, began, incarnation) = keeper;
        let word = Request::KeeperGone { keeper, began, incarnation, has_ended };
        let is_member = |target: &&Target| target.index != keeper && known.map.group.member(target.index).is_some();
        let told = known.targets().filter(is_member).map(|member| async {
            // Another one may answer.
            drop(self.io.timeout(SILENCE_TIME_MAX, self.ask_server(&Identity::default(), member.index, &word)).await);
        });
        futures_util::future::join_all(told).await;
    }
}
