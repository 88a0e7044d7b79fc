//! What a volume holds after a start, compared with the book.

use super::book::Book;
use super::{CHUNKS_MAX, PersistentPlan};
use crate::audit;
use crate::cluster::{CHUNK_BITS, Cluster};
use crate::plan::{Mix, Plan};
use crate::work::{Board, ROOT};
use aze_client::{Access, CheckOptions, Client};
use aze_io::sync::Mutex;
use aze_proto::{Code, Failure, FileKind, Ino, ServerIndex};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Checks the tables, compares all files with the book, and records their state as the start of the next life.
pub(super) async fn look(
    cluster: &Arc<Cluster>,
    plan: &PersistentPlan,
    board: &Arc<Board>,
    client: &Arc<Client>,
    book: &Arc<Mutex<Book>>,
    life: usize,
) {
    let wrong = |text: String| board.violation(format!("start {life}: {text}"));
    if let Some(map) = cluster.newest_map() {
        // Else all that it has would be said to be lost.
        let is_seen = |server: &ServerIndex| cluster.server(server.0).is_some();
        let has_slots = |server: &ServerIndex| map.slots.served_by(*server).next().is_some();
        let unseen: Vec<ServerIndex> = map.indexes().filter(has_slots).filter(|server| !is_seen(server)).collect();
        if !unseen.is_empty() {
            return wrong(format!("servers {unseen:?} have slots, and nobody looks at what is on them"));
        }
    }
    let general = Plan { mix: Mix::Quiet, ..Plan::of(plan.seed) };
    audit::tables(cluster, &general, board);
    audit::looked_through(&general, board, "at rest", client.check(&ROOT, CheckOptions::default()).await);
    let mut places: BTreeMap<Ino, Vec<(Ino, Vec<u8>)>> = BTreeMap::new();
    let mut open = vec![Ino::ROOT];
    while let Some(dir) = open.pop() {
        for (name, ino, kind) in cluster.servers().iter().flat_map(|server| server.entries_of(dir)) {
            if kind == FileKind::Directory {
                open.push(ino);
            } else {
                places.entry(ino).or_default().push((dir, name.as_bytes().to_vec()));
            }
        }
        if let Err(failure) = client.getattr(&ROOT, dir).await {
            wrong(format!("directory {dir}: {failure}"));
        }
    }
    let inos: Vec<Ino> = book.lock().files.keys().copied().collect();
    for ino in inos {
        let data = match places.get(&ino) {
            Some(_) => match read(client, ino).await {
                Ok(data) => Some(data),
                Err(failure) => {
                    wrong(format!("file {ino} cannot be read: {failure}"));
                    None
                }
            },
            None => None,
        };
        let mut book = book.lock();
        let Some(known) = book.files.get_mut(&ino) else { continue };
        let here = places.get(&ino).cloned().unwrap_or_default();
        match (&here[..], data) {
            ([], _) if known.may_be_gone => {
                book.files.remove(&ino);
            }
            ([], _) => wrong(format!("file {ino} has no name; it must be at one of {:?}", known.places)),
            ([place], Some(data)) => {
                if !known.places.contains(place) {
                    wrong(format!("file {ino} is at {place:?}, and may be at {:?}", known.places));
                }
                if let Err(why) = known.check(&data) {
                    wrong(format!("file {ino}: {why}"));
                }
                (known.content, known.place, known.in_doubt) = (data, Some(place.clone()), false);
                known.settle();
            }
            ([_], None) => {}
            (many, _) => wrong(format!("file {ino} has several names: {many:?}")),
        }
    }
}

async fn read(client: &Arc<Client>, ino: Ino) -> Result<Vec<u8>, Failure> {
    let file = client.open(&ROOT, ino, Access { read: true, write: false }).await?;
    let data = file.read(0, ((CHUNKS_MAX + 2) << CHUNK_BITS) as usize).await?;
    let size = client.getattr(&ROOT, ino).await?.size;
    if size != data.len() as u64 {
        return Err(Failure::new(Code::Internal, format!("size {size} and {} bytes", data.len())));
    }
    file.close().await?;
    Ok(data)
}
