//! Files of any place behind one face, for work on volumes and local paths alike.
//!
//! Everything here blocks the calling thread, and may be called from many threads at once.

use crate::stripes::Stripes;
use aze_proto::attr::FileKind;
use aze_proto::ids::Time;
use aze_words::exit::{Exit, Outcome, Trouble};
use std::ops::Range;
use std::sync::Arc;

/// What a copy must know of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits (12).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Whether it may have holes.
    pub is_sparse: bool,
    /// Last access.
    pub atime: Time,
    /// Last change.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// How many names it has.
    pub links: u64,
    /// What tells it from every other file of its tree.
    pub identity: (u64, u64),
}

/// What tells an object from every other one of its file system, and from itself before or after a change: inode, length of a
/// file, times of the last change of its bytes and of anything. Not the device: nodes give one mount different numbers.
pub type Print = [u64; 4];

impl Meta {
    /// Its print.
    pub fn print(&self) -> Print {
        let size = if self.kind == FileKind::File { self.size } else { 0 };
        [self.identity.1, size, self.mtime.0, self.ctime.0]
    }

    /// Of a file that tests invent.
    #[cfg(test)]
    pub(crate) fn of_file(size: u64) -> Meta {
        Meta {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size,
            is_sparse: false,
            atime: Time(0),
            mtime: Time(0),
            ctime: Time(0),
            links: 1,
            identity: (0, 0),
        }
    }
}

/// What may have the name of a file or link when it gets it, and goes then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// Any other file or link.
    Anything,
    /// One of these, or nothing.
    Only(Vec<Print>),
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Names {
    /// In no particular order.
    pub entries: Vec<Named>,
    /// Why some may be missing.
    pub trouble: Option<Trouble>,
}

impl Names {
    /// All entries.
    ///
    /// # Errors
    /// Some may be missing.
    pub fn all(self) -> Outcome<Vec<Named>> {
        self.trouble.map_or(Ok(self.entries), Err)
    }
}

/// An entry of a directory.
#[derive(Debug)]
pub struct Named {
    /// Its name.
    pub name: Vec<u8>,
    /// The kind of its inode.
    pub kind: FileKind,
    /// Its attributes, where the listing brought them along.
    pub meta: Option<Meta>,
}

/// Where an object came from, of a volume that lies over a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The path in the volume that it had when it came.
    pub inside: Vec<u8>,
    /// The absolute path of the object from which it came.
    pub outside: Vec<u8>,
    /// What that was then: inode, length, modification and change time in nanoseconds.
    pub identity: [u64; 4],
    /// The volume has no data and no attributes of it that were not there then.
    pub is_clean: bool,
    /// Its data may have been changed in the volume.
    pub data_changed: bool,
    /// A directory from which the volume has not taken any name yet.
    pub is_behind: bool,
}

impl Origin {
    /// The print that it had, where times before 1970 are not told apart.
    pub fn print(&self, kind: FileKind) -> Print {
        print_of(kind, &self.identity)
    }
}

/// A name of the directory over which a volume lies that does not lead, in the volume, to the object taken over under
/// it: that was removed, renamed, or replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneName {
    /// The path in the volume that it had when it came.
    pub inside: Vec<u8>,
    /// The absolute path of the object from which it came.
    pub outside: Vec<u8>,
    /// Kind of that object.
    pub kind: FileKind,
    /// Its inode, length, modification and change time in nanoseconds then.
    pub identity: [u64; 4],
    /// The inode of the volume, which may be gone, too.
    pub inode: u64,
    /// The volume's record of it: the inode of the directory, the name in it, and when it went. Names in a directory that was
    /// renamed have none of their own.
    pub record: Option<(u64, Vec<u8>, Time)>,
}

impl GoneName {
    /// The print of the object from which it came.
    pub fn print(&self) -> Print {
        print_of(self.kind, &self.identity)
    }
}

/// A file that a stage has put into the directory over which its volume lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// Its path in the volume.
    pub inside: Vec<u8>,
    /// The absolute path at which it was put.
    pub outside: Vec<u8>,
    /// Its inode in the volume, its length and its change time when it was read.
    pub inode: u64,
    /// See there.
    pub size: u64,
    /// See there.
    pub ctime: Time,
    /// Its mark then.
    pub mark: Vec<u64>,
    /// Inode, length, modification and change time in nanoseconds of the object put there.
    pub identity: [u64; 4],
}

fn print_of(kind: FileKind, [inode, size, mtime_ns, ctime_ns]: &[u64; 4]) -> Print {
    let time = |ns: &u64| u64::try_from(ns.cast_signed()).unwrap_or(0);
    [*inode, if kind == FileKind::File { *size } else { 0 }, time(mtime_ns), time(ctime_ns)]
}

/// An extended attribute: its name and its value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// How the names of the extended attributes begin that `aze` itself keeps at the root of a volume.
pub const OWN_XATTRS: &str = "user.azekura.";

/// Whether a copy keeps an extended attribute of this name: those that people and programs set, and access
/// control lists. The rest belongs to the machine or the volume that made it.
pub fn is_kept(name: &[u8]) -> bool {
    if name.starts_with(OWN_XATTRS.as_bytes()) {
        return false;
    }
    [&b"user."[..], b"trusted.", b"system.posix_acl_"].iter().any(|prefix| name.starts_with(prefix))
}

/// An open file to read.
pub trait Source: Send + Sync {
    /// The extended attributes that a copy keeps.
    fn xattrs(&self) -> Outcome<Vec<Xattr>>;
    /// Fills `buffer` from `offset` on; fewer bytes than asked for mean the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize>;
    /// Where the next data are, from `offset` on; `None` if there are only holes up to the end.
    fn next_data(&self, offset: u64) -> Outcome<Option<u64>>;
    /// As [`Source::next_data`], for a caller that compares a mark from before its first look with one from after its
    /// last: data changed in between may be missed.
    fn next_data_between_marks(&self, offset: u64) -> Outcome<Option<u64>> {
        self.next_data(offset)
    }
    /// The attributes that the file has now.
    fn meta(&self) -> Outcome<Meta>;
    /// Numbers that change with the file's data. If they are the same before and after reading, all that was read was there
    /// at one moment. In a volume the servers count, and that is certain; on a local file system it is as good as the
    /// change times that it keeps.
    fn mark(&self) -> Outcome<Vec<u64>>;
    /// The attributes, and the mark that was asked for after them.
    fn marked(&self) -> Outcome<(Meta, Vec<u64>)> {
        let meta = self.meta()?;
        Ok((meta, self.mark()?))
    }
    /// How often the file is open for writing; `None` where that is not known. In a volume the file's server knows it, unless
    /// it was started again since the file was made: then opens from before are missing.
    fn writers(&self) -> Outcome<Option<u32>> {
        Ok(None)
    }
    /// Has a volume give up this file, whose only name is `path`, in one step: if its change time is that of `meta`, its mark
    /// was `mark` after it was opened here, and no client has had it open for writing since.
    ///
    /// # Errors
    /// The file stays then, unless the error is that the outcome is unknown.
    fn release(&self, path: &[u8], _meta: &Meta, _mark: &[u64], _any_life: bool) -> Outcome<()> {
        let text = format!("release {}: it is in no volume", String::from_utf8_lossy(path));
        Err(Trouble::new(Exit::Fatal, text))
    }
}

/// From where bytes were read back, to be compared with those that were to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBack {
    /// From the file system past the page cache (O_DIRECT).
    Direct,
    /// From the file system, after the kernel was told to forget the pages (POSIX_FADV_DONTNEED). It may keep some all the same.
    Dropped,
    /// From a file system in memory, which has no other place than its pages.
    Memory,
    /// From the servers of a volume; the client keeps none of the bytes that it writes.
    Servers,
    /// By another node than the one that wrote them, which runs another kernel; and there past the page cache, where the file
    /// system can.
    OtherNode,
}

impl ReadBack {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            ReadBack::Direct => "direct",
            ReadBack::Dropped => "dropped",
            ReadBack::Memory => "memory",
            ReadBack::Servers => "servers",
            ReadBack::OtherNode => "other_node",
        }
    }
}

/// What a place can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Names that differ only by case are one.
    pub folds_case: bool,
    /// A file can have several names.
    pub links: bool,
    /// The longest name, in bytes.
    pub name_bytes_max: usize,
    /// Bytes that still fit in.
    pub room_bytes: u64,
    /// Files and directories that still fit in; `None` if the place sets no limit.
    pub room_files: Option<u64>,
    /// How new files lie on the servers of a parallel file system that tells it.
    pub stripes: Option<Stripes>,
}

/// A new file. Until [`Sink::finish`] it must not be taken for the whole.
pub trait Sink: Send + Sync {
    /// Gives the empty file this length, all of it a hole.
    fn set_size(&self, bytes: u64) -> Outcome<()>;
    /// Writes all of `data` at `offset`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<()>;
    /// Has the place begin to store the written data, so that less is left for [`Sink::settle`]. No thread waits for
    /// it.
    fn begin_to_store(&self, _range: Range<u64>) {}
    /// Opens the written bytes, to read them again.
    fn reread(&self) -> Outcome<Box<dyn Source>>;
    /// Gives it an extended attribute, before [`Sink::finish`].
    fn set_xattr(&self, xattr: &Xattr) -> Outcome<()>;
    /// Completes it: its mode, and owner and times where `preserve` is set.
    fn finish(&self, meta: &Meta, preserve: bool) -> Outcome<()>;
    /// Completes it without a name: its mode, and owner and times as far as the place lets them; then all of it is made
    /// durable.
    fn settle(&self, meta: &Meta) -> Outcome<()>;
    /// Makes the bytes written so far durable, and lets other nodes see them. No more are written then.
    fn store(&self) -> Outcome<()> {
        Err(Trouble::new(
            Exit::Fatal,
            "store a part of a file: its tree has no parts by other processes: a defect in aze",
        ))
    }
    /// Opens the bytes to read them from where they are stored, and tells from where that is.
    fn reread_stored(&self) -> Outcome<(Box<dyn Source>, ReadBack)>;
    /// Gives a settled file its name, and tells which attributes the name leads to then.
    ///
    /// # Errors
    /// [`Exit::Caller`] if something else has the name than it may replace.
    fn publish(&self, replaces: &Replaces) -> Outcome<Meta>;
    /// Removes the unfinished file.
    fn abandon(&self);
}

/// Files that are named by paths.
pub trait Tree: Send + Sync {
    /// The attributes of a file; `None` if there is none.
    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Option<Meta>>;
    /// The attributes of a directory, its times exact at a moment during the call. [`Tree::stat`] may give older times where
    /// several servers have entries of it.
    fn stat_dir(&self, path: &[u8]) -> Outcome<Meta> {
        let missing = || Trouble::new(Exit::NotFound, format!("{}: no such file or directory", self.shown(path)));
        self.stat(path, true)?.ok_or_else(missing)
    }
    /// What a directory holds.
    fn list(&self, dir: &[u8]) -> Outcome<Names>;
    /// The same, for a caller that needs the attributes of all: those that can be had for less than by asking for each.
    fn list_with_attributes(&self, dir: &[u8]) -> Outcome<Names> {
        self.list(dir)
    }
    /// A symlink's target.
    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>>;
    /// Opens a file to read.
    fn open(&self, path: &[u8]) -> Outcome<Box<dyn Source>>;
    /// Makes or replaces a file that is to have these permission bits.
    fn create(&self, path: &[u8], mode: u32) -> Outcome<Box<dyn Sink>>;
    /// Opens a file to read its bytes from now on; a symbolic link is not followed.
    fn open_fresh(&self, path: &[u8]) -> Outcome<Box<dyn Source>>;
    /// A temporary name, or a longer one that begins with it, from which a file gets the name `path` at the least expense.
    fn hidden_near(&self, _path: &[u8], hidden: Vec<u8>) -> Outcome<Vec<u8>> {
        Ok(hidden)
    }
    /// As [`Tree::create`], with `hidden` as the name in the same directory until it is finished. A symbolic link of the
    /// name is replaced, not followed.
    fn create_as(&self, path: &[u8], mode: u32, hidden: &[u8]) -> Outcome<Box<dyn Sink>>;
    /// Opens the unfinished file that a process has made with [`Tree::create_as`], to write a part of it.
    fn reopen_as(&self, path: &[u8], _hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        let text = format!("write {}: its tree takes no parts by other processes: a defect in aze", self.shown(path));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// As [`Sink::reread_stored`], of the unfinished file that a process has made with [`Tree::create_as`].
    fn reread_as(&self, path: &[u8], _hidden: &[u8]) -> Outcome<(Box<dyn Source>, ReadBack)> {
        let text = format!("read {} back: its tree has no parts by other processes: a defect in aze", self.shown(path));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// As [`Tree::make_link`], by way of the name `hidden` in the same directory.
    fn make_link_as(&self, path: &[u8], target: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()>;
    /// Gives the file `existing` the further name `path`, by way of the name `hidden` in the directory of `path`.
    fn add_name(&self, existing: &[u8], path: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()>;
    /// Removes a name; a directory must be empty.
    fn remove(&self, path: &[u8], kind: FileKind) -> Outcome<()>;
    /// Makes the names in a directory, its own mode and its own times durable.
    fn sync_dir(&self, path: &[u8]) -> Outcome<()>;
    /// Gives a directory its final name in one step. The name must be free or, with `exchange`, taken: then the two change
    /// places.
    fn put_in_place(&self, from: &[u8], to: &[u8], exchange: bool) -> Outcome<()>;
    /// What the file system can do that holds a directory; `hidden` is a name that may be made in it for a moment.
    fn traits(&self, dir: &[u8], hidden: &[u8]) -> Outcome<Traits>;
    /// Makes a directory that its owner may use; one that is there already will do.
    fn make_dir(&self, path: &[u8]) -> Outcome<()>;
    /// Makes a symlink, in the place of another symlink or file if need be.
    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()>;
    /// Gives a symlink itself owner and times.
    fn set_link(&self, path: &[u8], _meta: &Meta) -> Outcome<()> {
        let text = format!("set attributes of {}: its tree has no links: a defect in aze", self.shown(path));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// The extended attributes of a directory that a copy keeps.
    fn dir_xattrs(&self, path: &[u8]) -> Outcome<Vec<Xattr>>;
    /// Gives a directory an extended attribute.
    fn set_dir_xattr(&self, path: &[u8], xattr: &Xattr) -> Outcome<()>;
    /// Gives a directory its mode, and owner and times where `preserve` is set.
    fn set_dir(&self, path: &[u8], meta: &Meta, preserve: bool) -> Outcome<()>;
    /// The path as it is shown in messages.
    fn shown(&self, path: &[u8]) -> String;
    /// Whether it is a volume, whose servers count the changes of data.
    fn is_volume(&self) -> bool {
        false
    }
    /// Whether objects may have come from a directory over which the tree lies.
    fn has_origins(&self) -> bool {
        false
    }
    /// Where an object came from with these attributes; `None` if it was made here.
    fn origin(&self, _meta: &Meta) -> Outcome<Option<Origin>> {
        Ok(None)
    }
    /// Whether an object with these attributes came from the directory over which the tree lies.
    fn came_from_below(&self, _meta: &Meta) -> bool {
        false
    }
    /// Has the tree take over a part of a file from the directory over which it lies.
    fn fetch(&self, path: &[u8], _part: Range<u64>) -> Outcome<()> {
        let text = format!("fetch {}: its tree lies over no directory: a defect in aze", self.shown(path));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// All names of the directory over which the tree lies that went.
    fn gone(&self) -> Outcome<Vec<GoneName>> {
        Ok(Vec::new())
    }
    /// Has the tree keep all data of an inode that its directory still has, and may lose afterwards. Nothing if the inode is
    /// gone.
    fn keep_data(&self, name: &GoneName) -> Outcome<()> {
        let text = format!("keep {}: its tree lies over no directory: a defect in aze", self.shown(&name.inside));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// Right before its directory gets another object for this inode: whether the tree still has all that [`Tree::keep_data`] has had it
    /// keep. If not, since another stage has had it read from what that one has put there, it keeps its data once more, durably.
    fn has_kept_data(&self, _name: &GoneName) -> Outcome<bool> {
        Ok(true)
    }
    /// As [`Tree::keep_data`], of an inode that its directory is about to lose, which is held for changed from then on.
    fn take_over(&self, gone: &GoneName) -> Outcome<()> {
        let text = format!("take over {}: its tree lies over no directory: a defect in aze", self.shown(&gone.inside));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// Has the tree read a file from now on where a stage has put it, so that it need not hold its bytes; gives whether it
    /// does. It holds them if they have changed since.
    fn adopt(&self, put: &PutBack) -> Outcome<bool> {
        let text = format!("adopt {}: its tree lies over no directory: a defect in aze", self.shown(&put.inside));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// Drops the record of a name, since the directory has followed.
    fn forget_gone(&self, gone: &GoneName) -> Outcome<()> {
        let text = format!("forget {}: its tree lies over no directory: a defect in aze", self.shown(&gone.inside));
        Err(Trouble::new(Exit::Fatal, text))
    }
    /// What tells this tree from others: paths of equal trees may name the same file.
    fn id(&self) -> String;
}

/// Permission bits of a copy: those that lend the owner's rights are kept only with the owner.
pub fn copied_mode(mode: u32, owner_kept: bool) -> u32 {
    if owner_kept { mode } else { mode & 0o777 }
}

/// A place with the tree that it is in.
#[derive(Clone)]
pub struct Spot {
    /// The tree.
    pub tree: Arc<dyn Tree>,
    /// The path in it.
    pub path: Vec<u8>,
}

impl Spot {
    /// The attributes of the file; `None` if there is none.
    pub fn stat(&self, follow: bool) -> Outcome<Option<Meta>> {
        self.tree.stat(&self.path, follow)
    }

    /// The attributes of the file; an error if there is none.
    pub fn must_stat(&self, follow: bool) -> Outcome<Meta> {
        let missing = || Trouble::new(Exit::NotFound, format!("{}: no such file or directory", self.shown()));
        self.stat(follow)?.ok_or_else(missing)
    }

    /// As it is shown in messages.
    pub fn shown(&self) -> String {
        self.tree.shown(&self.path)
    }

    /// `name` in this directory.
    pub fn join(&self, name: &[u8]) -> Spot {
        Spot { tree: self.tree.clone(), path: join(&self.path, name) }
    }
}

/// Why an object does not get its name.
pub fn in_the_way(shown: &str) -> Trouble {
    let text = format!(
        "{shown}: something is there that the volume has neither taken from there nor put there: neither is touched: move one \
         of them away"
    );
    Trouble::new(Exit::Caller, text)
}

/// Why an object of several names keeps its place: a copy there would be one file, and the other names another one.
pub fn several_names(shown: &str, names: u64) -> Trouble {
    let text = format!(
        "{shown}: it has {names} names there, and a copy would get this one alone: it stays, and the volume keeps its change: \
         rename it in the volume (aze mv), or stage it to another place"
    );
    Trouble::new(Exit::Caller, text)
}

/// The directory that holds `path`; `.` or `/` if it has no other.
pub fn parent(path: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match path.iter().rposition(|byte| *byte == b'/') {
        None => b".".to_vec(),
        Some(0) => b"/".to_vec(),
        Some(at) => path[..at].to_vec(),
    }
}

/// The name `hidden` in the directory that holds `path`.
pub fn beside(path: &[u8], hidden: &[u8]) -> Vec<u8> {
    join(&parent(path), hidden)
}

/// `path` and `name` with exactly one slash between them.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() && !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}
