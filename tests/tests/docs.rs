//! What README and docs tell a reader to type is typed here: every block of shell commands marked `sh`
//! runs as it stands, in a place of its own, and must succeed.

use aze_tests::clib::libraries;
use aze_tests::{Place, Ran, program};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut pages: Vec<PathBuf> = fs::read_dir(root.join("docs"))
        .expect("docs")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

/// The blocks marked `sh` of a page.
fn blocks(text: &str) -> Vec<String> {
    let after = text.split("```sh\n").skip(1);
    after.map(|rest| rest.split("\n```").next().unwrap_or("").to_string()).collect()
}

fn bash(place: &Place, commands: &str) -> Ran {
    let folder = program().parent().expect("a program is in a folder").to_path_buf();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["-eu", "-o", "pipefail", "-c", commands]).env("PATH", path).env("AZE_RUN_DIR", place.path("run"));
    command.env("XDG_CONFIG_HOME", place.path("config")).env("XDG_STATE_HOME", place.path("state"));
    command.env("PKG_CONFIG_PATH", libraries().join("lib/pkgconfig"));
    command.env_remove("AZE_VOLUME").env_remove("XDG_RUNTIME_DIR").current_dir(&place.dir).stdin(Stdio::null());
    command.output().expect("bash runs").into()
}

#[test]
fn documented_commands_run_as_they_stand() {
    let mut ran = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page is text");
        for commands in blocks(&text) {
            let place = Place::new();
            let result = bash(&place, &commands);
            assert_eq!(
                result.code,
                0,
                "{}:\n{commands}\nstdout: {}\nstderr: {}",
                page.display(),
                result.out,
                result.err
            );
            ran += 1;
        }
    }
    assert!(ran >= 4, "only {ran} blocks were found: have the marks changed?");
}

#[test]
fn every_command_of_the_program_is_in_the_readme_or_explained() {
    let place = Place::new();
    let help = place.aze(&["--help"]).ok().out;
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("README");
    let commands =
        help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list of commands");
    for line in commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().unwrap_or("");
        // What the other commands start is in the operator's pages.
        if name != "serve" {
            assert!(
                readme.contains(&format!("`{name}`")) || readme.contains(&format!("aze {name}")),
                "README lacks {name}"
            );
        }
    }
}

/// Completion and manual pages come from the description of the command line, so they are complete if they come at all.
#[test]
fn shells_complete_commands_and_every_command_has_a_manual_page() {
    let place = Place::new();
    let words = "eval \"$(aze completions bash)\"; COMP_WORDS=(aze up --dur) COMP_CWORD=2; _aze aze --dur up; \
                 echo \"${COMPREPLY[@]}\"";
    assert_eq!(bash(&place, words).ok().out, "--durability\n");
    place.aze(&["man", "man1"]).ok();
    let help = place.aze(&["help"]).ok().out;
    let commands = help.split("Commands:\n").nth(1).expect("a list").lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let page = fs::read_to_string(place.path(&format!("man1/aze-{name}.1"))).expect("a page");
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{name}");
        assert!(name == "help" || name == "serve" || page.contains(".SH EXAMPLE"), "{name}: {page}");
    }
}
