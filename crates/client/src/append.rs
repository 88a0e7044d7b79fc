//! Appends: the file's home chooses the place, so that those of all clients come one after the other.

use crate::client::unexpected;
use crate::data::until_sound;
use crate::file::File;
use crate::route::{Knowing, Place, Question};
use aze_proto::limits::APPEND_BYTES_MAX;
use aze_proto::sum::piece_sums;
use aze_proto::{Code, Failure, Reply, Request};

impl File {
    /// Adds `data` at the end of the file, wherever that is by then; gives where they begin. All of
    /// `data` stay together, appends of all clients have one order, and no reader sees a part of one.
    ///
    /// # Errors
    /// [`Code::Invalid`] if not open for writing, [`Code::Limit`] beyond [`APPEND_BYTES_MAX`],
    /// [`Code::TooLarge`], [`Code::NoSpace`]. After a failure nothing was appended, except after
    /// [`Code::UnknownOutcome`]: then all or nothing.
    pub async fn append(&self, data: &[u8]) -> Result<u64, Failure> {
        self.check_open_for(self.access().write, "writing")?;
        self.check_locks()?;
        if data.len() > APPEND_BYTES_MAX {
            let detail = format!("{} bytes: one append has at most {APPEND_BYTES_MAX}", data.len());
            return Err(Failure::new(Code::Limit, detail));
        }
        let request = Request::Append { ino: self.ino(), sums: piece_sums(0, data) };
        match until_sound(|| self.ask_append(&request, data)).await? {
            Reply::Appended { attr, offset } => {
                self.inode.learn(&attr);
                Ok(offset)
            }
            other => Err(unexpected(&request, &other)),
        }
    }

    async fn ask_append(&self, request: &Request, payload: &[u8]) -> Result<Reply, Failure> {
        let place = Place::Home(self.ino());
        let question =
            Question { who: &self.who, place, knowing: Knowing::Latest, request, payload, life: None, planned: None };
        Ok(self.core.ask_question(question).await?.reply)
    }
}
