//! The file by which earlier builds decided which server has which slot, in the directory of server 0. It is read for slots that have
//! moved under such a build, and written no more: a [keeper group](super::group) decides.

use super::text::{self, Fields, with_sum};
use aze_io::disk::{Dir, DiskError, DiskResult};
use aze_proto::{Configuration, ServerIndex, SlotIndex};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The file's name.
pub const NAME: &str = "placement";

/// First line of the file.
const TITLE: &str = "Azekura: which server has which part of the volume";

/// Which server has which slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How many numbers of servers are given out, those of servers that have left included.
    pub servers: u16,
    /// Of each slot its server, and the configuration in which that has it.
    pub slots: Vec<(ServerIndex, Configuration)>,
}

impl Placement {
    /// The servers that have slots: the volume's parts.
    pub fn members(&self) -> BTreeSet<ServerIndex> {
        self.slots.iter().map(|(server, _)| *server).collect()
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let mut text = format!("{TITLE}\nservers {}\nslots {}\n", self.servers, self.slots.len());
        for (slot, (server, configuration)) in self.slots.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "slot {slot} server {server} configuration {configuration}");
        }
        with_sum(text)
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// The first line that is wrong, and why.
    pub fn parse(text: &str) -> Result<Placement, String> {
        let mut fields = Fields::new(text, TITLE)?;
        let body = text.rsplit_once("sum ").map_or(text, |(body, _)| body);
        if with_sum(body.into()) != text {
            return Err("it does not match its checksum".into());
        }
        let (servers, count): (u16, u32) = (fields.number("servers")?, fields.number("slots")?);
        let mut slots = Vec::new();
        for slot in 0..count {
            let line = fields.value("slot")?;
            let words: Vec<&str> = line.split(' ').collect();
            let read = match words[..] {
                [number, "server", server, "configuration", configuration] => {
                    let parsed = (number.parse(), server.parse(), configuration.parse());
                    let (Ok(number), Ok(server), Ok(configuration)) = parsed else {
                        return Err(format!("'slot {line}': not numbers that fit"));
                    };
                    (SlotIndex(number) == SlotIndex(slot) && server < servers)
                        .then_some((ServerIndex(server), Configuration(configuration)))
                }
                _ => None,
            };
            slots
                .push(read.ok_or_else(|| format!("'slot {line}': expected slot {slot} and one of {servers} servers"))?);
        }
        if slots.is_empty() {
            return Err("it names no slot".into());
        }
        Ok(Placement { servers, slots })
    }

    /// Reads the file of a directory; `None` if it has none: then no slot has moved since the volume was made.
    ///
    /// # Errors
    /// The disk's error, and a file that cannot be parsed.
    pub async fn read(dir: &dyn Dir) -> DiskResult<Option<Placement>> {
        text::read(dir, NAME, |text| Placement::parse(text).map_err(DiskError::Failed)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_looks_like_this() {
        let of = |server, configuration| (ServerIndex(server), Configuration(configuration));
        let placement = Placement { servers: 4, slots: vec![of(0, 1), of(3, 2), of(0, 5)] };
        let text = "Azekura: which server has which part of the volume\nservers 4\nslots 3\n\
                    slot 0 server 0 configuration 1\nslot 1 server 3 configuration 2\nslot 2 server 0 configuration 5\n";
        assert_eq!(placement.text(), with_sum(text.into()));
        assert_eq!(Placement::parse(&placement.text()), Ok(placement.clone()));
        assert_eq!(placement.members(), BTreeSet::from([ServerIndex(0), ServerIndex(3)]));
        for (right, wrong) in [
            ("servers 4", "servers 3"),
            ("slots 3", "slots 4"),
            ("slot 1", "slot 2"),
            ("configuration 2", "configuration x"),
            ("slots 3", "slots 0"),
        ] {
            let wrong = text.replace(right, wrong);
            assert_ne!(wrong, text);
            assert!(Placement::parse(&with_sum(wrong.clone())).is_err(), "{wrong}");
        }
        assert!(Placement::parse(&placement.text().replace("server 3", "server 2")).is_err(), "another checksum");
    }
}
