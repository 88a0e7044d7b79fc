//! The file with what a server has promised as a member of a keeper group. It is durable before another member hears of the promise, so
//! that the server keeps it in its next life, too: a majority of such files is a decision about the map.

use super::text::{self, Fields, sum_of};
use aze_io::disk::{Dir, DiskError, DiskResult};
use aze_proto::MapEpoch;

/// The file's name.
pub const NAME: &str = "group";

/// First line of the file.
const TITLE: &str = "Azekura: what this server has promised about the map";

/// The longest file that is read, in bytes: two maps of the largest volume.
const BYTES_MAX: u64 = 64 << 20;

/// What a server has promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFile {
    /// The number of the volume.
    pub volume: u64,
    /// The start of the volume in which the group was formed.
    pub start: u64,
    /// The map by which it was.
    pub formed: MapEpoch,
    /// The member's log, as it gives it.
    pub log: Vec<u8>,
}

impl GroupFile {
    /// The bytes of the file: a few lines of text, the log, and a checksum.
    pub fn bytes(&self) -> Vec<u8> {
        let GroupFile { volume, start, formed, log } = self;
        let head = format!("{TITLE}\nvolume {volume}\nstart {start}\nformed {}\nlog {}\n", formed.0, log.len());
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(log);
        let sum = sum_of(&bytes);
        bytes.extend_from_slice(format!("\nsum {sum:08x}\n").as_bytes());
        bytes
    }

    /// Reads the bytes of the file.
    ///
    /// # Errors
    /// The fault in them.
    pub fn parse(bytes: &[u8]) -> Result<GroupFile, String> {
        // A line less than the head has does not begin the log.
        let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        let begins = ends.take(5).last().unwrap_or(0);
        let head = String::from_utf8_lossy(&bytes[..begins]).into_owned();
        let mut fields = Fields::new(&head, TITLE)?;
        let (volume, start, formed) = (fields.number("volume")?, fields.number("start")?, fields.number("formed")?);
        let count: usize = fields.number("log")?;
        let rest = &bytes[begins..];
        if count > rest.len() {
            return Err(format!("it ends within the log, which has {count} bytes"));
        }
        let (log, sum) = rest.split_at(count);
        if sum != format!("\nsum {:08x}\n", sum_of(&bytes[..begins + count])).as_bytes() {
            return Err("it does not match its checksum".into());
        }
        Ok(GroupFile { volume, start, formed: MapEpoch(formed), log: log.to_vec() })
    }

    /// Reads the file of a directory; `None` if it has none: this server has promised nothing, or it was lost.
    ///
    /// # Errors
    /// The disk's error, and a file that cannot be parsed.
    pub async fn read(dir: &dyn Dir) -> DiskResult<Option<GroupFile>> {
        text::read_bytes(dir, NAME, BYTES_MAX, |bytes| GroupFile::parse(bytes).map_err(DiskError::Failed)).await
    }

    /// Replaces the file, durably.
    ///
    /// # Errors
    /// The disk's error; then the file is the old one or this one.
    pub async fn write(&self, dir: &dyn Dir) -> DiskResult<()> {
        text::write(dir, NAME, self.bytes()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_looks_like_this() {
        for log in [b"two\nlines\n".to_vec(), Vec::new(), vec![0xff; 9000]] {
            let file = GroupFile { volume: 7, start: 3, formed: MapEpoch(9), log };
            let bytes = file.bytes();
            let head = format!(
                "Azekura: what this server has promised about the map\nvolume 7\nstart 3\nformed 9\nlog {}\n",
                file.log.len()
            );
            assert!(bytes.starts_with(head.as_bytes()));
            assert_eq!(GroupFile::parse(&bytes), Ok(file));
            for cut in [0, 20, head.len() - 1, head.len(), bytes.len() - 1] {
                assert!(GroupFile::parse(&bytes[..cut]).is_err(), "{cut}");
            }
            for at in (0..bytes.len()).step_by(1 + bytes.len() / 200) {
                let mut wrong = bytes.clone();
                wrong[at] ^= 1;
                assert!(GroupFile::parse(&wrong).is_err(), "{at}");
            }
        }
    }
}
