//! Where a walk begins, where it may lead, and what its caller wants to know of the way.

use aze_io::sync::Mutex;
use aze_proto::{Ino, Name, NamespaceEpoch};

/// A path, and the directory below which it begins.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// The directory; without one the path is absolute.
    pub(crate) dir: Option<Ino>,
    pub(crate) path: &'a [u8],
    pub(crate) at: Option<&'a [u8]>,
    pub(crate) note: Option<&'a WayNote>,
}

/// An absolute path in the volume, whose links stay within the volume.
impl<'a, P: AsRef<[u8]> + ?Sized> From<&'a P> for Way<'a> {
    fn from(path: &'a P) -> Way<'a> {
        Way { dir: None, path: path.as_ref(), at: None, note: None }
    }
}

impl<'a> Way<'a> {
    /// A path below a directory, which may have been renamed since it was found; `/` at the begin of the path has no meaning.
    pub fn below(dir: Ino, path: &'a [u8]) -> Way<'a> {
        Way { dir: Some(dir), path, at: None, note: None }
    }

    /// The same for programs that see the volume's root at the absolute path `at`. A link to a target below it leads into the
    /// volume. A link to any other absolute target, and `..` in the root, lead out of it: the operation fails with
    /// [`Code::CrossVolume`](aze_proto::Code::CrossVolume), and [`WayNote::leaves_to`] tells where the path goes on.
    pub fn seen_at(self, at: &'a [u8], note: &'a WayNote) -> Way<'a> {
        Way { at: Some(at), note: Some(note), ..self }
    }

    pub(crate) fn note(&self, trail: Option<Trail>, left: Option<Vec<u8>>) {
        if let Some(note) = self.note {
            *note.0.lock() = (trail.unwrap_or_default(), left);
        }
    }
}

/// What a walk has come by, after it.
#[derive(Default)]
pub struct WayNote(Mutex<(Trail, Option<Vec<u8>>)>);

impl WayNote {
    /// The absolute path to use instead, outside of the volume, if the way led there.
    pub fn leaves_to(&self) -> Option<Vec<u8>> {
        self.0.lock().1.clone()
    }

    /// The way without links, `.` and `..`.
    pub fn trail(&self) -> Trail {
        self.0.lock().0.clone()
    }
}

/// How a walk has come from its beginning to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// It has begun anew in the root.
    pub from_root: bool,
    /// So many directories up from there.
    pub ups: usize,
    /// Then down through these.
    pub names: Vec<Name>,
    /// And at last to this name, if the path ends in a name.
    pub last: Option<Name>,
    /// The directory of that name; without one the end of the walk.
    pub dir: Ino,
    /// A symbolic link was followed.
    pub by_link: bool,
    /// The namespace epoch under which the way was found: a server that knows a newer one does not say that it is still so.
    pub epoch: NamespaceEpoch,
}
