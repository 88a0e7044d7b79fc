//! `aze find`: the servers search, with the conditions pushed down to them.
//!
//! The words of find(1) are accepted with one dash, as everybody's fingers know them, and with two.

use crate::exit::{Exit, Outcome, Trouble};
use crate::place::{Place, VolumePath, join};
use crate::remove;
use crate::session::{Session, Sessions};
use crate::tally::{Out, Tally};
use crate::{show, sys};
use aze_client::{FoundPath, Reached};
use aze_proto::attr::FileKind;
use aze_proto::error::Code;
use aze_proto::ids::Time;
use aze_proto::name::Name;
use aze_proto::predicate::{Predicate, glob};
use aze_proto::wire::Blob;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Words that may be written with one dash.
const WORDS: [&str; 10] =
    ["-name", "-path", "-type", "-size", "-newer", "-mmin", "-mtime", "-user", "-print0", "-delete"];

/// How ages are counted.
#[derive(Clone, Copy)]
struct Unit {
    ns: u64,
    /// Whether a part of a unit counts as one.
    rounds_up: bool,
}

const MINUTES: Unit = Unit { ns: 60_000_000_000, rounds_up: true };

/// As in find(1), a day that is not over does not count, though a minute does.
const DAYS: Unit = Unit { ns: 24 * 60 * MINUTES.ns, rounds_up: false };

/// Find files by name, kind, size, time or owner.
///
/// The servers do the looking, all at the same time.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze find aze:/ -name '*.h5'
  aze find aze:/results -type f -size +1G
  aze find aze:/ -newer start-of-run --count
  aze find aze:/ -path '*/tmp/*' -mtime +7 -print0 | xargs -0 aze rm
  aze find aze:/scratch -type f -mtime +30 -delete
  aze find aze:/ -mmin -10 -user alice")]
pub struct Args {
    /// Where to start; the root of the volume if nothing is given.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Shell pattern that the name must fit.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    name: Option<OsString>,
    /// Shell pattern that the whole path must fit, as it is printed; `*` fits `/`, too.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    path: Option<OsString>,
    /// Kind: f file, d directory, l symbolic link, p fifo, s socket, c or b device.
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    r#type: Option<FileKind>,
    /// Size in units of c (bytes), k, M, G or 512 bytes, rounded up: +N more, -N less, N exactly.
    #[arg(long, value_name = "[+-]N[ckMG]", allow_hyphen_values = true, value_parser = parse_size)]
    size: Option<SizeRange>,
    /// Changed later than this local or volume file.
    #[arg(long, value_name = "FILE")]
    newer: Option<OsString>,
    /// Changed -N less than, +N more than, N exactly so many minutes ago.
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true, value_parser = parse_age)]
    mmin: Option<Age>,
    /// Changed less than N days ago (-N), at least N and less than N+1 days ago (N), at least N+1 days ago (+N).
    #[arg(long, value_name = "[+-]N", allow_hyphen_values = true, value_parser = parse_age, conflicts_with = "mmin")]
    mtime: Option<Age>,
    /// Owner, by name or number.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only how many there are.
    #[arg(long)]
    count: bool,
    /// End each path with a zero byte instead of an end of line, and change no byte of it.
    #[arg(long, conflicts_with_all = ["json", "count"])]
    print0: bool,
    /// Remove the findings when the search is done: files first, then directories that are empty by then, from below.
    #[arg(long, conflicts_with_all = ["json", "count", "print0"])]
    delete: bool,
    /// One JSON object for each line.
    #[arg(long)]
    json: bool,
}

/// Bounds of a size in bytes, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeRange {
    min: Option<u64>,
    max: Option<u64>,
}

/// Bounds of an age in whole minutes or days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    LessThan(u64),
    MoreThan(u64),
    Exactly(u64),
}

/// Gives the words of find(1) the second dash that the parser wants, where the command is `find`.
pub fn with_long_words(words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|word| word != "find") {
        return words;
    }
    let lengthen = |word: OsString| match WORDS.iter().find(|known| word == **known) {
        Some(known) => OsString::from(format!("-{known}")),
        None => word,
    };
    words.into_iter().map(lengthen).collect()
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let predicate = predicate(args, &mut sessions)?;
    let tally = Tally::new("find");
    let mut report = Report { args, out: Out::new(), count: 0, doomed: Vec::new(), trouble: None };
    let root = [OsString::from("aze:/")];
    for path in if args.paths.is_empty() { &root[..] } else { &args.paths } {
        let found = VolumePath::parse(path).and_then(|path| {
            let session = sessions.of(&path)?;
            search(&session, &path, &predicate, &mut report)
        });
        report.out.flush()?;
        tally.note(found);
        let doomed = std::mem::take(&mut report.doomed);
        if !doomed.is_empty() {
            let session = sessions.of(&VolumePath::parse(path)?)?;
            remove::remove_found(&session, doomed, &tally);
        }
    }
    if args.count {
        report.out.line(report.count.to_string())?;
        report.out.flush()?;
    }
    Ok(tally.exit())
}

fn search(session: &Session, path: &VolumePath, predicate: &Predicate, report: &mut Report<'_>) -> Outcome<()> {
    let (client, who) = (&session.client, &session.who);
    let root = session.ask(path.shown(), async {
        let reached = client.reach(who, &path.path, false).await?;
        // While a server is away the size of the directory is unknown; the search goes on in the rest.
        match client.getattr(who, reached.ino).await {
            Err(failure) if matches!(failure.code, Code::Unreachable | Code::TimedOut) => Ok(reached),
            exact => Ok(Reached { attr: Ok(exact?), ..reached }),
        }
    })?;
    if fits_root(predicate, path, &root) {
        report.put(path, &FoundPath { path: Vec::new(), ino: root.ino, kind: root.kind, attr: root.attr.clone().ok() });
    }
    if root.kind == FileKind::Directory {
        let mut each = |found: FoundPath| report.put(path, &found);
        session.ask(format_args!("search {}", path.shown()), client.find(who, root.ino, predicate, &mut each))?;
    }
    report.trouble.take().map_or(Ok(()), Err)
}

/// The starting point itself counts as found, as in find(1).
fn fits_root(predicate: &Predicate, path: &VolumePath, root: &Reached) -> bool {
    let name = Place::Volume(path.clone()).base_name().and_then(|name| Name::new(&name).ok());
    let fits_name = match &name {
        Some(name) => predicate.fits_name(name, root.kind),
        None => predicate.name.is_none() && predicate.kind.is_none_or(|kind| kind == root.kind),
    };
    fits_name && root.attr.as_ref().map_or(!predicate.needs_attr(), |attr| predicate.fits_attr(attr))
}

/// Where findings go.
struct Report<'a> {
    args: &'a Args,
    out: Out,
    count: u64,
    /// Findings to be removed.
    doomed: Vec<(VolumePath, FileKind)>,
    trouble: Option<Trouble>,
}

impl Report<'_> {
    fn put(&mut self, root: &VolumePath, found: &FoundPath) {
        let under = |root: &[u8]| if found.path.is_empty() { root.to_vec() } else { join(root, &found.path) };
        let fits = |pattern: &OsString| glob(pattern.as_bytes(), &under(&root.written()));
        if !self.args.path.as_ref().is_none_or(fits) {
            return;
        }
        self.count += 1;
        if self.args.delete {
            let path = under(&root.path);
            // As find(1) leaves `.`, where it started.
            if path.iter().any(|byte| *byte != b'/') {
                self.doomed.push((VolumePath { volume: root.volume.clone(), path }, found.kind));
            }
            return;
        }
        if self.args.count || self.trouble.is_some() {
            return;
        }
        let written = if self.args.print0 {
            let mut bytes = under(&root.written());
            bytes.push(0);
            self.out.bytes(&bytes)
        } else if self.args.json {
            let mut object = serde_json::Map::new();
            show::put_name(&mut object, "path", &under(&root.written()));
            object.insert("ino".into(), found.ino.0.to_string().into());
            if let Some(attr) = &found.attr {
                object.extend(show::attr_json(attr));
            }
            self.out.json(&object)
        } else {
            self.out.line(show::name(&under(&root.written())))
        };
        self.trouble = written.err();
    }
}

fn predicate(args: &Args, sessions: &mut Sessions) -> Outcome<Predicate> {
    let mut predicate = Predicate {
        name: args.name.as_ref().map(|name| Blob(name.as_bytes().to_vec())),
        kind: args.r#type,
        size_min: args.size.and_then(|size| size.min),
        size_max: args.size.and_then(|size| size.max),
        uid: args.user.as_deref().map(uid_of).transpose()?,
        ..Predicate::default()
    };
    let age = args.mmin.map(|age| (age, MINUTES)).or(args.mtime.map(|age| (age, DAYS)));
    if let Some((age, unit)) = age {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        (predicate.newer_than, predicate.older_than) = bounds(age, unit, now_ns);
    }
    if let Some(newer) = &args.newer {
        let meta = Place::parse(newer)?.spot(sessions)?.must_stat(true)?;
        predicate.newer_than = predicate.newer_than.max(Some(meta.mtime));
    }
    Ok(predicate)
}

/// The times between which a file of this age was changed, both excluded.
fn bounds(age: Age, unit: Unit, now_ns: u64) -> (Option<Time>, Option<Time>) {
    let ago = |count: u64| Some(Time(now_ns.saturating_sub(count.saturating_mul(unit.ns))));
    let end = |count: u64| count.saturating_add(u64::from(!unit.rounds_up));
    match age {
        Age::LessThan(count) => (ago(count), None),
        Age::MoreThan(count) => (None, ago(end(count))),
        Age::Exactly(count) => (ago(end(count)), ago(end(count).saturating_sub(1))),
    }
}

fn uid_of(user: &str) -> Outcome<u32> {
    let missing = || Trouble::new(Exit::NotFound, format!("no user '{user}' on this machine: give the number"));
    user.parse().ok().or_else(|| sys::uid_of(user)).ok_or_else(missing)
}

fn parse_kind(text: &str) -> Result<FileKind, String> {
    Ok(match text {
        "f" => FileKind::File,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        "p" => FileKind::Fifo,
        "s" => FileKind::Socket,
        "c" => FileKind::CharDevice,
        "b" => FileKind::BlockDevice,
        _ => return Err(format!("'{text}' is not a kind of file: expected f, d, l, p, s, c or b")),
    })
}

/// Sizes are counted in whole units, rounded up: `-1M` finds empty files only.
fn parse_size(text: &str) -> Result<SizeRange, String> {
    let bad = || format!("'{text}' is not a size to compare with: expected +N, -N or N with c, k, M or G");
    let (sign, number) = signed(text);
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    let (number, unit) = number.split_at(end);
    let unit: u64 = match unit {
        "c" => 1,
        "" | "b" => 512,
        "k" | "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    let bytes = number.checked_mul(unit).ok_or_else(bad)?;
    Ok(match (sign, number) {
        (Some('+'), _) => SizeRange { min: Some(bytes.saturating_add(1)), max: None },
        // Less than none: nothing fits.
        (Some(_), 0) => SizeRange { min: Some(1), max: Some(0) },
        (Some(_), _) => SizeRange { min: None, max: Some(bytes - unit) },
        (None, 0) => SizeRange { min: None, max: Some(0) },
        (None, _) => SizeRange { min: Some(bytes - unit + 1), max: Some(bytes) },
    })
}

fn parse_age(text: &str) -> Result<Age, String> {
    let (sign, number) = signed(text);
    let number = number.parse().map_err(|_| format!("'{text}' is not an age: expected +N, -N or N"))?;
    Ok(match sign {
        Some('+') => Age::MoreThan(number),
        Some(_) => Age::LessThan(number),
        None => Age::Exactly(number),
    })
}

fn signed(text: &str) -> (Option<char>, &str) {
    match text.chars().next() {
        Some(sign @ ('+' | '-')) => (Some(sign), &text[1..]),
        _ => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_find_may_have_one_dash() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let lengthened = with_long_words(words("aze find aze:/ -name *.h5 -size -1M --count -type f"));
        assert_eq!(lengthened, words("aze find aze:/ --name *.h5 --size -1M --count --type f"));
        assert_eq!(with_long_words(words("aze ls -name")), words("aze ls -name"));
    }

    #[test]
    fn sizes_compare_in_whole_units_as_in_find() {
        let range = |min, max| Ok(SizeRange { min, max });
        assert_eq!(parse_size("+1M"), range(Some((1 << 20) + 1), None));
        assert_eq!(parse_size("-1M"), range(None, Some(0)));
        assert_eq!(parse_size("-2k"), range(None, Some(1024)));
        assert_eq!(parse_size("2k"), range(Some(1025), Some(2048)));
        assert_eq!(parse_size("0"), range(None, Some(0)));
        assert_eq!(parse_size("100c"), range(Some(100), Some(100)));
        assert_eq!(parse_size("1"), range(Some(1), Some(512)));
        for text in ["", "+", "1X", "--1", "1.5M", "M"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ages_are_windows() {
        let now = 100 * MINUTES.ns;
        assert_eq!(bounds(Age::LessThan(10), MINUTES, now), (Some(Time(90 * MINUTES.ns)), None));
        assert_eq!(bounds(Age::MoreThan(10), MINUTES, now), (None, Some(Time(90 * MINUTES.ns))));
        assert_eq!(bounds(Age::Exactly(10), MINUTES, now), (Some(Time(90 * MINUTES.ns)), Some(Time(91 * MINUTES.ns))));
        let now = 100 * DAYS.ns;
        assert_eq!(bounds(Age::LessThan(1), DAYS, now), (Some(Time(99 * DAYS.ns)), None));
        assert_eq!(bounds(Age::MoreThan(1), DAYS, now), (None, Some(Time(98 * DAYS.ns))));
        assert_eq!(bounds(Age::Exactly(1), DAYS, now), (Some(Time(98 * DAYS.ns)), Some(Time(99 * DAYS.ns))));
        assert_eq!(parse_age("-5"), Ok(Age::LessThan(5)));
        assert!(parse_age("x").is_err());
    }
}
