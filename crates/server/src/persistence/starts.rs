//! How a server notes that a start of the volume begins, is complete, and has ended well (`state/starts.rs`).

use super::state::lasting::{Lasting, disk_failure};
use super::state::starts::compare;
use crate::state::Server;
use aze_proto::{Code, Failure};
use aze_store::disk::starts::Starts;
use std::sync::atomic::Ordering;

impl Server {
    /// Begins a start of the volume. Server 0 counts it; another server passes the number that server 0 counted, and the
    /// number of the last start that server 0 knows to be complete.
    pub(super) async fn begin_start(&self, lasting: &Lasting, counted: Option<(u64, u64)>) -> Result<(), Failure> {
        let own = lasting.starts.now();
        let begun = match counted {
            None => own.begun + 1,
            Some((start, complete)) => {
                if !lasting.is_new {
                    compare(&own, start, complete).map_err(|why| {
                        Failure::new(Code::Lost, format!("storage {}: {why}", lasting.storage.place()))
                    })?;
                }
                start
            }
        };
        self.write_starts(lasting, |own| Starts { begun, ended: None, ..own }).await?;
        lasting.is_counted.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Notes that every server has begun this start.
    pub(super) async fn complete_start(&self, lasting: &Lasting) -> Result<(), Failure> {
        self.write_starts(lasting, |own| Starts { complete: own.begun, ..own }).await
    }

    /// Notes that this server has closed its journal, whose last record ends at `ended`.
    pub(super) async fn note_clean_end(&self, lasting: &Lasting, ended: u64) -> Result<(), Failure> {
        // A server that ends during its start has acknowledged nothing.
        if !lasting.is_open.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.write_starts(lasting, |own| Starts { ended: Some(ended), ..own }).await
    }

    async fn write_starts(&self, lasting: &Lasting, change: impl FnOnce(Starts) -> Starts) -> Result<(), Failure> {
        let written = lasting.starts.write(&*lasting.dir, change).await;
        written.map_err(|error| disk_failure(&lasting.path, &error))
    }
}
