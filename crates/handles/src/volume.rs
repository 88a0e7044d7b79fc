//! A volume in the hands of a program: one connection for each process.

use crate::connected::Connected;
use crate::error::{Error, Result};
use aze_io::real::PerProcess;
use aze_io::sync::Mutex;
use aze_reach::volume;
use std::sync::Arc;

/// A volume by its name. Any number of threads may use it, and a forked process, too: there it connects anew at its
/// first use, and touches nothing of its parent's connection.
pub struct Volume {
    name: String,
    own: PerProcess<Mutex<State>>,
}

/// The connection of one process.
#[derive(Default)]
enum State {
    #[default]
    Unused,
    Open(Arc<Connected>),
    Closed,
}

impl Volume {
    /// Finds a volume and connects: that of this name, else the one that `AZE_VOLUME` names, else the only one of this user
    /// on this machine.
    ///
    /// # Errors
    /// ENOENT if there is none, EINVAL if it is unclear which is meant, EACCES without its secret, EHOSTUNREACH if
    /// its servers do not answer.
    pub fn open(name: Option<&str>) -> Result<Arc<Volume>> {
        let meant = volume::Volume::meant(name)?;
        let volume = Volume { name: meant.record.name.clone(), own: PerProcess::new() };
        volume.connected()?;
        Ok(Arc::new(volume))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This process's connection; made if there is none yet.
    ///
    /// # Errors
    /// EBADF after [`Volume::close`], EIO after a defect has ended the connection, and those of [`Volume::open`].
    pub fn connected(&self) -> Result<Arc<Connected>> {
        let mut state = self.own.get_or_init(Mutex::default).lock();
        match &*state {
            State::Open(connected) => {
                connected.check()?;
                return Ok(connected.clone());
            }
            State::Closed => return Err(Error::new(libc::EBADF, format!("volume '{}' was closed", self.name))),
            State::Unused => {}
        }
        // Read again: the volume may have been started again since this name was looked up.
        let connected = Connected::to(volume::Volume::open(&self.name)?)?;
        *state = State::Open(connected.clone());
        Ok(connected)
    }

    /// Ends this process's connection: open files, directories and queues of it fail from now on, as does every later
    /// call. Doing so twice is harmless.
    pub fn close(&self) {
        let state = self.own.get_or_init(Mutex::default);
        // The lock is not held while servers are told.
        let before = std::mem::replace(&mut *state.lock(), State::Closed);
        if let State::Open(connected) = before {
            connected.end();
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A process that has not used it has nothing to end.
        if self.own.get().is_some() {
            self.close();
        }
    }
}
