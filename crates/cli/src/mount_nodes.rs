//! `aze mount --all-nodes` and `aze umount --all-nodes`: the same on every node that has a server of the volume.

use crate::exit::{Exit, Outcome, Trouble};
use crate::hold;
use crate::tally::Tally;
use crate::volume::Volume;
use aze_io::real::until;
use aze_words::errln;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How long all mounts together may take.
const MOUNT_TIME_MAX: Duration = Duration::from_secs(30);

/// How long launchers get to end when the mounts are called off.
const CALL_OFF_TIME: Duration = Duration::from_secs(5);

/// `aze WORDS` on a node.
fn command(volume: &Volume, node: &str, words: &[String]) -> Outcome<Command> {
    let missing = || Trouble::new(Exit::Fatal, format!("volume.json names no launcher for {node}"));
    let mut command = volume.command_on(node, words).ok_or_else(missing)?;
    // A key that interrupts the shell's job must not reach the launcher of a mount, which lives as long as the mount.
    command.process_group(0);
    Ok(command)
}

/// The nodes of the volume's servers as `aze up` was given them, each once; none if no launcher started them.
pub fn of(volume: &Volume) -> Vec<String> {
    let mut nodes: Vec<String> = Vec::new();
    for node in volume.record.members().filter_map(|server| server.node.as_ref()) {
        if !nodes.contains(node) {
            nodes.push(node.clone());
        }
    }
    nodes
}

/// A mount on its way on another node.
struct Starting {
    node: String,
    child: Child,
    input: Option<ChildStdin>,
    log: PathBuf,
}

impl Starting {
    fn start(
        volume: &Volume,
        index: usize,
        node: &str,
        words: &[String],
        said: &Sender<(usize, bool)>,
    ) -> Outcome<Starting> {
        let log = volume.dir.join(format!("mount-on-{index}.log"));
        let open = OpenOptions::new().write(true).truncate(true).create(true).mode(0o600).open(&log);
        let stderr = open.map_err(|error| Trouble::local(format!("open {}", log.display()), &error))?;
        let mut command = command(volume, node, words)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let failed = |error: &std::io::Error| Trouble::local(format!("mount on {node}: run the launcher"), error);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let output = child.stdout.take().expect("the child was given a pipe");
        let said = said.clone();
        std::thread::spawn(move || {
            // A launcher may print a greeting first.
            let mut lines = BufReader::new(output).lines().map_while(Result::ok);
            let is_ready = lines.any(|line| line.as_bytes() == crate::mount::READY.trim_ascii());
            // An error means that the mounts were called off.
            let _ = said.send((index, is_ready));
        });
        Ok(Starting { node: node.into(), input: child.stdin.take(), child, log })
    }

    /// Why there is no mount, as the node has told.
    fn failed(&mut self, deadline: Instant) -> Trouble {
        let mut status: Option<ExitStatus> = None;
        until(deadline, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        let code = status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).trim().replace('\n', "\n  ");
        let text = if text.is_empty() { "the launcher ended without a word".to_owned() } else { text };
        // Launchers have codes of their own for a node that cannot be reached.
        let exit = code.map_or(Exit::Again, |code| match Exit::of_number(code) {
            Exit::Fatal => Exit::Again,
            exit => exit,
        });
        Trouble::new(exit, text).during(format!("mount on {}", self.node))
    }
}

/// Mounts on every node by `aze mount WORDS`; returns when all mounts are there. If one cannot be, none stays.
pub fn mount(volume: &Volume, nodes: &[String], words: &[String]) -> Outcome<Exit> {
    let deadline = Instant::now() + MOUNT_TIME_MAX;
    let (said, hear) = channel();
    let mut starting = Vec::new();
    let mut result = Ok(());
    for (index, node) in nodes.iter().enumerate() {
        match Starting::start(volume, index, node, words, &said) {
            Ok(mount) => starting.push(mount),
            Err(trouble) => result = result.and(Err(trouble)),
        }
    }
    let mut waited_for: Vec<usize> = (0..starting.len()).collect();
    while result.is_ok() && !waited_for.is_empty() {
        result = match hear.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((index, true)) => {
                waited_for.retain(|other| *other != index);
                Ok(())
            }
            Ok((index, false)) => Err(starting[index].failed(deadline)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let late: Vec<&str> = waited_for.iter().map(|index| starting[*index].node.as_str()).collect();
                let text = format!("mount on {}: no mount within {MOUNT_TIME_MAX:?}", late.join(", "));
                Err(Trouble::new(Exit::Again, text))
            }
        };
    }
    if let Err(trouble) = result {
        call_off(starting);
        return Err(trouble);
    }
    for mount in &starting {
        // It only tells of a start.
        let _ = std::fs::remove_file(&mount.log);
    }
    if volume.record.settings.is_tied {
        hold::start(&volume.record.name, starting.iter_mut().filter_map(|mount| mount.input.take()).collect(), None)?;
    }
    Ok(Exit::Done)
}

/// The end of their input ends the mounts; launchers that stay are ended.
fn call_off(mut mounts: Vec<Starting>) {
    mounts.iter_mut().for_each(|mount| drop(mount.input.take()));
    let deadline = Instant::now() + CALL_OFF_TIME;
    for mut mount in mounts {
        if !until(deadline, || matches!(mount.child.try_wait(), Ok(Some(_)))) {
            errln!("aze: mount: the launcher for {} does not end: ending it; look there for a mount", mount.node);
            // An error means that it has ended after all.
            let _ = mount.child.kill();
            let _ = mount.child.wait();
        }
    }
}

/// Unmounts `dirs` on every node.
pub fn umount(volume: &Volume, nodes: &[String], dirs: &[String], is_lazy: bool) -> Outcome<Exit> {
    let mut words: Vec<String> = vec!["umount".into()];
    words.extend(is_lazy.then(|| "--lazy".into()));
    words.push("--".into());
    words.extend_from_slice(dirs);
    let tally = Tally::new("umount");
    let failed = |node: &str, error| Trouble::local(format!("on {node}: run the launcher"), &error);
    // All at once, then their ends.
    let start = |node: &String| command(volume, node, &words)?.spawn().map_err(|error| failed(node, error));
    let started: Vec<Outcome<Child>> = nodes.iter().map(start).collect();
    for (node, child) in nodes.iter().zip(started) {
        let ended = child.and_then(|mut child| child.wait().map_err(|error| failed(node, error)));
        tally.note(ended.and_then(|status| match status.success() {
            true => Ok(()),
            false => Err(Trouble::new(Exit::Again, format!("on {node}: {status}"))),
        }));
    }
    Ok(tally.exit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;

    #[test]
    fn each_node_is_named_once_and_in_order() {
        assert_eq!(of(&examples::volume(&[Some("b"), Some("a"), Some("b"), Some("c")])), ["b", "a", "c"]);
        assert!(of(&examples::volume(&[None, None])).is_empty(), "no launcher started them");
    }
}
