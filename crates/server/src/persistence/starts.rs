//! How a server notes that a start of the volume begins, is complete, and has ended well (`state/starts.rs`).

use super::state::persistence::{Persistence, disk_failure};
use super::state::starts::{Counted, Told, caught_up, compare, may_come_back, may_go_on_without};
use crate::state::Server;
use aze_proto::place::{Away, ServerInfo};
use aze_proto::{Code, Failure, ServerIndex};
use aze_store::disk::starts::Starts;
use std::sync::atomic::Ordering;

impl Server {
    /// The servers that were left out when the volume was started, and have not come back.
    pub(crate) fn left_out(&self) -> Vec<ServerIndex> {
        let map = self.map();
        map.indexes().filter(|server| map.server(*server).is_some_and(ServerInfo::is_left_out)).collect()
    }

    /// At the first server, before it counts a start: takes note of what others have counted while it was left out.
    ///
    /// # Errors
    /// Its directory is older than that of another one.
    pub(crate) fn catch_up_starts(&self, told: &[Told]) -> Result<(), Failure> {
        let Some(persistence) = &self.persistence.as_ref().filter(|persistence| !persistence.is_new) else {
            return Ok(());
        };
        let caught = caught_up(persistence.starts.now(), self.slot(), told);
        let place = persistence.storage.place();
        persistence.starts.catch_up(caught.map_err(|why| Failure::new(Code::Lost, format!("storage {place}: {why}")))?);
        Ok(())
    }

    /// Begins a start of the volume. The first server counts it; another one passes what that has counted, and who was left out.
    pub(super) async fn begin_start(
        &self,
        persistence: &Persistence,
        counted: Option<(Counted, Vec<Away>)>,
    ) -> Result<(), Failure> {
        let own = persistence.starts.now();
        let boot = self.config.boot;
        let left_out = self.left_out();
        let refused = |why| Failure::new(Code::Lost, format!("storage {}: {why}", persistence.storage.place()));
        if !left_out.is_empty() {
            may_go_on_without(&own, boot, persistence.storage.durability).map_err(refused)?;
        }
        let (begun, mut away) = match counted {
            None => (own.begun + 1, own.away),
            Some((counted, away)) => {
                if !persistence.is_new {
                    compare(&own, &counted).map_err(refused)?;
                }
                (counted.start, away.iter().map(|away| (away.server.0, away.start)).collect())
            }
        };
        for server in left_out.iter().map(|server| server.0) {
            if !away.iter().any(|(away, _)| *away == server) {
                away.push((server, own.complete));
            }
        }
        self.write_starts(persistence, |own| Starts { begun, away, ended: None, life: 0, boot, ..own }).await?;
        persistence.is_counted.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Begins to take part in a start of the volume that is in force.
    pub(super) async fn begin_in_start(
        &self,
        persistence: &Persistence,
        (begun, complete): (u64, u64),
        away: &[Away],
    ) -> Result<(), Failure> {
        let boot = self.config.boot;
        let away = away.iter().map(|away| (away.server.0, away.start)).collect();
        self.write_starts(persistence, |_| Starts { begun, complete, away, ended: None, life: 0, boot }).await?;
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

    /// Notes that every server has begun this start that was not left out.
    pub(super) async fn complete_start(&self, persistence: &Persistence) -> Result<(), Failure> {
        let left_out = self.left_out();
        let stays_away = |away: &(u16, u64)| left_out.contains(&ServerIndex(away.0));
        self.write_starts(persistence, |own| {
            let away = own.away.into_iter().filter(stays_away).collect();
            Starts { complete: own.begun, away, ..own }
        })
        .await
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
