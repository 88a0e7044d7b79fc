//! Programs in Python, which say what an application does shorter than Rust and are run by one that
//! knows nothing of ours.

use crate::Ran;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the Python programs begin with: `P` makes a path in the directory under test, `name` gives
/// the errno of a call that must fail, `user` runs a function as an unprivileged user, `until` waits for a condition and fails with
/// `what` at its deadline.
pub const PRELUDE: &str = r#"
import errno, fcntl, mmap, os, socket, sqlite3, stat, subprocess, sys, tempfile, time
os.umask(0)
P = lambda *names: os.path.join(sys.argv[1], *names)
def name(call, *args, **more):
    try:
        call(*args, **more)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'success'
def child(call):
    pid = os.fork()
    if pid == 0:
        try:
            call()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    return pid
def wait(*pids):
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
def user(call, uid=1001):
    def changed():
        os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid); call()
    wait(child(changed))
def make(path, data=b'', mode=0o644):
    with open(path, 'wb') as file:
        file.write(data)
    os.chmod(path, mode)
    return path
def data(path):
    with open(path, 'rb') as file:
        return file.read()
def until(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)
"#;

/// Runs a Python program on some paths. It is put into a file, so that a failure shows its line.
pub fn python(program: &str, arguments: &[&Path]) -> Ran {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("aze-test-{}-{number}.py", std::process::id()));
    std::fs::write(&file, format!("{PRELUDE}{program}")).expect("a program");
    let ran = Command::new("python3").arg(&file).args(arguments).stdin(Stdio::null()).output().expect("python3 runs");
    std::fs::remove_file(&file).expect("the program can be removed");
    Ran::from(ran).ok()
}
