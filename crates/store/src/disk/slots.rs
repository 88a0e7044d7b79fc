//! The logs of slots: how far each has come. They share the journal of their server; each record of a slot has a number of
//! its own, by which the slot's log is the same on any server.

use super::record::Entry;
use aze_proto::wire::{Input, Malformed, Wire};
use aze_proto::{Configuration, SlotIndex, wire_struct};

wire_struct! {
    /// The log of one slot.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SlotLog {
        /// The configuration of its records from now on.
        pub configuration: Configuration,
        /// Number of its last record; 0 before the first.
        pub serial: u64,
    }
}

/// How far the logs of all slots have come, by the number of the slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotLogs(Vec<SlotLog>);

/// A slot that has no record yet.
const NEW: SlotLog = SlotLog { configuration: Configuration(1), serial: 0 };

impl SlotLogs {
    /// The log of a slot.
    pub fn get(&self, slot: SlotIndex) -> SlotLog {
        self.0.get(slot.0 as usize).copied().unwrap_or(NEW)
    }

    fn get_mut(&mut self, slot: SlotIndex) -> &mut SlotLog {
        let at = slot.0 as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, NEW);
        }
        &mut self.0[at]
    }

    /// The server has taken a slot in a configuration: its records there are numbered anew.
    pub fn take_over(&mut self, slot: SlotIndex, configuration: Configuration) {
        *self.get_mut(slot) = SlotLog { configuration, serial: 0 };
    }

    /// The place of the next record of a slot.
    pub(super) fn next(&mut self, slot: SlotIndex) -> Entry {
        let log = self.get_mut(slot);
        log.serial += 1;
        Entry { slot, configuration: log.configuration, serial: log.serial }
    }

    /// Goes on over a record that was read.
    ///
    /// # Errors
    /// Why it cannot be the slot's next one.
    pub(super) fn pass(&mut self, entry: Entry) -> Result<(), String> {
        let Entry { slot, configuration, serial } = entry;
        if slot.0 >= SLOTS_MAX {
            return Err(format!("a record of slot {slot}, which no volume has"));
        }
        let log = self.get_mut(slot);
        if serial != log.serial + 1 {
            return Err(format!("record {serial} of slot {slot} where record {} is due", log.serial + 1));
        }
        if configuration < log.configuration {
            return Err(format!(
                "a record of configuration {configuration} of slot {slot} after one of {}",
                log.configuration
            ));
        }
        *log = SlotLog { configuration, serial };
        Ok(())
    }
}

/// More slots than any volume has: so a damaged number takes no memory.
const SLOTS_MAX: u32 = aze_proto::limits::SHARDS_MAX;

impl Wire for SlotLogs {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let logs = Vec::<SlotLog>::take(input)?;
        if logs.len() > SLOTS_MAX as usize {
            return Err(input.malformed("more slots than a volume has"));
        }
        Ok(SlotLogs(logs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_slot_follow_each_other() {
        let mut written = SlotLogs::default();
        let entries: Vec<Entry> = [3, 0, 3, 3, 0].map(|slot| written.next(SlotIndex(slot))).to_vec();
        assert_eq!(entries.iter().map(|entry| entry.serial).collect::<Vec<_>>(), [1, 1, 2, 3, 2]);
        let mut read = SlotLogs::default();
        entries.iter().for_each(|entry| read.pass(*entry).expect("it is the next one"));
        assert_eq!(read, written);
        assert_eq!(SlotLogs::from_bytes(&written.to_bytes()), Ok(written.clone()));
        assert_eq!((written.get(SlotIndex(3)).serial, written.get(SlotIndex(9))), (3, NEW));
        let entry =
            |configuration, serial| Entry { slot: SlotIndex(3), configuration: Configuration(configuration), serial };
        for (wrong, why) in [
            (entry(1, 3), "record 3 of slot 3 where record 4 is due"),
            (entry(1, 5), "record 5 of slot 3 where record 4 is due"),
            (entry(0, 4), "configuration 0 of slot 3 after one of 1"),
            (Entry { slot: SlotIndex(u32::MAX - 1), ..entry(1, 1) }, "which no volume has"),
        ] {
            let told = read.pass(wrong).expect_err("it cannot be");
            assert!(told.contains(why), "{told}");
        }
        read.pass(entry(2, 4)).expect("another configuration");
        assert!(read.pass(entry(1, 5)).is_err(), "an earlier configuration");
    }
}
