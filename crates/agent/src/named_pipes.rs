//! Named pipes (fifo(7)) that stand for one description after the other.
//!
//! A description is a pipe ([`crate::description`]). To make one, pass its reading end by a packet and watch its writing end
//! took more processor time than all else in the agent's part of an open. So named pipes lie in a directory of the agent, which keeps and
//! watches their writing ends, and one is reserved for each channel: the library opens the reading end before it asks for an open. A
//! pipe stands for another description only when poll(2) of the writing end says that every program has closed its reading end.

use crate::sys::{self, Epoll};
use aze_io::sync::Mutex;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Named pipes at one time: each takes a descriptor, also while it stands for nothing. Further descriptions have pipes of their own.
const PIPES_MAX: usize = 1024;

/// Of the files that the agent may have open, named pipes take at most one in so many.
const SHARE: u64 = 4;

/// One named pipe.
pub struct NamedPipe {
    /// Its name in the directory.
    pub number: u32,
    /// The end that is in error while no program has the other one.
    pub writing_end: OwnedFd,
    /// By which fstat(2) of the reading end knows it.
    pub file: sys::FileId,
}

impl NamedPipe {
    /// Whether a program has its reading end.
    pub fn has_reader(&self) -> bool {
        sys::has_reader(&self.writing_end)
    }
}

/// All of them.
pub struct NamedPipes {
    dir: PathBuf,
    pipes_max: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Those that exist, by number.
    pipes: BTreeMap<u32, Arc<NamedPipe>>,
    /// The description of each that stands for one.
    bound: BTreeMap<u32, u64>,
    /// Those that stand for nothing and are reserved for no channel.
    free: Vec<Arc<NamedPipe>>,
    next: u32,
    has_directory: bool,
}

impl NamedPipes {
    /// None yet; they will lie in `dir`, which is made for the first one. `files_max`: the files that this process may have open.
    pub fn new(dir: PathBuf, files_max: u64) -> NamedPipes {
        // Of an agent that had this one's number and was killed.
        remove(&dir);
        let pipes_max = PIPES_MAX.min(usize::try_from(files_max / SHARE).unwrap_or(PIPES_MAX));
        NamedPipes { dir, pipes_max, known: Mutex::default() }
    }

    /// Reserves a pipe, whose number `ended` reports with [`token`]. `None` if there are too many.
    ///
    /// # Errors
    /// What the system said.
    pub fn reserve(&self, ended: &Epoll) -> io::Result<Option<Arc<NamedPipe>>> {
        let mut known = self.known.lock();
        if let Some(pipe) = known.free.pop() {
            return Ok(Some(pipe));
        }
        if known.pipes.len() >= self.pipes_max {
            return Ok(None);
        }
        if !known.has_directory {
            DirBuilder::new().mode(0o700).create(&self.dir)?;
            known.has_directory = true;
        }
        let number = known.next;
        known.next += 1;
        let path = self.path(number);
        sys::make_named_pipe(&path)?;
        let made = sys::open_named_pipe(&path).and_then(|(writing_end, file)| {
            ended.add(&writing_end, libc::EPOLLET, token(number))?;
            Ok(Arc::new(NamedPipe { number, writing_end, file }))
        });
        match made {
            Ok(pipe) => {
                known.pipes.insert(number, pipe.clone());
                Ok(Some(pipe))
            }
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.join(number.to_string())
    }

    /// The directory, for programs.
    ///
    /// # Errors
    /// What the system said.
    pub fn directory(&self) -> io::Result<OwnedFd> {
        File::open(&self.dir).map(OwnedFd::from)
    }

    /// A reserved one stands for this description from now on.
    pub fn bind(&self, pipe: &NamedPipe, description: u64) {
        self.known.lock().bound.insert(pipe.number, description);
    }

    /// The description that a pipe stands for, if all programs have closed its reading end.
    pub fn ended(&self, number: u32) -> Option<u64> {
        let known = self.known.lock();
        let description = *known.bound.get(&number)?;
        known.pipes.get(&number).is_some_and(|pipe| !pipe.has_reader()).then_some(description)
    }

    /// A pipe stands for nothing any more, or is reserved no longer. One that a program has open all the same is given up.
    pub fn give_back(&self, pipe: Arc<NamedPipe>) {
        let mut known = self.known.lock();
        known.bound.remove(&pipe.number);
        if pipe.has_reader() {
            known.pipes.remove(&pipe.number);
            let _ = std::fs::remove_file(self.path(pipe.number));
        } else {
            known.free.push(pipe);
        }
    }

    /// Removes all names.
    pub fn remove(&self) {
        remove(&self.dir);
    }
}

fn remove(dir: &Path) {
    // There is none if no program has opened enough files.
    let _ = std::fs::remove_dir_all(dir);
}

/// What an [`Epoll`] reports of the writing end of the pipe of this number. Descriptions have lower numbers.
fn token(number: u32) -> u64 {
    1 << 63 | u64::from(number)
}

/// The pipe that was reported, if it was a named one.
pub fn of_token(reported: u64) -> Option<u32> {
    (reported >> 63 == 1).then_some(reported as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::Duration;

    struct Place(PathBuf);

    impl Drop for Place {
        fn drop(&mut self) {
            remove(&self.0);
        }
    }

    fn place(name: &str) -> Place {
        Place(std::env::temp_dir().join(format!("aze-named-pipes-{}-{name}", std::process::id())))
    }

    fn open(place: &Place, number: u32) -> File {
        let path = place.0.join(number.to_string());
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).expect("the pipe")
    }

    fn reported(epoll: &Epoll) -> Vec<u32> {
        epoll.wait(Some(Duration::ZERO)).expect("epoll").into_iter().filter_map(of_token).collect()
    }

    #[test]
    fn a_pipe_stands_for_another_description_when_nobody_has_it() {
        let (place, ended) = (place("another"), Epoll::new().expect("epoll"));
        let pipes = NamedPipes::new(place.0.clone(), 1 << 20);
        let pipe = pipes.reserve(&ended).expect("no failure").expect("the first one");
        for description in [5, 6] {
            reported(&ended);
            let (reader, copy) = (open(&place, pipe.number), open(&place, pipe.number));
            pipes.bind(&pipe, description);
            assert!(pipe.has_reader());
            drop(reader);
            assert_eq!((reported(&ended), pipes.ended(pipe.number)), (vec![], None), "a copy is left");
            drop(copy);
            assert_eq!((reported(&ended), pipes.ended(pipe.number)), (vec![pipe.number], Some(description)));
            pipes.give_back(pipe.clone());
            assert_eq!(pipes.ended(pipe.number), None);
            let again = pipes.reserve(&ended).expect("no failure").expect("the same");
            assert_eq!(again.number, pipe.number);
        }
    }

    #[test]
    fn one_that_a_program_keeps_is_given_up() {
        let (place, ended) = (place("kept"), Epoll::new().expect("epoll"));
        let pipes = NamedPipes::new(place.0.clone(), 1 << 20);
        let pipe = pipes.reserve(&ended).expect("no failure").expect("the first one");
        let reader = open(&place, pipe.number);
        pipes.give_back(pipe.clone());
        let other = pipes.reserve(&ended).expect("no failure").expect("another one");
        assert_ne!(other.number, pipe.number);
        assert!(!pipes.path(pipe.number).exists());
        drop(reader);
    }

    #[test]
    fn there_are_at_most_so_many() {
        let (place, ended) = (place("many"), Epoll::new().expect("epoll"));
        let pipes = NamedPipes::new(place.0.clone(), 8);
        let reserve = || pipes.reserve(&ended).expect("no failure");
        let (first, second) = (reserve().expect("one"), reserve().expect("two"));
        assert!(reserve().is_none());
        pipes.give_back(first);
        assert!(reserve().is_some() && reserve().is_none());
        drop(second);
    }
}
