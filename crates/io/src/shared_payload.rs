//! Bulk data that are not sent but lie in another's memory, for this end to copy them from there.
//!
//! It alone knows that the real world and the simulated one share in different ways.

use crate::{real, sim};

/// Shared bytes, given back when dropped. Until then they stay as they are, unless the connection ends.
#[derive(Debug)]
pub struct SharedPayload(pub(crate) Source);

#[derive(Debug)]
pub(crate) enum Source {
    Shm(real::ShmPayload),
    Sim(sim::SimPayload),
}

impl SharedPayload {
    /// Bytes shared.
    #[expect(clippy::len_without_is_empty, reason = "a shared payload is never empty")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Shm(shared) => shared.len(),
            Source::Sim(shared) => shared.len(),
        }
    }

    /// Copies what lies at `at`; `false` if it is not there, or was not kept until it was copied.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        match &self.0 {
            Source::Shm(shared) => shared.copy_to(at, to),
            Source::Sim(shared) => shared.copy_to(at, to),
        }
    }
}
