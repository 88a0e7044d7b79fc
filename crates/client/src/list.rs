//! Listings: the pages of all servers that hold entries of a directory, merged in cookie order.

use crate::attrs::is_silence;
use crate::client::{Client, Core, unexpected};
use crate::leases::Lease;
use crate::route::{Place, is_replanned};
use aze_proto::limits::LIST_ENTRIES_MAX;
use aze_proto::message::Listed;
use aze_proto::{Failure, Identity, Ino, MapEpoch, Reply, Request, ServerIndex, ShardMap};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Entries asked of each server beyond its even share, so that a page is seldom cut short by the
/// server that has the fewest.
const SHARE_EXTRA: usize = 16;

/// Entries that a listing in progress keeps beyond its page, of all servers together: some 13 MB.
const AHEAD_ENTRIES_MAX: usize = 65_536;

/// How long they are kept: a listing shows nothing that is older.
const AHEAD_NS_MAX: u64 = 1_000_000_000;

/// One page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// In the order of their cookies ([`NameHash::cookie`](aze_proto::NameHash::cookie)); entries of
    /// equal cookie are never split between pages. Attributes are absent where they were not asked
    /// for, or where the inode lives elsewhere.
    pub entries: Vec<Listed>,
    /// Whether another page follows, after the cookie of the last entry.
    pub more: bool,
    /// A server's entries of this range are missing, and this is why.
    pub failure: Option<Failure>,
    /// Until when all of it may be believed: names, and attributes of all but directories.
    pub lease: Option<Lease>,
}

/// A server's page: its entries, and whether it has more.
type Page = (Vec<Listed>, bool);

/// The same with its lease.
type Leased = Result<(Page, Option<Lease>), Failure>;

/// A listing in progress: page by page; each begins where the last one ended. What servers have sent beyond a page is
/// kept for the next ones, so that a server is asked again only when that is used up.
pub struct Lister {
    dir: Ino,
    attrs: bool,
    /// Whether servers are asked for more than a page needs.
    ahead: bool,
    /// Cookie of the last entry that was given.
    at: u64,
    holders: Option<Vec<Holder>>,
    /// The map by which they were found: with another one they may have other entries.
    map: MapEpoch,
    /// Why the holders could not be asked for.
    unknown: Option<Failure>,
}

/// A server with entries of the directory.
struct Holder {
    server: ServerIndex,
    /// Fetched and not given yet.
    entries: VecDeque<Listed>,
    /// Cookie of the last entry fetched.
    after: u64,
    /// Whether there are further ones.
    more: bool,
    lease: Option<Lease>,
    /// When they were asked for.
    asked_ns: u64,
    /// It did not answer when it was asked last.
    failed: bool,
}

impl Holder {
    fn new(server: ServerIndex, after: u64) -> Holder {
        let (entries, more, failed) = (VecDeque::new(), true, false);
        Holder { server, entries, after, more, lease: None, asked_ns: 0, failed }
    }

    /// Forgets the entries that were fetched and not given.
    fn go_back(&mut self, at: u64) {
        *self = Holder::new(self.server, at);
    }

    fn take(&mut self, (entries, more): Page, lease: Option<Lease>, asked_ns: u64) {
        if let Some(last) = entries.last() {
            self.after = last.hash.cookie();
        }
        self.entries = entries.into();
        (self.more, self.lease, self.asked_ns, self.failed) = (more, lease, asked_ns, false);
    }
}

impl Lister {
    /// Of a directory, with attributes or without.
    pub fn new(dir: Ino, attrs: bool) -> Lister {
        Lister { dir, attrs, ahead: true, at: 0, holders: None, map: MapEpoch(0), unknown: None }
    }

    /// The page after a cookie; where that is not the end of the last page the listing begins anew there. See
    /// [`Client::list`]. Nothing in it is older than a second.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub async fn page(
        &mut self,
        client: &Client,
        who: &Identity,
        after: u64,
        limit: usize,
    ) -> Result<Listing, Failure> {
        let until = client.core.patience();
        loop {
            match self.page_of_map(client, who, after, limit).await {
                // Slots have moved meanwhile: the listing begins anew where the last page ended.
                Err(failure) if is_replanned(&failure) => {
                    self.holders = None;
                    until.check(&client.core, &failure, &Request::Holders { dir: self.dir })?;
                }
                other => return other,
            }
        }
    }

    async fn page_of_map(
        &mut self,
        client: &Client,
        who: &Identity,
        after: u64,
        limit: usize,
    ) -> Result<Listing, Failure> {
        let core = &client.core;
        let limit = limit.clamp(1, LIST_ENTRIES_MAX);
        let map = core.routes.read().map.clone();
        if after != self.at || map.epoch != self.map {
            (self.at, self.holders, self.map) = (after, None, map.epoch);
        }
        if self.holders.is_none() {
            let (servers, unknown) = match core.holders(who, self.dir).await {
                Ok(holders) => (holders, None),
                // Any server may have entries: those that have are asked, and the rest is said to be missing.
                Err(failure) if is_silence(&failure) => (core.routes.read().map.members().collect(), Some(failure)),
                Err(failure) => return Err(failure),
            };
            // Their home may not have heard yet who has left.
            let there = servers.into_iter().filter(|server| !map.has_left(*server));
            self.holders = Some(there.map(|server| Holder::new(server, after)).collect());
            self.unknown = unknown;
        }
        let holders = self.holders.as_mut().expect("they were asked for");
        let now_ns = core.io.mono_ns();
        for holder in holders.iter_mut() {
            let is_old = !holder.entries.is_empty() && now_ns > holder.asked_ns + AHEAD_NS_MAX;
            if is_old {
                // Its reader is slow: what would be sent beyond the next page, would become too old again.
                self.ahead = false;
            }
            if is_old || holder.failed {
                holder.go_back(after);
            }
        }
        let share = limit.div_ceil(holders.len().max(1)) + SHARE_EXTRA;
        let count = if self.ahead { share.max(AHEAD_ENTRIES_MAX / holders.len().max(1)) } else { share };
        let (dir, attrs, count) = (self.dir, self.attrs, count.min(limit) as u32);
        let asked = holders.iter().enumerate().filter(|(_, holder)| holder.entries.is_empty() && holder.more);
        let asked = asked.map(async |(index, holder)| {
            let request = Request::List { dir, after: holder.after, limit: count, attrs };
            (index, core.list_one(who, &map, holder.server, &request).await)
        });
        let mut failure = None;
        let mut answers: FuturesUnordered<_> = asked.collect();
        let mut pages = Vec::with_capacity(answers.len());
        while let Some((index, page)) = answers.next().await {
            match page {
                // Without waiting for the others: one may be silent.
                Err(why) if is_replanned(&why) => return Err(why),
                page => pages.push((index, page)),
            }
        }
        drop(answers);
        for (index, page) in pages {
            match page {
                Ok((page, lease)) => holders[index].take(page, lease, now_ns),
                Err(why) => {
                    holders[index].failed = true;
                    failure.get_or_insert(why);
                }
            }
        }
        let answered = holders.is_empty() || holders.iter().any(|holder| !holder.failed);
        if let Some(failure) = failure.take_if(|_| !answered) {
            return Err(failure);
        }
        let mut listing = merge(holders, limit);
        listing.failure = self.unknown.clone().or(failure);
        if let Some(last) = listing.entries.last() {
            self.at = last.hash.cookie();
        }
        Ok(listing)
    }
}

impl Client {
    /// A page of a directory's entries after a cookie (0: from the first), of about `limit` entries
    /// and no more than [`LIST_ENTRIES_MAX`] if cookies are distinct. Needs read permission. What exists throughout a listing is
    /// in it exactly once, also if other entries change meanwhile. For several pages a [`Lister`] asks less.
    ///
    /// # Errors
    /// [`Code::NotDirectory`](aze_proto::Code::NotDirectory),
    /// [`Code::AccessDenied`](aze_proto::Code::AccessDenied),
    /// [`Code::Stale`](aze_proto::Code::Stale). A server that does not answer is no error as long as
    /// others do, but stated in [`Listing::failure`].
    pub async fn list(
        &self,
        who: &Identity,
        dir: Ino,
        after: u64,
        limit: usize,
        attrs: bool,
    ) -> Result<Listing, Failure> {
        Lister { ahead: false, ..Lister::new(dir, attrs) }.page(self, who, after, limit).await
    }
}

impl Client {
    /// As [`Client::list`], of the entries that one server has: the entries of a directory are those that all servers
    /// have, each on one of them.
    ///
    /// # Errors
    /// As [`Client::list`]; those of a request to this server, if it has any.
    pub async fn list_on(
        &self,
        who: &Identity,
        dir: Ino,
        server: ServerIndex,
        after: u64,
        limit: usize,
        attrs: bool,
    ) -> Result<Listing, Failure> {
        if !self.core.holders(who, dir).await?.contains(&server) {
            return Ok(Listing::default());
        }
        let limit = limit.clamp(1, LIST_ENTRIES_MAX);
        let request = Request::List { dir, after, limit: limit as u32, attrs };
        let map = self.core.routes.read().map.clone();
        let ((entries, more), lease) = self.core.list_one(who, &map, server, &request).await?;
        Ok(Listing { entries, more, failure: None, lease })
    }
}

impl Core {
    async fn holders(&self, who: &Identity, dir: Ino) -> Result<Vec<ServerIndex>, Failure> {
        let request = Request::Holders { dir };
        match self.ask(who, Place::Home(dir), &request).await? {
            Reply::Holders { servers, .. } => Ok(servers),
            other => Err(unexpected(&request, &other)),
        }
    }

    async fn list_one(&self, who: &Identity, map: &ShardMap, server: ServerIndex, request: &Request) -> Leased {
        let (reply, lease) = self.ask_leased_planned(who, map, server, request).await?;
        match reply {
            Reply::Listing { entries, more } if !(more && entries.is_empty()) => {
                for attr in entries.iter().filter_map(|entry| entry.attr.as_ref()) {
                    self.attributed.learn(attr, lease);
                }
                Ok(((entries, more), lease))
            }
            other => Err(unexpected(request, &other)),
        }
    }
}

/// The next entries of all holders that have answered, about `limit` of them. Where one has more than it has sent, the
/// page ends before what follows from the others.
fn merge(holders: &mut [Holder], limit: usize) -> Listing {
    let mut listing = Listing::default();
    let answered = || holders.iter().filter(|holder| !holder.failed);
    let end =
        answered().filter(|holder| holder.more).filter_map(|holder| holder.entries.back()).map(|last| last.hash).min();
    let key = |holder: &Holder| holder.entries.front().map(|next| Reverse((next.hash, next.name.clone())));
    let mut fronts: BinaryHeap<_> = holders
        .iter()
        .enumerate()
        .filter(|(_, holder)| !holder.failed)
        .filter_map(|(index, holder)| Some((key(holder)?, index)))
        .collect();
    let mut leases = BTreeMap::new();
    while let Some((Reverse((hash, _)), index)) = fronts.pop() {
        // Entries of one cookie are not split.
        let is_full = listing.entries.len() >= limit && listing.entries.last().is_none_or(|last| last.hash != hash);
        if is_full || end.is_some_and(|end| hash > end) {
            break;
        }
        let holder = &mut holders[index];
        listing.entries.extend(holder.entries.pop_front());
        leases.insert(index, holder.lease);
        fronts.extend(key(holder).map(|next| (next, index)));
    }
    listing.more = holders.iter().any(|holder| !holder.failed && (holder.more || !holder.entries.is_empty()));
    listing.lease = leases.into_values().reduce(Lease::both).flatten();
    listing
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::{Code, FileKind, Name, NameHash};

    fn hash(cookie: u64) -> NameHash {
        NameHash::after_cookie(cookie - 1).unwrap()
    }

    fn page(cookies: &[u64], more: bool) -> Result<Page, Failure> {
        let entry = |cookie: &u64| Listed {
            hash: hash(*cookie),
            name: Name::new(format!("n{cookie}").as_bytes()).unwrap(),
            ino: Ino(*cookie),
            kind: FileKind::File,
            attr: None,
        };
        Ok((cookies.iter().map(entry).collect(), more))
    }

    fn holders(pages: Vec<Result<Page, Failure>>) -> Vec<Holder> {
        let holder = |page: Result<Page, Failure>| {
            let mut holder = Holder::new(ServerIndex(0), 0);
            match page {
                Ok(page) => holder.take(page, None, 0),
                Err(_) => holder.failed = true,
            }
            holder
        };
        pages.into_iter().map(holder).collect()
    }

    fn given(holders: &mut [Holder], limit: usize) -> (Vec<u64>, bool) {
        let listing = merge(holders, limit);
        (listing.entries.iter().map(|entry| entry.hash.cookie()).collect(), listing.more)
    }

    fn merged(pages: Vec<Result<Page, Failure>>, limit: usize) -> (Vec<u64>, bool) {
        given(&mut holders(pages), limit)
    }

    #[test]
    fn pages_are_merged_up_to_where_all_are_known() {
        assert_eq!(merged(vec![page(&[10, 40], true), page(&[20, 50, 60], false)], 9), (vec![10, 20, 40], true));
        assert_eq!(merged(vec![page(&[10, 40], true), page(&[20, 30], true)], 9), (vec![10, 20, 30], true));
        assert_eq!(merged(vec![page(&[10, 40], false), page(&[], false)], 9), (vec![10, 40], false));
        assert_eq!(merged(vec![], 9), (vec![], false));
    }

    #[test]
    fn what_is_beyond_a_page_is_given_with_the_next() {
        let mut three = holders(vec![page(&[10, 40], true), page(&[20, 50, 60], false), page(&[], false)]);
        assert_eq!(given(&mut three, 9), (vec![10, 20, 40], true));
        three[0].take(page(&[55, 70], false).unwrap(), None, 0);
        assert_eq!(given(&mut three, 9), (vec![50, 55, 60, 70], false));
    }

    #[test]
    fn a_page_is_cut_but_not_within_a_cookie() {
        assert_eq!(merged(vec![page(&[10, 20, 30], false)], 2), (vec![10, 20], true));
        assert_eq!(merged(vec![page(&[10, 20, 20, 30], false)], 2), (vec![10, 20, 20], true));
        assert_eq!(merged(vec![page(&[10, 20], false)], 2), (vec![10, 20], false));
    }

    #[test]
    fn a_missing_server_keeps_no_other_back() {
        let missing = || Err(Failure::from(Code::Unreachable));
        assert_eq!(merged(vec![page(&[10], false), missing()], 9), (vec![10], false));
    }
}
