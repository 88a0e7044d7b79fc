//! Standard output and standard error that no process reads, or that cannot be written: a command does its work to the
//! end and says so by its exit code.

use aze_tests::{Place, Ran};
use std::fs::File;
use std::process::Stdio;

/// The end for writing of a pipe that has no reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn into(place: &Place, args: &[&str], out: Stdio, err: Stdio) -> Ran {
    place.command(args).stdout(out).stderr(err).output().expect("aze starts").into()
}

/// `aze help up | true` panicked, and so did each command whose reader had gone.
#[test]
fn commands_end_quietly_when_their_reader_has_gone() {
    let place = Place::new();
    let up = into(&place, &["up", "--size", "1G", "--servers", "2"], closed(), Stdio::piped()).ok();
    assert!(!up.err.contains("panicked"), "{}", up.err);
    place.aze(&["cp", "/etc/os-release", "aze:/file"]).ok();
    let commands: &[&[&str]] = &[
        &["--help"],
        &["--version"],
        &["help"],
        &["help", "bench", "iops"],
        &["help", "exit-codes"],
        &["version"],
        &["version", "--json"],
        &["completions", "bash"],
        &["status"],
        &["status", "--json"],
        &["status", "--watch=100ms", "--count", "2"],
        &["doctor"],
        &["ls", "-l", "aze:/"],
        &["cat", "aze:/file"],
        &["stat", "aze:/file"],
        &["find", "aze:/"],
        &["df"],
        &["df", "--json"],
        &["du", "aze:/"],
        &["checksum", "aze:/file"],
        &["check"],
        &["check", "--json"],
        &["cp", "-v", "aze:/file", "aze:/copy"],
        &["bench", "iops", "--files", "10", "--bytes", "1M", "--repeat", "1"],
    ];
    assert_eq!(commands.len(), 24);
    for command in commands {
        let ran = into(&place, command, closed(), Stdio::piped());
        // A node may lack something, which `doctor` tells by its exit code.
        let good = ran.code == 0 || command[0] == "doctor" && ran.code == 5;
        assert!(good && !ran.err.contains("panicked"), "{command:?} ends with {}: {}", ran.code, ran.err);
    }
    place.aze(&["stat", "aze:/copy"]).ok();
}

/// A command that tells of its failure to a reader that has gone keeps its exit code, and one that tells of its work does it.
#[test]
fn a_closed_standard_error_does_not_change_what_a_command_does() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    into(&place, &["stat", "aze:/none"], closed(), closed()).code(3);
    into(&place, &["cp", "-r", "/etc/os-release", "aze:/file"], closed(), closed()).ok();
    place.aze(&["stat", "aze:/file"]).ok();
    into(&place, &["down"], closed(), closed()).ok();
    place.aze(&["stat", "aze:/file"]).code(3);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    let full = || File::options().write(true).open("/dev/full").expect("a device").into();
    for command in [&["help", "up"][..], &["version"], &["completions", "bash"]] {
        let ran = into(&place, command, full(), Stdio::piped()).code(5);
        assert!(ran.err.contains("write to standard output: no space left on device"), "{command:?}: {}", ran.err);
    }
    let ran = into(&place, &["up", "--size", "1G", "--name", "untold"], full(), Stdio::piped()).code(5);
    let runs = "no space left on device: volume 'untold' runs all the same: 'aze down --name untold' ends it";
    assert!(ran.err.contains(runs), "{}", ran.err);
    place.aze(&["down", "--name", "untold"]).ok();
    // No log is worth the end of a server: a line that it cannot write is dropped.
    into(&place, &["stat", "/no/such"], Stdio::piped(), full()).code(2);
}

/// The shell's eval of no words succeeds: a script went on without a volume.
#[test]
fn a_start_that_cannot_be_ends_a_script() {
    let place = Place::new();
    for wrong in [&["--chunk-size", "100K"][..], &["--servers", "0"], &["--no-such"], &["--size", "1K"], &["more"]] {
        let ran = place.aze(&[&["up"], wrong].concat());
        assert_ne!(ran.code, 0, "{wrong:?}");
        assert_eq!(ran.out, "false\n", "{wrong:?}");
    }
    assert!(!place.aze(&["up", "--help"]).ok().out.contains("false\n"));
    assert_eq!(place.aze(&["df", "--no-such"]).code(2).out, "");
}

/// A list that its command has not written verified nothing and was taken for good.
#[test]
fn an_empty_list_of_checksums_verifies_nothing() {
    let place = Place::new();
    let (empty, list) = (place.path("empty"), place.path("list"));
    std::fs::write(&empty, "").expect("a file");
    let words = ["checksum", "--check", empty.to_str().expect("text")];
    let ran = place.aze(&words).code(1);
    assert!(ran.err.contains("empty: it has no line: nothing was checked"), "{}", ran.err);
    std::fs::write(&list, place.aze(&words[..1].iter().chain(&words[2..]).collect::<Vec<_>>()).ok().out)
        .expect("a file");
    place.aze(&["checksum", "--check", list.to_str().expect("text")]).ok();
}
