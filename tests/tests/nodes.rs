//! A volume over several nodes, on the real program: network namespaces stand for nodes, and a
//! launcher, or ssh to a daemon of this test's own, starts the servers there. Needs root.

use aze_tests::nodes::Nodes;
use aze_tests::{Place, make_tree, run, wait_until};
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

#[test]
fn a_volume_over_nodes_by_a_launcher() {
    let place = Place::new();
    let nodes = Nodes::new("azt", 3);
    let launcher = nodes.launcher(&place);
    let hosts = "10.66.0.1,10.66.0.2,10.66.0.3";
    // The launcher's network is not that of the data.
    for index in 1..=3 {
        run(Command::new("ip")
            .args(["-n", &nodes.name(index), "addr", "add"])
            .arg(format!("10.67.0.{index}/16"))
            .args(["dev", "eth0"]));
    }
    let up = ["up", "--name", "wide", "--hosts", hosts, "--launcher", &launcher, "--size", "1G", "--network"];
    let nowhere = nodes.aze(&place, 1, &[&up[..], &["10.68.0.0/16"]].concat()).code(5);
    assert!(
        nowhere.err.contains("this node has no such address: it has lo 127.0.0.1, eth0 10.66.0."),
        "{}",
        nowhere.err
    );
    nodes.aze(&place, 1, &[&up[..], &["10.67.0.0/16"]].concat()).ok();
    let record = fs::read_to_string(place.path("run-10.66.0.1/wide/volume.json")).expect("a record");
    assert_eq!((record.matches("tcp:10.67.0.").count(), record.matches("tcp:10.66.0.").count()), (3, 0), "{record}");

    let tree = place.path("tree");
    make_tree(&tree, 80);
    nodes.aze(&place, 1, &["cp", "-r", "tree", "aze:/tree"]).ok();
    nodes.aze(&place, 3, &["cp", "-r", "aze:/tree", "back"]).ok();
    run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(place.path("back")));
    let status = nodes.aze(&place, 2, &["status", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("status is JSON");
    let servers = status["servers"].as_array().expect("servers");
    assert_eq!(servers.len(), 3);
    assert!(
        servers.iter().all(|server| server["inodes"].as_u64().is_some_and(|count| count > 0)),
        "all nodes hold files: {status}"
    );
    nodes.aze(&place, 1, &["down"]).ok();
    for index in 1..=3 {
        let left = fs::read_dir(place.path(&format!("run-10.66.0.{index}"))).expect("a run directory").count();
        assert_eq!(left, 0, "nothing is left on node {index}");
    }
}

/// The processes called `aze` whose environment has this word.
fn processes_with(word: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let is_aze = fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.trim() == "aze");
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if is_aze && String::from_utf8_lossy(&environment).contains(word) {
            found.push(pid);
        }
    }
    found
}

/// Those of them that run `aze VERB`.
fn processes_that_run(verb: &str, word: &str) -> Vec<i32> {
    let line = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    processes_with(word).into_iter().filter(|pid| line(pid).split('\0').nth(1) == Some(verb)).collect()
}

/// How often each node has mounted the volume `wide`. A namespace starts with a copy of every mount of the machine, and
/// a program that was killed may have left one there.
fn mounts_on(nodes: &Nodes, place: &Place) -> Vec<usize> {
    let seen = |index| nodes.run(place, index, &["cat", "/proc/self/mountinfo"]).ok().out;
    (1..=nodes.count).map(|index| seen(index).matches("fuse.aze azekura:wide").count()).collect()
}

/// All nodes see the volume, or none; and when the processes that started it are killed, nothing is left on any node.
#[test]
fn a_volume_over_nodes_is_mounted_on_all_and_ends_with_its_starter() {
    let place = Place::new();
    let nodes = Nodes::new("azh", 3);
    let launcher = nodes.launcher(&place);
    let hosts = "10.66.0.1,10.66.0.2,10.66.0.3";
    let up = ["up", "--name", "wide", "--hosts", hosts, "--launcher", &launcher, "--size", "1G"];
    nodes.aze(&place, 1, &up).ok();
    // Each node has a file system of its own there.
    fs::create_dir_all(place.path("local")).expect("a directory");
    for index in 1..=3 {
        nodes.run(&place, index, &["mount", "-t", "tmpfs", "tmpfs", "local"]).ok();
    }
    let at = place.path("local/vol").display().to_string();
    // On the second node something is in the way.
    fs::create_dir_all(place.path("blocked")).expect("a directory");
    nodes.run(&place, 2, &["mount", "-t", "tmpfs", "tmpfs", "blocked"]).ok();
    nodes.run(&place, 2, &["touch", "blocked/file"]).ok();
    let refused = nodes.aze(&place, 1, &["mount", "--all-nodes", "blocked"]).code(5);
    assert!(refused.err.contains("mount on 10.66.0.2: ") && refused.err.contains("not empty"), "{}", refused.err);
    assert_eq!(mounts_on(&nodes, &place), [0, 0, 0]);

    nodes.aze(&place, 1, &["mount", "--all-nodes", "local/vol"]).ok();
    assert_eq!(mounts_on(&nodes, &place), [1, 1, 1]);
    nodes.run(&place, 3, &["sh", "-c", "echo seen > local/vol/file"]).ok();
    assert_eq!(nodes.run(&place, 2, &["cat", "local/vol/file"]).ok().out, "seen\n");
    nodes.aze(&place, 2, &["umount", "--all-nodes", &at]).ok();
    assert_eq!(mounts_on(&nodes, &place), [0, 0, 0]);
    for index in 1..=3 {
        wait_until("the directory is gone with the mount", || {
            nodes.run(&place, index, &["ls", "local"]).ok().out.is_empty()
        });
    }
    nodes.aze(&place, 1, &["mount", "--all-nodes", "local/vol"]).ok();

    // The only server of a node has ended, which the mount there sees: directories are renamed without it.
    nodes.run(&place, 2, &["sh", "-c", "cd local/vol && mkdir -p p0/d p1/d p2/d p3/d p4/d p5/d p6/d p7/d"]).ok();
    let word = format!("AZE_RUN_DIR={}/run-10.66.0.2", place.dir.display());
    let servers = processes_that_run("serve", &word);
    assert_eq!(servers.len(), 1);
    aze_tests::signal(servers[0] as u32, libc::SIGKILL);
    let rename = "cd local/vol && for p in p?; do mv $p/d $p/e & done 2>/dev/null; wait; ls -d p?/e";
    wait_until("directories are renamed", || !nodes.run(&place, 1, &["sh", "-c", rename]).out.is_empty());

    // The end of a job that nothing else ends: what ran where the volume was started is killed.
    let word = format!("AZE_RUN_DIR={}/run-10.66.0.1", place.dir.display());
    let holders = processes_that_run("hold", &word);
    assert_eq!(holders.len(), 2, "one for the servers, one for the mounts");
    for pid in holders {
        aze_tests::signal(pid as u32, libc::SIGKILL);
    }
    let word = format!("AZE_RUN_DIR={}/run-10.66.0.", place.dir.display());
    wait_until("the servers and mounts end", || processes_with(&word).is_empty());
    assert_eq!(mounts_on(&nodes, &place), [0, 0, 0]);
    for index in 1..=3 {
        let run_dir = place.path(&format!("run-10.66.0.{index}"));
        let left = run(Command::new("find").arg(&run_dir)).out;
        assert_eq!(left, format!("{}\n", run_dir.display()), "nothing is left on node {index}");
    }

    // Unless it is told not to.
    nodes.aze(&place, 1, &[&up[..], &["--detach"]].concat()).ok();
    assert_eq!(processes_with(&word).len(), 3);
    nodes.aze(&place, 1, &["down"]).ok();
}

/// A volume in directories of its nodes comes back on them, whichever server has died, its keeper too.
#[test]
fn a_volume_over_nodes_is_started_again() {
    let place = Place::new();
    let nodes = Nodes::new("azr", 3);
    let launcher = nodes.launcher(&place);
    let hosts = "10.66.0.1,10.66.0.2,10.66.0.3";
    // The nodes share the file system: each server makes a directory of its own in it.
    let storage = place.path("storage").display().to_string();
    let up = ["up", "--name", "kept", "--hosts", hosts, "--launcher", &launcher, "--size", "1G", "--storage", &storage];
    nodes.aze(&place, 1, &up).ok();
    let tree = place.path("tree");
    make_tree(&tree, 40);
    nodes.aze(&place, 1, &["cp", "-r", "tree", "aze:/tree"]).ok();
    let pid_of = |server: usize| {
        let record = fs::read(place.path("run-10.66.0.1/kept/volume.json")).expect("a record");
        let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
        record["servers"][server]["process"]["pid"].as_u64().expect("a pid") as i32
    };
    for dead in [1, 0] {
        let pid = pid_of(dead);
        aze_tests::signal(pid as u32, libc::SIGKILL);
        nodes.aze(&place, 1, &["restart"]).ok();
        let status = nodes.aze(&place, 3, &["status"]).ok();
        assert_eq!(status.out.matches(" up ").count(), 3, "{}", status.out);
        nodes.aze(&place, 3, &["check"]).ok();
        let back = format!("back-{dead}");
        nodes.aze(&place, 2, &["cp", "-r", "aze:/tree", &back]).ok();
        run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&tree).arg(place.path(&back)));
    }
    nodes.aze(&place, 1, &["down"]).ok();
}

/// Four ranks measure a volume of two nodes from both of them; what they do to a directory is the same.
#[test]
fn a_volume_over_nodes_is_measured_on_each_of_them() {
    let place = Place::new();
    let nodes = Nodes::new("azm", 2);
    let launcher = nodes.launcher(&place);
    let hosts = "10.66.0.1,10.66.0.2";
    nodes.aze(&place, 1, &["up", "--name", "wide", "--hosts", hosts, "--launcher", &launcher, "--size", "1G"]).ok();
    let tiny = ["bench", "io500", "--short", "--repeat", "1", "--stonewall", "100ms", "--warm", "16M", "--json"];
    let measured = |more: &[&str]| {
        let ran = nodes.aze(&place, 1, &[&tiny, more].concat()).ok();
        serde_json::from_str::<serde_json::Value>(&ran.out).expect("one object")
    };
    let on_volume = measured(&["--procs", "4"]);
    assert_eq!((&on_volume["nodes"], &on_volume["procs"]), (&2.into(), &4.into()));
    fs::create_dir(place.path("shared")).expect("a directory");
    let in_directory = measured(&["--target", "shared", "--ranks-hosts", hosts, "--launcher", &launcher]);
    assert_eq!((&in_directory["nodes"], &in_directory["procs"]), (&2.into(), &8.into()));
    let launched = fs::read_to_string(place.path("launched")).expect("what the launcher noted");
    for index in 1..=2 {
        let ranks = launched
            .lines()
            .filter(|line| line.starts_with(&format!("10.66.0.{index} ")) && line.contains("io500-rank"));
        assert_eq!(ranks.count(), 2 + 4, "{launched}");
    }
    assert_eq!(nodes.aze(&place, 2, &["ls", "aze:/"]).ok().out, "");
    assert_eq!(fs::read_dir(place.path("shared")).expect("a directory").count(), 0);
    let nobody = nodes.aze(&place, 1, &[&tiny[..], &["--ranks-hosts", "10.66.0.9"]].concat());
    assert_ne!(nobody.code, 0);
    // Whichever of them is noticed first.
    assert!(nobody.err.contains("\"error\":\"rank "), "{}", nobody.err);
    nodes.aze(&place, 1, &["down"]).ok();
}

/// An ssh daemon on loopback that accepts the key of this test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended already needs no ending.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_sshd(dir: &Path, port: u16) -> Daemon {
    for key in ["host", "user"] {
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)));
    }
    fs::copy(dir.join("user.pub"), dir.join("authorized")).expect("the key that is let in");
    let config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized\nStrictModes no\n\
         PidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nSetEnv AZE_RUN_DIR={0}/run\n",
        dir.display()
    );
    fs::write(dir.join("sshd_config"), config).expect("a configuration");
    fs::create_dir_all("/run/sshd").expect("where sshd separates its privileges");
    let child = Command::new("/usr/sbin/sshd")
        .args(["-D", "-e", "-f"])
        .arg(dir.join("sshd_config"))
        .stderr(Stdio::null())
        .spawn();
    let daemon = Daemon(child.expect("sshd starts"));
    wait_until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    daemon
}

#[test]
fn the_doctor_looks_at_every_node_and_the_network_between_them() {
    let place = Place::new();
    let nodes = Nodes::new("azd", 3);
    let launcher = nodes.launcher(&place);
    let look = |hosts: &str, code: i32| -> Vec<serde_json::Value> {
        let args = ["doctor", "--hosts", hosts, "--launcher", &launcher, "--json"];
        let ran = nodes.aze(&place, 1, &args).code(code);
        ran.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let state = |node: &serde_json::Value, check: &str| {
        let findings = node["findings"].as_array().expect("findings");
        findings.iter().find(|finding| finding["check"] == check).map(|finding| finding["state"].clone())
    };
    let all = look("10.66.0.1,10.66.0.2,10.66.0.3", 0);
    assert_eq!(all.len(), 3);
    for node in &all {
        for check in ["launcher", "build", "directory", "memory", "descriptors", "clock"] {
            assert_eq!(state(node, check), Some("good".into()), "{check}: {node}");
        }
        // On a busy machine a pair may be slower than the others, and the doctor warns of it.
        assert!(matches!(state(node, "network"), Some(state) if state == "good" || state == "warned"), "{node}");
    }
    // The launcher reaches the third node, and other nodes do not.
    run(Command::new("ip").args(["-n", &nodes.hub(), "link", "set", "port3", "down"]));
    let cut = look("10.66.0.2,10.66.0.3", 5);
    assert_eq!(cut.len(), 2);
    assert!(cut.iter().all(|node| state(node, "network") == Some("bad".into())), "{cut:?}");
    let gone = look("10.66.0.1,10.66.0.9", 6);
    assert_eq!(gone.len(), 2);
    assert_eq!(state(&gone[1], "launcher"), Some("bad".into()));
}

#[test]
fn a_volume_over_nodes_by_ssh() {
    let place = Place::new();
    let port = 20_000 + (std::process::id() % 20_000) as u16;
    let _daemon = start_sshd(&place.dir, port);
    let launcher = format!(
        "ssh -q -p {port} -i {0}/user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null {{host}}",
        place.dir.display()
    );
    place.aze(&["up", "--name", "far", "--hosts", "127.0.0.1", "--launcher", &launcher, "--size", "1G"]).ok();
    place.aze(&["mkdir", "aze:/d"]).ok();
    place.aze(&["ls", "aze:/"]).ok();
    fs::write(place.path("f"), "contents").expect("a file");
    place.aze(&["stage", "in", "f", "aze:/d/f", "--nodes", "all", "--quiet"]).ok();
    let staged = place.aze(&["stage", "out", "aze:/d", "out", "--nodes", "127.0.0.1", "--json"]).ok();
    let staged: serde_json::Value = serde_json::from_str(&staged.out).expect("JSON");
    let share = serde_json::json!([{ "node": "127.0.0.1", "copied_bytes": 8, "read_back_bytes": 8, "lost": null }]);
    assert_eq!((&staged["proven"], &staged["nodes"]), (&2.into(), &share), "{staged}");
    assert_eq!(fs::read(place.path("out/f")).expect("a file"), b"contents");
    wait_until("its worker has ended", || processes_that_run("stage", place.dir.to_str().expect("UTF-8")).is_empty());
    place.aze(&["down", "--discard"]).ok();

    // A killed ssh says nothing to its server; that its connection has ended does.
    place.aze(&["up", "--name", "far", "--hosts", "127.0.0.1", "--launcher", &launcher, "--size", "1G"]).ok();
    let record = fs::read(place.path("run/far/volume.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_slice(&record).expect("JSON");
    let ssh = record["servers"][0]["launcher"]["pid"].as_i64().expect("a pid") as i32;
    aze_tests::signal(ssh as u32, libc::SIGKILL);
    let word = format!("AZE_RUN_DIR={}/run", place.dir.display());
    wait_until("its server ends", || processes_with(&word).is_empty());
    assert_eq!(fs::read_dir(place.path("run")).expect("a run directory").count(), 0);
}
