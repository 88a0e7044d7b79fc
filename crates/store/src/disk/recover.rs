//! Reading it all again.

use super::record::{HEADER_BYTES, Header};
use super::slots::SlotLogs;
use super::{checkpoint, journal, log_name, number_of, state_name};
use aze_io::Boxed;
use aze_io::disk::{Dir, DiskError, DiskFile, DiskResult};
use aze_proto::wire::Wire;
use aze_proto::{Configuration, SlotIndex};
use std::sync::Arc;

/// Bytes that are read at once; a longer record is read by itself.
const READ_BYTES: usize = 4 << 20;

/// One record, as it is given to a [`Taker`].
pub struct Record<'a> {
    /// Whether it comes from a checkpoint.
    pub in_checkpoint: bool,
    /// Where it begins in the journal.
    pub position: u64,
    /// The slot that it belongs to.
    pub slot: Option<SlotIndex>,
    /// The configuration of the slot in which it was made.
    pub configuration: Configuration,
    /// What happened.
    pub head: &'a [u8],
    /// Its data.
    pub payload: &'a [u8],
    /// Whether the payload matches its checksum.
    pub is_sound: bool,
}

/// The result of reading a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// There is a checkpoint or a journal.
    pub has_any: bool,
    /// Number for the next checkpoint and journal.
    pub next: u64,
    /// Where the journal goes on.
    pub position: u64,
    /// The latest logical time of a record.
    pub order: u64,
    /// Records read.
    pub records: u64,
    /// How far the logs of slots have come.
    pub slots: SlotLogs,
    /// Bytes of a torn end that are left out.
    pub torn_bytes: u64,
    /// Records whose data have changed on the disk.
    pub rotten: u64,
}

/// Takes records, and knows their meaning.
pub trait Taker: Send {
    /// Takes a record; `false` if [`Taker::prepare`] must be called before it is given once more.
    ///
    /// # Errors
    /// Why it cannot be.
    fn take(&mut self, record: &Record<'_>) -> Result<bool, String>;

    /// Does what takes time.
    fn prepare(&mut self) -> Boxed<'_, DiskResult<()>>;
}

struct Each<F>(F);

impl<F: FnMut(&Record<'_>) -> Result<(), String> + Send> Taker for Each<F> {
    fn take(&mut self, record: &Record<'_>) -> Result<bool, String> {
        (self.0)(record).map(|()| true)
    }

    fn prepare(&mut self) -> Boxed<'_, DiskResult<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// As [`read_for`], with a function that takes each record at once.
///
/// # Errors
/// As there.
pub async fn read_all(dir: &dyn Dir, each: impl FnMut(&Record<'_>) -> Result<(), String> + Send) -> DiskResult<Found> {
    read_for(dir, &mut Each(each)).await
}

/// Gives every record of the newest checkpoint, then of the journals since, to `each`.
///
/// # Errors
/// What the disk says; damage before the end; what `each` says.
pub async fn read_for(dir: &dyn Dir, each: &mut impl Taker) -> DiskResult<Found> {
    let names = dir.list().await?;
    let newest = names.iter().filter_map(|name| number_of(name, "state-")).max();
    let mut logs: Vec<u64> = names.iter().filter_map(|name| number_of(name, "log-")).collect();
    logs.retain(|number| *number >= newest.unwrap_or(0));
    logs.sort_unstable();
    let mut found =
        Found { next: logs.iter().copied().chain(newest).max().map_or(1, |last| last + 1), ..Found::default() };
    found.has_any = newest.is_some() || !logs.is_empty();
    if let Some(number) = newest {
        // A start that was cut off may have made the checkpoint and not yet the journal: what came before is there.
        let is_ours = |name: &String| number_of(name, "log-").or_else(|| number_of(name, "state-"));
        let has_older = names.iter().filter_map(is_ours).any(|older| older < number);
        if !logs.contains(&number) && !has_older {
            return Err(DiskError::Failed(format!("the journal {} is missing", log_name(number))));
        }
    }
    // The first journal of all begins at 0.
    let (mut expected, mut last_order) = (0, 0);
    if let Some(number) = newest {
        let name = state_name(number);
        let mut reader = Reader::open(dir, &name, true).await?;
        let mut goes_on = None;
        while let Some(raw) = reader.next().await? {
            goes_on = goes_on_at(&raw);
            if goes_on.is_none() {
                found.take(&name, raw, true, each).await?;
            }
        }
        (expected, found.slots) = goes_on.ok_or_else(|| damaged(&name, reader.at, "the checkpoint ends here"))?;
    }
    for (index, number) in logs.iter().enumerate() {
        let name = log_name(*number);
        let end = sound_end(dir, &name, expected).await?;
        let mut reader = Reader::open(dir, &name, false).await?;
        while reader.at < end.at
            && let Some(raw) = reader.next().await?
        {
            if raw.header.position != expected {
                let why = format!("a record of place {} where {expected} is due", raw.header.position);
                return Err(damaged(&name, reader.at, &why));
            }
            if raw.header.order <= last_order {
                let why = format!("a record of the logical time {} after one of {last_order}", raw.header.order);
                return Err(damaged(&name, reader.at, &why));
            }
            if let Some(entry) = raw.header.of {
                found.slots.pass(entry).map_err(|why| damaged(&name, reader.at, &why))?;
            }
            (expected, last_order) = (expected + raw.header.record_bytes(), raw.header.order);
            found.order = found.order.max(last_order);
            if raw.head != journal::END {
                found.take(&name, raw, false, each).await?;
            }
        }
        let torn = end.size - end.at;
        if torn > 0 && index + 1 < logs.len() && !is_empty(dir, &logs[index + 1..]).await? {
            return Err(damaged(&name, end.at, "a later journal goes on"));
        }
        found.torn_bytes += torn;
    }
    found.position = expected;
    Ok(found)
}

/// Where the journal goes on, and how far the logs of slots had come there, if this is the last record of a checkpoint.
fn goes_on_at(raw: &Raw) -> Option<(u64, SlotLogs)> {
    let (position, slots) = raw.payload.split_first_chunk().filter(|_| raw.is_sound && raw.head == checkpoint::END)?;
    Some((u64::from_le_bytes(*position), SlotLogs::from_bytes(slots).ok()?))
}

async fn is_empty(dir: &dyn Dir, logs: &[u64]) -> DiskResult<bool> {
    for number in logs {
        let mut reader = Reader::open(dir, &log_name(*number), false).await?;
        if reader.written_end(0).await? > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Found {
    async fn take(&mut self, name: &str, raw: Raw, in_checkpoint: bool, each: &mut impl Taker) -> DiskResult<()> {
        self.records += 1;
        self.order = self.order.max(raw.header.order);
        self.rotten += u64::from(!raw.is_sound);
        let position = raw.header.position;
        let (slot, configuration) =
            raw.header.of.map_or((None, Configuration(0)), |entry| (Some(entry.slot), entry.configuration));
        let (head, payload, is_sound) = (&raw.head[..], &raw.payload[..], raw.is_sound);
        let record = Record { in_checkpoint, position, slot, configuration, head, payload, is_sound };
        while !each.take(&record).map_err(|why| damaged(name, position, &why))? {
            each.prepare().await?;
        }
        Ok(())
    }
}

fn damaged(name: &str, at: u64, why: &str) -> DiskError {
    DiskError::Failed(format!("{name} is damaged at byte {at}: {why}"))
}

struct End {
    /// Where the sound part ends.
    at: u64,
    /// Where anything that was written ends.
    size: u64,
}

/// Finds the end of the usable part of a journal: the rest was being written when the server
/// ended. The rest is damage, and refused, if a record behind it says that it had been durable. `position` is
/// where the file begins in the journal.
async fn sound_end(dir: &dyn Dir, name: &str, mut position: u64) -> DiskResult<End> {
    let mut reader = Reader::open(dir, name, false).await?;
    let (mut first_rotten, mut durable) = (None, 0);
    let mut at = 0;
    while let Some(raw) = reader.next().await? {
        durable = durable.max(raw.header.durable);
        if !raw.is_sound && first_rotten.is_none() {
            first_rotten = Some((at, raw.header.position));
        }
        position = raw.header.position + raw.header.record_bytes();
        at = reader.at;
        // A record that had been durable has changed since, and the records behind it count.
        first_rotten = first_rotten.filter(|(_, rotten)| durable <= *rotten);
    }
    let size = reader.written_end(at).await?;
    if at < size && reader.was_durable(at, position).await? {
        return Err(damaged(name, at, "what follows was written when this had long been durable"));
    }
    Ok(End { at: first_rotten.map_or(at, |(rotten_at, _)| rotten_at), size })
}

struct Raw {
    header: Header,
    head: Vec<u8>,
    payload: Vec<u8>,
    is_sound: bool,
}

struct Reader {
    file: Arc<dyn DiskFile>,
    name: String,
    size: u64,
    at: u64,
    /// Bytes read ahead, and where they begin.
    ahead: Vec<u8>,
    ahead_at: u64,
    /// Whether anything that is no record is an error instead of the end.
    strict: bool,
}

impl Reader {
    async fn open(dir: &dyn Dir, name: &str, strict: bool) -> DiskResult<Reader> {
        let file = dir.open(name).await?;
        let size = file.size().await?;
        Ok(Reader { file, name: name.into(), size, at: 0, ahead: Vec::new(), ahead_at: 0, strict })
    }

    async fn bytes(&mut self, at: u64, len: usize) -> DiskResult<Option<&[u8]>> {
        if at + len as u64 > self.size {
            return Ok(None);
        }
        let have = at >= self.ahead_at && at + len as u64 <= self.ahead_at + self.ahead.len() as u64;
        if !have {
            let want = len.max(READ_BYTES).min((self.size - at) as usize);
            self.ahead = self.file.read_at(at, want).await?;
            self.ahead_at = at;
        }
        let from = (at - self.ahead_at) as usize;
        Ok(self.ahead.get(from..from + len))
    }

    async fn next(&mut self) -> DiskResult<Option<Raw>> {
        let at = self.at;
        let raw = self.raw().await?;
        if raw.is_none() && self.strict && at < self.size {
            return Err(damaged(&self.name, at, "this is no record"));
        }
        Ok(raw)
    }

    async fn raw(&mut self) -> DiskResult<Option<Raw>> {
        let at = self.at;
        let Some(header) = self.bytes(at, HEADER_BYTES).await?.and_then(Header::take) else { return Ok(None) };
        let head_at = at + HEADER_BYTES as u64;
        let Some(head) = self.bytes(head_at, header.head_bytes as usize).await?.map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        if !header.fits_head(&head) {
            return Ok(None);
        }
        let payload_at = head_at + u64::from(header.head_bytes);
        let Some(payload) = self.bytes(payload_at, header.payload_bytes as usize).await?.map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.at = at + header.record_bytes();
        let is_sound = header.fits_payload(&payload);
        Ok(Some(Raw { header, head, payload, is_sound }))
    }

    /// Where the written part from `at` on ends: room that is set aside is zeros.
    async fn written_end(&mut self, at: u64) -> DiskResult<u64> {
        let (mut end, mut from) = (at, at);
        while from < self.size {
            let len = (self.size - from).min(READ_BYTES as u64);
            let bytes = self.bytes(from, len as usize).await?.unwrap_or_default();
            end = bytes.iter().rposition(|byte| *byte != 0).map_or(end, |last| from + last as u64 + 1);
            from += len;
        }
        Ok(end)
    }

    /// Whether a record behind `at`, where the next one is not sound, says that the bytes at `at` were durable
    /// when it was made. `position` is the place of `at` in the journal.
    async fn was_durable(&mut self, at: u64, position: u64) -> DiskResult<bool> {
        for behind in at + 1..self.size.saturating_sub(HEADER_BYTES as u64 - 1) {
            let Some(header) = self.bytes(behind, HEADER_BYTES).await?.and_then(Header::take) else { continue };
            // Data may hold anything, also what looks like records; those of this journal follow each other.
            if header.position == position + (behind - at) && header.durable > position {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
