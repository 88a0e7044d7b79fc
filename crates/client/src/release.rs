//! Files that the volume gives up since their data are elsewhere, too; and how often a file is open.

use crate::client::unexpected;
use crate::file::File;
use crate::names::done;
use crate::route::{Knowing, Place};
use aze_proto::{Failure, Generation, Ino, Name, Reply, Request, Time};

/// How often a file is open in all of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCount {
    /// All opens.
    pub opens: u32,
    /// Those for writing; also those of sessions that have lost their connections and may come back.
    pub writers: u32,
    /// `false` if the server of the file was started again since the file was made: opens from before are not counted.
    pub knows_all: bool,
}

impl File {
    /// How often the file is open now, this open included.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn count_opens(&self) -> Result<OpenCount, Failure> {
        let request = Request::CountOpens { ino: self.ino() };
        match self.core.ask(&self.who, Place::Home(self.ino()), &request).await? {
            Reply::OpensAre { opens, writers, knows_all } => Ok(OpenCount { opens, writers, knows_all }),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// Takes away the only name of this file, if no client has had it open for writing since this open, and generation and
    /// change time are these. From the moment when the home has found that, opens for writing and other changes wait until
    /// the name is gone; then they fail as for every removed file. The caller closes this open in any case.
    ///
    /// `any_life` also takes a file whose server was started again since the file was made, and does not know of opens from
    /// before.
    ///
    /// # Errors
    /// [`Code::Busy`](aze_proto::Code::Busy), with the reason, if the file stays; [`Code::Stale`](aze_proto::Code::Stale) or
    /// [`Code::NotFound`](aze_proto::Code::NotFound) if the name leads elsewhere by now; those of a removal.
    pub async fn release(
        &self,
        parent: Ino,
        name: &Name,
        (generation, ctime): (Generation, Time),
        any_life: bool,
    ) -> Result<(), Failure> {
        let ino = self.ino();
        self.open_at_home().await?;
        let freeze = Request::Freeze { ino, handle: self.handle()?.handle, generation, ctime, any_life };
        let began = match self.core.ask(&self.who, Place::Home(ino), &freeze).await? {
            Reply::Frozen { began } => began,
            other => return Err(unexpected(&freeze, &other)),
        };
        let unlink = Request::UnlinkFrozen { parent, name: name.clone(), ino, began };
        let reply = self.core.ask_knowing(&self.who, Place::Entry(parent, name), Knowing::Latest, &unlink).await;
        match &reply {
            Ok(Reply::DoneAt { time }) => self.core.dir_attrs.changed(parent, false, *time),
            _ => self.core.dir_attrs.forget(parent),
        }
        done(&unlink, reply?)
    }
}
