//! An open file.

use crate::again::KnownName;
use crate::client::{Client, Core};
use crate::closes::{At, Registered, Unopened};
use crate::inodes::Inode;
use crate::leases::{Lease, Leases};
use crate::names::Entry;
use crate::opened::Opened;
use crate::published::{Looked, Witness};
use crate::route::{Knowing, Place, Question};
use aze_io::sync::Mutex;
use aze_proto::error::Class;
use aze_proto::limits::OPEN_CONTENTS_BYTES_MAX;
use aze_proto::message::{Handle, LockSpace};
use aze_proto::{Attr, Code, Failure, FileKind, Identity, Ino, Name, NameHash, Reply, Request};
use aze_rpc::Answer;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The longest file whose contents come with an open for reading and writing: if the program does not read them, they cost little.
const WITNESSED_BYTES_MAX: u32 = 4096;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

/// One open of one file. Any number of tasks may use it at once. Closed in the background when it
/// is dropped; [`File::close`] also tells whether all is well.
pub struct File {
    pub(crate) core: Arc<Core>,
    pub(crate) inode: Arc<Inode>,
    pub(crate) who: Identity,
    access: Access,
    ino: Ino,
    /// That the home knows of, until this file is closed.
    open: Mutex<Option<Arc<Registered>>>,
    closed: AtomicBool,
    /// Start of the volume since which everything written here is known to be there, if it is synced.
    pub(crate) since: AtomicU32,
    /// Start in which something was locked through this open, plus 1; 0 if nothing was.
    pub(crate) locked_in: AtomicU32,
    pub(crate) opened: Option<Opened>,
    /// This open has made it: its first name is beside it.
    pub(crate) is_new: bool,
    /// The owners of locks that were taken through this open.
    pub(crate) lockers: Mutex<BTreeSet<(LockSpace, u64)>>,
}

/// How a file is to be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) access: Access,
    /// The contents of a small file shall come along.
    pub(crate) contents: bool,
    /// The kernel runs it as a program.
    pub(crate) to_run: bool,
    /// It may have lost its last name, and be open elsewhere.
    pub(crate) nameless: bool,
}

impl How {
    /// The most contents that are asked for. An open that writes, too, gets none without a witness: processes that write a file together
    /// read what others have written since their opens.
    fn limit(self, witness: Option<&Witness>) -> Option<u32> {
        match self.access {
            Access { read: true, write: false } if self.contents => Some(OPEN_CONTENTS_BYTES_MAX),
            _ => witness.map(|_| WITNESSED_BYTES_MAX),
        }
    }

    /// Whether contents can come along only if it is known at each read that they are still current.
    fn wants_witness(self) -> bool {
        self.contents && self.access.read && self.access.write
    }
}

impl From<Access> for How {
    fn from(access: Access) -> How {
        How { access, contents: false, to_run: false, nameless: false }
    }
}

impl Core {
    pub(crate) async fn open(self: &Arc<Self>, who: &Identity, ino: Ino, how: How) -> Result<Arc<File>, Failure> {
        self.open_by(who, ino, how, None).await
    }

    /// Opens a file to which a name led that was asked for before, under a lease.
    async fn open_by(
        self: &Arc<Self>,
        who: &Identity,
        ino: Ino,
        how: How,
        name: Option<(KnownName, Lease)>,
    ) -> Result<Arc<File>, Failure> {
        if let Some(file) = self.open_again(who, ino, how) {
            return Ok(file);
        }
        let noted = self.note_before(Some(ino), how);
        let handle = self.new_handle();
        let Access { read, write } = how.access;
        let witness = how.wants_witness().then(|| self.witness(ino, WITNESSED_BYTES_MAX.into())).flatten();
        let request = match how.limit(witness.as_ref()) {
            Some(contents) => Request::OpenWith { ino, handle, write, contents },
            None if how.to_run => Request::OpenToRun { ino, handle },
            None => Request::Open { ino, handle, read, write },
        };
        let seen = self.contents.seen(ino.home(self.routes.read().map.shards()));
        // Made before the request is sent, so that an open whose caller has given up is closed.
        let unopened = Unopened::new(self, At::Home(ino), handle);
        let held = self.inodes.get(ino);
        let question = Question {
            who,
            place: Place::Home(ino),
            knowing: Knowing::Latest,
            request: &request,
            payload: &[],
            life: None,
            planned: None,
        };
        let answer = self.ask_question(question).await;
        let lease_ms = answer.as_ref().map_or(0, |answer| answer.header.deadline_ms);
        let (mut reply, contents) = self.take_contents(answer, seen, witness);
        if let Ok(Reply::OpenedWith { attr, .. }) = reply {
            reply = Ok(Reply::Attributes { attr });
        }
        let attr = match reply.and_then(|reply| self.attributes(&request, reply)) {
            Err(failure) => {
                if failure.code.class() == Class::Caller {
                    unopened.forget();
                }
                return Err(failure);
            }
            // A caller that does not hold it open has come by a name that is no more, and lasts where
            // names are cached: it has to look again. One that holds it open may open it once more, without
            // a name, as by way of /proc/self/fd.
            Ok(attr) if attr.links == 0 && held.is_none() && !how.nameless => {
                return Err(Failure::new(Code::Stale, format!("inode {ino} has lost its last name")));
            }
            Ok(attr) => attr,
        };
        unopened.forget();
        let open = self.registered(ino, handle);
        if let Some(noted) = noted {
            self.remember(who, &attr, &open, noted, (lease_ms, contents.as_ref()), name);
        }
        Ok(File::opened(self, who, &attr, how.access, open, contents, false))
    }

    /// Takes out of the answer to an open what came along; `seen` are the changes, and `witness` is the record, from before it was asked.
    fn take_contents(
        &self,
        answer: Result<Answer, Failure>,
        seen: u64,
        witness: Option<Witness>,
    ) -> (Result<Reply, Failure>, Option<Opened>) {
        match answer {
            Ok(Answer { reply: Reply::OpenedWith { attr, sums }, payload, .. }) => {
                let is_for_both = witness.is_some();
                let mut opened = self.contents.keep(&attr, &sums, payload, seen, self.io.mono_ns());
                // The name may have been given to another file meanwhile.
                let witness = witness.filter(|witness| witness.ino == attr.ino);
                if is_for_both && witness.is_none() {
                    opened = None;
                }
                if let Some(opened) = &mut opened {
                    opened.witness = witness;
                }
                (Ok(Reply::OpenedWith { attr, sums: Vec::new() }), opened)
            }
            answer => (answer.map(|answer| answer.reply), None),
        }
    }
}

/// What opening a name came to.
pub(crate) enum Named {
    /// An open file.
    Opened(Arc<File>),
    /// A symbolic link, which the caller follows.
    Link(Ino),
}

impl Core {
    /// Opens what a name leads to: one request, or two where the inode lives elsewhere.
    pub(crate) async fn open_name(
        self: &Arc<Self>,
        who: &Identity,
        parent: Ino,
        name: &Name,
        how: How,
        knowing: Knowing,
    ) -> Result<Named, Failure> {
        let known_name = match knowing {
            Knowing::Since(epoch) if self.again.believes_names_in(parent).await => {
                Some(KnownName { parent, name: name.clone(), epoch })
            }
            _ => None,
        };
        if let Some(file) = known_name.as_ref().and_then(|known| self.open_named_again(who, known, how)) {
            return Ok(Named::Opened(file));
        }
        let shards = self.routes.read().map.shards();
        let home = NameHash::of(parent, name).shard(shards);
        // The name's server opens what lives beside the name; where this node knows that the inode lives elsewhere, it is opened there
        // at once.
        let (mut witness, mut directory, mut known) = (None, None, None);
        let looked = match how.wants_witness() || self.again.looks_first() {
            true => self.look(who, parent, name, knowing),
            false => Looked::Ask(None),
        };
        match looked {
            Looked::Found(entry) if entry.kind != FileKind::File => {}
            Looked::Found(entry) if entry.ino.home(shards) != home => {
                self.again.looks.note(true);
                return Ok(Named::Opened(self.open(who, entry.ino, how).await?));
            }
            Looked::Found(entry) => {
                let again = self.open_again(who, entry.ino, how);
                self.again.looks.note(again.is_some());
                if let Some(file) = again {
                    return Ok(Named::Opened(file));
                }
                known = Some(entry.ino);
                if how.wants_witness() {
                    witness = self.witness(entry.ino, WITNESSED_BYTES_MAX.into());
                }
            }
            Looked::Ask(asked) => directory = asked,
            Looked::Missing => {}
        }
        let asked = self.leases.ask(self.io.mono_ns());
        let noted = self.note_before(known, how);
        let handle = self.new_handle();
        let Access { read, write } = how.access;
        let request = match how.limit(witness.as_ref()) {
            Some(contents) => Request::OpenNameWith { parent, name: name.clone(), handle, write, contents },
            None => Request::OpenName { parent, name: name.clone(), handle, read, write },
        };
        let seen = self.contents.seen(home);
        let question = Question {
            who,
            place: Place::Entry(parent, name),
            knowing,
            request: &request,
            payload: &[],
            life: None,
            planned: None,
        };
        let answer = self.ask_question(question).await;
        let lease_ms = answer.as_ref().map_or(0, |answer| answer.header.deadline_ms);
        let (reply, contents) = self.take_contents(answer, seen, witness);
        if let (Some(directory), Ok(_)) = (directory, &reply) {
            self.entered.let_in(who, parent, directory);
        }
        let by_name = known_name.zip(Leases::lease(asked, lease_ms));
        let entry = match reply? {
            Reply::OpenedWith { attr, .. } => {
                self.inodes.learn(&attr);
                Entry { ino: attr.ino, kind: attr.kind, attr: Some(attr), created: false }
            }
            reply => self.entry(&request, reply)?,
        };
        match &entry.attr {
            _ if entry.kind == FileKind::Symlink => Ok(Named::Link(entry.ino)),
            Some(attr) if entry.kind == FileKind::File => {
                let open = self.registered(attr.ino, handle);
                // The name may have been given to another file meanwhile.
                if let Some(noted) = noted.filter(|_| known.is_none_or(|known| known == attr.ino)) {
                    self.remember(who, attr, &open, noted, (lease_ms, contents.as_ref()), by_name);
                }
                Ok(Named::Opened(File::opened(self, who, attr, how.access, open, contents, false)))
            }
            _ => Ok(Named::Opened(self.open_by(who, entry.ino, how, by_name).await?)),
        }
    }
}

impl Core {
    /// An open of this client that its home has registered.
    pub(crate) fn registered(&self, ino: Ino, handle: u64) -> Arc<Registered> {
        Registered::new(self, Handle { ino, handle })
    }
}

impl Client {
    /// Opens a file. One request.
    ///
    /// # Errors
    /// [`Code::AccessDenied`], [`Code::IsDirectory`] (for writing), [`Code::Stale`].
    pub async fn open(&self, who: &Identity, ino: Ino, access: Access) -> Result<Arc<File>, Failure> {
        self.core.open(who, ino, access.into()).await
    }

    /// As [`Client::open`]; also a file that has lost its last name and that another client has open.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open_nameless(&self, who: &Identity, ino: Ino, access: Access) -> Result<Arc<File>, Failure> {
        self.core.open(who, ino, How { nameless: true, ..access.into() }).await
    }

    /// Opens a file that the kernel is to run: the caller needs the right to execute it, not to read it. One request.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open_to_run(&self, who: &Identity, ino: Ino) -> Result<Arc<File>, Failure> {
        let access = Access { read: true, write: false };
        self.core.open(who, ino, How { to_run: true, ..access.into() }).await
    }

    /// Opens a file; the contents of a small one come along, for [`File::read_as_opened`]. If the open is for writing, too, they do where
    /// the file has at most 4 KiB and its home is a server of this node with a published index. One request.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open_with_contents(&self, who: &Identity, ino: Ino, access: Access) -> Result<Arc<File>, Failure> {
        self.core.open(who, ino, How { contents: true, ..access.into() }).await
    }
}

impl File {
    /// A file that the home has registered as open.
    pub(crate) fn opened(
        core: &Arc<Core>,
        who: &Identity,
        attr: &Attr,
        access: Access,
        open: Arc<Registered>,
        opened: Option<Opened>,
        is_new: bool,
    ) -> Arc<File> {
        Arc::new(File {
            core: core.clone(),
            inode: core.inodes.open(attr, who),
            who: who.clone(),
            access,
            ino: attr.ino,
            open: Mutex::new(Some(open)),
            closed: AtomicBool::new(false),
            since: AtomicU32::new(core.starts()),
            locked_in: AtomicU32::new(0),
            opened,
            is_new,
            lockers: Mutex::default(),
        })
    }

    /// Which file it is.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The open that the home has registered.
    ///
    /// # Errors
    /// [`Code::Invalid`] if the file is closed.
    pub(crate) fn handle(&self) -> Result<Handle, Failure> {
        let handle = self.open.lock().as_ref().map(|open| open.handle());
        handle.ok_or_else(|| Failure::new(Code::Invalid, format!("inode {} was closed here", self.ino)))
    }

    /// Has the home know of this open, if only a server of this node does.
    ///
    /// # Errors
    /// Those of an open.
    pub(crate) async fn open_at_home(&self) -> Result<(), Failure> {
        let open = self.open.lock().clone();
        match open {
            Some(open) => self.core.open_at_home(&open).await,
            None => Ok(()),
        }
    }

    /// The kinds of access that it was opened for.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its attributes as this client knows them: the size covers all that was written through it.
    pub fn attr(&self) -> Attr {
        self.inode.attr()
    }

    /// Fails unless the file was opened for this operation.
    pub(crate) fn check_open_for(&self, allowed: bool, what: &str) -> Result<(), Failure> {
        if allowed {
            Ok(())
        } else {
            Err(Failure::new(Code::Invalid, format!("inode {} was not opened for {what}", self.ino())))
        }
    }

    /// Reports the time of writes that have not been reported. Data and size are with the servers
    /// when a write returns.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn flush(&self) -> Result<(), Failure> {
        self.core.flush(&self.who, &self.inode).await
    }

    pub(crate) fn is_for_writing(&self) -> bool {
        self.access.write
    }

    /// Ends the open, after [`File::flush_for_close`]. Doing so twice is harmless.
    ///
    /// # Errors
    /// Those of [`File::flush_for_close`]; the file is closed all the same.
    pub async fn close(&self) -> Result<(), Failure> {
        if self.closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let flushed = if self.access.write { self.flush_for_close().await } else { Ok(()) };
        if flushed.is_err() {
            self.core.owe_unreported(&self.who, &self.inode);
        }
        self.unlock_all_later();
        drop(self.open.lock().take());
        flushed
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if *self.closed.get_mut() {
            return;
        }
        if self.access.write && self.inode.is_dirty() {
            let (inode, who) = (self.inode.clone(), self.who.clone());
            // A caller that wanted to know whether this works has called `close`.
            self.core.spawn(|core| async move {
                if core.flush(&who, &inode).await.is_err() {
                    core.owe_unreported(&who, &inode);
                }
            });
        }
        self.unlock_all_later();
        // While the client is there.
        drop(self.open.get_mut().take());
    }
}
