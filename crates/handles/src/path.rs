//! Paths of a volume as programs give them.

use crate::error::{Error, Result};

/// Longest path, in bytes, without the NUL that ends it in C (PATH_MAX of limits.h counts that).
pub const PATH_BYTES_MAX: usize = 4095;

/// A path as the client takes it, and what its end says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// Begins with `/`.
    pub(crate) bytes: Vec<u8>,
    /// It ends in `/` or `/.`, so that it can only mean a directory (path_resolution(7)).
    pub(crate) wants_dir: bool,
    /// Its last component is `.`.
    pub(crate) ends_in_dot: bool,
}

/// The absolute form of a path: one that does not begin with `/` begins at the volume's root.
///
/// # Errors
/// ENOENT for an empty path, ENAMETOOLONG beyond [`PATH_BYTES_MAX`], EINVAL for a NUL in it.
pub fn absolute(path: &[u8]) -> Result<Vec<u8>> {
    Ok(parse(path)?.bytes)
}

pub(crate) fn parse(path: &[u8]) -> Result<Path> {
    if path.is_empty() {
        return Err(Error::new(libc::ENOENT, "an empty path names no file"));
    }
    if path.len() > PATH_BYTES_MAX {
        let text = format!("a path of {} bytes: at most {PATH_BYTES_MAX} are possible", path.len());
        return Err(Error::new(libc::ENAMETOOLONG, text));
    }
    if path.contains(&0) {
        return Err(Error::new(libc::EINVAL, "a path has a NUL in it"));
    }
    let bytes = if path[0] == b'/' { path.to_vec() } else { [b"/", path].concat() };
    let ends_in_dot = bytes.ends_with(b"/.");
    let is_root = bytes.iter().all(|byte| *byte == b'/');
    let wants_dir = !is_root && (ends_in_dot || bytes.ends_with(b"/"));
    Ok(Path { bytes, wants_dir, ends_in_dot })
}

/// For messages.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_path_may_ask_for_a_directory() {
        let cases: [(&str, &str, bool, bool); 8] = [
            ("/", "/", false, false),
            ("a", "/a", false, false),
            ("/a", "/a", false, false),
            ("a/b/", "/a/b/", true, false),
            ("/a/.", "/a/.", true, true),
            (".", "/.", true, true),
            ("/a.", "/a.", false, false),
            ("//", "//", false, false),
        ];
        for (given, bytes, wants_dir, ends_in_dot) in cases {
            let expected = Path { bytes: bytes.into(), wants_dir, ends_in_dot };
            assert_eq!(parse(given.as_bytes()), Ok(expected), "{given}");
        }
    }

    #[test]
    fn what_is_no_path_has_an_errno() {
        let errno = |path: &[u8]| absolute(path).map_err(|error| error.errno);
        assert_eq!(errno(b""), Err(libc::ENOENT));
        assert_eq!(errno(b"a\0b"), Err(libc::EINVAL));
        assert_eq!(errno(&[b'x'; PATH_BYTES_MAX + 1]), Err(libc::ENAMETOOLONG));
        assert!(errno(&[b'x'; PATH_BYTES_MAX]).is_ok());
    }
}
