//! How names, modes, times and tables look, for people and as JSON.

use crate::sys;
use aze_proto::attr::Attr;
use aze_proto::ids::Time;
use aze_words::hex;
use serde_json::{Map, Value, json};
use std::io::{IsTerminal, Write};

/// Bytes of a name as they may be written: raw into files and pipes, with `?` for control
/// characters on a terminal, which they could otherwise reprogram.
pub fn name(bytes: &[u8]) -> Vec<u8> {
    if !std::io::stdout().is_terminal() {
        return bytes.to_vec();
    }
    let shown: String = String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    shown.into_bytes()
}

/// A name as a JSON value; with `FIELD_bytes` in hexadecimal beside it where it is no text.
pub fn put_name(object: &mut Map<String, Value>, field: &str, bytes: &[u8]) {
    object.insert(field.into(), String::from_utf8_lossy(bytes).into());
    if str::from_utf8(bytes).is_err() {
        object.insert(format!("{field}_bytes"), hex::write(bytes).into());
    }
}

/// `-rwxr-x--t`, as ls(1) writes it.
pub fn mode(attr: &Attr) -> String {
    let mut text = String::from(attr.kind.letter());
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (class, (bit, lower, upper)) in special.into_iter().enumerate() {
        let bits = attr.mode >> (6 - 3 * class);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & bit != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => lower,
            (true, false) => upper,
        });
    }
    text
}

/// Local time to the second, `2026-11-21 13:05:09`.
pub fn time(time: Time) -> String {
    let parts = sys::local_time(seconds(time));
    let (year, month) = (1900 + parts.tm_year, 1 + parts.tm_mon);
    format!("{year:04}-{month:02}-{:02} {:02}:{:02}:{:02}", parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec)
}

/// Local time to the nanosecond with its zone, as stat(1) writes it.
pub fn time_exact(instant: Time) -> String {
    let offset = sys::local_time(seconds(instant)).tm_gmtoff / 60;
    let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.abs());
    format!("{}.{:09} {sign}{:02}{:02}", time(instant), instant.0 % 1_000_000_000, minutes / 60, minutes % 60)
}

/// Universal time to the nanosecond, as RFC 3339 has it: for `--json`, whose numbers would lose digits.
pub fn moment(instant: Time) -> String {
    let parts = sys::universal_time(seconds(instant));
    let (year, month, day) = (1900 + parts.tm_year, 1 + parts.tm_mon, parts.tm_mday);
    let (hour, minute, second) = (parts.tm_hour, parts.tm_min, parts.tm_sec);
    let nanoseconds = instant.0 % 1_000_000_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

fn seconds(time: Time) -> i64 {
    (time.0 / 1_000_000_000) as i64
}

/// Word for a kind of file.
pub fn kind(attr: &Attr) -> &'static str {
    use aze_proto::attr::FileKind;
    match attr.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// What `--json` says of a file.
pub fn attr_json(attr: &Attr) -> Map<String, Value> {
    let value = json!({
        "ino": attr.ino.0.to_string(),
        "kind": kind(attr),
        "mode": format!("{:04o}", attr.mode),
        "links": attr.links,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "atime": moment(attr.atime),
        "mtime": moment(attr.mtime),
        "ctime": moment(attr.ctime),
        "btime": moment(attr.btime),
    });
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("the macro was given an object"),
    }
}

/// Prints rows with columns as wide as their widest cell: text to the left, numbers (`right`) to the right.
pub fn table(out: &mut dyn Write, right: &[bool], rows: &[Vec<String>]) -> std::io::Result<()> {
    let columns = right.len();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| {
                if right[column] {
                    format!("{cell:>0$}", widths[column])
                } else {
                    format!("{cell:<0$}", widths[column])
                }
            })
            .collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// `1 file`, `2 files`.
pub fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Attributes of a file of so many bytes.
#[cfg(test)]
pub fn example(size: u64) -> Attr {
    use aze_proto::attr::{FileKind, Spread};
    use aze_proto::ids::{Generation, Ino, MapEpoch, Prefix, ShardId};
    use aze_proto::place::Layout;
    Attr {
        ino: Ino(9),
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: 1,
        gid: 1,
        rdev: 0,
        size,
        atime: Time(0),
        mtime: Time(0),
        ctime: Time(0),
        btime: Time(0),
        generation: Generation(0),
        born: MapEpoch(0),
        layout: Layout::new(Prefix::first_of(ShardId(4094), 4096), 4096),
        chunk_bits: 20,
        spread: Spread::ANYWHERE,
        has_xattrs: false,
        parent: Ino(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_all_digits() {
        assert_eq!(moment(Time(0)), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(moment(Time(1_795_446_474_079_869_564)), "2026-11-23T15:07:54.079869564Z");
    }

    #[test]
    fn tables_are_aligned() {
        let mut out = Vec::new();
        let rows = [vec!["a".into(), "1".into()], vec!["bcd".into(), "20".into()]];
        table(&mut out, &[false, true], &rows).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "a     1\nbcd  20\n");
    }

    #[test]
    fn counts_agree_with_their_nouns() {
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(0, "file"), "0 files");
    }
}
