//! `aze rm`: removes files, and directories with all that is in them.

use crate::exit::{Exit, Outcome, Trouble};
use crate::operands::{by_volume, change_each};
use crate::place::VolumePath;
use crate::session::{Session, Sessions};
use crate::tally::Tally;
use aze_client::Lister;
use aze_proto::attr::FileKind;
use aze_proto::error::{Code, Failure};
use aze_proto::ids::Ino;
use aze_proto::limits::LIST_ENTRIES_MAX;
use aze_proto::message::Listed;
use aze_proto::name::Name;
use futures_util::stream::{self, StreamExt};
use std::ffi::OsString;

/// Removals under way at the same time.
const REMOVED_AT_ONCE: usize = 64;

/// Remove files.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze rm aze:/a aze:/b
  aze rm -r aze:/old
  aze rm -f aze:/maybe       no error if it does not exist")]
pub struct Args {
    /// What to remove.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Directories with all that is in them, too.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// What does not exist is no error.
    #[arg(short, long)]
    force: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let tally = Tally::new("rm");
    let run = |session: &Session, paths: &[VolumePath]| {
        let entries = |path: &VolumePath| vec![path.path.clone()];
        change_each(
            session,
            paths,
            entries,
            async |path| remove(args, session, path).await,
            |_, removed| {
                tally.note(removed.and_then(|doomed| doomed.map_or(Ok(()), |dir| remove_tree(session, dir, &tally))));
            },
        );
        Ok(())
    };
    by_volume(&args.paths, &mut sessions, run, |trouble| tally.fail(&trouble))?;
    Ok(tally.exit())
}

/// Removes a directory with all that is in it; one that does not exist is no error.
pub fn remove_all(session: &Session, path: &VolumePath, tally: &Tally) -> Outcome<()> {
    let args = Args { paths: Vec::new(), recursive: true, force: true };
    let doomed = session.runtime.block_on(remove(&args, session, path))?;
    doomed.map_or(Ok(()), |dir| remove_tree(session, dir, tally))
}

/// Removes findings: files, many at a time, then directories, the deepest first.
pub fn remove_found(session: &Session, found: Vec<(VolumePath, FileKind)>, tally: &Tally) {
    let (client, who) = (&session.client, &session.who);
    let (mut dirs, files): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, kind)| *kind == FileKind::Directory);
    let note = |path: &VolumePath, removed: Result<(), Failure>| {
        // A file that has gone meanwhile needs no removal.
        if !matches!(&removed, Err(failure) if failure.code == Code::NotFound) {
            tally.note(removed.map_err(|failure| Trouble::volume(format!("remove {}", path.shown()), &failure)));
        }
    };
    let removals = files.iter().map(async |(path, _)| {
        let removed = async {
            let (parent, name) = client.resolve_parent(who, &path.path).await?;
            client.unlink(who, parent, &name).await
        };
        (path, removed.await)
    });
    let mut removals = stream::iter(removals).buffer_unordered(REMOVED_AT_ONCE);
    while let Some((path, removed)) = session.runtime.block_on(removals.next()) {
        note(path, removed);
    }
    // A directory is longer than each that holds it.
    dirs.sort_by_key(|(path, _)| std::cmp::Reverse(path.path.len()));
    for (path, _) in dirs {
        let removed = session.runtime.block_on(async {
            let (parent, name) = client.resolve_parent(who, &path.path).await?;
            client.rmdir(who, parent, &name).await
        });
        note(&path, removed);
    }
}

/// Removes a path that is no directory, by one request; gives a directory that is to be removed.
async fn remove(args: &Args, session: &Session, path: &VolumePath) -> Outcome<Option<Doomed>> {
    if path.path.iter().all(|byte| *byte == b'/') {
        return Err(Trouble::usage(format!(
            "{}: the root of a volume stays: name what is in it, or end the volume with 'aze down'",
            path.shown()
        )));
    }
    path.refuse_dot()?;
    let (client, who) = (&session.client, &session.who);
    let missing = |failure: Failure| match failure.code {
        Code::NotFound if args.force => Ok(None),
        _ => Err(Trouble::volume(path.shown(), &failure)),
    };
    let (parent, name) = match client.resolve_parent(who, &path.path).await {
        Ok(found) => found,
        // What should be above is a file.
        Err(failure) if args.force && failure.code == Code::NotDirectory => return Ok(None),
        Err(failure) => return missing(failure),
    };
    if path.ends_with_slash() {
        match client.lookup(who, parent, &name).await {
            Ok(attr) if attr.kind != FileKind::Directory => {
                return Err(Trouble::volume(path.shown(), &Code::NotDirectory.into()));
            }
            Ok(_) => {}
            Err(failure) => return missing(failure),
        }
    }
    let failure = match client.unlink(who, parent, &name).await {
        Ok(()) => return Ok(None),
        Err(failure) if failure.code == Code::NotFound => return missing(failure),
        Err(failure) => failure,
    };
    // A user who may not change a directory is refused before the server looks at the name.
    if matches!(failure.code, Code::IsDirectory | Code::AccessDenied | Code::NotPermitted) {
        match client.lookup(who, parent, &name).await {
            Ok(attr) if attr.kind == FileKind::Directory && args.recursive => {
                return Ok(Some(Doomed { path: path.clone(), ino: attr.ino, parent, name }));
            }
            Ok(attr) if attr.kind == FileKind::Directory => {
                return Err(Trouble::new(
                    Exit::Caller,
                    format!("{}: is a directory: use -r, or 'aze rmdir' if it is empty", path.shown()),
                ));
            }
            Err(failure) => return missing(failure),
            Ok(_) => {}
        }
    }
    Err(Trouble::volume(format!("remove {}", path.shown()), &failure))
}

/// A directory that is to go.
struct Doomed {
    path: VolumePath,
    ino: Ino,
    parent: Ino,
    name: Name,
}

/// Empties directories from the top, then removes them from the bottom, without recursion of ours.
fn remove_tree(session: &Session, root: Doomed, tally: &Tally) -> Outcome<()> {
    let (client, who) = (&session.client, &session.who);
    let mut emptied = Vec::new();
    let mut waiting = vec![root];
    while let Some(dir) = waiting.pop() {
        match empty(session, &dir, tally) {
            Ok(below) => waiting.extend(below),
            Err(trouble) => tally.fail(&trouble),
        }
        emptied.push(dir);
    }
    let root_shown = emptied.first().map(|root| root.path.shown()).unwrap_or_default();
    let mut left = Ok(());
    // A parent always precedes its subdirectories.
    for dir in emptied.into_iter().rev() {
        match session.runtime.block_on(client.rmdir(who, dir.parent, &dir.name)) {
            Err(failure) if failure.code != Code::NotFound => {
                let trouble = Trouble::volume(format!("remove directory {}", dir.path.shown()), &failure);
                if dir.path.shown() == root_shown { left = Err(trouble) } else { tally.fail(&trouble) }
            }
            _ => {}
        }
    }
    left
}

/// Removes all that is no directory; gives the directories.
fn empty(session: &Session, dir: &Doomed, tally: &Tally) -> Outcome<Vec<Doomed>> {
    let (client, who) = (&session.client, &session.who);
    let mut below = Vec::new();
    let mut after = 0;
    let mut lister = Lister::new(dir.ino, false);
    loop {
        let what = format!("list {}", dir.path.shown());
        let page = session.ask(&what, lister.page(client, who, after, LIST_ENTRIES_MAX))?;
        if let Some(failure) = page.failure {
            tally.fail(&Trouble::volume(&what, &failure));
        }
        let Some(last) = page.entries.last() else { return Ok(below) };
        after = last.hash.cookie();
        let (dirs, files): (Vec<Listed>, Vec<Listed>) =
            page.entries.into_iter().partition(|entry| entry.kind == FileKind::Directory);
        let doomed = |entry: Listed| Doomed {
            path: dir.path.join(entry.name.as_bytes()),
            ino: entry.ino,
            parent: dir.ino,
            name: entry.name,
        };
        below.extend(dirs.into_iter().map(doomed));
        let removals = files.into_iter().map(async |entry| {
            let removed = client.unlink(who, dir.ino, &entry.name).await;
            (entry.name, removed)
        });
        let removals: Vec<_> =
            session.runtime.block_on(stream::iter(removals).buffer_unordered(REMOVED_AT_ONCE).collect());
        for (name, removed) in removals {
            match removed {
                Err(failure) if failure.code != Code::NotFound => {
                    tally
                        .fail(&Trouble::volume(format!("remove {}", dir.path.join(name.as_bytes()).shown()), &failure));
                }
                _ => {}
            }
        }
        if !page.more {
            return Ok(below);
        }
    }
}
