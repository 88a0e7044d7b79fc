//! `aze mv`, `mkdir`, `rmdir`, `ln` and `touch`: changes of names and attributes in a volume.

use crate::copy::twice;
use crate::exit::{Exit, Outcome, Trouble};
use crate::operands::{by_volume, change_each};
use crate::place::{Place, VolumePath};
use crate::session::{Session, Sessions};
use crate::tally::Tally;
use crate::when;
use aze_client::NewFile;
use aze_proto::attr::{Change, FileKind, SetTime};
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Time;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Rename files and directories within a volume.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze mv aze:/a aze:/b
  aze mv aze:/part1 aze:/part2 aze:/done/     several into a directory
  aze mv -n aze:/a aze:/b                     fail if /b exists
  aze mv --exchange -T aze:/live aze:/next    each gets the other's name, in one step")]
pub struct MvArgs {
    /// What to rename, then to what: SOURCE... TARGET.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
    /// Fail where the new name exists instead of replacing it.
    #[arg(short, long)]
    no_clobber: bool,
    /// Let both names, which must be there, change places, whatever their kinds.
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    /// TARGET is the other name itself, also if it is a directory.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
}

/// Make directories.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze mkdir aze:/results
  aze mkdir -p -m 700 aze:/a/b/c")]
pub struct MkdirArgs {
    /// Directories to make.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Make missing directories above, too; one that exists will do.
    #[arg(short, long)]
    parents: bool,
    /// Permission bits in octal.
    #[arg(short, long, default_value = "755", value_parser = parse_mode)]
    mode: u32,
    /// Keep what will be made in it, at any depth, on one server: names, attributes and data. For directories that one
    /// process uses: it asks this server only, and no other is asked on its behalf
    #[arg(long)]
    private: bool,
}

/// Remove empty directories.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  aze rmdir aze:/old      (a directory with something in it: aze rm -r aze:/old)")]
pub struct RmdirArgs {
    /// Directories to remove.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Make a hard or a symbolic link.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze ln aze:/data aze:/same-data
  aze ln -s ../data aze:/dir/link")]
pub struct LnArgs {
    /// An existing file; with -s any text that the link is to lead to.
    target: OsString,
    /// The new name, or a directory in which the target's name is used.
    link: OsString,
    /// Make a symbolic link.
    #[arg(short, long)]
    symbolic: bool,
}

/// Make files that do not exist, and set the times of those that do.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze touch aze:/done
  aze touch -d '2026-11-21 13:05' aze:/data
  aze touch -c -r aze:/a aze:/b      give /b the times of /a, if it exists")]
pub struct TouchArgs {
    /// Files and directories.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// This time instead of now: 2026-11-21 13:05:09, with Z for UTC, or @SECONDS.
    #[arg(short, long, value_name = "TIME", value_parser = when::parse)]
    date: Option<Time>,
    /// The times of this file of the volume instead of now.
    #[arg(short, long, value_name = "PATH", conflicts_with = "date")]
    reference: Option<OsString>,
    /// Make no file.
    #[arg(short = 'c', long)]
    no_create: bool,
}

/// Runs `aze mv`.
pub fn run_mv(args: &MvArgs) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let (target, sources) = args.paths.split_last().expect("the parser demands two paths");
    let places: Vec<Place> = args.paths.iter().map(|path| Place::parse(path)).collect::<Outcome<_>>()?;
    if places.iter().any(|place| matches!(place, Place::Local(_))) {
        return Err(Trouble::usage(
            "renames within a volume only: to move between a volume and here, copy with 'aze cp -r', then remove the source",
        ));
    }
    let target = VolumePath::parse(target)?;
    let session = sessions.of(&target)?;
    if args.no_target_directory && sources.len() > 1 {
        return Err(Trouble::usage("with -T there is one name and what becomes of it"));
    }
    let kind = kind_of(&session, &target, true)?;
    let is_dir = !args.no_target_directory && kind == Some(FileKind::Directory);
    // A directory may get a name with a slash behind it.
    let may_have_slash = sources.len() == 1 && kind.is_none_or(|kind| kind == FileKind::Directory);
    if !is_dir && (sources.len() > 1 || target.ends_with_slash() && !may_have_slash) {
        return Err(Trouble::new(Exit::Caller, format!("{}: not a directory", target.shown())));
    }
    let mut taken = BTreeSet::new();
    let tally = Tally::new("mv");
    let moves: Vec<Outcome<Move>> = sources
        .iter()
        .map(|source| {
            let source = VolumePath::parse(source)?;
            if !Arc::ptr_eq(&sessions.of(&source)?, &session) {
                let (from, to) = (source.shown(), target.shown());
                return Err(Trouble::new(
                    Exit::Caller,
                    format!("{from} and {to} are in two volumes: copy with 'aze cp -r', then 'aze rm -r'"),
                ));
            }
            let is_to_be_dir = source.ends_with_slash() || !is_dir && target.ends_with_slash();
            if is_to_be_dir && kind_of(&session, &source, false)?.is_some_and(|kind| kind != FileKind::Directory) {
                return Err(Trouble::new(Exit::Caller, format!("{}: not a directory", source.shown())));
            }
            let one = Move::new(source, &target, is_dir)?;
            if !taken.insert(one.to.path.clone()) {
                return Err(twice(&one.from.shown(), &one.to.shown()));
            }
            Ok(one)
        })
        .collect();
    for same in moves.chunk_by(|one, other| one.is_ok() == other.is_ok()) {
        let (possible, failed): (Vec<&Move>, Vec<&Trouble>) =
            (same.iter().flatten().collect(), same.iter().filter_map(|one| one.as_ref().err()).collect());
        failed.into_iter().for_each(|trouble| tally.fail(trouble));
        let entries = |one: &&Move| vec![one.from.path.clone(), one.to.path.clone()];
        change_each(
            &session,
            &possible,
            entries,
            async |one| one.rename(&session, args).await,
            |_, moved| {
                tally.note(moved);
            },
        );
    }
    Ok(tally.exit())
}

/// Runs `aze mkdir`.
pub fn run_mkdir(args: &MkdirArgs) -> Outcome<Exit> {
    each("mkdir", &args.paths, async |session, path| {
        let (client, who) = (&session.client, &session.who);
        let made = async {
            if args.parents && !args.private {
                return client.mkdir_all(who, &path.path, args.mode).await.map(drop);
            }
            if args.parents {
                client.mkdir_all(who, above(&path.path), args.mode).await?;
            }
            let (parent, name) = client.resolve_parent(who, &path.path).await?;
            let new = NewFile { private: args.private, ..new_file(FileKind::Directory, args.mode) };
            match client.create(who, parent, &name, &new).await {
                Err(failure) if args.parents && failure.code == Code::Exists => {
                    let attr = client.resolve(who, &path.path, true).await?;
                    let what = match (attr.kind, attr.ino.is_private_directory()) {
                        (FileKind::Directory, true) => return Ok(()),
                        (FileKind::Directory, false) => "it is a directory, and not a private one",
                        _ => "it is no directory",
                    };
                    Err(failure.during(what))
                }
                made => made.map(drop),
            }
        };
        made.await.map_err(|failure| Trouble::volume(format!("make directory {}", path.shown()), &failure))
    })
}

/// A path without its last component.
fn above(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    path[..end].iter().rposition(|byte| *byte == b'/').map_or(b"/", |slash| &path[..slash])
}

/// Runs `aze rmdir`.
pub fn run_rmdir(args: &RmdirArgs) -> Outcome<Exit> {
    each("rmdir", &args.paths, async |session, path| {
        let (client, who) = (&session.client, &session.who);
        path.refuse_dot()?;
        let removed = async {
            let (parent, name) = client.resolve_parent(who, &path.path).await?;
            client.rmdir(who, parent, &name).await
        };
        removed.await.map_err(|failure| Trouble::volume(format!("remove directory {}", path.shown()), &failure))
    })
}

/// Runs `aze ln`.
pub fn run_ln(args: &LnArgs) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let mut link = VolumePath::parse(&args.link)?;
    let session = sessions.of(&link)?;
    let target_place = Place::parse(&args.target)?;
    if is_directory(&session, &link)? {
        let name = target_place.base_name();
        link = link.join(
            &name.ok_or_else(|| Trouble::usage(format!("{}: a directory: give the link's name, too", link.shown())))?,
        );
    }
    let (client, who) = (&session.client, &session.who);
    let what = format!("make link {}", link.shown());
    if args.symbolic {
        // A path of the volume is written as seen from its root; other text stays as it is.
        let target = match &target_place {
            Place::Volume(path) => path.path.clone(),
            Place::Local(_) => args.target.as_bytes().to_vec(),
        };
        let made = async {
            let (parent, name) = client.resolve_parent(who, &link.path).await?;
            client.create(who, parent, &name, &NewFile { target, ..new_file(FileKind::Symlink, 0o777) }).await.map(drop)
        };
        session.ask(what, made)?;
        return Ok(Exit::Done);
    }
    let target = VolumePath::parse(&args.target)?;
    if !Arc::ptr_eq(&sessions.of(&target)?, &session) {
        return Err(Trouble::new(
            Exit::Caller,
            format!("{} and {} are in two volumes: only -s can link them", target.shown(), link.shown()),
        ));
    }
    session.ask(what, async {
        let attr = client.resolve(who, &target.path, false).await?;
        let (parent, name) = client.resolve_parent(who, &link.path).await?;
        client.link(who, attr.ino, parent, &name).await.map(drop)
    })?;
    Ok(Exit::Done)
}

/// Runs `aze touch`.
pub fn run_touch(args: &TouchArgs) -> Outcome<Exit> {
    let times = match &args.reference {
        Some(reference) => {
            let mut sessions = Sessions::default();
            let reference = VolumePath::parse(reference)?;
            let session = sessions.of(&reference)?;
            let attr = session.ask(reference.shown(), session.client.resolve(&session.who, &reference.path, true))?;
            (SetTime::To { time: attr.atime }, SetTime::To { time: attr.mtime })
        }
        None => args.date.map_or((SetTime::Now, SetTime::Now), |time| (SetTime::To { time }, SetTime::To { time })),
    };
    each("touch", &args.paths, async |session, path| {
        touch(session, path, times, args.no_create)
            .await
            .map_err(|failure| Trouble::volume(format!("touch {}", path.shown()), &failure))
    })
}

async fn touch(
    session: &Session,
    path: &VolumePath,
    (atime, mtime): (SetTime, SetTime),
    no_create: bool,
) -> Result<(), Failure> {
    let (client, who) = (&session.client, &session.who);
    let new = NewFile { exclusive: false, ..new_file(FileKind::File, 0o644) };
    // One request where the file does not exist: making it tells of an existing one.
    let made = if no_create || path.ends_with_slash() {
        Err(Code::IsDirectory.into())
    } else {
        client.create_path(who, &path.path, &new).await
    };
    let ino = match made {
        Ok(made) if made.created && mtime == SetTime::Now => return Ok(()),
        Ok(made) => made.attr.ino,
        Err(failure) if failure.code == Code::IsDirectory => match client.resolve(who, &path.path, true).await {
            Err(failure) if failure.code == Code::NotFound && no_create => return Ok(()),
            attr => match attr? {
                attr if path.ends_with_slash() && attr.kind != FileKind::Directory => {
                    return Err(Code::NotDirectory.into());
                }
                attr => attr.ino,
            },
        },
        Err(failure) => return Err(failure),
    };
    let change = Change { atime: Some(atime), mtime: Some(mtime), ..Change::default() };
    client.setattr(who, ino, &change).await.map(drop)
}

/// One thing that gets another name.
struct Move {
    from: VolumePath,
    to: VolumePath,
}

impl Move {
    fn new(from: VolumePath, target: &VolumePath, is_dir: bool) -> Outcome<Move> {
        match Place::Volume(from.clone()).base_name() {
            Some(name) if is_dir => Ok(Move { to: target.join(&name), from }),
            Some(_) => Ok(Move { to: target.clone(), from }),
            None => Err(Trouble::usage(format!("{}: has no name that could be changed", from.shown()))),
        }
    }

    async fn rename(&self, session: &Session, args: &MvArgs) -> Outcome<()> {
        let (client, who) = (&session.client, &session.who);
        let renamed = async {
            let (parent, name) = client.resolve_parent(who, &self.from.path).await?;
            let (to_parent, to_name) = client.resolve_parent(who, &self.to.path).await?;
            if args.exchange {
                return client.exchange(who, parent, &name, to_parent, &to_name).await;
            }
            client.rename(who, parent, &name, to_parent, &to_name, args.no_clobber).await
        };
        let what = if args.exchange { ("exchange", "with") } else { ("rename", "to") };
        let text = || format!("{} {} {} {}", what.0, self.from.shown(), what.1, self.to.shown());
        renamed.await.map_err(|failure| Trouble::volume(text(), &failure))
    }
}

fn is_directory(session: &Session, path: &VolumePath) -> Outcome<bool> {
    Ok(kind_of(session, path, true)? == Some(FileKind::Directory))
}

/// What is there; `None` if nothing is.
fn kind_of(session: &Session, path: &VolumePath, follow: bool) -> Outcome<Option<FileKind>> {
    match session.runtime.block_on(session.client.resolve(&session.who, &path.path, follow)) {
        Ok(attr) => Ok(Some(attr.kind)),
        Err(failure) if failure.code == Code::NotFound => Ok(None),
        Err(failure) => Err(Trouble::volume(path.shown(), &failure)),
    }
}

/// Does the same to every path, and counts.
fn each(
    command: &'static str,
    paths: &[OsString],
    act: impl AsyncFn(&Session, &VolumePath) -> Outcome<()>,
) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let tally = Tally::new(command);
    let run = |session: &Session, paths: &[VolumePath]| {
        let entries = |path: &VolumePath| vec![path.path.clone()];
        let note = |_: &VolumePath, done| {
            tally.note(done);
        };
        change_each(session, paths, entries, async |path| act(session, path).await, note);
        Ok(())
    };
    by_volume(paths, &mut sessions, run, |trouble| tally.fail(&trouble))?;
    Ok(tally.exit())
}

fn new_file(kind: FileKind, mode: u32) -> NewFile {
    NewFile { kind, mode, rdev: 0, target: Vec::new(), exclusive: true, open: None, chunk_bits: 0, private: false }
}

/// Permission bits in octal. The error names the expected form.
fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777 && !text.starts_with('+'));
    mode.ok_or_else(|| format!("'{text}' is not a mode: expected octal digits such as 755"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("755"), Ok(0o755));
        assert_eq!(parse_mode("1777"), Ok(0o1777));
        for text in ["", "8", "17777", "rwx", "+7"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }
}
