//! Who waits for the journal.

use super::storage_failed;
use crate::dispatch::Work;
use crate::sabotage::Sabotage;
use crate::state::Server;
use aze_proto::limits::LEASE_MS;
use aze_proto::{Code, Failure, Reply, Request, Spread};
use aze_rpc::ReplyContext;
use aze_store::disk::journal::Stage;

/// How far the journal must be before the answer goes out. Another server builds upon these: a
/// directory in which it makes entries, an entry that makes it remove another, a count, a cut.
fn stage_of_answer(request: &Request) -> Stage {
    match request {
        Request::StubGet { .. }
        | Request::StubClose { .. }
        | Request::Commit { .. }
        | Request::LinkBegin { .. }
        | Request::SetParent { .. }
        | Request::CloseDir { .. }
        | Request::Cut { .. }
        | Request::TxDone { .. }
        | Request::Report { spread: Spread { wide: true, .. }, .. }
        | Request::Sync => Stage::Durable,
        _ => Stage::Written,
    }
}

/// Whether what this server has done must be durable before it asks another server for that: what
/// the other does then must never outlast its cause.
fn rests_on_what_was_done(request: &Request) -> bool {
    matches!(
        request,
        Request::Prepare { .. }
            | Request::PrepareExchange { .. }
            | Request::TxSettle { .. }
            | Request::Commit { .. }
            | Request::LinkDrop { .. }
            | Request::LinkEnd { .. }
            | Request::CloseDir { .. }
            | Request::SetParent { .. }
            | Request::Cut { .. }
            | Request::DeleteData { .. }
    )
}

/// What a server answers whose storage has failed.
fn is_harmless(request: &Request) -> bool {
    matches!(request, Request::Status | Request::Activity | Request::GetMap | Request::Shutdown | Request::EndSession)
}

impl Server {
    fn stage_of_answer(&self, request: &Request) -> Stage {
        let skipped = match request {
            Request::Sync => Sabotage::SkipSync,
            _ => Sabotage::SkipDurableAnswers,
        };
        if self.config.switches.is(skipped) { Stage::Written } else { stage_of_answer(request) }
    }

    /// Sends an answer as soon as the records that it rests on are safe enough.
    /// Before that it waits until no client holds a lease of what the request has changed.
    pub(crate) fn respond(&self, work: Work, result: Result<Reply, Failure>) {
        if work.responder.is_some()
            && self.waits_for_recalls(&work.request)
            && let Some(server) = self.me.upgrade()
        {
            return self.io.spawn(async move {
                server.recalled(work.header.shard).await;
                server.respond_now(work, result);
            });
        }
        self.respond_now(work, result);
    }

    fn respond_now(&self, work: Work, result: Result<Reply, Failure>) {
        let Work { responder, request, leased, .. } = work;
        let Some(responder) = responder else { return };
        self.look_at_disk_now_and_then();
        let lease_ms = if leased { LEASE_MS } else { 0 };
        let waits = self.lasting.as_ref().and_then(|lasting| {
            let (journal, stage) = (&lasting.journal, self.stage_of_answer(&request));
            let position = journal.end();
            // Status and shutdown are answered all the same.
            let is_told = is_harmless(&request) && journal.failure().is_some();
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
            if let Some(lasting) = &server.lasting {
                server.checkpoint_now_and_then(lasting);
            }
            responder.send(ReplyContext { lease_ms, ..server.reply_context() }, result, &[]);
        });
    }

    /// Before another server is asked: waits until this server's own part of it cannot be lost.
    pub(crate) async fn settle_before(&self, request: &Request) -> Result<(), Failure> {
        match &self.lasting {
            Some(lasting)
                if rests_on_what_was_done(request) && !self.config.switches.is(Sabotage::SkipDurableBefore) =>
            {
                let settled = lasting.journal.reach(lasting.journal.end(), Stage::Durable).await;
                settled.map_err(|why| storage_failed(&self.who(), &why))
            }
            _ => Ok(()),
        }
    }

    /// Why nothing can be promised any more, if that is so.
    pub(crate) fn storage_failure(&self, request: &Request) -> Option<Failure> {
        let why = self.lasting.as_ref()?.journal.failure()?;
        (!is_harmless(request)).then(|| storage_failed(&self.who(), &why))
    }
}
