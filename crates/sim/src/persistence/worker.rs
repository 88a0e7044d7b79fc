//! A task that works on a persistent volume, one operation after another, and enters each in the book.

use super::book::{Book, Known};
use super::{CHUNKS_MAX, PersistentPlan, Trouble, WRITE_BYTES_MAX, again};
use crate::bytes::data_of;
use crate::cluster::{CHUNK_BITS, Cluster};
use crate::work::{Board, ROOT};
use aze_client::{Access, Client, File, NewFile};
use aze_io::sim::SimRng;
use aze_io::sync::Mutex;
use aze_proto::message::Durability;
use aze_proto::{Code, Failure, FileKind, Ino, Name};
use std::sync::Arc;

const READ_WRITE: Access = Access { read: true, write: true };

pub(super) struct Worker {
    pub(super) life: usize,
    pub(super) task: usize,
    pub(super) rng: SimRng,
    pub(super) client: Arc<Client>,
    pub(super) book: Arc<Mutex<Book>>,
    pub(super) board: Arc<Board>,
    pub(super) acknowledged_lasts: bool,
    pub(super) closes_sync: bool,
    pub(super) exchanges: bool,
    pub(super) trouble: Option<Trouble>,
    pub(super) dirs: Vec<Ino>,
    pub(super) next: u64,
    /// Files that the operation under way changes.
    pub(super) concerned: Vec<Ino>,
    /// How far the life has got, where clients stay.
    pub(super) again: Option<Arc<again::Progress>>,
}

impl Worker {
    /// A worker that has done nothing yet, in a cluster that is quiet. Its acknowledged changes last if the plan has no
    /// power cut.
    pub(super) fn new(
        plan: &PersistentPlan,
        cluster: &Cluster,
        (life, task): (usize, usize),
        client: &Arc<Client>,
        book: &Arc<Mutex<Book>>,
        board: &Arc<Board>,
    ) -> Worker {
        Worker {
            life,
            task,
            rng: cluster.sim.rng(&format!("task {task} of life {life}")),
            client: client.clone(),
            book: book.clone(),
            board: board.clone(),
            acknowledged_lasts: !plan.power_cut,
            closes_sync: plan.durability == Durability::Close,
            exchanges: plan.exchanges,
            trouble: plan.trouble.clone(),
            dirs: vec![Ino::ROOT],
            next: 0,
            concerned: Vec::new(),
            again: None,
        }
    }

    fn fresh(&mut self) -> Name {
        self.next += 1;
        let text = format!("l{}t{}n{}", self.life, self.task, self.next);
        Name::new(text.as_bytes()).expect("letters and digits are a name")
    }

    pub(super) async fn work(mut self) {
        let mut files: Vec<(Ino, Arc<File>)> = Vec::new();
        while !self.again.as_ref().is_some_and(|again| again.is_over()) {
            self.concerned.clear();
            let began = self.again.as_ref().map(|again| again.phase());
            let step = self.rng.below(100);
            let step = self.trouble.as_ref().map_or(step, |trouble| trouble.step(step));
            let what = match step {
                0..=14 => self.make_dir().await,
                15..=34 => self.make_file(&mut files).await,
                35..=50 => self.write(&files).await,
                51..=54 => self.append(&files).await,
                55..=59 => self.truncate(&files).await,
                60..=79 => self.rename(&files).await,
                80..=84 => self.move_dir().await,
                85..=89 => self.unlink(&files).await,
                90..=91 => self.close(&mut files).await,
                _ => self.sync(&files).await,
            };
            if let Err(failure) = what {
                if failure.code == Code::NoSpace {
                    return;
                }
                let who = format!("life {} task {}", self.life, self.task);
                if let (Some(again), Some(began)) = (&self.again, began) {
                    self.tell(|| format!("step {step} failed: {failure}"));
                    for ino in &self.concerned {
                        if let Some(known) = self.book.lock().files.get_mut(ino) {
                            known.in_doubt = true;
                        }
                    }
                    if let Err(why) = again.judge(began, step, &failure) {
                        return self.board.violation(format!("{who}: step {step}: {why}: {failure}"));
                    }
                    continue;
                }
                self.board
                    .violation(format!("{who}: in a quiet cluster step {step} gave {:?}: {failure}", failure.code));
                return;
            }
        }
    }

    /// Longest file, in bytes.
    fn bytes_max(&self) -> u64 {
        self.trouble.as_ref().map_or(CHUNKS_MAX << CHUNK_BITS, Trouble::file_bytes_max)
    }

    /// Every other one is private, and all below it.
    fn new_dir(&self) -> NewFile {
        let private = self.dirs.len() % 2 == 1;
        NewFile { private, ..crate::work::shared::new_file(FileKind::Directory, true) }
    }

    async fn make_dir(&mut self) -> Result<(), Failure> {
        let (parent, name) = (*self.rng.pick(&self.dirs), self.fresh());
        let new = self.new_dir();
        let made = self.client.create(&ROOT, parent, &name, &new).await?;
        self.book.lock().give(made.attr.ino, self.client.map().shards())?;
        self.tell(|| format!("mkdir {name} in {parent} -> {}", made.attr.ino));
        self.dirs.push(made.attr.ino);
        Ok(())
    }

    async fn make_file(&mut self, files: &mut Vec<(Ino, Arc<File>)>) -> Result<(), Failure> {
        let (parent, name) = (*self.rng.pick(&self.dirs), self.fresh());
        let new = NewFile {
            kind: FileKind::File,
            mode: 0o644,
            rdev: 0,
            target: Vec::new(),
            exclusive: true,
            open: Some(READ_WRITE),
            chunk_bits: 0,
            private: false,
        };
        let made = self.client.create(&ROOT, parent, &name, &new).await?;
        let (ino, file) = (made.attr.ino, made.file.expect("an open was asked for"));
        self.tell(|| format!("create {name} in {parent} -> {ino}"));
        let place = Some((parent, name.as_bytes().to_vec()));
        let known = Known {
            id: (ino.0 % 1_000_003) as u32,
            content: Vec::new(),
            kept: Vec::new(),
            low: 0,
            high: 0,
            places: place.iter().cloned().collect(),
            place,
            may_be_gone: true,
            in_doubt: false,
        };
        {
            let mut book = self.book.lock();
            book.give(ino, self.client.map().shards())?;
            book.files.insert(ino, known);
        }
        self.acknowledged(ino);
        files.push((ino, file));
        Ok(())
    }

    fn tell(&self, text: impl FnOnce() -> String) {
        self.board.tell(|| format!("life {} task {}: {}", self.life, self.task, text()));
    }

    fn acknowledged(&self, ino: Ino) {
        if self.acknowledged_lasts
            && let Some(known) = self.book.lock().files.get_mut(&ino)
        {
            known.settle();
        }
    }

    /// Picks one of the files and changes its record in the book.
    fn begin(&mut self, files: &[(Ino, Arc<File>)], change: impl FnOnce(&mut Known)) -> Option<(Ino, Arc<File>)> {
        if files.is_empty() {
            return None;
        }
        let (ino, file) = self.rng.pick(files).clone();
        self.concerned.push(ino);
        change(self.book.lock().files.get_mut(&ino)?);
        Some((ino, file))
    }

    async fn write(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let len_max = self.trouble.as_ref().map_or(WRITE_BYTES_MAX, Trouble::write_bytes_max);
        let (far, len) = (self.rng.chance(300_000), self.rng.between(1, len_max));
        let (draw, bytes_max) = (self.rng.u64(), self.bytes_max());
        let mut data = (0, Vec::new());
        let chosen = self.begin(files, |known| {
            let size = known.content.len() as u64;
            let offset = if far { draw % bytes_max } else { draw % (size + 1) };
            let end = (offset + len).min(bytes_max);
            data = (offset, data_of(known.id, offset, (end - offset) as usize));
            if known.content.len() < end as usize {
                known.content.resize(end as usize, 0);
            }
            known.content[offset as usize..end as usize].copy_from_slice(&data.1);
            known.high = known.high.max(known.content.len());
        });
        let Some((ino, file)) = chosen else { return Ok(()) };
        file.write(data.0, &data.1).await?;
        self.tell(|| format!("write {ino} at {} of {}", data.0, data.1.len()));
        self.acknowledged(ino);
        Ok(())
    }

    async fn append(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        if self.again.is_some() {
            // A failed operation may have moved the end.
            return self.write(files).await;
        }
        let (len, bytes_max) = (self.rng.between(1, WRITE_BYTES_MAX), self.bytes_max());
        let mut data = Vec::new();
        // Where an append goes is known only with its answer: tasks append to files of their own.
        let chosen = self.begin(files, |known| {
            let size = known.content.len() as u64;
            let len = len.min(bytes_max - size);
            data = data_of(known.id, size, len as usize);
            known.content.extend_from_slice(&data);
            known.high = known.high.max(known.content.len());
        });
        let Some((ino, file)) = chosen else { return Ok(()) };
        file.append(&data).await?;
        self.tell(|| format!("append {ino} of {}", data.len()));
        self.acknowledged(ino);
        Ok(())
    }

    async fn truncate(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let (draw, bytes_max) = (self.rng.u64(), self.bytes_max());
        let mut size = 0;
        let chosen = self.begin(files, |known| {
            size = (draw % (known.content.len() as u64 * 5 / 4 + 1)).min(bytes_max);
            known.content.resize(size as usize, 0);
            known.low = known.low.min(size as usize);
            known.high = known.high.max(size as usize);
        });
        let Some((ino, file)) = chosen else { return Ok(()) };
        self.client.truncate(&ROOT, ino, size, Some(&file)).await?;
        self.tell(|| format!("truncate {ino} to {size}"));
        self.acknowledged(ino);
        Ok(())
    }

    async fn rename(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let (to_parent, fresh) = (*self.rng.pick(&self.dirs), self.fresh());
        let onto = self.rng.chance(300_000) && files.len() > 1;
        let victim = onto.then(|| self.rng.pick(files).0);
        let mut places = None;
        // Names in doubt are left alone: something else may be under them.
        let certain = |known: &Known| (!known.in_doubt).then(|| known.place.clone()).flatten();
        let victim_place = victim.and_then(|ino| self.book.lock().files.get(&ino).and_then(certain));
        let chosen = self.begin(files, |known| {
            let Some(from) = certain(known) else { return };
            let to = match &victim_place {
                Some(place) if *place != from => place.clone(),
                _ => (to_parent, fresh.as_bytes().to_vec()),
            };
            known.places.insert(to.clone());
            known.place = Some(to.clone());
            places = Some((from, to));
        });
        let (Some((ino, _)), Some((from, to))) = (chosen, places) else { return Ok(()) };
        let victim = victim.filter(|victim| *victim != ino && victim_place.as_ref() == Some(&to));
        let exchanges = victim.is_some() && self.exchanges && self.rng.chance(500_000);
        if let Some(victim) = victim
            && let Some(known) = self.book.lock().files.get_mut(&victim)
        {
            if exchanges {
                known.places.insert(from.clone());
                known.place = Some(from.clone());
            } else {
                (known.may_be_gone, known.place) = (true, None);
            }
            self.concerned.push(victim);
        }
        let name = |bytes: &[u8]| Name::new(bytes).expect("it was made as a name");
        let (name, to_name) = (name(&from.1), name(&to.1));
        match exchanges {
            true => self.client.exchange(&ROOT, from.0, &name, to.0, &to_name).await?,
            false => self.client.rename(&ROOT, from.0, &name, to.0, &to_name, false).await?,
        }
        let how = if exchanges { "with" } else { "over" };
        self.tell(|| format!("rename {ino} to {to_name} in {}, {how} {victim:?}", to.0));
        self.acknowledged(ino);
        victim.into_iter().for_each(|victim| self.acknowledged(victim));
        Ok(())
    }

    /// Moves a directory of this task into another one that is not below it: a fresh one in the root.
    async fn move_dir(&mut self) -> Result<(), Failure> {
        let new = self.new_dir();
        let (first, second, third) = (self.fresh(), self.fresh(), self.fresh());
        let moved = self.client.create(&ROOT, Ino::ROOT, &first, &new).await?.attr.ino;
        let into = self.client.create(&ROOT, *self.rng.pick(&self.dirs), &second, &new).await?.attr.ino;
        for made in [moved, into] {
            self.book.lock().give(made, self.client.map().shards())?;
        }
        self.dirs.push(moved);
        self.client.rename(&ROOT, Ino::ROOT, &first, into, &third, false).await?;
        self.tell(|| format!("directory {moved} goes into {into}"));
        if self.rng.chance(500_000) {
            let empty = self.fresh();
            let parent = *self.rng.pick(&self.dirs);
            self.client.create(&ROOT, parent, &empty, &new).await?;
            self.client.rmdir(&ROOT, parent, &empty).await?;
        }
        Ok(())
    }

    async fn unlink(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        let mut place = None;
        let chosen = self.begin(files, |known| {
            if !known.in_doubt {
                place = known.place.take();
                known.may_be_gone = true;
            }
        });
        let (Some((ino, _)), Some((parent, name))) = (chosen, place) else { return Ok(()) };
        let name = Name::new(&name).expect("it was made as a name");
        self.client.unlink(&ROOT, parent, &name).await?;
        self.tell(|| format!("unlink {ino}"));
        self.acknowledged(ino);
        Ok(())
    }

    async fn close(&mut self, files: &mut Vec<(Ino, Arc<File>)>) -> Result<(), Failure> {
        if files.is_empty() {
            return Ok(());
        }
        let (ino, file) = files.swap_remove(self.rng.below(files.len() as u64) as usize);
        self.concerned.push(ino);
        file.close().await?;
        self.tell(|| format!("close {ino}"));
        if self.closes_sync
            && let Some(known) = self.book.lock().files.get_mut(&ino)
        {
            known.settle();
        }
        Ok(())
    }

    async fn sync(&mut self, files: &[(Ino, Arc<File>)]) -> Result<(), Failure> {
        if !self.rng.chance(self.trouble.as_ref().map_or(1_000_000, Trouble::sync_ppm)) {
            return self.write(files).await;
        }
        let Some((ino, file)) = self.begin(files, |_| {}) else { return Ok(()) };
        file.sync().await?;
        self.tell(|| format!("fsync {ino}"));
        if let Some(known) = self.book.lock().files.get_mut(&ino) {
            known.settle();
        }
        Ok(())
    }
}
