//! `aze down --delete`: removes the directories that keep a volume, after making sure that they do and
//! that this is meant. Files that keep one were there before; they stay, and are empty for the next.

use crate::exit::{Exit, Outcome, Trouble};
use crate::kept;
use crate::volume::Volume;
use aze_io::disk::DiskResult;
use aze_io::real::Runtime;
use std::fs;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

/// First word of the file that says whose directory it is.
const TITLE: &str = "Azekura:";

/// The directories of the volume's servers.
pub fn parts(volume: &Volume) -> Outcome<Vec<PathBuf>> {
    let (record, settings) = (&volume.record, &volume.record.settings);
    let name = &record.name;
    if !settings.lasts() {
        let text = format!("volume '{name}' is in memory: there is nothing to --delete, 'aze down' ends it");
        return Err(Trouble::new(Exit::Caller, text));
    }
    let given: Vec<PathBuf> = settings.storage.split(',').map(PathBuf::from).collect();
    if let Some(server) = record.servers.iter().find(|server| server.node.is_some()) {
        let node = server.node.as_deref().unwrap_or_default();
        let on_node = record.servers.iter().filter(|other| other.node == server.node).count() as u16;
        let parts = words(&kept::parts(&given, server.slot, on_node));
        let text = format!(
            "--delete removes directories of this machine only: end volume '{name}' with 'aze down', then remove {parts} on {node}, and so on"
        );
        return Err(Trouble::new(Exit::Caller, text));
    }
    let servers = record.servers.len() as u16;
    let parts: Vec<PathBuf> =
        record.servers.iter().flat_map(|server| kept::parts(&given, server.slot, servers)).collect();
    // What a file holds is looked at when its server has ended.
    for part in parts.iter().filter(|part| !kept::keeps_one(part)) {
        let manifest = part.join("volume");
        let text = fs::read_to_string(&manifest)
            .map_err(|error| Trouble::local(format!("--delete: read {}", manifest.display()), &error))?;
        if !text.starts_with(TITLE) {
            let text = format!("--delete: {} does not say that it is a server's directory", manifest.display());
            return Err(Trouble::new(Exit::Caller, text));
        }
    }
    Ok(parts)
}

fn words(parts: &[PathBuf]) -> String {
    let list: Vec<String> = parts.iter().map(|part| part.display().to_string()).collect();
    list.join(", ")
}

/// Has the user write the volume's name.
pub fn ask(name: &str, parts: &[PathBuf]) -> Outcome<()> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Trouble::usage("--delete asks for the volume's name at a terminal; without one give --yes, too"));
    }
    eprintln!("This removes {} for good. Write the volume's name to go on:", words(parts));
    let mut line = String::new();
    input.lock().read_line(&mut line).map_err(|error| Trouble::local("read the answer", &error))?;
    if line.trim() != name {
        return Err(Trouble::new(Exit::Caller, format!("'{}' is not '{name}': nothing was done", line.trim())));
    }
    Ok(())
}

/// Removes them, and the directories that they are in if nothing else is there.
pub fn remove(parts: &[PathBuf]) -> Outcome<()> {
    for part in parts {
        if kept::keeps_one(part) {
            empty(part)?;
            continue;
        }
        fs::remove_dir_all(part).map_err(|error| Trouble::local(format!("remove {}", part.display()), &error))?;
        if let Some(parent) = part.parent() {
            // It may hold other things.
            let _ = fs::remove_dir(parent);
        }
    }
    Ok(())
}

/// Removes the part that a file keeps.
fn empty(part: &Path) -> Outcome<()> {
    let runtime = Runtime::client();
    let io = runtime.io();
    let text = part.display().to_string();
    let emptied = runtime.block_on(async {
        let dir = io.open_dir(&text).await?;
        for name in dir.list().await? {
            dir.remove(&name).await?;
        }
        DiskResult::Ok(())
    });
    emptied.map_err(|error| Trouble::new(Exit::Fatal, format!("--delete: empty {text}: {error}")))
}
