//! Room for a file: reserved ahead, given back, and where its data and holes begin.

use crate::client::unexpected;
use crate::data::{in_window, is_stale};
use crate::file::File;
use crate::route::{Knowing, Place, Question, is_replanned};
use aze_proto::fields::{Punch, Reserve, Seek};
use aze_proto::ids::{Generation, Ino, MapEpoch};
use aze_proto::limits::FILE_BYTES_MAX;
use aze_proto::place::{Layout, spans};
use aze_proto::{Attr, Code, Failure, Reply, Request, ServerIndex, ShardMap, Spread};
use std::collections::BTreeMap;
use std::ops::Range;

/// Requests of one call that are under way at the same time.
const REQUESTS_MAX: usize = 32;

/// Beyond so many bytes a reservation that cannot be had is refused before anything is reserved.
const TRIED_BYTES_MAX: u64 = 64 << 20;

/// What becomes of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It has memory; stored data stay.
    Reserved,
    /// It has memory, and is all zeros.
    Zeroed,
    /// It is a hole: zeros, without memory where that can be given back.
    Hole,
}

/// A server, and its answer: where its next data of a file are, or its next hole is.
type Said = (ServerIndex, Option<u64>);

/// What servers have said in earlier looks for data of one file, so that each is asked again only where that does not tell.
#[derive(Debug, Default)]
pub struct Sought {
    /// Where chunks of the file were then.
    of: Option<Placed>,
    /// By server: from where it was asked, and its answer.
    said: BTreeMap<ServerIndex, (u64, Option<u64>)>,
}

/// Tells where the chunks of a file are: the file, and the map by which servers are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    file: (Ino, Generation, MapEpoch),
    layout: (Layout, u8),
    map: MapEpoch,
}

impl Sought {
    /// Forgets all of it if it was said of another file, or by another map.
    fn keep_of(&mut self, placed: Placed) {
        if self.of != Some(placed) {
            *self = Sought { of: Some(placed), said: BTreeMap::new() };
        }
    }

    /// What a server would say, if that is known.
    fn of(&self, server: ServerIndex, offset: u64) -> Option<Option<u64>> {
        let (from, found) = self.said.get(&server)?;
        // Between the two it has nothing.
        (*from <= offset && found.is_none_or(|at| offset <= at)).then_some(*found)
    }

    /// Notes what a server has said of the bytes from `offset` on, and gives it.
    fn note(&mut self, (server, found): Said, offset: u64) -> Option<u64> {
        self.said.insert(server, (offset, found));
        found
    }
}

impl File {
    /// Sees to the room for a range of the file. Unless `keep_size`, the file is as long afterwards as
    /// the range needs; a hole never makes it longer.
    ///
    /// # Errors
    /// [`Code::Invalid`] if not open for writing or the range is empty, [`Code::TooLarge`],
    /// [`Code::NoSpace`]. After a failure any part may have been done, and the length has not changed.
    pub async fn make_room(&self, room: Room, offset: u64, len: u64, keep_size: bool) -> Result<(), Failure> {
        self.check_open_for(self.access().write, "writing")?;
        if len == 0 {
            return Err(Failure::new(Code::Invalid, "an empty range has no room"));
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let Some(end) = end else {
            return Err(Failure::new(Code::TooLarge, format!("a file has at most {FILE_BYTES_MAX} bytes")));
        };
        if room != Room::Hole && len > TRIED_BYTES_MAX {
            self.check_capacity(len).await?;
        }
        let until = self.core.patience();
        loop {
            let made = match room {
                Room::Hole => self.punch_once(offset..end).await,
                _ => self.reserve_once(offset..end, room == Room::Zeroed, keep_size).await,
            };
            match made {
                Err(failure) if is_stale(&failure) => {
                    until.check(&self.core, &failure, &Request::GetAttr { ino: self.ino(), exact: false })?;
                    self.refresh().await?;
                }
                made => return made,
            }
        }
    }

    async fn check_capacity(&self, len: u64) -> Result<(), Failure> {
        let mut capacity = 0u64;
        let map = self.core.routes.read().map.clone();
        for server in map.members() {
            capacity = capacity.saturating_add(map.server(server).map_or(0, |server| server.capacity_bytes));
        }
        if len <= capacity {
            return Ok(());
        }
        Err(Failure::new(Code::NoSpace, format!("{len} bytes: the volume has {capacity} in all")))
    }

    async fn reserve_once(&self, range: Range<u64>, zero: bool, keep_size: bool) -> Result<(), Failure> {
        let (life, mut attr) = self.of_this_start().await?;
        if let Some(reach) = attr.reach_for(range.end, || self.core.server_count()) {
            attr = self.report(&attr, 0, reach).await?;
        }
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let requests = spans(range.start, len, attr.chunk_bits).map(|span| {
            let Attr { ino, generation, born, chunk_bits, .. } = attr;
            let (chunk, offset, len) = (span.chunk, span.offset, span.len as u32);
            self.ask_room(
                &attr,
                life,
                chunk,
                Request::Reserve(Reserve {
                    ino,
                    generation,
                    born,
                    layout: attr.layout,
                    chunk,
                    offset,
                    len,
                    zero,
                    chunk_bits,
                }),
            )
        });
        in_window(REQUESTS_MAX, requests, |()| {}).await?;
        // All of it is there before the length says so.
        let end = if keep_size { 0 } else { range.end };
        self.report(&attr, end, Spread::sparse(end > 0 && range.start > attr.size)).await.map(drop)
    }

    /// Has servers read all chunks before `length` that they have not read from the volume's backing, and keep them. `width` of them are asked for at once, each so often if it does not come in time.
    pub(crate) async fn keep_chunks(&self, length: u64, width: usize, tries: usize) -> Result<(), Failure> {
        let until = self.core.patience();
        loop {
            let (life, attr) = self.of_this_start().await?;
            let Attr { ino, generation, born, layout, chunk_bits, .. } = attr;
            let chunks = 0..length.min(attr.size).div_ceil(1 << chunk_bits);
            let requests = chunks.map(|chunk| {
                let request = Request::Reserve(Reserve {
                    ino,
                    generation,
                    born,
                    layout,
                    chunk,
                    offset: 0,
                    len: 0,
                    zero: false,
                    chunk_bits,
                });
                let attr = &attr;
                async move {
                    for _ in 1..tries {
                        match self.ask_room(attr, life, chunk, request.clone()).await {
                            Err(failure) if failure.code == Code::TimedOut => {}
                            kept => return kept,
                        }
                    }
                    self.ask_room(attr, life, chunk, request).await
                }
            });
            match in_window(width, requests, drop).await {
                Err(failure) if is_stale(&failure) => {
                    until.check(&self.core, &failure, &Request::GetAttr { ino, exact: false })?;
                    self.refresh().await?;
                }
                kept => return kept,
            }
        }
    }

    async fn punch_once(&self, range: Range<u64>) -> Result<(), Failure> {
        let life = self.core.life_of(self.ino());
        let mut attr = self.refresh().await?;
        let (start, end) = (range.start, range.end.min(attr.size));
        if start < end {
            if !attr.spread.is_sparse() {
                attr = self.report(&attr, 0, Spread::sparse(true)).await?;
            }
            let requests = self.shards_of(&attr, start..end).map(|chunk| {
                let Attr { ino, generation, born, chunk_bits, .. } = attr;
                self.ask_room(
                    &attr,
                    life,
                    chunk,
                    Request::Punch(Punch { ino, generation, born, layout: attr.layout, chunk, start, end, chunk_bits }),
                )
            });
            in_window(REQUESTS_MAX, requests, |()| {}).await?;
        }
        self.report(&attr, 0, Spread::default()).await.map(drop)
    }

    /// Where the file's data go on, or its next hole is, from `offset` on; its end counts as a hole.
    ///
    /// # Errors
    /// [`Code::NotFound`] from the end of the file on, and where no data follow.
    pub async fn seek(&self, offset: u64, hole: bool) -> Result<u64, Failure> {
        let until = self.core.patience();
        loop {
            let attr = self.refresh().await?;
            match self.seek_once(&attr, offset, hole, &mut Sought::default()).await {
                Err(failure) if is_stale(&failure) || is_replanned(&failure) => {
                    until.check(&self.core, &failure, &Request::GetAttr { ino: self.ino(), exact: false })?;
                }
                done => return done,
            }
        }
    }

    /// Where the file's data go on from `offset` on, without a request to the home, and with what servers have said in earlier looks of
    /// `sought`: what others have changed since the first of these may be missed, and what they have written beyond the end of the data
    /// that are known here. For a caller that compares counts of changes which are from before its first look and from after its last one.
    ///
    /// # Errors
    /// As [`File::seek`].
    pub async fn seek_as_known(&self, offset: u64, sought: &mut Sought) -> Result<u64, Failure> {
        match self.seek_once(&self.inode.attr(), offset, false, sought).await {
            Err(failure) if failure.code != Code::NotFound => {
                *sought = Sought::default();
                self.seek(offset, false).await
            }
            done => done,
        }
    }

    async fn seek_once(&self, attr: &Attr, offset: u64, hole: bool, sought: &mut Sought) -> Result<u64, Failure> {
        let nothing = || Failure::new(Code::NotFound, format!("inode {} has nothing from {offset} on", attr.ino));
        if offset >= attr.size {
            return Err(nothing());
        }
        // Mostly it is in the chunk that the search begins in.
        let (map, chunk) = (self.core.routes.read().map.clone(), offset >> attr.chunk_bits);
        let Attr { ino, generation, born, layout, chunk_bits, .. } = *attr;
        sought.keep_of(Placed { file: (ino, generation, born), layout: (layout, chunk_bits), map: map.epoch });
        let nearest = map.server_of(map.chunk_shard(attr, chunk));
        let mut first = match nearest {
            Some(server) => match sought.of(server, offset) {
                Some(known) => known,
                None => sought.note(self.ask_seek(attr, &map, server, offset, hole).await?, offset),
            },
            None => None,
        };
        let is_near = first.is_some_and(|at| at >> attr.chunk_bits == chunk);
        if !is_near {
            let others = map.data_servers(attr).into_iter().filter(|server| Some(*server) != nearest);
            let (known, unknown): (Vec<_>, Vec<_>) =
                others.map(|server| (server, sought.of(server, offset))).partition(|(_, known)| known.is_some());
            first = first.into_iter().chain(known.into_iter().filter_map(|(_, at)| at.flatten())).min();
            let requests = unknown.into_iter().map(|(server, _)| self.ask_seek(attr, &map, server, offset, hole));
            in_window(REQUESTS_MAX, requests, |said| first = first.into_iter().chain(sought.note(said, offset)).min())
                .await?;
            // Where no data can be no server was asked.
            first = match hole {
                true => Some(first.unwrap_or(u64::MAX).min(attr.data_end().max(offset))),
                false => first.filter(|at| *at < attr.data_end()),
            };
        }
        let first = first.filter(|at| *at < attr.size);
        if hole { Ok(first.unwrap_or(attr.size)) } else { first.ok_or_else(nothing) }
    }

    /// One chunk, the first, of each shard that may have a part of a range.
    fn shards_of(&self, attr: &Attr, range: Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let (first, last) = (range.start >> attr.chunk_bits, (range.end - 1) >> attr.chunk_bits);
        // What the range has beyond all data is a hole.
        let last = last.min(attr.spread.chunks().saturating_sub(1)).max(first);
        first..=last.min(first.saturating_add(attr.layout.step() - 1))
    }

    async fn ask_seek(
        &self,
        attr: &Attr,
        map: &ShardMap,
        server: ServerIndex,
        offset: u64,
        hole: bool,
    ) -> Result<Said, Failure> {
        let Attr { ino, generation, born, chunk_bits, .. } = *attr;
        let request = Request::Seek(Seek { ino, generation, born, layout: attr.layout, offset, hole, chunk_bits });
        match self.core.ask_planned(&self.who, map, server, &request).await? {
            Reply::SoughtIs { at } => Ok((server, at)),
            other => Err(unexpected(&request, &other)),
        }
    }

    async fn ask_room(&self, attr: &Attr, life: u32, chunk: u64, request: Request) -> Result<(), Failure> {
        let shard = self.core.routes.read().map.chunk_shard(attr, chunk);
        let (place, knowing) = (Place::Shard(shard), Knowing::Latest);
        let (request, life) = (&request, Some((attr.ino, life)));
        let question = Question { who: &self.who, place, knowing, request, payload: &[], life, planned: None };
        match self.core.ask_question(question).await?.reply {
            Reply::Done => Ok(()),
            other => Err(unexpected(request, &other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_again_only_where_what_it_has_said_does_not_tell() {
        let mut sought = Sought::default();
        let [one, other] = [ServerIndex(0), ServerIndex(1)];
        assert_eq!(sought.of(one, 10), None);
        assert_eq!(sought.note((one, Some(50)), 10), Some(50));
        sought.note((other, None), 20);
        let of_one = [9, 10, 50, 51].map(|offset| sought.of(one, offset));
        assert_eq!(of_one, [None, Some(Some(50)), Some(Some(50)), None]);
        assert_eq!([19, 20, u64::MAX].map(|offset| sought.of(other, offset)), [None, Some(None), Some(None)]);
        sought.note((one, None), 51);
        assert_eq!([50, 51].map(|offset| sought.of(one, offset)), [None, Some(None)]);
        // Answers about chunks that are elsewhere now tell nothing.
        let placed = |generation, map| Placed {
            file: (Ino(7), Generation(generation), MapEpoch(1)),
            layout: (Layout::default(), 20),
            map: MapEpoch(map),
        };
        for (asked, expected) in [
            (placed(1, 3), None),
            (placed(1, 3), Some(None)),
            (placed(2, 3), None),
            (placed(2, 3), Some(None)),
            (placed(2, 4), None),
        ] {
            sought.keep_of(asked);
            assert_eq!(sought.of(one, 51), expected, "{asked:?}");
            sought.note((one, None), 51);
        }
    }
}
