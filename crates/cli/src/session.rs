//! A command's connections to volumes.

use crate::exit::Outcome;
use crate::place::VolumePath;
use crate::volume::Volume;
pub use aze_reach::session::Session;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The connections of one command, one for each volume.
#[derive(Default)]
pub struct Sessions {
    open: BTreeMap<String, Arc<Session>>,
}

impl Sessions {
    /// The connection to the volume that `path` means.
    pub fn of(&mut self, path: &VolumePath) -> Outcome<Arc<Session>> {
        let volume = Volume::meant(path.volume.as_deref())?;
        if let Some(session) = self.open.get(&volume.record.name) {
            return Ok(session.clone());
        }
        let session = Session::open_for_command(volume)?;
        self.open.insert(session.volume.record.name.clone(), session.clone());
        Ok(session)
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        for session in self.open.values() {
            session.end();
        }
    }
}
