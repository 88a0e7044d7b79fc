//! Reading and writing: cut at chunk borders, sent to all servers at once, checked, put together.
//!
//! It alone knows how a size stays exact while data and reports travel in parallel, what a short
//! chunk means, and that every byte read is compared with its checksum.

use crate::client::{Core, unexpected};
use crate::file::File;
use crate::flight::{FLIGHT_BYTES_MAX, NEAR_BYTES_MAX};
use crate::inodes::ReportNow;
use crate::owed::may_come_later;
use crate::route::{Knowing, Place, Question};
use crate::shared_read::take_shared;
use aze_proto::fields::{Read, Write};
use aze_proto::limits::{DAMAGED_TRIES_MAX, FILE_BYTES_MAX};
use aze_proto::place::{Span, spans};
use aze_proto::sum::{block_sum, piece_sums, pieces};
use aze_proto::{Attr, Code, Failure, Refusal, Reply, Request, ServerIndex, Spread};
use aze_rpc::Answer;
use futures_util::StreamExt;
use futures_util::future::{OptionFuture, join};
use futures_util::stream::FuturesUnordered;
use std::future::Future;

/// Whether the file has been truncated since its attributes were fetched.
pub(crate) fn is_stale(failure: &Failure) -> bool {
    matches!(failure.refusal, Some(Refusal::GenerationStale { .. }))
}

impl File {
    /// Writes all of `data` at `offset`. When it returns, every client sees data and size. Within a
    /// chunk a write is atomic, across chunks it is not.
    ///
    /// # Errors
    /// [`Code::Invalid`] if not open for writing, [`Code::TooLarge`], [`Code::NoSpace`]. After a
    /// failure any part of the data may have been written.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.check_open_for(self.access().write, "writing")?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(Failure::new(Code::TooLarge, format!("a file has at most {FILE_BYTES_MAX} bytes")));
        };
        if data.is_empty() {
            return Ok(());
        }
        let until = self.core.patience();
        loop {
            match self.write_once(offset, data, end).await {
                // All of it again: data reported in the old generation have been truncated.
                Err(failure) if is_stale(&failure) => {
                    until.check(&self.core, &failure, &Request::GetAttr { ino: self.ino(), exact: false })?;
                    self.refresh().await?;
                }
                done => return done,
            }
        }
    }

    /// The attributes of the file since the volume was started last, and the life of its home's server: data on other
    /// servers must not outlive a file that has gone with the last start, nor locks that have gone with that life.
    pub(crate) async fn of_this_start(&self) -> Result<(u32, Attr), Failure> {
        let life = self.core.life_of(self.ino());
        let attr = match self.inode.attr_of_this_start() {
            Some(attr) => attr,
            None => self.refresh().await?,
        };
        Ok((life, attr))
    }

    async fn write_once(&self, offset: u64, data: &[u8], end: u64) -> Result<(), Failure> {
        self.check_locks()?;
        let (life, mut attr) = self.of_this_start().await?;
        let beyond_first = end > attr.home_bytes();
        if let Some(reach) = attr.reach_for(end, || self.core.server_count()) {
            // Before any data are elsewhere than beside the inode the home has to know how far they may reach.
            attr = self.report(&attr, 0, reach).await?;
        }
        let with_first = offset < attr.home_bytes();
        let report = match beyond_first {
            false => ReportNow::Nothing,
            true => match self.inode.report_for(end, self.core.io.mono_ns()) {
                // Chunk 0 moves the time itself.
                ReportNow::Time if with_first => ReportNow::Nothing,
                report => report,
            },
        };
        let report_end = match report {
            ReportNow::End(end) => Some(end),
            ReportNow::Time => Some(0),
            ReportNow::Nothing => None,
        };
        let spread = Spread::sparse(offset > attr.size);
        let reporting = OptionFuture::from(report_end.map(|end| self.report(&attr, end, spread)));
        let (written, reported) = join(self.write_spans(&attr, life, offset, data), reporting).await;
        if let (Some(end), Some(Err(failure))) = (report_end, &reported)
            && may_come_later(failure)
        {
            // Data may be where only this report lets others see them.
            self.core.owe(&self.who, &attr, end, spread);
        }
        written?;
        reported.transpose()?;
        self.inode.wrote(&attr, end);
        Ok(())
    }

    async fn write_spans(&self, attr: &Attr, life: u32, offset: u64, data: &[u8]) -> Result<(), Failure> {
        let part = |span: Span| &data[span.start..span.start + span.len];
        let mut cut = spans(offset, data.len(), attr.chunk_bits);
        match (cut.next(), cut.next()) {
            (Some(only), None) => self.write_chunk(attr, life, only, part(only)).await,
            _ => {
                let all = spans(offset, data.len(), attr.chunk_bits);
                let writes = all.map(|span| self.write_chunk(attr, life, span, part(span)));
                in_window(window(&self.core, attr), writes, |()| {}).await
            }
        }
    }

    async fn write_chunk(&self, attr: &Attr, life: u32, span: Span, data: &[u8]) -> Result<(), Failure> {
        let request = Request::Write(Write {
            ino: attr.ino,
            generation: attr.generation,
            born: attr.born,
            layout: attr.layout,
            chunk: span.chunk,
            offset: span.offset,
            sums: piece_sums(u64::from(span.offset), data),
        });
        let _permit = self.core.fly(data.len()).await?;
        match until_sound(|| self.ask_chunk(attr, Some(life), span.chunk, &request, data)).await?.reply {
            Reply::Written { attr } => {
                if let Some(attr) = attr {
                    self.inode.learn(&attr);
                }
                Ok(())
            }
            other => Err(unexpected(&request, &other)),
        }
    }

    async fn ask_chunk(
        &self,
        attr: &Attr,
        life: Option<u32>,
        chunk: u64,
        request: &Request,
        payload: &[u8],
    ) -> Result<Answer, Failure> {
        let shard = self.core.routes.read().map.chunk_shard(attr, chunk);
        let (place, knowing, life) = (Place::Shard(shard), Knowing::Latest, life.map(|life| (attr.ino, life)));
        let question = Question { who: &self.who, place, knowing, request, payload, life, planned: None };
        self.core.ask_question(question).await
    }

    /// Tells the home of data that were or will be written beyond chunk 0, and of holes.
    pub(crate) async fn report(&self, attr: &Attr, end: u64, spread: Spread) -> Result<Attr, Failure> {
        let request = Request::Report { ino: attr.ino, generation: attr.generation, end, spread };
        let reply = self.core.ask(&self.who, Place::Home(attr.ino), &request).await?;
        self.core.attributes(&request, reply)
    }

    pub(crate) async fn refresh(&self) -> Result<Attr, Failure> {
        self.core.fetch_attr(&self.who, self.ino(), false).await
    }

    /// Reads up to `len` bytes at `offset`: fewer only at the end of the file, none beyond it.
    ///
    /// # Errors
    /// As [`File::read_into`].
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        let count = self.read_into(offset, &mut bytes).await?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Reads into `buf`; gives the number of bytes read, which is less than its length only at the
    /// end of the file. What lies beyond that number in `buf` is undefined.
    ///
    /// # Errors
    /// [`Code::Invalid`] if not open for reading; [`Code::Corrupt`] if a chunk does not match its
    /// checksums however often it is read.
    pub async fn read_into(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        self.check_open_for(self.access().read, "reading")?;
        self.read_anyway(offset, buf).await
    }

    /// The byte at `offset`, even if the file is not open for reading; `None` if the file ends before it. For a mount
    /// whose kernel has to learn a file's length.
    ///
    /// # Errors
    /// [`Code::Corrupt`], as of [`File::read_into`], and those of every request.
    pub async fn byte_at(&self, offset: u64) -> Result<Option<u8>, Failure> {
        let mut byte = [0];
        let count = self.read_anyway(offset, &mut byte).await?;
        Ok((count > 0).then_some(byte[0]))
    }

    /// Has the chunk at `offset` read from the volume's backing, if its server has room for it and has not done so.
    ///
    /// # Errors
    /// Those of every request; [`Code::NoSpace`] where another chunk would have to go for it.
    pub(crate) async fn fetch_chunk(&self, offset: u64) -> Result<(), Failure> {
        let until = self.core.patience();
        loop {
            let attr = self.inode.attr();
            let Some(span) = spans(offset, 1, attr.chunk_bits).next() else { return Ok(()) };
            match self.read_chunk(&attr, Span { len: 0, ..span }, &mut []).await {
                Err(failure) if is_stale(&failure) => {
                    until.check(&self.core, &failure, &Request::GetAttr { ino: self.ino(), exact: false })?;
                    self.refresh().await?;
                }
                fetched => return fetched.map(drop),
            }
        }
    }

    async fn read_anyway(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        let until = self.core.patience();
        loop {
            match self.read_once(offset, buf).await {
                Err(failure) if is_stale(&failure) => {
                    until.check(&self.core, &failure, &Request::GetAttr { ino: self.ino(), exact: false })?;
                    self.refresh().await?;
                }
                done => return done,
            }
        }
    }

    /// Within the size known here the file has bytes or holes: a size never shrinks within one
    /// generation, and servers refuse an old one. Beyond it only the home can tell; it is asked in
    /// the same breath, by way of chunk 0 if that is read anyway.
    async fn read_once(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Failure> {
        self.check_locks()?;
        let attr = self.inode.attr();
        let end = offset.saturating_add(buf.len() as u64).min(FILE_BYTES_MAX);
        if end <= offset {
            return Ok(0);
        }
        let known_end = attr.size.clamp(offset, end);
        let first_end = end.min(attr.home_bytes());
        let with_first = offset < attr.home_bytes();
        let sure_end = if with_first { known_end.max(first_end) } else { known_end };
        let asking = OptionFuture::from((end > attr.size && !with_first).then(|| self.refresh()));
        let reading = self.read_spans(&attr, offset, &mut buf[..(sure_end - offset) as usize]);
        let (read, asked) = join(reading, asking).await;
        let (first_size, asked) = (read?, asked.transpose()?);
        if let Some(newer) = asked.as_ref().filter(|newer| newer.generation != attr.generation) {
            return Err(Failure::refused(Refusal::GenerationStale { generation: newer.generation }));
        }
        let size = match asked.map(|fresh| fresh.size).or(first_size) {
            Some(size) => size,
            None if end > attr.size => self.refresh().await?.size,
            None => attr.size,
        };
        self.inode.wrote(&attr, size);
        let size = size.max(attr.size);
        let real_end = end.min(size).max(offset);
        if real_end > sure_end {
            // A chunk that has grown since is read once more from its beginning: a write to it is seen whole or not at all.
            let from = (sure_end >> attr.chunk_bits << attr.chunk_bits).max(offset);
            let rest = &mut buf[(from - offset) as usize..(real_end - offset) as usize];
            self.read_spans(&attr, from, rest).await?;
        }
        Ok((real_end - offset) as usize)
    }

    /// Reads a range, holes as zeros; gives the file's size if chunk 0 told it.
    async fn read_spans(&self, attr: &Attr, offset: u64, buf: &mut [u8]) -> Result<Option<u64>, Failure> {
        let mut cut = spans(offset, buf.len(), attr.chunk_bits);
        if let (Some(only), None) = (cut.next(), cut.next()) {
            return self.read_chunk(attr, only, buf).await;
        }
        let (mut size, mut rest) = (None, buf);
        let reads = spans(offset, rest.len(), attr.chunk_bits).map(|span| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(span.len);
            rest = after;
            self.read_chunk(attr, span, part)
        });
        in_window(window(&self.core, attr), reads, |told: Option<u64>| size = size.or(told)).await?;
        Ok(size)
    }

    /// Reads a part of one chunk; gives the file's size if the chunk lives with the inode.
    async fn read_chunk(&self, attr: &Attr, span: Span, part: &mut [u8]) -> Result<Option<u64>, Failure> {
        let Span { chunk, offset, len, .. } = span;
        let (ino, generation, born) = (attr.ino, attr.generation, attr.born);
        let request =
            Request::Read(Read { ino, generation, born, layout: attr.layout, chunk, offset, len: len as u32 });
        let _permit = self.core.fly(len).await?;
        // Further looks tell damage on the way from damage in the store.
        for _ in 0..DAMAGED_TRIES_MAX {
            let Answer { reply, payload, shared, .. } = self.ask_chunk(attr, None, chunk, &request, &[]).await?;
            let Reply::Data { start, sums, size } = reply else {
                return Err(unexpected(&request, &reply));
            };
            let (at, from) = (offset as usize, start as usize);
            let sound = match shared {
                Some(shared) => take_shared(part, at, from, &*shared, &sums),
                None => take_sound(part, at, from, &payload, &sums),
            };
            if start <= offset && sound {
                return Ok(size);
            }
        }
        Err(self.corrupt(attr, chunk))
    }

    fn corrupt(&self, attr: &Attr, chunk: u64) -> Failure {
        let map = self.core.routes.read().map.clone();
        let index = map.server_of(map.chunk_shard(attr, chunk)).unwrap_or(ServerIndex(u16::MAX));
        let host = map.server(index).map_or("an unknown node", |server| &server.host);
        let detail = format!(
            "chunk {chunk} of inode {} from server {index} on {host} does not match its checksums, read {DAMAGED_TRIES_MAX} times",
            attr.ino
        );
        Failure::new(Code::Corrupt, detail)
    }
}

/// Asks until the bytes sent arrive as they were: those that were damaged on the way have had no effect.
pub(crate) async fn until_sound<T, F>(mut ask: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut result = ask().await;
    for _ in 1..DAMAGED_TRIES_MAX {
        match result {
            Err(failure) if failure.code == Code::Corrupt => result = ask().await,
            other => return other,
        }
    }
    result
}

/// Fills `part`, which begins at `offset`, with the payload, which begins at `start`; the rest is a hole.
/// Each block is compared with its checksum and copied while it is in the processor's cache.
/// `false`, and something in `part`, if one does not match.
pub(crate) fn take_sound(part: &mut [u8], offset: usize, start: usize, bytes: &[u8], sums: &[u32]) -> bool {
    let mut sums = sums.iter();
    for (from, to) in pieces(start as u64, bytes.len()) {
        let block = &bytes[from..to];
        if sums.next() != Some(&block_sum(block)) {
            return false;
        }
        let skip = offset.saturating_sub(start + from).min(block.len());
        let at = (start + from + skip).saturating_sub(offset).min(part.len());
        let count = (block.len() - skip).min(part.len() - at);
        part[at..at + count].copy_from_slice(&block[skip..skip + count]);
    }
    let there = (start + bytes.len()).saturating_sub(offset).min(part.len());
    part[there..].fill(0);
    sums.next().is_none()
}

/// Chunks that one call may have under way: all that the client may, if it waits for a network.
fn window(core: &Core, attr: &Attr) -> usize {
    let bytes = if core.is_all_near() { NEAR_BYTES_MAX } else { FLIGHT_BYTES_MAX };
    (bytes >> attr.chunk_bits).max(1)
}

/// Runs futures, at most `width` at a time, and hands on their results as they come. After a
/// failure no further one is started; those under way are waited for, so that nothing goes on
/// behind the caller's back.
pub(crate) async fn in_window<T, F: Future<Output = Result<T, Failure>>>(
    width: usize,
    mut work: impl Iterator<Item = F>,
    mut each: impl FnMut(T),
) -> Result<(), Failure> {
    let mut running = FuturesUnordered::new();
    let mut failed = None;
    loop {
        while failed.is_none() && running.len() < width {
            let Some(next) = work.next() else { break };
            running.push(next);
        }
        match running.next().await {
            None => return failed.map_or(Ok(()), Err),
            Some(Ok(done)) => each(done),
            Some(Err(failure)) => {
                failed.get_or_insert(failure);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::limits::BLOCK_BYTES;

    #[test]
    fn parts_are_filled_with_what_is_sound_and_zeros() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES - 100).map(|at| (at % 251) as u8 + 1).collect();
        let start = 2 * BLOCK_BYTES;
        let sums = piece_sums(start as u64, &bytes);
        let (ends_at, b) = (start + bytes.len(), BLOCK_BYTES);
        for (offset, len) in [
            (start, 1),
            (start, b),
            (start + 5, b),
            (start + b + 1, 2 * b),
            (ends_at, 10),
            (ends_at + 7, b),
            (start + 3, 9 * b),
        ] {
            let mut part = vec![0xaa; len];
            assert!(take_sound(&mut part, offset, start, &bytes, &sums));
            let expected: Vec<u8> =
                (offset..offset + len).map(|at| bytes.get(at - start).copied().unwrap_or(0)).collect();
            assert!(part == expected, "{len} at {offset}");
            let mut damaged = bytes.clone();
            damaged[2 * b + 9] ^= 4;
            assert!(!take_sound(&mut part, offset, start, &damaged, &sums), "{len} at {offset}");
        }
        assert!(!take_sound(&mut [0; 9], start, start, &bytes, &sums[1..]));
        assert!(!take_sound(&mut [0; 9], start, start, &bytes, &[&sums[..], &[0]].concat()));
        assert!(take_sound(&mut [1; 9], start, start, &[], &[]));
    }
}
