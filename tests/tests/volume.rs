//! A volume from `aze up` to `aze down` on the real program: what a user of one machine relies on.

use aze_tests::{Place, Ran, make_tree, run, set_mode, wait_until, watchdog};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Servers of a volume, as `aze status --json` tells them.
fn servers(place: &Place, name: &str) -> Vec<serde_json::Value> {
    let status = place.aze(&["status", "--name", name, "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("status is JSON");
    status["servers"].as_array().expect("servers").clone()
}

fn pids(place: &Place, name: &str) -> Vec<u32> {
    servers(place, name).iter().map(|server| server["pid"].as_u64().expect("a pid") as u32).collect()
}

fn is_alive(pid: u32) -> bool {
    // A zombie has no command line.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn kill(pid: u32) {
    aze_tests::signal(pid, libc::SIGKILL);
}

/// What a volume must not leave behind.
fn traces(place: &Place) -> BTreeSet<String> {
    let mut traces = BTreeSet::new();
    let root = place.dir.to_string_lossy().into_owned();
    for line in fs::read_to_string("/proc/mounts").expect("mounts").lines().filter(|line| line.contains(&root)) {
        traces.insert(format!("mount {line}"));
    }
    for line in fs::read_to_string("/proc/net/unix").expect("sockets").lines().filter(|line| line.contains(&root)) {
        let path = line.split_whitespace().last().unwrap_or_default();
        traces.insert(format!("socket {path}"));
    }
    for entry in fs::read_dir("/proc").expect("processes").flatten() {
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let here = String::from_utf8_lossy(&environ).contains(&root) || String::from_utf8_lossy(&line).contains(&root);
        if here && entry.file_name().to_string_lossy() != std::process::id().to_string() {
            traces.insert(format!("process {}", String::from_utf8_lossy(&line)));
        }
    }
    for entry in fs::read_dir("/dev/shm").expect("shared memory").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains("aze") {
            traces.insert(format!("shared memory {name}"));
        }
    }
    for entry in fs::read_dir(place.dir.join("run")).expect("the run directory").flatten() {
        traces.insert(format!("folder {}", entry.path().display()));
    }
    traces
}

#[test]
fn up_prints_one_line_and_down_leaves_nothing() {
    let mut place = Place::new();
    let before = traces(&place);
    let name = place.up(&[]);
    assert_eq!(pids(&place, &name).len(), 4, "four servers are the default");
    let mnt = place.mount();
    fs::write(mnt.join("file"), "hello").expect("a write through the mount");
    assert_ne!(traces(&place), before);
    place.aze(&["umount", mnt.to_str().expect("a path")]).ok();
    let pids = pids(&place, &name);
    place.aze(&["down"]).ok();
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "servers are gone when 'aze down' returns");
    assert_eq!(traces(&place), before);
}

/// Every client on the node takes some descriptors of a server, and the usual soft limit is 1,024.
#[test]
fn servers_may_open_as_many_files_as_the_system_allows() {
    use std::os::unix::process::CommandExt;
    let place = Place::new();
    let mut up = place.command(&["up", "--name", "narrow", "--servers", "1"]);
    let limit = |soft: &mut libc::rlimit| {
        // SAFETY: `soft` lives until the call returns.
        (unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, soft) }, soft.rlim_max)
    };
    let mut mine = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let (_, allowed) = limit(&mut mine);
    let narrow = libc::rlimit { rlim_cur: 100, rlim_max: allowed };
    // SAFETY: between fork and exec only setrlimit(2) is called, with a copy of two numbers.
    unsafe {
        up.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &narrow) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    run(&mut up);
    let pid = pids(&place, "narrow")[0];
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits of a server");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit of open files");
    let numbers: Vec<u64> = files.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers, [allowed, allowed], "{files}");
}

#[test]
fn files_go_in_and_out_equal_by_every_way() {
    let mut place = Place::new();
    place.up(&[]);
    let mnt = place.mount();
    let tree = place.path("tree");
    make_tree(&tree, 400);
    place.aze(&["cp", "-r", "-p", tree.to_str().expect("a path"), "aze:/by-aze"]).ok();
    run(Command::new("cp").arg("-a").arg(&tree).arg(mnt.join("by-cp")));
    for copy in ["by-aze", "by-cp"] {
        run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(mnt.join(copy)));
    }
    let mut list = Command::new("rsync");
    list.args(["-a", "--dry-run", "--itemize-changes", "--checksum", "--omit-dir-times"]);
    let differences = run(list.arg(format!("{}/", tree.display())).arg(format!("{}/", mnt.join("by-cp").display())));
    assert_eq!(differences.out, "", "modes, owners, times and links as cp -a left them");
    place.aze(&["cp", "-r", "-p", "aze:/by-cp", place.path("back").to_str().expect("a path")]).ok();
    run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(place.path("back")));
}

/// The time of a directory is that of the last change of a name in it, whichever servers have the names.
#[test]
fn a_copy_that_keeps_times_keeps_those_of_directories() {
    let place = Place::new();
    place.up(&["--servers", "3"]);
    place.aze(&["mkdir", "-p", "aze:/d/below"]).ok();
    let names: Vec<String> = (0..9).map(|index| format!("aze:/d/f{index}")).collect();
    place.aze(&[&["touch"], &*names.iter().map(String::as_str).collect::<Vec<_>>()].concat()).ok();
    place.aze(&["touch", "aze:/d/below/file"]).ok();
    place.aze(&["cp", "-r", "-p", "aze:/d", "back"]).ok();
    place.aze(&["cp", "-r", "-p", "back", "aze:/again"]).ok();
    place.aze(&["cp", "-r", "-p", "aze:/again", "back-again"]).ok();
    for (dir, name) in [("aze:/d", ""), ("aze:/d/below", "/below")] {
        let told = place.aze(&["stat", "--json", dir]).ok().out;
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let time = |back: &str| {
            let mut date = Command::new("date");
            run(date.args(["-u", "+%Y-%m-%dT%H:%M:%S.%NZ", "-r"]).arg(place.path(&format!("{back}{name}"))))
                .out
                .trim()
                .to_owned()
        };
        assert_eq!([time("back"), time("back-again")], [told["mtime"].as_str().expect("a time"); 2], "{dir}: {told}");
    }
}

#[test]
fn checksums_agree_between_a_volume_and_a_local_tree() {
    let place = Place::new();
    place.up(&[]);
    let tree = place.path("tree");
    make_tree(&tree, 60);
    place.aze(&["cp", "-r", "tree", "aze:/tree"]).ok();
    let strip = |ran: Ran, prefix: &str| {
        let mut lines: Vec<String> = ran.out.lines().map(|line| line.replace(prefix, "")).collect();
        lines.sort();
        lines
    };
    let local = strip(place.aze(&["checksum", "-r", "tree"]).ok(), "tree/");
    let stored = strip(place.aze(&["checksum", "-r", "aze:/tree"]).ok(), "aze:/tree/");
    assert_eq!(local.len(), 60);
    assert_eq!(local, stored);
}

/// They had no line, and no word was said of them.
#[test]
fn checksums_of_streams_are_of_what_comes_and_a_fifo_of_a_volume_has_none() {
    let mut place = Place::new();
    place.up(&[]);
    fs::write(place.path("file"), "contents").expect("a file");
    let sum = |ran: Ran| ran.ok().out.split(' ').next().map(str::to_owned).expect("a sum");
    let expected = sum(place.aze(&["checksum", "file"]));
    let piped = |words: &str| {
        let mut shell = Command::new("sh");
        let aze = place.command(&[] as &[&str]);
        shell.args(["-c", &format!("cat file | \"$0\" {words}")]).arg(aze.get_program());
        shell.envs(aze.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(&place.dir);
        Ran::from(shell.output().expect("sh starts"))
    };
    assert_eq!(sum(piped("checksum /dev/stdin")), expected);
    assert_eq!(piped("cat /dev/stdin").ok().out, "contents");
    fs::write(place.path("list"), format!("{expected}  /dev/stdin\n")).expect("a file");
    assert_eq!(piped("checksum --check list").ok().out, "/dev/stdin: OK\n");
    let mount = place.mount();
    fs::create_dir(mount.join("d")).expect("a directory");
    run(Command::new("mkfifo").arg(mount.join("d/fifo")));
    for command in ["checksum", "cat"] {
        let ran = place.aze(&[command, "aze:/d/fifo"]).code(5);
        assert!(ran.out.is_empty() && ran.err.contains("aze:/d/fifo: it is a FIFO"), "{command}: {}", ran.err);
    }
    assert_eq!(place.aze(&["checksum", "-r", "aze:/d"]).ok().out, "");
}

#[test]
fn commands_do_what_their_namesakes_do() {
    let place = Place::new();
    place.up(&[]);
    fs::write(place.path("a"), "alpha\n").expect("a file");
    place.aze(&["mkdir", "-p", "aze:/x/y"]).ok();
    place.aze(&["cp", "a", "aze:/x/a"]).ok();
    assert_eq!(place.aze(&["cat", "aze:/x/a"]).ok().out, "alpha\n");
    place.aze(&["mv", "aze:/x/a", "aze:/x/y/b"]).ok();
    place.aze(&["ln", "aze:/x/y/b", "aze:/x/hard"]).ok();
    place.aze(&["ln", "-s", "y/b", "aze:/x/soft"]).ok();
    assert_eq!(place.aze(&["cat", "aze:/x/soft"]).ok().out, "alpha\n");
    place.aze(&["touch", "aze:/x/empty"]).ok();
    let listed = place.aze(&["ls", "aze:/x"]).ok().out;
    assert_eq!(listed.split_whitespace().collect::<BTreeSet<_>>(), BTreeSet::from(["empty", "hard", "soft", "y"]));
    assert_eq!(place.aze(&["find", "aze:/", "-type", "f", "--count"]).ok().out.trim(), "3");
    place.aze(&["rm", "aze:/x/y/b"]).ok();
    assert_eq!(place.aze(&["cat", "aze:/x/hard"]).ok().out, "alpha\n");
    place.aze(&["rmdir", "aze:/x"]).code(5);
    place.aze(&["rm", "-r", "aze:/x"]).ok();
    place.aze(&["stat", "aze:/x"]).code(3);
}

#[test]
fn errors_have_a_class_and_say_what_to_do() {
    let place = Place::new();
    let none = place.aze(&["ls", "aze:/"]);
    assert_eq!(none.code, 3, "{}", none.err);
    assert!(none.err.contains("aze up"), "{}", none.err);
    assert_eq!(place.aze(&["frobnicate"]).code, 2);
    assert_eq!(place.aze(&["up", "--placement", "local"]).code, 2, "what does not exist is not accepted");
    place.up(&["--name", "one"]);
    let again = place.aze(&["up", "--name", "one"]);
    assert_eq!(again.code, 5, "{}", again.err);
    assert_eq!(place.aze(&["cat", "aze:/nothing"]).code, 3);
    assert_eq!(place.aze(&["mkdir", "aze:/"]).code, 5);
    assert_eq!(place.aze(&["cp", "/nonexistent", "aze:/x"]).code, 3);
}

#[test]
fn a_server_that_cannot_start_says_why_on_the_terminal() {
    let place = Place::new();
    let failed = place.aze(&["up", "--hosts", "a,b", "--launcher", "sh -c 'echo no-such-node-{host} >&2; exit 3' --"]);
    assert_ne!(failed.code, 0);
    assert!(failed.err.contains("no-such-node-a"), "{}", failed.err);
    assert_eq!(fs::read_dir(place.dir.join("run")).expect("the run directory").count(), 0, "nothing is left of it");
}

#[test]
fn a_failed_start_fails_the_job_script_and_servers_are_steps_of_a_slurm_job() {
    let place = Place::new();
    let tools = place.path("tools");
    fs::create_dir(&tools).expect("a directory");
    let srun = tools.join("srun");
    fs::write(&srun, "#!/bin/sh\necho \"srun was given $*\" >&2\nexit 3\n").expect("a script");
    set_mode(&srun, 0o755);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").expect("PATH is set"));
    let mut up = place.command(&["up", "--hosts", "n1,n2"]);
    let failed = Ran::from(up.env("PATH", &path).env("SLURM_JOB_ID", "7").output().expect("aze starts"));
    assert!(failed.code != 0 && failed.out == "false\n", "{} {}", failed.code, failed.out);
    assert!(
        failed.err.contains("srun was given --overlap --mem=0") && failed.err.contains("--nodelist=n1"),
        "{}",
        failed.err
    );
    // As in a job script.
    let script = r#"set -e; eval "$("$0" up --hosts n1 --launcher 'false {host}' 2>/dev/null)"; echo went on"#;
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).arg(aze_tests::program()).env("AZE_RUN_DIR", place.dir.join("run"));
    let ran = Ran::from(shell.env_remove("AZE_VOLUME").output().expect("bash runs"));
    assert!(ran.code != 0 && ran.out.is_empty(), "{} {}", ran.code, ran.out);
}

#[test]
fn cat_of_a_directory_is_an_error_and_help_knows_commands_of_several_words() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    place.aze(&["mkdir", "aze:/d"]).ok();
    for dir in ["aze:/d", "aze:/", "/tmp"] {
        let refused = place.aze(&["cat", dir]).code(5);
        assert!(refused.err.contains("is a directory"), "{}", refused.err);
    }
    assert!(place.aze(&["help", "bench", "iops"]).ok().out.contains("--target"));
    place.aze(&["help", "bench", "nonsense"]).code(2);
}

#[test]
fn several_volumes_of_several_users_live_side_by_side() {
    let place = Place::new();
    let (one, two) = (place.up(&["--name", "one", "--servers", "1"]), place.up(&["--name", "two", "--servers", "2"]));
    let ambiguous = place.aze(&["ls", "aze:/"]);
    assert!(ambiguous.code != 0 && ambiguous.err.contains("one") && ambiguous.err.contains("two"), "{}", ambiguous.err);
    place.aze(&["touch", "aze://one/here"]).ok();
    place.aze(&["stat", "aze://one/here"]).ok();
    place.aze(&["stat", "aze://two/here"]).code(3);
    assert_eq!((servers(&place, &one).len(), servers(&place, &two).len()), (1, 2));
}

/// Runs `aze` as user nobody, with a run directory of its own.
fn as_nobody(place: &Place, args: &[&str]) -> Ran {
    let run_dir = place.path("nobody");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(place.path("aze-for-all")).args(args);
    command
        .env("HOME", &run_dir)
        .env("AZE_RUN_DIR", &run_dir)
        .env_remove("AZE_VOLUME")
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/");
    command.stdin(Stdio::null()).output().expect("setpriv runs").into()
}

/// Each command counted for an hour after its end.
#[test]
fn commands_that_have_ended_are_no_sessions() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let sessions = || {
        let ran = place.aze(&["status", "--json"]).ok();
        let status: serde_json::Value = serde_json::from_str(&ran.out).expect("status is JSON");
        status["servers"][0]["sessions"].as_u64().unwrap_or_else(|| panic!("no number of sessions in {status}"))
    };
    wait_until("only the command that asks is there", || sessions() == 1);
    for _ in 0..5 {
        place.aze(&["ls", "aze:/"]).ok();
    }
    wait_until("only the command that asks is there", || sessions() == 1);
}

#[test]
fn one_command_ends_all_volumes_of_a_user_on_a_node() {
    let mut place = Place::new();
    place.up(&["--name", "one", "--servers", "2"]);
    let killed = place.mount_with(&["--name", "one"]);
    place.up(&["--name", "two", "--servers", "1"]);
    let used = place.mount_with(&["--name", "two"]);
    let _open = fs::File::create(used.join("f")).expect("a file in use");
    // SAFETY: no memory is involved; the process was started by this test.
    unsafe { libc::kill(place.serving(&killed) as i32, libc::SIGKILL) };
    wait_until("the mount is dead", || fs::metadata(&killed).is_err());
    // It used to forget the dead mount.
    place.aze(&["status", "--name", "one"]).ok();
    place.aze(&["down", "--all", "--this-node"]).ok();
    wait_until("no process is left", || watchdog::of_volumes(&place.dir).is_empty());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the mounts");
    assert!(!mounts.contains(place.dir.to_str().expect("a path")), "{mounts}");
    assert_eq!(fs::read_dir(place.path("run")).expect("the run directory").count(), 0);
    assert!(place.aze(&["down", "--all"]).ok().err.contains("nothing to end"));
}

#[test]
fn root_ends_the_volumes_of_a_user_whose_job_has_left_them() {
    let place = Place::new();
    let _nobody = Nobody::new(&place);
    let run_dir = place.path("nobody");
    as_nobody(&place, &["up", "--name", "theirs", "--servers", "2", "--size", "256M"]).ok();
    as_nobody(&place, &["down", "--all", "--user", "root"]).code(4);
    let mut epilog = place.command(&["down", "--all", "--this-node", "--user", "65534"]);
    aze_tests::run(epilog.env("AZE_RUN_DIR", &run_dir)).ok();
    wait_until("no server is left", || watchdog::of_volumes(&place.dir).is_empty());
    assert_eq!(fs::read_dir(&run_dir).expect("the run directory").count(), 0);
}

/// The user `nobody`, with a run directory; takes that user's volumes down, also when a test fails.
struct Nobody<'a>(&'a Place);

impl Nobody<'_> {
    fn new(place: &Place) -> Nobody<'_> {
        let run_dir = place.path("nobody");
        fs::create_dir(&run_dir).expect("a run directory");
        std::os::unix::fs::chown(&run_dir, Some(65534), Some(65534)).expect("tests of other users run as root");
        set_mode(&run_dir, 0o700);
        place.program_for_all();
        Nobody(place)
    }
}

impl Drop for Nobody<'_> {
    fn drop(&mut self) {
        as_nobody(self.0, &["down", "--force"]);
    }
}

#[test]
fn another_user_needs_no_root_and_sees_nothing_of_ours() {
    let place = Place::new();
    let _nobody = Nobody::new(&place);
    place.up(&["--name", "ours"]);
    place.aze(&["touch", "aze:/ours"]).ok();
    as_nobody(&place, &["ls", "aze://ours/"]).code(3);
    as_nobody(&place, &["up", "--name", "theirs", "--servers", "2", "--size", "1G"]).ok();
    as_nobody(&place, &["touch", "aze:/theirs"]).ok();
    let listed = as_nobody(&place, &["ls", "-l", "aze:/"]).ok();
    assert!(listed.out.contains("theirs") && !listed.out.contains("root"), "{}", listed.out);
    let mnt = place.path("mnt-nobody");
    fs::create_dir(&mnt).expect("a directory");
    std::os::unix::fs::chown(&mnt, Some(65534), Some(65534)).expect("an owner");
    let mnt = mnt.to_str().expect("a path");
    let device = Path::new("/dev/fuse");
    let before = fs::metadata(device).expect("FUSE is needed for this test").permissions();
    // As udev sets it where it runs; this machine may do without udev.
    set_mode(device, 0o666);
    let mounted = as_nobody(&place, &["mount", mnt]);
    let umounted = as_nobody(&place, &["umount", mnt]);
    fs::set_permissions(device, before).expect("the device as it was");
    mounted.ok();
    umounted.ok();
    as_nobody(&place, &["down"]).ok();
}

/// 'aze down' called it lost, and the volume damaged.
#[test]
fn a_directory_closed_to_its_user_is_not_lost() {
    let place = Place::new();
    let _nobody = Nobody::new(&place);
    let out = place.path("nobody/out").display().to_string();
    as_nobody(&place, &["up", "--name", "theirs", "--servers", "2", "--size", "1G", "--stage-out", &out]).ok();
    as_nobody(&place, &["mkdir", "-m", "000", "aze:/shut"]).ok();
    for words in [&["down"][..], &["stage", "status", "aze:/"]] {
        let ran = as_nobody(&place, words).code(4);
        let told = [ran.out, ran.err].concat();
        let is_it = |line: &str| {
            line.starts_with("closed  ") && line.contains("/shut: ") && line.ends_with("permission denied")
        };
        assert!(told.lines().any(is_it) && !told.contains("lost"), "{told}");
    }
    as_nobody(&place, &["ls", "aze:/"]).ok();
    as_nobody(&place, &["down", "--discard"]).ok();
}

#[test]
fn more_memory_than_the_node_has_is_refused() {
    let place = Place::new();
    let ran = place.aze(&["up", "--name", "v", "--size", "100T"]).code(5);
    for part in ["100 TiB for 4 servers", " free, ", "cgroup"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    assert!(!place.path("run/v").exists(), "nothing is left of it");
    let ran = place.aze(&["up", "--name", "v", "--servers", "1"]).ok();
    assert!(ran.err.contains(" free, "), "{}", ran.err);
}

#[test]
fn a_record_that_was_cut_short_says_what_to_do() {
    let place = Place::new();
    let name = place.up(&["--servers", "1"]);
    let (dir, record) = (place.path("run").join(&name), place.path("run").join(&name).join("volume.json"));
    let whole = fs::read(&record).expect("a record");
    fs::write(&record, &whole[..whole.len() / 2]).expect("half a record");
    let refused = place.aze(&["ls", "aze:/"]).code(7);
    for part in [&*record.display().to_string(), "copy volume.json", &format!("remove {}", dir.display())] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    fs::write(&record, whole).expect("the record");
    place.aze(&["ls", "aze:/"]).ok();
}

#[test]
fn without_the_secret_nobody_is_let_in() {
    let place = Place::new();
    let name = place.up(&["--transport", "tcp"]);
    let secret = place.dir.join("run").join(&name).join("secret");
    let right = fs::read_to_string(&secret).expect("the secret");
    let wrong: String =
        right.chars().map(|c| if c == 'a' { 'b' } else { 'a' }).filter(|c| !c.is_whitespace()).collect();
    fs::write(&secret, &wrong[..64]).expect("a wrong secret");
    let refused = place.aze(&["ls", "aze:/"]).code(4);
    assert!(refused.err.contains("this is not the secret of this volume"), "{}", refused.err);
    // A program that does not compare the two finds out from the server's silence, in bounded time.
    let record = place.dir.join("run").join(&name).join("volume.json");
    let checked = fs::read_to_string(&record).expect("the record");
    fs::write(&record, checked.replace("\"secret_check\"", "\"unknown\"")).expect("a record without the check");
    let refused = place.aze(&["ls", "aze:/"]).code(6);
    assert!(refused.err.contains("check that both ends have the same secret"), "{}", refused.err);
    fs::write(&record, checked).expect("the record again");
    set_mode(&secret, 0o644);
    fs::write(&secret, right).expect("the secret again");
    let readable = place.aze(&["ls", "aze:/"]);
    assert_eq!(readable.code, 4, "a secret that others can read is refused: {}", readable.err);
    set_mode(&secret, 0o600);
    place.aze(&["ls", "aze:/"]).ok();
}

/// Kills one of four servers under a mount; looks at the files of the others through the mount and by commands.
fn what_is_left_without(dead: usize) {
    const FILES: usize = 40;
    let mut place = Place::new();
    let name = place.up(&[]);
    let mnt = place.mount();
    fs::create_dir(mnt.join("d")).expect("a directory");
    for index in 0..FILES {
        fs::write(mnt.join(format!("f{index}")), index.to_string()).expect("a write");
    }
    kill(pids(&place, &name)[dead]);
    let started = Instant::now();
    // A listing of the mount has the names that are left, and then an error: it is never short without one.
    let mut left = Vec::new();
    let mut end = None;
    for entry in fs::read_dir(&mnt).expect("the directory opens") {
        match entry {
            Ok(entry) => left.push(entry.file_name().into_string().expect("a name in UTF-8")),
            Err(error) => end = error.raw_os_error(),
        }
    }
    // A request that was in flight when the server died may end only by its timeout.
    assert!(matches!(end, Some(libc::EIO | libc::ETIMEDOUT)), "{end:?}");
    left.retain(|name| name.starts_with('f'));
    left.sort();
    assert!((FILES / 2..FILES).contains(&left.len()), "{} of {FILES} are left", left.len());
    for name in &left {
        assert_eq!(fs::read_to_string(mnt.join(name)).expect("a file of a living server"), name[1..], "{name}");
    }
    let lost = (0..FILES).map(|index| format!("f{index}")).find(|name| !left.contains(name));
    let error = fs::read(mnt.join(lost.expect("some are lost"))).expect_err("a file of the dead server");
    assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{error}");
    // Files of living servers can be changed and made.
    fs::write(mnt.join(&left[0]), "new").expect("a file of a living server is written");
    fs::remove_file(mnt.join(&left[1])).expect("and removed");
    let made = (0..FILES).filter(|index| fs::write(mnt.join(format!("g{index}")), "g").is_ok()).take(3).count();
    assert_eq!(made, 3, "new names fall to living servers, too");
    assert_eq!(place.aze(&["cat", &format!("aze:/{}", left[2])]).ok().out, left[2][1..]);
    by_command(&place, dead, &left);
    assert!(started.elapsed() < Duration::from_secs(100), "errors come in bounded time: {:?}", started.elapsed());
    let mnt = mnt.to_str().expect("a path").to_string();
    place.aze(&["umount", &mnt]).ok();
    place.aze(&["down"]).ok();
}

/// What commands see of the root directory, also without its home, server 0. `left` are the files left on the mount; since then the first was written and the second removed.
fn by_command(place: &Place, dead: usize, left: &[String]) {
    let out = place.path("out");
    let lines: [&[&str]; 4] = [
        &["ls", "aze:/"],
        &["find", "aze:/", "-name", "f*"],
        &["du", "-s", "aze:/"],
        &["cp", "-r", "aze:/", out.to_str().expect("a path")],
    ];
    // Each waits for the dead server as long as it may be starting again: side by side.
    let started = lines.map(|line| {
        let mut command = place.command(line);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("aze starts")
    });
    let [listed, found, summed, copied] = started.map(|child| Ran::from(child.wait_with_output().expect("it ends")));
    for ran in [&listed, &found, &summed, &copied] {
        assert!(ran.code != 0 && ran.err.contains(&format!("server {dead}")), "{} {}", ran.code, ran.err);
    }
    // The names that are left, and an error.
    let names: Vec<&str> = listed.out.lines().filter(|name| name.starts_with('f')).collect();
    let expected: Vec<&str> = left.iter().map(String::as_str).filter(|name| *name != left[1]).collect();
    assert_eq!(names, expected);
    assert_eq!(found.out.lines().count(), expected.len(), "{}", found.out);
    assert_eq!(summed.out.lines().count(), 1, "{}", summed.out);
    // And the files that are left can be copied out.
    let saved = fs::read_dir(&out).expect("the copy").filter_map(Result::ok);
    assert_eq!(saved.filter(|entry| entry.file_name().to_string_lossy().starts_with('f')).count(), expected.len());
    assert_eq!(fs::read_to_string(out.join(&left[0])).expect("a copy"), "new");
}

#[test]
fn a_dead_server_costs_its_own_part_and_nothing_else() {
    what_is_left_without(2);
}

#[test]
fn the_home_of_the_root_costs_its_own_part_and_nothing_else() {
    what_is_left_without(0);
}

/// What all servers are told of (renames of directories, loss of rights, truncation) goes on without a server whose
/// process has ended.
#[test]
fn a_server_that_has_ended_is_left_out_of_what_all_are_told() {
    const COUNT: usize = 24;
    let mut place = Place::new();
    let name = place.up(&[]);
    let mnt = place.mount();
    for index in 0..COUNT {
        // Each below a parent of its own: the kernel renames one name of a directory at a time.
        fs::create_dir_all(mnt.join(format!("p{index}/d"))).expect("a directory");
        fs::write(mnt.join(format!("w{index}")), vec![7; 4 << 20]).expect("a file of several chunks");
    }
    // Each of these needs one to three servers besides, those of the names, the directory's, the file's: side by side,
    // since what needs the dead server waits for it for a moment.
    let each = |work: &(dyn Fn(usize) -> bool + Sync)| -> Vec<usize> {
        std::thread::scope(|scope| {
            let tries: Vec<_> = (0..COUNT).map(|index| (index, scope.spawn(move || work(index)))).collect();
            tries.into_iter().filter_map(|(index, done)| done.join().expect("no panic").then_some(index)).collect()
        })
    };
    let at = |index: usize, name: &str| mnt.join(format!("p{index}/{name}"));
    let rename = |from: &'static str, to: &'static str| move |index| fs::rename(at(index, from), at(index, to)).is_ok();
    kill(pids(&place, &name)[2]);
    wait_until("directories are renamed again", || !each(&rename("d", "e")).is_empty());
    let moved = each(&rename("e", "f"));
    assert!(!moved.is_empty(), "and again");
    assert!(
        moved.iter().all(|index| at(*index, "f").exists() && !at(*index, "e").exists()),
        "one name of each is left"
    );
    let closed = each(&|index| fs::set_permissions(at(index, "f"), fs::Permissions::from_mode(0o700)).is_ok());
    assert!(!closed.is_empty(), "rights are taken");
    let options = fs::File::options().write(true).truncate(true).clone();
    let emptied = each(&|index| options.open(mnt.join(format!("w{index}"))).is_ok());
    assert!(emptied.len() >= COUNT / 3, "files of several chunks are emptied: {emptied:?}");
}

#[test]
fn an_idle_volume_uses_no_processor() {
    let mut place = Place::new();
    let name = place.up(&[]);
    place.mount();
    let ticks = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a server runs");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        fields[11].parse::<u64>().expect("user ticks") + fields[12].parse::<u64>().expect("system ticks")
    };
    let pids = pids(&place, &name);
    // Memory is faulted in ahead in the background first.
    let mut last = 0;
    let mut quiet_since = Instant::now();
    wait_until("a second passes in which no server works", || {
        let now: u64 = pids.iter().map(|pid| ticks(*pid)).sum();
        if now != last {
            (last, quiet_since) = (now, Instant::now());
        }
        quiet_since.elapsed() > Duration::from_secs(1)
    });
}

/// How often servers have been asked something, all of them together.
fn requests(place: &Place, name: &str, kind: &str) -> u64 {
    servers(place, name).iter().map(|server| server["requests"][kind].as_u64().unwrap_or(0)).sum()
}

#[test]
fn changes_through_a_mount_do_not_ask_for_the_directory_every_time() {
    let mut place = Place::new();
    let name = place.up(&[]);
    let mnt = place.mount();
    fs::create_dir(mnt.join("d")).expect("a directory");
    let before = requests(&place, &name, "GetAttr") + requests(&place, &name, "Fragment");
    for index in 0..300 {
        let modified = fs::metadata(mnt.join("d")).and_then(|data| data.modified()).expect("a time");
        fs::write(mnt.join(format!("d/f{index}")), "").expect("a file");
        let now = fs::metadata(mnt.join("d")).and_then(|data| data.modified()).expect("a time");
        assert!(now > modified, "one's own change shows at once");
    }
    for index in 0..300 {
        fs::remove_file(mnt.join(format!("d/f{index}"))).expect("removal");
    }
    assert_eq!(fs::read_dir(mnt.join("d")).expect("a listing").count(), 0);
    assert!(requests(&place, &name, "Create") >= 300, "requests are counted");
    let asked = requests(&place, &name, "GetAttr") + requests(&place, &name, "Fragment") - before;
    assert!(asked < 150, "{asked} requests for the attributes of one directory in 600 changes");
}

/// A volume ends with the process that it was started for, its mount too, however that process ends.
#[test]
fn a_volume_ends_with_the_process_that_is_named() {
    let place = Place::new();
    let mut job = Command::new("sleep").arg("1000").spawn().expect("a process");
    let pid = job.id().to_string();
    place.aze(&["up", "--servers", "2", "--size", "1G", "--pid", &pid]).ok();
    fs::create_dir(place.path("mnt")).expect("a directory");
    place.aze(&["mount", "mnt"]).ok();
    place.aze(&["cp", "/etc/os-release", "mnt/file"]).ok();
    job.kill().and_then(|()| job.wait()).expect("it can be killed");
    let run = place.path("run");
    wait_until("the volume is gone", || fs::read_dir(&run).expect("a run directory").count() == 0);
    assert_eq!(fs::read_dir(place.path("mnt")).expect("a directory").count(), 0, "nothing is mounted");
    let gone = place.aze(&["up", "--pid", &pid]).code(3);
    assert!(gone.err.contains("no such process"), "{}", gone.err);
    assert_eq!(gone.out, "false\n");
}

/// A batch system signals servers and their starter in any order: nothing is left. Where only servers are signalled,
/// what others need of the volume stays.
#[test]
fn servers_end_by_a_signal() {
    let place = Place::new();
    let mut job = Command::new("sleep").arg("1000").spawn().expect("a process");
    let pid = job.id().to_string();
    let end_servers = |more: &[&str]| {
        place.aze(&[&["up", "--name", "v", "--servers", "2", "--size", "1G"], more].concat()).ok();
        let pids = pids(&place, "v");
        assert_eq!(pids.len(), 2);
        for (index, pid) in pids.iter().enumerate() {
            let log = place.path(&format!("run/v/server-{index}.log"));
            aze_tests::signal(*pid, libc::SIGTERM);
            wait_until("the server minds the signal", || {
                fs::read_to_string(&log).is_ok_and(|text| text.contains("ending by signal 15"))
            });
            // Batch systems send several.
            aze_tests::signal(*pid, libc::SIGTERM);
        }
        pids
    };
    let servers = end_servers(&["--pid", &pid]);
    assert!(place.path("run/v/volume.json").exists());
    job.kill().and_then(|()| job.wait()).expect("it can be killed");
    let run = place.path("run");
    wait_until("the volume is gone", || fs::read_dir(&run).expect("a run directory").count() == 0);
    wait_until("the servers have ended", || servers.iter().all(|pid| !is_alive(*pid)));

    let servers = end_servers(&["--detach"]);
    wait_until("the servers have ended", || servers.iter().all(|pid| !is_alive(*pid)));
    assert!(place.path("run/v/volume.json").exists(), "the record stays");
    place.aze(&["down", "--force"]).ok();
}

/// Servers stay on their cores, all their threads, also when they are started again.
#[test]
fn servers_keep_to_their_cores() {
    let place = Place::new();
    let cores_of = |pid: u32| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
        let allowed = tasks.filter_map(|task| {
            let text = fs::read_to_string(task.path().join("status")).ok()?;
            Some(text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_string())
        });
        allowed.collect::<BTreeSet<String>>()
    };
    let here = cores_of(std::process::id());
    let last = here.first().and_then(|list| list.rsplit([',', '-']).next()).expect("a core").to_string();
    let storage = place.path("storage").display().to_string();
    place.aze(&["up", "--name", "v", "--servers", "2", "--size", "1G", "--cores", "1", "--storage", &storage]).ok();
    for _ in 0..2 {
        let pids = pids(&place, "v");
        assert_eq!(pids.len(), 2);
        for pid in pids {
            assert_eq!(cores_of(pid), BTreeSet::from([last.clone()]));
        }
        place.aze(&["restart", "--force"]).ok();
    }
    place.aze(&["down"]).ok();
    let refused = place.aze(&["up", "--cores", "9999"]).code(5);
    assert!(refused.err.contains("--cores: 9999 are too many: servers of this node may use "), "{}", refused.err);
    place.aze(&["up", "--cores", "none"]).code(2);
}

#[test]
fn a_volume_on_a_ring_grows_shrinks_and_keeps_what_it_has() {
    let place = Place::new();
    let name = place.up(&["--servers", "2", "--placement", "ring"]);
    let source = place.path("source");
    make_tree(&source, 40);
    place.aze(&["cp", "-r", source.to_str().expect("a path"), "aze:/tree"]).ok();
    let sum = place.aze(&["checksum", "-r", "aze:/tree"]).ok().out;
    assert!(!sum.is_empty());
    place.aze(&["grow", "--servers", "2"]).ok();
    assert_eq!(servers(&place, &name).len(), 4);
    assert_eq!(place.aze(&["checksum", "-r", "aze:/tree"]).ok().out, sum);
    place.aze(&["shrink", "--servers", "3"]).ok();
    assert_eq!(place.aze(&["checksum", "-r", "aze:/tree"]).ok().out, sum);
    let refused = place.aze(&["up", "--name", "kept", "--placement", "ring", "--storage", "kept"]).code(2);
    assert!(refused.err.contains("--placement ring is for volumes in memory"), "{}", refused.err);
    place.aze(&["up", "--placement", "other"]).code(2);
}

/// The second source replaced the first one, which had no other name any more.
#[test]
fn two_sources_of_one_name_do_not_replace_each_other() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    let path = |name: &str| place.path(name).display().to_string();
    place.aze(&["mkdir", "aze:/a", "aze:/b", "aze:/to", "aze:/a/d", "aze:/b/d"]).ok();
    for dir in ["a", "b"] {
        std::fs::write(path(dir), dir).expect("a file");
        place.aze(&["cp", &path(dir), &format!("aze:/{dir}/f")]).ok();
        place.aze(&["cp", &path(dir), &format!("aze:/{dir}/d/{dir}")]).ok();
    }
    let copied = place.aze(&["cp", "aze:/a/f", "aze:/b/f", "aze:/to"]);
    assert!(copied.code == 1 && copied.err.contains("another source"), "{} {}", copied.code, copied.err);
    assert_eq!(place.aze(&["cat", "aze:/to/f"]).ok().out, "a");
    place.aze(&["cp", "-r", "aze:/a/d", "aze:/b/d", "aze:/to"]).ok();
    assert_eq!(place.aze(&["ls", "aze:/to/d"]).ok().out, "a\nb\n", "directories become one");
    let moved = place.aze(&["mv", "aze:/a/f", "aze:/b/f", "aze:/to"]);
    assert!(moved.code == 1 && moved.err.contains("another source"), "{} {}", moved.code, moved.err);
    assert_eq!(place.aze(&["cat", "aze:/to/f", "aze:/b/f"]).ok().out, "ab");
}

/// A slash at the end was not minded: the file, or the link, was removed, renamed or replaced.
#[test]
fn a_slash_at_the_end_means_a_directory() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let file = place.path("f").display().to_string();
    std::fs::write(&file, "f").expect("a file");
    place.aze(&["cp", &file, "aze:/f"]).ok();
    place.aze(&["mkdir", "aze:/d", "aze:/d/in"]).ok();
    place.aze(&["ln", "-s", "d", "aze:/link"]).ok();
    for args in [
        &["rm", "aze:/f/"][..],
        &["rm", "-r", "aze:/link/"],
        &["rm", "-r", "aze:/d/."],
        &["rm", "-r", "aze:/d/in/.."],
        &["rmdir", "aze:/d/in/."],
        &["mv", "aze:/f/", "aze:/g"],
        &["mv", "aze:/link/", "aze:/g"],
        &["mv", "aze:/f", "aze:/none/"],
        &["mv", "aze:/d", "aze:/f/"],
        &["touch", "aze:/f/"],
        &["touch", "aze:/none/"],
        &["cp", &file, "aze:/f/"],
    ] {
        let ran = place.aze(args);
        assert!(ran.code > 0 && !ran.err.is_empty(), "{args:?}: {}", ran.code);
    }
    assert_eq!(place.aze(&["ls", "-R", "aze:/"]).ok().out.matches('\n').count(), 9, "all is there, and nothing more");
    place.aze(&["mv", "aze:/d/", "aze:/moved/"]).ok();
    place.aze(&["rm", "-f", "aze:/f/x"]).ok();
    place.aze(&["rm", "-r", "aze:/moved/"]).ok();
    assert_eq!(place.aze(&["ls", "aze:/"]).ok().out, "f\nlink\n");
}
