//! The agent of intercepted programs (door): it does for them what they ask, through one session of the volume.
//!
//! It alone knows which processes share an open file description, which process owns a lock, and when all of them have ended.
//! Programs see a volume without a mount: a library that is loaded into them turns their system calls into requests
//! ([`aze_calls`]), and keeps nothing about open files itself. What an operation means the client knows, and which system calls
//! become operations the library.

mod agent;
mod attributes;
mod call;
mod channel;
mod description;
mod error;
mod files;
mod indexes;
mod locks;
mod mailbox;
mod mapped;
mod named_pipes;
mod names;
mod panics;
mod processor;
mod program;
mod shared;
mod stat;
mod sys;

pub use agent::{CHANNELS_MAX, Listening};
#[cfg(debug_assertions)]
pub use aze_client::Planted;
pub use mapped::CONTENTS_BYTES_MAX;
pub use panics::ends_one_call_only;
pub use sys::SOCKET_PATH_BYTES_MAX;
