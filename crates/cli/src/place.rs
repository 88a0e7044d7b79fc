//! Places on the command line: `aze:/path`, `aze://volume/path`, or a local path.
//!
//! Paths are bytes, never text: a file may have any name.

use crate::exit::{Outcome, Trouble};
pub use aze_copy::tree::join;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this machine's file systems.
    Local(PathBuf),
    /// In a volume.
    Volume(VolumePath),
}

/// A path in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The volume named; `None` means the one that is meant where none is named.
    pub volume: Option<String>,
    /// Absolute path in it.
    pub path: Vec<u8>,
}

impl Place {
    /// Reads one argument.
    pub fn parse(text: &OsStr) -> Outcome<Place> {
        let Some(rest) = text.as_bytes().strip_prefix(b"aze:") else {
            return Ok(Place::Local(PathBuf::from(text)));
        };
        let (volume, path) = match rest.strip_prefix(b"//") {
            Some(named) => {
                let end = named.iter().position(|byte| *byte == b'/').unwrap_or(named.len());
                let (name, path) = named.split_at(end);
                let name = str::from_utf8(name).ok().filter(|name| crate::volume::is_name(name));
                let Some(name) = name else {
                    let shown = text.to_string_lossy();
                    return Err(Trouble::usage(format!(
                        "'{shown}' names no volume: expected aze:/path or aze://VOLUME/path"
                    )));
                };
                (Some(name.to_owned()), path)
            }
            None => (None, rest),
        };
        if !path.is_empty() && path[0] != b'/' {
            let shown = text.to_string_lossy();
            return Err(Trouble::usage(format!(
                "'{shown}' is not an absolute path: write aze:/{}",
                String::from_utf8_lossy(path)
            )));
        }
        let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
        Ok(Place::Volume(VolumePath { volume, path }))
    }

    /// Whether it was written with a slash at its end, which only a directory can have.
    pub fn ends_with_slash(&self) -> bool {
        match self {
            Place::Local(path) => path.as_os_str().as_bytes().ends_with(b"/"),
            Place::Volume(path) => path.ends_with_slash(),
        }
    }

    /// Its last component; `None` for a root and for paths that end in `..`.
    pub fn base_name(&self) -> Option<Vec<u8>> {
        match self {
            Place::Local(path) => path.file_name().map(|name| name.as_bytes().to_vec()),
            Place::Volume(path) => base_name(&path.path),
        }
    }
}

impl VolumePath {
    /// Reads an argument of a command that works on volumes only.
    pub fn parse(text: &OsStr) -> Outcome<VolumePath> {
        match Place::parse(text)? {
            Place::Volume(path) => Ok(path),
            Place::Local(path) => {
                let slash = if path.is_absolute() { "" } else { "/" };
                let path = path.display();
                Err(Trouble::usage(format!(
                    "'{path}' is a local path, this command works on volumes: write aze:{slash}{path}"
                )))
            }
        }
    }

    /// Whether it was written with a slash at its end, which only a directory can have.
    pub fn ends_with_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// Refuses a path whose last component is `.` or `..`: it names a directory, and no entry that could be removed.
    ///
    /// # Errors
    /// Then, a trouble that says so.
    pub fn refuse_dot(&self) -> Outcome<()> {
        match self.path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty()) {
            Some(b"." | b"..") => Err(Trouble::usage(format!("{}: ends in . or ..: give its name", self.shown()))),
            _ => Ok(()),
        }
    }

    /// As it is shown in messages.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.written()).into_owned()
    }

    /// As it was written, byte for byte.
    pub fn written(&self) -> Vec<u8> {
        let mut text = b"aze:".to_vec();
        if let Some(volume) = &self.volume {
            text.extend_from_slice(b"//");
            text.extend_from_slice(volume.as_bytes());
        }
        text.extend_from_slice(&self.path);
        text
    }

    /// The place `name` within this directory.
    pub fn join(&self, name: &[u8]) -> VolumePath {
        VolumePath { volume: self.volume.clone(), path: join(&self.path, name) }
    }
}

fn base_name(path: &[u8]) -> Option<Vec<u8>> {
    let name = path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty())?;
    (name != b"." && name != b"..").then(|| name.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(volume: Option<&str>, path: &str) -> Place {
        Place::Volume(VolumePath { volume: volume.map(str::to_owned), path: path.into() })
    }

    #[test]
    fn places_are_told_apart() {
        for (text, place) in [
            ("aze:/a/b", volume(None, "/a/b")),
            ("aze:", volume(None, "/")),
            ("aze://v1/a", volume(Some("v1"), "/a")),
            ("aze://v1", volume(Some("v1"), "/")),
            ("/a/b", Place::Local("/a/b".into())),
            ("a:/b", Place::Local("a:/b".into())),
            ("./aze:/a", Place::Local("./aze:/a".into())),
        ] {
            assert_eq!(Place::parse(OsStr::new(text)), Ok(place), "{text}");
        }
        for text in ["aze:a", "aze:///a", "aze://a b/c", "aze://../x"] {
            assert!(Place::parse(OsStr::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn names_need_not_be_text() {
        let text = OsStr::from_bytes(b"aze:/\xff\n");
        assert_eq!(Place::parse(text).unwrap().base_name(), Some(b"\xff\n".to_vec()));
        assert_eq!(VolumePath::parse(text).unwrap().join(b"x").written(), b"aze:/\xff\n/x");
    }

    #[test]
    fn a_local_path_where_a_volume_is_needed_comes_with_advice() {
        let trouble = VolumePath::parse(OsStr::new("/data")).unwrap_err();
        assert!(trouble.text.ends_with("write aze:/data"), "{trouble}");
        let trouble = VolumePath::parse(OsStr::new("data")).unwrap_err();
        assert!(trouble.text.ends_with("write aze:/data"), "{trouble}");
    }

    #[test]
    fn base_names_are_last_components() {
        for (text, name) in
            [("aze:/a/b/", Some("b")), ("aze:/", None), ("aze:/a/..", None), ("x/y", Some("y")), ("/", None)]
        {
            assert_eq!(
                Place::parse(OsStr::new(text)).unwrap().base_name().as_deref(),
                name.map(str::as_bytes),
                "{text}"
            );
        }
    }
}
