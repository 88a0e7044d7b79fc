//! One request: its arguments, and which function does it.

use crate::agent::Agent;
use crate::channel::Answer;
use crate::description::{Description, Kind};
use crate::error::{Fault, Result, errno, failed, unless_it_left};
use crate::indexes::Resolved;
use crate::mailbox::Channel;
use crate::program::Program;
use crate::sys::Window;
use aze_calls::{NO_DESC, Op, Request, WINDOW_BYTES};
use aze_client::{Way, WayNote};
use aze_handles::PATH_BYTES_MAX;
use aze_proto::attr::{Attr, FileKind};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Ino;
use std::future::Future;
use std::sync::Arc;

/// A request in progress.
pub struct Call<'a> {
    /// The agent that does it.
    pub agent: &'a Arc<Agent>,
    /// The process that asks.
    pub program: &'a Arc<Program>,
    /// The channel that it came by.
    pub channel: &'a Channel,
    /// What came before the bytes.
    pub request: &'a Request,
    /// Paths and the like.
    pub bytes: &'a [u8],
    /// Data, listings and values.
    pub window: &'a mut Window,
    /// What the library is told of the directory with the answer.
    pub resolved: Resolved,
}

/// A path of a request.
pub enum Place<'a> {
    /// A description itself: an empty path.
    Itself(Arc<Description>),
    /// A path below a directory.
    Below(Below<'a>),
}

/// A path below a directory.
pub struct Below<'a> {
    /// The description of the directory; the volume's root without one.
    pub base: Option<Arc<Description>>,
    /// The directory above that of the description, as the path has begun with `..`.
    pub above: Option<Ino>,
    /// The path.
    pub path: &'a [u8],
}

impl Below<'_> {
    /// Inode of the directory.
    pub fn dir(&self) -> Ino {
        self.above.unwrap_or(self.base.as_ref().map_or(Ino::ROOT, |base| base.ino))
    }

    /// The description, if the path means nothing but its directory: `.`, `./` and the like.
    pub fn itself(&self) -> Option<&Arc<Description>> {
        let is_itself =
            self.above.is_none() && self.path.split(|byte| *byte == b'/').all(|part| matches!(part, b"" | b"."));
        self.base.as_ref().filter(|_| is_itself)
    }

    /// It ends in `/`, `/.` or `.`, so that it means a directory (path_resolution(7)).
    pub fn wants_dir(&self) -> bool {
        let is_root = self.base.is_none() && self.path.iter().all(|byte| *byte == b'/');
        !is_root && (self.path.ends_with(b"/") || self.ends_in_dot())
    }

    /// It ends in `/`, and is not the root.
    pub fn ends_in_slash(&self) -> bool {
        !self.is_root() && self.path.ends_with(b"/")
    }

    /// The same without slashes at its end: the name, and not what a symbolic link of this name leads to.
    pub fn without_slash(&self) -> Below<'_> {
        let end = self.path.iter().rposition(|byte| *byte != b'/').map_or(self.path.len(), |at| at + 1);
        Below { base: self.base.clone(), path: &self.path[..end], ..*self }
    }

    /// Its last component is `.`.
    pub fn ends_in_dot(&self) -> bool {
        last_component(self.path) == b"."
    }

    /// Its last component is `..`.
    pub fn ends_in_dots(&self) -> bool {
        let last = last_component(self.path);
        last == b".." || self.above.is_some() && last.is_empty()
    }

    /// It means the volume's root without naming it.
    pub fn is_root(&self) -> bool {
        self.base.is_none() && self.path.iter().all(|byte| *byte == b'/')
    }
}

/// The rest of a path that begins with `..`.
fn after_dots(path: &[u8]) -> Option<&[u8]> {
    path.strip_prefix(b"..").filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn last_component(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let begin = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    &path[begin..end]
}

impl Call<'_> {
    /// Does the request.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn act(&mut self, op: Op) -> Result<Answer> {
        match op {
            Op::Identify => self.identify(),
            Op::Open => self.open(),
            Op::Read => self.read(),
            Op::Write => self.write(),
            Op::Seek => self.seek(),
            Op::Stat => self.stat(),
            Op::StatOpen => self.stat_open(),
            Op::ReadDir => self.read_dir(),
            Op::Mkdir => self.mkdir(),
            Op::Rmdir => self.rmdir(),
            Op::Unlink => self.unlink(),
            Op::Rename => self.rename(),
            Op::Link => self.link(),
            Op::Symlink => self.symlink(),
            Op::Readlink => self.readlink(),
            Op::Truncate => self.truncate(),
            Op::TruncateOpen => self.truncate_open(),
            Op::Chmod => self.chmod(),
            Op::Chown => self.chown(),
            Op::SetTimes => self.set_times(),
            Op::Access => self.access(),
            Op::Sync => self.sync(),
            Op::Allocate => self.allocate(),
            Op::SetXattr => self.set_xattr(),
            Op::GetXattr => self.get_xattr(),
            Op::ListXattr => self.list_xattr(),
            Op::RemoveXattr => self.remove_xattr(),
            Op::Lock => self.lock(),
            Op::Flock => self.flock(),
            Op::Unlock => self.unlock(),
            // Those that come while no lock is waited for have no reply.
            Op::Cancel => Err(errno(libc::EINVAL)),
            Op::GetFlags => Ok(Answer::of(self.description()?.flags() as u64)),
            Op::SetFlags => self.set_flags(),
            Op::StatFs => self.stat_fs(),
            Op::PathOf => self.path_of(),
            Op::Flush => self.flush(),
            Op::Contents => self.contents(),
            Op::SyncAll => self.sync_all(),
            Op::Copy => self.copy(),
            Op::Map => self.map(),
            Op::Settle => self.settle(),
            Op::Mknod => self.mknod(),
            Op::Indexes => self.indexes(),
            Op::Pipes => self.pipes(),
            Op::Shared => Ok(Answer { passed: Some(self.agent.shared.descriptor()?), ..Answer::default() }),
        }
    }

    fn identify(&self) -> Result<Answer> {
        #[cfg(debug_assertions)]
        if self.request.a == aze_calls::PLANTED {
            self.plant();
        }
        let pipe = (self.request.c, self.request.a);
        let desc = self.agent.descriptions.of_pipe(pipe).ok_or(errno(libc::ENOENT))?;
        let is_place = matches!(self.agent.descriptions.get(desc)?.kind, Kind::Place);
        Ok(Answer { result: i64::from(is_place), desc, ..Answer::default() })
    }

    /// A panic for tests: in this call, in the client's next operation, or in a task.
    #[cfg(debug_assertions)]
    fn plant(&self) {
        let place = self.request.b as usize;
        match aze_client::Planted::ALL.get(place.wrapping_sub(1)) {
            Some(planted) => planted.plant(),
            None if place > 0 => self.agent.connected().plant_panic(),
            None => panic!("planted"),
        }
    }

    fn set_flags(&self) -> Result<Answer> {
        self.description()?.set_flags(self.request.a as i32);
        Ok(Answer::default())
    }

    /// The description that the request names.
    ///
    /// # Errors
    /// EBADF.
    pub fn description(&self) -> Result<Arc<Description>> {
        self.agent.descriptions.get(self.request.desc)
    }

    /// The length of data in the window.
    ///
    /// # Errors
    /// EINVAL if the window is shorter.
    pub fn window_len(&self) -> Result<usize> {
        usize::try_from(self.request.len).ok().filter(|len| *len <= WINDOW_BYTES).ok_or(errno(libc::EINVAL))
    }

    /// The two byte strings of the request.
    ///
    /// # Errors
    /// EINVAL if the first one is said to be longer than both.
    pub fn strings(&self) -> Result<(&[u8], &[u8])> {
        self.bytes.split_at_checked(self.request.first as usize).ok_or(errno(libc::EINVAL))
    }

    /// Whether a symbolic link at the end of the path is followed.
    pub fn follows(&self) -> bool {
        self.request.a & 1 == 0
    }

    /// A path below a description, or the description itself.
    ///
    /// # Errors
    /// EBADF, ENOTDIR if the description is no directory, ENAMETOOLONG.
    pub fn place<'b>(&self, desc: u64, path: &'b [u8]) -> Result<Place<'b>> {
        if path.len() > PATH_BYTES_MAX {
            return Err(errno(libc::ENAMETOOLONG));
        }
        if path.contains(&0) {
            return Err(failed(libc::EINVAL, "a path has a NUL in it"));
        }
        if desc == NO_DESC {
            return Ok(Place::Below(Below { base: None, above: None, path }));
        }
        let base = self.agent.descriptions.get(desc)?;
        if path.is_empty() {
            return Ok(Place::Itself(base));
        }
        if base.file_kind != FileKind::Directory {
            return Err(errno(libc::ENOTDIR));
        }
        let (above, path) = match after_dots(path).filter(|_| base.ino != Ino::ROOT) {
            Some(rest) => (Some(self.dir_attr(&base)?.parent), rest),
            None => (None, path),
        };
        Ok(Place::Below(Below { base: Some(base), above, path }))
    }

    /// The attributes of a directory, whose counts are not gathered. One that was removed is still where it was.
    fn dir_attr(&self, base: &Description) -> Result<Attr> {
        let way = Way::below(base.ino, b".");
        match self.agent.wait_for(self.agent.client().resolve(self.agent.who(), way, false))? {
            Err(Failure { code: Code::Stale, .. }) => Ok(base.removed_attr()),
            attr => Ok(attr?),
        }
    }

    /// A path below a description.
    ///
    /// # Errors
    /// As [`Call::place`]; ENOENT for an empty path.
    pub fn below<'b>(&self, desc: u64, path: &'b [u8]) -> Result<Below<'b>> {
        match self.place(desc, path)? {
            Place::Below(below) => Ok(below),
            Place::Itself(_) => Err(errno(libc::ENOENT)),
        }
    }

    /// Does something at the end of a path.
    ///
    /// # Errors
    /// Those of the operation; the path if it leads out of the volume.
    pub fn walk<'w, T, F>(
        &'w self,
        below: &'w Below<'_>,
        note: &'w WayNote,
        act: impl FnOnce(Way<'w>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Failure>>,
    {
        let version = self.agent.shared.names_version();
        let way = Way::below(below.dir(), below.path).seen_at(self.agent.at(), note);
        let done = unless_it_left(note, self.agent.wait(act(way)));
        self.note_directory(
            version,
            below,
            note,
            matches!(done, Err(Fault::Failed(ref error)) if error.errno == libc::ENOENT),
        );
        done
    }

    /// The inode at the end of a path.
    ///
    /// # Errors
    /// As path_resolution(7); the path if it leads out of the volume.
    pub fn resolve(&self, below: &Below<'_>, follow: bool) -> Result<Attr> {
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        if let Some(base) = below.itself() {
            return self.dir_attr(base);
        }
        let follow = follow || below.wants_dir();
        let attr = self.walk(below, &note, |way| client.resolve(who, way, follow))?;
        if below.wants_dir() && attr.kind != FileKind::Directory {
            return Err(errno(libc::ENOTDIR));
        }
        Ok(attr)
    }

    /// The inode that a request is about: at the end of its path, or its description's.
    ///
    /// # Errors
    /// As [`Call::resolve`] and [`Call::place`].
    pub fn target(&self, path: &[u8]) -> Result<(Ino, FileKind)> {
        match self.place(self.request.desc, path)? {
            Place::Itself(description) => Ok((description.ino, description.file_kind)),
            Place::Below(below) => self.resolve(&below, self.follows()).map(|attr| (attr.ino, attr.kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_path_may_ask_for_a_directory() {
        let cases = [
            ("a", "a", false),
            ("a/", "a", true),
            ("a/.", ".", true),
            (".", ".", true),
            ("a/..", "..", false),
            ("/", "", false),
            ("//x//", "x", true),
            ("", "", false),
        ];
        for (path, last, wants_dir) in cases {
            let below = Below { base: None, above: None, path: path.as_bytes() };
            assert_eq!((last_component(path.as_bytes()), below.wants_dir()), (last.as_bytes(), wants_dir), "{path}");
            let bare = below.without_slash();
            assert_eq!((bare.ends_in_slash(), last_component(bare.path)), (false, last.as_bytes()), "{path}");
        }
    }
}
