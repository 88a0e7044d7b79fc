//! How a server notes that a start of the volume begins, is complete, and has ended well (`state/starts.rs`).

use super::state::persistence::{Persistence, disk_failure};
use super::state::starts::{Counted, compare, may_come_back};
use crate::state::Server;
use aze_proto::{Code, Failure};
use aze_store::disk::starts::Starts;
use std::sync::atomic::Ordering;

impl Server {
    /// Begins a start of the volume. The first server counts it; another one passes what that has counted.
    pub(super) async fn begin_start(&self, persistence: &Persistence, counted: Option<Counted>) -> Result<(), Failure> {
        let own = persistence.starts.now();
        let begun = match counted {
            None => own.begun + 1,
            Some(counted) => {
                if !persistence.is_new {
                    compare(&own, &counted).map_err(|why| {
                        Failure::new(Code::Lost, format!("storage {}: {why}", persistence.storage.place()))
                    })?;
                }
                counted.start
            }
        };
        let boot = self.config.boot;
        self.write_starts(persistence, |own| Starts { begun, ended: None, life: 0, boot, ..own }).await?;
        persistence.is_counted.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Begins to take part in a start of the volume that is in force.
    pub(super) async fn begin_in_start(
        &self,
        persistence: &Persistence,
        begun: u64,
        complete: u64,
    ) -> Result<(), Failure> {
        let boot = self.config.boot;
        self.write_starts(persistence, |_| Starts { begun, complete, ended: None, life: 0, boot }).await?;
        persistence.is_counted.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Begins another life of this server, which comes back alone: gives its number. `start` and `life` are what the
    /// other servers know of the volume's start and of this server's last life.
    pub(crate) async fn begin_life(&self, volume: u64, start: u64, life: u32) -> Result<u32, Failure> {
        let in_memory =
            || Failure::new(Code::Invalid, format!("{} keeps nothing on disk: it cannot come back", self.who()));
        let persistence = self.persistence.as_ref().ok_or_else(in_memory)?;
        let place = persistence.storage.place();
        let refused = |code, why: String| Failure::new(code, format!("storage {place}: {why}"));
        if persistence.is_new {
            let why = "it is empty, and the volume is in use: give the directory that the server had".into();
            return Err(refused(Code::Lost, why));
        }
        if persistence.volume() != volume {
            return Err(refused(Code::Invalid, "it holds a part of another volume than the other servers have".into()));
        }
        let boot = self.config.boot;
        may_come_back(&persistence.starts.now(), start, life, boot).map_err(|why| refused(Code::Lost, why))?;
        self.write_starts(persistence, |own| Starts { ended: None, life: own.life + 1, boot, ..own }).await?;
        persistence.is_counted.store(true, Ordering::SeqCst);
        Ok(persistence.starts.now().life)
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
