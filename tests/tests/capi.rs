//! The library for C on a real volume: programs in `tests/c`, compiled here, with the shared library and with the archive.

use aze_tests::Place;
use aze_tests::clib::{Linked, check, check_under_valgrind, libraries};
use aze_tests::run;
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn every_call_does_what_its_system_call_does() {
    for linked in [Linked::Shared, Linked::Static] {
        let place = Place::new();
        place.up(&["--servers", "3"]);
        check(&place, "calls", "azekura", linked);
        let shown = place.aze(&["stat", "--json", "aze:/own", "aze:/own/d", "aze:/d"]).ok().out;
        let private: Vec<bool> = shown.lines().map(|line| line.contains("\"private\":true")).collect();
        assert_eq!(private, [true, true, false], "{shown}");
    }
}

#[test]
fn threads_share_a_volume_and_a_position() {
    let place = Place::new();
    place.up(&["--servers", "2"]);
    check(&place, "threads", "azekura", Linked::Shared);
}

#[test]
fn a_forked_process_connects_anew_whatever_threads_of_its_parent_do() {
    for transport in ["auto", "tcp"] {
        let place = Place::new();
        place.up(&["--servers", "2", "--transport", transport]);
        check(&place, "forks", "azekura", Linked::Shared);
    }
}

#[test]
fn queued_operations_are_picked_up_in_every_way() {
    for linked in [Linked::Shared, Linked::Static] {
        let place = Place::new();
        place.up(&["--servers", "2"]);
        check(&place, "queues", "azekura", linked);
    }
}

#[test]
fn a_defect_gives_eio_and_its_program_lives() {
    for linked in [Linked::Shared, Linked::Static] {
        let place = Place::new();
        place.up(&[]);
        check(&place, "panics", "azekura", linked);
    }
}

#[test]
fn programs_under_sanitizers_find_no_fault() {
    for name in ["calls", "queues"] {
        let place = Place::new();
        place.up(&["--servers", "2"]);
        check(&place, name, "azekura", Linked::Watched);
    }
}

#[test]
fn programs_under_valgrind_lose_no_memory() {
    for name in ["calls", "queues"] {
        let place = Place::new();
        place.up(&["--servers", "2"]);
        check_under_valgrind(&place, name, "azekura");
    }
}

/// The names that a library shows to programs.
fn exported(library: &str) -> BTreeSet<String> {
    let path = libraries().join(format!("lib/lib{library}.so.1"));
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(path)).out;
    let symbols = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
    // The version itself is listed, too.
    symbols.filter(|symbol| symbol.contains("@@")).map(str::to_owned).collect()
}

/// The functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(libraries().join("include").join(header)).expect("a header");
    let prefix = header.replace("azekura.h", "aze_").replace("chfs.h", "chfs_");
    let lines = text.lines().filter(|line| !line.starts_with([' ', '/', '#', '\t', '}']));
    let names =
        lines.filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next().filter(|_| line.contains('(')));
    names.filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
}

#[test]
fn libraries_show_what_their_headers_declare_and_nothing_else() {
    for (library, version, least) in [("azekura", "AZEKURA_1", 55), ("chfs", "CHFS_1", 30)] {
        let declared = declared(&format!("{library}.h"));
        assert!(declared.len() >= least, "{library}.h declares {}: {declared:?}", declared.len());
        let expected: BTreeSet<String> = declared.iter().map(|name| format!("{name}@@{version}")).collect();
        let mut exported = exported(library);
        // In builds with debug assertions only.
        exported.remove("aze_test_panic@@AZEKURA_1");
        assert_eq!(exported, expected, "{library}");
    }
}

#[test]
fn headers_are_c_and_c_plus_plus() {
    for header in ["azekura.h", "chfs.h"] {
        let path = libraries().join("include").join(header);
        for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
            let mut command = match compiler {
                "cc" => Command::new("cc"),
                _ => Command::new("c++"),
            };
            run(command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", language]).arg(&path));
        }
    }
}

/// The manual page names every function.
#[test]
fn the_manual_page_is_complete() {
    let page = std::fs::read_to_string(libraries().join("man/man3/azekura.3")).expect("the page");
    for name in declared("azekura.h") {
        assert!(page.contains(&name), "azekura(3) lacks {name}");
    }
}
