//! `aze down --delete`: removes the directories that keep a volume, after making sure that they do and
//! that this is meant. Files that keep one were there before; they stay, and are empty for the next.

use crate::exit::{Exit, Outcome, Trouble};
use crate::kept;
use crate::volume::Volume;
use aze_io::disk::DiskResult;
use aze_io::real::Runtime;
use aze_words::errln;
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
    if settings.is_local() {
        let text = format!(
            "volume '{name}' is on local disks of its job, and goes with its end: 'aze down' without --delete ends it"
        );
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
    let parts: Vec<PathBuf> = match settings.made {
        None => record.servers.iter().flat_map(|server| kept::parts(&given, server.slot, servers)).collect(),
        // Servers have joined or left: those that have left have marked theirs.
        Some(_) => {
            let all = record.servers.iter().flat_map(|server| given.iter().map(|given| kept::part(given, server.slot)));
            all.filter(|part| manifest(part).exists()).collect()
        }
    };
    // What a file holds is looked at when its server has ended.
    for part in parts.iter().filter(|part| !kept::keeps_one(part)) {
        let manifest = manifest(part);
        let text = fs::read_to_string(&manifest)
            .map_err(|error| Trouble::local(format!("--delete: read {}", manifest.display()), &error))?;
        if !text.starts_with(TITLE) {
            let text = format!("--delete: {} does not say that it is a server's directory", manifest.display());
            return Err(Trouble::new(Exit::Caller, text));
        }
    }
    Ok(parts)
}

/// The file that says whose directory it is, or was.
fn manifest(part: &Path) -> PathBuf {
    let left = part.join("volume.left");
    if left.exists() { left } else { part.join("volume") }
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
    errln!("This removes {} for good. Write the volume's name to go on:", words(parts));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;

    fn kept_in(dir: &Path, nodes: &[Option<&str>]) -> Volume {
        let mut volume = examples::volume(nodes);
        volume.record.settings.storage = dir.display().to_string();
        volume.record.settings.durability = Some("none".into());
        volume
    }

    #[test]
    fn only_directories_that_say_what_they_are_are_removed() {
        let dir = std::env::temp_dir().join(format!("aze-delete-{}", std::process::id()));
        let part = dir.join("server-0");
        fs::create_dir_all(&part).expect("a directory");
        let asked = || parts(&kept_in(&dir, &[None]));
        let unmarked = asked();
        fs::write(part.join("volume"), "something else").expect("a file");
        let strange = asked();
        fs::write(part.join("volume"), format!("{TITLE} server 0")).expect("a file");
        let found = asked();
        let elsewhere = parts(&kept_in(&dir, &[Some("a")]));
        let in_memory = parts(&examples::volume(&[None]));
        fs::remove_dir_all(&dir).expect("it is there");
        assert_eq!(unmarked.expect_err("no file says so").exit, Exit::NotFound);
        assert!(strange.expect_err("it is another's").text.contains("does not say"));
        assert_eq!(found, Ok(vec![part]));
        assert!(elsewhere.expect_err("of another node").text.contains("server-0 on a"));
        assert_eq!(in_memory.expect_err("nothing is kept").exit, Exit::Caller);
    }

    #[test]
    fn a_directory_with_other_things_stays() {
        let dir = std::env::temp_dir().join(format!("aze-remove-{}", std::process::id()));
        for part in ["own/server-0", "shared/server-0", "shared/of-others"] {
            fs::create_dir_all(dir.join(part)).expect("a directory");
        }
        let removed = remove(&[dir.join("own/server-0"), dir.join("shared/server-0")]);
        let there = ["own", "shared/server-0", "shared/of-others"].map(|path| dir.join(path).exists());
        fs::remove_dir_all(&dir).expect("it is there");
        assert_eq!((removed, there), (Ok(()), [false, false, true]));
    }
}
