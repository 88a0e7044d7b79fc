//! `aze check` of a volume that runs.

use crate::check::held;
use crate::exit::{Exit, Outcome, Trouble};
use crate::session::Session;
use crate::show;
use crate::volume::Volume;
use aze_client::{CheckOptions, Checked};
use aze_words::{errln, outln};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Runs the command. Every failure to look gives the same exit code: then nothing is known of the volume.
pub fn run(name: Option<&str>, rate: Option<u64>, json: bool) -> Outcome<Exit> {
    let unknown = |trouble: Trouble| Trouble { exit: Exit::Usage, ..trouble };
    if rate == Some(0) {
        return Err(Trouble::usage("--rate 0: nothing could be read: give at least 1"));
    }
    let volume = Volume::meant(name).map_err(unknown)?;
    let lasts = volume.record.settings.lasts();
    let session = Session::open(volume).map_err(unknown)?;
    let began = Instant::now();
    let options = CheckOptions { bytes_per_second: rate };
    let what = format!("check volume '{}', of which nothing can be said", session.volume.record.name);
    let checked = session.ask(what, session.client.check(&session.who, options));
    session.end();
    let checked = checked.map_err(unknown)?;
    match json {
        true => print_json(&checked, began.elapsed()),
        false => print(&checked, began.elapsed(), lasts),
    }
    Ok(if checked.findings.is_empty() { Exit::Done } else { Exit::Some })
}

fn print(checked: &Checked, took: Duration, lasts: bool) {
    for finding in &checked.findings {
        let text = show::name(format!("{}: {}", finding.kind, finding.text).as_bytes());
        outln!("{}", String::from_utf8_lossy(&text));
    }
    let kinds: BTreeSet<&str> = checked.findings.iter().map(|finding| finding.kind).collect();
    kinds.iter().for_each(|kind| outln!("what to do ({kind}): {}", advice(kind, lasts)));
    checked.notes.iter().for_each(|text| outln!("note: {text}"));
    let held = held(checked.files, checked.directories, checked.bytes);
    let took = format!("in {:.1} s", took.as_secs_f64());
    match checked.findings.len() {
        0 => errln!("{held}, looked at {took}: all is well"),
        many => errln!("{held}, looked at {took}: {} found", show::count(many as u64, "problem")),
    }
}

/// What to do about findings of a kind.
fn advice(kind: &str, lasts: bool) -> &'static str {
    match kind {
        "checksum" | "unreadable" => "reading it gives EIO: remove the file, or write it anew from a copy",
        "link count" | "file without name" | "data without file" if lasts => {
            "'aze restart --force' counts names anew and drops what nothing leads to"
        }
        "file without name" | "data without file" => "it takes memory until the volume ends, and is no other harm",
        "link count" => "copy the file under another name, and remove its names",
        _ => "copy out what can be read, and make the volume anew; if no server was lost, please report it",
    }
}

fn print_json(checked: &Checked, took: Duration) {
    let problems: Vec<_> = checked
        .findings
        .iter()
        .map(|finding| serde_json::json!({ "kind": finding.kind, "text": finding.text, "ino": finding.ino.0.to_string() }))
        .collect();
    let Checked { notes, files, directories, bytes, .. } = checked;
    let value = serde_json::json!({
        "problems": problems, "notes": notes, "repaired": [],
        "files": files, "directories": directories, "bytes": bytes, "seconds": took.as_secs_f64(),
    });
    outln!("{value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_advised_where_it_helps_only() {
        let kinds = ["link count", "file without name", "data without file", "checksum", "unreadable", "name"];
        let restarts = |lasts| kinds.map(|kind| advice(kind, lasts).contains("aze restart"));
        assert_eq!(restarts(true), [true, true, true, false, false, false]);
        assert_eq!(restarts(false), [false; 6], "a volume in memory would come back empty");
        assert!(advice("name", false).contains("copy out") && advice("checksum", true).contains("EIO"));
    }
}
