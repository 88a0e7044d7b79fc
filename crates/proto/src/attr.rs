//! Attributes of a file or directory, and the identity that asks.

use crate::ids::{Generation, Ino, MapEpoch, Time};
use crate::place::Layout;
use crate::wire::{Blob, Input, Malformed, Wire};
use crate::{wire_enum, wire_struct};

/// Kinds of files, as in `S_IFMT` (inode(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A local socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// The file type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Fifo => 0o010_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::Directory => 0o040_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::File => 0o100_000,
            FileKind::Symlink => 0o120_000,
            FileKind::Socket => 0o140_000,
        }
    }

    /// The kind that the type bits of a mode name.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Self::ALL.into_iter().find(|kind| kind.mode_bits() == mode & 0o170_000)
    }

    /// The letter that `ls -l` and `find -type` use.
    pub fn letter(self) -> char {
        match self {
            FileKind::File => '-',
            FileKind::Directory => 'd',
            FileKind::Symlink => 'l',
            FileKind::Fifo => 'p',
            FileKind::Socket => 's',
            FileKind::CharDevice => 'c',
            FileKind::BlockDevice => 'b',
        }
    }

    const ALL: [FileKind; 7] = [
        FileKind::File,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];
}

impl Wire for FileKind {
    fn put(&self, out: &mut Vec<u8>) {
        out.push((self.mode_bits() >> 12) as u8);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        let bits = u32::from(u8::take(input)?) << 12;
        FileKind::from_mode(bits)
            .filter(|kind| kind.mode_bits() == bits)
            .ok_or_else(|| input.malformed("a kind of file"))
    }
}

/// Where the data of a file may be: one byte, also on the wire.
///
/// Its reach is how far data may be that are elsewhere than beside the inode: 0 if there are none, else one more than the
/// base-2 logarithm of the number of chunks, from chunk 0 on. It is sparse where holes may exist: a write began beyond
/// the end, a truncation moved the end on, or a hole was punched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread(u8);

impl Spread {
    /// The largest reach: more chunks than any file has.
    pub const REACH_MAX: u8 = 63;

    /// Data in any chunk.
    pub const ANYWHERE: Spread = Spread(Spread::REACH_MAX << 1);

    /// The bit of the byte that says that holes may exist.
    const SPARSE: u8 = 1;

    /// Of this reach, at most the largest, and sparse if so.
    pub fn new(reach: u8, is_sparse: bool) -> Spread {
        Spread(reach.min(Spread::REACH_MAX) << 1 | u8::from(is_sparse))
    }

    /// A hole, if so.
    pub fn sparse(is_sparse: bool) -> Spread {
        Spread::new(0, is_sparse)
    }

    /// Data in so many chunks, from chunk 0 on, and in as many more as the next power of two has.
    pub fn reaching(chunks: u64) -> Spread {
        let reach = chunks.checked_next_power_of_two().map_or(Spread::REACH_MAX, |power| power.ilog2() as u8 + 1);
        Spread::new(if chunks == 0 { 0 } else { reach }, false)
    }

    /// How far data may reach that are elsewhere than beside the inode.
    pub fn reach(self) -> u8 {
        self.0 >> 1
    }

    /// Whether holes may exist.
    pub fn is_sparse(self) -> bool {
        self.0 & Spread::SPARSE != 0
    }

    /// The same with another reach.
    #[must_use]
    pub fn with_reach(self, reach: u8) -> Spread {
        Spread::new(reach, self.is_sparse())
    }

    /// The same with holes, or without.
    #[must_use]
    pub fn with_sparse(self, is_sparse: bool) -> Spread {
        Spread::new(self.reach(), is_sparse)
    }

    /// How many chunks, from chunk 0 on, may be elsewhere than beside the inode.
    pub fn chunks(self) -> u64 {
        if self.is_wide() { 1 << (self.reach() - 1) } else { 0 }
    }

    /// Whether data may be elsewhere than beside the inode.
    pub fn is_wide(self) -> bool {
        self.reach() > 0
    }

    /// What either says.
    pub fn and(self, other: Spread) -> Spread {
        Spread::new(self.reach().max(other.reach()), self.is_sparse() | other.is_sparse())
    }

    /// The bits of the byte.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// What the bits say; `None` if there are others.
    pub fn from_bits(bits: u8) -> Option<Spread> {
        (bits >> 1 <= Spread::REACH_MAX).then_some(Spread(bits))
    }
}

impl Wire for Spread {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }

    fn take(input: &mut Input<'_>) -> Result<Self, Malformed> {
        Spread::from_bits(u8::take(input)?).ok_or_else(|| input.malformed("where data are"))
    }
}

wire_struct! {
    /// Attributes of one inode.
    ///
    /// For a directory `size`, `links`, `mtime` and `ctime` are exact only in the reply to
    /// `GetAttr`, which gathers them; elsewhere they are the home's part.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Attr {
        /// Identity.
        pub ino: Ino,
        /// File type.
        pub kind: FileKind,
        /// Permission bits with set-id and sticky (12 bits).
        pub mode: u32,
        /// Number of entries that name it; for a directory 2 + subdirectories.
        pub links: u32,
        /// Owner.
        pub uid: u32,
        /// Owning group.
        pub gid: u32,
        /// Device number of a device file, else 0.
        pub rdev: u32,
        /// Length in bytes; for a directory its number of entries; for a symlink its target's length.
        pub size: u64,
        /// As set by utimensat(2); reading does not move it.
        pub atime: Time,
        /// Last change of the data.
        pub mtime: Time,
        /// Last change of the attributes.
        pub ctime: Time,
        /// When it was made.
        pub btime: Time,
        /// Raised by every truncation.
        pub generation: Generation,
        /// Map epoch at which it was made: a server that started empty later has lost its part.
        pub born: MapEpoch,
        /// Where its chunks are: chunk 0 beside its inode unless placed elsewhere.
        pub layout: Layout,
        /// Base-2 logarithm of its chunk size in bytes (for a directory: of its new files).
        pub chunk_bits: u8,
        /// Where its data may be.
        pub spread: Spread,
        /// Whether it has extended attributes, access control lists among them: where it has none, a client that may
        /// believe its attributes need not ask for them.
        pub has_xattrs: bool,
        /// For a directory the directory that holds it; else 0.
        pub parent: Ino,
    }
}

impl Attr {
    /// Chunk size in bytes.
    pub fn chunk_bytes(&self) -> u64 {
        1 << self.chunk_bits
    }

    /// How many bytes from its beginning lie beside its inode: a chunk, or none where its layout places them elsewhere.
    pub fn home_bytes(&self) -> u64 {
        if self.layout.is_beside(self.ino) { self.chunk_bytes() } else { 0 }
    }

    /// Where data end at the latest, in bytes: there are holes only from there on.
    pub fn data_end(&self) -> u64 {
        match self.spread.is_wide() {
            true => self.spread.chunks().saturating_mul(self.chunk_bytes()),
            false => self.home_bytes(),
        }
    }

    /// What the home has to know before data up to `end` are written, on a volume of so many `servers`; `None` if it
    /// does. Where chunks would be on all servers it says so at once: then there is nothing more to learn.
    pub fn reach_for(&self, end: u64, servers: impl FnOnce() -> usize) -> Option<Spread> {
        if end <= self.data_end() {
            return None;
        }
        let reach = Spread::reaching(end.div_ceil(self.chunk_bytes()));
        Some(if reach.chunks() >= servers() as u64 { Spread::ANYWHERE } else { reach })
    }

    /// `st_blocks`, in units of 512 bytes: what the length takes, less one where holes may be, so that programs that
    /// compare the two (`cp`, `tar -S`) look for holes. Never 0 where data may be: `tar` would not read them.
    pub fn blocks(&self) -> u64 {
        if self.kind != FileKind::File {
            return 0;
        }
        let all = self.size.min(self.data_end()).div_ceil(512);
        if self.spread.is_sparse() && all > 1 { all - 1 } else { all }
    }

    /// `st_mode`: type and permission bits.
    pub fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode
    }
}

wire_struct! {
    /// What a server must know of a directory to serve its entries: granted by the directory's
    /// home, recalled when it changes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Stub {
        /// The directory.
        pub ino: Ino,
        /// Permission bits with set-gid and sticky.
        pub mode: u32,
        /// Owner.
        pub uid: u32,
        /// Owning group.
        pub gid: u32,
        /// Map epoch at which the directory was made.
        pub born: MapEpoch,
        /// Base-2 logarithm of the chunk size of new files.
        pub chunk_bits: u8,
        /// Its access control list, if it has one.
        pub acl: Option<Blob>,
        /// The one that new files in it inherit, if it has one.
        pub default_acl: Option<Blob>,
        /// Its names are still in the volume's backing: before anything else is done with them they are imported.
        pub is_behind: bool,
        /// Raised by every change of the fields above; an older stub never replaces a newer one.
        pub version: u64,
        /// Its modification time as far as its home knew it when it told this: a change of it is not told by itself.
        pub mtime: Time,
        /// The same of its change time.
        pub ctime: Time,
    }
}

impl Stub {
    /// A checksum of the rights, never 0: whether two servers know the same of a directory.
    pub fn rights(&self) -> u64 {
        let plain = Stub { version: 0, is_behind: false, mtime: Time(0), ctime: Time(0), ..self.clone() };
        xxhash_rust::xxh3::xxh3_64(&plain.to_bytes()).max(1)
    }
}

wire_struct! {
    /// Who asks: checked against what the connection has proven.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Identity {
        /// User id.
        pub uid: u32,
        /// Primary group id.
        pub gid: u32,
        /// Supplementary groups, at most `GROUPS_MAX`.
        pub groups: Vec<u32>,
    }
}

impl Identity {
    /// Whether the user is root, to whom permission bits do not apply.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is among the user's groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

wire_enum! {
    /// A time to set: utimensat(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum SetTime {
        /// `UTIME_NOW`.
        1 = Now,
        /// The given time.
        2 = To {
            /// Nanoseconds since 1970-01-01 UTC.
            time: Time
        },
    }
}

wire_struct! {
    /// A change of attributes; `None` leaves a field as it is. Length is changed by `Truncate`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Change {
        /// New permission bits (12 bits).
        pub mode: Option<u32>,
        /// New owner.
        pub uid: Option<u32>,
        /// New group.
        pub gid: Option<u32>,
        /// New access time.
        pub atime: Option<SetTime>,
        /// New modification time.
        pub mtime: Option<SetTime>,
    }
}

wire_enum! {
    /// What setting an extended attribute takes for granted: setxattr(2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum XattrHow {
        /// Nothing.
        #[default]
        1 = Any,
        /// That it is not there: `XATTR_CREATE`.
        2 = Create,
        /// That it is there: `XATTR_REPLACE`.
        3 = Replace,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::limits::{CHUNK_BITS_MIN, FILE_BYTES_MAX};

    #[test]
    fn a_reach_is_the_next_power_of_two_of_chunks() {
        let reached: Vec<u64> = [0, 1, 2, 3, 4, 5, 1 << 47].map(|chunks| Spread::reaching(chunks).chunks()).to_vec();
        assert_eq!(reached, [0, 1, 2, 4, 4, 8, 1 << 47]);
        assert_eq!(Spread::reaching(u64::MAX), Spread::ANYWHERE);
        assert!(Spread::ANYWHERE.chunks() > FILE_BYTES_MAX >> CHUNK_BITS_MIN);
        for bits in 0..=u8::MAX {
            let expected = (bits < 128).then_some(bits);
            assert_eq!(Spread::from_bits(bits).map(Spread::bits), expected);
        }
    }

    /// The home is told before the first chunk beyond those it knows of, and once for all where every server has
    /// chunks.
    #[test]
    fn the_home_is_told_how_far_data_will_reach() {
        let mut attr = file();
        assert_eq!(attr.reach_for(1 << 20, || 8), None, "chunk 0 is beside the inode");
        for (chunks, known) in [(2, 2), (3, 4), (4, 4), (5, 8)] {
            if let Some(reach) = attr.reach_for(chunks << 20, || 16) {
                attr.spread = attr.spread.and(reach);
            }
            assert_eq!((attr.spread.chunks(), attr.data_end()), (known, known << 20), "{chunks} chunks");
        }
        assert_eq!(attr.reach_for(9 << 20, || 16), Some(Spread::ANYWHERE));
        attr.layout.first.0 += 1;
        attr.spread = Spread::default();
        assert_eq!(attr.reach_for(1, || 16), Some(Spread::reaching(1)), "chunk 0 is elsewhere");
    }

    pub(crate) fn file() -> Attr {
        Attr {
            ino: Ino::ROOT,
            kind: FileKind::File,
            mode: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            atime: Time(1),
            mtime: Time(1),
            ctime: Time(1),
            btime: Time(1),
            generation: Generation(0),
            born: MapEpoch(1),
            layout: Layout::new(Ino::ROOT.prefix(), 4096),
            chunk_bits: 20,
            spread: Spread::default(),
            has_xattrs: false,
            parent: Ino(0),
        }
    }
}
