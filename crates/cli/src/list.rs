//! `aze ls`: what directories of a volume hold.

use crate::exit::{Exit, Outcome, Trouble};
use crate::operands::{ask_each, by_volume};
use crate::place::{VolumePath, join};
use crate::session::{Session, Sessions};
use crate::show;
use crate::tally::{Out, Tally};
use aze_client::{Lister, Reached};
use aze_proto::attr::{Attr, FileKind};
use aze_proto::error::Code;
use aze_proto::ids::Ino;
use aze_proto::limits::LIST_ENTRIES_MAX;
use futures_util::stream::{self, StreamExt};
use std::ffi::OsString;

/// Questions under way at the same time for attributes that a listing did not bring along.
const ASKED_AT_ONCE: usize = 64;

/// List what directories hold, sorted by name.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze ls                     the root of the volume
  aze ls -l aze:/results
  aze ls -R --json aze:/     everything, one JSON object for each line")]
pub struct Args {
    /// Files and directories; the root of the volume if none is given.
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Mode, links, owner, size and time of last change, too.
    #[arg(short, long)]
    long: bool,
    /// Names that begin with a dot, too.
    #[arg(short, long)]
    all: bool,
    /// Directories below, too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// A directory itself, not its entries.
    #[arg(short, long)]
    directory: bool,
    /// One JSON object for each line.
    #[arg(long)]
    json: bool,
}

/// A name with its attributes, as far as they are known.
struct Item {
    name: Vec<u8>,
    kind: FileKind,
    ino: Ino,
    /// Present where it is to be shown.
    attr: Option<Attr>,
    /// Where a symlink leads.
    target: Option<Vec<u8>>,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let mut sessions = Sessions::default();
    let tally = Tally::new("ls");
    let mut listing =
        Listing { args, tally: &tally, out: Out::new(), titled: args.recursive || args.paths.len() > 1, first: true };
    let root = [OsString::from("aze:/")];
    let paths = if args.paths.is_empty() { &root[..] } else { &args.paths };
    let run = |session: &Session, paths: &[VolumePath]| {
        ask_each(
            session,
            paths,
            async |path| look(args, session, path).await,
            |path, found| {
                let listed = found.and_then(|found| listing.argument(session, path, found));
                listing.out.flush()?;
                tally.note(listed);
                Ok(())
            },
        )
    };
    by_volume(paths, &mut sessions, run, |trouble| tally.fail(&trouble))?;
    Ok(tally.exit())
}

/// What an operand leads to, and where that leads if it is a link.
async fn look(args: &Args, session: &Session, path: &VolumePath) -> Outcome<(Reached, Option<Vec<u8>>)> {
    let follow = !args.long || path.path.ends_with(b"/");
    let reached = session.client.reach(&session.who, &path.path, follow).await;
    let reached = reached.map_err(|failure| Trouble::volume(path.shown(), &failure))?;
    let target = args.target(session, reached.kind, reached.ino).await?;
    Ok((reached, target))
}

impl Args {
    /// Where a link leads, if that is to be shown.
    async fn target(&self, session: &Session, kind: FileKind, ino: Ino) -> Outcome<Option<Vec<u8>>> {
        if kind != FileKind::Symlink || !(self.long || self.json) {
            return Ok(None);
        }
        let read = session.client.readlink(&session.who, ino).await;
        read.map(Some).map_err(|failure| Trouble::volume("read link", &failure))
    }
}

struct Listing<'a> {
    args: &'a Args,
    tally: &'a Tally,
    out: Out,
    /// Each directory is preceded by its path.
    titled: bool,
    first: bool,
}

impl Listing<'_> {
    fn argument(
        &mut self,
        session: &Session,
        path: &VolumePath,
        (reached, target): (Reached, Option<Vec<u8>>),
    ) -> Outcome<()> {
        if reached.kind == FileKind::Directory && !self.args.directory {
            return self.directory(session, path, reached.ino);
        }
        let attr = reached.attr.map_err(|failure| Trouble::volume(path.shown(), &failure))?;
        let name = if self.args.json { path.path.clone() } else { path.written() };
        self.print(&[Item { name, kind: attr.kind, ino: attr.ino, attr: Some(attr), target }], None)
    }

    /// Lists a directory, and those below it if asked to, without recursion of ours: trees may be deep.
    fn directory(&mut self, session: &Session, path: &VolumePath, dir: Ino) -> Outcome<()> {
        let mut waiting = vec![(path.clone(), dir)];
        while let Some((path, dir)) = waiting.pop() {
            let (items, trouble) = match self.items(session, &path, dir) {
                Ok(listed) => listed,
                Err(trouble) if !self.args.recursive => return Err(trouble),
                Err(trouble) => {
                    self.tally.fail(&trouble);
                    continue;
                }
            };
            if !self.args.json && self.titled {
                let gap = if std::mem::take(&mut self.first) { "" } else { "\n" };
                self.out.line([gap.as_bytes(), &show::name(&path.written()), b":"].concat())?;
            }
            self.print(&items, Some(&path))?;
            if let Some(trouble) = trouble {
                self.out.flush()?;
                self.tally.fail(&trouble);
            }
            if self.args.recursive {
                let below = items.into_iter().filter(|item| item.kind == FileKind::Directory);
                waiting.extend(below.rev().map(|item| (path.join(&item.name), item.ino)));
            }
        }
        Ok(())
    }

    /// What a directory holds, sorted, and why it may not be all.
    fn items(&self, session: &Session, path: &VolumePath, dir: Ino) -> Outcome<(Vec<Item>, Option<Trouble>)> {
        let (client, who) = (&session.client, &session.who);
        let wants_attr = self.args.long || self.args.json;
        let mut items = Vec::new();
        let (mut after, mut trouble) = (0, None);
        let mut lister = Lister::new(dir, wants_attr);
        loop {
            let what = format!("list {}", path.shown());
            let page = session.ask(&what, lister.page(client, who, after, LIST_ENTRIES_MAX))?;
            trouble = trouble.or(page.failure.map(|failure| Trouble::volume(&what, &failure)));
            let Some(last) = page.entries.last() else { break };
            after = last.hash.cookie();
            let shown =
                page.entries.into_iter().filter(|entry| self.args.all || !entry.name.as_bytes().starts_with(b"."));
            let asked = shown.map(async |entry| {
                // Of a directory a listing knows a part of the counts only.
                let known = entry.attr.filter(|_| entry.kind != FileKind::Directory);
                let attr = match known {
                    None if wants_attr => client.getattr(who, entry.ino).await.map(Some),
                    known => Ok(known),
                };
                let target = match &attr {
                    Ok(_) => self.args.target(session, entry.kind, entry.ino).await,
                    Err(_) => Ok(None),
                };
                (entry.name, entry.kind, entry.ino, attr, target)
            });
            let answers = session.runtime.block_on(stream::iter(asked).buffered(ASKED_AT_ONCE).collect::<Vec<_>>());
            for (name, kind, ino, answer, target) in answers {
                match answer {
                    Ok(attr) => items.push(Item { name: name.as_bytes().to_vec(), kind, ino, attr, target: target? }),
                    // Gone since it was listed.
                    Err(failure) if matches!(failure.code, Code::NotFound | Code::Stale) => {}
                    Err(failure) => trouble = Some(Trouble::volume(path.join(name.as_bytes()).shown(), &failure)),
                }
            }
            if !page.more {
                break;
            }
        }
        items.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((items, trouble))
    }

    fn print(&mut self, items: &[Item], dir: Option<&VolumePath>) -> Outcome<()> {
        if self.args.json {
            for item in items {
                let path = dir.map_or_else(|| item.name.clone(), |dir| join(&dir.written(), &item.name));
                let mut object = serde_json::Map::new();
                show::put_name(&mut object, "path", &path);
                object.extend(item.attr.as_ref().map(show::attr_json).unwrap_or_default());
                if let Some(target) = &item.target {
                    show::put_name(&mut object, "target", target);
                }
                self.out.json(&object)?;
            }
            return Ok(());
        }
        if !self.args.long {
            return items.iter().try_for_each(|item| self.out.line(show::name(&item.name)));
        }
        let widths = Widths::of(items);
        items.iter().try_for_each(|item| self.out.line(widths.line(item)))
    }
}

/// Widths of the columns of `ls -l`.
#[derive(Default)]
struct Widths {
    links: usize,
    uid: usize,
    gid: usize,
    size: usize,
}

impl Widths {
    fn of(items: &[Item]) -> Widths {
        let digits = |number: u64| number.checked_ilog10().map_or(1, |digits| digits as usize + 1);
        let widest = |number: fn(&Attr) -> u64| {
            items.iter().filter_map(|item| item.attr.as_ref()).map(|attr| digits(number(attr))).max().unwrap_or(0)
        };
        Widths {
            links: widest(|attr| attr.links.into()),
            uid: widest(|attr| attr.uid.into()),
            gid: widest(|attr| attr.gid.into()),
            size: widest(|attr| attr.size),
        }
    }

    fn line(&self, item: &Item) -> Vec<u8> {
        let Item { attr: Some(attr), name, target, .. } = item else { return show::name(&item.name) };
        let mut line = format!(
            "{} {:>links$} {:>uid$} {:>gid$} {:>size$} {} ",
            show::mode(attr),
            attr.links,
            attr.uid,
            attr.gid,
            attr.size,
            show::time(attr.mtime),
            links = self.links,
            uid = self.uid,
            gid = self.gid,
            size = self.size,
        )
        .into_bytes();
        line.extend(show::name(name));
        if let Some(target) = target {
            line.extend_from_slice(b" -> ");
            line.extend(show::name(target));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_number() {
        let item = |name: &str, attr: Option<Attr>| Item {
            name: name.into(),
            kind: FileKind::File,
            ino: Ino(9),
            target: attr.as_ref().map(|_| b"there".to_vec()),
            attr,
        };
        let items = [
            item("a", Some(Attr { links: 10, ..show::example(0) })),
            item("b", Some(Attr { uid: 65534, ..show::example(999) })),
            item("lost", None),
        ];
        let widths = Widths::of(&items);
        assert_eq!([widths.links, widths.uid, widths.gid, widths.size], [2, 5, 1, 3]);
        let lines = items.each_ref().map(|item| String::from_utf8(widths.line(item)).expect("text"));
        assert!(lines[0].starts_with("-rw-r--r-- 10     1 1   0 "), "{}", lines[0]);
        assert!(lines[1].starts_with("-rw-r--r--  1 65534 1 999 "), "{}", lines[1]);
        assert!(lines[0].ends_with(" a -> there"), "{}", lines[0]);
        assert_eq!(lines[2], "lost");
    }
}
