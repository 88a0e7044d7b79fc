//! `aze job --check`: what can be known of a job script's `#AZE` lines before the job runs.
//!
//! Bounded: of the input at most [`OBJECTS_MAX`] objects are looked at.

use super::lines::{Lines, places};
use crate::exit::{Exit, Outcome, Trouble};
use crate::place::Place;
use crate::{show, size, sys};
use aze_words::errln;
use std::fs;
use std::path::{Path, PathBuf};

/// Objects of the input that are counted for its size.
const OBJECTS_MAX: u64 = 100_000;

/// Looks whether sources and destinations are there, and the input fits; names all that is not so.
///
/// # Errors
/// [`Exit::Caller`]: something was named.
pub fn check(script: &Path, lines: &Lines) -> Outcome<Exit> {
    let mut wrong = 0;
    let mut tell = |number: usize, trouble: &Trouble| {
        errln!("{}:{number}: {trouble}", script.display());
        wrong += 1;
    };
    let mut input = Sum::default();
    for (number, words) in &lines.stage_in {
        if let Err(trouble) = source(words, &mut input) {
            tell(*number, &trouble);
        }
    }
    for (number, words) in &lines.stage_out {
        if let Err(trouble) = destination(words) {
            tell(*number, &trouble);
        }
    }
    let room = room(&lines.up)?;
    if let (Some(room), false) = (room, input.ended_early)
        && input.bytes > room
    {
        let text = format!("the input has {}, and the volume {}", size::words(input.bytes), size::words(room));
        let number = lines.stage_in.first().map_or(0, |(number, _)| *number);
        tell(number, &Trouble::new(Exit::Caller, text));
    }
    if wrong > 0 {
        let wrong = show::count(wrong, "problem");
        return Err(Trouble::new(Exit::Caller, format!("{}: {wrong}, named above", script.display())));
    }
    Ok(Exit::Done)
}

/// How much the input is.
#[derive(Default)]
struct Sum {
    objects: u64,
    bytes: u64,
    ended_early: bool,
}

/// A path with a variable that has no value yet cannot be looked at.
fn is_known(path: &str) -> bool {
    !path.contains('$')
}

fn source(words: &[String], sum: &mut Sum) -> Outcome<()> {
    let Some((from, to)) = places("in", words) else { return Ok(()) };
    in_volume(&to)?;
    if !is_known(&from) {
        return Ok(());
    }
    let denied = |path: &Path, error: &std::io::Error| Trouble::local(format!("read {}", path.display()), error);
    let mut waiting = vec![PathBuf::from(from)];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).map_err(|error| denied(&path, &error))?;
        sum.objects += 1;
        if sum.objects > OBJECTS_MAX {
            sum.ended_early = true;
            return Ok(());
        }
        if meta.is_dir() {
            sys::may(&path, libc::R_OK | libc::X_OK).map_err(|error| denied(&path, &error))?;
            for entry in fs::read_dir(&path).map_err(|error| denied(&path, &error))? {
                waiting.push(entry.map_err(|error| denied(&path, &error))?.path());
            }
        } else if meta.is_file() {
            sys::may(&path, libc::R_OK).map_err(|error| denied(&path, &error))?;
            sum.bytes = sum.bytes.saturating_add(meta.len());
        }
    }
    Ok(())
}

fn in_volume(place: &str) -> Outcome<()> {
    match Place::parse(place.as_ref())? {
        Place::Volume(_) => Ok(()),
        Place::Local(_) => Err(Trouble::usage(format!("'{place}' is a local path: write aze:/…"))),
    }
}

/// The destination, or the nearest directory above it, takes new names.
fn destination(words: &[String]) -> Outcome<()> {
    let Some((from, to)) = places("out", words) else { return Ok(()) };
    in_volume(&from)?;
    let absolute = std::path::absolute(&to).map_err(|error| Trouble::local(format!("find {to}"), &error))?;
    // Also beside it names are made: of its state, and of the receipt.
    for path in [Some(absolute.as_path()), absolute.parent()].into_iter().flatten() {
        let there = path.ancestors().find(|path| is_known(&path.to_string_lossy()) && path.symlink_metadata().is_ok());
        let Some(there) = there else { continue };
        let failed = |error: &std::io::Error| Trouble::local(format!("make {to} in {}", there.display()), error);
        if there.is_dir() {
            sys::may(there, libc::W_OK | libc::X_OK).map_err(|error| failed(&error))?;
        } else if there != absolute {
            return Err(failed(&std::io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
    }
    Ok(())
}

/// The value of `--size`.
fn room(up: &[String]) -> Outcome<Option<u64>> {
    let by_two = up.iter().zip(up.iter().skip(1)).find(|(word, _)| *word == "--size").map(|(_, size)| size.as_str());
    let by_one = up.iter().find_map(|word| word.strip_prefix("--size="));
    let Some(text) = by_two.or(by_one) else { return Ok(None) };
    size::parse(text).map(Some).map_err(|why| Trouble::usage(format!("--size {text}: {why}")))
}
