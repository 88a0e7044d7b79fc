//! Listings: the pages of all servers that hold entries of a directory, merged in cookie order.

use crate::attrs::is_silence;
use crate::client::{Client, Core, unexpected};
use crate::leases::Lease;
use crate::route::{Knowing, Place};
use aze_proto::limits::LIST_ENTRIES_MAX;
use aze_proto::message::Listed;
use aze_proto::{Failure, Identity, Ino, Reply, Request, ServerIndex};
use futures_util::future::join_all;

/// Entries asked of each server beyond its even share, so that a page is seldom cut short by the
/// server that has the fewest.
const SHARE_EXTRA: usize = 16;

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

impl Client {
    /// A page of a directory's entries after a cookie (0: from the first), of about `limit` entries
    /// and no more than [`LIST_ENTRIES_MAX`] if cookies are distinct. Needs read permission. What exists throughout a listing is
    /// in it exactly once, also if other entries change meanwhile.
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
        let core = &self.core;
        let (holders, unknown) = match core.holders(who, dir).await {
            Ok(holders) => (holders, None),
            // Any server may have entries: those that have are asked, and the rest is said to be missing.
            Err(failure) if is_silence(&failure) => (core.routes.read().map.indexes().collect(), Some(failure)),
            Err(failure) => return Err(failure),
        };
        let limit = limit.clamp(1, LIST_ENTRIES_MAX);
        let share = limit.div_ceil(holders.len().max(1)) + SHARE_EXTRA;
        let request = Request::List { dir, after, limit: share.min(limit) as u32, attrs };
        let pages = holders.into_iter().map(|server| core.list_one(who, server, &request));
        let asked: Vec<_> = join_all(pages).await;
        let leases = asked.iter().filter_map(|page| page.as_ref().ok()).map(|(_, lease)| *lease);
        let lease = leases.reduce(Lease::both).flatten();
        let pages = asked.into_iter().map(|page| page.map(|(page, _)| page)).collect();
        let merged = merge(pages, limit)?;
        Ok(Listing { lease, failure: unknown.or(merged.failure), ..merged })
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
        let ((entries, more), lease) = self.core.list_one(who, server, &request).await?;
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

    async fn list_one(&self, who: &Identity, server: ServerIndex, request: &Request) -> Leased {
        let (reply, lease) = self.ask_leased(who, Place::Server(server), Knowing::Latest, request).await?;
        match reply {
            Reply::Listing { entries, more } if !(more && entries.is_empty()) => Ok(((entries, more), lease)),
            other => Err(unexpected(request, &other)),
        }
    }
}

/// Merges pages. Where a server has more, its page ends before what follows from the others, so
/// the merged one ends there.
fn merge(pages: Vec<Result<Page, Failure>>, limit: usize) -> Result<Listing, Failure> {
    let mut listing = Listing::default();
    let mut end = None;
    let mut answered = pages.is_empty();
    for page in pages {
        match page {
            Ok((mut entries, more)) => {
                answered = true;
                if let Some(last) = entries.last().filter(|_| more) {
                    end = Some(end.map_or(last.hash, |end| last.hash.min(end)));
                }
                listing.entries.append(&mut entries);
            }
            Err(failure) => drop(listing.failure.get_or_insert(failure)),
        }
    }
    if let Some(failure) = listing.failure.take_if(|_| !answered) {
        return Err(failure);
    }
    // Sorted runs, one for each server: this is a merge.
    listing.entries.sort_by(|a, b| (a.hash, &a.name).cmp(&(b.hash, &b.name)));
    if let Some(end) = end {
        listing.more = true;
        listing.entries.retain(|entry| entry.hash <= end);
    }
    listing.cut(limit);
    Ok(listing)
}

impl Listing {
    /// Keeps `limit` entries, and those that share their cookie with the last one.
    fn cut(&mut self, limit: usize) {
        let Some(last) = self.entries.get(limit - 1) else { return };
        let last = last.hash;
        let keep = self.entries.partition_point(|entry| entry.hash <= last);
        self.more |= keep < self.entries.len();
        self.entries.truncate(keep);
    }
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

    fn merged(pages: Vec<Result<Page, Failure>>, limit: usize) -> (Vec<u64>, bool, bool) {
        let listing = merge(pages, limit).unwrap();
        (listing.entries.iter().map(|entry| entry.hash.cookie()).collect(), listing.more, listing.failure.is_some())
    }

    #[test]
    fn pages_are_merged_up_to_where_all_are_known() {
        assert_eq!(merged(vec![page(&[10, 40], true), page(&[20, 50, 60], false)], 9), (vec![10, 20, 40], true, false));
        assert_eq!(merged(vec![page(&[10, 40], true), page(&[20, 30], true)], 9), (vec![10, 20, 30], true, false));
        assert_eq!(merged(vec![page(&[10, 40], false), page(&[], false)], 9), (vec![10, 40], false, false));
        assert_eq!(merged(vec![], 9), (vec![], false, false));
    }

    #[test]
    fn a_page_is_cut_but_not_within_a_cookie() {
        assert_eq!(merged(vec![page(&[10, 20, 30], false)], 2), (vec![10, 20], true, false));
        assert_eq!(merged(vec![page(&[10, 20, 20, 30], false)], 2), (vec![10, 20, 20], true, false));
        assert_eq!(merged(vec![page(&[10, 20], false)], 2), (vec![10, 20], false, false));
    }

    #[test]
    fn a_missing_server_is_told_with_the_others_entries() {
        let missing = || Err(Failure::from(Code::Unreachable));
        assert_eq!(merged(vec![page(&[10], false), missing()], 9), (vec![10], false, true));
        assert_eq!(merge(vec![missing()], 9).unwrap_err().code, Code::Unreachable);
    }
}
