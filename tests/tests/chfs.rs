//! The interface of CHFS on a real volume: a program in C that makes the calls of benchmarks' CHFS back ends in their order, as
//! several processes.

use aze_tests::Place;
use aze_tests::clib::{Linked, check, libraries};
use aze_tests::run;
use std::process::Command;

#[test]
fn processes_with_the_interface_of_chfs_share_files_and_directories() {
    for linked in [Linked::Shared, Linked::Static] {
        let place = Place::new();
        place.up(&["--servers", "2"]);
        check(&place, "chfs", "chfs", linked);
    }
}

/// Programs' build systems take the library's folder from pkg-config, and put it into the program.
#[test]
fn pkg_config_names_a_folder_and_asks_for_nothing_else() {
    let pkg_config = |words: &[&str]| {
        let folder = libraries().join("lib/pkgconfig");
        run(Command::new("pkg-config").args(words).arg("chfs").env("PKG_CONFIG_PATH", folder)).out.trim().to_owned()
    };
    assert_eq!(pkg_config(&["--libs-only-L"]), format!("-L{}/lib", libraries().display()));
    assert_eq!(pkg_config(&["--print-requires", "--print-requires-private"]), "");
}
