//! Searching a tree: the servers look, only answers travel.

use crate::client::Client;
use crate::scan::{ScanPage, Wanted};
use aze_proto::predicate::Predicate;
use aze_proto::{Attr, Failure, FileKind, Identity, Ino};

/// Something found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPath {
    /// Where, relative to the root of the search, without a `/` at either end.
    pub path: Vec<u8>,
    /// What.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Its attributes, if the servers came across them. A directory's counts and times are exact
    /// only if the predicate asked for them.
    pub attr: Option<Attr>,
}

impl Client {
    /// Finds what matches in the tree below `root`, not `root` itself, in no particular order, and
    /// hands it to `each` as it comes. A file that is renamed from one directory to another meanwhile may
    /// be found twice or not at all.
    ///
    /// # Errors
    /// A server that does not answer and a directory that may not be read are errors at the end:
    /// all that could be looked at has been.
    pub async fn find(
        &self,
        who: &Identity,
        root: Ino,
        predicate: &Predicate,
        each: &mut (dyn FnMut(FoundPath) + Send),
    ) -> Result<(), Failure> {
        let mut take = |page: &ScanPage| {
            for found in &page.found {
                let path = page.path(found.dir, &found.name);
                each(FoundPath { path, ino: found.ino, kind: found.kind, attr: found.attr.clone() });
            }
            for (found, attr) in page.elsewhere.iter().filter(|(_, attr)| predicate.fits_attr(attr)) {
                let path = page.path(found.dir, &found.name);
                each(FoundPath { path, ino: found.ino, kind: found.kind, attr: Some(attr.clone()) });
            }
        };
        self.scan(who, root, Wanted { predicate, find: true, usage: false }, &mut take).await
    }
}
