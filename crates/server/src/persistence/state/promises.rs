//! The promises of a server as a member of a keeper group, on its disk, and the map on which the members of a volume have decided.

use aze_io::disk::{Dir, DiskResult};
use aze_keeper::{Group, MemberId};
use aze_proto::place::{Agreed, ShardMap};
use aze_proto::slots::SlotTable;
use aze_proto::{Configuration, MapEpoch, ServerIndex};
use aze_store::disk::group::GroupFile;
use aze_store::disk::placement::Placement;

/// The file with a server's promises.
pub(crate) struct Promises {
    /// The file as it was when the server started.
    found: Option<GroupFile>,
    agreed: Option<Agreed>,
    /// Held while a task writes the file: the start and the group in which its promises were made.
    writing: futures_util::lock::Mutex<(u64, MapEpoch)>,
}

impl Promises {
    /// With the file that was found in the directory, and the number of the volume that has the directory.
    ///
    /// # Errors
    /// It is damaged, or of another volume.
    pub(in crate::persistence) fn new(found: Option<(GroupFile, u64)>) -> Result<Promises, String> {
        if found.as_ref().is_some_and(|(file, volume)| file.volume != *volume) {
            return Err("it is of another volume".into());
        }
        let found = found.map(|(file, _)| file);
        let agreed = found.as_ref().map(agreed_in).transpose()?;
        let of = found.as_ref().map_or((0, MapEpoch(0)), |file| (file.start, file.formed));
        Ok(Promises { found, agreed, writing: futures_util::lock::Mutex::new(of) })
    }

    /// The newest map to which this server had agreed when it started.
    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// The file as it was when this server started, if its promises were made in this start of the volume.
    pub(crate) fn of_start(&self, start: u64) -> Option<&GroupFile> {
        self.found.as_ref().filter(|file| file.start == start)
    }

    /// Whether the file is of this start of the volume, or of a later one.
    pub(in crate::persistence) async fn has_of(&self, start: u64) -> bool {
        self.writing.lock().await.0 >= start
    }

    /// Replaces the file, durably; `false` if it is of a later group by now, so that this one is over.
    pub(in crate::persistence) async fn write(&self, dir: &dyn Dir, file: &GroupFile) -> DiskResult<bool> {
        let mut of = self.writing.lock().await;
        if (file.start, file.formed) < *of {
            return Ok(false);
        }
        file.write(dir).await?;
        *of = (file.start, file.formed);
        Ok(true)
    }
}

/// The newest map to which a member has agreed, by its file.
pub(in crate::persistence) fn agreed_in(file: &GroupFile) -> Result<Agreed, String> {
    let group = Group::restored(&file.log).map_err(|why| why.to_string())?;
    let map = ShardMap::from_stored(group.agreed()).map_err(|why| format!("the map in it: {why}"))?;
    let (term, index) = group.reached();
    Ok(Agreed { start: file.start, formed: file.formed, term, index, map })
}

/// A file with a map on which others have decided, and no promise: no member goes on with it.
pub(in crate::persistence) fn no_promise(volume: u64, start: u64, map: &ShardMap) -> GroupFile {
    let nobody = MemberId(1);
    let log = Group::found(nobody, &[nobody], map.stored()).stored();
    GroupFile { volume, start, formed: MapEpoch(0), log }
}

/// Which server has which slot by the newest map, or by the file `placement` of server 0 where slots have moved under an earlier build. `None`
/// if no slot has moved and no server has joined since the volume was made with so many servers.
pub(crate) fn placement(agreed: Option<&Agreed>, file: Option<&Placement>, made_with: u16) -> Option<Placement> {
    let Some(Agreed { map, .. }) = agreed else { return file.cloned() };
    let mut slots: Vec<(ServerIndex, Configuration)> = slots_in(&map.slots);
    if let Some(file) = file {
        for (known, earlier) in slots.iter_mut().zip(&file.slots).filter(|(known, earlier)| earlier.1 > known.1) {
            *known = *earlier;
        }
    }
    let servers = file.map_or(0, |file| file.servers).max(map.servers.len() as u16);
    let begun = SlotTable::begun(map.shards(), made_with, map.slots.len()).map(|table| slots_in(&table));
    let is_as_begun = servers == made_with && begun.is_ok_and(|begun| begun == slots);
    (!is_as_begun).then_some(Placement { servers, slots })
}

fn slots_in(table: &SlotTable) -> Vec<(ServerIndex, Configuration)> {
    table.iter().map(|(_, slot)| (slot.primary, slot.configuration)).collect()
}
