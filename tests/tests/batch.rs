//! `aze up --from SYSTEM`: in environments that are made as the manuals of batch systems describe them. Real jobs of Slurm
//! are run by `make test-slurm`; of the other systems none is to be had here.

use aze_tests::{Place, Ran, set_mode};
use std::fs;
use std::path::PathBuf;

/// A folder of programs that stand for a batch system's; each writes what it was asked into `asked`.
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
