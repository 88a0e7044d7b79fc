//! What a library needs to look names up without the agent ([`aze_calls::indexes`]).

use crate::call::{Below, Call};
use crate::channel::Answer;
use crate::error::{Result, errno};
use crate::sys;
use aze_calls::indexes::{ResolvedDirectory, SERVERS_MAX, SharedIndexes, WANT_DIRECTORY};
use aze_calls::{Op, WINDOW_BYTES};
use aze_client::WayNote;
use std::cell::Cell;

/// The note about the directory that goes with an answer.
#[derive(Default)]
pub struct Resolved(Cell<Option<ResolvedDirectory>>);

impl Resolved {
    /// Puts it behind the answer's bytes: if a name was found, or there is none.
    pub fn add_to(self, answer: &mut Answer) {
        let has_answer = answer.result >= 0 || answer.result == -i64::from(libc::ENOENT);
        if let Some(resolved) = self.0.take().filter(|_| has_answer) {
            answer.bytes.extend_from_slice(sys::bytes_of(&resolved));
        }
    }
}

impl Call<'_> {
    /// Makes the note about the directory in which a walk has ended, if the library wants to know it. `version`: from
    /// before the walk; `found_nothing`: it has failed with ENOENT.
    pub fn note_directory(&self, version: u64, below: &Below<'_>, note: &WayNote, found_nothing: bool) {
        let is = |op: Op| self.request.op == op as u32;
        // Who opens a file for reading and writing looks it up before.
        let is_for_both = self.request.a as i32 & libc::O_ACCMODE == libc::O_RDWR;
        let is_asked = is(Op::Stat) || is(Op::Access) || is(Op::Open) && (found_nothing || is_for_both);
        if !is_asked
            || self.request.len != WANT_DIRECTORY
            || below.above.is_some()
            || below.path.split(|byte| *byte == b'/').any(|part| part == b"..")
        {
            return;
        }
        let trail = note.trail();
        let Some(name) = trail.last.filter(|_| !trail.by_link && !trail.from_root) else { return };
        let (client, who) = (self.agent.client(), self.agent.who());
        // An open is no lookup: only those let in.
        let let_in = match is(Op::Open) {
            true => self.agent.wait_for(client.is_let_in(who, trail.dir, &name, trail.epoch)).ok().flatten(),
            false => client.was_let_in(who, trail.dir, &name),
        };
        let Some(let_in) = let_in else { return };
        self.resolved.0.set(Some(ResolvedDirectory {
            version,
            dir: trail.dir.0,
            state: let_in.state,
            namespace_epoch: trail.epoch.0,
            server: let_in.server.0.into(),
            pad: 0,
        }));
    }

    /// Says which published indexes can be read, or gives the files of one.
    pub fn indexes(&mut self) -> Result<Answer> {
        let version = self.agent.shared.servers_version();
        let shared = self.agent.client().share_indexes();
        if self.request.a > 0 {
            let is_it = |server: u16| u64::from(server) == self.request.a - 1;
            let files = shared.servers.into_iter().find(|index| is_it(index.server.0)).ok_or(errno(libc::ENOENT))?;
            let passed = if self.request.b == 0 { files.memory } else { files.process };
            return Ok(Answer { passed: Some(passed), ..Answer::default() });
        }
        let room = self.window.bytes(WINDOW_BYTES);
        for (to, server) in room.chunks_exact_mut(size_of::<u16>()).zip(&shared.slots) {
            to.copy_from_slice(sys::bytes_of(&server.0));
        }
        let servers: Vec<u32> = shared.servers.iter().map(|index| index.server.0.into()).take(SERVERS_MAX).collect();
        let head = SharedIndexes {
            version,
            map_epoch: u64::from(shared.map_epoch.0),
            uid: self.agent.who().uid,
            shard_bits: shared.shard_bits,
            slots: shared.slots.len() as u32,
            servers: servers.len() as u32,
        };
        let mut bytes = sys::bytes_of(&head).to_vec();
        servers.iter().for_each(|server| bytes.extend_from_slice(sys::bytes_of(server)));
        Ok(Answer::with(bytes))
    }
}
