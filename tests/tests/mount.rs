//! A mount and its process: how it ends, and that no program ever waits for it in vain.

use aze_tests::python::python;
use aze_tests::{PATIENCE, Place, Ran, ends_within, fuse_io, leave_out, signal, wait_until};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The process that serves the mount of a place.
fn serving(place: &Place, volume: &str) -> u32 {
    let ran = place.aze(&["status", "--name", volume, "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&ran.out).expect("status is JSON");
    status["mounts"][0]["process"]["pid"].as_u64().unwrap_or_else(|| panic!("no pid of a mount in {status}")) as u32
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    mounts.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}

#[test]
fn a_killed_mount_tells_programs_and_can_be_cleared_away() {
    let mut place = Place::new();
    let volume = place.up(&[]);
    let mnt = place.mount();
    fs::write(mnt.join("f"), b"kept").expect("a file");
    let open = fs::File::open(mnt.join("f")).expect("it opens");
    signal(serving(&place, &volume), libc::SIGKILL);
    wait_until("the mount's process is gone", || {
        fs::metadata(&mnt).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
    let read = std::io::Read::read(&mut &open, &mut [0; 8]).expect_err("nobody can answer");
    assert!(matches!(read.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{read}");
    drop(open);
    place.aze(&["umount", mnt.to_str().expect("a path")]).ok();
    assert!(!is_mounted(&mnt));
    // The servers have the acknowledged bytes.
    assert_eq!(place.aze(&["cat", "aze:/f"]).ok().out, "kept");
    let again = place.mount();
    assert_eq!(fs::read(again.join("f")).expect("it can be read"), b"kept");
}

/// A mount in the foreground; killed if the test fails.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        // It has ended already if all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Foreground {
    fn start(place: &Place) -> (Foreground, PathBuf) {
        let dir = place.path("front");
        fs::create_dir_all(&dir).expect("a directory");
        let way = fuse_io::way();
        let mut command = place.command(&["mount", "--foreground", "--fuse-io", &way, dir.to_str().expect("a path")]);
        let _switch = (way == "uring").then(|| fuse_io::Switch::turn(true));
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("aze starts");
        let front = Foreground(child);
        wait_until("it is mounted", || is_mounted(&dir));
        // It answers when its queues are there. The kernel takes none once the switch is turned back.
        fs::metadata(&dir).expect("it answers");
        (front, dir)
    }

    fn ended(&mut self) -> i32 {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status.code().unwrap_or(-1);
            }
            assert!(started.elapsed() < PATIENCE, "a mount in the foreground does not end");
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
    }
}

/// It failed after 10 s, though it had unmounted.
#[test]
fn a_mount_of_which_another_namespace_has_a_copy_is_unmounted() {
    let mut place = Place::new();
    let volume = place.up(&["--servers", "1"]);
    let mnt = place.mount();
    let process = serving(&place, &volume);
    let mut other = Command::new("unshare");
    other.args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
    let mut other = Foreground(other.spawn().expect("root can make namespaces"));
    let mut ready = [0];
    std::io::Read::read_exact(other.0.stdout.as_mut().expect("a pipe"), &mut ready).expect("it runs");
    let ran = place.aze(&["umount", mnt.to_str().expect("a path")]).ok();
    assert!(ran.err.contains("mount namespace of sleep ("), "{}", ran.err);
    assert!(!is_mounted(&mnt));
    drop(other);
    wait_until("it ends with the namespace", || !Path::new(&format!("/proc/{process}/fd/0")).exists());
}

#[test]
fn a_mount_hides_files_only_if_it_is_asked_to() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let dir = place.path("used");
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("mine"), "1").expect("a file");
    let dir = dir.to_str().expect("a path");
    let refused = place.aze(&["mount", dir]).code(5);
    assert!(refused.err.contains("not empty"), "{}", refused.err);
    assert!(!is_mounted(Path::new(dir)));
    place.aze(&["mount", "--nonempty", dir]).ok();
    assert_eq!(fs::read_dir(dir).expect("it is listed").count(), 0);
    wait_until("the mount is not in use", || place.aze(&["umount", dir]).code == 0);
    assert_eq!(fs::read_to_string(format!("{dir}/mine")).expect("a file"), "1");
}

/// A descriptor on its way from one process to another: the file is open, and no process has it.
const ON_ITS_WAY: &str = r#"
import os, socket, sys
here, there = socket.socketpair()
file = os.open(sys.argv[1], os.O_RDONLY)
socket.send_fds(here, [b"x"], [file])
os.close(file)
print("sent", flush=True)
sys.stdin.readline()
"#;

/// The system lets go of a program's last files a moment after its end: `aze umount` said "in use", and named no
/// program.
#[test]
fn a_mount_that_no_program_uses_is_unmounted_when_it_is_free() {
    let mut place = Place::new();
    place.up(&["--servers", "1"]);
    let dir = place.mount();
    fs::write(dir.join("f"), b"x").expect("a file");
    let mut holder = Command::new("python3");
    holder.args(["-c", ON_ITS_WAY]).arg(dir.join("f")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().expect("python3 runs");
    let mut said = String::new();
    BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut said).expect("a line");
    assert_eq!(said, "sent\n");
    let refused = Command::new("umount").arg(&dir).output().expect("umount runs");
    assert!(!refused.status.success(), "it is in use");
    let mut umount = place.command(&["umount", dir.to_str().expect("UTF-8")]).spawn().expect("it starts");
    assert!(!ends_within(&mut umount, Duration::from_millis(200)), "it waits for the holder");
    drop(holder.stdin.take());
    holder.wait().expect("it ends");
    let ran = umount.wait_with_output().expect("it ends");
    assert!(ran.status.success() && !is_mounted(&dir), "{ran:?}");
}

#[test]
fn a_mount_in_the_foreground_ends_with_a_signal_or_an_unmount() {
    let place = Place::new();
    place.up(&[]);
    for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let (mut front, dir) = Foreground::start(&place);
        fs::write(dir.join("f"), b"x").expect("a file");
        signal(front.0.id(), number);
        assert_eq!(front.ended(), 0, "after signal {number}");
        assert!(!is_mounted(&dir));
    }
    let (mut front, dir) = Foreground::start(&place);
    // The command itself may still look at the directory it has just mounted.
    wait_until("it is not in use", || Command::new("umount").arg(&dir).status().expect("umount runs").success());
    assert_eq!(front.ended(), 0, "after umount(8)");
    // In use: it disappears at once and ends when the last program lets go of it.
    let (mut front, dir) = Foreground::start(&place);
    let open = fs::File::open(dir.join("f")).expect("it opens");
    signal(front.0.id(), libc::SIGTERM);
    wait_until("it is unmounted", || !is_mounted(&dir));
    drop(open);
    assert_eq!(front.ended(), 0, "after the last file was closed");
}

/// The kernel went on showing them for a second to stat(1), which asks for the mode alone.
#[test]
fn a_write_takes_set_id_bits_at_once() {
    let mut place = Place::new();
    place.up(&["--servers", "1"]);
    let mount = place.mount();
    let program = r#"
import subprocess
os.chmod(sys.argv[1], 0o777)
os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
def mode():
    return subprocess.check_output(['stat', '-c', '%a', 'f']).decode().strip()
for flags, at in (os.O_APPEND, 1), (0, 1), (0, 0), (os.O_TRUNC, 0):
    make('f', b'a')
    os.chmod('f', 0o6755)
    assert mode() == '6755', flags
    file = os.open('f', os.O_WRONLY | flags)
    os.lseek(file, at, 0)
    os.write(file, b'b')
    assert mode() == '755', (flags, at)
    os.close(file)
"#;
    python(program, &[&mount]);
}

/// Two mounts, the second without a cache: it shows every change of the first that has returned.
#[test]
fn a_mount_without_cache_time_shows_at_once_what_another_mount_changes() {
    let mut place = Place::new();
    place.up(&["--servers", "2"]);
    let one = place.mount();
    let two = place.mount_with(&["--cache-time", "0"]);
    let program = r#"
one, two = sys.argv[1:]
os.mkdir(f'{one}/d')
make(f'{one}/kept', b'0')
kept = os.open(f'{two}/kept', os.O_RDONLY)
for number in range(50):
    text = b'x' * (number + 1)
    make(f'{one}/d/f', text)
    assert os.stat(f'{two}/d/f').st_size == number + 1, number
    os.chmod(f'{one}/d/f', 0o600 + number)
    assert os.stat(f'{two}/d/f').st_mode & 0o777 == 0o600 + number, number
    assert os.listdir(f'{two}/d') == ['f'], number
    assert os.stat(f'{two}/d').st_size == 1, number
    assert data(f'{two}/d/f') == text, number
    os.rename(f'{one}/d/f', f'{one}/d/g')
    assert name(os.stat, f'{two}/d/f') == 'ENOENT', number
    assert os.stat(f'{two}/d/g').st_size == number + 1, number
    os.rename(f'{one}/d', f'{one}/e')
    assert name(os.stat, f'{two}/d/g') == 'ENOENT', number
    os.unlink(f'{one}/e/g')
    assert name(os.stat, f'{two}/e/g') == 'ENOENT', number
    os.rename(f'{one}/e', f'{one}/d')
    with open(f'{one}/kept', 'r+b') as file:
        file.write(text)
    assert os.pread(kept, 100, 0) == text, number
    # The first call after a write of its own and a change of the other's.
    for call in (lambda file: os.lseek(file, 0, 2), lambda file: len(os.pread(file, 10_000, 0))):
        for length in (9000, 4066):
            written = os.open(f'{two}/written', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.pwrite(written, b'x' * 6469, 0)
            os.truncate(f'{one}/written', length)
            assert call(written) == length, number
            os.close(written)
    assert os.fstat(kept).st_size == number + 1, number
"#;
    python(program, &[&one, &two]);
    for bad in ["-1", "61", "soon", "nan"] {
        let dir = place.path("mnt0");
        let ran = place.aze(&["mount", &format!("--cache-time={bad}"), dir.to_str().expect("a path")]);
        assert!(ran.err.contains("not a number of seconds from 0 to 60"), "{bad}: {}", ran.err);
        assert_ne!(ran.code, 0);
    }
}

#[test]
fn a_silent_server_holds_up_its_own_callers_only() {
    const FILES: usize = 24;
    let mut place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let mnt = place.mount();
    let record = fs::read_to_string(place.path(&format!("run/{volume}/volume.json"))).expect("the volume's record");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let server = record["servers"][1]["process"]["pid"].as_u64().expect("a pid") as u32;
    // Open already: a path goes through a directory, which both servers know.
    let open = |number: usize| {
        let path = mnt.join(format!("f{number}"));
        fs::write(&path, [7; 100]).expect("a file");
        fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("it opens")
    };
    let files: Vec<fs::File> = (0..FILES).map(open).collect();
    let is_read = |file: &fs::File| file.read_at(&mut [0; 100], 0).expect("it is read") == 100;
    signal(server, libc::SIGSTOP);
    let has_stopped = |task: io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.expect("a thread").path().join("stat")).expect("its state");
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    // While another program has the core, one of its threads may not have stopped yet.
    let tasks = format!("/proc/{server}/task");
    wait_until("the server stands still", || fs::read_dir(&tasks).expect("threads").all(has_stopped));
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        for (number, file) in files.iter().enumerate() {
            let tell = tell.clone();
            scope.spawn(move || {
                assert!(is_read(file));
                tell.send(number).expect("somebody listens");
            });
        }
        // A few seconds, where the program's threads wait for a core.
        let mut answered = Vec::new();
        while let Ok(number) = told.recv_timeout(Duration::from_secs(1)) {
            answered.push(number);
        }
        let began = Instant::now();
        let again = answered.iter().filter(|number| is_read(&files[**number])).count();
        let took = began.elapsed();
        signal(server, libc::SIGCONT);
        let waited = told.iter().take(FILES - again).count();
        assert!(again > 0 && waited > 0 && again + waited == FILES, "{again} of {FILES} while a server is silent");
        assert!(took < Duration::from_secs(2), "{again} took {took:?}");
    });
}

/// By io_uring only where root has switched that on and the process may use all processors; who demands it otherwise is told
/// why it cannot be had.
#[test]
fn requests_come_by_io_uring_where_that_is_possible() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    fs::create_dir(place.path("mnt")).expect("a directory");
    let dir = place.path("mnt");
    let dir = dir.to_str().expect("UTF-8");
    let way = || {
        let status: serde_json::Value = serde_json::from_str(&place.aze(&["status", "--json"]).ok().out).expect("JSON");
        assert_eq!(status["mounts"].as_array().map(Vec::len), Some(1), "{status}");
        status["mounts"][0]["fuse_io"].as_str().expect("it is told").to_owned()
    };
    let mounted = |option: &str| {
        place.aze(&["mount", "--fuse-io", option, dir]).ok();
        fs::write(format!("{dir}/f"), "by whichever way").expect("a file");
        assert_eq!(fs::read_to_string(format!("{dir}/f")).expect("a file"), "by whichever way");
        let way = way();
        let text = place.aze(&["status"]).ok().out;
        assert_eq!(text.contains("requests by io_uring"), way == "uring", "{text}");
        place.aze(&["umount", dir]).ok();
        way
    };
    let Some(off) = fuse_io::Switch::turn(false) else {
        return leave_out(
            "requests_come_by_io_uring",
            "the kernel has none (Linux 6.14), or this user may not switch it on",
        );
    };
    assert_eq!([mounted("auto"), mounted("dev")], ["dev", "dev"]);
    let refused = place.aze(&["mount", "--fuse-io", "uring", dir]);
    assert!(
        refused.code != 0 && refused.err.contains("'echo Y > /sys/module/fuse/parameters/enable_uring'"),
        "{}",
        refused.err
    );
    assert!(!is_mounted(Path::new(dir)));
    drop(off);
    let on = fuse_io::Switch::turn(true).expect("as before");
    assert_eq!([mounted("dev"), mounted("uring")], ["dev", "uring"]);
    let run = place
        .aze(&["run", "--door", "mount", "--fuse-io", "uring", "--", "sh", "-c", "cat /aze/f; echo x > /aze/g"])
        .ok();
    assert_eq!(run.out, "by whichever way");
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1) {
        let one = |way: &str| -> Ran {
            let inner = place.command(&["mount", "--fuse-io", way, dir]);
            let mut command = Command::new("taskset");
            command.args(["-c", "0"]).arg(inner.get_program()).args(inner.get_args()).current_dir(&place.dir);
            inner.get_envs().for_each(|(name, value)| match value {
                Some(value) => _ = command.env(name, value),
                None => _ = command.env_remove(name),
            });
            command.output().expect("taskset is there").into()
        };
        let refused = one("uring");
        assert!(
            refused.code != 0 && refused.err.contains("this process may use 1 of the machine's"),
            "{}",
            refused.err
        );
        one("auto").ok();
        assert_eq!(way(), "dev");
        place.aze(&["umount", dir]).ok();
    }
    drop(on);
}

/// A trace shows what programs ask for while it runs, and ends with the mount.
#[test]
fn a_mount_in_use_is_traced() {
    let mut place = Place::new();
    let volume = place.up(&["--servers", "2"]);
    let mnt = place.mount();
    let mut trace = place.command(&["trace", "--json", mnt.to_str().expect("UTF-8")]);
    let mut trace = trace.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(trace.stdout.take().expect("a pipe")).lines();
    let mut next =
        || -> serde_json::Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON") };
    // It has begun when it shows something.
    let (told, begun) = std::sync::mpsc::channel();
    let asks = std::thread::spawn({
        let mnt = mnt.clone();
        move || {
            while begun.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                assert!(fs::metadata(mnt.join("nothing")).is_err());
            }
        }
    });
    let first = next();
    assert_eq!((&first["path"], &first["errno"]), (&"/nothing".into(), &libc::ENOENT.into()), "{first}");
    told.send(()).expect("the thread runs");
    asks.join().expect("it has ended");
    fs::create_dir(mnt.join("dir")).expect("a directory");
    fs::write(mnt.join("dir/file"), "hello").expect("a file");
    fs::rename(mnt.join("dir/file"), mnt.join("moved")).expect("a rename");
    fs::File::open(mnt.join("moved")).and_then(|file| file.lock()).expect("a lock");
    // A process that another test starts at this moment has the descriptors of this one for a while.
    wait_until("the mount is not in use", || place.aze(&["umount", mnt.to_str().expect("UTF-8")]).code == 0);
    let mut seen = Vec::new();
    for line in lines {
        let request: serde_json::Value = serde_json::from_str(&line.expect("text")).expect("JSON");
        assert!(request["took_us"].as_f64().is_some_and(|us| us > 0.0), "{request}");
        if let ("mkdir" | "create" | "write" | "rename" | "setlkw", Some(path)) =
            (request["operation"].as_str().expect("an operation"), request["path"].as_str())
        {
            seen.push(format!("{path} {} {}", request["to"].as_str().unwrap_or("-"), request["bytes"]));
        }
    }
    assert_eq!(seen, ["/dir - null", "/dir/file - null", "/dir/file - 5", "/dir/file /moved null", "/moved - null"]);
    let ended = trace.wait_with_output().expect("it has ended");
    assert!(ended.status.success() && String::from_utf8_lossy(&ended.stderr).contains("the mount has ended"));
    place.aze(&["trace", "1"]).code(3);
    // From the beginning, to its log.
    let mount = |log: &str| -> Ran {
        place.command(&["mount", mnt.to_str().expect("UTF-8")]).env("AZE_LOG", log).output().expect("it runs").into()
    };
    assert!(mount("loud").code(2).err.contains("either problems or trace"));
    mount("trace").ok();
    fs::create_dir(mnt.join("logged")).expect("a directory");
    let log = place.path("run").join(&volume).join(format!("mounts/{}.log", serving(&place, &volume)));
    let has_line = || fs::read_to_string(&log).is_ok_and(|text| text.contains("\tmkdir\t/logged\t"));
    wait_until("the log has it", has_line);
    place.aze(&["umount", mnt.to_str().expect("UTF-8")]).ok();
}
