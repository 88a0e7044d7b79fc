//! `aze key`: the key with which a user signs receipts.

use crate::exit::{Exit, Outcome, Trouble};
use aze_receipt::Key;
use aze_words::{errln, outln};
use std::path::{Path, PathBuf};

/// Show the public key with which you sign receipts of staged files; make the key if there is none.
///
/// The key lies in ~/.config/azekura/key (or $XDG_CONFIG_HOME/azekura/key) and is yours alone: a file that
/// others may read or write is refused. Give the public key to those who are to check that a receipt is
/// yours, on a way that they trust. The id is its short name: enough to tell keys apart, not to prove one.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze key
  aze key --json | jq -r .key
  aze key --file /etc/azekura/key      of a site: 'aze stage --sign-key' signs with it")]
pub struct Args {
    /// Another key than yours, such as that of a site; it is made if there is none. It has to be readable by you alone, too.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let place = match &args.file {
        None => Key::place()?,
        Some(file) => std::path::absolute(file).map_err(|error| Trouble::local(file.display(), &error))?,
    };
    let key = at(&place)?.public();
    if args.json {
        let told =
            serde_json::json!({ "key": key.to_string(), "key_id": key.id(), "path": place.display().to_string() });
        outln!("{told}");
    } else {
        outln!("public key  {key}");
        outln!("id          {}", key.id());
        outln!("kept in     {}", place.display());
    }
    Ok(Exit::Done)
}

/// The key in this file; a new one is told.
fn at(place: &Path) -> Outcome<Key> {
    let (key, is_new) = Key::at(place)?;
    if is_new {
        errln!("made a key to sign receipts with, {}: {}", key.public().id(), place.display());
    }
    Ok(key)
}

/// The key in this file, which has to be there; without a file the user's, and a new one is told.
pub fn of(file: Option<&Path>) -> Outcome<Key> {
    match file {
        None => at(&Key::place()?),
        Some(file) if file.exists() => at(file),
        Some(file) => {
            let text = format!("read key {0}: there is none: 'aze key --file {0}' makes one", file.display());
            Err(Trouble::new(Exit::NotFound, text))
        }
    }
}
