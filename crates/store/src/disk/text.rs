//! Small text files that a person can read, too: a title, then lines of a name and a value.

use aze_io::disk::{Dir, DiskError, DiskResult};
use aze_proto::limits::BLOCK_BYTES;
use aze_proto::sum::block_sum;
use std::str::{FromStr, Lines};

/// The longest file that is read, in bytes: a line for each slot of the largest volume.
const BYTES_MAX: u64 = 4 << 20;

/// The lines of one file after its title, in order.
pub(super) struct Fields<'a>(Lines<'a>);

impl<'a> Fields<'a> {
    /// Begins after the title.
    pub(super) fn new(text: &'a str, title: &str) -> Result<Fields<'a>, String> {
        let mut lines = text.lines();
        if lines.next() != Some(title) {
            return Err(format!("the first line is not '{title}'"));
        }
        Ok(Fields(lines))
    }

    /// The value in the next line, which must have this name.
    pub(super) fn value(&mut self, name: &str) -> Result<&'a str, String> {
        let line = self.0.next().unwrap_or_default();
        let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
        value.ok_or_else(|| format!("expected a line '{name} …', found '{line}'"))
    }

    /// The same, of a number.
    pub(super) fn number<T: FromStr>(&mut self, name: &str) -> Result<T, String> {
        let value = self.value(name)?;
        value.parse().map_err(|_| format!("'{name} {value}': not a number that fits"))
    }
}

/// Reads a file and parses its text; `None` if there is no such file. An error of the text is told with the file's name: that it
/// does not fit ([`DiskError::Unfit`]), or else that it is damaged.
pub(super) async fn read<T>(
    dir: &dyn Dir,
    name: &str,
    parse: impl FnOnce(&str) -> DiskResult<T>,
) -> DiskResult<Option<T>> {
    read_bytes(dir, name, BYTES_MAX, |bytes| parse(&String::from_utf8_lossy(bytes))).await
}

/// The same of a file that is more than text, of so many bytes at most.
pub(super) async fn read_bytes<T>(
    dir: &dyn Dir,
    name: &str,
    bytes_max: u64,
    parse: impl FnOnce(&[u8]) -> DiskResult<T>,
) -> DiskResult<Option<T>> {
    let file = match dir.open(name).await {
        Ok(file) => file,
        Err(DiskError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let bytes = file.read_at(0, file.size().await?.min(bytes_max) as usize).await?;
    parse(&bytes).map(Some).map_err(|error| match error {
        DiskError::Unfit(why) => DiskError::Unfit(format!("the file '{name}': {why}")),
        error => DiskError::Failed(format!("the file '{name}': {error}")),
    })
}

/// Replaces a file, durably: after a crash it has its old text or the new one.
pub(super) async fn write(dir: &dyn Dir, name: &str, text: impl Into<Vec<u8>>) -> DiskResult<()> {
    prepare(dir, name, text).await?;
    take_effect(dir, name).await
}

/// The first half of [`write`]: the file is as it was, also after an error.
pub(super) async fn prepare(dir: &dyn Dir, name: &str, text: impl Into<Vec<u8>>) -> DiskResult<()> {
    let file = dir.create(&new_name(name)).await?;
    file.append(text.into()).await?;
    file.sync().await
}

/// The second half: after an error the file has its old text or the new one.
pub(super) async fn take_effect(dir: &dyn Dir, name: &str) -> DiskResult<()> {
    dir.rename(&new_name(name), name).await?;
    dir.sync().await
}

fn new_name(name: &str) -> String {
    format!("{name}.new")
}

/// The text with its checksum, as its last line.
pub fn with_sum(body: String) -> String {
    let sum = sum_of(body.as_bytes());
    body + &format!("sum {sum:08x}\n")
}

/// The checksum of a file: of its one block, or of the checksums of its blocks.
pub(super) fn sum_of(bytes: &[u8]) -> u32 {
    if bytes.len() <= BLOCK_BYTES {
        return block_sum(bytes);
    }
    let sums: Vec<u8> = bytes.chunks(BLOCK_BYTES).flat_map(|block| block_sum(block).to_le_bytes()).collect();
    sum_of(&sums)
}
