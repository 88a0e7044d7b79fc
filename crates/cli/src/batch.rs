//! What a batch system says of the job that a command runs in: its nodes, and how a program is run on each.
//!
//! Each system is known by the variables and commands that its manual documents; `docs/operations.md` has the table and
//! says which of them were tried.

use crate::exit::{Exit, Outcome, Trouble};
use crate::local_disks::OWN_TMP;
use crate::process::Process;
use crate::{sys, when};
use aze_proto::ids::Time;
use clap::ValueEnum;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How a program is run on a node where nothing else is said and no batch system has a way of its own.
pub const SSH: &str = "ssh -o BatchMode=yes {host}";

/// Time for an answer of a command of a batch system.
const ASK_TIME_MAX: Duration = Duration::from_secs(15);

/// As a step of the Slurm job, which its end and its limits reach, beside the job's other steps and without memory of
/// its own (srun(1), --overlap and --mem).
pub const SRUN: &str = "srun --overlap --mem=0 --nodes=1 --ntasks=1 --nodelist={host}";

/// The options are those of the MPI standard. Open MPI passes no more input to a program that has closed its output, as a server does, so
/// a shell keeps that open.
const MPIEXEC: &str = "mpiexec -n 1 -host {host} sh -c '\"$0\" \"$@\"; exit $?'";

/// A batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// Slurm: `SLURM_JOB_NODELIST`, which scontrol(1) expands, and srun(1).
    Slurm,
    /// OpenPBS, PBS Professional, Torque: the file that `PBS_NODEFILE` names, and ssh(1).
    Pbs,
    /// Fujitsu's Technical Computing Suite: the file that `PJM_O_NODEINF` names, and pjrsh.
    Pjm,
    /// LSF: the file that `LSB_DJOB_HOSTFILE` names, or `LSB_MCPU_HOSTS`, and blaunch.
    Lsf,
    /// Flux: flux-hostlist(1), and ssh(1).
    Flux,
    /// MPI, in a batch system that it knows or with a hostfile of its own: the nodes on which mpiexec(1) runs processes, and mpiexec.
    Mpi,
}

impl System {
    /// Its word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            System::Slurm => "slurm",
            System::Pbs => "pbs",
            System::Pjm => "pjm",
            System::Lsf => "lsf",
            System::Flux => "flux",
            System::Mpi => "mpi",
        }
    }

    /// The job's nodes as the system tells them: a node with several slots may be named more than once.
    ///
    /// # Errors
    /// This is no job of that system, or its answer cannot be read or names no node.
    pub fn nodes(self) -> Outcome<Vec<String>> {
        let word = self.word();
        let names = match self {
            System::Slurm => {
                let list = self.variable("SLURM_JOB_NODELIST")?;
                self.said_by("scontrol", &["show", "hostnames", &list])?
            }
            System::Pbs => self.file(&self.variable("PBS_NODEFILE")?)?,
            System::Pjm => self.file(&self.variable("PJM_O_NODEINF")?)?,
            System::Lsf => match set("LSB_DJOB_HOSTFILE") {
                Some(path) => self.file(&path)?,
                None => hosts_before_counts(&self.variable("LSB_MCPU_HOSTS")?),
            },
            System::Flux => {
                self.variable("FLUX_URI")?;
                self.said_by("flux", &["hostlist", "--expand", "local"])?
            }
            // As many processes as there are slots, so that each node says its name at least once.
            System::Mpi => self.said_by("mpiexec", &["uname", "-n"])?,
        };
        if names.is_empty() {
            return Err(Trouble::new(Exit::Again, format!("--from {word}: it names no node")));
        }
        Ok(names)
    }

    /// The words that run a program on one of its nodes, with `{host}`.
    pub fn launcher(self) -> &'static str {
        match self {
            System::Slurm if sys::is_installed("srun") => SRUN,
            System::Pjm if sys::is_installed("pjrsh") => "pjrsh {host}",
            System::Lsf if sys::is_installed("blaunch") => "blaunch {host}",
            System::Mpi => MPIEXEC,
            _ => SSH,
        }
    }

    /// Variables that name a directory of the job on a disk of each node, the best first.
    pub fn disk_variables(self) -> &'static [&'static str] {
        match self {
            // Many sites set the first. TMPDIR may be that of the shell that submitted the job.
            System::Slurm => &["SLURM_TMPDIR", OWN_TMP, "TMPDIR"],
            System::Pbs | System::Lsf => &["TMPDIR"],
            // PJM_SHAREDTMP is one directory of all nodes.
            System::Pjm => &["PJM_LOCALTMP"],
            System::Flux => &["FLUX_JOB_TMPDIR"],
            System::Mpi => &["SLURM_TMPDIR", OWN_TMP, "PJM_LOCALTMP", "FLUX_JOB_TMPDIR", "TMPDIR"],
        }
    }

    fn variable(self, name: &str) -> Outcome<String> {
        set(name)
            .ok_or_else(|| Trouble::usage(format!("--from {0}: this is no job of {0}: {name} is not set", self.word())))
    }

    /// The first word of each line.
    fn file(self, path: &str) -> Outcome<Vec<String>> {
        let text = std::fs::read_to_string(Path::new(path))
            .map_err(|error| Trouble::local(format!("--from {}: read {path}", self.word()), &error))?;
        Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
    }

    fn said_by(self, program: &str, args: &[&str]) -> Outcome<Vec<String>> {
        let word = self.word();
        let failed = |error: &std::io::Error| Trouble::local(format!("--from {word}: run {program}"), error);
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        // Open until the program has ended: mpiexec of MPICH tells its helper of the end of its input, and fails now and then if that
        // helper has just ended.
        let _input = child.stdin.take();
        let process = Process::of(child.id());
        let (say, hear) = channel();
        // It ends when the child has ended, which is killed if it takes too long.
        std::thread::spawn(move || say.send(child.wait_with_output()));
        let Ok(output) = hear.recv_timeout(ASK_TIME_MAX) else {
            process.iter().for_each(|process| process.signal(libc::SIGKILL));
            let (words, time) = (args.join(" "), ASK_TIME_MAX.as_secs());
            let text =
                format!("--from {word}: '{program} {words}' has not answered in {time} s: is its controller up?");
            return Err(Trouble::new(Exit::Again, text));
        };
        let output = output.map_err(|error| failed(&error))?;
        if !output.status.success() {
            let told = String::from_utf8_lossy(&output.stderr);
            let why = if told.trim().is_empty() { output.status.to_string() } else { told.trim().to_owned() };
            let text = format!("--from {word}: '{program} {}' failed: {why}", args.join(" "));
            return Err(Trouble::new(Exit::Again, text));
        }
        Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
    }
}

/// The end of a job.
pub enum JobEnd {
    /// On this date.
    At(Time),
    /// After this time.
    In(Duration),
}

impl JobEnd {
    /// The time from now until then; zero if it is over.
    pub fn left(&self) -> Duration {
        match self {
            JobEnd::At(end) => Duration::from_nanos(end.0.saturating_sub(when::now().0)),
            JobEnd::In(left) => *left,
        }
    }
}

/// When the job that this process is in ends, as its system tells; `None` without such a job, and where the system documents
/// no way to ask.
///
/// # Errors
/// What the system says cannot be understood.
pub fn job_end() -> Outcome<Option<JobEnd>> {
    let bad =
        |said: &str| Trouble::new(Exit::Caller, format!("the end of the job: '{said}' is no time: give --until TIME"));
    // sbatch(1): the UNIX timestamp for a job's projected end time.
    if let Some(said) = set("SLURM_JOB_END_TIME") {
        return when::parse(&format!("@{said}")).map(|end| Some(JobEnd::At(end))).map_err(|_| bad(&said));
    }
    let first = |words: Vec<String>| words.into_iter().next().unwrap_or_default();
    if let Some(id) = set("SLURM_JOB_ID") {
        // squeue(1), %e: the time at which the job is expected to end.
        let said = first(System::Slurm.said_by("squeue", &["--noheader", "--jobs", &id, "--format", "%e"])?);
        // Of a job without a time limit.
        if ["NONE", "N/A"].contains(&said.as_str()) {
            return Ok(None);
        }
        return when::parse(&said).map(|end| Some(JobEnd::At(end))).map_err(|_| bad(&said));
    }
    if set("FLUX_JOB_ID").is_some() {
        // flux-job(1), timeleft: the number of whole seconds left.
        let said = first(System::Flux.said_by("flux", &["job", "timeleft"])?);
        let left: u64 = said.parse().map_err(|_| bad(&said))?;
        return Ok(Some(JobEnd::In(Duration::from_secs(left))));
    }
    Ok(None)
}

/// LSF's "host slots host slots …".
fn hosts_before_counts(text: &str) -> Vec<String> {
    text.split_whitespace().step_by(2).map(str::to_owned).collect()
}

/// A variable of the environment, if it has a value.
pub fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_stand_before_their_counts() {
        assert_eq!(hosts_before_counts("n1 4 n2 16"), ["n1", "n2"]);
        assert_eq!(hosts_before_counts(""), Vec::<String>::new());
    }

    #[test]
    fn the_words_are_those_of_the_command_line() {
        assert_eq!(System::value_variants().len(), 6);
        for system in System::value_variants() {
            let value = system.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), system.word());
        }
    }
}
