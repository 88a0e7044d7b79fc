//! A checkpoint: everything that a server holds, as records in a file. It is written under another
//! name and gets its own when it is complete and durable; the last record says so once more, and where
//! the journal goes on, with the logs of slots as they were there.

use super::record::{self, Entry};
use super::slots::SlotLogs;
use super::state_name;
use aze_io::disk::{Dir, DiskFile, DiskResult};
use aze_proto::SlotIndex;
use aze_proto::wire::Wire;
use std::sync::Arc;

/// How the names of checkpoints that are being written end.
pub const UNFINISHED: &str = ".new";

/// Bytes that are gathered before they are written.
const GATHER_BYTES: usize = 1 << 20;

/// The head of the last record.
pub(super) const END: &[u8] = b"end";

/// A checkpoint being written.
pub struct Writer {
    dir: Arc<dyn Dir>,
    number: u64,
    position: u64,
    file: Arc<dyn DiskFile>,
    buffer: Vec<u8>,
    bytes: u64,
    order: u64,
    slots: SlotLogs,
}

impl Writer {
    /// Begins a checkpoint at the logical time `order`. The journal of its number begins at `position`.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn begin(dir: Arc<dyn Dir>, number: u64, position: u64, order: u64) -> DiskResult<Writer> {
        let file = dir.create(&(state_name(number) + UNFINISHED)).await?;
        let slots = SlotLogs::default();
        Ok(Writer { dir, number, position, file, buffer: Vec::new(), bytes: 0, order, slots })
    }

    /// With the logs of slots as they were where the journal of its number begins.
    pub fn with_slots(self, slots: SlotLogs) -> Writer {
        Writer { slots, ..self }
    }

    /// Adds a record of no slot.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn add(&mut self, head: &[u8], payload: &[u8]) -> DiskResult<()> {
        self.add_of(None, head, payload).await
    }

    /// Adds a record of a slot.
    ///
    /// # Errors
    /// What the disk says.
    pub async fn add_of(&mut self, slot: Option<SlotIndex>, head: &[u8], payload: &[u8]) -> DiskResult<()> {
        let of = slot.map(|slot| Entry { slot, configuration: self.slots.get(slot).configuration, serial: 0 });
        let at = record::Place { position: self.bytes, durable: 0, order: self.order, of };
        record::put(&mut self.buffer, at, head, payload);
        self.bytes += record::size(head, payload.len());
        if self.buffer.len() >= GATHER_BYTES {
            self.file.append(std::mem::take(&mut self.buffer)).await?;
        }
        Ok(())
    }

    /// Makes it the newest checkpoint, and returns its length. The journal of its number must
    /// hold everything that came after.
    ///
    /// # Errors
    /// The disk's error; then nothing has changed.
    pub async fn finish(mut self) -> DiskResult<u64> {
        let mut end = self.position.to_le_bytes().to_vec();
        self.slots.put(&mut end);
        self.add(END, &end).await?;
        self.file.append(std::mem::take(&mut self.buffer)).await?;
        self.file.sync().await?;
        let name = state_name(self.number);
        self.dir.rename(&(name.clone() + UNFINISHED), &name).await?;
        self.dir.sync().await?;
        Ok(self.bytes)
    }
}
