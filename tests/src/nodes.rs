//! Nodes on one machine: network namespaces, each with a mount namespace and a host name. Needs root.

use crate::{Place, Ran, run, set_mode};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Network namespaces joined by one bridge of virtual cables, each with a mount namespace; removed at the end.
pub struct Nodes {
    tag: String,
    /// How many there are.
    pub count: u32,
    /// Of each node, a process that does nothing in its mount namespace.
    mounts: Vec<Child>,
}

impl Nodes {
    /// Nodes with the addresses 10.66.0.1, 10.66.0.2, ...
    pub fn new(tag: &str, count: u32) -> Nodes {
        let mut nodes = Nodes { tag: format!("{tag}{}", std::process::id()), count, mounts: Vec::new() };
        let ip = |line: &str| drop(run(Command::new("ip").args(line.split_whitespace())));
        let hub = nodes.hub();
        ip(&format!("netns add {hub}"));
        ip(&format!("-n {hub} link add br0 type bridge"));
        ip(&format!("-n {hub} link set br0 up"));
        for index in 1..=count {
            let name = nodes.name(index);
            ip(&format!("netns add {name}"));
            ip(&format!("-n {hub} link add port{index} type veth peer name eth0 netns {name}"));
            ip(&format!("-n {hub} link set port{index} master br0 up"));
            ip(&format!("-n {name} addr add 10.66.0.{index}/24 dev eth0"));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} link set lo up"));
            let rests = Command::new("nsenter")
                .args([
                    &format!("--net=/run/netns/{name}"),
                    "unshare",
                    "--uts",
                    "--mount",
                    "--propagation",
                    "private",
                    "sh",
                    "-c",
                    &format!("echo node{index} > /proc/sys/kernel/hostname; echo; exec sleep 1000"),
                ])
                .stdout(Stdio::piped())
                .spawn();
            let mut rests = rests.expect("unshare runs");
            let mut line = String::new();
            let output = BufReader::new(rests.stdout.take().expect("a pipe")).read_line(&mut line);
            assert_eq!(output.expect("a line"), 1, "it is in its namespace");
            nodes.mounts.push(rests);
        }
        nodes
    }

    /// The words that enter a node's namespaces.
    pub fn enter(&self, index: u32) -> String {
        let pid = self.mounts[index as usize - 1].id();
        format!("nsenter --target={pid} --net --uts --mount")
    }

    /// The name of the network namespace with the bridge, whose port of a node is `portN`.
    pub fn hub(&self) -> String {
        format!("{}hub", self.tag)
    }

    /// The name of a node's network namespace.
    pub fn name(&self, index: u32) -> String {
        format!("{}n{index}", self.tag)
    }

    /// A launcher that runs a program on a node and notes that it did. Each node has its own run
    /// directory, as nodes with their own /run have.
    pub fn launcher(&self, place: &Place) -> String {
        for index in 1..=self.count {
            let dir = place.path(&format!("run-10.66.0.{index}"));
            fs::create_dir(&dir).expect("a run directory");
            set_mode(&dir, 0o700);
        }
        let launcher = place.path("launch");
        let enter: Vec<String> =
            (1..=self.count).map(|i| format!("{i}) exec {} --wdns=\"$PWD\" \"$@\";;", self.enter(i))).collect();
        let script = format!(
            "#!/bin/sh\nhost=$1; shift\nexport AZE_RUN_DIR={0}/run-$host\necho \"$host $*\" >> {0}/launched\n\
             echo Welcome to $host\ncase ${{host##*.}} in\n{1}\nesac\necho unknown node >&2; exit 9\n",
            place.dir.display(),
            enter.join("\n")
        );
        fs::write(&launcher, script).expect("a launcher");
        set_mode(&launcher, 0o755);
        format!("{} {{host}}", launcher.display())
    }

    /// `aze` on a node, with the node's own run directory.
    pub fn aze(&self, place: &Place, index: u32, args: &[&str]) -> Ran {
        self.run(place, index, &[&[crate::program().to_str().expect("UTF-8")], args].concat())
    }

    /// A program on a node, with the node's own run directory.
    pub fn run(&self, place: &Place, index: u32, words: &[&str]) -> Ran {
        self.command(place, index, words).output().expect("nsenter runs").into()
    }

    /// The same, to be started.
    pub fn command(&self, place: &Place, index: u32, words: &[&str]) -> Command {
        let enter = self.enter(index);
        let mut enter = enter.split(' ');
        let mut command = Command::new(enter.next().expect("a program"));
        command.args(enter).arg(format!("--wdns={}", place.dir.display())).args(words);
        command.env("AZE_RUN_DIR", place.path(&format!("run-10.66.0.{index}"))).env_remove("AZE_VOLUME");
        command.env("XDG_CONFIG_HOME", place.path("config")).env("XDG_STATE_HOME", place.path("state"));
        command.env_remove("XDG_RUNTIME_DIR").current_dir(&place.dir).stdin(Stdio::null());
        command
    }

    /// Mounts a volume in the network of a node, where this test sees it.
    pub fn mount(&self, place: &Place, index: u32, volume: &str) -> PathBuf {
        let mount = place.path("mnt");
        fs::create_dir(&mount).expect("a directory for the mount");
        self.in_network(place, index, &["mount", "--name", volume, &mount.display().to_string()]).ok();
        mount
    }

    /// Takes such a mount down.
    pub fn umount(&self, place: &Place, index: u32, mount: &Path) -> Ran {
        self.in_network(place, index, &["umount", &mount.display().to_string()])
    }

    /// `aze` in the network of a node, and in the files of this test.
    fn in_network(&self, place: &Place, index: u32, words: &[&str]) -> Ran {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name(index))).arg(crate::program()).args(words);
        command.env("AZE_RUN_DIR", place.path(&format!("run-10.66.0.{index}"))).current_dir(&place.dir);
        command.env_remove("AZE_VOLUME").stdin(Stdio::null());
        command.output().expect("nsenter runs").into()
    }

    /// Cuts a node off from all others, or joins it again.
    pub fn cut(&self, index: u32, is_cut: bool) {
        let (port, how) = (format!("port{index}"), if is_cut { "down" } else { "up" });
        run(Command::new("ip").args(["-n", &self.hub(), "link", "set", &port, how]));
    }

    /// Has each node look as if it ran a kernel of its own.
    pub fn tell_systems_apart(&self, place: &Place) {
        for index in 1..=self.count {
            let id = place.path(&format!("boot_id-{index}"));
            fs::write(&id, format!("{index:08x}-0000-4000-8000-000000000000\n")).expect("a file");
            let id = id.to_str().expect("UTF-8");
            self.run(place, index, &["mount", "--bind", id, "/proc/sys/kernel/random/boot_id"]).ok();
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for process in &mut self.mounts {
            // One that has ended already needs no ending.
            let _ = process.kill();
            let _ = process.wait();
        }
        let names = (1..=self.count).map(|index| self.name(index)).chain([self.hub()]);
        for name in names {
            // A namespace that is left behind only shows up in the next listing.
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}
