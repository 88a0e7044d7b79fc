//! The scripts that pack a release, on small things; `make test-dist` tries the packages themselves.

use aze_tests::{Place, Ran, program, run, set_mode};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn script(name: &str) -> Command {
    Command::new(root().join("scripts").join(name))
}

fn ran(command: &mut Command) -> Ran {
    command.output().expect("a script runs").into()
}

fn packages_of(purpose: &str) -> Vec<String> {
    let listed = run(script("setup").arg(purpose).env("AZE_SETUP_SHOW", "1")).out;
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn later_purposes_need_the_first_three_and_their_own_packages_only() {
    let (build, test) = (packages_of("build"), packages_of("test"));
    assert!(build.len() >= 2 && test.len() > build.len() && test.starts_with(&build), "{build:?}, {test:?}");
    let (slurm, dist) = (packages_of("slurm"), packages_of("dist"));
    assert!(slurm.starts_with(&test) && dist.starts_with(&test));
    let (slurm, dist) = (&slurm[test.len()..], &dist[test.len()..]);
    assert!(slurm.contains(&"slurmd".into()) && dist.contains(&"rpm".into()), "{slurm:?}, {dist:?}");
    assert!(slurm.iter().all(|package| !dist.contains(package)), "{slurm:?}, {dist:?}");
    let refused = ran(script("setup").arg("nothing")).code(2);
    assert!(refused.err.contains("|slurm|dist"), "{}", refused.err);
}

#[test]
fn a_file_that_needs_a_newer_glibc_is_named_with_its_symbols() {
    let place = Place::new();
    fs::create_dir(place.path("bin")).expect("a directory");
    fs::copy(program(), place.path("bin/aze")).expect("a copy");
    fs::write(place.path("bin/words"), "no program").expect("a file");
    let good = run(script("glibc-max").args(["2.99"]).arg(place.path("bin"))).out;
    assert!(good.starts_with("glibc-max: 1 files need glibc 2."), "{good}");
    let bad = ran(script("glibc-max").args(["2.3"]).arg(place.path("bin"))).code(1);
    assert!(bad.err.contains("bin/aze needs glibc 2.") && bad.err.contains("@GLIBC_2."), "{}", bad.err);
    fs::remove_file(place.path("bin/aze")).expect("it was there");
    let none = ran(script("glibc-max").args(["2.99"]).arg(place.path("bin"))).code(1);
    assert!(none.err.contains("no ELF file"), "{}", none.err);
}

#[test]
fn a_file_that_names_a_folder_of_this_machine_is_named() {
    let place = Place::new();
    let root = fs::canonicalize(root()).expect("the clone").to_str().expect("a name in UTF-8").to_owned();
    let file = place.path("program");
    // Below it, and alone at the end of a string.
    for bad in [format!("{root}/crates/io"), format!("text\0{root}\0text"), "/some/home/.cargo/registry\0".into()] {
        fs::write(&file, &bad).expect("a file");
        let seen = ran(script("no-paths").arg(&file).env("CARGO_HOME", "/some/home/.cargo")).code(1);
        let named = seen.err.contains("program names folders of this machine: /");
        assert!(named, "{bad:?}: {}", seen.err);
    }
    // Where packages say that it was, and a folder whose name only begins so.
    fs::write(&file, format!("/azekura/crates/io\0/cargo/registry\0{root}-other/crates\0")).expect("a file");
    let good = run(script("no-paths").arg(&file).arg(&file).env("CARGO_HOME", "/cargo")).out;
    assert_eq!(good, "no-paths: 2 files name no folder of this machine\n");
}

/// An image of a small tree, which is there after the first time.
fn image(place: &Place) -> PathBuf {
    let (dir, image) = (place.path("root"), place.path("image.tar"));
    fs::create_dir_all(dir.join("usr/bin")).expect("directories");
    fs::write(dir.join("usr/bin/aze"), "a program").expect("a file");
    set_mode(&dir.join("usr/bin/aze"), 0o755);
    let _ = std::os::unix::fs::symlink("usr/bin", dir.join("bin"));
    let words: [&Path; 6] = [&dir, &image, "azekura".as_ref(), "0.1.0".as_ref(), "aze".as_ref(), "help".as_ref()];
    run(script("image").args(words).env("SOURCE_DATE_EPOCH", "1700000000"));
    image
}

#[test]
fn a_container_image_is_read_back_and_damage_is_seen() {
    let place = Place::new();
    let path = image(&place);
    let said = run(script("image-check").arg(&path)).out;
    assert_eq!(said, "image-check: azekura:0.1.0, 1 layer with 5 files, amd64, linux\n");
    let first = fs::read(&path).expect("an image");
    fs::remove_file(&path).expect("it was there");
    assert_eq!(fs::read(image(&place)).expect("an image"), first, "the same tree gives the same image");

    // One byte of the layer, of the configuration, of the docker archive's names.
    for words in [&b"\x1f\x8b\x08"[..], b"\"amd64\"", b"\"RepoTags\""] {
        let mut damaged = first.clone();
        let at = damaged.windows(words.len()).position(|window| window == words).expect("it is in the image");
        damaged[at + words.len() - 2] ^= 1;
        fs::write(&path, &damaged).expect("an image");
        let seen = ran(script("image-check").arg(&path)).code(1);
        assert!(seen.err.starts_with("image-check: "), "{}", seen.err);
    }
}

/// Functions of the system that `libc` offers and glibc 2.17 lacks, as its own list of symbols has them. `make dist` fails
/// for them when it links, minutes later and on machines that pack only.
const NEWER_THAN_2_17: [&str; 23] = [
    "close_range",
    "copy_file_range",
    "explicit_bzero",
    "fchmodat2",
    "getcpu",
    "getentropy",
    "getrandom",
    "gettid",
    "memfd_create",
    "mlock2",
    "pidfd_open",
    "pidfd_send_signal",
    "pkey_alloc",
    "preadv2",
    "preadv64v2",
    "process_madvise",
    "pwritev2",
    "pwritev64v2",
    "reallocarray",
    "renameat2",
    "statx",
    "strlcpy",
    "tgkill",
];

#[test]
fn functions_newer_than_glibc_2_17_are_called_by_their_numbers() {
    let crates = fs::read_dir(root().join("crates")).expect("crates").flatten();
    let mut folders: Vec<PathBuf> = crates.map(|entry| entry.path().join("src")).collect();
    let (mut files, mut calls) = (0, 0);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source");
            files += 1;
            for call in text.split("libc::").skip(1) {
                // Structures may have the name of a function.
                let Some((name, _)) = call.split_once('(') else { continue };
                calls += usize::from(name.chars().all(|at| at == '_' || at.is_ascii_alphanumeric()));
                assert!(!NEWER_THAN_2_17.contains(&name), "{}: {name}: use libc::syscall", path.display());
            }
        }
    }
    assert!(files > 200 && calls > 100, "{files} files with {calls} calls of libc were read");
}

#[test]
fn packages_are_made_on_x86_64_only() {
    let place = Place::new();
    let other = "#!/bin/sh\n[ \"$1\" = -m ] && echo aarch64 || echo Linux\n";
    fs::write(place.path("uname"), other).expect("a program");
    set_mode(&place.path("uname"), 0o755);
    let path = format!("{}:{}", place.dir.display(), std::env::var("PATH").unwrap_or_default());
    let refused = ran(script("dist").env("PATH", path)).code(1);
    assert!(refused.err.contains("x86-64 on such a machine only, and this is Linux on aarch64"), "{}", refused.err);
}

#[test]
fn everything_in_the_packing_list_exists() {
    let text = fs::read_to_string(root().join("scripts/dist")).expect("the script");
    let list = text.split("\npacked=(\n").nth(1).and_then(|rest| rest.split("\n)").next()).expect("a list");
    let lines: Vec<Vec<&str>> = list.lines().map(|line| line.trim().trim_matches('\'').split(' ').collect()).collect();
    assert!(lines.len() >= 12, "{lines:?}");
    let metadata = run(Command::new("cargo")
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root()))
    .out;
    for line in lines {
        match line[..] {
            ["elf" | "archive", package, "release" | "library" | "guest", _, place] => {
                assert!(metadata.contains(&format!("\"name\":\"{package}\"")), "{package}");
                assert!(place.starts_with("bin/") || place.starts_with("lib/"), "{place}");
            }
            ["wheel", package, "library", _] => {
                assert!(metadata.contains(&format!("\"name\":\"{package}\"")), "{package}")
            }
            ["file", source, _] => assert!(root().join(source).is_file(), "{source}"),
            ["script", source, _] => {
                let mode = fs::metadata(root().join(source)).expect("a script").permissions().mode();
                assert!(mode & 0o111 == 0o111, "{source} cannot be run");
                run(Command::new("bash").arg("-n").arg(root().join(source)));
            }
            ["made", made, place] => {
                let name =
                    made.strip_prefix("lib/pkgconfig/").and_then(|name| name.strip_suffix(".pc")).expect("a name");
                let folder = if name == "azekura" { "capi" } else { name };
                assert!(root().join(format!("crates/{folder}/{name}.pc.in")).is_file() && place == made, "{made}");
            }
            ["link", _, _] => {}
            _ => panic!("{line:?}"),
        }
    }
}

/// All scripts of the house are read by their shell, those too that take root or a network to run.
#[test]
fn scripts_are_well_formed() {
    let scripts: Vec<PathBuf> =
        fs::read_dir(root().join("scripts")).expect("scripts").flatten().map(|entry| entry.path()).collect();
    assert!(scripts.len() > 15, "{scripts:?}");
    for path in scripts.iter().filter(|path| fs::read(path).is_ok_and(|text| text.starts_with(b"#!/usr/bin/env bash")))
    {
        run(Command::new("bash").arg("-n").arg(path));
    }
}
