//! The file of a program: whether a library can be loaded into it (ELF, execve(2), ld.so(8)).

use aze_calls::executable;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts that are interpreted by scripts: Linux follows no more of them (execve(2)).
const SCRIPTS_MAX: usize = 5;

/// Bytes of a script's first line that count (execve(2)).
const LINE_BYTES_MAX: usize = 256;

/// Where the shell finds a program: `None` if nowhere.
pub fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let is_executable =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    env::split_paths(&path).map(|dir| dir.join(program)).find(is_executable)
}

/// Why a program's system calls cannot be intercepted; `None` if they can, and for a file that is not there or cannot
/// be read: the system reports the error.
pub fn hindrance(program: &Path) -> Option<String> {
    let mut program = program.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let shown = program.display();
        let (mut file, meta) = (File::open(&program).ok()?, fs::metadata(&program).ok()?);
        if meta.mode() & 0o6000 != 0 && aze_io::real::user_id() != 0 {
            return Some(format!("{shown} runs with the rights of another user or group"));
        }
        let mut head = Vec::new();
        file.by_ref().take(LINE_BYTES_MAX as u64).read_to_end(&mut head).ok()?;
        match interpreter(&head) {
            Some(interpreter) => program = interpreter,
            None => {
                let hidden = executable::hidden(|offset, to| file.read_exact_at(to, offset).is_ok());
                return hidden.map(|hidden| format!("{shown} {}", hidden.words()));
            }
        }
    }
    None
}

/// The program that runs a script with this beginning.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    words.next().map(|word| PathBuf::from(std::ffi::OsString::from_vec(word.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_from_scripts() {
        assert_eq!(interpreter(b"#! /usr/bin/env -S python3\nx"), Some("/usr/bin/env".into()));
        assert_eq!((interpreter(b"#!\n"), interpreter(b"\x7fELF")), (None, None));
        let bash = find(OsStr::new("bash")).expect("a shell");
        assert_eq!((hindrance(&bash), hindrance(Path::new("/no/such"))), (None, None));
        let loader = "/lib64/ld-linux-x86-64.so.2";
        assert!(hindrance(Path::new(loader)).is_some_and(|text| text.ends_with("statically linked")), "{loader}");
    }

    #[test]
    fn a_script_is_what_interprets_it() {
        let script = env::temp_dir().join(format!("aze-script-{}", std::process::id()));
        fs::write(&script, "#!/lib64/ld-linux-x86-64.so.2 --help\n").expect("a script");
        let said = hindrance(&script);
        fs::remove_file(&script).expect("it is there");
        assert_eq!(said, Some("/lib64/ld-linux-x86-64.so.2 is statically linked".into()));
    }
}
