//! `aze run`: programs that see a volume which is mounted for them alone.

use aze_tests::{Place, Ran, wait_until};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The user and group of the tests in which root is not wanted.
const NOBODY: u32 = 65534;

/// Runs a script of bash under `aze run` with further arguments.
fn bash(place: &Place, args: &[&str], script: &str) -> Ran {
    let mut all = vec!["run"];
    all.extend(args);
    all.extend(["--", "bash", "-c", script]);
    place.aze(&all)
}

/// The words before a program that sees the volume at the directory `vol` of the place, which is made.
fn at_vol(place: &Place) -> [&'static str; 2] {
    fs::create_dir_all(place.path("vol")).expect("a directory");
    ["--at", "vol"]
}

/// The records of the volume's mounts, each with its log.
fn records(place: &Place, volume: &str) -> usize {
    let dir = place.dir.join("run").join(volume).join("mounts");
    fs::read_dir(dir).map_or(0, |entries| entries.filter_map(Result::ok).count())
}

#[test]
fn a_program_sees_the_volume_and_no_other_process_does() {
    // pivot_root(2) is refused in a root directory of chroot(2): there only --at with a directory works.
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    if !mounts.lines().any(|line| line.split(' ').nth(4) == Some("/")) {
        return aze_tests::leave_out("a_program_sees_the_volume_and_no_other_process_does", "/ is no mount point");
    }
    let place = Place::new();
    let volume = place.up(&[]);
    let before = fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts");
    let ran = bash(&place, &[], "echo $AZE_VOLUME; pwd; echo kept > /aze/f; cat /aze/f; ls /tmp | wc -l").ok();
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 4, "{}", ran.out);
    assert_eq!(lines[..3], [volume.as_str(), place.dir.to_str().expect("a path"), "kept"]);
    let in_tmp = fs::read_dir("/tmp").expect("/tmp").count();
    assert!(in_tmp > 0 && lines[3] != "0", "the rest of the file system is there");
    assert_eq!(place.aze(&["cat", "aze:/f"]).ok().out, "kept\n");
    assert!(!Path::new("/aze").exists(), "nothing was made for others");
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").expect("the list of mounts"), before);
    wait_until("the agent has ended", || records(&place, &volume) == 0);
    // At a directory that is there, and read-only.
    let dir = place.path("here");
    fs::create_dir(&dir).expect("a directory");
    let ran = bash(&place, &["--at", "here", "--read-only"], "cat here/f; echo no > here/f");
    assert_eq!((ran.code, ran.out.as_str()), (1, "kept\n"), "{}", ran.err);
    assert!(ran.err.contains("Read-only file system"), "{}", ran.err);
    assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 0, "it is empty for everybody else");
}

#[test]
fn how_the_program_ends_is_how_the_command_ends() {
    let place = Place::new();
    place.up(&[]);
    assert_eq!(bash(&place, &at_vol(&place), "exit 5").code, 5);
    let killed = place.command(&["run", "--at", "vol", "--", "bash", "-c", "kill -TERM $$"]).status().expect("it runs");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&killed), Some(libc::SIGTERM));
    let missing = place.aze(&["run", "--at", "vol", "--", "no-such-program"]).code(127);
    assert!(missing.err.contains("no-such-program"), "{}", missing.err);
    place.aze(&["run", "--at", "vol", "--", "/etc/passwd"]).code(126);
    let nowhere = place.aze(&["run", "--at", "/no/such/place", "--", "true"]).code(3);
    assert!(nowhere.err.contains("make it first"), "{}", nowhere.err);
    place.aze(&["run", "--at", "/etc/passwd", "--", "true"]).code(5);
    place.aze(&["run", "--name", "no-such-volume", "--", "true"]).code(3);
}

#[test]
fn the_volume_stays_until_the_last_process_has_gone() {
    let place = Place::new();
    let volume = place.up(&[]);
    let go = place.path("go");
    // The background process holds neither the output nor the command up.
    let script = format!(
        "(until [ -e {} ]; do read -t 0.05 < <(:) || true; done; echo late > vol/late) >/dev/null 2>&1 &",
        go.display()
    );
    bash(&place, &at_vol(&place), &script).ok();
    let status = place.aze(&["status"]).ok();
    assert!(status.out.contains("for 'aze run'"), "{}", status.out);
    let busy = place.aze(&["down"]).code(6);
    assert!(busy.err.contains("aze run"), "{}", busy.err);
    fs::write(&go, b"").expect("the word to go on");
    wait_until("the agent has ended", || records(&place, &volume) == 0);
    assert_eq!(place.aze(&["cat", "aze:/late"]).ok().out, "late\n");
    place.aze(&["down"]).ok();
}

/// The process that serves the only mount of the volume, as its record says.
fn agent(place: &Place, volume: &str) -> u32 {
    let dir = place.dir.join("run").join(volume).join("mounts");
    let entries = fs::read_dir(dir).expect("mounts are recorded").flatten().map(|entry| entry.path());
    let records: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    let [record] = records.as_slice() else { panic!("one mount, not {records:?}") };
    record.file_stem().and_then(|pid| pid.to_str()?.parse().ok()).expect("the record has the number of the process")
}

/// Whether a process is in clock_nanosleep(2): proc_pid_syscall(5).
fn is_asleep(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.split(' ').next() == Some(&libc::SYS_clock_nanosleep.to_string())
}

/// A command that came right after `aze run` found the process that served its mount, which ends a moment after the
/// program, and took the volume for one in use.
#[test]
fn a_volume_goes_down_right_after_its_last_program_has_ended() {
    let place = Place::new();
    let volume = place.up(&[]);
    let mut run = place
        .command(&["run", "--at", at_vol(&place)[1], "--", "bash", "-c", "echo; read"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("aze starts");
    let mut line = [0];
    run.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("the program runs");
    let busy = place.aze(&["down"]).code(6);
    assert!(busy.err.contains(&format!("'aze run' of process {}", run.id())), "{}", busy.err);
    let agent = agent(&place, &volume);
    aze_tests::signal(agent, libc::SIGSTOP);
    // The end of its input ends the program; nothing but the process that was stopped is left then.
    run.wait().expect("the program ends");
    let mut down = place.command(&["down"]).stderr(Stdio::piped()).spawn().expect("aze starts");
    let mut early = None;
    wait_until("it sleeps between two looks, or has ended", || {
        early = down.try_wait().expect("a child");
        early.is_some() || is_asleep(down.id())
    });
    aze_tests::signal(agent, libc::SIGCONT);
    let down = Ran::from(down.wait_with_output().expect("it ends")).ok();
    assert_eq!(early, None, "it waited for the process that serves the mount: {}", down.err);
    assert!(!place.dir.join("run").join(&volume).exists(), "{}", down.err);
}

#[test]
fn a_volume_that_is_forced_down_leaves_no_program_waiting() {
    let place = Place::new();
    place.up(&[]);
    let ready = place.path("ready");
    at_vol(&place);
    let script = format!("exec 3> vol/f; : > {}; while echo x >&3; do :; done; exit 9", ready.display());
    let mut running = place
        .command(&["run", "--at", "vol", "--", "bash", "-c", &script])
        .stderr(Stdio::null())
        .spawn()
        .expect("aze starts");
    wait_until("the program writes", || ready.exists());
    place.aze(&["down", "--force"]).ok();
    let mut ended = None;
    wait_until("the program is told", || {
        ended = running.try_wait().expect("a child");
        ended.is_some()
    });
    assert_eq!(ended.and_then(|status| status.code()), Some(9));
}

/// Runs the program as a user without any right.
fn as_nobody(place: &Place, program: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(program);
    command.args(args).env("AZE_RUN_DIR", place.path("nobody")).env_remove("AZE_VOLUME").env_remove("XDG_RUNTIME_DIR");
    // Where fusermount3 is not found: it is not needed.
    command.env("PATH", "/nowhere").current_dir(&place.dir).stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
    command.output().expect("aze starts").into()
}

/// Takes the volume of the other user down, and closes the device again.
struct Nobody<'a>(&'a Place, PathBuf, fs::Permissions);

impl Drop for Nobody<'_> {
    fn drop(&mut self) {
        as_nobody(self.0, &self.1, &["down", "--force"]);
        fs::set_permissions("/dev/fuse", self.2.clone()).expect("the device as it was");
    }
}

#[test]
fn run_needs_neither_root_nor_a_helper() {
    let place = Place::new();
    let program = place.program_for_all();
    at_vol(&place);
    fs::create_dir(place.path("nobody")).expect("a run directory");
    chown(place.path("nobody"), Some(NOBODY), Some(NOBODY)).expect("tests of other users run as root");
    fs::set_permissions(place.path("nobody"), fs::Permissions::from_mode(0o700)).expect("a mode");
    let before = fs::metadata("/dev/fuse").expect("FUSE is needed for this test").permissions();
    let closed = before.mode() & 0o006 != 0o006;
    let nobody = Nobody(&place, program, before);
    let aze = |args: &[&str]| as_nobody(&place, &nobody.1, args);
    aze(&["up", "--servers", "2", "--size", "512M"]).ok();
    if closed {
        let refused = aze(&["run", "--at", "vol", "--", "/bin/true"]).code(4);
        assert!(refused.err.contains("chmod 666 /dev/fuse"), "{}", refused.err);
    }
    // As udev sets it where it runs; this machine may do without udev.
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).expect("a mode");
    let script = "PATH=/usr/bin:/bin; set -e; id -u; mkdir vol/d; echo one > vol/d/f; mv vol/d/f vol/g; \
                  chmod 640 vol/g; ln vol/g vol/h; cp /etc/passwd vol/d; truncate -s 2 vol/h; stat -c %u:%g:%a:%s vol/g";
    let ran = aze(&["run", "--at", "vol", "--", "/bin/bash", "-c", script]).ok();
    assert_eq!(ran.out, format!("{NOBODY}\n{NOBODY}:{NOBODY}:640:2\n"));
    assert_eq!(aze(&["cat", "aze:/g"]).ok().out, "on");
    aze(&["down", "--force"]).ok();
}
