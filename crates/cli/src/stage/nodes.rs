//! The nodes that `aze stage --nodes` means, and how a worker is started on one: `aze stage worker`, by the volume's launcher.

use crate::exit::{Exit, Outcome, Trouble};
use crate::mount_nodes;
use crate::session::Session;
use crate::sys;
use aze_copy::stage::team::message::Volumes;
use aze_copy::stage::team::{Launched, Launcher, Started, Team};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::Arc;

/// Nodes of one stage, at most; of more, the first ones.
const NODES_MAX: usize = 64;

/// What `--nodes` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All nodes of the volume.
    All,
    /// So many of them.
    Count(usize),
    /// These.
    Named(Vec<String>),
}

/// Reads what `--nodes` was given.
pub fn parse(text: &str) -> Result<Wanted, String> {
    if text == "all" {
        return Ok(Wanted::All);
    }
    if let Ok(count) = text.parse() {
        return if count == 0 {
            Err("no node can copy nothing: give 1 or more".into())
        } else {
            Ok(Wanted::Count(count))
        };
    }
    let mut names: Vec<String> = Vec::new();
    for name in text.split(',').map(str::trim) {
        if name.is_empty() {
            return Err("expected 'all', a number, or names of nodes with commas between them".into());
        }
        if !names.iter().any(|known| known == name) {
            names.push(name.into());
        }
    }
    Ok(Wanted::Named(names))
}

/// The nodes of a volume that are meant; none if no launcher has started its servers, and nothing else is asked for.
fn choose(wanted: &Wanted, all: Vec<String>) -> Outcome<Vec<String>> {
    let has = |count: usize| format!("the volume has {}", crate::show::count(count as u64, "node"));
    match wanted {
        Wanted::All => Ok(all.into_iter().take(NODES_MAX).collect()),
        // The one where the command runs.
        Wanted::Count(1) if all.is_empty() => Ok(all),
        Wanted::Count(count) if *count > all.len().min(NODES_MAX) => {
            let text = format!("--nodes {count}: {}, and {NODES_MAX} work at most", has(all.len().max(1)));
            Err(Trouble::usage(text))
        }
        Wanted::Count(count) => Ok(all.into_iter().take(*count).collect()),
        Wanted::Named(names) => {
            if let Some(other) = names.iter().find(|name| !all.contains(name)) {
                let known = if all.is_empty() { "no launcher has started its servers".into() } else { all.join(", ") };
                return Err(Trouble::usage(format!("--nodes: '{other}' is no node of the volume: {known}")));
            }
            if names.len() > NODES_MAX {
                return Err(Trouble::usage(format!("--nodes: {NODES_MAX} nodes work at most")));
            }
            Ok(names.clone())
        }
    }
}

/// The workers of a stage on the nodes of a volume that are meant, with so many tasks on each; `None` if this process is to copy.
pub fn team(wanted: &Wanted, session: &Arc<Session>, volumes: Volumes, jobs: usize) -> Outcome<Option<Team>> {
    let names = choose(wanted, mount_nodes::of(&session.volume))?;
    if names.is_empty() {
        return Ok(None);
    }
    let launcher = VolumeLauncher { session: session.clone(), names: names.clone() };
    let is_named = matches!(wanted, Wanted::Named(_));
    Ok(Some(Team::new(names, is_named, volumes, jobs, Box::new(launcher))))
}

/// The launcher of a volume.
struct VolumeLauncher {
    session: Arc<Session>,
    names: Vec<String>,
}

impl Launcher for VolumeLauncher {
    fn start(&self, at: usize) -> Outcome<Started> {
        let node = &self.names[at];
        let missing = || Trouble::new(Exit::Fatal, format!("volume.json names no launcher for {node}"));
        let mut command = self.session.volume.command_on(node, &["stage", "worker"]).ok_or_else(missing)?;
        // A key that interrupts the shell's job must not reach a worker: it ends with the command.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Trouble::local("run the launcher", &error))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else { unreachable!("the child was given pipes") };
        let (input, output, errors) = (Box::new(input), Box::new(output), Box::new(errors));
        Ok(Started { input, output, errors, launched: Box::new(Launching(child)) })
    }

    fn nice(&self) -> i32 {
        sys::nice()
    }
}

/// A launcher at work.
struct Launching(Child);

impl Launched for Launching {
    fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Launching {
    fn drop(&mut self) {
        self.kill();
        // An error means that it has ended after all.
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn nodes_are_all_so_many_or_those_that_are_named() {
        assert_eq!(parse("all"), Ok(Wanted::All));
        assert_eq!(parse("3"), Ok(Wanted::Count(3)));
        assert_eq!(parse("n1, n2,n1"), Ok(Wanted::Named(named(&["n1", "n2"]))));
        for text in ["", "0", "n1,,n2", ","] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_nodes_of_the_volume_are_taken() {
        let three = || named(&["a", "b", "c"]);
        let chosen = |wanted: &Wanted, all: Vec<String>| choose(wanted, all).map_err(|trouble| trouble.exit);
        assert_eq!(chosen(&Wanted::All, three()), Ok(three()));
        assert_eq!(chosen(&Wanted::All, Vec::new()), Ok(Vec::new()), "this machine alone");
        assert_eq!(chosen(&Wanted::Count(1), Vec::new()), Ok(Vec::new()));
        assert_eq!(chosen(&Wanted::Count(2), three()), Ok(named(&["a", "b"])));
        assert_eq!(chosen(&Wanted::Count(4), three()), Err(Exit::Usage));
        assert_eq!(chosen(&Wanted::Count(2), Vec::new()), Err(Exit::Usage));
        assert_eq!(chosen(&Wanted::Named(named(&["c"])), three()), Ok(named(&["c"])));
        assert_eq!(chosen(&Wanted::Named(named(&["d"])), three()), Err(Exit::Usage));
        let many: Vec<String> = (0..100).map(|at| format!("n{at}")).collect();
        assert_eq!(chosen(&Wanted::All, many.clone()).map(|some| some.len()), Ok(NODES_MAX));
        assert_eq!(chosen(&Wanted::Named(many.clone()), many), Err(Exit::Usage));
    }
}
