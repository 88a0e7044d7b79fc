//! The agent of `aze run --door intercept`, by its protocol: processes call it as the library in a program does. Its
//! answers are compared with those of a file system of the kernel, and nothing must be left of processes that were
//! killed.

#[path = "agent/calls.rs"]
mod calls;
#[path = "agent/compare.rs"]
mod compare;
#[path = "agent/ended.rs"]
mod ended;
#[path = "agent/panics.rs"]
mod panics;
#[path = "agent/shared.rs"]
mod shared;

use aze_calls::{Hello, LEAVES, MESSAGE_BYTES_MAX, Op, POSITION, Request, Stat, VERSION, WINDOW_BYTES};
use aze_tests::{Place, wait_until};
use calls::{AT, AgentProcess, Program, take};
use compare::{Files, Intercepted, Kernel, OnOpen, OnPath, OnTwo, Said, Script, Xattr};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// This program as the agent of a test, which starts it so; else nothing.
#[test]
fn an_agent_of_another_test() {
    calls::be_an_agent();
}

/// A volume with an agent for a process that only waits.
fn volume_with_agent() -> (Place, String, Program, AgentProcess) {
    let place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let mut waiting = Command::new("sleep").arg("600").spawn().expect("a process");
    let agent = AgentProcess::start(&place, &volume, waiting.id());
    let first = Program::start(&agent.socket);
    waiting.kill().and_then(|()| waiting.wait()).expect("it can be killed");
    (place, volume, first, agent)
}

/// How many files all servers have as open.
fn opens(place: &Place) -> u64 {
    servers(place).iter().map(|server| server["opens"].as_u64().expect("a number")).sum()
}

fn servers(place: &Place) -> Vec<serde_json::Value> {
    let text = place.aze(&["status", "--json"]).ok().out;
    let status: serde_json::Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    let servers = status["servers"].as_array().expect("servers").clone();
    assert_eq!(servers.len(), 2, "{text}");
    servers
}

fn script(files: &mut dyn Files) -> Vec<String> {
    let mut script = Script::default();
    names(files, &mut script);
    data(files, &mut script);
    attributes(files, &mut script);
    links(files, &mut script);
    flags(files, &mut script);
    locks(files, &mut script);
    script.lines
}

fn number(result: i64) -> Said {
    (result, Vec::new())
}

fn names(files: &mut dyn Files, script: &mut Script) {
    use OnPath::{Mkdir, Rmdir, Unlink};
    use libc::{O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_TMPFILE, O_TRUNC, O_WRONLY};
    for (path, mode) in [
        ("/d", 0o755),
        ("/d", 0o755),
        ("/d/e/", 0o1777),
        ("/d/.", 0o755),
        ("/no/d", 0o755),
        ("/", 0o755),
        ("/d/..", 0o755),
    ] {
        script.note(format!("mkdir {path}"), files.on_path(Mkdir, 0, path, mode, 0));
    }
    let opens = [
        (1, "/d/f", O_CREAT | O_WRONLY),
        (2, "/d/f", O_CREAT | O_EXCL | O_WRONLY),
        (3, "/d/g", O_CREAT | O_EXCL | O_RDWR),
        (4, "/d", O_RDONLY),
        (5, "/d", O_WRONLY),
        (6, "/d/f", O_RDONLY | O_DIRECTORY),
        (7, "/d/f/", O_RDONLY),
        (8, "/d/none", O_RDONLY),
        (9, "/d/none/x", O_RDONLY | O_CREAT),
        (10, "/d/f/x", O_RDONLY | O_CREAT),
        (11, "/d/new/", O_RDONLY | O_CREAT),
        (12, "/d", O_RDONLY | O_CREAT),
        (13, "/d/e", O_RDONLY | O_DIRECTORY | O_NOFOLLOW),
        (14, "/d/e", O_WRONLY | O_TRUNC),
        (15, "/d", O_PATH),
        (16, "/d/f", O_PATH | O_DIRECTORY),
        (17, "/d", O_TMPFILE | O_RDWR),
        (18, "/d", O_TMPFILE | O_RDONLY),
        (19, "/d/f", O_TMPFILE | O_RDWR),
        (20, "/d/.", O_RDONLY),
        (21, "/d/f/.", O_RDONLY),
        (22, "/d/../d/e/..", O_RDONLY),
        (23, "", O_RDONLY | O_DIRECTORY),
        (24, "/d", O_RDONLY | O_TRUNC),
    ];
    for (number_, path, flags) in opens {
        let path = if path.is_empty() { "/" } else { path };
        script.note(format!("open {path} {flags:#o}"), number(files.open(number_, 0, path, flags, 0o644)));
    }
    let long = format!("/d/{}", "n".repeat(256));
    script.note("open a long name", number(files.open(30, 0, &long, O_CREAT | O_RDWR, 0o600)));
    let longest = format!("/d/{}", "n".repeat(255));
    script.note("open the longest name", number(files.open(30, 0, &longest, O_CREAT | O_RDWR, 0o600)));
    script.note("unlink it", files.on_path(Unlink, 0, &longest, 0, 0));
    // Below a directory that is open, also when it has got another name.
    for (path, flags) in [
        ("f", O_RDONLY),
        ("./f", O_RDONLY),
        ("e/../g", O_RDONLY),
        ("..", O_RDONLY),
        ("x", O_RDONLY),
        (".", O_RDONLY),
        ("h", O_CREAT | O_RDWR),
    ] {
        script.note(format!("openat d {path}"), number(files.open(31, 4, path, flags, 0o600)));
        script.note(format!("openat path d {path}"), number(files.open(31, 15, path, flags, 0o600)));
    }
    script.note("openat of a file", number(files.open(31, 1, "x", O_RDONLY, 0)));
    script.note("openat of nothing", number(files.open(31, 999, "x", O_RDONLY, 0)));
    script.note("rename d", number(files.on_two(OnTwo::Rename, 0, "/d", "/dd", 0)));
    script.note("openat d f", number(files.open(31, 4, "f", O_RDONLY, 0)));
    script.note("stat d ..", files.stat(4, "..", true));
    script.note("names", files.names(4));
    script.note("names again", files.names(4));
    script.note("seek", number(files.seek(4, 0, libc::SEEK_SET)));
    script.note("names from the start", files.names(4));
    script.note("names of a file", files.names(1));
    script.note("names of a path", files.names(15));
    script.note("names of the root", files.names(23));
    script.note("rename back", number(files.on_two(OnTwo::Rename, 0, "/dd", "/d", 0)));
    for path in ["/d", "/d/f", "/d/f/", "/none", "/", "/d/e/.", "/d/e/..", "/d/e/", "/d/e"] {
        script.note(format!("rmdir {path}"), files.on_path(Rmdir, 0, path, 0, 0));
    }
    for path in ["/d", "/d/", "/none", "/d/f/", "/", "/d/..", "/d/h", "/d/h"] {
        script.note(format!("unlink {path}"), files.on_path(Unlink, 0, path, 0, 0));
    }
    let (noreplace, exchange) = (u64::from(libc::RENAME_NOREPLACE), u64::from(libc::RENAME_EXCHANGE));
    script.note("mkdir", files.on_path(Mkdir, 0, "/d/e", 0o755, 0));
    script.note("mkdir", files.on_path(Mkdir, 0, "/d/e/inner", 0o755, 0));
    let renames = [
        ("/d/f", "/d/g", noreplace),
        ("/d/f", "/d/i", noreplace),
        ("/d/i", "/d/g", exchange),
        ("/d/i", "/d/none", exchange),
        ("/d/i", "/d/f", 0),
        ("/d/f", "/d/e", 0),
        ("/d/e", "/d/f", 0),
        ("/d/e", "/d/e/inner/x", 0),
        ("/d/e", "/d", 0),
        ("/d/none", "/d/x", 0),
        ("/d/f", "/d/x/", 0),
        ("/d/f/", "/d/x", 0),
        ("/d/f", "/d/f", 0),
        ("/d/e/", "/d/ee/", 0),
        ("/d/ee/.", "/d/x", 0),
        ("/d/ee", "/d/..", 0),
        ("/", "/d/x", 0),
        ("/d/f", "/d/x", 7),
        ("/d/f", "/d/x", 1 << 20),
    ];
    for (from, to, flags) in renames {
        script.note(format!("rename {from} {to} {flags}"), number(files.on_two(OnTwo::Rename, 0, from, to, flags)));
    }
    script.note("stat", files.stat(0, "/d/f", true));
    script.note("names at the end", {
        files.seek(4, 0, libc::SEEK_SET);
        files.names(4)
    });
}

fn data(files: &mut dyn Files, script: &mut Script) {
    use libc::{
        O_APPEND, O_CREAT, O_PATH, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE,
        SEEK_SET,
    };
    for (at, path, flags) in [
        (1, "/a", O_CREAT | O_RDWR),
        (2, "/a", O_RDONLY),
        (3, "/a", O_WRONLY),
        (4, "/a", O_WRONLY | O_APPEND),
        (5, "/a", O_PATH),
        (6, "/", O_RDONLY),
    ] {
        script.note(format!("open {path} {flags:#o}"), number(files.open(at, 0, path, flags, 0o640)));
    }
    script.note("write", number(files.write(1, b"0123456789", None)));
    script.note("read at the end", files.read(1, 10, None));
    script.note("pread", files.read(1, 4, Some(3)));
    script.note("pread beyond", files.read(1, 4, Some(30)));
    script.note("pread of -1", files.read(1, 4, Some(1 << 63)));
    script.note("pwrite of -1", number(files.write(1, b"x", Some(1 << 63))));
    script.note("read", files.read(2, 4, None));
    script.note("read", files.read(2, 4, None));
    script.note("read", files.read(2, 4, None));
    script.note("read of a file for writing", files.read(3, 4, None));
    script.note("write to a file for reading", number(files.write(2, b"x", None)));
    script.note("read of a path", files.read(5, 4, None));
    script.note("read of a directory", files.read(6, 4, None));
    script.note("write to a directory", number(files.write(6, b"x", None)));
    script.note("read of nothing", files.read(99, 4, None));
    script.note("append", number(files.write(4, b"ab", None)));
    script.note("pwrite of an append", number(files.write(4, b"cd", Some(0))));
    script.note("seek after append", number(files.seek(4, 0, SEEK_CUR)));
    script.note("all", files.read(1, 100, Some(0)));
    script.note("an empty write", number(files.write(3, b"", None)));
    let seeks = [
        (0, SEEK_SET),
        (5, SEEK_CUR),
        (-3, SEEK_CUR),
        (-9, SEEK_CUR),
        (-1, SEEK_END),
        (5, SEEK_END),
        (-1, SEEK_SET),
        (0, SEEK_DATA),
        (0, SEEK_HOLE),
        (14, SEEK_DATA),
        (-1, SEEK_DATA),
        (3, 77),
        (i64::MAX, SEEK_SET),
        (1, SEEK_CUR),
        (0, SEEK_SET),
    ];
    for (offset, whence) in seeks {
        script.note(format!("seek {offset} {whence}"), number(files.seek(1, offset, whence)));
    }
    script.note("seek of a path", number(files.seek(5, 0, SEEK_SET)));
    script.note("seek of nothing", number(files.seek(99, 0, SEEK_SET)));
    for (what, a, b, c) in [
        (OnOpen::Truncate, 4, 0, 0),
        (OnOpen::Truncate, u64::MAX, 0, 0),
        (OnOpen::Truncate, 200_000, 0, 0),
        (OnOpen::Allocate, 0, 200_000, 100),
        (OnOpen::Allocate, libc::FALLOC_FL_KEEP_SIZE as u64, 300_000, 100),
        (OnOpen::Allocate, (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64, 0, 2),
        (OnOpen::Allocate, libc::FALLOC_FL_PUNCH_HOLE as u64, 0, 2),
        (OnOpen::Allocate, libc::FALLOC_FL_COLLAPSE_RANGE as u64, 0, 4096),
        (OnOpen::Allocate, 0, 0, 0),
        (OnOpen::Allocate, 0, u64::MAX, 4),
        (OnOpen::Sync, 0, 0, 0),
    ] {
        script.note(format!("{what:?} {a} {b} {c}"), files.on_open(what, 1, a, b, c));
    }
    script.note("bytes", files.read(1, 6, Some(0)));
    script.note("stat", files.stat(0, "/a", true));
    for at in [2, 5, 6, 99] {
        script.note(format!("ftruncate {at}"), files.on_open(OnOpen::Truncate, at, 1, 0, 0));
        script.note(format!("fallocate {at}"), files.on_open(OnOpen::Allocate, at, 0, 0, 10));
        script.note(format!("fsync {at}"), files.on_open(OnOpen::Sync, at, 0, 0, 0));
    }
    for (path, len) in [("/a", 3), ("/none", 3), ("/", 3), ("/a/", 3), ("/a", u64::MAX)] {
        script.note(format!("truncate {path}"), files.on_path(OnPath::Truncate, 0, path, len, 0));
    }
    script.note("write", number(files.write(3, b"ABCDEF", Some(1))));
    script.note("open to copy", number(files.open(7, 0, "/b", O_CREAT | O_RDWR | O_TRUNC, 0o600)));
    for (from, to, len) in
        [(2, 7, 100), (1, 7, 3), (1, 7, 100), (1, 2, 1), (3, 7, 1), (1, 4, 1), (1, 1, 1), (6, 7, 1), (1, 99, 1)]
    {
        files.seek(1, 0, libc::SEEK_SET);
        script.note(format!("copy {from} to {to}, {len}"), files.on_open(OnOpen::Copy, from, to, len, 0));
    }
    script.note("copied", files.read(7, 100, Some(0)));
    script.note("unlink what is open", files.on_path(OnPath::Unlink, 0, "/b", 0, 0));
    script.note("read it", files.read(7, 100, Some(0)));
    script.note("stat it", files.stat(7, "", true));
    script.note("write it", number(files.write(7, b"more", None)));
    files.close(7);
    script.note("read what is closed", files.read(7, 1, None));
}

fn attributes(files: &mut dyn Files, script: &mut Script) {
    use OnPath::{Access, Chmod, Chown, Times};
    script.note("open", number(files.open(1, 0, "/m", libc::O_CREAT | libc::O_RDWR, 0o600)));
    for (what, path, a, b) in [
        (Chmod, "/m", 0o4751, 0),
        (Chmod, "/none", 0o600, 0),
        (Chmod, "/m/", 0o600, 0),
        (Chown, "/m", 5, 6),
        (Chown, "/m", u64::from(u32::MAX), 7),
        (Chown, "/none", 1, 1),
        (Access, "/m", 4, 0),
        (Access, "/m", 1, 0),
        (Access, "/m", 0, 0),
        (Access, "/m", 64, 0),
        (Access, "/none", 0, 0),
        (Access, "/m/x", 0, 0),
        (Times, "/m", 5, 6),
        (Times, "/m", 1_000_000_000, 6),
        (Times, "/m", libc::UTIME_NOW as u64, libc::UTIME_OMIT as u64),
        (Times, "/none", libc::UTIME_OMIT as u64, libc::UTIME_OMIT as u64),
    ] {
        script.note(format!("{what:?} {path} {a} {b}"), files.on_path(what, 0, path, a, b));
        script.note("stat", files.stat(0, "/m", true));
    }
    script.note("chmod", files.on_path(Chmod, 0, "/m", 0o600, 0));
    script.note("access of what nobody executes", files.on_path(Access, 0, "/m", 1, 0));
    script.note("fchmod", files.on_open(OnOpen::Chmod, 1, 0o640, 0, 0));
    script.note("fstat", files.stat(1, "", true));
    for (what, path, name, value, at) in [
        (Xattr::Set, "/m", "user.a", &b"value"[..], 0),
        (Xattr::Set, "/m", "user.a", b"other", libc::XATTR_CREATE as u64),
        (Xattr::Set, "/m", "user.b", b"other", libc::XATTR_REPLACE as u64),
        (Xattr::Set, "/m", "user.b", b"", 0),
        (Xattr::Set, "/m", "user.b", b"x", 9),
        (Xattr::Set, "/none", "user.a", b"x", 0),
        (Xattr::Set, "/m", "other.a", b"x", 0),
        (Xattr::Set, "/m", "", b"x", 0),
        (Xattr::Get, "/m", "user.a", b"", 100),
        (Xattr::Get, "/m", "user.a", b"", 0),
        (Xattr::Get, "/m", "user.a", b"", 2),
        (Xattr::Get, "/m", "user.b", b"", 100),
        (Xattr::Get, "/m", "user.none", b"", 100),
        (Xattr::Get, "/none", "user.a", b"", 100),
        (Xattr::List, "/m", "", b"", 0),
        (Xattr::List, "/m", "", b"", 3),
        (Xattr::Remove, "/m", "user.b", b"", 0),
        (Xattr::Remove, "/m", "user.b", b"", 0),
        (Xattr::List, "/m", "", b"", 100),
    ] {
        script.note(format!("{what:?} {path} {name} {at}"), files.xattr(what, 0, path, name, value, at));
    }
}

fn links(files: &mut dyn Files, script: &mut Script) {
    use libc::{AT_SYMLINK_FOLLOW, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_WRONLY};
    script.note("mkdir", files.on_path(OnPath::Mkdir, 0, "/l", 0o755, 0));
    script.note("open", number(files.open(1, 0, "/l/f", O_CREAT | O_WRONLY, 0o644)));
    for (target, path) in [
        ("f", "/l/to-f"),
        ("../l", "/l/to-dir"),
        ("none", "/l/to-none"),
        ("loop", "/l/loop"),
        ("x", "/l/f"),
        ("", "/l/empty"),
        ("x", "/l/none/x"),
        ("x", "/l/new/"),
        ("to-f", "/l/to-to-f"),
    ] {
        script.note(format!("symlink {target} {path}"), number(files.on_two(OnTwo::Symlink, 0, target, path, 0)));
    }
    for path in ["/l/to-f", "/l/to-dir", "/l/f", "/l/none", "/l/to-dir/to-f", "/l/to-dir/"] {
        script.note(format!("readlink {path}"), files.on_path(OnPath::Readlink, 0, path, 0, 0));
        script.note(format!("stat {path}"), files.stat(0, path, true));
        script.note(format!("lstat {path}"), files.stat(0, path, false));
    }
    for (path, flags) in [
        ("/l/to-f", O_RDONLY | O_NOFOLLOW),
        ("/l/to-f", O_PATH | O_NOFOLLOW),
        ("/l/to-dir", O_RDONLY | O_DIRECTORY | O_NOFOLLOW),
        ("/l/to-dir/", O_RDONLY | O_NOFOLLOW),
        ("/l/to-f", O_CREAT | O_EXCL | O_RDWR),
        ("/l/to-f", O_CREAT | O_NOFOLLOW | O_RDWR),
        ("/l/to-none", O_RDONLY),
        ("/l/to-none", O_CREAT | O_RDWR),
        ("/l/none", O_RDONLY),
        ("/l/loop", O_RDONLY),
        ("/l/loop/x", O_RDONLY),
        ("/l/to-dir/to-dir/to-to-f", O_RDONLY),
        ("/l/to-f/x", O_RDONLY),
    ] {
        script.note(format!("open {path} {flags:#o}"), number(files.open(2, 0, path, flags, 0o600)));
    }
    for (from, to, flags) in [
        ("/l/f", "/l/g", 0),
        ("/l/f", "/l/g", 0),
        ("/l/to-f", "/l/link-of-link", 0),
        ("/l/to-f", "/l/link-of-f", AT_SYMLINK_FOLLOW as u64),
        ("/l", "/l/dir", 0),
        ("/l/nowhere", "/l/x", 0),
        ("/l/f", "/l/x/", 0),
        ("/l/f", "/l/none/x/y", 0),
        ("/l/f/", "/l/y", 0),
        ("/l/f", "/l/..", 0),
    ] {
        script.note(format!("link {from} {to} {flags}"), number(files.on_two(OnTwo::Link, 0, from, to, flags)));
    }
    script.note("stat", files.stat(0, "/l/link-of-link", false));
    script.note("stat", files.stat(0, "/l/link-of-f", false));
    script.note("unlink a link", files.on_path(OnPath::Unlink, 0, "/l/to-dir", 0, 0));
    script.note("unlink a link by a slash", files.on_path(OnPath::Unlink, 0, "/l/to-f/", 0, 0));
    script.note("rmdir of a link", files.on_path(OnPath::Rmdir, 0, "/l/to-f", 0, 0));
    script.note("open", number(files.open(3, 0, "/l", O_RDONLY, 0)));
    script.note("names", files.names(3));
}

fn flags(files: &mut dyn Files, script: &mut Script) {
    use libc::{O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECTORY, O_NONBLOCK, O_PATH, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
    for (at, path, flags) in [
        (1, "/fl", O_CREAT | O_TRUNC | O_RDWR | O_APPEND | O_CLOEXEC),
        (2, "/fl", O_WRONLY | O_NONBLOCK),
        (3, "/", O_RDONLY | O_DIRECTORY),
        (4, "/fl", O_PATH),
    ] {
        script.note(format!("open {flags:#o}"), number(files.open(at, 0, path, flags, 0o600)));
        script.note("flags", files.on_open(OnOpen::GetFlags, at, 0, 0, 0));
    }
    script.note("write", number(files.write(1, b"abc", None)));
    script.note("without append", files.on_open(OnOpen::SetFlags, 1, O_NONBLOCK as u64, 0, 0));
    script.note("flags", files.on_open(OnOpen::GetFlags, 1, 0, 0, 0));
    script.note("pwrite", number(files.write(1, b"x", Some(0))));
    script.note("with append", files.on_open(OnOpen::SetFlags, 2, (O_APPEND | O_RDWR) as u64, 0, 0));
    script.note("flags", files.on_open(OnOpen::GetFlags, 2, 0, 0, 0));
    script.note("write", number(files.write(2, b"y", None)));
    script.note("all", files.read(1, 9, Some(0)));
}

fn locks(files: &mut dyn Files, script: &mut Script) {
    use libc::{F_RDLCK, F_UNLCK, F_WRLCK, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, O_CREAT, O_PATH, O_RDONLY, O_RDWR};
    for (at, flags) in [(1, O_CREAT | O_RDWR), (2, O_RDWR), (3, O_RDONLY), (4, O_PATH)] {
        script.note("open", number(files.open(at, 0, "/k", flags, 0o600)));
    }
    for (at, operation) in [
        (1, LOCK_SH),
        (2, LOCK_SH | LOCK_NB),
        (2, LOCK_EX | LOCK_NB),
        (1, LOCK_UN),
        (2, LOCK_EX | LOCK_NB),
        (3, LOCK_SH | LOCK_NB),
        (2, LOCK_UN),
        (3, LOCK_EX | LOCK_NB),
        (4, LOCK_SH),
        (1, 77),
        (3, LOCK_UN),
    ] {
        script.note(format!("flock {at} {operation}"), files.on_open(OnOpen::Flock, at, operation as u64, 0, 0));
    }
    for (what, at, kind, start, len) in [
        (OnOpen::Lock, 1, F_WRLCK, 10, 10),
        (OnOpen::Lock, 2, F_RDLCK, 15, 1),
        (OnOpen::Lock, 2, F_RDLCK, 20, 0),
        (OnOpen::TestLock, 2, F_WRLCK, 0, 0),
        (OnOpen::TestLock, 1, F_WRLCK, 0, 0),
        (OnOpen::TestLock, 3, F_RDLCK, 20, 5),
        (OnOpen::Lock, 3, F_WRLCK, 100, 1),
        (OnOpen::Lock, 1, F_UNLCK, 12, 3),
        (OnOpen::TestLock, 2, F_RDLCK, 12, 3),
        (OnOpen::TestLock, 2, F_RDLCK, 15, 3),
        (OnOpen::Lock, 1, F_RDLCK, 5, -6),
        (OnOpen::Lock, 1, F_RDLCK, 5, -5),
        (OnOpen::Lock, 1, 9, 0, 0),
        (OnOpen::Lock, 4, F_RDLCK, 0, 0),
    ] {
        script.note(
            format!("{what:?} {at} {kind} {start} {len}"),
            files.on_open(what, at, kind as u64, start, len as u64),
        );
    }
    files.close(1);
    files.close(2);
}

/// Where the two differ, since the volume's root is the root of a file system: call, the agent's words, the kernel's.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    ("rmdir /", "Device or resource busy (os error 16)", "Directory not empty (os error 39)"),
    ("rename / /d/x 0", "Device or resource busy (os error 16)", "Invalid argument (os error 22)"),
];

#[test]
fn calls_are_answered_as_by_a_file_system_of_the_kernel() {
    let (place, _, program, _agent) = volume_with_agent();
    let shared = Path::new("/dev/shm").join(place.dir.file_name().expect("a name"));
    fs::create_dir(&shared).expect("a directory in memory");
    // SAFETY: umask(2) takes a number; the processes of this test are told their own.
    unsafe { libc::umask(0o022) };
    let theirs = script(&mut Kernel::new(&shared));
    let ours = script(&mut Intercepted::new(program));
    fs::remove_dir_all(&shared).expect("it can be removed");
    assert!(theirs.len() > 300, "{} calls", theirs.len());
    assert_eq!(theirs.len(), ours.len());
    let differ = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs);
    let differ: Vec<(&str, &str)> = differ.map(|(ours, theirs)| (ours.as_str(), theirs.as_str())).collect();
    let known: Vec<(String, String)> = DIFFERENCES
        .iter()
        .map(|(call, ours, theirs)| (format!("{call}: {ours}"), format!("{call}: {theirs}")))
        .collect();
    let known: Vec<(&str, &str)> = known.iter().map(|(ours, theirs)| (ours.as_str(), theirs.as_str())).collect();
    assert_eq!(differ, known, "the agent's answers, and the kernel's");
}

/// A symbolic link to an absolute path leads out of the volume, unless it leads to where programs see the volume.
#[test]
fn links_lead_out_of_the_volume_and_back() {
    let (_place, _, program, _agent) = volume_with_agent();
    let symlink = |target: &str, path: &str| {
        let request = Request { first: target.len() as u32, ..Request::default() };
        assert_eq!(program.call(Op::Symlink, request, [target, path].concat().as_bytes()).result, 0);
    };
    assert_eq!(program.at(Op::Mkdir, "/d", 0o755), 0);
    let _file = program.open("/d/f", libc::O_CREAT | libc::O_WRONLY);
    symlink("/etc", "/out");
    symlink(&format!("{AT}/d"), "/in");
    symlink(AT, "/root");
    symlink(&format!("{AT}x/d"), "/beside");
    symlink("../..", "/d/up");
    let leaves = |op, path: &str, to: &str| {
        let answer = program.call(op, Request::default(), path.as_bytes());
        let said = (answer.result, String::from_utf8(answer.bytes).expect("text"));
        assert_eq!(said, (LEAVES, to.to_owned()), "{op:?} {path}");
    };
    leaves(Op::Stat, "/out", "/etc");
    leaves(Op::Stat, "/out/", "/etc/");
    leaves(Op::Open, "/out/passwd", "/etc/passwd");
    leaves(Op::Mkdir, "/d/../out/a//b/./", "/etc/a/b/");
    leaves(Op::Unlink, "/root/out/x", "/etc/x");
    leaves(Op::Stat, "/beside/f", &format!("{AT}x/d/f"));
    leaves(Op::Stat, "/d/up/usr", "/usr");
    leaves(Op::Stat, "/..", "/");
    for path in ["/in/f", "/root/d/f", "/root/in/f"] {
        assert_eq!(program.at(Op::Stat, path, 0), 0, "{path}");
    }
    assert_eq!(program.at(Op::Stat, "/out", 1), 0, "the link itself");
    // Of two paths the reply says which one.
    let two = |op, first: &str, second: &str| {
        let request = Request { first: first.len() as u32, ..Request::default() };
        let answer = program.call(op, request, [first, second].concat().as_bytes());
        (answer.result, answer.desc, String::from_utf8(answer.bytes).expect("text"))
    };
    assert_eq!(two(Op::Rename, "/out/a", "/d/a"), (LEAVES, 0, "/etc/a".into()));
    assert_eq!(two(Op::Rename, "/d/f", "/out/a"), (LEAVES, 1, "/etc/a".into()));
    assert_eq!(two(Op::Link, "/out/a", "/d/a"), (LEAVES, 0, "/etc/a".into()));
    assert_eq!(two(Op::Link, "/d/f", "/out/a"), (LEAVES, 1, "/etc/a".into()));
    assert_eq!(program.at(Op::Stat, "/d/f", 0), 0, "it has not moved");
}

/// The path of a description is the one that it has now.
#[test]
fn a_description_has_a_path() {
    let (_place, _, program, _agent) = volume_with_agent();
    let path_of = |desc| String::from_utf8(program.call(Op::PathOf, Request { desc, ..Request::default() }, &[]).bytes);
    let path_of = |desc| path_of(desc).expect("text");
    for dir in ["/a", "/a/b", "/a/b/c"] {
        assert_eq!(program.at(Op::Mkdir, dir, 0o755), 0);
    }
    let target = format!("{AT}/a");
    let request = Request { first: target.len() as u32, ..Request::default() };
    assert_eq!(program.call(Op::Symlink, request, format!("{target}/l").as_bytes()).result, 0);
    let (root, _root) = program.open("/", libc::O_RDONLY);
    let (dir, _dir) = program.open("/l/b/../b/c", libc::O_RDONLY);
    let (file, _file) = program.open("/l/b/./f", libc::O_CREAT | libc::O_WRONLY);
    assert_eq!((path_of(root), path_of(dir), path_of(file)), ("/".into(), "/a/b/c".into(), "/a/b/f".into()));
    let rename = |from: &str, to: &str| {
        let request = Request { first: from.len() as u32, ..Request::default() };
        assert_eq!(program.call(Op::Rename, request, [from, to].concat().as_bytes()).result, 0);
    };
    rename("/a/b", "/x");
    assert_eq!((path_of(dir), path_of(file)), ("/x/c".into(), "/x/f".into()));
    // A file opened below it is found by the directory, not by its old name.
    let request = Request { desc: dir, a: (libc::O_CREAT | libc::O_WRONLY) as u64, b: 0o600, ..Request::default() };
    let below = program.call(Op::Open, request, b"../g");
    assert_eq!((below.result, path_of(below.desc)), (0, "/x/g".into()));
    rename("/x/c", "/c");
    assert_eq!(path_of(dir), "/c");
    assert_eq!(program.at(Op::Rmdir, "/c", 0), 0);
    assert_eq!(path_of(dir), "/c (deleted)");
    assert_eq!(program.on(Op::StatOpen, dir, 0), 0, "its attributes are there");
    assert_eq!(program.at(Op::Unlink, "/x/f", 0), 0);
    assert_eq!(path_of(file), "/x/f (deleted)");
}

/// Position and flags belong to the description, which processes share; each read and write moves it as a whole.
#[test]
fn processes_share_a_description() {
    let (_place, _, mut first, agent) = volume_with_agent();
    let mut second = Program::start(&agent.socket);
    let (desc, descriptor) = first.open("/f", libc::O_CREAT | libc::O_RDWR);
    // The other process has the descriptor, and learns by it which description it is.
    let identify = |pipe: fs::Metadata| Request { a: pipe.ino(), c: pipe.dev(), ..Request::default() };
    let pipe = fs::File::from(descriptor).metadata().expect("a pipe");
    let (desc_again, _held) = first.open("/other", libc::O_CREAT | libc::O_RDWR);
    assert_ne!(desc, desc_again);
    wait_until("the description has gone", || first.on(Op::GetFlags, desc, 0) == -i64::from(libc::EBADF));
    let unknown = second.call(Op::Identify, identify(pipe), &[]);
    assert_eq!(unknown.result, -i64::from(libc::ENOENT));
    let pipe = fs::metadata(format!("/proc/self/fd/{}", _held.as_raw_fd())).expect("a pipe");
    let known = second.call(Op::Identify, identify(pipe), &[]);
    assert_eq!((known.result, known.desc), (0, desc_again));
    let desc = desc_again;
    std::thread::scope(|scope| {
        for (program, letter) in [(&mut first, b'a'), (&mut second, b'b')] {
            scope.spawn(move || (0..200).for_each(|_| assert_eq!(program.write(desc, &[letter; 7]), 7)));
        }
    });
    let end = first.call(Op::Seek, Request { desc, a: libc::SEEK_CUR as u64, ..Request::default() }, &[]).result;
    assert_eq!(end, 2 * 200 * 7);
    let all = first.read_at(desc, 0);
    assert_eq!(all.len(), 2800);
    assert!(all.chunks(7).all(|part| part.iter().all(|byte| *byte == part[0])), "no write is torn");
    assert_eq!(all.iter().filter(|byte| **byte == b'a').count(), 1400);
}

/// Locks of fcntl(2) belong to processes, those of flock(2) to descriptions; all go with their owners.
#[test]
fn locks_have_owners() {
    let (place, _, first, agent) = volume_with_agent();
    let (again, denied) = (-i64::from(libc::EAGAIN), -i64::from(libc::EBADF));
    let second = Program::start(&agent.socket);
    let (desc, held) = first.open("/f", libc::O_CREAT | libc::O_RDWR);
    let (other, _other) = second.open("/f", libc::O_RDWR);
    let (reading, _reading) = second.open("/f", libc::O_RDONLY);
    let set = |program: &Program, desc, kind, start, len| program.lock(desc, libc::F_SETLK, kind, start, len).result;
    let shown = |program: &Program, desc| {
        let lock: libc::flock = take(&program.lock(desc, libc::F_GETLK, libc::F_WRLCK, 0, 0).bytes);
        (i32::from(lock.l_type), lock.l_start, lock.l_len, lock.l_pid)
    };
    assert_eq!(set(&first, desc, libc::F_WRLCK, 0, 10), 0);
    assert_eq!(set(&first, desc, libc::F_WRLCK, 5, 10), 0, "it is its own");
    assert_eq!(set(&second, other, libc::F_RDLCK, 14, 1), again);
    assert_eq!(set(&second, reading, libc::F_WRLCK, 100, 1), denied);
    assert_eq!(shown(&second, other), (libc::F_WRLCK, 0, 15, first.pid));
    assert_eq!(shown(&first, desc).0, libc::F_UNLCK);
    // Through another description of the same process, too: the owner is the process. And any close(2) ends them.
    let (more, _more) = first.open("/f", libc::O_RDWR);
    assert_eq!(set(&first, more, libc::F_WRLCK, 20, 1), 0);
    assert_eq!(shown(&first, more).0, libc::F_UNLCK);
    assert_eq!(first.on(Op::Unlock, more, 0), 0);
    assert_eq!(shown(&second, other).0, libc::F_UNLCK);
    // A lock that was taken through another description since stays when the first one goes.
    assert_eq!(set(&first, desc, libc::F_WRLCK, 0, 1), 0);
    assert_eq!(first.on(Op::Unlock, desc, 0), 0);
    assert_eq!(set(&first, more, libc::F_WRLCK, 30, 1), 0);
    drop(held);
    wait_until("the description has gone", || first.on(Op::GetFlags, desc, 0) == denied);
    assert_eq!(shown(&second, other), (libc::F_WRLCK, 30, 1, first.pid));
    // Those of descriptions are apart, and go with them.
    let (whole, holds_whole) = first.open("/f", libc::O_RDWR);
    assert_eq!(first.on(Op::Flock, whole, libc::LOCK_EX | libc::LOCK_NB), 0);
    assert_eq!(first.lock(whole, libc::F_OFD_SETLK, libc::F_WRLCK, 50, 1).result, 0);
    assert_eq!(second.on(Op::Flock, other, libc::LOCK_SH | libc::LOCK_NB), again);
    assert_eq!(first.on(Op::Flock, more, libc::LOCK_SH | libc::LOCK_NB), again, "another description");
    let lock: libc::flock = take(&second.lock(other, libc::F_GETLK, libc::F_WRLCK, 50, 1).bytes);
    assert_eq!(lock.l_pid, -1);
    drop(holds_whole);
    wait_until("the flock has gone", || second.on(Op::Flock, other, libc::LOCK_SH | libc::LOCK_NB) == 0);
    wait_until("the range has gone", || set(&second, other, libc::F_WRLCK, 50, 1) == 0);
    // And with the process.
    first.kill();
    wait_until("its locks have gone", || set(&second, other, libc::F_WRLCK, 0, 0) == 0);
    drop(first);
    assert!(opens(&place) > 0);
}

#[test]
fn waits_for_locks_end() {
    let (_place, _, first, agent) = volume_with_agent();
    let (second, third) = (Program::start(&agent.socket), Program::start(&agent.socket));
    let (desc, _held) = first.open("/f", libc::O_CREAT | libc::O_RDWR);
    let (other, _other) = second.open("/f", libc::O_RDWR);
    let wait = Program::lock_request(other, libc::F_SETLKW, libc::F_WRLCK, 0, 1);
    let flock = Request { desc: other, a: libc::LOCK_EX as u64, ..Request::default() };
    let is_busy = |program: &Program| program.lock(other, libc::F_SETLK, libc::F_WRLCK, 0, 1).result != 0;
    // By the one who holds it.
    assert_eq!(first.lock(desc, libc::F_SETLK, libc::F_WRLCK, 0, 1).result, 0);
    second.ask(Op::Lock, wait.0, &wait.1);
    assert!(is_busy(&third) && !second.has_answer());
    assert_eq!(first.lock(desc, libc::F_SETLK, libc::F_UNLCK, 0, 1).result, 0);
    assert_eq!(second.answer().result, 0);
    // By the program that waits; a cancel that comes too late means nothing.
    let blocked = Program::lock_request(desc, libc::F_SETLKW, libc::F_WRLCK, 0, 1);
    first.ask(Op::Lock, blocked.0, &blocked.1);
    assert!(is_busy(&third) && !first.has_answer());
    first.ask(Op::Cancel, Request::default(), &[]);
    assert_eq!(first.answer().result, -i64::from(libc::EINTR));
    first.ask(Op::Cancel, Request::default(), &[]);
    assert_eq!(first.on(Op::GetFlags, desc, 0) & 3, i64::from(libc::O_RDWR));
    // By the death of the process that waits: it does not get the lock then, although its channel lives on here, as in a child.
    let (fourth, (own, _own)) = (Program::start(&agent.socket), first.open("/f", libc::O_RDWR));
    for _ in 0..50 {
        let waiting = Program::start(&agent.socket);
        assert_eq!(first.on(Op::Flock, desc, libc::LOCK_EX), 0);
        waiting.ask(Op::Flock, flock, &[]);
        assert_eq!(fourth.on(Op::Flock, own, libc::LOCK_SH | libc::LOCK_NB), -i64::from(libc::EAGAIN));
        waiting.kill();
        assert_eq!(first.on(Op::Flock, desc, libc::LOCK_UN), 0);
        wait_until("no process has it", || fourth.on(Op::Flock, own, libc::LOCK_EX | libc::LOCK_NB) == 0);
        assert_eq!(fourth.on(Op::Flock, own, libc::LOCK_UN), 0);
    }
    // Two that wait for each other: one is told.
    let crossed = Program::lock_request(other, libc::F_SETLKW, libc::F_WRLCK, 10, 1);
    assert_eq!(first.lock(desc, libc::F_SETLK, libc::F_WRLCK, 10, 1).result, 0);
    let blocked = Program::lock_request(desc, libc::F_SETLKW, libc::F_WRLCK, 0, 1);
    first.ask(Op::Lock, blocked.0, &blocked.1);
    second.ask(Op::Lock, crossed.0, &crossed.1);
    wait_until("one of them is told", || first.has_answer() || second.has_answer());
    let (told, waiting) = if first.has_answer() { (&first, &second) } else { (&second, &first) };
    assert_eq!(told.answer().result, -i64::from(libc::EDEADLK));
    assert!(!waiting.has_answer());
    told.kill();
    assert_eq!(waiting.answer().result, 0);
}

/// Processes that hold, wait and write are killed: in bounded time the servers' tables are empty, and no lock is held.
#[test]
fn of_killed_processes_nothing_is_left() {
    let rounds = if aze_tests::long() { 200 } else { 20 };
    let place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let mut draw = aze_tests::Draw::new(7, 7);
    for round in 0..rounds {
        let mut waiting = Command::new("sleep").arg("600").spawn().expect("a process");
        let agent = AgentProcess::start(&place, &volume, waiting.id());
        let programs: Vec<Program> = (0..4).map(|_| Program::start(&agent.socket)).collect();
        let mut open = Vec::new();
        for program in &programs {
            let (desc, descriptor) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
            // They wait for one another, for locks of both kinds, or write.
            match draw.below(4) {
                0 => {
                    let (request, bytes) = Program::lock_request(desc, libc::F_SETLKW, libc::F_WRLCK, 0, 0);
                    program.ask(Op::Lock, request, &bytes);
                }
                1 => program.ask(Op::Flock, Request { desc, a: libc::LOCK_EX as u64, ..Request::default() }, &[]),
                2 => {
                    let len = WINDOW_BYTES as u64;
                    program.ask(Op::Write, Request { desc, offset: POSITION, len, ..Request::default() }, &[]);
                }
                _ => drop(program.lock(desc, libc::F_OFD_SETLK, libc::F_RDLCK, 0, 0)),
            }
            open.push(descriptor);
        }
        assert_eq!(open.len(), 4);
        waiting.kill().and_then(|()| waiting.wait()).expect("it can be killed");
        for program in &programs {
            program.kill();
        }
        let begin = Instant::now();
        drop((open, programs));
        agent.has_ended();
        assert!(begin.elapsed() < Duration::from_secs(10), "round {round}: {:?}", begin.elapsed());
        wait_until("no file is open", || opens(&place) == 0);
    }
    // No lock has stayed.
    let me = std::process::id();
    let agent = AgentProcess::start(&place, &volume, me);
    let program = Program::me(&agent.socket);
    let (desc, _held) = program.open("/f", libc::O_RDWR);
    assert_eq!(program.on(Op::Flock, desc, libc::LOCK_EX | libc::LOCK_NB), 0);
    assert_eq!(program.lock(desc, libc::F_SETLK, libc::F_WRLCK, 0, 0).result, 0);
}

/// A process that has never connected keeps the agent if it was told of it, and so does one that has only a descriptor.
#[test]
fn an_agent_stays_for_those_that_may_come() {
    let place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let mut first = Command::new("sleep").arg("600").spawn().expect("a process");
    let agent = AgentProcess::start(&place, &volume, first.id());
    let mut second = Command::new("sleep");
    second.arg("600").env(aze_calls::AGENT_VARIABLE, &agent.socket);
    let mut second = second.spawn().expect("a process");
    first.kill().and_then(|()| first.wait()).expect("it can be killed");
    let program = Program::start(&agent.socket);
    let (_, held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
    program.kill();
    drop(program);
    // Another process has the descriptor as its input.
    let mut third = Command::new("sleep").arg("600").stdin(Stdio::from(held)).spawn().expect("a process");
    second.kill().and_then(|()| second.wait()).expect("it can be killed");
    // The agent has heard of it when it still answers.
    drop(Program::start(&agent.socket));
    assert_eq!(opens(&place), 1, "the file is open");
    third.kill().and_then(|()| third.wait()).expect("it can be killed");
    agent.has_ended();
    wait_until("no file is open", || opens(&place) == 0);
}

#[test]
fn strangers_and_strange_words_are_refused() {
    let (place, _, program, agent) = volume_with_agent();
    let hello = Hello { version: VERSION, pid: 1 };
    assert_eq!(Program::refused(&agent.socket, Hello { version: VERSION + 1, ..hello }), libc::EPROTO);
    let meta = fs::metadata(agent.socket.parent().expect("a directory")).expect("it is there");
    assert_eq!(meta.uid(), 0, "this test runs as root");
    let whole = Request { op: Op::Stat as u32, bytes: 1, ..Request::default() };
    for packet in [
        vec![0; 3],
        vec![0; 64],
        calls::bytes_of(&whole),
        calls::bytes_of(&Request { op: u32::MAX, ..Request::default() }),
        vec![1; MESSAGE_BYTES_MAX + 1],
    ] {
        assert!(Program::me(&agent.socket).is_closed_after(&packet), "{} bytes", packet.len());
    }
    // In the mailbox: no operation, one whose way is packets, and more bytes than there are.
    let locks = Request { op: Op::Lock as u32, ..Request::default() };
    let long = Request { op: Op::Mkdir as u32, bytes: MESSAGE_BYTES_MAX as u32, ..Request::default() };
    for request in [Request::default(), locks, long] {
        assert!(Program::me(&agent.socket).is_closed_after_mailbox(request), "{request:?}");
    }
    // Numbers that make no sense are errors of one call.
    let einval = -i64::from(libc::EINVAL);
    let (desc, _held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
    for op in [Op::Read, Op::Write] {
        let request = Request { desc, len: WINDOW_BYTES as u64 + 1, ..Request::default() };
        assert_eq!(program.call(op, request, &[]).result, einval, "{op:?}");
    }
    for op in [Op::Rename, Op::Link, Op::Symlink, Op::SetXattr, Op::GetXattr] {
        assert_eq!(program.call(op, Request { first: 9, ..Request::default() }, b"/a").result, einval, "{op:?}");
    }
    assert_eq!(program.call(Op::SetTimes, Request::default(), b"/f").result, einval);
    assert_eq!(program.call(Op::Lock, Request { desc, a: 5, ..Request::default() }, b"x").result, einval);
    assert_eq!(program.at(Op::Stat, "/a\0b", 0), einval);
    assert_eq!(program.at(Op::Stat, &format!("/{}", "x/".repeat(3000)), 0), -i64::from(libc::ENAMETOOLONG));
    for op in Op::ALL.into_iter().filter(|op| *op != Op::Cancel) {
        let request = Request { desc: u64::MAX, a: 77, b: u64::MAX, c: u64::MAX, ..Request::default() };
        let answer = program.call(op, request, b"");
        let may_succeed = matches!(op, Op::StatFs | Op::Pipes);
        assert!(answer.result <= 0 || may_succeed, "{op:?}: {}", answer.result);
    }
    drop(place);
}

/// An agent that may open no more files says so, for files and for channels, and goes on when it may.
#[test]
fn an_agent_without_descriptors_refuses_and_lives() {
    let place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let agent = AgentProcess::start_with(&place, &volume, std::process::id(), Some(100));
    let program = Program::me(&agent.socket);
    let mut held = Vec::new();
    let refused = loop {
        let request = Request { a: (libc::O_CREAT | libc::O_RDWR) as u64, b: 0o600, ..Request::default() };
        let answer = program.call(Op::Open, request, format!("/f{}", held.len()).as_bytes());
        match answer.passed {
            Some(descriptor) => held.push(descriptor),
            None => break answer.result,
        }
    };
    assert_eq!(refused, -i64::from(libc::EMFILE));
    assert!(held.len() > 20 && held.len() < 100, "{} files", held.len());
    let channels: Vec<Program> = std::iter::from_fn(|| Program::me_if_taken(&agent.socket)).take(100).collect();
    assert!(channels.len() < 100, "{} channels", channels.len());
    assert_eq!(program.at(Op::Stat, "/f0", 0), 0, "calls that need none are done");
    drop((held, channels));
    wait_until("there are descriptors again", || Program::me_if_taken(&agent.socket).is_some());
    wait_until("files can be opened again", || {
        let request = Request { a: libc::O_RDWR as u64, ..Request::default() };
        program.call(Op::Open, request, b"/f0").passed.is_some()
    });
    wait_until("no file is open", || opens(&place) == 0);
}

/// What mmap(2) and execve(2) get: the bytes, holes as holes, sealed, and not more than a limit.
#[test]
fn contents_are_copied_into_memory() {
    let (_place, _, mut program, _agent) = volume_with_agent();
    let (desc, _held) = program.open("/true", libc::O_CREAT | libc::O_RDWR);
    let bytes = fs::read("/bin/true").expect("a program");
    for part in bytes.chunks(WINDOW_BYTES) {
        assert_eq!(program.write(desc, part), part.len() as i64);
    }
    let contents =
        |desc, offset, len| program.call(Op::Contents, Request { desc, offset, len, ..Request::default() }, &[]);
    let whole = fs::File::from(contents(desc, 0, u64::MAX).passed.expect("a file in memory"));
    let mut read = vec![0; bytes.len()];
    whole.read_exact_at(&mut read, 0).expect("its bytes");
    assert!(read == bytes && whole.metadata().expect("a file").len() == bytes.len() as u64);
    assert!(whole.set_len(0).is_err() && whole.write_at(b"x", 0).is_err(), "it is sealed");
    let program_of = format!("/proc/self/fd/{}", whole.as_raw_fd());
    assert!(Command::new(program_of).status().expect("it runs").success());
    let part = fs::File::from(contents(desc, 100, 50).passed.expect("a file in memory"));
    assert_eq!(part.metadata().expect("a file").len(), 50);
    assert_eq!(
        contents(desc, 1 << 40, 10).passed.map(|file| fs::File::from(file).metadata().expect("a file").len()),
        Some(0)
    );
    // A large hole takes no memory, however large.
    let (sparse, _sparse) = program.open("/sparse", libc::O_CREAT | libc::O_RDWR);
    let truncate =
        |len| program.call(Op::TruncateOpen, Request { desc: sparse, len, ..Request::default() }, &[]).result;
    assert_eq!(truncate(4 * aze_agent::CONTENTS_BYTES_MAX), 0);
    let hole = fs::File::from(contents(sparse, 0, u64::MAX).passed.expect("a file in memory"));
    let hole = hole.metadata().expect("a file");
    assert_eq!((hole.len(), hole.blocks()), (4 * aze_agent::CONTENTS_BYTES_MAX, 0));
    let (writing, _writing) = program.open("/true", libc::O_WRONLY);
    assert_eq!(contents(writing, 0, 10).result, -i64::from(libc::EBADF));
}

/// Entries that are there throughout a listing are in it once, also if others come and go; a place in it can be gone back to.
#[test]
fn a_listing_goes_on_while_entries_change() {
    let (_place, _, mut program, _agent) = volume_with_agent();
    assert_eq!(program.at(Op::Mkdir, "/d", 0o755), 0);
    for number in 0..3000 {
        drop(program.open(&format!("/d/stays-{number}"), libc::O_CREAT | libc::O_WRONLY));
    }
    let (dir, _dir) = program.open("/d", libc::O_RDONLY | libc::O_DIRECTORY);
    let (mut names, mut cookies, mut portion) = (Vec::new(), Vec::new(), 0);
    loop {
        let count = program.call(Op::ReadDir, Request { desc: dir, len: 4096, ..Request::default() }, &[]).result;
        let mut bytes = &program.window()[..usize::try_from(count).expect("a listing")];
        if bytes.is_empty() {
            break;
        }
        while !bytes.is_empty() {
            let len = usize::from(u16::from_ne_bytes([bytes[16], bytes[17]]));
            let name = bytes[19..len].split(|byte| *byte == 0).next().expect("a name");
            names.push(String::from_utf8_lossy(name).into_owned());
            cookies.push(i64::from_ne_bytes(bytes[8..16].try_into().expect("eight bytes")));
            bytes = &bytes[len..];
        }
        portion += 1;
        drop(program.open(&format!("/d/comes-{portion}"), libc::O_CREAT | libc::O_WRONLY));
        assert_eq!(program.at(Op::Unlink, &format!("/d/comes-{portion}"), 0), 0);
    }
    let mut stays: Vec<&String> = names.iter().filter(|name| name.starts_with("stays-")).collect();
    stays.sort();
    stays.dedup();
    assert_eq!((stays.len(), names.iter().filter(|name| name.starts_with("stays-")).count()), (3000, 3000));
    assert_eq!(names[..2], [".", ".."]);
    assert!(portion > 10 && cookies.iter().all(|cookie| *cookie > 0));
    // Back to the middle: the same entry comes next.
    let at = cookies.len() / 2;
    let seek = Request { desc: dir, offset: cookies[at] as u64, a: libc::SEEK_SET as u64, ..Request::default() };
    assert_eq!(program.call(Op::Seek, seek, &[]).result, cookies[at]);
    let count = program.call(Op::ReadDir, Request { desc: dir, len: 4096, ..Request::default() }, &[]).result;
    assert!(count > 0);
    let next = program.window()[19..].split(|byte| *byte == 0).next().expect("a name").to_vec();
    assert_eq!(String::from_utf8_lossy(&next), names[at + 1]);
}

/// A volume whose servers have died gives errors in bounded time, and the agent lives.
#[test]
fn a_dead_volume_gives_errors() {
    let (place, _, mut program, _agent) = volume_with_agent();
    let (desc, _held) = program.open("/f", libc::O_CREAT | libc::O_RDWR);
    assert_eq!(program.write(desc, b"there"), 5);
    for server in servers(&place) {
        aze_tests::signal(server["pid"].as_u64().expect("a number") as u32, libc::SIGKILL);
    }
    let begin = Instant::now();
    for result in [program.write(desc, b"lost"), program.at(Op::Stat, "/f", 0)] {
        assert!([libc::EIO, libc::ETIMEDOUT].contains(&(-result as i32)), "{result}");
    }
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    assert_eq!(program.on(Op::GetFlags, desc, 0) & 3, i64::from(libc::O_RDWR), "the agent lives");
}

/// A file without a name is given one by its description, unless that was forbidden.
#[test]
fn a_file_without_a_name_is_given_one() {
    let (_place, _, mut program, _agent) = volume_with_agent();
    let link =
        |desc, path: &str| program.call(Op::Link, Request { desc, ..Request::default() }, path.as_bytes()).result;
    let (desc, _held) = program.open("/", libc::O_TMPFILE | libc::O_RDWR);
    let (never, _never) = program.open("/", libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL);
    assert_eq!((link(desc, "/named"), link(never, "/never")), (0, -i64::from(libc::ENOENT)));
    assert_eq!(program.write(desc, b"bytes"), 5);
    let (again, _again) = program.open("/named", libc::O_RDONLY);
    assert_eq!(program.read_at(again, 0), b"bytes");
    let stat: Stat = take(&program.call(Op::StatOpen, Request { desc: never, ..Request::default() }, &[]).bytes);
    assert_eq!(stat.nlink, 0);
}

/// Makes a copy of `aze` by another process: a process that another test forks meanwhile would hold a descriptor of this one's open
/// for writing, and the system starts no program that is being written (ETXTBSY).
fn copy_of_program(to: &Path) {
    aze_tests::run(Command::new("cp").arg(aze_tests::program()).arg(to));
}

/// A copy of `aze` beside a library that does nothing, so that these tests are about the command.
fn command_with_library(place: &Place) -> std::path::PathBuf {
    let bin = place.path("bin");
    fs::create_dir(&bin).expect("a directory");
    let (program, source) = (bin.join("aze"), place.path("nothing.c"));
    copy_of_program(&program);
    fs::write(&source, "int aze_nothing;\n").expect("a source");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-o"]).arg(bin.join("libaze_intercept.so")).arg(&source);
    aze_tests::run(&mut cc);
    program
}

/// Runs that copy of `aze` with a volume's directory.
fn ran(place: &Place, program: &Path, args: &[&str]) -> aze_tests::Ran {
    let mut command = Command::new(program);
    command.args(args).env("AZE_RUN_DIR", place.path("run")).env_remove("AZE_VOLUME").env_remove("XDG_RUNTIME_DIR");
    command.stdin(Stdio::null()).current_dir(&place.dir).output().expect("aze starts").into()
}

#[test]
fn a_program_is_given_the_library_and_an_agent() {
    let place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let aze = command_with_library(&place);
    let library = place.path("bin/libaze_intercept.so").canonicalize().expect("it is there");
    let script =
        "echo $$ $LD_PRELOAD $AZE_AT $AZE_VOLUME; test -S $AZE_AGENT && stat -c %a $(dirname $AZE_AGENT); exit 5";
    let begun = ran(&place, &aze, &["run", "--door", "intercept", "--at", "/x/y", "--", "bash", "-c", script]).code(5);
    let lines: Vec<&str> = begun.out.lines().collect();
    assert_eq!(lines.len(), 2, "{}", begun.out);
    let words: Vec<&str> = lines[0].split(' ').skip(1).collect();
    assert_eq!(words, [library.to_str().expect("a path"), "/x/y", &volume]);
    assert_eq!(lines[1], "700", "no other user comes to the socket");
    assert_eq!(begun.err, "", "the agent says nothing here");
    // Status knows it, 'aze down' refuses while it serves, and takes it away by force.
    let mut run = Command::new(&aze);
    run.args(["run", "--door", "intercept", "--", "bash", "-c", "echo; read"]).env("AZE_RUN_DIR", place.path("run"));
    let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    std::io::Read::read_exact(run.stdout.as_mut().expect("a pipe"), &mut [0]).expect("the program runs");
    let status = place.aze(&["status"]).ok().out;
    assert!(status.contains(&format!("seen at /aze for 'aze run' of process {}", run.id())), "{status}");
    let busy = place.aze(&["down"]).code(6);
    assert!(busy.err.contains("aze run"), "{}", busy.err);
    place.aze(&["down", "--force"]).ok();
    drop(run.stdin.take());
    run.wait().expect("it ends");
}

#[test]
fn a_shell_is_given_variables() {
    let place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let aze = command_with_library(&place);
    let mounts = place.path("run").join(&volume).join("mounts");
    let script = format!(
        "eval \"$('{}' run --print-env)\"; echo $AZE_VOLUME $AZE_AT; test -S $AZE_AGENT; echo $?; ls '{}' | wc -l",
        aze.display(),
        mounts.display()
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script])
        .env("AZE_RUN_DIR", place.path("run"))
        .env_remove("AZE_VOLUME")
        .env_remove("XDG_RUNTIME_DIR");
    let said = aze_tests::run(&mut bash);
    assert_eq!(said.out, format!("{volume} /aze\n0\n3\n"), "{}", said.err);
    // Record, socket and log have gone with the shell.
    wait_until("the agent has ended", || fs::read_dir(&mounts).expect("a directory").count() == 0);
    ran(&place, &aze, &["run", "--door", "mount", "--print-env"]).code(2);
    ran(&place, &aze, &["run", "--print-env", "true"]).code(2);
    ran(&place, &aze, &["run", "--pid", "1", "--", "true"]).code(2);
    let gone = ran(&place, &aze, &["run", "--print-env", "--pid", "4194304"]).code(3);
    assert!(gone.err.contains("4194304"), "{}", gone.err);
}

#[test]
fn what_cannot_be_intercepted_is_refused() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let refused = |program: &Path, args: &[&str], code: i32, why: &str| {
        let all: Vec<&str> = ["run", "--door", "intercept"].iter().chain(args).copied().collect();
        let said = ran(&place, program, &all).code(code);
        assert!(said.err.contains(why), "{why}: {}", said.err);
    };
    // Without the library.
    let alone = place.path("alone");
    fs::create_dir(&alone).expect("a directory");
    copy_of_program(&alone.join("aze"));
    refused(&alone.join("aze"), &["--", "true"], 3, "libaze_intercept.so is not beside");
    let aze = command_with_library(&place);
    refused(&aze, &["--", "/lib64/ld-linux-x86-64.so.2"], 5, "statically linked");
    refused(&aze, &["--", "/aze/bin/x"], 5, "lies in the volume");
    refused(&aze, &["--read-only", "--", "true"], 5, "--read-only");
    refused(&aze, &["--at", "/", "--", "true"], 2, "choose a path");
    ran(&place, &aze, &["run", "--door", "intercept", "--", "no-such-program"]).code(127);
}

/// Where no mount can be had, `auto` takes the library, and says why neither can be had if there is none.
#[test]
fn auto_takes_the_library_where_there_is_no_mount() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let aze = command_with_library(&place);
    let without_device = |program: &Path, words: &str| {
        let script = format!("mount --bind /dev/null /dev/fuse && exec '{}' run {words}", program.display());
        let mut command = Command::new("unshare");
        command.args(["-m", "bash", "-c", &script]).env("AZE_RUN_DIR", place.path("run")).env_remove("XDG_RUNTIME_DIR");
        aze_tests::Ran::from(command.env_remove("AZE_VOLUME").current_dir(&place.dir).output().expect("it starts"))
    };
    assert_eq!(without_device(&aze, "-- bash -c 'echo $AZE_AT'").ok().out, "/aze\n");
    let mount = without_device(&aze, "--door mount -- true");
    assert!(mount.code > 0 && mount.err.contains("mount"), "{}", mount.err);
    let neither = without_device(&aze, "-- /lib64/ld-linux-x86-64.so.2");
    assert!(
        neither.code > 0 && neither.err.contains("mount") && neither.err.contains("statically linked"),
        "{}",
        neither.err
    );
}
