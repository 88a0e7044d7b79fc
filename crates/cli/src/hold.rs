//! `aze hold`: ties servers and mounts to the machine, and to the process, from which they were started.
//!
//! `aze up` and `aze mount --all-nodes` run it in the background. It holds the writing ends of the pipes that are the
//! standard input of the processes they have started, here or through launchers. When it ends, for any reason, the
//! readers see the end of their input (pipe(7)) and end, too: a launcher such as `ssh` passes that on to the other
//! node, and one that is killed ends its connection, which the other node sees as well.

use crate::exit::{Exit, Outcome, Trouble};
use crate::process::Process;
use crate::sys;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, Stdio};

/// Names the process of the job's batch shell within a batch job (sbatch(1)).
const BATCH_SHELL: &str = "SLURM_TASK_PID";

/// Keep servers and mounts alive for as long as this process, and another one, live.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the volume.
    #[arg(long)]
    name: String,
    /// End the volume when this process ends.
    #[arg(long, requires = "started")]
    pid: Option<u32>,
    /// When that process started, in clock ticks since the machine did: another one may have its number since.
    #[arg(long)]
    started: Option<u64>,
    /// Descriptors of the pipes.
    #[arg(required = true)]
    pipes: Vec<RawFd>,
}

/// Starts the process that holds `pipes`, and lets go of them here. It ends when all their readers have ended, or
/// when `process` does; then it ends the volume first.
///
/// # Errors
/// No further process can be started; the readers see the end of their input then.
pub fn start(volume: &str, pipes: Vec<ChildStdin>, process: Option<Process>) -> Outcome<()> {
    if pipes.is_empty() {
        return Ok(());
    }
    let failed = |error: &std::io::Error| Trouble::local("start the process that holds the servers' input", error);
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.args(["hold", "--name", volume]);
    if let Some(Process { pid, started }) = process {
        command.args([format!("--pid={pid}"), format!("--started={started}")]);
    }
    for pipe in &pipes {
        // No other program is started between here and the next one.
        sys::inherit(pipe).map_err(|error| failed(&error))?;
        command.arg(pipe.as_raw_fd().to_string());
    }
    // A shell that reads the output of 'aze up' waits for its end.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.process_group(0).spawn().map(drop).map_err(|error| failed(&error))
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    sys::ignore(libc::SIGHUP);
    let failed = |error: &std::io::Error| Trouble::local("wait for the end of what was started", error);
    // A process that is gone already has no descriptor.
    let process = args.pid.map(aze_io::real::open_process);
    let meant = args.pid.zip(args.started).map(|(pid, started)| Process { pid, started });
    let is_alive = || meant.is_some_and(|process| process.is_alive());
    let has_ended = match &process {
        Some(Err(error)) if error.raw_os_error() != Some(libc::ESRCH) => return Err(failed(error)),
        Some(Err(_)) => true,
        Some(Ok(_)) if !is_alive() => true,
        Some(Ok(process)) => sys::wait_for_ends(&args.pipes, Some(process)).map_err(|error| failed(&error))?,
        None => sys::wait_for_ends(&args.pipes, None).map_err(|error| failed(&error))?,
    };
    if has_ended {
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        // The pipes stay open in the next program, and are closed by its end.
        let error = Command::new(program).args(["down", "--force", "--discard", "--name", &args.name]).exec();
        return Err(Trouble::local("run 'aze down'", &error));
    }
    Ok(Exit::Done)
}

/// The process that a volume ends with: the one that the user has named, or the batch shell of the Slurm job within
/// which this process runs.
///
/// # Errors
/// There is no process of that number.
pub fn process(asked: Option<u32>) -> Outcome<Option<Process>> {
    if let Some(pid) = asked {
        let missing = || Trouble::new(Exit::NotFound, format!("--pid {pid}: no such process runs on this machine"));
        return Process::of(pid).map(Some).ok_or_else(missing);
    }
    let shell = std::env::var(BATCH_SHELL).ok().and_then(|pid| pid.parse().ok()).and_then(Process::of);
    // A step on another node sees the variable of the batch shell's node.
    Ok(shell.filter(Process::is_ancestor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_ends_with_a_process_that_is_there_only() {
        let me = Process::me();
        assert_eq!(process(Some(me.pid)), Ok(Some(me)));
        assert_eq!(process(Some(u32::MAX)).expect_err("no such number").exit, Exit::NotFound);
    }
}
