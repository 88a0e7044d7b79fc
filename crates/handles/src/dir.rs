//! Open directories: pages of the client's listing, given one entry at a time.

use crate::connected::{Connected, check_end};
use crate::error::{Error, Result};
use crate::path::parse;
use aze_client::Lister;
use aze_io::real::OfProcess;
use aze_io::sync::Mutex;
use aze_proto::attr::{Attr, FileKind};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Ino;
use aze_proto::message::Listed;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries asked for at once.
const PAGE_ENTRIES: usize = 1024;

/// Requests for attributes of one listing that are under way at a time.
const ATTRS_AT_ONCE: usize = 64;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name, without `/` and NUL.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub ino: u64,
    /// The inode's kind.
    pub kind: FileKind,
    /// Its attributes as of the listing, if they came along.
    pub attr: Option<Attr>,
    /// Where the listing goes on after it: for seekdir(3).
    pub next: u64,
}

/// An open directory of this process: opendir(3). In a forked process every call fails with EBADF.
pub struct Dir(OfProcess<Open>);

struct Open {
    connected: Arc<Connected>,
    ino: Ino,
    parent: Ino,
    with_attrs: bool,
    place: Mutex<Place>,
}

#[derive(Default)]
struct Place {
    /// Entries fetched and not yet given.
    page: VecDeque<Listed>,
    /// Where the next entry begins: 0 before `.`, 1 before `..`, else the cookie of the last entry given.
    given: u64,
    /// Cookie of the last entry fetched.
    fetched: u64,
    at_end: bool,
    /// What fetches them, once it has begun.
    lister: Option<Lister>,
    /// A part of the directory could not be listed: told when the rest has been given.
    failure: Option<Failure>,
}

/// Places before the first entry: `.` and `..`. Cookies of entries are larger.
const DOTS: u64 = 2;

impl Connected {
    /// opendir(3). With `with_attrs` entries come with attributes where the server that has the entry has the inode, too.
    ///
    /// # Errors
    /// As in its manual page.
    pub async fn open_dir(self: &Arc<Connected>, path: &[u8], with_attrs: bool) -> Result<Arc<Dir>> {
        let path = parse(path)?;
        let attr = self.client().resolve(self.who(), &path.bytes, true).await?;
        check_end(&crate::path::Path { wants_dir: true, ..path }, &attr)?;
        // Rights are told by the first page: an open does not wait for the first read to fail.
        let mut place = Place::default();
        place.fetch(self, attr.ino, with_attrs).await?;
        let parent = if attr.parent == Ino(0) { attr.ino } else { attr.parent };
        let open = Open { connected: self.clone(), ino: attr.ino, parent, with_attrs, place: Mutex::new(place) };
        Ok(Arc::new(Dir(OfProcess::new(open))))
    }
}

impl Connected {
    /// A directory, whose rights the caller has checked, in the directory `parent`. Asks no server before the first read.
    pub fn dir_of(self: &Arc<Connected>, ino: Ino, parent: Ino) -> Dir {
        let parent = if parent == Ino(0) { ino } else { parent };
        let (connected, place) = (self.clone(), Mutex::default());
        Dir(OfProcess::new(Open { connected, ino, parent, with_attrs: false, place }))
    }

    /// All entries of a directory but `.` and `..`, in memory. With `with_attrs` each has its attributes, asked for one by one
    /// where they do not come with the entry; an entry that is removed meanwhile is left out.
    ///
    /// # Errors
    /// As opendir(3) and readdir(3): no part of a directory is given without the rest.
    pub async fn entries(&self, path: &[u8], with_attrs: bool) -> Result<Vec<DirEntry>> {
        let path = parse(path)?;
        let dir = self.client().resolve(self.who(), &path.bytes, true).await?;
        check_end(&crate::path::Path { wants_dir: true, ..path }, &dir)?;
        let (mut entries, mut place) = (Vec::new(), Place::default());
        while !place.at_end {
            place.fetch(self, dir.ino, with_attrs).await?;
            if let Some(failure) = place.failure.take() {
                return Err(failure.into());
            }
            let page = std::mem::take(&mut place.page);
            entries.extend(page.into_iter().map(|listed| DirEntry {
                name: listed.name.as_bytes().to_vec(),
                ino: listed.ino.0,
                kind: listed.kind,
                attr: listed.attr,
                next: listed.hash.cookie(),
            }));
        }
        if with_attrs { self.with_all_attrs(entries).await } else { Ok(entries) }
    }

    /// Asks for the attributes that entries lack, of many at a time.
    async fn with_all_attrs(&self, entries: Vec<DirEntry>) -> Result<Vec<DirEntry>> {
        let (client, who) = (self.client(), self.who());
        let asked = entries.into_iter().map(|mut entry| async move {
            if entry.attr.is_none() || entry.kind == FileKind::Directory {
                entry.attr = match client.getattr(who, Ino(entry.ino)).await {
                    Err(Failure { code: Code::Stale | Code::NotFound, .. }) => return Ok::<_, Error>(None),
                    attr => Some(attr?),
                };
            }
            Ok(Some(entry))
        });
        let whole: Vec<Option<DirEntry>> = stream::iter(asked).buffered(ATTRS_AT_ONCE).try_collect().await?;
        Ok(whole.into_iter().flatten().collect())
    }

    /// The entries of a directory that one server has, with attributes, without `.` and `..`: the directory has those
    /// of all servers, each entry on one of them. None for a number that no server has, or one that has left.
    ///
    /// # Errors
    /// As opendir(3) and readdir(3).
    pub async fn entries_on(&self, path: &[u8], server: usize) -> Result<Vec<DirEntry>> {
        let path = parse(path)?;
        let (client, who) = (self.client(), self.who());
        let dir = client.resolve(who, &path.bytes, true).await?;
        check_end(&crate::path::Path { wants_dir: true, ..path }, &dir)?;
        let (mut entries, mut after) = (Vec::new(), 0);
        let map = client.map();
        let Some(server) = map.members().find(|member| usize::from(member.0) == server) else { return Ok(entries) };
        loop {
            let listing = client.list_on(who, dir.ino, server, after, PAGE_ENTRIES, true).await?;
            let Some(last) = listing.entries.last() else { return Ok(entries) };
            after = last.hash.cookie();
            for listed in listing.entries {
                let attr = match listed.attr {
                    None => client.getattr(who, listed.ino).await.map(Some),
                    attr => Ok(attr),
                };
                match attr {
                    // It was removed meanwhile.
                    Err(Failure { code: Code::Stale | Code::NotFound, .. }) => {}
                    attr => entries.push(DirEntry {
                        name: listed.name.as_bytes().to_vec(),
                        ino: listed.ino.0,
                        kind: listed.kind,
                        attr: attr?,
                        next: listed.hash.cookie(),
                    }),
                }
            }
            if !listing.more {
                return Ok(entries);
            }
        }
    }
}

impl Place {
    async fn fetch(&mut self, connected: &Connected, dir: Ino, with_attrs: bool) -> Result<()> {
        let (client, who) = (connected.client(), connected.who());
        let lister = self.lister.get_or_insert_with(|| Lister::new(dir, with_attrs));
        let listing = match lister.page(client, who, self.fetched, PAGE_ENTRIES).await {
            // A directory that has been removed is empty.
            Err(Failure { code: Code::Stale, .. }) => {
                self.at_end = true;
                return Ok(());
            }
            listing => listing?,
        };
        self.at_end = !listing.more || listing.entries.is_empty();
        if let Some(last) = listing.entries.last() {
            self.fetched = last.hash.cookie();
        }
        self.failure = self.failure.take().or(listing.failure);
        self.page = listing.entries.into();
        Ok(())
    }
}

impl Open {
    /// The next entry, which stays the next one until [`Place::take`]; `None` at the end. Fetches a page where none is left.
    fn peek(&self, place: &mut Place) -> Result<Option<DirEntry>> {
        if place.given < DOTS {
            let (name, ino) = if place.given == 0 { (&b"."[..], self.ino) } else { (&b".."[..], self.parent) };
            let (name, next) = (name.to_vec(), place.given + 1);
            return Ok(Some(DirEntry { name, ino: ino.0, kind: FileKind::Directory, attr: None, next }));
        }
        while place.page.is_empty() && !place.at_end {
            self.connected.wait(place.fetch(&self.connected, self.ino, self.with_attrs))?;
        }
        match place.page.front() {
            Some(Listed { hash, name, ino, kind, attr }) => {
                let name = name.as_bytes().to_vec();
                Ok(Some(DirEntry { name, ino: ino.0, kind: *kind, attr: attr.clone(), next: hash.cookie() }))
            }
            None => place.failure.take().map_or(Ok(None), |failure| Err(failure.into())),
        }
    }
}

impl Place {
    /// Goes behind the entry that [`Open::peek`] gave.
    fn take(&mut self, entry: &DirEntry) {
        if self.given >= DOTS {
            self.page.pop_front();
        }
        self.given = entry.next;
    }
}

impl Dir {
    fn open(&self) -> Result<&Open> {
        self.0.get().ok_or_else(|| Error::of_parent("the directory"))
    }

    /// readdir(3): the next entry, `.` and `..` among them; `None` at the end. Blocks when the next page has to be fetched.
    ///
    /// # Errors
    /// EIO or ETIMEDOUT, after the rest has been given, if a server with entries does not answer.
    pub fn read(&self) -> Result<Option<DirEntry>> {
        let open = self.open()?;
        let mut place = open.place.lock();
        let entry = open.peek(&mut place)?;
        entry.iter().for_each(|entry| place.take(entry));
        Ok(entry)
    }

    /// Hands the next entries to `takes`, which says whether it has taken one: the first that it has not comes again. Gives how
    /// many were taken. Blocks as [`Dir::read`].
    ///
    /// # Errors
    /// As [`Dir::read`]; not before the entries that there are were taken.
    pub fn read_while(&self, mut takes: impl FnMut(&DirEntry) -> bool) -> Result<usize> {
        let open = self.open()?;
        let mut place = open.place.lock();
        while place.page.is_empty() && !place.at_end {
            open.connected.wait(place.fetch(&open.connected, open.ino, open.with_attrs))?;
        }
        let mut taken = 0;
        while taken == 0 || !place.page.is_empty() {
            match open.peek(&mut place)? {
                Some(entry) if takes(&entry) => place.take(&entry),
                _ => break,
            }
            taken += 1;
        }
        // The next page, or its failure, is for the next call.
        Ok(taken)
    }

    /// telldir(3): for [`Dir::seek`].
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn tell(&self) -> Result<u64> {
        Ok(self.open()?.place.lock().given)
    }

    /// seekdir(3), and rewinddir(3) with 0: the listing is fetched anew from there.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn seek(&self, to: u64) -> Result<()> {
        let fetched = if to <= DOTS { 0 } else { to };
        *self.open()?.place.lock() = Place { given: to, fetched, ..Place::default() };
        Ok(())
    }

    /// The directory's inode number.
    ///
    /// # Errors
    /// EBADF in a forked process.
    pub fn ino(&self) -> Result<u64> {
        Ok(self.open()?.ino.0)
    }
}
