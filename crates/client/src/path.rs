//! Paths: absolute, components separated by `/`, `.` and `..` resolved, symbolic links followed.
//!
//! It alone knows how a path is walked, which components are taken from the cache, and when a walk
//! has to be repeated. Requests about an inode that a walk has found carry the namespace epoch from
//! before the walk: had a directory on the way been renamed or closed since, the server refuses,
//! and the walk is repeated.

use crate::client::{Client, Core};
use crate::file::{Access, File, How, Named};
use crate::names::{Created, NewFile, Reached};
use crate::route::Knowing;
use crate::way::{Trail, Way};
use aze_proto::limits::TARGET_BYTES_MAX;
use aze_proto::name::BadName;
use aze_proto::{Attr, Code, Failure, FileKind, Identity, Ino, Name, NamespaceEpoch, Refusal, Request};
use std::borrow::Cow;
use std::sync::Arc;

/// Symbolic links followed in one path, as in Linux (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// Where a walk has arrived.
enum Arrival {
    /// At a directory without a name of its own in the path: the root, `.` or `..`.
    Directory(Ino),
    /// Before the last component, which has not been looked up.
    Last(Ino, Name),
}

/// The components of a path that are still to go.
struct Ahead<'a> {
    path: Cow<'a, [u8]>,
    /// Where the next component begins: at the path's end if there is none.
    at: usize,
}

impl<'a> Ahead<'a> {
    fn of(path: Cow<'a, [u8]>) -> Ahead<'a> {
        let mut ahead = Ahead { path, at: 0 };
        ahead.skip();
        ahead
    }

    /// Skips slashes, and `.` between them.
    fn skip(&mut self) {
        loop {
            self.at += match self.rest() {
                [b'/', ..] | [b'.'] => 1,
                [b'.', b'/', ..] => 2,
                _ => return,
            };
        }
    }

    fn rest(&self) -> &[u8] {
        &self.path[self.at..]
    }

    fn is_empty(&self) -> bool {
        self.at == self.path.len()
    }

    fn pop(&mut self) -> Option<&[u8]> {
        let (from, rest) = (self.at, self.rest());
        let len = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        self.at += len;
        self.skip();
        (len > 0).then(|| &self.path[from..from + len])
    }
}

/// A walk along a path.
struct Walk<'a> {
    core: &'a Core,
    who: &'a Identity,
    /// The namespace epoch when it began.
    epoch: NamespaceEpoch,
    ahead: Ahead<'a>,
    /// Directories from the root down to where it is; never empty.
    above: Vec<Ino>,
    links: u32,
    /// Components taken from the cache.
    cached: Vec<(Ino, Name)>,
    /// Components that a server was asked for.
    looked_up: Vec<(Ino, Name)>,
    /// A link was taken away after its name had been read: the walk has to be repeated.
    link_gone: bool,
    /// Where a second walk, which belongs to this one, has arrived.
    elsewhere: Option<Ino>,
    /// Where programs see the volume, if links may lead out of it.
    at: Option<&'a [u8]>,
    /// The path ends in `/`.
    ends_in_slash: bool,
    /// The way so far, if its caller wants to know it.
    trail: Option<Trail>,
    /// The path to use instead: a link has led out of the volume.
    left: Option<Vec<u8>>,
}

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}

fn name_of(component: &[u8]) -> Result<Name, Failure> {
    Name::new(component).map_err(|bad| match bad {
        BadName::TooLong => Failure::new(Code::NameTooLong, String::from_utf8_lossy(component)),
        BadName::Invalid => Failure::new(Code::Invalid, format!("'{}' is no name", String::from_utf8_lossy(component))),
    })
}

impl<'a> Walk<'a> {
    fn new(core: &'a Core, who: &'a Identity, way: Way<'a>) -> Result<Walk<'a>, Failure> {
        let Way { dir, path, at, note } = way;
        if dir.is_none() && path.first() != Some(&b'/') {
            return Err(Failure::new(Code::Invalid, "a path has to begin with '/'"));
        }
        let ahead = Ahead::of(Cow::Borrowed(path));
        Ok(Walk {
            core,
            who,
            epoch: core.dirs.epoch(),
            ahead,
            above: vec![dir.unwrap_or(Ino::ROOT)],
            links: 0,
            cached: Vec::new(),
            looked_up: Vec::new(),
            link_gone: false,
            elsewhere: None,
            at,
            ends_in_slash: path.ends_with(b"/"),
            trail: note.map(|_| Trail::default()),
            left: None,
        })
    }

    fn knowing(&self) -> Knowing {
        Knowing::Since(self.epoch)
    }

    fn here(&self) -> Ino {
        *self.above.last().expect("the beginning is above everything")
    }

    /// Notes that the walk goes into the directory `dir` of this name.
    fn descend(&mut self, dir: Ino, name: &Name) {
        self.above.push(dir);
        self.trail.iter_mut().for_each(|trail| trail.names.push(name.clone()));
    }

    /// Goes to the directory above.
    async fn ascend(&mut self) -> Result<(), Failure> {
        if self.above.len() > 1 {
            self.above.pop();
            self.trail.iter_mut().for_each(|trail| drop(trail.names.pop()));
            return Ok(());
        }
        if self.here() == Ino::ROOT {
            return match self.at {
                Some(at) => {
                    let end = at.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                    Err(self.leave(&at[..end]))
                }
                None => Ok(()),
            };
        }
        // The parent of the directory at which the walk began.
        let here = self.core.fetch_attr(self.who, self.here(), false).await?;
        if here.kind != FileKind::Directory {
            return Err(Code::NotDirectory.into());
        }
        self.above = vec![here.parent];
        self.trail.iter_mut().for_each(|trail| trail.ups += 1);
        Ok(())
    }

    /// The walk ends here, since the rest of the path goes on below `target`, outside of the volume.
    fn leave(&mut self, target: &[u8]) -> Failure {
        let mut path = target.to_vec();
        for component in components(self.ahead.rest()) {
            path.push(b'/');
            path.extend_from_slice(&component);
        }
        if path.is_empty() || self.ends_in_slash && !path.ends_with(b"/") {
            path.push(b'/');
        }
        self.left = Some(path);
        Failure::new(Code::CrossVolume, "the path leads out of the volume")
    }

    /// Walks to the last component.
    async fn walk_to_last(&mut self) -> Result<Arrival, Failure> {
        while let Some(component) = self.ahead.pop() {
            if component == b".." {
                self.ascend().await?;
                continue;
            }
            let name = name_of(component)?;
            if self.ahead.is_empty() {
                self.trail.iter_mut().for_each(|trail| trail.last = Some(name.clone()));
                return Ok(Arrival::Last(self.here(), name));
            }
            self.enter(&name).await?;
        }
        Ok(Arrival::Directory(self.here()))
    }

    /// Goes into a directory, or to where a link leads.
    async fn enter(&mut self, name: &Name) -> Result<(), Failure> {
        let parent = self.here();
        if let Some(dir) = self.core.dirs.get(self.who, parent, name, self.epoch) {
            self.cached.push((parent, name.clone()));
            self.descend(dir, name);
            return Ok(());
        }
        let entry = self.core.lookup(self.who, parent, name, self.knowing()).await?;
        self.looked_up.push((parent, name.clone()));
        match entry.kind {
            FileKind::Directory => {
                self.core.dirs.insert(self.who, parent, name, entry.ino, self.epoch);
                self.descend(entry.ino, name);
                Ok(())
            }
            FileKind::Symlink => self.follow(entry.ino).await,
            _ => Err(Failure::new(Code::NotDirectory, name.to_string())),
        }
    }

    /// Puts a link's target in front of the rest of the path.
    async fn follow(&mut self, link: Ino) -> Result<(), Failure> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Code::LinkLoop.into());
        }
        let target = match self.core.readlink(self.who, link).await {
            Err(gone) if gone.code == Code::Stale => {
                self.link_gone = true;
                return Err(gone);
            }
            read => read?,
        };
        if target.is_empty() || target.len() > TARGET_BYTES_MAX {
            return Err(Failure::new(Code::NotFound, "a symbolic link with an impossible target"));
        }
        self.trail.iter_mut().for_each(|trail| trail.last = None);
        let mut target = target.as_slice();
        if target.first() == Some(&b'/') {
            if let Some(at) = self.at {
                target = match target.strip_prefix(at) {
                    Some(below) if below.first().is_none_or(|byte| *byte == b'/') => below,
                    _ => return Err(self.leave(target)),
                };
            }
            self.above = vec![Ino::ROOT];
            self.trail.iter_mut().for_each(|trail| *trail = Trail { from_root: true, ..Trail::default() });
        }
        self.ahead = Ahead::of(Cow::Owned([target, b"/", self.ahead.rest()].concat()));
        Ok(())
    }

    /// Whether a failure may come from a directory that was removed after it was cached: then what
    /// was taken from the cache is forgotten.
    async fn is_outdated(&self, failure: &Failure) -> Result<bool, Failure> {
        if self.cached.is_empty() || !matches!(failure.code, Code::NotFound | Code::Stale) {
            return Ok(false);
        }
        // If the last directory lives, so do all above it: none of them can have been removed.
        for last in [Some(self.here()), self.elsewhere].into_iter().flatten() {
            match self.core.fetch_attr(self.who, last, false).await {
                Err(gone) if gone.code == Code::Stale => {
                    self.cached.iter().for_each(|(parent, name)| self.core.dirs.forget(*parent, name));
                    return Ok(true);
                }
                Err(failure) => return Err(failure),
                Ok(_) => {}
            }
        }
        Ok(false)
    }
}

fn is_namespace_stale(failure: &Failure) -> bool {
    matches!(failure.refusal, Some(Refusal::NamespaceStale { .. }))
}

/// The operation at the end of a walk, repeated with the walk.
trait AtEnd {
    type Done;
    async fn arrived(&mut self, walk: &mut Walk<'_>, at: Arrival) -> Result<Self::Done, Failure>;
}

impl Core {
    /// Walks along a path and does something at its end; all of it again when it turns out that
    /// the way has changed meanwhile.
    async fn at_end<E: AtEnd>(&self, who: &Identity, way: Way<'_>, mut end: E) -> Result<E::Done, Failure> {
        let until = self.patience();
        loop {
            let mut walk = Walk::new(self, who, way)?;
            let done = match walk.walk_to_last().await {
                Ok(arrival) => end.arrived(&mut walk, arrival).await,
                Err(failure) => Err(failure),
            };
            let dir = walk.here();
            let (by_link, epoch) = (walk.links > 0, walk.epoch);
            way.note(walk.trail.take().map(|trail| Trail { dir, by_link, epoch, ..trail }), walk.left.take());
            let failure = match done {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            if walk.link_gone {
                self.look_again(until, failure).await?;
                continue;
            }
            if !is_namespace_stale(&failure) && !walk.is_outdated(&failure).await? {
                return Err(failure.during(String::from_utf8_lossy(way.path)));
            }
            until.check(self, &failure, &Request::GetAttr { ino: walk.here(), exact: false })?;
        }
    }
}

/// Looks the last component up.
struct Resolve {
    follow_last: bool,
}

impl AtEnd for Resolve {
    type Done = Reached;

    async fn arrived(&mut self, walk: &mut Walk<'_>, mut at: Arrival) -> Result<Reached, Failure> {
        loop {
            let (parent, name) = match at {
                Arrival::Directory(dir) => {
                    return Reached::of(dir, FileKind::Directory, walk.core.fetch_attr(walk.who, dir, false).await);
                }
                Arrival::Last(parent, name) => (parent, name),
            };
            let reached = walk.core.lookup_reached(walk.who, parent, &name, walk.knowing()).await?;
            if reached.kind == FileKind::Directory {
                walk.core.dirs.insert(walk.who, parent, &name, reached.ino, walk.epoch);
            }
            if reached.kind != FileKind::Symlink || !self.follow_last {
                return Ok(reached);
            }
            walk.follow(reached.ino).await?;
            at = walk.walk_to_last().await?;
        }
    }
}

struct Parent;

impl AtEnd for Parent {
    type Done = (Ino, Name);

    async fn arrived(&mut self, _walk: &mut Walk<'_>, at: Arrival) -> Result<(Ino, Name), Failure> {
        named(at)
    }
}

/// Which entries an operation on a path depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// The directory that the path's last component is in, and that component, which need not exist.
    pub entry: (Ino, Name),
    /// Entries that lead there, directories and links, by the directory that each is in.
    pub through: Vec<(Ino, Name)>,
}

struct AllEntries;

impl AtEnd for AllEntries {
    type Done = Entries;

    async fn arrived(&mut self, walk: &mut Walk<'_>, at: Arrival) -> Result<Entries, Failure> {
        let entry = named(at)?;
        let mut through = std::mem::take(&mut walk.cached);
        through.append(&mut walk.looked_up);
        Ok(Entries { entry, through })
    }
}

fn named(at: Arrival) -> Result<(Ino, Name), Failure> {
    match at {
        Arrival::Last(parent, name) => Ok((parent, name)),
        Arrival::Directory(_) => Err(Failure::new(Code::Invalid, "the path ends in no name")),
    }
}

/// Makes a file, or opens it, following links to where it is.
struct Make<'a> {
    core: &'a Arc<Core>,
    new: &'a NewFile,
}

impl AtEnd for Make<'_> {
    type Done = Created;

    async fn arrived(&mut self, walk: &mut Walk<'_>, mut at: Arrival) -> Result<Created, Failure> {
        let exclusive = self.new.exclusive || self.new.kind != FileKind::File;
        loop {
            let (parent, name) = match at {
                Arrival::Last(parent, name) => (parent, name),
                Arrival::Directory(_) if exclusive => return Err(Code::Exists.into()),
                Arrival::Directory(_) => return Err(Code::IsDirectory.into()),
            };
            let made = self.core.create(walk.who, parent, &name, self.new, walk.knowing()).await?;
            if made.attr.kind != FileKind::Symlink || exclusive {
                return Ok(made);
            }
            walk.follow(made.attr.ino).await?;
            at = walk.walk_to_last().await?;
        }
    }
}

/// Opens what a path leads to.
struct Open<'a> {
    core: &'a Arc<Core>,
    how: How,
    /// A symbolic link at the end is followed.
    follow_last: bool,
}

impl AtEnd for Open<'_> {
    type Done = Arc<File>;

    async fn arrived(&mut self, walk: &mut Walk<'_>, mut at: Arrival) -> Result<Arc<File>, Failure> {
        loop {
            let (parent, name) = match at {
                Arrival::Directory(dir) => return self.core.open(walk.who, dir, self.how).await,
                Arrival::Last(parent, name) => (parent, name),
            };
            if walk.at.is_some() {
                let through = self.core.open_name_through(walk.who, (parent, &name), self.how, walk.knowing());
                if let Some(file) = through.await {
                    return Ok(file);
                }
            }
            match self.core.open_name(walk.who, parent, &name, self.how, walk.knowing()).await? {
                Named::Opened(file) => return Ok(file),
                Named::Link(_) if !self.follow_last => return Err(Code::LinkLoop.into()),
                Named::Link(link) => walk.follow(link).await?,
            }
            at = walk.walk_to_last().await?;
        }
    }
}

struct Remove {
    is_dir: bool,
}

impl AtEnd for Remove {
    type Done = ();

    async fn arrived(&mut self, walk: &mut Walk<'_>, at: Arrival) -> Result<(), Failure> {
        let (parent, name) = named(at)?;
        walk.core.remove(walk.who, parent, &name, self.is_dir, walk.knowing()).await
    }
}

/// Walks the second path of a rename, too.
struct Rename<'a> {
    to: Way<'a>,
    no_replace: bool,
}

impl AtEnd for Rename<'_> {
    type Done = ();

    async fn arrived(&mut self, walk: &mut Walk<'_>, at: Arrival) -> Result<(), Failure> {
        let (parent, name) = named(at)?;
        let mut second = Walk { epoch: walk.epoch, ..Walk::new(walk.core, walk.who, self.to)? };
        let arrived = second.walk_to_last().await.and_then(named);
        self.to.note(None, second.left.take());
        walk.cached.append(&mut second.cached);
        walk.link_gone = second.link_gone;
        walk.elsewhere = Some(second.here());
        let (to_parent, to_name) = arrived?;
        walk.core.rename(walk.who, (parent, &name), (to_parent, &to_name), self.no_replace, walk.knowing()).await
    }
}

impl Client {
    /// What a path means. With every directory of the path in the cache this is one request (two
    /// where the inode does not live beside its entry). As for [`Client::lookup`], a directory's
    /// counts are not gathered.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::NotDirectory`], [`Code::AccessDenied`], [`Code::LinkLoop`] after
    /// 40 links, [`Code::Invalid`] for a path that does not begin with `/`.
    pub async fn resolve<'a>(
        &self,
        who: &Identity,
        path: impl Into<Way<'a>>,
        follow_last: bool,
    ) -> Result<Attr, Failure> {
        let way = path.into();
        let reached = self.reach(who, way, follow_last).await?;
        reached.attr.map_err(|failure| failure.during(String::from_utf8_lossy(way.path)))
    }

    /// As [`Client::resolve`], also for a directory that gives only its entries, since its home does not answer.
    ///
    /// # Errors
    /// As [`Client::resolve`].
    pub async fn reach<'a>(
        &self,
        who: &Identity,
        path: impl Into<Way<'a>>,
        follow_last: bool,
    ) -> Result<Reached, Failure> {
        self.core.at_end(who, path.into(), Resolve { follow_last }).await
    }

    /// The directory that the last component of a path is in, and that component. Takes no request
    /// if the directories are cached; the use of the answer does not notice a rename of a
    /// directory in between, as with a directory that is kept open. The operations on paths below do.
    ///
    /// # Errors
    /// As [`Client::resolve`]; [`Code::Invalid`] if the path ends in no name: `/` or `..`.
    pub async fn resolve_parent<'a>(&self, who: &Identity, path: impl Into<Way<'a>>) -> Result<(Ino, Name), Failure> {
        self.core.at_end(who, path.into(), Parent).await
    }

    /// As [`Client::resolve_parent`], with all entries on the way.
    ///
    /// # Errors
    /// As [`Client::resolve_parent`].
    pub async fn entries_of(&self, who: &Identity, path: &[u8]) -> Result<Entries, Failure> {
        self.core.at_end(who, path.into(), AllEntries).await
    }

    /// [`Client::create`] at a path. One request with the directory cached.
    ///
    /// # Errors
    /// As [`Client::create`] and [`Client::resolve`].
    pub async fn create_path<'a>(
        &self,
        who: &Identity,
        path: impl Into<Way<'a>>,
        new: &NewFile,
    ) -> Result<Created, Failure> {
        self.core.at_end(who, path.into(), Make { core: &self.core, new }).await
    }

    /// [`Client::open`] at a path, following links. One request with the directory cached (two
    /// where the inode does not live beside its entry).
    ///
    /// # Errors
    /// As [`Client::open`] and [`Client::resolve`].
    pub async fn open_path<'a>(
        &self,
        who: &Identity,
        path: impl Into<Way<'a>>,
        access: Access,
    ) -> Result<Arc<File>, Failure> {
        self.open_path_how(who, path.into(), access.into(), true).await
    }

    /// [`Client::open_path`], without following a link at its end.
    ///
    /// # Errors
    /// As [`Client::open_path`]; [`Code::LinkLoop`] of a symbolic link, as of `O_NOFOLLOW`.
    pub async fn open_path_itself<'a>(
        &self,
        who: &Identity,
        path: impl Into<Way<'a>>,
        access: Access,
    ) -> Result<Arc<File>, Failure> {
        self.open_path_how(who, path.into(), access.into(), false).await
    }

    /// [`Client::open_path`]; contents come along as in [`Client::open_with_contents`].
    ///
    /// # Errors
    /// As [`Client::open_path`].
    pub async fn open_path_with_contents<'a>(
        &self,
        who: &Identity,
        path: impl Into<Way<'a>>,
        access: Access,
    ) -> Result<Arc<File>, Failure> {
        self.open_path_how(who, path.into(), How { contents: true, ..access.into() }, true).await
    }

    pub(crate) async fn open_path_how(
        &self,
        who: &Identity,
        way: Way<'_>,
        how: How,
        follow_last: bool,
    ) -> Result<Arc<File>, Failure> {
        if follow_last && let Some(file) = self.core.open_through(who, &way, how).await {
            return Ok(file);
        }
        let until = self.core.patience();
        loop {
            match self.core.at_end(who, way, Open { core: &self.core, how, follow_last }).await {
                Err(failure) if failure.code == Code::Stale => self.core.look_again(until, failure).await?,
                opened => return opened,
            }
        }
    }

    /// [`Client::unlink`] at a path. One request with the directory cached.
    ///
    /// # Errors
    /// As [`Client::unlink`] and [`Client::resolve_parent`].
    pub async fn unlink_path<'a>(&self, who: &Identity, path: impl Into<Way<'a>>) -> Result<(), Failure> {
        self.core.at_end(who, path.into(), Remove { is_dir: false }).await
    }

    /// [`Client::rmdir`] at a path. One request with the directory cached.
    ///
    /// # Errors
    /// As [`Client::rmdir`] and [`Client::resolve_parent`].
    pub async fn rmdir_path<'a>(&self, who: &Identity, path: impl Into<Way<'a>>) -> Result<(), Failure> {
        self.core.at_end(who, path.into(), Remove { is_dir: true }).await
    }

    /// [`Client::rename`] from one path to another. One request with the directories cached.
    ///
    /// # Errors
    /// As [`Client::rename`] and [`Client::resolve_parent`].
    pub async fn rename_path<'a>(
        &self,
        who: &Identity,
        from: impl Into<Way<'a>>,
        to: impl Into<Way<'a>>,
        no_replace: bool,
    ) -> Result<(), Failure> {
        let to = to.into();
        self.core.at_end(who, from.into(), Rename { to, no_replace }).await
    }

    /// Makes a directory with all those above it that are missing; gives its attributes. A directory
    /// that exists is fine, a link to one, too.
    ///
    /// # Errors
    /// [`Code::NotDirectory`] if something else is in the way; as [`Client::create`].
    pub async fn mkdir_all(&self, who: &Identity, path: &[u8], mode: u32) -> Result<Attr, Failure> {
        let parts: Vec<Vec<u8>> = components(path).collect();
        let upto =
            |count: usize| parts[..count].iter().flat_map(|part| [b"/", part.as_slice()]).collect::<Vec<_>>().concat();
        let mut there = parts.len();
        while there > 0 {
            match self.resolve(who, &upto(there), true).await {
                Err(failure) if failure.code == Code::NotFound => there -= 1,
                Err(failure) => return Err(failure),
                Ok(attr) if attr.kind != FileKind::Directory => {
                    return Err(Failure::new(Code::NotDirectory, String::from_utf8_lossy(&upto(there))));
                }
                Ok(attr) if there == parts.len() => return Ok(attr),
                Ok(_) => break,
            }
        }
        let kind = FileKind::Directory;
        let new = NewFile {
            kind,
            mode,
            rdev: 0,
            target: Vec::new(),
            exclusive: true,
            open: None,
            chunk_bits: 0,
            private: false,
        };
        for count in there + 1..=parts.len() {
            if parts[count - 1] == b".." {
                continue;
            }
            match self.create_path(who, &upto(count), &new).await {
                Ok(made) if count == parts.len() => return Ok(made.attr),
                Err(failure) if failure.code != Code::Exists => return Err(failure),
                // Another client was faster.
                _ => {}
            }
        }
        let attr = self.resolve(who, path, true).await?;
        match attr.kind {
            FileKind::Directory => Ok(attr),
            _ => Err(Failure::new(Code::NotDirectory, String::from_utf8_lossy(path))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ahead_is_what_a_path_is_made_of() {
        let paths: [&[u8]; 12] =
            [b"", b"/", b"//", b".", b"/./", b"a", b"/a", b"a/", b"/a//b/./c/.", b"./.a/..", b"a/.b./...", b"/.//x/./"];
        for path in paths {
            let mut ahead = Ahead::of(Cow::Borrowed(path));
            let mut popped = Vec::new();
            while !ahead.is_empty() {
                assert_eq!(components(ahead.rest()).count() + popped.len(), components(path).count());
                popped.push(ahead.pop().expect("it is not empty").to_vec());
            }
            assert_eq!(ahead.pop(), None);
            assert_eq!(popped, components(path).collect::<Vec<_>>(), "{}", String::from_utf8_lossy(path));
        }
    }
}
