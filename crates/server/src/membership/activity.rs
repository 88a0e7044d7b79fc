//! A server's answer about its present work.

use crate::membership::state::activity::TIMED_ONE_IN;
use crate::state::Server;
use aze_meta::EntryKey;
use aze_proto::message::{RecentActivity, ServerActivity};
use aze_proto::wire::Blob;
use aze_proto::{FileKind, Ino, Name};

/// Entries at which a server looks for the name of a hot file. It tells a file whose name is not among them by its inode number.
const LOOKED_AT_MAX: usize = 1 << 17;

/// Entries at which it looks while requests to the shard wait.
const LOOKED_AT_ONCE: usize = 1 << 11;

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
            recent: self.recent(),
        }
    }

    /// Recent requests, by object; files that were opened by their numbers, as through mounts, by names that lead to
    /// them.
    fn recent(&self) -> RecentActivity {
        let mut recent = self.activity.recent(self.io.mono_ns());
        for file in recent.files.iter_mut().filter(|file| file.name.0.is_empty()) {
            if let Some((parent, name)) = self.name_of(file.ino) {
                (file.ino, file.name) = (parent, Blob(name.as_bytes().to_vec()));
            }
        }
        recent
    }

    /// A name of a file, if one is where its first one was: beside the inode. Looks at [`LOOKED_AT_MAX`] entries of one shard at most.
    fn name_of(&self, ino: Ino) -> Option<(Ino, Name)> {
        let home = self.shards.home(ino)?;
        let mut behind: Option<EntryKey> = None;
        for _ in 0..LOOKED_AT_MAX / LOOKED_AT_ONCE {
            // Requests come in between.
            let names = home.names.lock();
            names.shard.inode(ino).filter(|inode| inode.attr.kind == FileKind::File)?;
            let mut last = None;
            for (key, entry) in names.shard.entries_behind(behind.as_ref()).take(LOOKED_AT_ONCE) {
                if entry.ino == ino {
                    return Some((key.parent, key.name.clone()));
                }
                last = Some(key);
            }
            behind = Some(last?.clone());
        }
        None
    }
}
