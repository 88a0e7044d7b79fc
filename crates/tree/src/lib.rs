//! The files of a volume as a tree that is copied.
//!
//! It alone knows which requests of a client are which call of room `copy`'s [`Tree`], and what their failures mean to it.
//! How a volume is found, and on what its client waits, it does not know: the command line brings a session, and the
//! simulation a client in a simulated process.

use aze_client::{Access, ChangeCounts, Client, File, Lister, NewFile, Reached, Sought};
use aze_copy::tree::{
    GoneName, Meta, Named, Names, Origin, PutBack, ReadBack, Replaces, Sink, Source, Traits, Tree, Xattr, copied_mode,
    is_kept, join,
};
use aze_io::sync::Mutex;
use aze_io::threads::Waiter;
use aze_proto::attr::{Attr, Change, FileKind, Identity, SetTime, XattrHow};
use aze_proto::error::{Class, Code, Failure};
use aze_proto::ids::{Generation, Ino, Time};
use aze_proto::limits::LIST_ENTRIES_MAX;
use aze_proto::message::Listed;
use aze_proto::name::Name;
use aze_proto::{Backing, BackingIdentity, Gone};
use aze_words::exit::{Exit, Outcome, Trouble};
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

/// Symbolic links followed at the end of a path: as many as the kernel does (path_resolution(7)).
const LINKS_MAX: usize = 40;

const WRITE: Access = Access { read: false, write: true };

/// Permission bits that lend the owner's or the group's rights: set-user-ID and set-group-ID.
const LENT_RIGHTS: u32 = 0o6000;

/// A client's connection to a volume, as blocking code uses it.
pub struct Connection {
    /// What knows how to ask.
    pub client: Arc<Client>,
    /// On whose behalf.
    pub who: Identity,
    /// Where answers are waited for.
    pub waiter: Waiter,
    /// Name of the volume.
    pub volume: String,
    /// The directory over which the volume lies.
    pub backing: Option<Vec<u8>>,
}

impl Connection {
    fn wait<T>(&self, answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let killed = || Err(Failure::new(Code::Stopping, "this process was killed"));
        self.waiter.block_on(answer).unwrap_or_else(killed)
    }

    /// `what` names the request in an error.
    fn ask<T>(&self, what: impl fmt::Display, answer: impl Future<Output = Result<T, Failure>>) -> Outcome<T> {
        self.wait(answer).map_err(|failure| Trouble::volume(what, &failure))
    }
}

/// A volume's files.
pub struct VolumeTree {
    session: Arc<Connection>,
    /// How paths of it begin in messages.
    prefix: String,
    /// By inode, the number of its origin when all data from there were kept.
    kept: Mutex<BTreeMap<u64, u32>>,
}

impl VolumeTree {
    /// The tree of a connection; `prefix` is how paths of it begin in messages.
    pub fn new(session: Connection, prefix: String) -> VolumeTree {
        VolumeTree { session: Arc::new(session), prefix, kept: Mutex::default() }
    }

    /// What tells the tree of the volume of this name from other trees.
    pub fn id_of(volume: &str) -> String {
        format!("volume {volume}")
    }

    fn resolve(&self, what: &str, path: &[u8], follow: bool) -> Outcome<Attr> {
        let (client, who) = (&self.session.client, &self.session.who);
        self.session.ask(format_args!("{what} {}", self.shown(path)), client.resolve(who, path, follow))
    }
}

impl Tree for VolumeTree {
    fn stat(&self, path: &[u8], follow: bool) -> Outcome<Option<Meta>> {
        let (client, who) = (&self.session.client, &self.session.who);
        match self.session.wait(client.reach(who, path, follow)) {
            Ok(Reached { attr: Ok(attr), .. }) => Ok(Some(meta_of(&attr))),
            // Its listing tells why the attributes are missing.
            Ok(Reached { ino, .. }) => Ok(Some(meta_of_unknown(ino))),
            Err(failure) if failure.code == Code::NotFound => Ok(None),
            Err(failure) => Err(Trouble::volume(self.shown(path), &failure)),
        }
    }

    fn stat_dir(&self, path: &[u8]) -> Outcome<Meta> {
        let (client, who) = (&self.session.client, &self.session.who);
        let shown = self.shown(path);
        let attr = self.session.ask(&shown, async {
            let reached = client.reach(who, path, true).await?;
            client.getattr(who, reached.ino).await
        })?;
        Ok(meta_of(&attr))
    }

    fn list(&self, dir: &[u8]) -> Outcome<Names> {
        self.list_of(dir).map(|(_, names)| names)
    }

    fn list_with_attributes(&self, dir: &[u8]) -> Outcome<Names> {
        let (client, who) = (&self.session.client, &self.session.who);
        let (parent, mut names) = self.list_of(dir)?;
        // They do not come along where an inode lives in another shard than its entry, as after a rename.
        let is_without = |entry: &&mut Named| entry.meta.is_none() && entry.kind != FileKind::Directory;
        let mut without: Vec<&mut Named> = names.entries.iter_mut().filter(is_without).collect();
        let named = without.iter().map(|entry| Name::new(&entry.name)).collect::<Result<Vec<_>, _>>();
        let named =
            named.map_err(|_| Trouble::new(Exit::Fatal, "a listed name that cannot be one: a defect in aze"))?;
        // The caller asks again for an entry that could not be looked up, and tells why.
        let looked_up =
            |at: usize, attr: Result<Attr, Failure>| without[at].meta = attr.ok().map(|attr| meta_of(&attr));
        let all = async {
            client.lookup_all(who, parent, &named, looked_up).await;
            Ok(())
        };
        self.session.ask(format_args!("list {}", self.shown(dir)), all)?;
        Ok(names)
    }

    fn read_link(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        let attr = self.resolve("read link", path, false)?;
        self.session.ask(
            format_args!("read link {}", self.shown(path)),
            self.session.client.readlink(&self.session.who, attr.ino),
        )
    }

    fn open(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        let attr = self.resolve("open", path, true)?;
        let access = Access { read: true, write: false };
        let what = format!("open {}", self.shown(path));
        if attr.kind == FileKind::Directory {
            return Err(Trouble::new(Exit::Caller, format!("{what}: is a directory")));
        }
        if attr.kind != FileKind::File {
            // Only a mount connects the two ends of a FIFO.
            let text = format!("{what}: it is a FIFO, a socket or a device, which has no contents in the volume");
            return Err(Trouble::new(Exit::Caller, text));
        }
        let file =
            self.session.ask(what, self.session.client.open_with_contents(&self.session.who, attr.ino, access))?;
        Ok(Box::new(VolumeSource {
            session: self.session.clone(),
            file,
            sought: Mutex::default(),
            shown: self.shown(path),
        }))
    }

    fn open_fresh(&self, path: &[u8]) -> Outcome<Box<dyn Source>> {
        let (client, who) = (&self.session.client, &self.session.who);
        let what = format!("open {}", self.shown(path));
        let other = || Trouble::new(Exit::Caller, format!("{what}: it is no regular file any more"));
        // Without its contents: they would be as old as the open.
        let access = Access { read: true, write: false };
        let file = match self.session.wait(client.open_path_itself(who, path, access)) {
            Err(failure) if failure.code == Code::LinkLoop => return Err(other()),
            opened => opened.map_err(|failure| Trouble::volume(&what, &failure))?,
        };
        if file.attr().kind != FileKind::File {
            return Err(other());
        }
        Ok(Box::new(VolumeSource {
            session: self.session.clone(),
            file,
            sought: Mutex::default(),
            shown: self.shown(path),
        }))
    }

    fn create_as(&self, path: &[u8], mode: u32, hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        let (client, who, shown) = (&self.session.client, &self.session.who, self.shown(path));
        self.refuse_other(path)?;
        let hidden = hidden_name(hidden)?;
        let new = new_file(FileKind::File, copied_mode(mode, false), Vec::new(), Some(WRITE));
        let (parent, name, made) = self.session.ask(format_args!("create {shown}"), async {
            let (parent, name) = client.resolve_parent(who, path).await?;
            let made = client.create(who, parent, &hidden, &new).await?;
            Ok((parent, name, made))
        })?;
        let file = made.file.ok_or_else(|| Trouble::volume(format!("create {shown}"), &Code::Exists.into()))?;
        Ok(Box::new(VolumeSink { session: self.session.clone(), file, parent, temporary: hidden, name, shown }))
    }

    fn reopen_as(&self, path: &[u8], hidden: &[u8]) -> Outcome<Box<dyn Sink>> {
        let (parent, name, file) = self.open_hidden("write", path, hidden, WRITE)?;
        let (session, shown) = (self.session.clone(), self.shown(path));
        Ok(Box::new(VolumeSink { session, file, parent, temporary: hidden_name(hidden)?, name, shown }))
    }

    fn reread_as(&self, path: &[u8], hidden: &[u8]) -> Outcome<(Box<dyn Source>, ReadBack)> {
        let (_, _, file) = self.open_hidden("verify", path, hidden, Access { read: true, write: false })?;
        let source =
            VolumeSource { session: self.session.clone(), file, sought: Mutex::default(), shown: self.shown(path) };
        Ok((Box::new(source), ReadBack::Servers))
    }

    fn hidden_near(&self, path: &[u8], hidden: Vec<u8>) -> Outcome<Vec<u8>> {
        let (client, who) = (&self.session.client, &self.session.who);
        let what = format!("create {}", self.shown(path));
        let (parent, name) = self.session.ask(what, client.resolve_parent(who, path))?;
        let first = hidden_name(&hidden)?;
        let numbered = |count: usize| match count {
            0 => first.clone(),
            _ => Name::new(&[&hidden[..], format!("-{count}").as_bytes()].concat()).unwrap_or_else(|_| first.clone()),
        };
        Ok(client.nearest_name(parent, &name, numbered).as_bytes().to_vec())
    }

    fn make_link_as(&self, path: &[u8], target: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        check_any(replaces, &self.shown(path))?;
        self.refuse_other(path)?;
        let hidden = hidden_name(hidden)?;
        let new = new_file(FileKind::Symlink, 0o777, target.to_vec(), None);
        self.session.ask(format_args!("make link {}", self.shown(path)), async {
            let (parent, name) = client.resolve_parent(who, path).await?;
            client.create(who, parent, &hidden, &new).await?;
            client.rename(who, parent, &hidden, parent, &name, false).await
        })
    }

    fn add_name(&self, existing: &[u8], path: &[u8], hidden: &[u8], replaces: &Replaces) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        check_any(replaces, &self.shown(path))?;
        self.refuse_other(path)?;
        let hidden = hidden_name(hidden)?;
        let ino = self.resolve("link to", existing, false)?.ino;
        if self.stat(path, false)?.is_some_and(|meta| meta.identity == (0, ino.0)) {
            return Ok(());
        }
        self.session.ask(format_args!("make {}", self.shown(path)), async {
            let (parent, name) = client.resolve_parent(who, path).await?;
            client.link(who, ino, parent, &hidden).await?;
            client.rename(who, parent, &hidden, parent, &name, false).await
        })
    }

    fn remove(&self, path: &[u8], kind: FileKind) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        self.session.ask(format_args!("remove {}", self.shown(path)), async {
            let (parent, name) = client.resolve_parent(who, path).await?;
            match kind {
                FileKind::Directory => client.rmdir(who, parent, &name).await,
                _ => client.unlink(who, parent, &name).await,
            }
        })
    }

    fn sync_dir(&self, path: &[u8]) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        self.session.ask(format_args!("sync directory {}", self.shown(path)), client.sync(who))
    }

    fn put_in_place(&self, from: &[u8], to: &[u8], exchange: bool) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        self.session.ask(format_args!("publish {}", self.shown(to)), async {
            let (parent, name) = client.resolve_parent(who, from).await?;
            let (to_parent, to_name) = client.resolve_parent(who, to).await?;
            match exchange {
                true => client.exchange(who, parent, &name, to_parent, &to_name).await,
                false => client.rename(who, parent, &name, to_parent, &to_name, true).await,
            }
        })
    }

    fn traits(&self, _dir: &[u8], _hidden: &[u8]) -> Outcome<Traits> {
        let space = self.session.ask("ask for the room of the volume", self.session.client.statfs())?;
        Ok(Traits {
            folds_case: false,
            links: true,
            name_bytes_max: aze_proto::limits::NAME_BYTES_MAX,
            room_bytes: space.capacity_bytes.saturating_sub(space.used_bytes),
            room_files: Some(space.inodes_max.saturating_sub(space.inodes)),
            stripes: None,
        })
    }

    /// Under a hidden name until it is finished, so that a copy that is broken off leaves nothing that looks whole.
    fn create(&self, path: &[u8], mode: u32) -> Outcome<Box<dyn Sink>> {
        let (client, who) = (&self.session.client, &self.session.who);
        let mut path = path.to_vec();
        for _ in 0..LINKS_MAX {
            let shown = self.shown(&path);
            let (parent, name, there) = self.session.ask(format_args!("create {shown}"), async {
                let (parent, name) = client.resolve_parent(who, &path).await?;
                match client.lookup(who, parent, &name).await {
                    Ok(attr) => {
                        if attr.kind == FileKind::File {
                            // To replace a file takes the same right as to write to it.
                            client.open(who, attr.ino, WRITE).await?.close().await?;
                        }
                        Ok((parent, name, Some(attr.kind)))
                    }
                    Err(failure) if failure.code == Code::NotFound => Ok((parent, name, None)),
                    Err(failure) => Err(failure),
                }
            })?;
            match there {
                // A link stays a link: its target is replaced.
                Some(FileKind::Symlink) => {
                    path = self.follow(&path)?;
                    continue;
                }
                Some(FileKind::Directory) => {
                    return Err(Trouble::volume(format!("create {shown}"), &Code::IsDirectory.into()));
                }
                Some(kind) if kind != FileKind::File => {
                    return Err(no_regular_file(&shown));
                }
                _ => {}
            }
            let temporary = client.name_beside(parent, &name);
            let new = new_file(FileKind::File, copied_mode(mode, false), Vec::new(), Some(WRITE));
            let made =
                self.session.ask(format_args!("create {shown}"), client.create(who, parent, &temporary, &new))?;
            let file = made.file.ok_or_else(|| Trouble::volume(format!("create {shown}"), &Code::Exists.into()))?;
            return Ok(Box::new(VolumeSink { session: self.session.clone(), file, parent, temporary, name, shown }));
        }
        Err(Trouble::volume(format!("create {}", self.shown(&path)), &Code::LinkLoop.into()))
    }

    fn make_dir(&self, path: &[u8]) -> Outcome<()> {
        let made = self.make(path, new_file(FileKind::Directory, 0o700, Vec::new(), None));
        match made {
            Err(failure) if failure.code == Code::Exists => match self.stat(path, true)? {
                Some(meta) if meta.kind == FileKind::Directory => Ok(()),
                _ => Err(Trouble::volume(format!("make directory {}", self.shown(path)), &failure)),
            },
            result => {
                result.map_err(|failure| Trouble::volume(format!("make directory {}", self.shown(path)), &failure))
            }
        }
    }

    fn make_link(&self, path: &[u8], target: &[u8]) -> Outcome<()> {
        let new = || new_file(FileKind::Symlink, 0o777, target.to_vec(), None);
        let mut made = self.make(path, new());
        if made.as_ref().is_err_and(|failure| failure.code == Code::Exists) {
            let (client, who) = (&self.session.client, &self.session.who);
            self.session.ask(format_args!("replace {}", self.shown(path)), async {
                let (parent, name) = client.resolve_parent(who, path).await?;
                client.unlink(who, parent, &name).await
            })?;
            made = self.make(path, new());
        }
        made.map_err(|failure| Trouble::volume(format!("make link {}", self.shown(path)), &failure))
    }

    fn set_link(&self, path: &[u8], meta: &Meta) -> Outcome<()> {
        let ino = self.resolve("set attributes of", path, false)?.ino;
        let (client, who) = (&self.session.client, &self.session.who);
        let time = |time| Some(SetTime::To { time });
        let owner = Change { uid: Some(meta.uid), gid: Some(meta.gid), ..Change::default() };
        let times = Change { atime: time(meta.atime), mtime: time(meta.mtime), ..Change::default() };
        self.session.ask(format_args!("set attributes of {}", self.shown(path)), async {
            match client.setattr(who, ino, &owner).await {
                Err(failure) if !matches!(failure.code, Code::NotPermitted | Code::AccessDenied) => Err(failure),
                // As of a file: it stays this user's.
                _ => client.setattr(who, ino, &times).await.map(drop),
            }
        })
    }

    fn dir_xattrs(&self, path: &[u8]) -> Outcome<Vec<Xattr>> {
        let attr = self.resolve("read extended attributes of", path, true)?;
        xattrs(&self.session, attr.ino, &self.shown(path))
    }

    fn set_dir_xattr(&self, path: &[u8], xattr: &Xattr) -> Outcome<()> {
        let attr = self.resolve("set attributes of", path, true)?;
        set_xattr(&self.session, attr.ino, xattr, &self.shown(path))
    }

    fn set_dir(&self, path: &[u8], meta: &Meta, preserve: bool) -> Outcome<()> {
        let attr = self.resolve("set attributes of", path, true)?;
        set(&self.session, attr.ino, meta, preserve)
            .map_err(|failure| Trouble::volume(format!("set attributes of {}", self.shown(path)), &failure))
    }

    fn shown(&self, path: &[u8]) -> String {
        format!("{}{}", self.prefix, String::from_utf8_lossy(path))
    }

    fn is_volume(&self) -> bool {
        true
    }

    fn has_origins(&self) -> bool {
        self.session.backing.is_some()
    }

    fn origin(&self, meta: &Meta) -> Outcome<Option<Origin>> {
        let ino = Ino(meta.identity.1);
        let Some(root) = &self.session.backing else { return Ok(None) };
        if !ino.is_backed() && ino != Ino::ROOT {
            return Ok(None);
        }
        let (client, who) = (&self.session.client, &self.session.who);
        let what = format_args!("ask where inode {ino} of the volume came from");
        let Some(backing) = self.session.ask(what, client.backing_of(who, ino))? else { return Ok(None) };
        let path = backing.path.0.as_slice();
        let outside = root.as_slice();
        Ok(Some(Origin {
            inside: [b"/", path].concat(),
            outside: if path.is_empty() { outside.to_vec() } else { join(outside, path) },
            identity: numbers_of(&backing.identity),
            is_clean: backing.is_clean(),
            data_changed: backing.data_changed || backing.is_settling,
            is_behind: meta.kind == FileKind::Directory && !backing.is_imported,
        }))
    }

    fn came_from_below(&self, meta: &Meta) -> bool {
        Ino(meta.identity.1).is_backed()
    }

    fn fetch(&self, path: &[u8], part: Range<u64>) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        self.session.ask(format_args!("fetch {}", self.shown(path)), async {
            let ino = client.resolve(who, path, true).await?.ino;
            let file = client.open(who, ino, Access { read: true, write: false }).await?;
            let fetched = client.fetch(&file, part).await;
            file.close().await?;
            fetched
        })
    }

    fn gone(&self) -> Outcome<Vec<GoneName>> {
        let Some(root) = &self.session.backing else { return Ok(Vec::new()) };
        let (client, who) = (&self.session.client, &self.session.who);
        let all = self.session.ask("ask which names of the directory below have gone", client.gone_trees(who))?;
        let outside = root.as_slice();
        let named = |(gone, is_recorded): (Gone, bool)| GoneName {
            inside: [b"/", gone.path.0.as_slice()].concat(),
            outside: join(outside, &gone.path.0),
            kind: gone.kind,
            identity: numbers_of(&gone.identity),
            inode: gone.ino.0,
            record: is_recorded.then(|| (gone.parent.0, gone.name.as_bytes().to_vec(), gone.since)),
        };
        Ok(all.into_iter().map(named).collect())
    }

    fn keep_data(&self, name: &GoneName) -> Outcome<()> {
        let (client, who, shown) = (&self.session.client, &self.session.who, self.shown(&name.inside));
        let what = format_args!("keep all of {shown}, whose place in the directory below is to change");
        let access = Access { read: true, write: false };
        let backing = match self.claim(name.inode) {
            Err(failure) if failure.code == Code::Stale => return Ok(()),
            claimed => claimed.map_err(|failure| Trouble::volume(what, &failure))?.unwrap_or_default(),
        };
        self.kept.lock().insert(name.inode, backing.origin);
        if backing.length == 0 {
            return Ok(());
        }
        let file = match self.session.wait(client.open_nameless(who, Ino(name.inode), access)) {
            Err(failure) if failure.code == Code::Stale => return Ok(()),
            file => file.map_err(|failure| Trouble::volume(what, &failure))?,
        };
        let source =
            VolumeSource { session: self.session.clone(), file, sought: Mutex::default(), shown: shown.clone() };
        self.session.ask(what, client.take_over(who, &source.file))
    }

    fn has_kept_data(&self, name: &GoneName) -> Outcome<bool> {
        let what = format_args!("claim {}, whose place in the directory below is to change", self.shown(&name.inside));
        let kept = self.kept.lock().get(&name.inode).copied();
        let origin = match self.claim(name.inode) {
            Err(failure) if failure.code == Code::Stale => return Ok(true),
            claimed => claimed.map_err(|failure| Trouble::volume(what, &failure))?.unwrap_or_default().origin,
        };
        if kept.is_none_or(|kept| kept == origin) {
            return Ok(true);
        }
        self.keep_data(name)?;
        self.session.ask(what, self.session.client.sync(&self.session.who))?;
        Ok(false)
    }

    fn take_over(&self, gone: &GoneName) -> Outcome<()> {
        let (client, who, ino) = (&self.session.client, &self.session.who, Ino(gone.inode));
        let what = format_args!("take over {}, which has another name or is still open", self.shown(&gone.inside));
        if gone.kind == FileKind::File {
            let needs = match self.session.wait(client.backing_of(who, ino)) {
                Err(failure) if failure.code == Code::Stale => None,
                backing => backing.map_err(|failure| Trouble::volume(what, &failure))?,
            };
            // One that was staged under another name since then comes from that one.
            let is_there = |backing: &Backing| {
                backing.identity.inode == gone.identity[0] && Some(&backing.path.0[..]) == gone.inside.get(1..)
            };
            if !needs.as_ref().is_some_and(is_there) {
                return Ok(());
            }
            self.keep_data(gone)?;
        }
        match self.session.wait(client.leave_backing(who, ino)) {
            Err(failure) if failure.code == Code::Stale => Ok(()),
            left => left.map_err(|failure| Trouble::volume(what, &failure)),
        }
    }

    fn adopt(&self, put: &PutBack) -> Outcome<bool> {
        let what = format!("let go of {}, which was staged", self.shown(&put.inside));
        let Some(root) = &self.session.backing else { return Ok(false) };
        let below = put.outside.strip_prefix(root.as_slice()).and_then(|path| path.strip_prefix(b"/"));
        let (Some(path), Some(counts)) = (below, ChangeCounts::of_numbers(&put.mark)) else { return Ok(false) };
        let (client, who) = (&self.session.client, &self.session.who);
        let [inode, size, mtime_ns, ctime_ns] = put.identity;
        let adopted = self.session.wait(async {
            let (parent, _) = client.resolve_parent(who, &put.inside).await?;
            let file = client.open_nameless(who, Ino(put.inode), Access { read: true, write: false }).await?;
            let put = aze_client::PutBack {
                size: put.size,
                ctime: put.ctime,
                counts,
                parent,
                path: path.to_vec(),
                identity: BackingIdentity { inode, size, mtime_ns, ctime_ns },
            };
            let adopted = client.adopt(who, &file, &put).await;
            file.close().await?;
            adopted
        });
        match adopted {
            // It, or its directory, is gone, or the place has changed: the next stage tells.
            Err(failure) if matches!(failure.code, Code::Stale | Code::NotFound | Code::Changed) => Ok(false),
            adopted => adopted.map_err(|failure| Trouble::volume(what, &failure)),
        }
    }

    fn forget_gone(&self, gone: &GoneName) -> Outcome<()> {
        let Some((parent, name, since)) = &gone.record else { return Ok(()) };
        let (client, who) = (&self.session.client, &self.session.who);
        let what = format_args!("note that {} has gone below, too", self.shown(&gone.inside));
        let name =
            Name::new(name).map_err(|_| Trouble::new(Exit::Fatal, format!("{what}: a bad name: a defect in aze")))?;
        self.session.ask(what, client.forget_gone(who, Ino(*parent), &name, *since))
    }

    fn id(&self) -> String {
        VolumeTree::id_of(&self.session.volume)
    }
}

/// The numbers of an identity.
fn numbers_of(identity: &BackingIdentity) -> [u64; 4] {
    [identity.inode, identity.size, identity.mtime_ns, identity.ctime_ns]
}

/// Only a local destination knows files that must stay: at a volume a stage replaces any file.
fn check_any(replaces: &Replaces, shown: &str) -> Outcome<()> {
    match replaces {
        Replaces::Anything => Ok(()),
        Replaces::Only(_) => {
            Err(Trouble::new(Exit::Fatal, format!("{shown}: a volume is staged to as a whole: a defect in aze")))
        }
    }
}

impl VolumeTree {
    /// A directory and its entries.
    fn list_of(&self, dir: &[u8]) -> Outcome<(Ino, Names)> {
        let (client, who) = (&self.session.client, &self.session.who);
        let reached = self.session.ask(format_args!("list {}", self.shown(dir)), client.reach(who, dir, true))?;
        let mut names = Names::default();
        let mut after = 0;
        let mut lister = Lister::new(reached.ino, true);
        loop {
            let page = self
                .session
                .ask(format_args!("list {}", self.shown(dir)), lister.page(client, who, after, LIST_ENTRIES_MAX))?;
            if let Some(failure) = page.failure {
                names.trouble = Some(Trouble::volume(format_args!("list {}", self.shown(dir)), &failure));
            }
            let Some(last) = page.entries.last() else { return Ok((reached.ino, names)) };
            after = last.hash.cookie();
            names.entries.extend(page.entries.iter().map(named));
            if !page.more {
                return Ok((reached.ino, names));
            }
        }
    }

    /// Opens an unfinished file under its temporary name; and its directory and the name that it shall have.
    fn open_hidden(&self, what: &str, path: &[u8], hidden: &[u8], access: Access) -> Outcome<(Ino, Name, Arc<File>)> {
        let (client, who, hidden) = (&self.session.client, &self.session.who, hidden_name(hidden)?);
        self.session.ask(format_args!("{what} {}", self.shown(path)), async {
            let (parent, name) = client.resolve_parent(who, path).await?;
            let attr = client.lookup(who, parent, &hidden).await?;
            Ok((parent, name, client.open(who, attr.ino, access).await?))
        })
    }

    /// Claims a file, as far as this user may, and tells where it comes from now.
    fn claim(&self, inode: u64) -> Result<Option<Backing>, Failure> {
        let (client, who) = (&self.session.client, &self.session.who);
        self.session.wait(async {
            match client.claim(who, Ino(inode)).await {
                // What others than the volume's owner stage is not adopted.
                Err(failure) if failure.code.class() == Class::Caller && failure.code != Code::Stale => {
                    client.backing_of(who, Ino(inode)).await
                }
                claimed => claimed.map(|(_, backing)| backing),
            }
        })
    }

    /// Only files and symbolic links are replaced by something else.
    fn refuse_other(&self, path: &[u8]) -> Outcome<()> {
        match self.stat(path, false)?.map(|meta| meta.kind) {
            Some(FileKind::Directory) => {
                let text = format!("create {}: a directory is there: move it away", self.shown(path));
                Err(Trouble::new(Exit::Caller, text))
            }
            None | Some(FileKind::File | FileKind::Symlink) => Ok(()),
            Some(_) => Err(no_regular_file(&self.shown(path))),
        }
    }

    fn make(&self, path: &[u8], new: NewFile) -> Result<(), Failure> {
        let (client, who) = (&self.session.client, &self.session.who);
        self.session.wait(async {
            let (parent, name) = client.resolve_parent(who, path).await?;
            client.create(who, parent, &name, &new).await.map(drop)
        })
    }

    /// The path that the symlink `path` leads to.
    fn follow(&self, path: &[u8]) -> Outcome<Vec<u8>> {
        let target = self.read_link(path)?;
        let parent_end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Ok(if target.starts_with(b"/") { target } else { join(&path[..=parent_end], &target) })
    }
}

struct VolumeSource {
    session: Arc<Connection>,
    file: Arc<File>,
    /// What looks between marks have found.
    sought: Mutex<Sought>,
    shown: String,
}

impl VolumeSource {
    /// Where a search has found data; `None` if there are none.
    fn found_data(&self, found: Result<u64, Failure>) -> Outcome<Option<u64>> {
        match found {
            Ok(at) => Ok(Some(at)),
            Err(failure) if failure.code == Code::NotFound => Ok(None),
            Err(failure) => Err(Trouble::volume(format!("look for data in {}", self.shown), &failure)),
        }
    }
}

impl Source for VolumeSource {
    fn xattrs(&self) -> Outcome<Vec<Xattr>> {
        xattrs(&self.session, self.file.ino(), &self.shown)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        self.session.ask(format_args!("read {}", self.shown), self.file.read_as_opened(offset, buffer))
    }

    fn next_data(&self, offset: u64) -> Outcome<Option<u64>> {
        self.found_data(self.session.wait(self.file.seek(offset, false)))
    }

    fn next_data_between_marks(&self, offset: u64) -> Outcome<Option<u64>> {
        // A thread that comes meanwhile asks for itself.
        let mut sought = mem::take(&mut *self.sought.lock());
        let found = self.session.wait(self.file.seek_as_known(offset, &mut sought));
        *self.sought.lock() = sought;
        self.found_data(found)
    }

    fn meta(&self) -> Outcome<Meta> {
        let (client, who) = (&self.session.client, &self.session.who);
        let attr = self.session.ask(format_args!("stat {}", self.shown), client.getattr(who, self.file.ino()))?;
        Ok(meta_of(&attr))
    }

    fn mark(&self) -> Outcome<Vec<u64>> {
        self.marked().map(|(_, mark)| mark)
    }

    fn marked(&self) -> Outcome<(Meta, Vec<u64>)> {
        let what = format_args!("ask for changes of {}", self.shown);
        let (attr, counted) = self.session.ask(what, self.file.attr_and_changes())?;
        Ok((meta_of(&attr), counted.numbers()))
    }

    fn writers(&self) -> Outcome<Option<u32>> {
        let count = self.session.ask(format_args!("ask for opens of {}", self.shown), self.file.count_opens())?;
        Ok(Some(count.writers))
    }

    fn release(&self, path: &[u8], meta: &Meta, mark: &[u64], any_life: bool) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        let generation = mark.first().and_then(|number| u32::try_from(*number).ok());
        let generation =
            generation.ok_or_else(|| Trouble::new(Exit::Fatal, "a mark without a generation: a defect in aze"))?;
        let released = self.session.wait(async {
            let (parent, name) = client.resolve_parent(who, path).await?;
            self.file.release(parent, &name, (Generation(generation), meta.ctime), any_life).await
        });
        released.map_err(|failure| {
            let trouble = Trouble::volume(format_args!("release {}", self.shown), &failure);
            match failure.code {
                Code::Busy => Trouble::new(Exit::Some, trouble.text),
                Code::Stale => Trouble::new(Exit::NotFound, trouble.text),
                code if code.class() == Class::Caller => trouble,
                // It may have gone, or go yet.
                _ => Trouble::new(Exit::Fatal, trouble.text),
            }
        })
    }
}

impl Drop for VolumeSource {
    fn drop(&mut self) {
        // Reading left nothing to report; a server that misses this notices the end of the session.
        let _ = self.session.wait(self.file.close());
    }
}

struct VolumeSink {
    session: Arc<Connection>,
    file: Arc<File>,
    parent: Ino,
    /// Its name until it is whole.
    temporary: Name,
    name: Name,
    shown: String,
}

impl Sink for VolumeSink {
    fn set_xattr(&self, xattr: &Xattr) -> Outcome<()> {
        let (client, who, ino) = (&self.session.client, &self.session.who, self.file.ino());
        set_xattr(&self.session, ino, xattr, &self.shown).or_else(|trouble| {
            // Of a file that its owner may not write: it gets its mode when it is finished.
            let mode = Change { mode: Some(0o600), ..Change::default() };
            match self.session.wait(client.setattr(who, ino, &mode)) {
                Ok(_) => set_xattr(&self.session, ino, xattr, &self.shown),
                Err(_) => Err(trouble),
            }
        })
    }

    fn set_size(&self, bytes: u64) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        let set = client.truncate(who, self.file.ino(), bytes, Some(&self.file));
        self.session.ask(format_args!("set the size of {}", self.shown), set).map(drop)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Outcome<()> {
        self.session.ask(format_args!("write {}", self.shown), self.file.write(offset, data))
    }

    fn reread(&self) -> Outcome<Box<dyn Source>> {
        let client = &self.session.client;
        let access = Access { read: true, write: false };
        let file = self
            .session
            .ask(format_args!("verify {}", self.shown), client.open(&self.session.who, self.file.ino(), access))?;
        Ok(Box::new(VolumeSource {
            session: self.session.clone(),
            file,
            sought: Mutex::default(),
            shown: self.shown.clone(),
        }))
    }

    fn finish(&self, meta: &Meta, preserve: bool) -> Outcome<()> {
        let (client, who) = (&self.session.client, &self.session.who);
        let finished = self.session.wait(self.file.close());
        let finished = match finished {
            // It was made with the mode that it is to have.
            Ok(()) if preserve => set(&self.session, self.file.ino(), meta, preserve),
            finished => finished,
        };
        let named = finished.and_then(|()| {
            let renamed = client.rename(who, self.parent, &self.temporary, self.parent, &self.name, false);
            self.session.wait(renamed)
        });
        named.map_err(|failure| Trouble::volume(format!("finish {}", self.shown), &failure))
    }

    fn settle(&self, meta: &Meta) -> Outcome<()> {
        let settled = set(&self.session, self.file.ino(), meta, true);
        settled.map_err(|failure| Trouble::volume(format!("write {}", self.shown), &failure))?;
        self.session.ask(format_args!("write {}", self.shown), self.file.sync())
    }

    fn store(&self) -> Outcome<()> {
        self.session.ask(format_args!("write {}", self.shown), async {
            self.file.sync().await?;
            self.file.close().await
        })
    }

    fn reread_stored(&self) -> Outcome<(Box<dyn Source>, ReadBack)> {
        Ok((self.reread()?, ReadBack::Servers))
    }

    fn publish(&self, replaces: &Replaces) -> Outcome<Meta> {
        check_any(replaces, &self.shown)?;
        let (client, who) = (&self.session.client, &self.session.who);
        let attr = self.session.ask(format_args!("finish {}", self.shown), async {
            self.file.close().await?;
            client.rename(who, self.parent, &self.temporary, self.parent, &self.name, false).await?;
            client.lookup(who, self.parent, &self.name).await
        })?;
        Ok(meta_of(&attr))
    }

    fn abandon(&self) {
        // The story of the first failure is told; a second one would not help.
        let _ = self.session.wait(self.file.close());
        let _ = self.session.wait(self.session.client.unlink(&self.session.who, self.parent, &self.temporary));
    }
}

fn no_regular_file(shown: &str) -> Trouble {
    let text = format!("create {shown}: it is there, and no regular file: give another name, or remove it");
    Trouble::new(Exit::Caller, text)
}

fn hidden_name(hidden: &[u8]) -> Outcome<Name> {
    Name::new(hidden).map_err(|_| Trouble::new(Exit::Fatal, "a temporary name that cannot be one: a defect in aze"))
}

/// The extended attributes of an inode that a copy keeps.
fn xattrs(session: &Connection, ino: Ino, shown: &str) -> Outcome<Vec<Xattr>> {
    let (client, who) = (&session.client, &session.who);
    session.ask(format_args!("read extended attributes of {shown}"), async {
        let mut found = Vec::new();
        for name in client.list_xattr(who, ino).await?.into_iter().filter(|name| is_kept(name)) {
            match client.get_xattr(who, ino, &name).await {
                Ok(value) => found.push((name, value)),
                // It has gone since.
                Err(failure) if failure.code == Code::NoAttribute => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(found)
    })
}

fn set_xattr(session: &Connection, ino: Ino, (name, value): &Xattr, shown: &str) -> Outcome<()> {
    let set = session.client.set_xattr(&session.who, ino, name, value, XattrHow::Any);
    session.wait(set).map_err(|failure| Trouble::volume(shown, &failure))
}

fn new_file(kind: FileKind, mode: u32, target: Vec<u8>, open: Option<Access>) -> NewFile {
    NewFile { kind, mode, rdev: 0, target, exclusive: true, open, chunk_bits: 0, private: false }
}

fn set(session: &Connection, ino: Ino, meta: &Meta, preserve: bool) -> Result<(), Failure> {
    let (client, who) = (&session.client, &session.who);
    let time = |time| preserve.then_some(SetTime::To { time });
    let owner = Change { uid: Some(meta.uid), gid: Some(meta.gid), ..Change::default() };
    let rest = |owner_kept| Change {
        mode: Some(copied_mode(meta.mode, owner_kept)),
        atime: time(meta.atime),
        mtime: time(meta.mtime),
        ..Change::default()
    };
    session.wait(async {
        let mut owner_kept = false;
        if preserve {
            // A bit that lends the owner's rights would not outlive the change of the owner.
            let at_once = meta.mode & LENT_RIGHTS == 0;
            let change = if at_once { Change { uid: owner.uid, gid: owner.gid, ..rest(true) } } else { owner };
            match client.setattr(who, ino, &change).await {
                Err(failure) if !matches!(failure.code, Code::NotPermitted | Code::AccessDenied) => {
                    return Err(failure);
                }
                Ok(_) if at_once => return Ok(()),
                // Only root may give files away; the copies of another user stay that user's, as with cp(1).
                result => owner_kept = result.is_ok(),
            }
        }
        client.setattr(who, ino, &rest(owner_kept)).await.map(drop)
    })
}

fn named(entry: &Listed) -> Named {
    let meta = entry.attr.as_ref().map(meta_of);
    Named { name: entry.name.as_bytes().to_vec(), kind: entry.kind, meta }
}

/// Of a directory whose home does not answer: closed to others, as a directory that is being copied into. A copy with
/// owner and times fails at its extended attributes, which are read before those are set.
fn meta_of_unknown(dir: Ino) -> Meta {
    let (uid, gid, _) = aze_io::real::own_ids();
    Meta {
        kind: FileKind::Directory,
        mode: 0o700,
        uid,
        gid,
        size: 0,
        is_sparse: false,
        atime: Time(0),
        mtime: Time(0),
        ctime: Time(0),
        links: 1,
        identity: (0, dir.0),
    }
}

fn meta_of(attr: &Attr) -> Meta {
    Meta {
        kind: attr.kind,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        is_sparse: attr.kind == FileKind::File && attr.blocks() < attr.size.div_ceil(512),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        links: attr.links.into(),
        identity: (0, attr.ino.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aze_proto::attr::Spread;
    use aze_proto::ids::{MapEpoch, Prefix, ShardId};
    use aze_proto::place::Layout;

    #[test]
    fn only_files_that_may_have_holes_are_looked_through_for_them() {
        let file = Attr {
            ino: Ino(9),
            kind: FileKind::File,
            mode: 0o644,
            links: 1,
            uid: 1,
            gid: 1,
            rdev: 0,
            size: 1 << 20,
            atime: Time(0),
            mtime: Time(0),
            ctime: Time(0),
            btime: Time(0),
            generation: Generation(0),
            born: MapEpoch(0),
            layout: Layout::new(Prefix::first_of(ShardId(4094), 4096), 4096),
            chunk_bits: 20,
            spread: Spread::ANYWHERE,
            has_xattrs: false,
            parent: Ino(0),
        };
        let spread = Spread::ANYWHERE.with_sparse(true);
        let is_sparse = |attr: Attr| meta_of(&attr).is_sparse;
        assert!(!is_sparse(file.clone()));
        assert!(is_sparse(Attr { spread, ..file.clone() }));
        assert!(!is_sparse(Attr { spread, kind: FileKind::Directory, ..file }));
    }
}
