//! Which nodes a command works on, and how it runs a program on each: the options that such commands share.

use crate::batch::System;
use crate::exit::{Outcome, Trouble};
use crate::{launch, show};
use std::path::PathBuf;

/// The options.
#[derive(clap::Args)]
pub struct Hosts {
    /// Nodes to run servers on, separated by commas.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub hosts: Vec<String>,
    /// File with a node's name at the beginning of each line.
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub hostfile: Option<PathBuf>,
    /// Take the nodes of the job of this batch system that this runs in, and its way to run a program on them.
    #[arg(long, value_enum, value_name = "SYSTEM", conflicts_with_all = ["hosts", "hostfile"])]
    pub from: Option<System>,
    /// How to run a program on a node; {host} stands for its name. If not given: the way of the batch system in
    /// --from, srun as a step of the Slurm job that this runs in, else ssh.
    #[arg(long, value_name = "WORDS")]
    pub launcher: Option<String>,
    /// Where the nodes have this program, if not in the same place.
    #[arg(long, value_name = "PATH")]
    pub remote_aze: Option<PathBuf>,
}

impl Hosts {
    /// The nodes, each once, in the order in which they were given; none: this machine.
    ///
    /// # Errors
    /// A file that cannot be read or names no node; those of [`System::nodes`].
    pub fn names(&self) -> Outcome<Vec<String>> {
        if let Some(system) = self.from {
            return Ok(distinct(system.nodes()?.iter().map(String::as_str)));
        }
        let Some(path) = &self.hostfile else { return Ok(distinct(self.hosts.iter().map(|host| host.trim()))) };
        let text = std::fs::read_to_string(path)
            .map_err(|error| Trouble::local(format!("read {}", path.display()), &error))?;
        let names = parse_file(&text);
        if names.is_empty() {
            return Err(Trouble::usage(format!("--hostfile {}: names no host", path.display())));
        }
        Ok(names)
    }

    /// The words of the launcher, with `{host}`.
    pub fn launcher(&self) -> &str {
        match (&self.launcher, self.from) {
            (Some(words), _) => words,
            (None, Some(system)) => system.launcher(),
            (None, None) => launch::default_launcher(),
        }
    }

    /// What a batch system has said, for people: its nodes, and how programs are run on them.
    pub fn told(&self, names: &[&str]) -> Option<String> {
        const NAMED_MAX: usize = 4;
        let mut list = names[..names.len().min(NAMED_MAX)].join(", ");
        if names.len() > NAMED_MAX {
            list.push_str(", …");
        }
        let (word, count) = (self.from?.word(), show::count(names.len() as u64, "node"));
        Some(format!("--from {word}: {count} ({list}), servers are started by '{}'", self.launcher()))
    }

    /// This program's path on the nodes.
    ///
    /// # Errors
    /// What the system said about this process.
    pub fn program(&self) -> Outcome<PathBuf> {
        match &self.remote_aze {
            Some(path) => Ok(path.clone()),
            None => std::env::current_exe().map_err(|error| Trouble::local("find this program's file", &error)),
        }
    }
}

fn parse_file(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    distinct(lines.filter_map(|line| line.split_whitespace().next()))
}

fn distinct<'a>(hosts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    for host in hosts.filter(|host| !host.is_empty()) {
        if !list.iter().any(|known| known == host) {
            list.push(host.into());
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostfile_names_each_node_once() {
        assert_eq!(parse_file("# nodes\nn1 slots=4\n\nn2 # second\nn1\n"), ["n1", "n2"]);
        assert_eq!(parse_file("#\n"), Vec::<String>::new());
    }
}
