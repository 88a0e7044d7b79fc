//! `aze job`: job scripts whose `#AZE` lines say what a volume, its input and its results are.

use aze_tests::{Place, Ran, program, set_mode, signal, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A job with a directory of input and one for results.
struct Job {
    place: Place,
    script: PathBuf,
}

impl Job {
    /// A script with these lines below `#AZE up` and those of input and results, with `stage_out` behind the latter.
    fn new(first: &str, stage_out: &str, body: &str) -> Job {
        let place = Place::new();
        fs::create_dir_all(place.path("in/sub")).expect("directories");
        fs::write(place.path("in/sub/file"), "input").expect("a file");
        let (script, dir) = (place.path("run.sh"), place.dir.display());
        let text = format!(
            "{first}\n#SBATCH --nodes=1\n#AZE up --servers 2 --size 256M\n#AZE stage in \"{dir}/in\" aze:/input\n\
             #AZE stage out aze:/out \"{dir}/$RESULTS\" {stage_out}\nset -eu\n{body}\n"
        );
        fs::write(&script, text).expect("a script");
        set_mode(&script, 0o755);
        Job { place, script }
    }

    fn command(&self, options: &[&str]) -> Command {
        let words = [&["job"], options, &[self.script.to_str().expect("UTF-8")]].concat();
        let mut command = self.place.command(&words);
        self.with_environment(&mut command);
        command
    }

    fn with_environment(&self, command: &mut Command) {
        let bin = program().parent().expect("a directory").display().to_string();
        let path = format!("{bin}:{}", std::env::var("PATH").expect("a PATH"));
        command.env("PATH", path).env("RESULTS", "results").env("HERE", &self.place.dir);
    }

    fn run(&self, options: &[&str], arguments: &[&str]) -> Ran {
        self.command(options).args(arguments).output().expect("aze starts").into()
    }

    fn start(&self) -> Child {
        self.command(&[]).stderr(Stdio::null()).spawn().expect("aze starts")
    }

    /// The result, when a receipt says that it is there.
    fn result(&self, name: &str) -> String {
        let receipts = fs::read_dir(&self.place.dir).expect("a directory").flatten().map(|entry| entry.path());
        let of = |path: &PathBuf| path.extension().is_some_and(|end| end == "jsonl");
        let receipts: Vec<PathBuf> = receipts.filter(of).collect();
        assert!(!receipts.is_empty(), "there is no receipt");
        let is_true =
            |path: &PathBuf| self.place.aze(&["receipt".as_ref(), "verify".as_ref(), path.as_os_str()]).code == 0;
        assert!(receipts.iter().any(is_true), "no receipt is true");
        fs::read_to_string(self.place.path("results").join(name)).expect("a result")
    }

    fn is_over(&self) -> bool {
        let left = fs::read_dir(self.place.path("run")).map(|entries| entries.flatten().count());
        left.unwrap_or(0) == 0
    }
}

const WORK: &str = "aze cat aze:/input/sub/file >\"$HERE/seen\"\necho \"result $*\" >\"$HERE/new\"\naze cp \"$HERE/new\" aze:/out/file";

#[test]
fn a_script_has_its_input_before_it_begins_and_its_results_are_staged_out() {
    let job = Job::new("#!/bin/bash", "", &format!("{WORK}\ncase $BASH_VERSION in ?*) exit 7 ;; esac"));
    let ran = job.run(&[], &["one", "two"]).code(7);
    assert_eq!(fs::read_to_string(job.place.path("seen")).expect("a file"), "input", "{}", ran.err);
    assert_eq!(job.result("file"), "result one two\n");
    assert!(job.is_over(), "the volume has ended");
    // As a batch system starts it whose job script has this first line.
    let job = Job::new("#!/usr/bin/env -S aze job", "", WORK);
    let mut command = Command::new(&job.script);
    let template = job.place.command(&[""; 0]);
    command.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?)))).env_remove("AZE_VOLUME");
    command.env_remove("XDG_RUNTIME_DIR").arg("x");
    job.with_environment(&mut command);
    Ran::from(command.output().expect("it starts")).ok();
    assert_eq!(job.result("file"), "result x\n");
    assert!(job.is_over());
}

/// Without a line that stages out: the volume itself says where results belong. They were dropped if that was its backing.
#[test]
fn results_go_to_the_directory_over_which_the_volume_lies() {
    let job = Job::new("#!/bin/sh", "", "");
    let dir = job.place.dir.display();
    let text = format!(
        "#!/bin/sh\n#AZE up --servers 2 --size 256M --backing \"{dir}/in\"\nset -eu\naze cp aze:/sub/file aze:/sub/new\n"
    );
    fs::write(&job.script, &text).expect("a script");
    let ran = job.run(&[], &[]).ok();
    assert_eq!(fs::read_to_string(job.place.path("in/sub/new")).expect("a result"), "input", "{}", ran.err);
    assert!(job.is_over());
    // What cannot be written there is told by the exit code.
    let changed = format!("{text}aze touch aze:/sub/file\necho other >\"{dir}/in/sub/file\"\n");
    fs::write(&job.script, changed).expect("a script");
    let ran = job.run(&[], &[]);
    assert!(ran.code != 0 && ran.err.contains("sub/file"), "{}: {}", ran.code, ran.err);
    assert_eq!(fs::read_to_string(job.place.path("in/sub/file")).expect("a file"), "other\n");
    assert!(job.is_over());
}

/// Lines without a destination were taken for directories to be made in the volume, and ended the job.
#[test]
fn lines_without_a_destination_warm_up_and_take_removals_to_the_directory_below() {
    let job = Job::new("#!/bin/sh", "", "");
    let dir = job.place.dir.display();
    let text = format!(
        "#!/bin/sh\n#AZE up --servers 2 --size 256M --backing \"{dir}/in\"\n#AZE stage in aze:/sub\n#AZE stage out --delete\nset -eu\n\
         aze mv aze:/sub/file aze:/sub/moved\n"
    );
    fs::write(&job.script, &text).expect("a script");
    let ran = job.run(&[], &[]).ok();
    assert!(ran.err.contains("in the volume: names of 1 directory; data of 1 file"), "{}", ran.err);
    assert_eq!(fs::read_to_string(job.place.path("in/sub/moved")).expect("a result"), "input", "{}", ran.err);
    assert!(!job.place.path("in/sub/file").exists() && job.is_over());
}

#[test]
fn nothing_runs_before_all_lines_and_the_input_are_good() {
    let job = Job::new("#!/bin/sh", "--no-such-option", "touch \"$HERE/began\"");
    let told = job.run(&[], &[]).code(2);
    assert!(told.err.contains("run.sh:5: unexpected argument '--no-such-option'"), "{}", told.err);
    let job = Job::new("#!/bin/sh", "", "touch \"$HERE/began\"");
    let told = Ran::from(job.command(&[]).env_remove("RESULTS").output().expect("aze starts")).code(2);
    assert!(told.err.contains("run.sh:5: the variable RESULTS is not set"), "{}", told.err);
    fs::remove_dir_all(job.place.path("in")).expect("it goes");
    let told = job.run(&[], &[]).code(3);
    assert!(told.err.contains("the script was not run"), "{}", told.err);
    assert!(!job.place.path("began").exists() && job.is_over());
    // Results that cannot be staged out: the code of the stage, if the script has none of its own.
    let job = Job::new("#!/bin/sh", "", WORK);
    fs::write(job.place.path("results"), "in the way").expect("a file");
    assert_eq!(job.run(&[], &[]).code, 5);
    assert!(job.is_over());
}

#[test]
fn signals_go_to_the_script_and_its_results_are_staged_out_all_the_same() {
    let waits = "touch \"$HERE/began\"\nn=0; while [ $n -lt 1000 ]; do n=$((n+1)); sleep 0.02; done";
    for (number, code) in [(libc::SIGUSR1, 3), (libc::SIGTERM, 128 + libc::SIGTERM)] {
        let job = Job::new("#!/bin/sh", "", &format!("{WORK}\ntrap 'exit 3' USR1\n{waits}"));
        let mut child = job.start();
        wait_until("the script works", || job.place.path("began").exists());
        signal(child.id(), number);
        assert_eq!(child.wait().expect("a child").code(), Some(code));
        assert_eq!(job.result("file"), "result \n");
        assert!(job.is_over());
    }
    // Killed, it leaves nothing but the script, which is on its own.
    let job = Job::new(
        "#!/bin/sh",
        "",
        "touch \"$HERE/began\"\nwhile aze ls aze:/ >/dev/null 2>&1; do sleep 0.02; done; touch \"$HERE/gone\"",
    );
    let mut child = job.start();
    wait_until("the script works", || job.place.path("began").exists());
    signal(child.id(), libc::SIGKILL);
    child.wait().expect("a child");
    wait_until("the volume has ended", || job.is_over() && job.place.path("gone").exists());
}

#[test]
fn results_are_staged_out_while_the_script_runs() {
    let soon =
        |path: &str| format!("n=0; until [ -s \"$HERE/{path}\" ]; do n=$((n+1)); [ $n -lt 1000 ]; sleep 0.02; done");
    let wait = soon("results/file");
    let job = Job::new("#!/bin/sh", "--every 50ms", &format!("{WORK}\n{wait}\naze mv aze:/out/file aze:/out/last"));
    job.run(&[], &[]).ok();
    assert_eq!(job.result("last"), "result \n", "the last round is after the script");
    // Where the end of the job is known, without being asked: the input counts as a result here.
    let job = Job::new("#!/bin/sh", "", &soon("results/sub/file"));
    let text = fs::read_to_string(&job.script).expect("a script").replace("aze:/input", "aze:/out");
    fs::write(&job.script, text).expect("a script");
    let ran: Ran = job.command(&[]).env("SLURM_JOB_END_TIME", "8000000000").output().expect("aze starts").into();
    assert!(ran.code == 0 && !ran.err.contains("warning"), "{} {}", ran.code, ran.err);
    assert_eq!(job.result("sub/file"), "input");
}

#[test]
fn a_check_names_all_that_would_stop_the_job() {
    let job = Job::new("#!/bin/sh", "", "");
    job.run(&["--check"], &[]).ok();
    // Variables of the job are not known before.
    Ran::from(job.command(&["--check"]).env_remove("RESULTS").output().expect("aze starts")).ok();
    fs::File::create(job.place.path("in/large")).and_then(|file| file.set_len(1 << 30)).expect("a large file");
    let told = job.run(&["--check"], &[]).code(5);
    assert!(told.err.contains("run.sh:4: the input has 1.00 GiB, and the volume 256 MiB"), "{}", told.err);
    fs::remove_dir_all(job.place.path("in")).expect("it goes");
    let mut command = job.command(&["--check"]);
    let told = Ran::from(command.env("RESULTS", "run.sh/results").output().expect("aze starts")).code(5);
    assert!(told.err.contains("run.sh:4: read ") && told.err.contains("run.sh:5: make "), "{}", told.err);
    assert!(told.err.contains("2 problems, named above"), "{}", told.err);
    assert!(job.is_over() && !job.place.path("results").exists(), "nothing was started");
}

#[test]
fn hooks_start_and_finish_a_volume_around_a_job() {
    let job = Job::new("#!/bin/sh", "", "");
    let of = |options: &[&str]| -> Ran {
        let mut command = job.command(options);
        command.env("SLURM_JOB_ID", "77").env("SLURM_JOB_NODELIST", "n1").env("PATH", stand_ins(&job.place));
        command.output().expect("aze starts").into()
    };
    assert_eq!(of(&["--start"]).ok().out, "export AZE_VOLUME='job-77'\n");
    assert_eq!(job.place.aze(&["cat", "aze:/input/sub/file"]).ok().out, "input");
    job.place.aze(&["cp", "run.sh", "aze:/out/file"]).ok();
    of(&["--finish", "--within", "1m"]).ok();
    assert!(job.result("file").starts_with("#!/bin/sh") && job.is_over());
    // There is no time left: the rest is named, and the volume ends.
    of(&["--start"]).ok();
    job.place.aze(&["cp", "run.sh", "aze:/out/more"]).ok();
    let told = of(&["--finish", "--within", "0s"]);
    assert_ne!(told.code, 0);
    assert!(told.err.contains("not all results of volume 'job-77'"), "{}", told.err);
    assert!(told.out.contains("aze:/out/more (new)"), "{}", told.out);
    assert!(job.is_over());
    assert_eq!(of(&["--finish"]).code, 3, "nothing runs any more");
}

/// A PATH with programs that stand for Slurm's.
fn stand_ins(place: &Place) -> String {
    let bin = place.path("bin");
    fs::create_dir_all(&bin).expect("a directory");
    for (name, text) in [("scontrol", "echo 127.0.0.1"), ("srun", "shift 5; exec \"$@\"")] {
        let path: &Path = &bin.join(name);
        fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a program");
        set_mode(path, 0o755);
    }
    format!(
        "{}:{}:{}",
        bin.display(),
        program().parent().expect("a directory").display(),
        std::env::var("PATH").expect("a PATH")
    )
}
