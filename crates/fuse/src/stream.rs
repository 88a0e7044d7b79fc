//! An open directory: pages of the client's listing, handed on in the kernel's portions.
//!
//! The kernel's offset of an entry is its cookie; the cookies leave 1 and 2 to `.` and `..`. A page is
//! kept from one portion to the next, so that a listing costs a request for each page and each server, and
//! so that entries of equal cookie that fall into two portions are given once.

use aze_client::{Client, Lease, Lister};
use aze_io::sync::{Mutex, MutexGuard};
use aze_proto::attr::Identity;
use aze_proto::error::Failure;
use aze_proto::ids::Ino;
use aze_proto::message::Listed;
use std::collections::VecDeque;

/// Entries asked for at once: a few portions of the kernel's, and young enough when the last is used.
const PAGE_ENTRIES: usize = 1024;

/// One open directory.
pub struct Stream {
    /// Which directory.
    pub dir: Ino,
    place: Mutex<Place>,
}

/// How far a stream has come.
#[derive(Default)]
pub struct Place {
    /// Entries fetched and not yet given.
    page: VecDeque<Listed>,
    /// Whether they were fetched with attributes.
    attrs: bool,
    /// What fetches them, once it has begun.
    lister: Option<Lister>,
    /// Until when they may be believed.
    pub lease: Option<Lease>,
    /// The kernel's offset of the last entry that it got.
    given: u64,
    /// Cookie of the last entry fetched.
    after: u64,
    /// Nothing is left to fetch.
    at_end: bool,
    /// A part of the directory could not be listed: told when the rest has been given.
    failure: Option<Failure>,
}

impl Stream {
    /// At the first entry.
    pub fn new(dir: Ino) -> Stream {
        Stream { dir, place: Mutex::default() }
    }

    /// Goes to the kernel's `offset`, which is a matter of nothing where reading just goes on.
    pub fn seek(&self, offset: u64) -> MutexGuard<'_, Place> {
        let mut place = self.place.lock();
        if offset == 0 || offset != place.given {
            *place = Place { given: offset, after: offset, ..Place::default() };
        }
        place
    }
}

impl Place {
    /// The next entry and its offset, still to be taken; `None` at the end. Fetches a page where none is left.
    ///
    /// # Errors
    /// What kept a part of the directory from being listed, once the rest has been given.
    pub async fn peek(
        &mut self,
        client: &Client,
        who: &Identity,
        dir: Ino,
        attrs: bool,
    ) -> Result<Option<(&Listed, u64)>, Failure> {
        if attrs && !self.attrs && !self.page.is_empty() {
            self.page.clear();
            self.lister = None;
            self.after = self.given;
            self.at_end = false;
        }
        while self.page.is_empty() && !self.at_end {
            if attrs != self.attrs {
                (self.attrs, self.lister) = (attrs, None);
            }
            let lister = self.lister.get_or_insert_with(|| Lister::new(dir, attrs));
            let listing = lister.page(client, who, self.after, PAGE_ENTRIES).await?;
            self.lease = listing.lease;
            self.at_end = !listing.more || listing.entries.is_empty();
            if let Some(last) = listing.entries.last() {
                self.after = last.hash.cookie();
            }
            self.failure = self.failure.take().or(listing.failure);
            self.page = listing.entries.into();
        }
        match self.page.front() {
            Some(entry) => Ok(Some((entry, entry.hash.cookie()))),
            None => self.failure.clone().map_or(Ok(None), Err),
        }
    }

    /// Notes that the kernel has taken what [`Place::peek`] gave.
    pub fn take(&mut self) {
        if let Some(entry) = self.page.pop_front() {
            self.given = entry.hash.cookie();
        }
    }

    /// Notes that the kernel has taken `.` or `..`, whose offset is given.
    pub fn take_dots(&mut self, offset: u64) {
        self.given = offset;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::attr::FileKind;
    use aze_proto::name::{Name, NameHash};

    fn entry(name: &str) -> Listed {
        let name = Name::new(name.as_bytes()).expect("letters are a name");
        Listed { hash: NameHash::of(Ino(1), &name), name, ino: Ino(7), kind: FileKind::File, attr: None }
    }

    /// A stream that has fetched two entries and given the first one; with the offset behind that.
    fn half_read() -> (Stream, u64) {
        let stream = Stream::new(Ino(1));
        let entries = [entry("a"), entry("b")];
        let (first, last) = (entries[0].hash.cookie(), entries[1].hash.cookie());
        let mut place = stream.seek(0);
        (place.page, place.after) = (entries.into(), last);
        place.take();
        drop(place);
        (stream, first)
    }

    #[test]
    fn a_listing_goes_on_with_the_page_that_it_has() {
        let (stream, first) = half_read();
        let place = stream.seek(first);
        assert_eq!(place.page, [entry("b")]);
        assert_eq!(place.after, entry("b").hash.cookie(), "what is fetched next comes behind the page");
    }

    #[test]
    fn a_listing_that_begins_elsewhere_is_fetched_anew() {
        for offset in [2, 1 << 40] {
            let (stream, _) = half_read();
            let place = stream.seek(offset);
            assert!(place.page.is_empty(), "offset {offset}");
            assert_eq!((place.given, place.after), (offset, offset));
        }
    }

    #[test]
    fn a_listing_that_begins_again_shows_what_has_changed() {
        let stream = Stream::new(Ino(1));
        let mut place = stream.seek(0);
        (place.page, place.at_end) = ([entry("a")].into(), true);
        drop(place);
        let place = stream.seek(0);
        assert!(place.page.is_empty() && !place.at_end, "though none of it was given");
    }

    #[test]
    fn the_dots_move_the_offset_and_not_the_page() {
        let stream = Stream::new(Ino(1));
        let mut place = stream.seek(0);
        place.page = [entry("a")].into();
        place.take_dots(1);
        place.take_dots(2);
        drop(place);
        assert_eq!(stream.seek(2).page.len(), 1);
    }
}
