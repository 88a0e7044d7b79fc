//! The only room that knows which node does what.
//!
//! A server holds shards: of names (`meta`) and of data (`store`). This room dispatches requests
//! to them, asks other servers where an operation spans shards, keeps the shard map and the
//! namespace epoch, and notices when sessions end. What an operation does to a name or to a block
//! it deliberately does not know.
//!
//! The server has five parts, each a folder whose head says what that part alone knows: `names`, `chunks`, `coherence`,
//! `membership` and `persistence`. Each has two layers. The files in a part's folder `state` keep something and change
//! it by methods of their own; they never name [`Server`]. The other files of the part are handlers (`impl Server`): what
//! a request or a task does. `state.rs` puts the server together from state only, and state never uses a handler: a test
//! reads that from the sources (`tests/tests/house.rs`). At the top stands what spans the parts. State is in `shards`,
//! `counters`, `clock`, `sabotage` and `wait`; `dispatch`, `work`, `status` and `check` are handlers.
//!
//! A request runs to completion on the worker that read it. One that must wait (for a directory's
//! stub, for a locked entry, for another server) becomes a task; no thread is ever parked.

mod check;
mod chunks;
mod clock;
mod coherence;
mod counters;
mod dispatch;
mod membership;
mod names;
mod persistence;
pub mod sabotage;
mod shards;
mod state;
mod status;
mod wait;
mod work;

pub use aze_store::disk::manifest::{FORMAT, FORMAT_SEVERAL};
pub use aze_store::disk::segments::SEGMENT_BYTES_DEFAULT;
pub use coherence::state::through::{Contact, IsTold, Through, Wanted};
pub use membership::members::{start, start_when};
pub use membership::state::progress::{Stage, Tell};
pub use persistence::check::{Problem, Report, check};
pub use persistence::state::persistence::{CHECKPOINT_BYTES_DEFAULT, Storage};
pub use persistence::state::roots::{DIRECTORIES_MAX, StorageDir};
pub use persistence::storage::{Parts, parts_of};
pub use state::{Comeback, Config, OtherServer, Over, Server};
pub use status::Contents;
