//! `aze key`: the key with which a user signs receipts.

use crate::exit::{Exit, Outcome};
use aze_receipt::Key;
use aze_words::{errln, outln};

/// Show the public key with which you sign receipts of staged files; make the key if there is none.
///
/// The key lies in ~/.config/azekura/key (or $XDG_CONFIG_HOME/azekura/key) and is yours alone: a file that
/// others may read or write is refused. Give the public key to those who are to check that a receipt is
/// yours, on a way that they trust. The id is its short name: enough to tell keys apart, not to prove one.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  aze key
  aze key --json | jq -r .key")]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome<Exit> {
    let key = of_user()?.public();
    let place = Key::place()?;
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

/// The user's key; a new one is told.
pub fn of_user() -> Outcome<Key> {
    let (key, is_new) = Key::of_user()?;
    if is_new {
        errln!("made a key to sign receipts with, {}: {}", key.public().id(), Key::place()?.display());
    }
    Ok(key)
}
