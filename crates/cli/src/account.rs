//! The account that a volume keeps of staging: whether it keeps one, and where its ledgers are.
//!
//! It alone knows the extended attributes of the volume's root that say so. They are changes of names like all others: in the
//! journal of the root's home, where a restart finds them, and seen by commands on all nodes.

use crate::exit::{Exit, Outcome, Trouble};
use crate::session::Session;
use aze_copy::stage::ledger::{self, Ledger};
use aze_copy::stage::standing::{Standing, look};
use aze_copy::tree::{OWN_XATTRS, Spot};
use aze_proto::attr::XattrHow;
use aze_proto::error::Code;
use aze_proto::ids::Ino;
use aze_words::hex;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// File in a volume's directory on this node: the volume keeps an account.
const MARK: &str = "account";

/// Objects that are compared at the same time.
const JOBS: usize = 16;

/// A volume's account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// By which its ledgers are told from those of other volumes.
    pub number: String,
    /// Where `aze up --stage-out` wants the results.
    pub stage_out: Option<PathBuf>,
    /// Something was staged in.
    pub is_staged_in: bool,
    /// Files were released, or were about to be: their copies are nowhere else.
    pub has_released: bool,
}

/// A reason to keep an account.
pub enum Reason {
    /// `aze up --stage-out`.
    StageOut(PathBuf),
    /// `aze stage in`.
    StagedIn,
    /// `aze stage out --keep`.
    Kept,
}

impl Account {
    /// The account of a volume; `None` if it keeps none.
    pub fn find(session: &Session) -> Outcome<Option<Account>> {
        let Some(number) = get(session, "account")? else { return Ok(None) };
        let number = String::from_utf8(number).ok().filter(|number| hex::read(number).is_some());
        let damaged = || {
            Trouble::new(Exit::Fatal, format!("the extended attribute '{OWN_XATTRS}account' of the volume is damaged"))
        };
        Ok(Some(Account {
            number: number.ok_or_else(damaged)?,
            stage_out: get(session, "stage-out")?.map(|dir| PathBuf::from(std::ffi::OsString::from_vec(dir))),
            is_staged_in: get(session, "staged-in")?.is_some(),
            has_released: get(session, "released")?.is_some(),
        }))
    }

    /// The same; the volume begins to keep one if need be.
    ///
    /// # Errors
    /// Those of the volume: this user may not change its root, for one.
    pub fn open(session: &Session, reason: &Reason) -> Outcome<Account> {
        let mut number = [0; 16];
        aze_io::real::fill_random(&mut number);
        add(session, "account", hex::write(&number).into_bytes())?;
        match reason {
            Reason::StageOut(dir) => add(session, "stage-out", dir.as_os_str().as_bytes().to_vec())?,
            Reason::StagedIn => add(session, "staged-in", b"1".to_vec())?,
            Reason::Kept => {}
        }
        // For the time when the root's home is gone. The attributes are what counts; a node without this file asks for them.
        let _ = std::fs::write(session.volume.dir.join(MARK), "");
        let missing = || Trouble::new(Exit::Again, "the account of the volume was removed just now: try again");
        Account::find(session)?.ok_or_else(missing)
    }

    /// Notes in the volume that files are about to be released: who does not see the ledgers must not remove their copies.
    ///
    /// # Errors
    /// Those of the volume: this user may not change its root, for one.
    pub fn note_release(&self, session: &Session) -> Outcome<()> {
        add(session, "released", b"1".to_vec())
    }

    /// Where its ledgers are.
    pub fn ledgers(&self) -> Outcome<PathBuf> {
        Ok(state_dir()?.join("ledgers").join(&self.number))
    }

    /// Whether the volume may end only if all of it is elsewhere, too. What directories keep is there after its end.
    pub fn guards(&self, is_kept: bool) -> bool {
        self.stage_out.is_some() || self.is_staged_in && !is_kept
    }

    /// Compares all of the volume with the ledgers. Of the dirty objects at most `named_max` are named.
    ///
    /// # Errors
    /// The ledgers cannot be read, or the command was asked to end.
    pub fn standing(&self, session: &Arc<Session>, named_max: usize, is_over: &dyn Fn() -> bool) -> Outcome<Standing> {
        standing_to(&self.read_ledgers()?, session, named_max, None, is_over)
    }

    /// Its ledgers.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn read_ledgers(&self) -> Outcome<Vec<Ledger>> {
        let (ledgers, troubles) = ledger::all_in(&self.ledgers()?)?;
        troubles.into_iter().next().map_or(Ok(ledgers), Err)
    }

    /// Removes its ledgers, when the volume is gone.
    pub fn remove_ledgers(&self) -> Outcome<()> {
        let dir = self.ledgers()?;
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Trouble::local(format!("remove {}", dir.display()), &error))
            }
            _ => Ok(()),
        }
    }
}

/// Compares all of a volume with ledgers; until the moment `until`, if there is one.
///
/// # Errors
/// The command was asked to end.
pub fn standing_to(
    ledgers: &[Ledger],
    session: &Arc<Session>,
    named_max: usize,
    until: Option<Instant>,
    is_over: &dyn Fn() -> bool,
) -> Outcome<Standing> {
    let tree = crate::tree_volume::of_session(session);
    look(&Spot { tree, path: b"/".to_vec() }, ledgers, JOBS, named_max, until, is_over)
}

/// Whether a command of this node has seen that the volume of this directory keeps an account.
pub fn is_marked(volume_dir: &Path) -> bool {
    volume_dir.join(MARK).exists()
}

/// Where states and ledgers of this user lie, which is made if need be.
pub fn state_dir() -> Outcome<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    let missing = || Trouble::new(Exit::Caller, "keep the state: neither XDG_STATE_HOME nor HOME is set: set one");
    let dir = home.ok_or_else(missing)?.join("azekura");
    std::fs::create_dir_all(&dir).map_err(|error| Trouble::local(format!("make {}", dir.display()), &error))?;
    Ok(dir)
}

/// A path of a volume without empty and `.` components.
pub fn plain_path(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        plain.push(b'/');
        plain.extend_from_slice(name);
    }
    if plain.is_empty() { b"/".to_vec() } else { plain }
}

fn get(session: &Session, word: &str) -> Outcome<Option<Vec<u8>>> {
    let name = format!("{OWN_XATTRS}{word}");
    match session.runtime.block_on(session.client.get_xattr(&session.who, Ino::ROOT, name.as_bytes())) {
        Ok(value) => Ok(Some(value)),
        Err(failure) if failure.code == Code::NoAttribute => Ok(None),
        Err(failure) => Err(Trouble::volume("read the account of the volume", &failure)),
    }
}

/// Sets an attribute that is not there yet; one that is there stays, so that the change time of the root does, too.
fn add(session: &Session, word: &str, value: Vec<u8>) -> Outcome<()> {
    let name = format!("{OWN_XATTRS}{word}");
    let set = session.client.set_xattr(&session.who, Ino::ROOT, name.as_bytes(), &value, XattrHow::Create);
    match session.runtime.block_on(set) {
        Err(failure) if failure.code == Code::Exists => Ok(()),
        set => set.map_err(|failure| Trouble::volume("have the volume keep account of staging", &failure)),
    }
}

/// A path as people read it.
pub fn shown(path: &[u8]) -> String {
    format!("aze:{}", OsStr::from_bytes(path).to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_volume_has_one_form() {
        for (path, plain) in [("/", "/"), ("//", "/"), ("/a//b/./c/", "/a/b/c"), ("/.", "/"), ("/a/../b", "/a/../b")] {
            assert_eq!(plain_path(path.as_bytes()), plain.as_bytes(), "{path}");
        }
    }

    #[test]
    fn what_directories_keep_may_end_unless_its_user_asked_otherwise() {
        let of = |stage_out: Option<&str>, is_staged_in| Account {
            number: String::new(),
            stage_out: stage_out.map(PathBuf::from),
            is_staged_in,
            has_released: false,
        };
        assert!(!of(None, false).guards(false) && !of(None, true).guards(true));
        assert!(of(None, true).guards(false) && of(Some("/d"), false).guards(true));
    }
}
