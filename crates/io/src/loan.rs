//! Bulk data that are not sent but lie in another's memory, for this end to copy them from there.
//!
//! It alone knows that the real world and the simulated one lend in different ways.

use crate::{real, sim};

/// Lent bytes, given back when dropped. Until then they stay as they are, unless the connection ends.
#[derive(Debug)]
pub struct Loan(pub(crate) Source);

#[derive(Debug)]
pub(crate) enum Source {
    Shm(real::ShmLoan),
    Sim(sim::SimLoan),
}

impl Loan {
    /// Bytes lent.
    #[expect(clippy::len_without_is_empty, reason = "a loan is never empty")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Shm(loan) => loan.len(),
            Source::Sim(loan) => loan.len(),
        }
    }

    /// Copies what lies at `at`; `false` if it is not there, or was not kept until it was copied.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> bool {
        match &self.0 {
            Source::Shm(loan) => loan.copy_to(at, to),
            Source::Sim(loan) => loan.copy_to(at, to),
        }
    }
}
