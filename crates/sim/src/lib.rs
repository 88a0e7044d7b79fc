//! The workshop: a whole cluster in one process and one thread, from one seed.
//!
//! It alone knows what a correct run looks like. Servers and clients are the ones that are
//! shipped; only the world below them is simulated. A seed gives a plan (how many servers and
//! clients, which workloads, which faults and when), the run records operations and answers,
//! and checkers compare them with models that are too simple to be wrong in the same way. How the
//! servers keep their promises it deliberately does not know: the checkers see answers, and at
//! the end the plain contents of the tables.

pub mod audit;
pub mod backing;
pub mod bytes;
pub mod cluster;
pub mod experiment;
pub mod faults;
pub mod keepers;
pub mod linear;
pub mod names;
pub mod persistence;
pub mod plan;
pub mod run;
pub mod slots;
pub mod staging;
pub mod tree;
pub mod work;

pub use cluster::Cluster;
pub use plan::{Mix, Plan};
pub use run::{Outcome, run, run_plan};
