//! Opening files for reading through a server of this node, by that server's own client: a file that processes of a node open, each
//! a client of its own, is opened at its home once or twice, and not by each (FINCHFS, "contact servers").
//!
//! It alone knows which opens go that way, and that a file which was opened so is opened at its home when the server ends. Where few files
//! are opened by others, too, nearly all opens go to the homes at once.

use crate::again::IsTold;
use crate::client::{Client, Core};
use crate::closes::{At, Registered, Unopened};
use crate::file::{Access, File, How};
use crate::published::Looked;
use crate::route::{Knowing, Place, Question};
use crate::tries::Tries;
use crate::way::Way;
use aze_io::sync::Mutex;
use aze_proto::error::Class;
use aze_proto::message::Handle;
use aze_proto::wire::Blob;
use aze_proto::{Code, Failure, FileKind, Identity, Ino, MapEpoch, Name, NamespaceEpoch, Reply, Request, ServerIndex};
use aze_rpc::Target;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the server may take before the home is asked; the server is then left alone for `REST`.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(10);

/// How long a close waits for others.
const BATCH_TIME_MAX: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Contacts {
    are_used: AtomicBool,
    /// They help where a file is one that others open.
    tries: Tries,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rest_until_ns: u64,
    /// By the map of this epoch.
    near: Option<(MapEpoch, Arc<[Target]>)>,
    /// Opens at servers of this node, by their numbers.
    opens: BTreeMap<u64, Weak<Registered>>,
    closes: BTreeMap<ServerIndex, Vec<u64>>,
    /// A task will send the closes.
    is_timed: bool,
}

/// An open at a server of this node.
#[derive(Clone)]
pub(crate) struct Through {
    pub(crate) contact: Target,
    pub(crate) who: Identity,
}

impl Contacts {
    /// Whether the next open goes through a server.
    fn is_next(&self, now_ns: u64) -> bool {
        now_ns >= self.state.lock().rest_until_ns && self.tries.is_next()
    }
}

/// Whether the caller asks for the file alone, and not for the way to it.
fn is_whole(way: &Way<'_>) -> bool {
    way.at.is_none() && way.note.is_none() && (way.dir.is_some() || way.path.first() == Some(&b'/'))
}

/// Whether it is an open for reading, without rights to write or run the file.
fn is_plain(how: How) -> bool {
    let Access { read, write } = how.access;
    read && !write && !how.to_run && !how.nameless
}

impl Core {
    /// The server of this node through which a path is opened, if other nodes have servers, too: the same one for all clients of the node.
    fn contact_of(&self, dir: Ino, path: &[u8]) -> Option<Target> {
        let map = self.routes.read().map.clone();
        let near = self.near(map.epoch);
        let living: Vec<&Target> = near.iter().filter(|target| !self.has_ended(&map, target.index)).collect();
        let sum = path.iter().fold(dir.0, |sum, byte| sum.rotate_left(5).wrapping_mul(31) ^ u64::from(*byte));
        let at = sum.checked_rem(living.len() as u64)?;
        Some(living[at as usize].clone())
    }

    /// The servers of this node; none if there are no others. A map has thousands of servers: looked up once for each.
    fn near(&self, epoch: MapEpoch) -> Arc<[Target]> {
        let mut state = self.contacts.state.lock();
        if let Some((of, near)) = &state.near
            && *of == epoch
        {
            return near.clone();
        }
        let routes = self.routes.read().clone();
        let mut near: Vec<Target> = routes.targets().filter(|target| target.host == self.host).cloned().collect();
        if near.len() == routes.targets().count() {
            near.clear();
        }
        let near: Arc<[Target]> = near.into();
        state.near = Some((routes.map.epoch, near.clone()));
        near
    }

    /// Opens a file through a server of this node. `None`: the home is to be asked, also where there was an error, which it tells better.
    pub(crate) async fn open_through(self: &Arc<Self>, who: &Identity, way: &Way<'_>, how: How) -> Option<Arc<File>> {
        if !is_whole(way) {
            return None;
        }
        let (dir, path) = (way.dir.unwrap_or(Ino::ROOT), way.path);
        let request = |handle| Request::OpenThrough { dir, path: Blob(path.to_vec()), handle, contents: how.contents };
        self.open_through_contact(who, (dir, path), how, Knowing::Latest, request).await
    }

    /// The same for a name of a directory that was found by a walk. A link is not followed.
    pub(crate) async fn open_name_through(
        self: &Arc<Self>,
        who: &Identity,
        (dir, name): (Ino, &Name),
        how: How,
        knowing: Knowing,
    ) -> Option<Arc<File>> {
        // Directories are opened without contents. A name with a record on this node has its home here.
        let is_asked_for = self.contacts.are_used.load(Ordering::Relaxed) && is_plain(how) && how.contents;
        if !is_asked_for || !matches!(self.look(who, dir, name, knowing), Looked::Ask(_)) {
            return None;
        }
        let request = |handle| Request::OpenNameThrough { dir, name: name.clone(), handle, contents: how.contents };
        self.open_through_contact(who, (dir, name.as_bytes()), how, knowing, request).await
    }

    async fn open_through_contact(
        self: &Arc<Self>,
        who: &Identity,
        (dir, path): (Ino, &[u8]),
        how: How,
        knowing: Knowing,
        request: impl FnOnce(u64) -> Request,
    ) -> Option<Arc<File>> {
        if !self.contacts.are_used.load(Ordering::Relaxed) || !is_plain(how) {
            return None;
        }
        let contact = self.contact_of(dir, path)?;
        if !self.contacts.is_next(self.io.mono_ns()) {
            return None;
        }
        let handle = self.new_handle();
        let unopened = Unopened::new(self, At::Contact(contact.index), handle);
        let request = request(handle);
        let seen = self.contents.all_seen();
        let place = Place::Server(contact.index);
        let question = Question { who, place, knowing, request: &request, payload: &[], life: None, planned: None };
        let answer = self.io.timeout(ANSWER_TIME_MAX, self.ask_question(question)).await;
        let (attr, is_shared, contents) = match answer.map(|answer| answer.map(|answer| answer.reply)) {
            Some(Ok(Reply::OpenedThrough { attr, is_shared, contents })) => (attr, is_shared, contents),
            Some(Err(failure)) if !failure.is_silence() => {
                self.contacts.tries.note(false);
                return None;
            }
            _ => {
                self.contacts.state.lock().rest_until_ns = self.io.mono_ns() + REST.as_nanos() as u64;
                return None;
            }
        };
        unopened.forget();
        self.inodes.learn(&attr);
        let through = Through { contact: contact.clone(), who: who.clone() };
        let open = Registered::through(self, Handle { ino: attr.ino, handle }, through);
        self.contacts.tries.note(is_shared);
        self.contacts.state.lock().opens.insert(handle, Arc::downgrade(&open));
        let contents = contents.filter(|Blob(bytes)| bytes.len() as u64 == attr.size);
        let came = |Blob(bytes)| self.contents.came_with(&attr, bytes, &seen, self.io.mono_ns());
        let opened = contents.map(came);
        let file = File::opened(self, who, &attr, how.access, open, opened, false);
        if self.contact_of(dir, path).is_none_or(|now| now != contact) {
            // It may have ended before the open was noted.
            self.leave_contacts();
        }
        Some(file)
    }

    /// Has an open at a server of this node ended soon.
    pub(crate) fn close_through(self: &Arc<Self>, contact: ServerIndex, handle: u64) {
        let mut state = self.contacts.state.lock();
        state.opens.remove(&handle);
        state.closes.entry(contact).or_default().push(handle);
        if std::mem::replace(&mut state.is_timed, true) {
            return;
        }
        drop(state);
        self.spawn(|core| async move {
            core.io.sleep(BATCH_TIME_MAX).await;
            let closes = {
                let mut state = core.contacts.state.lock();
                state.is_timed = false;
                std::mem::take(&mut state.closes)
            };
            for (contact, handles) in closes {
                // What does not arrive ends with the session.
                drop(core.ask_server(&Identity::default(), contact, &Request::CloseThrough { handles }).await);
            }
        });
    }

    /// Opens files at their homes that were opened through servers of this node which have ended.
    pub(crate) fn leave_contacts(self: &Arc<Self>) {
        let opens: Vec<Arc<Registered>> = self.contacts.state.lock().opens.values().filter_map(Weak::upgrade).collect();
        let map = self.routes.read().map.clone();
        for open in opens {
            let Some(Through { contact, .. }) = open.contact() else { continue };
            let is_same = Target::of(&map, contact.index).is_some_and(|now| now.life == contact.life);
            if !is_same || map.has_left(contact.index) || self.has_ended(&map, contact.index) {
                self.spawn(|core| async move {
                    // A file that is gone, or was forbidden, tells so when it is used.
                    drop(core.open_at_home(&open).await);
                });
            }
        }
    }

    /// Has the home of a file know of an open itself.
    ///
    /// # Errors
    /// Those of an open.
    pub(crate) async fn open_at_home(self: &Arc<Self>, open: &Arc<Registered>) -> Result<(), Failure> {
        let Some(Through { who, .. }) = open.contact() else { return Ok(()) };
        let (ino, handle) = (open.ino(), self.new_handle());
        let request = Request::Open { ino, handle, read: true, write: false };
        let unopened = Unopened::new(self, At::Home(ino), handle);
        let answer = self.ask(&who, Place::Home(ino), &request).await;
        if answer.as_ref().map_or_else(|failure| failure.code.class() == Class::Caller, |_| true) {
            unopened.forget();
        }
        answer?;
        open.is_at_home(handle);
        Ok(())
    }
}

impl Client {
    /// Opens files by their paths, for reading only, through servers of this node from now on where that saves others a request. Of a path
    /// that programs see below a directory of theirs ([`Way::seen_at`]) only the last name goes that way.
    pub fn use_contacts(&self) {
        self.core.contacts.are_used.store(true, Ordering::Relaxed);
    }

    /// From now on a name in a directory leads to the file to which it led before, without a request, where this client
    /// listens for recalls and `is_told` says that this process is told before paths through the directory change, as
    /// [`Client::open_shared`] is told.
    pub fn believe_names_in(&self, is_told: IsTold) {
        // The first one counts.
        let _same = self.core.again.is_told.set(is_told);
    }

    /// Opens a regular file below a directory for reading, for one of many that do so; `follow`: a link at the path's
    /// end is followed. Where this client listens for recalls, a file that was opened before is opened again without a
    /// request, by its name too. It does not use its knowledge of paths from before `epoch`. Gives whether the file was
    /// opened more than once lately.
    ///
    /// # Errors
    /// As [`Client::open_path`]; [`Code::LinkLoop`] of a link that is not followed; [`Code::Unsupported`] of something else than a regular file.
    pub async fn open_shared(
        &self,
        who: &Identity,
        (dir, path, follow): (Ino, &[u8], bool),
        epoch: NamespaceEpoch,
    ) -> Result<(Arc<File>, bool), Failure> {
        self.core.dirs.adopt(epoch, true, &[]);
        let how = How { contents: true, ..Access { read: true, write: false }.into() };
        let file = self.open_path_how(who, Way::below(dir, path), how, follow).await?;
        if file.attr().kind != FileKind::File {
            return Err(Failure::new(Code::Unsupported, "only regular files are opened for others"));
        }
        let is_shared = self.core.is_opened_often(file.ino());
        Ok((file, is_shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_answer_is_left_alone() {
        let contacts = Contacts::default();
        assert!(contacts.is_next(5));
        contacts.state.lock().rest_until_ns = 6;
        assert!(!contacts.is_next(5) && contacts.is_next(6));
    }
}
