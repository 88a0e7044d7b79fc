//! An open directory: pages of the client's listing, handed on in the kernel's portions.
//!
//! The kernel's offset of an entry is its cookie; the cookies leave 1 and 2 to `.` and `..`. A page is
//! kept from one portion to the next, so that a listing costs one request per page and server, and
//! so that entries of equal cookie that fall into two portions are given once.

use aze_client::{Client, Lease};
use aze_proto::attr::Identity;
use aze_proto::error::Failure;
use aze_proto::ids::Ino;
use aze_proto::message::Listed;
use parking_lot::{Mutex, MutexGuard};
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
            self.after = self.given;
            self.at_end = false;
        }
        while self.page.is_empty() && !self.at_end {
            self.attrs = attrs;
            let listing = client.list(who, dir, self.after, PAGE_ENTRIES, attrs).await?;
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
