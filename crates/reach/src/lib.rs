//! How a program finds a volume and connects to it.
//!
//! It alone knows where a volume's directory is, what the files in it say, which volume is meant where none is named, and how a
//! session with it begins. The commands, the mount and the libraries for other languages find volumes by it. What a
//! session is used for, and how an error is shown, it does not know.

mod identity;
pub mod mounts;
pub mod process;
pub mod session;
pub mod volume;

pub use identity::own_identity;
pub use session::{Session, batch_job};
pub use volume::Volume;
