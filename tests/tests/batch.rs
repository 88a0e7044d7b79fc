//! `aze up --from SYSTEM`: in environments that are made as the manuals of batch systems describe them. Real jobs of Slurm
//! are run by `make test-slurm`; of the other systems none is to be had here.

use aze_tests::{Place, Ran, set_mode, signal, wait_until};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of programs that stand for a batch system's; each writes its name and arguments into `asked`.
fn programs(place: &Place, list: &[(&str, &str)]) -> PathBuf {
    let bin = place.path("bin");
    fs::create_dir_all(&bin).expect("a folder");
    for (name, script) in list {
        let text = format!("#!/bin/sh\necho \"{name} $*\" >>\"{}\"\n{script}\n", place.path("asked").display());
        fs::write(bin.join(name), text).expect("a script");
        set_mode(&bin.join(name), 0o755);
    }
    bin
}

/// Starts a volume with these variables, and gives what the programs were asked.
fn up(place: &Place, system: &str, list: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
    let bin = programs(place, list);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    let aze = |args: &[&str]| -> Ran {
        place.command(args).env("PATH", &path).envs(variables.iter().copied()).output().expect("aze starts").into()
    };
    let started = aze(&["up", "--from", system, "--size", "256M"]).ok();
    assert_eq!(started.out, "export AZE_VOLUME='job-77'\n");
    let status = aze(&["status", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    let servers = status["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 1, "a node that is named twice has one server: {status}");
    aze(&["down"]).ok();
    fs::read_to_string(place.path("asked")).expect("something was asked")
}

const SSH: (&str, &str) = ("ssh", "shift 3; exec \"$@\"");

#[test]
fn slurm_names_its_nodes_by_scontrol_and_starts_steps() {
    let place = Place::new();
    let list = [("scontrol", "echo 127.0.0.1"), ("srun", "shift 5; exec \"$@\"")];
    let asked = up(&place, "slurm", &list, &[("SLURM_JOB_ID", "77"), ("SLURM_JOB_NODELIST", "n[1-2]")]);
    assert!(asked.contains("scontrol show hostnames n[1-2]\n"), "{asked}");
    assert!(asked.contains("srun --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist=127.0.0.1 /"), "{asked}");
}

#[test]
fn pbs_names_a_file_of_nodes() {
    let place = Place::new();
    let file = place.path("nodes");
    fs::write(&file, "127.0.0.1\n127.0.0.1\n").expect("a file");
    let variables = [("PBS_JOBID", "77.server"), ("PBS_NODEFILE", file.to_str().expect("UTF-8"))];
    let asked = up(&place, "pbs", &[SSH], &variables);
    assert!(asked.starts_with("ssh -o BatchMode=yes 127.0.0.1 /"), "{asked}");
}

#[test]
fn pjm_names_a_file_of_nodes_and_has_pjrsh() {
    let place = Place::new();
    let file = place.path("nodes");
    fs::write(&file, "127.0.0.1\n").expect("a file");
    let variables = [("PJM_JOBID", "77"), ("PJM_O_NODEINF", file.to_str().expect("UTF-8"))];
    let asked = up(&place, "pjm", &[("pjrsh", "shift; exec \"$@\"")], &variables);
    assert!(asked.starts_with("pjrsh 127.0.0.1 /"), "{asked}");
}

#[test]
fn lsf_names_a_file_or_a_list_and_has_blaunch() {
    let place = Place::new();
    let file = place.path("nodes");
    fs::write(&file, "127.0.0.1\n127.0.0.1\n").expect("a file");
    let blaunch = [("blaunch", "shift; exec \"$@\"")];
    let variables = [("LSB_JOBID", "77"), ("LSB_DJOB_HOSTFILE", file.to_str().expect("UTF-8"))];
    let asked = up(&place, "lsf", &blaunch, &variables);
    assert!(asked.starts_with("blaunch 127.0.0.1 /"), "{asked}");
    up(&place, "lsf", &blaunch, &[("LSB_JOBID", "77"), ("LSB_MCPU_HOSTS", "127.0.0.1 4")]);
}

#[test]
fn flux_lists_its_hosts() {
    let place = Place::new();
    let list = [("flux", "echo 127.0.0.1 127.0.0.1"), SSH];
    let asked = up(&place, "flux", &list, &[("FLUX_JOB_ID", "77"), ("FLUX_URI", "local:///x")]);
    assert!(asked.starts_with("flux hostlist --expand local\n"), "{asked}");
}

/// A hostfile of MPI's own, or a batch system that it knows, says where mpiexec starts processes.
#[test]
fn mpi_starts_a_process_for_each_slot_which_names_its_node() {
    let place = Place::new();
    let script = r#"if [ "$1" = uname ]; then echo 127.0.0.1; echo 127.0.0.1; exit; fi; shift 4; exec "$@""#;
    let asked = up(&place, "mpi", &[("mpiexec", script)], &[("PBS_JOBID", "77.server")]);
    assert!(asked.starts_with("mpiexec uname -n\nmpiexec -n 1 -host 127.0.0.1 sh -c "), "{asked}");
    // Without MPI.
    let ran: Ran = place.command(&["up", "--from", "mpi"]).env("PATH", "/none").output().expect("aze starts").into();
    assert!(ran.err.contains("--from mpi: run mpiexec: no such file"), "{}", ran.err);
}

/// The programs that are installed here, if any, start a server on this machine, pass its input on, and end it when they are killed.
#[test]
fn installed_programs_of_mpi_start_servers() {
    let place = Place::new();
    let found = ["mpiexec.openmpi", "mpiexec.hydra"].map(|name| PathBuf::from("/usr/bin").join(name));
    let found: Vec<PathBuf> = found.into_iter().filter(|path| path.exists()).collect();
    if found.is_empty() {
        return aze_tests::leave_out(
            "installed_programs_of_mpi_start_servers",
            "neither Open MPI nor MPICH is installed",
        );
    }
    for program in found {
        let bin = programs(&place, &[("mpiexec", &format!("exec {} \"$@\"", program.display()))]);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
        let aze = |args: &[&str]| -> Ran {
            let mut command = place.command(args);
            // Open MPI refuses root else.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1").env("PATH", &path);
            command.output().expect("aze starts").into()
        };
        aze(&["up", "--from", "mpi", "--size", "256M", "--name", "v"]).ok();
        let status: serde_json::Value =
            serde_json::from_str(&aze(&["status", "--name", "v", "--json"]).ok().out).expect("JSON");
        assert_eq!(status["servers"].as_array().map(Vec::len), Some(1), "{}: {status}", program.display());
        aze(&["down", "--name", "v"]).ok();
    }
}

/// A batch system's job on this machine, whose environment is made as its manual describes it.
struct Job<'a> {
    place: &'a Place,
    variables: Vec<(String, String)>,
}

impl<'a> Job<'a> {
    /// Of Slurm, on nodes of these addresses. A step on a node has what a folder `on-NODE` says of its environment, as by a task prolog.
    fn of_slurm(place: &'a Place, nodes: &[&str]) -> Job<'a> {
        let script = format!(
            r#"host=${{5#--nodelist=}}; shift 5; if [ -e {0}/on-$host ]; then . {0}/on-$host; fi; exec "$@""#,
            place.dir.display()
        );
        let bin = programs(place, &[("scontrol", &format!("echo {}", nodes.join(" "))), ("srun", &script)]);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
        let mut job = Job { place, variables: Vec::new() };
        job.set("PATH", &path).set("SLURM_JOB_ID", "77").set("SLURM_JOB_NODELIST", "n");
        job
    }

    fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    fn aze(&self, args: &[&str]) -> Ran {
        let mut command = self.place.command(args);
        command.env_remove("TMPDIR").env_remove("SLURM_TMPDIR").envs(self.variables.iter().cloned());
        command.output().expect("aze starts").into()
    }

    fn up(&self, more: &[&str]) -> Ran {
        self.aze(
            &[&["up", "--from", "slurm", "--storage", "local", "--storage-size", "64M", "--size", "256M"], more]
                .concat(),
        )
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A folder for the disk of a node; tests are on a disk where the folder for temporary files is.
fn disk(place: &Place, name: &str) -> PathBuf {
    let disk = place.path(name);
    fs::create_dir_all(&disk).expect("a folder");
    disk
}

/// Names, each with a text.
type Pairs<'a> = &'a [(&'a str, &'a str)];

#[test]
fn each_batch_system_names_the_local_disk_of_a_job() {
    let nodes = Place::new();
    fs::write(nodes.path("nodes"), "127.0.0.1\n").expect("a file");
    let nodes = nodes.path("nodes");
    let through = "shift; exec \"$@\"";
    let mpiexec = r#"if [ "$1" = uname ]; then echo 127.0.0.1; exit; fi; shift 4; exec "$@""#;
    let cases: [(&str, Pairs, Pairs, &str); 6] = [
        (
            "slurm",
            &[("scontrol", "echo 127.0.0.1"), ("srun", "shift 5; exec \"$@\"")],
            &[("SLURM_JOB_ID", "77"), ("SLURM_JOB_NODELIST", "n")],
            "SLURM_TMPDIR",
        ),
        ("pbs", &[SSH], &[("PBS_JOBID", "77.s"), ("PBS_NODEFILE", text(&nodes))], "TMPDIR"),
        ("pjm", &[("pjrsh", through)], &[("PJM_JOBID", "77"), ("PJM_O_NODEINF", text(&nodes))], "PJM_LOCALTMP"),
        ("lsf", &[("blaunch", through)], &[("LSB_JOBID", "77"), ("LSB_DJOB_HOSTFILE", text(&nodes))], "TMPDIR"),
        (
            "flux",
            &[("flux", "echo 127.0.0.1"), SSH],
            &[("FLUX_JOB_ID", "77"), ("FLUX_URI", "local:///x")],
            "FLUX_JOB_TMPDIR",
        ),
        ("mpi", &[("mpiexec", mpiexec)], &[("PBS_JOBID", "77.s")], "TMPDIR"),
    ];
    for (system, list, variables, variable) in cases {
        let place = Place::new();
        let disk = disk(&place, "disk");
        let bin = programs(&place, list);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
        let aze = |args: &[&str]| -> Ran {
            let mut command = place.command(args);
            command.env_remove("TMPDIR").env("PATH", &path).env(variable, &disk).envs(variables.iter().copied());
            command.output().expect("aze starts").into()
        };
        let up = aze(&["up", "--from", system, "--storage", "local", "--storage-size", "64M", "--size", "256M"]).ok();
        assert!(up.err.contains(&format!("--from {system}: 1 node (127.0.0.1), servers are started by")), "{}", up.err);
        assert!(
            up.err.contains("1 server, 64.0 MiB on local disks (") && up.err.contains(&format!("by {variable})")),
            "{}",
            up.err
        );
        assert!(disk.join("azekura-job-77/server-0/volume").exists(), "{system}: {}", up.err);
        aze(&["down"]).ok();
        assert_eq!(fs::read_dir(&disk).expect("a folder").count(), 0, "{system}: something is left on the disk");
    }
}

#[test]
fn a_volume_on_local_disks_is_half_of_what_is_free() {
    let place = Place::new();
    let disk = disk(&place, "disk");
    let mut job = Job::of_slurm(&place, &["127.0.0.1"]);
    job.set("TMPDIR", text(&disk));
    job.aze(&["up", "--from", "slurm", "--storage", "local", "--size", "256M"]).ok();
    let status: serde_json::Value = serde_json::from_str(&job.aze(&["status", "--json"]).ok().out).expect("JSON");
    let capacity = status["servers"][0]["capacity_bytes"].as_u64().expect("a number");
    let free = free_bytes(&disk);
    // Other programs use the disk meanwhile.
    assert!(capacity.abs_diff(free / 2) < free / 8, "{capacity} of {free}: {status}");
    job.aze(&["down"]).ok();
    let ran = job.aze(&["up", "--from", "slurm", "--storage", "local", "--storage-size", "900T"]).code(5);
    assert!(ran.err.contains("are free, and 1 server with 900 TiB for data each need"), "{}", ran.err);
    assert_eq!(fs::read_dir(&disk).expect("a folder").count(), 0, "a refused start has left something");
}

/// Bytes that are free on a file system, as stat(1) says.
fn free_bytes(dir: &Path) -> u64 {
    let ran: Ran =
        aze_tests::run(std::process::Command::new("stat").args(["--file-system", "--format=%a %S"]).arg(dir)).ok();
    ran.out.split_whitespace().map(|word| word.parse::<u64>().expect("a number")).product()
}

#[test]
fn a_directory_that_is_on_no_local_disk_is_refused_with_all_that_was_looked_at() {
    let place = Place::new();
    let memory = PathBuf::from(format!("/dev/shm/aze-test-{}", std::process::id()));
    fs::create_dir_all(&memory).expect("a folder in memory");
    let mut job = Job::of_slurm(&place, &["127.0.0.1"]);
    let nothing = job.up(&[]).code(5);
    job.set("SLURM_TMPDIR", "/none/such").set("TMPDIR", text(&memory));
    let ran = job.up(&[]).code(5);
    let left = fs::read_dir(&memory).expect("it is there").count();
    fs::remove_dir_all(&memory).expect("it is empty");
    for told in [
        "SLURM_TMPDIR is not set; /tmp is no directory of the job's own (job_container/tmpfs); TMPDIR is not set",
        "give --storage DIR",
    ] {
        assert!(nothing.err.contains(told), "{}", nothing.err);
    }
    assert!(ran.err.contains("SLURM_TMPDIR=/none/such: there is no such directory"), "{}", ran.err);
    assert!(ran.err.contains("it is on tmpfs, which is in memory"), "{}", ran.err);
    assert_eq!(left, 0, "something was made in memory");
    // A mount of a volume is a directory that other nodes see.
    let mut other = Place::new();
    other.up(&["--servers", "1"]);
    let mount = other.mount();
    job.set("TMPDIR", text(&mount));
    let ran = job.up(&[]).code(5);
    assert!(ran.err.contains("it is on FUSE, which other nodes may see, too"), "{}", ran.err);
}

#[test]
fn local_disks_are_for_jobs_and_go_with_them() {
    let place = Place::new();
    let ran = place.aze(&["up", "--storage", "local"]).code(2);
    assert!(ran.err.contains("give --from SYSTEM in a job, or --storage DIR"), "{}", ran.err);
    let disk = disk(&place, "disk");
    let mut job = Job::of_slurm(&place, &["127.0.0.1"]);
    job.set("TMPDIR", text(&disk));
    let ran = job.aze(&["up", "--from", "slurm", "--storage", "local,/tmp/x"]).code(2);
    assert!(ran.err.contains("either mem, or local, or directories"), "{}", ran.err);
    fs::create_dir(place.path("below")).expect("a folder");
    job.up(&["--backing", text(&place.path("below"))]).ok();
    assert!(job.aze(&["grow", "--servers", "2"]).code(5).err.contains("does not grow"));
    assert!(job.aze(&["down", "--delete", "--yes"]).code(5).err.contains("'aze down' without --delete ends it"));
    // Its files go with it, so `aze down` drops none that is nowhere else.
    fs::write(place.path("input"), "new").expect("a file");
    job.aze(&["cp", text(&place.path("input")), "aze:/new"]).ok();
    assert!(job.aze(&["down"]).code(8).err.contains("would be lost"));
    job.aze(&["down", "--stage-out"]).ok();
    job.up(&[]).ok();
    job.aze(&["stage", "in", text(&place.path("input")), "aze:/input", "--quiet"]).ok();
    job.aze(&["cp", text(&place.path("input")), "aze:/new"]).ok();
    assert!(job.aze(&["down"]).code(8).err.contains("would be lost"));
    job.aze(&["down", "--discard"]).ok();
    assert_eq!(fs::read_to_string(place.path("below/new")).expect("it was staged out"), "new");
    assert_eq!(fs::read_dir(&disk).expect("a folder").count(), 0, "something is left on the disk");
}

#[test]
fn servers_on_local_disks_that_were_killed_come_back_or_are_cleared_away() {
    let place = Place::new();
    let (one, two) = (disk(&place, "one"), disk(&place, "two"));
    for (node, disk) in [("127.0.0.1", &one), ("127.0.0.2", &two)] {
        fs::write(place.path(&format!("on-{node}")), format!("export TMPDIR={}", disk.display())).expect("a file");
    }
    let job = Job::of_slurm(&place, &["127.0.0.1", "127.0.0.2"]);
    let up = job.up(&[]).ok();
    assert!(up.err.contains(" of 2 nodes, by TMPDIR"), "{}", up.err);
    let parts = [one.join("azekura-job-77/server-0"), two.join("azekura-job-77/server-1")];
    assert!(parts.iter().all(|part| part.join("volume").exists()), "each has one on its own disk");
    fs::write(place.path("input"), "kept").expect("a file");
    for name in ["a", "b", "c", "d", "e", "f"] {
        job.aze(&["cp", text(&place.path("input")), &format!("aze:/{name}")]).ok();
    }
    let kill = |server: usize| {
        let status: serde_json::Value = serde_json::from_str(&job.aze(&["status", "--json"]).out).expect("JSON");
        let pid = status["servers"][server]["pid"].as_u64().expect("a number") as u32;
        signal(pid, libc::SIGKILL);
        wait_until("the server has ended", || !Path::new(&format!("/proc/{pid}")).exists());
    };
    kill(1);
    job.aze(&["restart"]).ok();
    for name in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(job.aze(&["cat", &format!("aze:/{name}")]).ok().out, "kept");
    }
    kill(1);
    job.aze(&["down", "--force"]).ok();
    for disk in [&one, &two] {
        assert_eq!(fs::read_dir(disk).expect("a folder").count(), 0, "something is left in {}", disk.display());
    }
}

#[test]
fn what_is_no_job_of_that_system_is_told() {
    let place = Place::new();
    for (system, variable) in [
        ("slurm", "SLURM_JOB_NODELIST"),
        ("pbs", "PBS_NODEFILE"),
        ("pjm", "PJM_O_NODEINF"),
        ("lsf", "LSB_MCPU_HOSTS"),
        ("flux", "FLUX_URI"),
    ] {
        let mut command = place.command(&["up", "--from", system]);
        let ran = Ran::from(command.env_remove(variable).output().expect("aze starts")).code(2);
        assert!(ran.err.contains(&format!("this is no job of {system}: {variable} is not set")), "{}", ran.err);
    }
    let gone = place.path("gone");
    let ran: Ran =
        place.command(&["up", "--from", "pbs"]).env("PBS_NODEFILE", &gone).output().expect("aze starts").into();
    assert!(ran.err.contains(&format!("--from pbs: read {}", gone.display())), "{}", ran.err);
    place.aze(&["up", "--from", "slurm", "--hosts", "a"]).code(2);
}

#[test]
fn a_slurm_job_without_a_time_limit_has_no_end() {
    let place = Place::new();
    place.up(&["--servers", "1"]);
    let words = ["stage", "out", "aze:/", "out", "--before-end"];
    for (said, expected) in [("NONE", "the end of the job is not known"), ("soon", "'soon' is no time")] {
        let bin = programs(&place, &[("squeue", &format!("echo {said}"))]);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
        let told: Ran =
            place.command(&words).env("PATH", &path).env("SLURM_JOB_ID", "7").output().expect("aze starts").into();
        assert!(told.code != 0 && told.err.contains(expected), "{} {}", told.code, told.err);
    }
}
