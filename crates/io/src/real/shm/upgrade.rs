//! From a local socket to shared memory.
//!
//! It alone knows the two messages for it, which are the first over the socket and the last:
//! the client asks, and the server answers with the memory file of the connection, the page of
//! its workers, the client's eventfd and the files that it may read if the server has such (its published index,
//! and the memory that it shares), or with the reason why not. The kernel tells who may ask (`SO_PEERCRED`): the
//! server's own user and root. The handshake that follows over the rings is no part of this file.

use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;

use super::super::net::watch_readable;
use super::super::reactor::Reactor;
use super::region::{self, Region};
use super::shared;
use super::shared_payload::SharedFrames;
use super::wakeups::{Wakeups, WorkerWaker};
use super::{FILE_BYTES, RING_BYTES, SHM_CONNECTIONS_MAX, Shm, Wakeup};
use crate::Credentials;
use crate::published::SharedWords;

/// What a client asks with. No frame begins like this: the length of its head would be zero.
const ASK: [u8; 16] = *b"\0\0\0\0aze-shm-v003";

const ANSWER_BYTES: usize = 256;
const ANSWER: [u8; 8] = *b"aze-shm!";

/// The server's answer as it lies on the socket: a mark, whether it grants (1) or refuses (0), the
/// connection's slot, the number of workers, the size of a ring, a bit for each file to be read that
/// comes along, the length of the reason, and the reason.
struct Answer {
    granted: bool,
    slot: u32,
    workers: u32,
    ring_bytes: u32,
    files: u32,
    reason: String,
}

const REASON_AT: usize = 8 + 6 * 4;

/// Files that come along, in this order: the server's published index.
const PUBLISHED: u32 = 1;
/// What the server shares.
const SHARED: u32 = 2;

impl Answer {
    fn to_bytes(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..8].copy_from_slice(&ANSWER);
        let mut reason_bytes = self.reason.len().min(ANSWER_BYTES - REASON_AT);
        while !self.reason.is_char_boundary(reason_bytes) {
            reason_bytes -= 1;
        }
        let granted = u32::from(self.granted);
        let words = [granted, self.slot, self.workers, self.ring_bytes, self.files, reason_bytes as u32];
        for (index, word) in words.iter().enumerate() {
            bytes[8 + index * 4..][..4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[REASON_AT..][..reason_bytes].copy_from_slice(&self.reason.as_bytes()[..reason_bytes]);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Answer> {
        if bytes.len() != ANSWER_BYTES || bytes[..8] != ANSWER {
            return None;
        }
        let word = |index: usize| bytes[8 + index * 4..][..4].try_into().map(u32::from_le_bytes).ok();
        let reason = bytes.get(REASON_AT..REASON_AT + word(5)? as usize)?;
        Some(Answer {
            granted: word(0)? == 1,
            slot: word(1)?,
            workers: word(2)?,
            ring_bytes: word(3)?,
            files: word(4)?,
            reason: String::from_utf8_lossy(reason).into_owned(),
        })
    }
}

/// What the client has got: its end, and the eventfd by which the server wakes it.
pub(in super::super) struct Opened {
    pub(in super::super) shm: Arc<Shm>,
    pub(in super::super) eventfd: OwnedFd,
    /// The server's published index.
    pub(in super::super) published: Option<SharedWords>,
}

/// The client's side: asks over a connected socket and waits for the answer.
pub(in super::super) async fn open(reactor: &Arc<Reactor>, socket: &OwnedFd) -> Result<Opened> {
    region::send_fds(socket, &ASK, &[])?;
    let mut bytes = [0; ANSWER_BYTES];
    let told = watch_readable(reactor, socket)?;
    let (got, fds) = poll_fn(|cx| {
        // First, so that what comes after the look is not missed.
        told.wake_with(cx.waker());
        match region::receive_fds(socket, &mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
            done => Poll::Ready(done),
        }
    })
    .await?;
    drop(told);
    if got == 0 {
        return Err(Error::new(ErrorKind::ConnectionReset, "the server closed the connection when it was asked"));
    }
    let answer = Answer::from_bytes(&bytes[..got])
        .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the server's answer is not understood"))?;
    if !answer.granted {
        return Err(Error::new(ErrorKind::Unsupported, answer.reason));
    }
    let mut fds = fds.into_iter();
    let (Some(memory), Some(page), Some(eventfd)) = (fds.next(), fds.next(), fds.next()) else {
        return Err(Error::new(ErrorKind::Unsupported, "the server's memory did not come along"));
    };
    // In this order, as far as they are there.
    let mut next = |kind: u32| if answer.files & kind != 0 { fds.next() } else { None };
    // A published index that cannot be read is not missed: everything can be asked for. But the server shares data
    // without asking.
    let published = next(PUBLISHED).and_then(|file| shared::open(file).ok());
    let shared = next(SHARED).map(|file| Region::open_to_read(&file, usize::MAX)).transpose()?;
    if answer.ring_bytes as usize != RING_BYTES {
        return Err(Error::new(ErrorKind::Unsupported, "the server has rings of another size"));
    }
    let worker_waker = WorkerWaker::open(&page, answer.workers as usize, answer.slot as usize)?;
    let shm = Shm::new(Region::open(&memory, FILE_BYTES)?, Wakeup::Workers(worker_waker), None, shared);
    Ok(Opened { shm, eventfd, published })
}

/// What the first bytes over an accepted socket are.
pub(in super::super) enum Knock {
    /// Too few to tell.
    Early,
    /// A frame, or the end.
    Frame,
    /// A client that asks for shared memory.
    Ask,
}

/// Looks at the first bytes over a socket, and takes them if they ask for shared memory.
pub(in super::super) fn knock(socket: &OwnedFd) -> Result<Knock> {
    let mut bytes = [0; ASK.len()];
    let got = region::peek(socket, &mut bytes)?;
    if got == 0 || !ASK.starts_with(&bytes[..got]) {
        return Ok(Knock::Frame);
    }
    if got < ASK.len() {
        return Ok(Knock::Early);
    }
    // Descriptors that come along are of no use here: they are closed.
    let (_, _fds) = region::receive_fds(socket, &mut bytes)?;
    Ok(Knock::Ask)
}

/// The server's side: makes what the client needs and sends it, or sends why not.
pub(in super::super) fn answer(
    reactor: &Arc<Reactor>,
    socket: &OwnedFd,
    who: Credentials,
    published: Option<&OwnedFd>,
) -> Result<std::result::Result<Granted, String>> {
    match grant(reactor, who) {
        Ok((granted, memory, eventfd)) => {
            let shared = granted.shm.shared_file();
            let answer = Answer {
                granted: true,
                slot: granted.slot as u32,
                workers: granted.wakeups.workers() as u32,
                ring_bytes: RING_BYTES as u32,
                files: published.map_or(0, |_| PUBLISHED) | shared.map_or(0, |_| SHARED),
                reason: String::new(),
            };
            let mut fds = vec![&memory, granted.wakeups.file(), &eventfd];
            fds.extend(published);
            fds.extend(shared);
            match region::send_fds(socket, &answer.to_bytes(), &fds) {
                Ok(()) => Ok(Ok(granted)),
                Err(error) => {
                    granted.wakeups.leave(granted.slot);
                    Err(error)
                }
            }
        }
        Err(reason) => {
            let answer =
                Answer { granted: false, slot: 0, workers: 0, ring_bytes: 0, files: 0, reason: reason.clone() };
            region::send_fds(socket, &answer.to_bytes(), &[])?;
            Ok(Err(reason))
        }
    }
}

/// A place among the server's connections through shared memory, to be left when they end.
pub(in super::super) struct Granted {
    pub(in super::super) shm: Arc<Shm>,
    pub(in super::super) wakeups: Arc<Wakeups>,
    pub(in super::super) slot: usize,
}

fn grant(reactor: &Arc<Reactor>, who: Credentials) -> std::result::Result<(Granted, OwnedFd, OwnedFd), String> {
    if who.uid != 0 && who.uid != region::effective_user() {
        return Err(format!("shared memory is for the server's own user, not for user {}", who.uid));
    }
    let system = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let wakeups = reactor.wakeups().map_err(system("the server cannot start workers for shared memory"))?;
    let full = || format!("the server has {SHM_CONNECTIONS_MAX} connections through shared memory already");
    let slot = wakeups.reserve().ok_or_else(full)?;
    let give_back = |error: String| {
        wakeups.leave(slot);
        error
    };
    let made = Region::create(c"aze-rings", FILE_BYTES).map_err(system("the server cannot make a memory file"));
    let (region, memory) = made.map_err(give_back)?;
    let made = super::super::sys::eventfd().and_then(|own| Ok((own.try_clone()?, own)));
    let (own, theirs) = made.map_err(system("the server cannot make an eventfd")).map_err(give_back)?;
    Ok((
        Granted {
            shm: Shm::new(region, Wakeup::Client(own), reactor.shared_slab().map(SharedFrames::new), None),
            wakeups,
            slot,
        },
        memory,
        theirs,
    ))
}
