//! What a server answers when it is asked what it does at this time.

use crate::membership::state::activity::TIMED_ONE_IN;
use crate::state::Server;
use aze_proto::message::ServerActivity;

impl Server {
    /// What this server has done so far.
    pub(crate) fn activity(&self) -> ServerActivity {
        ServerActivity {
            pid: self.config.pid,
            memory_bytes: (self.config.memory_bytes)(),
            used_bytes: self.store.used_bytes(),
            sessions: self.sessions.connected(),
            timed_one_in: TIMED_ONE_IN as u32,
            took: self.activity.took(),
            jobs: self.activity.jobs(),
            recent: self.activity.recent(self.io.mono_ns()),
        }
    }
}
