//! Who waits for the journal.

use super::state::persistence::storage_failed;
use crate::sabotage::Sabotage;
use crate::state::Server;
use crate::work::Work;
use aze_proto::limits::LEASE_MS;
use aze_proto::rules::{Answer, First};
use aze_proto::{Code, Failure, Reply, Request};
use aze_rpc::ReplyContext;
use aze_store::disk::journal::Stage;

impl Server {
    fn stage_of_answer(&self, request: &Request) -> Stage {
        let skipped = match request {
            Request::Sync => Sabotage::SkipSync,
            _ => Sabotage::SkipDurableAnswers,
        };
        match request.answer_waits_for() {
            Answer::Durable if !self.config.switches.is(skipped) => Stage::Durable,
            _ => Stage::Written,
        }
    }

    /// Sends an answer as soon as the records that it rests on are safe enough.
    /// Before that it waits until no client holds a lease of what the request has changed, and no home counts on a part of a directory that
    /// the request has changed.
    pub(crate) fn respond(&self, request: Request, work: Work, result: Result<Reply, Failure>) {
        if work.responder.is_some()
            && let (recalls, parts) = (self.waits_for_recalls(&request), self.untold_parts(&request))
            && (recalls || parts.is_some())
            && let Some(server) = self.me.upgrade()
        {
            return self.io.spawn(async move {
                if recalls {
                    server.recalled(work.header.shard).await;
                }
                if let Some(dirs) = parts {
                    server.parts_told(dirs, work.deadline_ns).await;
                }
                server.respond_now(request, work, result);
            });
        }
        self.respond_now(request, work, result);
    }

    fn respond_now(&self, request: Request, work: Work, result: Result<Reply, Failure>) {
        let Work { responder, leased, .. } = work;
        let Some(responder) = responder else { return };
        debug_assert!(
            result.as_ref().is_ok_and(|reply| request.may_get(reply)) || result.is_err(),
            "{request:?}: {result:?}"
        );
        self.look_at_disk_now_and_then();
        let lease_ms = if leased { LEASE_MS } else { 0 };
        let waits = self.persistence.as_ref().and_then(|persistence| {
            let (journal, stage) = (&persistence.journal, self.stage_of_answer(&request));
            let position = journal.end();
            // Status and shutdown are answered all the same.
            let is_told = request.needs_no_storage() && journal.failure().is_some();
            let waits = !is_told && !self.config.switches.is(Sabotage::SkipJournalWait);
            (waits && !journal.has_reached(position, stage)).then(|| (journal.clone(), position, stage))
        });
        let (Some((journal, position, stage)), Some(server)) = (waits, self.me.upgrade()) else {
            return responder.send(ReplyContext { lease_ms, ..self.reply_context() }, result, &[]);
        };
        journal.when(position, stage, move |reached| {
            let result = match reached {
                Ok(()) => result,
                Err(why) => Err(Failure::new(Code::UnknownOutcome, storage_failed(&server.who(), &why).detail)),
            };
            if let Some(persistence) = &server.persistence {
                server.checkpoint_now_and_then(persistence);
            }
            responder.send(ReplyContext { lease_ms, ..server.reply_context() }, result, &[]);
        });
    }

    /// Before another server is asked: waits until this server's own part of it cannot be lost.
    pub(crate) async fn sync_before(&self, request: &Request) -> Result<(), Failure> {
        let stage = match request.rules().first {
            First::AtOnce => return Ok(()),
            First::Written => Stage::Written,
            First::Synced => Stage::Durable,
        };
        match &self.persistence {
            Some(persistence) if !self.config.switches.is(Sabotage::SkipDurableBefore) => {
                let reached = persistence.journal.reach(persistence.journal.end(), stage).await;
                reached.map_err(|why| storage_failed(&self.who(), &why))
            }
            _ => Ok(()),
        }
    }

    /// Why nothing can be promised any more, if that is so.
    pub(crate) fn failure(&self) -> Option<Failure> {
        if let Some(why) = self.shards.poisoned.why() {
            let advice = "this is a defect of Azekura; the server serves nothing more, so that it spreads no further: \
                          start the volume again (aze restart) or end it, and report it";
            return Some(Failure::new(Code::Lost, format!("{}: {why}: {advice}", self.who())));
        }
        let why = self.persistence.as_ref()?.journal.failure()?;
        Some(storage_failed(&self.who(), &why))
    }

    /// The same, for a request that cannot be answered then.
    pub(crate) fn failure_for(&self, request: &Request) -> Option<Failure> {
        if request.needs_no_storage() { None } else { self.failure() }
    }
}
