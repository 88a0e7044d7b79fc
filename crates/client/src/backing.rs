//! Where files came from, in a volume that lies over a directory of another file system.

use crate::Client;
use crate::client::unexpected;
use crate::names::done;
use crate::route::Place;
use aze_proto::check::EntryPlace;
use aze_proto::{Backing, Code, Failure, Gone, Identity, Ino, Reply, Request, ServerIndex};
use futures_util::future::try_join_all;

impl Client {
    /// Where an inode came from, and whether it was changed since; `None` if it did not come from the volume's backing.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn backing_of(&self, who: &Identity, ino: Ino) -> Result<Option<Backing>, Failure> {
        let request = Request::BackingOf { ino };
        match self.core.ask(who, Place::Home(ino), &request).await? {
            Reply::BackingIs { backing, .. } => Ok(backing),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// All names of the backing that do not lead any more, in the volume, to what was imported under them. For the volume's
    /// owner and root.
    ///
    /// # Errors
    /// If one server does not answer: what it knows of would be missing.
    pub async fn gone_names(&self, who: &Identity) -> Result<Vec<Gone>, Failure> {
        let servers: Vec<_> = self.map().indexes().collect();
        let all = try_join_all(servers.into_iter().map(|server| self.gone_names_of(who, server))).await?;
        Ok(all.into_iter().flatten().collect())
    }

    async fn gone_names_of(&self, who: &Identity, server: ServerIndex) -> Result<Vec<Gone>, Failure> {
        let (mut all, mut from) = (Vec::new(), EntryPlace::default());
        loop {
            let request = Request::GoneNames { from: from.clone() };
            match self.core.ask_server(who, server, &request).await? {
                Reply::GoneAre { names, next } => {
                    all.extend(names);
                    match next {
                        Some(next) if next > from => from = next,
                        Some(_) => return Err(Failure::new(Code::Malformed, "a page of names leads back")),
                        None => return Ok(all),
                    }
                }
                other => return Err(unexpected(&request, &other)),
            }
        }
    }

    /// Says that what an inode came from is about to be removed from the backing: whatever becomes of its names, the volume
    /// alone has it from now on. For the volume's owner and root.
    ///
    /// # Errors
    /// Those of every request; `Stale` if there is no such inode any more.
    pub async fn leave_backing(&self, who: &Identity, ino: Ino) -> Result<(), Failure> {
        let request = Request::LeaveBacking { ino };
        done(&request, self.core.ask(who, Place::Home(ino), &request).await?)
    }

    /// Drops the record of a name, when the backing has followed. One that was made later stays. For the volume's owner and
    /// root.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn forget_gone(&self, who: &Identity, gone: &Gone) -> Result<(), Failure> {
        let Gone { parent, name, since, .. } = gone.clone();
        let place = Place::Entry(parent, &gone.name);
        let request = Request::ForgetGone { parent, name, since };
        done(&request, self.core.ask(who, place, &request).await?)
    }
}
