//! Dirty objects of a volume, those that it alone holds: `aze down` refuses to drop them.

use crate::account::{self, Account};
use crate::exit::{Exit, Outcome, Trouble};
use crate::session::Session;
use crate::volume::Volume;
use crate::{show, size};
use aze_copy::stage::standing::{self, Standing, Why};
use aze_words::errln;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Dirty objects that are named.
const NAMED_MAX: usize = 10;

/// How long a server is waited for during the look, for each of the few objects of lost servers after which it ends.
const LOOK_TIME: Duration = Duration::from_secs(5);

/// Keeps a volume from ending as long as it has dirty objects.
pub struct Guard {
    session: Arc<Session>,
    account: Account,
}

/// Looks at a volume that is to end; `None` if nothing keeps it from that. With `stage_out`, stages dirty objects first.
///
/// # Errors
/// [`Exit::Unsaved`] with objects that would be lost, [`Exit::Fatal`] if a part of the volume cannot be looked at, [`Exit::Denied`] if
/// that is for lack of rights.
pub fn guard(volume: &Volume, stage_out: Option<&Option<PathBuf>>) -> Outcome<Option<Guard>> {
    let name = &volume.record.name;
    if volume.is_dead() {
        // All that it held in memory is lost already, and what directories keep stays there.
        return Ok(None);
    }
    let opened =
        Session::open_if_there(volume.clone(), LOOK_TIME).and_then(|session| Ok((Account::find(&session)?, session)));
    let (account, session) = match opened {
        Ok((account, session)) => (account, session),
        Err(trouble) if account::is_marked(&volume.dir) => {
            errln!("lost  {trouble}");
            return Err(lost(name, "it keeps account of staging, and its root cannot be read"));
        }
        Err(_) => return Ok(None),
    };
    let account = match (account, stage_out) {
        (Some(account), _) => account,
        (None, None) => {
            session.end();
            return Ok(None);
        }
        (None, Some(_)) => Account::default(),
    };
    if stage_out.is_none() && !account.guards(volume.record.settings.is_kept()) {
        session.end();
        return Ok(None);
    }
    let mut guard = Guard { session, account };
    if let Some(dir) = stage_out {
        guard.stage_out(dir.as_deref())?;
    }
    guard.check()?;
    Ok(Some(guard))
}

/// The account of a volume that ends without a look.
pub fn account(volume: &Volume) -> Option<Account> {
    if volume.is_dead() || !account::is_marked(&volume.dir) {
        return None;
    }
    let session = Session::open_if_there(volume.clone(), LOOK_TIME).ok()?;
    let account = Account::find(&session).ok().flatten();
    session.end();
    account
}

impl Guard {
    /// Refuses if the volume has dirty objects.
    pub fn check(&self) -> Outcome<()> {
        let name = &self.session.volume.record.name;
        let standing = self.look(NAMED_MAX)?;
        for trouble in &standing.lost {
            errln!("{}  {trouble}", standing::word_for(trouble));
        }
        for (path, why) in &standing.named {
            errln!("dirty  {} ({})", account::shown(path), standing.why(path, *why));
        }
        if !standing.lost.is_empty() {
            let dirty = match standing.dirty.objects {
                0 => String::new(),
                _ => format!(", and {} are nowhere else", told(&standing)),
            };
            return Err(match standing.is_closed() {
                true => closed(name, &dirty),
                false => lost(name, &format!("a part of it cannot be looked at{dirty}")),
            });
        }
        if standing.dirty.objects == 0 {
            return Ok(());
        }
        if standing.removed == standing.dirty.objects {
            let text = format!(
                "end volume '{name}': {} that it has removed, the first named above, are still where they were staged out or came \
                 from: 'aze stage out --delete' removes them there ('aze down --stage-out' removes nothing), or drop that with --discard",
                show::count(standing.removed, "name")
            );
            return Err(Trouble::new(Exit::Unsaved, text));
        }
        let text = format!(
            "end volume '{name}': {} would be lost, the first named above: stage them out ('aze down --stage-out DIR', \
             'aze stage out'), or drop them with --discard",
            told(&standing)
        );
        Err(Trouble::new(Exit::Unsaved, text))
    }

    /// Ends the look for good, before the servers end.
    pub fn finish(self) -> Account {
        self.session.end();
        self.account
    }

    fn look(&self, named_max: usize) -> Outcome<Standing> {
        let mut standing = self.account.standing(&self.session, named_max, &|| false)?;
        // Names that servers do not tell may be dirty.
        standing.lost.extend(standing.untold.take());
        Ok(standing)
    }

    /// Stages dirty objects; where nothing was staged in, all that has no entry in the ledger of this directory.
    fn stage_out(&mut self, dir: Option<&Path>) -> Outcome<()> {
        let volume = self.session.volume.clone();
        let name = &volume.record.name;
        let known = self.account.stage_out.as_deref();
        let missing =
            || Trouble::usage("--stage-out needs a directory: the volume was started without --stage-out DIR");
        let dir = dir.or(known).ok_or_else(missing)?;
        let mut list = None;
        if self.account.is_staged_in {
            let standing = self.look(usize::MAX)?;
            if standing.dirty.objects == 0 || !standing.lost.is_empty() {
                return Ok(());
            }
            let there = || standing.named.iter().filter(|(_, why)| **why != Why::Removed).map(|(path, _)| path);
            if there().all(|path| !path.contains(&b'\n')) {
                let lines: Vec<&[u8]> = there().flat_map(|path| [&path[1..], b"\n"]).collect();
                let file = volume.dir.join("dirty");
                std::fs::write(&file, lines.concat())
                    .map_err(|error| Trouble::local(format!("write {}", file.display()), &error))?;
                list = Some(file);
            }
        }
        let mut words: Vec<OsString> = ["stage", "out", "--keep"].map(OsString::from).into();
        if let Some(list) = &list {
            words.extend([OsStr::new("--no-recursion"), OsStr::new("--list"), list.as_os_str()].map(OsStr::to_owned));
        }
        words.extend([OsString::from(format!("aze://{name}/")), dir.as_os_str().to_owned()]);
        let failed = |error: &std::io::Error| Trouble::local("run 'aze stage out'", error);
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let status = Command::new(program).args(words).stdin(Stdio::null()).status().map_err(|error| failed(&error))?;
        if !status.success() {
            errln!("aze: down: not all of it could be staged out to {}: see above", dir.display());
        }
        // It may have begun just now.
        if let Some(account) = Account::find(&self.session)? {
            self.account = account;
        }
        Ok(())
    }
}

fn told(standing: &Standing) -> String {
    let (count, bytes) = (show::count(standing.dirty.objects, "object"), size::words(standing.dirty.bytes));
    let more = if standing.ended_early { " or more" } else { "" };
    format!("{count} with {bytes}{more}")
}

fn closed(name: &str, dirty: &str) -> Trouble {
    let text = format!(
        "end volume '{name}': what is named above is closed to this user, so that nothing tells whether it is elsewhere, too{dirty}: \
         take the right to read and search it ('chmod u+rx' through a mount), or end it as root; --discard ends it all the same"
    );
    Trouble::new(Exit::Denied, text)
}

fn lost(name: &str, why: &str) -> Trouble {
    Trouble::new(Exit::Fatal, format!("end volume '{name}': {why}: see 'aze status'; --discard ends it all the same"))
}
