//! How a server notes that a start of the volume begins, is complete, and has ended well (`state/starts.rs`).

use super::state::persistence::{Persistence, disk_failure};
use super::state::starts::compare;
use crate::state::Server;
use aze_proto::{Code, Failure};
use aze_store::disk::starts::Starts;
use std::sync::atomic::Ordering;

impl Server {
    /// Begins a start of the volume. Server 0 counts it; another server passes the number that server 0 counted, and the
    /// number of the last start that server 0 knows to be complete.
    pub(super) async fn begin_start(
        &self,
        persistence: &Persistence,
        counted: Option<(u64, u64)>,
    ) -> Result<(), Failure> {
        let own = persistence.starts.now();
        let begun = match counted {
            None => own.begun + 1,
            Some((start, complete)) => {
                if !persistence.is_new {
                    compare(&own, start, complete).map_err(|why| {
                        Failure::new(Code::Lost, format!("storage {}: {why}", persistence.storage.place()))
                    })?;
                }
                start
            }
        };
        self.write_starts(persistence, |own| Starts { begun, ended: None, ..own }).await?;
        persistence.is_counted.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Notes that every server has begun this start.
    pub(super) async fn complete_start(&self, persistence: &Persistence) -> Result<(), Failure> {
        self.write_starts(persistence, |own| Starts { complete: own.begun, ..own }).await
    }

    /// Notes that this server has closed its journal, whose last record ends at `ended`.
    pub(super) async fn note_clean_end(&self, persistence: &Persistence, ended: u64) -> Result<(), Failure> {
        // A server that ends during its start has acknowledged nothing.
        if !persistence.is_open.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.write_starts(persistence, |own| Starts { ended: Some(ended), ..own }).await
    }

    async fn write_starts(
        &self,
        persistence: &Persistence,
        change: impl FnOnce(Starts) -> Starts,
    ) -> Result<(), Failure> {
        let written = persistence.starts.write(&*persistence.dir, change).await;
        written.map_err(|error| disk_failure(&persistence.path, &error))
    }
}
