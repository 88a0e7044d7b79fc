//! Calls on names: opening, making, removing, renaming, links.

use crate::call::{Below, Call, Place};
use crate::channel::Answer;
use crate::description::{Description, Kind, NamedAt, Pipe};
use crate::error::{Fault, Result, errno, failed, unless_it_left};
use crate::mapped::Changed;
use crate::shared::Position;
use crate::stat;
use crate::sys::{self, FileId};
use aze_calls::shared::NUMBERS;
use aze_calls::{Kept, WINDOW_BYTES};
use aze_client::{Access, Created, File, NewFile, Trail, Way, WayNote, mode_under};
use aze_proto::attr::{Attr, FileKind};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Ino;
use aze_proto::limits::TARGET_BYTES_MAX;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What open(2) asks for.
#[derive(Clone, Copy)]
struct Asked {
    flags: i32,
    access: Access,
    mode: u32,
    umask: u32,
}

impl Asked {
    fn has(self, flag: i32) -> bool {
        self.flags & flag == flag
    }
}

/// An inode that was found or opened on behalf of open(2), and its path in the volume.
struct Found {
    attr: Attr,
    file: Option<Arc<File>>,
    place: NamedAt,
}

/// The path of the end of a walk that has begun in a directory of this path.
fn path_after(base: &[u8], trail: &Trail) -> Vec<u8> {
    let mut path = if trail.from_root { Vec::new() } else { base.to_vec() };
    for _ in 0..trail.ups {
        path.truncate(path.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
    }
    if path == b"/" {
        path.clear();
    }
    for name in trail.names.iter().chain(&trail.last) {
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
    }
    if path.is_empty() { b"/".to_vec() } else { path }
}

fn place_after(below: &Below<'_>, note: &WayNote) -> NamedAt {
    let base = below.base.as_ref().map_or(b"/".to_vec(), |base| base.place.lock().path.clone());
    let mut trail = note.trail();
    trail.ups += usize::from(below.above.is_some());
    NamedAt { path: path_after(&base, &trail), entry: trail.last.map(|name| (trail.dir, name)) }
}

impl Call<'_> {
    /// open(2).
    pub fn open(&mut self) -> Result<Answer> {
        let flags = self.request.a as i32;
        let access = match flags & libc::O_ACCMODE {
            _ if flags & libc::O_PATH != 0 => Access { read: false, write: false },
            libc::O_RDONLY => Access { read: true, write: false },
            libc::O_WRONLY => Access { read: false, write: true },
            // The fourth mode wants both rights, and gives neither (open(2)): see `Description::access`.
            _ => Access { read: true, write: true },
        };
        let asked = Asked { flags, access, mode: self.request.b as u32 & 0o7777, umask: u32::from(self.request.umask) };
        let found = match self.place(self.request.desc, self.bytes)? {
            Place::Itself(description) => self.open_again(&description, asked)?,
            Place::Below(below) if asked.has(libc::O_PATH) => self.find(&below, asked)?,
            Place::Below(below) if asked.has(libc::O_TMPFILE) => self.open_unnamed(&below, asked)?,
            Place::Below(below) if asked.has(libc::O_CREAT) => self.open_or_make(&below, asked)?,
            Place::Below(below) => self.open_existing(&below, asked)?,
        };
        if asked.has(libc::O_DIRECTORY) && !asked.has(libc::O_TMPFILE) && found.attr.kind != FileKind::Directory {
            return Err(errno(libc::ENOTDIR));
        }
        self.describe(found, asked)
    }

    /// Gives an open its description.
    fn describe(&mut self, found: Found, asked: Asked) -> Result<Answer> {
        let Found { attr, file, place } = found;
        let kind = match (file, attr.kind) {
            (None, _) => Kind::Place,
            (Some(file), FileKind::Directory) => {
                Kind::Directory(file, Box::new(self.agent.connected().dir_of(attr.ino, attr.parent)))
            }
            (Some(file), FileKind::File) => Kind::File(file),
            (Some(_), FileKind::Fifo) => return Err(Fault::Leaves(self.agent.pipe_of(attr.ino)?)),
            _ => return Err(failed(libc::ENXIO, "devices and sockets are opened through a mount only")),
        };
        let (pipe, reading_end) = match self.channel.take_reserved(self.request.c) {
            Some(pipe) => (Pipe::Named(pipe), None),
            None => {
                let (reading_end, writing_end, file) = self.pipe()?;
                (Pipe::Own(writing_end, file), Some(reading_end))
            }
        };
        let number = self.agent.number();
        if !NUMBERS.contains(&number) {
            return Err(failed(
                libc::ENFILE,
                format!("an agent opens files {} times: start another 'aze run'", NUMBERS.end),
            ));
        }
        let numbered = match kind {
            Kind::File(_) => self.agent.shared.begin(number),
            _ => (number, Position::default()),
        };
        let desc = numbered.0;
        let mut bytes = sys::bytes_of(&stat::of(&attr)).to_vec();
        if let Kind::File(file) = &kind {
            self.keep(file).iter().for_each(|kept| bytes.extend_from_slice(sys::bytes_of(kept)));
        }
        let description = Description::new(numbered, kind, &attr, asked.flags, place, pipe);
        self.agent.watch(Arc::new(description))?;
        let result = if reading_end.is_none() { self.reserve() } else { 0 };
        Ok(Answer { result, desc, bytes, passed: reading_end, ..Answer::default() })
    }

    /// Reserves a named pipe for the channel's next open; 1 + its number, or 0 if there is none.
    fn reserve(&self) -> i64 {
        let reserved = self.agent.reserve_pipe().inspect_err(|error| {
            self.agent.say(format_args!("make a named pipe for what programs open: {error}"));
        });
        let Ok(Some(pipe)) = reserved else { return 0 };
        let number = i64::from(pipe.number);
        if let Some(before) = self.channel.reserve(pipe) {
            self.agent.give_pipe_back(before);
        }
        1 + number
    }

    /// The directory of the named pipes, and the one that is reserved for the channel.
    pub fn pipes(&self) -> Result<Answer> {
        let result = self.reserve();
        let is_wanted = result > 0 && self.request.a == 0;
        let passed = if is_wanted { Some(self.agent.pipes_directory()?) } else { None };
        Ok(Answer { result, passed, ..Answer::default() })
    }

    /// The pipe of a new description.
    fn pipe(&self) -> io::Result<(OwnedFd, OwnedFd, FileId)> {
        let made = sys::pipe();
        let is_full = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        if !made.as_ref().is_err_and(is_full) {
            return made;
        }
        // What programs have closed before takes no descriptors.
        self.agent.let_go_of_ended()?;
        sys::pipe()
    }

    /// Puts contents that came with an open into the window.
    fn keep(&mut self, file: &File) -> Option<Kept> {
        let counter = file.change_counter();
        // Before the look: of what changes later the program sees another number.
        let seen = self.agent.shared.changes(counter);
        if self.agent.mapped.of(file.ino()).is_some() {
            return None;
        }
        let (len, until_ns) = file.copy_contents_as_opened(self.window.bytes(WINDOW_BYTES))?;
        Some(Kept { until_ns, seen, len: len as u32, counter: counter as u32 })
    }

    /// Only a place, for `O_PATH`.
    fn find(&self, below: &Below<'_>, asked: Asked) -> Result<Found> {
        if let Some(base) = below.itself() {
            return Ok(Found { attr: self.resolve(below, true)?, file: None, place: base.place.lock().clone() });
        }
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        let follow = !asked.has(libc::O_NOFOLLOW) || below.wants_dir();
        let attr = self.walk(below, &note, |way| client.resolve(who, way, follow))?;
        if below.wants_dir() && attr.kind != FileKind::Directory {
            return Err(errno(libc::ENOTDIR));
        }
        Ok(Found { attr, file: None, place: place_after(below, &note) })
    }

    /// The inode of a description once more, as by way of `/proc/self/fd`.
    fn open_again(&self, description: &Description, asked: Asked) -> Result<Found> {
        let (client, who) = (self.agent.client(), self.agent.who());
        let place = description.place.lock().clone();
        if asked.has(libc::O_PATH) {
            return Ok(Found { attr: self.attr_of(description)?, file: None, place });
        }
        if asked.has(libc::O_CREAT | libc::O_EXCL) {
            return Err(errno(libc::EEXIST));
        }
        if description.file_kind == FileKind::Symlink {
            return Err(errno(libc::ELOOP));
        }
        let file = self.agent.wait(client.open(who, description.ino, asked.access))?;
        self.cut(&file, asked, false)?;
        Ok(Found { attr: file.attr(), file: Some(file), place })
    }

    fn open_existing(&self, below: &Below<'_>, asked: Asked) -> Result<Found> {
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        let Asked { access, .. } = asked;
        if asked.has(libc::O_NOFOLLOW) {
            let attr = self.walk(below, &note, |way| client.resolve(who, way, below.wants_dir()))?;
            if attr.kind == FileKind::Symlink {
                let is_dir_wanted = asked.has(libc::O_DIRECTORY);
                return Err(errno(if is_dir_wanted { libc::ENOTDIR } else { libc::ELOOP }));
            }
            check_end(below, &attr)?;
            let file = self.agent.wait(client.open(who, attr.ino, access))?;
            self.cut(&file, asked, false)?;
            return Ok(Found { attr: file.attr(), file: Some(file), place: place_after(below, &note) });
        }
        // Small files that are read once need one request.
        let without = [libc::O_DIRECT, libc::O_TRUNC, libc::O_DIRECTORY].into_iter().any(|flag| asked.has(flag));
        let file = match without {
            true => self.walk(below, &note, |way| client.open_path(who, way, access))?,
            false => self.walk(below, &note, |way| client.open_path_with_contents(who, way, access))?,
        };
        check_end(below, &file.attr())?;
        self.cut(&file, asked, false)?;
        Ok(Found { attr: file.attr(), file: Some(file), place: place_after(below, &note) })
    }

    fn open_or_make(&self, below: &Below<'_>, asked: Asked) -> Result<Found> {
        if asked.has(libc::O_DIRECTORY) {
            return Err(errno(libc::EINVAL));
        }
        if below.wants_dir() {
            if below.ends_in_dot() {
                self.resolve(below, true)?;
                if asked.has(libc::O_EXCL) {
                    return Err(errno(libc::EEXIST));
                }
            }
            return Err(errno(libc::EISDIR));
        }
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        let exclusive = asked.has(libc::O_EXCL) || asked.has(libc::O_NOFOLLOW);
        let new = NewFile { exclusive, open: Some(asked.access), ..new_file(FileKind::File, asked.mode, asked.umask) };
        let made = self.walk(below, &note, |way| client.create_path(who, way, &new));
        match made {
            Ok(Created { file: Some(file), created, .. }) => {
                self.cut(&file, asked, created)?;
                Ok(Found { attr: file.attr(), file: Some(file), place: place_after(below, &note) })
            }
            Ok(Created { attr, .. }) if attr.kind == FileKind::Directory => Err(errno(libc::EISDIR)),
            Ok(Created { attr, .. }) => {
                let file = self.agent.wait(client.open(who, attr.ino, asked.access))?;
                Ok(Found { attr, file: Some(file), place: place_after(below, &note) })
            }
            Err(Fault::Failed(error))
                if error.errno == libc::EEXIST && asked.has(libc::O_NOFOLLOW) && !asked.has(libc::O_EXCL) =>
            {
                let found = self.open_existing(below, asked)?;
                if found.attr.kind == FileKind::Directory { Err(errno(libc::EISDIR)) } else { Ok(found) }
            }
            Err(fault) => Err(fault),
        }
    }

    fn open_unnamed(&self, below: &Below<'_>, asked: Asked) -> Result<Found> {
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        if !asked.access.write {
            return Err(errno(libc::EINVAL));
        }
        let dir = self.walk(below, &note, |way| client.resolve(who, way, true))?;
        if dir.kind != FileKind::Directory {
            return Err(errno(libc::ENOTDIR));
        }
        let mode = mode_under(asked.mode, asked.umask);
        let (attr, file) = self.agent.wait(client.create_unnamed(who, dir.ino, mode, asked.access))?;
        let path = [place_after(below, &note).path, format!("/#{}", attr.ino).into_bytes()].concat();
        Ok(Found { attr, file: Some(file), place: NamedAt { path, entry: None } })
    }

    /// `O_TRUNC`.
    fn cut(&self, file: &Arc<File>, asked: Asked, is_new: bool) -> Result<()> {
        if is_new || !asked.has(libc::O_TRUNC) {
            return Ok(());
        }
        match file.attr().kind {
            FileKind::File => {}
            FileKind::Directory => return Err(errno(libc::EISDIR)),
            _ => return Ok(()),
        }
        let (client, who) = (self.agent.client(), self.agent.who());
        let through = asked.access.write.then_some(&**file);
        self.agent.mapped.changing(self.agent, file.ino(), || {
            self.agent.wait(client.truncate(who, file.ino(), 0, through))?;
            Ok(((), Changed::Len(0)))
        })
    }

    /// mkdir(2).
    pub fn mkdir(&self) -> Result<Answer> {
        let below = self.below(self.request.desc, self.bytes)?;
        if below.ends_in_dot() {
            // There is such a directory, or none in which it could be.
            self.resolve(&below, true)?;
            return Err(errno(libc::EEXIST));
        }
        let new = new_file(FileKind::Directory, self.request.a as u32 & 0o1777, u32::from(self.request.umask));
        self.make(&below, &new)
    }

    /// mknod(2).
    pub fn mknod(&self) -> Result<Answer> {
        let below = self.below(self.request.desc, self.bytes)?;
        let mode = self.request.a as u32;
        let kind = match FileKind::from_mode(mode) {
            _ if mode & libc::S_IFMT == 0 => FileKind::File,
            Some(FileKind::Directory) => return Err(errno(libc::EPERM)),
            None | Some(FileKind::Symlink) => return Err(errno(libc::EINVAL)),
            // The right to make devices (CAP_MKNOD) is root's.
            Some(FileKind::BlockDevice | FileKind::CharDevice) if self.agent.uid() != 0 => {
                return Err(errno(libc::EPERM));
            }
            Some(kind) => kind,
        };
        if below.is_root() || below.wants_dir() || below.ends_in_dots() {
            let there = self.resolve(&below, true);
            return Err(errno(if there.is_ok() { libc::EEXIST } else { libc::ENOENT }));
        }
        let new =
            NewFile { rdev: self.request.b as u32, ..new_file(kind, mode & 0o7777, u32::from(self.request.umask)) };
        self.make(&below, &new)
    }

    fn make(&self, below: &Below<'_>, new: &NewFile) -> Result<Answer> {
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        self.walk(below, &note, |way| client.create_path(who, way, new))?;
        Ok(Answer::default())
    }

    /// rmdir(2).
    pub fn rmdir(&self) -> Result<Answer> {
        let below = self.below(self.request.desc, self.bytes)?;
        match () {
            () if below.is_root() => return Err(errno(libc::EBUSY)),
            () if below.ends_in_dot() => return Err(errno(libc::EINVAL)),
            () if below.ends_in_dots() => return Err(errno(libc::ENOTEMPTY)),
            () => {}
        }
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        self.walk(&below, &note, |way| client.rmdir_path(who, way))?;
        Ok(Answer::default())
    }

    /// unlink(2).
    pub fn unlink(&self) -> Result<Answer> {
        let below = self.below(self.request.desc, self.bytes)?;
        if below.is_root() || below.ends_in_dot() || below.ends_in_dots() {
            self.resolve(&below, true)?;
            return Err(errno(libc::EISDIR));
        }
        if below.ends_in_slash() {
            // It fails in any case; the kind of file decides how. A link is none that is followed.
            let is_dir = self.resolve(&below.without_slash(), false)?.kind == FileKind::Directory;
            return Err(errno(if is_dir { libc::EISDIR } else { libc::ENOTDIR }));
        }
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        self.walk(&below, &note, |way| client.unlink_path(who, way))?;
        Ok(Answer::default())
    }

    /// renameat2(2).
    pub fn rename(&self) -> Result<Answer> {
        let (from, to) = self.strings()?;
        let (from, to) = (self.below(self.request.desc, from)?, self.below(self.request.b, to)?);
        let flags = self.request.a as u32;
        if !matches!(flags, 0 | libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) {
            return Err(errno(libc::EINVAL));
        }
        let is_no_name = |path: &&Below<'_>| path.is_root() || path.ends_in_dot() || path.ends_in_dots();
        if let Some(path) = [&from, &to].into_iter().find(is_no_name) {
            return Err(match self.resolve(path, true) {
                Err(Fault::Failed(error)) => error.into(),
                _ => errno(libc::EBUSY),
            });
        }
        let is_there = |path: &Below<'_>| self.resolve(&path.without_slash(), false).is_ok();
        match self.rename_names(&from, &to, flags) {
            Err(Fault::Failed(error))
                if error.errno == libc::EISDIR && self.is_onto_above(&from, &to).unwrap_or(false) =>
            {
                Err(errno(libc::ENOTEMPTY))
            }
            // Linux looks whether the new name is there before it looks at what both are.
            Err(Fault::Failed(error))
                if flags == libc::RENAME_NOREPLACE
                    && matches!(error.errno, libc::ENOTDIR | libc::EINVAL)
                    && is_there(&from)
                    && is_there(&to) =>
            {
                Err(errno(libc::EEXIST))
            }
            done => done.map(|()| Answer::default()),
        }
    }

    fn rename_names(&self, from: &Below<'_>, to: &Below<'_>, flags: u32) -> Result<()> {
        let (client, who) = (self.agent.client(), self.agent.who());
        if from.wants_dir() || to.wants_dir() {
            // A symbolic link to a directory is none.
            let attr = self.resolve(&from.without_slash(), false)?;
            if attr.kind != FileKind::Directory {
                return Err(errno(libc::ENOTDIR));
            }
        }
        let (first, second) = (WayNote::default(), WayNote::default());
        let way = Way::below(from.dir(), from.path).seen_at(self.agent.at(), &first);
        let to_way = Way::below(to.dir(), to.path).seen_at(self.agent.at(), &second);
        let renamed = self.agent.wait(async {
            if flags != libc::RENAME_EXCHANGE {
                return client.rename_path(who, way, to_way, flags == libc::RENAME_NOREPLACE).await;
            }
            let (dir, name) = client.resolve_parent(who, way).await?;
            let (to_dir, to_name) = client.resolve_parent(who, to_way).await?;
            client.exchange(who, dir, &name, to_dir, &to_name).await
        });
        unless_it_left(&first, unless_the_second_left(&second, renamed))
    }

    /// Whether the second path means a directory that leads to the first one: Linux looks for that before it compares their kinds.
    fn is_onto_above(&self, from: &Below<'_>, to: &Below<'_>) -> Result<bool> {
        let above = self.resolve(&to.without_slash(), false)?.ino;
        let (note, client, who) = (WayNote::default(), self.agent.client(), self.agent.who());
        self.agent.wait(async {
            let way = Way::below(from.dir(), from.path).seen_at(self.agent.at(), &note);
            let (mut dir, _) = client.resolve_parent(who, way).await?;
            while dir != above && dir != Ino::ROOT {
                dir = client.getattr(who, dir).await?.parent;
            }
            Ok(dir == above)
        })
    }

    /// linkat(2).
    pub fn link(&self) -> Result<Answer> {
        let (existing, new) = self.strings()?;
        let (client, who) = (self.agent.client(), self.agent.who());
        let new = self.below(self.request.b, new)?;
        let (ino, kind) = match self.place(self.request.desc, existing)? {
            // A file without a name that is to get none.
            Place::Itself(description) if description.stays_unnamed => return Err(errno(libc::ENOENT)),
            Place::Itself(description) => (description.ino, description.file_kind),
            Place::Below(below) => {
                let attr = self.resolve(&below, self.request.a & 1 != 0)?;
                (attr.ino, attr.kind)
            }
        };
        let note = WayNote::default();
        if kind == FileKind::Directory || new.wants_dir() {
            // It fails in any case; the new name decides how.
            return Err(match self.taken(&new) {
                Fault::Leaves(path) => Fault::SecondLeaves(path),
                Fault::Failed(error)
                    if error.errno == libc::ENOENT && kind == FileKind::Directory && !new.wants_dir() =>
                {
                    let way = Way::below(new.dir(), new.path).seen_at(self.agent.at(), &note);
                    unless_the_second_left(&note, self.agent.wait(client.resolve_parent(who, way)))?;
                    errno(libc::EPERM)
                }
                fault => fault,
            });
        }
        let way = Way::below(new.dir(), new.path).seen_at(self.agent.at(), &note);
        let linked = self.agent.wait(async {
            let (dir, name) = match client.resolve_parent(who, way).await {
                // The path ends in a directory that is there.
                Err(Failure { code: Code::Invalid, .. }) => return Err(Code::Exists.into()),
                found => found?,
            };
            client.link(who, ino, dir, &name).await
        });
        unless_the_second_left(&note, linked)?;
        Ok(Answer::default())
    }

    /// Why a name cannot be made: EEXIST, or why it is not found.
    fn taken(&self, new: &Below<'_>) -> Fault {
        self.resolve(&new.without_slash(), false).map_or_else(|fault| fault, |_| errno(libc::EEXIST))
    }

    /// symlinkat(2).
    pub fn symlink(&self) -> Result<Answer> {
        let (target, path) = self.strings()?;
        if target.is_empty() {
            return Err(errno(libc::ENOENT));
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(errno(libc::ENAMETOOLONG));
        }
        let below = self.below(self.request.desc, path)?;
        if below.wants_dir() {
            return Err(self.taken(&below));
        }
        let new = NewFile { target: target.to_vec(), ..new_file(FileKind::Symlink, 0o777, 0) };
        self.make(&below, &new)
    }

    /// readlinkat(2).
    pub fn readlink(&self) -> Result<Answer> {
        let (client, who) = (self.agent.client(), self.agent.who());
        let (ino, kind) = match self.place(self.request.desc, self.bytes)? {
            Place::Itself(description) => (description.ino, description.file_kind),
            Place::Below(below) => self.resolve(&below, false).map(|attr| (attr.ino, attr.kind))?,
        };
        if kind != FileKind::Symlink {
            return Err(errno(libc::EINVAL));
        }
        Ok(Answer::with(self.agent.wait(client.readlink(who, ino))?))
    }

    /// The path of a description in the volume, as the links of `/proc/self/fd` show it.
    pub fn path_of(&self) -> Result<Answer> {
        let description = self.description()?;
        let (client, who) = (self.agent.client(), self.agent.who());
        let NamedAt { path, entry } = description.place.lock().clone();
        let is_there = self.agent.wait_for(client.resolve(who, &path, false))?;
        let is_short = path.len() <= aze_handles::PATH_BYTES_MAX;
        if is_there.is_ok_and(|attr| attr.ino == description.ino) {
            if !is_short {
                return Err(errno(libc::ENAMETOOLONG));
            }
            return Ok(Answer::with(path));
        }
        let found = self.agent.wait(async {
            if description.file_kind == FileKind::Directory {
                return self.climb(description.ino).await;
            }
            // A directory above it has been renamed, or its name has gone.
            let Some((dir, name)) = &entry else { return Ok(None) };
            match client.lookup(who, *dir, name).await {
                Ok(attr) if attr.ino == description.ino => {}
                Err(failure) if !matches!(failure.code, Code::NotFound | Code::Stale) => return Err(failure),
                _ => return Ok(None),
            }
            Ok(self.climb(*dir).await?.map(|dir| {
                let above = if dir == b"/" { &[][..] } else { &dir };
                [above, b"/", name.as_bytes()].concat()
            }))
        })?;
        let Some(path) = found else {
            let path = if is_short { &path[..] } else { b"" };
            return Ok(Answer { result: 1, ..Answer::with([path, b" (deleted)"].concat()) });
        };
        description.place.lock().path.clone_from(&path);
        Ok(Answer::with(path))
    }

    /// The path of a directory that has been renamed, or is below one that was: from its parents' entries. `None` if it has
    /// been removed.
    async fn climb(&self, dir: Ino) -> std::result::Result<Option<Vec<u8>>, Failure> {
        let (client, who) = (self.agent.client(), self.agent.who());
        let (mut here, mut path) = (dir, Vec::new());
        while here != Ino::ROOT {
            let parent = match client.getattr(who, here).await {
                Err(failure) if failure.code == Code::Stale => return Ok(None),
                attr => attr?.parent,
            };
            let mut after = 0;
            let name = loop {
                let listing = client.list(who, parent, after, PAGE_ENTRIES, false).await?;
                if let Some(found) = listing.entries.iter().find(|entry| entry.ino == here) {
                    break Some(found.name.clone());
                }
                match listing.entries.last() {
                    Some(last) if listing.more => after = last.hash.cookie(),
                    _ => break None,
                }
            };
            // It has been renamed meanwhile, or removed.
            let Some(name) = name else { return Ok(None) };
            path = [b"/", name.as_bytes(), &path].concat();
            if path.len() > aze_handles::PATH_BYTES_MAX {
                return Err(Code::NameTooLong.into());
            }
            here = parent;
        }
        Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
    }
}

/// Entries asked for at once when a directory is looked for in its parent.
const PAGE_ENTRIES: usize = 1024;

/// As [`unless_it_left`], for the second of two paths.
fn unless_the_second_left<T>(note: &WayNote, done: Result<T>) -> Result<T> {
    match done {
        Err(fault) => Err(note.leaves_to().map_or(fault, Fault::SecondLeaves)),
        done => done,
    }
}

fn check_end(below: &Below<'_>, attr: &Attr) -> Result<()> {
    if below.wants_dir() && attr.kind != FileKind::Directory { Err(errno(libc::ENOTDIR)) } else { Ok(()) }
}

/// A file to be made by a program with this umask.
fn new_file(kind: FileKind, mode: u32, umask: u32) -> NewFile {
    let mode = mode_under(mode, umask & 0o777);
    NewFile { kind, mode, rdev: 0, target: Vec::new(), exclusive: true, open: None, chunk_bits: 0, private: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::name::Name;

    #[test]
    fn a_trail_is_a_path() {
        let name = |name: &str| Name::new(name.as_bytes()).expect("a name");
        let trail = |from_root, ups, names: &[&str], last: Option<&str>| Trail {
            from_root,
            ups,
            names: names.iter().map(|part| name(part)).collect(),
            last: last.map(name),
            dir: Ino::ROOT,
            ..Trail::default()
        };
        let cases = [
            ("/", trail(false, 0, &[], None), "/"),
            ("/a/b", trail(false, 0, &["c"], Some("d")), "/a/b/c/d"),
            ("/a/b", trail(false, 1, &[], Some("d")), "/a/d"),
            ("/a/b", trail(false, 2, &[], None), "/"),
            ("/a/b", trail(true, 0, &["x"], None), "/x"),
            ("/a", trail(true, 0, &[], None), "/"),
        ];
        for (base, trail, path) in cases {
            assert_eq!(String::from_utf8(path_after(base.as_bytes(), &trail)).expect("text"), path);
        }
    }
}
