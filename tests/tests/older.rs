//! Directories of a volume that are not what they were at its end: an older copy put back, and files of a
//! server that are missing, emptied, cut short, exchanged or changed. None of it may look like success while
//! something acknowledged is gone or has other bytes.

use aze_tests::{Place, Ran, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn up(place: &Place) -> Ran {
    place.aze(&["up", "--name", "v", "--servers", "2", "--size", "512M", "--storage", "storage"])
}

fn down(place: &Place) {
    place.aze(&["down", "--name", "v"]).ok();
}

/// A copy of a directory, with its holes.
fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to));
}

fn put_back(place: &Place, saved: &str, server: usize) {
    let there = place.path(&format!("storage/server-{server}"));
    fs::remove_dir_all(&there).expect("a directory");
    copy(&place.path(saved), &there);
}

/// What the volume holds: names with their contents, large ones over both servers.
fn contents() -> Vec<(String, Vec<u8>)> {
    let small = (0..30).map(|index| (format!("f{index}"), format!("contents of {index}").into_bytes()));
    let large = (0..2).map(|index| (format!("large{index}"), vec![index as u8 + 1; 3 << 20]));
    small.chain(large).collect()
}

fn write(place: &Place) {
    let source = place.path("source");
    fs::create_dir_all(&source).expect("a directory");
    for (name, data) in contents() {
        fs::write(source.join(name), data).expect("a file");
    }
    place.aze(&["cp", "-r", "--quiet", &source.display().to_string(), "aze:/d"]).ok();
}

#[derive(Debug, PartialEq)]
enum Found {
    /// Everything, byte for byte.
    Whole,
    /// Some of it, with an error for the rest.
    Partly,
    /// Not everything, and no error; or other bytes.
    Wrong,
}

fn look(place: &Place) -> Found {
    let back = place.path("back");
    let _ = fs::remove_dir_all(&back);
    let copied = place.aze(&["cp", "-r", "--quiet", "aze:/d", &back.display().to_string()]);
    let read = contents().into_iter().map(|(name, data)| (fs::read(back.join(name)).ok(), data));
    let (there, gone): (Vec<_>, Vec<_>) = read.partition(|(bytes, _)| bytes.is_some());
    match there.iter().all(|(bytes, data)| bytes.as_ref() == Some(data)) {
        true if gone.is_empty() => Found::Whole,
        true if copied.code != 0 => Found::Partly,
        _ => Found::Wrong,
    }
}

#[test]
fn an_older_copy_of_a_server_is_refused_again_and_again() {
    for older in [0, 1] {
        let place = Place::new();
        up(&place).ok();
        place.aze(&["mkdir", "aze:/before"]).ok();
        down(&place);
        copy(&place.path(&format!("storage/server-{older}")), &place.path("older"));
        up(&place).ok();
        write(&place);
        down(&place);
        copy(&place.path(&format!("storage/server-{older}")), &place.path("newest"));
        put_back(&place, "older", older);
        let storage = place.path("storage").display().to_string();
        let checked = place.aze(&["check", &storage]);
        assert!(
            checked.code != 0 && (checked.out.clone() + &checked.err).contains("older"),
            "{}{}",
            checked.out,
            checked.err
        );
        // A start that failed must not make the next one succeed.
        for _ in 0..2 {
            let refused = up(&place);
            assert!(refused.code == 7 && refused.err.contains("older"), "{}: {}", refused.code, refused.err);
        }
        put_back(&place, "newest", older);
        up(&place).ok();
        assert_eq!(look(&place), Found::Whole);
        down(&place);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    Missing,
    Emptied,
    Cut,
    Older,
    Swapped,
    Flipped,
}

/// Does it to a file of server 1; false if there is no such thing.
fn harm(place: &Place, file: &Path, harm: Harm) -> bool {
    let name = file.file_name().expect("a name").to_str().expect("a name in UTF-8");
    let bytes = fs::read(file).expect("a file");
    let kind = |name: &str| name.split('-').next().map(str::to_owned);
    let of = |dir: PathBuf| {
        let names = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
        let mut same: Vec<PathBuf> =
            names.filter(|path| path.file_name().and_then(|n| kind(n.to_str()?)) == kind(name)).collect();
        same.sort();
        same.into_iter().next_back()
    };
    match harm {
        Harm::Missing => fs::remove_file(file).expect("it goes"),
        Harm::Emptied => fs::write(file, b"").expect("it is emptied"),
        // Preallocated zeros do not count: it cuts off the second half of the written bytes.
        Harm::Cut => {
            let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { return false };
            fs::write(file, &bytes[..last / 2]).expect("it is cut");
        }
        Harm::Older | Harm::Swapped => {
            let other = if harm == Harm::Older { place.path("older") } else { place.path("storage/server-0") };
            let Some(other) = of(other) else { return false };
            fs::copy(other, file).map(drop).expect("it is replaced");
        }
        Harm::Flipped => {
            let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { return false };
            let mut bytes = bytes;
            bytes[last / 2] ^= 1;
            fs::write(file, bytes).expect("it is changed");
        }
    }
    true
}

#[test]
fn whatever_happens_to_a_file_of_a_server_is_told_or_harmless() {
    let place = Place::new();
    up(&place).ok();
    place.aze(&["mkdir", "aze:/before"]).ok();
    down(&place);
    copy(&place.path("storage/server-1"), &place.path("older"));
    up(&place).ok();
    write(&place);
    down(&place);
    copy(&place.path("storage"), &place.path("newest"));
    let restore = || {
        fs::remove_dir_all(place.path("storage")).expect("a directory");
        copy(&place.path("newest"), &place.path("storage"));
    };
    let names = fs::read_dir(place.path("newest/server-1")).expect("a directory");
    let mut names: Vec<String> =
        names.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8")).collect();
    names.retain(|name| !name.starts_with("lock"));
    names.sort();
    assert!(names.len() >= 4, "{names:?}");
    let storage = place.path("storage").display().to_string();
    let mut told = 0;
    for name in &names {
        for harm_done in [Harm::Missing, Harm::Emptied, Harm::Cut, Harm::Older, Harm::Swapped, Harm::Flipped] {
            restore();
            if !harm(&place, &place.path("storage/server-1").join(name), harm_done) {
                continue;
            }
            let what = format!("{name} {harm_done:?}");
            let checked = place.aze(&["check", &storage]);
            let started = up(&place);
            let is_refused = started.code != 0;
            let found = if is_refused { Found::Partly } else { look(&place) };
            if !is_refused {
                place.aze(&["down", "--name", "v", "--force"]);
            }
            assert_ne!(found, Found::Wrong, "{what}");
            assert!(found == Found::Whole || checked.code != 0, "{what}: {}, and aze check finds nothing", started.err);
            told += u32::from(is_refused);
        }
    }
    assert!(told >= 10, "only {told} cells are told");
    restore();
    up(&place).ok();
    assert_eq!(look(&place), Found::Whole);
}
