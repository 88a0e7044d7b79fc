//! The tree that a place is in, and the trees that are mounted on this machine.

use crate::exit::Outcome;
use crate::mounts;
use crate::place::{Place, VolumePath};
use crate::session::{Session, Sessions};
use crate::volume::{self, Volume};
use aze_copy::LocalTree;
use aze_copy::tree::{Spot, Tree};
use aze_io::threads::Waiter;
use aze_tree::{Connection, VolumeTree};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

impl Place {
    /// Opens the tree that this place is in.
    pub fn spot(&self, sessions: &mut Sessions) -> Outcome<Spot> {
        Ok(match self {
            Place::Local(path) => Spot { tree: Arc::new(LocalTree), path: path.as_os_str().as_bytes().to_vec() },
            Place::Volume(path) => {
                Spot { tree: tree(&*sessions.of(path)?, path.volume.clone()), path: path.path.clone() }
            }
        })
    }
}

/// The volumes of this user that are mounted on this machine: the name of the tree of each, by the number of the mount's device (st_dev).
pub fn mounted() -> BTreeMap<u64, String> {
    let volumes = volume::names().into_iter().filter_map(|name| Volume::open(&name).ok());
    let mounts = volumes.flat_map(|volume| {
        let tree = VolumeTree::id_of(&volume.record.name);
        let devices: Vec<u64> = volume.mounts().iter().filter_map(|mount| mounts::device_number(&mount.dir)).collect();
        devices.into_iter().map(move |device| (device, tree.clone()))
    });
    mounts.collect()
}

/// The files of the volume of a session.
pub fn of_session(session: &Session) -> Arc<dyn Tree> {
    tree(session, Some(session.volume.record.name.clone()))
}

/// The files of the volume of a session, named in messages as it was named by its user.
fn tree(session: &Session, named: Option<String>) -> Arc<dyn Tree> {
    let record = &session.volume.record;
    let connection = Connection {
        client: session.client.clone(),
        who: session.who.clone(),
        waiter: Waiter::Real(session.runtime.clone()),
        volume: record.name.clone(),
        backing: record.settings.backing.as_ref().map(|root| root.path.as_os_str().as_bytes().to_vec()),
    };
    Arc::new(VolumeTree::new(connection, VolumePath { volume: named, path: Vec::new() }.shown()))
}
