//! The names that workloads fight over.

use crate::tree::NameIndex;
use aze_proto::Name;

/// How many names there are: few, so that operations meet.
pub const NAMES: u64 = 4;

/// The directory in which they are.
pub const SHARED_DIR: &[u8] = b"/shared";

/// A name by its number.
pub fn name(index: NameIndex) -> Name {
    Name::new(&[b'a' + index]).expect("one letter is a name")
}

/// A path below [`SHARED_DIR`].
pub fn path(parts: &[NameIndex]) -> Vec<u8> {
    let mut path = SHARED_DIR.to_vec();
    for part in parts {
        path.push(b'/');
        path.push(b'a' + part);
    }
    path
}
